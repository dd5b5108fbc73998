"""MCMC-SVGP: a sparse GP whose posterior over inducing values and covariance parameters is free (hensman2015mcmc).

Model      f ~ GP(0, k); y_n ~ p(y | f(x_n)): Gaussian, probit, robust-max, Poisson; u = f(Z) = L v with
           L L^T = K_ZZ, v ~ N(0, I); theta = lengthscales, outputscale, noise variance, each Gamma a priori.
Posterior  q(f, v, theta) = p(f | v, theta) q(v, theta), and of all q(v, theta) the best one is
           log q(v, theta) = sum_n E_{N(mean_n, variance_n)} log p(y_n | f_n) - |v|^2/2 + log p(theta) + constant,
           mean_n = a_n^T v, variance_n = k_nn - |a_n|^2, a_n = L^-1 k(Z, x_n).
           It is sampled by HMC on (v, log theta) jointly. With `sampler: gibbs` HMC moves v given theta, for which the
           a_n are found but once, and a random walk moves log theta given v.
Start      The best q(Z) is a point, so Z is optimised: Adam on the bound of `svgp` + log p(theta). Then Z stays, theta
           starts where it came to, and v is drawn from its q(v). With as many inducing inputs as rows, Z = X.

One step is one transition on all rows. During burn-in a chain learns its step size for an acceptance of 0.8, or
(`tuning: esjd`) step size and number of steps for long jumps; afterwards they stay.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import Literal

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from gpbench import streams
from gpbench.gp import likelihoods, sparse
from gpbench.gp.layers import kernel
from gpbench.gp.sparse import Layer
from gpbench.hyper import Formula, Fraction, PositiveFloat, PositiveInt, Settings, dataclass
from gpbench.methods import svgp, warm_start
from gpbench.methods.base import Noise, SamplerMethod, Shapes, State
from gpbench.methods.training_rows import Batch, TrainingSet
from gpbench.predictive.distributions import Predictive
from gpbench.sampling import hmc, tuning
from gpbench.sampling.sghmc import flatten, unflatten
from gpbench.streams import Key

Z, V, NOISE = "layer1.inducing_inputs", "layer1.whitened_values", "log_noise_variance"
Params = dict[str, Tensor]
LogDensity = Callable[[Params], Tensor]
Projection = Callable[[slice], tuple[Tensor, Tensor]]
"""Rows -> a `[R, M, B]` and variance `[R, B]` of their f given v."""

ACCEPTANCE, WALK_ACCEPTANCE = 0.8, 0.3
FIXED = 300  # updates of the start before Z moves too
CHUNK_ELEMENTS = 2**22  # of a: the gradient of more rows is taken part by part


@dataclass(frozen=True)
class Hyperparameters(Settings):
    """Settings of hensman2015mcmc where it gives them; rossi2021 gives none but num_samples.

    leapfrogs: most steps of a trajectory, which has 1 to so many at random; step_size: the first one; burn_in: fraction
    of the transitions; iterations, learning_rate: of Adam before them. Priors are Gamma(1, 1) in scaled units, of
    lengthscales Gamma(lengthscale_shape, lengthscale_rate). The others are those of `svgp`."""

    num_inducing: PositiveInt = 100
    kernel: Formula = "rbf"
    sampler: Literal["joint", "gibbs"] = "joint"
    tuning: Literal["acceptance", "esjd"] = "acceptance"
    leapfrogs: PositiveInt = 20
    step_size: PositiveFloat = 0.05
    burn_in: Fraction = 0.3
    num_samples: PositiveInt = 256
    iterations: PositiveInt = 2000
    learning_rate: PositiveFloat = 0.03
    lengthscale_shape: PositiveFloat = 1.0
    lengthscale_rate: PositiveFloat = 1.0
    lengthscale: PositiveFloat | None = None
    outputscale: PositiveFloat = 1.0
    noise_variance: PositiveFloat = 0.05
    ard: bool = True
    exposure: PositiveFloat = 1.0
    jitter: PositiveFloat = 1e-6

    def impossible(self, task: str) -> str:
        return f"exposure is for counts, not {task}" if self.exposure != 1 and task != "counts" else ""


class Method(SamplerMethod):
    def __init__(self, hyper: Hyperparameters, task: str, num_classes: int = 0, num_targets: int = 1) -> None:
        super().__init__(hyper, task, num_classes, num_targets)
        self.likelihood = likelihoods.for_task(task, num_classes, num_targets, exposure=hyper.exposure)
        self.transition = self.step_gibbs if (gibbs := hyper.sampler == "gibbs") else self.step_joint
        self.tuner: tuning.Tuner = tuning.DualAveraging("hmc", ACCEPTANCE, hyper.step_size, hyper.leapfrogs)
        self.walk_tuner: tuning.Tuner = tuning.DualAveraging("walk", WALK_ACCEPTANCE, hyper.step_size)
        if hyper.tuning == "esjd":
            self.tuner = tuning.ExpectedJump("hmc", hyper.leapfrogs, penalty=0.0 if gibbs else 0.5)
            self.walk_tuner = tuning.ExpectedJump("walk", 1, penalty=0.0)
        self.walk_unit = 3 if hyper.tuning == "esjd" else 1  # as the range of `tuning` is that of HMC's shorter steps
        self.tuners = [self.tuner, self.walk_tuner] if gibbs else [self.tuner]

    def start(self, data: TrainingSet, keys: list[Key]) -> State:
        """Draws from the variational posterior, to which thousands of updates lead: hence of all replicas at once.

        The chains of a split share Z and theta."""
        start = self.optimise(data, [key._replace(replica=0) for key in keys])
        mean, chol = start["layer1.whitened_mean"], start["layer1.whitened_chol"].tril()
        normal = torch.cat([streams.normal(key, "init", 0, (1, *mean.mT.shape[1:]), like=mean) for key in keys])
        v = mean + (chol @ normal[..., None])[..., 0].mT
        return self.chains({V: v} | self.theta(start), start[Z])

    def chains(self, params: Params, z: Tensor) -> State:
        """Chains at params, v first, whose inducing inputs are z `[R, M, D]`."""
        return State(params, {Z: z}, {name: value for tuner in self.tuners for name, value in tuner.start(z).items()})

    def optimise(self, data: TrainingSet, keys: list[Key]) -> Params:
        """Parameters of `svgp` that maximise its bound + log p(theta); Z = X where that many are asked for."""
        rows, num_inducing = int(data.count.max()), self.hyper.num_inducing
        is_full = bool((data.count <= num_inducing).any())
        if is_full and bool((data.count != rows).any()):
            raise ValueError(f"{num_inducing} inducing inputs are as many as the rows of some splits only")
        shared = {field.name for field in fields(svgp.Hyperparameters)} & {field.name for field in fields(self.hyper)}
        settings = {name: getattr(self.hyper, name) for name in shared} | {"num_inducing": min(num_inducing, rows)}
        method = svgp.Method(svgp.Hyperparameters(**settings), self.task, self.num_classes, self.num_targets)
        return warm_start.maximise(
            method,
            data,
            keys,
            self.hyper.iterations,
            lambda params: self.log_prior(self.theta(params)),
            still=lambda step: {Z} if is_full or step < FIXED else set(),
        ).params

    def theta(self, params: Params) -> Params:
        """The logarithms of theta among params."""
        return {name: value for name, value in params.items() if "log_" in name}

    def noise_shapes(self, state: State, rows: int, step: int, steps: int) -> Shapes:
        """Normals of a test, the number of steps and another test, then one a coordinate."""
        return Shapes((3 + flatten(state.params).shape[1],))

    def step(self, state: State, batch: Batch, noise: Noise, step: int, steps: int) -> Tensor:
        """One transition; returns -log q(v, theta) `[R]` up to a constant, NaN where the chain is lost."""
        return -self.transition(state, batch, noise.fixed, step, self.burn_in(steps))

    def step_joint(self, state: State, batch: Batch, noise: Tensor, step: int, burn_in: int) -> Tensor:
        """HMC on v and theta; the log density `[R]` of the state it ends in."""

        def log_density(params: Params) -> Tensor:
            return self.log_joint(params, self.projection(params, state.buffers[Z], batch.x), batch)

        state.params, value = self.move(state, state.params, log_density, noise, step, burn_in)
        return value

    def step_gibbs(self, state: State, batch: Batch, noise: Tensor, step: int, burn_in: int) -> Tensor:
        """HMC on v given theta, then a random walk of log theta given v; returns the log density `[R]` at the end."""
        theta = self.theta(state.params)
        start = flatten(theta)
        noise, normals = noise.tensor_split([noise.shape[1] - start.shape[1]], 1)
        known = self.known_projection(theta, state.buffers[Z], batch.x)
        v, value = self.move(
            state, {V: state.params[V]}, lambda v: self.log_joint(v | theta, known, batch), noise, step, burn_in
        )

        @torch.no_grad()
        def log_density(position: Tensor) -> Tensor:
            params = v | unflatten(position, theta)
            return self.log_joint(params, self.projection(params, state.buffers[Z], batch.x), batch)

        size = self.walk_unit * self.walk_tuner.settings(state.memory, step, burn_in)[0]
        uniform = torch.special.ndtr(noise[:, 2])
        end, value, acceptance = hmc.random_walk(start, value, log_density, size[:, None] * normals, uniform)
        state.memory |= self.walk_tuner.learn(state.memory, step, burn_in, acceptance, end - start)
        state.params = v | unflatten(end, theta)
        return value

    def move(
        self, state: State, params: Params, log_density: LogDensity, noise: Tensor, step: int, burn_in: int
    ) -> tuple[Params, Tensor]:
        """One transition of HMC on params: where it leads, and the log density there `[R]`; noise `[R, 3 + K]`."""
        at = hmc.differentiated(lambda position: log_density(unflatten(position, params)))
        start = at(flatten(params))
        test, number = torch.special.ndtr(noise[:, :2]).unbind(1)
        size, most = self.tuner.settings(state.memory, step, burn_in)
        end, acceptance = hmc.step(start, at, noise[:, 3:], test, size, hmc.draw_leapfrogs(number, most))
        state.memory |= self.tuner.learn(state.memory, step, burn_in, acceptance, end.position - start.position)
        return unflatten(end.position, params), end.value

    def log_joint(self, params: Params, projection: Projection, batch: Batch) -> Tensor:
        """log q(v, theta) `[R]` without its constant, log theta being the variable."""
        v, noise_variance = params[V], params[NOISE].exp() if NOISE in params else None

        def log_likelihood(rows: slice) -> Tensor:
            a, variance = projection(rows)
            mean = a.mT @ v  # a_n^T v  [R, B, Q]
            variance = variance[..., None].expand_as(mean)
            expected = self.likelihood.expected_log_prob(batch.y[:, rows], mean[None], variance[None], noise_variance)
            return (batch.weight[:, rows] * expected[0]).sum(-1)

        size, n = max(1, CHUNK_ELEMENTS // v.shape[1]), batch.x.shape[1]
        if n <= size:
            total = log_likelihood(slice(0, n))
        else:
            chunks = [slice(first, first + size) for first in range(0, n, size)]
            parts = (checkpoint(log_likelihood, rows, use_reentrant=False) for rows in chunks)
            total = sum(parts, torch.zeros(()))
        return total - 0.5 * v.square().sum((1, 2)) + self.log_prior(self.theta(params))

    def log_prior(self, theta: Params) -> Tensor:
        """log p(log theta) `[R]`: shape log theta - rate theta, summed, without constants; a Gamma's with Jacobian."""
        total = torch.zeros(())
        for name, value in theta.items():
            of_lengthscale = (self.hyper.lengthscale_shape, self.hyper.lengthscale_rate)
            shape, rate = of_lengthscale if name.endswith("log_lengthscale") else (1.0, 1.0)
            total = total + (shape * value - rate * value.exp()).reshape(len(value), -1).sum(1)
        return total

    def projection(self, params: Params, z: Tensor, x: Tensor) -> Projection:
        """a and the variance that v leaves, at rows of x `[R, N, D]`."""
        z, chol_kzz, function = kernel(params | {Z: z}, "layer1", self.hyper.jitter, self.hyper.kernel)

        def project(rows: slice) -> tuple[Tensor, Tensor]:
            a = sparse.project(x[:, rows], z, chol_kzz, function)
            return a, (function.diagonal(x[:, rows]) - a.square().sum(1)).clamp_min(0.0)

        return project

    @torch.no_grad()
    def known_projection(self, theta: Params, z: Tensor, x: Tensor) -> Projection:
        """As `projection`, found once for all rows."""
        a, variance = self.projection(theta, z, x)(slice(None))
        return lambda rows: (a[..., rows], variance[:, rows])

    def layer(self, params: Params, z: Tensor) -> Layer:
        z, chol_kzz, function = kernel(params | {Z: z}, "layer1", self.hyper.jitter, self.hyper.kernel)
        return Layer(z, chol_kzz, params[V], None, function)

    @torch.no_grad()
    def predict(self, state: State, x: Tensor, key: Key) -> Predictive:
        """Equal mixture over the kept states at x `[1, T, D]`; no randomness."""
        kept = state.kept()
        moments = [sparse.conditional(x, self.layer(params, state.buffers[Z])) for params in kept]
        mean, variance = (torch.cat(part) for part in zip(*moments, strict=True))  # [S, T, Q]
        logs = [params[NOISE] for params in kept if NOISE in params]
        return self.likelihood.predictive(mean, variance, torch.cat(logs).exp()[:, None, None] if logs else None)

    @torch.no_grad()
    def functions(self, state: State, x: Tensor, key: Key) -> list[Tensor]:
        """Posterior functions `[S, 1, T, Q]` at x `[1, T, D]`, one a kept state."""
        drawn = []
        for sample, params in enumerate(state.kept()):
            layer = self.layer(params, state.buffers[Z])
            replicas, size, outputs = layer.whitened_mean.shape
            known = layer._replace(whitened_chol=x.new_zeros(replicas, outputs, size, size))
            drawn.append(sparse.draw(known, streams.source(key, "eval", sample, x))(x))
        return [torch.stack(drawn)]
