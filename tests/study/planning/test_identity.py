"""Identity: what moves a fit's name, and what must not."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from gpbench import places
from gpbench.errors import UserError
from gpbench.study.planning import identity
from gpbench.study.planning import plan as planning
from gpbench.study.planning.resolve import resolve
from gpbench.study.storage import seals
from gpbench.study.storage.store import Store
from handmade import WHAT, finish

METHOD = '''\
"""A method."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from {package} import helper

if TYPE_CHECKING:
    import torch


def fit(x: np.ndarray) -> float:
    """Fit."""
    return helper.twice(x)  # doubled
'''
HELPER = "def twice(x):\n    return 2 * x\n"


@pytest.fixture
def package(tmp_path, monkeypatch):
    """Write a package with a method and its helper under a new name each time; returns the digests of its code."""
    monkeypatch.syspath_prepend(tmp_path)
    made = []

    def write(method: str = METHOD, helper: str = HELPER) -> dict[str, str]:
        name = f"identity_{tmp_path.name}_{len(made)}"
        made.append(name)
        (tmp_path / name).mkdir()
        # the package's name is part of the import, so it is written by position
        for module, text in {"__init__": "", "method": method, "helper": helper}.items():
            (tmp_path / name / f"{module}.py").write_text(text.replace("from {package} import", "from . import"))
        return {module.removeprefix(name): code for module, code in identity.code(f"{name}.method").items()}

    return write


def test_the_closure_is_the_package_s_own_modules(package):
    assert list(package()) == ["", ".helper", ".method"]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("# doubled", "# twice as much"),
        ('"""Fit."""', '"""Fit, and say more about it."""'),
        ('"""A method."""\n', '"""Another title."""\n\n\n\n'),
        ("    import torch", "    import torch\n    import pandas"),
    ],
)
def test_edits_that_cannot_change_a_result_keep_the_identity(package, old, new):
    assert old in METHOD
    assert package() == package(method=METHOD.replace(old, new))


def test_changed_code_moves_the_identity(package):
    before, after = package(), package(method=METHOD.replace("helper.twice(x)", "helper.twice(x) + 1"))
    assert before[".method"] != after[".method"]
    assert before[".helper"] == after[".helper"]


def test_what_runs_where_types_are_not_checked_counts(package):
    one, two = (METHOD.replace("    import torch\n", f"    import torch\nelse:\n    FACTOR = {n}\n") for n in (1, 2))
    assert package(method=one) != package(method=two)


def test_a_changed_helper_moves_the_identity(package):
    before, after = package(), package(helper=HELPER.replace("2", "3"))
    assert before[".method"] == after[".method"]
    assert before[".helper"] != after[".helper"]


def test_imports_inside_functions_and_of_names_count(package):
    lazy = METHOD.replace("from {package} import helper\n", "").replace(
        "    return helper.twice(x)", "    from .helper import twice\n\n    return twice(x)"
    )
    assert ".helper" in package(method=lazy)


def test_a_syntax_error_in_a_helper_is_one_line(package):
    with pytest.raises(UserError, match=r"helper\.py, line 1: "):
        package(helper="def twice(x:\n")


def test_versions_are_of_what_is_imported(package, tmp_path):
    package()
    assert list(identity.versions(f"identity_{tmp_path.name}_0.method")) == ["numpy"]
    assert {"numpy", "sklearn"} <= set(identity.versions("gpbench.methods.linear"))
    assert "+" not in identity.versions("gpbench.methods.svgp")["torch"]


def test_scores_and_figures_are_outside_the_identity():
    closure = identity.code(*identity.numerics("gpbench.methods.svgp", "single"))
    assert {"gpbench.methods.svgp", "gpbench.gp.kernels", "gpbench.data.splits", "gpbench.streams"} <= set(closure)
    assert not [m for m in closure if m.startswith(("gpbench.report", "gpbench.evaluation.metrics"))]
    assert "gpbench.methods.dgp_rff" not in closure


def test_how_trials_are_scored_is_inside_the_identity_of_tuned_fits_alone():
    closures = [identity.code(*identity.numerics("gpbench.methods.svgp", "single", tuned)) for tuned in (False, True)]
    assert ["gpbench.study.fitting.inner_split" in closure for closure in closures] == [False, True]


def test_digest_does_not_depend_on_order():
    assert identity.digest({"a": 1, "b": [2, None]}) == identity.digest({"b": [2, None], "a": 1})
    # `printf '{"a":1}' | sha256sum`
    assert identity.digest({"a": 1}) == "015abd7f5cc57a2d"


def fits(overrides: str = "", study: str = "default") -> dict[tuple, str]:
    """(method, data set, split) -> fit_id."""
    cells = resolve(places.find(), study, overrides).cells
    return {(c.address.method, c.address.dataset, f.split): f.fit_id for c in cells for f in c.fits}


CELLS = "methods=[constant,svgp,dsvi] datasets=[boston,wine] splits=2 "


def test_names_of_finished_fits_stay():
    """All stores and committed records name fits so: `tune` came later, and counts only where there is one."""
    what = {"kind": "predict", "steps": None}
    assert identity.identify(what, 2, 1) == identity.identify(what | {"tune": None}, 2, 1) == "d3b424655a4adb24"
    assert identity.identify(what | {"tune": {"candidates": []}}, 2, 1) != "d3b424655a4adb24"


def test_the_configuration_is_all_but_code_and_versions():
    moved = replace(WHAT, code={"gpbench.methods.constant": "0"}, versions={"numpy": "9"})
    assert moved.configuration == WHAT.configuration != replace(WHAT, noise_block=51).configuration


def test_fits_have_unique_identities(project):
    made = fits(CELLS)
    assert len(set(made.values())) == len(made) == 3 * 2 * 2
    assert made == fits(CELLS)


def test_the_trainer_is_outside_the_identity(project):
    how = "trainer.threads=2 trainer.batch_minutes=9 trainer.replicas=1 trainer.small=0 trainer.max_minutes=1"
    cadence = "trainer.checkpoint_seconds=1 trainer.log_points=7 trainer.eval_points=0 trainer.live=true"
    assert fits(f"{CELLS} {how} {cadence} trainer=gpu") == fits(CELLS)


def test_every_component_of_what_moves_the_identity(project):
    plain = fits(CELLS)
    changes = ["dtype=float32", "noise_block=25", "protocol.splits.seed=2", "protocol.leaks=[test_x]", "budget=smoke"]
    for word in changes:
        moved = fits(CELLS + word)
        unmoved = {place for place in plain if plain[place] == moved[place]}
        # updates are no part of a method that makes none
        assert unmoved == ({p for p in plain if p[0] == "constant"} if word == "budget=smoke" else set()), word


def test_one_hyperparameter_moves_one_method(project):
    plain, moved = fits(CELLS), fits(CELLS + "svgp.num_inducing=50")
    assert {p[0] for p in plain if plain[p] != moved[p]} == {"svgp"}
    assert {p for p in plain if p[0] == "svgp"} == {p for p in plain if plain[p] != moved[p]}


def test_equal_data_under_two_names_have_the_same_identity(project):
    made = fits("methods=[constant,svgp] datasets=[boston,boston_uci] splits=2")
    assert made["svgp", "boston", 1] == made["svgp", "boston_uci", 1]
    assert len(set(made.values())) == 4


def test_studies_share_their_fits(project):
    small = project / "conf/study/small.yaml"
    small.write_text("name: small\ntitle: t\nmethods: [dsvi, constant]\ndatasets: [wine]\nsplits: 3\n")
    assert fits(study="small").items() <= fits().items()


def test_why_prints_the_components_that_moved(project, gpbench):
    where, text = places.find(), "methods=[svgp] datasets=[wine] splits=1 svgp.num_inducing=50 protocol.splits.seed=3"
    cells = resolve(where, "default", text).cells
    fit_id = finish(Store(where.store), cells[0], cells[0].fits[0])
    assert gpbench("why", fit_id[:6]).out == f"{fit_id}: nothing moved; it would not be fitted again\n"
    path = where.store / fit_id / "fit.json"
    record = json.loads(path.read_text())
    record["what"]["code"]["gpbench.gp.kernels"] = "0123"
    record["what"]["method"]["hyper"]["jitter"] = 0.5
    old = identity.identify(record["what"], record["split"], record["replica"])
    path.parent.rename(where.store / old)
    (where.store / old / "fit.json").write_text(json.dumps(record | {"fit_id": old}))
    seals.seal(where.store / old)
    lines = gpbench("why", old[:6]).out.splitlines()
    kernels = identity.code("gpbench.gp.kernels")["gpbench.gp.kernels"]
    assert lines == [f"code.gpbench.gp.kernels: 0123 -> {kernels}", "method.hyper.jitter: 0.5 -> 1e-06"]


def test_a_plan_names_the_components_that_moved(project, gpbench):
    where, place = places.find(), "methods=[svgp] datasets=[wine] splits=1"
    cells = resolve(where, "default", place).cells
    finish(Store(where.store), cells[0], cells[0].fits[0])
    assert " done " in gpbench("plan", "--overrides", place).out
    out = gpbench("plan", "--overrides", f"{place} svgp.num_inducing=50 budget=smoke").out
    assert "method.hyper.num_inducing: 100 -> 50; steps: " in out


def test_moved_names_added_and_removed_components():
    old, new = {"a": 1, "b": {"c": 2, "d": 3}}, {"b": {"c": 2, "d": 4}, "e": 5}
    assert identity.moved(old, new) == ["a: 1 -> (absent)", "b.d: 3 -> 4", "e: (absent) -> 5"]
    assert identity.moved(old, old) == []


def test_the_code_of_this_checkout_is_digested():
    assert Path(identity.source_path("gpbench.study.planning.plan")) == Path(planning.__file__)
