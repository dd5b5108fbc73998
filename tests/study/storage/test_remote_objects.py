"""Objects of a place that machines share, each written once and as a whole; claims, which say who is at a fit;
what others left there."""

import errno
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from gpbench import places
from gpbench.errors import UserError
from gpbench.study.commands import certify
from gpbench.study.planning import plan as planning
from gpbench.study.records import to_json
from gpbench.study.storage import claims
from gpbench.study.storage.remote import Remote
from gpbench.study.storage.store import Store
from handmade import finish, record_of


@pytest.fixture
def url(tmp_path) -> str:
    return f"memory://{tmp_path}/a place"


@pytest.fixture
def now(monkeypatch) -> list[float]:
    """The time of the clock."""
    time = [1000.0]
    monkeypatch.setattr(claims.time, "monotonic", lambda: time[0])
    return time


@pytest.mark.parametrize("scheme", ["file", "memory"])
def test_of_two_that_are_first_one_is(scheme, tmp_path):
    there = Remote(f"{scheme}://{tmp_path}/a place")
    assert there.create("fits/one", b"mine")
    assert not there.create("fits/one", b"theirs")
    assert (there.read("fits/one"), there.names("fits")) == (b"mine", ["one"])


def test_a_file_system_without_links_replaces_no_object(tmp_path):
    there = Remote(f"file://{tmp_path}/a place")
    names = ("cat_file", "exists", "invalidate_cache", "ls", "makedirs", "mv", "pipe_file", "rm_file")
    there.files = SimpleNamespace(**{name: getattr(there.files, name) for name in names})
    assert [there.create("fits/one", content) for content in (b"mine", b"theirs")] == [True, False]
    assert (there.read("fits/one"), there.names("fits")) == (b"mine", ["one"])


def test_a_place_is_asked_three_times(tmp_path, monkeypatch):
    there, calls = Remote(f"file://{tmp_path}/a place"), []
    usual = there.files.pipe_file

    def flaky(path: str, content: bytes) -> None:
        calls.append(path)
        if len(calls) % 3:
            raise OSError(errno.ETIMEDOUT, "timed out")
        usual(path, content)

    monkeypatch.setattr(there.files, "pipe_file", flaky)
    assert there.create("fits/one", b"mine")
    assert (len(calls), there.read("fits/one")) == (3, b"mine")


def test_a_full_place_keeps_no_half_object(tmp_path, monkeypatch):
    there = Remote(f"file://{tmp_path}/a place")

    def full(path: str, content: bytes) -> None:
        Path(path).write_bytes(content[:1])
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(there.files, "pipe_file", full)
    with pytest.raises(UserError, match="No space left on device"):
        there.create("fits/one", b"mine")
    assert there.names("fits") == []


@pytest.mark.parametrize("scheme", ["file", "memory"])
def test_a_machine_that_died_loses_its_fit_to_one_other(scheme, tmp_path, now):
    first, second, third = (claims.Claims(Remote(f"{scheme}://{tmp_path}/a place")) for _ in range(3))
    assert first.take(["a", "b"])
    assert not second.take(["b", "0"])
    assert third.take(["0"]), "what was claimed before the one that is another's is free again"
    third.release()
    assert not third.take(["a"])
    now[0] += claims.SILENCE - 1
    first.beat()
    assert not second.take(["a"])
    now[0] += claims.SILENCE + 1
    first.beat()
    assert not second.take(["a"]), "the first one lives, although nobody has looked for long"
    now[0] += claims.SILENCE
    assert second.take(["a"]), "the first one has been silent"
    assert not third.take(["a"])
    second.release()
    assert third.take(["a"])


def test_claims_are_tried_in_one_order_and_a_lost_answer_is_found_again(url, monkeypatch):
    there, tried = Remote(url), []
    usual = there.create

    def create(name: str, content: bytes) -> bool:
        tried.append(name)
        usual(name, content)
        return usual(name, content)  # there is one of its name now

    monkeypatch.setattr(there, "create", create)
    assert claims.Claims(there).take(["b", "a"])
    assert tried == ["claims/a.1", "claims/b.1"]


def test_the_newest_claim_has_the_largest_number(url, now):
    there = Remote(url)
    for number in (9, 10):
        there.create(f"claims/a.{number}", b"of a machine that died")
    one = claims.Claims(there)
    assert not one.take(["a"])
    now[0] += claims.SILENCE
    assert (one.take(["a"]), one.held) == (True, {"a": 11})


def test_names_that_are_no_claims_stay_and_a_number_that_is_far_off_costs_no_time(url, now):
    there = Remote(url)
    for number in ("x", "", 2 * 10**8):
        there.create(f"claims/a.{number}", b"somebody's")
    one = claims.Claims(there)
    assert not one.take(["a"])
    now[0] += claims.SILENCE
    assert one.take(["a"])
    one.release()
    assert there.names("claims") == ["a.", "a.x"]


def test_a_group_from_elsewhere_chooses_no_folder_no_name_and_no_settings(project):
    """Its folder would be removed when its fits have ended."""
    where, store = places.find(), Store(project / "store")
    words = "methods=[constant] datasets=[boston] splits=1 budget=smoke"
    (batch,) = planning.make(where, "default", words).batches
    (sound,), odd = batch.groups, "../../x; y"
    named = replace(sound, label=odd, family=odd, address=replace(sound.address, method=odd))
    note = store.work(sound.group_id) / "group.json"
    note.parent.mkdir(parents=True)
    for sent in (
        replace(sound, group_id="../../../elsewhere"),
        replace(sound, what=replace(sound.what, dtype="float32")),
        replace(sound, fits=(replace(sound.fits[0], split=1),)),
        named,
    ):
        note.write_text(to_json(sent))
        assert store.groups() == ([named] if sent == named else [])
        assert planning.make(where, "default", words).batches == (batch,)


def test_the_longer_fit_of_a_certificate_may_be_done_on_another_machine(project, url, tmp_path, monkeypatch):
    """Also of a study whose overrides have the settings that the longer fit replaces."""
    where, words = places.find(), "methods=[svgp] datasets=[boston] splits=1 budget=smoke budget.until_converged="
    (cell,) = planning.make(where, "default", f"{words}true").cells
    (longer,) = planning.make(where, "default", f"{words}false svgp.steps=7200").cells
    other = Store(tmp_path / "other")
    finish(other, longer, longer.fits[0])
    Remote(url).push(other, other.ids())
    monkeypatch.setenv("GPBENCH_REMOTE", url)
    monkeypatch.setattr("gpbench.data.prepare.ensure", lambda *_: None)
    record = certify.refitted(where, Store(where.store), record_of(cell, cell.fits[0], steps_done=1800))
    assert record is not None
    assert record.fit_id == longer.fits[0].fit_id
