"""Two users of one machine at one store: who may only read is refused in one line, a group that may write shares it."""

from __future__ import annotations

import contextlib
import io
import multiprocessing
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from refusals import listing

from gpbench.cli.main import main
from gpbench.study.storage.store import Store
from handmade import forget_scores
from projects import copy_project

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as two users")
FORK = multiprocessing.get_context("fork")
GROUP, ANNA, BERT = 60_000, 60_001, 60_002
"""Numbers need no names."""
STUDY = ("--overrides", "methods=[constant] datasets=[wine] splits=2 budget=smoke")

FIT = ("fit", "method=constant", "dataset=wine")


class Said(NamedTuple):
    code: int
    out: str
    err: str


def as_user(user: int, project: Path, *words: str) -> Said:
    """A command of a user, who has the umask that most people have, in a process and a project of his own."""
    here, there = FORK.Pipe()

    def run() -> None:
        os.setgroups([GROUP])
        os.setresgid(user, user, user)
        os.setresuid(user, user, user)
        os.umask(0o022)
        os.chdir(project)
        os.environ.update(GPBENCH_ROOT=str(project), HOME=str(project))
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = main(list(words))
        there.send(Said(code, out.getvalue(), err.getvalue()))

    process = FORK.Process(target=run)
    process.start()
    assert here.poll(60), "it does not end"
    said: Said = here.recv()
    process.join()
    return said


@pytest.fixture
def shared(project, gpbench, monkeypatch) -> Iterator[Callable[[int], tuple[Path, Path, Path]]]:
    """Makes a store of a mode, and a project for each user; pytest's own folders are for their owner alone."""
    # import everything: where Python is installed, another user may not read
    for words in (FIT, ("record", *STUDY, "--force"), ("verify",), ("retry",)):
        assert gpbench(*words).code == 0
    with tempfile.TemporaryDirectory(prefix="gpbench-two-users-") as folder:
        root = Path(folder)
        root.chmod(0o755)
        for name, user in (("anna", ANNA), ("bert", BERT)):
            copy_project(root / name)
            for path in (root / name, *(root / name).rglob("*")):
                os.chown(path, user, user)
        monkeypatch.setenv("GPBENCH_STORE", str(root / "store"))

        def make(mode: int) -> tuple[Path, Path, Path]:
            (root / "store").mkdir()
            os.chown(root / "store", ANNA, GROUP)
            (root / "store").chmod(mode)
            assert as_user(ANNA, root / "anna", "fit", "method=constant", "dataset=wine").code == 0
            return root / "store", root / "anna", root / "bert"

        yield make


def test_who_may_only_read_a_store_reads_it_and_is_told_in_one_line_what_he_may_not(shared):
    store, _, bert = shared(0o755)
    (fit_id,) = Store(store).ids()
    forget_scores(Store(store), fit_id)  # he computes them
    before = listing(store)
    assert "sealed 1, " in as_user(BERT, bert, "verify").out
    assert "1 done, 1 pending" in as_user(BERT, bert, "status", *STUDY).out
    assert f'"fit_id": "{fit_id}"' in as_user(BERT, bert, *FIT).out
    assert "1 fit added, 1 in docs/results/" in as_user(BERT, bert, "record", *STUDY, "--force").out
    for words, said in (((*FIT, "split=1"), "cannot write to the store"), (("track",), "cannot lock")):
        refused = as_user(BERT, bert, *words)
        assert (refused.code, refused.out, refused.err.count("\n")) == (1, "", 1)
        assert f"{said} {store}" in refused.err
        assert "Permission denied" in refused.err
    (store / fit_id).chmod(0o700)  # its owner alone
    unread = f"gpbench: {store / fit_id / 'fit.json'} cannot be read (Permission denied); its fit stays as it is: "
    assert as_user(BERT, bert, "verify").err.startswith(unread.removeprefix("gpbench: "))
    assert as_user(BERT, bert, "status", *STUDY).code == 0
    assert as_user(BERT, bert, *FIT).err.startswith("gpbench: cannot write to the store")
    assert as_user(BERT, bert, "retry").err.startswith(unread)
    (store / fit_id).chmod(0o755)
    (store / fit_id / "points.parquet").write_bytes(b"")
    damaged = as_user(BERT, bert, "retry")
    assert (damaged.code, damaged.out, damaged.err.count("\n")) == (1, "", 1)
    assert {name for name, _ in listing(store) ^ before} == {f"{fit_id}/points.parquet"}


def test_who_may_only_read_a_store_sees_which_fits_are_at_work(shared):
    store = Store(shared(0o755)[0])
    (fit_id,) = store.ids()
    for holds in (contextlib.nullcontext(), store.locked([fit_id])):
        with holds:
            os.seteuid(BERT)
            try:
                busy = store.busy(fit_id)
            finally:
                os.seteuid(0)
        assert busy == (not isinstance(holds, contextlib.nullcontext))


def test_two_of_a_group_that_may_write_make_clear_and_record_each_other_s_fits(shared):
    store, anna, bert = shared(0o2775)
    assert as_user(BERT, bert, *FIT, "split=1").code == 0
    fits = {record.split: record.fit_id for record in Store(store).records()[0]}
    # whoever clears first makes the folder for both
    for user, own, split in ((ANNA, anna, 1), (BERT, bert, 0), (ANNA, anna, 0)):
        (store / fits[split] / "points.parquet").write_bytes(b"")
        assert as_user(user, own, "retry").out.startswith("1 fit cleared")
        again = as_user(user, own, *FIT, f"split={split}")
        assert (again.code, again.err) == (0, "")
    shutil.rmtree(store / ".spool")  # nothing is to be tracked
    for user, own in ((ANNA, anna), (BERT, bert)):
        assert "2 fits added" in as_user(user, own, "record", *STUDY, "--force").out
        assert as_user(user, own, "track").code == 0
    assert len(list((store / ".cleared").iterdir())) == 3
