"""The parameter server and its workers: as objects in this process, and as processes that are killed."""

import sys
import time
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from multiprocessing import get_context
from tempfile import TemporaryDirectory

import numpy as np
import psutil
import pytest

from cases import STEPS, Case, assert_same, group, trained_by
from gpbench.errors import UserError
from gpbench.study.fitting import lightning_module
from gpbench.study.fitting.distributed import asynchronous, parameter_server
from gpbench.study.records import Group

ENDLESS = 40_000
"""Steps of a fit that is killed long before its end."""


@pytest.fixture(scope="module")
def case(tmp_path_factory):
    return Case("dgp_rff", "regression", tmp_path_factory, hyper={"batch_size": 16})


@pytest.fixture(scope="module")
def ray():
    with asynchronous.cluster(4) as session:
        yield session


@pytest.fixture
def short_folder(monkeypatch):
    """For what a killed ray leaves behind; paths of sockets are short."""
    with TemporaryDirectory(prefix="gpb", ignore_cleanup_errors=True) as folder:
        monkeypatch.setenv("TMPDIR", folder)
        yield


@pytest.fixture
def one_session(ray, monkeypatch):
    """Fits share a session of ray, which takes seconds to start."""
    monkeypatch.setattr(asynchronous, "cluster", lambda processes: nullcontext(ray))
    monkeypatch.setattr(asynchronous, "POLL_SECONDS", 0.01)


def shared(case: Case, workers: int, steps: int = STEPS, **how) -> Group:
    made = trained_by(group(case.cell, 0, **how), "asynchronous", workers)
    return replace(made, what=replace(made.what, steps=steps))


@pytest.fixture
def parts(case):
    """A server and a worker, and a way to make more workers."""
    arguments = shared(case, 2), case.table, case.folder()
    return (
        parameter_server.Server(*arguments),
        parameter_server.Worker(*arguments),
        partial(parameter_server.SharedFit, *arguments),
    )


def parameters(fit: lightning_module.GradientFit) -> list[np.ndarray]:
    return [p.detach().numpy() for p in fit.state.params.values()]


def assert_equal(arrays, others) -> None:
    for one, other in zip(arrays, others, strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_gradient_is_as_old_as_the_updates_between_fetch_and_push(parts):
    owner, worker, _ = parts
    first, second, third = (owner.exchange(number, None) for number in range(3))
    assert [task.ticket for task in (first, second, third)] == [0, 1, 2]
    assert_equal(first.parameters, third.parameters)
    for number, task in ((2, third), (0, first), (1, second)):
        owner.exchange(number, worker.gradient(task))
    assert owner.fit.done == 3
    assert owner.fit.staleness == [1, 1, 1]
    (moment, *_) = owner.report(whole=False)[1]
    assert (moment.step, moment.staleness) == (1, 0.0)


def test_a_moment_tells_the_mean_staleness_since_the_one_before(parts):
    """Three workers by turns: from the third push on, both others push between a fetch and its push."""
    owner, worker, _ = parts
    holding = {number: owner.exchange(number, None) for number in range(3)}
    for turn in range(STEPS):
        holding[turn % 3] = owner.exchange(turn % 3, worker.gradient(holding[turn % 3]))
    ages, before, moments = [0, 1] + [2] * (STEPS - 2), 0, owner.report(whole=False)[1]
    assert (moments[-1].step, len(moments) > 2) == (STEPS, True)
    for moment in moments:
        assert moment.staleness == pytest.approx(np.mean(ages[before : moment.step]))
        before = moment.step


def test_every_ticket_is_applied_once_whichever_process_dies(case, parts):
    owner, worker, _ = parts
    rng, applied, holding = np.random.default_rng(0), [], {}
    names = iter(range(10**6))
    while owner.fit.done < STEPS:
        if len(holding) < 4:
            name = next(names)
            task = owner.exchange(name, None)
            if task is not None:
                holding[name] = task
        name = rng.choice(list(holding))
        task = holding.pop(name)
        if rng.random() < 0.2:
            before = parameters(owner.fit)
            owner.lose(name)
            assert owner.exchange(name, worker.gradient(task)) is None  # too late: another has its ticket
            assert_equal(parameters(owner.fit), before)
            continue
        new = owner.exchange(name, worker.gradient(task))
        applied.append(task.ticket)
        if new is not None:
            holding[name] = new
    assert sorted(applied) == list(range(STEPS))
    assert applied != sorted(applied)
    assert sum(owner.fit.staleness) == STEPS
    assert owner.fit.restarts > 5
    assert owner.exchange(-1, None) is None
    owner.fit.save()
    (outcome,) = case.fit(shared(case, 2), work=owner.fit.work)  # which has nothing left to train
    assert outcome.status == "done", outcome.reason
    info = outcome.info
    assert (info["restarts"], info["staleness_histogram"]) == (owner.fit.restarts, owner.fit.staleness)
    assert info["staleness_max"] == len(info["staleness_histogram"]) - 1 > 0
    mean = np.arange(len(owner.fit.staleness)) @ owner.fit.staleness / STEPS
    assert info["staleness_mean"] == pytest.approx(mean)


def test_one_worker_makes_the_fit_of_one_process(case, parts):
    owner, worker, _ = parts
    worker.work(partial(owner.exchange, 0))
    (outcome,) = case.fit(group(case.cell, 0))
    assert_equal(parameters(owner.fit), outcome.model["params"].values())


def test_a_snapshot_returns_the_tickets_that_are_out(parts):
    owner, worker, another = parts
    tasks = [owner.exchange(number, None) for number in range(3)]
    owner.exchange(1, worker.gradient(tasks[1]))
    fit = another()
    asynchronous.take(fit, owner.report(whole=True)[2])
    assert (fit.done, fit.issued, fit.returned) == (1, 4, [0, 2, 3])
    assert_equal(parameters(fit), parameters(owner.fit))
    assert [int(fit.adam.state[p]["step"]) for p in fit.state.params.values() if p in fit.adam.state]


def test_a_gradient_that_is_not_finite_ends_all_movement(parts):
    owner, worker, _ = parts
    push = worker.gradient(owner.exchange(0, None))
    moved = owner.exchange(0, push)
    push = worker.gradient(moved)
    push.gradient[0][:] = np.nan
    for _ in range(2):
        task = owner.exchange(0, push)
        assert_equal(task.parameters, moved.parameters)
        push = worker.gradient(task)
    assert owner.fit.reasons == [f"not finite at step 2 of {STEPS}"]
    assert [(moment.step, moment.active) for moment in owner.report(whole=False)[1]] == [(1, True), (3, False)]


def test_through_ray_too_one_worker_makes_the_fit_of_one_process_even_if_stopped(case, one_session):
    work = case.folder()
    (stopped,) = case.fit(shared(case, 1, max_minutes=1e-9), work=work)
    assert stopped.status == "stopped"
    assert stopped.reason.startswith("stopped after 1e-09 minutes at step ")
    (outcome,) = case.fit(shared(case, 1), work=work)
    assert outcome.info["staleness_histogram"] == [STEPS]
    assert {row.pop("staleness") for row in outcome.trace} == {0.0}
    assert_same(outcome, case.fit(group(case.cell, 0))[0])


def below(driver, *names: str) -> list[psutil.Process]:
    """Living processes of these names that a driver (indirectly) started."""
    return [p for p in psutil.Process(driver.pid).children(recursive=True) if called(p, *names)]


def called(process: psutil.Process, *names: str) -> bool:
    """Whether a living process has one of these names."""
    try:
        return " ".join(process.cmdline()).startswith(names)
    except psutil.NoSuchProcess:  # a zombie is one
        return False


def test_a_killed_worker_is_replaced_and_a_killed_driver_leaves_a_checkpoint_and_nobody_who_trains(case, short_folder):
    """No ticket is lost with the worker: the checkpoint holds each that was handed out, as applied or as returned."""
    work, endless = case.folder(), shared(case, 2, ENDLESS, checkpoint_seconds=0.0, log_points=ENDLESS // 10)
    driver = get_context("spawn").Process(target=asynchronous.run, args=(endless, case.table, work))
    driver.start()
    wait(lambda: newest(work) or not driver.is_alive())
    first, second = below(driver, "ray::Worker")
    first.kill()
    wait(lambda: len({p.pid for p in below(driver, "ray::Worker")} - {first.pid}) == 2)
    reached = newest(work)
    wait(lambda: newest(work) > reached)
    family = psutil.Process(driver.pid).children(recursive=True)
    training_too = below(driver, "ray::Server", "ray::Worker")
    driver.kill()
    driver.join()
    assert len(training_too) == 3
    wait(lambda: not any(map(alive, training_too)))
    for helper in filter(alive, family):  # of ray, which take a minute to notice
        helper.kill()
    fit = parameter_server.SharedFit(endless, case.table, work)
    assert fit.restarts == 1
    assert 0 < fit.done < ENDLESS
    assert sum(fit.staleness) == fit.done == fit.issued - len(fit.returned)
    assert len(fit.staleness) > 1
    trace = [row for (row,) in fit.trace]
    assert max(row["step"] for row in trace) <= fit.done
    assert max(row["staleness"] for row in trace) > 0
    assert np.mean([row["objective"] for row in trace[-10:]]) > trace[0]["objective"]


def newest(work) -> str:
    """Name of the newest checkpoint after step 0; empty where there is none."""
    return max((p.name for p in work.glob("checkpoint-*.pt") if int(p.stem.split("-")[1])), default="")


def alive(process: psutil.Process) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def wait(happened, seconds: float = 180.0) -> None:
    end = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < end
        time.sleep(0.05)


def test_without_ray_it_is_one_line(case, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(UserError, match=r"needs ray, which is absent; pip install gpbench\[distributed\]"):
        case.fit(shared(case, 1))


def test_a_chain_is_refused(tmp_path_factory):
    chain = Case("bsgp_1", "regression", tmp_path_factory)
    with pytest.raises(UserError, match="bsgp has no gradients; leave out its scheme"):
        chain.fit(shared(chain, 1))
