"""Calls that a model writes as text, for servers without tools: what it is told, and what a server holds it to."""

import json
from collections.abc import Sequence
from typing import Any

from shopskill_lib.records import Language

_TOLD: dict[Language, str] = {
    "en": (
        "These tools are available now. Call one by answering with exactly one JSON object "
        '{"name": "<tool>", "arguments": {...}} and no other text:'
    ),
    "zh": (
        '现在可用的工具如下。请只回复一个 JSON 对象 {"name": "<工具>", "arguments": {...}} 来调用其中一个，'
        "不要输出其他文字："
    ),
}

REPAIR: dict[Language, str] = {
    "en": (
        'Nothing was done. Answer with exactly one JSON object {"name": "<tool>", "arguments": {...}} that calls an '
        "available tool, its arguments filled in, and no other text."
    ),
    "zh": (
        '没有执行任何操作。请只回复一个 JSON 对象 {"name": "<工具>", "arguments": {...}}，调用一个可用工具并填好参数，'
        "不要输出其他文字。"
    ),
}
"""What a model is told that wrote no legal call."""


def describe(tools: Sequence[dict[str, Any]], language: Language) -> str:
    """Return what a model is told of the tools on offer: one line of JSON a tool."""
    lines = [json.dumps(tool["function"], ensure_ascii=False, sort_keys=True) for tool in tools]
    return "\n".join([_TOLD[language], *lines])


def response_format(tools: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the `response_format` of a request: one call of one of these tools.

    Definitions that the tools' parameters refer to move to the root of the schema, where their references point.
    """
    definitions: dict[str, Any] = {}
    calls = []
    for tool in tools:
        parameters = dict(tool["function"]["parameters"])
        definitions |= parameters.pop("$defs", {})
        calls.append(
            {
                "type": "object",
                "properties": {"name": {"type": "string", "enum": [tool["function"]["name"]]}, "arguments": parameters},
                "required": ["name", "arguments"],
                "additionalProperties": False,
            }
        )
    schema = (calls[0] if len(calls) == 1 else {"anyOf": calls}) | ({"$defs": definitions} if definitions else {})
    return {"type": "json_schema", "json_schema": {"name": "call", "schema": schema}}
