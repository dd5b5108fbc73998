"""What a storm does to a study: each act returns the fits that it damages."""

from __future__ import annotations

import contextlib
import os
import resource
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from gpbench.study.planning import plan as planning
from gpbench.study.storage.store import IDENTITY

if TYPE_CHECKING:
    from storm import Storm


NOBODY = 65534


def kill(storm: Storm) -> None:
    """Kill -9 a process, its children or all of them at a random moment of its work."""
    works = {
        "batches": storm.batches,
        "collect": storm.collect,
        "record": storm.command("record", "--overrides", storm.study, "--force"),
        "retry": storm.command("retry"),
        "verify": storm.command("verify"),
        "plan": lambda: planning.freeze(planning.make(storm.where, "default", storm.study), storm.where),
    }
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
        storm.forget_records()
    places_of = [
        [p for p in storm.root.glob("store/*/*") if IDENTITY.fullmatch(p.parent.name)],
        [*storm.root.glob("store/.work/*/*")],
        [*storm.root.glob("plans/**/*.*")],
        [storm.where.prepared_file("mine")],
        [*(storm.where.results / storm.name).glob("*.*")],
    ]
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
    if (
        path.suffix == ".parquet"
        and path.parent == storm.where.results / storm.name
        and how in ("flip", "cut", "empty")
    ):
        storm.read(path, content)
    name = storm.rng.choice(["plan", "status", "verify", "retry", "collect"])
    if name != "collect":
        words = ("--overrides", storm.study) if name in ("plan", "status") else ()
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


def other_user(storm: Storm) -> None:
    """Work as another user, who may read the project and write nothing there, or fit and write to the store."""
    theirs = [storm.root / "store"] * storm.rng.randint(0, 1)
    found = [path for folder in theirs for path in (folder, *folder.rglob("*"))]
    for path in found:
        os.chown(path, NOBODY, NOBODY)

    def leave() -> None:
        os.setresgid(NOBODY, NOBODY, NOBODY)
        os.setresuid(NOBODY, NOBODY, NOBODY)

    _work(storm, leave)


def two_at_once(storm: Storm) -> None:
    """Two of the same, or a job beside retry, collect or record."""
    works = {"batches": storm.batches, "collect": storm.collect, "retry": storm.command("retry")}
    works["record"] = storm.command("record", "--overrides", storm.study, "--force")
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
    "kill": kill,
    "damage": damage,
    "full disk": full_disk,
    "read-only disk": read_only_disk,
    "little memory": little_memory,
    "clock": clock,
    "other user": other_user,
    "two at once": two_at_once,
}
SHARES = (18, 32, 3, 1, 2, 1, 1, 2)
"""How often the acts come, in their order."""
