"""The store: a fit is there whole or not at all."""

import json
import os
import subprocess
import sys
import time

import pytest

from gpbench.errors import UserError
from gpbench.study.store import Store


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path / "store")


def put(store: Store, fit_id: str, status: str = "done") -> None:
    with store.writing(fit_id) as folder:
        (folder / "fit.json").write_text(json.dumps({"fit_id": fit_id, "status": status, "reason": ""}))


def test_an_empty_store(store):
    assert (store.ids(), store.groups(), store.begun()) == ([], [], {})
    assert not store.has("aa11")
    assert not store.root.exists()


def test_a_fit_appears_when_it_is_whole(store):
    with store.writing("aa11") as folder:
        (folder / "fit.json").write_text('{"status": "done"}')
        assert not store.has("aa11")
        assert store.ids() == []
    assert store.has("aa11")
    assert (store.ids(), store.record("aa11")) == (["aa11"], {"status": "done"})
    assert list((store.root / ".tmp").iterdir()) == []


def test_what_fails_while_writing_leaves_nothing(store):
    def stop_half_way() -> None:
        with store.writing("aa11") as folder:
            (folder / "fit.json").write_text("{}")
            raise RuntimeError("half way")

    with pytest.raises(RuntimeError, match="half way"):
        stop_half_way()
    assert store.ids() == []
    assert list((store.root / ".tmp").iterdir()) == []


def test_a_finished_fit_is_never_replaced(store):
    put(store, "aa11")
    before = (store.folder("aa11") / "fit.json").stat()
    put(store, "aa11", status="failed")
    assert store.record("aa11")["status"] == "done"
    assert (store.folder("aa11") / "fit.json").stat() == before


def test_a_fit_is_found_by_its_beginning(store):
    put(store, "aa11")
    put(store, "aa22")
    assert store.find("aa1") == "aa11"
    with pytest.raises(UserError, match="2 fits begin with 'aa' in .*; give more of the identity"):
        store.find("aa")
    with pytest.raises(UserError, match=r"no fit begins with 'bb' in .*store; `gpbench plan` lists"):
        store.find("bb")


def test_a_damaged_record_says_so_and_retry_removes_it(project, gpbench):
    store = Store(project / "store")
    put(store, "aa11")
    put(store, "bb22")
    (store.folder("aa11") / "fit.json").write_text('{"status": ')
    with pytest.raises(UserError, match=r"aa11/fit\.json is damaged \(.*\); `gpbench retry aa11` removes it"):
        store.record("aa11")
    assert "`gpbench retry aa11`" in gpbench("plan").err
    assert gpbench("retry", "aa11").out == "1 fits cleared; the next run takes them up again\n"
    assert store.ids() == ["bb22"]


def test_retry_clears_what_did_not_end_well(project, gpbench):
    store = Store(project / "store")
    for fit_id, status in {"aa": "done", "bb": "failed", "cc": "diverged", "dd": "out-of-memory"}.items():
        put(store, fit_id, status)
    (store.root / "ee").mkdir()  # a folder without its record
    assert gpbench("retry", "bb").out.startswith("1 fits cleared")
    assert store.ids() == ["aa", "cc", "dd", "ee"]
    assert gpbench("retry").out.startswith("3 fits cleared")
    assert store.ids() == ["aa"]
    assert list((store.root / ".tmp").iterdir()) == []


def test_groups_at_work(store):
    group = {"group_id": "gg", "fits": [{"fit_id": "aa"}, {"fit_id": "bb"}]}
    work = store.begin(group)
    assert store.begin(group | {"fits": []}) == work  # as it was planned first
    assert store.groups() == [group]
    assert store.begun() == {"aa": group, "bb": group}
    assert (store.checkpoint("gg"), store.progress("gg")) == (0, {})
    (work / "checkpoint-000000050.pt").touch()
    (work / "checkpoint-000000100.pt").touch()
    (work / "progress.json").write_text('{"step": 100}')
    assert (store.checkpoint("gg"), store.progress("gg")) == (100, {"step": 100})
    (work / "progress.json").write_text('{"st')  # read while it is written
    assert store.progress("gg") == {}
    store.end("gg")
    assert store.groups() == []


def test_a_lock_is_seen_by_others_and_dies_with_its_holder(store):
    program = (
        "import sys, time; from gpbench.study.store import Store\n"
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


def test_who_waits_for_a_lock_says_so_and_gets_it(store, capfd):
    program = (
        "import sys, time; from gpbench.study.store import Store\n"
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
