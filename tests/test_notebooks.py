"""Notebooks are thin, stored without outputs, and their defaults are the embedded parameters."""

import ast
import json
from pathlib import Path
from typing import Any

import pytest

from shopskill_lib import parameters
from shopskill_lib.settings import Settings

ROOT = Path(__file__).parents[1]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
MORE = sorted((ROOT / "notebooks" / "more").glob("*.ipynb"))
"""Notebooks that no run executes."""


def cells(path: Path, kind: str) -> list[dict[str, Any]]:
    document = json.loads(path.read_text(encoding="utf-8"))
    return [cell for cell in document["cells"] if cell["cell_type"] == kind]


@pytest.mark.parametrize("path", [*NOTEBOOKS, *MORE], ids=lambda path: path.stem)
def test_notebook_is_thin(path: Path) -> None:
    """The parameters cell is a list with a remark a line; its length is the number of parameters."""
    every = cells(path, "code")
    code = ["".join(cell["source"]) for cell in every if "parameters" not in cell["metadata"].get("tags", [])]
    lengths = [text.count("\n") + 1 for text in code]
    assert len(every) <= 13
    assert max(lengths) <= 15
    assert sum(lengths) / len(lengths) <= 6
    for text in code:
        nodes = list(ast.walk(ast.parse(text)))
        assert not any(isinstance(node, ast.FunctionDef | ast.ClassDef | ast.Lambda) for node in nodes)
        assert not text.lstrip().startswith(("%", "!"))


@pytest.mark.parametrize("path", [*NOTEBOOKS, *MORE], ids=lambda path: path.stem)
def test_notebook_is_stored_without_outputs(path: Path) -> None:
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in cells(path, "code"))


@pytest.mark.parametrize("path", [*NOTEBOOKS, *MORE], ids=lambda path: path.stem)
def test_parameters_are_tagged_and_typed(path: Path) -> None:
    tagged = [cell for cell in cells(path, "code") if "parameters" in cell["metadata"].get("tags", [])]
    assert len(tagged) == 1
    defaults = parameters.declared(path)
    assert defaults
    assert all(isinstance(value, parameters.Scalar) for value in defaults.values())


def test_defaults_equal_the_embedded_parameters() -> None:
    embedded = parameters.read_parameters(ROOT / "params" / "embedded.yaml")
    declared = [parameters.declared(path) for path in NOTEBOOKS]
    for defaults in declared:
        assert {name: embedded[name] for name in defaults if name in embedded} == {
            name: value for name, value in defaults.items() if name in embedded
        }
    assert set(embedded) <= {name for defaults in declared for name in defaults}


def test_defaults_equal_those_of_the_settings() -> None:
    known = {name: field.default for name, field in Settings.model_fields.items()}
    for path in [*NOTEBOOKS, *MORE]:
        defaults = parameters.declared(path)
        assert {name: known[name] for name in defaults if name in known} == {
            name: value for name, value in defaults.items() if name in known
        }
    assert set(known) <= {name for path in NOTEBOOKS for name in parameters.declared(path)}
