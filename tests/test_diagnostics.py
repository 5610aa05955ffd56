"""Checks of the model: statsmodels as reference, planted faults that must be found, and masks that forbid a check."""

import json
import math

import numpy as np
import pytest
import statsmodels.api as sm
from numpy.typing import NDArray

from shopskill_lib.diagnostics import Diagnostics, diagnose

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

K = 6
NAMES = [f"f{k}" for k in range(K)]


def pairs(n: int, seed: int = 0, shift: float = 0.0, together: float = 0.0) -> tuple[FloatArray, FloatArray, IntArray]:
    """Return bounded outcomes of both arms over tasks of their own difficulty, and random masks."""
    rng = np.random.default_rng(seed)
    masks = rng.integers(0, 2, (n, K))
    base = rng.beta(2, 2, n)
    bare = base + 0.1 * rng.normal(size=n)
    masked = base + shift + masks @ np.linspace(-0.05, 0.05, K) + together * masks[:, 1] * masks[:, 4]
    return masked + 0.1 * rng.normal(size=n), bare, masks


def checked(masked: FloatArray, bare: FloatArray, masks: IntArray, slots: list[str] | None = None) -> Diagnostics:
    return diagnose(masked, bare, masks, np.arange(len(masks)), NAMES, slots or NAMES)


def test_every_figure_is_that_of_statsmodels() -> None:
    masked, bare, masks = pairs(200)
    found = checked(masked, bare, masks)
    ones = np.ones((200, 1))
    constant = sm.OLS(masked - bare, np.hstack([masks, ones])).fit(cov_type="HC3", use_t=True)
    assert found.intercept is not None
    assert found.intercept.estimate == pytest.approx(constant.params[-1], abs=1e-10)
    assert found.intercept.error == pytest.approx(constant.bse[-1], abs=1e-10)
    assert found.intercept.p_value == pytest.approx(constant.pvalues[-1], abs=1e-10)
    paired = sm.OLS(masked - bare, masks).fit(cov_type="HC3", use_t=True)
    assert found.intercept.shifts == pytest.approx(paired.params - constant.params[:-1], abs=1e-10)
    adjusted = sm.OLS(masked, np.hstack([masks, ones, bare[:, None]])).fit(cov_type="HC3", use_t=True)
    assert found.covariate is not None
    assert found.covariate.slope == pytest.approx(adjusted.params[-1], abs=1e-10)
    assert found.covariate.errors_paired == pytest.approx(paired.bse.mean(), abs=1e-10)
    assert found.covariate.errors_adjusted == pytest.approx(adjusted.bse[:K].mean(), abs=1e-10)
    first = found.interactions[0]
    i, j = (NAMES.index(name) for name in first.factors)
    product = sm.OLS(masked - bare, np.column_stack([masks, masks[:, i] * masks[:, j]])).fit(cov_type="HC3", use_t=True)
    assert first.estimate == pytest.approx(product.params[-1], abs=1e-10)
    assert first.p_holm == pytest.approx(min(1.0, product.pvalues[-1] * math.comb(K, 2)), rel=1e-6)
    assert len(found.interactions) == math.comb(K, 2)


def test_a_shift_between_the_arms_is_found_and_its_leak_is_named() -> None:
    masked, bare, masks = pairs(4000, shift=0.2)
    found = checked(masked, bare, masks).intercept
    assert found is not None
    assert found.p_value < 1e-6
    assert found.shifts == pytest.approx(np.full(K, 2 * 0.2 / (K + 1)), abs=0.02)  # 2c / (K + 1)
    assert "more than the factors explain" in found.sentence()


def test_two_factors_that_help_only_together_stand_first() -> None:
    found = checked(*pairs(1500, together=0.15))
    assert found.interactions[0].factors == ("f1", "f4")
    assert found.interactions[0].p_holm < 0.001
    assert "1 of 15 pairs" in str(found)
    assert "none of 15 pairs is told apart from 0 (median error 0.0" in str(checked(*pairs(1500, seed=1)))


def test_a_sound_gate_seldom_raises_an_alarm() -> None:
    alarms = np.zeros(2)
    for seed in range(60):
        found = checked(*pairs(150, seed))
        assert found.intercept is not None
        alarms += [found.intercept.p_value <= 0.05, found.interactions[0].p_holm <= 0.05]
    assert (alarms <= 3 + 3 * math.sqrt(60 * 0.05 * 0.95)).all()


def test_versions_of_one_slot_have_no_interaction() -> None:
    masked, bare, masks = pairs(200)
    found = checked(masked, bare, masks, ["a", "a", "b", "b", "c", "c"])
    assert len(found.interactions) == math.comb(6, 2) - 3


def test_checks_that_the_masks_forbid_are_said_to_be_missing() -> None:
    masked, bare, masks = pairs(200)
    masks[:, 1] = 1 - masks[:, 0]  # old + new = 1: a constant has no value of its own
    found = checked(masked, bare, masks)
    assert found.intercept is None
    assert found.covariate is None
    assert "nothing is known of a shift" in str(found)
    assert json.loads(json.dumps(found.to_json(), allow_nan=False))["intercept"] is None
