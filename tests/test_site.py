"""What the pages of the site are made of; the whole is built and checked by `make site` and `make site-test`."""

import json
import math
import re
import sys

import nbformat
import pandas as pd
import pytest
import yaml

import gpbench
from gpbench import config, places
from gpbench.report.significance.comparisons import differences_to_best
from gpbench.report.tables.render import Table
from projects import REPOSITORY

WEBSITE = REPOSITORY / "docs" / "website"


@pytest.fixture(scope="module", autouse=True)
def website():
    """The generator's modules, which import each other by their short names."""
    sys.path[:0] = [str(WEBSITE), str(WEBSITE.parent)]
    yield
    del sys.path[:2]


@pytest.fixture(scope="module")
def run(website, tmp_path_factory):
    from records import committed

    name, folder = "ashman2020_uci-70f21d", tmp_path_factory.mktemp("results")
    (folder / name).symlink_to(REPOSITORY / "docs" / "results" / name)
    (view,) = committed(folder)
    return view


def test_a_page_of_a_method_has_equations_settings_with_meanings_and_scores(website, run):
    import methods
    from records import cells

    where = places.find()
    group = [config.compose(where.conf, "method", name) for name in ("dsvi", "dsvi_2020")]
    links = {"boston": "datasets/boston.html"}
    every = [config.hyperparameters(f"gpbench.methods.{name}") for name in ("dsvi", "svgp")]
    page = methods.page("dsvi", group, methods.Catalogue(where, cells([run]), [run], links, every))
    assert page.startswith("# DSVI (`dsvi`)")
    assert "elbo" in page.split("## Configurations")[0]
    assert "| a formula of `gp.kernels` |" in page  # explained by the class that shares the setting
    assert '<a href="../datasets/boston.html">boston</a>' in page
    assert "class Method(" in page


def test_docstrings_explain_settings_one_by_one(website):
    from methods import explained

    doc = "Settings of x2013; size null: all. rate, decay: of Adam, all: both; walk: along psi (start: no). start: 0."
    assert explained(doc, ["size", "rate", "decay", "walk", "start"]) == {
        "size": "null: all",
        "rate": "of Adam, all: both",
        "decay": "of Adam, all: both",
        "walk": "along psi (start: no)",
        "start": "0",
    }


def test_pairs_are_the_differences_of_the_report(website, run):
    from records import pairs

    found = {(metric, dataset, a, b): values for metric, dataset, a, b, *values in pairs(run)}
    dataset = run.datasets_of("regression")[0]
    expected = differences_to_best(run, "mnll", dataset)
    assert len(expected)
    for row in expected.itertuples():
        key = ("mnll", dataset, row.method, row.best)
        sign = 1 if key in found else -1
        values = found.get(key) or found["mnll", dataset, row.best, row.method]
        assert values[0] == pytest.approx(sign * row.difference, rel=1e-3)
        assert sorted(sign * x for x in values[1:3]) == pytest.approx([row.lower, row.upper], rel=1e-3)


def test_what_the_script_pairs_is_json_with_labels_as_they_are(website, run, monkeypatch):
    import runs

    first, second = run.methods[:2]
    row = ["mnll", "boston", first, second, -0.1, -math.inf, math.inf, 1.0, 5]
    monkeypatch.setattr(runs, "pairs", lambda view: [row])
    monkeypatch.setitem(run.labels, first, "A & B")
    text = runs._data([run]).split(">", 1)[1].removesuffix("</script>")
    data = json.loads(text, parse_constant=pytest.fail)[run.folder.name]
    assert data["labels"] == {first: "A & B", second: run.labels[second]}
    assert data["pairs"] == [["mnll", "boston", first, second, -0.1, None, None, 1.0, 5]]


def test_only_cells_that_name_a_page_are_links(website):
    from records import linked

    frame = pd.DataFrame({"data set": ["boston", "own"], "text": ["<b>", "boston too"]})
    text = linked(Table(frame, frame, "boston"), {"boston": "datasets/boston.html"}, "../")
    assert text.count("<a ") == 1
    assert '<td><a href="../datasets/boston.html">boston</a></td>' in text
    assert "<td>own</td>" in text
    assert "&lt;b&gt;" in text


def test_the_link_checker_finds_what_is_wrong(website, tmp_path):
    from links import faults

    (tmp_path / "good.html").write_text('<h1 id="top">x</h1><a href="#top">a</a><a href="https://example.org">b</a>')
    assert faults(tmp_path) == []
    bad = (
        '<a href="good.html#none">a</a><a href="gone.html">b</a><img src="x.png"><script src="//cdn.org/x.js"></script>'
    )
    (tmp_path / "bad.html").write_text(bad)
    words = ("picture without", "loads //cdn.org", "nowhere: good.html#none", "nowhere: gone.html", "nowhere: x.png")
    assert [word for word in words if word not in " ".join(faults(tmp_path))] == []


def test_the_tour_is_committed_without_outputs_and_its_pages_show_them(website):
    from notebook import TOUR, page

    tour = nbformat.read(TOUR, as_version=4)
    nbformat.validate(tour)
    code = [cell for cell in tour.cells if cell.cell_type == "code"]
    assert len(code) > 5
    assert [cell.outputs for cell in code if cell.outputs or cell.execution_count] == []
    table = {"text/html": '<div><table border="1" class="dataframe">\n\n  <tr><td>7</td></tr></table></div>'}
    outputs = [
        nbformat.v4.new_output("stream", name="stderr", text="progress"),
        nbformat.v4.new_output("stream", name="stdout", text="\x1b[31mred\x1b[0m\n"),
        nbformat.v4.new_output("display_data", table),
        nbformat.v4.new_output("display_data", {"image/png": "iVBORw0KGgo=\n"}),
    ]
    shown = page(
        nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("1", outputs=outputs, metadata={"alt": "A"})])
    )
    assert "progress" not in shown
    assert "```text\nred\n```" in shown
    assert '<table class="frame">\n<tr><td>7</td></tr></table>' in shown
    assert '<img alt="A" src="data:image/png;base64,iVBORw0KGgo=">' in shown


def test_the_messages_of_the_troubleshooting_page_are_in_the_code():
    """All parts of a message in one file; one is Snakemake's."""
    text = (REPOSITORY / "docs" / "troubleshooting.md").read_text()
    messages = [m for cell in re.findall(r"^\| (.+?) \| ", text, re.MULTILINE) for m in re.findall(r"`([^`]+)`", cell)]
    assert len(messages) > 30
    files = [path.read_text().replace("`", "") for path in (REPOSITORY / "src").rglob("*.py")]
    parts = {message: [part.strip() for part in message.split("…")] for message in messages}
    absent = [m for m in messages if not any(all(part in file for part in parts[m]) for file in files)]
    assert absent == ["Directory cannot be locked"]


def test_the_schema_of_the_workflow_names_what_the_workflow_reads():
    schema = yaml.safe_load((REPOSITORY / "workflows" / "config.schema.yaml").read_text())
    read = re.findall(r'config(?:\.get\(|\[)"(\w+)"', (REPOSITORY / "Snakefile").read_text())
    assert set(read) == set(schema["properties"])
    assert all(about["description"] for about in schema["properties"].values())


def test_the_page_of_functions_has_what_the_package_offers_and_nothing_else(website):
    import reference_pages

    page = reference_pages.functions()
    assert set(re.findall(r"^## (\w+)$", page, re.MULTILINE)) == {*gpbench._API, *gpbench._ESTIMATORS}
    assert "    split: int | str = 0,\n    **settings: Any,\n) -> pd.Series\n" in page
