"""The simulated author on the chat-completions format: success and failure analyst, consolidator and compiler.

A pure function from a request to a response. The role is told by the tools on offer; everything else by the messages.
The seed counts at a temperature above 0, less the turns so far, as the shopper's does.
"""

import re
from collections.abc import Callable
from typing import Any

from shopskill_lib.simulated import analyst, merging
from shopskill_lib.simulated.casefile import MalformedError, Talk, exchanges, read_case
from shopskill_lib.simulated.chat import Reply, Request, completion, read, refusal

AUTHOR_VERSION = "simulated-author-v2"
MODEL = "simulated-author"

MAX_TOKENS = 16_384
"""Tokens of an answer where the request sets no limit."""

PROSE = 0.015
"""Share of answers in words without a call."""

TWICE = 0.01
"""Share of answers that make their call twice."""

BROKEN = 0.04
"""Share of submissions that break the tool's schema at first."""

Act = tuple[str, dict[str, Any]]

_AT_MOST = re.compile(r"(?:at most|最多写?) ?(\d{1,3}) ?(?:cards|张)", re.IGNORECASE)

_WORDS = "Let me look at all of this once more before I hand anything in."


def respond(request: object) -> Reply:
    """Return the answer to a chat-completions request; what is wrong with it is answered, never raised.

    Args:
        request: the decoded JSON body: model (its name must say simulated-author), messages, tools, temperature
            (1 when missing), seed (0 when missing), max_tokens.
    """
    asked = read(request, MODEL, MODEL)
    if isinstance(asked, Reply):
        return asked
    role = next((name for name in _ROLES if name in asked.tool_properties), None)
    if role is None:
        return Reply(200, completion(asked, AUTHOR_VERSION, [], "There is nothing that I could hand in.", MAX_TOKENS))
    try:
        acts = _slipping(asked, _talk(asked, role), _ROLES[role])
    except MalformedError as error:
        return refusal(400, "invalid_request_error", str(error))
    return Reply(200, completion(asked, AUTHOR_VERSION, acts, "" if acts else _WORDS, MAX_TOKENS))


def _talk(asked: Request, role: str) -> Talk:
    """Return the conversation that a request carries."""
    told = _AT_MOST.search(asked.system)
    return Talk(
        opening=asked.opening,
        system=asked.system,
        calls=exchanges(asked.messages),
        draws=asked.draws(f"{role}\n{asked.opening}"),
        tool=role,
        most=int(told[1]) if told else None,
    )


def _slipping(asked: Request, talk: Talk, work: Callable[[Talk, Request], Act]) -> list[Act]:
    """Return the calls of a turn: one as a rule, none or two by a slip, one that breaks the schema at first.

    What was told of a fault is heeded in the next turn.
    """
    name, arguments = work(talk, asked)
    slip = talk.draws.uniform(f"slip|{asked.turns}")
    if "tool_protocol_error" not in asked.messages[-1].text:
        if slip < PROSE:
            return []
        if slip > 1 - TWICE:
            return [(name, arguments)] * 2
    if name == talk.tool and not talk.submitted and talk.happens(BROKEN, "broken"):
        return [(name, _broken(talk, arguments))]
    return [(name, arguments)]


def _broken(talk: Talk, arguments: dict[str, Any]) -> dict[str, Any]:
    """Return arguments with a field missing or a word of no list in its place."""
    names = sorted(arguments)
    spoilt = names[int(talk.draws.uniform("broken field") * len(names)) % len(names)]
    if talk.happens(0.5, "field is missing"):
        return {name: value for name, value in arguments.items() if name != spoilt}
    return arguments | {spoilt: "as above"}


_ROLES: dict[str, Callable[[Talk, Request], Act]] = {
    "submit_success_cards": lambda talk, _: (talk.tool, analyst.success(talk, read_case(talk.opening))),
    "submit_diagnosis": lambda talk, asked: analyst.failure(talk, read_case(talk.opening), asked.offered),
    "submit_clusters": lambda talk, _: (talk.tool, merging.consolidate(talk)),
    "submit_skill": lambda talk, _: (talk.tool, merging.compile_skill(talk)),
}
"""What each role's tool is answered with."""
