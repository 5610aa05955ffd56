"""Sources of one JSON object an episode: JSON lines read one by one, an array, or a folder of such files.

A format of this kind says what it reads of an object and what it writes of a record; the difference is kept apart.
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from shopskill_lib.adapters.lossless import given_back, kept, parse_strictly, read_json_lines, read_strictly, refusal
from shopskill_lib.adapters.recorded import (
    Format,
    Import,
    RecordedEpisode,
    Remainder,
    Source,
    lacking,
    latest,
    refuse_repeated,
)
from shopskill_lib.errors import InputError
from shopskill_lib.files import text_lines, write_bytes

SUFFIXES = (".jsonl", ".json")
"""Of the files that a folder is read for."""

Document = Mapping[str, Any]
Typed = Callable[[Document, str], dict[str, Any]]
"""What a format reads of an object, as fields of `RecordedEpisode`; the second argument is its place, for refusals."""
Built = Callable[[RecordedEpisode], dict[str, Any]]
"""What a format writes of a record."""


class Row(NamedTuple):
    """One object of a source."""

    file: str
    """Name relative to the source."""
    number: int
    """Among the objects of its file, from 1."""
    line: int
    """From 1; of an array the number of its entry."""
    where: str
    document: Document


def row_format(name: str, fits: Callable[[Document], bool], typed: Typed, built: Built) -> Format:
    """Return a format of this kind.

    Args:
        name: of the format.
        fits: tells an object of the format.
        typed: see above; without a `trajectory_id` the row's place is its name.
        built: see above.
    """

    def recognises(path: Path, first: Any) -> bool:
        found = _sample(path, first)
        return found is not None and fits(found)

    return Format(
        name, recognises, partial(_read, name=name, typed=typed, built=built), partial(_write, name=name, built=built)
    )


def _read(path: Path, *, name: str, typed: Typed, built: Built) -> Import:
    """Read a file, or a folder of `*.jsonl` and `*.json`.

    Raises:
        InputError: an entry that is no object of this format, or an id that occurs twice.
    """
    episodes, remainders = [], []
    for row in _rows(path):
        place = f"{Path(row.file).stem if path.is_dir() else 'row'}-{row.number:06d}"
        told = {"trajectory_id": place, **present(**typed(row.document, row.where))}
        told["simulated"] = row.document.get("simulated") is True
        source = Source(format=name, file=row.file, line=row.line)
        episodes.append(recorded(source, told))
        rest = kept(row.document, _marked(episodes[-1], built))
        remainders.append(Remainder(trajectory_id=episodes[-1].trajectory_id, rest=rest))
    refuse_repeated(episodes, str(path))
    return Import(format=name, episodes=tuple(episodes), remainders=tuple(remainders), lacks=lacking(episodes))


def _write(imported: Import, path: Path, *, name: str, built: Built) -> None:
    """Write an import: a file ending in `.json` as an array, any other as JSON lines, several files as a folder.

    What was read from this format is given back as it was. Of another format what the record holds is written, failed
    attempts are left out.

    Raises:
        InputError: a record lacks what the format needs, or was changed after it was read.
    """
    if imported.format != name:
        found = latest(imported.episodes)
        if not found:
            raise refusal("there is no completed episode", f"the import of {imported.format}", "an import of episodes")
        _write_file(path, [_marked(episode, built) for episode in found if messages_of(episode)])
        return
    files: dict[str, list[Document]] = {}
    for episode, remainder in zip(imported.episodes, imported.remainders, strict=True):
        document = given_back(_marked(episode, built), remainder.rest, f"trajectory {episode.trajectory_id}")
        files.setdefault(episode.source.file, []).append(document)
    for file, documents in files.items():
        _write_file(path if len(files) == 1 else path / file, documents)


def _marked(episode: RecordedEpisode, built: Built) -> dict[str, Any]:
    """Return what a format writes, with a mark where a program stood in for the model."""
    return built(episode) | ({"simulated": True} if episode.simulated else {})


def recorded(source: Source, told: Mapping[str, Any]) -> RecordedEpisode:
    """Return a record of these fields; whatever they leave out is not told."""
    untold = dict.fromkeys(RecordedEpisode.model_fields)
    return RecordedEpisode.model_validate({**untold, "simulated": False, **told, "source": source})


def _sample(path: Path, first: Any) -> Document | None:
    """Return the first object of a source, to recognise it by; None where it has none.

    Args:
        path: file or folder.
        first: the file's first JSON document; None for a folder.
    """
    try:
        found = first if path.is_file() else next(iter(_rows(path))).document
    except (InputError, StopIteration):
        return None
    found = found[0] if isinstance(found, list) and found else found
    return found if isinstance(found, dict) else None


def messages_of(episode: RecordedEpisode) -> list[dict[str, Any]]:
    """Return the conversation that a format writes.

    Raises:
        InputError: the record has none.
    """
    if episode.messages is None:
        raise refusal(
            f"trajectory {episode.trajectory_id!r} has no messages",
            episode.source.place,
            "episodes whose conversation is told",
        )
    return [dict(message) for message in episode.messages]


def present(**fields: Any) -> dict[str, Any]:
    """Return the fields that are told."""
    return {name: value for name, value in fields.items() if value is not None}


def text(document: Document, field: str, where: str) -> str | None:
    """Return a field that is a text with letters, or is not there; numbers are read as text."""
    value = document.get(field)
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if value is not None and (not isinstance(value, str) or not value.strip()):
        raise refusal(f"{field} is {value!r}"[:200], where, "a text or a whole number, or nothing")
    return value


def named(document: Document, field: str, where: str) -> dict[str, Any] | None:
    """Return a field that is an object, or is not there."""
    value = document.get(field)
    if value is not None and not isinstance(value, dict):
        raise refusal(f"{field} is a {type(value).__name__}", where, "an object, or nothing")
    return value


def reward(value: Any, field: str, where: str) -> float | None:
    """Return a reward: a number from 0 to 1, or nothing. What another scale means as success is not told."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
        raise refusal(f"{field} is {value!r}"[:200], where, "a number from 0 to 1, where 1 is success, or nothing")
    return float(value)


def tools(document: Document, where: str) -> tuple[dict[str, Any], ...] | None:
    """Return the tools on offer, which may be written as JSON in a text."""
    value = document.get("tools")
    if isinstance(value, str):
        value = parse_strictly(value, f"{where}, tools") if value.strip() else None
    if value is not None and (not isinstance(value, list) or not all(isinstance(tool, dict) for tool in value)):
        raise refusal(f"tools is a {type(value).__name__}", where, "a list of tools, or nothing")
    return None if value is None else tuple(value)


def _rows(path: Path) -> Iterator[Row]:
    """Yield the objects of a source, file after file in natural order."""
    files = [path]
    if path.is_dir():
        files = sorted((item for item in path.iterdir() if item.suffix in SUFFIXES and item.is_file()), key=_order)
        if not files:
            raise refusal("there is no JSON in this folder", str(path), f"files {' or '.join(SUFFIXES)}")
    for file in files:
        for number, (line, where, document) in enumerate(_entries(file), 1):
            if not isinstance(document, dict):
                raise refusal(f"the entry is a {type(document).__name__}", where, "one object an episode")
            yield Row(file.name, number, line, where, document)


def _order(path: Path) -> list[str | int]:
    return [int(part) if part.isdecimal() else part for part in re.split(r"(\d+)", path.name)]


def _entries(path: Path) -> Iterator[tuple[int, str, Any]]:
    """Yield (line or number, place, entry): of an array, which is read whole, or of lines, which are not."""
    opening = next((line for line in text_lines(path) if line.strip()), "")
    if opening.lstrip().startswith("["):
        for number, entry in enumerate(read_strictly(path), 1):
            yield number, f"{path}, entry {number}", entry
    else:
        for number, entry in read_json_lines(path):
            yield number, f"{path}, line {number}", entry


def _write_file(path: Path, documents: Iterable[Document]) -> None:
    """Write a file whole or not at all."""
    lines = [json.dumps(document, ensure_ascii=False, allow_nan=False) for document in documents]
    if path.suffix == ".json":
        lines = ["[", *(f"{line}," for line in lines[:-1]), *lines[-1:], "]"]
    write_bytes(path, "".join(f"{line}\n" for line in lines).encode())
