"""What the answer of a chat-completions server means (M3; codes of reference 2.3).

It is one legal call, a protocol fault, the end of the policy's tokens, or no reply of a model at all.
"""

import json
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from shopskill_lib.records import CallProtocol, Usage

Json = dict[str, Any]

SLACK = 4
"""Tokens by which servers count a reply differently."""

_THOUGHT = re.compile(r"\s*<think>(.*?)(?:</think>|\Z)|((?:(?!<think>).)*?)</think>", re.DOTALL)
"""What a thinking model writes first where no parser takes it out; some templates have written `<think>` for it, and a
thought that the tokens cut off has no end."""

_FENCED = re.compile(r"```(?:json)?\s*\n(.*?)\n?\s*```", re.DOTALL)


_GIVEN_UP = ("abort", "error")


class NotAReplyError(ValueError):
    """The body is no reply of a model: the server failed, whatever its status."""


class ErrorReplyError(NotAReplyError):
    """The body of a success is an error."""

    def __init__(self, text: str, status: int) -> None:
        """Keep the error document and the status that it names."""
        super().__init__(text)
        self.text, self.status = text, status

    @classmethod
    def of(cls, error: object) -> "ErrorReplyError":
        """Return what an error in a body or a stream says; a failure of the server where it names no status."""
        code = error.get("code") if isinstance(error, dict) else None
        status = code if type(code) is int and 400 <= code < 600 else 500
        return cls(json.dumps({"error": error}, ensure_ascii=False), status)


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One function call."""

    call_id: str
    """"" for a call that stands in the text."""
    name: str
    arguments: Mapping[str, Any]
    raw: str
    """The arguments as the model wrote them, a JSON object; of a call in the text all of it."""


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
    """Visible text: what stands beside calls of tools, or holds a call in text; blank when there is none."""
    calls: tuple[ToolCall, ...]
    """All calls of the reply; empty when any of them cannot be read."""
    usage: Usage | None
    """None where the server does not tell."""
    finish_reason: str | None
    reasoning: str | None = None
    """What a thinking model told itself; it is never sent back."""
    tries: int = 1
    """Requests until this answer came."""
    seconds: float = 0.0
    """Time from the first request, waiting included."""


class _Unreadable(Exception):  # noqa: N818 - it carries a fault's code
    """A call that cannot be read."""


def read_reply(
    body: bytes, offered: Collection[str], protocol: CallProtocol = "tools", max_tokens: int | None = None
) -> Reply:
    """Read the body of a successful answer.

    Args:
        body: as received.
        offered: names of the tools that the model was offered.
        protocol: how it was to call them.
        max_tokens: most tokens it was allowed; None where a cut cannot be told from a full context.

    Raises:
        NotAReplyError: no JSON, no choices, no message or no sign of a single generated token.
    """
    document = _object(body)
    choice = _first_choice(document, body)
    message, finish = choice["message"], choice.get("finish_reason")
    usage, completed = _usage(document.get("usage"))
    text, thought = _said(message)
    raw_calls = message.get("tool_calls") or []
    ran_out = finish == "length" and completed is None
    if finish in _GIVEN_UP:
        raise NotAReplyError(f"the server gave the reply up: finish_reason {finish!r}")
    if not (message.get("content") or raw_calls or completed or ran_out or thought):
        raise NotAReplyError("the reply holds no token")
    outcome: ToolCall | Fault | Stop
    calls: tuple[ToolCall, ...] = ()
    try:
        calls = _calls(raw_calls, offered) if protocol == "tools" else _calls_in(text, raw_calls, offered)
        outcome = _judge(calls, text if protocol == "tools" else "")
    except _Unreadable as error:
        outcome = Fault(str(error))
    if finish == "length" and len(calls) != 1:
        full = thought is None and _is_full(document.get("usage"), usage, max_tokens)
        outcome = Stop("context_length" if full else "generation_length")
    calls = calls if len({call.call_id for call in calls}) == len(calls) else ()
    return Reply(outcome, text, calls, usage, finish if isinstance(finish, str) else None, thought)


def _is_full(told: object, usage: Usage | None, max_tokens: int | None) -> bool:
    """Tell whether a reply that was cut off ended before its tokens did: the context was full.

    A total above both counts means tokens that are counted nowhere else (thoughts), so nothing can be told.
    """
    if usage is None or max_tokens is None or not isinstance(told, dict):
        return False
    both = usage.prompt_tokens + usage.completion_tokens
    return told.get("total_tokens") in (None, both) and usage.completion_tokens < max_tokens - SLACK


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
    for holder in (document, choice):
        error = holder.get("error") if isinstance(holder, dict) else None
        if error:
            raise ErrorReplyError.of(error)
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


class _Said(NamedTuple):
    """Text of a message."""

    visible: str
    thought: str | None


def _said(message: Json) -> _Said:
    """Tell what a model said from what it thought: fields, parts of the content, or a leading `<think>`."""
    content = message.get("content")
    parts = [part for part in content if isinstance(part, dict)] if isinstance(content, list) else []
    text = content if isinstance(content, str) else "".join(map(_text_of, parts))
    fields = [message.get(name) for name in ("reasoning_content", "reasoning")]
    thoughts = [field for field in fields if isinstance(field, str)][:1]
    thinking = _THOUGHT.match(text)
    if thinking:
        thoughts.append(thinking[1] or thinking[2] or "")
        text = text[thinking.end() :]
    return _Said(clean(text), clean("\n".join(filter(None, map(str.strip, thoughts)))) or None)


def _text_of(part: Json) -> str:
    """Return the text of a part of a content, "" for a part of another kind."""
    text = part.get("text")
    return text if part.get("type") == "text" and isinstance(text, str) else ""


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
    return _made(clean(call_id), name, _strict(raw), clean(raw), offered)


def _calls_in(text: str, raw_calls: object, offered: Collection[str]) -> tuple[ToolCall, ...]:
    """Read the one call that a text is, bare or in a fence: `{"name": ..., "arguments": {...}}` and nothing else."""
    if raw_calls:
        raise _Unreadable("invalid_tool_calls")
    written = text.strip()
    fenced = _FENCED.fullmatch(written)
    written = fenced[1].strip() if fenced else written
    if not written:
        raise _Unreadable("empty_response")
    if not written.startswith("{"):
        raise _Unreadable("mixed_content" if "{" in written else "tool_call_count")
    call = _strict(written)
    if not isinstance(call, dict) or call.keys() - {"name", "arguments"}:
        raise _Unreadable("invalid_tool_call")
    if not isinstance(call.get("name"), str) or not call["name"]:
        raise _Unreadable("missing_tool_name")
    return (_made("", call["name"], call.get("arguments"), written, offered),)


def _made(call_id: str, name: str, arguments: object, raw: str, offered: Collection[str]) -> ToolCall:
    """Return a call whose arguments are an object and whose tool is on offer."""
    if not isinstance(arguments, dict):
        raise _Unreadable("invalid_arguments_object")
    if name not in offered:
        raise _Unreadable("unavailable_tool")
    return ToolCall(call_id, name, arguments, raw)


def _strict(text: str) -> Any:
    """Parse JSON in which nothing has to be guessed: no second document, no key twice, no NaN, no half characters."""
    try:
        value = json.loads(text, object_pairs_hook=_once, parse_constant=_refuse_constant, parse_float=_finite)
        return json.loads(clean(json.dumps(value, ensure_ascii=False)))
    except (ValueError, RecursionError) as error:
        raise _Unreadable("invalid_arguments_json") from error


def _once(pairs: list[tuple[str, Any]]) -> Json:
    """Return an object; two values for a key are no JSON that could be carried out."""
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a key occurs twice")
    return found


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no number")


def _finite(text: str) -> float:
    """Return a number that is one."""
    number = float(text)
    if number in (float("inf"), float("-inf")):
        raise ValueError(f"{text} is out of range")
    return number


def _judge(calls: tuple[ToolCall, ...], text: str) -> ToolCall | Fault:
    """Accept exactly one call and no visible text."""
    if not calls and not text.strip():
        return Fault("empty_response")
    if len(calls) != 1:
        return Fault("tool_call_count")
    return Fault("mixed_content") if text.strip() else calls[0]
