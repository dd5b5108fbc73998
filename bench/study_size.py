"""How long a study of 2,000 cells takes to plan, collect and report: `python bench/study_size.py [RATES SETS SPLITS]`.

The store is filled without fitting: a record, a trace of 200 steps and 100 test points with their quantiles for every
fit, scored as its job would, the errors of the methods apart by a little. Twice: 40 methods on 50 data sets with one
split, which are 2,000 cells, and 20 on 20 with five, which are 2,000 fits; `4 50 10` are 20,000 fits. Every stage is a
process of its own, so that its peak of memory is its own.
"""

from __future__ import annotations

import datetime
import multiprocessing
import os
import resource
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
import pandas as pd
import yaml

from gpbench import places, streams
from gpbench.evaluation.pointwise import pointwise
from gpbench.places import Places
from gpbench.predictive.distributions import GaussianMixture
from gpbench.study import scoring
from gpbench.study.commands import verify
from gpbench.study.planning import estimate, plan
from gpbench.study.records import Cell, Fit, FitRecord, Scored, Seconds, to_json
from gpbench.study.results import collect
from gpbench.study.storage import arrays, provenance, seals, store

METHODS = ("svgp", "dsvi", "dgp_rff", "exact_gp", "sgpr", "fitc", "fitc_svgp", "aep", "dnn", "bnn")
RATES = (0.001, 0.003, 0.01, 0.03)
SHAPES = ((4, 50, 1), (2, 20, 5))
"""learning rates of each method, data sets, splits"""
ROWS, STEPS, LOOKS = 100, 200, 20


def project(root: Path, rates: int, datasets: int, splits: int) -> Places:
    """A project whose study `size` has variants of ten methods, and data sets that are copies of one."""
    home = places.find()
    for source in (home.conf).rglob("*.yaml"):
        target = root / "conf" / source.relative_to(home.conf)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(source.read_text())
    boston = yaml.safe_load((home.conf / "dataset" / "boston.yaml").read_text())
    names = [f"data_{i:02d}" for i in range(datasets)]
    for i, name in enumerate(names):
        entry = boston | {"name": name, "title": name, "md5": f"{i:032x}"}
        (root / "conf" / "dataset" / f"{name}.yaml").write_text(yaml.safe_dump(entry))
    if (home.root / "published").is_dir():
        (root / "published").symlink_to(home.root / "published")
    study = {
        "name": "size",
        "title": "Size",
        "methods": [],
        "variants": {
            f"{m}_{i}": {"method": m, "label": f"{m} {i}", "learning_rate": rate}
            for m in METHODS
            for i, rate in enumerate(RATES[:rates])
        },
        "datasets": names,
        "protocol": "common",
        "budget": "quick",
        "splits": splits,
        "published": ["ashman2020"],
    }
    (root / "conf" / "study" / "size.yaml").write_text(yaml.safe_dump(study))
    return Places(root, root / "store")


def fill(made: plan.Plan, where: Places) -> int:
    """Put every fit of a plan into the store; their number."""
    steps = np.arange(1, STEPS + 1)
    trace = pd.DataFrame({"step": steps, "seconds": 0.01 * steps, "objective": -1.0 / steps})
    trace["mnll"] = np.where(steps % LOOKS == 0, 1.0 / steps, np.nan)  # held-out rows are looked at now and then
    written, sealing = 0, 0.0
    scored: dict[tuple[int, ...], Scored | None] = {}
    alike = where.root / "alike"
    alike.mkdir()
    arrays.write(alike, {"trace": {name: column.to_numpy() for name, column in trace.items()}})
    for cell in made.cells:
        for fit in cell.fits:
            folder = where.store / fit.fit_id
            folder.mkdir(parents=True)
            kind = int(cell.address.dataset[-1]) % 5, fit.split, METHODS.index(cell.address.method)
            if not (file := alike / f"{'-'.join(map(str, kind))}.parquet").is_file():
                points(*kind).to_parquet(file, index=False)
            os.link(file, folder / "points.parquet")
            os.link(alike / arrays.NAME, folder / arrays.NAME)
            finished = record(cell, fit)
            if kind not in scored:
                scored[kind] = scoring.at_end(folder, finished)
            (folder / "fit.json").write_text(to_json(replace(finished, scored=scored[kind])))
            began = time.process_time()
            seals.seal(folder)
            sealing += time.process_time() - began
            written += 1
    print(f"sealing takes {1000 * sealing / written:.2f} ms of the processor a fit", flush=True)
    return written


def points(dataset: int, split: int, method: int) -> pd.DataFrame:
    """Points of a predictive whose mean errs by a little more for some methods than for others."""
    rng = streams.rng(streams.Key(f"size {dataset}", "size", split), "eval")
    y = rng.standard_normal((ROWS, 1))
    mean = y + 0.3 * (1 + 0.01 * method) * rng.standard_normal((ROWS, 1))
    predictive = GaussianMixture(mean[None], np.full((1, ROWS, 1), 0.1))
    return pointwise(predictive, y, task="regression", scaled_by=(np.zeros(1), np.ones(1)), rows=np.arange(ROWS))


def record(cell: Cell, fit: Fit) -> FitRecord:
    """fit.json of a fit that took ten seconds."""
    started = datetime.datetime.now(datetime.UTC) - datetime.timedelta(seconds=10)
    return FitRecord.of(
        cell,
        fit,
        status="done",
        reason="",
        seconds=Seconds(train=9.0, predict=0.1),
        peak_memory_mb=400.0,
        provenance=provenance.since(started.isoformat(), Path("/")),
        info={"train_target_mean": [0.0], "train_target_sd": [1.0]},
    )


def stages(where: Places) -> dict[str, Callable[[], object]]:
    """From planning to the page, as the workflow runs them."""
    folder = where.results / "size"
    published = ["--published", str(where.root / "published")]

    def report(*words: str) -> None:
        from gpbench.report.__main__ import main

        main([*words])

    return {
        "plan and freeze": lambda: plan.freeze(plan.make(where, "size"), where),
        "plan again": lambda: plan.make(where, "size"),
        "verify": lambda: verify.verify(where),
        "cost": lambda: estimate.lines(estimate.Estimate(plan.make(where, "size"), everything=True)),
        "collect": lambda: collect.collect(where, "size"),
        "collect again": lambda: collect.collect(where, "size"),
        "tables": lambda: report("table", str(folder)),
        "statistics": lambda: report("statistics", str(folder)),
        "scorecard": lambda: report("scorecard", str(folder), *published),
        "figures": lambda: report("figure", str(folder)),
        "page": lambda: report("page", str(folder), *published),
    }


def timed(where: Places, name: str, pipe: Connection) -> None:
    """Run a stage; send its seconds by the clock and of the processor, and its peak of memory in MB."""
    started, busy = time.perf_counter(), time.process_time()
    stages(where)[name]()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    pipe.send((time.perf_counter() - started, time.process_time() - busy, peak))


def in_child(where: Places, name: str) -> tuple[float, float, float]:
    """What `timed` sends."""
    context = multiprocessing.get_context("spawn")  # a fork would begin with this process's memory
    receiver, sender = context.Pipe(duplex=False)
    child = context.Process(target=timed, args=(where, name, sender))
    child.start()
    sender.close()
    measured: tuple[float, float, float] = receiver.recv()
    child.join()
    return measured


def bench(rates: int, datasets: int, splits: int) -> dict[str, float]:
    """Seconds of each stage."""
    with tempfile.TemporaryDirectory() as folder:
        where = project(Path(folder), rates, datasets, splits)
        made = plan.make(where, "size")
        number = fill(made, where)
        print(f"{len(made.cells)} cells, {number} fits", flush=True)
        taken = {}
        for name in stages(where):
            taken[name], cpu, peak = in_child(where, name)
            print(f"  {name:<22}{taken[name]:7.1f} s, {cpu:7.1f} s of the processor, {peak:5.0f} MB", flush=True)
        assert len(store.Store(where.store).ids()) == number
        return taken


def main() -> None:
    rates, datasets, splits = zip(*SHAPES, strict=True) if len(sys.argv) == 1 else [[int(n)] for n in sys.argv[1:]]
    for shape in zip(rates, datasets, splits, strict=True):
        bench(*shape)


if __name__ == "__main__":
    sys.exit(main())
