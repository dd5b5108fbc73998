"""A storm of faults over a smoke study: `python tests/faults/storm.py --minutes 10 --seed 1` (or `make faults`).

A round is some acts, before each of which some fits are taken away, so that there is work to do: processes of every
kind are killed -9 (a job, its fit, both; collect, record, plan, verify, retry), files of the store, of checkpoints, of
plans, data and results are flipped, cut, emptied, deleted and exchanged, the disk of the store is full or read-only,
memory is short, the clock jumps, two processes do the same at once. Then the study is run to its end. Found is what
should not be: a number that differs from the undisturbed run by a bit, a sound fit that is gone, a traceback, a study
that does not end. Needs root for disks of its own and limits of memory; without, disks are left out.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import multiprocessing
import os
import random
import resource
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

from gpbench import config, places
from gpbench.cli.main import main as gpbench
from gpbench.data.prepare import prepare
from gpbench.errors import UserError, exit_status
from gpbench.report.view import load
from gpbench.study.commands import job, predict_csv
from gpbench.study.fitting import lightning_module  # noqa: F401
from gpbench.study.planning import plan as planning
from gpbench.study.results import collect
from gpbench.study.storage.store import IDENTITY, Store
from projects import copy_project, hold_tracker

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
        self.mounted = _mount(root / "store")
        hold_tracker(root / "store")
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
        self.name = self.plan.name
        assert self.settle("undisturbed") == 1, self.found
        self.fits = {fit_id: _sha256(self.store.folder(fit_id) / "points.parquet") for fit_id in self.store.ids()}
        self.scores = self.scored()
        self.results = {name: load(self.results_of(name)) for name in ("scores", "points", "traces")}
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

    def sound(self) -> set[str]:
        """The fits whose files are those of the undisturbed run."""
        return {fit_id for fit_id in self.fits if self._is_sound(fit_id)}

    def _is_sound(self, fit_id: str) -> bool:
        points = self.store.folder(fit_id) / "points.parquet"
        kept = self.store.has(fit_id) and points.is_file() and _sha256(points) == self.fits[fit_id]
        return kept and not self.store.fault(fit_id)

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
            shutil.rmtree(self.root / "docs", ignore_errors=True)  # records stand in for fits
        self.settle(", ".join(acts))
        self.compare(", ".join(acts), whole=True)
        for folder in (self.store.cleared, self.root / "store/.work"):
            shutil.rmtree(folder, ignore_errors=True)
        (self.root / "store/.work").mkdir()

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


# acts: each returns the fits that it damages


def kill(storm: Storm) -> None:
    """Kill -9 a process, its children or all of them at a random moment of its work."""
    works = {
        "batches": storm.batches, "collect": storm.collect, "record": storm.command("record", "--overrides", STUDY, "--force"),
        "retry": storm.command("retry"), "verify": storm.command("verify"),
        "plan": lambda: planning.freeze(planning.make(storm.where, "default", STUDY), storm.where),
    }  # fmt: skip
    name = storm.rng.choice(["batches"] * 5 + list(works))
    started = storm.start(works[name])
    time.sleep(storm.rng.uniform(0, storm.seconds.get(name, 1.0)))
    with contextlib.suppress(psutil.NoSuchProcess):
        top = psutil.Process(started[0].pid)
        below = top.children(recursive=True)
        for process in storm.rng.choice([[top], below or [top], below[:1] or [top], [top, *below]]):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
    storm.end(name, started, killed=True)
    storm.acts[f"  kill of {name}"] += 1


def damage(storm: Storm) -> set[str]:
    """Flip, cut, empty, delete or exchange a file of the store, the plans, the data or the results."""
    gone = set[str]()
    if storm.rng.random() < 0.2:  # so that there are checkpoints
        gone.add(storm.rng.choice([fit.fit_id for cell, fit in storm.plan.fits if cell.method == "svgp"]))
        shutil.rmtree(storm.store.folder(*gone), ignore_errors=True)
        kill(storm)
    places_of = [
        [p for p in storm.root.glob("store/*/*") if IDENTITY.fullmatch(p.parent.name)], [*storm.root.glob("store/.work/*/*")],
        [*storm.root.glob("plans/**/*.*")], [storm.where.prepared_file("mine")], [*(storm.where.results / storm.name).glob("*.*")],
    ]  # fmt: skip
    files = storm.rng.choices([[p for p in group if p.is_file()] for group in places_of], [6, 4, 1, 1, 2])[0]
    if not files:
        return gone
    path = storm.rng.choice(sorted(files))
    content, how = path.read_bytes(), storm.rng.choice(["flip", "cut", "empty", "delete", "exchange"])
    place = storm.rng.randrange(max(len(content), 1))
    if how == "flip" and content:
        path.write_bytes(
            content[:place] + bytes([content[place] ^ (1 << storm.rng.randrange(8))]) + content[place + 1 :]
        )
    elif how == "exchange":
        path.write_bytes(storm.rng.choice([p for p in files if p.suffix == path.suffix]).read_bytes())
    elif how == "delete":
        path.unlink()
    else:
        path.write_bytes(content[: place if how == "cut" else 0])
    storm.acts[f"  {how} of {path.relative_to(storm.root).parts[0]}"] += 1
    fit_id = path.parent.name if path.parent.parent == storm.where.store else ""
    if fit_id in storm.fits and storm.rng.random() < 0.5:
        said = storm.run("predict", lambda: storm.predict(fit_id))
        if (
            path.suffix != ".txt"
            and path.name not in ("scores.json",)
            and path.exists()
            and path.read_bytes() != content
            and not said
        ):
            storm.found.append(f"damage: {how} of {path}: predict says nothing")
    elif (
        how == "flip"
        and path.suffix == ".parquet"
        and place < len(content) - 8 - int.from_bytes(content[-8:-4], "little")
    ):
        with contextlib.suppress(UserError):  # refused is right, another number is not; the footer has no checksum
            if not load(path).equals(storm.results[path.stem]):
                storm.found.append(f"damage: a byte of {path} is read as another number")
    name = storm.rng.choice(["plan", "status", "verify", "retry", "collect"])
    if name != "collect":
        words = ("--overrides", STUDY) if name in ("plan", "status") else ()
        storm.run(name, storm.command(name, *words))
    elif "collected" in storm.run("collect", lambda: print("collected", storm.collect())):
        storm.compare(f"{how} of {path}", whole=False)
    return {fit_id, *gone}


def full_disk(storm: Storm) -> None:
    """Work while a few kB of the store's disk are free."""
    ballast, free = storm.root / "store/.ballast", shutil.disk_usage(storm.root / "store").free
    left = storm.rng.choice([0, 4096, 16384, 65536, 200_000])
    with contextlib.suppress(OSError), ballast.open("wb") as stream:
        for _ in range((free - left) // 4096):
            stream.write(bytes(4096))
            stream.flush()
    _work(storm)
    ballast.unlink()


def read_only_disk(storm: Storm) -> None:
    """Work while the store's disk is read-only."""
    for mode in ("ro", "rw"):
        subprocess.run(["mount", "-o", f"remount,{mode}", str(storm.root / "store")], check=True)
        if mode == "ro":
            _work(storm)


def _work(storm: Storm, before: Callable[[], object] = lambda: None) -> None:
    for name, work in storm.rng.sample(
        [("batches", storm.batches), ("collect", storm.collect), ("retry", storm.command("retry"))], 2
    ):
        storm.run(name, work, before)


def little_memory(storm: Storm) -> None:
    """Jobs with a limit of memory: of a cgroup, which kills, or of their addresses, which refuses."""
    more = storm.rng.choice([1, 5, 20, 60]) << 20
    group = Path("/sys/fs/cgroup/memory/gpbench-storm")
    with contextlib.suppress(OSError):
        group.mkdir(exist_ok=True)

    def limit() -> None:
        if storm.rng.random() < 0.5 and (group / "cgroup.procs").is_file():
            (group / "memory.limit_in_bytes").write_text(str(more))
            (group / "cgroup.procs").write_text(str(os.getpid()))
        else:
            used = psutil.Process().memory_info().vms
            resource.setrlimit(resource.RLIMIT_AS, (used + more, used + more))

    storm.end("batches", storm.start(storm.batches, limit), killed=True)
    with contextlib.suppress(OSError):
        group.rmdir()


def clock(storm: Storm) -> None:
    """Work while the clock is days off, or goes back in the middle."""
    real, off = time.time, storm.rng.choice([-1e6, 1e6, -4e8, 4e8])

    def jump() -> None:
        began = time.monotonic()
        time.time = lambda: real() + (off if time.monotonic() - began > 0.2 else 0)

    _work(storm, jump)


def two_at_once(storm: Storm) -> None:
    """Two of the same, or a job beside retry, collect or record."""
    works = {"batches": storm.batches, "collect": storm.collect, "retry": storm.command("retry")}
    works["record"] = storm.command("record", "--overrides", STUDY, "--force")
    names = storm.rng.choice(
        [
            ("batches", "batches"),
            ("batches", "retry"),
            ("batches", "collect"),
            ("record", "record"),
            ("batches", "record"),
        ]
    )
    for name, started in [(name, storm.start(works[name])) for name in names]:
        storm.end(f"two at once, {name}", started)


ACTS: dict[str, Callable[[Storm], set[str] | None]] = {
    "kill": kill, "damage": damage, "full disk": full_disk, "read-only disk": read_only_disk, "little memory": little_memory,
    "clock": clock, "two at once": two_at_once,
}  # fmt: skip
SHARES = (18, 32, 3, 1, 2, 1, 2)
"""How often the acts come, in their order."""


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
    return f"seed {seed}, {minutes:.1f} minutes, {sum(done.acts[name] for name in ACTS)} acts\nacts:\n{acts}\nfound:\n{found}"


def weather(seed: int, minutes: float) -> Storm:
    """A storm of so many minutes; prints its report."""
    began = time.monotonic()
    with storm(seed) as made:
        shares = [0 if "disk" in name and not made.mounted else share for name, share in zip(ACTS, SHARES, strict=True)]
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
