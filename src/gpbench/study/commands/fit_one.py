"""One cell from the command line, and the identity that a stored fit would have today."""

from __future__ import annotations

import shlex
from typing import Any

from gpbench import config
from gpbench.errors import UserError, unknown
from gpbench.places import Places
from gpbench.study.planning import plan as planning
from gpbench.study.planning import resolve as resolving

CHOICES = ("method", "dataset", "protocol", "budget", "trainer")
NUMBERS = ("split", "replica", "kind", "dtype", "noise_block")


def _cell(where: Places, settings: list[str]) -> tuple[Any, dict[str, Any]]:
    """(study, cell) of settings such as method=dsvi dataset=boston split=0 method.layers=3."""
    words = dict(config.split_override(s) for s in settings)
    groups = ("method", "budget", "protocol", "trainer")
    for key in words:
        if key not in (*CHOICES, *NUMBERS) and key.split(".")[0] not in groups:
            raise unknown("setting", key, (*CHOICES, *NUMBERS, *(f"{g}.KEY" for g in groups)), "gpbench fit")
    for needed in ("method", "dataset"):
        if needed not in words:
            raise UserError(
                f"gpbench fit needs {needed}=NAME; choose one of: {', '.join(config.options(where.conf, needed))}"
            )
    split = _number(words, "split")
    rename = {"method": "methods", "dataset": "datasets"}
    overrides = [
        f"methods=[{words['method']}]",
        f"datasets=[{words['dataset']}]",
        "splits=1",
        "splits_of={}",
        "presets={}",
    ]
    overrides += [f"first_split={split}", f"replicas={_number(words, 'replica') + 1}"]
    for key, value in words.items():
        if key in rename or key in ("split", "replica"):
            continue
        target, dot, leaf = key.partition(".")
        overrides.append(f"{words['method'] if dot and target == 'method' else target}{dot}{leaf}={value}")
    study, cells, _ = resolving.resolve(where, "default", shlex.join(overrides))
    cell = cells[0] | {"fits": cells[0]["fits"][-1:]}
    return study, cell


def _number(words: dict[str, str], key: str) -> int:
    value = words.get(key, "0")
    if not value.isdigit():
        raise UserError(f"{key}={value} is not a number from 0 upwards")
    return int(value)


def batch(where: Places, settings: list[str]) -> tuple[dict[str, Any], list[str]]:
    """The batch that fits one cell (without groups where it is in the store), and its fits; data are prepared."""
    from gpbench.data.prepare import ensure

    study, cell = _cell(where, settings)
    if cell["skip"]:
        raise UserError(f"{cell['address']['method']} on {cell['address']['dataset']}: {cell['skip']}")
    dataset = config.compose(where.conf, "dataset", cell["address"]["dataset"])
    ensure(dataset, where)
    made = planning.build(where, "single", "", study, [cell], [])
    groups = [g for b in made.batches for g in b["groups"]]
    return {"groups": groups}, [f["fit_id"] for f in cell["fits"]]


def what_now(where: Places, record: dict[str, Any]) -> dict[str, Any]:
    """`what` of a stored fit's place, composed from today's configuration and code."""
    address = record["address"]
    settings = [f"{k}={address[k]}" for k in ("method", "dataset", "protocol", "budget")]
    settings += [f"{k}={record['what'][k]}" for k in ("kind", "dtype", "noise_block")]
    settings += [f"split={record['split']}", f"replica={record['replica']}"]
    for key, value in config.split_overrides(address["overrides"]):
        settings.append(f"{key}={value}" if key.split(".")[0] in ("protocol", "budget") else f"method.{key}={value}")
    _, cell = _cell(where, settings)
    return cell["what"] | {"split": record["split"], "replica": record["replica"]}
