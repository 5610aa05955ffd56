"""Coverage of the 95 % intervals of a gate on simulated pairs whose true effects are known.

    python bench/coverage.py [--seed 0] [--repetitions 2000] [--bootstraps 500]

Rewards are 0 or 1. Every task has a success probability of its own (a Beta distribution of concentration 1.5, so most
tasks are nearly always or nearly never solved), moved into [LOW, HIGH] so that adding the planted effects never leaves
[0, 1]: the linear model is exactly true and nothing is clipped. Masks follow M17's marginals: 15 slots, one of them
with two versions, 16 coefficients. Fits and resamples are the library's own. Prints a Markdown table.
"""

import argparse
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from shopskill_lib import ols, resampling

EFFECTS = np.array([0.04, 0.03, 0.02, -0.02, -0.015, *[0.0] * 11])
"""The last two columns are the versions of one slot."""
LOW, HIGH = -EFFECTS.clip(max=0).sum(), 1 - EFFECTS.clip(min=0).sum()
CONCENTRATION = 1.5
RESAMPLES = 1000
NAMES = [f"factor_{k:02d}" for k in range(1, len(EFFECTS) + 1)]


@dataclass
class Hits:
    """Whether each interval of each repetition held the truth, and the half-widths of the HC3 intervals."""

    hc3: list[NDArray[np.bool_]]
    classical: list[NDArray[np.bool_]]
    percentile: list[NDArray[np.bool_]]
    half_width: list[float]


Floats = NDArray[np.float64]


def draw(rng: np.random.Generator, pairs: int, success: float) -> tuple[Floats, NDArray[np.int64]]:
    """Paired differences and masks of one experiment."""
    masked, bare, masks, _ = draw_arms(rng, pairs, success)
    return masked - bare, masks


def draw_arms(rng: np.random.Generator, pairs: int, success: float) -> tuple[Floats, Floats, NDArray[np.int64], Floats]:
    """Masked and bare rewards of one experiment, its masks, and what each task succeeds with without a skill."""
    mean = (success - LOW) / (HIGH - LOW)
    base = LOW + (HIGH - LOW) * rng.beta(CONCENTRATION * mean, CONCENTRATION * (1 - mean), pairs)
    state = rng.integers(3, size=pairs)
    masks = np.column_stack([rng.integers(2, size=(pairs, 14)), state == 1, state == 2]).astype(np.int64)
    masked = rng.random(pairs) < base + masks @ EFFECTS
    return masked.astype(float), (rng.random(pairs) < base).astype(float), masks, base


def holds(low: NDArray[np.float64], high: NDArray[np.float64]) -> NDArray[np.bool_]:
    found: NDArray[np.bool_] = (low <= EFFECTS) & (high >= EFFECTS)
    return found


def simulate(pairs: int, success: float, seed: int, repetitions: int, bootstraps: int) -> Hits:
    rng = np.random.default_rng([seed, pairs, round(100 * success)])
    hits, tasks = Hits([], [], [], []), np.arange(pairs)
    for repetition in range(repetitions):
        delta, masks = draw(rng, pairs, success)
        fit = ols.fit(delta, masks, NAMES, tasks)
        low, high = fit.conf_int().T
        hits.hc3.append(holds(low, high))
        hits.half_width.append(float((high - low).mean() / 2))
        half = stats.t.ppf(0.975, fit.df_inference) * fit.bse_classical
        hits.classical.append(holds(fit.params - half, fit.params + half))
        if repetition < bootstraps:
            drawn = resampling.bootstrap_coefficients(delta, masks, tasks, RESAMPLES, repetition)
            hits.percentile.append(holds(*np.quantile(drawn, [0.025, 0.975], axis=0)))
    return hits


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--repetitions", type=int, default=2000)
    parser.add_argument("--bootstraps", type=int, default=500)
    options = parser.parse_args()
    print("| pairs | bare success | HC3 | HC3, lowest to highest factor | classical | bootstrap | half-width |")
    print("|---|---|---|---|---|---|---|")
    for pairs in (400, 1600):
        for success in (0.1, 0.5, 0.85):
            hits = simulate(pairs, success, options.seed, options.repetitions, options.bootstraps)
            single = np.mean(hits.hc3, axis=0)
            print(
                f"| {pairs} | {success} | {single.mean():.4f} | {single.min():.3f} to {single.max():.3f} "
                f"| {np.mean(hits.classical):.4f} | {np.mean(hits.percentile):.4f} | {np.mean(hits.half_width):.4f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
