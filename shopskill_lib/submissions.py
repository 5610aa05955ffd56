"""What analysts hand in: records whose schemas are the tools' parameters, and what a schema cannot say of them."""

import json
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Self

from pydantic import ConfigDict, Field, model_validator

from shopskill_lib.cards import FailureLesson, Reason, Status, SuccessLesson, Surface, Text
from shopskill_lib.dialogue import Tool, record_tool
from shopskill_lib.firewall import Finding
from shopskill_lib.records import Language, Privileged, Record
from shopskill_lib.skills import Skill
from shopskill_lib.text import normalise
from shopskill_lib.trajectories import Trajectory, Turn


class Evidence(Record):
    """Where a claim can be seen."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    step: int = Field(ge=1)
    """Number of the turn."""
    quote: str = Text
    """Words of that turn's page or action, exactly as they stand there."""


class SuccessDraft(SuccessLesson):
    """One success card as the analyst writes it."""

    evidence: tuple[Evidence, ...] = Field(min_length=1)
    """Turns that show it."""
    confidence: float = Field(ge=0, le=1)
    """How sure you are that this made the difference."""

    @property
    def lesson(self) -> SuccessLesson:
        """The part that travels."""
        return SuccessLesson.model_validate(self.model_dump(exclude={"evidence", "confidence"}))


class SuccessSubmission(Record):
    """Everything that a success taught; may be nothing."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    cards: tuple[SuccessDraft, ...]
    """One card a decisive behaviour; an empty list when nothing is worth telling."""


class Divergence(Record):
    """Where it went wrong."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    step: int = Field(ge=1)
    """Number of the first turn that should have been different."""
    why: str = Text
    """Why this turn, and not an earlier or later one."""


class Examination(Privileged):
    """What only the audit keeps; here gold may be named."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    failure_surface: Surface
    """Layer at which the failure shows."""
    earliest_divergence: Divergence
    oracle_comparison: str = Text
    """Chosen product against the gold product, requirement by requirement."""
    replay_evidence: str = Text
    """What the replayed trials showed."""
    minimal_repair: str = Text
    """The smallest change of actions that avoids the failure."""
    suspected_harm: str | None = None
    """Chunk of the skill that may have misled the shopper."""


class Diagnosis(Privileged):
    """A failure diagnosis as the analyst hands it in."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    status: Status
    no_proposal_reason: Reason | None = None
    """With NO_PROPOSAL: why; otherwise null."""
    covered_by: str | None = None
    """With the reason covered_by_skill: the chunk that says it already."""
    audit: Examination
    repair_trial: int | None = None
    """Number of the trial that executed the repair and met everything."""
    deployable: FailureLesson | None = None
    """What others may know; null with NO_PROPOSAL."""

    @model_validator(mode="after")
    def _complete(self) -> Self:
        """Refuse a proposal without a lesson, and a refusal without a reason."""
        if self.status == "NO_PROPOSAL":
            if self.no_proposal_reason is None:
                raise ValueError("NO_PROPOSAL needs no_proposal_reason")
            if self.no_proposal_reason == "covered_by_skill" and self.covered_by is None:
                raise ValueError("the reason covered_by_skill needs covered_by, the id of the chunk")
        elif self.deployable is None:
            raise ValueError(f"{self.status} needs deployable")
        elif self.status == "PROPOSE_ADD" and (self.deployable.target_chunk_id or self.deployable.proposed_content):
            raise ValueError(
                "PROPOSE_ADD has neither deployable.target_chunk_id nor deployable.proposed_content; a new text for a "
                "chunk is PROPOSE_REWRITE"
            )
        return self


@cache
def success_tool(max_cards: int) -> Tool[SuccessSubmission]:
    """Return the tool of the success analyst, its bound told in the schema."""
    tool = record_tool("submit_success_cards", SuccessSubmission, "Hand in what this success teaches; ends the task.")
    properties = tool.parameters["properties"]
    bounded = properties | {"cards": properties["cards"] | {"maxItems": max_cards}}
    return replace(tool, parameters={**tool.parameters, "properties": bounded})


@cache
def failure_tool() -> Tool[Diagnosis]:
    """Return the tool that ends a failure audit."""
    return record_tool("submit_diagnosis", Diagnosis, "Hand in the diagnosis; ends the audit.")


def faults_of_cards(drafts: Sequence[SuccessDraft], trajectory: Trajectory, skill: Skill, max_cards: int) -> str:
    """Return what is wrong with success cards as the analyst is told; "" when nothing is (M5)."""
    turns = {turn.step: turn for turn in trajectory.turns}
    faults = [f"cards: {len(drafts)} cards, at most {max_cards} are wanted"] if len(drafts) > max_cards else []
    for place, draft in enumerate(drafts):
        if draft.lesson in [other.lesson for other in drafts[:place]]:
            faults.append(f"cards.{place}: it repeats an earlier card")
        for number, evidence in enumerate(draft.evidence):
            where = f"cards.{place}.evidence.{number}"
            if evidence.step not in turns:
                faults.append(f"{where}.step: there is no turn {evidence.step}, the turns are 1 to {len(turns)}")
            elif not _stands_in(evidence.quote, turns[evidence.step]):
                faults.append(f"{where}.quote: it stands neither in the page nor in the action of turn {evidence.step}")
        for chunk_id in draft.related_chunk_ids:
            if chunk_id not in skill.ids:
                faults.append(f"cards.{place}.related_chunk_ids: the skill has no chunk {chunk_id!r}")
    return "; ".join(faults)


def firewall_answer(findings: Sequence[Finding], language: Language) -> str:
    """Return what an author is told of findings, without a word of them; it may hand in once more."""
    complaints = list(dict.fromkeys(finding.complaint(language) for finding in findings))
    return json.dumps({"type": "firewall", "complaints": complaints}, ensure_ascii=False)


def _stands_in(quote: str, turn: Turn) -> bool:
    """Tell whether a quote can be read in a turn; letter case, width and white space do not count."""
    wanted = normalise(quote)
    return wanted != "" and any(wanted in normalise(text) for text in (turn.page, turn.action or ""))


def faults_of_diagnosis(diagnosis: Diagnosis, trajectory: Trajectory, skill: Skill) -> str:
    """Return what is wrong with a diagnosis as the analyst is told; "" when nothing is."""
    step, faults = diagnosis.audit.earliest_divergence.step, []
    if step > len(trajectory.turns):
        faults.append(
            f"audit.earliest_divergence.step: there is no turn {step}, the turns are 1 to {len(trajectory.turns)}"
        )
    for name, chunk_id in (("covered_by", diagnosis.covered_by), ("suspected_harm", diagnosis.audit.suspected_harm)):
        if chunk_id is not None and chunk_id not in skill.ids:
            faults.append(f"{name}: the skill has no chunk {chunk_id!r}")
    return "; ".join(faults)
