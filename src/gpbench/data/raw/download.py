"""Bytes of a URL into a file: resumed where a part is there, tried again where a fault may pass, reported if slow."""

from __future__ import annotations

import gzip
import http.client
import shutil
import ssl
import sys
import tarfile
import time
import urllib.error
import urllib.request
import zipfile
import zlib
from pathlib import Path
from typing import BinaryIO

TIMEOUT = 30.0  # seconds without a byte
ATTEMPTS = 3  # a source
PAUSE = 1.0  # seconds before the second attempt, twice as many before the third
REPORT = 2.0  # seconds between lines of progress
LARGE = 5_000_000  # bytes; a file above is reported however quick it was
CHUNK = 1 << 20

PASSING = (TimeoutError, ConnectionResetError, ConnectionAbortedError, BrokenPipeError, ssl.SSLEOFError)
RANGE_BEYOND_THE_END, TOO_MANY = 416, 429


def is_url(source: str) -> bool:
    """Whether a source is asked over HTTP rather than read from a folder."""
    return source.startswith(("http://", "https://"))


def download(url: str, part: Path, label: str) -> None:
    """Bring what `url` gives into `part`, going on behind the bytes that are there; `label` heads lines of progress.

    Raises OSError with the reason; what has come by then stays in `part`."""
    for attempt in range(1, ATTEMPTS + 1):
        try:
            return _request(url, part, label)
        except (OSError, http.client.HTTPException) as error:
            fault = error.reason if type(error) is urllib.error.URLError else error
            text = str(fault) or type(fault).__name__
            if not _may_pass(fault):
                raise OSError(text) from error
            if attempt == ATTEMPTS:
                raise OSError(f"{text} ({ATTEMPTS} attempts)") from error
            time.sleep(PAUSE * attempt)


def _may_pass(fault: object) -> bool:
    if isinstance(fault, urllib.error.HTTPError):
        return fault.code >= 500 or fault.code in (RANGE_BEYOND_THE_END, TOO_MANY)
    return isinstance(fault, (*PASSING, http.client.IncompleteRead))


def _request(url: str, part: Path, label: str) -> None:
    have = part.stat().st_size if part.is_file() else 0
    headers = {"User-Agent": "gpbench"} | ({"Range": f"bytes={have}-"} if have else {})
    try:
        stream = urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=TIMEOUT)
    except urllib.error.HTTPError as error:
        if error.code == RANGE_BEYOND_THE_END:  # the part is longer than the file: from the start, then
            part.unlink()
        raise
    with stream:
        if stream.status != http.HTTPStatus.PARTIAL_CONTENT:
            have = 0
        length = stream.headers["Content-Length"]
        total = have + int(length) if length and length.isdigit() else None
        with part.open("ab" if have else "wb") as sink:
            got = _copy(stream, sink, label, have, total)
    if total is not None and got < total:
        raise ConnectionAbortedError(f"ended after {got} of {total} bytes")


def _copy(stream: http.client.HTTPResponse, sink: BinaryIO, label: str, have: int, total: int | None) -> int:
    """Copy to the end, or to `total` bytes with the `have` before; returns how many there are then."""
    began = told = time.monotonic()
    got = have
    # read1 gives what has arrived; read would wait for a whole chunk, and a slow server never show progress
    while (total is None or got < total) and (chunk := stream.read1(CHUNK)):
        sink.write(chunk)
        got += len(chunk)
        if time.monotonic() - told >= REPORT:
            told = time.monotonic()
            _tell(label, got, total, (got - have) / (told - began))
    if got - have > LARGE and told == began:
        _tell(label, got, total, (got - have) / max(time.monotonic() - began, 1e-3))
    return got


def _tell(label: str, got: int, total: int | None, rate: float) -> None:
    of = f" of {total / 1e6:.1f}" if total else ""
    print(f"{label}: {got / 1e6:.1f}{of} MB, {rate / 1e6:.1f} MB/s", file=sys.stderr, flush=True)


def unpack(path: Path, target: Path, member: str = "", gzipped: bool = False) -> None:
    """Write into `target` the file at `path`: a member of it if it is a zip or tar archive, or what it decompresses to.

    Raises OSError where the archive is broken or lacks the member."""
    try:
        if member and zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as archive, archive.open(member) as stream:
                _write(stream, target)
        elif member:
            with tarfile.open(path) as archive:
                stream = archive.extractfile(member)
                if stream is None:
                    raise OSError(f"{member} is no file in the archive")
                _write(stream, target)
        else:
            with (gzip.open if gzipped else open)(path, "rb") as stream:
                _write(stream, target)
    except KeyError as error:
        raise OSError(f"the archive has no {member}") from error
    except (zipfile.BadZipFile, tarfile.TarError, zlib.error, EOFError) as error:
        raise OSError(f"cannot be unpacked: {error}") from error


def _write(stream: BinaryIO, target: Path) -> None:
    with target.open("wb") as sink:
        shutil.copyfileobj(stream, sink, CHUNK)
