"""Output of a job goes to the terminal and to its log, also while the job is being ended."""

import os
import signal
import subprocess
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from projects import REPOSITORY


@pytest.fixture
def shell(tmp_path: Path):
    """Start a command as a rule does: in Bash's strict mode, with the log `log.txt`."""
    names = {"GRAPH": SimpleNamespace(name="study")}
    exec((REPOSITORY / "workflows/rules/common.smk").read_text(), names)

    def start(command: str) -> subprocess.Popen[str]:
        line = "set -euo pipefail; " + names["logged"](command).format(log=tmp_path / "log.txt")
        # a test run in the background ignores Ctrl-C, and what it starts would inherit that
        unignored = {"preexec_fn": lambda: signal.signal(signal.SIGINT, signal.SIG_DFL), "start_new_session": True}
        return subprocess.Popen(["bash", "-c", line], stdout=subprocess.PIPE, text=True, **unignored)

    return start


def test_a_failing_job_keeps_its_status_and_shows_its_message(shell, tmp_path):
    job = shell("echo 'gpbench: unknown method' >&2; exit 3")
    assert job.communicate()[0] == "gpbench: unknown method\n"
    assert job.returncode == 3
    assert (tmp_path / "log.txt").read_text() == "gpbench: unknown method\n"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_what_a_job_prints_while_it_ends_is_logged(shell, tmp_path, number):
    job = shell(f"trap 'echo checkpoint written; exit 0' {number}; echo started; while :; do sleep 0.05; done")
    log, deadline = tmp_path / "log.txt", time.monotonic() + 30
    while not (log.is_file() and log.read_text()):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    os.killpg(job.pid, number)
    job.communicate(timeout=30)
    assert log.read_text().endswith("checkpoint written\n")
