"""Claims: which machine is at a fit, of those that share a remote place.

A claim is an object `claims/<fit_id>.<number>` that its owner writes again every `BEAT` seconds. One that has not
changed for `SILENCE` seconds, by the clock of who looks at it, was left by a machine that died; it is superseded by the
next number. As objects are only created, one of several who try succeeds.
"""

import os
import platform
import re
import secrets
import time

from gpbench.study.storage.remote import Remote
from gpbench.study.storage.store import SILENCE


class Claims:
    """The claims that this process has and sees."""

    def __init__(self, remote: Remote) -> None:
        self.remote = remote
        self.held: dict[str, int] = {}
        self.owner = f"{platform.node()} {os.getpid()} {secrets.token_hex(8)}"
        self.seen: dict[str, tuple[bytes | None, float]] = {}

    def take(self, fit_ids: list[str]) -> bool:
        """Claim some fits, all or none; whether none of them is another's."""
        if all(self._take(fit_id) for fit_id in sorted(fit_ids)):
            return True
        self.release()
        return False

    def _take(self, fit_id: str) -> bool:
        newest = max(self._numbers(fit_id), default=0)
        if newest and not self._is_stale(f"claims/{fit_id}.{newest}"):
            return False
        name, content = f"claims/{fit_id}.{newest + 1}", self._content()
        # an answer may be lost, and what was tried again find itself
        if self.remote.create(name, content) or self.remote.read(name) == content:
            self.held[fit_id] = newest + 1
        return fit_id in self.held

    def _numbers(self, fit_id: str) -> list[int]:
        """Those of the claims of a fit that are there now, in their order."""
        matches = (re.fullmatch(rf"{fit_id}\.([0-9]{{1,9}})", name) for name in self.remote.names("claims"))
        return sorted(int(match[1]) for match in matches if match)

    def _is_stale(self, name: str) -> bool:
        content, now = self.remote.read(name), time.monotonic()
        before, since = self.seen.get(name, (b"", now))
        if content != before:
            self.seen[name] = content, now
        return content == before and now - since >= SILENCE

    def beat(self) -> None:
        """Show that the owner lives."""
        for fit_id, number in self.held.items():
            self.remote.write(f"claims/{fit_id}.{number}", self._content())

    def release(self) -> None:
        """Give the claims up, and remove those that they superseded."""
        for fit_id, number in self.held.items():
            for old in (old for old in self._numbers(fit_id) if old <= number):
                self.remote.remove(f"claims/{fit_id}.{old}")
        self.held = {}

    def _content(self) -> bytes:
        return f"{self.owner} {time.time()}".encode()
