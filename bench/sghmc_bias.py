"""How much wider than the posterior SGHMC is with mini-batches: `python bench/sghmc_bias.py > docs/sghmc_bias.md`.

Bayesian linear regression, y = x w + e with w ~ N(0, I), e ~ N(0, 0.25), 1,000 rows, four columns of different scales:
its posterior is Gaussian and known. Chains start at draws from it, learn the preconditioner in burn-in as those of
`bsgp` do, and take mini-batches as a fit does (drawn with replacement, weighted by N / B), for several sizes and steps.
The variance of each coordinate is divided by the exact one, beside what a linear recursion predicts,

    1 + e^2 Var(xi) / (2 b N sqrt(s)),    Var(xi) = N^2 Var_n(g_n) / B,    s the preconditioner that burn-in has learnt,

g_n the gradient of row n at the posterior mean. Where that noise also rules s, s = Var(xi) / N^2, the excess is
e^2 N sd(g) / (2 b sqrt(B)). Writes docs/sghmc_bias.svg and prints the table.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import matplotlib.pyplot as plt
import numpy as np
import torch
from scipy import stats
from torch import Tensor

from gpbench import report
from gpbench.methods.training_rows import TrainingSet
from gpbench.sampling import sghmc

FIGURE = Path(__file__).parents[1] / "docs" / "sghmc_bias.svg"
ROWS, SCALES, NOISE, FRICTION = 1000, (1.0, 1.0, 0.5, 2.0), 0.25, 0.05
CHAINS, BURN_IN, STEPS, EVERY = 16, 2000, 6000, 10
BATCHES: tuple[int | None, ...] = (10, 30, 100, 300, 1000, None)
"""Rows of a mini-batch; None: all rows, each once."""
STEP_SIZES = (0.003, 0.01, 0.03)


class Problem(NamedTuple):
    """Data of all chains, and their posterior."""

    data: TrainingSet
    mean: Tensor  # [K]
    covariance: Tensor  # [K, K]
    slope_variance: Tensor
    """Var_n(g_n) at the posterior mean `[K]`."""


class Found(NamedTuple):
    """Of every chain, over its coordinates."""

    variance: np.ndarray
    """Mean ratio to the exact variance `[CHAINS]`."""
    mean: np.ndarray
    """Mean difference from the exact mean, in its standard deviations `[CHAINS]`."""
    predicted: float
    """Mean of the predicted ratio."""


def problem() -> Problem:
    generator = torch.Generator().manual_seed(0)
    normal = {"generator": generator, "dtype": torch.float64}
    x = torch.randn(ROWS, len(SCALES), **normal) * torch.tensor(SCALES)
    y = x @ torch.randn(len(SCALES), 1, **normal) + NOISE**0.5 * torch.randn(ROWS, 1, **normal)
    zero, one = (torch.full((CHAINS, len(SCALES)), value, dtype=torch.float64) for value in (0.0, 1.0))
    places, counts = torch.arange(ROWS).expand(CHAINS, ROWS), torch.full((CHAINS,), ROWS)
    data = TrainingSet(x, y, places, counts, zero, one, zero[:, :1], one[:, :1])
    covariance = torch.linalg.inv(torch.eye(len(SCALES)) + x.mT @ x / NOISE)
    mean = covariance @ (x.mT @ y)[:, 0] / NOISE
    slopes = x * (x @ mean[:, None] - y) / NOISE
    return Problem(data, mean, covariance, slopes.var(0, correction=0))


def run(known: Problem, batch_size: int | None, step_size: float, burn_in: int, steps: int) -> Found:
    """Chains of so many steps after burn-in."""
    generator = torch.Generator().manual_seed(1)
    sd, number = known.covariance.diagonal().sqrt(), known.data.count.to(known.mean)
    start = torch.randn(CHAINS, len(sd), generator=generator, dtype=torch.float64)
    params = {"w": known.mean + start @ torch.linalg.cholesky(known.covariance).mT}
    memory, drawn = sghmc.init(params), []
    full = known.data.full()
    for step in range(burn_in + steps):
        positions = torch.randint(ROWS, (CHAINS, batch_size or 1), generator=generator)
        batch = full if batch_size is None else known.data.take(positions)
        # U = 1/2 |w|^2 + sum_n (y_n - x_n w)^2 / (2 noise)
        gap = batch.x @ params["w"][..., None] - batch.y
        slope = params["w"] + (batch.x * gap * batch.weight[..., None]).sum(1) / NOISE
        kick = torch.randn(CHAINS, len(sd), generator=generator, dtype=torch.float64)
        options = {"step_size": step_size, "friction": FRICTION, "adapt": step < burn_in}
        params, memory = sghmc.step(params, {"w": slope}, memory, kick, number, **options)
        if step >= burn_in and step % EVERY == 0:
            drawn.append(params["w"])
    standard = (torch.stack(drawn) - known.mean) / sd  # [T, CHAINS, K]
    noise = 0.0 if batch_size is None else ROWS**2 * known.slope_variance / batch_size
    excess = step_size**2 * noise / (2 * FRICTION * ROWS * memory["gradient_square"].sqrt())
    predicted = 1 + float(torch.as_tensor(excess).mean())
    return Found(standard.square().mean((0, 2)).numpy(), standard.mean((0, 2)).numpy(), predicted)


def interval(values: np.ndarray) -> tuple[float, float]:
    """Mean over chains, and half its 95 % interval."""
    half = stats.t.ppf(0.975, len(values) - 1) * values.std(ddof=1) / len(values) ** 0.5
    return float(values.mean()), float(half)


def table(found: dict[tuple[float, int | None], Found]) -> str:
    lines = [
        "# Mini-batches widen the chains of SGHMC",
        "",
        f"Variance of the draws over the exact one, and mean less the exact one in standard deviations, with 95 % "
        f"intervals over {CHAINS} chains: linear regression, {ROWS:,} rows, friction {FRICTION}. Predicted: "
        "1 + e^2 Var(xi) / (2 b N sqrt(s)). Made by `bench/sghmc_bias.py`, which explains it.",
        "",
        "The figure has the ratios less 1 (marks, with their intervals) and what is predicted (lines); a ratio below 1 "
        "has no place on its logarithmic axis, and of it only the upper part of the interval is drawn.",
        "",
        "![Excess variance against the size of a mini-batch](sghmc_bias.svg)",
        "",
        "| step size | rows of a step | variance ratio | predicted | mean |",
        "| ---: | ---: | ---: | ---: | ---: |",
    ]
    for (step_size, batch_size), chains in found.items():
        variance, mean = (interval(values) for values in (chains.variance, chains.mean))
        size = "all, once" if batch_size is None else f"{batch_size:,}"
        ratio, apart = f"{variance[0]:.3f} ± {variance[1]:.3f}", f"{mean[0]:+.3f} ± {mean[1]:.3f}"
        lines.append(f"| {step_size} | {size} | {ratio} | {chains.predicted:.3f} | {apart} |")
    return "\n".join(lines)


def draw(found: dict[tuple[float, int | None], Found]) -> None:
    """Excess of the variance against the size of a mini-batch, a colour a step size."""
    plt.style.use(Path(report.__file__).with_name("gpbench.mplstyle"))
    plt.rcParams["svg.hashsalt"] = "sghmc_bias"  # the same file again
    figure, axis = plt.subplots(figsize=(3.4, 2.4), layout="constrained")
    sizes = [size for size in BATCHES if size is not None]
    for colour, step_size in zip(("#0072B2", "#E69F00", "#009E73"), STEP_SIZES, strict=True):
        chains = [found[step_size, size] for size in sizes]
        excess, error = np.array([interval(part.variance) for part in chains]).T
        axis.errorbar(sizes, excess - 1, error, fmt="o", markersize=3, color=colour, label=f"step {step_size}")
        axis.plot(sizes, [part.predicted - 1 for part in chains], color=colour, linewidth=0.8)
    axis.plot([], color="black", linewidth=0.8, label="predicted")
    axis.set(
        xscale="log", yscale="log", ylim=(1e-3, None), xlabel="rows of a mini-batch", ylabel="variance ratio less 1"
    )
    axis.legend()
    figure.savefig(FIGURE, metadata={"Date": None})


def main() -> None:
    torch.set_num_threads(1)
    known, pairs = problem(), [(step, size) for step in STEP_SIZES for size in BATCHES]
    # a short step needs more of them
    found = {(step, size): run(known, size, step, BURN_IN, round(STEPS * max(1, 0.01 / step))) for step, size in pairs}
    draw(found)
    print(table(found))


if __name__ == "__main__":
    main()
