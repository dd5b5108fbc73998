"""Published numbers: every row of ten papers, its place in a study or the reason why it has none."""

import re
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import yaml

from gpbench import config
from gpbench.errors import UserError
from gpbench.evaluation.metrics import METRICS
from gpbench.report.scorecard.counterparts import ANY
from gpbench.report.scorecard.published import read_published
from gpbench.report.view import View
from gpbench.study.planning.variants import expand

ROOT = Path(__file__).parents[2]
ROWS = read_published(ROOT / "published")
UNKNOWN_TO_IPVI = ("boston", "concrete", "energy", "kin8nm", "power", "protein")
ON_ORDINAL = ("mh_v1", "mh_v2", "elliptical", "smmala", "hmc_v1", "hmc_v2", "aa_mh", "aa_hmc", "aa_smmala")
SIZES = ("100_2", "100_10", "400_2", "400_10")
# rows of each table, figure or section
ITEMS = {
    "ashman2020": {
        **{"Table 1": 16, "Table 2": 10, "Table 3": 10, "Table 4": 8 * 8, "Table 5": 8 * 8},
        **{"result files": 9 * (4 + 2), "footnote 4": 1, "text 5.1": 6, "text 5.2": 6},
    },
    "cutajar2016": {"Figure 1": 1},
    "cutajar2017": {
        **{"Table 1": 8, "section 4.1": 7, "section 4.2": 3, "section 4.3": 2},
        **{"Table 1 (first version)": 8, "Table 2 (first version)": 8, "section 3.2 (first version)": 1},
    },
    "filippone2012": {
        **{"Table 2": 2 * 6, "Table 3": 8 * 3 + 7 * 3, "Table 4": 2 * 6, "Table 5": 9 * 3 + 8 * 3, "Figure 4": 2},
        **{"text 5": 11, "text 6.1": 3, "text 6.2": 3, "text 6.3": 6},
    },
    "filippone2013": {
        **{"Table 1": 14 * 3, "Table 2": 6 * 16 * 2, "Table 3": 3 * 4 * 2, "Table 4": 3 * 16 * 2, "Table 6": 5 * 4},
        **{"Table 5": 5 * 4 * 2 + 5 * 2, "text 4.1": 1, "text 4.3": 1},
    },
    "filippone2014": {
        **{"Table 1": 8 * 8 * 6, "Table 2": 4 * 8, "Table 3": 3 * 8 * 6},
        **{"text 2.1.2": 1, "text 4.2": 1, "text 4.4": 2, "text 5.4": 1},
    },
    "filippone2015": {"section 5.1": 2, "section 5.2": 3},
    "hensman2015mcmc": {
        **{"Figure 2": 2, "Figure 7": 8, "Figure 8": 4, "Figure 9": 8},
        **{"section 4.3": 7, "section 4.4": 5},
    },
    "rossi2021": {
        **{"Table 2": 9, "Table 3": 9, "Table 4": 10 * 3, "Table 5": 8 * 16, "Table 6": 8 * 16, "text 4.3": 3},
        **{"text 4.4": 2, "Figure 3": 80, "Figures 3 and 4": 8, "Figure 4": 16, "Figure 6": 16, "Figure 8": 14},
        **{"Figure 10": 4},
    },
    "urbainczyk2025": {"Table 1": 8, "Figure 2": 1, "text 4.1": 10, "text 4.2": 2},
}
# not printed: read in the authors' public result files
FILES = {"result files", "Figure 3", "Figures 3 and 4", "Figure 4", "Figure 6", "Figure 8", "Figure 10"}
FACT = "a fact of the data, not a score"
# runs that a printed mean is over: chains x data sets of samplers; an R-hat is one number a data set
RUNS = {
    ("filippone2013", "filippone2013"): {100},
    ("filippone2013", "filippone2013_real"): {10},
    ("filippone2014", "filippone2013"): {10, 1},
    ("ashman2020", "ashman2020"): {20, 1},
    ("rossi2021", "rossi2021"): {8, 1},
    ("cutajar2017", "cutajar2017"): {3, 1},
    ("hensman2015mcmc", "hensman2015mcmc"): {10, 1},
    ("filippone2012", "private scans"): {4, 1},
    ("urbainczyk2025", "urbainczyk2025"): {1},
    ("filippone2015", "all_rows"): {1},
}

INDUCING = (50, 75, 100, 125)


@cache
def cells(study: str) -> tuple[set[str], set[str], str, list[str]]:
    """Methods, data sets and protocol of a study, and the papers whose numbers it prints."""
    content = config.compose(ROOT / "conf", "study", study)
    return set(expand(content)), set(content.datasets), content.protocol, content.published


@pytest.mark.parametrize("paper", ITEMS)
def test_every_number_of_a_paper_is_here(paper):
    assert ROWS[ROWS["source"] == paper].groupby("item").size().to_dict() == ITEMS[paper]


def test_all_papers_are_here_under_their_keys_and_no_row_twice():
    bibliography = set(re.findall(r"^@\w+\{(\w+),", (ROOT / "conf" / "references.bib").read_text(), re.MULTILINE))
    assert set(ROWS["source"]) == set(ITEMS) <= bibliography
    for path in (ROOT / "published").glob("*.csv"):
        assert set(pd.read_csv(path)["source"]) == {path.stem}
    assert not ROWS.duplicated(["source", "item", "dataset", "method_printed", "setting", "metric_printed"]).any()
    printed = ROWS[~ROWS["item"].isin(FILES) | ~ROWS["source"].isin(["ashman2020", "rossi2021"])]
    assert len(printed) == 1720


def test_a_row_has_a_cell_of_a_study_or_a_reason():
    """Its method, data set and protocol are in that study, so it would be judged; else the reason says why not.

    Both: it is shown beside ours, which is known to differ or counts elsewhere, and not judged.
    """
    placed = ROWS["study"] != ""
    assert (placed | (ROWS["reason"] != "")).all()
    both = ROWS[placed & (ROWS["reason"] != "")]
    repeated = both["reason"] == "a repeat of the row of Table 5"
    assert set(zip(both[repeated]["item"], both[repeated]["ours_method"], strict=True)) == {("Figure 3", "svgp_100")}
    both = both[~repeated]
    assert set(zip(both["source"], both["ours_method"], both["dataset"], strict=True)) == {
        ("cutajar2017", "ep_1", "spambase"),
        ("cutajar2017", "ep_1", "eeg"),
        *(("urbainczyk2025", f"{name}_{m}", "fashion_mnist_vae") for name in ("sparse_gp", "stride") for m in INDUCING),
        # whose settings no document holds
        *(("rossi2021", f"ipvi_dgp_{depth}", name) for depth in range(1, 6) for name in UNKNOWN_TO_IPVI),
        *(("filippone2013", method, f"ord_{size}") for method in ON_ORDINAL for size in SIZES),
        *(("urbainczyk2025", name, "energy") for name in ("deep_gp_mcmc", "stride", "stride_aca", "stride_sparse")),
    }
    for row in ROWS[placed].itertuples():
        methods, datasets, protocol, papers = cells(row.study)
        assert methods & set(row.ours_method.split("|")), row
        assert row.dataset in datasets or row.dataset == ANY, row
        assert row.protocol == protocol, row
        assert row.source in papers, row


def test_a_row_without_a_study_has_a_cell_of_none():
    """Under its protocol; else a run of that study would make ours, and the row says that none does."""
    studies = {name: cells(name) for name in config.options(ROOT / "conf", "study")}
    for row in ROWS[(ROWS["study"] == "") & (ROWS["ours_method"] != "")].itertuples():
        for name, (methods, datasets, protocol, papers) in studies.items():
            cell = bool(methods & set(row.ours_method.split("|"))) and row.dataset in datasets
            assert not (cell and row.protocol == protocol and row.source in papers), (name, row)


def test_counterparts_are_methods_of_some_study():
    known = set().union(*(cells(study)[0] for study in config.options(ROOT / "conf", "study")))
    for names in ROWS.loc[ROWS["ours_method"] != "", "ours_method"].unique():
        assert set(names.split("|")) <= known, names


def test_numbers_have_a_metric_a_unit_and_a_number_of_runs():
    assert set(ROWS["ours_metric"]) <= {*METRICS, ""}
    assert (ROWS.loc[ROWS["ours_metric"] == "", "ours_method"] == "").all()
    assert set(ROWS["scale"]) == {"original", "standardised"}
    # percent, effective draws of 20,000 or 10,000 in percent of draws, the same of 20 updates, hours, or a sign turned
    assert set(ROWS["factor"]) == {1, -1, 0.01, 100 / 20000, 0.01 / 20, 3600}
    logs = ROWS["metric_printed"].eq("test_loglik")
    assert (ROWS.loc[logs, "factor"] == -1).all()
    assert (ROWS.loc[ROWS["factor"] == -1, "ours_metric"] == "mnll").all()
    assert set(ROWS["spread_kind"].dropna()) == {"population sd", "sample sd", "standard error"}
    assert (ROWS["spread"].notna() == ROWS["spread_kind"].notna()).all()
    assert (ROWS["splits"] >= 1).all()
    assert ((ROWS["splits"] > 1) | ROWS["spread"].isna()).all()
    measured = (ROWS["ours_method"] != "") & (ROWS["dataset"] != ANY)  # on any data set a formula counts operations
    for key, own in ROWS[measured].groupby(["source", "protocol"]):
        assert set(own["splits"]) == RUNS[key], key
    assert set(ROWS.loc[ROWS["value"].isna(), "reason"]) == {"printed as a formula"}


def test_what_comes_later_says_what_it_needs():
    reasons = ROWS.loc[ROWS["dataset"] == "census_house_8l", "reason"]
    assert len(reasons) == 3
    assert reasons.str.startswith("later: needs ").all()


def test_sizes_that_papers_print_are_those_of_the_catalogue():
    """But for flights of all of 2008 (here January to April) and what one paper calls concrete (see docs/errata.md)."""

    def held_out(dataset):
        rows = config.compose(ROOT / "conf", "protocol", "rossi2021").splits.test_rows
        return dataset.rows - dataset.train_rows if dataset.train_rows else rows[dataset.name]

    ours = {
        "n_points": lambda d: d.rows,
        "d_in": lambda d: d.columns,
        "d_out": lambda d: len(d.classes) or len(d.source.targets),
        "n_train": lambda d: d.train_rows,
        "n_test": held_out,
    }
    differ = set()
    for name, rows in ROWS[ROWS["reason"] == FACT].groupby("dataset"):
        if name == "fashion_mnist_vae":
            continue
        dataset = config.compose(ROOT / "conf", "dataset", name)
        for row in rows.itertuples():
            if row.value != ours[row.metric_printed](dataset):
                differ.add((row.source, name, row.metric_printed))
    assert differ == {("rossi2021", "airline", "n_points"), ("urbainczyk2025", "concrete", "n_points")}


def printed(source: str, item: str, **named: str) -> float:
    """One number, in the unit of our metric."""
    rows = ROWS[(ROWS["source"] == source) & (ROWS["item"] == item)]
    for key, value in named.items():
        rows = rows[rows[key] == value]
    (found,) = rows.to_dict("records")
    return found["factor"] * found["value"]


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


LINE = "x2020,Table 1,boston,Linear,,test_mnll,common,original,{value},,,1,1,linear,{metric},1,,,\n"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (LINE.format(value="abc", metric="mnll"), "line 2, column 'value': 'abc' is not a finite number"),
        (LINE.format(value="inf", metric="mnll"), "line 2, column 'value': 'inf' is not a finite number"),
        (LINE.format(value="1", metric="mnl"), "unknown metric 'mnl' in ours_metric of .*; did you mean 'mnll'"),
        (LINE.format(value="1", metric="mnll") * 2, "line 3: another line has the same source, item, dataset"),
        (LINE.replace("1,1,linear", "0,0,linear").format(value="1", metric="mnll"), "line 2: splits cannot be 0"),
        (LINE.replace("1,linear", "2,linear").format(value="1", metric="mnll"), "line 2: data_sets cannot be 2"),
        (LINE.replace("1,,,", "0,,,").format(value="1", metric="mnll"), "line 2: factor cannot be 0"),
        (LINE.replace(",,,1,", ",-2,sample sd,1,").format(value="1", metric="mnll"), "line 2: spread cannot be -2"),
        (LINE.replace(",,,1,", ",2,popsd,1,").format(value="1", metric="mnll"), "spread_kind cannot be popsd .one of"),
        (
            LINE.replace("original", "orignal").format(value="1", metric="mnll"),
            "scale cannot be orignal .one of",
        ),
        (LINE.replace("original", "standardised").format(value="1", metric="mnll"), "scale cannot be standardised"),
        (LINE.format(value="1", metric="rmse_scaled"), "line 2: scale cannot be original .*rmse_scaled or mnll_scaled"),
        (LINE.replace("x2020", "x2021").format(value="1", metric="mnll"), "line 2: source cannot be x2021"),
        (LINE.format(value="1,0", metric="mnll"), "its lines have more cells than its header"),
        ("é\n", "cannot be read as a CSV: 'utf-8' codec"),
        (None, "cannot be read as a CSV: No columns to parse"),
    ],
)
def test_a_file_that_holds_no_published_numbers_is_one_line(tmp_path, text, said):
    header = (ROOT / "published/cutajar2016.csv").read_text().splitlines(True)[0]
    (tmp_path / "x2020.csv").write_bytes("".join((header, text)).encode("latin-1") if text else b"")
    with pytest.raises(UserError, match=said):
        read_published(tmp_path)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"study": "ashman2020_uc"}, "unknown study 'ashman2020_uc' in .*ashman2020.csv, .*; did you mean"),
        ({"dataset": "bostn"}, "unknown dataset 'bostn' in .*; did you mean 'boston'"),
        ({"protocol": "comon"}, "unknown protocol 'comon' in .*; did you mean 'common'"),
    ],
)
def test_what_a_row_names_is_in_the_configuration(tmp_path, change, said):
    rows = pd.read_csv(ROOT / "published" / "ashman2020.csv", dtype=str)
    rows[rows["study"].notna()].head(1).assign(**change).to_csv(tmp_path / "ashman2020.csv", index=False)
    with pytest.raises(UserError, match=said):
        read_published(tmp_path, ROOT / "conf")


def test_scores_by_split_have_the_means_that_are_printed():
    """But for misprints (the sheets of errata name them) and files of fewer splits than the paper's."""
    misprints = {("SGP 500", "concrete", "rmse"), ("SGP 500", "energy", "rmse"), ("DSVI-2", "power_sheet1", "mnll")}
    short = {("SGP 100", "kin8nm"), ("DSVI-3", "protein"), ("DSVI-5", "power_sheet1"), ("DSVI-5", "wine_red")}
    rows = ROWS[ROWS["by_split"].map(len) > 0]
    # tables 4 and 5, of one lengthscale log likelihoods alone, not of all sets; tables 5 and 6, figure 3
    assert rows.groupby("source").size().to_dict() == {
        "ashman2020": 7 * 7 * 2 + 2 * 7 - 1 + 2 * 3,
        "rossi2021": 6 * (2 + 3),
    }
    complete = 0
    for row in rows.to_dict("records"):
        scores = row["by_split"]
        if len(scores) < row["splits"] - (row["dataset"] == "boston" and row["source"] == "ashman2020"):
            assert (row["method_printed"], row["dataset"]) in short
            continue
        complete += 1
        difference = abs(np.mean([*scores.values()]) - row["factor"] * row["value"])
        known = (row["method_printed"], row["dataset"], row["ours_metric"]) in misprints
        assert (difference <= 1.001 * row["rounding"]) is not known, row["method_printed"] + row["dataset"]
    assert complete == len(rows) - 7


@pytest.mark.parametrize(
    ("paper", "run", "method"),
    [
        ("ashman2020", "ashman2020_uci-b332f7", {"SGP 100": "sgp_100", "SGP 500": "sgp_500"}),
        ("rossi2021", "rossi2021_ablation-896f37", {"SVGP 100": "svgp_100", "SVGP 10": "svgp_10"}),
    ],
)
def test_splits_that_are_paired_are_ours(paper, run, method):
    """On the data sets that the files name, released scores of a sparse GP vary over splits as ours do."""
    view = View(ROOT / "docs/results" / run)
    files = sorted((ROOT / "published/per_split").glob(f"{paper}_*.yaml"))
    released = {path.stem: pd.read_csv(path.with_suffix(".csv")).set_index(["dataset", "split"]) for path in files}
    for path in files:
        for dataset, shown in config.printed_splits(path.parent, path.stem).paired.items():
            words = re.fullmatch(r"(\S+) over (\d+) splits \((.+)\)", shown)
            ours = view.per_split("mnll", dataset)[method[words[3]]]
            theirs = released[f"{paper}_{method[words[3]]}"].loc[dataset]["mnll"]
            both = pd.concat([ours, theirs], axis=1, join="inner").dropna()
            assert (len(both), f"{both.corr().iloc[0, 1]:.2f}") == (int(words[2]), words[1])
            assert float(words[1]) > 0.7


@pytest.mark.parametrize("inducing", [100, 500])
def test_printed_sparse_gps_of_ashman2020_have_one_lengthscale(inducing):
    """Over splits they vary as ours with one for all inputs do, and less as ours with one for each."""
    path = ROOT / f"published/per_split/ashman2020_sgp_{inducing}.csv"
    released = pd.read_csv(path).set_index(["dataset", "split"])["mnll"]
    one, each = (View(ROOT / f"docs/results/ashman2020_uci-{run}") for run in ("cfe829", "b332f7"))
    for dataset in ["boston", "concrete", "wine_red", *(["kin8nm", "power_sheet1"] if inducing == 100 else ["energy"])]:
        scores = {
            "theirs": released[dataset],
            "one": one.per_split("mnll", dataset)[f"sgp_{inducing}_iso"],
            "each": each.per_split("mnll", dataset)[f"sgp_{inducing}"],
        }
        correlation = pd.DataFrame(scores).dropna().corr()["theirs"]
        assert correlation["one"] > max(correlation["each"], 0.9 if dataset != "boston" else 0.5)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"printed": "SVGP L=1 M=7"}, "no score or no row 'SVGP L=1 M=7' of boston"),
        ({"reference": "nobody2020"}, "no score or no row"),
        ({"protocol": "common"}, "no score or no row"),
        ({"paired": {"bostn": "checked"}}, "no score or no row 'SVGP L=1 M=100' of bostn"),
    ],
)
def test_scores_by_split_of_no_row_are_refused(tmp_path, change, said):
    (tmp_path / "rossi2021.csv").write_text((ROOT / "published/rossi2021.csv").read_text())
    folder, name = tmp_path / "per_split", "rossi2021_svgp_100"
    folder.mkdir()
    whose = yaml.safe_load((ROOT / f"published/per_split/{name}.yaml").read_text())
    (folder / f"{name}.csv").write_text((ROOT / f"published/per_split/{name}.csv").read_text())
    with pytest.raises(UserError, match="unknown scores by split"):
        read_published(tmp_path)
    (folder / f"{name}.yaml").write_text(yaml.safe_dump(whose))
    assert (read_published(tmp_path)["by_split"].map(len) > 0).sum() == 18
    (folder / f"{name}.yaml").write_text(yaml.safe_dump(whose | change))
    with pytest.raises(UserError, match=said):
        read_published(tmp_path)
