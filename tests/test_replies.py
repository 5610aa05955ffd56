"""What a body means: every habit of real servers that concerns a reply, decided by M3."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scripted import Answer, completion

from shopskill_lib.records import CallProtocol
from shopskill_lib.replies import ErrorReplyError, Fault, NotAReplyError, Reply, Stop, ToolCall, read_reply

USAGE = {"prompt_tokens": 40, "completion_tokens": 7}


def read(answer: Answer, protocol: CallProtocol = "tools", max_tokens: int | None = None) -> Reply:
    return read_reply(answer.body, {"search", "click"}, protocol, max_tokens)


@pytest.mark.parametrize(
    "raw",
    [
        '{"query": "red',
        '{"query": "红',
        '{"query": "a"}{"query": "b"}',
        '{"query": "a"} and more',
        '{"query": NaN}',
        '{"query": Infinity}',
        '{"query": [-Infinity]}',
        '{"query": 1e999}',
        '{"query": -1e999}',
        '{"query": "a", "query": "b"}',
        '{"deep": {"商品": 1, "商品": 2}}',
        "",
        "[" * 100_000,
        '{"n": ' + "1" * 5000 + "}",
    ],
)
def test_arguments_in_which_something_would_have_to_be_guessed_are_no_json(raw: str) -> None:
    reply = read(completion(("search", raw), usage=USAGE))
    assert reply.outcome == Fault("invalid_arguments_json") and reply.calls == ()


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["red"], "invalid_arguments_object"),
        ("null", "invalid_arguments_object"),
        ('"红色"', "invalid_arguments_object"),
    ],
)
def test_arguments_that_are_no_object(arguments: Any, code: str) -> None:
    assert read(completion(("search", arguments), usage=USAGE)).outcome == Fault(code)


@pytest.mark.parametrize("arguments", [["red"], {"query": "red"}, None, 3])
def test_arguments_that_are_no_text(arguments: Any) -> None:
    call = {"id": "1", "type": "function", "function": {"name": "search", "arguments": arguments}}
    reply = read(completion(text=None, usage=USAGE, tool_calls=[call]))
    assert reply.outcome == Fault("invalid_arguments_type") and reply.calls == ()


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=60, deadline=None)
@given(st.dictionaries(st.text(), values, max_size=4), st.booleans())
def test_any_arguments_come_as_they_were_written(arguments: dict[str, Any], ascii_only: bool) -> None:
    raw = json.dumps(arguments, ensure_ascii=ascii_only)
    outcome = read(completion(("click", raw), usage=USAGE)).outcome
    assert isinstance(outcome, ToolCall) and outcome.arguments == arguments and outcome.raw == raw


def test_half_a_letter_in_arguments_does_not_travel() -> None:
    outcome = read(completion(("search", '{"query": "\\ud83d杯"}'))).outcome
    assert isinstance(outcome, ToolCall) and outcome.arguments == {"query": "?杯"}


def test_three_calls_at_once_are_answered_each_and_carried_out_none() -> None:
    reply = read(completion(*[("search", {"query": text}) for text in ("a", "b", "丙")], usage=USAGE))
    assert reply.outcome == Fault("tool_call_count") and len(reply.calls) == 3


def test_calls_that_share_an_id_cannot_be_answered_one_by_one() -> None:
    call = {"id": "x", "type": "function", "function": {"name": "search", "arguments": "{}"}}
    reply = read(completion(text=None, usage=USAGE, tool_calls=[call, call]))
    assert reply.outcome == Fault("tool_call_count") and reply.calls == ()


def test_nan_beside_the_reply_is_not_its_fault() -> None:
    body = completion(("search", {"query": "茶"})).body[:-1] + b', "usage": {"prompt_tokens": NaN}, "t": -Infinity}'
    reply = read_reply(body, {"search"})
    assert isinstance(reply.outcome, ToolCall) and reply.usage is None


CALL = ("search", {"query": "茶杯"})


@pytest.mark.parametrize(
    ("answer", "text", "reasoning"),
    [
        (completion(CALL, reasoning_content="先看价格"), "", "先看价格"),
        (completion(CALL, reasoning="Look first."), "", "Look first."),
        (completion(CALL, reasoning="", reasoning_content=None), "", None),
        (completion(CALL, text="<think>先看价格</think>\n\n"), "\n\n", "先看价格"),
        (completion(CALL, text="\n<think>\n\n</think>\n\n"), "\n\n", None),
        (completion(CALL, text="The template wrote the first tag.</think>"), "", "The template wrote the first tag."),
        (completion(CALL, text="<think>a</think>", reasoning_content="b"), "", "b\na"),
        (completion(CALL, text="<think>never ends"), "", "never ends"),
    ],
)
def test_thoughts_are_kept_and_are_no_text(answer: Answer, text: str, reasoning: str | None) -> None:
    reply = read(answer)
    assert isinstance(reply.outcome, ToolCall) and (reply.text, reply.reasoning) == (text, reasoning)


@pytest.mark.parametrize(
    ("answer", "outcome"),
    [
        (completion(text="<think>我想", usage=USAGE), Fault("empty_response")),
        (completion(text="<think>我想", finish="length", usage=USAGE), Stop("generation_length")),
        (completion(text="<think>我想</think>", usage=USAGE), Fault("empty_response")),
        (completion(text="<think>\n\n</think>"), Fault("empty_response")),
        (completion(text="", reasoning_content="想", finish="length"), Stop("generation_length")),
        (completion(text="<think>I</think>I would buy it.", usage=USAGE), Fault("tool_call_count")),
        (completion(CALL, text="So <think>I</think>", usage=USAGE), Fault("mixed_content")),
    ],
)
def test_thoughts_without_a_call(answer: Answer, outcome: Fault | Stop) -> None:
    assert read(answer).outcome == outcome


def test_content_in_parts_is_text() -> None:
    parts = [{"type": "thinking", "thinking": []}, {"type": "text", "text": "红"}, {"type": "text", "text": "杯"}, "x"]
    assert read(completion(text=None, content=parts)).text == "红杯"


@pytest.mark.parametrize(
    ("usage", "max_tokens", "ending"),
    [
        ({"prompt_tokens": 1900, "completion_tokens": 148, "total_tokens": 2048}, 512, "context_length"),
        ({"prompt_tokens": 1900, "completion_tokens": 148}, 512, "context_length"),
        ({"prompt_tokens": 1900, "completion_tokens": 512, "total_tokens": 2412}, 512, "generation_length"),
        ({"prompt_tokens": 1900, "completion_tokens": 510, "total_tokens": 2410}, 512, "generation_length"),
        ({"prompt_tokens": 1900, "completion_tokens": 20, "total_tokens": 2412}, 512, "generation_length"),
        ({"prompt_tokens": 1900, "completion_tokens": 148}, None, "generation_length"),
        (None, 512, "generation_length"),
    ],
)
def test_a_reply_that_is_cut_off_before_its_tokens_are_spent_has_filled_the_context(
    usage: dict[str, int] | None, max_tokens: int | None, ending: str
) -> None:
    for answer in (completion(("search", "{"), finish="length", usage=usage), completion(text="我", finish="length")):
        body = json.loads(answer.body) | ({} if usage is None else {"usage": usage})
        found = read_reply(json.dumps(body).encode(), {"search"}, max_tokens=max_tokens)
        assert found.outcome == Stop(ending) and found.calls == ()  # type: ignore[arg-type]


def test_thoughts_may_have_spent_the_tokens() -> None:
    thinking = completion(text="", reasoning_content="想", finish="length", usage=USAGE)
    assert read(thinking, max_tokens=512).outcome == Stop("generation_length")


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b'{"error": {"message": "busy", "code": 429}}', 429),
        (b'{"error": {"message": "busy", "code": "rate_limit"}}', 500),
        (b'{"error": "busy"}', 500),
        (b'{"error": {"code": 200}}', 500),
        (b'{"choices": [{"message": {"content": ""}, "error": {"code": 502, "message": "busy"}}]}', 502),
    ],
)
def test_an_error_in_the_body_of_a_success_is_that_error(body: bytes, status: int) -> None:
    with pytest.raises(ErrorReplyError) as found:
        read_reply(body, {"search"})
    assert found.value.status == status


@pytest.mark.parametrize("finish", ["abort", "error"])
def test_a_reply_that_the_server_gave_up_is_none(finish: str) -> None:
    with pytest.raises(NotAReplyError, match=finish):
        read(completion(text="红", finish=finish, usage=USAGE))


WRITTEN = '{"name": "search", "arguments": {"query": "红 cup"}}'


@pytest.mark.parametrize(
    "text",
    [WRITTEN, f"\n {WRITTEN}\n", f"```json\n{WRITTEN}\n```", f"```\n{WRITTEN}\n```\n", f"<think>想</think>{WRITTEN}"],
)
@pytest.mark.parametrize("protocol", ["json", "json_schema"])
def test_a_call_in_the_text(text: str, protocol: CallProtocol) -> None:
    reply = read(completion(text=text, usage=USAGE), protocol)
    assert reply.outcome == ToolCall("", "search", {"query": "红 cup"}, WRITTEN) == reply.calls[0]
    assert read(completion(text=text, usage=USAGE)).outcome == Fault("tool_call_count")


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("I would search for a cup.", "tool_call_count"),
        ("我要搜索。", "tool_call_count"),
        (f"Here it is: {WRITTEN}", "mixed_content"),
        (f"{WRITTEN}{WRITTEN}", "invalid_arguments_json"),
        (f"{WRITTEN} 就这样", "invalid_arguments_json"),
        (f"```json\n{WRITTEN}\n```\nDone.", "mixed_content"),
        (WRITTEN[:-1], "invalid_arguments_json"),
        (WRITTEN.replace('"红 cup"', "NaN"), "invalid_arguments_json"),
        ('{"name": "search", "name": "click", "arguments": {}}', "invalid_arguments_json"),
        (f"[{WRITTEN}]", "mixed_content"),
        ('{"tool": "search", "arguments": {}}', "invalid_tool_call"),
        ('{"name": "search", "arguments": {}, "why": "x"}', "invalid_tool_call"),
        ('{"arguments": {"query": "x"}}', "missing_tool_name"),
        ('{"name": 3, "arguments": {"query": "x"}}', "missing_tool_name"),
        ('{"name": "search"}', "invalid_arguments_object"),
        ('{"name": "search", "arguments": "{}"}', "invalid_arguments_object"),
        ('{"name": "buy", "arguments": {}}', "unavailable_tool"),
        ("```json\n```", "empty_response"),
        (" \n", "empty_response"),
    ],
)
def test_a_text_that_is_no_call(text: str, code: str) -> None:
    reply = read(completion(text=text, usage=USAGE), "json")
    assert reply.calls == () and reply.outcome == Fault(code)


def test_a_call_by_tools_where_none_were_offered_is_not_carried_out() -> None:
    assert read(completion(CALL, usage=USAGE), "json").outcome == Fault("invalid_tool_calls")


def test_a_call_in_the_text_that_is_cut_off_ends_the_episode() -> None:
    cut = completion(text=WRITTEN[:20], finish="length", usage={"prompt_tokens": 4, "completion_tokens": 512})
    assert read(cut, "json", 512).outcome == Stop("generation_length")
    assert isinstance(read(completion(text=WRITTEN, finish="length"), "json").outcome, ToolCall)
