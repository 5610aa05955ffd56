"""Rollout rows of verl: a dump of generations (`input`, `output`, `score`), or dataset rows with messages and a reward.

The dump's layout is that of verl 0.9.1 (`trainer.rollout_data_dir`); the dataset fields are `data_source`, `prompt`,
`reward_model`, `extra_info`. Ground truth and whatever else is not named stay in the remainder.
"""

from typing import Any

from shopskill_lib.adapters import rows
from shopskill_lib.adapters.lossless import refusal
from shopskill_lib.adapters.openai_messages import conversation
from shopskill_lib.adapters.recorded import RecordedEpisode
from shopskill_lib.adapters.rollout_rows import first_of, refuse_tokens, spoken
from shopskill_lib.adapters.rows import Document

_OWN = {"reward_model", "reward_score", "extra_info", "data_source"}
"""Fields that verl alone writes."""

_PROMPT, _RESPONSE = ("prompt", "prompts", "input"), ("response", "responses", "output")
_REWARD = ("reward_score", "score", "reward")


def _typed(document: Document, where: str) -> dict[str, Any]:
    """Read one row; a task is `extra_info.task_id`, else `extra_info.index`."""
    extra = rows.named(document, "extra_info", where) or {}
    field, reward = first_of(document, _REWARD)
    task = first_of(extra, ("task_id", "index"))[0]
    return {
        "trajectory_id": rows.text(document, "request_id", where),
        "task_id": rows.text(extra, task, f"{where}, extra_info") if task else None,
        "split": rows.text(extra, "split", f"{where}, extra_info"),
        "tools": rows.tools(document, where),
        "reward": rows.reward(reward, field, where),
        **_conversation(document, where),
    }


def _conversation(document: Document, where: str) -> dict[str, Any]:
    """Return what the row tells of its conversation: `messages`, else prompt and response."""
    if document.get("messages") is not None:
        return conversation(document["messages"], f"{where}, messages")
    prompt, response = first_of(document, _PROMPT), first_of(document, _RESPONSE)
    if not prompt[0] and not response[0]:
        refuse_tokens(document, where)
        allowed = "messages, or a prompt and a response"
        raise refusal("the row has neither messages nor a response", where, allowed)
    return spoken(prompt, response, where)


def _built(episode: RecordedEpisode) -> dict[str, Any]:
    extra = rows.present(index=episode.task_id, split=episode.split)
    return rows.present(
        request_id=episode.trajectory_id,
        messages=None if episode.messages is None else list(episode.messages),
        tools=None if episode.tools is None else list(episode.tools),
        reward_score=episode.reward,
        extra_info=extra or None,
    )


FORMAT = rows.row_format(
    "verl", lambda found: bool(found.keys() & _OWN) or found.keys() >= {"input", "output", "score"}, _typed, _built
)
