"""Plugin packages as pip would install them, without pip."""

import importlib
import os
import tomllib
from pathlib import Path

import pytest

PYPROJECT = """
[project]
name = "{name}"
version = "0"
[project.entry-points."gpbench.conf"]
{name} = "{name}"
"""


def empty(root: Path, name: str) -> Path:
    """A folder with a plugin package without any method; the package."""
    (root / name).mkdir()
    (root / name / "__init__.py").touch()
    (root / "pyproject.toml").write_text(PYPROJECT.format(name=name))
    return root / name


def install(plugin: Path, target: Path, patch: pytest.MonkeyPatch) -> str:
    """Make the package in the folder `plugin` known to this process; the PYTHONPATH that does so for others.

    target: a new folder for the metadata that pip would write."""
    project = tomllib.loads((plugin / "pyproject.toml").read_text())["project"]
    info = target / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n")
    lines = [f"{name} = {value}" for name, value in project["entry-points"]["gpbench.conf"].items()]
    (info / "entry_points.txt").write_text("\n".join(["[gpbench.conf]", *lines, ""]))
    for folder in (plugin, target):
        patch.syspath_prepend(folder)
    importlib.invalidate_caches()
    return os.pathsep.join([str(plugin), str(target), *filter(None, [os.environ.get("PYTHONPATH")])])
