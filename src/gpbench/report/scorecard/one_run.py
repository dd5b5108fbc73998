"""Published numbers beside those of one study, with a verdict for each (rules: `gpbench.report.scorecard.verdicts`)."""

import json
import math
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import pandas as pd

from gpbench import config
from gpbench.errors import UserError, count
from gpbench.evaluation.compare import SAME
from gpbench.evaluation.metrics import METRICS
from gpbench.places import write_text
from gpbench.report.scorecard import verdicts
from gpbench.report.scorecard.counterparts import ANY, Counterparts, OurMean
from gpbench.report.scorecard.published import PublishedNumber, read_published, sample_sd
from gpbench.report.tables.render import Table, mean_sd, number, signed, to_html, to_markdown
from gpbench.report.view import View

NUMBERS = (
    "Numbers are in our metrics (a printed log likelihood is an MNLL of the other sign): mean ± standard deviation "
    "over splits, or for samplers over chains and data sets (their number); a printed population standard deviation "
    "or standard error is converted."
)
SPREAD_NOTE = (
    f"{NUMBERS} Difference: ours - published; where paired, of the splits that both have, so not that of both means. "
    "Where one side has no spread, is a single run, or has fewer runs that lie closer together, the spread of the "
    "other side is used for it, in the last case only where that widens the interval (marked: our spread used for "
    "theirs, or their spread for ours)."
)


@dataclass(frozen=True)
class Judgement:
    """A published number and ours, in the scale and direction of our metric: the columns that a scorecard adds."""

    published: float
    published_sd: float
    ours: float = math.nan
    ours_sd: float = math.nan
    ours_n: int = 0
    difference: float = math.nan  # ours - published; of the splits that both have, where they are paired
    standard_error: float = math.nan
    spread_assumed: str = ""  # `published` or `ours`: the side given the other's; `chains`: both, of R-hats
    lower: float = math.nan
    upper: float = math.nan
    margin: float = math.nan
    verdict: str = ""
    compared: str = ""  # numbers of runs on both sides where they differ, or of pairs, and of ours not converged
    ours_protocol: str = ""
    ours_budget: str = ""
    ours_commit: str = ""
    ours_settings: str = ""  # overrides of the run beyond the settings of its study


ADDED = [field.name for field in fields(Judgement)]


def scorecard(view: View, published: pd.DataFrame) -> pd.DataFrame:
    """The published rows, with `ours_method` as this study names it, and the columns of `Judgement`."""
    ours = Counterparts(view)
    named = published.assign(ours_method=[ours.name(names) for names in published["ours_method"]])
    judged = [compare(ours, PublishedNumber(**row)) for row in named.to_dict("records")]
    added = pd.DataFrame(judged, columns=ADDED)
    return named.drop(columns="by_split", errors="ignore").reset_index(drop=True).join(added)


def not_run(printed: PublishedNumber, reason: str = "") -> Judgement:
    """The judgement of a number without a counterpart; UserError for a metric that is not registered."""
    metric, mean, margin = printed.ours_metric, printed.factor * printed.value, math.nan
    if metric not in METRICS and (metric or printed.ours_method):
        item = f"{printed.source} {printed.item}"
        raise UserError(f"published metric {metric!r} of {item} is not in the registry of metrics")
    if metric:
        margin = max(verdicts.margin(metric, mean), abs(printed.factor) * printed.rounding)
    sd = abs(printed.factor) * sample_sd(printed.spread, printed.spread_kind, printed.splits)
    return Judgement(mean, sd, margin=margin, verdict=f"not run: {reason or printed.reason or 'no method given'}")


def compare(ours: Counterparts, printed: PublishedNumber) -> Judgement:
    """The judgement of a published number whose `ours_method` is one name."""
    unmatched = not_run(printed)
    method, dataset, metric = printed.ours_method, printed.dataset, printed.ours_metric
    if not method:
        return unmatched
    if dataset == ANY:
        each = [compare(ours, replace(printed, dataset=name)) for name in ours.view.datasets]
        return next((one for one in each if verdicts.kind(one.verdict) in verdicts.JUDGED), each[0])
    if not ours.has(method, dataset):
        return not_run(printed, f"{method.replace('|', ' or ')} on {dataset} is not in this study")
    mean = ours.find(method, dataset, metric)
    if isinstance(mean, str):
        return not_run(printed, mean)
    result = replace(unmatched, ours=mean.mean, ours_sd=mean.sd, ours_n=mean.n, ours_settings=ours.settings)
    result = replace(result, ours_protocol=mean.protocol, ours_budget=mean.budget, ours_commit=mean.commit)
    difference, sides = result.ours - result.published, (mean.sd, mean.n, result.published_sd, printed.splits)
    of_one_set = False
    varies = verdicts.group(metric) == "samplers" or mean.sd > 0 and not math.isnan(result.published_sd)
    if ours.by_chain(metric) and varies:
        of_one_set = mean.splits == printed.data_sets == 1
        if not of_one_set:  # a printed spread of chains on a single set says nothing of that between sets
            of_sets = result.published_sd if printed.data_sets > 1 else math.nan
            sides = (mean.sd_of_splits, mean.splits, of_sets, printed.data_sets)
    error, freedom, assumed = verdicts.combined(*sides)
    if error <= SAME * abs(difference) and verdicts.group(metric) != "samplers" and metric not in verdicts.OPERATIONS:
        error, assumed = math.nan, ""  # equal scores of a few splits are chance, counts of operations are exact
    if math.isnan(error) and metric.startswith("r_hat"):
        error, freedom = verdicts.combined_r_hats(result.ours, result.published, mean.chains)
        assumed = "chains"
    runs = _compared(mean.n, printed.splits, "runs" if ours.by_chain(metric) else "splits")
    theirs = printed.by_split if printed.protocol == mean.protocol else {}
    if theirs and (paired := ours.paired(method, dataset, metric, theirs))[2]:
        difference, error, n = paired
        freedom, assumed, runs = n - 1, "", f"paired on {count(n, 'split')}"
    lower, upper = verdicts.interval(difference, error, freedom)
    compared = ", ".join(filter(None, (runs, f"{mean.unconverged} not converged" if mean.unconverged else "")))
    result = replace(result, difference=difference, standard_error=error, lower=lower, upper=upper)
    verdict = _verdict(mean, ours.study, printed, result)
    if (of_one_set or assumed == "chains") and verdicts.kind(verdict) in verdicts.JUDGED:
        verdict = "inconclusive: one data set on each side"
    return replace(result, spread_assumed=assumed, compared=compared, verdict=verdict)


def _verdict(ours: OurMean, study: str, printed: PublishedNumber, judgement: Judgement) -> str:
    if printed.protocol != ours.protocol:
        return f"other protocol (ours {ours.protocol}, published {printed.protocol})"
    if printed.study not in ("", study):
        return f"not judged: study {printed.study} has the published settings"
    if printed.study and printed.reason:
        return f"not judged: {printed.reason}"
    if ours.unfinished:
        return f"not judged: {ours.unfinished}"
    if math.isnan(judgement.standard_error):
        return "not judged: no spread on either side"
    direction = verdicts.direction(printed.ours_metric)
    return verdicts.judge(judgement.lower, judgement.upper, judgement.margin, direction)


def _compared(ours: int, published: int, unit: str) -> str:
    """'3 of 20 splits', '5 splits against 3', '' where both have as many."""
    if ours == published:
        return ""
    return f"{ours} of {published} {unit}" if ours < published else f"{ours} {unit} against {published}"


def to_table(card: pd.DataFrame) -> Table:
    """The scorecard as text, rows with a number of ours first."""
    card = card.sort_values("ours_n", key=lambda n: n == 0, kind="stable", ignore_index=True)
    title = "Published numbers beside ours"
    if card.empty:
        note = "This study is compared with no paper (`published` in its file is empty)."
        return Table(card, show(card), title, note)
    run = card[card["ours_n"] > 0]
    sources = [" and ".join(sorted(run[f"ours_{key}"].unique())) for key in ("protocol", "budget", "commit")]
    ours = "Ours: protocol {}, budget {}, commit {}. ".format(*sources) if len(run) else "We have none of them yet. "
    note = (
        f"{ours}{SPREAD_NOTE} Margins of agreement: {verdicts.MARGINS}. agrees: the 95 % interval of the difference "
        "lies within the margin; better, worse, differs: it lies outside; inconclusive: neither. Means under different "
        "protocols are not judged. A verdict holds for the method at this budget."
    )
    return Table(card, show(card), title, note)


def show(card: pd.DataFrame) -> pd.DataFrame:
    """The columns of a scorecard that people read, as text."""
    rows = list(card.itertuples())
    sized = [(row, 5 if 0 < abs(row.published) < 0.01 else 0 if abs(row.published) >= 1000 else 3) for row in rows]
    columns = {
        "source": card["source"] + ", " + card["item"],
        "data set": card["dataset"],
        "method": (card["method_printed"] + " " + card["setting"]).str.strip(),
        "metric": [METRICS[row.ours_metric].label if row.ours_metric else row.metric_printed for row in rows],
        "published": [mean_sd(row.published, row.published_sd, row.splits, digits) for row, digits in sized],
        "ours": [mean_sd(row.ours, row.ours_sd, row.ours_n, digits) for row, digits in sized],
        "difference [95 % interval]": [signed(row.difference, row.lower, row.upper, digits) for row, digits in sized],
        "standard error": [number(row.standard_error) for row in rows],
        "verdict and note": [_remarks(row) for row in rows],
    }
    return pd.DataFrame(columns)


def _remarks(row: Any) -> str:
    sides = {"ours": "their spread used for ours", "published": "our spread used for theirs"}
    assumed = (sides | {"chains": "spread by the number of chains"}).get(row.spread_assumed, "")
    settings = row.ours_settings and f"with {row.ours_settings}"
    return "; ".join(filter(None, (row.verdict, row.compared, assumed, settings, row.note)))


def rows_for_study(view: View, published: pd.DataFrame) -> pd.DataFrame:
    """The published rows of the papers that a study compares itself with; UserError for an unknown paper."""
    known = sorted(published["source"].unique())
    keys = known if (named := view.study.get("published")) is None else named
    config.require_known("citation key", keys, known, f"published of study {view.study['name']!r}")
    return published[published["source"].isin(keys)]


def write_scorecard(view: View, published: str | Path, folder: str | Path) -> list[Path]:
    """Write `folder`/scorecard.csv, .md, .html and .json."""
    card = scorecard(view, rows_for_study(view, read_published(published)))
    table, stem = to_table(card), Path(folder) / "scorecard"
    texts = {
        ".csv": card.to_csv(index=False, lineterminator="\n"),
        ".md": to_markdown(table),
        ".html": to_html(table),
        ".json": json.dumps(json.loads(card.to_json(orient="records")), indent=1) + "\n",
    }
    return [write_text(stem.with_suffix(suffix), text) for suffix, text in texts.items()]
