"""ShopSimRL gate folders: masks and outcomes from a contributions file, or from assignments and traces.

Reference 3.9 and 3.13. The bare run stands in a folder `bare` of the gate's, or where the gate's files say.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from shopskill_lib.adapters import assigned, shopsimrl, skillbank
from shopskill_lib.adapters.assigned import Assigned, Traces
from shopskill_lib.adapters.lossless import read_strictly, refusal
from shopskill_lib.adapters.recorded import Import, lacking
from shopskill_lib.errors import DesignError, InputError
from shopskill_lib.files import write_bytes, write_json
from shopskill_lib.sources import Columns, read_columns

NAME = "shopsimrl-gate"
CONTRIBUTIONS = ("shopsimrl-chunk-contributions-v1", "shopsimrl-online-chunk-contributions-v2")
BARE = "bare"
MASKED_FILE, BARE_FILE = shopsimrl.TRACES, f"{BARE}/{shopsimrl.TRACES}"

UNPROVEN = (
    "pairs as a contributions file states them, without the traces of both runs: no proof that masks were shown (M20)"
)
"""Note of a gate whose pairs are only stated."""

BARE_RUN = ("bare_run_dir", "run_dir")
"""Names under which a gate's files tell where the bare run is."""


class _Files(NamedTuple):
    """The documents of a gate folder that matter."""

    contributions: Path | None
    assignments: Path | None
    others: tuple[Path, ...]
    """Manifests and the like."""


def recognises(path: Path, first: Any) -> bool:
    """Tell whether this is a gate folder, or a contributions file by itself."""
    if path.is_dir():
        found = _files(path)
        return found.contributions is not None or found.assignments is not None
    return isinstance(first, dict) and "observations_table" in first


def columns(path: Path, known: Mapping[str, Traces] | None = None) -> Columns:
    """Return the pairs of a gate folder: of its traces where both runs are here, else as its contributions state them.

    Args:
        path: the folder.
        known: traces that have been read already, by their file's name in the folder.

    Raises:
        InputError: it holds neither a contributions file nor assignments with traces, or the bare run is not here.
        DesignError: its files disagree on a pair, or an episode was shown something else than assigned (M20).
    """
    found, known = _files(path), known or {}
    stated = None if found.contributions is None else read_columns(found.contributions)
    masks = None
    if found.assignments is not None:
        masks = assigned.read(read_strictly(found.assignments), found.assignments, _candidates(found))
    bare = _bare(path, found)
    if masks is None or not (path / MASKED_FILE).is_file() or (bare is None and stated is not None):
        return _unproven(path, stated, masks)
    if bare is None:
        raise _no_bare(path, found)
    masked = known.get(MASKED_FILE) or shopsimrl.read_traces(path / MASKED_FILE, NAME)
    plain = known.get(BARE_FILE) or shopsimrl.read_traces(bare / shopsimrl.TRACES, NAME, BARE_FILE)
    made = assigned.pair(masks, masked, plain, path.name)
    if stated is not None:
        _refuse_other_pairs(stated, made, path)
    return replace(
        made, budget=_whole(_named(found.others, ("active_skill_budget",))) if stated is None else stated.budget
    )


def _unproven(path: Path, stated: Columns | None, masks: Assigned | None) -> Columns:
    """Return the pairs that a contributions file states, their masks compared with the assigned ones."""
    if stated is None:
        raise InputError(
            "this is a directory that holds no gate",
            where=str(path),
            allowed="contributions.json, or mask_assignments.json with traces.jsonl and the bare run; a run folder of "
            "shopskill with observations.csv; a folder that `shopskill import` wrote",
            todo="give the folder of a gate, or a file of pairs",
        )
    for key, row in _rows(stated).items():
        if masks is not None and (key not in masks.shown or row["shown"] != _listed(masks.shown[key])):
            given = _listed(masks.shown[key]) if key in masks.shown else "nowhere"
            raise _disagreement(f"it shows {row['shown']}, assigned is {given}", key, path)
    return replace(stated, notes=(*stated.notes, UNPROVEN))


def read(path: Path) -> Import:
    """Read a gate with its traces; every other file is kept as it is.

    Raises:
        InputError, DesignError: see `columns`.
    """
    if path.is_file():
        gate = read_columns(path)
        return Import(NAME, gate=gate, files={path.name: path.read_bytes()}, lacks=(UNPROVEN,))
    runs = [file for file in (MASKED_FILE, BARE_FILE) if (path / file).is_file()]
    traces = {file: shopsimrl.read_traces(path / file, NAME, file) for file in runs}
    episodes = tuple(episode for run in traces.values() for episode in run[0])
    files = {
        str(file.relative_to(path)): file.read_bytes()
        for file in sorted(path.rglob("*"))
        if file.is_file() and str(file.relative_to(path)) not in runs
    }
    gate = columns(path, traces)
    elsewhere = MASKED_FILE in runs and BARE_FILE not in runs
    return Import(
        NAME,
        episodes=episodes,
        remainders=tuple(remainder for run in traces.values() for remainder in run[1]),
        gate=gate,
        files=files,
        lacks=(
            *gate.notes,
            *(["the bare run lies outside this folder and is not carried"] if elsewhere else []),
            *(lacking(episodes) if episodes else ()),
        ),
    )


def write(imported: Import, path: Path) -> None:
    """Write a gate folder: as its source was, or, of a gate from elsewhere, a contributions file without estimates.

    Raises:
        InputError: there is no gate.
    """
    if imported.gate is None:
        raise refusal("there is no gate", str(path), "an import of a gate, or a run folder with observations.csv")
    if imported.format != NAME:
        write_json(path / "contributions.json", _contributions(imported.gate))
        return
    for name, content in imported.files.items():
        write_bytes(path / name, content)
    for file in dict.fromkeys(episode.source.file for episode in imported.episodes):
        chosen = [k for k, episode in enumerate(imported.episodes) if episode.source.file == file]
        own = replace(
            imported,
            episodes=tuple(imported.episodes[k] for k in chosen),
            remainders=tuple(imported.remainders[k] for k in chosen),
        )
        shopsimrl.write(own, path / file)


def _files(path: Path) -> _Files:
    """Sort the JSON documents of a folder by their schema, the usual names first."""
    found: dict[str, Path] = {}
    others = []
    for file in sorted(path.glob("*.json")):
        schema = _schema(file)
        kind = "contributions" if schema in CONTRIBUTIONS or file.name == "contributions.json" else ""
        kind = "assignments" if schema in assigned.SCHEMAS else kind
        if kind in found:
            raise refusal(f"{found[kind].name} and {file.name} are both {kind}", str(path), "one gate a folder")
        if kind:
            found[kind] = file
        else:
            others.append(file)
    return _Files(found.get("contributions"), found.get("assignments"), tuple(others))


def _candidates(found: _Files) -> list[str] | None:
    """Return the ids of the candidates, where the pool lies in the folder."""
    pool = next((file for file in found.others if _schema(file) == skillbank.POOL_SCHEMA), None)
    if pool is None:
        return None
    read = skillbank.read_pool(pool).pool
    return [candidate.candidate_id for candidate in read.candidates] if read else None


def _schema(file: Path) -> object:
    try:
        document = json.loads(file.read_bytes())
    except (ValueError, RecursionError, OSError):
        return None
    return document.get("schema_version") if isinstance(document, dict) else None


def _bare(path: Path, found: _Files) -> Path | None:
    """Return the folder of the bare run; None where it is not here."""
    told = _named(found.others, BARE_RUN)
    places = [path / BARE, *([path / told, Path(told)] if isinstance(told, str) else [])]
    return next((place for place in places if (place / shopsimrl.TRACES).is_file()), None)


def _no_bare(path: Path, found: _Files) -> InputError:
    told = _named(found.others, BARE_RUN)
    return InputError(
        "the bare run is not here" + (f"; the gate's files name {told}" if told else ""),
        where=str(path),
        allowed=f"its {shopsimrl.TRACES} in a folder {BARE!r} of the gate's, or where the gate's manifest says",
        todo=f"copy or link the bare run's directory to {path / BARE}",
    )


def _named(files: tuple[Path, ...], names: tuple[str, ...]) -> Any:
    """Return the first value under one of these names, the first name first, at any depth; None without any."""
    documents = [read_strictly(file) for file in files]
    values = (value for name in names for document in documents for value in _under(document, name))
    return next(values, None)


def _under(document: Any, name: str) -> Iterator[Any]:
    if isinstance(document, dict):
        if document.get(name) is not None:
            yield document[name]
        for value in document.values():
            yield from _under(value, name)
    elif isinstance(document, list):
        for value in document:
            yield from _under(value, name)


def _whole(value: Any) -> int | None:
    return value if type(value) is int else None


def _refuse_other_pairs(stated: Columns, made: Columns, path: Path) -> None:
    """Refuse a contributions file that states another mask or reward than assignments and traces have."""
    traced = _rows(made)
    for key, row in _rows(stated).items():
        other = traced.get(key, {})
        for name in ("shown", "reward", "bare_reward"):
            told, found = row.get(name, ""), other.get(name, "")
            scores = name != "shown" and told and found
            if told != found and not (scores and abs(float(told) - float(found)) <= 1e-9):
                raise _disagreement(f"{name} is {told or 'empty'}, in the traces {found or 'empty'}", key, path)


def _rows(gate: Columns) -> dict[tuple[str, int], dict[str, str]]:
    """Return a gate's rows by task and sample, with the ids that each shows whatever the order of the columns."""
    ids = [item.intervention_id for item in gate.interventions]
    found = {}
    for number in range(gate.rows):
        row = {name: column[number] for name, column in gate.cells.items()}
        shown = _listed(name for name, bit in zip(ids, row["mask"], strict=False) if bit == "1")
        found[row["task_id"], int(row.get("sample") or 0)] = row | {"shown": shown}
    return found


def _listed(ids: Iterable[str]) -> str:
    return ", ".join(sorted(ids)) or "nothing"


def _disagreement(found: str, key: tuple[str, int], path: Path) -> DesignError:
    return DesignError(
        f"{found}, in task {key[0]}, sample {key[1]}",
        where=f"{path}, contributions",
        allowed="a contributions file of these assignments and traces (M17, M20)",
        todo="find out which files belong to this gate; do not fit it",
    )


def _contributions(gate: Columns) -> dict[str, Any]:
    """Return the pairs as a contributions document; it states no estimate, since none was read."""
    return {
        "schema_version": CONTRIBUTIONS[1],
        "observations": gate.rows,
        "requested_observations": gate.rows + gate.owed,
        "dropped_episode_ids": list(gate.dropped),
        "active_skill_budget": gate.budget,
        "contributions": [item.to_json() for item in gate.interventions],
        "observations_table": [_table_row(gate, row) for row in range(gate.rows)],
    }


def _table_row(gate: Columns, row: int) -> dict[str, Any]:
    """Return one pair; outcomes other than reward and its parts have no place in such a document."""
    cells = {name: column[row] for name, column in gate.cells.items()}
    ids = [item.intervention_id for item in gate.interventions]
    about = {"sample_id": "sample", "split": "split", "checkpoint": "checkpoint", "origin": "origin"}
    outcomes = [name for name in cells if name.removeprefix("bare_").startswith(("reward", "r_"))]
    return {
        "task_id": cells["task_id"],
        **{field: cells[name] for field, name in about.items() if name in cells},
        "mask": {name: int(bit) for name, bit in zip(ids, cells["mask"], strict=True)},
        **{name: float(cells[name]) if cells[name] else None for name in outcomes},
    }
