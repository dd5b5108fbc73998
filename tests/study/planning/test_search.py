"""Which settings tuned fits try, and that nothing else of a study moves."""

from __future__ import annotations

import pytest

from gpbench import places
from gpbench.data.splits import KFold
from gpbench.errors import UserError
from gpbench.study.planning import search
from gpbench.study.planning.cost import CostModel
from gpbench.study.planning.resolve import resolve

METHODS = "methods=[constant,gradient_boosting,svgp,dsvi,dnn] datasets=[boston] splits=1 "


def cells(words: str) -> dict:
    return {cell.method: cell for cell in resolve(places.find(), "default", words).cells}


def test_few_combinations_are_all_tried_and_many_are_drawn():
    start = {"a": 1, "b": "x"}
    assert search.candidates({"a": [1, 2], "b": ["x", "y"]}, start, 4) == [
        {"a": 1, "b": "x"}, {"a": 1, "b": "y"}, {"a": 2, "b": "x"}, {"a": 2, "b": "y"},
    ]  # fmt: skip
    space = {"a": {"low": 1, "high": 100}, "b": {"low": 0.001, "high": 0.1}}
    drawn = search.candidates(space, start, 9)
    assert drawn[0] == start
    assert len({tuple(point.items()) for point in drawn}) == 9
    assert all(isinstance(p["a"], int) and 1 <= p["a"] <= 100 and 0.001 <= p["b"] <= 0.1 for p in drawn[1:])
    assert min(p["a"] for p in drawn) < 10 < max(p["a"] for p in drawn)  # in equal parts of the logarithm
    assert search.candidates(space, start, 5) == drawn[:5]


def test_every_method_makes_the_same_effort_and_fits_that_are_not_tuned_keep_their_identity(project):
    plain, tuned = cells(METHODS), cells(METHODS + "tune=6")
    trials = {name: len(cell.what.tune.candidates) for name, cell in tuned.items() if cell.what.tune}
    assert trials == {"svgp": 6, "dsvi": 6, "dnn": 6}
    assert tuned["gradient_boosting"].what.method.hyper["trials"] == 6  # its own search
    assert resolve(places.find(), "default", METHODS + "tune=6").remarks == ["tune: nothing to tune in constant"]
    moved = {name for name in plain if plain[name].fits != tuned[name].fits}
    assert moved == {"svgp", "dsvi", "dnn", "gradient_boosting"}
    assert tuned["svgp"].fits != cells(METHODS + "tune=5")["svgp"].fits
    assert tuned["svgp"].what.tune.inner == KFold(seed=0, count=5, stratified=False)
    of_classes = cells("methods=[svgp] datasets=[wine] splits=1 tune=2")["svgp"].what.tune.inner
    assert of_classes == KFold(seed=0, count=5, stratified=True)
    model = CostModel([], {"boston": 13}, {cell.family: cell.cost for cell in tuned.values()})
    assert model.seconds(tuned["dnn"]) > 6 * model.seconds(plain["dnn"])


def test_what_the_user_sets_is_not_tuned(project):
    (cell,) = cells("methods=[svgp] datasets=[boston] splits=1 tune=8 svgp.num_inducing=30").values()
    assert [set(settings) for settings in cell.what.tune.candidates] == [{"kernel"}] * 3
    assert cell.what.method.hyper["num_inducing"] == 30
    words = "methods=[svgp] datasets=[boston] splits=1 tune=4 svgp.num_inducing=9 svgp.tunable={kernel:[rbf,matern12]}"
    (cell,) = cells(words).values()
    assert [settings["kernel"] for settings in cell.what.tune.candidates] == ["rbf", "matern12"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("svgp.tunable={num_inducin:[5]}", "did you mean 'num_inducing'?"),
        ("svgp.tunable={num_inducing:[]}", "num_inducing needs values"),
        ("svgp.tunable={learning_rate:{low:9,high:3}}", "learning_rate needs values"),
        ("svgp.tunable={num_inducing:[5,0]}", "num_inducing: Input should be greater than or equal to 1"),
        ("kind=sample", "tune goes with kind predict, not sample"),
    ],
)
def test_what_no_study_can_try_is_refused_in_one_line(project, words, said):
    with pytest.raises(UserError) as caught:
        cells(f"methods=[svgp] datasets=[boston] splits=1 tune=4 {words}")
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_ranges_are_checked_before_anybody_tunes(project):
    with pytest.raises(UserError, match="did you mean 'num_inducing'"):
        cells("methods=[svgp] datasets=[boston] splits=1 svgp.tunable={num_inducin:[5]}")
