"""A storm of faults over a smoke study: `python tests/faults/storm.py --minutes 10 --seed 1` (or `make faults`).

A round is some acts, before each of which some fits are taken away, so that there is work to do: processes of every
kind are killed -9 (a job, its fit, both; collect, record, plan, verify, retry), files of the store, of checkpoints, of
plans, data and results are flipped, cut, emptied, deleted and exchanged, the disk of the store is full or read-only,
memory is short, the clock jumps, another user does it, two processes do the same at once. Then the study is run to its
end. Found is what should not be: a number that differs from the undisturbed run by a bit, a sound fit that is gone, a
traceback, a study that does not end. Needs root for disks and users of its own and limits of memory; without, disks and
users are left out.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import multiprocessing
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pandas as pd
import psutil

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # as pytest does
os.environ["OMP_NUM_THREADS"] = "1"  # a fork of a process with threads may never end
import torch  # noqa: F401 - children are forked from a process that has imported everything
from acts import ACTS, SHARES

from gpbench import config, places
from gpbench.cli.main import main as gpbench
from gpbench.data.prepare import prepare
from gpbench.errors import UserError, exit_status
from gpbench.report.view import load
from gpbench.study.commands import job, predict_csv
from gpbench.study.fitting import lightning_module  # noqa: F401
from gpbench.study.planning import plan as planning
from gpbench.study.results import collect
from gpbench.study.storage.store import Store
from projects import copy_project

STUDY = (
    "methods=[constant,linear,svgp] datasets=[mine] splits=3 budget=smoke svgp.num_inducing=5 svgp.optimiser=adam "
    "svgp.steps=120 noise_block=10 trainer.checkpoint_seconds=0 trainer.replicas=1 trainer.eval_points=2"
)
MEASURED = ("seconds", "memory", "commit", "dirty", "started", "ended")
DISK_MB = 40


class Storm:
    """A project under faults, and what was done and found; rng: decides everything but the speed of the machine."""

    def __init__(self, root: Path, seed: int) -> None:
        self.rng, self.root = random.Random(seed), root
        self.acts, self.found = Counter[str](), list[str]()
        self.seconds: dict[str, float] = {}
        copy_project(root)
        root.parent.chmod(0o755)  # for other users
        self.mounted = _mount(root / "store")
        os.environ.update(GPBENCH_ROOT=str(root), CI="1", MLFLOW_DISABLE_TELEMETRY="true")
        for name in ("GPBENCH_STORE", "GPBENCH_MIRROR", "MLFLOW_TRACKING_URI"):
            os.environ.pop(name, None)
        os.chdir(root)
        rows = "".join(f"{i},{i % 7},{i * i % 11}\n" for i in range(60))
        (root / "table.csv").write_text(f"a,b,y\n{rows}")
        assert gpbench(["data", "add", "table.csv", "--target", "y", "--name", "mine"]) == 0
        self.where = places.find()
        self.store = Store(self.where.store)
        self.plan = planning.make(self.where, "default", STUDY)
        self.name, self.study = self.plan.name, STUDY
        assert self.settle("undisturbed") == 1, self.found
        self.fits = {fit_id: _sha256(self.store.folder(fit_id) / "points.parquet") for fit_id in self.store.ids()}
        self.scores = self.scored()
        self.predicted = {fit_id: self._predict(fit_id) for fit_id in self.fits}

    # what is run, each in a process of its own

    def batches(self) -> None:
        """Plan, and run what is missing, as Snakemake's jobs do."""
        plan = planning.make(self.where, "default", STUDY)
        planning.freeze(plan, self.where)
        for batch in plan.batches:
            source = self.where.plans / "batches" / f"{batch.batch_id}.json"
            job.run(source, self.where.runs / source.name)

    def collect(self) -> None:
        collect.collect(self.where, self.name)

    def command(self, *words: str) -> Callable[[], object]:
        def run() -> None:
            if gpbench(list(words)) not in (0, 1):
                raise AssertionError(f"gpbench {words} ended otherwise")

        return run

    def start(
        self, work: Callable[[], object], before: Callable[[], object] = lambda: None
    ) -> tuple[psutil.Process, Path, float]:
        """Begin some work in a process; its output goes to a file."""
        out = Path(tempfile.mkstemp(dir=self.root / "logs")[1])

        def child() -> None:
            os.setsid()
            for stream in (1, 2):
                os.dup2(os.open(out, os.O_WRONLY | os.O_APPEND), stream)
            sys.stdout = sys.stderr = os.fdopen(2, "w", buffering=1)
            before()
            sys.exit(exit_status(work))

        process = multiprocessing.get_context("fork").Process(target=child)
        process.start()
        return process, out, time.monotonic()

    def end(self, name: str, started: tuple[multiprocessing.Process, Path, float], killed: bool = False) -> str:
        """Wait for a process; what it said. Its time is what kills are drawn from."""
        process, out, since = started
        process.join(120)
        if process.is_alive():
            self.found.append(f"{name}: does not end")
            process.kill()
        text = out.read_text(errors="replace")
        out.unlink()
        if "Traceback" in text or (not killed and process.exitcode not in (0, 1)):
            self.found.append(f"{name}: exit {process.exitcode}: {text[-1500:]}")
        if not killed:
            self.seconds[name] = 0.5 * self.seconds.get(name, time.monotonic() - since) + 0.5 * (
                time.monotonic() - since
            )
        return text

    def run(self, name: str, work: Callable[[], object], before: Callable[[], object] = lambda: None) -> str:
        return self.end(name, self.start(work, before))

    # what must hold

    def scored(self) -> dict[str, dict[str, object]]:
        """fit_id -> what was collected of it, but for what measures the machine."""
        frame = pd.read_parquet(self.results_of("scores"))
        kept = [name for name in frame if not any(part in name for part in MEASURED)]
        rows = frame[kept].astype(object).where(frame[kept].notna(), None).to_dict("records")
        return {row["fit_id"]: row for row in rows}

    def results_of(self, name: str) -> Path:
        return self.where.results / self.name / f"{name}.parquet"

    def compare(self, name: str, whole: bool) -> None:
        """What was collected is what the undisturbed run gave; of done fits alone unless `whole`."""
        for fit_id, row in self.scored().items():
            then = self.scores[fit_id]
            moved = {key: (then.get(key), row.get(key)) for key in {*then, *row} if then.get(key) != row.get(key)}
            if moved and (whole or row["status"] == "done"):
                self.found.append(f"{name}: {fit_id} has {moved}")

    def read(self, path: Path, content: bytes) -> None:
        """A damaged table that was `content` is refused, or it is what it was; this may have been damaged before."""
        before = self.root / "before.parquet"
        before.write_bytes(content)
        with contextlib.suppress(UserError):
            if not load(before).astype(object).equals(load(path).astype(object)):
                self.found.append(f"{path} has other numbers and is read")

    def sound(self) -> set[str]:
        """The fits whose files are those of the undisturbed run."""
        return {fit_id for fit_id in self.fits if self._is_sound(fit_id)}

    def _is_sound(self, fit_id: str) -> bool:
        points = self.store.folder(fit_id) / "points.parquet"
        try:
            return points.is_file() and _sha256(points) == self.fits[fit_id] and not self.store.fault(fit_id)
        except UserError:  # no record, or one that a flipped byte made one of another edition
            return False

    def settle(self, name: str) -> int:
        """Run the study until every fit is done; how often that took."""
        for attempt in range(1, 5):
            said = self.run("batches", self.batches)
            if "gpbench data prepare" in said:
                self.where.prepared_file("mine").unlink(missing_ok=True)
                prepare(config.compose(self.where.conf, "dataset", "mine"), self.where)
            self.run("collect", self.collect)
            states = collections(self.results_of("scores"))
            if set(states) == {"done"}:
                return attempt
            self.run("retry", self.command("retry"))
        self.found.append(f"{name}: the study does not end: {states}")
        return 0

    def round(self, acts: list[str]) -> None:
        """Some acts, then the study to its end."""
        for act in acts:
            self.acts[act] += 1
            for fit_id in self.rng.sample(sorted(self.fits), self.rng.randint(int(act != "damage"), 3)):
                shutil.rmtree(self.store.folder(fit_id), ignore_errors=True)
            before = self.sound()
            touched = ACTS[act](self) or set()
            if lost := before - touched - self.sound():
                self.found.append(f"{act}: lost {lost}")
            self.forget_records()
        self.settle(", ".join(acts))
        self.compare(", ".join(acts), whole=True)
        for folder in (self.store.cleared, self.root / "store/.work"):
            shutil.rmtree(folder, ignore_errors=True)
        (self.root / "store/.work").mkdir()

    def forget_records(self) -> None:
        """They stand in for fits, with numbers of ten digits."""
        shutil.rmtree(self.root / "docs", ignore_errors=True)

    def _predict(self, fit_id: str) -> dict[str, list[float]]:
        inputs = pd.DataFrame({"a": [1.0, 30.0], "b": [2.0, 5.0]}).to_numpy()
        return predict_csv.Model(self.where, fit_id).predict(inputs).to_dict("list")

    def predict(self, fit_id: str) -> None:
        if self._predict(fit_id) != self.predicted[fit_id]:
            raise AssertionError(f"Traceback: {fit_id} predicts otherwise")


def collections(path: Path) -> dict[str, int]:
    """Status -> number of fits."""
    return pd.read_parquet(path, columns=["status"])["status"].value_counts().to_dict()


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _mount(folder: Path) -> bool:
    """Give a folder a small disk of its own; False where that is not allowed."""
    folder.mkdir(parents=True)
    command = ["mount", "-t", "tmpfs", "-o", f"size={DISK_MB}m", "tmpfs", str(folder)]
    return os.geteuid() == 0 and subprocess.run(command, capture_output=True, check=False).returncode == 0


@contextlib.contextmanager
def storm(seed: int) -> Iterator[Storm]:
    """A project under faults, in a temporary folder."""
    root = Path(tempfile.mkdtemp(prefix="gpbench-storm-")) / "a project"
    (root / "logs").mkdir(parents=True)
    try:
        yield Storm(root, seed)
    finally:
        os.chdir("/")
        subprocess.run(["umount", str(root / "store")], capture_output=True, check=False)
        shutil.rmtree(root.parent, ignore_errors=True)


def report(done: Storm, seed: int, minutes: float) -> str:
    acts = "\n".join(f"  {name:<24}{number:>5}" for name, number in done.acts.items())
    found = "\n".join(f"  {line}" for line in done.found) or "  nothing"
    number = sum(done.acts[name] for name in ACTS)
    return f"seed {seed}, {minutes:.1f} minutes, {number} acts\nacts:\n{acts}\nfound:\n{found}"


def weather(seed: int, minutes: float) -> Storm:
    """A storm of so many minutes; prints its report."""
    began = time.monotonic()
    with storm(seed) as made:
        barred = set() if made.mounted else {name for name in ACTS if "disk" in name}
        barred |= {"other user"} if os.geteuid() else set()
        shares = [0 if name in barred else share for name, share in zip(ACTS, SHARES, strict=True)]
        try:
            while time.monotonic() - began < 60 * minutes:
                made.round(made.rng.choices(list(ACTS), shares, k=made.rng.randint(1, 8)))
        finally:
            print(report(made, seed, (time.monotonic() - began) / 60))
        return made


if __name__ == "__main__":
    words = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    words.add_argument("--minutes", type=float, default=10.0)
    words.add_argument("--seed", type=int, default=0)
    given = words.parse_args()
    sys.exit(bool(weather(given.seed, given.minutes).found))
