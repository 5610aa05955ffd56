"""What runs that differ in their seeds alone differ by, and what a gate's coefficients show where text does nothing.

Runs of one outcome are an array (T, R): R runs of each of T tasks, NaN where an episode is missing, never 0.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from shopskill_lib import resampling

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

LEVEL = 0.05


@dataclass(frozen=True, slots=True)
class Interval:
    """A figure with its 95 % interval over tasks."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Scatter:
    """How one outcome scatters over repeated runs of the tasks of an arm.

    Attributes:
        tasks: tasks with two runs at least; all figures rest on these.
        mean: mean over tasks of the mean of their runs.
        difference: mean over all pairs of runs and all tasks, the later run minus the earlier one.
        largest: largest size of the mean difference of any two of the runs.
        within: mean over tasks of the variance of one run.
        between: variance over tasks of their expected outcome, at least 0.
        share: between / (within + between); None where both are 0.
        spread: standard deviation of the mean difference of two identical arms.
        half_width: of a 95 % t interval of that difference: the floor of a comparison.
        flips: share of tasks whose outcome differs between two runs, the mean over all pairs; None unless it is 0 or 1.
    """

    tasks: int
    mean: float
    difference: Interval
    largest: float
    within: Interval
    between: float
    share: Interval | None
    spread: Interval
    half_width: Interval
    flips: Interval | None


def scatter(runs: FloatArray, resamples: int, seed: int) -> Scatter | None:
    """Return how (T, R) runs of an arm of T tasks scatter, with percentile intervals of a bootstrap of whole tasks.

    Two runs of 0 and 1 differ with twice the variance of one run, so flips are twice the variance within tasks.

    Returns:
        None with fewer than two tasks of two runs each.
    """
    known = runs[(~np.isnan(runs)).sum(axis=1) >= 2]
    if len(known) < 2:
        return None
    values, pairs = _by_task(known)
    drawn, seen = resampling.bootstrap_means(values, resamples, seed), values.mean(axis=0)[None, :]
    between, share = _between(seen, len(known))
    shares = _between(drawn, len(known))[1]
    within = _estimate(seen[0, 1], drawn[:, 1])
    spread = _map(lambda variance: (2 * variance / len(runs)) ** 0.5, within)
    return Scatter(
        tasks=len(known),
        mean=float(seen[0, 2]),
        difference=_estimate(seen[0, 0], drawn[:, 0]),
        largest=float(np.abs(pairs).max()),
        within=within,
        between=float(between[0]),
        share=None if np.isnan(share[0]) else _estimate(share[0], shares[~np.isnan(shares)]),
        spread=spread,
        half_width=_map(lambda variance: half_width(variance, len(runs)), within),
        flips=_map(lambda variance: 2 * variance, within) if _is_binary(known) else None,
    )


def half_width(within: float, tasks: int) -> float:
    """Return the half-width of a 95 % t interval of the mean difference of two identical arms of so many tasks.

    Args:
        within: mean variance of one run within its task.
        tasks: of each arm, one run a task.
    """
    return float(stats.t.ppf(1 - LEVEL / 2, tasks - 1) * (2 * within / tasks) ** 0.5)


def _is_binary(runs: FloatArray) -> bool:
    return bool(np.isin(runs[~np.isnan(runs)], (0, 1)).all())


def _by_task(runs: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return (T, 5) values of the tasks (see `_between`) and the mean differences of all pairs of runs."""
    pairs = np.stack([runs[:, j] - runs[:, i] for i, j in combinations(range(runs.shape[1]), 2)], axis=1)
    means, variances = np.nanmean(runs, axis=1), np.nanvar(runs, axis=1, ddof=1)
    noise = variances / (~np.isnan(runs)).sum(axis=1)
    values = np.column_stack([np.nanmean(pairs, axis=1), variances, means, means**2, noise])
    return values, np.nanmean(pairs[:, ~np.isnan(pairs).all(axis=0)], axis=0)


def _map(change: Callable[[float], float], figure: Interval) -> Interval:
    """Return an increasing function of a figure."""
    return Interval(change(figure.value), change(figure.low), change(figure.high))


def _estimate(value: float, drawn: FloatArray) -> Interval:
    """Return a figure with its percentile interval."""
    return Interval(float(value), *resampling.percentile_interval(drawn, LEVEL))


def _between(moments: FloatArray, tasks: int) -> tuple[FloatArray, FloatArray]:
    """Return (B,) variances between tasks and their shares, NaN where nothing varies.

    Args:
        moments: (B, 5) means over tasks: difference, variance of a run, mean of the runs, its square, variance of
            that mean.
        tasks: number of tasks.
    """
    _, within, mean, square, noise = moments.T
    between = np.maximum((square - mean**2) * tasks / (tasks - 1) - noise, 0.0)
    between[between < 1e-12] = 0.0  # rounding is no variance
    total = within + between
    return between, np.divide(between, total, out=np.full_like(total, np.nan), where=total > 0)


def idle_coefficients(runs: FloatArray, masks: IntArray, tasks: IntArray, draws: int, seed: int) -> FloatArray | None:
    """Refit M19 where text does nothing: different runs of a task, drawn at random, stand in as bare and masked.

    Args:
        runs: (T, R) bare rewards; a task has more runs than rows, its bare run being one.
        masks: (n, K) 0/1 of the gate's rows.
        tasks: (n,) number of every row's task, 0 .. T-1.
        draws: how often.
        seed: of the draws.

    Returns:
        (draws, K) coefficients; None where the masks of these rows have not full rank.
    """
    X, place = masks.astype(np.float64), row_numbers(tasks)
    if np.linalg.matrix_rank(X) < X.shape[1]:
        return None
    parts = []
    for shuffled in _shuffled(runs, draws, seed):
        delta = shuffled[:, tasks, place] - shuffled[:, tasks, 0]
        parts.append(np.linalg.lstsq(X, delta.T, rcond=None)[0].T)
    return np.concatenate(parts)


def row_numbers(tasks: IntArray) -> IntArray:
    """Return (n,) places of the rows among those of their task, from 1."""
    seen = np.zeros(int(tasks.max(initial=-1)) + 1, dtype=np.int64)
    places = np.empty_like(tasks)
    for row, task in enumerate(tasks):
        seen[task] += 1
        places[row] = seen[task]
    return places


def _shuffled(runs: FloatArray, draws: int, seed: int) -> Iterator[FloatArray]:
    """Yield (b, T, R) blocks of the runs, those of every task in a random order of their own, missing ones last."""
    rng, block = np.random.default_rng(seed), max(1, resampling.CHUNK_CELLS // runs.size)
    for start in range(0, draws, block):
        keys = rng.random((min(block, draws - start), *runs.shape))
        keys[:, np.isnan(runs)] = 2.0
        yield np.take_along_axis(np.broadcast_to(runs, keys.shape), keys.argsort(axis=2), axis=2)
