"""The ledger: events that are never rewritten, and what is known by now."""

import itertools
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from shopskill_lib import ledger
from shopskill_lib.errors import InputError
from shopskill_lib.ledger import (
    Event,
    LeftOut,
    Mechanism,
    Proposal,
    Proposed,
    Replaced,
    Replacement,
    Retired,
    Retirement,
    Validated,
    Validation,
    WasLeftOut,
)
from shopskill_lib.skills import read_skill
from shopskill_lib.text import ngram_similarity

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)


def proposal(candidate_id: str = "c1", **changes: Any) -> Proposal:
    fields: dict[str, Any] = {
        "candidate_id": candidate_id,
        "operation": "ADD",
        "target_chunk_id": None,
        "source_card_ids": ("card-1",),
        "failure_mechanism": "Price of the variant unchecked",
        "proposal_checkpoint": "step-0",
        "stage": "cold_start",
        "round": None,
        "consolidation_cluster_id": "cluster-1",
        "replacement_family_id": None,
        "content": f"The lesson of {candidate_id}.",
    }
    return Proposal(**fields | changes)


def proposed(candidate_id: str = "c1", **changes: Any) -> Proposed:
    return Proposed.of(proposal(candidate_id, **changes), at=NOW, reason="compiled")


def online(candidate_id: str, round: int, **changes: Any) -> Proposed:
    return proposed(candidate_id, stage="online", round=round, proposal_checkpoint=f"step-{round}", **changes)


def outcome(candidate_id: str | None, effect: float, round: int | None = None, rank: int | None = 1) -> dict[str, Any]:
    return {
        "candidate_id": candidate_id,
        "chunk_id": f"slot-{candidate_id}",
        "round": round,
        "evaluation_checkpoint": f"step-{round or 0}",
        "estimated_effect": effect,
        "contribution_rank": rank,
    }


def validated(candidate_id: str, result: str, effect: float, round: int | None = None) -> Validated:
    payload = Validation.model_validate(outcome(candidate_id, effect, round) | {"validation_result": result})
    return Validated.of(payload, at=NOW, reason="gate")


def retired(candidate_id: str | None, effect: float, round: int) -> Retired:
    return Retired.of(Retirement(**outcome(candidate_id, effect, round)), at=NOW, reason="non_positive")


def left_out(card: str = "card-9") -> WasLeftOut:
    payload = LeftOut(
        source_card_ids=(card,),
        consolidation_cluster_id=None,
        failure_mechanism="忽略画像",
        proposal_checkpoint="step-0",
        stage="cold_start",
        round=None,
    )
    return WasLeftOut.of(payload, at=NOW, reason="over M_init")


def history() -> list[Event]:
    """Five candidates of the cold start and one of round 1, and two gates."""
    replaced = Replacement(**outcome("c4", 0.01, 1, None), replaced_by="c6")
    return [
        *(proposed(f"c{number}") for number in range(1, 6)),
        left_out(),
        validated("c1", "selected", 0.08),
        validated("c2", "non_positive", -0.02),
        validated("c3", "budget_excluded", 0.01),
        validated("c4", "selected", 0.03),
        online("c6", 1, operation="REWRITE", target_chunk_id="slot-c4", failure_mechanism="另一种失败"),
        retired("c1", -0.01, 1),
        Replaced.of(replaced, at=NOW, reason="pair"),
        validated("c6", "selected", 0.05, 1),
    ]


# The file


def test_what_is_appended_reads_back(tmp_path: Path) -> None:
    path = tmp_path / ledger.FILE
    assert ledger.read(path) == []
    ledger.append(path, history())
    assert ledger.read(path) == history()


@given(stops=st.lists(st.integers(0, 14), max_size=4))
def test_a_repeated_round_writes_nothing_twice(tmp_path_factory: pytest.TempPathFactory, stops: list[int]) -> None:
    """However often a round was interrupted, the ledger is that of an unbroken one, times of the first writing kept."""
    path = tmp_path_factory.mktemp("ledger") / ledger.FILE
    for number, stop in enumerate([*stops, 14]):
        later = NOW + timedelta(hours=number)
        ledger.append(path, [event.model_copy(update={"at": later}) for event in history()[:stop]])
    found = ledger.read(path)
    assert [event.id for event in found] == [event.id for event in history()]
    assert found[0].at == NOW + timedelta(hours=next(i for i, stop in enumerate([*stops, 14]) if stop))
    size = path.stat().st_size
    ledger.append(path, [*history(), *history()])
    assert path.stat().st_size == size


def test_earlier_lines_are_never_touched(tmp_path: Path) -> None:
    path = tmp_path / ledger.FILE
    ledger.append(path, history()[:7])
    before = path.read_bytes()
    ledger.append(path, history())
    assert path.read_bytes().startswith(before)
    path.write_bytes(before[:-30])
    ledger.append(path, history())
    assert ledger.read(path) == history(), "a torn last line is written again"


def test_a_ledger_without_its_beginning_is_refused(tmp_path: Path) -> None:
    path = tmp_path / ledger.FILE
    ledger.append(path, history())
    first, *rest = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(rest))
    with pytest.raises(InputError, match=r"rests on .* remove the file"):
        ledger.read(path)
    path.write_bytes(b"".join([*rest, first]))
    with pytest.raises(InputError, match="rests on"):
        ledger.read(path)


def test_the_id_is_that_of_the_content_on_every_machine() -> None:
    event = left_out()
    assert event.id == "9f2bb2f8cf06494b5b26b911b46b0a7d64976de9947fe288703235d04d05ab30"
    assert WasLeftOut.of(event.payload, at=NOW + timedelta(days=1), reason="other words").id == event.id
    assert WasLeftOut.of(event.payload, at=NOW, reason="over M_init", follows=["x"]).id != event.id
    assert left_out("card-8").id != event.id


def test_a_changed_line_is_refused_with_its_place(tmp_path: Path) -> None:
    path = tmp_path / ledger.FILE
    ledger.append(path, history())
    path.write_text(path.read_text(encoding="utf-8").replace("-0.02", "0.02"), encoding="utf-8")
    with pytest.raises(InputError, match=r"ledger\.jsonl, line 8: the line is damaged .*the id is not the hash"):
        ledger.read(path)
    path.write_text('{"event": "forgotten"}\n{}', encoding="utf-8")
    with pytest.raises(InputError, match=r"line 1: .*'proposed', 'left_out', 'validated', 'retired', 'replaced'"):
        ledger.read(path)


def test_an_outcome_needs_its_proposal_and_what_it_follows(tmp_path: Path) -> None:
    path = tmp_path / ledger.FILE
    with pytest.raises(InputError, match=r"rests on candidate c1, which the ledger does not have"):
        ledger.append(path, [left_out(), validated("c1", "selected", 0.1)])
    following = Proposed.of(proposal(), at=NOW, reason="compiled", follows=[left_out().id])
    with pytest.raises(InputError, match=f"rests on event {left_out().id}"):
        ledger.append(path, [following, left_out()])
    assert not path.exists()
    ledger.append(path, [left_out(), following, retired(None, -0.1, 1)])
    assert len(ledger.read(path)) == 3


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"operation": "REWRITE"}, "a REWRITE has a target_chunk_id, an ADD has none"),
        ({"target_chunk_id": "x"}, "a REWRITE has a target_chunk_id, an ADD has none"),
        ({"operation": "DELETE"}, "'ADD' or 'REWRITE'"),
        ({"round": 1}, "one of the cold start has none"),
        ({"stage": "online"}, "an online proposal has a round"),
        ({"validation_result": "selected"}, "a proposal has no result yet"),
        ({"gold_asin": "B1"}, "Extra inputs are not permitted"),
    ],
)
def test_proposals_that_contradict_themselves_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        proposed(**changes)


def test_an_event_takes_its_own_payload_only() -> None:
    with pytest.raises(ValidationError, match="payload"):
        Validated.of(proposal(), at=NOW, reason="gate")


# The views


def test_proposals_carry_their_latest_outcome() -> None:
    found = {row.candidate_id: row for row in ledger.proposals(history())}
    results = {
        name: (row.validation_result, row.estimated_effect, row.contribution_rank) for name, row in found.items()
    }
    assert results == {
        "c1": ("retired", -0.01, 1),
        "c2": ("non_positive", -0.02, 1),
        "c3": ("budget_excluded", 0.01, 1),
        "c4": ("rewrite_loser", 0.01, None),
        "c5": (None, None, None),
        "c6": ("selected", 0.05, 1),
    }
    assert (found["c1"].proposal_checkpoint, found["c1"].evaluation_checkpoint) == ("step-0", "step-1")


@given(st.integers(0, 14))
def test_a_later_event_never_rewrites_an_earlier_one(length: int) -> None:
    """The view of a ledger as it was stays what it was, and holds every proposal so far as it was made."""
    events = history()
    before = [event.model_dump_json() for event in events]
    rows = ledger.proposals(events[:length])
    assert [event.model_dump_json() for event in events] == before
    made = [event.payload for event in events[:length] if isinstance(event, Proposed)]
    assert [row.content for row in rows] == [payload.content for payload in made]


def test_a_candidate_proposed_again_is_another_row() -> None:
    events = [*history(), online("c2", 2), validated("c2", "selected", 0.06, 2)]
    rows = [row for row in ledger.proposals(events) if row.candidate_id == "c2"]
    assert [(row.round, row.validation_result) for row in rows] == [(None, "non_positive"), (2, "selected")]


def test_rejected_is_what_lost_and_was_never_in_the_skill() -> None:
    events = [*history(), online("c7", 2), validated("c7", "rewrite_loser", 0.02, 2)]
    assert [row.candidate_id for row in ledger.rejected(events)] == ["c2", "c7"]


def test_once_useful_is_told_from_bad() -> None:
    events = [*history(), proposed("c8"), validated("c8", "rewrite_loser", -0.1)]
    events += [proposed("c9"), validated("c9", "non_positive", 1e-13)]
    past = ledger.once_useful(events)
    assert [row.candidate_id for row in past.bad] == ["c2", "c8", "c9"]
    assert [row.candidate_id for row in past.once_useful] == ["c1"]


def test_mechanisms_recur_in_any_spelling() -> None:
    again = online("c7", 2, failure_mechanism="price of the  ＶＡＲＩＡＮＴ unchecked")
    events = [*history(), again, online("c8", 2, failure_mechanism=None), validated("c7", "selected", 0.1, 2)]
    assert ledger.mechanisms(events) == [
        Mechanism("Price of the variant unchecked", 6, (None, 2), "selected"),
        Mechanism("另一种失败", 1, (1,), "selected"),
    ]


LESSON = {
    "en": "After choosing the options, check the price of the selected variant before you buy.",
    "zh": "选好规格后，先核对所选规格的价格，再下单购买。",
}
REWORDED = {
    "en": "BEFORE you buy – check the price of the selected variant, after choosing the options!",
    "zh": "下单购买之前,先核对所选规格的价格",
}
OTHER = {
    "en": "After choosing the options, check that every axis has the value the request names.",
    "zh": "选好规格后，先核对所选的颜色与请求完全一致。",
}


@pytest.mark.parametrize("language", ["en", "zh"])
def test_a_rejected_synonym_is_found(language: str) -> None:
    rewrite = {"operation": "REWRITE", "target_chunk_id": "amount", "stage": "online", "round": 1}
    events = [
        proposed("bad", content=LESSON[language]),
        proposed("useful", content=OTHER[language]),
        proposed("rewrite", content=LESSON[language], **rewrite),
        validated("bad", "non_positive", -0.02),
        validated("useful", "selected", 0.1),
        validated("rewrite", "rewrite_loser", 0.02, 1),
    ]

    def found(text: str, operation: Any = "ADD", target: str | None = None) -> str | None:
        row = ledger.similar(events, text, operation, target)
        return None if row is None else row.candidate_id

    assert found(REWORDED[language]) == "bad"
    assert found(REWORDED[language], "REWRITE", "amount") == "rewrite"
    assert found(REWORDED[language], "REWRITE", "other") is None
    assert found(OTHER[language]) is None, "it is near a selected one, which does not count, and not near the rejected"
    assert ledger.similar([], LESSON[language], "ADD", None) is None


def draft(language: str) -> dict[str, str]:
    path = Path(ledger.__file__).with_name("drafts") / f"skill_{language}.md"
    return {chunk.chunk_id: chunk.text for chunk in read_skill(path).chunks}


SAME = [
    (LESSON["en"], REWORDED["en"]),
    (
        "Put every requirement of the request into the search query.",
        "Put all requirements of the request into your search query!",
    ),
    ("Compare at least two or three candidates before settling.", "Before settling, compare two or three candidates"),
    (
        "Choose the option value that is named in the request exactly, not one that is close to it.",
        "Choose exactly the option value named in the request, never a value that is merely close.",
    ),
    (
        "Use the customer's profile to fill in what the request leaves open, such as size or color.",
        "Fill in what the request leaves open (size, colour) from the customer's profile.",
    ),
    (LESSON["zh"], REWORDED["zh"]),
    (LESSON["zh"], "选完规格之后，要先核对所选规格的价格，然后再下单。"),
    ("把请求中的所有要求都写进搜索词，不要只写品类。", "搜索词要写进请求中的所有要求，而不要只写品类。"),
    ("商品不符合要求时，返回搜索结果，换一个候选商品。", "如果商品不符合要求，就返回搜索结果，换另一个候选商品。"),
    ("请求没有说明的尺码和颜色，参考顾客画像补全。", "参考顾客画像，补全请求没有说明的尺码与颜色。"),
    ("预算为１００元、规格 ＸＬ 时，核对　规格价。", "预算为100元,规格xl时核对规格价."),
]
DIFFERENT = [
    (LESSON["en"], OTHER["en"]),
    ("Put every requirement into the search query.", "Leave the brand out of the search query when no result comes."),
    ("Compare two or three candidates before settling.", "Compare the description with every requirement."),
    (
        "When a product turns out to be wrong, go back and open another candidate.",
        "When a search brings no fitting product, go back and search with other words.",
    ),
    (LESSON["zh"], OTHER["zh"]),
    ("把请求中的所有要求都写进搜索词。", "把顾客画像中的品牌偏好写进搜索词。"),
    ("商品不符合要求时，返回搜索结果，换一个候选商品。", "搜索结果没有合适的商品时，换一个搜索词重新搜索。"),
    ("至少比较两三件候选商品，再决定买哪一件。", "全部要求都满足后立即下单，不再浏览其他商品。"),
    *itertools.combinations(draft("en").values(), 2),
    *itertools.combinations(draft("zh").values(), 2),
    *zip(draft("en").values(), draft("zh").values(), strict=True),
]


def test_the_threshold_parts_the_same_lesson_from_others() -> None:
    """With room on both sides: what is reworded lightly, and what shares a topic."""
    assert min(ngram_similarity(*pair) for pair in SAME) > ledger.SYNONYM + 0.02
    assert max(ngram_similarity(*pair) for pair in DIFFERENT) < ledger.SYNONYM - 0.02


def test_what_characters_cannot_tell() -> None:
    """Known limits: one exchanged word in a short text passes as the same, other words for the same lesson as new."""
    assert ngram_similarity("核对所选规格的价格再下单", "核对所选规格的尺码再下单") > ledger.SYNONYM
    assert ngram_similarity(LESSON["zh"], "付款前确认当前组合的金额没有超出预算。") < ledger.SYNONYM
    assert (
        ngram_similarity(LESSON["en"], "Confirm that what it costs fits the budget prior to paying.") < ledger.SYNONYM
    )
