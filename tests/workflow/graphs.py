"""A project of its own for tests of the real graph."""

from __future__ import annotations

import contextlib
import io
import os
import subprocess
import sys
from pathlib import Path
from unittest import mock

from gpbench.cli import main
from projects import copy_project

SNAKEMAKE = ("snakemake", "--cores", "2")
PARTS = ("Snakefile", "workflows", "published", "src/gpbench")


class Project:
    """A project folder with some data sets and one protocol, and commands run in it with the package as it is there."""

    said: dict[str, tuple[int, str]]
    """exit status and output of the commands that made it"""

    def __init__(self, root: Path, study: str, *datasets: str) -> None:
        self.study = study
        self.root = copy_project(root, *PARTS)
        # Snakemake reads every entry whenever it starts
        for group, names in (("dataset", datasets), ("protocol", ("common",))):
            for path in (root / "conf" / group).glob("*.yaml"):
                if path.stem not in names:
                    path.unlink()
        (root / "profiles").mkdir()
        (root / "profiles/default").symlink_to("../workflows/profiles/default")
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("GPBENCH", "MLFLOW", "PYTEST"))}
        self.environment = kept | {"PYTHONPATH": str(root / "src"), "OMP_NUM_THREADS": "1", "CI": "1"}

    def start(self, *words: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", *words]
        streams = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        return subprocess.Popen(command, cwd=self.root, env=self.environment, start_new_session=True, **streams)

    def call(self, *words: str) -> tuple[int, str]:
        process = self.start(*words)
        out = process.communicate(timeout=900)[0]
        return process.returncode, out

    def snakemake(self, *words: str, overrides: str = "") -> tuple[int, str]:
        """Run the study, or another one."""
        return self.call(*SNAKEMAKE, *words, "--config", f"overrides={overrides or self.study}")

    def gpbench(self, *words: str) -> tuple[int, str]:
        """A command that does not need the package of the project, in this process."""
        said = io.StringIO()
        with (
            contextlib.chdir(self.root),
            mock.patch.dict(os.environ, self.environment, clear=True),
            contextlib.redirect_stdout(said),
            contextlib.redirect_stderr(said),
        ):
            return main.main(list(words)), said.getvalue()

    def fits(self) -> set[str]:
        return {path.parent.name for path in self.root.glob("store/[0-9a-f]*/fit.json")}

    def files(self) -> dict[str, int]:
        """Every file with its time, but Snakemake's own and the lists of what was to be run."""
        return {
            str(path.relative_to(self.root)): path.stat().st_mtime_ns
            for path in self.root.rglob("*")
            if path.is_file() and not {".snakemake", "__pycache__", "graphs"} & set(path.parts)
        }
