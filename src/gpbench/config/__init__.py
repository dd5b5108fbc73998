"""Configuration: schemas of the groups in conf/, and their composition by Hydra. No torch."""

from gpbench.config.compose import (
    ENTRY_POINTS,
    GROUPS,
    MethodConfig,
    ValidationError,
    check,
    compose,
    folders,
    options,
    read_yaml,
    split_override,
    split_overrides,
)
from gpbench.config.method_source import hyperparameters

__all__ = [
    "ENTRY_POINTS",
    "GROUPS",
    "MethodConfig",
    "ValidationError",
    "check",
    "compose",
    "folders",
    "hyperparameters",
    "options",
    "read_yaml",
    "split_override",
    "split_overrides",
]
