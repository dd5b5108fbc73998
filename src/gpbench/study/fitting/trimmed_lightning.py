"""Lightning without two packages that it imports, no fit uses, and that take longer than all the rest of it.

Of torchmetrics (which imports matplotlib and SciPy's signal processing) and of torch's compiler, Lightning takes three
classes, to see whether an object is one of them, and a decorator that keeps the compiler off a function. Empty classes
and a decorator that does nothing stand in for them while Lightning is imported; afterwards both packages can be
imported as usual. Two things do not work so: `LightningModule.log` (fits keep their own trace), and a Trainer that is
given a compiled module (a function of a module may be compiled).
"""

import importlib
import sys
from types import ModuleType
from typing import Any

import torch  # noqa: F401 - before its compiler is stood in for

STAND_INS: dict[str, dict[str, Any]] = {
    "torchmetrics": {"Metric": type("Metric", (), {}), "MetricCollection": type("MetricCollection", (), {})},
    "torch._dynamo": {"OptimizedModule": type("OptimizedModule", (), {}), "disable": lambda f, *_, **__: f},
}
"""Packages that Lightning imports when it is imported -> what stands in for what it takes from them."""


def import_lightning() -> None:
    """Import `lightning.pytorch` without `STAND_INS`, or with all of them if this version of it asks for more."""
    absent = [name for name in STAND_INS if name not in sys.modules]
    for name in absent:
        sys.modules[name] = ModuleType(name)
        vars(sys.modules[name]).update(STAND_INS[name])
    try:
        importlib.import_module("lightning.pytorch")
    except (ImportError, AttributeError):
        for name in [name for name in sys.modules if name.partition(".")[0] == "lightning"]:
            del sys.modules[name]
    finally:
        for name in absent:
            del sys.modules[name]
    importlib.import_module("lightning.pytorch")


import_lightning()
from lightning.pytorch import LightningModule, Trainer  # noqa: E402
from lightning.pytorch.plugins.environments import LightningEnvironment  # noqa: E402
from lightning.pytorch.trainer.connectors import callback_connector  # noqa: E402

# callbacks of whatever else is installed are no part of what a fit is, and looking for them takes 6 ms a fit
vars(callback_connector)["_load_external_callbacks"] = lambda group: []

__all__ = ["LightningEnvironment", "LightningModule", "Trainer"]
