"""The faults and records of the v8 fixture, on which tests of clients rest."""

import http.client
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from v8_fixture import V8, Fault, Reply, Request, v8_server
from v8_shop import EARPHONES, FLASK, GOLD, PERSONA_TASK, PRODUCTS, REASON, STANDARD_TASK, Json

from shopskill_lib.shops.catalog import load_catalogue


@contextmanager
def asking(shop: V8, **body: Any) -> Iterator[http.client.HTTPResponse]:
    connection = http.client.HTTPConnection(urlsplit(shop.url).netloc, timeout=10)
    try:
        connection.request("POST", "/api/shop_agent", json.dumps(body))
        yield connection.getresponse()
    finally:
        connection.close()


def post(shop: V8, **body: Any) -> Json:
    with asking(shop, **body) as response:
        result: Json = json.load(response)["result"]
        return result


def reset(shop: V8, task: int = PERSONA_TASK) -> Json:
    started = post(shop, action="reset", idx=task, if_persona=True)
    return {"env_idx": started["env_idx"], "lease_id": started["lease_id"]}


def once(number: int, fault: Fault) -> Any:
    """Let this happen to the request of this number alone."""
    return lambda request: fault if request.number == number else None


def second() -> tuple[threading.Event, Any]:
    """An event that the second request sets, and the hook for it."""
    seen = threading.Event()
    return seen, lambda request: seen.set() if request.number == 2 else None


def test_a_fault_replaces_the_answer() -> None:
    fault = Fault(Reply(503, b"<h1>busy</h1>", "text/html"), headers={"Retry-After": "2"})
    with v8_server(before=once(1, fault)) as shop:
        with asking(shop, action="reset", idx=PERSONA_TASK) as response:
            assert (response.status, response.headers["Retry-After"], response.read()) == (503, "2", b"<h1>busy</h1>")
        assert shop.leases.events == []
        reset(shop)
        assert [event.kind for event in shop.leases.events] == ["acquired"]


@pytest.mark.parametrize("cut", [0, 40])
def test_a_cut_answer_was_carried_out_all_the_same(cut: int) -> None:
    with v8_server(before=once(2, Fault(cut=cut))) as shop:
        lease = reset(shop)
        with asking(shop, action="interact", response="search[耳机]", **lease) as response:
            with pytest.raises(http.client.IncompleteRead) as lost:
                response.read()
            assert len(lost.value.partial) == cut
        answer = post(shop, action="interact", response="search[耳机]", **lease)
        assert answer["action_feedback"]["reason"] == "search_unavailable"


def test_a_dropped_connection() -> None:
    with v8_server(before=once(1, Fault(drop=True))) as shop:
        with pytest.raises(http.client.RemoteDisconnected), asking(shop, action="reset", idx=PERSONA_TASK):
            pass
        (event,) = shop.leases.events
        assert shop.odd_leases == {event.lease_id: ["acquired"]}


def test_a_restart_forgets_leases() -> None:
    with v8_server(before=once(2, Fault(restart=True))) as shop:
        lease = reset(shop)
        with asking(shop, action="interact", response="search[耳机]", **lease) as response:
            assert response.status == 409
        assert shop.odd_leases == {lease["lease_id"]: ["acquired", "forgotten"]}


@pytest.mark.parametrize("cut", [None, 40])
def test_an_answer_is_held_until_it_is_let_go(cut: int | None) -> None:
    seen, let_go = threading.Event(), threading.Event()

    def before(_: Request) -> Fault:
        seen.set()
        return Fault(hold=let_go, cut=cut)

    got: list[bytes] = []

    def ask() -> None:
        with asking(shop, action="reset", idx=PERSONA_TASK) as response:
            got.append(response.read(40))
            got.append(response.read(1) if cut is None else b"")

    with v8_server(before=before) as shop:
        asker = threading.Thread(target=ask)
        asker.start()
        assert seen.wait(10)
        if cut is None:
            assert asker.is_alive() and got == []
            let_go.set()
        asker.join(10)
        assert [len(part) for part in got] == [40, int(cut is None)]


def test_held_answers_and_waiting_resets_end_with_the_server() -> None:
    statuses: list[int] = []

    def ask(shop: V8) -> None:
        with asking(shop, action="reset", idx=PERSONA_TASK) as response:
            statuses.append(response.status)

    queued, before = second()
    with v8_server(slots=1, before=before) as shop:
        reset(shop)
        asker = threading.Thread(target=ask, args=(shop,))
        asker.start()
        assert queued.wait(10)
    asker.join(10)
    assert statuses == [503]


def test_a_client_that_leaves_the_queue_gets_a_slot_all_the_same() -> None:
    queued, before = second()
    with v8_server(slots=1, before=before) as shop:
        lease = reset(shop)
        connection = http.client.HTTPConnection(urlsplit(shop.url).netloc)
        connection.request("POST", "/api/shop_agent", json.dumps({"action": "reset", "idx": STANDARD_TASK}))
        assert queued.wait(10)
        connection.close()
        post(shop, action="release_one", **lease)
        with shop.leases.changed:
            assert shop.leases.changed.wait_for(lambda: len(shop.leases.events) == 3, 10)
        assert [event.kind for event in shop.leases.events] == ["acquired", "released", "acquired"]
        assert list(shop.odd_leases.values()) == [["acquired"]]


def test_releasing_twice_is_recorded() -> None:
    with v8_server() as shop:
        lease = reset(shop)
        post(shop, action="release_one", **lease)
        assert shop.odd_leases == {}
        assert "error" in post(shop, action="release_one", **lease)
        assert shop.odd_leases == {lease["lease_id"]: ["acquired", "released", "refused"]}
        assert shop.asked() == {"reset": 1, "release_one": 2}


def test_canaries_and_private_fields() -> None:
    with v8_server(extra={"progress": "金丝雀"}, extra_state={"verdict": "canary"}) as shop:
        started = post(shop, action="reset", idx=PERSONA_TASK)
        assert started["progress"] == "金丝雀" and started["observation_state"]["verdict"] == "canary"
        assert REASON not in json.dumps(started)
        lease = {"env_idx": started["env_idx"], "lease_id": started["lease_id"]}
        ended = post(shop, action="terminate", **lease)
        assert ended["progress"] == "金丝雀" and ended["goal"]["reason_key"] == REASON


def test_the_products_are_a_catalogue_of_ours(tmp_path: Path) -> None:
    path = tmp_path / "items.json"
    path.write_text(json.dumps(PRODUCTS), encoding="utf-8")
    catalogue = load_catalogue(path)
    assert {EARPHONES, FLASK} < set(catalogue.products) and set(catalogue.tasks) == {str(task) for task in GOLD}
    assert catalogue.tasks[str(PERSONA_TASK)].price_upper == 60
    assert catalogue.tasks[str(STANDARD_TASK)].persona is None
