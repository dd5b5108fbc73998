"""A job that is told to end: by a signal, by its own clock, or because its batch has died too often."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from gpbench import places
from gpbench.config import compose
from gpbench.data import prepare
from gpbench.study.fitting import stopping
from gpbench.study.planning import plan as planning
from gpbench.study.records import to_json
from gpbench.study.storage.store import Store

# one checkpoint, at most: that of the stop
WORDS = (
    "budget=smoke methods=[svgp] datasets=[wine] splits=1 svgp.num_inducing=10 svgp.optimiser=adam svgp.steps=20000 "
    "trainer.checkpoint_seconds=600"
)
TOTAL = "of 20000"


class Job:
    """The real process of a job, with a session of its own, as a cluster starts it."""

    def __init__(self, project: Path, *words: str) -> None:
        self.where = places.find()
        prepare.prepare(compose(self.where.conf, "dataset", "wine"), self.where)
        (batch,) = planning.make(self.where, "default", WORDS).batches
        (self.group,) = batch.groups
        (project / "batch.json").write_text(to_json(batch))
        self.statuses = project / "statuses.json"
        command = (sys.executable, "-m", "gpbench.study.commands.job", "batch.json", "statuses.json", *words)
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True)

    @property
    def step(self) -> int:
        progress = Store(self.where.store).progress(self.group.group_id)
        return progress.step if progress else 0

    def at(self, step: int) -> None:
        deadline = time.monotonic() + 120
        while self.step < step:
            assert self.process.poll() is None, self.process.communicate()[1]
            assert time.monotonic() < deadline
            time.sleep(0.02)

    def end(self) -> dict[str, str]:
        """The status of the fit, after the job has ended by itself and well."""
        said = self.process.communicate(timeout=60)[1]
        assert self.process.returncode == 0, said
        (status,) = json.loads(self.statuses.read_text()).values()
        return status

    @property
    def kept(self) -> int:
        return Store(self.where.store).checkpoint(self.group.group_id)


def to_parent(job: Job, number: int) -> None:
    os.kill(job.process.pid, number)


def to_all(job: Job, number: int) -> None:
    os.killpg(job.process.pid, number)


@pytest.mark.parametrize(("tell", "number"), [(to_parent, signal.SIGUSR1), (to_all, signal.SIGTERM)])
def test_a_fit_that_is_told_to_end_keeps_its_block(project, tell, number):
    """At step 363 of blocks of 50, at least step 350 is kept."""
    job = Job(project)
    job.at(60)
    tell(job, number)
    seen = job.step
    status = job.end()
    assert status["status"] == "stopped"
    assert status["reason"] == f"stopped as its job had to end at step {job.kept} {TOTAL}"
    assert job.kept % 50 == 0
    assert job.kept > seen - 50
    assert not list(job.where.store.glob("*/fit.json"))


def test_a_job_ends_by_itself_before_it_is_killed(project):
    job = Job(project, "--minutes", "0.15")
    assert job.end()["status"] in ("stopped", "missing")  # on a busy machine it is over before the fit has begun
    assert not list(job.where.store.glob("*/fit.json"))


def test_a_batch_that_is_given_up_leaves_its_statuses(project):
    job = Job(project, "--only-statuses")
    assert job.end() == {"status": "missing", "reason": f"interrupted at step 0 {TOTAL}"}
    assert not list(job.where.store.glob(".work/*"))


def test_ctrl_c_leaves_a_checkpoint_of_a_fit_from_the_command_line(project, gpbench):
    settings = [word.replace("svgp.", "method.") for word in WORDS.split()[-4:]]
    words = ("fit", "method=svgp", "dataset=wine", "budget=smoke", *settings)
    command, store = (sys.executable, "-m", "gpbench.cli", *words), Store(places.find().store)
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True)
    deadline = time.monotonic() + 120
    while not any(store.progress(group.group_id) for group in store.groups()):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does
    said = process.communicate(timeout=60)[1]
    assert process.returncode == 130, said
    assert "stopping at the next checkpoint; Ctrl-C again stops at once\n" in said
    assert said.endswith("gpbench: stopped; run again to resume\n")
    (group,) = store.groups()
    kept = store.checkpoint(group.group_id)
    assert kept > 0
    assert kept % 50 == 0
    assert f"interrupted: svgp on wine, split 0: resumes at step {kept} {TOTAL}" in gpbench("status", "default").out


def test_a_second_signal_puts_nothing_off(monkeypatch):
    """A scheduler kills so many seconds after its first one; the end of the job's own time kills nothing."""
    monkeypatch.setattr(stopping, "_request", SimpleNamespace(made=False, latest=math.inf))
    monkeypatch.setattr(stopping.time, "monotonic", lambda: 100.0)
    for latest, late in ((math.inf, False), (90.0, True), (150.0, True), (math.inf, True)):
        stopping._ask(latest)
        assert (stopping.is_requested(), stopping.is_late()) == (True, late)
