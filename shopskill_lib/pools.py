"""Pools: what a gate measures - current chunks, additions, and rewrites that share a slot with what they replace.

A cold-start draft is a pool as well: its chunks are slots of one version. Ids of versions are columns of the
regression; the prompt shows the id of the slot, so that a rewrite that wins changes nothing but the text.
"""

from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from shopskill_lib.cards import Stage, Text
from shopskill_lib.masks import Slot
from shopskill_lib.records import Language, Record
from shopskill_lib.skills import Chunk, Skill
from shopskill_lib.sources import Intervention
from shopskill_lib.text import tidy

CAP = 16
"""Most factors of an initial draft, versions included (M10, M16)."""


_LABELS: dict[Language, tuple[str, str, str]] = {
    "en": ("When: ", "Check: ", "Common failure: "),
    "zh": ("适用：", "检查：", "常见失误："),
}


class Parts(Record):
    """What a chunk's text is made of."""

    applicable_when: str = Text
    """What must be seen in task, persona or page for it to apply."""
    procedure: tuple[Annotated[str, Text], ...] = Field(min_length=1)
    """Steps in order."""
    verification: str = Text
    """How to see that it was done."""
    common_failure: str = Text
    """What goes wrong without it, in words that are no advice."""


def render(parts: Parts, language: Language) -> str:
    """Return a chunk's text: one line a part, the procedure numbered, the common failure last."""
    when, check, failure = _LABELS[language]
    steps = [f"{number}. {tidy(step)}" for number, step in enumerate(parts.procedure, 1)]
    return "\n".join(
        [
            when + tidy(parts.applicable_when),
            *steps,
            check + tidy(parts.verification),
            failure + tidy(parts.common_failure),
        ]
    )


class Add(Parts):
    """A new chunk (M10)."""

    operation: Literal["ADD"] = "ADD"
    candidate_id: str
    workflow_stage: Stage
    title: str = Text
    content: str = Text
    """The chunk's text as the prompt shows it, rendered from the parts."""
    evidence_card_ids: tuple[str, ...] = Field(min_length=1)

    @property
    def target_chunk_id(self) -> None:
        """An addition replaces nothing."""
        return


class Rewrite(Record):
    """A whole new text for a chunk (M10)."""

    operation: Literal["REWRITE"] = "REWRITE"
    candidate_id: str
    workflow_stage: Stage
    target_chunk_id: str
    title: str = Text
    reason: str = Text
    content: str = Text
    """`replacement_content` of M10."""
    evidence_card_ids: tuple[str, ...] = Field(min_length=1)


class Foreign(Record):
    """A candidate made elsewhere: its text, and what its source says of it."""

    operation: Literal["ADD", "REWRITE"]
    candidate_id: str
    target_chunk_id: str | None
    """None for an addition."""
    title: str = Text
    content: str = Text
    reason: str | None
    evidence_card_ids: tuple[str, ...]


Candidate = Add | Rewrite | Foreign


class Pool(Record):
    """Slots and versions of one gate."""

    title: str
    """Of the skill."""
    kind: Literal["draft", "current"]
    """What the chunks are: a cold-start draft, or the skill in force."""
    chunks: tuple[Chunk, ...]
    """In canonical order; may be empty when there are candidates."""
    candidates: tuple[Candidate, ...] = ()

    @model_validator(mode="after")
    def _sound(self) -> Self:
        """Refuse ids that meet, and rewrites of nothing or into the same text."""
        ids = [chunk.chunk_id for chunk in self.chunks] + [candidate.candidate_id for candidate in self.candidates]
        if not ids or len(set(ids)) < len(ids):
            raise ValueError("a pool has at least one version, and no id twice")
        texts = {chunk.chunk_id: chunk.text for chunk in self.chunks}
        for candidate in self.candidates:
            target = candidate.target_chunk_id
            if candidate.operation == "ADD" and target is not None:
                raise ValueError(f"{candidate.candidate_id} is an addition and names {target}")
            if candidate.operation == "REWRITE" and target not in texts:
                raise ValueError(f"{candidate.candidate_id} rewrites {target}, which is not there")
            if target is not None and texts[target].strip() == candidate.content.strip():
                raise ValueError(f"{candidate.candidate_id} is equal to the text of {target}")
        return self

    @classmethod
    def of_skill(cls, skill: Skill, kind: Literal["draft", "current"] = "draft") -> "Pool":
        """Return the pool of a skill without candidates."""
        return cls(title=skill.title, kind=kind, chunks=skill.chunks)

    @cached_property
    def slots(self) -> tuple[Slot, ...]:
        """One slot a chunk, the text in force first and its rewrites by id; then one an addition, by id."""
        rewrites: dict[str, list[str]] = {chunk.chunk_id: [] for chunk in self.chunks}
        for candidate in self._sorted:
            if candidate.target_chunk_id is not None:
                rewrites[candidate.target_chunk_id].append(candidate.candidate_id)
        added = [candidate.candidate_id for candidate in self._sorted if candidate.operation == "ADD"]
        return (
            *(Slot(name, (name, *versions)) for name, versions in rewrites.items()),
            *(Slot(name, (name,)) for name in added),
        )

    @cached_property
    def versions(self) -> dict[str, Chunk]:
        """Id of a version -> its text under the id of its slot, in column order."""
        texts = {chunk.chunk_id: (chunk.title, chunk.text) for chunk in self.chunks}
        texts |= {candidate.candidate_id: (candidate.title, candidate.content) for candidate in self.candidates}
        return {
            version: Chunk(chunk_id=slot.slot_id, title=texts[version][0], text=texts[version][1])
            for slot in self.slots
            for version in slot.versions
        }

    @property
    def interventions(self) -> tuple[Intervention, ...]:
        """The columns of the regression as a gate reads them."""
        operations = {candidate.candidate_id: candidate.operation for candidate in self.candidates}
        return tuple(
            Intervention(
                intervention_id=version,
                slot=slot.slot_id,
                kind="candidate" if version in operations else self.kind,
                operation=operations.get(version),
                order=place,
                title=self.versions[version].title,
            )
            for place, slot in enumerate(self.slots, 1)
            for version in slot.versions
        )

    def skill(self, chosen: Iterable[str]) -> Skill:
        """Return the skill of these versions, in canonical order; a rewrite keeps its slot's place and id (M22).

        Raises:
            KeyError: no version of that id.
            ValueError: two versions of one slot (I9).
        """
        wanted = set(chosen)
        if wanted - self.versions.keys():
            raise KeyError(f"no version {sorted(wanted - self.versions.keys())[0]}")
        chunks = [chunk for version, chunk in self.versions.items() if version in wanted]
        if len({chunk.chunk_id for chunk in chunks}) < len(chunks):
            raise ValueError("two versions of one slot in one skill")
        return Skill(title=self.title, chunks=tuple(chunks))

    @property
    def _sorted(self) -> Sequence[Candidate]:
        return sorted(self.candidates, key=lambda candidate: candidate.candidate_id)
