"""Folders of a project, and writing files in them atomically."""

from __future__ import annotations

import contextlib
import errno
import json
import math
import os
import stat
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpbench.errors import UserError

if TYPE_CHECKING:
    from filelock import AcquireReturnProxy, BaseFileLock

LOOK_SECONDS = 60.0  # between two looks at a lock that another process holds
DISK = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.EFBIG)


@dataclass(frozen=True)
class Places:
    """Folders of one project: `root` contains conf/, published/ and data.dvc; runs write to the others.

    draft: where plans are instead, if nothing is to be written into the project; copies: where what rules of Snakemake
    make is instead, if Snakemake keeps it in a storage and works on copies."""

    root: Path
    store: Path
    draft: Path | None = None
    copies: Path | None = None

    @property
    def made(self) -> Path:
        """Folder of what rules make."""
        return self.copies or self.root

    @property
    def conf(self) -> Path:
        return self.root / "conf"

    @property
    def raw(self) -> Path:
        return self.root / "data" / "raw"

    def prepared_file(self, dataset: str) -> Path:
        """File of the arrays of a data set."""
        return self.made / "data" / "prepared" / f"{dataset}.npz"

    @property
    def per_split(self) -> Path:
        """Scores that authors released for each split."""
        return self.root / "published" / "per_split"

    @property
    def challengers(self) -> Path:
        """Predictions of others, checked and scored."""
        return self.root / "challengers"

    @property
    def plans(self) -> Path:
        return self.draft or self.root / "plans"

    @property
    def runs(self) -> Path:
        return self.made / "runs"

    @property
    def results(self) -> Path:
        return self.made / "results"


def find() -> Places:
    """Places of the project: `GPBENCH_ROOT`, or the nearest of this folder and its parents that has conf/config.yaml,
    or the checkout from which this package was installed. `GPBENCH_STORE` moves the store; the Snakefile sets
    `GPBENCH_COPIES` for its jobs."""
    here = Path.cwd()
    requested = os.environ.get("GPBENCH_ROOT")
    candidates = [Path(requested)] if requested else [here, *here.parents, Path(__file__).resolve().parents[2]]
    root = next((c.resolve() for c in candidates if (c / "conf" / "config.yaml").is_file()), None)
    if root is None:
        raise UserError(f"no conf/config.yaml in {requested or here} or above; enter a checkout or set GPBENCH_ROOT")
    copies = os.environ.get("GPBENCH_COPIES")
    store = Path(os.environ.get("GPBENCH_STORE") or root / "store").absolute()
    return Places(root, store, copies=Path(copies) if copies else None)


@contextlib.contextmanager
def write_aside(target: Path, lasting: bool = True) -> Iterator[Path]:
    """Yield a temporary path beside `target`; on success it replaces `target`, otherwise it is removed.

    lasting: whether it is fsynced, for what cannot be made again in a moment. Raises UserError if the folder is not
    writable, and for a device or pipe, which would be replaced."""
    if target.exists() and not target.is_file() or target.is_symlink() and target.is_relative_to("/dev"):
        kind = "folder" if target.is_dir() else "device or a pipe"
        raise UserError(f"cannot write {target}: it is a {kind}; name a file")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=f".{target.stem}.", suffix=target.suffix, dir=target.parent)
        os.close(handle)
    except OSError as error:
        raise UserError(f"cannot write {target}: {error.strerror}; check the folder's permissions") from error
    temporary = Path(name)
    try:
        with naming(target):
            yield temporary
            if lasting:
                with temporary.open("rb") as stream:
                    os.fsync(stream.fileno())
            temporary.chmod(0o666 & ~_umask())  # and not only for its owner
            temporary.replace(target)
    finally:
        temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def naming(path: Path) -> Iterator[None]:
    """Name a place in an error of the system that names none, as that of a full disk."""
    try:
        yield
    except OSError as error:
        if error.errno and not error.filename:
            error.filename = str(path)
        raise


def _umask() -> int:
    os.umask(mask := os.umask(0))
    return mask


def share(folder: Path) -> None:
    """If the group may write to a folder, it may write to what this process makes from now on."""
    if folder.stat().st_mode & stat.S_IWGRP:
        os.umask(_umask() & ~stat.S_IRWXG)


def require_writable(folder: Path, refusal: str, remedy: str) -> None:
    """Refuse a folder in which nothing can be made, before anything is computed for it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        raise UserError(f"{refusal}: {error.strerror}; {remedy}") from error


@contextlib.contextmanager
def locked(path: Path, work: str, silence: float = math.inf) -> Iterator[None]:
    """Hold the lock file of some work; waits, and prints a line, while another process holds it.

    silence: seconds after which an owner is taken for dead who did not touch the file: its host may have died, and some
    file systems never tell. Raises UserError where the file system has no locks or refuses this one."""
    from filelock import FileLock, Timeout

    lock = FileLock(path)
    try:
        held = lock.acquire(timeout=0)
    except Timeout:
        print(f"gpbench: waiting for another process that works on {work}", file=sys.stderr)
        held = _wait(lock, path, silence)
    except OSError as error:
        hint = "its file system must have locks (mount option flock), and its group be able to write"
        raise UserError(f"cannot lock {path}: {error.strerror}; {hint}; or set GPBENCH_STORE") from error
    with held:
        yield


def _wait(lock: BaseFileLock, path: Path, silence: float) -> AcquireReturnProxy:
    """Acquire a lock that another process holds, or whose file nobody touched for so long, by the clock of this one."""
    from filelock import Timeout

    touched, since = -1, time.monotonic()
    while True:
        try:
            return lock.acquire(timeout=min(silence, LOOK_SECONDS))
        except Timeout:
            if path.exists() and (now := path.stat().st_mtime_ns) != touched:
                touched, since = now, time.monotonic()
            elif time.monotonic() - since >= silence:
                print(f"gpbench: nobody touched {path} for {silence:.0f} seconds; its owner has died", file=sys.stderr)
                path.unlink(missing_ok=True)  # who holds that file holds no name


def errno_of_disk(error: BaseException | None) -> int:
    """One of DISK where a disk is the reason, full, read-only or broken: that is no result of a fit. Else 0."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in DISK:
            return error.errno
        error = error.__cause__ or error.__context__
    return 0


def read_json(path: Path, remedy: str) -> Any:
    """The content of a JSON file. UserError, with a remedy, where it is damaged."""
    try:
        return json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{path} is damaged ({error}); {remedy}") from error


def write_text(target: Path, text: str, lasting: bool = True) -> Path:
    """Write a text file atomically; its path."""
    with write_aside(target, lasting) as temporary:
        temporary.write_text(text, encoding="utf-8")
    return target


def write_if_changed(target: Path, text: str) -> bool:
    """Write a text file unless it has this content, which keeps its time of change; True if written."""
    if target.is_file() and target.read_bytes() == text.encode():
        return False
    write_text(target, text)
    return True
