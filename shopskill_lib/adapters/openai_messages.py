"""OpenAI chat messages with tools, one object an episode: `trajectory_id`, `messages` and, if known, more."""

from typing import Any

from shopskill_lib.adapters import rows
from shopskill_lib.adapters.calls import checked
from shopskill_lib.adapters.dialogues import told
from shopskill_lib.adapters.lossless import refusal
from shopskill_lib.adapters.recorded import RecordedEpisode
from shopskill_lib.adapters.rows import Document


def conversation(messages: Any, where: str) -> dict[str, Any]:
    """Return the fields of a record that a conversation tells (see `calls.checked`)."""
    known = checked(messages, where)
    return {"messages": known, **told(known, where)._asdict()}


def _typed(document: Document, where: str) -> dict[str, Any]:
    if not isinstance(document.get("messages"), list):
        raise refusal("there is no field messages", where, "an object with trajectory_id and messages")
    name = rows.text(document, "trajectory_id", where)
    where = where if name is None else f"{where}, trajectory {name}"
    return {
        "trajectory_id": name,
        "task_id": rows.text(document, "task_id", where),
        "persona": rows.named(document, "persona", where),
        "tools": rows.tools(document, where),
        "reward": rows.reward(document.get("reward"), "reward", where),
        **conversation(document["messages"], f"{where}, messages"),
    }


def _built(episode: RecordedEpisode) -> dict[str, Any]:
    return rows.present(
        trajectory_id=episode.trajectory_id,
        task_id=episode.task_id,
        messages=rows.messages_of(episode),
        tools=None if episode.tools is None else list(episode.tools),
        persona=episode.persona,
        reward=episode.reward,
    )


FORMAT = rows.row_format("openai-messages", lambda found: isinstance(found.get("messages"), list), _typed, _built)
