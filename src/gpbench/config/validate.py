"""Plain mappings become instances of the schemas' dataclasses, or one-line errors."""

import dataclasses
import functools
import math
from collections.abc import Collection, Iterable
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from pydantic import TypeAdapter, ValidationError

from gpbench.errors import UserError, unknown

Content = dict[str, Any]  # keys and values of a configuration file, before validation
T = TypeVar("T")
type_hints = functools.cache(get_type_hints)


def check(cls: type, content: Content, where: str) -> Any:
    """An instance of the dataclass `cls`; UserError for unknown keys, wrong types and values out of range."""
    _check_keys(cls, content, where)
    try:
        made = adapter(cls).validate_python(content)
    except ValidationError as error:
        first = error.errors()[0]
        if not first["loc"]:  # of several keys together
            raise UserError(f"{where}: {first['msg'].removeprefix('Value error, ')}") from error
        key = ".".join(str(part) for part in first["loc"])
        given = "" if first["type"] == "missing" else f" (given: {first['input']!r})"
        raise UserError(f"{where}: {key}: {first['msg']}{given}") from error
    for key, value in vars(made).items():
        _check_numbers(content.get(key), value, f"{where}: {key}")
    return made


def _check_numbers(given: Any, made: Any, where: str) -> None:
    """Refuse true and false in the place of a number, and numbers that are not finite, at any depth."""
    if dataclasses.is_dataclass(made):
        made = vars(made)
    if isinstance(made, dict) and isinstance(given, dict):
        for key, value in made.items():
            _check_numbers(given.get(key), value, f"{where}.{key}")
    elif isinstance(made, list | tuple) and isinstance(given, list | tuple):
        for one, value in zip(given, made, strict=False):
            _check_numbers(one, value, where)
    elif isinstance(given, bool) and isinstance(made, int | float) and not isinstance(made, bool):
        raise UserError(f"{where} must be a number, got {str(given).lower()}")
    elif isinstance(made, float) and not math.isfinite(made):
        raise UserError(f"{where} must be a finite number, got {made}")


def require_known(kind: str, names: Iterable[str], known: Collection[str], where: str = "") -> None:
    """UserError for the first of some names that is none of the known ones, with the nearest of these."""
    for name in names:
        if name not in known:
            raise unknown(kind, name, known, where)


@functools.cache
def adapter(cls: type[T]) -> TypeAdapter[T]:
    """Pydantic's validator of a dataclass, built once."""
    return TypeAdapter(cls)


def _check_keys(cls: type, content: Content, where: str) -> None:
    """Refuse unknown keys here and in nested dataclasses, where pydantic would ignore them."""
    hints = type_hints(cls)
    for key, value in content.items():
        if key not in hints:
            raise unknown("key", key, hints, where)
        nested, parts = hints[key], [value]
        if get_origin(nested) is dict and isinstance(value, dict):
            nested, parts = get_args(nested)[1], list(value.values())
        if get_origin(nested) is list and isinstance(value, list):
            nested, parts = get_args(nested)[0], value
        for part in parts:
            if isinstance(nested, type) and dataclasses.is_dataclass(nested) and isinstance(part, dict):
                _check_keys(nested, part, f"{where}: {key}")
