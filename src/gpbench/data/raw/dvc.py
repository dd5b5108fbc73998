"""The parts of DVC that are used: its cache, its remotes and its command line."""

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
    return places.root / ".dvc" / (_setting("cache", "dir", places) or "cache") / "files" / "md5" / md5[:2] / md5[2:]


def remote(places: Places) -> str:
    """Name of the remote: GPBENCH_DVC_REMOTE, or the default of `dvc remote add -d`; empty if there is none."""
    return os.environ.get("GPBENCH_DVC_REMOTE") or _setting("core", "remote", places)


def run(places: Places, items: Iterable[str], *words: str) -> subprocess.CompletedProcess[bytes]:
    """Run DVC on some items, waiting for its repository-wide lock instead of failing."""
    line = [sys.executable, "-m", "dvc", "--wait-for-lock", *words, *(f"data/raw/{item}" for item in items)]
    env, stdin = os.environ | {"DVC_NO_ANALYTICS": "1"}, subprocess.DEVNULL
    return subprocess.run(line, cwd=places.root, env=env, stdin=stdin, capture_output=True, check=False)


def last_line(result: subprocess.CompletedProcess[bytes]) -> str:
    """The last line of DVC's error output that is no link alone."""
    lines = result.stderr.decode(errors="replace").strip().splitlines()
    return ["no reason given", *(line for line in lines if not line.startswith("<http"))][-1]


def _setting(section: str, key: str, places: Places) -> str:
    """A setting of the project or of this checkout, which takes precedence; empty if there is none."""
    parser = configparser.ConfigParser(interpolation=None, strict=False)
    try:
        parser.read([places.root / ".dvc" / name for name in ("config", "config.local")])
    except configparser.Error as error:
        raise UserError(f"{places.root / '.dvc'}: cannot read the configuration of DVC: {error}") from error
    return parser.get(section, key, fallback="").strip("\"'")
