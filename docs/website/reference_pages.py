"""Pages made from code: functions of the API, tests of the errata, and the stages of the architecture."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from pathlib import Path

import architecture
import gpbench

MERMAID = re.compile(r"```mermaid\n.*?\n```", re.DOTALL)


def functions() -> str:
    """Markdown of everything that `import gpbench` offers: signature and docstring."""
    offered = {name: getattr(gpbench, name) for name in dir(gpbench) if name[0] != "_"}
    own = {n: o for n, o in offered.items() if getattr(o, "__module__", "").startswith("gpbench.") and callable(o)}
    parts = ["# Functions and classes", "What `import gpbench` offers; [from Python](api.md) shows it in use."]
    for name, one in own.items():
        parts.append(_described(f"## {name}", f"gpbench.{name}", one))
        if inspect.isclass(one):
            methods = [m for m in ("fit", "predict", "predict_proba") if hasattr(one, m)]
            parts += [_described(f"### {name}.{m}", m, getattr(one, m)) for m in methods]
    return "\n\n".join(parts) + "\n"


def _described(heading: str, name: str, one: Callable) -> str:
    return f"{heading}\n\n```python\n{name}{_signature(one)}\n```\n\n{inspect.getdoc(one) or ''}"


def _signature(one: Callable) -> str:
    """Parameters with types and defaults, a line each where they are many."""
    signature = inspect.signature(one)
    stars = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}
    shown = [
        f"{stars.get(p.kind, '')}{p.name}: {p.annotation}" + (f" = {p.default!r}" if p.default is not p.empty else "")
        for p in signature.parameters.values()
        if p.name != "self"
    ]
    end = f" -> {signature.return_annotation}" if isinstance(signature.return_annotation, str) else ""
    line = f"({', '.join(shown)}){end}"
    return line if len(line) < 70 else "(\n    " + ",\n    ".join(shown) + f",\n){end}"


def errata(folder: Path) -> str:
    """Markdown of the tests that prove the errata."""
    parts = ["# Tests of the errata", "What [the errata](../errata.md) rest on; `make test` runs them."]
    for path in sorted(folder.glob("*.py")):
        parts.append(f"## {path.name}\n\n```python\n{path.read_text().strip()}\n```")
    return "\n\n".join(parts) + "\n"


def without_mermaid(markdown: str) -> str:
    """The page on the architecture with its picture as a table: drawing it would need a script from elsewhere."""
    imports: dict[str, list[str]] = {name: [] for name in architecture.STAGES}
    for used, stage in architecture.arrows(architecture.uses()):
        imports[stage].append(used)
    lines = ["| stage | what it makes | builds on |", "| --- | --- | --- |"]
    lines += [
        f"| `{name}` | {text} | {', '.join(imports[name]) or '-'} |" for name, text in architecture.STAGES.items()
    ]
    return MERMAID.sub(lambda _: "\n".join(lines), markdown)
