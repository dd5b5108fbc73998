"""Reference posteriors: of small models, by long chains of an independent sampler (`bench/reference.py`).

A file NAME.json has `settings` (model, sampler, versions, divergent trajectories), the data `x` and `y`, what is `held`
of psi, nu and f, and of every unknown number its mean and sd with Monte Carlo errors, R-hat, effective draws and
quantiles at the levels (i + 1/2) / 40. psi: log lengthscales (one, or one an input), then the log variance; of
regression, where latent values are integrated out, log(sigma, lambda, tau) as in `sgld_ulisse`; f: latent values. The
data of those that hold nothing are data sets `posterior_NAME`.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np

from gpbench.config.validate import require_known
from gpbench.data.simulated.reproducible import Draw

FOLDER = Path(__file__).parents[1] / "posteriors"
Content = dict[str, Any]  # of a file
PREFIX = "posterior_"  # of their data sets


def names() -> list[str]:
    """Of all reference posteriors."""
    return sorted(path.stem for path in FOLDER.glob("*.json"))


def whole() -> list[str]:
    """Of those of all unknowns, whose data are data sets."""
    return [name for name in names() if "_given_" not in name]


def read(name: str) -> Content:
    """The content of a file; UserError for an unknown name."""
    require_known("reference posterior", [name], names())
    return json.loads((FOLDER / f"{name}.json").read_bytes())


def labels(content: Content) -> dict[str, str]:
    """What the numbers of psi are called in chains, `psi[0]` -> `log lengthscale 1`."""
    problem = content["settings"]["problem"]
    size = len(problem["psi"])
    if problem["likelihood"] == "gaussian":
        called = ["log sigma", "log lambda", *_numbered("log tau", size - 2)]
    else:
        called = [*_numbered("log lengthscale", size - 1), "log variance"]
    return {f"psi[{i}]": label for i, label in enumerate(called)}


def _numbered(name: str, size: int) -> list[str]:
    """One name, or one an input."""
    return [f"{name} {i + 1}" for i in range(size)] if size > 1 else [name]


def draw(name: str) -> Draw:
    """Its data, as those of a simulated data set."""
    content = read(name)
    x = np.array(content["x"])
    return x, np.array(content["y"]), [f"x{i}" for i in range(x.shape[1])]
