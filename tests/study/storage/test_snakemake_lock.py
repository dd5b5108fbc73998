"""Who may free Snakemake's lock."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gpbench.errors import UserError
from gpbench.study.storage import snakemake_lock

TAKE = (
    "import pathlib, sys; from gpbench.study.storage import snakemake_lock as lock;"
    "lock.take(pathlib.Path('.'), f'run-{len(sys.argv)}');"
)


@pytest.fixture
def locked(tmp_path: Path) -> Path:
    """A folder with a lock of Snakemake."""
    (tmp_path / ".snakemake/locks").mkdir(parents=True)
    (tmp_path / ".snakemake/locks/0.input.lock").touch()
    return tmp_path


def test_the_lock_of_another_machine_is_not_freed_from_here(locked):
    """A process of that number may well live there."""
    path = locked / ".snakemake/gpbench/login-1-4194305"
    path.parent.mkdir()
    path.touch()
    with pytest.raises(UserError, match=f"in use by snakemake on login-1 .*; run `gpbench unlock` there; .*{path} "):
        snakemake_lock.unlock(locked)
    path.rename(path.with_name(f"{platform.node()}-{os.getpid()}"))  # an old run whose number lives again
    assert snakemake_lock.unlock(locked) == "freed the lock of a run that was killed"


def test_every_living_run_keeps_the_lock_and_a_killed_one_does_not(locked):
    """A second run notes itself while the first goes on, which holds Snakemake's lock, is refused, and ends."""
    command = [sys.executable, "-c", f"{TAKE} print(flush=True); sys.stdin.read()"]
    first = subprocess.Popen(command, cwd=locked, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert first.stdout is not None
    first.stdout.readline()
    again = subprocess.run([sys.executable, "-c", TAKE], cwd=locked, stderr=subprocess.PIPE, text=True)
    assert "UserError: a running snakemake makes run-1 in ." in again.stderr, "whatever became of Snakemake's lock"
    subprocess.run([sys.executable, "-c", TAKE, "another run"], cwd=locked, check=True)
    for jump in (0, 4e8, -4e8):  # of the clock, by which the file is as old as a run of years ago, or of years to come
        os.utime(locked / f".snakemake/gpbench/{platform.node()}-{first.pid}", (time.time() + jump,) * 2)
        with pytest.raises(UserError, match=rf"in use by a running snakemake \(process {first.pid}\)"):
            snakemake_lock.unlock(locked)
    first.kill()
    first.communicate()
    assert snakemake_lock.unlock(locked) == "freed the lock of a run that was killed"
    assert not list((locked / ".snakemake").glob("gpbench/*"))
    subprocess.run([sys.executable, "-c", TAKE], cwd=locked, check=True)


def test_what_snakemake_cannot_read_of_its_own_is_emptied_and_only_locks_of_the_dead_go(locked):
    """It ends in a traceback otherwise; what it can read, or passes over, stays as it is."""
    folder = locked / ".snakemake"
    kept = {"metadata/a": b"{}", "metadata/@b/c": b"{cut", "incomplete/a": b"", "locks/0.input.lock": b"results/a"}
    damaged = ["metadata/@b/d", "incomplete/d"]
    for name, content in kept.items() | dict.fromkeys(damaged, b"\xff{").items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    snakemake_lock.mend(locked)
    assert {name: (folder / name).read_bytes() for name in kept} == kept
    assert [(folder / name).read_bytes() for name in damaged] == [b"", b""]
    (folder / "locks/0.input.lock").write_bytes(b"\xff")
    command = [sys.executable, "-c", f"{TAKE} print(flush=True); sys.stdin.read()"]
    with subprocess.Popen(command, cwd=locked, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as living:
        assert living.stdout is not None
        living.stdout.readline()
        with pytest.raises(UserError, match="in use by a running snakemake"):
            snakemake_lock.mend(locked)
        assert (folder / "locks").is_dir()
    snakemake_lock.mend(locked)
    assert not (folder / "locks").exists()


def test_a_project_that_one_may_only_read_is_one_line(tmp_path, monkeypatch):
    """Snakemake ends in a traceback otherwise. Root may write everywhere, so that no real folder says so in CI."""
    monkeypatch.setattr(snakemake_lock.os, "access", lambda place, mode: place != tmp_path)
    with pytest.raises(UserError, match="cannot be written by you; take a copy of the project"):
        snakemake_lock.mend(tmp_path)
