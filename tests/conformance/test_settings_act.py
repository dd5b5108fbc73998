"""Every setting of a method acts: with another value of it a fit has another trace or other predictions.

A setting that is read nowhere passes every contract, and a study of it would compare a method with itself.
"""

import types
import typing
from collections.abc import Iterator

import pytest

from cases import CONF, VARIANTS, Case, every_case, group, numbers
from gpbench import config
from gpbench.errors import UserError
from gpbench.study.fitting.outcome import Outcome

METHODS = {name: task for name, task in reversed(every_case(CONF)) if name not in VARIANTS}
"""Method -> its first task."""
NEEDS = {
    **dict.fromkeys(
        ("exact_gp", "fitc", "fitc_laplace", "pitc", "sgpr", "gp_cholesky", "greedy_sgp"), {"optimiser": "adam"}
    ),
    "bsgp_1": {"layers": 2, "start_rows": 0},
    "dgp_mcmc": {"noise": "sampled"},
    "dkl": {"cholesky_rows": 1},
    "dsvi": {"start_rows": 0, "batch_size": 20},
    "heteroscedastic_gp": {"natural_gradients": "all", "batch_size": 20},
    "ipvi_dgp_1": {"layers": 2},
    "kiss_gp": {"cholesky_rows": 1},
    "stride": {"hidden": "aca"},
    "svgp": {"optimiser": "adam", "natural_gradients": "all", "batch_size": 20},
}
"""What else is set, so that other settings have something to act on."""
ANOTHER = {
    **{"kernel": "matern52", "hidden_units": (8,), "penalties": (1.0,), "averaging": 1.0, "batch_size": 30, "cap": 1},
    **{"candidates": 3, "cg_tolerance": 10.0, "cholesky_rows": 1000, "coordinates": 8, "full_batch_rows": 100},
    **{"hidden_width": 1, "iterations": 5, "lanczos_rank": 3, "num_inducing": 8, "probe_steps": 1, "rank": 3},
    **{"restarts": 1, "rounds": 1, "start_rows": 10, "subset": 20, "tolerance": 10.0, "trials": 10, "window": 1},
}
"""Values where half or twice the usual one does not change a fit of 60 rows, or its type tells none."""
SILENT = {
    "bsgp_1": {"start_iterations", "step_decay"},
    "deep_gp_mcmc": {"objective", "rank"},
    "dgp_rff": {"likelihood"},
    **dict.fromkeys(("dkl", "kiss_gp"), {"cg_tolerance"}),
    "dsvi": {"start_iterations"},
    "fitc_laplace": {"noise_variance"},
    "gp_pcg": {"warm_start"},
    "gradient_boosting": {"trials"},
    "linear": {"folds"},
    "mcmc_gp": {
        "approximation",
        "defensive",
        "doublings",
        "grid_high",
        "grid_low",
        "grid_points",
        "num_importance",
        "walk",
    },
    "simple_mkl": {"tolerance"},
    "svgp": {"optimiser", "samples_test", "samples_train"},
}
"""Settings that do nothing here: they act under other tasks or options, or on other data."""
REFUSED = {"mcmc_gp": {"keep_latents"}}
"""Settings whose other value no study of predictions takes."""


def others(kind: object, value: object) -> Iterator[object]:
    """Other values of a type."""
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin is typing.Annotated:
        yield from others(inner[0], value)
    elif origin is typing.Literal:
        yield from (option for option in inner if option != value)
    elif origin in (typing.Union, types.UnionType):
        for each in inner:
            yield from others(each, value)
    elif kind is bool:
        yield not value
    elif kind is int:
        yield 2 * value if value else 2
    elif kind is float:
        yield value / 2 if value else 0.3


def same(one: Outcome, other: Outcome) -> bool:
    """Bit for bit the same points and trace."""
    return one.points.equals(other.points) and numbers(one).equals(numbers(other))


@pytest.mark.slow
@pytest.mark.parametrize("name", METHODS)
def test_every_setting_acts(name, tmp_path_factory):
    def fitted(**settings: object) -> Outcome:
        case = Case(name, METHODS[name], tmp_path_factory, few=True, hyper=NEEDS.get(name, {}) | settings)
        (outcome,) = case.fit(group(case.cell, 0))
        return outcome

    def is_possible(**settings: object) -> bool:
        try:
            return not of_method(**usual | settings).impossible(METHODS[name])
        except UserError:
            return False

    made = Case(name, METHODS[name], tmp_path_factory, few=True, hyper=NEEDS.get(name, {})).cell
    of_method, usual, whole = config.hyperparameters(made.what.method.module), made.what.method.hyper, fitted()
    silent = set()
    kinds = typing.get_type_hints(of_method, include_extras=True)
    for field in kinds.keys() - REFUSED.get(name, set()):
        kind = kinds[field]
        listed = field in ANOTHER and typing.get_origin(kind) is not typing.Literal
        values = [ANOTHER[field]] if listed else others(kind, usual.get(field))
        possible = [value for value in values if is_possible(**{field: value})]
        if possible and all(same(fitted(**{field: value}), whole) for value in possible):
            silent.add(field)
    assert silent == SILENT.get(name, set())
