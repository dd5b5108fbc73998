"""Batches as Snakemake runs them: processes that are killed, that fail, that meet, that are stopped."""

import contextlib
import errno
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import pytest

from gpbench.errors import UserError
from gpbench.places import Places
from gpbench.study.commands import job
from gpbench.study.fitting import children
from gpbench.study.fitting.lightning_module import GradientFit
from gpbench.study.fitting.outcome import Lost
from gpbench.study.planning import plan
from gpbench.study.records import Batch, FitRecord, Group, from_json, to_json
from gpbench.study.storage.store import Store
from plugins import install
from projects import prepared_project

PLUGIN = Path(__file__).parent / "unruly_plugin"
DATASET, SPLITS = "diabetes", 2
STEPS, BLOCK = 240, 5
LEARNERS = (
    f"methods=[svgp] svgp.num_inducing=10 svgp.optimiser=adam svgp.steps={STEPS} noise_block={BLOCK} "
    "trainer.replicas=1 trainer.checkpoint_seconds=0"
)


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """A project with prepared data; the unruly methods are installed."""
    root = prepared_project(tmp_path_factory.mktemp("run") / "project", DATASET).root
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", install(PLUGIN, root.parent / "meta", patch))
        patch.setenv("GPBENCH_ROOT", str(root))
        patch.setenv("UNRULY_DIARY", str(root / "diary.txt"))
        patch.setenv("OMP_NUM_THREADS", "1")
        patch.setenv("CI", "1")
        patch.delenv("MLFLOW_TRACKING_URI", raising=False)
        yield root


def places(root: Path, store: str) -> Places:
    """The project with a store of its own, whose spool no tracker reads."""
    return Places(root, root / store)


def planned(where: Places, overrides: str = LEARNERS) -> Path:
    """File of one batch that holds everything a study still wants."""
    made = plan.make(where, "default", f"datasets=[{DATASET}] splits={SPLITS} budget=smoke {overrides}")
    groups = tuple(group for batch in made.batches for group in batch.groups)
    path = where.store.parent / f"{where.store.name}.batch.json"
    path.write_text(to_json(Batch("all", groups, 0.0)))
    return path


def groups_of(batch: Path) -> tuple[Group, ...]:
    return from_json(Batch, batch.read_text(), batch).groups


def start(where: Places, batch: Path) -> subprocess.Popen:
    """Run a batch in a process group of its own; statuses go beside the batch."""
    command = [
        sys.executable,
        "-m",
        "gpbench.study.commands.job",
        str(batch),
        str(batch.with_suffix(f".{time.time_ns()}.out")),
    ]
    environment = os.environ | {"GPBENCH_STORE": str(where.store)}
    return subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True, start_new_session=True)


def finish(process: subprocess.Popen) -> tuple[dict, str]:
    """Statuses and what was said on standard error of a batch that exits 0."""
    _, said = process.communicate(timeout=120)
    assert process.returncode == 0, said
    return json.loads(Path(process.args[-1]).read_text()), said


def fits(where: Places) -> dict[tuple[str, int], FitRecord]:
    """(method, split) -> record of everything in the store."""
    store = Store(where.store)
    records = [store.record(fit_id) for fit_id in store.ids()]
    return {(r.address.method, r.split): r for r in records}


def points(where: Places, record: FitRecord) -> pd.DataFrame:
    return pd.read_parquet(where.store / record.fit_id / "points.parquet")


def log(where: Places, record: FitRecord) -> str:
    return (where.store / record.fit_id / "log.txt").read_text()


@pytest.fixture(scope="module")
def whole(root):
    """A batch that is left alone: well-behaved fits first and last, those that fail between them."""
    where = places(root, "whole")
    learners = LEARNERS.replace("[svgp]", "[constant,raises,lacks,dies,svgp] raises.steps=60 dies.steps=60")
    batch = planned(where, learners.replace("trainer.replicas=1", "trainer.replicas=2"))
    groups = groups_of(batch)
    assert [len(g.fits) for g in groups if g.address.method in ("raises", "dies")] == [2, 2]
    statuses, said = finish(start(where, batch))
    return where, statuses, said


def test_code_that_changed_after_planning_fits_nothing(root):
    where = places(root, "changed")
    group, *_ = groups_of(planned(where))
    planned_code = group.what.code | {"gpbench.gp.kernels": "0" * 16}
    other = replace(group, what=replace(group.what, code=planned_code))
    with pytest.raises(UserError, match=r"^changed after planning: gpbench\.gp\.kernels; nothing was fitted"):
        job.run_groups((other,), where)
    assert not Store(where.store).ids()


def test_failed_fits_leave_the_others_alone(whole):
    where, statuses, _ = whole
    bad = {("raises", 1), ("dies", 1), ("lacks", 0), ("lacks", 1)}
    assert {place: r.status for place, r in fits(where).items()} == {
        (method, split): "failed" if (method, split) in bad else "done"
        for method in ("constant", "raises", "lacks", "dies", "svgp")
        for split in range(SPLITS)
    }
    for record in fits(where).values():
        assert statuses[record.fit_id] == {"status": record.status, "reason": record.reason}


def test_an_exception_is_one_line_and_its_traceback_is_in_the_log(whole):
    where, _, said = whole
    record = fits(where)["raises", 1]
    assert record.reason == "ArithmeticError: the sum is wrong"
    assert "Traceback" in log(where, record)
    assert "and this line is for the log" in log(where, record)
    assert "Traceback" not in said
    assert fits(where)["lacks", 0].reason == "ModuleNotFoundError: No module named 'no_such_package'"


def test_a_fit_whose_process_is_killed_has_failed_by_that_signal(whole):
    where, _, _ = whole
    assert "killed by signal 9 (SIGKILL)" in fits(where)["dies", 1].reason


def test_a_fit_whose_worker_died_has_failed_and_keeps_its_checkpoints(root, monkeypatch):
    def lost(*_):
        raise Lost("a worker died")

    where = places(root, "lost")
    (group, *_) = groups_of(planned(where))
    monkeypatch.setattr(children, "entry", lambda _: SimpleNamespace(run=lost))
    (ended,) = job.run_groups((group,), where).values()
    assert ended == {"status": "failed", "reason": "a worker died; `gpbench retry` continues from the checkpoint"}
    assert Store(where.store).groups() == [group]


def test_finished_groups_leave_no_working_files(whole):
    """But for the checkpoints of the fit that was killed, from which a retry continues."""
    where, _, _ = whole
    (left,) = Store(where.store).groups()
    assert (left.address.method, [f.split for f in left.fits]) == ("dies", [1])
    assert not list((where.store / ".tmp").iterdir())
    assert len(list((where.store / ".spool").glob("[!.]*"))) == len(fits(where))


@pytest.fixture(scope="module")
def capped(root):
    """A batch stopped by its time cap, and what was said by the two processes that then finish it side by side."""
    where = places(root, "capped")
    batch = planned(where, f"{LEARNERS} trainer.max_minutes=1e-9")
    statuses = job.run_groups(groups_of(batch), where)
    store = Store(where.store)
    assert {s["status"] for s in statuses.values()} == {"stopped"}
    assert all("stopped after 1e-09 minutes" in s["reason"] for s in statuses.values())
    assert not store.ids()
    assert {store.checkpoint(g.group_id) for g in store.groups()} == {BLOCK}

    batch = planned(where, f"{LEARNERS} raises.victim=9 raises.pause=1".replace("[svgp]", "[svgp,raises]"))
    assert {g.how.max_minutes for g in groups_of(batch)} == {None}
    (root / "diary.txt").unlink(missing_ok=True)
    return where, batch, [finish(process) for process in (start(where, batch), start(where, batch))]


def test_a_time_cap_stops_and_two_processes_without_it_finish_each_fit_once(root, capped):
    where, batch, ended = capped
    for statuses, said in ended:
        assert {s["status"] for s in statuses.values()} == {"done"}
        assert "Traceback" not in said
    store = Store(where.store)
    groups = groups_of(batch)
    assert sorted(store.ids()) == sorted(f.fit_id for g in groups for f in g.fits)
    assert sorted((root / "diary.txt").read_text().splitlines()) == ["[0]", "[1]"]
    assert not store.groups()


def test_a_batch_that_is_killed_continues_where_it_was(root, whole, capped):
    """Without refitting what was done, and to the numbers of fits that were stopped elsewhere, bit for bit, and of
    those that were not stopped, in a group of two."""
    where = places(root, "killed")
    batch = planned(where)
    process = start(where, batch)
    store = Store(where.store)
    deadline = time.monotonic() + 300
    while not half_way(store):
        assert process.poll() is None, process.stderr.read()
        assert time.monotonic() < deadline
        time.sleep(0.005)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    (done,) = store.ids()
    (group,) = store.groups()
    written = (store.folder(done) / "fit.json").stat().st_mtime_ns
    reached = store.checkpoint(group.group_id)
    assert STEPS / 3 < reached < STEPS
    assert group.fits[0].fit_id != done

    statuses = job.run_groups(groups_of(batch), where)
    assert {s["status"] for s in statuses.values()} == {"done"}
    assert (store.folder(done) / "fit.json").stat().st_mtime_ns == written
    assert all(store.record(fit_id).scored.scores for fit_id in store.ids()), "collecting need not score"
    for split in range(SPLITS):
        ours, stopped, company = (fits(at)["svgp", split] for at in (where, capped[0], whole[0]))
        assert ours.fit_id == stopped.fit_id
        pd.testing.assert_frame_equal(points(where, ours), points(capped[0], stopped), check_exact=True)
        one, other = points(where, ours), points(whole[0], company)
        assert ((one - other).abs() / (1 + other.abs())).to_numpy().max() <= 1e-9


def half_way(store: Store) -> bool:
    """Whether one fit is done and the other in the middle."""
    reached = [store.checkpoint(group.group_id) for group in store.groups()]
    return len(store.ids()) == len(reached) == 1 and STEPS / 3 < reached[0] < STEPS


def test_a_store_that_cannot_be_written_is_one_line(root, monkeypatch, capfd):
    batch = planned(places(root, "free"))
    (root / "file").touch()
    monkeypatch.setenv("GPBENCH_STORE", str(root / "file" / "store"))
    monkeypatch.setattr(sys, "argv", ["run", str(batch), str(root / "never.json")])
    with contextlib.chdir(root):
        assert job.main() == 1
    said = capfd.readouterr().err
    assert said.count("\n") == 1
    assert said.startswith(f"gpbench: cannot write to the store {root / 'file' / 'store'}")
    assert not (root / "never.json").exists()


@pytest.mark.parametrize("wrapped", [False, True])
def test_a_full_disk_keeps_the_checkpoint_of_a_group(root, monkeypatch, capfd, wrapped):
    """Its fits are not tried one by one, as after a crash: they would find the disk as full. wrapped: by a
    library with an error of its own."""

    def full(*_):
        error = OSError(errno.ENOSPC, "No space left on device")
        if wrapped:
            raise RuntimeError("cannot write: No space left on device") from error
        raise error

    monkeypatch.setattr(children, "entry", lambda what: SimpleNamespace(run=full))
    where = places(root, "full")
    (group,) = groups_of(planned(where, "methods=[raises] raises.steps=60 trainer.replicas=2"))
    checkpoint = Store(where.store).begin(group) / f"checkpoint-{5:09d}-{'a' * 16}.pt"
    checkpoint.touch()
    children.run_group(group, None, where, lambda group: None)
    assert (len(group.fits), checkpoint.is_file(), fits(where)) == (2, True, {})
    assert capfd.readouterr().err.count("No space left on device") == 1


def test_fits_that_cannot_be_scored_wait_at_their_last_checkpoint(root, monkeypatch):
    """They are not trained again one by one; once they can be scored, they are, without another step."""

    def broken(*_):
        raise TypeError("only 0-dimensional arrays\nmore")

    where, overrides = places(root, "unscored"), LEARNERS.replace("replicas=1", "replicas=2 trainer.small=1000000")
    batch = planned(where, overrides)
    (group,) = groups_of(batch)
    with monkeypatch.context() as patch:
        patch.setattr(children.scoring, "at_end", broken)
        statuses = job.run_groups((group,), where)
    assert {s["status"] for s in statuses.values()} == {"stopped"}
    assert all("trained, but not written: TypeError: only 0-dim" in s["reason"] for s in statuses.values())
    store = Store(where.store)
    assert (len(group.fits), store.checkpoint(group.group_id), fits(where)) == (SPLITS, STEPS, {})
    log = store.work(group.group_id) / "log.txt"
    assert log.read_text().count("Traceback") == 1
    assert str(log) in statuses[group.fits[0].fit_id]["reason"]

    monkeypatch.setattr(GradientFit, "training_step", broken)
    assert {s["status"] for s in job.run_groups((group,), where).values()} == {"done"}
    assert not store.groups()


FAULTS_OF_STEPS = """
import resource
import numpy as np
from gpbench.study.fitting import children

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(50):
        first = np.ones(2_000_000)
        second = first + 1
        del first, second
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

given_back = faults()
children.keep_freed_memory()
print(given_back, faults())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="glibc alone can be told")
def test_a_fit_keeps_the_memory_that_it_frees() -> None:
    command = [sys.executable, "-c", FAULTS_OF_STEPS]
    given_back, kept = map(int, subprocess.run(command, capture_output=True, text=True, check=True).stdout.split())
    assert kept < given_back / 5
