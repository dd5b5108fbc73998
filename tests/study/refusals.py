"""What the tests of bad input share: files before and after, and commands in processes of their own."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from pathlib import Path

from projects import REPOSITORY


def listing(folder: Path) -> set[tuple[str, str]]:
    """Every file with the md5 of its content, and every folder; logs and DVC's own apart."""
    return {
        (str(path.relative_to(folder)), hashlib.md5(path.read_bytes()).hexdigest() if path.is_file() else "folder")
        for path in folder.rglob("*")
        if not {"logs", ".dvc"} & set(path.parts)
    }


def call(root: Path, *words: str, **more: str) -> subprocess.CompletedProcess[str]:
    """A command of gpbench in a process of its own, with more in its environment."""
    kept = {"PATH": "/usr/bin:/bin", "HOME": str(root), "CI": "1", "OMP_NUM_THREADS": "1", "GPBENCH_ROOT": str(root)}
    kept |= {"PYTHONPATH": str(REPOSITORY / "src")} | more
    command = [sys.executable, "-m", "gpbench.cli", *words]
    return subprocess.run(command, env=kept, capture_output=True, encoding="utf-8", check=False, cwd=root)
