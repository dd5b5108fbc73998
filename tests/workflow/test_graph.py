"""The real graph on the smoke budget, in a project of its own whose path has a space; the tests run in order."""

from __future__ import annotations

import contextlib
import re
import signal
import subprocess
import time

import pandas as pd
import psutil
import pytest
from graphs import SNAKEMAKE, Project

from gpbench.study.planning.plan import run_name

STUDY = (
    "budget=smoke methods=[constant,svgp] datasets=[boston,wine] splits=2 "
    "figures=[cost] tables=[regression_mnll,unfinished] "
    "svgp.num_inducing=10 svgp.optimiser=adam svgp.steps=150 trainer.checkpoint_seconds=0"
)
RESULTS = run_name("default", STUDY)
FIGURES, TABLES = {"cost"}, {"cost", "regression_mnll", "unfinished"}
FEW = f"""
for entry in (*FIGURES.values(), *TABLES.values()):
    if entry.name not in {FIGURES | TABLES}:
        object.__setattr__(entry, "always_for", ())
"""


def jobs(out: str) -> dict[str, int]:
    """Rule -> number of jobs, from the table that Snakemake prints."""
    return {rule: int(count) for rule, count in re.findall(r"^(\w+) +(\d+)$", out, re.MULTILINE)}


def send(process: subprocess.Popen[str], number: int) -> list[psutil.Process]:
    """Send a signal to a process and everything below it, from the top; those below it."""
    tree = psutil.Process(process.pid)
    below = tree.children(recursive=True)
    for one in (tree, *below):
        with contextlib.suppress(psutil.NoSuchProcess):
            one.send_signal(number)
    return below


def kill(process: subprocess.Popen[str]) -> None:
    """Kill -9 a process and everything below it."""
    psutil.wait_procs(send(process, signal.SIGKILL), timeout=10)
    process.communicate()


def has_checkpoint(project: Project) -> bool:
    """Whether a fit has one now; folders of fits that end vanish while they are listed."""
    with contextlib.suppress(FileNotFoundError):
        return any(project.root.glob("store/.work/*/checkpoint-*.pt"))
    return False


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A project in which the study was killed -9 in the middle of a fit, unlocked, and run to its end."""
    project = Project(tmp_path_factory.mktemp("graph") / "a project", STUDY, "boston", "wine", "digits", "mnist_5k")
    registry = project.root / "src/gpbench/report/registry.py"  # tests of the report draw all of them
    registry.write_text(f"{registry.read_text()}\n{FEW}\n")
    running, deadline = project.start(*SNAKEMAKE, "--config", f"overrides={STUDY}"), time.monotonic() + 600
    while not has_checkpoint(project):
        assert running.poll() is None, running.communicate()[0]
        assert time.monotonic() < deadline
        time.sleep(0.005)
    send(running, signal.SIGSTOP)  # so that the fit is not over before it is killed
    project.said = {"unlock while it runs": project.gpbench("unlock")}
    kill(running)
    project.said["plan"] = project.gpbench("plan", "--overrides", STUDY)
    project.said["unlock"] = project.gpbench("unlock")
    project.said["rerun"] = project.snakemake()
    return project


def test_a_run_that_is_killed_is_unlocked_and_completed(study):
    code, out = study.said["unlock while it runs"]
    assert (code, out.count("\n")) == (1, 1)
    assert "is in use by a running snakemake (process " in out
    assert re.search(r"svgp (boston|wine) split \d +pending .*resumes at step [1-9]", study.said["plan"][1])
    assert study.said["unlock"] == (0, "freed the lock of a run that was killed\n")
    code, out = study.said["rerun"]
    assert code == 0, out
    assert not list(study.root.glob("store/.work/*"))
    assert study.gpbench("unlock") == (0, "not locked\n")


def test_a_study_leaves_its_report(study):
    folder = study.root / "results" / RESULTS
    assert (folder / "report.html").stat().st_size > 10_000
    last = study.said["rerun"][1].splitlines()[-1]
    assert last == f"gpbench: done; see results/{RESULTS}/report.html"
    assert {p.stem for p in (folder / "figures").glob("*.pdf")} == FIGURES
    assert {p.stem for p in (folder / "tables").glob("*.csv")} == TABLES
    scores = pd.read_parquet(folder / "scores.parquet")
    assert len(scores) == 2 * 2 * 2
    assert set(scores["status"]) == {"done"}
    assert set(scores["fit_id"]) == study.fits()


def test_a_second_run_does_nothing(study):
    before = study.files()
    code, out = study.snakemake()
    assert (code, "Nothing to be done" in out) == (0, True), out
    assert study.files() == before


def test_a_typo_is_refused_before_any_job_and_deletes_nothing(study):
    before = study.files()
    code, out = study.snakemake(overrides="budget=smok")
    assert code == 1
    assert "unknown budget 'smok'; did you mean 'smoke'?" in out
    assert "Traceback" not in out
    assert study.files() == before


def test_a_figure_of_a_paper_is_made_by_its_name_from_the_fits_that_are_there(study):
    words = STUDY.split()
    item = f"{{title: Cost, study: default, overrides: {words[-1]}, figure: cost}}"
    (study.root / "conf/paper/someone2020.yaml").write_text(f"name: someone2020\ntitle: x\nitems:\n  fig1: {item}\n")
    before, given = study.fits(), " ".join(words[:-1])
    code, out = study.snakemake("figures/someone2020_fig1.pdf", overrides=given)
    assert code == 0, out
    assert study.fits() == before
    caption = (study.root / "figures/someone2020_fig1.md").read_text()
    assert "**Cost (someone2020, fig1)**" in caption
    assert "Data: boston, wine. Protocol common, budget smoke, 2 splits. 8 of 8 fits done; commit" in caption
    assert "Nothing to be done" in study.snakemake("figures/someone2020_fig1.pdf", overrides=given)[1]


def test_one_changed_setting_refits_one_method(study):
    before = study.fits()
    changed = STUDY.replace("svgp.steps=150", "svgp.steps=60")
    code, out = study.snakemake(f"results/{run_name('default', changed)}/scores.parquet", overrides=changed)
    assert code == 0, out
    listed = jobs(out)
    assert listed["fit"] >= 1
    assert set(listed) == {"fit", "collect", "total"}, "nothing is prepared anew"
    assert before < study.fits()
    scores = pd.read_parquet(study.root / "results" / run_name("default", changed) / "scores.parquet")
    new = scores[~scores["fit_id"].isin(before)]
    assert set(new["method"]) == {"svgp"}
    assert len(new) == 2 * 2 == len(study.fits() - before)


def test_words_about_a_report_redraw_nothing_and_its_code_refits_nothing(study):
    page = study.root / "src/gpbench/report/page/page.py"
    page.write_text(page.read_text() + "\n# a comment\n")
    assert "Nothing to be done" in study.snakemake("-n")[1]
    page.write_text(page.read_text() + "\nSOMETHING_NEW = 1\n")
    before = study.files()
    listed = jobs(study.snakemake("-n")[1])
    assert study.files() == before, "a dry run writes nothing"
    assert listed["page"] == 1
    assert not {"fit", "collect", "prepare"} & set(listed)


def test_a_failing_fit_fails_the_study_after_its_report(study):
    text = "budget=smoke methods=[constant,svgp] datasets=[wine] splits=1 svgp.learning_rate=1e200 figures=[] tables=[]"
    folder = study.root / "results" / run_name("default", text)
    code, out = study.snakemake(overrides=text)
    assert code == 1
    assert re.search(r"^diverged: svgp on wine, split 0 \([0-9a-f]{16}\): ", out, re.MULTILINE), out
    assert f"1 fit of {folder.name} failed or is missing" in out
    assert (folder / "report.html").is_file()
    assert not (folder / "complete.txt").exists()
    log = study.root / "logs" / folder.name / "verdict.log"
    assert log.read_text() in out
    assert "diverged: svgp on wine" in log.read_text()
    assert sorted(pd.read_parquet(folder / "scores.parquet")["status"]) == ["diverged", "done"]
    # a result as good as any: it is not fitted again, until someone asks for it
    assert ": 0 fits to run" in study.gpbench("plan", "--overrides", text)[1]
    assert "1 fit cleared" in study.gpbench("retry")[1]
    assert jobs(study.snakemake("-n", overrides=text)[1])["fit"] == 1
