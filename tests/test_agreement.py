"""Predicted against measured gains: scipy and statsmodels as outside references, resamples written out as data."""

import numpy as np
import pytest
import statsmodels.api as sm
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from shopskill_lib import agreement, resampling
from shopskill_lib.agreement import FloatArray, IntArray


def rows(seed: int, tasks: int = 20, each: int = 3) -> tuple[FloatArray, FloatArray, IntArray]:
    """Predictions with ties, gains of few values, tasks of their own difficulty."""
    rng = np.random.default_rng(seed)
    task = np.repeat(np.arange(tasks), each)
    predicted = rng.integers(-3, 4, len(task)) / 10
    gains = np.round(predicted + 0.3 * rng.normal(size=tasks)[task] + 0.3 * rng.normal(size=len(task)), 1)
    return predicted, gains, task


def written_out(values: FloatArray, tasks: IntArray, weights: FloatArray) -> FloatArray:
    """Rows as often as their task was drawn."""
    return np.repeat(values, weights[tasks].astype(int))


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10_000), st.integers(4, 15), st.integers(1, 3))
def test_rank_correlations_of_every_resample_are_scipys_on_the_rows_written_out(
    seed: int, tasks: int, each: int
) -> None:
    predicted, gains, task = rows(seed, tasks, each)
    weights = next(resampling.task_weights(tasks, 5, seed))
    spearman, kendall = agreement._WeightedRanks(predicted, gains, task)(weights)
    for number, counts in enumerate(weights):
        x, y = (written_out(values, task, counts) for values in (predicted, gains))
        if np.ptp(x) > 0 and np.ptp(y) > 0:
            assert spearman[number] == pytest.approx(stats.spearmanr(x, y).statistic)
            assert kendall[number] == pytest.approx(stats.kendalltau(x, y).statistic)
        else:
            assert np.isnan(spearman[number]) and np.isnan(kendall[number])


def test_masks_agree_as_scipy_says_with_intervals_over_whole_tasks() -> None:
    predicted, gains, task = rows(1, 60)
    found = agreement.of_masks(predicted, gains, task, 500, 0)
    assert found.spearman.value == pytest.approx(stats.spearmanr(predicted, gains).statistic)
    assert found.kendall.value == pytest.approx(stats.kendalltau(predicted, gains).statistic)
    weights = np.concatenate(list(resampling.task_weights(60, 500, 0)))
    drawn = [stats.kendalltau(*(written_out(v, task, w) for v in (predicted, gains))).statistic for w in weights]
    assert (found.kendall.low, found.kendall.high) == pytest.approx(tuple(np.quantile(drawn, [0.025, 0.975])))
    assert found.rows == 180 and found.lost == 0
    assert found.excess.value == pytest.approx(float(np.mean(gains - predicted)))


@pytest.mark.parametrize("shift", [0.0, -5.0])
@pytest.mark.parametrize("each", [1, 3])
def test_the_slope_is_statsmodels_clustered_by_task(shift: float, each: int) -> None:
    """HC3 where every task has one row, as everywhere here; the sign of the predictions changes nothing."""
    predicted, gains, task = rows(2, 40, each)
    found = agreement.slope(predicted + shift, gains, task)
    fit = sm.OLS(gains, sm.add_constant(predicted + shift)).fit()
    robust = fit.get_robustcov_results(
        *(["HC3"] if each == 1 else ["cluster"]), use_t=True, **({} if each == 1 else {"groups": task})
    )
    assert found.value == pytest.approx(robust.params[1])
    assert (found.low, found.high) == pytest.approx(tuple(robust.conf_int()[1]))


def test_sets_agree_as_scipy_says_on_their_means() -> None:
    rng = np.random.default_rng(3)
    predicted = np.array([0.4, -0.2, 0.1, 0.1, 0.3])
    gains = np.round(predicted + rng.normal(0, 0.5, (30, 5)), 1)
    found = agreement.of_sets(predicted, gains, 300, 0)
    assert found.spearman.value == pytest.approx(stats.spearmanr(predicted, gains.mean(axis=0)).statistic)
    assert found.kendall.value == pytest.approx(stats.kendalltau(predicted, gains.mean(axis=0)).statistic)
    means = resampling.bootstrap_means(gains, 300, 0).round(12)  # equal means stay equal
    drawn = [stats.spearmanr(predicted, row).statistic for row in means]
    assert (found.spearman.low, found.spearman.high) == pytest.approx(tuple(np.quantile(drawn, [0.025, 0.975])))
    fit = sm.OLS(gains.ravel(), sm.add_constant(np.tile(predicted, 30))).fit()
    robust = fit.get_robustcov_results("cluster", groups=np.repeat(np.arange(30), 5), use_t=True)
    assert (found.slope.low, found.slope.high) == pytest.approx(tuple(robust.conf_int()[1]))


def test_a_difference_has_an_interval_over_tasks_and_sets() -> None:
    """Rows and columns in proportion to the exact variance of the two-way bootstrap."""
    rng = np.random.default_rng(4)
    values = rng.normal(0, 1, (50, 1)) + rng.normal(0, 1, (1, 8)) + rng.normal(0, 1, (50, 8))
    found = agreement.difference(values, 20_000, 0)
    assert found.value == pytest.approx(values.mean())
    task, cell = values.mean(axis=1).var() / 50, values.var() / (50 * 8)
    error = np.sqrt(task + values.mean(axis=0).var() / 8 + cell - task / 8 - values.mean(axis=0).var() / 50 / 8)
    assert found.low is not None and found.high is not None
    assert (found.high - found.low) / (2 * 1.96) == pytest.approx(error, rel=0.08)
    one = agreement.difference(values[:, :1], 20_000, 0)
    plain = resampling.percentile_interval(resampling.bootstrap_means(values[:, :1], 20_000, 0))
    assert (one.low, one.high) == pytest.approx(plain), "one set: over tasks alone"
    assert found.high - found.low > 1.3 * np.diff(resampling.percentile_interval(rng.normal(0, task**0.5, 9999)))[0]


def test_without_a_ranking_there_is_no_correlation_but_a_reason() -> None:
    gains, task = rows(5)[1:]
    flat = agreement.of_masks(np.full(60, 0.2), gains, task, 100, 0)
    assert (flat.spearman.value, flat.kendall.value, flat.slope.value) == (None, None, None)
    assert flat.spearman.reason == flat.slope.reason == "all predicted gains are equal"
    assert str(flat.kendall) == "none (all predicted gains are equal)"
    still = agreement.of_masks(rows(5)[0], np.zeros(60), task, 100, 0)
    assert still.spearman.reason == "all measured gains are equal"
    assert still.slope.value == pytest.approx(0.0)
    two = agreement.of_sets(np.array([1.0, 0.0]), np.ones((9, 2)), 100, 0)
    assert two.spearman.reason == "fewer than three to compare"


def test_resamples_without_a_correlation_are_counted() -> None:
    """One task of five makes all the difference: where it is not drawn, nothing is."""
    gains = np.array([0.0, 0.0, 0.0, 0.0, 1.0])
    found = agreement.of_masks(np.arange(5.0), gains, np.arange(5), 400, 0)
    weights = np.concatenate(list(resampling.task_weights(5, 400, 0)))
    gone = [np.ptp(gains[w > 0]) == 0 for w in weights]
    assert found.lost == sum(gone) > 100


def test_quantiles_by_hand() -> None:
    predicted = np.array([0.1, 0.1, 0.2, 0.3, 0.4, 0.5])
    gains = np.array([0.0, 1.0, 0.5, 0.0, 1.0, 1.0])
    table = agreement.quantiles(predicted, gains, np.array([0, 1, 0, 1, 0, 1]), 200, 0, parts=3)
    assert table["masks"].tolist() == [2, 2, 2]
    assert table["predicted"].tolist() == pytest.approx([0.1, 0.25, 0.45])
    assert table["measured"].tolist() == pytest.approx([0.5, 0.25, 1.0])
    assert (table["ci_low"].iloc[2], table["ci_high"].iloc[2]) == (1.0, 1.0)
    assert (table["ci_low"].iloc[0], table["ci_high"].iloc[0]) == (0.0, 1.0)
    same = agreement.quantiles(np.zeros(6), gains, np.arange(6), 200, 0)
    assert same["masks"].tolist() == [6], "equal predictions stay together"


@pytest.mark.parametrize("truth", [1.0, 0.4])
def test_slopes_and_rank_correlations_cover_their_truth(truth: float) -> None:
    """Simulated: gains of 300 tasks follow `truth` times the prediction; intervals of 95 % in 100 repetitions."""
    inside = []
    for seed in range(100):
        rng = np.random.default_rng(seed)
        task = np.repeat(np.arange(150), 2)
        predicted = rng.normal(0, 0.12, 300)
        gains = truth * predicted + 0.3 * rng.normal(size=150)[task] + 0.3 * rng.normal(size=300)
        found = agreement.slope(predicted, gains, task)
        assert found.low is not None and found.high is not None
        inside.append(found.low <= truth <= found.high)
    assert 0.89 <= np.mean(inside) <= 0.99
