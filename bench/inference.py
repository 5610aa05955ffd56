"""What the labels, the simultaneous intervals, the shrinkage and the halves of a gate are worth, on simulated pairs.

    python bench/inference.py [--seed 0] [--repetitions 400]

Gates with known effects of five kinds: rewards 0 or 1 over tasks of their own difficulty; the same at a success of
0.18; bounded rewards; zero-inflated ones, where most tasks end alike in both arms, as in the published gate; and
effects that interact. Masks follow M17 (16 factors); fits, resamples and the rule (K = 10) are the library's own.
Prints a Markdown table: simultaneous coverage, false labels among the labelled, power of `keep`, mean squared error of
the shrunken estimates over that of the plain ones, and the bias of the selected set's total: naive, shrunken, halves.
"""

import argparse
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from shopskill_lib import inference, ols, resampling, selection
from shopskill_lib.sources import Intervention

FloatArray = NDArray[np.float64]

EFFECTS = np.array([0.06, 0.05, 0.04, 0.03, 0.02, -0.04, -0.03, -0.02, *[0.0] * 8])
NAMES = [f"factor_{k:02d}" for k in range(1, 17)]
RULE = selection.Rule([Intervention(name, name, order=k) for k, name in enumerate(NAMES)], 10)
RESAMPLES = 1000
KINDS = ("binary", "binary, success 0.18", "bounded", "zero-inflated", "interacting")


@dataclass
class Tally:
    """What is counted over the gates of one kind."""

    covered: list[bool] = field(default_factory=list)
    false_share: list[float] = field(default_factory=list)
    power: list[float] = field(default_factory=list)
    squares: list[FloatArray] = field(default_factory=list)
    bias: list[FloatArray] = field(default_factory=list)


def draw(kind: str, pairs: int, rng: np.random.Generator) -> tuple[FloatArray, NDArray[np.int64]]:
    """Paired differences and masks of one gate."""
    masks = rng.integers(0, 2, (pairs, 16))
    effect = masks @ EFFECTS
    if kind == "interacting":
        effect = effect + 0.04 * (masks[:, 0] * masks[:, 8] - 0.25)
    low, high = -EFFECTS.clip(max=0).sum() + 0.02, 1 - EFFECTS.clip(min=0).sum() - 0.04
    mean = 0.18 if kind == "binary, success 0.18" else 0.45
    centre = (mean - low) / (high - low)
    base = low + (high - low) * rng.beta(1.5 * centre, 1.5 * (1 - centre), pairs)
    if kind == "bounded":
        return np.clip(base + effect + 0.2 * rng.normal(size=pairs), 0, 1) - np.clip(
            base + 0.2 * rng.normal(size=pairs), 0, 1
        ), masks
    if kind == "zero-inflated":  # in four of five pairs chance falls out alike, and only the effect can tell them apart
        alike = rng.random(pairs) < 0.8
        luck = rng.random(pairs)
        return (np.where(alike, luck, rng.random(pairs)) < base + effect).astype(float) - (luck < base), masks
    return (rng.random(pairs) < base + effect).astype(float) - (rng.random(pairs) < base), masks


def truth(kind: str) -> FloatArray:
    """What the coefficients estimate: the projection of the mean difference on the masks, over many pairs."""
    if kind in ("binary", "binary, success 0.18", "zero-inflated"):
        return EFFECTS
    rng = np.random.default_rng(987)
    parts = [np.linalg.lstsq(masks.astype(float), delta)[0] for delta, masks in _many(kind, rng)]
    return np.asarray(np.mean(parts, axis=0))


def _many(kind: str, rng: np.random.Generator) -> Iterator[tuple[FloatArray, NDArray[np.int64]]]:
    for _ in range(40):
        yield draw(kind, 100_000, rng)


def simulate(kind: str, pairs: int, seed: int, repetitions: int) -> Tally:
    """Fit and judge many gates of one kind."""
    rng, known, tally, tasks = np.random.default_rng([seed, pairs]), truth(kind), Tally(), np.arange(pairs)
    none = np.abs(known) < 0.004
    for repetition in range(repetitions):
        delta, masks = draw(kind, pairs, rng)
        fit = ols.fit(delta, masks, NAMES, tasks)
        drawn = resampling.bootstrap_coefficients(delta, masks, tasks, RESAMPLES, repetition)
        joint = inference.infer(fit.params, fit.cov_params, fit.pvalues, drawn)
        halves = resampling.split_half(delta, masks, tasks, fit.cov_params, RULE, repetition)
        assert halves is not None
        keep, drop = (np.array(joint.labels) == label for label in ("keep", "drop"))
        false = (keep & (none | (known < 0))) | (drop & (none | (known > 0)))
        chosen = RULE(fit.params[None, :])[1][0]
        tally.covered.append(bool(((joint.simultaneous[:, 0] <= known) & (known <= joint.simultaneous[:, 1])).all()))
        tally.false_share.append(false.sum() / max((keep | drop).sum(), 1))
        tally.power.append(float(keep[:5].mean()))
        shrunken = joint.shrinkage.params
        tally.squares.append(np.array([np.sum((values - known) ** 2) for values in (fit.params, shrunken)]))
        sums = [fit.params[chosen].sum(), shrunken[chosen].sum(), halves.gain]
        tally.bias.append(np.array(sums) - known[chosen].sum())
    return tally


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--repetitions", type=int, default=400)
    options = parser.parse_args()
    print(
        "| rewards | pairs | all 16 covered | false labels | power of keep | error ratio | naive | shrunken | halves |"
    )
    print("|---|---|---|---|---|---|---|---|---|")
    for kind in KINDS:
        for pairs in (400, 1600):
            found = simulate(kind, pairs, options.seed, options.repetitions)
            plain, shrunken = np.mean(found.squares, axis=0)
            bias = " | ".join(f"{value:+.3f}" for value in np.mean(found.bias, axis=0))
            print(
                f"| {kind} | {pairs} | {np.mean(found.covered):.3f} | {np.mean(found.false_share):.3f} "
                f"| {np.mean(found.power):.2f} | {shrunken / plain:.2f} | {bias} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
