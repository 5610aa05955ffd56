import io
import json
import shlex
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from old_servers import old_server
from scripted import Json
from stopping import until
from v8_fixture import V8, Fault, Reply, Request, v8_server
from v8_shop import PRODUCTS, STANDARD_TASK

from shopskill_lib.clock import SYSTEM_CLOCK
from shopskill_lib.errors import InputError, OutputError
from shopskill_lib.shops import leases
from shopskill_lib.shops.catalog import Catalogue, load_catalogue
from shopskill_lib.shops.door import Door
from shopskill_lib.shops.embedded import EmbeddedShop
from shopskill_lib.shops.leases import Ledger, Places
from shopskill_lib.shops.shopsimulator import connect


@pytest.fixture(scope="module")
def products(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("goods") / "products.json"
    path.write_text(json.dumps(PRODUCTS, ensure_ascii=False), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def goods(products: Path) -> Catalogue:
    return load_catalogue(products)


@contextmanager
def holding(url: str, folder: Path, products: Path, slots: int) -> Iterator["subprocess.Popen[bytes]"]:
    """A process that holds slots, and is killed at the latest when it is left."""
    script = Path(__file__).with_name("child_shop.py")
    command = [sys.executable, str(script), url, str(folder), str(products), str(slots)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None and process.stdout.readline() == b"held\n"
            yield process
        finally:
            process.kill()


def test_a_killed_run_leaves_no_lease_of_v8(
    goods: Catalogue, products: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    resets: list[int] = []
    reached, opened = threading.Event(), threading.Event()

    def hold_the_third(request: Request) -> Fault | None:
        if request.body and request.body["action"] == "reset":
            resets.append(request.number)
            if len(resets) == 3:
                reached.set()
                return Fault(hold=opened)
        return None

    task = goods.tasks[str(STANDARD_TASK)]
    with v8_server(slots=5, before=hold_the_third) as server:
        with holding(server.url, tmp_path, products, 2) as child:
            assert reached.wait(10)
            connect(server.url, goods, tmp_path).reset(task).close()
            assert "left by a process" not in capsys.readouterr().err, "its process lives"
            child.send_signal(signal.SIGKILL)
            child.wait(10)
        opened.set()
        assert len(server.leases.active) == 3
        shop = connect(server.url, goods, tmp_path)
        shop.reset(task).close()
        said = capsys.readouterr().err
        assert said.count("left by a process that is gone: slot") == said.count("it has been freed") == 2
        assert said.count(f"a reset of task {STANDARD_TASK} at {server.url} without an answer") == 1
        assert len(server.leases.active) == 1, "the one whose lease was never told"
        shop.reset(task).close()
        connect(server.url, goods, tmp_path).reset(task).close()
        assert "left by" not in capsys.readouterr().err and not list(tmp_path.glob("slots-*"))


def test_slots_of_a_fork_are_named_with_the_request_that_frees_them(
    goods: Catalogue, products: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shop = EmbeddedShop(goods, tmp_path / "index")
    with old_server(shop, "fork", slots=4) as server:
        with holding(server.url, tmp_path, products, 2):
            until(lambda: len(server.taken) == 3)
        connect(server.url, goods, tmp_path).reset(goods.tasks[str(STANDARD_TASK)]).close()
        said = capsys.readouterr().err
        assert server.taken == {0, 1, 2}, "nobody but their holder may free them"
        for slot in (0, 1):
            assert f'\'{{"action": "release_one", "env_idx": {slot}}}\'' in said
        *_, url, _, kind, _, body = shlex.split(said.split("free it with ")[1].split("\n")[0])
        request = urllib.request.Request(url, body.encode(), dict([kind.split(": ")]))
        with urllib.request.urlopen(request) as answer:
            assert b"Environment 0 has been released" in answer.read()
        assert server.taken == {1, 2}


def orphan(folder: Path, url: str, lease: str | None) -> Path:
    """The file of a process that held slot 3 for task 7, asked for task 8, and is gone: nobody locks it."""
    ledger = Ledger(folder, url)
    ledger.held(ledger.asked("7"), 3, lease)
    ledger.asked("8")
    (written,) = folder.glob("slots-*")
    path = folder / "slots-gone.jsonl"
    path.write_bytes(written.read_bytes())
    for number in (1, 2):
        ledger.over(number)
    return path


def recovered(folder: Path, url: str) -> list[str]:
    out = io.StringIO()
    leases.recover(folder, Door(url, timeout=1, clock=SYSTEM_CLOCK, connections=1), out)
    return out.getvalue().splitlines()


def test_what_another_server_lent_is_named_only(tmp_path: Path) -> None:
    path = orphan(tmp_path, "http://gone.test:1", "abc")
    first, second = recovered(tmp_path, "http://127.0.0.1:9")
    assert first == "left by a process that is gone: slot 3 at http://gone.test:1, task 7, under lease abc"
    assert "a reset of task 8 at http://gone.test:1 without an answer" in second
    assert not path.exists() and recovered(tmp_path, "http://127.0.0.1:9") == []


def test_a_lease_that_cannot_be_freed_is_named(tmp_path: Path) -> None:
    orphan(tmp_path, "http://127.0.0.1:9", "abc")
    assert "under lease abc; it could not be freed (ConnectError" in recovered(tmp_path, "http://127.0.0.1:9")[0]


def test_a_torn_line_is_no_obstacle_and_a_damaged_one_is_named(tmp_path: Path) -> None:
    path = orphan(tmp_path, "http://127.0.0.1:9", None)
    whole = path.read_bytes()
    path.write_bytes(whole.splitlines()[0] + b"\nnonsense\n" + whole)
    with pytest.raises(InputError, match="line 2"):
        recovered(tmp_path, "http://127.0.0.1:9")
    path.write_bytes(whole[:-20])
    (line,) = recovered(tmp_path, "http://127.0.0.1:9")
    assert "slot 3" in line


@settings(max_examples=40, deadline=None)
@given(st.lists(st.sampled_from(["ask", "hold", "end"]), max_size=20))
def test_the_ledger_lists_what_is_held(tmp_path_factory: pytest.TempPathFactory, events: list[str]) -> None:
    folder = tmp_path_factory.mktemp("ledger")
    ledger = Ledger(folder, "http://127.0.0.1:9")
    asked, held = list[int](), list[int]()
    for event in events:
        if event == "ask":
            asked.append(ledger.asked("7"))
        elif event == "hold" and asked:
            held.append(asked.pop(0))
            ledger.held(held[-1], 4, None)
        elif event == "end" and (held or asked):
            ledger.over((held or asked).pop(0))
    listed: dict[int, str] = {}
    for path in folder.glob("slots-*"):
        for line in path.read_text().splitlines():
            document: Json = json.loads(line)
            listed[document["number"]] = document["event"]
    open_ = {number: event for number, event in listed.items() if event != "over"}
    assert open_ == dict.fromkeys(asked, "asked") | dict.fromkeys(held, "held")
    assert bool(list(folder.glob("slots-*"))) == bool(asked or held)
    for number in (*asked, *held):
        ledger.over(number)


def test_a_ledger_that_cannot_be_written_stops_the_run(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="the slots that are held cannot be written down"):
        Ledger(tmp_path / "file" / "run", "http://127.0.0.1:9").asked("7")


def test_never_more_places_than_the_server_has(capsys: pytest.CaptureFixture[str]) -> None:
    places, lock = Places("server", 16), threading.Lock()
    places.cap(3)
    now, most = 0, 0

    def visit(_: int) -> None:
        nonlocal now, most
        places.take()
        with lock:
            now += 1
            most = max(most, now)
        time.sleep(0.001)
        with lock:
            now -= 1
        places.give_back()

    with ThreadPoolExecutor(16) as pool:
        list(pool.map(visit, range(100)))
    assert most == 3
    said = "has 3 slots for this run, 16 episodes at once were asked for: 3 at a time"
    assert capsys.readouterr().err.count(said) == 1


def test_places_come_back_one_by_one() -> None:
    places = Places("server", 4)
    for _ in range(4):
        places.take()
    places.lower(0)
    for _ in range(4):
        places.give_back()
    for _ in range(leases.RECOVERY - 4):
        places.take()
        places.give_back()
    places.take()
    places.take()
    with ThreadPoolExecutor() as pool:
        third = pool.submit(places.take)
        with pytest.raises(TimeoutError):
            third.result(0.05)
        places.give_back()
        third.result(5)


def test_a_lease_is_kept_alive_while_the_model_thinks(goods: Catalogue, tmp_path: Path) -> None:
    beats: list[Json] = []
    servers: list[V8] = []

    def before(request: Request) -> Fault | None:
        if request.path == "/healthz":
            return Fault(Reply(200, json.dumps(servers[0].health() | {"lease_seconds": 0.15}).encode()))
        if request.body["action"] == "heartbeat":
            beats.append(request.body)
        return None

    with v8_server(before=before) as server:
        servers.append(server)
        session = connect(server.url, goods, tmp_path).reset(goods.tasks[str(STANDARD_TASK)])
        until(lambda: len(beats) >= 2)
        session.close()
        (lease,) = {event.lease_id for event in server.leases.events}
        assert beats[0] == {"action": "heartbeat", "env_idx": 0, "lease_id": lease} and not server.odd_leases
        until(lambda: "shop-leases" not in {thread.name for thread in threading.enumerate()})
