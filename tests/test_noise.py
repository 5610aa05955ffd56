"""Runs that differ in their seeds alone: figures by hand and by scipy, floors that hold what they promise."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray
from scipy import stats

from shopskill_lib import noise, ols

FloatArray = NDArray[np.float64]


def cells(values: st.SearchStrategy[float]) -> st.SearchStrategy[FloatArray]:
    """Runs of 2 to 7 tasks, 2 to 5 each, some of them missing."""
    shapes = st.tuples(st.integers(2, 7), st.integers(2, 5))
    return shapes.flatmap(lambda shape: arrays(np.float64, shape, elements=values | st.just(float("nan"))))


@settings(max_examples=60, deadline=None)
@given(cells(st.sampled_from([0.0, 1.0])))
def test_flips_are_counted_pair_by_pair_and_a_missing_run_is_in_no_pair(runs: FloatArray) -> None:
    tasks = [[run for run in row if not np.isnan(run)] for row in runs]
    tasks = [row for row in tasks if len(row) >= 2]
    found = noise.scatter(runs, 100, 0)
    if len(tasks) < 2:
        assert found is None
        return
    assert found is not None and found.flips is not None and found.tasks == len(tasks)
    flips = [np.mean([a != b for a, b in itertools.combinations(row, 2)]) for row in tasks]
    assert found.flips.value == pytest.approx(np.mean(flips))
    assert found.mean == pytest.approx(np.mean([np.mean(row) for row in tasks]))


@settings(max_examples=60, deadline=None)
@given(cells(st.floats(0, 1)))
def test_differences_are_those_of_all_pairs_of_runs(runs: FloatArray) -> None:
    found = noise.scatter(runs, 100, 0)
    if found is None:
        return
    kept = [row for row in runs.tolist() if sum(not np.isnan(run) for run in row) >= 2]
    pairs = list(itertools.combinations(range(runs.shape[1]), 2))
    by_task = [[row[j] - row[i] for i, j in pairs if not np.isnan(row[j] - row[i])] for row in kept]
    assert found.difference.value == pytest.approx(np.mean([np.mean(row) for row in by_task]))
    arms = [[row[j] - row[i] for row in kept if not np.isnan(row[j] - row[i])] for i, j in pairs]
    assert found.largest == pytest.approx(max(abs(float(np.mean(arm))) for arm in arms if arm))
    for figure in (found.difference, found.within, found.spread, found.half_width):
        assert figure.low <= figure.high
    assert found.share is None or 0 <= found.share.low <= found.share.high <= 1


def test_a_case_by_hand() -> None:
    """Tasks 0 0 1, 1 1 1, 0 1 -: variances 1/3, 0, 1/2; flips 2/3, 0, 1."""
    found = noise.scatter(np.array([[0, 0, 1], [1, 1, 1], [0, 1, np.nan], [1, np.nan, np.nan]]), 200, 0)
    assert found is not None and found.flips is not None
    assert found.tasks == 3
    assert found.mean == pytest.approx((1 / 3 + 1 + 1 / 2) / 3)
    assert found.within.value == pytest.approx(5 / 18)
    assert found.flips.value == pytest.approx(5 / 9)
    assert found.spread.value == pytest.approx((2 * 5 / 18 / 4) ** 0.5)  # of an arm of four tasks
    assert found.half_width.value == pytest.approx(stats.t.ppf(0.975, 3) * (5 / 36) ** 0.5)
    assert found.difference.value == pytest.approx((2 / 3 + 0 + 1) / 3)
    assert found.largest == pytest.approx(1 / 2)  # the third run against the first and the second, over two tasks


def test_variances_are_those_of_a_one_way_analysis_of_variance() -> None:
    rng = np.random.default_rng(5)
    runs = rng.normal(rng.normal(0, 2, (30, 1)), 1, (30, 4))
    found = noise.scatter(runs, 2000, 0)
    assert found is not None and found.share is not None and found.flips is None
    within = float(np.mean([np.var(row, ddof=1) for row in runs]))
    between = (stats.f_oneway(*runs).statistic - 1) * within / 4
    assert found.within.value == pytest.approx(within, rel=1e-10)
    assert found.between == pytest.approx(between, rel=1e-10)
    assert found.share.value == pytest.approx(between / (between + within), rel=1e-10)
    assert found.share.low < 0.8 < found.share.high


def test_without_any_variance_there_is_no_share() -> None:
    found = noise.scatter(np.full((5, 3), 0.5), 100, 0)
    assert found is not None and found.share is None and found.half_width.value == 0
    fixed = noise.scatter(np.repeat([[0.0], [1.0], [1.0]], 4, axis=1), 100, 0)
    assert fixed is not None and fixed.share is not None and fixed.share.value == 1


def test_intervals_hold_the_true_share_and_the_true_flips() -> None:
    """Beta(1, 1) success: within 1/6, between 1/12, share 1/3, flips 1/3; 300 samples of 100 tasks and 4 runs."""
    rng, held = np.random.default_rng(1), np.zeros(2)
    for sample in range(300):
        found = noise.scatter(rng.binomial(1, rng.random((100, 1)), (100, 4)).astype(float), 400, sample)
        assert found is not None and found.share is not None and found.flips is not None
        held += [figure.low <= 1 / 3 <= figure.high for figure in (found.share, found.flips)]
    assert (held / 300 >= 0.90).all() and (held / 300 <= 0.98).all()


TASKS, FACTORS = 120, 5


def gate(rng: np.random.Generator, samples: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Masks of a gate and the tasks of its rows."""
    return rng.integers(0, 2, (TASKS * samples, FACTORS)), np.repeat(np.arange(TASKS), samples)


@pytest.mark.parametrize("samples", [1, 2])
def test_floors_cover_identical_arms_and_gates_of_text_that_does_nothing(samples: int) -> None:
    """Known success a task; a floor from six runs is held against fresh arms and fresh gates of the same tasks."""
    rng = np.random.default_rng(samples)
    chance = rng.beta(0.6, 0.8, TASKS)
    masks, tasks = gate(rng, samples)
    below = np.zeros(3)
    floors, fresh = 40, 100
    for number in range(floors):
        runs = rng.binomial(1, chance[:, None], (TASKS, 6)).astype(float)
        found = noise.scatter(runs, 100, 0)
        drawn = noise.idle_coefficients(runs, masks, tasks, 400, number)
        assert found is not None and drawn is not None
        arms = rng.binomial(1, chance, (2, fresh, TASKS)).mean(axis=2)
        below[0] += (np.abs(arms[0] - arms[1]) <= found.half_width.value).mean()
        bare = rng.binomial(1, chance, (fresh, TASKS))[:, tasks]
        delta = rng.binomial(1, chance[tasks], (fresh, len(tasks))) - bare
        sizes = np.abs(np.linalg.lstsq(masks.astype(float), delta.T.astype(float), rcond=None)[0].T)
        below[1] += (sizes <= np.quantile(np.abs(drawn), 0.95)).mean()
        below[2] += (sizes.max(axis=1) <= np.quantile(np.abs(drawn).max(axis=1), 0.95)).mean()
    assert (below / floors >= 0.93).all() and (below / floors <= 0.97).all(), below / floors


def test_idle_coefficients_are_the_estimators_own_on_some_assignment_of_runs() -> None:
    """With two runs a task every draw is M19 on one of the 64 ways to call one of them bare; all of them come up."""
    rng = np.random.default_rng(3)
    runs, masks = rng.random((6, 2)), np.array([[1, 0], [1, 1], [0, 1], [1, 0], [0, 1], [1, 1]])
    difference, tasks = runs[:, 1] - runs[:, 0], np.arange(6)
    ways = [
        ols.fit(difference * signs, masks, ("a", "b"), tasks).params for signs in itertools.product((-1, 1), repeat=6)
    ]
    drawn = noise.idle_coefficients(runs, masks, tasks, 2000, 0)
    assert drawn is not None and drawn.shape == (2000, 2)
    nearest = np.abs(drawn[:, None, :] - np.array(ways)[None]).max(axis=2)
    assert nearest.min(axis=1).max() < 1e-10
    assert len(set(nearest.argmin(axis=1))) == 64


def test_rows_of_a_task_share_their_bare_run_and_nothing_else() -> None:
    """Masks that show one factor a row: a coefficient is its row's difference; run 3 of the first task is missing."""
    runs = np.array([[0.0, 0.1, 0.4, np.nan], [0.0, 1.0, 3.0, 7.0]])
    masks, tasks = np.eye(3, dtype=np.int64), np.array([0, 1, 0])
    drawn = noise.idle_coefficients(runs, masks, tasks, 400, 0)
    assert drawn is not None
    seen = {(round(first, 9), round(last, 9)) for first, _, last in drawn.tolist()}
    assert seen == {(round(b - a, 9), round(c - a, 9)) for a, b, c in itertools.permutations((0.0, 0.1, 0.4))}
    alone = {round(value, 9) for value in drawn[:, 1].tolist()}
    assert alone == {b - a for a, b in itertools.permutations((0.0, 1.0, 3.0, 7.0), 2)}


def test_masks_without_full_rank_say_nothing() -> None:
    masks = np.array([[1, 1], [1, 1], [0, 0]])
    assert noise.idle_coefficients(np.random.default_rng(0).random((3, 3)), masks, np.arange(3), 100, 0) is None
    assert noise.idle_coefficients(np.zeros((1, 3)), np.zeros((0, 2), dtype=int), np.array([], dtype=int), 9, 0) is None
