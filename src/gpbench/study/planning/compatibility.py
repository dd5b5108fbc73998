"""Why a method cannot be fitted to a data set, known before anything runs. No torch."""

import importlib.util
import os
from typing import Any

from gpbench.config import MethodConfig
from gpbench.config.schema import Dataset, Kind
from gpbench.errors import UserError

MAX_WORKERS_PER_CORE = 2


def impossible(kind: Kind, method: MethodConfig, dataset: Dataset, rows: int, outputs: tuple[int, ...]) -> str:
    """Why a method cannot be fitted to these targets of a data set; empty where it can."""
    header = method.header
    if dataset.md5 is None:
        return unpinned(dataset)
    if kind not in header.kinds:
        return "no Markov chain" if kind == "sample" else f"kind {' or '.join(header.kinds)} only"
    if dataset.task not in header.tasks:
        return f"{' and '.join(header.tasks)} only"
    if reason := _not_distributed(method, dataset.task, rows) or _said(method, str, "impossible", dataset.task):
        return reason
    target_names = [[*dataset.source.targets, *dataset.truth][i] for i in outputs]
    if kind == "predict" and (truth := [name for name in target_names if name in dataset.truth]):
        return f"the protocol predicts the simulated truth ({truth[0]}, ...), which only kind=sample may"
    if missing := [name for name in _said(method, list, "needs") if name not in target_names]:
        return f"needs the true {', '.join(missing)}, which only simulated data sets have"
    if rows < (least := _said(method, int, "least_rows")):
        return f"{rows} training rows, at least {least}"
    sizes = (
        ("training rows", rows, header.max_rows, header.beyond and f"; {header.beyond} takes more"),
        ("inputs", dataset.columns, header.max_inputs, ""),
        ("targets", len(outputs), header.max_outputs, ""),
    )
    exceeded = (
        f"{size} {noun}, at most {limit}{hint}"
        for noun, size, limit, hint in sizes
        if limit is not None and size > limit
    )
    return next(exceeded, "")


def _said(method: MethodConfig, kind: type, name: str, *words: str) -> Any:
    """What the settings of a method say of themselves; UserError where they raise an error, or say something else."""
    where = f"{method.header.module}: {name}({', '.join(map(repr, words))})"
    try:
        answer = getattr(method.hyper, name)(*words)
    except Exception as error:
        raise UserError(f"{where} raised {type(error).__name__}: {error}") from error
    if not isinstance(answer, kind):
        raise UserError(f"{where} returned {answer!r}; it must return a value of type {kind.__name__}")
    return answer


def unpinned(dataset: Dataset) -> str:
    """What to do about a data set without a checksum."""
    return (
        f"has no md5 yet; run `gpbench data pin {dataset.name}`, then `gpbench data prepare {dataset.name}`, which "
        "prints the one to write into its file"
    )


def _not_distributed(method: MethodConfig, task: str, rows: int) -> str:
    """Why a method cannot be trained by its scheme; empty where it can."""
    header, scheme, workers = method.header, method.header.scheme, method.header.workers
    if scheme == "single":
        return f"{workers} workers need a scheme" if workers > 1 else ""
    if header.closed_form:
        return f"scheme {scheme} needs a method with updates"
    if scheme not in header.schemes:
        return f"trained by scheme {' or '.join(header.schemes)} only"
    if method.hyper.takes_lbfgs(task, rows):
        return f"scheme {scheme} needs optimiser=adam: L-BFGS runs in one process"
    if workers > MAX_WORKERS_PER_CORE * (os.cpu_count() or 1):
        return f"{workers} workers, at most {MAX_WORKERS_PER_CORE} a core"
    if scheme == "asynchronous":
        if importlib.util.find_spec("ray") is None:
            return "scheme asynchronous needs ray: pip install gpbench[distributed]"
        if not method.hyper.allows_stale_gradients():
            return "its steps need gradients of the present parameters, and asynchronous workers push old ones"
        return ""
    if (step := method.hyper.rows_per_step(rows)) % workers:
        at_once = ", all at once by batch_size or budget.full_batch_rows" if step == rows else ""
        return f"{step} rows a step cannot be shared equally by {workers} workers{at_once}"
    return ""
