"""What noise floors promise: fresh identical arms, and fresh gates of text that does nothing, held against them.

    python bench/noise.py [--seed 0] [--floors 200]

Rewards are 0 or 1, with a success probability of the task's own (Beta(0.6, 0.8)). A floor is measured from so many
repeats beside the gate's own bare run; 200 fresh pairs of arms and 200 fresh gates of 16 factors on the same tasks and
masks follow. Floors are the library's own. Prints a Markdown table.
"""

import argparse

import numpy as np
from numpy.typing import NDArray

from shopskill_lib import noise

FACTORS, FRESH, DRAWS = 16, 200, 500


def held(rng: np.random.Generator, tasks: int, samples: int, repeats: int, seed: int) -> list[float]:
    """Measure one floor; return the shares below it (arms, single coefficients, largest ones) and the floor itself."""
    chance, number = rng.beta(0.6, 0.8, tasks), np.repeat(np.arange(tasks), samples)
    masks = rng.integers(0, 2, (tasks * samples, FACTORS))
    runs = rng.binomial(1, chance[:, None], (tasks, repeats + 1)).astype(float)
    found, drawn = noise.scatter(runs, 100, seed), noise.idle_coefficients(runs, masks, number, DRAWS, seed)
    assert found is not None and drawn is not None
    one, other = rng.binomial(1, chance, (2, FRESH, tasks)).mean(axis=2)
    delta = rng.binomial(1, chance[number], (FRESH, len(number))) - rng.binomial(1, chance, (FRESH, tasks))[:, number]
    sizes = np.abs(np.linalg.lstsq(masks.astype(float), delta.T.astype(float), rcond=None)[0].T)
    idle = np.abs(drawn)
    return [
        float((np.abs(one - other) <= found.half_width.value).mean()),
        float((sizes <= np.quantile(idle, 0.95)).mean()),
        float((sizes.max(axis=1) <= np.quantile(idle.max(axis=1), 0.95)).mean()),
        found.half_width.value,
        float(np.quantile(idle, 0.95)),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--floors", type=int, default=200)
    options = parser.parse_args()
    print(
        "| tasks | masked a task | repeats | arms | coefficients | largest of 16 | floor of arms | of a coefficient |"
    )
    print("|---|---|---|---|---|---|---|---|")
    for tasks, samples, repeats in ((100, 1, 1), (100, 1, 5), (100, 2, 5), (400, 1, 1), (400, 1, 5)):
        rng = np.random.default_rng([options.seed, tasks, samples, repeats])
        rows = np.array([held(rng, tasks, samples, repeats, number) for number in range(options.floors)])
        mean: NDArray[np.float64] = rows.mean(axis=0)
        shares = " | ".join(f"{value:.3f}" for value in mean[:3])
        sizes = " | ".join(
            f"{value:.3f} ± {error:.3f}" for value, error in zip(mean[3:], rows[:, 3:].std(0), strict=True)
        )
        print(f"| {tasks} | {samples} | {repeats} | {shares} | {sizes} |", flush=True)


if __name__ == "__main__":
    main()
