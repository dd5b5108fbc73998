"""Workers that share every mini-batch make the fit of one process."""

import errno
import os
import signal

import numpy as np
import pytest
import torch

import cases
from cases import BLOCK, STEPS, Case, group
from gpbench.errors import UserError
from gpbench.methods import dgp_rff
from gpbench.study.fitting import lightning_module
from gpbench.study.fitting.outcome import Lost
from gpbench.study.records import Group


@pytest.fixture
def case(tmp_path_factory):
    return Case("dgp_rff", "regression", tmp_path_factory, hyper={"batch_size": 16})


def shared(case: Case, workers: int, **how) -> Group:
    return cases.trained_by(group(case.cell, 0, **how), "synchronous", workers)


def assert_equal(outcome, expected, relative: float = 1e-9) -> None:
    assert outcome.status == expected.status == "done", (outcome.reason, expected.reason)
    for name, value in expected.model["params"].items():
        torch.testing.assert_close(outcome.model["params"][name], value, rtol=relative, atol=relative)
    assert [row.keys() for row in outcome.trace] == [row.keys() for row in expected.trace]
    for row, other in zip(outcome.trace, expected.trace, strict=True):
        assert row["objective"] == pytest.approx(other["objective"], rel=relative)


@pytest.mark.parametrize("workers", [1, 2, 4])
def test_workers_that_share_mini_batches_make_the_fit_of_one_process(case, workers):
    (outcome,) = case.fit(shared(case, workers))
    assert_equal(outcome, case.fit(group(case.cell, 0))[0])
    assert outcome.info["workers"] == workers


def test_stopped_by_the_time_cap_they_all_stop_at_a_checkpoint_and_go_on_from_it(case):
    work = case.folder()
    (stopped,) = case.fit(shared(case, 2, max_minutes=1e-9), work=work)
    assert (stopped.status, stopped.reason) == ("stopped", f"stopped after 1e-09 minutes at step {BLOCK} of {STEPS}")
    (outcome,) = case.fit(shared(case, 2), work=work)
    assert_equal(outcome, case.fit(group(case.cell, 0))[0])
    assert not (work / "meeting").exists()


def test_errors_of_a_worker_are_reported(case, monkeypatch):
    def broken(method, state, batch, noise):
        raise ArithmeticError("one is not two")

    monkeypatch.setattr(dgp_rff.Method, "loss", broken)
    with pytest.raises(RuntimeError, match="^ArithmeticError: one is not two$"):
        case.fit(shared(case, 2))


def test_a_worker_that_is_killed_ends_the_fit_and_the_checkpoint_stays(case, monkeypatch):
    loss, work = dgp_rff.Method.loss, case.folder()
    calls = []

    def deadly(method, state, batch, noise):
        calls.append(0)
        if len(calls) == BLOCK + 5 and os.environ["LOCAL_RANK"] == "1":
            os.kill(os.getpid(), signal.SIGKILL)
        return loss(method, state, batch, noise)

    monkeypatch.setattr(dgp_rff.Method, "loss", deadly)
    with pytest.raises(Lost, match="^a worker died .*SIGKILL.*; `gpbench retry` continues from the checkpoint"):
        case.fit(shared(case, 2, checkpoint_seconds=0.0), work=work)
    monkeypatch.setattr(dgp_rff.Method, "loss", loss)
    fit = lightning_module.GradientFit(shared(case, 2), case.table, work, torch.device("cpu"))
    assert fit.done == BLOCK
    (outcome,) = case.fit(shared(case, 2), work=work)
    assert_equal(outcome, case.fit(group(case.cell, 0))[0])


def test_a_full_disk_of_a_worker_is_one_of_the_fit(case, monkeypatch):
    def full(fit):
        raise RuntimeError("a checkpoint was not written") from OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(lightning_module.GradientFit, "save", full)
    with pytest.raises(OSError, match="No space left on device") as refused:
        case.fit(shared(case, 2, checkpoint_seconds=0.0))
    assert refused.value.errno == errno.ENOSPC


def test_a_fit_that_is_not_finite_ends_as_in_one_process(case, monkeypatch):
    """Even where it shows in the rows of one worker only."""
    loss = dgp_rff.Method.loss

    def infinite(method, state, batch, noise):
        steps.append(0)
        late = torch.tensor([np.inf if len(steps) > 5 and os.environ.get("LOCAL_RANK", "1") == "1" else 0.0])
        return loss(method, state, batch, noise) + late

    monkeypatch.setattr(dgp_rff.Method, "loss", infinite)
    outcomes = []
    for made in (shared(case, 2), group(case.cell, 0)):
        steps = []
        outcomes += case.fit(made)
    assert [outcome.status for outcome in outcomes] == ["diverged"] * 2
    assert outcomes[0].reason == outcomes[1].reason == f"not finite at step 6 of {STEPS}"


@pytest.mark.parametrize(
    ("hyper", "workers", "said"),
    [
        ({}, 3, "16 rows a step cannot be shared equally by 3 workers; change batch_size"),
        ({"batch_size": 10**6}, 7, "60 rows a step cannot be shared equally by 7 workers; change batch_size"),
        ({"local_reparameterisation": True}, 2, "dgp_rff draws noise for every row, which synchronous workers cannot"),
    ],
)
def test_batches_that_cannot_be_shared_equally_are_refused(case, hyper, workers, said):
    case.cell = cases.with_hyper(case.cell, **hyper)
    with pytest.raises(UserError, match=said):
        case.fit(shared(case, workers))


def test_a_chain_is_refused(tmp_path_factory):
    chain = Case("bsgp_1", "regression", tmp_path_factory)
    with pytest.raises(UserError, match="bsgp has no gradients; leave out its scheme"):
        chain.fit(shared(chain, 1))


def test_every_worker_needs_a_gpu_of_its_own(case, monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(UserError, match="2 synchronous workers need a GPU each, 1 are here"):
        case.fit(shared(case, 2, device="cuda"))
