"""What a method must return, and the line about the method where it returns something else."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from cases import Case, group
from gpbench.errors import UserError
from gpbench.methods.base import State
from gpbench.predictive.counts import Counts
from gpbench.predictive.distributions import Categorical, GaussianMixture
from gpbench.study.fitting import contract


def of_rows(*shape: int) -> GaussianMixture:
    return GaussianMixture(np.zeros(shape), np.ones(shape))


@pytest.mark.parametrize(
    ("name", "call", "answer", "said"),
    [
        ("linear", "fit", (1.0,), "fit returned tuple; it must return a dict"),
        ("linear", "predict", (0.0, 1.0), "predict returned tuple; it must return a predictive of its task"),
        ("linear", "predict", Categorical(np.full((1, 9, 3), 1 / 3)), r"predict returned Categorical \[9\]; it must"),
        ("linear", "predict", of_rows(1, 9, 1), r"predict returned GaussianMixture \[9, 1\]; it must .*\[T, P\]"),
        ("dsvi", "predict", of_rows(1, 1, 9, 1), r"predict returned GaussianMixture \[1, 9, 1\]; it must .*\[T, P\]"),
        ("svgp", "init", None, "init returned NoneType; it must return a State of tensors"),
        (
            "svgp",
            "init",
            State({"a": torch.zeros(3)}),
            r"init returned State with a \[3\], a in torch.float32; it",
        ),
        (
            "svgp",
            "init",
            State({"a": np.zeros((1, 3))}, {"b": 1.0}),
            r"init returned State with b \[\], a in float64;",
        ),
        ("dsvi", "loss", torch.zeros(2, 1), r"loss returned Tensor \[2, 1\]; it must return a tensor of shape \[R\]"),
        ("svgp", "profile", torch.zeros(()), r"profile returned Tensor \[\]; it must return a tensor of shape \[R\]"),
        ("dgp_rff", "noise_shapes", (3, 0), "noise_shapes returned tuple; it must return gpbench.methods.base.Shapes"),
        ("bsgp_1", "step", 0.0, r"step returned float; it must return a tensor of shape \[R\]"),
        ("bsgp_1", "report", {"a": 1.0}, r"report returned dict; it must return a dict of tensors of shape \[R\]"),
    ],
)
def test_what_is_against_the_contract_of_methods_is_one_line_about_the_method(
    name, call, answer, said, tmp_path_factory, monkeypatch
):
    case = Case(name, "regression", tmp_path_factory)
    monkeypatch.setattr(type(case.method), call, lambda *_: answer)
    with pytest.raises(UserError, match=rf"gpbench\.methods\.\w+: {said}"):
        case.fit(group(case.cell, 0, 1))


def test_a_predictive_has_the_classes_of_the_data():
    method = SimpleNamespace(task="multiclass", num_classes=3, num_targets=1)
    few, right, many = (Categorical(np.full((1, 9, size), 1 / size)) for size in (2, 3, 4))
    assert [contract._is_of_task(method, each, 9) for each in (few, right, many)] == [False, True, False]
    assert not contract._is_of_task(method, right, 8)
    assert not contract._is_of_task(method, of_rows(1, 9, 1), 9)


def test_a_predictive_of_counts_is_no_density():
    """Its density would be scored as if it were a probability."""
    method, unit = SimpleNamespace(task="counts", num_classes=0, num_targets=1), np.ones((1, 9, 1))
    offered = (Counts(unit, [1.0]), GaussianMixture(unit, unit), Categorical(np.full((1, 9, 2), 0.5)))
    assert [contract._is_of_task(method, each, 9) for each in offered] == [True, False, False]


def test_numbers_that_are_sampled_have_a_name_each(tmp_path_factory, monkeypatch):
    method = Case("bsgp_1", "regression", tmp_path_factory).method
    monkeypatch.setattr(type(method), "variables", lambda *_: ["w", "w"])
    with pytest.raises(UserError, match="variables returned list; it must return a list of as many different names"):
        contract.held(method).variables("w", 2)
