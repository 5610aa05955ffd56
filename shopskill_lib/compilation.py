"""Mechanisms -> the compiler's answer, held to the rules (M10, M13, M15, M16, I6, I13).

The author is told exactly what is wrong. What is still too much after all repairs is left out by priority.
"""

import itertools
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from pydantic import Field

from shopskill_lib.authoring import Desk, Form, Piece, misplaced, weigh, written
from shopskill_lib.cards import Card, Stage, Text
from shopskill_lib.clusters import Cluster, LeftOut, chunks_of, texts_of
from shopskill_lib.dialogue import record_tool
from shopskill_lib.mechanisms import Mechanism
from shopskill_lib.pools import Parts, render
from shopskill_lib.records import Language, Record
from shopskill_lib.skills import Skill
from shopskill_lib.text import key, similarity

ALIKE = 95.0
"""Edit similarity, 0 to 100, from which two chunks say the same."""

TITLES: dict[Language, str] = {"en": "Shopping for a customer", "zh": "替顾客购物"}
"""Title of a skill whose own may not travel."""


class ChunkDraft(Parts):
    """An addition or a rewrite as the compiler submits it."""

    operation: Literal["ADD", "REWRITE"]
    target_chunk_id: str | None = None
    """Chunk whose whole text a REWRITE replaces; null for an ADD."""
    workflow_stage: Stage
    title: str = Text
    reason: str = Text
    """Why it is worth its place."""
    mechanism_ids: tuple[str, ...] = Field(min_length=1)


class LeftMechanism(Record):
    """A mechanism that no chunk is made of."""

    mechanism_id: str
    reason: str = Text


class Compilation(Record):
    """What the compiler submits: every mechanism in one chunk, or left out with a reason."""

    title: str = Text
    """Of the whole skill."""
    chunks: tuple[ChunkDraft, ...]
    left_out: tuple[LeftMechanism, ...] = ()


class Evidence(NamedTuple):
    """What the mechanisms rest on."""

    mechanisms: Mapping[str, Mechanism]
    """In order of priority."""
    clusters: Mapping[str, Cluster]
    cards: Mapping[str, Card]

    def cards_of(self, mechanism_ids: Sequence[str]) -> list[Card]:
        """Return the cards behind some mechanisms, by id."""
        clusters = [self.clusters[name] for one in mechanism_ids for name in self.mechanisms[one].cluster_ids]
        return [self.cards[name] for name in sorted({name for cluster in clusters for name in cluster.card_ids})]


class Compiled(NamedTuple):
    """The accepted answer."""

    answer: Compilation
    left_out: tuple[LeftOut, ...]
    """Mechanisms, those that the author never saw included."""
    complaints: tuple[str, ...]
    """What the firewall sent back."""


def compile_chunks(desk: Desk, skill: Skill, evidence: Evidence, room: int) -> Compiled:
    """Ask once for additions and rewrites; without mechanisms nothing is asked.

    Args:
        desk: where it is asked from.
        skill: in force.
        evidence: mechanisms and what they rest on.
        room: most chunks of the answer.

    Raises:
        AuthorError: no valid answer after all repairs.
    """
    fixed = {"skill": chunks_of(skill), "limit": {"cap": room}}
    shown, unseen = _fitting(desk, fixed, evidence)
    left_out = [LeftOut(item_id=name, step="compilation", reason="over_context") for name in unseen]
    if not shown:
        empty = Compilation(title=TITLES[desk.settings.language], chunks=())
        return Compiled(empty, tuple(left_out), ())
    rules = _Rules(evidence, tuple(shown), skill, room, desk.settings.language)
    form = Form(
        tool=record_tool("submit_skill", Compilation, "Submit the chunks: every mechanism in exactly one place."),
        check=rules.wrong,
        pieces=rules.pieces,
        withhold=rules.withhold,
        fallback=rules.within_cap,
    )
    answer, complaints = desk.ask("compile", {**fixed, "mechanisms": list(shown.values())}, form)
    left_out += [LeftOut(item_id=left.mechanism_id, step="compilation", reason=left.reason) for left in answer.left_out]
    return Compiled(answer, tuple(left_out), complaints)


def _fitting(desk: Desk, fixed: Mapping[str, Any], evidence: Evidence) -> tuple[dict[str, Any], list[str]]:
    """Return what fits the author's context, by priority, and the ids of the rest."""
    room = desk.room("compile", {**fixed, "mechanisms": []})
    entries = {name: _entry(one, evidence.clusters) for name, one in evidence.mechanisms.items()}
    order = sorted(evidence.mechanisms.values(), key=_keeping)
    weights = itertools.accumulate(weigh(written({"": entries[one.mechanism_id]})) for one in order)
    kept = {one.mechanism_id for one, weight in zip(order, weights, strict=True) if weight <= room}
    return {name: entry for name, entry in entries.items() if name in kept}, [
        name for name in entries if name not in kept
    ]


def _keeping(mechanism: Mechanism) -> tuple[bool, int]:
    """Return the order in which the program keeps mechanisms when it must drop some."""
    return (not mechanism.protected, mechanism.priority)


def _entry(mechanism: Mechanism, clusters: Mapping[str, Cluster]) -> dict[str, Any]:
    """Return a mechanism as the compiler reads it: no reward, no history (M15, M30)."""
    told = mechanism.model_dump(mode="json", exclude={"cluster_ids", "reward_lost"})
    return told | {
        "clusters": [clusters[name].model_dump(mode="json", exclude={"card_ids"}) for name in mechanism.cluster_ids]
    }


@dataclass(slots=True)
class _Rules:
    """The rules of one question.

    Attributes:
        wanted: ids of the mechanisms that are shown.
        skill: in force.
        too_long: the last answer whose only fault was its length.
    """

    evidence: Evidence
    wanted: tuple[str, ...]
    skill: Skill
    room: int
    language: Language
    too_long: Compilation | None = None

    def wrong(self, answer: Compilation) -> str:
        """Say what is wrong with an answer; "" when nothing is."""
        placed = [(name, f"chunks.{n}") for n, chunk in enumerate(answer.chunks) for name in chunk.mechanism_ids]
        placed += [(left.mechanism_id, f"left_out.{n}") for n, left in enumerate(answer.left_out)]
        problems = [problem for problem in [misplaced(self.wanted, placed, "mechanism")] if problem]
        problems += [problem for n, chunk in enumerate(answer.chunks) for problem in self._of_chunk(n, chunk)]
        problems += self._alike(answer)
        if not problems and len(answer.chunks) > self.room:
            self.too_long = answer
            return (
                f"there are {len(answer.chunks)} chunks and at most {self.room} are allowed; merge or abstract, "
                "or put mechanisms into left_out with a reason"
            )
        return "; ".join(problems)

    def within_cap(self) -> Compilation | None:
        """Return the last answer that was only too long, less its chunks of lowest priority."""
        answer = self.too_long
        if answer is None:
            return None
        order = sorted(
            range(len(answer.chunks)),
            key=lambda n: min(_keeping(self.evidence.mechanisms[name]) for name in answer.chunks[n].mechanism_ids),
        )
        return _without(answer, set(order[self.room :]), "over_cap")

    def pieces(self, answer: Compilation) -> list[Piece]:
        """Return the texts of title, chunks and reasons, with the trajectories behind them."""
        chunks = [
            Piece(
                f"chunks.{n}",
                {"title": chunk.title, **texts_of(chunk), "reason": chunk.reason},
                self._behind(chunk.mechanism_ids),
            )
            for n, chunk in enumerate(answer.chunks)
        ]
        reasons = [
            Piece(f"left_out.{n}", {"reason": left.reason}, self._behind([left.mechanism_id]))
            for n, left in enumerate(answer.left_out)
        ]
        return [Piece("title", {"text": answer.title}, self._behind(self.wanted)), *chunks, *reasons]

    def withhold(self, answer: Compilation, leaking: Set[str]) -> Compilation:
        """Leave out the chunks and reasons that may not travel; a title gives way to the library's own."""
        kept = [
            left.model_copy(update={"reason": "firewall"}) if f"left_out.{n}" in leaking else left
            for n, left in enumerate(answer.left_out)
        ]
        title = TITLES[self.language] if "title" in leaking else answer.title
        clean = answer.model_copy(update={"title": title, "left_out": tuple(kept)})
        return _without(clean, {n for n in range(len(answer.chunks)) if f"chunks.{n}" in leaking}, "firewall")

    def _of_chunk(self, n: int, chunk: ChunkDraft) -> Iterator[str]:
        """Yield what is wrong with a chunk by itself."""
        target = chunk.target_chunk_id
        old = {known.chunk_id: known.text for known in self.skill.chunks}
        if chunk.operation == "ADD" and target is not None:
            yield f"chunks.{n} is an ADD, so its target_chunk_id must be null"
        if chunk.operation == "REWRITE" and target not in old:
            yield f"chunks.{n} rewrites {target}, which is no chunk of the skill"
        text = render(chunk, self.language)
        if chunk.operation == "REWRITE" and target in old and key(text) == key(old[target]):
            yield f"chunks.{n} is equal to the text of {target} that it would replace"
        if "</hint>" in f"{chunk.title}\n{text}":
            yield f"chunks.{n} holds '</hint>'"

    def _alike(self, answer: Compilation) -> list[str]:
        """Say which chunks repeat one another or a chunk in force."""
        texts = [(f"chunks.{n}", None, render(chunk, self.language)) for n, chunk in enumerate(answer.chunks)]
        old = [(chunk.chunk_id, chunk.chunk_id, chunk.text) for chunk in self.skill.chunks]
        targets = {f"chunks.{n}": chunk.target_chunk_id for n, chunk in enumerate(answer.chunks)}
        pairs = [*itertools.combinations(texts, 2), *itertools.product(texts, old)]
        return [
            f"{one} says the same as {other}; merge them"
            for (one, _, text), (other, chunk_id, known) in pairs
            if (chunk_id is None or chunk_id != targets[one]) and similarity(text, known) >= ALIKE
        ]

    def _behind(self, mechanism_ids: Sequence[str]) -> tuple[str, ...]:
        return tuple(dict.fromkeys(card.source_trajectory_id for card in self.evidence.cards_of(mechanism_ids)))


def _without(answer: Compilation, dropped: Set[int], reason: str) -> Compilation:
    """Return the answer less some chunks, whose mechanisms are left out."""
    lost = [name for n in sorted(dropped) for name in answer.chunks[n].mechanism_ids]
    return answer.model_copy(
        update={
            "chunks": tuple(chunk for n, chunk in enumerate(answer.chunks) if n not in dropped),
            "left_out": (*answer.left_out, *(LeftMechanism(mechanism_id=name, reason=reason) for name in lost)),
        }
    )
