"""Seals: by which the files of a finished fit are known to be those that were written. Paths are those of the store.

    fit.json      `sealed`: SHA-256 of every file that the fit left, and of this record without that entry
    what is computed later (scores.json, ...)
                  `seal`: SHA-256 of the fit's identity, the file's name and the rest of the file

That `what` hashes to the name of the folder is checked, too.
"""

import hashlib
import json
import re
from pathlib import Path
from typing import Any

from gpbench.places import write_text
from gpbench.study.records import FitRecord, digest, identify

LATER = re.compile(r"scores\.json|mixing-\w+\.json|certificate\.json")
"""Names of what is computed from a finished fit."""
Content = dict[str, Any]
SHA_256 = 64  # its hexadecimal digits


def seal(folder: Path) -> None:
    """Write the seals of all files of a fit's folder into its fit.json."""
    path = folder / "fit.json"
    content = json.loads(path.read_bytes())
    files = (p for p in sorted(folder.iterdir()) if p != path and not LATER.fullmatch(p.name))
    content["sealed"] = {p.name: of_file(p) for p in files}
    content["sealed"][path.name] = _of_record(content)
    path.write_text(json.dumps(content, indent=1), encoding="utf-8")


def fault_of_record(fit_id: str, content: Content) -> str:
    """Why the content of a fit.json is not what was written; '' where it is."""
    if content["fit_id"] != fit_id:
        return f"it is the record of {content['fit_id']}"
    if not isinstance(content["sealed"], dict) or content["sealed"].get("fit.json") != _of_record(content):
        return "it was changed after it was written"
    what = content.get("what")
    if not isinstance(what, dict) or identify(what, content.get("split", -1), content.get("replica", -1)) != fit_id:
        return "its `what` does not hash to its identity"
    return ""


def fault_of_files(folder: Path, record: FitRecord, names: set[str]) -> str:
    """Which of the files of these `names` is not what the fit left; '' where all are."""
    names = {name for name in names - {"fit.json"} if not LATER.fullmatch(name)}
    sealed = {name: seal for name, seal in record.sealed.items() if name != "fit.json"}
    for name in sorted(sealed.keys() | names):
        if name not in names:
            return f"{name} is missing"
        if name not in sealed:
            return f"{name} is not of this fit"
        if of_file(folder / name) != sealed[name]:
            return f"{name} was changed after it was written"
    return ""


def of_file(path: Path) -> str:
    """SHA-256 of a file."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def write(path: Path, content: Content, lasting: bool = True) -> None:
    """Write what was computed from the fit whose folder `path` is in, with its seal; lasting: see `write_aside`."""
    write_text(path, json.dumps(content | {"seal": _of_later(path, content)}, indent=1), lasting)


def read(path: Path) -> Content | None:
    """What `write` wrote, without its seal; None where the file is absent or another."""
    try:
        content = json.loads(path.read_bytes()) if path.is_file() else None  # who opens a pipe waits
    except (OSError, ValueError, RecursionError):
        return None
    return content if isinstance(content, dict) and content.pop("seal", None) == _of_later(path, content) else None


def _of_record(content: Content) -> str:
    files = {name: seal for name, seal in content["sealed"].items() if name != "fit.json"}
    return digest(content | {"sealed": files}, SHA_256)


def _of_later(path: Path, content: Content) -> str:
    identity = path.parent.name.partition("-")[0]  # a folder that is written aside has more after it
    return digest([identity, path.name, content], SHA_256)
