"""Mask assignments of a ShopSimRL gate with its traces -> pairs, every mask proven from what was shown (M20)."""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shopskill_lib.adapters import shopsimrl
from shopskill_lib.adapters.lossless import Part, refusal, typed
from shopskill_lib.adapters.recorded import RecordedEpisode, Remainder
from shopskill_lib.errors import DesignError
from shopskill_lib.records import fingerprint
from shopskill_lib.sources import Columns, Intervention, interventions_of

SCHEMAS = ("shopsimrl-chunk-mask-assignments-v1", "shopsimrl-online-skill-assignments-v1")

COSTS = ("steps", "prompt_tokens", "completion_tokens", "protocol_faults", "invalid_actions")
"""Outcomes beside the reward, as a run of ours writes them."""

_CANDIDATE = re.compile(r"online-[0-9a-f]{16}")
"""Id that ShopSimRL gives an online candidate (reference 3.12)."""

Key = tuple[str, int]
Traces = tuple[Sequence[RecordedEpisode], Sequence[Remainder]]


class _Row(Part):
    task_id: int | str
    sample_id: int = 0
    split: str | None = None
    mask: list[int]
    included_chunk_ids: list[str] | None = None
    included_intervention_ids: list[str] | None = None


class _Slot(Part):
    slot_id: str
    versions: list[str]


class _Document(Part):
    schema_version: str
    chunk_ids: list[str] | None = None
    columns: list[str] | list[dict[str, Any]] | None = None
    slots: list[_Slot] | None = None
    assignments: list[_Row]


@dataclass(frozen=True, slots=True)
class Assigned:
    """What every masked rollout of a gate was to be shown.

    Attributes:
        interventions: the K factors, in column order.
        shown: task and sample -> ids shown, in order; `masks` the same as bit strings of length K.
        splits: task and sample -> split, None where it is not told.
        notes: what a reader must know of the factors.
    """

    interventions: tuple[Intervention, ...]
    shown: dict[Key, tuple[str, ...]]
    masks: dict[Key, str]
    splits: dict[Key, str | None]
    notes: tuple[str, ...] = ()


def read(document: Any, path: Path, candidates: Collection[str] | None = None) -> Assigned:
    """Read an assignment file; `candidates` are the ids of the gate's pool, None where that is not at hand.

    Raises:
        InputError: a field is of another kind, a mask does not fit the columns, or a task and sample stand twice.
    """
    found = typed(_Document, document, str(path))
    factors = _factors(found, candidates, path)
    ids = [item.intervention_id for item in factors]
    rows = Assigned(factors, {}, {}, {}, _unsure(found, candidates))
    for number, row in enumerate(found.assignments):
        where, key = f"{path}, assignments.{number}", (str(row.task_id), row.sample_id)
        if len(row.mask) != len(ids) or not set(row.mask) <= {0, 1}:
            raise refusal(f"mask is {row.mask}", where, f"{len(ids)} bits 0 or 1")
        listed = row.included_chunk_ids if row.included_intervention_ids is None else row.included_intervention_ids
        shown = [name for name, bit in zip(ids, row.mask, strict=True) if bit]
        if listed is not None and sorted(listed) != sorted(shown):
            raise refusal(
                f"the mask shows {', '.join(shown) or 'nothing'}, the ids listed are {listed}", where, "both alike"
            )
        if key in rows.masks:
            raise refusal(f"task {key[0]}, sample {key[1]} stands twice", where, "one mask a task and sample")
        rows.shown[key] = tuple(shown if listed is None else listed)
        rows.masks[key] = "".join(map(str, row.mask))
        rows.splits[key] = row.split
    return rows


def _factors(found: _Document, candidates: Collection[str] | None, path: Path) -> tuple[Intervention, ...]:
    """Return the columns of the masks."""
    if found.chunk_ids is not None:
        return interventions_of([{"intervention_id": name} for name in found.chunk_ids], path)
    columns = found.columns or []
    if columns and isinstance(columns[0], dict):
        return interventions_of(columns, path)
    slots = {version: (order, slot) for order, slot in enumerate(found.slots or (), 1) for version in slot.versions}
    for name in columns:
        if name not in slots:
            raise refusal(f"columns names {name!r}, which stands in no slot", str(path), "slots of {slot_id, versions}")
    return interventions_of([_described(str(name), *slots[str(name)], candidates) for name in columns], path)


def _described(name: str, order: int, slot: _Slot, candidates: Collection[str] | None) -> dict[str, Any]:
    """Describe a version by its slot (reference 3.13): the first of several is in force, every other a rewrite."""
    alone = len(slot.versions) == 1
    added = alone and (_CANDIDATE.fullmatch(name) is not None if candidates is None else name in candidates)
    rewrite = slot.versions.index(name) > 0
    return {
        "intervention_id": name,
        "logical_chunk_id": slot.slot_id,
        "kind": "candidate" if added or rewrite else "current",
        "operation": "ADD" if added else "REWRITE" if rewrite else None,
        "order": order,
    }


def _unsure(found: _Document, candidates: Collection[str] | None) -> tuple[str, ...]:
    """Name the texts that may be additions, or additions of an earlier round that are in force by now."""
    alone = [slot.versions[0] for slot in found.slots or () if len(slot.versions) == 1]
    unsure = [name for name in alone if _CANDIDATE.fullmatch(name)]
    if candidates is not None or not unsure or (found.columns and isinstance(found.columns[0], dict)):
        return ()
    return (f"without the candidate pool these count as additions, though they may be in force: {', '.join(unsure)}",)


def pair(assigned: Assigned, masked: Traces, bare: Traces, name: str) -> Columns:
    """Return the pairs of a gate, one row an assignment, empty cells where an episode is missing (M18, M20).

    Args:
        assigned: the frozen masks.
        masked: traces of the masked run, with their remainders.
        bare: those of the bare run.
        name: of the gate.

    Raises:
        InputError: a task was completed twice in a run, or a masked trace has no assignment.
        DesignError: an episode was shown something else than assigned, one id carries two texts, or the runs differ
            in model, environment, prompt or runtime.
    """
    shown = _completed(masked[0], assigned.masks)
    plain = _completed(bare[0], None)
    _prove(assigned, shown, plain)
    _refuse_unlike([*_settings(*masked), *_settings(*bare)])
    arms = {
        prefix: {key: _outcomes(one) for key, one in arm.items()} for prefix, arm in (("", shown), ("bare_", plain))
    }
    names = ["reward", *(name for name in _told(arms[""]) if name in _told(arms["bare_"]) and name != "reward")]
    about = _about([*shown.values(), *plain.values()])
    rows = [
        {"task_id": key[0], "sample": str(key[1]), "mask": mask, **about, **_cells(arms, key, names)}
        | ({"split": assigned.splits[key] or ""} if any(assigned.splits.values()) else {})
        for key, mask in assigned.masks.items()
    ]
    cells = {column: [row[column] for row in rows] for column in rows[0]} if rows else {}
    return Columns(
        name=name,
        sha256=fingerprint([cells, [item.intervention_id for item in assigned.interventions]]),
        rows=len(rows),
        cells=cells,
        places=tuple(f"assignment {number}" for number in range(len(rows))),
        interventions=assigned.interventions,
        notes=(
            "pairs made of assignments and traces; every mask is proven from the texts that were shown (M20)",
            *assigned.notes,
        ),
    )


def _completed(episodes: Sequence[RecordedEpisode], wanted: Collection[Key] | None) -> dict[Key, RecordedEpisode]:
    """Return the completed episodes of a run by task and sample."""
    found: dict[Key, RecordedEpisode] = {}
    for episode in episodes:
        key = (str(episode.task_id), episode.sample or 0)
        where = f"{episode.source.place}, {episode.trajectory_id}"
        if wanted is not None and key not in wanted:
            raise refusal(f"task {key[0]}, sample {key[1]} has no assignment", where, "traces of the assigned tasks")
        if episode.status != "completed" or episode.reward is None:
            continue
        if key in found:
            first = found[key].source.line
            raise refusal(
                f"task {key[0]}, sample {key[1]} was completed twice, first in line {first}",
                where,
                "one completed episode a task: a choice between two would move the result",
            )
        found[key] = episode
    return found


def _prove(assigned: Assigned, masked: Mapping[Key, RecordedEpisode], bare: Mapping[Key, RecordedEpisode]) -> None:
    """Prove that every masked episode was shown what its mask says, always in the same words, and no bare one any."""
    texts: dict[str, str] = {}
    for arm, episodes in (("masked", masked), ("bare", bare)):
        for key, episode in episodes.items():
            wanted = assigned.shown[key] if arm == "masked" else ()
            ids = None if episode.hints is None else tuple(hint.id for hint in episode.hints)
            problems = [(ids != wanted, f"it shows {_listed(ids)}, and {_listed(wanted)} was assigned")]
            problems += [
                (texts.setdefault(hint.id, hint.text) != hint.text, f"{hint.id} has another text than elsewhere")
                for hint in episode.hints or ()
            ]
            for wrong, found in problems:
                if wrong:
                    raise DesignError(
                        found,
                        where=f"{episode.source.place}, selected_skills",
                        allowed="prompts that show exactly the texts of the frozen mask, bare ones none (M20)",
                        todo="look at the episode; do not fit this gate",
                    )


def _listed(ids: Sequence[str] | None) -> str:
    return "nothing that is told" if ids is None else ", ".join(ids) or "nothing"


def _settings(episodes: Sequence[RecordedEpisode], remainders: Sequence[Remainder]) -> list[tuple[str, dict[str, Any]]]:
    """Return where a completed trace stands, and what it says of model, environment, prompt and runtime."""
    pairs = zip(episodes, remainders, strict=True)
    return [
        (episode.source.place, shopsimrl.settings_of(episode, remainder))
        for episode, remainder in pairs
        if episode.status == "completed"
    ]


def _refuse_unlike(settings: Sequence[tuple[str, dict[str, Any]]]) -> None:
    """Refuse traces made with other settings than the first."""
    for where, found in settings:
        first = settings[0]
        unlike = next((name for name in first[1] | found if first[1].get(name) != found.get(name)), None)
        if unlike is not None:
            raise DesignError(
                f"provenance.{unlike} differs from that of {first[0]}",
                where=where,
                allowed="arms that differ in what the prompt shows and in nothing else (M20)",
                todo="give runs of one model, environment, prompt and runtime",
            )


def _about(episodes: Sequence[RecordedEpisode]) -> dict[str, str]:
    """Say what produced the episodes, all of one model: its weights, its name, whether it is simulated."""
    first = next(iter(episodes), None)
    if first is None:
        return {}
    origin = " ".join(word for word in ("simulated" if first.simulated else None, first.model) if word)
    told = {"checkpoint": first.checkpoint, "origin": origin}
    return {name: text for name, text in told.items() if text}


def _told(arm: Mapping[Key, Mapping[str, float | None]]) -> dict[str, None]:
    """Return the outcomes that any episode of an arm tells."""
    return {name: None for outcomes in arm.values() for name, value in outcomes.items() if value is not None}


def _cells(
    arms: Mapping[str, Mapping[Key, Mapping[str, float | None]]], key: Key, names: Sequence[str]
) -> dict[str, str]:
    """Return the outcomes of a pair, empty where an episode is missing or does not tell."""
    values = {prefix + name: arm.get(key, {}).get(name) for prefix, arm in arms.items() for name in names}
    return {name: "" if value is None else repr(value) for name, value in values.items()}


def _outcomes(episode: RecordedEpisode) -> dict[str, float | None]:
    """Return scores and costs of a completed episode."""
    turns, usage = episode.turns, episode.usage
    costs = (
        None if turns is None else len(turns),
        None if usage is None else usage.prompt_tokens,
        None if usage is None else usage.completion_tokens,
        None if turns is None else sum(turn.fault is not None for turn in turns),
        None if turns is None else sum(turn.feedback not in (None, "executed") for turn in turns),
    )
    return {"reward": episode.reward, **(episode.parts or {}), **dict(zip(COSTS, costs, strict=True))}
