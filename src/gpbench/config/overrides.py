"""Overrides in Hydra's grammar: splitting a string of them, and applying them to an item."""

import functools
import json
import pickle
import re
import shlex
from collections.abc import Iterable

from gpbench.config.validate import Content
from gpbench.errors import UserError

UNDERSCORED = re.compile(r"(?<![\w.])\d+(_\d+)+(?![\w.])")


def split_override(text: str) -> tuple[str, str]:
    """`key=value` -> (key, value)."""
    key, sign, value = text.partition("=")
    if not sign or not key.strip() or not value.strip():
        raise UserError(f"override {text!r} is not of the form key=value")
    if number := UNDERSCORED.search(value):
        raise UserError(f"override {text!r}: write the number {number[0]} without _")
    return key.strip(), value.strip()


def split_overrides(text: str) -> list[tuple[str, str]]:
    """The overrides in a string, split as a shell would."""
    try:
        return [split_override(word) for word in shlex.split(text)]
    except ValueError as error:
        raise UserError(f"overrides {text!r}: {error}") from error


def joined(words: Iterable[str]) -> str:
    """Overrides as the text that `split_overrides` reads; a word is quoted only where it must be."""
    return " ".join(shlex.quote(word) if re.search(r"[\s'\"\\]", word) else word for word in words)


def setting(value: object) -> str:
    """A value given in Python as an override has it; UserError for what is no text, number, list or mapping."""

    def plain(item: object) -> object:
        if hasattr(item, "tolist") and not isinstance(item, type):  # numbers and arrays of NumPy
            return item.tolist()
        raise UserError(f"a setting is a text, number, list or mapping, not {type(item).__name__} ({str(item)[:40]})")

    return value if isinstance(value, str) else json.dumps(value, default=plain)


def command_words(command: str) -> tuple[str, str]:
    """(study, overrides) of a command as `planning.plan.snakemake_command` writes it; '' for what it does not have."""
    words = dict(word.split("=", 1) for word in shlex.split(command) if "=" in word)
    return words.get("study", ""), words.get("overrides", "")


def distinct(words: list[tuple[str, str]]) -> dict[str, str]:
    """Key -> value of overrides that a user gives; UserError for a key that is given twice."""
    by_key: dict[str, str] = {}
    for key, value in words:
        if key in by_key:
            raise UserError(f"{key} is given twice, as {by_key[key]} and {value}; give it once")
        by_key[key] = value
    return by_key


def apply(content: Content, group: str, overrides: tuple[str, ...], where: str) -> Content:
    """The content of an item with overrides in Hydra's grammar, `++key=value`, and its interpolations resolved."""
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException

    try:
        applied: Content = pickle.loads(_applied(pickle.dumps(content), group, overrides))
    except (HydraException, OmegaConfBaseException) as error:
        reason = str(error.__cause__ or error).strip().splitlines()[0]
        if word := str(getattr(error, "override", "")).removeprefix(f"++{group}."):  # the one that is no override
            overrides = (word,)
        if reason.startswith("LexerNoViableAlt"):
            odd = re.sub(r"[\w\s/+.$%*@?|:=,()\[\]{}\\-]", "", word, flags=re.ASCII)[:1]
            reason = f"text with {odd} goes into quotes, a quote within it behind a \\"
        if reason.startswith("mismatched input") and " " in "".join(overrides):
            reason = "one word is one setting: repeat --set, give several to --overrides, or quote a text with blanks"
        raise UserError(f"{where} with {list(overrides) or 'no overrides'}: {reason}") from error
    return applied


@functools.cache
def _applied(content: bytes, group: str, overrides: tuple[str, ...]) -> bytes:
    """The same of pickled contents, once, as a study's methods ask for the same ones. `hydra.compose` would read
    Hydra's own settings each time, 60 ms, and take the place of a caller's Hydra."""
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import OverrideParseException
    from omegaconf import OmegaConf

    config = OmegaConf.create({group: pickle.loads(content)})
    parsed = OverridesParser.create().parse_overrides([f"++{group}.{text}" for text in overrides])
    for text, override in zip(overrides, parsed, strict=True):
        if override.package is not None or override.is_sweep_override():
            hint = "is not one value of one key; write a list as [1,2], a text with commas in quotes"
            raise OverrideParseException(text, f"{text} {hint}")
        value = override.value()  # mappings are merged, but for an empty one, which clears what is there
        OmegaConf.update(config, override.key_or_group, value, merge=value != {}, force_add=True)
    return pickle.dumps(OmegaConf.to_container(config[group], resolve=True))
