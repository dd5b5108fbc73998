"""Configuration: schemas of the groups in conf/, and their composition by Hydra. No torch."""

from gpbench.config.compose import (
    ENTRY_POINTS,
    GROUPS,
    MethodConfig,
    ValidationError,
    check,
    compose,
    folders,
    hyperparameters,
    options,
    read_yaml,
    source_path,
    source_tree,
    split_override,
    split_overrides,
)

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
    "source_path",
    "source_tree",
    "split_override",
    "split_overrides",
]
