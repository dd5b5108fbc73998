"""Fits of the kind `sample`: chains of known autocorrelation through plan, run, collect and report."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from gpbench.cli import main
from gpbench.data import table as tables
from gpbench.errors import UserError
from gpbench.methods.base import SamplerMethod
from gpbench.places import Places
from gpbench.report.page.page import write_page
from gpbench.report.papers.items import replaced
from gpbench.report.registry import TABLES, names
from gpbench.report.significance.comparisons import write_statistics
from gpbench.report.view import UNMIXED, View
from gpbench.sampling import diagnostics
from gpbench.study import scoring
from gpbench.study.commands import job
from gpbench.study.fitting import chains_only, lightning_module
from gpbench.study.planning import batches, plan
from gpbench.study.records import Cell, Fit, Group, MethodSettings
from gpbench.study.results import chain_file, collect
from gpbench.study.storage import arrays
from gpbench.study.storage.store import Store
from handmade import record_of
from plugins import install
from projects import prepared_project

PLUGIN = Path(__file__).parent / "efficiency_plugin"
CHAINS, STEPS, KEPT = 10, 1250, 1125
NUMBERS = ["log lengthscale 1", "log variance", *(f"f[{i}]" for i in range(5))]
WORDS = (
    f"kind=sample datasets=[boston] splits=2 replicas={CHAINS} budget=smoke ar.steps={STEPS} trainer.square=1000000000"
)


@pytest.fixture(scope="module")
def where(tmp_path_factory):
    """A project with prepared data and the autoregression."""
    where = prepared_project(tmp_path_factory.mktemp("efficiency") / "project", "boston")
    with pytest.MonkeyPatch.context() as patch:
        install(PLUGIN, where.root.parent / "meta", patch)
        patch.setenv("GPBENCH_ROOT", str(where.root))
        patch.setenv("OMP_NUM_THREADS", "1")
        patch.setenv("CI", "1")
        patch.delenv("MLFLOW_TRACKING_URI", raising=False)
        yield where


def made(where: Places, words: str) -> plan.Plan:
    return plan.make(where, "default", replaced(WORDS, words))


def groups(made: plan.Plan) -> tuple[Group, ...]:
    return tuple(group for batch in made.batches for group in batch.groups)


def collected(where: Places, words: str) -> View:
    """Run and collect a study of ten chains a split."""
    study = made(where, words)
    plan.freeze(study, where)
    job.run_groups(groups(study), where)
    collect.collect(where, study.name)
    return View(where.results / study.name)


@pytest.fixture(scope="module")
def mixed(where) -> View:
    return collected(where, "methods=[ar,constant] budget.r_hat=1.05")


@pytest.fixture(scope="module")
def chain_cell(where) -> Cell:
    return made(where, "methods=[ar]").cells[0]


def grouped(cell: Cell, replicas: int = 5, square: int = 2_100_000, chains: int = CHAINS, **what) -> list[list[tuple]]:
    """(split, replica) of the groups of a cell with so many chains a split; its splits have 455 rows, unless told."""
    fits = tuple(fit for fit in cell.fits if fit.replica < chains)
    how, changed = replace(cell.how, replicas=replicas, square=square), replace(cell.what, **what)
    groups = batches.groups(NoGroups(), [replace(cell, fits=fits, how=how, what=changed)], ids(fits))
    return [[(fit.split, fit.replica) for fit in group.fits] for group in groups]


class NoGroups:
    """A store where nothing was begun."""

    def groups(self) -> list:
        return []


def ids(fits: tuple[Fit, ...]) -> set[str]:
    return {fit.fit_id for fit in fits}


def test_ten_chains_of_a_split_advance_in_one_batch(chain_cell):
    def sizes(**settings) -> list[int]:
        return [len(group) for group in grouped(chain_cell, **settings)]

    assert grouped(chain_cell) == [[(split, r) for r in range(CHAINS)] for split in range(2)]
    assert sizes(replicas=14, square=3_000_000) == [10, 10], "whole splits"
    assert sizes(square=900_000) == [4, 4, 4, 4, 4]
    assert sizes(square=900_000, chains=4) == [4, 4]
    assert sizes(square=200_000, chains=3) == [1] * 6
    assert sizes(replicas=64, square=100_000_000) == [20]
    sparse = MethodSettings("gpbench.methods.bsgp", {"num_inducing": 4, "batch_size": 100})
    assert sizes(method=sparse) == [5] * 4, "as without chains"
    assert [len(group) for group in grouped(replace(chain_cell, sampler=False))] == [1] * 20


def test_chains_with_different_numbers_of_rows_do_not_share_a_batch(chain_cell):
    rows = {0: 50, 1: 51}
    cell = replace(chain_cell, fits=tuple(replace(fit, rows=rows[fit.split]) for fit in chain_cell.fits))
    assert [len(group) for group in grouped(cell, replicas=20)] == [10, 10]
    assert [len(group) for group in grouped(cell, replicas=20, kind="predict")] == [20], "of folds, say"
    alternating = tuple(replace(fit, rows=(10, 20)[fit.replica % 2]) for fit in chain_cell.fits)
    growing = replace(chain_cell, fits=alternating)
    assert [{r % 2 for _, r in group} for group in grouped(growing, replicas=10, kind="predict")] == [{0}, {1}]
    stairs = replace(chain_cell, fits=tuple(replace(fit, rows=10 + fit.replica % 3) for fit in chain_cell.fits))
    assert [{r % 3 for _, r in group} for group in grouped(stairs, replicas=20, kind="predict")] == [{0, 1}, {2}]


def test_effective_sample_sizes_are_those_of_an_autoregression(mixed):
    fits = mixed.done
    assert len(fits) == 2 * CHAINS
    assert set(fits["iterations"]) == {KEPT}
    # (1 - rho) / (1 + rho) of the draws are independent; the least of seven numbers lies below
    assert 0.25 * KEPT < fits["ess_min"].mean() < KEPT / 3
    np.testing.assert_allclose(fits["ess_bulk"], CHAINS * KEPT / 3, rtol=0.15)
    np.testing.assert_allclose(fits["ess_percent"], 100 * fits["ess_min"] / KEPT)
    np.testing.assert_allclose(fits["ess_per_cubic"], fits["ess_min"] / 4)
    np.testing.assert_allclose(fits["ess_percent_per_cubic"], fits["ess_percent"] / 4)
    np.testing.assert_allclose(fits["ess_per_second"], fits["ess_min"] / fits["seconds_train"])
    np.testing.assert_allclose(fits["ess_bulk_per_cubic"], fits["ess_bulk"] / (4 * CHAINS))
    seconds = fits.groupby("split")["seconds_train"].transform("sum")  # of all chains of a split
    np.testing.assert_allclose(fits["ess_bulk_per_second"], fits["ess_bulk"] / seconds)
    assert fits[
        ["acceptance_theta", "cholesky", "inverse", "product", "cubic", "quadratic"]
    ].drop_duplicates().to_numpy(float).tolist() == [[0.25, 2, 1, 1, 4, 7]]
    assert fits["acceptance_latents"].isna().all()
    assert fits["n_train"].unique().tolist() == [455]
    assert fits["mnll"].isna().all(), "nothing is predicted"


def test_moments_and_draws_are_those_of_the_chains(where, mixed):
    prefixes, draws = mixed.probe("prefixes"), mixed.probe("draws")
    assert sorted(prefixes["iteration"].unique()) == [225, 450, 675, 900, 1125]
    assert sorted(prefixes["quantity"].unique()) == sorted(NUMBERS)
    assert draws["split"].unique().tolist() == [0]
    assert draws.groupby(["replica", "quantity"]).size().unique().tolist() == [1000]
    assert draws["quantity"].unique().tolist() == [*NUMBERS[:2], "f[0]"]
    fit_id = draws["fit_id"].iloc[0]
    chain = arrays.read(Store(where.store).folder(fit_id), "chain")
    assert chain["names"].tolist() == NUMBERS
    np.testing.assert_allclose(diagnostics.geyer_ess(chain["draws"]), chain["ess"], rtol=1e-4)  # kept in float32
    assert mixed.done.set_index("fit_id").loc[fit_id, "ess_min"] == chain["ess"].min()
    own = prefixes[(prefixes["fit_id"] == fit_id) & (prefixes["quantity"] == "f[2]")].set_index("iteration")
    for t in own.index:
        np.testing.assert_allclose(own.loc[t, "mean"], chain["draws"][:t, 4].mean(dtype=float), rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(own.loc[t, "variance"], chain["draws"][:t, 4].var(dtype=float, ddof=1), rtol=1e-5)
    shown = draws[(draws["fit_id"] == fit_id) & (draws["quantity"] == "f[0]")]
    np.testing.assert_array_equal(shown["value"], chain["draws"][shown["draw"] - 1, 2])


def test_r_hat_judges_all_chains_of_a_split(where, mixed):
    assert set(mixed.fits["status"]) == {"done", "skipped"}
    assert mixed.fits.loc[mixed.fits["method"] == "constant", "reason"].unique().tolist() == ["no Markov chain"]
    assert (mixed.done[["r_hat", "r_hat_classic"]] < 1.05).all(axis=None)
    own = mixed.done[mixed.done["split"] == 1]
    store = Store(where.store)
    found = scoring.mixing(store, [store.record(fit_id) for fit_id in own["fit_id"]])
    assert own["r_hat"].unique().tolist() == [found["r_hat"]]
    assert own["chains"].unique().tolist() == [CHAINS]
    apart = collected(where, "methods=[ar] ar.apart=1 ar.steps=400 budget.r_hat=1.05 splits=1")
    assert set(apart.fits["status"]) == {UNMIXED}
    # V / W of levels 0, ..., 9 is about 1 + 11/12 + 11/120 sd^2 between them, 55/6
    assert apart.done["r_hat_classic"].iloc[0] == pytest.approx(np.sqrt(1 + 1.1 * 55 / 6), rel=0.1)
    assert apart.fits["reason"].str.contains(f"{CHAINS} chains of 360 draws").all()


def test_tables_and_page_of_a_study_without_scores(mixed):
    tables = names(mixed.study, "tables")
    assert {"efficiency", "convergence_order", "status", "unfinished", "all_metrics"} == set(tables) - {"cost"}
    assert not {"convergence", "calibration"} & set(names(mixed.study, "figures"))
    for name in tables:
        assert len(TABLES[name].function(mixed).shown), name
    metrics = TABLES["all_metrics"].function(mixed).data
    assert {"ess_min", "ess_per_second", "r_hat", "cubic"} <= set(metrics["metric"])
    write_statistics(mixed, mixed.folder)
    page = write_page(mixed, mixed.folder).read_text()
    assert "efficiency (its file was not written)" in page
    assert "tables/efficiency.csv" not in page
    assert "regression_mnll" not in page


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_a_killed_group_resumes_bit_for_bit(where, tmp_path, dtype, monkeypatch):
    (group,) = groups(made(where, f"methods=[ar] splits=1 ar.steps=400 dtype={dtype} trainer.checkpoint_seconds=0"))
    table = tables.load(where.prepared_file("boston"), group.what.data.md5)
    whole, cut = (tmp_path / name for name in ("whole", "cut"))
    for work in (whole, cut):
        work.mkdir()
    expected = chains_only.run(group, table, whole)
    advance = lightning_module.SamplerFit.advance

    def dies(fit, batch, noise, step):
        if step == 233:
            raise KeyboardInterrupt
        return advance(fit, batch, noise, step)

    with monkeypatch.context() as patch:
        patch.setattr(lightning_module.SamplerFit, "advance", dies)
        with pytest.raises((KeyboardInterrupt, SystemExit)):
            chains_only.run(group, table, cut)
    assert sorted(cut.glob("checkpoint-*.pt"))[-1].name.startswith("checkpoint-000000200-")
    resumed = chains_only.run(group, table, cut)
    for one, other in zip(resumed, expected, strict=True):
        assert one.status == "done"
        assert one.chain.keys() == other.chain.keys()
        for name, values in other.chain.items():
            np.testing.assert_array_equal(one.chain[name], values, err_msg=name)


def test_a_chain_does_not_depend_on_others_in_its_batch(where, tmp_path):
    (group,) = groups(made(where, "methods=[ar] splits=1 ar.steps=60 ar.apart=2"))
    table = tables.load(where.prepared_file("boston"), group.what.data.md5)
    together = chains_only.run(group, table, tmp_path / "together")
    (alone,) = chains_only.run(replace(group, fits=group.fits[7:8]), table, tmp_path / "alone")
    for name, values in together[7].chain.items():
        np.testing.assert_array_equal(alone.chain[name], values, err_msg=name)


def test_a_draw_that_is_not_finite_is_a_divergence(where, tmp_path, monkeypatch):
    (group,) = groups(made(where, "methods=[ar] splits=1 ar.steps=40"))
    table = tables.load(where.prepared_file("boston"), group.what.data.md5)
    advance = lightning_module.SamplerFit.advance

    def breaks(fit, batch, noise, step):
        objective = advance(fit, batch, noise, step)
        fit.state.params["f"][3] = torch.nan
        return objective

    monkeypatch.setattr(lightning_module.SamplerFit, "advance", breaks)
    outcomes = chains_only.run(group, table, tmp_path)
    assert [one.status for one in outcomes] == ["done"] * 3 + ["diverged"] + ["done"] * 6
    assert outcomes[3].reason == "a draw of 'f' is not finite"


def test_a_method_that_keeps_no_state_is_told_so(where, tmp_path, monkeypatch):
    (group,) = groups(made(where, "methods=[ar] splits=1 ar.steps=40"))
    monkeypatch.setattr(SamplerMethod, "keep", lambda *_: False)
    with pytest.raises(UserError, match="keep kept none of 40 states; let it keep some"):
        chains_only.run(group, tables.load(where.prepared_file("boston"), group.what.data.md5), tmp_path)


def test_what_a_method_needs_to_know_is_in_simulated_data_alone(where):
    study = made(where, "methods=[ar] ar.truth=true")
    assert {cell.skip for cell in study.cells} == {"needs the true f, which only simulated data sets have"}
    chains = made(where, "methods=[ar] kind=predict")
    assert {cell.skip for cell in chains.cells} == {"kind sample only"}


def test_the_truth_is_for_chains_alone(where):
    study = plan.make(where, "filippone2013_parameterisations", "datasets=[lrg_100_2] splits=1 kind=predict figures=[]")
    (reason,) = {cell.skip for cell in study.cells}
    assert reason == "the protocol predicts the simulated truth (f, ...), which only kind=sample may"


def test_chains_make_no_predictions(where, mixed, tmp_path, capsys):
    with pytest.raises(UserError, match="probes of study 'default' ask fits of kind predict, not sample"):
        made(where, "methods=[ar] probes=[layers]")
    fit_id = mixed.done["fit_id"].iloc[0]
    (tmp_path / "new.csv").write_text("x\n1\n")
    assert main.main(["predict", fit_id, str(tmp_path / "new.csv")]) == 1
    assert "is of kind sample: its draws are kept, but no model that predicts" in capsys.readouterr().err


def test_one_chain_from_the_command_line(where, capsys):
    words = ["method=ar", "dataset=boston", "budget=smoke", "kind=sample", "method.steps=60", "replica=2"]
    assert main.main(["fit", *words]) == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["status"], said["iterations"], said["chains"]) == ("done", 54, 1)
    assert said["ess_min"] > 1
    assert main.main(["why", said["fit_id"]]) == 0
    assert "nothing moved" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("count", "expected"),
    [
        (3, [1, 2, 3]),
        (1000, [200, 400, 600, 800, 1000]),
        (2000, [1000, 2000]),
        (7000, [1000, 2000, 5000, 7000]),
        (20000, [1000, 2000, 5000, 10000, 20000]),
    ],
)
def test_checkpoints(count, expected):
    assert chains_only.checkpoints(count) == expected


def test_parameters_are_watched_first_and_latent_values_evenly():
    assert chains_only.watch([3, 100], 12).tolist() == [0, 1, 2, *(3 + np.linspace(0, 99, 9).round().astype(int))]
    assert chains_only.watch([3], 12).tolist() == [0, 1, 2]
    assert len(chains_only.watch([20, 100], 12)) == 12
    assert chains_only.watch([20, 100], 12).max() == 19


def test_percent_are_of_transitions_also_where_not_all_are_kept(where):
    fits = collected(where, f"methods=[ar] splits=1 ar.num_samples={KEPT // 3}").done
    assert set(fits["iterations"]) == {KEPT // 3}
    np.testing.assert_allclose(fits["ess_percent"], 100 * fits["ess_min"] / KEPT)
    np.testing.assert_allclose(fits["ess_percent_per_cubic"], fits["ess_percent"] / 4)


def test_all_that_is_watched_of_a_short_chain_is_shown(tmp_path):
    for count, watched, shown in ((500, 40, 40), (501, 12, 3)):
        names = [f"log_estimate[{i}]" for i in range(50)]
        values = np.random.default_rng(0).normal(size=(count, 50))
        content = chains_only.content({"log_estimate": names}, {"log_estimate": values})
        assert content["draws"].shape == (count, watched)
        arrays.write(tmp_path, {"chain": content})
        draws = chain_file.draws(tmp_path)
        assert draws["quantity"].nunique() == shown
        assert draws["draw"].tolist() == [*range(1, count + 1)] * shown
        assert len(chain_file.prefixes(tmp_path)) == 5 * 50


def test_every_number_that_is_sampled_is_judged():
    """Of 200 latent values one, which is not watched, has another mean in one chain."""
    draws = np.random.default_rng(0).normal(size=(4, 2000, 200))
    draws[0, :, 7] += 3.0
    chains = [chains_only.content({"f": [f"f[{i}]" for i in range(200)]}, {"f": one}) for one in draws]
    assert all(chain["every"].shape == (500, 200) and 7 not in chain["watched"] for chain in chains)
    found = diagnostics.convergence(chains)
    assert found["r_hat"] > 1.2
    assert found["ess_every"] < 20 < found["ess_bulk"]


def test_a_chain_that_is_all_burn_in_has_one_transition(chain_cell):
    hyper = chain_cell.what.method.hyper | {"burn_in": 0.9}
    what = replace(chain_cell.what, steps=1, method=replace(chain_cell.what.method, hyper=hyper))
    assert scoring.transitions(record_of(replace(chain_cell, what=what), chain_cell.fits[0])) == 1


def test_a_chain_of_a_single_draw_has_moments(where):
    content = chains_only.content({"f": ["f"]}, {"f": np.ones((1, 1))})
    assert (content["ess"].tolist(), content["variance"].tolist()) == ([1.0], [[0.0]])
    assert pd.isna(diagnostics.convergence([content, content])["r_hat"])
