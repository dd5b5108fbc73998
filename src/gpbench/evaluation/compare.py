"""Statistics for comparing methods over data sets, and two methods over the splits of one data set.

A table of losses has one row a data set and one column a method, lower is better (`Metric.loss` turns scores so).
Missing cells are never imputed: `complete` first drops whole rows or columns.
"""

import itertools
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike
from scipy.special import chdtrc, fdtrc, stdtr, stdtrit  # scipy.stats costs a second to import

from gpbench.errors import UserError, count

SAME = 1e-12  # of their mean: a spread of numbers that differ by rounding alone
ROUNDING = 1e-9  # of a loss: means of the same errors differ by their order, and records keep ten digits
LOST = 1e-6  # of a difference of losses, which is known to fewer digits than they


@dataclass(frozen=True)
class Friedman:
    """Tests that all methods rank alike: chi-squared (Friedman 1937) and its F refinement (Iman and Davenport 1980)."""

    chi_squared: float
    p_chi_squared: float
    f: float
    p_f: float


@dataclass(frozen=True)
class PairedDifference:
    """Mean of a - b over n splits with an interval and the two-sided p-value of no difference."""

    mean: float
    lower: float
    upper: float
    p: float
    n: int


def complete(losses: pd.DataFrame) -> pd.DataFrame:
    """The part of a table without missing cells.

    The data set or method with the largest share of missing cells is dropped until none is missing; on equal shares the
    data set, because the methods are what is compared."""
    while (missing := losses.isna()).to_numpy().any():
        datasets, methods = missing.mean(axis=1), missing.mean(axis=0)
        by_row = datasets.max() >= methods.max()
        losses = losses.drop(index=datasets.idxmax()) if by_row else losses.drop(columns=methods.idxmax())
    return losses


def ranks(losses: pd.DataFrame) -> pd.DataFrame:
    """Rank of each method on each data set, 1 is best; ties, also those up to `ROUNDING`, share their mean rank."""
    _check(losses)
    places = _places(losses.to_numpy(float).T, ROUNDING).T
    return pd.DataFrame(places, losses.index, losses.columns).rank(axis=1, method="average")


def _places(values: np.ndarray, tolerance: float) -> np.ndarray:
    """Places 0, 1, ... of the values `[n, m]` of each column in their order; one that exceeds the one before by less
    than the tolerance, relative, shares its place."""
    order = np.argsort(values, axis=0)
    ordered = np.take_along_axis(values, order, axis=0)
    before = ordered[:-1]
    above = ordered[1:] > before + tolerance * np.where(np.isfinite(before), np.abs(before), 0)
    places = np.zeros(values.shape)
    np.put_along_axis(places, order[1:], above.cumsum(axis=0), axis=0)
    return places


def friedman(losses: pd.DataFrame) -> Friedman:
    """Do k methods rank alike on n data sets? Chi-squared (corrected for ties) and its refinement F.

    chi^2 = (k - 1) sum_j (sum_i c_ij)^2 / sum_ij c_ij^2 of the centred ranks c_ij, with k - 1 degrees of freedom;
    F = (n - 1) chi^2 / (n (k - 1) - chi^2), with k - 1 and (k - 1)(n - 1). UserError for fewer than three methods or
    two data sets. Source: demsar2006, section 3.2.2."""
    _check(losses, datasets=2, methods=3)
    n, k = losses.shape
    centred = ranks(losses).to_numpy() - (k + 1) / 2
    if not centred.any():
        return Friedman(0.0, 1.0, 0.0, 1.0)
    chi_squared = float((k - 1) * (centred.sum(axis=0) ** 2).sum() / (centred**2).sum())
    left = n * (k - 1) - chi_squared
    # the denominator is zero where every data set ranks the methods alike
    f = (n - 1) * chi_squared / left if left > 1e-9 else np.inf
    p_f = float(fdtrc(k - 1, (k - 1) * (n - 1), f))
    return Friedman(chi_squared, float(chdtrc(k - 1, chi_squared)), float(f), p_f)


def signed_rank_test(differences: ArrayLike) -> float | np.ndarray:
    """Exact two-sided p-value of Wilcoxon's signed-rank test, valid with ties: min(1, 2 min(P(W <= w), P(W >= w))).

    differences `[n]`, or `[n, m]` for m tests at once. Zeros are left out (Wilcoxon's rule). ValueError for NaN."""
    at_most, at_least = _signed_rank_tails(differences)
    return np.minimum(1.0, 2 * np.minimum(at_most, at_least))


def signed_rank_less(differences: ArrayLike) -> float | np.ndarray:
    """Exact one-sided p-value P(W <= w) of the signed-rank test, small where differences lie below zero; else as
    `signed_rank_test`."""
    return _signed_rank_tails(differences)[0]


def _signed_rank_tails(differences: ArrayLike) -> tuple[float | np.ndarray, float | np.ndarray]:
    """P(W <= w) and P(W >= w) of the sum w of the ranks of the positive differences."""
    differences = np.asarray(differences, float)
    if np.isnan(differences).any():
        raise ValueError("differences must not be NaN")
    zero = differences == 0
    # ranks among the nonzero differences (zeros come first), doubled because ties have ranks that end in one half
    places = _places(np.abs(differences).reshape(len(differences), -1), LOST)
    among_all = pd.DataFrame(places).rank().to_numpy().reshape(differences.shape)
    doubled = np.rint(2 * (among_all - zero.sum(axis=0))).astype(int)
    doubled[zero] = 0
    observed = np.where(differences > 0, doubled, 0).sum(axis=0)
    columns = zip(np.sort(doubled, axis=0).reshape(len(doubled), -1).T, observed.ravel(), strict=True)
    tails = [tuple(tail[w] for tail in _rank_sum_tails(tuple(ranks.tolist()))) for ranks, w in columns]
    at_most, at_least = np.reshape(tails, (*observed.shape, 2)).T
    return at_most[()], at_least[()]


@lru_cache(maxsize=64)
def _rank_sum_tails(ranks: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    """P(W <= w) and P(W >= w) for w = 0, 1, ..., of the sum W of those ranks (integers) whose sign is positive.

    Under the null each of the 2^n signs is equally likely given the ranks; the distribution of the sum is built by
    adding one rank at a time. A rank of 0 changes nothing."""
    probability = np.zeros(sum(ranks) + 1)
    probability[0] = 1.0
    for rank in ranks:
        shifted = np.concatenate([np.zeros(rank), probability[: len(probability) - rank]])
        probability = 0.5 * (probability + shifted)
    return np.cumsum(probability), np.cumsum(probability[::-1])[::-1]


def holm(p: ArrayLike) -> np.ndarray:
    """Holm's step-down adjusted p-values: running maximum of (m - i) p_(i), i = 0..m-1, at most 1 (Holm 1979)."""
    p = np.asarray(p, float)
    order = np.argsort(p, kind="stable")
    adjusted = np.empty_like(p)
    adjusted[order] = np.minimum(np.maximum.accumulate(p[order] * np.arange(len(p), 0, -1)), 1.0)
    return adjusted


def wilcoxon_holm(losses: pd.DataFrame, alpha: float = 0.05) -> pd.DataFrame:
    """Exact signed-rank test of every pair over data sets, Holm-corrected over all pairs.

    Columns a, b, wins, ties, losses (of a against b), median_difference (a - b), p, p_holm, reject (p_holm <= alpha).
    Infinite losses rank last; two of them tie."""
    _check(losses)
    pairs = list(itertools.combinations(range(len(losses.columns)), 2))
    first, second = np.transpose(pairs)
    values, names = losses.to_numpy(float), losses.columns
    difference = _difference(values[:, first], values[:, second])
    columns = {
        "a": names[first],
        "b": names[second],
        "wins": (difference < 0).sum(axis=0),
        "ties": (difference == 0).sum(axis=0),
        "losses": (difference > 0).sum(axis=0),
        "median_difference": np.median(difference, axis=0),
        "p": signed_rank_test(difference),
    }
    table = pd.DataFrame(columns)
    table["p_holm"] = holm(table["p"])
    table["reject"] = table["p_holm"] <= alpha
    return table


def min_datasets(k: int, alpha: float = 0.05) -> int:
    """Smallest number n of data sets with k (k - 1)/2 * 2/2^n <= alpha.

    2/2^n is the smallest p-value of the exact two-sided signed-rank test, so with fewer data sets Holm's correction
    over all pairs of k methods can reject nothing, whatever the scores."""
    return next(n for n in itertools.count(1) if k * (k - 1) // 2 * 2.0 ** (1 - n) <= alpha)


def power_statement(k: int, n: int, alpha: float = 0.05) -> str:
    """One sentence: whether n data sets can show any pair of k methods to differ."""
    needed, pairs = min_datasets(k, alpha), count(k * (k - 1) // 2, "pair")
    rule = f"With {k} methods ({pairs}), exact two-sided Wilcoxon tests with Holm's correction at {alpha:g}"
    verdict = "cannot suffice, whatever the scores" if n < needed else "suffice where a difference is consistent"
    return f"{rule} need at least {needed} data sets to reject anything; {n} {verdict}."


def rank_intervals(losses: pd.DataFrame, level: float = 0.95, resamples: int = 10_000) -> pd.DataFrame:
    """Percentile bootstrap over data sets of the mean ranks, the same each time.

    Index: methods, best first; columns mean_rank, lower, upper. The interval is too short where data sets are few: of
    seven methods that are alike it held the expected rank in .15, .63, .84, .88, .92 and .92 of cases at 1, 2, 3, 5, 6
    and 11 data sets. Below `min_datasets(2)` it is left out (NaN)."""
    table, rng = ranks(losses), np.random.default_rng(0)
    # how often a resample holds each data set, as a share of it
    weights = rng.multinomial(len(table), np.full(len(table), 1 / len(table)), size=resamples) / len(table)
    lower, upper = np.quantile(weights @ table.to_numpy(), [0.5 - level / 2, 0.5 + level / 2], axis=0)
    if len(table) < min_datasets(2):
        lower = upper = np.nan
    intervals = pd.DataFrame({"mean_rank": table.mean(axis=0), "lower": lower, "upper": upper}, index=table.columns)
    return intervals.sort_values("mean_rank", kind="stable")


def paired_difference(a: ArrayLike, b: ArrayLike, test_fraction: float, level: float = 0.95) -> PairedDifference:
    """Corrected resampled t interval of the mean of a - b over random splits `[n]` of one data set.

    mean +- t_{n-1} error, with the error of `paired_mean` (nadeau2003); UserErrors as there."""
    mean, error, n = paired_mean(a, b, test_fraction)
    half = float(stdtrit(n - 1, 0.5 + level / 2) * error)
    p = 2 * stdtr(n - 1, -abs(mean) / error) if error > 0 else 1.0
    return PairedDifference(mean, mean - half, mean + half, float(p), n)


def paired_mean(a: ArrayLike, b: ArrayLike, test_fraction: float) -> tuple[float, float, int]:
    """Mean of a - b over n random splits of one data set, its standard error, and n.

    error^2 = (1/n + n_test/n_train) s^2 with n_test/n_train = test_fraction/(1 - test_fraction): training sets overlap,
    so splits are not independent; a test fraction of 0 stands for data sets that are. Splits that either lacks (NaN)
    are left out and n counts the rest. Where all differ by the same, and not by zero, as errors of few rows may on few
    splits, the error is infinite: nothing says how far the next one lies. Source: nadeau2003.
    UserError for a test fraction outside [0, 1), fewer than two common splits, or an infinite loss."""
    if not 0 <= test_fraction < 1:
        raise UserError(f"test fraction {test_fraction} must lie in [0, 1)")
    losses = np.array([a, b], dtype=float)
    losses = losses[:, ~np.isnan(losses).any(axis=0)]
    difference, n = _difference(*losses), losses.shape[1]
    if np.isinf(losses).any():
        raise UserError("a paired interval needs finite losses: compare ranks instead")
    if n < 2:
        raise UserError(f"a paired interval needs at least 2 splits that both methods finished, got {n}: run more")
    error = np.sqrt((1 / n + test_fraction / (1 - test_fraction)) * difference.var(ddof=1))
    mean = float(difference.mean())
    return mean, float(error) if error > SAME * abs(mean) or mean == 0 else np.inf, n


def _difference(a: ArrayLike, b: ArrayLike) -> np.ndarray:
    """a - b, zero for equal infinities and for what differs by `ROUNDING` alone."""
    a, b = np.asarray(a, float), np.asarray(b, float)
    return np.subtract(a, b, out=np.zeros(a.shape), where=~np.isclose(a, b, rtol=ROUNDING, atol=0))


def _check(losses: pd.DataFrame, datasets: int = 1, methods: int = 2) -> None:
    if losses.isna().to_numpy().any():
        raise UserError("the table of losses has missing cells: restrict it with `complete` first")
    if len(losses) < datasets or len(losses.columns) < methods:
        shape = f"{len(losses)} complete data sets x {len(losses.columns)} methods"
        raise UserError(f"{shape}; this statistic needs at least {datasets} x {methods}: run more cells")
