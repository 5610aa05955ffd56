"""What servers say when they refuse a request: spellings of many servers, and what must not be taken for them."""

import json
from typing import Any

import pytest

from shopskill_lib.endpoints import Endpoint
from shopskill_lib.refusals import Refusal, judge


def at(**options: Any) -> Endpoint:
    return Endpoint(url="http://h/v1", model="m", checkpoint="c", **options)


def said(message: str, **more: Any) -> str:
    return json.dumps({"error": {"message": message, **more}}, ensure_ascii=False)


@pytest.mark.parametrize(
    ("status", "text"),
    [
        (400, said("too long", code="context_length_exceeded")),
        (
            400,
            said(
                "the request exceeds the available context size, try increasing it",
                code=400,
                type="exceed_context_size_error",
            ),
        ),
        (400, said("This model's maximum context length is 4096 tokens. However, you requested 5000 tokens")),
        (
            400,
            said(
                "'max_tokens' or 'max_completion_tokens' is too large: 512. This model's maximum context length is "
                "4096 tokens and your request has 3900 input tokens"
            ),
        ),
        (400, said("The decoder prompt (length 5000) is longer than the maximum model length of 4096.")),
        (400, said("The input (5000 tokens) is longer than the model's context length (4096 tokens).")),
        (400, said("Requested token count exceeds the model's maximum context length of 4096 tokens.")),
        (400, said("Prompt contains 40000 tokens, too large for model with 32768 maximum context length")),
        (400, said("prompt is too long: 210000 tokens > 200000 maximum")),
        (400, said("The input token count (1200000) exceeds the maximum number of tokens allowed (1048576).")),
        (400, said("Range of input length should be [1, 30720]")),
        (400, said("Your request exceeded model token limit: 8192")),
        (400, said("输入内容超过模型最大长度限制")),
        (400, said("上下文过长，请减少输入")),
        (413, said("the prompt is longer than the context window")),
        (422, said("`inputs` tokens + `max_new_tokens` must be <= 4096. Given: 4000 `inputs` tokens")),
        (422, json.dumps({"detail": [{"loc": ["body"], "msg": "maximum context length is 4096", "input": "x"}]})),
        (400, "This model's maximum context length is 4096 tokens"),
        (500, said("Requested tokens (600) exceed context window of 512", type="internal_server_error")),
        (500, said("context_length_exceeded")),
    ],
)
def test_a_full_context_in_every_spelling(status: int, text: str) -> None:
    assert judge(status, text, at(stream=True, tool_choice="required")).kind == "overflow"


@pytest.mark.parametrize(
    ("status", "text", "retry"),
    [
        (500, said("failed to allocate the context: size 32768 is too large for this device"), True),
        (503, said("context_length_exceeded"), True),
        (429, said("context_length_exceeded: tokens per minute"), True),
        (500, said("unexpected error while running tools"), True),
        (500, said("internal error: tool_choice auto, slot 3"), True),
        (500, "<html>Internal Server Error</html>", True),
        (500, "", True),
        (502, said("upstream does not support tools"), True),
        (400, said("this prompt goes against our policy", code="content_filter"), False),
        (413, "<html>Request Entity Too Large</html>", False),
        (422, json.dumps({"detail": [{"loc": ["body", "x"], "msg": "bad", "input": "maximum context length"}]}), False),
        (418, said("I am a teapot"), False),
    ],
)
def test_other_failures_are_neither_an_ending_nor_the_set_up(status: int, text: str, retry: bool) -> None:
    found = judge(status, text, at())
    assert (found.kind, found.retry, found.todo) == ("failure", retry, "")


@pytest.mark.parametrize(
    ("status", "text", "reason"),
    [
        (401, "", "refuses the key"),
        (402, "", "asks for payment"),
        (429, said("You exceeded your current quota", code="insufficient_quota"), "asks for payment"),
        (403, said("账户已欠费"), "asks for payment"),
        (400, said("Insufficient Balance"), "asks for payment"),
        (403, said("no"), "refuses access"),
        (404, said("The model `m` does not exist"), "does not know the model"),
        (400, said("model m not found", code="model_not_found"), "does not know the model"),
    ],
)
def test_what_another_try_would_not_change_is_the_set_up(status: int, text: str, reason: str) -> None:
    found = judge(status, text, at(key_variable="SHOP_KEY"))
    assert found.kind == "setup" and reason in found.found and "SHOP_KEY" in found.todo


LITERAL = (
    "[{'type': 'literal_error', 'loc': ('body', 'response_format', 'type'), 'msg': \"Input should be 'text' or "
    "'json_object'\", 'input': 'json_schema'}]"
)


@pytest.mark.parametrize(
    ("status", "text", "options", "todo"),
    [
        (500, said(LITERAL, type="internal_server_error"), {"protocol": "json_schema"}, "protocol to json"),
        (400, said("response_format json_schema is not supported"), {"protocol": "json_schema"}, "protocol to json"),
        (
            500,
            said("('body', 'tool_choice'): Input should be 'none' or 'auto', got 'required'"),
            {"tool_choice": "required"},
            "tool_choice to auto",
        ),
        (400, said("tool_choice=required is not supported"), {"tool_choice": "required"}, "tool_choice to auto"),
        (400, said("registry/gemma:2b does not support tools"), {}, "protocol to json"),
        (500, said("tools param requires --jinja flag"), {}, "protocol to json"),
        (
            400,
            said('"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set'),
            {},
            "protocol to json",
        ),
        (422, json.dumps({"detail": [{"loc": ["body", "tools"], "msg": "Extra inputs are not permitted"}]}), {},
         "protocol to json"),
        (400, said("Unrecognized request argument supplied: seed"), {}, "send_seed to false"),
        (422, "no such parameter: seed", {}, "send_seed to false"),
        (400, said("streaming is not supported for this model"), {"stream": True}, "stream to false"),
        (
            400,
            said("Unsupported parameter: 'max_tokens'. Use 'max_completion_tokens' instead.", param="max_tokens"),
            {},
            'extra_body to {"max_completion_tokens": 512}',
        ),
        (400, said("Unsupported value: 'temperature' does not support 0.7"), {}, "temperature to one"),
        (400, said("unknown field top_k"), {"extra_body": {"top_k": 20}}, "out of extra_body"),
    ],
)  # fmt: skip
def test_an_option_that_a_server_does_not_take_is_named(
    status: int, text: str, options: dict[str, Any], todo: str
) -> None:
    found = judge(status, text, at(**options))
    assert found.kind == "setup" and todo in found.todo and "does not take" in found.found


@pytest.mark.parametrize(
    ("text", "options"),
    [
        ("tool_choice: must be auto", {"protocol": "json"}),
        ("unknown field top_k", {}),
        ("seed is not supported", {"send_seed": False}),
        ("stream is not supported", {}),
        ("response_format is not supported", {"protocol": "json"}),
    ],
)
def test_what_was_not_sent_is_not_to_blame(text: str, options: dict[str, Any]) -> None:
    assert judge(400, said(text), at(**options)).kind == "failure"


def test_a_server_with_too_much_to_do_is_told_from_a_broken_one() -> None:
    assert [judge(status, "", at()).overloaded for status in (408, 429, 409, 500, 503)] == [True, True, *[False] * 3]
    assert judge(503, "a" * 999, at()) == Refusal("failure", f"HTTP 503: {'a' * 300}", retry=True)
