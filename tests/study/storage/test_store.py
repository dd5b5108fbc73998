"""The store: a fit is there whole or not at all."""

import errno
import json
import os
import platform
import re
import shutil
import stat
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import fields, replace
from pathlib import Path

import pytest

from gpbench.errors import UserError, exit_status
from gpbench.study.planning import batches
from gpbench.study.records import Group, Planned, Progress, to_json
from gpbench.study.storage.store import Damaged, Store
from handmade import CELL, FITS, finish, planned, put, record_of

A, B, *_ = sorted(FITS)


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path / "store")


def test_an_empty_store(store):
    assert (store.ids(), store.groups(), store.begun()) == ([], [], {})
    assert not store.has(A)
    assert not store.root.exists()


def test_a_fit_appears_only_when_it_is_complete(store):
    fit = replace(planned(), rows=8)  # of a fold that is smaller than the first
    with store.writing(fit.fit_id) as folder:
        (folder / "fit.json").write_text(to_json(record_of(CELL, fit)))
        assert not store.has(fit.fit_id)
        assert store.ids() == []
    assert store.has(fit.fit_id)
    assert (store.ids(), store.record(fit.fit_id).status) == ([fit.fit_id], "done")
    assert store.record(fit.fit_id).rows == 8
    assert list((store.root / ".tmp").iterdir()) == []


def test_an_error_while_writing_leaves_no_files(store):
    def stop_half_way() -> None:
        with store.writing(A) as folder:
            (folder / "fit.json").write_text("{}")
            raise RuntimeError("half way")

    with pytest.raises(RuntimeError, match="half way"):
        stop_half_way()
    assert store.ids() == []
    assert list((store.root / ".tmp").iterdir()) == []


def test_a_finished_fit_is_never_replaced(store):
    fit = planned()
    finish(store, CELL, fit)
    path = store.folder(fit.fit_id) / "fit.json"
    before = path.stat()
    finish(store, CELL, fit, "failed")
    assert store.record(fit.fit_id).status == "done"
    # not when it was read last
    assert (path.stat().st_ino, path.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


def test_a_store_that_a_group_may_write_to_stays_so(store):
    """Whoever comes first, with the umask that most people have; the folder's own group is kept by its setgid bit."""
    store.root.mkdir()
    store.root.chmod(0o2775)
    before = os.umask(0o022)
    try:
        with store.locked([A]):
            put(store, A)
            store.begin(Group(**{f.name: getattr(CELL, f.name) for f in fields(Planned)}, group_id="g", fits=()))
            store.spool(A)
    finally:
        os.umask(before)
    modes = {path: path.stat().st_mode for path in store.root.rglob("*")}
    assert {path.relative_to(store.root).parts[0] for path in modes} >= {".tmp", ".locks", ".work", ".spool"}
    assert [path for path, mode in modes.items() if not mode & stat.S_IWGRP] == []
    assert [path for path, mode in modes.items() if path.is_dir() and not mode & stat.S_ISGID] == []


def test_a_file_system_without_locks_is_refused_in_one_line(store, monkeypatch):
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr("fcntl.flock", refuse)
    said = f"cannot lock .*{A}.*: No locks available; its file system must have locks"
    with pytest.raises(UserError, match=said), store.locked([A]):
        pass


def test_a_lock_whose_owner_gives_no_sign_of_life_is_broken(store, monkeypatch, capfd):
    """As a dead host leaves it to a file system that never tells: the lock is still held."""
    monkeypatch.setattr("gpbench.places.LOOK_SECONDS", 0.05)
    monkeypatch.setattr("gpbench.study.storage.store.SILENCE", 0.3)
    group = Group(**{f.name: getattr(CELL, f.name) for f in fields(Planned)}, group_id="g", fits=(planned(),))
    fit_id = planned().fit_id

    def wait() -> float:
        began = time.monotonic()
        with store.locked([fit_id]):
            return time.monotonic() - began

    with store.locked([fit_id]), ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(wait)
        for _ in range(10):
            time.sleep(0.1)
            store.beat(group)
            assert not waiting.done(), "its owner lives"
        assert waiting.result(timeout=30) > 1.0
    assert f"nobody touched {store.root / '.locks' / fit_id} for" in capfd.readouterr().err


def test_a_lock_whose_owner_lives_survives_clocks_that_jump(store, monkeypatch):
    """The clock of the owner's host, by which the file is dated, goes back and forth, and so does that of who waits."""
    monkeypatch.setattr("gpbench.places.LOOK_SECONDS", 0.05)
    monkeypatch.setattr("gpbench.study.storage.store.SILENCE", 0.3)
    fit_id, real, jumps = planned().fit_id, time.time, [0.0, -1e6, 1e6, -1e6, -2e6, 4e8, -4e8, -5e8]

    def wait() -> bool:
        with store.locked([fit_id]):
            return True

    with store.locked([fit_id]), ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(wait)
        for jump in jumps:
            monkeypatch.setattr(time, "time", lambda jump=jump: real() - jump)
            os.utime(store.root / ".locks" / fit_id, (real() + jump, real() + jump))
            time.sleep(0.15)
            assert not waiting.done(), "its owner lives"
    assert waiting.result(timeout=30)


def test_a_fit_is_found_by_a_prefix_of_its_identity(store, monkeypatch):
    monkeypatch.setattr(store, "ids", lambda: ["aa11000000000000", "aa22000000000000"])
    assert store.find("aa1") == "aa11000000000000"
    with pytest.raises(UserError, match="2 fits begin with 'aa' in .*; give more of the identity"):
        store.find("aa")
    with pytest.raises(UserError, match=r"no fit begins with 'bb' in .*store; `gpbench plan` lists"):
        store.find("bb")


def test_a_damaged_record_is_reported_and_retry_moves_it_aside(project, gpbench):
    store = Store(project / "store")
    put(store, A)
    put(store, B)
    (store.folder(A) / "fit.json").write_text('{"status": ')
    with pytest.raises(Damaged, match=rf"{A}/fit\.json is damaged \("):
        store.record(A)
    answer = gpbench("plan")
    assert (answer.code, answer.err) == (0, "")
    assert "fit.json is damaged (" in answer.out
    assert f"or by `gpbench retry {A}" in answer.out
    assert gpbench("retry", A, A[:9]).out == f"1 fit cleared (moved to {store.cleared}); the next run fits them again\n"
    assert store.ids() == [B]


def test_retry_clears_failed_fits(project, gpbench):
    store = Store(project / "store")
    ids = sorted(FITS)
    for fit_id, status in zip(ids, ("done", "failed", "diverged", "out-of-memory", "done"), strict=True):
        put(store, fit_id, status)
    (store.folder(ids[4]) / "fit.json").rename(store.folder(ids[4]) / "log.txt")  # a folder without its record
    before = {fit_id: sorted(path.name for path in store.folder(fit_id).iterdir()) for fit_id in ids}
    assert gpbench("retry", ids[1]).out.startswith("1 fit cleared")
    assert store.ids() == [ids[0], *ids[2:]]
    assert gpbench("retry").out.startswith("3 fits cleared")
    assert store.ids() == ids[:1]
    aside = {path.name[:16]: sorted(file.name for file in path.iterdir()) for path in store.cleared.iterdir()}
    assert aside == {fit_id: before[fit_id] for fit_id in ids[1:]}
    put(store, ids[1], "failed")  # it fails again
    assert gpbench("retry").out.startswith("1 fit cleared")
    assert len(list(store.cleared.glob(f"{ids[1]}-*"))) == 2


FOREIGN = {
    "thesis": "folder",
    "0123456789abcdef": "empty folder with the name of an identity",
    "fedcba9876543210": "link to a folder that holds a fit",
    "1111111111111111": "file with the name of an identity",
    "notes.txt": "file",
    "aa11": "folder with the beginning of an identity",
}


def test_retry_does_not_touch_foreign_folders(project, gpbench, tmp_path):
    store, elsewhere = Store(project / "store"), tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "fit.json").write_text('{"status": "failed"}')
    for name, what in FOREIGN.items():
        if what.startswith("link"):
            (store.root / name).symlink_to(elsewhere)
        elif "file" in what:
            (store.root / name).write_text("mine")
        else:
            (store.root / name).mkdir()
    (store.root / "thesis" / "fit.json").write_text('{"status": "failed"}')
    before = sorted(store.root.rglob("*"))
    assert store.ids() == []
    assert gpbench("retry") == (0, "0 fits cleared; none failed\n", "")
    assert gpbench("retry", "fedc").err.startswith("gpbench: no fit begins with 'fedc'")
    assert sorted(store.root.rglob("*")) == before
    assert (elsewhere / "fit.json").is_file()


def test_retry_does_not_move_a_fit_with_foreign_files(project, gpbench):
    store = Store(project / "store")
    for fit_id in (A, B):
        put(store, fit_id, "failed")
    (store.folder(B) / "analysis.ipynb").touch()
    assert f"{B} holds analysis.ipynb, not made by gpbench; move it away" in gpbench("retry").err
    assert len(store.ids()) == 2  # all of them or none
    assert gpbench("retry", A).out.startswith("1 fit cleared")


def test_unfinished_groups(store):
    group = batches.group_of(CELL, (planned(0), planned(1)), rows=9)
    work = store.begin(group)
    assert store.begin(replace(group, fits=())) == work  # as it was planned first
    assert store.groups() == [group]
    assert store.begun() == {planned(0).fit_id: group, planned(1).fit_id: group}
    assert (store.checkpoint(group.group_id), store.progress(group.group_id)) == (0, None)
    (work / "checkpoint-000000050.pt").touch()
    (work / "checkpoint-000000100.pt").touch()
    progress = Progress(100, 400, 2.5, [1.0, 2.0])
    (work / "progress.json").write_text(to_json(progress))
    assert (store.checkpoint(group.group_id), store.progress(group.group_id)) == (100, progress)
    (work / "progress.json").write_text('{"st')  # read while it is written
    assert store.progress(group.group_id) is None
    (work / "group.json").write_text("")
    assert store.groups() == []
    store.begin(group)
    assert store.groups() == [group]
    store.end(group.group_id)
    assert store.groups() == []


def test_fits_of_another_edition_are_counted_and_ignored(project, gpbench):
    store = Store(project / "store")
    put(store, A)
    old = json.dumps({"fit_id": B, "status": "failed", "what": {"entry": "old"}})
    for fit_id, text in ((B, old), ("cc33000000000000", "{}")):
        store.folder(fit_id).mkdir()
        (store.folder(fit_id) / "fit.json").write_text(text)
    _, (damaged,), (others,) = store.records()
    assert re.search(r"cc33.* is damaged \(address: Field required\); .* `gpbench retry cc33", damaged)
    assert gpbench("retry").out.startswith("1 fit cleared")
    records, _, lines = store.records()
    assert ([record.fit_id for record in records], lines) == ([A], [others])
    assert "1 fit of another edition of gpbench in" in gpbench("plan", "--pending").out


def test_a_lock_is_seen_by_others_and_dies_with_its_holder(store):
    program = (
        "import sys, time; from gpbench.study.storage.store import Store\n"
        "with Store(sys.argv[1]).locked(['aa']): print('held', flush=True); time.sleep(60)"
    )
    holder = subprocess.Popen([sys.executable, "-c", program, str(store.root)], stdout=subprocess.PIPE, text=True)
    assert holder.stdout.readline() == "held\n"
    assert store.busy("aa")
    assert not store.busy("bb")
    holder.kill()
    holder.wait()
    assert not store.busy("aa")
    with store.locked(["aa"]):
        pass


def test_locks_are_taken_in_one_order_whoever_asks(store, monkeypatch):
    """Else two processes that want the same two fits could wait for each other."""
    taken = []
    monkeypatch.setattr("gpbench.study.storage.store.locked", lambda path, *_: nullcontext(taken.append(path.name)))
    for fit_ids in (["aa", "bb"], ["bb", "aa"]):
        with store.locked(fit_ids):
            pass
    assert taken == ["aa", "bb", "aa", "bb"]


def test_a_process_that_waits_for_a_lock_prints_so_and_gets_it(store, capfd):
    program = (
        "import sys, time; from gpbench.study.storage.store import Store\n"
        "with Store(sys.argv[1]).locked(['aa']): print('held', flush=True); time.sleep(0.5)"
    )
    holder = subprocess.Popen([sys.executable, "-c", program, str(store.root)], stdout=subprocess.PIPE, text=True)
    assert holder.stdout.readline() == "held\n"
    started = time.monotonic()
    with store.locked(["aa", "bb"]):
        assert time.monotonic() - started > 0.3
    holder.wait()
    assert "waiting for another process that works on fit aa" in capfd.readouterr().err


def test_a_store_that_cannot_be_written_to(tmp_path):
    (tmp_path / "file").touch()
    store = Store(tmp_path / "file" / "store")
    with pytest.raises(UserError, match="cannot write to the store .*file/store: Not a directory; set GPBENCH_STORE"):
        store.require_writable()
    with pytest.raises(UserError, match="cannot write to the store"), store.writing("aa"):
        raise AssertionError("the block must not begin")
    assert os.listdir(tmp_path) == ["file"]


def test_what_dead_processes_left_half_written_is_removed(store):
    """A process of this machine that lives, and one of another machine, keep what they write."""
    put(store, A)
    host, dead = platform.node(), 2**22 + 1
    kept = [f"{A}-{name}" for name in (f"{host}-{os.getpid()}", f"elsewhere-{dead}", f"gpu-{host}-{dead}")]
    for name in (*kept, f"{A}-{host}-{dead}", f"{A}-{host}-{dead}.a_random1"):
        (store.root / ".tmp" / name).mkdir(parents=True)
    store.sweep()
    assert sorted(path.name for path in (store.root / ".tmp").iterdir()) == sorted(kept)


def test_a_fit_that_another_process_moves_aside_meanwhile_stops_neither(store, monkeypatch):
    for fit_id in (A, B):
        put(store, fit_id)
    monkeypatch.setattr(store, "ids", lambda: [A, B])
    monkeypatch.setattr(store, "has", lambda fit_id: True)
    shutil.rmtree(store.folder(A))
    assert [record.fit_id for record in store.records()[0]] == [B]
    store.clear([A, B])
    assert [path.name[:16] for path in store.cleared.iterdir()] == [B]


def test_a_fit_that_is_moved_aside_while_fits_are_listed_is_none_of_them(store, monkeypatch):
    real = os.listdir

    def listdir(folder):
        store.clear([A])
        return real(folder)

    put(store, A)
    put(store, B)
    monkeypatch.setattr(os, "listdir", listdir)
    assert store.ids() == [B]


def test_damage_in_the_work_of_a_group_stops_no_plan(project, gpbench):
    for name in ("group.json", "progress.json"):
        (project / "store/.work/a" / name).mkdir(parents=True)
    work = project / "store/.work/b"
    work.mkdir()
    (work / "group.json").write_bytes(b"\xff\xfe")
    (work / "checkpoint-x.pt").touch()
    store = Store(project / "store")
    assert store.groups() == []
    assert (store.progress("a"), store.checkpoint("b")) == (None, 0)
    assert gpbench("plan", "--overrides", "methods=[constant] datasets=[wine]").code == 0


def test_what_the_system_refuses_is_one_line(capfd):
    def work():
        with open("/dev/full", "w") as full:
            full.write("x")

    assert exit_status(work) == 1
    assert exit_status(Path("/no/such/file").read_text) == 1
    no_space, no_file = capfd.readouterr().err.splitlines()
    assert no_space == "gpbench: No space left on device; check the file, free space and permissions"
    assert no_file.startswith("gpbench: /no/such/file: No such file")
