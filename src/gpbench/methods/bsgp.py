"""BSGP: a fully Bayesian sparse (deep) GP, sampled by SGHMC (rossi2021).

Model      f^0 = x;  f^l = m^l(f^{l-1}) + g^l(f^{l-1}),  g^l ~ GP(0, k^l), k^l ARD;  y_n ~ p(y | f^L_n): Gaussian,
           probit or robust-max. Linear mean functions m^l in the hidden layers as in `dsvi`, none in the last.
Unknown    of every layer v (u = L v with L L^T = K_ZZ), theta = (log lengthscale, log outputscale) and Z. Priors:
           v ~ N(0, I), log lengthscale (and period) ~ N(0, 1), log outputscale ~ N(log 0.05, 1), Z ~ `prior`
           (`gp.inducing_priors`; under `strauss` the chain is that under `uniform`, for its gradient is zero).
Objective  log p(y, Psi) = sum_n ell_n + log p(Psi), with q_n = N(mean_n, variance_n), mean_n = a_n^T v,
           variance_n = k_nn - ||a_n||^2, a_n = L^-1 k(Z, f^{L-1}_n), f^{L-1}_n one reparametrised sample:
           `fitc`  ell_n = log E_{q_n} p(y_n | f),      `vfe`  ell_n = E_{q_n} log p(y_n | f)  <=  that of fitc.

Psi, the variables that are `sampled` (u; u_theta; u_theta_z), moves by one SGHMC transition on a mini-batch a step. The
others and the noise variance, which has no prior, are optimised (moving-window Monte Carlo EM, havasi2018): every
`optimise_every` transitions of burn-in one Adam step on -1/N sum_n ell_n at a random one of the last `window` states
that were put aside. With only u sampled this is SGHMC-DGP. After burn-in the preconditioner and all that is optimised
stay, and `num_samples` states are kept evenly.

The published program makes 10,000 times 21 transitions and one Adam step (`optimise_every` 21), in ten of the 21
without adapting the preconditioner, then keeps 256 states 32 transitions apart.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor

from gpbench import streams
from gpbench.gp import inducing_priors, kernels, likelihoods, quadrature, sparse
from gpbench.gp.layers import init_kernel, kernel, mean_map, start_inducing
from gpbench.gp.sparse import Layer
from gpbench.hyper import Formula, Fraction, Friction, NonNegativeInt, PositiveFloat, PositiveInt, Settings, dataclass
from gpbench.methods import warm_layer
from gpbench.methods.base import Noise, SamplerMethod, Shapes, State, noise_variance
from gpbench.methods.training_rows import Batch
from gpbench.predictive.distributions import Predictive
from gpbench.sampling import moving_window, sghmc
from gpbench.streams import Key

PRIOR_LOG_OUTPUTSCALE = math.log(0.05)
PREDICT_ROWS, PREDICT_ELEMENTS = 250, 2**18
"""Rows predicted at once, and numbers in a temporary (2 MB in float64, for a processor's cache): so many states."""
SAMPLED = {
    "u": ("whitened_values",),
    "u_theta": ("whitened_values", "log_lengthscale", "log_outputscale", "log_period"),
    "u_theta_z": ("whitened_values", "log_lengthscale", "log_outputscale", "log_period", "inducing_inputs"),
}
"""What the chain moves of every layer; the others are optimised."""


@dataclass(frozen=True)
class Hyperparameters(Settings):
    """Settings of rossi2021 where given (num_samples there: 256), else of its program, but step_size, optimise_every.

    The program's 0.01 is meant for its 210,000 transitions; 0.03 covers nine times the ground in a few thousand and had
    the better held-out density on training rows of boston after 1,000 and 3,000. Hidden layers have min(hidden_width,
    D) outputs; kernel, ard: as in `svgp`; burn_in: fraction of the updates; noise_variance: at the start, Var(y) = 1;
    optimise_every: transitions for each Adam step (21 there), whose rate is learning_rate; window: states it chooses
    from. start_rows, start_iterations: as in `dsvi`, of the last layer (0: v = 0); a chain with such a start has
    smaller steps, which fall by the factor step_decay in burn-in, and hidden layers where there is little noise."""

    layers: PositiveInt = 1
    hidden_width: PositiveInt = 30
    num_inducing: PositiveInt = 100
    kernel: Formula = "rbf"
    ard: bool = True
    prior: Literal["normal", "uniform", "dpp", "strauss"] = "normal"
    objective: Literal["fitc", "vfe"] = "fitc"
    sampled: Literal["u", "u_theta", "u_theta_z"] = "u_theta_z"
    lengthscale: PositiveFloat | None = None
    outputscale: PositiveFloat = 0.1
    noise_variance: PositiveFloat = 1.0
    jitter: PositiveFloat = 1e-6
    step_size: PositiveFloat = 0.03
    step_decay: Fraction = 0.5
    friction: Friction = 0.05
    burn_in: Fraction = 0.5
    num_samples: PositiveInt = 64
    window: PositiveInt = 64
    optimise_every: PositiveInt = 1
    learning_rate: PositiveFloat = 0.01
    batch_size: PositiveInt = 1000
    start_rows: NonNegativeInt = 0
    start_iterations: PositiveInt = 500

    def impossible(self, task: str) -> str:
        if self.prior != "normal" and self.sampled != "u_theta_z":
            return f"prior {self.prior} needs inducing inputs that are sampled: u_theta_z, not {self.sampled}"
        return ""


class Method(SamplerMethod):
    def __init__(self, hyper: Hyperparameters, task: str, num_classes: int = 0, num_targets: int = 1) -> None:
        super().__init__(hyper, task, num_classes, num_targets)
        self.likelihood = likelihoods.for_task(task, num_classes, num_targets)
        self.names = [f"layer{number}" for number in range(1, hyper.layers + 1)]

    def init(self, train: Batch, key: Key) -> State:
        """v = 0, Z by k-means, pushed through the mean functions for the deeper layers."""
        x, z = train.x, start_inducing(train.x, self.hyper.num_inducing, streams.rng(key, "init"))
        width = min(self.hyper.hidden_width, x.shape[-1])
        state = State({})
        for name in self.names:
            hidden = name != self.names[-1]
            state.params |= self._first_layer(name, x, z, width if hidden else self.likelihood.num_outputs)
            if hidden:
                mapped = state.buffers[f"{name}.mean_map"] = mean_map(x, width)
                x, z = x @ mapped, z @ mapped
        if self.task == "regression":
            state.params["log_noise_variance"] = z.new_full((len(z),), self.hyper.noise_variance).log()
            if self.hyper.start_rows:
                warm_layer.start(state, self.names, self.hyper, Batch(x, train.y, train.weight), key)
        state.memory = sghmc.init(self.sampled(state.params))
        if optimised := self.optimised(state.params):
            state.memory |= moving_window.init(self.sampled(state.params), optimised, self.hyper.window)
        return state

    def step_size(self, state: State, step: int, steps: int) -> Tensor | float:
        """That of a transition, `[R, 1]` or one number: of chains that start warm it falls log-linearly in burn-in."""
        decay = self.hyper.step_decay ** min(step / max(self.burn_in(steps), 1), 1.0)
        return self.hyper.step_size * (decay * state.buffers["pace"] if "pace" in state.buffers else 1.0)

    def noise_shapes(self, state: State, rows: int, step: int, steps: int) -> Shapes:
        """One normal for the window and one a coordinate; two a row and hidden unit."""
        coordinates = state.memory["momentum"].shape[1]
        return Shapes((1 + coordinates,), (2, self.hyper.layers - 1, self.hyper.hidden_width))

    def step(self, state: State, batch: Batch, noise: Noise, step: int, steps: int) -> Tensor:
        """One transition, `step` from 0; the loss `[R]` is of the state before it, NaN where the chain diverged."""
        adapt = step < self.burn_in(steps)
        choice, kick = noise.fixed.tensor_split([1], 1)
        hidden = noise.per_row.permute(2, 3, 0, 1, 4)  # [2, L - 1, R, B, width]
        chain = self.sampled(state.params)
        leaves = {name: value.detach().requires_grad_() for name, value in chain.items()}
        potential = -self.log_joint(state.params | leaves, state.buffers, batch, hidden[0])
        gradient = torch.autograd.grad(potential.sum(), list(leaves.values()))
        slopes, rows = dict(zip(leaves, gradient, strict=True)), batch.weight.sum(1)
        size = self.step_size(state, step, steps)
        moved, memory = sghmc.step(
            chain, slopes, state.memory, kick, rows, step_size=size, friction=self.hyper.friction, adapt=adapt
        )
        state.params |= moved
        state.memory |= memory
        if adapt and "window" in state.memory and step % self.hyper.optimise_every == 0:
            self._optimise(state, batch, choice, hidden[1], step // self.hyper.optimise_every)
        return potential.detach().masked_fill(~sghmc.flatten(state.params).isfinite().all(1), torch.nan)

    @torch.no_grad()
    def predict(self, state: State, x: Tensor, key: Key) -> Predictive:
        """Equal mixture over the S kept states, each with its own noise in the hidden layers; x `[1, T, D]`."""
        kept, normal = state.kept(), streams.source(key, "eval", 0, x)
        # blocks of states take the place of replicas
        samples = {name: torch.cat([params[name] for params in kept]) for name in kept[0]}
        size, elements = len(kept), PREDICT_ELEMENTS // self.hyper.num_inducing
        states = max(1, elements // PREDICT_ROWS)
        rows = max(1, elements // states)
        # filled in place: results kept one by one between large temporaries would scatter the heap over gigabytes
        mean, variance = x.new_empty(2, size, x.shape[1], self.likelihood.num_outputs)
        for some in (slice(first, first + states) for first in range(0, size, states)):
            layers = self.layers({name: value[some] for name, value in samples.items()})
            for part in (slice(first, first + rows) for first in range(0, x.shape[1], rows)):
                inputs = x[:, part].expand(len(layers[0].inducing_inputs), -1, -1)
                noise = normal(self.hyper.layers - 1, *inputs.shape[:2], self.hyper.hidden_width)
                mean[some, part], variance[some, part] = self.propagate(layers, state.buffers, inputs, noise)
        noises = noise_variance(samples)
        return self.likelihood.predictive(mean, variance, None if noises is None else noises[:, None, None])

    def log_joint(
        self, params: dict[str, Tensor], buffers: dict[str, Tensor], batch: Batch, hidden_noise: Tensor
    ) -> Tensor:
        """Estimate of log p(y, Psi) `[R]` in nats without the priors' constants; noise `[L - 1, R, B, width]`."""
        layers = self.layers(params)
        log_likelihood = self.log_likelihood(layers, params, buffers, batch, hidden_noise)
        return log_likelihood + self.log_prior(layers, params)

    def log_likelihood(
        self,
        layers: list[Layer],
        params: dict[str, Tensor],
        buffers: dict[str, Tensor],
        batch: Batch,
        hidden_noise: Tensor,
    ) -> Tensor:
        """sum_n ell_n `[R]`, estimated from the batch."""
        mean, variance = self.propagate(layers, buffers, batch.x, hidden_noise)
        form = {"fitc": self.likelihood.log_expected_prob, "vfe": self.likelihood.expected_log_prob}
        ell = form[self.hyper.objective](batch.y, mean[None], variance[None], noise_variance(params))
        return (batch.weight * ell[0]).sum(-1)

    def log_prior(self, layers: list[Layer], params: dict[str, Tensor]) -> Tensor:
        """log p(Psi) `[R]`: -1/2 (|v|^2 + |log lengthscale|^2 + |log(outputscale / .05)|^2) + log p(Z) if sampled."""
        centred = {
            name: value - PRIOR_LOG_OUTPUTSCALE if name.endswith("log_outputscale") else value
            for name, value in self.sampled(params).items()
            if not name.endswith("inducing_inputs")
        }
        total = -0.5 * sghmc.flatten(centred).square().sum(1)
        if self.hyper.sampled == "u_theta_z":
            for layer in layers:
                total = total + inducing_priors.log_prior(self.hyper.prior, layer.inducing_inputs, layer.chol_kzz)
        return total

    def sampled(self, params: dict[str, Tensor]) -> dict[str, Tensor]:
        """The part of params that the chain moves."""
        return {name: value for name, value in params.items() if name.endswith(SAMPLED[self.hyper.sampled])}

    def optimised(self, params: dict[str, Tensor]) -> dict[str, Tensor]:
        """The part of params that Adam moves."""
        return {name: value for name, value in params.items() if not name.endswith(SAMPLED[self.hyper.sampled])}

    def layers(self, params: dict[str, Tensor]) -> list[Layer]:
        """Layers in the order in which they are applied, with their factors of K_ZZ + jitter * outputscale * I."""
        parts = {name: kernel(params, name, self.hyper.jitter, self.hyper.kernel) for name in self.names}
        return [Layer(z, chol, params[f"{name}.whitened_values"], None, k) for name, (z, chol, k) in parts.items()]

    def propagate(
        self, layers: list[Layer], buffers: dict[str, Tensor], x: Tensor, noise: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Moments of f^L `[R, B, Q]` given one sample through the hidden layers; noise `[L - 1, R, B, >= width]`."""
        f = x
        for name, layer, eps in zip(self.names, layers, noise, strict=False):
            mean, variance = sparse.conditional(f, layer)
            # a variance of exactly 0 (x on an inducing input) would give its root an infinite gradient
            sd = quadrature.std(variance)
            f = f @ buffers[f"{name}.mean_map"] + mean + sd * eps[..., : mean.shape[-1]]
        return sparse.conditional(f, layers[-1])

    def _optimise(self, state: State, batch: Batch, choice: Tensor, hidden_noise: Tensor, count: int) -> None:
        """Adam step number `count` (from 0), at a random member of the window of states put aside."""

        def loss(params: dict[str, Tensor]) -> Tensor:  # -1/N sum_n ell_n
            value = -self.log_likelihood(self.layers(params), params, state.buffers, batch, hidden_noise)
            return value / batch.weight.sum(1)

        chain, others = self.sampled(state.params), self.optimised(state.params)
        rate = self.hyper.learning_rate * state.buffers.get("pace", 1.0)
        moved, memory = moving_window.step(
            chain, others, state.memory, choice[:, 0], loss, count=count, learning_rate=rate
        )
        state.params |= moved
        state.memory |= memory

    def _first_layer(self, name: str, x: Tensor, z: Tensor, num_outputs: int) -> dict[str, Tensor]:
        lengthscale = kernels.start_lengthscale(x, self.hyper.lengthscale)
        # the order in which the chain takes its coordinates, hence its noise
        values = {f"{name}.inducing_inputs": z, f"{name}.whitened_values": z.new_zeros(*z.shape[:2], num_outputs)}
        form = self.hyper.ard, self.hyper.kernel
        return values | init_kernel(name, z, lengthscale, self.hyper.outputscale, *form)
