"""Looks at data that may be used once: frozen gates, and further looks with a stated reason (METHOD M23, M25)."""

import hashlib
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from shopskill_lib.errors import InputError, LookError
from shopskill_lib.files import write_json

REPLICATION = "replication.json"
"""Frozen record of a replication, in its folder."""

ROUNDS = ("online/round_*", "online/.round_*.staging")
"""Folders of finished rounds, and of the one at work."""

RANKING = Path("ranking", "ranking.json")
"""Frozen record of a ranking study, in the run folder."""

LABELS = ("gate_a_stage_*.json", f"replications/*/{REPLICATION}", str(RANKING))
"""Looks at the validation tasks beside the gates: they select nothing (M23)."""


def freeze(path: Path, record: dict[str, Any], key: dict[str, Any], new_look: str = "") -> dict[str, Any]:
    """Freeze a gate's record with the number of looks that were taken at its data.

    Args:
        path: `gate_a.json` or `gate_b.json` of a run folder.
        record: what the gate found.
        key: what makes it this gate and no other: its data and its rule. The same key is the same look.
        new_look: why the data may be looked at once more; "" says that this is the first look.

    Returns:
        The record as frozen, with `looks`: one {key_sha256, at, reason} for each.

    Raises:
        LookError: a gate with another key is frozen there and no reason is given.
        InputError: the frozen file cannot be read.
        OutputError: the file cannot be written.
    """
    digest = hashlib.sha256(json.dumps(key, sort_keys=True, ensure_ascii=False).encode()).hexdigest()
    looks = _looks(path) if path.exists() else []
    if digest not in [look["key_sha256"] for look in looks]:
        if looks and not new_look:
            raise LookError(
                f"another gate is frozen here, after {len(looks)} look{'s' if len(looks) > 1 else ''}",
                where=str(path),
                allowed="one gate on these tasks and this checkpoint (M23)",
                todo="use a new run folder for new data, or give new_look a reason, which is then printed",
            )
        at = datetime.now(UTC).isoformat(timespec="seconds")
        looks.append({"key_sha256": digest, "at": at, "reason": new_look or "first look"})
    frozen = {**record, "looks": looks}
    write_json(path, frozen)
    return frozen


def taken(folder: Path, name: str) -> int:
    """Count the looks at a split's tasks (see `reasons`)."""
    return len(reasons(folder, name))


def reasons(folder: Path, name: str, until: str = "") -> tuple[str, ...]:
    """Return why each of these looks was taken: the run folder's own, those of its rounds, then labels beside them.

    A gate that is frozen in a round still at work is a look, too.

    Args:
        folder: the run folder.
        name: `gate_a.json` for the validation tasks, `gate_b.json` for the test tasks.
        until: leave out what was looked at later than this, as `latest` gives it; "" for nothing.
    """
    places = [folder / name, *(path for pattern in ROUNDS for path in sorted(folder.glob(f"{pattern}/{name}")))]
    places += [path for labels in LABELS if name == "gate_a.json" for path in sorted(folder.glob(labels))]
    found = [look for path in places if path.exists() for look in _looks(path)]
    return tuple(look["reason"] for look in found if not until or look["at"] <= until)


def told(path: Path, folder: Path) -> str:
    """Say how often a run folder's tasks had been looked at when this gate of it was frozen, and why last."""
    before, split = reasons(folder, path.name, latest(path)), "validation" if path.name == "gate_a.json" else "test"
    return f"looks at the {split} tasks so far: {len(before)}; last reason: {_looks(path)[-1]['reason']}"


def latest(path: Path) -> str:
    """Return when the latest look of a frozen gate was taken.

    Raises:
        InputError: the frozen file cannot be read.
    """
    return max(look["at"] for look in _looks(path))


def _looks(path: Path) -> list[dict[str, str]]:
    """Read the looks of a frozen gate."""
    try:
        looks: list[dict[str, str]] = json.loads(path.read_text(encoding="utf-8"))["looks"]
        if looks and all("key_sha256" in look for look in looks):
            return looks
    except (OSError, ValueError, KeyError, TypeError):
        pass
    raise InputError(
        "the frozen gate cannot be read",
        where=str(path),
        allowed="the JSON this program wrote",
        todo="restore the file, or use a new run folder",
    )
