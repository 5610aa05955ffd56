"""The folder of an import: trajectories apart from what rests on gold (M11), skill, pool, gate, source files."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from shopskill_lib.adapters.lossless import read_strictly
from shopskill_lib.adapters.recorded import Import, RecordedEpisode, Remainder
from shopskill_lib.errors import InputError, OutputError
from shopskill_lib.files import write_bytes, write_json
from shopskill_lib.firewall import public
from shopskill_lib.jsonl import append_lines, read_lines
from shopskill_lib.pools import Pool
from shopskill_lib.records import canonical
from shopskill_lib.skills import read_skill
from shopskill_lib.sources import Columns

ABOUT = "import.json"
"""What marks the folder of an import: format, what the source lacks, and what its skill or pool was read from."""

TRAJECTORIES, SOURCE, SKILL, POOL, GATE, FILES = (
    "trajectories.jsonl",
    "source.jsonl",
    "skill.md",
    "pool.json",
    "gate.json",
    "source",
)
"""Its files; `source.jsonl` and the folder `source` are privileged."""

_COLUMNS = TypeAdapter(Columns)


def save(imported: Import, place: Path) -> None:
    """Write an import to a new or empty folder; `import.json` comes last, so that a torn folder is none.

    Raises:
        OutputError: there is something in the folder, or it cannot be written.
        FirewallError: something privileged is about to stand in `trajectories.jsonl`.
    """
    refuse_taken(place)
    public(imported.episodes, TRAJECTORIES)
    if imported.episodes:
        append_lines(place / TRAJECTORIES, imported.episodes)
        append_lines(place / SOURCE, imported.remainders)
    if imported.skill is not None:
        write_bytes(place / SKILL, imported.skill.to_markdown().encode())
    if imported.pool is not None:
        write_json(place / POOL, {"pool": imported.pool.model_dump(mode="json")})
    if imported.gate is not None:
        write_json(place / GATE, asdict(imported.gate))
    for name, content in imported.files.items():
        write_bytes(place / FILES / name, content)
    about = {"format": imported.format, "lacks": list(imported.lacks), "files": list(imported.files)}
    write_json(place / ABOUT, about | {"rest": imported.rest})


def refuse_taken(place: Path) -> None:
    """Refuse a place where something is."""
    if place.exists() and (not place.is_dir() or any(place.iterdir())):
        raise OutputError(
            "there is something already",
            where=str(place),
            allowed="a new place, or an empty folder",
            todo="choose another place, or remove what is there",
        )


def load(place: Path) -> Import:
    """Read the folder of an import.

    Raises:
        InputError: a file is missing or damaged.
    """
    about = _about(place)
    episodes = tuple(read_lines(place / TRAJECTORIES, RecordedEpisode.model_validate_json))
    remainders = tuple(read_lines(place / SOURCE, Remainder.model_validate_json))
    ids = [[record.trajectory_id for record in records] for records in (episodes, remainders)]
    if ids[0] != ids[1]:
        raise _damaged(f"{TRAJECTORIES} and {SOURCE} do not hold the same trajectories in the same order", place)
    pool = place / POOL
    return Import(
        format=about["format"],
        episodes=episodes,
        remainders=remainders,
        skill=read_skill(place / SKILL) if (place / SKILL).exists() else None,
        pool=_validated(TypeAdapter(Pool), read_strictly(pool)["pool"], pool) if pool.exists() else None,
        gate=read_gate(place) if (place / GATE).exists() else None,
        rest=about["rest"],
        files={name: _kept_file(place / FILES / name) for name in about["files"]},
        lacks=tuple(about["lacks"]),
    )


def read_gate(place: Path) -> Columns:
    """Read the pairs of an imported gate."""
    columns: Columns = _validated(_COLUMNS, read_strictly(place / GATE), place / GATE)
    return columns


def recognises(path: Path, _first: Any) -> bool:
    """Tell whether this is the folder of an import."""
    return (path / ABOUT).is_file()


def _about(place: Path) -> dict[str, Any]:
    about = read_strictly(place / ABOUT)
    if not isinstance(about, dict) or about.keys() != {"format", "lacks", "files", "rest"}:
        raise _damaged(f"{ABOUT} is not as it was written", place)
    return about


def _kept_file(path: Path) -> bytes:
    """Read a file of the source, which may be empty."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise _damaged(f"a file of the source is gone ({error.strerror})", path) from error


def _validated(kind: TypeAdapter[Any], document: Any, path: Path) -> Any:
    """Return a document as a record of ours."""
    try:
        return kind.validate_json(canonical(document))
    except ValidationError as error:
        raise _damaged(f"{path.name} is not as it was written ({error.errors()[0]['msg']})", path) from error


def _damaged(found: str, place: Path) -> InputError:
    return InputError(found, where=str(place), allowed="a folder as `shopskill import` wrote it", todo="import again")
