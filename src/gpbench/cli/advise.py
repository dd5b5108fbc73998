"""`gpbench advise TABLE --target y`: which methods can learn a table, their cost, and which a quick study prefers."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from gpbench import config, places
from gpbench.cli import data
from gpbench.config.schema import Dataset
from gpbench.errors import UserError, count
from gpbench.places import Places

if TYPE_CHECKING:
    from gpbench.report.view import View
    from gpbench.study.planning.plan import Plan

USUAL = {"study": "default", "splits": 5, "minutes": 10.0}


def add(commands: argparse._SubParsersAction) -> None:
    """Add `advise` to the commands of the command line."""
    text = "which methods can learn a table, their expected minutes, and which is best by a quick study of it"
    command = commands.add_parser("advise", help=text, description=text)
    command.add_argument("table", help="a CSV, which is added as `data add` does, or the name of a data set")
    data.add_wishes(command, required=False)
    command.add_argument("--study", default=USUAL["study"], help="whose methods are asked; default: %(default)s")
    command.add_argument("--splits", type=int, default=USUAL["splits"], help="of the quick study; default: %(default)s")
    text = "of one core that the quick study may take; the dearest methods are left out; default: %(default)s"
    command.add_argument("--minutes", type=float, default=USUAL["minutes"], help=text)
    command.add_argument("--run", action="store_true", help="run the quick study; default: say what it would take")
    command.set_defaults(function=advise)


def advise(arguments: argparse.Namespace) -> None:
    from gpbench.study.planning import plan as planning

    if arguments.splits < 2 or not arguments.minutes > 0:
        raise UserError("--splits must be 2 or more, to tell how certain the advice is, and --minutes positive")
    where = places.find()
    dataset = _dataset(arguments, where)
    words = f"datasets=[{dataset.name}] splits={arguments.splits} published=[]"
    plan = planning.make(where, arguments.study, words)
    cells = {cell.method: cell for cell in plan.cells if not cell.skip}
    if len(cells) < 2:
        raise UserError("fewer than two methods of the study can learn this; see --study and `gpbench list methods`")
    done = [m for m, cell in cells.items() if all(plan.states[fit.fit_id].name != "pending" for fit in cell.fits)]
    minutes = {m: len(c.fits) * plan.cost.seconds(c) * c.cores / 60 for m, c in cells.items() if m not in done}
    wanted = _affordable(minutes, arguments.minutes, least=2 - len(done))
    alone = f"; of its targets {dataset.source.targets[0]} alone" * (len(dataset.source.targets) > 1)
    print(f"{dataset.name}: {dataset.task}, {dataset.rows:,} rows x {dataset.columns} inputs{alone}")
    print(f"expected minutes of one core for {arguments.splits} splits at the budget of study {arguments.study}:")
    for method in sorted(cells, key=lambda m: minutes.get(m, 0.0)):
        shown = f"{minutes[method]:8.2f}" if method in minutes else f"{'ended':>8}"
        print(f"  {method:<20}{shown}" + "  left out" * (method in minutes and method not in wanted))
    for cell in (cell for cell in plan.cells if cell.skip):
        print(f"  {cell.method:<20}  cannot: {cell.skip}")
    if len(done) < 2 and not arguments.run:
        left = sum(minutes[method] for method in wanted)
        print(f"A quick study of {count(len(done) + len(wanted), 'method')} takes about {left:.1f} minutes of a core.")
        print("It says which of them is best here, and how certain that is.")
        given = [f"--{key} {value}" for key, usual in USUAL.items() if (value := getattr(arguments, key)) != usual]
        print(f"next: {' '.join(['gpbench advise', dataset.name, *given])} --run")
        return
    compared = [method for method in cells if method in done or (method in wanted and arguments.run)]
    quick = planning.make(where, arguments.study, f"{words} only=[{','.join(compared)}]")
    best, lines = _recommendation(_view(where, quick), dataset.name)
    print("\n".join(lines))
    print(f"all tests and figures: {quick.command}")
    print(f"next: gpbench fit method={best} dataset={dataset.name} split=all")


def _dataset(arguments: argparse.Namespace, where: Places) -> Dataset:
    """The data set of that name, or the CSV, added unless it was."""
    from gpbench.data import own, prepare

    known = config.options(where.conf, "dataset")
    path = Path(arguments.table)
    name = own.name_of(path, arguments.name) if path.is_file() else arguments.table
    added = where.raw / name / path.name
    if path.is_file() and not (name in known and added.is_file() and added.read_bytes() == path.read_bytes()):
        if not arguments.target:
            raise UserError(f"name the column of {path} to predict: --target COLUMN")
        arguments.table = path
        return data.own_dataset(arguments, where)
    if name not in known and path.suffix:
        raise UserError(f"{path} is not a file; give a CSV, or the name of a data set (`gpbench data list`)")
    config.require_known("data set or CSV", [name], known)
    dataset: Dataset = config.compose(where.conf, "dataset", name)
    _refuse_others(arguments, dataset)
    prepare.ensure(dataset, where)
    return dataset


def _refuse_others(arguments: argparse.Namespace, dataset: Dataset) -> None:
    """UserError for wishes that are not those with which a data set was added."""
    held = {"target": dataset.source.targets, "categorical": [*dataset.source.categories], "drop": dataset.drop}
    held |= {"missing": [dataset.source.missing], "task": [dataset.task], "name": [dataset.name]}
    for key, values in held.items():
        wishes = [given] if isinstance(given := getattr(arguments, key) or [], str) else given
        if wishes and (wishes != values if key == "target" else {*wishes} != {*values}):
            message = f"{dataset.name} was added with --{key} {' '.join(values) or 'NOTHING'}, not {' '.join(wishes)}"
            raise UserError(f"{message}; leave out --{key}, or add the table again by another --name")


def _affordable(minutes: dict[str, float], most: float, least: int) -> list[str]:
    """The cheapest methods that take at most so many minutes together, and `least` of them at any rate."""
    chosen: list[str] = []
    for method in sorted(minutes, key=lambda name: minutes[name]):
        if len(chosen) < least or sum(minutes[name] for name in [*chosen, method]) <= most:
            chosen.append(method)
    return chosen


def _view(where: Places, quick: Plan) -> View:
    """The quick study, run and collected."""
    from gpbench.report.view import View
    from gpbench.study.commands import job
    from gpbench.study.planning import plan as planning
    from gpbench.study.results import collect

    job.run_groups(tuple(group for batch in quick.batches for group in batch.groups), where)
    planning.freeze(quick, where)
    collect.collect(where, quick.name)
    return View(where.results / quick.name)


def _recommendation(view: View, dataset: str) -> tuple[str, list[str]]:
    """The best method; lines with the scores of all, and what the best cannot be told from."""
    from gpbench.report.significance.comparisons import ALPHA, differences_to_best

    cells = view.cells_of(dataset, "mnll")
    scores = cells.query("complete").sort_values("mean")
    differences = differences_to_best(view, "mnll", dataset)
    if differences.empty:
        raise UserError(f"fewer than two methods ended well; `gpbench verdict {view.study['name']}` says why")
    other = view.error_metric(dataset)
    errors = view.cells_of(dataset, other)["mean"]
    seconds = view.done.groupby("method")["seconds_train"].mean()
    lines = [
        f"held-out rows of the quick study, mean (sd) over {int(scores['n'].max())} splits, the best first:",
        f"  {'':<20}{'negative log density':>22}{other:>10}{'s a fit':>9}",
    ]
    for row in scores.itertuples():
        name = row.Index
        lines.append(f"  {name:<20}{f'{row.mean:.3f} ({row.sd:.3f})':>22}{errors[name]:>10.3g}{seconds[name]:>9.2f}")
    if left := [
        f"{name} ({cells.loc[name, 'statuses'] or 'undefined'})" for name in sorted({*view.methods} - {*scores.index})
    ]:
        lines.append(f"  not compared: {', '.join(left)}; `gpbench verdict {view.study['name']}` says why")
    best, significant = differences["best"].iloc[0], differences["p"] < ALPHA
    lines += [
        f"recommended: {best}, with the least negative log density; told from others by a paired t test of the splits",
        f"(Nadeau and Bengio, two-sided, p < {ALPHA}, not corrected for their number nor for the choice of the best).",
        f"better than {', '.join(differences.loc[significant, 'method']) or 'none of them for certain'}",
    ]
    for row in differences[~significant].itertuples():
        interval = f"{row.difference:.3f} nats more, 95 % {row.lower:.3f} to {row.upper:.3f}, p {row.p:.2g}"
        interval = interval if row.lower > float("-inf") else f"{row.difference:.3f} nats more on every split"
        lines.append(f"not told from {row.method}: {interval}; probably worse: {row.worse:.0%}")
    printed = seconds.round(2)  # of fits that seem to take as long, none is cheaper
    cheapest = min([best, *differences.loc[~significant, "method"]], key=lambda method: printed[method])
    if cheapest != best:
        lines.append(f"the cheapest of those: {cheapest}, {printed[cheapest]:.2f} s a fit, not {printed[best]:.2f} s")
    return best, lines
