"""Does the gate select the better chunks of drafts that the workbench compiled itself? Everything is simulated.

    python bench/drafts.py --out DIR [--drafts 10] [--language en] [--seed 0] [--processes 2]

Every draft has a rollout and mask seed of its own, hence training rollouts, cards, texts, masks and gate episodes of
its own; shop, tasks and author are the same. Cold start on 400 training tasks, Gate A on 400 val tasks, then the truth
of the draft by brute force; only the shopper's wire is left out. Each draft has a folder in DIR: what is finished there
is not run again. Intervals are over drafts (t), on these val tasks.
"""

import argparse
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import stats
from truth import measure_gate, open_shop, print_table

from shopskill_lib import cold_start, folders, protocol
from shopskill_lib.lab import truth
from shopskill_lib.records import Language
from shopskill_lib.simulated.competences import advice
from shopskill_lib.skills import Chunk

DRAWS, PRECISION = 2, 4
"""Of the truth: draws a task at first, doubled until the gate's errors are four times those of every true value."""


class Measured(NamedTuple):
    """What a draft's gate and its truth say of it.

    Attributes:
        table: one row a chunk by title: truth, estimate, `held` by the interval and `selected` as 0 or 1, and `words`:
            1 where its words help the shopper, 0 where they say nothing to it, -1 where they harm.
        share: largest error of a true value as a share of the gate's own.
    """

    seed: int
    table: pd.DataFrame
    share: float
    seconds: int


def run_draft(language: Language, out: Path, seed: int) -> Measured:
    """Compile, gate and brute-force what a draft's folder still owes."""
    shop = open_shop(language, out)
    names = {"mask_seed": seed, "rollout_seed": seed, "policy_concurrency": 1, "author_concurrency": 1, "draft": ""}
    folder = folders.folder(str(out / f"{language}_{seed}"))
    bench = replace(shop, settings=shop.settings.model_copy(update=names), folder=folder, pool=None)
    cold_start.collect(bench)
    cold_start.draft(bench)
    bench = replace(bench, pool=protocol.read_draft(bench.settings, folder))
    found = measure_gate(bench)
    known = truth.measure(bench, draws=DRAWS, precision=PRECISION)
    table = table_of(found.frame, known.to_frame(), protocol.pool_of(bench).versions)
    return Measured(seed, table, known.facts["largest_share"], known.facts["seconds"])


def table_of(gate: pd.DataFrame, known: pd.DataFrame, chunks: Mapping[str, Chunk]) -> pd.DataFrame:
    """One row a chunk: its truth, and what the gate made of it."""
    table, gate = known.set_index("intervention_id"), gate.set_index("intervention_id")
    true = table["true_coefficient"]
    table["estimate"], table["std_error"] = gate["coefficient"], gate["std_error"]
    table["held"] = ((gate["ci_low"] <= true) & (true <= gate["ci_high"])).astype(int)
    table["selected"] = (gate["status"] == "selected").astype(int)
    table["words"] = [effect_of(chunks[version].text) for version in table.index]
    return table.rename(index={version: chunk.title for version, chunk in chunks.items()})


def effect_of(text: str) -> int:
    """Return 1, 0 or -1: whether more sentences help than harm, by the shopper's own cues."""
    return int(np.sign(sum(helping - harming for helping, harming in advice(text).values())))


def summarise(measured: Sequence[Measured]) -> pd.DataFrame:
    """One row a draft; NaN where nothing was selected or nothing rejected."""
    rows = {}
    for one in measured:
        table, chosen = one.table, one.table["selected"] == 1
        row = {"chunks": len(table), "selected": chosen.sum(), "held": table["held"].sum()}
        for column in ("true_coefficient", "alone"):
            of_selected, of_rejected = table.loc[chosen, column].mean(), table.loc[~chosen, column].mean()
            row |= {f"{column}, selected": of_selected, f"{column}, rejected": of_rejected}
            row[f"{column}, difference"] = of_selected - of_rejected
        row["spearman"] = stats.spearmanr(table["estimate"], table["true_coefficient"]).statistic
        rows[f"seed {one.seed}"] = row | {"largest_error_share": one.share}
    return pd.DataFrame.from_dict(rows, orient="index")


def interval(values: NDArray[np.float64]) -> str:
    """Mean over drafts with its 95 % t interval."""
    low, high = stats.t.interval(0.95, len(values) - 1, values.mean(), stats.sem(values))
    return f"{values.mean():+.4f} [{low:+.4f}, {high:+.4f}] over {len(values)} drafts"


def print_totals(measured: Sequence[Measured], summary: pd.DataFrame) -> None:
    chunks = pd.concat([one.table for one in measured])
    chosen = chunks["selected"] == 1
    for column in ("true_coefficient", "alone"):
        differences = summary[f"{column}, difference"].dropna().to_numpy()
        print(f"simulated; mean {column} of {chosen.sum()} selected {chunks.loc[chosen, column].mean():+.4f}, of "
              f"{(~chosen).sum()} rejected {chunks.loc[~chosen, column].mean():+.4f}")  # fmt: skip
        print(f"  difference by draft: {interval(differences)}, above 0 in {(differences > 0).sum()}")
    said = []
    for words, meaning in ((1, "help"), (0, "say nothing"), (-1, "harm")):
        own = chunks.loc[chunks["words"] == words, "selected"]
        said.append(f"{own.sum()} of {len(own)} that {meaning}")
    print(f"selected, by what the words do to the shopper: {', '.join(said)}")
    print(f"Spearman of estimate and truth by draft: {interval(summary['spearman'].to_numpy())}")
    errors = chunks["true_error"] / chunks["std_error"]
    expected = 2 * stats.norm.cdf(stats.norm.ppf(0.975) / np.sqrt(1 + errors**2)).mean() - 1
    print(f"truths inside the 95 % intervals: {chunks['held'].mean():.4f} of {len(chunks)}; exact intervals would hold "
          f"{expected:.4f} of truths with these errors (mean share {errors.mean():.3f} of the gate's)")  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--drafts", type=int, default=10)
    parser.add_argument("--language", choices=("en", "zh"), default="en")
    parser.add_argument("--seed", type=int, default=0, help="of the first draft")
    parser.add_argument("--processes", type=int, default=2)
    options = parser.parse_args()
    open_shop(options.language, options.out)
    seeds = range(options.seed, options.seed + options.drafts)
    measured = []
    with ProcessPoolExecutor(options.processes, get_context("spawn")) as pool:
        for one in pool.map(partial(run_draft, options.language, options.out), seeds):
            print(f"\nsimulated draft, seed {one.seed}; truth in {one.seconds} s\n", flush=True)
            print_table("chunk", one.table)
            measured.append(one)
    summary = summarise(measured)
    print(f"\nsimulated; {len(measured)} drafts\n")
    print_table("draft", summary)
    print()
    print_totals(measured, summary)


if __name__ == "__main__":
    main()
