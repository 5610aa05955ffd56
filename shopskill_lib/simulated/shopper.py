"""The simulated policy on the OpenAI chat-completions format: a pure function from a request to a response.

It sees the messages and the tools, nothing else; everything it returns says simulated. The seed counts at a
temperature above 0: as a caller raises the seed by one a turn, the seed less the turns so far tells the episode.
"""

import hashlib
import json
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from shopskill_lib.simulated.competences import learn
from shopskill_lib.simulated.decisions import NOISE, Call, Draws, View, decide
from shopskill_lib.simulated.reading import OTHER_PAGE, read_page, read_request, read_system

SHOPPER_VERSION = "simulated-shopper-v1"
MODEL = "simulated-shopper"

CONTEXT = 131_072
"""Tokens of a prompt that the model takes at most."""

MAX_TOKENS = 512
"""Tokens of an answer where the request sets no limit."""


ROLES = ("system", "developer", "user", "assistant", "tool")


class Reply(NamedTuple):
    """An answer on the wire."""

    status: int
    """HTTP status."""
    body: dict[str, Any]
    """A chat completion, or ``{"error": {...}}`` as a server of that format writes it."""


def respond(request: object) -> Reply:
    """Return the answer to a chat-completions request, refused ones included; never raises.

    Args:
        request: the decoded JSON body: model, messages, tools, temperature, seed, max_tokens.
    """
    if not isinstance(request, Mapping):
        return refusal(400, "invalid_request_error", "the body is not a JSON object")
    if "simulated" not in str(request.get("model")):
        return refusal(404, "model_not_found", f"there is no model {request.get('model')!r}; try {MODEL}")
    fault = _fault(request)
    if fault:
        return refusal(400, "invalid_request_error", fault)
    prompt_tokens = _prompt_tokens(request)
    if prompt_tokens > CONTEXT:
        found = f"the prompt has about {prompt_tokens} tokens, the context holds {CONTEXT}"
        return refusal(400, "context_length_exceeded", found)
    view = _view(request)
    call = decide(view) if view.may_search or view.actions else Call("", "There is nothing to do.")
    return Reply(200, _completion(request, call, view.turns, prompt_tokens))


def refusal(status: int, code: str, message: str) -> Reply:
    """Return an error answer in the format's shape."""
    error = {"message": f"simulated: {message}", "type": "invalid_request_error", "param": None, "code": code}
    return Reply(status, {"error": error})


def _fault(request: Mapping[str, Any]) -> str:
    """Return what is wrong with a request, ``""`` for a sound one."""
    messages, tools = request.get("messages"), request.get("tools") or []
    if not isinstance(messages, list) or not messages:
        return "messages must be a list of at least one message"
    for message in messages:
        if not isinstance(message, dict) or message.get("role") not in ROLES:
            return f"every message must be an object with one of the roles {', '.join(ROLES)}"
        if not isinstance(message.get("content"), str | None):
            return "the content of a message must be text"
    if not isinstance(tools, list) or not all(isinstance(tool, dict) for tool in tools):
        return "tools must be a list of objects"
    if request.get("stream"):
        return "streaming is not offered"
    wrong = [name for name in ("temperature", "seed", "max_tokens") if not _is_number(request.get(name))]
    return f"{wrong[0]} must be a number of at least 0" if wrong else ""


def _is_number(value: object) -> bool:
    return value is None or (isinstance(value, int | float) and math.isfinite(value) and value >= 0)


def _view(request: Mapping[str, Any]) -> View:
    """Return what the shopper knows at the turn that a request asks for."""
    messages = request["messages"]
    system = "\n".join(message["content"] or "" for message in messages if message["role"] == "system")
    asked = next((message["content"] or "" for message in messages if message["role"] == "user"), "")
    skill, persona = read_system(system)
    pages = (read_page(message["content"] or "") for message in messages if message["role"] in ("user", "tool"))
    turns = sum(message["role"] == "assistant" for message in messages)
    tools = _tools(request.get("tools") or [])
    return View(
        request=read_request(asked),
        persona=persona,
        skill=learn(skill),
        pages=tuple(page for page in pages if page is not OTHER_PAGE),
        turns=turns,
        searches=sum(name == "search" for message in messages for name in _called(message)),
        actions=tools.get("click", ()),
        may_search="search" in tools,
        draws=_draws(request, asked, turns),
    )


def _draws(request: Mapping[str, Any], asked: str, turns: int) -> Draws:
    task = hashlib.blake2b(asked.encode("utf-8", "replace"), digest_size=16).hexdigest()
    temperature = request.get("temperature")
    temperature = 1.0 if temperature is None else float(temperature)
    if temperature <= 0:
        return Draws(task, None, 0.0)
    episode = ((request.get("seed") or 0) - turns) % 2**31
    return Draws(task, str(episode), NOISE * temperature)


def _tools(tools: list[dict[str, Any]]) -> dict[str, tuple[str, ...]]:
    """Return the tools by name, each with the labels it takes (none for a free text)."""
    found = {}
    for tool in tools:
        function = tool.get("function") or {}
        properties = (function.get("parameters") or {}).get("properties") or {}
        found[str(function.get("name"))] = tuple((properties.get("value") or {}).get("enum") or ())
    return found


def _called(message: Mapping[str, Any]) -> list[str]:
    """Return the names of the functions that a message calls."""
    return [call["function"]["name"] for call in message.get("tool_calls") or []]


def _prompt_tokens(request: Mapping[str, Any]) -> int:
    texts = [message.get("content") or "" for message in request["messages"]]
    calls = [call["function"]["arguments"] for message in request["messages"] for call in message.get("tool_calls") or []]
    labels = [label for labels in _tools(request.get("tools") or []).values() for label in labels]
    return _tokens("".join([*texts, *calls, *labels])) + 4 * len(texts)


def _tokens(text: str) -> int:
    """Return about how many tokens a text has: one for four bytes."""
    return -(-len(text.encode("utf-8", "replace")) // 4)


def _completion(request: Mapping[str, Any], call: Call, turn: int, prompt_tokens: int) -> dict[str, Any]:
    """Return the answer as a chat completion; one that is longer than allowed is cut off before its call."""
    arguments = json.dumps({"query" if call.name == "search" else "value": call.argument}, ensure_ascii=False)
    length = _tokens(call.name + arguments) + 8 if call.name else _tokens(call.argument)
    most = request.get("max_tokens")
    most = MAX_TOKENS if most is None else int(most)
    message: dict[str, Any] = {"role": "assistant", "content": None}
    reason = "stop"
    if length > most:
        length, reason, message["content"] = most, "length", ""
    elif call.name:
        function = {"name": call.name, "arguments": arguments}
        message["tool_calls"] = [{"id": f"call_simulated_{turn}", "type": "function", "function": function}]
        reason = "tool_calls"
    else:
        message["content"] = call.argument
    return {
        "id": f"chatcmpl-simulated-{turn}",
        "object": "chat.completion",
        "created": 0,
        "model": request["model"],
        "system_fingerprint": SHOPPER_VERSION,
        "choices": [{"index": 0, "message": message, "finish_reason": reason}],
        "usage": {
            "prompt_tokens": prompt_tokens,
            "completion_tokens": length,
            "total_tokens": prompt_tokens + length,
        },
    }
