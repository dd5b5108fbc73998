"""Hidden layers of a deep GP by adaptive cross approximation (urbainczyk2025, section 3.3); see `hidden_layers`.

u_l = C_l xi_l, C_l = k_l(X, P_l) L^-T, L L^T = k_l(P_l, P_l), with r rows P_l as pivots, which `gp.cross_approximation`
finds from the covariance of the layer. Pivots stay within an E-step, while C_l moves with the layer below. After an
M-step those of the layers above the first one, whose covariance moves, are found anew for each particle, and xi_l
becomes argmin |C_l xi - u_l|^2 + jitter |xi|^2. At new inputs u_l = k_l(., P_l) L^-T xi_l, at the rows C_l xi_l.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from gpbench.gp import greedy
from gpbench.gp.cross_approximation import pivots as find_pivots
from gpbench.gp.cross_approximation import rewhiten
from gpbench.gp.greedy import Rows
from gpbench.gp.jitter import DEFAULT_JITTER
from gpbench.methods.hidden_layers import Hidden, Tensors, Values, factor, shared, unit


class CrossApproximation(Hidden):
    def __init__(self, architecture: str, layers: int, rank: int) -> None:
        super().__init__(architecture, layers)
        self.rank = rank

    def begin(self, buffers: Tensors) -> tuple[Tensors, Tensors]:
        k, x = self.kernel(buffers), buffers["x"][:, None]
        start = k.start(x)
        pivots = self._pivots(k.stationary, x, buffers)
        columns = self._columns(k.stationary, x, greedy.take(x, pivots), buffers, 0)
        params, kept = ({"layer0": rewhiten(columns, start, DEFAULT_JITTER)}, {"layer0.pivots": pivots})
        u = columns @ params["layer0"]
        for number, name in enumerate(self.names[1:], 1):
            places = k.places(x, u)
            kept[f"{name}.pivots"] = self._pivots(k.covariance, places, buffers)
            above = self._columns(k.covariance, places, greedy.take(places, kept[f"{name}.pivots"]), buffers, number)
            params[name] = rewhiten(above, start, DEFAULT_JITTER)
            u = above @ params[name]
        return params, kept | {"layer0.columns": columns}

    def values(self, params: Tensors, buffers: Tensors) -> Values:
        return self._layers(params, buffers)[-1][0]

    def refresh(self, params: Tensors, before: Tensors, after: Tensors) -> tuple[Tensors, Tensors]:
        """Of layers above the first one, whose covariance moves: the first one's pivots stay."""
        k, x, everything = self.kernel(before), before["x"][:, None], slice(None)
        old = [values(everything) for values, _, _ in self._layers(params, before)] if len(self.names) > 1 else []
        kept: Tensors = {}
        params = dict(params)
        for number, name in enumerate(self.names[1:], 1):
            below = self._layers(params, before | kept)[number - 1][0](everything)
            places = k.places(x, below)
            kept[f"{name}.pivots"] = self._pivots(k.covariance, places, before)
            centres = greedy.take(places, kept[f"{name}.pivots"])
            columns = self._columns(k.covariance, places, centres, before, number)
            params[name] = rewhiten(columns, old[number], DEFAULT_JITTER)
        return params, kept

    def extension(self, params: Tensors, buffers: Tensors) -> Tensors:
        layers = self._layers(params, buffers)
        found = {f"{name}.centres": centres for name, (_, centres, _) in zip(self.names, layers, strict=True)}
        return found | {f"{name}.weights": weights for name, (_, _, weights) in zip(self.names, layers, strict=True)}

    def _layers(self, params: Tensors, buffers: Tensors) -> list[tuple[Values, Tensor, Tensor]]:
        """Of every layer its values, places of its pivots and weights L^-T xi: u(z) = k(z, pivots) weights."""
        k, x, one = self.kernel(buffers), buffers["x"][:, None], unit(buffers)
        centres = greedy.take(x, buffers["layer0.pivots"])
        first = factor(k.stationary(centres, centres, one), 0)
        weights = torch.linalg.solve_triangular(first.mT, params["layer0"], upper=True)
        columns, xi = buffers["layer0.columns"], params["layer0"]

        def bottom(rows: Rows) -> Tensor:
            own = greedy.take(columns, rows)
            return shared(own, xi) if own.shape[1] == 1 else own @ xi

        found: list[tuple[Values, Tensor, Tensor]] = [(bottom, centres, weights)]
        for number, name in enumerate(self.names[1:], 1):
            below, pivots = found[-1][0], buffers[f"{name}.pivots"]
            centres = k.places(greedy.take(x, pivots), below(pivots))
            chol = factor(k.covariance(centres, centres, one), number)
            weights = torch.linalg.solve_triangular(chol.mT, params[name], upper=True)

            def values(rows: Rows, below: Values = below, z: Tensor = centres, w: Tensor = weights) -> Tensor:
                return k.covariance(k.places(greedy.take(x, rows), below(rows)), z, one) @ w

            found.append((values, centres, weights))
        return found

    def _pivots(self, covariance: Callable[..., Tensor], places: Tensor, buffers: Tensors) -> Tensor:
        """Rows `[R, S, r]` that tell most of a layer at places `[R, S, n, *]`."""

        def column(pivot: Tensor) -> Tensor:
            return covariance(places, greedy.take(places, pivot[..., None]), unit(buffers))[..., 0]

        diagonal = buffers["mask"][:, None].expand(places.shape[:-1])
        return find_pivots(column, diagonal, min(self.rank, places.shape[-2]))[0]

    def _columns(
        self, covariance: Callable[..., Tensor], places: Tensor, centres: Tensor, buffers: Tensors, layer: int
    ) -> Tensor:
        """C = k(X, P) L^-T `[R, S, n, r]`, 0 in padding rows."""
        one, mask = unit(buffers), buffers["mask"][:, None, :, None]
        chol = factor(covariance(centres, centres, one), layer)
        return torch.linalg.solve_triangular(chol.mT, covariance(places, centres, one), upper=True, left=False) * mask
