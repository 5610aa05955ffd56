"""A run is a folder that the notebooks fill one after the other: parameters, papermill, provenance.

This is also the command `shopskill run`, kept apart from the others because papermill takes a second to import.
"""

import argparse
import ast
import difflib
import importlib.metadata
import json
import math
import os
import platform
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pandas as pd
import papermill
import yaml

from shopskill_lib import masks, protocol, report, settings
from shopskill_lib.console import Parser, respond
from shopskill_lib.errors import InputError, NotebookError, ParameterError
from shopskill_lib.files import read_text, write_bytes, write_json
from shopskill_lib.folders import folder, project
from shopskill_lib.settings import Settings

Scalar = str | int | float | bool

PATHS = ("observations", "interventions", *settings.PATHS)
"""Parameters that name a file: relative to where the command is typed, handed on relative to the run folder."""

_KINDS: dict[type, str] = {str: "a text", int: "a whole number", float: "a number", bool: "true or false"}

ROLL_OUT = {
    "03_gate_a": (protocol.plan_gate_a, protocol.gate_a),
    "04_gate_b": (protocol.plan_gate_b, protocol.gate_b),
}
"""Notebook -> the plan it rests on, and the protocol that runs it."""

PACKAGES = ("jupyterlab", "papermill", "pandas", "numpy", "scipy", "statsmodels", "matplotlib", "seaborn", "nbval")


def notebooks() -> dict[str, Path]:
    """Name -> notebook, in the order they run."""
    return {path.stem: path for path in sorted((project() / "notebooks").glob("*.ipynb"))}


def declared(notebook: Path) -> dict[str, Scalar]:
    """Return a notebook's parameters and their defaults, read from its tagged cell."""
    parameters = papermill.inspect_notebook(str(notebook))
    return {name: ast.literal_eval(facts["default"]) for name, facts in parameters.items()}


def read_parameters(path: Path) -> dict[str, Scalar]:
    """Read a flat YAML of typed scalars.

    Raises:
        InputError: the file cannot be read as YAML.
        ParameterError: it is not flat.
    """
    try:
        document = yaml.safe_load(read_text(path))
    except yaml.YAMLError as error:
        raise InputError(
            f"this is not YAML ({' '.join(str(error).split())})",
            where=str(path),
            allowed="lines of `name: value`",
            todo="correct the file",
        ) from error
    if not isinstance(document, dict) or not all(map(_is_scalar, document.values())):
        raise ParameterError(
            "there is something else than names with one value each",
            where=str(path),
            allowed="a flat list of `name: value`, each value a text, a number, true or false",
            todo="write every parameter as one line",
        )
    return {str(name): value for name, value in document.items()}


def _is_scalar(value: object) -> bool:
    """Tell whether a value is a text, a finite number, true or false."""
    return isinstance(value, Scalar) and not (isinstance(value, float) and not math.isfinite(value))


def parse_override(text: str) -> tuple[str, Scalar]:
    """Read `name=value` of the command line; the value is YAML, as in a file."""
    name, equals, value = text.partition("=")
    try:
        parsed = yaml.safe_load(value) if equals else None
    except yaml.YAMLError:
        parsed = None
    if not name or not _is_scalar(parsed):
        raise ParameterError(
            f"{text!r} is no parameter",
            where="-p",
            allowed="-p name=value with one value; a text with a colon or comma in quotes",
            todo="give for example -p budget=8 or -p 'new_look=\"larger: asked for\"'",
        )
    return name, parsed


def check_parameters(given: Mapping[str, Scalar], known: Mapping[str, Scalar], where: str) -> None:
    """Refuse a name that no notebook declares and a value of another type than the default.

    Raises:
        ParameterError: names the parameter, its type and the nearest known name.
    """
    for name, value in given.items():
        if name not in known:
            parts = {part: known_name for known_name in known for part in (known_name, *known_name.split("_"))}
            close = [parts[part] for part in difflib.get_close_matches(name, parts, 1)]
            raise ParameterError(
                f"there is no parameter {name!r}",
                where=where,
                allowed=", ".join(sorted(known)),
                todo=f"did you mean {close[0]!r}" if close else "remove it, or correct the name",
            )
        kind = type(known[name])
        if type(value) is not kind and not (kind is float and type(value) is int):
            raise ParameterError(
                f"{name} is {value!r}, {_KINDS[type(value)]}",
                where=where,
                allowed=f"{_KINDS[kind]}, like the default {known[name]!r}",
                todo="correct the value" + (" (YAML reads 1e-3 as text; write 0.001)" if type(value) is str else ""),
            )


@dataclass(frozen=True, slots=True)
class Order:
    """What a run was asked for, checked.

    Attributes:
        chosen: name -> notebook, in the order they run.
        given: parameters that differ from the notebooks' defaults, paths made whole.
        known: every parameter that a notebook declares, with its default.
        run_dir: the run folder.
    """

    chosen: dict[str, Path]
    given: dict[str, Scalar]
    known: dict[str, Scalar]
    run_dir: Path

    @property
    def settings(self) -> Settings:
        """The settings among the parameters."""
        return Settings.of(self.known | self.given)

    def for_notebook(self, name: str) -> dict[str, Scalar]:
        """Return the parameters that a notebook declares, paths relative to the run folder."""
        declares = declared(self.chosen[name])
        return {key: self._portable(key, value) for key, value in self.given.items() if key in declares}

    def to_json(self) -> dict[str, Scalar]:
        """Return every parameter as it is used, paths relative to the run folder."""
        return {key: self._portable(key, value) for key, value in (self.known | self.given).items()}

    def _portable(self, name: str, value: Scalar) -> Scalar:
        return os.path.relpath(str(value), self.run_dir) if name in PATHS and value else value


def read_order(parameters: Path, only: Sequence[str], overrides: Sequence[str], out: Path | None) -> Order:
    """Check what is asked for before anything is made or run.

    Args:
        parameters: flat YAML; every name must be declared by a notebook.
        only: names of the notebooks to run; all by default.
        overrides: `name=value` texts that go before the YAML.
        out: the run folder; `outputs/<name of the YAML>` by default.

    Raises:
        ParameterError: a parameter or notebook is unknown, or of another type.
    """
    chosen = _choose(only)
    known = {
        name: value for path in notebooks().values() for name, value in declared(path).items() if name != "run_dir"
    }
    given = read_parameters(parameters)
    check_parameters(given, known, str(parameters))
    typed = dict(map(parse_override, overrides))
    check_parameters(typed, known, "-p")
    given |= typed
    if given.get("observations") and len(chosen) > 1:
        raise ParameterError(
            "observations names one file, and several notebooks would read it",
            where="observations",
            allowed="one notebook with observations, or none",
            todo="add --only 03_gate_a for masked pairs, or --only 04_gate_b for equipped pairs",
        )
    whole = {name: str(Path(str(given[name])).expanduser().resolve()) for name in PATHS if given.get(name)}
    order = Order(chosen, given | whole, known, (out or project() / "outputs" / parameters.stem).resolve())
    order.settings  # noqa: B018 - refuses values out of range before anything is made
    return order


def execute(order: Order) -> Path:
    """Roll out what each notebook needs, run the notebooks in the run folder, gather them in `report.html`.

    Rollouts happen in this process, where progress can be seen and Ctrl-C finishes what is in flight; the
    notebooks then find nothing owed.

    Raises:
        NotebookError: a notebook stopped; what was finished is kept.
        Interrupted: stopped on request; the same call goes on.
    """
    run_dir = folder(str(order.run_dir))
    if not (run_dir / "params.json").exists():
        _write_records(order)
    for name, path in order.chosen.items():
        if name in ROLL_OUT and not order.given.get("observations"):
            _roll_out(order, name)
        _run_notebook(path, run_dir, {**order.for_notebook(name), "run_dir": "."})
    _write_records(order)
    done = [run_dir / path.name for path in notebooks().values() if (run_dir / path.name).exists()]
    report.write(f"shopskill run {run_dir.name}", done, run_dir / "report.html")
    return run_dir


def pilot(order: Order, limit: int) -> str:
    """Roll out Gate A for its first tasks only, and say what that cost and what the rest will.

    The episodes are the full run's own: nothing is bought twice. No effect is estimated, so no look is taken.
    """
    bench = protocol.set_up(order.settings, folder(str(order.run_dir)))
    if not (order.run_dir / "params.json").exists():
        _write_records(order)
    masks.freeze(protocol.assign(bench), bench.folder / "masks.csv")
    sets = protocol.roll_out(bench, protocol.plan_gate_a(protocol.limited(bench, limit)), "gate_a")
    rest = protocol.foresee(bench, protocol.plan_gate_a(bench))
    return "\n".join([*map(str, sets.values()), f"Gate A in full: {rest}"])


def over_seeds(order: Order, seeds: Sequence[int]) -> str:
    """Run the notebooks once a seed of masks and analysis, bare episodes bought once, and compare the seeds."""
    first = order.run_dir / f"seed_{seeds[0]}"
    rows = []
    for seed in seeds:
        own: dict[str, Scalar] = {"mask_seed": seed, "analysis_seed": seed}
        own |= {"reuse_from": str(first)} if seed != seeds[0] else {}
        place = execute(replace(order, given=order.given | own, run_dir=order.run_dir / f"seed_{seed}"))
        rows.append({"seed": seed, **_seed_row(place)})
    table = pd.DataFrame(rows).set_index("seed")
    write_bytes(order.run_dir / "seeds.csv", table.to_csv().encode())
    return f"{table.T.to_string()}\nreports: {order.run_dir}/seed_*/report.html"


def _seed_row(place: Path) -> dict[str, object]:
    """Return what is compared over seeds: decisions, Gate B's difference, every coefficient."""
    gate, test = (_record(place / name) for name in ("gate_a.json", "gate_b.json"))
    row: dict[str, object] = {}
    if gate:
        row |= {"selected": len(gate["selected"]), "joint p": round(gate["joint_test"]["p_value"], 4)}
    if test:
        reward = test["metrics"]["reward"]
        row |= {f"test {name}": round(reward[name], 4) for name in ("delta", "ci_low", "ci_high")}
    for factor in gate["factors"] if gate else ():
        star = "*" if factor["status"] == "selected" else ""
        row[factor["intervention_id"]] = "-" if factor["coefficient"] is None else f"{factor['coefficient']:+.3f}{star}"
    return row


def _record(path: Path) -> dict[str, Any]:
    """Read a frozen record; empty when there is none."""
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def _write_records(order: Order) -> None:
    """Write what the run was asked for and what it was made with."""
    write_json(order.run_dir / "params.json", order.to_json())
    write_json(order.run_dir / "provenance.json", _provenance())


def _roll_out(order: Order, name: str) -> None:
    """Run what a notebook's gate still owes, the forecast said before."""
    bench = protocol.set_up(order.settings, order.run_dir)
    plan, run_gate = ROLL_OUT[name]
    sys.stderr.write(f"{name}: {protocol.foresee(bench, plan(bench))}\n")
    run_gate(bench)


def _choose(only: Sequence[str]) -> dict[str, Path]:
    """Return the notebooks to run."""
    present = notebooks()
    unknown = [name for name in only if name not in present]
    if unknown:
        raise ParameterError(
            f"there is no notebook {unknown[0]!r}",
            where="--only",
            allowed=", ".join(present),
            todo="give one of these names",
        )
    return {name: path for name, path in present.items() if not only or name in only}


def _run_notebook(notebook: Path, run_dir: Path, parameters: Mapping[str, Scalar]) -> None:
    """Execute one notebook with the run folder as its working folder; the executed copy stays there.

    A copy that stopped is kept beside the last good one, under another name.
    """
    stopped = run_dir / f"{notebook.stem}.stopped.ipynb"
    try:
        papermill.execute_notebook(
            str(notebook),
            str(stopped),
            parameters=dict(parameters),
            cwd=str(run_dir),
            progress_bar=False,
            extra_arguments=["--log-level=ERROR"],
        )
    except papermill.PapermillExecutionError as error:
        message = " ".join(error.evalue.split())
        ours = re.fullmatch(r"(.*)\. Allowed: (.*)\. What to do: (.*)\.", message)
        found, allowed, todo = ours.groups() if ours else (f"{error.ename}: {message}", "cells that run", "mend it")
        raise NotebookError(
            found,
            where=f"notebook {notebook.stem}, cell {error.exec_count}",
            allowed=allowed,
            todo=f"{todo}; the cell stands in {stopped}, finished work is kept",
        ) from error
    stopped.replace(run_dir / notebook.name)


def _provenance() -> dict[str, object]:
    """Return when, with what versions and on which commit the run was made."""
    head = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=project(), capture_output=True, text=True, check=False
    ).stdout.strip()
    return {
        "started_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "shopskill": importlib.metadata.version("shopskill"),
        "commit": head or None,
        "python": platform.python_version(),
        "packages": {name: importlib.metadata.version(name) for name in PACKAGES},
    }


def _parser() -> Parser:
    """Describe the command."""
    parser = Parser(prog="shopskill run", description="run the notebooks with a YAML of parameters")
    parser.add_argument("parameters", type=Path, metavar="PARAMS", help="flat YAML, for example params/embedded.yaml")
    parser.add_argument("--only", action="append", default=[], metavar="NAME", help="a notebook, as 03_gate_a")
    parser.add_argument("-p", dest="overrides", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--out", type=Path, metavar="DIR", help="run folder; default outputs/<PARAMS>")
    parser.add_argument("--seeds", type=int, nargs="+", metavar="N", help="a run for each seed of masks and analysis")
    parser.add_argument("--limit", type=int, metavar="N", help="roll out the first N tasks of Gate A only, as a pilot")
    parser.set_defaults(command=_run)
    return parser


def _run(options: argparse.Namespace) -> str:
    """Run the notebooks; answer with the selection table, looks, notes, verdicts and the report's place."""
    if options.limit is not None and (options.limit < 1 or options.seeds):
        raise ParameterError(
            "--limit cannot be used so",
            where="--limit",
            allowed="a number of tasks from 1, without --seeds",
            todo="pilot one run first",
        )
    order = read_order(options.parameters, options.only, options.overrides, options.out)
    if options.limit is not None:
        return pilot(order, options.limit)
    if options.seeds:
        return over_seeds(order, options.seeds)
    place = execute(order)
    lines = []
    if (place / "selection.csv").exists():
        table = pd.read_csv(place / "selection.csv", index_col=0, dtype={"rank": "Int64"})
        lines.append(table.to_string(na_rep="-"))
    for record in (_record(place / name) for name in ("gate_a.json", "gate_b.json")):
        if record:
            looks = f"looks so far: {len(record['looks'])}; last reason: {record['looks'][-1]['reason']}"
            lines += [record["verdict"], *(f"note: {note}" for note in record["notes"]), looks]
    return "\n".join([*lines, f"report: {place / 'report.html'}"])


if __name__ == "__main__":
    sys.exit(respond(_parser()))
