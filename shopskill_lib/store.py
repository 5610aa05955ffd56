"""Episodes of a run folder: `episodes/<arm>.jsonl` and `calls.jsonl`, append-only, one process at a time."""

import fcntl
import json
import os
import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from pydantic import TypeAdapter

from shopskill_lib.errors import InputError, OutputError
from shopskill_lib.files import json_object
from shopskill_lib.jsonl import append_lines, read_lines
from shopskill_lib.records import Episode, ModelCall, Reused
from shopskill_lib.spending import CALLS

LOCK = ".lock"

_LINE: TypeAdapter[Episode | Reused] = TypeAdapter(Episode | Reused)


class Stored(NamedTuple):
    """An attempt and the file it stands in."""

    episode: Episode
    file: Path
    """Of another run where the attempt was reused."""


class Store:
    """The episode files of one run folder; appending may happen on any thread."""

    def __init__(self, run_dir: Path) -> None:
        self.run_dir = run_dir
        self._lock = threading.Lock()

    @property
    def arms(self) -> list[str]:
        """Names of the arms' files."""
        return sorted(path.stem for path in (self.run_dir / "episodes").glob("*.jsonl"))

    def attempts(self, arm: str) -> dict[str, list[Stored]]:
        """Identity -> attempts in the order they were made; those of other runs are fetched from there.

        Raises:
            InputError: a damaged line, or an episode that the other run no longer has.
        """
        path = self._path(arm)
        others: dict[str, dict[str, Stored]] = {}
        found: dict[str, list[Stored]] = {}
        for line in read_lines(path, _LINE.validate_json):
            if isinstance(line, Reused):
                if line.reused_from not in others:
                    others[line.reused_from] = _finished(self.run_dir / line.reused_from)
                stored = _fetch(line, others[line.reused_from], path)
            else:
                stored = Stored(line, path)
            found.setdefault(line.identity, []).append(stored)
        return found

    def append(self, episode: Episode, calls: Sequence[ModelCall]) -> None:
        """Add an attempt and what its calls cost; both are on disk on return."""
        self.charge(calls)
        with self._lock:
            append_lines(self._path(episode.arm), [episode])

    def charge(self, calls: Sequence[ModelCall]) -> None:
        """Add what calls cost; it is on disk on return."""
        with self._lock:
            append_lines(self.run_dir / CALLS, calls)

    def point(self, arm: str, reused: Sequence[Stored]) -> None:
        """Add a line for each of these episodes of another run."""
        lines = [
            Reused(
                identity=episode.identity,
                arm=arm,
                task_id=episode.task_id,
                sample=episode.sample,
                reused_from=os.path.relpath(file.resolve(), self.run_dir.resolve()),
            )
            for episode, file in reused
        ]
        if lines:
            append_lines(self._path(arm), lines)

    def _path(self, arm: str) -> Path:
        return self.run_dir / "episodes" / f"{arm.replace(':', '-')}.jsonl"


def read_calls(run_dir: Path) -> list[ModelCall]:
    """Return what every model call of a run folder cost, in the order they ended."""
    return list(read_lines(run_dir / CALLS, ModelCall.model_validate_json))


def best(attempts: Sequence[Stored]) -> Stored:
    """Return the latest attempt that came to its end, else the latest."""
    return next((stored for stored in reversed(attempts) if stored.episode.finished), attempts[-1])


def _finished(path: Path) -> dict[str, Stored]:
    """Identity -> latest finished episode that stands in this file itself."""
    lines = read_lines(path, _LINE.validate_json)
    episodes = [line for line in lines if isinstance(line, Episode) and line.finished]
    return {episode.identity: Stored(episode, path) for episode in episodes}


def _fetch(line: Reused, other: dict[str, Stored], path: Path) -> Stored:
    if line.identity not in other:
        raise InputError(
            f"the reused episode of task {line.task_id} is no longer in {line.reused_from}",
            where=str(path),
            allowed="the other run where it was, relative to this one",
            todo="bring the other run's folder back, or begin a new run without reuse_from",
        )
    return other[line.identity]


@contextmanager
def locked(run_dir: Path) -> Iterator[None]:
    """Hold a run folder for this process; the operating system lets go of it when the process dies.

    Raises:
        OutputError: another process holds it, or one on another host that may still live.
    """
    path = run_dir / LOCK
    try:
        run_dir.mkdir(parents=True, exist_ok=True)
        file = path.open("a+", encoding="utf-8")
    except OSError as error:
        raise OutputError(
            f"the run folder cannot be written ({error.strerror})",
            where=str(run_dir),
            allowed="a folder that you may write",
            todo="choose another run folder",
        ) from error
    with file:
        held = not _try_lock(file.fileno())
        file.seek(0)
        holder = json_object(file.read())
        if held or holder.get("host", socket.gethostname()) != socket.gethostname():
            raise OutputError(
                f"the run folder is in use by process {holder.get('pid', 'unknown')} on "
                f"{holder.get('host', 'this host')} since {holder.get('since', 'just now')}",
                where=str(run_dir),
                allowed="one process a run folder",
                todo=f"wait for it or stop it; if its host is gone, remove {path}",
            )
        file.truncate(0)
        since = datetime.now(UTC).isoformat(timespec="seconds")
        file.write(json.dumps({"pid": os.getpid(), "host": socket.gethostname(), "since": since}))
        file.flush()
        try:
            yield
        finally:
            file.truncate(0)


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
