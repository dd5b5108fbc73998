"""A place where machines without a common disk exchange fits. `GPBENCH_REMOTE` names it as fsspec does: file:///folder,
s3://bucket/folder, gs://bucket/folder, ssh://host/folder.

    fits/<fit_id>.tar           a done fit: fit.json and the files that it seals; written once, by who is first
    checkpoints/<group_id>/     files of a begun group, as in the store's .work
    claims/<fit_id>.<number>    which machine is at a fit (see `claims`)
    damaged/                    fits that were not what was written

What is fetched is checked before it is used: fits by their seals, checkpoints by the digests in their names.
"""

from __future__ import annotations

import contextlib
import functools
import io
import os
import platform
import re
import sys
import tarfile
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from gpbench.errors import UserError
from gpbench.places import naming, write_aside
from gpbench.study.storage.store import IDENTITY, PARTS, Store, Unreadable

FIT = re.compile(r"([0-9a-f]{16})\.tar")
WORK = re.compile(r"group\.json|(checkpoint-\d+|samples-\d+-\d+)-[0-9a-f]{16}\.pt")
"""Names of what is exchanged of a group that was begun."""
DAMAGED = (tarfile.TarError, ValueError, OverflowError, RecursionError)  # what a tar raises that is none
TRIES = 3
SUCH_AS = "such as s3://bucket/folder or file:///folder"


def find() -> Remote | None:
    """The remote place that the environment names; None where it names none."""
    url = os.environ.get("GPBENCH_REMOTE")
    return _of(url) if url else None


def require() -> Remote:
    """The remote place; raises UserError where there is none."""
    if remote := find():
        return remote
    raise UserError(f"GPBENCH_REMOTE is not set; name a place, {SUCH_AS}")


def fits() -> set[str]:
    """Identities of the fits of the remote place; none where there is no place."""
    remote = find()
    return remote.fits if remote else set()


def pull(store: Store, fit_id: str) -> bool:
    """Fetch a fit that a store lacks, if the remote place has it; whether the store has it now."""
    if not store.has(fit_id) and (remote := find()):
        remote.pull(store, [fit_id])
    return store.has(fit_id)


class Remote:
    """Objects of a remote place, by their names in it."""

    def __init__(self, url: str) -> None:
        import fsspec
        from fsspec.asyn import AsyncFileSystem
        from fsspec.implementations.memory import MemoryFileSystem

        if not re.match(r"(?!file://[^/])[a-z][a-z0-9+.-]*://.", url):
            raise UserError(f"GPBENCH_REMOTE={url!r} is not an address; name one {SUCH_AS}")
        try:
            self.files, self.root = fsspec.core.url_to_fs(url)
        # what is missing or wrong depends on the scheme
        except (ImportError, ValueError, OSError) as error:
            raise UserError(f"GPBENCH_REMOTE={url}: {error}") from error
        self.url = url
        # a file system writes an object piece by piece, a server of objects as a whole
        self.has_folders = not isinstance(self.files, AsyncFileSystem | MemoryFileSystem)

    @functools.cached_property
    def fits(self) -> set[str]:
        """Identities of its fits, as listed when they were first asked for."""
        return {match[1] for name in self.names("fits") if (match := FIT.fullmatch(name))}

    def has(self, fit_id: str) -> bool:
        """Whether a fit is there now."""
        if fit_id not in self.fits and self._exists(f"fits/{fit_id}.tar"):
            self.fits.add(fit_id)
        return fit_id in self.fits

    def push(self, store: Store, fit_ids: Iterable[str]) -> int:
        """Send those of some fits that are done, sound and not there yet; how many."""
        wanted = [fit_id for fit_id in fit_ids if fit_id not in self.fits and store.has(fit_id)]
        packed = ((fit_id, content) for fit_id in wanted if (content := _packed(store, fit_id)))
        return sum(self.create(f"fits/{fit_id}.tar", content) for fit_id, content in packed)

    def pull(self, store: Store, fit_ids: Iterable[str]) -> int:
        """Put those of some fits into the store that are there and that it lacks; how many."""
        wanted = [fit_id for fit_id in fit_ids if fit_id in self.fits and not store.has(fit_id)]
        return sum(self._enter(store, fit_id) for fit_id in wanted)

    def push_work(self, store: Store, group_id: str) -> None:
        """Make the checkpoints of a group there those of the store."""
        kept, sent = _parts(store.work(group_id)), set(self.names(f"checkpoints/{group_id}"))
        for path in (path for path in kept if path.name not in sent):  # samples before the checkpoint that needs them
            try:
                self.create(f"checkpoints/{group_id}/{path.name}", path.read_bytes())
            except FileNotFoundError:
                return  # the fit goes on, and has replaced it meanwhile
        self._drop(group_id, sent - {path.name for path in kept})

    def pull_work(self, store: Store, group_id: str) -> None:
        """Where checkpoints of a group there are further than those of the store, put them in their place, unless a
        process is at the group here, which goes on from its own."""
        names = [name for name in self.names(f"checkpoints/{group_id}") if WORK.fullmatch(name)]
        steps = [int(name.split("-")[1]) for name in names if name.startswith("checkpoint-")]
        if max(steps, default=0) <= store.checkpoint(group_id):
            return
        if any(group.group_id == group_id and not store.is_free(group) for group in store.groups()):
            return
        contents = {name: self.read(f"checkpoints/{group_id}/{name}") for name in names}
        for path in _parts(store.work(group_id)):  # draws of two histories must not be mixed
            path.unlink()
        for name, content in contents.items():
            if content is not None:
                with write_aside(store.work(group_id) / name) as temporary:
                    temporary.write_bytes(content)

    def begun(self) -> list[str]:
        """Groups with checkpoints."""
        return [name for name in self.names("checkpoints") if IDENTITY.fullmatch(name)]

    def forget_work(self, group_id: str) -> None:
        """Remove the checkpoints of a group: its fits are done."""
        self._drop(group_id, self.names(f"checkpoints/{group_id}"))

    def names(self, folder: str) -> list[str]:
        """Names in a folder, sorted; none where it is absent."""
        with contextlib.suppress(FileNotFoundError):
            paths = self._do("ls", self._path(folder), detail=False)
            return sorted(path.rstrip("/").rsplit("/", 1)[-1] for path in paths)
        return []

    def read(self, name: str) -> bytes | None:
        """An object; None where it is absent."""
        with contextlib.suppress(FileNotFoundError):
            content: bytes = self._do("cat_file", self._path(name))
            return content
        return None

    def create(self, name: str, content: bytes) -> bool:
        """Write an object as a whole, unless there is one of its name; whether it was written."""
        path = self._path(name)
        for attempt in range(TRIES):
            try:
                if self.has_folders:
                    return self._create_file(path, content)
                self.files.pipe_file(path, content, mode="create")
                return True
            except Exception as error:
                if self._exists(name):
                    return False
                if attempt == TRIES - 1:  # else it may have been there, and be gone
                    raise self._silent(error) from error
        raise AssertionError

    def write(self, name: str, content: bytes) -> None:
        """Write an object, in the place of one of its name."""
        self._do("pipe_file", self._path(name), content)

    def remove(self, name: str) -> None:
        """Remove an object, if it is there."""
        with contextlib.suppress(FileNotFoundError):
            self._do("rm_file", self._path(name))

    def _create_file(self, path: str, content: bytes) -> bool:
        """Write a file under another name, and give it its own as a whole."""
        self.files.makedirs(path.rsplit("/", 1)[0], exist_ok=True)
        aside = f"{path}.{platform.node()}-{os.getpid()}"
        try:
            self.files.pipe_file(aside, content)
            if hasattr(self.files, "link"):  # of this machine: a link is never made over a file
                self.files.link(aside, path)
                return True
            if is_new := not self.files.exists(path):
                self.files.mv(aside, path)
            return is_new
        finally:
            if self.files.exists(aside):
                self.files.rm_file(aside)

    def _enter(self, store: Store, fit_id: str) -> bool:
        """Put a fit into the store if it is what was sealed; else it is named and set aside."""
        content = self.read(f"fits/{fit_id}.tar")
        if content is None:
            return False
        store.require_writable()
        store.move_damaged([fit_id])
        aside = store.aside(fit_id)
        with tempfile.TemporaryDirectory(prefix=f"{aside.name}.", dir=aside.parent) as folder:
            with naming(store.folder(fit_id)):
                fault = _unpack(content, Store(Path(folder)), fit_id)
            if not fault:
                with store.locked([fit_id]):
                    if not store.has(fit_id):
                        (Path(folder) / fit_id).rename(store.folder(fit_id))
                store.spool(fit_id)
                return True
        moved = "was moved"
        try:
            self._do("makedirs", self._path("damaged"), exist_ok=True)
            self._do("mv", self._path(f"fits/{fit_id}.tar"), self._path(f"damaged/{fit_id}.tar"))
        except UserError:  # it may only be read
            moved = "could not be moved"
        self.fits.discard(fit_id)
        message = f"{self.url}: fit {fit_id} is damaged ({fault}); it {moved} to damaged/ there, and is to be run"
        print(f"gpbench: {message}", file=sys.stderr)
        return False

    def _drop(self, group_id: str, names: Iterable[str]) -> None:
        for name in names:
            if WORK.fullmatch(name):
                self.remove(f"checkpoints/{group_id}/{name}")

    def _exists(self, name: str) -> bool:
        return bool(self._do("exists", self._path(name)))

    def _path(self, name: str) -> str:
        return f"{self.root}/{name}"

    def _silent(self, error: Exception) -> UserError:
        return UserError(f"GPBENCH_REMOTE={self.url} does not answer ({error}); nothing is lost, try again")

    def _do(self, operation: str, *words: Any, **options: Any) -> Any:
        """Call the file system; what it refuses is one line."""
        try:
            self.files.invalidate_cache()  # listings are kept, and other machines write
            return getattr(self.files, operation)(*words, **options)
        except FileNotFoundError:
            raise
        except Exception as error:
            raise self._silent(error) from error


_of = functools.cache(Remote)
"""One for each address, so that a command lists its fits once."""


def _packed(store: Store, fit_id: str) -> bytes | None:
    """A tar of a fit's files; None where it is not done or damaged."""
    try:
        record = store.record(fit_id)
        if record.status != "done" or store.fault(fit_id):
            return None
    except UserError:
        return None
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as tar:
        for name in sorted(record.sealed):
            tar.add(store.folder(fit_id) / name, arcname=name)
    return stream.getvalue()


def _unpack(content: bytes, store: Store, fit_id: str) -> str:
    """Put the files of a fit, and no others, into a store; what is wrong with them, or ''."""
    try:
        with tarfile.open(fileobj=io.BytesIO(content), mode="r:") as tar:
            known = [m for m in tar if m.isfile() and not m.issparse() and PARTS.fullmatch(m.name)]
            # modes are of this process, and a time may be none
            members = [member.replace(mode=None, mtime=None) for member in known]  # type: ignore[arg-type]
            tar.extractall(store.folder(fit_id), members, filter="data")
        store.record(fit_id)
    except Unreadable:
        raise
    except (*DAMAGED, UserError) as error:  # a full disk here is no damage there
        return str(error)
    for path in store.folder(fit_id).iterdir():
        with path.open("rb") as stream:
            os.fsync(stream.fileno())
    return store.fault(fit_id)


def _parts(work: Path) -> list[Path]:
    """What is exchanged of a group's folder, the checkpoints last: they need the rest."""
    paths = [path for path in work.iterdir() if WORK.fullmatch(path.name)] if work.is_dir() else []
    return sorted(paths, key=lambda path: (path.name.startswith("checkpoint"), path.name))
