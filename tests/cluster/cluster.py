"""A study on a Slurm of two nodes (`make cluster-test`): jobs that wait, are cancelled, run out of time, lose their
node or their head. Nothing is lost or fitted twice, and the report is written each time.

Not a part of `make test`: pytest collects this file only by its name.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pandas as pd
import psutil
import pytest

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parents[1] / "workflow")]
from graphs import Project  # noqa: E402
from slurm import Slurm, missing  # noqa: E402

from gpbench.study.planning.plan import run_name  # noqa: E402
from projects import pin  # noqa: E402

if reason := missing():
    pytest.exit(f"no cluster test: {reason}", 2)

QUICK = [
    "--slurm-init-seconds-before-status-checks",
    "2",
    "--seconds-between-status-checks",
    "2",
    "--latency-wait",
    "5",
]
PROFILE = ("snakemake", "--workflow-profile", "workflows/profiles/slurm", *QUICK)
STUDY = (
    "budget=smoke methods=[constant,svgp] datasets=[boston,wine] splits=1 svgp.num_inducing=10 svgp.optimiser=adam "
    "svgp.steps=1500"
)
SITE = "trainer=cluster trainer.batch_minutes=0.001"
"""A job a fit."""
OFTEN, AT_THE_END = "trainer.checkpoint_seconds=0", "trainer.checkpoint_seconds=600"
"""A checkpoint after each block, or the last one only."""


@pytest.fixture(scope="module")
def slurm(tmp_path_factory):
    cluster = Slurm(tmp_path_factory.mktemp("slurm"))
    yield cluster
    cluster.stop()


class Study(Project):
    """A project on the cluster whose data are prepared."""

    def __init__(self, root: Path, site: str = f"{SITE} {OFTEN}", study: str = STUDY) -> None:
        super().__init__(root, study, "boston", "wine", "digits", "mnist_5k")
        (self.root / "workflows/profiles/slurm/site.yaml").write_text(f"site: {site}\n")
        assert self.gpbench("data", "prepare", "boston", "wine")[0] == 0
        self.results = self.root / "results" / run_name("default", study)
        self.written: dict[str, int] = {}
        self.steps: dict[str, int] = {}
        self.lost = 0
        self.running: subprocess.Popen[str] | None = None

    def begin(self, *words: str) -> subprocess.Popen[str]:
        self.running = self.start(*PROFILE, *words, "--config", f"overrides={self.study}")
        return self.running

    def look(self) -> None:
        """No finished fit is written again, and steps are lost only where there was no time for a checkpoint."""
        for path in self.root.glob("store/[0-9a-f]*/fit.json"):
            assert self.written.setdefault(path.parent.name, path.stat().st_mtime_ns) == path.stat().st_mtime_ns
        for path in self.root.glob("store/.work/*/progress.json"):
            try:
                step = json.loads(path.read_text())["step"]
            except (FileNotFoundError, ValueError):
                continue
            self.lost = max(self.lost, self.steps.get(path.parent.name, 0) - step)
            self.steps[path.parent.name] = step

    def until(self, condition, seconds: float = 900) -> None:
        def met() -> bool:
            self.look()
            assert self.running is None or self.running.poll() is None, self.running.communicate()[0]
            return bool(condition())

        Slurm.wait(met, seconds)

    def end(self, run: subprocess.Popen[str]) -> tuple[int, str]:
        """Watch a run to its end."""
        self.running = None
        with ThreadPoolExecutor(1) as pool:
            said = pool.submit(run.communicate)
            self.until(said.done, 900)
        return run.returncode, said.result()[0]

    def fitting(self) -> bool:
        """Whether some fit is in the middle of its steps."""
        return any(step > 200 for step in self.steps.values())

    def kill_jobs(self) -> None:
        """The processes of fits that run now, without a word, as the kernel does when memory is short."""
        for process in psutil.process_iter(["cmdline", "cwd"]):
            if process.info["cwd"] == str(self.root) and "gpbench.study.commands.job" in (
                process.info["cmdline"] or []
            ):
                process.kill()

    def statuses(self) -> list[str]:
        assert (self.results / "report.html").stat().st_size > 10_000
        return sorted(pd.read_parquet(self.results / "scores.parquet")["status"])


@pytest.fixture
def study(slurm, tmp_path) -> Iterator[Study]:
    yield Study(tmp_path / "a study")
    slurm.hold(False)


def fits(slurm: Slurm, *states: str) -> list[str]:
    """Jobs of fits."""
    return [number for number, comment in slurm.jobs(*states).items() if comment.startswith("rule_fit")]


def test_plans_made_while_jobs_wait_do_not_disturb_them(slurm, study):
    slurm.hold(True)
    run = study.begin()
    study.until(lambda: len(fits(slurm, "PD")) == 4)
    comments = " ".join(slurm.jobs().values())
    assert "rule_fit_wildcards_constant-boston-" in comments
    assert "rule_fit_wildcards_svgp-wine-" in comments
    before = study.files()
    assert study.call(*PROFILE, "-n", "--config", "overrides=" + STUDY.replace("steps=1500", "steps=70"))[0] == 0
    assert study.call(*PROFILE, "-n", "--config", f"overrides={STUDY}")[0] == 0
    assert study.files() == before, "a dry run writes nothing"
    code, said = study.call(*PROFILE, "--config", f"overrides={STUDY}")
    assert (code, "a running snakemake makes" in said) == (1, True), said
    slurm.hold(False)
    code, said = study.end(run)
    assert code == 0, said
    assert study.statuses() == ["done"] * 4
    logs = list(study.root.glob("logs/slurm/rule_fit/*/*.log"))
    assert len(logs) == 4
    provenance = [json.loads(path.read_text())["provenance"] for path in study.root.glob("store/[0-9a-f]*/fit.json")]
    assert len({one["job"] for one in provenance}) == 4
    assert {one["host"] for one in provenance} == {os.uname().nodename}


def test_cancelled_jobs_keep_their_steps_and_are_begun_again(slurm, tmp_path):
    study = Study(tmp_path / "a study", f"{SITE} {AT_THE_END}")
    run = study.begin()
    study.until(study.fitting)
    subprocess.run(["scancel", *fits(slurm, "R")], check=True)
    code, said = study.end(run)
    assert code == 0, said
    assert "Trying to restart job" in said
    assert study.lost == 0
    assert study.statuses() == ["done"] * 4


def test_a_job_whose_time_is_nearly_over_stops_and_the_next_run_goes_on(slurm, tmp_path):
    words = STUDY.replace("steps=1500", "steps=1500000")
    study = Study(tmp_path / "a study", f"{SITE} {AT_THE_END} trainer.job_minutes=2", words)
    code, said = study.end(study.begin())
    assert code == 1
    assert "Trying to restart job" not in said
    assert study.statuses() == ["done"] * 2 + ["stopped"] * 2
    line = r"^stopped: svgp on (boston|wine), .* as its job had to end at step (\d+) of"
    stopped = dict(re.findall(line, said, re.MULTILINE))
    assert len(stopped) == 2
    assert all(int(step) % 50 == 0 < int(step) for step in stopped.values())
    plan = study.gpbench("plan", "--overrides", words)[1]
    assert all(f"resumes at step {step}" in plan for step in stopped.values())


def test_a_job_that_comes_to_its_limit_keeps_its_steps_and_goes_on(slurm, tmp_path):
    """The limit comes before the job's own clock: Slurm tells it to end, and kills it half a minute later."""
    words = STUDY.replace("steps=1500", "steps=1500000")
    study = Study(tmp_path / "a study", f"{SITE} {AT_THE_END} trainer.job_minutes=4", words)
    run = study.begin()
    study.until(study.fitting)
    (first, *_) = fits(slurm, "R")
    for job in fits(slurm, "R"):
        slurm.say("scontrol", "update", f"JobId={job}", "TimeLimit=1")
    code, said = study.end(run)
    assert code == 1
    assert "TimeLimit=00:01:00" in slurm.say("scontrol", "show", "job", first)
    assert "JobState=TIMEOUT" in slurm.say("scontrol", "show", "job", first)
    assert "Trying to restart job" in said
    assert study.lost == 0
    assert study.statuses() == ["done"] * 2 + ["stopped"] * 2
    print(slurm.say("scontrol", "-o", "show", "job", first))


def test_ten_jobs_that_fetch_at_once_all_have_the_file(slurm, tmp_path):
    study = Study(tmp_path / "a study")
    mirror = tmp_path / "mirror"
    mirror.mkdir()
    content = "".join(f"{i},{i * i}\n" for i in range(100_000))
    pin(study.root, "many.csv", content)
    (study.root / "data/raw/many.csv").rename(mirror / "many.csv")
    fetch = f"{sys.executable} -m gpbench.cli data fetch --files many.csv"
    script = f"export GPBENCH_MIRROR={mirror}; srun --overcommit -n 10 {fetch}"
    words = ["sbatch", "--wait", "-N", "2", "-n", "2", "-o", "fetched.log", "--wrap", script]
    done = subprocess.run(words, cwd=study.root, env=study.environment, check=False, timeout=600)
    said = (study.root / "fetched.log").read_text()
    print(said)
    assert done.returncode == 0, said
    assert (study.root / "data/raw/many.csv").read_text() == content
    assert [path.name for path in (study.root / "data/raw").iterdir() if path.suffix != ".csv"] == []


def test_a_batch_whose_jobs_die_does_not_hold_up_the_report(slurm, study):
    run = study.begin("--retries", "1")  # the second try is the last, and fits nothing
    study.until(study.fitting)
    study.kill_jobs()
    code, said = study.end(run)
    assert code == 1, said
    assert set(study.statuses()) == {"done", "missing"}, said
    assert re.search(r"^missing: svgp on (boston|wine), .*interrupted at step [1-9]\d* of 1500", said, re.MULTILINE)
    code, said = study.end(study.begin())
    assert code == 0, said
    assert study.lost <= 100
    assert study.statuses() == ["done"] * 4


def test_a_job_whose_node_dies_is_requeued_and_goes_on(slurm, study):
    run = study.begin()
    study.until(study.fitting)
    slurm.kill_node("n1")
    slurm.wait(lambda: "down" in slurm.say("sinfo", "-h", "-N", "-n", "n1", "-o", "%T"), 120)
    slurm.start_node("n1")
    code, said = study.end(run)
    assert code == 0, said
    assert study.lost <= 100, "a checkpoint each block"
    assert study.statuses() == ["done"] * 4


def test_a_study_whose_head_dies_is_taken_up_while_its_jobs_run(slurm, study):
    run = study.begin()
    study.until(study.fitting)
    head = psutil.Process(run.pid)
    for process in (head, *head.children(recursive=True)):
        process.send_signal(signal.SIGKILL)
    run.communicate()
    study.running = None
    assert fits(slurm), "they do not need it"
    assert study.gpbench("unlock") == (0, "freed the lock of a run that was killed\n")
    code, said = study.end(study.begin())
    assert code == 0, said
    assert study.lost == 0
    assert study.statuses() == ["done"] * 4
