"""Cards: what one trajectory taught, in three parts that never mix (M5, M8, M9).

The audit holds what was learnt from gold and verbatim quotes, and stays in `audit.jsonl`. The facts are written by the
program. The deployable texts are what an analyst wants others to know. Only facts and deployable texts travel.
"""

from typing import Any, Literal, Self

from pydantic import AwareDatetime, ConfigDict, Field, model_validator

from shopskill_lib.records import Failure, Privileged, Record

Stage = Literal["query", "constraints", "persona", "comparison", "variant", "termination"]
"""Modules of the shopping workflow (M15), in order: query formulation, explicit constraints, persona-grounded
preference reasoning, candidate inspection and comparison, variant and price verification, backtracking and
purchase termination."""

STAGES: tuple[Stage, ...] = ("query", "constraints", "persona", "comparison", "variant", "termination")

Surface = Literal[
    "search_recall",
    "hard_constraint",
    "persona_preference",
    "product_detail",
    "variant_option",
    "price_budget",
    "termination",
    "environment",
]
"""Layer at which a failure shows (M6)."""

Status = Literal["PROPOSE_ADD", "PROPOSE_REWRITE", "NO_PROPOSAL"]

Reason = Literal[
    "no_verified_repair",
    "covered_by_skill",
    "execution_slip",
    "environment_fault",
    "invalid_rewrite_target",
    "firewall",
    "budget_spent",
]
"""Why a failure proposes nothing (M7)."""

Channel = Literal["success", "failure"]

Text = Field(min_length=1, pattern=r"\S")


class SuccessLesson(Record):
    """Deployable part of a Success Pattern Card (M5)."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    workflow_stage: Stage
    mechanism: str = Text
    """What made the difference, as a short noun phrase."""
    applicable_when: str = Text
    """What must be seen in task, persona or page for it to apply."""
    decisive_behavior: str = Text
    generalizable_lesson: str = Text
    """What to do on any task of that kind."""
    related_chunk_ids: tuple[str, ...] = ()
    """Chunks of the current skill that say something of it."""


class FailureLesson(Record):
    """Deployable abstraction of a Failure Diagnosis Card (M8)."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    workflow_stage: Stage
    failure_mechanism: str = Text
    applicable_when: str = Text
    observable_trigger: str = Text
    """Where in task, persona or page the policy can see that it applies."""
    corrective_procedure: str = Text
    verification_step: str = Text
    target_chunk_id: str | None = None
    """Chunk to rewrite; None for an ADD."""
    proposed_content: str | None = None
    """Whole new text of that chunk; None for an ADD."""


Lesson = SuccessLesson | FailureLesson


def lesson_texts(lesson: Lesson) -> dict[str, str]:
    """Return what a lesson says, by field: neither its stage nor the chunks that it names."""
    return lesson.model_dump(exclude={"workflow_stage", "related_chunk_ids", "target_chunk_id"}, exclude_none=True)


class Facts(Record):
    """What the program knows of a card without gold: enums, numbers, salted keys."""

    status: Status | None
    """None on a success card, unless the firewall took its texts."""
    reason: Reason | None
    """Why nothing is proposed; None otherwise."""
    covered_by: str | None
    """Chunk that says it already, with the reason `covered_by_skill`."""
    surface: Surface | None
    repair_verified: bool
    """Whether a counterfactual was executed that avoids the failure (M7)."""
    repair_actions: int | None
    """Actions of the verified repair after the divergence."""
    steps: tuple[int, ...]
    """Steps of the trajectory that the card rests on, from 1."""
    reward: float | None
    """Of the trajectory; None where the recording has none."""
    reward_lost: float | None
    """Best reward less this one; None without a reward."""
    confidence: float | None = Field(ge=0, le=1)
    """What the analyst says of a success card; orders, never claims."""
    task_group_key: str
    """Salted hash of the task: cards of one task are one support."""
    category_key: str | None
    """Salted hash of the category; None where it is not known."""
    reasked: bool
    """Whether the firewall sent it back once."""
    simulated: bool
    """Whether policy or analyst is a program that stands in for a model."""


class Card(Record):
    """What one trajectory taught, as it travels."""

    card_id: str
    """`card-` and 12 hex digits of its content."""
    source_trajectory_id: str
    channel: Channel
    facts: Facts
    deployable: Lesson | None
    """None for NO_PROPOSAL."""

    @model_validator(mode="after")
    def _one_channel(self) -> Self:
        """Refuse texts of the other channel, and a proposal without text."""
        wanted = SuccessLesson if self.channel == "success" else FailureLesson
        if self.deployable is not None and not isinstance(self.deployable, wanted):
            raise ValueError(f"a card of channel {self.channel} carries a {type(self.deployable).__name__}")
        if (self.deployable is None) != (self.facts.status == "NO_PROPOSAL"):
            raise ValueError("a card has deployable texts unless it is NO_PROPOSAL")
        return self

    @property
    def eligible(self) -> bool:
        """Whether it may be consolidated."""
        return self.deployable is not None


class Analysis(Record):
    """One trajectory analysed: a line of `cards.jsonl`."""

    identity: str
    """Hash of everything the analysis depends on."""
    trajectory_id: str
    channel: Channel
    cards: tuple[Card, ...]
    """May be empty for a success (M5); exactly one for a failure."""


class Audit(Privileged):
    """What an analysis saw and did, gold included: a line of `audit.jsonl`, read by people only."""

    identity: str
    """Of the analysis."""
    trajectory_id: str
    task_id: str
    channel: Channel
    card_ids: tuple[str, ...]
    diagnosis: dict[str, Any]
    """Privileged part of the submission: quotes, gold, chosen product, oracle comparison, repair (M8)."""
    findings: tuple[Any, ...]
    """What the firewall found, in each draft."""
    trials: tuple[dict[str, Any], ...]
    """Every trial of a failure audit: prefix, actions, reward."""
    transcript: tuple[dict[str, Any], ...]
    """Tool calls and what they answered."""
    compacted: bool
    """Whether pages were shortened to fit the analyst's context (M5)."""
    started_at: AwareDatetime
    ended_at: AwareDatetime


class FailedAnalysis(Record):
    """An attempt that brought no analysis: a line of `analysis_errors.jsonl`, never a card."""

    identity: str
    trajectory_id: str
    attempt: int
    """From 1."""
    error: Failure
    ended_at: AwareDatetime
