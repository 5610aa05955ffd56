"""The shop server: the v8 contract over real sockets, slots that never leak, and the command as a process."""

import http.client
import json
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from copy import copy
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import httpx2
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scripted import FakeClock

from shopskill_lib.clock import SYSTEM_CLOCK, Clock
from shopskill_lib.errors import ParameterError, SetupError
from shopskill_lib.records import Task
from shopskill_lib.shops.catalog import Catalogue, load_catalogue
from shopskill_lib.shops.contract import Permissions, Reply, Service, action_of
from shopskill_lib.shops.embedded import EmbeddedShop
from shopskill_lib.shops.protocol import StepResult
from shopskill_lib.shops.serve import Server
from shopskill_lib.shops.slots import Lease, Slots

ROOT = Path(__file__).parents[1]

Json = dict[str, Any]
NOTHING = Permissions()


class Client:
    """Requests to one server over one connection."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._http = httpx2.Client(timeout=30)

    def post(self, action: str, **fields: Any) -> tuple[int, Json]:
        answer = self._http.post(self.url, json={"action": action, **fields})
        return answer.status_code, answer.json()["result"]

    def ask(self, action: str, **fields: Any) -> Json:
        status, result = self.post(action, **fields)
        assert status == 200, result
        return result

    def reset(self, idx: int, **fields: Any) -> tuple[Json, Json]:
        """What reset tells, and what names the slot from now on."""
        told = self.ask("reset", idx=idx, **fields)
        return told, {"env_idx": told["env_idx"], "lease_id": told["lease_id"]}

    def refused(self, action: str, **fields: Any) -> tuple[int, str]:
        status, result = self.post(action, **fields)
        assert isinstance(result["error"], str)
        return status, result["code"]

    def health(self) -> Json:
        found: Json = self._http.get(self.url.replace("/api/shop_agent", "/healthz")).json()
        return found

    def close(self) -> None:
        self._http.close()


@contextmanager
def serving(
    shop: EmbeddedShop, slots: int = 4, *, clock: Clock = SYSTEM_CLOCK, allowed: Permissions = NOTHING
) -> Iterator[Client]:
    """A server in this process, on a socket, and a client of it."""
    service = Service(shop, Slots(slots, 600.0, clock), allowed=allowed)
    with Server(service) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        client = Client(server.url)
        try:
            yield client
        finally:
            client.close()
            server.shutdown()
            thread.join()


@pytest.fixture
def shop(shops: dict[str, EmbeddedShop]) -> EmbeddedShop:
    return shops["en"]


def shopping(shop: EmbeddedShop, task: Task) -> list[str]:
    """Actions of an episode with detours that ends in a purchase, right or wrong."""
    words = task.category.split("›")[-1]
    session, actions = shop.reset(task), ["click[buy now]", f"search[{words}]", "click[next >]"]
    for action in actions:
        session.step(action)
    listed = next(label for label in session.current.state["actions"] if label.isdecimal())
    actions.append(f"click[{listed}]")
    for axis, values in session.step(actions[-1]).state["available_options"].items():
        actions += [f"click[{axis}={values[0]}]", f"CLICK[{axis}={values[0]}]"]
    return [*actions, "buy it", "click[Buy Now]"]


def as_told(page: StepResult, shop: EmbeddedShop) -> Json:
    """The contract's fields of an answer in this process."""
    detail, bought = page.reward_detail, page.purchase
    told: Json = {
        "observation": page.observation_text,
        "observation_state": page.state,
        "done": page.done,
        "over": page.done,
        "reward": page.reward or 0.0,
        "action_feedback": page.feedback,
    }
    if detail is not None and bought is not None:
        price = {**bought.price.model_dump(), "version": detail.reward_version, "evidence": {"options": bought.options}}
        told["reward_detail"] = {**detail.model_dump(), "price_resolution": price}
        told["purchase"] = {
            "asin": bought.asin, "category": bought.category, "name": bought.title, "product_category": "",
            "instruction_text": "", "attributes": list(shop.inspect(bought.asin).attributes),
            "price": bought.price.price, "options": bought.options,
        }  # fmt: skip
    return told


@pytest.mark.parametrize("language", ["en", "zh"])
def test_an_episode_is_the_same_as_in_the_process(shops: dict[str, EmbeddedShop], language: str) -> None:
    shop = shops[language]
    with serving(shop) as client:
        for task in list(shop.catalogue.tasks.values())[:5]:
            told, lease = client.reset(int(task.task_id), if_persona=True)
            session = shop.reset(task)
            assert told["task_instruction"] == task.visible_instruction
            assert told["observation"] == session.current.observation_text
            assert told["observation_state"] == session.current.state
            for action in shopping(shop, task):
                expected = as_told(session.step(action), shop)
                found = client.ask("interact", response=action, **lease)
                assert {name: found[name] for name in expected} == expected
            assert found["done"] and found["termination_reason"] == "purchase"
            assert found["idx"] == f"slot-{told['env_idx']}-{told['idx']}"
            client.ask("release_one", **lease)
        assert client.health()["free_slots"] == 4


@pytest.mark.parametrize("reason", ["action_limit", "generation_length"])
def test_an_episode_is_terminated(shop: EmbeddedShop, reason: str) -> None:
    with serving(shop) as client:
        _, lease = client.reset(3)
        searched = client.ask("interact", response="search[dress]", **lease)
        assert (searched["done"], searched["reward"], searched["reward_detail"], searched["purchase"]) == (
            False, 0.0, {}, {},
        )  # fmt: skip
        ended = client.ask("terminate", termination_reason=reason, **lease)
        assert (ended["done"], ended["over"], ended["reward"], ended["purchase"]) == (True, True, 0.0, {})
        assert ended["termination_reason"] == ended["reward_detail"]["termination_reason"] == reason
        assert ended["observation_state"]["page_type"] == "search_results" and "action_feedback" not in ended
        assert not {"category_match", "price_resolution"} & set(ended["reward_detail"])
        for again in ({"action": "interact", "response": "search[x]"}, {"action": "terminate"}):
            assert client.refused(**again, **lease) == (400, "episode_ended")
        assert client.health()["free_slots"] == 3, "an end is no release"


def test_the_shop_ends_an_episode_at_its_limit(shop: EmbeddedShop) -> None:
    with serving(shop) as client:
        _, lease = client.reset(3)
        answers = [client.ask("interact", response="nonsense", **lease) for _ in range(30)]
        assert [answer["done"] for answer in answers] == [False] * 29 + [True]
        assert answers[0]["action_feedback"]["reason"] == "invalid_format"
        assert answers[-1]["termination_reason"] == "action_limit"


@pytest.mark.parametrize("language", ["en", "zh"])
def test_persona_off_is_off(shops: dict[str, EmbeddedShop], language: str) -> None:
    shop = shops[language]
    task = next(task for task in shop.catalogue.tasks.values() if task.persona is not None)
    assert task.persona is not None
    with serving(shop, allowed=Permissions(private=True)) as client:
        on, _ = client.reset(int(task.task_id), if_persona=True)
        assert on["user_persona"] == task.persona and on["task_mode"] == "persona"
        assert on["task_instruction"] == task.instruction_simple != task.instruction
        off, lease = client.reset(int(task.task_id), include_private_goal=True)
        assert off["task_mode"] == "standard" and off["task_instruction"] == task.instruction
        ended = client.ask("terminate", **lease)
        user = str(next(iter(task.persona.values())))
        assert user in json.dumps(on) and user not in json.dumps([off, ended])


@pytest.mark.parametrize("language", ["en", "zh"])
def test_gold_is_told_only_where_the_server_was_started_so(
    catalogues: dict[str, Catalogue], language: str, tmp_path: Path
) -> None:
    task, canary = catalogues[language].tasks["1"], "金丝雀 canary"
    secret = {"instruction": canary, "category": canary, "attributes": (canary,), "options": ((None, canary),)}
    planted = Task.model_validate(task.model_dump() | secret)
    shop = EmbeddedShop(replace(catalogues[language], tasks={"1": planted}), tmp_path)
    with serving(shop) as client:
        assert client.refused("reset", idx=1, include_private_goal=True) == (403, "private_refused")
        assert client.health()["free_slots"] == 4
        reset, lease = client.reset(1, if_persona=True)
        answers = [client.ask("interact", response=action, **lease) for action in shopping(shop, task)]
        assert answers[-1]["done"] and answers[-1]["goal"] == {}
        assert canary not in json.dumps([reset, answers], ensure_ascii=False)
    with serving(shop, allowed=Permissions(private=True)) as client:
        reset, lease = client.reset(1, include_private_goal=True, if_persona=True)
        assert reset["private_task_instruction"] == canary and reset["goal_options"] == [canary]
        assert client.ask("interact", response="search[x]", **lease)["goal"] == {}
        goal = client.ask("terminate", **lease)["goal"]
        assert (goal["task_id"], goal["asin"], goal["attributes"]) == (1, task.gold_asin, [canary])


SLOT = {"env_idx": 0, "lease_id": "0" * 32}


@pytest.mark.parametrize(
    ("request_", "status", "code"),
    [
        ({}, 400, "unknown_action"),
        ({"action": "finish"}, 400, "unknown_action"),
        ({"action": ["reset"]}, 400, "unknown_action"),
        ({"action": "reset"}, 400, "bad_task"),
        ({"action": "reset", "idx": "1"}, 400, "bad_task"),
        ({"action": "reset", "idx": True}, 400, "bad_task"),
        ({"action": "reset", "idx": 1.0}, 400, "bad_task"),
        ({"action": "reset", "idx": 0}, 400, "unknown_task"),
        ({"action": "reset", "idx": -1}, 400, "unknown_task"),
        ({"action": "reset", "idx": 1, "env_idx": 0}, 400, "env_idx_on_reset"),
        ({"action": "reset", "idx": 1, "if_persona": "false"}, 400, "bad_flag"),
        ({"action": "reset", "idx": 1, "interaction_mode": "chat"}, 400, "unknown_mode"),
        ({"action": "interact", "response": "search[x]"}, 400, "bad_env_idx"),
        ({"action": "interact", "response": "search[x]", "env_idx": 0}, 400, "no_lease_id"),
        ({"action": "interact", "response": "search[x]", "env_idx": False, "lease_id": "1"}, 400, "bad_env_idx"),
        ({"action": "interact", "response": "search[x]", **SLOT}, 409, "lease_not_held"),
        ({"action": "terminate", **SLOT}, 409, "lease_not_held"),
        ({"action": "release_one", **SLOT, "env_idx": 99}, 409, "lease_not_held"),
        ({"action": "heartbeat", **SLOT, "lease_id": "\ud800"}, 409, "lease_not_held"),
        ({"action": "release_all"}, 403, "release_all_refused"),
        ([], 400, "no_object"),
        (None, 400, "no_object"),
    ],
)
def test_a_wrong_request_is_refused_and_takes_no_slot(
    open_shop: Client, request_: object, status: int, code: str
) -> None:
    answer = httpx2.post(open_shop.url, content=json.dumps(request_))
    assert (answer.status_code, answer.json()["result"]["code"]) == (status, code)
    assert open_shop.health()["free_slots"] == 4


@pytest.fixture(scope="module")
def open_shop(shops: dict[str, EmbeddedShop]) -> Iterator[Client]:
    with serving(shops["en"]) as client:
        yield client


@pytest.mark.parametrize(
    ("method", "path", "content", "headers", "status", "code"),
    [
        ("POST", "/api/shop_agent", b"{", {}, 400, "invalid_json"),
        ("POST", "/api/shop_agent", b"\xff\xfe", {}, 400, "invalid_json"),
        ("POST", "/api/shop_agent", b"[" * 100_000, {}, 400, "invalid_json"),
        ("POST", "/api/shop_agent", b"", {"Content-Length": "none"}, 400, "invalid_length"),
        ("POST", "/api/shop_agent", b"", {"Content-Length": "99999999999"}, 400, "invalid_length"),
        ("GET", "/api/shop_agent", b"", {}, 404, "not_found"),
        ("POST", "/healthz", b"{}", {}, 404, "not_found"),
    ],
)
def test_what_is_no_request_is_refused(
    open_shop: Client, method: str, path: str, content: bytes, headers: dict[str, str], status: int, code: str
) -> None:
    with closing(http.client.HTTPConnection(*address(open_shop), timeout=5)) as connection:
        connection.request(method, path, content, headers)
        answer = connection.getresponse()
        assert (answer.status, json.loads(answer.read())["result"]["code"]) == (status, code)


@pytest.mark.parametrize("fields", [{}, {"response": None}, {"response": 3}])
def test_a_step_needs_a_text(open_shop: Client, fields: Json) -> None:
    _, lease = open_shop.reset(2)
    assert open_shop.refused("interact", **lease, **fields) == (400, "no_response")
    assert open_shop.refused("terminate", termination_reason="context_length", **lease) == (400, "unknown_reason")
    assert not open_shop.ask("interact", response="search[裙子]", **lease)["done"], "a refusal ends nothing"
    open_shop.ask("release_one", **lease)


def test_a_released_lease_is_over_and_touches_no_other(shop: EmbeddedShop) -> None:
    with serving(shop, slots=1) as client:
        _, old = client.reset(1)
        client.ask("release_one", **old)
        _, new = client.reset(2)
        assert new["env_idx"] == old["env_idx"] and new["lease_id"] != old["lease_id"]
        for action in ("interact", "terminate", "heartbeat", "release_one"):
            assert client.refused(action, response="search[x]", **old) == (409, "lease_not_held")
        assert client.ask("interact", response="search[x]", **new)["idx"] == "slot-0-2"


def test_all_slots_are_released_where_the_server_was_started_so(shop: EmbeddedShop) -> None:
    with serving(shop, allowed=Permissions(release_all=True)) as client:
        leases = [client.reset(number)[1] for number in (1, 2, 3)]
        assert client.ask("release_all")["message"].startswith("3 ")
        assert client.health()["free_slots"] == 4
        assert client.refused("release_one", **leases[0]) == (409, "lease_not_held")


def test_an_unused_lease_ends_and_a_heartbeat_keeps_one(shop: EmbeddedShop) -> None:
    time = FakeClock()
    with serving(shop, clock=time.clock) as client:
        (_, kept), (_, forgotten) = client.reset(1), client.reset(2)
        time.waits.append(500)
        assert client.ask("heartbeat", **kept) == {**kept, "lease_seconds": 600.0}
        time.waits.append(500)
        assert client.health()["free_slots"] == 3
        assert client.ask("interact", response="search[x]", **kept)["idx"] == "slot-0-1"
        assert client.refused("interact", response="search[x]", **forgotten) == (409, "lease_not_held")


def test_a_reset_waits_for_a_slot_for_a_bounded_time(shop: EmbeddedShop) -> None:
    time = FakeClock()
    with serving(shop, slots=1, clock=time.clock) as client:
        _, lease = client.reset(1)
        answer = httpx2.post(client.url, json={"action": "reset", "idx": 2})
        assert (answer.status_code, answer.json()["result"]["code"]) == (503, "no_free_slot")
        assert int(answer.headers["retry-after"]) > 0
        assert sum(time.waits) == pytest.approx(20)
        assert client.ask("interact", response="search[x]", **lease)["idx"] == "slot-0-1"


class Watched:
    """Real time that tells when somebody begins to wait."""

    def __init__(self) -> None:
        self.waiting = threading.Semaphore(0)
        self._seen = set[threading.Thread]()
        self.clock = replace(SYSTEM_CLOCK, sleep=self._sleep)

    def _sleep(self, seconds: float) -> None:
        if threading.current_thread() not in self._seen:
            self._seen.add(threading.current_thread())
            self.waiting.release()
        SYSTEM_CLOCK.sleep(seconds)


def test_who_hangs_up_while_waiting_gets_no_slot(shop: EmbeddedShop) -> None:
    """Three clients want one slot; the second leaves, so the third has it when the first is done."""
    watched = Watched()
    with serving(shop, slots=1, clock=watched.clock) as client, ThreadPoolExecutor(1) as pool:
        _, lease = client.reset(1)
        with socket.create_connection(address(client)) as leaving:
            leaving.sendall(request({"action": "reset", "idx": 2}))
            assert watched.waiting.acquire(timeout=10)
        third = Client(client.url)
        waiting = pool.submit(third.reset, 3)
        assert watched.waiting.acquire(timeout=10)
        client.ask("release_one", **lease)
        told, lease = waiting.result(timeout=10)
        assert told["idx"] == 3
        third.ask("release_one", **lease)
        assert client.health()["free_slots"] == 1
        third.close()


def test_who_hangs_up_before_the_answer_gets_no_slot(shop: EmbeddedShop, monkeypatch: pytest.MonkeyPatch) -> None:
    lent, left, freed = threading.Event(), threading.Event(), threading.Event()
    answer, release = Service.answer, Slots.release

    def slowly(*given: Any) -> Reply:
        reply = answer(*given)
        if reply.lease is not None:
            lent.set()
            assert left.wait(10)
        return reply

    def seen(slots: Slots, lease: Lease) -> bool:
        held = release(slots, lease)
        freed.set()
        return held

    monkeypatch.setattr(Service, "answer", slowly)
    monkeypatch.setattr(Slots, "release", seen)
    with serving(shop, slots=1) as client:
        with socket.create_connection(address(client)) as leaving:
            leaving.sendall(request({"action": "reset", "idx": 2}))
            assert lent.wait(10)
            assert client.health()["free_slots"] == 0
        left.set()
        assert freed.wait(10)
        assert client.health()["free_slots"] == 1


def here() -> bool:
    """Nobody has hung up."""
    return False


def test_slots_go_in_the_order_of_arrival(shop: EmbeddedShop) -> None:
    """While the first in line sleeps, a slot comes free: the second does not get it."""
    asleep, wake = threading.Event(), threading.Event()

    def sleep(_: float) -> None:
        asleep.set()
        assert wake.wait(10)

    slots, task = Slots(1, 600, replace(SYSTEM_CLOCK, sleep=sleep)), shop.catalogue.tasks["1"]
    session = shop.reset(task)
    held = slots.acquire(task, session, 0, here)
    assert held is not None
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(slots.acquire, task, session, 20, here)
        assert asleep.wait(10)
        assert slots.release(held) and not slots.release(held)
        assert slots.acquire(task, session, 0, here) is None
        wake.set()
        got = first.result(timeout=10)
    assert got is not None and slots.free == 0


def test_who_is_gone_leaves_the_queue(shop: EmbeddedShop) -> None:
    time, task = FakeClock(), shop.catalogue.tasks["1"]
    slots, session = Slots(1, 600, time.clock), shop.reset(task)
    assert slots.acquire(task, session, 20, lambda: True) is None and slots.free == 1
    assert slots.acquire(task, session, 20, here) is not None
    assert slots.acquire(task, session, 20, lambda: len(time.waits) == 3) is None
    assert len(time.waits) == 3, "it does not wait on"


def test_clients_at_once_shop_undisturbed(shop: EmbeddedShop) -> None:
    """Eight clients on three slots: every episode as in this process, one client silent in the middle of a request."""
    tasks = list(shop.catalogue.tasks.values())[:24]

    def over_http(url: str, task: Task) -> Json:
        with closing(Client(url)) as own:
            _, lease = own.reset(int(task.task_id))
            last = [own.ask("interact", response=action, **lease) for action in shopping(shop, task)][-1]
            own.ask("release_one", **lease)
            return last

    with serving(shop, slots=3) as client, socket.create_connection(address(client)) as silent:
        silent.sendall(b"POST /api/shop_agent HTTP/1.1\r\nContent-Length: 9\r\n\r\n{")
        with ThreadPoolExecutor(8) as pool:
            found = list(pool.map(partial(over_http, client.url), tasks))
        assert client.health()["free_slots"] == 3
    for task, last in zip(tasks, found, strict=True):
        session = shop.reset(task)
        expected = as_told([session.step(action) for action in shopping(shop, task)][-1], shop)
        assert {name: last[name] for name in expected} == expected


@given(
    st.sampled_from(["search", "Click"]), st.text(), st.sampled_from(["", "\nAction: click[x]", "\\nAction: click[x]"])
)
def test_what_begins_as_an_action_is_taken_whole(verb: str, argument: str, tail: str) -> None:
    action = f"{verb}[{argument}]{tail}"
    assert action_of(action) == action


@pytest.mark.parametrize(
    ("text", "action"),
    [
        ("Thought: cheap\nAction: search[dress]", "search[dress]"),
        ("先搜索。\\naction:  click[颜色=红]  ", "click[颜色=红]"),
        ("Action: search[a]\nAction: search[b]", "Action: search[a]\nAction: search[b]"),
        ("no action: here", "no action: here"),
        ("a\\nb", "a\\nb"),
        ("", ""),
    ],
)
def test_the_one_action_line_of_a_longer_text_counts(text: str, action: str) -> None:
    assert action_of(text) == action


def test_what_cannot_be_served_is_refused(shop: EmbeddedShop, open_shop: Client) -> None:
    named = replace(shop.catalogue, tasks={"a": shop.catalogue.tasks["1"].model_copy(update={"task_id": "a-1"})})
    odd = copy(shop)
    odd.catalogue = named
    with pytest.raises(ParameterError, match="'a-1'"):
        Service(odd, Slots(1, 60, SYSTEM_CLOCK))
    for count, seconds in ((0, 60.0), (1, 0.0), (1, float("inf")), (1, float("nan"))):
        with pytest.raises(ParameterError, match="leases of"):
            Slots(count, seconds, SYSTEM_CLOCK)
    for port in (address(open_shop)[1], 70_000):
        with pytest.raises(SetupError, match="cannot be had"):
            Server(Service(shop, Slots(1, 60, SYSTEM_CLOCK)), port)


def request(fields: Json) -> bytes:
    """The bytes of a request."""
    body = json.dumps(fields)
    return f"POST /api/shop_agent HTTP/1.1\r\nHost: shop\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode()


def address(client: Client) -> tuple[str, int]:
    url = httpx2.URL(client.url)
    assert url.port is not None
    return url.host, url.port


def command(*options: str) -> subprocess.Popen[str]:
    line = [sys.executable, "-m", "shopskill_lib.shops.serve", *options]
    return subprocess.Popen(line, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@contextmanager
def process(*options: str) -> Iterator[tuple[subprocess.Popen[str], Client]]:
    """The command as a process of its own, once it is ready."""
    with command(*options) as running:
        watch = threading.Timer(60, running.kill)
        watch.start()
        try:
            assert running.stdout is not None and running.stderr is not None
            line = running.stdout.readline()
            watch.cancel()
            found = re.fullmatch(r"shopskill-environment-v1 at (http://127\.0\.0\.1:\d+/api/shop_agent), .*\n", line)
            assert found, line + running.stderr.read()
            with closing(Client(found[1])) as client:
                yield running, client
        finally:
            watch.cancel()
            running.kill()


SMALL = ("--n-products", "1600", "--slots", "2")


@pytest.mark.parametrize("stop", [signal.SIGTERM, signal.SIGINT])
def test_the_command_serves_until_it_is_stopped(stop: signal.Signals) -> None:
    with process("--port", "0", *SMALL) as (running, client):
        _, lease = client.reset(1)
        assert client.health()["environment_slots"] == 2
        client.ask("interact", response="search[dress]", **lease)
        running.send_signal(stop)
        output, errors = running.communicate(timeout=20)
        assert (running.returncode, output, errors) == (0, "stopped\n", "")


def test_a_killed_server_starts_again_on_its_port(tmp_path: Path) -> None:
    kept = ("--index", str(tmp_path), *SMALL)
    with process("--port", "0", *kept) as (running, client):
        port = address(client)[1]
        _, lease = client.reset(1)
        before = client.health()["fingerprint"]
        running.kill()
        running.wait()
    with process("--port", str(port), *kept) as (_, client):
        assert client.health()["fingerprint"] == before
        assert client.refused("interact", response="search[x]", **lease) == (409, "lease_not_held")
        taken = command("--port", str(port), *kept)
        _, errors = taken.communicate(timeout=60)
        assert taken.returncode == 2 and errors.count("\n") == 1 and "--port" in errors


def test_a_real_catalogue_is_served(real_files: Path) -> None:
    product_file = real_files / "items_eval_train.json"
    with process("--port", "0", "--catalog", str(product_file), "--language", "zh") as (_, client):
        catalogue = load_catalogue(product_file)
        fingerprint = client.health()["fingerprint"]
        assert (fingerprint["catalogue"], fingerprint["tasks"]) == (
            catalogue.products_fingerprint, catalogue.tasks_fingerprint,
        )  # fmt: skip
        task = next(iter(catalogue.tasks.values()))
        told, _ = client.reset(int(task.task_id))
        assert told["task_instruction"] == task.instruction


def test_a_wrong_option_is_one_message() -> None:
    for option in (("--slots", "many"), ("--slots", "0", "--n-products", "1600"), ("--catalog", "missing.json")):
        wrong = command("--port", "0", *option)
        _, errors = wrong.communicate(timeout=60)
        assert wrong.returncode == 2 and errors.count("\n") == 1, errors
