"""`shopskill doctor`: is everything there that a run needs, told line by line before the run costs anything.

This module looks at packages and disk and needs the standard library alone, so that it can name what is missing; with
all packages there, `checkup` takes the process over and looks at everything else.
"""

import argparse
import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import tempfile
import textwrap
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from shopskill_lib.console import Parser, respond, say
from shopskill_lib.errors import OutputError, SetupError
from shopskill_lib.folders import project

Mark = Literal["ok", "warning", "fails", "not checked"]

SAMPLE = 8
"""Validation tasks that are run bare, unless told otherwise."""

_NARROWEST, _WIDEST = 80, 120
"""Columns of the page, whatever the terminal has."""
_MARKS, _NAMES = 13, 18
"""Columns before the name of a check, and of the name."""

_REQUIREMENT = re.compile(r"([\w.-]+?)\s*>=\s*([\d.]+)")
_PINNED = re.compile(r"^([\w.-]+)==([\d.]+)", re.MULTILINE)
_IMPORTED_AS = {"pyyaml": "yaml", "scikit-learn": "sklearn"}
_IMPORT = "import importlib, sys\nfor name in sys.argv[1:]:\n    importlib.import_module(name)\n    print(name)"


@dataclass(frozen=True, slots=True)
class Finding:
    """What a check found.

    Attributes:
        mark: how it is; a check that could not be made is `not checked`, never `ok`.
        found: what was found, or why nothing could be.
        remedy: what to do about it; "" where nothing is to be done.
    """

    mark: Mark
    found: str
    remedy: str = ""

    def line(self, name: str) -> str:
        """Return the line of the check of this name, wrapped under its text, the remedy on a line of its own."""
        width = min(_WIDEST, max(_NARROWEST, shutil.get_terminal_size((100, 24)).columns))
        mark = self.mark.upper() if self.mark == "fails" else self.mark
        margin = " " * (_MARKS + _NAMES)
        lines = textwrap.wrap(
            self.found,
            width,
            initial_indent=mark.ljust(_MARKS) + name.ljust(_NAMES),
            subsequent_indent=margin,
            break_on_hyphens=False,
        )
        if self.remedy:
            lines += textwrap.wrap(
                self.remedy, width, initial_indent=f"{margin}-> ", subsequent_indent=f"{margin}   ",
                break_on_hyphens=False,
            )  # fmt: skip
        return "\n".join(lines)


def parser() -> Parser:
    """Describe the command."""
    made = Parser(prog="shopskill doctor", description="check a set-up before it costs anything")
    made.add_argument("parameters", type=Path, metavar="PARAMS", help="flat YAML, for example params/embedded.yaml")
    made.add_argument("--only", action="append", default=[], metavar="NAME", help="a notebook, as for shopskill run")
    made.add_argument("-p", dest="overrides", action="append", default=[], metavar="NAME=VALUE")
    made.add_argument("--out", type=Path, metavar="DIR", help="run folder; default outputs/<PARAMS>")
    made.add_argument(
        "--sample",
        type=int,
        default=SAMPLE,
        metavar="N",
        help=f"bare validation episodes to run, the run's own and bought once; 0 for none (default {SAMPLE})",
    )
    return made


def packages(root: Path) -> Finding:
    """Tell whether the packages of `pyproject.toml` are installed, recent enough and importable.

    A major version that differs from the pinned one (`constraints.txt`) is a warning: nobody has tried it.
    """
    requirements = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]["dependencies"]
    least = {match[1]: match[2] for match in map(_REQUIREMENT.match, requirements) if match}
    constraints = (root / "constraints.txt").read_text(encoding="utf-8")
    pinned = {name.lower().replace("_", "-"): version for name, version in _PINNED.findall(constraints)}
    installed = {name: version for name in least if (version := _version(name))}
    absent = [name for name in least if name not in installed]
    old = [name for name, version in installed.items() if _numbers(version) < _numbers(least[name])]
    other = [name for name, version in installed.items() if _numbers(version)[:1] != _numbers(pinned[name])[:1]]
    problems = [f"{name} is not installed" for name in absent]
    problems += [f"{name} is {installed[name]}, {least[name]} or later is needed" for name in old]
    problems += [] if problems else _unimportable(list(installed))
    mend = "let make build .venv again, or: python -m pip install -c constraints.txt -e ."
    if problems:
        return Finding("fails", "; ".join(problems), mend)
    if other:
        told = ", ".join(f"{name} {installed[name]} (pinned {pinned[name]})" for name in other)
        return Finding("warning", f"another major version than tested: {told}", mend)
    python = ".".join(map(str, sys.version_info[:3]))
    return Finding("ok", f"{len(least)} packages importable, major versions as pinned; Python {python}")


def _version(name: str) -> str | None:
    """Return the installed version of a package, None without any."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _numbers(version: str) -> tuple[int, ...]:
    """Return the leading numbers of a version."""
    found = re.match(r"\d+(?:\.\d+)*", version)
    return tuple(map(int, found[0].split("."))) if found else ()


def _unimportable(names: list[str]) -> list[str]:
    """Return why the first package that cannot be imported cannot; a process of its own survives what they do."""
    modules = [_IMPORTED_AS.get(name, name) for name in names]
    tried = subprocess.run([sys.executable, "-c", _IMPORT, *modules], capture_output=True, text=True, check=False)
    if tried.returncode == 0:
        return []
    culprit = names[len(tried.stdout.splitlines())]
    why = (tried.stderr.strip().splitlines() or [f"exit code {tried.returncode}"])[-1]
    return [f"{culprit} cannot be imported ({why})"]


def disk(run_dir: Path, need: int, basis: str) -> Finding:
    """Tell whether a run folder, made or not, can be written and has room.

    Args:
        run_dir: the run folder.
        need: bytes that the run may write at most.
        basis: what that rests on.

    Raises:
        OutputError: nothing can be written there.
    """
    place = next(path for path in (run_dir, *run_dir.parents) if path.exists())
    try:
        with tempfile.TemporaryFile(dir=place) as file:
            file.write(b"doctor")
            file.flush()
        free = shutil.disk_usage(place).free
    except OSError as error:
        raise OutputError(
            f"the run folder {run_dir} cannot be written ({error.strerror})",
            where=str(place),
            allowed="a folder that you may write, on a disk with space",
            todo="choose another one with --out, or free some space",
        ) from error
    found = f"{_size(free)} free in {place}, writable; the run writes up to {_size(need)} ({basis})"
    if free >= 2 * need:
        return Finding("ok", found)
    return Finding("fails" if free < need else "warning", found, "free some space, or choose another disk with --out")


def _size(count: float) -> str:
    """Return bytes in words."""
    return f"{count / 1e9:,.1f} GB" if count >= 1e9 else f"{count / 1e6:,.0f} MB"


def _begin(options: argparse.Namespace) -> str:
    """Check the packages, then let `checkup` take the process over.

    Raises:
        SetupError: packages are missing, and nothing else can be checked.
    """
    found = packages(project())
    say(found.line("packages"))
    if found.mark != "fails":
        os.execv(sys.executable, [sys.executable, "-m", "shopskill_lib.checkup", *sys.argv[1:]])
    say(Finding("not checked", "because packages failed").line("everything else"))
    raise failure(options.parameters, ["packages"])


def failure(parameters: Path, names: list[str]) -> SetupError:
    """Return the error that ends a page on which checks fail (exit code 2)."""
    return SetupError(
        f"{len(names)} check{'s' * (len(names) > 1)} failed: {', '.join(names)}",
        where=str(parameters),
        allowed="a set-up in which no check fails",
        todo="follow the remedies above, then repeat the same command",
    )


if __name__ == "__main__":
    made = parser()
    made.set_defaults(command=_begin)
    sys.exit(respond(made))
