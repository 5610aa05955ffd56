"""Actions in visible text: ``Thought: … Action: search[…]``, as ShopSimulator, WebShop and AgentGym agents write."""

import json
import re
from collections.abc import Mapping
from typing import Any

_LABEL = re.compile(r"^[ \t]*(?:\*\*)?Action(?:\*\*)?[ \t]*[:：](?:\*\*)?[ \t]*\n?[ \t]*", re.MULTILINE)
_TYPE = re.compile(r"^[ \t]*Action_type[ \t]*[:：][ \t]*(\w+)", re.MULTILINE)
_CONTENT = re.compile(r"^[ \t]*Action_content[ \t]*[:：][ \t]*(.*)", re.MULTILINE | re.DOTALL)
_ACTION = re.compile(r"(.+)\[(.+)\]")
"""Read from its start, greedy, within one line, as the server reads it (shopsimulator_http.md, section 3)."""
_BARE = re.compile(r"(?:search|click)\[.+\]")

ASK = "ask_shopper"


def action_in(text: str) -> str | None:
    """Return the action that a reply names, the first where it names several; None where it names none.

    Of ``Action_type: ask_shopper`` the question is the argument. A text without a label is an action only if it is
    nothing else than ``search[…]`` or ``click[…]``.
    """
    kind, told = _TYPE.search(text), _CONTENT.search(text)
    if kind and told:
        said = told[1].strip()
        return f"{kind[1]}[{said}]" if kind[1] == ASK and said else _matched(said)
    label = _LABEL.search(text)
    if label:
        return _matched(text[label.end() :])
    bare = text.strip()
    return bare if _BARE.fullmatch(bare) else None


def labels(text: str) -> int:
    """Return how many actions a reply labels."""
    return len(_LABEL.findall(text))


def named_action(tool: str, arguments: Mapping[str, Any]) -> str:
    """Return a tool call as one text, its arguments in order; the name alone without any."""
    told = (value if isinstance(value, str) else json.dumps(value, ensure_ascii=False) for value in arguments.values())
    return f"{tool}[{', '.join(told)}]" if arguments else tool


def _matched(text: str) -> str | None:
    match = _ACTION.match(text.lstrip())
    return match[0].strip() if match else None
