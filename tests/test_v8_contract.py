"""The v8 fixture keeps the contract, and the contract's check finds each way in which a server can fail to."""

from collections.abc import Callable
from typing import Any

import pytest
import v8_fixture
from v8_actions import action_limit, away_from_home, grammar, labelled, options, paging
from v8_contract import (
    bad_requests,
    bad_resets,
    check,
    health,
    leases,
    persona,
    purchase,
    release_all,
    reset,
    terminate,
    waiting,
)
from v8_driver import Topic
from v8_fixture import V8, Leases, RefusedError, Reply, v8_server
from v8_pages import rendered
from v8_shop import GOLD, PERSONA_TASK, STANDARD_TASK, Episode, Json

Patch = pytest.MonkeyPatch


def deviations(topics: list[Topic], task: int = PERSONA_TASK, **server: Any) -> list[str]:
    with v8_server(**{"slots": 8, **server}) as shop:
        return check(shop.url, task_idx=task, persona_idx=PERSONA_TASK, gold_actions=GOLD[task], topics=topics)


@pytest.mark.parametrize("slots", [1, 3])
@pytest.mark.parametrize("task", GOLD)
def test_the_fixture_keeps_the_contract(slots: int, task: int) -> None:
    with v8_server(slots=slots, extra={"note": "值"}) as shop:
        assert check(shop.url, task_idx=task, persona_idx=PERSONA_TASK, gold_actions=GOLD[task]) == []
        assert shop.leases.active == {}


def named(item: Any) -> str:
    """How a parameter is called in the name of a test."""
    return item[:50] if isinstance(item, str) else getattr(item, "__name__", type(item).__name__)


def lacking(name: str) -> Callable[[Json], Json]:
    return lambda answer: {key: value for key, value in answer.items() if key != name}


def having(**fields: Any) -> Callable[[Json], Json]:
    return lambda answer: answer | fields


def on_page(**fields: Any) -> Callable[[Json], Json]:
    return lambda answer: answer | {"observation_state": answer["observation_state"] | fields}


def in_detail(**fields: Any) -> Callable[[Json], Json]:
    return lambda answer: answer | {"reward_detail": answer["reward_detail"] and answer["reward_detail"] | fields}


ANSWERS: list[tuple[str, Callable[[Json], Json], Topic, str]] = [
    ("health", lacking("ready"), health, "/healthz lacks ready"),
    ("health", having(tasks="2"), health, "tasks of /healthz is not a whole number"),
    ("health", having(free_slots=8), health, "a reset does not take one slot"),
    ("started", lacking("user_persona"), persona, "user_persona is missing with if_persona"),
    ("started", having(task_instruction="买耳机"), persona, "does not show the simple text"),
    ("started", having(goal_options=[]), reset, "reset tells goal_options unasked"),
    ("started", having(idx="1828"), reset, "idx of the answer to reset is not a whole number"),
    ("started", having(lease_id="abc"), reset, "lease_id is not the hex form of a uuid4"),
    ("started", on_page(answer="黑色"), reset, "observation_state holds answer"),
    ("started", on_page(observation_version="v6"), reset, "observation_version is not"),
    ("stepped", having(idx=PERSONA_TASK), purchase, "idx of the answer to interact is not a text"),
    ("stepped", having(over=False), purchase, "done and over differ"),
    ("stepped", having(reward=0.5), purchase, "reward is not 0 in the answer to interact before"),
    ("stepped", having(reason_key="因"), purchase, "the answer to interact tells reason_key"),
    ("stepped", lacking("lease_id"), purchase, "the answer to interact lacks lease_id"),
    ("interact", lacking("action_feedback"), purchase, "action_feedback is not an object"),
    ("interact", in_detail(r_strict=0.5), purchase, "r_strict of reward_detail is not what its formula gives"),
    ("interact", in_detail(r_success=True), purchase, "r_success of reward_detail after purchase is not 0 or 1"),
    ("interact", on_page(actions=["buy now"]), purchase, "the actions on product_detail are not the ones"),
    ("terminate", having(action_feedback={}), terminate, "terminate answers with action_feedback"),
    ("terminate", on_page(page_type="terminal", actions=[]), terminate, "terminate changes the page"),
    ("terminate", in_detail(category_match=False), terminate, "has fields of a purchase"),
    ("release_one", lambda _: {}, terminate, "release_one is answered without a message"),
]


@pytest.mark.parametrize(("method", "change", "topic", "sentence"), ANSWERS, ids=named)
def test_a_wrong_answer_is_found(
    monkeypatch: Patch, method: str, change: Callable[[Json], Json], topic: Topic, sentence: str
) -> None:
    right = getattr(V8, method)
    monkeypatch.setattr(V8, method, lambda *given: change(right(*given)))
    assert any(sentence in line for line in deviations([topic]))


STATUSES: list[tuple[int, int, Topic, str]] = [
    (500, 400, bad_resets, "reset of an unknown task is answered with 400, not 500"),
    (400, 500, bad_requests, "an unknown action is answered with 500, not 400"),
    (409, 403, leases, "terminate after release_one is answered with 403, not 409"),
    (500, 200, terminate, "interact after terminate is answered with 200, not 500"),
]


@pytest.mark.parametrize(("right", "wrong", "topic", "sentence"), STATUSES)
def test_a_wrong_status_is_found(monkeypatch: Patch, right: int, wrong: int, topic: Topic, sentence: str) -> None:
    carry_out = V8.reply

    def reply(*given: Any) -> Reply:
        found = carry_out(*given)
        return found._replace(status=wrong) if found.status == right else found

    monkeypatch.setattr(V8, "reply", reply)
    assert any(sentence in line for line in deviations([topic]))


def no_rollback(shop: V8, body: Json) -> Json:
    return shop.started(shop.leases.acquire()[0], body)


def no_waiting(pool: Leases) -> tuple[int, str]:
    if len(pool.active) == pool.slots:
        raise RefusedError(503, "all slots are taken")
    return ACQUIRE(pool)


def last_labelled(response: str) -> str:
    return response.splitlines()[-1].removeprefix("Action: ")


def freed_at_the_end(shop: V8, slot: int, body: Json) -> Json:
    answer = INTERACT(shop, slot, body)
    if answer["done"]:
        shop.leases.release(slot, answer["lease_id"])
    return answer


ACQUIRE, INTERACT, CLICK = Leases.acquire, V8.interact, Episode._click
BEHAVIOURS: list[tuple[object, str, object, Topic, str]] = [
    (Leases, "check", lambda *_: None, leases, "interact with a lease nobody holds is answered with 200, not 409"),
    (Leases, "forget", lambda _: None, release_all, "release_all does not free every slot"),
    (Leases, "acquire", no_waiting, waiting, "a reset is answered while no slot is free"),
    (V8, "reset", no_rollback, bad_resets, "reset of an unknown task keeps a slot"),
    (V8, "interact", freed_at_the_end, purchase, "gives its slot back before release_one"),
    (v8_fixture, "LIMITS", {"single_turn": 31, "multi_turn": 40}, action_limit, "single_turn does not end with"),
    (v8_fixture, "LIMITS", {"single_turn": 30, "multi_turn": 39}, action_limit, "multi_turn ends before action 40"),
    (v8_fixture, "action_in", lambda text: text, labelled, "gives invalid_format, not executed"),
    (v8_fixture, "action_in", last_labelled, grammar, "gives executed, not multiple_actions"),
    (
        Episode,
        "_click",
        lambda self, value: CLICK(self, value.lower()),
        away_from_home,
        "'click[Back to Search]' gives",
    ),
    (Episode, "_buy", lambda _: "unavailable_action", options, "gives unavailable_action, not incomplete_options"),
    (v8_fixture, "rendered", lambda state: rendered(state).strip(), options, "does not end with one newline"),
    (v8_fixture, "rendered", lambda _: "页面\n", options, "does not show"),
    (v8_fixture, "rendered", lambda state: rendered(state).replace("- ", "* "), options, "has no dashed line"),
]


@pytest.mark.parametrize(("owner", "name", "wrong", "topic", "sentence"), BEHAVIOURS, ids=named)
def test_a_wrong_behaviour_is_found(
    monkeypatch: Patch, owner: object, name: str, wrong: object, topic: Topic, sentence: str
) -> None:
    monkeypatch.setattr(owner, name, wrong)
    assert any(sentence in line for line in deviations([topic]))


def test_a_text_that_is_more_than_the_state_is_found(monkeypatch: Patch) -> None:
    drawn: list[str] = []

    def numbered(state: Json) -> str:
        drawn.append(rendered(state))
        return f"{len(drawn)}\n{drawn[-1]}"

    monkeypatch.setattr(v8_fixture, "rendered", numbered)
    assert any("equal states of search_home are drawn as different texts" in line for line in deviations([reset]))


def test_options_kept_on_the_way_back_are_found(monkeypatch: Patch) -> None:
    def show(self: Episode, number: int) -> str:
        self.page, self.number = "search_results", number
        return "executed"

    monkeypatch.setattr(Episode, "_show", show)
    assert "options: a product opened again keeps options" in deviations([options])


def test_lost_result_pages_are_found(monkeypatch: Patch) -> None:
    right = Episode._show
    monkeypatch.setattr(Episode, "_show", lambda self, _: right(self, 1))
    assert "paging: next > does not lead to page 2" in deviations([paging], STANDARD_TASK)


def test_a_slot_that_is_never_given_back_is_found(monkeypatch: Patch) -> None:
    monkeypatch.setattr(Leases, "release", lambda *_: None)
    assert "reset: slots are not free again after release" in deviations([reset])
