"""Online rounds on disk: what each began with, found and left behind (METHOD M26-M30).

A finished round is a folder `online/round_000` that nothing writes again but Gate B and `shopskill noise`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

import pandas as pd
from pydantic import TypeAdapter

from shopskill_lib import floors
from shopskill_lib.curriculum import Curriculum
from shopskill_lib.errors import InputError
from shopskill_lib.files import read_json, read_record, write_json
from shopskill_lib.pools import Pool
from shopskill_lib.protocol import GATE, ROUNDS
from shopskill_lib.records import Record
from shopskill_lib.triage import Group, Triage

Form = TypeVar("Form")


class Groups(Record):
    """`groups.json`: which groups a round rolls out, and the curriculum they were drawn from (M26)."""

    state_id: str
    curriculum: Curriculum
    groups: tuple[Group, ...]


class Measured(Record):
    """What one gate found of one text: a row of `lineage.json`; a chunk's id outlives its texts, the hash does not."""

    chunk_id: str
    """Logical chunk: the slot."""
    version_id: str
    """Id under which this text was first gated; it keeps it when the slot's id passes on to it."""
    text_sha256: str
    title: str
    text: str
    kind: Literal["draft", "current", "candidate"]
    round: int | None
    """None at Gate A."""
    checkpoint: str
    alpha: float | None
    """None where it was never shown, as the interval."""
    ci_low: float | None
    ci_high: float | None
    rank: int | None
    status: str
    reason: str
    """Why the rule says so."""

    @property
    def selected(self) -> bool:
        """Whether this text is in the skill after the gate."""
        return self.status == "selected"


class Gap(Record):
    """Internalization gap (M29): what the whole skill still adds at this checkpoint."""

    tasks: int
    bare: float
    """R_free: mean reward without a skill."""
    full: float
    """R_pair: mean reward of the same tasks with the whole skill."""
    gap: float
    ci_low: float
    ci_high: float
    """Paired bootstrap interval at 95 %."""


class Proposed(Record):
    """A candidate of the round, and what became of it."""

    candidate_id: str
    operation: Literal["ADD", "REWRITE"]
    target_chunk_id: str | None
    title: str
    alpha: float | None
    ci_low: float | None
    ci_high: float | None
    status: str
    """The gate's; `rejected_synonym` or `firewall` where it was not gated."""


class Report(Record):
    """`round.json`: the round in figures."""

    round: int
    simulated: bool
    proposal_model: str
    proposal_checkpoint: str
    """Weights of the groups and retries."""
    evaluation_model: str
    evaluation_checkpoint: str
    """Weights of the gate."""
    funnel: dict[str, int]
    candidates: tuple[Proposed, ...]
    chunks_before: int
    chunks_after: int
    retired: tuple[str, ...]
    """Current chunks that the gate removed."""
    looks: int
    """Gates that used these validation tasks so far, Gate A and this one included."""
    gap: Gap | None
    """None where it was not measured; the verdict says why."""
    verdict: str
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Round:
    """A finished round.

    Attributes:
        folder: its files.
        report: figures.
        groups: groups with class, retry and verdict.
        state: curriculum of these groups.
        lineage: every text that was gated up to this round, by chunk, then in the order of the gates.
    """

    folder: Path
    report: Report
    groups: tuple[Triage, ...]
    state: Curriculum
    lineage: tuple[Measured, ...]

    @property
    def number(self) -> int:
        """Number, from 0."""
        return self.report.round

    def to_frame(self) -> pd.DataFrame:
        """One row: funnel, sizes, checkpoints, gap."""
        report, gap = self.report, self.report.gap
        row: dict[str, Any] = {"round": report.round, "checkpoint": report.evaluation_checkpoint, **report.funnel}
        row |= {"chunks before": report.chunks_before, "chunks after": report.chunks_after}
        row |= {"retired": len(report.retired), "looks": report.looks}
        figures = ("bare", "full", "gap", "ci_low", "ci_high")
        return pd.DataFrame([row | {name: None if gap is None else getattr(gap, name) for name in figures}])

    def candidates(self) -> pd.DataFrame:
        """One row a candidate."""
        rows = [{"round": self.number, **found.model_dump()} for found in self.report.candidates]
        return pd.DataFrame(rows, columns=["round", *Proposed.model_fields])

    def alphas(self) -> pd.DataFrame:
        """One row a text that this round's gate measured."""
        names = ["round", "chunk_id", "version_id", "kind", "alpha", "ci_low", "ci_high", "rank", "status"]
        rows = [found.model_dump(include=set(names)) for found in self.lineage if found.round == self.number]
        return pd.DataFrame(rows, columns=names).astype({"rank": "Int64"})

    def rho(self) -> pd.DataFrame:
        """One row a chunk: with which probability this round's groups were shown it."""
        rows = [(self.number, shown.chunk_id, shown.alpha, shown.rho, self.state.q) for shown in self.state.chunks]
        return pd.DataFrame(rows, columns=["round", "chunk_id", "alpha", "rho", "q"])

    def summary(self) -> str:
        """The verdict and the notes."""
        return self.report.verdict + "".join(f"\nnote: {note}" for note in self.report.notes)

    def __str__(self) -> str:
        return self.summary()


def name(number: int) -> str:
    """Return the name of a round's folder."""
    return f"round_{number:03d}"


def measured(
    gate: dict[str, Any], pool: Pool, number: int | None, checkpoint: str, past: Sequence[Measured] = ()
) -> list[Measured]:
    """Return a frozen gate's factors as rows of the lineage.

    Args:
        gate: `gate_a.json`.
        pool: what was gated.
        number: of the round; None for Gate A.
        checkpoint: weights that the gate measured.
        past: rows of earlier gates, which know under which id a text was first gated.

    Raises:
        InputError: the gate measured other chunks.
    """
    first: dict[tuple[str, str], str] = {}
    for row in past:
        first.setdefault((row.chunk_id, row.text_sha256), row.version_id)
    found = {factor["intervention_id"]: factor for factor in gate["factors"]}
    if found.keys() != pool.versions.keys():
        raise InputError(
            f"the gate measured {sorted(found)}, the skill at hand has {sorted(pool.versions)}",
            where="gate_a.json",
            allowed="a gate on this very draft",
            todo="run 03_gate_a again, or give draft the value it had there",
        )
    rows = []
    for version, chunk in pool.versions.items():
        factor = found[version]
        rows.append(
            Measured(
                chunk_id=chunk.chunk_id,
                version_id=version
                if factor["kind"] == "candidate"
                else first.get((chunk.chunk_id, chunk.text_sha256), version),
                text_sha256=chunk.text_sha256,
                title=chunk.title,
                text=chunk.text,
                kind=factor["kind"],
                round=number,
                checkpoint=checkpoint,
                alpha=factor["coefficient"],
                ci_low=factor["ci_low"],
                ci_high=factor["ci_high"],
                rank=factor["rank"],
                status=factor["status"],
                reason=factor["reason"],
            )
        )
    return rows


def in_force(rows: Sequence[Measured]) -> list[Measured]:
    """Return the selected texts of the latest gate, which are the skill."""
    latest = max((-1 if row.round is None else row.round for row in rows), default=-1)
    return [row for row in rows if row.selected and (-1 if row.round is None else row.round) == latest]


def proposed(pool: Pool, rows: Sequence[Measured]) -> list[Proposed]:
    """Return a pool's candidates with what the gate found; `rows` as `measured` returns them for this pool."""
    found = dict(zip(pool.versions, rows, strict=True))
    return [
        Proposed(
            candidate_id=candidate.candidate_id,
            operation=candidate.operation,
            target_chunk_id=candidate.target_chunk_id,
            title=candidate.title,
            **found[candidate.candidate_id].model_dump(include={"alpha", "ci_low", "ci_high", "status"}),
        )
        for candidate in pool.candidates
    ]


def write_lineage(rows: Sequence[Measured], path: Path) -> None:
    """Write the chain of texts of every logical chunk."""
    chains: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        chains.setdefault(row.chunk_id, []).append(row.model_dump(mode="json", exclude={"chunk_id"}))
    write_json(path, chains)


def read_rounds(folder: Path) -> tuple[Round, ...]:
    """Return the finished rounds of a run folder, in order.

    Raises:
        InputError: a file of a round is missing or damaged.
    """
    places = sorted(path for path in (folder / ROUNDS).glob("round_*") if path.is_dir())
    return tuple(read_round(place) for place in places)


def read_round(folder: Path) -> Round:
    """Return a finished round.

    Raises:
        InputError: a file is missing or damaged.
    """
    chains = _read(folder / "lineage.json", TypeAdapter(dict[str, list[dict[str, Any]]]))
    rows = [{"chunk_id": chunk_id, **row} for chunk_id, chain in chains.items() for row in chain]
    return Round(
        folder=folder,
        report=_read(folder / "round.json", TypeAdapter(Report)),
        groups=_read(folder / "triage.json", TypeAdapter(tuple[Triage, ...])),
        state=_read(folder / "groups.json", TypeAdapter(Groups)).curriculum,
        lineage=tuple(Measured.model_validate(row) for row in rows),
    )


def noise_floors(rounds: Sequence[Round]) -> pd.DataFrame:
    """Return what the noise floors of a run's gates say: one row a gate that has one, Gate A as round "-".

    `coefficient` is the size below which 95 % of a gate's coefficients lie where text does nothing; `gap` that of the
    round's gap, from repeats beside the round or, at the same weights, in the run folder. NaN where it is not known.

    Raises:
        InputError: a gate or noise floor is damaged.
    """
    run = rounds[-1].folder.parent.parent
    places = {"-": run} | {str(done.number): done.folder for done in rounds}
    gates = {number: floors.of_gate(floors.read(place), _pairs_sha256(place)) for number, place in places.items()}
    single = {
        number: floor.coefficients.single
        for number, floor in gates.items()
        if floor is not None and floor.coefficients is not None and not floor.identical
    }
    gaps = {}
    for done in rounds:
        floor, gap = floors.of_weights(done.report.evaluation_checkpoint, (done.folder, run)), done.report.gap
        gaps[str(done.number)] = None if floor is None or gap is None else floor.reach(gap.tasks)
    table = pd.DataFrame({"coefficient": pd.Series(single, dtype=float), "gap": pd.Series(gaps, dtype=float)})
    return table.dropna(how="all").rename_axis("round")


def _pairs_sha256(place: Path) -> str:
    """Return the hash of the pairs that a frozen gate was fitted to."""
    return str(read_json(place / GATE)["source"]["sha256"])


def _read(path: Path, form: TypeAdapter[Form]) -> Form:
    return read_record(
        path,
        form,
        found="the file is damaged",
        allowed="the files of a finished round, as they were written",
        todo="restore the file from a copy, or remove this round and all later ones to run them again",
    )
