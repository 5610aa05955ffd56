"""Checks on missing pairs (METHOD M20): arrays in, findings out."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import stats

FloatArray = NDArray[np.float64]
BoolArray = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Missingness:
    """Exact tests of how pairs went missing.

    Attributes:
        masked_only: pairs whose masked episode alone is missing; `bare_only` and `both` likewise.
        arms_p_value: exact McNemar test that both arms miss equally often.
        mask_p_values: (K,) Fisher exact tests that a masked episode's absence is independent of each factor,
            adjusted by Holm over the K factors, because a sound run must not fail for having many of them.
    """

    masked_only: int
    bare_only: int
    both: int
    arms_p_value: float
    mask_p_values: FloatArray


def missingness(masked_missing: BoolArray, bare_missing: BoolArray, masks: NDArray[np.int64]) -> Missingness:
    """Test (n,) missing flags of both arms against each other and against the (n, K) masks."""
    masked_only = int((masked_missing & ~bare_missing).sum())
    bare_only = int((bare_missing & ~masked_missing).sum())
    tables = [
        [[int((missing & shown).sum()) for missing in (masked_missing, ~masked_missing)] for shown in (on, ~on)]
        for on in (masks == 1).T
    ]
    return Missingness(
        masked_only=masked_only,
        bare_only=bare_only,
        both=int((masked_missing & bare_missing).sum()),
        arms_p_value=exact_mcnemar(masked_only, bare_only),
        mask_p_values=holm(np.array([stats.fisher_exact(table).pvalue for table in tables])),
    )


def exact_mcnemar(gained: int, lost: int) -> float:
    """Two-sided exact McNemar p-value of two discordant counts; 1 when there are none."""
    if gained + lost == 0:
        return 1.0
    return float(stats.binomtest(gained, gained + lost).pvalue)


def holm(p_values: FloatArray) -> FloatArray:
    """Adjust p-values for their number by Holm's step-down procedure (Holm 1979)."""
    order = np.argsort(p_values)
    steps = p_values[order] * np.arange(len(p_values), 0, -1)
    adjusted = np.empty_like(p_values)
    adjusted[order] = np.minimum(np.maximum.accumulate(steps), 1.0)
    return adjusted


def worst_case_bounds(masked: FloatArray, bare: FloatArray, masks: NDArray[np.int64]) -> tuple[FloatArray, FloatArray]:
    """Bound every M19 coefficient over all rewards in [0, 1] that missing episodes could have had.

    Args:
        masked: (n,) masked rewards, NaN where missing.
        bare: (n,) bare rewards, NaN where missing.
        masks: (n, K) assigned masks of all pairs, full rank.

    Returns:
        (K,) lowest and (K,) highest coefficients: least squares is linear in the differences.
    """
    low = np.where(np.isnan(masked), 0.0, masked) - np.where(np.isnan(bare), 1.0, bare)
    high = np.where(np.isnan(masked), 1.0, masked) - np.where(np.isnan(bare), 0.0, bare)
    weights = np.linalg.pinv(masks.astype(np.float64))
    positive, negative = np.clip(weights, 0.0, None), np.clip(weights, None, 0.0)
    return positive @ low + negative @ high, positive @ high + negative @ low
