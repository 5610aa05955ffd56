"""Do the 95 % intervals hold the truth in 95 % of experiments? The full table is in docs/statistics.md."""

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from shopskill_lib import checks, ols

EFFECTS = np.array([0.04, 0.03, 0.02, -0.02, -0.015, *[0.0] * 11])
PAIRS, REPETITIONS = 400, 1000
NAMES = [f"factor_{k:02d}" for k in range(len(EFFECTS))]


def gates(rng: np.random.Generator, number: int) -> tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.float64]]:
    """(number, pairs, ...) masks, masked and bare rewards.

    Tasks differ: their bare success is Beta(0.4, 0.6), moved so far from 0 and 1 that no effect is clipped.
    """
    low, high = -EFFECTS.clip(max=0).sum(), 1 - EFFECTS.clip(min=0).sum()
    shape = (number, PAIRS)
    base = low + (high - low) * rng.beta(0.4, 0.6, shape)
    masks = rng.integers(0, 2, (*shape, len(EFFECTS)))
    return masks, (rng.random(shape) < base + masks @ EFFECTS).astype(float), (rng.random(shape) < base).astype(float)


@pytest.fixture(scope="module")
def covered() -> NDArray[np.bool_]:
    """(2, repetitions, factors): whether the HC3 interval, and one from raw masked rewards, held the effect."""
    masks, masked, bare = gates(np.random.default_rng(20260901), REPETITIONS)
    rows = np.arange(PAIRS)
    found = np.empty((2, REPETITIONS, len(EFFECTS)), dtype=bool)
    for repetition, shown in enumerate(masks):
        for kind, outcome in enumerate((masked[repetition] - bare[repetition], masked[repetition])):
            ends = ols.fit(outcome, shown, NAMES, rows).conf_int()
            found[kind, repetition] = (ends[:, 0] <= EFFECTS) & (ends[:, 1] >= EFFECTS)
    return found


def test_hc3_intervals_hold_planted_and_null_effects(covered: NDArray[np.bool_]) -> None:
    """Over 16,000 intervals the error of a share is 0.002; over the 5,000 of planted effects 0.003."""
    for share in (covered[0].mean(), covered[0][:, EFFECTS != 0].mean(), covered[0][:, EFFECTS == 0].mean()):
        assert 0.93 <= share <= 0.97


def test_no_single_factor_is_off(covered: NDArray[np.bool_]) -> None:
    """Each of 16 counts of 1,000 lies where a true coverage between 0.93 and 0.97 would put it."""
    low, _ = stats.binom.ppf([1e-4, 1 - 1e-4], REPETITIONS, 0.93)
    _, high = stats.binom.ppf([1e-4, 1 - 1e-4], REPETITIONS, 0.97)
    counts = covered[0].sum(axis=0)
    assert low <= counts.min() <= counts.max() <= high


def test_the_check_can_fail(covered: NDArray[np.bool_]) -> None:
    """Without the bare arm the no-intercept model is wrong, and its intervals miss the truth."""
    assert covered[1].mean() < 0.93


@pytest.mark.parametrize(("follows", "holds"), [("nothing", True), ("failure", True), ("failure of a skill", False)])
def test_intervals_of_complete_pairs_when_a_tenth_is_missing(follows: str, holds: bool) -> None:
    """Losses that follow skill and outcome lie, and the mask test says so; others cost precision (M20)."""
    rng = np.random.default_rng(20261201)
    first, refused = [], []
    for number, (masks, masked, bare) in enumerate(zip(*gates(rng, 300), strict=True)):
        weight = {"nothing": np.ones(PAIRS), "failure": 1 - masked, "failure of a skill": (1 - masked) * masks[:, 0]}
        gone = rng.random(PAIRS) < 0.1 * weight[follows] / weight[follows].mean()
        kept = ~gone
        low, high = ols.fit((masked - bare)[kept], masks[kept], NAMES, np.arange(kept.sum())).conf_int().T
        first.append(low[0] <= EFFECTS[0] <= high[0])
        if number < 40:
            refused.append(checks.missingness(gone, np.zeros(PAIRS, dtype=bool), masks).mask_p_values.min() < 0.05)
    share = np.mean(first)
    assert (0.91 < share < 0.985) == holds  # the error of a share of 300 is 0.013
    assert np.mean(refused) < 0.15 if holds else all(refused)
