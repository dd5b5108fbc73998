"""Who runs Snakemake in the working folder: kept so that the lock of dead runs can be freed, and no other's.

    .snakemake/gpbench/HOST-PID     locked by that process from before it plans its first job until it ends
    .snakemake/gpbench-runs/RUN     locked as long by the process that makes that run: of several runs in a folder, the
                                    first to end frees Snakemake's lock of them all

The operating system frees such a lock when its process ends, in whatever way: neither a clock that was set nor another
process of the same number misleads it.
"""

import atexit
import os
import platform
import shutil
from pathlib import Path

from filelock import FileLock, Timeout

from gpbench.errors import UserError

OWNERS = ".snakemake/gpbench"
_held: dict[Path, FileLock] = {}


def take(root: Path, run: str) -> None:
    """Note this process as one that makes this run here, until it ends. Raises UserError while another one makes it."""
    owner = root / OWNERS / f"{platform.node()}-{os.getpid()}"
    for path in (root / ".snakemake" / "gpbench-runs" / run, owner):
        if path not in _held:
            path.parent.mkdir(parents=True, exist_ok=True)
            lock = FileLock(path)
            try:
                lock.acquire(timeout=0)
            except Timeout:
                raise UserError(f"a running snakemake makes {run} in {root}; wait for it, or stop it") from None
            _held[path] = lock
    atexit.register(owner.unlink, missing_ok=True)


def mend(root: Path) -> None:
    """Empty what Snakemake cannot read of what it keeps of outputs; such locks are removed if their owners are dead."""
    folder = root / ".snakemake"
    if not os.access(place := folder if folder.exists() else root, os.W_OK):
        raise UserError(f"{place} cannot be written by you; take a copy of the project that you may write")
    for path in (*(folder / "metadata").rglob("*"), *(folder / "incomplete").rglob("*")):
        if path.is_file() and not _is_text(path):
            path.write_bytes(b"")
    if not all(map(_is_text, (folder / "locks").glob("*"))):
        unlock(root)


def _is_text(path: Path) -> bool:
    try:
        path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        return False
    return True


def unlock(root: Path) -> str:
    """Remove Snakemake's lock if its owners are dead; what was done, in a line.

    Raises UserError while one lives, as far as one can see here."""
    folder = root / ".snakemake" / "locks"
    if not (folder.is_dir() and any(folder.iterdir())):
        return "not locked"
    for path in sorted((root / OWNERS).glob("*")):
        host, _, pid = path.name.rpartition("-")
        if host != platform.node():
            who = f"{root} is in use by snakemake on {host} (process {pid})"
            raise UserError(f"{who}; run `gpbench unlock` there; if that machine is gone, delete {path} and try again")
        try:
            with FileLock(path).acquire(timeout=0):
                path.unlink()
        except Timeout:
            raise UserError(f"{root} is in use by a running snakemake (process {pid}); wait, or stop it") from None
    shutil.rmtree(folder)
    return "freed the lock of a run that was killed"
