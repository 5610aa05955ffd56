"""ShareGPT and AgentGym JSON: `conversations` of `from` and `value`, calls as `function_call` or in visible text."""

import json
from collections.abc import Mapping
from typing import Any

from shopskill_lib.adapters import rows
from shopskill_lib.adapters.lossless import parse_strictly, refusal
from shopskill_lib.adapters.openai_messages import conversation
from shopskill_lib.adapters.recorded import RecordedEpisode
from shopskill_lib.adapters.rows import Document

_ROLES = {"system": "system", "human": "user", "gpt": "assistant", "function_call": "assistant", "observation": "tool"}
_SPEAKERS = {"system": "system", "developer": "system", "user": "human", "assistant": "gpt", "tool": "observation"}


def _typed(document: Document, where: str) -> dict[str, Any]:
    """Read one entry; AgentGym's `item_id` is the task."""
    entries = document.get("conversations")
    if not isinstance(entries, list):
        raise refusal("there is no field conversations", where, "an object with conversations")
    system = document.get("system")
    if system is not None and not isinstance(system, str):
        raise refusal(f"system is a {type(system).__name__}", where, "a text, or nothing")
    opening = [{"role": "system", "content": system}] if system else []
    messages = [_message(entry, f"{where}, conversations.{number}") for number, entry in enumerate(entries)]
    offered = rows.tools(document, where)
    return {
        "trajectory_id": rows.text(document, "id", where),
        "task_id": rows.text(document, "item_id", where),
        "tools": None if offered is None else tuple(map(_wrapped, offered)),
        "reward": rows.reward(document.get("reward"), "reward", where),
        **conversation(opening + messages, f"{where}, {'system and ' if opening else ''}conversations"),
    }


def _built(episode: RecordedEpisode) -> dict[str, Any]:
    offered = None if episode.tools is None else [tool.get("function", tool) for tool in episode.tools]
    return rows.present(
        id=episode.trajectory_id,
        item_id=episode.task_id,
        conversations=[_entry(message, episode) for message in rows.messages_of(episode)],
        tools=None if offered is None else json.dumps(offered, ensure_ascii=False),
        reward=episode.reward,
    )


def _message(entry: Any, where: str) -> dict[str, Any]:
    """Return one entry as a chat message."""
    speaker = entry.get("from") if isinstance(entry, dict) else None
    if not isinstance(speaker, str) or speaker not in _ROLES:
        raise refusal(f"from is {speaker!r}"[:200], where, f"one of {', '.join(_ROLES)}")
    value = entry.get("value")
    if not isinstance(value, str):
        raise refusal(f"value is a {type(value).__name__}", where, "a text")
    if speaker == "function_call":
        return {"role": "assistant", "content": None, "tool_calls": [_call(value, where)]}
    return {"role": _ROLES[speaker], "content": value}


def _call(value: str, where: str) -> dict[str, Any]:
    """Return the call that an entry tells."""
    told = parse_strictly(value, f"{where}, value")
    if isinstance(told, list) and len(told) != 1:
        raise refusal(f"value holds {len(told)} calls", where, "one call an entry: answers carry no ids here")
    told = told[0] if isinstance(told, list) else told
    if not isinstance(told, dict) or not isinstance(told.get("name"), str):
        raise refusal("value is no call", where, "JSON of name and arguments")
    arguments = told.get("arguments", {})
    written = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    return {"type": "function", "function": {"name": told["name"], "arguments": written}}


def _entry(message: Mapping[str, Any], episode: RecordedEpisode) -> dict[str, Any]:
    """Return one chat message as an entry; words beside a call stand in the record only."""
    calls = message.get("tool_calls") or []
    if len(calls) > 1:
        raise refusal(
            f"a message makes {len(calls)} calls", f"trajectory {episode.trajectory_id}", "one call a message"
        )
    if calls:
        function = calls[0]["function"]
        raw = function.get("arguments") or {}
        arguments = _json_or_text(raw) if isinstance(raw, str) else raw
        value = json.dumps({"name": function["name"], "arguments": arguments}, ensure_ascii=False)
        return {"from": "function_call", "value": value}
    parts = message.get("content") or ""
    said = parts if isinstance(parts, str) else "\n".join(part["text"] for part in parts)
    return {"from": _SPEAKERS[message["role"]], "value": said}


def _json_or_text(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _wrapped(tool: dict[str, Any]) -> dict[str, Any]:
    """Return a tool as OpenAI writes it; ShareGPT files hold the function alone."""
    return tool if "function" in tool else {"type": "function", "function": tool}


FORMAT = rows.row_format("sharegpt", lambda found: isinstance(found.get("conversations"), list), _typed, _built)
