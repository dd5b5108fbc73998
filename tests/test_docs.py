"""What the documentation says is what the code does."""

import importlib
import re
import shutil
import subprocess

import pytest

from gpbench.cli.main import parser
from gpbench.config.reference import reference
from gpbench.report.export import documents
from projects import REPOSITORY

PAGES = [page for folder in (".", "docs", "docs/papers") for page in sorted((REPOSITORY / folder).glob("*.md"))]


def test_the_configuration_reference_is_current(tmp_path):
    """Of what is committed: a method or data set that somebody is trying needs no documents yet."""
    done = subprocess.run(["git", "ls-files", "conf"], cwd=REPOSITORY, capture_output=True, text=True)
    if done.returncode:
        pytest.skip("needs a git checkout, to know what is committed")
    for name in done.stdout.split():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(REPOSITORY / name, tmp_path / name)
    written = (REPOSITORY / "docs" / "config.md").read_text()
    assert written == reference(tmp_path / "conf"), "run `make docs`"


def test_every_key_of_the_configuration_has_a_meaning():
    tables = (REPOSITORY / "docs" / "config.md").read_text().split("## Hyperparameters")[0]
    rows = [line.split(" | ") for line in tables.splitlines() if line.startswith("| `") and line.count(" | ") > 2]
    assert len(rows) > 130
    assert [row[0] for row in rows if not row[3].strip(" |")] == []


def test_what_the_documents_show_of_committed_results_is_current():
    assert documents.stale(REPOSITORY) == [], "run `make docs`"


def test_every_gpbench_command_in_the_documents_exists():
    commands = set(next(a for a in parser()._actions if a.choices and "plan" in a.choices).choices)
    text = "\n".join(page.read_text() for page in PAGES)
    code = re.findall(r"^```sh\n(.*?)^```", text, re.MULTILINE | re.DOTALL) + re.findall(r"`([^`\n]+)`", text)
    named = {word for part in code for word in re.findall(r"^gpbench ([a-z]+)\b", part, re.MULTILINE)}
    assert named
    assert named <= commands


def anchors(text: str) -> set[str]:
    """Of the headings of a page, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_every_link_of_the_documents_leads_somewhere():
    for document in PAGES:
        for target, anchor in re.findall(r"\]\(([^)#]*)(?:#([^)]*))?\)", document.read_text()):
            if target.startswith("http"):
                continue
            page = document.parent / target if target else document
            assert page.exists(), f"{document.name}: {target}"
            assert not anchor or anchor in anchors(page.read_text()), f"{document.name}: {target}#{anchor}"


def test_the_picture_of_the_architecture_is_current(monkeypatch):
    monkeypatch.syspath_prepend(REPOSITORY / "docs")
    architecture = importlib.import_module("architecture")
    assert architecture.PAGE.read_text() == architecture.page(), "run `make docs`"
    assert [path.name for path in architecture.SOURCE.rglob("*.py") if architecture.is_homeless(path)] == []


def test_the_make_targets_of_the_documents_exist():
    targets = set(re.findall(r"^([a-z-]+):", (REPOSITORY / "Makefile").read_text(), re.MULTILINE))
    named = {word for page in PAGES for word in re.findall(r"(?:^|`)make ([a-z-]+)\b", page.read_text(), re.MULTILINE)}
    assert {"study", "test", "lint"} <= named
    assert named <= targets


def test_the_files_that_the_documents_name_exist():
    text = "\n".join(page.read_text() for page in PAGES)
    # names in capitals and `mine` stand for a name that the reader chooses
    named = set(re.findall(r"`((?:src|conf|tests|bench|docs|workflows)/(?![\w/]*(?:mine|[A-Z]))[\w./-]*[\w/])`", text))
    assert len(named) > 15
    assert sorted(name for name in named if not (REPOSITORY / name).exists()) == []


def test_every_fault_that_was_found_has_a_test():
    lines = [line for line in (REPOSITORY / "docs/faults.md").read_text().splitlines() if line.startswith("| ")][2:]
    assert len(lines) > 50
    for line in lines:
        file, name = re.search(r"\| `(tests/[\w/]+\.py)::(test_\w+)` \|$", line).groups()
        assert f"\ndef {name}(" in (REPOSITORY / file).read_text(), line
