"""Parameters of a run: read, typed against the notebooks' own defaults, refused before anything is made."""

import ast
import difflib
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import papermill
import yaml

from shopskill_lib import settings
from shopskill_lib.errors import InputError, ParameterError
from shopskill_lib.files import read_text
from shopskill_lib.folders import project
from shopskill_lib.settings import Settings

Scalar = str | int | float | bool

PATHS = ("observations", "interventions", *settings.PATHS)
"""Parameters that name a file: relative to where the command is typed, handed on relative to the run folder."""

GATE_A = "03_gate_a"
"""Where a run begins that is given its draft."""

_KINDS: dict[type, str] = {str: "a text", int: "a whole number", float: "a number", bool: "true or false"}


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
    if not name or not isinstance(parsed, Scalar) or not _is_scalar(parsed):
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
        named = name in PATHS and value not in ("", settings.SHIPPED)
        return os.path.relpath(str(value), self.run_dir) if named else value


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
    if given.get("draft") and not only:
        chosen = {name: path for name, path in chosen.items() if name >= GATE_A}
    if given.get("observations") and len(chosen) > 1:
        raise ParameterError(
            "observations names one file, and several notebooks would read it",
            where="observations",
            allowed="one notebook with observations, or none",
            todo="add --only 03_gate_a for masked pairs, or --only 04_gate_b for equipped pairs",
        )
    whole: dict[str, Scalar] = {
        name: str(Path(str(given[name])).expanduser().resolve())
        for name in PATHS
        if given.get(name) not in (None, "", settings.SHIPPED)
    }
    order = Order(chosen, given | whole, known, (out or project() / "outputs" / parameters.stem).resolve())
    order.settings  # noqa: B018 - refuses values out of range before anything is made
    return order


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
