"""What rollouts return: the episodes of an arm, and what a plan will cost."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd

from shopskill_lib.records import Episode, Usage
from shopskill_lib.spending import Tally

Key = tuple[str, int]
"""Task and sample."""


@dataclass(frozen=True, slots=True)
class RolloutSet:
    """The episodes of one arm.

    Attributes:
        arm: why they were run.
        planned: all keys of the plan, in the order of their ids.
        episodes: key -> the latest attempt that came to its end, else the latest failed one; a key that was never
            tried is absent.
        owed: keys without an end that have attempts left.
        missing: keys without an end whose attempts are exhausted.
    """

    arm: str
    planned: tuple[Key, ...]
    episodes: Mapping[Key, Episode]
    owed: tuple[Key, ...]
    missing: tuple[Key, ...]

    @property
    def scored(self) -> tuple[Episode, ...]:
        """Scored episodes, in the order of their keys."""
        return tuple(episode for episode in self.episodes.values() if episode.status == "scored")

    @property
    def finished(self) -> tuple[Episode, ...]:
        """Episodes that came to their end, scored or not, in the order of their keys."""
        return tuple(episode for episode in self.episodes.values() if episode.finished)

    @property
    def unscored(self) -> tuple[Key, ...]:
        """Keys without an end, owed or missing."""
        return tuple(key for key in self.planned if key in {*self.owed, *self.missing})

    @property
    def mean_reward(self) -> float | None:
        """Mean over the scored episodes alone; None without any. Read it beside their count."""
        rewards = [episode.reward for episode in self.scored if episode.reward is not None]
        return sum(rewards) / len(rewards) if rewards else None

    @property
    def simulated(self) -> bool:
        """Whether any episode rests on a simulated model."""
        return any(episode.simulated for episode in self.episodes.values())

    def to_frame(self) -> pd.DataFrame:
        """Return one row a planned episode."""
        return pd.DataFrame([self._row(key) for key in self.planned], columns=_COLUMNS)

    def _row(self, key: Key) -> dict[str, Any]:
        episode = self.episodes.get(key)
        ended = "owed" if episode is None else episode.status
        state = "owed" if key in self.owed else "missing" if key in self.missing else ended
        row: dict[str, Any] = {"task_id": key[0], "sample": key[1], "arm": self.arm, "state": state}
        if episode is None:
            return row
        detail, usage = episode.reward_detail, episode.usage
        parts = {} if detail is None else {name: getattr(detail, name) for name in _PARTS}
        return (
            row
            | parts
            | {
                "split": episode.split,
                "treatment_id": episode.treatment_id,
                "ending": episode.ending,
                "reward": episode.reward,
                "steps": len(episode.steps),
                "protocol_faults": episode.protocol_faults,
                "invalid_actions": episode.invalid_actions,
                "prompt_tokens": None if usage is None else usage.prompt_tokens,
                "completion_tokens": None if usage is None else usage.completion_tokens,
                "attempt": episode.attempt,
                "error": None if episode.error is None else episode.error.kind,
                "simulated": episode.simulated,
            }
        )

    def summary(self) -> str:
        """Return one paragraph: the mean beside its count, how episodes ended, what is not scored."""
        mean = "no mean" if self.mean_reward is None else f"mean reward {self.mean_reward:.4f}"
        without = len(self.finished) - len(self.scored)
        unscored = f", {without} without a reward" if without else ""
        lines = [
            f"{self.arm}{' (simulated)' if self.simulated else ''}: {mean} over {len(self.scored)} scored of "
            f"{len(self.planned)} episodes{unscored}; {len(self.owed)} owed, {len(self.missing)} missing."
        ]
        endings = [str(episode.ending) for episode in self.finished]
        counts = ", ".join(f"{name} {endings.count(name)}" for name in sorted(set(endings)))
        steps = sum(len(episode.steps) for episode in self.finished)
        faults = sum(episode.protocol_faults for episode in self.finished)
        invalid = sum(episode.invalid_actions for episode in self.finished)
        if endings:
            lines.append(f"Endings: {counts}. Turns {steps}, protocol faults {faults}, invalid actions {invalid}.")
        for word, keys in (("Owed", self.owed), ("Missing", self.missing)):
            if keys:
                lines.append(f"{word}: {', '.join(f'{task}/{sample}' for task, sample in keys)}.")
        return "\n".join(lines)

    def __str__(self) -> str:
        return self.summary()


_PARTS = ("r_type", "r_att", "r_option", "r_price", "r_loose", "r_strict", "r_success")
_COLUMNS = [
    "task_id", "sample", "arm", "split", "treatment_id", "state", "ending", "reward", *_PARTS, "steps",
    "protocol_faults", "invalid_actions", "prompt_tokens", "completion_tokens", "attempt", "error", "simulated",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Forecast:
    """What a plan will ask of the model, as far as the episodes already there can tell.

    Attributes:
        episodes: episodes to run.
        kept: episodes that are there, or in the run they are reused from.
        basis: scored episodes of the same model that the forecast rests on.
        calls: model calls; None when unknown, like all that follows.
        usage: tokens.
        money: their price.
    """

    episodes: int
    kept: int
    basis: int
    calls: int | None
    usage: Usage | None
    money: float | None

    def to_frame(self) -> pd.DataFrame:
        """Return one row."""
        usage = self.usage
        return pd.DataFrame(
            [
                {
                    "episodes": self.episodes,
                    "kept": self.kept,
                    "basis": self.basis,
                    "calls": self.calls,
                    "prompt_tokens": None if usage is None else usage.prompt_tokens,
                    "completion_tokens": None if usage is None else usage.completion_tokens,
                    "money": self.money,
                }
            ]
        )

    def against(self, was: Tally) -> str:
        """Return the forecast beside what came: episodes, calls, tokens, money."""
        tokens = None if self.usage is None else self.usage.prompt_tokens + self.usage.completion_tokens
        return "; ".join(
            (
                _beside("episodes", self.episodes, was.episodes, ",.0f"),
                _beside("calls", self.calls, was.calls, ",.0f"),
                _beside("tokens", tokens, was.tokens, ",.0f"),
                _beside("cost", self.money, was.money, ",.2f"),
            )
        )

    def summary(self) -> str:
        """Return one sentence."""
        calls = "an unknown number of calls" if self.calls is None else f"about {self.calls:,} calls"
        tokens = "unknown tokens"
        if self.usage is not None:
            tokens = f"{self.usage.prompt_tokens:,} prompt and {self.usage.completion_tokens:,} completion tokens"
        money = "unknown" if self.money is None else f"{self.money:,.2f}"
        basis = f" (from {self.basis} episodes)" if self.basis else ""
        return f"{self.episodes} episodes to run, {self.kept} kept: {calls}, {tokens}{basis}, cost {money}."

    def __str__(self) -> str:
        return self.summary()


def _beside(name: str, forecast: float | None, was: float | None, form: str) -> str:
    """Return `calls: forecast 4,000, was 4,320 (+8 %)`; what is not known is said."""
    told = "no forecast" if forecast is None else f"forecast {forecast:{form}}"
    change = f" ({100 * (was / forecast - 1):+.0f} %)" if forecast and was is not None else ""
    return f"{name}: {told}, was {'unknown' if was is None else f'{was:{form}}'}{change}"
