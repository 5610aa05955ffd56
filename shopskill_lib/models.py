"""The only door to models: an OpenAI chat-completions endpoint, called, retried and counted.

Real and simulated models are behind the same wire format. Retries are for failures of network and server only;
what a model answered is never asked for again.
"""

import errno
import os
import random
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from email.utils import parsedate_to_datetime
from typing import Any, Protocol, get_args

import httpx2
import openai

from shopskill_lib.clock import SYSTEM_CLOCK, Clock
from shopskill_lib.errors import InfrastructureError, ParameterError, SetupError
from shopskill_lib.records import CallProtocol, ModelIdentity, ToolChoice, Usage, canonical
from shopskill_lib.replies import NotAReplyError, Reply, Stop, read_reply
from shopskill_lib.traffic import Traffic

SIMULATED = "simulated"
"""The url of the model that needs no server; names of simulated models begin with it as well."""

TRIES = 6
"""Requests for one answer at most; those that a server fails while it answers nobody do not count."""
LONGEST_BACKOFF = 30.0
LONGEST_RETRY_AFTER = 300.0
"""Seconds that a server's Retry-After is obeyed at most."""
CONNECT_TIMEOUT = 10.0

_OVERFLOW = re.compile(
    r"context_length_exceeded|exceed_context_size|context (length|size|window)|maximum context|prompt is too long",
    re.IGNORECASE,
)
_NO_MODEL = re.compile(r"model_not_found|model\b.{0,200}\b(not found|not exist)", re.IGNORECASE | re.DOTALL)
_OWN = {
    *("messages", "model", "temperature", "max_tokens", "seed", "n", "stream", "stream_options"),
    *("tools", "tool_choice", "functions", "function_call", "response_format"),
}
"""Fields of a request that `extra_body` may not hold."""
_REFUSED = {
    401: "refuses the key",
    402: "asks for payment",
    403: "refuses access",
    404: "does not know the model or the path",
}
_RETRIED = {408, 409, 429}
_OVERLOADED = {408, 429}
_NO_MORE_FILES = {errno.EMFILE, errno.ENFILE}


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A model as the parameters name it.

    Attributes:
        url: base URL up to and with ``/v1``, several of the same model separated by spaces, or ``simulated``.
        model: name of the model on that server.
        checkpoint: identifier of the frozen weights.
        key_variable: name of the environment variable that holds the key; "" for none.
        temperature: sampling temperature.
        max_tokens: most tokens of one reply.
        send_seed: whether the call's seed is sent.
        tool_choice: whether the server is asked to enforce a call; not every server does.
        protocol: how the model calls; ``json_schema`` and ``json`` are for servers without tools.
        extra_body: further fields of every request.
        stream: whether answers are streamed; a reply is the same either way.
        timeout: seconds that an answer may take, from the request to its last byte.
        price_in: price of a million prompt tokens; 0 when unknown.
        price_out: price of a million completion tokens; 0 when unknown.
    """

    url: str
    model: str
    checkpoint: str
    key_variable: str = ""
    temperature: float = 0.0
    max_tokens: int = 512
    send_seed: bool = True
    tool_choice: ToolChoice = "auto"
    protocol: CallProtocol = "tools"
    extra_body: Mapping[str, Any] = field(default_factory=dict)
    stream: bool = False
    timeout: float = 180.0
    price_in: float = 0.0
    price_out: float = 0.0

    def __post_init__(self) -> None:
        """Refuse values that no endpoint can have."""
        own = sorted(_OWN & self.extra_body.keys())
        problems = (
            (self.url != SIMULATED and not _are_urls(self.urls), "url", "simulated, or different http(s) URLs"),
            (self.tool_choice not in get_args(ToolChoice), "tool_choice", ", ".join(get_args(ToolChoice))),
            (self.protocol not in get_args(CallProtocol), "protocol", ", ".join(get_args(CallProtocol))),
            (bool(own), "extra_body", f"other fields than {', '.join(sorted(_OWN))}, which have parameters"),
            (not _is_json(self.extra_body), "extra_body", "a JSON object without NaN"),
            (not self.model.strip(), "model", "the name of a model"),
            (not self.checkpoint.strip(), "checkpoint", "an identifier of the weights"),
            (not 0 <= self.temperature <= 2, "temperature", "0 to 2"),
            (self.max_tokens < 1, "max_tokens", "at least 1"),
            (not self.timeout > 0, "timeout", "seconds above 0"),
            (min(self.price_in, self.price_out) < 0, "price", "0 or more"),
        )
        for wrong, name, allowed in problems:
            if wrong:
                raise ParameterError(
                    f"{name} is {getattr(self, name, 'negative')!r}", where=name, allowed=allowed, todo="correct it"
                )

    @property
    def urls(self) -> tuple[str, ...]:
        """Base URLs, one or several."""
        return tuple(self.url.split())

    @property
    def identity(self) -> ModelIdentity:
        """What a result depends on: nothing of where and how fast the model runs."""
        return ModelIdentity(
            model=self.model,
            checkpoint=self.checkpoint,
            temperature=float(self.temperature),
            max_tokens=self.max_tokens,
            send_seed=self.send_seed,
            simulated=self.url == SIMULATED or self.model.startswith(SIMULATED),
            tool_choice=self.tool_choice,
            protocol=self.protocol,
            extra_body=dict(self.extra_body),
        )

    def price(self, usage: Usage | None) -> float | None:
        """Return what these tokens cost; None without counts or prices."""
        if usage is None or not (self.price_in or self.price_out):
            return None
        return (usage.prompt_tokens * self.price_in + usage.completion_tokens * self.price_out) / 1e6


def _are_urls(urls: Sequence[str]) -> bool:
    return 0 < len(set(urls)) == len(urls) and all(url.startswith(("http://", "https://")) for url in urls)


def _is_json(fields: Mapping[str, Any]) -> bool:
    try:
        canonical(dict(fields))
    except (TypeError, ValueError):
        return False
    return True


@dataclass(frozen=True, slots=True)
class CallCost:
    """What one call cost, whatever came of it."""

    outcome: str
    """``call``, ``fault``, ``ending`` or ``error``."""
    usage: Usage | None
    tries: int
    seconds: float


class Model(Protocol):
    """A model as an agent and its rollouts need it: behind an endpoint, or without any wire."""

    @property
    def endpoint(self) -> Endpoint:
        """The model as the parameters name it."""
        ...

    @property
    def clock(self) -> Clock:
        """All time and waiting."""
        ...

    @property
    def identity(self) -> ModelIdentity:
        """What a result depends on."""
        ...

    def metered(self, meter: Callable[[CallCost], None]) -> "Model":
        """Return the same model with another meter."""
        ...

    def until(self, deadline: float) -> "Model":
        """Return the same model, which makes no try after these `clock.seconds()`."""
        ...

    def reply(self, messages: Sequence[bytes], tools: Sequence[dict[str, Any]], seed: int) -> Reply:
        """Ask once (see `ChatModel.reply`)."""
        ...

    def close(self) -> None:
        """Let go of whatever it holds."""
        ...


class _Failed(Exception):  # noqa: N818 - not an error yet: it may be tried again
    """A request that brought no reply."""

    def __init__(self, message: str, *, retry: bool, wait: float = 0.0, overloaded: bool = False) -> None:
        super().__init__(message)
        self.retry, self.wait, self.overloaded = retry, wait, overloaded


@dataclass(frozen=True, slots=True)
class ChatModel:
    """A model that can be asked from any number of threads; `connect` makes it."""

    endpoint: Endpoint
    client: openai.OpenAI
    traffic: Traffic
    """Of the server, shared by all copies of this model."""
    clock: Clock = SYSTEM_CLOCK
    meter: Callable[[CallCost], None] | None = None
    """Told the cost of every call."""
    deadline: float | None = None
    """Value of `clock.seconds()` after which no further try is made; None for none."""

    @property
    def identity(self) -> ModelIdentity:
        """What a result depends on."""
        return self.endpoint.identity

    def metered(self, meter: Callable[[CallCost], None]) -> "ChatModel":
        """Return the same model with another meter."""
        return replace(self, meter=meter)

    def until(self, deadline: float) -> "ChatModel":
        """Return the same model, which makes no try after these `clock.seconds()`."""
        return replace(self, deadline=deadline)

    def close(self) -> None:
        """Close the connections."""
        self.client.close()

    def reply(self, messages: Sequence[bytes], tools: Sequence[dict[str, Any]], seed: int) -> Reply:
        """Ask once, with as many requests as failures of network and server make necessary.

        Args:
            messages: the conversation, each message as canonical JSON: these bytes are sent as they are.
            tools: the function tools on offer.
            seed: seed of the call, sent when the endpoint says so.

        Raises:
            InfrastructureError: no reply after all tries or before the deadline, or a refusal that another try would
                not change.
            SetupError: the server refuses the key, does not know the model, or is down for good.
        """
        body = self._body(messages, tools, seed)
        offered = {tool["function"]["name"] for tool in tools}
        started = self.clock.seconds()
        tries = failures = 0
        while True:
            tries += 1
            try:
                answer = self._try(body, offered)
            except _Failed as failed:
                failures += not self.traffic.down
                if not failed.retry or failures == TRIES:
                    self._count(CallCost("error", None, tries, self.clock.seconds() - started))
                    raise self._infrastructure(failed, tries) from failed
                if not self.traffic.down:  # else the next turn waits
                    self.clock.sleep(_pause(failures, seed, failed.wait))
            else:
                break
        reply = replace(answer, tries=tries, seconds=self.clock.seconds() - started)
        kind = {"ToolCall": "call", "Fault": "fault", "Stop": "ending"}[type(reply.outcome).__name__]
        self._count(CallCost(kind, reply.usage, tries, reply.seconds))
        return reply

    def knock(self) -> None:
        """Ask for one token, and tell the traffic whether anything came back: how a server that is down is probed.

        It is not metered: a handful of tokens an outage.
        """
        message = {"role": "user", "content": "ping"}
        body = canonical({"model": self.endpoint.model, "messages": [message], "max_tokens": 1})
        with suppress(_Failed, SetupError), _told(self.traffic):
            self._ask(body, set())

    def _body(self, messages: Sequence[bytes], tools: Sequence[dict[str, Any]], seed: int) -> bytes:
        """Return the request body; the messages are not encoded again."""
        rest: dict[str, Any] = {
            "model": self.endpoint.model,
            "temperature": self.endpoint.temperature,
            "max_tokens": self.endpoint.max_tokens,
            "tools": list(tools),
        }
        if self.endpoint.send_seed:
            rest["seed"] = seed
        return b'{"messages":[' + b",".join(messages) + b"]," + canonical(rest)[1:]

    def _try(self, body: bytes, offered: set[str]) -> Reply:
        """Send one request when the server bears one more, and tell the traffic what became of it."""
        with self.traffic.turn():
            if self.deadline is not None and self.clock.seconds() >= self.deadline:
                raise _Failed("the deadline has passed", retry=False)
            with _told(self.traffic):
                return self._ask(body, offered)

    def _ask(self, body: bytes, offered: set[str]) -> Reply:
        """Send one request and read its answer."""
        try:
            response = self.client.post(
                "/chat/completions",
                cast_to=httpx2.Response,
                content=body,
                options={"headers": {"Content-Type": "application/json"}},
            )
            return read_reply(response.content, offered)
        except openai.APIStatusError as error:
            return self._refusal(error)
        except openai.APIConnectionError as error:
            raise _Failed(f"{error} ({error.__cause__!r})", retry=True, overloaded=_too_much(error)) from error
        except NotAReplyError as error:
            raise _Failed(str(error), retry=True) from error

    def _refusal(self, error: openai.APIStatusError) -> Reply:
        """Tell an overflow, a wrong set-up and a failing server apart."""
        status, text = error.status_code, error.response.text
        if status != 429 and _OVERFLOW.search(text):
            return Reply(Stop("context_length"), "", (), None, None)
        unknown = status == 400 and _NO_MODEL.search(text)
        if status in _REFUSED or unknown:
            reason = _REFUSED[404 if unknown else status]
            raise SetupError(
                f"the server {reason} (HTTP {status}: {_excerpt(text)})",
                where=f"model {self.endpoint.model!r} at {self.endpoint.url}",
                allowed="a model that this server offers to this key",
                todo=f"check url, model and key_variable ({self.endpoint.key_variable or 'not given'})",
            ) from error
        retry = status in _RETRIED or status >= 500
        wait = _retry_after(error.response.headers.get("retry-after"), self.clock)
        message = f"HTTP {status}: {_excerpt(text)}"
        raise _Failed(message, retry=retry, wait=wait, overloaded=status in _OVERLOADED) from error

    def _count(self, cost: CallCost) -> None:
        if self.meter is not None:
            self.meter(cost)

    def _infrastructure(self, failed: _Failed, tries: int) -> InfrastructureError:
        return InfrastructureError(
            f"no reply after {tries} request{'s' * (tries > 1)}: {failed}",
            where=f"model {self.endpoint.model!r} at {self.endpoint.url}",
            allowed="a server that answers",
            todo="look at the server, then repeat the call: only what is owed runs",
        )


def connect(
    endpoint: Endpoint,
    *,
    transport: httpx2.BaseTransport | None = None,
    clock: Clock = SYSTEM_CLOCK,
    connections: int = 64,
) -> ChatModel:
    """Return a model behind its endpoint; nothing is sent yet.

    Args:
        endpoint: the model.
        transport: in-process transport of a simulated model; with the url ``simulated`` and only there.
        clock: all waiting.
        connections: most connections at a time, at least the number of threads.

    Raises:
        ParameterError: a simulated model without transport, or a transport for a real one.
        SetupError: the environment variable of the key is not set.
    """
    if (endpoint.url == SIMULATED) != (transport is not None):
        raise ParameterError(
            "a simulated model has no transport" if transport is None else "a real model got a transport",
            where="url",
            allowed=f"url {SIMULATED!r} with a transport, or another url without",
            todo="give the simulated model's transport, or the url of a server",
        )
    http = httpx2.Client(
        transport=transport,
        timeout=httpx2.Timeout(endpoint.timeout, connect=min(CONNECT_TIMEOUT, endpoint.timeout)),
        limits=httpx2.Limits(max_connections=connections, max_keepalive_connections=connections),
    )
    client = openai.OpenAI(
        api_key=_key(endpoint.key_variable),
        base_url="http://simulated.invalid/v1" if endpoint.url == SIMULATED else endpoint.urls[0],
        max_retries=0,
        http_client=http,
    )
    traffic = Traffic(
        f"model {endpoint.model!r} at {endpoint.url}",
        clock,
        most=connections,
        probe=lambda traffic: ChatModel(endpoint, client, traffic, clock).knock(),
    )
    return ChatModel(endpoint, client, traffic, clock)


@contextmanager
def _told(traffic: Traffic) -> Iterator[None]:
    """Tell the traffic whether a request was answered; a refusal is an answer."""
    try:
        yield
    except _Failed as failed:
        if failed.retry:
            traffic.failed(str(failed), overloaded=failed.overloaded, wait=failed.wait)
        else:
            traffic.succeeded()
        raise
    except SetupError:
        traffic.succeeded()
        raise
    traffic.succeeded()


def _too_much(error: openai.APIConnectionError) -> bool:
    """Tell whether a request failed because server or machine have too much to do: a timeout, too many open files."""
    if isinstance(error, openai.APITimeoutError):
        return True
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError) and cause.errno in _NO_MORE_FILES:
            return True
        cause = cause.__cause__ or cause.__context__
    return False


def _key(variable: str) -> str:
    """Return the key from the environment."""
    if not variable:
        return "none"
    key = os.environ.get(variable, "").strip()
    if not key:
        raise SetupError(
            f"the environment variable {variable} is not set",
            where="key_variable",
            allowed="the name of a variable that holds the key",
            todo=f"export {variable}=... before the start; a key is never a parameter",
        )
    return key


def _pause(tries: int, seed: int, asked: float) -> float:
    """Return the seconds before the next try: exponential with jitter, and never less than the server asked for."""
    backoff = min(LONGEST_BACKOFF, 2.0 ** (tries - 1))
    return max(backoff + random.Random(f"{seed}:{tries}").random(), min(asked, LONGEST_RETRY_AFTER))


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


def _excerpt(text: str) -> str:
    return " ".join(text[:300].split())
