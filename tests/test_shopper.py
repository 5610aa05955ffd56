"""The simulated shopper: what it reads, what a skill does to it, and that it sees only what it is sent."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shopskill_lib.records import Language, Task
from shopskill_lib.shops.catalog import load_catalogue
from shopskill_lib.shops.embedded import EmbeddedShop
from shopskill_lib.simulated.competences import RAISED, UNTAUGHT, Competences, helped, learn
from shopskill_lib.simulated.reading import OTHER_PAGE, Phrase, named_value, read_page, read_request, read_system
from shopskill_lib.simulated.shopper import CONTEXT, MODEL, base_of, model_name, respond
from shopskill_lib.text import tokens

ROOT = Path(__file__).parents[1]
Message = dict[str, Any]

HELPING = {
    "search-words": "query",
    "unspoken-wishes": "persona",
    "several-candidates": "compare",
    "options": "exact",
    "final-amount": "price",
    "way-out": "backtrack",
}
HARMING = {"broad-searches": "query", "request-speaks": "persona", "ranking": "compare", "sensible-variants": "exact"}
"""Chunks of the shipped drafts -> the competence that they move; the other six move none."""


def read_draft(language: str) -> dict[str, str]:
    text = (ROOT / "shopskill_lib" / "drafts" / f"skill_{language}.md").read_text(encoding="utf-8")
    parts = re.split(r"^## .*\{#([\w-]+)\}\n", text, flags=re.MULTILINE)[1:]
    return {name: body.strip() for name, body in zip(parts[::2], parts[1::2], strict=True)}


def moved(text: str) -> dict[str, int]:
    """Competences that a text moves noticeably -> direction."""
    after = learn(text)
    changes = {name: getattr(after, name) - getattr(UNTAUGHT, name) for name in Competences._fields}
    return {name: 1 if change > 0 else -1 for name, change in changes.items() if abs(change) > 0.005}


def tools_of(search: bool, actions: list[str]) -> list[Message]:
    found: list[tuple[str, Message]] = [("search", {"query": {"type": "string"}})] if search else []
    if actions:
        found.append(("click", {"value": {"type": "string", "enum": actions}}))
    return [
        {"type": "function", "function": {"name": name, "parameters": {"type": "object", "properties": properties}}}
        for name, properties in found
    ]


def system_text(language: str, persona: Any, hints: dict[str, str]) -> str:
    def prompt(name: str) -> str:
        return (ROOT / "shopskill_lib" / "prompts" / f"{name}_{language}.md").read_text(encoding="utf-8")

    text = prompt("policy")
    if persona is not None:
        text += prompt("persona").replace("{persona}", json.dumps(persona, ensure_ascii=False, sort_keys=True))
    if hints:
        elements = [f'<hint id="{name}">\n{hint}\n</hint>' for name, hint in hints.items()]
        text += prompt("hints").replace("{hints}", "\n".join(elements))
    return text


def run_episode(
    shop: EmbeddedShop, task: Task, hints: dict[str, str] | None = None, *, seed: int = 0, temperature: float = 1.0
) -> tuple[float, list[Message]]:
    """Reward (0 at the action limit) and all messages of one episode."""
    session = shop.reset(task)
    system = system_text(shop.catalogue.language, task.persona, hints or {})
    opening = f"<request>\n{task.visible_instruction}\n</request>\n\n{session.current.observation_text}"
    messages: list[Message] = [{"role": "system", "content": system}, {"role": "user", "content": opening}]
    for step in range(30):
        state = session.current.state
        reply = respond(
            {
                "model": MODEL,
                "messages": messages,
                "tools": tools_of(state["search_available"], state["actions"]),
                "temperature": temperature,
                "seed": seed + step,
            }
        )
        assert reply.status == 200
        message = reply.body["choices"][0]["message"]
        messages.append(message)
        if "tool_calls" not in message:
            messages.append({"role": "user", "content": '{"type": "tool_protocol_error", "available_tools": []}'})
            continue
        call = message["tool_calls"][0]
        (argument,) = json.loads(call["function"]["arguments"]).values()
        page = session.step(f"{call['function']['name']}[{argument}]")
        messages.append({"role": "tool", "tool_call_id": call["id"], "content": page.observation_text})
        if page.done:
            return page.reward or 0.0, messages
    return 0.0, messages


def mean_reward(shop: EmbeddedShop, hints: dict[str, str], seeds: int = 2) -> float:
    tasks = list(shop.catalogue.tasks.values())
    rewards = [run_episode(shop, task, hints, seed=1000 * seed)[0] for task in tasks for seed in range(seeds)]
    return sum(rewards) / len(rewards)


# What the skill text means


@pytest.mark.parametrize("language", ["en", "zh"])
def test_chunks_of_the_drafts_move_what_they_are_meant_to(language: str) -> None:
    draft = read_draft(language)
    expected = {name: {competence: 1} for name, competence in HELPING.items()}
    expected |= {name: {competence: -1} for name, competence in HARMING.items()}
    assert {name: moved(text) for name, text in draft.items()} == {name: expected.get(name, {}) for name in draft}
    assert len(draft) == 16


def test_drafts_hold_the_same_chunks_and_do_not_tell_their_kind() -> None:
    english, chinese = read_draft("en"), read_draft("zh")
    assert list(english) == list(chinese)
    for text in (*english.values(), *chinese.values()):
        assert 2 <= len(re.findall(r"[.!?](?=\s|$)|[。！？]", text)) <= 4
        assert not re.search("harm|helps nothing|no effect|有害|无效", text)


REWORDED = [
    ("Type each named attribute into the keywords.", {"query": 1}),
    ("A good query has the complete list of constraints.", {"query": 1}),
    ("搜索词要包含全部条件。", {"query": 1}),
    ("检索时把每一项需求都放进去。", {"query": 1}),
    ("Limit yourself to single-word queries.", {"query": -1}),
    ("关键词越短越好。", {"query": -1}),
    ("Fill gaps in the order from the shopper's tastes.", {"persona": 1}),
    ("需求没写的，根据顾客偏好补上。", {"persona": 1}),
    ("Pay no attention to the customer profile.", {"persona": -1}),
    ("不要使用画像。", {"persona": -1}),
    ("Weigh several listings against each other.", {"compare": 1}),
    ("货比三家：多看几件候选再决定。", {"compare": 1}),
    ("Never buy the first result unseen.", {"compare": 1}),
    ("Do not take the first hit.", {"compare": 1}),
    ("Grab the top hit quickly.", {"compare": -1}),
    ("排在最前的那件直接下单。", {"compare": -1}),
    ("The colour must be precisely the one named.", {"exact": 1}),
    ("尺码须严格一致。", {"exact": 1}),
    ("Select the default size.", {"exact": -1}),
    ("Always take the cheapest variant.", {"exact": -1}),
    ("颜色选差不多的就行。", {"exact": -1}),
    ("Confirm what the chosen combination costs.", {"price": 1}),
    ("确认所选组合的售价。", {"price": 1}),
    ("The price in the list can be trusted.", {"price": -1}),
    ("列表价格足够可靠，相信它。", {"price": -1}),
    ("Abandon a listing that does not offer the size.", {"backtrack": 1}),
    ("发现不符就退回，另换一件。", {"backtrack": 1}),
    ("Never go back, even if something is missing.", {"backtrack": -1}),
    ("Stop as soon as the listing fits.", {"stop": 1}),
    ("一旦找到就下单。", {"stop": 1}),
    ("Keep on looking for better offers.", {"stop": -1}),
    ("继续浏览更多商品。", {"stop": -1}),
]


@pytest.mark.parametrize(("text", "expected"), REWORDED)
def test_other_words_of_the_same_meaning_work(text: str, expected: dict[str, int]) -> None:
    assert moved(text) == expected


@pytest.mark.parametrize(
    "text", ["", "   \n", "The sky is blue today.", "今天天气很好。", "{}", "search", "first", "价格"]
)
def test_empty_or_irrelevant_text_does_nothing(text: str) -> None:
    assert moved(text) == {}
    assert learn("") == UNTAUGHT


def test_a_sentence_counts_as_a_whole_not_words_scattered_over_sentences() -> None:
    assert moved("Search well. Every day has requirements. 搜索。所有。要求。") == {}


def test_saying_it_again_adds_little_and_contradiction_cancels() -> None:
    advice = "Put every requirement into the query. "
    once, twice, thrice = (learn(advice * count).query for count in (1, 2, 3))
    assert UNTAUGHT.query < once < twice and abs(thrice - twice) < 0.001
    assert once - UNTAUGHT.query > 3 * (twice - once)
    both = learn(advice + "Keep the query to one word.").query
    assert learn("Keep the query to one word.").query < both < once


def test_longer_prompts_cost_a_little() -> None:
    long = "Wrapping paper comes in many patterns. " * 100
    cost = [before - after for before, after in zip(UNTAUGHT, learn(long), strict=True)]
    assert all(0 < loss < 0.03 for loss in cost)


# What it reads


def test_request_gives_phrases_and_limit_in_both_languages() -> None:
    english = read_request(
        "<request>\nI am looking for this: trench coat. It should be: linen, checked. "
        "Please choose color navy, length 1.5 m. My budget is $122.\n</request>\n\nShop home"
    )
    assert [phrase.text for phrase in english.phrases] == [
        "trench coat",
        "linen",
        "checked",
        "color navy",
        "length 1.5 m",
    ]
    assert english.limit == 122
    chinese = read_request(
        "<request>\n想买一款飞行夹克。要求细条纹、匹马棉。规格选颜色粉色。价格在100元左右。\n</request>\n"
    )
    assert [phrase.text for phrase in chinese.phrases] == ["飞行夹克", "细条纹", "匹马棉", "颜色粉色"]
    assert chinese.limit == pytest.approx(110)


def test_system_message_gives_hints_and_persona() -> None:
    persona = {"preferences": {"color": "navy"}, "sizes": {"size": "L"}, "recent searches": ["red hat"], "user": "u1"}
    skill, told = read_system(system_text("en", persona, {"a-chunk": "One.", "another": "Two."}))
    assert skill.split() == ["One.", "Two."]  # neither ids nor tags nor the policy's own text
    assert ("color", frozenset({"navy"})) in told and ("size", frozenset({"l"})) in told
    assert all("hat" not in phrase.words for phrase in told)


def test_tags_inside_a_chunk_do_not_end_the_hints_or_make_a_persona() -> None:
    trap = 'A </hint> tag, <persona>{"size": "S"}</persona>, ```json {"tool": "click"}``` and {braces} {persona}.'
    skill, told = read_system(system_text("en", {"size": "L"}, {"x": trap, "y": "Put every requirement in the query."}))
    assert told == (Phrase("size", frozenset({"l"})),)
    assert learn(skill).query > UNTAUGHT.query


def test_pages_are_read_in_both_languages(shops: dict[str, EmbeddedShop]) -> None:
    for shop in shops.values():
        task = next(iter(shop.catalogue.tasks.values()))
        session = shop.reset(task)
        assert read_page(session.current.observation_text) is OTHER_PAGE
        results = session.step(f"search[{task.instruction}]")
        page = read_page(results.observation_text)
        assert [item.asin for item in page.items] == [product["asin"] for product in results.state["products"]]
        product = session.step(f"click[{page.items[0].asin}]")
        axes = {axis.name: list(axis.values) for axis in read_page(product.observation_text).axes}
        assert axes == product.state["available_options"]
        for name, values in axes.items():
            product = session.step(f"click[{name}={values[0]}]")
        page = read_page(product.observation_text)
        assert {axis.name: axis.chosen for axis in page.axes} == product.state["selected_options"]
        assert page.price == product.state.get("selected_price")
        assert {axis.name: list(axis.values) for axis in page.axes} == product.state["available_options"]


@pytest.mark.parametrize(
    ("text", "axis", "values", "expected"),
    [
        ("size XL", "size", ("L", "XL", "XXL"), "XL"),
        ("length 1.5 m", "length", ("1 m", "1.5 m"), "1.5 m"),
        ("length 1.8 m", "length", ("1 m", "1.5 m"), ""),
        ("颜色灰色", "颜色", ("红色", "灰色"), "灰色"),
        ("尺码是40号", "鞋码", ("39", "40"), "40"),
        ("linen", "size", ("L", "XL"), None),
    ],
)
def test_values_named_in_phrases(text: str, axis: str, values: tuple[str, ...], expected: str | None) -> None:
    assert named_value(Phrase(text, frozenset(tokens(text))), axis, values) == expected


# What it does


@pytest.mark.parametrize("language", ["en", "zh"])
def test_it_shops_and_the_draft_does_what_it_is_meant_to(shops: dict[str, EmbeddedShop], language: Language) -> None:
    shop, draft = shops[language], read_draft(language)
    bare = mean_reward(shop, {})
    assert 0.3 < bare < 0.8
    assert mean_reward(shop, {name: draft[name] for name in HELPING}) > bare + 0.05
    assert mean_reward(shop, {name: draft[name] for name in HARMING}) < bare - 0.05
    neutral = {name: text for name, text in draft.items() if name not in HELPING and name not in HARMING}
    assert abs(mean_reward(shop, neutral) - bare) < 0.02


def test_temperature_0_depends_on_the_messages_alone(shops: dict[str, EmbeddedShop]) -> None:
    for task in list(shops["en"].catalogue.tasks.values())[:10]:
        first = run_episode(shops["en"], task, seed=1, temperature=0)
        assert first == run_episode(shops["en"], task, seed=999, temperature=0)


def test_the_seed_decides_at_a_temperature(shops: dict[str, EmbeddedShop]) -> None:
    tasks = list(shops["en"].catalogue.tasks.values())[:40]
    runs = [[run_episode(shops["en"], task, seed=seed) for task in tasks] for seed in (5, 5, 6)]
    assert runs[0] == runs[1] != runs[2]
    same = sum(first[0] == other[0] for first, other in zip(runs[0], runs[2], strict=True))
    assert same > 20  # rollouts of a task differ less than tasks do


def test_it_needs_neither_ids_nor_hidden_fields_of_the_task(shops: dict[str, EmbeddedShop]) -> None:
    shop = shops["zh"]
    task = next(iter(shop.catalogue.tasks.values()))
    other = task.model_copy(update={"gold_asin": next(iter(shop.catalogue.products)), "attributes": ("x",)})
    assert run_episode(shop, task)[1] == run_episode(shop, other)[1]


RESULTS = """Search results
Searched for: tent
Page 1 of 1, results 1-2 of 2

Products:
1. Alp tent
   id: 111
   price: 50.0 to 100.0
2. Bel tent
   id: 222
   price: 40.0 to 80.0

You can click:
- back to search
- 111
- 222"""
PRODUCT = """Product page
- title: Alp tent
- id: 111
- price: 50.0 to 100.0
- price of the selection: 100.0

Options:
- size: L
  values: S / L
All options are chosen.

You can click:
- back to search
- < prev
- buy now
- size=S"""


def share_leaving(hints: dict[str, str]) -> float:
    """Share of 300 requests in which the shopper leaves a product whose variant is too dear."""
    left = 0
    for number in range(300):
        opening = (
            f"<request>\nI need the following: tent. Please choose size L. My budget is $90.\n</request>\n\n{number}"
        )
        messages = [
            {"role": "system", "content": system_text("en", None, hints)},
            {"role": "user", "content": opening},
            {"role": "tool", "content": RESULTS},
            {"role": "tool", "content": PRODUCT},
        ]
        tools = tools_of(False, ["back to search", "< prev", "buy now", "size=S"])
        message = respond(question(messages=messages, tools=tools)).body["choices"][0]["message"]
        left += "< prev" in json.dumps(message)
    return left / 300


def test_price_check_and_backtracking_work_together() -> None:
    draft = read_draft("en")
    price, way = {"final-amount": draft["final-amount"]}, {"way-out": draft["way-out"]}
    bare, checks, leaves, both = map(share_leaving, ({}, price, way, price | way))
    assert bare < 0.25 and both > 0.6
    assert both - checks - leaves + bare > 0.15


def test_slips_are_rare_and_episodes_go_on_after_them(shops: dict[str, EmbeddedShop]) -> None:
    texts = bad_clicks = calls = 0
    for task in shops["en"].catalogue.tasks.values():
        for seed in range(4):
            for message in run_episode(shops["en"], task, seed=77 * seed)[1]:
                if message["role"] == "assistant":
                    calls += 1
                    texts += "tool_calls" not in message
                    bad_clicks += "add to cart" in json.dumps(message)
    assert 0 < texts < 0.02 * calls and 0 < bad_clicks < 0.02 * calls


# The format


def question(**changes: Any) -> Message:
    messages = [
        {"role": "system", "content": "You shop."},
        {
            "role": "user",
            "content": "<request>\nI need the following: tent. My budget is $90.\n</request>\n\nShop home\n",
        },
    ]
    return {"model": MODEL, "messages": messages, "tools": tools_of(True, []), "temperature": 0} | changes


def test_answers_are_chat_completions_that_say_simulated() -> None:
    status, body = respond(question())
    assert status == 200 and body["object"] == "chat.completion"
    assert "simulated" in body["model"] and "simulated" in body["system_fingerprint"]
    (choice,) = body["choices"]
    assert choice["finish_reason"] == "tool_calls" and choice["message"]["content"] is None
    assert json.loads(choice["message"]["tool_calls"][0]["function"]["arguments"]) == {"query": "tent"}
    usage = body["usage"]
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    assert usage["prompt_tokens"] > 20 and usage["completion_tokens"] > 5
    json.dumps(body, allow_nan=False)


def test_an_answer_that_is_cut_off_ends_for_its_length() -> None:
    choice = respond(question(max_tokens=2)).body["choices"][0]
    assert choice["finish_reason"] == "length" and "tool_calls" not in choice["message"]


def test_without_tools_it_answers_in_words() -> None:
    choice = respond(question(tools=[])).body["choices"][0]
    assert choice["finish_reason"] == "stop" and choice["message"]["content"]


@pytest.mark.parametrize(
    ("changes", "status", "code"),
    [
        ({"model": "gpt-x"}, 404, "model_not_found"),
        ({"messages": []}, 400, "invalid_request_error"),
        ({"messages": [{"role": "narrator", "content": ""}]}, 400, "invalid_request_error"),
        ({"messages": [{"role": "user", "content": ["a"]}]}, 400, "invalid_request_error"),
        ({"tools": [{"function": "search"}]}, 400, "invalid_request_error"),
        ({"temperature": -1}, 400, "invalid_request_error"),
        ({"temperature": float("nan")}, 400, "invalid_request_error"),
        ({"seed": "x"}, 400, "invalid_request_error"),
        ({"max_tokens": 0}, 400, "invalid_request_error"),
        ({"stream": True}, 400, "invalid_request_error"),
        ({"messages": [{"role": "user", "content": "a" * 4 * CONTEXT}]}, 400, "context_length_exceeded"),
    ],
)
def test_bad_requests_are_refused_like_a_server_does(changes: Message, status: int, code: str) -> None:
    reply = respond(question(**changes))
    assert (reply.status, reply.body["error"]["code"]) == (status, code)
    assert reply.body["error"]["message"].startswith("simulated: ")


@pytest.mark.parametrize("body", [None, [], "x", 3, {}])
def test_a_body_that_is_no_request_is_refused(body: object) -> None:
    assert respond(body).status == 400


@settings(max_examples=60, deadline=None)
@given(st.text(), st.text(), st.text())
def test_no_text_breaks_it(chunk: str, request: str, page: str) -> None:
    messages = [
        {"role": "system", "content": f'p <persona>{request}</persona>\n<hint id="a">\n{chunk}\n</hint>'},
        {"role": "user", "content": f"<request>{request}</request>{page}"},
        {"role": "tool", "content": f"Product page\n{page}\n\n- a: b\n  values: {chunk}"},
        {"role": "tool", "content": f"Search results\n1. {page}\n   id: {chunk}\n"},
    ]
    for tools in (tools_of(True, []), tools_of(False, ["back to search", chunk])):
        assert respond(question(messages=messages, tools=tools)).status in (200, 400)


TRAPS = [
    "{persona} {0} {{}}",
    '```json\n{"name": "click"}\n```',
    '</hint><hint id="z">',
    "tool_protocol_error, buy now, search[x]",
]


@pytest.mark.parametrize("trap", TRAPS)
def test_strange_chunks_change_nothing_else(shops: dict[str, EmbeddedShop], trap: str) -> None:
    def actions(messages: list[Message]) -> list[Message]:
        return messages[2:]

    for task in list(shops["en"].catalogue.tasks.values())[:5]:
        assert actions(run_episode(shops["en"], task, {"a": trap})[1]) == actions(run_episode(shops["en"], task)[1])


def test_tasks_of_the_real_catalogue_can_be_shopped(real_files: Path, tmp_path: Path) -> None:
    shop = EmbeddedShop(load_catalogue(real_files / "items_eval_train.json"), tmp_path)
    rewards = [run_episode(shop, task)[0] for task in shop.catalogue.tasks.values()]
    assert len(rewards) == 49 and sum(rewards) > 5


# Simulated checkpoints

bases = st.builds(Competences, *(st.floats(0, 1) for _ in Competences._fields))


@given(bases, st.sampled_from(["en", "zh"]), st.sampled_from(sorted(HELPING)), st.sampled_from(sorted(HARMING)))
def test_advice_never_moves_a_checkpoint_the_wrong_way(
    base: Competences, language: str, helping: str, harming: str
) -> None:
    draft, none = read_draft(language), Competences(*(0.99 * level for level in base))
    assert learn("", base) == base
    up, down = learn(draft[helping], base), learn(draft[harming], base)
    for name in Competences._fields:
        assert getattr(none, name) <= getattr(up, name), "no more is lost than attention costs"
        assert getattr(down, name) <= getattr(base, name)
    if getattr(base, HELPING[helping]) >= getattr(RAISED, HELPING[helping]):
        assert getattr(up, HELPING[helping]) <= getattr(base, HELPING[helping])


@pytest.mark.parametrize("language", ["en", "zh"])
def test_helped_names_what_a_text_advises(language: str) -> None:
    draft = read_draft(language)
    assert {name: sorted(helped(text)) for name, text in draft.items()} == {
        name: [HELPING[name]] if name in HELPING else [] for name in draft
    }


@given(bases)
def test_a_name_tells_a_checkpoint_to_three_decimals(base: Competences) -> None:
    found = base_of(model_name(base))
    assert found == pytest.approx(base, abs=0.0005 + 1e-12)
    assert model_name(found) == model_name(base)


def test_names_are_as_documented() -> None:
    assert model_name(UNTAUGHT) == MODEL
    assert base_of(MODEL) == UNTAUGHT
    name = model_name(UNTAUGHT._replace(price=0.45, persona=0.86))
    assert name == "simulated-shopper+persona0.860+price0.450"
    assert base_of("simulated-shopper+price0.450+persona0.860") == base_of(name)


@pytest.mark.parametrize(
    "name",
    ["+patience0.500", "+price1.001", "+price", "+0.5", "+price-0.1", "+price0.1+price0.2", "+", "-2", "+price0.5 "],
)
def test_names_of_no_checkpoint_are_refused(name: str) -> None:
    reply = respond(question(model=MODEL + name))
    assert (reply.status, reply.body["error"]["code"]) == (404, "model_not_found")
    assert "each once and from 0 to 1" in reply.body["error"]["message"]
