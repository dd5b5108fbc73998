"""The tables, figures, pages of papers and README blocks that the documentation shows of committed records.

They depend on `docs/results/<run>/` and `published/` alone. A text is stale if it differs from what today's code makes
of today's records, a figure if its key `gpbench-data` is not the digest of the records that it draws.
`python -m gpbench.report documents` writes all of them; with `--check` it names the stale ones and exits with 1.
"""

import re
from collections import Counter
from pathlib import Path
from textwrap import fill

import pandas as pd

from gpbench.errors import UserError, count
from gpbench.places import write_text
from gpbench.report import registry
from gpbench.report.figures import noted, write_figure
from gpbench.report.joined import Joined
from gpbench.report.papers import claims, finding, protocol
from gpbench.report.scorecard import all_runs
from gpbench.report.scorecard.counterparts import Counterparts
from gpbench.report.scorecard.verdicts import JUDGED
from gpbench.report.significance import comparisons
from gpbench.report.significance.findings import unconverged
from gpbench.report.tables.render import to_markdown
from gpbench.report.tables.standard import table
from gpbench.report.view import SCORED, View
from gpbench.study.storage.challengers import NOT_OURS
from gpbench.study.storage.committed import RESTORE

RUN = "uci_converged"  # the comparison of methods, which the README shows
RUNS = (RUN, "uci_common")  # those with pages, the second a comparison of budgets; other runs are in the scorecard
FIGURES = ("critical_difference", "performance_profile", "rank_by_budget", "pareto", "log_density")
TABLES = (
    *("regression_mnll", "regression_rmse", "classification_mnll", "classification_error"),
    *("ranks", "cost", "status", "unfinished", "convergence"),
)
OF_ALL_RUNS = ("rank_by_budget",)  # figures that draw all of RUNS, the others one
BEST = 5  # methods whose ranks the README shows
LONGER = re.compile(r"\w+\.(steps|max_rows)=\S+|trainer\.\S+")  # settings that leave the model as it is


def texts(root: Path, runs: list[Counterparts], views: list[Joined]) -> dict[Path, str]:
    """File -> content, for all texts but those of the scorecard; runs: the committed ones, views: RUNS (`joined`)."""
    conf = root / "conf"
    contents: dict[Path, str] = {}
    for view in views:
        contents |= {view.folder / "tables" / f"{name}.md": to_markdown(table(view, name)) for name in TABLES}
        pictures = "\n".join(f"![{name}](figures/{name}.png)\n\n{registry.FIGURES[name].caption}\n" for name in FIGURES)
        statistics = comparisons.to_markdown(comparisons.statistics(view), view)
        contents[view.folder / "statistics.md"] = f"{statistics}\n## Figures\n\n{pictures}"
    readme, card = root / "README.md", all_runs.read(root / "docs" / "scorecard" / "scorecard.csv")
    pages = finding.pages(root, card, runs)
    pages["protocol"] = protocol.ledger([run.view for run in runs], card, root / "published/per_split")
    contents |= {root / "docs" / "papers" / f"{name}.md": page for name, page in pages.items()}
    findings = finding.bullets(claims.ours(root / "docs" / "findings.yaml", conf), runs, conf)
    blocks = {"findings": findings, "results": summary(views[0]), "scorecard": verdicts(card)}
    return contents | {readme: filled(readme.read_text(encoding="utf-8"), blocks)}


def filled(text: str, blocks: dict[str, str]) -> str:
    """A text with the blocks between `<!-- NAME -->` and `<!-- end -->` replaced; UserError where one is missing."""
    for name, block in blocks.items():
        start, end = f"<!-- {name} -->\n", "<!-- end -->"
        before, mark, rest = text.partition(start)
        if not mark or end not in rest:
            raise UserError(f"README.md has no block '<!-- {name} --> ... {end}'; add one")
        text = before + start + block + rest[rest.index(end) :]
    return text


def joined(runs: list[Counterparts]) -> list[Joined]:
    """RUNS, with cells of others of their studies that differ in updates, a limit of rows, or the trainer alone."""
    by_name = {run.view.folder.name: run for run in runs}
    if missing := [name for name in RUNS if name not in by_name]:
        raise UserError(f"docs/results has no run {missing[0]}, which the documentation shows; {RESTORE}")
    base = [by_name[name] for name in RUNS]
    others = [run for run in runs if all(LONGER.fullmatch(word) for word in run.settings.split())]
    return [Joined(one.view, [run.view for run in others if run.study == one.study and run is not one]) for one in base]


def summary(view: Joined) -> str:
    """What was run, which methods rank best by MNLL, and how many pairs of methods differ significantly."""
    comparison, study = comparisons.compare(view, comparisons.OVERALL), view.study
    fits = view.fits[~view.fits["family"].isin(NOT_OURS)]
    done, lacks = fits[fits["status"].isin(SCORED)], fits.loc[fits["status"] == "missing", "method"].map(view.labels)
    missing = f"; {len(lacks)} of {', '.join(lacks.unique())} are missing" if len(lacks) else ""
    text = (
        f"Study `{study['name']}`: {count(len(done), 'fit')} of {count(done['method'].nunique(), 'method')} on "
        f"{count(len(view.datasets), 'data set')}, protocol {study['protocol']}, budget {study['budget']}, "
        f"{study['splits']} splits{missing}."
    )
    if of := Counter(view.labels[method] for method, _ in view.taken):
        cells = ", ".join(f"{n} of {label}" for label, n in of.items())
        text += f" {count(len(view.taken), 'cell')} are of runs with more updates or rows ({cells})."
    if "pairs" in comparison:
        ranked = [(view.labels[row["method"]], row["mean_rank"]) for row in comparison["ranks"]]
        best = ", ".join(f"{label} {rank:.1f}" for label, rank in ranked[:BEST])
        lacking = ", ".join(name for name in view.datasets if name not in comparison["datasets"])
        where = f"{len(comparison['datasets'])} of them" + f" (not on {lacking})" * bool(lacking)
        of_tasks = [s for s in comparisons.compared(view) if s.metric == "mnll" and s is not comparisons.OVERALL]
        for part in of_tasks:
            task, losses = part.title.split(",")[0].lower(), comparisons.complete_losses(view, part)[0]
            where += f", {len(losses.columns)} in {task} alone"
        text += f" {count(len(ranked), 'method')} are complete on {where}; best mean ranks by MNLL: {best}."
        places = {row["method"]: place for place, row in enumerate(comparison["ranks"])}
        worse = [max(pair["a"], pair["b"], key=places.__getitem__) for pair in comparison["pairs"] if pair["reject"]]
        text += f" {len(worse)} of {count(len(comparison['pairs']), 'pair')} differ significantly"
        if worse:
            counted = ", ".join(f"{view.labels[name]} in {n}" for name, n in Counter(worse).most_common())
            text += f"; the worse method is {counted}"
        text += f".{unconverged(comparison, view, 1, BEST)}"
    return fill(text, 120, break_on_hyphens=False) + "\n"


def verdicts(card: pd.DataFrame) -> str:
    """Published predictions by verdict; of the other numbers only how many are judged, and agree, R-hats apart."""
    groups = all_runs.by_group(card)
    totals = {group: all_runs.counts(rows).loc["all papers"] for group, rows in groups.items()}
    kinds = ", ".join(f"{n} {kind}" for kind, n in totals["predictions"].drop("rows").items())
    text = f"Of {count(int(totals.pop('predictions')['rows']), 'published prediction')}: {kinds}."
    for group, total in totals.items():
        agreed = groups[group].loc[groups[group]["verdict"] == "agrees", "ours_metric"]
        mixed = agreed.str.startswith("r_hat").sum()
        text += f" Apart, {group}: {total[list(JUDGED)].sum()} of {total['rows']} judged, {total['agrees']} agree"
        text += f" (R-hats: {mixed})" * bool(mixed) + f", {total['inconclusive']} inconclusive."
    return fill(text, 120, break_on_hyphens=False) + "\n"


def digest(view: Joined, figure: str) -> str:
    """SHA-256 of the scores that a figure of a committed run draws."""
    taken = sorted({run.folder for run in view.taken.values()})
    folders = [view.folder.parent / name for name in RUNS] if figure in OF_ALL_RUNS else [view.folder, *taken]
    return all_runs.digest("".join((path / "scores.csv").read_text(encoding="utf-8") for path in folders))


def scorecard(root: Path) -> tuple[list[Counterparts], Path, Path, Path]:
    """Committed runs, and the folders of published numbers, configuration and the scorecard."""
    return all_runs.read_runs(root / "docs" / "results"), root / "published", root / "conf", root / "docs" / "scorecard"


def stale(root: Path) -> list[str]:
    """Documents that differ from their records, as paths from the project's root."""
    runs, *folders = scorecard(root)
    views, outdated = joined(runs), all_runs.stale(runs, *folders)
    outdated += [path for path, text in texts(root, runs, views).items() if not all_runs.has_text(path, text)]
    for view in views:
        figures = {name: view.folder / "figures" / f"{name}.png" for name in FIGURES}
        outdated += [path for name, path in figures.items() if noted(path, all_runs.KEY) != digest(view, name)]
    return [str(path.relative_to(root)) for path in outdated]


def check(root: Path) -> None:
    """UserError where a document is stale."""
    if outdated := stale(root):
        raise UserError(f"stale or missing: {', '.join(outdated)}; run `make docs` and commit what it writes")


def make(root: Path) -> None:
    """Write every document; the scorecard first, because the README counts its verdicts."""
    runs, *folders = scorecard(root)
    views = joined(runs)
    all_runs.write_scorecard(runs, *folders)
    for path, text in texts(root, runs, views).items():
        write_text(path, text)
    for view in views:
        for name in FIGURES:
            drawn = View(view.folder) if name in OF_ALL_RUNS else view  # budgets as they are
            write_figure(drawn, name, view.folder / "figures", kinds=("png",), **{all_runs.KEY: digest(view, name)})
