"""Prompts and responses as one text with the role marks ``<|im_start|>`` and ``<|im_end|>``, read as chat messages.

Tool calls stand in ``<tool_call>``, answers in ``<tool_response>`` (the Hermes form that Qwen's templates write). A
text without the marks says nothing of its roles and is not split.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from shopskill_lib.adapters.calls import ROLES
from shopskill_lib.files import json_object

OPENING, END = "<|im_start|>assistant\n", "<|im_end|>"
"""What stands before a reply, and after it."""

_TURN = re.compile(r"<\|im_start\|>(\w+)\n(.*?)(?:<\|im_end\|>|\Z)", re.DOTALL)
_CALL = re.compile(r"<tool_call>\s*(\{.*?\})\s*</tool_call>", re.DOTALL)
_RESPONSE = re.compile(r"<tool_response>\n?(.*?)\n?</tool_response>", re.DOTALL)


def split(text: str) -> list[dict[str, Any]] | None:
    """Return the messages of a text; None where it has no marks, an unknown role, or words outside of them."""
    turns = list(_TURN.finditer(text))
    outside = _TURN.sub("", text).replace("<|endoftext|>", "")
    if not turns or outside.strip() or any(turn[1] not in ROLES for turn in turns):
        return None
    return [message for turn in turns for message in _messages(turn[1], turn[2])]


def joined(messages: Iterable[Mapping[str, Any]]) -> str:
    """Return messages as one text with marks."""
    return "".join(f"<|im_start|>{message['role']}\n{_said(message)}{END}\n" for message in messages)


def _said(message: Mapping[str, Any]) -> str:
    """Return the words of a message, its calls below them."""
    parts = message.get("content") or ""
    words = parts if isinstance(parts, str) else "\n".join(part["text"] for part in parts)
    if message["role"] == "tool":
        return f"<tool_response>\n{words}\n</tool_response>"
    made = (call["function"] for call in message.get("tool_calls") or ())
    calls = (f'{{"name": {json.dumps(one["name"])}, "arguments": {_object(one)}}}' for one in made)
    return "\n".join([*([words] if words else []), *(f"<tool_call>\n{call}\n</tool_call>" for call in calls)])


def _object(function: Mapping[str, Any]) -> str:
    """Return the arguments of a call as they are written."""
    arguments = function.get("arguments") or {}
    return arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)


def _messages(role: str, said: str) -> Iterator[dict[str, Any]]:
    """Yield a turn as messages: a user's turn of tool responses is one message a response."""
    responses = _RESPONSE.findall(said)
    if role in ("user", "tool") and responses and not _RESPONSE.sub("", said).strip():
        yield from ({"role": "tool", "content": response} for response in responses)
        return
    calls = _calls(said) if role == "assistant" else []
    if calls:
        yield {"role": role, "content": _CALL.sub("", said).strip(), "tool_calls": calls}
    else:
        yield {"role": role, "content": said}


def _calls(said: str) -> list[dict[str, Any]]:
    """Return the call of a turn; none where there are several or one that is no JSON, as their answers carry no ids."""
    written = _CALL.findall(said)
    if len(written) != 1:
        return []
    call = json_object(written[0])
    if not isinstance(call.get("name"), str):
        return []
    arguments = json.dumps(call.get("arguments", {}), ensure_ascii=False)
    return [{"type": "function", "function": {"name": call["name"], "arguments": arguments}}]
