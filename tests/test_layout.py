"""The repository: one-way imports, an environment with one source, small files."""

import importlib.metadata
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from projects import REPOSITORY

LOCK = [line for line in (REPOSITORY / "requirements.lock").read_text().splitlines() if not line.startswith("#")]
PINS = dict(line.split("==") for line in LOCK)


def test_imports_go_one_way():
    tool = Path(sys.executable).with_name("lint-imports")
    done = subprocess.run([tool, "--no-cache"], cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    assert "lint-imports" in (REPOSITORY / "Makefile").read_text()


def test_closed_form_methods_run_without_torch():
    program = (
        "import sys, gpbench.study.fitting.closed_form, gpbench.methods.linear, gpbench.methods.gradient_boosting\n"
        "import gpbench.methods.constant, gpbench.methods.svm, gpbench.methods.simple_mkl\n"
        "import gpbench.study.results.collect, gpbench.evaluation.metrics\n"
        "sys.exit(f'imported: {found}' if (found := {'torch', 'lightning', 'mlflow'} & set(sys.modules)) else 0)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_conda_environment_only_points_at_the_lock():
    content = yaml.safe_load((REPOSITORY / "environment.yml").read_text())
    assert content == {
        "name": "gpbench",
        "channels": ["conda-forge", "nodefaults"],
        "dependencies": ["python=3.11", "pip", "git", "make", {"pip": ["-r requirements.lock"]}],
    }


@pytest.mark.parametrize("line", LOCK)
def test_a_line_of_the_lock(line):
    name, version = re.fullmatch(r"([A-Za-z0-9._-]+)==([A-Za-z0-9.!_-]+)", line).groups()  # no local tag (+cpu)
    assert not re.match(r"(nvidia|cuda|triton)", name)
    try:
        installed = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        pytest.skip(f"{name} is not installed here")
    assert installed.split("+")[0] == version


def test_the_lock_names_everything_once_and_what_is_needed():
    assert len(PINS) == len(LOCK)
    own = importlib.metadata.requires("gpbench")
    needed = {re.match(r"[A-Za-z0-9._-]+", line)[0].lower() for line in own if "extra ==" not in line}
    assert needed <= {name.lower() for name in PINS}


@pytest.mark.parametrize("name", ["lightning", "pytorch-lightning"])
def test_the_malicious_releases_are_not_locked(name):
    assert PINS[name] not in ("2.6.2", "2.6.3")  # GHSA-w37p-236h-pfx3


def test_the_readme_is_short():
    assert len((REPOSITORY / "README.md").read_text().splitlines()) <= 120


def tracked() -> list[Path]:
    done = subprocess.run(["git", "ls-files", "-z"], cwd=REPOSITORY, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip("not a git checkout")
    return [REPOSITORY / name for name in done.stdout.split("\0") if name and (REPOSITORY / name).is_file()]


def test_no_tracked_file_is_large_or_made_by_a_run():
    assert [str(path) for path in tracked() if path.stat().st_size > 1_000_000] == []
    made = ("data", "plans", "store", "runs", "results", "mlartifacts", "mlruns")
    assert [str(path) for path in tracked() if path.relative_to(REPOSITORY).parts[0] in made] == []


def test_source_files_can_be_held_in_the_head():
    folders = ("src", "tests", "bench", "workflows")
    sources = [p for folder in folders for p in (REPOSITORY / folder).rglob("*") if p.suffix in (".py", ".smk")]
    assert len(sources) > 50
    assert [str(p) for p in sources if len(p.read_text().splitlines()) > 400] == []
