"""What is random in a step: the same numbers in any order, alone or in company, before and after the samples change."""

import pytest
import torch

from cases import SPLITS, STEPS, Case, assert_same, group
from gpbench import streams
from gpbench.methods.base import Shapes
from gpbench.streams import Key
from gpbench.study.fitting import lightning_module
from gpbench.study.fitting.noise import Draws

KEYS = [Key("toy", "toy", split) for split in range(3)]
COUNTS, BLOCK, DRAWN = [40, 39, 40], 5, 13
CRASH = 33
"""step at which a fit is cut off, between two blocks of its second half"""


class Crash(Exception):
    """Ends a fit where a kill would."""


def growing(rows: int, step: int) -> Shapes:
    """A number a row, and from half of the steps on (in the middle of a block) three."""
    return Shapes(per_row=(3 if 2 * step >= DRAWN else 1,))


def draws(keys=KEYS, counts=COUNTS, batch_size: int | None = None, dtype=torch.float64) -> Draws:
    return Draws(growing, keys, counts, batch_size, BLOCK, torch.empty(0, dtype=dtype))


def assert_equal(one: tuple, other: tuple) -> None:
    assert one[0] is other[0] is None or torch.equal(one[0], other[0])
    assert torch.equal(one[1].per_row, other[1].per_row)


@pytest.mark.parametrize("batch_size", [None, 6])
def test_any_order_gives_the_numbers_of_the_sequence(batch_size):
    made = draws(batch_size=batch_size)
    sequence = [made.at(step) for step in range(DRAWN)]
    for order in (range(DRAWN - 1, -1, -1), [3, 3, 4, 11, 0, 5, 6, 7], [4, 5], [12]):
        again = draws(batch_size=batch_size)
        for step in order:
            assert_equal(again.at(step), sequence[step])


def test_sizes_change_within_a_block():
    sizes = [draws(batch_size=6).at(step)[1].per_row[0].numel() for step in range(DRAWN)]
    assert sizes == [6] * 7 + [18] * 6
    assert 7 % BLOCK != 0


def test_no_two_steps_or_replicas_share_numbers():
    made = draws(batch_size=6)
    positions, noises = zip(*map(made.at, range(DRAWN)), strict=True)
    assert len(torch.cat(positions).unique(dim=0)) == 3 * DRAWN
    noise = torch.cat([noise.per_row.flatten() for noise in noises])
    assert len(noise.unique()) == len(noise) == 3 * (7 * 6 + 6 * 18)
    assert abs(noise.mean()) < 4 / len(noise) ** 0.5
    assert abs(noise.var() - 1) < 4 * (2 / len(noise)) ** 0.5


@pytest.mark.parametrize("largest", [7, 60, streams.LARGEST_DRAW])
@pytest.mark.parametrize("batch_size", [None, 6])
def test_a_replica_draws_the_same_numbers_batched_and_alone(batch_size, largest, monkeypatch):
    """However much is drawn at once; a replica with a row less has zeros in the place of that row's noise."""
    monkeypatch.setattr(streams, "LARGEST_DRAW", largest)
    together, steps = draws(batch_size=batch_size), range(DRAWN)
    alone = [draws([key], [count], batch_size) for key, count in zip(KEYS, COUNTS, strict=True)]
    for step in steps:
        positions, noise = together.at(step)
        for r, own in enumerate(alone):
            own_positions, own_noise = own.at(step)
            size = own_noise.per_row.shape[1]
            assert torch.equal(noise.per_row[r, :size], own_noise.per_row[0])
            assert (noise.per_row[r, size:] == 0).all()
            assert positions is own_positions is None or torch.equal(positions[r], own_positions[0])


def test_positions_are_training_rows_of_their_replica():
    made = Draws(growing, KEYS, [3, 50, 7], 400, BLOCK, torch.empty(0, dtype=torch.float64))
    positions = torch.stack([made.at(step)[0] for step in range(DRAWN)])
    assert positions.shape == (DRAWN, 3, 400)
    for r, count in enumerate([3, 50, 7]):
        assert positions[:, r].unique().tolist() == list(range(count))


def test_equal_sizes_are_drawn_together_up_to_the_largest_draw(monkeypatch):
    """As often as needed and no more, each at most so large; one step alone may be larger."""
    monkeypatch.setattr(streams, "LARGEST_DRAW", 60)
    shapes, randn = [], torch.randn
    monkeypatch.setattr(torch, "randn", lambda shape, **how: shapes.append(shape) or randn(shape, **how))
    sizes = [20] * 7 + [0] + [100] * 2
    drawn = list(streams.normal_steps(KEYS[0], "noise", 3, sizes, torch.empty(0)))
    assert [len(part) for part in drawn] == sizes
    assert shapes == [(3, 20), (3, 20), (1, 20), (1, 0), (1, 100), (1, 100)]
    assert all(part.dtype == torch.float32 for part in drawn)


def test_a_fit_interrupted_between_samples_and_checkpoint_resumes_bit_for_bit(tmp_path_factory, monkeypatch):
    case = Case("dgp_rff", "regression", tmp_path_factory, hyper={"samples_late": 3, "batch_size": 16})
    work, advance, sizes = case.folder(), lightning_module.GradientFit.advance, []

    def interrupted(fit, batch, noise, step):
        sizes.append(noise.fixed[0].numel())
        if step == CRASH:
            raise Crash
        return advance(fit, batch, noise, step)

    with monkeypatch.context() as patch:
        patch.setattr(lightning_module.GradientFit, "advance", interrupted)
        with pytest.raises(Crash):
            case.fit(group(case.cell, *range(SPLITS), checkpoint_seconds=0.0), work=work)
    assert [size // sizes[0] for size in sizes] == [1] * (STEPS // 2) + [3] * (CRASH + 1 - STEPS // 2)
    for one, other in zip(case.fit(group(case.cell, *range(SPLITS)), work=work), case.together, strict=True):
        assert_same(one, other)
