"""Gates and drafts as events of the ledger (METHOD M30)."""

from collections.abc import Iterable, Sequence
from datetime import datetime

from shopskill_lib.ledger import Event, Replaced, Replacement, Retired, Retirement, Validated, Validation
from shopskill_lib.rounds import Measured


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
        payload = Replacement.model_validate({**facts, "replaced_by": winner.version_id})
        return Replaced.of(payload, at=at, reason=row.reason)
    payload = Validation.model_validate({**facts, "validation_result": row.status})
    return Validated.of(payload, at=at, reason=row.reason)
