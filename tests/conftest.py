"""Fixtures for every test: a project of its own in a temporary folder, and the command line inside this process."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from gpbench.cli import main
from projects import copy_project

# before torch starts threads, for which a worker that is forked afterwards may wait for ever
os.environ.setdefault("OMP_NUM_THREADS", "1")
# processes that tests start read the package compiled, as they do wherever Python may write what it compiles
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# what moves the places of a project; a test must not see the developer's own
PLACES = (
    "GPBENCH_ROOT",
    "GPBENCH_STORE",
    "GPBENCH_COPIES",
    "GPBENCH_REMOTE",
    "GPBENCH_MIRROR",
    "GPBENCH_DVC_REMOTE",
    "MLFLOW_TRACKING_URI",
)

# minutes each; begun first, so that parallel workers end together (`--no-loadscope-reorder`, see the Makefile)
LONGEST = (
    "workflow/test_graph.py",
    "fitting/test_accuracy_random_features.py",
    "fitting/test_asynchronous.py",
    "fitting/test_accuracy_sparse.py",
    "fitting/test_batches.py",
    "conformance/test_methods.py",
    "fitting/test_several_targets.py",
    "workflow/test_data_graph.py",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Whole files change places, their tests keep their order."""

    def place(item: pytest.Item) -> int:
        file = "/".join(item.path.parts[-2:])
        return LONGEST.index(file) if file in LONGEST else len(LONGEST)

    items.sort(key=place)


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A fresh project folder, which this process and its children take for theirs."""
    for name in PLACES:
        monkeypatch.delenv(name, raising=False)
    root = copy_project(tmp_path / "project")
    (root / "store").mkdir()
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
        code = main.main(list(words))
        return Answer(code, *capfd.readouterr())

    return run
