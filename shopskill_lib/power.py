"""Before a run: what a gate of a given size, design and success rate will be able to say (METHOD section 13).

Rewards are taken as 0 or 1 with a probability of the task's own. With w the mean within-task variance of one rollout,
the paired difference of a masked and a bare run has variance 2w, and rows of one task share the bare run's. M19's
covariance follows from the first two moments of the masks; nothing is fitted here.
"""

import bisect
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from shopskill_lib.errors import ParameterError
from shopskill_lib.masks import Design
from shopskill_lib.resampling import Rule

FloatArray = NDArray[np.float64]

LEVEL, POWER = 0.05, 0.8
DRAWS = 20_000


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
    """

    versions: tuple[int, ...]
    tasks: int
    success: float
    between: float
    masked_samples: int = 1
    design: Design = "independent"

    def __post_init__(self) -> None:
        """Refuse what no gate can be."""
        paired = self.design == "complementary"
        problems = (
            (not self.versions or min(self.versions) < 1, "versions", "at least one slot with at least one version"),
            (self.tasks < 2, "tasks", "2 or more"),
            (not 0 < self.success < 1, "success", "a share between 0 and 1"),
            (not 0 <= self.between < 1, "between", "a share from 0 and below 1"),
            (self.masked_samples < 1 or (paired and self.masked_samples % 2 == 1), "masked_samples", "at least 1, even "
             "for complementary masks"),
        )  # fmt: skip
        for wrong, name, allowed in problems:
            if wrong:
                raise ParameterError(
                    f"{name} is {getattr(self, name)!r}", where=name, allowed=allowed, todo="correct it"
                )

    @property
    def rollouts(self) -> int:
        """Masked and bare rollouts together."""
        return self.tasks * (self.masked_samples + 1)


def mask_moments(versions: Sequence[int]) -> tuple[FloatArray, FloatArray]:
    """Return (K,) means of the mask's columns and (K, K) means of their products, under M17's probabilities."""
    slot = np.repeat(np.arange(len(versions)), versions)
    mean = 1.0 / (np.repeat(versions, versions) + 1.0)
    products = np.outer(mean, mean)
    same = slot[:, None] == slot[None, :]
    products[same] = 0.0
    np.fill_diagonal(products, mean)
    return mean, products


def _partner_products(versions: Sequence[int], design: Design) -> FloatArray:
    """Return (K, K) means of a column in the first mask of a pair times a column in its second, symmetrical."""
    mean, _ = mask_moments(versions)
    products = np.outer(mean, mean)
    if design == "complementary":
        slot = np.repeat(np.arange(len(versions)), versions)
        states = np.repeat(versions, versions) + 1.0
        same = slot[:, None] == slot[None, :]
        products[same] = (1.0 / (states * (states - 1.0)))[:, None].repeat(len(mean), axis=1)[same]
        np.fill_diagonal(products, 0.0)
    return products


def covariance(setting: Setting) -> FloatArray:
    """Return the (K, K) covariance of M19's coefficients that a gate will have.

    Left out is what the effects themselves add. With few draws of masks the products of their columns scatter, which
    enlarges errors by about K / draws; a complementary pair is one draw.

    Raises:
        ParameterError: there are no more draws of masks than factors.
    """
    mean, products = mask_moments(setting.versions)
    K, draws = len(mean), setting.tasks * setting.masked_samples // (2 if setting.design == "complementary" else 1)
    if draws <= K + 1:
        raise ParameterError(
            f"{draws} draws of masks for {K} factors",
            where="tasks",
            allowed=f"more than {K + 1}",
            todo="plan more tasks, or fewer chunks",
        )
    within = setting.success * (1 - setting.success) * (1 - setting.between)
    samples = setting.masked_samples
    independent = np.outer(mean, mean)
    partner = _partner_products(setting.versions, setting.design)
    paired = 1 if setting.design == "complementary" else 0
    shared = products + paired * partner + (samples - 1 - paired) * independent
    inverse = np.linalg.inv(products)
    asymptotic = within * inverse @ (products + shared) @ inverse / (setting.tasks * samples)
    return np.asarray(asymptotic * draws / (draws - K - 1))


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

    high = sum(setting.versions) + 3
    while largest(2 * high) > error:
        high *= 2
    return bisect.bisect_left(range(2 * high), True, lo=high // 2 + 2, key=lambda tasks: largest(tasks) <= error)


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
