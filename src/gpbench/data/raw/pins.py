"""The pins in data.dvc, and whether a file is what its pin says."""

from __future__ import annotations

import functools
import hashlib
from pathlib import Path
from typing import Any

import yaml

from gpbench.config.schema import Upstream
from gpbench.errors import UserError
from gpbench.places import Places, write_text

CHUNK = 1 << 20


def pins(places: Places) -> dict[str, dict[str, Any]]:
    """Path below data/raw -> its entry in data.dvc.

    Raises UserError where data.dvc cannot be read."""
    path = places.root / "data.dvc"
    try:
        return dict(_parse(path.read_text()))  # a copy of what is kept: callers may take entries out
    except (OSError, yaml.YAMLError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{path} cannot be read: {type(error).__name__}: {error}") from error


@functools.lru_cache(maxsize=4)
def _parse(text: str) -> dict[str, dict[str, Any]]:
    entries = {entry["path"]: entry for entry in (yaml.safe_load(text) or {}).get("outs") or []}
    if wrong := [path for path, entry in entries.items() if not isinstance(entry["md5"], str)]:
        raise TypeError(f"the md5 of {wrong[0]} needs quotes")
    for path in entries:
        check_item(path)
    return entries


def check_item(item: str) -> None:
    """Refuse a raw file that would not lie below data/raw."""
    if Path(item).is_absolute() or ".." in Path(item).parts:
        raise UserError(f"raw file {item!r} does not lie below data/raw; name it by its path there")


def wanted(entry: dict[str, Any]) -> Upstream:
    """What an entry of data.dvc says of its file."""
    meta = entry.get("meta") or {}
    return Upstream(meta.get("urls") or [], entry.get("size"), entry["md5"], meta.get("sha256"))


def add(item: str, found: Upstream, places: Places) -> None:
    """Add an entry at the end of data.dvc, as text: comments and order of the rest stay.

    Raises UserError where the file does not end with its list of outputs."""
    meta = {"sha256": found.sha256, "urls": list(found.urls)}
    entry = {"path": item, "md5": found.md5, "size": found.size, "hash": "md5", "meta": meta}
    path = places.root / "data.dvc"
    before = path.read_text()
    after = f"{before.rstrip()}\n{yaml.safe_dump([entry], sort_keys=False, width=10**6)}"
    try:
        fits = _parse(after) == _parse(before) | {item: entry}
    except yaml.YAMLError:
        fits = False
    if not fits:
        raise UserError(f"{path}: nothing can be added; let it end with `outs:` and lines that start with `- path:`")
    write_text(path, after)


def wrong(path: Path, known: Upstream) -> str:
    """How a file differs from what is known of it (size, md5, sha256); nothing if it does not."""
    if not path.is_file():
        return "is missing"
    size = path.stat().st_size
    if known.size not in (None, size):
        return f"size is {size} bytes, expected {known.size}"
    for name, found in sums(path).items():
        if getattr(known, name) not in (None, found):
            return f"{name} is {found}, expected {getattr(known, name)}"
    return ""


def sums(path: Path) -> dict[str, str]:
    """The md5 and sha256 of a file, by name."""
    digests = {name: hashlib.new(name, usedforsecurity=False) for name in ("md5", "sha256")}
    with path.open("rb") as stream:
        while chunk := stream.read(CHUNK):
            for digest in digests.values():
                digest.update(chunk)
    return {name: digest.hexdigest() for name, digest in digests.items()}
