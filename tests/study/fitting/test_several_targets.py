"""Several targets: one fit of all of them, against fits of each alone, from the plan to the answer."""

import dataclasses
import functools
import pickle
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
import yaml

from cases import ALONE, CONF, VARIANTS, Case, assert_close, composed, every_case, group, table, two_targets
from gpbench import places
from gpbench.data import table as tables
from gpbench.study.commands.predict_csv import answer
from gpbench.study.fitting import closed_form
from gpbench.study.fitting.outcome import Outcome
from gpbench.study.planning.resolve import resolve
from gpbench.study.records import to_json
from gpbench.study.storage.store import Store
from handmade import record_of

METHODS = [
    name
    for name, task in every_case(CONF)
    if task == "regression" and name not in VARIANTS and composed(CONF, "method", name).header.max_outputs is None
]
COLUMNS = ("constant", "linear")  # methods that treat each target on its own
LEARNT = 0.8
"""of what is gained alone over the constant predictor, at least this is gained together"""
STEPS, MORE_STEPS = 100, {"svgp": 250, "mcmc_svgp": 500}
"""and of methods that learn more slowly"""


def case(name: str, outputs: str, folders, data=None, few: bool = False) -> Case:
    protocol = ("common", "splits.train_fraction=0.75", f"outputs={outputs}")
    return Case(name, "regression", folders, data=data or two_targets(), protocol=protocol, few=few)


@pytest.fixture(scope="module")
def case_of(tmp_path_factory):
    """The case of a method with both targets, whose fits tests share."""
    return functools.cache(lambda name: case(name, "all", tmp_path_factory, few=True))


def fit(made: Case, steps: int | None = None) -> Outcome:
    """Split 0 with so many steps, where there are any."""
    one = group(made.cell, 0)
    if steps and one.what.steps:
        one = replace(one, what=replace(one.what, steps=steps))
    return made.fit(one)[0]


def of(outcome: Outcome, output: int) -> pd.DataFrame:
    """Points of one target, without its number."""
    assert outcome.status == "done", outcome.reason
    points = outcome.points
    return points[points["output"] == output].drop(columns="output").reset_index(drop=True)


@pytest.mark.parametrize("name", COLUMNS)
def test_a_method_of_columns_fits_each_as_if_alone(name, tmp_path_factory):
    together = fit(case(name, "all", tmp_path_factory))
    for output, choice in enumerate(("first", "last")):
        alone = fit(case(name, choice, tmp_path_factory))
        pd.testing.assert_frame_equal(of(together, output), of(alone, 0), rtol=1e-9)


@pytest.mark.parametrize("name", ["exact_gp", "svgp"])
def test_a_target_and_its_image_are_fitted_as_one(name, tmp_path_factory):
    """The objective is twice that of one target, so that Adam makes the same steps; only units differ."""
    data = table("regression")
    image = dataclasses.replace(data, targets=data.targets @ [[1.0, -5.0]] + [0.0, 3.0], target_names=["y", "image"])
    together, alone = fit(case(name, "all", tmp_path_factory, image)), fit(case(name, "first", tmp_path_factory, image))
    first, second = of(together, 0), of(together, 1)
    np.testing.assert_allclose(first, of(alone, 0), rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(second["mean"], 3 - 5 * first["mean"], rtol=1e-9)
    np.testing.assert_allclose(second["sd"], 5 * first["sd"], rtol=1e-9)


# the network of dkl learns 60 rows by heart in so many steps, alone and together
@pytest.mark.parametrize(
    "name",
    [name for name in METHODS if name not in (*COLUMNS, "gradient_boosting", "dkl")],
)
@pytest.mark.slow
def test_two_functions_are_learnt_together_as_well_as_alone(name, tmp_path_factory):
    """They are as smooth and as noisy as each other, so that a shared kernel and noise cost nothing."""

    def density(choice: str) -> float:
        outcome = fit(case(name, choice, tmp_path_factory), MORE_STEPS.get(name, STEPS))
        return outcome.points["log_density_scaled"].mean()

    constant = fit(case("constant", "all", tmp_path_factory)).points["log_density_scaled"].mean()
    alone = np.mean([density("first"), density("last")])
    assert alone > constant
    assert density("all") - constant > LEARNT * (alone - constant)


def test_boosting_tunes_each_target(tmp_path_factory):
    """The first has the random settings that it has alone."""
    made = case("gradient_boosting", "all", tmp_path_factory)
    together = fit(made)
    alone = fit(case("gradient_boosting", "first", tmp_path_factory))
    pd.testing.assert_frame_equal(of(together, 0), of(alone, 0))
    assert len(together.model["estimators"]) == 2
    assert (of(together, 1)["mean"] < -300).all()  # in the units of the second


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.slow
def test_replicas_and_test_rows_do_not_touch_each_other(name, case_of):
    """With two targets: a batch of splits is its splits one by one, and test rows change no fitted quantity."""
    made = case_of(name)
    for one, other in zip(made.together[:ALONE], made.alone, strict=True):
        assert_close(one, other)
    targets, inputs = made.table.targets.copy(), made.table.inputs.copy()
    targets[made.fold.test], inputs[made.fold.test] = 1e5, -1e5
    changed = dataclasses.replace(made.table, inputs=inputs, targets=targets)
    (outcome,) = made.fit(group(made.cell, 0), changed)
    assert not outcome.points.equals(made.alone[0].points)
    assert same(outcome.model, made.alone[0].model)


@pytest.mark.parametrize("name", METHODS)
def test_a_model_alone_says_how_many_targets_there_are(name, case_of):
    """`answer` builds a method anew and never calls `init`."""
    made = case_of(name)
    outcome = made.alone[0]
    x = made.fold.scaling.inputs(made.table.inputs[made.fold.test])
    again = made.answer(outcome, x).affine(made.fold.scaling.y_scale, made.fold.scaling.y_shift)
    np.testing.assert_allclose(again.mean().ravel(), outcome.points["mean"], rtol=1e-9)


def same(one, other) -> bool:
    """Whether two models are equal bit for bit."""
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[name], other[name]) for name in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(same, one, other))
    return torch.equal(one, other) if isinstance(one, torch.Tensor) else pickle.dumps(one) == pickle.dumps(other)


def test_facts_of_the_training_targets_are_lists(tmp_path_factory):
    made = case("constant", "all", tmp_path_factory)
    train = made.table.targets[made.fold.train]
    info = fit(made).info
    assert info["train_target_mean"] == train.mean(0).tolist()
    assert info["train_target_sd"] == train.std(0).tolist()
    last = case("constant", "last", tmp_path_factory)
    assert fit(last).info["train_target_sd"] == pytest.approx([train[:, 1].std()])


@pytest.mark.parametrize(("choice", "heads"), [("all", ["y_mean", "y_sd"]), ("last", ["mean", "sd"])])
def test_answers_name_their_target_where_there_are_several(project, choice, heads, tmp_path):
    where, data = places.find(), two_targets()
    entry = yaml.safe_load((CONF / "dataset/boston.yaml").read_text())
    entry |= {"name": "two", "md5": data.md5, "rows": len(data.inputs), "columns": data.inputs.shape[1]}
    entry["source"]["targets"] = data.target_names
    (where.conf / "dataset/two.yaml").write_text(yaml.safe_dump(entry))
    tables.save(data, where.prepared_file("two"), {})
    words = f"methods=[linear] datasets=[two] splits=1 protocol.outputs={choice}"
    (cell,) = resolve(where, "default", words).cells
    (outcome,) = closed_form.run(cell, data, tmp_path)
    fit_id = cell.fits[0].fit_id
    with Store(where.store).writing(fit_id) as folder:
        closed_form.save(outcome.model, folder / closed_form.MODEL_FILE)
        (folder / "fit.json").write_text(to_json(record_of(cell, cell.fits[0])))
    pd.DataFrame(data.inputs, columns=data.input_names).to_csv(tmp_path / "new.csv", index=False)
    answer(where, fit_id, tmp_path / "new.csv", tmp_path / "out.csv")
    rows = pd.read_csv(tmp_path / "out.csv")
    assert list(rows.columns[:2]) == heads
    assert len(rows.columns) == 7 * len(cell.what.protocol.outputs)
    second, points = rows["other_mean" if choice == "all" else "mean"], outcome.points
    theirs = points[points["output"] == points["output"].max()]
    np.testing.assert_allclose(second[theirs["row"]], theirs["mean"], rtol=1e-9)
