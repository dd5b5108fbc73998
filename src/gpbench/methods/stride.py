"""STRIDE: a deep GP regression by Monte Carlo EM with greedily chosen inducing points (urbainczyk2025).

Model      f_0 ~ GP(0, k_0);  f_l | f_{l-1} ~ GP(0, k_l(. | f_{l-1}));  y_i = f_L(x_i) + e_i, e_i ~ N(0, s), with
           composition or convolution as architecture (`gp.deep_kernels`) and L >= 1 hidden layers, sampled through
           their whitened values xi (`hidden_layers`); the top layer is integrated out. Hidden variances are 1; noise,
           lengthscale (of all layers) and the top layer's variance are those of the greedy sparse GP (`greedy_sgp`).
Start      hidden values at which the top layer is stationary, the same for all S particles; rows M chosen greedily.
E-step     of each particle: steps of pCN on xi (`sampling.pcn`) with the likelihood of the sparse top layer,
           l_M(u) = log N(y; 0, Q + s I),  Q = K_nm K_mm^-1 K_mn at u.
M-step     rounds of exchange of a row of M for the best of some random candidates, by the average over particles of
           F_M(u) = l_M(u) - tr(K - Q) / (2 s)  (`gp.greedy`). Then hidden approximations follow the new M.
Model out  1/S sum_s GP(mu_M(. | u_s), k_M(. | u_s)) at the last states, u_s at new inputs being their mean.

A step is a transition of all particles; `em_iterations` E-steps share the steps of a fit evenly, and each ends with an
M-step. In the last one the step sizes of pCN stay. The states of particles are no draws of one posterior that R-hat
could judge, as M moves: none is kept but the last. What is reported instead: the acceptance of the last E-step, and
|xi|^2 over its dimension at the start and the end, which the prior has near 1.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from gpbench.gp import greedy, likelihoods
from gpbench.gp.greedy import Regression
from gpbench.gp.layers import mean_map
from gpbench.hyper import Annotated, Fraction, Ge, NonNegativeInt, PositiveFloat, PositiveInt, Settings, dataclass
from gpbench.methods import greedy_sgp
from gpbench.methods.base import Noise, SamplerMethod, Shapes, State
from gpbench.methods.cross_approximated_layers import CrossApproximation
from gpbench.methods.hidden_layers import Full, Hidden, M, Sparse, Tensors
from gpbench.methods.training_rows import Batch
from gpbench.predictive.distributions import Predictive
from gpbench.sampling import pcn
from gpbench.streams import Key


@dataclass(frozen=True)
class Hyperparameters(Settings):
    """Settings of urbainczyk2025, section 4.1, where given; rank, width and step size are not.

    layers: of GPs, the top one among them; hidden_width: outputs of a hidden layer, None for as many as inputs (in a
    convolution one); rank: of aca; rounds: exchanges in an M-step, each with so many candidates; objective: of the
    E-step (the published one has no trace term); step_size: of pCN, adapted every 100 steps; jitter: of K_mm, relative
    to its variance; restarts, ascent_iterations: of `greedy_sgp`."""

    layers: Annotated[int, Ge(2)] = 2
    architecture: Literal["composition", "convolution"] = "composition"
    hidden: Literal["full", "aca", "sparse"] = "full"
    hidden_width: PositiveInt | None = None
    rank: PositiveInt = 50
    num_inducing: PositiveInt = 50
    particles: PositiveInt = 50
    em_iterations: PositiveInt = 10
    rounds: NonNegativeInt = 5
    candidates: PositiveInt = 500
    objective: Literal["likelihood", "bound"] = "likelihood"
    step_size: Fraction = 0.1
    jitter: PositiveFloat = 1e-8
    restarts: PositiveInt = 5
    ascent_iterations: PositiveInt = 50

    def impossible(self, task: str) -> str:
        if self.architecture == "convolution" and self.hidden_width not in (None, 1):
            return f"a convolution has hidden layers of one output, a lengthscale, not hidden_width={self.hidden_width}"
        return ""

    def least_rows(self) -> int:
        return max(self.num_inducing, self.rank if self.hidden == "aca" else 0)

    def probes(self) -> list[str]:
        return []


class Method(SamplerMethod):
    def __init__(self, hyper: Hyperparameters, task: str, num_classes: int = 0, num_targets: int = 1) -> None:
        super().__init__(hyper, task, num_classes, num_targets)
        self.hidden = self.make_hidden()

    def make_hidden(self) -> Hidden:
        shape = (self.hyper.architecture, self.hyper.layers - 1)
        if self.hyper.hidden == "aca":
            return CrossApproximation(*shape, self.hyper.rank)
        return Full(*shape) if self.hyper.hidden == "full" else Sparse(*shape)

    def init(self, train: Batch, key: Key) -> State:
        shared = ("num_inducing", "candidates", "jitter", "restarts", "ascent_iterations")
        settings = greedy_sgp.Hyperparameters(**{name: getattr(self.hyper, name) for name in shared})
        fitted = greedy_sgp.fit(settings, train, key)
        buffers = {name.removeprefix("log_"): value.exp().view(1, 1) for name, value in fitted.params.items()}
        buffers |= {"x": train.x, "y": train.y[..., 0], "mask": train.weight, M: fitted.buffers[greedy_sgp.ROWS]}
        buffers["start_map"] = mean_map(train.x, self.hyper.hidden_width or train.x.shape[-1])
        params, kept = self.hidden.begin(buffers)
        params = {name: xi.repeat(1, self.hyper.particles, 1, 1) for name, xi in params.items()}
        return self.chains(params, buffers | kept)

    def chains(self, params: Tensors, buffers: Tensors) -> State:
        """Chains of particles at params `[R, S, k, width]`."""
        value = self.log_likelihood(params, buffers)
        none, norm = torch.zeros_like(value), self.whitened_norm(params, buffers)
        counts = {"window": none, "late": none, "transitions": none, "start_norm": norm, "norm": norm}
        return State(params, buffers, {"value": value, "size": torch.full_like(value, self.hyper.step_size)} | counts)

    def iteration(self, step: int, steps: int) -> int:
        """The EM iteration, from 0, that a step belongs to."""
        return step * self.hyper.em_iterations // steps

    def ends_iteration(self, step: int, steps: int) -> bool:
        return self.iteration(step + 1, steps) > self.iteration(step, steps)

    def keep(self, step: int, steps: int) -> bool:
        return False

    def noise_shapes(self, state: State, rows: int, step: int, steps: int) -> Shapes:
        """A normal for the test of every particle and those of its proposal; where an M-step follows, for each of its
        rounds a number a row, by which candidates are drawn."""
        sizes = [xi.shape[1:] for xi in state.params.values()]  # (S, k, width)
        keys = self.hyper.rounds if self.ends_iteration(step, steps) else 0
        if self.hidden.per_row:
            return Shapes((self.hyper.particles,), (sum(s * width for s, _, width in sizes) + keys,))
        return Shapes((self.hyper.particles + sum(s * k * width for s, k, width in sizes),), (keys,))

    def normals(self, params: Tensors, noise: Noise) -> list[Tensor]:
        """Standard normals like the params, out of the noise of a step."""
        if self.hidden.per_row:
            whole = noise.per_row[..., : self.used(params)].unflatten(-1, (self.hyper.particles, -1))
            return [part.transpose(1, 2) for part in whole.split([xi.shape[3] for xi in params.values()], -1)]
        parts = noise.fixed[:, self.hyper.particles :].split([xi[0].numel() for xi in params.values()], -1)
        return [part.view(xi.shape) for part, xi in zip(parts, params.values(), strict=True)]

    def used(self, params: Tensors) -> int:
        """How many of the numbers that a row takes are for proposals; the others are for candidates."""
        return sum(xi.shape[1] * xi.shape[3] for xi in params.values()) if self.hidden.per_row else 0

    @torch.no_grad()
    def step(self, state: State, batch: Batch, noise: Noise, step: int, steps: int) -> Tensor:
        """A transition of all particles, and where it ends an E-step the M-step.

        Returns 1/2 |xi|^2 - l_M(u), or with F_M(u) as objective that, averaged over particles `[R]`."""
        names, memory = list(state.params), state.memory
        position, value, accepted = pcn.step(
            list(state.params.values()),
            memory["value"],
            lambda xi: self.log_likelihood(dict(zip(names, xi, strict=True)), state.buffers),
            self.normals(state.params, noise),
            torch.special.ndtr(noise.fixed[:, : self.hyper.particles]),
            memory["size"],
        )
        state.params = dict(zip(names, position, strict=True))
        memory["value"] = value
        self.adapt(memory, accepted.to(value), step, steps)
        if self.ends_iteration(step, steps):
            self.maximise(state, noise.per_row[..., self.used(state.params) :])
        if step + 1 == steps:
            memory["norm"] = self.whitened_norm(state.params, state.buffers)
            state.buffers |= self.condition(state.params, state.buffers)
        squares = torch.stack([xi.square().sum((2, 3)) for xi in state.params.values()]).sum(0)
        return (0.5 * squares - state.memory["value"]).mean(1)

    def adapt(self, memory: Tensors, accepted: Tensor, step: int, steps: int) -> None:
        """Step sizes after a step, which stay in the last E-step; there acceptances are counted."""
        if self.iteration(step, steps) == self.hyper.em_iterations - 1:
            memory["late"], memory["transitions"] = memory["late"] + accepted, memory["transitions"] + 1
            return
        memory["window"] = memory["window"] + accepted
        if (step + 1) % pcn.WINDOW == 0:
            memory["size"] = pcn.adapt(memory["size"], memory["window"] / pcn.WINDOW)
            memory["window"] = torch.zeros_like(accepted)

    def maximise(self, state: State, keys: Tensor) -> None:
        """The M-step: M after rounds of exchange, hidden approximations at the new M; keys `[R, n, rounds]`."""
        before = state.buffers
        model, chosen = self.regression(state.params, before), before[M]
        for round_keys in keys.unbind(-1):
            others = greedy.candidates(round_keys, chosen, before["mask"], self.hyper.candidates)
            chosen = greedy.exchange(model, chosen, others)
        after = before | {M: chosen}
        state.params, kept = self.hidden.refresh(state.params, before, after)
        state.buffers = after | kept
        state.memory["value"] = self.log_likelihood(state.params, state.buffers)

    def regression(self, params: Tensors, buffers: Tensors) -> Regression:
        """The top layer given the hidden ones."""
        kernel, values, x = self.hidden.kernel(buffers), self.hidden.values(params, buffers), buffers["x"][:, None]
        return Regression(
            covariance=lambda one, other: kernel.covariance(one, other, buffers["outputscale"]),
            places=lambda rows: kernel.places(greedy.take(x, rows), values(rows)),
            variance=buffers["outputscale"],
            y=buffers["y"],
            mask=buffers["mask"],
            noise_variance=buffers["noise_variance"],
            jitter=self.hyper.jitter,
        )

    def log_likelihood(self, params: Tensors, buffers: Tensors) -> Tensor:
        """l_M(u) in nats `[R, S]`, or F_M(u)."""
        model = self.regression(params, buffers)
        summary = greedy.summarise(model, model.places(buffers[M]))
        return (greedy.bound if self.hyper.objective == "bound" else greedy.log_likelihood)(model, summary)

    def condition(self, params: Tensors, buffers: Tensors) -> Tensors:
        """What predictions are computed from: q(f_L) given y, and the hidden layers."""
        model = self.regression(params, buffers)
        known = greedy.posterior(model, greedy.summarise(model, model.places(buffers[M])))
        return {f"top.{name}": value for name, value in known.items()} | self.hidden.extension(params, buffers)

    @torch.no_grad()
    def predict(self, state: State, x: Tensor, key: Key) -> Predictive:
        """Equal mixture over the particles at x `[1, T, D]`; no randomness."""
        *_, mean, variance = self.layers(state, x)
        return likelihoods.Gaussian().predictive(mean[:, 0], variance[:, 0], state.buffers["noise_variance"][0])

    def functions(self, state: State, x: Tensor, key: Key) -> list[Tensor]:
        """Means of every layer `[S, 1, T, *]` at x `[1, T, D]` given its values at the rows, one a particle."""
        return self.layers(state, x)[:-1]

    def layers(self, state: State, x: Tensor) -> list[Tensor]:
        """Values of the hidden layers, mean and variance of f_L, of all particles `[S, 1, T, *]` at x `[1, T, D]`."""
        known = state.buffers
        if "top.weights" not in known:  # before the last step
            known = known | self.condition(state.params, known)
        numbers = self.hyper.particles * known["top.weights"].shape[2]
        pieces = [self.layers_of(known, x[:, None, rows]) for rows in greedy.parts(x.shape[1], numbers)]
        return [torch.cat(part, 2).transpose(0, 1) for part in zip(*pieces, strict=True)]

    def layers_of(self, known: Tensors, x: Tensor) -> list[Tensor]:
        """`layers` of some rows x `[1, 1, T, D]`, `[1, S, T, *]`."""
        kernel, hidden = self.hidden.kernel(known), self.hidden.at_inputs(known, known, x)
        places = kernel.places(x, hidden[-1])
        cross = kernel.covariance(places, known["top.centres"], known["outputscale"])  # [1, S, T, m]
        top = {name: known[f"top.{name}"] for name in ("prior_root", "root", "weights")}
        return [*hidden, *(part[..., None] for part in greedy.marginals(top, cross, known["outputscale"]))]

    def report(self, state: State) -> Tensors:
        """acceptance_latents: of the last E-step; whitened_norm, whitened_norm_start: |xi|^2 over its dimension."""
        memory = state.memory
        rate = (memory["late"] / memory["transitions"].clamp_min(1)).mean(1)
        norms = {"whitened_norm": memory["norm"], "whitened_norm_start": memory["start_norm"]}
        return {"acceptance_latents": rate} | norms

    def whitened_norm(self, params: Tensors, buffers: Tensors) -> Tensor:
        """|xi|^2 over its dimension, over all layers and particles `[R]`."""
        rows = buffers["mask"].sum(1) if self.hidden.per_row else None
        sums = torch.stack([xi.square().sum((1, 2, 3)) for xi in params.values()]).sum(0)
        return sums / sum(xi.shape[1] * xi.shape[3] * (xi.shape[2] if rows is None else rows) for xi in params.values())
