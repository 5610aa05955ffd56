"""Before a run: what a gate of a given size, design and success rate will be able to say (METHOD section 13).

Rewards are taken as 0 or 1 with a probability of the task's own. With w the mean within-task variance of one rollout,
the paired difference of a masked and a bare run has variance 2w, and rows of one task share the bare run's, which is
w / b where b bare runs are averaged. Effects that differ between tasks add to that. M19's covariance follows from the
moments of the masks; nothing is fitted here.
"""

import bisect
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from shopskill_lib import masks
from shopskill_lib.errors import ParameterError
from shopskill_lib.masks import Design
from shopskill_lib.resampling import Rule

FloatArray = NDArray[np.float64]

LEVEL, POWER = 0.05, 0.8
DRAWS = 20_000
DRAWN = 1024
"""Tasks whose masks stand for all masks of a design."""


@dataclass(frozen=True, slots=True)
class Setting:
    """A gate that could be run.

    Attributes:
        versions: number of versions of each slot; K is their sum.
        tasks: number of validation tasks.
        success: mean bare success, in (0, 1).
        between: share of the reward's variance that lies between tasks, in [0, 1): 0 where all tasks are alike, near 1
            where each is always or never solved; the correlation of two rollouts of the same tasks estimates it.
        masked_samples: masked rollouts a task.
        design: of the masks.
        spread: standard deviation over tasks of the effect of a factor, in units of reward; taken alike for all
            factors and unrelated between them.
        bare_samples: bare rollouts a task whose mean is its bare reward; the protocol has one (M18).
    """

    versions: tuple[int, ...]
    tasks: int
    success: float
    between: float
    masked_samples: int = 1
    design: Design = "independent"
    spread: float = 0.0
    bare_samples: int = 1

    def __post_init__(self) -> None:
        """Refuse what no gate can be."""
        paired = self.design in masks.IN_PAIRS
        problems = (
            (not self.versions or min(self.versions) < 1, "versions", "at least one slot with at least one version"),
            (self.tasks < 2, "tasks", "2 or more"),
            (not 0 < self.success < 1, "success", "a share between 0 and 1"),
            (not 0 <= self.between < 1, "between", "a share from 0 and below 1"),
            (not 0 <= self.spread < 1, "spread", "a standard deviation from 0 and below 1"),
            (self.bare_samples < 1, "bare_samples", "1 or more"),
            (self.masked_samples < 1 or (paired and self.masked_samples % 2 == 1), "masked_samples", "at least 1, even "
             "for pairs of masks"),
        )  # fmt: skip
        for wrong, name, allowed in problems:
            if wrong:
                raise ParameterError(
                    f"{name} is {getattr(self, name)!r}", where=name, allowed=allowed, todo="correct it"
                )

    @property
    def rollouts(self) -> int:
        """Masked and bare rollouts together."""
        return self.tasks * (self.masked_samples + self.bare_samples)

    @property
    def draws(self) -> int:
        """Draws of masks a task; a pair is one."""
        return self.masked_samples // 2 if self.design in masks.IN_PAIRS else self.masked_samples

    @property
    def orthogonal(self) -> bool:
        """Whether slots are orthogonal, or nearly so: the products of the masks' columns do not scatter."""
        return self.design in ("balanced", "d_optimal")

    @property
    def fewest_tasks(self) -> int:
        """Tasks below which nothing is predicted: what the design needs, or one draw more than the factors need."""
        if self.orthogonal:
            return masks.fewest_tasks(self.design, self.versions, self.masked_samples)
        return (sum(self.versions) + 1) // self.draws + 1


def mask_moments(versions: Sequence[int]) -> tuple[FloatArray, FloatArray]:
    """Return (K,) means of the mask's columns and (K, K) means of their products, under M17's probabilities."""
    slot = np.repeat(np.arange(len(versions)), versions)
    mean = 1.0 / (np.repeat(versions, versions) + 1.0)
    products = np.outer(mean, mean)
    same = slot[:, None] == slot[None, :]
    products[same] = 0.0
    np.fill_diagonal(products, mean)
    return mean, products


def _count_variance(states: int, setting: Setting) -> float:
    """Return the variance, over tasks, of how often one of a slot's states comes up in a task's masked rollouts."""
    pairs, couples = setting.masked_samples // 2, math.comb(states, 2)
    alone = (states - 1) / states**2
    if setting.design == "independent":
        return setting.masked_samples * alone
    if setting.design == "complementary":
        return pairs * 2 * (states - 2) / states**2
    odd = setting.masked_samples % 2 * alone
    if not pairs:
        return odd
    played = np.array(masks.round_robin(states))
    variances = []
    for start in range(0, couples * pairs, pairs):  # tournaments are independent of each other
        parts = itertools.groupby(range(start, start + pairs), key=lambda deal: deal // couples)
        drawn = [played[[deal % couples for deal in part]] for _, part in parts]
        variances.append(sum(np.bincount(part.ravel(), minlength=states).var() for part in drawn))
    return float(np.mean(variances)) + odd


def _total_products(setting: Setting) -> FloatArray:
    """Return (K, K) means of the products of the columns' sums over a task's masked rollouts."""
    mean, _ = mask_moments(setting.versions)
    slot = np.repeat(np.arange(len(setting.versions)), setting.versions)
    products = np.outer(mean, mean) * setting.masked_samples**2
    for number, count in enumerate(setting.versions):  # the sums of a slot's states add up to masked_samples
        states = count + 1
        spread = (states * np.eye(count) - 1) / (states - 1)
        products[np.ix_(slot == number, slot == number)] += _count_variance(states, setting) * spread
    return products


@cache
def _squared_information(versions: tuple[int, ...], masked_samples: int, design: Design) -> FloatArray:
    """Return the (K, K) variance that effects of spread 1 add to a task's sum of columns times rewards.

    With A the task's sum of products of columns it is the mean of A @ A, here over the masks of `DRAWN` tasks.
    """
    slots = [masks.Slot(str(j), tuple(f"{j}-{k}" for k in range(count))) for j, count in enumerate(versions)]
    shown = masks.assign(0, "plan", [str(task) for task in range(DRAWN)], slots, masked_samples, design).masks
    each = shown.reshape(DRAWN, masked_samples, -1).astype(np.float64)
    information = np.einsum("tik,til->tkl", each, each)
    return np.asarray((information @ information).mean(axis=0))


def covariance(setting: Setting) -> FloatArray:
    """Return the (K, K) covariance of M19's coefficients that a gate will have.

    With few draws of masks the products of their columns scatter, which enlarges variances by draws / (draws - K - 1),
    a pair being one draw; balanced and D-optimal masks do not scatter, and what exchanges gain beyond that is not
    foretold.

    Raises:
        ParameterError: there are too few tasks for the design.
    """
    if setting.tasks < setting.fewest_tasks:
        raise ParameterError(
            f"{setting.tasks} tasks for {sum(setting.versions)} factors under {setting.design} masks, "
            f"{setting.masked_samples} a task",
            where="tasks",
            allowed=f"at least {setting.fewest_tasks}",
            todo="plan more tasks, or fewer chunks",
        )
    mean, products = mask_moments(setting.versions)
    inverse, rows = np.linalg.inv(products), setting.tasks * setting.masked_samples
    within = setting.success * (1 - setting.success) * (1 - setting.between)
    noise = within * (products + _total_products(setting) / (setting.masked_samples * setting.bare_samples))
    if setting.spread:
        uneven = _squared_information(setting.versions, setting.masked_samples, setting.design)
        noise += setting.spread**2 * uneven / setting.masked_samples
    asymptotic = inverse @ noise @ inverse / rows
    draws = setting.tasks * setting.draws
    scatter = 1.0 if setting.orthogonal else draws / (draws - len(mean) - 1)
    return np.asarray(asymptotic * scatter)


def standard_errors(setting: Setting) -> FloatArray:
    """Return the (K,) standard errors of the coefficients."""
    return np.asarray(np.sqrt(np.diag(covariance(setting))))


def detectable(error: float) -> float:
    """Return the effect that a two-sided test at 5 % finds with a probability of 80 %, for this standard error."""
    return float((stats.norm.ppf(1 - LEVEL / 2) + stats.norm.ppf(POWER)) * error)


def tasks_needed(setting: Setting, error: float) -> int:
    """Return the tasks under which no coefficient has a larger standard error, all else as in the setting."""

    def largest(tasks: int) -> float:
        return float(standard_errors(replace(setting, tasks=tasks)).max())

    low = high = setting.fewest_tasks
    while largest(high) > error:
        low, high = high, 2 * high
    return bisect.bisect_left(range(high), True, lo=low, key=lambda tasks: largest(tasks) <= error)


@dataclass(frozen=True, slots=True)
class Expectation:
    """What the rule of M21-M22 will do on average.

    Attributes:
        selected: factors that are selected; `false` those among them without a positive effect.
        found: probability that a factor with a positive effect is selected; NaN without such a factor.
        gain: sum of the true effects of the selected; `possible` that of the best set within the budget.
        claimed: sum of their estimates: what a reader of the gate will believe.
    """

    selected: float
    false: float
    found: float
    gain: float
    possible: float
    claimed: float


def expect(setting: Setting, effects: FloatArray, rule: Rule, seed: int = 0) -> Expectation:
    """Apply the actual rule to estimates drawn around (K,) true effects with the setting's covariance."""
    rng = np.random.default_rng(seed)
    drawn = rng.multivariate_normal(effects, covariance(setting), size=DRAWS, method="eigh")
    chosen, helping = rule(drawn)[1], effects > 0
    return Expectation(
        selected=float(chosen.sum(axis=1).mean()),
        false=float(chosen[:, ~helping].sum(axis=1).mean()),
        found=float(chosen[:, helping].mean()) if helping.any() else float("nan"),
        gain=float((chosen @ effects).mean()),
        possible=float(effects[rule(effects[None, :])[1][0]].sum()),
        claimed=float((chosen * drawn).sum(axis=1).mean()),
    )
