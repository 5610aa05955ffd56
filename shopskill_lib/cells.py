"""Columns of text -> ids, numbers and masks. Every refusal names the task and the column."""

import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from shopskill_lib.errors import InputError
from shopskill_lib.sources import Columns, Intervention
from shopskill_lib.text import task_key

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

DESCRIPTIVE = ("task_id", "sample", "split", "mask", "category", "persona", "difficulty", "checkpoint", "origin")
"""Columns that describe a row and are neither outcomes nor factors."""

COMPONENTS = ("r_type", "r_att", "r_option", "r_price")
"""The parts whose product is the reward (M4)."""


def keys(columns: Columns, path: Path) -> tuple[list[str], list[int], IntArray]:
    """Return the n task ids as written, the samples, and (n,) task numbers; each task and sample once (M18)."""
    cells = columns.cells
    if "task_id" not in cells:
        raise InputError(
            f"there is no column task_id; the columns are {', '.join(list(cells)[:12])}",
            where=f"{path}, header",
            allowed="a column `task_id`, and `sample` where a task has several rows",
            todo="name the column that holds the task",
        )
    task_ids = cells["task_id"]
    if "" in task_ids:
        raise InputError(
            f"row {task_ids.index('') + 1} has no task_id",
            where=f"{path}, column task_id",
            allowed="an id in every row",
            todo="fill it in",
        )
    samples = [0] * columns.rows
    if "sample" in cells:
        samples = [_sample(*pair, path) for pair in zip(cells["sample"], task_ids, strict=True)]
    seen: dict[tuple[str, int], str] = {}
    for task_id, sample in zip(task_ids, samples, strict=True):
        key = (task_key(task_id), sample)
        if key in seen:
            raise InputError(
                f"task {task_id!r} and task {seen[key]!r} are the same task, sample {sample}",
                where=f"{path}, column task_id",
                allowed="each task and sample once (0012, 12 and ' 12 ' are one id)",
                todo="remove the row, or number the samples of a task in a column `sample`",
            )
        seen[key] = task_id
    numbers_of = {task: number for number, task in enumerate(dict.fromkeys(task for task, _ in seen))}
    return task_ids, samples, np.array([numbers_of[task] for task, _ in seen], dtype=np.int64)


def _sample(cell: str, task_id: str, path: Path) -> int:
    """Read a sample number."""
    if not re.fullmatch(r"\d+", cell):
        raise InputError(
            f"sample is {cell!r} at task {task_id}",
            where=f"{path}, column sample",
            allowed="whole numbers from 0",
            todo="number the rows of a task",
        )
    return int(cell)


def paired_names(columns: Columns, prefix: str, other: str, path: Path) -> list[str]:
    """Return the outcomes that have a column of each arm; refuse one that has lost its partner."""
    names = [name.removeprefix(other) for name in columns.cells if name.startswith(other)]
    alone = [other + name for name in names if prefix + name not in columns.cells]
    lost = [
        name
        for name in columns.cells
        if (name.startswith(prefix) if prefix else name == "reward" or name.startswith("r_"))
        and name.removeprefix(prefix) not in names
    ]
    unpaired = [(name, prefix + name.removeprefix(other)) for name in alone]
    unpaired += [(name, other + name.removeprefix(prefix)) for name in lost]
    for name, partner in unpaired[:1]:
        raise InputError(
            f"column {name!r} has no partner {partner!r}",
            where=f"{path}, header",
            allowed=f"outcomes in pairs: {prefix}reward beside {other}reward",
            todo=f"add {partner!r} or remove {name!r}",
        )
    if not names or ("reward" not in names and not prefix):
        raise InputError(
            f"no outcome columns {prefix}reward and {other}reward; the columns are "
            + ", ".join(list(columns.cells)[:12]),
            where=f"{path}, header",
            allowed=f"{prefix}reward beside {other}reward, and other outcomes likewise",
            todo="rename the columns" + ("" if prefix else "; for bare_x beside equipped_x use a comparison"),
        )
    return names


def numbers(cells: Sequence[str], column: str, task_ids: Sequence[str], path: Path) -> FloatArray:
    """Read a column of finite numbers; an empty cell is NaN, in memory only."""
    values = np.full(len(cells), np.nan)
    for row, cell in enumerate(cells):
        if not cell:
            continue
        values[row] = _number(cell)
        if not np.isfinite(values[row]):
            raise InputError(
                f"{column} is {cell[:40]!r} at task {task_ids[row]}",
                where=f"{path}, column {column}",
                allowed="a finite number, or an empty cell for a missing episode",
                todo="correct the value; an error of the run is a missing episode, never a number",
            )
    return values


def _number(cell: str) -> float:
    """Return the number a cell holds, NaN if it holds none."""
    try:
        return float(cell) if "_" not in cell else float("nan")
    except ValueError:
        return float("nan")


def refuse_reward_unlike_strict(arm: dict[str, FloatArray], prefix: str, task_ids: Sequence[str], path: Path) -> None:
    """Refuse reward != r_strict (M4): to 1e-9 where r_strict is given, to file rounding where it is a product."""
    if "reward" not in arm:
        return
    strict, tolerance, name = arm.get("r_strict"), 1e-9, "r_strict"
    if strict is None and all(component in arm for component in COMPONENTS):
        strict = np.prod([arm[component] for component in COMPONENTS], axis=0)
        tolerance, name = 1e-3, "r_type*r_att*r_option*r_price"
    if strict is None:
        return
    wrong = np.flatnonzero(np.abs(arm["reward"] - strict) > tolerance)
    if wrong.size:
        row = wrong[0]
        raise InputError(
            f"{prefix}reward is {arm['reward'][row]:g} but {name} is {strict[row]:g} at task {task_ids[row]}",
            where=f"{path}, column {prefix}reward",
            allowed="reward = r_strict = r_type*r_att*r_option*r_price",
            todo="correct the row, or leave the components out when the reward is of another kind",
        )


def missing_episodes(
    arm: dict[str, FloatArray], task_ids: Sequence[str], path: Path, prefix: str = ""
) -> NDArray[np.bool_]:
    """Tell which episodes of an arm are missing; reward and components are all there or all missing."""
    missing = np.isnan(arm["reward"])
    for name, values in arm.items():
        torn = np.flatnonzero(np.isnan(values) & ~missing)
        if len(torn) and name.startswith("r_"):
            raise InputError(
                f"{prefix}{name} is empty while {prefix}reward is there, at task {task_ids[torn[0]]}",
                where=f"{path}, column {prefix}{name}",
                allowed="all reward parts of an episode, or none when it is missing",
                todo="fill in the cell, or empty the whole arm of that row",
            )
    return missing


def masks(
    columns: Columns,
    named: tuple[Intervention, ...],
    outcomes: Sequence[str],
    task_ids: Sequence[str],
    path: Path,
) -> tuple[tuple[Intervention, ...], IntArray]:
    """Return the factors and the (n, K) masks, from a bit string or from one column a factor."""
    known = {*DESCRIPTIVE, *outcomes, *(f"bare_{name}" for name in outcomes)}
    others = [name for name in columns.cells if name not in known]
    if "mask" in columns.cells:
        if others:
            raise InputError(
                f"column {others[0]!r} is neither an outcome (there is no bare_{others[0]}) nor known",
                where=f"{path}, header",
                allowed=f"outcomes x beside bare_x, and {', '.join(DESCRIPTIVE)}",
                todo="remove the column, or add its bare partner",
            )
        width = len(named) or Counter(map(len, columns.cells["mask"])).most_common(1)[0][0]
        if not width:
            raise InputError(
                "the mask column is empty",
                where=f"{path}, column mask",
                allowed="a bit string in every row",
                todo="fill it in, or remove it and give one 0/1 column a factor",
            )
        factors = named or tuple(
            Intervention(f"factor_{k:02d}", f"factor_{k:02d}", order=k) for k in range(1, width + 1)
        )
        cells = zip(columns.cells["mask"], task_ids, strict=True)
        rows = [_bits(cell, width, task_id, path) for cell, task_id in cells]
        return factors, np.array(rows, dtype=np.int64).reshape(len(rows), width)
    _refuse_factor_named_as_description(columns, named, path)
    known -= {item.intervention_id for item in named if item.intervention_id in DESCRIPTIVE}
    others = [name for name in columns.cells if name not in known]
    factors = named or tuple(Intervention(name, name, order=k) for k, name in enumerate(others, 1))
    unlike = sorted(set(others) ^ {item.intervention_id for item in factors})
    if unlike or not factors:
        raise InputError(
            f"column {unlike[0]!r} and the interventions do not match" if unlike else "there is no mask",
            where=f"{path}, header",
            allowed="a column `mask`, or one 0/1 column for every intervention and no other",
            todo="correct the header or the interventions file",
        )
    masks = [_factor(columns, item.intervention_id, task_ids, path) for item in factors]
    return factors, np.array(masks, dtype=np.int64).T


def _refuse_factor_named_as_description(columns: Columns, named: tuple[Intervention, ...], path: Path) -> None:
    """Refuse a column that looks like a factor but would be passed over for its name."""
    ids = {item.intervention_id for item in named}
    for name in DESCRIPTIVE:
        cells = columns.cells.get(name, [])
        if name not in ("task_id", "sample", *ids) and cells and set(cells) <= {"0", "1"}:
            raise InputError(
                f"column {name!r} describes a row by its name and holds only 0 and 1",
                where=f"{path}, header",
                allowed=f"texts in {', '.join(DESCRIPTIVE[2:])}; a factor of such a name only if the interventions "
                "name it",
                todo="rename the column, or name the factor in the interventions file",
            )


def _bits(cell: str, width: int, task_id: str, path: Path) -> list[int]:
    """Read one bit string."""
    if set(cell) <= {"0", "1"} and len(cell) == width:
        return [int(bit) for bit in cell]
    raise InputError(
        f"mask {cell[:40]!r} of task {task_id} "
        + (f"has {len(cell)} characters, not {width}" if set(cell) <= {"0", "1"} else "holds other characters"),
        where=f"{path}, column mask",
        allowed=f"{width} characters 0 or 1, one an intervention",
        todo="write masks as text: a spreadsheet loses leading zeros and digits of long numbers",
    )


def _factor(columns: Columns, name: str, task_ids: Sequence[str], path: Path) -> list[int]:
    """Read one 0/1 factor column."""
    values = []
    for cell, task_id in zip(columns.cells[name], task_ids, strict=True):
        if cell not in ("0", "1", "0.0", "1.0"):
            raise InputError(
                f"{name} is {cell[:40]!r} at task {task_id}",
                where=f"{path}, column {name}",
                allowed=f"0 or 1 for a factor; an outcome needs a column bare_{name}",
                todo="correct the value, remove the column, or add its bare partner",
            )
        values.append(int(cell[0]))
    return values
