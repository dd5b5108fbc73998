"""GP models sampled by Markov chains over latent values and covariance parameters (filippone2013, filippone2014).

Model      y_i | f_i ~ logistic, probit, Poisson (log-Gaussian Cox), stochastic volatility or ordinal; f ~ N(0, K),
           K_ij = sigma exp(-1/2 sum_d (x_id - x_jd)^2 / tau_d^2); tau ~ Gamma, sigma ~ inverse Gamma or Gamma.
Posterior  p(f, psi | y), psi = log(tau, sigma), by one of the samplers (`gpbench.sampling.latent`)
           sa, aa, asis      f | y, psi, then psi | f, psi | y, L^-1 f, or both in turn (filippone2013, section 2)
           surr              psi given surrogate data (murray2010covariance)
           khr               psi and f together, f from the Laplace approximation at the new psi (knorrheld2002)
           hmc, nuts         psi and L^-1 f together by Hamiltonian dynamics, with gradients of both (hoffman2014)
           pm                psi by an unbiased estimate of p(y | psi): `num_importance` draws of f from a Gaussian
                             approximation (filippone2014); then f | y, psi
           marginal          psi by the evidence of the approximation itself, f by its Gaussian
           and for the efficiency of a part, where simulated data tell the rest: latents, theta_given_f, theta_given_nu,
           estimator (independent estimates of p(y | tau) on a grid of log tau).
Predictive a mixture over kept (f, psi): f_* | f, psi is Gaussian and is integrated out by quadrature or exactly.
Step       one transition on all rows; settings are learnt in the first quarter of burn-in and stay.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
import torch
from torch import Tensor

from gpbench import streams
from gpbench.errors import UserError
from gpbench.gp import latent_likelihoods
from gpbench.gp.linalg import multiply
from gpbench.hyper import Annotated, Formula, Fraction, Ge, Le, Lt, PositiveFloat, PositiveInt, Settings, dataclass
from gpbench.methods.base import Noise, SamplerMethod, Shapes, State
from gpbench.methods.training_rows import Batch, TrainingSet
from gpbench.predictive.distributions import Predictive
from gpbench.sampling.latent import approximations, counting, schemes, truth
from gpbench.sampling.latent.model import Generator, Model, Operator, Prior
from gpbench.sampling.latent.prediction import moments
from gpbench.streams import Key

TUNING = "theta.tuning"
"""1 while step sizes are learnt: pseudo-marginal chains then take the approximate evidence (filippone2014)."""
LEARNING, FEWEST = 0.25, 50
"""The part of burn-in in which step sizes are learnt, and the fewest transitions (all of a shorter burn-in)."""
UNIFORM_START = (-3.0, -1.0)


@dataclass(frozen=True)
class Hyperparameters(Settings):
    """Settings; the defaults are what filippone2013 recommend: f by HMC in whitened coordinates, psi given nu by MH.
    walk: adapted goes along the covariance of psi. latent_updates, theta_updates: of f and psi in a transition.
    leapfrogs: most steps of Hamiltonian dynamics of f (all of them in `hmc`; `theta: hmc` takes 10 at most); doublings:
    most of `nuts`. lengthscale_rate: null is 1/sqrt(D). outputscale: null samples it. start: psi from its prior, or log
    tau uniform on [-3, -1]. keep_latents: in what is kept, for predictions. burn_in: of all transitions. grid_low,
    grid_high, grid_points: log tau of `estimator`. defensive: share of prior draws of `pm`."""

    likelihood: Literal["logit", "probit", "poisson", "volatility", "ordinal"] = "logit"
    sampler: Literal[
        Literal["sa", "aa", "asis", "khr", "hmc", "nuts", "surr", "pm", "marginal"],
        Literal["latents", "theta_given_f", "theta_given_nu", "estimator"],
    ] = "aa"
    latents: Literal["none", "mh", "mh_v1", "mh_v2", "elliptical", "hmc", "hmc_v1", "hmc_v2", "smmala"] = "hmc_v2"
    theta: Literal["mh", "hmc", "smmala"] = "mh"
    kernel: Formula = "rbf"
    walk: Literal["isotropic", "adapted"] = "isotropic"
    latent_updates: PositiveInt = 1
    theta_updates: PositiveInt = 1
    leapfrogs: Annotated[int, Ge(1), Le(1000)] = 10
    doublings: Annotated[int, Ge(1), Le(10)] = 8
    approximation: Literal["laplace", "ep"] = "laplace"
    num_importance: PositiveInt = 1
    defensive: Annotated[float, Ge(0), Lt(1)] = 0.0
    ard: bool = False
    lengthscale_shape: PositiveFloat = 1.0
    lengthscale_rate: PositiveFloat | None = 1.0
    variance_prior: Literal["inverse_gamma", "gamma"] = "inverse_gamma"
    variance_shape: PositiveFloat = 1.0
    variance_rate: PositiveFloat = 1.0
    outputscale: PositiveFloat | None = None
    start: Literal["prior", "uniform"] = "prior"
    keep_latents: bool = True
    burn_in: Fraction = 0.2
    num_samples: PositiveInt = 200
    grid_low: float = -3.0
    grid_high: float = 1.0
    grid_points: PositiveInt = 40

    def impossible(self, task: str) -> str:
        fits = {"logit": "binary", "probit": "binary", "poisson": "counts", "volatility": "regression"}
        if task != (wanted := fits.get(self.likelihood, "multiclass")):
            return f"likelihood {self.likelihood} is for {wanted} data, not {task}"
        is_ep = self.approximation == "ep" and self.sampler in ("pm", "marginal", "estimator")
        if is_ep and self.likelihood != "probit":
            return f"expectation propagation is for the probit likelihood, not {self.likelihood}"
        if self.needs() and self.outputscale is not None:
            return f"sampler {self.sampler} takes the variance of simulated data; outputscale must be null"
        if self.sampler == "estimator" and self.outputscale is None:
            return "sampler estimator varies the lengthscale alone; outputscale must be set"
        if self.sampler == "estimator" and not (self.grid_low < self.grid_high and 1 < self.grid_points <= 40):
            return "sampler estimator needs grid_low < grid_high and 2 to 40 grid_points"
        if self.sampler == "estimator" and self.num_samples > 500:
            return f"sampler estimator keeps 500 repetitions at most; got num_samples {self.num_samples}"
        if self.latents == "none" and self.sampler in ("latents", "sa", "aa", "asis", "surr"):
            return f"sampler {self.sampler} needs an operator of f; latents must not be none"
        if self.kernel != "rbf" and (self.theta != "mh" or "+" in self.kernel or self.needs()):
            return f"kernel {self.kernel} is for theta mh, psi unknown, and no sum, which has several variances"
        if self.walk == "adapted" and (self.theta != "mh" or self.sampler in ("hmc", "nuts", "latents", "estimator")):
            return f"walk adapted is for random walks of psi, not theta {self.theta} of sampler {self.sampler}"
        return ""

    def needs(self) -> list[str]:
        return ["f", "log_variance"] if self.sampler in ("latents", "theta_given_f", "theta_given_nu") else []


class Method(SamplerMethod):
    """Chains over (psi, f); `memory` holds them with all that operators keep, `params` what is sampled of them."""

    covariance_parameters = ("psi",)
    hyper: Hyperparameters
    operator: Operator
    """Of the rows that `init`, `start` or `step` have seen last."""
    batch: Batch | None = None

    @torch.no_grad()
    def start(self, data: TrainingSet, keys: list[Key]) -> State:
        """Chains at their start, with what operators keep: of all replicas, as padding rows of factors are not 0."""
        state = super().start(data, keys)
        psi, f = state.params["psi"], state.params["f"]
        self.prepare(data.full())
        chain = self.operator.init(self.operator.model.state(psi, f))
        tuners = {name: value for tuner in self.tuners for name, value in tuner.start(psi).items()}
        memory = chain | tuners | counting.start(psi[:, 0])
        return State({name: chain[name].clone() for name in self.sampled}, state.buffers, memory)

    @property
    def sampled(self) -> tuple[str, ...]:
        """What of a chain is sampled and kept."""
        scheme = self.hyper.sampler
        if scheme in ("latents", "estimator"):
            return {"latents": ("f",), "estimator": ("log_estimate",)}[scheme]
        has_f = scheme not in ("marginal", "theta_given_f", "theta_given_nu") and self.hyper.keep_latents
        return ("psi", "f") if has_f else ("psi",)

    def prepare(self, batch: Batch) -> None:
        """The model of the rows of a batch, and the operator of the scheme on it."""
        if batch is self.batch:
            return
        hyper = self.hyper
        rate = batch.x.shape[-1] ** -0.5 if hyper.lengthscale_rate is None else hyper.lengthscale_rate
        prior = Prior(hyper.variance_shape, hyper.variance_rate, hyper.variance_prior == "inverse_gamma")
        variance: Prior | float | Tensor = prior if hyper.outputscale is None else hyper.outputscale
        if hyper.sampler == "theta_given_f":
            variance = truth.columns(batch.x, batch.y, hyper.sampler)[:, 0, -1].exp()
        law, tau = latent_likelihoods.named(hyper.likelihood, self.num_classes), Prior(hyper.lengthscale_shape, rate)
        model = Model(batch.x, batch.y[..., 0], batch.weight, law, tau, variance, hyper.ard, hyper.kernel)
        self.batch, self.operator = batch, schemes.sampler(hyper, model)
        self.tuners = schemes.tuners(self.operator)

    def init(self, train: Batch, key: Key) -> State:
        """First psi, from its prior, and f, from its prior given psi; or what simulated data tell of them."""
        self.prepare(train)
        psi, f = self.draw(self.operator.model, train, streams.rng(key, "init"))
        buffers = {"x": train.x, "y": train.y[..., 0], "known": train.y[..., 1:], "weight": train.weight}
        return State({"psi": psi, "f": f}, buffers)

    def draw(self, model: Model, train: Batch, rng: np.random.Generator) -> tuple[Tensor, Tensor]:
        """psi `[1, P]` and f `[1, n]` of `init`."""
        hyper, uniform = self.hyper, torch.as_tensor(rng.random((1, model.num_parameters))).to(model.x)
        parts = [prior.quantile(part) for prior, part in model.priors(uniform)]
        if hyper.start == "uniform":
            parts[0] = UNIFORM_START[0] + (UNIFORM_START[1] - UNIFORM_START[0]) * uniform[:, : model.num_lengthscales]
        psi = torch.cat(parts, 1)
        nu = torch.as_tensor(rng.standard_normal((1, train.x.shape[1]))).to(train.x)
        if hyper.needs():
            psi_known, f_known = truth.parameters(model, truth.columns(train.x, train.y, hyper.sampler))
            if hyper.sampler == "theta_given_f":
                return psi, f_known
            if hyper.sampler == "theta_given_nu":
                nu = torch.linalg.solve_triangular(model.factor(psi_known), f_known[..., None], upper=False)[..., 0]
            else:
                psi = psi_known
        chol = model.factor(psi)
        if hyper.sampler == "khr":
            # the weight of a draw from the prior is one that no proposal ever has: its chain would never move
            return psi, approximations.laplace(model, psi, chol).mean
        return psi, multiply(chol, nu)

    def noise_shapes(self, state: State, rows: int, step: int, steps: int) -> Shapes:
        """Normals of a transition."""
        if self.batch is None:
            self.prepare(rows_of(state))
        return Shapes((self.operator.fixed,), (self.operator.per_row,))

    @torch.no_grad()
    def step(self, state: State, batch: Batch, noise: Noise, step: int, steps: int) -> Tensor:
        """One transition; returns -log p(y | f) - log p(psi) `[R]` up to a constant, NaN where the chain is lost."""
        self.prepare(batch)
        burn_in, memory = self.burn_in(steps), state.memory
        learning = min(burn_in, max(FEWEST, round(LEARNING * burn_in)))
        chain = memory | state.params
        for tuner in self.tuners:
            chain[f"{tuner.name}.step_size"] = tuner.settings(memory, step, learning)[0]
        if TUNING in chain:
            chain[TUNING] = torch.full_like(chain[TUNING], float(step < learning))
        chain, info = self.operator.step(chain, Generator(*noise))
        for tuner in self.tuners:
            acceptance = torch.as_tensor(info[f"{tuner.name}.acceptance"])
            chain |= tuner.learn(memory, step, learning, acceptance, chain.get("theta.position", chain["psi"]))
        if step >= burn_in:
            chain |= counting.add(chain, info)
        state.memory, state.params = chain, {name: chain[name] for name in state.params}
        lost = sum(value.reshape(len(value), -1).sum(1) for value in state.params.values())
        return -chain["log_lik"] - self.operator.model.log_prior(chain["psi"]) + 0 * lost

    def report(self, state: State) -> dict[str, Tensor]:
        """As `SamplerMethod.report`."""
        return counting.means(state.memory)

    def variables(self, name: str, size: int) -> list[str]:
        """As `SamplerMethod.variables`."""
        if name != "psi":
            return super().variables(name, size)
        known_variance = self.hyper.outputscale is not None or self.hyper.sampler == "theta_given_f"
        numbers = range(1, size + 1 if known_variance else size)
        several = self.hyper.ard or len(numbers) > 1  # parts of a product have their own
        of_tau = [f"log lengthscale {number}" for number in numbers] if several else ["log lengthscale"]
        return [*of_tau, "log variance"][:size]

    @torch.no_grad()
    def predict(self, state: State, x: Tensor, key: Key) -> Predictive:
        """Equal mixture over the kept states at x `[1, T, D]`; no randomness. UserError where they lack psi or f."""
        hyper = self.hyper
        self.prepare(rows_of(state))
        names = [*state.samples] or [*state.params]
        if "psi" not in names or ("f" not in names and hyper.sampler != "marginal"):
            found = f"sampler {hyper.sampler} keeps {', '.join(names)} of a chain, which predicts nothing"
            raise UserError(f"{found}; set keep_latents=true, or run it in a study of kind sample")
        kept = {name: torch.stack(state.samples.get(name) or [state.params[name]]) for name in names}  # [S, 1, ...]
        approximation = hyper.approximation if hyper.sampler == "marginal" else None
        mean, variance = moments(self.operator.model, kept, x, approximation)
        return self.operator.model.likelihood.predictive(mean[:, 0], variance[:, 0])


def rows_of(state: State) -> Batch:
    """The training rows, with the columns behind y."""
    y, buffers = state.buffers["y"][..., None], state.buffers
    return Batch(buffers["x"], torch.cat([y, buffers.get("known", y[..., :0])], -1), buffers["weight"])
