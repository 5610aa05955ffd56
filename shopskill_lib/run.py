"""A run is a folder that the notebooks fill one after the other: parameters, papermill, provenance.

This is also the command `shopskill run`, kept apart from the others because papermill takes a second to import.
"""

import argparse
import ast
import difflib
import importlib.metadata
import json
import os
import platform
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

import pandas as pd
import papermill
import yaml

from shopskill_lib import report
from shopskill_lib.console import Parser, respond
from shopskill_lib.errors import InputError, NotebookError, ParameterError
from shopskill_lib.files import read_text, write_json
from shopskill_lib.folders import folder, project

Scalar = str | int | float | bool

PATHS = ("observations", "interventions")
"""Parameters that name a file: relative to where the command is typed, handed on relative to the run folder."""

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
    if not isinstance(document, dict) or not all(isinstance(value, Scalar) for value in document.values()):
        raise ParameterError(
            "there is something else than names with one value each",
            where=str(path),
            allowed="a flat list of `name: value`, each value a text, a number, true or false",
            todo="write every parameter as one line",
        )
    return {str(name): value for name, value in document.items()}


def parse_override(text: str) -> tuple[str, Scalar]:
    """Read `name=value` of the command line; the value is YAML, as in a file."""
    name, equals, value = text.partition("=")
    parsed = yaml.safe_load(value) if equals else None
    if not name or not isinstance(parsed, Scalar):
        raise ParameterError(
            f"{text!r} is no parameter", where="-p", allowed="-p name=value", todo="give for example -p budget=8"
        )
    return name, parsed


def check_parameters(given: Mapping[str, Scalar], known: Mapping[str, Scalar], where: str) -> None:
    """Refuse a name that no notebook declares and a value of another type than the default.

    Raises:
        ParameterError: names the parameter, its type and the nearest known name.
    """
    for name, value in given.items():
        if name not in known:
            close = difflib.get_close_matches(name, known, 1)
            raise ParameterError(
                f"there is no parameter {name!r}",
                where=where,
                allowed=", ".join(sorted(known)),
                todo=f"did you mean {close[0]!r}" if close else "remove it, or correct the name",
            )
        kind = type(known[name])
        if type(value) is not kind and not (kind is float and type(value) is int):
            raise ParameterError(
                f"{name} is {value!r}, a {type(value).__name__}",
                where=where,
                allowed=f"a {kind.__name__}, like the default {known[name]!r}",
                todo="correct the value (YAML reads 1e-3 as text; write 0.001)",
            )


def execute(parameters: Path, only: Sequence[str] = (), overrides: Sequence[str] = (), out: Path | None = None) -> Path:
    """Run the notebooks in a run folder, and gather them in `report.html`.

    Args:
        parameters: flat YAML; every name must be declared by a notebook.
        only: names of the notebooks to run; all by default.
        overrides: `name=value` texts that go before the YAML.
        out: the run folder; `outputs/<name of the YAML>` by default.

    Returns:
        The run folder.

    Raises:
        ParameterError: a parameter or notebook is unknown or of another type.
        NotebookError: a notebook stopped; what was finished is kept.
    """
    chosen = _choose(only)
    defaults = {name: declared(path) for name, path in notebooks().items()}
    known = {name: value for names in defaults.values() for name, value in names.items() if name != "run_dir"}
    given = read_parameters(parameters)
    check_parameters(given, known, str(parameters))
    typed = dict(map(parse_override, overrides))
    check_parameters(typed, known, "-p")
    given |= typed
    run_dir = folder(str(out or project() / "outputs" / parameters.stem))
    if given.get("observations") and len(chosen) > 1:
        raise ParameterError(
            "observations names one file, and several notebooks would read it",
            where="observations",
            allowed="one notebook with observations, or none",
            todo="add --only 03_gate_a for masked pairs, or --only 04_gate_b for equipped pairs",
        )
    for name in PATHS:
        if given.get(name):
            given[name] = os.path.relpath(Path(str(given[name])).expanduser(), run_dir)
    write_json(run_dir / "params.json", {name: given.get(name, value) for name, value in known.items()})
    write_json(run_dir / "provenance.json", _provenance())
    for name, path in chosen.items():
        own = {key: value for key, value in given.items() if key in defaults[name]}
        _run_notebook(path, run_dir, {**own, "run_dir": "."})
    done = [run_dir / f"{name}.ipynb" for name in defaults if (run_dir / f"{name}.ipynb").exists()]
    report.write(f"shopskill run {run_dir.name}", done, run_dir / "report.html")
    return run_dir


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
    """Execute one notebook with the run folder as its working folder; the executed copy stays there."""
    try:
        papermill.execute_notebook(
            str(notebook),
            str(run_dir / notebook.name),
            parameters=dict(parameters),
            cwd=str(run_dir),
            progress_bar=False,
            extra_arguments=["--log-level=ERROR"],
        )
    except papermill.PapermillExecutionError as error:
        ours = re.fullmatch(r"(.*)\. Allowed: (.*)\. What to do: (.*)\.", error.evalue, flags=re.DOTALL)
        found, allowed, todo = (
            ours.groups() if ours else (f"{error.ename}: {error.evalue}", "cells that run", "mend it")
        )
        raise NotebookError(
            found,
            where=f"notebook {notebook.stem}, cell {error.exec_count}",
            allowed=allowed,
            todo=f"{todo}; the cell stands in {run_dir / notebook.name}, finished work is kept",
        ) from error


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
    parser.set_defaults(command=_run)
    return parser


def _run(options: argparse.Namespace) -> str:
    """Run the notebooks; answer with the selection table, the verdicts and the report's place."""
    place = execute(options.parameters, options.only, options.overrides, options.out)
    lines = []
    if (place / "selection.csv").exists():
        table = pd.read_csv(place / "selection.csv", index_col=0, dtype={"rank": "Int64"})
        lines.append(table.to_string(na_rep="-"))
    records = [place / name for name in ("gate_a.json", "gate_b.json") if (place / name).exists()]
    lines += [json.loads(record.read_text(encoding="utf-8"))["verdict"] for record in records]
    return "\n".join([*lines, f"report: {place / 'report.html'}"])


if __name__ == "__main__":
    sys.exit(respond(_parser()))
