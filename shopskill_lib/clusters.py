"""Cards of one channel -> clusters of one mechanism each, every card in one place (M13, M14, I11).

One question a channel; past the author's context, buckets of similar cards whose clusters are merged in a tree.
"""

from collections.abc import Iterable, Mapping, Sequence, Set
from functools import partial
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import Field

from shopskill_lib.authoring import Desk, Form, Piece, misplaced, weigh, written
from shopskill_lib.cards import Card, Channel, FailureLesson, Lesson, Stage, SuccessLesson, Text, lesson_texts
from shopskill_lib.dialogue import record_tool
from shopskill_lib.pools import Parts
from shopskill_lib.records import Record, fingerprint
from shopskill_lib.similarity import Passage, groups
from shopskill_lib.skills import Skill

ANSWERED = 12
"""Tokens of a card's id in a reply, about; ids may take half of the reply, texts the rest."""


class ClusterDraft(Parts):
    """A cluster as the consolidator submits it."""

    workflow_stage: Stage
    mechanism: str = Text
    """What the cards have in common, as a short noun phrase."""
    target_chunk_id: str | None = None
    """Chunk of the current skill that this would rewrite; null for something new."""
    card_ids: tuple[str, ...] = Field(min_length=1)


class LeftCard(Record):
    """A card that supports no cluster."""

    card_id: str
    reason: str = Text


class Consolidation(Record):
    """What the consolidator submits: every card in one cluster, or left out with a reason."""

    clusters: tuple[ClusterDraft, ...]
    left_out: tuple[LeftCard, ...] = ()


class Cluster(Parts):
    """One mechanism of one channel, supported by cards."""

    cluster_id: str
    """`cluster-` and 12 hex digits of channel and cards."""
    channel: Channel
    workflow_stage: Stage
    mechanism: str = Text
    target_chunk_id: str | None
    card_ids: tuple[Annotated[str, Text], ...] = Field(min_length=1)
    """Sorted."""

    @property
    def passage(self) -> Passage:
        """Its text, for comparison."""
        parts = (self.mechanism, self.applicable_when, *self.procedure, self.verification)
        return Passage("\n".join(parts), self.workflow_stage)


class LeftOut(Record):
    """Something that reached no version, and why."""

    item_id: str
    """A card, or a mechanism where `step` is compilation."""
    step: Literal["analysis", "consolidation", "compilation"]
    reason: str
    """The analyst's code, the author's words, or `firewall`, `over_cap`, `over_context` of the program."""


class Consolidated(NamedTuple):
    """The clusters of a channel."""

    clusters: tuple[Cluster, ...]
    """Sorted by id."""
    left_out: tuple[LeftOut, ...]
    complaints: tuple[str, ...]
    """What the firewall sent back."""


class _Item(NamedTuple):
    """A card, or a cluster of an earlier pass in the form of a card."""

    item_id: str
    lesson: Lesson
    cards: tuple[Card, ...]


def consolidate(desk: Desk, channel: Channel, cards: Iterable[Card], skill: Skill) -> Consolidated:
    """Return the clusters of the eligible cards of a channel; without cards, none and nothing is asked.

    Raises:
        AuthorError: no valid answer after all repairs; earlier answers are kept.
    """
    chosen = sorted((card for card in cards if card.channel == channel), key=lambda card: card.card_id)
    items = [_Item(card.card_id, card.deployable, (card,)) for card in chosen if card.deployable is not None]
    by_id = {card.card_id: card for card in chosen}
    clusters: list[Cluster] = []
    left_out: list[LeftOut] = []
    complaints: list[str] = []
    while items:
        buckets = _pack(desk, items, skill)
        clusters = []
        for bucket, numbers in buckets:
            made, left, told = _one(desk, channel, bucket, numbers, skill)
            clusters += made
            left_out += left
            complaints += told
        if len(buckets) == 1 or len(clusters) == len(items):
            break
        items = [_as_item(cluster, by_id) for cluster in _sorted(clusters)]
    return Consolidated(tuple(_sorted(clusters)), tuple(left_out), tuple(complaints))


def _pack(desk: Desk, items: Sequence[_Item], skill: Skill) -> list[tuple[list[_Item], list[int]]]:
    """Return buckets of items by id with their group numbers: one bucket, or as many as the context asks for."""
    numbers = groups([passage_of(item.lesson) for item in items], desk.settings.language)
    room = desk.room("consolidate", {"skill": chunks_of(skill), "cards": []})
    most = max(1, desk.settings.author_max_tokens // 2 // ANSWERED)
    buckets: list[list[int]] = [[]]
    left = room
    for place in sorted(range(len(items)), key=lambda place: (numbers[place], place)):
        weight = weigh(written({"": _entry(items[place], numbers[place])}))
        if buckets[-1] and (weight > left or len(buckets[-1]) == most):
            buckets.append([])
            left = room
        buckets[-1].append(place)
        left -= weight
    return [([items[place] for place in sorted(one)], [numbers[place] for place in sorted(one)]) for one in buckets]


def _one(desk: Desk, channel: Channel, items: Sequence[_Item], numbers: Sequence[int], skill: Skill) -> Consolidated:
    """Ask for the clusters of one bucket."""
    by_id = {item.item_id: item for item in items}
    form = Form(
        tool=record_tool("submit_clusters", Consolidation, "Submit the clusters: every card in exactly one place."),
        check=partial(_wrong, tuple(by_id), frozenset(skill.ids)),
        pieces=partial(_pieces, by_id),
        withhold=_withhold,
    )
    entries = [_entry(item, number) for item, number in zip(items, numbers, strict=True)]
    answer, complaints = desk.ask("consolidate", {"skill": chunks_of(skill), "cards": entries}, form)
    clusters = tuple(_cluster(draft, channel, by_id) for draft in answer.clusters)
    left_out = tuple(
        LeftOut(item_id=card.card_id, step="consolidation", reason=left.reason)
        for left in answer.left_out
        for card in by_id[left.card_id].cards
    )
    return Consolidated(clusters, left_out, complaints)


def _wrong(wanted: Sequence[str], chunks: Set[str], answer: Consolidation) -> str:
    """Say which cards are misplaced and which targets are none."""
    placed = [(name, f"clusters.{n}") for n, draft in enumerate(answer.clusters) for name in draft.card_ids]
    placed += [(left.card_id, f"left_out.{n}") for n, left in enumerate(answer.left_out)]
    targets = [
        f"clusters.{n}.target_chunk_id {draft.target_chunk_id} is no chunk of the skill"
        for n, draft in enumerate(answer.clusters)
        if draft.target_chunk_id is not None and draft.target_chunk_id not in chunks
    ]
    return "; ".join(filter(None, [misplaced(wanted, placed, "card"), *targets]))


def _pieces(items: Mapping[str, _Item], answer: Consolidation) -> list[Piece]:
    """Return the texts of every cluster and reason, with the trajectories behind them."""
    drafts = [
        Piece(f"clusters.{n}", {"mechanism": draft.mechanism, **texts_of(draft)}, _behind(items, draft.card_ids))
        for n, draft in enumerate(answer.clusters)
    ]
    return drafts + [
        Piece(f"left_out.{n}", {"reason": left.reason}, _behind(items, [left.card_id]))
        for n, left in enumerate(answer.left_out)
    ]


def texts_of(parts: Parts) -> dict[str, str]:
    """Return the texts of the parts by name, in reading order."""
    steps = {f"procedure.{number}": step for number, step in enumerate(parts.procedure)}
    ends = {"verification": parts.verification, "common_failure": parts.common_failure}
    return {"applicable_when": parts.applicable_when, **steps, **ends}


def _behind(items: Mapping[str, _Item], names: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(card.source_trajectory_id for name in names for card in items[name].cards))


def _withhold(answer: Consolidation, leaking: Set[str]) -> Consolidation:
    """Leave out the clusters and reasons that may not travel."""
    kept = [(f"left_out.{n}" in leaking, left) for n, left in enumerate(answer.left_out)]
    lost = [draft for n, draft in enumerate(answer.clusters) if f"clusters.{n}" in leaking]
    return Consolidation(
        clusters=tuple(draft for n, draft in enumerate(answer.clusters) if f"clusters.{n}" not in leaking),
        left_out=(
            *(LeftCard(card_id=left.card_id, reason="firewall") if leaks else left for leaks, left in kept),
            *(LeftCard(card_id=name, reason="firewall") for draft in lost for name in draft.card_ids),
        ),
    )


def _cluster(draft: ClusterDraft, channel: Channel, items: Mapping[str, _Item]) -> Cluster:
    """Name a cluster by its cards."""
    card_ids = sorted(card.card_id for name in draft.card_ids for card in items[name].cards)
    given = draft.model_dump(exclude={"card_ids"})
    named = f"cluster-{fingerprint([channel, card_ids])[:12]}"
    return Cluster(cluster_id=named, channel=channel, card_ids=tuple(card_ids), **given)


def _as_item(cluster: Cluster, cards: Mapping[str, Card]) -> _Item:
    """Return a cluster in the form of a card of its channel, so that every pass reads one form."""
    procedure = "\n".join(cluster.procedure)
    lesson: Lesson
    if cluster.channel == "success":
        lesson = SuccessLesson(
            workflow_stage=cluster.workflow_stage,
            mechanism=cluster.mechanism,
            applicable_when=cluster.applicable_when,
            decisive_behavior=cluster.verification,
            generalizable_lesson=procedure,
            related_chunk_ids=() if cluster.target_chunk_id is None else (cluster.target_chunk_id,),
        )
    else:
        lesson = FailureLesson(
            workflow_stage=cluster.workflow_stage,
            failure_mechanism=cluster.mechanism,
            applicable_when=cluster.applicable_when,
            observable_trigger=cluster.common_failure,
            corrective_procedure=procedure,
            verification_step=cluster.verification,
            target_chunk_id=cluster.target_chunk_id,
        )
    return _Item(cluster.cluster_id, lesson, tuple(cards[name] for name in cluster.card_ids))


def passage_of(lesson: Lesson) -> Passage:
    """Return what a lesson is compared by: mechanism, applicability and what to do (M13)."""
    told = [text for name, text in lesson_texts(lesson).items() if name != "proposed_content"]
    return Passage("\n".join(told), lesson.workflow_stage)


def _entry(item: _Item, number: int) -> dict[str, Any]:
    """Return an item as the author reads it; `merged` is there when it stands for more than one card."""
    merged = {"merged": len(item.cards)} if len(item.cards) > 1 else {}
    return {"card_id": item.item_id, "group": number, **merged, **item.lesson.model_dump(mode="json")}


def chunks_of(skill: Skill) -> list[dict[str, Any]]:
    """Return a skill as the author reads it."""
    return [chunk.model_dump(mode="json") for chunk in skill.chunks]


def _sorted(clusters: Iterable[Cluster]) -> list[Cluster]:
    return sorted(clusters, key=lambda cluster: cluster.cluster_id)
