"""Do the intervals of a ranking hold what they promise?

    python bench/ranking.py --seed 0 --repetitions 400

Simulated rankings: 16 chunks whose true effects scatter by 0.03, frozen coefficients that add an error of 0.04; K = 8;
tasks of their own difficulty and their own effects (standard deviation 0.05 a chunk). What is known: the difference of
Top-K to the mean of all sets of K chunks, and the slope of true on predicted gains over them.
"""

import argparse
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from shopskill_lib import agreement
from shopskill_lib.agreement import Estimate

CHUNKS, K, FRESH = 16, 8, 2
EFFECTS, ERRORS, SPREAD, NOISE = 0.03, 0.04, 0.05, 0.3


class Covered(NamedTuple):
    """Whether each interval of one ranking holds its truth."""

    contrast: bool
    tasks_alone: bool
    slope: bool
    bias: float
    """Of the slope."""


def sets(rng: np.random.Generator, count: int) -> NDArray[np.float64]:
    """(count, CHUNKS) 0/1 rows of exactly K."""
    return (rng.random((count, CHUNKS)).argsort(axis=1) < K).astype(np.float64)


def ranking(seed: int, tasks: int, random_sets: int) -> Covered:
    """Simulate one ranking."""
    rng = np.random.default_rng(seed)
    alpha = rng.normal(0, EFFECTS, CHUNKS)
    told = alpha + rng.normal(0, ERRORS, CHUNKS)
    own = alpha + rng.normal(0, SPREAD, (tasks, CHUNKS))
    top = (told.argsort().argsort() >= CHUNKS - K).astype(np.float64)
    shown = sets(rng, random_sets)
    bare = rng.normal(0, NOISE, tasks)

    def earned(row: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.asarray(own @ row + rng.normal(0, NOISE, tasks))

    differences = earned(top)[:, None] - np.stack([earned(row) for row in shown], axis=1)
    drawn = agreement.difference(differences, 1000, seed)
    plain = agreement.difference(differences.mean(axis=1)[:, None], 1000, seed)
    masks, rows = sets(rng, FRESH * tasks), np.repeat(np.arange(tasks), FRESH)
    gains = (own[rows] * masks).sum(axis=1) + rng.normal(0, NOISE, len(rows)) - bare[rows]
    slope = agreement.slope(masks @ told, gains, rows)
    truth = float(top @ alpha - K * alpha.mean())
    true_slope = float(np.cov(told, alpha)[0, 1] / np.var(told, ddof=1))
    assert slope.value is not None
    return Covered(_holds(drawn, truth), _holds(plain, truth), _holds(slope, true_slope), slope.value - true_slope)


def _holds(found: Estimate, truth: float) -> bool:
    return found.low is not None and found.high is not None and found.low <= truth <= found.high


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--repetitions", type=int, default=400)
    options = parser.parse_args()
    print("| tasks | random sets | top - random | over tasks alone | slope | its bias |\n|---|---|---|---|---|---|")
    for tasks in (100, 200):
        for random_sets in (2, 4, 8, 16):
            seeds = range(options.seed, options.seed + options.repetitions)
            found = np.mean([ranking(seed, tasks, random_sets) for seed in seeds], axis=0)
            print(f"| {tasks} | {random_sets} | {found[0]:.3f} | {found[1]:.3f} | {found[2]:.3f} | {found[3]:+.3f} |")


if __name__ == "__main__":
    main()
