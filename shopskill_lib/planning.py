"""What to buy: designs and sizes of a gate side by side, with what each will be able to say (METHOD section 13)."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import get_args

import numpy as np
import pandas as pd

from shopskill_lib import power, selection
from shopskill_lib.errors import ParameterError
from shopskill_lib.masks import IN_PAIRS, Design
from shopskill_lib.pilots import Cost
from shopskill_lib.power import Setting
from shopskill_lib.sources import Intervention

DESIGNS: tuple[tuple[Design, int], ...] = (
    ("independent", 1),
    ("independent", 2),
    ("complementary", 2),
    ("balanced", 2),
    ("balanced", 4),
    ("d_optimal", 3),
)
"""Designs that are compared, with their masked rollouts a task; the first is the reference."""

SIZES = (100, 200, 400, 800, 1600)

CURVE = tuple(range(200, 2101, 100))
"""Masked rollouts of the 20 points of a curve."""

SAMPLES = (1, 2, 3, 4, 8)
"""Masked rollouts a task that a budget may be split into."""

FEW_TASKS = 50
"""Tasks of a split at least: so few have been seen to keep the coverage of intervals with task-clustered errors."""


@dataclass(frozen=True, slots=True)
class Question:
    """What a user knows and wants before a gate.

    Attributes:
        success: mean bare success, as a share.
        between: share of the reward's variance between tasks.
        chunks: slots with one version; `rewrites` further slots that have two.
        effect: effect of a helping chunk, in units of reward.
        helping: number of chunks that help by that much; the others do nothing.
        budget: K of the rule; None for min(10, slots).
        error: standard error that is wanted.
        spread: standard deviation over tasks of a chunk's effect; as large as the effect where half of the tasks have
            twice of it and the others nothing.
    """

    success: float
    between: float
    chunks: int
    rewrites: int = 0
    effect: float = 0.05
    helping: int = 4
    budget: int | None = None
    error: float = 0.03
    spread: float = 0.05

    def __post_init__(self) -> None:
        """Refuse what cannot be asked."""
        factors = self.chunks + 2 * self.rewrites
        problems = (
            (min(self.chunks, self.rewrites) < 0 or not 1 <= factors <= 16, "chunks", "1 to 16 factors in all (M16)"),
            (not 0 < self.effect < 1, "effect", "a gain of reward between 0 and 1"),
            (not 0 <= self.helping <= self.chunks, "helping", f"0 to {self.chunks}, the chunks of one version"),
            (not 0 < self.error < 1, "error", "a standard error between 0 and 1"),
        )
        for wrong, name, allowed in problems:
            if wrong:
                raise ParameterError(
                    f"{name} is {getattr(self, name)!r}", where=name, allowed=allowed, todo="correct it"
                )

    def __str__(self) -> str:
        return (
            f"{self.helping} of {sum(self.versions)} factors help by {self.effect:+g} (assumed), spread over tasks "
            f"{self.spread:g}, wanted standard error {self.error:g}"
        )

    @property
    def versions(self) -> tuple[int, ...]:
        """Versions of each slot."""
        return (1,) * self.chunks + (2,) * self.rewrites

    @property
    def effects(self) -> power.FloatArray:
        """(K,) effects: the helping chunks first, the others 0."""
        return np.where(np.arange(sum(self.versions)) < self.helping, self.effect, 0.0)

    @property
    def rule(self) -> selection.Rule:
        """The rule of M21-M22 on these factors."""
        items = [
            Intervention(f"slot{slot}-{version}", f"slot{slot}", "candidate" if version else "draft", order=slot)
            for slot, count in enumerate(self.versions)
            for version in range(count)
        ]
        return selection.Rule(items, selection.resolve_budget(self.budget, len(self.versions))[0])

    def setting(self, tasks: int, design: Design, masked_samples: int) -> Setting:
        """Return a gate of this size and design."""
        return Setting(self.versions, tasks, self.success, self.between, masked_samples, design, self.spread)


def compare(question: Question, sizes: Sequence[int] = SIZES, cost: Cost | None = None) -> pd.DataFrame:
    """Return one row a design and number of masked rollouts: errors, what can be seen, what the rule will do.

    With a cost, what each row takes; "unknown" where that is not known.
    """
    rows = []
    for masked in sizes:
        for design, samples in DESIGNS:
            setting = question.setting(masked // samples, design, samples)
            error = float(power.standard_errors(setting).max())
            expected = power.expect(setting, question.effects, question.rule)
            rows.append(
                {
                    "masked rollouts": masked,
                    "design": f"{design}, {samples} a task",
                    "tasks": setting.tasks,
                    "all rollouts": setting.rollouts,
                    "std error": round(error, 4),
                    "detectable": round(power.detectable(error), 3),
                    "P(helping selected)": round(expected.found, 3),
                    "useless selected": round(expected.false, 2),
                    "true gain": round(expected.gain, 3),
                    "claimed gain": round(expected.claimed, 3),
                    **_taken(setting, cost),
                }
            )
    return pd.DataFrame(rows).set_index(["masked rollouts", "design"])


def _taken(setting: Setting, cost: Cost | None) -> dict[str, str]:
    """Return tokens and money of a gate as text."""
    if cost is None:
        return {}
    counts = setting.tasks * setting.bare_samples, setting.tasks * setting.masked_samples
    tokens, money = cost.tokens(*counts), cost.money(*counts)
    return {
        "tokens": "unknown" if tokens is None else f"{tokens:,}",
        "money": "unknown" if money is None else f"{money:,.2f}",
    }


def allocate(
    question: Question, rollouts: int, bare_samples: Sequence[int] = (1,), cost: Cost | None = None
) -> pd.DataFrame:
    """Return one row a way to split a budget between tasks and rollouts a task, the smallest error first.

    Errors are the largest over factors; splits of fewer than `FEW_TASKS` tasks, or fewer than a design needs, are
    left out, and D-optimal pairs, which nothing foretells to be better than balanced ones.

    Args:
        question: what is known and wanted.
        rollouts: bare and masked together.
        bare_samples: bare rollouts a task, whose mean all masked ones of the task are paired with; the protocol has
            one (M18), more are theory.
        cost: what a rollout takes; None for a table without it.

    Raises:
        ParameterError: no split has enough tasks.
    """
    rows = []
    for design, samples, bare in product(get_args(Design), SAMPLES, bare_samples):
        tasks = rollouts // (samples + bare)
        if tasks < FEW_TASKS or design in (IN_PAIRS if samples % 2 else ("d_optimal",)):
            continue
        setting = replace(question.setting(tasks, design, samples), bare_samples=bare)
        if tasks < setting.fewest_tasks:
            continue
        error = float(power.standard_errors(setting).max())
        rows.append(
            {
                "design": design,
                "masked a task": samples,
                "bare a task": bare,
                "tasks": tasks,
                "masked rollouts": tasks * samples,
                "all rollouts": setting.rollouts,
                "std error": error,
                "detectable": power.detectable(error),
                **_taken(setting, cost),
            }
        )
    if not rows:
        raise ParameterError(
            f"rollouts is {rollouts}",
            where="rollouts",
            allowed=f"at least {2 * FEW_TASKS}: {FEW_TASKS} tasks, each bare and masked once",
            todo="plan more rollouts",
        )
    return pd.DataFrame(rows).sort_values("std error", ignore_index=True).round(4)


def cheapest(question: Question) -> list[Setting]:
    """Return the gate of each design that reaches the wanted error, the fewest rollouts first."""
    needed = []
    for design, samples in DESIGNS:
        setting = question.setting(2 * sum(question.versions) + 10, design, samples)
        needed.append(replace(setting, tasks=power.tasks_needed(setting, question.error)))
    return sorted(needed, key=lambda setting: setting.rollouts)


def recommend(question: Question, cost: Cost | None = None) -> str:
    """Say which design reaches the wanted error with the fewest rollouts, what the others need, and the YAML for it."""
    best, *others = cheapest(question)
    rest = "; ".join(f"{_told(setting)}, {setting.rollouts} rollouts" for setting in others)
    taken = "".join(f", {name} {value}" for name, value in _taken(best, cost).items())
    lines = [f"n_val: {best.tasks}", f"masked_samples: {best.masked_samples}", f"mask_design: {best.design}"]
    lines += [] if question.budget is None else [f"budget: {question.budget}"]
    return "\n".join(
        [
            f"For a standard error of {question.error:g}: {_told(best)}, {best.rollouts} rollouts{taken}. "
            f"Otherwise: {rest}.",
            "Lines for a YAML of parameters:",
            *(f"  {line}" for line in lines),
        ]
    )


def _told(setting: Setting) -> str:
    return f"{setting.design} masks, {setting.masked_samples} a task: {setting.tasks} tasks"
