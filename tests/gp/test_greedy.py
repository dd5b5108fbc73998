"""Inducing points among the rows: both objectives against dense algebra, gains against differences, greedy rounds."""

import math

import pytest
import torch
from greedy_cases import dense, random, toy, values

from gpbench.gp import greedy


def rows(*chosen: int, replicas: int = 1) -> torch.Tensor:
    return torch.tensor(chosen).expand(replicas, -1)


def test_golden_numbers_of_the_toy():
    """Independent: the Titsias bound, the DTC likelihood and the log evidence by dense algebra, to the digits given."""
    likelihood, bound = values(toy(), [0, 2, 4])
    assert bound.item() == pytest.approx(-8.979415, abs=5e-7)
    assert likelihood.item() == pytest.approx(-4.037575, abs=5e-7)
    for value in values(toy(), [0, 1, 2, 3, 4]):
        assert value.item() == pytest.approx(-4.524859, abs=5e-7)


@pytest.mark.parametrize("chunk", [2**20, 60])
def test_both_objectives_are_the_dense_ones(monkeypatch, chunk):
    monkeypatch.setattr(greedy, "CHUNK_ELEMENTS", chunk)
    model = random()
    for chosen in ([3], [3, 7, 1, 20], list(range(0, 30, 2))):
        found = [value.item() for value in values(model, chosen)]
        assert found == pytest.approx(dense(model, chosen), rel=1e-8)


def test_no_row_at_all_leaves_the_noise_alone():
    model = random()
    likelihood, bound = values(model, [])
    alone = -0.5 * ((model.y**2).sum() / 0.1 + 30 * math.log(2 * math.pi * 0.1))
    assert likelihood.item() == pytest.approx(alone.item(), rel=1e-12)
    assert bound.item() == pytest.approx(alone.item() - 30 / 0.2, rel=1e-12)


@pytest.mark.parametrize("chosen", [[], [4], [4, 9, 11, 2, 25]])
@pytest.mark.parametrize("chunk", [2**20, 60])
def test_gains_of_adding_are_differences_and_never_negative(monkeypatch, chosen, chunk):
    monkeypatch.setattr(greedy, "CHUNK_ELEMENTS", chunk)
    model, others = random(outputscale=2.0, jitter=0.05), [j for j in range(30) if j not in chosen]
    before, summary = values(model, chosen)[1], greedy.summarise(model, model.places(rows(*chosen).long()))
    gains = greedy.gains_of_adding(model, summary, rows(*others))
    expected = torch.stack([values(model, [*chosen, j])[1] - before for j in others], -1)
    torch.testing.assert_close(gains, expected, rtol=1e-10, atol=1e-10)
    assert (gains > -1e-9).all()


def test_gains_of_removing_are_differences_and_never_positive():
    model, chosen = random(outputscale=2.0, jitter=0.05), [4, 9, 11, 2, 25, 17]
    before, summary = values(model, chosen)[1], greedy.summarise(model, model.places(rows(*chosen)))
    gains = greedy.gains_of_removing(model, summary)
    expected = torch.stack([values(model, [j for j in chosen if j != i])[1] - before for i in chosen], -1)
    torch.testing.assert_close(gains, expected, rtol=1e-10, atol=1e-10)
    assert (gains < 1e-9).all()


def test_the_bound_stays_below_the_evidence_which_all_rows_reach():
    for seed in range(5):
        model = random(seed=seed)
        evidence = values(model, list(range(30)))[0].item()
        generator = torch.Generator().manual_seed(seed)
        for count in (1, 5, 12):
            chosen = torch.randperm(30, generator=generator)[:count].tolist()
            assert values(model, chosen)[1].item() <= evidence + 1e-6


def test_a_round_is_the_best_exchange_of_the_averaged_bound_and_never_lowers_it():
    # the first particle alone would give up another row of these
    model, chosen = random(particles=3), [15, 27, 19, 22]
    for seed in range(4):
        candidates = torch.randperm(30, generator=torch.Generator().manual_seed(seed))
        candidates = candidates[[c not in chosen for c in candidates.tolist()]][:8]
        moved = greedy.exchange(model, rows(*chosen), candidates[None])[0].tolist()
        losses = {i: values(model, [j for j in chosen if j != i])[1].mean().item() for i in chosen}
        worst = max(losses, key=losses.get)
        kept = [j for j in chosen if j != worst]
        best = {j: values(model, [*kept, j])[1].mean().item() for j in [*candidates.tolist(), worst]}
        assert moved == [*kept, max(best, key=best.get)]
        assert values(model, moved)[1].mean() >= values(model, chosen)[1].mean() - 1e-9
        chosen = moved


def test_replicas_and_particles_batched_are_those_alone():
    model = random(replicas=2, particles=3)
    chosen = torch.tensor([[1, 5, 9], [2, 4, 28]])
    summary = greedy.summarise(model, model.places(chosen))
    both = greedy.bound(model, summary)
    gains = greedy.gains_of_adding(model, summary, torch.tensor([[7, 8], [9, 10]]))
    for r in range(2):
        for s in range(3):
            places = model.places(slice(None))[r : r + 1, s : s + 1]
            alone = model._replace(
                places=lambda rows, places=places: greedy.take(places, rows),
                y=model.y[r : r + 1],
                mask=model.mask[:1],
                variance=model.variance[:1],
                noise_variance=model.noise_variance[:1],
                covariance=random().covariance,
            )
            one = greedy.summarise(alone, alone.places(chosen[r : r + 1]))
            torch.testing.assert_close(greedy.bound(alone, one)[0, 0], both[r, s], rtol=1e-12, atol=0)
            candidates = torch.tensor([[7, 8], [9, 10]])[r : r + 1]
            torch.testing.assert_close(greedy.gains_of_adding(alone, one, candidates)[0, 0], gains[r, s])


def test_rows_of_padding_count_for_nothing():
    model = random()
    mask = model.mask.clone()
    mask[:, 25:] = 0
    padded = model._replace(mask=mask, y=model.y * mask)
    short = model._replace(y=model.y[:, :25], mask=model.mask[:, :25])
    for one, other in zip(values(padded, [3, 8]), values(short, [3, 8]), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=0)
    keys = torch.rand(1, 30, dtype=torch.float64)
    assert set(greedy.candidates(keys, rows(3, 8), mask, 40)[0].tolist()) == set(range(25)) - {3, 8}


def test_a_repeated_row_gains_nothing():
    model = random()
    places = model.places(slice(None)).clone()
    places[:, :, 7] = places[:, :, 3]
    twice = model._replace(places=lambda rows: greedy.take(places, rows))
    summary = greedy.summarise(twice, twice.places(rows(3, 8)))
    gains = greedy.gains_of_adding(twice, summary, rows(7, 12))
    assert gains[0, 0, 0] < 1e-3 < gains[0, 0, 1]
    without_jitter = twice._replace(jitter=0.0)
    summary = greedy.summarise(without_jitter, twice.places(rows(3, 8)))
    assert greedy.gains_of_adding(without_jitter, summary, rows(7))[0, 0, 0] == -math.inf
