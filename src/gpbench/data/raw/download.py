"""Download a URL into a file: resumes a partial file, retries transient faults, reports progress if slow."""

import gzip
import http.client
import lzma
import ssl
import sys
import tarfile
import time
import urllib.error
import urllib.request
import zipfile
import zlib
from pathlib import Path
from typing import IO

TIMEOUT = 30.0  # seconds without a byte
ATTEMPTS = 3  # per source
PAUSE = 1.0  # seconds before the second attempt, twice as many before the third
REPORT = 2.0  # seconds between lines of progress
LARGE = 5_000_000  # bytes; a larger file is reported even if it was fast
CHUNK = 1 << 20

PASSING = (TimeoutError, ConnectionResetError, ConnectionAbortedError, BrokenPipeError, ssl.SSLEOFError)
DAMAGED = (zipfile.BadZipFile, tarfile.TarError, zlib.error, lzma.LZMAError, EOFError, RuntimeError, ValueError)
"""What archives raise; RuntimeError where they are encrypted, or a link to itself."""
RANGE_BEYOND_THE_END, TOO_MANY = 416, 429


def is_url(source: str) -> bool:
    """Whether a source is an HTTP address rather than a path."""
    return source.startswith(("http://", "https://"))


def download(url: str, part: Path, label: str) -> None:
    """Download `url` into `part`, continuing after the bytes it has; `label` starts each line of progress.

    Raises OSError with the reason; the bytes received so far stay in `part`."""
    for attempt in range(1, ATTEMPTS + 1):
        try:
            return _request(url, part, label)
        except (OSError, http.client.HTTPException) as error:
            fault = error.reason if type(error) is urllib.error.URLError else error
            text = str(fault) or type(fault).__name__
            code = fault.code if isinstance(fault, urllib.error.HTTPError) else 0
            passing = isinstance(fault, (*PASSING, http.client.IncompleteRead)) or code >= 500
            if not (passing or code in (RANGE_BEYOND_THE_END, TOO_MANY)):
                raise OSError(text) from error
            if attempt == ATTEMPTS:
                raise OSError(f"{text} ({ATTEMPTS} attempts)") from error
            time.sleep(PAUSE * attempt)


def _request(url: str, part: Path, label: str) -> None:
    received = part.stat().st_size if part.is_file() else 0
    headers = {"User-Agent": "gpbench"} | ({"Range": f"bytes={received}-"} if received else {})
    try:
        stream = urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=TIMEOUT)
    except urllib.error.HTTPError as error:
        if error.code == RANGE_BEYOND_THE_END:  # the part is longer than the file: start again
            part.unlink()
        raise
    with stream:
        if stream.status != http.HTTPStatus.PARTIAL_CONTENT:
            received = 0
        length = stream.headers["Content-Length"]
        total = received + int(length) if length and length.isdigit() else None
        with part.open("ab" if received else "wb") as sink:
            received = _copy(stream, sink, label, received, total)
    if total is not None and received < total:
        raise ConnectionAbortedError(f"ended after {received} of {total} bytes")


def _copy(stream: http.client.HTTPResponse, sink: IO[bytes], label: str, before: int, total: int | None) -> int:
    """Copy to the end, or until there are `total` bytes including the `before` earlier ones; returns their number."""
    start = last_report = time.monotonic()
    received = before
    # read1 returns what has arrived; read would wait for a whole chunk, so that a slow server showed no progress
    while (total is None or received < total) and (chunk := stream.read1(CHUNK)):
        sink.write(chunk)
        received += len(chunk)
        if time.monotonic() - last_report >= REPORT:
            last_report = time.monotonic()
            _report(label, received, total, (received - before) / (last_report - start))
    if received - before > LARGE and last_report == start:
        _report(label, received, total, (received - before) / max(time.monotonic() - start, 1e-3))
    return received


def _report(label: str, received: int, total: int | None, rate: float) -> None:
    of = f" of {total / 1e6:.1f}" if total else ""
    print(f"{label}: {received / 1e6:.1f}{of} MB, {rate / 1e6:.1f} MB/s", file=sys.stderr, flush=True)


def unpack(path: Path, target: Path, member: str, gzipped: bool, size: int | None) -> None:
    """Write the file at `path`, its decompressed content, or a member of the zip or tar archive it is, to `target`.

    Raises OSError if the archive is broken or lacks the member, or if there are more than `size` bytes."""
    try:
        if member and zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as archive, archive.open(member) as stream:
                _write(stream, target, size)
        elif member:
            with tarfile.open(path) as tar:
                extracted = tar.extractfile(member)
                if extracted is None:
                    raise OSError(f"{member} is not a file in the archive")
                _write(extracted, target, size)
        else:
            with gzip.open(path) if gzipped else path.open("rb") as content:
                _write(content, target, size if gzipped else None)
    except KeyError as error:
        raise OSError(f"the archive has no {member}") from error
    except DAMAGED as error:
        raise OSError(f"cannot be unpacked: {error}") from error


def _write(stream: IO[bytes] | gzip.GzipFile, target: Path, size: int | None) -> None:
    with target.open("wb") as sink:
        while chunk := stream.read(CHUNK):
            if size is not None and sink.tell() + len(chunk) > size:  # a small archive may hold any number of bytes
                raise OSError(f"size is over {size} bytes, expected {size}")
            sink.write(chunk)
