"""Trajectories as analysts read them, of this workbench's episodes or recorded elsewhere, and their facts."""

import re
from collections.abc import Iterator
from typing import Any

from shopskill_lib.errors import InputError
from shopskill_lib.firewall import Instance
from shopskill_lib.records import Episode, Hint, Purchase, Record, RequiredOption, Task
from shopskill_lib.shops.embedded import parse_action
from shopskill_lib.shops.separated import read_separated

PARTS = ("r_type", "r_att", "r_option", "r_price", "r_loose", "r_strict", "r_success")
"""Parts of the reward that do not rest on gold's identity (M5)."""

LEAVE = "finish_without_purchase"
"""Ending of a recorded episode that was left without buying."""

DETAIL = re.compile(r"^(asin|title|brand|category|price|selected_options): (.+)$", re.MULTILINE)
"""Lines of a product page of environment ``shopsimulator-environment-v2.1``."""


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


def instance_of_recording(trajectory: Trajectory) -> Instance:
    """Return the facts of a recording that no text may hold, as far as its pages tell: gold is not known."""
    seen = dict[str, dict[str, None]]()
    for turn in trajectory.turns:
        for name, value in (*DETAIL.findall(turn.page), *_separated_facts(turn)):
            seen.setdefault(name, {})[value.strip()] = None
    bought = trajectory.purchase
    told = () if bought is None else (bought.asin, bought.title)
    persona = () if trajectory.persona is None else map(str, trajectory.persona.values())
    return Instance(
        identifiers=(trajectory.trajectory_id, trajectory.task_id, *dict.fromkeys((*told[:1], *seen.get("asin", ())))),
        titles=tuple(dict.fromkeys((*told[1:], *seen.get("title", ())))),
        brands=tuple(seen.get("brand", ())),
        options=() if bought is None else tuple(RequiredOption(*pair) for pair in bought.options.items()),
        numbers=() if bought is None or bought.price.price is None else (bought.price.price,),
        texts=(trajectory.instruction, *persona),
    )


def _separated_facts(turn: Turn) -> Iterator[tuple[str, str]]:
    """Yield what a page of ``[SEP]`` nodes tells: the product that is opened there, or the one it shows."""
    page = read_separated(turn.page)
    if page is None:
        return
    clicked = parse_action(turn.action or "")[1].strip().casefold()
    yield from (("asin", row.asin) for row in page.listed if row.asin.casefold() == clicked)
    yield from ((name, value) for name, value in (("title", page.title), ("brand", page.shop)) if value)
