"""The command `shopskill pool`, kept apart from the others because drawing takes a second to import."""

import argparse
import sys
from pathlib import Path

from shopskill_lib import plots, pooling
from shopskill_lib.console import Parser, respond
from shopskill_lib.files import write_bytes, write_json


def _parser() -> Parser:
    """Describe the command."""
    parser = Parser(prog="shopskill pool", description="several gates of the same chunks as one analysis")
    parser.add_argument(
        "runs", type=Path, nargs="+", metavar="RUN", help="folders of gates, checkpoints in their order"
    )
    parser.add_argument(
        "--out", type=Path, metavar="DIR", help="write pool.json, pool.csv, drift.csv and forest.svg there"
    )
    parser.add_argument("--resamples", type=int, default=2000, help="bootstrap resamples of tasks")
    parser.add_argument("--analysis-seed", type=int, default=0, help="seed of the bootstrap")
    parser.set_defaults(command=_pool)
    return parser


def _pool(options: argparse.Namespace) -> str:
    """Pool the gates of these folders."""
    members = [pooling.read_member(run) for run in options.runs]
    found = pooling.pool(members, resamples=options.resamples, analysis_seed=options.analysis_seed)
    if options.out is None:
        return str(found)
    write_json(options.out / "pool.json", found.to_json())
    write_bytes(
        options.out / "pool.csv", found.to_frame().assign(simulated=found.simulated).to_csv(index=False).encode()
    )
    write_bytes(options.out / "drift.csv", found.drift.assign(simulated=found.simulated).to_csv(index=False).encode())
    plots.save(plots.forest(found), options.out / "forest.svg")
    return f"{found}\nforest plot: {options.out / 'forest.svg'}"


if __name__ == "__main__":
    sys.exit(respond(_parser()))
