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
    X = masks.astype(np.float64)
    K = X.shape[1]
    left, right = np.triu_indices(K)
    n_tasks = int(tasks.max()) + 1
    products = np.zeros((n_tasks, len(left)))
    moments = np.zeros((n_tasks, K))
    np.add.at(products, tasks, X[:, left] * X[:, right])
    np.add.at(moments, tasks, X * delta[:, None])
    blocks = []
    for weights in task_weights(n_tasks, resamples, seed):
        XtX = np.empty((len(weights), K, K))
        XtX[:, left, right] = XtX[:, right, left] = weights @ products
        Xty = weights @ moments
        full = np.linalg.matrix_rank(XtX, hermitian=True) == K
        blocks.append(np.linalg.solve(XtX[full], Xty[full, :, None])[:, :, 0])
    return np.concatenate(blocks)


@dataclass(frozen=True, slots=True)
class Stability:
    """How often resamples repeat what the rule said (METHOD §13).

    Attributes:
        selection_frequency: (K,) share of resamples in which each factor is selected; NaN without an estimate.
        sign_probability: (K,) share of resamples with a positive coefficient; NaN without an estimate.
        rank_low: (K,) 2.5 % quantile of the rank where ranked; None where never ranked.
        rank_high: (K,) 97.5 % quantile of the same.
        exact_set: share of resamples that select exactly the reported set.
        resamples: resamples used.
    """

    selection_frequency: FloatArray
    sign_probability: FloatArray
    rank_low: tuple[float | None, ...]
    rank_high: tuple[float | None, ...]
    exact_set: float
    resamples: int


def stability(coefficients: FloatArray, selected: BoolArray, rule: Rule) -> Stability:
    """Run the actual selection rule in every resample and count.

    Args:
        coefficients: (B, K) refitted coefficients, B >= 1.
        selected: (K,) the reported selection.
        rule: the same rule that made it.
    """
    ranks, chosen = rule(coefficients)
    unknown = np.isnan(coefficients).all(axis=0)
    low, high = zip(*(_rank_interval(column[column > 0]) for column in ranks.T), strict=True)
    return Stability(
        selection_frequency=np.where(unknown, np.nan, chosen.mean(axis=0)),
        sign_probability=np.where(unknown, np.nan, (coefficients > 0).mean(axis=0)),
        rank_low=low,
        rank_high=high,
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
