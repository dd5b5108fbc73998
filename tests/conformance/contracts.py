"""The contracts: what every method owes the study. Each is a check of one `Case`."""

import contextlib
import dataclasses
import io
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch

from cases import ALONE, SPLITS, YARDSTICK, Case, assert_close, assert_same, changed, group, mnll
from gpbench import streams
from gpbench.predictive.counts import Counts
from gpbench.predictive.distributions import GaussianMixture
from gpbench.predictive.scale_mixtures import ScaleMixture
from gpbench.study.fitting import lightning_module, loop
from gpbench.study.fitting.fold import make_fold, make_method

STANDARD_ERRORS = 6.0
CRASH, NEWEST = 2, 5
"""A fit is cut off so many steps before its end, between two blocks, and so many before it was its newest checkpoint.
Samplers keep states from the middle of a fit on, so that the newest two checkpoints hold some."""
POISONED, POISON_STEP = 1, 7


def learning_beats_the_constant_predictor(case: Case) -> None:
    if case.name == YARDSTICK:
        pytest.skip("this is the constant predictor")
    assert mnll(case.learnt) < mnll(case.constant)


def batched_is_looped(case: Case) -> None:
    """The training parts are of unequal size, so that padding rows and their noise count for nothing."""
    for one, other in zip(case.together[:ALONE], case.alone, strict=True):
        assert_close(one, other)


def fitting_twice_is_the_same(case: Case) -> None:
    """Where there are steps, `resumed_is_uninterrupted` says it: what it resumes was begun anew."""
    if not case.closed_form:
        pytest.skip("what is resumed is fitted twice")
    assert_same(case.fit(group(case.cell, 0))[0], case.alone[0])


def resumed_is_uninterrupted(case: Case) -> None:
    needs_steps(case)
    assert resumed_as_uninterrupted(case, crashed(case)) == ""


def a_damaged_checkpoint_gives_way_to_the_one_before(case: Case) -> None:
    """Which is reported, and the fit is the uninterrupted one."""
    work = crashed(case)
    newest = max(work.glob("checkpoint-*.pt"))
    newest.write_bytes(newest.read_bytes()[:500])
    assert f"{newest} was changed after it was written" in resumed_as_uninterrupted(case, work)


def resumed_as_uninterrupted(case: Case, work: Path) -> str:
    """Resume all splits in a work folder, which does not start again; what is printed on standard error."""
    with contextlib.redirect_stderr(io.StringIO()) as stderr, pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(case.method), "start", None)
        resumed = case.fit(group(case.cell, *range(SPLITS)), work=work)
    for one, other in zip(resumed, case.together, strict=True):
        assert_same(one, other)
    return stderr.getvalue()


class Crash(Exception):
    """Ends a fit where a kill would."""


def crashed(case: Case) -> Path:
    """The work folder of all splits, checkpointed after each block and cut off near its end."""
    work = case.folder()
    with pytest.MonkeyPatch.context() as patch:
        before_step(case, patch, case.steps - CRASH, lambda fit: raise_crash())
        with pytest.raises(Crash):
            case.fit(group(case.cell, *range(SPLITS), checkpoint_seconds=0.0), work=work)
    assert max(work.glob("checkpoint-*.pt")).name.startswith(f"checkpoint-{case.steps - NEWEST:09d}-")
    return work


def raise_crash() -> None:
    raise Crash


def before_step(case: Case, patch: pytest.MonkeyPatch, chosen: int, action) -> None:
    """Call `action(fit)` before one step of every fit."""
    family = lightning_module.family(group(case.cell, 0))
    advance = family.advance

    def interrupted(fit, batch, noise, step):
        if step == chosen:
            action(fit)
        return advance(fit, batch, noise, step)

    patch.setattr(family, "advance", interrupted)


def single_precision_is_close(case: Case) -> None:
    """Without noise the same numbers to single precision; with it (whose draws differ) it learns as well.

    Gradients that are zero but for rounding (of a kernel where q is still the prior) let Adam make a whole step in a
    direction that the precision and the instructions of the CPU decide, and every step magnifies it: after 40 steps
    scores differ by 0.003 at most, after 60 on some CPUs by more than 0.01. A search by L-BFGS magnifies rounding
    too, so its predictions are compared at the same parameters; where it ends in what rounding makes of the objective
    (FITC for classes on some CPUs) the fit says so, and is not judged."""
    needs_steps(case)
    (outcome,) = case.fit(group(case.single, 0))
    assert all(value.dtype == torch.float32 for value in outcome.model["params"].values())
    searched = loop.advanced_by(case.method, [len(case.fold.train)]) == "lbfgs"
    told = searched and outcome.info["not_judged_because"].startswith("float32 changes the objective")
    assert told or mnll(outcome) < mnll(case.constant)
    if searched:
        x = case.fold.scaling.inputs(case.table.inputs[case.fold.test])
        exact = case.learnt.model
        rounded = {part: {name: value.float() for name, value in exact[part].items()} for part in ("params", "buffers")}
        model = dataclasses.replace(case.learnt, model=exact | rounded)
        single, double = (case.answer(fitted, x) for fitted in (model, case.learnt))
        np.testing.assert_allclose(single.mean(), double.mean(), atol=1e-2)
        np.testing.assert_allclose(single.variance(), double.variance(), rtol=1e-2)
    elif noise_size(case, 1) == 0:
        assert abs(mnll(outcome) - mnll(case.learnt)) < 1e-2


def permuting_test_rows_permutes_predictions(case: Case) -> None:
    """Exactly; but to Monte Carlo error where rows have noise of their own (alike rows then get unlike answers)."""
    x = case.fold.scaling.inputs(case.table.inputs[case.fold.test])
    order = np.random.default_rng(0).permutation(len(x))
    there, here = components(case.answer(case.learnt, x)), components(case.answer(case.learnt, x[order]))
    alike = components(case.answer(case.learnt, np.repeat(x[:1], 2, 0)))
    if np.allclose(alike[:, 0], alike[:, 1], rtol=1e-12, atol=1e-12):
        np.testing.assert_allclose(here, there[:, order], rtol=1e-9, atol=1e-12)
    else:
        error = np.sqrt((there.var(0)[order] + here.var(0)) / (len(here) - 1))
        assert (np.abs(here.mean(0) - there.mean(0)[order]) <= STANDARD_ERRORS * error + 1e-12).all()


def components(predictive) -> np.ndarray:
    """Means, variances or probabilities of the components `[S, T, K]`, equally likely but for those of two kinds."""
    if isinstance(predictive, Counts):
        return len(predictive.weights) * predictive.weights[:, None, None] * predictive.component_rate
    if isinstance(predictive, ScaleMixture):
        return predictive.component_variance
    return predictive.component_mean if isinstance(predictive, GaussianMixture) else predictive.component_probs


def permuting_training_rows_changes_nothing(case: Case) -> None:
    train = case.fold.train
    order = np.random.default_rng(0).permutation(len(train))
    inputs, targets = case.table.inputs.copy(), case.table.targets.copy()
    inputs[train], targets[train] = inputs[train[order]], targets[train[order]]
    permuted = dataclasses.replace(case.table, inputs=inputs, targets=targets)
    if reason := order_of_rows_matters(case, permuted):
        pytest.skip(reason)
    # the sums over rows are rounded in another order, and steps amplify that
    assert_close(case.fit(group(case.cell, 0), permuted)[0], case.alone[0], relative=1e-6)


def order_of_rows_matters(case: Case, permuted) -> str:
    """Why a method may depend on the order of its training rows; empty where it may not."""
    if case.closed_form:
        x = case.fold.scaling.inputs(case.table.inputs[case.fold.train])
        y = case.fold.scaling.targets(case.table.targets[case.fold.train])
        rng = streams.rng(case.fold.key, "init")
        before = rng.bit_generator.state
        case.method.fit(x, y[:, 0].astype(int) if case.cell.what.data.classes else y, rng)
        return "draws rows at random" if rng.bit_generator.state != before else ""
    if len(case.fold.train) > getattr(case.method.hyper, "batch_size", np.inf):
        return "learns from mini-batches"
    if noise_size(case, 1) != noise_size(case, 2):
        return "every row has noise of its own"
    one, other = (starting_params(case, data) for data in (case.table, permuted))
    same = all(torch.allclose(one[name], other[name], rtol=1e-9, atol=1e-12) for name in one)
    return "" if same else "starts from rows drawn at random"


def starting_params(case: Case, data) -> dict[str, torch.Tensor]:
    folds = [make_fold(case.cell.what, data, 0, 0)]
    train = loop.training_set(data, folds, torch.float64, torch.device("cpu"))
    return make_method(case.cell.what).start(train, [folds[0].key]).params


def test_rows_change_no_fitted_quantity(case: Case) -> None:
    (outcome,) = case.fit(group(case.cell, 0), changed(case.table, case.fold.test))
    assert not outcome.points.equals(case.alone[0].points)
    if case.closed_form:
        assert pickle.dumps(outcome.model) == pickle.dumps(case.alone[0].model)
        return
    for kind in ("params", "buffers"):
        for name, value in case.alone[0].model[kind].items():
            assert torch.equal(outcome.model[kind][name], value), name
    for name, values in case.alone[0].model["samples"].items():
        assert all(map(torch.equal, outcome.model["samples"][name], values)), name


test_rows_change_no_fitted_quantity.__test__ = False


def a_diverged_replica_leaves_the_others_alone(case: Case) -> None:
    needs_steps(case)
    with pytest.MonkeyPatch.context() as patch:
        before_step(case, patch, POISON_STEP, poison)
        outcomes = case.fit(group(case.cell, *range(SPLITS)))
    poisoned = outcomes.pop(POISONED)
    assert poisoned.status == "diverged"
    assert f"at step {POISON_STEP + 1} of {case.steps}" in poisoned.reason
    assert poisoned.points is None
    for one, other in zip(outcomes, [case.together[0], case.together[2]], strict=True):
        assert_close(one, other)


def poison(fit) -> None:
    with torch.no_grad():
        next(iter(fit.state.params.values()))[POISONED] = torch.nan


def needs_steps(case: Case) -> None:
    if case.closed_form:
        pytest.skip("closed form: no steps, one replica at a time, float64")


def noise_size(case: Case, rows: int) -> int:
    """Normals of one step."""
    method = make_method(case.cell.what)
    train = loop.training_set(case.table, [case.fold], torch.float64, torch.device("cpu"))
    return method.noise_shapes(method.start(train, [case.fold.key]), rows, 0, 1).size(rows)


CONTRACTS = [
    learning_beats_the_constant_predictor,
    batched_is_looped,
    fitting_twice_is_the_same,
    resumed_is_uninterrupted,
    single_precision_is_close,
    permuting_test_rows_permutes_predictions,
    permuting_training_rows_changes_nothing,
    test_rows_change_no_fitted_quantity,
    a_diverged_replica_leaves_the_others_alone,
]
