"""Why a fit, or each fit of a cell, is as it is: what moved since it was made, why it is skipped or failed."""

import shlex

from gpbench import config
from gpbench.errors import UserError, unknown
from gpbench.places import Places
from gpbench.study.commands import fit_one
from gpbench.study.planning import plan as planning
from gpbench.study.records import Cell, Fit
from gpbench.study.storage.store import Store

KEYS = ("method", "dataset", "protocol", "budget", "study")


def why(where: Places, words: list[str]) -> list[str]:
    """Lines about a fit (the beginning of its identity) or a cell (`dsvi/boston`, or method=dsvi dataset=boston, with
    study, protocol and budget where they are not those of the study `default`)."""
    method, slash, dataset = words[0].partition("/")
    if "=" not in words[0] and not slash and len(words) == 1:
        return _fit(where, words[0])
    if "=" not in words[0] and slash:
        words = [f"method={method}", f"dataset={dataset}", *words[1:]]
    given = config.distinct([config.split_override(word) for word in words])
    config.require_known("key", given, KEYS, "gpbench why")
    for key in ("method", "dataset"):
        if key not in given:
            raise UserError(f"gpbench why needs {key}=NAME, as in: gpbench why method=dsvi dataset=boston")
    return _cell(where, given)


def _fit(where: Places, prefix: str) -> list[str]:
    """What of a finished fit's identity is another today."""
    if set(prefix) - set("0123456789abcdef"):
        raise UserError(f"{prefix!r} is neither a fit's identity nor a cell such as dsvi/boston; see `gpbench plan`")
    store = Store(where.store)
    record = store.record(store.find(prefix))
    lines = planning.moved(record.what, fit_one.what_now(where, record))
    lines = lines or [f"{record.fit_id}: nothing moved; it would not be fitted again"]
    if record.status == "done":
        return lines
    return [f"{record.status}: {_ended(store, record.fit_id, record.reason)}", *lines]


def _ended(store: Store, fit_id: str, reason: str) -> str:
    """Why a fit is not done, where its log is, and how it is fitted again."""
    return f"{reason}; log: {store.folder(fit_id)}/log.txt; `gpbench retry {fit_id}` clears it"


def _cell(where: Places, given: dict[str, str]) -> list[str]:
    """A line about each fit of a cell."""
    study, method, dataset = given.get("study"), given["method"], given["dataset"]
    words = [f"{key}={given[key]}" for key in ("protocol", "budget") if key in given]
    for group in ("dataset", *(() if study else ("method",))):
        config.require_option(where.conf, group, given[group], "gpbench why")
    if study is None:
        words += [f"methods=[{method}]", f"datasets=[{dataset}]"]
    plan = planning.make(where, *planning.study_words(where, study or "default", shlex.join(words)))
    cells = [cell for cell in plan.cells if (cell.method, cell.address.dataset) == (method, dataset)]
    if not cells:
        key = "method" if method not in plan.study.methods else "dataset"
        raise unknown(key, given[key], getattr(plan.study, f"{key}s"), f"study {study!r}")
    (cell, *_), store = cells, Store(where.store)
    head = f"{method} on {dataset}, protocol {cell.address.protocol}, budget {cell.address.budget}"
    return [head, *(f"  {_explain(store, plan, cell, fit)}" for fit in cell.fits), *_others(store, plan, cell)]


def _others(store: Store, plan: planning.Plan, cell: Cell) -> list[str]:
    """How other fits of a cell ended: under other protocols, budgets or settings, or names of the same data."""
    here, lines = cell.address, []
    for r in store.records()[0]:
        same_data = r.address.dataset == here.dataset or r.what.data == cell.what.data
        if r.address.method == here.method and same_data and r.fit_id not in plan.states:
            name = f"as {r.address.dataset}, " * (r.address.dataset != here.dataset)
            split = "split=all" if r.what.is_final else f"split {r.split}"
            ended = "done" if r.status == "done" else f"{r.status}: {_ended(store, r.fit_id, r.reason)}"
            place = f"{name}protocol {r.address.protocol}, budget {r.address.budget}, {split}"
            lines.append(f"  {place}  {r.fit_id}  {ended}")
    return ["other fits of it in the store:", *lines] if lines else []


def _explain(store: Store, plan: planning.Plan, cell: Cell, fit: Fit) -> str:
    """State of a fit and the reason of it, in a line."""
    state, reason, _ = plan.states.get(fit.fit_id, planning.State("skipped", cell.skip))
    if state == "done":
        reason = f"nothing moved; it would not be fitted again{f' ({reason})' if reason else ''}"
    elif state == "pending":
        reason = next((line for line in plan.remarks if fit.fit_id in line), reason)  # it cannot be read, say
        reason = "it was never fitted" if reason == "new" else f"to be fitted: {reason}"
    elif state != "skipped":
        reason = _ended(store, fit.fit_id, reason)
    place = f"split {fit.split}" + (f", chain {fit.replica}" if cell.fits[-1].replica else "")
    return f"{place}  {fit.fit_id}  {state:<9} {reason}"
