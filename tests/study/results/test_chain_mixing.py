"""Markov chains: what their states leave, and the gate that tells those that have mixed from those that have not."""

import dataclasses
import re
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from cases import Case, group
from gpbench.cli import main
from gpbench.errors import UserError
from gpbench.places import Places
from gpbench.report.registry import TABLES
from gpbench.report.view import UNMIXED, View
from gpbench.sampling import diagnostics
from gpbench.study import scoring
from gpbench.study.commands import job
from gpbench.study.fitting import chain_draws
from gpbench.study.fitting.lightning_module import SamplerFit
from gpbench.study.planning import plan
from gpbench.study.results import collect
from gpbench.study.storage import arrays, committed
from gpbench.study.storage.store import Store
from plugins import install
from projects import prepared_project

PLUGIN = Path(__file__).parent / "chains_plugin"
FOLDS, CHAINS = 3, 4
TOGETHER = "trainer.replicas=12 trainer.small=1000000000"


@pytest.mark.parametrize(
    ("name", "task"),
    [("bsgp_1", "regression"), ("bsgp_1", "binary"), ("bsgp_1", "multiclass"), ("mcmc_svgp", "counts")],
)
def test_the_draws_of_a_chain_average_to_what_the_fit_predicts(name, task, tmp_path_factory):
    """A single layer draws nothing but its states, so both ways must meet, units and classes included."""
    (outcome,) = (case := Case(name, task, tmp_path_factory)).fit(group(case.cell, 1))
    chain, points = outcome.chain, outcome.points.set_index("row").loc[outcome.chain["rows"]]
    assert len(chain["mean"]) == case.method.hyper.num_samples
    said = points["mean"] if task in ("regression", "counts") else np.exp(points["log_density"])
    np.testing.assert_allclose(chain["mean"].mean(0)[:, 0], said, rtol=1e-9)
    log_density = np.log(np.exp(chain["log_density"]).mean(0)[:, 0])
    np.testing.assert_allclose(log_density, points["log_density"], rtol=1e-9, atol=1e-12)
    samples = outcome.model["samples"]
    covariance = [name for name in samples if "lengthscale" in name or "outputscale" in name]
    assert len(covariance) == 2
    for name in covariance:
        np.testing.assert_array_equal(chain[name], torch.cat(samples[name]).numpy())


def test_a_parameter_called_like_what_is_kept_is_refused(tmp_path_factory):
    case = Case("bsgp_1", "regression", tmp_path_factory)
    fit = SamplerFit(group(case.cell, 0), case.table, case.folder(), torch.device("cpu"))
    state = fit.replica(0)
    state.samples = {name: [value] for name, value in state.params.items()} | {"mean": [torch.zeros(1, 1)]}
    case.method.covariance_parameters = ("mean",)
    with pytest.raises(UserError, match="covariance parameter 'mean' has the name of what is kept of predictions"):
        chain_draws.draws(case.method, state, fit.folds[0], case.table, "regression")


def test_states_of_all_chains_are_evaluated_with_the_same_noise(tmp_path_factory):
    """Equal states of a deep model say the same, in whatever chain and at whatever place."""
    case = Case("bsgp_2", "regression", tmp_path_factory)
    fit = SamplerFit(group(case.cell, 0), case.table, case.folder(), torch.device("cpu"))
    state, fold = fit.replica(0), fit.folds[0]
    state.samples = {name: [value, value + 0.1, value] for name, value in state.params.items()}
    other = dataclasses.replace(fold, key=fold.key._replace(replica=3))
    one, two = (chain_draws.draws(case.method, state, part, case.table, "regression") for part in (fold, other))
    np.testing.assert_array_equal(one["mean"][0], one["mean"][2])
    np.testing.assert_array_equal(one["mean"], two["mean"])
    assert np.abs(one["mean"][1] - one["mean"][0]).min() > 0


def test_fits_without_a_chain_have_no_draws(tmp_path_factory):
    case = Case("svgp", "regression", tmp_path_factory)
    assert case.alone[0].chain == {}


@pytest.fixture(scope="module")
def where(tmp_path_factory):
    """A project with prepared data and the toy chain."""
    where = prepared_project(tmp_path_factory.mktemp("chains") / "project", "boston")
    with pytest.MonkeyPatch.context() as patch:
        install(PLUGIN, where.root.parent / "meta", patch)
        patch.setattr(chain_draws, "MOST_ROWS", 5)  # which saves a second a split
        patch.setenv("GPBENCH_ROOT", str(where.root))
        patch.setenv("OMP_NUM_THREADS", "1")
        patch.setenv("CI", "1")
        patch.delenv("MLFLOW_TRACKING_URI", raising=False)
        yield where


def collected(where: Places, methods: str, overrides: str, splits: int = FOLDS) -> tuple[plan.Plan, View]:
    """Run and collect a study of four chains a split."""
    words = f"methods=[{methods}] datasets=[boston] splits={splits} replicas={CHAINS} budget=smoke {overrides}"
    made = plan.make(where, "default", words)
    plan.freeze(made, where)
    job.run_groups(tuple(group for batch in made.batches for group in batch.groups), where)
    collect.collect(where, made.name)
    return made, View(where.results / made.name)


@pytest.fixture(scope="module")
def short(where):
    """Thirty transitions of four chains on each of three folds, under a budget that judges them."""
    return collected(where, "bsgp_1,constant", f"budget.r_hat=1.05 bsgp_1.num_inducing=8 bsgp_1.steps=60 {TOGETHER}")


@pytest.mark.slow
def test_four_chains_on_three_folds_share_one_process(where, short):
    made, view = short
    groups = [group for batch in made.batches for group in batch.groups if group.address.method == "bsgp_1"]
    assert [len(group.fits) for group in groups] == [FOLDS * CHAINS]
    fits = view.fits[view.fits["method"] == "bsgp_1"]
    records = [Store(where.store).record(fit_id) for fit_id in fits["fit_id"]]
    assert {record.seconds.shared_by for record in records} == {FOLDS * CHAINS}
    assert len(fits) == FOLDS * CHAINS
    assert fits[["r_hat", "ess_bulk", "ess_tail", "r_hat_covariance"]].notna().all(axis=None)


def test_diagnostics_are_those_of_all_chains_of_a_split(where, short):
    _, view = short
    store = Store(where.store)
    for split, fits in view.fits[view.fits["method"] == "bsgp_1"].groupby("split"):
        own = [arrays.read(store.folder(fit_id), "chain") for fit_id in fits["fit_id"]]
        assert len({tuple(chain["rows"]) for chain in own}) == 1
        found = diagnostics.mixing(own)
        assert fits["r_hat"].unique().tolist() == [found["r_hat"]], split
        assert (fits["chains"] == CHAINS).all()
    fit_id = view.fits["fit_id"].dropna().iloc[0]
    alone = scoring.mixing(store, [store.record(fit_id)])
    assert (alone["chains"], alone["r_hat"] > 0) == (1, True)
    assert len(list(store.folder(fit_id).glob("mixing-*.json"))) == 1, "of its split"


def test_short_chains_are_printed_as_failing_and_compared_with_nothing(where, short, capsys):
    made, view = short
    assert set(view.fits.loc[view.fits["method"] == "bsgp_1", "status"]) == {UNMIXED}
    cell = view.cells("rmse").set_index("method").loc["bsgp_1"]
    assert (cell["n"], bool(cell["complete"]), cell["statuses"]) == (FOLDS, False, "3 of 3 not converged")
    shown = TABLES["regression_rmse"].function(view).shown.set_index("method")["boston"]
    assert shown[view.labels["bsgp_1"]].endswith("(3) ✗ 3 of 3 not converged")
    assert shown[view.labels["constant"]].startswith("**"), "the only cell that is compared"
    listed = TABLES["unfinished"].function(view).data
    assert len(listed) == FOLDS * CHAINS
    assert listed["reason"].str.fullmatch(r"R-hat \S+ exceeds 1.05 \(4 chains of 30 draws\)").all()
    counts = TABLES["status"].function(view).data.set_index("method").loc["bsgp_1", ["done", UNMIXED]]
    assert counts.tolist() == [0, FOLDS * CHAINS]
    assert main.main(["verdict", made.name]) == 0, "no failed job"
    said = capsys.readouterr()
    assert said.err.count("not converged: bsgp_1 on boston, split ") == FOLDS
    assert "but the fits of 3 splits have not converged" in said.out


def test_a_changed_limit_refits_nothing_and_collects_again(where, short):
    made, _ = short
    same = plan.make(where, "default", made.command.split("overrides=")[1].strip("'").replace("1.05", "1.5"))
    assert not same.batches
    plan.freeze(same, where)
    read = [collect.read_plan(where, name) for name in (made.name, same.name)]
    assert len({collect.seen(collect.Ended(where, frozen.name), frozen) for frozen in read}) == 2
    assert {cell.r_hat for cell in read[1].cells} == {1.5}


def test_chains_that_mix_pass_and_those_that_stay_apart_do_not(where):
    settings = f"toy.steps=250 budget.r_hat=1.05 {TOGETHER}"
    for apart, expected in ((0, "done"), (3, UNMIXED)):
        _, view = collected(where, "toy", f"toy.apart={apart} {settings}", splits=2)
        assert set(view.fits["status"]) == {expected}
        assert bool(view.cells("mnll")["complete"].all()) == (apart == 0)
        row = TABLES["chains"].function(view).data.iloc[0]
        assert row["ess_bulk"] > 500 if apart == 0 else row["ess_bulk"] < 50
        fits = view.done[view.done["split"] == 0]
        assert fits[["cholesky", "product", "cubic"]].drop_duplicates().to_numpy().tolist() == [[2.0, 1.0, 3.0]]
        np.testing.assert_allclose(fits["ess_bulk_per_cubic"], row["ess_bulk"] / (3 * CHAINS))
        np.testing.assert_allclose(fits["ess_bulk_per_second"], row["ess_per_second"])
        assert row["r_hat_covariance"] < 1.05, "of the toy, whose lengthscale does not know of the distance"
        assert row["ess_per_second"] == pytest.approx(
            row["ess_bulk"] / view.fits.query("split == 0").seconds_train.sum()
        )


def test_a_chain_fitted_alone_says_whether_it_has_converged(where):
    words = ["dataset=boston", "budget=smoke", "method.steps=250"]
    _, said = job.run_words(where, ["method=toy", *words])
    assert (said["convergence"], "reason" in said) == ("converged", False)
    _, said = job.run_words(where, ["method=bsgp_1", *words[:2], "method.num_inducing=8", "method.steps=60"])
    assert said["convergence"] == "not converged"
    assert re.fullmatch(r"R-hat \S+ exceeds 1.05 \(1 chain of 30 draws\)", said["reason"])


def test_chains_do_not_join_recorded_ones_whose_draws_are_elsewhere(where, capsys):
    """Their R-hat would be of some chains of the split alone; those of another split are recorded."""
    made, _ = collected(where, "toy", f"toy.apart=1 toy.steps=250 {TOGETHER}", splits=2)
    assert collect.record(where, made) == (2 * CHAINS, 2 * CHAINS)
    path = committed.folder(where, made.name) / "scores.csv"
    header, first, new, *others = path.read_text().splitlines()
    path.write_text("\n".join([header, first, *others, ""]))
    shutil.rmtree(Store(where.store).folder(committed.read(path)[0]["fit_id"]))
    before = committed.read(path)
    capsys.readouterr()
    assert collect.record(where, made) == (0, 2 * CHAINS - 1)
    assert committed.read(path) == before
    assert capsys.readouterr().err == "gpbench: toy on boston, split 0: no chain added, recorded ones are elsewhere\n"
    path.write_text("\n".join([header, first, *others[: CHAINS - 2], ""]))
    assert collect.record(where, made) == (CHAINS, 2 * CHAINS - 1)


def test_without_a_limit_chains_are_described_and_not_judged(where):
    _, view = collected(where, "toy", f"toy.apart=3 toy.steps=250 {TOGETHER}", splits=2)
    assert set(view.fits["status"]) == {"done"}
    assert (view.fits["r_hat"] > 1.5).all()
    table = TABLES["chains"].function(view)
    assert "the budget sets no limit" in table.note
    assert "✗" not in table.shown["R-hat"].iloc[0]
    drawn = pd.read_parquet(view.folder / "chains.parquet")
    assert drawn.groupby("fit_id")["row"].nunique().unique().tolist() == [3]
