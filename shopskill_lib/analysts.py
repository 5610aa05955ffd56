"""The two analysts: one trajectory -> what it taught, in facts and deployable texts, and the audit beside it.

The success analyst answers one structured call (M5). The failure analyst is an agent with a shop and gold (M6); what
it proposes is believed only as far as the program can verify it (M7). Neither knows of any other trajectory (M9).
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from shopskill_lib import templates
from shopskill_lib.audits import Trials, Verdict, judge
from shopskill_lib.briefs import Brief, brief
from shopskill_lib.cards import Analysis, Audit, Card, Channel, Facts, FailureLesson, Lesson, Reason, lesson_texts
from shopskill_lib.dialogue import REPAIRS, Conversation, obtain
from shopskill_lib.errors import AuthorError
from shopskill_lib.firewall import Finding, Instance, Screen, public
from shopskill_lib.inquiry import Inquiry, Spent
from shopskill_lib.ledger import SYNONYM
from shopskill_lib.models import Model
from shopskill_lib.records import Language, Task, fingerprint
from shopskill_lib.shops.protocol import Shop
from shopskill_lib.skills import Skill
from shopskill_lib.submissions import (
    Diagnosis,
    SuccessDraft,
    SuccessSubmission,
    faults_of_cards,
    firewall_answer,
    success_tool,
)
from shopskill_lib.text import estimated_tokens, ngram_similarity, normalise, task_key
from shopskill_lib.trajectories import Trajectory

ANALYSTS_VERSION = "shopskill-analysts-v2"
"""Version of messages, tools, checks and verdicts."""

_PLACEHOLDERS: dict[str, set[str]] = {"success": {"max_cards"}, "failure": set()}


@dataclass(frozen=True, slots=True)
class Analyst:
    """An author model as an analyst: its texts, its bounds, the skill it judges by.

    Attributes:
        model: who is asked.
        language: of prompts and explanations.
        texts: role -> system message.
        skill: the current skill; without chunks where there is none.
        max_cards: most success cards of one trajectory.
        rounds: most model calls of a failure audit.
        tokens: most tokens of a failure audit.
        context_tokens: tokens that a prompt may have; beyond, pages are shortened.
        seed: the run's; seeds of calls and salted keys derive from it.
    """

    model: Model
    language: Language
    texts: Mapping[str, str]
    skill: Skill
    max_cards: int
    rounds: int
    tokens: int
    context_tokens: int
    seed: int

    def identity(self, trajectory: Trajectory, channel: Channel, more: Mapping[str, Any]) -> str:
        """Return the hash of everything an analysis depends on; `more` is what the channel adds, JSON values."""
        bounds = [self.max_cards] if channel == "success" else [self.rounds, self.tokens]
        return fingerprint(
            {
                "version": ANALYSTS_VERSION,
                "trajectory": trajectory.model_dump(mode="json"),
                "skill": self.skill.model_dump(),
                "author": self.model.identity.decisive,
                "language": self.language,
                "text": self.texts[channel],
                "bounds": [*bounds, self.context_tokens],
                "seed": self.seed,
                **more,
            }
        )

    def call_seed(self, trajectory: Trajectory, channel: Channel) -> int:
        """Return the seed of an analysis' first call."""
        text = f"{self.seed}:{channel}_analyst:{trajectory.trajectory_id}"
        return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big") % 2**31

    def key(self, what: str, value: str) -> str:
        """Return a salted key: equal values share it within a run, and nobody reads the value from it."""
        return f"{what}-{hashlib.sha256(f'{self.seed}:{what}:{value}'.encode()).hexdigest()[:12]}"


def load_texts(language: Language, max_cards: int, prompts_dir: str = "") -> dict[str, str]:
    """Read the analysts' system messages (see `templates.load` for what is refused)."""
    texts = templates.load(_PLACEHOLDERS, language, prompts_dir)
    return {role: templates.fill(text.strip(), {"max_cards": str(max_cards)}) for role, text in texts.items()}


@dataclass(frozen=True, slots=True)
class _Case:
    """One trajectory before one analyst."""

    analyst: Analyst
    trajectory: Trajectory
    channel: Channel
    identity: str
    category: str | None
    screen: Screen
    started: datetime

    def scan(self, lesson: Lesson, prefix: str = "") -> tuple[Finding, ...]:
        """Return what the firewall finds in a lesson's texts."""
        texts = {prefix + name: text for name, text in lesson_texts(lesson).items()}
        return self.screen.scan(texts, [self.trajectory.task_id])

    def card(self, facts: dict[str, Any], lesson: Lesson | None) -> Card:
        """Return a card, named by its content."""
        trajectory, analyst = self.trajectory, self.analyst
        common = {
            "reward": trajectory.reward,
            "reward_lost": None if trajectory.reward is None else 1 - trajectory.reward,
            "task_group_key": analyst.key("task", task_key(trajectory.task_id)),
            "category_key": None if self.category is None else analyst.key("category", self.category),
            "simulated": trajectory.simulated or analyst.model.identity.simulated,
        }
        content: dict[str, Any] = {
            "source_trajectory_id": trajectory.trajectory_id,
            "channel": self.channel,
            "facts": Facts.model_validate(facts | common),
            "deployable": lesson,
        }
        public(content, "a card")
        plain = {name: value.model_dump() if hasattr(value, "model_dump") else value for name, value in content.items()}
        return Card(card_id=f"card-{fingerprint(plain)[:12]}", **content)

    def close(
        self, cards: Sequence[Card], about: Brief, findings: Sequence[Finding], more: Mapping[str, Any]
    ) -> tuple[Analysis, Audit]:
        """Return the analysis and its audit."""
        analysis = Analysis(
            identity=self.identity,
            trajectory_id=self.trajectory.trajectory_id,
            channel=self.channel,
            cards=tuple(cards),
        )
        audit = Audit(
            identity=self.identity,
            trajectory_id=self.trajectory.trajectory_id,
            task_id=self.trajectory.task_id,
            channel=self.channel,
            card_ids=tuple(card.card_id for card in cards),
            findings=tuple(finding.model_dump() for finding in findings),
            compacted=about.compacted,
            started_at=self.started,
            ended_at=self.analyst.model.clock.now(),
            **more,
        )
        return analysis, audit


def _open_case(
    analyst: Analyst, trajectory: Trajectory, channel: Channel, identity: str, category: str | None, instance: Instance
) -> _Case:
    screen = Screen({trajectory.task_id: instance})
    return _Case(analyst, trajectory, channel, identity, category, screen, analyst.model.clock.now())


def _open_talk(case: _Case, more: Mapping[str, Any] | None = None) -> tuple[Conversation, Brief]:
    """Return the conversation that an analysis begins with."""
    analyst = case.analyst
    system = analyst.texts[case.channel]
    room = analyst.context_tokens - estimated_tokens(system)
    about = brief(case.trajectory, analyst.skill, language=analyst.language, room=room, more=more)
    return Conversation.of(system, about.text), about


def success(
    analyst: Analyst, trajectory: Trajectory, instance: Instance, *, identity: str, category: str | None
) -> tuple[Analysis, Audit]:
    """Return the cards of a success; there may be none (M5).

    A card in whose texts the firewall finds something after one re-ask keeps no text.

    Args:
        analyst: who is asked.
        trajectory: the trajectory.
        instance: facts of its task that no text may hold.
        identity: of the analysis.
        category: category path of the gold product, for a salted key; None where it is not known.

    Raises:
        AuthorError: no valid answer after all repairs.
        InfrastructureError, SetupError: the model could not be reached, or does not work as it is set up.
    """
    case = _open_case(analyst, trajectory, "success", identity, category, instance)
    talk, about = _open_talk(case)
    seed = analyst.call_seed(trajectory, "success")
    drafts = _submission(case, talk, seed).cards
    findings = _scan_drafts(case, drafts)
    first, reasked = findings, bool(findings)
    if reasked:
        talk.remark(firewall_answer(findings, analyst.language))
        with suppress(AuthorError):  # nothing valid: the first cards stand
            drafts = _submission(case, talk, seed + REPAIRS + 1).cards
        findings = _scan_drafts(case, drafts)
    tainted = {finding.field.split(".")[1] for finding in findings}
    cards = [_success_card(case, draft, reasked, str(place) in tainted) for place, draft in enumerate(drafts)]
    pairs = zip(drafts, cards, strict=True)
    kept = [draft.model_dump(mode="json") | {"card_id": card.card_id} for draft, card in pairs]
    more = {"diagnosis": {"cards": kept}, "trials": (), "transcript": _transcript(talk)}
    return case.close(cards, about, (*first, *(findings if reasked else ())), more)


def _submission(case: _Case, talk: Conversation, seed: int) -> SuccessSubmission:
    """Ask for success cards until they are valid."""
    analyst = case.analyst
    return obtain(
        analyst.model,
        talk,
        success_tool(analyst.max_cards),
        seed,
        language=analyst.language,
        check=lambda given: faults_of_cards(given.cards, case.trajectory, analyst.skill, analyst.max_cards),
    )


def _scan_drafts(case: _Case, drafts: Sequence[SuccessDraft]) -> tuple[Finding, ...]:
    """Return the findings in each card's own texts."""
    return tuple(
        finding for place, draft in enumerate(drafts) for finding in case.scan(draft.lesson, f"cards.{place}.")
    )


def _success_card(case: _Case, draft: SuccessDraft, reasked: bool, tainted: bool) -> Card:
    facts = {
        "status": "NO_PROPOSAL" if tainted else None,
        "reason": "firewall" if tainted else None,
        "covered_by": None,
        "surface": None,
        "repair_verified": False,
        "repair_actions": None,
        "steps": tuple(sorted({evidence.step for evidence in draft.evidence})),
        "confidence": draft.confidence,
        "reasked": reasked,
    }
    return case.card(facts, None if tainted else draft.lesson)


def _transcript(talk: Conversation) -> tuple[dict[str, Any], ...]:
    """Return what was said after the opening."""
    return tuple(map(json.loads, talk.messages[2:]))


def failure(
    analyst: Analyst, trajectory: Trajectory, task: Task, shop: Shop, instance: Instance, *, identity: str
) -> tuple[Analysis, Audit]:
    """Return the one card of a failure: a proposal that the program could verify, or NO_PROPOSAL with its reason (M7).

    Args:
        analyst: who is asked.
        trajectory: the failed trajectory.
        task: its task, gold included.
        shop: where trials are made.
        instance: facts of the task that no text may hold.
        identity: of the analysis.

    Raises:
        InfrastructureError, SetupError: model or shop could not be reached, or do not work as they are set up.
    """
    case = _open_case(analyst, trajectory, "failure", identity, task.category, instance)
    gold = shop.inspect(task.gold_asin)
    limits = {"rounds": analyst.rounds, "tokens": analyst.tokens}
    talk, about = _open_talk(case, {"gold": {"asin": gold.asin}, "limits": limits})
    trials = Trials(shop, task, trajectory)
    inquiry = Inquiry(
        model=analyst.model,
        language=analyst.language,
        talk=talk,
        trials=trials,
        gold=gold,
        trajectory=trajectory,
        skill=analyst.skill,
        rounds=analyst.rounds,
        tokens=analyst.tokens,
        seed=analyst.call_seed(trajectory, "failure"),
        spent=Spent(),
    )
    try:
        outcome = _diagnose(case, inquiry)
    finally:
        trials.close()
    more = {
        "diagnosis": _privileged(outcome, inquiry),
        "trials": tuple(trial.record for trial in trials.all),
        "transcript": _transcript(talk),
    }
    return case.close([_failure_card(case, outcome)], about, outcome.findings, more)


@dataclass(frozen=True, slots=True)
class _Outcome:
    """What became of a diagnosis.

    Attributes:
        diagnosis: as it was handed in last; None when none was.
        verdict: on its repair.
        reason: why nothing is proposed; None for a proposal.
        covered_by: chunk that says it already.
        findings: of the firewall, in each draft.
        reasked: whether the firewall sent it back.
    """

    diagnosis: Diagnosis | None
    verdict: Verdict
    reason: Reason | None
    covered_by: str | None = None
    findings: tuple[Finding, ...] = ()
    reasked: bool = False


def _diagnose(case: _Case, inquiry: Inquiry) -> _Outcome:
    """Let the analyst work, judge what it hands in, and send it back once if the firewall finds something."""
    outcome = _judged(inquiry, inquiry.run())
    lesson = _lesson(outcome)
    first = () if lesson is None else case.scan(lesson, "deployable.")
    if not first:
        return outcome
    diagnosis = inquiry.again(first)
    if diagnosis is None:
        return replace(outcome, reason="firewall", findings=first, reasked=True)
    outcome = _judged(inquiry, diagnosis)
    lesson = _lesson(outcome)
    second = () if lesson is None else case.scan(lesson, "deployable.")
    reason: Reason | None = "firewall" if second else outcome.reason
    return replace(outcome, reason=reason, findings=(*first, *second), reasked=True)


def _lesson(outcome: _Outcome) -> FailureLesson | None:
    """Return what is proposed; None for NO_PROPOSAL."""
    return outcome.diagnosis.deployable if outcome.diagnosis is not None and outcome.reason is None else None


def _judged(inquiry: Inquiry, diagnosis: Diagnosis | None) -> _Outcome:
    """Return the program's reason against a diagnosis, the first of M7 that holds."""
    if diagnosis is None:
        return _Outcome(None, Verdict(False, "no diagnosis was handed in"), "budget_spent")
    step = diagnosis.audit.earliest_divergence.step
    verdict = judge(inquiry.trials.all, diagnosis.repair_trial, step, inquiry.trajectory, inquiry.gold)
    covered = diagnosis.covered_by or _said_already(diagnosis, inquiry.skill)
    reason: Reason | None = None
    if inquiry.trials.environment_fault or diagnosis.audit.failure_surface == "environment":
        reason = "environment_fault"
    elif diagnosis.status == "NO_PROPOSAL":
        reason = diagnosis.no_proposal_reason
    elif diagnosis.status == "PROPOSE_REWRITE" and not _has_target(diagnosis, inquiry.skill):
        reason = "invalid_rewrite_target"
    elif not verdict.repaired:
        reason = "no_verified_repair"
    elif covered is not None:
        reason = "covered_by_skill"
    return _Outcome(diagnosis, verdict, reason, covered if reason == "covered_by_skill" else None)


def _has_target(diagnosis: Diagnosis, skill: Skill) -> bool:
    """Tell whether a rewrite names a chunk and another text for it."""
    lesson, texts = diagnosis.deployable, {chunk.chunk_id: chunk.text for chunk in skill.chunks}
    if lesson is None or lesson.target_chunk_id not in texts or not (lesson.proposed_content or "").strip():
        return False
    return normalise(lesson.proposed_content or "") != normalise(texts[lesson.target_chunk_id])


def _said_already(diagnosis: Diagnosis, skill: Skill) -> str | None:
    """Return the chunk that an addition nearly repeats."""
    lesson = diagnosis.deployable
    if lesson is None or diagnosis.status != "PROPOSE_ADD":
        return None
    whole = (lesson.applicable_when, lesson.corrective_procedure, lesson.verification_step)
    wordings = (lesson.corrective_procedure, " ".join(whole))
    alike = [(max(ngram_similarity(told, chunk.text) for told in wordings), chunk.chunk_id) for chunk in skill.chunks]
    nearest, name = max(alike, default=(0.0, ""))
    return name if nearest >= SYNONYM else None


def _failure_card(case: _Case, outcome: _Outcome) -> Card:
    examined = None if outcome.diagnosis is None else outcome.diagnosis.audit
    lesson = _lesson(outcome)
    facts = {
        "status": "NO_PROPOSAL" if lesson is None or outcome.diagnosis is None else outcome.diagnosis.status,
        "reason": outcome.reason,
        "covered_by": outcome.covered_by,
        "surface": None if examined is None else examined.failure_surface,
        "repair_verified": outcome.verdict.repaired,
        "repair_actions": outcome.verdict.actions,
        "steps": () if examined is None else (examined.earliest_divergence.step,),
        "confidence": None,
        "reasked": outcome.reasked,
    }
    return case.card(facts, lesson)


def _privileged(outcome: _Outcome, inquiry: Inquiry) -> dict[str, Any]:
    """Return the privileged part of the diagnosis (M8), with what the program fills in."""
    bought, spent = inquiry.trajectory.purchase, inquiry.spent
    handed_in = {} if outcome.diagnosis is None else outcome.diagnosis.model_dump(mode="json")
    return {
        **handed_in.pop("audit", {}),
        "submitted": handed_in or None,
        "gold_asin": inquiry.gold.asin,
        "chosen_asin": None if bought is None else bought.asin,
        "repair_validation_result": outcome.verdict.why,
        "tokens": spent.tokens,
        "tokens_estimated": spent.estimated,
    }
