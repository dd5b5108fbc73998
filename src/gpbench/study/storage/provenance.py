"""Where a result comes from: commit, machine, time. Recorded with every fit, never part of its identity."""

from __future__ import annotations

import datetime
import functools
import os
import platform
import subprocess
from pathlib import Path
from typing import Any


@functools.cache
def commit(root: Path) -> dict[str, Any]:
    """Git commit of the project and whether tracked files differ from it; empty outside a git checkout."""

    def git(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(["git", "-C", str(root), *words], capture_output=True, text=True, check=False)

    try:
        head = git("rev-parse", "HEAD")
    except FileNotFoundError:
        return {"commit": "", "dirty": False}
    if head.returncode:
        return {"commit": "", "dirty": False}
    return {"commit": head.stdout.strip(), "dirty": bool(git("status", "--porcelain", "-uno").stdout.strip())}


def machine() -> dict[str, Any]:
    """Processor, cores, system and Python."""
    return {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "system": platform.platform(),
        "python": platform.python_version(),
    }


@functools.cache
def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())


def now() -> str:
    """UTC time, ISO 8601."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")
