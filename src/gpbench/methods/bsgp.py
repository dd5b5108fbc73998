"""BSGP: a fully Bayesian sparse (deep) GP, sampled by SGHMC (rossi2021).

Model      f^0 = x;  f^l = m^l(f^{l-1}) + g^l(f^{l-1}),  g^l ~ GP(0, k^l), k^l RBF-ARD;  y_n ~ p(y | f^L_n): Gaussian,
           probit or robust-max. Linear mean functions m^l in the hidden layers as in `dsvi`, none in the last.
Sampled    Psi = {v, Z, log lengthscale, log outputscale} of every layer, u = L v with L L^T = K_ZZ. Priors:
           v ~ N(0, I), Z ~ N(0, I), log lengthscale ~ N(0, 1), log outputscale ~ N(log 0.05, 1).
Objective  log p(y, Psi) = sum_n log E_{N(f; mean_n, variance_n)} p(y_n | f) + log p(Psi), the FITC form;
           mean_n = a_n^T v, variance_n = k_nn - ||a_n||^2, a_n = L^-1 k(Z, f^{L-1}_n), and f^{L-1}_n is one
           reparametrised sample through the hidden layers.

One step is one SGHMC transition on a mini-batch. During burn-in it adapts the preconditioner and is followed by one
Adam step on the log noise variance at a random one of the last `window` states (Monte Carlo EM); afterwards both
stay, and `num_samples` states are kept evenly. (The published program makes 21 transitions for each Adam step and
10,000 of these; here a step is one of each, so give it several thousand.)
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from gpbench import streams
from gpbench.evaluation.predictive import Predictive
from gpbench.gp import kernels, likelihoods, linalg, quadrature, sparse
from gpbench.gp.sparse import Layer
from gpbench.hyper import Annotated, Fraction, Gt, Lt, PositiveFloat, PositiveInt, dataclass
from gpbench.methods.base import Batch, SamplerMethod, State, TrainingSet
from gpbench.methods.dsvi import mean_map
from gpbench.methods.layers import start_inducing
from gpbench.sampling import sghmc
from gpbench.streams import Key

PRIOR_LOG_OUTPUTSCALE = math.log(0.05)
ADAM_DECAY = (0.9, 0.999)
ADAM_EPSILON = 1e-8


@dataclass(frozen=True)
class Hyperparameters:
    """Settings of rossi2021 where given (num_samples there: 256), else of its program, but for the step size.

    The program's 0.01 is meant for its 210,000 transitions; 0.03 covers nine times the ground in a few thousand and had
    the better held-out density on training rows of boston after 1,000 and 3,000. Hidden layers have
    min(hidden_width, D) outputs; burn_in: fraction of the updates; noise_variance: the initial one, Var(y) = 1.
    """

    layers: PositiveInt = 1
    hidden_width: PositiveInt = 30
    num_inducing: PositiveInt = 100
    lengthscale: PositiveFloat | None = None
    outputscale: PositiveFloat = 0.1
    noise_variance: PositiveFloat = 1.0
    jitter: PositiveFloat = 1e-6
    step_size: PositiveFloat = 0.03
    friction: Annotated[float, Gt(0), Lt(2)] = 0.05
    burn_in: Fraction = 0.5
    num_samples: PositiveInt = 64
    window: PositiveInt = 64
    learning_rate: PositiveFloat = 0.01
    batch_size: PositiveInt = 1000


class Method(SamplerMethod):
    def __init__(self, hyper: Hyperparameters, task: str, num_classes: int = 0, num_targets: int = 1) -> None:
        super().__init__(hyper, task, num_classes, num_targets)
        self.likelihood = likelihoods.for_task(task, num_classes, num_targets)
        self.names = [f"layer{number}" for number in range(1, hyper.layers + 1)]

    def init(self, data: TrainingSet, keys: list[Key]) -> State:
        """v = 0, Z by k-means, pushed through the mean functions for the deeper layers."""
        train = data.full()
        rngs = [streams.rng(key, "init") for key in keys]
        x, z = train.x, start_inducing(train.x, data.count, self.hyper.num_inducing, rngs)
        width = min(self.hyper.hidden_width, x.shape[-1])
        state = State({})
        for name in self.names:
            hidden = name != self.names[-1]
            num_outputs = width if hidden else self.likelihood.num_outputs
            state.params |= self._first_layer(name, x, z, train.weight, num_outputs)
            if hidden:
                mapped = state.buffers[f"{name}.mean_map"] = mean_map(x, width)
                x, z = x @ mapped, z @ mapped
        state.memory = sghmc.init(state.params)
        self.num_coordinates = state.memory["momentum"].shape[1]
        if self.task == "regression":
            state.params["log_noise_variance"] = z.new_full((len(z),), self.hyper.noise_variance).log()
            window = state.memory["momentum"].new_zeros(len(z), self.hyper.window, self.num_coordinates)
            state.memory |= {"window": window, "adam_mean": z.new_zeros(len(z)), "adam_square": z.new_zeros(len(z))}
        return state

    def noise_size(self, batch_size: int, step: int = 0, steps: int = 1) -> int:
        """One normal for the window, one a coordinate (so `init` must have run), two a row and hidden unit."""
        return 1 + self.num_coordinates + 2 * batch_size * self.hyper.hidden_width * (self.hyper.layers - 1)

    def step(self, state: State, batch: Batch, noise: Tensor, step: int, steps: int) -> Tensor:
        """One transition, `step` from 0; the loss `[R]` is that of the state left, NaN where the chain diverged."""
        adapt = step < self.burn_in(steps)
        choice, kick, hidden = self._split_noise(noise, batch)
        leaves = {name: value.detach().requires_grad_() for name, value in sampled(state.params).items()}
        potential = -self.log_joint(leaves, state, batch, hidden[0])
        gradient = torch.autograd.grad(potential.sum(), list(leaves.values()))
        moved, chain = sghmc.step(
            sampled(state.params),
            dict(zip(leaves, gradient, strict=True)),
            state.memory,
            kick,
            batch.weight.sum(1),
            step_size=self.hyper.step_size,
            friction=self.hyper.friction,
            adapt=adapt,
        )
        state.params |= moved
        state.memory |= chain
        if adapt and self.task == "regression":
            self._step_noise_variance(state, batch, choice, hidden[1], step)
        diverged = ~sghmc.flatten(state.params).isfinite().all(1)
        return potential.detach().masked_fill(diverged, torch.nan)

    @torch.no_grad()
    def predict(self, state: State, x: Tensor, keys: list[Key]) -> list[Predictive]:
        """Equal mixture over the kept states, each with its own noise in the hidden layers; x `[R, T, D]`."""
        kept = state.samples if any(state.samples.values()) else {name: [value] for name, value in state.params.items()}
        return [
            self._predict_replica(
                {name: torch.stack([value[r] for value in values]) for name, values in kept.items()},
                {name: value[r] for name, value in state.buffers.items()},
                x[r],
                streams.generator(key, "eval", device=x.device),
            )
            for r, key in enumerate(keys)
        ]

    def log_joint(self, params: dict[str, Tensor], state: State, batch: Batch, hidden_noise: Tensor) -> Tensor:
        """Estimate of log p(y, Psi) `[R]` in nats without the priors' constants; noise `[L - 1, R, B, width]`."""
        mean, variance = self.propagate(self.layers(params), state.buffers, batch.x, hidden_noise)
        log_prob = self.likelihood.log_expected_prob(batch.y, mean[None], variance[None], noise_variance(state.params))
        return (batch.weight * log_prob[0]).sum(-1) + self.log_prior(params)

    def log_prior(self, params: dict[str, Tensor]) -> Tensor:
        """log p(Psi) `[R]` without constants: standard normals around 0, around log 0.05 for log outputscale."""
        centred = {
            name: value - PRIOR_LOG_OUTPUTSCALE if name.endswith("log_outputscale") else value
            for name, value in params.items()
        }
        return -0.5 * sghmc.flatten(centred).square().sum(1)

    def layers(self, params: dict[str, Tensor]) -> list[Layer]:
        """Layers in the order in which they are applied, with their factors of K_ZZ + jitter * outputscale * I."""
        return [self._layer(params, name) for name in self.names]

    def propagate(
        self, layers: list[Layer], buffers: dict[str, Tensor], x: Tensor, noise: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Moments of f^L `[R, B, Q]` given one sample through the hidden layers; noise `[L - 1, R, B, >= width]`."""
        f = x
        for name, layer, eps in zip(self.names, layers, noise, strict=False):
            mean, variance = sparse.conditional(f, *layer)
            # a variance of exactly 0 (x on an inducing input) would give its root an infinite gradient
            sd = quadrature.std(variance)
            f = f @ buffers[f"{name}.mean_map"] + mean + sd * eps[..., : mean.shape[-1]]
        return sparse.conditional(f, *layers[-1])

    def _layer(self, params: dict[str, Tensor], name: str) -> Layer:
        z, v = params[f"{name}.inducing_inputs"], params[f"{name}.whitened_values"]
        lengthscale, outputscale = params[f"{name}.log_lengthscale"].exp(), params[f"{name}.log_outputscale"].exp()
        kzz = kernels.rbf(z, z, lengthscale, outputscale)
        return Layer(z, linalg.cholesky(kzz, name, self.hyper.jitter * outputscale), v, None, lengthscale, outputscale)

    def _predict_replica(
        self, samples: dict[str, Tensor], buffers: dict[str, Tensor], x: Tensor, generator: torch.Generator
    ) -> Predictive:
        """Predictive at x `[T, D]`: the S kept states `[S, ...]` take the place of replicas."""
        layers, size = self.layers(samples), len(samples["layer1.inducing_inputs"])
        shape = (self.hyper.layers - 1, size, -1, self.hyper.hidden_width)
        chunks = []
        for rows in x.split(max(1, sparse.CHUNK_ELEMENTS // (size * self.hyper.num_inducing))):
            count = len(rows) * size * (self.hyper.layers - 1) * self.hyper.hidden_width
            noise = torch.randn(count, generator=generator, dtype=x.dtype, device=x.device)
            noise = noise.view(shape if count else (0, size, len(rows), 0))
            chunks.append(self.propagate(layers, buffers, rows.expand(size, -1, -1), noise))
        mean, variance = (torch.cat(parts, 1) for parts in zip(*chunks, strict=True))
        noises = noise_variance(samples)
        return self.likelihood.predictive(mean, variance, None if noises is None else noises[:, None, None])

    def _step_noise_variance(self, state: State, batch: Batch, choice: Tensor, hidden_noise: Tensor, step: int) -> None:
        """One Adam step on log noise_variance at a random member of the window of the last states."""
        memory, window = state.memory, state.memory["window"]
        window[:, step % window.shape[1]] = sghmc.flatten(sampled(state.params))
        filled = min(step + 1, window.shape[1])
        member = (torch.special.ndtr(choice[:, 0]) * filled).long().clamp_max(filled - 1)
        chosen = sghmc.unflatten(window[torch.arange(len(window), device=window.device), member], sampled(state.params))
        with torch.no_grad():
            mean, variance = self.propagate(self.layers(chosen), state.buffers, batch.x, hidden_noise)
        log_noise = state.params["log_noise_variance"].detach().requires_grad_()
        log_prob = self.likelihood.log_expected_prob(batch.y, mean[None], variance[None], log_noise.exp())
        loss = -(batch.weight * log_prob[0]).sum(-1) / batch.weight.sum(1)
        (gradient,) = torch.autograd.grad(loss.sum(), log_noise)
        first, second = ADAM_DECAY
        memory["adam_mean"] = torch.lerp(gradient, memory["adam_mean"], first)
        memory["adam_square"] = torch.lerp(gradient.square(), memory["adam_square"], second)
        direction = memory["adam_mean"] / (1 - first ** (step + 1))
        scale = (memory["adam_square"] / (1 - second ** (step + 1))).sqrt() + ADAM_EPSILON
        state.params["log_noise_variance"] = log_noise.detach() - self.hyper.learning_rate * direction / scale

    def _split_noise(self, noise: Tensor, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
        """Normals for the window `[R, 1]`, the chain `[R, K]` and the hidden layers `[2, L - 1, R, B, width]`."""
        # rows come last, and first among the axes of their part, so padding rows take nothing from the others
        shape = (*batch.x.shape[:2], 2, self.hyper.layers - 1, self.hyper.hidden_width)
        coordinates = noise.shape[1] - 1 - math.prod(shape[1:])
        choice, kick, hidden = noise.split([1, coordinates, math.prod(shape[1:])], 1)
        return choice, kick, hidden.view(shape).permute(2, 3, 0, 1, 4)

    def _first_layer(self, name: str, x: Tensor, z: Tensor, mask: Tensor, num_outputs: int) -> dict[str, Tensor]:
        lengthscale = kernels.start_lengthscale(x, mask, self.hyper.lengthscale)
        return {
            f"{name}.inducing_inputs": z,
            f"{name}.whitened_values": z.new_zeros(*z.shape[:2], num_outputs),
            f"{name}.log_lengthscale": lengthscale.log()[:, None].repeat(1, z.shape[-1]),
            f"{name}.log_outputscale": torch.full_like(lengthscale, self.hyper.outputscale).log(),
        }


def sampled(params: dict[str, Tensor]) -> dict[str, Tensor]:
    """The part of params that the chain moves: all but the noise variance."""
    return {name: value for name, value in params.items() if name != "log_noise_variance"}


def noise_variance(params: dict[str, Tensor]) -> Tensor | None:
    """Variance of the Gaussian likelihood `[R]`, scaled units; None in classification."""
    return params["log_noise_variance"].exp() if "log_noise_variance" in params else None
