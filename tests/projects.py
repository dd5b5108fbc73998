"""Copies of this repository's project files, for tests that write."""

import hashlib
import shutil
from pathlib import Path

import yaml

from gpbench import config
from gpbench.data.prepare import prepare
from gpbench.places import Places

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


def pin(project: Path, name: str, content: str) -> None:
    """Put a raw file into data/raw of a project, and its pin into data.dvc."""
    (project / "data/raw").mkdir(parents=True, exist_ok=True)
    (project / "data/raw" / name).write_text(content)
    pins = yaml.safe_load((project / "data.dvc").read_text())
    md5 = hashlib.md5(content.encode()).hexdigest()
    pins["outs"].append({"path": name, "md5": md5, "size": len(content), "hash": "md5"})
    (project / "data.dvc").write_text(yaml.safe_dump(pins))


def prepared_project(root: Path, *datasets: str) -> Places:
    """A new project at `root` with some prepared data sets."""
    where = Places(copy_project(root), root / "store")
    where.store.mkdir()
    for dataset in datasets:
        prepare(config.compose(where.conf, "dataset", dataset), where)
    return where
