"""Requests to one server from any number of threads: as many at once as it bears, none while it is down."""

import resource
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from shopskill_lib.clock import Clock
from shopskill_lib.errors import SetupError

IN_A_ROW = 5
"""Failures in a row, over all callers, after which a server is down: fewer than one caller's tries, so that no request
is given up for a server that answers nobody."""
FIRST_PAUSE, LONGEST_PAUSE = 1.0, 30.0
"""Seconds before the first probe of a server that is down, doubled after each one; and their bound."""
RESERVED = 64
"""Files that a process may have open beside its connections."""


class Traffic:
    """Requests to one server: as many at once as it bears, none while it is down.

    A server is down after `IN_A_ROW` failures in a row. Then one caller probes after growing pauses while the others
    wait; an answer to anybody ends it. A caller that comes after the patience was spent probes at once.
    """

    def __init__(
        self,
        server: str,
        clock: Clock,
        *,
        most: int = 64,
        patience: float = 300.0,
        probe: Callable[["Traffic"], None] | None = None,
    ) -> None:
        """Begin with a server that is up.

        Args:
            server: whose requests these are, for messages.
            clock: all waiting for a server that is down.
            most: requests at once; lowered, with a message, to what the limit of open files admits.
            patience: seconds that a server may be down.
            probe: asks for something harmless and tells what came back by `succeeded` or `failed`. Without it the next
                request of a caller is the probe, and a request that always fails looks like a server that is down.
        """
        self._server, self._clock, self._patience, self._probe = server, clock, patience, probe
        self._most = self._limit = float(_admitted(server, most))
        self._lowest = self.at_once
        self._changed = threading.Condition()
        self._busy = self._settling = self._row = self._deaths = 0
        self._since: float | None = None
        self._probed: float | None = None
        self._probing = False
        self._cause, self._pause, self._earliest = "", FIRST_PAUSE, 0.0

    @property
    def at_once(self) -> int:
        """Requests that may be under way at a time."""
        return int(self._limit)

    @property
    def down(self) -> bool:
        """Whether the server answers nobody at present."""
        return self._since is not None

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Wait for a place and hold it for one request, whose outcome is told by `succeeded` or `failed`.

        Raises:
            SetupError: the server has been down for the whole patience; all callers that wait get it.
        """
        probing = self._enter()
        try:
            yield
        finally:
            self._leave(probing)

    def succeeded(self) -> None:
        """Note that a request was answered, whatever the answer means."""
        with self._changed:
            self._row, self._earliest = 0, 0.0
            if self._since is not None and self._pause > FIRST_PAUSE:
                _say(f"{self._server} answers again after {self._clock.seconds() - self._since:.0f} s")
            self._limit = min(self._most, self._limit + 1 / self._limit)
            if self.down:
                self._changed.notify_all()
            else:
                self._changed.notify()  # the limit may have risen by one
            self._since = None

    def failed(self, cause: str, *, overloaded: bool = False, wait: float = 0.0) -> None:
        """Note that a request was not answered.

        Args:
            cause: why, for messages.
            overloaded: the server, or this machine, has too much to do (429, a timeout, too many open files).
            wait: seconds that the server asked to be left alone.
        """
        with self._changed:
            now = self._clock.seconds()
            self._cause, self._row = cause, self._row + 1
            self._earliest = max(self._earliest, now + wait)
            if overloaded and not self._settling:
                self._lower()
            if self._row >= IN_A_ROW and self._since is None:
                self._since, self._pause = now, FIRST_PAUSE

    def _lower(self) -> None:
        """Admit half of what is under way, which was too much together and therefore counts once."""
        self._limit, self._settling = max(1.0, min(self._limit, self._busy) / 2), self._busy
        if self.at_once < self._lowest:
            self._lowest = self.at_once
            _say(f"{self._server} is overloaded ({self._cause}): fewer requests at once, {self.at_once} for now")

    def _enter(self) -> bool:
        """Take a place; True for the caller whose own request is the probe."""
        while True:
            with self._changed:
                deaths = self._deaths
                while not self._admits():
                    self._changed.wait()
                    if self._deaths > deaths:
                        raise self._gone()
                self._busy += 1
                if not self.down:
                    return False
                self._probing, self._probed = True, self._since
            if self._still_down() and self._probe is None:
                return True
            self._leave(probing=True)

    def _admits(self) -> bool:
        """Tell whether a caller may go: there is a place, and the server is up or nobody probes it yet."""
        return self._busy < self.at_once and not (self.down and self._probing)

    def _still_down(self) -> bool:
        """Wait until it is time for a probe, and make the one that is given; whether the server is down after that."""
        try:
            self._clock.sleep(self._until_probe())
            if self._probe is not None and self.down:
                self._probe(self)
        except BaseException:
            self._leave(probing=True)
            raise
        return self.down

    def _until_probe(self) -> float:
        """Return the seconds to the next probe, not beyond the patience."""
        with self._changed:
            now = self._clock.seconds()
            left = (now if self._since is None else self._since) + self._patience - now
            return max(0.0, min(left, max(self._pause, self._earliest - now)))

    def _leave(self, probing: bool) -> None:
        """Give the place back; after a probe that failed wait longer, or give the server up.

        Raises:
            SetupError: the patience is spent.
        """
        with self._changed:
            self._busy -= 1
            self._settling = max(0, self._settling - 1)
            self._probing = self._probing and not probing
            given_up = False
            if probing and self._since is not None and self._since == self._probed:  # else another outage has begun
                if self._pause == FIRST_PAUSE:
                    does = "refuses for its rate or quota" if self._refuses else "does not answer"
                    _say(f"{self._server} {does} ({self._cause}): waiting, {self._patience:.0f} s at most")
                self._pause = min(LONGEST_PAUSE, 2 * self._pause)
                given_up = self._clock.seconds() - self._since >= self._patience
            if given_up:
                self._deaths += 1
                self._changed.notify_all()
                raise self._gone()
            self._changed.notify()

    @property
    def _refuses(self) -> bool:
        """Whether the server answered last, but that it takes no more requests for now."""
        return self._cause.startswith("HTTP 429")

    def _gone(self) -> SetupError:
        """Return what is told of a server that does not come back."""
        down = 0.0 if self._since is None else self._clock.seconds() - self._since
        if self._refuses:
            return SetupError(
                f"it has refused every request for {down:.0f} seconds, the last time so: {self._cause}",
                where=self._server,
                allowed="a server whose rate limit or quota takes requests",
                todo="lower policy_concurrency or author_concurrency, look at the quota, and repeat the call later; "
                "what was finished is kept, no attempt was used up",
            )
        return SetupError(
            f"it has not answered for {down:.0f} seconds, the last time so: {self._cause}",
            where=self._server,
            allowed="a server that answers",
            todo="mend what the message names, then repeat the call; what was finished is kept, no attempt was used up",
        )


def _admitted(server: str, most: int) -> int:
    """Return how many requests at once the limit of open files admits; half of them, as shop and model share it."""
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    admitted = most if files == resource.RLIM_INFINITY else max(1, min(most, (files - RESERVED) // 2))
    if admitted < most:
        _say(f"{server}: {admitted} requests at once instead of {most}, as this process may open {files} files only")
    return admitted


def _say(text: str) -> None:
    """Say what happened to the traffic on standard error, where progress is shown."""
    sys.stderr.write(f"\n{text}\n")
