"""Episodes of two arms -> the rows of a file of pairs: who, what was shown, the outcomes of both (M18)."""

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path

from shopskill_lib.files import write_bytes
from shopskill_lib.records import Split, Task
from shopskill_lib.rolloutset import RolloutSet
from shopskill_lib.workbench import Bench

DESCRIBED = ("task_id", "sample", "split", "category", "persona", "difficulty", "checkpoint", "origin")
SCORES = ("reward", "r_success", "r_type", "r_att", "r_option", "r_price")
COSTS = ("steps", "prompt_tokens", "completion_tokens", "protocol_faults", "invalid_actions")
"""Outcomes beside the reward: guard rails, in their own units."""

REQUIREMENTS = ((3, "up to 3 requirements"), (5, "4 or 5 requirements"))
HARDEST = "6 or more requirements"


def who(bench: Bench, task: Task, sample: int, split: Split, note: str = "") -> list[object]:
    """Return the descriptive cells of a row; its origin ends in what every claim on it must carry.

    The groups are known without any outcome; of the wanted product's category only the widest node is told.
    """
    persona = "none" if task.persona is None else "shown"
    groups = [task.category.partition("›")[0].strip(), persona, difficulty(task)]
    made_by = f"{origin(bench)}; {note}" if note else origin(bench)
    return [task.task_id, sample, split, *groups, bench.agent.model.identity.checkpoint, made_by]


def difficulty(task: Task) -> str:
    """Say how much a task asks for: its required attributes and options, and a price limit as one more."""
    wanted = len(task.attributes) + len(task.options) + (task.price_upper is not None)
    return next((told for most, told in REQUIREMENTS if wanted <= most), HARDEST)


def origin(bench: Bench) -> str:
    """Say what produced a row: the model, whether it is simulated, and after semicolons what every claim must carry."""
    identity = bench.agent.model.identity
    told = f"{'simulated ' if identity.simulated else ''}{identity.model}"
    shared = bench.settings.allow_overlap
    told += f"; splits may share {shared} (allow_overlap, M2)" if shared else ""
    return told + (f"; {bench.agent.shop.note}" if bench.agent.shop.note else "")


def pair(sets: Mapping[str, RolloutSet], arm: str, task_id: str, sample: int) -> list[object]:
    """Return the outcomes of an episode and of its task's one bare run (M18)."""
    return [*_outcomes(sets[arm], (task_id, sample)), *_outcomes(sets["bare"], (task_id, 0))]


def _outcomes(arm: RolloutSet, key: tuple[str, int]) -> list[object]:
    """Return an episode's scores and costs; empty cells where it is missing."""
    episode = arm.episodes.get(key)
    if episode is None or episode.reward_detail is None:
        return [""] * (len(SCORES) + len(COSTS))
    usage = episode.usage
    costs = {
        "steps": len(episode.steps),
        "prompt_tokens": "" if usage is None else usage.prompt_tokens,
        "completion_tokens": "" if usage is None else usage.completion_tokens,
        "protocol_faults": episode.protocol_faults,
        "invalid_actions": episode.invalid_actions,
    }
    scores = [episode.reward, *(getattr(episode.reward_detail, name) for name in SCORES[1:])]
    return [*scores, *(costs[name] for name in COSTS)]


def write_pairs(path: Path, factors: Sequence[str], arm: str, rows: Sequence[Sequence[object]]) -> Path:
    """Write a file of pairs, the outcomes of the arm under this prefix."""
    table = io.StringIO()
    writer = csv.writer(table, lineterminator="\n")
    outcomes = (*SCORES, *COSTS)
    writer.writerow([*DESCRIBED, *factors, *(arm + name for name in outcomes), *(f"bare_{name}" for name in outcomes)])
    writer.writerows(rows)
    write_bytes(path, table.getvalue().encode())
    return path
