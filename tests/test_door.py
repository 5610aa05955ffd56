import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from scripted import FakeClock
from stopping import until
from v8_fixture import Fault, Reply, Request, v8_server

from shopskill_lib.clock import SYSTEM_CLOCK
from shopskill_lib.errors import ParameterError, SetupError
from shopskill_lib.shops.door import Door, Json, RefusalError, UnreachableError, base_of

OK = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 22\r\n\r\n"
BODY = b'{"result": {"a": "b"}}'


@contextmanager
def raw_server(*answers: Callable[[socket.socket], object]) -> Iterator[str]:
    """Answer each connection in turn by writing to it as it is; the last way repeats."""
    listener = socket.create_server(("127.0.0.1", 0))
    over = threading.Event()

    def serve() -> None:
        number = 0
        while not over.is_set():
            connection, _ = listener.accept()
            with connection:
                connection.recv(65536)
                if not over.is_set():
                    answers[min(number, len(answers) - 1)](connection)
                number += 1

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        over.set()
        with socket.create_connection(listener.getsockname()):
            pass
        thread.join()
        listener.close()


def opened(url: str, timeout: float = 5.0, clock: FakeClock | None = None) -> Door:
    return Door(url, timeout=timeout, clock=SYSTEM_CLOCK if clock is None else clock.clock, connections=4)


def drip(connection: socket.socket) -> None:
    """Send the body byte by byte, each well before a read would time out."""
    connection.sendall(OK)
    for byte in BODY:
        try:
            connection.sendall(bytes([byte]))
        except OSError:
            return
        time.sleep(0.03)


def mute(connection: socket.socket, said: bytes) -> None:
    """Say this and nothing more until the client has gone."""
    connection.sendall(said)
    while connection.recv(1024):
        pass


UNANSWERED: dict[str, tuple[Callable[[socket.socket], object], bool]] = {
    "closed at once": (lambda connection: connection.shutdown(socket.SHUT_RDWR), False),
    "closed in the headers": (lambda connection: connection.sendall(OK[:20]), False),
    "closed in the body": (lambda connection: connection.sendall(OK + BODY[:5]), False),
    "silence": (lambda connection: mute(connection, b""), True),
    "headers, then silence": (lambda connection: mute(connection, OK), True),
    "a byte at a time": (drip, True),
    "no HTTP": (lambda connection: connection.sendall(b"SSH-2.0-OpenSSH\r\n"), False),
}


@pytest.mark.parametrize("name", UNANSWERED)
def test_a_request_without_an_answer_may_have_been_carried_out(name: str) -> None:
    way, late = UNANSWERED[name]
    with raw_server(way) as url, pytest.raises(UnreachableError) as caught:
        opened(url, 0.2).ask({"action": "interact"})
    assert (caught.value.sent, caught.value.late) == (True, late)


def test_a_refused_connection_has_sent_nothing() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with pytest.raises(UnreachableError) as caught:
        opened(f"http://127.0.0.1:{port}").ask({"action": "reset"})
    assert (caught.value.sent, caught.value.late) == (False, False)


def plain(body: bytes, status: str = "200 OK") -> Callable[[socket.socket], object]:
    head = f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    return lambda connection: connection.sendall(head + body)


REFUSED: dict[str, tuple[Callable[[socket.socket], object], int, str, bool]] = {
    "HTML": (plain(b"<html>It works</html>"), 200, "<html>It works</html>", False),
    "empty": (plain(b""), 200, "the body is empty", False),
    "a list": (plain(b"[1]"), 200, "[1]", False),
    "cut JSON": (plain(b'{"result": {"a"'), 200, '{"result": {"a"', False),
    "no result": (plain(b'{"ok": true}'), 200, '{"ok": true}', False),
    "not UTF-8": (plain(b"\xff\xfe"), 200, "\ufffd\ufffd", False),
    "an error in 200": (plain('{"result": {"error": "没有空位"}}'.encode()), 200, "没有空位", True),
    "an own 409": (plain(b'{"result": {"error": "stale"}}', "409 CONFLICT"), 409, "stale", True),
    "an HTML 500": (plain(b"<h1>Oops</h1>", "500 X"), 500, "<h1>Oops</h1>", False),
    "a 500 with a page": (plain(BODY, "500 X"), 500, BODY.decode(), False),
    "redirected": (plain(b"", "302 Found"), 302, "the body is empty", False),
}


@pytest.mark.parametrize("name", REFUSED)
def test_an_answer_that_is_an_error_says_what_it_is(name: str) -> None:
    way, status, text, own = REFUSED[name]
    with raw_server(way) as url, pytest.raises(RefusalError) as caught:
        opened(url).ask({"action": "interact"})
    assert (caught.value.status, caught.value.text, caught.value.own) == (status, text, own)


def test_no_proxy_of_the_environment_stands_between(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("ALL_PROXY", "http://127.0.0.1:9")
    with raw_server(plain(BODY)) as url:
        assert opened(url).ask({"action": "interact"}) == {"a": "b"}


def test_what_nobody_waits_for_any_more_is_still_taken() -> None:
    free = threading.Event()
    taken: list[Json | Exception] = []

    def hold(connection: socket.socket) -> None:
        free.wait(5)
        connection.sendall(OK + BODY)

    with raw_server(hold) as url:
        with pytest.raises(UnreachableError, match=r"no answer in 0\.1 s"):
            opened(url, 0.1).ask_waiting({"action": "reset"}, taken.append)
        assert not taken
        free.set()
        until(lambda: len(taken) == 1)
    assert taken == [{"a": "b"}]


def test_a_server_that_is_gone_for_good_is_given_up_with_its_cause() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    clock = FakeClock()
    door = opened(f"http://127.0.0.1:{port}", clock=clock)
    for _ in range(5):
        with pytest.raises(UnreachableError):
            door.ask({"action": "reset"})
    with pytest.raises(SetupError, match=r"it has not answered for .* seconds, the last time so: ConnectError"):
        for _ in range(100):
            door.ask({"action": "reset"})
    assert sum(clock.waits) >= 300


def test_a_server_that_is_down_is_asked_for_its_health_until_it_answers() -> None:
    def before(request: Request) -> Fault | None:
        return Fault(Reply(503, b""), drop=True) if request.number <= 7 else None

    clock = FakeClock()
    with v8_server(before=before) as server:
        door = opened(server.url, clock=clock)
        for _ in range(5):
            with pytest.raises(UnreachableError):
                door.ask({"action": "reset", "idx": 1830})
        assert door.ask({"action": "reset", "idx": 1830})["message"] == "Task 1830 started"
        assert [request.path for request in server.requests[5:]] == ["/healthz"] * 3 + ["/api/shop_agent"]
    assert clock.waits == [1.0, 2.0, 4.0]


@pytest.mark.parametrize(
    ("url", "base"),
    [
        ("http://127.0.0.1:5700", "http://127.0.0.1:5700"),
        (" http://127.0.0.1:5700/api/shop_agent/ ", "http://127.0.0.1:5700"),
        ("https://shop.test/lab/api/shop_agent", "https://shop.test/lab"),
    ],
)
def test_a_url_is_taken_with_or_without_the_route(url: str, base: str) -> None:
    assert base_of(url) == base


@pytest.mark.parametrize("url", ["127.0.0.1:5700", "", "ftp://x"])
def test_what_is_no_url_is_refused(url: str) -> None:
    with pytest.raises(ParameterError, match="shop_url is"):
        base_of(url)


def test_requests_are_ascii_so_that_no_server_guesses_an_encoding() -> None:
    heard: list[bytes] = []
    with v8_server(before=lambda request: heard.append(request.raw)) as server, pytest.raises(RefusalError):
        opened(server.url).ask({"action": "interact", "response": "search[耳机]", "env_idx": 0, "lease_id": "x"})
    assert heard[0].isascii() and json.loads(heard[0])["response"] == "search[耳机]"
