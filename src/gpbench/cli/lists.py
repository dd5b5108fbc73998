"""`gpbench list WHAT`: methods, data sets, studies, runs and items of papers, by the names that commands take."""

import argparse
import json
import sys
import time
from typing import NamedTuple

from gpbench import config, places
from gpbench.cli import grammar
from gpbench.places import Places

WHAT = ("methods", "datasets", "studies", "runs", "items")


class Run(NamedTuple):
    """A planned study with its overrides: its name in plans/ and results/, when it was last planned, its command."""

    name: str
    when: float  # seconds since 1970
    command: str


def add(commands: argparse._SubParsersAction) -> None:
    """Add `list`, and `runs` for its most frequent use, to the commands of the command line."""
    text = "the names of methods, datasets, studies, runs (newest first) or items of papers, with what they are"
    command = commands.add_parser("list", help=text, description=text)
    command.add_argument("what", choices=WHAT)
    grammar.as_json(command)
    command.set_defaults(function=show)
    text = "the runs of this project, newest first: `list runs`"
    command = commands.add_parser("runs", help=text, description=text)
    grammar.as_json(command)
    command.set_defaults(function=show, what="runs")


def show(arguments: argparse.Namespace) -> None:
    listed = listing(places.find(), arguments.what)
    if arguments.json:
        grammar.print_json(listed)
        return
    width = max((len(name) for name in listed), default=0)
    for name, text in listed.items():
        print(f"{name:<{width}}  {text}".rstrip())
    if not listed:
        print("no run was planned here yet; those with committed fits are folders of docs/results", file=sys.stderr)


def listing(where: Places, what: str) -> dict[str, str]:
    """Name -> what it is, of one of WHAT."""
    if what == "runs":
        described = {}
        for run in runs(where):
            when = time.strftime("%Y-%m-%d %H:%M", time.localtime(run.when))
            report = where.results / run.name / "report.html"
            described[run.name] = f"{when}  {report if report.is_file() else 'no report yet'}  {run.command}"
        return described
    if what == "items":
        from gpbench.report.papers import items

        known = items.registry(where.conf).values()
        return {item.target: item.title + f" (later: needs {item.later})" * bool(item.later) for item in known}
    group = {"methods": "method", "datasets": "dataset", "studies": "study"}[what]
    entries = {name: config.compose(where.conf, group, name) for name in config.options(where.conf, group)}
    if group == "method":
        return {n: f"{m.header.label} ({', '.join(m.header.tasks)})" for n, m in entries.items()}
    if group == "dataset":
        return {n: f"{d.title} ({d.task}, {d.rows:,} x {d.columns})" for n, d in entries.items()}
    return {name: study.title for name, study in entries.items()}


def runs(where: Places) -> list[Run]:
    """The runs that were planned here, the one that was planned last first."""
    planned = []
    for path in where.plans.glob("[!.]*.json"):  # half-written ones begin with a dot
        try:
            command = json.loads(path.read_bytes()).get("command")
        except (ValueError, AttributeError, RecursionError) as error:
            print(f"gpbench: {path} is damaged ({error}); delete it, snakemake writes it again", file=sys.stderr)
            continue
        if command is None:  # a graph of an earlier edition
            continue
        # a plan that is made again is written only where it changed; what it saw of the store changes with every run
        when = max(p.stat().st_mtime for p in (path, path.with_suffix(".seen")) if p.is_file())
        planned.append(Run(path.stem, when, command))
    return sorted(planned, key=lambda run: run.when, reverse=True)
