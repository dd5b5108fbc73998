"""The latent function and the parameters from which simulated data were drawn, in the columns after y."""

from __future__ import annotations

import torch
from torch import Tensor

from gpbench.errors import UserError
from gpbench.sampling.latent.model import Model


def columns(x: Tensor, y: Tensor, sampler: str) -> Tensor:
    """f, log lengthscales and log variance `[R, n, 1 + D + 1]`. Raises UserError if y `[R, n, P]` lacks them."""
    if y.shape[2] != 3 + x.shape[2]:
        raise UserError(
            f"sampler {sampler} needs the true f and covariance parameters in the columns after y; "
            "choose a simulated data set and a protocol with outputs: truth, or another sampler"
        )
    return y[..., 1:]


def parameters(model: Model, known: Tensor) -> tuple[Tensor, Tensor]:
    """psi `[R, P]` and f `[R, n]` of `columns`. Raises UserError if the model has fewer lengthscales than the truth."""
    if not (model.ard or bool((known[..., 1:-1] == known[..., 1:2]).all())):
        raise UserError("the data were drawn with one lengthscale per input; set ard=true to condition on them")
    of_tau, of_sigma = known[:, 0, 1 : 1 + model.num_lengthscales], known[:, 0, -1:]
    return torch.cat([of_tau, of_sigma], 1)[:, : model.num_parameters], known[..., 0]
