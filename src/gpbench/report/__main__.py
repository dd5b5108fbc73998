"""Write one output of a study: `python -m gpbench.report figure results/quick convergence`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from gpbench.errors import exit_status
from gpbench.report import names


def parser() -> argparse.ArgumentParser:
    """Arguments: table | figure FOLDER [NAME ...], statistics | scorecard | page FOLDER, item FOLDER NAME,
    documents."""
    top = argparse.ArgumentParser(prog="python -m gpbench.report", description=__doc__)
    commands = top.add_subparsers(dest="command", required=True)
    for command in ("table", "figure"):
        one = commands.add_parser(command, help=f"FOLDER/{command}s/NAME.*")
        one.add_argument("folder", type=Path)
        one.add_argument("names", nargs="*", help="default: all of the study")
    for command in ("statistics", "scorecard", "page"):
        one = commands.add_parser(command)
        one.add_argument("folder", type=Path)
        if command != "statistics":
            one.add_argument("--published", type=Path, default=Path("published"), help="folder of published numbers")
    one = commands.add_parser("item", help="a figure or table of a paper, with its caption")
    one.add_argument("folder", type=Path)
    one.add_argument("name", help="citation key and item: cutajar2017_fig2")
    one.add_argument("out", type=Path, help="folder to write to")
    one.add_argument("--published", type=Path, default=Path("published"), help="folder of published numbers")
    every = commands.add_parser("documents", help="what the documentation shows of committed runs")
    every.add_argument("--check", action="store_true", help="write nothing; fail where the files are stale")
    return top


def run(arguments: argparse.Namespace) -> None:
    """Write what the arguments name; only that output's libraries are imported."""
    if arguments.command == "documents":
        from gpbench import places
        from gpbench.report.export import documents

        (documents.check if arguments.check else documents.make)(places.find().root)
        return
    from gpbench.report.view import View

    view, folder = View(arguments.folder), arguments.folder
    if arguments.command == "table":
        from gpbench.report.tables.standard import write_table

        for name in arguments.names or names(view.study, "tables"):
            write_table(view, name, folder / "tables")
    elif arguments.command == "figure":
        from gpbench.report.figures import write_figure

        for name in arguments.names or names(view.study, "figures"):
            write_figure(view, name, folder / "figures")
    elif arguments.command == "item":
        from gpbench import places
        from gpbench.report.papers.items import find
        from gpbench.report.papers.reproduced import write_item

        write_item(view, find(places.find().conf, arguments.name), arguments.published, arguments.out)
    elif arguments.command == "statistics":
        from gpbench.report.significance.comparisons import write_statistics

        write_statistics(view, folder)
    elif arguments.command == "scorecard":
        from gpbench.report.scorecard.one_run import write_scorecard

        write_scorecard(view, arguments.published, folder)
    else:
        from gpbench.report.page.page import write_page

        write_page(view, folder, arguments.published)


def main(arguments: list[str] | None = None) -> int:
    """Exit status: 0, or 1 after one line on standard error."""
    return exit_status(lambda: run(parser().parse_args(arguments)))


if __name__ == "__main__":
    sys.exit(main())
