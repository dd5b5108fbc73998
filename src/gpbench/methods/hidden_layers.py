"""Hidden layers of a deep GP by their whitened values: in full, by cross approximation, fully sparse (urbainczyk2025).

The covariance of hidden layer l at places z given the layer below is k_l, with marginal variance 1 (`gp.deep_kernels`);
the first is stationary. Its values u_l at the rows, n x width, are C_l xi_l with xi_l ~ N(0, I):

    full     C_l C_l^T = k_l(X, X), n x n; layer 0 is factored once                                      O(n^3)
    aca      C_l = k_l(X, P) L^-T, L L^T = k_l(P, P), r rows P as pivots (`cross_approximated_layers`)   O(n r^2)
    sparse   u_l at the rows M is chol(k_l(M, M)) xi_l; elsewhere u(x) = start(x) + k_I(x, M) (k_I(M, M) + s I)^-1
             (u(M) - start(M)), k_I stationary: of the last hidden layer alone                            O(m^3 + n m)

`start` is where chains begin, at which the top layer is stationary. At new inputs layers take their mean given the
values at the rows (aca: at the pivots), or the interpolation. `params` are whitened values `[R, S, k, width]` by layer,
`buffers` what does not change within an E-step; k is n, r or m. Padding rows have xi = 0.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

import torch
from torch import Tensor

from gpbench.gp import greedy
from gpbench.gp.deep_kernels import DeepKernel
from gpbench.gp.greedy import Rows
from gpbench.gp.jitter import DEFAULT_JITTER

Tensors = dict[str, Tensor]
Values = Callable[[Rows], Tensor]
"""Values of a hidden layer at some rows `[R, S, k, width]`."""
M = "inducing_rows"


def for_all(operation: Callable[[Tensor], Tensor], values: Tensor) -> Tensor:
    """A linear operation on the columns of a matrix `[R, k, *]`, done at once for the values `[R, S, k, w]`."""
    replicas, particles, size, width = values.shape
    folded = operation(values.transpose(1, 2).reshape(replicas, size, particles * width))
    return folded.view(replicas, -1, particles, width).transpose(1, 2)


def shared(matrix: Tensor, values: Tensor) -> Tensor:
    """matrix `[R, 1, n, k]` @ values `[R, S, k, w]`, as one product."""
    return for_all(lambda columns: matrix[:, 0] @ columns, values)


def unit(buffers: Tensors) -> Tensor:
    """Marginal variance of the hidden layers `[R, 1]`."""
    return torch.ones_like(buffers["lengthscale"])


def factor(matrix: Tensor, layer: int) -> Tensor:
    return greedy.factor(matrix, f"layer{layer}", matrix.new_full((len(matrix), 1), DEFAULT_JITTER))


class Hidden(ABC):
    """layers: of the hidden ones, how many; a name for each in params: layer0, layer1, ..."""

    per_row = False
    """whether whitened values belong to rows, rather than to a fixed number of places"""

    def __init__(self, architecture: str, layers: int) -> None:
        self.architecture = architecture
        self.names = [f"layer{number}" for number in range(layers)]

    def kernel(self, buffers: Tensors) -> DeepKernel:
        return DeepKernel(self.architecture, buffers["lengthscale"], buffers["start_map"])

    @abstractmethod
    def begin(self, buffers: Tensors) -> tuple[Tensors, Tensors]:
        """Whitened values `[1, 1, k, width]` of the start, and what is kept of it among the buffers."""

    @abstractmethod
    def values(self, params: Tensors, buffers: Tensors) -> Values:
        """Values of the last hidden layer."""

    def refresh(self, params: Tensors, before: Tensors, after: Tensors) -> tuple[Tensors, Tensors]:
        """Params and further buffers once the rows M are those in `after`; values stay what they were, nearly."""
        return params, {}

    @abstractmethod
    def extension(self, params: Tensors, buffers: Tensors) -> Tensors:
        """What values at new inputs are computed from."""

    def at_inputs(self, extension: Tensors, buffers: Tensors, x: Tensor) -> list[Tensor]:
        """Values of all layers `[R, S, T, width]` at inputs x `[R, 1, T, D]`."""
        k, one = self.kernel(buffers), unit(buffers)
        found = [shared(k.stationary(x, extension["layer0.centres"], one), extension["layer0.weights"])]
        for name in self.names[1:]:
            cross = k.covariance(k.places(x, found[-1]), extension[f"{name}.centres"], one)
            found.append(cross @ extension[f"{name}.weights"])
        return found


class Full(Hidden):
    per_row = True

    def begin(self, buffers: Tensors) -> tuple[Tensors, Tensors]:
        k, x = self.kernel(buffers), buffers["x"][:, None]
        start = k.start(x)
        chol = factor(k.stationary(x, x, unit(buffers)), 0)
        params = {self.names[0]: torch.linalg.solve_triangular(chol, start, upper=False)}
        if len(self.names) > 1:
            above = torch.linalg.solve_triangular(self._factor(buffers, start, 1), start, upper=False)
            params |= dict.fromkeys(self.names[1:], above)
        return params, {"layer0.chol": chol}

    def values(self, params: Tensors, buffers: Tensors) -> Values:
        u = self._all(params, buffers)[-1]
        return lambda rows: greedy.take(u, rows)

    def extension(self, params: Tensors, buffers: Tensors) -> Tensors:
        upper = (buffers["layer0.chol"][:, 0] + (1 - buffers["mask"]).diag_embed()).mT
        weights = for_all(lambda xi: torch.linalg.solve_triangular(upper, xi, upper=True), params["layer0"])
        found = {"layer0.centres": buffers["x"][:, None], "layer0.weights": weights}
        below = self._all(params, buffers)
        for number, name in enumerate(self.names[1:], 1):
            chol = self._factor(buffers, below[number - 1], number)
            found[f"{name}.centres"] = self.kernel(buffers).places(buffers["x"][:, None], below[number - 1])
            found[f"{name}.weights"] = torch.linalg.solve_triangular(chol.mT, params[name], upper=True)
        return found

    def _all(self, params: Tensors, buffers: Tensors) -> list[Tensor]:
        """Values of all layers at all rows `[R, S, n, width]`."""
        found = [shared(buffers["layer0.chol"], params["layer0"])]
        for number, name in enumerate(self.names[1:], 1):
            # a particle after the other, as the factors of all of them are no small tensor
            columns = zip(found[-1].split(1, 1), params[name].split(1, 1), strict=True)
            found.append(torch.cat([self._factor(buffers, u, number) @ xi for u, xi in columns], 1))
        return found

    def _factor(self, buffers: Tensors, below: Tensor, layer: int) -> Tensor:
        """Of k_l at all rows `[R, S, n, n]`; padding rows are rows of the identity."""
        k, mask = self.kernel(buffers), buffers["mask"][:, None]
        places = k.places(buffers["x"][:, None], below)
        covariance = k.covariance(places, places, unit(buffers)) * mask[..., :, None] * mask[..., None, :]
        return factor(covariance + (1 - mask).diag_embed(), layer)


class Sparse(Hidden):
    def begin(self, buffers: Tensors) -> tuple[Tensors, Tensors]:
        start = self.kernel(buffers).start(self._inputs(buffers))
        return self._whiten([start] * len(self.names), buffers), {"interpolation": self._interpolation(buffers)}

    def values(self, params: Tensors, buffers: Tensors) -> Values:
        k, x, a = self.kernel(buffers), buffers["x"][:, None], buffers["interpolation"]
        moved = self._at_inducing(params, buffers)[-1] - k.start(self._inputs(buffers))
        return lambda rows: k.start(greedy.take(x, rows)) + shared(greedy.take(a, rows), moved)

    def refresh(self, params: Tensors, before: Tensors, after: Tensors) -> tuple[Tensors, Tensors]:
        """Every layer at the new rows M, by interpolation from the old ones."""
        k, start, a = self.kernel(before), self.kernel(before).start(self._inputs(before)), before["interpolation"]
        known = [u - start for u in self._at_inducing(params, before)]
        moved = [k.start(self._inputs(after)) + shared(greedy.take(a, after[M]), u) for u in known]
        return self._whiten(moved, after), {"interpolation": self._interpolation(after)}

    def extension(self, params: Tensors, buffers: Tensors) -> Tensors:
        x = self._inputs(buffers)
        start, chol = self.kernel(buffers).start(x), self._smoother(buffers)[:, 0]
        weights = [
            for_all(lambda moved: torch.cholesky_solve(moved, chol), u - start)
            for u in self._at_inducing(params, buffers)
        ]
        named = {f"{name}.weights": value for name, value in zip(self.names, weights, strict=True)}
        return {"layer0.centres": x} | named

    def at_inputs(self, extension: Tensors, buffers: Tensors, x: Tensor) -> list[Tensor]:
        k = self.kernel(buffers)
        cross = k.stationary(x, extension["layer0.centres"], unit(buffers))
        return [k.start(x) + shared(cross, extension[f"{name}.weights"]) for name in self.names]

    def _inputs(self, buffers: Tensors) -> Tensor:
        return greedy.take(buffers["x"][:, None], buffers[M])

    def _at_inducing(self, params: Tensors, buffers: Tensors) -> list[Tensor]:
        """Values of all layers at the rows M `[R, S, m, width]`."""
        k, x, one = self.kernel(buffers), self._inputs(buffers), unit(buffers)
        found = [shared(factor(k.stationary(x, x, one), 0), params["layer0"])]
        for number, name in enumerate(self.names[1:], 1):
            places = k.places(x, found[-1])
            found.append(factor(k.covariance(places, places, one), number) @ params[name])
        return found

    def _whiten(self, values: list[Tensor], buffers: Tensors) -> Tensors:
        """The params whose values at the rows M these are, the inverse of `_at_inducing`."""
        k, x, one = self.kernel(buffers), self._inputs(buffers), unit(buffers)
        covariances = [k.stationary(x, x, one)]
        for below in values[:-1]:
            places = k.places(x, below)
            covariances.append(k.covariance(places, places, one))
        pairs = enumerate(zip(covariances, values, strict=True))
        return {
            self.names[number]: torch.linalg.solve_triangular(factor(covariance, number), u, upper=False)
            for number, (covariance, u) in pairs
        }

    def _smoother(self, buffers: Tensors) -> Tensor:
        """Factor of k_I(M, M) + s I `[R, 1, m, m]`."""
        x = self._inputs(buffers)
        noise = buffers["noise_variance"]
        return greedy.factor(self.kernel(buffers).stationary(x, x, unit(buffers)), "interpolation", noise)

    def _interpolation(self, buffers: Tensors) -> Tensor:
        """k_I(X, M) (k_I(M, M) + s I)^-1 `[R, 1, n, m]`, but the rows M take their own values."""
        x, one = self._inputs(buffers), unit(buffers)
        cross = self.kernel(buffers).stationary(buffers["x"][:, None], x, one)
        weights = torch.cholesky_solve(cross.mT, self._smoother(buffers)).mT
        rows = buffers[M][:, None, :, None].expand(-1, -1, -1, weights.shape[-1])
        eye = torch.eye(weights.shape[-1], dtype=weights.dtype, device=weights.device)
        return weights.scatter(-2, rows, eye.expand(*rows.shape).contiguous())
