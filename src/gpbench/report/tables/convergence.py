"""Which cells have converged, and what refitting a split at four times its steps changed (`gpbench certify`)."""

import pandas as pd

from gpbench.evaluation.metrics import METRICS
from gpbench.report.tables.render import Table, number, signed
from gpbench.report.view import CERTIFICATE, View
from gpbench.study.fitting.convergence import ADAM, LBFGS


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
        "gain is of the objective a datum, in scaled units, over the last tenth of the steps."
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
