"""`gpbench backlog`: tables fill evenly, finished fits are recorded, nothing is done twice, refusals are one line."""

import contextlib
import csv
import os
import signal
import subprocess
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from gpbench import config, places
from gpbench.errors import UserError
from gpbench.study.commands import backlog, job
from gpbench.study.planning import plan as planning
from gpbench.study.storage.store import Store

SMALL = "methods=[constant,linear] datasets=[boston,wine] splits=2"


@pytest.fixture
def where(project, monkeypatch):
    """A project whose backlog is four cells of two splits, of which the first run names one method."""
    monkeypatch.setattr(backlog, "NICENESS", 0)  # a busy machine would not come to it
    write(
        project,
        f'{{study: default, overrides: "{SMALL}", methods: [constant]}}',
        f'{{study: default, overrides: "{SMALL}"}}',
    )
    return places.find()


def write(project, *runs, minutes=10.0):
    lines = "".join(f"  - {run}\n" for run in runs)
    (project / "conf/backlog.yaml").write_text(f"runs:\n{lines}piece_minutes: {minutes}\n")


def piece(where, run, tried=frozenset(), absent=None, minutes=10.0, cores=1):
    jobs = next_piece(where, run, cores, minutes, set(tried), absent or {})
    return [group for job in jobs for group in job.groups]


def next_piece(where, run, *others):
    waiting = config.backlog(where.conf).runs[run]
    return backlog.next_piece(where, waiting, planning.make(where, waiting.study, waiting.overrides), *others)


def cells(groups):
    return [(group.fits[0].split, group.address.method, group.address.dataset) for group in groups]


def test_a_split_of_every_cell_comes_before_the_next_and_cheap_cells_first(where):
    found = cells(piece(where, 1))
    assert [split for split, _, _ in found] == [0] * 4 + [1] * 4
    assert {method for _, method, _ in found[:2]} == {"constant"}
    assert set(found[:4]) == {(0, method, data) for method in ("constant", "linear") for data in ("boston", "wine")}


def test_a_short_piece_holds_one_group_a_core_and_what_was_tried_does_not_come_again(where):
    one = piece(where, 1, minutes=1e-9)
    assert len(one) == 1
    assert len(piece(where, 1, minutes=1e-9, cores=2)) == 2
    second = piece(where, 1, tried={one[0].fits[0].fit_id}, minutes=1e-9)
    assert cells(second) != cells(one)


def test_a_piece_lasts_its_minutes_as_costs_are_predicted_and_begins_with_the_cheapest(where, monkeypatch):
    """Of 50 s a fit of linear and 55 s of constant, two are more than a minute, and one is not."""
    cost = type(planning.make(where, "default", SMALL).cost)
    monkeypatch.setattr(cost, "seconds", lambda _, group, ran: {"linear": 50.0, "constant": 55.0}[group.address.method])
    assert [method for _, method, _ in cells(piece(where, 1, minutes=1.0))] == ["linear"] * 2
    assert [method for _, method, _ in cells(piece(where, 1, minutes=2.0))] == ["linear"] * 2 + ["constant"]


def test_a_fit_that_does_not_end_is_begun_once(where, monkeypatch):
    begun = []
    monkeypatch.setattr(backlog, "_work", lambda _, run, jobs, end: begun.extend(jobs))
    list(backlog.run(where, 1, 0.2))
    fits = [fit.fit_id for job in begun for group in job.groups for fit in group.fits]
    assert len(fits) == len(set(fits)) == 8


def test_a_fit_that_another_process_is_at_is_left_to_it(where):
    first = piece(where, 1)[0]
    with Store(where.store).locked([first.fits[0].fit_id]):
        assert cells([first])[0] not in cells(piece(where, 1))
    assert cells([first])[0] in cells(piece(where, 1))


def test_a_job_that_does_not_wait_ends_while_another_process_is_at_a_fit(where, monkeypatch):
    first, *others = piece(where, 1)
    begun = []
    monkeypatch.setattr(job, "run_group", lambda group, *_: begun.append(group))
    with Store(where.store).locked([first.fits[0].fit_id]):
        statuses = job.run_groups((first, *others), where, waits=False)
    assert cells(begun) == cells(others)
    assert statuses[first.fits[0].fit_id]["status"] != "done"


def test_two_backlogs_that_began_with_the_same_fits_share_them(where, monkeypatch):
    first, *others = piece(where, 1)
    begun = []
    with contextlib.ExitStack() as other:
        other.enter_context(Store(where.store).locked([first.fits[0].fit_id]))

        def run_group(group, *_):
            begun.append(group)
            if len(begun) == len(others):
                other.close()

        monkeypatch.setattr(job, "run_group", run_group)
        job.run_groups((first, *others), where)
    assert cells(begun) == cells([*others, first])


def test_a_begun_fit_of_a_method_that_the_backlog_does_not_name_is_left_alone(where):
    begun = next(group for group in piece(where, 1) if group.address.method == "linear")
    Store(where.store).begin(begun)
    assert {method for _, method, _ in cells(piece(where, 0))} == {"constant"}
    assert cells([begun])[0] in cells(piece(where, 1))


def test_what_it_runs_is_recorded_and_is_not_run_again(where, gpbench):
    lines = gpbench("backlog").out.splitlines()
    assert lines[1].split()[1:4] == ["0", "of", "4"]
    assert lines[2].split("overrides=")[1].strip("'").endswith("only=[constant] splits=2")
    answer = gpbench("backlog", "run", "--minutes", "10")
    assert answer.code == 0, answer.err
    assert "4 fits of 8 that are left" in answer.out
    assert "4 fits of 4 that are left" in answer.out
    (path,) = (where.root / "docs/results").glob("default-*/scores.csv")
    with path.open() as stream:
        assert [row["status"] for row in csv.DictReader(stream)] == ["done"] * 8
    with path.with_name("calibration.csv").open() as stream:
        assert len({row["fit_id"] for row in csv.DictReader(stream)}) == 8
    before = path.read_bytes()
    assert gpbench("backlog", "run").out == ""
    assert path.read_bytes() == before
    assert all("nothing" in line for line in gpbench("backlog").out.splitlines()[1::2])


def test_what_ended_after_its_backlog_was_killed_is_recorded_by_the_next(where, gpbench):
    """Jobs have sessions of their own."""
    job.run_groups(tuple(piece(where, 1)), where)
    answer = gpbench("backlog", "run")
    assert (answer.code, answer.out.count("\n"), "8 fits recorded, 8 in all" in answer.out) == (0, 1, True)
    assert gpbench("backlog", "run").out == ""


def test_what_others_should_not_see_is_not_recorded(where, gpbench):
    write(where.root, f'{{study: default, overrides: "{SMALL} budget=smoke", methods: [constant]}}')
    answer = gpbench("backlog", "run", "--minutes", "10")
    assert "not recorded: budget smoke shows no method's worth" in answer.out
    assert not (where.root / "docs/results").exists()


def test_a_fit_of_a_changed_tree_is_recorded_by_force_and_then_holds_up_nothing(where, gpbench, monkeypatch):
    words = ("record", "--overrides", SMALL)
    gpbench("backlog", "run", "--minutes", "10")
    clean = Store.verified

    def of_a_changed_tree(store, fit_id):
        record = clean(store, fit_id)
        return replace(record, provenance=replace(record.provenance, dirty=True))

    monkeypatch.setattr(Store, "verified", of_a_changed_tree)
    answer = gpbench(*words)
    assert (answer.code, "8 fits had uncommitted changes; --force records" in answer.err) == (1, True)
    assert gpbench(*words, "--force").code == 0
    assert gpbench(*words).code == 0


def test_data_that_cannot_be_had_are_left_out_with_the_reason(project, where, monkeypatch, gpbench):
    def ensure(dataset, places):
        raise UserError(f"no mirror has {dataset.name}")

    monkeypatch.setattr(backlog.prepare, "ensure", ensure)
    write(project, '{study: uci_common, overrides: "methods=[constant] datasets=[yacht] splits=1"}')
    answer = gpbench("backlog", "run")
    assert (answer.code, answer.out) == (0, "uci_common: yacht is left out: no mirror has yacht\n")


def test_a_wrong_name_is_found_before_anything_is_fitted(project, where, gpbench):
    write(project, "{study: default}", "{study: defalt}")
    answer = gpbench("backlog", "run")
    assert (answer.code, answer.out) == (1, "")
    assert "unknown study 'defalt'" in answer.err
    write(project, "{study: default}", "{study: default, methods: [lin]}")
    answer = gpbench("backlog", "run")
    assert (answer.code, answer.out) == (1, "")
    assert "unknown method 'lin' in conf/backlog.yaml, study 'default'" in answer.err
    (project / "conf" / "backlog.yaml").unlink()
    assert gpbench("backlog").err.endswith("backlog.yaml cannot be read: No such file or directory\n")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{study: defalt}", "conf/backlog.yaml; did you mean 'default'?"),
        (
            "{study: default, methods: [dsvy]}",
            "unknown method 'dsvy' in conf/backlog.yaml, study 'default'; did you mean",
        ),
        ("{study: default, budget: smoke}", "unknown key 'budget'"),
        ("{study: default, methods: []}", "methods"),
        ("{study: default, overrides: budget=smok}", "conf/backlog.yaml, study 'default' with overrides 'budget=smok'"),
    ],
)
def test_a_wrong_entry_is_one_line(project, where, gpbench, content, message):
    write(project, content)
    answer = gpbench("backlog", "run")
    assert answer.code == 1
    assert message in answer.err
    assert len(answer.err.splitlines()) == 1


def test_minutes_must_be_positive(where, gpbench):
    assert "must be positive" in gpbench("backlog", "run", "--minutes", "0").err
    assert "must be positive" in gpbench("backlog", "--cores", "0").err


GROUPING = Path("/proc/sys/kernel/sched_autogroup_enabled")


@pytest.mark.skipif(
    not GROUPING.is_file() or GROUPING.read_text() != "1\n", reason="this kernel does not group tasks by session"
)
def test_its_jobs_yield_to_other_sessions_too(where, monkeypatch):
    monkeypatch.setattr(backlog, "NICENESS", 19)
    found = next_piece(where, 1, 2, 10.0, set(), {})
    started = [backlog._start(where, job) for job in found]
    groups = [Path(f"/proc/{process.pid}/autogroup").read_text().split() for process in started]
    for process in started:
        process.kill()
        process.wait()
    assert [words[1:] for words in groups] == [["nice", "19"]] * 2
    own = set(Path("/proc/self/autogroup").read_text().split()[:1])  # none where no session was ever opened
    assert len({words[0] for words in groups} - own) == 2


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_told_to_end_it_ends_its_jobs(where, gpbench, monkeypatch, number):
    """A job that sleeps stands for one that fits."""
    started = []

    def sleeper(*_):
        started.append(subprocess.Popen(["sleep", "100"]))
        threading.Timer(0.1, os.kill, (os.getpid(), number)).start()
        return started[-1]

    monkeypatch.setattr(backlog, "_start", sleeper)
    before = {one: signal.getsignal(one) for one in (signal.SIGTERM, signal.SIGHUP)}
    signal.signal(number, signal.SIG_DFL)  # tests may run under nohup
    try:
        assert gpbench("backlog", "run").code == 130
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)
    assert [job.poll() for job in started] == [-signal.SIGTERM]
