"""Two machines with no common disk and one S3 bucket: the same study to its end at once, and no fit twice.

`make bucket-test MOTO=PATH`, where PATH is the program moto_server of an environment of its own (pip install
moto[s3,server]), which stands for S3; PYTHONPATH=FOLDER where s3fs and snakemake-storage-plugin-s3 are, if they are not
installed. Not a part of `make test`: pytest collects this file only by its name.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import pytest

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parents[1] / "workflow")]
from graphs import Project  # noqa: E402

from gpbench.study.planning.plan import run_name  # noqa: E402

PORT = 5056
SERVER = f"http://127.0.0.1:{PORT}"
STUDY = (
    "budget=smoke methods=[constant,svgp] datasets=[boston,wine] splits=3 svgp.num_inducing=10 svgp.optimiser=adam "
    "svgp.steps=1500 trainer.checkpoint_seconds=0 trainer.replicas=1"
)
FITS = 12


@pytest.fixture(scope="module")
def bucket() -> Iterator[dict[str, str]]:
    """What finds a new bucket: variables of the environment."""
    program = os.environ.get("MOTO") or pytest.exit("no bucket test: MOTO=... must name the program moto_server", 2)
    server = subprocess.Popen([program, "-p", str(PORT)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        request = urllib.request.Request(f"{SERVER}/gpbench", method="PUT")
        deadline = time.monotonic() + 60
        while True:
            try:
                urllib.request.urlopen(request)
                break
            except urllib.error.URLError:
                assert time.monotonic() < deadline
                time.sleep(0.2)
        yield {
            "GPBENCH_REMOTE": "s3://gpbench/one study",
            "AWS_ENDPOINT_URL": SERVER,
            **dict.fromkeys(("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"), "moto"),
        }
    finally:
        server.kill()
        server.wait()


class Machine(Project):
    """A project of its own whose data are prepared, and which knows the bucket."""

    def __init__(self, root: Path, bucket: dict[str, str]) -> None:
        super().__init__(root, STUDY, "boston", "wine", "digits", "mnist_5k")
        self.environment |= bucket
        if "PYTHONPATH" in os.environ:  # where s3fs is, if it is not installed
            self.environment["PYTHONPATH"] += f":{os.environ['PYTHONPATH']}"
        assert self.gpbench("data", "prepare", "boston", "wine")[0] == 0

    def begin(self) -> subprocess.Popen[str]:
        return self.start("snakemake", "--cores", "1", "--config", f"overrides={STUDY}")

    def made(self) -> dict[str, str]:
        """Fit -> where and when it was made, of the whole store."""
        records = {
            path.parent.name: json.loads(path.read_text()) for path in self.root.glob("store/[0-9a-f]*/fit.json")
        }
        return {fit_id: record["provenance"]["started"] for fit_id, record in records.items()}

    def fitted(self) -> set[str]:
        """Fits that jobs of this machine ran to their end: their logs say so."""
        return {path.name for path in self.root.glob("runs/*.json")}


def test_two_machines_share_a_study(bucket, tmp_path):
    machines = [Machine(tmp_path / name, bucket) for name in ("one", "two")]
    running = [machine.begin() for machine in machines]
    said = [process.communicate(timeout=900)[0] for process in running]
    assert [process.returncode for process in running] == [0, 0], said
    for machine in machines:
        folder = machine.root / "results" / run_name("default", STUDY)
        assert (folder / "report.html").stat().st_size > 10_000
        assert pd.read_parquet(folder / "scores.parquet")["status"].tolist() == ["done"] * FITS
    one, two = (machine.made() for machine in machines)
    assert len(one) == FITS
    assert one == two, "each fit was made once, and both have that one"
    code, plan = machines[0].gpbench("plan", "--overrides", STUDY)
    assert code == 0
    assert "0 fits to run in 0 jobs" in plan
    print("\n".join(line for text in said for line in text.splitlines() if "waiting" in line or "fit " in line))


def test_a_third_machine_fits_nothing(bucket, tmp_path):
    machine = Machine(tmp_path / "three", bucket)
    code, plan = machine.gpbench("plan", "--overrides", STUDY)
    assert f"{FITS} done" in plan
    process = machine.begin()
    said = process.communicate(timeout=300)[0]
    assert process.returncode == 0, said
    assert not list(machine.root.glob("runs/*.json"))
    assert len(machine.fits()) == FITS


STORAGE = ("--default-storage-provider", "s3", "--default-storage-prefix", "s3://gpbench/storage")
NOTHING_SHARED = ("--shared-fs-usage", "none")


def test_a_storage_plugin_finds_all_that_rules_read_declared(bucket, tmp_path):
    """Nothing but what its rule declares is in the folder that a job reads from (snakemake-storage-plugin-s3)."""
    project = Project(tmp_path / "four", STUDY, "boston", "wine", "digits", "mnist_5k")
    if "PYTHONPATH" in os.environ:
        project.environment["PYTHONPATH"] += f":{os.environ['PYTHONPATH']}"
    access = {"ENDPOINT_URL": SERVER, "ACCESS_KEY": "moto", "SECRET_KEY": "moto"}
    project.environment |= {f"SNAKEMAKE_STORAGE_S3_{name}": value for name, value in access.items()}
    code, said = project.snakemake(*STORAGE, *NOTHING_SHARED)
    assert code == 0, said
    folder = f"results/{run_name('default', STUDY)}"
    assert not (project.root / folder).exists()
    import boto3  # which the plugin needs

    client = boto3.client("s3", endpoint_url=SERVER, aws_access_key_id="moto", aws_secret_access_key="moto")
    assert client.head_object(Bucket="gpbench", Key=f"storage/{folder}/report.html")["ContentLength"] > 10_000
    made = sorted(project.fits())
    assert len(made) == FITS
    code, said = project.snakemake(*STORAGE, *NOTHING_SHARED)
    assert code == 0, said
    assert "Nothing to be done" in said
    assert sorted(project.fits()) == made
