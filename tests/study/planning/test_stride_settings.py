"""Settings of STRIDE that fit no data are refused while planning, in one line; its studies have the published ones."""

from __future__ import annotations

import pytest

from gpbench import places
from gpbench.study.planning.resolve import resolve


def cells(study: str, overrides: str = "") -> dict[tuple[str, str], object]:
    return {(cell.method, cell.address.dataset): cell for cell in resolve(places.find(), study, overrides).cells}


@pytest.mark.parametrize(
    ("method", "overrides", "reason"),
    [
        ("stride_aca", "stride_aca.rank=700", "691 training rows, at least 700"),
        ("stride", "stride.num_inducing=700", "691 training rows, at least 700"),
        ("deep_gp_mcmc", "deep_gp_mcmc.hidden=aca", "the exact deep GP has hidden layers in full, not hidden=aca"),
        ("stride", "stride.architecture=convolution stride.hidden_width=2", "a convolution has hidden layers of one"),
        ("stride", "datasets=[wine]", "regression only"),
    ],
)
def test_impossible_settings_are_skipped_with_their_reason(project, method, overrides, reason):
    (cell,) = [c for (name, _), c in cells("stride2025_timing", overrides).items() if name == method]
    assert cell.skip.startswith(reason)
    assert "\n" not in cell.skip


def test_the_published_settings(project):
    found = cells("stride2025_uci", "budget=paper splits=10")
    assert {c.what.steps for (name, _), c in found.items() if "stride" in name or "deep_gp" in name} == {4000}
    hyper = found["stride_3_conv_aca", "energy"].what.method.hyper
    expected = {"layers": 3, "architecture": "convolution", "hidden": "aca", "rank": 50, "num_inducing": 50}
    expected |= {"particles": 50, "em_iterations": 10, "rounds": 5, "candidates": 500}
    assert {key: hyper[key] for key in expected} == expected
    assert len({c.fits[0].fit_id for (_, data), c in found.items() if data == "energy"}) == 18
    three = {name: c.skip for (name, data), c in found.items() if data == "boston" and "_3" in name}
    assert len(three) == 8
    assert set(three.values()) == {"the study has it for energy only"}


def test_the_published_settings_of_the_large_problem(project):
    hyper = cells("stride2025_fashion", "budget=paper")["stride_125", "fashion_mnist_vae"].what.method.hyper
    expected = {"particles": 10, "rounds": 3, "candidates": 1000, "rank": 50, "num_inducing": 125, "hidden": "aca"}
    assert {key: hyper[key] for key in expected} == expected
