"""Configured items of the groups in conf/: a file and the files it builds on, merged, overridden and validated.

A group's file holds plain keys and is called as its item; `defaults: [BASE, _self_]` builds on another file of the
group. A method's hyperparameters and their defaults are the dataclass `Hyperparameters` of the method's module.
"""

import dataclasses
import functools
import io
import pickle
import re
import sys
from importlib.metadata import EntryPoints, entry_points
from pathlib import Path
from typing import Any

import yaml

from gpbench.config import schema
from gpbench.config.method_source import find_spec, hyperparameters
from gpbench.config.overrides import apply
from gpbench.config.validate import Content, T, check, require_known
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
NAME = re.compile("[A-Za-z0-9_][A-Za-z0-9_-]*")  # what every item of conf/ may be called
OWN_NAME = re.compile(r"(?!(?:true|false|yes|no|on|off|null|nan|inf)$)[a-z][a-z0-9_]{0,59}")
OWN_NAMES = "at most 60 lower-case letters, digits and _, first a letter, no value such as on or null"
"""What users may call what they add: no word that YAML and overrides read as another value than text."""
MOST_NODES = 100_000
# keys that say what a method is, so that no override may change them
FIXED = {"name", "module", "reference", "tasks", "kinds", "schemes", "closed_form"}


@dataclasses.dataclass(frozen=True)
class MethodConfig:
    """A method as configured: header for the study, hyperparameters for the method."""

    header: schema.Method
    hyper: Any

    @property
    def family(self) -> str:
        return self.header.family or self.header.module.rsplit(".", 1)[-1]


def folders(conf: Path) -> list[Path]:
    """conf/ of the project and of every installed package that has an entry point in `gpbench.conf`.

    The entry point names a package; its folder `conf` holds method/*.yaml (dataset/*.yaml, ...)."""
    all_folders = [conf]
    for point in _points(tuple(sys.path)):
        spec = find_spec(point.value)
        if spec is None or not spec.submodule_search_locations:
            raise UserError(f"entry point {point.name!r} in {ENTRY_POINTS}: {point.value!r} is not a package")
        all_folders += [Path(location) / "conf" for location in spec.submodule_search_locations]
    return all_folders


@functools.cache
def _points(path: tuple[str, ...]) -> EntryPoints:
    """Entry points of the packages on `path`, which is `sys.path`; reading them takes 10 ms."""
    return entry_points(group=ENTRY_POINTS)


def options(conf: Path, group: str) -> dict[str, Path]:
    """Name -> file of all items of a group; UserError where two folders define the same name, and for a name that a
    shell, a path or a page could take for something else."""
    files: dict[str, Path] = {}
    for folder in folders(conf):
        # what is half written, and locks of editors, begin with a dot
        for path in sorted((folder / group).glob("[!.]*.yaml"), key=lambda path: path.name):
            if not NAME.fullmatch(path.stem):
                raise UserError(f"{path}: a name has letters a-z, digits, _ and - and begins with no -; rename it")
            if path.stem in files:
                raise UserError(f"{group} {path.stem!r} is defined twice: {files[path.stem]} and {path}; rename one")
            files[path.stem] = path
    return files


def require_option(conf: Path, group: str, name: str, where: str = "") -> None:
    """Refuse an item that does not exist."""
    require_known(group, [name], options(conf, group), where)


def families(conf: Path) -> set[str]:
    """Families of methods: the last part of what their files say of `family` and `module`, which is read as text so
    that a broken file is met only where it is used, and a plan is quick."""
    texts = (path.read_text(encoding="utf-8", errors="replace") for path in options(conf, "method").values())
    return {name for text in texts for name in re.findall(r"^(?:module|family):.*?(\w+)[\"']?\s*(?:#.*)?$", text, re.M)}


def require_module(conf: Path, method: str, module: str) -> None:
    """Refuse a module that a file names, unless it is that of an installed method; of `method`, as a rule."""
    available = options(conf, "method")
    names = sorted(available, key=lambda name: name != method)
    if not any(_merged(name, available).get("module") == module for name in names):
        raise UserError(f"{module!r} is the module of no installed method, so it is not imported; see `conf/method`")


def compose(conf: Path, group: str, name: str, overrides: tuple[str, ...] = ()) -> Any:
    """One configured item of a group, validated: a `schema` instance, or a `MethodConfig`.

    overrides: `key=value` in Hydra's grammar, the key without the group's name."""
    available = options(conf, group)
    require_known(group, [name], available)
    path = available[name]
    where = f"{group} {name!r} ({path})"
    content = _merged(name, available) | {"name": name}
    fixed = (FIXED if group == "method" else {"name"}) & {override.split("=", 1)[0] for override in overrides}
    if fixed:
        raise UserError(f"{where}: {min(fixed)!r} cannot be overridden; write a {group} file of your own to change it")
    if overrides or "${" in str(content):
        content = apply(content, group, overrides, where)
    return check(GROUPS[group], content, where) if group != "method" else _method(content, path, where)


def printed_splits(folder: Path, name: str) -> schema.PrintedSplits:
    """Whose scores by split `folder`/NAME.csv holds; UserError where there is no such file."""
    require_known("scores by split", [name], [path.stem for path in folder.glob("[!.]*.yaml")], str(folder))
    return read(schema.PrintedSplits, folder / f"{name}.yaml")


def backlog(conf: Path) -> schema.Backlog:
    """The runs of conf/backlog.yaml."""
    listed = read(schema.Backlog, path := conf / "backlog.yaml")
    require_known("study", [run.study for run in listed.runs], options(conf, "study"), str(path))
    return listed


def read(cls: type[T], path: Path) -> T:
    """A file that no other builds on, as an instance of its schema."""
    return check(cls, _read_yaml(path), str(path))


def _method(content: Content, path: Path, where: str) -> MethodConfig:
    """A method from the keys of its header and its hyperparameters, whose defaults are checked too."""
    if not isinstance(module := content.get("module"), str):
        raise UserError(f"{path}: key 'module' is missing; it names the Python module of the method")
    classes: tuple[type, ...] = (schema.Method, hyperparameters(module))
    known = [defaults(cls) for cls in classes]
    require_known("key", content, {key for part in known for key in part}, where)
    parts = [{key: content.get(key, default) for key, default in part.items()} for part in known]
    set_parts = [{key: value for key, value in part.items() if value is not dataclasses.MISSING} for part in parts]
    return MethodConfig(*(check(cls, part, where) for cls, part in zip(classes, set_parts, strict=True)))


def _merged(name: str, available: dict[str, Path], heirs: tuple[str, ...] = ()) -> Content:
    """The keys of an item's file on top of those of the files in its `defaults`, in their order, as Hydra merges them.

    Reading the files takes 2 ms, Hydra 40."""
    path = available[name]
    content = _read_yaml(path)
    if content.pop("name", name) != name:
        raise UserError(f"{path}: 'name' differs from the name of the file; leave it out")
    merged: Content = {}
    if not isinstance(bases := content.pop("defaults", ["_self_"]), list) or "_self_" not in bases:
        raise UserError(f"{path}: 'defaults' must be a list of files and _self_, the keys of this one: [BASE, _self_]")
    for base in map(str, bases):
        if base != "_self_" and (base not in available or base in (*heirs, name)):
            raise unknown("base", base, set(available) - {*heirs, name}, f"'defaults' of {path}")
        merged = _merge(merged, content if base == "_self_" else _merged(base, available, (*heirs, name)))
    return merged


def _merge(below: Content, above: Content) -> Content:
    """Mappings are merged key by key; every other value of `above` replaces that of `below`."""
    merged = dict(below)
    for key, value in above.items():
        both = isinstance(value, dict) and isinstance(below.get(key), dict)
        merged[key] = _merge(below[key], value) if both else value
    return merged


def _read_yaml(path: Path) -> Content:
    """A YAML mapping as Hydra reads it; UserError (one line) where it is not valid."""
    from omegaconf.errors import OmegaConfBaseException

    try:
        content = pickle.loads(_parsed(path.read_text(encoding="utf-8")))
    except (yaml.YAMLError, ValueError, OSError, OmegaConfBaseException, RecursionError) as error:
        fault = f"cannot be read: {error.strerror}" if isinstance(error, OSError) else f"is not valid YAML: {error}"
        raise UserError(f"{path} {fault}") from error
    if not isinstance(content, dict):
        raise UserError(f"{path} must be a mapping of keys to values")
    return {str(key): value for key, value in content.items()}


@functools.cache
def _parsed(text: str) -> bytes:
    """The content of a YAML text, pickled: a plan asks for the same few files hundreds of times."""
    from omegaconf import OmegaConf

    if "&" in text and _size(yaml.compose(text, yaml.SafeLoader), {}) > MOST_NODES:
        raise ValueError(f"its aliases stand for more than {MOST_NODES:,} values; write out what is meant")
    return pickle.dumps(OmegaConf.to_container(OmegaConf.load(io.StringIO(text))))


def _size(node: yaml.Node | None, known: dict[int, int]) -> int:
    """Number of nodes where every alias is written out; known: of nodes that were met."""
    if id(node) not in known:
        known[id(node)] = MOST_NODES + 1  # of a node that is part of itself
        parts = node.value if isinstance(node, yaml.CollectionNode) else []
        pairs = parts if isinstance(node, yaml.MappingNode) else ((part,) for part in parts)
        known[id(node)] = 1 + sum(_size(part, known) for pair in pairs for part in pair)
    return known[id(node)]


def defaults(cls: type) -> Content:
    """Field -> default; `MISSING` where there is none."""
    return {
        f.name: f.default_factory() if f.default_factory is not dataclasses.MISSING else f.default
        for f in dataclasses.fields(cls)
    }
