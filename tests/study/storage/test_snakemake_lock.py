"""Who may free Snakemake's lock."""

import json

import pytest

from gpbench.errors import UserError
from gpbench.study.storage import snakemake_lock


def test_the_lock_of_another_machine_is_not_freed_from_here(tmp_path):
    """A process of that number may well live there."""
    snakemake_lock.take(tmp_path)
    (tmp_path / ".snakemake/locks").mkdir()
    (tmp_path / ".snakemake/locks/0.input.lock").touch()
    path = tmp_path / ".snakemake/gpbench-owner.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"host": "login1", "pid": 2**22 + 1}))
    with pytest.raises(UserError, match="in use by snakemake on login1 .*; run `gpbench unlock` there, or `snakemake"):
        snakemake_lock.unlock(tmp_path)
    path.write_text(json.dumps({"pid": 2**22 + 1, "started": 0.0}))  # as an earlier edition wrote it
    assert snakemake_lock.unlock(tmp_path) == "freed the lock of a run that was killed"
