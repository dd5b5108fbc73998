"""Checkpoints of a group of fits: what they hold, and how they are stored.

They are written aside, fsynced and renamed, under names that end in the digest of their content; two are kept; samples
are append-only.
"""

from __future__ import annotations

import hashlib
import io
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


class Unsound(Exception):
    """A part of a checkpoint that is missing or not what was written."""


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
    """Write the checkpoint of `content["step"]`; new samples go to another file, and become parts of one block."""
    total = len(next(iter(samples.values()), []))
    written = sum(_number(path, 2) for path in work.glob("samples-*.pt"))
    if total > written:
        new = {name: torch.stack(values[written:]) for name, values in samples.items()}
        for name, block in new.items():  # small tensors that stay between large ones that go leave gaps in memory
            samples[name][written:] = block.unbind()
        _save(work, f"samples-{written:06d}-{total - written:06d}", new)
    _save(work, f"checkpoint-{content['step']:09d}", content | {"samples": total})
    for old in _parts(work, "checkpoint")[:-2]:
        old.unlink(missing_ok=True)  # where a job that was stopped goes on beside the one that took its place


def read(work: Path, fits: list[str], device: torch.device) -> tuple[Content, Samples] | None:
    """The newest checkpoint that is sound, and its samples; None where there is none. Parts of others are set aside.

    Raises UserError where the checkpoint belongs to other fits (another configuration)."""
    paths = _parts(work, "checkpoint")
    for path in reversed(paths):
        try:
            content = _load(path, device)
            if content["fits"] != fits:
                raise UserError(f"{path} is a checkpoint of another configuration; delete {work} to start again")
            return content, _samples(work, content["samples"], device)
        except Unsound as error:
            before = "the one before it is used" if path != paths[0] else "the fit starts anew"
            print(f"gpbench: {error}; {before}", file=sys.stderr)
            _set_aside(path)
    for path in _parts(work, "samples"):
        _set_aside(path)
    return None


def _samples(work: Path, count: int, device: torch.device) -> Samples:
    """The first `count` samples; files written after the checkpoint are set aside: what they hold is drawn again.

    Raises Unsound where some are damaged or missing."""
    samples: Samples = {}
    seen, later = 0, []
    for path in _parts(work, "samples"):
        if (first := _number(path, 1)) >= count:
            later.append(path)
        elif first == seen:
            for name, values in _load(path, device).items():
                samples.setdefault(name, []).extend(values)
            seen += _number(path, 2)
    if seen < count:
        raise Unsound(f"{work}: samples from number {seen} on are missing")
    for path in later:
        _set_aside(path)
    return samples


def _save(work: Path, name: str, content: Content) -> None:
    """Write a part; the end of its name is the digest of its content."""
    saved = serialised(content)
    with write_aside(work / f"{name}-{_digest(saved)}.pt") as temporary:
        temporary.write_bytes(saved)


def serialised(content: Content) -> memoryview:
    """What `torch.save` writes; it says of a full disk that a stream failed, and not why, so others write it."""
    stream = io.BytesIO()
    torch.save(content, stream)
    return stream.getbuffer()


def _load(path: Path, device: torch.device) -> Content:
    """The content of a part; Unsound where it is not what was written."""
    try:
        data = path.read_bytes()
        if path.stem.rpartition("-")[2] != _digest(data):
            raise Unsound(f"{path} was changed after it was written")
        content: Content = torch.load(io.BytesIO(data), weights_only=True, map_location=device)
        return content
    except (EOFError, RuntimeError, OSError, UnpicklingError, LookupError, ValueError) as error:
        reason = str(error).partition(". ")[0] or type(error).__name__  # without the advice of torch
        raise Unsound(f"{path} cannot be read ({reason})") from error


def _digest(data: bytes | memoryview) -> str:
    return hashlib.sha256(data).hexdigest()[:16]


def _set_aside(path: Path) -> None:
    """Keep a part, until its fits are finished, under a name that nothing reads."""
    path.rename(path.with_name(f"unused-{path.name}"))


def _parts(work: Path, kind: str) -> list[Path]:
    return sorted(work.glob(f"{kind}-*.pt"), key=lambda path: _number(path, 1))


def _number(path: Path, place: int) -> int:
    """A number in the name of a part."""
    return int(path.stem.split("-")[place])
