"""Columns of text -> ids, numbers and masks. Every refusal names the task and the column."""

import re
from collections import Counter
from collections.abc import Collection, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from shopskill_lib.errors import InputError
from shopskill_lib.sources import Columns, Intervention
from shopskill_lib.text import task_key

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

GROUPS = ("category", "persona", "difficulty")
"""Columns that name groups of tasks, known before any outcome."""

DESCRIPTIVE = ("task_id", "sample", "split", "mask", *GROUPS, "checkpoint", "origin")
"""Columns that describe a row and are neither outcomes nor factors."""

LARGEST = 1e100
"""Largest size of a number: sums of its squares and cubes are still finite."""

TRUTH = {"true": "1", "false": "0"}
"""Words for 1 and 0, in any case."""

OUTCOME = re.compile(r"reward|r_.*|success|steps|tokens|.+_tokens|duration_ms|.+_rate|delta_.+")
"""Names that are outcomes or differences of outcomes, never factors unless the interventions name them so."""

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
    compared = [task_key(task_id) for task_id in task_ids]
    if "" in compared:
        raise InputError(
            f"row {compared.index('') + 1} has no task_id",
            where=f"{path}, column task_id",
            allowed="an id in every row",
            todo="fill it in",
        )
    samples = [0] * columns.rows
    if "sample" in cells:
        samples = [_sample(*pair, path) for pair in zip(cells["sample"], task_ids, strict=True)]
    seen: dict[tuple[str, int], int] = {}
    for row, key in enumerate(zip(compared, samples, strict=True)):
        if key in seen:
            raise InputError(
                f"task {task_ids[row]!r} and task {task_ids[seen[key]]!r} are the same task, sample {key[1]}",
                where=f"{path}, {columns.places[row]} and {columns.places[seen[key]]}, column task_id",
                allowed="each task and sample once (0012, 12 and ' 12 ' are one id)",
                todo="remove the row, or number the samples of a task in a column `sample`",
            )
        seen[key] = row
    numbers_of = {task: number for number, task in enumerate(dict.fromkeys(compared))}
    return task_ids, samples, np.array([numbers_of[task] for task in compared], dtype=np.int64)


def _sample(cell: str, task_id: str, path: Path) -> int:
    number = re.fullmatch(r"(\d+)(?:\.0+)?", cell)
    if not number:
        raise InputError(
            f"sample is {cell!r} at task {task_id}",
            where=f"{path}, column sample",
            allowed="whole numbers from 0",
            todo="number the rows of a task",
        )
    return int(number[1])


def refuse_mixed(columns: Columns, names: Sequence[str], path: Path) -> None:
    """Refuse rows of several checkpoints or splits, whose rewards have no common effect (M20).

    Splits are compared whatever their case.
    """
    for name in names:
        cells = columns.cells.get(name, [])
        values = list({cell.casefold() if name == "split" else cell: cell for cell in reversed(cells)}.values())[::-1]
        if len(values) > 1:
            raise InputError(
                f"{name} is {values[0]!r} in some rows and {values[1]!r} in others",
                where=f"{path}, column {name}",
                allowed=f"one {name} a file (M20)",
                todo="split the file",
            )


def refuse_test_split(columns: Columns, path: Path) -> None:
    """Refuse a gate on test tasks, which are kept for the comparison at the end (I15)."""
    if any(cell.casefold() == "test" for cell in columns.cells.get("split", [])):
        raise InputError(
            f"split is {columns.cells['split'][0]!r}",
            where=f"{path}, column split",
            allowed="a gate on val tasks; test tasks select nothing (I15)",
            todo="give the pairs of the val split",
        )


def paired_names(columns: Columns, prefix: str, other: str, path: Path, factors: Collection[str] = ()) -> list[str]:
    """Return the outcomes that have a column of each arm; refuse one that has lost its partner.

    Args:
        columns: the file.
        prefix: of the arm's columns, "" in a gate.
        other: prefix of the other arm.
        path: for messages.
        factors: columns that are factors whatever their name.
    """
    names = [name.removeprefix(other) for name in columns.cells if name.startswith(other)]
    alone = [other + name for name in names if prefix + name not in columns.cells]
    lost = [
        name
        for name in columns.cells
        if (name.startswith(prefix) if prefix else OUTCOME.fullmatch(name) and name not in factors)
        and not name.startswith(other)
        and name.removeprefix(prefix) not in names
    ]
    unpaired = [(name, prefix + name.removeprefix(other)) for name in alone]
    unpaired += [(name, other + name.removeprefix(prefix)) for name in lost]
    hint = _other_command(columns, prefix)
    for name, partner in unpaired[:1]:
        raise InputError(
            f"column {name!r} has no partner {partner!r}",
            where=f"{path}, header",
            allowed=f"outcomes in pairs: {prefix}reward beside {other}reward",
            todo=hint or f"add {partner!r} or remove {name!r}; a factor of such a name is named by --interventions",
        )
    if not names or ("reward" not in names and not prefix):
        raise InputError(
            f"no outcome columns {prefix}reward and {other}reward; the columns are "
            + ", ".join(list(columns.cells)[:12]),
            where=f"{path}, header",
            allowed=f"{prefix}reward beside {other}reward, and other outcomes likewise",
            todo=hint or "rename the columns",
        )
    return names


def _other_command(columns: Columns, prefix: str) -> str:
    """Tell what to do with a comparison file given to a gate, or the reverse; "" when it is neither."""
    equipped = any(name.startswith("equipped_") for name in columns.cells)
    if not prefix and equipped:
        return "use `shopskill compare` (read_comparison) for bare_x beside equipped_x"
    if prefix and not equipped and "reward" in columns.cells:
        return "use `shopskill gate` (read_observations) for x beside bare_x with masks"
    return ""


def numbers(cells: Sequence[str], column: str, task_ids: Sequence[str], path: Path) -> FloatArray:
    """Read a column of finite numbers; an empty cell is NaN, in memory only."""
    values = np.full(len(cells), np.nan)
    for row, cell in enumerate(cells):
        if not cell:
            continue
        values[row] = _number(cell)
        if not abs(values[row]) <= LARGEST:
            raise InputError(
                f"{column} is {cell[:40]!r} at task {task_ids[row]}",
                where=f"{path}, column {column}",
                allowed=f"a finite number of at most {LARGEST:g} in size, or an empty cell for a missing episode",
                todo="correct the value; an error of the run is a missing episode, never a number",
            )
    return values


def _number(cell: str) -> float:
    """Return the number a cell holds, NaN if it holds none."""
    try:
        return float(TRUTH.get(cell.lower(), cell)) if "_" not in cell else float("nan")
    except ValueError:
        return float("nan")


def refuse_reward_unlike_strict(arm: dict[str, FloatArray], prefix: str, task_ids: Sequence[str], path: Path) -> None:
    """Refuse reward != r_strict (M4): to 1e-9 where r_strict is given, to file rounding where it is a product."""
    if "reward" not in arm:
        return
    strict, tolerance, name = arm.get("r_strict"), 1e-9, "r_strict"
    if strict is None and all(component in arm for component in COMPONENTS):
        strict = np.prod([np.clip(arm[component], -1e50, 1e50) for component in COMPONENTS], axis=0)
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


def refuse_other_success(arm: dict[str, FloatArray], prefix: str, task_ids: Sequence[str], path: Path) -> None:
    """Refuse success other than 0 and 1."""
    for name in ("r_success", "success"):
        values = arm.get(name, np.zeros(0))
        wrong = np.flatnonzero(~np.isnan(values) & (values != 0) & (values != 1))
        if wrong.size:
            raise InputError(
                f"{prefix}{name} is {values[wrong[0]]:g} at task {task_ids[wrong[0]]}",
                where=f"{path}, column {prefix}{name}",
                allowed="0 or 1",
                todo="correct the column, or rename it if it is not task success",
            )


def missing_episodes(
    arm: dict[str, FloatArray], task_ids: Sequence[str], path: Path, prefix: str = ""
) -> NDArray[np.bool_]:
    """Tell which episodes of an arm are missing; reward and components are all there or all missing."""
    missing = np.isnan(arm["reward"])
    for name, values in arm.items():
        torn = np.flatnonzero(np.isnan(values) != missing)
        if len(torn) and name.startswith("r_"):
            empty, there = ("reward", name) if missing[torn[0]] else (name, "reward")
            raise InputError(
                f"{prefix}{empty} is empty while {prefix}{there} is there, at task {task_ids[torn[0]]}",
                where=f"{path}, column {prefix}{name}",
                allowed="all reward parts of an episode, or none when it is missing",
                todo="fill in the cell, or empty the whole arm of that row",
            )
    return missing


def masks(
    columns: Columns, named: tuple[Intervention, ...], outcomes: Sequence[str], task_ids: Sequence[str], path: Path
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
        width = len(named) or _width(columns.cells["mask"])
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


def _width(cells: Sequence[str]) -> int:
    """Return the usual length of the masks, of the longest text where none is made of bits."""
    lengths = Counter(len(cell) for cell in cells if cell and set(cell) <= {"0", "1"})
    return lengths.most_common(1)[0][0] if lengths else max(map(len, cells))


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
    values = []
    for text, task_id in zip(columns.cells[name], task_ids, strict=True):
        cell = TRUTH.get(text.lower(), text)
        if cell not in ("0", "1", "0.0", "1.0"):
            raise InputError(
                f"{name} is {cell[:40]!r} at task {task_id}",
                where=f"{path}, column {name}",
                allowed=f"0 or 1 for a factor; an outcome needs a column bare_{name}",
                todo="correct the value, remove the column, or add its bare partner",
            )
        values.append(int(cell[0]))
    return values
