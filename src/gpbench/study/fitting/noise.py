"""What is random in the steps of a fit: rows of the mini-batch and noise."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from gpbench import streams
from gpbench.methods.base import Noise, Shapes
from gpbench.streams import Key


class Draws:
    """Mini-batch positions and noise of every step of R replicas, seeded again every `block` steps.

    Steps may be requested in any order; the numbers of a step do not depend on the order, nor on the other replicas.
    shapes: (rows, step) -> shapes of the noise of a step with so many rows; counts: training rows of each replica;
    batch_size None: all rows, no positions; like: dtype and device."""

    def __init__(
        self,
        shapes: Callable[[int, int], Shapes],
        keys: list[Key],
        counts: list[int],
        batch_size: int | None,
        block: int,
        like: Tensor,
    ) -> None:
        self.shapes, self.keys, self.counts, self.batch_size = shapes, keys, counts, batch_size
        self.block, self.like = block, like
        self.open_block, self.drawn = -1, 0  # and how many of its steps have their noise

    def at(self, step: int) -> tuple[Tensor | None, Noise]:
        """Positions `[R, B]` (None for all rows) and noise of a step, counted from 0."""
        block, place = divmod(step, self.block)
        if block != self.open_block or place < self.drawn:
            self._open(block)
        while self.drawn < place:
            self._next()  # of a step that is left out
        positions = None if self.batch_size is None else self.positions[:, place]
        rows = self.batch_size or max(self.counts)
        return positions, self.shapes(rows, step).split(self._next(), rows)

    def _open(self, block: int) -> None:
        """Seed the streams of one block and draw its mini-batches."""
        steps = range(block * self.block, (block + 1) * self.block)
        self.open_block, self.drawn, self.normals = block, 0, []
        for key, count in zip(self.keys, self.counts, strict=True):
            rows = self.batch_size or count
            sizes = [self.shapes(rows, step).size(rows) for step in steps]
            self.normals.append(streams.normal_steps(key, "noise", block, sizes, self.like))
        if self.batch_size is not None:
            positions = [
                streams.rng(key, "batch", block).integers(0, count, (self.block, self.batch_size))
                for key, count in zip(self.keys, self.counts, strict=True)
            ]
            self.positions = torch.as_tensor(np.stack(positions), device=self.like.device)

    def _next(self) -> Tensor:
        """Numbers of the next step `[R, size]`; rows come last, so padding ends those of a replica with fewer rows."""
        self.drawn += 1
        parts = [next(normals) for normals in self.normals]
        longest = max(map(len, parts))
        if len(parts) == 1:
            return parts[0][None]
        pad = torch.nn.functional.pad
        return torch.stack([p if len(p) == longest else pad(p, (0, longest - len(p))) for p in parts])
