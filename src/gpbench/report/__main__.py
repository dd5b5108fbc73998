"""Write outputs of a study: `python -m gpbench.report figure results/default convergence`."""

import argparse
import sys
from pathlib import Path

from gpbench import places
from gpbench.errors import exit_status
from gpbench.report.registry import names


def parser() -> argparse.ArgumentParser:
    """The subcommands and their arguments."""
    folder, published = (argparse.ArgumentParser(add_help=False) for _ in range(2))
    folder.add_argument("folder", type=Path, help="results/NAME, or committed records: docs/results/NAME")
    published.add_argument("--published", type=Path, default=Path("published"), help="folder of published numbers")
    top = argparse.ArgumentParser(prog="python -m gpbench.report", description=__doc__)
    commands = top.add_subparsers(dest="command", required=True)
    for command in ("table", "figure"):
        drawn = commands.add_parser(command, parents=[folder], help=f"write FOLDER/{command}s/NAME.*")
        drawn.add_argument("names", nargs="*", help=f"default: all {command}s of the study")
    commands.add_parser("statistics", parents=[folder])
    for command in ("scorecard", "page"):
        commands.add_parser(command, parents=[folder, published])
    item = commands.add_parser("item", parents=[folder, published], help="a figure or table of a paper, with caption")
    item.add_argument("name", help="citation key and item: cutajar2017_fig2")
    item.add_argument("out", type=Path, help="folder to write to")
    documents = commands.add_parser("documents", help="tables and figures of committed runs in the documentation")
    documents.add_argument("--check", action="store_true", help="write nothing; fail if a file is stale")
    return top


def run(arguments: argparse.Namespace) -> None:
    """Write the requested output, importing only its libraries."""
    if arguments.command == "documents":
        from gpbench.report.export import documents

        (documents.check if arguments.check else documents.make)(places.find().root)
        return
    from gpbench.report.view import View

    view, folder = View(arguments.folder), arguments.folder
    if arguments.command == "table":
        from gpbench.report.tables.standard import write_table

        for name in arguments.names or names(view.study, "tables"):
            write_table(View(folder), name, folder / "tables")  # its own: one may change what it was given
    elif arguments.command == "figure":
        from gpbench.report.figures import write_figure

        for name in arguments.names or names(view.study, "figures"):
            write_figure(View(folder), name, folder / "figures")
    elif arguments.command == "item":
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
