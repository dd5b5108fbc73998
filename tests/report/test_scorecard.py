import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy.stats import ttest_ind_from_stats
from synthetic_study import build

from gpbench import config
from gpbench.errors import UserError
from gpbench.evaluation.metrics import METRICS
from gpbench.report.figures import write_figure
from gpbench.report.figures.curves import QUOTED
from gpbench.report.scorecard import (
    COLUMNS,
    judge,
    margin,
    read_published,
    sample_sd,
    scorecard,
    to_table,
    welch_interval,
    write_scorecard,
)
from gpbench.report.view import View
from gpbench.study.variants import expand

PUBLISHED = Path(__file__).parents[2] / "published"


def row(view, **changes):
    """A printed number that equals ours exactly, with a small spread."""
    cell = view.cells("mnll").set_index(["method", "dataset"]).loc[("svgp", "boston")]
    base = dict.fromkeys(COLUMNS, "") | {"source": "someone2020", "item": "Table 1", "dataset": "boston"}
    base |= {"protocol": "common", "value": -cell["mean"], "spread": 0.001, "spread_kind": "sample sd"}
    base |= {"splits": 5, "ours_method": "svgp", "ours_metric": "mnll", "factor": -1}
    return base | changes


def verdict(view, **changes):
    return scorecard(view, pd.DataFrame([row(view, **changes)])).iloc[0]["verdict"]


@pytest.mark.parametrize(
    ("lower", "upper", "direction", "expected"),
    [
        (-0.04, 0.05, "min", "agrees"),
        (-0.06, 0.01, "min", "inconclusive"),
        (-0.2, -0.06, "min", "better"),
        (-0.2, -0.06, "max", "worse"),
        (0.06, 0.2, "min", "worse"),
        (0.06, 0.2, "max", "better"),
        (0.01, 0.2, "min", "inconclusive"),
        (-1.0, 1.0, "min", "inconclusive"),
        (np.nan, np.nan, "min", "inconclusive"),
    ],
)
def test_verdict_follows_interval_and_margin(lower, upper, direction, expected):
    assert judge(lower, upper, 0.05, direction) == expected


def test_margins_are_those_stated():
    assert margin("mnll", -3.0) == 0.05
    assert margin("rmse", 3.0) == pytest.approx(0.15)


def test_other_protocols_and_other_splits_are_not_judged(view):
    assert verdict(view, protocol="ashman2020", splits=20) == "other protocol (common, 5 splits; theirs 20)"
    assert verdict(view, splits=20) == "other protocol (5 of 20 splits)"
    found = scorecard(view, pd.DataFrame([row(view, splits=20)])).iloc[0]
    assert found["difference"] == pytest.approx(0, abs=1e-12)


def test_what_was_not_run_says_why(view):
    assert verdict(view, ours_method="", reason="method not built yet") == "not run: method not built yet"
    assert verdict(view, dataset="naval") == "not run: svgp on naval is not in this study"
    assert verdict(view, ours_method="sgp|gp") == "not run: sgp or gp on boston is not in this study"
    found = verdict(view, ours_method="dgp_rff", dataset="yacht")
    assert found.startswith("not run: failed: layer 1: Cholesky failed")


def test_a_number_stands_for_the_method_that_the_study_has(view):
    """`svgp` is what one study calls it, `sgp_100` another; the card says which it found."""
    card = scorecard(view, pd.DataFrame([row(view, ours_method="sgp_100|svgp"), row(view, ours_method="sgp_100")]))
    assert card["ours_method"].tolist() == ["svgp", "sgp_100"]
    assert card["ours_n"].tolist() == [5, 0]


def test_a_study_may_ask_for_no_published_numbers(tmp_path):
    folder = build(tmp_path / "s", ["svgp"], ["boston"])
    study = json.loads((folder / "study.json").read_text())
    (folder / "study.json").write_text(json.dumps(study | {"published": []}))
    write_scorecard(View(folder), PUBLISHED, folder)
    assert pd.read_csv(folder / "scorecard.csv").empty
    assert "asks for none" in (folder / "scorecard.md").read_text()
    for name in ("scorecard", "convergence", "log_density"):
        assert len(write_figure(View(folder), name, folder / "figures")) == 2


def test_same_splits_are_judged(tmp_path):
    view = View(build(tmp_path / "s", ["svgp"], ["boston"]))
    scores = pd.read_parquet(view.folder / "scores.parquet")
    scores["mnll"] = 2.5 + 0.01 * np.array([-2, -1, 0, 1, 2])
    scores.to_parquet(view.folder / "scores.parquet")
    view = View(view.folder)
    assert verdict(view) == "agrees"
    assert verdict(view, value=-2.3) == "worse"
    assert verdict(view, value=-2.7) == "better"
    assert verdict(view, value=-2.55) == "inconclusive"


def test_factor_turns_a_log_likelihood_into_mnll(view):
    found = scorecard(view, pd.DataFrame([row(view, value=-2.458)])).iloc[0]
    assert found["published"] == pytest.approx(2.458)


def test_a_factor_scales_the_spread_too(view):
    found = scorecard(view, pd.DataFrame([row(view, value=240.0, factor=0.01, spread=3.0)])).iloc[0]
    assert (found["published"], found["published_sd"]) == (pytest.approx(2.4), pytest.approx(0.03))


def test_what_is_no_score_needs_no_metric(view):
    weight = {"ours_method": "", "ours_metric": "", "metric_printed": "kernel_weight", "factor": 1, "value": 0.0}
    card = scorecard(view, pd.DataFrame([row(view, **weight, reason="a weight")]))
    assert card["verdict"].tolist() == ["not run: a weight"]
    assert to_table(card).shown["metric"].tolist() == ["kernel_weight"]
    with pytest.raises(UserError, match="published metric '' of someone2020 Table 1 is not in the registry"):
        scorecard(view, pd.DataFrame([row(view, ours_metric="")]))


def test_spreads_are_converted():
    values = np.array([1.0, 2.0, 4.0, 7.0])
    sd = values.std(ddof=1)
    assert sample_sd(values.std(ddof=0), "population sd", 4) == pytest.approx(sd)
    assert sample_sd(sd / 2, "standard error", 4) == pytest.approx(sd)
    assert np.isnan(sample_sd(np.nan, "", 4))
    with pytest.raises(UserError, match="spread_kind 'variance' is unknown"):
        sample_sd(1.0, "variance", 4)


def test_interval_is_welch_s():
    """scipy's Welch test: the interval touches 0 at exactly its p-value's level."""
    p = ttest_ind_from_stats(2.5, 0.2, 5, 2.3, 0.3, 8, equal_var=False).pvalue
    lower, upper = welch_interval(0.2, 0.2, 5, 0.3, 8, level=1 - p)
    assert lower == pytest.approx(0, abs=1e-9)
    assert upper == pytest.approx(0.4)
    assert np.isnan(welch_interval(0.2, 0.2, 1, 0.3, 8)).all()


def test_the_published_files_follow_the_schema():
    rows = read_published(PUBLISHED)
    filippone = {"filippone2012", "filippone2013", "filippone2014"}
    assert set(rows["source"]) == {"ashman2020", "cutajar2017", "hensman2015mcmc", "rossi2021"} | filippone
    assert set(rows["ours_metric"]) <= {*METRICS, ""}
    assert (rows.loc[rows["ours_metric"] == "", "ours_method"] == "").all()
    assert (rows.loc[rows["ours_method"] == "", "reason"] != "").all()
    assert not rows.duplicated(["source", "item", "dataset", "method_printed", "setting", "metric_printed"]).any()
    # ashman2020, Table 4
    printed = rows.query("item == 'Table 4' and method_printed == 'DSVI-2'").iloc[0]
    assert (printed["value"], printed["factor"], printed["ours_method"]) == (-2.458, -1, "dsvi|dsvi_2")


def test_ashman2020_is_complete():
    """Tables 4 and 5 have 8 data sets x 8 models, table 1 the year, tables 2 and 3 images without PBP and deeper ones;
    isotropic kernels and deeper AEP are in the authors' result files."""
    rows = read_published(PUBLISHED).query("source == 'ashman2020'")
    counts = rows.groupby("item").size().to_dict()
    assert counts == {
        **{"Table 1": 16, "Table 2": 10, "Table 3": 10, "Table 4": 64, "Table 5": 64},
        **{"result files": 9 * (4 + 2), "footnote 4": 1},
    }
    repaired = rows[rows["note"].str.contains("minus sign")]
    assert repaired[["dataset", "value"]].to_numpy().tolist() == [["concrete", -3.097], ["power", -2.727]]
    assert set(rows.query("method_printed == 'PBP' and item != 'Table 5'")["reason"]) == {QUOTED}
    # those errors look like the column of another method, and are not drawn
    assert set(rows.query("method_printed == 'PBP' and item == 'Table 5'")["reason"]).isdisjoint({QUOTED, ""})
    assert set(rows.loc[rows["splits"] == 1, "dataset"]) == {"year", "mnist", "rectangles_images"}


@pytest.mark.parametrize("paper", sorted(path.stem for path in PUBLISHED.glob("*.csv")))
def test_every_counterpart_is_a_method_of_a_study(paper):
    """A name that no study uses would never meet its number."""
    conf = PUBLISHED.parent / "conf"
    studies = [config.compose(conf, "study", name) for name in config.options(conf, "study")]
    known = {name for study in studies if study.published is None or paper in study.published for name in expand(study)}
    rows = read_published(PUBLISHED).query("source == @paper and ours_method != ''")
    for names in rows["ours_method"]:
        assert set(names.split("|")) & known, names


def test_a_wrong_column_is_reported(tmp_path):
    read_published(PUBLISHED).rename(columns={"spread": "std"}).to_csv(tmp_path / "x2020.csv", index=False)
    with pytest.raises(UserError, match=r"x2020.csv: columns differ .*'spread', 'std'"):
        read_published(tmp_path)
    with pytest.raises(UserError, match="no published numbers"):
        read_published(tmp_path / "absent")


def test_files_hold_every_row(view, tmp_path):
    write_scorecard(view, PUBLISHED, tmp_path)
    rows = len(read_published(PUBLISHED))
    assert len(pd.read_csv(tmp_path / "scorecard.csv")) == rows
    assert len(json.loads((tmp_path / "scorecard.json").read_text())) == rows
    assert (tmp_path / "scorecard.html").read_text().count("<tr>") == rows + 1
    assert "not run: quoted from other work" in (tmp_path / "scorecard.md").read_text()
