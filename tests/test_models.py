import json
import os
import resource
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from datetime import UTC, datetime
from time import monotonic
from typing import Any, Literal

import pytest
from scripted import PONG, Answer, FakeClock, Json, Server, completion, failure, is_probe, scripted, serve

from shopskill_lib import workbench
from shopskill_lib.clock import Clock
from shopskill_lib.errors import InfrastructureError, ParameterError, SetupError
from shopskill_lib.models import TRIES, CallCost, ChatModel, Endpoint, connect
from shopskill_lib.records import Usage, canonical
from shopskill_lib.replies import Fault, NotAReplyError, Reply, Stop, ToolCall, read_reply
from shopskill_lib.settings import Settings

USAGE = {"prompt_tokens": 40, "completion_tokens": 7, "total_tokens": 47}
MESSAGES = [canonical({"role": "user", "content": "一 {brace} “quote”"})]
TOOLS = [
    {"type": "function", "function": {"name": name, "parameters": {"type": "object"}}} for name in ("search", "click")
]
GOOD = completion(("search", {"query": "red cup"}), usage=USAGE)


class Loopback:
    """A model behind a loopback server with the given answers, on a clock that never waits; probes are answered."""

    def __init__(self, server: Server, model: ChatModel, time: FakeClock, costs: list[CallCost]) -> None:
        self.server, self.model, self.waits, self.costs = server, model, time.waits, costs

    def ask(self, seed: int = 5) -> Reply:
        return self.model.reply(MESSAGES, TOOLS, seed)


Opener = Callable[..., Loopback]


@pytest.fixture
def loopback() -> Iterator[Opener]:
    with ExitStack() as stack:

        def _open(*answers: Answer, **settings: Any) -> Loopback:
            rest = iter(answers)

            def script(body: Json) -> Answer:
                return PONG if is_probe(body) else next(rest, answers[-1])

            server = stack.enter_context(serve(script))
            time, costs = FakeClock(), list[CallCost]()
            endpoint = Endpoint(url=server.url, model="m", checkpoint="c", **({"timeout": 5.0} | settings))
            model = connect(endpoint, clock=time.clock)
            stack.callback(model.close)
            return Loopback(server, model.metered(costs.append), time, costs)

        yield _open


def test_one_call_is_sent_as_it_is_and_read(loopback: Opener) -> None:
    there = loopback(GOOD, temperature=0.5, max_tokens=99)
    reply = there.ask()
    assert reply.outcome == ToolCall("call_0", "search", {"query": "red cup"}, '{"query": "red cup"}')
    assert reply.usage == Usage(prompt_tokens=40, completion_tokens=7) and reply.finish_reason == "tool_calls"
    (request,) = there.server.requests
    assert request["path"] == "/v1/chat/completions" and request["authorization"] == "Bearer none"
    assert request["messages"] == [json.loads(MESSAGES[0])] and request["tools"] == TOOLS
    assert (request["model"], request["temperature"], request["max_tokens"], request["seed"]) == ("m", 0.5, 99, 5)
    assert there.costs == [CallCost("call", reply.usage, 1, 0.0)] and there.waits == []


def test_the_seed_is_sent_on_request_only(loopback: Opener) -> None:
    there = loopback(GOOD, send_seed=False)
    there.ask()
    assert "seed" not in there.server.requests[0]


def test_options_are_sent_where_they_were_chosen(loopback: Opener) -> None:
    there = loopback(GOOD, tool_choice="required", extra_body={"top_k": 20, "chat_template_kwargs": {"思考": False}})
    there.ask()
    (request,) = there.server.requests
    assert (request["tool_choice"], request["top_k"]) == ("required", 20)
    assert request["chat_template_kwargs"] == {"思考": False}
    there = loopback(GOOD)
    there.ask()
    known = {"messages", "model", "temperature", "max_tokens", "tools", "seed", "path", "authorization"}
    assert set(there.server.requests[0]) == known
    there = loopback(GOOD, max_tokens=99, extra_body={"max_completion_tokens": 99})
    there.ask()
    assert set(there.server.requests[0]) == known - {"max_tokens"} | {"max_completion_tokens"}


def test_a_server_that_recovers_is_asked_again_with_growing_pauses(loopback: Opener) -> None:
    there = loopback(failure(503), failure(500), failure(408), failure(409), GOOD)
    reply = there.ask()
    assert isinstance(reply.outcome, ToolCall) and reply.tries == 5 and len(there.server.requests) == 5
    for wait, base in zip(there.waits, (1, 2, 4, 8), strict=True):
        assert base <= wait <= base + 1
    assert reply.seconds == pytest.approx(sum(there.waits))
    assert there.costs == [CallCost("call", reply.usage, 5, reply.seconds)]


@pytest.mark.parametrize(
    ("header", "least", "most"),
    [
        ("2", 2, 3),
        ("120", 120, 120),
        ("86400", 300, 300),
        ("Thu, 01 Jan 2026 00:00:50 GMT", 50, 50),
        ("Wed, 31 Dec 2025 00:00:00 GMT", 1, 2),
        ("soon", 1, 2),
        ("-3", 1, 2),
        ("nan", 1, 2),
    ],
)
def test_retry_after_is_obeyed(loopback: Opener, header: str, least: float, most: float) -> None:
    there = loopback(failure(429, Retry_After=header), GOOD)
    assert isinstance(there.ask().outcome, ToolCall)
    assert least <= there.waits[0] <= most and len(there.waits) == 1


NO_REPLY = [
    failure(502),
    GOOD._replace(cut=20),
    Answer(b"<html>busy</html>", headers={"Content-Type": "text/html"}),
    Answer(b""),
    Answer(b"[]"),
    Answer(GOOD.body[:-5]),
    Answer(b'{"choices": []}'),
    Answer(b'{"error": {"message": "slot lost"}}'),
    Answer(b'{"choices": [{"message": null}]}'),
    completion(usage={"prompt_tokens": 3, "completion_tokens": 0}, text=""),
    completion(text=None),
    completion(text="", finish="length", usage={"prompt_tokens": 3, "completion_tokens": 0}),
]


@pytest.mark.parametrize("answer", NO_REPLY, ids=lambda answer: repr(answer.body[:20]))
def test_no_reply_of_a_model_is_a_failure_of_the_server(loopback: Opener, answer: Answer) -> None:
    there = loopback(answer, GOOD)
    assert isinstance(there.ask().outcome, ToolCall) and there.costs[0].tries == 2
    there = loopback(answer)
    with pytest.raises(InfrastructureError, match=f"no reply after {TRIES} requests"):
        there.ask()
    asked = [request for request in there.server.requests if not is_probe(request)]
    assert len(asked) == TRIES and [cost.outcome for cost in there.costs] == ["error"]
    assert there.costs[0].usage is None


def test_a_server_that_is_not_there_is_waited_for_and_given_up() -> None:
    time = FakeClock()
    model = connect(Endpoint(url="http://127.0.0.1:9/v1", model="m", checkpoint="c"), clock=time.clock)
    with pytest.raises(SetupError, match=r"has not answered for 3\d\d seconds, the last time so: Connection"):
        model.reply(MESSAGES, TOOLS, 1)
    assert 300 <= sum(time.waits) <= 320
    model.close()


def test_a_silent_server_times_out(loopback: Opener) -> None:
    there = loopback(GOOD._replace(headers={"Content-Length": "100000"}), timeout=0.05)
    with pytest.raises(InfrastructureError, match="timed out"):
        there.ask()
    assert there.model.traffic.at_once < 64


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("body", [GOOD.body, b" " * 500, b": still here\n\n" * 100])
def test_a_server_that_sends_a_byte_now_and_then_has_the_timeout_in_all(body: bytes, stream: bool) -> None:
    waits: list[float] = []
    clock = Clock(FakeClock().clock.now, monotonic, waits.append)
    with serve(lambda body_: PONG if is_probe(body_) else Answer(body, drip=0.02)) as server:
        endpoint = Endpoint(url=server.url, model="m", checkpoint="c", timeout=0.08, stream=stream)
        model = connect(endpoint, clock=clock)
        with pytest.raises(InfrastructureError, match=f"after {TRIES} requests: .*(not complete|timed out)"):
            model.reply(MESSAGES, TOOLS, 1)
        model.close()


def test_a_request_takes_no_longer_than_the_deadline_leaves_it() -> None:
    clock = Clock(FakeClock().clock.now, monotonic, lambda _: None)
    with serve([GOOD._replace(headers={"Content-Length": "100000"})]) as server:
        model = connect(Endpoint(url=server.url, model="m", checkpoint="c", timeout=60.0), clock=clock)
        with pytest.raises(InfrastructureError, match=r"(timed out|not complete).*; the deadline passes"):
            model.until(monotonic() + 0.5).reply(MESSAGES, TOOLS, 1)
        model.close()


def test_a_wall_clock_that_jumps_back_changes_nothing() -> None:
    fake = FakeClock()
    years = iter(range(2026, 1990, -1))
    clock = Clock(lambda: datetime(next(years), 1, 1, tzinfo=UTC), fake.clock.seconds, fake.clock.sleep)
    answers = [failure(429, Retry_After="Thu, 01 Jan 2026 00:00:50 GMT"), failure(503), GOOD]
    with serve(answers) as server:
        model = connect(Endpoint(url=server.url, model="m", checkpoint="c"), clock=clock)
        reply = model.reply(MESSAGES, TOOLS, 1)
        model.close()
    assert isinstance(reply.outcome, ToolCall) and reply.seconds == pytest.approx(sum(fake.waits)) and reply.seconds > 0


def test_too_many_open_files_are_waited_for(loopback: Opener) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    there = loopback(GOOD)
    time = FakeClock()

    def sleep(seconds: float) -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        time.waits.append(seconds)

    free = os.dup(0)  # the lowest number that is free
    os.close(free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free, hard))
    try:
        reply = replace(there.model, clock=replace(time.clock, sleep=sleep)).reply(MESSAGES, TOOLS, 1)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert reply.tries == 2 and len(time.waits) == 1 and there.model.traffic.at_once < 4


def test_a_server_that_comes_back_is_asked_the_same_again() -> None:
    answers = iter([*[failure(503)] * 12, PONG, GOOD])
    time = FakeClock()
    with serve(lambda _: next(answers)) as server:
        model = connect(Endpoint(url=server.url, model="m", checkpoint="c"), clock=time.clock)
        reply = model.reply(MESSAGES, TOOLS, 1)
        model.close()
    assert isinstance(reply.outcome, ToolCall) and reply.tries == 6
    assert list(map(is_probe, server.requests)) == [False] * 5 + [True] * 8 + [False]
    assert {len(request["messages"]) for request in server.requests} == {1} and server.requests[5]["max_tokens"] == 1


def test_a_rate_limit_that_never_ends_stops_with_its_cause() -> None:
    time = FakeClock()
    with serve([failure(429, "quota of the day", Retry_After="120")]) as server:
        model = connect(Endpoint(url=server.url, model="m", checkpoint="c"), clock=time.clock)
        with pytest.raises(SetupError, match="the last time so: HTTP 429: quota of the day"):
            model.reply(MESSAGES, TOOLS, 1)
        model.close()
    assert time.waits[4:] == [120, 1, 120, 59] and model.traffic.at_once == 1


def test_no_try_is_made_after_the_deadline(loopback: Opener) -> None:
    there = loopback(failure(500), failure(500), GOOD)
    late = there.model.until(there.model.clock.seconds() + 2.5)
    with pytest.raises(InfrastructureError, match=r"after 2 requests: HTTP 500.*; the deadline passes before"):
        late.reply(MESSAGES, TOOLS, 1)
    assert len(there.server.requests) == 2 and [cost.outcome for cost in there.costs] == ["error"]
    assert isinstance(there.ask().outcome, ToolCall)


def test_a_request_that_is_refused_for_good_is_not_repeated(loopback: Opener) -> None:
    there = loopback(failure(422, "this content is not for us"))
    with pytest.raises(InfrastructureError, match="after 1 request: HTTP 422: this content"):
        there.ask()
    assert len(there.server.requests) == 1


@pytest.mark.parametrize(
    ("status", "text", "message"),
    [
        (401, "bad key", "refuses the key"),
        (402, "pay", "asks for payment"),
        (403, "no", "refuses access"),
        (404, "The model `m` does not exist", "does not know the model"),
        (400, '{"error": {"message": "model m not found", "code": "model_not_found"}}', "does not know the model"),
    ],
)
def test_a_wrong_set_up_stops_at_once(loopback: Opener, status: int, text: str, message: str) -> None:
    there = loopback(failure(status, text))
    with pytest.raises(SetupError, match=message):
        there.ask()
    assert len(there.server.requests) == 1


@pytest.mark.parametrize(
    ("status", "text"),
    [
        (400, '{"error": {"code": "context_length_exceeded", "message": "too long"}}'),
        (400, '{"error": {"code": 400, "type": "exceed_context_size_error", "message": "request exceeds"}}'),
        (400, "This model's maximum context length is 4096 tokens. However, you requested 5000 tokens"),
        (500, "Requested tokens (600) exceed context window of 512"),
    ],
)
def test_a_full_context_is_no_failure_of_the_server(loopback: Opener, status: int, text: str) -> None:
    there = loopback(failure(status, text))
    assert there.ask().outcome == Stop("context_length")
    assert [cost.outcome for cost in there.costs] == ["ending"] and there.waits == []


def read(answer: Answer) -> Reply:
    return read_reply(answer.body, {"search", "click"})


def test_usage_that_is_missing_stays_none(loopback: Opener) -> None:
    assert loopback(completion(("search", {"query": "x"}))).ask().usage is None
    for usage in ({}, {"prompt_tokens": 4}, {"prompt_tokens": None, "completion_tokens": 3}, {"prompt_tokens": -1}):
        assert read(completion(("search", {"query": "x"}), usage=usage)).usage is None


def tool_call(**parts: Any) -> Answer:
    """A message with one call whose parts are replaced."""
    whole = {"id": "1", "type": "function", "function": {"name": "search", "arguments": "{}"}}
    return completion(text=None, usage=USAGE, tool_calls=[whole | parts])


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        (completion(("search", '{"query": "re')), "invalid_arguments_json"),
        (completion(("search", '{"query": "a"}{"query": "b"}')), "invalid_arguments_json"),
        (completion(("search", '["red"]')), "invalid_arguments_object"),
        (completion(("buy", {"x": "1"})), "unavailable_tool"),
        (completion(("search", {"query": "a"}), ("click", {"value": "b"})), "tool_call_count"),
        (completion(("search", {"query": "a"}), text="Let me look."), "mixed_content"),
        (completion(text="I would search for a red cup."), "tool_call_count"),
        (completion(text="", usage=USAGE), "empty_response"),
        (completion(text=" \n", usage=USAGE), "empty_response"),
        (completion(text=None, reasoning_content="hm"), "empty_response"),
        (completion(text=None, usage=USAGE, tool_calls="search"), "invalid_tool_calls"),
        (completion(text=None, usage=USAGE, tool_calls=["search"]), "invalid_tool_call"),
        (tool_call(function=None), "missing_function"),
        (tool_call(id=None), "missing_tool_call_id"),
        (tool_call(function={"arguments": "{}"}), "missing_tool_name"),
        (tool_call(function={"name": "search", "arguments": {"query": "x"}}), "invalid_arguments_type"),
    ],
)
def test_a_reply_without_one_legal_call_is_a_fault(answer: Answer, code: str) -> None:
    assert read(answer).outcome == Fault(code)


def test_white_space_beside_a_call_is_no_text() -> None:
    assert isinstance(read(completion(("search", {"query": "a"}), text="\n")).outcome, ToolCall)


@pytest.mark.parametrize(
    "answer",
    [
        completion(("search", "{"), finish="length", usage=USAGE),
        completion(text="I think", finish="length", usage=USAGE),
        completion(text="", finish="length"),
        completion(("search", {"query": "a"}), ("search", {"query": "b"}), finish="length"),
    ],
)
def test_tokens_that_run_out_before_one_call_end_the_episode(answer: Answer) -> None:
    assert read(answer).outcome == Stop("generation_length")


def test_a_whole_call_counts_even_when_the_tokens_ran_out() -> None:
    assert isinstance(read(completion(("search", {"query": "a"}), finish="length")).outcome, ToolCall)
    with_text = completion(("search", {"query": "a"}), text="so", finish="length")
    assert read(with_text).outcome == Fault("mixed_content")


def test_half_a_surrogate_pair_does_not_travel() -> None:
    reply = read_reply(completion(text="\ud83d cup", usage=USAGE).body, {"search"})
    assert reply.text == "? cup"
    with pytest.raises(NotAReplyError, match="no JSON"):
        read_reply(b"[" * 100_000, {"search"})


def test_a_key_comes_from_the_environment(loopback: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SHOP_KEY", raising=False)
    with pytest.raises(SetupError, match="SHOP_KEY is not set"):
        loopback(GOOD, key_variable="SHOP_KEY")
    monkeypatch.setenv("SHOP_KEY", " abc ")
    there = loopback(failure(403), key_variable="SHOP_KEY")
    with pytest.raises(SetupError, match="SHOP_KEY") as refused:
        there.ask()
    assert there.server.requests[0]["authorization"] == "Bearer abc" and "abc" not in str(refused.value)


@pytest.mark.parametrize(
    "wrong",
    [
        {"url": "localhost:8000"},
        {"model": " "},
        {"checkpoint": ""},
        {"temperature": 3.0},
        {"temperature": float("nan")},
        {"max_tokens": 0},
        {"timeout": 0.0},
        {"price_in": -1.0},
        {"url": "http://a/v1 http://a/v1"},
        {"url": "http://a/v1 b/v1"},
        {"url": " "},
        {"tool_choice": "none"},
        {"protocol": "yaml"},
        {"tool_choice": "required", "protocol": "json"},
        {"extra_body": {"max_completion_tokens": 9}},
        {"extra_body": {"stream": True}},
        {"extra_body": {"top_p": float("nan")}},
    ],
)
def test_a_value_that_no_endpoint_has_is_refused(wrong: dict[str, Any]) -> None:
    settings = {"url": "http://h/v1", "model": "m", "checkpoint": "c"} | wrong
    with pytest.raises(ParameterError, match=next(iter(wrong)).split("_")[0]):
        Endpoint(**settings)


def test_only_a_simulated_model_has_a_transport() -> None:
    with pytest.raises(ParameterError, match="no transport"):
        connect(Endpoint(url="simulated", model="m", checkpoint="c"))


def test_identity_and_price() -> None:
    endpoint = Endpoint(url="http://h/v1", model="m", checkpoint="c", price_in=2.0, price_out=10.0)
    assert endpoint.identity == Endpoint(url="https://other/v1", model="m", checkpoint="c", timeout=9.0).identity
    assert not endpoint.identity.simulated and scripted().identity.simulated
    assert Endpoint(url="http://h/v1", model="simulated-shopper", checkpoint="c").identity.simulated
    usage = Usage(prompt_tokens=1_000_000, completion_tokens=100_000)
    assert endpoint.price(usage) == pytest.approx(3.0)
    assert endpoint.price(None) is None and scripted().endpoint.price(usage) is None


def test_an_identity_at_its_defaults_is_that_of_earlier_results() -> None:
    plain = Endpoint(url="http://h/v1", model="m", checkpoint="c").identity
    assert set(plain.decisive) == {"model", "checkpoint", "temperature", "max_tokens", "send_seed", "simulated"}
    other = Endpoint(url="http://h/v1", model="m", checkpoint="c", protocol="json", extra_body={"top_k": 20}).identity
    assert other.decisive == plain.decisive | {"protocol": "json", "extra_body": {"top_k": 20}}
    streamed = Endpoint(url="http://a/v1 http://b/v1", model="m", checkpoint="c", stream=True)
    assert streamed.identity == plain and streamed.urls == ("http://a/v1", "http://b/v1")


@pytest.mark.parametrize("who", ["policy", "author"])
def test_the_settings_name_every_option_of_an_endpoint(who: Literal["policy", "author"]) -> None:
    texts = {"tool_choice": "required", "extra_body": '{"思考": false}', "stream": "true"}
    names = {f"{who}_{name}" for name in texts}
    settings = Settings.of_texts({f"{who}_{name}": text for name, text in texts.items()}, names)
    found = workbench.endpoint(settings, who)
    assert (found.protocol, found.tool_choice, found.stream) == ("tools", "required", True)
    assert workbench.endpoint(
        settings.model_copy(update={f"{who}_protocol": "json", f"{who}_tool_choice": "auto"}), who
    )
    assert found.extra_body == {"思考": False}
    for text in ("{", "[1]", '"x"'):
        wrong = settings.model_copy(update={f"{who}_extra_body": text})
        with pytest.raises(ParameterError, match=f"parameter {who}_extra_body.*JSON object"):
            workbench.endpoint(wrong, who)
