"""The store: one folder a finished fit, named by its identity; studies point into it and own nothing.

    store/<fit_id>/         fit.json with the scores, points.parquet, arrays.npz, model.pt (of a closed form model.npz);
                            log.txt where it printed something; what is computed later: mixing-*.json of several
                            chains, certificate.json, and scores.json by a scoring code that is newer than the fit
    store/.work/<group>/    group.json, checkpoints, progress of a group of fits that is not finished
    store/.spool/<fit_id>   records that the tracker has not read yet
    store/.locks/<fit_id>   lock of the process that fits it
    store/.cleared/         fits that `gpbench retry` moved aside, and damaged ones

A finished fit appears by one rename, sealed (see `seals`). What else lies in the folder is not gpbench's, and is
neither read nor moved. Nothing here knows what kind of fit it is.
"""

import contextlib
import fcntl
import os
import platform
import re
import shutil
import sys
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil

from gpbench.config.validate import T
from gpbench.errors import UserError, count
from gpbench.places import locked, require_writable, share, write_text
from gpbench.study.records import FitRecord, Group, OtherEdition, Progress, from_json, of_content, parsed, to_json
from gpbench.study.storage import seals

FINAL = ("done", "diverged", "out-of-memory", "failed")
"""statuses that end a fit; `gpbench retry` clears all but done"""

IDENTITY = re.compile("[0-9a-f]{16}")
PARTS = re.compile(rf"fit\.json|points\.parquet|arrays\.npz|model\.(pt|npz)|log\.txt|{seals.LATER.pattern}")
"""Names of the files that a fit's folder may hold."""
OURS = re.compile(rf"{PARTS.pattern}|\.(scores|mixing-\w+|certificate)\.\w+\.json")
"""The same, and of what a process leaves there that is killed while it writes (see `places.write_aside`)."""
CERTIFICATE = "certificate.json"
BEAT, SILENCE = 60.0, 600.0
"""Seconds between two signs of life of who is at a fit, and after which one who gave none is dead."""


class Damaged(UserError):
    """A fit that is not what was written."""


class Unreadable(UserError):
    """A fit whose files the system does not let this process read now: it may be sound, and stays where it is."""


def _unread(error: OSError, path: Path) -> Damaged | Unreadable:
    """What is wrong with a fit of which a file could not be read."""
    message = f"{error.filename or path} cannot be read ({error.strerror})"
    if isinstance(error, FileNotFoundError | NotADirectoryError):
        return Damaged(message)
    return Unreadable(f"{message}; its fit stays as it is: check disk and permissions, and try again")


def _under_way(cls: type[T], path: Path) -> T | None:
    """A record of work in progress; None before it is written, where it is damaged, and once it has ended."""
    try:
        return from_json(cls, path.read_bytes(), path) if path.is_file() else None
    except (OSError, UserError):
        return None


def _begun(path: Path) -> Group | None:
    """A group as it was planned; None where it is of another folder or other fits, as one from elsewhere may be."""
    group = _under_way(Group, path)
    return group if group and group.group_id == path.parent.name and group.has_its_fits() else None


class Store:
    """Folder of finished fits and of the work in progress."""

    def __init__(self, root: Path) -> None:
        self.root = Path(root)
        self._common: dict[str, Any] = {}

    def folder(self, fit_id: str) -> Path:
        return self.root / fit_id

    def work(self, group_id: str) -> Path:
        return self.root / ".work" / group_id

    def has(self, fit_id: str) -> bool:
        """Whether a fit is there, which perhaps cannot be read."""
        with contextlib.suppress(OSError):
            return (self.folder(fit_id) / "fit.json").is_file()
        return True

    def ids(self) -> list[str]:
        """Identities of all finished fits: folders (no links) with the name of an identity and a file of a fit."""
        if not self.root.is_dir():
            return []
        names = []
        for entry in os.scandir(self.root):
            if IDENTITY.fullmatch(entry.name) and entry.is_dir(follow_symlinks=False):
                try:
                    names += [entry.name] if any(map(PARTS.fullmatch, os.listdir(entry))) else []
                except FileNotFoundError:  # another process has just moved it aside
                    continue
                except OSError:  # who reads it says why it cannot
                    names.append(entry.name)
        return sorted(names)

    def foreign(self, fit_id: str) -> list[str]:
        """Names in a fit's folder of what gpbench did not put there."""
        with contextlib.suppress(FileNotFoundError), os.scandir(self.folder(fit_id)) as entries:
            files = {entry.name: entry.is_file(follow_symlinks=False) for entry in entries}
            return sorted(name for name in files if not (files[name] and OURS.fullmatch(name)))
        return []  # another process has just moved it aside

    def record(self, fit_id: str) -> FitRecord:
        """fit.json of a finished fit. Raises UserError where there is no such fit, Damaged where the file is gone or is
        not what was written, Unreadable where that cannot be known.

        What the fits of a cell have in common, which is most of a record, is one object in all that are read."""
        path = self.folder(fit_id) / "fit.json"
        try:
            if not self.has(fit_id):  # who opens a pipe waits
                raise FileNotFoundError
            content = parsed(path.read_bytes(), path)
            sealed = isinstance(content, dict) and {"fit_id", "sealed"} <= content.keys()
            if sealed and (fault := seals.fault_of_record(fit_id, content)):  # before what it means
                raise Damaged(f"{path} is damaged ({fault})")
            record = of_content(FitRecord, content, path)
        except FileNotFoundError:
            if path.parent.is_dir():
                raise Damaged(f"{path.parent} is damaged (fit.json is missing)") from None
            raise UserError(f"no fit {fit_id!r} in {self.root}; `gpbench plan` lists a study's fits") from None
        except OtherEdition:
            raise
        except OSError as error:
            raise _unread(error, path) from error
        except UserError as error:
            raise Damaged(str(error)) from error
        parts = {name: getattr(record, name) for name in ("address", "what", "how")}
        return replace(record, **{name: self._common.setdefault(repr(part), part) for name, part in parts.items()})

    def done(self, fit_id: str) -> FitRecord | None:
        """The record of a finished fit that ended well; None where there is none."""
        record = self.record(fit_id) if self.has(fit_id) else None
        return record if record and record.status == "done" else None

    def verified(self, fit_id: str) -> FitRecord:
        """The record of a finished fit, whose files are all as they were sealed.

        Raises Damaged, once the fit was moved aside, where one is not."""
        try:
            record = self.record(fit_id)
            if fault := self._fault_of_files(record):
                raise Damaged(fault)
            return record
        except Damaged as error:
            raise Damaged(f"{error}; {self._move(fit_id)}") from error

    def fault(self, fit_id: str) -> str:
        """Which file of a finished fit is damaged, and how; '' where none is."""
        try:
            return self._fault_of_files(self.record(fit_id))
        except Damaged as error:
            return str(error)

    def _fault_of_files(self, record: FitRecord) -> str:
        folder = self.folder(record.fit_id)
        try:
            names = {each.name for each in os.scandir(folder) if PARTS.fullmatch(each.name) and each.is_file()}
            fault = seals.fault_of_files(folder, record, names)
        except OSError as error:
            raise _unread(error, folder) from error
        return f"{folder} is damaged ({fault})" if fault else ""

    def move_damaged(self, fit_ids: Iterable[str]) -> None:
        """Move fits aside whose record is damaged, missing or of another edition, each with a line, so that they can be
        fitted. UserError where something else stands in the place of a fit."""
        for fit_id in fit_ids:
            if (path := self.folder(fit_id)).is_file():
                raise UserError(f"{path} stands where the folder of a fit is to be, and is none; move it away")
            if os.path.lexists(path):
                try:
                    self.record(fit_id)
                except Unreadable:
                    raise
                except UserError as error:
                    print(f"gpbench: {error}; {self._move(fit_id)}", file=sys.stderr)
                    if path.exists() and not self.has(fit_id):  # its fit would be trained and have no place
                        raise UserError(f"{path} is in the way of a fit; move it away") from error

    def _move(self, fit_id: str) -> str:
        """Move a damaged fit aside; what was done, in words."""
        try:
            self.clear([fit_id])
        except (UserError, OSError) as error:
            return f"it could not be moved to {self.cleared} ({error})"
        return f"moved to {self.cleared}, and fitted again by the next run"

    def records(self) -> tuple[list[FitRecord], list[str], list[str]]:
        """Records, without scores, of finished fits; lines about damaged or unread ones, and other editions."""
        records, damaged, others = [], [], 0
        for fit_id in self.ids():
            try:
                records.append(replace(self.record(fit_id), scored=None))
            except OtherEdition:
                others += 1
            except Damaged as error:
                damaged.append(f"{error}; it is moved aside when it is fitted again, or by `gpbench retry {fit_id}`")
            except Unreadable as error:
                damaged.append(str(error))
            except UserError:
                continue  # another process has moved it aside meanwhile
        line = f"{count(others, 'fit')} of another edition of gpbench in {self.root} not used"
        return records, damaged, [line] if others else []

    def find(self, prefix: str) -> str:
        """The fit whose identity begins with `prefix`."""
        if not prefix:
            raise UserError("'' is not the identity of a fit; `gpbench plan` lists a study's fits")
        matching = [fit_id for fit_id in self.ids() if fit_id.startswith(prefix)]
        if not matching:
            raise UserError(f"no fit begins with {prefix!r} in {self.root}; `gpbench plan` lists a study's fits")
        if len(matching) > 1:
            raise UserError(f"{len(matching)} fits begin with {prefix!r} in {self.root}; give more of the identity")
        return matching[0]

    def ended_well(self, fit_id: str) -> bool:
        """Whether a fit is done; one that is damaged is not, one of another edition is left alone."""
        try:
            record = self.record(fit_id)
            return record.status == "done" and not self._fault_of_files(record)
        except Unreadable:
            raise
        except UserError as error:
            return isinstance(error, OtherEdition)

    def require_writable(self) -> None:
        """Refuse a store that cannot be written to, before anything is computed for it; a group keeps its own."""
        for folder in (self.root, self.root / ".tmp"):
            require_writable(folder, f"cannot write to the store {self.root}", "set GPBENCH_STORE")
            share(self.root)

    def sweep(self) -> None:
        """Remove what processes of this machine left half written that have died."""
        ours = re.compile(rf"[0-9a-f]{{16}}-{re.escape(platform.node())}-([0-9]+)(\.\w+)?")
        for path in (self.root / ".tmp").iterdir():
            if (match := ours.fullmatch(path.name)) and not psutil.pid_exists(int(match[1])):
                shutil.rmtree(path, ignore_errors=True)

    def aside(self, fit_id: str) -> Path:
        """Where this process writes a fit before it is one, so that `sweep` knows whose it was."""
        return self.root / ".tmp" / f"{fit_id}-{platform.node()}-{os.getpid()}"

    @contextlib.contextmanager
    def writing(self, fit_id: str) -> Iterator[Path]:
        """A temporary folder that becomes the fit's folder when the block ends without an error."""
        temporary = self.aside(fit_id)
        self.require_writable()
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir()
        try:
            yield temporary
            seals.seal(temporary)
            for path in temporary.iterdir():
                with path.open("rb") as stream:
                    os.fsync(stream.fileno())
            if not self.has(fit_id):
                temporary.rename(self.folder(fit_id))
        finally:
            shutil.rmtree(temporary, ignore_errors=True)

    def copy(self, fit_id: str, target: str, record: str) -> None:
        """Put a copy of a fit under another identity, with another fit.json; its scores are computed again."""
        sealed = self.verified(fit_id).sealed
        with self.writing(target) as folder:
            for name in sealed.keys() - {"fit.json"}:
                shutil.copy2(self.folder(fit_id) / name, folder)
            (folder / "fit.json").write_text(record, encoding="utf-8")
            if certificate := self.certificate(fit_id):
                seals.write(folder / CERTIFICATE, certificate)
            self.spool(target)  # should the process be killed once the copy is in its place
        self.spool(target)  # a tracker drops requests for what is not there yet

    def certificate(self, fit_id: str) -> seals.Content:
        """What more steps gained a fit (see `gpbench certify`); {} where it has no certificate, or a damaged one."""
        path = self.folder(fit_id) / CERTIFICATE
        if not path.is_file():
            return {}
        content = seals.read(path)
        if content is None:
            print(f"gpbench: {path} is damaged; `gpbench certify` makes it again", file=sys.stderr)
        return content or {}

    def certify(self, fit_id: str, content: seals.Content) -> None:
        """Keep a fit's certificate."""
        seals.write(self.folder(fit_id) / CERTIFICATE, content)

    @contextlib.contextmanager
    def locked(self, fit_ids: list[str]) -> Iterator[None]:
        """Hold the locks of some fits, in a fixed order; waits, and prints a line, while another process holds one."""
        self.require_writable()
        folder = self.root / ".locks"
        folder.mkdir(exist_ok=True)
        with contextlib.ExitStack() as stack:
            for fit_id in sorted(fit_ids):
                stack.enter_context(locked(folder / fit_id, f"fit {fit_id}", SILENCE))
            yield

    def beat(self, group: Group) -> None:
        """Show those who wait for the locks of a group, perhaps on other hosts, that their owner lives."""
        for fit in group.fits:
            with contextlib.suppress(OSError):
                os.utime(self.root / ".locks" / fit.fit_id)

    def busy(self, fit_id: str) -> bool:
        """Whether some process holds the fit's lock now."""
        try:
            with (self.root / ".locks" / fit_id).open("rb") as stream:  # as who may only read does
                fcntl.flock(stream, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except (FileNotFoundError, PermissionError):
            return False
        return False

    def is_free(self, group: Group) -> bool:
        """Whether no process works on a fit of a group now."""
        return not any(self.busy(fit.fit_id) for fit in group.fits)

    def groups(self) -> list[Group]:
        """Groups of fits that were begun and not finished, as they were planned."""
        paths = sorted((self.root / ".work").glob("*/group.json"))
        return [group for path in paths if (group := _begun(path))]

    def begun(self) -> dict[str, Group]:
        """fit_id -> the begun group that it belongs to."""
        return {fit.fit_id: group for group in self.groups() for fit in group.fits}

    def progress(self, group_id: str) -> Progress | None:
        """Progress of a running group; None before its first report."""
        return _under_way(Progress, self.work(group_id) / "progress.json")

    def unfinished(self, group: Group) -> tuple[str, str]:
        """(status, reason) of a group that was begun and has not ended."""
        note = self.work(group.group_id) / "stopped.txt"
        if note.is_file():
            return "stopped", note.read_text(encoding="utf-8", errors="replace")
        of_all = f" of {group.what.steps}" if group.what.steps else ""
        return "missing", f"interrupted at step {self.checkpoint(group.group_id)}{of_all}"

    def checkpoint(self, group_id: str) -> int:
        """Step of a group's newest checkpoint; 0 where there is none."""
        names = (path.stem.split("-") for path in self.work(group_id).glob("checkpoint-*.pt"))
        return max((int(step) for _, step, *_ in names if step.isdecimal()), default=0)

    def begin(self, group: Group) -> Path:
        """Folder of a group's checkpoints, which survives a kill together with the group as it was planned."""
        folder = self.work(group.group_id)
        if _begun(folder / "group.json") is None:
            write_text(folder / "group.json", to_json(group))
        return folder

    def end(self, group_id: str) -> None:
        """Forget a group's checkpoints: all its fits are in the store."""
        shutil.rmtree(self.work(group_id), ignore_errors=True)

    def spool(self, fit_id: str) -> None:
        """Ask the tracker to read this fit."""
        write_text(self.root / ".spool" / fit_id, "")

    def clear(self, fit_ids: list[str]) -> None:
        """Move fits aside, each by one rename, to `.cleared`.

        Raises UserError, and moves none, where a folder holds what gpbench did not put there."""
        present = [fit_id for fit_id in fit_ids if self.folder(fit_id).is_dir()]
        for fit_id in present:
            if others := self.foreign(fit_id):
                raise UserError(f"{self.folder(fit_id)} holds {', '.join(others)}, not made by gpbench; move it away")
        for fit_id in present:
            share(self.root)
            self.cleared.mkdir(exist_ok=True)
            # the empty folder reserves a name; a rename takes its place
            target = tempfile.mkdtemp(prefix=f"{fit_id}-", dir=self.cleared)
            try:
                self.folder(fit_id).rename(target)
            except FileNotFoundError:  # another process was faster
                os.rmdir(target)

    @property
    def cleared(self) -> Path:
        """Where fits go that `gpbench retry` moves aside."""
        return self.root / ".cleared"
