"""Do the intervals of gates on the embedded shop hold the truth, and does the selection pick what truly helps?

    python bench/truth.py [--gates 20] [--language en] [--seed 1] [--processes 2]

One frozen draft, the shipped one, and its stored truth (`shopskill truth`); then gates of full size by the protocol
itself, each with mask and rollout seeds of its own, bare runs included. Only the wire is left out. Prints a Markdown
table of the chunks and what the gates made of them.
"""

import argparse
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import lru_cache, partial
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from shopskill_lib import folders, gates, protocol
from shopskill_lib.lab import truth
from shopskill_lib.records import Language
from shopskill_lib.settings import Settings
from shopskill_lib.workbench import Bench

RESAMPLES = 100
"""Of the bootstrap, which is not looked at here."""

COUNTS = ("chunks", "held", "selected", "words")
"""Columns of whole numbers."""


class Found(NamedTuple):
    """What one gate found."""

    frame: pd.DataFrame
    bare_success: float
    pair_sd: float
    verdict: str


@lru_cache(maxsize=1)
def open_shop(language: Language, folder: Path) -> Bench:
    return truth.off_the_wire(protocol.set_up(Settings.of({"language": language, "draft": "shipped"}), folder / "shop"))


def run_gate(language: Language, folder: Path, seed: int) -> Found:
    """Run Gate A with new masks and episodes."""
    shop = open_shop(language, folder)
    settings = Settings.of({"language": language, "mask_seed": seed, "rollout_seed": seed, "policy_concurrency": 1})
    return measure_gate(replace(shop, settings=settings, folder=folders.folder(str(folder / f"gate_{seed}"))))


def measure_gate(bench: Bench) -> Found:
    """Run what Gate A owes in the bench's folder, and fit it."""
    pairs = gates.read_observations(protocol.gate_a(bench), bench.folder / "interventions.json")
    gate = gates.fit_gate(pairs, resamples=RESAMPLES)
    sd = float(pairs.delta("reward").std(ddof=1))
    return Found(gate.to_frame(), gate.outcomes["r_success"].bare_mean, sd, gate.verdict())


def table_of(found: Sequence[Found], known: pd.DataFrame) -> pd.DataFrame:
    """One row a chunk: its truth, and what the gates made of it."""
    frames = [item.frame.set_index("intervention_id") for item in found]
    table = known.set_index("intervention_id")
    true = table["true_coefficient"]
    estimates = np.column_stack([frame["coefficient"] for frame in frames])
    table["mean_estimate"] = estimates.mean(axis=1)
    table["sd_estimate"] = estimates.std(axis=1, ddof=1)
    table["mean_std_error"] = np.column_stack([frame["std_error"] for frame in frames]).mean(axis=1)
    table["held"] = sum((frame["ci_low"] <= true) & (true <= frame["ci_high"]) for frame in frames)
    table["selected"] = sum((frame["status"] == "selected").astype(int) for frame in frames)
    return table


def print_table(label: str, table: pd.DataFrame) -> None:
    print(f"| {label} | " + " | ".join(table.columns) + " |\n" + "|---" * (len(table.columns) + 1) + "|")
    for name, row in table.iterrows():
        cells = [f"{value:.0f}" if column in COUNTS else f"{value:+.4f}" for column, value in row.items()]
        print(f"| {name} | " + " | ".join(cells) + " |")


def print_results(table: pd.DataFrame, found: Sequence[Found]) -> None:
    print_table("chunk", table)
    times, rejected = table["selected"], len(found) - table["selected"]
    intervals = len(found) * len(table)
    print(f"\nsimulated; {len(found)} gates; truths inside the 95 % intervals: {table['held'].sum() / intervals:.4f} "
          f"of {intervals}")  # fmt: skip
    for column in ("true_coefficient", "alone"):
        means = [float(np.average(table[column], weights=weights)) for weights in (times, rejected)]
        print(f"mean {column} of selected {means[0]:+.4f}, of rejected {means[1]:+.4f}")
    print(f"selected a gate {times.sum() / len(found):.2f}")
    for label, values in (
        ("bare success", [item.bare_success for item in found]),
        ("sd of a pair's difference", [item.pair_sd for item in found]),
    ):
        print(f"{label} {np.mean(values):.4f}, over gates {min(values):.4f} to {max(values):.4f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gates", type=int, default=20)
    parser.add_argument("--language", choices=("en", "zh"), default="en")
    parser.add_argument("--seed", type=int, default=1, help="of the first gate")
    parser.add_argument("--processes", type=int, default=2)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        known = truth.read(folder, open_shop(options.language, folder))
        if known is None:
            sys.exit("the stored truth is of another draft, shop or shopper: run shopskill truth again")
        seeds = range(options.seed, options.seed + options.gates)
        with ProcessPoolExecutor(options.processes, get_context("spawn")) as pool:
            found = list(pool.map(partial(run_gate, options.language, folder), seeds))
    print_results(table_of(found, known), found)


if __name__ == "__main__":
    main()
