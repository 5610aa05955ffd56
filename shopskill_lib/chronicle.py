"""Gates and drafts as events of the ledger (METHOD M30)."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, TypeAlias

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
from shopskill_lib.pools import Candidate
from shopskill_lib.rounds import Measured

Draft: TypeAlias = Any
Cluster: TypeAlias = Any
CompilerLeftOut: TypeAlias = Any


def outcomes(rows: Sequence[Measured], candidates: Iterable[str], at: datetime) -> list[Event]:
    """Return what a gate found of every text that it could measure.

    Args:
        rows: of one gate.
        candidates: ids that the ledger knows as proposals; any other text is nobody's.
        at: time of the events.
    """
    known = set(candidates)
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
    contents = {} if draft.pool is None else {name: chunk.text for name, chunk in draft.pool.versions.items()}
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
                "content": contents[version.version_id],
                **origin,
            }
        )
        events.append(Proposed.of(payload, at=at, reason=version.reason))
    return [*events, *(_left_out(left, draft, clusters, origin, at) for left in draft.left_out)]


def repeated(candidate: Candidate, like: str, checkpoint: str, number: int, at: datetime) -> Event:
    """Return the event of a candidate that the program did not gate: it repeats the rejected one `like`."""
    payload = LeftOut(
        source_card_ids=candidate.evidence_card_ids,
        consolidation_cluster_id=None,
        failure_mechanism=None,
        proposal_checkpoint=checkpoint,
        stage="online",
        round=number,
    )
    return WasLeftOut.of(payload, at=at, reason=f"{candidate.candidate_id} repeats {like}, which a gate has rejected")


def _mechanism(behind: Iterable[Cluster]) -> str | None:
    """Return the mechanism of the failures among these clusters; None where only successes support it."""
    return next((cluster.mechanism for cluster in behind if cluster.channel == "failure"), None)


def _left_out(
    left: CompilerLeftOut, draft: Draft, clusters: Mapping[str, Cluster], origin: Mapping[str, object], at: datetime
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
