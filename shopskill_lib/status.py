"""How far a run is, while it runs: episodes by arm, never an effect."""

from datetime import timedelta
from pathlib import Path

import pandas as pd

from shopskill_lib import distil, protocol, rollouts, spending, workbench
from shopskill_lib.rollouts import Planned
from shopskill_lib.rolloutset import RolloutSet
from shopskill_lib.settings import Settings
from shopskill_lib.workbench import Bench

NEUTRAL = ("train", "bare")
"""Arms whose mean tells nothing of a skill; the others' means would be a look before the gate."""

RECENT = 50
"""Episodes whose pace the remaining time is estimated from."""


def report(run_dir: Path) -> str:
    """Return the interim page of a run: done, owed and missing by arm, means, faults, time left.

    Raises:
        InputError: the folder is no run, or its files are damaged.
    """
    bench = workbench.set_up(Settings.of_run(run_dir), run_dir)
    plans = _plans(bench)
    seed = bench.settings.rollout_seed
    sets = {split: rollouts.load(plan, bench.agent, run_dir, rollout_seed=seed) for split, plan in plans.items()}
    rows = [_row(split, arm) for split, arms in sets.items() for arm in arms.values()]
    table = pd.DataFrame(rows).set_index(["split", "arm"])
    label = "simulated " if bench.agent.model.identity.simulated else ""
    return f"{label}run {run_dir}\n{table.to_string(na_rep='-')}\n{_time_left(sets)}{_later(bench)}{_spent(run_dir)}"


def _plans(bench: Bench) -> dict[str, list[Planned]]:
    """Return the episodes of each split, as far as what they show is known by now."""
    settings, folder = bench.settings, bench.folder
    plans = {} if settings.draft else {"train": distil.plan_train(bench, distil.seed_skill(bench))}
    plans["val"] = protocol.plan_bare(bench, "val")
    if settings.draft or (folder / protocol.DRAFT).exists():
        plans["val"] = protocol.plan_gate_a(protocol.set_up(settings, folder))
    if (folder / protocol.SELECTED).exists() and protocol.read_selected(folder).chunks:
        plans["test"] = protocol.plan_gate_b(bench)
    return plans


def _row(split: str, arm: RolloutSet) -> dict[str, object]:
    """Return one line of the table; a mean stands beside the count it rests on."""
    mean, without = arm.mean_reward, len(arm.finished) - len(arm.scored)
    return {
        "split": split,
        "arm": arm.arm,
        "planned": len(arm.planned),
        "scored": len(arm.scored),
        **({"unscored": without} if without else {}),
        "owed": len(arm.owed),
        "missing": len(arm.missing),
        "mean reward": None if mean is None or arm.arm not in NEUTRAL else round(mean, 4),
        "protocol faults": sum(episode.protocol_faults for episode in arm.finished),
        "invalid actions": sum(episode.invalid_actions for episode in arm.finished),
    }


def _later(bench: Bench) -> str:
    """Say which stages wait for others, and which online rounds are finished."""
    folder, settings = bench.folder, bench.settings
    waiting = {
        "masked rollouts: wait for the draft of 02_compile": settings.draft or (folder / protocol.DRAFT).exists(),
        "test rollouts: wait for the skill of 03_gate_a": (folder / protocol.SELECTED).exists(),
    }
    done = [path.name for path in sorted((folder / protocol.ROUNDS).glob("round_*"))]
    rounds = f"online rounds finished: {', '.join(done) or 'none'}, {settings.rounds} asked for"
    return "".join(f"\n{line}" for line in (*(words for words, ready in waiting.items() if not ready), rounds))


def _spent(run_dir: Path) -> str:
    """Say what each stage has spent on each model so far."""
    groups = spending.spent(run_dir)
    lines = [f"\nspent in {stage} on the {who}: {tally}" for (stage, who), tally in groups.items()]
    return "".join([*lines, f"\nspent in all: {spending.total(groups.values())}"] if lines else [])


def _time_left(sets: dict[str, dict[str, RolloutSet]]) -> str:
    """Estimate the time left from the pace of the latest episodes."""
    arms = [arm for by_arm in sets.values() for arm in by_arm.values()]
    owed = sum(len(arm.owed) for arm in arms)
    if not owed:
        return "nothing is owed"
    ends = sorted(episode.ended_at for arm in arms for episode in arm.finished)[-RECENT:]
    if len(ends) < 2:
        return f"{owed} episodes owed; their pace is not known yet"
    pace = (ends[-1] - ends[0]) / (len(ends) - 1)
    left = timedelta(seconds=round((pace * owed).total_seconds()))
    return f"{owed} episodes owed, about {left} at the pace of the latest {len(ends)} episodes"
