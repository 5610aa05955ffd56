from typing import Any

import pytest
from casework import Case, call_of, trajectory_of
from hypothesis import given
from hypothesis import strategies as st

from shopskill_lib.audits import Trials, hidden_words, judge
from shopskill_lib.shops.embedded import EmbeddedShop
from shopskill_lib.text import tokens


@pytest.fixture(params=["en", "zh"])
def case(shops: dict[str, EmbeddedShop], request: pytest.FixtureRequest) -> Case:
    return Case.of(shops[request.param])


def tried(case: Case, steps: int, actions: list[str]) -> Trials:
    trials = Trials(case.shop, case.task, case.failed)
    trials.replay(steps)
    for action in actions:
        trials.act(action)
    return trials


def verdict(case: Case, trials: Trials, claimed: int | None = 1, divergence: int = 2, **change: Any) -> Any:
    return judge(trials.all, claimed, divergence, case.failed.model_copy(update=change), case.gold)


def test_a_prefix_shows_the_recorded_pages(case: Case) -> None:
    trials = Trials(case.shop, case.task, case.failed)
    for steps, turn in enumerate(case.failed.turns):
        trial = trials.replay(steps)
        assert trial.same_pages and trial.current.observation_text == turn.page
    assert [trial.number for trial in trials.all] == [1, 2, 3, 4]


def test_a_page_that_differs_is_recorded_with_its_turn(case: Case) -> None:
    turns = list(case.failed.turns)
    turns[1] = turns[1].model_copy(update={"page": turns[1].page.replace("1. ", "1. other ", 1)})
    trials = Trials(case.shop, case.task, case.failed.model_copy(update={"turns": tuple(turns)}))
    assert trials.replay(0).differs_at is None and not trials.environment_fault
    assert [trials.replay(steps).differs_at for steps in (1, 2)] == [2, 2]
    assert trials.environment_fault and trials.all[1].record["differs_at"] == 2


def test_a_fault_in_the_prefix_costs_a_turn_and_no_action(case: Case) -> None:
    first, *rest = case.failed.turns
    fault = first.model_copy(update={"action": None, "fault": "mixed_content", "feedback": None})
    turns = [fault, *(turn.model_copy(update={"step": turn.step + 1}) for turn in (first, *rest))]
    trials = Trials(case.shop, case.task, case.failed.model_copy(update={"turns": tuple(turns)}))
    assert trials.replay(2).same_pages


def test_a_purchase_ends_only_its_trial(case: Case) -> None:
    trials = tried(case, 1, case.repair[1:])
    assert trials.open is None and trials.all[0].success
    again = trials.replay(1)
    assert trials.open is again and trials.all[0].record["r_success"] == 1 and again.record["reward"] is None


def test_a_repair_is_believed(case: Case) -> None:
    trials = tried(case, 1, case.repair[1:])
    found = verdict(case, trials)
    assert found.repaired and found.actions == len(case.repair) - 1
    later = verdict(case, trials, divergence=3)
    assert later.repaired and "met everything" in later.why


def test_a_claim_that_is_no_repair_is_not(case: Case) -> None:
    good = tried(case, 1, case.repair[1:])
    assert verdict(case, good, claimed=None).why == "no trial is claimed"
    assert verdict(case, good, claimed=2).why == "there is no trial 2"
    assert "begins after turn 1, the divergence is turn 1" in verdict(case, good, divergence=1).why
    assert "did not end with everything met" in verdict(case, tried(case, 1, case.repair[1:-1])).why
    repeated = tried(case, 0, case.repair)
    assert "repeats what was done at turn 1" in verdict(case, repeated).why


def test_gold_bought_at_once_is_no_repair(case: Case) -> None:
    query = f"search[{case.gold.title} {case.gold.brand}]"
    trials = tried(case, 0, [query, *case.repair[1:]])
    assert trials.all[0].success
    found = verdict(case, trials)
    assert not found.repaired and "words that only the gold product shows" in found.why
    secret = set(tokens(f"{case.gold.title} {case.gold.brand}")) - set(tokens(str(case.task.visible_instruction)))
    assert any(word in found.why for word in secret)


def test_words_seen_on_the_way_may_be_searched(case: Case) -> None:
    """What the failed trajectory or this trial has shown is known to a shopper."""
    query = f"search[{case.gold.title}]"
    seen_before = tried(case, 1, ["click[back to search]", query, *case.repair[1:]])
    assert verdict(case, seen_before).repaired
    first = f"search[{case.task.visible_instruction} ]"
    in_this_trial = tried(case, 0, [first.replace(" ]", " please]"), "click[back to search]", query, *case.repair[1:]])
    assert verdict(case, in_this_trial).repaired
    told = tried(case, 0, [query, *case.repair[1:]])
    assert not verdict(case, told).repaired
    assert verdict(case, told, instruction=f"{case.gold.title} {case.task.visible_instruction}").repaired


def test_hidden_words_in_both_languages() -> None:
    secret = set(tokens("Veltra slim 白色跑鞋 轻便"))
    assert hidden_words("slim shoe", secret, set(tokens("a shoe"))) == ["slim"]
    assert hidden_words("白色跑鞋", secret, set(tokens("白色 的 跑鞋"))) == []
    assert hidden_words("轻便跑鞋", secret, set(tokens("跑鞋"))) == ["轻便"]
    assert hidden_words("ＳＬＩＭ", secret, set()) == ["slim"]


@given(st.text(max_size=40), st.text(max_size=40))
def test_what_is_seen_or_not_of_gold_is_never_hidden(query: str, other: str) -> None:
    assert hidden_words(query, set(tokens(other)), set(tokens(query))) == []
    assert hidden_words(query, set(), set()) == []
    found = hidden_words(query, set(tokens(query)), set())
    assert set(found) <= set(tokens(query))


def test_calls_and_actions_are_the_same(case: Case) -> None:
    assert call_of("search[a [b] c]") == ("search", {"query": "a [b] c"})
    assert trajectory_of(case.shop, case.task, case.repair).success
