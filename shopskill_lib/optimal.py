"""D-optimal masks by coordinate exchange (Meyer and Nachtsheim 1995): states change places, each as often as before.

Made small is the determinant of the covariance that least squares gives the coefficients and a shift between the arms
together, where rollouts are equally noisy and those of a task share its bare run. With X the rows of columns and a
one, and T their sums over tasks, it is (X'X)^-1 (X'X + T'T) (X'X)^-1. The shift is in it because masks that are best
without it show the same number of chunks in every row, and nobody could tell a shift from the chunks (M20).

Arrays only.
"""

import hashlib
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

BATCH = 64
"""Exchanges that are proposed at once, of which the best may be made."""

BATCHES = 1_250
"""The most that are proposed."""

PATIENCE = 75
"""Batches without an exchange after which the search ends."""

GAIN = 1e-5
"""Fall of the log determinant below which an exchange is not made: far above rounding, so that every machine finds the
same masks."""


def exchange(states: IntArray, versions: Sequence[int], key: str) -> IntArray:
    """Improve masks until no exchange that is tried helps.

    An exchange is, in one slot, of two tasks' rows, of all rows of two tasks, or of the order of a task's rows. All
    three keep how often each state comes up.

    Args:
        states: (tasks, samples, slots); 0 = absent, k = version k.
        versions: of each slot.
        key: what is tried follows from it alone, by SHAKE-256.

    Returns:
        States of the same shape; their determinant is never larger than before.
    """
    states = states.copy()
    rows, tasks = (moment.sum(axis=0) for moment in moments(states, versions))
    best, idle = float(_log_determinant(rows, tasks)), 0
    for draws in _draws(key):
        places, changed = _proposals(states, draws)
        (more, longer), (less, shorter) = moments(changed, versions), moments(states[places], versions)
        by_rows, by_tasks = (more - less).sum(axis=1), (longer - shorter).sum(axis=1)
        found = np.round(_log_determinant(rows + by_rows, tasks + by_tasks), 6)
        taken, idle = int(found.argmin()), idle + 1
        if found[taken] < best - GAIN:
            best, idle, states[places[taken]] = float(found[taken]), 0, changed[taken]
            rows, tasks = rows + by_rows[taken], tasks + by_tasks[taken]
        if idle == PATIENCE:
            break
    return states


def _draws(key: str) -> IntArray:
    """Return (BATCHES, 6, BATCH) numbers below 2 ** 32 from a key."""
    stream = hashlib.shake_256(key.encode()).digest(BATCHES * 6 * BATCH * 4)
    return np.frombuffer(stream, dtype=">u4").astype(np.int64).reshape(BATCHES, 6, BATCH)


def _proposals(states: IntArray, draws: IntArray) -> tuple[IntArray, IntArray]:
    """Return (BATCH, 2) tasks, and their (BATCH, 2, samples, slots) states after the exchange."""
    count, samples, slots = states.shape
    first, step, slot, one, other, kind = draws
    first, slot, one, other = first % count, slot % slots, one % samples, other % samples
    places = np.stack([first, (first + 1 + step % (count - 1)) % count], axis=1)
    old = states[places]
    new, kind = old.copy(), kind % (3 if samples > 1 else 1)
    a, b, c = (np.flatnonzero(kind == k) for k in range(3))
    new[a, 0, one[a], slot[a]] = old[a, 1, other[a], slot[a]]
    new[a, 1, other[a], slot[a]] = old[a, 0, one[a], slot[a]]
    new[b, 0, :, slot[b]], new[b, 1, :, slot[b]] = old[b, 1, :, slot[b]], old[b, 0, :, slot[b]]
    new[c, 0, :, slot[c]] = np.roll(old[c, 0, :, slot[c]], 1, axis=1)
    return places, new


def moments(states: IntArray, versions: Sequence[int]) -> tuple[FloatArray, FloatArray]:
    """Return (..., K + 1, K + 1) sums of products of a task's columns and a one: over its rows, and of their sums."""
    slot = np.repeat(np.arange(len(versions)), versions)
    state = np.concatenate([np.arange(1, count + 1) for count in versions])
    shown = np.concatenate([states[..., slot] == state, np.ones((*states.shape[:-1], 1), dtype=bool)], axis=-1)
    columns = shown.astype(np.float64)
    total = columns.sum(axis=-2)
    return columns.swapaxes(-1, -2) @ columns, total[..., :, None] * total[..., None, :]


def _log_determinant(rows: FloatArray, tasks: FloatArray) -> FloatArray:
    """Return the log determinant of the covariance; infinite where it cannot be estimated."""
    (sign, inner), (_, outer) = np.linalg.slogdet(rows), np.linalg.slogdet(rows + tasks)
    return np.where(sign > 0, outer - 2 * np.where(sign > 0, inner, 0.0), np.inf)
