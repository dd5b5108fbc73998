"""Statistics for comparing methods over data sets, and two methods over the splits of one data set.

A table of losses has one row a data set and one column a method, lower is better (`Metric.loss` turns scores so).
Missing cells are never imputed: `complete` first drops whole rows or columns, and says which.
"""

from dataclasses import dataclass
from itertools import combinations

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike
from scipy import stats

from gpbench.errors import UserError


@dataclass(frozen=True)
class Complete:
    """The complete part of a table of losses and the names that were dropped to reach it."""

    losses: pd.DataFrame
    dropped_datasets: list[str]
    dropped_methods: list[str]


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


def complete(losses: pd.DataFrame) -> Complete:
    """Drop the data set or method with the largest share of missing cells until none is missing.

    On equal shares the data set goes, for methods are what is compared.
    """
    kept = losses
    while kept.isna().to_numpy().any():
        missing = kept.isna()
        datasets, methods = missing.mean(axis=1), missing.mean(axis=0)
        by_row = datasets.max() >= methods.max()
        kept = kept.drop(index=datasets.idxmax()) if by_row else kept.drop(columns=methods.idxmax())
    dropped_datasets = [name for name in losses.index if name not in kept.index]
    return Complete(kept, dropped_datasets, [name for name in losses.columns if name not in kept.columns])


def ranks(losses: pd.DataFrame) -> pd.DataFrame:
    """Rank of each method on each data set, 1 is best, ties share their mean rank."""
    _check(losses)
    return losses.rank(axis=1, method="average")


def friedman(losses: pd.DataFrame) -> Friedman:
    """Do k methods rank alike on n data sets? Chi-squared (corrected for ties) and its refinement F.

    F = (n - 1) chi^2 / (n (k - 1) - chi^2), k - 1 and (k - 1)(n - 1) degrees of freedom. UserError for fewer than
    three methods or two data sets. Source: Demsar (2006), section 3.2.2.
    """
    _check(losses, datasets=2, methods=3)
    n, k = losses.shape
    if (ranks(losses).nunique(axis=1) == 1).all():
        return Friedman(0.0, 1.0, 0.0, 1.0)
    chi_squared, p_chi_squared = stats.friedmanchisquare(*losses.to_numpy().T)
    left = n * (k - 1) - chi_squared
    # every data set ranks the methods alike where nothing is left
    f = (n - 1) * chi_squared / left if left > 1e-9 else np.inf
    return Friedman(float(chi_squared), float(p_chi_squared), float(f), float(stats.f.sf(f, k - 1, (k - 1) * (n - 1))))


def signed_rank_test(difference: ArrayLike) -> float:
    """Exact two-sided p-value of Wilcoxon's signed-rank test, valid with ties: min(1, 2 min(P(W <= w), P(W >= w))).

    Zeros are left out (Wilcoxon's rule). ValueError for NaN.
    """
    return float(min(1.0, 2 * min(_signed_rank_tails(difference))))


def signed_rank_less(difference: ArrayLike) -> float:
    """Exact one-sided p-value P(W <= w) of the signed-rank test, small where differences lie below zero; else as
    `signed_rank_test`."""
    return _signed_rank_tails(difference)[0]


def _signed_rank_tails(difference: ArrayLike) -> tuple[float, float]:
    """P(W <= w) and P(W >= w) of the sum w of the ranks of the positive differences.

    Under the null each of the 2^n signs is equally likely given the ranks of |difference|; the distribution of the rank
    sum is built by adding one rank at a time.
    """
    difference = np.asarray(difference, float)
    if np.isnan(difference).any():
        raise ValueError("differences must not be NaN")
    difference = difference[difference != 0]
    if len(difference) == 0:
        return 1.0, 1.0
    # doubled, because ties have ranks that end in one half
    doubled = np.rint(2 * stats.rankdata(np.abs(difference))).astype(int)
    probability = np.zeros(doubled.sum() + 1)
    probability[0] = 1.0
    for rank in doubled:
        shifted = np.concatenate([np.zeros(rank), probability[:-rank]])
        probability = 0.5 * (probability + shifted)
    observed = doubled[difference > 0].sum()
    return float(probability[: observed + 1].sum()), float(probability[observed:].sum())


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
    Infinite losses rank last; two of them tie.
    """
    _check(losses)
    rows = []
    for a, b in combinations(losses.columns, 2):
        difference = _difference(losses[a], losses[b])
        rows.append(
            {
                "a": a,
                "b": b,
                "wins": int((difference < 0).sum()),
                "ties": int((difference == 0).sum()),
                "losses": int((difference > 0).sum()),
                "median_difference": float(np.median(difference)),
                "p": signed_rank_test(difference),
            }
        )
    table = pd.DataFrame(rows)
    table["p_holm"] = holm(table["p"])
    table["reject"] = table["p_holm"] <= alpha
    return table


def min_datasets(k: int, alpha: float = 0.05) -> int:
    """Smallest number n of data sets with k (k - 1)/2 * 2/2^n <= alpha.

    2/2^n is the smallest p-value of the exact two-sided signed-rank test, so with fewer data sets Holm's correction
    over all pairs of k methods can reject nothing, whatever the scores.
    """
    pairs = k * (k - 1) // 2
    n = 1
    while pairs * 2.0 ** (1 - n) > alpha:
        n += 1
    return n


def power_statement(k: int, n: int, alpha: float = 0.05) -> str:
    """One sentence: whether n data sets can show any pair of k methods to differ."""
    needed, pairs = min_datasets(k, alpha), k * (k - 1) // 2
    rule = f"With {k} methods ({pairs} pairs), exact two-sided Wilcoxon tests with Holm's correction at {alpha:g}"
    if n < needed:
        return f"{rule} need at least {needed} data sets to reject anything; {n} cannot suffice, whatever the scores."
    return f"{rule} need at least {needed} data sets to reject anything; {n} suffice where a difference is consistent."


def rank_intervals(
    losses: pd.DataFrame, rng: np.random.Generator, level: float = 0.95, resamples: int = 10_000
) -> pd.DataFrame:
    """Percentile bootstrap over data sets of the mean ranks.

    Index: methods, best first; columns mean_rank, lower, upper.
    """
    table = ranks(losses)
    drawn = rng.integers(len(table), size=(resamples, len(table)))
    weights = np.stack([np.bincount(row, minlength=len(table)) for row in drawn]) / len(table)
    lower, upper = np.quantile(weights @ table.to_numpy(), [0.5 - level / 2, 0.5 + level / 2], axis=0)
    intervals = pd.DataFrame({"mean_rank": table.mean(axis=0), "lower": lower, "upper": upper}, index=table.columns)
    return intervals.sort_values("mean_rank", kind="stable")


def paired_difference(a: ArrayLike, b: ArrayLike, test_fraction: float, level: float = 0.95) -> PairedDifference:
    """Corrected resampled t interval of the mean of a - b over random splits `[n]` of one data set.

    mean +- t_{n-1} sqrt((1/n + n_test/n_train) s^2) with n_test/n_train = test_fraction/(1 - test_fraction): training
    sets overlap, so splits are not independent. Splits that either lacks (NaN) are left out and n counts the rest.
    Source: Nadeau and Bengio (2003). UserError for fewer than two common splits or an infinite loss.
    """
    if not 0 < test_fraction < 1:
        raise UserError(f"test fraction {test_fraction} must lie strictly between 0 and 1")
    difference = _difference(a, b)
    difference = difference[~np.isnan(difference)]
    n = len(difference)
    if np.isinf(difference).any():
        raise UserError("a paired interval needs finite losses: compare ranks instead")
    if n < 2:
        raise UserError(f"a paired interval needs at least 2 splits that both methods finished, got {n}: run more")
    mean = float(difference.mean())
    error = np.sqrt((1 / n + test_fraction / (1 - test_fraction)) * difference.var(ddof=1))
    half = float(stats.t.ppf(0.5 + level / 2, n - 1) * error)
    p = 2 * stats.t.sf(abs(mean) / error, n - 1) if error > 0 else float(mean == 0)
    return PairedDifference(mean, mean - half, mean + half, float(p), n)


def _difference(a: ArrayLike, b: ArrayLike) -> np.ndarray:
    """a - b, with equal infinities as a tie."""
    a, b = np.asarray(a, float), np.asarray(b, float)
    return np.subtract(a, b, out=np.zeros(len(a)), where=a != b)


def _check(losses: pd.DataFrame, datasets: int = 1, methods: int = 2) -> None:
    if losses.isna().to_numpy().any():
        raise UserError("the table of losses has missing cells: restrict it with `complete` first")
    if len(losses) < datasets or len(losses.columns) < methods:
        raise UserError(
            f"{len(losses)} complete data sets x {len(losses.columns)} methods; "
            f"this statistic needs at least {datasets} x {methods}: run more cells"
        )
