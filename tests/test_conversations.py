"""ShareGPT and AgentGym JSON: calls and actions in text, what is refused, given back as they were."""

import json
from pathlib import Path
from typing import Any

import pytest
from recordings import CUP, REQUESTS, TITLES, Write, json_lines, recording, task_file
from scripted import Json

from shopskill_lib.adapters import conversations, formats, openai_messages
from shopskill_lib.adapters.recorded import as_trajectories
from shopskill_lib.errors import InputError

read = conversations.FORMAT.read

LANGUAGES = pytest.mark.parametrize("language", ["zh", "en"])
TOOLS = [{"name": "search_products", "description": "找商品", "parameters": {"type": "object", "properties": {}}}]


def agentgym(language: str = "en", **changes: Any) -> Json:
    """A trajectory of AgentGym's kind: rules, `Ok.`, then pages and replies in text."""
    opening = [
        {"from": "human", "loss": None, "value": "You are web shopping.\nsearch[keywords]\nclick[value]"},
        {"from": "gpt", "loss": False, "value": "Ok."},
    ]
    for message in task_file(language)["conversation"][1:]:
        mine = message["role"] == "assistant"
        value = message["content"].replace("Action: ", "Action:\n")
        opening.append({"from": "gpt" if mine else "human", "loss": True if mine else None, "value": value})
    return {"conversations": opening, "item_id": "webshop_12"} | changes


def sharegpt(**changes: Any) -> Json:
    """The same recording as `recording`, as ShareGPT writes it."""
    entries: list[Json] = []
    for message in recording()["messages"]:
        if "tool_calls" in message:
            function = message["tool_calls"][0]["function"]
            call = {"name": function["name"], "arguments": json.loads(function["arguments"])}
            entries.append({"from": "function_call", "value": json.dumps(call, ensure_ascii=False)})
        else:
            speaker = {"system": "system", "user": "human", "tool": "observation"}[message["role"]]
            entries.append({"from": speaker, "value": message["content"]})
    return {"conversations": entries, "tools": json.dumps(TOOLS, ensure_ascii=False)} | changes


@LANGUAGES
def test_agentgym_is_read(language: str, write: Write) -> None:
    (found,) = read(write(json.dumps([agentgym(language)], ensure_ascii=False), "webshop.json")).episodes
    assert (found.trajectory_id, found.task_id, found.ending) == ("row-000001", "webshop_12", "purchase")
    assert found.instruction == REQUESTS[language] and found.turns is not None
    assert [turn.action for turn in found.turns][:2] == [f"search[{TITLES[language]}]", f"click[{CUP}]"]
    assert found.reward is None and found.tools is None and found.hints is None


def test_sharegpt_is_read_as_the_messages_it_was_made_of(write: Write) -> None:
    (found,) = as_trajectories(read(write(json_lines(sharegpt(id="r-1")), "s.jsonl")).episodes)
    (plain,) = as_trajectories(openai_messages.FORMAT.read(write(json_lines(recording()), "o.jsonl")).episodes)
    assert found.model_copy(update={"task_id": "7"}) == plain
    (episode,) = read(write(json_lines(sharegpt()), "s.jsonl")).episodes
    assert episode.tools == ({"type": "function", "function": TOOLS[0]},)


def test_a_system_text_apart_is_the_first_message(write: Write) -> None:
    item = sharegpt(system="你是购物助手。")
    item["conversations"] = item["conversations"][1:]
    (found,) = read(write(json_lines(item), "s.jsonl")).episodes
    assert found.messages is not None and found.messages[0] == {"role": "system", "content": "你是购物助手。"}


@pytest.mark.parametrize("name", ["a.json", "a.jsonl"])
def test_both_are_given_back(write: Write, tmp_path: Path, name: str) -> None:
    items = [
        agentgym("zh", reward=0.5), sharegpt(id="别名", note={"seen": [1, None]}), agentgym(), sharegpt(system="s"),
        {"conversations": []},
    ]  # fmt: skip
    text = json.dumps(items, ensure_ascii=False) if name == "a.json" else json_lines(*items)
    found = formats.read(write(text, name))
    assert found.format == "sharegpt"
    write_to = tmp_path / "out" / name
    conversations.FORMAT.write(found, write_to)
    written = write_to.read_text(encoding="utf-8")
    again = json.loads(written) if name == "a.json" else [json.loads(line) for line in written.splitlines()]
    assert again == items and read(write_to) == found


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"from": "bard", "value": "x"}, "conversations.1: from is 'bard'"),
        ({"value": "x"}, "conversations.1: from is None"),
        ({"from": "gpt", "value": None}, "conversations.1: value is a NoneType"),
        ({"from": "function_call", "value": "search it"}, "conversations.1, value.*: this is not JSON"),
        ({"from": "function_call", "value": "[]"}, "conversations.1: value holds 0 calls"),
        ({"from": "function_call", "value": '{"arguments": {}}'}, "conversations.1: value is no call"),
    ],
)
def test_an_entry_that_cannot_be_used_is_refused_by_place(write: Write, entry: Json, message: str) -> None:
    item = {"conversations": [{"from": "human", "value": "hi"}, entry]}
    with pytest.raises(InputError, match=rf"a\.jsonl, line 2, {message}"):
        read(write(json_lines(sharegpt(), item), "a.jsonl"))


def test_other_fields_of_another_type_are_refused(write: Write) -> None:
    cases: list[tuple[Json, str]] = [
        ({"system": 5}, "system is a int"),
        ({"tools": "{"}, "tools: .*not JSON|tools, line 1"),
        ({"item_id": []}, "item_id is"),
        ({"reward": 2}, "reward is 2"),
    ]
    for changes, message in cases:
        with pytest.raises(InputError, match=message):
            read(write(json_lines(sharegpt() | changes), "a.jsonl"))
    with pytest.raises(InputError, match=r"line 1: there is no field conversations"):
        read(write(json_lines({"a": 1}), "a.jsonl"))
    with pytest.raises(InputError, match="trajectory_id 'x' occurs twice"):
        read(write(json_lines(sharegpt(id="x"), sharegpt(id="x")), "a.jsonl"))


def test_chat_messages_are_written_as_conversations_but_for_ids_and_words_beside_calls(
    write: Write, tmp_path: Path
) -> None:
    found = openai_messages.FORMAT.read(write(json_lines(recording(reward=1)), "o.jsonl"))
    lost = formats.export(found, formats.named("sharegpt"), tmp_path / "s.json")
    assert lost == ("messages is not held as it was in 1 episodes",)
    (one,), (other,) = as_trajectories(read(tmp_path / "s.json").episodes), as_trajectories(found.episodes)
    assert one == other
