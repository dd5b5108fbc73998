"""What a GPU needs, counted without one: a step of a gradient method waits for the device once, nothing else does.

Losses and predictions also run on the device `meta`, which has shapes but no numbers: they fail where the host asks for
one, or where a tensor lies on another device.
"""

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from cases import CONF, Case, every_case, group
from gpbench import streams
from gpbench.gp import likelihoods, linalg
from gpbench.methods.base import Batch, GradientMethod, Noise, State
from gpbench.study.fitting.fold import make_fold
from gpbench.study.fitting.loop import GradientLoop, training_set

SPLITS, STEPS = 2, 4
SYNCS = {"_local_scalar_dense", "nonzero", "masked_select", "equal", "is_nonzero", "unique"}
"""Operations whose result the host waits for, or whose shape it needs."""
ITERATIVE = {"kiss_gp", "dkl", "ep_gp", "gp_cholesky", "pitc", "fitc_laplace"}
"""Methods whose steps iterate until the numbers say enough, or part rows by their numbers."""


class Syncs(TorchDispatchMode):
    """Counts the operations that the host waits for."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        by_mask = func.overloadpacket._qualified_op_name in ("aten::index", "aten::index_put_") and any(
            index is not None and index.dtype == torch.bool for index in args[1]
        )
        self.count += by_mask or func.overloadpacket.__name__ in SYNCS
        return func(*args, **(kwargs or {}))


@pytest.fixture(scope="module", params=every_case(CONF), ids="-".join)
def loop(request, tmp_path_factory):
    """Some replicas of a method, prepared as a fit prepares them."""
    case = Case(*request.param, tmp_path_factory)
    if not isinstance(case.method, GradientMethod):
        pytest.skip("no gradient method")
    fits = group(case.cell, *range(SPLITS))
    folds = [make_fold(fits.what, case.table, fit.split, fit.replica) for fit in fits.fits]

    class Alone(GradientLoop):
        method = case.method

    made = Alone()
    made.prepare(training_set(case.table, folds, torch.float64, torch.device("cpu")), [f.key for f in folds], 100, 100)
    made.hold(case.method.start(made.data, made.keys))
    made.start_adam()
    made.name = case.name
    return made


def test_a_step_waits_for_the_device_once(loop):
    if loop.name in ITERATIVE:
        pytest.skip("iterates until the numbers say enough")
    if loop.method.has_own_steps():
        pytest.skip("a natural step looks at once whether it leaves the precision definite")
    loop.advance(*loop.draw(0), 0)
    with Syncs() as syncs:
        for step in range(1, STEPS):
            loop.advance(*loop.draw(step), step)
    assert not loop.careful
    assert syncs.count == STEPS - 1


def on_meta(values):
    return {name: value.detach().to("meta") for name, value in values.items()}


def test_loss_and_predict_run_without_numbers(loop, monkeypatch):
    if loop.name in ITERATIVE:
        pytest.skip("iterates until the numbers say enough")
    batch, noise = loop.draw(0)
    state = State(on_meta(loop.state.params), on_meta(loop.state.buffers))
    leaves = [value.requires_grad_() for value in state.params.values()]
    batch = Batch(*(part.to("meta") for part in (batch.x, batch.y, batch.weight)))
    # results go to the host at the end of a prediction; there are none
    monkeypatch.setattr(likelihoods, "_host", lambda tensor: np.full(tensor.shape, 1 / tensor.shape[-1]))
    monkeypatch.setattr(streams, "generator", lambda *of, **device: None)
    with linalg.deferred_checks():
        loss = loop.method.loss(state, batch, Noise(*(part.to("meta") for part in noise)))
        assert loss.shape == (SPLITS,)
        torch.autograd.grad(loss.sum(), leaves, allow_unused=True)
        one = loop.replica(0)
        loop.method.predict(State(on_meta(one.params), on_meta(one.buffers)), batch.x[:1], loop.keys[0])
