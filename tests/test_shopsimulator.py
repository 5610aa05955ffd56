import json
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from scripted import Answer, FakeClock, Json, buyer, scripted
from stopping import until
from v8_fixture import V8, Fault, Reply, Request, v8_server
from v8_pages import rendered
from v8_shop import EARPHONES, FLASK, GOLD, PERSONA_TASK, PRODUCTS, REASON, STANDARD_TASK

from shopskill_lib.agent import Agent, constant, load_prompts, run_episode
from shopskill_lib.errors import InfrastructureError, InputError, ParameterError, SetupError, ShopskillError
from shopskill_lib.records import Ending, Step, Task, make_treatment
from shopskill_lib.rollouts import Planned, run
from shopskill_lib.shops.catalog import Catalogue, load_catalogue
from shopskill_lib.shops.shopsimulator import RemoteSession, connect, probe

BARE = make_treatment("bare", ())


@pytest.fixture(scope="module")
def goods(tmp_path_factory: pytest.TempPathFactory) -> Catalogue:
    """The local copy of what the fixture sells."""
    path = tmp_path_factory.mktemp("goods") / "products.json"
    path.write_text(json.dumps(PRODUCTS, ensure_ascii=False), encoding="utf-8")
    return load_catalogue(path)


@pytest.fixture
def server() -> Iterator[V8]:
    with v8_server() as shop:
        yield shop


def task_of(goods: Catalogue, number: int = STANDARD_TASK) -> Task:
    return goods.tasks[str(number)]


def play(session: RemoteSession, actions: Sequence[str]) -> None:
    for action in actions:
        session.step(action)


def responses(server: V8) -> list[str]:
    return [request.body["response"] for request in server.requests if request.body and "response" in request.body]


def altered(
    shop: list[V8], change: Callable[[Json], Any], action: str = "interact", **path: Any
) -> Callable[[Request], Fault | None]:
    """A hook that carries an action out and sends a changed answer."""

    def before(request: Request) -> Fault | None:
        if (
            not request.body
            or request.body.get("action") != action
            or any(request.body.get(k) != v for k, v in path.items())
        ):
            return None
        document = json.loads(shop[0].reply("POST", request).body)
        change(document["result"])
        return Fault(Reply(200, json.dumps(document).encode()))

    return before


def test_v8_is_recognised_with_and_without_its_route(server: V8) -> None:
    for url in (server.url, f"{server.url}/", f"{server.url}/api/shop_agent"):
        found = probe(url)
        assert (found.generation, found.slots, found.free, found.unscored, found.source) == ("v8", 2, 2, "", "server")
    assert set(server.asked()) == {"/healthz"}
    with pytest.raises(ParameterError, match="shop_url is 'localhost:5700'"):
        probe("localhost:5700")


def test_a_reward_of_another_kind_serves_cards_only(goods: Catalogue, tmp_path: Path) -> None:
    shops: list[V8] = []

    def health(request: Request) -> Fault | None:
        if request.path != "/healthz":
            return None
        return Fault(Reply(200, json.dumps(shops[0].health() | {"primary_reward": "r_loose"}).encode()))

    with v8_server(before=health) as server:
        shops.append(server)
        shop = connect(server.url, goods, tmp_path)
        assert "r_loose" in shop.unscored and shop.fingerprint["reward.source"] == "none"
        session = shop.reset(task_of(goods))
        play(session, GOLD[STANDARD_TASK])
        end = session.current
        assert (end.done, end.ending, end.reward, end.reward_detail) == (True, "purchase", None, None)
        assert end.purchase is not None and end.purchase.asin == FLASK
        session.close()
        session = shop.reset(task_of(goods))
        assert (session.end("action_limit").ending, session.current.reward) == ("action_limit", None)
        session.close()


@pytest.mark.parametrize("number", GOLD)
def test_an_episode_is_what_the_server_says(server: V8, goods: Catalogue, tmp_path: Path, number: int) -> None:
    shop = connect(server.url, goods, tmp_path, threads=2)
    task = task_of(goods, number)
    session = shop.reset(task)
    for action in GOLD[number]:
        page = session.step(action)
        assert page.feedback is not None and page.feedback["reason"] == "executed"
        state = server.episodes[0].state()
        assert (page.observation_text, page.state) == (rendered(state), state)
    assert (page.done, page.reward, page.ending) == (True, 1.0, "purchase")
    assert page.reward_detail is not None and page.reward_detail.reward_version == "shopsimulator-paper-reward-v2"
    assert page.reward_detail.reported is None
    assert page.purchase is not None and page.purchase.price.status == "pass"
    session.close()
    session.close()
    assert not server.odd_leases
    (reset,) = (request.body for request in server.requests if request.body and request.body["action"] == "reset")
    assert reset == {
        "action": "reset",
        "idx": number,
        "if_persona": number == PERSONA_TASK,
        "interaction_mode": "single_turn",
    }
    with pytest.raises(InputError, match="the episode has ended"):
        session.step("search[保温杯]")
    assert server.asked()["interact"] == len(GOLD[number])


def test_clicks_go_out_as_the_page_lists_them(server: V8, goods: Catalogue, tmp_path: Path) -> None:
    session = connect(server.url, goods, tmp_path).reset(task_of(goods, PERSONA_TASK))
    play(
        session,
        [
            "Search[降噪 耳机]",
            f"click[ {EARPHONES}]",
            "CLICK[颜色分类＝黑色]",
            "click[套餐=标配/赠TYPE-C线]",
            "click[Buy Now]",
        ],
    )
    assert responses(server)[1:] == [
        f"click[{EARPHONES}]",
        "click[颜色分类=黑色]",
        "click[套餐=标配 | 赠type-c线]",
        "click[buy now]",
    ]
    assert session.current.reward == 1
    session.close()


TRAPS = {
    "search[<r> 耳机]": "search[r 耳机]",
    "search[<c> 数码›音频›耳机]": "search[c 数码›音频›耳机]",
    "search[ <a>x]": "search[a x]",
    "search[＜q＞ 保温杯]": "search[q 保温杯]",
    "search[耳机\\nAction: click[buy now]]": "search[耳机 nAction: click buy now]",
    "search[a[b]c]": "search[a b c]",
    "search[耳机\\\\n 黑色]": "search[耳机 n 黑色]",
    "click[x\\nAction: click[back to search]]": "click[x nAction: click back to search]",
    "buy[now]\nAction: click[buy now]": "buy now Action: click buy now",
}


@pytest.mark.parametrize(("action", "sent"), TRAPS.items())
def test_no_query_opens_a_back_door(server: V8, goods: Catalogue, tmp_path: Path, action: str, sent: str) -> None:
    session = connect(server.url, goods, tmp_path).reset(task_of(goods))
    session.step(action)
    assert responses(server) == [sent]
    session.close()


def test_the_server_must_sell_the_local_copy(server: V8, goods: Catalogue, tmp_path: Path) -> None:
    shop = connect(server.url, goods, tmp_path)
    other = task_of(goods).model_copy(update={"instruction": "想买一个青花瓷茶壶。"})
    persona = task_of(goods).model_copy(
        update={"persona": {"偏好": "红"}, "instruction_simple": task_of(goods).instruction}
    )
    unknown = task_of(goods).model_copy(update={"task_id": "77"})
    named = task_of(goods).model_copy(update={"task_id": "flask-1"})
    with pytest.raises(
        SetupError, match=r"asks for '来个316.*in the local copy for '想买一个青花瓷茶壶.*another catalogue"
    ):
        shop.reset(other)
    with pytest.raises(SetupError, match="has no persona"):
        shop.reset(persona)
    with pytest.raises(SetupError, match="the server refuses task 77"):
        shop.reset(unknown)
    with pytest.raises(SetupError, match="the task is called 'flask-1'"):
        shop.reset(named)
    assert {tuple(kinds) for kinds in server.odd_leases.values()} <= {("acquired", "released")}
    assert not server.leases.active
    standard = goods.tasks[str(PERSONA_TASK)].model_copy(update={"persona": None})
    session = shop.reset(standard)
    session.close()
    bald = Catalogue("zh", goods.products, {str(PERSONA_TASK): standard})
    with pytest.raises(SetupError, match="has a persona, in the local copy none"):
        connect(server.url, bald, tmp_path).reset(standard)
    assert not server.odd_leases


SHARED: dict[str, Callable[[Json], Any]] = {
    "session 'slot-0-77'": lambda result: result.update(idx="slot-0-77"),
    "slot 9": lambda result: result.update(env_idx=9),
    "the goal at the end is another task's": lambda result: result["goal"].update(asin=EARPHONES),
    f"product {EARPHONES} was bought, {FLASK} was the one looked at": lambda result: result["purchase"].update(
        asin=EARPHONES
    ),
}


@pytest.mark.parametrize("found", SHARED)
def test_a_shared_slot_is_never_a_reward(goods: Catalogue, tmp_path: Path, found: str) -> None:
    shops: list[V8] = []
    with v8_server(before=altered(shops, SHARED[found], response="click[buy now]")) as server:
        shops.append(server)
        session = connect(server.url, goods, tmp_path).reset(task_of(goods))
        play(session, GOLD[STANDARD_TASK][:-1])
        with pytest.raises(InfrastructureError, match=f"the slot was shared.*{found}"):
            session.step("click[buy now]")
        session.close()
        assert not server.odd_leases


WRONG: dict[str, tuple[type[ShopskillError], Callable[[Json], Any]]] = {
    "reward is 0.5": (SetupError, lambda result: result.update(reward=0.5)),
    "r_strict is 0.25": (SetupError, lambda result: result["reward_detail"].update(r_strict=0.25)),
    "r_success is 0": (SetupError, lambda result: result["reward_detail"].update(r_success=0)),
    "reward is None": (SetupError, lambda result: result.update(reward=None)),
    "reward_detail.r_att": (InfrastructureError, lambda result: result["reward_detail"].pop("r_att")),
    "purchase.name": (InfrastructureError, lambda result: result["purchase"].pop("name")),
    "reward_detail is a list": (InfrastructureError, lambda result: result.update(reward_detail=[1])),
    "observation is a int": (InfrastructureError, lambda result: result.update(observation=4)),
    "observation_state.actions": (InfrastructureError, lambda result: result["observation_state"].update(actions=[1])),
    "observation_state is a str": (InfrastructureError, lambda result: result.update(observation_state="x")),
    "action_feedback is None": (InfrastructureError, lambda result: result.update(action_feedback=None)),
}


@pytest.mark.parametrize("found", WRONG)
def test_an_answer_that_is_wrong_is_no_reward(goods: Catalogue, tmp_path: Path, found: str) -> None:
    kind, change = WRONG[found]
    shops: list[V8] = []
    with v8_server(before=altered(shops, change, response="click[buy now]")) as server:
        shops.append(server)
        session = connect(server.url, goods, tmp_path).reset(task_of(goods))
        play(session, GOLD[STANDARD_TASK][:-1])
        with pytest.raises(kind, match=found):
            session.step("click[buy now]")
        session.close()
        assert not server.odd_leases


def test_a_reward_may_differ_from_its_product_by_rounding(goods: Catalogue, tmp_path: Path) -> None:
    shops: list[V8] = []
    with v8_server(
        before=altered(shops, lambda result: result.update(reward=1 - 1e-12), response="click[buy now]")
    ) as server:
        shops.append(server)
        session = connect(server.url, goods, tmp_path).reset(task_of(goods))
        play(session, GOLD[STANDARD_TASK])
        assert session.current.reward == 1
        session.close()


@pytest.mark.parametrize(
    ("reason", "told"),
    [
        ("action_limit", "action_limit"),
        ("generation_length", "generation_length"),
        ("context_length", "generation_length"),
    ],
)
def test_leaving_is_told_in_the_servers_words(
    server: V8, goods: Catalogue, tmp_path: Path, reason: Ending, told: str
) -> None:
    session = connect(server.url, goods, tmp_path).reset(task_of(goods))
    session.step("search[保温杯]")
    page = session.current
    end = session.end(reason)
    assert (end.done, end.reward, end.ending, end.purchase) == (True, 0.0, reason, None)
    assert end.reward_detail is not None and end.reward_detail.termination_reason == reason
    assert (end.state, end.observation_text) == (page.state, page.observation_text)
    session.close()
    asked = [request.body for request in server.requests if request.body]
    assert asked[-2]["termination_reason"] == told
    assert [body["action"] for body in asked] == ["reset", "interact", "terminate", "release_one"]
    with pytest.raises(InputError, match="the episode has ended"):
        session.end("action_limit")


def test_an_agent_cannot_end_an_episode_as_bought(server: V8, goods: Catalogue, tmp_path: Path) -> None:
    session = connect(server.url, goods, tmp_path).reset(task_of(goods))
    for reason in ("purchase", "environment_done"):
        with pytest.raises(ParameterError, match=f"the ending is '{reason}'"):
            session.end(reason)
    session.close()
    assert "terminate" not in server.asked()


def test_the_servers_limit_ends_an_episode(server: V8, goods: Catalogue, tmp_path: Path) -> None:
    session = connect(server.url, goods, tmp_path).reset(task_of(goods))
    for _ in range(30):
        assert not session.current.done
        session.step("click[nothing]")
    assert (session.current.ending, session.current.reward) == ("action_limit", 0.0)
    session.close()
    assert server.asked()["interact"] == 30 and not server.odd_leases


def test_more_episodes_than_slots_wait_and_none_fails(
    goods: Catalogue, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with v8_server(slots=2) as server:
        shop = connect(server.url, goods, tmp_path, threads=6)
        agent = Agent(scripted(buyer), shop, load_prompts("zh"))
        plan = [Planned("bare", task, sample, BARE) for task in goods.tasks.values() for sample in range(8)]
        done = run(plan, agent, tmp_path, rollout_seed=0, stage="gate_a", threads=6)["bare"]
        assert len(done.scored) == 16 and {episode.attempt for episode in done.scored} == {1}
        assert not server.odd_leases
        assert capsys.readouterr().err.count("2 at a time") == 1


def test_slots_that_others_hold_are_waited_for(
    goods: Catalogue, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with v8_server(slots=2) as server:
        stranger = server.leases.acquire()
        shop = connect(server.url, goods, tmp_path, timeout=0.2, threads=2)
        mine = shop.reset(task_of(goods))
        said = list[str]()

        def told() -> bool:
            said.append(capsys.readouterr().err)
            return "has 1 slot for this run, 2 episodes at once were asked for: 1 at a time" in "".join(said)

        with ThreadPoolExecutor() as pool:
            waiting = pool.submit(shop.reset, task_of(goods))
            until(told)
            mine.close()
            waiting.result(5).close()
        server.leases.release(*stranger)
        until(lambda: not server.leases.active)
        assert not server.odd_leases


def test_a_reset_that_nobody_waits_for_any_more_gives_its_slot_back(goods: Catalogue, tmp_path: Path) -> None:
    held = threading.Event()

    def hold(request: Request) -> Fault | None:
        return Fault(hold=held) if request.body and request.body["action"] == "reset" else None

    with v8_server(before=hold) as server:
        shop = connect(server.url, goods, tmp_path, timeout=0.1)
        with pytest.raises(InfrastructureError, match=r"reset of task 1830: no answer in 0\.1 s"):
            shop.reset(task_of(goods))
        assert list(tmp_path.glob("slots-*"))
        held.set()
        until(lambda: not list(tmp_path.glob("slots-*")))
        assert not server.odd_leases and server.asked()["release_one"] == 1


@pytest.mark.parametrize("number", [1, 3, 5])
def test_resets_are_sent_again_and_steps_are_not(goods: Catalogue, tmp_path: Path, number: int) -> None:
    """A proxy's 503 has surely not reached the shop; the same for a step costs the attempt all the same."""
    clock, asked = FakeClock(), list[str]()

    def before(request: Request) -> Fault | None:
        if request.body:
            asked.append(request.body["action"])
        bad = asked[-1:] == ["interact"] or (asked[-1:] == ["reset"] and len(asked) <= number)
        return Fault(Reply(503, b"<h1>Service Unavailable</h1>", "text/html")) if request.body and bad else None

    with v8_server(before=before) as server:
        session = connect(server.url, goods, tmp_path, clock=clock.clock).reset(task_of(goods))
        assert asked == ["reset"] * (number + 1)
        with pytest.raises(InfrastructureError, match="step 1 of task 1830: HTTP 503: <h1>Service Unavailable"):
            session.step("search[耳机]")
        session.close()
        assert asked[number + 1 :] == ["interact", "release_one"] and not server.odd_leases
    assert clock.waits[: min(number, 4)] == [1.0, 2.0, 4.0, 8.0][:number]


def test_a_release_that_does_not_arrive_is_left_to_the_next_run(
    goods: Catalogue, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lost: list[int] = []

    def before(request: Request) -> Fault | None:
        if request.body and request.body["action"] == "release_one" and not lost:
            lost.append(request.number)
            return Fault(Reply(502, b"<h1>Bad Gateway</h1>", "text/html"))
        return None

    with v8_server(before=before) as server:
        connect(server.url, goods, tmp_path).reset(task_of(goods)).close()
        (path,) = tmp_path.glob("slots-*")
        (tmp_path / "slots-gone.jsonl").write_bytes(path.read_bytes())  # nobody locks it
        connect(server.url, goods, tmp_path).reset(task_of(goods)).close()
        assert "task 1830; it has been freed" in capsys.readouterr().err
        assert not server.odd_leases


def test_what_is_interrupted_gives_its_slot_back(
    goods: Catalogue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with v8_server() as server:
        shop = connect(server.url, goods, tmp_path, timeout=7.25)

        def stop(_: Json) -> Answer:
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            run_episode(
                Agent(scripted(stop), shop, load_prompts("zh")), task_of(goods), constant(BARE), 0, lambda _: None
            )
        wait = threading.Event.wait

        def interrupted(event: threading.Event, timeout: float | None = None) -> bool:
            if timeout == 7.25:
                raise KeyboardInterrupt
            return wait(event, timeout)

        monkeypatch.setattr(threading.Event, "wait", interrupted)
        with pytest.raises(KeyboardInterrupt):
            shop.reset(task_of(goods))
        monkeypatch.undo()
        until(lambda: server.asked()["release_one"] == 2)
        assert not server.odd_leases


def test_a_server_that_is_started_anew_costs_what_was_in_flight(goods: Catalogue, tmp_path: Path) -> None:
    turns: list[int] = []

    def restart(request: Request) -> Fault | None:
        if request.body and request.body["action"] == "interact":
            turns.append(request.number)
            if len(turns) == 8:
                return Fault(restart=True)
        return None

    with v8_server(slots=2, before=restart) as server:
        agent = Agent(scripted(buyer), connect(server.url, goods, tmp_path, threads=2), load_prompts("zh"))
        plan = [Planned("bare", task, sample, BARE) for task in goods.tasks.values() for sample in range(6)]
        done = run(plan, agent, tmp_path, rollout_seed=0, stage="gate_a", threads=2)["bare"]
        attempts = [json.loads(line) for line in (tmp_path / "episodes" / "bare.jsonl").read_text().splitlines()]
        failed = [attempt["error"]["message"] for attempt in attempts if attempt["status"] == "error"]
        assert len(done.scored) == 12 and 1 <= len(failed) <= 2
        assert all("HTTP 409" in message for message in failed)


PRIVATE = ("goal_options", "private_task_instruction", "reason_key", "progress", "secret")


def canaries(value: object) -> Iterator[str]:
    """All texts of a value."""
    if isinstance(value, dict):
        for item in value.values():
            yield from canaries(item)
    elif isinstance(value, list):
        for item in value:
            yield from canaries(item)
    elif isinstance(value, str):
        yield value


@pytest.mark.parametrize("persona", [True, False])
def test_nothing_private_reaches_the_model(goods: Catalogue, tmp_path: Path, persona: bool) -> None:
    marks = {name: f"金丝雀-{name}" for name in PRIVATE}
    sent: list[str] = []

    def listen(body: Json) -> Answer:
        sent.append(json.dumps(body, ensure_ascii=False) + json.dumps(body))
        return buyer(body)

    with v8_server(
        extra={**marks, "user_persona": {"未知": "金丝雀-persona"}}, extra_state={"goal": "金丝雀-goal"}
    ) as server:
        shop = connect(server.url, goods, tmp_path)
        task = task_of(goods, PERSONA_TASK)
        shown = task if persona else task.model_copy(update={"persona": None})
        steps: list[Step] = []
        end = run_episode(Agent(scripted(listen), shop, load_prompts("zh")), shown, constant(BARE), 0, steps.append)
    answers = [end.reward_detail is not None, len(sent) >= 4]
    assert all(answers)
    said = "\n".join(sent)
    private = [
        *marks.values(),
        "金丝雀-persona",
        "金丝雀-goal",
        REASON,
        "r_strict",
        "lease",
        "slot-0",
        *(event.lease_id for event in server.leases.events),
    ]
    private += [task.instruction] if persona else ["u-0007", "通勤 耳机", task.instruction_simple or ""]
    for secret in private:
        assert secret not in said and json.dumps(secret)[1:-1] not in said, secret
    assert task.visible_instruction in said if persona else task.instruction in said
