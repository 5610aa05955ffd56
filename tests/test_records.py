import json
from datetime import UTC, datetime
from typing import get_type_hints

import pytest
from pydantic import ValidationError

from shopskill_lib.records import (
    Episode,
    Failure,
    Hint,
    ModelCall,
    ModelIdentity,
    PriceResolution,
    Product,
    Purchase,
    Record,
    RequiredOption,
    Reused,
    RewardDetail,
    Seeds,
    Step,
    Task,
    Usage,
    fingerprint,
    make_treatment,
    total_usage,
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
USAGE = Usage(prompt_tokens=40, completion_tokens=2)
STEP = Step(
    step=1,
    page_type="search_home",
    hint_ids=("a",),
    prompt_digest="d",
    action="search[杯子]",
    fault=None,
    feedback="executed",
    usage=USAGE,
    finish_reason="tool_calls",
    tries=1,
    seconds=0.5,
)
FAULT = STEP.model_copy(update={"step": 2, "action": None, "fault": "empty_response", "feedback": None})
INVALID = STEP.model_copy(update={"step": 3, "feedback": "unavailable_action"})
MODEL = ModelIdentity(model="m", checkpoint="c", temperature=0.0, max_tokens=9, send_seed=True, simulated=True)
FAILED = Episode(
    identity="i",
    arm="bare",
    task_id="7",
    sample=0,
    split="val",
    treatment_id="bare",
    treatment_sha256="s",
    hint_ids=("a",),
    model=MODEL,
    prompts_sha256="p",
    shop={"catalogue": "c", "action_limit": 30},
    seeds=Seeds(rollout_seed=0, episode_seed=5),
    attempt=1,
    status="error",
    ending=None,
    reward=None,
    reward_detail=None,
    purchase=None,
    steps=(STEP, FAULT, INVALID),
    error=Failure(kind="InfrastructureError", message="no reply"),
    started_at=datetime(2026, 1, 1, tzinfo=UTC),
    ended_at=datetime(2026, 1, 1, tzinfo=UTC),
)
EXAMPLES: list[Record] = [
    STEP,
    FAILED,
    make_treatment("t", (Hint(id="a", text="核对"),)),
    Reused(identity="i", arm="bare", task_id="7", sample=0, reused_from="../a/episodes/bare.jsonl"),
    ModelCall(
        arm="bare",
        stage="gate_a",
        role="policy",
        task_id="7",
        sample=0,
        attempt=1,
        outcome="call",
        usage=None,
        money=None,
        tries=1,
        seconds=0.5,
    ),
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


def test_an_episode_counts_its_turns() -> None:
    assert (FAILED.key, FAILED.protocol_faults, FAILED.invalid_actions, FAILED.simulated) == (("7", 0), 1, 1, True)
    assert FAILED.usage == Usage(prompt_tokens=120, completion_tokens=6)


def test_a_sum_of_tokens_never_hides_a_gap() -> None:
    assert total_usage([USAGE, None]) is None and total_usage([]) is None
    assert total_usage([USAGE]) == USAGE


@pytest.mark.parametrize(
    "change",
    [
        {"reward": 0.0},
        {"ending": "purchase"},
        {"error": None},
        {"status": "scored"},
        {"status": "scored", "reward": 1.0, "ending": "purchase"},
        {"status": "scored", "error": None, "ending": "purchase"},
        {"status": "unscored"},
        {"status": "unscored", "error": None},
        {"status": "unscored", "error": None, "ending": "purchase", "reward": 0.0},
    ],
)
def test_I20_an_error_has_no_reward_and_a_score_has_one(change: dict[str, object]) -> None:
    with pytest.raises(ValidationError, match="either a reward and an ending, or an error"):
        Episode.model_validate(FAILED.model_dump() | change)


def test_an_unscored_episode_has_an_ending_alone() -> None:
    change = {"status": "unscored", "error": None, "ending": "purchase"}
    episode = Episode.model_validate(FAILED.model_dump() | change)
    assert (episode.finished, episode.reward, FAILED.finished) == (True, None, False)
