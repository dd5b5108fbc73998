"""Accuracy on real data: the variational sparse GP and the doubly stochastic deep GP reach what a prototype did.

ARD kernels, 100 inducing inputs, Adam at 0.01, protocol `common` (the splits of the literature), scores on the original
scale; the bars were set beforehand. `pytest -m slow` makes the fits (about 20 minutes of one core).
"""

from __future__ import annotations

import pytest

import accuracy

pytestmark = pytest.mark.mirror

STEPS = {"exact_gp": 300, "svgp": 2000, "dsvi": 2000}


def scores(places, work, name, splits, steps, module, **hyper):
    """Mean test log density and RMSE of each split `[splits, 2]`."""
    found = accuracy.scores(accuracy.fit(places, work, name, splits, steps, module, "common", "float64", **hyper))
    print(f"{name}, {module}, {steps} steps, splits {splits}: {found.mean(0).round(3)}, each {found[:, 0].round(3)}")
    return found


@pytest.mark.slow
def test_concrete(places, tmp_path):
    """500 steps of two layers are better than 2,000 of one."""
    deep = scores(places, tmp_path / "deep", "concrete", [0, 1, 2], 500, "dsvi")
    shallow = scores(places, tmp_path / "shallow", "concrete", [0, 1, 2], 2000, "svgp")
    assert deep[:, 0].mean() >= -3.09
    assert deep[:, 1].mean() <= 5.35
    assert (deep - shallow)[:, 0].mean() >= 0.07


@pytest.mark.slow
def test_concrete_on_more_splits(places, tmp_path):
    shallow = scores(places, tmp_path, "concrete", [0, 1, 2, 3, 4], 2000, "svgp").mean(0)
    assert shallow[0] >= -3.20
    assert shallow[1] <= 5.95


@pytest.mark.slow
def test_energy(places, tmp_path):
    """A sparse GP that has converged equals the exact one, and two layers: the published -1.421 has not."""
    means = {
        module: scores(places, tmp_path / module, "energy", [0, 1, 2, 3, 4], steps, module).mean(0)
        for module, steps in STEPS.items()
    }
    for module in ("svgp", "dsvi"):
        assert means[module][0] >= -0.85
        assert means[module][1] <= 0.53
    assert means["svgp"][0] >= means["exact_gp"][0] - 0.08


@pytest.mark.slow
@pytest.mark.parametrize(("steps", "bars"), [(1000, (1.10, 0.079)), (3000, (1.21, 0.072))])
def test_kin8nm(places, tmp_path, steps, bars):
    deep = scores(places, tmp_path, "kin8nm", [0, 1, 2], steps, "dsvi", batch_size=1000).mean(0)
    assert deep[0] >= bars[0]
    assert deep[1] <= bars[1]
