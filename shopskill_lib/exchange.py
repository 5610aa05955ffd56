"""One request to one server, and what came back: a reply, a refusal, or nothing; the only home of the client."""

import errno
import os
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Any

import httpx2
import openai

from shopskill_lib import refusals
from shopskill_lib.clock import Clock
from shopskill_lib.endpoints import SIMULATED, Endpoint
from shopskill_lib.errors import SetupError
from shopskill_lib.records import canonical
from shopskill_lib.replies import ErrorReplyError, NotAReplyError, Reply, Stop, read_reply
from shopskill_lib.streams import unstreamed

CONNECT_TIMEOUT = 10.0
"""Seconds that a connection may take."""

_NO_MORE_FILES = {errno.EMFILE, errno.ENFILE}


class Failed(Exception):  # noqa: N818 - not an error yet: it may be tried again
    """A request that brought no reply."""

    def __init__(self, message: str, *, retry: bool, wait: float = 0.0, overloaded: bool = False) -> None:
        """Keep whether another try may bring one, and the seconds that the server asked to be left alone."""
        super().__init__(message)
        self.retry, self.wait, self.overloaded = retry, wait, overloaded


@dataclass(frozen=True, slots=True)
class Exchange:
    """What can be asked of one server.

    Attributes:
        endpoint: the model.
        url: base URL of this server.
        client: its client, used from any number of threads.
        clock: measures how long an answer takes.
    """

    endpoint: Endpoint
    url: str
    client: openai.OpenAI
    clock: Clock

    def ask(self, body: bytes, offered: set[str], left: float = float("inf")) -> Reply:
        """Send one request and read its answer.

        Args:
            body: of the request, sent as it is.
            offered: names of the tools in it.
            left: seconds that it may take, where that is less than the endpoint's timeout.

        Raises:
            Failed: there is no reply.
            SetupError: the server refuses the key or an option, or does not know the model.
        """
        answer = b""
        try:
            answer = self._received(body, min(self.endpoint.timeout, left))
            whole = unstreamed(answer) if self.endpoint.stream else answer
            return read_reply(whole, offered, self.endpoint.protocol, self.endpoint.max_tokens)
        except openai.APIStatusError as error:
            wait = _retry_after(error.response.headers.get("retry-after"), self.clock)
            return self._refused(error.status_code, error.response.text, wait)
        except ErrorReplyError as error:
            return self._refused(error.status, error.text, 0.0)
        except openai.APIConnectionError as error:
            raise Failed(f"{error} ({error.__cause__!r})", retry=True, overloaded=_too_much(error)) from error
        except httpx2.HTTPError as error:
            raise Failed(f"the answer broke off: {error!r}", retry=True, overloaded=_too_much(error)) from error
        except NotAReplyError as error:
            silent = self.endpoint.stream and not answer  # some servers answer streams beyond their slots so
            raise Failed(str(error), retry=True, overloaded=silent) from error

    def ping(self) -> Reply:
        """Ask for one token, to see whether anything comes back (see `ask` for what is raised)."""
        message = {"role": "user", "content": "ping"}
        return self.ask(canonical({"model": self.endpoint.model, "messages": [message], "max_tokens": 1}), set())

    def listed(self) -> tuple[str, ...] | None:
        """Return the names of the models that the server lists; None where it does not tell."""
        try:
            entries = self.entries()
        except (Failed, SetupError):
            return None
        return None if entries is None else tuple(sorted(str(entry.get("id")) for entry in entries))

    def entries(self) -> list[dict[str, Any]] | None:
        """Return what the server's list says of each model; None where it offers none.

        Raises:
            Failed: nothing answers.
            SetupError: the server refuses the key.
        """
        try:
            page = self.client.get("/models", cast_to=httpx2.Response, options={"timeout": CONNECT_TIMEOUT})
            found = page.json()["data"]
        except openai.APIStatusError as error:
            if error.status_code in (401, 403):
                self._refused(error.status_code, error.response.text, 0.0)
            return None
        except openai.APIConnectionError as error:
            raise Failed(f"{error} ({error.__cause__!r})", retry=True) from error
        except (ValueError, TypeError, KeyError):
            return None
        return [entry for entry in found if isinstance(entry, dict)] if isinstance(found, list) else None

    def _received(self, body: bytes, limit: float) -> bytes:
        """Send one request and return the body of its answer, which may take so many seconds in all.

        Raises:
            httpx2.ReadTimeout: it has not ended by then, however regularly something comes.
        """
        end = self.clock.seconds() + limit
        parts: list[bytes] = []
        with self.client.post(
            "/chat/completions",
            cast_to=object,
            content=body,
            stream=True,
            stream_cls=openai.Stream[object],
            options={
                "headers": {"Content-Type": "application/json"},
                "timeout": httpx2.Timeout(limit, connect=min(CONNECT_TIMEOUT, limit)),
            },
        ) as stream:
            for part in stream.response.iter_bytes():
                parts.append(part)
                if self.clock.seconds() > end:
                    raise httpx2.ReadTimeout(f"not complete after {limit:g} seconds")
        return b"".join(parts)

    def _refused(self, status: int, text: str, wait: float) -> Reply:
        """Tell an overflow, a wrong set-up and a failing server apart."""
        refusal = refusals.judge(status, text, self.endpoint)
        if refusal.kind == "overflow":
            return Reply(Stop("context_length"), "", (), None, None)
        if refusal.kind == "setup":
            raise SetupError(
                refusal.found,
                where=f"model {self.endpoint.model!r} at {self.url}",
                allowed="a model that this server offers to this key, asked as the server understands it",
                todo=refusal.todo,
            )
        raise Failed(refusal.found, retry=refusal.retry, wait=wait, overloaded=refusal.overloaded)


def dial(
    endpoint: Endpoint, transport: httpx2.BaseTransport | None, clock: Clock, connections: int
) -> tuple[Exchange, ...]:
    """Return an exchange for every URL of an endpoint, in their order; nothing is sent yet.

    Args:
        endpoint: the model.
        transport: in-process transport of a simulated model; None for the network.
        clock: measures how long an answer takes.
        connections: most connections at a time.

    Raises:
        SetupError: the environment variable of the key is not set.
    """
    key = _key(endpoint.key_variable)
    http = httpx2.Client(
        transport=transport,
        limits=httpx2.Limits(max_connections=connections, max_keepalive_connections=connections),
    )
    urls = ("http://simulated.invalid/v1",) if endpoint.url == SIMULATED else endpoint.urls
    return tuple(
        Exchange(
            endpoint,
            endpoint.url if endpoint.url == SIMULATED else url,
            openai.OpenAI(api_key=key, base_url=url, timeout=endpoint.timeout, max_retries=0, http_client=http),
            clock,
        )
        for url in urls
    )


def _key(variable: str) -> str:
    """Return the key from the environment."""
    if not variable:
        return "none"
    key = os.environ.get(variable, "").strip()
    if not key:
        raise SetupError(
            f"the environment variable {variable} is not set",
            where="policy_key_env or author_key_env",
            allowed="the name of a variable that holds the key",
            todo=f"export {variable}=... before the start; a key is never a parameter",
        )
    return key


def _too_much(error: Exception) -> bool:
    """Tell whether a request failed because server or machine have too much to do: a timeout, too many open files."""
    if isinstance(error, openai.APITimeoutError | httpx2.TimeoutException):
        return True
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError) and cause.errno in _NO_MORE_FILES:
            return True
        cause = cause.__cause__ or cause.__context__
    return False


def _retry_after(header: str | None, clock: Clock) -> float:
    """Read a Retry-After header, in seconds or as a date; 0 when there is none to be understood."""
    try:
        return max(0.0, float(header or 0))
    except ValueError:
        pass
    try:
        return max(0.0, (parsedate_to_datetime(header or "") - clock.now()).total_seconds())
    except (ValueError, TypeError):
        return 0.0
