"""Slots of a shop server: leases that expire when nobody uses them, and a bounded wait for a free slot in turn."""

import math
import threading
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field

from shopskill_lib.clock import Clock
from shopskill_lib.errors import ParameterError
from shopskill_lib.records import Task
from shopskill_lib.shops.protocol import Session

PAUSE = 0.05
"""Seconds between two looks of a reset that waits."""


@dataclass(eq=False, slots=True)
class Lease:
    """A slot in somebody's hands, and the episode that runs on it."""

    slot: int
    lease_id: str
    task: Task
    session: Session
    used: float
    """Seconds of the clock when it was last named."""
    turn: threading.Lock = field(default_factory=threading.Lock)
    """Held while the session is used: one request at a time."""


class Slots:
    """A fixed number of slots; safe on many threads."""

    def __init__(self, count: int, lease_seconds: float, clock: Clock) -> None:
        """Make all slots free.

        Args:
            count: number of slots.
            lease_seconds: a lease that is not named for so long is over and its slot free.
            clock: time and waiting.

        Raises:
            ParameterError: there would be no slot, or no time to use one.
        """
        if count < 1 or not 1 <= lease_seconds < math.inf:
            raise ParameterError(
                f"there are {count} slots and leases of {lease_seconds:g} s",
                where="slots, lease_seconds",
                allowed="1 or more of each, and an end to every lease",
                todo="choose larger numbers",
            )
        self.count = count
        self.lease_seconds = lease_seconds
        self._clock = clock
        self._lock = threading.Lock()
        self._leases: dict[int, Lease] = {}
        self._queue: list[object] = []

    @property
    def free(self) -> int:
        """Number of slots that nobody holds."""
        with self._lock:
            return len(self._free())

    def acquire(self, task: Task, session: Session, wait: float, gone: Callable[[], bool]) -> Lease | None:
        """Lease a free slot, waiting for one in the order of arrival.

        Args:
            task: what the episode asks for.
            session: the episode, on its first page.
            wait: seconds to wait at most.
            gone: tells whether the one who asks has hung up; asked before every look.

        Returns:
            The lease; None when the wait is over or the one who asks is gone.
        """
        ticket = object()
        with self._lock:
            self._queue.append(ticket)
        try:
            until = self._clock.seconds() + wait
            while not gone():
                lease = self._take(ticket, task, session)
                if lease is not None or self._clock.seconds() >= until:
                    return lease
                self._clock.sleep(PAUSE)
            return None
        finally:
            with self._lock:
                self._queue.remove(ticket)

    def _take(self, ticket: object, task: Task, session: Session) -> Lease | None:
        """Lease a slot if there are more free ones than tickets before this one."""
        with self._lock:
            free = self._free()
            if self._queue.index(ticket) >= len(free):
                return None
            lease = Lease(free[0], uuid.uuid4().hex, task, session, self._clock.seconds())
            self._leases[lease.slot] = lease
            return lease

    def find(self, slot: int, lease_id: str) -> Lease | None:
        """Return the lease of this slot and id, used from now on again; None when there is no such lease any more."""
        with self._lock:
            self._expire()
            lease = self._leases.get(slot)
            if lease is None or lease.lease_id != lease_id:
                return None
            lease.used = self._clock.seconds()
            return lease

    def release(self, lease: Lease) -> bool:
        """Free the slot of a lease; False when it was not held any more."""
        with self._lock:
            held = self._leases.get(lease.slot) is lease
            if held:
                del self._leases[lease.slot]
            return held

    def release_all(self) -> int:
        """Free every slot and return how many were held."""
        with self._lock:
            held = len(self._leases)
            self._leases.clear()
            return held

    def _free(self) -> list[int]:
        """Return the free slots in order; the caller holds the lock."""
        self._expire()
        return [slot for slot in range(self.count) if slot not in self._leases]

    def _expire(self) -> None:
        """End the leases that nobody has used for too long; the caller holds the lock."""
        oldest = self._clock.seconds() - self.lease_seconds
        for lease in [lease for lease in self._leases.values() if lease.used < oldest]:
            del self._leases[lease.slot]
