"""How often M20's mask test refuses a sound run: `python bench/missingness.py` (seed 0)."""

import numpy as np
from scipy import stats

from shopskill_lib import checks

RUNS, PAIRS, FACTORS, MISSING = 1000, 400, 16, 20


def main() -> None:
    """Print the share of runs with 5 % of episodes missing at random that each level refuses."""
    rng = np.random.default_rng(0)
    gone = np.arange(PAIRS) < MISSING
    adjusted, plain = [], []
    for _ in range(RUNS):
        masks = rng.integers(2, size=(PAIRS, FACTORS))
        adjusted.append(checks.missingness(gone, np.zeros(PAIRS, dtype=bool), masks).mask_p_values.min() < 0.05)
        tables = [[[on[gone].sum(), on[~gone].sum()], [(1 - on[gone]).sum(), (1 - on[~gone]).sum()]] for on in masks.T]
        plain.append(min(stats.fisher_exact(table).pvalue for table in tables) < 0.05)
    print(f"{RUNS} sound runs, {MISSING} of {PAIRS} masked episodes missing at random, {FACTORS} factors; refused:")
    print(f"  any Fisher p < 0.05:          {np.mean(plain):.3f}")
    print(f"  any Holm-adjusted p < 0.05:   {np.mean(adjusted):.3f}")


if __name__ == "__main__":
    main()
