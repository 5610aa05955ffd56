"""How the simulated author reads what it is sent: sections, a trajectory turn by turn, and what its own calls brought.

What is read comes from message texts alone; a first user message is read once however many turns follow it.
"""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple, TypeVar

from pydantic import BaseModel, ValidationError

from shopskill_lib.files import first_fault, json_object
from shopskill_lib.records import Language
from shopskill_lib.simulated.chat import Message
from shopskill_lib.simulated.decisions import Draws
from shopskill_lib.simulated.lessons import language_of
from shopskill_lib.simulated.reading import OTHER_PAGE, Page, Phrase, Request, read_request, read_system
from shopskill_lib.simulated.recorded import is_recorded, read_action, read_page, spoken

Model = TypeVar("Model", bound=BaseModel)

_TURN = re.compile(r'^<turn n="(\d{1,6})">$', re.MULTILINE)
_ACTION = re.compile(r"(search|click)\[(.*)\]", re.DOTALL)


class MalformedError(ValueError):
    """A message that is not laid out as the author's messages are; the text says what is missing."""


class Chunk(BaseModel):
    """A chunk of the current skill."""

    chunk_id: str
    title: str = ""
    text: str


class Purchase(BaseModel):
    """What was bought."""

    asin: str
    title: str = ""


class Outcome(BaseModel):
    """How a trajectory ended."""

    ending: str
    parts: dict[str, float] | None = None
    purchase: Purchase | None = None

    def lost(self, part: str) -> bool:
        """Tell whether a part of the reward fell short."""
        return self.parts is not None and self.parts.get(part, 1.0) < 1


class Turn(NamedTuple):
    """One turn of a trajectory."""

    step: int
    text: str
    """The page as written."""
    page: Page
    verb: str
    """``search``, ``click`` or "" for a fault."""
    argument: str
    refused: bool
    """Whether it was a fault or was not carried out."""
    action: str
    """What was done, as written."""


class Case(NamedTuple):
    """One trajectory with its task."""

    language: Language
    request: Request
    persona: tuple[Phrase, ...]
    skill: tuple[Chunk, ...]
    outcome: Outcome
    turns: tuple[Turn, ...]
    gold: str
    """Id of the wanted product; "" where it is not told."""
    spoken: bool
    """Whether it was recorded elsewhere, with a request in everyday words."""


class Exchange(NamedTuple):
    """A call of the author's and what it brought."""

    name: str
    arguments: dict[str, Any]
    result: str
    """"" while there is none."""


@dataclass(frozen=True)
class Talk:
    """A conversation of the author's so far."""

    opening: str
    """First user message."""
    system: str
    calls: tuple[Exchange, ...]
    draws: Draws
    tool: str
    """Name of the tool that hands the work in."""
    most: int | None
    """Entries of its list at most; None where nothing sets a bound."""

    @property
    def submitted(self) -> bool:
        """Whether work was handed in already and came back."""
        return any(made.name == self.tool for made in self.calls)

    @property
    def handed_in(self) -> dict[str, Any]:
        """What was handed in last; {} before that."""
        return next((made.arguments for made in reversed(self.calls) if made.name == self.tool), {})

    @property
    def complained(self) -> bool:
        """Whether the firewall sent the last work back."""
        last = next((made.result for made in reversed(self.calls) if made.name == self.tool), "")
        return json_object(last).get("type") == "firewall"

    def happens(self, rate: float, decision: str) -> bool:
        """Tell whether something happens that has this rate."""
        return self.draws.uniform(decision) < rate


class Trial(NamedTuple):
    """One counterfactual run in the shop."""

    number: int
    after_steps: int
    same_pages: bool
    actions: tuple[tuple[str, str], ...]
    texts: tuple[str, ...]
    """Pages since the replay, the replayed one first."""
    reward: float | None
    """None until it has ended."""
    bought: str
    """Id of what was bought, "" for nothing."""


@lru_cache(maxsize=64)
def read_case(message: str) -> Case:
    """Read an analyst's first user message.

    Raises:
        MalformedError: a section is missing or of another form.
    """
    request = text_section(message, "request")
    persona = json_section(message, "persona", required=False)
    told = read_system(f"<persona>\n{json.dumps(persona)}\n</persona>")[1] if isinstance(persona, dict) else ()
    gold = json_section(message, "gold", required=False)
    outcome = json_section(message, "outcome")
    turns = _turns(text_section(message, "trajectory"))
    asked = read_request(f"<request>\n{request}\n</request>")
    recorded = any(is_recorded(turn.text) for turn in turns)
    try:
        return Case(
            language=language_of(request),
            request=spoken(asked, [turn.page for turn in turns]) if recorded else asked,
            persona=told,
            skill=read_skill(message),
            outcome=Outcome.model_validate(outcome),
            turns=turns,
            gold=str(gold.get("asin", "")) if isinstance(gold, dict) else "",
            spoken=recorded,
        )
    except ValidationError as error:
        raise MalformedError(f"section outcome: {first_fault(error)}") from error


def read_skill(message: str) -> tuple[Chunk, ...]:
    """Read the section `skill`."""
    return tuple(models(message, "skill", Chunk))


def models(message: str, name: str, kind: type[Model]) -> list[Model]:
    """Read a section that is a list of records.

    Raises:
        MalformedError: it is none.
    """
    items = json_section(message, name)
    if not isinstance(items, list):
        raise MalformedError(f"section {name} is no list")
    try:
        return [kind.model_validate(item) for item in items]
    except ValidationError as error:
        raise MalformedError(f"section {name}: {first_fault(error)}") from error


def text_section(message: str, name: str) -> str:
    """Return the text of a section; only the last section's text may hold its own closing tag.

    Raises:
        MalformedError: there is no such section.
    """
    start = message.find(f"<{name}>\n")
    close = f"\n</{name}>"
    begin = start + len(name) + 3
    end = message.rfind(close) if name == "trajectory" else message.find(close, begin)
    if start < 0 or end < begin - 1:
        raise MalformedError(f"section {name} is missing")
    return message[begin:end]


def json_section(message: str, name: str, *, required: bool = True) -> Any:
    """Return the value of a section; None for one that is missing and may be.

    Raises:
        MalformedError: there is none, or it is no JSON.
    """
    start = message.find(f"<{name}>\n")
    if start < 0:
        if required:
            raise MalformedError(f"section {name} is missing")
        return None
    try:
        return json.JSONDecoder().raw_decode(message, start + len(name) + 3)[0]
    except (ValueError, RecursionError) as error:
        raise MalformedError(f"section {name} is no JSON") from error


def _turns(text: str) -> tuple[Turn, ...]:
    """Split a trajectory at its turns.

    Raises:
        MalformedError: there is no turn.
    """
    marks = list(_TURN.finditer(text))
    if not marks:
        raise MalformedError("section trajectory has no turn")
    ends = [mark.start() for mark in marks[1:]] + [len(text)]
    return tuple(_turn(int(mark[1]), text[mark.end() : end]) for mark, end in zip(marks, ends, strict=True))


def _turn(step: int, block: str) -> Turn:
    page, _, rest = block.partition("\n</page>")
    text = page.partition("<page>\n")[2]
    action = rest.partition("<action>")[2].rpartition("</action>")[0].strip()
    shown, own = read_page(text), None if is_recorded(text) else _ACTION.fullmatch(action)
    verb, argument = (own[1], own[2]) if own else read_action(action, text, shown) or ("", "")
    return Turn(step, text, shown, verb, argument, not verb or "<feedback>" in rest, action)


def exchanges(messages: Sequence[Message]) -> tuple[Exchange, ...]:
    """Return the author's calls, oldest first, with what each brought."""
    found: list[Exchange] = []
    waiting: list[int] = []
    for message in messages:
        for made in message.calls:
            waiting.append(len(found))
            found.append(Exchange(made.name, json_object(made.arguments), ""))
        if message.role == "tool" and waiting:
            place = waiting.pop(0)
            found[place] = found[place]._replace(result=message.text)
    return tuple(found)


def trials(calls: Sequence[Exchange]) -> tuple[Trial, ...]:
    """Return the trials that the calls made, oldest first; what was answered with a fault did not happen."""
    found: list[Trial] = []
    for made in calls:
        head, page = _answer(made.result)
        if "trial" not in head:
            continue
        if made.name == "replay_prefix":
            after, same = head.get("after_steps"), head.get("same_pages", True)
            number = head["trial"] if isinstance(head["trial"], int) else len(found) + 1
            found.append(Trial(number, after if isinstance(after, int) else 0, bool(same), (), (page,), None, ""))
        elif made.name in ("search", "click") and found:
            argument = made.arguments.get("query" if made.name == "search" else "value", "")
            found[-1] = _continued(found[-1], (made.name, str(argument)), head, page)
    return tuple(found)


def _continued(trial: Trial, action: tuple[str, str], head: dict[str, Any], page: str) -> Trial:
    trial = trial._replace(actions=(*trial.actions, action), texts=(*trial.texts, page))
    if not head.get("done"):
        return trial
    reward, purchase = head.get("reward"), head.get("purchase")
    bought = str(purchase.get("asin", "")) if isinstance(purchase, dict) else ""
    parts = head.get("parts")
    success = isinstance(parts, dict) and parts.get("r_success") == 1
    earned = float(reward) if isinstance(reward, int | float) else 0.0
    return trial._replace(reward=1.0 if success else min(earned, 0.999), bought=bought)


def _answer(result: str) -> tuple[dict[str, Any], str]:
    """Return the first line of a tool's answer as an object, {} for another, and what follows."""
    line, _, rest = result.partition("\n")
    return json_object(line), rest.removeprefix("\n")


def pages(texts: Sequence[str]) -> tuple[Page, ...]:
    """Return the pages with products among texts."""
    return tuple(page for page in map(read_page, texts) if page is not OTHER_PAGE)
