"""Some 700 kinds of bad input, in one process: one line each, exit 1 or 2, nothing written."""

from __future__ import annotations

import contextlib
import io
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import bad_files
import bad_words
import pytest

from gpbench import places
from gpbench.cli.main import main as gpbench
from gpbench.report.__main__ import main as report
from gpbench.study.commands import job
from gpbench.study.planning import plan as planning
from gpbench.study.results import collect
from projects import copy_project

pytestmark = pytest.mark.slow
STUDY = "methods=[linear] datasets=[mine] splits=1 budget=smoke"


class Project(NamedTuple):
    """A sound project with one finished fit and its results; name: of the run, row: a test row of the fit."""

    root: Path
    name: str
    row: int


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Project]:
    root = copy_project(tmp_path_factory.mktemp("bad") / "project", "published")
    with pytest.MonkeyPatch.context() as patch:
        for name in ("GPBENCH_STORE", "GPBENCH_MIRROR", "GPBENCH_DVC_REMOTE", "MLFLOW_TRACKING_URI"):
            patch.delenv(name, raising=False)
        patch.setenv("GPBENCH_ROOT", str(root))
        patch.setenv("GPBENCH_MIRROR", "/no/such/mirror")
        patch.setenv("CI", "1")
        patch.chdir(root)
        (root / "site").mkdir()
        patch.syspath_prepend(str(root / "site"))
        pins = root / "data.dvc"
        pins.write_text("".join(line for line in pins.read_text().splitlines(True) if "http" not in line))
        (root / "table.csv").write_text("a,b,y\n" + "".join(f"{i},{i % 7},{i * i % 11}\n" for i in range(60)))
        assert gpbench(["data", "add", "table.csv", "--target", "y", "--name", "mine"]) == 0
        where = places.find()
        plan = planning.make(where, "default", STUDY)
        planning.freeze(plan, where)
        job.run_groups(tuple(group for batch in plan.batches for group in batch.groups), where)
        collect.collect(where, plan.name)
        points = collect._points(where.store / plan.fits[0][1].fit_id / "points.parquet")
        yield Project(root, plan.name, int(points["row"].iloc[0]))


def listing(root: Path) -> dict[str, tuple[int, int]]:
    """Every file and folder with size and time of change; logs, locks and Python's own apart."""
    found = {}
    for folder, names, files in os.walk(root):
        names[:] = [name for name in names if name not in ("logs", ".dvc", "__pycache__", ".locks", ".tmp")]
        for name in files:
            state = os.lstat(path := os.path.join(folder, name))
            found[path] = (state.st_size, state.st_mtime_ns)
        found[folder] = (0, 0)
    return found


def run(words: list[str]) -> tuple[int | str | None, str, str]:
    """(exit status, standard output, standard error) of a command in this process."""
    out, err = io.StringIO(), io.StringIO()
    entries = {"report": report, "job": _job}
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = entries[words[0]](words[1:]) if words and words[0] in entries else gpbench(words)
        except SystemExit as end:
            code = end.code
        except Exception as error:  # noqa: BLE001 - what the test looks for
            code = f"{type(error).__name__}: {str(error)[:200]}"
    return code, out.getvalue(), err.getvalue()


def _job(words: list[str]) -> int:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["job", *words])
        patch.setattr(job.stopping, "listen", lambda seconds: None)
        return job.main()


def fault(project: Project, words: tuple[str, ...], files: bad_files.Files) -> str:
    """What a command with some files beside a sound project's does that it should not; '' where all is well."""

    def named(text: str) -> str:
        return text.replace("RESULTS", f"results/{project.name}").replace("NAME", project.name)

    kept: dict[Path, bytes | None] = {}
    for name, content in files.items():
        path = project.root / named(name)
        kept[path] = path.read_bytes() if path.is_file() else None
        text = content if isinstance(content, bytes) else content.replace("{row}", str(project.row)).encode()
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(_all_rows(text))
    before = listing(project.root)
    code, out, err = run([named(word) for word in words])
    after = listing(project.root)
    for path, old in kept.items():
        path.unlink() if old is None else path.write_bytes(old)
    if code not in (1, 2):
        return f"exit {code}; {out[-100:]!r} {err[-100:]!r}"
    if err.count("\n") != 1 or "Traceback" in err or not err.startswith("gpbench"):
        return f"says {err[:300]!r}"
    changed = sorted({path for path, _ in before.items() ^ after.items()})
    return f"writes {changed[:3]}" if changed else ""


def _all_rows(text: bytes) -> bytes:
    """Predictions of every test row of split 0: `ALL,mean,sd`."""
    if not (match := re.fullmatch(rb"ALL,(.*),(.*)", text)):
        return text
    out = run(["data", "splits", "mine"])[1]
    rows = [line.split(",")[3] for line in out.splitlines() if ",test," in line]
    lines = "".join(f"mine,0,{row},{match[1].decode()},{match[2].decode()}\n" for row in rows)
    return f"dataset,split,row,mean,sd\n{lines}".encode()


@pytest.mark.parametrize("kind", ["words", "files"])
def test_bad_input_is_one_line_and_writes_nothing(project, kind):
    of_kind = {"words": [(*case, {}) for case in bad_words.cases()], "files": list(bad_files.cases())}[kind]
    faults = {name: wrong for name, words, files in of_kind if (wrong := fault(project, words, files))}
    print(f"{len(of_kind)} kinds of bad {kind}, {len(faults)} not refused as they should be")
    assert len({name for name, *_ in of_kind}) == len(of_kind) > 200
    assert not faults, "\n".join(f"{name}: {wrong}" for name, wrong in faults.items())
