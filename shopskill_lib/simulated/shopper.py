"""The simulated policy on the OpenAI chat-completions format: a pure function from a request to a response.

It sees the messages and the tools, nothing else; everything it returns says simulated. The seed counts at a
temperature above 0: as a caller raises the seed by one a turn, the seed less the turns so far tells the episode.
"""

import hashlib

from shopskill_lib.simulated.chat import Reply, Request, completion, read
from shopskill_lib.simulated.competences import learn
from shopskill_lib.simulated.decisions import NOISE, Call, Draws, View, decide
from shopskill_lib.simulated.reading import OTHER_PAGE, read_page, read_request, read_system

SHOPPER_VERSION = "simulated-shopper-v2"
MODEL = "simulated-shopper"

MAX_TOKENS = 512
"""Tokens of an answer where the request sets no limit."""


def respond(request: object) -> Reply:
    """Return the answer to a chat-completions request; what is wrong with it is answered, never raised.

    Args:
        request: the decoded JSON body: model (its name must say simulated), messages, tools, temperature (1 when
            missing), seed (0 when missing), max_tokens.
    """
    asked = read(request, "simulated", MODEL)
    if isinstance(asked, Reply):
        return asked
    view = _view(asked)
    call = decide(view) if view.may_search or view.actions else Call("", "There is nothing that I could do here.")
    calls = [(call.name, {"query" if call.name == "search" else "value": call.argument})] if call.name else []
    return Reply(200, completion(asked, SHOPPER_VERSION, calls, "" if calls else call.argument, MAX_TOKENS))


def _view(asked: Request) -> View:
    """Return what the shopper knows at the turn that a request asks for."""
    messages, offered = asked.messages, asked.offered
    skill, persona = read_system(asked.system)
    pages = (read_page(message.text) for message in messages if message.role in ("user", "tool"))
    return View(
        request=read_request(asked.opening),
        persona=persona,
        skill=learn(skill),
        pages=tuple(page for page in pages if page is not OTHER_PAGE),
        turns=asked.turns,
        searches=sum(call.name == "search" for message in messages for call in message.calls),
        actions=tuple(offered.get("click", ())),
        may_search="search" in offered,
        draws=_draws(asked),
    )


def _draws(asked: Request) -> Draws:
    task = hashlib.blake2b(asked.opening.encode("utf-8", "replace"), digest_size=16).hexdigest()
    return Draws(task, asked.episode, 0.0 if asked.episode is None else NOISE * asked.warmth)
