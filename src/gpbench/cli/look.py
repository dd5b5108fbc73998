"""Commands that look at a study and change nothing: plan, cost, status."""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

from gpbench import config, places
from gpbench.cli import grammar, lists
from gpbench.errors import UserError, count

if TYPE_CHECKING:
    from gpbench.study.planning.plan import Plan

CLEAR_SCREEN = "\033[2J\033[H"


def planned(arguments: argparse.Namespace) -> Plan:
    """The plan of the study that the arguments name."""
    from gpbench.report import registry

    return registry.planned(places.find(), arguments.study, arguments.overrides)


def plan(arguments: argparse.Namespace) -> None:
    study_plan = planned(arguments)
    every = study_plan.rows()
    rows = [row for row in every if row.state == "pending" or not arguments.pending]
    if arguments.json:
        grammar.print_json([row._asdict() for row in rows])
        return
    for remark in study_plan.remarks:
        print(f"remark: {remark}")
    for row in rows:
        expected = f"{row.minutes:6.2f} min" if row.state == "pending" else " " * 10
        where, state = f"{row.method} {row.dataset} split {row.split}", grammar.paint(f"{row.state:<9}", row.state)
        print(f"{row.fit_id}  {where:<40} {state} {expected}  {row.reason}")
    states, once = Counter(row.state for row in every), {row.fit_id: row.minutes for row in every}
    pending, jobs = count(states["pending"], "fit"), count(len(study_plan.batches), "job")
    failed = len(every) - sum(states[name] for name in ("pending", "done", "skipped"))
    again = f"; {len(every) - len(once)} of them again under another name" * (len(every) > len(once))
    print(
        f"{study_plan.name}: {pending} to run in {jobs}, about {sum(once.values()):.1f} minutes of one core; "
        f"{states['done']} done, {states['skipped']} skipped, {failed} failed{again}"
    )


def cost(arguments: argparse.Namespace) -> None:
    from gpbench.study.planning import estimate

    if arguments.cores < 1:
        raise UserError(f"--cores must be a positive integer, got {arguments.cores}")
    costs = estimate.Estimate(planned(arguments), arguments.all)
    if arguments.json:
        grammar.print_json(estimate.content(costs, arguments.cores))
    else:
        print("\n".join(estimate.lines(costs, arguments.cores)))


def status(arguments: argparse.Namespace) -> None:
    newest = None if arguments.study or arguments.overrides else next(iter(lists.runs(places.find())), None)
    if newest:
        arguments.study, arguments.overrides = config.command_words(newest.command)
    arguments.study = arguments.study or "default"
    while True:
        if arguments.watch and sys.stdout.isatty():
            print(CLEAR_SCREEN, end="")
        try:
            progress = _progress(planned(arguments))
        except UserError as error:
            raise UserError(f"{error}{f' (of {newest.name}, which was planned last)' if newest else ''}") from error
        if arguments.json:
            grammar.print_json(progress._asdict())
        else:
            counts = ", ".join(f"{n} {grammar.paint(state, state)}" for state, n in progress.states.items())
            counts += f" ({progress.improving} still improving)" if progress.improving else ""
            print(f"{progress.name}: {counts or 'no fits'}; about {progress.minutes:.1f} minutes of one core left")
            for group in progress.groups:
                print(f"  {grammar.paint(group['state'], group['state'])}: {group['name']}: {group['progress']}")
        if not arguments.watch:
            return
        time.sleep(2)


class StudyProgress(NamedTuple):
    """Of a study: state -> number of fits, how many still improve, minutes of one core left; groups begun of any."""

    name: str
    states: dict[str, int]
    improving: int
    minutes: float
    groups: list[dict[str, str]]


def _progress(study_plan: Plan) -> StudyProgress:
    """How many fits are in which state, what is left, and how far the groups are that were begun."""
    from gpbench.study.commands import progress
    from gpbench.study.storage.store import Store

    store, groups = Store(places.find().store), []
    for group in store.groups():
        reached = store.progress(group.group_id)
        state = "interrupted" if store.is_free(group) else "running"
        described = progress.describe(reached) if reached else "starting"
        if state == "interrupted":
            described = f"resumes at step {store.checkpoint(group.group_id)} of {group.what.steps or 1}"
        if not any(fit.fit_id in study_plan.states for fit in group.fits):
            described += "; not of this study"
        groups.append({"state": state, "name": progress.name(group), "progress": described})
    return StudyProgress(
        name=study_plan.name,
        states=dict(sorted(Counter(state.name for state in study_plan.states.values()).items())),
        improving=sum("still improving" in state.reason for state in study_plan.states.values()),
        minutes=sum(b.seconds * max(group.cores for group in b.groups) for b in study_plan.batches) / 60,
        groups=groups,
    )
