"""The only door to models: an OpenAI chat-completions endpoint, called, retried and counted.

Real and simulated models are behind the same wire format. Retries are for failures of network and server only;
what a model answered is never asked for again.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import httpx2

from shopskill_lib.clock import SYSTEM_CLOCK, Clock
from shopskill_lib.endpoints import OTHER_NAME, SIMULATED, Endpoint
from shopskill_lib.errors import InfrastructureError, ParameterError
from shopskill_lib.exchange import Failed, dial
from shopskill_lib.records import ModelCall, ModelIdentity, Usage, canonical
from shopskill_lib.replies import Reply
from shopskill_lib.servers import Server, Servers
from shopskill_lib.spending import Purse
from shopskill_lib.textcalls import response_format
from shopskill_lib.traffic import Traffic

__all__ = ["SIMULATED", "CallCost", "ChatModel", "Endpoint", "Model", "connect"]

TRIES = 6
"""Requests for one answer at most, for each server there is; while a server answers nobody none is made."""
LONGEST_BACKOFF = 30.0
LONGEST_RETRY_AFTER = 300.0
"""Seconds that a server's Retry-After is obeyed at most."""


@dataclass(frozen=True, slots=True)
class CallCost:
    """What one call cost, whatever came of it."""

    outcome: str
    """``call``, ``fault``, ``ending`` or ``error``."""
    usage: Usage | None
    tries: int
    seconds: float
    money: float | None = None
    """None without prices or without token counts."""

    def line(
        self, arm: str, stage: str, role: str, *, task_id: str = "", sample: int = 0, attempt: int = 1
    ) -> ModelCall:
        """Return the line of `calls.jsonl` (see `ModelCall`)."""
        return ModelCall(
            arm=arm,
            stage=stage,
            role=role,
            task_id=task_id,
            sample=sample,
            attempt=attempt,
            outcome=self.outcome,
            usage=self.usage,
            money=self.money,
            tries=self.tries,
            seconds=self.seconds,
        )


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
        """Return the same model for a further piece of work, whose calls are told to the meter."""
        ...

    def until(self, deadline: float) -> "Model":
        """Return the same model, which makes no try after these `clock.seconds()`."""
        ...

    def at(self, temperature: float) -> "Model":
        """Return the same model at another temperature."""
        ...

    def listed(self) -> tuple[str, ...] | None:
        """Return the names of the models that its server lists; None where it does not tell."""
        ...

    def reply(self, messages: Sequence[bytes], tools: Sequence[dict[str, Any]], seed: int) -> Reply:
        """Ask once (see `ChatModel.reply`)."""
        ...

    def close(self) -> None:
        """Let go of whatever it holds."""
        ...


@dataclass(frozen=True, slots=True)
class ChatModel:
    """A model that can be asked from any number of threads; `connect` makes it."""

    endpoint: Endpoint
    servers: Servers
    """Shared by all copies of this model."""
    clock: Clock = SYSTEM_CLOCK
    meter: Callable[[CallCost], None] | None = None
    """Told the cost of every call."""
    deadline: float | None = None
    """Value of `clock.seconds()` after which no further try is made; None for none."""
    tries: int = TRIES
    """Requests for one answer at most, of each of its servers."""
    purse: Purse | None = None
    """What all calls are paid from; None for one without bottom."""

    @property
    def identity(self) -> ModelIdentity:
        """What a result depends on."""
        return self.endpoint.identity

    def metered(self, meter: Callable[[CallCost], None]) -> "ChatModel":
        """Return the same model for a further piece of work, whose calls are told to the meter.

        Raises:
            Interrupted: the budget is reached.
            SetupError: what was spent cannot be told.
        """
        if self.purse is not None:
            self.purse.check()
        return replace(self, meter=meter)

    def until(self, deadline: float) -> "ChatModel":
        """Return the same model, which makes no try after these `clock.seconds()`."""
        return replace(self, deadline=deadline)

    def at(self, temperature: float) -> "ChatModel":
        """Return the same model at another temperature."""
        return replace(self, endpoint=replace(self.endpoint, temperature=temperature))

    @property
    def traffic(self) -> Traffic:
        """Requests to its first server."""
        return self.servers.all[0].traffic

    def listed(self) -> tuple[str, ...] | None:
        """Return the names of the models that its first server lists; None where it does not tell."""
        return self.servers.all[0].exchange.listed()

    def close(self) -> None:
        """Close the connections."""
        for server in self.servers.all:
            server.exchange.client.close()

    def reply(self, messages: Sequence[bytes], tools: Sequence[dict[str, Any]], seed: int) -> Reply:
        """Ask once, with as many requests as failures of network and server make necessary.

        Args:
            messages: the conversation, each message as canonical JSON: these bytes are sent as they are.
            tools: the function tools on offer.
            seed: seed of the call, sent when the endpoint says so.

        Raises:
            InfrastructureError: no reply after all tries or before the deadline, or a refusal that another try would
                not change.
            SetupError: the server refuses the key or an option, does not know the model, or is down for good.
        """
        body = self._body(messages, tools, seed)
        offered = {tool["function"]["name"] for tool in tools}
        started = self.clock.seconds()
        most = self.tries * len(self.servers.all)
        for tries in range(1, most + 1):
            try:
                answer = self._try(body, offered)
            except Failed as failed:
                pause = _pause(tries, seed, failed.wait)
                late = self._left() <= pause
                if not failed.retry or tries == most or late:
                    self._count(CallCost("error", None, tries, self.clock.seconds() - started))
                    cause = f"{failed}{'; the deadline passes before another try' * (failed.retry and late)}"
                    raise self._infrastructure(cause, tries) from failed
                self.clock.sleep(pause)
            else:
                break
        reply = replace(answer, tries=tries, seconds=self.clock.seconds() - started)
        kind = {"ToolCall": "call", "Fault": "fault", "Stop": "ending"}[type(reply.outcome).__name__]
        self._count(CallCost(kind, reply.usage, tries, reply.seconds))
        return reply

    def _left(self) -> float:
        """Return the seconds until the deadline."""
        return float("inf") if self.deadline is None else self.deadline - self.clock.seconds()

    def _body(self, messages: Sequence[bytes], tools: Sequence[dict[str, Any]], seed: int) -> bytes:
        """Return the request body; the messages are not encoded again."""
        given = self.endpoint
        rest: dict[str, Any] = {**given.extra_body, "model": given.model, "temperature": given.temperature}
        if OTHER_NAME not in given.extra_body:
            rest["max_tokens"] = given.max_tokens
        if given.protocol == "tools":
            rest["tools"] = list(tools)
        if given.protocol == "json_schema":
            rest["response_format"] = response_format(tools)
        if given.tool_choice == "required":
            rest["tool_choice"] = "required"
        if given.send_seed:
            rest["seed"] = seed
        if given.stream:
            rest |= {"stream": True, "stream_options": {"include_usage": True}}
        return b'{"messages":[' + b",".join(messages) + b"]," + canonical(rest)[1:]

    def _try(self, body: bytes, offered: set[str]) -> Reply:
        """Send one request when a server bears one more, and tell its traffic what became of it."""
        with self.servers.turn() as server:
            if self._left() <= 0:
                raise Failed("the deadline has passed", retry=False)
            return server.ask(body, offered, self._left())

    def _count(self, cost: CallCost) -> None:
        priced = replace(cost, money=self.endpoint.price(cost.usage))
        if self.purse is not None:
            self.purse.pay(priced.outcome, priced.usage, priced.money)
        if self.meter is not None:
            self.meter(priced)

    def _infrastructure(self, cause: str, tries: int) -> InfrastructureError:
        return InfrastructureError(
            f"no reply after {tries} request{'s' * (tries > 1)}: {cause}",
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
    exchanges = dial(endpoint, transport, clock, connections)
    servers = tuple(Server(exchange, connections) for exchange in exchanges)
    return ChatModel(endpoint, Servers(servers, clock), clock)


def _pause(tries: int, seed: int, asked: float) -> float:
    """Return the seconds before the next try: exponential with jitter, and never less than the server asked for."""
    backoff = min(LONGEST_BACKOFF, 2.0 ** (tries - 1))
    return max(backoff + random.Random(f"{seed}:{tries}").random(), min(asked, LONGEST_RETRY_AFTER))
