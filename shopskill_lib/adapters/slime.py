"""Samples of slime as JSON lines: `prompt`, `response`, `reward`, `metadata`, `status`.

The fields are those of slime's public `Sample` (`to_dict`). A sample that was aborted or failed is a failed attempt,
whatever reward stands in it (I20).
"""

from typing import Any

from shopskill_lib.adapters import rows
from shopskill_lib.adapters.chatml import OPENING, joined
from shopskill_lib.adapters.lossless import refusal
from shopskill_lib.adapters.recorded import RecordedEpisode
from shopskill_lib.adapters.rollout_rows import first_of, halves, refuse_tokens, spoken
from shopskill_lib.adapters.rows import Document
from shopskill_lib.records import Failure

_FINISHED, _BROKEN = ("completed", "truncated"), ("pending", "aborted", "failed")


def _typed(document: Document, where: str) -> dict[str, Any]:
    prompt, response = (first_of(document, (key,)) for key in ("prompt", "response"))
    broken = _broken(document, where)
    if not response[1] and broken is None:
        refuse_tokens(document, where)
        raise refusal("response is not there or empty", where, "the response as text")
    metadata = rows.named(document, "metadata", where) or {}
    within = f"{where}, metadata"
    return {
        "trajectory_id": rows.text(metadata, "trajectory_id", within),
        "task_id": rows.text(metadata, "task_id", within),
        "split": rows.text(metadata, "split", within),
        "reward": None if broken else _reward(document, where),
        "status": "failed" if broken else "completed",
        "error": broken,
        **(spoken(prompt, response, where) if response[1] else {}),
    }


def _broken(document: Document, where: str) -> Failure | None:
    """Return why a sample has no result; None for one that was finished."""
    status = document.get("status")
    if status in _BROKEN:
        return Failure(kind=str(status), message="slime did not finish this sample")
    if status is not None and status not in _FINISHED:
        raise refusal(f"status is {status!r}"[:200], where, f"one of {', '.join((*_FINISHED, *_BROKEN))}, or nothing")
    return None


def _reward(document: Document, where: str) -> float | None:
    """Return the reward: a number, or the entry `reward` of an object of rewards."""
    value = document.get("reward")
    if not isinstance(value, dict):
        return rows.reward(value, "reward", where)
    if "reward" not in value:
        found = f"reward is an object of {', '.join(map(str, value)) or 'nothing'}"
        raise refusal(found, where, "a number, or an object with an entry reward: the outcome")
    return rows.reward(value["reward"], "reward.reward", where)


def _built(episode: RecordedEpisode) -> dict[str, Any]:
    asked, answered = (None, []) if episode.messages is None else halves(episode)
    metadata = rows.present(trajectory_id=episode.trajectory_id, task_id=episode.task_id, split=episode.split)
    return rows.present(
        prompt=asked,
        response=joined(answered).removeprefix(OPENING) or None,
        reward=episode.reward,
        metadata=metadata,
        status=episode.error.kind if episode.error and episode.error.kind in _BROKEN else "completed",
    )


FORMAT = rows.row_format(
    "slime", lambda found: "status" in found and ("response" in found or "tokens" in found), _typed, _built
)
