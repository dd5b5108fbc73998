"""`gpbench list`, `runs`, `status` of the newest run, `--version`, and what `record` refuses."""

import datetime
import io
import json
import os
from types import SimpleNamespace

import pytest

from gpbench import config, places
from gpbench.cli import lists, look
from gpbench.cli.main import main
from gpbench.study.planning import plan as planning
from projects import copy_project

COMMITTED = "those with committed fits are folders of docs/results"
SMOKE = "methods=[constant] datasets=[diabetes] splits=1 budget=smoke"


@pytest.fixture
def where(tmp_path, monkeypatch):
    monkeypatch.setenv("GPBENCH_ROOT", str(copy_project(tmp_path / "project")))
    return places.find()


def test_every_kind_of_name_is_listed(where, capsys):
    for what, some in {"methods": "svgp", "datasets": "boston", "studies": "default"}.items():
        assert main(["list", what, "--json"]) == 0
        assert some in json.loads(capsys.readouterr().out)
    assert main(["list", "items"]) == 0
    lines, err = capsys.readouterr()
    assert "figures/cutajar2017_fig2.pdf" in lines
    assert (err, "later" in lists.listing(where, "items")["figures/cutajar2017_fig2.pdf"]) == ("", False)
    assert main(["list", "datasets"]) == 0
    (boston,) = (line for line in capsys.readouterr().out.splitlines() if line.startswith("boston "))
    width = max(map(len, config.options(where.conf, "dataset")))
    assert boston == f"{'boston':<{width}}  Boston housing (regression, 506 x 13)"
    with pytest.raises(SystemExit) as stopped:
        main(["--version"])
    assert stopped.value.code == 0
    assert capsys.readouterr().out.startswith("gpbench 0.")


def test_a_run_is_listed_with_its_time_its_report_and_its_command(where, monkeypatch):
    when = datetime.datetime(2026, 3, 14, 15, 9).timestamp()  # as people there say it
    monkeypatch.setattr(lists, "runs", lambda _: [lists.Run(name, when, f"snakemake {name}") for name in "ab"])
    (report := where.results / "a" / "report.html").parent.mkdir(parents=True)
    report.touch()
    assert lists.listing(where, "runs") == {
        "a": f"2026-03-14 15:09  {report}  snakemake a",
        "b": "2026-03-14 15:09  no report yet  snakemake b",
    }


def test_status_is_of_the_newest_run_and_a_smoke_run_is_recorded_only_by_force(where, capsys):
    assert lists.runs(where) == []
    assert main(["runs"]) == 0
    assert capsys.readouterr() == ("", f"no run was planned here yet; {COMMITTED}\n")
    for overrides in ("", SMOKE):
        planning.freeze(planning.make(where, "default", overrides), where)
    old, new = (planning.run_name("default", overrides) for overrides in ("", SMOKE))
    os.utime(where.plans / f"{old}.json", (1, 1))
    (where.plans / "default.graph.json").write_text("{}")  # as earlier editions left it
    assert [run.name for run in lists.runs(where)] == [new, old]
    (where.plans / ".default.a1b2c3d4.json").touch()  # left half written by a process that was killed
    (where.plans / "damaged.json").write_bytes(b"\xff")
    assert [run.name for run in lists.runs(where)] == [new, old]
    said = capsys.readouterr().err
    assert (said.count("\n"), "damaged.json is damaged (" in said) == (1, True)
    (where.plans / "damaged.json").unlink()
    (where.plans / f"{old}.seen").touch()  # its plan is what it was, and the store another
    assert [run.name for run in lists.runs(where)] == [old, new]
    (where.plans / f"{old}.seen").unlink()
    words = config.command_words(lists.runs(where)[0].command)
    assert planning.run_name(*words) == new
    assert main(["status"]) == 0
    assert f"{new}: 1 pending" in capsys.readouterr().out
    assert main(["status", "--overrides", SMOKE.replace("splits=1", "splits=3")]) == 0
    assert ": 3 pending" in capsys.readouterr().out, "of the study that is said"
    (where.conf / "method" / "constant.yaml").rename(where.conf / "constant.yaml")
    assert main(["status"]) == 1
    assert capsys.readouterr().err.endswith(f" (of {new}, which was planned last)\n")
    (where.conf / "constant.yaml").rename(where.conf / "method" / "constant.yaml")
    assert main(["status", "default"]) == 0
    assert "default: " in capsys.readouterr().out
    assert main(["runs"]) == 0
    assert f"{new}  " in capsys.readouterr().out.splitlines()[0]
    assert main(["record", "default", "--overrides", SMOKE]) == 1
    assert "budget smoke shows no method's worth; --force records it all the same" in capsys.readouterr().err
    assert not (where.root / "docs" / "results" / new / "scores.csv").exists()


def test_watching_looks_again_and_clears_terminals_alone(where, capsys, monkeypatch):
    looks = []

    def sleep(seconds):
        looks.append(seconds)
        if len(looks) % 2 == 0:
            raise KeyboardInterrupt

    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setattr("gpbench.cli.look.planned", lambda _: None)
    monkeypatch.setattr("gpbench.cli.look._progress", lambda _: look.StudyProgress("a", {}, 0, 1.0, []))
    monkeypatch.setattr("gpbench.cli.look.time", SimpleNamespace(sleep=sleep))
    for is_terminal, before in ((False, ""), (True, look.CLEAR_SCREEN)):
        monkeypatch.setattr("sys.stdout.isatty", lambda is_terminal=is_terminal: is_terminal)
        assert main(["status", "default", "--watch"]) == 130
        shown = f"{before}a: no fits; about 1.0 minutes of one core left\n"
        assert (capsys.readouterr().out, looks[-2:]) == (2 * shown, [2, 2])


def test_a_reader_that_stops_reading_ends_a_command_without_a_word(where, capsys, monkeypatch):
    def closed(*_):
        raise BrokenPipeError

    monkeypatch.setattr("gpbench.study.planning.plan.make", closed)
    monkeypatch.setattr("sys.stdout", io.StringIO())  # which is closed
    assert main(["plan"]) == 1
    assert capsys.readouterr().err == ""


def test_stopping_says_how_to_resume(where, capsys, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("gpbench.study.planning.plan.make", interrupted)
    assert main(["plan"]) == 130
    assert capsys.readouterr().err == "gpbench: stopped; run again to resume\n"
