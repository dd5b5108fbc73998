"""Identity of a fit: the hash of *what* it is, and never of *how* it runs.

The code that a fit uses is part of what it is: the modules inside the boundary of `numerics` (and inside a plugin's
package, or of no installed package at all) that its method and its loop import, as syntax trees without docstrings,
comments, messages and imports for annotations, plus the versions of the third-party packages imported there.
"""

import ast
import functools
import hashlib
import importlib.metadata
import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path

from gpbench.config.method_source import find_spec, source_path, source_tree
from gpbench.errors import UserError
from gpbench.study.planning.numerics import LOOPS, PLANNING_ONLY, TUNING, VOCABULARY, is_inside
from gpbench.study.records import What
from gpbench.study.records import canonical as canonical
from gpbench.study.records import digest as digest
from gpbench.study.records import identify as identify

DISTRIBUTIONS = {"sklearn": "scikit-learn"}
UNVERSIONED = "unversioned"
INSTALLED = {"site-packages", "dist-packages"}


def numerics(method: str, trained_by: str, is_tuned: bool = False) -> tuple[str, ...]:
    """The modules whose closure decides the numbers of a fit: its method's and those of its training."""
    return (method, *LOOPS[trained_by], *((TUNING,) if is_tuned else ()))


@functools.cache
def code(*modules: str) -> dict[str, str]:
    """Module -> digest of its code, for the import closure of `modules` inside the boundary (of a plugin: all).

    UserError where a module of gpbench is imported there that lies outside: its changes would go unnoticed."""
    return _closure(modules, _is_hashed)


def _is_hashed(module: str, importer: str) -> bool:
    if module.split(".")[0] != "gpbench" or is_inside(module):
        return True
    if module not in VOCABULARY and source_path(module).name != "__init__.py":
        unnoticed = "which lies outside of what identifies a fit, so that its changes would go unnoticed"
        raise UserError(f"{importer} imports {module}, {unnoticed}; move it below gpbench/methods or gpbench/gp")
    return False


@functools.cache
def whole_code(*modules: str) -> dict[str, str]:
    """The same for the whole import closure: of what scores and reports are made by."""
    return _closure(modules, lambda module, importer: True)


def _closure(modules: tuple[str, ...], counts: Callable[[str, str], bool]) -> dict[str, str]:
    digests: dict[str, str] = {}
    todo = list(modules)
    while todo:
        module = todo.pop()
        if module not in digests:
            digests[module], imported = _parse(module)
            todo += [name for name in imported if _is_module(name, module) and counts(name, module)]
            todo += _packages(module)
    return dict(sorted(digests.items()))


def _packages(module: str) -> list[str]:
    """The package of a plugin's module, whose `__init__.py` runs first; those of gpbench say nothing but names."""
    package = module.rpartition(".")[0]
    spec = find_spec(package) if package and module.split(".")[0] != "gpbench" else None
    return [package] if spec and spec.origin else []  # a folder without `__init__.py` has no origin


def module_code(module: str) -> str:
    """Digest of the code of one module alone."""
    return _parse(module)[0]


@functools.cache
def versions(*modules: str) -> dict[str, str]:
    """Third-party distribution -> version, for everything imported in the closure of `modules`."""
    packages = {module.split(".")[0] for module in code(*modules)}
    names = {name.split(".")[0] for module in code(*modules) for name in _parse(module)[1]}
    third_party = sorted(names - packages - {"gpbench"} - set(sys.stdlib_module_names) - {"__future__"})
    # without the local tag: the CPU and the GPU build are the same version
    return {name: _version(name).split("+")[0] for name in third_party}


@functools.cache
def _version(name: str) -> str:
    """Version of the distribution that a top-level module comes from."""
    try:
        return importlib.metadata.version(DISTRIBUTIONS.get(name, name))
    except importlib.metadata.PackageNotFoundError:
        owners = importlib.metadata.packages_distributions().get(name)  # slow: it reads every package
        return importlib.metadata.version(owners[0]) if owners else UNVERSIONED


def changed(what: What) -> list[str]:
    """The modules and libraries of a fit's identity that are others today."""
    modules = numerics(what.method.module, what.trained_by, what.tune is not None)
    now = code(*modules) | versions(*modules)
    return [line.partition(":")[0] for line in moved(what.code | what.versions, now)]


@functools.cache
def _parse(module: str) -> tuple[str, frozenset[str]]:
    """Digest of one module's code and the dotted names it imports."""
    path = source_path(module)
    strip = _Strip(module if path.name == "__init__.py" else module.rpartition(".")[0])
    tree = strip.visit(source_tree(path))
    return hashlib.sha256(ast.dump(tree).encode()).hexdigest()[:16], frozenset(strip.imports)


@functools.cache
def _is_module(name: str, importer: str) -> bool:
    """Whether a dotted name is a module of gpbench, of the importer's own package, or of no installed one."""
    top = name.split(".")[0]
    if top not in ("gpbench", importer.split(".")[0]) and not _is_loose(top):
        return False
    parent, _, leaf = name.rpartition(".")
    if not parent:
        return True
    spec = importlib.util.find_spec(parent) if _is_module(parent, importer) else None
    folders = (spec.submodule_search_locations or []) if spec else []
    return any((Path(f) / f"{leaf}.py").is_file() or (Path(f) / leaf / "__init__.py").is_file() for f in folders)


@functools.cache
def _is_loose(name: str) -> bool:
    """Whether a top-level module is a source file on the path that no distribution has, and no version tells apart."""
    spec = None if name in sys.stdlib_module_names else find_spec(name)
    origin = Path(spec.origin or "") if spec else Path()
    return origin.suffix == ".py" and not INSTALLED & {*origin.parts} and _version(name) == UNVERSIONED


class _Strip(ast.NodeTransformer):
    """Drop what cannot change a result: docstrings, other bare strings, messages, imports for annotations, and what
    hyperparameters tell the planner alone; `imports` are the dotted names that a module of `package` imports."""

    def __init__(self, package: str) -> None:
        self.package, self.imports = package, set[str]()

    def generic_visit(self, node: ast.AST) -> ast.AST:
        for name in ("body", "handlers", "orelse", "finalbody", "cases"):  # no expression holds a statement
            if isinstance(parts := getattr(node, name, None), list):
                setattr(node, name, [kept for part in parts if (kept := self.visit(part))])
        return node

    def visit_Import(self, node: ast.Import) -> ast.AST:
        self.imports |= {alias.name for alias in node.names}
        return node

    def visit_ImportFrom(self, node: ast.ImportFrom) -> ast.AST:
        base = node.module or ""
        if node.level:
            base = f"{self.package.rsplit('.', node.level - 1)[0]}.{base}".rstrip(".")
        self.imports |= {base, *(f"{base}.{alias.name}" for alias in node.names)}
        return node

    def visit_Expr(self, node: ast.Expr) -> ast.AST | None:
        return None if isinstance(node.value, ast.Constant) and isinstance(node.value.value, str) else node

    def visit_If(self, node: ast.If) -> ast.AST | list[ast.AST]:
        is_for_types = isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
        return [self.visit(part) for part in node.orelse] if is_for_types else self.generic_visit(node)

    def visit_Raise(self, node: ast.Raise) -> ast.AST:
        node.exc = node.exc.func if isinstance(node.exc, ast.Call) else node.exc
        node.cause = None
        return node

    def visit_Assert(self, node: ast.Assert) -> ast.AST:
        node.msg = None
        return node

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        # what several methods share of their hyperparameters has another name
        if node.name == "Hyperparameters" or any(ast.unparse(base).endswith("Settings") for base in node.bases):
            node.body = [part for part in node.body if getattr(part, "name", "") not in PLANNING_ONLY]
        return self.generic_visit(node)


def moved(old: object, new: object, prefix: str = "") -> list[str]:
    """What differs between two *whats*, one line a component: `path: old -> new`."""
    if isinstance(old, dict) and isinstance(new, dict):
        lines: list[str] = []
        for key in sorted(set(old) | set(new)):
            lines += moved(old.get(key), new.get(key), f"{prefix}.{key}" if prefix else str(key))
        return lines
    return [] if old == new else [f"{prefix}: {_show(old)} -> {_show(new)}"]


def _show(value: object) -> str:
    return "(absent)" if value is None else str(value)
