"""Rows of TRL: conversational `prompt` and `completion`, with the reward of the trainer's log of completions.

The layouts are those of TRL 1.16: prompt-completion datasets, and what GRPO and RLOO log (`step`, `prompt`,
`completion`, one column a reward function, `advantage`), written as JSON lines. Rows of `messages` alone are read as
OpenAI messages.
"""

from typing import Any

from shopskill_lib.adapters import rows
from shopskill_lib.adapters.lossless import refusal
from shopskill_lib.adapters.recorded import RecordedEpisode
from shopskill_lib.adapters.rollout_rows import halves, spoken
from shopskill_lib.adapters.rows import Document


def _typed(document: Document, where: str) -> dict[str, Any]:
    if "completion" not in document:
        allowed = "rows of prompt and completion; preferences and prompts alone are no episodes"
        raise refusal("there is no field completion", where, allowed)
    field = _reward_column(document, where)
    prompt, completion = ((key, document.get(key)) for key in ("prompt", "completion"))
    return {
        "trajectory_id": rows.text(document, "trajectory_id", where),
        "task_id": rows.text(document, "task_id", where),
        "tools": rows.tools(document, where),
        "reward": rows.reward(document.get(field), field, where),
        **spoken(prompt, completion, where),
    }


def _reward_column(document: Document, where: str) -> str:
    """Return the column of the outcome: `reward`, else the one column whose name speaks of a reward."""
    named = [name for name, value in document.items() if "reward" in name.lower() and value is not None]
    if "reward" in named or not named:
        return "reward"
    if len(named) > 1:
        found = f"there are {len(named)} columns of rewards ({', '.join(named)})"
        raise refusal(found, where, "one, or one that is named reward: which of them is the outcome is not told")
    return named[0]


def _built(episode: RecordedEpisode) -> dict[str, Any]:
    prompt, completion = (None, None) if episode.messages is None else halves(episode)
    return rows.present(
        trajectory_id=episode.trajectory_id,
        task_id=episode.task_id,
        prompt=prompt,
        completion=completion,
        tools=None if episode.tools is None else list(episode.tools),
        reward=episode.reward,
    )


FORMAT = rows.row_format(
    "trl",
    lambda found: found.keys() >= {"prompt", "completion"} or found.keys() >= {"chosen", "rejected"},
    _typed,
    _built,
)
