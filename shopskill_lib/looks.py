"""Looks at data that may be used once: frozen gates, and further looks with a stated reason (METHOD M23, M25)."""

import csv
import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from shopskill_lib import ledger
from shopskill_lib.errors import InputError, LookError
from shopskill_lib.files import write_json

TEST = "gate_b.json"
"""Frozen record of a test, in the run folder or in a round's."""

REPLICATION = "replication.json"
"""Frozen record of a replication, in its folder."""

ROUNDS = ("online/round_*", "online/.round_*.staging")
"""Folders of finished rounds, and of the one at work."""

SEED = re.compile(r"seed_\d+")
"""Folders of `shopskill run --seeds`, inside one run folder."""

RANKING = Path("ranking", "ranking.json")
"""Frozen record of a ranking study, in the run folder."""

LABELS = ("gate_a_stage_*.json", f"replications/*/{REPLICATION}", str(RANKING))
"""Looks at the validation tasks beside the gates: they select nothing (M23)."""


def freeze(folder: Path, path: Path, record: dict[str, Any], key: dict[str, Any], new_look: str = "") -> dict[str, Any]:
    """Freeze a gate's record with the number of looks that were taken at its data; each is told in the ledger (M30).

    Args:
        folder: the run folder, whose ledger it is.
        path: of the record, somewhere in the run folder.
        record: what the gate found.
        key: what makes it this gate and no other: its data and its rule. The same key is the same look.
        new_look: why the data may be looked at once more; "" says that this is the first look.

    Returns:
        The record as frozen, with `looks`: one {key_sha256, at, reason} for each.

    Raises:
        LookError: a gate with another key is frozen there and no reason is given.
        InputError: the frozen file or the ledger cannot be read.
        OutputError: a file cannot be written.
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
    ledger.append(folder / ledger.FILE, [_event(folder, path, look) for look in looks])
    return frozen


def _event(folder: Path, path: Path, look: Mapping[str, str]) -> ledger.Looked:
    """Return a look as an event; what is frozen in a round at work is named as the finished round has it."""
    name = re.sub(r"/\.(round_\d+)\.staging/", r"/\1/", path.resolve().relative_to(folder.resolve()).as_posix())
    told = ledger.Look(split="test" if path.name == TEST else "val", record=name, key_sha256=look["key_sha256"])
    return ledger.Looked.of(told, at=datetime.fromisoformat(look["at"]), reason=look["reason"])


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
    before, split = reasons(folder, path.name, latest(path)), "test" if path.name == TEST else "validation"
    over = f", {elsewhere(path, folder)}" if path.name == TEST else ""
    return f"looks at the {split} tasks so far: {len(before)}{over}; last reason: {_looks(path)[-1]['reason']}"


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """Looks at the same test tasks in the run folders beside this one.

    Attributes:
        counts: run -> looks, where there are any.
        unread: runs whose frozen test, its pairs or its episodes cannot be read.
    """

    counts: Mapping[str, int]
    unread: tuple[str, ...]

    @property
    def total(self) -> int:
        """Looks over all runs that can be read."""
        return sum(self.counts.values())

    @property
    def head(self) -> str:
        """The total in words."""
        return f"{'at least ' if self.unread else ''}{self.total} over the runs beside it"

    def __str__(self) -> str:
        by_run = ", ".join(f"{name} {count}" for name, count in self.counts.items())
        unread = f"; not readable: {', '.join(self.unread)}" if self.unread else ""
        return f"{self.head}{f' ({by_run})' if by_run else ''}{unread}"


def elsewhere(path: Path, folder: Path) -> Elsewhere:
    """Count the looks at these test tasks in the run folders beside this one, up to this gate's last (M25).

    Beside it are the folders in the same place, and the seeds of each. The same tasks are those of the same products
    and ids, at any checkpoint; one in common is enough. A test of a file of pairs knows no shop and shares none. A look
    that a copied folder brought along is no other look.

    Args:
        path: a frozen `gate_b.json`.
        folder: its run folder.

    Raises:
        InputError: this gate cannot be read.
    """
    folder, until = folder.resolve(), latest(path)
    mine = _tested(path.parent)
    home = folder.parent.parent if SEED.fullmatch(folder.name) else folder.parent
    seen = {(look["key_sha256"], look["at"]) for own in run_tests(folder) for look in _looks(own)}
    counts: dict[str, int] = {}
    unread: list[str] = []
    for run in sorted(run for pattern in ("*", "*/seed_*") for run in home.glob(pattern) if run != folder):
        name = run.relative_to(home).as_posix()
        try:
            shared = [other for other in run_tests(run) if mine & _tested(other.parent)] if mine else []
            found = {(look["key_sha256"], look["at"]) for other in shared for look in _looks(other)} - seen
        except InputError:
            unread.append(name)
            continue
        seen |= found
        count = sum(at <= until for _, at in found)
        counts |= {name: count} if count else {}
    return Elsewhere(counts, tuple(unread))


def run_tests(run: Path) -> list[Path]:
    """Return the frozen tests of a run folder: its own, then those of its rounds."""
    return [path for pattern in (TEST, *(f"{part}/{TEST}" for part in ROUNDS)) for path in sorted(run.glob(pattern))]


def _tested(place: Path) -> set[tuple[str, str]]:
    """Return what a test rested on: products' fingerprint and task id; empty for pairs made elsewhere."""
    episodes, pairs = place / "episodes" / "equipped.jsonl", place / "test_observations.csv"
    if not episodes.exists():
        return set()
    try:
        products = _products(episodes)
        with pairs.open(encoding="utf-8", newline="") as rows:
            found = {(products, row["task_id"]) for row in csv.DictReader(rows)}
        if not found:
            raise ValueError("no pairs")
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise InputError(
            f"which tasks were tested cannot be read ({error})",
            where=str(place),
            allowed="the episodes and pairs that 04_gate_b left",
            todo="restore the files; episodes that were reused stand in another run folder",
        ) from error
    return found


def _products(episodes: Path) -> str:
    """Return the products' fingerprint in the first episode of a file, which may stand in another run."""
    with episodes.open(encoding="utf-8") as lines:
        first = json.loads(lines.readline())
    reused = first.get("reused_from")
    return _products(episodes.parents[1] / reused) if reused else str(first["shop"]["catalogue"])


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
