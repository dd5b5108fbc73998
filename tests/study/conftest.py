"""Fixtures for tests of the study."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from refusals import listing

from gpbench.places import Places
from projects import copy_project


@pytest.fixture(scope="module")
def places(tmp_path_factory) -> Places:
    """A project whose raw files come from the mirror."""
    if not os.environ.get("GPBENCH_MIRROR"):
        pytest.skip("needs GPBENCH_MIRROR, a folder or URL that holds raw files")
    root = copy_project(tmp_path_factory.mktemp("mirrored") / "project")
    return Places(root, root / "store")


@pytest.fixture
def refused(project, gpbench) -> Callable[..., None]:
    """Check that a command is refused with one line that holds some parts, and leaves every file as it was."""

    def check(words: tuple[str, ...], said: list[str], folder: Path = project) -> None:
        before = listing(folder)
        answer = gpbench(*words)
        assert answer.code == 1
        assert answer.out == ""
        assert answer.err.startswith("gpbench: ")
        assert answer.err.count("\n") == 1, answer.err
        assert "Traceback" not in answer.err
        for part in said:
            assert part in answer.err
        assert listing(folder) ^ before == set()

    return check
