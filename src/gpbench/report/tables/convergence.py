"""Whether fits have converged, and what refitting a split at four times its steps changed (`gpbench certify`); whether
Markov chains have mixed: R-hat and effective sample sizes of predictions, and of functions of layers."""

from collections.abc import Iterator

import numpy as np
import pandas as pd

from gpbench.evaluation.metrics import METRICS
from gpbench.report.tables.render import Table, number, signed
from gpbench.report.view import CERTIFICATE, MIXING, MIXING_REPORTED, View
from gpbench.sampling import diagnostics
from gpbench.study.fitting.convergence import ADAM, LBFGS

POINTS = 11  # inputs at which the functions of chains are compared
COUNTS = ["chains", "draws"]
WORST = {"r_hat": "max", "ess_bulk": "min", "ess_tail": "min"}


def convergence(view: View) -> Table:
    """A row for every cell whose fits are judged: how many have converged, predicted gain, steps, certificate."""
    fits = view.done[(view.done["convergence"] != "") | view.done["certificate_steps"].notna()]
    rows = [[*cell, *_facts(of_cell)] for cell, of_cell in fits.groupby(["dataset", "method"], sort=False)]
    columns = ["dataset", "method", "status", "fits", "gain", "steps_done", *CERTIFICATE]
    data = pd.DataFrame(rows, columns=columns)
    shown = {
        "data set": data["dataset"],
        "method": data["method"].map(view.labels),
        "status": data["status"],
        "largest predicted gain": data["gain"].map(number),
        "steps (median)": data["steps_done"].map(lambda n: "-" if pd.isna(n) else f"{n:.0f}"),
        "refitted at": data["certificate_steps"].map(lambda n: "-" if pd.isna(n) else f"{n:.0f} steps"),
        "objective gained": data["certificate_objective"].map(signed),
        f"change of {METRICS['mnll'].label}": data["certificate_mnll"].map(signed),
    }
    note = (
        f"Converged: as many steps again are predicted to gain less than {ADAM.gain:g} nats a datum ({LBFGS.gain:g} by "
        "L-BFGS); of Markov chains, by their R-hat. Refitted: the first split of the cell at four times its steps; the "
        "gain is of the objective a datum, in scaled units, over the last tenth of the steps; a change of MNLL below "
        "zero is better."
    )
    return Table(data, pd.DataFrame(shown), "Have the fits converged?", note)


def _facts(fits: pd.DataFrame) -> list[object]:
    """Of the fits of a cell, from `status` on."""
    counts = fits["convergence"].value_counts()
    status = ", ".join(f"{n} {name}" for name, n in counts.items() if name)
    certified = fits[fits["certificate_steps"].notna()].head(1)[list(CERTIFICATE)].astype(float)
    certificate = certified.iloc[0].tolist() if len(certified) else [float("nan")] * len(CERTIFICATE)
    gain, steps = fits["gain"].astype(float).max(), fits["steps_done"].astype(float).median()
    return [status, len(fits), gain, steps, *certificate]


def chains(view: View) -> Table:
    """R-hat and effective sample sizes of every cell and split, for predictions (judged) and covariance parameters."""
    columns = ["dataset", "method", "split", "gate", *MIXING, *MIXING_REPORTED]
    fits = view.done[view.done["r_hat"].notna() | view.done["draws"].notna()]
    data = fits.groupby(columns[:3], sort=False).agg(dict.fromkeys(columns[3:], "first") | {"seconds_train": "sum"})
    data = data.reset_index().assign(ess_per_second=lambda rows: rows["ess_bulk"] / rows["seconds_train"])
    shown = {
        "data set": data["dataset"],
        "method": data["method"].map(view.labels),
        "split": data["split"],
        "chains x draws": [f"{row.chains:.0f} x {row.draws:.0f}".replace("nan", "-") for row in data.itertuples()],
        "R-hat": [_ratio(row.r_hat) + " ✗" * (row.gate == "failed") for row in data.itertuples()],
        "over rows": [_ratio(row.r_hat_row, row.r_hat_row_sd) for row in data.itertuples()],
        "bulk ESS": data["ess_bulk"].map(number),
        "tail ESS": data["ess_tail"].map(number),
        "MCSE": data["mcse"].map(lambda value: number(value, 2)),
        "ESS per second": data["ess_per_second"].map(number),
        "R-hat, covariance": data["r_hat_covariance"].map(_ratio),
        "ESS, covariance": data["ess_covariance"].map(number),
    }
    judged = "the budget sets no limit"
    if limit := view.study.get("r_hat"):
        judged = f"✗: R-hat exceeds {limit:g}, the limit of the budget, or there are too few effective draws"
    of_numbers = view.study["kind"] == "sample"
    worst = "numbers that are sampled" if of_numbers else "test rows of predictive mean and log density"
    note = (
        f"Split and rank-normalised (vehtari2021), the worst over {worst}; for a single chain its halves are compared; "
        f"{judged}. MCSE: the largest Monte Carlo standard error of a mean, in standard deviations of the draws. ESS: "
        "draws of all chains together; per second: of the training time of all chains, including burn-in."
    )
    if not of_numbers:
        note += (
            " Over rows: mean ± standard deviation over test rows of the R-hat of the predictive mean. Covariance "
            "parameters are not judged, because a deep posterior has many modes with the same predictions."
        )
    return Table(data, pd.DataFrame(shown), "R-hat and effective sample sizes of Markov chains", note)


def _ratio(value: float, sd: float = np.nan) -> str:
    spread = "" if np.isnan(sd) else f" ± {_ratio(sd)}"
    return ("-" if np.isnan(value) else f"{value:.3f}" if value < 100 else "> 100") + spread


def functions(view: View) -> Table:
    """Rank-normalised R-hat and effective sample sizes of the functions of every layer at inputs inside the data."""
    keys = ["dataset", "method", "split", "quantity"]
    data = pd.DataFrame(list(_diagnosed(view.probe("layers"))), columns=[*keys, "x", *COUNTS, *WORST])
    worst = data.groupby(keys, sort=False).agg(dict.fromkeys(COUNTS, "first") | WORST).reset_index()
    sizes = {name: worst[name].map(number) for name in ("ess_bulk", "ess_tail")}
    shown = worst.assign(method=worst["method"].map(view.labels), r_hat=[number(r, 4) for r in worst["r_hat"]], **sizes)
    names = ["data set", "method", "split", "quantity", *COUNTS, "largest R-hat", "least bulk ESS", "least tail ESS"]
    note = (
        f"The worst of {POINTS} inputs inside the training data (vehtari2021); the CSV has each of them. A hidden "
        "function and its mirror image are equally probable, so its R-hat is large where chains keep to different "
        "signs; its absolute value and the output do not depend on the sign. Chains with fewer than "
        f"{diagnostics.FEWEST_DRAWS} draws are left out."
    )
    return Table(data, shown.set_axis(names, axis=1), "Have the chains mixed?", note)


def _diagnosed(rows: pd.DataFrame) -> Iterator[dict[str, object]]:
    """A row for each sampler, split, quantity and input; rows: `layers.parquet`."""
    if rows.empty:
        return
    for (dataset, method, split), fits in rows[rows["chain"]].groupby(["dataset", "method", "split"], sort=False):
        observed = fits.loc[fits["layer"] == 0, "x"]
        place = {"dataset": dataset, "method": method, "split": split}
        for (layer, output), drawn in fits[fits["layer"] > 0].groupby(["layer", "output"]):
            x, draws = _chains(drawn[drawn["x"].between(observed.min(), observed.max())])
            if draws.shape[1] < diagnostics.FEWEST_DRAWS:
                continue
            name = f"layer {layer}" + f", output {output + 1}" * bool(output)
            quantities = {name: draws} | ({f"|{name}|": np.abs(draws)} if layer < fits["layer"].max() else {})
            counts = dict(zip(COUNTS, draws.shape, strict=False))
            for quantity, values in quantities.items():
                summary = pd.DataFrame(diagnostics.summary(values)).assign(x=x, quantity=quantity)
                yield from (place | counts | row for row in summary.to_dict("records"))


def _chains(drawn: pd.DataFrame) -> tuple[np.ndarray, np.ndarray]:
    """POINTS inputs `[T]` and the draws there `[chains, draws, T]`."""
    table = drawn.pivot(index=["replica", "sample"], columns="x", values="f")
    table = table.iloc[:, np.linspace(0, table.shape[1] - 1, POINTS).round().astype(int)]
    return table.columns.to_numpy(), table.to_numpy().reshape(drawn["replica"].nunique(), -1, table.shape[1])
