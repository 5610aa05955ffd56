"""All time and all waiting behind one small record, so that faults are tested in milliseconds."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime


@dataclass(frozen=True, slots=True)
class Clock:
    """All time and all waiting, so that faults are tested in milliseconds."""

    now: Callable[[], datetime]
    seconds: Callable[[], float]
    """Time that never jumps, for durations."""
    sleep: Callable[[float], None]


SYSTEM_CLOCK = Clock(lambda: datetime.now(UTC), time.monotonic, time.sleep)
