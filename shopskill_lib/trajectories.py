"""Trajectories as analysts read them: of this workbench's episodes, or recorded elsewhere as chat messages."""

from typing import Any

from shopskill_lib.errors import InputError
from shopskill_lib.records import Episode, Hint, Purchase, Record, Task

PARTS = ("r_type", "r_att", "r_option", "r_price", "r_loose", "r_strict", "r_success")
"""Parts of the reward that do not rest on gold's identity (M5)."""


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
        """Whether it met everything; None where no reward is recorded."""
        return None if self.parts is None else self.parts["r_success"] == 1


def of_episode(episode: Episode, task: Task, hints: tuple[Hint, ...]) -> Trajectory:
    """Return a scored episode as a trajectory.

    Raises:
        InputError: the episode is not scored, has an ending of another kind, or kept no pages.
    """
    where = f"arm {episode.arm}, task {episode.task_id}, sample {episode.sample}"
    detail = episode.reward_detail
    if episode.reward is None or detail is None or episode.ending is None:
        raise InputError(
            "the episode has no reward",
            where=where,
            allowed="scored episodes: an error is never a failure of the policy (I20)",
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
        parts={name: float(getattr(detail, name)) for name in PARTS},
        purchase=episode.purchase,
        checkpoint=episode.model.checkpoint,
        simulated=episode.simulated,
    )
