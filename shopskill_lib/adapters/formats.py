"""The formats that can be imported and exported, in the order in which a source is tried against them."""

import json
from pathlib import Path
from typing import Any

from shopskill_lib.adapters import (
    conversations,
    folder,
    gate_folder,
    openai_messages,
    run_folder,
    shopsimrl,
    shopsimulator_files,
    skillbank,
    slime,
    trl,
    verl,
)
from shopskill_lib.adapters.recorded import Format, Import, RecordedEpisode
from shopskill_lib.errors import InputError, ParameterError
from shopskill_lib.files import decode, read_bytes
from shopskill_lib.sources import Columns

FORMATS = (
    Format("imported", folder.recognises, folder.load, folder.save),
    Format(gate_folder.NAME, gate_folder.recognises, gate_folder.read, gate_folder.write),
    Format(shopsimrl.RUN, shopsimrl.recognises_run, shopsimrl.read_run, shopsimrl.write_run),
    Format(shopsimrl.NAME, shopsimrl.recognises, shopsimrl.read, shopsimrl.write),
    Format(skillbank.BANK, skillbank.recognises_bank, skillbank.read_bank, skillbank.write_bank),
    Format(skillbank.POOL, skillbank.recognises_pool, skillbank.read_pool, skillbank.write_pool),
    Format(run_folder.NAME, run_folder.recognises, run_folder.read, run_folder.write),
    Format(skillbank.OURS, skillbank.recognises_ours, skillbank.read_ours, skillbank.write_ours),
    Format(
        shopsimulator_files.NAME, shopsimulator_files.recognises, shopsimulator_files.read, shopsimulator_files.write
    ),
    conversations.FORMAT,
    slime.FORMAT,
    verl.FORMAT,
    trl.FORMAT,
    openai_messages.FORMAT,
)


def read(path: Path, name: str = "") -> Import:
    """Read a source.

    Args:
        path: file or folder.
        name: of its format; "" to recognise it.

    Raises:
        InputError: there is no such source, no format fits, or it cannot be taken in without loss.
        ParameterError: there is no format of that name.
    """
    return (named(name) if name else recognised(path)).read(path)


def named(name: str) -> Format:
    """Return the format of a name."""
    found = next((one for one in FORMATS if one.name == name), None)
    if found is None:
        raise ParameterError(
            f"there is no format {name!r}",
            where="--format",
            allowed=", ".join(one.name for one in FORMATS),
            todo="choose one of these",
        )
    return found


def recognised(path: Path) -> Format:
    """Return the format of a source."""
    if not path.exists():
        raise InputError("there is no such file or folder", where=str(path), allowed="a source", todo="check the path")
    found = find(path)
    if found is None:
        raise InputError(
            f"this is no format that is known ({_glimpse(path)})",
            where=str(path),
            allowed=f"one of {', '.join(one.name for one in FORMATS)} (docs/importing.md)",
            todo="give another source, or name the format with --format to see what is missing in it; a CSV of pairs "
            "goes to `shopskill gate` as it is",
        )
    return found


def find(path: Path) -> Format | None:
    """Return the format of an existing source; None where no format fits."""
    first = first_document(path)
    return next((one for one in FORMATS if one.recognises(path, first)), None)


def first_document(path: Path) -> Any:
    """Return the first JSON document of a file: its first line, else the whole; None where there is none."""
    if path.is_dir():
        return None
    with path.open("rb") as file:
        first = next((line for line in file if line.strip()), b"")
    try:
        return json.loads(decode(first, path))
    except (ValueError, RecursionError):
        pass
    try:
        return json.loads(decode(read_bytes(path), path))
    except (ValueError, RecursionError):
        return None


def _glimpse(path: Path) -> str:
    """Return a few words on what a source holds."""
    first = first_document(path)
    if path.is_dir():
        return "a folder of " + (", ".join(sorted(item.name for item in path.iterdir())[:8]) or "nothing")
    if isinstance(first, dict):
        return f"JSON with {', '.join(list(first)[:8]) or 'nothing'}"
    if first is not None:
        return f"JSON that is a {type(first).__name__}"
    try:
        json.loads(decode(read_bytes(path), path))
    except json.JSONDecodeError as error:
        return f"no JSON: {error.msg} in line {error.lineno}"
    except RecursionError:
        return "JSON that is nested too deeply"
    return "JSON that is null"


def export(imported: Import, form: Format, path: Path) -> tuple[str, ...]:
    """Write an import in a format, read it back, and return sentences on what that format does not hold.

    Raises:
        OutputError: there is something at the place already, or it cannot be written.
        InputError: the import lacks what the format needs.
    """
    folder.refuse_taken(path)
    form.write(imported, path)
    return unheld(imported, form.read(path))


def summary(imported: Import) -> str:
    """Return what was read, one line a kind, and what is switched off."""
    failed = sum(episode.status == "failed" for episode in imported.episodes)
    rewarded = sum(episode.reward is not None for episode in imported.episodes)
    label = "simulated: " if any(episode.simulated for episode in imported.episodes) else ""
    lines = []
    if imported.episodes:
        told = {episode.task_id for episode in imported.episodes} - {None}
        tasks = f"{len(told)} task{'s' * (len(told) != 1)}" if told else "tasks that are not told"
        counts = f"{len(imported.episodes)} episodes of {tasks}, {rewarded} with a reward, {failed} failed"
        lines.append(f"{label}{counts}")
    if imported.skill is not None:
        lines.append(f"a skill of {len(imported.skill.chunks)} chunks")
    if imported.pool is not None:
        pool = imported.pool
        lines.append(f"a pool of {len(pool.chunks)} chunks and {len(pool.candidates)} candidates")
    if imported.gate is not None:
        gate = imported.gate
        lines.append(f"a gate of {gate.rows} pairs and {len(gate.interventions)} factors")
    return "\n".join([f"read as {imported.format}", *lines, *(f"note: {said}" for said in imported.lacks)])


def unheld(before: Import, after: Import) -> tuple[str, ...]:
    """Return sentences on what differs between two imports, but for where it stands."""
    said = []
    if len(before.episodes) != len(after.episodes):
        said.append(f"{len(after.episodes)} of {len(before.episodes)} episodes are held")
    for name in RecordedEpisode.model_fields:
        pairs = zip(before.episodes, after.episodes, strict=False)
        lost = sum(getattr(one, name) != getattr(other, name) for one, other in pairs)
        if lost and name != "source":
            said.append(f"{name} is not held as it was in {lost} episodes")
    parts = (part for part in ("skill", "pool") if getattr(before, part) is not None)
    said += [f"the {part} is not held as it was" for part in parts if getattr(before, part) != getattr(after, part)]
    return (*said, *_unheld_gate(before.gate, after.gate))


def _unheld_gate(before: Columns | None, after: Columns | None) -> tuple[str, ...]:
    """Return what differs between two gates, numbers compared by value."""
    if before is None or after is None:
        return ("the gate is not held",) if before is not None else ()
    said = ["the factors are not held as they were"] if before.interventions != after.interventions else []
    lost = [
        name
        for name, cells in before.cells.items()
        if list(map(_value, cells)) != list(map(_value, after.cells.get(name, ())))
    ]
    said += [f"of the gate, not held as they were: {', '.join(lost)}"] if lost else []
    return tuple(said)


def _value(cell: str) -> float | str:
    try:
        return float(cell)
    except ValueError:
        return cell
