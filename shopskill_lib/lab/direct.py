"""The simulated shopper and author as models without a wire: the same answers, for experiments of many episodes."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from shopskill_lib.clock import SYSTEM_CLOCK, Clock
from shopskill_lib.errors import SetupError
from shopskill_lib.models import CallCost, Endpoint
from shopskill_lib.records import ModelIdentity, canonical
from shopskill_lib.replies import Reply, read_reply
from shopskill_lib.simulated.wire import respond


@dataclass(frozen=True, slots=True)
class DirectModel:
    """A simulated model called as a function; in all else a model behind its endpoint."""

    endpoint: Endpoint
    clock: Clock = SYSTEM_CLOCK
    meter: Callable[[CallCost], None] | None = None

    @property
    def identity(self) -> ModelIdentity:
        """What a result depends on: the same as over the wire."""
        return self.endpoint.identity

    def metered(self, meter: Callable[[CallCost], None]) -> "DirectModel":
        """Return the same model with another meter."""
        return replace(self, meter=meter)

    def until(self, deadline: float) -> "DirectModel":  # noqa: ARG002 - a function keeps nobody waiting
        """Return itself."""
        return self

    def at(self, temperature: float) -> "DirectModel":
        """Return the same model at another temperature."""
        return replace(self, endpoint=replace(self.endpoint, temperature=temperature))

    def listed(self) -> tuple[str, ...] | None:
        """List nothing: there is no server."""
        return None

    def close(self) -> None:
        """Let go of nothing: a function holds nothing."""

    def reply(self, messages: Sequence[bytes], tools: Sequence[dict[str, Any]], seed: int) -> Reply:
        """Ask once.

        Raises:
            SetupError: the model refuses the request.
        """
        answer = respond(
            {
                "model": self.endpoint.model,
                "messages": [_decode(message) for message in messages],
                "tools": tools,
                "temperature": self.endpoint.temperature,
                "max_tokens": self.endpoint.max_tokens,
                "seed": seed if self.endpoint.send_seed else None,
            }
        )
        if answer.status != 200:
            raise SetupError(
                f"the simulated model refuses: {answer.body['error']['message']}",
                where=f"model {self.endpoint.model!r}",
                allowed="a simulated model and prompts that its context holds",
                todo="correct policy_model or author_model, or send less",
            )
        reply = read_reply(
            canonical(answer.body), {tool["function"]["name"] for tool in tools}, max_tokens=self.endpoint.max_tokens
        )
        if self.meter is not None:
            kind, money = "call" if reply.calls else "fault", self.endpoint.price(reply.usage)
            self.meter(CallCost(kind, reply.usage, reply.tries, reply.seconds, money))
        return reply


@lru_cache(maxsize=4096)
def _decode(message: bytes) -> Any:
    """Decode a message once: a conversation sends it at every turn; the models change nothing in it."""
    return json.loads(message)
