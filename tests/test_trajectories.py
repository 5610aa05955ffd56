import json
import subprocess
import sys
from pathlib import Path

import pytest
from casework import lines, success_card
from recordings import Write, json_lines, read_messages, recording
from scripted import Answer, Json, completion, scripted, serve

from shopskill_lib.agent import Agent, load_prompts
from shopskill_lib.desk import AUDIT, CARDS
from shopskill_lib.distil import RECORDED, report_recordings
from shopskill_lib.errors import InputError, ParameterError
from shopskill_lib.firewall import Screen
from shopskill_lib.records import Episode, make_treatment
from shopskill_lib.rollouts import Planned, run
from shopskill_lib.settings import Settings
from shopskill_lib.shops.embedded import EmbeddedShop
from shopskill_lib.trajectories import LEAVE, instance_of_recording, of_episode


@pytest.fixture
def recorded(write: Write) -> Write:
    """Write recordings as JSON lines."""
    return lambda *items: write(json_lines(*items), "r.jsonl")


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
    command = [sys.executable, "-m", "shopskill_lib", "cards", *arguments]
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
