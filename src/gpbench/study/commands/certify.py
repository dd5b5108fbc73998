"""Certificates of convergence: `gpbench certify STUDY` refits one split of each cell at four times its steps.

What the longer fit gains is kept beside the shorter one in the store, and collected and recorded with its scores.
"""

from collections.abc import Iterator

from gpbench.errors import UserError
from gpbench.places import Places
from gpbench.study import scoring
from gpbench.study.commands import fit_one, job
from gpbench.study.planning import plan as planning
from gpbench.study.records import FitRecord
from gpbench.study.storage import arrays, remote, seals
from gpbench.study.storage.store import Store

TIMES = 4
LAST_PART = 0.1  # part of the steps whose objectives are averaged: those of a single step are noisy


def certify(where: Places, study: str, overrides: str) -> Iterator[str]:
    """Refit the first finished split of each cell by gradients that has no certificate; a line for each cell.

    Raises UserError where no such fit is in the store."""
    store, has_fit = Store(where.store), False
    for cell in planning.make(where, *planning.study_words(where, study, overrides)).cells:
        if cell.skip or cell.sampler or cell.what.steps is None:
            continue
        if record := next((r for fit in cell.fits if (r := store.done(fit.fit_id))), None):
            has_fit = True
            yield f"{cell.method} on {cell.address.dataset}, split {record.split}: {_certified(where, store, record)}"
    if not has_fit:
        raise UserError(f"study {study!r} has no finished fit by gradients in the store; run it first")


def _certified(where: Places, store: Store, record: FitRecord) -> str:
    """The certificate of a fit in words, made where there is none."""
    if not (change := store.certificate(record.fit_id)):
        if (longer := refitted(where, store, record)) is None:
            return "the longer fit did not finish"
        store.certify(record.fit_id, change := compared(store, record, longer))
    return (
        f"{change['certificate_steps']} steps gain {change['certificate_objective']:+.4f} nats a datum of the "
        f"objective and change the MNLL by {change['certificate_mnll']:+.4f}"
    )


def refitted(where: Places, store: Store, record: FitRecord) -> FitRecord | None:
    """The same fit at `TIMES` its steps, without a rule that ends it; None where it does not finish."""
    steps = TIMES * int(record.info.get("steps_done") or record.what.steps or 0)
    words = fit_one.settings(record.address, record.what, record.split, record.replica)
    kept = [word for word in words if not word.startswith(("method.steps=", "budget.until_converged="))]
    groups, (fit_id,) = fit_one.groups(where, [*kept, f"method.steps={steps}", "budget.until_converged=false"])
    job.run_groups(groups, where)
    remote.pull(store, fit_id)
    return store.done(fit_id)


def compared(store: Store, record: FitRecord, longer: FitRecord) -> seals.Content:
    """What the longer fit gained: of the objective a datum, and in MNLL."""
    traces = [arrays.trace(store.folder(r.fit_id)) for r in (record, longer)]
    before, after = (t.loc[t["step"] > (1 - LAST_PART) * t["step"].max(), "objective"].mean() for t in traces)
    mnll = [scoring.scores(store, r)["mnll"] for r in (record, longer)]
    return {
        "certificate_steps": longer.what.steps or 0,
        "certificate_objective": float(after - before) / record.rows,
        "certificate_mnll": mnll[1] - mnll[0],
    }
