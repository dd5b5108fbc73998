"""Names in a study and its protocol that refer to something else: refused before anything is composed. No torch."""

import itertools

from gpbench import config
from gpbench.config import schema
from gpbench.errors import UserError
from gpbench.evaluation.metrics import METRICS
from gpbench.places import Places
from gpbench.study.storage import challengers

MOST_FITS = 100_000
NO_METHODS = ("default", "lbfgs")  # what a budget gives updates to besides methods and families
PROBED_INPUTS = {"layers": (1, "one input"), "surfaces": (2, "two inputs"), "probabilities": (2, "two inputs")}
"""Probe of functions that are drawn over the inputs -> number of inputs that it needs, and in words."""


def check_study(places: Places, study: schema.Study) -> None:
    """Refuse an empty study, names that occur twice, and names that nothing has."""
    where = f"study {study.name!r}"
    if not study.methods or not study.datasets:
        raise UserError(f"{where} is empty: it needs methods and datasets")
    printed = [path.stem for path in (places.root / "published").glob("*.csv")]
    if printed:
        config.require_known("citation key", study.published or [], printed, f"published of {where}")
    for name in study.per_split:
        if (theirs := config.printed_splits(places.per_split, name).protocol) != study.protocol:
            raise UserError(f"per_split of {where}: {name} has splits of protocol {theirs!r}, not {study.protocol!r}")
        if name in study.methods:
            raise UserError(f"{where} names the released scores {name!r} and a method so; rename the method")
    challengers.check(places, study)
    for a, b in study.pairs:
        if a == b:
            raise UserError(f"pairs of {where} compare {a!r} with itself; name two methods")
    known = [*study.methods, *study.per_split, *study.challengers]
    config.require_known("method", itertools.chain(*study.pairs), known, f"pairs of {where}")
    for key in ("datasets", "per_split", "challengers", "probes"):
        names: list[str] = getattr(study, key)
        if twice := [name for name in names if names.count(name) > 1]:
            raise UserError(f"{key} of {where} has {twice[0]!r} twice; name it once")
    for key in ("splits_of", "presets"):
        for name in getattr(study, key):
            config.require_option(places.conf, "dataset", name, f"{key} of {where}")
    for name in {name for by_method in study.presets.values() for name in by_method}:
        config.require_option(places.conf, "method", name, f"presets of {where}")


def check_protocol(places: Places, protocol: schema.Protocol) -> None:
    """Refuse metrics that do not exist, and numbers of test rows for data sets that do not exist."""
    where = f"protocol {protocol.name!r}"
    config.require_known("metric", protocol.metrics, METRICS, f"metrics of {where}")
    for name in protocol.splits.test_rows:
        config.require_option(places.conf, "dataset", name, f"test_rows of {where}")


def check_budget(places: Places, budget: schema.Budget) -> None:
    """Refuse updates and hyperparameters of methods that do not exist."""
    known = {*config.options(places.conf, "method"), *config.families(places.conf), *NO_METHODS}
    for key in ("steps", "hyper"):
        config.require_known("method or family", getattr(budget, key), known, f"{key} of budget {budget.name!r}")


def check_size(study: schema.Study, cells: int) -> None:
    """Refuse a study that could not be planned in a minute or two."""
    if (fits := cells * study.splits * study.replicas) > MOST_FITS:
        raise UserError(
            f"study {study.name!r} has {fits:,} fits ({cells} cells, {study.splits} splits, {study.replicas} "
            f"replicas), more than {MOST_FITS:,}; take fewer, or cut it into several studies"
        )


def check_probes(study: schema.Study, datasets: list[schema.Dataset]) -> None:
    """Refuse probes that ask what fits of the study's kind, or of its data sets, cannot answer."""
    if study.kind != "predict" and study.probes:
        raise UserError(f"probes of study {study.name!r} ask fits of kind predict, not {study.kind}; drop them")
    for dataset in datasets:
        for probe, (columns, words) in PROBED_INPUTS.items():
            if probe in study.probes and dataset.columns != columns:
                has = "more" if dataset.columns > columns else "fewer"
                raise UserError(
                    f"probe {probe!r} of study {study.name!r} needs {words}, {dataset.name!r} has {has}; drop one"
                )
