"""Planning: states with their reasons, deterministic batches, nothing written."""

from __future__ import annotations

import re
import shlex
from dataclasses import replace

import pytest

from gpbench import places
from gpbench.cli import look
from gpbench.errors import UserError
from gpbench.study.commands import snakemake_graph as graph
from gpbench.study.planning import plan as planning
from gpbench.study.planning.batches import LEAST_SECONDS
from gpbench.study.planning.resolve import resolve
from gpbench.study.records import Cell, FrozenPlan
from gpbench.study.results import collect
from gpbench.study.storage.store import Store
from handmade import finish

SMALL = "methods=[constant,svgp,exact_gp] datasets=[boston,wine] splits=2"


def make(overrides: str = SMALL) -> planning.Plan:
    return planning.make(places.find(), "default", overrides)


def wanted(plan: planning.Plan, method: str, dataset: str) -> Cell:
    """One cell of a plan."""
    return next(cell for cell in plan.cells if (cell.address.method, cell.address.dataset) == (method, dataset))


def everything(folder) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def test_planning_writes_nothing(project, gpbench):
    before = everything(project)
    assert gpbench("plan").code == 0
    assert gpbench("plan", "--pending", "--overrides", SMALL).code == 0
    assert gpbench("status").code == 0
    assert everything(project) == before


def test_two_thousand_fits_are_planned_with_unique_identities(project):
    plan = make("splits=20 splits_of={} replicas=3")
    names = [fit.fit_id for cell in plan.cells for fit in cell.fits]
    assert len(names) >= 2000
    # the same data under two names would share their fits; the default study has none
    assert len(set(names)) == len(names)


def test_a_batch_that_is_planned_again_is_another_file(project):
    """Snakemake runs nothing for a newer file of the same checksum, and a stopped fit would never be taken up."""
    written = []
    for _ in range(2):
        planning.freeze(make(), places.find())
        written.append({path.name: path.read_bytes() for path in (project / "plans/batches").iterdir()})
    assert written[0].keys() == written[1].keys()
    assert all(written[0][name] != written[1][name] for name in written[0])


def test_impossible_fits_are_skipped_with_their_reason(project, gpbench):
    plan = make()
    assert wanted(plan, "exact_gp", "wine").skip == "regression only"
    assert wanted(plan, "exact_gp", "boston").skip == ""
    planned = {f.fit_id for b in plan.batches for g in b.groups for f in g.fits}
    assert not planned & {f.fit_id for f in wanted(plan, "exact_gp", "wine").fits}
    lost = wanted(plan, "svgp", "wine")
    finish(Store(places.find().store), lost, lost.fits[1], "diverged")
    out = gpbench("plan", "--overrides", SMALL).out
    assert re.search(r"exact_gp wine split 1 +skipped +regression only", out)
    assert "9 fits to run" in out
    assert "0 done, 2 skipped, 1 failed" in out


def test_a_fit_under_two_names_is_counted_as_often_as_it_is_listed(project, gpbench):
    words = ["--set", "methods=[constant]", "--set", "datasets=[boston]", "--set", "variants={same:{method:constant}}"]
    plan = make("methods=[constant] datasets=[boston] splits=2 variants={same:{method:constant}}")
    finish(Store(places.find().store), plan.cells[0], plan.cells[0].fits[0])
    *listed, last = gpbench("plan", *words, "--set", "splits=2").out.splitlines()
    assert [sum(f" {state} " in line for line in listed) for state in ("done", "pending")] == [2, 2]
    assert ": 2 fits to run in 1 job, " in last
    assert last.endswith("; 2 done, 0 skipped, 0 failed; 2 of them again under another name")
    (minutes,) = {line.split(" min")[0].split()[-1] for line in listed if " pending " in line}
    assert float(re.search(r"about (\S+) minutes", last)[1]) == pytest.approx(float(minutes), abs=0.06)
    costs = gpbench("cost", *words, "--set", "splits=2").out
    assert ": 1 fit of 1 cell; of the study's 2, 1 are done" in costs  # what two names share is run once


def test_minutes_of_a_core_are_of_all_cores(project):
    """Of a fit by threads and workers that take as long by the clock."""
    one, four = (make(f"{SMALL} only=[svgp] trainer.threads={threads}") for threads in (1, 4))
    assert [row.minutes for row in four.rows()] == pytest.approx([4 * row.minutes for row in one.rows()])
    assert look._progress(four).minutes == pytest.approx(4 * look._progress(one).minutes)


def test_too_many_rows_are_skipped(project):
    entry = project / "conf/dataset/boston.yaml"
    text = entry.read_text()
    for rows, reason in ((5556, ""), (5557, "5001 training rows, at most 5000; gp_pcg takes more")):
        entry.write_text(text.replace("rows: 506", f"rows: {rows}"))
        assert make("methods=[exact_gp] datasets=[boston] splits=1").cells[0].skip == reason


def test_states_of_planned_fits(project, gpbench):
    store, plan = Store(places.find().store), make()
    constant, svgp = wanted(plan, "constant", "boston"), wanted(plan, "svgp", "boston")
    finish(store, constant, constant.fits[0])
    finish(store, svgp, svgp.fits[0], "diverged", "not finite at step 7")
    made = make()
    states = made.states
    assert states[constant.fits[0].fit_id][:2] == ("done", "")
    assert states[constant.fits[1].fit_id][:2] == ("pending", "new")
    assert states[svgp.fits[0].fit_id][:2] == ("diverged", "not finite at step 7")
    assert [row.minutes > 0 for row in made.rows()] == [row.state == "pending" for row in made.rows()]
    changed = make(f"{SMALL} svgp.jitter=0.5")
    first = wanted(changed, "svgp", "boston").fits[0].fit_id
    assert changed.states[first][:2] == ("pending", "method.hyper.jitter: 1e-06 -> 0.5")
    pending = gpbench("plan", "--pending", "--overrides", SMALL).out
    assert "8 fits to run" in pending
    assert "not finite" not in pending


def test_batches_are_deterministic_and_cover_what_is_pending(project):
    one, two = make(), make()
    assert one.batches == two.batches
    planned = [f.fit_id for b in one.batches for g in b.groups for f in g.fits]
    assert sorted(planned) == sorted(i for i, state in one.states.items() if state.name == "pending")
    assert len({b.batch_id for b in one.batches}) == len(one.batches)


def test_a_batch_holds_the_predicted_minutes(project):
    plan = make("splits=20 datasets=[boston] methods=[svgp] trainer.batch_minutes=0.2")
    assert len(plan.batches) > 2
    for batch in plan.batches:
        assert len(batch.groups) == 1 or batch.seconds <= 12
    everything_at_once = make("splits=20 datasets=[boston] methods=[svgp] trainer.batch_minutes=1e9")
    assert len(everything_at_once.batches) <= 10  # about an eighth each


def test_splits_share_a_tensor_batch_if_a_step_is_small(project):
    def sizes(words: str) -> set[int]:
        plan = make(f"datasets=[boston] methods=[svgp] splits=10 {words}")
        return {len(g.fits) for b in plan.batches for g in b.groups}

    assert sizes("") == {1}
    assert sizes("svgp.optimiser=adam") == {5}  # 100 inducing inputs x 455 rows
    assert sizes("svgp.optimiser=adam trainer.small=45500") == {5}
    assert sizes("svgp.optimiser=adam trainer.small=45499") == {1}
    assert sizes("svgp.optimiser=adam tune=2") == {1}  # each has settings of its own
    assert sizes("svgp.optimiser=adam svgp.num_inducing=200") == {1}
    assert sizes("svgp.num_inducing=4") == {1}  # by L-BFGS each would be searched by itself
    adam = "svgp.optimiser=adam"
    assert sizes(f"svgp.num_inducing=4 {adam}") == {5}
    assert sizes(f"trainer.small=0 svgp.num_inducing=4 {adam}") == {1}
    assert sizes(f"trainer=gpu {adam}") == {10}


def test_devices_do_not_share_a_batch(project):
    resolved = resolve(places.find(), "default", SMALL)
    on_gpu = [replace(cell, how=replace(cell.how, device="cuda")) for cell in resolved.cells[:2]]
    plan = planning.build(places.find(), "mixed", "", replace(resolved, cells=(*on_gpu, *resolved.cells[2:])))
    for batch in plan.batches:
        assert len({g.how.device for g in batch.groups}) == 1


def test_interrupted_groups_come_first_and_unchanged(project):
    store = Store(places.find().store)
    words = "methods=[constant,svgp] datasets=[boston] splits=6 svgp.num_inducing=4 svgp.optimiser=adam"
    group = next(g for b in make(words).batches for g in b.groups if len(g.fits) == 5)
    work = store.begin(group)
    (work / "checkpoint-000000150.pt").touch()
    plan = make(f"{words} trainer.replicas=2")  # would group them otherwise
    first = plan.batches[0].groups[0]
    assert first.how.replicas == 2  # how it runs is of today
    assert replace(first, how=group.how) == group
    assert plan.states[group.fits[2].fit_id] == ("pending", "resumes at step 150", 150)
    planned = [f.fit_id for b in plan.batches for g in b.groups for f in g.fits]
    assert len(planned) == len(set(planned)) == 12
    last = max(group.fits, key=lambda fit: fit.fit_id)  # a study of this fit alone takes up the others with it
    (alone,) = make(f"{words.replace('=6', '=1')} only=[svgp] first_split={last.split}").batches
    assert alone.groups == (group,)
    finish(store, wanted(plan, "svgp", "boston"), last)
    left = make(words).batches
    assert left[0].groups[0] == group
    assert [len(g.fits) for b in left for g in b.groups if g.address.method == "svgp"] == [5, 1]
    store.begin(replace(group, group_id="0123456789abcdef", fits=group.fits[:1]))  # its process was killed
    again = [f.fit_id for b in make(words).batches for g in b.groups for f in g.fits]
    assert len(again) == len(set(again))


def test_an_interrupted_group_of_another_study_is_not_planned_and_said_to_be_one(project, gpbench):
    of_wine, of_boston = "methods=[svgp] datasets=[wine]", "methods=[svgp] datasets=[boston]"
    Store(places.find().store).begin(make(of_wine).batches[0].groups[0])
    plan = make(of_boston)
    assert {g.address.dataset for b in plan.batches for g in b.groups} == {"boston"}
    states = [gpbench("status", "default", "--overrides", words).out for words in (of_wine, of_boston)]
    assert ["interrupted: svgp on wine" in text for text in states] == [True, True]
    assert ["; not of this study" in text for text in states] == [False, True]


def test_a_run_of_a_data_set_whose_entry_is_gone_says_so(project, gpbench):
    plan = make()
    planning.freeze(plan, places.find())
    entry = project / "conf/dataset/boston.yaml"
    entry.rename(entry.with_name("boston_csv.yaml"))
    said = f"gpbench: run {plan.name!r} is of data set 'boston', whose entry conf/dataset/boston.yaml is gone; put it "
    for words in (("status",), ("status", plan.name), ("plan", "--overrides", SMALL), ("cite", plan.name)):
        assert gpbench(*words).err.startswith(said)
    with pytest.raises(UserError, match="unknown dataset 'boston'; did you mean"):
        make("datasets=[boston] splits=1")


def test_freeze_does_not_rewrite_an_unchanged_plan(project):
    where = places.find()
    planning.freeze(make(), where)
    (plan,) = where.plans.glob("*.json")
    before = plan.stat().st_mtime_ns
    assert len(list(where.plans.glob("batches/*.json"))) == len(make().batches)
    planning.freeze(make(), where)
    assert plan.stat().st_mtime_ns == before
    made = make()
    assert collect.read_plan(where, made.name) == FrozenPlan(made.name, made.command, made.study, made.cells)


def test_names_of_results_folders():
    assert planning.run_name("default", "") == planning.run_name("default", "  ") == "default"
    one, two = planning.run_name("default", "a=1 b=2"), planning.run_name("default", "b=2  'a=1'")
    assert one == two != planning.run_name("default", "a=1 b=3")
    assert one.startswith("default-")


def test_a_star_overrides_every_method_that_has_the_key(project, gpbench):
    study = "methods=[constant,svgp,dsvi] datasets=[boston] splits=1"
    plan = make(f"{study} *.num_inducing=33")
    given = {c.address.method: c.what.method.hyper.get("num_inducing") for c in plan.cells}
    assert given == {"constant": None, "svgp": 33, "dsvi": 33}
    assert plan.remarks == ["*.num_inducing: constant has no 'num_inducing'"]
    plan = make(f"{study} *.steps=7")
    assert ({c.what.steps for c in plan.cells}, plan.remarks) == ({None, 7}, ["*.steps: constant has no 'steps'"])
    assert "remark: *.num_inducing" in gpbench("plan", "--overrides", f"{study} *.num_inducing=33").out
    with pytest.raises(UserError, match="unknown key 'num_inducin' in the hyperparameters of .*'num_inducing'"):
        make(f"{study} *.num_inducin=33")


def test_a_value_with_spaces_is_kept(project):
    plan = make("methods=[svgp] datasets=[boston] splits=1 'svgp.label=Sparse GP'")
    assert plan.cells[0].label == "Sparse GP"
    assert plan.cells[0].address.overrides == "'label=Sparse GP'"


def test_overrides_replace_hyperparameters_of_the_budget(project):
    def trials(words: str) -> int:
        plan = make(f"methods=[gradient_boosting] datasets=[wine] splits=1 {words}")
        return plan.cells[0].what.method.hyper["trials"]

    assert trials("budget=smoke") == 1
    assert trials("budget=smoke gradient_boosting.trials=3") == 3


def test_the_order_of_overrides_makes_no_other_fit(project):
    words = ["svgp.num_inducing=30", "*.num_inducing=20", "methods=[svgp]", "datasets=[boston]", "splits=1"]
    one, other = (make(" ".join(order)).cells[0] for order in (words, words[::-1]))
    assert one.what.method.hyper["num_inducing"] == 30
    assert one.fits == other.fits


def test_a_data_set_can_have_fewer_splits_and_never_more(project):
    plan = make("methods=[constant] datasets=[boston,wine] splits=3 splits_of={wine:1} first_split=4")
    assert [[f.split for f in c.fits] for c in plan.cells] == [[4, 5, 6], [4]]
    plan = make("methods=[constant] datasets=[boston,digits] splits=2")
    assert [len(c.fits) for c in plan.cells] == [2, 2], "three of digits, says the study"


def test_presets_replace_a_method_on_single_data_sets(project):
    words = "methods=[svgp,bsgp_1] datasets=[boston,wine] splits=1 presets={wine:{bsgp_1:bsgp_2}}"
    plan = make(f"{words} bsgp_1.num_inducing=30")
    layers = {(c.method, c.address.dataset): c.what.method.hyper.get("layers") for c in plan.cells}
    assert layers["bsgp_1", "boston"] == 1
    assert layers["bsgp_1", "wine"] == 2
    assert {c.what.method.hyper["num_inducing"] for c in plan.cells if c.method == "bsgp_1"} == {30}


def test_jobs_read_the_graph_of_the_main_process(project, monkeypatch):
    where = places.find()
    loaded, plan = graph.load(where, "default", SMALL)
    graph.write(where, loaded, plan, executing=True)
    # another plan of the same study, while jobs of the first one wait
    later, plan = graph.load(where, "default", SMALL, site="trainer.job_minutes=7")
    assert later.name == loaded.name
    assert {needs.minutes for needs in later.batches.values()} == {7}
    assert {files.minutes for files in later.datasets.values()} == {7}
    assert "wine" in loaded.catalogue
    assert "fashion_mnist" not in loaded.catalogue, "which is large, and made on request"
    graph.write(where, later, plan, executing=True)
    for waited_for in (loaded, later):
        monkeypatch.setenv(graph.GRAPH, waited_for.file)
        assert graph.read(where) == waited_for
    assert set(loaded.batches) == {b.batch_id for b in make().batches}
    assert {name for b in loaded.batches.values() for name in b.datasets} == {"boston", "wine"}


def test_a_folder_that_a_run_cannot_write_to_is_one_line_before_it_begins(project):
    where = places.find()
    (project / "data").write_text("a file where the folder would be")
    with pytest.raises(UserError, match="cannot write to .*/data/prepared: Not a directory; a run writes there"):
        graph.write(where, *graph.load(where, "default", SMALL), executing=True)
    assert not where.plans.exists()


def test_what_is_not_executed_writes_a_copy_of_the_plans(project):
    where = places.find()
    (where.plans / "items").mkdir(parents=True)
    (where.plans / "items" / "one.json").write_text("{}")
    before = {path: path.stat().st_mtime_ns for path in project.rglob("*")}
    draft = graph.write(where, *graph.load(where, "default", SMALL), executing=False).plans
    assert {path: path.stat().st_mtime_ns for path in project.rglob("*")} == before
    assert {path.name for path in draft.iterdir()} > {"items", "batches", "graphs"}
    assert (draft / "items" / "one.json").stat().st_mtime_ns == before[where.plans / "items" / "one.json"]


def test_the_code_of_the_report_is_digested_where_a_file_of_the_package_has_changed(project, monkeypatch):
    where, digests = places.find(), iter(["first", "second", "third"])
    monkeypatch.setattr(graph, "_report_code", lambda: next(digests))

    def code() -> str:
        graph.write(where, *graph.load(where, "default", SMALL), executing=True)
        return (where.plans / "report.code").read_text()

    assert [code(), code()] == ["first", "first"]
    monkeypatch.setattr(graph, "_times", lambda: "later")
    assert [code(), code()] == ["second", "second"]
    (where.plans / "report.code").unlink()
    assert code() == "third"


def test_only_settings_of_the_trainer_are_of_a_site(project):
    with pytest.raises(
        UserError, match="site= is for settings of the trainer, not 'svgp.steps'; give it in overrides="
    ):
        graph.load(places.find(), "default", SMALL, site="trainer=cluster svgp.steps=9")


def test_a_cluster_has_no_more_jobs_than_its_minutes_ask_for(project):
    words = "methods=[svgp] datasets=[wine] splits=20"
    assert len(make(f"{words} trainer=cluster").batches) == 1
    assert len(make(words).batches) > 1
    (batch,) = make(f"{words} trainer=cluster").batches
    assert batch.batch_id.startswith("svgp-wine-")


def test_the_last_jobs_are_short(project):
    made = make("").batches
    left = sum(batch.seconds for batch in made)
    for batch in made:
        assert batch.seconds <= max(left / 4, LEAST_SECONDS) + 1e-9 or len(batch.groups) == 1
        left -= batch.seconds
    alone = make("trainer.small=0").batches  # so that no group is longer
    assert alone[-1].seconds <= LEAST_SECONDS < alone[0].seconds / 3


def test_statuses_of_an_earlier_run_do_not_hide_a_batch(project):
    """After `gpbench retry`, or a stop, a batch may have the name it had when it ran: Snakemake compares times."""
    where = places.find()
    loaded, plan = graph.load(where, "default", SMALL)
    graph.write(where, loaded, plan, executing=True)
    where.runs.mkdir(exist_ok=True)
    for batch in loaded.batches:
        (where.runs / f"{batch}.json").write_text("{}")
    graph.write(where, *graph.load(where, "default", SMALL), executing=True)
    times = [(where.runs / f"{b}.json", where.plans / "batches" / f"{b}.json") for b in loaded.batches]
    assert all(status.stat().st_mtime_ns < batch.stat().st_mtime_ns for status, batch in times)


def test_the_command_of_a_run_sorts_its_overrides_and_plans_the_same_run(project):
    made = [
        planning.make(places.find(), "default", words)
        for words in ("svgp.label='A b' methods=[svgp] splits=1", "splits=1 methods=[svgp] svgp.label='A b'")
    ]
    assert made[0].command == made[1].command
    given = shlex.split(made[0].command)[-1].removeprefix("overrides=")
    assert planning.run_name("default", given) == made[0].name
