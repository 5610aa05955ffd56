"""How much smaller do pairs of masks make a gate's errors at equal masked rollouts, and do the intervals hold?

    python bench/designs.py simulated [--seed 0] [--repetitions 600]
    python bench/designs.py optimal [--seed 0] [--proposals 80000]
    python bench/designs.py shop [--seed 1] [--gates 60] [--language en] [--processes 2]

*simulated*: rewards 0 or 1 over tasks whose bare success follows a Beta distribution, one bare rollout a task, 16
coefficients with effects from -0.06 to +0.08, once of 16 chunks and once of 12 chunks and two slots of two versions.
Success probabilities are cut to [0, 1], and the truth is the fit of their means to independent masks.

*optimal*: how near the shipped masks are to the best that exchanges find, by the mean variance of M19's coefficients
(A) and by the determinant of their covariance (D), where rows of a task share the bare run's noise. Every exchange
keeps how often each state comes up. The best is sought twice: freely, and with no larger error of a shift between the
arms than balanced masks have (independent ones where a task has one masked rollout). Cells are ratios of errors.

*shop*: gates by the protocol itself on the embedded shop, 16 chunks of the shipped draft against its stored truth. The
reference has the 400 validation tasks, every other gate a random part of them with as many masked rollouts.

Prints Markdown tables.
"""

import argparse
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cache, partial
from multiprocessing import get_context
from operator import itemgetter
from pathlib import Path
from typing import get_args

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from truth import measure_gate, open_shop

from shopskill_lib import folders, masks, ols, optimal
from shopskill_lib.lab import truth
from shopskill_lib.masks import Design, Slot
from shopskill_lib.records import Language

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
Choice = tuple[Design, int]

EFFECTS = np.linspace(-0.06, 0.08, 16)[[5, 12, 0, 9, 3, 15, 7, 1, 10, 4, 13, 8, 2, 11, 6, 14]]
NAMES = [f"factor_{k:02d}" for k in range(1, 17)]
DRAFTS = {"16 chunks": (1,) * 16, "12 chunks and 2 with a rewrite": (1,) * 12 + (2, 2)}
TASKS = {"Beta(0.8, 1.2)": (0.8, 1.2), "Beta(0.5, 0.5)": (0.5, 0.5), "Beta(3, 0.5)": (3.0, 0.5)}
SIMULATED: tuple[Choice, ...] = (
    ("independent", 1), ("independent", 2), ("complementary", 2), ("balanced", 2), ("balanced", 4), ("balanced", 8),
    ("d_optimal", 1), ("d_optimal", 3),
)  # fmt: skip
IN_SHOP: tuple[Choice, ...] = tuple(choice for choice in SIMULATED if choice != ("balanced", 8))

SINGLE: tuple[Design, ...] = ("independent", "d_optimal")
"""Designs of one masked rollout a task."""

SEARCHED = 50
"""D-optimal masks that simulated gates use in turn: a search takes about a second."""


@dataclass
class Tally:
    """What the gates of one design found: (K,) rows."""

    estimates: list[FloatArray] = field(default_factory=list)
    errors: list[FloatArray] = field(default_factory=list)
    held: list[NDArray[np.bool_]] = field(default_factory=list)

    def add(self, fit: ols.OLSFit, known: FloatArray) -> None:
        low, high = fit.conf_int().T
        self.estimates.append(fit.params)
        self.errors.append(fit.bse)
        self.held.append((low <= known) & (known <= high))


def simulate(
    versions: tuple[int, ...], choice: Choice, masked: int, seed: int, repetitions: int
) -> dict[str, tuple[Tally, FloatArray]]:
    """Fit gates of one design over all kinds of tasks, on the same masks; kind -> tally and truth."""
    design, samples = choice
    slots = slots_of(versions)
    ids = [str(task) for task in range(masked // samples)]
    number = np.repeat(np.arange(len(ids)), samples)
    rng = np.random.default_rng([seed, samples, masked])
    found = {kind: (Tally(), true_coefficients(versions, shape)) for kind, shape in TASKS.items()}
    drawn: list[IntArray] = []
    for repetition in range(repetitions):
        number_of_masks = repetition % SEARCHED if design == "d_optimal" else repetition
        if repetition == number_of_masks:
            drawn.append(masks.assign(repetition, "val", ids, slots, samples, design).masks)
        shown = drawn[number_of_masks]
        for kind, shape in TASKS.items():
            base = rng.beta(*shape, len(ids))
            bare = rng.random(len(ids)) < base
            rewards = rng.random(len(shown)) < base[number] + shown @ EFFECTS
            tally, known = found[kind]
            tally.add(ols.fit(rewards.astype(float) - bare[number], shown, NAMES, number), known)
    return found


def slots_of(versions: Sequence[int]) -> list[Slot]:
    return [Slot(f"slot{j}", tuple(f"slot{j}-{k}" for k in range(count))) for j, count in enumerate(versions)]


@cache
def true_coefficients(versions: tuple[int, ...], shape: tuple[float, float]) -> FloatArray:
    """What the coefficients estimate: cut success probabilities, fitted to many independent masks."""
    rng = np.random.default_rng(987)
    states = np.column_stack([rng.integers(0, count + 1, 200_000) for count in versions])
    shown = np.column_stack([states[:, j] == k for j, count in enumerate(versions) for k in range(1, count + 1)])
    base, total = np.sort(rng.beta(*shape, 20_000)), shown @ EFFECTS
    grid = np.linspace(total.min(), total.max(), 200)
    gain = [np.mean(np.clip(base + effect, 0, 1) - base) for effect in grid]
    return np.asarray(np.linalg.lstsq(shown.astype(float), np.interp(total, grid, gain))[0])


def print_simulated(seed: int, repetitions: int) -> None:
    """Print scatter of the estimates, ratio to the reference and coverage."""
    for draft, versions in DRAFTS.items():
        slot = np.repeat(versions, versions)
        print(f"\n{draft}: standard error (ratio to the reference; coverage of the 95 % intervals)\n")
        print("| tasks | masked | of | " + " | ".join(f"{design} {samples}" for design, samples in SIMULATED) + " |")
        print("|---" * (len(SIMULATED) + 3) + "|")
        for masked in (400, 800):
            found = [simulate(versions, choice, masked, seed, repetitions) for choice in SIMULATED]
            for kind in TASKS:
                for label, count in (("chunks", 1), ("versions", 2)):
                    if count in slot:
                        cells = [figures(tallies[kind], slot == count) for tallies in found]
                        shown = [f"{se:.4f} ({se / cells[0][0]:.2f}; {held:.3f})" for se, held in cells]
                        print(f"| {kind} | {masked} | {label} | " + " | ".join(shown) + " |", flush=True)


def figures(found: tuple[Tally, FloatArray], columns: NDArray[np.bool_]) -> tuple[float, float]:
    """Mean standard error of these columns, as the estimates scatter, and coverage."""
    tally, _ = found
    scatter = np.std(tally.estimates, axis=0, ddof=1)[columns].mean()
    return float(scatter), float(np.mean(np.array(tally.held)[:, columns]))


@dataclass(frozen=True)
class Yardstick:
    """Covariance of M19's coefficients under (tasks, samples, slots) states, in units of one rollout's variance.

    A constant is the last column of what they show.
    """

    versions: tuple[int, ...]

    def covariance(self, rows: FloatArray, tasks: FloatArray) -> tuple[FloatArray, FloatArray]:
        """(..., K, K) covariance without a constant, and (...) variance of the constant beside the factors."""
        inverse = np.linalg.inv(rows[..., :-1, :-1])
        known = inverse @ (rows + tasks)[..., :-1, :-1] @ inverse
        shift = np.linalg.inv(rows)[..., -1, :]
        return known, np.einsum("...k,...kl,...l->...", shift, rows + tasks, shift)

    def errors(self, states: IntArray) -> FloatArray:
        """Root of the mean variance, root of the determinant's K-th root, error of the shift (infinite if aliased)."""
        rows, tasks = (moment.sum(axis=0) for moment in optimal.moments(states, self.versions))
        known, shift = self.covariance(rows, tasks)
        determinant = np.exp(np.linalg.slogdet(known)[1] / len(known))
        aliased = np.linalg.matrix_rank(rows) < len(rows)
        return np.sqrt([np.trace(known) / len(known), determinant, np.inf if aliased else shift])


def exchange(yard: Yardstick, states: IntArray, largest_shift: float, proposals: int, seed: int) -> IntArray:
    """Improve (tasks, samples, slots) states by exchanges in one slot until `proposals` are used up.

    An exchange is of two rows of two tasks, of all rows of two tasks, or of the order of a task's rows. The best of 64
    is taken if it lowers the mean variance, times the square of what the shift's variance exceeds the allowed one by.
    """
    rng, each, states = np.random.default_rng(seed), np.arange(64), states.copy()
    samples, slots = states.shape[1:]
    rows, tasks = (moment.sum(axis=0) for moment in optimal.moments(states, yard.versions))
    best = np.inf
    for _ in range(proposals // len(each)):
        places = rng.integers(len(states), size=(len(each), 2))
        places[:, 1] = (places[:, 0] + 1 + places[:, 1] % (len(states) - 1)) % len(states)
        slot, one, other = (rng.integers(size, size=len(each)) for size in (slots, samples, samples))
        old, new = states[places], states[places]
        kind = rng.integers(3, size=len(each)) if samples > 1 else np.zeros(len(each), dtype=int)
        a, b, c = (each[kind == k] for k in range(3))
        new[a, 0, one[a], slot[a]], new[a, 1, other[a], slot[a]] = (
            old[a, 1, other[a], slot[a]],
            old[a, 0, one[a], slot[a]],
        )
        new[b, 0, :, slot[b]], new[b, 1, :, slot[b]] = old[b, 1, :, slot[b]], old[b, 0, :, slot[b]]
        new[c, 0, :, slot[c]] = old[c, 0, ::-1, slot[c]]
        (more, longer), (less, shorter) = (
            [moment.sum(axis=1) for moment in optimal.moments(both, yard.versions)] for both in (new, old)
        )
        known, shift = yard.covariance(rows + more - less, tasks + longer - shorter)
        value = np.trace(known, axis1=1, axis2=2) * np.maximum(shift / largest_shift, 1.0) ** 2
        taken = int(value.argmin())
        if value[taken] < best - 1e-12:
            best, states[places[taken]] = value[taken], new[taken]
            rows, tasks = rows + (more - less)[taken], tasks + (longer - shorter)[taken]
    return states


def print_optimal(seed: int, proposals: int) -> None:
    """Print errors of the shipped masks over those of the best found, and the error of the shift."""
    print("| draft | tasks | masked a task | masks | A | D | A at equal shift | D | error of the shift |")
    print("|---" * 9 + "|")
    more = {"4 chunks and 6 with a rewrite": (1,) * 4 + (2,) * 6, "8 with a rewrite": (2,) * 8}
    for draft, versions in (DRAFTS | more).items():
        yard, slots = Yardstick(versions), slots_of(versions)
        for tasks, samples in ((100, 2), (400, 2), (100, 1), (400, 1)):
            ids, designs = [str(task) for task in range(tasks)], get_args(Design) if samples > 1 else SINGLE
            drawn = {
                design: [
                    masks.assign(number, "val", ids, slots, samples, design).states.reshape(tasks, samples, -1)
                    for number in range(seed, seed + 20)
                ]
                for design in designs
            }
            found = {
                design: np.mean([yard.errors(states) for states in sets], axis=0) for design, sets in drawn.items()
            }
            yardstick: Design = "balanced" if samples > 1 else "independent"
            starts, shift = [sets[0] for sets in drawn.values()], found[yardstick][2]
            free, bound = (
                min((yard.errors(exchange(yard, start, limit, proposals, seed)) for start in starts), key=itemgetter(0))
                for limit in (np.inf, shift**2)
            )
            for name, row in {**found, "best": free, "best at equal shift": bound}.items():
                cells = [row[0] / free[0], row[1] / free[1], row[0] / bound[0], row[1] / bound[1], row[2] / shift]
                print(
                    f"| {draft} | {tasks} | {samples} | {name} | " + " | ".join(f"{cell:.3f}" for cell in cells) + " |"
                )


def run_gate(language: Language, folder: Path, choice: Choice, seed: int) -> pd.DataFrame:
    """Run and fit a gate of one design on a random part of the validation tasks, with new masks and episodes."""
    (design, samples), shop = choice, open_shop(language, folder)
    tasks = shop.tasks("val")
    drawn = np.random.default_rng(seed).permutation(len(tasks))[: len(tasks) // samples]
    chosen = {tasks[place].task_id: tasks[place] for place in sorted(drawn)}
    settings = shop.settings.model_copy(
        update={
            "n_val": len(chosen), "masked_samples": samples, "mask_design": design, "mask_seed": seed,
            "rollout_seed": seed, "policy_concurrency": 1,
        }
    )  # fmt: skip
    place = folders.folder(str(folder / f"{design}_{samples}_{seed}"))
    bench = replace(shop, settings=settings, folder=place, catalogue=replace(shop.catalogue, tasks=chosen))
    return measure_gate(bench).frame.set_index("intervention_id")


def print_shop(language: Language, seed: int, gates: int, processes: int) -> None:
    """Print reported errors, distances to the truth and coverage, and their ratios to the reference."""
    columns = "masks | tasks | gates | mean reported error | ratio | rmse | ratio | bias | coverage"
    print(f"| {columns} |\n" + "|---" * 9 + "|")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        shop = open_shop(language, folder)
        known = truth.read(folder, shop)
        if known is None:
            sys.exit("the stored truth is of another draft, shop or shopper: run shopskill truth again")
        true = known.set_index("intervention_id")["true_coefficient"]
        reference: tuple[float, float] | None = None
        with ProcessPoolExecutor(processes, get_context("spawn")) as pool:
            for choice in IN_SHOP:
                seeds = range(seed, seed + gates)
                frames = list(pool.map(partial(run_gate, language, folder, choice), seeds))
                off = np.array([frame["coefficient"] - true for frame in frames])
                held = np.mean([(frame["ci_low"] <= true) & (true <= frame["ci_high"]) for frame in frames])
                error = float(np.mean([frame["std_error"] for frame in frames]))
                rmse = float(np.sqrt(np.mean(off**2)))
                reference = reference or (error, rmse)
                print(
                    f"| {choice[0]} {choice[1]} | {len(shop.tasks('val')) // choice[1]} | {gates} | {error:.4f} "
                    f"| {error / reference[0]:.3f} | {rmse:.4f} | {rmse / reference[1]:.3f} | {off.mean():+.4f} "
                    f"| {held:.4f} |",
                    flush=True,
                )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=("simulated", "optimal", "shop"))
    parser.add_argument("--seed", type=int, help="of the rewards (0), or of the first gate in the shop (1)")
    parser.add_argument("--repetitions", type=int, default=600)
    parser.add_argument("--proposals", type=int, default=80_000)
    parser.add_argument("--gates", type=int, default=60)
    parser.add_argument("--language", choices=("en", "zh"), default="en")
    parser.add_argument("--processes", type=int, default=2)
    options = parser.parse_args()
    if options.part == "simulated":
        print_simulated(options.seed or 0, options.repetitions)
    elif options.part == "optimal":
        print_optimal(options.seed or 0, options.proposals)
    else:
        seed = 1 if options.seed is None else options.seed
        print_shop(options.language, seed, options.gates, options.processes)


if __name__ == "__main__":
    main()
