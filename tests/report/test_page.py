import json
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
from synthetic_study import build

from gpbench.report.__main__ import main
from gpbench.report.statistics import differences_to_best, indistinct_groups, statistics, write_statistics
from gpbench.report.view import View

PUBLISHED = Path(__file__).parents[2] / "published"


def one_failure(method, dataset, split):
    return ("failed", "a <b> & c") if (dataset, split) == ("boston", 2) else ("done", "")


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """A small study with one failed fit, and every output that the page takes up but one figure."""
    folder = tmp_path_factory.mktemp("page") / "tiny"
    build(folder, ["svgp", "constant"], ["boston", "banana"], 3, one_failure)
    for name in ("status", "unfinished", "regression_mnll", "ranks", "cost"):
        assert main(["table", str(folder), name]) == 0
    assert main(["figure", str(folder), "cost"]) == 0
    assert main(["statistics", str(folder)]) == 0
    assert main(["scorecard", str(folder), "--published", str(PUBLISHED)]) == 0
    assert main(["page", str(folder)]) == 0
    return folder


def test_page_holds_its_parts_and_needs_no_other_file(written):
    page = (written / "report.html").read_text()
    for part in ("Fits by status", "a &lt;b&gt; &amp; c", "Mean ranks", "Published numbers", "0123abc", "git checkout"):
        assert part in page
    assert page.count("data:image/png;base64,") == 1
    assert "convergence.png was not written" in page
    title = json.loads((written / "study.json").read_text())["title"]
    assert page.count(f"Study: {title}.") == page.count("<figcaption>")
    assert 'src="http' not in page
    assert "<link" not in page


def test_failures_come_before_scores(written):
    page = (written / "report.html").read_text()
    assert page.index("Fits that are not done, or not converged (2)") < page.index("Regression: MNLL on test rows")


def test_statistics_json_is_strict_and_complete(view, tmp_path):
    write_statistics(view, tmp_path)
    found = json.loads((tmp_path / "statistics.json").read_text(), parse_constant=pytest.fail)
    regression = found["comparisons"]["regression_mnll"]
    assert set(regression["dropped_methods"]) == {"dsvi", "bsgp_2", "dgp_rff"}
    # Iman and Davenport's F is infinite where all data sets agree
    assert regression["friedman"]["f"] is None
    assert "cannot suffice" in (tmp_path / "statistics.md").read_text()


def test_statistics_of_one_method_give_a_reason(tmp_path):
    found = statistics(View(build(tmp_path / "one", ["svgp"], ["boston"], 2)))
    assert found["differences"] == []
    assert "1 data set x 1 method complete" in found["comparisons"]["all_mnll"]["reason"]


def test_differences_are_to_the_best_and_use_complete_methods(view):
    found = differences_to_best(view, "mnll", "boston")
    assert set(found["best"]) == {"dsvi"}
    assert "bsgp_2" not in set(found["method"]), "one split diverged"
    assert (found["difference"] > 0).all()


def test_groups_are_maximal_runs_without_a_rejected_pair():
    pairs = pd.DataFrame([("a", "c", True), ("a", "b", False), ("b", "c", False), ("a", "d", True), ("b", "d", True)])
    pairs.columns = ["a", "b", "reject"]
    assert indistinct_groups(["a", "b", "c", "d"], pairs) == [["a", "b"], ["b", "c"], ["c", "d"]]


def test_user_errors_are_one_line(tmp_path, capsys):
    assert main(["table", str(tmp_path), "ranks"]) == 1
    error = capsys.readouterr().err
    assert error.startswith("gpbench: ")
    assert error.count("\n") == 1
    assert "study.json is missing" in error or "scores.parquet is missing" in error


def test_listing_names_imports_no_heavy_library():
    code = "import sys, gpbench.report; print({'pandas', 'matplotlib', 'torch', 'numpy'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_tables_do_not_import_matplotlib_or_torch():
    code = "import sys, gpbench.report.tables; print({'matplotlib', 'torch', 'jinja2'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
