"""The chat-completions format as the simulated models read and write it: requests, replies, token counts."""

import hashlib
import json
from collections.abc import Sequence
from functools import cached_property
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import BaseModel, Field, ValidationError

from shopskill_lib.simulated.decisions import NOISE, Draws

CONTEXT = 131_072
"""Tokens of a prompt that a simulated model takes at most."""

NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class Reply(NamedTuple):
    """An answer on the wire."""

    status: int
    """HTTP status."""
    body: dict[str, Any]
    """A chat completion, or ``{"error": {...}}`` as a server of that format writes it."""


class CalledFunction(BaseModel):
    """A call that stands in the history."""

    name: str
    arguments: str


class _ToolCall(BaseModel):
    function: CalledFunction


class Message(BaseModel):
    """A message of the history."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | None = None
    tool_calls: list[_ToolCall] | None = None

    @property
    def text(self) -> str:
        """Content, "" without any."""
        return self.content or ""

    @property
    def calls(self) -> list[CalledFunction]:
        """Calls of an assistant's message."""
        return [call.function for call in self.tool_calls or ()]


class Property(BaseModel):
    """An argument of a tool, as far as it bounds the answer."""

    enum: list[str] = []


class _Parameters(BaseModel):
    properties: dict[str, Property] = {}


class _OfferedFunction(BaseModel):
    name: str
    parameters: _Parameters = _Parameters()


class _Tool(BaseModel):
    function: _OfferedFunction


class Request(BaseModel):
    """The part of a chat-completions request that counts; other fields are taken and ignored."""

    model: str
    messages: Annotated[list[Message], Field(min_length=1)]
    tools: list[_Tool] | None = None
    temperature: NotNegative | None = None
    seed: int | None = None
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    stream: Literal[False] | None = None

    @property
    def tool_properties(self) -> dict[str, dict[str, Property]]:
        """Tools by name with their arguments; none for a free text."""
        return {tool.function.name: tool.function.parameters.properties for tool in self.tools or ()}

    @property
    def offered(self) -> dict[str, list[str]]:
        """Tools by name with the labels that their `value` takes."""
        return {name: known.get("value", Property()).enum for name, known in self.tool_properties.items()}

    @property
    def system(self) -> str:
        """All system messages."""
        return "\n".join(message.text for message in self.messages if message.role == "system")

    @property
    def opening(self) -> str:
        """First user message, "" without any."""
        return next((message.text for message in self.messages if message.role == "user"), "")

    @property
    def turns(self) -> int:
        """Answers of the model so far."""
        return sum(message.role == "assistant" for message in self.messages)

    def draws(self, work: str) -> Draws:
        """Return the decisions of a conversation about some work: its noise is by the seed less the turns so far."""
        task = hashlib.blake2b(work.encode("utf-8", "replace"), digest_size=16).hexdigest()
        if self.temperature == 0:
            return Draws(task, None, 0.0)
        episode = str(((self.seed or 0) - self.turns) % 2**31)
        return Draws(task, episode, NOISE * (1.0 if self.temperature is None else self.temperature))

    @cached_property
    def prompt_tokens(self) -> int:
        """Tokens of texts, calls and labels, and four a message."""
        texts = [message.text for message in self.messages]
        calls = [call.arguments for message in self.messages for call in message.calls]
        labels = [label for enum in self.offered.values() for label in enum]
        return tokens_of("".join([*texts, *calls, *labels])) + 4 * len(texts)


def read(request: object, part: str, default: str) -> Request | Reply:
    """Return a request that a simulated model can answer, or the refusal.

    Args:
        request: the decoded JSON body.
        part: what the model's name must hold.
        default: a name to try instead.
    """
    try:
        asked = Request.model_validate(request)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        place = ".".join(map(str, first["loc"])) or "body"
        return refusal(400, "invalid_request_error", f"{place}: {first['msg']}")
    if part not in asked.model:
        return refusal(404, "model_not_found", f"there is no model {asked.model!r}; try {default}")
    if asked.prompt_tokens > CONTEXT:
        found = f"the prompt has about {asked.prompt_tokens} tokens, the context holds {CONTEXT}"
        return refusal(400, "context_length_exceeded", found)
    return asked


def refusal(status: int, code: str, message: str) -> Reply:
    """Return an error answer in the format's shape."""
    error = {"message": f"simulated: {message}", "type": "invalid_request_error", "param": None, "code": code}
    return Reply(status, {"error": error})


def tokens_of(text: str) -> int:
    """Return about how many tokens a text has: one for four bytes."""
    return -(-len(text.encode("utf-8", "replace")) // 4)


def completion(
    asked: Request, version: str, calls: Sequence[tuple[str, dict[str, Any]]], text: str, most: int
) -> dict[str, Any]:
    """Return an answer as a chat completion; one that is longer than allowed is cut off before its calls.

    Args:
        asked: the request.
        version: of the simulated model.
        calls: names and arguments of the functions that it calls.
        text: what it says without a call; "" with one.
        most: tokens of an answer where the request sets no limit.
    """
    turn = asked.turns
    written = [(name, json.dumps(arguments, ensure_ascii=False)) for name, arguments in calls]
    length = sum(tokens_of(name + arguments) + 8 for name, arguments in written) + tokens_of(text)
    most = asked.max_tokens or most
    message: dict[str, Any] = {"role": "assistant", "content": text or None}
    reason = "tool_calls" if written else "stop"
    if length > most:
        length, reason, message["content"] = most, "length", ""
    elif written:
        message["tool_calls"] = [
            {
                "id": f"call_simulated_{turn}" + f"_{number}" * (number > 0),
                "type": "function",
                "function": {"name": name, "arguments": arguments},
            }
            for number, (name, arguments) in enumerate(written)
        ]
    prompt_tokens = asked.prompt_tokens
    return {
        "id": f"chatcmpl-simulated-{turn}",
        "object": "chat.completion",
        "created": 0,
        "model": asked.model,
        "system_fingerprint": version,
        "choices": [{"index": 0, "message": message, "finish_reason": reason}],
        "usage": {"prompt_tokens": prompt_tokens, "completion_tokens": length, "total_tokens": prompt_tokens + length},
    }
