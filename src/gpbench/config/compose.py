"""Configuration: Hydra composes, pydantic checks; no torch.

A group's file in conf/ holds plain keys. A method's hyperparameters and their defaults stand in the
method's own module as a dataclass, which is read from its source without importing it.
"""

from __future__ import annotations

import dataclasses
import functools
import shlex
import sys
from importlib.metadata import EntryPoints, entry_points
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

import yaml
from pydantic import TypeAdapter, ValidationError

from gpbench.config import schema
from gpbench.config.method_source import find_spec, hyperparameters
from gpbench.errors import UserError, unknown

GROUPS = {
    "dataset": schema.Dataset,
    "protocol": schema.Protocol,
    "budget": schema.Budget,
    "trainer": schema.Trainer,
    "study": schema.Study,
    "paper": schema.Paper,
}
ENTRY_POINTS = "gpbench.conf"
ALONE = ["_defaults", "_self_"]
"""`defaults` of a method that builds on no other one"""


def folders(conf: Path) -> list[Path]:
    """conf/ of the project and of every installed package that has an entry point in `gpbench.conf`.

    The entry point names a package; its folder `conf` holds method/*.yaml (dataset/*.yaml, ...)."""
    found = [conf]
    for point in _points(tuple(sys.path)):
        spec = find_spec(point.value)
        if spec is None or not spec.submodule_search_locations:
            raise UserError(f"entry point {point.name!r} in {ENTRY_POINTS} names {point.value!r}, which is no package")
        found += [Path(location) / "conf" for location in spec.submodule_search_locations]
    return found


@functools.cache
def _points(path: tuple[str, ...]) -> EntryPoints:
    """Entry points of the packages on `path`, which is `sys.path`; reading them takes 10 ms."""
    return entry_points(group=ENTRY_POINTS)


def options(conf: Path, group: str) -> dict[str, Path]:
    """Name -> file of everything that a group offers; a plugin cannot replace a name of the project."""
    found: dict[str, Path] = {}
    for folder in folders(conf):
        for path in sorted((folder / group).glob("*.yaml")):
            if path.stem in found:
                raise UserError(f"{group} {path.stem!r} is defined twice: {found[path.stem]} and {path}; rename one")
            found[path.stem] = path
    return found


def read_yaml(path: Path) -> dict[str, Any]:
    """A YAML mapping as Hydra reads it, or one line that says where it is wrong."""
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    try:
        content = OmegaConf.to_container(OmegaConf.load(path))
    except (yaml.YAMLError, UnicodeDecodeError, OSError, OmegaConfBaseException) as error:
        raise UserError(f"{path} is not valid YAML: {error}") from error
    if not isinstance(content, dict):
        raise UserError(f"{path} must hold keys and values")
    return content


def _fields(cls: type) -> dict[str, Any]:
    """Field -> default; `MISSING` where there is none."""
    return {
        f.name: f.default_factory() if f.default_factory is not dataclasses.MISSING else f.default
        for f in dataclasses.fields(cls)
    }


def check(cls: type, content: dict[str, Any], where: str) -> Any:
    """An instance of the dataclass `cls`; unknown keys, wrong types and values out of range are one-line errors."""
    _check_keys(cls, content, where)
    try:
        return _adapter(cls).validate_python(content)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"])
        given = "" if first["type"] == "missing" else f" (given: {first['input']!r})"
        raise UserError(f"{where}: {key}: {first['msg']}{given}") from error


@functools.cache
def _adapter(cls: type) -> TypeAdapter:
    return TypeAdapter(cls)


def _check_keys(cls: type, content: dict[str, Any], where: str) -> None:
    """Refuse unknown keys, here and in the dataclasses below, which pydantic would pass over."""
    hints = get_type_hints(cls)
    for key, value in content.items():
        if key not in hints:
            raise unknown("key", key, hints, where)
        below, parts = hints[key], [value]
        if get_origin(below) is dict and isinstance(value, dict):
            below, parts = get_args(below)[1], list(value.values())
        for part in parts:
            if dataclasses.is_dataclass(below) and isinstance(part, dict):
                _check_keys(below, part, f"{where}: {key}")


@dataclasses.dataclass(frozen=True)
class MethodConfig:
    """A method as configured: header for the study, hyperparameters for the method."""

    header: schema.Method
    hyper: Any

    @property
    def family(self) -> str:
        return self.header.family or self.header.module.rsplit(".", 1)[-1]


def compose(conf: Path, group: str, name: str, overrides: tuple[str, ...] = ()) -> Any:
    """One configured group item, checked: a `schema` instance, or a `MethodConfig`.

    overrides: Hydra's `key=value`, the key without the group's name."""
    available = options(conf, group)
    if name not in available:
        raise unknown(group, name, available)
    path = available[name]
    where = f"{group} {name!r} ({path})"
    plain = read_yaml(path)
    if plain.get("name", name) != name:
        raise UserError(f"{where}: name is {plain['name']!r}; it must be the file's name")
    if group == "method":
        cls = hyperparameters(_module(plain, path, available))
        defaults = {k: v for k, v in (_fields(schema.Method) | _fields(cls)).items() if v is not dataclasses.MISSING}
        valid = _fields(schema.Method) | _fields(cls)
    else:
        defaults, valid = {}, _fields(GROUPS[group])
    for override in overrides:
        key = override.split("=", 1)[0]
        if key.split(".")[0] not in valid:
            raise unknown("key", key, valid, where)
        if group == "method" and key in ("name", "module", "reference", "tasks", "kinds", "schemes", "closed_form"):
            raise UserError(f"{where}: {key!r} is what the method is; write a file of your own to change it")
    # a file that neither builds on another one nor refers to other keys is already what Hydra would make of it (40 ms)
    alone = plain.get("defaults", ALONE) == ALONE and "${" not in path.read_text()
    own = {key: value for key, value in plain.items() if key != "defaults"}
    content = defaults | own if alone and not overrides else _hydra(conf, group, path, defaults, overrides)
    if group != "method":
        return check(GROUPS[group], content, where)
    header_keys = _fields(schema.Method)
    for key in content:
        if key not in valid:
            raise unknown("key", key, valid, where)
    header = check(schema.Method, {k: v for k, v in content.items() if k in header_keys}, where)
    return MethodConfig(header, check(cls, {k: v for k, v in content.items() if k not in header_keys}, where))


def _module(content: dict[str, Any], path: Path, available: dict[str, Path]) -> str:
    """The module of a method, its own or that of the method that it builds on by `defaults`."""
    if "module" not in content:
        for base in content.get("defaults", []):
            if base in available and available[base] != path:
                return _module(read_yaml(available[base]), available[base], available)
    module = content.get("module")
    if not isinstance(module, str):
        raise UserError(f"{path}: key 'module' is missing; it names the Python module of the method")
    return module


def _hydra(conf: Path, group: str, path: Path, defaults: dict, overrides: tuple[str, ...]) -> dict[str, Any]:
    """Hydra's composition of one group item on top of its schema's defaults.

    The item itself is the primary config: half as long as composing config.yaml, and a mistake in one file
    is met only where that file is used."""
    from hydra import compose as hydra_compose
    from hydra import initialize_config_dir
    from hydra.core.config_store import ConfigStore
    from hydra.core.global_hydra import GlobalHydra
    from hydra.errors import HydraException
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    ConfigStore.instance().store(group="method", name="_defaults", node=defaults)
    home = path.parents[1]
    search = [f"file://{folder}" for folder in folders(conf) if folder != home]
    items = [f"++{group}.{o}" for o in overrides]
    if search:
        items.append(f"hydra.searchpath=[{','.join(search)}]")
    GlobalHydra.instance().clear()
    try:
        with initialize_config_dir(str(home.absolute()), version_base="1.3"):
            composed = hydra_compose(f"{group}/{path.stem}", overrides=items)
        return OmegaConf.to_container(composed[group], resolve=True)
    except (HydraException, OmegaConfBaseException) as error:
        reason = str(error.__cause__ or error).strip().splitlines()[0]
        raise UserError(f"{group} {path.stem!r} ({path}) with {list(overrides) or 'no overrides'}: {reason}") from error


def split_override(text: str) -> tuple[str, str]:
    """`key=value` -> (key, value)."""
    key, sign, value = text.partition("=")
    if not sign or not key.strip() or not value.strip():
        raise UserError(f"override {text!r} is not of the form key=value")
    return key.strip(), value.strip()


def split_overrides(text: str) -> list[tuple[str, str]]:
    """The words of an overrides string, as a shell would split them."""
    try:
        return [split_override(word) for word in shlex.split(text)]
    except ValueError as error:
        raise UserError(f"overrides {text!r}: {error}") from error
