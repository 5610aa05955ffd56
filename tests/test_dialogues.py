"""Conversations in text: actions in replies, pages, endings, purchases, and one text with role marks."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from recordings import AXES, CUP, REQUESTS, SHOPS, TITLES, product_page, results_page, separated, task_file
from scripted import Json

from shopskill_lib.adapters import chatml
from shopskill_lib.adapters.calls import checked, exchanges
from shopskill_lib.adapters.dialogues import NO_ACTION, Told, told
from shopskill_lib.adapters.react import action_in
from shopskill_lib.firewall import Screen
from shopskill_lib.simulated.decisions import BACK, BUY
from shopskill_lib.simulated.recorded import is_recorded, read_action, read_page
from shopskill_lib.trajectories import Trajectory, instance_of_recording

LANGUAGES = pytest.mark.parametrize("language", ["zh", "en"])


@pytest.mark.parametrize(
    ("text", "action"),
    [
        ("Thought: 先搜索。\nAction: search[白色 保温杯]", "search[白色 保温杯]"),
        ("Thought:\nI think so.\n\nAction:\nclick[Buy Now]", "click[Buy Now]"),
        ("**Action:** search[red cup]", "search[red cup]"),
        ("Thought：好。\nAction：search[杯子]", "search[杯子]"),
        ("Action: search[a[b]c] and more", "search[a[b]c]"),
        ("click[buy now]", "click[buy now]"),
        ("Thought: x\nAction_type: interact_with_env\nAction_content: click[白色]", "click[白色]"),
        (
            "Thought: x\nAction_type: ask_shopper\nAction_content: 要什么颜色？\n大小呢？",
            "ask_shopper[要什么颜色？\n大小呢？]",
        ),
        ("Thought: x\nAction_type: interact_with_env\nAction_content: buy it", None),
        ("I will click[buy now] soon", None),
        ("Action: buy it now", None),
        ("Ok.", None),
        ("", None),
    ],
)
def test_the_action_of_a_reply_is_found(text: str, action: str | None) -> None:
    assert action_in(text) == action


def talk(language: str) -> list[Json]:
    messages: list[Json] = task_file(language)["conversation"]
    return messages


def read(messages: list[Json]) -> Told:
    return told(checked(messages, "here"), "here")


@LANGUAGES
def test_pages_and_actions_in_text_are_turns(language: str) -> None:
    found = read(talk(language))
    assert found.instruction == REQUESTS[language] and found.ending == "purchase" and found.turns is not None
    assert [turn.action for turn in found.turns][1:] == [
        f"click[{CUP}]",
        f"click[{AXES[language][1]}]",
        "click[buy now]",
    ]
    assert found.turns[1].page == results_page(language) and found.turns[3].page == product_page(language, "42")
    bought = found.purchase
    assert bought is not None and (bought.asin, bought.title, bought.price.price) == (CUP, TITLES[language], 42.0)
    assert bought.options == {AXES[language][0]: AXES[language][1]}


def test_a_reply_without_an_action_is_a_fault_and_several_actions_are_not_guessed() -> None:
    silent = talk("en")
    silent[4]["content"] = "I will open it."
    turns = read(silent).turns
    assert turns is not None and (turns[1].action, turns[1].fault) == (None, NO_ACTION)
    several = talk("en")
    several[4]["content"] = f"Action: click[{CUP}]\nObservation: …\nAction: click[buy now]"
    assert read(several)[1:] == (None, None, None)


def test_an_order_counts_where_the_shop_confirms_it_or_its_page_offers_it() -> None:
    thanked = [*talk("zh"), {"role": "user", "content": "Thank you for shopping with us! [SEP] Your code:"}]
    refused = [*talk("zh"), {"role": "user", "content": product_page("zh", "42")}]
    early = [*talk("zh")[:5], {"role": "assistant", "content": "Action: click[buy now]"}]
    early[4] = {"role": "assistant", "content": "Action: click[back to search]"}
    assert [read(one).ending for one in (thanked, refused, early)] == ["purchase", None, None]
    assert read(refused).purchase is None


def test_what_stands_before_the_first_request_is_no_turn() -> None:
    """AgentGym opens with the rules and an `Ok.`."""
    opened = [{"role": "user", "content": "You are web shopping."}, {"role": "assistant", "content": "Ok."}]
    assert read(opened + talk("en")[1:])[:2] == read(talk("en"))[:2]


def test_a_value_of_an_unknown_axis_leaves_the_purchase_untold() -> None:
    messages = talk("en")
    for message in messages:
        message["content"] = message["content"].partition("\n\nSearch function")[0]
    found = read(messages)
    assert found.ending == "purchase" and found.purchase is None


@LANGUAGES
def test_facts_of_pages_in_text_are_screened_and_read_by_the_simulated_author(language: str) -> None:
    found = read(talk(language))
    assert found.turns is not None
    trajectory = Trajectory(
        trajectory_id="t-1", task_id="t-1", instruction=REQUESTS[language], persona=None, hints=(), turns=found.turns,
        ending="purchase", reward=1.0, parts=None, purchase=None, checkpoint=None, simulated=False,
    )  # fmt: skip
    screen = Screen({"t-1": instance_of_recording(trajectory)})
    leaks = {"a": f"open {CUP}", "b": SHOPS[language], "c": TITLES[language]}
    assert {finding.field for finding in screen.scan(leaks, ["t-1"])} == {"a", "b", "c"}
    results, product = read_page(results_page(language)), read_page(product_page(language, "42"))
    assert results.items[0].asin == CUP and results.items[0].low == 39 and not results.is_product
    assert product.is_product and product.price == 42 and product.axes[0].values == AXES[language][1:]
    assert read_page(product_page(language)).price is None and is_recorded(product_page(language))
    value = AXES[language][1]
    done = [read_action(text, "", product) for text in (f"click[{value}]", "click[Buy Now]", "click[Back to Search]")]
    assert done == [("click", f"{AXES[language][0]}={value}"), ("click", BUY), ("click", BACK)]
    assert read_action(f"click[{CUP}]", "", results) == ("click", CUP)
    assert read_page(separated(language, ["< Prev", "soft"], ["< prev"])).items == ()


WORDS = st.text(st.characters(codec="utf-8", exclude_characters="<>"), max_size=20)
NAMES = st.from_regex(r"[a-z_]{1,12}", fullmatch=True)


@st.composite
def conversations(draw: st.DrawFn) -> list[Json]:
    """A request, then replies with or without a call, each call answered."""
    messages: list[Json] = [{"role": "system", "content": draw(WORDS)}, {"role": "user", "content": draw(WORDS)}]
    for _ in range(draw(st.integers(0, 4))):
        if draw(st.booleans()):
            arguments = json.dumps(draw(st.dictionaries(NAMES, WORDS, max_size=2)), ensure_ascii=False)
            function = {"name": draw(NAMES), "arguments": arguments}
            call = {"type": "function", "function": function}
            messages.append({"role": "assistant", "content": draw(WORDS).strip(), "tool_calls": [call]})
            messages.append({"role": "tool", "content": draw(WORDS)})
        else:
            messages.append({"role": "assistant", "content": draw(WORDS)})
            messages.append({"role": "user", "content": draw(WORDS)})
    return messages


@settings(deadline=None)
@given(conversations())
def test_one_text_with_role_marks_is_the_same_conversation(messages: list[Json]) -> None:
    assert chatml.split(chatml.joined(messages)) == messages


@settings(deadline=None)
@given(conversations())
def test_every_call_is_one_exchange_with_its_answer(messages: list[Json]) -> None:
    made = [message["tool_calls"][0]["function"]["name"] for message in messages if "tool_calls" in message]
    answers = [message["content"] for message in messages if message["role"] == "tool"]
    found = exchanges(checked(messages, "here"), "here")
    assert [one.tool for one in found] == made and [one.answer for one in found] == answers


@pytest.mark.parametrize(
    "text",
    [
        "no marks",
        "before <|im_start|>user\nx<|im_end|>",
        "<|im_start|>narrator\nx<|im_end|>",
        "<|im_start|>user\nx<|im_end|>\nafter",
    ],
)
def test_a_text_that_does_not_tell_its_roles_is_not_split(text: str) -> None:
    assert chatml.split(text) is None


@pytest.mark.parametrize(
    "call", ['{"name": "search"', "[1]", '{"name": 5}', '{"name": "a"}</tool_call><tool_call>{"name": "b"}']
)
def test_a_call_that_cannot_be_read_stays_text(call: str) -> None:
    said = f"好。<tool_call>{call}</tool_call>"
    assert chatml.split(f"{chatml.OPENING}{said}{chatml.END}") == [{"role": "assistant", "content": said}]
