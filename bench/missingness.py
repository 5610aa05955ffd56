"""What missing pairs do to a gate: how often M20's mask test refuses, and what the intervals are worth.

    python bench/missingness.py [--seed 0] [--repetitions 1000]

The gates are those of `bench/coverage.py` (400 pairs, 16 coefficients, known effects). Masked episodes go missing, a
twentieth of them on average, in one of these ways:

- at random;
- by task: those of hard tasks only (independent of masks and of what would have happened);
- by outcome: of failed episodes only;
- by skill: only where the first factor is shown;
- by skill and outcome: only where it is shown and the episode fails.

Prints a Markdown table. *Covered* is the share of 95 % HC3 intervals of complete pairs that hold the truth, *first*
that of the first factor alone; *bias* its mean error; *bounds* the share of worst-case bounds that hold the
coefficients which nothing missing would have given; *refused* the share of gates that M20's mask test refuses.
"""

import argparse

import numpy as np
from coverage import EFFECTS, NAMES, Floats, draw_arms, holds
from numpy.typing import NDArray
from scipy import stats

from shopskill_lib import checks, ols

PAIRS, SUCCESS, SHARE = 400, 0.5, 0.05
LEVEL = 0.05

WAYS = ("at random", "by task", "by outcome", "by skill", "by skill and outcome")


def weights(way: str, masked: Floats, masks: NDArray[np.int64], base: Floats) -> Floats:
    """(PAIRS,) how strongly each masked episode tends to go missing."""
    failed, shown = 1 - masked, masks[:, 0].astype(float)
    hard = (base < np.median(base)).astype(float)
    drawn = {
        "at random": np.ones(PAIRS),
        "by task": hard,
        "by outcome": failed,
        "by skill": shown,
        "by skill and outcome": shown * failed,
    }
    return drawn[way]


def simulate(way: str, seed: int, repetitions: int) -> str:
    """Return one row of the table."""
    rng = np.random.default_rng([seed, WAYS.index(way)])
    covered, errors, bounded, refused, plain = [], [], [], [], []
    for _ in range(repetitions):
        masked, bare, masks, base = draw_arms(rng, PAIRS, SUCCESS)
        weight = weights(way, masked, masks, base)
        gone = rng.random(PAIRS) < SHARE * weight * PAIRS / weight.sum()
        kept = ~gone
        fit = ols.fit((masked - bare)[kept], masks[kept], NAMES, np.arange(kept.sum()))
        covered.append(holds(*fit.conf_int().T))
        errors.append(fit.params - EFFECTS)
        whole = np.linalg.lstsq(masks, masked - bare, rcond=None)[0]
        low, high = checks.worst_case_bounds(np.where(gone, np.nan, masked), bare, masks)
        bounded.append((low <= whole + 1e-9) & (whole <= high + 1e-9))
        refused.append(checks.missingness(gone, np.zeros(PAIRS, dtype=bool), masks).mask_p_values.min() < LEVEL)
        tables = [[[on[gone].sum(), on[kept].sum()], [(1 - on[gone]).sum(), (1 - on[kept]).sum()]] for on in masks.T]
        plain.append(min(stats.fisher_exact(table).pvalue for table in tables) < LEVEL)
    first, bias = np.mean(covered, axis=0)[0], np.mean(errors, axis=0)[0]
    return (
        f"| {way} | {np.mean(covered):.3f} | {first:.3f} | {bias:+.4f} | {np.mean(bounded):.3f} "
        f"| {np.mean(refused):.3f} | {np.mean(plain):.3f} |"
    )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--repetitions", type=int, default=1000)
    options = parser.parse_args()
    print("| missing | covered | first | bias of the first | bounds | refused | refused without Holm |")
    print("|---|---|---|---|---|---|---|")
    for way in WAYS:
        print(simulate(way, options.seed, options.repetitions), flush=True)


if __name__ == "__main__":
    main()
