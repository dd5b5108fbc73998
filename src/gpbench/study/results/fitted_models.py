"""Finished fits of the kind `predict`, loaded for what needs more than their predictions."""

import functools
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import torch

from gpbench import config
from gpbench.data import splits
from gpbench.data import table as tables
from gpbench.data.table import Table
from gpbench.errors import UserError
from gpbench.methods.base import ClosedFormMethod, GradientMethod, Model, SamplerMethod, State
from gpbench.places import Places
from gpbench.study.fitting import closed_form, lightning_module, plain_model
from gpbench.study.fitting.fold import Fold, make_fold, make_method
from gpbench.study.planning.checks import PROBED_INPUTS
from gpbench.study.records import Cell, FitRecord, What
from gpbench.study.storage.store import Damaged, Store


@dataclass(frozen=True)
class Fitted:
    """A finished fit: its `what`, its method and stored state, its split of a table, and what classes are called.

    A closed form, which `answers` lets through for `kernel_weights` alone, has a model in place of a state."""

    what: What
    method: GradientMethod | SamplerMethod
    state: State
    fold: Fold
    table: Table
    classes: tuple[str, ...] = ()
    model: Model = field(default_factory=dict)

    def training_inputs(self, kind: str) -> np.ndarray:
        """Inputs `[n, D]` of the training rows in original units; UserError where a probe `kind` needs another D."""
        x, (columns, words) = self.table.inputs[self.fold.train], PROBED_INPUTS[kind]
        if x.shape[1] != columns:
            raise UserError(f"`probes: [{kind}]` needs data sets with {words}, not {x.shape[1]}; leave it out")
        return np.asarray(x)

    def input_names(self) -> dict[str, str]:
        """Names of the two inputs of a probe that draws over them, by column."""
        return dict(zip(("x0_name", "x1_name"), self.table.input_names, strict=True))


def finished(where: Places, cells: list[Cell]) -> Iterator[tuple[str, Fitted]]:
    """Every done fit of some cells with its identity, one data set after the other."""
    store = Store(where.store)
    load = functools.lru_cache(1)(tables.load)
    for cell in sorted(cells, key=lambda cell: cell.address.dataset):
        what, classes = cell.what, config.compose(where.conf, "dataset", cell.address.dataset).classes
        for fit in cell.fits:
            if not (record := _sound(store, fit.fit_id)):
                continue
            table = load(where.prepared_file(cell.address.dataset), str(what.data.md5))
            table = splits.numbered_rows(what.protocol.splits, table)
            method, folder = make_method(record.fitted), store.folder(fit.fit_id)
            state, model = State({}), {}
            if isinstance(method, ClosedFormMethod):
                model = plain_model.load(folder / closed_form.MODEL_FILE)
            else:
                path = folder / lightning_module.MODEL_FILE
                state = State(**torch.load(path, weights_only=True, map_location="cpu"))
            fold = make_fold(what, table, fit.split, fit.replica)
            yield fit.fit_id, Fitted(record.fitted, method, state, fold, table, tuple(classes), model)


def _sound(store: Store, fit_id: str) -> FitRecord | None:
    """The record of a fit that is done; a damaged one is named and moved aside."""
    try:
        record = store.verified(fit_id) if store.has(fit_id) else None
        return record if record and record.status == "done" else None
    except Damaged as error:
        print(f"gpbench: {error}", file=sys.stderr)
        return None
