"""Looks at data that may be used once: frozen gates, and further looks with a stated reason (METHOD M23, M25)."""

import hashlib
import json
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from shopskill_lib.errors import InputError, LookError, OutputError


def write_json(path: Path, document: Any) -> None:
    """Write JSON whole or not at all; NaN is refused.

    Raises:
        OutputError: the place cannot be written.
    """
    text = json.dumps(document, ensure_ascii=False, indent=1, allow_nan=False) + "\n"
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        beside.write_text(text, encoding="utf-8")
        beside.replace(path)
    except OSError as error:
        beside.unlink(missing_ok=True) if beside.parent.is_dir() else None
        raise OutputError(
            f"the result cannot be written ({error.strerror})",
            where=str(path),
            allowed="a file in a folder that you may write",
            todo="choose another place, or free some space",
        ) from error


def freeze(path: Path, result: dict[str, Any], new_look: str = "") -> dict[str, Any]:
    """Freeze a gate's result with the number of looks, or return the one that is frozen already.

    The same result is the same look. Another result from other inputs, rule or seeds is a new look at the same
    tasks: it needs a reason, and both stay counted.

    Args:
        path: `gate_a.json` or `gate_b.json` of a run folder.
        result: the record of the gate.
        new_look: why the data may be looked at once more; "" says that this is the first look.

    Returns:
        The record with `looks`: one {result_sha256, at, reason} for each.

    Raises:
        LookError: another result is frozen there and no reason is given.
        InputError: the frozen file cannot be read.
    """
    digest = hashlib.sha256(json.dumps(result, sort_keys=True, allow_nan=False).encode()).hexdigest()
    looks: list[dict[str, str]] = _looks(path) if path.exists() else []
    if looks and looks[-1]["result_sha256"] != digest and not new_look:
        raise LookError(
            f"another gate has been frozen here ({len(looks)} look{'s' if len(looks) > 1 else ''} so far)",
            where=str(path),
            allowed="one gate for these tasks and this checkpoint (M23)",
            todo="use a new run folder for new tasks or a new checkpoint, or give new_look='<reason>'",
        )
    if not looks or looks[-1]["result_sha256"] != digest:
        at = datetime.now(UTC).isoformat(timespec="seconds")
        looks.append({"result_sha256": digest, "at": at, "reason": new_look or "first look"})
    record = {**result, "looks": looks}
    write_json(path, record)
    return record


def _looks(path: Path) -> list[dict[str, str]]:
    """Read the looks of a frozen gate."""
    try:
        looks: list[dict[str, str]] = json.loads(path.read_text(encoding="utf-8"))["looks"]
        if looks and all("result_sha256" in look for look in looks):
            return looks
    except (OSError, ValueError, KeyError, TypeError):
        pass
    raise InputError(
        "the frozen gate cannot be read",
        where=str(path),
        allowed="the JSON this program wrote",
        todo="restore the file, or use a new run folder",
    )
