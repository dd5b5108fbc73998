"""From a study to its cells: names, keys and values checked, settings composed, fits identified. No torch."""

import dataclasses
import functools
import shlex
from collections import Counter
from collections.abc import Callable

from gpbench import config
from gpbench.config import MethodConfig, schema
from gpbench.data import protocols
from gpbench.errors import UserError, unknown
from gpbench.places import Places
from gpbench.study.planning import checks, identity, search
from gpbench.study.planning.compatibility import impossible, unpinned
from gpbench.study.planning.variants import GROUPS, Variant, expand
from gpbench.study.records import Address, Cell, Cost, Fit, MethodSettings, PreparedData, Reported, What
from gpbench.study.storage import challengers

# what an override may change of a study itself
STUDY_KEYS = tuple(f.name for f in dataclasses.fields(schema.Study) if f.name not in ("name", "title"))
Overrides = dict[str, list[str]]
"""Target (a method, `protocol`, `budget`, `trainer`) -> its overrides `key=value`."""
Configured = Callable[[str, tuple[str, ...]], MethodConfig]
"""(method, overrides) -> the method as configured."""


@dataclasses.dataclass(frozen=True)
class Resolved:
    """A study, its cells, and remarks for the user."""

    study: schema.Study
    cells: tuple[Cell, ...]
    remarks: list[str]


@dataclasses.dataclass(frozen=True)
class Setup:
    """What all cells of a study share."""

    study: schema.Study
    protocol: schema.Protocol
    budget: schema.Budget
    trainer: schema.Trainer


def require_entry(where: Places, dataset: str, of: str) -> None:
    """UserError where the data set of a fit or a run has no entry any more."""
    if dataset not in config.options(where.conf, "dataset"):
        what = f"{of} is of data set {dataset!r}, whose entry conf/dataset/{dataset}.yaml is gone"
        raise UserError(f"{what}; put it back, or add the data again as {dataset}")


def resolve(places: Places, study_name: str, overrides: str = "", site: str = "") -> Resolved:
    """The study and its cells; the overrides replace those of the site, and apply in the order of their keys, whose
    order a run's name does not know. Raises UserError for every name, key or value that is not valid."""
    of_site, given = (config.distinct(sorted(map(_plain, config.split_overrides(text)))) for text in (site, overrides))
    words = (of_site | given).items()
    study_words = tuple(f"{k}={v}" for k, v in words if k in STUDY_KEYS)
    study = config.compose(places.conf, "study", study_name, study_words)
    variants = expand(study)
    config.require_known("method", study.only, variants, f"only of study {study.name!r}")
    variants = {name: variant for name, variant in variants.items() if not study.only or name in study.only}
    pairs = [pair for pair in study.pairs if not study.only or set(pair) <= set(variants)]
    study = dataclasses.replace(study, methods=list(variants), pairs=pairs)
    checks.check_study(places, study)
    base = {name: variant.method for name, variant in variants.items()}
    by_target, remarks = _by_target(places, study, base, [(k, v) for k, v in words if k not in STUDY_KEYS])
    protocol, budget, trainer = (
        config.compose(places.conf, group, getattr(study, group), tuple(by_target.get(group, ()))) for group in GROUPS
    )
    checks.check_protocol(places, protocol)
    checks.check_budget(places, budget)
    datasets = [config.compose(places.conf, "dataset", name) for name in study.datasets]
    checks.check_probes(study, datasets)
    setup = Setup(study, protocol, budget, trainer)
    configured = functools.cache(lambda name, words: configured_method(places, name, budget, list(words)))
    for name, variant in variants.items():
        where = f"datasets of variant {name!r} of study {study.name!r}"
        for dataset in variant.datasets:
            config.require_option(places.conf, "dataset", dataset, where)
    checks.check_size(study, len(variants) * len(datasets))
    cells = tuple(
        _cell_of_variant(setup, name, variant, dataset, by_target, configured)
        for name, variant in variants.items()
        for dataset in datasets
    )
    challengers.check_rows(places, study.challengers, cells)
    tuned = (configured(variant.method, tuple(variant.words)) for variant in variants.values()) if study.tune else ()
    return Resolved(study, _told_apart(cells), remarks + search.remarks(study, tuned))


def _told_apart(cells: tuple[Cell, ...]) -> tuple[Cell, ...]:
    """The cells, in which a label that methods of one data set share has the method's name beside it."""
    times = Counter((cell.address.dataset, cell.label) for cell in cells if not cell.skip)
    shared = {label for (_, label), number in times.items() if number > 1}
    return tuple(
        dataclasses.replace(cell, label=f"{cell.label} ({cell.method})") if cell.label in shared else cell
        for cell in cells
    )


def prepared(dataset: schema.Dataset) -> PreparedData:
    """What a fit says of its data: the same table for another task is other data."""
    return PreparedData(dataset.md5, dataset.task, dataset.images, len(dataset.classes))


def _plain(word: tuple[str, str]) -> tuple[str, str]:
    """An override, of a study without `study.` in its key."""
    key = word[0].removeprefix("study.")
    return (key if key in STUDY_KEYS else word[0]), word[1]


def _cell_of_variant(
    setup: Setup, name: str, variant: Variant, dataset: schema.Dataset, by_target: Overrides, configured: Configured
) -> Cell:
    """The cell of a study's method on a data set, with the overrides that apply to it."""
    preset = setup.study.presets.get(dataset.name, {}).get(variant.method, variant.method)
    targets = dict.fromkeys((variant.method, preset, name))
    given = [word for target in targets for word in by_target.get(target, [])]
    _check_varied(setup.study, name, variant, given)
    searches = configured(preset, ()).header.tunes_itself  # with as many trials as the study gives the others
    own = [f"{searches}={setup.study.tune}"] if setup.study.tune and searches else []
    words = [*own, *variant.words, *given]
    method = configured(preset, tuple(words))
    shared = [f"{group}.{word}" for group in ("protocol", "budget") for word in by_target.get(group, [])]
    if method.header.closed_form and any(word.startswith("steps=") for word in words):
        raise UserError(f"{name}.steps is of no use: {preset!r} has no updates; leave it out")
    values = dataclasses.asdict(method.header) | dataclasses.asdict(method.hyper)
    cell = make_cell(setup, method, dataset, [*words, *shared])
    settings = {key: values[key] for key in variant.settings}
    elsewhere = bool(variant.datasets) and dataset.name not in variant.datasets
    skip = f"the study has it for {' and '.join(variant.datasets)} only" if elsewhere else cell.skip
    return dataclasses.replace(cell, method=name, settings=settings, label=variant.label or cell.label, skip=skip)


def _check_varied(study: schema.Study, name: str, variant: Variant, given: list[str]) -> None:
    """Refuse an override of a key that the variants of a study vary: names and figures would be wrong."""
    for key in variant.varied:
        if any(word.startswith(f"{key}=") for word in given):
            raise UserError(
                f"{key!r} cannot be overridden: the variants of study {study.name!r} differ in it ({name}); "
                f"change `variants` in conf/study/{study.name}.yaml"
            )


def _by_target(
    places: Places, study: schema.Study, base: dict[str, str], words: list[tuple[str, str]]
) -> tuple[Overrides, list[str]]:
    """Overrides by their targets, and remarks. Targets: a method of the study (`*`: every one), the method that
    variants are of (base: the study's method -> it), a preset, `protocol`, `budget`, `trainer`."""
    by_target: Overrides = {}
    remarks = []
    presets = {preset for by_method in study.presets.values() for preset in by_method.values()}
    targets = [*dict.fromkeys([*study.methods, *base.values(), *sorted(presets)]), *GROUPS]
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
                raise unknown("key", leaf, set().union(*keys.values()), "the hyperparameters of the study's methods")
            if without := [m for m in keys if m not in having]:
                remarks.append(f"{key}: {', '.join(without)} {'have' if without[1:] else 'has'} no {leaf!r}")
        elif target in targets:
            having = [target]
        else:
            raise unknown("method or group", target, targets, f"override {key!r} of study {study.name!r}")
        for name in having:
            by_target.setdefault(name, []).append(f"{leaf}={value}")
    return by_target, remarks


def _hyper_keys(places: Places, method: str) -> set[str]:
    entry = config.compose(places.conf, "method", method)
    return {f.name for f in dataclasses.fields(entry.hyper)} | ({"steps"} if not entry.header.closed_form else set())


def configured_method(places: Places, name: str, budget: schema.Budget, overrides: list[str]) -> MethodConfig:
    """The method with the hyperparameters that are part of the budget, then the user's."""
    method: MethodConfig = config.compose(places.conf, "method", name)
    given = [f"{k}={v}" for k, v in (budget.hyper.get(name) or budget.hyper.get(method.family, {})).items()]
    if given or overrides:
        method = config.compose(places.conf, "method", name, (*given, *overrides))
    return method


def make_cell(setup: Setup, method: MethodConfig, dataset: schema.Dataset, overrides: list[str]) -> Cell:
    """One cell; impossible ones carry the reason in `skip`."""
    study, protocol, budget = setup.study, setup.protocol, setup.budget
    if dataset.md5 is None and not dataset.on_request:
        raise UserError(f"data set {dataset.name!r} {unpinned(dataset)}")
    frozen = protocols.freeze(protocol, dataset)
    header = method.header
    train_rows, test_rows = frozen.splits.sizes(dataset.rows)
    trained_by = "closed_form" if header.closed_form else header.scheme
    tune = search.tuning(study, method, overrides, classes=bool(dataset.classes))
    modules = identity.numerics(header.module, trained_by, tune is not None)
    what = What(
        kind=study.kind,
        method=MethodSettings(header.module, dataclasses.asdict(method.hyper)),
        data=prepared(dataset),
        protocol=frozen,
        steps=_steps(method, budget, dataset.task, train_rows, dataset.columns),
        until_converged=budget.until_converged and _ends_by_itself(method),
        dtype=study.dtype,
        noise_block=study.noise_block,
        trained_by=trained_by,
        workers=header.workers,
        code=identity.code(*modules),
        versions=identity.versions(*modules),
        tune=tune,
    )
    return Cell(
        method=header.name,
        settings={},
        address=Address(header.name, dataset.name, protocol.name, budget.name, shlex.join(overrides)),
        label=header.label,
        family=method.family,
        reported=Reported(protocol.metrics, protocol.spread),
        r_hat=budget.r_hat,
        gain=budget.gain,
        rows=train_rows,
        test_rows=test_rows,
        what=what,
        how=setup.trainer,
        cost=Cost(header.seconds_per_step, header.rows_power, header.operations_per_layer),
        sampler="sample" in header.kinds,
        skip=impossible(study.kind, method, dataset, train_rows, frozen.outputs),
        fits=_fits(what, dataset.rows, _splits(study, protocol, dataset), study.replicas),
    )


def _fits(what: What, n: int, splits: range, replicas: int) -> tuple[Fit, ...]:
    """The fits of a cell, of n rows in all."""
    shared = dataclasses.asdict(what)
    return tuple(
        Fit(identity.identify(shared, split, replica), split, replica, *what.protocol.splits.sizes(n, split))
        for split in splits
        for replica in range(replicas)
    )


def _splits(study: schema.Study, protocol: schema.Protocol, dataset: schema.Dataset) -> range:
    """The splits that a study wants of a data set; the one official split where there is one."""
    first, available = study.first_split, protocols.num_splits(protocol, dataset)
    wanted = range(first, first + min(study.splits, study.splits_of.get(dataset.name, study.splits)))
    if first == 0 and protocols.official(protocol, dataset):
        return range(1)
    if wanted[-1] >= available:
        last, data = wanted[-1], f"of {dataset.name!r}"
        request = f"splits {first} to {last} {data} are" if last > first else f"split {first} {data} is"
        raise UserError(f"{request} asked for; protocol {protocol.name!r} has 0 to {available - 1}")
    return wanted


def _ends_by_itself(method: MethodConfig) -> bool:
    """Whether fits can end once they have converged: those by gradients of the present parameters."""
    header = method.header
    return not header.closed_form and "sample" not in header.kinds and header.scheme != "asynchronous"


def _steps(method: MethodConfig, budget: schema.Budget, task: str, rows: int, columns: int) -> int | None:
    if method.header.closed_form:
        return None
    if method.header.steps:
        return method.header.steps
    keys = ("lbfgs",) if method.hyper.takes_lbfgs(task, rows) else (method.header.name, method.family)
    sizes = next((budget.steps[k] for k in (*keys, "default") if k in budget.steps), None)
    if sizes is None:
        raise UserError(f"budget {budget.name!r} has no steps for {method.family!r} and no default")
    return sizes.steps(rows * columns)
