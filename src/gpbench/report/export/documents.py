"""What the documentation shows of committed records: tables, figures, and the numbers of the README.

Everything follows from `docs/results/<run>/` and `published/` alone. A text is stale if it differs from what today's
code makes of today's records, a figure if its key `gpbench-data` is not the digest of the records it was drawn from.
`python -m gpbench.report documents` makes all of them, with `--check` it names the stale ones and exits 1.
"""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from textwrap import fill

import pandas as pd

from gpbench.errors import UserError, count
from gpbench.report.figures import write_figure
from gpbench.report.scorecard import all_runs
from gpbench.report.significance import comparisons
from gpbench.report.tables.render import to_markdown, write
from gpbench.report.tables.standard import table
from gpbench.report.view import View

RUN = "uci_common"
"""The run that the README shows; of the other ones the scorecard says what they found."""
FIGURES = ("critical_difference", "performance_profile", "pareto", "log_density")
TABLES = (
    *("regression_mnll", "regression_rmse", "classification_mnll", "classification_error"),
    *("ranks", "cost", "status", "unfinished"),
)
COMPARISON = "all_mnll"


def texts(root: Path) -> dict[Path, str]:
    """File -> what it must hold, of all documents that are text, but for the scorecard's own."""
    view = View(root / "docs" / "results" / RUN)
    made = {view.folder / "tables" / f"{name}.md": to_markdown(table(view, name)) for name in TABLES}
    made[view.folder / "statistics.md"] = comparisons.to_markdown(comparisons.statistics(view), view)
    readme = root / "README.md"
    card = pd.read_csv(root / "docs" / "scorecard" / "scorecard.csv")
    return made | {readme: filled(readme.read_text(), {"results": summary(view), "scorecard": verdicts(card)})}


def filled(text: str, blocks: dict[str, str]) -> str:
    """A text with what stands between `<!-- NAME -->` and `<!-- end -->` replaced; UserError where there is no such
    place."""
    for name, block in blocks.items():
        text, found = re.subn(
            rf"(<!-- {name} -->\n).*?(<!-- end -->)", lambda m, block=block: m[1] + block + m[2], text, flags=re.DOTALL
        )
        if found != 1:
            raise UserError(f"README.md has {found} places '<!-- {name} --> ... <!-- end -->'; it needs one")
    return text


def summary(view: View) -> str:
    """What was run, and how many pairs of methods are told apart by MNLL over all data sets."""
    (spec,) = (spec for spec in comparisons.COMPARISONS if spec.name == COMPARISON)
    found, facts = comparisons.compare(view, spec), view.study
    commits = ", ".join(sorted({commit[:7] for commit in view.done["commit"]}))
    said = (
        f"Study `{facts['name']}`: {count(len(view.done), 'fit')} of {count(len(view.methods), 'method')} on "
        f"{count(len(view.datasets), 'data set')}, protocol {facts['protocol']}, budget {facts['budget']}, "
        f"{facts['splits']} splits, commit {commits}."
    )
    if "pairs" in found:
        told = sum(pair["reject"] for pair in found["pairs"])
        said += f" {told} of {count(len(found['pairs']), 'pair')} differ by MNLL over all sets. {found['power']}"
    return fill(said, 120) + "\n"


def verdicts(card: pd.DataFrame) -> str:
    """How many published rows have which verdict."""
    total = all_runs.counts(card).loc["all papers"].drop("rows")
    said = ", ".join(f"{n} {kind}" for kind, n in total.items())
    return fill(f"Of {count(len(card), 'published number')}: {said}.", 120) + "\n"


def digest(folder: Path) -> str:
    """SHA-256 of the scores of a committed run."""
    return hashlib.sha256((folder / "scores.csv").read_bytes()).hexdigest()


def scorecard(root: Path) -> tuple[Path, Path, Path, Path]:
    """Committed runs, published numbers, configuration, and where the scorecard is."""
    return root / "docs" / "results", root / "published", root / "conf", root / "docs" / "scorecard"


def stale(root: Path) -> list[str]:
    """Documents that differ from what their records say, as paths from the project's root."""
    wrong = all_runs.stale(*scorecard(root))
    folder = root / "docs" / "results" / RUN
    drawn = [folder / "figures" / f"{name}.png" for name in FIGURES]
    wrong += [path for path, text in texts(root).items() if not path.is_file() or path.read_text() != text]
    wrong += [path for path in drawn if all_runs.drawn_from(path) != digest(folder)]
    return [str(path.relative_to(root)) for path in wrong]


def check(root: Path) -> None:
    """UserError where a document is stale."""
    if wrong := stale(root):
        raise UserError(f"stale or missing: {', '.join(wrong)}; run `make docs` and commit what it writes")


def make(root: Path) -> None:
    """Write every document: the scorecard, which the README counts, first."""
    all_runs.write_overall(*scorecard(root))
    folder = root / "docs" / "results" / RUN
    for path, text in texts(root).items():
        write(path, text)
    for name in FIGURES:
        write_figure(View(folder), name, folder / "figures", kinds=("png",), **{all_runs.KEY: digest(folder)})
