"""The simulated author on trajectories recorded in another shop: pages, tools, what it sees, what becomes of it."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from casework import lines
from recordings import read_messages

from shopskill_lib.briefs import brief
from shopskill_lib.cards import Audit
from shopskill_lib.desk import AUDIT
from shopskill_lib.distil import read_cards, report_recordings
from shopskill_lib.firewall import Screen
from shopskill_lib.settings import Settings
from shopskill_lib.simulated.casefile import read_case
from shopskill_lib.simulated.decisions import BACK, BUY, NEXT, PREVIOUS, Draws
from shopskill_lib.simulated.diagnosis import Course, Evidence
from shopskill_lib.simulated.reading import OTHER_PAGE, Axis
from shopskill_lib.simulated.recorded import MARK, read_action, read_page
from shopskill_lib.skills import Skill
from shopskill_lib.trajectories import Trajectory, instance_of_recording

REQUEST = (
    "Instruction: Could you get my brother some trail running shoes? They have to be waterproof, "
    "he takes a size 44, and I can spend up to 90 dollars."
)
NORDA, VELTRA = "710000000001", "710000000002"
RESULTS = (
    f"{MARK}page_type: search_results\nquery: shoes\nPage 1 of 1 (Total results: 2; ranks 1-2)\n"
    "格式: rank|asin|price|brand|category|key_attributes|title\n"
    f"1|{NORDA}|80.0 to 120.0|Norda|Sport›Shoes|waterproof,light|Norda trail running shoes\n"
    f"2|{VELTRA}|85.0|Veltra|Sport›Shoes||Veltra | waterproof trail running shoes\n"
    'products_shown: 2\n\n搜索功能是否可用: False\n可点击的按钮: ["back to search"]'
)
HOME = f'{MARK}page_type: search_home\n\n搜索功能是否可用: True\n可点击的按钮: ["search"]'
VALUES = ["42", "43", "44"]


def detail(asin: str, brand: str, price: str, chosen: dict[str, str], kind: str = "product_detail") -> str:
    offered = {"Size": VALUES, "Color": ["black", "grey"]}
    return (
        f"{MARK}page_type: {kind}\nasin: {asin}\ntitle: {brand} waterproof trail running shoes\nbrand: {brand}\n"
        f"category: Sport›Shoes\nprice: {price}\nkey_attributes: waterproof, light\n"
        f"selected_options: {json.dumps(chosen)}\navailable_options: {json.dumps(offered)}\n\n"
        '搜索功能是否可用: False\n可点击的按钮: ["back to search", "buy now", "42", "43", "44"]'
    )


NORDA_44 = detail(NORDA, "Norda", "120.0", {"Size": "44", "Color": "grey"})
CALLS: tuple[tuple[str, dict[str, str], str], ...] = (
    ("search_products", {"query": "waterproof trail running shoes size 44"}, RESULTS),
    ("open_product", {"asin": NORDA}, detail(NORDA, "Norda", "80.0 to 120.0", {})),
    ("view_features", {}, detail(NORDA, "Norda", "80.0 to 120.0", {}, "information_subpage")),
    ("prev_page", {}, detail(NORDA, "Norda", "80.0 to 120.0", {})),
    ("select_option", {"value": "grey"}, detail(NORDA, "Norda", "120.0", {"Color": "grey"})),
    ("select_option", {"value": "44"}, NORDA_44),
    ("prev_page", {}, RESULTS),
    ("open_product", {"asin": VELTRA}, detail(VELTRA, "Veltra", "85.0", {})),
    ("select_option", {"value": "44"}, detail(VELTRA, "Veltra", "85.0", {"Size": "44"})),
    ("select_option", {"value": "black"}, detail(VELTRA, "Veltra", "85.0", {"Size": "44", "Color": "black"})),
    ("buy_now", {}, "The purchase is complete."),
)


@pytest.fixture
def english(write: Callable[..., Path]) -> Trajectory:
    """A small recording of the same form, made up."""
    messages: list[dict[str, Any]] = [{"role": "user", "content": REQUEST}]
    for number, (name, arguments, answer) in enumerate(CALLS):
        function = {"name": name, "arguments": json.dumps(arguments)}
        messages.append({"role": "assistant", "tool_calls": [{"id": f"c{number}", "function": function}]})
        messages.append({"role": "tool", "tool_call_id": f"c{number}", "content": answer})
    (found,) = read_messages(write(json.dumps({"trajectory_id": "made-up", "messages": messages}), "made_up.jsonl"))
    return found


@pytest.fixture
def real(shared: Path) -> tuple[Trajectory, ...]:
    """The twelve published recordings."""
    return read_messages(shared / "data" / "shopsim_traces" / "sft_messages.jsonl")


def seen(trajectory: Trajectory) -> dict[str, Evidence]:
    told = brief(trajectory, Skill(title="", chunks=()), language="zh", room=100_000)
    return Course(read_case(told.text), Draws("task", None, 0)).exercised()


def test_pages_are_read_as_our_own() -> None:
    results = read_page(RESULTS)
    assert [(item.asin, item.low) for item in results.items] == [(NORDA, 80), (VELTRA, 85)] and not results.is_product
    assert {"waterproof", "trail"} <= results.items[1].words and "norda" not in results.items[1].words
    page = read_page(NORDA_44)
    assert page.is_product and page.price == 120 and page.items[0].asin == NORDA
    assert page.axes == (Axis("Size", ("42", "43", "44"), "44"), Axis("Color", ("black", "grey"), "grey"))
    assert read_page(detail(NORDA, "Norda", "80.0 to 120.0", {})).price is None
    assert read_page(HOME) is read_page(f"{MARK}page_type: terminal") is read_page("购买已完成。") is OTHER_PAGE
    assert read_page(NORDA_44.partition(', "43"')[0]).axes == ()


@pytest.mark.parametrize("offered", ["[1]", "null", '{"Size": 4}', "{", "[" * 100_000])
def test_a_page_of_another_form_has_no_axes(offered: str) -> None:
    text = f"{MARK}page_type: product_detail\nasin: {NORDA}\nselected_options: {offered}\navailable_options: {offered}"
    page = read_page(text)
    assert page.is_product and page.axes == () and page.price is None


@pytest.mark.parametrize(
    ("action", "done"),
    [
        ("search_products[羽毛球鞋 [男]]", ("search", "羽毛球鞋 [男]")),
        (f"open_product[{NORDA}]", ("click", NORDA)),
        ("select_option[44]", ("click", "Size=44")),
        ("select_option[45]", ("click", "45")),
        ("prev_page", ("click", PREVIOUS)),
        ("next_page", ("click", NEXT)),
        ("back_to_search", ("click", BACK)),
        ("buy_now", ("click", BUY)),
        ("view_reviews", ("click", "view_reviews")),
        ("finish_without_purchase[nothing fits]", ("click", "finish_without_purchase")),
        ("", None),
        ("I will buy it", None),
    ],
)
def test_tools_are_read_as_our_actions(action: str, done: tuple[str, str] | None) -> None:
    assert read_action(action, NORDA_44, read_page(NORDA_44)) == done


def test_the_way_back_from_a_subpage_leaves_no_product() -> None:
    subpage = detail(NORDA, "Norda", "80.0", {}, "information_subpage")
    assert read_page(subpage).is_product
    assert read_action("prev_page", subpage, read_page(subpage)) == ("click", "prev_page")


def test_what_decided_a_recording_is_seen(english: Trajectory) -> None:
    assert seen(english) == {
        "query": Evidence(1, "search_products[waterproof trail running shoes size 44]"),
        "compare": Evidence(8, f"open_product[{VELTRA}]"),
        "exact": Evidence(6, "select_option[44]"),
        "price": Evidence(7, "price: 120.0"),
        "backtrack": Evidence(7, "prev_page"),
        "stop": Evidence(11, "buy_now"),
    }


SEEN = [
    {"exact": 4}, {"query": 1}, {"query": 1, "exact": 3}, {}, {"query": 1, "exact": 3}, {"exact": 4}, {"query": 1},
    {"compare": 16, "exact": 22, "backtrack": 3}, {"compare": 26, "exact": 32, "backtrack": 8},
    {"compare": 18, "price": 14, "backtrack": 7}, {"query": 1}, {"compare": 11, "exact": 14, "backtrack": 7},
]  # fmt: skip
"""Competence -> step of each published recording, held against the recordings by reading them."""


def test_what_decided_the_published_recordings_is_seen(real: tuple[Trajectory, ...]) -> None:
    assert [{name: evidence.step for name, evidence in seen(one).items()} for one in real] == SEEN


def texts(card: Any) -> dict[str, str]:
    return {name: value for name, value in card.deployable.model_dump().items() if isinstance(value, str)}


def check_cards(given: tuple[Trajectory, ...], language: str, folder: Path) -> None:
    """Cards cite steps and quotes that are there, and no text of theirs names what the recording shows."""
    told = report_recordings(given, Settings.of({"language": language}), folder)
    assert "NaN" not in told and "None" not in told
    by_id = {one.trajectory_id: one for one in given}
    screen = Screen({name: instance_of_recording(one) for name, one in by_id.items()})
    cards = read_cards(folder)
    assert len(cards) >= len(given)
    for card in cards:
        assert screen.scan(texts(card), [card.source_trajectory_id]) == ()
    audits = [Audit.model_validate_json(line) for line in lines(folder / AUDIT)]
    assert {one.trajectory_id for one in audits} == set(by_id)
    for audit in audits:
        for cited in (item for card in audit.diagnosis["cards"] for item in card["evidence"]):
            turn = by_id[audit.trajectory_id].turns[cited["step"] - 1]
            assert cited["quote"] in turn.page or cited["quote"] == turn.action


def test_cards_of_a_recording(english: Trajectory, tmp_path: Path) -> None:
    check_cards((english,), "en", tmp_path)


def test_cards_of_the_published_recordings(real: tuple[Trajectory, ...], tmp_path: Path) -> None:
    check_cards(real, "zh", tmp_path)
