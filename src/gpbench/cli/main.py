"""Command line: data, plan, fit, collect, look. Heavy imports happen inside the commands that need them."""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gpbench import places
from gpbench.cli import data
from gpbench.errors import UserError, count

Commands = Any
"""What `add_subparsers` returns, whose type argparse does not export."""


def parser() -> argparse.ArgumentParser:
    """The commands and their arguments."""
    top = argparse.ArgumentParser(prog="gpbench", description="Reproducible comparison of (deep) GP inference.")
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    add_planning(commands)
    add_fitting(commands)
    add_results(commands)
    data.add(commands)
    return top


def add(commands: Commands, name: str, text: str, function: Callable) -> argparse.ArgumentParser:
    command = commands.add_parser(name, help=text, description=text)
    command.set_defaults(function=function)
    return command


def add_of_study(commands: Commands, name: str, text: str, function: Callable) -> argparse.ArgumentParser:
    """A command about a study and its overrides."""
    command = add(commands, name, text, function)
    command.add_argument("study", nargs="?", default="default")
    command.add_argument("--overrides", default="", help="as in snakemake --config overrides='...'")
    return command


def add_planning(commands: Commands) -> None:
    one = add_of_study(commands, "plan", "each fit of a study with its state, reason and expected minutes", plan)
    one.add_argument("--pending", action="store_true", help="only what would run")
    one = add_of_study(commands, "cost", "predicted hours and memory of a study's fits", cost)
    one.add_argument("--all", action="store_true", help="of all its fits, not only of those that are to be run")
    one.add_argument("--cores", type=int, default=2, help="for the time by the clock; default: %(default)s")
    one = add(commands, "why", "what moved since fits were made, or why they are skipped, missing or failed", why)
    one.add_argument("cell", nargs="+", help="dsvi/boston, method=dsvi dataset=boston study=..., or a fit's identity")
    one = add(commands, "new", "write a working method to start from, its module and its YAML", new)
    one.add_argument("what", choices=["method"])
    one.add_argument("name")
    one.add_argument("--out", type=Path, help="folder of a Python package of your own; default: this project")
    add(commands, "reference", "the configuration reference, as Markdown", reference)


def add_fitting(commands: Commands) -> None:
    one = add(commands, "fit", "fit one cell: method=dsvi dataset=boston split=0 method.layers=3", fit)
    one.add_argument("settings", nargs="+", metavar="key=value")
    one = add_of_study(commands, "status", "what is running, how far, and what is finished", status)
    one.add_argument("--watch", action="store_true", help="again every two seconds")
    one = add(commands, "retry", "move failed fits aside, so that the next run fits them again", retry)
    one.add_argument("fits", nargs="*", help="beginnings of identities; default: all")
    one = add(
        commands, "predict", "predict by a fitted model: mean, sd and quantiles, or probabilities, as CSV", predict
    )
    one.add_argument("fit", help="beginning of a fit's identity")
    one.add_argument("table", type=Path, help="CSV with the data set's input names as header")
    one.add_argument("--out", type=Path, help="file to write; default: standard output")
    one = add(commands, "adopt", "keep a run's fits after code was moved, if they come out again", adopt)
    one.add_argument("run", help="a folder of docs/results, or a study")
    one.add_argument("--overrides", default="", help="of a study, as in snakemake --config overrides='...'")
    one.add_argument("--check", type=int, default=1, metavar="N", help="fits to refit of each method and task")
    one.add_argument("--against", type=Path, metavar="CHECKOUT", help="of the code that made them, to refit beside it")
    add(commands, "track", "log finished fits to MLflow", track)
    add(commands, "unlock", "free Snakemake's lock if the process that holds it is dead", unlock)


def add_results(commands: Commands) -> None:
    add(commands, "collect", "gather a planned study's results", collect).add_argument("name")
    add_of_study(commands, "record", "add a study's finished fits to its committed records in docs/results/", record)
    text = "list the fits of a planned study that are not done, then exit 1, and chains that have not converged"
    add(commands, "verdict", text, verdict).add_argument("name")
    add_of_study(commands, "cite", "BibTeX of the methods, data sets and protocol that a study uses", cite)
    add(commands, "crate", "pack a finished study as an RO-Crate: results/NAME/crate.zip", crate).add_argument("name")
    add(commands, "papers", "the figures and tables that can be made by name, as Markdown", papers)


def plan(arguments: argparse.Namespace) -> None:
    from gpbench.study.planning import plan as planning

    made = planning.make(places.find(), arguments.study, arguments.overrides)
    for remark in made.remarks:
        print(f"remark: {remark}")
    total = 0.0
    for cell in made.cells:
        minutes = made.cost.seconds(cell) / 60
        for fit in cell.fits:
            state, reason = made.states.get(fit.fit_id, ("skipped", cell.skip))
            total += minutes if state == "pending" else 0.0
            if state == "pending" or not arguments.pending:
                expected = f"{minutes:6.2f} min" if state == "pending" else " " * 10
                where = f"{cell.method} {cell.address.dataset} split {fit.split}"
                print(f"{fit.fit_id}  {where:<40} {state:<9} {expected}  {reason}")
    states = [state.name for state in made.states.values()]
    skipped = sum(len(cell.fits) for cell in made.cells if cell.skip)
    print(
        f"{made.name}: {count(states.count('pending'), 'fit')} to run in {count(len(made.batches), 'job')}, about "
        f"{total:.1f} minutes of one core; {states.count('done')} done, {skipped} skipped, "
        f"{len(states) - states.count('pending') - states.count('done')} failed"
    )


def fit(arguments: argparse.Namespace) -> None:
    import json

    from gpbench.study.commands import fit_one, job
    from gpbench.study.results.scoring import mixing, scores
    from gpbench.study.storage.store import Store

    where = places.find()
    groups, fit_ids = fit_one.groups(where, arguments.settings)
    store = Store(where.store)
    if groups:
        job.run_groups(groups, where)
    for fit_id in fit_ids:
        if not store.has(fit_id):
            raise UserError(f"fit {fit_id} is not finished; run the same command again to resume it")
        record = store.record(fit_id)
        result = {"fit_id": fit_id, "status": record.status, **scores(store, record), **mixing(store, [fit_id])}
        print(json.dumps(result, indent=1))
        if record.status != "done":
            raise UserError(f"fit {fit_id}: {record.status}: {record.reason}; log: {store.folder(fit_id)}/log.txt")


def cost(arguments: argparse.Namespace) -> None:
    from gpbench.study.planning import estimate
    from gpbench.study.planning import plan as planning

    if arguments.cores < 1:
        raise UserError(f"--cores must be a positive integer, got {arguments.cores}")
    made = planning.make(places.find(), arguments.study, arguments.overrides)
    print("\n".join(estimate.lines(estimate.Estimate(made, arguments.all), arguments.cores)))


def why(arguments: argparse.Namespace) -> None:
    from gpbench.study.commands import why as reasons

    print("\n".join(reasons.why(places.find(), arguments.cell)))


def new(arguments: argparse.Namespace) -> None:
    from gpbench import config
    from gpbench.study.commands import new_method

    for path in new_method.method(places.find(), arguments.name, arguments.out):
        print(path)
    if arguments.out:
        print(f"name the package in an entry point of {config.ENTRY_POINTS!r} and install it (docs/adding.md)")
    print(f"try it: pytest tests/conformance -k {arguments.name}")


def status(arguments: argparse.Namespace) -> None:
    import time

    from gpbench.study.commands import progress
    from gpbench.study.planning import plan as planning
    from gpbench.study.storage.store import Store

    where = places.find()
    store = Store(where.store)
    while True:
        made = planning.make(where, arguments.study, arguments.overrides)
        states = [state.name for state in made.states.values()]
        counts = ", ".join(f"{states.count(s)} {s}" for s in sorted(set(states)))
        left = sum(batch.seconds for batch in made.batches)
        print(f"{made.name}: {counts or 'no fits'}; about {left / 60:.1f} minutes of one core left")
        for group in store.groups():
            running = any(store.busy(fit.fit_id) for fit in group.fits)
            at = store.progress(group.group_id)
            print(
                f"  {'running' if running else 'interrupted'}: {progress.name(group)}: "
                f"{progress.describe(at) if at else 'starting'}"
            )
        if not arguments.watch:
            return
        time.sleep(2)


def retry(arguments: argparse.Namespace) -> None:
    from gpbench.study.storage.store import Store

    store = Store(places.find().store)
    chosen = [store.find(prefix) for prefix in arguments.fits] or store.ids()
    failed = [fit_id for fit_id in chosen if not store.ended_well(fit_id)]
    store.clear(failed)
    aside = f" (moved to {store.cleared})" if failed else ""
    print(f"{count(len(failed), 'fit')} cleared{aside}; the next run fits them again")


def predict(arguments: argparse.Namespace) -> None:
    from gpbench.study.commands import predict_csv

    predict_csv.answer(places.find(), arguments.fit, arguments.table, arguments.out)


def collect(arguments: argparse.Namespace) -> None:
    from gpbench.study.results import collect as collecting

    counts = collecting.collect(places.find(), arguments.name)
    print(f"{arguments.name}: {', '.join(f'{n} {status}' for status, n in sorted(counts.items()))}")


def record(arguments: argparse.Namespace) -> None:
    from gpbench.study.planning import plan as planning
    from gpbench.study.results import collect as collecting

    where = places.find()
    frozen = planning.make(where, arguments.study, arguments.overrides).frozen
    new, total = collecting.record(where, frozen)
    print(f"{frozen.name}: {count(new, 'fit')} added, {total} in docs/results/{frozen.name}/scores.csv")


def adopt(arguments: argparse.Namespace) -> None:
    from gpbench.study.commands import adopt as adopting

    if arguments.check < 1:
        raise UserError(f"--check must be a positive integer, got {arguments.check}")
    lines = adopting.adopt(places.find(), arguments.run, arguments.overrides, arguments.check, arguments.against)
    print("\n".join(lines))
    if stale := [line for line in lines if line.startswith("stays stale")]:
        raise UserError(f"{len(stale)} of {len(lines)} were not adopted; run the study to fit them again")


def verdict(arguments: argparse.Namespace) -> None:
    from gpbench.study.results import collect as collecting

    where = places.find()
    unmixed = collecting.not_converged(where, arguments.name)
    for line in unmixed:
        print(line, file=sys.stderr)
    lines = collecting.not_done(where, arguments.name)
    if lines:
        print("\n".join(lines), file=sys.stderr)
        failed = f"{count(len(lines), 'fit')} of {arguments.name} failed or {'are' if len(lines) > 1 else 'is'} missing"
        raise UserError(f"{failed}; `gpbench retry` clears what failed")
    but = f", but the chains of {count(len(unmixed), 'split')} have not converged" if unmixed else ""
    print(f"{arguments.name}: every fit is done{but}; open results/{arguments.name}/report.html")


def cite(arguments: argparse.Namespace) -> None:
    from gpbench.report.export import citations

    print(citations.of_study(places.find(), arguments.study, arguments.overrides), end="")


def crate(arguments: argparse.Namespace) -> None:
    from gpbench.report.export import crate as crates

    print(crates.write(places.find(), arguments.name))


def track(arguments: argparse.Namespace) -> None:
    from gpbench.study import tracking

    print(f"{tracking.drain(places.find())} fits logged")


def reference(arguments: argparse.Namespace) -> None:
    from gpbench.config.reference import reference as text

    print(text(places.find().conf), end="")


def papers(arguments: argparse.Namespace) -> None:
    from gpbench.report.papers.listing import papers as text

    print(text(places.find()), end="")


def unlock(arguments: argparse.Namespace) -> None:
    from gpbench.study.storage import snakemake_lock

    print(snakemake_lock.unlock(places.find().root))


def main(words: list[str] | None = None) -> int:
    """Exit status: 0, 1 after one line on standard error, 130 after Ctrl-C."""
    arguments = parser().parse_args(words)
    try:
        arguments.function(arguments)
    except UserError as error:
        print(f"gpbench: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        with contextlib.suppress(OSError):
            sys.stdout.close()
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
