"""Fits of the kind `sample`: Markov chains whose draws are judged; nothing is predicted, no row held out.

    chain        names `[V]`: of all numbers that are sampled, V; ess `[V]`: `diagnostics.geyer_ess` in draws; mean,
                 variance `[K, V]`: over the first iterations `[K]` draws (ddof 1); draws `[T, W]`: of the watched ones
                 `[W]` (places among the V) in single precision; every `[T', V]`: at most 500 draws of all, evenly
                 thinned, in single precision, by which every number that is sampled is judged.

Watched are 12, or 40 in a chain of at most 500 draws: first those of the variables with few numbers (the parameters),
of one with more than there is room for evenly spaced ones (some latent values).
"""

from pathlib import Path

import numpy as np
import torch

from gpbench.data.table import Table, evenly
from gpbench.errors import UserError
from gpbench.sampling import diagnostics
from gpbench.study.fitting import lightning_module
from gpbench.study.fitting.lightning_module import SamplerFit
from gpbench.study.fitting.outcome import Outcome
from gpbench.study.records import Group

PARTS = 5  # moments of a chain shorter than 2,000 draws are kept after so many equal parts
WATCHED, WATCHED_IF_SHORT, SHORT = 12, 40, 500


class ChainFit(SamplerFit):
    """Chains that nobody asks for predictions."""

    def look(self, r: int) -> dict[str, float]:
        return {}


def run(group: Group, table: Table, work: Path) -> list[Outcome]:
    """Draw the chains of a group (resuming where they were cut off)."""
    return lightning_module.complete(ChainFit, group, table, work, outcome)


def outcome(fit: ChainFit, r: int) -> Outcome:
    """What chain r of a finished group leaves behind."""
    result = lightning_module.trained(fit, r)
    if result.status != "done":
        return result
    if not fit.state.samples:
        raise UserError(f"{fit.group.what.method.module}: keep kept none of {fit.steps} states; let it keep some")
    samples = {name: torch.cat([value[r : r + 1] for value in kept]) for name, kept in fit.state.samples.items()}
    arrays = {name: value.reshape(len(value), -1).double().cpu().numpy() for name, value in samples.items()}
    for name, values in arrays.items():
        if not np.isfinite(values).all():
            result.status, result.reason = "diverged", f"a draw of {name!r} is not finite"
            return result
    result.chain = content({name: fit.method.variables(name, v.shape[1]) for name, v in arrays.items()}, arrays)
    return result


def content(names: dict[str, list[str]], samples: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The part `chain` of samples `[T, size]` by variable, with names of their numbers; those with few come first."""
    order = sorted(samples, key=lambda name: samples[name].shape[1])
    draws = np.concatenate([samples[name] for name in order], 1)
    iterations = checkpoints(len(draws))
    most = WATCHED if len(draws) > SHORT else WATCHED_IF_SHORT
    watched = watch([samples[name].shape[1] for name in order], most)
    return {
        "names": np.array([text for name in order for text in names[name]]),
        "ess": diagnostics.geyer_ess(draws),
        "iterations": np.array(iterations),
        "mean": np.stack([draws[:t].mean(0) for t in iterations]),
        "variance": np.stack([draws[:t].var(0, ddof=1) if t > 1 else 0 * draws[0] for t in iterations]),
        "watched": watched,
        "draws": draws[:, watched].astype(np.float32),
        "every": draws[evenly(len(draws), SHORT)].astype(np.float32),
    }


def checkpoints(count: int) -> list[int]:
    """Numbers of draws whose moments are kept of a chain of `count` draws; the last is `count`."""
    if count < 2 * diagnostics.CHECKPOINTS[0]:
        return sorted({max(1, round(count * part / PARTS)) for part in range(1, PARTS + 1)})
    return sorted({*(t for t in diagnostics.CHECKPOINTS if t <= count), count})


def watch(sizes: list[int], most: int) -> np.ndarray:
    """Places of at most `most` numbers among variables of some sizes, which stand one after the other."""
    chosen: list[int] = []
    before = 0
    for size in sizes:
        chosen += (before + evenly(size, most - len(chosen))).tolist()
        before += size
    return np.array(chosen)
