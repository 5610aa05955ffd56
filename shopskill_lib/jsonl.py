"""Files of one JSON record a line, that survive a killed process and a full disk."""

import contextlib
import json
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TypeVar

from pydantic import ValidationError

from shopskill_lib.errors import InputError, OutputError
from shopskill_lib.records import Record, canonical

T = TypeVar("T")


def append_lines(path: Path, records: Iterable[Record]) -> None:
    """Append one JSON line a record in a single write that is on disk on return.

    What a killed process left of its last line is cut off first. After a failed write the file holds what it
    held before. Without records nothing is written.

    Raises:
        OutputError: the disk is full, or the file cannot be written.
    """
    block = b"".join(canonical(record.model_dump(mode="json")) + b"\n" for record in records)
    if not block:
        return
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a+b", buffering=0) as file:
            end = _mend_tail(file.fileno())
            try:
                written = file.write(block)
                if written != len(block):
                    raise OSError("the line was cut short; the disk may be full")
                os.fsync(file.fileno())
            except OSError:
                with contextlib.suppress(OSError):
                    file.truncate(end)
                raise
    except OSError as error:
        raise OutputError(
            f"the line cannot be written ({error.strerror or error})",
            where=str(path),
            allowed="a disk with space that you may write",
            todo="free some space and repeat the call; finished lines are kept",
        ) from error


def _mend_tail(descriptor: int) -> int:
    """End a file with a whole line, and return its length: a torn last line goes, a complete one gets its newline."""
    size = os.fstat(descriptor).st_size
    if not size or os.pread(descriptor, 1, size - 1) == b"\n":
        return size
    start, last = size, b""
    while start and b"\n" not in last:
        start = max(0, start - 65536)
        last = os.pread(descriptor, size - start, start)
    last = last[last.rfind(b"\n") + 1 :]
    if _is_json(last):
        os.write(descriptor, b"\n")
        return size + 1
    os.ftruncate(descriptor, size - len(last))
    return size - len(last)


def _is_json(line: bytes) -> bool:
    try:
        json.loads(line)
    except ValueError:
        return False
    return True


def read_lines(path: Path, parse: Callable[[bytes], T]) -> list[T]:
    """Read a file of JSON lines; without the file, none. A torn last line is left out.

    Args:
        path: the file.
        parse: validator of a line, for example ``Episode.model_validate_json``.

    Raises:
        InputError: any other line is damaged; the message has file and line.
    """
    if not path.exists():
        return []
    *lines, tail = path.read_bytes().split(b"\n")
    if _is_json(tail):
        lines.append(tail)
    found = []
    for number, line in enumerate(lines, 1):
        try:
            found.append(parse(line))
        except ValidationError as error:
            problem = error.errors()[0]
            raise InputError(
                f"the line is damaged ({problem['msg']})",
                where=f"{path}, line {number}",
                allowed="one whole record a line; only the last may be cut short",
                todo="restore the file from a copy, or remove this line to have what it records done again",
            ) from error
    return found
