"""Splits: explicit lists of task ids that may not overlap (M2)."""

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any, get_args

from shopskill_lib.errors import InputError, ParameterError
from shopskill_lib.files import read_json
from shopskill_lib.records import Split, Task, fingerprint
from shopskill_lib.shops.catalog import Catalogue
from shopskill_lib.text import task_key

_SHOWN = 10
"""Ids that a message lists at most."""


def load_splits(path: Path, catalogue: Catalogue) -> dict[Split, list[str]]:
    """Read the task ids of each split (reference 1.14).

    A split gives ``task_ids``, or ``start`` and ``end`` (excluded): the ids of the catalogue in between.

    Raises:
        InputError: the file is no such file, or holds a split other than train, val and test.
    """
    document = read_json(path)
    try:
        entries: dict[str, Any] = document["splits"]
        return {_name(name, path): _ids(entry, catalogue) for name, entry in entries.items()}
    except (TypeError, KeyError, AttributeError) as error:
        raise InputError(
            f"the split file cannot be used ({error!r})",
            where=str(path),
            allowed="{'splits': {name: {'task_ids': [...]}}}",
            todo="give a split file",
        ) from error


def _name(name: str, path: Path) -> Split:
    for split in get_args(Split):
        if split == name:
            return split  # type: ignore[no-any-return]
    raise InputError(
        f"a split is called {name!r}",
        where=str(path),
        allowed=", ".join(get_args(Split)),
        todo="rename or remove the split",
    )


def _ids(entry: Mapping[str, Any], catalogue: Catalogue) -> list[str]:
    if "task_ids" in entry:
        if not isinstance(entry["task_ids"], list):
            raise TypeError(f"task_ids is a {type(entry['task_ids']).__name__}, not a list")
        return [str(task_id) for task_id in entry["task_ids"]]
    return [str(number) for number in range(entry["start"], entry["end"]) if str(number) in catalogue.tasks]


def with_splits(catalogue: Catalogue, splits: Mapping[Split, Iterable[str]], *, allow_overlap: str = "") -> Catalogue:
    """Return the catalogue with every listed task in its split and all others in none.

    Args:
        catalogue: products and tasks.
        splits: task ids of each split.
        allow_overlap: what two splits may share: ``product``, ``persona``, both with a comma, or nothing.

    Raises:
        InputError: an id of no task, or tasks, products or personas in two splits; the message names the ids.
        ParameterError: ``allow_overlap`` holds another word.
    """
    allowed = {word.strip() for word in allow_overlap.split(",") if word.strip()}
    if allowed - {"product", "persona"}:
        raise ParameterError(
            f"allow_overlap is {allow_overlap!r}",
            where="allow_overlap",
            allowed="product, persona, both or nothing",
            todo="name what splits may share",
        )
    by_key = {task_key(task_id): task for task_id, task in catalogue.tasks.items()}
    members = {split: [task_key(task_id) for task_id in ids] for split, ids in splits.items()}
    unknown = [task_id for ids in members.values() for task_id in ids if task_id not in by_key]
    if unknown:
        raise InputError(
            f"the splits list tasks that do not exist: {_listed(unknown)}",
            where="splits",
            allowed="task ids of the catalogue",
            todo="use the split file of this catalogue",
        )
    tasks = {split: [by_key[task_id] for task_id in ids] for split, ids in members.items()}
    check_disjoint(tasks, allowed)
    assigned = {task.task_id: split for split, group in tasks.items() for task in group}
    return replace(
        catalogue,
        tasks={
            task_id: task.model_copy(update={"split": assigned.get(task_id)})
            for task_id, task in catalogue.tasks.items()
        },
    )


def check_disjoint(splits: Mapping[Split, Iterable[Task]], allowed: Iterable[str] = ()) -> None:
    """Refuse splits that share a task, or a product or persona unless that is allowed (M2).

    Raises:
        InputError: names what is shared by which two splits.
    """
    for what in ("task", "product", "persona"):
        if what in allowed:
            continue
        marks = {
            split: {mark for mark in (_mark(task, what) for task in tasks) if mark is not None}
            for split, tasks in ((split, list(tasks)) for split, tasks in splits.items())
        }
        for one, other in combinations(marks, 2):
            shared = marks[one] & marks[other]
            if shared:
                raise InputError(
                    f"{len(shared)} {what}(s) occur in both {one} and {other}: {_listed(map(str, shared))}",
                    where="splits",
                    allowed="splits without a common task, product or persona",
                    todo="remove them from one split, or see allow_overlap for products and personas",
                )


def shares(splits: Mapping[Split, Sequence[Task]]) -> dict[str, list[float]]:
    """Return what the tasks of splits ask for: name -> share of the tasks that have it, in the order of the splits."""
    return {name: [sum(map(has, tasks)) / len(tasks) for tasks in splits.values()] for name, has in _ASKED.items()}


_ASKED: dict[str, Callable[[Task], bool]] = {
    "options": lambda task: bool(task.options),
    "a price limit": lambda task: task.price_upper is not None,
    "a persona": lambda task: task.persona is not None,
}


def _mark(task: Task, what: str) -> Hashable:
    if what == "task":
        return task_key(task.task_id)
    if what == "product":
        return task.gold_asin
    return None if task.persona is None else fingerprint(task.persona)


def _listed(ids: Iterable[str]) -> str:
    ordered = sorted(ids)
    return ", ".join(ordered[:_SHOWN]) + (f" and {len(ordered) - _SHOWN} more" if len(ordered) > _SHOWN else "")
