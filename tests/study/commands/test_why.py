"""`gpbench why`: each fit of a cell with its state and the reason of it; a typo is one line."""

from __future__ import annotations

import re
import shutil
from dataclasses import replace

import pytest

from gpbench import places
from gpbench.study.commands import fit_one
from gpbench.study.planning import plan as planning
from gpbench.study.results import collect
from gpbench.study.storage.store import Store
from handmade import finish

TINY = """
name: tiny
title: Two numbers of inducing inputs
methods: []
variants:
  "sgp_{num_inducing}": {method: svgp, label: "SGP {num_inducing}", num_inducing: [10, 20]}
datasets: [yacht]
protocol: common_all
budget: smoke
splits: 2
"""


@pytest.fixture
def tiny(project) -> None:
    """A study of its own."""
    (project / "conf" / "study" / "tiny.yaml").write_text(TINY)


@pytest.fixture
def half_done(project) -> Store:
    """A store with one svgp fit on boston that is done, one that diverged, one of another jitter."""
    store, where = Store(places.find().store), places.find()
    words = "methods=[svgp] datasets=[boston] splits=5"
    (cell,) = planning.make(where, "default", words).cells
    finish(store, cell, cell.fits[0])
    finish(store, cell, cell.fits[1], "diverged", "not finite at step 7")
    (other,) = planning.make(where, "default", f"{words} svgp.jitter=0.5").cells
    finish(store, other, other.fits[2])
    return store


def test_why_explains_each_fit_of_a_cell(half_done, gpbench):
    answer = gpbench("why", "svgp/boston")
    assert answer.code == 0, answer.err
    head, *lines = answer.out.splitlines()
    assert head == "svgp on boston, protocol common, budget quick"
    assert len(lines) == 7
    assert lines[5] == "other fits of it in the store:"
    assert lines[6].startswith("  protocol common, budget quick, split 2  ")
    assert lines[6].endswith("  done")
    assert lines[0].endswith("done      nothing moved; it would not be fitted again")
    assert "diverged  not finite at step 7; log: " in lines[1]
    assert "`gpbench retry " in lines[1]
    assert lines[3].endswith("pending   it was never fitted")
    assert gpbench("why", "method=svgp", "dataset=boston").out == answer.out
    diverged = lines[1].split()[2]
    first, second = gpbench("why", diverged).out.splitlines()
    assert first.startswith(f"diverged: not finite at step 7; log: {half_done.folder(diverged)}")
    assert second.endswith("nothing moved; it would not be fitted again")


def test_moved_components_are_named(half_done, gpbench):
    # a fit of other settings is what an override of them is compared with
    words = ("methods=[svgp] datasets=[boston] splits=5", "svgp.jitter=0.5")
    out = gpbench("plan", "--overrides", " ".join(words)).out
    assert "boston split 2" in out
    lines = gpbench("why", "svgp/boston").out.splitlines()
    assert lines[3].endswith("pending   to be fitted: method.hyper.jitter: 0.5 -> 1e-06")


def test_the_last_of_several_earlier_fits_is_compared(project, gpbench):
    where, words = places.find(), "methods=[svgp] datasets=[boston] splits=1"
    cells = [planning.make(where, "default", f"{words} svgp.jitter={jitter}").cells[0] for jitter in (0.5, 0.25)]
    first, last = sorted(cells, key=lambda cell: cell.fits[0].fit_id, reverse=True)  # not in the order of the store
    for cell in (first, last):
        finish(Store(where.store), cell, cell.fits[0])
    assert f"method.hyper.jitter: {last.what.method.hyper['jitter']} -> 1e-06" in gpbench("why", "svgp/boston").out


def test_a_cell_of_another_study_protocol_or_budget(project, tiny, gpbench):
    words = ("why", "method=svgp", "dataset=boston", "budget=smoke", "protocol=common_all")
    out = gpbench(*words).out
    assert gpbench("why", "svgp/boston", *words[3:]).out == out
    assert out.startswith("svgp on boston, protocol common_all, budget smoke\n")
    out = gpbench("why", "method=sgp_20", "dataset=yacht", "study=tiny").out
    assert out.startswith("sgp_20 on yacht, protocol common_all, budget smoke\n")
    assert out.count("it was never fitted") == 2
    other = planning.make(places.find(), "tiny").cells[0]
    finish(Store(places.find().store), other, other.fits[0])  # of ten inducing inputs
    assert gpbench("why", "method=sgp_20", "dataset=yacht", "study=tiny").out.startswith(out)
    assert "skipped   regression only" in gpbench("why", "exact_gp/wdbc").out


def test_a_run_with_overrides_goes_by_its_name(tiny, gpbench):
    where, overrides = places.find(), "methods=[svgp] datasets=[boston] splits=2"
    plan = planning.make(where, "default", overrides)
    planning.freeze(plan, where)
    out = gpbench("why", "method=svgp", "dataset=boston", f"study={plan.name}").out
    assert (out.count("\n"), out.count("it was never fitted")) == (3, 2)


def test_a_final_model_is_no_split(project, gpbench):
    where = places.find()
    group, fit_id = fit_one.groups(where, ["method=svgp", "dataset=boston", "split=all"])
    cell = replace(planning.make(where, "default", "methods=[svgp] datasets=[boston]").cells[0], what=group[0].what)
    finish(Store(where.store), cell, group[0].fits[0])
    out = gpbench("why", "svgp/boston").out
    assert f"budget quick, split=all  {fit_id[0]}  done" in out
    assert out.count("it was never fitted") == 5  # nor an earlier fit of one


def test_chains_are_numbered(project, gpbench):
    (project / "conf" / "study" / "tiny.yaml").write_text(f"{TINY}replicas: 2\n")
    lines = gpbench("why", "method=sgp_20", "dataset=yacht", "study=tiny").out.splitlines()[1:]
    places_of_fits = [f"  split {split}, chain {chain}  " for split in (0, 1) for chain in (0, 1)]
    assert [line.startswith(place) for line, place in zip(lines, places_of_fits, strict=True)] == [True] * 4


def test_what_is_recorded_and_what_is_stored_of_the_same_data_under_another_name(project, gpbench):
    where, words = places.find(), "methods=[svgp] datasets=[boston]"
    plan = planning.make(where, "default", words)
    finish(Store(where.store), plan.cells[0], plan.cells[0].fits[0])
    collect.record(where, plan)
    shutil.rmtree(where.store)
    (other,) = planning.make(where, "default", f"{words} svgp.jitter=0.5").cells
    finish(Store(where.store), replace(other, address=replace(other.address, dataset="housing")), other.fits[1])
    lines = gpbench("why", "svgp/boston").out.splitlines()
    assert re.search(r"done      nothing moved; it would not be fitted again \(record of commit .*\)$", lines[1])
    place = "as housing, protocol common, budget quick, split 1"
    assert lines[6:] == ["other fits of it in the store:", f"  {place}  {other.fits[1].fit_id}  done"]


def test_a_fit_is_of_the_split_and_replica_that_were_asked_for(project):
    words = ["method=constant", "dataset=boston", "split=3", "replica=2"]
    cell = fit_one.cell_of(places.find(), words)
    assert [(fit.split, fit.replica) for fit in cell.fits] == [(3, 2)]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("svpg/boston",), "unknown method 'svpg' in gpbench why; did you mean 'svgp'?"),
        (("svgp/bostn",), "unknown dataset 'bostn' in gpbench why; did you mean 'boston'?"),
        (("method=svgp", "datset=boston"), "unknown key 'datset' in gpbench why; did you mean 'dataset'?"),
        (("method=svgp",), "gpbench why needs dataset=NAME"),
        (("method=svgp", "dataset=wine", "study=tiny"), "unknown method 'svgp' in study 'tiny'; choose one"),
        (
            ("method=sgp_10", "dataset=wine", "study=tiny"),
            "unknown dataset 'wine' in study 'tiny'; choose one",
        ),
        (("svgp",), "'svgp' is neither a fit's identity nor a cell such as dsvi/boston"),
        (("0123",), "no fit begins with '0123'"),
    ],
)
def test_refused(tiny, refused, words, said):
    refused(("why", *words), [said])


def test_a_fit_that_cannot_be_used_is_not_said_to_be_new(half_done, gpbench):
    (fit,) = (record for record in half_done.records()[0] if record.status == "diverged")
    (half_done.folder(fit.fit_id) / "fit.json").write_text("{")
    assert f"to be fitted: {half_done.folder(fit.fit_id)}/fit.json is damaged (" in gpbench("why", "svgp/boston").out
