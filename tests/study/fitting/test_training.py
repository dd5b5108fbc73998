"""The training loop: mini-batches, checkpoints, the time cap, the trace. (What it owes every method: conformance.)"""

import dataclasses
import importlib
import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from cases import ALONE, BLOCK, SPLITS, STEPS, Case, assert_close, assert_same, changed, group, numbers, with_hyper
from gpbench.errors import UserError
from gpbench.predictive.distributions import GaussianMixture
from gpbench.study.commands import job
from gpbench.study.fitting import checkpoint, lightning_module, loop
from gpbench.study.fitting import outcome as outcomes
from gpbench.study.fitting.outcome import Outcome

BATCH = 16


@pytest.fixture(scope="module")
def case(tmp_path_factory):
    """Full batches."""
    return Case("fitc_svgp", "regression", tmp_path_factory)


@pytest.fixture(scope="module")
def mini(tmp_path_factory):
    """Mini-batches, and a method that draws noise for its features."""
    return Case("dgp_rff", "regression", tmp_path_factory, hyper={"batch_size": BATCH})


def test_mini_batches_of_unequal_parts_are_the_same_batched_and_looped(mini):
    for one, other in zip(mini.together[:ALONE], mini.alone, strict=True):
        assert_close(one, other)


def test_mini_batches_are_rows_of_the_training_part_weighted_to_its_size(mini):
    fit = lightning_module.GradientFit(group(mini.cell, 0), mini.table, mini.folder(), torch.device("cpu"))
    batch, _ = fit.draw(0)
    assert batch.x.shape[:2] == (1, BATCH)
    assert batch.weight.sum().item() == pytest.approx(len(mini.fold.train))
    train = mini.fold.scaling.inputs(mini.table.inputs[mini.fold.train])
    distance = np.abs(batch.x[0].numpy()[:, None] - train[None]).max(-1).min(1)
    assert distance.max() < 1e-12


def test_every_block_draws_anew_and_every_time_the_same(mini):
    fit = lightning_module.GradientFit(group(mini.cell, 0, 1), mini.table, mini.folder(), torch.device("cpu"))
    drawn = [(positions, noise.fixed) for positions, noise in (fit.draws.at(step) for step in (0, BLOCK, 0))]
    for first, second, again in zip(*drawn, strict=True):
        assert torch.equal(first, again)
        assert not torch.equal(first, second)
        assert not torch.equal(first[0], first[1])  # replicas


def test_a_batch_size_between_the_sizes_of_the_parts_is_refused(tmp_path_factory):
    between = Case("dgp_rff", "regression", tmp_path_factory)
    refused = group(with_hyper(between.cell, batch_size=len(between.fold.train) - 1), 0, 1)
    with pytest.raises(ValueError, match="change it by a row"):
        between.fit(refused)


def test_the_time_cap_stops_at_a_checkpoint_and_the_rest_is_as_if_it_had_not(case):
    work = case.folder()
    for stop in (1, 2):
        outcomes = case.fit(group(case.cell, *range(SPLITS), max_minutes=1e-9), work=work)
        assert {o.status for o in outcomes} == {"stopped"}
        assert outcomes[0].reason == f"stopped after 1e-09 minutes at step {stop * BLOCK} of {STEPS}"
    for one, other in zip(case.fit(group(case.cell, *range(SPLITS)), work=work), case.together, strict=True):
        assert_same(one, other)


def test_a_compiled_loss_changes_nothing_but_rounding(mini, monkeypatch):
    """By the backend that runs the graph as it was captured, in seconds; where there is no whole graph it fails."""
    captured, usual = [], torch.compile

    def compiled(loss, mode):
        captured.append(mode)
        return usual(loss, backend="eager", fullgraph=True)

    monkeypatch.setattr(torch, "compile", compiled)
    fitted = mini.fit(group(mini.cell, *range(SPLITS), compile=True))
    assert captured == [None]
    for one, other in zip(fitted, mini.together, strict=True):
        assert_close(one, other)


def test_the_clock_counts_training_once_however_often_it_is_asked(monkeypatch):
    now = iter([0.0, 3.0, 3.0, 10.0, 14.0])
    monkeypatch.setattr(lightning_module.time, "perf_counter", lambda: next(now))
    clock = lightning_module.Clock(torch.device("cpu"))
    assert clock.pause() == 3.0
    assert clock.pause() == 3.0  # a pause ends once
    clock.go()
    assert clock.pause() == 7.0


def test_a_replica_that_is_not_finite_does_not_move_again(case, monkeypatch):
    """Neither by its gradient nor by the momentum of earlier steps."""
    fit = lightning_module.GradientFit(group(case.cell, 0, 1), case.table, case.folder(), torch.device("cpu"))
    fit.configure_optimizers()
    loss = fit.method.loss
    moved = []
    for step in range(4):
        monkeypatch.setattr(fit.method, "loss", at_infinity(loss) if step == 2 else loss)
        before = {name: value.detach().clone() for name, value in fit.state.params.items()}
        fit.advance(*fit.draw(step), step)
        changes = [(value != before[name]).reshape(2, -1).any(1) for name, value in fit.state.params.items()]
        moved.append(torch.stack(changes).any(0).tolist())
    assert moved == [[True, True], [True, True], [True, False], [True, False]]
    assert fit.reasons == ["", f"not finite at step 3 of {STEPS}"]


def test_a_fit_ends_where_no_replica_is_left(case, monkeypatch):
    """It made all of its steps, half an hour of a chain that was lost at its 77th."""
    module, made = importlib.import_module(case.cell.what.method.module), []
    loss = module.Method.loss

    def infinite(method, state, batch, noise):
        made.append(0)
        return loss(method, state, batch, noise) + (np.inf if len(made) > 3 else 0)

    monkeypatch.setattr(module.Method, "loss", infinite)
    outcomes = case.fit(group(case.cell, 0, 1))
    assert [o.reason for o in outcomes] == [f"not finite at step 4 of {STEPS}"] * 2
    assert [(o.status, o.info["steps_done"]) for o in outcomes] == [("diverged", 4)] * 2
    assert len(made) == 4 + 1 < STEPS, "the step that fails is made twice"


def test_numbers_of_an_expanded_parameter_move_one_by_one(case, monkeypatch):
    module = importlib.import_module(case.cell.what.method.module)
    init = module.Method.init

    def expanded(method, train, key):
        state = init(method, train, key)
        for name, value in state.params.items():
            state.params[name] = value.mean(-1, keepdim=True).expand_as(value)
        return state

    monkeypatch.setattr(module.Method, "init", expanded)
    fit = lightning_module.GradientFit(group(case.cell, 0), case.table, case.folder(), torch.device("cpu"))
    fit.configure_optimizers()
    fit.advance(*fit.draw(0), 0)
    assert any(value.unique().numel() > value[..., 0].numel() for value in fit.state.params.values())


def at_infinity(loss):
    """`loss`, infinite for replica 1."""
    return lambda *arguments: loss(*arguments) + torch.tensor([0.0, torch.inf])


def test_a_chain_takes_every_step_from_0_and_is_asked_after_every_step_from_1(tmp_path_factory, monkeypatch):
    chain = Case("bsgp_1", "regression", tmp_path_factory)
    module = importlib.import_module(chain.cell.what.method.module)
    step, keep, taken, asked, kept = module.Method.step, module.Method.keep, [], [], []

    def stepping(method, state, batch, noise, number, steps):
        taken.append((number, steps))
        return step(method, state, batch, noise, number, steps)

    def keeping(method, number, steps):
        asked.append((number, steps))
        kept.append(keep(method, number, steps))
        return kept[-1]

    monkeypatch.setattr(module.Method, "step", stepping)
    monkeypatch.setattr(module.Method, "keep", keeping)
    (outcome,) = chain.fit(group(chain.cell, 0))
    assert taken == [(number, chain.steps) for number in range(chain.steps)]
    assert asked == [(number, chain.steps) for number in range(1, chain.steps + 1)]
    assert {len(values) for values in outcome.model["samples"].values()} == {sum(kept)}
    assert sum(kept) > 0


def test_seconds_go_on_where_a_checkpoint_left_them(case):
    work = case.folder()
    case.fit(group(case.cell, 0, max_minutes=1e-9), work=work)
    (path,) = work.glob("checkpoint-*.pt")
    content = torch.load(path, weights_only=True) | {"seconds": 1000.0}
    path.unlink()
    checkpoint._save(work, f"checkpoint-{BLOCK:09d}", content)
    (outcome,) = case.fit(group(case.cell, 0), work=work)
    assert 1000 < outcome.seconds["train"] < 1060
    assert all(row["seconds"] > 1000 for row in outcome.trace if row["step"] > BLOCK)


def test_two_checkpoints_are_kept(case):
    work = case.folder()
    case.fit(group(case.cell, 0, checkpoint_seconds=0.0), work=work)
    kept = sorted(p.name.rpartition("-")[0] for p in work.glob("checkpoint-*.pt"))
    assert kept == [f"checkpoint-{step:09d}" for step in (STEPS - BLOCK, STEPS)]


def test_samples_become_parts_of_one_block_a_checkpoint_and_are_read_as_they_were(tmp_path):
    drawn = torch.arange(42.0).reshape(7, 2, 3)
    samples = {"psi": list(drawn[:4].clone().unbind())}
    checkpoint.write(tmp_path, {"step": 4, "fits": ["a"]}, samples)
    samples["psi"] += [value.clone() for value in drawn[4:]]
    checkpoint.write(tmp_path, {"step": 7, "fits": ["a"]}, samples)
    assert len({value.untyped_storage().data_ptr() for value in samples["psi"]}) == 2
    _, read = checkpoint.read(tmp_path, ["a"], torch.device("cpu"))
    for values in (samples["psi"], read["psi"]):
        assert torch.equal(torch.stack(values), drawn)


@pytest.fixture(scope="module")
def chain(tmp_path_factory):
    """Chains that were cut off after their second last block, with the checkpoints and samples of every block."""
    case = Case("bsgp_1", "regression", tmp_path_factory)
    work = case.folder()
    step = lightning_module.SamplerFit.advance

    def cut_off(fit, batch, noise, number):
        if number == case.steps - 1:
            raise RuntimeError("cut off")
        return step(fit, batch, noise, number)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lightning_module.SamplerFit, "advance", cut_off)
        with pytest.raises(RuntimeError, match="cut off"):
            case.fit(group(case.cell, 0, checkpoint_seconds=0.0), work=work)
    return case, work


DAMAGES = {
    "newest checkpoint, a byte": ("checkpoint", -1, "flip"),
    "newest checkpoint, cut short": ("checkpoint", -1, "cut"),
    "newest samples, a byte": ("samples", -1, "flip"),
    "newest samples, deleted": ("samples", -1, "delete"),
    "first samples, deleted": ("samples", 0, "delete"),
    "first samples, a byte": ("samples", 0, "flip"),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_a_damaged_part_of_a_checkpoint_changes_no_number(chain, name, tmp_path, capfd):
    (kind, place, how), (case, before) = DAMAGES[name], chain
    work = Path(shutil.copytree(before, tmp_path / "work"))
    path = sorted(work.glob(f"{kind}-*.pt"))[place]
    content = path.read_bytes()
    if how == "delete":
        path.unlink()
    else:
        half = len(content) // 2
        path.write_bytes(content[:half] + (b"" if how == "cut" else bytes([content[half] ^ 1]) + content[half + 1 :]))
    (outcome,) = case.fit(group(case.cell, 0), work=work)
    assert_same(outcome, case.alone[0])
    said = capfd.readouterr().err
    assert ("the fit starts anew" if place == 0 else "the one before it is used") in said
    assert ("are missing" if how == "delete" else path.name) in said


@pytest.mark.parametrize("content", [b"x", b"\x80\x02.", b"\x80\x02h\x05."])
def test_a_checkpoint_that_cannot_be_unpickled_is_one_line_and_set_aside(content, tmp_path, capfd):
    (tmp_path / f"checkpoint-000000005-{checkpoint._digest(content)}.pt").write_bytes(content)
    assert checkpoint.read(tmp_path, ["a"], torch.device("cpu")) is None
    assert [path.name[:17] for path in tmp_path.iterdir()] == ["unused-checkpoint"]
    assert capfd.readouterr().err.count("\n") == 1


def test_a_finished_group_that_was_not_written_is_evaluated_and_not_trained(case, monkeypatch):
    work = case.folder()
    (expected,) = case.fit(group(case.cell, 0), work=work)
    monkeypatch.setattr(lightning_module.GradientFit, "advance", None)
    assert_same(case.fit(group(case.cell, 0), work=work)[0], expected)


def test_a_checkpoint_of_another_configuration_is_refused(case):
    work = case.folder()
    case.fit(group(case.cell, 0, max_minutes=1e-9), work=work)
    with pytest.raises(UserError, match=f"checkpoint of another configuration; delete {work}"):
        case.fit(group(case.cell, 1), work=work)


def test_looking_and_logging_change_nothing(case):
    (outcome,) = case.fit(group(case.cell, 0, eval_points=7, log_points=3))
    assert outcome.points.equals(case.alone[0].points)


def test_a_fit_that_runs_is_looked_at_on_its_first_test_rows_and_notes_the_training_targets():
    targets, units = np.arange(400.0)[:, None], SimpleNamespace(y_shift=np.zeros(1), y_scale=np.ones(1))
    fold = SimpleNamespace(train=np.arange(100), test=np.arange(100, 400), targets=targets, scaling=units)
    first = targets[None, 100:350]
    assert outcomes.test_scores(GaussianMixture(first, np.ones_like(first)), fold, "regression")["rmse"] == 0.0
    whole = targets[None, 100:]
    ended = outcomes.finish(Outcome("done"), GaussianMixture(whole, np.ones_like(whole)), fold, "regression", 0.0)
    noted = ended.info["train_target_mean"] + ended.info["train_target_sd"]
    assert noted == pytest.approx([49.5, np.arange(100.0).std()])
    same = np.full_like(whole, 7.0) + 1e-12 * whole  # but for rounding
    alike = outcomes.finish(Outcome("done"), GaussianMixture(same, np.ones_like(same)), fold, "regression", 0.0)
    assert (ended.reason, alike.reason) == ("", "predicts the same for all 300 test rows")


def test_the_trace_begins_and_ends_with_the_fit_and_scores_where_it_looks(case):
    (seldom,) = case.fit(group(case.cell, 0, eval_points=3, log_points=5))
    assert list(numbers(seldom)["mnll"].notna()) == [False] * 4 + [True]  # too few steps for a look on the way
    (outcome,) = case.fit(group(case.cell, 0, eval_points=3, eval_every=1, log_points=5))
    trace = numbers(outcome).set_index("step")
    assert list(trace.index) == [1, 6, 11, 20, 30, STEPS]
    assert list(trace.index[trace["mnll"].notna()]) == [1, 6, STEPS]
    assert trace["mnll"].iloc[-1] == pytest.approx(-outcome.points["log_density"].mean(), rel=1e-12)
    error = outcome.points["mean"] - outcome.points["y"]
    assert trace["rmse"].iloc[-1] == pytest.approx(np.sqrt((error**2).mean()), rel=1e-12)
    assert trace["objective"].iloc[-1] > trace["objective"].iloc[0]


def test_seconds_of_a_batch_are_shared_and_marked_so(case):
    for outcome in case.together:
        assert outcome.seconds["shared_by"] == SPLITS
        assert outcome.seconds["train"] * SPLITS == pytest.approx(outcome.trace[-1]["seconds"], rel=0.5)


def test_progress_is_written_for_watchers(case, monkeypatch):
    work = case.folder()
    monkeypatch.setattr(lightning_module.Fit, "report_progress", told_at_once(lightning_module.Fit.report_progress))
    case.fit(group(case.cell, 0, 1), work=work)
    progress = json.loads((work / "progress.json").read_text())
    assert (progress["step"], progress["steps"], len(progress["objective"])) == (STEPS, STEPS, 2)


def told_at_once(tell):
    """`tell` without its pause of a second."""

    def now(fit):
        fit.reported_at = 0.0
        tell(fit)

    return now


def test_a_gpu_that_is_not_there_is_one_line(case, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(UserError, match="no GPU is available here; use trainer=cpu"):
        job.require_device((group(case.cell, 0, device="cuda"),))


def test_in_single_precision_large_common_offsets_cost_no_digits(case):
    far = dataclasses.replace(case.table, inputs=case.table.inputs + 1e6, targets=case.table.targets + 1e6)
    fold = case.fold
    moved = dataclasses.replace(fold.scaling, x_shift=fold.scaling.x_shift + 1e6, y_shift=fold.scaling.y_shift + 1e6)
    folds = [dataclasses.replace(fold, scaling=moved, targets=far.targets)]
    rows = loop.training_set(far, folds, torch.float32, torch.device("cpu")).full()
    np.testing.assert_allclose(rows.x[0], fold.scaling.inputs(case.table.inputs[fold.train]), atol=1e-5)
    np.testing.assert_allclose(rows.y[0], fold.scaling.targets(case.table.targets[fold.train]), atol=1e-5)


def test_in_single_precision_too_test_rows_change_no_fitted_quantity(case):
    (one,) = case.fit(group(case.single, 0))
    (other,) = case.fit(group(case.single, 0), changed(case.table, case.fold.test))
    assert all(torch.equal(value, other.model["params"][name]) for name, value in one.model["params"].items())
