"""The methods of a study by name: those that it names, and methods with settings. No torch."""

import itertools
import json
import re
from dataclasses import dataclass, field
from typing import Any

from gpbench.config import schema
from gpbench.config.validate import Content
from gpbench.errors import UserError

GROUPS = ("protocol", "budget", "trainer")  # what overrides call by these names
WORDS = ("true", "false", "null", "nan", "inf")  # words that overrides read as other values than text


@dataclass(frozen=True)
class Variant:
    """A method of a study: a configured method, what the study sets of it, and which of that it varies."""

    method: str
    label: str = ""
    settings: Content = field(default_factory=dict)
    varied: tuple[str, ...] = ()
    datasets: tuple[str, ...] = ()
    """to which it is fitted; empty: to all of the study"""

    @property
    def words(self) -> list[str]:
        """The settings as overrides."""
        return [f"{key}={in_hydra(value)}" for key, value in self.settings.items()]


def in_hydra(value: Any) -> str:
    """A value in the grammar of overrides; text is quoted only where it would be read as something else."""
    if isinstance(value, dict):
        return "{" + ",".join(f"{key}:{in_hydra(part)}" for key, part in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(in_hydra, value)) + "]"
    if isinstance(value, str) and re.fullmatch(r"[A-Za-z_]\w*", value) and value.lower() not in WORDS:
        return value
    return json.dumps(value)


def expand(study: schema.Study) -> dict[str, Variant]:
    """Name -> variant, one for each combination of listed values; UserError for templates that make no names."""
    variants: dict[str, Variant] = {}
    for name in study.methods:
        if name in variants:
            raise UserError(f"study {study.name!r} names method {name!r} twice; name it once")
        variants[name] = Variant(name)
    for template, content in study.variants.items():
        where = f"variant {template!r} of study {study.name!r}"
        for name, variant in _variants(template, content, where):
            if name in variants:
                raise UserError(f"{where}: the name {name!r} is taken; put every listed key into it, as {{key}}")
            variants[name] = variant
    return variants


def _variants(template: str, content: Content, where: str) -> list[tuple[str, Variant]]:
    if not isinstance(content.get("method"), str):
        raise UserError(f"{where} names no method; give it a key 'method'")
    settings = {k: v for k, v in content.items() if k not in ("method", "label", "datasets")}
    datasets = content.get("datasets", [])
    if not (isinstance(datasets, list) and all(isinstance(name, str) for name in datasets)):
        raise UserError(f"{where}: datasets must be a list of names of data sets, got {datasets!r}")
    lists = {k: v for k, v in settings.items() if isinstance(v, list)}
    if empty := [key for key, values in content.items() if values == []]:
        raise UserError(f"{where}: {empty[0]} lists no value, which makes no variant; list some or leave it out")
    variants = []
    for values in itertools.product(*lists.values()):
        chosen = settings | dict(zip(lists, values, strict=True))
        # in names 0.01 is 0_01, [1, 2] is 1_2, rbf + linear is rbf_linear
        slugs = {key: re.sub("[^a-z0-9]+", "_", str(value).lower()).strip("_") for key, value in chosen.items()}
        name = _filled(template, slugs, where)
        label = _filled(content.get("label", ""), chosen, where)
        if not re.fullmatch("[a-z0-9_]+", name) or name in GROUPS:
            raise UserError(
                f"{where}: {name!r} is not a valid name; use small letters, digits and _, and not {', '.join(GROUPS)}"
            )
        variants.append((name, Variant(content["method"], label, chosen, tuple(lists), tuple(datasets))))
    return variants


def _filled(template: Any, settings: Content, where: str) -> str:
    """A name or label with `{key}` replaced by its value."""
    if not isinstance(template, str):
        raise UserError(f"{where}: label must be a string, got {template!r}")
    try:
        return template.format_map(settings)
    except KeyError as error:
        raise UserError(f"{where} has no setting {error} to put into its name or label") from error
    except (AttributeError, IndexError, TypeError, ValueError) as error:
        raise UserError(
            f"{where}: {template!r} is not a valid template ({error}); write settings as {{key}}"
        ) from error
