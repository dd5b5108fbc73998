"""What the commands share: their parser, how a study and its overrides are said, JSON in place of tables, colour."""

import argparse
import json
import os
import re
import shlex
import sys
from typing import Any, NoReturn

COLOURS = {"done": 32, "pending": 33, "running": 33, "stopped": 33, "skipped": 2, "missing": 35}
"""Status -> SGR code of terminals; of all others red."""
RED = 31


class Parser(argparse.ArgumentParser):
    """An argument parser without usage texts, whose integers are digits alone."""

    def __init__(self, *words: Any, **options: Any) -> None:
        super().__init__(*words, **options)
        self.register("type", int, _whole)

    def error(self, message: str) -> NoReturn:
        hint = " (a setting goes behind --set)" if message.startswith("unrecognized") and "=" in message else ""
        self.exit(2, f"{self.prog}: {message}{hint}; see `{self.prog} --help`\n")


def _whole(text: str) -> int:
    """A whole number; `1_0`, which Python takes for one, is none."""
    if not re.fullmatch("-?[0-9]+", text):
        raise ValueError(text)
    return int(text)


def study(default: str = "default") -> Parser:
    """The words that name a study and its overrides, for every command on one."""
    parser = Parser(add_help=False)
    text = f"a study, or the name of a run of one; default: {default or 'the newest run'}"
    parser.add_argument("study", nargs="?", default=default, help=text)
    overrides(parser)
    return parser


def overrides(parser: argparse.ArgumentParser) -> None:
    """Add `--set` and `--overrides`, which say the same."""
    setting(parser)
    parser.add_argument("--overrides", default="", help="several at once, as in snakemake --config overrides='...'")


def setting(parser: argparse.ArgumentParser) -> None:
    """Add `--set`, which may be given more than once."""
    text = "such as svgp.num_inducing=50 or budget=smoke; may be repeated"
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help=text)


def as_json(parser: argparse.ArgumentParser) -> None:
    """Add `--json`."""
    parser.add_argument("--json", action="store_true", help="as JSON in place of a table")


def settle(arguments: argparse.Namespace) -> None:
    """Put what `--set` says where the command looks: after its overrides, or its other words key=value."""
    words = getattr(arguments, "set", [])
    if hasattr(arguments, "overrides"):
        arguments.overrides = f"{arguments.overrides} {shlex.join(words)}".strip()
    elif hasattr(arguments, "words"):
        arguments.words = [*arguments.words, *words]


def print_json(content: object) -> None:
    """Print what a table would show."""
    print(json.dumps(content, indent=1, ensure_ascii=False))


def paint(text: str, status: str) -> str:
    """A text in the colour of a status; as it is where standard output is no terminal or NO_COLOR is set."""
    if not sys.stdout.isatty() or os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return text
    return f"\033[{COLOURS.get(status, RED)}m{text}\033[0m"
