"""A scripted ShopSimulator v8 server on loopback for tests of clients: real leases, a full record, faults on demand.

Written from the reference text (shopsimrl.md 1.2-1.7, 7.1) alone; what it sells is in `v8_shop`. It keeps the weak
points of the original: no lease expires, a reset waits for ever, a client that leaves the queue still gets a slot, the
persona is sent unasked.
"""

import json
import sys
import threading
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

from v8_pages import rendered
from v8_shop import GOALS, LIMITS, OBSERVATION, Episode, Json, action_in

ENVIRONMENT = "shopsimulator-paper-aligned-v8"


class Request(NamedTuple):
    """What a client asked."""

    number: int
    """From 1, over all connections."""
    path: str
    body: Any
    """The decoded JSON body; None where there is none."""
    raw: bytes


class Reply(NamedTuple):
    """What the server sends."""

    status: int
    body: bytes
    kind: str = "application/json"


class LeaseEvent(NamedTuple):
    """Something that happened to a lease."""

    kind: str
    """`acquired`, `released`, `refused` (release with a lease that is not the active one) or `forgotten`."""
    slot: int
    lease_id: str


@dataclass(frozen=True)
class Fault:
    """What goes wrong with one request; without `reply` the request is carried out all the same."""

    reply: Reply | None = None
    """Sent instead of carrying out the request."""
    headers: Mapping[str, str] = field(default_factory=dict)
    """Sent in addition, for instance Retry-After."""
    cut: int | None = None
    """Bytes of the body after which the connection is closed; 0 sends the headers alone."""
    drop: bool = False
    """The connection is closed without an answer."""
    hold: threading.Event | None = None
    """Awaited before the answer; with `cut`, after the part that is sent."""
    restart: bool = False
    """Leases and episodes are forgotten first, as by a server that was restarted."""


class RefusedError(Exception):
    """A request that is answered with this status."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


@dataclass
class Leases:
    """The pool of slots (1.4)."""

    slots: int
    events: list[LeaseEvent] = field(default_factory=list)
    active: dict[int, str] = field(default_factory=dict)
    closing: bool = False
    changed: threading.Condition = field(default_factory=threading.Condition)

    def acquire(self) -> tuple[int, str]:
        """Wait without limit for a slot and lease it."""
        with self.changed:
            self.changed.wait_for(lambda: self.closing or len(self.active) < self.slots)
            if self.closing:
                raise RefusedError(503, "the fixture is closing")
            slot = next(slot for slot in range(self.slots) if slot not in self.active)
            self.active[slot] = uuid.uuid4().hex
            self.events.append(LeaseEvent("acquired", slot, self.active[slot]))
            self.changed.notify_all()
            return slot, self.active[slot]

    def check(self, slot: int, lease: str) -> None:
        if self.active.get(slot) != lease:
            raise RefusedError(409, f"slot {slot} is not leased under this lease")

    def release(self, slot: int, lease: str) -> None:
        with self.changed:
            kind = "released" if self.active.get(slot) == lease else "refused"
            self.events.append(LeaseEvent(kind, slot, lease))
            self.check(slot, lease)
            del self.active[slot]
            self.changed.notify_all()

    def forget(self) -> None:
        with self.changed:
            self.events += [LeaseEvent("forgotten", slot, lease) for slot, lease in self.active.items()]
            self.active.clear()
            self.changed.notify_all()

    def close(self) -> None:
        with self.changed:
            self.closing = True
            self.changed.notify_all()


Before = Callable[[Request], Fault | None]


class V8:
    """The server's side of the contract, and the record of what it was asked.

    Args:
        slots: Episodes at once.
        extra: Fields put into the result of every reset, interact and terminate (canaries).
        extra_state: The same for every `observation_state`.
        before: Called with each request before it is carried out, on the thread that serves it; says what goes wrong.
    """

    def __init__(
        self,
        slots: int = 2,
        extra: Mapping[str, Any] | None = None,
        extra_state: Mapping[str, Any] | None = None,
        before: Before | None = None,
    ) -> None:
        self.url = ""
        self.requests: list[Request] = []
        self.leases = Leases(slots)
        self.episodes: dict[int, Episode] = {}
        self.extra, self.extra_state = dict(extra or {}), dict(extra_state or {})
        self.before = before or (lambda _: None)
        self.closed = threading.Event()
        self.recording = threading.Lock()

    @property
    def odd_leases(self) -> dict[str, list[str]]:
        """Lease id -> its events, for every lease that was not released exactly once."""
        kinds: dict[str, list[str]] = {event.lease_id: [] for event in self.leases.events}
        for event in self.leases.events:
            kinds[event.lease_id].append(event.kind)
        return {lease: events for lease, events in kinds.items() if events != ["acquired", "released"]}

    def asked(self) -> Counter[str]:
        """How often each action was asked for; `healthz` and other paths under their path."""
        return Counter(
            str(request.body.get("action")) if isinstance(request.body, dict) else request.path
            for request in self.requests
        )

    def record(self, path: str, raw: bytes) -> Request:
        with self.recording:
            request = Request(len(self.requests) + 1, path, decoded(raw), raw)
            self.requests.append(request)
        return request

    def reply(self, method: str, request: Request) -> Reply:
        """Carry out a request (1.3)."""
        if (method, request.path) == ("GET", "/healthz"):
            return Reply(200, encoded(self.health()))
        if (method, request.path) != ("POST", "/api/shop_agent"):
            return Reply(404, b"<h1>Not Found</h1>", "text/html")
        if request.body is None:
            return Reply(200, encoded({"result": {"error": "the body is not JSON"}}))
        if not isinstance(request.body, dict):
            return Reply(500, b"<h1>Internal Server Error</h1>", "text/html")
        try:
            return Reply(200, encoded({"result": self.carry_out(request.body)}))
        except RefusedError as refused:
            return Reply(refused.status, encoded({"result": {"error": str(refused)}}))
        except (LookupError, TypeError, ValueError, RuntimeError) as error:
            return Reply(500, encoded({"result": {"error": str(error)}}))

    def health(self) -> Json:
        free = self.leases.slots - len(self.leases.active)
        slots = {"ready": True, "environment_slots": self.leases.slots, "free_slots": free, "tasks": len(GOALS)}
        versions = {"environment_version": ENVIRONMENT, "observation_version": OBSERVATION}
        return slots | versions | {"primary_reward": "r_strict", "debug_ui": "/debug-ui", "replay_ui": "/replay-ui"}

    def carry_out(self, body: Json) -> Json:
        action = body.get("action")
        if action == "reset":
            return self.reset(body)
        if action == "release_all":
            self.episodes.clear()
            self.leases.forget()
            return {"message": "all slots released"}
        if action not in ("interact", "terminate", "release_one"):
            raise RefusedError(400, f"unknown action {action!r}")
        slot, lease = body.get("env_idx"), body.get("lease_id")
        if type(slot) is not int or not isinstance(lease, str):
            raise RefusedError(400, "env_idx and lease_id are needed")
        if action == "release_one":
            return self.release_one(slot, lease)
        self.leases.check(slot, lease)
        return (self.interact if action == "interact" else self.terminate)(slot, body)

    def reset(self, body: Json) -> Json:
        if body.get("env_idx") is not None:
            raise RefusedError(400, "reset takes no env_idx")
        slot, lease = self.leases.acquire()
        try:
            return self.started(slot, body)
        except (LookupError, TypeError, ValueError):
            self.episodes.pop(slot, None)
            self.leases.release(slot, lease)
            raise

    def started(self, slot: int, body: Json) -> Json:
        idx, mode = body["idx"], body.get("interaction_mode", "single_turn")
        if type(idx) is not int:
            raise TypeError("idx is not an integer")
        if idx not in GOALS:
            raise KeyError(f"no task {idx}")
        if mode not in LIMITS:
            raise ValueError(f"unknown interaction mode {mode!r}")
        goal = GOALS[idx]
        self.episodes[slot] = Episode(goal, LIMITS[mode])
        persona = bool(body.get("if_persona")) and bool(goal["user_persona"])
        answer = self.page(slot, f"Task {idx} started") | {
            "task_instruction": goal["instruction_simple"] if persona else goal["instruction_text"],
            "idx": idx,
            "task_mode": "persona" if persona else "standard",
            "interaction_mode": mode,
            "environment_version": ENVIRONMENT,
            "user_persona": goal["user_persona"] or {},
        }
        if body.get("include_private_goal"):
            answer["private_task_instruction"] = goal["instruction_text"]
            answer |= {name: goal[name] for name in ("goal_options", "reason_key")}
        return answer

    def page(self, slot: int, message: str) -> Json:
        state = self.episodes[slot].state()
        where = {"env_idx": slot, "lease_id": self.leases.active.get(slot), "message": message}
        return self.extra | where | {"observation": rendered(state), "observation_state": self.extra_state | state}

    def interact(self, slot: int, body: Json) -> Json:
        episode, response = self.episodes[slot], body["response"]
        if not isinstance(response, str):
            raise TypeError("response is not a text")
        if episode.ended:
            raise RuntimeError("the episode has ended")
        episode.act(action_in(response))
        valid = episode.feedback["valid"]
        answer = self.stepped(slot, "Continue interaction" if valid else "Invalid action")
        return answer | {"action_feedback": episode.feedback}

    def terminate(self, slot: int, body: Json) -> Json:
        episode, reason = self.episodes[slot], body.get("termination_reason", "action_limit")
        if reason not in ("action_limit", "generation_length"):
            raise ValueError(f"unknown termination reason {reason!r}")
        if episode.ended:
            raise RuntimeError("the episode has ended")
        episode.end(reason)
        return self.stepped(slot, "Episode terminated")

    def stepped(self, slot: int, message: str) -> Json:
        episode = self.episodes[slot]
        ending = {"termination_reason": episode.ended} if episode.ended else {}
        return (
            self.page(slot, message)
            | ending
            | {
                "done": bool(episode.ended),
                "over": bool(episode.ended),
                "reward": episode.detail.get("r_strict", 0.0),
                "idx": f"slot-{slot}-{episode.goal['task_id']}",
                "reward_detail": episode.detail,
                "purchase": episode.bought,
                "goal": episode.goal if episode.ended else {},
            }
        )

    def release_one(self, slot: int, lease: str) -> Json:
        self.leases.release(slot, lease)
        return {"message": f"slot {slot} released"}


def decoded(raw: bytes) -> Any:
    try:
        return json.loads(raw)
    except ValueError:
        return None


def encoded(document: Json) -> bytes:
    return json.dumps(document, ensure_ascii=False).encode()


def handler(shop: V8) -> type[BaseHTTPRequestHandler]:
    """The HTTP side of a shop."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def do_GET(self) -> None:
            self.serve("GET")

        def do_POST(self) -> None:
            self.serve("POST")

        def serve(self, method: str) -> None:
            request = shop.record(self.path, self.rfile.read(int(self.headers.get("Content-Length", 0))))
            fault = shop.before(request) or Fault()
            if fault.restart:
                shop.episodes.clear()
                shop.leases.forget()
            reply = fault.reply or shop.reply(method, request)
            self.close_connection |= fault.drop or fault.cut is not None
            if fault.cut is not None and not fault.drop:
                self.send(reply, fault)
            if fault.hold:
                wait(fault.hold)
            if fault.cut is None and not fault.drop:
                self.send(reply, fault)

        def send(self, reply: Reply, fault: Fault) -> None:
            self.send_response(reply.status)
            plain = {"Content-Type": reply.kind, "Content-Length": str(len(reply.body))}
            for name, value in {**plain, **fault.headers}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(reply.body[: fault.cut])

        def log_message(self, *_: object) -> None:
            pass

    def wait(event: threading.Event) -> None:
        while not (event.wait(0.02) or shop.closed.is_set()):
            pass

    return Handler


class QuietServer(ThreadingHTTPServer):
    """A server that says nothing of clients that went away."""

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


@contextmanager
def serving(answers: type[BaseHTTPRequestHandler]) -> Iterator[str]:
    """Serve on loopback, on threads, at the URL that is given."""
    server = QuietServer(("127.0.0.1", 0), answers)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@contextmanager
def v8_server(**options: Any) -> Iterator[V8]:
    """Serve a `V8` of these options on loopback at its `url`."""
    shop = V8(**options)
    with serving(handler(shop)) as shop.url:
        try:
            yield shop
        finally:
            shop.closed.set()
            shop.leases.close()
