"""What BCa intervals, intervals and tests by group, and the spread between tasks hold, on simulated pairs.

    python bench/subgroups.py [--seed 0] [--repetitions 1000]

Gates of 16 factors with known effects (as in `bench/inference.py`): rewards 0 or 1 over tasks of their own difficulty,
400 tasks. Three groups of 160, 140 and 100 tasks; once they do not differ, once a factor gains +0.3 in the
smallest group. Spread: 400 tasks with four masked samples each, effects of one factor that differ between tasks by a
standard deviation of 0.2 or not at all.
"""

import argparse

import numpy as np
from numpy.typing import NDArray

from shopskill_lib import ols, resampling, subgroups

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

EFFECTS = np.array([0.06, 0.05, 0.04, 0.03, 0.02, -0.04, -0.03, -0.02, *[0.0] * 8])
NAMES = [f"factor_{k:02d}" for k in range(1, 17)]
GROUPS = np.repeat(["large", "middle", "small"], [160, 140, 100])
RESAMPLES = 1000


def draw(rng: np.random.Generator, extra: float = 0.0) -> tuple[FloatArray, IntArray]:
    """Paired differences of 400 tasks and their masks; the small group gains from the first factor."""
    masks = rng.integers(0, 2, (len(GROUPS), 16))
    effect = masks @ EFFECTS + extra * masks[:, 0] * (GROUPS == "small")
    base = 0.12 + 0.36 * rng.beta(0.8, 0.8, len(GROUPS))
    return (rng.random(len(base)) < base + effect).astype(float) - (rng.random(len(base)) < base), masks


def by_group(seed: int, repetitions: int, extra: float) -> tuple[float, float, float, float]:
    """Return coverage within groups, error ratio when shrunken, gates that tell others and the right one apart."""
    rng, covered, squares, any_found, right = np.random.default_rng([seed, 1]), [], [], [], []
    truth = np.tile(EFFECTS, (3, 1))
    truth[2, 0] += extra
    for _ in range(repetitions):
        delta, masks = draw(rng, extra)
        found = subgroups.study(delta, masks, np.arange(len(delta)), NAMES, {"group": GROUPS.tolist()})
        item = found.groupings[0]
        assert item.groups == ("large", "middle", "small") and item.p_holm is not None
        covered.append(np.abs(item.effects - truth) <= item.half_widths)
        squares.append([np.sum((values - truth) ** 2) for values in (item.effects, item.shrunken)])
        any_found.append(bool((item.p_holm[1:] <= subgroups.LEVEL).any()))
        right.append(bool(item.p_holm[0] <= subgroups.LEVEL))
    plain, shrunken = np.mean(squares, axis=0)
    return float(np.mean(covered)), shrunken / plain, float(np.mean(any_found)), float(np.mean(right))


def bca(seed: int, repetitions: int) -> tuple[float, float]:
    """Return coverage of the percentile and of the BCa intervals."""
    rng = np.random.default_rng([seed, 2])
    percentile: list[NDArray[np.bool_]] = []
    corrected: list[NDArray[np.bool_]] = []
    for repetition in range(repetitions):
        delta, masks = draw(rng)
        tasks = np.arange(len(delta))
        params = ols.fit(delta, masks, NAMES, tasks).params
        drawn = resampling.bootstrap_coefficients(delta, masks, tasks, RESAMPLES, repetition)
        found = resampling.coefficient_intervals(delta, masks, tasks, params, drawn)
        ends = np.array(found.bca, dtype=np.float64)
        for intervals, covered in ((found.percentile, percentile), (ends, corrected)):
            covered.append((intervals[:, 0] <= EFFECTS) & (intervals[:, 1] >= EFFECTS))
    return float(np.mean(percentile)), float(np.mean(corrected))


def spread(seed: int, repetitions: int, tau: float) -> tuple[float, float, float]:
    """Return mean estimate of the first factor's square of tau, coverage of its interval, and of the common one's."""
    rng, squares, own, common = np.random.default_rng([seed, 3]), [], [], []
    tasks = np.repeat(np.arange(400), 4)
    for _ in range(repetitions):
        masks = rng.integers(0, 2, (len(tasks), 16))
        base = np.repeat(rng.uniform(0.35, 0.65, 400), 4)
        varying = np.repeat(rng.choice([-tau, tau], 400), 4)
        bare = np.repeat((rng.random(400) < base[::4]).astype(float), 4)
        masked = rng.random(len(tasks)) < base + 0.3 * (masks @ EFFECTS) + varying * (masks[:, 0] - 0.5)
        found, reason = subgroups.between_tasks(masked - bare, masks, tasks, NAMES)
        assert found is not None, reason
        squares.append(found.tau[0] ** 2)
        own.append(found.tau_low[0] <= tau <= found.tau_high[0])
        common.append(found.common_low <= tau / 4 <= found.common_high)
    return float(np.mean(squares)), float(np.mean(own)), float(np.mean(common))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--repetitions", type=int, default=1000)
    options = parser.parse_args()
    plain, corrected = bca(options.seed, options.repetitions)
    print(f"95 % intervals of coefficients, 400 pairs: percentile {plain:.3f}, BCa {corrected:.3f}", flush=True)
    for extra in (0.0, 0.3):
        covered, ratio, wrong, right = by_group(options.seed, options.repetitions, extra)
        print(
            f"three groups, +{extra} in one: within groups {covered:.3f}, error ratio {ratio:.2f}, gates with another "
            f"factor told apart {wrong:.3f}, with this one {right:.3f}",
            flush=True,
        )
    for tau in (0.0, 0.2):
        square, own, common = spread(options.seed, options.repetitions, tau)
        print(f"spread {tau}: mean square {square:.4f}, covered {own:.3f}, over all factors {common:.3f}", flush=True)


if __name__ == "__main__":
    main()
