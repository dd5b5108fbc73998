"""The one exception that a user is meant to meet, and the way unknown names are reported."""

import difflib
import sys
from collections.abc import Callable, Iterable


class UserError(Exception):
    """Something the user can mend, said in one line: what is wrong, where, what to do."""

    def __init__(self, text: str) -> None:
        super().__init__(" ".join(line.strip() for line in text.splitlines()))  # libraries' reasons may have several


def unknown(kind: str, name: str, valid: Iterable[str], where: str = "") -> UserError:
    """An unknown name, with the nearest valid one (or the list of all where none is near)."""
    names = sorted(map(str, valid))
    near = difflib.get_close_matches(str(name), names, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]!r}?" if near else f"choose one of: {', '.join(names) or '(none)'}"
    return UserError(f"unknown {kind} {name!r}{f' in {where}' if where else ''}; {hint}")


def count(n: int, noun: str) -> str:
    """'1 data set', '2 data sets'."""
    return f"{n} {noun}" + "s" * (n != 1)


def exit_status(command: Callable[[], object]) -> int:
    """0, or 1 after one line on standard error where the command meets something that the user can mend."""
    try:
        command()
    except UserError as error:
        print(f"gpbench: {error}", file=sys.stderr)
        return 1
    return 0
