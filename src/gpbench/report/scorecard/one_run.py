"""Published numbers beside ours, with a verdict for each (the rules: `gpbench.report.scorecard.verdicts`).

`published/<citation key>.csv` has one row a printed number, in these columns: source (citation key), item (table or
figure), dataset, method_printed, setting, metric_printed, protocol, scale, value (with the digits that are printed),
spread, spread_kind, splits (runs that the spread is over: splits, or of samplers chains x data sets), ours_method
(names that stand for it, `svgp|sgp_100`, of which a study has its own; empty where we have none), ours_metric (which
may be empty where ours_method is), factor (ours = factor x printed), study (that of conf/study whose cell reproduces
it; empty where none does), reason (why none does), note.
"""

from __future__ import annotations

import json
import math
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from gpbench.errors import UserError, unknown
from gpbench.evaluation.metrics import METRICS
from gpbench.report.scorecard import verdicts
from gpbench.report.scorecard.counterparts import Counterparts, Ours
from gpbench.report.tables.render import Table, number, to_html, to_markdown, write
from gpbench.report.view import View

COLUMNS = [
    *("source", "item", "dataset", "method_printed", "setting", "metric_printed", "protocol", "scale"),
    *("value", "spread", "spread_kind", "splits", "ours_method", "ours_metric", "factor", "study", "reason", "note"),
]
TEXTS = ("ours_method", "ours_metric", "study", "reason", "note", "setting")
"""Columns that may be empty."""
ADDED = [
    *("published", "published_sd", "ours", "ours_sd", "ours_n", "difference", "standard_error", "spread_assumed"),
    *(
        "lower",
        "upper",
        "margin",
        "verdict",
        "compared",
        "ours_protocol",
        "ours_budget",
        "ours_commit",
        "ours_settings",
    ),
]
SPREAD_NOTE = (
    "A side that prints no spread, or is a single run, is given that of the other (marked: spread of published, or of "
    "ours, assumed)."
)


def read_published(folder: str | Path) -> pd.DataFrame:
    """Every row of the CSV files of `folder`, and `rounding`, half a unit of the last digit of its value; UserError for
    a missing folder, columns that are not the schema's, or a row that has a counterpart of ours and no number."""
    paths = sorted(Path(folder).glob("*.csv"))
    if not paths:
        raise UserError(f"no published numbers: {folder}/*.csv does not exist; name their folder by --published")
    return pd.concat([_read_paper(path) for path in paths], ignore_index=True)


def _read_paper(path: Path) -> pd.DataFrame:
    frame = pd.read_csv(path, dtype=dict.fromkeys((*TEXTS, "value"), "str"))
    if list(frame.columns) != COLUMNS:
        wrong = sorted(set(frame.columns) ^ set(COLUMNS)) or "their order"
        raise UserError(f"{path}: columns differ from the schema in {wrong}; see gpbench.report.scorecard.one_run")
    frame = frame.fillna(dict.fromkeys(TEXTS, ""))
    if (lost := frame["value"].isna() & (frame["ours_method"] != "")).any():
        raise UserError(f"{path}, line {lost.idxmax() + 2}: ours_method without a value; empty it and give a reason")
    return frame.assign(value=frame["value"].astype(float), rounding=frame["value"].map(rounding))


def rounding(printed: str | float) -> float:
    """Half a unit of the last printed decimal, 0.005 of '2.50'; 0 where nothing is printed."""
    return 0.5 * 10.0 ** min(Decimal(printed).as_tuple().exponent, 0) if isinstance(printed, str) else 0.0


def sample_sd(spread: float, kind: str, splits: int) -> float:
    """Standard deviation over splits (ddof = 1) of a printed spread; NaN where none was printed."""
    factors = {
        "sample sd": 1.0,
        "population sd": math.sqrt(splits / max(splits - 1, 1)),
        "standard error": math.sqrt(splits),
    }
    if kind not in factors:
        if math.isnan(spread):
            return math.nan
        raise UserError(f"published spread_kind {kind!r} is unknown; choose one of: {', '.join(factors)}")
    return spread * factors[kind]


def scorecard(view: View, published: pd.DataFrame) -> pd.DataFrame:
    """The published rows, ours_method as this study calls it, and beside them published, published_sd, ours, ours_sd,
    ours_n, difference, standard_error, spread_assumed (`published` or `ours`: the side that has none), lower, upper,
    margin, verdict, compared (runs, ours of theirs, where they differ), ours_protocol, ours_budget, ours_commit,
    ours_settings (that the run was given besides the study's); all numbers in the scale and direction of
    `ours_metric`."""
    ours = Counterparts(view)
    named = published.assign(ours_method=[ours.name(names) for names in published["ours_method"]])
    added = pd.DataFrame([compare(ours, row) for row in named.to_dict("records")], columns=ADDED)
    return pd.concat([named.reset_index(drop=True), added], axis=1)


def printed(row: dict[str, Any]) -> dict[str, Any]:
    """ADDED of a published row that has no counterpart: its number in our unit, and the verdict `not run`."""
    metric, splits = row["ours_metric"], int(row["splits"])
    if metric not in METRICS and (metric or row["ours_method"]):
        raise UserError(
            f"published metric {metric!r} of {row['source']} {row['item']} is not in the registry of metrics"
        )
    value = row["factor"] * row["value"]
    sd = abs(row["factor"]) * sample_sd(row["spread"], row["spread_kind"], splits)
    unknown = dict.fromkeys(("ours", "ours_sd", "difference", "standard_error", "lower", "upper"), math.nan)
    empty = dict.fromkeys(
        ("spread_assumed", "compared", "ours_protocol", "ours_budget", "ours_commit", "ours_settings"), ""
    )
    half_unit = abs(row["factor"]) * row.get("rounding", 0.0)
    judged = {"margin": max(verdicts.margin(metric, value), half_unit) if metric else math.nan}
    judged |= {"verdict": f"not run: {row['reason'] or 'no method named'}"}
    return {"published": value, "published_sd": sd, "ours_n": 0, **unknown, **empty, **judged}


def compare(ours: Counterparts, row: dict[str, Any]) -> dict[str, Any]:
    """ADDED of a published row whose ours_method is one name."""
    result, method, dataset, metric = printed(row), row["ours_method"], row["dataset"], row["ours_metric"]
    if not method:
        return result
    if not ours.has(method, dataset):
        return result | {"verdict": f"not run: {method.replace('|', ' or ')} on {dataset} is not in this study"}
    found = ours.find(method, dataset, metric)
    if isinstance(found, str):
        return result | {"verdict": f"not run: {found}"}
    n, difference = int(row["splits"]), found.mean - result["published"]
    error, freedom, assumed = verdicts.combined(found.sd, found.n, result["published_sd"], n)
    lower, upper = verdicts.interval(difference, error, freedom)
    result |= {"ours": found.mean, "ours_sd": found.sd, "ours_n": found.n, "difference": difference}
    result |= {"standard_error": error, "lower": lower, "upper": upper}
    result |= {"spread_assumed": {"": "", "a": "ours", "b": "published"}[assumed]}
    result |= {"compared": _compared(found.n, n, "runs" if ours.by_chain(metric) else "splits")}
    result |= {"ours_protocol": found.protocol, "ours_budget": found.budget, "ours_commit": found.commit}
    result |= {"ours_settings": ours.settings}
    return result | {"verdict": _verdict(found, ours.study, row, result)}


def _verdict(ours: Ours, study: str, row: dict[str, Any], result: dict[str, Any]) -> str:
    if row["protocol"] != ours.protocol:
        return f"other protocol ({ours.protocol}; theirs {row['protocol']})"
    if row["study"] not in ("", study):
        return f"not judged: its settings are those of study {row['study']}"
    if ours.unfinished:
        return f"not judged: {ours.unfinished}"
    if math.isnan(result["standard_error"]):
        return "not judged: no spread on either side"
    direction = verdicts.direction(row["ours_metric"])
    return verdicts.judge(result["lower"], result["upper"], result["margin"], direction)


def _compared(ours: int, theirs: int, unit: str) -> str:
    """'3 of 20 splits', '5 splits beside 3', '' where both have as many."""
    if ours == theirs:
        return ""
    return f"{ours} of {theirs} {unit}" if ours < theirs else f"{ours} {unit} beside {theirs}"


def to_table(card: pd.DataFrame) -> Table:
    """The scorecard as text, rows with a number of ours first."""
    card = card.sort_values("ours_n", key=lambda n: n == 0, kind="stable", ignore_index=True)
    title = "Published numbers beside ours"
    if card.empty:
        return Table(card, show(card), title, "The study asks for none (`published` in its file).")
    made = card[card["ours_n"] > 0]
    said = [" and ".join(sorted(made[f"ours_{key}"].unique())) for key in ("protocol", "budget", "commit")]
    ours = "Ours: protocol {}, budget {}, commit {}. ".format(*said) if len(made) else "None has a number of ours. "
    note = (
        f"{ours}Mean ± standard deviation over splits, or of samplers over chains and data sets (number of them); a "
        f"printed population standard deviation or standard error is converted. {SPREAD_NOTE} Margins of agreement: "
        f"{verdicts.MARGINS}. agrees: the 95 % interval of the difference lies within the margin; better, worse, "
        "differs: beyond it; inconclusive: neither. Means under another protocol are not judged. A verdict is on the "
        "method at this budget."
    )
    return Table(card, show(card), title, note)


def show(card: pd.DataFrame) -> pd.DataFrame:
    """The columns of a scorecard that people read, as text."""
    rows = list(card.itertuples())
    return pd.DataFrame(
        {
            "source": card["source"] + ", " + card["item"],
            "data set": card["dataset"],
            "method": (card["method_printed"] + " " + card["setting"]).str.strip(),
            "metric": [METRICS[row.ours_metric].label if row.ours_metric else row.metric_printed for row in rows],
            "published": [_with_sd(row.published, row.published_sd, row.splits) for row in rows],
            "ours": [_with_sd(row.ours, row.ours_sd, row.ours_n) for row in rows],
            "difference [95 % interval]": [_with_interval(row) for row in rows],
            "standard error": [number(row.standard_error) for row in rows],
            "verdict and note": [_remarks(row) for row in rows],
        }
    )


def _remarks(row: Any) -> str:
    assumed = f"spread of {row.spread_assumed} assumed" if row.spread_assumed else ""
    given = f"with {row.ours_settings}" if row.ours_settings else ""
    return "; ".join(part for part in (row.verdict, row.compared, assumed, given, row.note) if part)


def _with_sd(mean: float, sd: float, n: int) -> str:
    if not np.isfinite(mean):
        return "-"
    return f"{mean:.3f} ± {sd:.3f} ({n})" if np.isfinite(sd) else f"{mean:.3f} ({n})"


def _with_interval(row: Any) -> str:
    if not np.isfinite(row.difference):
        return "-"
    interval = f" [{row.lower:+.3f}, {row.upper:+.3f}]" if np.isfinite(row.lower) else ""
    return f"{row.difference:+.3f}{interval}"


def wanted(view: View, published: pd.DataFrame) -> pd.DataFrame:
    """The published rows of the papers that a study compares itself with; UserError for a paper that is not there."""
    known = sorted(published["source"].unique())
    keys = known if view.study["published"] is None else view.study["published"]
    for key in keys:
        if key not in known:
            raise unknown("citation key", key, known, f"published of study {view.study['name']!r}")
    return published[published["source"].isin(keys)]


def write_scorecard(view: View, published: str | Path, folder: str | Path) -> list[Path]:
    """Write `folder`/scorecard.csv, .md, .html and .json."""
    card = scorecard(view, wanted(view, read_published(published)))
    table, stem = to_table(card), Path(folder) / "scorecard"
    records = json.loads(card.to_json(orient="records"))
    texts = {
        ".csv": card.to_csv(index=False, lineterminator="\n"),
        ".md": to_markdown(table),
        ".html": to_html(table),
        ".json": json.dumps(records, indent=1) + "\n",
    }
    return [write(stem.with_suffix(suffix), text) for suffix, text in texts.items()]
