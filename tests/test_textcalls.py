"""Servers without tools: calls written as text, by policy and authors alike."""

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from casework import Acting, Case, analyst, diagnosis
from scripted import Answer, Json, Script, buyer, completion, failure, in_text, scripted

from shopskill_lib import analysts, workbench
from shopskill_lib.agent import Agent, constant, load_prompts, run_episode
from shopskill_lib.dialogue import Conversation, Tool, obtain, record_tool
from shopskill_lib.errors import AuthorError, ParameterError, SetupError
from shopskill_lib.records import CallProtocol, Language, Record, Step, fingerprint, make_treatment
from shopskill_lib.settings import Settings
from shopskill_lib.shops.embedded import EmbeddedShop
from shopskill_lib.textcalls import REPAIR, describe, response_format

USAGE = {"prompt_tokens": 9, "completion_tokens": 3}
BARE = make_treatment("bare", ())
LANGUAGES: tuple[Language, ...] = ("en", "zh")


class Played:
    """An episode and the requests that the model saw."""

    def __init__(self, shop: EmbeddedShop, script: Script, protocol: CallProtocol, task: str = "1") -> None:
        self.requests: list[Json] = []
        self.steps: list[Step] = []

        def listen(body: Json) -> Answer:
            self.requests.append(body)
            return script(body)

        agent = Agent(scripted(listen, protocol=protocol), shop, load_prompts(shop.catalogue.language))
        self.identity = agent.identity
        self.end = run_episode(agent, shop.catalogue.tasks[task], constant(BARE), 7, self.steps.append)


def replies(*answers: Answer) -> Script:
    """These answers one after the other, then the shopper's own, all in text."""
    left = list(answers)
    rest = in_text()
    return lambda body: left.pop(0) if left else rest(body)


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("protocol", ["json", "json_schema"])
def test_an_episode_by_text_is_the_one_by_tools(
    shops: dict[str, EmbeddedShop], language: Language, protocol: CallProtocol
) -> None:
    by_tools = Played(shops[language], buyer, "tools")
    by_text = Played(shops[language], in_text(), protocol)
    assert [step.action for step in by_text.steps] == [step.action for step in by_tools.steps]
    assert by_text.end.reward == by_tools.end.reward and by_text.end.reward is not None
    assert by_text.identity != by_tools.identity and by_text.identity["model"]["protocol"] == protocol
    for request, step in zip(by_text.requests, by_text.steps, strict=True):
        assert "tools" not in request and step.prompt_digest == fingerprint(request["messages"])
        roles = [message["role"] for message in request["messages"]]
        assert roles == ["system", *["user", "assistant"] * (len(roles) // 2 - 1), "user"]
        assert ("response_format" in request) == (protocol == "json_schema")


def test_the_tools_of_the_page_are_told_in_the_language_of_the_run(shops: dict[str, EmbeddedShop]) -> None:
    for language, words in (("en", "These tools are available now"), ("zh", "现在可用的工具如下")):
        played = Played(shops[language], in_text(), "json")
        for request in played.requests:
            assert request["messages"][-1]["content"].count(words) == 1
        first, second = (request["messages"][-1]["content"] for request in played.requests[:2])
        assert '"name": "search"' in first and '"name": "search"' not in second and '"name": "click"' in second


@pytest.mark.parametrize("language", LANGUAGES)
def test_a_fault_is_explained_and_history_stays_in_turns(shops: dict[str, EmbeddedShop], language: Language) -> None:
    prose = completion(text="我先想想。", usage=USAGE)
    silent = completion(text="", usage=USAGE)
    wrong = completion(text='{"name": "search", "arguments": {"q": "x"}}', usage=USAGE)
    thinking = completion(text='<think>secret</think>{"name": "search", "arguments": {"query": "杯"}}', usage=USAGE)
    played = Played(shops[language], replies(prose, silent, wrong, thinking), "json")
    codes = ["tool_call_count", "empty_response", "invalid_tool_arguments", None]
    assert [step.fault for step in played.steps[:4]] == codes and played.steps[3].reasoning == "secret"
    last = played.requests[4]["messages"]
    assert [message["role"] for message in last[:6]] == ["system", "user", "assistant", "user", "assistant", "user"]
    for code in codes[:3]:
        assert sum(f'"code": "{code}"' in message["content"] for message in last) == 1
    assert json.dumps(REPAIR[language], ensure_ascii=False) in last[3]["content"]
    assert "secret" not in json.dumps(last) and "tool_calls" not in json.dumps(last)


def test_the_same_tools_are_told_once() -> None:
    talk = Conversation()
    talk.add(role="user", content="来吧")
    talk.offer("tools A")
    talk.add(role="assistant", content="hm")
    talk.add(role="user", content="again")
    talk.offer("tools A")
    assert [json.loads(message)["content"] for message in talk.messages] == ["来吧\n\ntools A", "hm", "again"]
    talk.offer("tools B")
    assert json.loads(talk.messages[-1])["content"] == "again\n\ntools B"
    whole = [json.loads(message) for message in talk.messages]
    assert talk.digest == fingerprint(whole)


class Part(Record):
    """A part of a form."""

    text: str


class Form(Record):
    """What is asked for."""

    parts: tuple[Part, ...]


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("protocol", ["json", "json_schema"])
def test_an_author_answers_in_text_and_repairs(language: Language, protocol: CallProtocol) -> None:
    requests: list[Json] = []
    answers = iter(
        [
            completion(text="好的。", usage=USAGE),
            completion(text='{"name": "hand_in", "arguments": {"parts": [{"txt": "a"}]}}', usage=USAGE),
            completion(text='```json\n{"name": "hand_in", "arguments": {"parts": [{"text": "红"}]}}\n```', usage=USAGE),
        ]
    )

    def script(body: Json) -> Answer:
        requests.append(body)
        return next(answers)

    talk = Conversation()
    talk.add(role="system", content="s")
    talk.add(role="user", content="u")
    tool = record_tool("hand_in", Form, "Hand in.")
    found = obtain(scripted(script, protocol=protocol), talk, tool, 1, language=language)
    assert found.parts[0].text == "红"
    told = [request["messages"][-1]["content"] for request in requests]
    assert "$defs" in told[0] and "tool_call_count" in told[1] and "parts.0.text" in told[2]
    assert not any("$defs" in text for text in told[1:])


def test_an_author_that_never_calls_is_an_error_of_the_author() -> None:
    talk = Conversation()
    talk.add(role="user", content="u")
    prose = scripted(lambda _: completion(text="No.", usage=USAGE), protocol="json")
    with pytest.raises(AuthorError, match="tool_call_count"):
        obtain(prose, talk, record_tool("hand_in", Form, "Hand in."), 1, language="en")


def test_the_schema_holds_all_calls_and_its_references_point_somewhere() -> None:
    tools: list[Tool[Any]] = [record_tool("hand_in", Form, ""), Tool("look", {"type": "object"}, dict)]
    found = response_format([tool.schema for tool in tools])["json_schema"]["schema"]
    assert [branch["properties"]["name"]["enum"] for branch in found["anyOf"]] == [["hand_in"], ["look"]]
    assert "$defs" not in found["anyOf"][0]["properties"]["arguments"] and "Part" in found["$defs"]
    assert '"$ref": "#/$defs/Part"' in json.dumps(found["anyOf"][0])
    alone = response_format([tools[1].schema])["json_schema"]["schema"]
    assert alone["properties"]["name"]["enum"] == ["look"] and "anyOf" not in alone and "$defs" not in alone


def test_a_server_without_schemas_is_refused_with_the_option_to_change(shops: dict[str, EmbeddedShop]) -> None:
    refusal = failure(500, '{"error": {"message": "response_format: Input should be text or json_object"}}')
    with pytest.raises(SetupError, match=r"does not take protocol 'json_schema'.*set protocol to json"):
        Played(shops["en"], lambda _: refusal, "json_schema")


def test_the_simulated_models_call_by_tools() -> None:
    for name, value in (("policy_protocol", "json"), ("policy_stream", True)):
        with pytest.raises(ParameterError, match="for models that ship"):
            workbench.connect_to(workbench.endpoint(Settings.of({name: value}), "policy"))


def test_descriptions_are_one_line_a_tool() -> None:
    tools: Sequence[Json] = [tool.schema for tool in (record_tool("hand_in", Form, "交卷\n第二行"),)]
    assert [len(describe(tools, language).split("\n")) for language in LANGUAGES] == [2, 2]


@pytest.mark.parametrize("language", LANGUAGES)
def test_a_failure_audit_in_text(shops: dict[str, EmbeddedShop], language: Language) -> None:
    case = Case.of(shops[language])
    author = Acting([("inspect_gold", {}), *case.acts(("submit_diagnosis", diagnosis(language)))])
    who = replace(analyst(author, language), model=scripted(in_text(author), protocol="json"))
    analysis, audit = analysts.failure(who, case.failed, case.task, case.shop, case.instance, identity="i")
    assert analysis.cards[0].facts.repair_verified and audit.trials[0]["r_success"] == 1
    roles = [message["role"] for message in author.bodies[-1]["messages"]]
    assert roles == ["system", *["user", "assistant"] * (len(roles) // 2 - 1), "user"]
