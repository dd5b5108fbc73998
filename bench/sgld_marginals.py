"""Do chains of `sgld_ulisse` have the marginals that Metropolis-Hastings finds? Figure 5 of filippone2015, in numbers.

    python bench/sgld_marginals.py FOLDER METHOD STEPS CHAINS MINUTES [ROWS]   go on with chains, so many minutes each
    python bench/sgld_marginals.py FOLDER                                      compare them with those of `gp_mh`

Chains are on all rows of concrete (or some at random), standardised, and continue where the folder has them; STEPS is
the whole length, by which the steps of Langevin dynamics fall. METHOD may have settings: `sgld_ulisse,threshold=1.0`.
Printed are, of each parameter after burn-in, the 1-Wasserstein distance to the reference in standard deviations of it
(of the reference: between its halves, which is what its length resolves), effective sample sizes, and the median and
97.5 % quantile over parameters of R-hat of Gelman and Rubin.
"""

from __future__ import annotations

import importlib
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from scipy import stats

from gpbench import config, places, streams
from gpbench.data import prepare
from gpbench.data import table as tables
from gpbench.methods.base import SamplerMethod, State
from gpbench.methods.training_rows import Batch
from gpbench.sampling import diagnostics

REFERENCE, DATASET = "gp_mh", "concrete"


def method(words: str) -> SamplerMethod:
    """A method with settings."""
    name, *settings = words.split(",")
    module = importlib.import_module(f"gpbench.methods.{name}")
    chosen = {key: yaml.safe_load(value) for key, value in (setting.split("=") for setting in settings)}
    made: SamplerMethod = module.Method(module.Hyperparameters(**chosen), "regression")
    return made


def rows(count: int | None = None) -> Batch:
    """All rows of the data set, or so many at random, standardised."""
    where = places.find()
    dataset = config.compose(where.conf, "dataset", DATASET)
    prepare.ensure(dataset, where)
    table = tables.load(where.prepared_file(DATASET), str(dataset.md5))
    chosen = np.random.default_rng(0).permutation(len(table.inputs))[:count]
    parts = (table.inputs[chosen], table.targets[chosen])
    x, y = (torch.from_numpy((part - part.mean(0)) / part.std(0))[None] for part in parts)
    return Batch(x, y, x.new_ones(x.shape[:2]))


def go_on(path: Path, words: str, batch: Batch, chain: int, steps: int, seconds: float) -> None:
    """Continue a chain, or begin it; the file has its state, draws `[t, P]` and seconds."""
    made, key = method(words), streams.Key(DATASET, "marginals", 0, chain)
    started, ends = time.thread_time(), time.monotonic() + seconds
    found: dict[str, Any] = torch.load(path, weights_only=False) if path.is_file() else {}
    found = found or {"state": made.init(batch, key), "draws": [], "seconds": 0.0, "steps": steps}
    state, draws, before = found["state"], found["draws"], found["seconds"]
    while len(draws) < steps and time.monotonic() < ends:
        step, n = len(draws), batch.x.shape[1]
        shapes = made.noise_shapes(state, n, step, steps)
        normals = streams.normal(key, "noise", step, (1, shapes.size(n)), like=batch.x)
        made.step(state, batch, shapes.split(normals, n), step, steps)
        draws.append(state.params["psi"][0].numpy().copy())
    found["seconds"] = before + time.thread_time() - started
    torch.save(found, path)
    pace = 1e3 * found["seconds"] / max(len(draws), 1)
    print(f"{path.stem}: {len(draws)} of {steps} steps, {pace:.1f} ms of a core a step", flush=True)


def chains(folder: Path, words: str) -> tuple[np.ndarray, list[State]]:
    """Draws after burn-in `[chains, draws, P]` of a method, of all chains as many as the shortest has, and states."""
    found = [torch.load(path, weights_only=False) for path in sorted(folder.glob(f"{words}-[0-9]*.pt"))]
    draws = [chain["draws"][method(words).burn_in(chain["steps"]) :] for chain in found]
    return np.array([chain[: min(map(len, draws))] for chain in draws]), [chain["state"] for chain in found]


def compare(folder: Path) -> None:
    every = np.concatenate(chains(folder, REFERENCE)[0])
    sd, halves = every.std(0), np.array_split(every, 2)
    for words in sorted({path.stem.rsplit("-", 1)[0] for path in folder.glob("*.pt")}):
        made, (draws, states) = method(words), chains(folder, words)
        if draws.shape[1] < diagnostics.FEWEST_DRAWS:
            print(f"{words}: still in burn-in")
            continue
        pooled = np.concatenate(draws)
        one, other = halves if words == REFERENCE else (pooled, every)
        ess = np.sum([diagnostics.geyer_ess(chain) for chain in draws], 0)
        r_hat = diagnostics.gelman_rubin(draws.mean(1), draws.var(1, ddof=1), draws.shape[1])
        print(f"{words}: {len(draws)} chains of {draws.shape[1]} draws")
        for k, name in enumerate(made.variables("psi", every.shape[1])):
            distance = stats.wasserstein_distance(one[:, k], other[:, k]) / sd[k]
            moments = f"mean {pooled[:, k].mean():+.3f}, sd {pooled[:, k].std():.3f}"
            print(f"  {name:11s} {moments}, W1/sd {distance:.3f}, ESS {ess[k]:.0f}")
        print(f"  R-hat median {np.median(r_hat):.3f}, 97.5 % {np.quantile(r_hat, 0.975):.3f}")
        for name in made.report(states[0]):
            print(f"  {name}: {np.mean([float(made.report(state)[name]) for state in states]):.3g}")


def main() -> None:
    folder = Path(sys.argv[1])
    torch.set_num_threads(1)
    if len(sys.argv) == 2:
        return compare(folder)
    folder.mkdir(parents=True, exist_ok=True)
    words, steps, count, minutes = sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), float(sys.argv[5])
    batch = rows(int(sys.argv[6]) if len(sys.argv) > 6 else None)
    for chain in range(count):
        go_on(folder / f"{words}-{chain}.pt", words, batch, chain, steps, 60 * minutes)


if __name__ == "__main__":
    main()
