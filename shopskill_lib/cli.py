"""The `shopskill` command: one line a command, errors as one message and exit code 2."""

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

import pandas as pd

from shopskill_lib import gates, run
from shopskill_lib.errors import OutputError, ParameterError, ShopskillError
from shopskill_lib.lab import planted
from shopskill_lib.looks import write_json


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; 0 when it did its work, 2 when it could not."""
    try:
        options = _parser().parse_args(arguments)
        _print(options.command(options))
    except ShopskillError as error:
        sys.stderr.write(f"shopskill: {error}\n")
        return 2
    return 0


def _print(text: str) -> None:
    """Print the answer; a reader that stops early (`| head`) is no error, a full disk is one."""
    try:
        sys.stdout.write(text + "\n")
        sys.stdout.flush()
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if not isinstance(error, BrokenPipeError):
            raise OutputError(
                f"the answer cannot be written ({error.strerror})",
                where="standard output",
                allowed="a place with space that you may write",
                todo="free some space, or write elsewhere",
            ) from error


class _Parser(argparse.ArgumentParser):
    """An argument parser whose errors are of our tree: one message."""

    def error(self, message: str) -> NoReturn:
        """Raise instead of printing the usage over several lines."""
        usage = " ".join(self.format_usage().split()).removeprefix("usage: ")
        raise ParameterError(message, where="command line", allowed=usage, todo=f"see {self.prog} --help")


def _parser() -> argparse.ArgumentParser:
    """Describe the commands."""
    parser = _Parser(prog="shopskill", description=__doc__)
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


def _gate(options: argparse.Namespace) -> str:
    """Fit a gate on a file of pairs."""
    observations = gates.read_observations(options.file, options.interventions, options.max_missing)
    seeds = {"resamples": options.resamples, "analysis_seed": options.analysis_seed}
    return _answer(gates.fit_gate(observations, options.budget, **seeds), options.json)


def _compare(options: argparse.Namespace) -> str:
    """Compare two arms in a file."""
    bare, equipped = gates.read_comparison(options.file)
    seeds = {"resamples": options.resamples, "analysis_seed": options.analysis_seed}
    return _answer(gates.compare_paired(bare, equipped, **seeds), options.json)


def _answer(result: gates.Gate | gates.Comparison, place: str | None) -> str:
    """Return the record where `-` asks for it, else the table; write the record where a path is given."""
    if place == "-":
        return json.dumps(result.to_json(), ensure_ascii=False, indent=1, allow_nan=False)
    if place is not None:
        write_json(Path(place), result.to_json())
    return str(result)


def _simulate(options: argparse.Namespace) -> str:
    """Write simulated observations."""
    planted.simulate(options.seed, options.tasks, options.out)
    return f"simulated observations of {options.tasks} tasks a split, seed {options.seed}: {options.out}"


def _run(options: argparse.Namespace) -> str:
    """Run the notebooks; answer with the selection table, the verdicts and the report's place."""
    place = run.execute(options.parameters, options.only, options.overrides, options.out)
    lines = []
    if (place / "selection.csv").exists():
        table = pd.read_csv(place / "selection.csv", index_col=0, dtype={"rank": "Int64"})
        lines.append(table.to_string(na_rep="-"))
    records = [place / name for name in ("gate_a.json", "gate_b.json") if (place / name).exists()]
    lines += [json.loads(record.read_text(encoding="utf-8"))["verdict"] for record in records]
    return "\n".join([*lines, f"report: {place / 'report.html'}"])


if __name__ == "__main__":
    sys.exit(main())
