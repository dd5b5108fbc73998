"""Protocols in the plan: official splits, events, limits of methods, identities; and no protocol lets a test row in
but by the leak that it lists."""

import dataclasses

import numpy as np
import pytest

from cases import CONF, Case, changed, every_case, group, table, two_targets
from gpbench import config, places
from gpbench.errors import UserError
from gpbench.study.commands import fit_one
from gpbench.study.planning import identity
from gpbench.study.planning.resolve import resolve
from gpbench.study.records import Cell

# others let rows train and test at once, or need counts of the classes: see tests/data/test_growing_splits.py
PROTOCOLS = sorted(
    name
    for name in config.options(CONF, "protocol")
    if not name.startswith(("all_rows", "filippone2013", "filippone2014", "posterior"))
)
STRATIFIED = "filippone2012"


def cells(words: str) -> tuple[Cell, ...]:
    return resolve(places.find(), "default", f"presets={{}} splits_of={{}} {words}").cells


def fits(words: str) -> list[str]:
    return [fit.fit_id for cell in cells(words) for fit in cell.fits]


@pytest.mark.parametrize("name", [name for name in PROTOCOLS if name != STRATIFIED])
def test_test_rows_change_no_fitted_quantity(name, tmp_path_factory):
    """Under each protocol, with its outputs of two targets; test inputs count only where it says that they leak."""
    made = Case("linear", "regression", tmp_path_factory, data=two_targets(), protocol=(name,))
    fold = made.fold
    assert fold.targets.shape[1] == (2 if name in ("rossi2021", "common_all") else 1)
    targets, inputs = made.table.targets.copy(), made.table.inputs.copy()
    targets[fold.test] *= -3
    other_y = dataclasses.replace(made.table, targets=targets)
    inputs[fold.test] += 100
    other_x = dataclasses.replace(made.table, inputs=inputs)
    plain, by_y, by_x = (
        made.fit(group(made.cell, 0), data)[0].model["estimators"] for data in (made.table, other_y, other_x)
    )
    for one, y, x in zip(plain, by_y, by_x, strict=True):
        assert np.array_equal(one.coef_, y.coef_)
        assert np.array_equal(one.coef_, x.coef_) == (name != "rossi2021")
        assert np.array_equal(one.sigma_, x.sigma_) == (name != "rossi2021")


def test_stratified_folds_do_not_depend_on_test_inputs(tmp_path_factory):
    """Classes of all rows decide the folds, so only inputs can be changed."""
    made = Case("linear", "multiclass", tmp_path_factory, protocol=(STRATIFIED,))
    data = dataclasses.replace(changed(made.table, made.fold.test), targets=made.table.targets)
    plain, other = (made.fit(group(made.cell, 0), each)[0] for each in (made.table, data))
    assert np.array_equal(plain.model["estimator"].coef_, other.model["estimator"].coef_)
    assert not plain.points.equals(other.points)
    classes = table("multiclass").targets[made.fold.test, 0]
    assert np.ptp(np.unique(classes, return_counts=True)[1]) <= 1


def test_an_official_split_is_used_once_however_many_are_requested(project):
    made = {c.address.dataset: c for c in cells("methods=[constant] datasets=[usps,wine] splits=5")}
    assert [f.split for f in made["wine"].fits] == [0, 1, 2, 3, 4]
    assert [f.split for f in made["usps"].fits] == [0]
    assert (made["usps"].rows, made["usps"].test_rows) == (7291, 2007)
    with pytest.raises(UserError, match="split 3 of 'usps' is asked for; protocol 'common' has 0 to 0"):
        fit_one.groups(places.find(), ["method=constant", "dataset=usps", "split=3"])
    (random,) = cells("methods=[constant] datasets=[usps] splits=5 protocol.splits.official=false")
    assert len(random.fits) == 5
    assert random.rows == round(0.9 * 9298)


@pytest.mark.parametrize("split", [0, 1])
def test_one_fit_is_of_the_split_and_the_method_that_were_asked_for(project, split):
    words = ["method=gradient_boosting", "dataset=digits", f"split={split}", "budget=smoke"]
    ((group,), _) = fit_one.groups(places.find(), words)  # the default study has a preset and three splits of digits
    assert [fit.split for fit in group.fits] == [split]
    assert group.address.method == "gradient_boosting"


def test_events_are_skipped_by_every_method(project):
    every = every_case(CONF)
    assert "events" not in {task for _, task in every}
    for cell in cells(f"methods=[{','.join(dict(every))}] datasets=[coal] splits=1"):
        assert cell.skip.endswith(" only")
        assert "events" not in cell.skip
        assert cell.what.protocol.outputs == ()


def test_a_method_may_limit_the_targets(project):
    words = "methods=[exact_gp,linear] datasets=[energy,boston] splits=1 exact_gp.max_outputs=1 protocol"
    reasons = [c.skip for c in cells(f"{words}=rossi2021")]
    assert reasons == ["2 targets, at most 1", "", "", ""]
    assert not any(c.skip for c in cells(f"{words}=common"))


def test_rules_for_other_data_sets_and_what_is_printed_move_no_fit(project):
    words = "methods=[constant,svgp] datasets=[boston,wine] splits=2 protocol=rossi2021"
    plain = fits(words)
    printed = "protocol.metrics=[rmse] 'protocol.spread=two sd' 'protocol.title=another'"
    for same in (printed, "protocol.splits.test_rows={mnist:9}", "protocol.splits.count=30", "protocol.outputs=last"):
        assert fits(f"{words} {same}") == plain, same
    for other in ("protocol.splits.test_rows={boston:9,wine:9}", "protocol.splits.scheme=shuffle", "protocol.leaks=[]"):
        assert not set(fits(f"{words} {other}")) & set(plain), other


def test_outputs_move_the_fits_of_data_sets_with_several_targets_only(project):
    words = "methods=[linear] datasets=[energy,boston] splits=1 protocol.outputs"
    first, last, both = (fits(f"{words}={choice}") for choice in ("first", "last", "all"))
    assert first[1] == last[1] == both[1]
    assert len({first[0], last[0], both[0]}) == 3


def test_each_protocol_has_fits_of_its_own(project):
    made = [tuple(fits(f"methods=[constant] datasets=[wine] splits=3 protocol={name}")) for name in PROTOCOLS]
    assert len({fit for each in made for fit in each}) == 3 * len(PROTOCOLS)


def test_code_of_the_catalogue_is_outside_the_identity():
    closure = identity.code(*identity.numerics("gpbench.methods.linear", "closed_form"))
    assert "gpbench.data.splits" in closure
    assert not {"gpbench.config.schema", "gpbench.config", "gpbench.evaluation.metrics"} & set(closure)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("protocol.splits.test_rows={bostn:9}", r"unknown dataset 'bostn' in test_rows of protocol 'common'; did you"),
        ("protocol.metrics=[mnl]", r"unknown metric 'mnl' in metrics of protocol 'common'; did you mean 'mnll'"),
        ("protocol.splits.stratified=true", "protocol 'common' on data set 'boston': 'stratified' goes with"),
        ("splits=9 protocol=rossi2021", "splits 0 to 8 of 'boston' are asked for; protocol 'rossi2021' has 0 to 7"),
    ],
)
def test_invalid_protocols_are_refused(project, words, said):
    with pytest.raises(UserError, match=said):
        cells(f"methods=[constant] datasets=[boston] {words}")
