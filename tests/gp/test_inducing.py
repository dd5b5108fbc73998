import warnings

import numpy as np
import pytest

from gpbench.gp import inducing


def test_centres_of_well_separated_clusters_are_found():
    rng = np.random.default_rng(0)
    truth = np.array([[0.0, 0.0], [10.0, 0.0], [0.0, 10.0]])
    x = np.concatenate([c + 0.1 * rng.standard_normal((50, 2)) for c in truth])
    # data-point starts can fall into one cluster, which k-means cannot always leave: the best of ten counts
    runs = [inducing.kmeans(x, 3, np.random.default_rng(seed)) for seed in range(10)]
    errors = [np.linalg.norm(truth[:, None] - centres, axis=-1).min(1).max() for centres in runs]
    assert min(errors) < 0.1


def test_same_generator_same_centres():
    x = np.random.default_rng(0).standard_normal((200, 3))
    first, second = (inducing.kmeans(x, 10, np.random.default_rng(1)) for _ in range(2))
    np.testing.assert_array_equal(first, second)
    assert not np.array_equal(first, inducing.kmeans(x, 10, np.random.default_rng(2)))


def test_too_few_rows_are_all_used_and_repeated_with_jitter():
    x = np.random.default_rng(0).standard_normal((4, 2))
    centres = inducing.kmeans(x, 7, np.random.default_rng(0))
    assert centres.shape == (7, 2)
    assert len(np.unique(centres, axis=0)) == 7
    assert {tuple(row) for row in x} <= {tuple(row) for row in centres}
    distance = np.linalg.norm(centres[:, None] - x, axis=-1).min(1)
    assert distance.max() < 0.1


@pytest.mark.parametrize("num", [3, 30])
def test_duplicates_give_distinct_centres_and_no_warning(num):
    x = np.repeat(np.arange(12.0)[:, None], 20, axis=0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        centres = inducing.kmeans(x, num, np.random.default_rng(0))
    assert len(np.unique(centres)) == num


def test_empty_clusters_are_silent():
    # one row in a hundred is far out, so starts there and in the crowd compete and some lose all their rows
    rng = np.random.default_rng(0)
    x = np.concatenate([rng.standard_normal((300, 1)).round(1), 100 * rng.standard_normal((3, 1))])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for seed in range(5):
            assert np.isfinite(inducing.kmeans(x, 40, np.random.default_rng(seed))).all()


def test_many_rows_are_thinned(monkeypatch):
    clustered, kmeans2 = [], inducing.kmeans2
    monkeypatch.setattr(inducing, "MAX_ROWS", 50)
    monkeypatch.setattr(inducing, "kmeans2", lambda x, *of, **how: clustered.append(len(x)) or kmeans2(x, *of, **how))
    x = np.random.default_rng(0).standard_normal((500, 2))
    assert inducing.kmeans(x, 5, np.random.default_rng(0)).shape == (5, 2)
    assert set(clustered) == {50}


@pytest.mark.parametrize("choose", [inducing.kmeans, inducing.rows])
def test_repeats_are_moved_by_a_hundredth_of_a_standard_deviation_of_each_input(choose):
    size = np.array([1.0, 1000.0, 5.0])
    x = size * [[-1, -1, 1], [-1, 1, 1], [1, -1, 1], [1, 1, 1]]
    z = choose(x, 2004, np.random.default_rng(0))[4:]
    # an input that does not vary counts as one of standard deviation 1
    np.testing.assert_allclose((z - size * np.sign(z)).std(0), [0.01, 10.0, 0.01], rtol=0.1)


def test_random_rows_are_drawn_from_all_rows(monkeypatch):
    monkeypatch.setattr(inducing, "MAX_ROWS", 100)
    x = np.arange(400.0)[:, None]
    z = np.concatenate([inducing.rows(x, 20, np.random.default_rng(seed))[:, 0] for seed in range(50)])
    assert set(z) <= set(x[:, 0])
    np.testing.assert_allclose([z.mean(), z.std()], [x.mean(), x.std()], rtol=0.1)
    monkeypatch.setattr(inducing, "MAX_ROWS", 400)
    every = [set(inducing.rows(x, 20, np.random.default_rng(seed))[:, 0]) for seed in range(2)]
    assert [len(one) for one in every] == [20, 20]
    assert every[0] != every[1]
