"""AEP: approximate (power) expectation propagation for deep GPs (bui2016; classification and linear means ashman2020).

Model      FITC in every layer l = 1..L: u = L_K v with L_K L_K^T = K_ZZ, v ~ N(0, I),
           h^l_n ~ N(k_n^T K_ZZ^-1 u, k_nn - k_n^T K_ZZ^-1 k_n + s_l), s_L = 0; y_n ~ p(y | h^L_n), with its own noise.
Posterior  q(v) = p(v) g(v)^N, one Gaussian factor g for all rows: S = (I + T)^-1, m = S t, with T = R R^T and t the
           sums of the N factors. Cavity of power a: S_c = (I + b T)^-1, m_c = b S_c t, b = 1 - a / N.
Objective  energy = sum_layers,outputs [phi(m, S) + N / a (phi(m_c, S_c) - phi(m, S))] + 1/a sum_n log Z_n,
           phi(m, S) = 1/2 log |S| + 1/2 m^T S^-1 m,  Z_n = int p(y_n | f)^a N(f; mean_n, variance_n) df;
           mean_n, variance_n are the cavity's, each layer's output taken for a Gaussian with its exact moments
           (`propagation.moments`). It approximates log p(y) and is no bound; a -> 0 with L = 1 is `svgp`.

A linear mean function x W of a hidden layer is taken out of u (ashman2020 leaves it in, its program without its prior):
u = Z W + L_K v keeps all of the above. Nothing is sampled. All is computed in float64 whatever the parameters' type:
the moments are differences of terms 1 / jitter times their size.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np
import torch
from scipy.spatial.distance import pdist
from torch import Tensor

from gpbench import streams
from gpbench.gp import layers, likelihoods, linalg, propagation
from gpbench.gp.sparse import Layer
from gpbench.hyper import Annotated, Gt, Le, PositiveFloat, PositiveInt, RBFSettings, dataclass
from gpbench.methods.base import GradientMethod, Noise, State, noise_variance
from gpbench.methods.training_rows import Batch
from gpbench.predictive.distributions import Predictive
from gpbench.streams import Key

DISTANCE_ROWS = 1000


@dataclass(frozen=True)
class Hyperparameters(RBFSettings):
    """Settings of bui2016 as ashman2020 describes them; starting kernels and the jitter as in its program.

    mean_function: of the hidden layers; ard, separate: as in `svgp`; lengthscale: of the first layer, in median
    distances between training inputs; hidden_lengthscale and -outputscale: of later layers; layer_noise_variance: s_l
    of the hidden layers; all of them, and noise_variance, at the start."""

    layers: PositiveInt = 2
    hidden_width: PositiveInt = 2
    num_inducing: PositiveInt = 100
    power: Annotated[float, Gt(0), Le(1)] = 1.0
    mean_function: Literal["zero", "linear"] = "zero"
    ard: bool = True
    separate: Literal["none", "kernels", "all"] = "none"
    lengthscale: PositiveFloat = 0.5
    outputscale: PositiveFloat = 0.25
    hidden_lengthscale: PositiveFloat = 1.0
    hidden_outputscale: PositiveFloat = 1.0
    layer_noise_variance: PositiveFloat = 0.01
    noise_variance: PositiveFloat = 1e-4
    jitter: PositiveFloat = 1e-5
    learning_rate: PositiveFloat = 0.01
    batch_size: PositiveInt = 50

    def probes(self) -> list[str]:
        return super().probes() if self.separate == "none" else ["bounds"]


class Belief(NamedTuple):
    """q(v) = N(mean, root root^T) of the outputs of a layer."""

    mean: Tensor  # [Q, R, M]
    root: Tensor  # [Q, R, M, M] lower triangular
    factor: Tensor | None = None  # R of the posterior's precision I + R R^T


def inverse_root(matrix: Tensor, name: str) -> Tensor:
    """Lower triangular L with L L^T = matrix^-1, `[Q, R, M, M]`: matrix = U U^T with upper triangular U = L^-T."""
    lower = linalg.cholesky(matrix.flip(-1, -2), name).flip(-1, -2).mT
    return torch.linalg.solve_triangular(lower, identity(lower), upper=False)


def identity(like: Tensor) -> Tensor:
    return torch.eye(like.shape[-1], dtype=like.dtype, device=like.device)


def posterior(factor: Tensor, shift: Tensor, name: str) -> Belief:
    """S = (I + R R^T)^-1 and m = S t, from R `[Q, R, M, M]` and t `[Q, R, M]`."""
    root = inverse_root(identity(factor) + factor @ factor.mT, name)
    return Belief((root @ (root.mT @ shift[..., None]))[..., 0], root, factor)


def cavity(q: Belief, shift: Tensor, fraction: Tensor, name: str) -> tuple[Belief, Tensor]:
    """The cavity of the posterior q, and the layer's part of the energy `[R]`; shift: t, fraction: a / N `[R]`.

    With S = root root^T and left left^T = (b I + a/N root^T root)^-1, S_c = root left left^T root^T. Differences of
    size N are N/(2 a) log |S_c| / |S| = N/a log |left| and N/(2 a) (b t^T m_c - t^T m) = -1/2 (t^T S_c m + t^T m_c).
    Differentiable once, in the sites R and t."""
    mean, root, energy = _Cavity.apply(q.factor, shift, fraction, q.mean.detach(), q.root.detach(), name)
    return Belief(mean, root), energy


class _Cavity(torch.autograd.Function):
    """`cavity`. Backward, with P = S^-1 = I + R R^T, g, G and c the gradients of m_c, the root of S_c and the energy:

    e = S_c m,  w = c e - S_c g,  X = symmetric(root^T G), root that of S_c,  dR = 2 dP R,
    dP = -b root X root^T - c/2 S (I - S_c) + b/2 (m_c w^T + w m_c^T + a/N c e e^T),  dt = b S_c g + c (m - m_c - e).
    There is no difference of terms of size N in it."""

    @staticmethod
    def forward(ctx, factor, shift, fraction, q_mean, q_root, name) -> tuple[Tensor, Tensor, Tensor]:
        part = fraction[:, None, None]
        left = inverse_root((1 - part) * identity(q_root) + part * (q_root.mT @ q_root), name)
        root = q_root @ left
        half_shift, half_mean = (root.mT @ vector[..., None] for vector in (shift, q_mean))
        mean = (1 - fraction)[:, None] * (root @ half_shift)[..., 0]
        log_det, log_det_left = (lower.diagonal(dim1=-2, dim2=-1).log().sum(-1) for lower in (q_root, left))
        quadratic = (shift * (q_mean - mean)).sum(-1) - (half_shift * half_mean).sum((-2, -1))
        ctx.save_for_backward(factor, fraction, q_mean, q_root, mean, root)
        return mean, root, (log_det + log_det_left / fraction + 0.5 * quadratic).sum(0)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, g: Tensor, grad_root: Tensor, c: Tensor) -> tuple[Tensor | None, ...]:
        factor, fraction, q_mean, q_root, mean, root = ctx.saved_tensors
        c, part = c[:, None, None], fraction[:, None, None]
        m, m_c, g = (vector[..., None] for vector in (q_mean, mean, g))
        covariance = root @ root.mT
        e, of_mean = covariance @ m, (1 - part) * (covariance @ g)
        # twice dP: symmetric terms, and those of rank one, which are made so
        twice = (root * (-2 * (1 - part))) @ linalg.symmetric(root.mT @ grad_root) @ root.mT
        twice -= c * (q_root @ (q_root.mT @ (identity(root) - covariance)))
        ranks = m_c @ ((1 - part) * c * e - of_mean).mT + (0.5 * (1 - part) * part * c * e) @ e.mT
        twice += ranks + ranks.mT
        return twice @ factor, (of_mean + c * (m - m_c - e))[..., 0], None, None, None, None


def median_distance(x: np.ndarray, rng: np.random.Generator) -> float:
    """Median distance between distinct rows of x `[N, D]`, of 1,000 at most, drawn at random."""
    if len(x) > DISTANCE_ROWS:
        x = x[rng.choice(len(x), DISTANCE_ROWS, replace=False)]
    distances = pdist(x)
    distances = distances[distances > 0]
    return float(np.median(distances)) if distances.size else 1.0


def spread(z: Tensor) -> Tensor:
    """As many numbers from -1 to 1 as z `[R, M, D]` has inducing inputs."""
    return torch.linspace(-1, 1, z.shape[1], dtype=z.dtype, device=z.device)


def converted(state: State, dtype: torch.dtype) -> State:
    params, buffers = ({k: v.to(dtype) for k, v in part.items()} for part in (state.params, state.buffers))
    return State(params, buffers)


class Method(GradientMethod):
    def __init__(self, hyper: Hyperparameters, task: str, num_classes: int = 0, num_targets: int = 1) -> None:
        super().__init__(hyper, task, num_classes, num_targets)
        self.likelihood = likelihoods.for_task(task, num_classes, num_targets)
        self.names = [f"layer{number}" for number in range(1, hyper.layers + 1)]

    def init(self, train: Batch, key: Key) -> State:
        """Z by k-means in the first layer; in later ones on a diagonal, or pushed through the linear mean function."""
        hyper, x, rng = self.hyper, train.x.double(), streams.rng(key, "init")
        z = layers.start_inducing(x, hyper.num_inducing, rng)
        lengthscale = hyper.lengthscale * x.new_tensor([median_distance(x[0].cpu().numpy(), rng)])
        outputscale = hyper.outputscale
        state = State({}, {"num_rows": x.new_tensor([x.shape[1]])})
        for name in self.names[:-1]:
            state.params |= self.start_layer(name, z, hyper.hidden_width, lengthscale, outputscale, rng)
            state.params[f"{name}.log_noise_variance"] = z.new_full(z.shape[:1], hyper.layer_noise_variance).log()
            if hyper.mean_function == "linear":
                mapped = state.buffers[f"{name}.mean_map"] = layers.mean_map(x, hyper.hidden_width)
                x, z = x @ mapped, z @ mapped
            else:
                z = spread(z)[:, None].repeat(1, 1, hyper.hidden_width)
            lengthscale, outputscale = z.new_full(z.shape[:1], hyper.hidden_lengthscale), hyper.hidden_outputscale
        num_outputs = self.likelihood.num_outputs
        state.params |= self.start_layer(self.names[-1], z, num_outputs, lengthscale, outputscale, rng)
        if self.task == "regression":
            state.params["log_noise_variance"] = z.new_full(z.shape[:1], hyper.noise_variance).log()
        return converted(state, train.x.dtype)

    def start_layer(self, name, z, num_outputs, lengthscale, outputscale, rng) -> dict[str, Tensor]:
        """Sites of u of precision 1 / d, d ~ U(0, 0.5), and means from -1 to 1, in terms of v."""
        hyper = self.hyper
        params = layers.init_layer(
            name, z, num_outputs, lengthscale, outputscale, ard=hyper.ard, separate=hyper.separate
        )
        upper = layers.layer(params, name, hyper.jitter).chol_kzz.mT
        upper = upper if upper.ndim == 4 else upper[:, None]
        precision = 2 / z.new_tensor(1 - rng.random((1, num_outputs, z.shape[1])))
        # u = L_K v: L_K^T diag(precision) L_K = R R^T with an upper triangular R
        params[f"{name}.site_factor"] = upper * precision.sqrt()[:, :, None]
        params[f"{name}.site_shift"] = (upper @ (precision * spread(z))[..., None])[..., 0]
        del params[f"{name}.whitened_mean"], params[f"{name}.whitened_chol"]
        return params

    def frozen(self, step: int, steps: int) -> frozenset[str]:
        """The scale that classes share, which robust-max does not see: Adam would follow rounding errors."""
        unseen = self.task == "multiclass" and self.hyper.separate == "none"
        return frozenset({f"{self.names[-1]}.log_outputscale"} if unseen else ())

    def sites(self, state: State, name: str) -> tuple[Tensor, Tensor]:
        """R `[Q, R, M, M]`, upper triangular, and t `[Q, R, M]`."""
        factor, shift = (state.params[f"{name}.site_{part}"].transpose(0, 1) for part in ("factor", "shift"))
        return factor.triu(), shift

    def layer(self, state: State, name: str, q: Belief) -> Layer:
        """The layer `name` under q."""
        belief = {f"{name}.whitened_mean": q.mean.permute(1, 2, 0), f"{name}.whitened_chol": q.root.transpose(0, 1)}
        return layers.layer(state.params | belief, name, self.hyper.jitter)

    def loss(self, state: State, batch: Batch, noise: Noise) -> Tensor:
        state, x, y = converted(state, torch.float64), batch.x.double(), batch.y.double()
        fraction = self.hyper.power / state.buffers["num_rows"]
        cavities, energy = [], torch.zeros(())
        for name in self.names:
            factor, shift = self.sites(state, name)  # R with T = R R^T, and t
            # the cavity's S_c, m_c, and phi(m, S) + N / a (phi(m_c, S_c) - phi(m, S))
            q, part = cavity(posterior(factor, shift, name), shift, fraction, name)
            cavities.append(self.layer(state, name, q))
            energy = energy + part
        mean, variance = self.propagate(state, cavities, x)
        noises = noise_variance(state.params)
        log_z = self.likelihood.log_power_prob(y, mean[None], variance[None], noises, self.hyper.power)[0]
        # -energy, with 1/a sum_n log Z_n
        return -energy - (batch.weight * log_z).sum(-1) / self.hyper.power

    def propagate(self, state: State, parts: list[Layer], x: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and variance of the last layer's functions `[R, B, Q]` at x `[R, B, D]`."""
        noise_variances = [state.params[f"{name}.log_noise_variance"].exp() for name in self.names[:-1]]
        return propagation.through(parts, x, noise_variances, [state.buffers.get(f"{n}.mean_map") for n in self.names])

    def posterior(self, state: State) -> list[Layer]:
        """The layers under q."""
        return [self.layer(state, name, posterior(*self.sites(state, name), name)) for name in self.names]

    @torch.no_grad()
    def predict(self, state: State, x: Tensor, key: Key) -> Predictive:
        state = converted(state, torch.float64)
        moments = self.propagate(state, self.posterior(state), x.double())
        return self.likelihood.predictive(*moments, noise_variance(state.params))
