"""What planning takes, and whether bare replicates would pay.

    python bench/planning.py speed
    python bench/planning.py bare

*speed*: processor and wall time of a curve of 20 sizes and five designs, the actual rule applied to 20,000 draws each.

*bare*: the smallest error of a budget with one bare rollout a task, as the protocol has it (M18), and with the best of
one to four whose mean is the bare reward (theory), by design. Splits are those of `planning.allocate`, bare success is
0.45. Prints a Markdown table: the least and the largest gain, in per cent of the error, over shares between tasks of
0.2, 0.5 and 0.8 and spreads of 0, 0.05 and 0.1.
"""

import argparse
import time
from itertools import product
from typing import get_args

import pandas as pd

from shopskill_lib import planning
from shopskill_lib.masks import Design

DRAFTS = {"16 chunks": (16, 0), "10 chunks and 2 with a rewrite": (10, 2), "6 chunks": (6, 0)}
BUDGETS = (400, 800, 1600, 3200)


def print_speed() -> None:
    for chunks, rewrites in DRAFTS.values():
        question = planning.Question(0.45, 0.5, chunks, rewrites)
        wall, processor = time.perf_counter(), time.process_time()
        planning.compare(question, planning.CURVE)
        wall, processor = time.perf_counter() - wall, time.process_time() - processor
        print(
            f"{chunks + rewrites} slots, {rewrites} with a rewrite: {wall:.1f} s, {processor:.1f} s of processor time"
        )


def print_bare() -> None:
    print("| draft | masks | " + " | ".join(f"{budget} rollouts" for budget in BUDGETS) + " |")
    print("|---" * (2 + len(BUDGETS)) + "|")
    for draft, (chunks, rewrites) in DRAFTS.items():
        gains: dict[str, list[list[float]]] = {}
        for between, spread in product((0.2, 0.5, 0.8), (0.0, 0.05, 0.1)):
            question = planning.Question(0.45, between, chunks, rewrites, spread=spread)
            tables = [planning.allocate(question, budget, (1, 2, 3, 4)) for budget in BUDGETS]
            for design in get_args(Design):
                gains.setdefault(design, []).append([gain(table[table["design"] == design]) for table in tables])
            gains.setdefault("the best of all", []).append([gain(table) for table in tables])
        for design, found in gains.items():
            cells = [f"{min(column):.1f} to {max(column):.1f} %" for column in zip(*found, strict=True)]
            print(f"| {draft} | {design} | " + " | ".join(cells) + " |")


def gain(table: pd.DataFrame) -> float:
    """Return by how many per cent the smallest error is below the smallest one with one bare rollout a task."""
    alone = table.loc[table["bare a task"] == 1, "std error"].min()
    return float(100 * (1 - table["std error"].min() / alone))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=("speed", "bare"))
    print_speed() if parser.parse_args().part == "speed" else print_bare()


if __name__ == "__main__":
    main()
