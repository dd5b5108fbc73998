"""Fetch raw files: cache, DVC remote, mirror, upstream URLs, in that order; nothing unverified gets a name.

`dvc pull` never asks a source URL and does not verify an HTTP remote, so the bytes are checked here (md5 and sha256),
put into DVC's cache by an atomic rename, and checked out by DVC.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import sys
import urllib.parse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from gpbench.config.schema import Upstream
from gpbench.data.raw import dvc
from gpbench.data.raw.download import download, is_url, unpack
from gpbench.data.raw.pins import add, check_item, pins, sums, wanted, wrong
from gpbench.errors import UserError
from gpbench.places import Places, write_aside


def fetch(items: list[str], places: Places, mirror: str | None = None) -> list[Path]:
    """Make raw files available, all of them, each verified; `mirror` stands in for GPBENCH_MIRROR.

    Raises UserError for the first that is wrong, unknown or that no source gives; it names every source's reason."""
    entries = pins(places)
    for item in items:
        check_item(item)
    missing = {i: wanted(entries[i]) for i in dict.fromkeys(items) if not _there(i, entries.get(i), places)}
    reasons = _from_remote(missing, places)
    for item, known in missing.items():
        with _locked(item, places):
            if _uncached(known, places):
                _obtain(item, known, dvc.cached(known.md5, places), places, mirror, reasons.get(item, ""))
    if missing:
        _checkout(missing, places)
    return [places.raw / item for item in items]


def state(item: str, places: Places) -> str:
    """Where a raw file is or would come from, without network and without hashing.

    One of have (the pinned size), cached, mirror, upstream, unpinned, nowhere."""
    path, entry = places.raw / item, pins(places).get(item)
    if entry is None:
        return "have" if path.is_file() else "unpinned"
    known = wanted(entry)
    if path.is_file() and known.size in (None, path.stat().st_size):
        return "have"
    if dvc.cached(known.md5, places).is_file():
        return "cached"
    if any(is_url(source) or Path(source).is_file() for source in _in_mirror(item)):
        return "mirror"
    return "upstream" if known.urls else "nowhere"


def verify(item: str, places: Places) -> str:
    """What is wrong with data/raw/ITEM against its pin (size, md5, sha256), in one line; nothing if it is right."""
    entry = pins(places).get(item)
    reason = wrong(places.raw / item, wanted(entry)) if entry else "is not pinned in data.dvc"
    return f"data/raw/{item}: {reason}" if reason else ""


def pin(items: list[str], unpinned: dict[str, Upstream], places: Places) -> list[str]:
    """Pin raw files in data.dvc: those in data/raw as they are, others downloaded as `unpinned` documents them.

    Returns a line to print for each. Raises UserError where a file cannot be had or is not the documented one."""
    lines, new = [], {}
    for item in items:
        check_item(item)
        with _locked(item, places):
            if item in pins(places):
                lines.append(f"{item}: pinned in data.dvc already")
                continue
            new[item] = found = _documented(item, unpinned.get(item, Upstream(urls=[])), places)
            with write_aside(dvc.cached(found.md5, places)) as temporary:
                shutil.copyfile(places.raw / item, temporary)
            with _locked("data.dvc", places):
                add(item, found, places)
        size = f"{found.size / 1e6:.0f} MB" if found.size >= 1e6 else f"{found.size} bytes"
        lines.append(f"{item}: md5 {found.md5}, {size} pinned in data.dvc")
    if new:
        _checkout(new, places)
    return lines


def _there(item: str, entry: dict[str, Any] | None, places: Places) -> bool:
    """Whether data/raw has the right file, or one that nobody pinned; a wrong one is not for us to overwrite."""
    path = places.raw / item
    if entry is None and not path.is_file():
        raise UserError(
            f"{path} is missing and not pinned in data.dvc; put it there or run `gpbench data pin` for its data set"
        )
    if entry is not None and path.is_file() and (reason := wrong(path, wanted(entry))):
        raise UserError(f"{path} is not the pinned file ({reason}); delete it to fetch it again")
    return path.is_file()


def _documented(item: str, known: Upstream, places: Places) -> Upstream:
    """Size and sums of data/raw/ITEM, downloaded if it is not there, and checked as far as they are documented."""
    path = places.raw / item
    if not path.is_file():
        _obtain(item, known, path, places)
    elif reason := wrong(path, known):
        raise UserError(f"{path} is not the documented file ({reason}); delete it to download it")
    return Upstream(urls=known.urls, size=path.stat().st_size, **sums(path))


def _from_remote(missing: dict[str, Upstream], places: Places) -> dict[str, str]:
    """Ask the DVC remote, if there is one, for what the cache has not; returns why it did not give an item."""
    remote = dvc.remote(places)
    asked = {item: known for item, known in missing.items() if remote and _uncached(known, places)}
    if not asked:
        return {}
    done = dvc.run(places, asked, "fetch", "-r", remote)
    reasons = {}
    for item, known in asked.items():
        came = dvc.cached(known.md5, places).is_file()
        if reason := _uncached(known, places):  # DVC does not verify what an HTTP remote gives
            silent = dvc.last_line(done) if done.returncode else "does not have it or does not answer"
            reasons[item] = f"DVC remote {remote}: {reason if came else silent}"
    return reasons


def _obtain(
    item: str, known: Upstream, target: Path, places: Places, mirror: str | None = None, reason: str = ""
) -> None:
    """Write the verified file to `target` from the first source that gives it; `reason`: why the remote did not."""
    tried = [reason] if reason else []
    for source in [*_in_mirror(item, mirror), *known.urls]:
        try:
            return _take(source, item, known, target, places)
        except OSError as error:
            tried.append(f"{source}: {error.strerror or error}")
    raise UserError(
        f"{item} could not be fetched: {'; '.join(tried) or 'no source is known'}; "
        f"set GPBENCH_MIRROR to a folder or URL that holds it, check the network, or put it at data/raw/{item}"
    )


def _in_mirror(item: str, mirror: str | None = None) -> list[str]:
    """Where the mirror may hold an item: as it is, or gzipped."""
    mirror = mirror or os.environ.get("GPBENCH_MIRROR")
    if not mirror:
        return []
    names = [item] if item.endswith(".gz") else [item, f"{item}.gz"]
    if is_url(mirror):
        return [f"{mirror.rstrip('/')}/{urllib.parse.quote(name)}" for name in names]
    folder = Path(mirror, "raw") if Path(mirror, "raw").is_dir() else Path(mirror)
    return [str(folder / name) for name in names if (folder / name).is_file()] or [str(folder / item)]


def _take(source: str, item: str, known: Upstream, target: Path, places: Places) -> None:
    """Write the file that one source gives to `target`; raises OSError with the reason where it is not the wanted."""
    if not is_url(source):
        return _place(Path(source), "", source, item, known, target)
    address, _, member = source.partition("#")
    part = _aside(f"{item}.{hashlib.md5(address.encode(), usedforsecurity=False).hexdigest()[:8]}.part", places)
    if not (known.md5 or known.sha256):  # nothing would tell that the file changed between two halves
        part.unlink(missing_ok=True)
    while True:
        fresh = not part.exists()
        download(address, part, item)
        try:
            return _place(part, member, address, item, known, target)
        except OSError:
            if fresh:  # else its first bytes, of an earlier run, may be those of another file: once more from the start
                raise
        finally:
            part.unlink(missing_ok=True)


def _place(path: Path, member: str, address: str, item: str, known: Upstream, target: Path) -> None:
    with write_aside(target) as temporary:
        unpack(path, temporary, member, gzipped=address.endswith(".gz") and not member and not item.endswith(".gz"))
        if reason := wrong(temporary, known):
            raise OSError(reason)


def _checkout(new: dict[str, Upstream], places: Places) -> None:
    done = dvc.run(places, new, "checkout")
    for item, known in new.items():
        if reason := wrong(places.raw / item, known):
            (places.raw / item).unlink(missing_ok=True)
            reason = dvc.last_line(done) if done.returncode else reason
            raise UserError(
                f"{item}: dvc checkout failed: {reason}; delete {dvc.cached(known.md5, places)} and fetch again"
            )


def _uncached(known: Upstream, places: Places) -> str:
    """Why the cache does not have a file; a wrong object is removed from it."""
    reason = wrong(dvc.cached(known.md5, places), known)
    if reason:
        dvc.cached(known.md5, places).unlink(missing_ok=True)
    return reason


def _aside(name: str, places: Places) -> Path:
    path = places.root / ".dvc" / "tmp" / "gpbench" / name
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror}; check the folder's permissions") from error
    return path


@contextlib.contextmanager
def _locked(name: str, places: Places) -> Iterator[None]:
    """One process at a time; waits, and says so, where another has the lock."""
    lock = FileLock(_aside(f"{name}.lock", places))
    try:
        lock.acquire(timeout=0)
    except Timeout:
        print(f"gpbench: waiting for another process that works on {name}", file=sys.stderr)
        lock.acquire()
    try:
        yield
    finally:
        lock.release()
