"""One online round, built in its staging folder (METHOD M26-M30).

Every step takes up what an earlier process left of it: episodes, analyses and answers are kept by identity, masks and
gate are frozen, the rest is computed again.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from shopskill_lib import (
    chronicle,
    claim,
    compiler,
    curriculum,
    distil,
    gates,
    leaks,
    ledger,
    looks,
    protocol,
    replicates,
    rollouts,
    triage,
    workbench,
)
from shopskill_lib.cards import Card
from shopskill_lib.compiler import Draft
from shopskill_lib.curriculum import Curriculum, Shown
from shopskill_lib.errors import ParameterError
from shopskill_lib.files import parse_json, read_text, write_bytes, write_json
from shopskill_lib.gates import Gate
from shopskill_lib.lab import learner
from shopskill_lib.lab.learner import Lesson
from shopskill_lib.models import Endpoint
from shopskill_lib.pools import Candidate, Pool
from shopskill_lib.protocol import ROUNDS
from shopskill_lib.records import Task, canonical
from shopskill_lib.rolloutset import RolloutSet
from shopskill_lib.rounds import (
    Gap,
    Groups,
    Measured,
    Proposed,
    Report,
    in_force,
    measured,
    name,
    proposed,
    write_lineage,
)
from shopskill_lib.settings import Settings
from shopskill_lib.simulated import shopper
from shopskill_lib.skills import Chunk, Skill
from shopskill_lib.trajectories import Trajectory, of_episode
from shopskill_lib.triage import Triage
from shopskill_lib.workbench import Bench

GIVEN = "given.json"
"""What decided a round, in its folder."""

EVENTS = "events.jsonl"
"""A round's events of the ledger, in its folder; the run folder's ledger has those of all finished rounds."""

STAGE = "online"
"""Step of the workbench, in `calls.jsonl`."""

DECIDING = (
    "n_train", "n_val", "persona", "masked_samples", "mask_design", "mask_seed", "rollout_seed", "n_groups",
    "group_size", "rho_min", "rho_max", "max_candidates", "n_gap", "trainer", "audit_rounds", "audit_tokens",
    "context_tokens", "author_model", "author_checkpoint", "author_temperature", "author_max_tokens",
    "author_send_seed",
    "author_protocol", "author_tool_choice", "author_extra_body",
)  # fmt: skip
"""Settings that decide a round beside its agent, its skill and its rule. `q` is not among them: it is the user's
schedule and may change from round to round (M29)."""


@dataclass(frozen=True, slots=True)
class Rule:
    """How the gates of the rounds are fitted.

    Attributes:
        budget: K; None for min(10, slots), and never more than a round has slots.
        resamples: bootstrap resamples.
        analysis_seed: their seed.
        max_missing: share of pairs that may be missing (M20).
    """

    budget: int | None = None
    resamples: int = gates.RESAMPLES
    analysis_seed: int = 0
    max_missing: float = 0.0


RULE = Rule()

Trainer = Callable[[Endpoint, str, Sequence[Lesson]], Endpoint]
"""Weights of the groups, identifier of the next ones, what the groups showed and earned -> weights of the gate."""


def train_simulated(policy: Endpoint, checkpoint: str, lessons: Sequence[Lesson]) -> Endpoint:
    """Return the simulated shopper after a round of simulated training."""
    taught = learner.train(shopper.base_of(policy.model), lessons)
    return replace(policy, model=shopper.model_name(taught), checkpoint=checkpoint)


def train_nobody(policy: Endpoint, checkpoint: str, lessons: Sequence[Lesson]) -> Endpoint:  # noqa: ARG001 - a Trainer
    """Return the weights as they are."""
    return policy


TRAINERS: dict[str, Trainer] = {"simulated": train_simulated, "none": train_nobody}
"""`trainer` of the settings -> who trains."""


@dataclass(frozen=True, slots=True)
class Start:
    """What a round begins with.

    Attributes:
        skill: in force.
        lineage: every text gated so far; the latest gate's selected ones are the skill.
        policy: weights of the groups.
        looks: gates that used these validation tasks so far.
    """

    number: int
    skill: Skill
    lineage: tuple[Measured, ...]
    policy: Endpoint
    looks: int

    def curriculum(self, settings: Settings) -> Curriculum:
        """Return the curriculum of the round's groups (M26, M29)."""
        rows = in_force(self.lineage)
        alphas = {row.chunk_id: row.alpha for row in rows if row.alpha is not None}
        rho = curriculum.rho(alphas, settings.rho_min, settings.rho_max)
        chunks = tuple(Shown(row.chunk_id, row.text_sha256, alphas[row.chunk_id], rho[row.chunk_id]) for row in rows)
        return Curriculum(self.number, self.policy.checkpoint, settings.rollout_seed, settings.q, chunks)


def given_of(bench: Bench, start: Start, rule: Rule) -> dict[str, Any]:
    """Return everything that decides a round, by name."""
    agent = bench.agent.identity | {"model": start.policy.identity.decisive}
    texts = {chunk.chunk_id: chunk.text_sha256 for chunk in start.skill.chunks}
    settings = {key: getattr(bench.settings, key) for key in (*DECIDING, "q")}
    alphas = {row.chunk_id: row.alpha for row in in_force(start.lineage)}
    return {**settings, **asdict(rule), "agent": agent, "skill": texts, "alphas": alphas}


def refuse_other(path: Path, given: dict[str, Any], ignored: Sequence[str] = ()) -> None:
    """Refuse to go on with a round that was decided by something else.

    Raises:
        ParameterError: naming what differs.
    """
    before = Settings.of({}).model_dump() | parse_json(read_text(path), str(path))
    unlike = [key for key in given if key not in ignored and before.get(key) != given[key]]
    if unlike:
        key = unlike[0]
        raise ParameterError(
            f"{key} was {before.get(key)!r}, is {given[key]!r}",
            where=str(path.parent),
            allowed="what this round was begun with; q alone may change, for later rounds (M29)",
            todo=f"give {key} its value again, use a new run folder, or remove this round and all later ones",
        )


_COLUMNS = ["task_id", "reward"]


class Ungated(NamedTuple):
    """A candidate that is not gated."""

    candidate: Candidate
    status: str
    """`rejected_synonym`: it says in other words what a gate has rejected (M30). `firewall`: it holds something of the
    validation tasks (M12)."""
    reason: str


@dataclass(frozen=True, slots=True)
class Found:
    """What a round has found.

    Attributes:
        analysed: retries that were.
        cards: eligible ones.
        note: that the groups' rollouts are not independent; "" where they may be.
        gate: None without anything to gate, as `pool`.
        rows: the gate's, for the lineage.
        skill: that the round ends with; None without a gate: it stays empty.
    """

    groups: tuple[Triage, ...]
    analysed: int
    cards: list[Card]
    draft: Draft | None
    ungated: list[Ungated]
    note: str
    pool: Pool | None = None
    gate: Gate | None = None
    rows: Sequence[Measured] = ()
    skill: Skill | None = None
    gap: Gap | None = None


@dataclass(frozen=True, slots=True)
class Builder:
    """One round in its staging folder.

    Attributes:
        run: bench of the run folder.
    """

    run: Bench
    start: Start
    rule: Rule
    train: Trainer

    def build(self, given: dict[str, Any]) -> Path:
        """Build the round, and return its folder, complete but not yet in its place."""
        at = self._at(self.start.policy)
        if (at.folder / GIVEN).exists():
            refuse_other(at.folder / GIVEN, given)
        write_json(at.folder / GIVEN, given)
        groups, retries, note = self._triage(at)
        pairs = self._pairs(at, groups, retries)
        arm = f"retry:{self.start.number}"
        analyses = distil.analyse(at, pairs, self.start.skill, folder=at.folder, stage="online", arm=arm)
        cards = [card for analysis in analyses for card in analysis.cards if card.eligible]
        draft = self._compile(at, cards, pairs)
        pool, ungated = self._pool(at, draft)
        after = replace(self._at(self._trained(groups)), pool=pool)
        found = Found(groups, len(analyses), cards, draft, ungated, note)
        self._write(after, found if pool is None else self._gated(after, pool, found))
        return at.folder

    def _at(self, policy: Endpoint) -> Bench:
        """Return the bench in the staging folder at these weights.

        The masks have a seed of the round, so that a chunk does not meet the same tasks in every one.
        """
        staging = self.run.folder / ROUNDS / f".{name(self.start.number)}.staging"
        bench = protocol.moved(self.run, staging, policy.model, policy.checkpoint)
        seed = bench.settings.mask_seed + 1 + self.start.number
        names = {"mask_seed": seed, "n_stages": 1, "reuse_from": ""}
        return replace(bench, settings=bench.settings.model_copy(update=names))

    def _triage(self, at: Bench) -> tuple[tuple[Triage, ...], Mapping[str, RolloutSet], str]:
        """Roll out the groups and the retries of those that were all wrong (M26, M27); with a note on their seeds."""
        settings, skill, size = at.settings, self.start.skill, at.settings.group_size
        state, train = self.start.curriculum(settings), at.tasks("train")
        tasks = {task.task_id: task for task in train}
        chosen = triage.choose_tasks(train, self.start.number, settings.n_groups, settings.rollout_seed)
        groups = triage.draw_groups(chosen, skill, state)
        record = Groups(state_id=state.state_id, curriculum=state, groups=groups)
        write_json(at.folder / "groups.json", record.model_dump(mode="json"))
        sets = protocol.roll_out(at, triage.plan_groups(groups, tasks, skill, size), STAGE)
        classified = [triage.classify(group, sets[group.arm], size) for group in groups]
        retries = protocol.roll_out(at, triage.plan_retries(classified, tasks, skill), STAGE)
        settled = tuple(triage.settle(found, retries.get(found.group.retry_arm), skill) for found in classified)
        write_json(at.folder / "triage.json", [found.model_dump(mode="json") for found in settled])
        return settled, retries, replicates.compare(episode for arm in sets.values() for episode in arm.scored).note

    def _pairs(
        self, at: Bench, groups: Sequence[Triage], retries: Mapping[str, RolloutSet]
    ) -> list[tuple[Trajectory, Task]]:
        """Return the failed full-skill retries, which are all that is analysed (I1, I2)."""
        tasks = {task.task_id: task for task in at.tasks("train")}
        hints = protocol.treatment("full_skill", self.start.skill).hints
        pairs = []
        for group in (found.group for found in groups if found.verdict == "pending_analysis"):
            (episode,) = retries[group.retry_arm].scored
            pairs.append((of_episode(episode, tasks[group.task_id], hints), tasks[group.task_id]))
        return pairs

    def _compile(self, at: Bench, cards: Sequence[Card], pairs: Sequence[tuple[Trajectory, Task]]) -> Draft | None:
        """Have the eligible cards compiled into candidates (M28); None when there is nothing to compile."""
        if not cards or not at.settings.max_candidates:
            return None
        with closing(workbench.model_of(at.settings, "author", at.purse)) as author:
            return compiler.build(
                author,
                cards,
                self.start.skill,
                screen=distil.screen_of(pairs, at.catalogue.products),
                settings=at.settings,
                folder=at.folder,
                cap=at.settings.max_candidates,
                stage="online",
            )

    def _pool(self, at: Bench, draft: Draft | None) -> tuple[Pool | None, list[Ungated]]:
        """Return what is to be gated: the skill's chunks, and the candidates that no gate has rejected before."""
        skill = self.start.skill
        events = ledger.read(self.run.folder / ledger.FILE)
        new: list[Candidate] = []
        ungated: list[Ungated] = []
        for candidate in () if draft is None or draft.pool is None else draft.pool.candidates:
            alike = ledger.similar(events, candidate.content, candidate.operation, candidate.target_chunk_id)
            chunk = Chunk(chunk_id=candidate.candidate_id, title=candidate.title, text=candidate.content)
            held = leaks.find(at, {candidate.candidate_id: chunk}, "val")
            if held:
                ungated.append(Ungated(candidate, "firewall", f"firewall: {held[0].kind} of a validation task"))
            elif alike is None:
                new.append(candidate)
            else:
                reason = f"{candidate.candidate_id} repeats {alike.candidate_id}, rejected by a gate"
                ungated.append(Ungated(candidate, "rejected_synonym", reason))
        if not skill.chunks and not new:
            return None, ungated
        return Pool(title=skill.title, kind="current", chunks=skill.chunks, candidates=tuple(new)), ungated

    def _trained(self, groups: Sequence[Triage]) -> Endpoint:
        """Return the weights after training on the groups that are scored; retries are no part of it (I3)."""
        lessons = []
        for found in groups:
            rewards = tuple(reward for reward in found.rewards if reward is not None)
            if len(rewards) == len(found.rewards):
                shown = self.start.skill.subset(found.group.chunk_ids)
                lessons.append(Lesson("\n".join(chunk.shown for chunk in shown.chunks), rewards))
        return self.train(self.start.policy, f"{self.run.settings.policy_checkpoint}+r{self.start.number}", lessons)

    def _bare(self, after: Bench) -> RolloutSet:
        """Return the bare validation runs at the gate's weights; those of the run folder where they are equal (I14)."""
        reusing = after.settings.model_copy(update={"reuse_from": str(self.run.folder)})
        plan = protocol.plan_bare(after, "val")
        return protocol.roll_out(replace(after, settings=reusing), plan, STAGE)["bare"]

    def _gated(self, after: Bench, pool: Pool, found: Found) -> Found:
        """Gate the pool at the weights after training, and measure the gap with the skill that is left (M28, M29)."""
        bare = self._bare(after)
        gate = self._gate(after)
        past = self.start.lineage
        rows = measured(gate.to_json(), pool, self.start.number, after.settings.policy_checkpoint, past)
        skill = pool.skill(gate.selected)
        return replace(found, pool=pool, gate=gate, rows=rows, skill=skill, gap=self._gap(after, skill, bare))

    def _gate(self, after: Bench) -> Gate:
        """Gate the pool at the weights after training (M28)."""
        rule = self.rule
        path = protocol.gate_a(after)
        pairs = gates.read_observations(path, after.folder / protocol.INTERVENTIONS, rule.max_missing)
        budget = None if rule.budget is None else min(rule.budget, len(pairs.slots))
        gate = gates.fit_gate(pairs, budget, resamples=rule.resamples, analysis_seed=rule.analysis_seed)
        gate = replace(gate, notes=(*gate.notes, self._look_note(after)))
        frozen, name = after.folder / protocol.GATE, f"online round {self.start.number}"
        looks.freeze(self.run.folder, frozen, gate.to_json(), gate.key(), name)
        claim.write(claim.of_gate(gate, claim.known(frozen, self.run.folder), name), after.folder)
        return gate

    def _look_note(self, after: Bench) -> str:
        """Say how often these validation tasks have decided (M23)."""
        gates_before = {(row.round, row.checkpoint) for row in self.start.lineage}
        same = sum(checkpoint == after.settings.policy_checkpoint for _, checkpoint in gates_before)
        again = f", {same} of them at this very checkpoint" if same else ""
        return f"look {self.start.looks + 1} at these validation tasks; earlier gates chose on them{again} (M23)"

    def _gap(self, after: Bench, skill: Skill, bare: RolloutSet) -> Gap | None:
        """Measure the internalization gap of the skill that the round ends with (M29); None without skill or tasks."""
        tasks = after.tasks("val")[: after.settings.n_gap]
        if not skill.chunks or not tasks:
            return None
        whole = protocol.treatment("full", skill)
        full = protocol.roll_out(after, [rollouts.Planned("full", task, 0, whole) for task in tasks], STAGE)["full"]
        both = {episode.key for episode in full.scored} & {episode.key for episode in bare.scored}
        if len(both) < 2:
            return None
        arms = [
            pd.DataFrame([(kept.task_id, kept.reward) for kept in arm.scored if kept.key in both], columns=_COLUMNS)
            for arm in (bare, full)
        ]
        drawn = {"resamples": self.rule.resamples, "analysis_seed": self.rule.analysis_seed}
        found = gates.compare_paired(arms[0], arms[1], **drawn).to_json()["metrics"]["reward"]
        figures = {name: found[name] for name in ("bare", "ci_low", "ci_high")}
        return Gap(tasks=len(both), full=found["equipped"], gap=found["delta"], **figures)

    def _write(self, after: Bench, found: Found) -> None:
        """Write what the round leaves: next skill and curriculum, lineage, events, figures."""
        number, folder = self.start.number, after.folder
        skill = found.skill or self.start.skill
        protocol.write_skill(after, skill)
        lineage = (*self.start.lineage, *found.rows)
        write_lineage(lineage, folder / "lineage.json")
        looks_taken = self.start.looks + (found.gate is not None)
        following = Start(number + 1, skill, lineage, after.agent.model.endpoint, looks_taken)
        curriculum.save(following.curriculum(after.settings), folder / "curriculum.json")
        events = self._events(found)
        write_bytes(folder / EVENTS, b"".join(canonical(event.model_dump(mode="json")) + b"\n" for event in events))
        report = self._report(following, found)
        write_json(folder / "round.json", report.model_dump(mode="json"))

    def _events(self, found: Found) -> list[ledger.Event]:
        """Return the round's events of the ledger (M30)."""
        now, number, checkpoint = datetime.now(UTC), self.start.number, self.start.policy.checkpoint
        past = ledger.read(self.run.folder / ledger.FILE)
        new = [] if found.draft is None else chronicle.proposals(found.draft, checkpoint, number, now)
        reasons = [(one.candidate.evidence_card_ids, one.reason) for one in found.ungated]
        if found.draft is None:
            reasons += [((card.card_id,), "max_candidates is 0") for card in found.cards]
        left = [chronicle.left_out(cards, reason, checkpoint, number, now) for cards, reason in reasons]
        known = chronicle.proposed_in((*past, *new))
        return [*new, *left, *chronicle.outcomes(found.rows, known, now)]

    def _report(self, following: Start, found: Found) -> Report:
        """Return the round in figures."""
        before, after = self.start.policy, following.policy
        candidates = [] if found.pool is None else proposed(found.pool, found.rows)
        candidates += [_as_proposed(one) for one in found.ungated]
        return Report(
            round=self.start.number,
            simulated=before.identity.simulated,
            proposal_model=before.model,
            proposal_checkpoint=before.checkpoint,
            evaluation_model=after.model,
            evaluation_checkpoint=after.checkpoint,
            funnel=_funnel(found),
            candidates=tuple(candidates),
            chunks_before=len(self.start.skill.chunks),
            chunks_after=len(following.skill.chunks),
            retired=tuple(row.chunk_id for row in found.rows if row.status == "retired"),
            looks=following.looks,
            gap=found.gap,
            verdict=self._verdict(found),
            notes=(*filter(None, [found.note]), *(() if found.gate is None else found.gate.notes)),
        )

    def _verdict(self, found: Found) -> str:
        """Say in a few sentences what the round did."""
        funnel = _funnel(found)
        label = "simulated: " if self.start.policy.identity.simulated else ""
        counts = (
            f"{label}round {self.start.number}: {funnel['groups']} groups, {funnel['all wrong']} all wrong, of which "
            f"the whole skill solved {funnel['deficits']}; {funnel['analysed']} retries analysed, "
            f"{funnel['candidates']} candidates gated, {funnel['admitted']} admitted."
        )
        if found.gate is None:
            return f"{counts} There is no skill and no candidate, so there was no gate."
        gap = found.gap
        told = (
            "not measured"
            if gap is None
            else (f"{gap.gap:+.4f}, 95 % interval {gap.ci_low:+.4f} to {gap.ci_high:+.4f} over {gap.tasks} tasks")
        )
        return f"{counts} Gate: {found.gate.verdict()} Internalization gap: {told}."


def _as_proposed(ungated: Ungated) -> Proposed:
    """Return a candidate that was not gated, as the round's figures show it."""
    candidate = ungated.candidate
    return Proposed(
        candidate_id=candidate.candidate_id,
        operation=candidate.operation,
        target_chunk_id=candidate.target_chunk_id,
        title=candidate.title,
        alpha=None,
        ci_low=None,
        ci_high=None,
        status=ungated.status,
    )


def _funnel(found: Found) -> dict[str, int]:
    """Count what was left at each step."""
    classes = [group.classification for group in found.groups]
    verdicts = [group.verdict for group in found.groups]
    gated = () if found.pool is None else found.pool.candidates
    admitted = () if found.gate is None else found.gate.selected
    return {
        "groups": len(classes),
        "scored success": classes.count("scored_success"),
        "technical error": classes.count("technical_error"),
        "incomplete": classes.count("incomplete"),
        "low frontier": sum(group.low_frontier for group in found.groups),
        "all wrong": classes.count("all_wrong"),
        "deficits": verdicts.count("model_internalization_deficit"),
        "retries owed": verdicts.count("retry_owed"),
        "analysed": found.analysed,
        "analyses missing": verdicts.count("pending_analysis") - found.analysed,
        "proposals": len(found.cards),
        "rejected synonyms": sum(one.status == "rejected_synonym" for one in found.ungated),
        "firewall": sum(one.status == "firewall" for one in found.ungated),
        "candidates": len(gated),
        "admitted": sum(candidate.candidate_id in admitted for candidate in gated),
    }
