"""JSON read without loss or refused, and the difference between a document and what a writer makes of a record.

An adapter keeps typed what it understands, and of the rest the difference to what its own writer would write. Written
again, record and difference give the document back, equal as JSON.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from math import isfinite
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from shopskill_lib.errors import InputError
from shopskill_lib.files import parse_json, read_text, text_lines
from shopskill_lib.records import fingerprint

M = TypeVar("M", bound=BaseModel)

_HALF = re.compile("[\ud800-\udfff]")
"""Half a surrogate pair: JSON can write it, UTF-8 cannot."""


class Part(BaseModel):
    """What is read of a document, without conversion; its other fields are left to the difference."""

    model_config = ConfigDict(strict=True, extra="ignore")


def parse_strictly(text: str, where: str) -> Any:
    """Parse JSON text, and refuse what could not be written again as it stands.

    Raises:
        InputError: no JSON, a key that stands twice in an object, NaN or a number without end, or half a surrogate
            pair; the message has place and field.
    """
    try:
        document = json.loads(text, object_pairs_hook=_once, parse_constant=_refuse, parse_float=_finite)
    except _LossError as error:
        place = _endless(json.loads(text), "")
        found = f"{place.lstrip('.')}: {error}" if place else str(error)
        raise refusal(found, where, "JSON with every key once and finite numbers") from error
    except (ValueError, RecursionError):
        document = parse_json(text, where)
    if "\\u" in text:
        _refuse_half_pairs(document, "", where)
    return document


def read_strictly(path: Path) -> Any:
    """Read a file that holds one JSON document (see `parse_strictly`)."""
    return parse_strictly(read_text(path), str(path))


def read_json_lines(path: Path) -> Iterator[tuple[int, Any]]:
    """Yield (line number, document) of a file of one JSON document a line; blank lines are left out."""
    for number, line in enumerate(text_lines(path), 1):
        if line.strip():
            yield number, parse_strictly(line, f"{path}, line {number}")


def refusal(found: str, where: str, allowed: str) -> InputError:
    """Return the error of a source that cannot be taken in without loss."""
    return InputError(found, where=where, allowed=allowed, todo="correct the source, or leave this entry out")


def typed(kind: type[M], document: Any, where: str) -> M:
    """Return a document as the pydantic model that describes its format; a refusal names the field."""
    try:
        return kind.model_validate(document)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(map(str, first["loc"])) or "the entry"
        found = "is not there" if first["type"] == "missing" else f"is {first['input']!r:.60}"
        raise refusal(f"{field} {found}", where, first["msg"]) from error


def kept(document: Any, built: Any) -> dict[str, Any]:
    """Return what must be kept beside a record so that its source document can be written again.

    Args:
        document: of the source.
        built: what the format's writer makes of the record alone, as plain JSON values.
    """
    return {"of": fingerprint(built), "change": difference(document, built)}


def given_back(built: Any, rest: Mapping[str, Any], where: str) -> Any:
    """Return the source document from what the writer makes of the record and what `kept` kept.

    Raises:
        InputError: the record is another one than was read.
    """
    if rest["of"] != fingerprint(built):
        raise InputError(
            "the record was changed after it was read, and what its source said beside it may no longer fit",
            where=where,
            allowed="records as they were read",
            todo="import the source again",
        )
    return patched(built, rest["change"])


def difference(whole: Any, built: Any) -> dict[str, Any] | None:
    """Return what `patched` needs to make `whole` of `built`; None where they are equal as JSON.

    Args:
        whole: the document of a source.
        built: what a writer makes of the record that was read from it, as plain JSON values.
    """
    if isinstance(whole, dict) and isinstance(built, dict):
        fields = {key: {"is": value} for key, value in whole.items() if key not in built}
        fields |= _changed((key, value, built[key]) for key, value in whole.items() if key in built)
        gone = [key for key in built if key not in whole]
        found = {"fields": fields, "gone": gone}
        return {name: part for name, part in found.items() if part} or None
    if isinstance(whole, list) and isinstance(built, list) and len(whole) == len(built):
        items = _changed((str(k), *pair) for k, pair in enumerate(zip(whole, built, strict=True)))
        return {"items": items} if items else None
    same = type(whole) is type(built) and not isinstance(whole, dict | list) and repr(whole) == repr(built)
    return None if same else {"is": whole}


def patched(built: Any, change: Mapping[str, Any] | None) -> Any:
    """Return the document that `difference` was taken of."""
    if change is None:
        return built
    if "is" in change:
        return change["is"]
    if "items" in change:
        return [patched(item, change["items"].get(str(k))) for k, item in enumerate(built)]
    kept = {key: value for key, value in built.items() if key not in change.get("gone", ())}
    return kept | {key: patched(kept.get(key), part) for key, part in change.get("fields", {}).items()}


def _changed(pairs: Iterator[tuple[str, Any, Any]]) -> dict[str, Any]:
    """Return the differences of the pairs that differ, by name."""
    found = ((name, difference(whole, built)) for name, whole, built in pairs)
    return {name: change for name, change in found if change is not None}


class _LossError(ValueError):
    """Something that reading would change."""


def _once(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    names = [name for name, _ in pairs]
    if len(set(names)) < len(names):
        repeated = next(name for name in names if names.count(name) > 1)
        raise _LossError(f"the key {repeated!r} stands twice in an object")
    return dict(pairs)


def _refuse(word: str) -> None:
    raise _LossError(f"{word} is no JSON number")


def _finite(text: str) -> float:
    if float(text) in (float("inf"), float("-inf")):
        raise _LossError(f"the number {text[:40]} has no end")
    return float(text)


def _endless(value: Any, field: str) -> str:
    """Return the place of the first number that is not finite; "" without one."""
    if isinstance(value, dict | list):
        pairs = value.items() if isinstance(value, dict) else enumerate(value)
        return next(filter(None, (_endless(item, f"{field}.{name}") for name, item in pairs)), "")
    return field if isinstance(value, float) and not isfinite(value) else ""


def _refuse_half_pairs(value: Any, field: str, where: str) -> None:
    """Refuse a text that no file can hold, naming its field."""
    inner = partial(_refuse_half_pairs, where=where)
    if isinstance(value, dict):
        for key, item in value.items():
            inner(key, f"{field}.{key!r}")
            inner(item, f"{field}.{key}")
    elif isinstance(value, list):
        for number, item in enumerate(value):
            inner(item, f"{field}.{number}")
    elif isinstance(value, str) and _HALF.search(value):
        raise refusal(f"{field.lstrip('.')} holds half a surrogate pair", where, "text that UTF-8 can carry")
