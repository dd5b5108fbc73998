"""What a job does where machines share a remote place: claim fits, fetch checkpoints, send what is done."""

import itertools
import sys
import time

from gpbench.errors import UserError
from gpbench.study.fitting import stopping
from gpbench.study.records import Group
from gpbench.study.storage import remote
from gpbench.study.storage.claims import Claims
from gpbench.study.storage.store import BEAT, Store

LOOK_SECONDS = 5.0


class Sharing:
    """The groups of a job, and their exchange with a remote place, if there is one."""

    def __init__(self, store: Store, waits: bool = True) -> None:
        self.store, self.waits = store, waits
        place = remote.find()
        self.claims = Claims(place) if place else None
        self.looked, self.sent = 0.0, 0

    def next(self, pending: list[Group]) -> Group | None:
        """Take a group from those that are pending, one that nobody is at if there is one.

        Waits while others are at all of them, if the job does; None where nothing is left for it, or it is to end."""
        announced = False
        while pending and not stopping.is_requested():
            last = pending[:1] if self.waits else []
            group = next(filter(self._take, itertools.chain(filter(self.store.is_free, pending), last)), None)
            if group:
                pending.remove(group)
                if self._begin(group):
                    return group
            elif not self.waits:
                return None
            elif not announced:
                announced = True
                print("gpbench: waiting for other machines, which are at all that is left", file=sys.stderr)
            else:
                time.sleep(LOOK_SECONDS)
        return None

    def _take(self, group: Group) -> bool:
        """Claim a group; whether no other machine is at it."""
        return not self.claims or self.claims.take([fit.fit_id for fit in group.fits])

    def _begin(self, group: Group) -> bool:
        """Fetch the checkpoints of a group that was claimed; whether it has fits that no machine has done."""
        if not self.claims:
            return True
        place = self.claims.remote
        if all(self.store.has(fit.fit_id) or place.has(fit.fit_id) for fit in group.fits):
            self.claims.release()
            return False
        place.pull_work(self.store, group.group_id)
        self.looked, self.sent = time.monotonic(), self.store.checkpoint(group.group_id)
        return True

    def look(self, group: Group) -> None:
        """Now and then, while a group is fitted: show that its machine lives, and send a new checkpoint."""
        if time.monotonic() - self.looked < BEAT:
            return
        self.looked = time.monotonic()
        self.store.beat(group)
        if not self.claims:
            return
        try:
            self.claims.beat()
            if (step := self.store.checkpoint(group.group_id)) > self.sent:
                self.claims.remote.push_work(self.store, group.group_id)
                self.sent = step
        except UserError as error:  # the fit goes on
            print(f"gpbench: {error}", file=sys.stderr)

    def end(self, group: Group) -> None:
        """Send what is done of a group, or how far it came, and give its claim up."""
        if not self.claims:
            return
        place, fit_ids = self.claims.remote, [fit.fit_id for fit in group.fits]
        place.push(self.store, fit_ids)
        if all(map(self.store.has, fit_ids)):
            place.forget_work(group.group_id)
        else:
            place.push_work(self.store, group.group_id)
        self.claims.release()
