"""Who holds Snakemake's lock on the working folder: kept so that a dead owner's lock can be freed, and no other's."""

from __future__ import annotations

import json
import os
import platform
import shutil
from pathlib import Path

import psutil

from gpbench.errors import UserError
from gpbench.places import write_text


def _note(root: Path) -> Path:
    return root / ".snakemake" / "gpbench-owner.json"


def take(root: Path) -> None:
    """Note this process as the owner, unless a living one holds the lock."""
    if not (_locked(root) and _alive(root)):
        note = {"pid": os.getpid(), "started": psutil.Process().create_time(), "host": platform.node()}
        write_text(_note(root), json.dumps(note))


def unlock(root: Path) -> str:
    """Remove the lock if its owner is dead; what was done, in a line.

    Raises UserError while the owner lives."""
    if not _locked(root):
        return "not locked"
    if _alive(root):
        note = json.loads(_note(root).read_text())
        if note["host"] != platform.node():
            who = f"{root} is in use by snakemake on {note['host']} (process {note['pid']})"
            raise UserError(f"{who}; run `gpbench unlock` there, or `snakemake --unlock` here if that machine is gone")
        raise UserError(f"{root} is in use by a running snakemake (process {note['pid']}); wait for it or stop it")
    shutil.rmtree(root / ".snakemake" / "locks")
    return "freed the lock of a run that was killed"


def _locked(root: Path) -> bool:
    folder = root / ".snakemake" / "locks"
    return folder.is_dir() and any(folder.iterdir())


def _alive(root: Path) -> bool:
    """Whether the noted owner still runs (the process, not another with its number), as far as one can see here."""
    try:
        note = json.loads(_note(root).read_text())
        return note["host"] != platform.node() or bool(
            abs(psutil.Process(note["pid"]).create_time() - note["started"]) < 1.0
        )
    except (FileNotFoundError, KeyError, ValueError, psutil.NoSuchProcess):
        return False
