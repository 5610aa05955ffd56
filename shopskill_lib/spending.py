"""What a run has spent, from the lines of its model calls, and what it may spend, checked as calls come in."""

import threading
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

from shopskill_lib.errors import Interrupted, SetupError
from shopskill_lib.jsonl import read_lines
from shopskill_lib.records import ModelCall, Usage

CALLS = "calls.jsonl"
"""What each model call cost, one line each; in the run folder, and in that of every online round."""

PROBE = "probe"
"""Stage of the calls that look at a model before anything is bought of it."""

REPLIES = ("call", "fault")
"""Outcomes of a call that are always paid for. A refusal has no tokens, and neither has an error."""


@dataclass(frozen=True, slots=True)
class Tally:
    """What calls cost, as far as it is known.

    Attributes:
        episodes: attempts at episodes.
        calls: calls to models.
        prompt_tokens: of the calls whose server counts.
        completion_tokens: of the calls whose server counts.
        priced: money, of the calls with a price.
        untold: replies without token counts.
        unpriced: replies without a price.
    """

    episodes: int = 0
    calls: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    priced: float = 0.0
    untold: int = 0
    unpriced: int = 0

    @property
    def tokens(self) -> int | None:
        """Prompt and completion; None when they are unknown for any reply."""
        return None if self.untold else self.prompt_tokens + self.completion_tokens

    @property
    def money(self) -> float | None:
        """None when it is unknown for any reply."""
        return None if self.unpriced else self.priced

    def __add__(self, other: "Tally") -> "Tally":
        """Add up."""
        return Tally(*(getattr(self, name) + getattr(other, name) for name in self.__slots__))

    def __sub__(self, earlier: "Tally") -> "Tally":
        """Return what has come since."""
        return Tally(*(getattr(self, name) - getattr(earlier, name) for name in self.__slots__))

    def __str__(self) -> str:
        tokens = "unknown tokens" if self.tokens is None else f"{self.tokens:,} tokens"
        money = "unknown cost" if self.money is None else f"cost {self.money:,.2f}"
        return f"{self.calls:,} calls, {tokens}, {money}"

    @classmethod
    def of_call(cls, outcome: str, usage: Usage | None, money: float | None) -> Self:
        """Return one call."""
        replied = outcome in REPLIES
        return cls(
            calls=1,
            prompt_tokens=0 if usage is None else usage.prompt_tokens,
            completion_tokens=0 if usage is None else usage.completion_tokens,
            priced=money or 0.0,
            untold=int(replied and usage is None),
            unpriced=int(replied and money is None),
        )


def total(tallies: Iterable[Tally]) -> Tally:
    """Add up."""
    return sum(tallies, Tally())


def spent(run_dir: Path) -> dict[tuple[str, str], Tally]:
    """Return what all processes so far have spent: (stage, ``policy`` or ``author``) -> tally, by name.

    Raises:
        InputError: a damaged line.
    """
    tallies: dict[tuple[str, str], Tally] = defaultdict(Tally)
    attempts: dict[tuple[str, str], set[tuple[object, ...]]] = defaultdict(set)
    for path in run_dir.rglob(CALLS):
        for call in read_lines(path, ModelCall.model_validate_json):
            group = (call.stage, "policy" if call.role == "policy" else "author")
            tallies[group] += Tally.of_call(call.outcome, call.usage, call.money)
            if call.role == "policy" and call.stage != PROBE:
                attempts[group].add((path, call.arm, call.task_id, call.sample, call.attempt))
    return {group: tallies[group] + Tally(episodes=len(attempts[group])) for group in sorted(tallies)}


def by_model(run_dir: Path) -> dict[str, Tally]:
    """Return what all processes so far have spent on ``policy`` and ``author``, probes aside."""
    groups = [(who, tally) for (stage, who), tally in spent(run_dir).items() if stage != PROBE]
    return {name: total(tally for who, tally in groups if who == name) for name in ("policy", "author")}


class Purse:
    """What a run may spend on all its models; told of every call by the models, asked before every piece of work."""

    def __init__(self, run_dir: Path, tokens: int | None = None, money: float | None = None) -> None:
        """Count what was spent before.

        Args:
            run_dir: the run folder.
            tokens: most tokens, prompt and completion; None for any number.
            money: most money, in the currency of the prices; None for any sum.

        Raises:
            SetupError: what was spent before is not known, so that no budget can be kept.
        """
        self._tokens, self._money = tokens, money
        self._spent = total(spent(run_dir).values())
        self._lock = threading.Lock()
        self._refuse_unknown()

    @property
    def spent(self) -> Tally:
        """What all processes have spent so far, calls under way aside; it counts no episodes."""
        return replace(self._spent, episodes=0)

    @property
    def reached(self) -> bool:
        """Whether nothing more may be begun."""
        return _reached(self._tokens, self._spent.tokens) or _reached(self._money, self._spent.money)

    def pay(self, outcome: str, usage: Usage | None, money: float | None) -> None:
        """Count a call, on any thread."""
        with self._lock:
            self._spent += Tally.of_call(outcome, usage, money)

    def check(self) -> None:
        """Let a further piece of work begin, or not.

        Raises:
            Interrupted: the budget is reached; what is under way is finished and kept.
            SetupError: a reply came without token counts or without a price, and a budget depends on them.
        """
        self._refuse_unknown()
        if self.reached:
            limits = ((self._tokens, "{:,} tokens"), (self._money, "cost {:,.2f}"))
            budget = " and ".join(form.format(limit) for limit, form in limits if limit is not None)
            raise Interrupted(
                f"the budget of {budget} is reached: {self._spent}",
                where="budget",
                allowed="stopping at any time: what was under way has been finished and kept",
                todo="repeat the same call with a larger budget to go on",
            )

    def _refuse_unknown(self) -> None:
        """Refuse a budget of something that is not known: what nobody counted is not nothing."""
        problems = (
            (self._tokens is not None, self._spent.untold, "token counts", "--budget-tokens"),
            (self._money is not None, self._spent.unpriced, "a price", "--budget-usd"),
        )
        for kept, unknown, lacking, option in problems:
            if kept and unknown:
                raise SetupError(
                    f"{unknown} replies came without {lacking}, so that this budget cannot be kept",
                    where=option,
                    allowed="servers that tell the tokens of every reply; for money also policy_price and author_price",
                    todo="go on without this option, or set the server up to send usage; what was finished is kept",
                )


def _reached(most: float | None, spent: float | None) -> bool:
    """Tell whether a limit, where there is one, has been spent."""
    return most is not None and spent is not None and spent >= most
