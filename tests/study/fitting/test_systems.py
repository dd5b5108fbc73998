"""Fits of the kind `solve`: solvers on a grid of systems through plan, run, kill, collect and report."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from gpbench import streams
from gpbench.errors import UserError
from gpbench.methods import cg_prior, pcg_grid
from gpbench.methods.systems import Stored
from gpbench.places import Places
from gpbench.report.figures import draw
from gpbench.report.page.page import write_page
from gpbench.report.registry import names
from gpbench.report.significance.comparisons import write_statistics
from gpbench.report.tables.standard import write_table
from gpbench.report.view import View
from gpbench.solvers import conjugate_gradients, quadrature
from gpbench.solvers.products import KernelProduct
from gpbench.streams import Key
from gpbench.study import scoring
from gpbench.study.commands import job
from gpbench.study.fitting import children
from gpbench.study.planning import plan
from gpbench.study.records import FitRecord, Group
from gpbench.study.results import collect
from gpbench.study.storage import arrays, committed
from gpbench.study.storage.store import Store
from projects import prepared_project

STUDY = "cutajar2016_preconditioners"
GRID = "pcg_grid.lengthscale_points=3 pcg_grid.noise_points=2 pcg_grid.subset=60 pcg_grid.cap=40"
SYSTEMS = 6
WORDS = f"datasets=[boston] only=[cg,nystrom,block_jacobi] budget=smoke {GRID}"
CLOCKS = ["seconds", "setup_seconds", "solve_seconds"]


@pytest.fixture(scope="module")
def where(tmp_path_factory):
    """A project with prepared data."""
    where = prepared_project(tmp_path_factory.mktemp("systems") / "project", "boston")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GPBENCH_ROOT", str(where.root))
        patch.setenv("OMP_NUM_THREADS", "1")
        patch.setenv("CI", "1")
        patch.delenv("MLFLOW_TRACKING_URI", raising=False)
        yield where


def run(where: Places, words: str) -> tuple[plan.Plan, tuple[Group, ...]]:
    """Plan a study and run what is missing; its plan, and what was run."""
    made = plan.make(where, STUDY, words)
    plan.freeze(made, where)
    groups = tuple(group for batch in made.batches for group in batch.groups)
    job.run_groups(groups, where)
    return made, groups


@pytest.fixture(scope="module")
def view(where) -> View:
    made, _ = run(where, WORDS)
    collect.collect(where, made.name)
    return View(where.results / made.name)


def test_every_system_of_the_grid_is_measured(view):
    systems = view.probe("systems")
    assert len(view.done) == 3
    assert systems.groupby("method").size().to_dict() == dict.fromkeys(["cg", "nystrom", "block_jacobi"], SYSTEMS)
    grid = systems[systems["method"] == "cg"].sort_values("step")
    np.testing.assert_allclose(np.log10(grid["lengthscale"]), [-3, -3, -0.5, -0.5, 2, 2])
    np.testing.assert_allclose(np.log10(grid["noise"]), 3 * [-6, 0])
    assert set(systems["rows"]) == {60}
    assert (systems["iterations"] <= 40).all()
    solved = systems[systems["stopped"] == 0]
    assert (solved["residual"] <= 1e-5).all()
    assert (systems.loc[systems["stopped"] == 1, "iterations"] == 40).all(), "the cap"
    scores = view.done.set_index("method")
    assert set(scores["systems"]) == {SYSTEMS}
    assert scores.loc["cg", "stopped"] == systems.query("method == 'cg'")["stopped"].sum()
    assert scores.loc["cg", "total_iterations"] == systems.query("method == 'cg'")["iterations"].sum()


def test_iterations_of_a_solver_within_count(tmp_path):
    measured = {"step": [1, 2], "iterations": [3, 4], "inner": [10, 20], "stopped": [0, 1]}
    arrays.write(tmp_path, {"trace": {name: np.array(values) for name, values in measured.items()}})
    assert scoring._of_systems(tmp_path, None) == {"systems": 2.0, "stopped": 1.0, "total_iterations": 37.0}


def test_the_page_shows_its_figures_and_tables(view, tmp_path):
    for name in names(view.study, "figures"):
        draw(view, name)
    for name in names(view.study, "tables"):
        write_table(view, name, view.folder / "tables")
    write_statistics(view, view.folder)
    text = write_page(view, tmp_path).read_text()
    assert "Linear solvers" in text
    assert "Iterations and seconds saved by preconditioners" in text


def test_records_have_the_systems_and_draw_the_same_heat_map(where, view):
    made, _ = run(where, WORDS)
    collect.record(where, made)
    recorded = View(committed.folder(where, made.name))
    columns = ["lengthscale", "noise", "iterations", "inner", "stopped"]
    ours, theirs = (
        one.probe("systems").set_index(["method", "step"])[columns].sort_index() for one in (recorded, view)
    )
    np.testing.assert_allclose(ours, theirs, rtol=1e-4)
    for one, other in zip(draw(recorded, "preconditioners").axes, draw(view, "preconditioners").axes, strict=True):
        for drawn, expected in zip(one.images, other.images, strict=True):
            np.testing.assert_allclose(drawn.get_array(), expected.get_array(), rtol=1e-3)
    (committed.folder(where, made.name) / "systems.csv").unlink()
    assert View(committed.folder(where, made.name)).probe("systems").empty
    assert draw(View(committed.folder(where, made.name)), "preconditioners").get_label().startswith("No systems")


def test_the_plan_knows_what_is_done_and_what_cannot_be(where, view):
    made, groups = run(where, WORDS)
    assert groups == ()
    assert {state.name for state in made.states.values()} == {"done"}
    other = plan.make(where, STUDY, WORDS.replace("only=[cg,nystrom,block_jacobi]", "only=[cg,ski]"))
    assert {cell.method: cell.skip for cell in other.cells} == {
        "cg": "",
        "ski": "the study has it for concrete and power only",
    }
    mixed = plan.make(where, STUDY, "datasets=[boston] budget=smoke methods=[constant] only=[constant]")
    assert [cell.skip for cell in mixed.cells] == ["kind predict only"]


def run_only(where: Places, words: str, systems: range) -> tuple[Group, ...]:
    """Run a study whose fits die at every system but these."""
    measure = pcg_grid.Method.measure

    def mortal(self, x, y, number, key):
        if number not in systems:
            raise SystemExit(children.STOPPED)
        return measure(self, x, y, number, key)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pcg_grid.Method, "measure", mortal)
        return run(where, words)[1]


def test_resumed_is_uninterrupted(where, view, tmp_path):
    """In another store, where the fit is killed after four of six systems."""
    again = Places(where.root, tmp_path / "store")
    words = WORDS.replace("only=[cg,nystrom,block_jacobi]", "only=[nystrom]")
    run_only(again, words, range(4))
    made = plan.make(again, STUDY, words)
    assert [state.reason for state in made.states.values()] == ["resumes at step 4"]
    ended = collect.Ended(again, made.name)
    (cell,), store = made.cells, Store(again.store)
    assert ended.status(cell, cell.fits[0]) == ("missing", "interrupted at step 4")
    (group,) = run_only(again, words, range(4, SYSTEMS))
    found, whole = (
        arrays.trace(s.folder(group.fits[0].fit_id)).drop(columns=CLOCKS) for s in (store, Store(where.store))
    )
    pd.testing.assert_frame_equal(found, whole, check_exact=True)


def run_with(where: Places, tmp_path, measure) -> tuple[FitRecord, Path]:
    """A fit whose method measures so, in a store of its own; its record and folder."""
    again = Places(where.root, tmp_path / "store")
    words = WORDS.replace("only=[cg,nystrom,block_jacobi]", "only=[cg]")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pcg_grid.Method, "measure", measure)
        (group,) = run(again, words)[1]
    store, fit_id = Store(again.store), group.fits[0].fit_id
    return store.record(fit_id), store.folder(fit_id)


def test_no_system_depends_on_the_one_before(where, tmp_path):
    def careless(self, x, y, number, key):
        largest = x.abs().max().item()
        x.zero_()
        y.zero_()
        return {"iterations": 1, "stopped": False, "largest": largest}

    largest = arrays.trace(run_with(where, tmp_path, careless)[1])["largest"]
    assert len(largest) == SYSTEMS
    assert largest.nunique() == 1
    assert largest[0] > 0


@pytest.mark.parametrize(
    "answer",
    [
        {"n_iterations": 3, "converged": 1},
        {"iterations": np.nan, "stopped": 0},
        {"iterations": 3},
        {"iterations": 3, "stopped": 2},
        {"iterations": 3, "stopped": 0, "step": 7},
        {"iterations": 3, "stopped": 0, "residual": [1.0]},
        None,
    ],
)
def test_what_is_no_measurement_is_one_line(where, tmp_path, answer):
    record, _ = run_with(where, tmp_path, lambda *words: answer)
    said = f"gpbench.methods.pcg_grid: measure returned {type(answer).__name__}; it must return a dict of numbers, with"
    assert (record.status, record.reason.splitlines()[0][: len(said)]) == ("failed", said)


def test_a_time_cap_stops_between_systems(where, tmp_path):
    again = Places(where.root, tmp_path / "store")
    words = WORDS.replace("only=[cg,nystrom,block_jacobi]", "only=[cg]")
    _, (group,) = run(again, f"{words} trainer.max_minutes=1e-9")
    assert Store(again.store).unfinished(group) == ("stopped", "stopped after 1e-09 minutes at step 0 of 6")
    run(again, words)
    assert Store(again.store).record(group.fits[0].fit_id).status == "done"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("pcg_grid.preconditioner=nistrom", "nistrom"),
        ("pcg_grid.cap=0", "cap"),
        ("pcg_grid.lengthscales=3", "lengthscales"),
        ("probes=[surfaces]", "ask fits of kind predict, not solve"),
        ("kind=solver", "kind"),
    ],
)
def test_bad_settings_are_one_line(gpbench, words, said):
    answer = gpbench("plan", STUDY, "--overrides", words)
    assert answer.code == 1
    assert answer.err.count("\n") == 1, answer.err
    assert said in answer.err


def test_an_empty_grid_is_skipped_with_its_reason(where):
    made = plan.make(where, STUDY, f"{WORDS} pcg_grid.lengthscale_low=3.0")
    assert {cell.skip for cell in made.cells} == {
        "the grid needs lengthscale_low <= lengthscale_high and noise_low <= noise_high"
    }


SMOOTH = {"lengthscale_low": 1.0, "lengthscale_high": 1.0, "lengthscale_points": 1, "noise_low": -4.0}


def measured(preconditioner: str, x: torch.Tensor, y: torch.Tensor, **hyper: object) -> dict[str, float]:
    settings = SMOOTH | {"noise_high": -4.0, "noise_points": 1, "cap": 2000} | hyper
    method = pcg_grid.Method(pcg_grid.Hyperparameters(preconditioner=preconditioner, **settings), "regression")
    return method.measure(x, y, 0, Key("smooth", "all_rows", 0))


@pytest.fixture(scope="module")
def smooth() -> tuple[torch.Tensor, torch.Tensor]:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((400, 8))
    return torch.as_tensor(x), torch.as_tensor(np.sin(x).sum(1) + 0.1 * rng.standard_normal(400))


@pytest.mark.slow
def test_at_long_lengthscales_low_rank_saves_iterations_and_block_jacobi_and_regularised_do_not(smooth):
    """cutajar2016, section 4.1."""
    cost = {
        name: measured(name, *smooth) for name in ("none", "nystrom", "fitc", "pitc", "block_jacobi", "regularised")
    }
    iterations = {name: found["iterations"] + found["inner"] for name, found in cost.items()}
    assert not any(cost[name]["stopped"] for name in ("none", "nystrom", "fitc", "pitc"))
    assert max(iterations[name] for name in ("nystrom", "fitc", "pitc")) < iterations["none"]
    assert min(iterations["block_jacobi"], iterations["regularised"]) > iterations["none"]


@pytest.mark.parametrize(("most_stored", "product"), [(400, Stored), (399, KernelProduct)])
def test_the_solution_is_that_of_a_dense_solve_whether_the_matrix_is_kept_or_not(
    smooth, most_stored, product, monkeypatch
):
    """Of 400 rows at lengthscale 10 and noise variance 1e-4."""
    calls = []

    def solve(*words, **settings):
        calls.append((type(words[0]), conjugate_gradients.solve(*words, **settings)))
        return calls[-1][1]

    monkeypatch.setattr(pcg_grid, "solve", solve)
    found = measured("nystrom", *smooth, most_stored=most_stored, outputscale=2.0, accuracy=1e-9)
    ((kind, solution),) = calls
    x, y = (part.numpy() for part in smooth)
    squares = np.square(x[:, None] - x).sum(2)
    k = 2.0 * np.exp(-squares / (2 * 10.0**2)) + 1e-4 * np.eye(400)
    dense = np.linalg.solve(k, y)
    assert kind is product
    assert np.linalg.norm(solution.x[:, 0].numpy() - dense) < 1e-5 * np.linalg.norm(dense)
    assert found["residual"] <= 1e-9
    assert found["residual"] == pytest.approx(np.linalg.norm(y - k @ solution.x[:, 0].numpy()) / 20, rel=0.1)
    assert found["stopped"] == 0


def test_iterations_hardly_depend_on_whether_the_matrix_is_kept(smooth):
    # with a preconditioner, as rounding alone moves the end of two hundred iterations without one
    kept = measured("nystrom", *smooth)
    found = measured("nystrom", *smooth, most_stored=10)
    assert abs(found["iterations"] - kept["iterations"]) <= 1, "sums are rounded in another order"
    assert found["residual"] <= 1e-5


@pytest.mark.parametrize("name", ["nystrom", "partial_svd", "pitc", "regularised"])
def test_awkward_systems_end(smooth, name):
    """A single row, repeated rows with hardly any noise, a rank above n: an answer, or the cap."""
    x, y = smooth
    one = measured(name, x[:1], y[:1], rank=50)
    assert one["stopped"] == 0
    assert one["iterations"] <= 1
    hard = {"noise_low": -12.0, "noise_high": -12.0, "cap": 50}
    repeated = measured(name, x[:20].repeat(3, 1), y[:20].repeat(3), rank=1000, **hard)
    assert repeated["iterations"] + repeated["inner"] <= 50 + 10 * 60
    assert np.isfinite(json.loads(json.dumps(repeated["residual"])))


@pytest.mark.parametrize("solver", ["cg", "regularised", "ulisse"])
def test_solvers_on_a_drawn_system(smooth, solver):
    """The condition number is that of NumPy; conjugate gradients end at the dense solution, ULISSE before."""
    x, y = smooth[0][:80], smooth[1][:80]
    method = cg_prior.Method(
        cg_prior.Hyperparameters(solver=solver, repetitions=30, shape=0.5, cap_per_row=200), "regression"
    )
    found = method.measure(x, y, 3, Key("smooth", "all_rows", 0))
    squares = np.square(x.numpy()[:, None] - x.numpy()).sum(2)
    k = found["sigma"] * np.exp(-found["tau"] * squares) + found["lambda"] * np.eye(80)
    assert found["kappa"] == pytest.approx(np.linalg.cond(k), rel=1e-6)
    assert found["stopped"] == 0
    if solver == "ulisse":
        assert found["error"] > 1e-6
        assert found["sd"] > 0
    else:
        assert found["error"] < 1e-6
        assert found["sd"] == 0


@pytest.mark.parametrize("solver", ["cg", "ulisse"])
def test_the_error_of_gradients_is_that_of_dense_ones(smooth, solver, monkeypatch):
    """Over the same probes, with dense solutions; in ULISSE's place with its estimates, the two of y apart."""
    x, y, key = smooth[0][:40], smooth[1][:40], Key("smooth", "all_rows", 0)
    settings = {"solver": solver, "repetitions": 30, "shape": 0.5, "cap_per_row": 200}
    method = cg_prior.Method(cg_prior.Hyperparameters(**settings), "regression")
    estimates, estimate = [], method.estimate

    def keeping(*words):
        estimates.append(estimate(*words))
        return estimates[-1]

    monkeypatch.setattr(method, "estimate", keeping)
    found = method.measure(x, y, 3, key)
    squares = np.square(x.numpy()[:, None] - x.numpy()).sum(2)
    smooth_part = np.exp(-found["tau"] * squares)
    k = found["sigma"] * smooth_part + found["lambda"] * np.eye(40)
    slopes = np.stack([smooth_part, -found["sigma"] * squares * smooth_part, np.eye(40)])
    probes = quadrature.rademacher(40, 30, streams.generator(key, "noise", 4)).numpy()
    solution = np.linalg.solve(k, y.numpy())
    exact = 0.5 * solution @ slopes @ solution - 0.5 * np.einsum("ij,tji->t", np.linalg.inv(k), slopes)
    first, second, of_probes = solution[:, None], solution[:, None], np.linalg.solve(k, probes)
    if solver == "ulisse":
        (of_y, _), (of_probes, _) = estimates
        first, second = of_y[:, :30].numpy(), of_y[:, 30:].numpy()
        of_probes = of_probes.numpy()
    drawn = 0.5 * (first * (slopes @ second)).sum(1) - 0.5 * (of_probes * (slopes @ probes)).sum(1)
    relative = np.square(drawn - exact[:, None]).sum(0) / np.square(exact).sum()
    assert found["gradient_error"] == pytest.approx(np.log10(relative).mean(), abs=1e-4)


def test_the_gradient_of_drawn_systems_is_that_of_autograd(smooth):
    """Of log N(y; 0, K) in sigma, tau and lambda."""
    x, y = smooth[0][:40], smooth[1][:40]
    theta = torch.tensor([0.8, 0.3, 0.2], dtype=torch.float64, requires_grad=True)
    squares = torch.cdist(x, x).square()
    k = theta[0] * (-theta[1] * squares).exp() + theta[2] * torch.eye(40, dtype=x.dtype)
    law = torch.distributions.MultivariateNormal(torch.zeros(40, dtype=torch.float64), k)
    (wanted,) = torch.autograd.grad(law.log_prob(y), theta)
    k, solution = k.detach(), torch.linalg.solve(k, y[:, None]).detach()
    slopes = cg_prior.derivatives(k, x, 0.8, 0.2)
    found = -0.5 * cg_prior.traces(k, slopes) + 0.5 * cg_prior.forms(solution, slopes, solution)[:, 0]
    torch.testing.assert_close(found, wanted, rtol=1e-8, atol=1e-8)


def test_a_system_that_no_prior_has_is_refused_in_one_line(smooth):
    """Of one row the condition number is 1."""
    method = cg_prior.Method(cg_prior.Hyperparameters(), "regression")
    with pytest.raises(UserError, match="no system of 1 rows in 100 draws has a condition number in"):
        method.measure(smooth[0][:1], smooth[1][:1], 0, Key("smooth", "all_rows", 0))
