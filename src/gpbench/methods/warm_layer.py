"""The last layer of a deep GP regression starts at the optimum of a sparse GP: that of `sgpr` on some of the rows.

Two more starting values follow from it, for a model of little noise bears neither noisy hidden layers nor long steps:
the variance of hidden values, and a factor of rates.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from gpbench import streams
from gpbench.gp import lbfgs, lowrank
from gpbench.methods import sgpr
from gpbench.methods.base import State
from gpbench.methods.training_rows import Batch
from gpbench.streams import Key

TOLERANCE = 1e-3
"""L-BFGS ends once a tenth of its iterations gain less, in nats a row."""
PACE_NOISE = 1e-3
"""Noise variance, of targets of variance 1, below which rates are smaller."""
PASSED_ON = 0.1
"""Part of the noise variance that hidden layers may add at the start."""
CHUNK_ROWS = 2**16
SHARED = ("num_inducing", "inducing_start", "kernel", "ard", "lengthscale", "jitter")
"""Settings of `sgpr` that a method which starts at its optimum shares with it."""
Params = dict[str, Tensor]


def start(state: State, layers: list[str], hyper: Any, train: Batch, key: Key) -> None:
    """Put the optimum into the last layer, v of a chain drawn from q(v), and make hidden layers and rates as small as
    its noise asks; train: inputs of the last layer, and targets. `buffers["pace"]` `[1, 1]`: the factor of rates."""
    params, last, best = state.params, layers[-1], optimum(hyper, train, key)
    take_over(params, last, best)
    if (values := f"{last}.whitened_values") in params:
        mean, chol = best["whitened_mean"], best["whitened_chol"]
        normal = streams.normal(key, "init", 0, (*mean.mT.shape, 1), like=mean)
        params[values] = mean + (chol @ normal)[..., 0].mT
    for name in (f"{layer}.{part}" for layer in layers[:-1] for part in ("log_outputscale", "log_noise_variance")):
        if name in params:
            limit(params, name, best)
    state.buffers["pace"] = pace(best)


def optimum(hyper: Any, train: Batch, key: Key) -> Params:
    """Parameters that maximise the bound of `sgpr` on `start_rows` rows, and its q(v) given all of train.

    Names as in `sgpr`, and whitened_mean `[1, M, P]`, whitened_chol `[1, P, M, M]`. Found in double precision by
    `start_iterations` of L-BFGS; hyper: of the method that takes them over."""
    shared = {name: getattr(hyper, name) for name in SHARED if hasattr(hyper, name)}
    method = sgpr.Method(sgpr.Hyperparameters(**shared), "regression", num_targets=train.y.shape[-1])
    x, y = train.x.double(), train.y.double()
    # in the order of the set, which a set that has no more keeps
    chosen = np.sort(streams.rng(key, "init", 1).permutation(x.shape[1])[: hyper.start_rows])
    some = Batch(x[:, chosen], y[:, chosen], x.new_ones(1, len(chosen)))
    cold = method.init(some, key)
    objective = lbfgs.of_params(lambda params: method.profile(State(params, cold.buffers), some), cold.params)
    start, tolerance = lbfgs.flatten(cold.params), TOLERANCE * len(chosen)
    params = lbfgs.unflatten(lbfgs.minimise(objective, start, hyper.start_iterations, tolerance), cold.params)
    found = params | posterior(method, params, x, y)
    return {name: value.to(train.x) for name, value in found.items()}


def posterior(method: sgpr.Method, params: Params, x: Tensor, y: Tensor) -> Params:
    """Moments of q(v) given all rows, some of them at a time: B = I + sum a_n a_n^T / s, b = sum a_n y_n / s."""
    precision, shift = x.new_zeros(()), x.new_zeros(())
    for inputs, targets in zip(x.split(CHUNK_ROWS, 1), y.split(CHUNK_ROWS, 1), strict=True):
        a, unexplained = method.rows(params, inputs)
        scaled = a / method.variance(params, unexplained)[:, None]
        precision, shift = precision + scaled @ a.mT, shift + scaled @ targets
    mean, chol = lowrank.mean_and_chol(lowrank.posterior(precision, shift, sgpr.NAME))
    return {"whitened_mean": mean, "whitened_chol": chol}


def take_over(params: Params, layer: str, best: Params) -> None:
    """Put an optimum, and its noise, into the parameters of a layer; of each output where kernels are separate."""
    for name, value in best.items():
        key = name if name == "log_noise_variance" else f"{layer}.{name}"
        if key in params:
            own = value[:, None] if value.ndim < params[key].ndim else value
            params[key] = own.expand_as(params[key]).clone()


def limit(params: Params, name: str, best: Params) -> None:
    """Lower a log variance of hidden values to a tenth of s / E |grad f|^2, so that they add a tenth of the noise s.

    E |grad f|^2 = outputscale * sum_d 1 / lengthscale_d^2 under the prior of the optimum, were its first kernel RBF."""
    lengthscale, outputscale = best["log_lengthscale"].exp(), best["log_outputscale"].exp()
    inputs = best["inducing_inputs"].shape[-1] / lengthscale.shape[-1]  # a lengthscale for all counts for each
    slope = outputscale * inputs * lengthscale.square().reciprocal().sum(-1)
    largest = (PASSED_ON * best["log_noise_variance"].exp() / slope).log().view(-1, *[1] * (params[name].ndim - 1))
    params[name] = torch.minimum(params[name], largest)


def pace(best: Params) -> Tensor:
    """What rates are multiplied by where data have little noise, `[1, 1]`: a step of r changes f by about r."""
    return (best["log_noise_variance"].exp() / PACE_NOISE).sqrt().clamp_max(1.0)[:, None]
