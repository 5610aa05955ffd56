"""The simulated policy on the OpenAI chat-completions format: a pure function from a request to a response.

It sees the messages and the tools, nothing else; everything it returns says simulated. The seed counts at a
temperature above 0: as a caller raises the seed by one a turn, the seed less the turns so far tells the episode.
The model's name tells the simulated checkpoint: `simulated-shopper` is untaught, `simulated-shopper+price0.450` has
this competence at this level and the others untaught.
"""

import re

from shopskill_lib.simulated.chat import Reply, Request, completion, read, refusal
from shopskill_lib.simulated.competences import UNTAUGHT, Competences, learn
from shopskill_lib.simulated.decisions import Call, View, decide
from shopskill_lib.simulated.reading import OTHER_PAGE, read_page, read_request, read_system

SHOPPER_VERSION = "simulated-shopper-v2"
MODEL = "simulated-shopper"
"""Name of the untaught checkpoint; every other name begins with it."""

_LEVEL = re.compile(r"([a-z]+)([0-9]+(?:\.[0-9]+)?)")

MAX_TOKENS = 512
"""Tokens of an answer where the request sets no limit."""


def model_name(base: Competences) -> str:
    """Return the name of the simulated checkpoint with these competences, levels to three decimals."""
    levels = zip(Competences._fields, (f"{level:.3f}" for level in base), UNTAUGHT, strict=True)
    return "+".join([MODEL, *(name + level for name, level, untaught in levels if float(level) != untaught)])


def base_of(model: str) -> Competences:
    """Return the competences that a model's name tells.

    Raises:
        ValueError: the name is none that `model_name` gives; the message says what is allowed.
    """
    first, *parts = model.split("+")
    found = [_LEVEL.fullmatch(part) for part in parts]
    levels = {match[1]: float(match[2]) for match in found if match}
    known = levels.keys() <= set(Competences._fields) and all(level <= 1 for level in levels.values())
    if first != MODEL or len(levels) < len(parts) or not known:
        raise ValueError(
            f"there is no model {model!r}; there are {MODEL} and names like {MODEL}+price0.450+persona0.860, "
            f"with any of {', '.join(Competences._fields)}, each once and from 0 to 1"
        )
    return UNTAUGHT._replace(**levels)


def respond(request: object) -> Reply:
    """Return the answer to a chat-completions request; what is wrong with it is answered, never raised.

    Args:
        request: the decoded JSON body: model (see `base_of`), messages, tools, temperature (1 when
            missing), seed (0 when missing), max_tokens.
    """
    asked = read(request, "simulated", MODEL)
    if isinstance(asked, Reply):
        return asked
    try:
        base = base_of(asked.model)
    except ValueError as error:
        return refusal(404, "model_not_found", str(error))
    view = _view(asked, base)
    call = decide(view) if view.may_search or view.actions else Call("", "There is nothing that I could do here.")
    calls = [(call.name, {"query" if call.name == "search" else "value": call.argument})] if call.name else []
    return Reply(200, completion(asked, SHOPPER_VERSION, calls, "" if calls else call.argument, MAX_TOKENS))


def _view(asked: Request, base: Competences) -> View:
    """Return what the shopper knows at the turn that a request asks for."""
    messages, offered = asked.messages, asked.offered
    skill, persona = read_system(asked.system)
    pages = (read_page(message.text) for message in messages if message.role in ("user", "tool"))
    return View(
        request=read_request(asked.opening),
        persona=persona,
        skill=learn(skill, base),
        pages=tuple(page for page in pages if page is not OTHER_PAGE),
        turns=asked.turns,
        searches=sum(call.name == "search" for message in messages for call in message.calls),
        actions=tuple(offered.get("click", ())),
        may_search="search" in offered,
        draws=asked.draws(asked.opening),
    )
