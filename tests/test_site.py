"""What the pages of the site are made of; the whole is built and checked by `make site` and `make site-test`."""

import importlib
import json
import math
import re
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import nbformat
import pandas as pd
import pytest
import yaml

import gpbench
from gpbench import config, places
from gpbench.report.significance.comparisons import differences_to_best
from gpbench.report.tables.render import Table
from gpbench.report.view import View
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
    monkeypatch.setitem(run.labels, first, "A & B </script>")
    text = runs._data([run]).split(">", 1)[1].removesuffix("</script>")
    assert "<" not in text, "nor a comment, in which a script would not end"
    data = json.loads(text, parse_constant=pytest.fail)[run.folder.name]
    assert data["labels"] == {first: "A & B </script>", second: run.labels[second]}
    assert data["pairs"] == [["mnll", "boston", first, second, -0.1, None, None, 1.0, 5]]


def test_the_page_of_a_run_shows_its_title_and_command_as_text(website, run, monkeypatch):
    import runs

    odd = "`<img src=x onerror=y>`` [x](javascript:y) | a"
    monkeypatch.setattr(run, "study", run.study | {"title": odd, "command": odd})
    text = runs.page(run, pd.DataFrame({"run": [], "n": []}), {})
    assert not any(part in text for part in ("<img", "](javascript", "y) | a"))


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

    (tmp_path / "good.html").write_text(
        '<link rel="canonical" href="https://example.org/good"><h1 id="top">x</h1><a name="old"></a>'
        '<a href="#top">a</a><a href="#old">a</a><a href="folder/#here">a</a><a href="https://example.org">b</a>'
    )
    (tmp_path / "404.html").write_text('<a href="/from/the/top/of/a/host">a</a>')
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "index.html").write_text('<p id="here">x</p>')
    assert faults(tmp_path) == []
    bad = (
        '<a href="good.html#none">a</a><a href="gone.html">b</a><img src="x.png"><script src="//cdn.org/x.js"></script>'
    )
    (tmp_path / "bad.html").write_text(bad)
    words = ("picture without", "loads //cdn.org", "nowhere: good.html#none", "nowhere: gone.html", "nowhere: x.png")
    assert [word for word in words if word not in " ".join(faults(tmp_path))] == []


@pytest.fixture
def hooks(website, monkeypatch):
    """What MkDocs, which only `make site` installs, would call."""
    for name in ("", ".config", ".config.defaults", ".structure", ".structure.files", ".structure.pages"):
        monkeypatch.setitem(sys.modules, f"mkdocs{name}", SimpleNamespace(MkDocsConfig=0, File=0, Files=0, Page=0))
    monkeypatch.setattr(sys, "path", [*sys.path])
    return importlib.import_module("hooks")


def test_links_and_tables_are_those_of_the_site(hooks):
    root = "[a](CONTRIBUTING.md) [b](docs/errata.md) [c](docs/../CHANGELOG.md)"
    assert hooks.relinked(root) == "[a](contributing.md) [b](errata.md) [c](changelog.md)"
    page = SimpleNamespace(file=SimpleNamespace(src_uri="api.md"))
    shown = hooks.on_page_markdown("[t](tour.ipynb) [r](results/a-1/) [w](https://x.org/y/)", page, None, None)
    assert shown == "[t](tour.md) [r](results/a-1/index.md) [w](https://x.org/y/)"
    framed = '<div class="scroll" tabindex="0"><table class="sortable">1</table></div><table id="cells">2</table>'
    assert hooks.on_page_content('<table>1</table><table id="cells">2</table>', None, None, None) == framed


def test_the_navigation_has_every_page_once_and_private_data_none(hooks, monkeypatch):
    entries = [SimpleNamespace(name=name, private=name == "mine") for name in ("boston", "mine")]
    of_data = SimpleNamespace(
        options=lambda _, group: [0, 1] if group == "dataset" else [], compose=lambda *of: entries[of[2]]
    )
    text = SimpleNamespace(page=lambda *_: "", index=lambda made: f"{len(made)}", explorer=lambda *_: "")
    text.functions, text.errata, text.modules, text.Catalogue = lambda: "", lambda _: "", lambda _: {}, lambda *_: None
    stubs = {"conf": of_data, "datasets": text, "methods": text, "runs": text, "reference_pages": text}
    stubs |= {"notebook": text, "nbformat": SimpleNamespace(read=lambda *_, **__: None), "made": {}}
    for name, stub in (stubs | {"committed": lambda _: [], "cells": lambda _: None}).items():
        monkeypatch.setattr(hooks, name, stub)
    sections = [{"Home": "index.md"}, {"Data sets": ["datasets/index.md"]}, {"Methods": []}]
    hooks.on_config(SimpleNamespace(nav=sections))
    assert sections[1:] == [
        {"Data sets": ["datasets/index.md", "datasets/boston.md"]},
        {"Methods": ["methods/index.md"]},
    ]
    assert hooks.made["datasets/index.md"] == "1"


def test_a_page_of_a_data_set_has_its_splits_traps_and_scores_by_protocol(website, run, monkeypatch):
    import datasets
    from records import cells

    where = places.find()
    few, default = (config.compose(where.conf, "study", name) for name in ("hensman2015_mcmc", "default"))
    studies = [few, default, replace(default, splits=99, splits_of={})]
    table = cells([run]).assign(dataset="mnist_5k")
    entry, many, two, one = (
        config.compose(where.conf, "dataset", n) for n in ("mnist_5k", "mnist_5k_completion", "energy", "boston")
    )
    monkeypatch.setattr(datasets, "surprises", lambda _: ["of `mnist_5k`", "of `mnist_5k_completion`"])
    page = datasets.page(entry, where, studies, pd.concat([table, table.assign(protocol="a first", mean=9.0)]), {})
    assert re.findall(r"^\| `\w+` \| `\w+` \| .* \| (\d+) \| none \|$", page, re.MULTILINE) == ["1", "3", "20"]
    assert re.findall(r"<td>(a first|ashman2020)</td>", page) == ["a first"] * len(table) + ["ashman2020"] * len(table)
    assert ("- of `mnist_5k`\n" in page, "completion" in page.split("## Traps")[1]) == (True, False)
    assert datasets._about(many)["targets"].startswith("200: ")
    assert datasets._about(two)["targets"] == "`heating_load`, `cooling_load`"
    line = f"| [boston](boston.md) | {one.title} | regression | 506 | 13 | none stated |\n"
    assert datasets.index([one]).endswith(line), "without what the licence says in brackets"


def test_the_configuration_of_the_name_of_a_module_comes_first(website, monkeypatch):
    import methods

    names = ["gp_cg_2016", "gp_pcg", "gp_pcg_2016"]
    monkeypatch.setattr(config, "options", lambda *_: names)
    (found,) = methods.modules(places.find()).values()
    assert [method.header.name for method in found] == ["gp_pcg", "gp_cg_2016", "gp_pcg_2016"]


def test_tables_of_runs_tell_what_is_done_from_what_is_not(website, run):
    import records

    table = records.cells([run])
    first = run.done[(run.done["method"] == table["method"][0]) & (run.done["dataset"] == table["dataset"][0])]
    assert table["seconds"][0] == sorted(first["seconds_train"])[1], "the middle of three"
    states = table.assign(improving=[1, 1, *[0] * 6], statuses=["", "1 failed", *[""] * 6])
    shown = records.scores(states).shown
    assert (shown["state"].to_list()[:3], "error rate" in shown) == (["↗ still improving", "1 failed", "done"], False)
    other = View(run.folder)
    other.fits = run.fits.assign(
        status=["failed", *run.fits["status"][1:]],
        reason=["of noise", *run.fits["reason"][1:]],
        family=["published" if i == 1 else family for i, family in enumerate(run.fits["family"])],
    )
    assert records._done(other) == "22 of 23"
    failed = run.fits.iloc[0]
    (row,) = records.failures([other], set(run.fits["preset"])).shown.to_dict("records")
    assert row == {"run": run.folder.name, "data set": failed["dataset"], "method": failed["label"]} | {
        "status": "failed", "reason": "of noise", "fits": "1"
    }  # fmt: skip
    unsettled = View(run.folder)
    unsettled.fits = run.fits.assign(status=["not converged", *run.fits["status"][1:]])
    for view in (other, unsettled):
        lost = {row[1] for row in records.pairs(run)} - {row[1] for row in records.pairs(view)}
        assert lost == {failed["dataset"]}, "a method without one of its splits is in no pair"
    assert [records._some(list("abcde")[:n]) for n in (4, 5)] == ["a, b, c, d", "a, b, c, d ... (5)"]
    of_pages = [View(Path(name)) for name in records.RUNS]
    for view in of_pages:
        view.study, view.fits, view.labels = run.study, run.fits, run.labels
    assert records.listed([run, *of_pages[::-1]]).data["run"].to_list() == [*records.RUNS, run.folder.name]
    assert any("](../" in item for item in records.surprises(places.find()))


def test_the_pair_that_is_shown_first_is_of_the_two_best(website, monkeypatch):
    import runs

    losses = pd.DataFrame({"a": [1.0, 1.0], "b": [3.0, 3.0], "c": [2.0, 2.0]})
    view = SimpleNamespace(
        folder=Path(runs.RUN), matrix=lambda _: losses, methods=list("abc"), study={"budget": "paper"}
    )
    view.labels = dict(zip("abc", "ABC", strict=True))
    rows = [["mnll", f"of {b}", "a", b, -1.0, -2.0, 0.5, 0.2, 7] for b in "bc"]
    monkeypatch.setattr(runs, "pairs", lambda _: [*rows, ["rmse", *rows[1][1:]]])
    box, table = runs._pair([view])
    assert f'data-pair="{runs.RUN} a c"' in box
    assert (table.count("of c"), "of b" in table) == (1, False)


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
