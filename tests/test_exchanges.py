"""The recorded exchanges of a running fork, sent byte for byte by a loopback server and played by the client.

What was recorded with a thought before the action, or in other letters, is what the client sends without. What it never
sends (steps after the end, operators, bad bodies) is an answer that it has to survive all the same.
"""

import http.server
import json
import re
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from scripted import FakeClock
from v8_fixture import serving

from shopskill_lib.errors import InfrastructureError, SetupError, ShopskillError
from shopskill_lib.records import Task
from shopskill_lib.shops.catalog import Catalogue, load_catalogue
from shopskill_lib.shops.servers import FILE, Server
from shopskill_lib.shops.shopsimulator import RemoteSession, ShopSimulator, connect

Json = dict[str, Any]

NEVER_SENT = {
    *("01", "12", "14", "15", "26", "27", "37", "38", "65", "68", "72", "74", *map(str, range(76, 90))),
    *("L01", "L02", "L05", "L06", "L08", "L09"),
}
"""Exchanges whose request the client does not make, by number."""

FORK = Server(
    generation="fork",
    versions={"environment.version": "shopsimulator-environment-v2.1"},
    slots=None,
    unscored="",
    announced=None,
    lease_seconds=None,
)


class Exchange(NamedTuple):
    """One recording."""

    number: str
    body: Any
    """What the client sends where the recorded request is one of its own."""
    status: int
    reason: str
    headers: dict[str, str]
    content: bytes
    result: Json


class Recorded:
    """A server that expects requests in order, and the answers it has for them."""

    def __init__(self) -> None:
        self.url = ""
        self.expected: deque[tuple[Json, Exchange]] = deque()
        self.wrong: list[tuple[Json, Json]] = []

    def next(self, body: Json) -> Exchange:
        wanted, exchange = self.expected.popleft()
        if body != wanted:
            self.wrong.append((body, wanted))
        return exchange


def sent_by_client(body: Any) -> Any:
    """A recorded body as the client writes it."""
    if not isinstance(body, dict) or "response" not in body:
        return {name: body[name] for name in body if name != "if_persona"} if isinstance(body, dict) else body
    action = re.split(r"(?:\n|\\n)Action: ", body["response"])[-1]
    return {**body, "response": action.lower() if action.startswith("click") else action}


def read(path: Path) -> Exchange:
    recorded = json.loads(path.read_text(encoding="utf-8"))
    request, response = recorded["request"], recorded["response"]
    body, headers = response["body"], response["headers"]
    plain = body if isinstance(body, str) else json.dumps(body, sort_keys=True, separators=(",", ":")) + "\n"
    content = plain.encode()
    assert len(content) == int(headers["Content-Length"])
    result = body["result"] if isinstance(body, dict) else {}
    number = path.name.partition("_")[0]
    return Exchange(
        number, sent_by_client(request["body"]), response["status"], response["reason"], headers, content, result
    )


@pytest.fixture(scope="module")
def exchanges(shared: Path) -> dict[str, Exchange]:
    folder = shared / "data" / "shopsim_exchanges"
    names = [
        name for index in ("INDEX", "INDEX_leases") for name, _ in json.loads((folder / f"{index}.json").read_text())
    ]
    found = [read(folder / name) for name in names]
    assert len(found) == 98
    return {exchange.number: exchange for exchange in found}


@pytest.fixture(scope="module")
def goods(real_files: Path) -> Catalogue:
    return load_catalogue(real_files / "items_eval_train.json")


@contextmanager
def recorded_server() -> Iterator[Recorded]:
    recorded = Recorded()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_error(404)

        def do_POST(self) -> None:
            exchange = recorded.next(json.loads(self.rfile.read(int(self.headers["content-length"]))))
            self.send_response_only(exchange.status, exchange.reason)
            for name, value in exchange.headers.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(exchange.content)

        def log_message(self, *_: object) -> None:
            pass

    with serving(Handler) as recorded.url:
        yield recorded


def opened(recorded: Recorded, goods: Catalogue, folder: Path) -> ShopSimulator:
    """The recorded server as a shop that is known already, so that nothing but what was recorded is asked."""
    (folder / FILE).write_text(FORK.model_dump_json(exclude={"free"}))
    return connect(recorded.url, goods, folder, clock=FakeClock().clock)


def task_of(goods: Catalogue, idx: int) -> Task:
    return goods.tasks[str(idx)].model_copy(update={"persona": None})


def test_the_client_plays_what_was_recorded(exchanges: dict[str, Exchange], goods: Catalogue, tmp_path: Path) -> None:
    ends: dict[str, tuple[str | None, float | None, float | None]] = {}
    sessions: dict[int, RemoteSession] = {}
    with recorded_server() as recorded:
        shop = opened(recorded, goods, tmp_path)
        for number, exchange in exchanges.items():
            if number in NEVER_SENT:
                continue
            recorded.expected.append((exchange.body, exchange))
            slot = exchange.body.get("env_idx", exchange.result.get("env_idx"))
            if exchange.body["action"] == "reset":
                sessions[slot] = shop.reset(task_of(goods, exchange.body["idx"]))
            elif exchange.body["action"] == "release_one":
                sessions.pop(slot).close()
            else:
                page = sessions[slot].step(exchange.body["response"])
                assert page.state["page_type"] == exchange.result["observation_state"]["page_type"]
                assert page.done == exchange.result["done"]
                detail = page.reward_detail
                if page.done:
                    ends[number] = (page.ending, page.reward, None if detail is None else detail.reported)
            assert not recorded.expected and not recorded.wrong, number
        assert ends == {
            "11": ("purchase", 1.0, 1.0),
            "25": ("environment_done", 0.0, -0.65),
            "34": ("purchase", 0.0, 0.04375000000000001),
            "46": ("purchase", 0.0, 0.0),
            "52": ("purchase", 0.0, -0.85),
            "57": ("environment_done", 0.0, -0.65),
        }


STEPS = {"12", "15", "26", "27", "38", "65", "68", "72", "74", "76", "77", "L01", "L05"}
"""Of these, answers to a step; the others stand in for the answer to a reset as well."""

OUTCOMES: dict[str, tuple[str | None, float | None]] = {
    "12": (None, None),
    "15": (None, None),
    "26": (None, None),
    "72": (None, None),
    "27": ("purchase", 1.0),
    "38": ("environment_done", 0.0),
    "65": ("environment_done", 0.0),
    "68": ("action_limit", 0.0),
}
"""Never-sent steps whose answer is a whole one: ending and reward of the session they answer."""


@pytest.mark.parametrize("number", sorted(NEVER_SENT))
def test_the_client_survives_what_was_recorded(
    exchanges: dict[str, Exchange], goods: Catalogue, tmp_path: Path, number: str
) -> None:
    """An answer to a request that the client never makes comes in answer to one that it does."""
    exchange = exchanges[number]
    slot, idx = place_of(exchange)
    reset = exchanges["02"]
    result = {
        **reset.result,
        "env_idx": slot,
        "idx": idx,
        "instruction": f"Instruction: {goods.tasks[str(idx)].instruction}",
    }
    content = json.dumps({"result": result}).encode()
    first = reset._replace(content=content, headers={**reset.headers, "Content-Length": str(len(content))})
    with recorded_server() as recorded:
        shop = opened(recorded, goods, tmp_path)
        recorded.expected.append(({"action": "reset", "idx": idx}, first))
        session = shop.reset(task_of(goods, idx))
        step = {"action": "interact", "env_idx": slot, "response": "search[鞋]"}
        recorded.expected.append((step, exchange))
        if number in OUTCOMES:
            end = session.step("search[鞋]")
            assert (end.ending, end.reward) == OUTCOMES[number]
        else:
            with pytest.raises(InfrastructureError, match=f"shop at {recorded.url}"):
                session.step("search[鞋]")
        recorded.expected.append(({"action": "release_one", "env_idx": slot}, exchanges["82"]))
        session.close()
        assert not recorded.wrong and not recorded.expected
        if number not in STEPS:
            survives_a_reset(recorded, shop, goods, exchange)


def survives_a_reset(recorded: Recorded, shop: ShopSimulator, goods: Catalogue, exchange: Exchange) -> None:
    body = {"action": "reset", "idx": 5}
    full = "Unable to get" in str(exchange.result)
    recorded.expected.extend([(body, exchange)] * (80 if full else 1))
    if "env_idx" in exchange.result:
        recorded.expected.append(({"action": "release_one", "env_idx": exchange.result["env_idx"]}, exchange))
    with pytest.raises(ShopskillError) as caught:
        shop.reset(task_of(goods, 5))
    assert type(caught.value) is (SetupError if exchange.number in ("37", "79") else InfrastructureError)
    assert ("no slot came free" in str(caught.value)) == full
    assert not recorded.wrong and (full or not recorded.expected)


def place_of(exchange: Exchange) -> tuple[int, int]:
    """Slot and task that an answer names."""
    named = re.fullmatch(r"slot-(\d+)-(\d+)", str(exchange.result.get("idx")))
    return (int(named[1]), int(named[2])) if named else (0, 0)


def test_what_was_left_out_is_what_the_client_never_sends(exchanges: dict[str, Exchange]) -> None:
    """Nothing is left out for convenience: each is after an end or a release, malformed, or no action of an agent."""
    fields = {"reset": {"idx"}, "interact": {"env_idx", "response"}, "release_one": {"env_idx"}}
    odd = {
        number
        for number, exchange in exchanges.items()
        if not isinstance(exchange.body, dict)
        or set(exchange.body) - {"action"} != fields.get(exchange.body["action"])
        or exchange.body.get("env_idx") in (-1, 77, 99)
        or exchange.body.get("idx") == 9999
        or re.match(r"finish|Action:|search\[<", exchange.body.get("response", ""))
        or "Unable to get" in str(exchange.result)
    }
    after_end_or_release = {"12", "14", "15", "26", "27"}
    without_its_page = {"68"}
    no_such_route = {"88"}
    assert odd | after_end_or_release | without_its_page | no_such_route == NEVER_SENT
