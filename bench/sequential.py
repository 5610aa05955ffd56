"""Looks at declared stages by simulation: errors of labels that were ever given, and how early helping chunks get one.

Scores of 16 chunks are normal and independent, as coefficients of a large gate nearly are; four help, by as many
standard errors of the whole gate as the table says. Labels are Benjamini and Hochberg's at each look's level.
"""

import argparse

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import stats

from shopskill_lib import sequential

FloatArray = NDArray[np.float64]

CHUNKS, HELPING = 16, 4


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--repetitions", type=int, default=20_000)
    parser.add_argument("--stages", type=int, default=4)
    options = parser.parse_args()
    rng = np.random.default_rng(options.seed)
    shares = np.arange(1, options.stages + 1) / options.stages
    levels = np.array(sequential.levels(shares.tolist()))
    print("levels:", ", ".join(f"{100 * level:.2g} %" for level in levels))
    rows = []
    for effect in (0.0, 2.0, 3.0, 4.0):
        labelled = {
            "declared": _labelled(rng, shares, levels, effect, options.repetitions),
            "5 % at every look": _labelled(rng, shares, np.full(len(shares), 0.05), effect, options.repetitions),
            "the end only": _labelled(rng, shares[-1:], np.array([0.05]), effect, options.repetitions),
        }
        for name, found in labelled.items():
            ever: NDArray[np.bool_] = np.asarray(found.any(axis=1))
            false: NDArray[np.bool_] = ever[:, HELPING:] if effect else ever
            rows.append(
                {
                    "effect / error": effect,
                    "labels": name,
                    "any false": (false.sum(axis=1) > 0).mean(),
                    "false share": (false.sum(axis=1) / np.maximum(ever.sum(axis=1), 1)).mean(),
                    "power": ever[:, :HELPING].mean() if effect else None,
                    "by stage": " ".join(f"{found[:, k, :HELPING].mean():.3f}" for k in range(found.shape[1])),
                }
            )
    print(pd.DataFrame(rows).round(4).to_string(index=False, na_rep="-"))


def _labelled(
    rng: np.random.Generator, shares: FloatArray, levels: FloatArray, effect: float, repetitions: int
) -> NDArray[np.bool_]:
    """Return (repetitions, looks, chunks): whether a look labels a chunk."""
    steps = rng.normal(size=(repetitions, len(shares), CHUNKS)) * np.sqrt(np.diff(shares, prepend=0))[:, None]
    drift = np.where(np.arange(CHUNKS) < HELPING, effect, 0.0) * shares[:, None]
    p = 2 * stats.norm.sf(np.abs(np.cumsum(steps, axis=1) + drift) / np.sqrt(shares)[:, None])
    found: NDArray[np.bool_] = stats.false_discovery_control(p, axis=2) <= levels[:, None]
    return found


if __name__ == "__main__":
    main()
