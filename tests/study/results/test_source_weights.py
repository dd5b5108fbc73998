"""Kept weights of sources of data, as a probe."""

import numpy as np
import pytest
import torch

from gpbench.data.table import Table
from gpbench.methods import simple_mkl
from gpbench.methods.base import State
from gpbench.methods.multinomial_gp import Hyperparameters, Method
from gpbench.study.results import posterior_probes, probes
from gpbench.study.results.fitted_models import Fitted

NAMES = ["GM_1", "GM_2", "white_matter_1", "white_matter_2", "white_matter_3"]


def fitted(theta: torch.Tensor, **settings) -> Fitted:
    """A fit whose kept states are theta `[S, m, q]`."""
    method = Method(Hyperparameters(sources=(2, 3), **settings), "multiclass", 2)
    state = State({}, {}, samples={"theta": list(theta[:, None])})
    return Fitted({}, method, state, None, Table(np.zeros((4, 5)), np.zeros((4, 1)), NAMES, ["y"]), ("ill", "well"))


def test_weights_are_named_by_class_and_source():
    theta = torch.arange(12.0).reshape(3, 2, 2)
    rows = posterior_probes.weights(fitted(theta))
    assert {"fit_id", *rows.columns} == set(probes.COLUMNS["weights"])
    found = rows.set_index(["sample", "class", "source"])["weight"]
    np.testing.assert_allclose(found[1, "well", "GM"], np.exp(6.0), rtol=1e-6)
    np.testing.assert_allclose(found[2, "ill", "white_matter"], np.exp(9.0), rtol=1e-6)
    assert len(found) == 12


@pytest.mark.parametrize(
    ("settings", "asked"),
    [({}, True), ({"weights": "dirichlet"}, True), ({"weights": "unweighted"}, False), ({"only": 1}, False)],
)
def test_methods_with_learned_weights_of_several_sources_answer_the_probe(settings, asked):
    assert probes.answers(fitted(torch.zeros(1, 2, 2), **settings).method, "weights") is asked


def test_a_number_of_functions_is_not_a_method_that_draws_them():
    assert not probes.answers(fitted(torch.zeros(1, 2, 2)).method, "layers")


def test_weights_that_all_classes_share_come_from_the_model_of_a_closed_form():
    method = simple_mkl.Method(simple_mkl.Hyperparameters(sources=(2, 3)), "multiclass", 2)
    table = Table(np.zeros((4, 5)), np.zeros((4, 1)), NAMES, ["y"])
    rows = posterior_probes.kernel_weights(
        Fitted({}, method, State({}), None, table, model={"weights": np.array([0.25, 0.75])})
    )
    assert rows.to_dict("list") == {"source": ["GM", "white_matter"], "weight": [0.25, 0.75]}
    assert probes.answers(method, "kernel_weights")
    assert not probes.answers(simple_mkl.Method(simple_mkl.Hyperparameters(), "multiclass", 2), "kernel_weights")
    assert not probes.answers(fitted(torch.zeros(1, 2, 2)).method, "kernel_weights")
