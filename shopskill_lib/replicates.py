"""Rollouts of one task under one treatment that differ in their seeds alone: do they say anything new?"""

import itertools
from collections.abc import Iterable
from dataclasses import dataclass

from shopskill_lib.records import Episode

DEPENDENT = 0.9
"""Share of identical pairs from which replicates are called dependent: sampling seldom repeats whole episodes."""

FEWEST = 3
"""Pairs below which nothing is said."""


@dataclass(frozen=True, slots=True)
class Replicates:
    """Pairs of replicates.

    Attributes:
        pairs: pairs of scored episodes of equal task and treatment text, and of different seeds.
        identical: those that are alike turn by turn, in actions, faults and completion tokens.
        cold: whether all were sampled at temperature 0.
    """

    pairs: int
    identical: int
    cold: bool

    @property
    def share(self) -> float | None:
        """Share of identical pairs; None without pairs."""
        return self.identical / self.pairs if self.pairs else None

    @property
    def note(self) -> str:
        """A sentence where replicates are not independent; "" where they may be, or too few tell."""
        if self.share is None or self.pairs < FEWEST or self.share < DEPENDENT:
            return ""
        found = (
            f"replicates are not independent: {self.identical} of {self.pairs} pairs of rollouts of one task and one "
        )
        found += "prompt under different seeds are identical turn by turn"
        if self.cold:
            return f"{found}, as is to be expected at temperature 0, where a replicate repeats the first rollout"
        return f"{found}, so the server ignores seeds or answers from a cache, or this model hardly varies"


def compare(episodes: Iterable[Episode]) -> Replicates:
    """Compare all pairs of scored episodes that differ in their seeds alone.

    Args:
        episodes: of any arms; those that failed are passed over.
    """
    groups: dict[object, dict[int, Episode]] = {}
    for episode in episodes:
        if episode.status == "scored":
            model, shop = episode.model.model_dump_json(), tuple(sorted(episode.shop.items()))
            same = (episode.task_id, episode.treatment_sha256, model, episode.prompts_sha256, shop)
            groups.setdefault(same, {}).setdefault(episode.seeds.episode_seed, episode)
    pairs = [pair for group in groups.values() for pair in itertools.combinations(group.values(), 2)]
    return Replicates(
        pairs=len(pairs),
        identical=sum(_course(one) == _course(other) for one, other in pairs),
        cold=all(one.model.temperature == 0 for one, _ in pairs),
    )


def _course(episode: Episode) -> list[tuple[str | None, str | None, int | None]]:
    """Return an episode turn by turn."""
    return [
        (step.action, step.fault, None if step.usage is None else step.usage.completion_tokens)
        for step in episode.steps
    ]
