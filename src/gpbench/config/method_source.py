"""A method's `Hyperparameters`, read from the source of its module without importing it: no torch."""

from __future__ import annotations

import ast
import functools
import importlib.util
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

from gpbench import hyper
from gpbench.errors import UserError


def find_spec(module: str) -> ModuleSpec | None:
    """Specification of a module, without importing it (only its parent packages); None if it does not exist."""
    try:
        return importlib.util.find_spec(module)
    except ModuleNotFoundError:
        return None


@functools.cache
def source_path(module: str) -> Path:
    """Source file of a module, without importing the module itself."""
    spec = find_spec(module)
    if spec is None or not spec.origin:
        raise UserError(f"module {module!r} cannot be found; is its package installed?")
    return Path(spec.origin)


def source_tree(path: Path) -> ast.Module:
    """Syntax tree of a module; UserError (one line) for a syntax error."""
    try:
        return ast.parse(path.read_text())
    except SyntaxError as error:
        raise UserError(f"{path}, line {error.lineno}: {error.msg}") from error


@functools.cache
def hyperparameters(module: str) -> type:
    """The dataclass `Hyperparameters` of a method's module, built from its source alone."""
    path = source_path(module)
    for node in source_tree(path).body:
        if isinstance(node, ast.ClassDef) and node.name == "Hyperparameters":
            namespace: dict[str, Any] = {name: getattr(hyper, name) for name in hyper.__all__} | {"__name__": module}
            try:
                exec(compile(ast.Module([node], []), str(path), "exec", dont_inherit=True), namespace)
            except NameError as error:
                raise UserError(f"{path}: Hyperparameters: {error}; use the names of gpbench.hyper") from error
            return namespace["Hyperparameters"]
    raise UserError(f"{path} has no dataclass Hyperparameters; every method declares one (it may be empty)")
