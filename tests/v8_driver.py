"""Drives a v8 server for `v8_contract`: requests, episodes, and what holds of every answer on the way.

Written from the reference text (shopsimrl.md 1.3-1.8) alone.
"""

import http.client
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from v8_answers import PRIVATE, Json, Notes, feedback, started, stepped

IDLE = "click[no such thing]"
"""An action that does nothing but count."""


class Answer(NamedTuple):
    """What the server sent."""

    status: int
    kind: str
    document: Any
    """The decoded JSON; None where it is none."""

    @property
    def result(self) -> Json:
        found = self.document.get("result") if isinstance(self.document, dict) else None
        return found if isinstance(found, dict) else {}


def read(connection: http.client.HTTPConnection) -> Answer:
    response = connection.getresponse()
    raw = response.read()
    try:
        document = json.loads(raw)
    except ValueError:
        document = None
    return Answer(response.status, response.headers.get_content_type(), document)


class Case:
    """A server, two of its tasks, and the notes taken of it.

    Args:
        base_url: Without path.
        task_idx: A task whose `gold_actions` (a search, a product, its options, `click[buy now]`) earn reward 1.
        persona_idx: A task with a persona, None when the server has none.
        gold_actions: See `task_idx`.
        timeout: Seconds to wait for one answer.
    """

    def __init__(
        self, base_url: str, task_idx: int, persona_idx: int | None, gold_actions: Sequence[str], timeout: float
    ) -> None:
        self.host, self.timeout = urlsplit(base_url).netloc, timeout
        self.task, self.persona, self.gold = task_idx, persona_idx, tuple(gold_actions)
        self.notes = Notes()
        self.expect = self.notes.expect

    @property
    def query(self) -> str:
        """The words of the gold search."""
        return self.gold[0].partition("[")[2].removesuffix("]")

    def connect(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection(self.host, timeout=self.timeout)

    def send(self, raw: bytes) -> Answer:
        connection = self.connect()
        try:
            connection.request("POST", "/api/shop_agent", raw, {"Content-Type": "application/json"})
            answer = read(connection)
        finally:
            connection.close()
        if isinstance(answer.document, dict):
            self.expect(set(answer.document) == {"result"}, "an answer is not an object of `result` alone")
        return answer

    def post(self, **body: Any) -> Answer:
        return self.send(json.dumps(body).encode())

    def health(self) -> Json:
        connection = self.connect()
        try:
            connection.request("GET", "/healthz")
            answer = read(connection)
        finally:
            connection.close()
        self.expect(answer.status == 200, f"/healthz answers {answer.status}, not 200")
        return answer.document if isinstance(answer.document, dict) else {}

    def free(self) -> int:
        return int(self.health()["free_slots"])

    def refused(self, what: str, answer: Answer, status: int) -> None:
        """Expect a refusal with this status and an error text (1.3.7)."""
        self.expect(answer.status == status, f"{what} is answered with {answer.status}, not {status}")
        error = answer.result.get("error")
        self.expect(isinstance(error, str) and error, f"{what} is answered without an error text in `result`")

    @contextmanager
    def episode(self, idx: int | None = None, **fields: Any) -> Iterator["Episode"]:
        """Start an episode, of the gold task unless another is named, and release it."""
        task = self.task if idx is None else idx
        answer = self.post(action="reset", idx=task, **fields)
        self.expect(answer.status == 200, f"reset is answered with {answer.status}, not 200")
        started(self.notes, answer.result)
        for name in sorted(PRIVATE & set(answer.result)):
            self.expect(fields.get("include_private_goal"), f"reset tells {name} unasked")
        episode = Episode(self, task, answer.result)
        try:
            yield episode
        finally:
            if episode.held:
                episode.release()


class Episode:
    """An episode on the server."""

    def __init__(self, case: Case, task: int, result: Json) -> None:
        self.case, self.task, self.started = case, task, result
        self.slot, self.lease = int(result["env_idx"]), str(result["lease_id"])
        self.state: Json = result["observation_state"]
        self.held = True

    def ask(self, action: str, **fields: Any) -> Answer:
        return self.case.post(**{"action": action, "env_idx": self.slot, "lease_id": self.lease, **fields})

    def do(self, response: str, reason: str = "executed") -> Json:
        """Send a response and expect this reason in the feedback."""
        answer = self.ask("interact", response=response)
        result = self.looked_at("interact", answer)
        if feedback(self.case.notes, result):
            found = result["action_feedback"]
            self.case.expect(found["reason"] == reason, f"{response!r} gives {found['reason']}, not {reason}")
            if not found["valid"] and not result["done"]:
                same = content(result["observation_state"]) == content(self.state)
                self.case.expect(same, f"the invalid {response!r} changed the page")
        self.state = result["observation_state"]
        return result

    def looked_at(self, action: str, answer: Answer) -> Json:
        expect, result = self.case.expect, answer.result
        expect(answer.status == 200, f"{action} is answered with {answer.status}, not 200")
        if stepped(self.case.notes, action, result):
            expect(result["env_idx"] == self.slot, f"env_idx changes in the answer to {action}")
            expect(result["lease_id"] == self.lease, f"lease_id changes in the answer to {action}")
            name = f"slot-{self.slot}-{self.task}"
            expect(result["idx"] == name, f"idx in the answer to {action} is not slot-<env_idx>-<task>")
            goal = result["goal"]
            expect(goal.get("task_id", self.task) == self.task, f"the goal told by {action} is another task's")
        return result

    def play(self, responses: Sequence[str]) -> Json:
        """Carry out responses that are all expected to be executed; the last answer."""
        return [self.do(response) for response in responses][-1]

    def terminate(self, **fields: Any) -> Json:
        return self.looked_at("terminate", self.ask("terminate", **fields))

    def release(self) -> None:
        self.held = False
        answer = self.ask("release_one")
        message = answer.result.get("message")
        self.case.expect(answer.status == 200, f"release_one is answered with {answer.status}, not 200")
        self.case.expect(isinstance(message, str), "release_one is answered without a message")


Topic = Callable[[Case], None]
"""One side of the contract; drives the server and leaves its notes in the case."""


def content(state: Json) -> Json:
    """A page without what was done last."""
    return {name: value for name, value in state.items() if name != "last_action"}
