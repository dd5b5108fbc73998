"""Pages made from code: functions of the API, tests of the errata, and the stages of the architecture."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import architecture

import gpbench

MERMAID = re.compile(r"```mermaid\n.*?\n```", re.DOTALL)


def functions() -> str:
    """Markdown of everything that `import gpbench` offers: signature and docstring."""
    names = [name for name in dir(gpbench) if name[0] != "_" and callable(getattr(gpbench, name, None))]
    parts = ["# Functions and classes", "What `import gpbench` offers; [from Python](api.md) shows it in use."]
    parts += [_described(name, getattr(gpbench, name)) for name in names if name != "import_module"]
    return "\n\n".join(parts) + "\n"


def _described(name: str, offered: object) -> str:
    doc = inspect.getdoc(offered) or ""
    signature = f"gpbench.{name}{inspect.signature(offered)}"
    text = f"## {name}\n\n```python\n{signature}\n```\n\n{doc}"
    if inspect.isclass(offered):
        own = ("fit", "predict", "predict_proba")
        methods = [(m, getattr(offered, m)) for m in own if hasattr(offered, m)]
        text += "".join(f"\n\n### {name}.{m}{inspect.signature(f)}\n\n{inspect.getdoc(f) or ''}" for m, f in methods)
    return text


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
