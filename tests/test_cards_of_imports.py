"""Success cards of what was recorded elsewhere, in every format in which pages and actions can be told apart."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from casework import lines
from recordings import AXES, CUP, SHOPS, TITLES, json_lines, recording, task_file
from test_conversations import agentgym, sharegpt
from test_rollout_rows import of_slime, of_trl, of_verl

from shopskill_lib.adapters import folder, formats
from shopskill_lib.adapters.recorded import as_trajectories
from shopskill_lib.desk import AUDIT, CARDS
from shopskill_lib.distil import read_cards, report_recordings
from shopskill_lib.settings import Settings

SOURCES: dict[str, tuple[str, Any]] = {
    "shopsimulator": ("7.json", lambda language: json.dumps(task_file(language))),
    "openai-messages": ("r.jsonl", lambda _: json_lines(recording(reward=1))),
    "sharegpt": ("s.jsonl", lambda _: json_lines(sharegpt())),
    "agentgym": ("g.json", lambda language: json.dumps([agentgym(language)])),
    "verl": ("v.jsonl", lambda _: json_lines(of_verl())),
    "trl": ("t.jsonl", lambda _: json_lines(of_trl())),
    "slime": ("l.jsonl", lambda _: json_lines(of_slime())),
}


@pytest.mark.parametrize("name", SOURCES)
@pytest.mark.parametrize("language", ["zh", "en"])
def test_every_format_gives_cards(name: str, language: str, tmp_path: Path) -> None:
    file, made = SOURCES[name]
    (tmp_path / file).write_text(made(language), encoding="utf-8")
    folder.save(formats.read(tmp_path / file), tmp_path / "kept")
    trajectories = as_trajectories(formats.read(tmp_path / "kept").episodes)
    told = report_recordings(trajectories, Settings.of({"language": language}), tmp_path / "cards")
    assert "simulated: 1 trajectories analysed" in told
    assert len(lines(tmp_path / "cards" / CARDS)) == len(lines(tmp_path / "cards" / AUDIT)) == 1


def _competent(number: int, language: str) -> dict[str, Any]:
    """A file whose query names the whole request, and whose option is told by it."""
    axis, *values = AXES[language]
    document = task_file(language, task_id=number)
    text = json.dumps(document, ensure_ascii=False)
    offered = {"zh": (" [SEP] 黑色", " [SEP] 黑色 [SEP] 灰色"), "en": (" [SEP] black", " [SEP] black [SEP] grey")}
    buttons = {"zh": ('\\"黑色\\"', '\\"黑色\\", \\"灰色\\"'), "en": ('\\"black\\"', '\\"black\\", \\"grey\\"')}
    for old, new in (offered[language], buttons[language]):
        assert old in text and axis in text and values
        text = text.replace(old, new)
    found: dict[str, Any] = json.loads(text)
    return found


@pytest.mark.parametrize("language", ["zh", "en"])
def test_the_simulated_author_sees_what_pages_of_the_original_show(language: str, tmp_path: Path) -> None:
    """An option is named as our pages name it, so that the choice of the asked one among three is seen at work."""
    for number in range(12):
        text = json.dumps(_competent(number, language), ensure_ascii=False)
        (tmp_path / f"{number}.json").write_text(text, encoding="utf-8")
    trajectories = as_trajectories(formats.read(tmp_path).episodes)
    report_recordings(trajectories, Settings.of({"language": language}), tmp_path / "cards")
    cards = read_cards(tmp_path / "cards")
    assert len(cards) >= 6
    texts = json.dumps([card.deployable.model_dump() for card in cards if card.deployable], ensure_ascii=False)
    assert not re.search("|".join([CUP, TITLES[language], SHOPS[language]]), texts)


def shopskill(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "shopskill_lib", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_the_commands_on_the_real_recordings_and_on_the_made_up_file(shared: Path, tmp_path: Path) -> None:
    source = shared / "data" / "shopsim_traces" / "sft_messages.jsonl"
    done = shopskill("import", source, "--out", tmp_path / "kept")
    assert done.returncode == 0, done.stderr
    assert "read as openai-messages\n12 episodes of 12 tasks, 0 with a reward, 0 failed" in done.stdout
    assert "reward: not told in any of 12 episodes; completed purchases are taken as demonstrations" in done.stdout
    made = shopskill("cards", tmp_path / "kept", "--out", tmp_path / "cards")
    assert made.returncode == 0 and "simulated: 12 trajectories analysed, 12 cards" in made.stdout
    reference = (shared / "reference" / "shopsimulator_http.md").read_text(encoding="utf-8")
    (tmp_path / "7.json").write_text(re.findall("```json\n(.*?)```", reference, re.DOTALL)[-1], encoding="utf-8")
    failed = shopskill("cards", tmp_path / "7.json", "--out", tmp_path / "none")
    assert failed.returncode == 2 and "none of 1 trajectories is a success" in failed.stderr
