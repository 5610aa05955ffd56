import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from casework import lines, success_card
from scripted import Answer, Json, completion, scripted, serve

from shopskill_lib.agent import Agent, load_prompts
from shopskill_lib.distil import AUDIT, CARDS, RECORDED, report_recordings
from shopskill_lib.errors import InputError, ParameterError
from shopskill_lib.firewall import Screen
from shopskill_lib.records import Episode, make_treatment
from shopskill_lib.rollouts import Planned, run
from shopskill_lib.settings import Settings
from shopskill_lib.shops.embedded import EmbeddedShop
from shopskill_lib.trajectories import LEAVE, instance_of_recording, of_episode, read_messages

DETAIL = (
    "page_type: product_detail\nasin: 812345678901\ntitle: {title}\nbrand: {brand}\ncategory: a›b\nprice: {price}\n"
    'selected_options: {{"size": "L"}}'
)
HOME = "page_type: search_results\n1|812345678901|20.0"


def call(name: str, number: int, arguments: str) -> list[Json]:
    made = {"id": f"c{number}", "type": "function", "function": {"name": name, "arguments": arguments}}
    return [{"role": "assistant", "content": "Let me see.", "tool_calls": [made]}]


def recording(
    name: str = "r-1", *, price: str = "20.0", last: str = "buy_now", said: str = "购买已完成。", **more: Any
) -> Json:
    detail = DETAIL.format(title="Veltra trail running jacket women", brand="Veltra", price=price)
    steps = [
        ("search_products", '{"query": "jacket 外套"}', HOME),
        ("open_product", '{"asin": "812345678901"}', detail),
        ("select_option", '{"value": "L"}', detail),
        (last, "{}", said),
    ]
    messages: list[Json] = [{"role": "system", "content": "s"}, {"role": "user", "content": "Instruction: a jacket"}]
    for number, (tool, arguments, answer) in enumerate(steps):
        messages += [*call(tool, number, arguments), {"role": "tool", "tool_call_id": f"c{number}", "content": answer}]
    return {"trajectory_id": name, "task_id": 7, "messages": messages} | more


Write = Callable[..., Path]


def _line(item: Any) -> str:
    """Write JSON as it is, half surrogate pairs as escapes."""
    return json.dumps(item, ensure_ascii=False).encode(errors="backslashreplace").decode()


@pytest.fixture
def recorded(write: Write) -> Write:
    """Write recordings as JSON lines."""
    return lambda *items: write("\n".join(map(_line, items)) + "\n", "r.jsonl")


def test_a_recording_is_a_trajectory(recorded: Write) -> None:
    (found,) = read_messages(recorded(recording()))
    assert [turn.action for turn in found.turns] == [
        "search_products[jacket 外套]", "open_product[812345678901]", "select_option[L]", "buy_now",
    ]  # fmt: skip
    assert found.turns[0].page == "" and found.turns[1].page == HOME and "product_detail" in found.turns[3].page
    assert (found.instruction, found.task_id, found.ending) == ("a jacket", "7", "purchase")
    assert [found.reward, found.parts, found.persona, found.success] == [None] * 4
    bought = found.purchase
    assert bought is not None and bought.asin == "812345678901"
    assert (bought.options, bought.price.price) == ({"size": "L"}, 20.0)
    (ranged,) = read_messages(recorded(recording(price="20.0 to 30.0")))
    assert ranged.purchase is not None and ranged.purchase.price.status == "unverifiable"
    (left,) = read_messages(recorded(recording(last=LEAVE, said="ok")))
    assert left.ending == LEAVE and left.purchase is None


def test_rewards_and_persona_are_used_where_they_are(recorded: Write) -> None:
    path = recorded(recording(reward=1, persona={"size": "L"}), recording("r-2", reward=0.5))
    good, poor = read_messages(path)
    assert (good.reward, good.success, good.persona) == (1.0, True, {"size": "L"})
    assert (poor.reward, poor.success, poor.persona) == (0.5, False, None)


def _messages(change: Callable[[list[Json]], Any]) -> Json:
    whole = recording()
    change(whole["messages"])
    return whole


def _made(change: Callable[[Json], Any]) -> Json:
    return _messages(lambda messages: change(messages[2]))


def _called(**more: Any) -> Json:
    return _made(lambda made: made["tool_calls"][0]["function"].update(more))


def _answered(**more: Any) -> Json:
    return _messages(lambda messages: messages[3].update(more))


TEXT = {"type": "text", "text": "page_type: search_results"}
HALF = "jacket \ud800"
"""Half a surrogate pair, which UTF-8 cannot carry."""

UNUSABLE: list[tuple[Any, str]] = [
    ({"trajectory_id": "x"}, "no field messages"),
    ([1], "no field messages"),
    (recording() | {"trajectory_id": ""}, "trajectory_id is ''"),
    (recording() | {"messages": [1]}, "something else than messages"),
    (_messages(lambda messages: messages.pop(1)), "no user message with text"),
    (recording() | {"messages": recording()["messages"][:2]}, "no field tool_calls"),
    (_messages(lambda messages: messages.pop()), "the call buy_now has no answer"),
    (_messages(lambda messages: messages[2]["tool_calls"][0].pop("function")), "no function with a name"),
    (_messages(lambda messages: messages[2]["tool_calls"][0]["function"].update(arguments='{"a')), "no JSON object"),
    (recording(said="本地动作守卫拒绝，未执行"), "the ending is unknown: the last call is buy_now"),
    (recording(last="view_features", said="x"), "the ending is unknown: the last call is view_features"),
    (recording(reward="high"), "reward is 'high'"),
    (recording(reward=7), "reward is 7"),
    (recording(persona="tall"), "persona is a str"),
    (_made(lambda made: made.update(tool_calls=5)), "r-1, messages.2: tool_calls is a int"),
    (_made(lambda made: made["tool_calls"][0].update(id=["x"])), r"r-1, messages.2.tool_calls.0: id is \['x'\]"),
    (_made(lambda made: made["tool_calls"][0].pop("id")), "r-1, messages.2.tool_calls.0: id is None"),
    (_answered(tool_call_id=None), "r-1, messages.3: tool_call_id is None"),
    (_answered(tool_call_id=["c0"]), r"r-1, messages.3: tool_call_id is \['c0'\]"),
    (_messages(lambda messages: messages[4]["tool_calls"][0].update(id="c0")), "4.tool_calls.0: id 'c0' occurs twice"),
    (_messages(lambda messages: messages[5].update(tool_call_id="c0")), "messages.5: tool_call_id 'c0' occurs twice"),
    (_answered(content=5), "r-1, messages.3: content is a int"),
    (_answered(content=["page"]), "r-1, messages.3.content.0: content holds a part that is no text"),
    (_answered(content=[{"type": "text"}]), "r-1, messages.3.content.0: content holds a part"),
    (_answered(content=[TEXT, {"type": "image_url", "image_url": {}}]), "r-1, messages.3.content.1: content holds a"),
    (_messages(lambda messages: messages[1].update(content=[{"type": "file"}])), "r-1, messages.1.content.0: content"),
    (_answered(content=f"外套 {HALF}"), "r-1, messages.3: content holds half a surrogate pair"),
    (_messages(lambda messages: messages[1].update(content=HALF)), "r-1, messages.1: content holds half a surr"),
    (_called(arguments=json.dumps({"query": HALF})), "2.tool_calls.0: the arguments of search_products hold half a"),
    (_called(name=HALF), "r-1, messages.2: tool_calls holds half a surrogate pair"),
    (recording(persona={"note": HALF}), "r-1: persona holds half a surrogate pair"),
    (recording() | {"task_id": HALF}, "r-1: task_id holds half a surrogate pair"),
    (recording(HALF), "trajectory_id holds half a surrogate pair"),
]


@pytest.mark.parametrize(("item", "message"), UNUSABLE, ids=[message for _, message in UNUSABLE])
def test_what_cannot_be_used_is_refused_by_line(recorded: Write, item: Any, message: str) -> None:
    with pytest.raises(InputError, match=rf"r\.jsonl, line 2.*{message}"):
        read_messages(recorded(recording("r-0"), item))


def test_a_text_in_parts_is_read_whole(recorded: Write) -> None:
    def split(text: str) -> list[Json]:
        return [{"type": "text", "text": line} for line in text.split("\n")]

    whole = recording()
    for message in whole["messages"]:
        message["content"] = split(message["content"])
    whole["messages"][1]["content"] = split("Instruction: a jacket\n要红色的")
    (found,) = read_messages(recorded(whole))
    (plain,) = read_messages(recorded(recording()))
    assert found.instruction == "a jacket\n要红色的"
    assert (found.turns, found.ending, found.purchase) == (plain.turns, plain.ending, plain.purchase)


def test_a_recording_without_task_is_a_task_of_its_own(recorded: Write) -> None:
    missing = recording("r-2")
    del missing["task_id"]
    found = read_messages(recorded(recording() | {"task_id": None}, missing, recording("r-3") | {"task_id": 0}))
    assert [one.task_id for one in found] == ["r-1", "r-2", "0"]


def test_many_recordings_take_their_number_times_as_long(recorded: Write) -> None:
    def seconds(count: int) -> float:
        short = recording(last=LEAVE, said="ok")
        short["messages"] = [short["messages"][1], *short["messages"][-2:]]
        path = recorded(*(short | {"trajectory_id": f"r-{number}"} for number in range(count)))
        begun = time.process_time()
        assert len(read_messages(path)) == count
        return time.process_time() - begun

    assert seconds(16_000) < 16 * seconds(2_000)


def test_a_file_that_is_cut_off_or_mixed_is_refused(recorded: Write, write: Write) -> None:
    whole = json.dumps(recording())
    with pytest.raises(InputError, match="line 2, line 1: this is not JSON, or is cut off"):
        read_messages(write(f"{whole}\n{whole[:300]}", "r.jsonl"))
    with pytest.raises(InputError, match="1 of 2 trajectories have no reward, the first is 'r-2'"):
        read_messages(recorded(recording(reward=1), recording("r-2")))
    with pytest.raises(InputError, match="'r-1' occurs twice"):
        read_messages(recorded(recording(), recording()))
    with pytest.raises(InputError, match="the file is empty"):
        read_messages(write("", "r.jsonl"))


def test_a_line_separator_inside_a_text_is_no_new_line(recorded: Write) -> None:
    (found,) = read_messages(recorded(recording(persona={"note": "a\u2028b"})))
    assert found.persona == {"note": "a\u2028b"}


def test_real_recordings_are_read(shared: Path) -> None:
    found = read_messages(shared / "data" / "shopsim_traces" / "sft_messages.jsonl")
    assert len(found) == 12 and [len(one.turns) for one in found] == [5, 4, 5, 6, 6, 9, 8, 23, 33, 24, 8, 15]
    assert all(one.ending == "purchase" and one.purchase is not None and one.reward is None for one in found)
    assert found[0].purchase is not None and found[0].purchase.options == {
        "鞋码": "290",
        "颜色分类": "a311 ar【白水绿】",
    }
    assert all(turn.page for one in found for turn in one.turns[1:])


def test_the_facts_of_a_recording_are_screened(shared: Path) -> None:
    first = read_messages(shared / "data" / "shopsim_traces" / "sft_messages.jsonl")[0]
    screen = Screen({first.task_id: instance_of_recording(first)})
    leaks = {
        "a": "搜索 788552994965",
        "b": "贴地飞行victor胜利羽毛球鞋男女款专业威克多",
        "c": "颜色选a311 ar【白水绿】",
    }
    found = {finding.field for finding in screen.scan(leaks, [first.task_id])}
    assert found == {"a", "b", "c"}
    assert screen.scan({"a": "先把每项要求写进搜索词，再核对规格和价格"}, [first.task_id]) == ()


def careful(body: Json) -> Answer:  # noqa: ARG001 - the signature of scripts
    """A success author for recordings: the second turn's page shows the results."""
    card = success_card(None, "zh") | {"evidence": [{"step": 1, "quote": "search_products["}]}
    return completion(("submit_success_cards", {"cards": [card]}), usage={"prompt_tokens": 9, "completion_tokens": 9})


def shopskill(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "shopskill_lib.cli", "cards", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_cards_from_real_recordings_without_a_shop(shared: Path, tmp_path: Path) -> None:
    path = shared / "data" / "shopsim_traces" / "sft_messages.jsonl"
    with serve(careful) as server:
        done = shopskill(str(path), "--out", str(tmp_path), "-p", f"author_url={server.url}", "-p", "max_cards=1")
        assert done.returncode == 0, done.stderr
        again = shopskill(str(path), "--out", str(tmp_path), "-p", f"author_url={server.url}", "-p", "max_cards=1")
    assert done.stdout == again.stdout and len(server.work) == 12
    assert "outcome not recorded; taken as successful demonstrations" in done.stdout
    assert "12 trajectories analysed, 12 cards" in done.stdout and "搜索词写全了要求" in done.stdout
    cards = [json.loads(line)["cards"][0] for line in lines(tmp_path / CARDS)]
    assert len(cards) == 12 and {card["facts"]["reward"] for card in cards} == {None}
    assert len(lines(tmp_path / AUDIT)) == 12
    assert sum(json.loads(line)["stage"] == "recorded" for line in lines(tmp_path / "calls.jsonl")) == 12
    sent = server.work[0]["messages"][1]["content"]
    assert "gold" not in sent and '"reward": null' in sent and "最多写 1 张" in server.work[0]["messages"][0]["content"]


def test_cards_by_the_simulated_author_say_so(shared: Path, tmp_path: Path) -> None:
    path = shared / "data" / "shopsim_traces" / "sft_messages.jsonl"
    done = shopskill(str(path), "--out", str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert "simulated: 12 trajectories analysed" in done.stdout


@pytest.mark.parametrize(
    ("requests", "chinese"),
    [
        (("a red jacket", "a jacket", "the 小米 brand phone"), False),
        (("a red jacket", "the 小米 brand phone"), False),
        (("红色外套", "要一件外套", "a jacket"), True),
        (("红色外套",), True),
    ],
)
def test_prompts_are_in_the_language_of_most_requests(
    recorded: Write, tmp_path: Path, requests: tuple[str, ...], chinese: bool
) -> None:
    items = [recording(f"r-{number}") for number in range(len(requests))]
    for item, request in zip(items, requests, strict=True):
        item["messages"][1]["content"] = request
    with serve(careful) as server:
        done = shopskill(str(recorded(*items)), "--out", str(tmp_path / "out"), "-p", f"author_url={server.url}")
    assert done.returncode == 0, done.stderr
    assert {"最多写" in body["messages"][0]["content"] for body in server.work} == {chinese}


def test_failures_among_recordings_are_left_out_and_counted(recorded: Write, tmp_path: Path) -> None:
    with serve(careful) as server:
        settings = Settings.of({"language": "zh", "author_url": server.url})
        mixed = read_messages(recorded(recording(reward=1), recording("r-2", reward=0.4)))
        told = report_recordings(mixed, settings, tmp_path / "a")
        assert "1 trajectories left out" in told and "1 trajectories analysed" in told and "not recorded" not in told
        left = read_messages(recorded(recording(), recording("r-2", last=LEAVE, said="ok")))
        assert "1 trajectories left out" in report_recordings(left, settings, tmp_path / "b")
        with pytest.raises(InputError, match="none of 1 trajectories is a success"):
            report_recordings(mixed[1:], settings, tmp_path / "c")
        assert len(server.work) == 2


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        ({"n_train": "3"}, "there is no parameter 'n_train' here"),
        ({"max_card": "3"}, "there is no parameter 'max_card' here"),
        ({"max_cards": "three"}, "max_cards is 'three'"),
        ({"max_cards": "0"}, "max_cards is '0'"),
        ({"language": "fr"}, "language is 'fr'"),
    ],
)
def test_parameters_of_the_command_are_typed(texts: dict[str, str], message: str) -> None:
    with pytest.raises(ParameterError, match=message):
        Settings.of_texts(texts, RECORDED)
    found = Settings.of_texts({"max_cards": "3", "author_send_seed": "false", "author_temperature": "1"}, RECORDED)
    assert (found.max_cards, found.author_send_seed, found.author_temperature) == (3, False, 1.0)


def test_an_episode_without_reward_or_pages_is_refused(shops: dict[str, EmbeddedShop], tmp_path: Path) -> None:
    agent = Agent(scripted(), shops["en"], load_prompts("en"))
    task, bare = shops["en"].catalogue.tasks["1"], make_treatment("bare", ())
    kept = run([Planned("train", task, 0, bare, keep_pages=True)], agent, tmp_path / "a", rollout_seed=0, stage="cards")
    (episode,) = kept["train"].scored
    trajectory = of_episode(episode, task, ())
    assert trajectory.turns[0].page == episode.steps[0].observation and trajectory.success is not None
    assert "target_asin_match" not in trajectory.model_dump_json()
    failed = {"status": "error", "reward": None, "ending": None, "error": {"kind": "X", "message": "y"}}
    unscored = Episode.model_validate_json(json.dumps(episode.model_dump(mode="json") | failed))
    with pytest.raises(InputError, match="the episode has no reward"):
        of_episode(unscored, task, ())
    (bald,) = run([Planned("bare", task, 0, bare)], agent, tmp_path / "b", rollout_seed=0, stage="x")["bare"].scored
    with pytest.raises(InputError, match="step 1 kept no page"):
        of_episode(bald, task, ())
