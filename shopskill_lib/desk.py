"""The desk of the analysts: what is owed is analysed on threads, kept as it finishes, resumed by identity.

`audit.jsonl` (privileged) is written before `cards.jsonl`, `calls.jsonl` before both. `analyses.json` says which
analyses belong to the latest call, so that cards of other prompts or of trajectories that are gone are not read.
"""

import threading
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, NamedTuple, get_args

import pandas as pd

from shopskill_lib import analysts, probes
from shopskill_lib.analysts import Analyst
from shopskill_lib.cards import Analysis, Audit, Card, Channel, FailedAnalysis, FailureLesson
from shopskill_lib.errors import ParameterError, ShopskillError
from shopskill_lib.files import write_json
from shopskill_lib.firewall import Instance
from shopskill_lib.jsonl import append_lines, read_lines
from shopskill_lib.models import CallCost
from shopskill_lib.records import Failure, ModelCall, Task
from shopskill_lib.settings import Settings
from shopskill_lib.shops.protocol import Shop
from shopskill_lib.skills import Skill
from shopskill_lib.spending import CALLS, Purse
from shopskill_lib.store import locked
from shopskill_lib.trajectories import Trajectory
from shopskill_lib.workbench import model_of
from shopskill_lib.workers import MAX_ATTEMPTS, Trade, guarded, work

Stage = Literal["cold_start", "online", "recorded"]

CARDS, AUDIT, ERRORS, PLAN = "cards.jsonl", "audit.jsonl", "analysis_errors.jsonl", "analyses.json"
"""Files of a folder; without the third, what was given up is tried again."""


class Analyses(tuple[Analysis, ...]):
    """Analyses by trajectory id, and what could not be analysed."""

    missing: tuple[str, ...]
    """Trajectories whose attempts are used up, and tasks without a trajectory."""
    simulated: bool
    """Whether policy or analyst is a program that stands in for a model."""
    note: str
    """What must be said of the outcomes beside any count; "" for nothing."""

    def __new__(
        cls, analyses: Iterable[Analysis], missing: Iterable[str], simulated: bool, note: str = ""
    ) -> "Analyses":
        """Sort the analyses by trajectory id."""
        made = super().__new__(cls, sorted(analyses, key=lambda analysis: analysis.trajectory_id))
        made.missing, made.simulated, made.note = tuple(sorted(missing)), simulated, note
        return made

    def to_frame(self) -> pd.DataFrame:
        """Return one row a card, and one for a success without any."""
        columns = ["trajectory", "channel", "card", "status", "reason", "stage", "mechanism", "simulated"]
        rows = [[*_row(analysis, card), self.simulated] for analysis in self for card in analysis.cards or (None,)]
        return pd.DataFrame(rows, columns=columns)

    def summary(self) -> str:
        """Return how many trajectories gave how many cards, why failures proposed nothing, and what is missing."""
        cards = [card for analysis in self for card in analysis.cards]
        label = "simulated: " if self.simulated else ""
        proposing = sum(card.eligible for card in cards)
        lines = [f"{label}{len(self)} trajectories analysed, {proposing} cards that propose a text"]
        for channel in get_args(Channel):
            own = [analysis for analysis in self if analysis.channel == channel]
            eligible = sum(card.eligible for analysis in own for card in analysis.cards)
            lines += [f"  {channel}: {len(own)} trajectories, {eligible} cards"] if own else []
        reasons = pd.Series([card.facts.reason for card in cards if card.facts.reason], dtype=str).value_counts()
        lines += [f"  nothing proposed, {reason}: {count}" for reason, count in reasons.items()]
        if self.missing:
            lines.append(f"Analyses missing: {', '.join(self.missing)}")
        lines += [self.note] if self.note else []
        return "\n".join(lines)

    def example(self) -> Card | None:
        """Return a card to look at: the verified repair of the fewest actions, else the first that proposes."""
        cards = [card for analysis in self for card in analysis.cards if card.eligible]
        repaired = [(card.facts.repair_actions, card.card_id, card) for card in cards if card.facts.repair_verified]
        return min(repaired)[2] if repaired else next(iter(cards), None)

    def verdict(self) -> str:
        """Return one sentence: what was made of what, and what is missing."""
        cards = [card for analysis in self for card in analysis.cards]
        proposing = [card for card in cards if card.eligible]
        label = "simulated: " if self.simulated else ""
        tasks = len({card.facts.task_group_key for card in proposing})
        return (
            f"{label}{len(self)} trajectories gave {len(cards)} cards; {len(proposing)} of them, from {tasks} tasks, "
            f"propose a text, {sum(card.facts.repair_verified for card in proposing)} with a verified repair; "
            f"{len(self.missing)} analyses are missing. No card is a claim yet: "
            f"02_compile merges them, 03_gate_a measures.{f' Note: {self.note}.' if self.note else ''}"
        )

    def __str__(self) -> str:
        return self.summary()


def _row(analysis: Analysis, card: Card | None) -> list[object]:
    """Return one line of the table."""
    if card is None:
        return [analysis.trajectory_id, analysis.channel, None, None, None, None, None]
    lesson, facts = card.deployable, card.facts
    mechanism = lesson.failure_mechanism if isinstance(lesson, FailureLesson) else lesson and lesson.mechanism
    stage = None if lesson is None else lesson.workflow_stage
    who = [analysis.trajectory_id, analysis.channel, card.card_id]
    return [*who, facts.status, facts.reason, stage, mechanism]


def read_analyses(folder: Path) -> dict[str, Analysis]:
    """Identity -> analysis."""
    return {line.identity: line for line in read_lines(folder / CARDS, Analysis.model_validate_json)}


class _Job(NamedTuple):
    """One analysis that is asked for."""

    identity: str
    trajectory: Trajectory
    channel: Channel
    task: Task | None
    """None for a recording."""
    instance: Instance


class _Attempt(NamedTuple):
    """An attempt as it is kept."""

    job: _Job
    number: int
    result: tuple[Analysis, Audit] | Failure
    calls: list[ModelCall]


@dataclass(frozen=True, slots=True)
class Desk:
    """Where analyses are made and kept."""

    settings: Settings
    skill: Skill
    folder: Path
    stage: Stage
    arm: str
    shop: Shop | None
    purse: Purse | None
    writing: threading.Lock = field(default_factory=threading.Lock)

    def analyse(self, cases: Sequence[tuple[Trajectory, Task | None, Instance]]) -> Analyses:
        """Work through what is owed, and return all analyses."""
        analyst = self._analyst()
        try:
            with locked(self.folder):
                jobs = self._jobs(analyst, cases)
                identities = {job.trajectory.trajectory_id: job.identity for job in jobs}
                write_json(self.folder / PLAN, {"stage": self.stage, "arm": self.arm, "identities": identities})
                done, failed = set(read_analyses(self.folder)), self._failed()
                owed = [(job, failed.get(job.identity, 0)) for job in jobs if job.identity not in done]
                owed = [(job, attempts) for job, attempts in owed if attempts < MAX_ATTEMPTS]
                kept = sum(job.identity in done for job in jobs)
                if owed:
                    probes.record(analyst.model, self.folder)
                work(self._trade(analyst), owed, self.settings.author_concurrency, MAX_ATTEMPTS, kept)
        finally:
            analyst.model.close()
        known = read_analyses(self.folder)
        missing = [job.trajectory.trajectory_id for job in jobs if job.identity not in known]
        simulated = analyst.model.identity.simulated or any(job.trajectory.simulated for job in jobs)
        return Analyses((known[job.identity] for job in jobs if job.identity in known), missing, simulated)

    def _analyst(self) -> Analyst:
        given = self.settings
        return Analyst(
            model=model_of(given, "author", self.purse),
            language=given.language,
            texts=analysts.load_texts(given.language, given.max_cards, given.prompts_dir),
            skill=self.skill,
            max_cards=given.max_cards,
            rounds=given.audit_rounds,
            tokens=given.audit_tokens,
            context_tokens=given.context_tokens,
            seed=given.rollout_seed,
        )

    def _jobs(self, analyst: Analyst, cases: Sequence[tuple[Trajectory, Task | None, Instance]]) -> list[_Job]:
        """Name every analysis by what it depends on."""
        jobs = []
        for trajectory, task, instance in cases:
            channel: Channel = "failure" if trajectory.success is False else "success"
            more = {
                "task": None if task is None else task.model_dump(mode="json"),
                "shop": None if self.shop is None else dict(self.shop.fingerprint),
            }
            jobs.append(_Job(analyst.identity(trajectory, channel, more), trajectory, channel, task, instance))
        names = Counter(job.trajectory.trajectory_id for job in jobs)
        repeated = next((name for name, count in names.items() if count > 1), None)
        if repeated is not None:
            raise ParameterError(
                f"trajectory {repeated} occurs twice",
                where="trajectories",
                allowed="each trajectory once",
                todo="remove one of the two",
            )
        return jobs

    def _failed(self) -> dict[str, int]:
        """Identity -> attempts that brought nothing."""
        lines = read_lines(self.folder / ERRORS, FailedAnalysis.model_validate_json)
        return {line.identity: line.attempt for line in lines}

    def _trade(self, analyst: Analyst) -> Trade[_Job, _Attempt]:
        """What workers do with an analysis."""
        named = analyst.model.endpoint
        return Trade(
            unit=("analysis", "analyses"),
            place=str(self.folder),
            model=f"model {named.model!r} at {named.url}",
            attempt=lambda job, number: self._attempt(analyst, job, number),
            failure=lambda attempt: attempt.result if isinstance(attempt.result, Failure) else None,
            keep=lambda attempt: self._keep(attempt, analyst),
            counts=_counts,
        )

    def _attempt(self, analyst: Analyst, job: _Job, number: int) -> _Attempt:
        """Make one attempt; whatever goes wrong in it is recorded, unless it is the set-up, which stops all.

        Then the calls that were made are kept all the same: they have been paid for.
        """
        calls = list[ModelCall]()
        model = analyst.model.metered(lambda cost: calls.append(self._call(job, number, cost)))
        try:
            result = guarded(lambda: self._analysed(replace(analyst, model=model), job))
        except ShopskillError:
            with self.writing:
                append_lines(self.folder / CALLS, calls)
            raise
        return _Attempt(job, number, result, calls)

    def _analysed(self, analyst: Analyst, job: _Job) -> tuple[Analysis, Audit]:
        """Let the right analyst work."""
        if job.channel == "success" or job.task is None or self.shop is None:
            category = None if job.task is None else job.task.category
            return analysts.success(analyst, job.trajectory, job.instance, identity=job.identity, category=category)
        return analysts.failure(analyst, job.trajectory, job.task, self.shop, job.instance, identity=job.identity)

    def _keep(self, attempt: _Attempt, analyst: Analyst) -> None:
        """Put an attempt on disk."""
        with self.writing:
            self._write(attempt, analyst)

    def _write(self, attempt: _Attempt, analyst: Analyst) -> None:
        append_lines(self.folder / CALLS, attempt.calls)
        if isinstance(attempt.result, Failure):
            failed = FailedAnalysis(
                identity=attempt.job.identity,
                trajectory_id=attempt.job.trajectory.trajectory_id,
                attempt=attempt.number,
                error=attempt.result,
                ended_at=analyst.model.clock.now(),
            )
            append_lines(self.folder / ERRORS, [failed])
            return
        analysis, audit = attempt.result
        append_lines(self.folder / AUDIT, [audit])
        append_lines(self.folder / CARDS, [analysis])

    def _call(self, job: _Job, attempt: int, cost: CallCost) -> ModelCall:
        """Return the line of one model call."""
        role = f"{job.channel}_analyst"
        return cost.line(self.arm, self.stage, role, task_id=job.trajectory.task_id, attempt=attempt)


def _counts(attempt: _Attempt) -> dict[str, int]:
    """Return what the progress bar adds up."""
    known = [call.usage for call in attempt.calls if call.usage is not None]
    cards = () if isinstance(attempt.result, Failure) else attempt.result[0].cards
    return {
        "tokens": sum(usage.prompt_tokens + usage.completion_tokens for usage in known),
        "cards": sum(card.eligible for card in cards),
        "errors": int(isinstance(attempt.result, Failure)),
    }
