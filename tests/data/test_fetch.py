"""Where a raw file comes from, what counts as right, and how one is pinned."""

from __future__ import annotations

import errno
import gzip
import os
import select
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path
from unittest import mock

import pytest
from zc.lockfile import LockFile

from gpbench.config.schema import Upstream
from gpbench.data.raw import download
from gpbench.data.raw.fetch import fetch, pin, pins, state, verify
from gpbench.data.raw.pins import Pin
from gpbench.errors import UserError
from gpbench.places import Places
from web import CONTENT, ITEM, entry, left_behind, pin_only, serve, status, whole

pytestmark = pytest.mark.usefixtures("dvc_in_this_process")
OTHER = CONTENT.replace(b"10", b"11")


@pytest.fixture
def web(monkeypatch):
    monkeypatch.setattr(download, "PAUSE", 0.01)
    with serve() as server:
        yield server


def put(path: Path, content: bytes = CONTENT) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def fetch_from_mirror(items: list[str], places: Places) -> list[Path]:
    with mock.patch.dict(os.environ, GPBENCH_MIRROR=str(places.root / "mirror")):
        return fetch(items, places)


def as_pin(out: dict) -> Pin:
    return Pin(out["meta"]["urls"], out["size"], out["md5"], out["meta"]["sha256"])


def cached(project: Path) -> Path:
    md5 = entry(CONTENT)["md5"]
    return project / ".dvc/cache/files/md5" / md5[:2] / md5[2:]


def test_the_order_of_the_sources(project, web, monkeypatch):
    url = web.on("/rows.data", whole(CONTENT))
    places = pin_only(project, entry(CONTENT, url))
    assert state(ITEM, places) == "upstream"
    put(project / "mirror" / ITEM)
    monkeypatch.setenv("GPBENCH_MIRROR", "mirror")
    assert state(ITEM, places) == "mirror"
    (path,) = fetch([ITEM], places)
    assert web.asked == []
    assert state(ITEM, places) == "have"
    path.unlink()
    shutil.rmtree(project / "mirror")
    assert state(ITEM, places) == "cached"
    assert fetch([ITEM], places)[0].read_bytes() == CONTENT
    assert web.asked == []
    path.unlink()
    cached(project).unlink()
    assert fetch([ITEM], places)[0].read_bytes() == CONTENT
    assert len(web.asked) == 1


def test_states_of_files_without_a_source(project):
    places = pin_only(project, entry(CONTENT))
    assert state(ITEM, places) == "nowhere"
    assert state("mine/other", places) == "unpinned"
    put(places.raw / "mine/other")
    assert state("mine/other", places) == "have"
    put(places.raw / ITEM, CONTENT[:5])
    assert state(ITEM, places) == "nowhere"


@pytest.mark.parametrize("name", [f"raw/{ITEM}", f"{ITEM}.gz"])
def test_a_mirror_in_a_folder(project, name):
    put(project / "mirror" / name, gzip.compress(CONTENT) if name.endswith(".gz") else CONTENT)
    places = pin_only(project, entry(CONTENT))
    assert fetch_from_mirror([ITEM], places)[0].read_bytes() == CONTENT


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_a_mirror_behind_a_url(project, web, monkeypatch, suffix):
    item = "mine/the rows.data"
    web.on(f"/raw/mine/the%20rows.data{suffix}", whole(gzip.compress(CONTENT) if suffix else CONTENT))
    monkeypatch.setenv("GPBENCH_MIRROR", f"{web.url}/raw/")
    places = pin_only(project, entry(CONTENT, item=item))
    assert state(item, places) == "mirror"
    assert fetch([item], places)[0].read_bytes() == CONTENT


def test_a_file_that_is_pinned_gzipped_stays_so(project):
    packed = gzip.compress(CONTENT)
    put(project / "mirror/mine/rows.gz", packed)
    places = pin_only(project, entry(packed, item="mine/rows.gz"))
    assert fetch_from_mirror(["mine/rows.gz"], places)[0].read_bytes() == packed


def test_a_wrong_file_in_the_mirror_is_skipped(project, web):
    put(project / "mirror" / ITEM, OTHER)
    places = pin_only(project, entry(CONTENT, web.on("/rows.data", whole(CONTENT))))
    assert fetch_from_mirror([ITEM], places)[0].read_bytes() == CONTENT
    assert (project / "mirror" / ITEM).read_bytes() == OTHER


def test_a_full_disk_of_the_cache_is_no_fault_of_a_source(project, web, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("gpbench.data.raw.fetch.unpack", full)
    put(project / "mirror" / ITEM)
    places = pin_only(project, entry(CONTENT, web.on("/rows.data", whole(CONTENT))))
    with pytest.raises(UserError, match="rows.data was not written: No space left on device; make room for .*cache"):
        fetch_from_mirror([ITEM], places)


def test_a_wrong_file_is_never_overwritten(project):
    places = pin_only(project, entry(CONTENT))
    path = put(places.raw / ITEM, OTHER)
    assert verify(ITEM, places).startswith(f"data/raw/{ITEM}: md5 is ")
    with pytest.raises(
        UserError, match=r"rows\.data is not the pinned file \(md5 is .*\); delete it to fetch it again"
    ):
        fetch_from_mirror([ITEM], places)
    assert path.read_bytes() == OTHER


def test_a_wrong_object_in_the_cache_is_replaced(project):
    put(project / "mirror" / ITEM)
    put(cached(project), OTHER)
    places = pin_only(project, entry(CONTENT))
    assert fetch_from_mirror([ITEM], places)[0].read_bytes() == CONTENT
    assert cached(project).read_bytes() == CONTENT


def test_a_file_that_is_not_pinned(project):
    places = pin_only(project)
    with pytest.raises(UserError, match=r"not pinned in data\.dvc; put it there or run `gpbench data pin NAME`"):
        fetch([ITEM], places)
    path = put(places.raw / ITEM, b"my own\n")
    assert fetch([ITEM], places) == [path]
    assert verify(ITEM, places) == f"data/raw/{ITEM}: is not pinned in data.dvc"


@pytest.mark.parametrize("text", ["outs: [", "outs: [{path: a}]", "outs: [{path: a, md5: 12}]", "outs: a"])
def test_a_data_dvc_that_cannot_be_read(project, text):
    places = pin_only(project)
    (project / "data.dvc").write_text(text)
    with pytest.raises(UserError, match=r"data\.dvc cannot be read") as caught:
        pins(places)
    assert "\n" not in str(caught.value)


def test_two_processes_download_once(project, web):
    go_on = threading.Event()

    def slow(request):
        go_on.wait(20)
        whole(CONTENT)(request)

    pin_only(project, entry(CONTENT, web.on("/rows.data", slow)))
    program = f"from gpbench import places; from gpbench.data.raw.fetch import fetch; fetch([{ITEM!r}], places.find())"
    both = [subprocess.Popen([sys.executable, "-c", program], stderr=subprocess.PIPE, text=True) for _ in range(2)]
    ready, *_ = select.select([process.stderr for process in both], [], [], 20)
    assert [stream.readline() for stream in ready] == [f"gpbench: waiting for another process that works on {ITEM}\n"]
    go_on.set()
    assert [process.communicate()[1] for process in both] == ["", ""]
    assert [process.returncode for process in both] == [0, 0]
    assert len(web.asked) == 1
    assert (project / "data/raw" / ITEM).read_bytes() == CONTENT


def test_dvc_may_be_busy(project):
    put(project / "mirror" / ITEM)
    places = pin_only(project, entry(CONTENT))
    (project / ".dvc/tmp").mkdir()
    lock = LockFile(project / ".dvc/tmp/lock")
    began = time.monotonic()
    threading.Timer(1.5, lock.close).start()
    assert fetch_from_mirror([ITEM], places)[0].read_bytes() == CONTENT
    assert time.monotonic() - began > 1.5


HAND_KEPT = """\
# a comment that stays
wdir: data/raw
outs:
- path: mine/first   # so does this
  md5: '00000000000000000000000000000000'
  size: 1
"""


def test_pinning_an_existing_file(project):
    places = pin_only(project)
    (project / "data.dvc").write_text(HAND_KEPT)
    put(places.raw / ITEM)
    expected = entry(CONTENT)
    md5 = expected["md5"]
    assert pin([ITEM], {}, places) == [f"{ITEM}: md5 {md5}, {len(CONTENT)} bytes pinned in data.dvc"]
    assert (project / "data.dvc").read_text().startswith(HAND_KEPT)
    assert pins(places)[ITEM] == as_pin(expected)
    assert pin([ITEM], {}, places) == [f"{ITEM}: pinned in data.dvc already"]
    (places.raw / ITEM).unlink()
    assert fetch([ITEM], places)[0].read_bytes() == CONTENT  # the cache has it


def test_pinning_a_file_that_is_documented(project, web):
    places = pin_only(project, entry(OTHER, item="mine/first"))
    known = Upstream([web.on("/rows.data", whole(CONTENT))], size=len(CONTENT), md5=entry(CONTENT)["md5"])
    pin([ITEM], {ITEM: known}, places)
    assert pins(places)[ITEM] == as_pin(entry(CONTENT, *known.urls))
    assert verify(ITEM, places) == ""


@pytest.mark.parametrize("document", [{"size": 12}, {"md5": "0" * 32}, {"sha256": "0" * 64}])
def test_a_file_that_differs_from_its_documentation_is_not_pinned(project, web, document):
    places = pin_only(project, entry(OTHER, item="mine/first"))
    before = (project / "data.dvc").read_text()
    known = Upstream([web.on("/rows.data", whole(CONTENT))], **document)
    with pytest.raises(UserError, match=rf"could not be fetched: .*{next(iter(document))} is .*, expected"):
        pin([ITEM], {ITEM: known}, places)
    assert left_behind(project) == []
    put(places.raw / ITEM)
    with pytest.raises(UserError, match=r"is not the documented file \(.*\); delete it to download it"):
        pin([ITEM], {ITEM: known}, places)
    assert (project / "data.dvc").read_text() == before


def test_pinning_a_file_without_a_source(project, web):
    known = Upstream([web.on("/rows.data", status(404))])
    with pytest.raises(UserError, match=rf"could not be fetched: .*404.*put it at data/raw/{ITEM}"):
        pin([ITEM], {ITEM: known}, pin_only(project))
    with pytest.raises(UserError, match="could not be fetched: no source is known"):
        pin([ITEM], {}, pin_only(project))


def test_a_data_dvc_that_cannot_be_added_to(project):
    places = pin_only(project)  # ends with `outs: []`
    put(places.raw / ITEM)
    before = (project / "data.dvc").read_text()
    with pytest.raises(UserError, match=r"cannot add an entry to .*data\.dvc"):
        pin([ITEM], {}, places)
    assert (project / "data.dvc").read_text() == before
