"""Command line: data, plan, fit, collect, look. Heavy imports happen inside the commands that need them."""

import argparse
import contextlib
import json
import math
import signal
import sys
from collections.abc import Callable
from importlib import metadata
from pathlib import Path

from gpbench import config, places
from gpbench.cli import advise, data, grammar, lists
from gpbench.cli.grammar import Parser
from gpbench.cli.look import cost, plan, planned, status
from gpbench.errors import UserError, count, exit_status
from gpbench.study.storage.store import Store


def parser() -> argparse.ArgumentParser:
    """The commands, each named after its function, and their arguments."""
    elsewhere = (
        "a figure or table of a run: `python -m gpbench.report figure results/RUN NAME`; of a paper: `gpbench papers`; "
        "your own data: docs/own-data.md; your own method: docs/adding.md"
    )
    top = Parser(prog="gpbench", description="Reproducible comparison of (deep) GP inference.", epilog=elsewhere)
    top.add_argument("--version", action="version", version=f"gpbench {metadata.version('gpbench')}")
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def add(function: Callable, text: str, *parents: Parser) -> argparse.ArgumentParser:
        command = commands.add_parser(function.__name__, help=text, description=text, parents=parents)
        command.set_defaults(function=function)
        return command

    _add_study_commands(add)
    _add_fit_commands(add)
    command = add(references, "reference posteriors, and how far the draws of samplers are from them")
    command.add_argument("name", nargs="?", help="of a reference posterior; default: list them")
    command.add_argument("--draws", type=Path, metavar="CSV", help="draws to score; default: chains in the store")
    command.add_argument("--out", type=Path, metavar="CSV", help="file for the scores of every number")
    add(reference, "the configuration reference, as Markdown")
    add(papers, "the figures and tables that can be made by name, as Markdown")
    add(verify, "check every fit of the store by its seals, and the committed records; then exit 1 if one is damaged")
    command = add(track, "log finished fits to MLflow")
    command.add_argument("--anew", action="store_true", help="all fits of the store, as after a database was lost")
    add(push, "send done fits, and checkpoints of those that nobody is at, to the place that GPBENCH_REMOTE names")
    add(pull, "fetch the fits and checkpoints that the store lacks from the place that GPBENCH_REMOTE names")
    add(unlock, "free Snakemake's lock if the process that holds it is dead")
    command = add(completion, 'a script that completes commands in a shell: eval "$(gpbench completion bash)"')
    command.add_argument("shell", choices=["bash", "zsh", "tcsh"])
    data.add(commands)
    lists.add(commands)
    advise.add(commands)
    return top


def _add_study_commands(add: Callable[..., argparse.ArgumentParser]) -> None:
    study = grammar.study()
    command = add(plan, "each fit of a study with its state, reason and expected minutes", study)
    command.add_argument("--pending", action="store_true", help="only fits that would run")
    grammar.as_json(command)
    command = add(cost, "hours and memory that a study's fits will take, learned from measured ones", study)
    command.add_argument("--all", action="store_true", help="of all its fits, not only of those that are to be run")
    command.add_argument("--cores", type=int, default=2, help="for the time by the clock; default: %(default)s")
    grammar.as_json(command)
    add(certify, "refit a split of each cell at four times its steps, to see whether it had converged", study)
    command = add(status, "what is running, how far, and what is finished", grammar.study(default=""))
    command.add_argument("--watch", action="store_true", help="again every two seconds")
    grammar.as_json(command)
    command = add(record, "add a study's finished fits to its committed records, docs/results/RUN/", study)
    command.add_argument("--merge", type=Path, metavar="FOLDER", help="instead add those of a docs/results or checkout")
    command.add_argument("--force", action="store_true", help="also of smoke, of a changed tree, or of private data")
    command = add(backlog, "runs that wait for an idle machine (conf/backlog.yaml): what is done of them, and go on")
    command.add_argument("action", nargs="?", choices=["run"], help="work through them; default: list them")
    command.add_argument("--cores", type=int, default=1, help="default: %(default)s")
    command.add_argument("--minutes", type=float, default=60.0, help="after which it ends; default: %(default)s")
    add(cite, "BibTeX of the methods, data sets and protocol that a study uses", study)
    add(collect, "gather a planned study's results", study)
    add(verdict, "list failed and missing fits of a study, then exit 1; and what its budget calls not converged", study)
    add(crate, "pack a finished study as an RO-Crate: results/NAME/crate.zip", study)


def _add_fit_commands(add: Callable[..., argparse.ArgumentParser]) -> None:
    command = add(fit, "fit one cell: method=dsvi dataset=boston split=0 (all: every row trains) method.layers=3")
    text = "also replica, protocol, budget, trainer, dtype, tune, kind, noise_block, and keys of groups: docs/config.md"
    command.add_argument("words", nargs="+", metavar="key=value", help=text)
    grammar.setting(command)
    command = add(why, "what changed since fits were made, or why they are skipped, missing or failed")
    text = "an identity; or dsvi/boston (method=dsvi dataset=boston), study=..., protocol=..., budget=..."
    command.add_argument("words", nargs="+", metavar="cell", help=text)
    command = add(new, "write a working method to start from, its module and its YAML")
    command.add_argument("what", choices=["method"])
    command.add_argument("name")
    command.add_argument("--out", type=Path, help="folder of a Python package of your own; default: this project")
    command = add(retry, "move aside fits that failed, diverged or ran out of memory: the next run repeats them")
    command.add_argument("fits", nargs="*", help="beginnings of identities; default: all")
    command = add(predict, "answer with a kept model: mean, sd, quantiles or class probabilities as CSV")
    command.add_argument("fit", help="beginning of an identity, or svgp/boston: its last fit, one of all rows first")
    command.add_argument("table", type=Path, help="CSV with the data set's input names as header")
    command.add_argument("--out", type=Path, help="file to write; default: standard output")
    command = add(pyfunc, "write a kept model as a folder that mlflow.pyfunc.load_model reads")
    command.add_argument("fit", help="as of `predict`")
    command.add_argument("folder", type=Path, help="to write; it must not exist")
    command = add(challenge, "score another program's predictions of our test rows, and set them beside our fits")
    text = "CSV: dataset, split, row; mean, sd or q05, ... or s0, ... or p_CLASS"
    command.add_argument("predictions", type=Path, help=text)
    command.add_argument("--name", default="", help="of the entry; default: that of the file")
    command.add_argument("--label", default="", help="in tables and figures; default: the name")
    command.add_argument("--protocol", default="common", help="whose splits these are; default: %(default)s")
    command = add(adopt, "carry a run's fits over to today's identities, after a check that the code gives the same")
    command.add_argument("run", help="the name of a folder in docs/results, or a study")
    grammar.overrides(command)
    command.add_argument("--check", type=int, default=1, metavar="N", help="fits to refit of each method and task")
    command.add_argument("--against", type=Path, metavar="CHECKOUT", help="of the code that made them, to refit too")


def fit(arguments: argparse.Namespace) -> None:
    from gpbench.study.commands import job

    where = places.find()
    record, result = job.run_words(where, arguments.words, by_hand=True)
    undefined = [key for key, value in result.items() if isinstance(value, float) and not math.isfinite(value)]
    print(json.dumps(result | dict.fromkeys(undefined), indent=1))  # JSON has neither NaN nor infinity
    job.require_done(where, record)


def certify(arguments: argparse.Namespace) -> None:
    from gpbench.study.commands import certify as certifying

    for line in certifying.certify(places.find(), arguments.study, arguments.overrides):
        print(line, flush=True)


def why(arguments: argparse.Namespace) -> None:
    from gpbench.study.commands import why as reasons

    print("\n".join(reasons.why(places.find(), arguments.words)))


def new(arguments: argparse.Namespace) -> None:
    from gpbench.study.commands import new_method

    for path in new_method.method(places.find(), arguments.name, arguments.out):
        print(path)
    if arguments.out:
        print(f"name the package in an entry point of {config.ENTRY_POINTS!r} and install it (docs/adding.md)")
    print(f"try it: pytest tests/conformance -k {arguments.name}")


def retry(arguments: argparse.Namespace) -> None:
    store = Store(places.find().store)
    chosen = dict.fromkeys(map(store.find, arguments.fits)) or store.ids()
    failed = [fit_id for fit_id in chosen if not store.ended_well(fit_id)]
    store.clear(failed)
    aside = f" (moved to {store.cleared})" if failed else ""
    print(f"{count(len(failed), 'fit')} cleared{aside}; {'the next run fits them again' if failed else 'none failed'}")


def verify(arguments: argparse.Namespace) -> None:
    from gpbench.study.commands import verify as verifying

    damaged, summary = verifying.verify(places.find())
    sys.stderr.writelines(f"{line}\n" for line in damaged)
    print("\n".join(summary))
    if damaged:
        raise UserError(f"{len(damaged)} damaged or unreadable; see the lines above")


def predict(arguments: argparse.Namespace) -> None:
    from gpbench.study.commands import predict_csv

    predict_csv.answer(places.find(), arguments.fit, arguments.table, arguments.out)


def pyfunc(arguments: argparse.Namespace) -> None:
    from gpbench.study.commands import pyfunc as writing

    writing.write(places.find(), arguments.fit, arguments.folder)
    print(f"{arguments.folder}: mlflow.pyfunc.load_model({str(arguments.folder)!r}).predict(frame)")


def challenge(arguments: argparse.Namespace) -> None:
    from gpbench.data.own import name_of
    from gpbench.study.commands import challenge as challenging

    name = name_of(arguments.predictions, arguments.name)
    label = arguments.label or name
    scored = challenging.challenge(places.find(), arguments.predictions, name, label, arguments.protocol)
    for (dataset, split), scores in scored.items():
        shown = ", ".join(f"{key} {scores[key]:.4g}" for key in ("mnll", "rmse", "error") if key in scores)
        print(f"{name} on {dataset}, split {split}: {shown}")
    datasets = ",".join(dict.fromkeys(dataset for dataset, _ in scored))
    protocol = f" protocol={arguments.protocol}" * (arguments.protocol != "common")
    overrides = f"challengers=[{name}] datasets=[{datasets}]{protocol}"
    print(f"beside our fits: snakemake --cores 2 --config study=default overrides='{overrides}'")


def _run(arguments: argparse.Namespace) -> str:
    """The name of a study's run, which may be given itself: that of its results folder."""
    from gpbench.study.planning import plan as planning

    where = places.find()
    words = planning.study_words(where, arguments.study, arguments.overrides)
    name = planning.run_name(*words)
    if not any(path.exists() for path in (where.plans / f"{name}.json", where.results / name)):
        command = planning.make(where, *words).command  # names what is mistyped
        raise UserError(f"{where.plans / name}.json is missing; `{command}` plans and runs the study")
    return name


def collect(arguments: argparse.Namespace) -> None:
    from gpbench.study.results import collect as collecting

    name = _run(arguments)
    counts = collecting.collect(places.find(), name)
    print(f"{name}: {', '.join(f'{n} {status}' for status, n in sorted(counts.items()))}")


def record(arguments: argparse.Namespace) -> None:
    from gpbench.study.commands.merge import merge
    from gpbench.study.results import collect as collecting

    if arguments.merge:
        if arguments.study != "default" or arguments.set or arguments.overrides:
            raise UserError("--merge adds every run of that folder; leave out the study and its overrides")
        print("\n".join(merge(places.find(), arguments.merge)))
        return
    study_plan = planned(arguments)
    if (doubts := collecting.doubts(places.find(), study_plan)) and not arguments.force:
        raise UserError(f"{study_plan.name} is not recorded: {'; '.join(doubts)}; --force records it all the same")
    new, total = collecting.record(places.find(), study_plan)
    print(f"{study_plan.name}: {count(new, 'fit')} added, {total} in docs/results/{study_plan.name}/scores.csv")


def backlog(arguments: argparse.Namespace) -> None:
    from gpbench.study.commands import backlog as waiting

    where = places.find()
    if arguments.cores < 1 or not arguments.minutes > 0:
        raise UserError("--cores and --minutes must be positive")
    if arguments.action == "run":
        for number in (signal.SIGTERM, signal.SIGHUP):  # as Ctrl-C: its jobs end with it and can be resumed
            if signal.getsignal(number) != signal.SIG_IGN:  # by nohup
                signal.signal(number, signal.default_int_handler)
        lines = waiting.run(where, arguments.cores, arguments.minutes)
    else:
        from gpbench.report.scorecard import all_runs

        lines = waiting.overview(where, all_runs.open_rows(where.root / "docs" / "scorecard" / "scorecard.csv"))
    for line in lines:
        print(line, flush=True)


def adopt(arguments: argparse.Namespace) -> None:
    from gpbench.study.commands import adopt as adopting

    if arguments.check < 1:
        raise UserError(f"--check must be a positive integer, got {arguments.check}")
    against = arguments.against and arguments.against.resolve()
    lines = adopting.adopt(places.find(), arguments.run, arguments.overrides, arguments.check, against)
    print("\n".join(lines))
    if stale := [line for line in lines if line.startswith("stays stale")]:
        raise UserError(
            f"{count(len(stale), 'line')} of {len(lines)} above: not adopted; run the study to fit it again"
        )


def verdict(arguments: argparse.Namespace) -> None:
    from gpbench.study.results import collect as collecting

    where, name = places.find(), _run(arguments)
    study_plan, unmixed = collecting.read_plan(where, name), collecting.not_converged(where, name)
    lines = collecting.not_done(where, name)
    sys.stderr.writelines(f"{line}\n" for line in [*unmixed, *lines])
    if lines:
        failed = f"{count(len(lines), 'fit')} of {name} failed or {'are' if len(lines) > 1 else 'is'} missing"
        raise UserError(f"{failed}; `gpbench retry` clears what failed, `{study_plan.command}` goes on")
    if all(cell.skip for cell in study_plan.cells):
        raise UserError(f"{name}: every fit is skipped, the first because: {study_plan.cells[0].skip}")
    but = f", but the fits of {count(len(unmixed), 'split')} have not converged" if unmixed else ""
    report = f"; open results/{name}/report.html" if (where.results / name / "report.html").is_file() else ""
    print(f"{name}: every fit is done{but}{report}")


def cite(arguments: argparse.Namespace) -> None:
    from gpbench.report.export import citations

    print(citations.of_study(places.find(), arguments.study, arguments.overrides), end="")


def crate(arguments: argparse.Namespace) -> None:
    from gpbench.report.export import crate as crates

    print(crates.write(places.find(), _run(arguments)))


def track(arguments: argparse.Namespace) -> None:
    from gpbench.study import tracking

    print(f"{count(tracking.drain(places.find(), arguments.anew), 'fit')} logged")


def push(arguments: argparse.Namespace) -> None:
    from gpbench.study.storage import remote

    store, place = Store(places.find().store), remote.require()
    sent = place.push(store, store.ids())
    for group in filter(store.is_free, store.groups()):
        place.push_work(store, group.group_id)
    print(f"{count(sent, 'fit')} sent to {place.url}")


def pull(arguments: argparse.Namespace) -> None:
    from gpbench.study.storage import remote

    store, place = Store(places.find().store), remote.require()
    listed = sorted(place.fits)  # pulling takes out what is damaged
    fetched = place.pull(store, listed)
    for group_id in place.begun():
        place.pull_work(store, group_id)
    print(f"{count(fetched, 'fit')} fetched of {len(listed)} in {place.url}")


def reference(arguments: argparse.Namespace) -> None:
    from gpbench.config.reference import reference as text

    print(text(places.find().conf), end="")


def references(arguments: argparse.Namespace) -> None:
    import pandas as pd

    from gpbench.study.commands import references as posteriors

    if arguments.name is None:
        if arguments.draws or arguments.out:
            raise UserError("--draws and --out need the name of a reference posterior; `gpbench references` lists them")
        print("\n".join(posteriors.listing()))
        return
    if arguments.out and arguments.draws and arguments.out.resolve() == arguments.draws.resolve():
        raise UserError(f"--out {arguments.out} is the table of draws, which it would replace; name another file")
    scored = list(posteriors.scores(places.find(), arguments.name, arguments.draws))
    for sampler, rows in scored:
        print("\n".join(posteriors.lines(sampler, rows)))
    if arguments.out:
        with places.write_aside(arguments.out) as temporary:
            pd.concat([rows.assign(sampler=sampler) for sampler, rows in scored]).to_csv(temporary, index=False)


def papers(arguments: argparse.Namespace) -> None:
    from gpbench.report.papers.listing import papers as text

    print(text(places.find()), end="")


def unlock(arguments: argparse.Namespace) -> None:
    from gpbench.study.storage import snakemake_lock

    print(snakemake_lock.unlock(places.find().root))


def completion(arguments: argparse.Namespace) -> None:
    import shtab

    print(shtab.complete(parser(), arguments.shell))


def main(words: list[str] | None = None) -> int:
    """Exit status: 0; 1 or, after Ctrl-C, 130 after one line on standard error."""
    arguments = parser().parse_args(words)
    grammar.settle(arguments)
    try:
        return exit_status(lambda: arguments.function(arguments))
    except BrokenPipeError:
        with contextlib.suppress(OSError):
            sys.stdout.close()
        return 1
