"""The verdict on a published number and ours. The margins were fixed before any number was seen; other rules changed
after that (docs/decisions.md): what is not judged (2026-11-23, -26, -27), whose spread is used and what a run of a
sampler is (2026-11-26, -29), and that splits which authors released are paired (2026-11-27).

In this order:

- `not run: <reason>` where we do not have the method, or no fit of it is finished;
- `other protocol (...)` where our protocol (scaling, scheme of the splits) differs from the published one: the
  difference is printed but not judged;
- `not judged: <reason>` where another study has the published settings, where ours is known to differ from the
  published method (`reason` of the row), where our fits are not done, shorter than published without a record of
  convergence, or chains that have not converged, where an effective sample size is that of a chain shorter than
  `FEWEST_TIMES` autocorrelation times, or where neither side has a spread (equal scores of a few splits are none). How
  chains move (effective sample sizes, acceptance, operations) is judged up to the papers' own R-hat of 1.1, since a
  chain that moves badly is what such a row is about, and R-hat itself always. Fits by gradients that still improve are
  judged at budget `paper` without `steps=`, where ours and the published ones had as many updates;
- `agrees` where the 95 % interval of ours - published lies inside [-margin, margin]: two one-sided tests at 2.5 %, so
  that few splits never make numbers agree;
- `better` or `worse`, by the metric's direction, where the interval lies beyond the margin; `differs` for a metric
  without a direction (acceptance, coverage);
- `inconclusive` otherwise. Every row is judged on its own, without correction for the number of rows.

**Interval.** Welch's, from the standard deviations and numbers of runs of both sides, which may differ (printed as "3
of 20 splits"). Where one side prints no spread or is a single run, the standard deviation of the other side is used: s
sqrt(1/n_a + 1/n_b), with Student's t and the degrees of freedom of the known side (for a single published run this is
the prediction interval). So it is where a side has fewer runs that lie closer together (three easy splits of boston
vary a quarter as much as all twenty), unless Welch's interval is wider: what is easy or hard about a few splits of ours
is part of the difference. Where authors released a score for each split and these are shown to be ours
(published/per_split), two or more that both have are paired instead: mean ± t_{n-1} s / sqrt(n) of ours - theirs.

**Runs.** For predictions, a run is a split (its chains or restarts are averaged first). For samplers (studies of kind
`sample`) it is a chain on a data set. How fast a chain moves differs more between simulated data sets of one kind than
between chains on one (AA on five sets: .26 to .91 % effective draws), so that a data set counts as one run: with the
published spread where the published runs are of several (`data_sets`), else with the spread between ours, the published
number being that of one more; where ours is of one data set, too, the row is `inconclusive`. So are operations that
vary, as sweeps of EP do; a printed formula and a count that is the same in all chains are exact. What all chains of a
data set have in common (R-hat, ESS of all chains, seconds) counts once per data set; of two R-hats of one set each the
interval is that of their numbers of chains, which says nothing of other sets.

**Margin**: `MARGINS`. Effective sample sizes and acceptance rates differ that much between seeds; that of an accuracy
is the same where a paper prints the error; and a printed number may be half a digit from the mean that it rounds.
"""

import math

from scipy.special import stdtrit

from gpbench.evaluation.metrics import METRICS

JUDGED = ("agrees", "better", "worse", "differs", "inconclusive")
VERDICTS = (*JUDGED, "not judged", "other protocol", "not run")
GROUPS = ("predictions", "samplers", "bookkeeping")
"""What a row is about, see `group`; counts of verdicts are never summed over them."""
OPERATIONS = ("iterations", "cubic", "cholesky", "inverse", "product", "quadratic")
NATS = tuple(name for name, metric in METRICS.items() if metric.unit == "nats")
NATS_MARGIN = 0.05
R_HAT_MARGIN = 0.05
RELATIVE_MARGIN = 0.05
CHAIN_MARGIN = 0.10
FEWEST_TIMES, FEWEST_TIMES_ALIKE = 50, 20
"""Autocorrelation times in a chain whose effective sample size is compared, of any length and where both sides have as
many draws: Geyer's estimate is 1.12 times the truth at 50, 1.3 at 20, 1.5 at 10 and 2 at 5 (AR(1), whatever T)."""
MIXED = 1.1  # R-hat up to which it is compared how chains move: what filippone2012 to 2014 asked of theirs
UNDIRECTED = ("acceptance_latents", "acceptance_theta")  # neither more nor less is better, whatever the registry says
OF_A_SET = ("r_hat", "ess_bulk", "ess_tail", "ess_per_second", "seconds", "peak_memory")
"""Prefixes of metrics of all chains of a data set together, which the row of each repeats: seconds are of the batch."""
MARGINS = (
    f"{NATS_MARGIN} nats of MNLL, {R_HAT_MARGIN} of R-hat, {CHAIN_MARGIN:.0%} of the published number for effective "
    f"sample sizes and acceptance rates, {RELATIVE_MARGIN:.0%} of 1 - published for accuracy and area under the ROC "
    f"curve, {RELATIVE_MARGIN:.0%} of the published number for all others; at least half a unit of the last printed "
    "digit"
)


def kind(verdict: str) -> str:
    """The verdict without its reason: one of VERDICTS."""
    return verdict.partition(":")[0].partition(" (")[0]


def group(metric: str) -> str:
    """What a number of a metric is about: predictions, samplers, or else (costs, operations, settings: also those of
    which we have no metric, '') bookkeeping. An R-hat near 1 in both chains says nothing about predictions."""
    if not metric or metric in OPERATIONS or METRICS[metric].unit in ("s", "MB"):
        return "bookkeeping"
    return "predictions" if METRICS[metric].tasks else "samplers"


def direction(metric: str) -> str:
    """`min`, `max`, or '' for a metric without a direction."""
    registered = METRICS[metric].direction
    return "" if metric in UNDIRECTED or registered == "target" else registered


def margin(metric: str, published: float) -> float:
    """Half-width within which two means count as equal, in the unit of the metric."""
    if metric in NATS:
        return NATS_MARGIN
    if metric.startswith("r_hat"):
        return R_HAT_MARGIN
    if metric in UNDIRECTED or metric.startswith("ess_"):
        return CHAIN_MARGIN * abs(published)
    registered = METRICS[metric]
    perfect = registered.upper if registered.direction == "max" else math.inf
    return RELATIVE_MARGIN * (abs(published) if math.isinf(perfect) else perfect - published)


def judge(lower: float, upper: float, margin: float, direction: str) -> str:
    """Verdict on the interval of ours - published, both under the same protocol."""
    if -margin <= lower and upper <= margin:
        return "agrees"
    if not (upper < -margin or lower > margin):
        return "inconclusive"
    if not direction:
        return "differs"
    return "better" if (upper < 0) == (direction == "min") else "worse"


def combined(our_sd: float, our_n: int, published_sd: float, published_n: int) -> tuple[float, float, str]:
    """(standard error of ours - published, its degrees of freedom, the side that is given the other's spread, if any).

    sqrt(s_a²/n_a + s_b²/n_b) by Welch and Satterthwaite. A side without a spread is given that of the other, with its
    degrees of freedom; so is one with fewer runs that lie closer together, where that makes the interval wider.
    (NaN, NaN, '') where neither side has a spread."""
    ours, published = our_n > 1 and math.isfinite(our_sd), published_n > 1 and math.isfinite(published_sd)
    if not (ours or published):
        return math.nan, math.nan, ""
    root = math.sqrt(1 / our_n + 1 / published_n)
    by_ours, by_published = (our_sd * root, our_n - 1, "published"), (published_sd * root, published_n - 1, "ours")
    if not (ours and published):
        return by_ours if ours else by_published
    a, b = our_sd**2 / our_n, published_sd**2 / published_n
    freedom = (a + b) ** 2 / (a**2 / (our_n - 1) + b**2 / (published_n - 1)) if a + b else math.inf
    welch = closer = (math.sqrt(a + b), freedom, "")
    if our_n < published_n and our_sd < published_sd:
        closer = by_published
    elif published_n < our_n and published_sd < our_sd:
        closer = by_ours
    return max(welch, closer, key=lambda side: interval(0.0, *side[:2])[1])


def combined_r_hats(ours: float, published: float, chains: int) -> tuple[float, float]:
    """(standard error of the difference of two R-hats of m chains each, its degrees of freedom).

    sd(R) = (R² - 1) / (2 R) sqrt(2 / (m - 1)), since R² - 1 is proportional to a chi² variable with m - 1 degrees of
    freedom; combined by Welch and Satterthwaite. NaN for fewer than two chains. Source: Gelman and Rubin (1992)."""
    if chains < 2:
        return math.nan, math.nan
    a, b = (max(r - 1 / r, 0) ** 2 / (2 * (chains - 1)) for r in (ours, published))
    freedom = (chains - 1) * (a + b) ** 2 / (a**2 + b**2) if a + b else math.inf
    return math.sqrt(a + b), freedom


def interval(difference: float, error: float, freedom: float, level: float = 0.95) -> tuple[float, float]:
    """difference ± t_v error; (NaN, NaN) where the error is unknown."""
    if math.isnan(error):
        return math.nan, math.nan
    half = float(stdtrit(freedom, 0.5 + level / 2)) * error if error else 0.0
    return difference - half, difference + half
