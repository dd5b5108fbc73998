"""Hidden layers of deep GPs against dense algebra: what they are at new inputs, and that an M-step keeps them."""

import pytest
import torch
from stride_cases import KEY, disturbed, method, rows, started

NEW = torch.linspace(-2, 2, 7, dtype=torch.float64)[None, :, None].expand(1, 7, 2)


def k(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return torch.exp(-0.5 * torch.cdist(a, b).square())


def test_sparse_layers_at_new_inputs_are_interpolated_from_their_own_values_at_the_inducing_rows():
    """Composition of lengthscale 1: u_l(x) = x + k(x, Z) (k(Z, Z) + s I)^-1 (u_l(Z) - Z)."""
    made = method(hidden="sparse", layers=3)
    state = disturbed(started(made, rows(d=2), [0, 3, 5, 8]))
    z, eye = state.buffers["x"][0, [0, 3, 5, 8]], torch.eye(4).double()
    first, second, _ = made.functions(state, NEW, KEY)
    for s in range(3):
        below = z
        for name, found in (("layer0", first), ("layer1", second)):
            chol = torch.linalg.cholesky(k(below, below) + 1e-6 * eye)
            below = chol @ state.params[name][0, s]
            weights = torch.linalg.solve(k(z, z) + 0.05 * eye, below - z)
            torch.testing.assert_close(found[s, 0], NEW[0] + k(NEW[0], z) @ weights, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("hidden", ["full", "sparse"])
def test_layers_of_fewer_outputs_start_at_the_inputs_mapped_to_them(hidden):
    made = method(hidden=hidden, layers=3, hidden_width=1)
    buffers = started(made, rows(d=2)).buffers | {"start_map": torch.tensor([[[0.6], [0.8]]]).double()}
    params, kept = made.hidden.begin(buffers)
    values = {"full": "_all", "sparse": "_at_inducing"}[hidden]
    for found in getattr(made.hidden, values)(params, buffers | kept):
        start = buffers["x"][:, None, : found.shape[2]] @ buffers["start_map"]
        torch.testing.assert_close(found, start, rtol=0, atol=1e-6)


def test_cross_approximated_values_stay_where_pivots_are_found_anew():
    made = method(hidden="aca", layers=4, rank=25)
    state = disturbed(started(made, rows(30, d=2)), 0.2)
    before = made.hidden.values(state.params, state.buffers)(slice(None))
    pivots = {name: value.clone() for name, value in state.buffers.items() if "pivots" in name}
    params, kept = made.hidden.refresh(state.params, state.buffers, state.buffers)
    assert all((pivots[name] != kept[name]).any() for name in ("layer1.pivots", "layer2.pivots"))
    after = made.hidden.values(params, state.buffers | kept)(slice(None))
    torch.testing.assert_close(after, before, rtol=0, atol=0.05)
