"""What every shop offers: one protocol, so that an agent does not know which shop it is in."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from shopskill_lib.errors import InputError
from shopskill_lib.records import Ending, Feedback, ObservationState, Product, Purchase, RewardDetail, Task


@dataclass(frozen=True, slots=True)
class StepResult:
    """What the shop answers to an action."""

    observation_text: str
    """The page as the policy reads it."""
    state: ObservationState
    """The page as data."""
    feedback: Feedback | None
    """What became of the action; None on the first page and after ``end``."""
    done: bool
    reward: float | None
    """``r_strict`` once the episode is done, None before, and in a shop whose rewards cannot be mapped (`unscored`)."""
    reward_detail: RewardDetail | None
    """Of the reward; None without one."""
    purchase: Purchase | None
    """What was bought, None unless the episode ended by a purchase."""
    ending: Ending | None = None
    """How it ended; None before."""


class Session(Protocol):
    """One episode in a shop; used by one thread at a time."""

    @property
    def current(self) -> StepResult:
        """The latest answer; on a fresh session the home page."""
        ...

    def step(self, action: str) -> StepResult:
        """Carry out ``search[query]`` or ``click[value]``; what cannot be done is answered, not raised."""
        ...

    def end(self, reason: Ending) -> StepResult:
        """End the episode without a purchase, with reward 0 (M3)."""
        ...

    def close(self) -> None:
        """Leave the session and whatever it holds."""
        ...


def refuse_ended(session: Session, task: Task) -> None:
    """Refuse an action after the end of an episode."""
    if session.current.done:
        raise InputError(
            "the episode has ended",
            where=f"task {task.task_id}",
            allowed="actions before the end",
            todo="start another with reset",
        )


class Shop(Protocol):
    """A catalogue that can be searched and bought from; its sessions may run on many threads."""

    @property
    def fingerprint(self) -> Mapping[str, str | int]:
        """Everything about the shop that a result depends on, by name."""
        ...

    @property
    def unscored(self) -> str:
        """Why no reward of this shop can be used; "" where its rewards can."""
        ...

    @property
    def note(self) -> str:
        """What every result that rests on this shop must say beside it; "" for nothing."""
        ...

    def reset(self, task: Task) -> Session:
        """Start an episode on its home page."""
        ...

    def inspect(self, asin: str) -> Product:
        """Return a product by its id. Privileged: never offered to a policy (M11)."""
        ...

    def close(self) -> None:
        """Release the shop."""
        ...
