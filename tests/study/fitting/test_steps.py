"""Steps of `GradientLoop`: checks of Cholesky factors wait for one look at the step; failed steps are made again."""

import pytest
import torch

from gpbench.gp import linalg
from gpbench.methods import svgp
from gpbench.methods.base import TrainingSet
from gpbench.streams import Key
from gpbench.study.fitting.loop import GradientLoop

REPLICAS, ROWS, STEPS = 3, 30, 4


class Loop(GradientLoop):
    """A loop alone, without what runs and watches it."""

    def __init__(self, careful: bool, repeated: int | None = None, **hyper) -> None:
        """repeated: a replica whose inducing inputs are equal, so that K_ZZ has no factor."""
        x = torch.randn(ROWS, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        zeros, ones = x.new_zeros(REPLICAS, 2), x.new_ones(REPLICAS, 2)
        rows, count = torch.arange(ROWS).repeat(REPLICAS, 1), torch.full((REPLICAS,), ROWS)
        data = TrainingSet(x, x.sin().sum(1, keepdim=True), rows, count, zeros, ones, zeros[:, :1], ones[:, :1])
        keys = [Key("steps", "steps", split) for split in range(REPLICAS)]
        self.method = svgp.Method(
            svgp.Hyperparameters(num_inducing=9, jitter=1e-18, batch_size=10, **hyper), "regression"
        )
        self.prepare(data, keys, STEPS, STEPS)
        state = self.method.start(data, keys)
        if repeated is not None:
            z = state.params["layer1.inducing_inputs"]
            z[repeated] = z[repeated, :1].clone()
        self.hold(state)
        self.start_adam()
        self.careful = careful

    def run(self) -> list[torch.Tensor]:
        linalg.events()
        return [self.advance(*self.draw(step), step) for step in range(STEPS)]


@pytest.fixture(params=["none", "all"], ids=["adam", "natural gradients"])
def natural(request):
    return {"natural_gradients": request.param}


def assert_equal(one: Loop, other: Loop, replicas=slice(None)) -> None:
    for name, value in one.state.params.items():
        assert torch.equal(value[replicas], other.state.params[name][replicas]), name


def test_deferred_checks_change_no_number(natural):
    careful, deferred = Loop(True, **natural), Loop(False, **natural)
    for one, other in zip(careful.run(), deferred.run(), strict=True):
        assert torch.equal(one, other)
    assert_equal(careful, deferred)
    assert not deferred.careful


def test_a_step_without_a_factor_is_made_again_with_jitter_and_leaves_the_other_replicas_alone(natural):
    failing, sound = Loop(False, repeated=1, **natural), Loop(False, **natural)
    assert all(loss.isfinite().all() for loss in failing.run())
    assert {(e["name"], e["replica"], e["failed"]) for e in linalg.events()} == {("layer1", 1, False)}
    assert failing.careful or failing.method.has_own_steps()  # these are careful always
    assert failing.active.all()
    sound.run()
    assert_equal(failing, sound, [0, 2])
    careful = Loop(True, repeated=1, **natural)
    careful.run()
    assert_equal(failing, careful)


def test_a_replica_that_is_not_finite_stops_and_leaves_the_others_alone(natural):
    poisoned, sound = Loop(False, **natural), Loop(False, **natural)
    poisoned.state.params["layer1.whitened_mean"].data[1] = torch.nan
    poisoned.run()
    sound.run()
    assert poisoned.active.tolist() == [True, False, True]
    assert poisoned.reasons[1] == f"not finite at step 1 of {STEPS}"
    assert_equal(poisoned, sound, [0, 2])
    assert torch.equal(
        poisoned.state.params["layer1.inducing_inputs"][1], Loop(False).state.params["layer1.inducing_inputs"][1]
    )


def test_what_is_unfrozen_starts_with_zero_moments_under_the_same_optimiser(monkeypatch):
    """Adam's first step is one learning rate long, whatever the gradient; those of the others are not by then."""
    loop, frozen = Loop(True), "layer1.log_lengthscale"
    monkeypatch.setattr(loop.method, "frozen", lambda step, steps: {frozen} if step < 2 else set())
    moved = {frozen: [], "layer1.log_outputscale": []}
    for step in range(STEPS):
        before = {name: loop.state.params[name].detach().clone() for name in moved}
        loop.advance(*loop.draw(step), step)
        for name, steps in moved.items():
            steps.append((loop.state.params[name].detach() - before[name]).abs().max().item())
    assert moved[frozen][:3] == [0, 0, pytest.approx(loop.method.hyper.learning_rate, rel=1e-5)]
    assert moved["layer1.log_outputscale"][2] != pytest.approx(loop.method.hyper.learning_rate, rel=1e-3)
    assert {int(loop.adam.state[loop.state.params[name]]["step"]) for name in moved} == {2, 4}
