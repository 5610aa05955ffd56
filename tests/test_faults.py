"""What servers do at night: killed, refused, throttled, out of order. Nothing is lost and nothing is invented."""

import json
import random
import signal
import subprocess
import sys
import threading
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from casework import SKILL, bench_of
from scripted import (
    HANG_UP,
    PONG,
    Answer,
    FakeClock,
    FastClock,
    Json,
    buyer,
    completion,
    failure,
    is_probe,
    scripted,
    serve,
)
from stopping import Gate
from test_rollouts import SKILL as HINTS
from test_rollouts import Bench, request_of

from shopskill_lib import protocol
from shopskill_lib.clock import Clock
from shopskill_lib.errors import OutputError, SetupError
from shopskill_lib.models import ChatModel, Endpoint, connect
from shopskill_lib.pools import Pool
from shopskill_lib.records import Episode
from shopskill_lib.rollouts import load, run
from shopskill_lib.shops.embedded import EmbeddedShop
from shopskill_lib.shops.generator import generate_catalogue
from shopskill_lib.store import Store, read_calls

HERE = Path(__file__).parent
MODEL = "simulated-hasty"


@pytest.fixture
def en(shops: dict[str, EmbeddedShop]) -> EmbeddedShop:
    return shops["en"]


@contextmanager
def connected(url: str, clock: Clock) -> Iterator[ChatModel]:
    with closing(connect(Endpoint(url=url, model=MODEL, checkpoint="c1"), clock=clock)) as model:
        yield model


def at(bench: Bench, model: ChatModel) -> Bench:
    """The bench with a model of its own."""
    bench.agent = replace(bench.agent, model=model)
    return bench


def attempts(folder: Path, arm: str = "bare") -> list[Episode]:
    return [stored.episode for found in Store(folder).attempts(arm).values() for stored in found]


def end(body: Json) -> Answer:
    """Tokens that run out: an episode of one call."""
    return PONG if is_probe(body) else completion(text="so", finish="length", usage=USAGE)


USAGE = {"prompt_tokens": 10, "completion_tokens": 512}


class Child:
    """A server in a process of its own, which dies at one of its requests and can be started again."""

    def __init__(self, dies_at: int) -> None:
        self._lock = threading.Lock()
        self.port, self.restarts = 0, 0
        self.start(dies_at)

    def start(self, dies_at: int = 0) -> None:
        command = [sys.executable, str(HERE / "server_child.py"), str(self.port), str(dies_at)]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.port = int(self.process.stdout.readline())

    def restart(self) -> None:
        """Start it again, once, on the same port."""
        with self._lock:
            if not self.restarts:
                assert self.process.wait(20) == -signal.SIGKILL
                self.close()
                self.start()
                self.restarts = 1

    def close(self) -> None:
        self.process.kill()
        self.process.communicate(timeout=20)


def test_a_server_that_is_killed_and_started_again_costs_nothing(en: EmbeddedShop, tmp_path: Path) -> None:
    server, time = Child(dies_at=25), FakeClock()

    def sleep(seconds: float) -> None:
        if seconds >= 4:  # long after it died
            server.restart()
        time.waits.append(seconds)

    with connected(f"http://127.0.0.1:{server.port}/v1", replace(time.clock, sleep=sleep)) as model:
        bench = at(Bench(en), model)
        found = bench.run(bench.plan(60), tmp_path, threads=8)
    server.close()
    assert server.restarts == 1 and len(found.scored) == 60
    assert [episode.attempt for episode in attempts(tmp_path)] == [1] * 60
    assert Counter(call.outcome for call in read_calls(tmp_path)) == {"ending": 60}


def test_a_server_that_refuses_everybody_costs_minutes_and_no_attempt(en: EmbeddedShop, tmp_path: Path) -> None:
    time = FakeClock()
    with connected("http://127.0.0.1:9/v1", time.clock) as model:
        bench = at(Bench(en), model)
        with pytest.raises(SetupError, match=r"has not answered for 3\d\d seconds, the last time so: Connection error"):
            bench.run(bench.plan(40), tmp_path, threads=16)
        assert not attempts(tmp_path) and len(time.waits) < 100
    with serve(end) as server, connected(server.url, time.clock) as model:
        assert len(at(bench, model).run(bench.plan(40), tmp_path).scored) == 40


def test_a_limit_that_is_never_lifted_stops_with_its_cause(
    en: EmbeddedShop, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    counts = iter(range(1, 10**6))
    quota = failure(429, "daily quota", Retry_After="120")
    time = FakeClock()
    with (
        serve(lambda body: end(body) if next(counts) <= 30 else quota) as server,
        connected(server.url, time.clock) as model,
    ):
        bench = at(Bench(en), model)
        with pytest.raises(SetupError, match="the last time so: HTTP 429: daily quota"):
            bench.run(bench.plan(40, samples=2), tmp_path, threads=16)
        assert model.traffic.at_once == 1
    assert [episode.status for episode in attempts(tmp_path)] == ["scored"] * 30
    told = capsys.readouterr().err
    assert "is overloaded (HTTP 429: daily quota): fewer requests at once" in told
    assert told.count("refuses for its rate or quota (HTTP 429: daily quota): waiting, 300 s at most") == 1


def test_bursts_of_errors_are_survived(en: EmbeddedShop, tmp_path: Path) -> None:
    counts = iter(range(10**6))

    def bursting(body: Json) -> Answer:
        return failure(500) if next(counts) % 40 < 15 else buyer(body)

    with serve(bursting) as server, connected(server.url, FastClock().clock) as model:
        bench = at(Bench(en), model)
        found = bench.run(bench.plan(30), tmp_path, threads=8)
    calm = Bench(en)
    unbroken = calm.run(calm.plan(30), tmp_path / "calm")
    assert found.mean_reward == unbroken.mean_reward and len(found.scored) == 30


def test_payment_that_one_arm_needs_stops_all_and_keeps_all(en: EmbeddedShop, tmp_path: Path) -> None:
    paid: list[bool] = []

    def script(body: Json) -> Answer:
        return failure(402, "credit is used up") if "<hint" in str(body["messages"]) and not paid else buyer(body)

    bench = Bench(en, script)
    plan = [*bench.plan(8), *bench.plan(8, "masked", HINTS)]
    with pytest.raises(SetupError, match=r"asks for payment \(HTTP 402: credit is used up\)"):
        run(plan, bench.agent, tmp_path, rollout_seed=0, stage="gate_a", threads=2)
    kept = load(plan, bench.agent, tmp_path, rollout_seed=0)
    assert kept["bare"].scored and not kept["masked"].episodes and len(kept["masked"].owed) == 8
    paid.append(True)
    bench.asked.clear()
    whole = run(plan, bench.agent, tmp_path, rollout_seed=0, stage="gate_a")
    assert [len(found.scored) for found in whole.values()] == [8, 8]
    before = {episode.identity for episode in kept["bare"].scored}
    bought = [e for found in whole.values() for e in found.scored if e.identity not in before]
    assert len(bench.asked) == sum(len(episode.steps) for episode in bought)


def test_a_clock_that_jumps_back_changes_nothing(en: EmbeddedShop, tmp_path: Path) -> None:
    time = FakeClock()
    jumps = iter(range(10**6))
    clock = replace(time.clock, now=lambda: time.clock.now() - timedelta(hours=next(jumps)))
    late = failure(429, Retry_After="Thu, 01 Jan 2026 00:00:50 GMT")
    answers = iter([late, late])
    bench = Bench(en, lambda body: next(answers, None) or buyer(body), clock=clock)
    found = bench.run(bench.plan(6), tmp_path, threads=2)
    assert len(found.scored) == 6 and sum(time.waits) <= 2 * 301
    assert any(episode.ended_at < episode.started_at for episode in found.scored)
    assert all(step.seconds >= 0 for episode in found.scored for step in episode.steps)
    assert len(bench.run(bench.plan(6), tmp_path).scored) == 6


def test_a_cell_that_runs_twice_buys_once(en: EmbeddedShop, tmp_path: Path) -> None:
    """As in a notebook: the same call with the same objects, after an outage and after a success."""
    up: list[bool] = []
    asked: list[str] = []

    def script(body: Json) -> Answer:
        if len(asked) > 20 and not up:
            return failure(503)
        if not is_probe(body):
            asked.append(request_of(body))
        return end(body)

    with serve(script) as server, connected(server.url, FakeClock().clock) as model:
        bench = at(Bench(en), model)
        with pytest.raises(SetupError, match="HTTP 503"):
            bench.run(bench.plan(40), tmp_path)
        up.append(True)
        found = bench.run(bench.plan(40), tmp_path)
        assert len(found.scored) == len(asked) == 40
        assert bench.run(bench.plan(40), tmp_path) == found and len(asked) == 40


def test_a_cell_that_runs_in_two_threads_buys_once(en: EmbeddedShop, tmp_path: Path) -> None:
    gate = Gate(10, end)
    bench = Bench(en, gate)
    first = threading.Thread(target=bench.run, args=(bench.plan(40), tmp_path))
    first.start()
    assert gate.reached.wait(20)
    with pytest.raises(OutputError, match="in use by process"):
        bench.run(bench.plan(40), tmp_path)
    gate.opened.set()
    first.join(20)
    assert len(bench.run(bench.plan(40), tmp_path).scored) == len(bench.asked) == 40


def test_256_episodes_at_once_with_256_files(tmp_path: Path) -> None:
    with serve(end) as server:
        command = [
            sys.executable,
            str(HERE / "child_crowd.py"),
            server.url,
            str(tmp_path / "run"),
            str(tmp_path),
            "256",
        ]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert "over 256 scored of 256 episodes; 0 owed, 0 missing" in done.stdout
    assert "96 requests at once instead of 256, as this process may open 256 files only" in done.stderr
    assert len(attempts(tmp_path / "run")) == 256


FAULTS: tuple[Callable[[Answer], Answer], ...] = (
    lambda _: HANG_UP,
    lambda good: good._replace(cut=len(good.body) // 2),
    lambda good: good._replace(cut=0),
    lambda _: failure(500),
    lambda _: failure(502, "<html>Bad gateway</html>"),
    lambda _: failure(503, Retry_After="1"),
    lambda _: failure(408),
    lambda _: failure(429, Retry_After="2"),
    lambda _: Answer(b""),
    lambda _: Answer("<html>维护中</html>".encode(), headers={"Content-Type": "text/html"}),
    lambda good: Answer(good.body[:-9]),
    lambda _: Answer(b'{"choices": []}'),
    lambda _: completion(text="", usage={"prompt_tokens": 9, "completion_tokens": 0}),
    lambda _: Answer(b'{"error": {"message": "slot lost"}}'),
)


class Faulty:
    """A server that answers one request in five with a random fault, the same ones in the same order."""

    def __init__(self, seed: int) -> None:
        self._random, self._lock = random.Random(seed), threading.Lock()
        self.faults: Counter[int] = Counter()
        self.requests = 0

    def __call__(self, body: Json) -> Answer:
        with self._lock:
            self.requests += 1
            kind = self._random.randrange(len(FAULTS)) if self._random.random() < 0.2 else None
            if kind is not None:
                self.faults[kind] += 1
        good = hasty(body)
        return good if kind is None else FAULTS[kind](good)


def hasty(body: Json) -> Answer:
    """Buy in some episodes, be cut off at the first or second turn in the others: what decides is the prompt."""
    if is_probe(body):
        return PONG
    draw = zlib.crc32(json.dumps(body["messages"][:2]).encode()) % 8
    return buyer(body) if draw == 0 or (draw == 1 and len(body["messages"]) == 2) else end(body)


def results(folder: Path) -> dict[str, Json]:
    """Identity -> scored episode, without times and without what trouble it took."""
    trouble = {"started_at", "ended_at", "attempt"}
    found = [episode for arm in ("bare", "masked") for episode in attempts(folder, arm) if episode.status == "scored"]
    steps = {e.identity: [step.model_dump(exclude={"seconds", "tries"}) for step in e.steps] for e in found}
    return {e.identity: e.model_dump(exclude=trouble) | {"steps": steps[e.identity]} for e in found}


def test_a_thousand_episodes_under_faults_give_the_same_observations(tmp_path: Path) -> None:
    catalogue = generate_catalogue(1, "en", products=1700, train=1, val=500, test=1)
    shop = EmbeddedShop(catalogue, tmp_path / "index")
    bench = replace(bench_of(shop, tmp_path, n_val=500, policy_concurrency=24), pool=Pool.of_skill(SKILL))

    def observations(name: str, model: ChatModel) -> bytes:
        (tmp_path / name).mkdir()
        there = replace(bench, folder=tmp_path / name, agent=replace(bench.agent, model=model))
        return protocol.gate_a(there).read_bytes()

    calm = observations("calm", scripted(hasty, model=MODEL))
    faulty = Faulty(seed=5)
    with serve(faulty) as server, connected(server.url, FastClock().clock) as model:
        assert observations("faulty", model) == calm
    assert calm.count(b"\n") == 501 and len(set(faulty.faults)) == len(FAULTS)
    assert faulty.faults.total() > 0.15 * faulty.requests > 150
    assert len(results(tmp_path / "calm")) == 1000 and results(tmp_path / "faulty") == results(tmp_path / "calm")
