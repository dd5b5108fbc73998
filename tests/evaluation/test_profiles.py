import numpy as np
import pandas as pd
import pytest

from gpbench.evaluation.profiles import excess, pareto_front, profile, resampled

LOSSES = pd.DataFrame({"a": [1.0, 2.0, 4.0], "b": [2.0, 1.0, 5.0], "c": [4.0, 4.0, 4.0]})


def test_excess_is_a_difference_in_nats_and_a_log_ratio_of_errors():
    np.testing.assert_allclose(excess(LOSSES, "mnll"), [[0, 1, 3], [1, 0, 3], [0, 1, 0]])
    np.testing.assert_allclose(excess(LOSSES - 9, "mnll"), excess(LOSSES, "mnll"))
    ratios = [[1, 2, 4], [2, 1, 4], [1, 1.25, 1]]
    np.testing.assert_allclose(np.exp(excess(LOSSES, "rmse")), ratios)
    with pytest.raises(ValueError, match="missing"):
        excess(LOSSES.where(LOSSES < 5), "mnll")


def test_a_profile_counts_the_data_sets_within_a_distance():
    distances = excess(LOSSES, "mnll")
    steps = profile(distances)
    for at in (0, 0.5, 1, 2.9, 3):
        reached = steps[steps["distance"] <= at].groupby("method")["share"].max()
        expected = (distances <= at).mean()
        assert reached.reindex(expected.index, fill_value=0).to_dict() == pytest.approx(expected.to_dict())


def test_the_front_holds_the_undominated_methods():
    cost = pd.Series({"slow": 9.0, "cheap": 1.0, "middle": 3.0, "worse": 4.0, "twin": 3.0, "same_cost": 1.0})
    loss = pd.Series({"slow": 0.1, "cheap": 5.0, "middle": 2.0, "worse": 2.5, "twin": 2.0, "same_cost": 6.0})
    assert pareto_front(cost, loss) == ["cheap", "middle", "twin", "slow"]


def test_the_band_of_a_profile_is_that_of_resampled_data_sets():
    distances, rng = np.arange(10.0), np.random.default_rng(0)
    drawn = rng.choice(distances, (4000, 10))
    for at, share in ((2.5, 0.3), (6.5, 0.7)):
        low, high = resampled([share], 10)
        assert [low[0], high[0]] == np.quantile((drawn <= at).mean(1), [0.05, 0.95]).tolist()
