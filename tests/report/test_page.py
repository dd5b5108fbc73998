import json
import re
import shutil
import subprocess
import sys

import pandas as pd
import pytest
from html_page import Page, png_size
from synthetic_samplers import build_samplers
from synthetic_study import all_done, build, change_scores, change_study

from gpbench.report import figures, registry
from gpbench.report.__main__ import main
from gpbench.report.page import facts
from gpbench.report.page import page as pages
from gpbench.report.significance.comparisons import differences_to_best, indistinct_groups, statistics, write_statistics
from gpbench.report.tables import standard
from gpbench.report.tables.render import Table, leading_number, to_html
from gpbench.report.view import View
from gpbench.study.planning.plan import snakemake_command


def one_failure(method, dataset, split):
    return ("failed", "a <b> & c") if (dataset, split) == ("boston", 2) else ("done", "")


@pytest.fixture(scope="module")
def written(tmp_path_factory, published):
    """A small study with one failed fit, and every output that the page takes up but most figures."""
    folder = tmp_path_factory.mktemp("page") / "tiny"
    build(folder, ["dsvi", "constant"], ["boston", "banana"], 3, one_failure)
    for name in ("status", "unfinished", "regression_mnll", "regression_rmse", "ranks", "cost"):
        assert main(["table", str(folder), name]) == 0
    assert main(["figure", str(folder), "cost", "scorecard"]) == 0
    assert main(["statistics", str(folder)]) == 0
    assert main(["scorecard", str(folder), "--published", str(published)]) == 0
    assert main(["page", str(folder)]) == 0
    return folder


@pytest.fixture(scope="module")
def page(written):
    return (written / "report.html").read_text()


def test_page_holds_its_parts(written, page):
    for part in ("Fits by status", "a &lt;b&gt; &amp; c", "Mean ranks", "Published numbers", "0123abc", "git checkout"):
        assert part in page
    assert "convergence (its file was not written)" in page
    title = json.loads((written / "study.json").read_text())["title"]
    assert page.count(f"Study: {title}.") == page.count("<figcaption>") == 1
    assert "protocol common, budget quick, 3 splits; fits of commit 0123abc." in page.lower()


@pytest.mark.parametrize(("what", "module"), [("table", standard), ("figure", figures)])
def test_one_that_changes_its_results_changes_no_other(written, monkeypatch, what, module):
    """A figure of one's own, say, that turns the sign of a column."""
    seen = []

    def careless(view, name, folder):
        seen.append(view.done["mnll"].tolist())
        view.done["mnll"] = -view.done["mnll"]

    monkeypatch.setattr(module, f"write_{what}", careless)
    assert main([what, str(written), "cost", "scorecard"]) == 0
    assert seen[0] == seen[1]


def test_page_needs_no_other_file_and_breaks_no_link(page):
    found = Page(page)
    assert found.open == []
    assert len(found.ids) == len(set(found.ids))
    assert {link.removeprefix("#") for link in found.links} <= set(found.ids)
    assert {f"#{name}" for name in found.ids if not name.startswith("figure-")} == set(found.links)
    assert all(address.startswith(("#", "data:")) for address in found.addresses)
    assert "@import" not in page
    assert "url(" not in page
    (picture,) = found.pictures
    assert png_size(picture["src"]) == (2 * int(picture["width"]), 2 * int(picture["height"]))
    assert picture["alt"].startswith("Cost: Training seconds per fit")


def test_a_figure_that_shows_nothing_is_named_with_its_reason(written, page):
    reason = figures.noted(written / "figures" / "scorecard.png", "Description")
    assert reason.startswith("No published number")
    assert f"scorecard ({reason.rstrip('.')})." in page, "one full stop"
    assert figures.noted(written / "figures" / "cost.png", "Description") == ""


def test_sections_that_do_not_apply_are_left_out(page):
    ids = Page(page).ids
    assert {"summary", "status", "scores", "ranking", "cost", "provenance", "citations"} <= set(ids)
    assert "chains" not in ids, "no sampler"
    assert "counts_mnll" not in page


def test_a_note_stands_once_below_tables_that_share_it_and_every_comparison_has_its_findings(written, page):
    assert page.count("Cells with unfinished splits are not compared") == 1
    titles = [title for title, _ in pages._findings(View(written))]
    parts = ["Regression, MNLL", "Regression, RMSE", "Classification, MNLL", "Classification, error rate"]
    assert titles == ["All data sets, MNLL", *parts]


def test_unfinished_fits_have_a_table_where_there_are_some(written, small_view):
    of_both = [pages.sections.tables(of, "status") for of in (View(written), small_view)]
    assert of_both == [["status", "unfinished"], ["status"]]


def test_nothing_is_ranked_where_samplers_are_run_for_their_efficiency(tmp_path):
    folder = build_samplers(tmp_path / "sampled", datasets=("boston",), splits=1)
    write_statistics(View(folder), folder)
    assert main(["table", str(folder), "efficiency"]) == 0
    assert main(["page", str(folder)]) == 0
    ids = Page((folder / "report.html").read_text()).ids
    assert {"chains", "summary"} <= set(ids)
    assert {"ranking", "differences", "scores"}.isdisjoint(ids)


def test_failures_come_before_scores(page):
    title = "Fits that are not done or have not converged: 2 failed"
    assert page.index(title) < page.index("Regression: MNLL on test rows")


def test_figures_say_the_command_that_makes_them(written, page):
    name = f"results/{written.name}"
    assert f"snakemake {name}/figures/cost.pdf --cores 2 --config study={written.name}" in page


def test_a_run_is_cited_by_its_study_and_its_overrides(written):
    view = View(written)
    view.study["name"], view.study["command"] = "my-own-0123ab", snakemake_command("my-own", "splits=3 only=[linear]")
    cite, crate = dict(facts.commands(view))["How to cite and share it"].splitlines()
    assert cite == "gpbench cite my-own --overrides 'only=[linear] splits=3'"
    assert crate == "gpbench crate my-own-0123ab"


def test_splits_are_those_of_each_data_set(written):
    view = View(written)
    view.fits = view.fits[(view.fits["dataset"] != "boston") | (view.fits["split"] == 0)]
    assert dict(facts.summary(view))["splits"] == "1 to 3 splits"
    assert "1 to 3 splits cannot tell methods apart on a data set; take 3 or more." in facts.warnings(view)


def test_page_of_committed_records_is_complete(written, published, tmp_path, monkeypatch):
    monkeypatch.setattr(registry, "FIGURES", {name: registry.FIGURES[name] for name in ("calibration", "cost")})
    folder = tmp_path / "records"
    folder.mkdir()
    shutil.copy(written / "study.json", folder)
    pd.read_parquet(written / "scores.parquet").to_csv(folder / "scores.csv", index=False)
    assert main(["page", str(folder), "--published", str(published)]) == 0
    assert {path.name for path in folder.iterdir()} == {"study.json", "scores.csv", "report.html"}
    made = (folder / "report.html").read_text()
    assert "was not written" not in made
    assert {"figure-cost", "scorecard"} <= set(Page(made).ids)
    assert "figure-calibration" not in Page(made).ids, "records hold no test points"


def test_a_page_of_committed_records_compares_them_with_those_at_other_budgets(published, tmp_path, monkeypatch):
    monkeypatch.setattr(registry, "FIGURES", {"rank_by_budget": registry.FIGURES["rank_by_budget"]})
    monkeypatch.setattr(registry, "TABLES", {})
    for budget in ("quick", "paper"):
        folder = build(tmp_path / budget, ["svgp", "constant"], ["boston"], 2, all_done)
        change_scores(folder, budget=budget)
        change_study(folder, budget=budget, figures=["rank_by_budget"])
        pd.read_parquet(folder / "scores.parquet").to_csv(folder / "scores.csv", index=False)
    page = pages.write_page(View(tmp_path / "paper"), tmp_path, published)
    assert "figure-rank_by_budget" in Page(page.read_text()).ids


@pytest.mark.parametrize(
    ("text", "value"),
    [
        *(("2.31 ± 0.02 (5)", 2.31), ("−0.5", -0.5), ("-1.2e-05 ≈", -1.2e-5), ("1,030", 1030), ("4/5, stopped", 4)),
        *(("< 0.0001", 1e-4), ("+0.01 [-0.1, 0.2]", 0.01), ("95 %", 95), ("3-layer DGP", None), ("2024-01-01", None)),
        *(("failed: step 3", None), ("-", None), ("", None)),
    ],
)
def test_cells_are_sorted_by_their_first_number(text, value):
    assert leading_number(text) == value


def test_a_bold_cell_is_sorted_by_its_number():
    frame = pd.DataFrame({"method": ["a", "b"], "score": ["**2.5 ± 0.1 (3)**", "skipped"]})
    table = to_html(Table(frame, frame, "caption"))
    assert '<td class="number" data-value="2.5"><strong>2.5 ± 0.1 (3)</strong></td>' in table
    assert "<td>skipped</td>" in table


def test_statistics_json_is_strict_and_complete(statistics_folder):
    found = json.loads((statistics_folder / "statistics.json").read_text(), parse_constant=pytest.fail)
    regression = found["comparisons"]["regression_mnll"]
    assert {row["name"] for row in regression["dropped"]} == {"dsvi", "bsgp_2", "dgp_rff"}
    # Iman and Davenport's F is infinite where all data sets agree
    assert regression["friedman"]["f"] is None
    assert "cannot suffice" in (statistics_folder / "statistics.md").read_text()
    paired = {(row["metric"], row["dataset"]) for row in found["differences"]}
    assert {("mnll", "boston"), ("mnll", "digits"), ("rmse", "boston"), ("error", "banana")} <= paired
    assert {("rmse", "banana"), ("error", "boston")}.isdisjoint(paired)


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


@pytest.mark.parametrize("content", ["", "[]", "null", "{}", '{"comparisons": '])
def test_damaged_statistics_are_one_line_and_the_page_stays(written, capsys, content):
    path, page = written / "statistics.json", written / "report.html"
    kept, before = path.read_text(), page.read_bytes()
    path.write_text(content)
    capsys.readouterr()
    try:
        assert main(["page", str(written)]) == 1
    finally:
        path.write_text(kept)
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "statistics.json is damaged (" in error
    assert "delete it, and snakemake makes it again" in error
    assert page.read_bytes() == before


def test_the_registry_and_tables_import_no_heavy_library():
    code = (
        "import sys, gpbench.report.registry; print({'pandas', 'matplotlib', 'torch', 'numpy'} & set(sys.modules))\n"
        "import gpbench.report.tables.standard; print({'matplotlib', 'torch', 'jinja2'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["set()", "set()"]


def test_differences_stand_below_their_headings(small_view):
    row = {"dataset": "boston", "metric": "mnll", "method": "svgp", "best": "constant", "n": 3}
    text = pages._differences(small_view, [row | {"difference": 0.5, "lower": 0.25, "upper": 0.75, "p": 0.031}])
    shown = dict(zip(*(re.findall(rf"<{kind}(?: [^>]*)?>(.*?)<", text) for kind in ("th", "td")), strict=True))
    assert (shown["data set"], shown["metric"]) == ("boston", "mnll")
    assert (shown["method"], shown["best"], shown["splits"]) == ("SVGP", "Constant", "3")
    assert [float(shown[name]) for name in ("difference", "p")] == [0.5, 0.031]
    assert [float(end) for end in shown["95 % interval"].split(" to ")] == [0.25, 0.75]
