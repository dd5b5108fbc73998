"""The exception for mistakes that a user can correct, and how unknown names are reported."""

import difflib
import io
import sys
from collections.abc import Callable, Iterable


class UserError(Exception):
    """A mistake that the user can correct, in one line: what is wrong, where, what to do."""

    def __init__(self, text: str) -> None:
        # messages of libraries may have several lines
        super().__init__(" ".join(line.strip() for line in text.splitlines()))


def unknown(kind: str, name: str, valid: Iterable[str], where: str = "") -> UserError:
    """An error for an unknown name: suggests the nearest valid one, or lists all if none is near, whatever the case."""
    names = {each.casefold(): each for each in sorted(map(str, valid))}
    near = difflib.get_close_matches(str(name).casefold(), names, n=1, cutoff=0.65)
    hint = f"did you mean {names[near[0]]!r}?" if near else f"choose one of: {', '.join(names.values()) or '(none)'}"
    return UserError(f"unknown {kind} {name!r}{f' in {where}' if where else ''}; {hint}")


def count(n: int, noun: str) -> str:
    """'1 data set', '2 data sets'."""
    return f"{n} {noun}" + "s" * int(n != 1)


def exit_status(command: Callable[[], object]) -> int:
    """0; 1 after printing to standard error the message of a UserError, or which file the system refused and why; 130
    after Ctrl-C. Both streams are UTF-8, as files are, whatever the locale is."""
    for stream in [each for each in (sys.stdout, sys.stderr) if isinstance(each, io.TextIOWrapper)]:
        stream.reconfigure(encoding="utf-8", errors="backslashreplace")
    try:
        command()
    except KeyboardInterrupt:
        print("gpbench: stopped; run again to resume", file=sys.stderr)
        return 130
    except UserError as error:
        print(f"gpbench: {error}", file=sys.stderr)
        return 1
    except BrokenPipeError:
        raise
    except OSError as error:  # a full or read-only disk, a folder where a file should be
        what = f"{error.filename}: {error.strerror}" if error.filename else error.strerror or str(error)
        print(f"gpbench: {what}; check the file, free space and permissions", file=sys.stderr)
        return 1
    return 0
