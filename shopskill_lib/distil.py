"""Trajectories -> cards in a folder: what is owed is analysed on threads, kept as it finishes, resumed by identity.

`audit.jsonl` (privileged) is written before `cards.jsonl`, `calls.jsonl` before both. `analyses.json` says which
analyses belong to the latest call, so that cards of other prompts or of trajectories that are gone are not read.
"""

import threading
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, NamedTuple, get_args

import pandas as pd

from shopskill_lib import analysts, probes, protocol, rollouts
from shopskill_lib.analysts import Analyst
from shopskill_lib.cards import Analysis, Audit, Card, Channel, FailedAnalysis, FailureLesson
from shopskill_lib.errors import InputError, ParameterError, ShopskillError
from shopskill_lib.files import parse_json, read_text, write_json
from shopskill_lib.firewall import Instance, Screen, instance_of
from shopskill_lib.jsonl import append_lines, read_lines
from shopskill_lib.models import CallCost
from shopskill_lib.records import Ending, Failure, ModelCall, Product, Task
from shopskill_lib.rollouts import Planned
from shopskill_lib.rolloutset import RolloutSet
from shopskill_lib.settings import Settings
from shopskill_lib.shops.embedded import parse_action
from shopskill_lib.shops.protocol import Shop
from shopskill_lib.skills import Skill, read_skill
from shopskill_lib.spending import CALLS, Purse
from shopskill_lib.store import locked
from shopskill_lib.trajectories import LEAVE, Trajectory, instance_of_recording, of_episode
from shopskill_lib.workbench import Bench, model_of
from shopskill_lib.workers import MAX_ATTEMPTS, Trade, guarded, work

Stage = Literal["cold_start", "online", "recorded"]

CARDS, AUDIT, ERRORS, PLAN = "cards.jsonl", "audit.jsonl", "analysis_errors.jsonl", "analyses.json"
"""Files of a folder; without the third, what was given up is tried again."""

UNRECORDED = "outcome not recorded; taken as successful demonstrations"

RECORDED = (
    *("language", "seed_skill", "max_cards", "context_tokens", "rollout_seed", "prompts_dir"),
    *(name for name in Settings.model_fields if name.startswith("author_")),
)
"""Settings that recordings are analysed by."""


class Analyses(tuple[Analysis, ...]):
    """Analyses by trajectory id, and what could not be analysed."""

    missing: tuple[str, ...]
    """Trajectories whose attempts are used up, and tasks without a trajectory."""
    simulated: bool
    """Whether policy or analyst is a program that stands in for a model."""
    note = ""
    """What must be said of the outcomes beside any count."""

    def __new__(cls, analyses: Iterable[Analysis], missing: Iterable[str], simulated: bool) -> "Analyses":
        """Sort the analyses by trajectory id."""
        made = super().__new__(cls, sorted(analyses, key=lambda analysis: analysis.trajectory_id))
        made.missing, made.simulated = tuple(sorted(missing)), simulated
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
        lines = [f"{label}{len(self)} trajectories analysed, {sum(card.eligible for card in cards)} cards"]
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
            f"{label}{len(self)} trajectories gave {len(proposing)} cards of {tasks} tasks, "
            f"{sum(card.facts.repair_verified for card in proposing)} of them with a verified repair; "
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


def seed_skill(bench: Bench) -> Skill:
    """Return the skill that the cold start begins with; without chunks when none is given."""
    given = bench.settings.seed_skill
    return read_skill(Path(given)) if given else Skill(title="", chunks=())


def train_pairs(bench: Bench, skill: Skill) -> tuple[list[tuple[Trajectory, Task]], RolloutSet]:
    """Roll the training tasks out, bare or with the seed skill in the prompt; return what was scored, with its tasks.

    Raises:
        Interrupted, SetupError, OutputError: see `rollouts.run`.
    """
    plan = plan_train(bench, skill)
    protocol.refuse_leaks(bench, {chunk.chunk_id: chunk for chunk in skill.chunks}, "train")
    rolled = protocol.roll_out(bench, plan, "cards")["train"]
    return _paired(plan, rolled), rolled


def load_train_pairs(bench: Bench, skill: Skill) -> list[tuple[Trajectory, Task]]:
    """Return what `train_pairs` found when the folder's cards were made; nothing is run.

    Raises:
        InputError: training episodes are owed, or other trajectories were analysed than these.
    """
    plan = plan_train(bench, skill)
    rolled = rollouts.load(plan, bench.agent, bench.folder, rollout_seed=bench.settings.rollout_seed)["train"]
    pairs = _paired(plan, rolled)
    analysed = set(parse_json(read_text(bench.folder / PLAN), str(bench.folder / PLAN))["identities"])
    strange = analysed ^ {trajectory.trajectory_id for trajectory, _ in pairs}
    if rolled.owed or strange:
        raise InputError(
            f"the cards are not those of these {len(plan)} training tasks: {len(rolled.owed)} episodes are owed, "
            f"{len(strange)} trajectories are only here or only among the cards",
            where=str(bench.folder / CARDS),
            allowed="the parameters that 01_cards had (n_train, seed_skill, policy, shop)",
            todo="run 01_cards again with these parameters",
        )
    return pairs


def _paired(plan: Sequence[Planned], rolled: RolloutSet) -> list[tuple[Trajectory, Task]]:
    """Return the scored episodes as trajectories, each with its task; of unscored ones the purchases."""
    planned = {one.task.task_id: one for one in plan}
    ended = [episode for episode in rolled.finished if episode.status == "scored" or episode.ending == "purchase"]
    chosen = [(episode, planned[episode.task_id]) for episode in ended]
    return [(of_episode(episode, one.task, one.treatment.hints), one.task) for episode, one in chosen]


def plan_train(bench: Bench, skill: Skill) -> list[Planned]:
    """List the training episodes, whose pages are kept for the analysts."""
    shown = protocol.treatment("seed_skill", skill) if skill.chunks else protocol.BARE
    return [Planned("train", task, 0, shown, keep_pages=True) for task in bench.tasks("train")]


def collect(bench: Bench, skill: Skill) -> Analyses:
    """Roll the training tasks out and analyse every trajectory.

    Args:
        bench: the workbench.
        skill: the seed skill; without chunks for a cold start from nothing.

    Raises:
        Interrupted, SetupError, OutputError: see `rollouts.run` and `analyse`.
    """
    pairs, rolled = train_pairs(bench, skill)
    found = analyse(bench, pairs, skill, folder=bench.folder, stage="cold_start", arm="train")
    missing = [*found.missing, *(f"task {task_id} (no episode)" for task_id, _ in rolled.unscored)]
    return Analyses(found, missing, found.simulated)


def analyse(
    bench: Bench,
    pairs: Sequence[tuple[Trajectory, Task]],
    skill: Skill,
    *,
    folder: Path,
    stage: Literal["cold_start", "online"],
    arm: str,
) -> Analyses:
    """Analyse what the folder still owes of these trajectories, each by itself and in any order (M9).

    Args:
        bench: shop, catalogue and settings; the author model is connected here.
        pairs: trajectories with a reward, each with its task.
        skill: the current skill.
        folder: where cards, audits and calls are kept.
        stage: online knows failures only.
        arm: of the trajectories, for `calls.jsonl`.

    Raises:
        InputError: a trajectory without a reward, or with an ending that no shop of ours has.
        ParameterError: a trajectory occurs twice, or a success online.
        Interrupted: SIGTERM or Ctrl-C; the analyses in flight were finished and kept.
        SetupError: the author model does not work as it is set up; nothing more is run.
        OutputError: the folder is in use or the disk is full.
    """
    for trajectory, _ in pairs:
        _check(trajectory, stage, demonstrations=bool(bench.agent.shop.unscored))
    products = bench.catalogue.products
    cases = [(trajectory, task, _instance(trajectory, task, products)) for trajectory, task in pairs]
    return _Desk(bench.settings, skill, folder, stage, arm, bench.agent.shop, bench.purse).analyse(cases)


def analyse_recordings(trajectories: Sequence[Trajectory], settings: Settings, skill: Skill, folder: Path) -> Analyses:
    """Return success cards of trajectories recorded elsewhere: no shop is asked, and gold is not known.

    Raises:
        Interrupted, SetupError, OutputError: see `analyse`.
    """
    cases = [(trajectory, None, instance_of_recording(trajectory)) for trajectory in trajectories]
    return _Desk(settings, skill, folder, "recorded", "recorded", None, None).analyse(cases)


def report_recordings(trajectories: Sequence[Trajectory], settings: Settings, folder: Path) -> str:
    """Make success cards of recordings, and return them as a table that says what they rest on.

    Args:
        trajectories: all with a reward, or all without; failures and those without a purchase are left out.
        settings: those of `RECORDED` are read.
        folder: where cards, audits and calls are kept.

    Raises:
        InputError: there is no success among them.
    """
    chosen = [item for item in trajectories if item.success is not False and item.ending != LEAVE]
    if not chosen:
        raise InputError(
            f"none of {len(trajectories)} trajectories is a success",
            where="recordings",
            allowed="a reward of 1, or a purchase where no reward is recorded",
            todo="failures are analysed in a shop only: see 01_cards",
        )
    skill = read_skill(Path(settings.seed_skill)) if settings.seed_skill else Skill(title="", chunks=())
    found = analyse_recordings(chosen, settings, skill, folder)
    table = found.to_frame()[["trajectory", "card", "stage", "mechanism", "reason", "simulated"]]
    lines = [table.astype(object).fillna("-").to_string(index=False), found.summary()]
    if chosen[0].reward is None:
        lines.append(UNRECORDED)
    left_out = len(trajectories) - len(chosen)
    if left_out:
        lines.append(f"{left_out} trajectories left out: no success, and failures need a shop")
    return "\n".join([*lines, f"cards: {folder / CARDS}; audit (privileged): {folder / AUDIT}"])


def read_cards(folder: Path) -> list[Card]:
    """Return the cards of the folder's latest analyses, by id.

    Raises:
        InputError: a file is damaged.
    """
    wanted = None
    if (folder / PLAN).exists():
        wanted = set(parse_json(read_text(folder / PLAN), str(folder / PLAN))["identities"].values())
    known = _analyses(folder)
    cards = [card for name, analysis in known.items() if wanted is None or name in wanted for card in analysis.cards]
    return sorted(cards, key=lambda card: card.card_id)


def _analyses(folder: Path) -> dict[str, Analysis]:
    """Identity -> analysis."""
    return {line.identity: line for line in read_lines(folder / CARDS, Analysis.model_validate_json)}


def screen_of(pairs: Sequence[tuple[Trajectory, Task]], products: Mapping[str, Product]) -> Screen:
    """Return the firewall of what is made of these trajectories: the facts of each one's task by trajectory id."""
    return Screen({trajectory.trajectory_id: _instance(trajectory, task, products) for trajectory, task in pairs})


def _check(trajectory: Trajectory, stage: Stage, *, demonstrations: bool) -> None:
    """Refuse what cannot be analysed; `demonstrations` need no reward."""
    where = f"trajectory {trajectory.trajectory_id}"
    if (trajectory.success is None and not demonstrations) or trajectory.ending not in get_args(Ending):
        raise InputError(
            "it has no reward" if trajectory.success is None else f"its ending is {trajectory.ending!r}",
            where=where,
            allowed=f"a reward and one of the endings {', '.join(get_args(Ending))}",
            todo="roll the task out again, or use `shopskill cards` for recordings",
        )
    if stage == "online" and trajectory.success:
        raise ParameterError(
            "it succeeded",
            where=where,
            allowed="failures: there is no success analyst online (M27)",
            todo="hand over failed retries only",
        )


def _instance(trajectory: Trajectory, task: Task, products: Mapping[str, Product]) -> Instance:
    """Return the facts of a trajectory's task: gold, bought and opened products."""
    opened = [parse_action(turn.action)[1].strip() for turn in trajectory.turns if turn.action is not None]
    bought = [] if trajectory.purchase is None else [trajectory.purchase.asin]
    ids = dict.fromkeys([task.gold_asin, *bought, *opened])
    return instance_of(task, [products[name] for name in ids if name in products], [trajectory.trajectory_id])


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
class _Desk:
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
                done, failed = set(_analyses(self.folder)), self._failed()
                owed = [(job, failed.get(job.identity, 0)) for job in jobs if job.identity not in done]
                owed = [(job, attempts) for job, attempts in owed if attempts < MAX_ATTEMPTS]
                kept = sum(job.identity in done for job in jobs)
                if owed:
                    probes.record(analyst.model, self.folder)
                work(self._trade(analyst), owed, self.settings.author_concurrency, MAX_ATTEMPTS, kept)
        finally:
            analyst.model.close()
        known = _analyses(self.folder)
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
