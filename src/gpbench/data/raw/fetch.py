"""Fetch raw files from cache, DVC remote, mirror or upstream URLs, in that order; only verified files are kept.

`dvc pull` knows no upstream URLs and does not verify an HTTP remote, so files are verified here (md5 and sha256),
moved into DVC's cache by an atomic rename, and checked out by DVC.
"""

import contextlib
import errno
import hashlib
import os
import shutil
import urllib.parse
from pathlib import Path

from gpbench.config.schema import Upstream
from gpbench.data.raw import dvc
from gpbench.data.raw.download import download, is_url, unpack
from gpbench.data.raw.pins import Pin, add, check_item, pins, sums, wrong
from gpbench.errors import UserError
from gpbench.places import DISK, Places, locked, write_aside

FULL = {*DISK} - {errno.EIO}  # our disk; a source's may be broken


def fetch(items: list[str], places: Places) -> list[Path]:
    """Fetch and verify raw files that are missing in data/raw; returns their paths.

    Raises UserError for the first file that is wrong, unknown or not available, with the reason of every source."""
    pinned = pins(places)
    for item in items:
        check_item(item)
    missing = {item: pinned[item] for item in dict.fromkeys(items) if not _present(item, pinned.get(item), places)}
    reasons = _from_remote(missing, places)
    for item, known in missing.items():
        with lock(item, places):
            if _uncached(known, places):
                _obtain(item, known, dvc.cached(known.md5, places), places, reasons.get(item, ""))
    if missing:
        _checkout(missing, places)
    return [places.raw / item for item in items]


def state(item: str, places: Places) -> str:
    """Where a raw file is or would come from, without network and without hashing: have (a file of the pinned size),
    cached, mirror, upstream, unpinned or nowhere."""
    path, known = places.raw / item, pins(places).get(item)
    if known is None:
        return "have" if path.is_file() else "unpinned"
    if path.is_file() and known.size in (None, path.stat().st_size):
        return "have"
    if dvc.cached(known.md5, places).is_file():
        return "cached"
    if any(is_url(source) or Path(source).is_file() for source in _in_mirror(item)):
        return "mirror"
    return "upstream" if known.urls else "nowhere"


def verify(item: str, places: Places) -> str:
    """How data/raw/ITEM differs from its pin (size, md5, sha256), in one line; empty if it does not."""
    known = pins(places).get(item)
    reason = wrong(places.raw / item, known) if known else "is not pinned in data.dvc"
    return f"data/raw/{item}: {reason}" if reason else ""


def pin(items: list[str], unpinned: dict[str, Upstream], places: Places) -> list[str]:
    """Pin raw files in data.dvc: those in data/raw as they are, others downloaded as `unpinned` documents.

    Returns a line to print for each. Raises UserError if a file is not available or differs from its documentation."""
    lines: list[str] = []
    new: dict[str, Pin] = {}
    for item in items:
        check_item(item)
        with lock(item, places):
            if item in pins(places):
                lines.append(f"{item}: pinned in data.dvc already")
                continue
            known, path = unpinned.get(item, Upstream(urls=[])), places.raw / item
            if not path.is_file():
                _obtain(item, known, path, places)
            elif reason := wrong(path, known):
                raise UserError(f"{path} is not the documented file ({reason}); delete it to download it")
            num_bytes = path.stat().st_size
            new[item] = pinned = Pin(urls=known.urls, size=num_bytes, **sums(path))
            with write_aside(dvc.cached(pinned.md5, places)) as temporary:
                shutil.copyfile(path, temporary)
            with lock("data.dvc", places):
                add(item, pinned, places)
        size = f"{num_bytes / 1e6:.0f} MB" if num_bytes >= 1e6 else f"{num_bytes} bytes"
        lines.append(f"{item}: md5 {pinned.md5}, {size} pinned in data.dvc")
    if new:
        _checkout(new, places)
    return lines


def _present(item: str, known: Pin | None, places: Places) -> bool:
    """Whether data/raw has the pinned file, or any if it is not pinned; UserError for a wrong one, which is kept."""
    path = places.raw / item
    if known is None and not path.is_file():
        raise UserError(f"{path} is missing and not pinned in data.dvc; put it there or run `gpbench data pin NAME`")
    if known is not None and path.is_file() and (reason := wrong(path, known)):
        raise UserError(f"{path} is not the pinned file ({reason}); delete it to fetch it again")
    return path.is_file()


def _from_remote(missing: dict[str, Pin], places: Places) -> dict[str, str]:
    """Fetch files that the cache lacks from the DVC remote, if there is one; returns item -> reason of failure."""
    remote = dvc.remote(places)
    requested = {item: known for item, known in missing.items() if remote and _uncached(known, places)}
    if not requested:
        return {}
    result = dvc.run(places, requested, "fetch", "-r", remote)
    reasons = {}
    for item, known in requested.items():
        received = dvc.cached(known.md5, places).is_file()
        if reason := _uncached(known, places):  # DVC does not verify the files of an HTTP remote
            absent = dvc.last_line(result) if result.returncode else "does not have it or does not answer"
            reasons[item] = f"DVC remote {remote}: {reason if received else absent}"
    return reasons


def _obtain(item: str, known: Upstream, target: Path, places: Places, reason: str = "") -> None:
    """Write the verified file to `target` from the first source that has it; `reason`: why the remote failed."""
    tried = [reason] if reason else []
    for source in [*_in_mirror(item), *known.urls]:
        try:
            return _take(source, item, known, target, places)
        except OSError as error:
            if error.errno in FULL:
                raise UserError(f"{item} was not written: {error.strerror}; make room for {target}") from error
            tried.append(f"{source}: {error.strerror or error}")
    remedy = f"set GPBENCH_MIRROR to a folder or URL that holds it, check the network, or put it at data/raw/{item}"
    raise UserError(f"{item} could not be fetched: {'; '.join(tried) or 'no source is known'}; {remedy}")


def _in_mirror(item: str) -> list[str]:
    """Possible places of an item in the mirror: as it is, or gzipped."""
    if not (mirror := os.environ.get("GPBENCH_MIRROR")):
        return []
    names = [item] if item.endswith(".gz") else [item, f"{item}.gz"]
    if is_url(mirror):
        return [f"{mirror.rstrip('/')}/{urllib.parse.quote(name)}" for name in names]
    folder = Path(mirror, "raw") if Path(mirror, "raw").is_dir() else Path(mirror)
    return [str(folder / name) for name in names if (folder / name).is_file()] or [str(folder / item)]


def _take(source: str, item: str, known: Upstream, target: Path, places: Places) -> None:
    """Write the file of one source to `target`; OSError with the reason if it is not available or not the known one."""
    if not is_url(source):
        return _place(Path(source), "", source, item, known, target)
    address, _, member = source.partition("#")
    part = _aside(f"{item}.{hashlib.md5(address.encode(), usedforsecurity=False).hexdigest()[:8]}.part", places)
    if not (known.md5 or known.sha256):  # a file that changed between two downloads would go unnoticed
        part.unlink(missing_ok=True)
    while True:
        fresh = not part.exists()
        download(address, part, item)
        try:
            return _place(part, member, address, item, known, target)
        except OSError:
            if fresh:  # else the bytes of an earlier run may be of another file: download it from the start
                raise
        finally:
            part.unlink(missing_ok=True)


def _place(path: Path, member: str, address: str, item: str, known: Upstream, target: Path) -> None:
    with write_aside(target) as temporary:
        unpack(path, temporary, member, address.endswith(".gz") and not (member or item.endswith(".gz")), known.size)
        if reason := wrong(temporary, known):
            raise OSError(reason)


def _checkout(new: dict[str, Pin], places: Places) -> None:
    result = dvc.run(places, new, "checkout")
    for item, known in new.items():
        if reason := wrong(places.raw / item, known):
            # DVC leaves its half-written file where the disk is full
            for half in (places.raw / item, *(places.raw / item).parent.glob(f".{'?' * 22}.tmp")):
                half.unlink(missing_ok=True)
            reason = dvc.last_line(result) if result.returncode else reason
            cached = dvc.cached(known.md5, places)
            remedy = f"delete {cached}" if wrong(cached, known) else f"make room in {places.raw}"
            raise UserError(f"{item}: dvc checkout failed: {reason}; {remedy} and fetch again")


def _uncached(known: Pin, places: Places) -> str:
    """How the cached file differs from its pin; a wrong one is removed."""
    if reason := wrong(dvc.cached(known.md5, places), known):
        dvc.cached(known.md5, places).unlink(missing_ok=True)
    return reason


def _aside(name: str, places: Places) -> Path:
    path = places.root / ".dvc" / "tmp" / "gpbench" / name
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror}; check the folder's permissions") from error
    return path


def lock(name: str, places: Places) -> contextlib.AbstractContextManager[None]:
    """One process at a time."""
    return locked(_aside(f"{name}.lock", places), name)
