"""A method's `Hyperparameters`, read from the source of its module without importing it: no torch."""

import ast
import functools
import importlib.util
import types
from importlib.machinery import ModuleSpec
from pathlib import Path

from gpbench import hyper
from gpbench.errors import UserError


def find_spec(module: str) -> ModuleSpec | None:
    """Specification of a module, without importing it (only its parent packages); None if it does not exist."""
    try:
        return importlib.util.find_spec(module)
    except (ImportError, ValueError):  # the latter for a name that is none
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
        return ast.parse(path.read_bytes())  # in the encoding that the source declares
    except SyntaxError as error:
        line = f", line {error.lineno}" if error.lineno else ""
        raise UserError(f"{path}{line}: {error.msg}") from error
    except (ValueError, RecursionError, MemoryError) as error:  # the last for parentheses that are too deep
        raise UserError(f"{path} is no Python source: {error or 'it is nested too deeply'}") from error


@functools.cache
def hyperparameters(module: str, name: str = "Hyperparameters") -> type[hyper.Settings]:
    """The dataclass `name` of a method's module, built from its source alone; so are those that it inherits from."""
    path = source_path(module)
    tree = source_tree(path)
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and node.name == name:
            namespace = {known: getattr(hyper, known) for known in hyper.__all__}
            namespace |= {"__name__": module} | _base_classes(node, tree, module)
            if plain := [ast.unparse(line) for line in node.body if isinstance(line, ast.Assign)]:
                raise UserError(f"{path}: {name}: `{plain[0]}` has no type; write one, as in `layers: int = 2`")
            try:
                exec(compile(ast.Module([node], []), str(path), "exec", dont_inherit=True), namespace)
            except NameError as error:
                raise UserError(f"{path}: {name}: {error}; use the names of gpbench.hyper") from error
            except Exception as error:
                raise UserError(f"{path}: {name}: {type(error).__name__}: {error}") from error
            if not issubclass(namespace[name], hyper.Settings):
                raise UserError(f"{path}: {name} must inherit from gpbench.hyper.Settings")
            return namespace[name]
    raise UserError(f"{path} has no dataclass {name}; every method declares one (it may be empty)")


def _base_classes(node: ast.ClassDef, tree: ast.Module, module: str) -> dict[str, object]:
    """Namespace of the base classes of a dataclass: of its own module, or imported (`from package import module`)."""
    package = module.rpartition(".")[0]
    origins = {n.name: f"{module}.{n.name}" for n in tree.body if isinstance(n, ast.ClassDef)}
    for statement in tree.body:
        if isinstance(statement, ast.ImportFrom):
            source = importlib.util.resolve_name("." * statement.level + (statement.module or ""), package)
            origins |= {alias.asname or alias.name: f"{source}.{alias.name}" for alias in statement.names}
        elif isinstance(statement, ast.Import):
            origins |= {alias.asname: alias.name for alias in statement.names if alias.asname}
    namespace: dict[str, object] = {}
    for base in map(ast.unparse, node.bases):
        alias, dot, attribute = base.partition(".")
        if alias in origins and alias not in hyper.__all__:
            source, _, name = (origins[alias] + dot + attribute).rpartition(".")
            cls = hyperparameters(source, name)
            namespace[alias] = types.SimpleNamespace(**{attribute: cls}) if dot else cls
    return namespace
