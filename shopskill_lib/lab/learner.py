"""A simulated trainer: what GRPO groups would do to the simulated shopper's weights, without any weights.

A real policy gradient raises what the better rollouts of a group did. The simulated one knows what a group's text
taught, and moves the shopper's competences instead: pure, deterministic, of no order. Nothing here says how fast a
real model learns.
"""

from collections.abc import Sequence
from typing import NamedTuple

from shopskill_lib.errors import ParameterError
from shopskill_lib.simulated.competences import RAISED, UNTAUGHT, Competences, helped

RATE = 1.4
"""Share of the way from untaught to raised that a competence goes in a round in which every group teaches it.

With the shipped draft at rho 0.6, q 0.2 and 24 groups of 4, about a third of the groups differ in reward: a taught
competence goes half of its way in two rounds and nine tenths in four."""

UNAIDED = 0.1
"""Part of the rate with which groups without any text move every competence."""


class Lesson(NamedTuple):
    """What one GRPO group showed; a full-skill retry is never among its rollouts (I3)."""

    texts: str
    """The hints of the group, as all its rollouts saw them; ``""`` for a skill-free group."""
    rewards: tuple[float, ...]
    """Of its rollouts."""

    @property
    def teaches(self) -> bool:
        """Whether the rewards differ: equal ones have no advantage to follow."""
        return len(set(self.rewards)) > 1


def train(base: Competences, groups: Sequence[Lesson], rate: float = RATE) -> Competences:
    """Return the simulated checkpoint after one round.

    A competence goes up by `rate` times the share of all groups that teach it, in units of its way from untaught to
    raised, and never beyond raised. Advice against it lowers nothing: a policy gradient follows the reward.

    Args:
        base: the checkpoint before, by its competences.
        groups: what was shown and earned; none changes nothing.
        rate: 0 or more.

    Raises:
        ParameterError: a negative rate.
    """
    if not 0 <= rate < float("inf"):
        raise ParameterError(
            f"rate is {rate}", where="simulated training", allowed="a finite rate of 0 or more", todo="correct it"
        )
    taught = [helped(group.texts) for group in groups if group.teaches and group.texts]
    unaided = sum(group.teaches and not group.texts for group in groups)
    counts = {name: sum(name in names for names in taught) for name in Competences._fields}
    steps = {name: rate * (count + UNAIDED * unaided) / max(len(groups), 1) for name, count in counts.items()}
    return Competences(*(_moved(name, getattr(base, name), step) for name, step in steps.items()))


def _moved(name: str, level: float, step: float) -> float:
    """Return a level after a step towards raised, in units of the way from untaught to raised."""
    untaught: float = getattr(UNTAUGHT, name)
    raised: float = getattr(RAISED, name)
    return max(level, min(level + step * (raised - untaught), raised))


def forget(base: Competences, competence: str, level: float) -> Competences:
    """Return a simulated checkpoint that has drifted: one competence at another level.

    It plants a failure mechanism that training brought about, for experiments on later rounds.

    Raises:
        ParameterError: an unknown competence, or a level outside 0 to 1.
    """
    if competence not in Competences._fields or not 0 <= level <= 1:
        raise ParameterError(
            f"{competence!r} is to be at {level}",
            where="simulated drift",
            allowed=f"one of {', '.join(Competences._fields)}, from 0 to 1",
            todo="correct it",
        )
    return base._replace(**{competence: level})
