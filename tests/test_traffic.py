import resource
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scripted import FakeClock

from shopskill_lib.errors import SetupError
from shopskill_lib.traffic import IN_A_ROW, RESERVED, Traffic


class Server:
    """Answers by a list of outcomes, then well; knows how many requests it had, and how many at once at most."""

    def __init__(self, traffic: Traffic, outcomes: str = "") -> None:
        """Each letter is an outcome: a(nswered), f(ailed), o(verloaded)."""
        self.traffic, self._outcomes = traffic, iter(outcomes)
        self._lock = threading.Lock()
        self.requests = self._running = self.most = 0

    def ask(self, rest: Callable[[], None] = lambda: None) -> str:
        """Make one request, and say what came of it."""
        with self.traffic.turn():
            with self._lock:
                self.requests += 1
                self._running += 1
                self.most = max(self.most, self._running)
                outcome = next(self._outcomes, "a")
            rest()
            with self._lock:
                self._running -= 1
            if outcome == "a":
                self.traffic.succeeded()
            else:
                self.traffic.failed("no answer", overloaded=outcome == "o")
        return outcome

    def insist(self) -> None:
        """Ask until there is an answer."""
        while self.ask() != "a":
            pass


def together(count: int, work: Callable[[], object]) -> list[BaseException | None]:
    """Do the same on threads, all begun before any may end; return what each raised."""
    barrier = threading.Barrier(count)

    def begin() -> None:
        barrier.wait(20)
        work()

    with ThreadPoolExecutor(count) as pool:
        futures: list[Future[None]] = [pool.submit(begin) for _ in range(count)]
        return [future.exception(20) for future in futures]


def put_down(server: Server) -> None:
    """Let it fail until it counts as down."""
    for _ in range(IN_A_ROW):
        server.ask()
    assert server.traffic.down


@given(st.text("aaafo", max_size=60), st.integers(1, 6), st.integers(1, 9))
@settings(deadline=None, max_examples=40)
def test_never_more_at_once_than_admitted_and_everybody_is_answered(outcomes: str, most: int, threads: int) -> None:
    server = Server(Traffic("s", FakeClock().clock, most=most, patience=1e9), outcomes)
    assert together(threads, server.insist) == [None] * threads
    assert server.most <= most and 1 <= server.traffic.at_once <= most and not server.traffic.down


@given(st.integers(1, 8))
@settings(deadline=None, max_examples=20)
def test_a_lowered_limit_holds(most: int) -> None:
    traffic = Traffic("s", FakeClock().clock, most=most)
    with ExitStack() as turns:
        for _ in range(most):
            turns.enter_context(traffic.turn())
        traffic.failed("busy", overloaded=True)
    running, seen, lock = [0], list[int](), threading.Lock()

    def pass_through() -> None:
        for _ in range(20):
            with traffic.turn():
                with lock:
                    running[0] += 1
                    seen.append(running[0])
                with lock:
                    running[0] -= 1

    assert together(8, pass_through) == [None] * 8
    assert traffic.at_once == max(1, most // 2) >= max(seen)


@given(st.integers(1, 12), st.integers(1, 6))
@settings(deadline=None, max_examples=20)
def test_everybody_gets_out_of_a_server_that_stays_down(threads: int, most: int) -> None:
    time = FakeClock()
    server = Server(Traffic("the shop", time.clock, most=most, patience=300), "f" * 100_000)
    raised = together(threads, server.insist)
    assert [type(error) for error in raised] == [SetupError] * threads
    assert "the shop: it has not answered for 300 seconds, the last time so: no answer" in str(raised[0])
    assert server.requests <= IN_A_ROW + threads + 20 and sum(time.waits) == 300


def test_one_caller_probes_after_growing_pauses_while_the_others_wait() -> None:
    time = FakeClock()
    server = Server(Traffic("s", time.clock), "f" * (IN_A_ROW + 7))
    put_down(server)
    server.most = 0
    assert together(6, server.insist) == [None] * 6
    assert time.waits == [1, 2, 4, 8, 16, 30, 30, 30] and not server.traffic.down


def test_a_server_is_down_by_failures_in_a_row_over_all_callers() -> None:
    server = Server(Traffic("s", FakeClock().clock), "ffffaffffaf")
    for _ in range(11):
        server.ask()
        assert not server.traffic.down


def test_a_late_answer_to_anybody_ends_the_outage() -> None:
    time = FakeClock()
    server = Server(Traffic("s", time.clock), "f" * IN_A_ROW)
    with server.traffic.turn():
        put_down(server)
        server.traffic.succeeded()
    assert not server.traffic.down
    server.ask()
    assert time.waits == []


def test_a_probe_waits_as_long_as_the_server_asked() -> None:
    time = FakeClock()
    traffic = Traffic("s", time.clock, patience=300)
    for _ in range(IN_A_ROW):
        with traffic.turn():
            traffic.failed("429", wait=120)
    with traffic.turn():
        traffic.failed("429", wait=120)
    with traffic.turn():
        traffic.failed("429", wait=120)
    with pytest.raises(SetupError, match="300 seconds"), traffic.turn():
        traffic.failed("429", wait=120)
    assert time.waits == [120, 120, 60]


def test_a_probe_of_its_own_spares_the_callers() -> None:
    """A request that always fails does not look like a server that is down."""
    answers = iter([False, False, True, True])

    def probe(traffic: Traffic) -> None:
        if next(answers):
            traffic.succeeded()
        else:
            traffic.failed("still starting")

    time = FakeClock()
    server = Server(Traffic("s", time.clock, probe=probe), "f" * (2 * IN_A_ROW))
    put_down(server)
    for _ in range(IN_A_ROW):
        server.ask()
    assert time.waits == [1, 2, 4] and server.traffic.down
    assert server.ask() == "a" and time.waits == [1, 2, 4, 1]


def test_a_probe_of_its_own_gives_the_server_up_too() -> None:
    time = FakeClock()
    server = Server(Traffic("s", time.clock, patience=20, probe=lambda traffic: traffic.failed("gone")), "f" * IN_A_ROW)
    put_down(server)
    raised = together(4, server.ask)
    assert [str(error)[:60] for error in raised] == ["s: it has not answered for 20 seconds, the last time so: gon"] * 4
    assert server.requests == IN_A_ROW and time.waits[:5] == [1, 2, 4, 8, 5]
    assert set(time.waits[5:]) <= {0}  # of threads that came after it was given up


def test_after_it_was_given_up_a_new_caller_is_told_at_once_and_a_server_that_is_back_is_used() -> None:
    time = FakeClock()
    server = Server(Traffic("s", time.clock, patience=3), "f" * (IN_A_ROW + 3))
    put_down(server)
    with pytest.raises(SetupError):
        server.insist()
    waited = list(time.waits)
    with pytest.raises(SetupError):
        server.ask()
    server.ask()
    assert time.waits == [*waited, 0, 0] and not server.traffic.down


def test_a_prober_that_is_interrupted_lets_another_probe() -> None:
    def interrupted(_: Traffic) -> None:
        raise KeyboardInterrupt

    time = FakeClock()
    traffic = Traffic("s", time.clock, most=1, probe=interrupted)
    put_down(Server(traffic, "f" * IN_A_ROW))
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt), traffic.turn():
            raise AssertionError("not reached")


def test_overload_lowers_once_a_burst_and_says_so_once(capsys: pytest.CaptureFixture[str]) -> None:
    traffic = Traffic("the model", FakeClock().clock, most=8)
    for _ in range(2):  # the second time nothing is said: it is no lower than before
        with ExitStack() as turns:
            for _ in range(8):
                turns.enter_context(traffic.turn())
            for _ in range(8):
                traffic.failed("HTTP 429", overloaded=True)
                traffic.succeeded()
        assert 4 <= traffic.at_once < 8
        for _ in range(30):
            traffic.succeeded()
        assert traffic.at_once == 8
    assert capsys.readouterr().err == "\nthe model is overloaded (HTTP 429): fewer requests at once, 4 for now\n"


@pytest.fixture
def files_limit() -> Iterator[Callable[[int], None]]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield lambda files: resource.setrlimit(resource.RLIMIT_NOFILE, (files, hard))
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_the_limit_of_open_files_bounds_the_requests(
    files_limit: Callable[[int], None], capsys: pytest.CaptureFixture[str]
) -> None:
    files_limit(256)
    assert Traffic("s", FakeClock().clock, most=256).at_once == (256 - RESERVED) // 2 == 96
    assert "s: 96 requests at once instead of 256, as this process may open 256 files only" in capsys.readouterr().err
    assert Traffic("s", FakeClock().clock, most=96).at_once == 96 and capsys.readouterr().err == ""
