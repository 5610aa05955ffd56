from types import SimpleNamespace

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from shopskill_lib import resampling
from shopskill_lib.errors import ParameterError
from shopskill_lib.resampling import (
    bca_interval,
    bootstrap_coefficients,
    bootstrap_means,
    coefficient_intervals,
    percentile_interval,
    refuse_draws,
    stability,
    task_weights,
)
from shopskill_lib.selection import Rule
from shopskill_lib.sources import Intervention

FloatArray = NDArray[np.float64]


def example(n: int = 40, seed: int = 0) -> tuple[FloatArray, NDArray[np.int64]]:
    rng = np.random.default_rng(seed)
    return rng.integers(-1, 2, n).astype(float), rng.integers(0, 2, (n, 2))


def test_weights_of_a_resample_sum_to_the_number_of_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resampling, "CHUNK_CELLS", 70)  # blocks of 10 resamples, the last one shorter
    blocks = list(task_weights(7, 25, seed=0))
    assert [block.shape for block in blocks] == [(10, 7), (10, 7), (5, 7)]
    weights = np.concatenate(blocks)
    assert (weights.sum(axis=1) == 7).all()
    assert weights.min() == 0


def test_weights_are_multinomial() -> None:
    weights = np.concatenate(list(task_weights(5, 20_000, seed=0)))
    expected = stats.binom.pmf(np.arange(6), 5, 1 / 5) * weights.size
    observed = np.bincount(weights.astype(int).ravel(), minlength=6)
    assert stats.chisquare(observed[:4], expected[:4] * observed[:4].sum() / expected[:4].sum()).pvalue > 1e-4
    assert np.corrcoef(weights[:, 0], weights[:, 1])[0, 1] == pytest.approx(-1 / 4, abs=0.03)


def test_the_same_seed_gives_the_same_bytes_and_another_does_not() -> None:
    delta, masks = example()
    one, same, other = (bootstrap_coefficients(delta, masks, np.arange(40), 200, seed).tobytes() for seed in (3, 3, 4))
    assert one == same != other


def test_a_resample_is_a_regression_on_the_repeated_rows() -> None:
    delta, masks = example()
    weights = next(task_weights(40, 20, seed=5)).astype(int)
    refitted = bootstrap_coefficients(delta, masks, np.arange(40), 20, seed=5)
    for counts, params in zip(weights, refitted, strict=True):
        X, d = np.repeat(masks, counts, axis=0).astype(float), np.repeat(delta, counts)
        assert params == pytest.approx(np.linalg.lstsq(X, d)[0], abs=1e-10)


def test_rows_of_a_task_move_together() -> None:
    delta, masks = example(30)
    tasks = np.arange(30) % 10
    weights = next(task_weights(10, 20, seed=5)).astype(int)
    refitted = bootstrap_coefficients(delta, masks, tasks, 20, seed=5)
    for counts, params in zip(weights, refitted, strict=True):
        X, d = np.repeat(masks, counts[tasks], axis=0).astype(float), np.repeat(delta, counts[tasks])
        assert params == pytest.approx(np.linalg.lstsq(X, d)[0], abs=1e-10)


def test_resamples_without_full_rank_are_left_out() -> None:
    """The second factor is shown for one task of five: resamples without that task have lower rank."""
    masks = np.array([[1, 0], [0, 0], [1, 1], [1, 0], [1, 0]])
    delta = np.array([1.0, 0, 1, 0, 1])
    weights = next(task_weights(5, 300, seed=0))
    usable = (weights[:, 2] > 0) & (weights[:, [0, 3, 4]].sum(axis=1) > 0)
    refitted = bootstrap_coefficients(delta, masks, np.arange(5), 300, seed=0)
    assert 0 < usable.sum() < 300
    assert len(refitted) == usable.sum()
    assert np.isfinite(refitted).all()


def test_bootstrap_errors_agree_with_the_analytic_ones() -> None:
    """Outside reference: the standard error of a mean difference is the bootstrap's, up to (n - 1) / n."""
    delta, _ = example(200)
    refitted = bootstrap_coefficients(delta, np.ones((200, 1), dtype=np.int64), np.arange(200), 20_000, seed=0)
    assert refitted.std() == pytest.approx(delta.std() / np.sqrt(200), rel=0.02)


def skewed(n: int = 60) -> FloatArray:
    return np.random.default_rng(2).exponential(size=n) ** 2


@pytest.mark.parametrize(("method", "alpha"), [("percentile", 0.05), ("percentile", 0.2), ("BCa", 0.05), ("BCa", 0.2)])
def test_intervals_agree_with_scipy(method: str, alpha: float) -> None:
    values = skewed()
    means = bootstrap_means(values[:, None], 20_000, seed=0)[:, 0]
    ours = percentile_interval(means, alpha) if method == "percentile" else bca_interval(values, means, alpha)
    reference = stats.bootstrap(
        (values,), np.mean, n_resamples=20_000, confidence_level=1 - alpha, method=method, rng=np.random.default_rng(9)
    ).confidence_interval
    assert ours == pytest.approx(
        (reference.low, reference.high), abs=0.1 * stats.sem(values)
    )  # tenth of a standard error


def test_bca_moves_to_the_long_tail_of_skewed_values() -> None:
    values = skewed()
    means = bootstrap_means(values[:, None], 20_000, seed=0)[:, 0]
    plain, corrected = percentile_interval(means), bca_interval(values, means)
    assert corrected[0] > plain[0]
    assert corrected[1] > plain[1] + 0.1 * (plain[1] - plain[0])


def test_bca_of_equal_values_is_that_value() -> None:
    assert bca_interval(np.full(5, 0.25), np.full(100, 0.25)) == (0.25, 0.25)


@pytest.mark.parametrize("scale", [1e-120, 1e100])
def test_bca_does_not_depend_on_the_unit(scale: float) -> None:
    values = skewed()
    means = bootstrap_means(values[:, None], 500, seed=0)[:, 0]
    scaled = bca_interval(values * scale, means * scale)
    assert [end / scale for end in scaled] == pytest.approx(bca_interval(values, means))


@pytest.mark.parametrize(
    ("resamples", "seed", "found"),
    [
        (99, 0, "resamples is 99"),
        (100.0, 0, "resamples is 100.0"),
        (True, 0, "resamples is True"),
        (100, -1, "analysis_seed is -1"),
        (100, "1", "analysis_seed is '1'"),
    ],
)
def test_draws_that_give_no_bootstrap_are_refused(resamples: object, seed: object, found: str) -> None:
    with pytest.raises(ParameterError, match=found):
        refuse_draws(resamples, seed)
    refuse_draws(np.int64(100), 0)


def test_metrics_share_their_resamples() -> None:
    values = np.random.default_rng(0).normal(size=(30, 1))
    means = bootstrap_means(np.hstack([values, 2 * values + 1]), 50, seed=1)
    assert means[:, 1] == pytest.approx(2 * means[:, 0] + 1)


def test_stability_by_hand() -> None:
    """Four resamples of an old text, its rewrite and an ADD with K = 1; the gate selected the rewrite."""
    items = (
        Intervention("old", "s", "current", None, 1),
        Intervention("new", "s", "candidate", "REWRITE", 1),
        Intervention("add", "add", "candidate", "ADD", 2),
    )
    drawn = np.array(
        [
            [0.1, 0.3, 0.2],  # new wins its slot and ranks 1
            [0.1, 0.3, 0.4],  # new ranks 2, over budget; add is selected
            [0.2, 0.1, -0.1],  # old keeps its slot and is selected
            [-0.2, -0.1, -0.3],  # nothing is positive; new ranks 1
        ]
    )
    found = stability(drawn, np.array([False, True, False]), Rule(items, 1), 1)
    assert found.selection_frequency.tolist() == [0.25, 0.25, 0.25]
    assert found.sign_probability.tolist() == [0.75, 0.75, 0.5]
    assert found.rank_low == (1, 1, 1)
    assert found.rank_high == (1, 2, 2)
    assert np.array(found.rank_mean, dtype=np.float64) == pytest.approx([1, 4 / 3, 7 / 4])
    assert found.top.tolist() == [0.25, 0.5, 0.25]
    assert (found.exact_set, found.resamples) == (0.25, 4)


def test_a_larger_set_is_not_the_exact_set() -> None:
    items = (Intervention("a", "a", "draft", None, 1), Intervention("b", "b", "draft", None, 2))
    drawn = np.array([[0.1, 0.2], [0.1, -0.1], [-0.1, -0.1], [0.2, -0.2]])
    assert stability(drawn, np.array([True, False]), Rule(items, 2), 2).exact_set == 0.5


def test_a_factor_never_ranked_has_no_rank_interval() -> None:
    items = (Intervention("old", "s", "current", None, 1), Intervention("new", "s", "candidate", "REWRITE", 1))
    found = stability(np.array([[0.2, 0.1], [0.3, 0.1]]), np.array([True, False]), Rule(items, 1), 1)
    assert found.rank_low == (1, None)
    assert found.rank_high == (1, None)
    assert found.exact_set == 1


def everything_positive(coefficients: FloatArray) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    return np.ones(coefficients.shape, dtype=np.int64), coefficients > 0


def test_a_split_selects_on_one_half_and_sums_over_the_other() -> None:
    masks = example(60)[1]
    delta = np.random.default_rng(9).normal(size=60)
    found = resampling.split_half(delta, masks, np.arange(60), 0.01 * np.eye(2), everything_positive, seed=4)
    orders = np.random.default_rng(4).permuted(np.tile(np.arange(60), (resampling.SPLITS, 1)), axis=1)
    gains, jaccards = [], []
    for half in orders < 30:
        one, rest = (np.linalg.lstsq(masks[rows].astype(float), delta[rows])[0] for rows in (half, ~half))
        gains += [rest[one > 0].sum(), one[rest > 0].sum()]
        either = ((one > 0) | (rest > 0)).sum()
        jaccards.append(((one > 0) & (rest > 0)).sum() / either if either else 1.0)
    assert found is not None
    assert found.splits == resampling.SPLITS
    assert found.gain == pytest.approx(np.mean(gains), abs=1e-10)
    assert found.jaccard == pytest.approx(np.mean(jaccards), abs=1e-10)


def test_the_gain_of_a_split_is_free_of_the_luck_of_selection() -> None:
    naive, crossed = [], []
    for seed in range(40):
        rng = np.random.default_rng(seed)
        delta, masks = rng.normal(size=200), rng.integers(0, 2, (200, 8))
        params = np.linalg.lstsq(masks.astype(float), delta)[0]
        naive.append(params[params > 0].sum())
        found = resampling.split_half(delta, masks, np.arange(200), np.eye(8), everything_positive, seed)
        assert found is not None
        crossed.append(found.gain)
    assert np.mean(naive) > 0.3  # nothing has an effect
    assert abs(np.mean(crossed)) < 3 * np.std(crossed) / np.sqrt(40)


def test_halves_that_cannot_be_fitted_give_no_split() -> None:
    delta, masks = example(6)
    wide = np.hstack([masks, np.eye(6, dtype=np.int64)[:, :3]])
    assert resampling.split_half(delta, wide, np.arange(6), np.eye(5), everything_positive, seed=0) is None


def one_factor(n: int = 60, seed: int = 4) -> tuple[FloatArray, FloatArray]:
    """Return skewed differences and their mask, both arms of it shown."""
    rng = np.random.default_rng(seed)
    mask = (np.arange(n) % 3 > 0).astype(float)
    return rng.exponential(1.0, n) * mask - 0.3 + 0.1 * rng.normal(size=n), mask


def slope(delta: FloatArray, mask: FloatArray, axis: int = -1) -> FloatArray:
    return np.asarray((delta * mask).sum(axis=axis) / (mask**2).sum(axis=axis))


def test_bca_of_a_coefficient_is_scipys() -> None:
    delta, mask = one_factor()
    masks, tasks = mask[:, None].astype(np.int64), np.arange(60)
    drawn = bootstrap_coefficients(delta, masks, tasks, 2000, seed=1)
    found = coefficient_intervals(delta, masks, tasks, slope(delta, mask)[None], drawn)
    expected = stats.bootstrap(
        (delta, mask), slope, paired=True, vectorized=True, method="BCa", n_resamples=0,
        bootstrap_result=SimpleNamespace(bootstrap_distribution=drawn[:, 0]),
    ).confidence_interval  # fmt: skip
    assert found.bca[0] == pytest.approx(tuple(expected), abs=1e-10)
    assert found.percentile[0] == pytest.approx(np.quantile(drawn[:, 0], [0.025, 0.975]), abs=1e-12)
    assert abs(expected.low - found.percentile[0, 0]) > 1e-3  # the correction is not nothing


def test_the_acceleration_leaves_out_whole_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Against refits without every task, by hand, with several rows a task and in blocks."""
    monkeypatch.setattr(resampling, "CHUNK_CELLS", 12)
    delta, masks = example(60)
    tasks = np.arange(60) // 3
    drawn = bootstrap_coefficients(delta, masks, tasks, 400, seed=2)
    params = np.linalg.lstsq(masks.astype(float), delta)[0]
    jackknife = np.array([np.linalg.lstsq(masks[tasks != t].astype(float), delta[tasks != t])[0] for t in range(20)])
    pulls = jackknife.mean(axis=0) - jackknife
    acceleration = (pulls**3).sum(axis=0) / (6 * (pulls**2).sum(axis=0) ** 1.5)
    found = coefficient_intervals(delta, masks, tasks, params, drawn)
    for k in range(2):
        z = stats.norm.ppf((drawn[:, k] < params[k]).mean()) + stats.norm.ppf([0.025, 0.975])
        at = stats.norm.cdf(stats.norm.ppf((drawn[:, k] < params[k]).mean()) + z / (1 - acceleration[k] * z))
        assert found.bca[k] == pytest.approx(tuple(np.quantile(drawn[:, k], at)), abs=1e-9)


def test_without_a_bca_interval_the_reason_is_told() -> None:
    delta, masks = np.full(30, 0.5), np.ones((30, 1), dtype=np.int64)
    tasks, never = np.arange(30), np.full((200, 1), 0.5)
    told = coefficient_intervals(delta, masks, tasks, np.array([0.5]), never)
    assert (told.bca, told.reasons) == ((None,), ("no task changes it",))
    delta[0] = 1.0
    told = coefficient_intervals(delta, masks, tasks, np.array([0.5]), never + 1)
    assert (told.bca, told.reasons) == ((None,), ("all resamples lie on one side of it",))
    masks = np.column_stack([masks[:, 0], tasks == 0])
    told = coefficient_intervals(delta, masks, tasks, np.array([0.5, 0.5]), np.tile(never, 2))
    assert set(told.reasons) == {"one task alone determines it"}


def test_halves_do_not_depend_on_how_many_are_held_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = np.concatenate(list(resampling._halves(11, seed=3)))
    monkeypatch.setattr(resampling, "CHUNK_CELLS", 70)
    blocks = list(resampling._halves(11, seed=3))
    assert len(blocks) > 100
    assert np.array_equal(np.concatenate(blocks), whole)
    assert (whole.sum(axis=1) == 5).all()
