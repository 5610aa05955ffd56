"""The ledger: what was proposed, left out, validated, retired, replaced and looked at, in one append-only file (M30).

Events are facts that are never rewritten; what is known by now is a view over all of them. A ledger is for people, for
the compiler's own checks and for reports: nothing of it ever enters a prompt.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import AwareDatetime, Field, TypeAdapter, model_validator

from shopskill_lib.errors import InputError
from shopskill_lib.jsonl import append_lines, read_lines
from shopskill_lib.records import Record, fingerprint
from shopskill_lib.text import key, ngram_similarity

FILE = "ledger.jsonl"

SYNONYM = 0.55
"""Similarity from which two texts count as one lesson. Measured on short lessons in both languages: reordered, lightly
reworded, other punctuation or width 0.61 to 1, many words changed 0.52; different lessons up to 0.50, those of the
shipped drafts up to 0.24. A lesson of the simulated author's bank against a chunk, whose headings and failure it lacks:
the same 0.69 to 0.89, the same steps with all else in other words 0.43 to 0.73, other words throughout up to 0.45,
another lesson up to 0.35."""

_ZERO = 1e-12
"""Effects up to this count as 0 (M22)."""

Operation = Literal["ADD", "REWRITE"]
Stage = Literal["cold_start", "online"]
Result = Literal["selected", "rewrite_loser", "non_positive", "budget_excluded"]
"""What a gate says of a factor (M21, M22)."""


class Proposal(Record):
    """One candidate as the compiler proposed it; in the view, with what became of it."""

    candidate_id: str
    operation: Operation
    target_chunk_id: str | None
    """Chunk that a REWRITE replaces; None for an ADD."""
    source_card_ids: tuple[str, ...]
    failure_mechanism: str | None
    """None where only successes support it."""
    proposal_checkpoint: str
    """Weights whose episodes the cards came from."""
    stage: Stage
    round: int | None
    """None in the cold start."""
    consolidation_cluster_id: str | None
    replacement_family_id: str | None
    """Slot whose versions exclude each other; None outside any."""
    content: str
    """Its text as a prompt would show it."""
    evaluation_checkpoint: str | None = None
    """Weights of its last gate; None until validated, as the next three."""
    validation_result: Result | Literal["retired"] | None = None
    estimated_effect: float | None = None
    contribution_rank: int | None = None
    notes: str | None = None

    @model_validator(mode="after")
    def _is_consistent(self) -> Self:
        """Refuse a target that does not go with the operation, or a round that does not go with the stage."""
        if (self.operation == "REWRITE") != (self.target_chunk_id is not None):
            raise ValueError("a REWRITE has a target_chunk_id, an ADD has none")
        if (self.stage == "online") != (self.round is not None):
            raise ValueError("an online proposal has a round, one of the cold start has none")
        return self


class LeftOut(Record):
    """Evidence that became no candidate (M16); the event's reason says why."""

    source_card_ids: Annotated[tuple[str, ...], Field(min_length=1)]
    consolidation_cluster_id: str | None
    failure_mechanism: str | None
    proposal_checkpoint: str
    stage: Stage
    round: int | None


class Outcome(Record):
    """What one gate found of one text."""

    candidate_id: str | None
    """None for a chunk of the seed skill, which nobody proposed."""
    chunk_id: str
    """Its slot in the skill."""
    round: int | None
    """None at Gate A."""
    evaluation_checkpoint: str
    estimated_effect: float
    """Its alpha."""
    contribution_rank: int | None
    """None for a loser of its pair (M21)."""


class Validation(Outcome):
    """A text that was gated and is no current chunk that left."""

    validation_result: Result


class Retirement(Outcome):
    """A current chunk that left the skill (M22)."""


class Replacement(Outcome):
    """A current chunk whose text lost to a rewrite (M21)."""

    replaced_by: str
    """Candidate id of the winner."""


class Look(Record):
    """One look at tasks that decide once (M23, M25)."""

    split: Literal["val", "test"]
    record: str
    """What was frozen, in the run folder."""
    key_sha256: str
    """Hash of data and rule: the same key is the same look."""


class Event(Record):
    """One line of the ledger; `of` makes it."""

    id: str
    """Hash of event, payload and the events it follows: neither of time nor of machine."""
    event: str
    at: AwareDatetime
    reason: str
    follows: tuple[str, ...]
    """Ids of the earlier events it rests on."""
    payload: Record

    @classmethod
    def of(cls, payload: Record, *, at: AwareDatetime, reason: str, follows: Iterable[str] = ()) -> Self:
        """Return the event of a payload, its id computed."""
        name, follows = cls.model_fields["event"].default, tuple(follows)
        return cls(
            id=_id_of(name, payload, follows), event=name, at=at, reason=reason, follows=follows, payload=payload
        )

    @model_validator(mode="after")
    def _id_is_its_content(self) -> Self:
        """Refuse a line that somebody changed."""
        if self.id != _id_of(self.event, self.payload, self.follows):
            raise ValueError("the id is not the hash of event, payload and what it follows")
        return self


class Proposed(Event):
    """A candidate was proposed."""

    event: Literal["proposed"] = "proposed"
    payload: Proposal

    @model_validator(mode="after")
    def _is_not_validated(self) -> Self:
        """Refuse results: they are events of their own."""
        if any(value is not None for value in self.payload.model_dump(include=_RESULTS).values()):
            raise ValueError("a proposal has no result yet")
        return self


class WasLeftOut(Event):
    """Evidence was left out."""

    event: Literal["left_out"] = "left_out"
    payload: LeftOut


class Validated(Event):
    """A gate measured a text."""

    event: Literal["validated"] = "validated"
    payload: Validation


class Retired(Event):
    """A gate retired a current chunk."""

    event: Literal["retired"] = "retired"
    payload: Retirement


class Replaced(Event):
    """A gate replaced a current chunk's text."""

    event: Literal["replaced"] = "replaced"
    payload: Replacement


class Looked(Event):
    """Tasks that decide once were looked at; the reason is the user's, where it is not the first look."""

    event: Literal["looked"] = "looked"
    payload: Look


_RESULTS = {"evaluation_checkpoint", "validation_result", "estimated_effect", "contribution_rank"}
_LINE: TypeAdapter[Event] = TypeAdapter(
    Annotated[Proposed | WasLeftOut | Validated | Retired | Replaced | Looked, Field(discriminator="event")]
)


def _id_of(event: str, payload: Record, follows: tuple[str, ...]) -> str:
    return fingerprint([event, payload.model_dump(mode="json"), follows])


def read(path: Path) -> list[Event]:
    """Read a ledger; without the file, no event.

    Raises:
        InputError: a line is damaged or was changed, or stands before what it rests on.
    """
    events = read_part(path)
    _check(events, set(), {None}, path)
    return events


def read_part(path: Path) -> list[Event]:
    """Read events that rest on those of a ledger elsewhere, such as a round's own.

    Raises:
        InputError: a line is damaged or was changed.
    """
    return read_lines(path, _LINE.validate_json)


def append(path: Path, events: Iterable[Event]) -> None:
    """Append the events that the ledger does not have yet, in their order; a repeated call writes nothing.

    Raises:
        InputError: an event follows one that is not before it, or tells of a candidate that nobody proposed.
        OutputError: the file cannot be written; it holds what it held before.
    """
    before = read(path)
    known = {event.id for event in before}
    candidates = {event.payload.candidate_id for event in before if isinstance(event, Proposed)} | {None}
    new = list({event.id: event for event in events if event.id not in known}.values())
    _check(new, known, candidates, path)
    if new:
        append_lines(path, new)


def _check(events: Iterable[Event], known: set[str], candidates: set[str | None], path: Path) -> None:
    """Refuse events that stand before what they rest on; `known` and `candidates` grow by them."""
    for event in events:
        _refuse_dangling(event, known, candidates, path)
        if isinstance(event, Proposed):
            candidates.add(event.payload.candidate_id)
        known.add(event.id)


def _refuse_dangling(event: Event, known: set[str], candidates: set[str | None], path: Path) -> None:
    """Refuse an event without what it rests on."""
    missing = [f"event {name}" for name in event.follows if name not in known]
    if isinstance(event.payload, Outcome) and event.payload.candidate_id not in candidates:
        missing.append(f"candidate {event.payload.candidate_id}")
    if missing:
        raise InputError(
            f"the {event.event} event {event.id[:12]} rests on {missing[0]}, which the ledger does not have",
            where=str(path),
            allowed="events after those they follow, outcomes after the proposal of their candidate",
            todo="bring the whole ledger back from a copy, or remove the file: a run writes its events anew",
        )


def proposals(events: Sequence[Event]) -> list[Proposal]:
    """Return every proposal in order, each with its latest outcome.

    A candidate that is proposed again is a row of its own, and the earlier row keeps what was found before.
    """
    return [_joined(proposal, outcomes) for proposal, outcomes in _histories(events)]


def rejected(events: Sequence[Event]) -> list[Proposal]:
    """Return the proposals that lost at their last gate and never were in the skill.

    What was over the budget, and what retired after it had been of use, may come again.
    """
    return [
        _joined(proposal, outcomes)
        for proposal, outcomes in _histories(events)
        if outcomes and _result(outcomes[-1]) in ("rewrite_loser", "non_positive") and not _was_selected(outcomes)
    ]


def similar(
    events: Sequence[Event], text: str, operation: Operation, target_chunk_id: str | None, threshold: float = SYNONYM
) -> Proposal | None:
    """Return the rejected proposal that a candidate repeats in other words; None when it is new.

    Only proposals of the same operation and target count: the same words in another place are another intervention.
    """
    alike = [
        (ngram_similarity(text, proposal.content), proposal)
        for proposal in rejected(events)
        if (proposal.operation, proposal.target_chunk_id) == (operation, target_chunk_id)
    ]
    degree, nearest = max(alike, key=lambda pair: pair[0], default=(-1.0, None))
    return nearest if degree >= threshold else None


@dataclass(frozen=True, slots=True)
class Mechanism:
    """A failure mechanism over all proposals.

    Attributes:
        mechanism: as first written.
        times: proposals made for it.
        rounds: rounds of these in order, each once; None is the cold start.
        last_result: of the latest of them; None when it has not been validated.
    """

    mechanism: str
    times: int
    rounds: tuple[int | None, ...]
    last_result: str | None


def mechanisms(events: Sequence[Event]) -> list[Mechanism]:
    """Return the failure mechanisms that proposals name, most frequent first; case, width and spaces do not count."""
    groups: dict[str, list[Proposal]] = {}
    for proposal in proposals(events):
        if proposal.failure_mechanism is not None:
            groups.setdefault(key(proposal.failure_mechanism), []).append(proposal)
    found = [
        Mechanism(
            mechanism=str(group[0].failure_mechanism),
            times=len(group),
            rounds=tuple(dict.fromkeys(proposal.round for proposal in group)),
            last_result=group[-1].validation_result,
        )
        for group in groups.values()
    ]
    return sorted(found, key=lambda mechanism: -mechanism.times)


@dataclass(frozen=True, slots=True)
class Past:
    """Proposals that are not in the skill, by what they once were.

    Attributes:
        bad: validated, and positive at no gate.
        once_useful: selected at a gate and retired at a later one.
    """

    bad: tuple[Proposal, ...]
    once_useful: tuple[Proposal, ...]


def once_useful(events: Sequence[Event]) -> Past:
    """Separate what never helped from what helped an earlier checkpoint."""
    bad, useful = list[Proposal](), list[Proposal]()
    for proposal, outcomes in _histories(events):
        if outcomes and all(outcome.estimated_effect <= _ZERO for outcome in outcomes):
            bad.append(_joined(proposal, outcomes))
        elif outcomes and isinstance(outcomes[-1], Retirement) and _was_selected(outcomes):
            useful.append(_joined(proposal, outcomes))
    return Past(tuple(bad), tuple(useful))


def _histories(events: Sequence[Event]) -> list[tuple[Proposal, list[Outcome]]]:
    """Return every proposal with its outcomes up to the next proposal of the same candidate."""
    found: list[tuple[Proposal, list[Outcome]]] = []
    latest: dict[str, list[Outcome]] = {}
    for event in events:
        if isinstance(event, Proposed):
            latest[event.payload.candidate_id] = []
            found.append((event.payload, latest[event.payload.candidate_id]))
        elif isinstance(event.payload, Outcome) and event.payload.candidate_id is not None:
            latest[event.payload.candidate_id].append(event.payload)
    return found


def _joined(proposal: Proposal, outcomes: list[Outcome]) -> Proposal:
    """Return a proposal with its latest outcome."""
    if not outcomes:
        return proposal
    last = outcomes[-1]
    known = {name: getattr(last, name) for name in _RESULTS - {"validation_result"}}
    return proposal.model_copy(update={**known, "validation_result": _result(last)})


def _result(outcome: Outcome) -> str:
    """Return an outcome as the proposal view names it: a replaced text is the loser of its pair."""
    if isinstance(outcome, Validation):
        return outcome.validation_result
    return "retired" if isinstance(outcome, Retirement) else "rewrite_loser"


def _was_selected(outcomes: list[Outcome]) -> bool:
    return any(_result(outcome) == "selected" for outcome in outcomes)
