"""Coefficients judged together: scipy and statsmodels as references, closed forms, simulation with known effects."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import stats
from statsmodels.stats.multitest import multipletests

from shopskill_lib.inference import Inference, infer, max_t, shrink

FloatArray = NDArray[np.float64]


def judged(params: FloatArray, covariance: FloatArray, draws: int = 2000, seed: int = 0) -> Inference:
    rng = np.random.default_rng(seed)
    errors = np.sqrt(np.diag(covariance))
    drawn = rng.multivariate_normal(params, covariance, size=draws)
    return infer(params, covariance, 2 * stats.norm.sf(np.abs(params / errors)), drawn)


@given(st.lists(st.floats(0.0, 1.0), min_size=1, max_size=20))
def test_adjusted_p_values_are_those_of_statsmodels(pvalues: list[float]) -> None:
    p = np.array(pvalues)
    found = infer(np.zeros(len(p)), np.eye(len(p)), p, np.zeros((2, len(p))))
    assert found.holm == pytest.approx(multipletests(p, method="holm")[1], abs=1e-10)
    assert found.bh == pytest.approx(multipletests(p, method="fdr_bh")[1], abs=1e-10)


def test_the_critical_value_of_independent_factors_is_sidaks() -> None:
    deviations = np.random.default_rng(0).normal(size=(400_000, 16)) * np.arange(1, 17)
    sidak = stats.norm.ppf((1 + 0.95 ** (1 / 16)) / 2)
    assert max_t(deviations, np.arange(1.0, 17.0)) == pytest.approx(sidak, abs=0.01)


def test_a_factor_without_error_leaves_the_others_their_interval() -> None:
    deviations = np.column_stack([np.zeros(1000), np.random.default_rng(0).normal(size=1000)])
    assert max_t(deviations, np.array([0.0, 1.0])) == pytest.approx(np.quantile(np.abs(deviations[:, 1]), 0.95))
    assert max_t(np.zeros((10, 2)), np.zeros(2)) == 0.0


def test_equal_errors_shrink_by_the_closed_form() -> None:
    params, variance = np.array([0.08, -0.02, 0.05, 0.0, -0.06]), 0.02**2
    found = shrink(params, variance * np.eye(5))
    tau2 = np.mean(params**2) - variance
    assert found.tau == pytest.approx(np.sqrt(tau2), rel=1e-5)
    assert found.params == pytest.approx(tau2 / (tau2 + variance) * params, rel=1e-5)
    for end in (found.tau_low, found.tau_high):
        assert deviance(end, params, variance) - deviance(found.tau, params, variance) == pytest.approx(
            stats.chi2.ppf(0.95, 1), abs=1e-6
        )


def deviance(tau: float, params: FloatArray, variance: float) -> float:
    return float(-2 * stats.norm.logpdf(params, scale=np.sqrt(variance + tau**2)).sum())


def test_correlated_errors_shrink_as_the_multivariate_normal_says() -> None:
    rng = np.random.default_rng(3)
    root = rng.normal(size=(6, 6))
    covariance, params = 0.01 * root @ root.T / 6 + 0.002 * np.eye(6), rng.normal(size=6) * 0.2
    found = shrink(params, covariance)
    heights = [
        stats.multivariate_normal.logpdf(params, cov=covariance + tau**2 * np.eye(6))
        for tau in (found.tau * 0.97, found.tau, found.tau * 1.03)
    ]
    assert heights[1] == max(heights)
    total = covariance + found.tau**2 * np.eye(6)
    assert found.params == pytest.approx(found.tau**2 * np.linalg.solve(total, params), rel=1e-8)


def test_no_more_spread_than_noise_shrinks_to_nothing() -> None:
    found = shrink(np.array([0.01, -0.012, 0.009]), 0.04**2 * np.eye(3))
    assert found.params.tolist() == [0.0, 0.0, 0.0]
    assert (found.tau, found.tau_low) == (0.0, 0.0)
    assert found.tau_high > 0
    assert shrink(np.zeros(3), np.zeros((3, 3))).tau_high == 0.0


def test_labels_follow_the_sign_where_the_adjusted_p_value_is_small() -> None:
    found = judged(np.array([0.2, -0.2, 0.02]), 0.03**2 * np.eye(3))
    assert found.labels == ("keep", "drop", "undecided")
    assert found.simultaneous[:, 0] == pytest.approx(np.array([0.2, -0.2, 0.02]) - found.critical * 0.03)


@pytest.mark.parametrize(
    "effects", [np.zeros(16), np.array([0.1] * 3 + [-0.08] * 2 + [0.0] * 11)], ids=["none", "five"]
)
def test_false_labels_stay_below_their_rate(effects: FloatArray) -> None:
    rng, error = np.random.default_rng(11), 0.035
    shares = []
    for _ in range(600):
        params = effects + error * rng.normal(size=16)
        labels = np.array(judged(params, error**2 * np.eye(16), draws=100).labels)
        called = labels != "undecided"
        false = called & (np.where(labels == "keep", 1, -1) * effects <= 0)
        shares.append(false.sum() / max(called.sum(), 1))
    assert np.mean(shares) <= 0.05 + 3 * np.std(shares) / np.sqrt(len(shares))


def test_shrinking_brings_estimates_and_sums_of_selected_nearer_to_the_truth() -> None:
    rng, error = np.random.default_rng(12), 0.035
    squares, bias = np.zeros(2), np.zeros(2)
    for _ in range(600):
        effects = 0.02 * rng.normal(size=16)
        params = effects + error * rng.normal(size=16)
        shrunken = shrink(params, error**2 * np.eye(16)).params
        for k, values in enumerate((params, shrunken)):
            squares[k] += np.sum((values - effects) ** 2)
            bias[k] += np.sum((values - effects)[params > 0])
    assert squares[1] < squares[0] / 2
    assert abs(bias[1]) < bias[0] / 2
