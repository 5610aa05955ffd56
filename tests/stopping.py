"""Commands in a process of their own, stopped or killed while a server of the test's own holds an answer back."""

import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from signal import SIGKILL, Signals

from scripted import Answer, Json, Script, Server


class Gate:
    """A script that waits before its answer number `after` until the gate opens."""

    def __init__(self, after: int, script: Script) -> None:
        self._places, self._script = iter(range(1, after)), script
        self.reached, self.opened = threading.Event(), threading.Event()

    def __call__(self, body: Json) -> Answer:
        if next(self._places, None) is None:
            self.reached.set()
            self.opened.wait(60)
        return self._script(body)


@dataclass(frozen=True)
class Child:
    """A command `python <name> URL RUN_DIR CACHE COUNT` against a server of the test's own."""

    name: str
    server: Server
    folder: Path
    count: int

    def start(self, run_dir: str = "run") -> "subprocess.Popen[bytes]":
        place = [str(self.folder / run_dir), str(self.folder / "cache")]
        return subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name(self.name)), self.server.url, *place, str(self.count)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    def finish(self, run_dir: str = "run") -> str:
        with self.start(run_dir) as process:
            out, err = process.communicate(timeout=60)
        assert process.returncode == 0, err
        return out.decode()

    def stop(self, number: Signals, gate: Gate) -> tuple[int, str]:
        """Start, send a signal when the gate is reached, and return exit code and message."""
        with self.start() as process:
            assert gate.reached.wait(60)
            process.send_signal(number)
            if number == SIGKILL:
                process.wait(60)
            gate.opened.set()
            _, err = process.communicate(timeout=60)
        return process.returncode, err.decode()


def until(true: Callable[[], bool]) -> None:
    """Wait for what another thread or process does; fails after ten seconds."""
    end = time.monotonic() + 10
    while not true():
        assert time.monotonic() < end
        time.sleep(0.005)
