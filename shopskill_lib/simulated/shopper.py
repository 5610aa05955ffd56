"""The simulated policy on the OpenAI chat-completions format: a pure function from a request to a response.

It sees the messages and the tools, nothing else; everything it returns says simulated. The seed counts at a
temperature above 0: as a caller raises the seed by one a turn, the seed less the turns so far tells the episode.
The model's name tells the simulated checkpoint: `simulated-shopper` is untaught, `simulated-shopper+price0.450` has
this competence at this level and the others untaught.
"""

import hashlib
import json
import re
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import BaseModel, Field, ValidationError

from shopskill_lib.simulated.competences import UNTAUGHT, Competences, learn
from shopskill_lib.simulated.decisions import NOISE, Call, Draws, View, decide
from shopskill_lib.simulated.reading import OTHER_PAGE, read_page, read_request, read_system

SHOPPER_VERSION = "simulated-shopper-v2"
MODEL = "simulated-shopper"
"""Name of the untaught checkpoint; every other name begins with it."""

_LEVEL = re.compile(r"([a-z]+)([0-9]+(?:\.[0-9]+)?)")

CONTEXT = 131_072
"""Tokens of a prompt that the model takes at most."""

MAX_TOKENS = 512
"""Tokens of an answer where the request sets no limit."""

NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class Reply(NamedTuple):
    """An answer on the wire."""

    status: int
    """HTTP status."""
    body: dict[str, Any]
    """A chat completion, or ``{"error": {...}}`` as a server of that format writes it."""


class _CalledFunction(BaseModel):
    name: str
    arguments: str


class _ToolCall(BaseModel):
    function: _CalledFunction


class _Message(BaseModel):
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | None = None
    tool_calls: list[_ToolCall] | None = None

    @property
    def text(self) -> str:
        return self.content or ""

    @property
    def calls(self) -> list[_CalledFunction]:
        return [call.function for call in self.tool_calls or ()]


class _Property(BaseModel):
    enum: list[str] = []


class _Parameters(BaseModel):
    properties: dict[str, _Property] = {}


class _OfferedFunction(BaseModel):
    name: str
    parameters: _Parameters = _Parameters()


class _Tool(BaseModel):
    function: _OfferedFunction


class _Request(BaseModel):
    """The part of a chat-completions request that counts; other fields are taken and ignored."""

    model: str
    messages: Annotated[list[_Message], Field(min_length=1)]
    tools: list[_Tool] | None = None
    temperature: NotNegative | None = None
    seed: int | None = None
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    stream: Literal[False] | None = None

    @property
    def offered(self) -> dict[str, list[str]]:
        """Tools by name with the labels they take; none for a free text."""
        functions = [tool.function for tool in self.tools or ()]
        return {function.name: function.parameters.properties.get("value", _Property()).enum for function in functions}


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
    try:
        asked = _Request.model_validate(request)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        place = ".".join(map(str, first["loc"])) or "body"
        return refusal(400, "invalid_request_error", f"{place}: {first['msg']}")
    try:
        base = base_of(asked.model)
    except ValueError as error:
        return refusal(404, "model_not_found", str(error))
    prompt_tokens = _prompt_tokens(asked)
    if prompt_tokens > CONTEXT:
        found = f"the prompt has about {prompt_tokens} tokens, the context holds {CONTEXT}"
        return refusal(400, "context_length_exceeded", found)
    view = _view(asked, base)
    call = decide(view) if view.may_search or view.actions else Call("", "There is nothing that I could do here.")
    return Reply(200, _completion(asked, call, view.turns, prompt_tokens))


def refusal(status: int, code: str, message: str) -> Reply:
    """Return an error answer in the format's shape."""
    error = {"message": f"simulated: {message}", "type": "invalid_request_error", "param": None, "code": code}
    return Reply(status, {"error": error})


def _view(asked: _Request, base: Competences) -> View:
    """Return what the shopper knows at the turn that a request asks for."""
    messages, offered = asked.messages, asked.offered
    skill, persona = read_system("\n".join(message.text for message in messages if message.role == "system"))
    opening = next((message.text for message in messages if message.role == "user"), "")
    pages = (read_page(message.text) for message in messages if message.role in ("user", "tool"))
    turns = sum(message.role == "assistant" for message in messages)
    return View(
        request=read_request(opening),
        persona=persona,
        skill=learn(skill, base),
        pages=tuple(page for page in pages if page is not OTHER_PAGE),
        turns=turns,
        searches=sum(call.name == "search" for message in messages for call in message.calls),
        actions=tuple(offered.get("click", ())),
        may_search="search" in offered,
        draws=_draws(asked, opening, turns),
    )


def _draws(asked: _Request, opening: str, turns: int) -> Draws:
    task = hashlib.blake2b(opening.encode(), digest_size=16).hexdigest()
    temperature = 1.0 if asked.temperature is None else asked.temperature
    if temperature == 0:
        return Draws(task, None, 0.0)
    return Draws(task, str(((asked.seed or 0) - turns) % 2**31), NOISE * temperature)


def _prompt_tokens(asked: _Request) -> int:
    texts = [message.text for message in asked.messages]
    calls = [call.arguments for message in asked.messages for call in message.calls]
    labels = [label for enum in asked.offered.values() for label in enum]
    return _tokens("".join([*texts, *calls, *labels])) + 4 * len(texts)


def _tokens(text: str) -> int:
    """Return about how many tokens a text has: one for four bytes."""
    return -(-len(text.encode()) // 4)


def _completion(asked: _Request, call: Call, turn: int, prompt_tokens: int) -> dict[str, Any]:
    """Return the answer as a chat completion; one that is longer than allowed is cut off before its call."""
    arguments = json.dumps({"query" if call.name == "search" else "value": call.argument}, ensure_ascii=False)
    length = _tokens(call.name + arguments) + 8 if call.name else _tokens(call.argument)
    most = asked.max_tokens or MAX_TOKENS
    message: dict[str, Any] = {"role": "assistant", "content": None}
    if length > most:
        length, reason, message["content"] = most, "length", ""
    elif call.name:
        function = {"name": call.name, "arguments": arguments}
        message["tool_calls"] = [{"id": f"call_simulated_{turn}", "type": "function", "function": function}]
        reason = "tool_calls"
    else:
        message["content"], reason = call.argument, "stop"
    return {
        "id": f"chatcmpl-simulated-{turn}",
        "object": "chat.completion",
        "created": 0,
        "model": asked.model,
        "system_fingerprint": SHOPPER_VERSION,
        "choices": [{"index": 0, "message": message, "finish_reason": reason}],
        "usage": {
            "prompt_tokens": prompt_tokens,
            "completion_tokens": length,
            "total_tokens": prompt_tokens + length,
        },
    }
