"""Published numbers of filippone2012, 2013 and 2014: all of them, under the names that stand for them here."""

from pathlib import Path

import numpy as np
import pytest

from gpbench import config
from gpbench.report.scorecard import read_published

ROOT = Path(__file__).parents[2]
ROWS = read_published(ROOT / "published")
# rows of each table: methods x cells x figures printed of each
ITEMS = {
    "filippone2013": {
        **{"Table 1": 14 * 3, "Table 2": 6 * 16 * 2, "Table 3": 3 * 4 * 2, "Table 4": 3 * 16 * 2, "Table 6": 5 * 4},
        **{"Table 5": 5 * 4 * 2 + 5 * 2, "text 4.1": 1, "text 4.3": 1},
    },
    "filippone2012": {
        **{"Table 2": 2 * 6, "Table 3": 8 * 3 + 7 * 3, "Table 4": 2 * 6, "Table 5": 9 * 3 + 8 * 3, "Figure 4": 2},
        **{"text 5": 11, "text 6.1": 3, "text 6.2": 3, "text 6.3": 6},
    },
    "filippone2014": {
        **{"Table 1": 8 * 8 * 6, "Table 2": 4 * 8, "Table 3": 3 * 8 * 6},
        **{"text 2.1.2": 1, "text 4.2": 1, "text 4.4": 2, "text 5.4": 1},
    },
}


def printed(source: str, item: str, **named: str) -> float:
    """One number, in the unit of our metric."""
    rows = ROWS[(ROWS["source"] == source) & (ROWS["item"] == item)]
    for key, value in named.items():
        rows = rows[rows[key] == value]
    (found,) = rows.to_dict("records")
    return found["factor"] * found["value"]


@pytest.mark.parametrize("paper", ITEMS)
def test_every_printed_number_is_here(paper):
    rows = ROWS[ROWS["source"] == paper]
    assert rows.groupby("item").size().to_dict() == ITEMS[paper]
    unnamed = rows[rows["value"].isna()]
    assert set(unnamed["reason"]) <= {"printed as a formula"}


def test_data_sets_and_protocols_are_those_of_the_project():
    rows = ROWS[ROWS["source"].isin(ITEMS) & (ROWS["ours_method"] != "")]
    assert set(rows["dataset"]) <= set(config.options(ROOT / "conf", "dataset"))
    assert set(rows["protocol"]) == {"filippone2013", "filippone2013_real", "private scans"}
    assert set(rows.loc[rows["protocol"] == "private scans", "source"]) == {"filippone2012"}


def test_numbers_of_the_papers():
    """As the tables print them: effective draws of 20,000 and 10,000, percent accepted, draws of 20 repeats."""
    ess = {"ours_metric": "ess_percent"}
    own = {"dataset": "vlt_400_2", "ours_method": "hmc_v1"}
    assert printed("filippone2013", "Table 2", **own, **ess) == pytest.approx(100 * 1384 / 20000)
    own = {"dataset": "lrg_100_10", "ours_method": "sa_hmc"}
    assert printed("filippone2013", "Table 3", **own, **ess) == pytest.approx(100 * 830 / 20000)
    own = {"dataset": "ord_100_2", "ours_method": "aa_smmala"}
    assert printed("filippone2013", "Table 4", **own, **ess) == pytest.approx(100 * 3356 / 20000)
    own = {"dataset": "ionosphere", "ours_method": "khr"}
    assert printed("filippone2013", "Table 6", **own, **ess) == pytest.approx(100 * 2 / 20000)
    own = {"dataset": "probit_50_10", "ours_method": "la_1_ard"}
    assert printed("filippone2014", "Table 1", **own, **ess) == pytest.approx(100 * 19 / 10000)
    assert printed("filippone2014", "Table 1", **own, ours_metric="acceptance_theta") == pytest.approx(0.071)
    assert printed("filippone2014", "Table 1", **own, ours_metric="r_hat_classic_10000") == 1.17
    own = {"dataset": "probit_200_2", "ours_method": "ep_64_20_ard"}
    assert printed("filippone2014", "Table 3", **own, ours_metric="ess_percent_per_cubic") == pytest.approx(3.38 / 20)
    own = {"dataset": "regions", "ours_method": "mkl"}
    assert printed("filippone2012", "Table 5", **own, ours_metric="balanced_accuracy") == 0.229


def test_effective_draws_and_operations_agree_with_their_ratio():
    """filippone2014 prints draws, operations and draws per operation, each rounded."""
    rows = ROWS[(ROWS["source"] == "filippone2014") & ROWS["item"].isin(["Table 2", "Table 3"])]
    pm = rows[rows["ours_method"].str.startswith("ep_")]
    by_metric = {name: own.set_index(["dataset", "ours_method"]) for name, own in pm.groupby("ours_metric")}
    ratios = by_metric["ess_percent_per_cubic"]["value"]
    for (dataset, method), ratio in ratios.items():
        draws = by_metric["ess_percent"].loc[(dataset, method), "value"]
        every = "|".join(f"ep_{number}{method.removeprefix('ep_64_20')}" for number in (1, 16, 64))
        operations = by_metric["cubic"].loc[(dataset, every), "value"]
        np.testing.assert_allclose(draws / operations, ratio, rtol=0.01, atol=0.5)
