"""Run folders of our own: episodes with the texts that they showed, cards, draft, gate; written back, they are the run.

A run folder that was exported serves another run as `reuse_from`, since every episode keeps its identity.
"""

import itertools
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from pydantic import TypeAdapter

from shopskill_lib import protocol, workbench
from shopskill_lib.adapters.lossless import given_back, kept, refusal
from shopskill_lib.adapters.recorded import Import, RecordedEpisode, Remainder, Source, lacking
from shopskill_lib.errors import ShopskillError
from shopskill_lib.files import read_json, write_bytes
from shopskill_lib.jsonl import read_lines
from shopskill_lib.pools import Pool
from shopskill_lib.records import Episode, Hint, Reused, Step, Task, canonical, make_treatment
from shopskill_lib.settings import Settings
from shopskill_lib.skills import Chunk, read_skill
from shopskill_lib.sources import Columns, read_columns, read_interventions
from shopskill_lib.trajectories import PARTS, Turn

T = TypeVar("T")

NAME = "run"

DERIVED = (".ipynb", ".svg", ".html")
"""Endings of files that are made from the others and are not carried."""

_LINE: TypeAdapter[Episode | Reused] = TypeAdapter(Episode | Reused)

MOST_TEXTS = 64
"""Combinations of texts that are tried for one treatment."""


def recognises(path: Path, _first: Any) -> bool:
    """Tell whether a folder is a run folder: it has episodes."""
    return any((path / "episodes").glob("*.jsonl"))


def read(path: Path) -> Import:
    """Read a run folder with its online rounds; an episode reused from another run is read there.

    The texts of a treatment are taken from the run's drafts and skills where their hash is the episode's; requests and
    personas from the catalogue that `params.json` names where it is the one the episodes were made on.

    Raises:
        InputError: a file is damaged, or a reused episode is gone.
    """
    notes = list[str]()
    known, pool = _known(path, notes)
    episodes, remainders = list[RecordedEpisode](), list[Remainder]()
    for file in sorted(path.rglob("episodes/*.jsonl")):
        if not _carried(file.relative_to(path)):
            continue
        for line, (episode, document) in enumerate(_lines(file), 1):
            source = Source(format=NAME, file=str(file.relative_to(path)), line=line)
            episodes.append(_recorded(episode, known, source))
            rest = kept(document, _built(episodes[-1]))
            remainders.append(Remainder(trajectory_id=episodes[-1].trajectory_id, rest=rest))
    selected = protocol.read_selected(path) if (path / protocol.SELECTED).exists() else None
    files = {
        str(file.relative_to(path)): file.read_bytes()
        for file in sorted(path.rglob("*"))
        if file.is_file() and file.parent.name != "episodes" and _carried(file.relative_to(path))
    }
    return Import(
        NAME,
        episodes=tuple(episodes),
        remainders=tuple(remainders),
        skill=selected if selected is not None and selected.chunks else None,
        pool=pool,
        gate=_gate(path),
        files=files,
        lacks=(*notes, *lacking(episodes), "notebooks, figures and report: made from the data, not carried"),
    )


def write(imported: Import, path: Path) -> None:
    """Write a run folder that was imported; episodes that it had reused from another run stand in it whole.

    Raises:
        InputError: it was not imported from one: what names an episode of ours, no other source tells.
    """
    if imported.format != NAME:
        raise refusal(
            "this comes from elsewhere and tells no identity of its episodes",
            str(path),
            "an import of a run folder; trajectories of any format go to `shopskill cards`",
        )
    lines: dict[str, list[bytes]] = {}
    for episode, remainder in zip(imported.episodes, imported.remainders, strict=True):
        document = given_back(_built(episode), remainder.rest, episode.source.place)
        lines.setdefault(episode.source.file, []).append(canonical(document) + b"\n")
    for name, content in [*imported.files.items(), *((name, b"".join(own)) for name, own in lines.items())]:
        write_bytes(path / name, content)


@dataclass(frozen=True, slots=True)
class _Known:
    """What a run folder tells of the tasks and texts of its episodes."""

    tasks: Mapping[str, Task]
    tasks_fingerprint: str | None
    texts: Mapping[str, tuple[str, ...]]
    """Hint id -> every text it has had in the run."""
    hints: dict[str, tuple[Hint, ...] | None] = field(default_factory=dict)
    """Hash of a treatment -> its texts, as far as they were looked for."""

    def task_of(self, episode: Episode) -> Task | None:
        """Return the task, where the catalogue is the one that the episode was made on."""
        same = self.tasks_fingerprint is not None and episode.shop.get("tasks") == self.tasks_fingerprint
        return self.tasks.get(episode.task_id) if same else None

    def hints_of(self, episode: Episode) -> tuple[Hint, ...] | None:
        """Return the texts that an episode showed, proven by the hash of its treatment; None where none fit."""
        digest = episode.treatment_sha256
        if digest not in self.hints:
            choices = [self.texts.get(name, ()) for name in episode.hint_ids]
            few = itertools.islice(itertools.product(*choices), MOST_TEXTS)
            tried = (
                tuple(Hint(id=name, text=text) for name, text in zip(episode.hint_ids, texts, strict=True))
                for texts in few
            )
            self.hints[digest] = next((one for one in tried if make_treatment("", one).sha256 == digest), None)
        return self.hints[digest]


def _known(path: Path, notes: list[str]) -> tuple[_Known, Pool | None]:
    """Return what the folder tells of tasks and texts, and its draft; what cannot be read is noted."""
    settings = _tried(lambda: Settings.of_run(path), "requests and personas", notes)
    if settings is None:
        return _Known({}, None, _grouped(_chunks(path, None, ""))), None
    tasks, digest = _tried(lambda: _tasks(settings), "requests and personas", notes) or ({}, None)
    drafted = bool(settings.draft) or (path / protocol.DRAFT).exists()
    pool = _tried(lambda: protocol.read_draft(settings, path), "the draft", notes) if drafted else None
    return _Known(tasks, digest, _grouped(_chunks(path, pool, settings.seed_skill))), pool


def _tasks(settings: Settings) -> tuple[dict[str, Task], str | None]:
    """Return the tasks as the policy saw them, and the fingerprint of all."""
    catalogue = workbench.open_catalogue(settings)
    without = {} if settings.persona else {"persona": None}
    tasks = {name: task.model_copy(update=without) for name, task in catalogue.tasks.items()}
    return tasks, catalogue.tasks_fingerprint


def _chunks(path: Path, pool: Pool | None, seed_skill: str) -> Iterator[Chunk]:
    """Yield every text that the run has had."""
    if pool is not None:
        yield from pool.versions.values()
    if seed_skill and Path(seed_skill).exists():
        yield from read_skill(Path(seed_skill)).chunks
    for file in sorted(path.rglob(protocol.SELECTED)):
        yield from protocol.read_selected(file.parent).chunks
    for file in sorted((path / protocol.ROUNDS).glob(f"*/{protocol.DRAFT}")):
        if read_json(file).get("pool") is not None:
            yield from protocol.read_pool(file).versions.values()


def _grouped(chunks: Iterable[Chunk]) -> dict[str, tuple[str, ...]]:
    """Return every id with the texts it has had."""
    found: dict[str, dict[str, None]] = {}
    for chunk in chunks:
        found.setdefault(chunk.chunk_id, {})[chunk.shown] = None
    return {name: tuple(texts) for name, texts in found.items()}


def _tried(work: Callable[[], T], what: str, notes: list[str]) -> T | None:
    """Do what the import can do without; why it could not be done is noted."""
    try:
        return work()
    except ShopskillError as error:
        notes.append(f"{what}: {error.where}: {error.found}")
        return None


def _lines(file: Path) -> Iterator[tuple[Episode, Any]]:
    """Yield every line of an episode file as record and as it was written, those of other runs fetched from there."""
    others: dict[str, dict[str, tuple[Episode, Any]]] = {}
    for line, document in _own_lines(file):
        if isinstance(line, Episode):
            yield line, document
            continue
        if line.reused_from not in others:
            own = _own_lines(file.parent.parent / line.reused_from)
            scored = [(one, text) for one, text in own if isinstance(one, Episode) and one.status == "scored"]
            others[line.reused_from] = {one.identity: (one, text) for one, text in scored}
        if line.identity not in others[line.reused_from]:
            raise refusal(
                f"the reused episode of task {line.task_id} is no longer in {line.reused_from}",
                str(file),
                "the other run where it was, relative to this one",
            )
        yield others[line.reused_from][line.identity]


def _own_lines(file: Path) -> list[tuple[Episode | Reused, Any]]:
    return read_lines(file, lambda line: (_LINE.validate_json(line), json.loads(line)))


def _recorded(episode: Episode, known: _Known, source: Source) -> RecordedEpisode:
    """Return an episode of ours as a record."""
    task, detail = known.task_of(episode), episode.reward_detail
    pages = [step.observation for step in episode.steps]
    return RecordedEpisode(
        trajectory_id=f"t-{episode.identity[:16]}",
        task_id=episode.task_id,
        sample=episode.sample,
        split=episode.split,
        instruction=None if task is None else task.visible_instruction,
        persona=None if task is None else task.persona,
        messages=None,
        tools=None,
        turns=None if None in pages else tuple(map(_turn, episode.steps)),
        hints=known.hints_of(episode),
        ending=episode.ending,
        reward=episode.reward,
        parts=None if detail is None else {name: float(getattr(detail, name)) for name in PARTS},
        purchase=episode.purchase,
        model=episode.model.model,
        checkpoint=episode.model.checkpoint,
        seed=episode.seeds.episode_seed,
        usage=episode.usage,
        started_at=episode.started_at,
        ended_at=episode.ended_at,
        status="failed" if episode.status == "error" else "completed",
        error=episode.error,
        simulated=episode.simulated,
        source=source,
    )


def _turn(step: Step) -> Turn:
    page = step.observation or ""
    return Turn(step=step.step, page=page, action=step.action, fault=step.fault, feedback=step.feedback)


def _built(episode: RecordedEpisode) -> dict[str, Any]:
    """Return what a record alone makes of an episode's line."""
    told = {"task_id", "sample", "split", "ending", "reward", "purchase", "error", "started_at", "ended_at"}
    document = episode.model_dump(mode="json", include=told)
    document["status"] = "error" if episode.status == "failed" else "scored"
    document["steps"] = [_step(turn) for turn in episode.turns or ()]
    return document


def _step(turn: Turn) -> dict[str, Any]:
    document = turn.model_dump(mode="json")
    return document | {"observation": document.pop("page")}


def _carried(name: Path) -> bool:
    """Tell whether a file holds data of the run."""
    hidden = any(part.startswith(".") for part in name.parts)
    return not hidden and name.suffix not in DERIVED


def _gate(path: Path) -> Columns | None:
    """Return the pairs of the run's Gate A, their masks as bits in the order of its factors."""
    pairs, named = path / "observations.csv", path / protocol.INTERVENTIONS
    if not pairs.exists() or not named.exists():
        return None
    read, factors = read_columns(pairs), read_interventions(named)
    columns = [read.cells.get(item.intervention_id) for item in factors]
    if "mask" in read.cells or None in columns:
        return replace(read, interventions=factors)
    masks = ["".join(bits) for bits in zip(*(column for column in columns if column is not None), strict=True)]
    others = {name: cells for name, cells in read.cells.items() if name not in {one.intervention_id for one in factors}}
    return replace(read, interventions=factors, cells={"mask": masks, **others})
