"""Configuration: the groups in conf/, their schemas and overrides. No torch."""

from gpbench.config.compose import (
    ENTRY_POINTS,
    GROUPS,
    MethodConfig,
    backlog,
    compose,
    families,
    folders,
    options,
    printed_splits,
    read,
    require_module,
    require_option,
)
from gpbench.config.method_source import hyperparameters
from gpbench.config.overrides import command_words, distinct, joined, setting, split_override, split_overrides
from gpbench.config.validate import require_known

__all__ = [
    "ENTRY_POINTS", "GROUPS", "MethodConfig", "backlog", "command_words", "compose", "distinct", "families", "folders",
    "hyperparameters", "joined", "options", "printed_splits", "read", "require_known", "require_module",
    "require_option", "setting", "split_override", "split_overrides",
]  # fmt: skip
