"""The pins in data.dvc, and whether a file agrees with its pin."""

import functools
import hashlib
from dataclasses import dataclass
from pathlib import Path

import yaml

from gpbench.config.schema import Upstream
from gpbench.errors import UserError
from gpbench.places import Places, write_text

CHUNK = 1 << 20


@dataclass(frozen=True)
class Pin(Upstream):
    """An entry of data.dvc."""

    md5: str = ""


def pins(places: Places) -> dict[str, Pin]:
    """Path below data/raw -> its pin; UserError if data.dvc cannot be read."""
    path = places.root / "data.dvc"
    try:
        return _parse(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise UserError(f"{path} cannot be read: {type(error).__name__}: {error}") from error


@functools.lru_cache(maxsize=4)
def _parse(text: str) -> dict[str, Pin]:
    pinned = {}
    for entry in (yaml.safe_load(text) or {}).get("outs") or []:
        if not isinstance(entry["md5"], str):
            raise TypeError(f"the md5 of {entry['path']} needs quotes")
        check_item(entry["path"])
        meta = entry.get("meta") or {}
        pinned[entry["path"]] = Pin(meta.get("urls") or [], entry.get("size"), entry["md5"], meta.get("sha256"))
    return pinned


def check_item(item: str) -> None:
    """Refuse a path that leads out of data/raw."""
    if Path(item).is_absolute() or ".." in Path(item).parts:
        raise UserError(f"raw file {item!r} is outside data/raw; give its path relative to that folder")


def add(item: str, pin: Pin, places: Places) -> None:
    """Append an entry to the text of data.dvc, whose comments and order stay.

    Raises UserError if the file does not end with its list of outputs."""
    meta = {"sha256": pin.sha256, "urls": list(pin.urls)}
    entry = {"path": item, "md5": pin.md5, "size": pin.size, "hash": "md5", "meta": meta}
    path = places.root / "data.dvc"
    before = path.read_text(encoding="utf-8")
    after = f"{before.rstrip()}\n{yaml.safe_dump([entry], sort_keys=False, width=10**6)}"
    try:
        appended = _parse(after) == _parse(before) | {item: pin}
    except yaml.YAMLError:
        appended = False
    if not appended:
        raise UserError(f"cannot add an entry to {path}; the file must end with the list `outs:` of `- path:` entries")
    write_text(path, after)


def wrong(path: Path, known: Upstream) -> str:
    """How a file differs from its known size, md5 and sha256; empty if it does not."""
    if not path.is_file():
        return "is missing"
    size = path.stat().st_size
    if known.size not in (None, size):
        return f"size is {size} bytes, expected {known.size}"
    for name, digest in sums(path).items():
        if getattr(known, name) not in (None, digest):
            return f"{name} is {digest}, expected {getattr(known, name)}"
    return ""


def sums(path: Path) -> dict[str, str]:
    """The md5 and sha256 of a file, by name."""
    digests = {name: hashlib.new(name, usedforsecurity=False) for name in ("md5", "sha256")}
    with path.open("rb") as stream:
        while chunk := stream.read(CHUNK):
            for digest in digests.values():
                digest.update(chunk)
    return {name: digest.hexdigest() for name, digest in digests.items()}
