"""What a page says of its study in words: what was compared, where the numbers come from, how to make them again."""

from __future__ import annotations

from gpbench.errors import count
from gpbench.report.page import sections
from gpbench.report.tables.render import number
from gpbench.report.view import SCORED, UNMIXED, View


def facts(view: View) -> list[tuple[str, str]]:
    """What was compared, planned and finished, as (word, text)."""
    done, planned = int((view.fits["status"] == "done").sum()), len(view.fits)
    return [
        ("fits", f"{done} of {planned} done"),
        ("methods", ", ".join(view.labels[method] for method in view.methods)),
        ("data sets", ", ".join(f"{name} ({view.tasks.get(name, 'task unknown')})" for name in view.datasets)),
        ("protocol", f"{view.study['protocol']}{reported(view)}"),
        ("budget", str(view.study["budget"])),
        ("splits", str(view.fits["split"].nunique())),
        ("training time", f"{number(view.done['seconds_train'].sum() / 60)} minutes in all finished fits"),
    ]


def reported(view: View) -> str:
    """What the protocol's source prints of predictions: metrics, and the spread over splits."""
    choice = view.study["reported"]
    said = f", which reports {', '.join(choice['metrics'])} and the {choice['spread']} over splits"
    return said if view.study["kind"] == "predict" else ""


def warnings(view: View) -> list[str]:
    """What a reader must know before any number."""
    unfinished = int((~view.fits["status"].isin(SCORED)).sum())
    unmixed = int((view.fits["status"] == UNMIXED).sum())
    said = []
    if unfinished:
        said.append(f"{count(unfinished, 'fit')} not done: in no mean; each is listed below with its reason.")
    if unmixed:
        said.append(
            f"{unmixed} fits are chains that have not converged: their R-hat exceeds {view.study['r_hat']}, the limit "
            "of the budget. Cells that hold any are marked ✗, and are neither ranked nor compared."
        )
    return said


def provenance(view: View) -> list[tuple[str, str]]:
    """Where the numbers come from, as (word, text)."""
    dirty = int(view.fits["dirty"].eq(True).sum())
    overrides = sorted({text for text in view.fits["overrides"].dropna() if text})
    machine, versions = (view.study.get(key, {}) for key in ("machine", "versions"))
    return [
        ("collected at commit", view.study["commit"] or "none: not a git checkout"),
        ("created", str(view.study["created"])),
        ("commits of the fits", ", ".join(_commits(view)) or "none"),
        ("fits from a changed working tree", str(dirty)),
        ("overrides", "; ".join(overrides) or "none"),
        *([("machine", ", ".join(f"{name} {value}" for name, value in machine.items()))] if machine else []),
        *([("versions", ", ".join(f"{name} {version}" for name, version in versions.items()))] if versions else []),
    ]


def commands(view: View) -> list[tuple[str, str]]:
    """How to make the study, and parts of it, again."""
    checkout = [f"git checkout {view.study['commit']}"] if view.study["commit"] else []
    name = view.study["name"]
    return [
        ("How to reproduce it", "\n".join([*checkout, sections.command(view)])),
        ("One table or figure again", f"python -m gpbench.report figure results/{name} {sections.example(view)}"),
        ("To cite and to share it", f"gpbench cite {name.split('-')[0]}\ngpbench crate {name}"),
    ]


def _commits(view: View) -> list[str]:
    return sorted({str(commit) for commit in view.fits["commit"].dropna() if commit})
