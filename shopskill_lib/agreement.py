"""Predicted gains against measured ones: differences, rank correlations, slope, quantiles, with intervals over tasks.

Arrays only. A gain is the reward beyond bare of the same task; tasks are the independent units throughout, so that a
task's rows are drawn together.
"""

import itertools
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import stats

from shopskill_lib import ols, resampling
from shopskill_lib.errors import DesignError

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

PARTS = 5
"""Quantiles of the predicted gain."""

DECIMALS = 12
"""Sums that differ beyond them differ by rounding only."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """A number with its 95 % interval; None where there is none, and why."""

    value: float | None
    low: float | None = None
    high: float | None = None
    reason: str = ""

    def __str__(self) -> str:
        if self.value is None:
            return f"none ({self.reason})"
        return f"{self.value:+.3f} (95 % {self.low:+.3f} to {self.high:+.3f})"

    @property
    def row(self) -> dict[str, Any]:
        """Value, ends and reason, by name."""
        return {"estimate": self.value, "ci_low": self.low, "ci_high": self.high, "reason": self.reason or None}


@dataclass(frozen=True, slots=True)
class Agreement:
    """Whether measured gains follow predicted ones.

    Attributes:
        rows: sets or masks that are compared.
        spearman, kendall: rank correlations (tau-b), percentile intervals over tasks.
        slope: least-squares slope of measured on predicted, t interval of errors clustered by task.
        excess: mean of measured minus predicted, percentile interval over tasks.
        lost: resamples of tasks in which a rank correlation is not defined.
    """

    rows: int
    spearman: Estimate
    kendall: Estimate
    slope: Estimate
    excess: Estimate
    lost: int


def difference(values: FloatArray, resamples: int, seed: int) -> Estimate:
    """Return the mean of (T, R) differences, with an interval over tasks and, where R > 1, over sets as well.

    Rows and columns are drawn independently of each other (the pigeonhole bootstrap, Owen 2007), which is a little
    cautious.
    """
    n_tasks, n_sets = values.shape
    rng = np.random.default_rng([seed, n_sets])
    means = []
    for weights in resampling.task_weights(n_tasks, resamples, seed):
        drawn = rng.multinomial(n_sets, np.full(n_sets, 1 / n_sets), size=len(weights))
        means.append((weights @ values * drawn).sum(axis=1) / (n_tasks * n_sets))
    return Estimate(float(values.mean()), *resampling.percentile_interval(np.concatenate(means)))


def of_sets(predicted: FloatArray, gains: FloatArray, resamples: int, seed: int) -> Agreement:
    """Compare (S,) predicted gains of sets with (T, S) measured ones, means over all tasks; the sets are fixed."""
    n_tasks, n_sets = gains.shape
    drawn = resampling.bootstrap_means(gains, resamples, seed)
    measured = gains.mean(axis=0)[None, :]
    why = _no_ranks(predicted, measured[0])
    spearman, kendall, lost = _correlations(
        why, [(_spearman(predicted, means), _kendall(predicted, means)) for means in (measured, drawn)]
    )
    tasks = np.repeat(np.arange(n_tasks), n_sets)
    long = np.tile(predicted, n_tasks)
    return Agreement(
        rows=n_sets,
        spearman=spearman,
        kendall=kendall,
        slope=slope(long, gains.ravel(), tasks),
        excess=difference((gains - predicted).mean(axis=1)[:, None], resamples, seed),
        lost=lost,
    )


def of_masks(predicted: FloatArray, gains: FloatArray, tasks: IntArray, resamples: int, seed: int) -> Agreement:
    """Compare (n,) predicted gains of masks with (n,) measured ones, one row an episode; tasks are 0 .. T-1."""
    n_tasks = int(tasks.max()) + 1
    ranks = _WeightedRanks(predicted, gains, tasks)
    drawn = [ranks(weights) for weights in resampling.task_weights(n_tasks, resamples, seed)]
    spearman, kendall, lost = _correlations(
        _no_ranks(predicted, gains),
        [ranks(np.ones((1, n_tasks))), tuple(np.concatenate(column) for column in zip(*drawn, strict=True))],
    )
    return Agreement(
        rows=len(gains),
        spearman=spearman,
        kendall=kendall,
        slope=slope(predicted, gains, tasks),
        excess=_clustered_mean(gains - predicted, tasks, resamples, seed),
        lost=lost,
    )


def slope(predicted: FloatArray, gains: FloatArray, tasks: IntArray) -> Estimate:
    """Fit (n,) measured gains on predicted ones with a constant, errors as in `ols.fit`.

    1 is a prediction that means what it says, less than 1 one that promises more than comes.
    """
    if np.ptp(predicted) <= 10.0**-DECIMALS:
        return Estimate(None, reason="all predicted gains are equal")
    above = predicted - predicted.min() + 1.0  # of one sign, as `ols.fit` counts the tasks that show a column
    try:
        fit = ols.fit(gains, np.column_stack([np.ones_like(above), above]), ("constant", "predicted"), tasks)
    except DesignError as error:
        return Estimate(None, reason=error.found)
    low, high = fit.conf_int()[1]
    return Estimate(float(fit.params[1]), float(low), float(high))


def quantiles(
    predicted: FloatArray, gains: FloatArray, tasks: IntArray, resamples: int, seed: int, parts: int = PARTS
) -> pd.DataFrame:
    """Return one row a quantile of the predicted gain: masks, mean predicted and measured gain, interval over tasks.

    Masks of equal prediction stay together, so there may be fewer quantiles than asked for.
    """
    place = (stats.rankdata(np.round(predicted, DECIMALS)) - 0.5) / len(predicted)
    part = np.minimum((parts * place).astype(np.int64), parts - 1)
    rows = []
    for number in np.unique(part):
        own = part == number
        mean = _clustered_mean(gains[own], tasks[own], resamples, seed)
        about = {"quantile": int(number) + 1, "masks": int(own.sum()), "predicted": float(predicted[own].mean())}
        rows.append({**about, "measured": mean.value, "ci_low": mean.low, "ci_high": mean.high})
    return pd.DataFrame(rows)


def _clustered_mean(values: FloatArray, tasks: IntArray, resamples: int, seed: int) -> Estimate:
    """Return the mean of (n,) values over rows, with an interval over the tasks that have any."""
    _, own = np.unique(tasks, return_inverse=True)
    sums, counts = np.bincount(own, values), np.bincount(own).astype(np.float64)
    blocks = resampling.task_weights(len(sums), resamples, seed)
    means = np.concatenate([weights @ sums / (weights @ counts) for weights in blocks])
    return Estimate(float(values.mean()), *resampling.percentile_interval(means))


def _no_ranks(predicted: FloatArray, measured: FloatArray) -> str:
    """Say why there is no rank correlation; "" where there is one."""
    if len(predicted) < 3:
        return "fewer than three to compare"
    for name, values in (("predicted", predicted), ("measured", measured)):
        if np.ptp(values) <= 10.0**-DECIMALS:
            return f"all {name} gains are equal"
    return ""


def _correlations(why: str, found: list[tuple[FloatArray, ...]]) -> tuple[Estimate, Estimate, int]:
    """Return both correlations from the estimate's (1,) and the resamples' (B,) values, and the resamples lost."""
    if why:
        return Estimate(None, reason=why), Estimate(None, reason=why), 0
    (own, drawn), estimates = found, []
    for value, values in zip(own, drawn, strict=True):
        known = values[~np.isnan(values)]
        if len(known) < len(values) / 2:
            estimates.append(Estimate(None, reason="not defined in most resamples of the tasks"))
        else:
            estimates.append(Estimate(float(value[0]), *resampling.percentile_interval(known)))
    return estimates[0], estimates[1], int(np.isnan(drawn[0]).sum())


def _ratio(over: FloatArray, under: FloatArray) -> FloatArray:
    """Divide, NaN where the divisor is 0 but for rounding."""
    sound = under > 10.0**-DECIMALS
    return np.where(sound, over / np.where(sound, under, 1.0), np.nan)


def _spearman(predicted: FloatArray, measured: FloatArray) -> FloatArray:
    """Correlate the ranks of (S,) predictions with those of every row of (B, S) measurements."""
    left = stats.rankdata(np.round(predicted, DECIMALS))
    right = stats.rankdata(np.round(measured, DECIMALS), axis=1)
    left, right = left - left.mean(), right - right.mean(axis=1, keepdims=True)
    return _ratio(right @ left, np.sqrt((left @ left) * (right * right).sum(axis=1)))


def _kendall(predicted: FloatArray, measured: FloatArray) -> FloatArray:
    """Return tau-b of (S,) predictions and every row of (B, S) measurements."""
    one, other = np.triu_indices(len(predicted), 1)
    left = np.sign(np.round(predicted[one] - predicted[other], DECIMALS))
    right = np.sign(np.round(measured[:, one] - measured[:, other], DECIMALS))
    return _ratio(right @ left, np.sqrt((left @ left) * (right * right).sum(axis=1)))


class _WeightedRanks:
    """Spearman and tau-b of rows that whole tasks repeat: ranks and signs are sums over tasks, so both are products."""

    def __init__(self, predicted: FloatArray, gains: FloatArray, tasks: IntArray) -> None:
        self._tasks = tasks
        member = (tasks[:, None] == np.arange(int(tasks.max()) + 1)).astype(np.float64)
        signs = [_signs(values) for values in (predicted, gains)]
        self._below = [((sign > 0) + (sign == 0) / 2) @ member for sign in signs]
        couples = itertools.combinations_with_replacement(signs, 2)
        self._pairs = [member.T @ (one * other) @ member for one, other in couples]

    def __call__(self, weights: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return (b,) Spearman and tau-b under (b, T) counts of tasks."""
        rows = weights[:, self._tasks]
        total = rows.sum(axis=1, keepdims=True)
        left, right = (weights @ below.T - total / 2 for below in self._below)
        spearman = _ratio(
            (rows * left * right).sum(axis=1),
            np.sqrt((rows * left * left).sum(axis=1) * (rows * right * right).sum(axis=1)),
        )
        squares, both, others = (((weights @ pairs) * weights).sum(axis=1) for pairs in self._pairs)
        return spearman, _ratio(both, np.sqrt(squares * others))


def _signs(values: FloatArray) -> FloatArray:
    """Return the (n, n) signs of all differences, row minus column."""
    return np.asarray(np.sign(np.round(values[:, None] - values[None, :], DECIMALS)))
