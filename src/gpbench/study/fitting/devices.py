"""The device of a fit, on which the same fit gives the same numbers again."""

import os

import torch

from gpbench.config.schema import Trainer


def of(how: Trainer) -> torch.device:
    """The device that a trainer names. On a GPU sums are taken in one order, so that a fit that goes on equals one that
    was never cut off."""
    if how.device == "cuda":
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # read at the first product
        torch.use_deterministic_algorithms(True, warn_only=True)
        torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    return torch.device(how.device)
