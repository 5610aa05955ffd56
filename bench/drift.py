"""Do the intervals of effects over checkpoints hold all chunks at once, and how often is "internalized" said?

    python bench/drift.py --seed 0 --repetitions 400

Simulated gates of one set of tasks at three or five checkpoints: rewards 0 or 1, success that lies with the task and
rises with training, new masks and a new bare run at every checkpoint. Of 8 chunks two help by 0.2 at first and by
nothing at last, one falls from 0.2 to 0.1, one rises from 0 to 0.2, two help by 0.1 throughout, two do nothing; all in
a straight line, so that drift and trend have one truth.
"""

import argparse

import numpy as np

from shopskill_lib import drift

FIRST = np.array([0.2, 0.2, 0.2, 0.0, 0.1, 0.1, 0.0, 0.0])
LAST = np.array([0.0, 0.0, 0.1, 0.2, 0.1, 0.1, 0.0, 0.0])
GONE, KEPT = slice(0, 2), slice(2, None)
"""Chunks that the last checkpoint no longer needs, and the others."""

TOLD = ("drift", "trend")

INTERCEPT, SLOPE, SCATTER = 0.1, 0.1, 0.1
"""Mean bare success at first, its rise, its standard deviation over tasks; with all chunks it stays below 1."""


def gates(seed: int, tasks: int, checkpoints: int) -> list[float]:
    """Simulate the gates of one training: whether all drifts and all trends are held, shares of labels of both."""
    rng = np.random.default_rng([seed, tasks, checkpoints])
    own = rng.uniform(-1, 1, tasks) * SCATTER
    names, parts, deltas = [], [], []
    for number, done in enumerate(np.linspace(0, 1, checkpoints)):
        shown = rng.integers(0, 2, (tasks, len(FIRST)))
        base = INTERCEPT + SLOPE * done + own
        effects = FIRST + done * (LAST - FIRST)
        deltas.append((rng.random(tasks) < base + shown @ effects).astype(float) - (rng.random(tasks) < base))
        columns = np.zeros((tasks, checkpoints * len(FIRST)), dtype=np.int64)
        columns[:, number * len(FIRST) : (number + 1) * len(FIRST)] = shown
        parts.append(columns)
        names += [f"{number} chunk {chunk}" for chunk in range(len(FIRST))]
    masks, rows = np.concatenate(parts), np.tile(np.arange(tasks), checkpoints)
    found = drift.over(np.concatenate(deltas), masks, names, rows, checkpoints).set_index("chunk")
    found = found.loc[[f"chunk {chunk}" for chunk in range(len(FIRST))]]
    held = [
        float(((found[f"{name}_low"] <= LAST - FIRST) & (found[f"{name}_high"] >= LAST - FIRST)).all()) for name in TOLD
    ]
    said = [(found[f"{name}_label"] == "internalized").to_numpy() for name in TOLD]
    return [*held, *(float(labels[part].mean()) for part in (GONE, KEPT) for labels in said)]


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--repetitions", type=int, default=400)
    options = parser.parse_args()
    print(
        "| tasks | checkpoints | all drifts | all trends | gone, by drift | by trend | not gone, by drift | by trend |"
    )
    print("|---" * 8 + "|")
    for tasks in (200, 400, 1600):
        for checkpoints in (3, 5):
            seeds = range(options.seed, options.seed + options.repetitions)
            cells = np.mean([gates(seed, tasks, checkpoints) for seed in seeds], axis=0)
            print(f"| {tasks} | {checkpoints} | " + " | ".join(f"{cell:.3f}" for cell in cells) + " |", flush=True)


if __name__ == "__main__":
    main()
