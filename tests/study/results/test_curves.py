"""What is committed of a fit's curves: small, and enough for figures of convergence and calibration."""

from __future__ import annotations

import shutil

import numpy as np
import pandas as pd
import pytest
from matplotlib.patches import StepPatch

from gpbench import places
from gpbench.evaluation.pointwise import pointwise
from gpbench.predictive.distributions import Categorical
from gpbench.report.__main__ import main
from gpbench.report.figures import draw
from gpbench.report.view import View
from gpbench.study.commands import job
from gpbench.study.planning import plan as planning
from gpbench.study.results import collect, curves
from gpbench.study.storage import committed

SMOKE = "methods=[constant,gp_sdd] datasets=[boston,wine] splits=2 budget=smoke"
"""Of all methods gp_sdd makes the most updates on a small data set."""
MOST = 2000
OF_PREDICTIONS = ("traces", "calibration")
"""Of `committed.CURVES`, the others being of solvers."""
NAMES = ("convergence", "calibration", "reliability", "pit")


@pytest.fixture
def run(project, gpbench, tmp_path):
    """Folders of a smoke run: its results, and its records outside of any project."""
    where = places.find()
    for dataset in ("boston", "wine"):
        assert gpbench("data", "prepare", dataset).code == 0
    plan = planning.make(where, "default", SMOKE)
    planning.freeze(plan, where)
    job.run_groups(tuple(group for batch in plan.batches for group in batch.groups), where)
    collect.collect(where, plan.name)
    assert gpbench("record", "default", "--overrides", SMOKE, "--force").code == 0
    return where.results / plan.name, shutil.copytree(committed.folder(where, plan.name), tmp_path / "records")


def curves_of(view, name):
    """(x, y) of every line of a figure, and the heights of every histogram."""
    axes = draw(view, name).axes
    lines = [np.array(line.get_data(), float) for axis in axes for line in axis.get_lines()]
    return lines + [bars.get_data().values for axis in axes for bars in axis.findobj(StepPatch)]


def sizes(folder):
    """fit_id -> bytes of its lines in the files beside scores.csv."""
    texts = [(folder / f"{name}.csv").read_text().splitlines(keepends=True)[1:] for name in OF_PREDICTIONS]
    return (
        pd.Series([len(line) for text in texts for line in text])
        .groupby([line.split(",")[0] for text in texts for line in text])
        .sum()
    )


def test_a_recorded_run_is_drawn_from_its_records_alone(run, monkeypatch):
    results, records = run
    full, view = View(results), View(records)
    assert {"gp_sdd"} == set(view.done.loc[view.done["fit_id"].isin(view.traces["fit_id"]), "method"])
    assert view.done.loc[view.done["steps"].notna(), "convergence"].ne("").all()
    assert view.traces["step"].max() == full.traces["step"].max() == 30
    assert len(sizes(records)) == len(view.done) == 6
    assert sizes(records).max() <= MOST
    for name in NAMES:
        ours, theirs = curves_of(view, name), curves_of(full, name)
        assert len(ours) == len(theirs) > 0
        for one, other in zip(ours, theirs, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-4)
    monkeypatch.setenv("GPBENCH_ROOT", "/nowhere")
    assert main(["figure", str(records), *NAMES]) == 0
    assert {path.stem for path in (records / "figures").glob("*.png")} == set(NAMES)


def test_records_of_before_say_what_they_lack(run):
    _, records = run
    lines = (records / "traces.csv").read_text().splitlines()
    (records / "traces.csv").write_text("\n".join(line for line in lines if line[:16] != lines[1][:16]) + "\n")
    partly = draw(View(records), "convergence")
    assert partly.get_suptitle() == "1 of 2 fits have no traces here: recorded before curves were kept."
    for name in OF_PREDICTIONS:
        (records / f"{name}.csv").unlink()
    assert draw(View(records), "convergence").get_label().startswith("2 of 2 fits have no traces here")
    for name in NAMES[1:]:
        assert draw(View(records), name).get_label().startswith("6 of 6 fits have no calibration here")


def test_a_long_trace_and_many_test_rows_stay_small():
    """All 20,000 updates with test scores, in the longest numbers there are, and 200,000 test rows of three classes."""
    steps = np.arange(1, 20_001)
    trace = pd.DataFrame({"step": steps, "seconds": 0.123456 * steps, "objective": -1.23456e9 / steps})
    trace = trace.assign(mnll=-1.23456e-5 * steps, error=1.23456e-5 / steps, rmse=1.23456e-5 / steps)
    few = trace.assign(mnll=trace["mnll"].where(steps % 2000 == 0))
    for given, kept in ((trace, curves.thinned(trace)), (few, curves.thinned(few))):
        assert len(kept) <= 20
        assert kept["step"].iloc[[0, -1]].tolist() == [1, 20_000]
        ratio = np.diff(np.log(kept["step"]))
        assert ratio.max() < 2
        assert kept["mnll"].notna().sum() >= min(10, given["mnll"].notna().sum())
    assert set(few.dropna()["step"]) <= set(curves.thinned(few)["step"])
    rng = np.random.default_rng(0)
    probabilities = rng.dirichlet(np.ones(3), size=(1, 200_000))
    points = pointwise(
        Categorical(probabilities), np.arange(200_000.0)[:, None] % 3, task="multiclass", rows=np.arange(200_000)
    )
    points = points.assign(confidence=probabilities[0].max(axis=1))
    lines = {
        "traces": curves.trace_lines("f" * 16, trace),
        "calibration": curves.calibration_lines("f" * 16, points, "multiclass"),
    }
    texts = [",".join(line.get(name, "") for name in committed.CURVES[file]) for file in lines for line in lines[file]]
    assert sum(len(text) + 1 for text in texts) <= MOST


def test_what_was_measured_of_systems_is_read_as_it_was_with_what_is_no_number(tmp_path):
    measured = pd.DataFrame({"step": [1, 2], "iterations": [7, 9], "residual": [0.123456, np.nan]})
    lines = curves.system_lines("f" * 16, measured)
    committed_text = [f"{line['fit_id']},{line['measured']},{line['values']}\n" for line in lines]
    (tmp_path / "systems.csv").write_text("fit_id,measured,values\n" + "".join(committed_text))
    expected = measured.assign(residual=[0.12346, np.nan], fit_id="f" * 16)
    pd.testing.assert_frame_equal(curves.read_systems(tmp_path), expected, check_dtype=False)
