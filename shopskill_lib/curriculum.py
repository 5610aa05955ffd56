"""The curriculum of a training round: which chunks a GRPO group is shown (METHOD M26, M29).

Standard library only, so that a trainer in another environment can import this file alone. What is wrong raises
ValueError: what was found, where, what is allowed.
"""

import hashlib
import json
import os
import re
import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

SCHEMA = "shopskill-curriculum-v1"

Mode = Literal["skill_free", "assisted", "assisted_empty"]

_SHA256 = re.compile("[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class Shown:
    """One active chunk of the round.

    Attributes:
        chunk_id: id of its slot in the skill.
        text_sha256: hash of its text, 64 hex digits.
        alpha: its coefficient at the last gate; it decides no draw, `rho` does.
        rho: probability with which a group that is not skill-free is shown it.
    """

    chunk_id: str
    text_sha256: str
    alpha: float
    rho: float

    def __post_init__(self) -> None:
        """Refuse values that no draw can use."""
        _require(isinstance(self.chunk_id, str) and self.chunk_id, "chunk_id", self.chunk_id, "an id")
        where = f"chunk {self.chunk_id}"
        is_hash = isinstance(self.text_sha256, str) and _SHA256.fullmatch(self.text_sha256)
        _require(is_hash, f"{where}, text_sha256", self.text_sha256, "64 hex digits")
        _require(_is_finite(self.alpha), f"{where}, alpha", self.alpha, "a finite number")
        _require_probability(f"{where}, rho", self.rho)


@dataclass(frozen=True)
class Curriculum:
    """The state of one round.

    Attributes:
        round: from 0.
        checkpoint: identifier of the weights that the gate measured.
        seed: of the draws.
        q: probability that a group is skill-free.
        chunks: active chunks, kept in order of their ids; the skill, not this file, says in which order a prompt
            shows them.
    """

    round: int
    checkpoint: str
    seed: int
    q: float
    chunks: tuple[Shown, ...]

    def __post_init__(self) -> None:
        """Refuse values that no draw can use, and sort the chunks."""
        _require(_is_integer(self.round) and self.round >= 0, "round", self.round, "a whole number from 0")
        _require(isinstance(self.checkpoint, str) and self.checkpoint, "checkpoint", self.checkpoint, "an identifier")
        _require(_is_integer(self.seed), "seed", self.seed, "a whole number")
        _require_probability("q", self.q)
        repeated = [name for name, count in Counter(shown.chunk_id for shown in self.chunks).items() if count > 1]
        _require(not repeated, "chunks", repeated, "every chunk_id once")
        object.__setattr__(self, "chunks", tuple(sorted(self.chunks, key=lambda shown: shown.chunk_id)))

    @cached_property
    def state_id(self) -> str:
        """SHA-256 of all that decides a draw: not of checkpoint, alpha, path, time or any order."""
        state = {
            "round": self.round,
            "seed": self.seed,
            "q": float(self.q),
            "chunks": [[shown.chunk_id, shown.text_sha256, float(shown.rho)] for shown in self.chunks],
        }
        text = json.dumps(state, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
        return hashlib.sha256(text.encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class Draw:
    """What all G rollouts of a group are shown.

    Attributes:
        mode: `skill_free`, `assisted`, or `assisted_empty` where no chunk came up.
        chunk_ids: chunks shown, sorted; empty in the other modes.
    """

    mode: Mode
    chunk_ids: tuple[str, ...]


def rho(alphas: Mapping[str, float], rho_min: float = 0.2, rho_max: float = 0.9) -> dict[str, float]:
    """Return the probability of each chunk (M29): linear in max(alpha, 0), the largest positive alpha at `rho_max`.

    Args:
        alphas: chunk id -> coefficient of the gate.
        rho_min: of every alpha up to 0, and of all chunks when no alpha is positive.
        rho_max: of the largest positive alpha.

    Raises:
        ValueError: bounds out of 0 <= rho_min <= rho_max <= 1, or an alpha that is no finite number.
    """
    _require_probability("rho_min", rho_min)
    _require_probability("rho_max", rho_max)
    _require(rho_min <= rho_max, "rho_min", rho_min, f"at most rho_max, {rho_max}")
    for name, alpha in alphas.items():
        _require(_is_finite(alpha), f"chunk {name}, alpha", alpha, "a finite number")
    scale = max((alpha for alpha in alphas.values() if alpha > 0), default=1.0)
    shares = {name: max(alpha, 0.0) / scale for name, alpha in alphas.items()}
    return {name: min(max((1 - x) * rho_min + x * rho_max, rho_min), rho_max) for name, x in shares.items()}


def draw(curriculum: Curriculum, group: str) -> Draw:
    """Return what a group is shown: a function of state and group only (M26, reference 3.16)."""
    prefix = f"{curriculum.seed}:{curriculum.state_id}:{group}"
    if uniform(f"{prefix}:skill-free") < curriculum.q:
        return Draw("skill_free", ())
    shown = tuple(c.chunk_id for c in curriculum.chunks if uniform(f"{prefix}:chunk:{c.chunk_id}") < c.rho)
    return Draw("assisted" if shown else "assisted_empty", shown)


def uniform(text: str) -> float:
    """Return the number from 0 to 1 that a text stands for: the first 8 bytes of its SHA-256, over 2**64."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") / 2**64


def save(curriculum: Curriculum, path: Path) -> None:
    """Write a curriculum whole or not at all.

    Raises:
        OSError: the place cannot be written; what stood there is unchanged.
    """
    document = {"schema": SCHEMA, "state_id": curriculum.state_id, **asdict(curriculum)}
    text = json.dumps(document, sort_keys=True, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        beside.write_bytes(text.encode())
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)


def load(path: str | Path) -> Curriculum:
    """Read a curriculum.

    Raises:
        ValueError: the file is unreadable, of another schema, has other fields or values out of range, or its state_id
            is not that of its content.
    """
    try:
        document = json.loads(Path(path).read_text(encoding="utf-8"), parse_constant=_refuse_constant)
        return _parse(document)
    except (OSError, ValueError, RecursionError) as error:
        raise ValueError(f"{path}: {error}") from error


def _parse(document: Any) -> Curriculum:
    """Return the curriculum of a decoded file."""
    schema = document.get("schema") if isinstance(document, dict) else None
    _require(schema == SCHEMA, "schema", schema, repr(SCHEMA))
    names = [field.name for field in fields(Curriculum)]
    _require_fields("the file", document, ["schema", "state_id", *names])
    _require(isinstance(document["chunks"], list), "chunks", document["chunks"], "a list")
    for position, chunk in enumerate(document["chunks"]):
        _require_fields(f"chunks[{position}]", chunk, [field.name for field in fields(Shown)])
    shown = tuple(Shown(**chunk) for chunk in document["chunks"])
    curriculum = Curriculum(**{name: document[name] for name in names} | {"chunks": shown})
    _require(
        document["state_id"] == curriculum.state_id,
        "state_id",
        document["state_id"],
        f"{curriculum.state_id}, the hash of this content; a file that was edited by hand is written anew by `save`",
    )
    return curriculum


def _require(holds: object, where: str, found: object, allowed: str) -> None:
    if not holds:
        raise ValueError(f"{where} is {found!r}. Allowed: {allowed}")


def _require_probability(where: str, value: Any) -> None:
    _require(_is_finite(value) and 0 <= value <= 1, where, value, "a probability from 0 to 1")


def _require_fields(where: str, found: Any, names: list[str]) -> None:
    _require(isinstance(found, dict), where, found, f"an object with {', '.join(names)}")
    missing, unknown = [name for name in names if name not in found], sorted(set(found) - set(names))
    _require(not missing, f"{where}, fields missing", missing, ", ".join(names))
    _require(not unknown, f"{where}, fields unknown", unknown, ", ".join(names))


def _is_integer(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_finite(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} stands for a number. Allowed: finite numbers")
