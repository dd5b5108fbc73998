"""Machines without a common disk exchange fits and checkpoints through a place that fsspec knows."""

from __future__ import annotations

import errno
import gzip
import io
import os
import tarfile
from dataclasses import fields
from pathlib import Path

import pytest

from gpbench import places
from gpbench.errors import UserError
from gpbench.study.commands import sharing
from gpbench.study.planning import plan as planning
from gpbench.study.records import Group, Planned
from gpbench.study.results import collect
from gpbench.study.storage import remote
from gpbench.study.storage.remote import Remote
from gpbench.study.storage.store import Store, Unreadable
from handmade import CELL, finish, planned

FIT = planned()


@pytest.fixture(params=["file", "memory"])
def url(request, tmp_path) -> str:
    return f"{request.param}://{tmp_path}/a place"


@pytest.fixture
def stores(tmp_path) -> tuple[Store, Store]:
    """Of two machines; the first has a fit."""
    first, second = Store(tmp_path / "first"), Store(tmp_path / "second")
    finish(first, CELL, FIT)
    return first, second


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def group(*fits) -> Group:
    common = {f.name: getattr(CELL, f.name) for f in fields(Planned)}
    return Group(**common, group_id="abcdef0123456789", fits=fits or (FIT,))


def begin(store: Store, step: int, *draws: str) -> Path:
    """A group that came so far, with some files of draws."""
    work = store.begin(group())
    (work / f"checkpoint-{step:09d}-{'a' * 16}.pt").write_text(str(step))
    for i, name in enumerate(draws):
        (work / f"samples-{i:06d}-000001-{name * 16}.pt").write_text(name)
    return work


def test_a_fit_that_is_fetched_is_the_fit_that_was_sent(stores, url):
    first, second = stores
    assert Remote(url).push(first, first.ids()) == 1
    assert Remote(url).push(first, first.ids()) == 0
    there = Remote(url)
    assert there.fits == {FIT.fit_id}
    assert there.pull(second, sorted(there.fits)) == 1
    assert files(second.folder(FIT.fit_id)) == files(first.folder(FIT.fit_id))
    assert second.fault(FIT.fit_id) == ""
    assert (second.root / ".spool" / FIT.fit_id).is_file()
    assert there.pull(second, sorted(there.fits)) == 0


def test_what_a_killed_machine_left_of_a_fit_it_fetched_is_swept(stores, monkeypatch):
    first, second = stores
    Remote(url := f"file://{second.root}-place").push(first, first.ids())
    monkeypatch.setattr(os, "getpid", lambda: 2**22 + 1)
    monkeypatch.setattr("shutil.rmtree", lambda *_, **__: None)  # it is killed
    Remote(url).pull(second, [FIT.fit_id])
    monkeypatch.undo()
    assert len(os.listdir(second.root / ".tmp")) == 1
    second.sweep()
    assert os.listdir(second.root / ".tmp") == []


def test_only_sound_and_done_fits_are_sent(stores, url):
    store, _ = stores
    other = planned(1)
    finish(store, CELL, other, "failed")
    (store.folder(FIT.fit_id) / "points.parquet").write_bytes(b"x")
    assert Remote(url).push(store, store.ids()) == 0


def test_a_fit_that_is_damaged_here_or_is_fetched_twice_at_once_is_in_its_place(stores, url, monkeypatch):
    first, second = stores
    Remote(url).push(first, first.ids())
    second.folder(FIT.fit_id).mkdir(parents=True)
    (second.folder(FIT.fit_id) / "points.parquet").write_text("without its record")
    assert Remote(url).pull(second, [FIT.fit_id]) == 1
    assert files(second.folder(FIT.fit_id)) == files(first.folder(FIT.fit_id))
    third, usual = Store(second.root / "third"), remote._unpack

    def unpack(*words: object) -> str:
        finish(third, CELL, FIT)  # by another process
        return usual(*words)

    monkeypatch.setattr(remote, "_unpack", unpack)
    assert Remote(url).pull(third, [FIT.fit_id]) == 1
    assert third.ids() == [FIT.fit_id]


def test_what_others_keep_there_stays_and_is_no_group(stores, url):
    store, _ = stores
    there, todo = Remote(url), group().group_id
    begin(store, 50)
    there.push_work(store, todo)
    for name in ("notes", f"{todo}/notes"):
        there.create(f"checkpoints/{name}", b"somebody's")
    assert there.begun() == [todo]
    there.forget_work(todo)
    assert there.names(f"checkpoints/{todo}") == ["notes"]


def tarred(headers: dict[str, str] | None = None, /, **contents: bytes) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as tar:
        for name, content in contents.items():
            member = tarfile.TarInfo(name)
            member.pax_headers, member.mode = headers or {}, 0o600
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return stream.getvalue()


def damages(sent: dict[str, bytes]) -> dict[str, tuple[bytes, str]]:
    half = tarred(**sent)[:700]
    changed = sent | {"points.parquet": b"x"}
    unsealed = sent | {"fit.json": sent["fit.json"].replace(b'"sealed"', b'"unsealed"')}
    return {
        "half": (half, "unexpected end of data"),
        "empty": (b"", "empty file"),
        "compressed": (gzip.compress(tarred(**sent))[:-9], "invalid header"),
        "changed": (tarred(**changed), "points.parquet was changed"),
        "unsealed": (tarred(**unsealed), "seal"),
        "outside": (tarred(**{"../fit.json": sent["fit.json"]}), "no fit"),
        "no sizes": (tarred({"GNU.sparse.map": "a,b", "GNU.sparse.size": "4"}, **sent), "invalid literal for int"),
        "ten terabytes": (tarred({"GNU.sparse.map": "0,1", "GNU.sparse.size": "1" + "0" * 13}, **sent), "no fit"),
        "beyond every disk": (tarred({"size": "9" * 30}, **sent), "too large"),
    }


@pytest.mark.parametrize(
    "kind",
    [
        *("half", "empty", "compressed", "changed", "unsealed", "outside"),
        *("no sizes", "ten terabytes", "beyond every disk"),
    ],
)
def test_a_damaged_object_is_a_line_and_is_set_aside(stores, url, kind, capfd):
    first, second = stores
    content, said = damages(files(first.folder(FIT.fit_id)))[kind]
    Remote(url).create(f"fits/{FIT.fit_id}.tar", content)
    there = Remote(url)
    assert there.pull(second, sorted(there.fits)) == 0
    err = capfd.readouterr().err
    assert err.count("\n") == 1
    assert said in err
    assert second.ids() == []
    assert list((second.root / ".tmp").iterdir()) == []
    assert (Remote(url).fits, there.names("damaged")) == (set(), [f"{FIT.fit_id}.tar"])
    assert there.push(first, first.ids()) == 1


def test_a_fit_that_is_fetched_may_be_read_by_others_and_has_no_strange_time(stores):
    first, second = stores
    os.umask(mask := os.umask(0))
    there = Remote(f"file://{second.root}-place")
    there.create(f"fits/{FIT.fit_id}.tar", tarred({"mtime": "nan"}, **files(first.folder(FIT.fit_id))))
    assert there.pull(second, [FIT.fit_id]) == 1
    modes = {path.stat().st_mode & 0o777 for path in second.folder(FIT.fit_id).iterdir()}
    assert modes == {0o666 & ~mask}


def test_a_damaged_object_of_a_remote_that_may_only_be_read_holds_up_nothing(stores, url, monkeypatch, capfd):
    first, second = stores
    Remote(url).push(first, first.ids())
    Remote(url).create(f"fits/{'0' * 16}.tar", b"")
    there = Remote(url)
    monkeypatch.setattr(there.files, "mv", refuse)
    assert there.pull(second, sorted(there.fits)) == 1
    assert "is damaged (empty file); it could not be moved to damaged/ there" in capfd.readouterr().err
    assert second.ids() == first.ids()


def test_a_fit_that_cannot_be_read_for_a_moment_is_not_said_to_be_damaged(stores, url, monkeypatch):
    first, second = stores
    Remote(url).push(first, first.ids())
    finish(first, CELL, planned(1))
    with monkeypatch.context() as patch:
        patch.setattr(Path, "read_bytes", refuse)
        with pytest.raises(Unreadable, match="cannot be read \\(Operation not permitted\\)"):
            Remote(url).pull(second, [FIT.fit_id])
        assert Remote(url).push(first, first.ids()) == 0
    assert (Remote(url).fits, Remote(url).names("damaged"), second.ids()) == ({FIT.fit_id}, [], [])


def test_a_full_disk_here_is_named_and_is_no_damage_there(stores, url, monkeypatch):
    first, second = stores
    Remote(url).push(first, first.ids())

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(tarfile.TarFile, "extractall", full)
    with pytest.raises(OSError, match="No space left on device") as caught:
        Remote(url).pull(second, [FIT.fit_id])
    assert caught.value.filename == str(second.folder(FIT.fit_id))
    assert (Remote(url).names("damaged"), second.ids(), os.listdir(second.root / ".tmp")) == ([], [], [])


def refuse(*_: object, **__: object) -> None:
    raise PermissionError(1, "Operation not permitted")


def test_checkpoints_follow_the_machine_that_is_furthest(stores, url):
    first, second = stores
    there = Remote(url)
    begin(first, 50, "b")
    there.push_work(first, group().group_id)
    before = files(begin(second, 40, "c"))
    with second.locked([FIT.fit_id]):
        there.pull_work(second, group().group_id)
        assert files(second.work(group().group_id)) == before, "who is at it here goes on from its own"
    there.pull_work(second, group().group_id)
    assert files(second.work(group().group_id)) == files(first.work(group().group_id))
    (first.work(group().group_id) / f"checkpoint-000000050-{'a' * 16}.pt").unlink()
    begin(first, 100, "b", "d")
    there.push_work(first, group().group_id)
    begin(second, 150, "e")
    there.pull_work(second, group().group_id)
    assert second.checkpoint(group().group_id) == 150
    assert there.begun() == [group().group_id]
    assert [name[:20] for name in there.names(f"checkpoints/{group().group_id}")] == [
        "checkpoint-000000100",
        "group.json",
        "samples-000000-00000",
        "samples-000001-00000",
    ]
    there.forget_work(group().group_id)
    assert there.names(f"checkpoints/{group().group_id}") == []


def test_a_checkpoint_that_is_replaced_while_it_is_sent_goes_next_time_and_one_as_far_stays(stores, url, monkeypatch):
    first, second = stores
    there, todo = Remote(url), group().group_id
    begin(first, 50, "b")
    there.push_work(first, todo)
    before = files(begin(second, 50, "c"))
    there.pull_work(second, todo)
    assert files(second.work(todo)) == before
    sent = there.names(f"checkpoints/{todo}")
    begin(first, 100, "b")
    with monkeypatch.context() as patch:
        patch.setattr(Path, "read_bytes", gone)
        there.push_work(first, todo)
    assert there.names(f"checkpoints/{todo}") == sent
    there.push_work(first, todo)
    assert len(there.names(f"checkpoints/{todo}")) == len(sent) + 1
    with monkeypatch.context() as patch:
        patch.setattr(there, "read", lambda _: None)  # the other machine has done it meanwhile
        there.pull_work(Store(second.root / "third"), todo)
    there.pull_work(second, todo)
    assert second.checkpoint(todo) == 100


def gone(path: Path) -> None:
    raise FileNotFoundError(path)


def test_a_checkpoint_is_sent_after_the_samples_that_it_needs(stores, url, monkeypatch):
    store, _ = stores
    begin(store, 50, "b")
    there, sent = Remote(url), []
    monkeypatch.setattr(there, "create", lambda name, content: sent.append(name.rsplit("/", 1)[1]))
    there.push_work(store, group().group_id)
    assert [name.split("-")[0] for name in sent] == ["group.json", "samples", "checkpoint"]


def test_a_place_that_cannot_be_is_one_line(tmp_path, monkeypatch, project, gpbench):
    answer = gpbench("push")
    assert (answer.code, answer.err.count("\n")) == (1, 1)
    assert "GPBENCH_REMOTE is not set" in answer.err
    monkeypatch.setenv("GPBENCH_REMOTE", "nowhere://bucket")
    answer = gpbench("plan")
    assert (answer.code, answer.err.count("\n")) == (1, 1)
    assert "GPBENCH_REMOTE=nowhere://bucket: " in answer.err
    for typo in ("s3:/bucket", "bucket", " ", "file://folder"):
        monkeypatch.setenv("GPBENCH_REMOTE", typo)
        assert f"GPBENCH_REMOTE={typo!r} is not an address" in gpbench("push").err
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="does not answer .* try again"):
        Remote(f"file://{tmp_path}/file").create("fits/one", b"")


def test_push_and_pull_take_fits_and_begun_groups_that_nobody_is_at(project, url, tmp_path, gpbench, monkeypatch):
    monkeypatch.setenv("GPBENCH_REMOTE", url)
    here, there, todo = Store(project / "store"), Store(tmp_path / "there"), group().group_id
    finish(here, CELL, planned(1))
    begin(here, 50, "b")
    with here.locked([FIT.fit_id]):
        assert gpbench("push").out == f"1 fit sent to {url}\n"
    assert Remote(url).begun() == []
    assert gpbench("push").out == f"0 fits sent to {url}\n"
    monkeypatch.setenv("GPBENCH_STORE", str(there.root))
    remote._of.cache_clear()
    assert gpbench("pull").out == f"1 fit fetched of 1 in {url}\n"
    assert (there.ids(), files(there.work(todo))) == (here.ids(), files(here.work(todo)))
    assert gpbench("pull").out == f"0 fits fetched of 1 in {url}\n"
    monkeypatch.setattr(remote, "find", refuse)
    assert remote.pull(there, planned(1).fit_id), "what is here needs no place"


def test_a_plan_counts_what_another_machine_has_done_and_collecting_fetches_it(project, url, tmp_path, monkeypatch):
    words = "methods=[constant] datasets=[boston] splits=2"
    where = places.find()
    before = planning.make(where, "default", words)
    other = Store(tmp_path / "other")
    for cell in before.cells:
        for fit in cell.fits:
            finish(other, cell, fit)
    Remote(url).push(other, other.ids())
    monkeypatch.setenv("GPBENCH_REMOTE", url)
    plan = planning.make(where, "default", words)
    assert {state.name for state in plan.states.values()} == {"done"}
    assert plan.batches == ()
    planning.freeze(plan, where)
    seen = collect.seen(collect.Ended(where, plan.name, read=False), plan)
    assert collect.collect(where, plan.name) == {"done": 2}
    assert Store(where.store).ids() == other.ids()
    assert collect.seen(collect.Ended(where, plan.name, read=False), plan) == seen, "it is not collected again"


def test_a_job_sends_what_it_has_done_and_hands_checkpoints_on(stores, url, monkeypatch, capfd):
    first, second = stores
    monkeypatch.setenv("GPBENCH_REMOTE", url)
    monkeypatch.setattr(sharing, "LOOK_SECONDS", 0.0)
    new = planned(1)
    todo = group(new)
    here, there = sharing.Sharing(first), sharing.Sharing(second)
    assert here.next([todo]) == todo
    begin(first, 50)
    here.end(todo)  # it was stopped
    assert there.next(waiting := [group(FIT), todo]) == group(FIT)
    there.end(group(FIT))
    assert there.next(waiting) == todo
    assert second.checkpoint(todo.group_id) == 50
    finish(second, CELL, new)
    monkeypatch.setattr(sharing.time, "sleep", lambda _: there.end(todo))  # while the other waits
    assert here.next([todo]) is None
    assert capfd.readouterr().err == "gpbench: waiting for other machines, which are at all that is left\n"
    assert Remote(url).fits == {new.fit_id}
    assert (Remote(url).names("claims"), Remote(url).names(f"checkpoints/{todo.group_id}")) == ([], [])


def test_a_job_shows_that_it_lives_and_sends_each_new_checkpoint_once(stores, url, monkeypatch, capfd):
    now, beats, sent, todo = [1000.0], [], [], group(planned(1))
    monkeypatch.setenv("GPBENCH_REMOTE", url)
    monkeypatch.setattr(sharing.time, "monotonic", lambda: now[0])
    job = sharing.Sharing(stores[0])
    assert job.next([todo]) == todo
    begin(stores[0], 50)
    monkeypatch.setattr(job.claims, "beat", lambda: beats.append(now[0]))
    monkeypatch.setattr(job.claims.remote, "push_work", lambda *_: sent.append(now[0]))
    for later in (sharing.BEAT - 1, 1, sharing.BEAT):
        now[0] += later
        job.look(todo)
    assert (beats, sent) == ([1000 + sharing.BEAT, 1000 + 2 * sharing.BEAT], [1000 + sharing.BEAT])

    def silent() -> None:
        raise UserError("it does not answer")

    monkeypatch.setattr(job.claims, "beat", silent)
    now[0] += sharing.BEAT
    job.look(todo)
    assert capfd.readouterr().err == "gpbench: it does not answer\n"


def test_a_fit_of_another_machine_is_not_made_again(project, url, gpbench, monkeypatch):
    words = ("fit", "method=constant", "dataset=boston", "split=0")
    monkeypatch.setenv("GPBENCH_REMOTE", url)
    made = gpbench(*words)
    assert made.code == 0, made.err
    folder = next((project / "store").glob("[0-9a-f]*"))
    record = (folder / "fit.json").read_text()
    monkeypatch.setenv("GPBENCH_STORE", str(project / "another"))
    remote._of.cache_clear()
    assert gpbench(*words).out == made.out
    assert (project / "another" / folder.name / "fit.json").read_text() == record
    assert os.listdir(project / "another" / folder.name).count("fit.json") == 1
