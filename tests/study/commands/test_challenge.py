"""`gpbench challenge`: predictions of another program are scored as ours are, stand beside them, or are refused."""

import contextlib
import shutil
from dataclasses import replace
from io import StringIO
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

import gpbench as api
from gpbench import places
from gpbench.cli import main
from gpbench.errors import UserError
from gpbench.evaluation.metrics import METRICS
from gpbench.report.export import citations
from gpbench.report.view import View
from gpbench.study import scoring
from gpbench.study.commands import challenge as challenging
from gpbench.study.planning import plan as planning
from gpbench.study.results import collect
from gpbench.study.storage import challengers
from projects import copy_project

SETS = {"diabetes": ("linear", [0, 1]), "wdbc": ("linear", [0])}
STUDY = "methods=[constant,linear] datasets=[diabetes,wdbc] splits=2 splits_of={wdbc:1} budget=smoke"


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """A project with fits of two methods on a regression and on classes."""
    with pytest.MonkeyPatch.context() as patch:
        root = copy_project(tmp_path_factory.mktemp("challenge") / "project")
        patch.setenv("GPBENCH_ROOT", str(root))
        patch.setenv("CI", "1")
        for dataset, (_, splits) in SETS.items():
            for method in ("constant", "linear"):
                for split in splits:
                    api.fit(method, dataset, split, budget="smoke")
        yield root


@pytest.fixture
def challenge(root, monkeypatch, capfd, tmp_path):
    """Run the command on a frame; what it left, and whether the project changed."""
    monkeypatch.setenv("GPBENCH_ROOT", str(root))

    def run(frame: pd.DataFrame, name: str, *words: str):
        path = tmp_path / f"{name}.csv"
        frame.to_csv(path, index=False)
        capfd.readouterr()
        code = main.main(["challenge", str(path), *words])
        return code, *capfd.readouterr()

    return run


def ours(root: Path, dataset: str, split: int) -> tuple[pd.DataFrame, pd.Series]:
    """Points and scores of our linear model."""
    scores = api.fit("linear", dataset, split, budget="smoke")
    return pd.read_parquet(root / "store" / scores["fit_id"] / "points.parquet"), scores


def predictions(root: Path, columns: dict[str, str], dataset: str = "diabetes") -> pd.DataFrame:
    """Those of our linear model as another program would write them, rows in another order."""
    parts = []
    for split in SETS[dataset][1]:
        points, _ = ours(root, dataset, split)
        named = points[["row", *columns]].rename(columns=columns)
        parts.append(named.assign(dataset=dataset, split=split))
    return pd.concat(parts).sample(frac=1, random_state=0)


REGRESSION = {
    "moments": {"y": "y", "mean": "mean", "sd": "sd"},
    "quantiles": {f"q{level:02d}": f"q{level:02d}" for level in (5, 25, 50, 75, 95)},
}


@pytest.mark.parametrize("kind", REGRESSION)
def test_our_own_predictions_get_our_own_scores(root, challenge, kind):
    frame = predictions(root, REGRESSION[kind]).astype({"row": float})  # as a program may write whole numbers
    code, out, err = challenge(frame, kind, "--label", "Theirs")
    assert (code, err) == (0, "")
    for split in (0, 1):
        _, scores = ours(root, "diabetes", split)
        theirs = scoring.of_challenger(root / "challengers" / kind / "diabetes" / str(split))
        metrics = theirs.keys()
        assert {"mnll", "crps", "rmse", "coverage_90", "pit_ks", "msll", "mnll_scaled"} <= metrics
        np.testing.assert_allclose([theirs[m] for m in metrics], [scores[m] for m in metrics], rtol=1e-6)
        assert f"{kind} on diabetes, split {split}: mnll {scores['mnll']:.4g}, rmse {scores['rmse']:.4g}" in out


def test_probabilities_of_classes_get_our_own_scores(root, challenge):
    frame = predictions(root, {"p0": "p_malignant", "p1": "p_benign"}, "wdbc")
    code, out, _ = challenge(frame, "classes")
    theirs = scoring.of_challenger(root / "challengers/classes/wdbc/0")
    scores = ours(root, "wdbc", 0)[1]
    assert (code, f"mnll {scores['mnll']:.4g}, error {scores['error']:.4g}\n" in out) == (0, True)
    assert challengers.about(places.find(), "classes").label == "classes", "its name, as it has no other"
    assert {"error", "brier", "ece", "auc"} <= theirs.keys()
    assert theirs == pytest.approx({metric: scores[metric] for metric in theirs})


@pytest.mark.parametrize("labels", [("p q", "x/y", "ü"), ("1", "2", "3"), ("NA", "None", "true")])
def test_classes_go_by_the_labels_that_are_printed_or_by_their_numbers(gpbench, labels):
    rows = (f"{i},{i % 7},{labels[i % 3]}\n" for i in range(60))
    Path("three.csv").write_text("a,b,y\n" + "".join(rows), encoding="utf-8")
    assert gpbench("data", "add", "three.csv", "--target", "y", "--task", "multiclass").code == 0
    printed = pd.read_csv(StringIO(gpbench("data", "splits", "three").out), dtype={"y": str}, keep_default_na=False)
    assert set(printed["y"]) == set(labels)
    frame = printed[printed["part"] == "test"].assign(**{f"p_{label}": 1 / 3 for label in labels})
    numbers = frame["y"].map(labels.index)
    for name, y in (("labels", frame["y"]), ("numbers", numbers), ("floats", numbers.astype(float))):
        frame.assign(y=y).to_csv(f"{name}.csv", index=False)
        answer = gpbench("challenge", f"{name}.csv")
        assert (answer.code, answer.err) == (0, "")
    row, true = frame["row"].iloc[0], frame["y"].iloc[0]
    others = frame["y"].map(dict(zip(labels, [*labels[1:], labels[0]], strict=True)))
    for y, other in ((others, others.iloc[0]), (numbers.where(frame["row"] != row, 7), "7")):
        frame.assign(y=y).to_csv("wrong.csv", index=False)
        assert f"y of row {row} is {other}, ours is " in (said := gpbench("challenge", "wrong.csv").err)
    assert said.endswith(f"ours is {labels.index(true)}; are the rows ours?\n")


def test_quantiles_may_stand_in_any_order():
    frame = pd.DataFrame({"q95": [1.6, 2.6], "y": [0.0, 1.0], "q5": [-1.6, -0.6], "q50": [0.0, 1.0]})
    columns, given_as = challenging._kind(frame, SimpleNamespace(classes=[]), "mine.csv")
    assert columns == ["q5", "q50", "q95"]
    assert given_as(frame[columns].to_numpy()).mean().ravel() == pytest.approx([0.0, 1.0])


def test_samples_come_near(root, challenge):
    frame = predictions(root, REGRESSION["moments"]).reset_index(drop=True)
    drawn = np.random.default_rng(0).normal(frame["mean"], frame["sd"], (500, len(frame)))
    named = pd.DataFrame(drawn.T, columns=[f"s{i}" for i in range(500)])
    assert challenge(pd.concat([frame[["dataset", "split", "row"]], named], axis=1), "drawn")[0] == 0
    theirs = scoring.of_challenger(root / "challengers/drawn/diabetes/0")
    assert theirs["mnll"] == pytest.approx(ours(root, "diabetes", 0)[1]["mnll"], abs=0.05)


def test_it_stands_beside_our_fits_and_is_marked(root, challenge, capfd):
    worse = predictions(root, REGRESSION["moments"]).assign(mean=lambda frame: frame["mean"] + 30)
    code, said, _ = challenge(worse, "rival", "--label", "Rival")
    assert (code, "overrides='challengers=[rival] datasets=[diabetes]'" in said) == (0, True)
    overrides = f"{STUDY} challengers=[rival]"
    compared = api.compare("default", overrides, "rmse")
    (row,) = compared[compared["method"] == "rival"].to_dict("records")
    assert (row["best"], row["n"], row["difference"] > 5) == ("linear", 2, True)
    (folder,) = (path.parent for path in (root / "results").glob("*/study.json"))
    view = View(folder)
    assert view.methods == ["constant", "linear", "rival"]
    assert view.labels["rival"] == "Rival (not ours)"
    assert set(view.points["method"]) == {"constant", "linear", "rival"}
    assert view.points.query("method == 'rival'")["pit"].notna().all()
    cited = citations.used(places.find(), view.fits["preset"].dropna().unique(), view.datasets, "common")
    assert "rival" not in " ".join(key + " ".join(texts) for key, texts in cited.items())
    # one split of two is no complete method
    assert challenge(worse[worse["split"] == worse["split"].min()], "some")[0] == 0
    assert "some" not in set(api.compare("default", f"{STUDY} challengers=[some]", "rmse")["method"])
    assert challenge(worse, "twin", "--label", "Rival")[0] == 0
    for words, said in (
        ("challengers=[rivall]", "did you mean 'rival'"),
        ("challengers=[rival,twin]", "challengers 'rival' and 'twin' have one label; add one of them by another"),
        ("challengers=[rival] datasets=[boston]", "challenger 'rival' predicts none of boston"),
    ):
        assert main.main(["plan", "--overrides", f"methods=[linear] {words}"]) == 1
        assert said in capfd.readouterr().err


def changed(**columns):
    return lambda frame: frame.assign(**{name: make(frame) for name, make in columns.items()})


REFUSED = {
    "negative sd": (changed(sd=lambda f: -f["sd"]), "sd must be positive"),
    "NaN": (changed(mean=lambda f: f["mean"].where(f.index > 0)), "is not a finite number"),
    "truths": (changed(mean=lambda f: f["mean"] > 0), "column 'mean' holds True and False, which are not numbers"),
    "text": (changed(mean=lambda f: f["mean"].astype(str) + "a"), "mean of row "),
    "a row of training": (changed(row=lambda f: f["row"] + 1), "is not a test row of this split"),
    "rows are missing": (lambda f: f[f["split"] == 0].iloc[3:], "3 of 44 test rows are missing"),
    "a row twice": (lambda f: pd.concat([f, f.iloc[:1]]), "is predicted more than once"),
    "rows in another order": (changed(y=lambda f: f["y"].iloc[::-1].to_numpy()), "are the rows ours?"),
    "an sd without a square": (changed(sd=lambda f: 1e300), "a mean or sd is too large to be scored"),
    "y is text": (changed(y=lambda f: "a"), "is a, ours is "),
    "no such split": (changed(split=lambda f: f["split"] + 40), "has splits 0 to 19, not 40"),
    "no such data set": (changed(dataset=lambda f: "diabetis"), "unknown dataset 'diabetis'"),
    "no column row": (lambda f: f.drop(columns="row"), "columns ['row'] are missing"),
    "no numbers": (lambda f: f.drop(columns="sd"), "found none of them"),
    "two kinds": (changed(q05=lambda f: 0.0), "found mean and sd and quantiles"),
    "split is no number": (changed(split=lambda f: "zero"), "'split' must hold whole numbers"),
    "a row beyond all integers": (
        changed(row=lambda f: f["row"].astype(str) + "e30"),
        "line 2: column 'row' must hold whole numbers",
    ),
    "quantiles that rounding makes equal": (
        lambda f: f.drop(columns=["mean", "sd"]).assign(q05=0.0, q95=1e-320),
        ": quantiles must increase with their level",
    ),
    "half a row": (changed(row=lambda f: f["row"] + 0.5), "line 2: column 'row' must hold whole numbers"),
    "empty": (lambda f: f.iloc[:0], "has no rows below its header"),
    "one sd is negative": (
        changed(sd=lambda f: f["sd"].where(f.index > 0, -1)),
        "sd must be positive; the smallest is -1",
    ),
    "quantiles as fractions": (
        lambda f: f.rename(columns={"mean": "q0.05", "sd": "q1"}),
        "quantiles are in percent (q05, q50, ...); found q0.05, q1",
    ),
    "a cell of dataset is empty": (
        changed(dataset=lambda f: f["dataset"].where(f.index > 2)),
        "line 2: the cell",
    ),
    "a number that is too large": (
        changed(mean=lambda f: f["mean"].where(f.index > 0, 1e200)),
        "cannot be scored",
    ),
    "a column twice": (lambda f: f.set_axis([*f.columns[:-1], "mean"], axis=1), "stand in the header more than once"),
}


@pytest.mark.parametrize(
    ("targets", "y", "same"),
    [
        (1e9 + np.arange(8.0), 1e9 + np.arange(8.0), True),
        (1e9 + np.arange(8.0), 1e9 + np.arange(8.0)[::-1], False),
        (np.arange(8.0), np.arange(8.0) + 0.1, False),
        (np.full(8, np.pi), np.full(8, np.float32(np.pi)), True),
        (np.append(np.arange(7) / 7e3, 1e3), np.append(np.arange(7)[::-1] / 7e3, 1e3), False),
    ],
)
def test_rounding_is_told_from_other_rows_by_the_spread_of_the_targets(targets, y, same):
    fold = SimpleNamespace(test=np.arange(8), targets=targets[:, None])
    part = pd.DataFrame({"row": fold.test, "y": y})
    with contextlib.nullcontext() if same else pytest.raises(UserError, match="are the rows ours?"):
        assert len(challenging._in_order(part, fold, "here")) == 8


def test_what_is_wrong_of_one_row_names_it(root, challenge):
    frame = predictions(root, REGRESSION["moments"]).reset_index(drop=True)
    frame.loc[7, "sd"] = 0.0
    place = f"diabetes split {frame.loc[7, 'split']}, row {frame.loc[7, 'row']}: sd must be positive"
    assert place in challenge(frame, "wrong")[2]
    others, place = frame.drop(columns=["mean", "sd"]), f"diabetes split {frame['split'].min()}"
    first = ours(root, "diabetes", 0)[0]["row"].iloc[0]
    crossed = challenge(others.assign(q05=1.0, q95=0.0), "wrong")[2]  # in all rows: the first is named
    assert f"{place}, row {first}: quantiles must increase with their level" in crossed
    assert f"{place}: levels must increase" in challenge(others.assign(q50=1.0), "wrong")[2]


def test_semicolons_and_compression_are_read_and_cells_beyond_the_header_are_not(root, challenge, tmp_path, capfd):
    frame = predictions(root, REGRESSION["moments"])
    frame.to_csv(tmp_path / "semicolons.csv.gz", sep=";", index=False)
    assert main.main(["challenge", str(tmp_path / "semicolons.csv.gz"), "--name", "semicolons"]) == 0
    lines = frame.to_csv(index=False).splitlines()
    (tmp_path / "longer.csv").write_text("\n".join([lines[0], *(f"{line},9" for line in lines[1:])]))
    capfd.readouterr()
    assert main.main(["challenge", str(tmp_path / "longer.csv")]) == 1
    assert "more cells than the header has names" in capfd.readouterr().err
    (tmp_path / "wide.csv").write_bytes(lines[0].encode("utf-16"))
    assert main.main(["challenge", str(tmp_path / "wide.csv")]) == 1
    assert "not UTF-8 (invalid start byte at byte 0); save it as a CSV in UTF-8" in capfd.readouterr().err


def test_one_that_was_damaged_or_removed_is_named(root, challenge, capfd):
    assert challenge(predictions(root, REGRESSION["moments"]), "gone")[0] == 0
    words = ["collect", "default", "--overrides", f"{STUDY} challengers=[gone]"]
    planning.freeze(planning.make(where := places.find(), "default", words[-1]), where)
    folder = where.challengers / "gone"
    for name in ("points.parquet", "facts.json"):
        (folder / "diabetes" / "0" / name).write_text("{}")
        assert main.main(words) == 1
        assert "challengers/gone/diabetes/0 is damaged (" in capfd.readouterr().err
    (folder / "about.json").write_text("[]")
    assert main.main(words) == 1
    assert "about.json is damaged or of an earlier edition (" in capfd.readouterr().err
    shutil.rmtree(folder)
    assert main.main(words) == 1
    assert "unknown challenger 'gone'" in capfd.readouterr().err


def test_a_changed_metric_scores_them_again(root, challenge, monkeypatch):
    assert challenge(predictions(root, REGRESSION["moments"]), "scored")[0] == 0
    before = scoring.of_challenger(folder := root / "challengers/scored/diabetes/0")
    metric = METRICS["crps"]
    monkeypatch.setitem(METRICS, "crps", replace(metric, function=lambda *words: 1000 + metric.function(*words)))
    assert scoring.of_challenger(folder) == before, "by the same code"
    monkeypatch.setattr(scoring, "digest", lambda: "another")
    assert scoring.of_challenger(folder) == pytest.approx(before | {"crps": before["crps"] + 1000})


def test_other_predictions_of_the_same_name_are_collected_again(root, challenge):
    frame, text = predictions(root, REGRESSION["moments"]), f"{STUDY} challengers=[again]"
    seen = []
    for shift in (0, 30):
        shutil.rmtree(root / "challengers/again", ignore_errors=True)
        assert challenge(frame.assign(mean=frame["mean"] + shift), "again")[0] == 0
        planning.freeze(plan := planning.make(where := places.find(), "default", text), where)
        seen.append(collect.seen(collect.Ended(where, plan.name), plan))
    assert seen[0] != seen[1]


def test_other_rows_or_splits_than_were_predicted_are_refused(root, challenge):
    assert challenge(predictions(root, REGRESSION["moments"]), "older")[0] == 0
    text = f"{STUDY} challengers=[older]"
    planning.make(places.find(), "default", text)
    for change in ("protocol.splits.seed=7", "protocol.targets='as they are'"):
        with pytest.raises(UserError, match=r"scaling of diabetes are not those that 'older' predicted; delete the"):
            planning.make(places.find(), "default", f"{text} {change}")


@pytest.mark.parametrize(("change", "said"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_scored_is_one_line_and_writes_nothing(root, challenge, change, said):
    before = sorted((root / "challengers").rglob("*"))
    code, out, err = challenge(change(predictions(root, REGRESSION["moments"]).reset_index(drop=True)), "wrong")
    assert (code, out, err.count("\n")) == (1, "", 1)
    assert said in err
    assert sorted((root / "challengers").rglob("*")) == before


def test_a_taken_name_is_refused(root, challenge):
    assert "'null' is not a name of a challenger" in challenge(predictions(root, REGRESSION["moments"]), "null")[2]
    assert "'linear' is the name of a method" in challenge(predictions(root, REGRESSION["moments"]), "linear")[2]
    (released := places.find().per_split / "theirs.yaml").parent.mkdir(parents=True, exist_ok=True)
    released.touch()
    assert "'theirs' is the name of a method" in challenge(predictions(root, REGRESSION["moments"]), "theirs")[2]
    released.unlink()
    challenge(predictions(root, REGRESSION["moments"]), "first")
    assert (
        "'first' was added before; choose another --name, or delete"
        in challenge(predictions(root, REGRESSION["moments"]), "first")[2]
    )
    drawn = challenge(predictions(root, REGRESSION["moments"]), "other", "--label", r"Model $\foo$")
    assert "must be one line of printed characters without a $, which figures take for" in drawn[2]
    for label in ("two\nlines", "one\n", " ", "\x1b[31mred", "\u202ereversed"):
        broken = challenge(predictions(root, REGRESSION["moments"]), "other", "--label", label)
        assert (broken[0], "must be one line" in broken[2]) == (1, True)


def test_splits_are_printed_for_other_programs(root, capfd):
    assert main.main(["data", "splits", "diabetes", "--split", "1", "0"]) == 0
    listed = pd.read_csv(StringIO(capfd.readouterr().out))
    assert list(listed.columns[:6]) == ["dataset", "split", "part", "row", "age", "sex"]
    points, _ = ours(root, "diabetes", 1)
    test = listed[(listed["split"] == 1) & (listed["part"] == "test")]
    np.testing.assert_array_equal(test["row"], points["row"])
    np.testing.assert_array_equal(test.iloc[:, -1], points["y"])
    assert len(listed) == 2 * 442
