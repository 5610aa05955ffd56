"""Gates and drafts as events of the ledger (METHOD M30)."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

from pydantic import TypeAdapter

from shopskill_lib import ledger, protocol
from shopskill_lib.clusters import Cluster
from shopskill_lib.clusters import LeftOut as Left
from shopskill_lib.compiler import Draft
from shopskill_lib.files import parse_json, read_record, read_text
from shopskill_lib.ledger import (
    Event,
    LeftOut,
    Proposal,
    Proposed,
    Replaced,
    Replacement,
    Retired,
    Retirement,
    Validated,
    Validation,
    WasLeftOut,
)
from shopskill_lib.rounds import Measured, measured
from shopskill_lib.workbench import Bench


def record_cold_start(bench: Bench) -> None:
    """Append what the draft of a run folder proposed, and what Gate A found of it, as far as they are there (M30).

    Chunks of a shipped draft or of a user's file were proposed by nobody. A repeated call writes nothing.

    Raises:
        InputError: draft or gate cannot be read, or the gate measured another draft.
        OutputError: the ledger cannot be written.
    """
    now, checkpoint = datetime.now(UTC), bench.settings.policy_checkpoint
    place, gate = bench.folder / protocol.DRAFT, bench.folder / protocol.GATE
    events: list[Event] = []
    if not bench.settings.draft and place.exists():
        events += proposals(read_draft(place), checkpoint, None, now)
    if gate.exists():
        pool = protocol.read_draft(bench.settings, bench.folder)
        found = measured(parse_json(read_text(gate), str(gate)), pool, None, checkpoint)
        events += outcomes(found, proposed_in(events), now)
    ledger.append(bench.folder / ledger.FILE, events)


def read_draft(path: Path) -> Draft:
    """Read a compiled draft with all that it rests on.

    Raises:
        InputError: it is damaged.
    """
    return read_record(
        path,
        TypeAdapter(Draft),
        found="the draft cannot be used",
        allowed="the draft.json that 02_compile wrote",
        todo="run 02_compile again",
    )


def proposed_in(events: Iterable[Event]) -> set[str]:
    """Return the ids of the candidates that these events propose."""
    return {event.payload.candidate_id for event in events if isinstance(event, Proposed)}


def outcomes(rows: Sequence[Measured], known: set[str], at: datetime) -> list[Event]:
    """Return what a gate found of every text that it could measure.

    Args:
        rows: of one gate.
        known: ids that the ledger has as proposals; any other text is nobody's.
        at: time of the events.
    """
    return [_outcome(row, rows, known, at) for row in rows if row.alpha is not None]


def _outcome(row: Measured, rows: Sequence[Measured], known: set[str], at: datetime) -> Event:
    """Return the event of one text: retired, replaced, or validated."""
    facts = {
        "candidate_id": row.version_id if row.version_id in known else None,
        "chunk_id": row.chunk_id,
        "round": row.round,
        "evaluation_checkpoint": row.checkpoint,
        "estimated_effect": row.alpha,
        "contribution_rank": row.rank,
    }
    if row.kind == "current" and row.status == "retired":
        return Retired.of(Retirement.model_validate(facts), at=at, reason=row.reason)
    if row.kind == "current" and row.status == "rewrite_loser":
        winner = next(other for other in rows if other.chunk_id == row.chunk_id and other.status != "rewrite_loser")
        lost = Replacement.model_validate({**facts, "replaced_by": winner.version_id})
        return Replaced.of(lost, at=at, reason=row.reason)
    found = Validation.model_validate({**facts, "validation_result": row.status})
    return Validated.of(found, at=at, reason=row.reason)


def proposals(draft: Draft, checkpoint: str, number: int | None, at: datetime) -> list[Event]:
    """Return what a draft proposes and what it leaves out.

    Args:
        draft: as compiled.
        checkpoint: weights whose episodes the cards came from.
        number: round; None in the cold start.
        at: time of the events.
    """
    clusters = {cluster.cluster_id: cluster for cluster in draft.clusters}
    origin = {"proposal_checkpoint": checkpoint, "stage": draft.origin, "round": number}
    events: list[Event] = []
    for version in draft.versions:
        behind = [clusters[name] for name in version.cluster_ids]
        payload = Proposal.model_validate(
            {
                "candidate_id": version.version_id,
                "operation": version.operation,
                "target_chunk_id": version.target_chunk_id,
                "source_card_ids": [source.card_id for source in version.sources],
                "failure_mechanism": _mechanism(behind),
                "consolidation_cluster_id": behind[0].cluster_id if behind else None,
                "replacement_family_id": version.target_chunk_id,
                "content": version.content,
                **origin,
            }
        )
        events.append(Proposed.of(payload, at=at, reason=version.reason))
    return [*events, *(_left_out(left, draft, clusters, origin, at) for left in draft.left_out)]


def left_out(card_ids: Sequence[str], reason: str, checkpoint: str, number: int, at: datetime) -> Event:
    """Return the event of online evidence that the program kept from the gate."""
    payload = LeftOut(
        source_card_ids=tuple(card_ids),
        consolidation_cluster_id=None,
        failure_mechanism=None,
        proposal_checkpoint=checkpoint,
        stage="online",
        round=number,
    )
    return WasLeftOut.of(payload, at=at, reason=reason)


def _mechanism(behind: Iterable[Cluster]) -> str | None:
    """Return the mechanism of the failures among these clusters; None where only successes support it."""
    return next((cluster.mechanism for cluster in behind if cluster.channel == "failure"), None)


def _left_out(
    left: Left, draft: Draft, clusters: Mapping[str, Cluster], origin: Mapping[str, object], at: datetime
) -> Event:
    """Return the event of a card or a mechanism that became no candidate."""
    names = next((one.cluster_ids for one in draft.mechanisms if one.mechanism_id == left.item_id), ())
    behind = [clusters[name] for name in names]
    payload = LeftOut.model_validate(
        {
            "source_card_ids": [card for cluster in behind for card in cluster.card_ids] or [left.item_id],
            "consolidation_cluster_id": behind[0].cluster_id if behind else None,
            "failure_mechanism": _mechanism(behind),
            **origin,
        }
    )
    return WasLeftOut.of(payload, at=at, reason=f"{left.step}: {left.reason}")
