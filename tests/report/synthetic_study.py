"""A synthetic study: 8 methods x 7 data sets x 5 splits with skipped, failed, diverged and missing fits."""

import json
import shutil

import numpy as np
import pandas as pd
from scipy.special import ndtr

METHODS = {
    "svgp": "SVGP",
    "dsvi": "DSVI (2 layers)",
    "bsgp_1": "BSGP (1 layer)",
    "bsgp_2": "BSGP (2 layers)",
    "dgp_rff": "DGP-RFF",
    "exact_gp": "Exact GP",
    "boosting": "Gradient boosting",
    "constant": "Constant",
}
DATASETS = {
    "boston": "regression",
    "concrete": "regression",
    "energy": "regression",
    "yacht": "regression",
    "banana": "binary",
    "breast_cancer": "binary",
    "digits": "multiclass",
}
QUALITY = dict(zip(METHODS, (0.30, 0.20, 0.25, 0.15, 0.35, 0.28, 0.40, 1.2), strict=True))
SECONDS = dict(zip(METHODS, (20, 90, 60, 150, 40, 4, 0.5, 0.01), strict=True))
N_TRAIN, N_TEST = 360, 40
METRICS = ("mnll", "rmse", "rmse_scaled", "error")
TRAINED = ("svgp", "dsvi", "bsgp_1", "bsgp_2", "dgp_rff")
# what a study sets of its variants
SETTINGS = {
    "svgp": {"frequencies": "var_fixed", "num_features": 10, "num_inducing": 10},
    "dsvi": {"frequencies": "var_fixed", "num_features": 100, "num_inducing": 100},
    "bsgp_1": {"frequencies": "var_resampled", "num_features": 10, "objective": "fitc", "layers": 2},
    "bsgp_2": {"frequencies": "var_resampled", "num_features": 100, "objective": "vfe", "layers": 2},
    "dgp_rff": {"scheme": "asynchronous", "workers": 2},
    "exact_gp": {"scheme": "asynchronous", "workers": 10},
    "boosting": {"scheme": "synchronous", "workers": 2},
}
CHAINS = 4


def outcome(method, dataset, split):
    """Status and reason of a fit, by rule, so that tests can name the cells."""
    if method == "exact_gp" and DATASETS[dataset] != "regression":
        return "skipped", "regression only"
    if method == "dgp_rff" and dataset == "yacht":
        return "failed", "layer 1: Cholesky failed with jitter 1e-4 of the mean diagonal"
    if (method, dataset, split) == ("bsgp_2", "boston", 3):
        return "diverged", "non-finite log joint at step 812"
    if (method, dataset, split) == ("dsvi", "energy", 1):
        return "stopped", "time cap of 600 s at step 4100 of 5000"
    return "done", ""


def all_done(*_):
    """The outcome of every fit of a study in which nothing fails."""
    return "done", ""


def points_of(rng, task, quality):
    """Test points of one fit, with scores that follow from them."""
    if task == "regression":
        mean = rng.normal(size=N_TEST)
        y = mean + quality * rng.standard_t(8, size=N_TEST)
        z = (y - mean) / quality
        log_density = -0.5 * z**2 - np.log(quality) - 0.5 * np.log(2 * np.pi)
        crps = quality * (z * (2 * ndtr(z) - 1) + 2 * np.exp(-(z**2) / 2) / np.sqrt(2 * np.pi) - 1 / np.sqrt(np.pi))
        points = {"y": y, "mean": mean, "sd": quality, "log_density": log_density, "pit": ndtr(z), "crps": crps}
        rmse = np.sqrt(np.mean((y - mean) ** 2))
        return pd.DataFrame(points), {"mnll": -log_density.mean(), "rmse": rmse, "rmse_scaled": rmse / 2}
    confidence = np.clip(1 - 0.3 * rng.beta(1 + 2 * quality, 2, size=N_TEST), 0.5, 0.999)
    right = rng.uniform(size=N_TEST) < confidence
    y = rng.integers(0, 2, size=N_TEST)
    p_true = np.where(right, confidence, 1 - confidence)
    points = {
        "y": y,
        "log_density": np.log(p_true),
        "modal": np.where(right, y, 1 - y),
        "confidence": confidence,
        "p_true": p_true,
        "p0": np.where(y == 0, p_true, 1 - p_true),
        "p1": np.where(y == 1, p_true, 1 - p_true),
    }
    return pd.DataFrame(points), {"mnll": -np.log(p_true).mean(), "error": np.mean(~right)}


def trace_of(rng, method, fit_id, final):
    """Twelve evaluations of a fit between rows without one."""
    steps = np.arange(0, 5001, 208)[:25]
    decay = np.exp(-steps / 900)
    trace = pd.DataFrame({"fit_id": fit_id, "step": steps, "seconds": 0.05 + SECONDS[method] * steps / 5000})
    trace["objective"] = 400 * decay + rng.normal(scale=2, size=len(steps))
    trace["mnll"] = np.where(np.arange(len(steps)) % 2 == 0, final + 2 * decay, np.nan)
    return trace.assign(rmse=np.nan, error=np.nan)


def build(
    folder, methods=METHODS, datasets=DATASETS, splits=5, status=outcome, drop=(), protocol="common", settings=None
):
    """Write the four files of a study; `drop` lists (method, dataset, split) without a row."""
    folder.mkdir(parents=True, exist_ok=True)
    scores, traces, points = [], [], []
    for i, method in enumerate(methods):
        for j, dataset in enumerate(datasets):
            for split in range(splits):
                if (method, dataset, split) in drop:
                    continue
                state, reason = status(method, dataset, split)
                rng = np.random.default_rng([i, j, split])
                fit_id = f"{method}-{dataset}-{split}"
                row = {"fit_id": fit_id, "kind": "predict", "method": method, "label": METHODS[method]}
                row |= {"family": "gradient", "preset": method, "dataset": dataset, "protocol": protocol}
                row |= {"budget": "quick"}
                row |= {"split": split, "replica": 0, "task": DATASETS[dataset], "status": state, "reason": reason}
                row |= {"steps": 5000, "convergence": "converged", "overrides": "", "commit": "0123abc", "dirty": False}
                row |= {"seconds_train": SECONDS[method] * rng.uniform(0.9, 1.1), "seconds_predict": 0.2}
                row |= {"peak_memory_mb": 300.0 + 10 * i, "n_train": N_TRAIN, "n_test": N_TEST}
                row |= dict.fromkeys(METRICS, np.nan)
                if state == "done":
                    test, metrics = points_of(rng, DATASETS[dataset], QUALITY[method] * (1 + 0.3 * j))
                    row |= metrics
                    points.append(test.assign(fit_id=fit_id, row=np.arange(N_TEST)))
                    if method in TRAINED:
                        traces.append(trace_of(rng, method, fit_id, row["mnll"]))
                scores.append(row)
    pd.DataFrame(scores).to_parquet(folder / "scores.parquet")
    empty_trace = pd.DataFrame(columns=["fit_id", "step", "seconds", "objective", "mnll", "rmse", "error"])
    (pd.concat(traces) if traces else empty_trace).to_parquet(folder / "traces.parquet")
    empty_points = pd.DataFrame(columns=["fit_id", "row", "y", "log_density"])
    (pd.concat(points) if points else empty_points).to_parquet(folder / "points.parquet")
    study = {
        "name": folder.name,
        "command": f"snakemake --cores 2 --config study={folder.name}",
        "title": "Synthetic study",
        "kind": "predict",
        "datasets": list(datasets),
        "methods": list(methods),
        "protocol": protocol,
        "reported": {"metrics": ["mnll", "rmse"], "spread": "sample sd"},
        "budget": "quick",
        "splits": splits,
        "settings": {method: (settings or {}).get(method, {}) for method in methods},
        **{"figures": [], "tables": [], "pairs": [], "published": None},
        "expected": [[m, d, s] for m in methods for d in datasets for s in range(splits)],
        "commit": "0123abc",
        "machine": {"cores": 2},
        "created": "2024-01-01T00:00:00",
    }
    (folder / "study.json").write_text(json.dumps(study))
    return folder


def change_study(folder, **changes):
    """Change keys of study.json."""
    path = folder / "study.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def change_scores(folder, **columns):
    """Give columns of scores.parquet other values, or functions of the scores."""
    path = folder / "scores.parquet"
    pd.read_parquet(path).assign(**columns).to_parquet(path)


def add_replica(folder):
    """Give every fit of a study another one of its split, `FIT-1`."""
    scores = pd.read_parquet(folder / "scores.parquet")
    second = scores.assign(replica=1, fit_id=scores["fit_id"] + "-1")
    pd.concat([scores, second], ignore_index=True).to_parquet(folder / "scores.parquet")


def with_scores(study, scores, folder):
    """Write into a folder a study that is another one but for its scores."""
    scores.to_parquet(folder / "scores.parquet")
    shutil.copy(study / "study.json", folder)
    return folder


def build_probed(folder, status=all_done):
    """A study with all that figures may request: variants, bounds, functions of layers, four chains, staleness.

    On boston `svgp` is variational and `bsgp_2` a sampler, whose chains keep to alternating signs."""
    build(folder, METHODS, ["boston", "banana"], 3, status, settings=SETTINGS)
    scores = pd.read_parquet(folder / "scores.parquet")
    first = scores.query("method == 'bsgp_2' and dataset == 'boston' and split == 0")
    copies = [first.assign(replica=r, fit_id=first["fit_id"] + f"-{r}") for r in range(1, CHAINS)]
    scores = pd.concat([scores, *copies], ignore_index=True)
    scores["staleness_mean"] = scores["method"].map({"dgp_rff": 0.9, "exact_gp": 8.5})
    scores["restarts"] = scores["method"].map({"dgp_rff": 0.0, "exact_gp": 1.0})
    scores.to_parquet(folder / "scores.parquet")
    rng = np.random.default_rng(0)
    bounds = [
        pd.DataFrame({"fit_id": fit.fit_id, "batch": range(5), "bound": QUALITY[fit.method] + rng.normal(0, 0.01, 5)})
        for fit in scores.itertuples()
        if fit.method != "constant"
    ]
    pd.concat(bounds).to_parquet(folder / "bounds.parquet")
    fits = scores.query("dataset == 'boston' and split == 0 and method in ['svgp', 'bsgp_2']")
    layers = [
        layers_of(rng, fit.replica, fit.method == "bsgp_2").assign(fit_id=fit.fit_id) for fit in fits.itertuples()
    ]
    pd.concat(layers).to_parquet(folder / "layers.parquet")
    return folder


def layers_of(rng, replica, chain, samples=50):
    """Ten training rows on [0, 2], a hidden layer of either sign on [-1, 3], and its square."""
    x, sign = np.linspace(-1, 3, 41), (-1) ** replica
    data = pd.DataFrame({"layer": 0, "sample": range(10), "x": np.linspace(0, 2, 10), "f": 0.5})
    hidden = sign * (1 + x) + rng.normal(0, 0.3, (samples, 1))
    parts = [
        pd.DataFrame(
            {"layer": layer, "sample": np.repeat(range(samples), 41), "x": np.tile(x, samples), "f": f.ravel()}
        )
        for layer, f in ((1, hidden), (2, (sign * hidden) ** 2))
    ]
    return pd.concat([data, *parts]).assign(output=0, chain=chain)
