"""How effects of the same chunks move over ordered checkpoints (METHOD section 13).

All rows of all checkpoints are fitted at once with errors clustered by task: checkpoints that are measured on the same
tasks share their luck, and their bare runs where the weights are the same. Arrays only.
"""

from collections.abc import Sequence

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import stats

from shopskill_lib import ols

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

LEVEL = 0.05

COLUMNS = (
    "chunk", "checkpoints", "first", "last", "drift", "drift_low", "drift_high", "last_low", "last_high", "drift_label",
    "trend", "trend_low", "trend_high", "trend_label",
)  # fmt: skip


def over(delta: FloatArray, masks: IntArray, names: Sequence[str], tasks: IntArray, checkpoints: int) -> pd.DataFrame:
    """Compare the effects at a chunk's last checkpoint with those at its first, and fit a line through all of them.

    Args:
        delta: (n,) paired differences.
        masks: (n, C) 0/1, one column a checkpoint and chunk.
        names: C columns, as `number chunk`, checkpoints numbered from 0 in their order of training.
        tasks: (n,) task number of every row.
        checkpoints: how many.

    Returns:
        One row a chunk that was measured at the first and the last checkpoint. Intervals hold for all chunks at once
        (Bonferroni), and the labels follow from them. `trend` is the change from first to last along the
        straight line through three or more checkpoints, None with two.

    Raises:
        DesignError: the columns have not full rank.
    """
    places = _places(names)
    both = [chunk for chunk, at in places.items() if {0, checkpoints - 1} <= at.keys()] if checkpoints > 1 else []
    if not both:
        return pd.DataFrame(columns=list(COLUMNS))
    fit, level = ols.fit(delta, masks, names, tasks), LEVEL / len(both)
    rows = [(chunk, len(places[chunk]), *_ends(fit, places[chunk], level)) for chunk in both]
    trends = [_trend(fit, places[chunk], level) for chunk in both]
    return pd.DataFrame([(*row, *trend) for row, trend in zip(rows, trends, strict=True)], columns=list(COLUMNS))


def _places(names: Sequence[str]) -> dict[str, dict[int, int]]:
    """Return chunk -> number of the checkpoint -> column."""
    places: dict[str, dict[int, int]] = {}
    for column, name in enumerate(names):
        number, _, chunk = name.partition(" ")
        places.setdefault(chunk, {})[int(number)] = column
    return places


def _ends(fit: ols.OLSFit, at: dict[int, int], level: float) -> tuple[float | str, ...]:
    """Return first, last, their difference with its interval, the interval of the last, and the label."""
    columns = [at[number] for number in sorted(at)]
    first, last = columns[0], columns[-1]
    change, _, low, high = fit.difference(fit.names[last], fit.names[first], level)
    before, after = fit.conf_int(level)[[first, last]]
    label = drift_label(float(before[0]), low, high, float(after[0]))
    return float(fit.params[first]), float(fit.params[last]), change, low, high, float(after[0]), float(after[1]), label


def _trend(fit: ols.OLSFit, at: dict[int, int], level: float) -> tuple[float | str | None, ...]:
    """Return the change along the line through all checkpoints with its interval and label; None with fewer than three.

    The line is that of least squares; its error has the covariance of estimates that share tasks.
    """
    if len(at) < 3:
        return None, None, None, None
    numbers = np.array(sorted(at), dtype=np.float64)
    columns = [at[int(number)] for number in numbers]
    position = (numbers - numbers[0]) / (numbers[-1] - numbers[0])
    line = np.linalg.pinv(np.column_stack([1 - position, position]))
    line = np.vstack([line, line[1] - line[0]])
    first, last, change = line @ fit.params[columns]
    variances = np.diag(line @ fit.cov_params[np.ix_(columns, columns)] @ line.T)
    half = stats.t.ppf(1 - level / 2, fit.df_inference) * np.sqrt(np.clip(variances, 0.0, None))
    low, high = float(change - half[2]), float(change + half[2])
    return float(change), low, high, drift_label(float(first - half[0]), low, high, float(last - half[1]))


def drift_label(first_low: float, drift_low: float, drift_high: float, last_low: float) -> str:
    """Name what the intervals say of a chunk over checkpoints.

    Args:
        first_low: lower end of its effect at the first checkpoint.
        drift_low: lower end of last minus first.
        drift_high: its upper end.
        last_low: lower end of its effect at the last checkpoint.

    Returns:
        `internalized`: it helped, its effect fell, and is no longer told apart above 0; `weaker`: its effect fell,
        without all of that; `stronger`: it rose; `undecided`: the interval of the drift holds 0.
    """
    if drift_high < 0:
        return "internalized" if first_low > 0 and last_low <= 0 else "weaker"
    return "stronger" if drift_low > 0 else "undecided"
