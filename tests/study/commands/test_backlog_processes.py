"""`gpbench backlog run` as processes of their own: killed at any moment it loses no record, and two share the work."""

import contextlib
import random
import subprocess
import sys
import time
from collections import Counter

import psutil
import pytest
from test_backlog import write

from gpbench import places
from gpbench.study.planning import plan as planning
from gpbench.study.storage import committed

KILLS, FITS = 20, 2 * 2 * 16
STUDY = (
    "methods=[linear,svgp] datasets=[boston,wine] splits=16 svgp.optimiser=adam svgp.num_inducing=5 svgp.steps=400 "
    "trainer.replicas=1 trainer.checkpoint_seconds=0"
)

pytestmark = pytest.mark.slow


@pytest.fixture
def where(project):
    """A project whose backlog is 64 fits of a second or two, recorded after each piece of one fit a core."""
    write(project, f'{{study: default, overrides: "{STUDY}"}}', minutes=1e-9)
    return places.find()


def begin(where):
    """`gpbench backlog run` at the usual priority: a busy machine would not come to it."""
    words = ["backlog", "run", "--minutes", "20", "--cores", "1"]
    program = "import sys; from gpbench.cli import main; from gpbench.study.commands import backlog; "
    program += f"backlog.NICENESS = 0; sys.exit(main.main({words}))"
    return subprocess.Popen([sys.executable, "-c", program], cwd=where.root)


def records(where, study=STUDY):
    """fit_id -> its record, whole."""
    return committed.by_fit(where, planning.make(where, "default", study).name)


def test_twenty_kills_at_random_lose_nothing_that_was_recorded(where):
    rng, kept, hits = random.Random(0), {}, Counter()
    for _ in range(KILLS):
        process = begin(where)
        time.sleep(rng.uniform(0, 10))
        everybody = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
        victim = rng.choice(["backlog", "its jobs", "both"])
        hits[victim, len(everybody) > 1] += 1
        for one in {"backlog": everybody[:1], "its jobs": everybody[1:], "both": everybody}[victim]:
            with contextlib.suppress(psutil.NoSuchProcess):
                one.kill()
        time.sleep(0.5)  # a backlog whose job was killed says so and ends
        process.kill()
        process.wait()
        now = records(where)
        assert kept.items() <= now.items()
        kept = now
    print(f"{len(kept)} of {FITS} fits recorded after {KILLS} kills: {dict(hits)}")
    assert 0 < len(kept) < FITS  # there was work to interrupt until the last, on a fast machine, too
    assert begin(where).wait() == 0
    ended = records(where)
    assert kept.items() <= ended.items()
    assert [record["status"] for record in ended.values()] == ["done"] * FITS


COUNTED = """
import hashlib, os, psutil
from gpbench.hyper import Settings, dataclass
from gpbench.methods import linear

@dataclass(frozen=True)
class Hyperparameters(Settings):
    folds: int = 5

class Method(linear.Method):
    def fit(self, x, y, rng):
        with open(os.environ["COUNTED"], "a") as stream:
            stream.write(hashlib.md5(x.tobytes()).hexdigest() + f" {psutil.Process().parents()[1].pid}\\n")
        return super().fit(x, y, rng)
"""


def test_two_backlogs_on_one_store_make_each_fit_once_and_both_work(project, monkeypatch):
    """A method that writes a line whenever it fits some rows, and the backlog whose job it is in."""
    study = "methods=[counted] datasets=[boston,wine] splits=8 trainer.replicas=1"
    (project / "counted.py").write_text(COUNTED)
    linear = (project / "conf/method/linear.yaml").read_text()
    (project / "conf/method/counted.yaml").write_text(linear.replace("gpbench.methods.linear", "counted"))
    monkeypatch.setenv("PYTHONPATH", str(project))
    monkeypatch.setenv("COUNTED", str(project / "lines"))
    write(project, f'{{study: default, overrides: "{study}"}}', minutes=1e-9)
    where = places.find()
    both = [begin(where), begin(where)]
    assert [process.wait() for process in both] == [0, 0]
    monkeypatch.syspath_prepend(project)
    rows, backlogs = zip(*map(str.split, (project / "lines").read_text().splitlines()), strict=True)
    assert max(Counter(rows).values()) == 1
    assert len(rows) == 2 * 8
    assert {record["status"] for record in records(where, study).values()} == {"done"}
    assert len(records(where, study)) == 2 * 8
    assert set(backlogs) == {str(process.pid) for process in both}
