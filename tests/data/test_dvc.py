"""With DVC itself: what one person pushed another gets, and nothing wrong comes from a remote."""

from __future__ import annotations

import contextlib
import csv
import gzip
import hashlib
import os
import re
import shutil
from pathlib import Path
from subprocess import CompletedProcess
from unittest import mock

import pytest
import yaml

from gpbench.data.raw import fetch as fetching
from gpbench.data.raw.fetch import fetch, pins, verify
from gpbench.errors import UserError
from gpbench.places import Places
from projects import REPOSITORY, copy_project
from web import CONTENT, ITEM, entry, left_behind, serve, whole

TARGET = f"data/raw/{ITEM}"
OBJECT = f"files/md5/{entry(CONTENT)['md5'][:2]}/{entry(CONTENT)['md5'][2:]}"


def dvc(root: Path, *words: str) -> int:
    """Plain DVC in a folder, in this process (ours starts some of its own); its exit status."""
    from dvc.cli import main

    with contextlib.chdir(root), mock.patch.dict(os.environ, DVC_NO_ANALYTICS="1"):
        return main(list(words))


def places(root: Path) -> Places:
    return Places(root, root / "store")


@pytest.fixture(autouse=True)
def nothing_from_outside(monkeypatch):
    for name in ("GPBENCH_MIRROR", "GPBENCH_DVC_REMOTE"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope="module")
def team(tmp_path_factory) -> Path:
    """A folder with `remote`, to which one pushed what she fetched, and `fresh`, the project without any data."""
    folder = tmp_path_factory.mktemp("team")
    fresh = copy_project(folder / "fresh")
    with (fresh / "data.dvc").open("a") as stream:
        stream.write(yaml.safe_dump([entry(CONTENT)]))
    assert dvc(fresh, "remote", "add", "-d", "team", "../remote") == 0
    first = folder / "first"
    shutil.copytree(fresh, first)
    mirror = folder / "mirror" / ITEM
    mirror.parent.mkdir(parents=True)
    mirror.write_bytes(CONTENT)
    with mock.patch.dict(os.environ, GPBENCH_MIRROR=str(folder / "mirror")):
        fetch([ITEM], places(first))
    assert dvc(first, "push", TARGET) == 0
    assert dvc(first, "push") == 0  # all that is there: most outputs are not
    shutil.rmtree(folder / "mirror")
    shutil.rmtree(first)
    return folder


@pytest.fixture
def second(team, tmp_path) -> Path:
    """Another person's copy of the project, and of the remote."""
    shutil.copytree(team / "remote", tmp_path / "remote")
    shutil.copytree(team / "fresh", tmp_path / "second")
    return tmp_path / "second"


def test_a_team_shares_through_the_remote(second):
    (path,) = fetch([ITEM], places(second))
    assert path.read_bytes() == CONTENT
    assert dvc(second, "status") == 0
    assert not any((folder / ".git").exists() for folder in path.parents)


def test_what_dvc_left_half_written_is_removed_and_files_of_others_are_not(second, monkeypatch):
    """DVC leaves such a file where the disk is full (seen on a tmpfs of 300 kB), one for each attempt."""
    folder, usual = (second / TARGET).parent, fetching.dvc.run
    folder.mkdir(parents=True)

    def full(where, items, *words):
        if words == ("checkout",):
            for name in (".UzXUJef1P4MXmKn7eGthRw.tmp", ".notes.tmp"):
                (folder / name).write_bytes(CONTENT[:5])
            return CompletedProcess(words, 1, stderr=b"No space left on device")
        return usual(where, items, *words)

    monkeypatch.setattr(fetching.dvc, "run", full)
    with pytest.raises(UserError, match="checkout failed: No space left on device; make room in"):
        fetch([ITEM], places(second))
    assert [path.name for path in folder.iterdir()] == [".notes.tmp"]


def test_plain_dvc_pull_does_too(second):
    assert (dvc(second, "pull", TARGET), (second / TARGET).read_bytes()) == (0, CONTENT)


def test_a_remote_without_the_file_and_an_unknown_remote(second, monkeypatch):
    shutil.rmtree(second.parent / "remote" / "files")
    with pytest.raises(UserError, match="DVC remote team: does not have it or does not answer; set GPBENCH_MIRROR"):
        fetch([ITEM], places(second))
    monkeypatch.setenv("GPBENCH_DVC_REMOTE", "nix")
    with pytest.raises(UserError, match="DVC remote nix: .*remote 'nix' doesn't exist") as caught:
        fetch([ITEM], places(second))
    assert "\n" not in str(caught.value)


def test_a_wrong_object_in_a_folder(second):
    wrong = second.parent / "remote" / OBJECT
    wrong.chmod(0o644)
    wrong.write_bytes(CONTENT + b"11")
    with pytest.raises(UserError, match="could not be fetched: DVC remote team: "):
        fetch([ITEM], places(second))
    assert left_behind(second) == []


@pytest.mark.parametrize("upstream", [False, True])
def test_a_wrong_object_over_http(second, monkeypatch, upstream):
    monkeypatch.setenv("GPBENCH_DVC_REMOTE", "web")
    with serve() as web:
        web.on(f"/{OBJECT}", whole(CONTENT.replace(b"10", b"11")))
        assert dvc(second, "remote", "add", "--local", "web", web.url) == 0
        if upstream:
            (second / "data.dvc").write_text(
                yaml.safe_dump({"wdir": "data/raw", "outs": [entry(CONTENT, web.on("/rows.data", whole(CONTENT)))]})
            )
            assert fetch([ITEM], places(second))[0].read_bytes() == CONTENT
            return
        with pytest.raises(UserError, match="DVC remote web: md5 is [0-9a-f]{32}, expected") as caught:
            fetch([ITEM], places(second))
    assert "\n" not in str(caught.value)
    assert left_behind(second) == []


def test_a_default_of_this_checkout_comes_first(second):
    assert dvc(second, "remote", "add", "--local", "-d", "mine", "../mine") == 0
    with pytest.raises(UserError, match="DVC remote mine: "):
        fetch([ITEM], places(second))


def test_every_pin_is_complete():
    content = yaml.safe_load((REPOSITORY / "data.dvc").read_text())
    assert len({out["path"] for out in content["outs"]}) == len(content["outs"])
    for out in content["outs"]:
        assert (len(out["md5"]), len(out["meta"]["sha256"]), out["hash"]) == (32, 64, "md5")
        assert out["size"] > 0
        for url in out["meta"]["urls"]:
            assert url.startswith(("http://", "https://"))
            assert " " not in url.partition("#")[0]


@pytest.mark.mirror
def test_the_mirror_has_what_is_pinned(mirror):
    pinned = dict(pins(places(REPOSITORY)))
    with (mirror.parent / "catalogue.csv").open(newline="") as stream:
        rows = {row["file"].removeprefix("raw/"): row for row in csv.DictReader(stream)}
    for name, row in rows.items():
        unzipped = re.search(r"unzipped: md5 (\w+), sha256 (\w+), (\d+) bytes", row["notes"])
        item = name.removesuffix(".gz") if unzipped else name
        content = gzip.decompress((mirror / name).read_bytes()) if unzipped else (mirror / name).read_bytes()
        stated = unzipped.groups() if unzipped else (row["md5"], row["sha256"], row["bytes"])
        out = pinned.pop(item)
        assert (out.md5, out.sha256, str(out.size)) == stated, item
        sums = hashlib.md5(content).hexdigest(), hashlib.sha256(content).hexdigest(), str(len(content))
        assert sums == stated, item
    assert set(pinned) == {f"fashion_mnist/train-{name}-ubyte.gz" for name in ("images-idx3", "labels-idx1")}


@pytest.mark.mirror
def test_fetching_from_the_mirror(mirror, second, monkeypatch):
    monkeypatch.setenv("GPBENCH_MIRROR", str(mirror))
    monkeypatch.setenv("GPBENCH_DVC_REMOTE", "team")  # which has none of them
    items = ["boston/housing.data", "protein/CASP.csv", "naval/data.txt"]
    sizes = [pins(places(second))[item].size for item in items]
    assert [path.stat().st_size for path in fetch(items, places(second))] == sizes
    assert [verify(item, places(second)) for item in items] == ["", "", ""]
    assert dvc(second, "status") == 0
