"""Fork v2.1 and the original as shops, against servers that behave as the reference says."""

import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Literal

import pytest
from casework import won
from old_servers import FULL, LEAK, OldServer, Sent, old_server
from scripted import Answer, FakeClock, Json, buyer, scripted
from stopping import until

from shopskill_lib.agent import Agent, constant, load_prompts, run_episode
from shopskill_lib.errors import InfrastructureError, SetupError
from shopskill_lib.records import Language, Step, Task, make_treatment
from shopskill_lib.rollouts import Planned, run
from shopskill_lib.shops.embedded import EmbeddedShop
from shopskill_lib.shops.shopsimulator import ShopSimulator, connect, probe

BARE = make_treatment("bare", ())
Old = Literal["fork", "original"]
OLD: tuple[Old, ...] = ("fork", "original")


def winnable(shop: EmbeddedShop, *, options: bool = False) -> tuple[Task, list[str]]:
    """A task with the actions that buy what it asks for."""
    plain = (task.model_copy(update={"persona": None}) for task in shop.catalogue.tasks.values())
    found = ((task, won(shop, task)) for task in plain)
    return next((task, actions) for task, actions in found if actions and bool(task.options) >= options)


@pytest.fixture(params=OLD)
def old(request: pytest.FixtureRequest, shops: dict[str, EmbeddedShop]) -> Iterator[OldServer]:
    with old_server(shops["zh"], request.param) as server:
        yield server


def connected(server: OldServer, folder: Path, **more: object) -> ShopSimulator:
    return connect(server.url, server.shop.catalogue, folder, **more)  # type: ignore[arg-type]


def balanced(server: OldServer) -> bool:
    """Whether every slot that was lent came back exactly once, the original's by itself."""
    return not server.taken and (not server.fork or server.released == server.lent)


def test_the_generation_is_told_by_a_reset(old: OldServer) -> None:
    found = probe(old.url)
    assert (found.generation, found.source) == (
        ("fork", "recomputed") if old.fork else ("original", "product of parts")
    )
    assert old.asked == {"reset": 1, "release_one": 1} and not old.taken
    old.taken |= {0, 1}
    with pytest.raises(SetupError, match="all slots of the server are taken"):
        probe(old.url)


NEITHER = {
    "HTML": Sent(b"<h1>It works</h1>"),
    "another service": Sent(b'{"status": "ok"}', 200, "application/json"),
    "other fields": Sent(b'{"result": {"session": 4}}', 200, "application/json"),
}


@pytest.mark.parametrize("name", NEITHER)
def test_what_is_no_shop_is_refused(shops: dict[str, EmbeddedShop], name: str) -> None:
    with (
        old_server(shops["en"], "original", before=lambda _: NEITHER[name]) as server,
        pytest.raises(SetupError, match=r"shop_url .*Allowed: a ShopSimulator server"),
    ):
        probe(server.url)


@pytest.mark.parametrize("language", ["en", "zh"])
@pytest.mark.parametrize("generation", OLD)
def test_gold_is_bought(shops: dict[str, EmbeddedShop], tmp_path: Path, generation: Old, language: Language) -> None:
    task, actions = winnable(shops[language], options=generation == "fork")
    with old_server(shops[language], generation) as server:
        session = connected(server, tmp_path).reset(task)
        for action in actions:
            value = action if server.fork else f"click[{action[6:-1].rpartition('=')[2]}]" if "=" in action else action
            page = session.step(value)
            assert page.feedback is not None and page.feedback["reason"] == "executed", (action, page)
        detail = page.reward_detail
        assert detail is not None and (page.done, page.reward, page.ending) == (True, 1.0, "purchase")
        assert detail.reported == (-0.85 if server.fork else 1.0) and detail.target_asin_match
        session.close()
        session.close()
        assert balanced(server)
        assert server.released == ({0: 2} if server.fork else {0: 1})  # of these one by the question what it is


def test_an_agent_shops_there(old: OldServer, tmp_path: Path) -> None:
    shop = connected(old, tmp_path, threads=4)
    agent = Agent(scripted(buyer), shop, load_prompts("zh"))
    plan = [Planned("bare", task, 0, BARE) for task in list(old.shop.catalogue.tasks.values())[:12]]
    done = run(plan, agent, tmp_path, rollout_seed=0, stage="gate_a", threads=4)["bare"]
    assert len(done.scored) == 12 and balanced(old)
    assert {episode.shop["reward.source"] for episode in done.scored} == {shop.server.source}
    assert {episode.attempt for episode in done.scored} == {1}


def test_full_slots_are_waited_for(old: OldServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    clock = FakeClock()
    shop = connected(old, tmp_path, threads=3, clock=clock.clock)
    task = next(iter(old.shop.catalogue.tasks.values()))
    first, second = shop.reset(task), shop.reset(task)
    with ThreadPoolExecutor() as pool:
        third = pool.submit(shop.reset, task)
        until(lambda: old.asked["reset"] == 4)  # one of them by the question what it is
        first.close()
        second.close()
        third.result(5).close()
    assert capsys.readouterr().err.count("2 at a time") == 1
    old.taken |= {0, 1}
    with pytest.raises(InfrastructureError, match="no slot came free in 300 s"):
        shop.reset(task)
    assert sum(clock.waits) > 300 and FULL in str(old.answer({"action": "reset", "idx": int(task.task_id)}))


def test_leaving_gives_the_slot_back_once(old: OldServer, tmp_path: Path) -> None:
    task, _ = winnable(old.shop)
    shop = connected(old, tmp_path)
    session = shop.reset(task)
    end = session.end("context_length")
    assert (end.reward, end.ending, end.purchase) == (0.0, "context_length", None)
    session.close()
    session.close()
    assert old.asked["release_one"] == 2 and not old.taken


def test_the_shops_own_ending_is_none_of_the_policys(shops: dict[str, EmbeddedShop], tmp_path: Path) -> None:
    task, _ = winnable(shops["en"])
    with old_server(shops["en"], "fork") as server:
        session = connected(server, tmp_path).reset(task)
        for _ in range(3):
            page = session.step("search[cup]")
        assert (page.done, page.ending, page.reward) == (True, "environment_done", 0.0)
        assert page.reward_detail is not None and page.reward_detail.reported == -0.65
        session.close()
        assert balanced(server)


@pytest.mark.parametrize("generation", OLD)
def test_the_limit_ends_an_episode(shops: dict[str, EmbeddedShop], tmp_path: Path, generation: Old) -> None:
    task, _ = winnable(shops["en"])
    with old_server(shops["en"], generation, limit=5) as server:
        session = connected(server, tmp_path).reset(task)
        for number in range(5):
            page = session.step(f"search[cup {number}]")
        assert (page.done, page.ending, page.reward) == (True, "action_limit", 0.0)
        session.close()
        assert balanced(server)


def test_the_original_is_not_told_of_a_slot_it_freed(shops: dict[str, EmbeddedShop], tmp_path: Path) -> None:
    task, actions = winnable(shops["en"])
    with old_server(shops["en"], "original", slots=1) as server:
        shop = connected(server, tmp_path)
        session = shop.reset(task)
        for action in actions:
            session.step(action)
        assert session.current.done and not server.taken
        server.taken.add(0)  # another worker has it by now
        session.close()
        assert server.taken == {0}


def test_a_purchase_without_an_answer_leaves_the_originals_slot_alone(
    shops: dict[str, EmbeddedShop], tmp_path: Path
) -> None:
    task, actions = winnable(shops["en"])

    def before(body: Json) -> Sent | None:
        if body.get("response") == "click[buy now]":
            raise ConnectionError
        return None

    cases: tuple[tuple[Old, int], ...] = (("original", 1), ("fork", 2))
    for generation, releases in cases:
        with old_server(shops["en"], generation, before=before) as server:
            session = connected(server, tmp_path / generation).reset(task)
            with pytest.raises(InfrastructureError, match=r"step \d of task"):
                for action in actions:
                    session.step(action)
            session.close()
            assert server.asked["release_one"] == releases


def test_a_persona_is_ours_and_the_full_request_stays_out(old: OldServer, tmp_path: Path) -> None:
    task = next(task for task in old.shop.catalogue.tasks.values() if task.persona is not None)
    sent: list[str] = []

    def listen(body: Json) -> Answer:
        sent.append(json.dumps(body, ensure_ascii=False) + json.dumps(body))
        return buyer(body)

    old.extra = {"secret": f"{LEAK} secret"}
    agent = Agent(scripted(listen), connected(old, tmp_path), load_prompts("zh"))
    for shown in (task, task.model_copy(update={"persona": None})):
        sent.clear()
        steps: list[Step] = []
        end = run_episode(agent, shown, constant(BARE), 0, steps.append)
        assert end.reward is not None and len(sent) >= 3
        said = "\n".join(sent)
        assert LEAK not in said and "-0.85" not in said
        hidden = task.instruction if shown.persona else task.instruction_simple
        assert hidden is not None and hidden not in said and json.dumps(hidden)[1:-1] not in said
        assert shown.visible_instruction in said


def test_two_clients_on_a_slot_are_noticed(old: OldServer, tmp_path: Path) -> None:
    first, second = list(old.shop.catalogue.tasks.values())[:2]
    shop = connected(old, tmp_path)
    session = shop.reset(first)
    old.taken.clear()  # somebody frees slots that are not theirs
    other = shop.reset(second)
    with pytest.raises(InfrastructureError, match="the slot was shared: an answer names slot 0"):
        session.step("search[杯子]")
    session.close()
    other.close()


def test_another_catalogue_is_refused_and_its_slot_given_back(old: OldServer, tmp_path: Path) -> None:
    task = next(iter(old.shop.catalogue.tasks.values()))
    shop = connected(old, tmp_path)
    with pytest.raises(SetupError, match="numbers its tasks otherwise"):
        shop.reset(task.model_copy(update={"instruction": "想买一把雨伞。"}))
    assert not old.taken
    with pytest.raises(SetupError, match="the server refuses task 999999"):
        shop.reset(task.model_copy(update={"task_id": "999999"}))
    assert list(tmp_path.glob("slots-*"))  # the server has taken a slot for it and told no one


def test_an_unknown_fork_serves_cards_only(shops: dict[str, EmbeddedShop], tmp_path: Path) -> None:
    task, actions = winnable(shops["en"])
    with old_server(shops["en"], "fork") as server:
        server.extra = {}
        plain = server.reset
        server.reset = lambda body: plain(body) | {"environment_version": "shopsimulator-environment-v3"}  # type: ignore[method-assign]
        shop = connected(server, tmp_path)
        assert "v3" in shop.unscored and shop.fingerprint["reward.source"] == "none"
        session = shop.reset(task)
        for action in actions:
            session.step(action)
        end = session.current
        assert (end.done, end.ending, end.reward, end.reward_detail) == (True, "purchase", None, None)
        session.close()


def test_another_server_in_the_middle_of_a_run_is_refused(old: OldServer, tmp_path: Path) -> None:
    task = next(iter(old.shop.catalogue.tasks.values()))
    connected(old, tmp_path)
    other: Old = "original" if old.fork else "fork"
    with old_server(old.shop, other) as server, pytest.raises(SetupError, match="another server answers"):
        connected(server, tmp_path).reset(task)


def test_errors_are_never_rewards(old: OldServer, tmp_path: Path) -> None:
    """Answers that any server, or what stands before it, may send in place of a page."""
    task, _ = winnable(old.shop)
    shop = connected(old, tmp_path)
    for sent in (
        Sent(b"<h1>Bad Gateway</h1>", 502),
        Sent(b'{"result": {"error": "boom"}}', 200, "application/json"),
        Sent(b'{"result": {"done": true, "reward": 1.0}}', 200, "application/json"),
        Sent(b'{"result": [1]}', 200, "application/json"),
        Sent(b'{"result": {"reward": NaN}}', 200, "application/json"),
        Sent(b"", 200, "application/json"),
        Sent(b'{"result": {"done": false', 200, "application/json"),
        Sent(b'{"result": {}}', 200, "application/json", cut=3),
    ):
        session = shop.reset(task)
        old.before = lambda body, sent=sent: sent if body["action"] == "interact" else None  # type: ignore[misc]
        with pytest.raises(InfrastructureError, match="step 1 of task"):
            session.step("search[杯子]")
        old.before = lambda _: None
        session.close()
    assert old.asked["release_one"] == 9 and not old.taken
    assert threading.active_count() < 20
