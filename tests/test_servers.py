"""Several servers of one model: load is shared, a dead one is left out, looked at again, and never stops the others."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager

import pytest
from scripted import PONG, Answer, FakeClock, Json, Server, completion, failure, is_probe, serve

from shopskill_lib.errors import SetupError
from shopskill_lib.models import ChatModel, Endpoint, connect
from shopskill_lib.records import canonical
from shopskill_lib.replies import ToolCall
from shopskill_lib.servers import LOOK
from shopskill_lib.traffic import IN_A_ROW

MESSAGES = [canonical({"role": "user", "content": "红茶杯, a red cup"})]
TOOLS = [{"type": "function", "function": {"name": "search", "parameters": {"type": "object"}}}]
GOOD = completion(("search", {"query": "杯"}))


class Switch:
    """A script that answers while it is on."""

    def __init__(self) -> None:
        self.on = True

    def __call__(self, body: Json) -> Answer:
        if not self.on:
            return failure(503, "switched off")
        return PONG if is_probe(body) else GOOD


@contextmanager
def pair(time: FakeClock) -> Iterator[tuple[ChatModel, tuple[Switch, Switch], tuple[Server, Server]]]:
    switches = (Switch(), Switch())
    with ExitStack() as stack:
        first, second = (stack.enter_context(serve(switch)) for switch in switches)
        model = connect(Endpoint(url=f"{first.url} {second.url}", model="m", checkpoint="c"), clock=time.clock)
        stack.callback(model.close)
        yield model, switches, (first, second)


def asked(server: Server) -> int:
    return sum(not is_probe(request) for request in server.requests)


def test_requests_at_once_are_shared() -> None:
    barrier = threading.Barrier(8)

    def script(_: Json) -> Answer:
        barrier.wait(20)
        return GOOD

    with serve(script) as first, serve(script) as second:
        model = connect(Endpoint(url=f"{first.url} {second.url}", model="m", checkpoint="c"), clock=FakeClock().clock)
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda seed: model.reply(MESSAGES, TOOLS, seed), range(8)))
        model.close()
    assert (len(first.requests), len(second.requests)) == (4, 4)


def test_a_server_that_dies_is_left_out_and_taken_back() -> None:
    time = FakeClock()
    with pair(time) as (model, (first, _), servers):
        first.on = False
        for seed in range(IN_A_ROW + 3):
            assert isinstance(model.reply(MESSAGES, TOOLS, seed).outcome, ToolCall)
        assert [traffic.traffic.down for traffic in model.servers.all] == [True, False]
        known = asked(servers[0])
        time.waits.append(LOOK)
        for seed in range(3):
            model.reply(MESSAGES, TOOLS, seed)
        assert asked(servers[0]) == known and is_probe(servers[0].requests[-1])
        first.on = True
        time.waits.append(LOOK)
        model.reply(MESSAGES, TOOLS, 9)
        assert not any(server.traffic.down for server in model.servers.all)
        assert asked(servers[0]) == known + 1


def test_servers_that_are_all_down_stop_with_the_cause() -> None:
    time = FakeClock()
    with pair(time) as (model, switches, _):
        for switch in switches:
            switch.on = False
        with pytest.raises(SetupError, match=r"has not answered for 3.. seconds.*switched off"):
            model.reply(MESSAGES, TOOLS, 1)
        assert all(server.traffic.down for server in model.servers.all)


def test_a_server_given_up_while_another_has_come_back_stops_nobody() -> None:
    with pair(FakeClock()) as (model, (first, _), servers):
        first.on = False
        for server in model.servers.all:
            for _ in range(IN_A_ROW):
                server.traffic.failed("switched off")
        assert isinstance(model.reply(MESSAGES, TOOLS, 1).outcome, ToolCall)
        assert asked(servers[1]) == 1 and model.servers.all[0].traffic.down
