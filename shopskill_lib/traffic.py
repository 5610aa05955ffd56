"""Requests to one server: as many at once as it bears, none while it is down."""

from collections.abc import Iterator
from contextlib import contextmanager

from shopskill_lib.clock import Clock


class Traffic:
    """Requests to one server; a stand-in that admits everything."""

    def __init__(self, server: str, clock: Clock, *, most: int = 64, patience: float = 300.0) -> None:
        self.server, self.clock, self.most, self.patience = server, clock, most, patience

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Wait for a place.

        Raises:
            SetupError: the server has been down for `patience` seconds.
        """
        yield

    def succeeded(self) -> None:
        """A request was answered, whatever the answer means."""

    def failed(self, cause: str, *, overloaded: bool = False, wait: float = 0.0) -> None:
        """A request was not answered."""

    @property
    def at_once(self) -> int:
        """Present limit."""
        return self.most

    @property
    def down(self) -> bool:
        """Whether nothing is sent but probes."""
        return False
