"""Published numbers beside ours, with a verdict for each by rules that are fixed beforehand.

`published/<citation key>.csv` has one row a printed number, in these columns: source (citation key), item (table or
figure), dataset, method_printed, setting, metric_printed, protocol, scale, value, spread, spread_kind, splits,
ours_method (names that stand for it, `svgp|sgp_100`, of which a study has its own; empty where we have none),
ours_metric (which may be empty where ours_method is), factor (ours = factor x printed), reason (why ours_method is
empty), note.

Verdicts, in this order:

- `not run: <reason>` where we have no method for it, or no finished fit;
- `other protocol (...)` where the protocol, or the number of splits, is not the published one. Splits differ in
  difficulty, so such means are printed with their difference and are not judged;
- `not judged: ...` where some of our fits are not done, or are chains that have not converged;
- `agrees` where the 95 % interval of ours - published lies inside [-margin, margin];
- `better` or `worse` (by the metric's direction) where it lies beyond the margin;
- `inconclusive` otherwise.

The interval is Welch's, from both standard deviations over splits. Published splits cannot be paired with ours, for
papers print no number per split; pairing would only narrow it, so `agrees`, `better` and `worse` err on the safe side.
"""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pandas as pd

from gpbench.errors import UserError, unknown
from gpbench.evaluation.metrics import METRICS
from gpbench.report.view import View
from gpbench.report.writing import Table, to_html, to_markdown, write

COLUMNS = [
    *("source", "item", "dataset", "method_printed", "setting", "metric_printed", "protocol", "scale"),
    *("value", "spread", "spread_kind", "splits", "ours_method", "ours_metric", "factor", "reason", "note"),
]
TEXTS = ("ours_method", "ours_metric", "reason", "note", "setting")
"""Columns that may be empty."""

# nats per test point for mnll, 5 % of the published number elsewhere
ADDED = ["published", "published_sd", "ours", "ours_sd", "ours_n", "difference", "lower", "upper", "margin", "verdict"]
MNLL_MARGIN = 0.05
RELATIVE_MARGIN = 0.05


def read_published(folder: str | Path) -> pd.DataFrame:
    """Every row of the CSV files of `folder`; UserError for a missing folder or a column too many or too few."""
    paths = sorted(Path(folder).glob("*.csv"))
    if not paths:
        raise UserError(f"no published numbers: {folder}/*.csv does not exist; name their folder by --published")
    frames = []
    for path in paths:
        frame = pd.read_csv(path, dtype=dict.fromkeys(TEXTS, "str"))
        if list(frame.columns) != COLUMNS:
            wrong = sorted(set(frame.columns) ^ set(COLUMNS)) or "their order"
            raise UserError(f"{path}: columns differ from the schema in {wrong}; see gpbench.report.scorecard")
        frames.append(frame.fillna(dict.fromkeys(TEXTS, "")))
    return pd.concat(frames, ignore_index=True)


def margin(metric: str, published: float) -> float:
    """Half-width within which two means count as equal, in the unit of the metric."""
    return MNLL_MARGIN if metric.startswith("mnll") else RELATIVE_MARGIN * abs(published)


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


def welch_interval(
    difference: float, sd_a: float, n_a: int, sd_b: float, n_b: int, level: float = 0.95
) -> tuple[float, float]:
    """difference ± t_v sqrt(s_a²/n_a + s_b²/n_b), v by Welch and Satterthwaite; (NaN, NaN) where an sd is unknown."""
    from scipy.stats import t

    if n_a < 2 or n_b < 2 or math.isnan(sd_a) or math.isnan(sd_b):
        return math.nan, math.nan
    a, b = sd_a**2 / n_a, sd_b**2 / n_b
    if a + b == 0:
        return difference, difference
    freedom = (a + b) ** 2 / (a**2 / (n_a - 1) + b**2 / (n_b - 1))
    half = float(t.ppf(0.5 + level / 2, freedom)) * math.sqrt(a + b)
    return difference - half, difference + half


def judge(lower: float, upper: float, margin: float, direction: str) -> str:
    """Verdict on the interval of ours - published, where both stand for the same protocol."""
    if -margin <= lower and upper <= margin:
        return "agrees"
    if upper < -margin:
        return "better" if direction == "min" else "worse"
    if lower > margin:
        return "worse" if direction == "min" else "better"
    return "inconclusive"


def scorecard(view: View, published: pd.DataFrame) -> pd.DataFrame:
    """The published rows, ours_method as this study calls it, and beside them published, published_sd, ours, ours_sd,
    ours_n, difference, lower, upper, margin, verdict, ours_protocol, ours_budget; all numbers in the scale and
    direction of `ours_metric`."""
    named = published.assign(ours_method=[_our_method(view, names) for names in published["ours_method"]])
    added = pd.DataFrame([_compare(view, row) for row in named.to_dict("records")], columns=ADDED)
    added = added.assign(ours_protocol=view.study["protocol"], ours_budget=view.study["budget"])
    return pd.concat([named.reset_index(drop=True), added], axis=1)


def _our_method(view: View, names: str) -> str:
    """The first of the names that this study has; else all of them, as they are."""
    return next((name for name in names.split("|") if name in view.methods), names)


def _compare(view: View, row: dict) -> dict:
    metric, splits = row["ours_metric"], int(row["splits"])
    if metric not in METRICS and (metric or row["ours_method"]):
        raise UserError(
            f"published metric {metric!r} of {row['source']} {row['item']} is not in the registry of metrics"
        )
    value = row["factor"] * row["value"]
    sd = abs(row["factor"]) * sample_sd(row["spread"], row["spread_kind"], splits)
    result = {"published": value, "published_sd": sd, "ours": math.nan, "ours_sd": math.nan, "ours_n": 0}
    result |= {"difference": math.nan, "lower": math.nan, "upper": math.nan, "margin": margin(metric, value)}
    reason, cell = _our_cell(view, row)
    if reason:
        return result | {"verdict": f"not run: {reason}"}
    difference = cell["mean"] - value
    lower, upper = welch_interval(difference, cell["sd"], cell["n"], sd, splits)
    result |= {"ours": cell["mean"], "ours_sd": cell["sd"], "ours_n": int(cell["n"])}
    result |= {"difference": difference, "lower": lower, "upper": upper}
    if row["protocol"] != view.study["protocol"]:
        return result | {"verdict": f"other protocol ({view.study['protocol']}, {cell['n']} splits; theirs {splits})"}
    if cell["n"] != splits:
        return result | {"verdict": f"other protocol ({cell['n']} of {splits} splits)"}
    if not cell["complete"]:
        return result | {"verdict": f"not judged: {cell['statuses']}"}
    return result | {"verdict": judge(lower, upper, result["margin"], METRICS[metric].direction)}


def _our_cell(view: View, row: dict) -> tuple[str, dict]:
    """(why there is no cell, {}) or ('', the cell)."""
    method, dataset = row["ours_method"], row["dataset"]
    if not method:
        return row["reason"] or "no method named", {}
    if method not in view.methods or dataset not in view.datasets:
        return f"{method.replace('|', ' or ')} on {dataset} is not in this study", {}
    cells = view.cells(row["ours_metric"])
    cell = cells[(cells["method"] == method) & (cells["dataset"] == dataset)].iloc[0].to_dict()
    return ("", cell) if cell["n"] else (cell["statuses"] or "the metric is undefined", {})


def to_table(card: pd.DataFrame) -> Table:
    """The scorecard as text, rows with a number of ours first."""
    card = card.sort_values("ours_n", key=lambda n: n == 0, kind="stable", ignore_index=True)
    shown = pd.DataFrame(
        {
            "source": card["source"] + ", " + card["item"],
            "data set": card["dataset"],
            "method": (card["method_printed"] + " " + card["setting"]).str.strip(),
            "metric": [
                METRICS[row.ours_metric].label if row.ours_metric else row.metric_printed for row in card.itertuples()
            ],
            "published": [_with_sd(row.published, row.published_sd, row.splits) for row in card.itertuples()],
            "ours": [_with_sd(row.ours, row.ours_sd, row.ours_n) for row in card.itertuples()],
            "difference [95 % interval]": [_with_interval(row) for row in card.itertuples()],
            "verdict and note": card["verdict"] + card["note"].map(lambda note: f"; {note}" if note else ""),
        }
    )
    title = "Published numbers beside ours"
    if card.empty:
        return Table(card, shown, title, "The study asks for none (`published` in its file).")
    note = (
        f"Ours: protocol {card['ours_protocol'].iloc[0]}, budget {card['ours_budget'].iloc[0]}. "
        "Mean ± standard deviation over splits (number of splits); a printed population standard deviation or "
        f"standard error is converted. Margin of agreement: {MNLL_MARGIN} nats for MNLL, {RELATIVE_MARGIN:.0%} of the "
        "published number elsewhere. agrees: the interval lies within the margin; better, worse: beyond it; "
        "inconclusive: neither. Splits differ in difficulty, so means under another protocol are not judged."
    )
    return Table(card, shown, title, note)


def _with_sd(mean: float, sd: float, n: int) -> str:
    if not np.isfinite(mean):
        return "-"
    return f"{mean:.3f} ± {sd:.3f} ({n})" if np.isfinite(sd) else f"{mean:.3f} ({n})"


def _with_interval(row) -> str:
    if not np.isfinite(row.difference):
        return "-"
    interval = f" [{row.lower:+.3f}, {row.upper:+.3f}]" if np.isfinite(row.lower) else ""
    return f"{row.difference:+.3f}{interval}"


def write_scorecard(view: View, published: str | Path, folder: str | Path) -> list[Path]:
    """Write `folder`/scorecard.csv, .md, .html and .json."""
    printed = read_published(published)
    known = sorted(printed["source"].unique())
    wanted = known if view.study["published"] is None else view.study["published"]
    for key in wanted:
        if key not in known:
            raise unknown("citation key", key, known, f"published of study {view.study['name']!r}")
    card = scorecard(view, printed[printed["source"].isin(wanted)])
    table, stem = to_table(card), Path(folder) / "scorecard"
    records = json.loads(card.to_json(orient="records"))
    texts = {
        ".csv": card.to_csv(index=False, lineterminator="\n"),
        ".md": to_markdown(table),
        ".html": to_html(table),
        ".json": json.dumps(records, indent=1) + "\n",
    }
    return [write(stem.with_suffix(suffix), text) for suffix, text in texts.items()]
