"""Figures and tables are registered once, and listing them is cheap."""

import json
import subprocess
import sys
from types import SimpleNamespace

import pytest

from gpbench.errors import UserError
from gpbench.report.figures import draw
from gpbench.report.page.sections import OUTLINE
from gpbench.report.registry import FIGURES, TABLES, Entry, names
from gpbench.report.tables.standard import table
from gpbench.study.commands import snakemake_graph

ENTRIES = [*FIGURES.values(), *TABLES.values()]


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.source)
def test_every_entry_names_a_function_and_a_section(entry):
    assert callable(entry.function)
    assert entry.section in {"", *OUTLINE}


def test_figures_have_captions_and_every_function_is_registered_once():
    assert all(entry.caption.endswith(".") for entry in FIGURES.values())
    assert len({entry.source for entry in ENTRIES}) == len(ENTRIES)


@pytest.mark.parametrize(
    ("make", "name", "said"),
    [
        (draw, "pit", "figure 'pit': figures.calibration:pit returned NoneType, no Figure"),
        (table, "ranks", "table 'ranks': tables.standard:rank_table returned NoneType, no `render.Table`"),
    ],
)
def test_a_function_that_returns_nothing_is_one_line(make, name, said, monkeypatch):
    monkeypatch.setattr(Entry, "function", lambda self, view: None)
    with pytest.raises(UserError, match=said):
        make(SimpleNamespace(), name)


def test_listing_names_imports_no_heavy_library():
    code = "import sys, gpbench.report.registry; print({'pandas', 'matplotlib', 'torch', 'numpy'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_a_study_has_what_it_requests_and_what_its_kind_always_has():
    study = {"name": "s", "kind": "sample", "figures": ["traces", "r_hat"], "tables": []}
    assert names(study, "figures") == ("traces", "r_hat", "ess_per_operation", "chain_traces", "ranks")
    assert {"efficiency", "status"} <= set(names(study, "tables"))
    assert "ranks" not in names(study, "tables")
    predicting = names(study | {"kind": "predict"}, "figures")
    assert {"traces", "calibration"} <= set(predicting)
    assert "chain_traces" not in predicting


def test_an_unknown_name_is_refused_with_the_nearest():
    study = {"name": "s", "kind": "predict", "figures": [], "tables": ["diferences"]}
    with pytest.raises(
        UserError, match="unknown table 'diferences' in tables of study 's'; did you mean 'differences'"
    ):
        names(study, "tables")


def test_a_change_of_any_registered_module_makes_the_report_anew():
    code = json.loads(snakemake_graph._report_code())
    assert {f"gpbench.report.{entry.source.split(':')[0]}" for entry in ENTRIES} <= code.keys()
    assert {"gpbench.evaluation.profiles", "gpbench.report.__main__", "report.html"} <= code.keys()
