"""The `shopskill` command: one line a command, errors as one message and exit code 2."""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from shopskill_lib import gates, run
from shopskill_lib.errors import ShopskillError
from shopskill_lib.lab import planted
from shopskill_lib.looks import write_json


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; 0 when it did its work, 2 when it could not."""
    options = _parser().parse_args(arguments)
    try:
        options.command(options)
    except ShopskillError as error:
        print(f"shopskill: {error}", file=sys.stderr)
        return 2
    return 0


def _parser() -> argparse.ArgumentParser:
    """Describe the commands."""
    parser = argparse.ArgumentParser(prog="shopskill", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    gate = commands.add_parser("gate", help="effects, uncertainty and selection from masked and bare pairs")
    gate.add_argument("file", type=Path, help="CSV of pairs, or a ShopSimRL contributions.json")
    gate.add_argument("--interventions", type=Path, metavar="JSON", help="ids, slots and kinds of the mask's columns")
    gate.add_argument("--budget", type=int, metavar="K", help="most factors to select; default min(10, slots)")
    gate.add_argument(
        "--max-missing", type=float, default=0.0, metavar="SHARE", help="share of pairs that may be missing"
    )
    gate.set_defaults(command=_gate)

    compare = commands.add_parser("compare", help="paired comparison of equipped and bare runs")
    compare.add_argument("file", type=Path, help="CSV with bare_x and equipped_x columns")
    compare.set_defaults(command=_compare)

    for command in (gate, compare):
        command.add_argument("--resamples", type=int, default=10_000, help="bootstrap resamples")
        command.add_argument("--analysis-seed", type=int, default=0, help="seed of the bootstrap")
        command.add_argument("--json", metavar="OUT", help="write the record there; - prints it instead of the table")

    simulate = commands.add_parser("simulate-observations", help="simulated pairs from planted effects")
    simulate.add_argument("--seed", type=int, required=True)
    simulate.add_argument("--tasks", type=int, default=400, help="tasks in each split")
    simulate.add_argument("--out", type=Path, default=Path("outputs/embedded"), help="run folder")
    simulate.set_defaults(command=_simulate)

    execute = commands.add_parser("run", help="run the notebooks with a YAML of parameters")
    execute.add_argument("parameters", type=Path, metavar="PARAMS")
    execute.add_argument(
        "--only", action="append", default=[], metavar="NAME", help="a notebook, for example 03_gate_a"
    )
    execute.add_argument("-p", dest="overrides", action="append", default=[], metavar="NAME=VALUE")
    execute.add_argument("--out", type=Path, metavar="DIR", help="run folder; default outputs/<PARAMS>")
    execute.set_defaults(command=_run)
    return parser


def _gate(options: argparse.Namespace) -> None:
    observations = gates.read_observations(options.file, options.interventions, options.max_missing)
    _give(
        gates.fit_gate(observations, options.budget, resamples=options.resamples, analysis_seed=options.analysis_seed),
        options.json,
    )


def _compare(options: argparse.Namespace) -> None:
    bare, equipped = gates.read_comparison(options.file)
    _give(
        gates.compare_paired(bare, equipped, resamples=options.resamples, analysis_seed=options.analysis_seed),
        options.json,
    )


def _give(result: gates.Gate | gates.Comparison, place: str | None) -> None:
    """Print the table, or the record, and write the record where asked."""
    if place == "-":
        print(json.dumps(result.to_json(), ensure_ascii=False, indent=1, allow_nan=False))
        return
    if place is not None:
        write_json(Path(place), result.to_json())
    print(result)


def _simulate(options: argparse.Namespace) -> None:
    planted.simulate(options.seed, options.tasks, options.out)
    print(f"simulated observations of {options.tasks} tasks a split, seed {options.seed}: {options.out}")


def _run(options: argparse.Namespace) -> None:
    place = run.execute(options.parameters, options.only, options.overrides, options.out)
    if (place / "selection.csv").exists():
        print(pd.read_csv(place / "selection.csv", index_col=0).to_string(na_rep="-"))
    for name in ("gate_a.json", "gate_b.json"):
        if (place / name).exists():
            print(json.loads((place / name).read_text(encoding="utf-8"))["verdict"])
    print(f"report: {place / 'report.html'}")
