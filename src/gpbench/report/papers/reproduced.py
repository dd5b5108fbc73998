"""One figure or table of a paper, made from the results of a study, with a caption that states its provenance."""

import shlex
from dataclasses import replace
from pathlib import Path

from gpbench import config
from gpbench.errors import UserError
from gpbench.places import write_text
from gpbench.report.figures import draw, save
from gpbench.report.papers.items import PUBLISHED, Named
from gpbench.report.registry import FIGURES, TABLES
from gpbench.report.scorecard.one_run import scorecard, to_table
from gpbench.report.scorecard.published import read_published
from gpbench.report.significance.findings import splits_of
from gpbench.report.tables.render import Table, escape_markdown, write_formats
from gpbench.report.view import View, commits


def write_item(view: View, item: Named, published: Path, folder: Path) -> list[Path]:
    """Write `folder`/NAME.pdf, .png and .md for a figure, NAME.csv, .md, .html and .tex for a table."""
    if not item.table:
        return _write_figure(view, item, folder)
    table = _published(view, item, published) if item.table == PUBLISHED else TABLES[item.table].function(view)
    note = " ".join(filter(None, (table.note, view.warning, provenance(view, item))))
    return write_formats(replace(table, caption=title(item), note=note), folder / item.name)


def _write_figure(view: View, item: Named, folder: Path) -> list[Path]:
    """The caption is written beside the figure and into the properties of the PDF."""
    caption = " ".join(filter(None, (FIGURES[item.figure].caption, view.failing, view.still_improving)))
    texts = title(item), caption, provenance(view, item)
    pdf = {"Title": texts[0], "Subject": " ".join(texts[1:]), "Creator": "gpbench"}
    text = "**{}**\n\n{}\n\n{}\n".format(*map(escape_markdown, texts))
    return [*save(draw(view, item.figure), folder / item.name, pdf=pdf), write_text(folder / f"{item.name}.md", text)]


def _published(view: View, item: Named, folder: Path) -> Table:
    rows = read_published(folder)
    rows = rows[(rows["source"] == item.paper) & (rows["item"] == item.printed)]
    if rows.empty:
        named = f"conf/paper/{item.paper}.yaml"
        raise UserError(f"{folder}/{item.paper}.csv has no item {item.printed!r}, which is named in {named}")
    return to_table(scorecard(view, rows))


def title(item: Named) -> str:
    """What the item shows, and its place in the paper."""
    return f"{item.title} ({item.paper}, {item.printed or item.item})"


def provenance(view: View, item: Named) -> str:
    """Data, protocol, budget, splits, fits done of those expected (with the status of the others), commits, command."""
    study, fits = view.study, view.fits
    lacks = f"Lacks {item.lacks}. " if item.lacks else ""
    counts = fits["status"].value_counts()
    others = ", ".join(f"{n} {status}" for status, n in counts.items() if status != "done")
    known = ", ".join(commits(fits, 7, mark_dirty=True)) or "unknown"
    replicas = fits["replica"].nunique()
    chains = f" of {replicas} chains or restarts each" * (replicas != 1)
    return (
        f"{lacks}Data: {', '.join(study['datasets'])}. "
        f"Protocol {study['protocol']}, budget {study['budget']}, {splits_of(view)[1]}{chains}. "
        f"{counts.get('done', 0)} of {len(fits)} fits done" + (f" ({others})" if others else "") + "; "
        f"commit {known}. Study {study['title']!r} (results/{study['name']}) made by `{study['command']}`; "
        f"this item by `{command(view, item)}`."
    )


def command(view: View, item: Named) -> str:
    """What makes an item again, with the overrides that its run has besides the item's own."""
    _, overrides = config.command_words(view.study["command"])
    of_item = set(shlex.split(item.overrides))
    more = config.joined(word for word in shlex.split(overrides) if word not in of_item)
    return f"snakemake --cores 2 {item.target}" + (f" --config overrides={shlex.quote(more)}" if more else "")
