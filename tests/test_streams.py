"""A streamed answer is the same reply as an unstreamed one, and a broken stream is none."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scripted import Answer, FakeClock, completion, failure, serve, streamed

from shopskill_lib.errors import InfrastructureError, SetupError
from shopskill_lib.exchange import Failed
from shopskill_lib.models import TRIES, Endpoint, connect
from shopskill_lib.records import canonical
from shopskill_lib.replies import NotAReplyError, Reply, Stop, ToolCall, read_reply
from shopskill_lib.streams import unstreamed

USAGE = {"prompt_tokens": 40, "completion_tokens": 7}
CALL = ("search", {"query": "红色茶杯 👗"})
MESSAGES = [canonical({"role": "user", "content": "我要一个红色的茶杯"})]
TOOLS = [
    {"type": "function", "function": {"name": name, "parameters": {"type": "object"}}} for name in ("search", "click")
]


def read(body: bytes) -> Reply:
    return read_reply(body, {"search", "click"}, max_tokens=512)


def ask(answer: Answer) -> Reply:
    """Ask a streaming loopback server."""
    with serve([answer]) as server:
        endpoint = Endpoint(url=server.url, model="m", checkpoint="c", stream=True, timeout=5.0)
        model = connect(endpoint, clock=FakeClock().clock)
        try:
            return model.reply(MESSAGES, TOOLS, 5)
        finally:
            model.close()


texts = st.none() | st.text(max_size=30)
calls = st.lists(st.tuples(st.sampled_from(["search", "click", "buy"]), st.text(max_size=20)), max_size=3)


@settings(max_examples=80, deadline=None)
@given(texts, texts, calls, st.sampled_from(["stop", "tool_calls", "length"]), st.integers(1, 7), st.booleans())
def test_any_answer_is_the_same_reply_streamed(
    text: str | None, thought: str | None, made: list[tuple[str, str]], finish: str, size: int, counted: bool
) -> None:
    whole = completion(*made, text=text, finish=finish, usage=USAGE if counted else None, reasoning_content=thought)
    assert outcome(whole.body) == outcome(unstreamed(streamed(whole, size).body))


def outcome(body: bytes) -> Reply | str:
    """The reply, or why there is none."""
    try:
        return read(body)
    except NotAReplyError as error:
        return str(error)


@pytest.mark.parametrize(
    "answer",
    [
        completion(CALL, usage=USAGE),
        completion(CALL),
        completion(CALL, reasoning="先看价格", usage=USAGE),
        completion(text="<think>我想", finish="length", usage=USAGE),
        completion(CALL, ("click", {"value": "x"}), usage=USAGE),
        completion(("search", '{"query": "re'), finish="length", usage={"prompt_tokens": 4, "completion_tokens": 512}),
    ],
)
def test_over_the_network_letters_split_into_bytes(answer: Answer) -> None:
    assert ask(streamed(answer)._replace(drip=0.0)) == read(answer.body)


def test_usage_is_asked_for_and_the_rest_of_the_request_is_the_same() -> None:
    found = []
    for stream in (True, False):
        with serve([completion(CALL)]) as server:
            endpoint = Endpoint(url=server.url, model="m", checkpoint="c", stream=stream)
            model = connect(endpoint, clock=FakeClock().clock)
            model.reply(MESSAGES, TOOLS, 5)
            model.close()
            found.append(server.requests[0])
    assert found[0].pop("stream") is True and found[0].pop("stream_options") == {"include_usage": True}
    assert found[0] == found[1]


def test_a_server_that_does_not_stream_is_read_all_the_same() -> None:
    assert isinstance(ask(completion(CALL)).outcome, ToolCall)


def lines(*events: object, end: str = "data: [DONE]\n\n") -> bytes:
    return ("".join(f"data: {json.dumps(event)}\n\n" for event in events) + end).encode()


def delta(finish: str | None = None, **parts: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": parts, "finish_reason": finish}]}


def piece(arguments: str = "", **more: Any) -> dict[str, Any]:
    return {"function": {"arguments": arguments}, **more}


def test_the_form_of_events_is_free() -> None:
    whole = completion(CALL, usage=USAGE)
    body = streamed(whole).body
    for other in (
        body.replace(b"\n", b"\r\n"),
        body.replace(b"data: ", b"data:"),
        b": keep-alive\n\n" + body.replace(b"data: ", b"event: message\nid: 7\ndata: "),
        body.rstrip(b"\n"),
        body + b"data: {after the end}\n\n",
    ):
        assert read(unstreamed(other)) == read(whole.body)


def test_other_choices_and_usage_so_far_are_no_part_of_the_reply() -> None:
    other = {"choices": [{"index": 1, "delta": {"content": "no"}, "finish_reason": "stop"}]}
    usage = {"usage": {"prompt_tokens": 1, "completion_tokens": 1}}
    body = lines(delta(content="红") | usage, other, delta(content="杯") | usage, delta("stop") | {"usage": USAGE})
    reply = read(unstreamed(body))
    assert reply.text == "红杯" and reply.usage is not None and reply.usage.prompt_tokens == 40


@pytest.mark.parametrize(
    ("pieces", "count"),
    [
        ([piece('{"a"', index=0, id="x"), piece(": 1}", index=0)], 1),
        ([piece('{"a"', index=0, id="x"), piece(": 1}", index=0, id="x")], 1),
        ([piece('{"a"', id="x"), piece(": 1}")], 1),
        ([piece("{}", index=0, id="x"), piece("{}", index=0, id="y")], 2),
        ([piece("{}", index=0, id="x"), piece("{}", index=1, id="y")], 2),
    ],
)
def test_pieces_of_calls_belong_together_by_index_and_id(pieces: list[dict[str, Any]], count: int) -> None:
    named = [one | {"function": one["function"] | ({"name": "search"} if "id" in one else {})} for one in pieces]
    if named[-1].get("id") == named[0].get("id"):
        named[-1]["function"].pop("name", None)
    body = lines(*(delta(tool_calls=[one]) for one in named), delta("tool_calls"))
    reply = read(unstreamed(body))
    assert len(reply.calls) == count and all(call.name == "search" for call in reply.calls)


def test_parts_of_calls_that_are_no_text_stay_what_they_are() -> None:
    body = lines(delta(tool_calls=[piece(index=0, id="x") | {"function": {"name": "search", "arguments": {}}}]))
    body = body.replace(b"data: [DONE]", lines(delta("tool_calls")))
    function = json.loads(unstreamed(body))["choices"][0]["message"]["tool_calls"][0]["function"]
    assert function == {"name": "search", "arguments": {}}


WHOLE = streamed(completion(CALL, usage=USAGE))
BROKEN: dict[str, Answer] = {
    "no events": Answer(b"", headers={"Content-Type": "text/event-stream"}),
    "comments only": Answer(b": ping\n\n: ping\n\n"),
    "only the end": Answer(b"data: [DONE]\n\n"),
    "no end": streamed(completion(CALL, usage=USAGE), end=""),
    "cut off": WHOLE._replace(cut=len(WHOLE.body) // 2),
    "cut in a letter": Answer("data: {红".encode()[:-1]),
    "no finish": Answer(lines(delta(content="红"))),
    "no JSON": Answer(lines(delta(content="a"))[:-14] + b"data: {oops\n\ndata: [DONE]\n\n"),
    "no object": Answer(lines(delta(content="a"), [1])),
    "an error": Answer(lines(delta(content="a"), {"error": {"message": "slot lost", "code": 500}})),
    "an error of another status": Answer(lines({"error": {"message": "busy", "code": 429}})),
    "HTML": Answer(b"<html>busy</html>"),
    "no token": Answer(lines(delta(role="assistant"), delta("stop"))),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_stream_is_asked_for_again_and_never_a_reply(name: str) -> None:
    with serve([BROKEN[name], WHOLE]) as server:
        endpoint = Endpoint(url=server.url, model="m", checkpoint="c", stream=True)
        model = connect(endpoint, clock=FakeClock().clock)
        reply = model.reply(MESSAGES, TOOLS, 5)
        model.close()
    assert isinstance(reply.outcome, ToolCall) and reply.tries == 2


def test_a_stream_that_always_breaks_is_a_failure_of_the_server() -> None:
    def script(body: dict[str, Any]) -> Answer:
        return BROKEN["an error"] if "tools" in body else completion(text="pong")

    with serve(script) as server:
        endpoint = Endpoint(url=server.url, model="m", checkpoint="c", stream=True)
        model = connect(endpoint, clock=FakeClock().clock)
        with pytest.raises(InfrastructureError, match=f"after {TRIES} requests: HTTP 500.*slot lost"):
            model.reply(MESSAGES, TOOLS, 5)
        model.close()


def test_a_full_context_inside_a_stream_is_an_ending() -> None:
    event = {"error": {"code": 400, "type": "exceed_context_size_error", "message": "the request exceeds"}}
    assert ask(Answer(lines(event))).outcome == Stop("context_length")


def test_a_server_without_streams_says_which_option_to_change() -> None:
    refusal = failure(400, '{"error": {"message": "stream_options is not supported"}}')
    with pytest.raises(SetupError, match=r"does not take stream .*set stream to false"):
        ask(refusal)


@pytest.mark.parametrize(("name", "overloaded"), [("no events", True), ("no end", False), ("an error", False)])
def test_an_empty_stream_means_that_fewer_at_once_are_borne(name: str, overloaded: bool) -> None:
    """A server of server_habits answers three of four streams at once with nothing."""
    with serve([BROKEN[name]]) as server:
        model = connect(Endpoint(url=server.url, model="m", checkpoint="c", stream=True))
        with pytest.raises(Failed) as failed:
            model.servers.all[0].exchange.ask(b'{"messages":[{"content":"a"}]}', set())
        model.close()
    assert failed.value.retry and failed.value.overloaded is overloaded
