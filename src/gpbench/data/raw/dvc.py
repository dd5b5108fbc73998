"""What of DVC is used: its cache, its remotes, and its command line."""

from __future__ import annotations

import configparser
import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from gpbench.errors import UserError
from gpbench.places import Places


def cached(md5: str, places: Places) -> Path:
    """Path of a file in DVC's cache, which `dvc cache dir` may have moved."""
    folder = places.root / ".dvc" / (_setting("cache", "dir", places) or "cache")
    return folder / "files" / "md5" / md5[:2] / md5[2:]


def remote(places: Places) -> str:
    """The remote to ask: GPBENCH_DVC_REMOTE, or the one that `dvc remote add -d` made the default; else nothing."""
    return os.environ.get("GPBENCH_DVC_REMOTE") or _setting("core", "remote", places)


def run(places: Places, items: Iterable[str], *words: str) -> subprocess.CompletedProcess[str]:
    """Run DVC on some items, waiting for its repository-wide lock instead of failing."""
    line = [sys.executable, "-m", "dvc", "--wait-for-lock", *words, *(f"data/raw/{item}" for item in items)]
    environment = os.environ | {"DVC_NO_ANALYTICS": "1"}
    return subprocess.run(
        line, cwd=places.root, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )


def last_line(done: subprocess.CompletedProcess[str]) -> str:
    """What DVC said last."""
    return (done.stderr.strip().splitlines() or ["no reason given"])[-1]


def _setting(section: str, key: str, places: Places) -> str:
    """A setting of the project, for everybody or in this checkout (later files win); empty where there is none."""
    parser = configparser.ConfigParser(interpolation=None, strict=False)
    try:
        parser.read([places.root / ".dvc" / name for name in ("config", "config.local")])
    except configparser.Error as error:
        raise UserError(f"{places.root / '.dvc'}: the configuration of DVC cannot be read: {error}") from error
    return parser.get(section, key, fallback="").strip("\"'")
