"""The repository: one-way imports, an environment with one source, small files."""

import ast
import importlib.metadata
import itertools
import re
import subprocess
import sys
import tomllib
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


def test_the_lock_pins_what_is_installed():
    pattern = re.compile(r"(?!nvidia|cuda|triton)[A-Za-z0-9._-]+==[A-Za-z0-9.!_-]+")  # no local tag (+cpu)
    assert [line for line in LOCK if not pattern.fullmatch(line)] == []
    installed = {d.name.lower(): d.version.split("+")[0] for d in importlib.metadata.distributions()}
    differing = {n: installed[n.lower()] for n, version in PINS.items() if installed.get(n.lower(), version) != version}
    assert differing == {}


def test_the_lock_names_everything_once_and_what_is_needed():
    assert len(PINS) == len(LOCK)
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    lines = [*project["dependencies"], *itertools.chain(*project["optional-dependencies"].values())]
    needed = {re.match(r"[A-Za-z0-9._-]+", line)[0].lower() for line in lines}
    assert needed <= {name.lower() for name in PINS}


def test_the_malicious_releases_are_not_locked():
    assert not {PINS["lightning"], PINS["pytorch-lightning"]} & {"2.6.2", "2.6.3"}  # GHSA-w37p-236h-pfx3


def test_every_check_is_part_of_make_lint_and_every_tool_is_pinned():
    done = subprocess.run(["make", "-n", "lint"], cwd=REPOSITORY, capture_output=True, text=True, check=True)
    commands = ("ruff check", "ruff format --check", "lint-imports", "mypy", "snakefmt --check", "snakemake --lint")
    assert [command for command in commands if command not in done.stdout] == []
    assert {"ruff", "import-linter", "mypy", "snakefmt", "snakemake"} <= PINS.keys()
    hooks = yaml.safe_load((REPOSITORY / ".pre-commit-config.yaml").read_text())["repos"][0]["hooks"]
    assert {hook["entry"].split()[0] for hook in hooks} == {"ruff", "snakefmt", "lint-imports"}


def test_the_project_is_described_the_same_everywhere():
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    citation = yaml.safe_load((REPOSITORY / "CITATION.cff").read_text())
    assert citation["cff-version"] == "1.2.0"
    assert (citation["version"], citation["license"]) == (project["version"], project["license"])
    assert citation["repository-code"] == project["urls"]["Homepage"]
    assert citation["authors"] == project["authors"]


def test_the_readme_is_short():
    assert len((REPOSITORY / "README.md").read_text().splitlines()) <= 120


def tracked() -> list[Path]:
    done = subprocess.run(["git", "ls-files", "-z"], cwd=REPOSITORY, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip("not a git checkout")
    return [REPOSITORY / name for name in done.stdout.split("\0") if name and (REPOSITORY / name).is_file()]


def test_no_tracked_file_is_large_or_made_by_a_run():
    assert [str(path) for path in tracked() if path.stat().st_size > 1_000_000] == []
    made = ("data", "plans", "store", "runs", "results", "logs", "mlartifacts", "mlruns")
    assert [str(path) for path in tracked() if path.relative_to(REPOSITORY).parts[0] in made] == []


def sources(*folders: str) -> dict[str, str]:
    """Path below the repository -> text, of the Python and Snakemake files of some folders."""
    files = [p for folder in folders for p in (REPOSITORY / folder).rglob("*") if p.suffix in (".py", ".smk")]
    return {str(p.relative_to(REPOSITORY)): p.read_text() for p in files}


def longer(texts: dict[str, str], limit: int) -> dict[str, int]:
    """The files with more lines than a limit."""
    return {name: n for name, text in texts.items() if (n := len(text.splitlines())) > limit}


def test_files_are_short():
    texts = sources("src", "tests", "bench", "workflows", "docs")
    assert len(texts) > 200
    assert longer(texts, 400) == {}
    assert longer(sources("src/gpbench/methods"), 250) == {}


def test_functions_are_short():
    nodes = [(name, node) for name, text in sources("src").items() for node in ast.walk(ast.parse(text))]
    functions = [(f"{f}: {n.name}", n.end_lineno - n.lineno + 1) for f, n in nodes if isinstance(n, ast.FunctionDef)]
    assert len(functions) > 1000
    assert [(name, lines) for name, lines in functions if lines > 60] == []


def is_in_locale(call: ast.Call) -> bool:
    """Whether a call of a method reads or writes text in the encoding of the locale."""
    given = {keyword.arg for keyword in call.keywords}
    if not isinstance(call.func, ast.Attribute) or "encoding" in given:
        return False
    whose, name = ast.unparse(call.func.value), call.func.attr
    modes = [isinstance(word, ast.Constant) and "b" not in str(word.value) for word in call.args]
    opens = name == "open" and whose != "tarfile" and all(modes)
    return opens or "text" in given or (name in ("read_text", "write_text") and whose != "places")


def test_files_are_utf_8_whatever_the_locale():
    nodes = [(name, node) for name, text in sources("src").items() for node in ast.walk(ast.parse(text))]
    calls = [(name, node) for name, node in nodes if isinstance(node, ast.Call) and is_in_locale(node)]
    assert [f"{name}, line {call.lineno}: {ast.unparse(call)}" for name, call in calls] == []


def test_the_package_does_not_grow_and_is_typed():
    """It had 25,153 lines before its typed plans; STRIDE, the large-scale solvers, pages of papers, work on own data,
    what travels between machines, noise of other kinds, sparse GPs for classes by Laplace, what keeps tables of
    users and figures from being misread, and what readers met at the command line have come since. Raise the number
    only for something that users asked for."""
    texts = sources("src").values()
    assert sum(text.count("\n") for text in texts) <= 39_790
    assert sum(text.count("dict[str, Any]") for text in texts) < 30
