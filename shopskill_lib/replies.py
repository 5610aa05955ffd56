"""What the answer of a chat-completions server means (M3; codes of reference 2.3).

It is one legal call, a protocol fault, the end of the policy's tokens, or no reply of a model at all.
"""

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from shopskill_lib.records import Usage

Json = dict[str, Any]


class NotAReplyError(ValueError):
    """The body is no reply of a model: the server failed, whatever its status."""


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One function call."""

    call_id: str
    name: str
    arguments: Mapping[str, Any]
    raw: str
    """The arguments as the model wrote them: a JSON object."""


@dataclass(frozen=True, slots=True)
class Fault:
    """A reply without exactly one legal call; it costs a turn."""

    code: str


@dataclass(frozen=True, slots=True)
class Stop:
    """The model cannot go on: a real ending of its episode."""

    ending: Literal["generation_length", "context_length"]


@dataclass(frozen=True, slots=True)
class Reply:
    """What a model answered."""

    outcome: ToolCall | Fault | Stop
    text: str
    """Visible text beside the calls; blank when there is none."""
    calls: tuple[ToolCall, ...]
    """All calls of the reply; empty when any of them cannot be read."""
    usage: Usage | None
    """None where the server does not tell."""
    finish_reason: str | None
    tries: int = 1
    """Requests until this answer came."""
    seconds: float = 0.0
    """Time from the first request, waiting included."""


class _Unreadable(Exception):  # noqa: N818 - it carries a fault's code
    """A call that cannot be read."""


def read_reply(body: bytes, offered: Collection[str]) -> Reply:
    """Read the body of a successful answer.

    Args:
        body: as received.
        offered: names of the tools that the model was offered.

    Raises:
        NotAReplyError: no JSON, no choices, no message or no sign of a single generated token.
    """
    document = _object(body)
    choice = _first_choice(document, body)
    message = choice["message"]
    finish = choice.get("finish_reason")
    usage, completed = _usage(document.get("usage"))
    text = clean(message["content"]) if isinstance(message.get("content"), str) else ""
    raw_calls = message.get("tool_calls") or []
    ran_out = finish == "length" and completed is None
    if not (text or raw_calls or completed or ran_out or message.get("reasoning_content")):
        raise NotAReplyError("the reply holds no token")
    outcome: ToolCall | Fault | Stop
    calls: tuple[ToolCall, ...] = ()
    try:
        calls = _calls(raw_calls, offered)
        outcome = _judge(calls, text)
    except _Unreadable as error:
        outcome = Fault(str(error))
    if finish == "length" and len(calls) != 1:
        outcome = Stop("generation_length")
    return Reply(outcome, text, calls, usage, finish if isinstance(finish, str) else None)


def clean(text: str) -> str:
    """Return the text with what UTF-8 cannot carry (lone surrogates from JSON escapes) replaced."""
    return text.encode("utf-8", "replace").decode()


def _object(body: bytes) -> Json:
    """Parse the body as a JSON object."""
    try:
        document = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise NotAReplyError(f"the body is no JSON: {_excerpt(body)}") from error
    if not isinstance(document, dict):
        raise NotAReplyError(f"the body is no object: {_excerpt(body)}")
    return document


def _first_choice(document: Json, body: bytes) -> Json:
    """Return the first choice, which has a message."""
    choices = document.get("choices")
    choice = choices[0] if isinstance(choices, list) and choices else None
    if not isinstance(choice, dict) or not isinstance(choice.get("message"), dict):
        raise NotAReplyError(f"there is no choice with a message: {_excerpt(body)}")
    return choice


def _excerpt(body: bytes) -> str:
    return repr(body[:120].decode("utf-8", "replace")) if body else "it is empty"


def _usage(value: object) -> tuple[Usage | None, int | None]:
    """Return both token counts, or None, and the completion tokens wherever they are told."""
    if not isinstance(value, dict):
        return None, None
    counts = [value.get(name) for name in ("prompt_tokens", "completion_tokens")]
    prompt, completion = (count if type(count) is int and count >= 0 else None for count in counts)
    if prompt is None or completion is None:
        return None, completion
    return Usage(prompt_tokens=prompt, completion_tokens=completion), completion


def _calls(value: object, offered: Collection[str]) -> tuple[ToolCall, ...]:
    """Read every call of a message."""
    if not isinstance(value, list):
        raise _Unreadable("invalid_tool_calls")
    return tuple(_call(item, offered) for item in value)


def _call(item: object, offered: Collection[str]) -> ToolCall:
    """Read one call, or raise the code of what is wrong with it."""
    if not isinstance(item, dict):
        raise _Unreadable("invalid_tool_call")
    function, call_id = item.get("function"), item.get("id")
    if not isinstance(function, dict):
        raise _Unreadable("missing_function")
    if not isinstance(call_id, str) or not call_id:
        raise _Unreadable("missing_tool_call_id")
    name, raw = function.get("name"), function.get("arguments")
    if not isinstance(name, str) or not name:
        raise _Unreadable("missing_tool_name")
    if not isinstance(raw, str):
        raise _Unreadable("invalid_arguments_type")
    try:
        arguments = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise _Unreadable("invalid_arguments_json") from error
    if not isinstance(arguments, dict):
        raise _Unreadable("invalid_arguments_object")
    if name not in offered:
        raise _Unreadable("unavailable_tool")
    return ToolCall(clean(call_id), name, arguments, clean(raw))


def _judge(calls: tuple[ToolCall, ...], text: str) -> ToolCall | Fault:
    """Accept exactly one call and no visible text."""
    if not calls and not text.strip():
        return Fault("empty_response")
    if len(calls) != 1:
        return Fault("tool_call_count")
    return Fault("mixed_content") if text.strip() else calls[0]
