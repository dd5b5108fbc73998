"""Counts from end to end: events in a file, a fit, its scores, what a report says of them, and the model's answer."""

from __future__ import annotations

import csv
import gzip
import io
import json
import re

import numpy as np
import pandas as pd
import pytest
import yaml

from gpbench import places
from gpbench.report import __main__ as report
from gpbench.report.figures import write_figure
from gpbench.report.registry import names
from gpbench.report.view import View
from gpbench.study.commands import job
from gpbench.study.planning import plan as planning
from gpbench.study.records import Batch, to_json
from gpbench.study.results import collect
from gpbench.study.storage import arrays
from projects import REPOSITORY, pin

BINS, WINDOW = 40, [0.0, 10.0]
ENTRY = {
    "name": "arrivals",
    "title": "Arrivals",
    "task": "counts",
    "source": {"kind": "table", "files": ["arrivals.csv"], "targets": ["count"], "names": ["time"], "bins": [BINS]},
    "window": [WINDOW],
    "rows": BINS,
    "columns": 1,
    "md5": None,
    "licence": "none",
    "citation": "none",
    "url": "none",
}


@pytest.fixture
def arrivals(project, gpbench):
    """A project with 300 events, most of them early, prepared."""
    times = 10 * np.random.default_rng(0).beta(1, 4, 300)
    content = "".join(f"{time:.6f}\n" for time in times)
    pin(project, "arrivals.csv", content)
    path = project / "conf/dataset/arrivals.yaml"
    path.write_text(yaml.safe_dump(ENTRY))
    told = gpbench("data", "prepare", "arrivals").err
    path.write_text(yaml.safe_dump(ENTRY | {"md5": re.search(r"md5: (\w{32})", told)[1]}))
    assert gpbench("data", "prepare", "arrivals").code == 0
    return np.histogram(times.round(6), BINS, WINDOW)[0]


def test_a_model_of_counts_is_fitted_scored_and_used(project, arrivals, gpbench):
    words = ("fit", "dataset=arrivals", "budget=smoke")
    found = {}
    for method in ("constant", "svgp"):
        done = gpbench(*words, f"method={method}", *(["method.steps=300"] if method == "svgp" else []))
        assert done.code == 0, done.err
        found[method] = json.loads(done.out)
    assert found["svgp"]["mnll"] < found["constant"]["mnll"]
    points = pd.read_parquet(project / "store" / found["svgp"]["fit_id"] / "points.parquet")
    np.testing.assert_array_equal(points["y"], arrivals[points["row"]])
    trace = arrays.trace(project / "store" / found["svgp"]["fit_id"]).dropna()
    assert trace.iloc[-1]["mnll"] == pytest.approx(found["svgp"]["mnll"])
    assert trace.iloc[-1]["rmse"] == pytest.approx(found["svgp"]["rmse"])

    (project / "new.csv").write_text("time\n0.5\n9.5\n")
    told = gpbench("predict", found["svgp"]["fit_id"], "new.csv")
    early, late = ({k: float(v) for k, v in row.items()} for row in csv.DictReader(io.StringIO(told.out)))
    assert list(early) == ["mean", "sd", "q05", "q25", "q50", "q75", "q95"]
    assert early["mean"] > 5 * late["mean"]
    assert early["q05"] <= early["q50"] <= early["q95"]
    assert all(row[name] == int(row[name]) for row in (early, late) for name in ("q05", "q50", "q95"))


def test_a_chain_learns_from_half_of_the_events_and_is_scored_on_the_others(project, arrivals, gpbench):
    words = ("dataset=arrivals", "budget=smoke", "protocol=hensman2015mcmc", "split=3", "method.exposure=3.75")
    done = gpbench("fit", "method=mcmc_svgp", *words, "method.num_inducing=8")
    assert done.code == 0, done.err
    found = json.loads(done.out)
    points = pd.read_parquet(project / "store" / found["fit_id"] / "points.parquet")
    assert points["row"].tolist() == list(range(7 * BINS, 8 * BINS))  # of each split first the rows that train
    info = json.loads((project / "store" / found["fit_id"] / "fit.json").read_text())["info"]
    assert points["y"].sum() + BINS * info["train_target_mean"][0] == 300
    assert (points["y"] <= arrivals).all()
    assert abs(points["mean"].sum() - 150) < 50
    (project / "new.csv.gz").write_bytes(gzip.compress(b"time\n0.5\n9.5\n"))
    told = gpbench("predict", found["fit_id"], "new.csv.gz")
    early, late = (float(row["mean"]) for row in csv.DictReader(io.StringIO(told.out)))
    assert early > 5 * late


def test_a_study_of_counts_and_numbers_is_reported(project, arrivals, gpbench, monkeypatch):
    where = places.find()
    assert gpbench("data", "prepare", "boston").code == 0
    overrides = "methods=[constant,linear,svgp] datasets=[arrivals,boston] splits=2 budget=smoke"
    plan = planning.make(where, "default", f"{overrides} tables=[counts_mnll]")
    planning.freeze(plan, where)
    batch = project / "batch.json"
    groups = tuple(group for part in plan.batches for group in part.groups)
    batch.write_text(to_json(Batch("all", groups, 0.0)))
    monkeypatch.setattr("sys.argv", ["run", str(batch), str(project / "done.json")])
    assert job.main() == 0
    collect.collect(where, plan.name)
    folder = where.results / plan.name
    view = View(folder)
    assert set(view.done.query("dataset == 'arrivals'")["method"]) == {"constant", "svgp"}
    assert view.error_metric("arrivals") == "rmse"
    for name in names(view.study, "figures"):
        write_figure(view, name, folder / "figures", kinds=("png",))  # the fonts of a PDF take longer than the rest
    for command in ("table", "statistics", "scorecard", "page"):
        more = ["--published", str(REPOSITORY / "published")] if command == "scorecard" else []
        assert report.main([command, str(folder), *more]) == 0, command
    assert {path.stem for path in (folder / "figures").iterdir()} >= set(names(view.study, "figures"))
    counts = pd.read_csv(folder / "tables/counts_mnll.csv").set_index("method")
    assert counts.loc["svgp", "mean"] == pytest.approx(view.per_split("mnll", "arrivals")["svgp"].mean())
    assert counts.loc["linear", "statuses"].startswith("skipped: regression")
    rest = pd.read_csv(folder / "tables/regression_rmse.csv")
    assert set(rest["dataset"]) == {"boston"}
