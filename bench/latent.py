"""Samplers of GP models with latent values: `python bench/latent.py [ROWS]`.

Effective samples a second of logistic regression with 100 rows (or so many), two lengthscales and a variance
(`reference.py` has its data and densities), by ten chains side by side: AA with HMC v2 and a random walk, one update of
psi (filippone2013) or several for one of f; KHR; PM with one draw from the Laplace approximation; joint HMC and NUTS of
(psi, L^-1 f); beside the No-U-Turn sampler and HMC of BlackJAX on the same coordinates, compiled, ten chains too, each
with its own step size and masses. All are tuned before, by a burn-in that is not counted; turns alternate, are timed in
CPU time of the thread, and the effective sizes (bulk as ArviZ has it, the least of psi and of all f) are those of the
draws of all turns, whose means must agree. Then the time of a step of every operator, and of one Gaussian
approximation. Double precision, one thread.
"""

from __future__ import annotations

import functools
import sys
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

import blackjax
import jax
import jax.numpy as jnp
import numpy as np
import reference
import torch
from timing import Step, called, interleaved, median_interval, report
from torch import Tensor

from gpbench.gp import latent_likelihoods
from gpbench.methods.base import Shapes
from gpbench.sampling.diagnostics import summary
from gpbench.sampling.latent import approximations, joint, latents, parameters, pseudo_marginal, schemes, whitened
from gpbench.sampling.latent.model import Generator, Model, Operator, Prior, State

ROWS = int(sys.argv[1]) if len(sys.argv) > 1 else 100
PROBLEM = reference.PROBLEMS["logit_50"]._replace(rows=ROWS)
CHAINS, SIZE = 10, len(PROBLEM.psi)
BURN_IN, WARM_UP, SECONDS = (400, 200, 2.0) if ROWS <= 200 else (160, 80, 12.0)
"""Transitions of ours, of which a quarter learns; of BlackJAX, all of which learn; and of a turn, about."""
LEAPFROGS, TURNS = 15, 8 if ROWS <= 200 else 5
"""Of HMC, about as many as the No-U-Turn sampler takes; and how many turns."""


def model(chains: int, likelihood: str = "logit") -> Model:
    """Chains on the data of the problem; its targets are classes, for logit and probit alike."""
    x, y = (torch.tensor(part).expand(chains, *part.shape) for part in reference.data(PROBLEM)[:2])
    priors = [Prior(shape, rate, name != "gamma") for name, shape, rate in (PROBLEM.lengthscale, PROBLEM.variance)]
    return Model(x, y, torch.ones_like(y), latent_likelihoods.named(likelihood), *priors, ard=True)


def aa(model: Model, updates: int = 1) -> Operator:
    return schemes.scheme("aa", model, latents.named("hmc_v2", model), "mh", (1, updates))


def pm(model: Model) -> Operator:
    return pseudo_marginal.PseudoMarginal(model, "laplace", 1)


SCHEMES: dict[str, Callable[[Model], Operator]] = {
    "AA": aa,
    "AA, psi 4 times": lambda m: aa(m, 4),
    "KHR": joint.KHR,
    "PM LA(1)": pm,
    "PM LA(1), adapted": lambda m: schemes.adapt(pm(m)),
    "HMC": lambda m: whitened.Hamiltonian(m, LEAPFROGS),
    "NUTS": lambda m: whitened.NoUTurn(m, 8),
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
    """Chains with their settings learnt in the first quarter, as `mcmc_gp` does."""
    tuners = schemes.tuners(operator)
    memory = {key: value for tuner in tuners for key, value in tuner.start(state["psi"]).items()}
    learning = BURN_IN // 4
    for step in range(BURN_IN):
        sizes = {f"{tuner.name}.step_size": tuner.settings(memory, step, learning)[0] for tuner in tuners}
        sizes["theta.tuning"] = torch.full_like(state["log_lik"], float(step < learning))
        state, info = advance(operator, state | memory | sizes, next(source))
        for tuner in tuners:
            at = state.get(f"{tuner.name}.position", state["psi"])
            memory |= tuner.learn(memory, step, learning, info[f"{tuner.name}.acceptance"], at)
    return state


class Sampler(NamedTuple):
    """A turn of it makes `draws` draws of every chain; `seen` are those of the turns so far."""

    turn: Step
    draws: int
    seen: list[np.ndarray]
    """`[chains, draws, psi and f]` a turn"""


def drawn_in_turn(one: Callable[[int], np.ndarray]) -> Sampler:
    """A sampler whose turns take about `SECONDS`; one: number of draws -> draws `[chains, draws, psi and f]`."""
    one(4)
    started = time.process_time()
    one(4)
    draws = max(4, round(4 * SECONDS / (time.process_time() - started)))
    one(draws)  # another number of draws is compiled anew
    seen: list[np.ndarray] = []
    return Sampler(lambda: seen.append(one(draws)), draws, seen)


def batched(operator: Operator) -> Sampler:
    source = noises(operator)
    state = burn_in(operator, start(operator), source)

    def one(draws: int) -> np.ndarray:
        nonlocal state
        kept = []
        for _ in range(draws):
            state, _ = advance(operator, state, next(source))
            kept.append(torch.cat([state["psi"], state["f"]], 1))
        return torch.stack(kept, 1).numpy()

    return drawn_in_turn(one)


@functools.cache
def blackjax_density() -> Callable:
    x, y = (jnp.array(part) for part in reference.data(PROBLEM)[:2])
    return reference.posterior(PROBLEM, x, y, known={})


@functools.cache
def warmed_up() -> list[tuple]:
    """State, step size and masses of each chain of BlackJAX, by its window adaptation of NUTS."""
    warm_up = blackjax.window_adaptation(blackjax.nuts, blackjax_density())
    position = {"psi": jnp.array(PROBLEM.psi), "nu": jnp.zeros(PROBLEM.rows)}
    learn = jax.jit(lambda key: warm_up.run(key, position, num_steps=WARM_UP)[0])
    found = [learn(key) for key in jax.random.split(jax.random.key(0), CHAINS)]
    return [(state, {part: own[part] for part in ("step_size", "inverse_mass_matrix")}) for state, own in found]


def compiled(name: str) -> Sampler:
    """Chains of BlackJAX's `nuts` or `hmc`, compiled, one after the other."""
    states, settings = (list(part) for part in zip(*warmed_up(), strict=True))
    keys, x = list(jax.random.split(jax.random.key(1), CHAINS)), jnp.array(reference.data(PROBLEM)[0])
    steps = {"num_integration_steps": LEAPFROGS} if name == "hmc" else {}

    @functools.partial(jax.jit, static_argnames="draws")
    def run(state, settings, key, draws):
        sampler = getattr(blackjax, name)(blackjax_density(), **settings, **steps)

        def step(state, key):
            state, _ = sampler.step(key, state)
            psi, nu = state.position["psi"], state.position["nu"]
            return state, jnp.concatenate([psi, reference.factor(psi, x) @ nu])

        return jax.lax.scan(step, state, jax.random.split(key, draws))

    def one(draws: int) -> np.ndarray:
        found = []
        for chain in range(CHAINS):
            keys[chain], own = jax.random.split(keys[chain])
            states[chain], values = run(states[chain], settings[chain], own, draws)
            found.append(np.asarray(values))
        return np.stack(found)

    return drawn_in_turn(one)


def bench_samplers() -> None:
    samplers = {name: batched(make(model(CHAINS))) for name, make in SCHEMES.items()}
    samplers |= {f"BlackJAX, {name}": compiled(name) for name in ("nuts", "hmc")}
    times = interleaved({name: sampler.turn for name, sampler in samplers.items()}, repeats=TURNS, warm_up=0)
    draws = {name: np.concatenate(sampler.seen, 1) for name, sampler in samplers.items()}
    print(f"effective samples a second, {PROBLEM.rows} rows (median of {TURNS} turns [{called(TURNS)}])")
    for name, sampler in samplers.items():
        per_second = 1e3 * sampler.draws * CHAINS / times[name]
        of_psi, of_f = (interval(share * per_second) for share in effective(draws[name]))
        each = interval(1e3 / per_second)
        print(f"  {name:24s} {each:20s} ms a draw; of psi {of_psi:22s} of f {of_f}", flush=True)
    theirs = draws.pop("BlackJAX, nuts")
    for name, ours in draws.items():
        worst = apart(ours, theirs)
        print(f"  of {ours.shape[2]} means, {name} and BlackJAX, nuts differ by {worst:.1f} standard errors at most")


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
