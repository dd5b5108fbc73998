"""Rows in blocks of about equal size that lie together, as PITC and block Jacobi have them."""

from __future__ import annotations

import torch
from torch import Tensor


def partition(x: Tensor, count: int) -> Tensor:
    """Rows of each of so many blocks `[count, s]` of x `[n, D]`, n where a block has fewer than s, O(n log n).

    Halved again and again along the input whose range in the part is widest, in proportion to the blocks to come."""
    parts = [(torch.arange(len(x), device=x.device), count)]
    while any(blocks > 1 for _, blocks in parts):
        parts = [half for rows, blocks in parts for half in (_halves(x, rows, blocks) if blocks > 1 else [(rows, 1)])]
    longest = max(len(rows) for rows, _ in parts)
    index = torch.full((count, longest), len(x), dtype=torch.int64, device=x.device)
    for block, (rows, _) in zip(index, parts, strict=True):
        block[: len(rows)] = rows
    return index


def _halves(x: Tensor, rows: Tensor, blocks: int) -> list[tuple[Tensor, int]]:
    first = blocks // 2
    along = int((x[rows].amax(0) - x[rows].amin(0)).argmax())
    ordered = rows[x[rows, along].argsort(stable=True)]
    middle = len(rows) * first // blocks
    return [(ordered[:middle], first), (ordered[middle:], blocks - first)]


def take(values: Tensor, index: Tensor) -> Tensor:
    """values `[n, c]` by block `[b, s, c]`, 0 where a block has no row."""
    return torch.cat([values, torch.zeros_like(values[:1])])[index]


def put(values: Tensor, index: Tensor, n: int) -> Tensor:
    """The inverse of `take`: `[n, c]` of values `[b, s, c]`."""
    out = values.new_zeros(n + 1, values.shape[-1])
    out[index.flatten()] = values.flatten(0, 1)
    return out[:n]
