"""A plan of episodes, run on threads, kept as they finish, resumed and reused by identity.

A bad rollout is data: it is recorded as an error, tried again a bounded number of times and never scored (I20).
A bad set-up is an exception and stops everything.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from shopskill_lib.agent import Agent, constant, episode_seed, run_episode
from shopskill_lib.errors import ParameterError, ShopskillError
from shopskill_lib.models import CallCost
from shopskill_lib.records import (
    Episode,
    Failure,
    ModelCall,
    Seeds,
    Step,
    Task,
    Treatment,
    Usage,
    fingerprint,
    total_usage,
)
from shopskill_lib.rolloutset import Forecast, Key, RolloutSet
from shopskill_lib.shops.protocol import StepResult
from shopskill_lib.store import Store, best, locked
from shopskill_lib.text import task_key
from shopskill_lib.workers import MAX_ATTEMPTS, Trade, guarded, work


@dataclass(frozen=True, slots=True)
class Planned:
    """One episode that a plan asks for."""

    arm: str
    task: Task
    sample: int
    treatment: Treatment
    keep_pages: bool = False
    """Whether its steps keep the text of the pages, for an analyst to read; no part of its identity."""

    @property
    def key(self) -> Key:
        """Task and sample."""
        return self.task.task_id, self.sample


@dataclass(frozen=True, slots=True)
class _Job:
    """A planned episode with its identity and the attempts there are."""

    planned: Planned
    identity: str
    attempts: int
    episode: Episode | None
    """The latest attempt that came to its end, else the latest; None without any."""

    @property
    def finished(self) -> bool:
        return self.episode is not None and self.episode.finished


_Attempt = tuple[Episode, list[ModelCall]]
"""An attempt as it is kept, and its calls."""


def identity(planned: Planned, agent_identity: Mapping[str, Any], rollout_seed: int) -> str:
    """Return the hash of everything an episode's result depends on, and of nothing else."""
    task = planned.task
    return fingerprint(
        {
            "arm": planned.arm,
            "task": [task.task_id, task.visible_instruction, task.persona],
            "sample": planned.sample,
            "treatment": planned.treatment.sha256,
            "rollout_seed": rollout_seed,
            **agent_identity,
        }
    )


def run(
    plan: Sequence[Planned],
    agent: Agent,
    run_dir: Path,
    *,
    rollout_seed: int,
    stage: str,
    threads: int = 8,
    max_attempts: int = MAX_ATTEMPTS,
    reuse_from: Path | None = None,
) -> dict[str, RolloutSet]:
    """Run what the plan still owes, and return all its episodes by arm.

    Args:
        plan: the episodes wanted; what is in the run folder already is not run again.
        agent: model, shop and prompts.
        run_dir: the run folder.
        rollout_seed: seed of all episodes.
        stage: step of the workbench, for `calls.jsonl`.
        threads: episodes at a time.
        max_attempts: attempts at an episode that fails, those of earlier calls included.
        reuse_from: another run folder; its scored episodes of the same identity are pointed to, not run.

    Raises:
        Interrupted: SIGTERM or Ctrl-C; the episodes in flight were finished and kept.
        SetupError: the model does not work as it is set up; nothing more was run.
        OutputError: the folder is in use or the disk is full.
    """
    _check(plan, threads, max_attempts)
    with locked(run_dir):
        store = Store(run_dir)
        jobs = _jobs(plan, agent, rollout_seed, store)
        if reuse_from is not None:
            _reuse([job for job in jobs if not job.finished], store, Store(reuse_from))
            jobs = _jobs(plan, agent, rollout_seed, store)
        owed = [job for job in jobs if not job.finished and job.attempts < max_attempts]
        trade = _Runner(agent, store, rollout_seed, stage).trade
        work(trade, [(job, job.attempts) for job in owed], threads, max_attempts, sum(job.finished for job in jobs))
    return load(plan, agent, run_dir, rollout_seed=rollout_seed, max_attempts=max_attempts)


def load(
    plan: Sequence[Planned], agent: Agent, run_dir: Path, *, rollout_seed: int, max_attempts: int = MAX_ATTEMPTS
) -> dict[str, RolloutSet]:
    """Return the plan's episodes by arm as far as they are in the run folder; nothing is run."""
    _check(plan, 1, max_attempts)
    jobs = _jobs(plan, agent, rollout_seed, Store(run_dir))
    jobs.sort(key=lambda job: _order(job.planned.key))
    sets = {}
    for arm in dict.fromkeys(planned.arm for planned in plan):
        own = [job for job in jobs if job.planned.arm == arm]
        open_ = [job for job in own if not job.finished]
        sets[arm] = RolloutSet(
            arm=arm,
            planned=tuple(job.planned.key for job in own),
            episodes={job.planned.key: job.episode for job in own if job.episode is not None},
            owed=tuple(job.planned.key for job in open_ if job.attempts < max_attempts),
            missing=tuple(job.planned.key for job in open_ if job.attempts >= max_attempts),
        )
    return sets


def forecast(
    plan: Sequence[Planned], agent: Agent, run_dir: Path, *, rollout_seed: int, reuse_from: Path | None = None
) -> Forecast:
    """Return what the plan will ask of the model, from the mean of the episodes that are there."""
    _check(plan, 1, 1)
    stores = [Store(run_dir)] + ([] if reuse_from is None else [Store(reuse_from)])
    kept = {job.identity for store in stores for job in _jobs(plan, agent, rollout_seed, store) if job.finished}
    return _scaled(len(plan) - len(kept), len(kept), _known(stores, agent), agent)


def extrapolate(episodes: int, agent: Agent, run_dir: Path) -> Forecast:
    """Return what that many further episodes will ask of the model, from the mean of the episodes that are there."""
    return _scaled(episodes, 0, _known([Store(run_dir)], agent), agent)


def _known(stores: Sequence[Store], agent: Agent) -> list[Episode]:
    """Return the finished episodes of the same model."""
    found = {
        stored.episode.identity: stored.episode
        for store in stores
        for arm in store.arms
        for stored in map(best, store.attempts(arm).values())
        if stored.episode.finished and stored.episode.model == agent.model.identity
    }
    return list(found.values())


def _scaled(owed: int, kept: int, known: Sequence[Episode], agent: Agent) -> Forecast:
    """Return what the owed episodes will ask, if they are like the known ones."""
    if not known:
        return Forecast(owed, kept, 0, None, None, None)
    scale = owed / len(known)
    usage = total_usage(episode.usage for episode in known)
    if usage is not None:
        usage = Usage(
            prompt_tokens=round(usage.prompt_tokens * scale), completion_tokens=round(usage.completion_tokens * scale)
        )
    calls = round(sum(len(episode.steps) for episode in known) * scale)
    return Forecast(owed, kept, len(known), calls, usage, agent.model.endpoint.price(usage))


def _check(plan: Sequence[Planned], threads: int, max_attempts: int) -> None:
    """Refuse a plan that asks twice for an episode, names no file, or cannot run."""
    keys = [(planned.arm, *planned.key) for planned in plan]
    repeated = next((key for key in keys if keys.count(key) > 1), None) if len(set(keys)) < len(keys) else None
    unusable = next((planned.arm for planned in plan if not re.fullmatch(r"[\w:.-]+", planned.arm)), None)
    problems = (
        (repeated is not None, f"the plan has {repeated} twice", "plan"),
        (unusable is not None, f"an arm is called {unusable!r}", "plan"),
        (threads < 1, f"threads is {threads}", "threads"),
        (max_attempts < 1, f"max_attempts is {max_attempts}", "max_attempts"),
    )
    for wrong, found, where in problems:
        if wrong:
            raise ParameterError(
                found,
                where=where,
                allowed="each arm, task and sample once, arms of letters, digits and `:.-_`, numbers of at least 1",
                todo="correct the plan or the number",
            )


def _order(key: Key) -> tuple[bool, int, str, int]:
    """Sort numbered tasks by number and others by text."""
    text = task_key(key[0])
    number = int(text) if text.isdecimal() else 0
    return not text.isdecimal(), number, text, key[1]


def _jobs(plan: Sequence[Planned], agent: Agent, rollout_seed: int, store: Store) -> list[_Job]:
    """Return the plan with identities and the attempts that the store has."""
    base = agent.identity
    attempts = {arm: store.attempts(arm) for arm in {planned.arm for planned in plan}}
    jobs = []
    for planned in plan:
        name = identity(planned, base, rollout_seed)
        found = attempts[planned.arm].get(name, [])
        jobs.append(_Job(planned, name, len(found), best(found).episode if found else None))
    return jobs


def _reuse(jobs: Sequence[_Job], store: Store, other: Store) -> None:
    """Point to what another run has finished of these jobs."""
    for arm in dict.fromkeys(job.planned.arm for job in jobs):
        there = other.attempts(arm)
        found = [best(there[job.identity]) for job in jobs if job.planned.arm == arm and job.identity in there]
        store.point(arm, [stored for stored in found if stored.episode.finished])


def _without_page(step: Step) -> Step:
    """Return a step as it is kept where nobody reads its page: thousands of pages are many."""
    return step.model_copy(update={"observation": None, "reasoning": None})


class _Runner:
    """Makes attempts at jobs and keeps them."""

    def __init__(self, agent: Agent, store: Store, rollout_seed: int, stage: str) -> None:
        self._agent, self._store, self._seed, self._stage = agent, store, rollout_seed, stage

    @property
    def trade(self) -> Trade[_Job, _Attempt]:
        """What workers do with a job."""
        endpoint = self._agent.model.endpoint
        return Trade(
            unit=("episode", "episodes"),
            place=str(self._store.run_dir),
            model=f"model {endpoint.model!r} at {endpoint.url}",
            attempt=self._attempt,
            failure=lambda attempt: attempt[0].error,
            keep=lambda attempt: self._store.append(*attempt),
            counts=_counts,
        )

    def _attempt(self, job: _Job, number: int) -> _Attempt:
        """Run one attempt; whatever goes wrong in it is recorded, unless it is the set-up, which stops all.

        Then the calls that were made are kept all the same: they have been paid for.
        """
        planned, calls, steps = job.planned, list[ModelCall](), list[Step]()
        model = self._agent.model.metered(lambda cost: calls.append(self._call(planned, number, cost)))
        agent = replace(self._agent, model=model.until(model.clock.seconds() + self._agent.timeout))
        seed = episode_seed(self._seed, planned.arm, *planned.key)
        started = model.clock.now()
        keep = steps.append if planned.keep_pages else lambda step: steps.append(_without_page(step))
        try:
            end = guarded(lambda: run_episode(agent, planned.task, constant(planned.treatment), seed, keep))
        except ShopskillError:
            self._store.charge(calls)
            raise
        return self._record(job, number, started, steps, end), calls

    def _record(
        self, job: _Job, attempt: int, started: datetime, steps: Sequence[Step], result: StepResult | Failure
    ) -> Episode:
        """Return the attempt as it is kept."""
        planned, agent = job.planned, self._agent
        end = result if isinstance(result, StepResult) else None
        detail = None if end is None else end.reward_detail
        return Episode(
            identity=job.identity,
            arm=planned.arm,
            task_id=planned.task.task_id,
            sample=planned.sample,
            split=planned.task.split,
            treatment_id=planned.treatment.treatment_id,
            treatment_sha256=planned.treatment.sha256,
            hint_ids=tuple(hint.id for hint in planned.treatment.hints),
            model=agent.model.identity,
            prompts_sha256=agent.prompts.sha256,
            shop=dict(agent.shop.fingerprint),
            seeds=Seeds(rollout_seed=self._seed, episode_seed=episode_seed(self._seed, planned.arm, *planned.key)),
            attempt=attempt,
            status="error" if end is None else "unscored" if detail is None else "scored",
            ending=None if end is None else end.ending,
            reward=None if end is None else end.reward,
            reward_detail=detail,
            purchase=None if end is None else end.purchase,
            steps=tuple(steps),
            error=result if isinstance(result, Failure) else None,
            started_at=started,
            ended_at=agent.model.clock.now(),
        )

    def _call(self, planned: Planned, attempt: int, cost: CallCost) -> ModelCall:
        """Return the line of one model call."""
        task_id, sample = planned.key
        return cost.line(planned.arm, self._stage, "policy", task_id=task_id, sample=sample, attempt=attempt)


def _counts(attempt: _Attempt) -> dict[str, int]:
    """Return what the progress bar adds up."""
    episode, calls = attempt
    known = [call.usage for call in calls if call.usage is not None]
    return {
        "tokens": sum(usage.prompt_tokens + usage.completion_tokens for usage in known),
        "faults": episode.protocol_faults,
        "errors": int(episode.status == "error"),
    }
