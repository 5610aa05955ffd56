"""Run folders of our own as a format: texts proven by hash, pages as trajectories, written back to the byte, reused."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from shopskill_lib import distil, protocol
from shopskill_lib.adapters import folder, formats, run_folder
from shopskill_lib.adapters.recorded import Import, as_trajectories, unreadable
from shopskill_lib.errors import InputError
from shopskill_lib.gates import read_observations
from shopskill_lib.settings import Settings
from shopskill_lib.skills import Skill
from shopskill_lib.store import read_calls
from shopskill_lib.workbench import Bench

DRAFT = """# 建议

## Query {#query}

Put every requirement into one query.

## 核对价格 {#price}

选好规格后，再核对价格。
"""
EMPTY = Skill(title="", chunks=())


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    """A small simulated run: training episodes with their pages, and Gate A."""
    place = tmp_path_factory.mktemp("made")
    (place / "draft.md").write_text(DRAFT, encoding="utf-8")
    names = {"n_products": 1700, "n_train": 6, "n_val": 8, "max_steps": 12, "language": "zh", "draft": "../draft.md"}
    run = place / "run"
    run.mkdir()
    (run / "params.json").write_text(json.dumps(names), encoding="utf-8")
    bench = protocol.set_up(Settings.of_run(run), run)
    distil.train_pairs(bench, EMPTY)
    protocol.gate_a(bench)
    return bench


@pytest.fixture
def copied(made: Bench, tmp_path: Path) -> Path:
    shutil.copytree(made.folder, tmp_path / "run")
    shutil.copy(made.folder.parent / "draft.md", tmp_path / "draft.md")
    return tmp_path / "run"


def test_training_episodes_are_the_trajectories_that_the_run_itself_analyses(made: Bench) -> None:
    found = run_folder.read(made.folder)
    pairs, _ = distil.train_pairs(made, EMPTY)
    known = {trajectory.trajectory_id: trajectory for trajectory, _ in pairs}
    assert {one.trajectory_id: one for one in as_trajectories(found.episodes)} == known
    assert unreadable(found.episodes) == ("16 episodes left out: turns not told",)
    assert all(episode.simulated for episode in found.episodes)


def test_every_treatment_is_proven_by_its_hash(made: Bench) -> None:
    masked = [episode for episode in run_folder.read(made.folder).episodes if "masked" in episode.source.file]
    assert len(masked) == 8 and all(episode.hints is not None for episode in masked)
    shown = {hint.text for episode in masked for hint in episode.hints or ()}
    assert shown == {"Query\nPut every requirement into one query.", "核对价格\n选好规格后，再核对价格。"}


def test_texts_that_are_not_those_of_the_episodes_are_not_taken_for_them(copied: Path) -> None:
    (copied.parent / "draft.md").write_text(DRAFT.replace("再核对价格", "不看价格"), encoding="utf-8")
    found = run_folder.read(copied)
    untold = [episode for episode in found.episodes if episode.hints is None]
    assert untold and all("masked" in episode.source.file for episode in untold)
    assert any(said.startswith(f"hints: not told in {len(untold)} of 22 episodes") for said in found.lacks)


def test_another_catalogue_tells_no_request(copied: Path) -> None:
    names = json.loads((copied / "params.json").read_text(encoding="utf-8"))
    (copied / "params.json").write_text(json.dumps(names | {"catalogue_seed": 5}), encoding="utf-8")
    assert {episode.instruction for episode in run_folder.read(copied).episodes} == {None}
    (copied / "params.json").unlink()
    found = run_folder.read(copied)
    assert {episode.instruction for episode in found.episodes} == {None} and found.pool is None
    assert any("requests and personas" in said and "no such file" in said for said in found.lacks)


def test_a_run_comes_back_to_the_byte_and_serves_another_run(made: Bench, tmp_path: Path) -> None:
    folder.save(formats.read(made.folder), tmp_path / "in")
    imported = formats.read(tmp_path / "in")
    out = made.folder.parent / "out"
    assert formats.export(imported, formats.named("run"), out) == ()
    for source in made.folder.rglob("*"):
        if source.is_file() and not source.name.startswith("."):
            assert (out / source.relative_to(made.folder)).read_bytes() == source.read_bytes()
    other = tmp_path / "other"
    other.mkdir()
    settings = made.settings.model_copy(update={"reuse_from": str(out)})
    bench = replace(made, settings=settings, folder=other)
    assert protocol.foresee(bench, protocol.plan_gate_a(bench)).episodes == 0
    protocol.gate_a(bench)
    assert read_observations(other).to_frame().equals(read_observations(made.folder).to_frame())
    assert {call.stage for call in read_calls(other)} == {"probe"}


def test_reused_episodes_are_read_from_the_other_run_and_stand_whole_in_an_export(made: Bench, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    shutil.copy(made.folder / "params.json", other)
    bench = replace(made, settings=made.settings.model_copy(update={"reuse_from": str(made.folder)}), folder=other)
    protocol.gate_a(bench)
    found = run_folder.read(other)
    assert len(found.episodes) == 16
    run_folder.write(found, tmp_path / "out")
    bare = (tmp_path / "out" / "episodes" / "bare.jsonl").read_text(encoding="utf-8").splitlines()
    assert sorted(bare) == sorted((made.folder / "episodes" / "bare.jsonl").read_text(encoding="utf-8").splitlines())
    shutil.move(other, tmp_path / "deeper" / "other")
    with pytest.raises(InputError, match=r"the reused episode of task \d+ is no longer in"):
        run_folder.read(tmp_path / "deeper" / "other")


def test_gate_and_draft_of_a_run_go_to_the_formats_of_others(made: Bench, tmp_path: Path) -> None:
    found = formats.read(made.folder)
    assert found.gate is not None and found.pool is not None
    lost = formats.export(Import("run", gate=found.gate), formats.named("shopsimrl-gate"), tmp_path / "gate")
    assert len(lost) == 1 and lost[0].startswith(
        "of the gate, not held as they were: category, persona, difficulty, steps"
    )
    ours, theirs = read_observations(made.folder), read_observations(tmp_path / "gate")
    assert theirs.factors == ours.factors and theirs.simulated
    assert (theirs.masks == ours.masks).all() and (theirs.delta("reward") == ours.delta("reward")).all()
    assert formats.export(Import("run", pool=found.pool), formats.named("shopsimrl-pool"), tmp_path / "p.json") == (
        "the pool is not held as it was",
    )
    pool = formats.read(tmp_path / "p.json").pool
    assert pool is not None and pool.versions == found.pool.versions and pool.kind == "current"


def test_a_run_that_was_made_elsewhere_is_no_run_of_ours(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="tells no identity of its episodes"):
        run_folder.write(Import("shopsimrl-traces"), tmp_path / "run")


def test_a_killed_run_is_read_without_its_torn_line(copied: Path) -> None:
    path = copied / "episodes" / "bare.jsonl"
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) - 200])
    assert len(run_folder.read(copied).episodes) == 21
    path.write_bytes(whole[:400] + b"\n" + whole)
    with pytest.raises(InputError, match=r"bare\.jsonl, line 1: the line is damaged"):
        run_folder.read(copied)
