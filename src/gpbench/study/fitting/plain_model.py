"""Models of closed forms as data: numbers, texts, arrays, lists, dicts and objects of scikit-learn, but no code.

    model.npz    structure: JSON, a value as it is or {kind: content}; 0, 1, ...: its arrays

An object is the name of its class and its attributes. Only classes of scikit-learn are made, empty, without a call of
their own code; whatever else a file names is refused.
"""

import contextlib
import importlib
import json
from pathlib import Path
from typing import Any

import numpy as np

from gpbench.errors import UserError

PACKAGE = "sklearn"  # whose classes are made


def save(model: Any, path: Path) -> None:
    """Write a model. Raises UserError where it holds what is no data."""
    arrays: list[np.ndarray] = []
    structure = json.dumps(_encoded(model, arrays))
    np.savez(path, structure=structure, **{str(i): array for i, array in enumerate(arrays)})  # type: ignore[arg-type]


def load(path: Path) -> Any:
    """A model that `save` wrote. Raises UserError for a class of another package."""
    with np.load(path, allow_pickle=False) as stored:
        return _decoded(json.loads(str(stored["structure"])), stored)


def _encoded(value: Any, arrays: list[np.ndarray]) -> Any:
    if isinstance(value, np.random.Generator | np.random.RandomState):
        return None  # prediction draws nothing
    if value is None or isinstance(value, bool | str) or type(value) in (int, float):
        return value
    if isinstance(value, np.ndarray | np.generic):
        if value.dtype.hasobject:
            raise UserError("an array of a closed form's model holds objects; keep numbers or texts")
        arrays.append(np.asarray(value))
        return {"array" if isinstance(value, np.ndarray) else "number": str(len(arrays) - 1)}
    if isinstance(value, list | tuple):
        return {"list" if isinstance(value, list) else "tuple": [_encoded(part, arrays) for part in value]}
    if isinstance(value, dict):
        return {"dict": [[_encoded(key, arrays), _encoded(part, arrays)] for key, part in value.items()]}
    cls = type(value)
    if cls.__module__.split(".")[0] != PACKAGE:
        raise UserError(f"a closed form's model holds a {cls.__module__}.{cls.__qualname__}; keep numbers and arrays")
    # compiled classes without attributes of their own have none
    return {"object": [cls.__module__, cls.__qualname__, _encoded(dict(getattr(value, "__dict__", {})), arrays)]}


def _decoded(node: Any, arrays: Any) -> Any:
    if not isinstance(node, dict):
        return node
    ((kind, content),) = node.items()
    if kind in ("array", "number"):
        return arrays[content] if kind == "array" else arrays[content][()]
    if kind == "dict":
        return {_decoded(key, arrays): _decoded(part, arrays) for key, part in content}
    if kind != "object":
        parts = [_decoded(part, arrays) for part in content]
        return parts if kind == "list" else tuple(parts)
    module, name, state = content
    cls = None
    if module.split(".")[0] == PACKAGE:
        with contextlib.suppress(ImportError):  # another version may have it elsewhere
            cls = getattr(importlib.import_module(module), name, None)
    if not isinstance(cls, type) or cls.__module__.split(".")[0] != PACKAGE:
        raise UserError(f"a stored model names {module}.{name}, which is not a class of {PACKAGE}; it is not used")
    made: Any = cls.__new__(cls)  # type: ignore[call-overload]
    for key, value in _decoded(state, arrays).items():
        made.__dict__[key] = value
    return made
