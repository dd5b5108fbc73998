"""Seals: a damaged fit is named, moved aside whole, and missing."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from gpbench.errors import UserError
from gpbench.places import Places
from gpbench.study import scoring
from gpbench.study.records import MethodSettings, to_json
from gpbench.study.results import collect
from gpbench.study.storage import committed, seals
from gpbench.study.storage.store import Damaged, Store, Unreadable
from handmade import CELL, finish, planned, record_of


@pytest.fixture
def store(project) -> Store:
    """Two sealed fits, of splits 0 and 1."""
    store = Store(project / "store")
    for split in (0, 1):
        finish(store, CELL, planned(split))
    return store


def flip(path: Path) -> None:
    content = path.read_bytes()
    half = len(content) // 2
    path.write_bytes(content[:half] + bytes([content[half] ^ 1]) + content[half + 1 :])


def edit(**fields: object) -> Callable[[Path], None]:
    """An edit of fit.json by hand."""
    return lambda path: path.write_text(json.dumps(json.loads(path.read_text()) | fields, indent=1))


def exchange(path: Path) -> None:
    """The file of the other fit."""
    path.write_bytes((path.parents[1] / planned(1).fit_id / path.name).read_bytes())


def steps(path: Path) -> None:
    """Other settings, with a seal that fits them."""
    content = json.loads(path.read_text())
    content["what"]["steps"] = 5
    path.write_text(json.dumps(content))
    seals.seal(path.parent)


def forged(path: Path) -> None:
    """A record that is sealed, and says nothing of its settings."""
    content = json.loads(path.read_text())
    del content["split"]
    path.write_text(json.dumps(content | {"what": []}))
    seals.seal(path.parent)


def pipe(path: Path) -> None:
    """What would keep everybody who reads it waiting."""
    path.unlink()
    os.mkfifo(path)


DAMAGES = {
    "a byte of the points": ("points.parquet", flip, "points.parquet was changed after it was written"),
    "no points": ("points.parquet", Path.unlink, "points.parquet is missing"),
    "no arrays": ("arrays.npz", Path.unlink, "arrays.npz is missing"),
    "a model of another fit": ("model.npz", lambda path: np.savez(path, a=1), "model.npz is not of this fit"),
    "seconds": ("fit.json", edit(peak_memory_mb=1.0), "it was changed after it was written"),
    "status": ("fit.json", edit(status="failed"), "it was changed after it was written"),
    "the record of another fit": ("fit.json", exchange, f"it is the record of {planned(1).fit_id}"),
    "other settings": ("fit.json", steps, "its `what` does not hash to its identity"),
    "no settings": ("fit.json", forged, "its `what` does not hash to its identity"),
    "nothing in the record": ("fit.json", lambda path: path.write_text("null"), "Input should be"),
    "a text in place of a number": ("fit.json", edit(seconds="x"), "it was changed after it was written"),
    "nothing in place of what it is": ("fit.json", edit(what=None), "it was changed after it was written"),
    "a record too deep": ("fit.json", lambda path: path.write_text("[" * 10**5), "maximum recursion depth"),
    "a record in another encoding": ("fit.json", lambda path: path.write_bytes(b"\xff{}"), "can't decode byte 0xff"),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_a_damaged_fit_is_named_and_moved_aside(store, name, gpbench):
    file, damage, said = DAMAGES[name]
    fit_id, other = planned(0).fit_id, planned(1).fit_id
    assert store.verified(fit_id).status == "done"
    damage(store.folder(fit_id) / file)
    before = {path.name: path.read_bytes() for path in store.folder(fit_id).iterdir()}
    answer = gpbench("verify")
    assert answer.code == 1
    assert said in answer.err
    assert f"`gpbench retry {fit_id}` moves it aside" in answer.err
    assert answer.err.endswith("gpbench: 1 damaged or unreadable; see the lines above\n")
    assert "2 fits: sealed 1, of another edition 0, damaged or unreadable 1" in answer.out
    with pytest.raises(Damaged, match=f"{fit_id}.* is damaged .*; moved to {store.cleared}, and fitted again"):
        store.verified(fit_id)
    assert store.ids() == [other]
    (aside,) = store.cleared.iterdir()
    assert {path.name: path.read_bytes() for path in aside.iterdir()} == before
    assert gpbench("verify").code == 0


@pytest.mark.parametrize("file", ["fit.json", "points.parquet"])
def test_a_fit_that_cannot_be_read_for_a_moment_is_named_and_stays(store, gpbench, monkeypatch, tmp_path, file):
    fit_id, usual, is_file = planned(0).fit_id, Path.open, Path.is_file
    path = store.folder(fit_id) / file

    def refuse(self: Path, *words: object, **options: object) -> object:
        if self == path:
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(self))
        return usual(self, *words, **options)

    said = f"{path} cannot be read (Input/output error); its fit stays as it is"
    with monkeypatch.context() as patch:
        patch.setattr(Path, "open", refuse)
        answer = gpbench("verify")
        assert (answer.code, said in answer.err) == (1, True)
        assert "2 fits: sealed 1, of another edition 0, damaged or unreadable 1" in answer.out
        for words in (("retry",), ("predict", fit_id, str(tmp_path / "new.csv"))):
            answer = gpbench(*words)
            assert (answer.code, answer.out, answer.err.count("\n"), said in answer.err) == (1, "", 1, True)
        ended = collect.Ended(Places(store.root.parent, store.root), "none")
        assert ended.status(CELL, planned(0)) == ("missing", ended.damaged[fit_id])
        assert ended.status(CELL, planned(1)) == ("done", "")
        store.certify(planned(1).fit_id, {})
        patch.setattr(Path, "is_file", lambda self: is_file(self) if self.parent != path.parent else refuse(path))
        fits, study = [(CELL, planned(split)) for split in (0, 1)], SimpleNamespace(challengers=[])
        plan = SimpleNamespace(fits=fits, cells=[], study=study)
        assert json.loads(collect.seen(ended, plan))["certified"] == [planned(1).fit_id]
        if file == "fit.json":
            with pytest.raises(Unreadable):
                store.move_damaged([fit_id])
            assert [said in line for line in store.records()[1]] == [True]
            answer = gpbench("plan")
            assert (answer.code, said in answer.out) == (0, True)
    assert store.ids() == sorted([fit_id, planned(1).fit_id])
    assert [store.fault(each) for each in store.ids()] == ["", ""]


@pytest.mark.parametrize("file", ["fit.json", "points.parquet", "scores.json"])
def test_nobody_waits_for_a_pipe_in_the_place_of_a_file(store, gpbench, file):
    fit_id = planned(0).fit_id
    scoring.scores(store, store.record(fit_id))
    (store.folder(fit_id) / file).touch()
    pipe(store.folder(fit_id) / file)
    answer = gpbench("verify")
    assert (answer.code, f"{file} is" in answer.err) == (1, True)


def test_predict_answers_by_no_damaged_fit(store, gpbench, tmp_path):
    flip(store.folder(planned(0).fit_id) / "points.parquet")
    answer = gpbench("predict", planned(0).fit_id, str(tmp_path / "new.csv"))
    assert (answer.code, answer.out, answer.err.count("\n")) == (1, "", 1)
    assert "points.parquet was changed after it was written" in answer.err


@pytest.mark.parametrize("damage", [flip, Path.unlink], ids=["a byte", "deleted"])
@pytest.mark.parametrize("name", ["model.pt", "model.npz", "arrays.npz"])
def test_a_damaged_model_predicts_nothing_and_a_chain_that_is_gone_is_missed(store, gpbench, tmp_path, name, damage):
    """Without its chain a fit would have no R-hat that could fail."""
    with store.writing(planned(3).fit_id) as folder:
        (folder / name).write_bytes(bytes(range(100)))
        (folder / "points.parquet").touch()
        (folder / "fit.json").write_text(to_json(record_of(CELL, planned(3))))
    damage(store.folder(planned(3).fit_id) / name)
    answer = gpbench("predict", planned(3).fit_id, str(tmp_path / "new.csv"))
    assert (answer.code, answer.out, answer.err.count("\n")) == (1, "", 1)
    assert f"is damaged ({name} {'is missing' if damage is Path.unlink else 'was changed'}" in answer.err
    assert planned(3).fit_id not in store.ids()


def test_retry_moves_damaged_fits_aside(store, gpbench):
    flip(store.folder(planned(0).fit_id) / "points.parquet")
    assert gpbench("retry").out.startswith("1 fit cleared")
    assert store.ids() == [planned(1).fit_id]


def test_a_folder_without_its_record_makes_room(store, capfd):
    (store.folder(planned(0).fit_id) / "fit.json").unlink()
    # so that no other fit is taken for it
    assert "is damaged (fit.json is missing); it is moved aside" in store.records()[1][0]
    store.move_damaged([planned(0).fit_id, planned(1).fit_id])
    assert "fit.json is missing" in capfd.readouterr().err
    finish(store, CELL, planned(0))
    assert store.verified(planned(0).fit_id).status == "done"


def test_a_file_in_the_place_of_a_fit_is_named_before_anything_is_fitted(store):
    place = store.folder("0" * 16)
    place.touch()
    with pytest.raises(UserError, match=f"{place} stands where the folder of a fit is to be, and is none"):
        store.move_damaged([place.name])
    assert place.is_file()


def test_a_folder_that_stays_in_the_way_is_named_before_its_fit_is_trained_and_lost(store):
    path = store.folder(planned(0).fit_id) / "fit.json"
    path.unlink()
    path.mkdir()
    with pytest.raises(UserError, match=f"{path.parent} is in the way of a fit; move it away"):
        store.move_damaged([planned(0).fit_id])
    assert path.is_dir()


def test_a_damaged_fit_beside_foreign_files_stays_and_is_named(store):
    folder = store.folder(planned(0).fit_id)
    (folder / "notes.txt").touch()
    flip(folder / "points.parquet")
    with pytest.raises(Damaged, match="could not be moved to .* holds notes.txt, not made by gpbench"):
        store.verified(planned(0).fit_id)
    assert folder.is_dir()


def test_a_fit_without_a_seal_is_of_another_edition(store, gpbench):
    path = store.folder(planned(0).fit_id) / "fit.json"
    content = json.loads(path.read_text())
    del content["sealed"]
    path.write_text(json.dumps(content))
    assert "2 fits: sealed 1, of another edition 1, damaged or unreadable 0" in gpbench("verify").out


def test_scores_that_were_edited_are_computed_again(store, gpbench):
    record = store.record(planned(0).fit_id)
    path = store.folder(record.fit_id) / "scores.json"
    expected = scoring.scores(store, record)
    written = path.read_bytes()
    path.write_text(path.read_text().replace(json.dumps(expected["mnll"]), "-99.0"))
    assert path.read_bytes() != written
    assert f"{path} is damaged; it is not used" in gpbench("verify").err
    assert scoring.scores(store, record) == expected
    path.write_text("[]")
    assert scoring.scores(store, record) == expected
    assert path.read_bytes() == written
    exchanged = store.folder(planned(1).fit_id) / "scores.json"
    exchanged.write_bytes(written)
    assert seals.read(exchanged) is None
    seals.write(exchanged, {"code": "0", "scores": {}})
    renamed = exchanged.rename(exchanged.with_name("certificate.json"))
    assert seals.read(renamed) is None


def test_a_tracker_is_asked_for_a_copy_once_it_is_there(store, monkeypatch):
    source, target, spool, there = planned(0).fit_id, planned(2), Store.spool, []
    monkeypatch.setattr(Store, "spool", lambda store, fit_id: there.append(store.has(fit_id)) or spool(store, fit_id))
    store.copy(source, target.fit_id, to_json(replace(store.record(source), fit_id=target.fit_id, split=2)))
    assert there[-1]


def test_a_certificate_is_sealed_and_goes_with_a_copy(store, capfd, monkeypatch):
    """Also where it is killed as soon as the copy is in its place."""
    source, target, rename = planned(0).fit_id, planned(2), Path.rename
    store.certify(source, {"certificate_steps": 400})
    record = store.record(source)

    def killed(*words: Path) -> None:
        rename(*words)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", killed)
        with pytest.raises(KeyboardInterrupt):
            store.copy(source, target.fit_id, to_json(replace(record, fit_id=target.fit_id, split=2)))
    assert (store.root / ".spool" / target.fit_id).is_file()
    assert store.certificate(target.fit_id) == {"certificate_steps": 400}
    assert store.verified(target.fit_id).split == 2
    path = store.folder(source) / "certificate.json"
    path.write_text(path.read_text().replace("400", "800"))
    assert store.certificate(source) == {}
    assert "certificate.json is damaged; `gpbench certify` makes it again" in capfd.readouterr().err
    path.write_text('{"certificate_steps": 400}')
    assert store.certificate(source) == {}


STUDY = {key: kind() for key, kind in committed.FACTS.items()}
STUDY |= {"methods": ["constant"], "datasets": ["boston"], "expected": [["constant", "boston", 0]]}
RECORD = "fit_id,method,dataset,split,replica,status\n{},constant,boston,0,0,done\n"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (RECORD.format("thesis"), "'thesis' is not an identity"),
        (RECORD.format("0" * 16) + "1" * 16 + ",constant,boston,0,0,done\n", "stands there more than once"),
        (RECORD.format("0" * 16)[:-8], "line 2 is not a record"),
    ],
)
def test_verify_reads_the_committed_records(project, gpbench, text, said):
    path = project / "docs" / "results" / "some" / "scores.csv"
    path.parent.mkdir(parents=True)
    same = "0" * 16 + ",variant_of_the_same,boston,0,0,done\n"
    path.with_name("study.json").write_text(json.dumps(STUDY))
    path.write_text(RECORD.format("0" * 16) + same + "released/boston/0,released,boston,0,0,done\n")
    assert gpbench("verify").code == 0
    path.write_text(text)
    answer = gpbench("verify")
    assert answer.code == 1
    assert said in answer.err


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("study.json", '{"command": "snakemake"}', "is damaged (it describes no study)"),
        (
            "study.json",
            json.dumps(STUDY | {"expected": [["constant", "boston"]]}),
            "is damaged (it describes no study)",
        ),
        ("study.json", json.dumps(STUDY | {"expected": [None]}), "is damaged (it describes no study)"),
        ("traces.csv", "fit_id,step,mnll\n0000000000000000,1,low\n", "line 2 is not a record"),
        ("calibration.csv", "fit_id,of,count\n0000000000000000,pit,1 2 x\n", "line 2 is not a record"),
        ("calibration.csv", "fit_id,about,count\n0000000000000000,pit,1 2\n", "line 2 is not a record"),
        ("calibration.csv", "fit_id,count\n0000000000000000,1 2\n", "has lines without fit_id, of"),
        ("calibration.csv", "fit_id,of,count,happened\n0000000000000000,pit,1 2,1\n", "or of unequal numbers"),
        ("traces.csv", "fit_id,step,mnll\n0000000000000000,1, \n", "or of unequal numbers"),
        ("systems.csv", "fit_id,measured,values\n0000000000000000,,1 2\n", "has lines without fit_id, measured"),
    ],
)
def test_verify_reads_what_is_committed_beside_the_records(project, gpbench, name, text, said):
    path = project / "docs" / "results" / "some" / "scores.csv"
    path.parent.mkdir(parents=True)
    path.with_name("study.json").write_text(json.dumps(STUDY))
    path.write_text(RECORD.format("0" * 16))
    path.with_name(name).write_text(text)
    answer = gpbench("verify")
    assert answer.code == 1
    assert said in answer.err


def test_a_fit_that_names_a_module_of_no_method_imports_nothing(store, gpbench, tmp_path, monkeypatch):
    (tmp_path / "innocent.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    monkeypatch.syspath_prepend(str(tmp_path))
    what = replace(CELL.what, method=MethodSettings("innocent", {}))
    cell = replace(CELL, what=what)
    fit_id = finish(store, cell, planned(0, cell))
    answer = gpbench("predict", fit_id, str(tmp_path / "new.csv"))
    assert (answer.code, answer.err.count("\n")) == (1, 1)
    assert "'innocent' is the module of no installed method" in answer.err
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("name", ["a$(touch pwn)", "a b", "-n", "a;b", "ä"])
def test_a_name_that_a_shell_could_take_for_more_is_refused(project, gpbench, name):
    (project / "conf" / "study" / f"{name}.yaml").write_text("title: x\n")
    answer = gpbench("plan")
    assert (answer.code, answer.err.count("\n")) == (1, 1)
    assert "a name has letters a-z, digits, _ and -" in answer.err


def test_what_a_killed_process_left_half_written_is_no_foreign_file(store, gpbench):
    folder = store.folder(planned(0).fit_id)
    (folder / ".scores.a1b2c3d4.json").touch()
    assert store.verified(planned(0).fit_id).status == "done"
    flip(folder / "points.parquet")
    assert gpbench("retry").out.startswith("1 fit cleared")
    assert store.ids() == [planned(1).fit_id]


def test_a_fit_of_another_edition_under_todays_identity_costs_itself_only(store, capfd):
    """Its cell is missing and the reason named; the job that fits it again moves it aside."""
    path = store.folder(planned(0).fit_id) / "fit.json"
    content = json.loads(path.read_text())
    del content["seconds"]
    content["sealed"]["fit.json"] = seals._of_record(content)
    path.write_text(json.dumps(content))
    ended = collect.Ended(Places(store.root.parent, store.root), "none")
    assert ended.status(CELL, planned(1))[0] == "done"
    status, reason = ended.status(CELL, planned(0))
    assert (status, "written by another edition of gpbench" in reason) == ("missing", True)
    store.move_damaged([planned(0).fit_id])
    assert "another edition" in capfd.readouterr().err
    assert store.ids() == [planned(1).fit_id]
