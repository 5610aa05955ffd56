"""The neutral record: what a run made elsewhere says of an episode, and the folder an import is kept in.

What a source does not say is None. Gold never stands in a `RecordedEpisode` (M11): whatever is not typed here goes to
the `Remainder` of the same episode, so that an export gives the source back.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

from pydantic import AwareDatetime

from shopskill_lib.errors import InputError
from shopskill_lib.pools import Pool
from shopskill_lib.records import Failure, Hint, Privileged, Purchase, Record, Usage
from shopskill_lib.skills import Skill
from shopskill_lib.sources import Columns
from shopskill_lib.trajectories import PARTS, Trajectory, Turn


class Source(Record):
    """Where a recorded episode stands."""

    format: str
    """Name of the format."""
    file: str
    """Name of the file, relative to what was imported."""
    line: int
    """From 1."""

    @property
    def place(self) -> str:
        """File and line, for messages."""
        return f"{self.file}, line {self.line}"


class RecordedEpisode(Record):
    """One attempt at one episode, as its source tells it."""

    trajectory_id: str
    """The source's id. Attempts at one episode may share it: the latest completed one counts."""
    task_id: str | None
    """Id as text."""
    sample: int | None
    split: str | None
    """The source's word for the data role."""
    instruction: str | None
    """The request as the policy saw it."""
    persona: dict[str, Any] | None
    """What the policy was told of the shopper."""
    messages: tuple[dict[str, Any], ...] | None
    """The conversation as OpenAI chat messages, with tool calls and tool answers where the source has them."""
    tools: tuple[dict[str, Any], ...] | None
    """Tools offered in every turn; None where they changed from turn to turn or are not told."""
    turns: tuple[Turn, ...] | None
    """Pages and actions told apart."""
    hints: tuple[Hint, ...] | None
    """Skill that was in the prompt; empty for none, None where the source does not say."""
    ending: str | None
    reward: float | None
    """None for a failed attempt, too: errors are never rewards (I20)."""
    parts: dict[str, float] | None
    """Parts of the reward (`r_*`) that do not rest on gold's identity."""
    purchase: Purchase | None
    model: str | None
    checkpoint: str | None
    """Weights that produced it."""
    seed: int | None
    usage: Usage | None
    """Tokens of all turns; None when they are unknown for any."""
    started_at: AwareDatetime | None
    ended_at: AwareDatetime | None
    status: Literal["completed", "failed"] | None
    error: Failure | None
    """Why a failed attempt has no result."""
    simulated: bool
    """Whether the source says that a program stood in for the model."""
    source: Source


class Remainder(Privileged):
    """What else a source says of an episode, gold included (M11)."""

    trajectory_id: str
    rest: dict[str, Any]
    """What gives the source's document back, made by `lossless.kept`; may hold gold at any depth."""


@dataclass(frozen=True, slots=True)
class Import:
    """What was read from a source.

    Attributes:
        format: name of the source's format.
        episodes: attempts in the source's order; `remainders` the same in number and order.
        skill: the skill of a skill bank.
        pool: chunks and candidates of a pool.
        gate: masks and outcomes of a gate, one row a pair.
        rest: what gives the document back that `skill` or `pool` was read from (`lossless.kept`).
        files: name relative to the source -> content, of files that are kept as they are; privileged.
        lacks: sentences on what the source does not say, and what that switches off.
    """

    format: str
    episodes: tuple[RecordedEpisode, ...] = ()
    remainders: tuple[Remainder, ...] = ()
    skill: Skill | None = None
    pool: Pool | None = None
    gate: Columns | None = None
    rest: dict[str, Any] | None = None
    files: Mapping[str, bytes] = field(default_factory=dict)
    lacks: tuple[str, ...] = ()


class Format(NamedTuple):
    """One format that can be imported and exported."""

    name: str
    recognises: Callable[[Path, Any], bool]
    """Tells from the path and its first JSON document (None for a folder or other text) whether this is one."""
    read: Callable[[Path], Import]
    write: Callable[[Import, Path], None]
    """Writes what was imported from this format back, or what was imported elsewhere as far as the format holds it."""


_NEEDED_BY = {
    "task_id": "each trajectory counts as a task of its own",
    "instruction": "no cards",
    "messages": "no export as chat messages",
    "turns": "no cards",
    "hints": "what the prompt showed is unknown: cards name no chunk of it, and no gate rests on it",
    "ending": "no cards",
    "reward": "completed purchases are taken as demonstrations; no failures, no gate",
    "parts": "success is a reward of 1; no outcomes beside the reward",
    "checkpoint": "nothing is claimed of any weights",
    "usage": "no costs",
}
"""Field -> what its absence means."""


def lacking(episodes: Sequence[RecordedEpisode]) -> tuple[str, ...]:
    """Return one sentence a field that completed episodes lack, with what that switches off."""
    whole = [episode for episode in episodes if episode.status != "failed"]
    absent = {name: sum(getattr(episode, name) is None for episode in whole) for name in _NEEDED_BY}
    said = [
        f"{name}: not told in {'any' if count == len(whole) else count} of {len(whole)} episodes; {_NEEDED_BY[name]}"
        for name, count in absent.items()
        if count
    ]
    failed = len(episodes) - len(whole)
    return (*said, *([f"{failed} failed attempts are kept as failures, never as rewards (I20)"] if failed else []))


def latest(episodes: Iterable[RecordedEpisode]) -> tuple[RecordedEpisode, ...]:
    """Return the latest attempt of every trajectory that did not fail, in the order of their first attempts."""
    found: dict[str, RecordedEpisode] = {}
    for episode in episodes:
        if episode.status != "failed":
            found[episode.trajectory_id] = episode
    return tuple(found.values())


def as_trajectories(episodes: Sequence[RecordedEpisode]) -> tuple[Trajectory, ...]:
    """Return recorded episodes as analysts read them; those that `unreadable` counts are left out.

    Raises:
        InputError: none tells what an analyst needs, or only some have a reward.
    """
    chosen = [episode for episode in latest(episodes) if not _untold(episode)]
    if not chosen:
        first = next(iter(latest(episodes)), None)
        raise InputError(
            "there is no completed episode" if first is None else f"no episode tells its {', '.join(_untold(first))}",
            where=episodes[0].source.file if episodes else "the source",
            allowed="completed episodes with request, turns and ending",
            todo="give another source: without them there are no cards",
        )
    without = [episode.trajectory_id for episode in chosen if episode.reward is None]
    if 0 < len(without) < len(chosen):
        raise InputError(
            f"{len(without)} of {len(chosen)} trajectories have no reward, the first is {without[0]!r}",
            where=chosen[0].source.file,
            allowed="a reward in every episode, or in none",
            todo="import the two kinds apart",
        )
    return tuple(map(_trajectory, chosen))


def unreadable(episodes: Sequence[RecordedEpisode]) -> tuple[str, ...]:
    """Say what `as_trajectories` leaves out: failed attempts, and episodes that do not tell what an analyst needs."""
    failed = sum(episode.status == "failed" for episode in episodes)
    silent = [_untold(episode) for episode in latest(episodes) if _untold(episode)]
    names = ", ".join(dict.fromkeys(name for untold in silent for name in untold))
    said = [f"{failed} failed attempts left out: an error is no result (I20)"] if failed else []
    return (*said, *([f"{len(silent)} episodes left out: {names} not told"] if silent else []))


def _untold(episode: RecordedEpisode) -> list[str]:
    """Return what an analyst needs and the episode does not tell."""
    return [name for name in ("instruction", "turns", "ending") if getattr(episode, name) is None]


def _trajectory(episode: RecordedEpisode) -> Trajectory:
    """Return an episode that tells enough as a trajectory."""
    parts = episode.parts or {}
    return Trajectory(
        trajectory_id=episode.trajectory_id,
        task_id=episode.trajectory_id if episode.task_id is None else episode.task_id,
        instruction=episode.instruction or "",
        persona=episode.persona,
        hints=episode.hints or (),
        turns=episode.turns or (),
        ending=episode.ending or "",
        reward=episode.reward,
        parts={name: parts[name] for name in PARTS} if parts.keys() >= set(PARTS) else None,
        purchase=episode.purchase,
        checkpoint=episode.checkpoint,
        simulated=episode.simulated,
    )


def refuse_repeated(episodes: Iterable[RecordedEpisode], where: str) -> None:
    """Refuse a trajectory id that occurs twice, for formats that know no second attempts."""
    counts = Counter(episode.trajectory_id for episode in episodes)
    repeated = next((name for name, count in counts.items() if count > 1), None)
    if repeated is not None:
        raise InputError(
            f"trajectory_id {repeated!r} occurs twice", where=where, allowed="each trajectory once", todo="rename one"
        )
