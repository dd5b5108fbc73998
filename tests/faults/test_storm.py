"""Two minutes of a storm of faults: nothing is lost, no number moves, nothing ends in a traceback."""

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.slow
def test_a_short_storm_finds_nothing():
    """In a process of its own, which forks and moves to another project."""
    command = [sys.executable, str(Path(__file__).with_name("storm.py")), "--minutes", "2", "--seed", "0"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    print(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.endswith("found:\n  nothing\n")
