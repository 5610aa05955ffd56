"""How far a run is, while it runs: episodes by arm, never an effect."""

from collections.abc import Iterator, Sequence
from datetime import timedelta
from pathlib import Path

import pandas as pd

from shopskill_lib import distil, lineup, protocol, repeats, rollouts, sequential, spending, workbench
from shopskill_lib.errors import ShopskillError
from shopskill_lib.looks import SEED
from shopskill_lib.rollouts import Planned
from shopskill_lib.rolloutset import RolloutSet
from shopskill_lib.settings import Settings
from shopskill_lib.workbench import Bench

NEUTRAL = ("train", "bare", repeats.ARM)
"""Arms whose mean tells nothing of a skill; the others' means would be a look before the gate."""

RECENT = 50
"""Episodes whose pace the remaining time is estimated from."""


def report(run_dir: Path) -> str:
    """Return the interim page of a run: done, owed and missing by arm, means, faults, time left.

    Noise floor, replications and ranking are listed from their first episode on.

    Raises:
        InputError: the folder is no run, or its files are damaged.
    """
    settings = Settings.of_run(run_dir)
    drafted = settings.draft or (run_dir / protocol.DRAFT).exists()
    bench = (protocol if drafted else workbench).set_up(settings, run_dir)
    ranking, notes = _ranking(bench)
    sets = [
        (part, arm)
        for part, where, plan in (*_gates(bench), *_replications(bench), *ranking)
        for arm in rollouts.load(plan, where.agent, where.folder, rollout_seed=where.settings.rollout_seed).values()
    ]
    table = pd.DataFrame([_row(part, arm) for part, arm in sets]).set_index(["split", "arm"])
    label = "simulated " if bench.agent.model.identity.simulated else ""
    arms = [arm for _, arm in sets]
    stages = _stages(bench, {arm.arm: arm for part, arm in sets if part == "val"})
    lines = [f"{label}run {run_dir}", table.to_string(na_rep="-"), _time_left(arms), *stages, *_later(bench), *notes]
    return "\n".join([*lines, *_spent(run_dir)])


Part = tuple[str, Bench, list[Planned]]
"""What the table calls it, where its episodes lie, and which they are."""


def _gates(bench: Bench) -> Iterator[Part]:
    """Yield the episodes of each split, as far as what they show is known by now, with the repeats that are there."""
    if not bench.settings.draft:
        yield "train", bench, distil.plan_train(bench, distil.seed_skill(bench))
    val = protocol.plan_bare(bench, "val") if bench.pool is None else protocol.plan_gate_a(bench)
    yield "val", bench, [*val, *repeats.begun(bench, "val")]
    selected = (bench.folder / protocol.SELECTED).exists() and protocol.read_selected(bench.folder).chunks
    test = [*(protocol.plan_gate_b(bench) if selected else ()), *repeats.begun(bench, "test")]
    if test:
        yield "test", bench, test


def _replications(bench: Bench) -> Iterator[Part]:
    """Yield the masked episodes of each replication; its bare ones are those of the gate."""
    names = sorted(path.name for path in (bench.folder / protocol.REPLICATIONS).glob("*") if SEED.fullmatch(path.name))
    for name in names:
        new = protocol.under_masks(bench, int(name.removeprefix("seed_")))
        yield f"val, masks {new.settings.mask_seed}", new, [p for p in protocol.plan_gate_a(new) if p.arm == "masked"]


def _ranking(bench: Bench) -> tuple[list[Part], list[str]]:
    """Return the episodes of the ranking that is declared here, if one is, and why they cannot be listed."""
    try:
        plan = lineup.read_plan(bench.folder)
        if plan is None:
            return [], []
        ranking = lineup.open_run(bench.folder, lineup.Wish(n_ranking=len(plan.tasks)))
        return [("ranking", ranking, lineup.planned(ranking, plan))], []
    except ShopskillError as error:
        return [], [f"the ranking is not listed: {error}"]


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


def _stages(bench: Bench, arms: dict[str, RolloutSet]) -> list[str]:
    """Say how far each declared stage of Gate A is, and which were looked at."""
    parts, masked = protocol.stages(bench).parts, arms.get("masked")
    if len(parts) == 1 or masked is None:
        return []
    lacking = {task_id for arm in (arms["bare"], masked) for task_id, _ in arm.unscored}
    lines = []
    for number, part in enumerate(parts, 1):
        done = sum(task_id not in lacking for task_id in part)
        look = ", looked at" if sequential.looked(number, bench.folder).exists() else ""
        lines.append(f"stage {number} of {len(parts)}: {done} of {len(part)} tasks complete{look}")
    return lines


def _later(bench: Bench) -> list[str]:
    """Say which stages wait for others, and which online rounds are finished."""
    waiting = {
        "masked rollouts: wait for the draft of 02_compile": bench.pool is not None,
        "test rollouts: wait for the skill of 03_gate_a": (bench.folder / protocol.SELECTED).exists(),
    }
    done = [path.name for path in sorted((bench.folder / protocol.ROUNDS).glob("round_*"))]
    rounds = f"online rounds finished: {', '.join(done) or 'none'}, {bench.settings.rounds} asked for"
    return [*(words for words, ready in waiting.items() if not ready), rounds]


def _spent(run_dir: Path) -> list[str]:
    """Say what each stage has spent on each model so far."""
    groups = spending.spent(run_dir)
    lines = [f"spent in {stage} on the {who}: {tally}" for (stage, who), tally in groups.items()]
    return [*lines, f"spent in all: {spending.total(groups.values())}"] if lines else []


def _time_left(arms: Sequence[RolloutSet]) -> str:
    """Estimate the time left from the pace of the latest episodes."""
    owed = sum(len(arm.owed) for arm in arms)
    if not owed:
        return "nothing is owed"
    ends = sorted(episode.ended_at for arm in arms for episode in arm.finished)[-RECENT:]
    if len(ends) < 2:
        return f"{owed} episodes owed; their pace is not known yet"
    pace = (ends[-1] - ends[0]) / (len(ends) - 1)
    left = timedelta(seconds=round((pace * owed).total_seconds()))
    return f"{owed} episodes owed, about {left} at the pace of the latest {len(ends)} episodes"
