import json
import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from v8_shop import action_in

from shopskill_lib.records import Language, ObservationState, RequiredOption, Task
from shopskill_lib.shops import outcomes, pages
from shopskill_lib.shops.foreign import V8, Fork, Original, harmless, read_page, translate
from shopskill_lib.shops.outcomes import NoAnswerError

Json = dict[str, Any]

TASK = Task(
    task_id="7",
    split=None,
    instruction="想买一个白色防漏保温杯，50元以内。",
    instruction_simple="想买一个保温杯。",
    persona={"偏好": "白"},
    attributes=("保温",),
    options=(RequiredOption("颜色分类", "白色"),),
    price_upper=50.0,
    gold_asin="100000000001",
    category="家居›杯子",
)
PRODUCT = {
    "asin": "100000000001",
    "title": "示例保温杯",
    "brand": "示例小店",
    "category": "家居›杯子",
    "price": "39.0 to 45.0",
    "key_attributes": ["保温"],
}
FOOTER = "\n\n搜索功能是否可用: {}\n\n可点击的按钮: {}"
DIALECTS = (V8(ours=False, scored=True), Fork("zh", scored=True), Original("zh"))

ODD = st.text(st.one_of(st.sampled_from("<>[]\\nracq \n\r\u2028＜＞searchclick:A手机"), st.characters()), max_size=40)


def fork_state(options: Json, actions: list[str], chosen: Json | None = None, **more: Any) -> Json:
    return {
        "observation_version": "shopping-observation-v2",
        "page_type": "product_detail",
        "search_available": False,
        "actions": ["back to search", "< prev", "description", "buy now", *actions],
        "product": PRODUCT,
        "selected_options": chosen or {},
        "available_options": options,
        **more,
    }


@settings(max_examples=200, deadline=None)
@given(ODD, st.sampled_from(["search", "click"]))
def test_whatever_a_model_writes_is_one_action_or_none(argument: str, verb: str) -> None:
    """Read by v8's own rules (backslash-n, `Action:` lines) and by the fork's greedy pattern."""
    for dialect in DIALECTS:
        said = dialect.said(f"{verb}[{argument}]", pages.home_state())
        assert len(said.splitlines()) == 1 and "\\" not in said
        assert action_in(said) == said
        match = re.match(r"(.+)\[(.+)\]", said)
        assert match is None or (match[1] in ("search", "click") and match[0] == said)
        assert not re.match(r"search\[\s*<[rcaq]>", said)


@given(ODD)
def test_what_is_harmless_stays_so(text: str) -> None:
    assert harmless(harmless(text)) == harmless(text)


def test_ordinary_queries_go_as_they_are() -> None:
    for query in ("苹果 手机壳 透明", "USB-C cable 2m, black", "500ml/保温杯 (白色)", "100元以内"):
        assert all(dialect.said(f"search[{query}]", pages.home_state()) == f"search[{query}]" for dialect in DIALECTS)


def test_our_own_shop_is_told_everything_as_it_is() -> None:
    assert V8(ours=True, scored=True).said("search[<r> a[b]\\n]", pages.home_state()) == "search[<r> a[b]\\n]"


def test_option_values_of_the_fork_get_their_axis() -> None:
    options = {"尺码": ["40", "42"], "颜色": ["白", "黑"]}
    state = translate(fork_state(options, ["白", "黑", "40", "42"], {"颜色": "黑"}, selected_price=39.0))
    assert list(state["available_options"]) == ["颜色", "尺码"], "the page's order, not the encoder's"
    assert state["actions"] == ["back to search", "< prev", "description", "buy now", "颜色=白", "尺码=40", "尺码=42"]
    assert (state["missing_option_axes"], state["options_complete"], state["selected_price"]) == (["尺码"], False, 39.0)
    fork = DIALECTS[1]
    assert fork.said("click[尺码＝42]", state) == "click[42]"
    assert fork.said("click[颜色=白]", state) == "click[白]"
    assert fork.said("click[Buy Now]", state) == "click[buy now]"
    assert translate(fork_state(options, ["白", "黑", "40", "42"], {"颜色": "黑", "尺码": "40"}))["options_complete"]


def test_what_is_chosen_already_goes_out_as_the_page_would_list_it() -> None:
    state: ObservationState = {**pages.home_state(), "selected_options": {"套餐": "标配 | 赠type-c线"}}
    assert DIALECTS[0].said("click[套餐=标配/赠Type-C线]", state) == "click[套餐=标配 | 赠type-c线]"


def test_a_value_on_two_axes_is_offered_where_the_fork_sets_it() -> None:
    options = {"内存": ["标准", "大"], "套餐": ["标准", "礼盒"]}
    state = translate(fork_state(options, ["标准", "大", "标准", "礼盒"]))
    assert state["actions"][4:] == ["内存=大", "套餐=标准", "套餐=礼盒"]
    assert state["available_options"]["内存"] == ["标准", "大"]
    fork = DIALECTS[1]
    assert fork.said("click[套餐=标准]", state) == "click[标准]"
    assert fork.said("click[内存=标准]", state) == "click[内存=标准]", "no button there: nothing happens"


@pytest.mark.parametrize("language", ["en", "zh"])
def test_pages_of_the_fork_read_as_ours(language: Language) -> None:
    state = translate(fork_state({"颜色": ["白"]}, ["白"]))
    text = pages.render(state, language)
    assert "示例保温杯" in text and "- 颜色=白" in text and "39.0 to 45.0" in text
    for content, shown in (("双层不锈钢", "双层不锈钢"), (["防漏", "保温"], "防漏; 保温"), ([], None), ([""], None)):
        sub = translate(
            {**fork_state({}, []), "page_type": "information_subpage", "subpage": "Features", "content": content}
        )
        text = pages.render(sub, language)
        none, name = {"en": ("not given", "features: "), "zh": ("未提供", "商品特点：")}[language]
        assert f"{name}{shown or none}" in text and sub["actions"] == ["back to search", "< prev"]


HOME = {"page_type": "search_home", "search_available": True, "actions": ["search"]}


def test_the_forks_pseudo_actions_are_not_offered() -> None:
    assert translate(HOME)["actions"] == []
    results = {
        "page_type": "search_results",
        "search_available": False,
        "actions": ["search", "finish", "back to search", "100000000001"],
        "query": "杯子",
        "normalized_query": "杯子",
        **{"page": 1, "total_pages": 1, "total_results": 1, "rank_start": 1, "rank_end": 1},
        "products": [{**PRODUCT, "rank": 1, "secret": "x"}],
    }
    state = translate(results)
    assert state["actions"] == ["back to search", "100000000001"]
    assert "secret" not in state["products"][0] and "杯子" in pages.render(state, "zh")


@pytest.mark.parametrize("lost", ["product", "selected_options", "available_options"])
def test_a_state_that_lacks_something_is_no_answer(lost: str) -> None:
    state = fork_state({"颜色": ["白"]}, ["白"])
    del state[lost]
    with pytest.raises(NoAnswerError, match=lost):
        translate(state)
    with pytest.raises(NoAnswerError, match="page_type is 'checkout'"):
        translate({"page_type": "checkout"})


REQUEST = ["Instruction:", TASK.instruction, "Back to Search"]
TEXTS: dict[str, tuple[list[str], str, list[str]]] = {
    "search_home": (["WebShop", "Instruction:", TASK.instruction, "Search"], "True", []),
    "search_results": (
        [*REQUEST, "Page 1 (Total results: 1)", "100000000001", "示例保温杯", "39.0"],
        "False",
        ["back to search", "100000000001"],
    ),
    "product_detail": (
        [*REQUEST, "< Prev", "颜色分类", "白色", "示例保温杯", "价格: 39.0", "Buy Now"],
        "False",
        ["back to search", "< prev", "buy now", "白色"],
    ),
    "information_subpage": ([*REQUEST, "< Prev", "双层不锈钢"], "False", ["back to search", "< prev"]),
    "terminal": (["Thank you for shopping with us!", "Your code:", "None"], "False", []),
}


@pytest.mark.parametrize("kind", TEXTS)
@pytest.mark.parametrize(
    "footer", [FOOTER, "\n\nSearch function available: {}\n\nClickable buttons: {}"], ids=["zh", "en"]
)
def test_pages_of_the_original_are_read_from_their_text(kind: str, footer: str) -> None:
    nodes, search, buttons = TEXTS[kind]
    state, body = read_page(" [SEP] ".join(nodes) + footer.format(search, json.dumps(buttons)), TASK)
    assert (state["page_type"], state["search_available"], state["actions"]) == (kind, search == "True", buttons)
    assert TASK.instruction not in body and "Instruction" not in body and "按钮" not in body
    assert all(node in body for node in nodes[3:])


@pytest.mark.parametrize("text", ["", "WebShop", "x" + FOOTER.format("True", "[1]"), "x" + FOOTER.format("True", "[")])
def test_a_text_without_its_buttons_is_no_page(text: str) -> None:
    with pytest.raises(NoAnswerError, match="names no buttons"):
        read_page(text, TASK)


@pytest.mark.parametrize(
    ("action", "reason"),
    [
        ("search[保温杯]", "executed"),
        ("click[白色]", "executed"),
        ("click[BUY NOW]", "executed"),
        ("click[红色]", "unavailable_action"),
        ("search[<>]", "empty_argument"),
        ("search[]", "empty_argument"),
        ("look around", "invalid_format"),
    ],
)
def test_what_became_of_an_action_is_derived(action: str, reason: str) -> None:
    nodes, search, buttons = TEXTS["product_detail"]
    text = " [SEP] ".join(nodes) + FOOTER.format(search, json.dumps(buttons))
    before, _ = read_page(text, TASK)
    page = DIALECTS[2].page({"instruction": text}, action, before, TASK)
    assert page.feedback is not None and (page.feedback["reason"], page.feedback["valid"]) == (
        reason,
        reason == "executed",
    )
    assert page.feedback["message"] in page.text


def test_a_chosen_option_is_said_to_be_chosen() -> None:
    answer = {"observation_state": fork_state({"颜色": ["白", "黑"]}, ["白", "黑"], {"颜色": "黑"})}
    before = translate(answer["observation_state"])
    assert reason_of(answer, "click[颜色=黑]", before) == "already_selected"
    assert reason_of(answer, "click[颜色=红]", before) == "unavailable_action"
    assert reason_of(answer, "click[颜色=白]", {**before, "actions": []}) == "executed", "the page has changed"


def reason_of(answer: Json, action: str, before: ObservationState) -> str:
    feedback = DIALECTS[1].page(answer, action, before, TASK).feedback
    assert feedback is not None
    return feedback["reason"]


def bought(**goal: Any) -> Json:
    item = {"asin": "100000000001", "name": "示例保温杯", "category": "家居›杯子", "attributes": ["保温"]}
    return {
        "done": True,
        "reward": 0.1,
        "termination_reason": "gold_purchase",
        "reward_detail": {},
        "purchase": {**item, "options": {"颜色分类": "白色"}, "price": 55.0},
        "goal": {**item, "instruction_text": TASK.instruction, "goal_options": ["白色"], **goal},
    }


def test_the_forks_reward_is_ours() -> None:
    """Budget of the goal, else of the request; options on the axes that the goal names, else on any."""
    for goal, within, option in (
        ({"price_upper": 60.0}, 1.0, 1.0),
        ({"price_upper": None}, 0.0, 1.0),
        ({"price_upper": 60.0, "goal_options": ["黑色"]}, 1.0, 0.0),
        ({"price_upper": 60.0, "required_options_by_key": {"c": {"source_axis": "尺码", "value": "白色"}}}, 1.0, 0.0),
        ({"price_upper": 60.0, "goal_options": {"颜色": "白色"}}, 1.0, 1.0),
        ({"price_upper": 60.0, "goal_options": None}, 1.0, 1.0),
    ):
        detail = outcomes.of_fork(bought(**goal), TASK, "zh", scored=True).detail
        assert detail is not None and (detail.r_price, detail.r_option) == (within, option), goal
        assert detail.r_strict == within * option and detail.reported == 0.1


@pytest.mark.parametrize(
    ("change", "found"),
    [
        ({"goal": {}}, "goal.asin"),
        ({"reward": None}, "reward is None"),
        ({"reward": float("nan")}, "reward is nan"),
        ({"purchase": {"asin": "1"}}, "purchase.name"),
    ],
)
def test_an_end_that_lacks_something_is_no_answer(change: Json, found: str) -> None:
    with pytest.raises(NoAnswerError, match=found):
        outcomes.of_fork(bought() | change, TASK, "zh", scored=True)
    if "goal" not in change:
        with pytest.raises(NoAnswerError, match=found):
            outcomes.of_original(bought() | change)


def test_the_originals_reward_is_the_product_of_its_parts() -> None:
    parts = {"r_type": 0.5, "r_att": 0.5, "r_option": 1.0, "r_price": True, "title_score": 0.4, "query_match": False}
    detail = outcomes.of_original(bought() | {"reward": 0.75, "reward_detail": parts}).detail
    assert detail is not None
    assert (detail.r_strict, detail.r_loose, detail.r_success, detail.reported) == (0.25, 0.75, 0, 0.75)
    whole = {**parts, "r_type": 1.0, "r_att": 1.0}
    assert (outcomes.of_original(bought() | {"reward": 1.0, "reward_detail": whole}).detail or detail).r_success == 1
    with pytest.raises(NoAnswerError, match=r"reward_detail\.r_type"):
        outcomes.of_original(bought() | {"reward_detail": {}})
