"""Fixtures for every test: a project of its own in a temporary folder, and the command line inside this process."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from gpbench import cli
from projects import copy_project

# what moves the places of a project; a test must not see the developer's own
PLACES = ("GPBENCH_ROOT", "GPBENCH_STORE", "GPBENCH_MIRROR", "GPBENCH_DVC_REMOTE", "MLFLOW_TRACKING_URI")


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A fresh project folder, which this process and its children take for theirs."""
    for name in PLACES:
        monkeypatch.delenv(name, raising=False)
    root = copy_project(tmp_path / "project")
    monkeypatch.setenv("GPBENCH_ROOT", str(root))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("CI", "1")  # no progress lines
    monkeypatch.chdir(root)
    return root


class Answer(NamedTuple):
    """What a command left: exit status, standard output, standard error."""

    code: int
    out: str
    err: str


@pytest.fixture
def gpbench(project: Path, capfd: pytest.CaptureFixture[str]) -> Callable[..., Answer]:
    """Run a command of gpbench in this process."""

    def run(*words: str) -> Answer:
        capfd.readouterr()
        code = cli.main(list(words))
        return Answer(code, *capfd.readouterr())

    return run
