"""Which commit a fit names, and when the tree counts as changed; where and when it was made."""

import datetime
import os
import re
import subprocess
from pathlib import Path

from gpbench.study.records import Commit
from gpbench.study.storage import provenance


def test_records_of_results_are_no_change_of_the_tree(tmp_path):
    def git(*words):
        who = ("-c", "user.name=a", "-c", "user.email=a@b")
        subprocess.run(["git", "-C", str(tmp_path), *who, *words], check=True, capture_output=True)

    record, notes, source = (tmp_path / name for name in ("docs/results/run/scores.csv", "docs/a.md", "method.py"))
    record.parent.mkdir(parents=True)
    for path in (record, notes, source):
        path.write_text("1\n")
    git("init")
    git("add", ".")
    git("commit", "-m", "first")
    for path, dirty in ((record, False), (notes, True), (source, True)):
        path.write_text("2\n")
        provenance.commit.cache_clear()
        assert provenance.commit(tmp_path).dirty is dirty
        assert len(provenance.commit(tmp_path).commit) == 40
        git("checkout", ".")
    names = {"notes.txt": False, "conf/dataset/mine.yaml": False, "src/methods/mine.py": True}
    for name, dirty in (names | {"conf/method/mine.yaml": True, "published/claims/mine.yaml": True}).items():
        (new := tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        new.write_text("1\n")
        provenance.commit.cache_clear()
        assert provenance.commit(tmp_path).dirty is dirty, name
        if dirty:
            new.unlink()
    provenance.commit.cache_clear()


def test_without_git_or_a_repository_no_commit_is_named(tmp_path, monkeypatch):
    for path in (os.environ["PATH"], str(tmp_path)):
        monkeypatch.setenv("PATH", path)
        provenance.commit.cache_clear()
        assert provenance.commit(tmp_path) == Commit("", False)
    provenance.commit.cache_clear()


def test_a_fit_names_its_times_machine_and_job(tmp_path, monkeypatch):
    for name in provenance.JOB_NUMBERS:
        monkeypatch.delenv(name, raising=False)
    assert provenance.since("", tmp_path).job == ""
    monkeypatch.setenv("PBS_JOBID", "7")
    monkeypatch.setenv("JOB_ID", "9")
    cores = "processor\t: 0\nvendor_id\t: Maker\nmodel name\t: Fast (R): 2 GHz\n"
    monkeypatch.setattr(Path, "read_text", lambda *_, **__: cores)
    provenance._processor.cache_clear()
    made = provenance.since("2026-01-02T03:04:05.678+00:00", tmp_path, "a GPU")
    provenance._processor.cache_clear()
    assert (made.started, made.job, made.gpu) == ("2026-01-02T03:04:05.678+00:00", "7", "a GPU")
    assert made.processor == "Fast (R): 2 GHz"
    assert re.fullmatch(r"[\d-]{10}T[\d:]{8}\.\d{3}\+00:00", made.ended), "texts of one format sort as times"
    since = datetime.datetime.now(datetime.UTC) - datetime.datetime.fromisoformat(made.ended)
    assert abs(since.total_seconds()) < 60
