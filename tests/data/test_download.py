"""Every fault of a server: verified bytes or one clear line, bounded attempts, and never half a file."""

from __future__ import annotations

import gzip
import io
import itertools
import re
import shutil
import socket
import tarfile
import threading
import zipfile
from pathlib import Path
from types import SimpleNamespace

import pytest

from gpbench.config.schema import Upstream
from gpbench.data.raw import download
from gpbench.data.raw.fetch import fetch
from gpbench.errors import UserError
from gpbench.places import Places
from web import (
    CONTENT,
    ITEM,
    cut,
    entry,
    garbage,
    gone,
    left_behind,
    parts,
    pin_only,
    ranged,
    serve,
    status,
    whole,
)


@pytest.fixture
def web(monkeypatch):
    """The server; a plain copy stands in for `dvc checkout` (half a second each), which test_dvc.py has."""

    def copy(new: dict[str, Upstream], places: Places) -> None:
        for item, known in new.items():
            (places.raw / item).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(places.root / ".dvc/cache/files/md5" / known.md5[:2] / known.md5[2:], places.raw / item)

    monkeypatch.setattr("gpbench.data.raw.fetch._checkout", copy)
    monkeypatch.setattr(download, "PAUSE", 0.01)
    with serve() as server:
        yield server


def refused(places: Places, said: str) -> str:
    """Fetching fails in one line that says so, and leaves nothing under a final name."""
    with pytest.raises(UserError, match=said) as caught:
        fetch([ITEM], places)
    assert "\n" not in str(caught.value)
    assert left_behind(places.root) == []
    return str(caught.value)


def test_the_right_file_once(project, web):
    places = pin_only(project, entry(CONTENT, web.on("/rows.data", whole(CONTENT))))
    assert [path.read_bytes() for path in fetch([ITEM, ITEM], places)] == [CONTENT, CONTENT]
    fetch([ITEM], places)
    assert web.asked == [("/rows.data", None)]
    assert parts(project) == []


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (whole(CONTENT.replace(b"10", b"11")), "md5 is [0-9a-f]{32}, expected [0-9a-f]{32}"),
        (whole(CONTENT + b"11"), f"size is {len(CONTENT) + 2} bytes, expected {len(CONTENT)}"),
        (status(404), "HTTP Error 404: Not Found"),
        (status(403), "HTTP Error 403: Forbidden"),
        (garbage, r"what\?"),
    ],
)
def test_a_permanent_fault_is_not_retried(project, web, answer, said):
    url = web.on("/rows.data", answer)
    refused(pin_only(project, entry(CONTENT, url)), rf"mine/rows\.data could not be fetched: {url}: {said}")
    assert len(web.asked) == 1
    assert parts(project) == []


def test_both_checksums_are_verified(project, web):
    places = pin_only(project, entry(CONTENT, web.on("/rows.data", whole(CONTENT)), sha256="0" * 64))
    refused(places, "sha256 is [0-9a-f]{64}, expected 0{64}")


@pytest.mark.parametrize(
    "faults", [(status(500), status(429)), (gone, status(503)), (cut(CONTENT, 7), cut(CONTENT, 9))]
)
def test_a_transient_fault_is_retried(project, web, faults):
    places = pin_only(project, entry(CONTENT, web.on("/rows.data", *faults, ranged(CONTENT))))
    assert fetch([ITEM], places)[0].read_bytes() == CONTENT
    assert len(web.asked) == 3


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        (status(500), "HTTP Error 500: Internal Server Error"),
        (gone, "Remote end closed connection without response"),
        (cut(CONTENT, 0), f"ended after 0 of {len(CONTENT)} bytes"),
    ],
)
def test_retries_are_limited(project, web, fault, said):
    url = web.on("/rows.data", fault)
    refused(pin_only(project, entry(CONTENT, url)), rf"{url}: {said} \(3 attempts\); set GPBENCH_MIRROR")
    assert len(web.asked) == 3


def test_a_server_that_dies_in_the_middle_and_comes_back(project, web):
    url = web.on("/rows.data", cut(CONTENT, 7), gone)
    places = pin_only(project, entry(CONTENT, url))
    refused(places, r"Remote end closed connection without response \(3 attempts\)")
    assert [part.read_bytes() for part in parts(project)] == [CONTENT[:7]]
    web.on("/rows.data", ranged(CONTENT))
    assert fetch([ITEM], places)[0].read_bytes() == CONTENT
    assert web.asked[-1] == ("/rows.data", "bytes=7-")
    assert parts(project) == []


@pytest.mark.parametrize(
    ("there", "answer"),
    [
        (CONTENT[:7], whole(CONTENT)),
        (b"another file", ranged(CONTENT)),
        (CONTENT + b"longer", ranged(CONTENT)),
        (CONTENT, ranged(CONTENT)),
    ],
)
def test_partial_files_of_an_earlier_run(project, web, there, answer):
    url = web.on("/rows.data", cut(CONTENT, 1), gone)
    places = pin_only(project, entry(CONTENT, url))
    refused(places, "3 attempts")
    parts(project)[0].write_bytes(there)
    web.on("/rows.data", answer)
    assert fetch([ITEM], places)[0].read_bytes() == CONTENT
    assert len(web.asked) <= 3 + 2
    assert parts(project) == []


def test_redirects_are_followed_but_not_in_a_circle(project, web):
    moved = web.on("/old", status(302, Location=web.on("/rows.data", whole(CONTENT))))
    assert fetch([ITEM], pin_only(project, entry(CONTENT, moved)))[0].read_bytes() == CONTENT
    circle = web.on("/circle", status(302, Location="/circle"))
    places = pin_only(project, entry(b"other", circle, item="mine/other"))
    with pytest.raises(UserError, match="redirect error that would lead to an infinite loop") as caught:
        fetch(["mine/other"], places)
    assert "\n" not in str(caught.value)


def test_a_slow_server_goes_on_and_is_reported(project, web, monkeypatch, capfd):
    """A report is due with every tenth reading of the clock, which the server's speed does not move."""
    content = bytes(2_000_000)
    clock = SimpleNamespace(monotonic=itertools.count(0.0, 0.2).__next__)
    monkeypatch.setattr(download, "time", clock)
    monkeypatch.setattr(download, "CHUNK", 100_000)
    fetch([ITEM], pin_only(project, entry(content, web.on("/rows.data", whole(content)))))
    lines = capfd.readouterr().err.splitlines()
    assert lines
    for line in lines:
        assert re.fullmatch(r"mine/rows\.data: [012]\.\d of 2\.0 MB, \d+\.\d MB/s", line)


@pytest.mark.parametrize(("large", "lines"), [(10, 1), (100, 0)])
def test_a_quick_file_is_reported_if_it_is_large(project, web, monkeypatch, capfd, large, lines):
    monkeypatch.setattr(download, "LARGE", large)
    fetch([ITEM], pin_only(project, entry(CONTENT, web.on("/rows.data", whole(CONTENT)))))
    assert len(capfd.readouterr().err.splitlines()) == lines


def test_a_silent_server(project, web, monkeypatch):
    monkeypatch.setattr(download, "TIMEOUT", 0.2)
    silence = threading.Event()
    url = web.on("/rows.data", lambda request: silence.wait(10))
    refused(pin_only(project, entry(CONTENT, url)), rf"{url}: timed out \(3 attempts\)")
    silence.set()
    assert len(web.asked) == 3


def test_every_unreachable_source_is_reported_with_its_reason(project, web, monkeypatch):
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        nobody = f"http://127.0.0.1:{closed.getsockname()[1]}/rows.data"
    missing = web.on("/rows.data", status(404))
    monkeypatch.setenv("GPBENCH_MIRROR", "no/such/folder")
    said = refused(pin_only(project, entry(CONTENT, nobody, missing, "http://in valid/")), "could not be fetched")
    place = f"data/raw/{ITEM}"
    assert f"no/such/folder/{ITEM}: No such file or directory; {nobody}: " in said
    assert f"Connection refused; {missing}: HTTP Error 404: Not Found; http://in valid/: " in said
    assert said.endswith(
        f"set GPBENCH_MIRROR to a folder or URL that holds it, check the network, or put it at {place}"
    )


def archive(kind: str) -> bytes:
    """An archive that holds `the data/rows.data`."""
    buffer = io.BytesIO()
    if kind == "zip":
        with zipfile.ZipFile(buffer, "w") as packed:
            packed.writestr("the data/rows.data", CONTENT)
    else:
        with tarfile.open(fileobj=buffer, mode="w:gz") as packed:
            member = tarfile.TarInfo("the data/rows.data")
            member.size = len(CONTENT)
            packed.addfile(member, io.BytesIO(CONTENT))
    return buffer.getvalue()


@pytest.mark.parametrize("kind", ["zip", "tar.gz"])
def test_a_member_of_an_archive(project, web, kind):
    url = web.on(f"/all.{kind}", whole(archive(kind)))
    refused(pin_only(project, entry(CONTENT, f"{url}#rows.data")), f"{url}#rows.data: the archive has no rows.data")
    places = pin_only(project, entry(CONTENT, f"{url}#the data/rows.data"))
    assert fetch([ITEM], places)[0].read_bytes() == CONTENT
    assert parts(project) == []


@pytest.mark.parametrize("name", ["all.zip", "all.tar.gz", "rows.data.gz"])
def test_a_file_that_is_not_an_archive(project, web, name):
    url = web.on(f"/{name}", whole(b"<html>moved</html>")) + ("" if name == "rows.data.gz" else "#rows.data")
    refused(pin_only(project, entry(CONTENT, url)), f"{url}: (cannot be unpacked|Not a gzipped file)")
    assert parts(project) == []


def test_a_broken_zip(project, web):
    packed = bytearray(archive("zip"))
    packed[packed.index(CONTENT)] ^= 1
    url = web.on("/all.zip", whole(bytes(packed)))
    refused(pin_only(project, entry(CONTENT, f"{url}#the data/rows.data")), "cannot be unpacked: Bad CRC-32")


def zipped(name: str, content: bytes) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as packed:
        packed.writestr(name, content)
    return buffer.getvalue()


def tarred(name: str, **changes: object) -> bytes:
    """An archive of a member that may be no file."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as packed:
        member = tarfile.TarInfo(name)
        for key, value in changes.items():
            setattr(member, key, value)
        packed.addfile(member, io.BytesIO(bytes(member.size)))
    return buffer.getvalue()


def encrypted(packed: bytes) -> bytes:
    """A zip whose headers say that its member is encrypted."""
    local, central = packed.index(b"PK\3\4") + 6, packed.index(b"PK\1\2") + 8
    return bytes(byte | 1 if place in (local, central) else byte for place, byte in enumerate(packed))


def link(target: str, kind: bytes = tarfile.SYMTYPE) -> bytes:
    return tarred("rows.data", type=kind, linkname=target)


OUTSIDE, ABSENT, TOO_LARGE = "../../../outside", "the archive has no rows.data", f"size is over {len(CONTENT)} bytes"
MALICIOUS = {
    "zip that leads out": (zipped(OUTSIDE, b"evil"), "rows.data", ABSENT),
    "zip that leads out, named": (zipped(OUTSIDE, b"evil"), OUTSIDE, "size is 4 bytes, expected"),
    "zip of an absolute name": (zipped("/tmp/outside", b"evil"), "/tmp/outside", "size is 4 bytes, expected"),
    "tar that leads out": (tarred(OUTSIDE, size=4), "rows.data", ABSENT),
    "tar that leads out, named": (tarred(OUTSIDE, size=4), OUTSIDE, "size is 4 bytes, expected"),
    "link": (link("../../../../secret"), "rows.data", ABSENT),
    "absolute link": (link("/etc/passwd"), "rows.data", ABSENT),
    "hard link": (link("/etc/passwd", tarfile.LNKTYPE), "rows.data", ABSENT),
    "link to itself": (link("rows.data"), "rows.data", "cannot be unpacked"),
    "device": (tarred("rows.data", type=tarfile.CHRTYPE), "rows.data", "rows.data is not a file in the archive"),
    "encrypted": (encrypted(zipped("rows.data", CONTENT)), "rows.data", "cannot be unpacked: .* is encrypted"),
    "zip bomb": (zipped("rows.data", bytes(1 << 25)), "rows.data", TOO_LARGE),
    "tar bomb": (gzip.compress(tarred("rows.data", size=1 << 25)), "rows.data", TOO_LARGE),
    "gzip bomb": (gzip.compress(bytes(1 << 25)), "", TOO_LARGE),
}


@pytest.mark.parametrize("name", MALICIOUS)
def test_a_malicious_archive_is_refused_and_writes_nothing_outside(project, web, name):
    """One member is read, never extracted by its name, and no further than the pinned size."""
    packed, member, said = MALICIOUS[name]
    (project / "secret").write_bytes(CONTENT)
    url = web.on("/all" if member else "/rows.data.gz", whole(packed)) + (f"#{member}" if member else "")
    places = pin_only(project, entry(CONTENT, url))
    before = {path for path in project.parent.rglob("*") if path.is_file()}
    refused(places, said)
    new = {path for path in project.parent.rglob("*") if path.is_file()} - before
    assert [path for path in new if path.suffix != ".lock"] == []
    assert not Path("/tmp/outside").exists()
