"""Checkpoints of a group of fits: what they hold, and how they are stored.

They are written aside, fsynced and renamed; two are kept; samples are append-only.
"""

from __future__ import annotations

import sys
from pathlib import Path
from pickle import UnpicklingError
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from gpbench.errors import UserError
from gpbench.places import write_aside

if TYPE_CHECKING:
    from gpbench.study.fitting.lightning_module import Fit

Samples = dict[str, list[Tensor]]
Content = dict[str, Any]
"""What a checkpoint holds, as tensors, numbers, texts, and lists and dicts of them."""


def content(fit: Fit) -> Content:
    """What a checkpoint holds, but for buffers, which do not change, and samples, which have files of their own."""
    return {
        "fits": [f.fit_id for f in fit.group.fits],
        "step": fit.done,
        "params": {k: v.detach() for k, v in fit.state.params.items()},
        "memory": fit.state.memory,
        "optimiser": fit.optimiser_state(),
        "active": fit.active,
        "reasons": fit.reasons,
        "jitter": list(fit.jitter.values()),
        "seconds": fit.clock.seconds,
        "trace": fit.trace,
    }


@torch.no_grad()
def restore(fit: Fit, saved: Content) -> None:
    """Make a fit what it was when `content` was taken of it."""
    for name, value in saved["params"].items():
        fit.state.params[name].copy_(value)
    fit.state.memory = saved["memory"]
    fit.saved_optimiser = saved["optimiser"]
    fit.active, fit.reasons = saved["active"], saved["reasons"]
    fit.jitter = {}
    fit.note(saved["jitter"])
    fit.done, fit.trace = saved["step"], saved["trace"]
    fit.clock.seconds = saved["seconds"]


def write(work: Path, content: Content, samples: Samples) -> None:
    """Write the checkpoint of `content["step"]`; samples that are new since the last one go to another file."""
    total = len(next(iter(samples.values()), []))
    written = sum(int(p.stem.split("-")[2]) for p in work.glob("samples-*.pt"))
    if total > written:
        with write_aside(work / f"samples-{written:06d}-{total - written:06d}.pt") as temporary:
            torch.save({name: values[written:] for name, values in samples.items()}, temporary)
    with write_aside(work / f"checkpoint-{content['step']:09d}.pt") as temporary:
        torch.save(content | {"samples": total}, temporary)
    for old in _checkpoints(work)[:-2]:
        old.unlink()


def read(work: Path, fits: list[str], device: torch.device) -> tuple[Content, Samples] | None:
    """Newest readable checkpoint and its samples; None where there is none.

    Raises UserError where the checkpoint belongs to other fits (another configuration)."""
    for path in reversed(_checkpoints(work)):
        try:
            content = torch.load(path, weights_only=True, map_location=device)
        except (EOFError, RuntimeError, OSError, UnpicklingError) as error:
            print(f"gpbench: {path} cannot be read ({error}); the one before it is used", file=sys.stderr)
            continue
        if content["fits"] != fits:
            raise UserError(f"{path} is a checkpoint of another configuration; delete {work} to start these fits again")
        return content, _samples(work, content["samples"], device)
    return None


def _samples(work: Path, count: int, device: torch.device) -> Samples:
    """The first `count` samples; files written after the checkpoint are removed, they will be drawn again."""
    samples: Samples = {}
    seen = 0
    for path in sorted(work.glob("samples-*.pt")):
        if seen >= count:
            path.unlink()
            continue
        for name, values in torch.load(path, weights_only=True, map_location=device).items():
            samples.setdefault(name, []).extend(values)
        seen += int(path.stem.split("-")[2])
    return samples


def _checkpoints(work: Path) -> list[Path]:
    return sorted(work.glob("checkpoint-*.pt"))
