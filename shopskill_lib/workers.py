"""Threads that work through what is owed: bounded attempts, stopping on request, a progress bar.

Rollouts and analyses share them. A failed attempt is data and tried again; a wrong set-up stops everything.
"""

import os
import signal
import sys
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Generic, TypeVar

from tqdm import tqdm

from shopskill_lib.errors import AuthorError, InfrastructureError, Interrupted, SetupError, ShopskillError
from shopskill_lib.records import Failure
from shopskill_lib.replies import clean

T = TypeVar("T")
J = TypeVar("J")
A = TypeVar("A")

SUSPECT = 10
"""Different jobs that fail one after the other, each at its first attempt, after which it is the set-up that is wrong
and none of them. A server that is down does not come to this: callers wait for it, or get a `SetupError` (traffic)."""

FEW = 3
"""The same where nothing has succeeded yet and there are fewer jobs than that: all of them, this many at least."""

MAX_ATTEMPTS = 3
"""Attempts at a job, counted over all processes that worked on its folder."""


def guarded(work: Callable[[], T]) -> T | Failure:
    """Do the work; whatever goes wrong in it is returned, unless it is the set-up."""
    try:
        return work()
    except ShopskillError as error:
        if not isinstance(error, InfrastructureError | AuthorError):
            raise
        return Failure(kind=type(error).__name__, message=clean(str(error)))
    except Exception as error:  # noqa: BLE001 - the library's only one: a failed attempt is data
        return Failure(kind=type(error).__name__, message=clean(str(error)))


@dataclass(frozen=True, slots=True)
class Trade(Generic[J, A]):
    """What is done with a job, and what is said of it.

    Attributes:
        unit: a job in the singular and the plural, for messages.
        place: where attempts are kept, for messages.
        model: who is asked, for messages.
        attempt: makes an attempt at a job, numbered from 1; called on any thread.
        failure: what went wrong in an attempt; None where nothing did.
        keep: puts an attempt on disk; called on any thread, on several at once.
        counts: numbers of an attempt that the progress bar adds up.
    """

    unit: tuple[str, str]
    place: str
    model: str
    attempt: Callable[[J, int], A]
    failure: Callable[[A], Failure | None]
    keep: Callable[[A], None]
    counts: Callable[[A], Mapping[str, int]]


def work(trade: Trade[J, A], jobs: Sequence[tuple[J, int]], threads: int, max_attempts: int, kept: int) -> None:
    """Work through all jobs; a failed one goes to the end of the queue while it has attempts left.

    Args:
        trade: what is done.
        jobs: what is owed, each with the attempts there are already.
        threads: jobs at a time.
        max_attempts: attempts at a job, earlier ones included.
        kept: jobs that were done before, for the progress bar.

    Raises:
        Interrupted: SIGTERM or Ctrl-C, also where a server is down; what was in flight has been finished and kept.
        SetupError: the set-up is wrong: a model or shop says so or stays down, or first attempts all fail.
    """
    if jobs:
        _Crew(trade, max_attempts, len(jobs), kept).run(jobs, threads)


class _Crew(Generic[J, A]):
    """Threads that take jobs from one queue until it is empty or something says stop."""

    def __init__(self, trade: Trade[J, A], max_attempts: int, owed: int, kept: int) -> None:
        self._trade, self._max_attempts, self._kept = trade, max_attempts, kept
        self._queue: deque[tuple[J, int]] = deque()
        self._stop, self._asked = threading.Event(), threading.Event()
        self._lock, self._keeping = threading.Lock(), threading.Lock()
        self._counts: Counter[str] = Counter()
        self._answered = False
        self._suspect = SUSPECT if kept else min(SUSPECT, max(FEW, owed))
        self._withheld: list[tuple[int, A]] = []

    def run(self, jobs: Sequence[tuple[J, int]], threads: int) -> None:
        """Run all jobs."""
        self._queue.extend((job, attempts + 1) for job, attempts in jobs)
        silent = bool(os.environ.get("CI")) or not sys.stderr.isatty()
        with (
            tqdm(
                total=self._kept + len(jobs), initial=self._kept, unit=self._trade.unit[0], disable=silent
            ) as self._bar,
            _asking_to_stop(self._stop, self._asked),
            ThreadPoolExecutor(min(threads, len(jobs)), self._trade.unit[0]) as pool,
        ):
            workers = [pool.submit(self._work) for _ in range(min(threads, len(jobs)))]
            while wait(workers, timeout=0.2).not_done:  # a signal that reaches a worker is handled here
                pass
        failed = next((error for error in (worker.exception() for worker in workers) if error is not None), None)
        if failed is not None and not (self._asked.is_set() and isinstance(failed, SetupError)):
            raise failed
        for _, attempt in self._withheld if failed is None else ():
            self._trade.keep(attempt)
        if self._stop.is_set():  # also with nothing left to do here: the caller has more
            raise Interrupted(
                f"stopped on request with {len(self._queue)} {self._trade.unit[1]} still to run",
                where=self._trade.place,
                allowed="stopping at any time: what was in flight has been finished and kept",
                todo="repeat the same call to go on",
            ) from failed

    def _work(self) -> None:
        """Take jobs; any exception here is one of the set-up and stops the other threads too."""
        finished = False
        try:
            while not self._stop.is_set() and self._take():
                pass
            finished = True
        finally:
            if not finished:
                self._stop.set()

    def _take(self) -> bool:
        """Run the next job; False when there is none."""
        with self._lock:
            if not self._queue:
                return False
            job, number = self._queue.popleft()
        attempt = self._trade.attempt(job, number)
        failed = self._trade.failure(attempt)
        with self._keeping:  # so that a job's attempts are kept in their order
            for kept in self._ready(attempt, number, failed):
                self._trade.keep(kept)
        with self._lock:
            again = failed is not None and number < self._max_attempts
            if again:
                self._queue.append((job, number + 1))
            self._show(attempt, not again)
        return True

    def _ready(self, attempt: A, number: int, failed: Failure | None) -> list[A]:
        """Return what may be kept: first attempts that fail wait for a success, as the set-up may be wrong.

        After a success only failures of network and server are suspicious; a job that has failed before is data.

        Raises:
            SetupError: too many first attempts in a row have failed.
        """
        self._withheld.append((number, attempt))
        self._answered = self._answered or failed is None
        outage = failed is not None and failed.kind == InfrastructureError.__name__
        suspicious = sum(number == 1 for number, _ in self._withheld)
        if failed is None or not suspicious or (self._answered and not outage):
            ready, self._withheld = [attempt for _, attempt in self._withheld], []
            return ready
        if suspicious < self._suspect:
            return []
        which = "last" if self._answered else "first"
        raise SetupError(
            f"the {which} {suspicious} {self._trade.unit[1]} have all failed, the last one so: "
            f"{failed.message.partition('. Allowed:')[0]}",
            where=self._trade.model,
            allowed="a model and a shop that answer",
            todo="mend what the message names, then repeat the call; none of these attempts counts",
        )

    def _show(self, attempt: A, over: bool) -> None:
        """Move the progress bar."""
        self._counts.update(self._trade.counts(attempt))
        self._bar.set_postfix(dict(self._counts), refresh=False)
        self._bar.update(int(over))


@contextmanager
def _asking_to_stop(*stop: threading.Event) -> Iterator[None]:
    """Let SIGTERM and Ctrl-C ask for a stop by these events; the second one does what it did before."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler or signal.SIG_DFL)

    def ask(number: int, frame: FrameType | None) -> None:  # noqa: ARG001 - the signature of a handler
        for event in stop:
            event.set()
        restore()

    for number in before:
        signal.signal(number, ask)
    try:
        yield
    finally:
        restore()
