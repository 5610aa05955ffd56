"""Slots of a server: how many this process may hold, which it holds, and which a killed process left behind.

A process writes down what it holds in a file of its own in the run folder and locks it; the lock goes with the process,
so whoever can take it knows that what the file still lists is held by nobody.
"""

import contextlib
import fcntl
import json
import os
import sys
import threading
import uuid
from pathlib import Path
from typing import Literal, TextIO

from shopskill_lib.errors import OutputError
from shopskill_lib.jsonl import read_lines
from shopskill_lib.records import Record, canonical
from shopskill_lib.shops.door import ROUTE, Door, RefusalError, UnreachableError

PREFIX = "slots-"
RECOVERY = 20
"""Ended episodes after which one more is tried at once, once there were too many."""


class Holding(Record):
    """One line: what became of one reset."""

    number: int
    """Of the reset, from 1."""
    event: Literal["asked", "held", "over"]
    """Sent, and a slot may be held · a slot is held · nothing is held any more."""
    task_id: str
    slot: int | None = None
    lease: str | None = None
    """Of v8; the others have none."""
    url: str


class Ledger:
    """What this process holds, on disk before anybody can kill it; on any thread."""

    def __init__(self, folder: Path, url: str) -> None:
        self._path = folder / f"{PREFIX}{uuid.uuid4().hex[:12]}.jsonl"
        self._url, self._lock = url, threading.Lock()
        self._open = dict[int, Holding]()
        self._count = 0
        self._file: int | None = None

    def asked(self, task_id: str) -> int:
        """Write down that a reset is sent; return its number."""
        with self._lock:
            self._count += 1
            self._write(Holding(number=self._count, event="asked", task_id=task_id, url=self._url))
            return self._count

    def held(self, number: int, slot: int, lease: str | None) -> None:
        """Write down the slot that came of a reset."""
        with self._lock:
            self._write(self._open[number].model_copy(update={"event": "held", "slot": slot, "lease": lease}))

    def over(self, number: int) -> None:
        """Write down that nothing is held of a reset."""
        with self._lock:
            self._write(self._open[number].model_copy(update={"event": "over"}))

    def _write(self, line: Holding) -> None:
        """Add a line that survives a kill; the file goes when nothing is held any more."""
        if line.event == "over":
            self._open.pop(line.number, None)
        else:
            self._open[line.number] = line
        try:
            if self._file is None:
                self._path.parent.mkdir(parents=True, exist_ok=True)
                unlocked = self._path.with_name(f".{self._path.name}")
                self._file = os.open(unlocked, os.O_CREAT | os.O_WRONLY | os.O_APPEND)
                fcntl.flock(self._file, fcntl.LOCK_EX)
                unlocked.rename(self._path)
            os.write(self._file, canonical(line.model_dump(mode="json")) + b"\n")
            if not self._open:
                self._path.unlink()
                os.close(self._file)
                self._file = None
        except OSError as error:
            raise OutputError(
                f"the slots that are held cannot be written down ({error.strerror})",
                where=str(self._path),
                allowed="a disk with space that you may write",
                todo="free some space and repeat the call",
            ) from error


def recover(folder: Path, door: Door, out: TextIO) -> None:
    """Name the slots that processes which are gone have left, and free those that can only be theirs.

    A lease of v8 says whose a slot is. The generations before it free whatever number they are told, whoever holds it
    by now, so their slots are named with the request that frees them: in `out`, one line each.
    """
    for path in sorted(folder.glob(f"{PREFIX}*.jsonl")):
        with contextlib.suppress(FileNotFoundError), path.open("rb") as file:
            try:
                fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                continue  # its process lives
            lines = {line.number: line for line in read_lines(path, Holding.model_validate_json)}
            for line in lines.values():
                if line.event != "over":
                    out.write(f"left by a process that is gone: {_named(line, door)}\n")
            path.unlink()


def _named(line: Holding, door: Door) -> str:
    """Say what a line means for the server, and give a lease back."""
    if line.slot is None:
        return (
            f"a reset of task {line.task_id} at {line.url} without an answer; a slot may be held for it, "
            "whose number nobody knows until the server is started anew"
        )
    slot = f"slot {line.slot} at {line.url}, task {line.task_id}"
    body = {"action": "release_one", "env_idx": line.slot}
    if line.lease is None:
        return (
            f"{slot}; once no other client uses it, free it with curl -s {line.url}{ROUTE} -H 'Content-Type: "
            f"application/json' -d '{json.dumps(body)}'"
        )
    if line.url != door.base:
        return f"{slot}, under lease {line.lease}"
    try:
        door.tell({**body, "lease_id": line.lease})
    except RefusalError:
        return f"{slot}; it was free already"
    except UnreachableError as error:
        return f"{slot}, under lease {line.lease}; it could not be freed ({error})"
    return f"{slot}; it has been freed"


class Places:
    """How many episodes may hold a slot at once: as many as are wanted, lowered to what the server has."""

    def __init__(self, server: str, wanted: int) -> None:
        self._server, self._wanted = server, wanted
        self._most = self._ceiling = wanted
        self._held = self._ended = 0
        self._told = False
        self._changed = threading.Condition()

    def take(self) -> None:
        """Wait until fewer than the most are held, and hold one more."""
        with self._changed:
            self._changed.wait_for(self._free)
            self._held += 1

    def give_back(self) -> None:
        """Hold one less; after some episodes, try whether the server has a slot more by now."""
        with self._changed:
            self._held -= 1
            self._ended += 1
            if self._ended % RECOVERY == 0:
                self._most = min(self._most + 1, self._ceiling)
            self._changed.notify_all()

    def wait_for_another(self, most: int) -> None:
        """Give a place back for which the server had no slot, hold fewer from now on, and wait for the next place."""
        self.lower(most)
        with self._changed:
            self._held -= 1
            self._changed.notify_all()
            try:
                self._changed.wait_for(self._free)
            finally:
                self._held += 1

    def cap(self, slots: int) -> None:
        """Never hold more than the slots that the server has."""
        self._ceiling = min(self._ceiling, slots)
        self.lower(slots)

    def lower(self, most: int) -> None:
        """Hold fewer at once, at least 1; the first time, say so on standard error."""
        with self._changed:
            self._most = max(1, min(self._most, most))
            told, self._told = self._told, self._told or self._most < self._wanted
        if self._told and not told:
            sys.stderr.write(
                f"\nthe server at {self._server} has {self._most} slot{'s' * (self._most > 1)} for this run, "
                f"{self._wanted} episodes at once were asked for: {self._most} at a time\n"
            )

    def _free(self) -> bool:
        return self._held < self._most
