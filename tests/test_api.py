"""`import gpbench`: cheap to import, and the same numbers as the command line gives."""

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import gpbench
from gpbench import places
from gpbench.errors import UserError
from gpbench.evaluation.metrics import METRICS, Metric
from gpbench.study import scoring
from gpbench.study.planning import plan as planning
from gpbench.study.storage.store import Store
from projects import REPOSITORY, prepared_project


def test_importing_is_cheap_and_offers_what_it_says():
    program = (
        "import sys, gpbench; assert {'fit', 'predict', 'results'} <= set(dir(gpbench))\n"
        "heavy = {'numpy', 'pandas', 'torch', 'hydra', 'sklearn', 'gpbench.api'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
        "gpbench.plan; heavy = {'torch', 'lightning', 'mlflow', 'matplotlib', 'sklearn'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    with pytest.raises(AttributeError, match="no attribute 'fitt'; it offers compare, fit"):
        _ = gpbench.fitt


@pytest.fixture(scope="module")
def fitted(tmp_path_factory):
    """A project with two methods on two splits of a small private data set."""
    root = prepared_project(tmp_path_factory.mktemp("api") / "project", "diabetes").root
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GPBENCH_ROOT", str(root))
        patch.setenv("CI", "1")
        for method in ("constant", "linear"):
            for split in (0, 1):
                gpbench.fit(method, "diabetes", split, budget="smoke")
        yield root


STUDY = "methods=[constant,linear] datasets=[diabetes] splits=2 budget=smoke"


def test_plan_and_results_hold_what_was_fitted(fitted):
    planned = gpbench.plan("default", STUDY)
    assert planned["state"].to_list() == ["done"] * 4
    rows = gpbench.results("default", STUDY)
    assert set(rows["fit_id"]) == set(planned["fit_id"])
    again = gpbench.fit("linear", "diabetes", 1, budget="smoke")
    row = rows.set_index("fit_id").loc[again["fit_id"]]
    assert (row["method"], row["split"], row["rmse"]) == ("linear", 1, again["rmse"])


def test_every_column_of_the_scores_is_documented(fitted):
    text = (REPOSITORY / "docs" / "api.md").read_text()
    documented = set(re.findall(r"`(\w+)`", text.split("## Columns")[1]))
    columns = {*gpbench.results("default", STUDY).columns, *METRICS}
    from gpbench.report.view import FACTS

    assert sorted((columns | set(FACTS)) - documented) == []


def test_a_metric_of_ones_own_may_read_quantiles(fitted, monkeypatch):
    def width(points, info):
        return (points["q95"] - points["q05"]).mean()

    wide = Metric("width_90", "Width", "min", "y", 0.0, np.inf, ("regression",), width, quantiles=True)
    monkeypatch.setitem(METRICS, "width_90", wide)
    store = Store(places.find().store)
    record = store.record(gpbench.fit("constant", "diabetes", 0, budget="smoke")["fit_id"])
    points = pd.read_parquet(store.folder(record.fit_id) / "points.parquet")
    of_tails = (points["q95"] - points["q50"]).mean() * 2  # of a Gaussian
    assert scoring._scores(store.folder(record.fit_id), record)["width_90"] == pytest.approx(of_tails)


def test_compare_pairs_methods_over_splits(fitted):
    (row,) = gpbench.compare("default", STUDY, "rmse").to_dict("records")
    rows = gpbench.results("default", STUDY).pivot_table(index="split", columns="method", values="rmse")
    assert (row["method"], row["best"], row["n"]) == ("constant", "linear", 2)
    assert row["difference"] == pytest.approx((rows["constant"] - rows["linear"]).mean())
    (by_crps,) = gpbench.compare("default", STUDY, "crps").to_dict("records")
    assert (by_crps["best"], np.isnan(by_crps["equal"]), np.isnan(row["equal"])) == ("linear", True, False)
    with pytest.raises(UserError, match="unknown metric 'rmsee'; did you mean 'rmse'"):
        gpbench.compare("default", STUDY, "rmsee")
    with pytest.raises(UserError, match="no data set has two methods with error .*`snakemake .*` runs what is missing"):
        gpbench.compare("default", STUDY, "error")


def test_a_run_goes_by_its_name(fitted):
    where = places.find()
    planning.freeze(planning.make(where, "default", STUDY), where)
    name = planning.run_name("default", STUDY)
    pd.testing.assert_frame_equal(gpbench.results(name), gpbench.results("default", STUDY))
    pd.testing.assert_frame_equal(gpbench.compare(name), gpbench.compare("default", STUDY))


def test_predict_takes_frames_and_arrays(fitted, capsys):
    from gpbench.data import table

    md5 = table.header(fitted / "data/prepared/diabetes.npz")["md5"]
    rows = table.load(fitted / "data/prepared/diabetes.npz", md5)
    frame = pd.DataFrame(rows.inputs[:3], columns=rows.input_names, index=[7, 8, 9])
    fit_id = gpbench.fit("linear", "diabetes", 0, budget="smoke")["fit_id"]
    by_frame = gpbench.predict(fit_id, frame[frame.columns[::-1]])
    assert list(by_frame.index) == [7, 8, 9]
    np.testing.assert_allclose(by_frame, gpbench.predict(fit_id, rows.inputs[:3]), rtol=1e-12)
    with pytest.raises(UserError, match=r"shape \(3, 2\); the model needs \[rows, 10\]: age, sex"):
        gpbench.predict(fit_id, rows.inputs[:3, :2])
    with pytest.raises(UserError, match="row 2, column 'bmi': 'nan' is not a number"):
        gpbench.predict(fit_id, frame.assign(bmi=[1, np.nan, 2]))
    twice = pd.concat([frame, frame[["bmi"]]], axis=1)
    with pytest.raises(UserError, match=r"columns \['bmi'\] stand in the header more than once"):
        gpbench.predict(fit_id, twice)
    with pytest.raises(UserError, match="inputs are not a table of numbers: could not convert string to float"):
        gpbench.predict(fit_id, np.array([["a"] * 10]))
    with pytest.raises(UserError, match=r"inputs, column 'bmi': values of datetime64\[\w+\] are not real numbers"):
        gpbench.predict(fit_id, frame.assign(bmi=pd.Timestamp("2024")))
    with pytest.raises(UserError, match=r"inputs, column 'bmi': values of period\[D\] are not real numbers"):
        gpbench.predict(fit_id, frame.assign(bmi=pd.period_range("2024", periods=len(frame), freq="D")))
    with pytest.raises(UserError, match="inputs are not a table of numbers: Cannot cast"):
        gpbench.predict(fit_id, rows.inputs[:3].astype("M8[D]"))
    with pytest.raises(UserError, match=r"inputs, column 'bmi': values of complex128 are not real numbers"):
        gpbench.predict(fit_id, frame.astype(object).assign(bmi=[1, 2j, 3]))
    with pytest.raises(UserError, match="^inputs have masked cells, which have no values"):
        gpbench.predict(fit_id, np.ma.masked_array(rows.inputs[:3], rows.inputs[:3] > 0.04))
    with pytest.raises(UserError, match="no fit begins with 'None'"):
        gpbench.predict(None, frame)
    with pytest.raises(UserError, match=r"must be text: 'default', 'splits=2', not 'default', \['splits=2'\]"):
        gpbench.plan("default", ["splits=2"])
    for empty in (frame[:0], rows.inputs[:0]):
        with pytest.raises(UserError, match="inputs: there are no rows to predict"):
            gpbench.predict(fit_id, empty)


def test_settings_are_those_of_the_command_line(fitted):
    one = gpbench.fit("linear", "diabetes", 0, protocol="all_rows")
    assert one["scored_on"] == "training rows"
    with pytest.raises(UserError, match="unknown key 'num_inducin'"):
        gpbench.fit("svgp", "diabetes", num_inducin=3)
    with pytest.raises(UserError, match="unknown method 'lineal'; did you mean 'linear'"):
        gpbench.fit("lineal", "diabetes")
    by_numpy = gpbench.fit("linear", "diabetes", np.int64(0), folds=np.int64(3), budget="smoke")
    assert by_numpy["fit_id"] == gpbench.fit("linear", "diabetes", 0, folds=3, budget="smoke")["fit_id"]
    with pytest.raises(UserError, match="a setting is a text, number, list or mapping, not slice"):
        gpbench.fit("linear", "diabetes", folds=slice(3))
    with pytest.raises(UserError, match=r"list or mapping, not type \(<class 'numpy.float32'>\)"):
        gpbench.fit("linear", "diabetes", dtype=np.float32)
    with pytest.raises(UserError, match="^gpbench fit: tune must be a number, got true$"):
        gpbench.fit("linear", "diabetes", tune=True)
    with pytest.raises(UserError, match="given twice"):
        gpbench.fit("linear", "diabetes", folds=3, **{"method.folds": 4})
    for words in ("figures=[nope]", "tables=[nope]"):
        with pytest.raises(UserError, match="unknown (figure|table) 'nope'"):
            gpbench.plan("default", words)
    record = json.loads((fitted / "store" / one["fit_id"] / "fit.json").read_text())
    assert record["address"]["protocol"] == "all_rows"


def test_lists(fitted):
    methods, datasets = gpbench.list_methods(), gpbench.list_datasets()
    assert methods.index.is_unique
    assert set(methods.index) == {path.stem for path in Path(fitted, "conf/method").glob("*.yaml")}
    assert methods.loc["exact_gp", "tasks"] == ["regression"]
    assert datasets.loc["diabetes", ["rows", "columns", "prepared"]].to_list() == [442, 10, True]
