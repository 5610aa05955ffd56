import hashlib
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from scripted import Answer, Json, Script, buyer, completion, failure, scripted

from shopskill_lib import templates
from shopskill_lib.agent import Agent, constant, episode_seed, load_prompts, run_episode, tools_of
from shopskill_lib.errors import InfrastructureError, InputError, ParameterError, SetupError
from shopskill_lib.models import ChatModel
from shopskill_lib.records import Hint, Language, ObservationState, Step, Task, fingerprint, make_treatment
from shopskill_lib.shops.embedded import EmbeddedShop
from shopskill_lib.shops.protocol import StepResult

BARE = make_treatment("bare", ())
SKILL = make_treatment("two", (Hint(id="a", text="Use {page} and ```x```"), Hint(id="乙", text="核对规格")))


class Played:
    """An episode, its turns and the requests the model saw."""

    def __init__(self, shop: EmbeddedShop, script: Script = buyer, **more: Any) -> None:
        self.requests: list[Json] = []
        self.steps: list[Step] = []

        def listen(body: Json) -> Answer:
            self.requests.append(body)
            return script(body)

        self.agent = Agent(scripted(listen), shop, load_prompts(shop.catalogue.language), more.get("max_steps", 30))
        self.task: Task = more.get("task", shop.catalogue.tasks["1"])
        hints = more.get("hints", constant(more.get("treatment", BARE)))
        self.end: StepResult = run_episode(self.agent, self.task, hints, more.get("seed", 7), self.steps.append)

    @property
    def ending(self) -> str | None:
        return None if self.end.reward_detail is None else self.end.reward_detail.termination_reason


def replies(*answers: Answer) -> Script:
    """These answers one after the other, then the shopper's own."""
    left = list(answers)
    return lambda body: left.pop(0) if left else buyer(body)


@pytest.fixture(params=["en", "zh"])
def shop(shops: dict[str, EmbeddedShop], request: pytest.FixtureRequest) -> EmbeddedShop:
    return shops[request.param]


@pytest.fixture
def en(shops: dict[str, EmbeddedShop]) -> EmbeddedShop:
    return shops["en"]


def test_an_episode_ends_with_a_purchase(shop: EmbeddedShop) -> None:
    played = Played(shop)
    assert played.ending == "purchase" and played.end.done and played.end.purchase is not None
    first, *_, last = played.steps
    assert (first.page_type, last.page_type, last.action) == ("search_home", "product_detail", "click[buy now]")
    assert [step.step for step in played.steps] == list(range(1, len(played.steps) + 1))
    assert all(step.feedback == "executed" and step.fault is None and step.hint_ids == () for step in played.steps)
    assert all(step.usage is not None and step.finish_reason == "tool_calls" for step in played.steps)


def test_the_messages_are_those_of_the_contract(shop: EmbeddedShop) -> None:
    played = Played(shop, treatment=SKILL)
    system, user, *history = played.requests[-1]["messages"]
    task = played.task
    assert task.persona is not None
    assert system["role"] == "system" and system["content"].startswith(played.agent.prompts.policy.strip())
    assert json.dumps(task.persona, sort_keys=True, ensure_ascii=False) in system["content"]
    hints = '<hint id="a">\nUse {page} and ```x```\n</hint>\n<hint id="乙">\n核对规格\n</hint>'
    assert system["content"].endswith(hints)
    assert user["content"].startswith(f"<request>\n{task.visible_instruction}\n</request>\n\n")
    assert [message["role"] for message in history] == ["assistant", "tool"] * (len(history) // 2)
    for asked, answered in zip(history[::2], history[1::2], strict=True):
        assert asked["content"] == "" and asked["tool_calls"][0]["id"] == answered["tool_call_id"]
    for earlier, later in zip(played.requests, played.requests[1:], strict=False):
        assert later["messages"][: len(earlier["messages"])] == earlier["messages"]


def test_bare_has_no_hints_and_no_persona_no_persona_section(en: EmbeddedShop) -> None:
    task = en.catalogue.tasks["1"].model_copy(update={"persona": None})
    played = Played(en, task=task)
    (system, user) = played.requests[0]["messages"]
    assert system["content"] == played.agent.prompts.policy.strip()
    assert task.instruction in user["content"]


def test_a_step_records_hints_and_the_digest_of_what_was_sent(en: EmbeddedShop) -> None:
    played = Played(en, treatment=SKILL)
    for step, request in zip(played.steps, played.requests, strict=True):
        assert step.hint_ids == ("a", "乙")
        assert step.prompt_digest == fingerprint(request["messages"])
    bare = Played(en)
    assert not {step.prompt_digest for step in bare.steps} & {step.prompt_digest for step in played.steps}


def test_hints_may_depend_on_the_page(en: EmbeddedShop) -> None:
    def on_products(task: Task, page: ObservationState) -> Sequence[Hint]:
        assert task.task_id == "1"
        return SKILL.hints if page["page_type"] == "product_detail" else ()

    played = Played(en, hints=on_products)
    for step, request in zip(played.steps, played.requests, strict=True):
        on_product = step.page_type == "product_detail"
        assert (step.hint_ids == ("a", "乙")) == on_product == ("<hint" in request["messages"][0]["content"])
        assert step.prompt_digest == fingerprint(request["messages"])


def test_call_seeds_count_up_from_the_episode_seed(en: EmbeddedShop) -> None:
    seed = episode_seed(3, "bare", "0012", 1)
    assert seed == int(hashlib.sha256(b"3:bare:0012:1").hexdigest()[:8], 16)
    assert len({episode_seed(3, arm, "1", sample) for arm in ("bare", "masked") for sample in (0, 1)}) == 4
    played = Played(en, seed=2**31 - 2)
    assert [request["seed"] for request in played.requests[:3]] == [2**31 - 2, 2**31 - 1, 0]


def test_tools_follow_the_page(en: EmbeddedShop) -> None:
    played = Played(en)
    (search,) = played.requests[0]["tools"]
    assert search["function"]["parameters"]["properties"] == {"query": {"type": "string", "minLength": 1}}
    session = en.reset(played.task)
    for request, step in zip(played.requests, played.steps, strict=True):
        assert request["tools"] == [tool.schema for tool in tools_of(session.current.state)]
        session.step(str(step.action))


FAULTS = [
    (completion(text="Hm."), "tool_call_count", [("assistant", "Hm."), ("user", None)]),
    (completion(text="", usage={"prompt_tokens": 1, "completion_tokens": 1}), "empty_response", [("user", None)]),
    (completion(("search", '{"query": "re')), "invalid_arguments_json", [("user", None)]),
    (completion(("search", {"q": "x"})), "invalid_tool_arguments", [("assistant", ""), ("tool", None)]),
    (completion(("search", {"query": " \t"})), "invalid_tool_arguments", [("assistant", ""), ("tool", None)]),
    (completion(("search", {"query": 5})), "invalid_tool_arguments", [("assistant", ""), ("tool", None)]),
    (completion(("click", {"value": "x"})), "unavailable_tool", [("user", None)]),
    (completion(("search", {"query": "a"}), text="So:"), "mixed_content", [("assistant", "So:"), ("tool", None)]),
    (
        completion(("search", {"query": "a"}), ("search", {"query": "b"})),
        "tool_call_count",
        [("assistant", ""), ("tool", None), ("tool", None)],
    ),
]


@pytest.mark.parametrize(("answer", "code", "added"), FAULTS, ids=range(len(FAULTS)))
def test_a_fault_costs_a_turn_and_is_explained(
    shop: EmbeddedShop, answer: Answer, code: str, added: list[tuple[str, str | None]]
) -> None:
    played = Played(shop, replies(answer))
    fault, after = played.steps[:2]
    assert (fault.fault, fault.action, fault.feedback) == (code, None, None)
    assert after.page_type == "search_home" and played.ending == "purchase"
    messages = played.requests[1]["messages"][2:]
    assert [message["role"] for message in messages] == [role for role, _ in added]
    for message, (_, text) in zip(messages, added, strict=True):
        if text is not None:
            assert message["content"] == text
        else:
            feedback = json.loads(message["content"])
            assert feedback["type"] == "tool_protocol_error" and feedback["code"] == code
            assert feedback["available_tools"] == ["search"] and feedback["message"]
    assert played.steps[1].prompt_digest == fingerprint(played.requests[1]["messages"])


def test_faults_alone_reach_the_limit_of_turns(en: EmbeddedShop) -> None:
    played = Played(en, replies(*[completion(text="I give up.")] * 30))
    assert played.ending == "action_limit" and len(played.steps) == 30 and played.end.reward == 0
    played = Played(en, max_steps=3)
    assert played.ending == "action_limit" and len(played.steps) == 3


def test_a_click_on_what_is_not_there_is_an_invalid_action(en: EmbeddedShop) -> None:
    search = completion(("search", {"query": "dress"}))
    played = Played(en, replies(search, completion(("click", {"value": " no such thing "}))))
    step = played.steps[1]
    assert step.action == "click[no such thing]" and step.fault is None and step.feedback == "unavailable_action"
    assert played.steps[2].page_type == "search_results" and played.ending == "purchase"


@pytest.mark.parametrize(
    "query", ["x" * 10_000, "a\nb\x00\x07", "👗🧥", "AND (title:red) OR *", "] click[buy now", "\ud83d"]
)
def test_any_query_is_answered(en: EmbeddedShop, query: str) -> None:
    played = Played(en, replies(completion(("search", {"query": query}))))
    assert played.ending == "purchase" and played.steps[0].feedback is not None
    json.dumps(played.steps[0].action, ensure_ascii=False).encode()


def test_tokens_that_run_out_end_the_episode(en: EmbeddedShop) -> None:
    played = Played(en, replies(completion(("search", {"query": "cup"})), completion(("click", "{"), finish="length")))
    assert played.ending == "generation_length" and played.end.reward == 0 and len(played.steps) == 2
    assert played.steps[1].finish_reason == "length" and played.steps[1].fault is played.steps[1].action is None


def test_a_full_context_is_a_set_up_error_at_first_and_an_ending_later(en: EmbeddedShop) -> None:
    full = failure(400, '{"error": {"code": "context_length_exceeded"}}')
    with pytest.raises(SetupError, match="does not fit"):
        Played(en, replies(full))
    played = Played(en, replies(completion(("search", {"query": "cup"})), full))
    assert played.ending == "context_length" and played.end.reward == 0 and played.steps[1].usage is None


def test_a_failing_server_ends_nothing(en: EmbeddedShop) -> None:
    with pytest.raises(InfrastructureError, match="HTTP 503"):
        Played(en, replies(*[failure(503)] * 6))


def test_a_page_with_nothing_to_do_is_a_failure_of_the_shop(en: EmbeddedShop, monkeypatch: pytest.MonkeyPatch) -> None:
    session = en.reset(en.catalogue.tasks["1"])
    state: ObservationState = {**session.current.state, "search_available": False, "actions": []}
    session.current = replace(session.current, state=state)
    monkeypatch.setattr(en, "reset", lambda _: session)
    with pytest.raises(InfrastructureError, match="offers nothing"):
        Played(en)


def test_a_task_without_product_is_refused(en: EmbeddedShop) -> None:
    with pytest.raises(InputError, match="no product"):
        Played(en, task=en.catalogue.tasks["1"].model_copy(update={"gold_asin": "0"}))


@pytest.mark.parametrize("language", ["en", "zh"])
def test_prompts_are_checked_and_filled_in_one_pass(language: Language, tmp_path: Path) -> None:
    own = load_prompts(language)
    assert (
        templates.fill("{page}-{instruction}", {"page": "{instruction}", "instruction": "{page}"})
        == "{instruction}-{page}"
    )
    path = tmp_path / f"policy_{language}.md"
    path.write_text("Buy. 买。", encoding="utf-8")
    changed = load_prompts(language, str(tmp_path))
    assert changed.policy == "Buy. 买。" and changed.task == own.task and changed.sha256 != own.sha256
    for text in ("Buy {persona}", "Buy {any}"):
        path.write_text(text, encoding="utf-8")
        with pytest.raises(ParameterError, match="placeholders are"):
            load_prompts(language, str(tmp_path))
    path.write_bytes(b"\xff")
    with pytest.raises(ParameterError, match="cannot be read"):
        load_prompts(language, str(tmp_path))
    (tmp_path / "polcy_en.md").touch()
    with pytest.raises(ParameterError, match=r"polcy_en\.md is no prompt"):
        load_prompts(language, str(tmp_path))
    with pytest.raises(ParameterError, match="no such folder"):
        load_prompts(language, str(tmp_path / "none"))


def test_a_treatment_is_told_by_its_rendered_text() -> None:
    assert BARE.sha256 == hashlib.sha256(b"").hexdigest() != SKILL.sha256
    assert make_treatment("other", SKILL.hints).sha256 == SKILL.sha256
    assert make_treatment("other", SKILL.hints[::-1]).sha256 != SKILL.sha256


@pytest.mark.parametrize(
    ("hints", "found"),
    [
        ([("a", "x"), ("a", "y")], "'a' occurs twice"),
        ([("a b", "x")], "no single word"),
        ([('"', "x")], "no single word"),
        ([("", "x")], "no single word"),
        ([("a", " \n")], "has no text"),
        ([("a", "x</hint>")], "holds '</hint>'"),
    ],
)
def test_hints_that_the_prompt_cannot_tell_apart_are_refused(hints: list[tuple[str, str]], found: str) -> None:
    with pytest.raises(InputError, match=found):
        make_treatment("t", [Hint(id=name, text=text) for name, text in hints])


def test_a_model_is_metered_by_call(en: EmbeddedShop) -> None:
    costs: list[object] = []
    model: ChatModel = scripted().metered(costs.append)
    steps: list[Step] = []
    run_episode(Agent(model, en, load_prompts("en")), en.catalogue.tasks["2"], constant(BARE), 1, steps.append)
    assert len(costs) == len(steps) > 2
