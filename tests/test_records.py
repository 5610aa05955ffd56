import json
from typing import get_type_hints

import pytest
from pydantic import ValidationError

from shopskill_lib.records import (
    PriceResolution,
    Product,
    Purchase,
    Record,
    RequiredOption,
    RewardDetail,
    Task,
    fingerprint,
)

TASK = Task(
    task_id="7",
    split="val",
    instruction="A red cup, no more than $5.",
    instruction_simple="A cup, no more than $5.",
    persona={"preferences": {"color": ["red"]}},
    attributes=("red",),
    options=(RequiredOption("size", "250 ml"),),
    price_upper=5.0,
    gold_asin="1",
    category="Home›Cup",
)
PRICE = PriceResolution(status="pass", method="single_listing_price", price=4.5)
EXAMPLES: list[Record] = [
    TASK,
    Product(
        asin="1",
        title="Cup",
        brand="B",
        shop="S",
        category="Home›Cup",
        attributes=("red",),
        options={"size": {"250 ml": 4.5, "300 ml": None}},
        pricing=(4.5,),
        description="",
    ),
    PRICE,
    Purchase(asin="1", title="Cup", category="Home›Cup", options={"size": "250 ml"}, price=PRICE),
    RewardDetail(
        reward_version="v",
        termination_reason="action_limit",
        r_type=0,
        r_att=0,
        r_option=0,
        r_price=0,
        r_loose=0,
        r_strict=0,
        r_success=0,
        target_asin_match=False,
        price_verifiable=False,
    ),
]


@pytest.mark.parametrize("record", EXAMPLES, ids=lambda record: type(record).__name__)
def test_a_record_survives_json_and_dumps_no_property(record: Record) -> None:
    text = json.dumps(record.model_dump(mode="json"), allow_nan=False)
    assert type(record).model_validate_json(text) == record
    properties = {name for name, value in vars(type(record)).items() if isinstance(value, property)}
    assert not properties & set(record.model_dump())
    assert set(record.model_dump()) <= set(get_type_hints(type(record)))


def test_records_are_frozen_and_closed() -> None:
    with pytest.raises(ValidationError):
        TASK.task_id = "8"
    with pytest.raises(ValidationError):
        PriceResolution.model_validate({"status": "pass", "method": "m", "price": 1.0, "extra": 1})
    with pytest.raises(ValidationError):
        PriceResolution(status="pass", method="m", price=float("nan"))


def test_the_persona_replaces_part_of_the_instruction() -> None:
    assert TASK.visible_instruction == "A cup, no more than $5."
    assert TASK.model_copy(update={"persona": None}).visible_instruction == TASK.instruction


def test_the_fingerprint_is_that_of_the_reference() -> None:
    assert fingerprint({"b": "价", "a": 1}) == fingerprint({"a": 1, "b": "价"})
    assert fingerprint([]) == "4f53cda18c2baa0c0354bb5f9a3ecbe5ed12ab4d8e11ba873c2f11161202b945"
    with pytest.raises(ValueError, match="Out of range"):
        fingerprint(float("nan"))
