"""`gpbench pyfunc`: a kept fit as a model of MLflow that answers without the project."""

import resource
import shutil
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import gpbench as api
from gpbench.errors import UserError


def test_the_folder_answers_as_the_fit_does_without_its_project(project, gpbench, tmp_path, monkeypatch):
    import mlflow  # seconds, which every worker would take to collect this file

    (project / "salaries.csv").write_text("name,salary\n" + "".join(f"{i},{i % 3}\n" for i in range(20)))
    assert gpbench("data", "add", str(project / "salaries.csv"), "--target", "salary").code == 0
    fit = api.fit("linear", "diabetes", budget="smoke")
    names = ["age", "sex", "bmi", "bp", "s1", "s2", "s3", "s4", "s5", "s6"]
    frame = pd.DataFrame(np.arange(20.0).reshape(2, 10), columns=names, index=[7, 9])
    expected = api.predict(fit["fit_id"], frame)
    pd.testing.assert_frame_equal(api.predict(fit["fit_id"], pa.Table.from_pandas(frame[names[::-1]])), expected)
    folder = tmp_path / "model"
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # Python would cut modules that it compiles meanwhile
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    for size in (1_000, 20_000):  # of a folder's files, and of one alone: as on a full disk
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
        answer = gpbench("pyfunc", "linear/diabetes", str(folder))
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        assert (answer.code, answer.err.count("\n"), "File too large" in answer.err) == (1, 1, True)
        assert answer.err.startswith(f"gpbench: cannot write {folder}: ")
        assert list(tmp_path.glob("*model*")) == []
    answer = gpbench("pyfunc", "linear/diabetes", str(folder))
    assert (answer.code, answer.err) == (0, "")
    again = gpbench("pyfunc", "linear/diabetes", str(folder))
    assert (again.code, again.err) == (1, f"gpbench: {folder} exists; name a new folder\n")
    assert list(folder.rglob("*.pkl")) == []
    assert str(tmp_path) not in (folder / "MLmodel").read_text()
    assert str(Path(api.__file__).parent) not in (folder / "MLmodel").read_text()
    described = {path.name for path in folder.rglob("dataset/*.yaml")}
    assert ("diabetes.yaml" in described, "salaries.yaml" in described) == (True, False)
    shutil.rmtree(project / "store")
    model = mlflow.pyfunc.load_model(str(folder))
    pd.testing.assert_frame_equal(model.predict(frame), expected)
    for table in (frame.to_numpy(), frame.to_numpy().tolist()):
        pd.testing.assert_frame_equal(model.predict(table), expected.reset_index(drop=True))
    for table in (frame.to_dict("list"), frame["age"]):
        with pytest.raises(UserError, match="^inputs (are not a table of numbers|have shape)"):
            model.predict(table)
    (part,) = folder.rglob("points.parquet")
    part.write_bytes(b"")
    before = sorted(folder.rglob("*"))
    for _ in range(2):
        with pytest.raises(UserError, match="points.parquet was changed .*; write the model again by `gpbench pyfunc`"):
            mlflow.pyfunc.load_model(str(folder))
    assert sorted(folder.rglob("*")) == before
