"""Commands in processes of their own whose locale is ASCII: files are UTF-8 all the same, as is what is printed."""

import csv
import shutil

import pytest
from refusals import call

from projects import REPOSITORY

ASCII = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
RUN = "cutajar2016_preconditioners-3f0e84"
"""Committed records with a method called Nyström."""


@pytest.fixture
def said(project):
    """Run a command that ends well; what it printed."""

    def run(*words: str, **more: str) -> str:
        done = call(project, *words, **ASCII | more)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


def test_files_are_read_and_shown(project, said):
    shutil.copytree(REPOSITORY / "docs" / "results" / RUN, project / "docs" / "results" / RUN)
    assert "docs/results: 1 run, 0 damaged ones" in said("verify")
    assert " done " in said("plan", RUN)
    assert "Tüfekci, Pınar" in said("data", "show", "power")
    assert "Fusi, Nicolò" in said("cite", "--set", "methods=[svgp]")


def test_classes_with_other_letters_are_added_fitted_and_predicted(project, said):
    with (project / "mine.csv").open("w", newline="", encoding="utf-8") as stream:
        csv.writer(stream).writerows([("größe", "y"), *((i % 5, "grün" if i % 5 > 2 else "weiß") for i in range(40))])
    assert "binary of 'grün', 'weiß', 40 rows x 1 inputs" in said("data", "add", "mine.csv", "--target", "y")
    entry = project / "conf" / "dataset" / "mine.yaml"
    entry.write_text(entry.read_text(encoding="utf-8").replace("title: mine", "title: Größe"), encoding="utf-8")
    assert "Größe (binary, 40 x 1)" in said("list", "datasets")
    said("fit", "method=constant", "dataset=mine", "split=all")
    assert said("predict", "constant/mine", "mine.csv", "--out", "out.csv") == "out.csv: 40 rows of p_grün, p_weiß\n"
    answer = (project / "out.csv").read_text(encoding="utf-8")
    for encoding in ("", "ascii"):
        assert said("predict", "constant/mine", "mine.csv", PYTHONIOENCODING=encoding) == answer
