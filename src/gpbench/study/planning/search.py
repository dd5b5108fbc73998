"""Which settings tuned fits try: what is listed or drawn of the ranges that a method's `tunable` names. No torch."""

import itertools
import math
from collections.abc import Iterable
from typing import Any

from gpbench.config import MethodConfig, schema
from gpbench.config.validate import check
from gpbench.data.splits import KFold
from gpbench.errors import UserError, unknown
from gpbench.study.records import Setting, Tuning

FOLDS = 5  # a fifth of the training rows validates
Settings = dict[str, Setting]
Space = dict[str, Any]  # hyperparameter -> a list of values, or a range {low: a, high: b}


def remarks(study: schema.Study, methods: Iterable[MethodConfig]) -> list[str]:
    """Which methods of a tuned study have nothing that could be tuned."""
    untuned = [m.header.name for m in methods if not (m.header.tunable or m.header.tunes_itself)]
    return [f"tune: nothing to tune in {', '.join(dict.fromkeys(untuned))}"] if study.tune and untuned else []


def tuning(study: schema.Study, method: MethodConfig, fixed: Iterable[str], classes: bool) -> Tuning | None:
    """What the fits of a cell try first: the settings as configured, then others; None where nothing is tuned.

    fixed: overrides `key=value` of the user, whose keys are not tuned; classes: whether the inner split is to have
    every class. Raises UserError for what no study can try."""
    _check(method)
    if not study.tune:
        return None
    if study.kind != "predict":
        raise UserError(f"study {study.name!r}: tune goes with kind predict, not {study.kind}; set tune=0")
    given = {word.partition("=")[0] for word in fixed}
    space = {key: values for key, values in method.header.tunable.items() if key not in given}
    if not space:
        return None
    tried = tuple(candidates(space, {key: getattr(method.hyper, key) for key in space}, study.tune))
    where = f"tunable of method {method.header.name!r}"
    for settings in tried:
        check(type(method.hyper), vars(method.hyper) | settings, where)
    return Tuning(tried, KFold(seed=0, count=FOLDS, stratified=classes))


def candidates(space: Space, start: Settings, most: int) -> list[Settings]:
    """`start` and further settings, `most` in all: every combination where there are so few, else points of a scrambled
    Sobol sequence, which are the same for every split."""
    listed = [values for values in space.values() if isinstance(values, list)]
    if len(listed) == len(space) and math.prod(map(len, listed)) <= most:
        chosen = [start, *(dict(zip(space, values, strict=True)) for values in itertools.product(*listed))]
        if len(chosen := _distinct(chosen)) <= most:
            return chosen
    from scipy.stats import qmc

    drawn = qmc.Sobol(len(space), rng=0).random_base2(math.ceil(math.log2(8 * most)))
    points = ({key: _value(space[key], u) for key, u in zip(space, row, strict=True)} for row in drawn.tolist())
    return _distinct([start, *points])[:most]


def _distinct(settings: list[Settings]) -> list[Settings]:
    return [one for number, one in enumerate(settings) if one not in settings[:number]]


def _value(values: Any, u: float) -> Setting:
    """The value of a list or range at u in [0, 1); of a range four digits, or a whole number between whole ends."""
    if isinstance(values, list):
        chosen: Setting = values[int(u * len(values))]
        return chosen
    low, high = values["low"], values["high"]
    drawn = low * (high / low) ** u
    return round(drawn) if isinstance(low, int) and isinstance(high, int) else float(f"{drawn:.4g}")


def _check(method: MethodConfig) -> None:
    """Refuse what is no list of values and no range, and keys that are no hyperparameters."""
    where = f"tunable of method {method.header.name!r}"
    for key, values in method.header.tunable.items():
        if not hasattr(method.hyper, key):
            raise unknown("hyperparameter", key, vars(method.hyper), where)
        if isinstance(values, list) and values:
            continue
        ends = [values[end] for end in ("low", "high") if end in values] if isinstance(values, dict) else []
        numbers = [end for end in ends if isinstance(end, int | float)]
        if len(numbers) != 2 or len(values) != 2 or not 0 < numbers[0] < numbers[1]:
            raise UserError(f"{where}: {key} needs values [a, b, ...] or {{low: a, high: b}}, 0 < a < b; got {values}")
