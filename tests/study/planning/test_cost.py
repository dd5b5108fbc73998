"""The cost model: what was measured is met, what is near is bracketed, and intervals hold what they say."""

from __future__ import annotations

import dataclasses
import math
import re
from collections import Counter

import numpy as np
import pytest

from gpbench import places
from gpbench.data.splits import KFold
from gpbench.study.planning import cost as costs
from gpbench.study.planning import estimate as costing
from gpbench.study.planning import plan as planning
from gpbench.study.planning.cost import CostModel, Measured, Place
from gpbench.study.records import Cell, Cost, Seconds, Tuning
from gpbench.study.storage import committed
from gpbench.study.storage.store import Store
from handmade import CELL, WHAT, finish, planned, record_of

SMALL = "methods=[constant,svgp,exact_gp] datasets=[boston,wine] splits=2"
QUANTILE = 1.645


def make(overrides: str = SMALL) -> planning.Plan:
    return planning.make(places.find(), "default", overrides)


def wanted(plan: planning.Plan, method: str, dataset: str) -> Cell:
    """One cell of a plan."""
    return next(c for c in plan.cells if (c.method, c.address.dataset) == (method, dataset))


DECLARED = {f"family{number}": Cost(0.02, 0.25) for number in range(6)}


def simulated(seed: int) -> tuple[list[Measured], dict[str, int], dict[Place, float]]:
    """Measured fits, columns of their data sets, and log rates of all places: drawn from the model itself."""
    columns = {f"data{i}": int(4 * 2**i) for i in range(6)}
    prior, rates, rng = CostModel([], columns, DECLARED), {}, np.random.default_rng(seed)
    for f in range(len(DECLARED)):
        places_ = [
            Place(f"family{f} cpu", (f"method{f}", settings), name, "common", 200 * 3**i)
            for settings in ("", "layers=3")
            for i, name in enumerate(columns)
        ]
        rates |= dict(zip(places_, rng.multivariate_normal(*prior.rate(places_)).tolist(), strict=True))
    fits = [Measured(place, "quick", 100, 100 * math.exp(rate), 100.0) for place, rate in rates.items()]
    return fits, columns, rates


def test_what_nobody_measured_costs_what_its_method_declares():
    """At 500 rows of 10 columns, and growing with both."""
    model = CostModel([], {"small": 10, "wide": 40}, {"f": Cost(0.02, 0.25)})
    sizes = [("small", 500), ("small", 4000), ("wide", 500)]
    logs, _ = model.rate([Place("f cpu", ("m", ""), data, "common", rows) for data, rows in sizes])
    assert np.exp(logs).tolist() == pytest.approx([0.02, 0.02 * 8**0.25, 0.02 * 4**0.4])


def test_predictions_of_measured_cells_are_their_measurements(project):
    store, plan = Store(places.find().store), make()
    cell = wanted(plan, "svgp", "wine")
    rough = plan.cost.seconds(cell)
    assert plan.cost.known(cell) == "unmeasured"
    finish(store, cell, cell.fits[0])  # two seconds a step, 500 times the rough ones
    learned = make().cost
    assert learned.seconds(cell) / cell.what.steps == pytest.approx(2, rel=0.3)
    assert learned.known(cell) == "measured"
    assert learned.known(wanted(plan, "svgp", "boston")) == "near"
    boston = wanted(plan, "svgp", "boston")
    assert learned.seconds(boston) / boston.what.steps > 50 * rough / cell.what.steps
    assert learned.known(wanted(plan, "exact_gp", "boston")) == "unmeasured"
    assert learned.memory_mb(cell) == 150
    finish(store, boston, boston.fits[0], "diverged")  # after as many steps as it made
    assert make().cost.known(boston) == "near"


def test_measured_seconds_of_a_tuned_fit_are_those_of_one_training():
    tuned = dataclasses.replace(CELL, what=dataclasses.replace(WHAT, tune=Tuning(({}, {}), KFold(0, 5, False))))
    once, thrice = (costs._of_store(record_of(cell, planned())).seconds for cell in (CELL, tuned))
    assert once == pytest.approx(3 * thrice)


def test_fits_of_a_data_set_that_is_gone_and_fits_of_no_time_are_passed_over(project):
    plan = make("methods=[constant] datasets=[boston] splits=1")
    (cell,) = plan.cells
    record = record_of(cell, cell.fits[0])
    gone = dataclasses.replace(record, address=dataclasses.replace(record.address, dataset="gone"))
    at_once = dataclasses.replace(record.provenance, ended=record.provenance.started)
    instant = dataclasses.replace(record, fit_id="0" * 16, seconds=Seconds(), provenance=at_once)
    learned = costs.learn(places.find(), [gone, instant], plan.cells)
    assert learned.seconds(cell) == plan.cost.seconds(cell)


def test_of_several_fits_of_a_place_the_largest_peak_and_their_own_steps_count():
    cell = dataclasses.replace(CELL, what=dataclasses.replace(WHAT, steps=20_000, until_converged=True))
    place = costs.place(cell)
    own = [Measured(place, "quick", 800, 80.0, peak) for peak in (300.0, 100.0)]
    other = Measured(dataclasses.replace(place, dataset="wine"), "quick", 9000, 900.0, 500.0)
    alone, both = (
        CostModel(fits, {"boston": 13, "wine": 13}, {cell.family: cell.cost}) for fits in (own, [*own, other])
    )
    assert both.memory_mb(cell) == 450
    assert both.steps(cell) == alone.steps(cell)


def test_before_anything_is_measured_a_small_fit_is_quick(project):
    cell = wanted(make(), "constant", "boston")
    assert CostModel([], {"boston": 13}, {cell.family: cell.cost}).seconds(cell) < 2


def test_committed_records_are_measured_cells_too(project):
    where, plan = places.find(), make()
    cell, fit = wanted(plan, "svgp", "wine"), wanted(plan, "svgp", "wine").fits[0]
    row = {key: getattr(cell.address, key) for key in ("dataset", "protocol", "budget")}
    row |= {"fit_id": fit.fit_id, "method": "svgp", "preset": "svgp", "family": "svgp", "status": "done"}
    row |= {"split": 0, "replica": 0, "steps": 100, "n_train": fit.rows, "peak_memory_mb": 300.0, "commit": "0"}
    row |= {"seconds_train": 10.0, "seconds_predict": 1.0, "seconds_shared_by": 1}
    row |= {"started": "2026-01-01T10:00:00+00:00", "ended": "2026-01-01T10:03:20+00:00"}
    committed.write(where, "other", [row], {})
    learned = make().cost
    assert learned.known(cell) == "measured"
    assert learned.seconds(cell) / cell.what.steps == pytest.approx(2, rel=0.3)
    committed.write(where, "other", [row | {"trials": 3}], {})  # four trainings: half a second a step
    assert make().cost.seconds(cell) / cell.what.steps == pytest.approx(0.5, rel=0.3)
    committed.write(where, "other", [row | {"steps_done": 50}], {})
    assert make().cost.seconds(cell) / cell.what.steps == pytest.approx(4, rel=0.3)
    committed.write(where, "other", [row | {"status": "diverged"}], {})
    assert make().cost.known(cell) == "unmeasured"
    for key in ("started", "seconds_predict"):  # a cell that somebody emptied
        committed.write(where, "other", [row | {key: None}], {})
        assert make().cost.known(cell) == "unmeasured"
    committed.write(where, "other", [row | {"gpu": "some GPU"}], {})
    assert make().cost.known(cell) == "unmeasured"
    assert make(f"{SMALL} trainer=gpu").cost.known(wanted(make(f"{SMALL} trainer=gpu"), "svgp", "wine")) == "measured"
    finish(Store(where.store), cell, fit)  # the store's own record of the same fit comes first
    assert make().cost.known(cell) == "measured"


def test_cost_per_step_does_not_depend_on_steps_and_a_batch_is_shared_equally(project):
    plan = make(f"{SMALL} svgp.steps=10")
    assert costs.place(wanted(plan, "svgp", "wine")) == costs.place(wanted(make(), "svgp", "wine"))
    deeper = make(f"{SMALL} svgp.num_inducing=10")
    assert costs.place(wanted(deeper, "svgp", "wine")) != costs.place(wanted(make(), "svgp", "wine"))
    searched, trained = wanted(plan, "constant", "wine"), wanted(plan, "svgp", "wine")
    same = [
        costs.place(dataclasses.replace(cell, address=dataclasses.replace(cell.address, budget="paper")))
        == costs.place(cell)
        for cell in (searched, trained)
    ]
    assert same == [False, True]  # the budget says how long a closed form searches
    times = "2026-01-01T10:00:00+00:00", "2026-01-01T10:00:50+00:00"
    assert costs._seconds(*times, 1.0, 5) == 10.0
    assert costs._seconds(*times, 60.0, 5) == 60.0  # resumed: only the end is between the two times


def test_held_out_cells_lie_in_their_intervals():
    """The closed form is that of leaving each out by hand; of 720 cells of the model, nine in ten lie in the 90 %
    interval (648, and three standard deviations of a binomial are 24)."""
    inside = total = 0
    for seed in range(10):
        fits, columns, rates = simulated(seed)
        found, number = CostModel(fits, columns, DECLARED).held_out(QUANTILE)
        inside, total = inside + found, total + number
    assert total == 720
    assert abs(inside - 648) <= 24
    by_hand = 0
    for left in fits:
        mean, cov = CostModel([fit for fit in fits if fit is not left], columns, DECLARED).rate([left.place])
        by_hand += abs(rates[left.place] - mean[0]) <= QUANTILE * math.sqrt(cov[0, 0])
    assert by_hand == found


def test_the_mean_of_a_single_place_needs_no_covariance():
    fits, columns, rates = simulated(0)
    cost = CostModel([fit for fit in fits if fit.place.dataset != "data5"], columns, DECLARED)
    unseen = Place("family0 cpu", ("another",), "data5", "common", 77)
    for place in (*rates, unseen):
        assert cost.mean(place) == pytest.approx(cost.rate([place])[0][0], rel=1e-9)
    never = CostModel([], columns, DECLARED)
    assert never.mean(unseen) == never.rate([unseen])[0][0]


def test_a_slower_machine_is_learnt_from_its_first_fits():
    """A machine three times as slow: with fits of three families, the other three are predicted within a quarter."""
    fits, columns, rates = simulated(0)
    slow = [dataclasses.replace(fit, seconds=3 * fit.seconds) for fit in fits if fit.place.family < "family3"]
    elsewhere = [dataclasses.replace(fit, is_here=False) for fit in fits]
    cost = CostModel(slow + elsewhere, columns, DECLARED)
    others = [place for place in rates if place.family == "family4 cpu"]
    error = cost.rate(others)[0] - math.log(3) - [rates[place] for place in others]
    assert abs(error.mean()) < math.log(1.25)
    assert CostModel(elsewhere, columns, DECLARED).rate(others)[0] == pytest.approx(
        cost.rate(others)[0] - math.log(3), abs=0.2
    )


def test_settings_that_nobody_measured_elsewhere_do_not_make_the_machine_slow():
    """Dear settings are tried here first: predictions of other settings are those of before."""
    fits, columns, rates = simulated(0)
    elsewhere = [dataclasses.replace(fit, is_here=False) for fit in fits]
    dear = [
        dataclasses.replace(
            fit, place=dataclasses.replace(fit.place, settings=("method0", key)), seconds=8 * fit.seconds
        )
        for fit in fits[:6]
        for key in ("approximation=ep", "approximation=laplace", "samples=64")
    ]
    alone, both = (CostModel(measured, columns, DECLARED) for measured in (elsewhere, dear + elsewhere))
    others = [place for place in rates if place.family == "family4 cpu"]
    assert both.rate(others)[0] == pytest.approx(alone.rate(others)[0])
    assert both.mean(dear[0].place) > alone.mean(dear[0].place) + 1
    assert both.machine_sd == alone.machine_sd


def test_intervals_know_how_well_the_machine_is_known():
    """By its prior where all was measured elsewhere, better with each fit of the store; not at all without others."""
    fits, columns, _ = simulated(0)
    elsewhere = [dataclasses.replace(fit, is_here=False) for fit in fits]
    unknown, *learning = (CostModel(fits[:n] + elsewhere, columns, DECLARED).machine_sd for n in (0, 1, 12, 36))
    assert unknown == pytest.approx(math.hypot(0.2, 0.7))
    predicted = CostModel(fits, columns, DECLARED).rate([fits[0].place])[1][0, 0]
    assert learning[0] == pytest.approx(math.hypot(0.2, (0.7**-2 + 1 / predicted) ** -0.5))
    assert unknown > learning[0] > learning[1] > learning[2] > CostModel(fits, columns, DECLARED).machine_sd == 0.2


def test_an_unknown_data_set_of_a_known_family_is_less_certain_than_a_known_one():
    fits, columns, rates = simulated(0)
    cost = CostModel([fit for fit in fits if fit.place.dataset != "data5"], columns, DECLARED)
    spread = {place: math.sqrt(cost.rate([place])[1][0, 0]) for place in rates}
    known = [sd for place, sd in spread.items() if place.dataset != "data5"]
    new = [sd for place, sd in spread.items() if place.dataset == "data5"]
    never = math.sqrt(CostModel([], columns, DECLARED).rate([fits[0].place])[1][0, 0])
    assert costs.FIT < max(known) < 1.5 * costs.FIT
    assert 2 * max(known) < min(new) <= max(new) < never


def test_the_estimate_of_a_study(project, gpbench):
    plan = make()
    estimate = costing.Estimate(plan)
    assert sum(part.fits for part in estimate.parts) == 10  # exact_gp does not classify
    core, two, many = estimate.core, estimate.wall(2), estimate.wall(1000)
    assert core.low < core.median < core.high
    assert two.median == pytest.approx(core.median / 2, rel=0.2)
    longest = max(plan.cost.seconds(cell) for cell in plan.cells if not cell.skip)
    assert many.median > 0.8 * longest  # no fit is split among cores
    by_method = Counter()
    for part in estimate.parts:
        by_method[part.method] += part.fits
    assert by_method == {"constant": 4, "svgp": 4, "exact_gp": 2}
    out = gpbench("cost", "--overrides", SMALL).out
    assert "10 fits of 5 cells; of the study's 10, 0 are done" in out
    assert "0 cells measured, 0 near (others of the family are), 5 unmeasured" in out
    assert "1 core" not in out
    assert "4 cores: " in gpbench("cost", "--overrides", SMALL, "--cores", "4").out


def test_the_estimate_of_tuned_fits_counts_their_trials(project):
    """Six trials and the fit itself, in whose start the trials have no part."""
    words = "methods=[dnn] datasets=[boston] splits=1"
    once, tuned = (costing.Estimate(make(f"{words} tune={tune}")).parts[0].longest for tune in (0, 6))
    assert tuned - costs.SECONDS_PER_FIT == pytest.approx(7 * (once - costs.SECONDS_PER_FIT))


def test_the_estimate_counts_all_cores_of_a_fit_and_is_as_uncertain_as_the_machine(project):
    store, (cell,) = Store(places.find().store), make("methods=[svgp] datasets=[wine] splits=1").cells
    finish(store, cell, cell.fits[0])
    plan = make("methods=[svgp] datasets=[wine] splits=1")
    how, what = dataclasses.replace(cell.how, threads=3), dataclasses.replace(cell.what, workers=2)
    on_six = dataclasses.replace(plan, cells=(dataclasses.replace(cell, how=how, what=what),))
    one, six = (costing.Estimate(each, everything=True).parts[0] for each in (plan, on_six))
    assert six.seconds == pytest.approx(6 * one.seconds)
    _, cov = plan.cost.rate([costs.place(cell)])
    spread = np.log(one.longest - costs.SECONDS_PER_FIT).std()
    assert spread == pytest.approx(math.hypot(math.sqrt(cov[0, 0]), costs.MACHINE), rel=0.05)
    assert costing._time(np.arange(101.0)) == pytest.approx((50.0, 5.0, 95.0))


def test_steps_that_were_made_before_a_kill_are_not_counted_again(project):
    words = "methods=[svgp] datasets=[boston] splits=2 svgp.steps=1000 svgp.optimiser=adam trainer.replicas=1"
    store, plan = Store(places.find().store), make(words)
    finish(store, plan.cells[0], plan.cells[0].fits[0])  # two seconds a step
    plan = make(words)
    each, of_new = costing.Estimate(plan).core.median, plan.batches[0].seconds
    assert of_new > 500
    (store.begin(plan.batches[0].groups[0]) / "checkpoint-000000600.pt").touch()
    left = make(words)
    (row,) = [row for row in left.rows() if row.state == "pending"]
    assert left.batches[0].seconds == pytest.approx(0.4 * of_new, rel=0.01)
    assert row.minutes * 60 == pytest.approx(left.batches[0].seconds)
    assert costing.Estimate(left).core.median == pytest.approx(0.4 * each, rel=0.01)
    assert costing.Estimate(left, everything=True).core.median == pytest.approx(2 * each, rel=0.01)


def test_pending_fits_are_counted_or_all_on_request(project, gpbench):
    store, plan = Store(places.find().store), make()
    cell = wanted(plan, "svgp", "wine")
    for fit in cell.fits:
        finish(store, cell, fit)
    assert sum(part.fits for part in costing.Estimate(make()).parts) == 8
    assert sum(part.fits for part in costing.Estimate(make(), everything=True).parts) == 10
    out = gpbench("cost", "--all", "--overrides", SMALL).out
    assert "10 fits of 5 cells; of the study's 10, 2 are done" in out
    assert re.search(r"^svgp +4 .* 2\.0  1 of 2 cells$", out, re.MULTILINE), "the most memory, and what is measured"


def test_the_interval_of_measured_fits_is_narrow_and_covers_their_total():
    """Sums of cells whose every fit was measured are known but for the machine's load and each cell's own noise."""
    fits, columns, rates = simulated(1)
    cost, rng = CostModel(fits, columns, DECLARED), np.random.default_rng(0)
    places_ = [place for place in rates if place.family == "family0 cpu"]
    mean, cov = cost.rate(places_)
    drawn = np.exp(rng.multivariate_normal(mean, cov, 2000)).sum(1)
    low, high = np.quantile(drawn, [0.05, 0.95])
    assert low < sum(math.exp(rates[place]) for place in places_) < high
    assert high / low < 2


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        ((30, 20, 45), "30 seconds (20 to 45)"),
        ((60, 45, 596), "1.0 minutes (0.8 to 9.9)"),
        ((300, 120, 900), "5.0 minutes (2.0 to 15)"),
        ((36000, 3600, 35850), "10 hours (1.0 to 10)"),
    ],
)
def test_durations_are_printed_in_one_unit(seconds, said):
    assert costing.show(costing.Time(*seconds)) == said


def test_refusals(project, gpbench):
    assert "--cores must be a positive integer, got 0" in gpbench("cost", "--cores", "0").err
    assert "unknown study 'defalt'; did you mean 'default'" in gpbench("cost", "defalt").err


def test_fits_that_end_by_themselves_cost_what_their_steps_are_likely_to(project):
    """Before any is seen about `LIKELY_STEPS`, at most the cap; then as many as those of the family made."""
    overrides = f"{SMALL} budget=converged"
    plan, store = make(overrides), Store(places.find().store)
    cell = wanted(plan, "svgp", "wine")
    assert plan.cost.steps(cell) == pytest.approx(costs.LIKELY_STEPS)
    assert plan.cost.steps(cell, 1e3) == pytest.approx(cell.what.steps)
    assert plan.cost.steps(wanted(make(), "svgp", "wine")) == wanted(make(), "svgp", "wine").what.steps
    finish(store, cell, cell.fits[0], steps_done=800)
    # the posterior of a normal mean of prior variance 2^2 after one observation of variance 0.5^2, and of another one
    spread = math.sqrt(1 / (1 / 2**2 + 1 / 0.5**2) + 0.5**2)
    learned = make(overrides).cost
    assert learned.steps(cell, -1.0) == pytest.approx(learned.steps(cell) * math.exp(-spread))
    assert plan.cost.steps(cell, -1.0) == pytest.approx(costs.LIKELY_STEPS * math.exp(-math.hypot(2, 0.5)))
    assert 800 < learned.steps(cell) < 1200
    assert learned.steps(wanted(plan, "svgp", "boston")) == learned.steps(cell)
    capped = wanted(plan, "exact_gp", "boston")
    assert learned.steps(capped) == pytest.approx(capped.what.steps)
    estimate = costing.Estimate(make(overrides))
    one, other = estimate._steps([cell, wanted(plan, "svgp", "boston")], np.random.default_rng(0))
    assert one.std() > 0
    cap = min(one.max(), other.max())  # what is unknown of a family's steps is unknown of all its cells
    assert np.minimum(one, cap) == pytest.approx(np.minimum(other, cap))
    assert estimate.core.low < estimate.core.median < estimate.core.high
