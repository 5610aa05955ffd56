"""Requests to a ShopSimulator server: one route, JSON both ways, and every way in which an answer can fail to come.

A request that may have been carried out is never sent again from here: only a caller knows what that would do.
"""

import json
import threading
import weakref
from collections.abc import Callable
from typing import Any

import httpx2

from shopskill_lib.clock import Clock
from shopskill_lib.errors import InfrastructureError, ParameterError
from shopskill_lib.traffic import Traffic

Json = dict[str, Any]

ROUTE = "/api/shop_agent"
HEALTH = "/healthz"
CONNECT_TIMEOUT = 10.0
LATE = 120.0
"""Seconds that a request which nobody waits for any more is still listened to: its answer may hold a slot."""

_UNSENT = (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout)
_OUT_OF_ORDER = (502, 503, 504)


class UnreachableError(Exception):
    """No answer came.

    Args:
        text: what happened.
        sent: whether the server may have carried the request out.
        late: whether the time was up.
    """

    def __init__(self, text: str, *, sent: bool, late: bool = False) -> None:
        super().__init__(text)
        self.sent, self.late = sent, late


class RefusalError(Exception):
    """An answer that is an error.

    Args:
        status: of HTTP; the generations before v8 answer 200 whatever is wrong.
        text: what the server says.
        own: whether it says so itself; else something between or beneath it does, by a page that is no JSON.
    """

    def __init__(self, status: int, text: str, *, own: bool) -> None:
        super().__init__(f"HTTP {status}: {text}")
        self.status, self.text, self.own = status, text, own

    @property
    def passing(self) -> bool:
        """Whether the request did not reach a server in working order, and another try may."""
        return not self.own and self.status in _OUT_OF_ORDER


Answer = Json | RefusalError | UnreachableError
"""What comes of a request."""


class _Errand:
    """A request on a thread of its own: somebody waits for its answer, or has gone and left it to `unwanted`."""

    def __init__(self, ask: Callable[[], Json], unwanted: Callable[[Answer], None]) -> None:
        self._ask, self._unwanted = ask, unwanted
        self._lock, self._over = threading.Lock(), threading.Event()
        self._left = False
        self._answer: Answer = UnreachableError("the request was broken off", sent=True)

    def wait(self, seconds: float) -> Json:
        """Ask, and return the answer; whoever does not take it, for whatever reason, has left it.

        Raises:
            UnreachableError, RefusalError: there is none, or not in time.
        """
        interrupted = True
        try:
            threading.Thread(target=self._run, name="shop-reset").start()
            self._over.wait(seconds)
            interrupted = False
        finally:
            with self._lock:
                here = self._over.is_set()
                self._left = not here
            if here and interrupted:
                self._give_up()
        if not here:
            raise UnreachableError(f"no answer in {seconds:g} s", sent=True, late=True)
        if isinstance(self._answer, Exception):
            raise self._answer
        return self._answer

    def _run(self) -> None:
        try:
            self._answer = self._ask()
        except (UnreachableError, RefusalError) as error:
            self._answer = error
        finally:
            with self._lock:
                self._over.set()
                left = self._left
            if left:
                self._give_up()

    def _give_up(self) -> None:
        self._unwanted(self._answer)


def base_of(url: str) -> str:
    """Return the base URL of a server, given with or without its route.

    Raises:
        ParameterError: it is no http(s) URL.
    """
    base = url.strip().rstrip("/").removesuffix(ROUTE)
    if not base.startswith(("http://", "https://")):
        raise ParameterError(
            f"shop_url is {url!r}",
            where="parameter shop_url",
            allowed="http(s)://host:port of a ShopSimulator server",
            todo="correct it, or leave it out for the embedded shop",
        )
    return base


class Door:
    """One server, asked from any number of threads over one pool of connections; no proxy of the environment."""

    def __init__(self, url: str, *, timeout: float, clock: Clock, connections: int) -> None:
        """Open the pool; nothing is sent yet.

        Args:
            url: of the server, with or without its route.
            timeout: seconds that an answer may take, the body included.
            clock: of the deadline.
            connections: most at a time.
        """
        self.base, self.timeout, self.clock = base_of(url), timeout, clock
        self.traffic = Traffic(self.base, clock, most=connections, probe=self._knock)
        limits = httpx2.Limits(max_connections=None, max_keepalive_connections=connections)
        self._client = httpx2.Client(trust_env=False, limits=limits)
        self.close = weakref.finalize(self, self._client.close)
        """Close the connections, at the latest when nobody holds the door any more."""

    def health(self) -> Json:
        """Return the document of the health route.

        Raises:
            UnreachableError, RefusalError: there is none.
        """
        return _read(*self._send("GET", HEALTH, None, min(self.timeout, CONNECT_TIMEOUT)))

    def ask(self, body: Json) -> Json:
        """Ask once, in turn with all others, and return the `result` of the answer.

        Raises:
            UnreachableError, RefusalError: there is none.
            SetupError: the server has been down for too long.
        """
        with self.traffic.turn():
            return self._counted(lambda: self._result(body, self.timeout))

    def tell(self, body: Json) -> Json:
        """Ask once without waiting for a turn: for what must be told even to a server that is out of order."""
        return self._result(body, self.timeout)

    def ask_waiting(self, body: Json, unwanted: Callable[[Answer], None]) -> Json:
        """Ask what the server may keep waiting; whoever gives up leaves somebody behind who takes the answer.

        Args:
            body: the request.
            unwanted: called once with the answer, or why none came, when it comes after all and nobody waits for it.

        Raises:
            UnreachableError, RefusalError: there is no answer, or not in time.
            SetupError: the server has been down for too long.
        """
        with self.traffic.turn():
            errand = _Errand(lambda: self._result(body, self.timeout + LATE), unwanted)
            return self._counted(lambda: errand.wait(self.timeout), waiting=True)

    def infrastructure(self, error: Exception, doing: str) -> InfrastructureError:
        """Return what the agent is told of an answer that did not come or is none."""
        return InfrastructureError(
            f"{doing}: {error}",
            where=f"shop at {self.base}",
            allowed="a server that answers as a ShopSimulator does",
            todo="look at the server, then repeat the call: only what is owed runs",
        )

    def _knock(self, traffic: Traffic) -> None:
        """Tell whether a server that was down answers again, whatever it says to a question that costs nothing."""
        try:
            self.health()
        except UnreachableError as error:
            traffic.failed(str(error))
        except RefusalError as error:
            if error.passing:
                traffic.failed(str(error))
            else:
                traffic.succeeded()
        else:
            traffic.succeeded()

    def _counted(self, ask: Callable[[], Json], *, waiting: bool = False) -> Json:
        """Ask, and let the traffic know how the server fares; one that lets somebody wait has not too much to do."""
        try:
            answer = ask()
        except UnreachableError as error:
            self.traffic.failed(str(error), overloaded=(error.late and not waiting) or "open files" in str(error))
            raise
        except RefusalError as error:
            if error.passing:
                self.traffic.failed(str(error))
            else:
                self.traffic.succeeded()
            raise
        self.traffic.succeeded()
        return answer

    def _result(self, body: Json, seconds: float) -> Json:
        """Send a request to the one route and return the `result`, which is no error."""
        status, content = self._send("POST", ROUTE, json.dumps(body).encode(), seconds)
        result = _read(status, content).get("result")
        if not isinstance(result, dict):
            raise RefusalError(status, _excerpt(content), own=False)
        if "error" in result:
            raise RefusalError(status, str(result["error"]), own=True)
        return result

    def _send(self, method: str, path: str, content: bytes | None, seconds: float) -> tuple[int, bytes]:
        """Return status and body of an answer that is there, whole, in time."""
        until = self.clock.seconds() + seconds
        body = bytearray()
        try:
            with self._client.stream(
                method,
                self.base + path,
                content=content,
                headers={"Content-Type": "application/json"} if content else None,
                timeout=httpx2.Timeout(seconds, connect=min(CONNECT_TIMEOUT, seconds)),
            ) as response:
                for piece in response.iter_bytes():
                    body += piece
                    if self.clock.seconds() > until:
                        raise UnreachableError(f"no whole answer in {seconds:g} s", sent=True, late=True)
        except httpx2.TimeoutException as error:
            sent = not isinstance(error, _UNSENT)
            raise UnreachableError(f"no answer in {seconds:g} s ({error!r})", sent=sent, late=True) from error
        except (httpx2.HTTPError, httpx2.InvalidURL) as error:
            raise UnreachableError(f"{error!r}", sent=not isinstance(error, _UNSENT)) from error
        return response.status_code, bytes(body)


def _read(status: int, content: bytes) -> Json:
    """Return an answer that is a JSON object under a good status."""
    try:
        document = json.loads(content)
    except (ValueError, RecursionError):
        document = None
    if status == 200 and isinstance(document, dict):
        return document
    result = document.get("result") if isinstance(document, dict) else None
    told = result.get("error") if isinstance(result, dict) else None
    raise RefusalError(status, _excerpt(content) if told is None else str(told), own=told is not None)


def _excerpt(content: bytes) -> str:
    """Return the beginning of a body on one line."""
    return " ".join(content[:300].decode("utf-8", "replace").split()) or "the body is empty"
