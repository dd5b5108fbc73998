"""Samplers of GP models with latent values: `python bench/latent.py [ROWS]`.

Effective samples a second of logistic regression with 100 rows (or so many), two lengthscales and a variance
(`reference.py` has its data and densities): ten chains in one batch of AA with HMC v2 and a random walk, one update of
psi (filippone2013) or four (the default) for one of f; of KHR, and of PM with one draw from the Laplace approximation;
such chains of AA one by one; beside the No-U-Turn sampler and HMC of BlackJAX on whitened latent values, compiled. All
are tuned before, turns alternate, and the effective sizes (bulk, the least of psi and of all f) are those of the draws
of all turns, whose means must agree. Then the time of a step of every operator, and of one Gaussian approximation.
Double precision, one thread.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import NamedTuple

import blackjax
import jax
import jax.numpy as jnp
import numpy as np
import reference
import torch
from timing import REPEATS, Step, interleaved, median_interval, report
from torch import Tensor

from gpbench.gp import latent_likelihoods
from gpbench.methods.base import Shapes
from gpbench.sampling.diagnostics import summary
from gpbench.sampling.latent import approximations, joint, latents, parameters, pseudo_marginal, schemes
from gpbench.sampling.latent.model import Generator, Model, Operator, Prior, State
from gpbench.sampling.tuning import DualAveraging

ROWS = int(sys.argv[1]) if len(sys.argv) > 1 else 100
PROBLEM = reference.PROBLEMS["logit_50"]._replace(rows=ROWS)
CHAINS, SIZE = 10, len(PROBLEM.psi)
BURN_IN, BATCHED_STEPS, LOOPED_STEPS, COMPILED_STEPS = 1000, 100, 20, 50
LEAPFROGS = 15
"""Of HMC, about as many as the No-U-Turn sampler takes."""


def model(chains: int, likelihood: str = "logit") -> Model:
    """Chains on the data of the problem; its targets are classes, for logit and probit alike."""
    x, y = (torch.tensor(part).expand(chains, *part.shape) for part in reference.data(PROBLEM)[:2])
    priors = [Prior(shape, rate, name != "gamma") for name, shape, rate in (PROBLEM.lengthscale, PROBLEM.variance)]
    return Model(x, y, torch.ones_like(y), latent_likelihoods.named(likelihood), *priors, ard=True)


def aa(model: Model, updates: int = 1) -> Operator:
    return schemes.scheme("aa", model, latents.named("hmc_v2", model), "mh", (1, updates))


SCHEMES: dict[str, Callable[[Model], Operator]] = {
    "AA": aa,
    "AA, psi four times": lambda m: aa(m, 4),
    "KHR": joint.KHR,
    "PM LA(1)": lambda m: pseudo_marginal.PseudoMarginal(m, "laplace", 1),
}


def surrogate(model: Model) -> Operator:
    return schemes.Sequence(model, [latents.named("elliptical", model), joint.Surrogate(model)])


def start(operator: Operator, seed: int = 0) -> State:
    """Chains where the data come from; f from the prior, or for KHR, which could not leave that, from its Gaussian."""
    model, rng = operator.model, np.random.default_rng(seed)
    chains, rows = model.weight.shape
    psi = torch.tensor(PROBLEM.psi, dtype=model.x.dtype).repeat(chains, 1)
    nu, chol = torch.tensor(rng.standard_normal((chains, rows, 1))), model.factor(psi)
    if isinstance(operator, joint.KHR):
        nu = approximations.laplace(model, psi, chol).draw(nu.mT).mT
    return operator.init(model.state(psi, (chol @ nu)[..., 0]))


def noises(operator: Operator, seed: int = 1) -> Iterator[Tensor]:
    """Random numbers of one step after the other."""
    rng, (chains, rows) = np.random.default_rng(seed), operator.model.weight.shape
    while True:
        yield torch.tensor(rng.standard_normal((chains, operator.fixed + rows * operator.per_row)))


def advance(operator: Operator, state: State, noise: Tensor) -> tuple[State, dict]:
    shapes = Shapes((operator.fixed,), (operator.per_row,))
    return operator.step(state, Generator(*shapes.split(noise, operator.model.weight.shape[1])))


def burn_in(operator: Operator, state: State, source: Iterator[Tensor]) -> State:
    """Chains with their step sizes learnt in the first quarter, as `mcmc_gp` does."""
    tuners = [DualAveraging(part.name, part.target, part.first_step) for part in operator.tuned]
    memory = {key: value for tuner in tuners for key, value in tuner.start(state["psi"]).items()}
    learning = BURN_IN // 4
    for step in range(BURN_IN):
        sizes = {f"{tuner.name}.step_size": tuner.settings(memory, step, learning)[0] for tuner in tuners}
        sizes["theta.tuning"] = torch.full_like(state["log_lik"], float(step < learning))
        state, info = advance(operator, state | sizes, next(source))
        for tuner in tuners:
            memory |= tuner.learn(memory, step, learning, info[f"{tuner.name}.acceptance"], state["psi"])
    return state


class Sampler(NamedTuple):
    """A turn of it makes `draws` draws in all, of its chains; `seen` are those of the turns so far."""

    turn: Step
    draws: int
    seen: list[np.ndarray]
    """`[chains, draws, psi and f]` a turn"""


def batched(operator: Operator, state: State, source: Iterator[Tensor]) -> Sampler:
    seen: list[np.ndarray] = []

    def turn() -> None:
        nonlocal state
        kept = []
        for _ in range(BATCHED_STEPS):
            state, _ = advance(operator, state, next(source))
            kept.append(torch.cat([state["psi"], state["f"]], 1))
        seen.append(torch.stack(kept, 1).numpy())

    return Sampler(turn, BATCHED_STEPS * CHAINS, seen)


def looped(state: State, source: Iterator[Tensor]) -> Sampler:
    """The chains of `batched` one by one; their draws are of the same law, and not kept."""
    operators = [aa(model(1)) for _ in range(CHAINS)]

    def turn() -> None:
        nonlocal state
        for _ in range(LOOPED_STEPS):
            noise = next(source).split(1)
            moved = [
                advance(operator, {key: value[r : r + 1] for key, value in state.items()}, noise[r])[0]
                for r, operator in enumerate(operators)
            ]
            state = {key: torch.cat([own[key] for own in moved]) for key in state}

    return Sampler(turn, LOOPED_STEPS * CHAINS, [])


def compiled(name: str) -> Sampler:
    """A chain of BlackJAX's `nuts` or `hmc`, warmed up and compiled."""
    seen: list[np.ndarray] = []
    x, y = (jnp.array(part) for part in reference.data(PROBLEM)[:2])
    log_density = reference.posterior(PROBLEM, x, y, known={})
    position = {"psi": jnp.array(PROBLEM.psi), "nu": jnp.zeros(PROBLEM.rows)}
    warm_key, key = jax.random.split(jax.random.key(0))
    warm_up = blackjax.window_adaptation(blackjax.nuts, log_density)
    (state, settings), _ = warm_up.run(warm_key, position, num_steps=BURN_IN)
    sampler = blackjax.nuts(log_density, **settings)
    if name == "hmc":
        sampler = blackjax.hmc(log_density, **settings, num_integration_steps=LEAPFROGS)
        state = sampler.init(state.position)

    @jax.jit
    def run(state, keys):
        def step(state, key):
            state, _ = sampler.step(key, state)
            psi, nu = state.position["psi"], state.position["nu"]
            return state, jnp.concatenate([psi, reference.factor(psi, x) @ nu])

        return jax.lax.scan(step, state, keys)

    def turn() -> None:
        nonlocal state, key
        key, own = jax.random.split(key)
        state, draws = run(state, jax.random.split(own, COMPILED_STEPS))
        seen.append(np.asarray(draws)[None])

    return Sampler(turn, COMPILED_STEPS, seen)


def bench_samplers() -> None:
    samplers = {}
    for name, make in SCHEMES.items():
        operator = make(model(CHAINS))
        source = noises(operator)
        state = burn_in(operator, start(operator), source)
        samplers[name] = batched(operator, state, source)
        if make is aa:
            samplers["AA, looped"] = looped(state, source)
    samplers |= {"BlackJAX, NUTS": compiled("nuts"), "BlackJAX, HMC": compiled("hmc")}
    times = interleaved({name: sampler.turn for name, sampler in samplers.items()})
    draws = {name: np.concatenate(sampler.seen, 1) for name, sampler in samplers.items() if sampler.seen}
    worth = {name: effective(kept) for name, kept in draws.items()}
    worth["AA, looped"] = worth["AA"]  # chains of the same law
    print(f"effective samples a second, {PROBLEM.rows} rows (median of {REPEATS} turns [95 % interval])")
    for name, sampler in samplers.items():
        each = times[name] / sampler.draws
        of_psi, of_f = (interval(1e3 * share / each) for share in worth[name])
        print(f"  {name:22s} {interval(each):22s} ms a draw; of psi {of_psi:22s} of f {of_f}")
    theirs = draws.pop("BlackJAX, NUTS")
    for name, ours in draws.items():
        print(
            f"  of {ours.shape[2]} means, {name} and NUTS differ by {apart(ours, theirs):.1f} standard errors at most"
        )


def interval(values: np.ndarray) -> str:
    return "{:.2f} [{:.2f}, {:.2f}]".format(*median_interval(values))


def effective(draws: np.ndarray) -> tuple[float, float]:
    """Effective samples a draw, the least of psi and of f; draws `[chains, draws, psi and f]`."""
    sizes = summary(draws)["ess_bulk"] / (draws.shape[0] * draws.shape[1])
    return float(sizes[:SIZE].min()), float(sizes[SIZE:].min())


def apart(ours: np.ndarray, theirs: np.ndarray) -> float:
    """The largest difference of means, in its Monte Carlo standard error."""
    variance = sum(part.var((0, 1)) / summary(part)["ess_bulk"] for part in (ours, theirs))
    return float((np.abs(ours.mean((0, 1)) - theirs.mean((0, 1))) / np.sqrt(variance)).max())


def stepping(make: Callable[[Model], Operator], likelihood: str = "logit") -> Step:
    """A step of ten chains, always from the same state."""
    operator = make(model(CHAINS, likelihood))
    state, noise = start(operator), next(noises(operator))
    return lambda: advance(operator, state, noise)


def bench_operators() -> None:
    of_f = ("mh", "mh_v1", "mh_v2", "elliptical", "hmc", "hmc_v1", "hmc_v2", "smmala")
    turns = {f"f: {name}": stepping(lambda m, name=name: latents.named(name, m)) for name in of_f}
    for target in (parameters.Sufficient, parameters.Ancillary):
        for name in ("mh", "hmc", "smmala"):
            label = f"psi, {target.__name__.lower()}: {name}"
            turns[label] = stepping(lambda m, name=name, target=target: parameters.named(name, target(m)))
    turns["khr"] = stepping(joint.KHR)
    turns["surr, f: elliptical"] = stepping(surrogate)
    turns["pm, laplace"] = stepping(lambda m: pseudo_marginal.PseudoMarginal(m, "laplace", 1))
    turns["pm, ep"] = stepping(lambda m: pseudo_marginal.PseudoMarginal(m, "ep", 1), "probit")
    for name, find in (("laplace", approximations.laplace), ("ep", approximations.ep)):
        probit = model(CHAINS, "probit")
        state = start(latents.EllipticalSlice(probit))
        turns[f"approximation: {name}"] = lambda find=find, m=probit, s=state: find(m, s["psi"], s["chol"])
    report(f"a step of {CHAINS} chains, 100 rows", interleaved(turns), base="f: hmc_v2")


def main() -> None:
    torch.set_num_threads(1)
    bench_samplers()
    bench_operators()


if __name__ == "__main__":
    main()
