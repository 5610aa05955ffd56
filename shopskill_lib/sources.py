"""Files of pairs made elsewhere -> columns of text: CSV, ShopSimRL `contributions.json`, interventions JSON.

Nothing is interpreted here beyond the file's own form; `observations` reads the values. Every refusal names
the file and the line.
"""

import csv
import hashlib
import io
import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shopskill_lib.errors import InputError
from shopskill_lib.files import decode, parse_json, read_bytes, read_json

MAX_LINE = 1_000_000
"""Longest line of a CSV, in characters: beyond it the file is something else."""


INCLUDED = ("included_chunk_ids", "included_intervention_ids", "included_ids")
"""Names under which a row of a `contributions.json` may list what it shows."""

FIRST = ("task_id", "mask", "sample", "reward", "bare_reward")
"""Columns that stand before the other outcomes."""


@dataclass(frozen=True, slots=True)
class Intervention:
    """One factor of a gate: a version of a logical chunk.

    Attributes:
        intervention_id: id of the version, unique in the gate.
        slot: id of the logical chunk; versions with the same slot exclude each other.
        kind: "draft" (cold start), "current" (in the active skill) or "candidate".
        operation: "ADD", "REWRITE" or None.
        order: place of the slot in the canonical (draft) order.
        title: heading of the text, "" where the file has none; for readers only.
    """

    intervention_id: str
    slot: str
    kind: str = "draft"
    operation: str | None = None
    order: int = 0
    title: str = ""

    def to_json(self) -> dict[str, object]:
        """Return the factor as `read_interventions` and a ``contributions.json`` have it."""
        return {
            "intervention_id": self.intervention_id,
            "logical_chunk_id": self.slot,
            "kind": self.kind,
            "operation": self.operation,
            "order": self.order,
            "title": self.title,
        }


@dataclass(frozen=True, slots=True)
class Columns:
    """A file as columns of stripped text, one entry a row, with what the file says about its factors.

    Attributes:
        places: where each row stands, as "line 3".
        dropped: ids of episodes that the file says it left out; `owed` how many pairs it left out in all.
    """

    name: str
    sha256: str
    rows: int
    cells: dict[str, list[str]]
    places: tuple[str, ...]
    interventions: tuple[Intervention, ...] = ()
    budget: int | None = None
    dropped: tuple[str, ...] = ()
    owed: int = 0
    notes: tuple[str, ...] = ()


def read_columns(path: Path) -> Columns:
    """Read a CSV (comma, semicolon or tab; UTF-8) or a ShopSimRL `contributions.json` as columns of text.

    Raises:
        InputError: the file is missing, empty, binary, not UTF-8, ragged, or of another form.
    """
    content = read_bytes(path)
    text = decode(content, path)
    digest = hashlib.sha256(content).hexdigest()
    if text.lstrip().startswith(("{", "[")):
        return _contributions(parse_json(text, str(path)), path, digest)
    return _csv_columns(text, path, digest)


def _csv_columns(text: str, path: Path, digest: str) -> Columns:
    """Split CSV text, every row as long as the header."""
    _refuse_long_line(text, path)
    head = text.lstrip("\r\n").split("\n", 1)[0]
    delimiter = "," if "," in head else ";" if ";" in head else "\t" if "\t" in head else ","
    rows = _rows(text, delimiter, path)
    _, header = next(rows)
    names = [name.strip() for name in header]
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated or "" in names:
        raise InputError(
            f"column {repeated[0]!r} appears twice" if repeated and repeated != [""] else "a column has no name",
            where=f"{path}, header",
            allowed="one name a column, each once",
            todo="rename or remove the column",
        )
    body: list[list[str]] = []
    places: list[str] = []
    for line, row in rows:
        if len(row) != len(names):
            raise InputError(
                f"the row has {len(row)} cells, the header {len(names)}",
                where=f"{path}, line {line}",
                allowed="as many cells in every row as in the header",
                todo="mend the row (a comma inside a text needs quotes)",
            )
        body.append([cell.strip() for cell in row])
        places.append(f"line {line}")
    if not body:
        raise InputError(
            "there is a header and no row",
            where=str(path),
            allowed="a header and rows, one row a pair",
            todo="check how the file was written",
        )
    notes = () if delimiter == "," else (f"{path.name} was read with {delimiter!r} between its cells",)
    cells = {name: list(column) for name, column in zip(names, zip(*body, strict=True), strict=True)}
    return Columns(path.name, digest, len(body), cells, tuple(places), notes=notes)


def _refuse_long_line(text: str, path: Path) -> None:
    """Refuse a file whose lines no table has."""
    start = 0
    while start < len(text):
        end = text.find("\n", start)
        end = len(text) if end < 0 else end
        if end - start > MAX_LINE:
            raise InputError(
                f"a line has {end - start} characters",
                where=f"{path}, line {text.count(chr(10), 0, start) + 1}",
                allowed=f"a CSV with lines of at most {MAX_LINE} characters",
                todo="check that this is the right file",
            )
        start = end + 1


def _rows(text: str, delimiter: str, path: Path) -> Iterator[tuple[int, list[str]]]:
    """Yield (line number, cells) of the rows that hold anything."""
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    try:
        for row in reader:
            if any(cell.strip() for cell in row):
                yield reader.line_num, row
    except csv.Error as error:
        raise InputError(
            f"the line cannot be split into cells ({error})",
            where=f"{path}, line {reader.line_num}",
            allowed="CSV with double quotes around cells that need them",
            todo="mend the line",
        ) from error


def read_interventions(path: Path) -> tuple[Intervention, ...]:
    """Read the factors of a gate, in column order.

    The file is a list, or an object with a list `interventions` or `contributions`, of objects with
    `intervention_id` (or `chunk_id`) and, where known, `logical_chunk_id`, `kind`, `operation`, `order`.
    """
    return interventions_of(read_json(path), path)


def interventions_of(document: Any, path: Path) -> tuple[Intervention, ...]:
    """Return the factors that a document lists (see `read_interventions`)."""
    if isinstance(document, dict):
        document = document.get("interventions", document.get("contributions"))
    if not isinstance(document, list) or not document or not all(isinstance(item, dict) for item in document):
        raise InputError(
            "no list of interventions",
            where=str(path),
            allowed="a list, or an object with a list `interventions` or `contributions`, of objects",
            todo="give the file that names the mask's columns",
        )
    found = tuple(_intervention(item, number, path) for number, item in enumerate(document, 1))
    ids = [item.intervention_id for item in found]
    repeated = sorted({item for item in ids if ids.count(item) > 1})
    if repeated:
        raise InputError(
            f"intervention_id {repeated[0]!r} appears twice", where=str(path), allowed="each id once", todo="rename one"
        )
    for slot in {item.slot for item in found}:
        held = [item.intervention_id for item in found if item.slot == slot and item.kind != "candidate"]
        if len(held) > 1:
            raise InputError(
                f"slot {slot!r} has {len(held)} texts in force ({', '.join(held)})",
                where=str(path),
                allowed="at most one version of a slot that is not a candidate",
                todo="give rewrites kind 'candidate'",
            )
    return found


def _intervention(item: dict[str, Any], number: int, path: Path) -> Intervention:
    identity = item.get("intervention_id", item.get("chunk_id"))
    slot = item.get("logical_chunk_id") or identity
    kind, operation = item.get("kind", "draft"), item.get("operation")
    order = item.get("order", item.get("draft_order", number))
    title = item.get("title") or ""
    problems = (
        (not isinstance(identity, str) or not identity.strip(), f"intervention_id is {identity!r}", "a text"),
        (not isinstance(slot, str), f"logical_chunk_id is {slot!r}", "a text or null"),
        (kind not in ("draft", "current", "candidate"), f"kind is {kind!r}", "draft, current or candidate"),
        (operation not in (None, "ADD", "REWRITE"), f"operation is {operation!r}", "ADD, REWRITE or null (I6)"),
        (type(order) is not int, f"order is {order!r}", "a whole number"),
        (not isinstance(title, str), f"title is {title!r}", "a text or null"),
    )
    for wrong, found, allowed in problems:
        if wrong:
            raise InputError(found, where=f"{path}, intervention {number}", allowed=allowed, todo="mend the entry")
    return Intervention(str(identity).strip(), str(slot).strip(), kind, operation, order, str(title).strip())


def _contributions(document: Any, path: Path, digest: str) -> Columns:
    """Read a ShopSimRL gate document: its contributions name the columns, its table holds the pairs."""
    table = document.get("observations_table") if isinstance(document, dict) else None
    if not isinstance(table, list) or not table or not all(isinstance(row, dict) for row in table):
        raise InputError(
            "no `observations_table` with rows",
            where=str(path),
            allowed="a CSV of pairs, or a ShopSimRL contributions.json",
            todo="give the file that holds the masks and rewards of every task",
        )
    interventions = interventions_of(document, path)
    rows = [_table_row(row, interventions, f"{path}, observations_table row {k}") for k, row in enumerate(table, 1)]
    names = sorted(dict.fromkeys(name for row in rows for name in row), key=lambda name: name not in FIRST)
    dropped, owed = _left_out(document, len(rows), path)
    return Columns(
        name=path.name,
        sha256=digest,
        rows=len(rows),
        cells={name: [row.get(name, "") for row in rows] for name in names},
        places=tuple(f"observations_table row {number}" for number in range(1, len(rows) + 1)),
        interventions=interventions,
        budget=_whole(document, "active_skill_budget", path),
        dropped=dropped,
        owed=owed,
    )


def _whole(document: dict[str, Any], name: str, path: Path) -> int | None:
    """Read a whole number of a document; None where it is absent or null."""
    value = document.get(name)
    if value is None or type(value) is int:
        return value
    raise InputError(f"{name} is {value!r}", where=str(path), allowed="a whole number or null", todo="correct it")


def _left_out(document: dict[str, Any], rows: int, path: Path) -> tuple[tuple[str, ...], int]:
    """Return the ids of dropped episodes and the number of pairs left out; refuse a count unlike the rows."""
    dropped = document.get("dropped_episode_ids") or []
    counted = _whole(document, "observations", path)
    if not isinstance(dropped, list) or counted not in (None, rows):
        raise InputError(
            f"observations is {counted}, and observations_table has {rows} rows"
            if isinstance(dropped, list)
            else f"dropped_episode_ids is {str(dropped)[:60]!r}",
            where=str(path),
            allowed="`observations` equal to the number of rows, `dropped_episode_ids` a list",
            todo="check that the file is whole",
        )
    requested = _whole(document, "requested_observations", path) or 0
    return tuple(map(str, dropped)), max(len(dropped), requested - rows, 0)


def _table_row(row: dict[str, Any], interventions: Sequence[Intervention], where: str) -> dict[str, str]:
    """Read one row of an observations table as text cells."""
    task_id = row.get("task_id")
    if isinstance(task_id, bool) or not isinstance(task_id, str | int | float):
        raise InputError(f"task_id is {task_id!r}", where=where, allowed="a text or a number", todo="fill it in")
    cells = {"task_id": str(task_id).strip(), "mask": _mask_text(row, interventions, where)}
    more = {"sample": "sample_id", "split": "split", "checkpoint": "checkpoint", "origin": "origin"}
    cells |= {name: str(row[key]) for name, key in more.items() if row.get(key) is not None}
    return cells | _outcomes(row, where)


def _mask_text(row: dict[str, Any], interventions: Sequence[Intervention], where: str) -> str:
    """Return a row's mask as a bit string, from bits, an id -> bit object, or a list of included ids."""
    ids = [item.intervention_id for item in interventions]
    included = next((row[key] for key in INCLUDED if key in row), None)
    listed = row.get("mask") is None
    mask = included if listed else row["mask"]
    if isinstance(mask, dict) and set(mask) <= set(ids):
        bits = [mask.get(item, 0) for item in ids]
    elif isinstance(mask, list) and all(item in ids for item in mask) and (mask or listed):
        bits = [int(item in mask) for item in ids]
    else:
        bits = list(mask) if isinstance(mask, list | str) else []
        _refuse_places_out_of_order(interventions, where)
    if isinstance(mask, str):
        return mask
    if bits and all(item in (0, 1) for item in bits):
        return "".join(str(int(item)) for item in bits)
    raise InputError(
        f"the mask is {str(mask)[:60]!r}",
        where=where,
        allowed="a list of 0 and 1, a string of them, an object id -> 0/1, or a list of included ids",
        todo="check the file's version",
    )


def _refuse_places_out_of_order(interventions: Sequence[Intervention], where: str) -> None:
    """Refuse bits by place beside factors that are sorted otherwise, by rank perhaps."""
    for before, after in itertools.pairwise(interventions):
        if before.order > after.order:
            raise InputError(
                f"masks are bits by place, but {after.intervention_id} (order {after.order}) stands after "
                f"{before.intervention_id} (order {before.order})",
                where=where,
                allowed="contributions in rising order, or masks that name their factors",
                todo="sort the contributions as the masks' columns were, or write masks as id -> 0/1",
            )


_ARM = "bare|baseline|masked|delta"
_OUTCOME = re.compile(rf"(?:({_ARM})_)?(rewards?|r_[a-z_]+?)(?:_({_ARM}))?")
_DIFFERENCE = {"delta", "deltas", "diff", "difference", "differences"}


def _outcomes(row: dict[str, Any], where: str) -> dict[str, str]:
    """Flatten a table row to `x` and `bare_x`; differences are left out, since they are recomputed.

    An arm may be told by a prefix (`bare_reward`) or by an object around it (`bare: {reward: ...}`).
    """
    found: dict[str, str] = {}
    pending: list[tuple[tuple[str, ...], Any]] = [((), row)]
    while pending:
        keys, value = pending.pop(0)
        if isinstance(value, dict):
            pending[:0] = (((*keys, key), inner) for key, inner in value.items() if key != "mask")
            continue
        names = [match[2] for match in map(_OUTCOME.fullmatch, keys) if match]
        words = {word for key in keys for word in re.split(r"[_.]", key)}
        if not names or words & _DIFFERENCE:
            continue
        if not (value is None or isinstance(value, int | float)):
            raise InputError(
                f"{'.'.join(keys)} is {str(value)[:40]!r}",
                where=where,
                allowed="a number, or null for a missing episode",
                todo="correct the value",
            )
        outcome = "reward" if names[-1] == "rewards" else names[-1]
        name = f"bare_{outcome}" if words & {"bare", "baseline"} else outcome
        if name in found:
            raise InputError(
                f"{name} stands twice in the row",
                where=where,
                allowed="one masked and one bare value an outcome",
                todo="check the file's version",
            )
        found[name] = "" if value is None else repr(value + 0)  # whole numbers of any length, true as 1
    return found
