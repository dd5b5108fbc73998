"""Named random streams.

Every random number of a fit comes from a generator that is seeded by SHA-256(md5 of the data set's arrays, name of the
protocol, split, replica, stream, block). The method's name is not in it, so methods are compared on paired noise.
Generators are seeded anew for every block of K steps, so a checkpoint at a block boundary needs no generator state.
"""

from __future__ import annotations

import hashlib
from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import torch

STREAMS = ("init", "batch", "noise", "mcmc", "eval")
LARGEST_DRAW = 2**23  # numbers drawn at once: 64 MB in float64


class Key(NamedTuple):
    """Which replica the random numbers are for. dataset: the MD5 of its arrays; protocol: its name."""

    dataset: str
    protocol: str
    split: int
    replica: int = 0


def seed(key: Key, stream: str, block: int = 0) -> int:
    """63-bit seed of one (replica, stream, block); ValueError for an unknown stream."""
    if stream not in STREAMS:
        raise ValueError(f"unknown stream {stream!r}; choose one of {STREAMS}")
    text = "\x1f".join([key.dataset, key.protocol, str(key.split), str(key.replica), stream, str(block)])
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def rng(key: Key, stream: str, block: int = 0) -> np.random.Generator:
    """NumPy generator, for everything that is drawn on the CPU (initial values, mini-batch indices)."""
    return np.random.default_rng(seed(key, stream, block))


def generator(key: Key, stream: str, block: int = 0, device: torch.device | str = "cpu") -> torch.Generator:
    """Torch generator on `device`, for noise."""
    import torch

    return torch.Generator(device=device).manual_seed(seed(key, stream, block))


def source(key: Key, stream: str, block: int, like: torch.Tensor) -> Callable[..., torch.Tensor]:
    """normal(*shape): the next standard normals of a block, with the dtype and device of `like`."""
    import torch

    numbers = generator(key, stream, block, like.device)
    return lambda *shape: torch.randn(shape, generator=numbers, dtype=like.dtype, device=like.device)


def normal(key: Key, stream: str, block: int, shape: tuple[int, ...], like: torch.Tensor) -> torch.Tensor:
    """The first standard normals of a block, with the dtype and device of `like`."""
    return source(key, stream, block, like)(*shape)


def normal_steps(key: Key, stream: str, block: int, sizes: list[int], like: torch.Tensor) -> Iterator[torch.Tensor]:
    """Standard normals of one replica, a vector of `sizes[k]` numbers for step k of a block.

    Steps of equal size are drawn together, up to `LARGEST_DRAW` numbers; `sizes` alone decides which."""
    import torch

    source = generator(key, stream, block, like.device)
    for size, run in groupby(sizes):
        left = len(list(run))
        while left:
            count = min(left, max(1, LARGEST_DRAW // max(size, 1)))
            yield from torch.randn((count, size), generator=source, dtype=like.dtype, device=like.device)
            left -= count
