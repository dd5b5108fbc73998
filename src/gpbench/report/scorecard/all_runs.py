"""Every published number beside its best counterpart in all committed runs.

Reads `published/` and `docs/results/<run>/`; writes a scorecard (CSV, Markdown, figure) and a badge. Of several runs
with a counterpart of a row `Counterpart.preference` chooses one; a row without one names the study that
reproduces it, with its budget and command, or the reason why none does. The files depend on these inputs alone: written
twice they are the same bytes, but for the PNG, whose key `gpbench-data` is the SHA-256 of the CSV that it draws.
"""

import hashlib
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import NamedTuple

import pandas as pd

from gpbench import config
from gpbench.errors import count
from gpbench.places import write_text
from gpbench.report.figures import drawn, noted, save
from gpbench.report.scorecard import data_facts, verdicts
from gpbench.report.scorecard.counterparts import ANY, Counterparts
from gpbench.report.scorecard.one_run import ADDED, SPREAD_NOTE, Judgement, compare, not_run, rows_for_study, show
from gpbench.report.scorecard.published import COLUMNS, TEXTS, PublishedNumber, read_published
from gpbench.report.tables.render import Table, to_markdown
from gpbench.report.view import View, commits

BUDGETS = ("smoke", "quick", "check", "converged", "paper")
_WORDS = "verdict compared spread_assumed run command ours_protocol ours_budget ours_commit ours_settings"
EMPTY = (*_WORDS.split(), *TEXTS)  # columns of text, which may be empty
KEY = "gpbench-data"  # of the digest that a figure carries of its data
FIGURE = "scorecard.png"
FIGURE_CAPTION = (
    "Published numbers against ours: the published one plus the difference that is judged (paired where splits are in "
    "common), with its standard error. On the line they are equal; grey: the margin of agreement. Accuracies and areas "
    "under the ROC curve are drawn as 1 minus their value. Marks at the edge of a panel lie beyond it."
)
INTRODUCTION = f"""\
**A verdict holds for the method at the budget beside it.** Budgets `smoke`, `quick` and `check` train for fewer updates
than were published: there `worse` or `inconclusive` describes what this budget reaches, not what the method does;
`converged` ends a fit by a rule of convergence, before or after the published updates.

Margins were fixed beforehand, other rules in part after numbers had been seen (docs/decisions.md): {verdicts.MARGINS}.
*agrees*: the 95 % interval of ours - published is inside the margin; *better*, *worse*, *differs* (no direction): it is
outside; *inconclusive*: neither; each row by itself, not corrected for their number. *paired*: over splits of which
authors released scores, as if independent (which may be too narrow). *not judged*: fits are incomplete, chains have not
converged or are too short for an effective size, or no side has a spread. *other protocol*: means not comparable.

Rows are counted apart by what they are about: *predictions* (MNLL, RMSE, error, ...), *samplers* (R-hat, effective
sample sizes, acceptance) and *bookkeeping* (operations, seconds, settings, numbers of which we have no metric, and
facts of data, such as numbers of rows, which agree if they are those of our data set). Samplers of one simulated data
set on each side are *inconclusive*, however near their numbers are."""


class Counterpart(NamedTuple):
    """A row's number in one run, or the study that reproduces it."""

    judgement: Judgement
    ours_method: str
    run: str = ""  # folder in docs/results
    command: str = ""  # command that made the run, or that would make it
    updates: float = 0.0  # of a fit

    @property
    def preference(self) -> tuple[bool | float | str, ...]:
        """Smaller is better: complete at a budget of convergence or above, judged or not; then judged, not judged,
        another protocol; then a run of the study with the published settings, the larger budget, the study's settings,
        more runs, more updates. So fits shorter than published hide no longer ones that are not judged."""
        ours, kind = self.judgement, verdicts.kind(self.judgement.verdict)
        place = -1 if kind in verdicts.JUDGED else verdicts.VERDICTS.index(kind)
        size = BUDGETS.index(ours.ours_budget) if ours.ours_budget in BUDGETS else -1
        complete, of_other = "missing" not in ours.verdict, "has the published settings" in ours.verdict
        stands = complete and size >= BUDGETS.index("converged") and place <= verdicts.VERDICTS.index("not judged")
        return not stands, place, of_other, -size, ours.ours_settings != "", -ours.ours_n, -self.updates, self.run


def read_runs(folder: str | Path) -> list[Counterparts]:
    """The committed runs in `folder`, by name; none where the folder does not exist."""
    return [Counterparts(View(path.parent)) for path in sorted(Path(folder).glob("*/study.json"))]


def scorecard(runs: list[Counterparts], published: pd.DataFrame, conf: Path) -> pd.DataFrame:
    """The published rows in their order with the columns of `Judgement`, `run` and `command`."""
    best: dict[int, Counterpart] = {}
    for ours in runs:
        for i, candidate in _counterparts(ours, published):
            if i not in best or candidate.preference < best[i].preference:
                best[i] = candidate
    budgets = {name: config.compose(conf, "study", name).budget for name in sorted(set(published["study"]) - {""})}
    rows = []
    for i, row in zip(published.index, published.to_dict("records"), strict=True):
        chosen = best.get(i) or _without_run(PublishedNumber(**row), budgets, conf)
        rows.append(row | asdict(chosen.judgement) | {key: getattr(chosen, key) for key in chosen._fields[1:]})
    return pd.DataFrame(rows, columns=[*COLUMNS, *ADDED, "run", "command"])


def _without_run(printed: PublishedNumber, budgets: dict[str, str], conf: Path) -> Counterpart:
    """A row that no run has: a fact of the data, or not run yet; budgets: that of each study."""
    if fact := data_facts.judged(printed, conf):
        return Counterpart(fact, printed.ours_method)
    if not printed.study:
        return Counterpart(not_run(printed), printed.ours_method)
    reason = f"study {printed.study} would run it at budget {budgets[printed.study]}"
    command = f"snakemake --cores 2 --config study={printed.study}"
    return Counterpart(not_run(printed, reason), printed.ours_method, command=command)


def _counterparts(ours: Counterparts, published: pd.DataFrame) -> Iterator[tuple[int, Counterpart]]:
    """(row, counterpart) for every row with a cell here; one without a number counts under the published protocol."""
    view = ours.view
    rows = rows_for_study(view, published)
    rows = rows[rows["dataset"].isin([*view.datasets, ANY])]
    for i, row in zip(rows.index, rows.to_dict("records"), strict=True):
        method = ours.name(row["ours_method"])
        if ours.has(method, row["dataset"]):
            judgement = compare(ours, PublishedNumber(**row | {"ours_method": method}))
            if judgement.ours_n or row["protocol"] == view.study["protocol"]:
                updates = ours.updates(method, row["dataset"])
                yield i, Counterpart(judgement, method, view.folder.name, view.study["command"], updates)


def by_group(card: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """The rows about predictions, about samplers, and others (`verdicts.group`)."""
    of_row = card["ours_metric"].fillna("").map(verdicts.group)
    return {group: card[of_row == group] for group in verdicts.GROUPS}


def by_verdict(card: pd.DataFrame, column: str) -> pd.DataFrame:
    """Rows by the values of a column and kind of verdict, with totals in the last column."""
    kinds = card["verdict"].map(verdicts.kind)
    table = pd.crosstab(card[column], kinds).reindex(columns=verdicts.VERDICTS, fill_value=0)
    return table.assign(rows=table.sum(axis=1)).rename_axis(columns=None)


def counts(card: pd.DataFrame) -> pd.DataFrame:
    """The same by paper, with totals in the last row, too."""
    table = by_verdict(card, "source").rename_axis(index="paper")
    table.loc["all papers"] = table.sum()
    return table


def read(path: Path) -> pd.DataFrame:
    """A written scorecard, with '' where a row has no text."""
    return pd.read_csv(path, dtype=dict.fromkeys(EMPTY, "str")).fillna(dict.fromkeys(EMPTY, ""))


def open_rows(path: Path) -> dict[str, int]:
    """Study -> number of published rows of a written scorecard that it would reproduce and that have no verdict yet."""
    if not path.is_file():
        return {}
    card = pd.read_csv(path, usecols=["study", "verdict"]).dropna(subset="study")
    is_open = ~card["verdict"].map(verdicts.kind).isin(verdicts.JUDGED)
    return {str(study): int(number) for study, number in card[is_open]["study"].value_counts().items()}


def badge(card: pd.DataFrame) -> str:
    """A picture (SVG) of how many rows about predictions are judged, and how many agree."""
    total = counts(by_group(card)["predictions"]).loc["all papers"]
    judged, label = int(total[list(verdicts.JUDGED)].sum()), "published predictions"
    message = f"{judged} of {total['rows']} judged, {total['agrees']} agree, {total['inconclusive']} inconclusive"
    left, right = (7 * len(text) + 12 for text in (label, message))  # 7: about a letter of 11 pixels
    text = 'y="14" text-anchor="middle" lengthAdjust="spacingAndGlyphs"'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{left + right}" height="20" role="img" '
        f'aria-label="{label}: {message}">\n'
        f"<title>{label}: {message}</title>\n"
        f'<rect width="{left}" height="20" fill="#444"/>\n'
        f'<rect x="{left}" width="{right}" height="20" fill="#0060a0"/>\n'
        '<g fill="#fff" font-family="DejaVu Sans, Verdana, sans-serif" font-size="11">\n'
        f'<text x="{left / 2:g}" {text} textLength="{left - 12}">{label}</text>\n'
        f'<text x="{left + right / 2:g}" {text} textLength="{right - 12}">{message}</text>\n'
        "</g>\n</svg>\n"
    )


def to_page(card: pd.DataFrame, runs: list[Counterparts]) -> str:
    """The scorecard in Markdown: counts, runs, the judged rows, and the reasons why others are not judged."""
    is_judged = card["verdict"].map(verdicts.kind).isin(verdicts.JUDGED)
    judged, others = card[is_judged], card[~is_judged]
    names = {"ours_protocol": "protocol", "ours_budget": "budget", "ours_commit": "commit", "run": "run"}
    shown = show(judged).join(judged[list(names)].rename(columns=names))
    summaries = {group: counts(rows).reset_index() for group, rows in by_group(card).items() if len(rows)}
    reasons = others.groupby(["source", "verdict", "command"], sort=False).size().rename("rows").reset_index()
    lines = [
        "# Published numbers beside ours\n",
        f"All {count(len(card), 'published number')} in `published/`, each with its best counterpart in "
        "`docs/results/`; made by `make docs`. [scorecard.csv](scorecard.csv) has every column. Rows not run yet "
        "show the command that runs them; of a row below budget `paper` it takes the updates of today's budget.\n",
        f"{INTRODUCTION}\n",
        f"![Published numbers against ours]({FIGURE})\n\n{FIGURE_CAPTION}\n",
        *(to_markdown(Table(t, t, f"Rows by paper and verdict: {group}")) for group, t in summaries.items()),
        to_markdown(runs_table([run.view for run in runs])),
        to_markdown(Table(judged, shown, "Judged rows", SPREAD_NOTE)),
        to_markdown(Table(reasons, reasons, "Rows without a verdict")),
    ]
    return "\n".join(lines)


def runs_table(runs: list[View]) -> Table:
    rows = []
    for view in runs:
        study, fits = view.study, f"{len(view.done)} of {len(view.fits)}"
        setting = [view.folder.name, study["protocol"], study["budget"]]
        rows.append([*setting, fits, " ".join(commits(view.done, 10)), study["command"]])
    return Table.of(rows, ["run", "protocol", "budget", "fits done", "commits", "command"], "Committed runs")


def texts(runs: list[Counterparts], published: Path, conf: Path) -> tuple[pd.DataFrame, dict[str, str]]:
    """The scorecard of committed runs, and the content of every file but the figure."""
    card = scorecard(runs, read_published(published, conf), conf)
    table = card.to_csv(index=False, lineterminator="\n", float_format="%.6g")
    return card, {"scorecard.csv": table, "scorecard.md": to_page(card, runs), "badge.svg": badge(card)}


def write_scorecard(runs: list[Counterparts], published: Path, conf: Path, folder: Path) -> list[Path]:
    """Write scorecard.csv, scorecard.md, badge.svg and scorecard.png into `folder`."""
    from gpbench.report.figures.scorecard import against

    card, contents = texts(runs, published, conf)
    paths = [write_text(folder / name, text) for name, text in contents.items()]
    figure, data = (folder / FIGURE).with_suffix(""), digest(contents["scorecard.csv"])
    return [*paths, *save(drawn(against, card), figure, ("png",), png={KEY: data})]


def stale(runs: list[Counterparts], published: Path, conf: Path, folder: Path) -> list[Path]:
    """The files in `folder` that `write_scorecard` would change."""
    _, contents = texts(runs, published, conf)
    paths = [folder / name for name, text in contents.items() if not has_text(folder / name, text)]
    return paths + [folder / FIGURE] * (noted(folder / FIGURE, KEY) != digest(contents["scorecard.csv"]))


def has_text(path: Path, text: str) -> bool:
    """Whether a file exists and holds this text."""
    return path.is_file() and path.read_text(encoding="utf-8") == text


def digest(text: str) -> str:
    """SHA-256 of a text."""
    return hashlib.sha256(text.encode()).hexdigest()
