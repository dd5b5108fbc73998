"""The rule of convergence on fits that go on: `python bench/convergence_rule.py FOLDER`.

Each fit trains at a constant rate, without a rule that ends it. After it the rule is asked at every step at which it
would have been, up to half of them, and what the fit gained from there to twice as many steps is seen in its
objective. A call is false where that is more than 0.02 nats a datum; a fit is missed where the rule never calls it
converged, though it gained less than that from half of its steps on. A search that ended by itself, where its gradient
is small, counts as converged at its end, for there is nothing to double. Measured fits are kept in FOLDER and are not
repeated.
"""

from __future__ import annotations

import dataclasses
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch

from gpbench import places
from gpbench.data import splits
from gpbench.data import table as tables
from gpbench.study.commands import fit_one
from gpbench.study.fitting import convergence, lightning_module
from gpbench.study.fitting.convergence import CONVERGED, LARGEST_GAIN

LARGE_GAIN = 0.1
LAST_PART = 0.2
"""Part of the steps up to a point whose mean objective stands for the objective there."""
SPLITS = (1, 2)
FULL = {"batch_size": 512, "full_batch_rows": 2000}
METHODS: dict[str, tuple[str, int, dict[str, Any]]] = {  # label -> method, steps, settings
    "SVGP by Adam": ("svgp", 8000, FULL | {"optimiser": "adam"}),
    "exact GP by L-BFGS": ("exact_gp", 400, {}),
    "SGPR by L-BFGS": ("sgpr", 800, {}),
    "SVGP by L-BFGS": ("svgp", 800, {"optimiser": "lbfgs"}),
    "FITC by L-BFGS": ("fitc", 800, {}),
    "BNN": ("bnn", 8000, {}),
    "DGP-RFF": ("dgp_rff", 8000, {}),
    "FITC-SVGP": ("fitc_svgp", 8000, {}),
    "DSVI-2": ("dsvi", 3000, FULL),
    "AEP-2": ("aep", 3000, {}),
    "DGP mean-field": ("dgp_meanfield", 3000, {}),
}
REGRESSION, BINARY = ("boston_uci", "concrete", "wine_red", "yacht", "energy"), ("ionosphere", "pima")
ONLY_REGRESSION = ("exact_gp", "sgpr", "fitc", "fitc_svgp", "dgp_meanfield")


def followed(label: str, dataset: str, split: int) -> dict[str, Any] | None:
    """Windows of the objective a datum of one fit `[W]`, and how many steps a window has; None where it diverged."""
    name, steps, settings = METHODS[label]
    words = [f"method={name}", f"dataset={dataset}", f"split={split}", "budget=paper", f"method.steps={steps}"]
    words += ["method.decay=0", *(f"method.{key}={value}" for key, value in settings.items())]
    where = places.find()
    with tempfile.TemporaryDirectory() as work:
        (group,), _ = fit_one.groups(dataclasses.replace(where, store=Path(work) / "store"), words)
        table = tables.load(where.prepared_file(dataset), str(group.what.data.md5))
        rows = splits.numbered_rows(group.what.protocol.splits, table)
        fit = lightning_module.family(group)(group, rows, Path(work), torch.device("cpu"))
        lightning_module.train(fit)
    if fit.reasons[0]:
        return None
    means = torch.stack(fit.schedule.means)[:, 0].double().numpy() / fit.schedule.rows[0]
    return {"means": means.tolist(), "window": fit.schedule.rule.window, "stationary": bool(fit.schedule.stationary[0])}


def level(means: np.ndarray, windows: int) -> float:
    """Objective a datum after so many windows."""
    return float(means[windows - max(round(LAST_PART * windows), 1) : windows].mean())


def verdict(found: dict[str, Any]) -> tuple[int | None, float, float]:
    """Step of the first call (None without any), what twice its steps gain, and what the last doubling gains."""
    means, window = np.array(found["means"]), found["window"]
    rule = convergence.ADAM if window == convergence.ADAM.window else convergence.LBFGS
    last = level(means, len(means)) - level(means, len(means) // 2)
    for windows in range(1, len(means) // 2 + 1):
        step = windows * window
        if convergence.is_checked(step, window) and convergence.judge(means, step, rule).convergence == CONVERGED:
            return step, level(means, 2 * windows) - level(means, windows), last
    return None, float("nan"), last


def main() -> None:
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    called, gains, missed, settled, ended = 0, [], 0, 0, 0
    for label, (name, _, _) in METHODS.items():
        for dataset in REGRESSION + (() if name in ONLY_REGRESSION or "L-BFGS" in label else BINARY):
            for split in SPLITS:
                path = folder / f"{label}-{dataset}-{split}.json"
                if not path.is_file():
                    path.write_text(json.dumps(followed(label, dataset, split)))
                found = json.loads(path.read_text())
                if found is None:
                    print(f"{label:20s} {dataset:12s} {split}  diverged", flush=True)
                    continue
                step, gain, last = verdict(found)
                if step is None and found["stationary"]:
                    ended += 1
                    continue
                settled += abs(last) < LARGEST_GAIN
                missed += abs(last) < LARGEST_GAIN and step is None
                called += step is not None
                gains += [] if step is None else [gain]
                print(f"{label:20s} {dataset:12s} {split}  {step!s:>6}  {gain:+.4f}  {last:+.4f}", flush=True)
    false = [sum(gain > limit for gain in gains) for limit in (LARGE_GAIN, LARGEST_GAIN)]
    print(f"called converged: {called}; of these gained more than {LARGE_GAIN}: {false[0]}, {LARGEST_GAIN}: {false[1]}")
    print(f"ended by themselves before any call: {ended}")
    print(f"settled at half of the steps: {settled}; of these never called: {missed}")


if __name__ == "__main__":
    main()
