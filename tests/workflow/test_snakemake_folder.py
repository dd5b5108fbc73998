"""Snakemake's own folder: two runs in one, and damage inside it. The study still ends, with the real graph."""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from graphs import SNAKEMAKE, Project

from gpbench.study.planning.plan import run_name

pytestmark = pytest.mark.slow
STUDY = "splits=1"
TARGET = f"results/{run_name('default', STUDY)}/scores.parquet"


@pytest.fixture(scope="module")
def project(tmp_path_factory) -> Project:
    """A project whose study has two fits and is done."""
    made = Project(tmp_path_factory.mktemp("graph") / "a project", STUDY, "wine")
    study = {"name": "default", "title": "", "methods": ["constant", "linear"], "datasets": ["wine"], "budget": "smoke"}
    (made.root / "conf/study/default.yaml").write_text(yaml.safe_dump(study))
    code, said = made.snakemake(TARGET)
    assert code == 0, said
    return made


def forget(project: Project) -> None:
    for name in ("store", "results"):
        shutil.rmtree(project.root / name)


def test_a_second_snakemake_of_the_same_study_is_refused_and_the_first_ends(project):
    forget(project)
    first, deadline = project.start(*SNAKEMAKE, TARGET, "--config", f"overrides={STUDY}"), time.monotonic() + 120
    while not list(project.root.glob(".snakemake/locks/*")):
        assert first.poll() is None, first.communicate()[0]
        assert time.monotonic() < deadline
        time.sleep(0.01)
    os.kill(first.pid, signal.SIGSTOP)
    code, said = project.snakemake(TARGET)
    code_of_unlock, unlocked = project.gpbench("unlock")
    os.kill(first.pid, signal.SIGCONT)
    assert code == 1
    assert said.splitlines()[-1].startswith(f"gpbench: a running snakemake makes {run_name('default', STUDY)} in ")
    assert "Traceback" not in said
    assert (code_of_unlock, unlocked.count("\n")) == (1, 1)
    assert f"in use by a running snakemake (process {first.pid})" in unlocked
    ended = first.communicate(timeout=300)[0]
    assert first.returncode == 0, ended
    assert len(project.fits()) == 2
    assert "Nothing to be done" in project.snakemake(TARGET)[1]


def metadata(folder: Path) -> list[Path]:
    return [path for path in (folder / "metadata").rglob("*") if path.is_file()]


def overwrite(content: bytes) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        for path in metadata(folder):
            path.write_bytes(content)

    return damage


def locks(folder: Path) -> None:
    """As a killed run leaves them, and damaged."""
    (folder / "locks").mkdir(exist_ok=True)
    for name in ("0.input.lock", "0.output.lock"):
        (folder / "locks" / name).write_bytes(f"{TARGET}\n".encode() + b"\xff")


def incomplete(folder: Path) -> None:
    (folder / "incomplete").mkdir(exist_ok=True)
    for path in metadata(folder):
        (folder / "incomplete" / path.name).write_bytes(b"\xff")


DAMAGES: dict[str, Callable[[Path], None]] = {
    "metadata that are no text": overwrite(b'\xff{"rule": "fit"}'),
    "metadata cut short": overwrite(b'{"rule": '),
    "damaged locks": locks,
    "damaged marks of incomplete files": incomplete,
    "all of it gone": shutil.rmtree,
}


def test_every_name_that_conf_allows_is_planned(project):
    entry = project.root / "conf/dataset/Wine-2.yaml"
    shutil.copy(entry.with_name("wine.yaml"), entry)
    code, said = project.snakemake("-n", overrides="methods=[constant] datasets=[Wine-2] splits=2")
    entry.unlink()
    assert (code, "prepare" in said) == (0, True), said


@pytest.mark.parametrize("name", DAMAGES)
def test_the_study_ends_whatever_is_damaged_there(project, name):
    forget(project)
    DAMAGES[name](project.root / ".snakemake")
    code, said = project.snakemake(TARGET)
    assert code == 0, said
    assert "Traceback" not in said
    assert len(project.fits()) == 2
    assert (project.root / TARGET).is_file()
