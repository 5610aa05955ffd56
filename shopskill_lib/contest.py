"""The arms of a ranking rolled out, proven and scored; what was declared before is in `lineup`."""

import hashlib
from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from shopskill_lib import leaks, lineup, pairing, protocol
from shopskill_lib.errors import MissingError
from shopskill_lib.files import write_bytes
from shopskill_lib.lineup import Frozen, Plan, Wish
from shopskill_lib.ranking import BARE, BOTTOM, FEW_SETS, FEW_TASKS, FRESH, RANDOM, TOP, TOTALS, Measured
from shopskill_lib.records import Episode, canonical
from shopskill_lib.rolloutset import RolloutSet
from shopskill_lib.workbench import Bench

EPISODES = "episodes.csv"
"""In the folder of the ranking: one row an episode, bare beside it."""

STAGE = "ranking"
"""In `calls.jsonl`."""


def measure(bench: Bench, wish: Wish) -> Measured:
    """Roll out what the ranking still owes, prove what was shown, and return what the arms earned.

    Args:
        bench: of `lineup.open_run`.
        wish: the same.

    Raises:
        SetupError: no reward of the shop can be used.
        InputError: a chunk holds something of these tasks (M12).
        DesignError: another plan is frozen here, or an episode was shown something else.
        MissingError: episodes are owed, or more tasks lack one than `max_missing` admits.
        Interrupted: stopped on request, or the budget is reached; the same call goes on.
    """
    protocol.refuse_unscored(bench)
    leaks.refuse(bench, protocol.pool_of(bench).versions, "val")
    plan = lineup.declare(bench, wish)
    episodes = lineup.planned(bench, plan)
    sets = protocol.roll_out(bench, episodes, STAGE)
    protocol.prove(episodes, sets)
    kept, notes = _complete(plan, sets, wish)
    gate = lineup.read_gate(bench.folder.parent)
    rewards = _rewards(plan, sets, kept)
    fresh = _fresh(plan, sets, kept, gate)
    _write(bench, plan, rewards, fresh)
    return Measured(
        simulated=plan.simulated,
        checkpoint=bench.agent.model.identity.checkpoint,
        plan_sha256=hashlib.sha256(canonical(plan.model_dump(mode="json"))).hexdigest(),
        K=plan.K,
        slots=plan.slots,
        sets=_sets(plan, sets, kept),
        rewards=rewards,
        fresh=fresh,
        totals=_totals(plan, gate),
        notes=(*notes, *_weak(plan, len(kept), gate), *([bench.agent.shop.note] if bench.agent.shop.note else [])),
    )


def _complete(plan: Plan, sets: Mapping[str, RolloutSet], wish: Wish) -> tuple[list[str], list[str]]:
    """Return the tasks of which every episode is scored, and notes on the others."""
    owed = sum(len(arm.owed) for arm in sets.values())
    lost = {task_id for arm in sets.values() for task_id, _ in arm.unscored}
    kept = [task_id for task_id in plan.tasks if task_id not in lost]
    if owed or len(lost) > wish.max_missing * len(plan.tasks) or len(kept) < 2:
        raise MissingError(
            f"{len(lost)} of {len(plan.tasks)} tasks lack an episode ({', '.join(sorted(lost)[:10])}); {owed} are owed",
            where="ranking",
            allowed=f"no episode owed, and at most {wish.max_missing:.0%} of the tasks left out (max_missing)",
            todo="repeat the call for those owed; see shopskill status why others fail",
        )
    told = [f"{len(lost)} tasks are left out, as an episode of theirs is missing: {', '.join(sorted(lost))}"]
    return kept, told if lost else []


def _reward(arm: RolloutSet, task_id: str, sample: int) -> float:
    reward = arm.episodes[task_id, sample].reward
    assert reward is not None, "scored episodes have a reward"
    return reward


def _rewards(plan: Plan, sets: Mapping[str, RolloutSet], kept: Sequence[str]) -> pd.DataFrame:
    """Return one row a task, one column an arm."""
    arms = [BARE, *plan.sets]
    return pd.DataFrame({arm: [_reward(sets[arm], task_id, 0) for task_id in kept] for arm in arms}, index=list(kept))


def _fresh(plan: Plan, sets: Mapping[str, RolloutSet], kept: Sequence[str], gate: Frozen) -> pd.DataFrame:
    """Return one row an episode of a fresh mask."""
    rows = [
        (row, sample, " ".join(versions), gate.sum(versions), _reward(sets[FRESH], task_id, sample))
        for row, task_id in enumerate(kept)
        for sample, versions in enumerate(plan.fresh[task_id])
    ]
    return pd.DataFrame(rows, columns=["task", "sample", "shown", "predicted", "reward"])


def _sets(plan: Plan, sets: Mapping[str, RolloutSet], kept: Sequence[str]) -> pd.DataFrame:
    """Describe the arms, with the tokens that they add to the first prompt."""
    rows = [{"arm": BARE, "shown": "", "predicted": 0.0, "characters": 0, "tokens": 0.0}]
    for arm, shown in plan.sets.items():
        tokens = [_extra_tokens(sets, arm, task_id) for task_id in kept]
        known = [count for count in tokens if count is not None]
        about = {"arm": arm, "shown": " ".join(shown.ids), "predicted": shown.predicted, "characters": shown.characters}
        rows.append({**about, "tokens": float(np.mean(known)) if known else None})
    return pd.DataFrame(rows)


def _extra_tokens(sets: Mapping[str, RolloutSet], arm: str, task_id: str) -> int | None:
    """Return the tokens of an arm's first prompt beyond those of bare; None where the server counts none."""
    one, bare = (_first_tokens(sets[name].episodes[task_id, 0]) for name in (arm, BARE))
    return None if one is None or bare is None else one - bare


def _first_tokens(episode: Episode) -> int | None:
    usage = episode.steps[0].usage
    return None if usage is None else usage.prompt_tokens


def _totals(plan: Plan, gate: Frozen) -> dict[str, float | None]:
    """Return what the gate said of its Top-K's total; over halves it has been told of the selected set alone."""
    top = plan.sets[TOP].ids
    halves = gate.halves if {*top} == {*gate.selected} else None
    return dict(zip(TOTALS, (gate.sum(top), float(sum(gate.shrunken[name] for name in top)), halves), strict=True))


def _weak(plan: Plan, n_tasks: int, gate: Frozen) -> list[str]:
    """Say where intervals are coarse, and what Top-K is not."""
    random = sum(arm.startswith(RANDOM) for arm in plan.sets)
    shared = len({*plan.sets[TOP].ids} & {*plan.sets[BOTTOM].ids})
    problems = (
        (shared > 0, f"Top-K and Bottom-K share {shared} of {plan.K} chunks, which say nothing in their difference"),
        (
            {*plan.sets[TOP].ids} != {*gate.selected},
            "Top-K is not the selected set: its total over halves is not known",
        ),
        (n_tasks < FEW_TASKS, f"{n_tasks} tasks: below {FEW_TASKS} the intervals are coarse and mostly too narrow"),
        (random == 1, "one random set: the interval of top - random is over tasks alone"),
        (1 < random < FEW_SETS, f"{random} random sets: an interval over so few is coarse"),
    )
    return [told for wrong, told in problems if wrong]


def _write(bench: Bench, plan: Plan, rewards: pd.DataFrame, fresh: pd.DataFrame) -> None:
    """Write one row an episode, bare beside it."""
    bare = rewards[BARE].to_numpy()
    parts = [
        pd.DataFrame({"task_id": rewards.index, "arm": arm, "sample": 0, "shown": " ".join(shown.ids)}).assign(
            predicted=shown.predicted, reward=rewards[arm].to_numpy(), bare_reward=bare
        )
        for arm, shown in plan.sets.items()
    ]
    rows = fresh["task"].to_numpy(dtype=np.int64)
    parts.append(fresh.drop(columns="task").assign(task_id=rewards.index[rows], arm=FRESH, bare_reward=bare[rows]))
    table = pd.concat([part for part in parts if len(part)], ignore_index=True)
    table = table.assign(origin=pairing.origin(bench), simulated=plan.simulated)
    write_bytes(bench.folder / EPISODES, table.to_csv(index=False).encode())
