"""Which commit a fit names, and when the tree counts as changed."""

import subprocess

from gpbench.study.storage import provenance


def test_records_of_results_are_no_change_of_the_tree(tmp_path):
    def git(*words):
        who = ("-c", "user.name=a", "-c", "user.email=a@b")
        subprocess.run(["git", "-C", str(tmp_path), *who, *words], check=True, capture_output=True)

    record, source = tmp_path / "docs/results/run/scores.csv", tmp_path / "method.py"
    record.parent.mkdir(parents=True)
    for path in (record, source):
        path.write_text("1\n")
    git("init")
    git("add", ".")
    git("commit", "-m", "first")
    for path, dirty in ((record, False), (source, True)):
        path.write_text("2\n")
        provenance.commit.cache_clear()
        assert provenance.commit(tmp_path).dirty is dirty
        assert len(provenance.commit(tmp_path).commit) == 40
    git("checkout", ".")
    for name, dirty in (("notes.txt", False), ("conf/dataset/mine.yaml", False), ("src/methods/mine.py", True)):
        (new := tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        new.write_text("1\n")
        provenance.commit.cache_clear()
        assert provenance.commit(tmp_path).dirty is dirty, name
    provenance.commit.cache_clear()
