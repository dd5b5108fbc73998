"""`gpbench advise TABLE --target y`: which methods can learn a table, their cost, and which a quick study prefers."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from gpbench import config, places
from gpbench.cli import data
from gpbench.errors import UserError, count, unknown

if TYPE_CHECKING:
    from gpbench.config.schema import Dataset
    from gpbench.places import Places
    from gpbench.report.view import View
    from gpbench.study.planning.plan import Plan


def add(commands: argparse._SubParsersAction) -> None:
    """Add `advise` to the commands of the command line."""
    text = "which methods can learn a table, their expected minutes, and which is best by a quick study of it"
    command = commands.add_parser("advise", help=text, description=text)
    command.add_argument("table", help="a CSV, which is added as `data add` does, or the name of a data set")
    data.add_wishes(command, required=False)
    command.add_argument("--study", default="default", help="whose methods are asked; default: %(default)s")
    command.add_argument("--splits", type=int, default=5, help="of the quick study; default: %(default)s")
    text = "of one core that the quick study may take; the dearest methods are left out; default: %(default)s"
    command.add_argument("--minutes", type=float, default=10.0, help=text)
    command.add_argument("--run", action="store_true", help="run the quick study; default: say what it would take")
    command.set_defaults(function=advise)


def advise(arguments: argparse.Namespace) -> None:
    from gpbench.study.planning import plan as planning

    if arguments.splits < 2 or not arguments.minutes > 0:
        raise UserError("--splits must be 2 or more, to tell how certain the advice is, and --minutes positive")
    where = places.find()
    dataset = _dataset(arguments, where)
    words = f"datasets=[{dataset.name}] splits={arguments.splits} published=[]"
    minutes, skipped = _costs(planning.make(where, arguments.study, words))
    chosen = _affordable(minutes, arguments.minutes)
    print(f"{dataset.name}: {dataset.task}, {dataset.rows:,} rows x {dataset.columns} inputs")
    print(f"expected minutes of one core for {arguments.splits} splits at the budget of study {arguments.study}:")
    for method, expected in sorted(minutes.items(), key=lambda item: item[1]):
        print(f"  {method:<20}{expected:8.1f}" + "  left out" * (method not in chosen))
    for method, reason in skipped.items():
        print(f"  {method:<20} cannot: {reason}")
    words += f" only=[{','.join(chosen)}]"
    quick = planning.make(where, arguments.study, words)
    if quick.batches and not arguments.run:
        left = sum(minutes[method] for method in chosen)
        print(f"The quick study of {count(len(chosen), 'method')} takes about {left:.1f} minutes of one core. It says")
        print("which of them is best here, and how certain that is.")
        print(f"next: {_again(arguments, dataset)} --run")
        return
    print(*_recommendation(_view(where, quick), dataset.name), sep="\n")
    print(f"all tests and figures: {quick.command}")


def _dataset(arguments: argparse.Namespace, where: Places) -> Dataset:
    """The data set of that name, or the CSV, added."""
    from gpbench.data import prepare

    known = config.options(where.conf, "dataset")
    if not Path(arguments.table).is_file():
        if arguments.table not in known:
            raise unknown("data set or CSV", arguments.table, known)
        dataset: Dataset = config.compose(where.conf, "dataset", arguments.table)
        prepare.ensure(dataset, where)
        return dataset
    if not arguments.target:
        raise UserError(f"name the column of {arguments.table} to predict: --target COLUMN")
    arguments.table = Path(arguments.table)
    return data.own_dataset(arguments, where)


def _again(arguments: argparse.Namespace, dataset: Dataset) -> str:
    """The same command on the data set that there is now."""
    changed = {"study": "default", "splits": 5, "minutes": 10.0}
    words = [f"--{key} {getattr(arguments, key)}" for key, usual in changed.items() if getattr(arguments, key) != usual]
    return " ".join(["gpbench advise", dataset.name, *words])


def _costs(plan: Plan) -> tuple[dict[str, float], dict[str, str]]:
    """Method -> minutes that its fits take, done or not, and of those that cannot learn the data, why."""
    minutes = {c.method: len(c.fits) * plan.cost.seconds(c) / 60 for c in plan.cells if not c.skip}
    return minutes, {c.method: c.skip for c in plan.cells if c.skip}


def _affordable(minutes: dict[str, float], most: float) -> list[str]:
    """The cheapest methods that take at most so many minutes together; two at least, for one is no comparison."""
    chosen: list[str] = []
    for method in sorted(minutes, key=lambda name: minutes[name]):
        if len(chosen) < 2 or sum(minutes[name] for name in [*chosen, method]) <= most:
            chosen.append(method)
    if len(chosen) < 2:
        raise UserError("fewer than two methods can learn this; `gpbench list methods` has others, see --study")
    return [method for method in minutes if method in chosen]


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


def _recommendation(view: View, dataset: str) -> Iterator[str]:
    """Scores, the best method with what it cannot be told from, and the next command."""
    from gpbench.report.significance.comparisons import ALPHA, differences_to_best

    scores = view.cells("mnll").query("complete").sort_values("mean")
    other = "rmse" if view.fits["task"].iloc[0] in ("regression", "counts") else "error"
    errors = view.cells(other).set_index("method")["mean"]
    seconds = view.done.groupby("method")["seconds_train"].mean()
    yield f"held-out rows of the quick study, mean (sd) over {int(scores['n'].max())} splits, the best first:"
    yield f"  {'':<20}{'negative log density':>22}{other:>10}{'s a fit':>9}"
    for row in scores.itertuples():
        name = row.method
        yield f"  {name:<20}{f'{row.mean:.3f} ({row.sd:.3f})':>22}{errors[name]:>10.3g}{seconds[name]:>9.2f}"
    if failed := sorted(set(view.methods) - set(scores["method"])):
        yield f"  without scores: {', '.join(failed)}; `gpbench verdict {view.study['name']}` says why"
    differences = differences_to_best(view, "mnll", dataset)
    if differences.empty:
        raise UserError("fewer than two methods ended well; `gpbench verdict` says why")
    best = differences["best"].iloc[0]
    alike = differences[~(differences["p"] < ALPHA)]
    yield f"recommended: {best}, with the least negative log density; told from others by a paired t test of the splits"
    yield f"(Nadeau and Bengio, two-sided, p < {ALPHA}, not corrected for their number). Better than"
    yield f"{', '.join(differences.loc[differences['p'] < ALPHA, 'method']) or 'none of them for certain'}."
    for row in alike.itertuples():
        interval = f"{row.difference:.3f} nats more, 95 % {row.lower:.3f} to {row.upper:.3f}, p {row.p:.2g}"
        yield f"not told from {row.method}: {interval}; probably worse: {row.worse:.0%}"
    cheapest = min([best, *alike["method"]], key=lambda method: seconds[method])
    if cheapest != best:
        yield f"the cheapest of those: {cheapest}, {seconds[cheapest]:.2f} s a fit in place of {seconds[best]:.2f} s"
    yield f"next: gpbench fit method={best} dataset={dataset} split=all"
