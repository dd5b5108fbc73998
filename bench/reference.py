"""Reference posteriors by an independent library: `python bench/reference.py [PROBLEM ...]`.

For each of `PROBLEMS` the posterior of the log lengthscales, the log variance and the latent values of a small GP model
(filippone2013, filippone2014) on simulated or real data, or of some of them given the others, by the No-U-Turn sampler
of BlackJAX on whitened latent values; of regression that of the covariance parameters (filippone2015), latent values
integrated out. Nothing of `gpbench` is used: the log density is written here from the equations, in JAX, with its
automatic derivatives. Chains start from prior draws. Their means and standard deviations, with Monte Carlo errors by
ArviZ, go to src/gpbench/data/posteriors/PROBLEM.json with the data, and tests hold the samplers of `gpbench`
against them.
"""

from __future__ import annotations

import json
import math
import sys
import warnings
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import blackjax
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from sklearn import datasets

with warnings.catch_warnings():
    warnings.simplefilter("ignore", FutureWarning)
    import arviz

jax.config.update("jax_enable_x64", True)

FOLDER = Path(__file__).parents[1] / "src" / "gpbench" / "data" / "posteriors"
JITTER, WARMUP, CHAINS, ACCEPTANCE, LARGEST_R_HAT = 1e-6, 1500, 4, 0.95, 1.01

LEVELS = (np.arange(40) + 0.5) / 40
"""Of the quantiles that are kept."""

Position = dict[str, Array]
"""psi `[P]`: log lengthscales, then the log variance; nu `[n]`: whitened latent values, f = L nu."""


class Problem(NamedTuple):
    """A likelihood, and what generates its data: x uniform on the unit square to 3 decimals, f from the prior.

    psi are the log lengthscales (one, or one an input) and the log variance of the data. Priors are those of
    exp(psi): ("gamma", shape, rate) or ("inverse gamma", shape, scale). held: what is known to be as it generated the
    data: psi, nu, f or nothing (""). real: a name of `REAL`, whose data they are instead; psi is then any point, which
    tells how many there are. Of likelihood "gaussian", psi = log(sigma, lambda, tau, ...) as in `log_evidence`.
    """

    likelihood: str
    rows: int
    psi: tuple[float, ...]
    lengthscale: tuple[str, float, float]
    variance: tuple[str, float, float]
    draws: int
    held: str = ""
    real: str = ""


OF_2013 = ("gamma", 1.0, 1.0), ("inverse gamma", 1.0, 1.0)
OF_2014 = ("gamma", 1.0, 1 / math.sqrt(2)), ("gamma", 1.2, 0.2)
OF_2015 = ("gamma", 1.0, 1.0), ("gamma", 1.0, 1.0)

PROBLEMS = {
    "logit_50": Problem("logit", 50, (math.log(0.3), math.log(0.6), 2.0), *OF_2013, draws=4000),
    "logit_100": Problem("logit", 100, (math.log(0.4), 2.0), *OF_2013, draws=2000),
    "probit_50": Problem("probit", 50, (math.log(0.35), math.log(2.08)), *OF_2014, draws=4000),
    "probit_100": Problem("probit", 100, (math.log(0.35), math.log(2.08)), *OF_2014, draws=2000),
    "poisson_50": Problem("poisson", 50, (math.log(0.3), 0.0), *OF_2013, draws=4000),
    # a short lengthscale: K is so well conditioned that operators which do not know it move
    "logit_100_given_psi": Problem("logit", 100, (math.log(0.05), 1.0), *OF_2013, draws=4000, held="psi"),
    "logit_100_given_f": Problem("logit", 100, (math.log(0.4), 2.0), *OF_2013, draws=4000, held="f"),
    "logit_100_given_nu": Problem("logit", 100, (math.log(0.4), 2.0), *OF_2013, draws=4000, held="nu"),
    "iris_100": Problem("logit", 100, (0.0,) * 5, *OF_2013, draws=3000, real="iris"),
    "wdbc_100": Problem("probit", 100, (0.0,) * 2, *OF_2014, draws=3000, real="wdbc"),
    "diabetes_100": Problem("gaussian", 100, (0.0,) * 12, *OF_2015, draws=4000, real="diabetes"),
}
REAL: dict[str, Callable[[], tuple[np.ndarray, np.ndarray]]] = {
    # versicolor or virginica; radius and texture, malignant or benign; ten inputs and the progression
    "iris": lambda: (datasets.load_iris().data[50:], datasets.load_iris().target[50:] - 1.0),
    "wdbc": lambda: (datasets.load_breast_cancer().data[:100, :2], datasets.load_breast_cancer().target[:100]),
    "diabetes": lambda: (datasets.load_diabetes().data[:100], datasets.load_diabetes().target[:100]),
}
"""x and y of real data, before they are standardised."""


def factor(psi: Array, x: Array) -> Array:
    """L `[n, n]` of k(x, x') = sigma exp(-1/2 sum_r (x_r - x'_r)^2 / tau_r^2), with 1e-6 sigma on the diagonal."""
    scaled = x / jnp.exp(psi[:-1])
    squares = jnp.square(scaled[:, None] - scaled).sum(-1)
    return jnp.linalg.cholesky(jnp.exp(psi[-1]) * (jnp.exp(-0.5 * squares) + JITTER * jnp.eye(len(x))))


def log_likelihood(likelihood: str, y: Array, f: Array) -> Array:
    """log p(y | f), without terms in y alone; y is 0 or 1, or a count."""
    match likelihood:
        case "logit":
            return (y * f - jnp.logaddexp(0.0, f)).sum()
        case "probit":
            return jax.scipy.special.log_ndtr((2 * y - 1) * f).sum()
        case "poisson":
            return (y * f - jnp.exp(f)).sum()


def log_evidence(psi: Array, x: Array, y: Array) -> Array:
    """log N(y; 0, K + lambda I) without constants, K = sigma exp(-sum_d tau_d (x_d - x'_d)^2)."""
    scaled = x * jnp.exp(0.5 * psi[2:])
    squares = jnp.square(scaled[:, None] - scaled).sum(-1)
    root = jnp.linalg.cholesky(jnp.exp(psi[0] - squares) + jnp.exp(psi[1]) * jnp.eye(len(x)))
    white = jax.scipy.linalg.solve_triangular(root, y, lower=True)
    return -0.5 * white @ white - jnp.log(jnp.diag(root)).sum()


def laws(problem: Problem) -> list[tuple[str, float, float]]:
    """The prior of every exp(psi[p])."""
    others = len(problem.psi) - 2
    if problem.likelihood == "gaussian":
        return [problem.variance] * 2 + [problem.lengthscale] * others
    return [problem.lengthscale] * (others + 1) + [problem.variance]


def log_prior(problem: Problem, psi: Array) -> Array:
    """log p(psi) of logarithms of (inverse) gamma variables, Jacobian included, without constants."""
    names, shapes, rates = zip(*laws(problem), strict=True)
    signed = psi * jnp.array([1.0 if name == "gamma" else -1.0 for name in names])
    return (jnp.array(shapes) * signed - jnp.array(rates) * jnp.exp(signed)).sum()


def posterior(problem: Problem, x: Array, y: Array, known: Position) -> Callable[[Position], Array]:
    """Log density, up to a constant, of what is not `known`."""

    def log_density(position: Position) -> Array:
        place = known | position
        psi, prior = place["psi"], log_prior(problem, place["psi"])
        if problem.likelihood == "gaussian":
            return log_evidence(psi, x, y) + prior
        root = factor(psi, x)
        if "f" in known:
            nu = jax.scipy.linalg.solve_triangular(root, known["f"], lower=True)
            return prior - 0.5 * nu @ nu - jnp.log(jnp.diag(root)).sum()
        nu = place["nu"]
        return log_likelihood(problem.likelihood, y, root @ nu) - 0.5 * nu @ nu + prior

    return log_density


def data(problem: Problem) -> tuple[np.ndarray, np.ndarray, Position]:
    """x `[n, D]` and y `[n]` of a problem, and what is held of psi, nu and f.

    Real x, and y of regression, are standardised (sample mean, population sd) to 3 decimals."""
    if problem.real:
        x, y = REAL[problem.real]()
        return standardised(x), standardised(y) if problem.likelihood == "gaussian" else y.astype(float), {}
    rng = np.random.default_rng(0)
    x = rng.random((problem.rows, 2)).round(3)
    psi, nu = jnp.array(problem.psi), rng.standard_normal(problem.rows)
    f = np.asarray(factor(psi, jnp.array(x)) @ nu)
    match problem.likelihood:
        case "logit":
            y = (rng.random(problem.rows) < 1 / (1 + np.exp(-f))).astype(float)
        case "probit":
            y = (rng.standard_normal(problem.rows) < f).astype(float)
        case "poisson":
            y = rng.poisson(np.exp(f)).astype(float)
    truth = {"psi": psi, "nu": jnp.array(nu), "f": jnp.array(f)}
    return x, y, {name: truth[name] for name in [problem.held] if name}


def standardised(values: np.ndarray) -> np.ndarray:
    return ((values - values.mean(0)) / values.std(0)).round(3) + 0.0


def unknown(problem: Problem) -> tuple[str, ...]:
    """What is sampled."""
    if problem.likelihood == "gaussian":
        return ("psi",)
    return {"": ("psi", "nu"), "psi": ("nu",), "nu": ("psi",), "f": ("psi",)}[problem.held]


def prior_draw(problem: Problem, rng: np.random.Generator) -> Position:
    """A start."""

    def draw(law: tuple[str, float, float]) -> float:
        name, shape, rate = law
        value = np.log(rng.gamma(shape, 1 / rate))
        return value if name == "gamma" else -value

    psi = jnp.array([draw(law) for law in laws(problem)])
    drawn = {"psi": psi, "nu": jnp.array(rng.standard_normal(problem.rows))}
    return {name: drawn[name] for name in unknown(problem)}


def nuts(log_density: Callable[[Position], Array], start: Position, key: Array, draws: int) -> tuple[Position, int]:
    """Draws `[draws, ...]` after a warm-up (step size and dense mass), and how many trajectories diverged."""
    warm_key, key = jax.random.split(key)
    options = {"is_mass_matrix_diagonal": False, "target_acceptance_rate": ACCEPTANCE}
    warm_up = blackjax.window_adaptation(blackjax.nuts, log_density, **options)
    (state, settings), _ = jax.jit(warm_up.run, static_argnames="num_steps")(warm_key, start, num_steps=WARMUP)
    kernel = blackjax.nuts(log_density, **settings).step

    @jax.jit
    def run(state: Any, keys: Array) -> tuple[Position, Array]:
        def step(state: Any, key: Array) -> tuple[Any, tuple[Position, Array]]:
            state, info = kernel(key, state)
            return state, (state.position, info.is_divergent)

        return jax.lax.scan(step, state, keys)[1]

    positions, divergent = run(state, jax.random.split(key, draws))
    return positions, int(divergent.sum())


def summary(values: np.ndarray) -> dict[str, Any]:
    """Mean and standard deviation of draws `[chains, draws]`, their Monte Carlo errors, diagnostics and quantiles."""
    # six digits are more than the errors leave
    found = {
        "mean": values.mean(),
        "mean_error": arviz.mcse(values, method="mean"),
        "sd": values.std(),
        "sd_error": arviz.mcse(values, method="sd"),
        "ess_bulk": arviz.ess(values, method="bulk"),
        "ess_tail": arviz.ess(values, method="tail"),
        "r_hat": arviz.rhat(values),
    }
    quantiles = [float(f"{value:.4g}") for value in np.quantile(values, LEVELS)]
    return {name: float(f"{value:.6g}") for name, value in found.items()} | {"quantiles": quantiles}


def quantities_of(positions: Position, known: Position, x: np.ndarray) -> dict[str, np.ndarray]:
    """Draws of every psi[p] and f[i] that is not known."""
    draws = len(next(iter(positions.values())))
    place = {part: jnp.broadcast_to(value, (draws, *value.shape)) for part, value in known.items()} | positions
    found = {"psi": place["psi"]}
    if "f" not in known and "nu" in place:
        found["f"] = jax.lax.map(lambda both: factor(both[0], jnp.array(x)) @ both[1], (place["psi"], place["nu"]))
    shown = {part: np.asarray(values) for part, values in found.items() if part not in known}
    return {f"{part}[{i}]": values[:, i] for part, values in shown.items() for i in range(values.shape[1])}


def make(name: str) -> None:
    """Run the chains of a problem and write its file; stops where R-hat says that they have not met."""
    problem, rng = PROBLEMS[name], np.random.default_rng(1)
    x, y, known = data(problem)
    log_density = posterior(problem, jnp.array(x), jnp.array(y), known)
    chains, diverged = [], 0
    for key in jax.random.split(jax.random.key(0), CHAINS):
        positions, count = nuts(log_density, prior_draw(problem, rng), key, problem.draws)
        chains.append(quantities_of(positions, known, x))
        diverged += count
    quantities = {label: summary(np.stack([found[label] for found in chains])) for label in chains[0]}
    if (worst := max(found["r_hat"] for found in quantities.values())) > LARGEST_R_HAT:
        sys.exit(f"{name}: R-hat is {worst:.3f}; take more draws")
    coordinates = "latent values integrated out" if problem.likelihood == "gaussian" else "whitened latent values"
    settings = {
        "problem": problem._asdict(),
        "sampler": f"NUTS, {coordinates}, dense mass, target acceptance {ACCEPTANCE}",
        "versions": {library: version(library) for library in ("blackjax", "jax", "arviz", "numpy")},
        "chains": CHAINS,
        "warm_up": WARMUP,
        "divergent": diverged,
        "script": "bench/reference.py",
    }
    held = {part: value.tolist() for part, value in known.items()}
    found = {"settings": settings, "x": x.tolist(), "y": y.tolist(), "held": held, "quantities": quantities}
    FOLDER.mkdir(parents=True, exist_ok=True)
    (FOLDER / f"{name}.json").write_text(_text(found))
    print(f"{name}: divergent {diverged}, R-hat {worst:.4f}")
    for label, values in list(quantities.items())[: len(problem.psi)]:
        print(" ", label, {part: value for part, value in values.items() if part != "quantiles"})


def _text(found: dict[str, Any]) -> str:
    """JSON with a line a quantity."""
    lines = [f"    {json.dumps(label)}: {json.dumps(values)}" for label, values in found["quantities"].items()]
    head = [f"  {json.dumps(part)}: {json.dumps(found[part])},\n" for part in ("settings", "x", "y", "held")]
    return "{\n" + "".join(head) + '  "quantities": {\n' + ",\n".join(lines) + "\n  }\n}\n"


if __name__ == "__main__":
    for chosen in sys.argv[1:] or PROBLEMS:
        make(chosen)
