"""Files read whole or refused, written whole or not at all."""

import json
import os
from codecs import BOM_UTF8, BOM_UTF16_BE, BOM_UTF16_LE
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from shopskill_lib.errors import InputError, OutputError

T = TypeVar("T")


def read_bytes(path: Path) -> bytes:
    """Read a whole file that holds something, or say in one message why it cannot be read."""
    refusal = {"where": str(path), "allowed": "a readable file", "todo": "check the path"}
    if path.is_dir():
        raise InputError("this is a directory", **refusal)
    try:
        content = path.read_bytes()
    except FileNotFoundError as error:
        raise InputError("there is no such file", **refusal) from error
    except (OSError, ValueError) as error:
        raise InputError(f"the file cannot be read ({error})", **refusal) from error
    if not content.removeprefix(BOM_UTF8).strip(b" \t\r\n,;"):
        raise InputError("the file is empty", **refusal | {"allowed": "a file that holds something"})
    return content


def decode(content: bytes, path: Path) -> str:
    """Decode UTF-8 with or without a byte order mark."""
    refusal = {"where": str(path), "allowed": "text in UTF-8", "todo": "save the file again as UTF-8"}
    if content.startswith((BOM_UTF16_LE, BOM_UTF16_BE)):
        raise InputError("the file is UTF-16", **refusal)
    if b"\0" in content:
        raise InputError("the file is binary, not text", **refusal)
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"byte {error.start + 1} is not UTF-8", **refusal) from error


def read_text(path: Path) -> str:
    """Read a whole text file, or say in one message why it cannot be read."""
    return decode(read_bytes(path), path)


def text_lines(path: Path) -> Iterator[str]:
    """Yield the lines of a text file one by one, so that it may be larger than memory; what cannot be read is refused.

    A line ends with its line break only: a line separator inside a JSON text is none.
    """
    refusal = {"where": str(path), "allowed": "a readable file", "todo": "check the path"}
    blank = True
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, 1):
                blank = blank and not line.removeprefix(BOM_UTF8).strip()
                yield decode(line, path if number == 1 else Path(f"{path}, line {number}"))
    except FileNotFoundError as error:
        raise InputError("there is no such file", **refusal) from error
    except OSError as error:
        raise InputError(f"the file cannot be read ({error})", **refusal) from error
    if blank:
        raise InputError("the file is empty", **refusal | {"allowed": "a file with lines"})


def parse_json(text: str, where: str) -> Any:
    """Parse JSON text; the message names the place and the line."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        line = f", line {error.lineno}" if isinstance(error, json.JSONDecodeError) else ""
        raise InputError(
            f"this is not JSON, or is cut off ({error})",
            where=f"{where}{line}",
            allowed="one complete JSON document",
            todo="check that the file is whole, or write it again",
        ) from error


def json_object(text: str) -> dict[str, Any]:
    """Return the JSON object that a text is; empty for any other text."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def read_json(path: Path) -> Any:
    """Read a file that holds one JSON document, or say in one message why it cannot be read."""
    return parse_json(read_text(path), str(path))


def first_fault(error: ValidationError) -> str:
    """Return the first field that is not as it should be, and why."""
    first = error.errors()[0]
    return ": ".join(filter(None, (".".join(map(str, first["loc"])), first["msg"])))


def read_record(path: Path, form: TypeAdapter[T], *, found: str, allowed: str, todo: str) -> T:
    """Read a file of ours that holds one JSON record.

    Raises:
        InputError: the file cannot be read, or is damaged: `found`, and the first field that is not as it was written.
    """
    try:
        return form.validate_json(read_bytes(path))
    except ValidationError as error:
        raise InputError(f"{found} ({first_fault(error)})", where=str(path), allowed=allowed, todo=todo) from error


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file whole or not at all, its folder made if needed; a link stays and its target is written.

    Raises:
        OutputError: the place is no regular file or cannot be written; what stood there is unchanged.
    """
    try:
        _refuse_other_than_file(path)
        path = Path(os.path.realpath(path))
        beside = path.with_name(f".{path.name[:40]}.{os.getpid()}")
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            beside.write_bytes(content)
            beside.replace(path)
        finally:
            beside.unlink(missing_ok=True)
    except (OSError, ValueError) as error:
        raise OutputError(
            f"the file cannot be written ({getattr(error, 'strerror', None) or error})",
            where=str(path)[:200],
            allowed="a file in a folder that you may write",
            todo="choose another place, or free some space",
        ) from error


def _refuse_other_than_file(path: Path) -> None:
    """Refuse a device, a pipe or a directory: writing replaces what stands at a place."""
    if path.name in ("", "..") or (path.exists() and not path.is_file()):
        raise OutputError(
            "this is a directory" if path.is_dir() else "this is a device or a pipe, no file",
            where=str(path),
            allowed="the path of a file, new or to be replaced",
            todo="choose another place",
        )


def write_json(path: Path, document: Any) -> None:
    """Write JSON whole or not at all; NaN is refused (ValueError)."""
    write_bytes(path, (json.dumps(document, ensure_ascii=False, indent=1, allow_nan=False) + "\n").encode())
