"""Copies of this repository's project files, for tests that write."""

import shutil
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]


def copy_project(target: Path, *more: str) -> Path:
    """Copy what a project needs to plan and fetch (and `more`) to the new folder `target`."""
    for name in ("conf", "data.dvc", ".dvc/config", ".dvcignore", *more):
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        if (REPOSITORY / name).is_dir():
            shutil.copytree(REPOSITORY / name, target / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy2(REPOSITORY / name, target / name)
    return target
