"""Trajectories as analysts read them: of this workbench's episodes, or recorded elsewhere as chat messages."""

import json
import re
from collections import Counter
from collections.abc import Container, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from shopskill_lib.errors import InputError
from shopskill_lib.files import parse_json, read_text
from shopskill_lib.firewall import Instance
from shopskill_lib.records import Episode, Hint, PriceResolution, Purchase, Record, RequiredOption, Task

PARTS = ("r_type", "r_att", "r_option", "r_price", "r_loose", "r_strict", "r_success")
"""Parts of the reward that do not rest on gold's identity (M5)."""

BUY, LEAVE = "buy_now", "finish_without_purchase"
"""Calls that end a recorded episode."""

_COMPLETED = re.compile(r"购买已完成|购买成功|\bpurchase (?:is )?complete|page_type: terminal", re.IGNORECASE)
"""What a shop answers to a purchase that was made."""

_DETAIL = re.compile(r"^(asin|title|brand|category|price|selected_options): (.+)$", re.MULTILINE)
"""Lines of a recorded product page."""

_HALF = re.compile("[\ud800-\udfff]")
"""Half a surrogate pair: JSON can write it, UTF-8 cannot."""


class Turn(Record):
    """One turn: the page that was seen, and what was done there."""

    step: int
    """From 1."""
    page: str
    """Text of the page."""
    action: str | None
    """What was sent to the shop; None after a fault or an ending."""
    fault: str | None = None
    """Code of a protocol fault."""
    feedback: str | None = None
    """The shop's reason code."""


class Trajectory(Record):
    """One episode, whole, without anything derived from gold's identity."""

    trajectory_id: str
    task_id: str
    instruction: str
    persona: dict[str, Any] | None
    hints: tuple[Hint, ...]
    """Skill that was in the prompt."""
    turns: tuple[Turn, ...]
    ending: str
    reward: float | None
    """None where the recording has none."""
    parts: dict[str, float] | None
    """Parts of the reward, `PARTS` only."""
    purchase: Purchase | None
    """What was bought; None without a purchase or where the recording does not say."""
    checkpoint: str | None
    """Weights that produced it; None where the recording does not say."""
    simulated: bool

    @property
    def success(self) -> bool | None:
        """Whether it met everything, which alone earns a reward of 1 (M4); None where no reward is recorded."""
        if self.parts is not None:
            return self.parts["r_success"] == 1
        return None if self.reward is None else self.reward == 1


def of_episode(episode: Episode, task: Task, hints: tuple[Hint, ...]) -> Trajectory:
    """Return a finished episode as a trajectory.

    Raises:
        InputError: the episode failed, or kept no pages.
    """
    where = f"arm {episode.arm}, task {episode.task_id}, sample {episode.sample}"
    detail = episode.reward_detail
    if episode.ending is None:
        raise InputError(
            "the episode has no reward and no end",
            where=where,
            allowed="episodes that came to their end: an error is never a failure of the policy (I20)",
            todo="run the episode again",
        )
    turns = []
    for step in episode.steps:
        if step.observation is None:
            raise InputError(
                f"step {step.step} kept no page",
                where=where,
                allowed="episodes of an arm that keeps its pages",
                todo="roll the arm out again in a new run folder",
            )
        turns.append(
            Turn(step=step.step, page=step.observation, action=step.action, fault=step.fault, feedback=step.feedback)
        )
    return Trajectory(
        trajectory_id=f"t-{episode.identity[:16]}",
        task_id=episode.task_id,
        instruction=task.visible_instruction,
        persona=task.persona,
        hints=hints,
        turns=tuple(turns),
        ending=episode.ending,
        reward=episode.reward,
        parts=None if detail is None else {name: float(getattr(detail, name)) for name in PARTS},
        purchase=episode.purchase,
        checkpoint=episode.model.checkpoint,
        simulated=episode.simulated,
    )


def read_messages(path: Path) -> tuple[Trajectory, ...]:
    """Read trajectories recorded as chat messages with tools, one JSON object a line.

    A line has `trajectory_id`, `messages` in the OpenAI format and, if known, `task_id`, `persona` and `reward`. The
    first user message is the request, every tool call a turn, its answer the page of the next one. Text parts are
    joined by line breaks. Without a `task_id` each trajectory is a task of its own.

    Raises:
        InputError: a line is no such object, its ending is unknown, or only some lines have a reward.
    """
    found = []
    for number, line in enumerate(read_text(path).split("\n"), 1):
        if line.strip():
            found.append(_recorded(parse_json(line, f"{path}, line {number}"), f"{path}, line {number}"))
    names = Counter(trajectory.trajectory_id for trajectory in found)
    repeated = next((name for name, count in names.items() if count > 1), None)
    if repeated is not None:
        raise _unusable(f"trajectory_id {repeated!r} occurs twice", str(path), "each trajectory once")
    without = [trajectory.trajectory_id for trajectory in found if trajectory.reward is None]
    if 0 < len(without) < len(found):
        raise _unusable(
            f"{len(without)} of {len(found)} trajectories have no reward, the first is {without[0]!r}",
            str(path),
            "a reward on every line, or on none",
        )
    return tuple(found)


def instance_of_recording(trajectory: Trajectory) -> Instance:
    """Return the facts of a recording that no text may hold, as far as its pages tell: gold is not known."""
    seen = dict[str, dict[str, None]]()
    for turn in trajectory.turns:
        for name, value in _DETAIL.findall(turn.page):
            seen.setdefault(name, {})[value.strip()] = None
    bought = trajectory.purchase
    persona = () if trajectory.persona is None else map(str, trajectory.persona.values())
    return Instance(
        identifiers=(trajectory.trajectory_id, trajectory.task_id, *seen.get("asin", ())),
        titles=tuple(seen.get("title", ())),
        brands=tuple(seen.get("brand", ())),
        options=() if bought is None else tuple(RequiredOption(*pair) for pair in bought.options.items()),
        numbers=() if bought is None or bought.price.price is None else (bought.price.price,),
        texts=(trajectory.instruction, *persona),
    )


def _recorded(document: Any, where: str) -> Trajectory:
    """Read one line."""
    if not isinstance(document, dict) or not isinstance(document.get("messages"), list):
        raise _unusable("there is no field messages", where, "an object with trajectory_id and messages")
    name = document.get("trajectory_id")
    if not isinstance(name, str) or not name.strip():
        raise _unusable(f"trajectory_id is {name!r}", where, "a text, another on every line")
    _refuse_half_pairs(document, ("trajectory_id",), where)
    where = f"{where}, trajectory {name}"
    _refuse_half_pairs(document, ("task_id", "persona"), where)
    messages = document["messages"]
    instruction = _instruction(messages, where)
    calls = list(_calls(messages, where))
    if not calls:
        raise _unusable("messages has no field tool_calls", where, "assistant messages that call the shop's tools")
    pages = ["", *(answer for _, _, answer in calls)]
    return Trajectory(
        trajectory_id=name,
        task_id=name if document.get("task_id") is None else str(document["task_id"]),
        instruction=instruction,
        persona=_persona(document, where),
        hints=(),
        turns=tuple(
            Turn(step=step, page=page, action=action)
            for step, ((_, action, _), page) in enumerate(zip(calls, pages, strict=False), 1)
        ),
        ending=_ending(calls, where),
        reward=_reward(document, where),
        parts=None,
        purchase=_purchase(pages) if calls[-1][0] == BUY else None,
        checkpoint=None,
        simulated=False,
    )


def _refuse_half_pairs(holder: Mapping[str, Any], fields: Sequence[str], where: str) -> None:
    """Refuse fields with a text, however deep, that no file can hold."""
    for field in fields:
        if _HALF.search(json.dumps(holder.get(field), ensure_ascii=False)):
            raise _unusable(f"{field} holds half a surrogate pair", where, "text that UTF-8 can carry")


def _instruction(messages: Sequence[Any], where: str) -> str:
    """Return the request, all messages checked for what can be read at all."""
    for number, message in enumerate(messages):
        if not isinstance(message, dict):
            raise _unusable("messages holds something else than messages", where, "objects with role and content")
        _refuse_half_pairs(message, ("content", "tool_calls", "tool_call_id"), f"{where}, messages.{number}")
    first = next((number for number, message in enumerate(messages) if message.get("role") == "user"), None)
    said = "" if first is None else _content(messages[first], f"{where}, messages.{first}")
    if not said:
        raise _unusable("messages has no user message with text", where, "the request as the first user message")
    return re.sub(r"^\s*Instruction:\s*", "", said)


def _calls(messages: Sequence[Mapping[str, Any]], where: str) -> Iterator[tuple[str, str, str]]:
    """Yield (tool, action, answer) of every call in order."""
    answers = dict[str, str]()
    for number, message in enumerate(messages):
        if message.get("role") == "tool":
            place = f"{where}, messages.{number}"
            answers[_new_id(message, "tool_call_id", answers, place)] = _content(message, place)
    made = set[str]()
    for place, call in _made(messages, where):
        function = call.get("function") if isinstance(call, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise _unusable("a call has no function with a name", place, "calls as OpenAI writes them")
        name = _new_id(call, "id", made, place)
        made.add(name)
        if name not in answers:
            raise _unusable(f"the call {function['name']} has no answer", place, "a tool message for every call")
        yield function["name"], _action(function, place), answers[name]


def _made(messages: Sequence[Mapping[str, Any]], where: str) -> Iterator[tuple[str, Any]]:
    """Yield (place, call) of every call in order, the call as it was written."""
    for number, message in enumerate(messages):
        calls = message.get("tool_calls")
        if calls is not None and not isinstance(calls, list):
            found = f"tool_calls is a {type(calls).__name__}"
            raise _unusable(found, f"{where}, messages.{number}", "a list of calls, or nothing")
        for index, call in enumerate(calls or ()):
            yield f"{where}, messages.{number}.tool_calls.{index}", call


def _new_id(holder: Mapping[str, Any], field: str, known: Container[str], where: str) -> str:
    """Return the id that a call and its answer share, if it is not known yet."""
    name = holder.get(field)
    if not isinstance(name, str) or not name:
        raise _unusable(f"{field} is {name!r}", where, "a text, the same in a call and its answer")
    if name in known:
        raise _unusable(f"{field} {name!r} occurs twice", where, "another id for every call of a trajectory")
    return name


def _action(function: Mapping[str, Any], where: str) -> str:
    """Return a call as one text: `open_product[788552994965]`, `buy_now`."""
    try:
        arguments = json.loads(function.get("arguments") or "{}")
    except (TypeError, ValueError):
        arguments = None
    if not isinstance(arguments, dict):
        raise _unusable(f"the arguments of {function['name']} are no JSON object", where, "a JSON object as text")
    told = ", ".join(map(str, arguments.values()))
    if _HALF.search(told):
        raise _unusable(
            f"the arguments of {function['name']} hold half a surrogate pair", where, "text that UTF-8 can carry"
        )
    return f"{function['name']}[{told}]" if arguments else str(function["name"])


def _content(message: Mapping[str, Any], where: str) -> str:
    """Return the text of a message, its parts joined by line breaks; empty where there is none."""
    content = message.get("content")
    if content is None or isinstance(content, str):
        return content or ""
    if not isinstance(content, list):
        raise _unusable(f"content is a {type(content).__name__}", where, "a text, or a list of text parts")
    for number, part in enumerate(content):
        if not isinstance(part, dict) or part.get("type") != "text" or not isinstance(part.get("text"), str):
            raise _unusable("content holds a part that is no text", f"{where}.content.{number}", "parts of type text")
    return "\n".join(part["text"] for part in content)


def _persona(document: Mapping[str, Any], where: str) -> dict[str, Any] | None:
    persona = document.get("persona")
    if persona is not None and not isinstance(persona, dict):
        raise _unusable(f"persona is a {type(persona).__name__}", where, "an object, or nothing")
    return persona


def _reward(document: Mapping[str, Any], where: str) -> float | None:
    reward = document.get("reward")
    if reward is None:
        return None
    if isinstance(reward, bool) or not isinstance(reward, int | float) or not 0 <= reward <= 1:
        raise _unusable(f"reward is {reward!r}", where, "a number from 0 to 1, or nothing")
    return float(reward)


def _ending(calls: Sequence[tuple[str, str, str]], where: str) -> str:
    """Return how a recorded episode ended."""
    name, _, answer = calls[-1]
    if name == LEAVE:
        return LEAVE
    if name == BUY and _COMPLETED.search(answer):
        return "purchase"
    found = f"{name}, answered by {answer[:60]!r}"
    raise _unusable(
        f"the ending is unknown: the last call is {found}", where, f"a completed {BUY}, or {LEAVE}, as the last call"
    )


def _purchase(pages: Sequence[str]) -> Purchase | None:
    """Return what was bought, read from the last product page; None where none says it."""
    page = next((page for page in reversed(pages) if re.search("^asin: ", page, re.MULTILINE)), "")
    told = dict(_DETAIL.findall(page))
    try:
        options = json.loads(told.get("selected_options", "{}"))
    except ValueError:
        return None
    if not {"asin", "title"} <= told.keys() or not isinstance(options, dict):
        return None
    price = float(told["price"]) if re.fullmatch(r"\d+(\.\d+)?", told.get("price", "")) else None
    status: Literal["pass", "unverifiable"] = "unverifiable" if price is None else "pass"
    return Purchase(
        asin=told["asin"],
        title=told["title"],
        category=told.get("category", ""),
        options={str(axis): str(value) for axis, value in options.items()},
        price=PriceResolution(status=status, method="price of the last recorded product page", price=price),
    )


def _unusable(found: str, where: str, allowed: str) -> InputError:
    return InputError(found, where=where, allowed=allowed, todo="correct the recording, or leave this line out")
