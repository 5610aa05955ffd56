"""Groups of an online round, and which of their failures are worth an analysis (METHOD M26, M27, I1-I3).

A group is G rollouts of one training task under one treatment. Only where all of them fail is the whole skill tried
once more, and only where that fails too is there something to analyse.
"""

import hashlib
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

from shopskill_lib import curriculum
from shopskill_lib.curriculum import Curriculum, Mode
from shopskill_lib.errors import DesignError, ParameterError
from shopskill_lib.protocol import treatment
from shopskill_lib.records import Episode, Record, Task
from shopskill_lib.rollouts import Planned
from shopskill_lib.rolloutset import RolloutSet
from shopskill_lib.skills import Skill

LOW_MEAN = 0.3
LOW_SPREAD = 0.1
"""Mean and standard deviation of the rewards up to which a group is reported as a low frontier; never used (M27)."""

Classification = Literal["scored_success", "all_wrong", "technical_error", "incomplete"]
"""At least one rollout succeeded · all were scored and none did · one failed for good · one is still owed."""

Verdict = Literal["model_internalization_deficit", "pending_analysis", "retry_owed"]
"""The whole skill solves the task · it does not either · it has not been scored."""


class Group(Record):
    """One GRPO group: a task and what all its rollouts are shown."""

    arm: str
    """`group:<round>:<number>`; the curriculum's draw rests on it."""
    task_id: str
    mode: Mode
    chunk_ids: tuple[str, ...]
    """Chunks shown, in the skill's order."""
    treatment_sha256: str

    @property
    def retry_arm(self) -> str:
        """Arm of the full-skill retry: no rollout of the group (I3)."""
        return self.arm.replace("group:", "retry:", 1)


class Retry(Record):
    """The one full-skill retry of an all-wrong group (M27)."""

    arm: str
    identity: str | None
    """Of its episode; None where there is none."""
    treatment_sha256: str
    reward: float | None
    """None while it is owed, or where it failed for good."""
    success: bool | None


class Triage(Record):
    """What became of a group."""

    group: Group
    rewards: tuple[float | None, ...]
    """Of its rollouts by sample; None where one is not scored: an error is never a reward (I20)."""
    successes: int
    classification: Classification
    low_frontier: bool
    """Whether mean and spread of the rewards are low; reported, never used."""
    retry: Retry | None = None
    """None unless all were wrong."""
    verdict: Verdict | None = None


def choose_tasks(tasks: Iterable[Task], number: int, n_groups: int, seed: int) -> list[Task]:
    """Return the tasks of a round, by hash of seed, round and task: none twice, others than in earlier rounds.

    When fewer fresh tasks are left than a round takes, the round takes them all and a new pass over the tasks begins.

    Raises:
        ParameterError: more groups than tasks.
    """
    every = {task.task_id: task for task in tasks}
    if n_groups > len(every):
        raise ParameterError(
            f"{n_groups} groups are asked for, there are {len(every)} training tasks",
            where="n_groups",
            allowed=f"1 to {len(every)}: a task is in one group a round",
            todo="ask for fewer groups or more training tasks (n_train)",
        )
    used: set[str] = set()
    for past in range(number + 1):
        order = sorted(every, key=lambda task_id: _draw(seed, past, task_id))
        fresh = [task_id for task_id in order if task_id not in used]
        chosen = [*fresh, *(task_id for task_id in order if task_id in used)][:n_groups]
        used = used | set(chosen) if len(fresh) >= n_groups else set(chosen)
    return [every[task_id] for task_id in chosen]


def _draw(seed: int, number: int, task_id: str) -> str:
    return hashlib.sha256(f"{seed}:{number}:{task_id}".encode()).hexdigest()


def draw_groups(tasks: Sequence[Task], skill: Skill, state: Curriculum) -> tuple[Group, ...]:
    """Draw what each task's group is shown (M26).

    Raises:
        DesignError: the curriculum is of another skill.
    """
    texts = {shown.chunk_id: shown.text_sha256 for shown in state.chunks}
    if texts != {chunk.chunk_id: chunk.text_sha256 for chunk in skill.chunks}:
        raise DesignError(
            f"the curriculum has chunks {sorted(texts)}, the skill {sorted(skill.ids)}, or their texts differ",
            where=f"curriculum of round {state.round}",
            allowed="the chunks and texts of the skill in force",
            todo="begin the rounds anew in a new run folder",
        )
    groups = []
    for place, task in enumerate(tasks):
        arm = f"group:{state.round}:{place}"
        drawn = curriculum.draw(state, arm)
        shown = skill.subset(drawn.chunk_ids)
        groups.append(
            Group(
                arm=arm,
                task_id=task.task_id,
                mode=drawn.mode,
                chunk_ids=shown.ids,
                treatment_sha256=treatment(arm, shown).sha256,
            )
        )
    return tuple(groups)


def plan_groups(groups: Sequence[Group], tasks: Mapping[str, Task], skill: Skill, size: int) -> list[Planned]:
    """List the rollouts of the groups, `size` each, all of a group under its one treatment."""
    return [
        Planned(group.arm, tasks[group.task_id], sample, treatment(group.mode, skill.subset(group.chunk_ids)))
        for group in groups
        for sample in range(size)
    ]


def plan_retries(triages: Sequence[Triage], tasks: Mapping[str, Task], skill: Skill) -> list[Planned]:
    """List one retry with the whole skill for each all-wrong group; bare where the skill is empty (M27)."""
    whole = treatment("full_skill", skill)
    return [
        Planned(triage.group.retry_arm, tasks[triage.group.task_id], 0, whole, keep_pages=True)
        for triage in triages
        if triage.classification == "all_wrong"
    ]


def classify(group: Group, arm: RolloutSet, size: int) -> Triage:
    """Classify a group by its rollouts.

    Raises:
        DesignError: its rollouts are of another task, treatment or of several checkpoints (M26).
    """
    _refuse_mixed(group, arm)
    scored = {episode.sample: episode for episode in arm.scored}
    rewards = tuple(scored[sample].reward if sample in scored else None for sample in range(size))
    known = [reward for reward in rewards if reward is not None]
    successes = sum(map(succeeded, scored.values()))
    return Triage(
        group=group,
        rewards=rewards,
        successes=successes,
        classification=_classification(arm, complete=len(known) == size, successes=successes),
        low_frontier=len(known) == size
        and statistics.fmean(known) <= LOW_MEAN
        and statistics.pstdev(known) <= LOW_SPREAD,
    )


def _classification(arm: RolloutSet, *, complete: bool, successes: int) -> Classification:
    if arm.missing:
        return "technical_error"
    if not complete:
        return "incomplete"
    return "scored_success" if successes else "all_wrong"


def _refuse_mixed(group: Group, arm: RolloutSet) -> None:
    """Refuse rollouts that are not of one task under one treatment at one checkpoint."""
    episodes = list(arm.episodes.values())
    problems = (
        ("task", {episode.task_id for episode in episodes} | {group.task_id}),
        ("treatment", {episode.treatment_sha256 for episode in episodes} | {group.treatment_sha256}),
        ("checkpoint", {episode.model.checkpoint for episode in episodes}),
    )
    for name, found in problems:
        if len(found) > 1:
            raise DesignError(
                f"the rollouts have more than one {name}: {', '.join(sorted(found))}",
                where=f"group {group.arm}",
                allowed="rollouts of one task under one treatment at one checkpoint (M26)",
                todo="roll the group out again in a new run folder",
            )


def succeeded(episode: Episode) -> bool:
    """Tell whether a scored episode met everything."""
    return episode.reward_detail is not None and episode.reward_detail.r_success == 1


def settle(triage: Triage, retry: RolloutSet | None, skill: Skill) -> Triage:
    """Return an all-wrong group with its retry and the verdict; any other group as it is (M27, I1).

    Raises:
        DesignError: the retry was not shown the whole skill.
    """
    if triage.classification != "all_wrong":
        return triage
    whole = treatment("full_skill", skill)
    episode = None if retry is None else next(iter(retry.episodes.values()), None)
    if episode is not None and (episode.treatment_sha256, episode.task_id) != (whole.sha256, triage.group.task_id):
        raise DesignError(
            f"the retry was shown chunks {list(episode.hint_ids)}",
            where=f"{triage.group.retry_arm}, task {episode.task_id}",
            allowed=f"the whole skill, {list(skill.ids)}, on task {triage.group.task_id} (M27)",
            todo="roll the retry out again in a new run folder",
        )
    scored = episode is not None and episode.status == "scored"
    success = succeeded(episode) if episode is not None and scored else None
    verdict: dict[bool | None, Verdict] = {
        True: "model_internalization_deficit",
        False: "pending_analysis",
        None: "retry_owed",
    }
    record = Retry(
        arm=triage.group.retry_arm,
        identity=None if episode is None else episode.identity,
        treatment_sha256=whole.sha256,
        reward=None if episode is None else episode.reward,
        success=success,
    )
    return triage.model_copy(update={"retry": record, "verdict": verdict[success]})
