"""The parser of the command line: mistakes in one line, and numbers as people write them."""

from __future__ import annotations

import argparse
import re
from typing import Any, NoReturn


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
