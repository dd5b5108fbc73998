"""One cell from the command line, and the identity that a stored fit would have today."""

import dataclasses
import re
import shlex

from gpbench import config
from gpbench.errors import UserError, unknown
from gpbench.places import Places
from gpbench.study.planning import batches
from gpbench.study.planning.resolve import require_entry, resolve
from gpbench.study.records import Address, Cell, FitRecord, Group, What
from gpbench.study.storage import remote
from gpbench.study.storage.store import Store

CHOICES = ("method", "dataset", "protocol", "budget", "trainer")
VALUES = ("split", "replica", "kind", "dtype", "noise_block", "tune")
GROUPS = ("method", "budget", "protocol", "trainer")
ALL = "all"
ALL_ROWS = {"scheme": "blocks", "count": 1, "official": "false", "stratified": "false", "counts": "rows"}
"""The rules of splits that make every row train, for a final model: `split=all`."""


def cell_of(where: Places, words: list[str]) -> Cell:
    """The cell, with one fit, of words such as method=dsvi dataset=boston split=0 method.layers=3."""
    values = config.distinct([config.split_override(word) for word in words])
    if values.get("split") == ALL:
        values |= {"split": "0"} | {f"protocol.splits.{key}": str(value) for key, value in ALL_ROWS.items()}
    for key in values:
        if key not in (*CHOICES, *VALUES) and key.split(".")[0] not in (*GROUPS, values.get("method")):
            raise unknown("setting", key, (*CHOICES, *VALUES, *(f"{g}.KEY" for g in GROUPS)), "gpbench fit")
    for group in ("method", "dataset"):
        available = config.options(where.conf, group)
        if group not in values:
            raise UserError(f"gpbench fit needs {group}=NAME; choose one of: {', '.join(available)}")
        config.require_option(where.conf, group, values[group])
    method, dataset = values["method"], values["dataset"]
    overrides = [f"methods=[{method}]", f"datasets=[{dataset}]", "splits=1"]
    # Hydra merges mappings: what the study says of this data set is replaced by name
    overrides += [f"splits_of={{{dataset}:1}}", f"presets={{{dataset}:{{{method}:{method}}}}}"]
    overrides += [f"first_split={_number(values, 'split')}", f"replicas={_number(values, 'replica') + 1}"]
    for key, value in values.items():
        if key not in ("method", "dataset", "split", "replica"):
            target, dot, leaf = key.partition(".")
            overrides.append(f"{method if dot and target == 'method' else target}{dot}{leaf}={value}")
    try:
        resolved = resolve(where, "default", shlex.join(overrides))
    except UserError as error:  # a given value may be wrong, and not the study's file, which was not named
        keys = "|".join({*CHOICES, *VALUES} & values.keys())
        message = re.sub(rf"^study 'default' \(.*?yaml\)(?=.*\b({keys})\b)", "gpbench fit", str(error))
        raise UserError(message) from error
    if resolved.remarks:
        raise UserError(f"{resolved.remarks[0]}: `tunable` of its file names no ranges; leave tune out")
    (cell,) = resolved.cells
    return dataclasses.replace(cell, fits=cell.fits[-1:])


def _number(words: dict[str, str], key: str) -> int:
    value = words.get(key, "0")
    if not (value.isascii() and value.isdigit()):
        raise UserError(f"{key} must be a non-negative integer{' or all' * (key == 'split')}, got {value}")
    return int(value)


def groups(where: Places, words: list[str]) -> tuple[tuple[Group, ...], list[str]]:
    """The groups that fit one cell (none where it is in the store), and its fits; data are prepared. What a fit will
    cost, which the committed records of all runs would have to be read for, is not asked."""
    from gpbench.data.prepare import ensure

    cell = cell_of(where, words)
    if cell.skip:
        raise UserError(f"{cell.address.method} on {cell.address.dataset}: {cell.skip}")
    ensure(config.compose(where.conf, "dataset", cell.address.dataset), where)
    store, fits = Store(where.store), [fit.fit_id for fit in cell.fits]
    ended = {record.fit_id for record in store.records()[0]}
    return tuple(batches.groups(store, [cell], {*fits} - ended - remote.fits())), fits


def settings(address: Address, what: What, split: int, replica: int) -> list[str]:
    """The words after `gpbench fit` that ask for one fit of a cell."""
    words = [f"{k}={getattr(address, k)}" for k in ("method", "dataset", "protocol", "budget")]
    words += [f"{k}={getattr(what, k)}" for k in ("kind", "dtype", "noise_block")]
    words += [f"split={split}", f"replica={replica}"]
    words += [f"tune={len(what.tune.candidates)}"] if what.tune else []
    for key, value in dict(config.split_overrides(address.overrides)).items():  # the last of a key counts
        words.append(f"{key}={value}" if key.split(".")[0] in ("protocol", "budget") else f"method.{key}={value}")
    return words


def what_now(where: Places, record: FitRecord) -> What:
    """`what` of a stored fit's place, composed from today's configuration and code."""
    require_entry(where, record.address.dataset, f"fit {record.fit_id}")
    return cell_of(where, settings(record.address, record.what, record.split, record.replica)).what
