"""`gpbench data ...`: the catalogue, its raw and prepared files. Heavy imports happen inside the commands."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from gpbench import config, places
from gpbench.cli import grammar
from gpbench.errors import UserError, count

if TYPE_CHECKING:
    from gpbench.config.schema import Dataset
    from gpbench.data.summary import Statistics
    from gpbench.places import Places


def add(commands: argparse._SubParsersAction) -> None:
    """Add the group `data` to the commands of the command line."""
    text = "the data sets: list, show, splits, verify, fetch, prepare, add, pin"
    group = commands.add_parser("data", help=text, description=text)
    actions = group.add_subparsers(dest="action", required=True, metavar="ACTION")

    def add_action(name: str, text: str, function: Callable, names: str | int) -> argparse.ArgumentParser:
        action = actions.add_parser(name, help=text, description=text)
        action.set_defaults(function=function)
        action.add_argument("datasets", nargs=names, metavar="NAME", help="a data set")
        return action

    text = "list data sets (default: all) with size, licence and state of their raw files"
    grammar.as_json(add_action("list", text, list_, "*"))
    action = add_action("show", "show source, files, licence, citation, statistics and picture of data sets", show, "+")
    action.add_argument("--no-picture", action="store_true", help="do not write results/data/NAME.png")
    action = add_action("verify", "verify the files of data sets (default: all); exit 1 if any is wrong", verify, "*")
    action.add_argument("--statistics", type=Path, metavar="FILE.csv", help="write statistics to FILE.csv and FILE.md")
    action = add_action("fetch", "fetch and verify the raw files of data sets", fetch, "*")
    action.add_argument("--files", nargs="+", default=[], metavar="ITEM", help="raw files, as paths below data/raw")
    add_action("prepare", "fetch, parse, check and store data sets", prepare, "+")
    action = add_action("splits", "the rows of splits as CSV: dataset, split, part, row, inputs, targets", splits, 1)
    action.add_argument("--protocol", default="common", help="default: %(default)s")
    action.add_argument("--split", type=int, nargs="+", default=[0], metavar="N", help="default: 0")
    text = "add a CSV of your own as a private data set, ready to fit"
    action = actions.add_parser("add", help=text, description=text)
    action.set_defaults(function=add_own)
    action.add_argument("table", type=Path, help="CSV whose first line names its columns")
    add_wishes(action, required=True)
    add_action("pin", "download raw files that data.dvc does not list yet, and pin them there", pin, "+")


def add_wishes(command: argparse.ArgumentParser, required: bool) -> None:
    """Add what a user says of a table of one's own."""
    command.add_argument("--target", nargs="+", required=required, metavar="COLUMN", help="what is predicted")
    command.add_argument("--categorical", nargs="+", default=[], metavar="COLUMN", help="inputs whose values are names")
    command.add_argument("--drop", nargs="+", default=[], metavar="COLUMN", help="neither inputs nor targets")
    command.add_argument("--missing", default="", metavar="CELL", help="drop rows with this cell; empty: an empty one")
    tasks = ["regression", "binary", "multiclass", "counts"]
    text = "default: classes of a target that is text or has two values"
    command.add_argument("--task", default="", choices=tasks, help=text)
    command.add_argument("--name", default="", help="default: that of the file")


def list_(arguments: argparse.Namespace) -> None:
    from gpbench.report.datasets import catalogue

    where = places.find()
    rows = catalogue.rows_of(_datasets(where, arguments.datasets), where)
    if arguments.json:
        grammar.print_json([dict(zip(map(str.lower, catalogue.HEAD), row, strict=True)) for row in rows])
    else:
        print("\n".join(catalogue.listing(rows)))


def show(arguments: argparse.Namespace) -> None:
    from gpbench.data import table
    from gpbench.report.datasets import catalogue

    where = places.find()
    for dataset in _datasets(where, arguments.datasets):
        print("\n".join(catalogue.entry(dataset, where)))
        if not where.prepared_file(dataset.name).is_file():
            print(f"  not prepared; run `gpbench data prepare {dataset.name}`")
            continue
        loaded = table.load(where.prepared_file(dataset.name), dataset.md5)
        print("\n".join(catalogue.contents(loaded, dataset)))
        if not arguments.no_picture:
            from gpbench.report.datasets.picture import save

            path = where.results / "data" / f"{dataset.name}.png"
            save(loaded, dataset, path)
            print(catalogue.line("picture", str(path)))


def verify(arguments: argparse.Namespace) -> None:
    where, out = places.find(), arguments.statistics
    if out and out.suffix != ".csv":
        raise UserError(f"--statistics {out}: the name must end in .csv (a .md file is written beside it)")
    datasets = _datasets(where, arguments.datasets)
    wrong: list[str] = []
    computed: list[tuple[Dataset, Statistics]] = []
    for dataset in datasets:
        faults, verified, statistics = _verify(dataset, where)
        verdict = f"OK: {', '.join(verified)}" if verified else "neither fetched nor prepared"
        print(f"{dataset.name}: {'WRONG: ' + '; '.join(faults) if faults else verdict}", flush=True)
        if faults:
            wrong.append(dataset.name)
        elif statistics:
            computed.append((dataset, statistics))
    if out:
        _write_statistics(computed, out)
    if wrong:
        raise UserError(f"{len(wrong)} of {len(datasets)} data sets are wrong: {', '.join(wrong)}; see the lines above")


def _verify(dataset: Dataset, where: Places) -> tuple[list[str], list[str], Statistics | None]:
    """What is wrong with the files of a data set, what is right, and the statistics of its prepared arrays."""
    from gpbench.data import prepare, summary, table
    from gpbench.data.readers import read

    files, statistics = dataset.source.files, None
    existing = [item for item in files if (where.raw / item).is_file()]
    faults = [fault for item, fault in prepare.raw_faults(dataset, where).items() if item in existing]
    verified = [f"{len(existing)} of {len(files)} raw files"] if existing else []
    try:
        if dataset.private and dataset.md5 and existing and read.read(dataset, where.raw).md5 != dataset.md5:
            raise UserError(f"{existing[0]} holds other data than was added; put it back, or add it by another --name")
        if where.prepared_file(dataset.name).is_file():
            prepare.require_current(dataset, where)
            statistics = summary.statistics(table.load(where.prepared_file(dataset.name), dataset.md5), dataset)
            summary.check(statistics, dataset)
            verified.append("prepared arrays and their statistics")
    except UserError as error:
        faults.append(str(error))
    return faults, verified, statistics


def _write_statistics(computed: list[tuple[Dataset, Statistics]], out: Path) -> None:
    """Statistics as CSV, and as Markdown beside it."""
    if not computed:
        raise UserError(f"{out} cannot be written: none of these data sets is prepared; run `gpbench data prepare`")
    from gpbench.report.datasets import catalogue
    from gpbench.report.tables import render

    overview = catalogue.overview(computed)
    places.write_text(out, overview.data.to_csv(index=False, lineterminator="\n"))
    places.write_text(out.with_suffix(".md"), render.to_markdown(overview))
    print(f"statistics of {count(len(computed), 'data set')}: {out} and {out.with_suffix('.md')}")


def fetch(arguments: argparse.Namespace) -> None:
    from gpbench.data.raw.fetch import fetch as fetch_items

    where = places.find()
    if not arguments.datasets and not arguments.files:
        raise UserError("nothing to fetch; name data sets (`gpbench data list` shows them) or raw files by --files")
    datasets = _datasets(where, arguments.datasets) if arguments.datasets else []
    fetch_items([*arguments.files, *_files(datasets)], where)
    for item in arguments.files:
        print(where.raw / item)
    for dataset in datasets:
        print(f"{dataset.name}: {', '.join(str(where.raw / item) for item in dataset.source.files) or _BUNDLED}")


def prepare(arguments: argparse.Namespace) -> None:
    from gpbench.data.prepare import prepare as prepare_one
    from gpbench.data.raw.fetch import fetch as fetch_items

    where = places.find()
    datasets = _datasets(where, arguments.datasets)
    fetch_items(_files(datasets), where)
    for dataset in datasets:
        print(f"{dataset.name}: md5 of the arrays {prepare_one(dataset, where)}", flush=True)


def pin(arguments: argparse.Namespace) -> None:
    from gpbench.data.raw.fetch import pin as pin_items

    where = places.find()
    for dataset in _datasets(where, arguments.datasets):
        if dataset.private:
            raise UserError(f"{dataset.name} is your own and data.dvc public; its entry in conf/dataset checks it")
        for line in pin_items(dataset.source.files, dataset.source.unpinned, where) or [_BUNDLED]:
            print(f"{dataset.name}: {line}", flush=True)


def own_dataset(arguments: argparse.Namespace, where: Places) -> Dataset:
    """The table of the arguments, added with their wishes."""
    from gpbench.data import own

    keys = ("categorical", "drop", "missing", "task", "name")
    wishes = own.Wishes(arguments.target, **{key: getattr(arguments, key) for key in keys})
    dataset, left_out = own.add(arguments.table, wishes, where)
    if wishes.missing:
        some = f"{left_out:,} of {dataset.rows + left_out:,} rows left out ({wishes.missing} cell)"
        print(some if left_out else f"no row has a cell {wishes.missing!r}")
    return dataset


def add_own(arguments: argparse.Namespace) -> None:
    dataset = own_dataset(arguments, places.find())
    classes = f" of {', '.join(map(repr, dataset.classes))}" if dataset.classes else ""
    what = f"{dataset.task}{classes}, {dataset.rows:,} rows x {dataset.columns} inputs"
    print(f"{dataset.name}: {what}; described in conf/dataset/{dataset.name}.yaml")
    all_targets = " protocol=common_all" if len(dataset.source.targets) > 1 else ""
    print(f"next: gpbench fit method=svgp dataset={dataset.name} split=all{all_targets}")
    if all_targets:
        print(f"Without protocol=common_all the first target alone is predicted, {dataset.source.targets[0]}.")


def splits(arguments: argparse.Namespace) -> None:
    import pandas as pd

    from gpbench.study.commands.challenge import Rows

    where = places.find()
    (dataset,) = _datasets(where, arguments.datasets)
    rows = Rows(where, config.compose(where.conf, "protocol", arguments.protocol), dataset.name)
    pd.concat([rows.listed(split) for split in dict.fromkeys(arguments.split)]).to_csv(sys.stdout, index=False)


_BUNDLED = "ships inside a package, no raw files"


def _datasets(where: Places, names: list[str]) -> list[Dataset]:
    """The named catalogue entries (all if none is named), in alphabetical order."""
    chosen = sorted(set(names) or config.options(where.conf, "dataset"))
    return [config.compose(where.conf, "dataset", name) for name in chosen]


def _files(datasets: list[Dataset]) -> list[str]:
    return [item for dataset in datasets for item in dataset.source.files]
