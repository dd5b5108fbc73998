"""What finished fits are asked besides predictions: their bounds, and the functions of their layers."""

from __future__ import annotations

import dataclasses

import numpy as np
import pandas as pd
import pytest
import torch

from gpbench.data import table as tables
from gpbench.data.scaling import Scaling
from gpbench.data.table import Table
from gpbench.errors import UserError
from gpbench.methods.base import GradientMethod, Shapes, State
from gpbench.places import Places
from gpbench.predictive.distributions import Categorical
from gpbench.streams import Key
from gpbench.study.commands import job
from gpbench.study.fitting import lightning_module
from gpbench.study.fitting.fold import Fold, make_fold
from gpbench.study.planning import plan
from gpbench.study.results import probes
from gpbench.study.results.fitted_models import Fitted
from gpbench.study.storage.store import Store
from handmade import WHAT
from projects import prepared_project

BATCHES, ROWS, REPLICAS = 3, 30, 2
OVERRIDES = (
    f"budget=smoke replicas={REPLICAS} probes=[bounds,layers,inputs] dgp_mcmc.iterations=50 "
    f"budget.bound_batches={BATCHES} budget.bound_rows={ROWS}"
)


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    """The study of posterior functions on its smoke budget: two chains, and two restarts of two variational fits."""
    where = prepared_project(tmp_path_factory.mktemp("probes") / "project", "composed_bumps")
    made = plan.make(where, "cutajar2017_posterior", OVERRIDES)
    plan.freeze(made, where)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CI", "1")  # no progress lines
        statuses = job.run_groups(tuple(group for batch in made.batches for group in batch.groups), where)
    assert {end["status"] for end in statuses.values()} == {"done"}
    for kind in ("bounds", "layers", "inputs"):
        probes.write(where, made.name, kind)
    return where, made


def written(study, kind: str) -> pd.DataFrame:
    """A probe's file, with the method of every fit."""
    where, made = study
    methods = {fit.fit_id: cell.method for cell in made.cells for fit in cell.fits}
    rows = pd.read_parquet(where.results / made.name / f"{kind}.parquet")
    assert list(rows.columns) == probes.COLUMNS[kind]
    return rows.assign(method=rows["fit_id"].map(methods))


def test_every_variational_fit_has_its_bounds(study):
    rows = written(study, "bounds")
    assert rows.groupby(["method", "fit_id"])["batch"].apply(list).tolist() == [list(range(BATCHES))] * 2 * REPLICAS
    assert set(rows["method"]) == {"rbf_10", "rbf_50"}
    assert np.isfinite(rows["bound"]).all()
    assert not rows["bound"].duplicated().any(), "other rows and noise each time"


def test_layers_hold_training_rows_and_functions_on_a_wider_grid(study):
    where, made = study
    rows, cell = written(study, "layers"), made.cells[0]
    table = tables.load(where.prepared_file("composed_bumps"), cell.what.data.md5)
    train = make_fold(cell.what, table, 0, 0).train
    x, y = table.inputs[train, 0], table.targets[train, 0]
    low, high = x.min(), x.max()
    for _, own in rows.groupby("fit_id"):
        observed = own[own["layer"] == 0].sort_values("sample")
        np.testing.assert_array_equal(observed[["x", "f"]], np.column_stack([x, y]))
        for layer in (1, 2):
            drawn = own[own["layer"] == layer].pivot(index="sample", columns="x", values="f")
            assert drawn.notna().all(axis=None)
            np.testing.assert_allclose(drawn.columns[[0, -1]], [1.5 * low - 0.5 * high, 1.5 * high - 0.5 * low])
            assert drawn.shape[1] == probes.GRID
    chains = {"mcmc": True, "mcmc_noise": True, "rbf_10": False, "rbf_50": False}
    assert rows.groupby("method")["chain"].all().to_dict() == chains


def test_the_mean_of_the_last_layer_is_the_predictive_mean_in_original_units(study):
    where, made = study
    cell = next(cell for cell in made.cells if cell.method == "rbf_50")
    what, fit = cell.what, cell.fits[1]
    rows = written(study, "layers").query("fit_id == @fit.fit_id and layer == 2")
    mean = rows.groupby("x")["f"].mean()
    table = tables.load(where.prepared_file("composed_bumps"), what.data.md5)
    fold = make_fold(what, table, fit.split, fit.replica)
    path = Store(where.store).folder(fit.fit_id) / lightning_module.MODEL_FILE
    predictive = lightning_module.answer(what, path, fold.scaling.inputs(mean.index.to_numpy()[:, None]), fold.key)
    original = predictive.affine(fold.scaling.y_scale, fold.scaling.y_shift)
    np.testing.assert_allclose(mean, original.mean()[:, 0], rtol=1e-9, atol=1e-12)


def test_inputs_are_those_of_the_test_rows(study):
    where, made = study
    rows, cell = written(study, "inputs"), made.cells[0]
    table = tables.load(where.prepared_file("composed_bumps"), cell.what.data.md5)
    assert set(rows["fit_id"]) == {fit.fit_id for cell in made.cells for fit in cell.fits}
    for _, own in rows.groupby("fit_id"):
        assert own["row"].tolist() == list(range(50, 550))
        np.testing.assert_array_equal(own["x"], table.inputs[50:, 0])
        assert set(own["column"]) == {0}


class Sum(GradientMethod):
    """loss = sum_b weight_b y_b + 100 x the only normal of a step."""

    def __init__(self, *settings) -> None:
        super().__init__(*settings)
        self.seen = []

    def init(self, train, key):
        return State({})

    def noise_shapes(self, state, rows, step, steps):
        return Shapes((1,))

    def loss(self, state, batch, noise):
        self.seen.append((batch.y.shape[1], noise.fixed.item()))
        return (batch.weight * batch.y[..., 0]).sum(1)

    def predict(self, state, x, key):
        raise AssertionError("a probe predicts nothing")


def stand_in(method, columns: int = 1, n: int = 40, held_out: int = 5) -> Fitted:
    """A fit whose n training rows have targets 10, 11, ... and no scaling."""
    inputs, targets = np.zeros((n + held_out, columns)), 10.0 + np.arange(n + held_out)[:, None]
    zero, one = np.zeros(columns), np.ones(columns)
    scaling = Scaling(zero, one, np.zeros(1), np.ones(1))
    fold = Fold(Key("stand-in", "test", 0), np.arange(n), np.arange(n, n + held_out), targets, scaling)
    state = State({"any": torch.zeros(1, dtype=torch.float64)})
    what = WHAT
    return Fitted(what, method, state, fold, Table(inputs, targets, [f"x{i}" for i in range(columns)], ["y"]))


@pytest.mark.parametrize(("rows", "used"), [(8, 8), (1000, 40)])
def test_a_bound_is_the_loss_of_a_mini_batch_for_each_training_row(rows, used):
    fitted = stand_in(Sum(None, "regression"))
    values = probes.bounds(fitted, batches=500, rows=rows)["bound"]
    sizes, normals = zip(*fitted.method.seen, strict=True)
    assert set(sizes) == {used}
    assert len(set(normals)) == 500
    # the mean target of rows drawn with replacement from 10 .. 49
    population = 10.0 + np.arange(40)
    error = population.std() / np.sqrt(used * 500)
    assert values.mean() == pytest.approx(population.mean(), abs=4 * error)
    assert values.std() == pytest.approx(population.std() / np.sqrt(used), rel=0.15)


@pytest.mark.parametrize(("ask", "columns", "wanted"), [(probes.layers, 2, "one input"), (probes.surfaces, 1, "two")])
def test_functions_over_other_numbers_of_inputs_are_refused(ask, columns, wanted):
    with pytest.raises(UserError, match=f"needs data sets with {wanted}.*, not {columns}"):
        ask(stand_in(Sum(None, "regression"), columns=columns))


class Planes(Sum):
    """Draws -1, 0, 1 of a hidden layer of two outputs, x0 + s and x1 + 2 s, and of f = x0 - x1 + 3 s."""

    def functions(self, state, x, key):
        s = torch.tensor([-1.0, 0.0, 1.0], dtype=x.dtype)[:, None, None, None]
        return [x + s * torch.tensor([1.0, 2.0], dtype=x.dtype), x[..., :1] - x[..., 1:] + 3 * s]


def test_surfaces_hold_moments_of_every_layer_on_the_grid_of_the_training_rows():
    fitted = stand_in(Planes(None, "regression"), columns=2)
    n, generator = len(fitted.fold.train), np.random.default_rng(0)
    fitted.table.inputs[:n] = generator.uniform([2.0, -4.0], [3.0, 4.0], size=(n, 2))
    scaling = Scaling(np.array([2.0, 0.0]), np.array([1.0, 4.0]), np.array([100.0]), np.array([10.0]))
    fitted = dataclasses.replace(fitted, fold=dataclasses.replace(fitted.fold, scaling=scaling))
    rows = probes.surfaces(fitted)
    assert {"fit_id", *rows.columns} == set(probes.COLUMNS["surfaces"])
    assert rows[["x0_name", "x1_name"]].drop_duplicates().to_numpy().tolist() == [["x0", "x1"]]
    observed, hidden, f = (rows[rows["layer"] == layer] for layer in range(3))
    np.testing.assert_array_equal(observed[["x0", "x1"]], fitted.table.inputs[:n])
    np.testing.assert_array_equal(observed["mean"], fitted.fold.targets[:n, 0])
    assert (len(hidden), len(f)) == (2 * probes.SIDE**2, probes.SIDE**2)
    low, high = observed[["x0", "x1"]].min(), observed[["x0", "x1"]].max()
    for part in (hidden, f):
        assert part[["x0", "x1"]].nunique().tolist() == [probes.SIDE] * 2
        assert part[["x0", "x1"]].min().equals(low)
        assert part[["x0", "x1"]].max().equals(high)
    first, second = (hidden[hidden["output"] == output] for output in (0, 1))
    scaled = (first["x0"] - 2, second["x1"] / 4)
    np.testing.assert_allclose(first["mean"], scaled[0], atol=1e-12)
    np.testing.assert_allclose(second["mean"], scaled[1], atol=1e-12)
    # the last layer in original units
    np.testing.assert_allclose(f["mean"], 100 + 10 * (f["x0"] - 2 - f["x1"] / 4))


class Classifier(Sum):
    """P(y = 1) is 0.2 x0, or 0.8 x0 in the other of two states, in scaled inputs."""

    def predict(self, state, x, key):
        p = torch.stack([x[0, :, 0] * share for share in (0.2, 0.8)])
        return Categorical(torch.stack([1 - p, p], -1).numpy())


def test_probabilities_are_averaged_over_a_grid_wider_than_the_training_rows():
    fitted = stand_in(Classifier(None, "binary"), columns=2)
    n = len(fitted.fold.train)
    fitted.table.inputs[:n] = np.random.default_rng(0).uniform([10.0, -4.0], [20.0, 4.0], size=(n, 2))
    fitted.fold.targets[:] = np.arange(len(fitted.fold.targets))[:, None] % 2
    scaling = Scaling(np.array([5.0, 0.0]), np.array([20.0, 1.0]), np.zeros(1), np.ones(1))
    rows = probes.PROBES["probabilities"](
        dataclasses.replace(fitted, fold=dataclasses.replace(fitted.fold, scaling=scaling))
    )
    assert {"fit_id", *rows.columns} == set(probes.COLUMNS["probabilities"])
    observed, grid = rows[rows["layer"] == 0], rows[rows["layer"] == 1]
    np.testing.assert_array_equal(observed[["x0", "x1"]], fitted.table.inputs[:n])
    assert observed["p"].tolist() == [0, 1] * (n // 2)
    for name in ("x0", "x1"):
        low, high = observed[name].min(), observed[name].max()
        margin = 0.1 * (high - low)
        np.testing.assert_allclose([grid[name].min(), grid[name].max()], [low - margin, high + margin])
    np.testing.assert_allclose(grid["p"], 0.5 * (grid["x0"] - 5) / 20)


class ThreeClasses(Sum):
    """P(y = 0) is x0, the two others share the rest."""

    def predict(self, state, x, key):
        p = x[0, :, 0]
        return Categorical(torch.stack([p, 0.5 - p / 2, 0.5 - p / 2], -1)[None].numpy())


def test_of_more_than_two_classes_each_has_its_probability():
    fitted = stand_in(ThreeClasses(None, "multiclass"), columns=2)
    n = len(fitted.fold.train)
    fitted.table.inputs[:n] = np.random.default_rng(0).uniform(0.2, 0.8, size=(n, 2))
    fitted.fold.targets[:] = np.arange(len(fitted.fold.targets))[:, None] % 3
    scaling = Scaling(np.zeros(2), np.ones(2), np.zeros(1), np.ones(1))
    rows = probes.PROBES["probabilities"](
        dataclasses.replace(fitted, fold=dataclasses.replace(fitted.fold, scaling=scaling))
    )
    observed, grid = rows[rows["layer"] == 0], rows[rows["layer"] == 1]
    for number, share in ((0, grid["x0"]), (1, 0.5 - grid["x0"] / 2), (2, 0.5 - grid["x0"] / 2)):
        own = grid["class"] == number
        np.testing.assert_allclose(grid.loc[own, "p"], share[own])
        known = observed.loc[observed["class"] == number, "p"]
        np.testing.assert_array_equal(known, np.arange(n) % 3 == number)


def with_inducing(state: State) -> pd.DataFrame:
    """Rows of a fit with this state, whose two inputs are scaled by 1 + 10 x0 and 2 + 20 x1."""
    fitted = stand_in(Sum(None, "regression"), columns=2)
    scaling = Scaling(np.array([1.0, 2.0]), np.array([10.0, 20.0]), np.array([5.0]), np.array([7.0]))
    fold = dataclasses.replace(fitted.fold, scaling=scaling)
    rows = probes.PROBES["inducing"](dataclasses.replace(fitted, fold=fold, state=state))
    assert {"fit_id", *rows.columns} == set(probes.COLUMNS["inducing"])
    observed = rows[rows["layer"] == 0]
    wide = observed.pivot(index="sample", columns="column", values="x")
    np.testing.assert_array_equal(wide, fitted.table.inputs[fitted.fold.train])
    return rows[rows["layer"] == 1].drop(columns="layer")


def test_kept_inducing_inputs_and_their_kernels_come_in_original_units():
    z = torch.arange(12.0).view(2, 3, 2)  # two states of three points
    kernel = {"layer1.log_lengthscale": torch.tensor([[0.5, 1.0], [2.0, 3.0]]), "layer1.log_outputscale": [4.0, 9.0]}
    parts = {"layer1.inducing_inputs": z} | {name: torch.as_tensor(value).log() for name, value in kernel.items()}
    samples = {name: list(value.split(1)) for name, value in parts.items()}
    deeper = {"layer2.inducing_inputs": torch.full((1, 3, 5), torch.nan)}
    rows = with_inducing(State({name: value[-1:] for name, value in parts.items()} | deeper, samples=samples))
    for column, (shift, scale) in enumerate(((1, 10), (2, 20))):
        own = rows[rows["column"] == column].sort_values(["sample", "point"])
        np.testing.assert_allclose(own["x"], (shift + scale * z[..., column]).ravel().numpy())
        lengthscales = scale * kernel["layer1.log_lengthscale"][:, column].numpy()
        np.testing.assert_allclose(own["lengthscale"], np.repeat(lengthscales, 3), rtol=1e-6)
        np.testing.assert_allclose(own["outputscale"], np.repeat([4.0, 9.0], 3), rtol=1e-6)


def test_inducing_inputs_that_stay_stand_in_every_state_of_a_sampled_kernel():
    kept = {"layer1.log_lengthscale": torch.tensor([[0.0, 0.0], [1.0, 1.0]]), "layer1.log_outputscale": torch.zeros(2)}
    state = State(
        {}, {"layer1.inducing_inputs": torch.ones(1, 3, 2)}, samples={n: [*v.split(1)] for n, v in kept.items()}
    )
    rows = with_inducing(state)
    assert len(rows) == 2 * 3 * 2
    np.testing.assert_allclose(rows.loc[rows["sample"] == 1, "lengthscale"], np.e * np.tile([10, 20], 3), rtol=1e-6)
    np.testing.assert_allclose(rows["x"], np.tile([11, 22], 6))


def test_inducing_inputs_before_and_after_training_are_in_original_units():
    class Started(Sum):
        """Its first inducing inputs are two training rows, in scaled units; a deeper layer has others."""

        def init(self, train, key):
            z = train.x[:, :2] + len(key.dataset)
            return State({"layer1.inducing_inputs": z, "layer2.inducing_inputs": z[:, :1]})

    fitted = stand_in(Started(None, "regression"), columns=2)
    scaling = Scaling(np.array([1.0, 2.0]), np.array([10.0, 20.0]), np.array([5.0]), np.array([7.0]))
    after = State({"layer1.inducing_inputs": torch.tensor([[[0.0, 0.0], [1.0, 1.0]]])})
    fold = dataclasses.replace(fitted.fold, scaling=scaling)
    rows = probes.PROBES["starts"](dataclasses.replace(fitted, fold=fold, state=after))
    assert {"fit_id", *rows.columns} == set(probes.COLUMNS["starts"])
    wide = rows.pivot(index="point", columns="column")
    # a row 0 plus 8, the length of "stand-in", in sds of 10 and 20
    np.testing.assert_allclose(wide["before"], [[80, 160], [80, 160]])
    np.testing.assert_allclose(wide["x"], [[1, 2], [11, 22]])


def test_kept_values_are_those_of_the_first_layer():
    v = torch.arange(12.0).view(2, 3, 2)  # two states of three points and two functions
    samples = {"layer1.whitened_values": list(v.split(1)), "layer2.whitened_values": [torch.zeros(1, 3, 1)] * 2}
    fitted = dataclasses.replace(stand_in(Sum(None, "regression"), columns=2), state=State({}, samples=samples))
    rows = probes.PROBES["whitened"](fitted)
    assert {"fit_id", *rows.columns} == set(probes.COLUMNS["whitened"])
    np.testing.assert_array_equal(rows.set_index(["sample", "point", "output"])["v"], v.ravel().numpy())


@pytest.mark.parametrize(
    ("kind", "state", "absent"),
    [
        ("inducing", State({"z": torch.zeros(1, 3, 2)}), "inducing_inputs"),
        ("inducing", State({"inducing_inputs": torch.zeros(1, 3, 2)}), "log_lengthscale"),
        ("whitened", State({}, samples={"v": [torch.zeros(1, 3, 1)]}), "whitened_values"),
    ],
)
def test_a_method_that_calls_its_parameters_otherwise_is_named(kind, state, absent):
    fitted = dataclasses.replace(stand_in(Sum(None, "regression"), columns=2), state=state)
    with pytest.raises(UserError, match=rf"has no {absent} to show, which a probe asks for; let probes\(\)"):
        probes.PROBES[kind](fitted)


def test_optimised_inducing_inputs_are_a_single_state():
    params = {"log_outputscale": torch.zeros(1), "log_lengthscale": torch.zeros(1, 1)}
    rows = with_inducing(State(params | {"inducing_inputs": torch.tensor([[[0.1, 0.2]]])}))
    assert rows[["sample", "point", "column"]].to_numpy().tolist() == [[0, 0, 0], [0, 0, 1]]
    np.testing.assert_allclose(rows["x"], [2, 6])
    np.testing.assert_allclose(rows["lengthscale"], [10, 20], err_msg="one for all inputs, in their units")


@pytest.mark.parametrize(
    ("study", "overrides", "kinds"),
    [
        ("cutajar2017_posterior", OVERRIDES, ["bounds", "layers", "surfaces", "inputs"]),
        ("rossi2021_banana", "budget=smoke", ["probabilities", "inducing"]),
    ],
)
def test_without_finished_fits_the_table_has_no_rows(project, study, overrides, kinds):
    where = Places(project, project / "store")
    made = plan.make(where, study, overrides)
    plan.freeze(made, where)
    for kind in kinds:
        assert probes.main([made.name, kind]) == 0
        rows = pd.read_parquet(where.results / made.name / f"{kind}.parquet")
        assert (list(rows.columns), len(rows)) == (probes.COLUMNS[kind], 0)


def test_probes_that_no_method_answers_are_refused_in_one_line(project, capsys):
    where = Places(project, project / "store")
    made = plan.make(where, "default", "methods=[exact_gp,linear,constant] datasets=[boston] splits=1")
    plan.freeze(made, where)
    unheard = "no method of study"
    asked = [(made.name, kind, unheard) for kind in ("layers", "probabilities", "inducing")]
    for name, kind, said in (*asked, ("other", "bounds", "`snakemake --cores 2")):
        assert probes.main([name, kind]) == 1
        error = capsys.readouterr().err
        assert said in error
        assert error.count("\n") == 1
    assert not (where.results / made.name).exists()
