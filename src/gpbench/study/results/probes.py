"""What finished fits are evaluated for besides predictions: `python -m gpbench.study.results.probes STUDY KIND`.

    bounds.parquet   fit_id, batch, bound: minus the lower bound of the stored model in nats per training row, on large
                     mini-batches, with one draw of the noise each (cutajar2017, figure 4)
    layers.parquet   fit_id, chain, layer, output, sample, x, f: posterior draws of the functions of every layer over a
                     single input, up to half of its range beyond the training rows (cutajar2017, figure 8)
    surfaces.parquet fit_id, layer, output, x0, x1, x0_name, x1_name, mean: the mean of such draws over a grid of two
                     inputs, as far as the training rows reach (ashman2020, figure 1)
    inputs.parquet   fit_id, row, column, x: the inputs of the test rows, for pictures of what was predicted from
    probabilities.parquet  fit_id, layer, class, x0, x1, x0_name, x1_name, p: predictive probability of class 1, or of
                     each of more than two, over a grid of two inputs (rossi2021, figure 2; hensman2015mcmc, figure 4)
    inducing.parquet fit_id, layer, sample, point, column, x, lengthscale, outputscale: kept states of the inducing
                     inputs and of the kernel of the first layer (rossi2021, figures 1 and 2)
    starts.parquet   fit_id, point, column, before, x: inducing inputs of the first layer before and after they were
                     optimised (hensman2015mcmc, figure 5)
    whitened.parquet fit_id, sample, point, output, v: kept whitened values of the inducing inputs of the first layer
                     (hensman2015mcmc, figure 4)
    weights.parquet  fit_id, sample, class, source, weight: kept weights of the sources of data in each class's
                     covariance (filippone2012, figure 3)
    kernel_weights.parquet  fit_id, source, weight: of one combination of kernels for all classes (figure 4 there)

Inputs are in original units, and so is the last layer of a regression; hidden layers are as they are. chain: whether
samples are states of a Markov chain. Layer 0 holds the training rows: `sample` numbers them, f (mean, p) is their
target.
All of this runs on the CPU, wherever the fits were trained."""

import argparse
import functools
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import torch

from gpbench import config, places, streams
from gpbench.config import schema
from gpbench.errors import UserError, exit_status
from gpbench.methods.base import ClosedFormMethod, GradientMethod, SamplerMethod
from gpbench.places import Places
from gpbench.study.fitting import loop
from gpbench.study.fitting.fold import make_method
from gpbench.study.records import FrozenPlan
from gpbench.study.results import collect, posterior_probes
from gpbench.study.results.fitted_models import Fitted, finished
from gpbench.study.storage import parquet
from gpbench.study.storage.parquet import long_table

COLUMNS = {
    "bounds": ["fit_id", "batch", "bound"],
    "layers": ["fit_id", "chain", "layer", "output", "sample", "x", "f"],
    "surfaces": ["fit_id", "layer", "output", "x0", "x1", "x0_name", "x1_name", "mean"],
    "inputs": ["fit_id", "row", "column", "x"],
    "probabilities": ["fit_id", "layer", "class", "x0", "x1", "x0_name", "x1_name", "p"],
    "inducing": ["fit_id", "layer", "sample", "point", "column", "x", "lengthscale", "outputscale"],
    "starts": ["fit_id", "point", "column", "before", "x"],
    "whitened": ["fit_id", "sample", "point", "output", "v"],
    "weights": ["fit_id", "sample", "class", "source", "weight"],
    "kernel_weights": ["fit_id", "source", "weight"],
}
GRID, SIDE = 201, 100
Probe = Callable[[Fitted], pd.DataFrame]


def write(where: Places, name: str, kind: str) -> None:
    """Write results/NAME/KIND.parquet, without rows where no fit is done; UserError where no method answers."""
    plan = collect.read_plan(where, name)
    possible = [cell for cell in plan.cells if not cell.skip]
    for cell in possible:
        config.require_module(where.conf, cell.address.method, cell.what.method.module)
    cells = [cell for cell in possible if answers(make_method(cell.what), kind)]
    if not cells:
        raise UserError(f"no method of study {name!r} answers the probe {kind!r}; leave it out of `probes` in its file")
    probe = PROBES[kind] if kind in PROBES else _bounds(where, plan)
    parts = [probe(fitted).assign(fit_id=fit_id) for fit_id, fitted in finished(where, cells)]
    table = pd.concat(parts, ignore_index=True) if parts else pd.DataFrame(columns=COLUMNS[kind])
    parquet.write(where.results / name / f"{kind}.parquet", [table[COLUMNS[kind]]])


def answers(method: Any, kind: str) -> bool:
    """Whether fits of a method answer a probe: by what kind of method it is, or as its settings declare."""
    if kind in ("layers", "surfaces"):
        return callable(getattr(method, "functions", None))
    if kind == "bounds":
        return isinstance(method, GradientMethod) and kind in method.hyper.probes()
    if kind == "kernel_weights":
        return isinstance(method, ClosedFormMethod) and bool(getattr(method.hyper, "sources", ()))
    if kind == "starts":
        return isinstance(method, GradientMethod) and "inducing" in method.hyper.probes()
    if kind == "whitened":
        return isinstance(method, SamplerMethod) and "inducing" in method.hyper.probes()
    always = kind == "inputs" or (kind == "probabilities" and method.task in ("binary", "multiclass"))
    return isinstance(method, GradientMethod | SamplerMethod) and (always or kind in method.hyper.probes())


def _bounds(where: Places, plan: FrozenPlan) -> Probe:
    """`bounds` by the budget that a study was planned with; its overrides are among those of every cell."""
    words = config.split_overrides(plan.cells[0].address.overrides)
    of_budget = [f"{key.removeprefix('budget.')}={value}" for key, value in words if key.startswith("budget.")]
    budget: schema.Budget = config.compose(where.conf, "budget", plan.study.budget, tuple(of_budget))
    return functools.partial(bounds, batches=budget.bound_batches, rows=budget.bound_rows)


@torch.no_grad()
def bounds(fitted: Fitted, batches: int, rows: int) -> pd.DataFrame:
    """loss / n on `batches` mini-batches of `rows` training rows, drawn with replacement; columns batch, bound."""
    method, key, n = fitted.method, fitted.fold.key, len(fitted.fold.train)
    assert isinstance(method, GradientMethod)
    dtype = getattr(torch, fitted.what.dtype)
    data = loop.training_set(fitted.table, [fitted.fold], dtype, torch.device("cpu"))
    rows = min(rows, n)
    shapes, values = method.noise_shapes(fitted.state, rows, 0, 1), []
    for batch in range(batches):
        positions = torch.from_numpy(streams.rng(key, "eval", 1 + batch).integers(0, n, (1, rows)))
        normals = streams.normal(key, "eval", 1 + batch, (1, shapes.size(rows)), like=data.inputs)
        values.append(float(method.loss(fitted.state, data.take(positions), shapes.split(normals, rows))) / n)
    return pd.DataFrame({"batch": range(batches), "bound": values})


def layers(fitted: Fitted) -> pd.DataFrame:
    """Training rows and posterior draws of every layer on a grid; columns chain, layer, output, sample, x, f."""
    fold, observed_x = fitted.fold, fitted.training_inputs("layers")[:, 0]
    low, high = observed_x.min(), observed_x.max()
    x = np.linspace(low - (high - low) / 2, high + (high - low) / 2, GRID)
    draws = _functions(fitted, x[:, None])
    targets = fold.targets[fold.train]
    parts = [long_table(("sample", "output"), targets.shape, layer=0, x=observed_x[:, None], f=targets)]
    for layer, f in enumerate(draws, 1):
        parts.append(long_table(("sample", "x", "output"), f.shape, layer=layer, x=x[:, None], f=f))
    return pd.concat(parts, ignore_index=True).assign(chain=isinstance(fitted.method, SamplerMethod))


def surfaces(fitted: Fitted) -> pd.DataFrame:
    """Training rows, and means of posterior draws of every layer on a grid over two inputs."""
    observed = fitted.training_inputs("surfaces")
    axes = [np.linspace(column.min(), column.max(), SIDE) for column in observed.T]
    x = np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, 2)
    means = [(observed, fitted.fold.targets[fitted.fold.train]), *((x, f.mean(0)) for f in _functions(fitted, x))]
    parts = [
        long_table(("x0", "output"), mean.shape, layer=layer, x0=at[:, :1], x1=at[:, 1:], mean=mean)
        for layer, (at, mean) in enumerate(means)
    ]
    return pd.concat(parts, ignore_index=True).assign(**fitted.input_names())


def inputs(fitted: Fitted) -> pd.DataFrame:
    """The inputs of the test rows, in original units; columns row, column, x."""
    rows = fitted.fold.test
    x = fitted.table.inputs[rows]
    return long_table(("row", "column"), x.shape, row=rows[:, None], x=x)


PROBES: dict[str, Probe] = {
    "layers": layers,
    "surfaces": surfaces,
    "inputs": inputs,
    "probabilities": posterior_probes.probabilities,
    "inducing": posterior_probes.inducing,
    "starts": posterior_probes.starts,
    "whitened": posterior_probes.whitened,
    "weights": posterior_probes.weights,
    "kernel_weights": posterior_probes.kernel_weights,
}
"""What evaluates a finished fit for each probe but `bounds`, whose numbers of batches and rows the budget gives."""


def _functions(fitted: Fitted, x: np.ndarray) -> list[np.ndarray]:
    """Posterior draws `[S, T, Q]` of the outputs of every layer at x `[T, D]` in original units."""
    method: Any = fitted.method  # `answers` has checked that it has functions
    like = next(iter(fitted.state.params.values()))
    scaling = fitted.fold.scaling
    scaled = torch.as_tensor(scaling.inputs(x)).to(like)[None]
    with torch.no_grad():
        draws = method.functions(fitted.state, scaled, fitted.fold.key)
    draws = [f[:, 0].double().numpy() for f in draws]
    if fitted.what.data.task == "regression":
        draws[-1] = draws[-1] * scaling.y_scale + scaling.y_shift
    return draws


def main(arguments: list[str] | None = None) -> int:
    """Entry of a Snakemake job; exit status 0, or 1 after one line on standard error."""
    parser = argparse.ArgumentParser(prog="python -m gpbench.study.results.probes", description="Ask finished fits.")
    parser.add_argument("study", help="name of its results folder")
    parser.add_argument("kind", choices=COLUMNS)
    chosen = parser.parse_args(arguments)
    return exit_status(lambda: write(places.find(), chosen.study, chosen.kind))


if __name__ == "__main__":
    sys.exit(main())
