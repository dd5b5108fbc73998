"""Multinomial logit GP whose covariances are learned sums over sources of data (filippone2012).

Model      pi_ic = e^{f_ic} / sum_r e^{f_ir},  f_c ~ N(0, K_c) for each of m classes,  K_c = sum_s e^{theta_cs} C_s,
           C_s = (X_s X_s^T + 1e-6 a_s I) / a_s of the columns X_s of source s, a_s = tr(X_s X_s^T) / n, by which
           `scaled: false` does not divide;
           e^{theta_cs} ~ Gamma(2, rate 2). All m functions are kept, so that the weights of each class can be read.
           `weights: unweighted`: K_c = sum_s C_s.  `dirichlet`: e^{theta_c.} ~ Dirichlet(alpha, ..., alpha) on the
           simplex, alpha ~ Exp(1).  `only: s`: source s (from 0) alone.
Samplers   of table 1, one update of f and one of theta a transition, each trajectory of `leapfrogs` steps:

           a  HMC(I) of f, HMC(I) of theta given f          d  RMHMC of f, RMHMC of theta given f
           b  HMC(F) of f, HMC(I) of theta given f          e  HMC(F) of f, random walk of theta given nu = L^-1 f
           c  RMHMC of f, HMC(I) of theta given f           f  RMHMC of f, random walk of theta given nu

           F is K^-1 + the information at the class frequencies. The paper chooses e, with the settings below. The walk
           moves one class at a time, with which its step of 0.2 gives the 60 to 70% acceptance it states.
Prediction (1/N1 N2) sum softmax(f_*) over N1 kept states and N2 draws of f_* given each. Every row of x has the same
           normals: only marginals of f_* matter, and rows do not depend on each other.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
import torch
from torch import Tensor

from gpbench import streams
from gpbench.errors import UserError
from gpbench.gp import multinomial
from gpbench.gp.jitter import DEFAULT_JITTER
from gpbench.gp.linalg import half_log_det, multiply, solve
from gpbench.hyper import Fraction, NonNegativeInt, PositiveFloat, PositiveInt, Settings, dataclass
from gpbench.methods.base import Noise, SamplerMethod, Shapes, State
from gpbench.methods.training_rows import Batch, TrainingSet
from gpbench.predictive.distributions import Categorical, Predictive
from gpbench.sampling.latent import multinomial as operators
from gpbench.sampling.latent import weights
from gpbench.sampling.latent.model import Generator, Info, Operator, Prior
from gpbench.sampling.latent.multinomial import Model
from gpbench.sampling.latent.schemes import Sequence, tuners
from gpbench.streams import Key

PRIOR = Prior(2.0, 2.0)
COUNTED = "told."
"""Prefix, in `memory`, of the sums that `report` averages."""


@dataclass(frozen=True)
class Hyperparameters(Settings):
    """Settings of filippone2012 where it gives them.

    sources: how many columns each has, in their order (none: all columns are one). step_size: of f; weight_step_size:
    of theta; tune: burn-in adapts both, to an acceptance of 0.65 for trajectories and 0.25 for walks. burn_in: fraction
    of the transitions; num_samples, samples_test: N1, N2."""

    sources: tuple[PositiveInt, ...] = ()
    only: NonNegativeInt | None = None
    weights: Literal["learned", "unweighted", "dirichlet"] = "learned"
    scaled: bool = True
    approach: Literal["a", "b", "c", "d", "e", "f"] = "e"
    leapfrogs: PositiveInt = 10
    step_size: PositiveFloat = 0.5
    weight_step_size: PositiveFloat = 0.2
    tune: bool = False
    burn_in: Fraction = 0.3
    num_samples: PositiveInt = 1000
    samples_test: PositiveInt = 100

    def impossible(self, task: str) -> str:
        sources = 1 if self.only is not None else max(len(self.sources), 1)
        if self.only is not None and self.only >= len(self.sources):
            return f"only must be below the number of sources, {len(self.sources)}, got {self.only}"
        if self.weights == "dirichlet" and sources == 1:
            return "Dirichlet weights need at least two sources"
        if self.weights == "dirichlet" and self.approach not in "ef":
            return f"Dirichlet weights move given nu, by approach e or f, not {self.approach}"
        return ""

    def probes(self) -> list[str]:
        return ["weights"] if len(self.sources) > 1 and self.only is None and self.weights != "unweighted" else []


class Method(SamplerMethod):
    covariance_parameters = ("theta",)

    def __init__(self, hyper: Hyperparameters, task: str, num_classes: int = 0, num_targets: int = 1) -> None:
        super().__init__(hyper, task, num_classes, num_targets)
        self.sizes = list(hyper.sources) if hyper.only is None else [hyper.sources[hyper.only]]

    def init(self, train: Batch, key: Key) -> State:
        """Draws from the prior. Raises UserError where the sources have not as many columns as the data."""
        x = self.columns(train.x)
        diagonals = multinomial.squares(x, self.sizes).sum(2) / x.shape[1]
        # a source that is 0 in all training rows says nothing, on any scale
        diagonals = torch.where(diagonals > 0, diagonals, 1.0)
        scale = diagonals if self.hyper.scaled else torch.ones_like(diagonals)
        nugget = DEFAULT_JITTER * diagonals / scale
        grams = multinomial.grams(x, x, self.sizes) / scale[..., None, None]
        grams = grams + torch.diag_embed(nugget[..., None] * train.weight[:, None])
        buffers = {"x": x, "weight": train.weight, "scale": scale, "nugget": nugget, "grams": grams}
        theta, other, nu = self.prior_draws(train, streams.rng(key, "init"))
        learned = self.hyper.weights != "unweighted"
        params = {"f": multiply(self.model(buffers, train).factor(theta), nu)}
        (params if learned else buffers)["theta"] = theta
        return State(params | other, buffers)

    def start(self, data: TrainingSet, keys: list[Key]) -> State:
        """As `SteppedMethod.start`, with the factors, of all replicas: their padding rows are not zero."""
        state = super().start(data, keys)
        theta, model = (state.params | state.buffers)["theta"], self.model(state.buffers, data.full())
        state.memory["chol"] = model.factor(theta)
        for tuner in tuners(self.operator(model)):
            state.memory |= tuner.start(theta)
        return state

    def columns(self, x: Tensor) -> Tensor:
        """The columns of the sources that take part; UserError where those of all sources are not those of the data."""
        sizes = self.hyper.sources or (x.shape[-1],)
        if sum(sizes) != x.shape[-1]:
            columns = f"multinomial_gp.sources hold {sum(sizes)} columns, the data have {x.shape[-1]}"
            raise UserError(f"{columns}; give the number of columns of each source")
        self.sizes = self.sizes or [x.shape[-1]]
        return x if self.hyper.only is None else x.split(sizes, -1)[self.hyper.only]

    def prior_draws(self, train: Batch, rng: np.random.Generator) -> tuple[Tensor, dict[str, Tensor], Tensor]:
        """theta `[1, m, q]`, log alpha `[1]` of Dirichlet weights, and nu `[1, m, n]`."""
        shape = (1, self.functions, len(self.sizes))

        def tensor(numbers: np.ndarray) -> Tensor:
            return torch.as_tensor(numbers).to(train.x)

        other = {}
        if self.hyper.weights == "dirichlet":
            log_alpha = tensor(rng.exponential(size=1)).log()
            normals = tensor(rng.standard_normal((2, *shape)))
            alpha = log_alpha.exp()[:, None, None].expand(shape)
            theta = weights.log_gammas(alpha, *normals).log_softmax(-1)
            other["log_concentration"] = log_alpha
        elif self.hyper.weights == "learned":
            theta = tensor(rng.gamma(PRIOR.shape, 1 / PRIOR.rate, shape)).log()
        else:
            theta = train.x.new_zeros(shape)
        return theta, other, tensor(rng.standard_normal((1, train.x.shape[1], self.functions))).mT

    @property
    def functions(self) -> int:
        """m."""
        return max(self.num_classes, 2)

    def model(self, buffers: dict[str, Tensor], batch: Batch) -> Model:
        y = torch.nn.functional.one_hot(batch.y[..., 0].long(), self.functions).mT * batch.weight[:, None]
        return Model(buffers["grams"], y, batch.weight, PRIOR)

    def operator(self, model: Model) -> Operator:
        """The transition of an approach."""
        hyper, approach = self.hyper, self.hyper.approach
        if approach in "cdf":
            latents: operators.Latents = operators.RMHMC(model, hyper.leapfrogs, hyper.step_size)
        else:
            latents = operators.HMC(model, hyper.leapfrogs, hyper.step_size, homogeneous=approach != "a")
        if hyper.weights == "unweighted":
            return Sequence(model, [latents])
        if hyper.weights == "dirichlet":
            return Sequence(model, [latents, weights.DirichletWalk(model, hyper.weight_step_size)])
        if approach in "ef":
            return Sequence(model, [latents, weights.WeightsWalk(model, hyper.weight_step_size)])
        given_f = weights.WeightsRMHMC if approach == "d" else weights.WeightsHMC
        return Sequence(model, [latents, given_f(model, hyper.leapfrogs, hyper.weight_step_size)])

    def noise_shapes(self, state: State, rows: int, step: int, steps: int) -> Shapes:
        """Normals of the updates, and of every row one a function."""
        empty = torch.empty(1, state.buffers["grams"].shape[1], 0, 0)
        operator = self.operator(Model(empty, torch.empty(1, self.functions, 0), torch.empty(1, 0)))
        return Shapes((operator.fixed,), (operator.per_row,))

    @torch.no_grad()
    def step(self, state: State, batch: Batch, noise: Noise, step: int, steps: int) -> Tensor:
        """One transition; returns -log p(y, f, theta) `[R]` up to a constant, NaN where the chain is lost."""
        model, burn_in = self.model(state.buffers, batch), self.burn_in(steps)
        operator = self.operator(model)
        learning = tuners(operator)
        theta = {name: state.buffers[name] for name in ("theta",) if name in state.buffers}
        chain = theta | state.params | {"chol": state.memory["chol"]}
        chain["log_lik"] = model.log_lik(chain["f"])
        for tuner in learning:
            chain[f"{tuner.name}.step_size"], _ = tuner.settings(state.memory, step, burn_in)
        chain, info = operator.step(chain, Generator(*noise))
        if self.hyper.tune:
            for tuner in learning:
                acceptance = torch.as_tensor(info[f"{tuner.name}.acceptance"])
                state.memory |= tuner.learn(state.memory, step, burn_in, acceptance, noise.fixed)
        state.params = {name: chain[name] for name in state.params}
        state.memory["chol"] = chain["chol"]
        if step >= burn_in:
            self.count(state, info)
        return -self.log_joint(chain, model)

    def log_joint(self, chain: dict[str, Tensor], model: Model) -> Tensor:
        """log p(y | f) + sum_c log N(f_c; 0, K_c) + log p(theta) `[R]`, without the constants of the priors."""
        density = 0.5 * solve(chain["chol"], chain["f"]).square().sum(2) + half_log_det(chain["chol"])
        value = chain["log_lik"] - density.sum(1)
        if self.hyper.weights == "dirichlet":
            return value + weights.concentration_density(chain["log_concentration"], chain["theta"])
        return value + PRIOR.log_density(chain["theta"]).sum((1, 2)) * (self.hyper.weights == "learned")

    def count(self, state: State, info: Info) -> None:
        """Add the operations and acceptances of a transition to their sums."""
        like = state.memory["chol"][:, 0, 0, 0]
        for name, value in {"transitions": 1.0, **info}.items():
            before = state.memory.get(COUNTED + name, torch.zeros_like(like))
            state.memory[COUNTED + name] = before + value

    def report(self, state: State) -> dict[str, Tensor]:
        """Means of the transitions after burn-in `[R]`, in units of n^3 (quadratic: n^2) operations."""
        sums = {name.removeprefix(COUNTED): v for name, v in state.memory.items() if name.startswith(COUNTED)}
        transitions = sums.pop("transitions", torch.ones(1))
        names = {"latents.acceptance": "acceptance_latents", "theta.acceptance": "acceptance_theta"}
        return {names.get(name, name): value / transitions for name, value in sums.items()}

    def variables(self, name: str, size: int) -> list[str]:
        """Class and source (from 0) of a weight, class and row of a latent value."""
        columns = max(size // self.functions, 1)
        label = {"theta": "log weight", "log_concentration": "log concentration"}.get(name, name)
        return [f"{label}[{i // columns},{i % columns}]" if size > 1 else label for i in range(size)]

    @torch.no_grad()
    def predict(self, state: State, x: Tensor, key: Key) -> Predictive:
        """Class probabilities at x `[1, T, D]`, a component a kept state."""
        buffers, x = state.buffers, self.columns(x)
        cross = multinomial.grams(buffers["x"], x, self.sizes) / buffers["scale"][..., None, None]  # [1, q, n, T]
        own = multinomial.squares(x, self.sizes) / buffers["scale"][..., None] + buffers["nugget"][..., None]
        model = Model(buffers["grams"], buffers["grams"][:, 0], buffers["weight"])
        probabilities = []
        for s, kept in enumerate(state.kept()):
            theta = kept["theta"] if "theta" in kept else buffers["theta"]
            chol = model.factor(theta)
            projected = torch.linalg.solve_triangular(
                chol, torch.einsum("rcs,rsnt->rcnt", theta.exp(), cross), upper=False
            )
            mean = multiply(projected.mT, solve(chol, kept["f"]))  # [1, m, T]
            variance = torch.einsum("rcs,rst->rct", theta.exp(), own) - projected.square().sum(2)
            normal = streams.normal(key, "eval", s, (1, self.hyper.samples_test, self.functions, 1), like=x)
            f = mean[:, None] + variance.clamp_min(0).sqrt()[:, None] * normal
            probabilities.append(f.softmax(2).mean(1).mT)
        return Categorical(torch.cat(probabilities).double().cpu().numpy())
