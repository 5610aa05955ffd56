"""Trials of a failure audit, and the program's own verdict whether one of them is a repair (M6, M7).

A divergence is told by its step: the first turn that should have been different. The repair of step n therefore
begins after n - 1 replayed turns, or fewer, and never later.
"""

from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass, field
from typing import Any

from shopskill_lib.records import Product, Task
from shopskill_lib.shops.embedded import parse_action
from shopskill_lib.shops.protocol import Session, Shop, StepResult
from shopskill_lib.text import is_han, key, tokens, words
from shopskill_lib.trajectories import Trajectory


@dataclass(slots=True)
class Trial:
    """One visit to the shop: recorded turns replayed, then the analyst's own actions.

    Attributes:
        number: from 1.
        after_steps: turns of the trajectory that were replayed.
        differs_at: first turn whose page was not the recorded one; None when all were the same.
        actions: the analyst's own actions.
        feedback: the shop's reason code for each.
        pages: page before each of them.
    """

    number: int
    after_steps: int
    differs_at: int | None
    session: Session
    actions: list[str] = field(default_factory=list)
    feedback: list[str | None] = field(default_factory=list)
    pages: list[str] = field(default_factory=list)

    @property
    def same_pages(self) -> bool:
        """Whether the replay showed what was recorded."""
        return self.differs_at is None

    @property
    def current(self) -> StepResult:
        """The latest answer of the shop."""
        return self.session.current

    @property
    def success(self) -> bool:
        """Whether it ended with everything met."""
        detail = self.current.reward_detail
        return detail is not None and detail.r_success == 1

    @property
    def record(self) -> dict[str, Any]:
        """The trial as the audit keeps it."""
        bought, detail = self.current.purchase, self.current.reward_detail
        return {
            "trial": self.number,
            "after_steps": self.after_steps,
            "differs_at": self.differs_at,
            "actions": [list(pair) for pair in zip(self.actions, self.feedback, strict=True)],
            "done": self.current.done,
            "reward": self.current.reward,
            "r_success": None if detail is None else detail.r_success,
            "purchase": None if bought is None else bought.model_dump(mode="json"),
        }


class Trials:
    """The trials of one audit, one open at a time. A purchase ends its trial only (M6)."""

    def __init__(self, shop: Shop, task: Task, trajectory: Trajectory) -> None:
        self._shop, self._task, self._trajectory = shop, task, trajectory
        self.all: list[Trial] = []

    @property
    def open(self) -> Trial | None:
        """The trial that goes on; None before the first and after the end of the latest."""
        return self.all[-1] if self.all and not self.all[-1].current.done else None

    @property
    def environment_fault(self) -> bool:
        """Whether a replayed page was not the recorded one."""
        return not all(trial.same_pages for trial in self.all)

    def replay(self, steps: int) -> Trial:
        """Open a fresh trial and carry out the first recorded turns.

        Args:
            steps: how many, from 0 to one less than all.

        Raises:
            InfrastructureError: the shop failed.
        """
        self.close()
        session, differs = self._shop.reset(self._task), list[int]()
        for turn in self._trajectory.turns[: steps + 1]:
            if session.current.done or session.current.observation_text != turn.page:
                differs.append(turn.step)
            if turn.step <= steps and turn.action is not None and not session.current.done:
                session.step(turn.action)
        self.all.append(Trial(len(self.all) + 1, steps, differs[0] if differs else None, session))
        return self.all[-1]

    def act(self, action: str) -> Trial:
        """Carry out an action in the open trial."""
        trial = self.all[-1]
        trial.pages.append(trial.current.observation_text)
        feedback = trial.session.step(action).feedback
        trial.actions.append(action)
        trial.feedback.append(None if feedback is None else feedback["reason"])
        return trial

    def close(self) -> None:
        """Leave the open trial; what it did stays known."""
        if self.all:
            self.all[-1].session.close()


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the program says of a claimed repair.

    Attributes:
        repaired: whether it is one.
        why: the reason, for the audit.
        actions: actions from the divergence to the end; None when it is none.
    """

    repaired: bool
    why: str
    actions: int | None = None


def judge(
    trials: Sequence[Trial], claimed: int | None, divergence: int, trajectory: Trajectory, gold: Product
) -> Verdict:
    """Say whether a claimed trial is a repair that a shopper who cannot see gold could have made (M7).

    Args:
        trials: all trials of the audit.
        claimed: number of the trial; None when none is claimed.
        divergence: step from which the trajectory should have been different.
        trajectory: the failed trajectory.
        gold: the gold product.
    """
    trial = next((trial for trial in trials if trial.number == claimed), None)
    if trial is None:
        return Verdict(False, f"there is no trial {claimed}" if claimed is not None else "no trial is claimed")
    if trial.after_steps >= divergence:
        return Verdict(False, f"the trial begins after turn {trial.after_steps}, the divergence is turn {divergence}")
    if not trial.success or not trial.actions:
        return Verdict(False, "the trial did not end with everything met")
    replaced = trajectory.turns[trial.after_steps].action
    if replaced is not None and key(replaced) == key(trial.actions[0]):
        return Verdict(False, f"the trial repeats what was done at turn {trial.after_steps + 1}")
    hidden = _hidden_in(trial, trajectory, gold)
    if hidden:
        return Verdict(False, f"a query uses words that only the gold product shows: {', '.join(hidden)}")
    return Verdict(True, f"trial {trial.number} met everything", len(trial.actions))


def _hidden_in(trial: Trial, trajectory: Trajectory, gold: Product) -> list[str]:
    """Return words of the trial's queries that came from gold: in its listing, and nowhere the shopper could look."""
    listing = (gold.asin, gold.title, gold.brand, gold.shop, *gold.attributes, gold.description)
    secret = _tokens(listing)
    told = (trajectory.instruction, str(trajectory.persona or ""), *(hint.text for hint in trajectory.hints))
    seen = _tokens((*told, *(turn.page for turn in trajectory.turns[: trial.after_steps + 1])))
    found = list[str]()
    for action, page in zip(trial.actions, trial.pages, strict=True):
        seen |= _tokens((page,))
        verb, query = parse_action(action)
        if verb == "search":
            found.extend(hidden_words(query, secret, seen))
    return list(dict.fromkeys(found))


def hidden_words(query: str, secret: Set[str], seen: Set[str]) -> list[str]:
    """Return the search tokens of a query that are secret and not seen.

    Two seen Han words written without a space meet in a token of their own, which tells nothing: a token between
    two seen ones of the same run counts as seen.
    """
    found = []
    for word in words(query):
        pieces = tokens(word)
        shown = [piece in seen for piece in pieces]
        for place, piece in enumerate(pieces):
            met = is_han(piece[0]) and 0 < place < len(pieces) - 1 and shown[place - 1] and shown[place + 1]
            if piece in secret and not shown[place] and not met:
                found.append(piece)
    return found


def _tokens(texts: Iterable[str]) -> set[str]:
    return {token for text in texts for token in tokens(text)}
