import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import stats
from statsmodels.stats.contingency_tables import mcnemar
from statsmodels.stats.multitest import multipletests

from shopskill_lib.checks import exact_mcnemar, missingness, worst_case_bounds


def test_mcnemar_by_hand() -> None:
    """Five discordant pairs, one gained: P(at most 1 or at least 4 of 5) = (1 + 5 + 5 + 1) / 32."""
    assert exact_mcnemar(1, 4) == exact_mcnemar(4, 1) == pytest.approx(12 / 32, abs=1e-12)
    assert exact_mcnemar(0, 6) == pytest.approx(2 / 64, abs=1e-12)
    assert exact_mcnemar(3, 3) == pytest.approx(1, abs=1e-12)
    assert exact_mcnemar(0, 0) == 1


@given(st.integers(0, 60), st.integers(0, 60))
def test_mcnemar_agrees_with_statsmodels(gained: int, lost: int) -> None:
    reference = mcnemar([[9, gained], [lost, 9]], exact=True).pvalue if gained + lost else 1.0
    assert exact_mcnemar(gained, lost) == pytest.approx(reference, abs=1e-10)


def lost_pairs() -> tuple[NDArray[np.bool_], NDArray[np.bool_], NDArray[np.int64]]:
    """Sixty pairs; masked episodes mostly missing where the first of five factors is shown."""
    rng = np.random.default_rng(4)
    masks = rng.integers(0, 2, (60, 5))
    masked = (masks[:, 0] == 1) & (rng.random(60) < 0.4)
    bare = rng.random(60) < 0.1
    return masked, bare, masks


def test_missing_episodes_are_counted_by_arm() -> None:
    masked = np.array([True, True, True, False, False, False])
    bare = np.array([True, False, False, True, False, False])
    found = missingness(masked, bare, np.array([[1], [0], [1], [0], [1], [0]]))
    assert (found.masked_only, found.bare_only, found.both) == (2, 1, 1)
    assert found.arms_p_value == pytest.approx(1)


def test_mask_tests_are_fishers_adjusted_by_holm() -> None:
    masked, bare, masks = lost_pairs()
    single = [
        stats.fisher_exact(
            [[(masked & on).sum(), (~masked & on).sum()], [(masked & ~on).sum(), (~masked & ~on).sum()]]
        ).pvalue
        for on in (masks == 1).T
    ]
    found = missingness(masked, bare, masks)
    assert found.mask_p_values == pytest.approx(multipletests(single, method="holm")[1], abs=1e-12)
    assert found.mask_p_values[0] < 0.05 < found.mask_p_values[1:].min()
    assert found.mask_p_values.max() <= 1


def test_fisher_by_hand() -> None:
    """Both missing episodes among the 3 shown of 6: C(3,2) / C(6,2) on each side, 2 * 3 / 15."""
    masked = np.array([True, True, False, False, False, False])
    masks = np.array([[1], [1], [1], [0], [0], [0]])
    assert missingness(masked, np.zeros(6, dtype=bool), masks).mask_p_values == pytest.approx([0.4], abs=1e-12)


def test_missing_bare_episodes_do_not_follow_a_mask() -> None:
    """The bare run is not shown any mask: only masked episodes are tested against the factors."""
    _, bare, masks = lost_pairs()
    assert (missingness(np.zeros(60, dtype=bool), bare, masks).mask_p_values == 1).all()


def test_worst_case_bounds_by_brute_force() -> None:
    """Least squares at every corner of the unknown rewards: the extremes are the bounds."""
    rng = np.random.default_rng(0)
    masked, bare, masks = rng.random(12), rng.random(12), rng.integers(0, 2, (12, 3))
    masked[[1, 5, 7]] = bare[[5, 9]] = np.nan
    unknown = np.concatenate([np.isnan(masked), np.isnan(bare)])
    coefficients = []
    for corner in itertools.product([0.0, 1.0], repeat=int(unknown.sum())):
        filled = np.concatenate([masked, bare])
        filled[unknown] = corner
        coefficients.append(np.linalg.lstsq(masks.astype(float), filled[:12] - filled[12:])[0])
    low, high = worst_case_bounds(masked, bare, masks)
    assert low == pytest.approx(np.min(coefficients, axis=0), abs=1e-12)
    assert high == pytest.approx(np.max(coefficients, axis=0), abs=1e-12)
    assert (low < high).all()


def test_bounds_without_missing_rewards_are_the_coefficients() -> None:
    masks = np.array([[1, 0], [0, 1], [1, 1]])
    masked, bare = np.array([1.0, 0.5, 1]), np.array([0.0, 0, 0.25])
    low, high = worst_case_bounds(masked, bare, masks)
    assert low == pytest.approx(np.linalg.lstsq(masks.astype(float), masked - bare)[0], abs=1e-12)
    assert high == pytest.approx(low, abs=1e-12)
