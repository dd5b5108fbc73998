"""Two-layer deep GP without approximation, by elliptical slice sampling: the gold standard of cutajar2017, figure 8.

Model      F1 ~ N(0, K1),  K1 = k1(X, X);  F2 | F1 ~ N(0, K2),  K2 = k2(F1, F1);  y ~ N(F2, noise_variance I);
           one function a layer, k1 and k2 RBF(-ARD).
Target     p(F1 | y) with the top layer integrated out: log p(y | F1) + log p(F1), where
           log p(y | F1) = log N(y; 0, K2 + noise_variance I).
Prediction for each kept F1 at test inputs x:
           F1* | F1 ~ N(k1* K1^-1 F1, k1** - k1* K1^-1 k1*^T), one draw;
           F2* | F1*, F1, y ~ N(k2* C^-1 y, k2** - k2* C^-1 k2*^T), C = K2 + noise_variance I.

The chain moves v, F1 = L v with L L^T = K1 + jitter I. So the prior draw that a transition needs is the noise itself,
log p(F1) = -||v||^2 / 2 + constant, and no F1, rounded as it is, is ever solved against the nearly singular K1.
Nothing else changes: the ellipse through L v and L nu is L times the one through v and nu.

The covariance parameters stay what a variational fit (`dgp_rff` with 50 random frequencies) finds. All chains of a
split share that fit, so they have one target; it is made in `start`. With `noise: sampled` the noise variance, which
the factorised posterior of that fit may overstate, is Gamma(1, 1) a priori in scaled units, and a random walk of its
logarithm on log p(y | F1, noise_variance) + log p(log noise_variance) follows every transition of F1.

The sign of F1 makes no difference to the target, hence two modes. Chain r starts from (-1)^r times the hidden function
of the fit; each also changes sides by itself, as the ellipse through F1 passes through -F1.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor

from gpbench import streams
from gpbench.gp import features, kernels, likelihoods, linalg
from gpbench.hyper import Fraction, PositiveFloat, PositiveInt, Settings, dataclass
from gpbench.methods import dgp_rff, warm_start
from gpbench.methods.base import Noise, SamplerMethod, Shapes, State
from gpbench.methods.training_rows import Batch, TrainingSet
from gpbench.predictive.distributions import Predictive
from gpbench.sampling import elliptical, hmc
from gpbench.streams import Key

NOISE = "log_noise_variance"
COVARIANCE = (
    "layer1.log_lengthscale",
    "layer1.log_outputscale",
    "layer2.log_lengthscale",
    "layer2.log_outputscale",
    NOISE,
)
"""What a chain keeps fixed, or starts from: `[R, D]`, `[R]`, `[R, 1]`, `[R]`, `[R]`."""


@dataclass(frozen=True)
class Hyperparameters(Settings):
    """burn_in: fraction of the transitions (10,000 with the first 1,000 left out, every 90th kept); iterations: Adam
    updates of the variational fit, with learning_rate; jitter: of K1, relative to its diagonal; noise_step: standard
    deviation of the walk of the log noise variance, where it is sampled. Always a full batch."""

    burn_in: Fraction = 0.1
    num_samples: PositiveInt = 100
    jitter: PositiveFloat = 1e-6
    noise: Literal["fixed", "sampled"] = "fixed"
    noise_step: PositiveFloat = 0.5
    num_features: PositiveInt = 50
    iterations: PositiveInt = 5000
    learning_rate: PositiveFloat = 0.01

    def width(self) -> int:
        return self.num_features


class Method(SamplerMethod):
    def start(self, data: TrainingSet, keys: list[Key]) -> State:
        """Chains at plus or minus the hidden function of a variational fit, whose covariance parameters they keep.

        All replicas at once, for thousands of updates lead there, and padding rows of a factor are not zero."""
        covariance, hidden = variational_fit(self.hyper, data, [key._replace(replica=0) for key in keys])
        sign = torch.tensor([(-1.0) ** key.replica for key in keys]).to(hidden)
        return self.chains(data.full(), covariance, sign[:, None] * hidden)

    def chains(self, batch: Batch, covariance: dict[str, Tensor], hidden: Tensor) -> State:
        """Chains with given `COVARIANCE` parameters that start near the function with values hidden `[R, n]`.

        They start at the posterior mean of F1 had `hidden` been seen with the noise of y: the prior finds a sum of few
        random features next to impossible, and a chain would be long in coming back from it."""
        buffers = {name: covariance[name] for name in COVARIANCE}
        buffers |= {"x": batch.x, "y": batch.y[..., 0], "mask": (batch.weight > 0).to(batch.x)}
        jitter = self.hyper.jitter * buffers["layer1.log_outputscale"].exp()
        chol = buffers["chol"] = factor(buffers, 1, batch.x, jitter)
        smoother = factor(buffers, 1, batch.x, buffers[NOISE].exp())
        v = (chol.mT @ torch.cholesky_solve((hidden * buffers["mask"])[..., None], smoother))[..., 0]
        sampled = {NOISE: buffers.pop(NOISE)} if self.hyper.noise == "sampled" else {}
        return State({"v": v} | sampled, buffers, {"log_likelihood": log_likelihood(v, buffers | sampled)})

    def noise_shapes(self, state: State, rows: int, step: int, steps: int) -> Shapes:
        """One normal for the threshold, one a try, two for a sampled noise; one a row for the draw from the prior."""
        return Shapes((1 + elliptical.MAX_TRIES + 2 * (NOISE in state.params),), ())

    @torch.no_grad()
    def step(self, state: State, batch: Batch, noise: Noise, step: int, steps: int) -> Tensor:
        """One elliptical slice transition, and one of the noise variance if it is sampled; returns -log p(y, F1), or
        -log p(y, F1, log noise_variance), `[R]` up to a constant."""
        known = state.buffers | state.params
        v, value, _ = elliptical.step(
            state.params["v"],
            lambda v: log_likelihood(v, known),
            state.memory["log_likelihood"],
            noise.per_row,
            torch.special.ndtr(noise.fixed[:, : 1 + elliptical.MAX_TRIES]),
        )
        state.params["v"], state.memory["log_likelihood"] = v, value
        if NOISE in state.params:
            return self.step_noise(state, *noise.fixed[:, -2:].unbind(1))
        return 0.5 * v.square().sum(1) - value

    def step_noise(self, state: State, jump: Tensor, test: Tensor) -> Tensor:
        """Metropolis random walk of log noise_variance given F1, by normals `[R]`; returns -log p(y, F1, it) `[R]`."""
        v, start = state.params["v"], state.params[NOISE][:, None]

        def log_density(position: Tensor) -> Tensor:
            log_noise = position[:, 0]
            return log_likelihood(v, state.buffers | {NOISE: log_noise}) + log_prior(log_noise)

        value = state.memory["log_likelihood"] + log_prior(start[:, 0])
        jump = self.hyper.noise_step * jump[:, None]
        end, value, _ = hmc.random_walk(start, value, log_density, jump, torch.special.ndtr(test))
        state.params[NOISE] = end[:, 0]
        state.memory["log_likelihood"] = value - log_prior(end[:, 0])
        return 0.5 * v.square().sum(1) - value

    @torch.no_grad()
    def predict(self, state: State, x: Tensor, key: Key) -> Predictive:
        """Equal mixture over the kept states, each with a draw of its own of F1* at every row of x `[1, T, D]`."""
        kept, buffers = state.kept(), state.buffers
        bottom = project(buffers, 1, buffers["chol"], buffers["x"], x)
        sd = marginal_variance(buffers, 1, bottom).sqrt()
        noise = streams.normal(key, "eval", 0, (len(kept), 1, x.shape[1]), like=x)
        moments = []
        for s, sample in enumerate(kept):
            hidden, known = product(bottom, sample["v"]) + sd * noise[s], buffers | sample
            whitened, top = top_layer(sample["v"], hidden, known)
            moments.append((product(top, whitened), marginal_variance(buffers, 2, top), known[NOISE].exp()))
        mean, variance, noise_variance = (torch.cat(part) for part in zip(*moments, strict=True))  # [S, T], [S, T], [S]
        return likelihoods.Gaussian().predictive(mean[..., None], variance[..., None], noise_variance[:, None, None])

    @torch.no_grad()
    def functions(self, state: State, x: Tensor, key: Key) -> list[Tensor]:
        """Posterior functions `[S, 1, T, 1]` of both layers, drawn jointly at x `[1, T, D]`, one a kept state.

        The second layer is F2 at the first one's values: y without its noise. Jitter is added to both covariances."""
        kept, buffers = state.kept(), state.buffers
        bottom = project(buffers, 1, buffers["chol"], buffers["x"], x)
        chol = self._factor_given(buffers, 1, bottom, x)
        noise = streams.normal(key, "eval", 0, (2, len(kept), 1, x.shape[1]), like=x)
        functions = []
        for s, sample in enumerate(kept):
            hidden = product(bottom, sample["v"]) + product(chol.mT, noise[0, s])
            whitened, top = top_layer(sample["v"], hidden, buffers | sample)
            top_chol = self._factor_given(buffers, 2, top, hidden[..., None])
            functions.append((hidden, product(top, whitened) + product(top_chol.mT, noise[1, s])))
        return [torch.stack(layer)[..., None] for layer in zip(*functions, strict=True)]

    def _factor_given(self, buffers: dict[str, Tensor], layer: int, projected: Tensor, x: Tensor) -> Tensor:
        """Factor `[R, T, T]` of the covariance of a layer at x, given its values (or y) at the training inputs."""
        jitter = self.hyper.jitter * buffers[f"layer{layer}.log_outputscale"].exp()
        return linalg.cholesky(kernel(buffers, layer, x, x) - projected.mT @ projected, f"layer{layer}", jitter)


def log_likelihood(v: Tensor, buffers: dict[str, Tensor]) -> Tensor:
    """log N(y; 0, C), C = K2 + noise_variance I at F1 = L v, in nats `[R]`; v `[R, n]`, zero in padding rows."""
    chol, whitened = top_posterior(v, buffers)
    log_det = chol.diagonal(dim1=-2, dim2=-1).log().sum(1)
    return -0.5 * (whitened.square().sum(1) + math.log(2 * math.pi) * buffers["mask"].sum(1)) - log_det


def log_prior(log_noise: Tensor) -> Tensor:
    """log p(log noise_variance) `[R]`: that of Gamma(1, 1) with the Jacobian."""
    return log_noise - log_noise.exp()


def top_posterior(v: Tensor, buffers: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    """Factor of C = K2 + noise_variance I `[R, n, n]` at F1 = L v, and y whitened by it `[R, n]`."""
    chol = factor(buffers, 2, hidden_values(v, buffers), buffers[NOISE].exp())
    return chol, torch.linalg.solve_triangular(chol, buffers["y"][..., None], upper=False)[..., 0]


def top_layer(v: Tensor, hidden: Tensor, buffers: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    """What F2 at the hidden values F1* `[R, T]` needs: y whitened `[R, n]` and the projection `[R, n, T]`."""
    chol, whitened = top_posterior(v, buffers)
    return whitened, project(buffers, 2, chol, hidden_values(v, buffers), hidden[..., None])


def hidden_values(v: Tensor, buffers: dict[str, Tensor]) -> Tensor:
    """F1 = L v as inputs of the next layer `[R, n, 1]`."""
    return buffers["chol"] @ v[..., None]


def kernel(buffers: dict[str, Tensor], layer: int, x1: Tensor, x2: Tensor) -> Tensor:
    lengthscale, outputscale = (buffers[f"layer{layer}.log_{scale}"].exp() for scale in ("lengthscale", "outputscale"))
    return kernels.rbf(x1, x2, lengthscale, outputscale)


def factor(buffers: dict[str, Tensor], layer: int, x: Tensor, nugget: Tensor) -> Tensor:
    """Factor of K + nugget I at the training rows `[R, n, n]`; padding rows are rows of the identity."""
    mask = buffers["mask"]
    covariance = kernel(buffers, layer, x, x) * mask[:, :, None] * mask[:, None, :]
    return linalg.cholesky(covariance + torch.where(mask > 0, nugget[:, None], 1.0).diag_embed(), f"layer{layer}")


def project(buffers: dict[str, Tensor], layer: int, chol: Tensor, train: Tensor, x: Tensor) -> Tensor:
    """A = L^-1 k(train, x) `[R, n, T]`: given L w at the training rows, x has mean A^T w and covariance K - A^T A."""
    cross = kernel(buffers, layer, train, x) * buffers["mask"][..., None]
    return torch.linalg.solve_triangular(chol, cross, upper=False)


def marginal_variance(buffers: dict[str, Tensor], layer: int, projected: Tensor) -> Tensor:
    """diag(K - A^T A) `[R, T]`."""
    outputscale = buffers[f"layer{layer}.log_outputscale"].exp()
    return (outputscale[:, None] - projected.square().sum(1)).clamp_min(0.0)


def product(matrix: Tensor, vector: Tensor) -> Tensor:
    """A^T w `[R, T]` of A `[R, n, T]` and w `[R, n]`."""
    return (matrix.mT @ vector[..., None])[..., 0]


def variational_fit(hyper: Hyperparameters, data: TrainingSet, keys: list[Key]) -> tuple[dict[str, Tensor], Tensor]:
    """Parameters (`COVARIANCE` among them) and mean hidden function `[R, n]` of `dgp_rff` at the training inputs."""
    settings = dgp_rff.Hyperparameters(
        hidden_width=1, num_features=hyper.num_features, frequencies="prior_fixed", learning_rate=hyper.learning_rate
    )
    state = warm_start.maximise(dgp_rff.Method(settings, "regression"), data, keys, hyper.iterations)
    params = state.params
    frequencies = state.buffers["layer1.frequency_noise"] / params["layer1.log_lengthscale"].exp()[..., None]
    phi = features.fourier(data.full().x, frequencies, params["layer1.log_outputscale"].exp())
    return params, (phi @ params["layer1.weight_mean"])[..., 0]
