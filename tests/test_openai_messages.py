"""Chat messages with tools: what is read of them, what is refused, by line and field; written again they are equal."""

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from recordings import HOME, Write, json_lines, read_messages, recording
from scripted import Json

from shopskill_lib.adapters import openai_messages
from shopskill_lib.adapters.recorded import RecordedEpisode
from shopskill_lib.errors import InputError
from shopskill_lib.trajectories import LEAVE


@pytest.fixture
def recorded(write: Write) -> Write:
    """Write recordings as JSON lines."""
    return lambda *items: write(json_lines(*items), "r.jsonl")


def read(path: Path) -> tuple[RecordedEpisode, ...]:
    return openai_messages.FORMAT.read(path).episodes


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
    ([1], "the entry is a list"),
    (recording() | {"trajectory_id": ""}, "trajectory_id is ''"),
    (recording() | {"task_id": ["7"]}, r"task_id is \['7'\]"),
    (recording() | {"messages": [1]}, "messages.0: something else than a message"),
    (recording() | {"tools": {"a": 1}}, "tools is a dict"),
    (_messages(lambda messages: messages[1].update(role="narrator")), "messages.1: role is 'narrator'"),
    (_messages(lambda messages: messages.pop(3)), "the call search_products has no answer"),
    (_messages(lambda messages: messages[2]["tool_calls"][0].pop("function")), "no function with a name"),
    (recording(reward="high"), "reward is 'high'"),
    (recording(reward=7), "reward is 7"),
    (recording(persona="tall"), "persona is a str"),
    (_made(lambda made: made.update(tool_calls=5)), "r-1, messages.2: tool_calls is a int"),
    (_made(lambda made: made["tool_calls"][0].update(id=["x"])), r"r-1, messages.2.tool_calls.0: id is \['x'\]"),
    (_made(lambda made: made["tool_calls"][0].pop("id")), "r-1, messages.3: tool_call_id 'c0' answers no open call"),
    (_made(lambda made: made["tool_calls"].append(made["tool_calls"][0])), "2.tool_calls.1: id 'c0' occurs twice"),
    (_made(lambda made: made["tool_calls"].append({"function": {"name": "x"}})), "2.tool_calls.1: id is None"),
    (_answered(tool_call_id=None), "r-1, messages.3: tool_call_id is None"),
    (_answered(tool_call_id=["c0"]), r"r-1, messages.3: tool_call_id is \['c0'\]"),
    (_messages(lambda messages: messages[5].update(tool_call_id="c0")), "5: tool_call_id 'c0' answers no open call"),
    (_messages(lambda messages: messages.insert(4, messages[3])), "4: tool_call_id 'c0' answers no open call"),
    (_answered(content=5), "r-1, messages.3: content is a int"),
    (_answered(content=["page"]), "r-1, messages.3.content.0: content holds a part that is no text"),
    (_answered(content=[{"type": "text"}]), "r-1, messages.3.content.0: content holds a part"),
    (_answered(content=[TEXT, {"type": "image_url", "image_url": {}}]), "r-1, messages.3.content.1: content holds a"),
    (_messages(lambda messages: messages[1].update(content=[{"type": "file"}])), "r-1, messages.1.content.0: content"),
    (_answered(content=f"外套 {HALF}"), "messages.3.content holds half a surrogate pair"),
    (_messages(lambda messages: messages[1].update(content=HALF)), "messages.1.content holds half a surr"),
    (_called(arguments=json.dumps({"query": HALF})), "2.tool_calls.0: the arguments of search_products hold half a"),
    (_called(name=HALF), "messages.2.tool_calls.0.function.name holds half a surrogate pair"),
    (recording(persona={"note": HALF}), "persona.note holds half a surrogate pair"),
    (recording() | {"task_id": HALF}, "task_id holds half a surrogate pair"),
    (recording(HALF), "trajectory_id holds half a surrogate pair"),
    (recording(score=float("nan")), "score: NaN is no JSON number"),
    (_messages(lambda messages: messages[2].update(logprob=float("-inf"))), "messages.2.logprob: -Infinity is no JSON"),
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


def test_ids_tell_apart_the_calls_of_one_message_only(recorded: Write) -> None:
    """Servers that count anew in every reply, and sources without ids, lose nothing."""
    same, bare = recording(), recording("r-2")
    for message in [*same["messages"], *bare["messages"]]:
        for holder in (message, *message.get("tool_calls", ())):
            for name in holder.keys() & {"id", "tool_call_id"}:
                holder[name] = "call_0"
    for message in bare["messages"]:
        message.pop("tool_call_id", None)
        for made in message.get("tool_calls", ()):
            del made["id"]
    plain, *others = read_messages(recorded(recording(), same | {"trajectory_id": "r-3"}, bare))
    assert [one.turns for one in others] == [plain.turns, plain.turns]


def test_answers_to_several_calls_find_them_by_id(recorded: Write) -> None:
    whole = recording()
    first, second = whole["messages"][2], whole["messages"][4]
    first["tool_calls"] += second["tool_calls"]
    messages = whole["messages"]
    whole["messages"] = [*messages[:3], messages[5], messages[3], *messages[6:]]
    (found,) = read_messages(recorded(whole))
    assert [turn.page for turn in found.turns[1:3]] == [HOME, messages[5]["content"]]


def test_arguments_are_an_object_or_one_as_text_and_anything_else_is_a_fault(recorded: Write) -> None:
    as_object = _called(arguments={"query": "jacket 外套"})
    broken, listed = _called(arguments='{"query": "jac'), _called(arguments="[1]")
    items = [item | {"trajectory_id": f"r-{number}"} for number, item in enumerate((as_object, broken, listed))]
    turns = [episode.turns for episode in read(recorded(*items))]
    assert [made and (made[0].action, made[0].fault) for made in turns] == [
        ("search_products[jacket 外套]", None),
        (None, "invalid_arguments_json"),
        (None, "invalid_arguments_object"),
    ]


def test_what_a_recording_does_not_tell_stays_none_and_is_said(recorded: Write) -> None:
    silent = [
        recording("r-1", said="本地动作守卫拒绝，未执行"),
        recording("r-2", last="view_features", said="x"),
        recording("r-3") | {"messages": recording()["messages"][:-1]},
        recording("r-4") | {"messages": recording()["messages"][:2]},
        recording("r-5") | {"messages": recording()["messages"][2:]},
    ]
    found = openai_messages.FORMAT.read(recorded(*silent))
    assert [episode.ending for episode in found.episodes] == [None, None, None, None, "purchase"]
    assert [episode.turns is None for episode in found.episodes] == [False, False, False, True, False]
    assert [episode.instruction for episode in found.episodes] == ["a jacket"] * 4 + [None]
    assert any(said.startswith("ending: not told in 4 of 5 episodes; no cards") for said in found.lacks)


def test_a_file_that_is_cut_off_or_mixed_is_refused(recorded: Write, write: Write) -> None:
    whole = json.dumps(recording())
    with pytest.raises(InputError, match="line 2, line 1: this is not JSON, or is cut off"):
        read(write(f"{whole}\n{whole[:300]}", "r.jsonl"))
    with pytest.raises(InputError, match="1 of 2 trajectories have no reward, the first is 'r-2'"):
        read_messages(recorded(recording(reward=1), recording("r-2")))
    with pytest.raises(InputError, match="'r-1' occurs twice"):
        read(recorded(recording(), recording()))
    with pytest.raises(InputError, match="the file is empty"):
        read(write("", "r.jsonl"))
    with pytest.raises(InputError, match="line 2: the key 'a' stands twice"):
        read(write(whole + '\n{"messages": [], "a": 1, "a": 2}\n', "r.jsonl"))
    with pytest.raises(InputError, match="line 2: byte 2 is not UTF-8"):
        read(write(whole.encode() + b"\n{\xff}\n", "r.jsonl"))


def test_files_are_read_as_editors_save_them(write: Write) -> None:
    items = [recording(), recording("r-2", persona={"尺码": "均码"})]
    plain = read(write(json_lines(*items), "r.jsonl"))
    for content in (
        b"\xef\xbb\xbf" + json_lines(*items).encode(),
        json_lines(*items).replace("\n", "\r\n").encode(),
        json_lines(*items).replace("\n", "\n\n").rstrip("\n").encode(),
        json.dumps(items, ensure_ascii=False, indent=2).encode(),
    ):
        found = read(write(content, "r.jsonl"))
        assert [one.model_copy(update={"source": plain[0].source}) for one in found] == [
            one.model_copy(update={"source": plain[0].source}) for one in plain
        ]


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


def test_the_real_recordings_are_given_back(shared: Path, tmp_path: Path) -> None:
    path = shared / "data" / "shopsim_traces" / "sft_messages.jsonl"
    openai_messages.FORMAT.write(openai_messages.FORMAT.read(path), tmp_path / "sft_messages.jsonl")
    written = (tmp_path / "sft_messages.jsonl").read_text(encoding="utf-8").splitlines()
    assert [json.loads(line) for line in written] == [
        json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()
    ]
    assert openai_messages.FORMAT.read(tmp_path / "sft_messages.jsonl") == openai_messages.FORMAT.read(path)
