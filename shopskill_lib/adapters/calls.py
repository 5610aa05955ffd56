"""Tool calls of a conversation in OpenAI's form, each with its answer.

A call is answered before the next assistant message makes others, so an id has to tell apart only the calls of one
message. Servers that count ``call_0`` anew in every reply, or write no ids, can be read.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from shopskill_lib.adapters.lossless import refusal
from shopskill_lib.adapters.react import named_action

Message = Mapping[str, Any]

ROLES = ("system", "developer", "user", "assistant", "tool")


class Exchange(NamedTuple):
    """A call and what it brought."""

    tool: str
    action: str | None
    """The call as one text: ``open_product[788552994965]``, ``buy_now``; None for a fault."""
    fault: str | None
    """Code of arguments that are no JSON object (reference 2.3)."""
    answer: str | None
    """None for a call of the last message that nothing answers."""


def checked(messages: Any, where: str) -> tuple[dict[str, Any], ...]:
    """Return messages as they are, if every one has a role and content of OpenAI's form.

    Args:
        messages: the value of a field.
        where: its place, the field's name at the end.

    Raises:
        InputError: the field that has not, by its place.
    """
    if not isinstance(messages, list):
        raise refusal(f"this is a {type(messages).__name__}", where, "a list of chat messages")
    for number, message in enumerate(messages):
        if not isinstance(message, dict):
            raise refusal("something else than a message", f"{where}.{number}", "an object with role and content")
        if message.get("role") not in ROLES:
            allowed = f"a role of {', '.join(ROLES)}"
            raise refusal(f"role is {message.get('role')!r}", f"{where}.{number}", allowed)
        content(message, f"{where}.{number}")
        _made(message, f"{where}.{number}")
    return tuple(messages)


def content(message: Message, where: str) -> str:
    """Return the text of a message, its parts joined by line breaks; empty where there is none.

    Raises:
        InputError: a part is no text.
    """
    found = message.get("content")
    if found is None or isinstance(found, str):
        return found or ""
    if not isinstance(found, list):
        raise refusal(f"content is a {type(found).__name__}", where, "a text, or a list of text parts")
    for number, part in enumerate(found):
        if not isinstance(part, dict) or part.get("type") != "text" or not isinstance(part.get("text"), str):
            raise refusal("content holds a part that is no text", f"{where}.content.{number}", "parts of type text")
    return "\n".join(part["text"] for part in found)


def has_calls(messages: Iterable[Message]) -> bool:
    """Tell whether any message makes a call."""
    return any(message.get("tool_calls") for message in messages)


def exchanges(messages: Sequence[Message], where: str) -> list[Exchange]:
    """Return the calls in order.

    Raises:
        InputError: a call that cannot be read, an answer to none, or a call that has none although others follow.
    """
    found: list[Exchange] = []
    waiting: dict[str | None, int] = {}
    for number, message in enumerate(messages):
        place = f"{where}.{number}"
        if message["role"] == "tool":
            index = waiting.pop(_awaited(message, waiting, place))
            found[index] = found[index]._replace(answer=content(message, place))
        calls = _made(message, place)
        if calls and waiting:
            unanswered = found[min(waiting.values())].tool
            raise refusal(f"the call {unanswered} has no answer", f"{where}, before {number}", _ANSWERED)
        for index, call in enumerate(calls):
            within = f"{place}.tool_calls.{index}"
            waiting[_new_id(call, waiting, within)] = len(found)
            found.append(_exchange(call["function"], within))
    return found


_ANSWERED = "a tool message for every call, before the next call"


def _made(message: Message, where: str) -> list[dict[str, Any]]:
    """Return the calls of a message as they were written."""
    calls = message.get("tool_calls")
    if calls is not None and not isinstance(calls, list):
        raise refusal(f"tool_calls is a {type(calls).__name__}", where, "a list of calls, or nothing")
    for index, call in enumerate(calls or ()):
        function = call.get("function") if isinstance(call, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            found = "a call has no function with a name"
            raise refusal(found, f"{where}.tool_calls.{index}", "calls as OpenAI writes them")
    return calls or []


def _new_id(call: Message, waiting: Mapping[str | None, int], where: str) -> str | None:
    """Return the id of a call: a text, or None for the only call of its message."""
    name = call.get("id")
    if name is not None and (not isinstance(name, str) or not name):
        raise refusal(f"id is {name!r}", where, "a text, the same in a call and its answer")
    if name in waiting or (waiting and None in (name, *waiting)):
        said = "id is None" if name is None else f"id {name!r} occurs twice"
        raise refusal(said, where, "another id for every call of one message")
    return name


def _awaited(message: Message, waiting: Mapping[str | None, int], where: str) -> str | None:
    """Return the id of the call that a message answers."""
    name = message.get("tool_call_id")
    if name is not None and (not isinstance(name, str) or not name):
        raise refusal(f"tool_call_id is {name!r}", where, "a text, the same in a call and its answer")
    if name not in waiting:
        found = f"tool_call_id {name!r} answers no open call" if name else "tool_call_id is None"
        raise refusal(found, where, "the id of a call of the last assistant message, answered once")
    return name


def _exchange(function: Mapping[str, Any], where: str) -> Exchange:
    """Return a call that nothing answers yet; its arguments are an object, or one written as text."""
    name, raw = function["name"], function.get("arguments")
    try:
        arguments = json.loads(raw or "{}") if raw is None or isinstance(raw, str) else raw
    except (ValueError, RecursionError):
        return Exchange(name, None, "invalid_arguments_json", None)
    if not isinstance(arguments, dict):
        return Exchange(name, None, "invalid_arguments_object", None)
    action = named_action(name, arguments)
    try:
        action.encode()
    except UnicodeEncodeError as error:
        found = f"the arguments of {name} hold half a surrogate pair"
        raise refusal(found, where, "text that UTF-8 can carry") from error
    return Exchange(name, action, None, None)
