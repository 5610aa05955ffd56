"""Cards -> a draft: consolidated, aligned, compiled, and every card accounted for (M10, M13-M16, I7, I10-I13)."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Literal

from shopskill_lib.authoring import Desk, Origin, Piece
from shopskill_lib.cards import STAGES, Card, Channel, Stage, lesson_texts
from shopskill_lib.clusters import Cluster, LeftOut, consolidate
from shopskill_lib.compilation import ChunkDraft, Compiled, Evidence, compile_chunks
from shopskill_lib.errors import InputError
from shopskill_lib.files import write_bytes, write_json
from shopskill_lib.firewall import Screen, public
from shopskill_lib.mechanisms import Mechanism, mechanisms_of
from shopskill_lib.models import Model
from shopskill_lib.pools import CAP, Add, Parts, Pool, Rewrite, render
from shopskill_lib.records import Language, Record, fingerprint
from shopskill_lib.settings import Settings
from shopskill_lib.skills import Chunk, Skill
from shopskill_lib.text import tidy

FILES = ("draft.json", "draft.md", "clusters.json")
"""What a compilation writes, apart from the author's answers."""

CHANNELS: tuple[Channel, ...] = ("success", "failure")


class Source(Record):
    """A card behind a version."""

    card_id: str
    trajectory_id: str
    channel: Channel
    steps: tuple[int, ...]


class Version(Record):
    """One new text and everything that it rests on."""

    version_id: str
    """A chunk of a first draft, else a candidate; with 12 hex digits of its content."""
    operation: Literal["ADD", "REWRITE"]
    target_chunk_id: str | None
    workflow_stage: Stage
    title: str
    content: str
    """As the prompt shows it, rendered from the parts."""
    parts: Parts
    reason: str
    mechanism_ids: tuple[str, ...]
    cluster_ids: tuple[str, ...]
    sources: tuple[Source, ...]
    """By card id."""


class Draft(Record):
    """What was compiled, what it rests on and what was left out: `draft.json`."""

    origin: Origin
    language: Language
    simulated: bool
    """Whether a program stands in for policy, analyst or author anywhere behind it."""
    pool: Pool | None
    """None without any chunk or candidate, which only happens online."""
    versions: tuple[Version, ...]
    """By module of the workflow, within one as submitted."""
    clusters: tuple[Cluster, ...]
    mechanisms: tuple[Mechanism, ...]
    """First priority first."""
    left_out: tuple[LeftOut, ...]
    complaints: tuple[str, ...]
    """What the firewall sent back to the author."""

    @property
    def skill(self) -> Skill:
        """Every new text as a chunk under the id of its version."""
        chunks = tuple(Chunk(chunk_id=one.version_id, title=one.title, text=one.content) for one in self.versions)
        return Skill(title="" if self.pool is None else self.pool.title, chunks=chunks)

    def verdict(self) -> str:
        """Return one sentence: how many cards became how many texts, and how many did not."""
        behind = {source.card_id for version in self.versions for source in version.sources}
        added = sum(version.operation == "ADD" for version in self.versions)
        return (
            f"{'simulated: ' if self.simulated else ''}{len(behind)} of {len(self.account())} cards support "
            f"{len(self.versions)} texts ({added} additions, {len(self.versions) - added} rewrites); the others are "
            "left out with their reasons. Whether a text helps is for the gate to say."
        )

    def account(self) -> dict[str, str | LeftOut]:
        """Return card id -> the version that it supports, or where it was left out and why."""
        cards = {cluster.cluster_id: cluster.card_ids for cluster in self.clusters}
        behind = {
            one.mechanism_id: [card for name in one.cluster_ids for card in cards[name]] for one in self.mechanisms
        }
        return {source.card_id: version.version_id for version in self.versions for source in version.sources} | {
            card: left for left in self.left_out for card in behind.get(left.item_id, [left.item_id])
        }


def build(
    author: Model,
    cards: Sequence[Card],
    skill: Skill,
    *,
    screen: Screen,
    settings: Settings,
    folder: Path,
    cap: int,
    stage: Origin,
) -> Draft:
    """Compile cards, and write `clusters.json`, `draft.json` and `draft.md`.

    Args:
        author: who is asked; answers are kept in the folder, so that a second call asks only what is owed.
        cards: in any order; those without texts are accounted for, not consolidated.
        skill: in force; without chunks for a first draft.
        screen: the firewall, its instances by trajectory id.
        settings: language, prompts and context of the author.
        folder: where everything is written.
        cap: most factors of a cold start, chunks in force included (M16); most candidates online (M28).
        stage: where the cards come from.

    Raises:
        InputError: a cold start with nothing to compile, no room for it, or nothing left of it.
        AuthorError: no valid answer after all repairs; what was finished before is kept.
        FirewallError: something privileged is among the cards.
    """
    public([*cards, skill], "the compiler")
    desk = Desk(author, screen, settings, folder, stage)
    by_id = {card.card_id: card for card in sorted(cards, key=lambda card: card.card_id)}
    usable, unfit = _sift(desk, by_id.values())
    _refuse_without(desk, usable, skill, cap)
    found = [consolidate(desk, channel, usable, skill) for channel in CHANNELS]
    clusters = tuple(cluster for one in found for cluster in one.clusters)
    left_out = (*unfit, *(left for one in found for left in one.left_out))
    _write_clusters(folder, clusters, left_out)
    ranked = {one.mechanism_id: one for one in mechanisms_of(clusters, by_id, settings.language)}
    evidence = Evidence(ranked, {cluster.cluster_id: cluster for cluster in clusters}, by_id)
    compiled = compile_chunks(desk, skill, evidence, _room(desk, skill, cap))
    draft = _draft(desk, skill, evidence, compiled).model_copy(
        update={
            "left_out": (*left_out, *compiled.left_out),
            "complaints": (*(text for one in found for text in one.complaints), *compiled.complaints),
        }
    )
    return _written(draft, folder)


def _refuse_without(desk: Desk, usable: Sequence[Card], skill: Skill, cap: int) -> None:
    """Refuse a cold start without cards, and a cap that the chunks in force fill."""
    if desk.origin != "cold_start":
        return
    if not usable:
        raise InputError(
            "there is nothing to compile: no card can be consolidated",
            where=str(desk.folder),
            allowed="at least one card with deployable texts",
            todo="look into cards.jsonl for the reasons; take more training tasks",
        )
    refuse_full(skill, cap)


def refuse_full(skill: Skill, cap: int) -> None:
    """Refuse a seed skill whose chunks fill the cap of a cold start (M16)."""
    if len(skill.chunks) >= cap:
        raise InputError(
            f"a cap of {cap} leaves no room beside {len(skill.chunks)} chunks in force",
            where="cap",
            allowed="room for at least one addition or rewrite (M16)",
            todo="merge or remove chunks of the seed skill"
            + (f", or raise the cap to at most {CAP}" if len(skill.chunks) < CAP else ""),
        )


def _room(desk: Desk, skill: Skill, cap: int) -> int:
    """Return how many chunks may be submitted: online the chunks in force do not count (M16)."""
    return cap - len(skill.chunks) if desk.origin == "cold_start" else cap


def _sift(desk: Desk, cards: Iterable[Card]) -> tuple[list[Card], list[LeftOut]]:
    """Part the cards that may be consolidated from the others, each with its reason."""
    usable, unfit = list[Card](), list[LeftOut]()
    for card in cards:
        if card.deployable is None:
            unfit.append(LeftOut(item_id=card.card_id, step="analysis", reason=card.facts.reason or "no_proposal"))
            continue
        if desk.findings([Piece(card.card_id, lesson_texts(card.deployable), (card.source_trajectory_id,))]):
            unfit.append(LeftOut(item_id=card.card_id, step="analysis", reason="firewall"))
        else:
            usable.append(card)
    return usable, unfit


def _write_clusters(folder: Path, clusters: Sequence[Cluster], left_out: Sequence[LeftOut]) -> None:
    """Write what consolidation gave, before anything is compiled (I12)."""
    public([clusters, left_out], "clusters.json")
    lists = {"clusters": clusters, "left_out": left_out}
    write_json(
        folder / "clusters.json",
        {name: [record.model_dump(mode="json") for record in records] for name, records in lists.items()},
    )


def _draft(desk: Desk, skill: Skill, evidence: Evidence, compiled: Compiled) -> Draft:
    """Return the draft of an accepted answer; nothing of it touches the skill in force (I7)."""
    language = desk.settings.language
    first = desk.origin == "cold_start" and not skill.chunks
    chunks = sorted(compiled.answer.chunks, key=lambda chunk: STAGES.index(chunk.workflow_stage))
    versions = [_version(chunk, evidence, language, "chunk" if first else "candidate") for chunk in chunks]
    title, pool = tidy(compiled.answer.title), None
    if first and versions:
        made = [Chunk(chunk_id=one.version_id, title=one.title, text=one.content) for one in versions]
        pool = Pool(title=title, kind="draft", chunks=tuple(made))
    elif versions or skill.chunks:
        candidates = tuple(_candidate(one) for one in versions)
        pool = Pool(title=skill.title or title, kind="current", chunks=skill.chunks, candidates=candidates)
    return Draft(
        origin=desk.origin,
        language=language,
        simulated=desk.author.identity.simulated or any(card.facts.simulated for card in evidence.cards.values()),
        pool=pool,
        versions=tuple(versions),
        clusters=tuple(evidence.clusters.values()),
        mechanisms=tuple(evidence.mechanisms.values()),
        left_out=(),
        complaints=(),
    )


def _version(chunk: ChunkDraft, evidence: Evidence, language: Language, kind: str) -> Version:
    """Name a text by its content, and list what it rests on."""
    title, content = tidy(chunk.title), render(chunk, language)
    named = [title, content] if kind == "chunk" else [chunk.operation, chunk.target_chunk_id, title, content]
    return Version(
        version_id=f"{kind}-{fingerprint(named)[:12]}",
        operation=chunk.operation,
        target_chunk_id=chunk.target_chunk_id,
        workflow_stage=chunk.workflow_stage,
        title=title,
        content=content,
        parts=Parts(**chunk.model_dump(include=set(Parts.model_fields))),
        reason=chunk.reason,
        mechanism_ids=chunk.mechanism_ids,
        cluster_ids=tuple(name for one in chunk.mechanism_ids for name in evidence.mechanisms[one].cluster_ids),
        sources=tuple(
            Source(
                card_id=card.card_id,
                trajectory_id=card.source_trajectory_id,
                channel=card.channel,
                steps=card.facts.steps,
            )
            for card in evidence.cards_of(chunk.mechanism_ids)
        ),
    )


def _candidate(version: Version) -> Add | Rewrite:
    """Return a version as a gate measures it."""
    card_ids = tuple(source.card_id for source in version.sources)
    if version.target_chunk_id is None:
        return Add(
            candidate_id=version.version_id,
            workflow_stage=version.workflow_stage,
            title=version.title,
            content=version.content,
            evidence_card_ids=card_ids,
            **version.parts.model_dump(),
        )
    return Rewrite(
        candidate_id=version.version_id,
        workflow_stage=version.workflow_stage,
        target_chunk_id=version.target_chunk_id,
        title=version.title,
        reason=version.reason,
        content=version.content,
        evidence_card_ids=card_ids,
    )


def _written(draft: Draft, folder: Path) -> Draft:
    """Write a draft as data and as the skill of all its versions, each under its own id."""
    public(draft, "draft.json")
    write_json(folder / "draft.json", draft.model_dump(mode="json"))
    if draft.pool is None:
        if draft.origin == "online":
            return draft
        raise InputError(
            "nothing is left to measure",
            where=str(folder / "draft.json"),
            allowed="at least one chunk",
            todo="its left_out tells why each card went; take more training tasks, or a more capable author",
        )
    chunks = [chunk.model_copy(update={"chunk_id": name}) for name, chunk in draft.pool.versions.items()]
    said = "simulated, " if draft.simulated else ""
    head = f"---\norigin: {said}compiled from cards; no gate has measured it yet\n---\n"
    write_bytes(
        folder / "draft.md", (head + Skill(title=draft.pool.title, chunks=tuple(chunks)).to_markdown()).encode()
    )
    return draft
