"""Training rows as methods see them, of R replicas at once, and how tensors of replicas are stacked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Batch:
    """Rows of the training part of R replicas, in the scaled units of the protocol.

    x `[R, B, D]`; y `[R, B, P]` (class numbers 0..C-1 as floats for classification);
    weight `[R, B]`: sum_b weight_b log p(y_b | ...) estimates the sum over all n training rows
    without bias: n/B in a mini-batch, 1 in a full batch, 0 in padding rows."""

    x: Tensor
    y: Tensor
    weight: Tensor


@dataclass(frozen=True)
class TrainingSet:
    """The training rows of R replicas; raw rows are stored once, replicas gather them by index.

    inputs `[N, D]`, targets `[N, P]` raw; rows `[R, n]` indices, padded with 0 beyond count `[R]`;
    x_shift, x_scale `[R, D]`, y_shift, y_scale `[R, P]` the protocol's scaling."""

    inputs: Tensor
    targets: Tensor
    rows: Tensor
    count: Tensor
    x_shift: Tensor
    x_scale: Tensor
    y_shift: Tensor
    y_scale: Tensor

    def take(self, position: Tensor) -> Batch:
        """Mini-batch of the training rows at `position [R, B]` (0 <= position < count)."""
        rows = self.rows.gather(1, position)
        weight = self.count.to(self.inputs.dtype)[:, None] / position.shape[1]
        return self._scaled(rows, weight.expand(position.shape))

    def full(self) -> Batch:
        """Every training row, padding rows (all zero) with weight 0."""
        replicas = [self.replica(r) for r in range(len(self.rows))]
        return Batch(*(stack([getattr(rows, part) for rows in replicas]) for part in ("x", "y", "weight")))

    def replica(self, r: int) -> Batch:
        """Every training row of one replica, none of padding."""
        rows = self.rows[r : r + 1, : int(self.count[r])]
        return self._scaled(rows, self.inputs.new_ones(rows.shape), slice(r, r + 1))

    def _scaled(self, rows: Tensor, weight: Tensor, replicas: slice = slice(None)) -> Batch:
        x = (_at(self.inputs, rows) - self.x_shift[replicas, None]) / self.x_scale[replicas, None]
        y = (_at(self.targets, rows) - self.y_shift[replicas, None]) / self.y_scale[replicas, None]
        return Batch(x, y, weight)


def _at(values: Tensor, rows: Tensor) -> Tensor:
    """values `[N, D]` at rows `[R, B]`; four times as fast as indexing."""
    return values.index_select(0, rows.flatten()).view(*rows.shape, -1)


def stack(values: list[Tensor]) -> Tensor:
    """Tensors `[1, ...]` of single replicas as one `[R, ...]`, padded with zeros where they differ in size."""
    from torch import cat
    from torch.nn.functional import pad

    if len(values) == 1:
        return values[0]  # with its order of memory, by which products round
    shape = [max(sizes) for sizes in zip(*(value.shape for value in values), strict=True)]
    return cat([pad(value, _padding(value.shape, shape)) for value in values])


def _padding(shape: Sequence[int], padded: list[int]) -> list[int]:
    """Zeros before and after every axis, the last axis first, as `torch.nn.functional.pad` takes them."""
    return [zeros for size, whole in zip(shape[::-1], padded[::-1], strict=True) for zeros in (0, whole - size)]
