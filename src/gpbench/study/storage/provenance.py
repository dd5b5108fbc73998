"""Where a result comes from: commit, machine, time. Recorded with every fit, never part of its identity."""

import datetime
import functools
import os
import platform
import subprocess
from dataclasses import asdict
from pathlib import Path

from gpbench.study.records import Commit, Machine, Provenance

JOB_NUMBERS = ("SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID", "JOB_ID")
"""Where schedulers say which job this is: Slurm, PBS, LSF, Grid Engine."""


@functools.cache
def commit(root: Path) -> Commit:
    """The commit that a project folder is at, and whether its files are others: changed ones, and new ones of the code,
    settings and printed numbers. Records of results, which runs write themselves, and new entries of data sets, whose
    md5 a fit names, are no change."""

    def git(*words: str) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(["git", "-C", str(root), *words], capture_output=True, check=False)

    try:
        head = git("rev-parse", "HEAD")
        head.check_returncode()
    except (FileNotFoundError, subprocess.CalledProcessError):  # there is no git, or no commit
        return Commit("", False)
    changed = git("status", "--porcelain", "-uno", ".", ":!docs/results")
    new = git("status", "--porcelain", "-uall", "src", "conf", "published", ":!conf/dataset")
    return Commit(head.stdout.decode().strip(), bool(changed.stdout.strip() or new.stdout.strip()))


def machine() -> Machine:
    """This machine."""
    return Machine(_processor(), os.cpu_count(), platform.platform(), platform.python_version())


@functools.cache
def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())


def since(started: str, root: Path, gpu: str = "") -> Provenance:
    """Of what began at a time and ends now; gpu: the name of that which it ran on."""
    job = next((os.environ[name] for name in JOB_NUMBERS if name in os.environ), "")
    here = asdict(commit(root)) | asdict(machine())
    return Provenance(started=started, ended=now(), host=platform.node(), job=job, gpu=gpu, **here)


def now() -> str:
    """UTC time, ISO 8601."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")
