"""What a server means that refuses a request: a full context, a wrong set-up, or a failure that may pass (M3)."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from shopskill_lib.endpoints import Endpoint

_OVERFLOW = re.compile(
    r"context_length_exceeded|exceed_context_size|prompt is too long|prompt exceeds|model token limit"
    r"|maximum (context|model|sequence|prompt|input) length|(range of|max) input length"
    r"|(exceed\w*|longer than|larger than|too (long|large)).{0,80}context|context.{0,40}(exceeded|overflow|is full)"
    r"|input token count.{0,40}exceeds|`?inputs`? (tokens|must have less than)"
    r"|(超过|超出).{0,20}(上下文|长度)|(上下文|输入|长度).{0,20}(超过|超出|过长)",
    re.IGNORECASE | re.DOTALL,
)
"""Spellings of a prompt that the context does not hold, in refusals of a request (HTTP 4xx)."""

_OVERFLOW_AS_FAILURE = re.compile(
    r"context_length_exceeded|exceed_context_size|exceeds? (the )?(available )?context (window|size|length)",
    re.IGNORECASE,
)
"""Those of servers that call it their own failure (HTTP 500): only what cannot mean anything else."""

_NO_MODEL = re.compile(r"model_not_found|model\b.{0,200}\b(not found|not exist)", re.IGNORECASE | re.DOTALL)
_UNPAID = re.compile(
    r"insufficient_quota|exceeded_current_quota|insufficient balance|arrearage|欠费|余额不足", re.IGNORECASE
)
_REFUSED = {
    401: "refuses the key",
    402: "asks for payment",
    403: "refuses access",
    404: "does not know the model or the path",
}

_NOT_TAKEN = (
    r"not support|unsupported|unrecognized|not permitted|not allowed|extra inputs|input should be|requires|no such"
)
"""Words by which servers call a part of a request unknown."""

_OR_WRONG = _NOT_TAKEN + r"|unknown|unexpected|invalid|must be|too large"
"""Further words, which mean it in a refusal of the request alone: a failing server uses them of itself."""

_TOOLS = r"not support (tools|tool|function)|tools? param|--jinja"
"""What servers that have no tools say of them."""

_RETRIED = {408, 409, 429}
_OVERLOADED = {408, 429}
_OF_REQUEST = {400, 422, 500, 501}
"""Statuses of servers that do not understand a request."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """What a refusal means.

    Attributes:
        kind: the context does not hold the prompt · the set-up is wrong · anything else.
        found: what the server said, as a clause of a message.
        todo: what mends a wrong set-up; "" for other kinds.
        retry: whether another try may bring a reply.
        overloaded: whether the server has too much to do.
    """

    kind: Literal["overflow", "setup", "failure"]
    found: str
    todo: str = ""
    retry: bool = False
    overloaded: bool = False


def judge(status: int, text: str, endpoint: Endpoint) -> Refusal:
    """Tell what a refusal means.

    Args:
        status: HTTP status; for an error in the body of a success the one that it names, 500 without.
        text: the body.
        endpoint: who was asked, and how.
    """
    said, told = _said(text), f"HTTP {status}: {' '.join(text[:300].split())}"
    if _overflows(status, said):
        return Refusal("overflow", told)
    reason = _reason(status, said)
    if reason:
        key = endpoint.key_variable or "none given"
        mend = f"check url, model and the key (policy_key_env or author_key_env: {key})"
        if reason == _REFUSED[402]:
            mend = f"pay for, or top up, the account of the key (policy_key_env or author_key_env: {key}), and repeat"
        return Refusal("setup", f"the server {reason} ({told})", mend)
    option = next(_options(status, said, endpoint), None) if status in _OF_REQUEST else None
    if option is not None:
        name, todo = option
        return Refusal("setup", f"the server does not take {name} ({told})", f"{todo} (policy_* or author_*)")
    return Refusal("failure", told, "", status in _RETRIED or status >= 500, status in _OVERLOADED)


def _overflows(status: int, said: str) -> bool:
    """Tell whether the context does not hold the prompt."""
    spellings = {400: _OVERFLOW, 413: _OVERFLOW, 422: _OVERFLOW, 500: _OVERFLOW_AS_FAILURE}.get(status)
    return spellings is not None and spellings.search(said) is not None


def _said(text: str) -> str:
    """Return the message of an error document, without the request that some servers repeat in it."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        return text
    if not isinstance(document, dict):
        return text
    error = document.get("error", document)
    if not isinstance(error, dict):
        return str(error)
    told = [str(error.get(name) or "") for name in ("code", "type", "param", "message")]
    details = error.get("detail")
    if isinstance(details, list):
        told += [f"{detail.get('loc')} {detail.get('msg')}" for detail in details if isinstance(detail, dict)]
    else:
        told.append(str(details or ""))
    return " ".join(told)


def _reason(status: int, said: str) -> str:
    """Return why nothing will be had of this server; "" when that cannot be told."""
    if status in (400, 403, 429) and _UNPAID.search(said):
        return _REFUSED[402]
    if status == 400 and _NO_MODEL.search(said):
        return _REFUSED[404]
    return _REFUSED.get(status, "")


def _options(status: int, said: str, endpoint: Endpoint) -> Iterator[tuple[str, str]]:
    """Yield what of the request the message calls unknown, each with what to change."""
    words = _NOT_TAKEN if status >= 500 else _OR_WRONG

    def calls_unknown(name: str) -> bool:
        both = rf"({name}).{{0,200}}({words})|({words}).{{0,200}}({name})"
        return re.search(both, said, re.IGNORECASE | re.DOTALL) is not None

    if endpoint.protocol == "json_schema" and calls_unknown("response_format|json_schema|structured output|grammar"):
        yield "protocol 'json_schema'", "set protocol to json"
    if endpoint.tool_choice == "required" and calls_unknown("tool[_ -]choice"):
        yield "tool_choice 'required'", "set tool_choice to auto"
    if endpoint.protocol == "tools" and (
        re.search(_TOOLS, said, re.IGNORECASE) or calls_unknown(r"\btools\b|tool[_ -]choice")
    ):
        yield "tools", "start it with tool calls and a chat template that has them, or set protocol to json"
    if endpoint.stream and calls_unknown(r"\bstream(_options|ing)?\b"):
        yield "stream", "set stream to false"
    if endpoint.send_seed and calls_unknown(r"\bseed\b"):
        yield "a seed", "set send_seed to false"
    if calls_unknown(r"\bmax_tokens\b"):
        yield "max_tokens", f'set extra_body to {{"max_completion_tokens": {endpoint.max_tokens}}}, or lower max_tokens'
    if calls_unknown(r"\btemperature\b"):
        yield "this temperature", "set temperature to one that the model takes"
    for name in endpoint.extra_body:
        if calls_unknown(rf"\b{re.escape(name)}\b"):
            yield f"the field {name}", "take it out of extra_body"
