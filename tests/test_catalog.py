import json
from pathlib import Path
from typing import Any

import pytest

from shopskill_lib.errors import InputError
from shopskill_lib.records import RequiredOption
from shopskill_lib.shops.catalog import load_catalogue
from shopskill_lib.text import task_key

ENTRY: dict[str, Any] = {
    "asin": "123",
    "title": "白色  跑步鞋",
    "shop_name": "店",
    "category": "鞋›跑步鞋",
    "pricing": [59.0, 79],
    "attribute": ["透气", "透气", " 轻便 "],
    "full_description": "白色跑步鞋",
    "small_description": "",
    "customization_options": {
        "颜色": [{"value": "白色", "price": 59}, {"value": "白 色", "price": 1}, {"value": "黑色", "price": None}],
        "尺码": None,
        "套餐": [],
    },
    "user_persona": {"偏好": {"颜色": "白色"}, "reason_key": "x"},
    "instructions": [
        {
            "task_id": 12,
            "instruction": "想买透气的白色跑步鞋，60元以内。",
            "instruction_simple": "想买跑步鞋，60元以内。",
            "attributes": ["透气"],
            "instruction_options": ["白色"],
        }
    ],
}


def changed(**changes: Any) -> dict[str, Any]:
    return {**ENTRY, **changes}


def write(folder: Path, entries: Any) -> Path:
    path = folder / "items.json"
    path.write_text(entries if isinstance(entries, str) else json.dumps(entries), encoding="utf-8")
    return path


def test_a_product_and_its_task(tmp_path: Path) -> None:
    catalogue = load_catalogue(write(tmp_path, [ENTRY, changed(asin="012", instructions=[])]))
    assert list(catalogue.products) == ["012", "123"]
    product, task = catalogue.products["123"], catalogue.tasks["12"]
    assert product.title == "白色 跑步鞋" and product.brand == "店" and product.pricing == (59, 79)
    assert product.attributes == ("透气", "轻便")
    assert product.options == {"颜色": {"白色": 59, "黑色": None}}  # null and empty axes are no axes
    assert task.options == (RequiredOption(None, "白色"),) and task.price_upper == 60 and task.split is None
    assert task.persona == {"偏好": {"颜色": "白色"}} and task.visible_instruction == "想买跑步鞋，60元以内。"


def test_prices_given_win_over_prices_parsed(tmp_path: Path) -> None:
    given = {**ENTRY["instructions"][0], "price_upper": 45}
    assert load_catalogue(write(tmp_path, [changed(instructions=[given])])).tasks["12"].price_upper == 45


def test_empty_pricing_and_axis_named_options(tmp_path: Path) -> None:
    given = {**ENTRY["instructions"][0], "instruction_options": {"颜色": "白色"}}
    entry = changed(pricing=[], customization_options=None, instructions=[given])
    catalogue = load_catalogue(write(tmp_path, [entry]))
    assert catalogue.products["123"].pricing == (100.0,) and catalogue.products["123"].options == {}
    assert catalogue.tasks["12"].options == (RequiredOption("颜色", "白色"),)


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        (json.dumps([ENTRY])[:-40], "not JSON, or is cut off"),
        ("hello", "not JSON"),
        ({"a": 1}, "holds a dict"),
        ([ENTRY, "x"], "product 2: a str stands where an object belongs"),
        ([changed(asin=None)], "product 1: the product has no id"),
        ([changed(asin="nan")], "has no id"),
        ([ENTRY, changed(asin=123, instructions=[])], "the id 123 occurs twice"),
        ([changed(title=None)], "title is None"),
        ([changed(attribute="x")], "attribute is 'x'"),
        ([changed(pricing=["面议"])], "a price is '面议'"),
        ([changed(pricing=["59.0"])], "a price is '59.0'"),
        ([changed(pricing=[-1])], "a price is -1"),
        ([changed(pricing=[float("nan")])], "a price is nan"),
        ([changed(customization_options=["x"])], "customization_options is a list"),
        ([changed(customization_options={"颜色": "白色"})], "option axis '颜色': the axis holds a str"),
        ([changed(customization_options={"颜色": [{"value": "白色", "price": "59元"}]})], "a price is '59元'"),
        ([changed(customization_options={"颜色": [{"price": 1}]})], "an option is"),
        ([changed(customization_options={"颜色": [None]})], "an option is None"),
        ([changed(instructions=["x"])], "a str stands where an object belongs"),
        ([changed(instructions=[{"attributes": ["a"], "instruction": ""}], user_persona=None)], "no instruction"),
        (
            [ENTRY, changed(asin="9", instructions=[{**ENTRY["instructions"][0], "task_id": "0012"}])],
            "the task id 0012 occurs twice",
        ),
    ],
)
def test_what_cannot_be_used_is_refused(tmp_path: Path, entries: Any, message: str) -> None:
    with pytest.raises(InputError, match="What to do") as refused:
        load_catalogue(write(tmp_path, entries))
    assert message in str(refused.value) and "items.json" in str(refused.value)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file"):
        load_catalogue(tmp_path / "none.json")


def task_file(folder: Path, **changes: Any) -> Path:
    fields = {
        "task_id": 7,
        "instruction": "想买跑步鞋",
        "asin": "123",
        "attributes": ["透气"],
        "options": {"颜色": "白色"},
    }
    path = folder / "tasks.jsonl"
    path.write_text(json.dumps({**fields, **changes}) + "\n\n", encoding="utf-8")
    return path


def test_a_task_file_replaces_the_products_own_tasks(tmp_path: Path) -> None:
    catalogue = load_catalogue(write(tmp_path, [ENTRY]), tasks=task_file(tmp_path))
    assert list(catalogue.tasks) == ["7"]
    assert catalogue.tasks["7"].options == (RequiredOption("颜色", "白色"),)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"asin": "999"}, "task 7 asks for product 999, which is not in the catalogue"),
        ({"task_id": " "}, "no id"),
        ({"attributes": []}, "no required attribute"),
        ({"price_upper": "60"}, "a price is"),
    ],
)
def test_a_task_that_cannot_be_used_is_refused(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match="line 1") as refused:
        load_catalogue(write(tmp_path, [ENTRY]), tasks=task_file(tmp_path, **changes))
    assert message in str(refused.value)


@pytest.mark.parametrize(("one", "other"), [("0012", "12"), (" 12 ", "12"), ("１２", "12")])
def test_task_ids_compare_trimmed_and_as_numbers(one: str, other: str) -> None:
    assert task_key(one) == task_key(other)
    assert task_key("12") != task_key("12a")
    assert task_key("A1") != task_key("a1")


def test_the_real_catalogue(real_files: Path) -> None:
    catalogue = load_catalogue(real_files / "items_eval_train.json")
    assert len(catalogue.products) == 1155 and len(catalogue.tasks) == 49
    assert sum(bool(product.options) for product in catalogue.products.values()) == 65
    limits = [task.price_upper for task in catalogue.tasks.values()]
    assert limits[0] == 290 and sum(limit is not None for limit in limits) == 46
    named = load_catalogue(real_files / "items_eval_train.json", tasks=real_files / "tasks.jsonl")
    assert named.products_fingerprint == catalogue.products_fingerprint
    golds = [[task.gold_asin for task in found.tasks.values()] for found in (named, catalogue)]
    assert golds[0] == golds[1]
    assert named.tasks["1068"].options[0] == RequiredOption("鞋码", "40")
