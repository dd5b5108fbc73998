"""Scores that authors released for each split stand beside ours, on data whose splits are shown to be ours."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import yaml
from sklearn.model_selection import train_test_split

from gpbench import config, places
from gpbench.data import protocols
from gpbench.errors import UserError
from gpbench.report.export import citations
from gpbench.report.significance.comparisons import differences_to_best
from gpbench.report.view import View
from gpbench.study.planning import plan as planning
from gpbench.study.results import collect, printed_splits
from gpbench.study.storage import committed
from gpbench.study.storage.store import Store
from handmade import finish

RELEASED = Path(__file__).resolve().parents[3] / "published" / "per_split"
STUDY = "methods=[constant] datasets=[boston,diabetes] splits=3 per_split=[theirs]"


@pytest.fixture
def where(project):
    """A project with scores of three splits of two data sets, of which one is paired, and finished fits of both."""
    folder = project / "published" / "per_split"
    folder.mkdir(parents=True)
    whose = {"label": "Theirs (printed)", "reference": "gal2016", "protocol": "common", "paired": {"boston": "checked"}}
    (folder / "theirs.yaml").write_text(yaml.safe_dump(whose))
    lines = [f"{data},{split},{2 + 0.1 * split},{3 + split}" for data in ("boston", "diabetes") for split in range(4)]
    (folder / "theirs.csv").write_text("\n".join(["dataset,split,mnll,rmse", *lines]) + "\n")
    found = places.find()
    plan = planning.make(found, "default", STUDY)
    planning.freeze(plan, found)
    for cell in plan.cells:
        for fit in cell.fits:
            finish(Store(found.store), cell, fit)
    collect.collect(found, plan.name)
    return found, plan


def test_they_are_a_method_of_the_study_on_the_data_sets_that_are_shown_to_be_ours(where):
    view = View(where[0].results / where[1].name)
    assert view.methods == ["constant", "theirs"]
    assert view.labels["theirs"] == "Theirs (printed)"
    assert view.per_split("mnll", "boston")["theirs"].to_list() == [2.0, 2.1, 2.2]
    sizes = view.done[view.done["dataset"] == "boston"].groupby("method")[["n_train", "n_test"]].first()
    assert sizes.loc["theirs"].tolist() == sizes.loc["constant"].tolist()
    cells = view.cells("mnll").set_index(["method", "dataset"])["complete"]
    assert cells["theirs", "boston"]
    assert not cells.get(("theirs", "diabetes"), default=False)


def test_they_are_paired_with_ours_split_by_split(where):
    view = View(where[0].results / where[1].name)
    (row,) = differences_to_best(view, "mnll", "boston").to_dict("records")
    ours = view.per_split("mnll", "boston")["constant"]
    gap = ours - np.array([2.0, 2.1, 2.2])
    assert row["n"] == 3
    assert row["difference"] == pytest.approx(abs(gap.mean()))
    assert {row["method"], row["best"]} == {"constant", "theirs"}


def test_records_keep_them_and_they_are_no_fit_of_a_plan(where, gpbench):
    places_, plan = where
    new, total = collect.record(places_, plan)
    rows = committed.read(places_.root / "docs/results" / plan.name / "scores.csv")
    assert [row["family"] for row in rows].count("published") == 3
    assert (new, total) == (9, 9)
    assert set(planning.make(places_, "default", STUDY).states) == {fit.fit_id for _, fit in plan.fits}


def test_a_study_that_stands_beside_them_cites_them(where, gpbench):
    assert (
        "% released scores theirs (Theirs (printed))\n@inproceedings{gal2016,"
        in gpbench("cite", "default", "--overrides", STUDY).out
    )
    view = View(where[0].results / where[1].name)
    presets = view.fits["preset"].dropna().unique()
    assert "gal2016" in citations.used(where[0], presets, view.datasets, "common")


def test_another_protocol_or_name_is_refused_in_one_line(where):
    with pytest.raises(UserError, match="theirs has splits of protocol 'common', not 'rossi2021'"):
        planning.make(where[0], "default", f"{STUDY} protocol=rossi2021")
    with pytest.raises(UserError, match="unknown scores by split 'their'"):
        planning.make(where[0], "default", STUDY.replace("theirs", "their"))
    with pytest.raises(UserError, match="names the released scores 'theirs' and a method so"):
        planning.make(where[0], "default", STUDY.replace("methods=[", "methods=[theirs,"))


def test_the_released_splits_are_those_of_the_protocol():
    """The authors' files of indices were found equal to these draws, in order, one a split; round(0.9 n) rows train."""
    conf, whose = RELEASED.parents[1] / "conf", config.printed_splits(RELEASED, "gal2016dropout")
    released = pd.read_csv(RELEASED / "gal2016dropout.csv").groupby("dataset")["split"].count()
    protocol = config.compose(conf, "protocol", whose.protocol)
    for name in whose.paired:
        dataset = config.compose(conf, "dataset", name)
        splits, drawn = protocols.freeze(protocol, dataset).splits, np.random.RandomState(1)
        for split in range(released[name]):
            _, test = splits.rows(dataset.rows, split)
            order = drawn.choice(dataset.rows, dataset.rows, replace=False)
            assert np.array_equal(test, order[round(0.9 * dataset.rows) :])


def of_ashman2020(rows, split):
    """Its program shuffles row numbers with the number of the split as seed; the first int(0.9 n) rows train."""
    order = np.arange(rows)
    np.random.RandomState(split).shuffle(order)
    return order[int(0.9 * rows) :]


def of_rossi2021(rows, split):
    """Its program calls scikit-learn with the number of the fold as seed."""
    return train_test_split(np.arange(rows), test_size=0.2, random_state=split)[1]


@pytest.mark.parametrize(("paper", "test_rows"), [("ashman2020", of_ashman2020), ("rossi2021", of_rossi2021)])
def test_splits_by_a_seed_are_those_of_the_program(paper, test_rows):
    conf = RELEASED.parents[1] / "conf"
    for path in RELEASED.glob(f"{paper}_*.yaml"):
        whose = config.printed_splits(RELEASED, path.stem)
        protocol = config.compose(conf, "protocol", whose.protocol)
        for name in whose.paired:
            dataset = config.compose(conf, "dataset", name)
            splits = protocols.freeze(protocol, dataset).splits
            for split in (0, 7):
                _, test = splits.rows(dataset.rows, split)
                assert np.array_equal(np.sort(test), np.sort(test_rows(dataset.rows, split)))


def test_a_line_without_a_score_is_named(tmp_path):
    path = tmp_path / "theirs.csv"
    path.write_text("dataset,split,mnll\nboston,0,2.5\nboston,1,nan\n")
    with pytest.raises(UserError, match=r"theirs.csv, line 3: .* not finite; a line has dataset, split and metrics"):
        printed_splits.released(path)
    path.write_text("dataset,split,nll\nboston,0,2.5\n")
    with pytest.raises(UserError, match="line 2: .* nll is not a metric"):
        printed_splits.released(path)


def test_a_split_that_stands_there_twice_is_named(tmp_path):
    (tmp_path / "scores.csv").write_text("dataset,split,rmse\nboston,0,0.5\nboston,1,0.5\nboston,0,0.25\n")
    with pytest.raises(UserError, match=r"scores\.csv, line 4: \('boston', 0\) stands there twice"):
        printed_splits.released(tmp_path / "scores.csv")
