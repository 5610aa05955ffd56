"""Rollout rows of verl, TRL and slime; and of every row format: given back, read again equal, or refused."""

import json
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import elsewhere
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from recordings import REQUESTS, Write, json_lines, recording, task_file
from scripted import Json

from shopskill_lib.adapters import chatml, conversations, formats, openai_messages, slime, trl, verl
from shopskill_lib.adapters.folder import load, save
from shopskill_lib.adapters.recorded import Import, RecordedEpisode, as_trajectories
from shopskill_lib.errors import InputError

MODULES = {"verl": verl.FORMAT, "trl": trl.FORMAT, "slime": slime.FORMAT}
READERS = {"openai-messages": openai_messages.FORMAT, "sharegpt": conversations.FORMAT, **MODULES}
TALK: list[Json] = task_file("en")["conversation"]
CALLED: list[Json] = recording()["messages"]


def halves(messages: list[Json] = TALK) -> tuple[list[Json], list[Json]]:
    return messages[:2], messages[2:]


def texts() -> tuple[str, str]:
    """Prompt and response as one text each, cut where the generation begins."""
    asked, answered = halves()
    return chatml.joined(asked) + chatml.OPENING, chatml.joined(answered).removeprefix(chatml.OPENING)


def of_verl(**changes: Any) -> Json:
    return {
        "data_source": "shop", "prompt": halves()[0], "messages": TALK, "reward_score": 1.0, "ability": "web",
        "reward_model": {"style": "rule", "ground_truth": "canary-gold"},
        "extra_info": {"split": "train", "index": 12},
    } | changes  # fmt: skip


def of_trl(**changes: Any) -> Json:
    prompt, completion = halves(CALLED)
    return {"step": 3, "prompt": prompt, "completion": completion, "shop_reward_func": 1.0, "advantage": -0.5} | changes


def of_slime(**changes: Any) -> Json:
    prompt, response = texts()
    return {
        "index": 4, "group_index": 0, "prompt": prompt, "response": response, "tokens": [1, 2, 3], "response_length": 2,
        "label": "canary-gold", "reward": 1.0, "loss_mask": [1, 0], "status": "completed", "metadata": {"task_id": 12},
    } | changes  # fmt: skip


MADE: dict[str, Callable[..., Json]] = {"verl": of_verl, "trl": of_trl, "slime": of_slime}
FORMATS = pytest.mark.parametrize("name", MADE)


def one(write: Write, item: Json, name: str) -> RecordedEpisode:
    return formats.read(write(json_lines(item), "rows.jsonl"), name).episodes[0]


@FORMATS
def test_a_row_is_recognised_and_read(name: str, write: Write) -> None:
    found = formats.read(write(json_lines(MADE[name](), MADE[name]()), "rows.jsonl"))
    assert found.format == name and [one.trajectory_id for one in found.episodes] == ["row-000001", "row-000002"]
    (first, _) = as_trajectories(found.episodes)
    assert first.ending == "purchase" and first.reward == 1 and first.success and len(first.turns) == 4
    assert first.instruction == ("a jacket" if name == "trl" else REQUESTS["en"])
    assert found.episodes[0].task_id == (None if name == "trl" else "12")


@FORMATS
def test_rows_are_given_back_through_a_folder(name: str, write: Write, tmp_path: Path) -> None:
    items = [MADE[name](), MADE[name](more={"一": [None, 1e-9]}), MADE[name]()]
    found = formats.read(write(json_lines(*items), "rows.jsonl"))
    save(found, tmp_path / "kept")
    assert load(tmp_path / "kept") == found
    assert "canary" not in (tmp_path / "kept" / "trajectories.jsonl").read_text(encoding="utf-8")
    MODULES[name].write(load(tmp_path / "kept"), tmp_path / "rows.jsonl")
    written = (tmp_path / "rows.jsonl").read_text(encoding="utf-8").splitlines()
    assert [json.loads(line) for line in written] == items and MODULES[name].read(tmp_path / "rows.jsonl") == found


@FORMATS
def test_several_files_are_read_in_order_and_given_back(name: str, tmp_path: Path) -> None:
    for step in (2, 10):
        (tmp_path / "in").mkdir(exist_ok=True)
        (tmp_path / "in" / f"{step}.jsonl").write_text(json_lines(MADE[name](step=step), MADE[name](step=step)))
    found = formats.read(tmp_path / "in")
    assert [one.trajectory_id for one in found.episodes] == ["2-000001", "2-000002", "10-000001", "10-000002"]
    MODULES[name].write(found, tmp_path / "out")
    assert formats.read(tmp_path / "out") == found


@FORMATS
def test_chat_messages_are_written_as_rows_and_read_back(name: str, write: Write, tmp_path: Path) -> None:
    before = openai_messages.FORMAT.read(
        write(json_lines(recording(reward=0.5), recording("r-2", reward=1)), "o.jsonl")
    )
    formats.export(before, formats.named(name), tmp_path / "rows.jsonl")
    after = as_trajectories(MODULES[name].read(tmp_path / "rows.jsonl").episodes)
    assert after == as_trajectories(before.episodes)


@pytest.mark.parametrize("name", READERS)
def test_other_imports_are_written_as_rows_as_far_as_they_go(name: str, tmp_path: Path) -> None:
    """Failed attempts are left out, a program that stood in for the model is said, and nothing is made up."""
    whole, bare = deepcopy(elsewhere.trace(1, language="zh")), elsewhere.trace(2)
    whole["provenance"]["model"]["simulated"] = True
    found = formats.read(elsewhere.write_lines(tmp_path / "traces.jsonl", [whole, elsewhere.failed(3)]))
    lost = formats.export(found, formats.named(name), tmp_path / "rows.jsonl")
    (after,) = READERS[name].read(tmp_path / "rows.jsonl").episodes
    assert after.simulated and after.reward == found.episodes[0].reward
    assert "1 of 2 episodes are held" in lost and any(said.startswith("parts is not held") for said in lost)
    assert [turn.action for turn in after.turns or ()] == ["search[外套 jacket]"]
    bare["conversation"] = None
    silent = formats.read(elsewhere.write_lines(tmp_path / "silent.jsonl", [bare]))
    with pytest.raises(InputError, match=r"silent\.jsonl, line 1: trajectory .* has no messages"):
        formats.export(silent, formats.named(name), tmp_path / "none.jsonl")
    skill = Import(format="skill")
    with pytest.raises(InputError, match="the import of skill: there is no completed episode"):
        formats.export(skill, formats.named(name), tmp_path / "none.jsonl")
    assert not (tmp_path / "none.jsonl").exists()


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("verl", {"messages": None, "prompt": None, "prompts": [1, 2], "responses": [3]}, r"token ids \(field prompts"),
        ("verl", {"messages": None, "prompt": None, "input_ids": [[1, 2]]}, r"token ids \(field input_ids\)"),
        ("verl", {"messages": None, "prompt": None}, "neither messages nor a response"),
        ("verl", {"messages": "hello"}, "messages: this is a str"),
        ("verl", {"reward_score": 10.0}, "reward_score is 10.0"),
        ("verl", {"extra_info": [1]}, "extra_info is a list"),
        ("verl", {"messages": None, "response": 5}, "response is a int"),
        ("trl", {"completion": [5, 6]}, r"token ids \(field completion\)"),
        ("trl", {"prompt": [{"role": "user"}, {"role": "sage"}]}, "prompt and completion.1: role is 'sage'"),
        ("trl", {"format_reward": 0.0}, "there are 2 columns of rewards"),
        ("trl", {"shop_reward_func": float("nan")}, "shop_reward_func: NaN is no JSON number"),
        ("trl", {"shop_reward_func": True}, "shop_reward_func is True"),
        ("slime", {"response": ""}, r"token ids \(field tokens\)"),
        ("slime", {"response": "", "tokens": [], "loss_mask": []}, "response is not there or empty"),
        ("slime", {"status": "lost"}, "status is 'lost'"),
        ("slime", {"reward": {"acc": 1.0}}, "reward is an object of acc"),
        ("slime", {"metadata": "x"}, "metadata is a str"),
    ],
)
def test_what_cannot_be_used_is_refused_by_line_and_field(write: Write, name: str, changes: Json, message: str) -> None:
    with pytest.raises(InputError, match=rf"rows\.jsonl, line 2.*{message}"):
        formats.read(write(json_lines(MADE[name](), MADE[name](**changes)), "rows.jsonl"), name)


def test_rows_that_are_no_episodes_are_refused(write: Write) -> None:
    path = write(json_lines({"prompt": [], "chosen": [], "rejected": []}), "rows.jsonl")
    with pytest.raises(InputError, match=r"line 1: there is no field completion.*preferences and prompts alone"):
        formats.read(path)


def test_the_reward_of_several_columns_is_the_one_named_reward(write: Write) -> None:
    item = of_trl(format_reward=0.0, reward=0.5)
    assert one(write, item, "trl").reward == 0.5
    assert one(write, of_slime(reward={"reward": 0.25, "acc": 1}), "slime").reward == 0.25


@pytest.mark.parametrize("status", ["aborted", "failed", "pending"])
def test_a_sample_that_was_not_finished_has_no_reward(write: Write, status: str) -> None:
    found = one(write, of_slime(status=status, response="", reward=0.0), "slime")
    assert (found.status, found.reward) == ("failed", None) and found.error is not None and found.error.kind == status


def test_a_truncated_sample_keeps_its_reward_and_tells_no_ending(write: Write) -> None:
    cut = texts()[1][: len(texts()[1]) // 2]
    found = one(write, of_slime(status="truncated", reward=0, response=cut), "slime")
    assert (found.status, found.reward, found.ending) == ("completed", 0.0, None) and found.turns is not None


def test_a_dump_of_verl_without_role_marks_tells_no_turns(write: Write) -> None:
    """Written by verl 0.9.1 without special tokens, so that roles are gone."""
    item = {
        "input": "user\nbuy a cup",
        "output": "assistant\nok",
        "gts": "canary",
        "score": 0.0,
        "step": 3,
        "uid": "a_0_0",
    }
    found = formats.read(write(json_lines(item), "3.jsonl"))
    (episode,) = found.episodes
    assert found.format == "verl" and episode.reward == 0 and episode.messages is None and episode.turns is None
    assert any(said.startswith("turns: not told in any of 1 episodes; no cards") for said in found.lacks)
    marked = one(write, item | {"input": texts()[0], "output": texts()[1]}, "verl")
    assert marked.turns is not None and len(marked.turns) == 4 and marked.ending == "purchase"


def test_a_response_that_runs_on_over_several_turns_stands_beside_a_prompt_of_messages(write: Write) -> None:
    found = one(write, of_slime(prompt=halves()[0]), "slime")
    assert found.messages is not None and [message["role"] for message in found.messages] == [
        message["role"] for message in TALK
    ]
    plain = one(write, of_trl(prompt=halves()[0], completion="Thought: 好。\nAction: search[杯子]"), "trl")
    assert plain.turns is not None and [turn.action for turn in plain.turns] == ["search[杯子]"]


def test_lines_are_read_one_by_one(write: Write) -> None:
    """What stands further down is not looked at before a line is refused."""
    whole = [recording(f"r-{number}") for number in range(3)]
    path = write(json_lines(*whole, {"messages": 5}).encode() + b"\xff\n", "o.jsonl")
    with pytest.raises(InputError, match="line 4: there is no field messages"):
        openai_messages.FORMAT.read(path)


JSON: Any = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
WORDS = st.text(st.characters(codec="utf-8"), max_size=12)
SPEECH = st.builds(
    lambda role, said: {"role": role, "content": said}, st.sampled_from(["system", "user", "assistant", "tool"]), WORDS
)
EXTRA = st.dictionaries(st.text(max_size=5), JSON, max_size=3)
SHARE = st.floats(0, 1) | st.just(1) | st.none()
ROWS: dict[str, Any] = {
    "openai-messages": st.builds(
        lambda said, reward, more: {**more, "messages": said, "reward": reward}, st.lists(SPEECH), SHARE, EXTRA
    ),
    "sharegpt": st.builds(
        lambda said, more: {**more, "conversations": [{"from": who, "value": text} for who, text in said]},
        st.lists(st.tuples(st.sampled_from(["system", "human", "gpt", "observation"]), WORDS)),
        EXTRA,
    ),
    "verl": st.builds(
        lambda said, reward, more: {**more, "messages": said, "score": reward, "extra_info": {"index": 3}},
        st.lists(SPEECH),
        SHARE,
        EXTRA,
    ),
    "trl": st.builds(
        lambda said, more, reward: {**more, "prompt": said, "completion": said, "my_reward": reward},
        st.lists(SPEECH) | WORDS,
        EXTRA,
        SHARE,
    ),
    "slime": st.builds(
        lambda said, more: {**more, "prompt": said, "response": "x" + said, "status": "completed"}, WORDS, EXTRA
    ),
}


def _unplaced(found: Import) -> list[Json]:
    return [episode.model_dump(exclude={"source"}) for episode in found.episodes]


@pytest.mark.parametrize("name", READERS)
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data(), array=st.booleans())
def test_any_rows_are_given_back(name: str, data: st.DataObject, array: bool, tmp_path: Path) -> None:
    """Import, export: equal as JSON. Import, export, import: equal."""
    items = data.draw(st.lists(ROWS[name], min_size=1, max_size=3))
    path, out = (tmp_path / f"{stem}{'.json' if array else '.jsonl'}" for stem in ("in", "out"))
    path.write_text(json.dumps(items) if array else json_lines(*items), encoding="utf-8")
    found = READERS[name].read(path)
    READERS[name].write(found, out)
    text = out.read_text(encoding="utf-8")
    assert (json.loads(text) if array else [json.loads(line) for line in text.split("\n")[:-1]]) == items
    assert _unplaced(READERS[name].read(out)) == _unplaced(found)


@pytest.mark.parametrize("name", READERS)
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_json_is_given_back_or_refused_by_line(name: str, data: st.DataObject, tmp_path: Path) -> None:
    fields = ["messages", "conversations", "prompt", "completion", "response", "output", "reward", "score", "status"]
    strange = JSON | st.lists(
        st.dictionaries(st.sampled_from(["role", "content", "from", "value", "tool_calls"]), JSON)
    )
    items = data.draw(st.lists(st.dictionaries(st.sampled_from(fields), strange, max_size=5), min_size=1, max_size=2))
    path, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    path.write_text(json_lines(*items), encoding="utf-8")
    try:
        found = READERS[name].read(path)
    except InputError as error:
        assert str(path) in str(error)
        return
    READERS[name].write(found, out)
    assert [json.loads(line) for line in out.read_text(encoding="utf-8").split("\n")[:-1]] == items
