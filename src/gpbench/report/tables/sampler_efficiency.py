"""Effective sample sizes and speed of convergence of samplers (filippone2013).

For studies of kind `sample`, in which nothing is predicted. `prefixes.parquet` has the moments of every sampled
variable over the first draws of each chain: fit_id, iteration, quantity, mean, variance.
"""

from itertools import combinations, pairwise

import numpy as np
import pandas as pd
from scipy import stats

from gpbench.report.significance.comparisons import ALPHA
from gpbench.report.tables.render import Table, number
from gpbench.report.view import UNMIXED, View
from gpbench.sampling import diagnostics

CELL = ["dataset", "method"]
SPLIT = [*CELL, "split"]
SCORES = (
    *("ess_min", "ess_percent", "ess_per_cubic", "ess_per_second", "acceptance_latents", "acceptance_theta"),
    *("cubic", "quadratic", "iterations", "r_hat", "r_hat_classic", "ess_bulk", "ess_tail"),
    *("ess_bulk_per_cubic", "ess_bulk_per_second", "mcse"),
)
LAST = 4  # number of checkpoints of R-hat that are printed; the CSV has all
PAIR = ["faster", "slower", "median_faster", "median_slower", "p"]
Pair = tuple[str, str, float, float, float]
UPPER = 0.975
MANY = 1e9  # stands for infinitely many degrees of freedom, which SciPy's quantiles do not accept


def scored(view: View) -> pd.DataFrame:
    """Finished chains with all SCORES, NaN where a fit has none; empty for studies without samples.

    A sampler without O(n^3) operations has no ESS per operation."""
    fits = view.done.reindex(columns=dict.fromkeys([*view.done.columns, *SCORES])).astype(dict.fromkeys(SCORES, float))
    fits = fits[fits["ess_min"].notna()]
    per_operation = ["ess_per_cubic", "ess_bulk_per_cubic"]
    return fits.assign(**{name: fits[name].where(np.isfinite(fits[name])) for name in per_operation})


def shrinkage(view: View) -> pd.DataFrame:
    """R-hat of the slowest variable of every split over the first draws of its chains, and its upper limit.

    Columns dataset, method, split, iteration, r_hat, upper; without splits of one chain, and where none moves."""
    prefixes, rows = view.probe("prefixes"), []
    for where, chains in prefixes.groupby(SPLIT, sort=False) if len(prefixes) else ():
        for t, moments in chains.sort_values("replica", kind="stable").groupby("iteration"):
            shape = moments["replica"].nunique(), -1  # a chain may be shorter
            mean, variance = (moments[name].to_numpy().reshape(shape) for name in ("mean", "variance"))
            r_hat = diagnostics.gelman_rubin(mean, variance, t) if len(mean) > 1 else np.array([np.nan])
            if not np.isnan(r_hat).all():
                worst = np.nanargmax(r_hat)
                rows.append([*where, t, r_hat[worst], upper_limit(r_hat[worst], variance[:, worst], t)])
    return pd.DataFrame(rows, columns=[*SPLIT, "iteration", "r_hat", "upper"])


def upper_limit(r_hat: float, variance: np.ndarray, draws: int) -> float:
    """97.5 % upper limit of `gelman_rubin` of m chains with variances `[m]`: its part b/W times the quantile of F with
    m - 1 and v degrees of freedom, v = 2 W^2 / var(W). Source: Gelman and Rubin (1992)."""
    m, within, share = len(variance), variance.mean(), (draws - 1) / draws
    with np.errstate(divide="ignore", invalid="ignore"):
        freedom = min(2 * m * within**2 / variance.var(ddof=1), MANY)
    return float(np.sqrt(share + stats.f.ppf(UPPER, m - 1, freedom) * (r_hat**2 - share)))


def efficiency(view: View) -> Table:
    """Minimum ESS, R-hat, acceptance and cost of every cell: mean and sd over its chains, median R-hat over splits."""
    fits = scored(view)
    checks = shrinkage(view).pivot_table(index=CELL, columns="iteration", values="r_hat", aggfunc="median")
    checks = checks.rename(columns=lambda draws: f"r_hat_first_{int(draws)}_kept").rename_axis(columns=None)
    cells = fits.groupby(CELL, sort=False)
    data = cells[list(SCORES)].agg(["mean", "std"])
    data.columns = [name if kind == "mean" else f"{name}_sd" for name, kind in data.columns]
    failing = fits["split"].where(fits["status"] == UNMIXED).groupby([fits["dataset"], fits["method"]]).nunique()
    data = data.assign(chains=cells.size(), splits=cells["split"].nunique(), failing=failing)
    data = data.join(checks).reset_index().merge(view.progress[[*CELL, "expected"]], on=CELL)
    shown = pd.DataFrame([_row(view, row, list(checks)) for _, row in data.iterrows()])
    note = (
        "Mean ± standard deviation over all chains of all splits. ESS: by Geyer's initial monotone sequence of each "
        "chain, the smallest over all sampled variables, in draws. R-hat: Gelman and Rubin's, over more and more of "
        "the first draws of the chains of a split, for its slowest variable, ∞ where each stays at one value; median. "
        "Acceptance: of latent values / of parameters. Operations: factorisations, inversions and products of n x n "
        "matrices per iteration, by which ESS is divided; - where there are none. Seconds: training time, which all "
        "chains of a batch share, including burn-in. Bulk and tail ESS (vehtari2021): all chains of a split together. "
        "✗: splits whose chains fail the budget's R-hat limit. MCSE: the largest Monte Carlo standard error of a mean "
        "of all chains of a split, in standard deviations of the draws."
    )
    return Table(data, shown, "Efficiency of samplers", note)


def _row(view: View, cell: pd.Series, checkpoints: list[str]) -> dict[str, str]:
    percent = [cell[f"acceptance_{part}"] for part in ("latents", "theta")]
    known = [number(cell[name]) for name in checkpoints if not np.isnan(cell[name])]
    absent = f" of {cell['expected']} splits" * (cell["splits"] < cell["expected"])
    failing = f" ✗ {cell['failing']}/{cell['splits']}" if cell["failing"] else ""
    return {
        "data set": cell["dataset"],
        "method": view.labels[cell["method"]],
        "splits x chains": f"{cell['splits']} x {cell['chains'] / cell['splits']:.3g}" + absent,
        "min ESS": _spread(cell, "ess_min") + failing,
        "% of transitions": number(cell["ess_percent"]),
        "R-hat": ", ".join(known[-LAST:]) or "-",
        "acceptance %": " / ".join("-" if np.isnan(value) else f"{100 * value:.0f}" for value in percent),
        "O(n³) operations": _spread(cell, "cubic"),
        "ESS per operation": _spread(cell, "ess_per_cubic"),
        "ESS per second": _spread(cell, "ess_per_second"),
        "bulk / tail ESS": f"{number(cell['ess_bulk'])} / {number(cell['ess_tail'])}",
        "MCSE": number(cell["mcse"], 2),
    }


def _spread(cell: pd.Series, name: str) -> str:
    mean, sd = cell[name], cell[f"{name}_sd"]
    return number(mean) + (f" ± {number(sd, 2)}" if np.isfinite(sd) else "")


def convergence_order(view: View) -> Table:
    """Methods by R-hat at the last checkpoint, fastest first; `|` precedes a method that is significantly slower."""
    checkpoints = shrinkage(view)
    codes = {method: i for i, method in enumerate(view.methods, 1)}
    data, shown = [], []
    for dataset in view.datasets:
        chains = checkpoints[checkpoints["dataset"] == dataset]
        last = chains[chains["iteration"] == chains["iteration"].max()]
        medians = last.groupby("method")["r_hat"].median().reindex(view.methods).dropna().sort_values(kind="stable")
        by_method = {method: last.loc[last["method"] == method, "r_hat"] for method in medians.index}
        shorter = [str(codes[method]) for method in chains["method"].unique() if method not in by_method]
        pairs = [
            (a, b, medians[a], medians[b], float(stats.mannwhitneyu(x, y).pvalue))
            for (a, x), (b, y) in combinations(by_method.items(), 2)
        ]
        data += [(dataset, *pair) for pair in pairs]
        r_hats, kept = ", ".join(map(number, medians)) or "-", str(int(last["iteration"].max())) if len(last) else "-"
        splits = str(max(map(len, by_method.values()), default=0))
        shown.append([dataset, _order(by_method, pairs, codes), r_hats, kept, ", ".join(shorter) or "-", splits])
    named = ", ".join(f"{code} {view.labels[method]}" for method, code in codes.items())
    note = (
        f"{named}. Fastest first, by the median over splits of the R-hat of the slowest variable after the kept draws, "
        "printed in the same order; `|`: significantly slower than the method before it, by a two-sided Mann-Whitney "
        f"test over splits at {ALPHA:g} (not corrected for the number of pairs), which rejects from 4 splits of both "
        "on. Methods with fewer draws are left out and listed as shorter chains. The CSV has every pair."
    )
    head = ["data set", "order", "R-hat", "kept draws", "shorter chains", "splits"]
    data, table = pd.DataFrame(data, columns=["dataset", *PAIR]), pd.DataFrame(shown, columns=head)
    return Table(data, table, "Order of convergence", note)


def _order(by_method: dict[str, pd.Series], pairs: list[Pair], codes: dict[str, int]) -> str:
    """'2|1,3': codes of methods, fastest first; `|` precedes one that is significantly slower than the one before."""
    p_value = {(a, b): p for a, b, *_, p in pairs}
    marks = ["", *("," if p_value[pair] > ALPHA else "|" for pair in pairwise(by_method))]
    return "".join(f"{mark}{codes[method]}" for mark, method in zip(marks, by_method, strict=False)) or "-"
