"""What the documentation shows of committed records is made of them, and nothing stale passes."""

from __future__ import annotations

import re
import shutil

import pandas as pd
import pytest

from gpbench.errors import UserError
from gpbench.report.export import documents
from gpbench.report.scorecard import all_runs
from projects import REPOSITORY


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """A project with the committed documents."""
    root = tmp_path_factory.mktemp("documents")
    for name in ("docs", "published", "conf"):
        shutil.copytree(REPOSITORY / name, root / name)
    shutil.copy(REPOSITORY / "README.md", root / "README.md")
    return root


def test_a_score_that_changes_makes_every_document_of_it_stale(root):
    path = root / "docs" / "results" / documents.RUN / "scores.csv"
    kept, scores = path.read_text(), pd.read_csv(path, dtype=str)
    done = scores.index[(scores["status"] == "done") & (scores["dataset"] == "yacht")][0]
    scores.loc[done, "mnll"] = "123.0"
    scores.to_csv(path, index=False)
    (root / "docs" / "scorecard" / "scorecard.png").unlink()
    with pytest.raises(UserError, match=r"run `make docs` and commit what it writes") as said:
        documents.check(root)
    path.write_text(kept)
    pictures = [f"figures/{name}.png" for name in documents.FIGURES]
    for name in ("regression_mnll.md", "ranks.md", "statistics.md", "scorecard/scorecard.png", *pictures):
        assert name in str(said.value)


def test_blocks_of_a_text_are_replaced_and_must_be_there():
    text = "a\n<!-- results -->\nold\n<!-- end -->\nb\n"
    made = documents.filled(text, {"results": "new\n"})
    assert made == "a\n<!-- results -->\nnew\n<!-- end -->\nb\n"
    assert documents.filled(made, {"results": "new\n"}) == made
    with pytest.raises(UserError, match="no block '<!-- scorecard -->"):
        documents.filled(text, {"scorecard": "x"})


def test_the_readme_counts_what_the_scorecard_says(root):
    card = pd.read_csv(root / "docs" / "scorecard" / "scorecard.csv")
    total = all_runs.counts(card).loc["all papers"]
    said = documents.verdicts(card)
    assert said.startswith(f"Of {len(card)} published numbers: {total['agrees']} agrees, {total['better']} better")
    assert sum(map(int, re.findall(r"\d+", said.split(":")[1]))) == len(card)
