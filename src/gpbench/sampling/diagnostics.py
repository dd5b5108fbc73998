"""Mixing and effective sample sizes of Markov chains: the rank-normalised diagnostics of vehtari2021, by ArviZ, and the
older ones that papers print, Geyer's effective sample size of a chain and R-hat of Gelman and Rubin.

A fit by a Markov chain stores, for each kept state (`gpbench.study.fitting.chain_draws`), the predictive mean and the
log density at some test rows, which are judged, and the covariance parameters, which are only reported: the posterior
of a deep GP has many modes (signs and orders of hidden units) with the same predictions.

R-hat of the whole is the worst of all rows. With many rows that is strict: even independent draws reach about 1.04 in
the worst of 100 quantities for 4 chains of 64 draws, 1.01 for 4 of 256.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence

import numpy as np

FEWEST_DRAWS = 4
CHECKPOINTS = (1_000, 2_000, 5_000, 10_000, 20_000)
"""Draws after which R-hat of Gelman and Rubin is printed by name (filippone2013, filippone2014)."""
JUDGED = ("mean", "log_density")
ROWS = "rows"


def summary(draws: np.ndarray) -> dict[str, np.ndarray]:
    """Split R-hat and effective sample sizes of every quantity, each `[*quantities]`.

    draws `[chains, draws, *quantities]`. `r_hat` (near 1 where the chains agree; the halves of a single chain count as
    two chains), `ess_bulk` (of the location) and `ess_tail` (of the 5 % and 95 % quantiles) in draws, summed over
    chains. NaN where a draw is NaN or chains have fewer than 4 draws, R-hat also for a single chain of fewer than 8
    and where all draws are equal; infinite, or huge by rounding, where no chain moves and they differ (vehtari2021)."""
    draws = np.asarray(draws, dtype=np.float64)
    if draws.shape[1] < FEWEST_DRAWS or not draws.size:
        return {name: np.full(draws.shape[2:], np.nan) for name in ("r_hat", "ess_bulk", "ess_tail")}
    # of a single chain the halves, because ArviZ refuses to compare a chain with itself
    half = draws.shape[1] // 2
    several = draws if len(draws) > 1 else np.concatenate([draws[:, :half], draws[:, -half:]])
    is_long = several.shape[1] >= FEWEST_DRAWS
    return {
        "r_hat": _each("rhat", several, "rank") if is_long else np.full(draws.shape[2:], np.nan),
        "ess_bulk": _each("ess", draws, "bulk"),
        "ess_tail": _each("ess", draws, "tail"),
    }


def monte_carlo_errors(draws: np.ndarray) -> dict[str, np.ndarray]:
    """Monte Carlo standard errors of `mean` and `sd` of every quantity, `[*quantities]` each (vehtari2021).

    draws `[chains, draws, *quantities]`; NaN where chains have fewer than 4 draws."""
    draws = np.asarray(draws, dtype=np.float64)
    if draws.shape[1] < FEWEST_DRAWS or not draws.size:
        return {name: np.full(draws.shape[2:], np.nan) for name in ("mean", "sd")}
    return {name: _each("mcse", draws, name) for name in ("mean", "sd")}


def mixing(chains: Sequence[Mapping[str, np.ndarray]]) -> dict[str, float]:
    """How well the chains of one posterior have mixed; NaN for chains of fewer than 4 draws.

    Each chain has `mean` and `log_density` `[draws, rows, targets]`, covariance parameters `[draws, ...]` under their
    names, and `rows`. `r_hat`, `ess_bulk` and `ess_tail` are the worst over rows of mean and log density, the last
    two at most the number of moves of a chain that mostly stands still; `r_hat_row` and its `_sd` the mean and standard
    deviation over rows of R-hat of the mean (as rossi2021 print it); `r_hat_covariance` and `ess_covariance` the worst
    of the covariance parameters that a chain moves; `mcse` as in `convergence`."""
    judged = _stack(chains, JUDGED)
    # a quantity that is the same in all draws of all chains, such as a probability of 1, has nothing to mix
    moving = (judged != judged[:1, :1]).any((0, 1))
    by_row = summary(judged[:, :, moving])
    of_mean = by_row["r_hat"][: moving[: moving.size // 2].sum()]
    covariance = _stack(chains, [name for name in chains[0] if name not in (*JUDGED, ROWS)])
    reported = summary(covariance[:, :, (covariance != covariance[:, :1]).any((0, 1))])
    return {
        "chains": len(chains),
        "draws": judged.shape[1],
        **_worst(by_row, judged),
        "r_hat_row": _reduced(np.mean, of_mean),
        "r_hat_row_sd": _reduced(np.std, of_mean),
        "r_hat_covariance": _reduced(np.max, reported["r_hat"]),
        "ess_covariance": _reduced(np.min, reported["ess_bulk"]),
        "mcse": largest_error(judged[:, :, moving]),
    }


def geyer_ess(draws: np.ndarray) -> np.ndarray:
    """Effective sample size of every quantity of one chain `[*quantities]`, in draws; draws `[T, *quantities]`.

    T / (1 + 2 sum_k rho_k), the sum cut by the initial monotone sequence: G_m = rho_2m + rho_2m+1 up to the first that
    is not positive, none larger than the one before. At most T log10(T), for chains that alternate; 1 where a quantity
    never moves. Source: Geyer (1992), section 3.3."""
    columns = np.asarray(draws, dtype=np.float64).reshape(len(draws), -1).T
    return np.array([_geyer_ess(column) for column in columns]).reshape(draws.shape[1:])


def _geyer_ess(x: np.ndarray) -> float:
    """`geyer_ess` of one quantity `[T]`."""
    count = len(x)
    if (x == x[0]).all():
        return 1.0
    spectrum = np.fft.rfft(x - x.mean(), 2 ** (2 * count - 1).bit_length())
    covariance = np.fft.irfft(np.abs(spectrum) ** 2)[: count + count % 2]  # past the last lag it is 0
    pairs = covariance.reshape(-1, 2).sum(1) / covariance[0]
    first = np.argmax(pairs <= 0) if (pairs <= 0).any() else len(pairs)
    time = 2 * np.minimum.accumulate(pairs[:first]).sum() - 1
    return count / max(time, 1 / np.log10(count))


def gelman_rubin(mean: np.ndarray, variance: np.ndarray, draws: int) -> np.ndarray:
    """R-hat `[*quantities]` of m chains of T draws from their moments `[m, *quantities]`, variances with ddof 1.

    sqrt(V / W), V = (T-1)/T W + (1 + 1/m) b, W the mean of the variances, b the variance of the means. NaN for a single
    chain and where nothing moves. Source: Gelman and Rubin (1992), without their factor for the degrees of freedom."""
    if len(mean) < 2:
        return np.full(mean.shape[1:], np.nan)
    within, between = variance.mean(0), mean.var(0, ddof=1)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.sqrt((draws - 1) / draws + (1 + 1 / len(mean)) * between / within)


def chain_efficiency(ess: float, transitions: int, cubic: float, seconds: float) -> dict[str, float]:
    """Geyer's ESS of the slowest variable of a chain, as such and in % of its transitions after burn-in, of which not
    all need be kept; both per operation of O(n^3) in a transition, and ESS per second. NaN where there is no cost."""
    each = {"ess_min": ess, "ess_percent": 100 * ess / transitions}
    per_cubic = {name: value / cubic if cubic else np.nan for name, value in each.items()}
    return each | {
        "ess_per_cubic": per_cubic["ess_min"],
        "ess_percent_per_cubic": per_cubic["ess_percent"],
        "ess_per_second": ess / seconds if seconds else np.nan,
    }


def convergence(chains: Sequence[Mapping[str, np.ndarray]], transitions: int | None = None) -> dict[str, float]:
    """How well the sampled variables of the chains of one posterior have mixed; NaN for chains of fewer than 4 draws.

    Each chain has `draws` `[draws, watched]` of some variables, of which `ess_bulk` and `ess_tail` are the worst,
    `every` `[some draws, variables]` of all of them, of which `ess_every` is the worse of both (R-hat is the worst of
    the two), and moments `mean` and `variance` `[checkpoints, variables]` of all of them over the first `iterations`
    `[checkpoints]` draws. `mcse` is the largest Monte Carlo error of a mean of those watched, in standard deviations;
    `r_hat_classic` the worst `gelman_rubin` of all draws, `r_hat_classic_1000` of the first 1000, and so on, where all
    `transitions` after burn-in were kept (None: they were)."""
    draws = np.stack([chain["draws"] for chain in chains])
    watched = _worst(_moving(draws), draws)
    # chains that were stored before every variable was kept have the watched ones alone
    drawn = np.stack([chain.get("every", chain["draws"]) for chain in chains])
    every = _worst(_moving(drawn), drawn)
    mean, variance = (np.stack([chain[name] for chain in chains]) for name in ("mean", "variance"))
    iterations = chains[0]["iterations"].tolist()
    by_variable = {t: gelman_rubin(mean[:, k], variance[:, k], t) for k, t in enumerate(iterations)}
    # NaN are the variables that do not move
    classic = {t: _reduced(np.max, r_hat[~np.isnan(r_hat)]) for t, r_hat in by_variable.items()}
    return {
        "chains": len(chains),
        "draws": draws.shape[1],
        **watched,
        "r_hat": np.max([watched["r_hat"], every["r_hat"]]).item(),
        "ess_every": np.min([every["ess_bulk"], every["ess_tail"]]).item(),
        "mcse": largest_error(draws),
        "r_hat_classic": classic[iterations[-1]],
        **{
            f"r_hat_classic_{t}": classic[t]
            for t in CHECKPOINTS
            if t in classic and transitions in (None, len(draws[0]))
        },
    }


def largest_error(draws: np.ndarray) -> float:
    """The largest Monte Carlo error of a mean among quantities that move, in their sds; draws as in `summary`."""
    moving = draws[:, :, (draws != draws[:1, :1]).any((0, 1))].astype(np.float64)
    return _reduced(np.max, monte_carlo_errors(moving)["mean"] / moving.std((0, 1)))


def _moving(draws: np.ndarray) -> dict[str, np.ndarray]:
    """`summary` of the quantities that a chain moves."""
    return summary(draws[:, :, (draws != draws[:1, :1]).any((0, 1))])


def _worst(by_quantity: Mapping[str, np.ndarray], draws: np.ndarray) -> dict[str, float]:
    """A `summary` of the worst quantity; chains that mostly stand still have no more effective draws than moves."""
    moves = (draws[:, 1:] != draws[:, :-1]).any(-1)
    most = moves.sum() if 2 * moves.sum() < moves.size else np.inf
    worst = {name: _reduced(np.max if name == "r_hat" else np.min, values) for name, values in by_quantity.items()}
    return worst | {name: float(np.minimum(worst[name], most)) for name in ("ess_bulk", "ess_tail")}


def _reduced(function: Callable[[np.ndarray], float], values: np.ndarray) -> float:
    """function(values), NaN where a value is NaN or there are none."""
    return float(function(values)) if values.size else np.nan


def _stack(chains: Sequence[Mapping[str, np.ndarray]], names: Sequence[str]) -> np.ndarray:
    """Draws of some quantities side by side, `[chains, draws, quantities]`."""
    draws = len(chains[0][JUDGED[0]])
    parts = [np.stack([chain[name] for chain in chains]).reshape(len(chains), draws, -1) for name in names]
    return np.concatenate([np.empty((len(chains), draws, 0)), *parts], 2)


def _each(function: str, draws: np.ndarray, method: str) -> np.ndarray:
    """A function of ArviZ of every quantity of draws `[chains, draws, *quantities]`; its import is late because slow.

    Without its warning about the next version, and that of more chains than draws, which short runs may have."""
    with warnings.catch_warnings(), np.errstate(divide="ignore", invalid="ignore"):
        warnings.simplefilter("ignore", FutureWarning)
        warnings.filterwarnings("ignore", "More chains", UserWarning)
        import arviz

        return getattr(arviz, function)(arviz.convert_to_dataset({"x": draws}), method=method)["x"].values
