"""Figures and tables of papers: which can be requested, what is written, and the list of them."""

import json
import re
import shutil
from dataclasses import replace
from types import SimpleNamespace

import pandas as pd
import pytest
from synthetic_study import build

from gpbench import config
from gpbench.errors import UserError
from gpbench.places import Places
from gpbench.report.papers import items, listing
from gpbench.report.papers.reproduced import command, provenance, write_item
from gpbench.report.registry import names
from gpbench.report.view import View
from gpbench.study.planning.plan import run_name
from handmade import CELL
from projects import REPOSITORY

CONF = REPOSITORY / "conf"
WHERE = Places(REPOSITORY, REPOSITORY / "store")


@pytest.fixture(scope="module")
def registry():
    return items.registry(CONF)


def test_what_is_made_of_a_study_is_what_it_reports(registry):
    studies = {name: config.compose(CONF, "study", name) for name in {i.study for i in registry.values() if i.study}}
    for item in registry.values():
        for what, name in (("figures", item.figure), ("tables", item.table)):
            if name and f"{what}=[{name}]" not in item.overrides.split():
                assert name in (*names(vars(studies[item.study]), what), items.PUBLISHED), item.name


def test_every_printed_table_and_figure_has_an_item_and_the_other_way_round(registry):
    rows = pd.concat(pd.read_csv(path)[["source", "item"]] for path in sorted((REPOSITORY / "published").glob("*.csv")))
    printed = {(row.source, row.item) for row in rows.drop_duplicates().itertuples()}
    for item in registry.values():
        assert not item.printed or (item.paper, item.printed) in printed, item.name
    for paper, item in printed:
        short = re.fullmatch(r"(Table|Figure) (\d+)", item)
        if short:
            name = f"{paper}_{'table' if short[1] == 'Table' else 'fig'}{short[2]}"
            assert name in registry, f"{paper}: {item}"


def test_words_of_a_command_name_items_and_nothing_else_does():
    words = [
        "-n",
        "--cores",
        "2",
        "./figures/cutajar2017_fig2.pdf",
        "tables/rossi2021_table5.md",
        "results/x/figures/y.pdf",
    ]
    assert [item.name for item in items.requested(CONF, words)] == ["cutajar2017_fig2", "rossi2021_table5"]
    assert items.requested(CONF, ["all", "--config", "study=default"]) == []


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("figures/cutajar2017_fgi2.pdf", "did you mean 'cutajar2017_fig2'?"),
        ("figures/rossi2021_table5.pdf", "has no rule; ask for tables/rossi2021_table5.csv"),
        ("figures/cutajar2017_fig2.jpg", "has no rule; ask for figures/cutajar2017_fig2.pdf"),
        ("tables/rossi2021_table3.csv", "cannot be made yet: it needs a study of HIGGS"),
    ],
)
def test_what_cannot_be_made_is_refused_with_what_can(word, message):
    with pytest.raises(UserError, match=re.escape(message)):
        items.requested(CONF, [word])


def test_a_command_plans_the_run_of_its_items(registry):
    table, figure, other = (registry[f"rossi2021_{name}"] for name in ("table5", "fig7", "fig3"))
    assert items.choose([], None, "") == ("default", "")
    assert items.choose([], "rossi2021_uci", "splits=2") == ("rossi2021_uci", "splits=2")
    assert items.choose([table, figure], "rossi2021_uci", "splits=2") == ("rossi2021_uci", "splits=2")
    with pytest.raises(UserError, match=r"tables/rossi2021_table5.csv .* figures/rossi2021_fig3.pdf .* one after"):
        items.choose([table, other], None, "")
    with pytest.raises(UserError, match="belongs to study 'rossi2021_uci', not 'default'; leave study= out"):
        items.choose([table], "default", "")
    with pytest.raises(UserError, match="names no study"):
        items.choose([], "", "")
    with pytest.raises(UserError, match="names no study"):
        items.choose([], ["default"], "")
    for word in ("rossi2021_table5", "tables/rossi2021_table5", "tables/rossi2021_table5.png"):
        with pytest.raises(UserError, match=r"has no rule; ask for tables/rossi2021_table5\.csv"):
            items.requested(CONF, [word])
    assert items.requested(CONF, ["results/x/report.html", "study=rossi2021_uci", "rossi2021_uci"]) == []


def test_an_item_whose_fits_are_all_skipped_is_refused(registry):
    table = registry["rossi2021_table5"]
    cells = [replace(CELL, skip=skip) for skip in ("has no md5 yet", "")]
    items.refuse_skipped([table], cells)
    items.refuse_skipped([], cells[:1])
    with pytest.raises(UserError, match="tables/rossi2021_table5.csv cannot be made: every .* has no md5 yet"):
        items.refuse_skipped([table], cells[:1])


def test_overrides_of_a_command_replace_those_of_the_item(registry):
    narrow = registry["ashman2020_table1"]
    assert narrow.overrides == "datasets=[year] splits=1"
    assert items.choose([narrow], None, "splits=20 svgp.label='a b'") == (
        "ashman2020_uci",
        "datasets=[year] splits=20 svgp.label='a b'",
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{title: x}", "needs either `later` or `study`"),
        ("{title: x, study: default, later: y}", "needs either `later` or `study`"),
        ("{title: x, study: default, figure: cost, table: cost}", "with one of `figure` and `table`"),
        ("{title: x, study: defualt, figure: cost}", "unknown study 'defualt'"),
        ("{title: x, study: default, figure: cots}", "unknown figure 'cots'"),
        ("{title: x, study: default, table: published}", "must be given together"),
        ("{title: x, study: default, fig: cost}", "unknown key 'fig'"),
    ],
)
def test_a_bad_entry_is_refused_by_its_place(tmp_path, text, message):
    (tmp_path / "conf" / "paper").mkdir(parents=True)
    shutil.copytree(CONF / "study", tmp_path / "conf" / "study")
    (tmp_path / "conf/paper/someone2020.yaml").write_text(f"name: someone2020\ntitle: x\nitems:\n  fig1: {text}\n")
    with pytest.raises(UserError, match=re.escape(message)) as error:
        items.registry(tmp_path / "conf")
    assert "someone2020" in str(error.value)


def test_the_record_of_requested_items_changes_with_the_run_alone(tmp_path, registry):
    where, item = Places(tmp_path, tmp_path / "store"), registry["rossi2021_fig7"]
    path = tmp_path / "plans" / "items" / "rossi2021_fig7.json"
    items.stamp(where, [item], "rossi2021_uci")
    first = path.stat().st_mtime_ns
    items.stamp(where, [item], "rossi2021_uci")
    assert path.stat().st_mtime_ns == first
    items.stamp(where, [item], "rossi2021_uci-abcdef")
    assert path.stat().st_mtime_ns > first


@pytest.fixture(scope="module")
def figure(registry):
    return replace(registry["rossi2021_fig7"], figure="cost")


def test_a_figure_has_its_caption_beside_it_and_inside(small, figure, tmp_path):
    paths = write_item(View(small), figure, REPOSITORY / "published", tmp_path)
    assert [path.name for path in paths] == [f"rossi2021_fig7.{suffix}" for suffix in items.SUFFIXES["figures"]]
    caption = paths[-1].read_text()
    assert caption.startswith("**Test MNLL and mean ranks of deep GPs (rossi2021, fig7)**")
    starred = write_item(View(small), replace(figure, title="u_* | θ"), REPOSITORY / "published", tmp_path / "starred")[
        -1
    ]
    assert starred.read_text().startswith(r"**u\_\* \| θ (rossi2021, fig7)**")
    assert "/Title (Test MNLL and mean ranks of deep GPs \\(rossi2021, fig7\\))" in paths[0].read_bytes().decode(
        "latin-1"
    )


def test_a_caption_says_what_it_is_made_of_and_what_is_missing(view, figure):
    text, study, fits = provenance(view, figure), view.study, view.fits
    assert f"Protocol {study['protocol']}, budget {study['budget']}, 5 splits." in text
    assert f"{(fits['status'] == 'done').sum()} of {len(fits)} fits done (" in text
    for status in set(fits["status"]) - {"done"}:
        assert f"{(fits['status'] == status).sum()} {status}" in text
    assert all(dataset in text for dataset in study["datasets"])


def test_the_caption_of_a_figure_says_what_has_not_converged(small, figure, tmp_path):
    view = View(small)
    view.fits.loc[view.fits.index[:1], "status"] = "not converged"
    text = write_item(view, figure, REPOSITORY / "published", tmp_path)[-1].read_text()
    assert view.failing.startswith("✗ In 1 of ")
    assert view.failing in text


def test_a_published_table_holds_its_rows_beside_ours(registry, tmp_path):
    table, view = registry["ashman2020_table4"], View(build(tmp_path / "s", ["dsvi"], ["boston"], 2))
    paths = write_item(view, table, REPOSITORY / "published", tmp_path / "made")
    assert [path.name for path in paths] == [f"ashman2020_table4.{suffix}" for suffix in items.SUFFIXES["tables"]]
    rows = pd.read_csv(paths[0])
    printed = pd.read_csv(REPOSITORY / "published" / "ashman2020.csv")
    assert len(rows) == (printed["item"] == "Table 4").sum()
    assert (rows["ours_n"] > 0).any()
    assert "Test log-likelihoods (ashman2020, Table 4)" in paths[1].read_text()
    missing = replace(table, printed="Table 40")
    with pytest.raises(UserError, match="has no item 'Table 40'"):
        write_item(view, missing, REPOSITORY / "published", tmp_path / "made")


def written() -> dict[str, list[str]]:
    """Name of an item -> its cells in docs/papers.md."""
    found, paper = {}, ""
    for line in (REPOSITORY / "docs" / "papers.md").read_text().splitlines():
        if line.startswith("## "):
            paper = re.search(r"\((\w+)\)$", line)[1]
        elif line.startswith("| ") and paper and not line.startswith(("| item", "| ---")):
            cells = [cell.strip() for cell in line.strip("|").split("|")]
            found[f"{paper}_{cells[0]}"] = cells
    return found


def test_a_paper_without_items_has_an_empty_table(tmp_path):
    conf = shutil.copytree(REPOSITORY / "conf", tmp_path / "conf")
    (conf / "paper" / "ashman2020.yaml").write_text("title: A title\nitems: {}\n")
    for other in set(conf.glob("paper/*.yaml")) - {conf / "paper" / "ashman2020.yaml"}:
        other.unlink()
    text = listing.document(Places(tmp_path, tmp_path / "store"), {})
    assert "## A title (ashman2020)\n" in text


def test_the_runs_of_a_study_stand_once_below_the_table(registry):
    section = (REPOSITORY / "docs" / "papers.md").read_text().partition("(filippone2014)\n")[2].partition("\n## ")[0]
    table, *runs = section.strip().split("\nRuns of ")
    assert "](results/filippone2014_efficiency-" not in table
    assert sum(line.startswith("`filippone2014_efficiency`: ") for line in runs) == 1
    links = re.findall(r"\[(\w+)\]\(results/filippone2014_efficiency-(\w+)/\)", "".join(runs))
    assert links == sorted((name, name) for name, _ in links)
    assert len(links) == len([*(REPOSITORY / "docs" / "results").glob("filippone2014_efficiency-*")])


def test_the_list_is_current_but_for_the_costs(registry):
    rows = written()
    expectations = {(i.study, i.overrides): listing.Expected(*rows[i.name][4:7]) for i in registry.values() if i.study}
    text = re.sub(r" +\|", " |", listing.document(WHERE, expectations))
    assert re.sub(r" +\|", " |", (REPOSITORY / "docs" / "papers.md").read_text()) == text, "run `make docs`"


@pytest.mark.parametrize("name", ["rossi2021_fig1", "cutajar2017_fig8"])
def test_expected_settings_and_costs_are_current(registry, name):
    item, row = registry[name], written()[name]
    found = listing.expected(WHERE, item.study, item.overrides)
    assert found.setting == row[4]
    for now, then in ((found.cpu, row[5]), (found.gpu, row[6])):
        assert 1 / 2 <= _number(now) / _number(then) <= 2  # records that are added move them a little


def _number(minutes: str) -> float:
    return float(minutes.removeprefix("< "))


def test_an_item_that_cannot_show_every_line_says_which(registry):
    def lacks(name):
        return listing.missing(WHERE, registry[name])

    assert lacks("ashman2020_result_files") == "18 of 54 numbers: AEP-3, AEP-4 (setting not in a study)"
    assert lacks("cutajar2017_v1_fig3").startswith(
        "DGP (Damianou and Lawrence; dgp_meanfield takes 2,000 rows at most)"
    )
    assert lacks("cutajar2017_v1_table1") == ""
    assert "DGP-RFF" not in lacks("cutajar2017_v1_table2")
    rows = written()
    for name, item in registry.items():
        if item.study:
            assert ("; lacks" in rows[name][-1]) == bool(listing.missing(WHERE, item)), name


def test_a_caption_has_the_whole_command_with_the_overrides_of_its_run(figure):
    item = replace(figure, overrides="splits=1 only=[svgp]")
    run = "snakemake --cores 2 --config study=s overrides='budget=smoke only=[svgp] splits=1'"
    assert command(SimpleNamespace(study={"command": run}), item) == (
        f"snakemake --cores 2 {item.target} --config overrides=budget=smoke"
    )
    more = "snakemake --cores 2 --config study=s overrides='budget=smoke only=[a,b]'"  # quotes within quotes are none
    assert command(SimpleNamespace(study={"command": more}), item).endswith("overrides='budget=smoke only=[a,b]'")
    plain = "snakemake --cores 2 --config study=s overrides='only=[svgp] splits=1'"
    assert command(SimpleNamespace(study={"command": plain}), item) == f"snakemake --cores 2 {item.target}"


def test_the_caption_of_a_figure_says_what_it_lacks(view, figure):
    assert provenance(view, replace(figure, lacks="a line")).startswith("Lacks a line. Data: ")
    assert "acks" not in provenance(view, figure)


def test_a_caption_counts_chains_where_splits_have_several(view, figure):
    assert "restarts" not in provenance(view, figure)
    other = View(view.folder)
    other.fits.loc[0, "replica"] = 1
    assert "5 splits of 2 chains or restarts each. " in provenance(other, figure)


@pytest.mark.parametrize(("hyper", "layers"), [({"layers": 2}, 2), ({"hidden_layers": 2}, 3), ({}, 1)])
def test_a_method_launches_its_operations_in_every_layer(hyper, layers):
    what = replace(CELL.what, method=replace(CELL.what.method, hyper=hyper), steps=1000, trained_by="single")
    cell = replace(CELL, what=what, cost=replace(CELL.cost, operations_per_layer=500))
    assert listing._launches(cell) == pytest.approx(1000 * layers * 500 * listing.LAUNCH)


def test_the_state_follows_from_what_is_committed(tmp_path, registry):
    where, item = Places(tmp_path, tmp_path / "store"), registry["rossi2021_fig7"]
    assert listing.state(where, item) == "available"
    for name in (run_name(item.study, "splits=8"), item.study):
        folder = tmp_path / "docs" / "results" / name
        folder.mkdir(parents=True)
        (folder / "study.json").write_text(json.dumps({}))
        part = "available; has results in part (1 run of its study)"
        assert listing.state(where, item) == (f"has [results](results/{name}/)" if name == item.study else part)
    assert listing.state(where, registry["rossi2021_table3"]).startswith("later: needs a study of HIGGS")
