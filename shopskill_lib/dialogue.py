"""A conversation with a model, and the one way to a valid call: ask, validate, repair, count.

Policy, analysts and compiler all ask through `call`, whatever protocol their model calls by. What is wrong with an
answer is told to the model exactly as it was found; nothing is guessed into it.
"""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from pydantic import ValidationError

from shopskill_lib.errors import AuthorError
from shopskill_lib.models import Model
from shopskill_lib.records import Language, Record, canonical
from shopskill_lib.replies import Fault, Reply, Stop, ToolCall
from shopskill_lib.textcalls import REPAIR, describe

T = TypeVar("T")
R = TypeVar("R", bound=Record)

REPAIRS = 2
"""Times that an invalid answer is sent back with its fault."""

_REPAIR: dict[Language, str] = {
    "en": "Nothing was done. Answer with exactly one call of an available tool, its argument filled in, and no text.",
    "zh": "没有执行任何操作。请只调用一个可用工具，填好参数，不要输出其他文字。",
}


class Conversation:
    """Messages as the bytes that are sent, with their running hash."""

    def __init__(self) -> None:
        self.messages: list[bytes] = []
        self._hash = hashlib.sha256(b"[")
        self._offered = ""

    @classmethod
    def of(cls, system: str, user: str) -> "Conversation":
        """Begin with a system message and a user message."""
        talk = cls()
        talk.show(system)
        talk.add(role="user", content=user)
        return talk

    @property
    def in_text(self) -> bool:
        """Whether calls are written as text in it: tools have been described (see `offer`)."""
        return bool(self._offered)

    def add(self, **message: Any) -> None:
        """Append a message."""
        self._append(canonical(message))

    def show(self, system: str) -> None:
        """Make this the system message; the rest stays."""
        message = canonical({"role": "system", "content": system})
        if self.messages[:1] != [message]:
            self._begin([message, *self.messages[1:]])

    def offer(self, described: str) -> None:
        """Describe the tools on offer at the end of the last message, unless the latest description was the same."""
        if described != self._offered:
            self._offered = described
            self.tell(described)

    def tell(self, content: str) -> None:
        """Add to the last message where that is the user's: templates refuse two of them in a row."""
        last = json.loads(self.messages[-1])
        if last["role"] == "user":
            whole = canonical(last | {"content": f"{last['content']}\n\n{content}"})
            self._begin([*self.messages[:-1], whole])
        else:
            self.add(role="user", content=content)

    def answer(self, made: ToolCall, content: str) -> None:
        """Append what became of a call."""
        if made.call_id:
            self.add(role="tool", tool_call_id=made.call_id, content=content)
        else:
            self.add(role="user", content=content)

    def remark(self, content: str) -> None:
        """Answer the call that stands last (see `obtain`); where none does, append a user message."""
        calls = json.loads(self.messages[-1]).get("tool_calls")
        if calls:
            self.add(role="tool", tool_call_id=calls[0]["id"], content=content)
        else:
            self.add(role="user", content=content)

    @property
    def digest(self) -> str:
        """SHA-256 of the messages as one JSON list."""
        whole = self._hash.copy()
        whole.update(b"]")
        return whole.hexdigest()

    def _begin(self, messages: Sequence[bytes]) -> None:
        """Let these be the messages."""
        self.messages, self._hash = [], hashlib.sha256(b"[")
        for message in messages:
            self._append(message)

    def _append(self, message: bytes) -> None:
        self._hash.update(b"," + message if self.messages else message)
        self.messages.append(message)


class ArgumentError(ValueError):
    """Arguments that a tool cannot take; its text, when there is one, is told to the model."""


@dataclass(frozen=True, slots=True)
class Tool(Generic[T]):
    """A function tool and what its arguments become.

    Attributes:
        name: the function's name.
        parameters: JSON schema of its arguments.
        read: arguments -> value; raises ArgumentError.
        description: what it is for; "" where the name says it.
    """

    name: str
    parameters: Mapping[str, Any]
    read: Callable[[Mapping[str, Any]], T]
    description: str = ""

    @property
    def schema(self) -> dict[str, Any]:
        """The tool as a request offers it."""
        described = {"description": self.description} if self.description else {}
        return {"type": "function", "function": {"name": self.name, **described, "parameters": dict(self.parameters)}}


def record_tool(name: str, record: type[R], description: str) -> Tool[R]:
    """Return the tool whose arguments are a record: its schema offered, its validation applied."""

    def read(arguments: Mapping[str, Any]) -> R:
        try:
            return record.model_validate_json(canonical(arguments))
        except ValidationError as error:
            faults = [f"{'.'.join(map(str, fault['loc'])) or 'arguments'}: {fault['msg']}" for fault in error.errors()]
            raise ArgumentError("; ".join(faults[:8])) from error

    return Tool(name, record.model_json_schema(), read, description)


@dataclass(frozen=True, slots=True)
class Answer(Generic[T]):
    """What one request brought.

    Attributes:
        reply: the model's reply.
        digest: SHA-256 of the messages that were sent.
        made: the valid call, None for a fault or an ending.
        value: what its arguments became.
        fault: code of the protocol fault.
        detail: what exactly was wrong, as the model was told; "" when the code says it.
    """

    reply: Reply
    digest: str
    made: ToolCall | None = None
    value: T | None = None
    fault: str | None = None
    detail: str = ""

    @property
    def stop(self) -> Stop | None:
        """The ending, when the model cannot go on."""
        return self.reply.outcome if isinstance(self.reply.outcome, Stop) else None


def call(model: Model, talk: Conversation, tools: Sequence[Tool[T]], seed: int, language: Language) -> Answer[T]:
    """Ask once. A valid call stands in the conversation and waits for `talk.answer`; a fault has been explained there.

    Args:
        model: who is asked; its meter counts the request.
        talk: the conversation, which is added to.
        tools: what is on offer.
        seed: seed of the request.
        language: of what a fault is explained in.

    Raises:
        InfrastructureError: the model could not be reached.
        SetupError: it does not work as it is set up.
    """
    schemas = [tool.schema for tool in tools]
    if model.endpoint.protocol != "tools":
        talk.offer(describe(schemas, language))
    digest = talk.digest
    reply = model.reply(talk.messages, schemas, seed)
    if isinstance(reply.outcome, Stop):
        return Answer(reply, digest)
    if isinstance(reply.outcome, Fault):
        explain(talk, reply, _complaint(reply.outcome.code, "", tools, _repair(talk, language)))
        return Answer(reply, digest, fault=reply.outcome.code)
    made = reply.outcome
    tool = next(tool for tool in tools if tool.name == made.name)
    try:
        value = tool.read(made.arguments)
    except ArgumentError as error:
        explain(talk, reply, _complaint("invalid_tool_arguments", str(error), tools, _repair(talk, language)))
        return Answer(reply, digest, fault="invalid_tool_arguments", detail=str(error))
    _say(talk, reply, "")
    return Answer(reply, digest, made, value)


def obtain(
    model: Model,
    talk: Conversation,
    tool: Tool[T],
    seed: int,
    *,
    language: Language,
    check: Callable[[T], str] = lambda value: "",  # noqa: ARG005 - nothing more to check
    repairs: int = REPAIRS,
) -> T:
    """Return one valid answer of a tool; each invalid one is sent back with its exact fault, `repairs` times at most.

    Args:
        model: who is asked.
        talk: the conversation so far.
        tool: the one tool on offer.
        seed: of the first request; every repair counts one up.
        language: of explanations.
        check: what a schema cannot say; returns what is wrong with a value, "" when nothing is.
        repairs: most repairs.

    Raises:
        AuthorError: there is no valid answer after all repairs, or the model cannot go on.
        InfrastructureError, SetupError: see `call`.
    """
    wrong = ""
    for tries in range(repairs + 1):
        answer = call(model, talk, [tool], (seed + tries) % 2**31, language)
        if answer.stop is not None:
            wrong = answer.stop.ending
            break
        if answer.made is None or answer.value is None:
            wrong = answer.detail or str(answer.fault)
            continue
        wrong = check(answer.value)
        if not wrong:
            return answer.value
        talk.answer(answer.made, _complaint("invalid_tool_arguments", wrong, [tool], _repair(talk, language)))
    raise AuthorError(
        f"no valid answer after {tries + 1} request{'s' * (tries > 0)}: {wrong}",
        where=f"model {model.endpoint.model!r}, tool {tool.name}",
        allowed="one call that keeps the tool's schema and the rules told with it",
        todo="look at calls.jsonl; use a more capable author model, or give it more tokens",
    )


def _complaint(code: str, detail: str, tools: Sequence[Tool[Any]], repair: str) -> str:
    """Return what a model is told about its fault."""
    told = {"type": "tool_protocol_error", "code": code, "message": repair}
    if detail:
        told["detail"] = detail
    return json.dumps(told | {"available_tools": [tool.name for tool in tools]}, ensure_ascii=False)


def _repair(talk: Conversation, language: Language) -> str:
    return (REPAIR if talk.in_text else _REPAIR)[language]


def explain(talk: Conversation, reply: Reply, complaint: str) -> None:
    """Answer a fault: to each call that could be read, else as a user message after any text."""
    if reply.calls:
        _say(talk, reply, reply.text)
        for made in reply.calls:
            talk.answer(made, complaint)
        return
    if reply.text.strip():
        talk.add(role="assistant", content=reply.text)
    if talk.in_text:
        talk.tell(complaint)
    else:
        talk.add(role="user", content=complaint)


def _say(talk: Conversation, reply: Reply, content: str) -> None:
    """Append the model's own message with its calls; its content is never null, which some servers refuse."""
    if talk.in_text:
        talk.add(role="assistant", content=reply.text)
        return
    calls = [
        {"id": made.call_id, "type": "function", "function": {"name": made.name, "arguments": made.raw}}
        for made in reply.calls
    ]
    talk.add(role="assistant", content=content, tool_calls=calls)
