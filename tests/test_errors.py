import ast
import inspect
import pickle
from pathlib import Path

import pytest

import shopskill_lib
from shopskill_lib import errors

CLASSES = [name for name, kind in inspect.getmembers(errors, inspect.isclass) if kind.__module__ == errors.__name__]
LEAVES = [name for name in CLASSES if name != "ShopskillError"]


def raised() -> set[str]:
    """Names of the classes that a `raise` statement of the library calls."""
    found = set()
    for path in Path(shopskill_lib.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call) and isinstance(node.exc.func, ast.Name):
                found.add(node.exc.func.id)
    return found


def test_every_error_is_raised_somewhere_and_the_base_nowhere() -> None:
    assert set(LEAVES) <= raised()
    assert "ShopskillError" not in raised()


@pytest.mark.parametrize("name", LEAVES)
def test_the_tree_in_the_docstring_names_every_error(name: str) -> None:
    lines = [line for line in (errors.__doc__ or "").splitlines() if "── " in line]
    assert [line.split("── ")[1].split()[0] for line in lines].count(name) == 1
    assert len(lines) == len(LEAVES)
    assert getattr(errors, name).__mro__[1] is errors.ShopskillError


@pytest.mark.parametrize("name", CLASSES)
def test_a_message_says_what_where_allowed_and_what_to_do(name: str) -> None:
    error = getattr(errors, name)("a mask is short", where="a.csv, line 3", allowed="16 bits", todo="mend it")
    assert str(error) == "a.csv, line 3: a mask is short. Allowed: 16 bits. What to do: mend it."
    assert (error.found, error.where, error.allowed, error.todo) == (
        "a mask is short",
        "a.csv, line 3",
        "16 bits",
        "mend it",
    )


@pytest.mark.parametrize("name", LEAVES)
def test_an_error_passes_between_processes(name: str) -> None:
    error = getattr(errors, name)("found", where="here", allowed="this", todo="that")
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error)
    assert (str(again), again.todo) == (str(error), "that")
