"""The bare arm of a run folder repeated under other seeds, and the noise floor that follows: `shopskill noise`.

No skill is shown, so nothing is learnt of one: this is no look at a gate's tasks (M23, M25).
"""

import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from shopskill_lib import floors, noise, pairing, protocol, replicates, resampling, workbench
from shopskill_lib.errors import InputError, MissingError, ParameterError
from shopskill_lib.files import read_json
from shopskill_lib.floors import Coefficients, Floor, Noise, Side
from shopskill_lib.gates import PRIMARY
from shopskill_lib.observations import ADMITTED, Observations, read_observations
from shopskill_lib.records import Episode
from shopskill_lib.rollouts import Planned
from shopskill_lib.rolloutset import RolloutSet
from shopskill_lib.settings import Settings
from shopskill_lib.store import Store, best
from shopskill_lib.text import task_key
from shopskill_lib.workbench import Bench

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

ARM = "repeat"
"""Samples 1, 2, ... of a task; its run 0 is the gate's own in the arm `bare`."""

STAGE = "noise"
"""In `calls.jsonl`."""


def open_run(folder: Path) -> Bench:
    """Set up what a run folder's `params.json` says; nothing is asked yet.

    Raises:
        InputError: there is no such file, or the run's pairs were made elsewhere.
    """
    path = folder / "params.json"
    settings = Settings.of_run(folder)
    elsewhere = read_json(path).get("observations", "")
    if elsewhere:
        raise InputError(
            f"the pairs of this run were made elsewhere ({elsewhere})",
            where=str(path),
            allowed="a run folder whose bare arm was rolled out here",
            todo="repeat the bare arm where the pairs were made",
        )
    return workbench.set_up(settings, folder)


def measure(
    bench: Bench, splits: Sequence[Side], repeats: int, *, resamples: int = 2000, analysis_seed: int = 0
) -> Noise:
    """Roll out what the repeats still owe and write the noise floor of each split when it is known.

    Args:
        bench: of a run folder.
        splits: whose bare arms are repeated.
        repeats: bare runs a task beside the gate's own, at least 1.
        resamples: bootstrap resamples of tasks, and draws of the coefficients.
        analysis_seed: of both.

    Raises:
        ParameterError: a number is out of range.
        SetupError: no reward of the shop can be used.
        InputError: the gate's pairs cannot be used, or are of other tasks.
        MissingError: too few episodes are scored.
        Interrupted: stopped on request, or the budget is reached; the same call goes on.
    """
    if repeats < 1:
        raise ParameterError(
            f"repeats is {repeats}", where="--repeats", allowed="a number from 1", todo="give for example 5"
        )
    resampling.refuse_draws(resamples, analysis_seed)
    protocol.refuse_unscored(bench)
    plans = {split: plan(bench, split, repeats) for split in splits}
    pairs = _pairs(bench) if "val" in splits else None
    sys.stderr.write(f"noise: {protocol.foresee(bench, [item for part in plans.values() for item in part])}\n")
    for split, wanted in plans.items():
        sets = protocol.roll_out(bench, wanted, STAGE)
        floor = _floor(bench, split, sets, pairs if split == "val" else None, (resamples, analysis_seed))
        found = floors.write(bench.folder, floor)
    return found


def plan(bench: Bench, split: Side, repeats: int) -> list[Planned]:
    """List the bare episodes of a split: the gate's own, then the repeats of every task."""
    again = [
        Planned(ARM, task, sample, protocol.BARE) for sample in range(1, repeats + 1) for task in bench.tasks(split)
    ]
    return [*protocol.plan_bare(bench, split), *again]


def begun(bench: Bench, split: Side) -> list[Planned]:
    """List the repeats of a split as far as any task has them."""
    tried = [best(tries).episode for tries in Store(bench.folder).attempts(ARM).values()]
    most = max((episode.sample for episode in tried if episode.split == split), default=0)
    return [planned for planned in plan(bench, split, most) if planned.arm == ARM] if most else []


def _pairs(bench: Bench) -> Observations | None:
    """Return the pairs of the run's Gate A; None where it has not been run.

    Raises:
        InputError: they cannot be used, or are of other tasks than the run's.
    """
    path = bench.folder / "observations.csv"
    if not path.exists():
        return None
    pairs = read_observations(path, bench.folder / protocol.INTERVENTIONS, ADMITTED)
    strange = {*map(task_key, pairs.task_ids)} - {task_key(task.task_id) for task in bench.tasks("val")}
    if strange:
        raise InputError(
            f"{len(strange)} tasks of these pairs are no val tasks of this run: {', '.join(sorted(strange)[:10])}",
            where=str(path),
            allowed="the pairs that 03_gate_a wrote here",
            todo="run 03_gate_a here again",
        )
    return pairs


def _floor(
    bench: Bench, split: Side, sets: Mapping[str, RolloutSet], pairs: Observations | None, draws: tuple[int, int]
) -> Floor:
    task_ids = [task.task_id for task in bench.tasks(split)]
    runs = {name: _runs(sets, task_ids, name) for name in pairing.SCORES}
    outcomes = {name: noise.scatter(values, *draws) for name, values in runs.items()}
    lost = [f"{task}/{sample}" for arm in ("bare", ARM) for task, sample in _lost(sets[arm])]
    _refuse_unknown(outcomes[PRIMARY], lost, bench, split)
    scored = [*sets["bare"].scored, *sets[ARM].scored]
    coefficients, notes = (None, ["Gate A has not been run here, so nothing is said of its coefficients"])
    if pairs is not None:
        coefficients, notes = _coefficients(pairs, runs[PRIMARY], task_ids, *draws)
    alike = replicates.compare(scored).note
    return Floor(
        split=split,
        simulated=bench.agent.model.identity.simulated,
        checkpoint=bench.agent.model.identity.checkpoint,
        tasks=len(task_ids),
        tasks_sha256=floors.tasks_hash(task_ids),
        repeats=runs[PRIMARY].shape[1] - 1,
        rollout_seed=bench.settings.rollout_seed,
        analysis_seed=draws[1],
        resamples=draws[0],
        episodes=len(scored),
        missing=tuple(lost),
        identical=alike,
        outcomes={name: found for name, found in outcomes.items() if found is not None},
        coefficients=coefficients,
        notes=(
            *([f"{alike}: this floor is no floor"] if alike else []),
            *([f"{len(lost)} of {runs[PRIMARY].size} episodes are missing and left out"] if lost else []),
            *(notes if split == "val" else []),
        ),
    )


def _lost(arm: RolloutSet) -> list[tuple[str, int]]:
    """Return the keys of an arm without a reward."""
    scored = {episode.key for episode in arm.scored}
    return [key for key in arm.planned if key not in scored]


def _runs(sets: Mapping[str, RolloutSet], task_ids: Sequence[str], name: str) -> FloatArray:
    """Return (T, R) values of an outcome, run 0 the gate's own; NaN where an episode has none."""
    row = {task_id: number for number, task_id in enumerate(task_ids)}
    samples = 1 + max(sample for _, sample in sets[ARM].planned)
    values = np.full((len(task_ids), samples), np.nan)
    for episode in (*sets["bare"].scored, *sets[ARM].scored):
        values[row[episode.task_id], episode.sample] = _score(episode, name)
    return values


def _score(episode: Episode, name: str) -> float:
    """Return an outcome of a scored episode; NaN where it has none."""
    value = episode.reward if name == PRIMARY else getattr(episode.reward_detail, name, None)
    return float("nan") if value is None else float(value)


def _refuse_unknown(found: noise.Scatter | None, lost: Sequence[str], bench: Bench, split: Side) -> None:
    """Refuse to speak of noise without two tasks of two runs each."""
    if found is None:
        raise MissingError(
            f"{len(lost)} episodes of the {split} tasks are missing, and fewer than two tasks have two bare runs",
            where=str(bench.folder),
            allowed="at least two tasks with two scored bare runs each",
            todo="repeat more tasks, or see shopskill status why episodes fail",
        )


def _coefficients(
    pairs: Observations, runs: FloatArray, task_ids: Sequence[str], draws: int, seed: int
) -> tuple[Coefficients | None, list[str]]:
    """Return what the gate's coefficients show on bare runs alone, and notes on what was left out."""
    number = {task_key(task_id): row for row, task_id in enumerate(task_ids)}
    tasks = np.array([number[task_key(task_id)] for task_id in pairs.task_ids])
    rows, known = Counter(tasks.tolist()), (~np.isnan(runs)).sum(axis=1)
    most = max(rows.values())
    if runs.shape[1] <= most:
        return None, [f"a task has {most} masked rollouts: its coefficients need --repeats {most} at least"]
    keep = np.array([known[task] > rows[task] for task in tasks])
    shown = pairs.masks.sum(axis=0) > 0
    drawn = noise.idle_coefficients(runs, pairs.masks[keep][:, shown], tasks[keep], draws, seed)
    if drawn is None:
        return None, ["too few tasks have the runs that their rows need, so nothing is said of coefficients"]
    sizes = np.abs(drawn)
    names = [factor for factor, flag in zip(pairs.factors, shown, strict=True) if flag]
    halves = np.quantile(sizes, 1 - noise.LEVEL, axis=0)
    found = Coefficients(
        pairs_sha256=pairs.sha256,
        tasks=len(set(tasks[keep].tolist())),
        rows=int(keep.sum()),
        half_widths=dict(zip(names, map(float, halves), strict=True)),
        single=float(np.quantile(sizes, 1 - noise.LEVEL)),
        largest=float(np.quantile(sizes.max(axis=1), 1 - noise.LEVEL)),
    )
    left = int((~keep).sum())
    return found, [
        f"{left} of {len(keep)} rows are left out of the coefficients: their tasks lack runs"
    ] if left else []
