"""docs/errata.md: every entry names tests that exist, or states why it has none."""

import ast
import re
from functools import cache
from pathlib import Path

from printed import ROOT

LINES = (ROOT / "docs" / "errata.md").read_text().splitlines()
ENTRIES = [[cell.strip() for cell in line.strip("|").split("|")] for line in LINES if re.match(r"\| \d", line)]
TEST = re.compile(r"`((?:tests|docs/errata)/[\w/]+\.py)::(test_\w+)`")
NO_TEST = re.compile(r"(later: needs|in words:) .+")


@cache
def functions_of(path: str) -> set[str]:
    """Names of the test functions of a file."""
    tree = ast.parse((ROOT / path).read_text())
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


def test_entries_are_numbered_and_complete():
    assert [int(entry[0]) for entry in ENTRIES] == list(range(1, len(ENTRIES) + 1))
    for entry in ENTRIES:
        assert len(entry) == 5, entry
        assert all(entry), entry


def test_papers_are_named_by_their_keys():
    papers = [line.removeprefix("## ") for line in LINES if line.startswith("## ")]
    bibliography = (ROOT / "conf" / "references.bib").read_text()
    assert len(set(papers)) == len(papers) > 0
    for paper in papers:
        assert re.search(rf"^@\w+{{{paper},", bibliography, re.MULTILINE), paper


def test_every_entry_has_a_test_or_says_why_not():
    for number, *_, proof in ENTRIES:
        named = TEST.findall(proof)
        assert ", ".join(f"`{path}::{name}`" for path, name in named) == proof or NO_TEST.fullmatch(proof), number
        for path, name in named:
            assert name in functions_of(path), (number, path, name)


def test_no_test_of_an_erratum_is_left_out():
    named = {found for entry in ENTRIES for found in TEST.findall(entry[-1])}
    for path in sorted((ROOT / "docs" / "errata").glob("test_*.py")):
        file = f"docs/errata/{path.name}"
        tests = {(file, name) for name in functions_of(file) if name.startswith("test_")}
        assert path == Path(__file__) or tests <= named
