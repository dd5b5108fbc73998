"""The device of a fit, on which the same fit gives the same numbers again."""

import os

import torch

from gpbench.config.schema import Trainer


def of(how: Trainer) -> torch.device:
    """The device that a trainer names; on a GPU sums have one order, so that a resumed fit is the uninterrupted one."""
    if how.device == "cuda":
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # read at the first product
        torch.use_deterministic_algorithms(True, warn_only=True)
        torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    return torch.device(how.device)
