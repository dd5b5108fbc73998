"""From a study to its cells: names, keys and values checked, settings composed, fits identified. No torch.

    cell    {method, settings, address, label, family, reported, r_hat, rows, what, how, skip,
             sampler, fits: [{split, replica, rows, test_rows, fit_id}]}

method: the study's name for it, `settings` what the study sets of it (of a variant); `address` is how people call the
cell; `what` is everything that is hashed (see `identity`), without split and replica; `how` is the trainer; `sampler`
says whether fits are Markov chains. Nothing here depends on how fits are trained but `ENTRY` and `SAMPLE_ENTRY`.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib.util
import os
import shlex
from typing import Any

from gpbench import config
from gpbench.config import schema
from gpbench.config.compose import MethodConfig
from gpbench.data import protocols
from gpbench.errors import UserError, unknown
from gpbench.evaluation.metrics import METRICS
from gpbench.places import Places
from gpbench.study.planning import identity
from gpbench.study.planning.variants import Variant, expand

# how a fit of the kind `predict` is trained -> its entry point, whose import closure is part of the identity
ENTRY = {
    "closed_form": "gpbench.study.fitting.closed_form",
    "single": "gpbench.study.fitting.lightning_module",
    "asynchronous": "gpbench.study.fitting.distributed.asynchronous",
    "synchronous": "gpbench.study.fitting.distributed.synchronous",
}
SAMPLE_ENTRY = "gpbench.study.fitting.chains_only"
MOST_WORKERS_A_CORE = 2
# probes of functions that are drawn over the inputs -> how many there may be
PROBED_INPUTS = {"layers": (1, "one input"), "surfaces": (2, "two inputs"), "probabilities": (2, "two inputs")}
# what an override may change of a study itself
STUDY_KEYS = tuple(f.name for f in dataclasses.fields(schema.Study) if f.name not in ("name", "title"))


def resolve(
    places: Places, study_name: str, overrides: str = ""
) -> tuple[schema.Study, list[dict[str, Any]], list[str]]:
    """The study, its cells, and remarks for the user; every name, key and value is checked."""
    words = config.split_overrides(overrides)
    own = tuple(f"{k.removeprefix('study.')}={v}" for k, v in words if k.removeprefix("study.") in STUDY_KEYS)
    study = config.compose(places.conf, "study", study_name, own)
    variants = _chosen(study, expand(study))
    pairs = [pair for pair in study.pairs if not study.only or set(pair) <= set(variants)]
    study = dataclasses.replace(study, methods=list(variants), pairs=pairs)
    if not study.methods or not study.datasets:
        raise UserError(f"study {study_name!r} is empty: it needs methods and datasets")
    _check_names(places, study)
    rest = [(k, v) for k, v in words if k.removeprefix("study.") not in STUDY_KEYS]
    by_target = _by_target(places, study, {name: variant.method for name, variant in variants.items()}, rest)
    remarks = by_target.pop("remarks", [])
    protocol = config.compose(places.conf, "protocol", study.protocol, tuple(by_target.get("protocol", ())))
    _check_protocol(places, protocol)
    budget = config.compose(places.conf, "budget", study.budget, tuple(by_target.get("budget", ())))
    trainer = config.compose(places.conf, "trainer", study.trainer, tuple(by_target.get("trainer", ())))
    datasets = [config.compose(places.conf, "dataset", name) for name in study.datasets]
    if study.kind != "predict" and study.probes:
        raise UserError(f"probes of study {study.name!r} ask fits of kind predict, not {study.kind}; drop them")
    for dataset in datasets:
        for probe, (columns, said) in PROBED_INPUTS.items():
            if probe in study.probes and dataset.columns != columns:
                has = "more" if dataset.columns > columns else "fewer"
                raise UserError(
                    f"probe {probe!r} of study {study.name!r} needs {said}, {dataset.name!r} has {has}; drop one"
                )
    shared = [f"{group}.{o}" for group in ("protocol", "budget") for o in by_target.get(group, [])]
    configured = functools.cache(lambda name, words: _method(places, name, budget, list(words)))
    cells = []
    for name, variant in variants.items():
        for dataset in datasets:
            preset = study.presets.get(dataset.name, {}).get(variant.method, variant.method)
            targets = dict.fromkeys((variant.method, preset, name))
            given = [word for target in targets for word in by_target.get(target, [])]
            _check_varied(study, name, variant, given)
            words = [*variant.words, *given]
            method = configured(preset, tuple(words))
            cell = _cell(study, method, dataset, protocol, budget, trainer, [*words, *shared])
            chosen = dataclasses.asdict(method.header) | dataclasses.asdict(method.hyper)
            named = {"method": name, "settings": {key: chosen[key] for key in variant.settings}}
            cells.append(cell | named | ({"label": variant.label} if variant.label else {}))
    return study, cells, remarks


def _chosen(study: schema.Study, variants: dict[str, Variant]) -> dict[str, Variant]:
    """The variants that `only` names, in the study's order; UserError for a name that is none of them."""
    for name in study.only:
        if name not in variants:
            raise unknown("method", name, variants, f"only of study {study.name!r}")
    return {name: variant for name, variant in variants.items() if not study.only or name in study.only}


def _check_varied(study: schema.Study, name: str, variant: Variant, given: list[str]) -> None:
    """Refuse an override of what makes the variants of a study differ: names and figures would lie."""
    for key in variant.varied:
        if any(word.startswith(f"{key}=") for word in given):
            raise UserError(
                f"override of {key!r}: it is what the variants of study {study.name!r} vary ({name}); "
                f"change `variants` in conf/study/{study.name}.yaml"
            )


def _check_names(places: Places, study: schema.Study) -> None:
    """Refuse what is named twice, and a number of splits for a data set that is not there."""
    printed = [path.stem for path in (places.root / "published").glob("*.csv")]
    for key in study.published or []:
        if printed and key not in printed:
            raise unknown("citation key", key, printed, f"published of study {study.name!r}")
    for a, b in study.pairs:
        if a == b:
            raise UserError(f"pairs of study {study.name!r} compare {a!r} with itself; name two methods")
    for name in {name for pair in study.pairs for name in pair}:
        if name not in study.methods:
            raise unknown("method", name, study.methods, f"pairs of study {study.name!r}")
    for name in study.datasets:
        if study.datasets.count(name) > 1:
            raise UserError(f"study {study.name!r} names dataset {name!r} twice; name it once")
    for key in ("splits_of", "presets"):
        for name in getattr(study, key):
            if name not in (available := config.options(places.conf, "dataset")):
                raise unknown("dataset", name, available, f"{key} of study {study.name!r}")
    for name in {name for by_method in study.presets.values() for name in by_method}:
        if name not in (available := config.options(places.conf, "method")):
            raise unknown("method", name, available, f"presets of study {study.name!r}")


def _check_protocol(places: Places, protocol: schema.Protocol) -> None:
    """Refuse metrics that do not exist, and a number of test rows for a data set that is not there."""
    where = f"protocol {protocol.name!r}"
    for name in protocol.metrics:
        if name not in METRICS:
            raise unknown("metric", name, METRICS, f"metrics of {where}")
    for name in protocol.splits.test_rows:
        if name not in (available := config.options(places.conf, "dataset")):
            raise unknown("dataset", name, available, f"test_rows of {where}")


def _by_target(
    places: Places, study: schema.Study, base: dict[str, str], words: list[tuple[str, str]]
) -> dict[str, list[str]]:
    """Overrides by what they are for: a method of the study (`*`: every), the method that variants are of (base: the
    study's method -> it), a preset, `protocol`, `budget`, `trainer`."""
    found: dict[str, list[str]] = {}
    presets = {preset for by_method in study.presets.values() for preset in by_method.values()}
    targets = [*dict.fromkeys([*study.methods, *base.values(), *sorted(presets)]), "protocol", "budget", "trainer"]
    available = config.options(places.conf, "method")
    starred = any(key.startswith("*.") for key, _ in words)
    keys = {m: _hyper_keys(places, m) for m in dict.fromkeys(base.values()) if starred and m in available}
    for key, value in words:
        target, dot, leaf = key.partition(".")
        if not dot:
            raise unknown("override", key, [*STUDY_KEYS, *(f"{t}." for t in targets), "*."], f"study {study.name!r}")
        if target == "*":
            having = [m for m in keys if leaf in keys[m]]
            if not having:
                raise unknown(
                    "key", leaf, set().union(*keys.values()), "the hyperparameters of any method of the study"
                )
            without = [m for m in keys if m not in having]
            if without:
                found.setdefault("remarks", []).append(f"{key}: {', '.join(without)} have no {leaf!r}")
            for method in having:
                found.setdefault(method, []).append(f"{leaf}={value}")
        elif target in targets:
            found.setdefault(target, []).append(f"{leaf}={value}")
        else:
            raise unknown("method or group", target, targets, f"override {key!r} of study {study.name!r}")
    return found


def _hyper_keys(places: Places, method: str) -> set[str]:
    return {f.name for f in dataclasses.fields(config.compose(places.conf, "method", method).hyper)} | {"steps"}


def _method(places: Places, name: str, budget: schema.Budget, overrides: list[str]) -> MethodConfig:
    """The method with the hyperparameters that are part of the budget, then the user's."""
    plain = config.compose(places.conf, "method", name)
    given = [f"{k}={v}" for k, v in (budget.hyper.get(name) or budget.hyper.get(plain.family, {})).items()]
    return config.compose(places.conf, "method", name, (*given, *overrides)) if given or overrides else plain


def _cell(
    study, method: MethodConfig, dataset: schema.Dataset, protocol, budget, trainer, overrides: list[str]
) -> dict[str, Any]:
    """One cell; impossible ones carry the reason in `skip`."""
    if dataset.md5 is None and not dataset.on_request:
        raise UserError(f"data set {dataset.name!r} {_unpinned(dataset)}")
    frozen = protocols.freeze(protocol, dataset)
    train_rows, test_rows = protocols.sizes(frozen["splits"], dataset.rows)
    entry = ENTRY["closed_form" if method.header.closed_form else method.header.scheme]
    if study.kind == "sample":
        entry = SAMPLE_ENTRY
    modules = (method.header.module, entry)
    what = {
        "kind": study.kind,
        "entry": entry,
        "method": {"module": method.header.module, **dataclasses.asdict(method.hyper)},
        "data": {"md5": dataset.md5, "task": dataset.task, "images": dataset.images, "classes": len(dataset.classes)},
        "protocol": frozen,
        "steps": _steps(method, budget, train_rows * dataset.columns),
        "dtype": study.dtype,
        "noise_block": study.noise_block,
        "code": identity.code(*modules),
        "versions": identity.versions(*modules),
    }
    if method.header.scheme != "single":
        what["distributed"] = {"scheme": method.header.scheme, "workers": method.header.workers}
    return {
        "address": {
            "method": method.header.name,
            "dataset": dataset.name,
            "protocol": protocol.name,
            "budget": budget.name,
            "overrides": shlex.join(overrides),
        },
        "label": method.header.label,
        "family": method.family,
        "reported": {"metrics": protocol.metrics, "spread": protocol.spread},
        "r_hat": budget.r_hat,
        "rows": train_rows,
        "test_rows": test_rows,
        "what": what,
        "how": dataclasses.asdict(trainer),
        "sampler": "sample" in method.header.kinds,
        "skip": _impossible(study.kind, method, dataset, train_rows, frozen["outputs"]),
        "fits": [
            _fit(what, split, replica, dataset.rows)
            for split in _wanted(study, protocol, dataset)
            for replica in range(study.replicas)
        ],
    }


def _fit(what: dict[str, Any], split: int, replica: int, n: int) -> dict[str, Any]:
    """One fit of a cell, of n rows in all."""
    rows, test_rows = protocols.sizes(what["protocol"]["splits"], n, split)
    place = {"split": split, "replica": replica}
    return place | {"rows": rows, "test_rows": test_rows, "fit_id": identity.digest(what | place)}


def _wanted(study: schema.Study, protocol: schema.Protocol, dataset: schema.Dataset) -> range:
    """The splits that a study wants of a data set; the one official split where there is one, however many it asks."""
    first, available = study.first_split, protocols.num_splits(protocol, dataset)
    wanted = range(first, first + study.splits_of.get(dataset.name, study.splits))
    if first == 0 and protocols.official(protocol, dataset):
        return range(1)
    if wanted[-1] >= available:
        raise UserError(
            f"study {study.name!r} wants splits {wanted[0]} to {wanted[-1]} of {dataset.name!r}; "
            f"protocol {protocol.name!r} has 0 to {available - 1}"
        )
    return wanted


def _steps(method: MethodConfig, budget: schema.Budget, values: int) -> int | None:
    if method.header.closed_form:
        return None
    if method.header.steps:
        return method.header.steps
    sizes = next((budget.steps[k] for k in (method.header.name, method.family, "default") if k in budget.steps), None)
    if sizes is None:
        raise UserError(f"budget {budget.name!r} has no steps for {method.family!r} and no default")
    return sizes.steps(values)


def _impossible(kind: schema.Kind, method: MethodConfig, dataset: schema.Dataset, rows: int, outputs: list[int]) -> str:
    """Why a method cannot be fitted to these targets of a data set; empty where it can."""
    if dataset.md5 is None:
        return _unpinned(dataset)
    if kind not in method.header.kinds:
        return "no Markov chain" if kind == "sample" else f"kind {' or '.join(method.header.kinds)} only"
    if dataset.task not in method.header.tasks:
        return f"{' and '.join(method.header.tasks)} only"
    if reason := _undistributed(method, rows):
        return reason
    if hasattr(method.hyper, "impossible") and (reason := method.hyper.impossible(dataset.task)):
        return reason
    known = [[*dataset.source.targets, *dataset.truth][i] for i in outputs]
    if kind == "predict" and (told := [name for name in known if name in dataset.truth]):
        return f"the protocol hands over the truth ({told[0]}, ...), which is for kind=sample"
    needed = method.hyper.needs() if hasattr(method.hyper, "needs") else []
    if missing := [name for name in needed if name not in known]:
        return f"needs the true {', '.join(missing)}, which only simulated data sets have"
    limit = method.header.max_rows
    if limit is not None and rows > limit:
        return f"{rows} training rows, at most {limit}"
    limit = method.header.max_inputs
    if limit is not None and dataset.columns > limit:
        return f"{dataset.columns} inputs, at most {limit}"
    limit = method.header.max_outputs
    if limit is not None and len(outputs) > limit:
        return f"{len(outputs)} targets, at most {limit}"
    return ""


def _unpinned(dataset: schema.Dataset) -> str:
    return (
        f"has no md5 yet; run `gpbench data pin {dataset.name}`, then `gpbench data prepare {dataset.name}`, which "
        "prints the one to write into its file"
    )


def _undistributed(method: MethodConfig, rows: int) -> str:
    """Why a method cannot be trained by its scheme; empty where it can."""
    scheme, workers = method.header.scheme, method.header.workers
    if scheme == "single":
        return f"{workers} workers need a scheme" if workers > 1 else ""
    if method.header.closed_form:
        return f"scheme {scheme} needs a method with updates"
    if scheme not in method.header.schemes:
        return f"trained by scheme {' or '.join(method.header.schemes)} only"
    if workers > MOST_WORKERS_A_CORE * os.cpu_count():
        return f"{workers} workers, at most {MOST_WORKERS_A_CORE} a core"
    if scheme == "asynchronous" and importlib.util.find_spec("ray") is None:
        return "scheme asynchronous needs ray: pip install gpbench[distributed]"
    if scheme == "asynchronous" and workers > 1 and getattr(method.hyper, "natural_gradients", False):
        return "natural gradients are those of the present parameters, and asynchronous workers push old ones"
    step = min(getattr(method.hyper, "batch_size", rows), rows)
    if scheme == "synchronous" and step % workers:
        return f"{step} rows a step are not shared equally by {workers} workers"
    return ""
