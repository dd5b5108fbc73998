"""What the documentation says is what the code does."""

import re

from gpbench.cli.main import parser
from gpbench.config.reference import reference
from gpbench.report.export import documents
from projects import REPOSITORY


def test_the_configuration_reference_is_current():
    written = (REPOSITORY / "docs" / "config.md").read_text()
    assert written == reference(REPOSITORY / "conf"), "run `gpbench reference > docs/config.md`"


def test_what_the_documents_show_of_committed_results_is_current():
    assert documents.stale(REPOSITORY) == [], "run `make docs`"


def test_every_gpbench_command_in_the_documents_exists():
    commands = set(next(a for a in parser()._actions if a.choices and "plan" in a.choices).choices)
    documents = [REPOSITORY / "README.md", *sorted((REPOSITORY / "docs").glob("*.md"))]
    named = {word for d in documents for word in re.findall(r"`?gpbench ([a-z]+)\b", d.read_text())}
    assert named <= commands | {"checkout"}


def test_every_link_of_the_documents_leads_somewhere():
    for document in [REPOSITORY / "README.md", *sorted((REPOSITORY / "docs").glob("*.md"))]:
        for target in re.findall(r"\]\(([^)#]+)\)", document.read_text()):
            assert target.startswith("http") or (document.parent / target).exists(), f"{document.name}: {target}"
