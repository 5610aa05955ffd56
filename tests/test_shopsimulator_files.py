"""Files of the original ShopSimulator: what is read, what is of another task, what is refused; given back whole."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from recordings import CUP, REQUESTS, TITLES, product_page, results_page, task_file
from scripted import Json

from shopskill_lib.adapters import formats, shopsimulator_files
from shopskill_lib.adapters.folder import load, save
from shopskill_lib.adapters.recorded import RecordedEpisode, as_trajectories
from shopskill_lib.adapters.shopsimulator_files import read, write
from shopskill_lib.errors import InputError

LANGUAGES = pytest.mark.parametrize("language", ["zh", "en"])
ROUND = "\n轮次: {}\n请做出下一轮决策:"


def put(folder: Path, name: str, document: Any) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document, ensure_ascii=False, indent=4), encoding="utf-8")
    return path


def one(folder: Path, document: Any) -> RecordedEpisode:
    return read(put(folder, "7.json", document)).episodes[0]


def several_turns(language: str = "zh", **changes: Any) -> Json:
    """A file of multi_eval: the shopper tells the request, the agent asks once."""
    said = ["Shopper: 想买一个保温杯。", "Shopper: 白色的，防漏。", f"Env: {results_page(language)}"]
    pages = [text + ROUND.format(n) for n, text in enumerate([*said, f"Env: {product_page(language, '42')}"], 1)]
    asked = "Action_type: ask_shopper\nAction_content: 要什么颜色？"
    done = [f"search[{TITLES[language]}]", f"click[{CUP}]", "click[buy now]"]
    replies = [asked, *(f"Action_type: interact_with_env\nAction_content: {action}" for action in done)]
    talk = [{"role": "system", "content": "s"}]
    for page, reply in zip(pages, replies, strict=True):
        talk += [{"role": "user", "content": page}, {"role": "assistant", "content": f"Thought: 好。\n{reply}"}]
    shopper = [{"role": "system", "content": f"你要买：{REQUESTS[language]} 规格：白色"}]
    return task_file(language, conversation=talk, shopper_conversation=shopper) | changes


@LANGUAGES
def test_a_file_is_an_episode(language: str, tmp_path: Path) -> None:
    found = one(tmp_path, task_file(language))
    assert (found.trajectory_id, found.task_id, found.status, found.ending) == ("7", "7", "completed", "purchase")
    assert found.instruction == REQUESTS[language] and found.turns is not None and len(found.turns) == 4
    assert found.reward == 1 and found.parts is not None and found.parts["r_success"] == 1
    assert found.purchase is not None and (found.purchase.title, found.purchase.price.price) == (TITLES[language], 41.7)
    assert [found.persona, found.hints, found.tools, found.model, found.error] == [None] * 5


def test_the_reward_is_the_product_and_the_files_own_is_kept_beside_it(tmp_path: Path) -> None:
    parts = {"r_type": 0.5, "r_att": 0.5, "r_option": 1.0, "r_price": False}
    found = one(tmp_path, task_file(reward=0.3, reward_detail=parts))
    assert found.reward == 0 and found.parts == {
        "r_type": 0.5, "r_att": 0.5, "r_option": 1.0, "r_price": 0.0, "r_loose": 0.3, "r_strict": 0.0, "r_success": 0.0,
    }  # fmt: skip


@LANGUAGES
def test_the_several_turn_setting(language: str, tmp_path: Path) -> None:
    found = one(tmp_path, several_turns(language))
    assert found.instruction == "想买一个保温杯。" and found.error is None and found.turns is not None
    actions = [turn.action for turn in found.turns]
    assert actions == ["ask_shopper[要什么颜色？]", f"search[{TITLES[language]}]", f"click[{CUP}]", "click[buy now]"]
    assert "规格" not in json.dumps(found.model_dump(mode="json"), ensure_ascii=False)


def test_an_episode_past_the_limit_is_an_ending_and_a_missing_file_is_said(tmp_path: Path) -> None:
    nothing: Json = {"reward": 0, "reward_detail": {}, "goal": {}, "purchase": {}}
    found = read(put(tmp_path, "7.json", several_turns() | nothing))
    (episode,) = found.episodes
    assert (episode.ending, episode.reward, episode.parts, episode.purchase) == ("action_limit", 0.0, None, None)
    assert any("a task that failed has left no file: it is missing, and no reward of 0" in said for said in found.lacks)


@pytest.mark.parametrize(
    ("document", "reason"),
    [
        (
            task_file(goal=task_file()["goal"] | {"instruction_text": "要一个滤网", "instruction_simple": "滤网"}),
            "goal",
        ),
        (several_turns(shopper_conversation=[{"role": "system", "content": "你要买一个乳胶枕"}]), "goal"),
        (task_file(purchase=task_file()["purchase"] | {"asin": "100000000001"}), "purchase.asin"),
    ],
)
def test_a_goal_or_purchase_of_another_task_is_a_failure_and_said(document: Json, reason: str, tmp_path: Path) -> None:
    put(tmp_path, "in/7.json", document)
    put(tmp_path, "in/8.json", task_file(task_id=8))
    found = read(tmp_path / "in")
    bad, good = found.episodes
    assert bad.error is not None and bad.error.message.startswith(reason) and bad.status == "failed"
    assert [bad.reward, bad.parts, bad.ending, bad.purchase, bad.persona] == [None] * 5
    assert good.reward == 1 and [one.trajectory_id for one in as_trajectories(found.episodes)] == ["8"]
    assert any(said.startswith(f"7.json: {reason}") for said in found.lacks)


def test_a_persona_goes_with_the_simple_request_only(tmp_path: Path) -> None:
    goal = task_file()["goal"] | {"user_persona": {"尺码": "均码"}}
    whole = one(tmp_path, task_file(goal=goal))
    talk = task_file()["conversation"]
    talk[1]["content"] = "Instruction: 想买一个保温杯。"
    simple = one(tmp_path, task_file(goal=goal, conversation=talk))
    assert (whole.persona, simple.persona) == (None, {"尺码": "均码"})


def test_a_folder_is_one_import_and_is_given_back(tmp_path: Path) -> None:
    inner = "single_eval/outputs/standard/qwen3"
    files = {f"{inner}/10.json": task_file(task_id=10), f"{inner}/9.json": task_file("en", task_id=9)}
    files["multi_eval/outputs/persona/other/9.json"] = several_turns(task_id=9, reward=1)
    for name, document in files.items():
        put(tmp_path / "in", name, document)
    put(tmp_path / "in", "score.json", {"mean": 1})
    found = formats.read(tmp_path / "in")
    assert found.format == "shopsimulator" and "1 files that no task's number names were not read" in found.lacks
    assert [episode.model for episode in found.episodes] == ["other", "qwen3", "qwen3"]
    assert [episode.task_id for episode in found.episodes] == ["9", "9", "10"]
    save(found, tmp_path / "kept")
    write(load(tmp_path / "kept"), tmp_path / "out")
    assert {
        file.relative_to(tmp_path / "out").as_posix(): json.loads(file.read_text(encoding="utf-8"))
        for file in (tmp_path / "out").rglob("*.json")
    } == files
    assert read(tmp_path / "out").episodes == found.episodes


def test_gold_stands_in_the_privileged_file_alone(tmp_path: Path) -> None:
    marked = {"asin": "canary-asin", "goal_options": ["canary-option"], "reason_key": "canary-reason"}
    shopper = several_turns()["shopper_conversation"] + [{"role": "user", "content": "canary-shopper"}]
    document = several_turns(goal=several_turns()["goal"] | marked, shopper_conversation=shopper)
    save(read(put(tmp_path, "7.json", document)), tmp_path / "kept")
    texts = {file.name: file.read_text(encoding="utf-8") for file in (tmp_path / "kept").iterdir()}
    assert [name for name, text in texts.items() if "canary" in text] == ["source.jsonl"]
    assert len(re.findall("canary", texts["source.jsonl"])) == 4


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"task_id": "7"}, r"7\.json: task_id is '7'"),
        ({"task_id": 8}, r"7\.json: task_id is 8"),
        ({"reward": 0.5, "reward_detail": {}}, "reward is 0.5 and reward_detail is empty"),
        ({"reward": 7.0}, "reward is 7.0"),
        ({"reward_detail": {"r_type": 1.0}}, "reward_detail: r_att is not there"),
        ({"purchase": task_file()["purchase"] | {"name": None}}, "purchase: name is None"),
        ({"goal": {"asin": 1}}, "goal: asin is 1"),
        ({"goal": None}, "goal is None"),
        ({"conversation": [{"role": "narrator", "content": ""}]}, "conversation.0: role is 'narrator'"),
        ({"weight": float("nan")}, "weight: NaN is no JSON number"),
    ],
)
def test_what_cannot_be_used_is_refused_by_file_and_field(changes: Json, message: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=message):
        one(tmp_path, task_file() | changes)


def test_another_import_is_not_written_as_such_files(tmp_path: Path) -> None:
    other = formats.read(put(tmp_path, "c.json", [{"messages": [{"role": "user", "content": "x"}]}]))
    with pytest.raises(InputError, match="an import of openai-messages does not tell goal and reward_detail"):
        shopsimulator_files.write(other, tmp_path / "out")


def test_the_made_up_file_of_the_reference_is_a_failure_of_a_purchase(shared: Path, tmp_path: Path) -> None:
    text = (shared / "reference" / "shopsimulator_http.md").read_text(encoding="utf-8")
    document = json.loads(re.findall("```json\n(.*?)```", text, re.DOTALL)[-1])
    found = one(tmp_path, document)
    assert found.reward == 0.5 and found.parts is not None and found.parts["r_loose"] == 0.75 and found.error is None
    assert found.turns is not None and [turn.action for turn in found.turns] == [
        "search[白色 保温杯]", "click[100000000002]", "click[白色]", "click[buy now]",
    ]  # fmt: skip
    write(read(tmp_path / "7.json"), tmp_path / "out.json")
    assert json.loads((tmp_path / "out.json").read_text(encoding="utf-8")) == document


@settings(max_examples=60, deadline=None)
@given(
    st.dictionaries(st.sampled_from([*task_file(), "more"]), st.none() | st.integers() | st.text(max_size=3)),
    st.sets(st.sampled_from([*task_file()]), max_size=2),
)
def test_any_file_is_given_back_or_refused(tmp_path_factory: Any, changes: Json, gone: set[str]) -> None:
    folder = tmp_path_factory.mktemp("files")
    document = {name: value for name, value in (task_file() | changes).items() if name not in gone}
    path = put(folder, "7.json", document)
    try:
        found = read(path)
    except InputError as error:
        assert str(path) in str(error)
        return
    write(found, folder / "out.json")
    assert json.loads((folder / "out.json").read_text(encoding="utf-8")) == document
