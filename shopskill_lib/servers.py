"""The servers of one model: the least busy one that is up is asked; one that is down is looked at now and then."""

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress

from shopskill_lib.clock import Clock
from shopskill_lib.errors import SetupError
from shopskill_lib.exchange import Exchange, Failed
from shopskill_lib.replies import Reply
from shopskill_lib.traffic import Traffic

LOOK = 30.0
"""Seconds between two looks at a server that is down while another one is up."""


class Server:
    """One server: what can be asked of it, and the traffic there."""

    def __init__(self, exchange: Exchange, most: int) -> None:
        """Begin with a server that is up and takes `most` requests at once."""
        self.exchange = exchange
        where = f"model {exchange.endpoint.model!r} at {exchange.url}"
        self.traffic = Traffic(where, exchange.clock, most=most, probe=lambda _: self.knock())
        self.load = 0
        """Requests that are under way or wait for a place."""
        self.looked = float("-inf")
        """When it was last looked at while it was down; infinite while somebody does."""

    def ask(self, body: bytes, offered: set[str], left: float) -> Reply:
        """Send one request and tell the traffic what became of it (see `Exchange.ask`)."""
        with self._told():
            return self.exchange.ask(body, offered, left)

    def knock(self) -> None:
        """Ask for one token, and tell the traffic whether anything came back: how a server that is down is probed.

        It is not metered: a handful of tokens an outage.
        """
        with suppress(Failed, SetupError), self._told():
            self.exchange.ping()

    @contextmanager
    def _told(self) -> Iterator[None]:
        """Tell the traffic whether a request was answered; a refusal is an answer."""
        try:
            yield
        except Failed as failed:
            if failed.retry:
                self.traffic.failed(str(failed), overloaded=failed.overloaded, wait=failed.wait)
            else:
                self.traffic.succeeded()
            raise
        except SetupError:
            self.traffic.succeeded()
            raise
        self.traffic.succeeded()


class Servers:
    """Servers that offer the same model; used from any number of threads."""

    def __init__(self, servers: tuple[Server, ...], clock: Clock) -> None:
        """Begin with servers that are up."""
        self.all, self._clock, self._lock = servers, clock, threading.Lock()

    @contextmanager
    def turn(self) -> Iterator[Server]:
        """Wait for a place at a server, and hold it for one request.

        Raises:
            SetupError: no server answers, one of them for the whole patience.
        """
        self._look()
        with ExitStack() as place:
            yield self._enter(place)

    def _enter(self, place: ExitStack) -> Server:
        """Take a place at the least busy server; where that one is given up and another answers, there."""
        while True:
            server = place.enter_context(self._chosen())
            try:
                place.enter_context(server.traffic.turn())
            except SetupError:
                place.close()
                for other in self.all:
                    if other is not server and other.traffic.down:
                        other.knock()
                if all(other.traffic.down for other in self.all):
                    raise
            else:
                return server

    @contextmanager
    def _chosen(self) -> Iterator[Server]:
        """Choose a server, and count a request there."""
        with self._lock:
            up = [server for server in self.all if not server.traffic.down] or self.all
            chosen = min(up, key=lambda server: server.load / server.traffic.at_once)
            chosen.load += 1
        try:
            yield chosen
        finally:
            with self._lock:
                chosen.load -= 1

    def _look(self) -> None:
        """Look at a server that is down while another is up, one caller at a time and not often."""
        with self._lock:
            now = self._clock.seconds()
            down = [server for server in self.all if server.traffic.down]
            due = [server for server in down if now - server.looked >= LOOK]
            if not due or len(down) == len(self.all):
                return
            due[0].looked = float("inf")
        due[0].knock()
        due[0].looked = self._clock.seconds()
