"""Synthetic studies of samplers: chains that are autoregressions, whose effective sample sizes are known."""

import numpy as np
import pandas as pd
from scipy.signal import lfilter
from synthetic_study import add_replica, all_done, build, change_study

RHO = {"svgp": 0.5, "bsgp_1": 0.9, "bsgp_2": 0.99}
"""Autocorrelation at lag 1; chains of bsgp_2 also start far from each other."""
CHAINS, DRAWS = 4, 2000
CHECKPOINTS = (400, 800, 1200, 1600, 2000)
QUANTITIES = ("log lengthscale 1", "log variance")
CUBIC = {"svgp": 1.0, "bsgp_1": 10.0, "bsgp_2": 0.0}


def chain(rng, rho, start):
    """x_t = rho x_{t-1} + sqrt(1 - rho^2) e_t of `DRAWS` draws for two quantities, `[draws, 2]`."""
    noise = rng.normal(size=(DRAWS, 2)) * np.sqrt(1 - rho**2)
    return lfilter([1], [1, -rho], noise, axis=0, zi=np.full((1, 2), rho * start))[0]


def prefixes(draws):
    """Moments of the first draws, a row for each checkpoint and quantity."""
    return pd.DataFrame(
        [
            {"iteration": t, "quantity": name, "mean": values[:t].mean(), "variance": values[:t].var(ddof=1)}
            for t in CHECKPOINTS
            for name, values in zip(QUANTITIES, draws.T, strict=True)
        ]
    )


def scores(method, rng):
    """What is written of a chain besides its status."""
    rho = RHO[method]
    ess = DRAWS * (1 - rho) / (1 + rho) * rng.uniform(0.95, 1.05)
    cubic = CUBIC[method]
    found = {"ess_min": ess, "ess_percent": 100 * ess / DRAWS, "ess_per_cubic": ess / cubic if cubic else np.inf}
    found |= {"ess_per_second": ess / 4, "acceptance_latents": 0.7, "acceptance_theta": 0.25}
    found |= {"cubic": cubic, "quadratic": 12.0, "iterations": DRAWS, "r_hat": 1.01, "r_hat_classic": 1.02}
    found |= {
        "mcse": (CHAINS * ess) ** -0.5,
        "ess_bulk": CHAINS * ess,
        "ess_tail": CHAINS * ess / 2,
        "ess_bulk_per_cubic": found["ess_per_cubic"],
    }
    return found | {"ess_bulk_per_second": CHAINS * ess, "gate": "failed" if method == "bsgp_2" else "passed"}


def build_samplers(folder, methods=tuple(RHO), datasets=("boston", "banana"), splits=4, status=all_done):
    """Write a study of kind `sample`: every fit is a chain; draws of the first split are kept."""
    build(folder, methods, datasets, splits, status)
    base = pd.read_parquet(folder / "scores.parquet")
    rows, moments, kept = [], [], []
    for i, row in enumerate(base.to_dict("records")):
        for replica in range(CHAINS):
            rng = np.random.default_rng([i, replica])
            fit = row | {"kind": "sample", "replica": replica, "fit_id": f"{row['fit_id']}-{replica}", "mnll": np.nan}
            if row["status"] == "done":
                fit |= scores(row["method"], rng)
                draws = chain(rng, RHO[row["method"]], 6 * (replica - 1) * (row["method"] == "bsgp_2"))
                moments.append(prefixes(draws).assign(fit_id=fit["fit_id"]))
                if row["split"] == 0:
                    table = pd.DataFrame(draws[::2], columns=QUANTITIES).assign(draw=np.arange(0, DRAWS, 2))
                    kept.append(table.melt("draw", var_name="quantity").assign(fit_id=fit["fit_id"]))
            rows.append(fit)
    pd.DataFrame(rows).to_parquet(folder / "scores.parquet")
    if kept:
        pd.concat(moments).to_parquet(folder / "prefixes.parquet")
        pd.concat(kept).to_parquet(folder / "draws.parquet")
    change_study(folder, kind="sample", r_hat=1.05)
    return folder


def build_sizes(folder, datasets=("banana", "breast_cancer")):
    """Write a study of classifiers whose splits have 10 and 50 training rows by turns, and better scores with more."""
    methods = ["svgp", "dsvi", "constant"]
    build(folder, methods, datasets, 8, all_done)
    fits = pd.read_parquet(folder / "scores.parquet")
    rng = np.random.default_rng(0)
    fits["n_train"] = np.where(fits["split"] % 2, 50, 10)
    quality = fits["method"].map({name: 0.05 * i for i, name in enumerate(methods)})
    for i, metric in enumerate(("accuracy", "auc", "capacity_accuracy", "capacity_auc")):
        fits[metric] = 0.7 + 0.03 * i + 0.002 * fits["n_train"] - quality + rng.normal(0, 0.01, len(fits))
    fits.to_parquet(folder / "scores.parquet")
    return folder


def build_weights(folder):
    """Write a study in which `svgp` has learned weights of two sources for two classes: 1 + class + 10 source, by a
    random factor of median 1, in two chains."""
    build(folder, ["svgp", "dsvi"], ["digits"], 2, all_done)
    add_replica(folder)
    rng, parts = np.random.default_rng(0), []
    for fit_id in ("svgp-digits-0", "svgp-digits-0-1", "svgp-digits-1"):
        for number, source in np.ndindex(2, 2):
            weight = (1 + number + 10 * source) * np.exp(rng.normal(0, 0.3, 101))
            names = {"class": f"class {number}", "source": f"source {source}"}
            parts.append(pd.DataFrame({"fit_id": fit_id, "sample": range(101), **names, "weight": weight}))
    pd.concat(parts).to_parquet(folder / "weights.parquet")
    return folder


def build_estimates(folder):
    """Write a study of estimates log p(y | tau) = -(log tau + 1)^2 / (2 * 0.3^2) + noise with E exp(noise) = 1, whose
    standard deviation is 0.5 for one importance sample and 0.1 for 64."""
    grid = {"grid_low": -2.5, "grid_high": 0.5, "grid_points": 31, "lengthscale_shape": 1.0, "lengthscale_rate": 0.7}
    methods = {"svgp": ("laplace", 1, 0.5), "dsvi": ("laplace", 64, 0.1), "bsgp_1": ("ep", 1, 0.3)}
    settings = {name: grid | {"approximation": a, "num_importance": n} for name, (a, n, _) in methods.items()}
    build(folder, list(methods), ["banana", "breast_cancer"], 1, all_done, settings=settings)
    x, rng, parts = np.linspace(-2.5, 0.5, 31), np.random.default_rng(0), []
    for name, (_, _, sd) in methods.items():
        noise = rng.normal(-(sd**2) / 2, sd, (400, 31))
        table = pd.DataFrame(noise - (x + 1) ** 2 / 0.18 - 30, columns=[f"log_estimate[{g}]" for g in range(31)])
        long = table.assign(draw=range(400)).melt("draw", var_name="quantity")
        parts += [long.assign(fit_id=f"{name}-{dataset}-0") for dataset in ("banana", "breast_cancer")]
    pd.concat(parts).to_parquet(folder / "draws.parquet")
    return folder
