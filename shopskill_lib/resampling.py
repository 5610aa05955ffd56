"""Task-level bootstrap: whole tasks are drawn with replacement, all their rows together.

Resamples are weight matrices, so that an estimate is one matrix product: (B, T) counts of T tasks.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from numbers import Integral

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from shopskill_lib.errors import ParameterError

FloatArray = NDArray[np.float64]
BoolArray = NDArray[np.bool_]
IntArray = NDArray[np.int64]

Rule = Callable[[FloatArray], tuple[IntArray, BoolArray]]
"""(B, K) coefficients -> (B, K) ranks with 0 for "not ranked", (B, K) selected."""

LEAST_RESAMPLES = 100
"""Below this a 95 % interval rests on two or three resamples an end."""

SPLITS = 1000
"""Random halves of the tasks."""

ROUNDING = 1e-12
"""Changes of an estimate below this are none but for rounding."""

CHUNK_CELLS = 4_000_000
"""Largest number of weights held at once (32 MB)."""


def refuse_draws(resamples: object, analysis_seed: object) -> None:
    """Refuse a number of resamples or a seed that gives no bootstrap.

    Raises:
        ParameterError: fewer than 100 resamples, a negative seed, or no whole number.
    """
    for name, value, least in (("resamples", resamples, LEAST_RESAMPLES), ("analysis_seed", analysis_seed, 0)):
        if isinstance(value, bool) or not isinstance(value, Integral) or int(value) < least:
            raise ParameterError(
                f"{name} is {value!r}",
                where=name,
                allowed=f"at least {least}, a whole number",
                todo="give for example 10000 resamples and analysis_seed 0",
            )


def task_weights(n_tasks: int, resamples: int, seed: int) -> Iterator[FloatArray]:
    """Yield (b, T) blocks of bootstrap counts, in all `resamples` rows, each summing to T."""
    rng = np.random.default_rng(seed)
    block = max(1, CHUNK_CELLS // n_tasks)
    for start in range(0, resamples, block):
        rows = min(block, resamples - start)
        draws = rng.integers(n_tasks, size=(rows, n_tasks)) + n_tasks * np.arange(rows)[:, None]
        counts = np.bincount(draws.ravel(), minlength=rows * n_tasks)
        yield counts.reshape(rows, n_tasks).astype(np.float64)


def bootstrap_coefficients(
    delta: FloatArray, masks: NDArray[np.int64], tasks: IntArray, resamples: int, seed: int
) -> FloatArray:
    """Refit M19 in task-level resamples.

    Args:
        delta: (n,) paired differences.
        masks: (n, K) 0/1.
        tasks: (n,) task number of every row, 0 .. T-1.
        resamples: how many.
        seed: of the draws.

    Returns:
        (B, K) coefficients of the B resamples whose masks have full rank; B may be below `resamples`, and the
        difference is for the caller to report.
    """
    moments = _Moments(delta, masks, tasks)
    return np.concatenate([moments.refit(weights) for weights in task_weights(moments.n_tasks, resamples, seed)])


@dataclass(frozen=True, slots=True)
class BootstrapIntervals:
    """Bootstrap intervals of K coefficients at 95 %.

    Attributes:
        percentile: (K, 2) central 95 % of the resamples.
        bca: K bias-corrected and accelerated intervals (Efron 1987), None where there is none.
        reasons: K reasons for that, "" where there is one.
    """

    percentile: FloatArray
    bca: tuple[tuple[float, float] | None, ...]
    reasons: tuple[str, ...]


def coefficient_intervals(
    delta: FloatArray, masks: NDArray[np.int64], tasks: IntArray, params: FloatArray, drawn: FloatArray
) -> BootstrapIntervals:
    """Return percentile and BCa intervals of M19's coefficients; whole tasks are left out for the acceleration.

    Args:
        delta: (n,) paired differences.
        masks: (n, K) 0/1.
        tasks: (n,) task number of every row, 0 .. T-1.
        params: (K,) estimates.
        drawn: (B, K) estimates of task-level resamples.
    """
    left_out = _Moments(delta, masks, tasks).refit_without_each()
    found = [_bca(*factor) for factor in zip(params, drawn.T, left_out.T, strict=True)]
    bca, reasons = zip(*found, strict=True)
    return BootstrapIntervals(np.quantile(drawn, [0.025, 0.975], axis=0).T, bca, reasons)


def _bca(estimate: float, drawn: FloatArray, left_out: FloatArray) -> tuple[tuple[float, float] | None, str]:
    """Return the BCa interval of one coefficient, or None and why there is none.

    Args:
        estimate: of all tasks.
        drawn: (B,) estimates of resamples.
        left_out: (T,) estimates without each task; NaN where the rest has not full rank.
    """
    if np.isnan(left_out).any():
        return None, "one task alone determines it"
    pulls = left_out.mean() - left_out
    largest = float(np.abs(pulls).max())
    if largest <= ROUNDING:
        return None, "no task changes it"
    below = (np.mean(drawn < estimate) + np.mean(drawn <= estimate)) / 2
    if not 0 < below < 1:
        return None, "all resamples lie on one side of it"
    pulls = pulls / largest
    acceleration = float(np.sum(pulls**3) / (6 * np.sum(pulls**2) ** 1.5))
    z = float(stats.norm.ppf(below)) + stats.norm.ppf([0.025, 0.975])
    if acceleration * np.max(np.sign(acceleration) * z) >= 1:
        return None, "its resamples are too skewed"
    low, high = np.quantile(drawn, stats.norm.cdf(stats.norm.ppf(below) + z / (1 - acceleration * z)))
    return (float(low), float(high)), ""


class _Moments:
    """Normal equations of M19 by task, so that refitting on weighted tasks is one matrix product."""

    def __init__(self, delta: FloatArray, masks: NDArray[np.int64], tasks: IntArray) -> None:
        X = masks.astype(np.float64)
        self.n_tasks, self._K = int(tasks.max()) + 1, X.shape[1]
        self._left, self._right = np.triu_indices(self._K)
        self._products = np.zeros((self.n_tasks, len(self._left)))
        self._moments = np.zeros((self.n_tasks, self._K))
        np.add.at(self._products, tasks, X[:, self._left] * X[:, self._right])
        np.add.at(self._moments, tasks, X * delta[:, None])

    def refit(self, weights: FloatArray) -> FloatArray:
        """Return the coefficients of those of (b, T) weightings under which the masks have full rank."""
        XtX, Xty = self._equations(weights)
        full = np.linalg.matrix_rank(XtX, hermitian=True) == self._K
        return _solve(XtX[full], Xty[full])

    def refit_halves(self, halves: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return the coefficients of (b, T) 0/1 halves and of their rests, where both have full rank."""
        pairs = [self._equations(weights) for weights in (halves, 1.0 - halves)]
        full = np.all([np.linalg.matrix_rank(XtX, hermitian=True) == self._K for XtX, _ in pairs], axis=0)
        one, rest = (_solve(XtX[full], Xty[full]) for XtX, Xty in pairs)
        return one, rest

    def refit_without_each(self) -> FloatArray:
        """Return (T, K) coefficients without each task; NaN where the other tasks have not full rank."""
        XtX, Xty = self._equations(np.ones((1, self.n_tasks)))
        found = np.full((self.n_tasks, self._K), np.nan)
        block = max(1, CHUNK_CELLS // self._K**2)
        for start in range(0, self.n_tasks, block):
            rows = slice(start, start + block)
            rest = np.repeat(XtX, len(self._moments[rows]), axis=0)
            rest[:, self._left, self._right] -= self._products[rows]
            rest[:, self._right, self._left] = rest[:, self._left, self._right]
            full = np.linalg.matrix_rank(rest, hermitian=True) == self._K
            found[rows][full] = _solve(rest[full], (Xty - self._moments[rows])[full])
        return found

    def _equations(self, weights: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return (b, K, K) and (b, K) sides of the normal equations."""
        XtX = np.empty((len(weights), self._K, self._K))
        XtX[:, self._left, self._right] = XtX[:, self._right, self._left] = weights @ self._products
        return XtX, weights @ self._moments


def _solve(XtX: FloatArray, Xty: FloatArray) -> FloatArray:
    """Solve b normal equations at once: (b, K, K) and (b, K) -> (b, K)."""
    return np.asarray(np.linalg.solve(XtX, Xty[:, :, None])[:, :, 0], dtype=np.float64)


@dataclass(frozen=True, slots=True)
class SplitHalf:
    """Random halves of the tasks: the rule is applied to one, the other says what that is worth (METHOD section 13).

    Attributes:
        jaccard: mean over splits of shared / all factors among the two halves' selections; 1 when both are empty.
        gain: mean over splits and both directions of the sum of one half's coefficients over the factors that the
            other half selects: the total effect of a selected set without the luck of its selection.
        gain_error: standard error of such a sum for a set chosen beforehand, averaged over the splits' sets.
        splits: splits that could be fitted.
    """

    jaccard: float
    gain: float
    gain_error: float
    splits: int


def split_half(
    delta: FloatArray, masks: NDArray[np.int64], tasks: IntArray, covariance: FloatArray, rule: Rule, seed: int
) -> SplitHalf | None:
    """Split the tasks into halves at random, `SPLITS` times.

    Args:
        delta: (n,) paired differences.
        masks: (n, K) 0/1.
        tasks: (n,) task number of every row, 0 .. T-1.
        covariance: (K, K) of the coefficients of all tasks.
        rule: the selection rule on (B, K) coefficients.
        seed: of the splits.

    Returns:
        None when the halves are too small to be fitted in most splits.
    """
    moments = _Moments(delta, masks, tasks)
    fits = [moments.refit_halves(halves) for halves in _halves(moments.n_tasks, seed)]
    one, rest = (np.concatenate(side) for side in zip(*fits, strict=True))
    if len(one) < SPLITS / 2:
        return None
    chosen_one, chosen_rest = rule(one)[1], rule(rest)[1]
    shared, either = (chosen_one & chosen_rest).sum(axis=1), (chosen_one | chosen_rest).sum(axis=1)
    sets = np.concatenate([chosen_one, chosen_rest]).astype(np.float64)
    return SplitHalf(
        jaccard=float(np.where(either == 0, 1.0, shared / np.maximum(either, 1)).mean()),
        gain=float((sets * np.concatenate([rest, one])).sum(axis=1).mean()),
        gain_error=float(np.sqrt(np.einsum("bi,ij,bj->b", sets, covariance, sets, optimize=True).mean())),
        splits=len(one),
    )


def _halves(n_tasks: int, seed: int) -> Iterator[FloatArray]:
    """Yield (b, T) blocks of random 0/1 halves of the tasks, in all `SPLITS` rows."""
    rng = np.random.default_rng(seed)
    block = max(1, CHUNK_CELLS // n_tasks)
    for start in range(0, SPLITS, block):
        rows = min(block, SPLITS - start)
        orders = rng.permuted(np.tile(np.arange(n_tasks), (rows, 1)), axis=1)
        yield (orders < n_tasks // 2).astype(np.float64)


@dataclass(frozen=True, slots=True)
class Stability:
    """How often resamples repeat what the rule said (METHOD §13).

    Attributes:
        selection_frequency: (K,) share of resamples in which each factor is selected; NaN without an estimate.
        sign_probability: (K,) share of resamples with a positive coefficient; NaN without an estimate.
        rank_low: (K,) 2.5 % quantile of the rank where ranked; None where never ranked.
        rank_high: (K,) 97.5 % quantile of the same.
        rank_mean: (K,) mean of the same; None where never ranked.
        top: (K,) share of resamples in which the rank is within the budget, whatever the sign; NaN without an estimate.
        exact_set: share of resamples that select exactly the reported set.
        resamples: resamples used.
    """

    selection_frequency: FloatArray
    sign_probability: FloatArray
    rank_low: tuple[float | None, ...]
    rank_high: tuple[float | None, ...]
    rank_mean: tuple[float | None, ...]
    top: FloatArray
    exact_set: float
    resamples: int


def stability(coefficients: FloatArray, selected: BoolArray, rule: Rule, budget: int) -> Stability:
    """Run the actual selection rule in every resample and count.

    Args:
        coefficients: (B, K) refitted coefficients, B >= 1.
        selected: (K,) the reported selection.
        rule: the same rule that made it.
        budget: K, the most factors that it selects.
    """
    ranks, chosen = rule(coefficients)
    unknown = np.isnan(coefficients).all(axis=0)
    low, high = zip(*(_rank_interval(column[column > 0]) for column in ranks.T), strict=True)
    return Stability(
        selection_frequency=np.where(unknown, np.nan, chosen.mean(axis=0)),
        sign_probability=np.where(unknown, np.nan, (coefficients > 0).mean(axis=0)),
        rank_low=low,
        rank_high=high,
        rank_mean=tuple(float(column[column > 0].mean()) if column.any() else None for column in ranks.T),
        top=np.where(unknown, np.nan, ((ranks > 0) & (ranks <= budget)).mean(axis=0)),
        exact_set=float((chosen == selected).all(axis=1).mean()),
        resamples=len(coefficients),
    )


def _rank_interval(ranks: IntArray) -> tuple[float | None, float | None]:
    """Return the central 95 % of ranks, as ranks that occurred."""
    if not ranks.size:
        return None, None
    low, high = np.quantile(ranks, [0.025, 0.975], method="inverted_cdf")
    return float(low), float(high)


def bootstrap_means(values: FloatArray, resamples: int, seed: int) -> FloatArray:
    """(resamples, m) means of (T, m) task-level values; the columns share their resamples."""
    n_tasks = len(values)
    return np.concatenate([weights @ values / n_tasks for weights in task_weights(n_tasks, resamples, seed)])


def percentile_interval(means: FloatArray, alpha: float = 0.05) -> tuple[float, float]:
    """Central 1 - alpha of the bootstrap distribution."""
    low, high = np.quantile(means, [alpha / 2, 1 - alpha / 2])
    return float(low), float(high)


def bca_interval(values: FloatArray, means: FloatArray, alpha: float = 0.05) -> tuple[float, float]:
    """Bias-corrected and accelerated interval of a mean (Efron 1987).

    Args:
        values: (T,) task-level values.
        means: (B,) their bootstrap means.
        alpha: 1 - level.

    Returns:
        The interval; its ends are the mean itself when all values are equal.
    """
    centred = values - values.mean()
    largest = float(np.abs(centred).max())
    if largest == 0.0:
        return float(values.mean()), float(values.mean())
    centred = centred / largest  # its powers neither overflow nor vanish
    spread = float(np.sum(centred**2))
    below = (np.mean(means < values.mean()) + np.mean(means <= values.mean())) / 2
    bias = stats.norm.ppf(np.clip(below, 0.5 / len(means), 1 - 0.5 / len(means)))
    acceleration = float(np.sum(centred**3)) / (6 * spread**1.5)
    z = bias + stats.norm.ppf([alpha / 2, 1 - alpha / 2])
    low, high = np.quantile(means, stats.norm.cdf(bias + z / (1 - acceleration * z)))
    return float(low), float(high)
