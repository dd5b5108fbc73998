"""How fits are made: the module of each kind and way of training, imported when it is first needed.

Such a module has `run(group, table, work) -> list[Outcome]`, and of fits that predict `MODEL_FILE`,
`save(model, path)` and `answer(what, path, x, key) -> Predictive`."""

import importlib
from types import ModuleType

from gpbench.study.records import What

PREDICT = {
    "closed_form": "gpbench.study.fitting.closed_form",
    "single": "gpbench.study.fitting.lightning_module",
    "asynchronous": "gpbench.study.fitting.distributed.asynchronous",
    "synchronous": "gpbench.study.fitting.distributed.synchronous",
}
OF_KIND = {"sample": "gpbench.study.fitting.chains_only", "solve": "gpbench.study.fitting.systems"}


def entry(what: What) -> ModuleType:
    """The module that makes a fit."""
    return importlib.import_module(OF_KIND.get(what.kind) or PREDICT[what.trained_by])
