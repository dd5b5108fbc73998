"""Averaged classifiers over two inputs, inducing inputs, as they started and their posteriors, covariance functions and
weights of sources, and weights that were optimised, as probes."""

from collections.abc import Iterable

import numpy as np
import pandas as pd
import torch

from gpbench.errors import UserError
from gpbench.predictive.distributions import Categorical
from gpbench.study.fitting import loop
from gpbench.study.results.fitted_models import Fitted
from gpbench.study.storage.parquet import long_table

SIDE, MARGIN = 120, 0.1


def probabilities(fitted: Fitted) -> pd.DataFrame:
    """Training rows, and predictive probabilities of classes on a grid a tenth of their range wider on each side.

    Columns layer (0: training rows, p 1 for their class), class (of two only 1), x0, x1, x0_name, x1_name, p."""
    observed = fitted.training_inputs("probabilities")
    low, high = observed.min(0), observed.max(0)
    margin = MARGIN * (high - low)
    axes = np.linspace(low - margin, high + margin, SIDE).T
    x = np.stack(np.meshgrid(*axes, indexing="ij"), -1).reshape(-1, 2)
    predictive = loop.answer_one(fitted.method, fitted.state, fitted.fold.scaling.inputs(x), fitted.fold.key)
    assert isinstance(predictive, Categorical)
    p = predictive.probabilities()
    classes = np.arange(p.shape[1])[1 if p.shape[1] == 2 else 0 :]
    known = fitted.fold.targets[fitted.fold.train] == classes
    names, layers = {"class": classes}, [(observed, known.astype(float)), (x, p[:, classes])]
    parts = [
        long_table(("row", "class"), values.shape, **names, layer=layer, x0=at[:, :1], x1=at[:, 1:], p=values)
        for layer, (at, values) in enumerate(layers)
    ]
    return pd.concat(parts, ignore_index=True).drop(columns="row").assign(**fitted.input_names())


def inducing(fitted: Fitted) -> pd.DataFrame:
    """Training rows, and kept states of the inducing inputs and the RBF kernel of the first layer.

    Columns layer, sample, point, column, x, lengthscale (of this column of inputs), outputscale (a variance of f as the
    method scales it). What a method optimises is the same in every sample; one without samples has a single one."""
    state, scaling = fitted.state, fitted.fold.scaling
    fixed = state.params | state.buffers
    layer = _first(fitted, fixed, "inducing_inputs").removesuffix("inducing_inputs")

    def samples(part: str) -> np.ndarray:
        """Kept states `[S, ...]` of a parameter of the layer."""
        name = _first(fitted, [name for name in (*fixed, *state.samples) if name == layer + part], part)
        return torch.cat(state.samples.get(name) or [fixed[name]]).double().numpy()

    z = samples("inducing_inputs") * scaling.x_scale + scaling.x_shift
    lengthscale = np.exp(samples("log_lengthscale"))[:, None] * scaling.x_scale
    outputscale = np.exp(samples("log_outputscale"))[:, None, None]
    observed = fitted.table.inputs[fitted.fold.train][:, None]
    axes, states = ("sample", "point", "column"), np.broadcast_shapes(z.shape, lengthscale.shape, outputscale.shape)
    parts = [
        long_table(axes, observed.shape, layer=0, x=observed, lengthscale=np.nan, outputscale=np.nan),
        long_table(axes, states, layer=1, x=z, lengthscale=lengthscale, outputscale=outputscale),
    ]
    return pd.concat(parts, ignore_index=True)


def _first(fitted: Fitted, names: Iterable[str], ending: str) -> str:
    """The first parameter that is called so, of the first layer; UserError where a method has none."""
    if matching := [name for name in names if name.endswith(ending)]:
        return matching[0]
    remedy = "let probes() of its Hyperparameters leave out 'inducing'"
    raise UserError(f"{type(fitted.method).__module__} has no {ending} to show, which a probe asks for; {remedy}")


def starts(fitted: Fitted) -> pd.DataFrame:
    """Inducing inputs of the first layer before and after training, in original units: point, column, before, x."""
    scaling, dtype = fitted.fold.scaling, getattr(torch, fitted.what.dtype)
    data = loop.training_set(fitted.table, [fitted.fold], dtype, torch.device("cpu"))
    first = fitted.method.init(data.replica(0), fitted.fold.key)
    name = _first(fitted, first.params, "inducing_inputs")
    before, after = (
        state.params[name][0].double().numpy() * scaling.x_scale + scaling.x_shift for state in (first, fitted.state)
    )
    return long_table(("point", "column"), before.shape, before=before, x=after)


def whitened(fitted: Fitted) -> pd.DataFrame:
    """Kept whitened values of the inducing inputs of the first layer, L v = f(Z); columns sample, point, output, v."""
    kept = fitted.state.samples
    v = torch.cat(kept[_first(fitted, kept, "whitened_values")]).double().numpy()
    return long_table(("sample", "point", "output"), v.shape, v=v)


def weights(fitted: Fitted) -> pd.DataFrame:
    """Kept weights of the sources by class; columns sample, class, source, weight."""
    kept = torch.cat(fitted.state.samples["theta"]).double().exp().numpy()  # [S, m, q]
    names = {"class": np.array(fitted.classes)[:, None], "source": np.array(_sources(fitted))}
    return long_table(("sample", "class", "source"), kept.shape, **names, weight=kept)


def kernel_weights(fitted: Fitted) -> pd.DataFrame:
    """Weights of the sources that all classes share; columns source, weight."""
    return pd.DataFrame({"source": _sources(fitted), "weight": fitted.model["weights"]})


def _sources(fitted: Fitted) -> list[str]:
    """Names of the sources, by their inputs: `GM` of GM_1, GM_2, ..."""
    starts = np.cumsum([0, *fitted.method.hyper.sources[:-1]])
    return [fitted.table.input_names[start].rsplit("_", 1)[0] for start in starts]
