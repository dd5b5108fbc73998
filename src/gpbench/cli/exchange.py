"""`gpbench push` and `gpbench pull`: fits between the store and the place that GPBENCH_REMOTE names."""

import argparse

from gpbench import places
from gpbench.errors import count
from gpbench.study.storage import remote
from gpbench.study.storage.store import Store


def add(commands: argparse._SubParsersAction) -> None:
    """Add both to the commands of the command line."""
    for function, text in (
        (push, "send done fits, and checkpoints of those that nobody is at, to the place that GPBENCH_REMOTE names"),
        (pull, "fetch the fits and checkpoints that the store lacks from the place that GPBENCH_REMOTE names"),
    ):
        commands.add_parser(function.__name__, help=text, description=text).set_defaults(function=function)


def push(arguments: argparse.Namespace) -> None:
    store, there = Store(places.find().store), remote.require()
    sent = there.push(store, store.ids())
    for group in filter(store.is_free, store.groups()):
        there.push_work(store, group.group_id)
    print(f"{count(sent, 'fit')} sent to {there.url}")


def pull(arguments: argparse.Namespace) -> None:
    store, there = Store(places.find().store), remote.require()
    fetched = there.pull(store, sorted(there.fits))
    for group_id in there.begun():
        there.pull_work(store, group_id)
    print(f"{count(fetched, 'fit')} fetched of {len(there.fits)} in {there.url}")
