"""Fetch raw files: cache, DVC remote, mirror, upstream URLs, in that order; nothing unverified gets a name.

`dvc pull` never asks a source URL and does not verify an HTTP remote, so the bytes are checked here
(md5 and sha256), put into DVC's cache by an atomic rename, and checked out by DVC.
"""

from __future__ import annotations

import hashlib
import http.client
import os
import shutil
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

import yaml

from gpbench.errors import UserError
from gpbench.places import Places, write_aside
from gpbench.schema import Dataset

CHUNK = 1 << 20
TIMEOUT = 60  # seconds without a byte


def pins(places: Places) -> dict[str, dict[str, Any]]:
    """Path below data/raw -> its entry in data.dvc."""
    path = places.root / "data.dvc"
    try:
        content = yaml.safe_load(path.read_text())
    except (OSError, yaml.YAMLError) as error:
        raise UserError(f"{path} cannot be read: {error}") from error
    return {entry["path"]: entry for entry in (content or {}).get("outs") or []}


def fetch(dataset: Dataset, places: Places) -> list[Path]:
    """Make the raw files of a data set available; returns them (none for sets that ship inside a package)."""
    if dataset.source.kind != "table":
        return []
    item = dataset.source.item
    path = places.raw / item
    pin = pins(places).get(item)
    if pin is None and not path.is_file():
        raise UserError(f"{path} is missing and not pinned in data.dvc; put the file there or add it to data.dvc")
    if pin is None:
        return [path]
    if path.is_file() and _sum(path, "md5") != pin["md5"]:
        raise UserError(f"{path} is not the pinned file (md5 differs from data.dvc); delete it to fetch it again")
    if not path.is_file():
        _into_workspace(item, pin, places)
    return [path]


def _into_workspace(item: str, pin: dict[str, Any], places: Places) -> None:
    cached = places.root / ".dvc" / "cache" / "files" / "md5" / pin["md5"][:2] / pin["md5"][2:]
    target = places.raw / item
    tried: list[str] = []
    remote = os.environ.get("GPBENCH_DVC_REMOTE")
    if not cached.is_file() and remote:
        pulled = _dvc(places, "pull", "-r", remote, str(target))
        if pulled.returncode:
            tried.append(f"DVC remote {remote}: {(pulled.stderr.strip().splitlines() or ['no reason given'])[-1]}")
    if not cached.is_file():
        mirror = os.environ.get("GPBENCH_MIRROR")
        for source in ([f"{mirror.rstrip('/')}/{item}"] if mirror else []) + (pin.get("meta", {}).get("urls") or []):
            reason = _download(source, pin, cached)
            if reason is None:
                break
            tried.append(f"{source}: {reason}")
        else:
            raise UserError(f"{item} could not be fetched: {'; '.join(tried) or 'no source is known'}")
    checkout = _dvc(places, "checkout", str(target))
    if checkout.returncode or not target.is_file() or _sum(target, "md5") != pin["md5"]:
        reason = (checkout.stderr.strip().splitlines() or ["the file differs from its pin"])[-1]
        target.unlink(missing_ok=True)
        raise UserError(f"{item}: dvc checkout failed: {reason}; delete {cached} and fetch again")


def _download(source: str, pin: dict[str, Any], cached: Path) -> str | None:
    """Copy a file or URL into the cache once it is verified; the reason where it could not be."""
    try:
        with write_aside(cached) as temporary:
            with _open(source) as stream, temporary.open("wb") as sink:
                shutil.copyfileobj(stream, sink, CHUNK)
            for algorithm, expected in (("md5", pin["md5"]), ("sha256", pin.get("meta", {}).get("sha256"))):
                if expected and _sum(temporary, algorithm) != expected:
                    raise OSError(f"{algorithm} is {_sum(temporary, algorithm)}, expected {expected}")
    except (OSError, http.client.HTTPException) as error:  # URLError is an OSError
        return str(error)
    return None


def _open(source: str) -> Any:
    if source.startswith(("http://", "https://")):
        return urllib.request.urlopen(source, timeout=TIMEOUT)
    return Path(source).open("rb")


def _sum(path: Path, algorithm: str) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, lambda: hashlib.new(algorithm, usedforsecurity=False)).hexdigest()


def _dvc(places: Places, *words: str) -> subprocess.CompletedProcess[str]:
    """Run DVC, waiting for its repository-wide lock instead of failing."""
    command = [sys.executable, "-m", "dvc", "--wait-for-lock", *words]
    environment = os.environ | {"DVC_NO_ANALYTICS": "1"}
    return subprocess.run(command, cwd=places.root, env=environment, capture_output=True, text=True, check=False)
