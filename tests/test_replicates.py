"""Rollouts that differ in their seeds alone: when they are identical, every claim on them says so."""

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from scripted import buyer, scripted

from shopskill_lib import protocol
from shopskill_lib.gates import fit_gate, read_observations
from shopskill_lib.records import Episode, ModelIdentity, RewardDetail, Seeds, Step, Usage
from shopskill_lib.replicates import FEWEST, compare
from shopskill_lib.settings import Settings
from shopskill_lib.workbench import Bench

DRAFT = "## Query {#query}\n\nPut every requirement into one query.\n"

DETAIL = RewardDetail(
    reward_version="v", termination_reason="purchase", r_type=1, r_att=1, r_option=1, r_price=1, r_loose=1, r_strict=1,
    r_success=1, target_asin_match=True, price_verifiable=True,
)  # fmt: skip


def step(action: str | None, tokens: int | None = 9, fault: str | None = None) -> Step:
    usage = None if tokens is None else Usage(prompt_tokens=40, completion_tokens=tokens)
    return Step(
        step=1, page_type="search_home", hint_ids=(), prompt_digest="d", action=action, fault=fault, feedback=None,
        usage=usage, finish_reason="stop", tries=1, seconds=0.5,
    )  # fmt: skip


COURSE = (step("search[杯子]"), step("click[buy now]"))


def episode(seed: int, course: tuple[Step, ...] = COURSE, temperature: float = 0.7, **change: Any) -> Episode:
    """A scored episode under a seed."""
    now = datetime(2026, 1, 1, tzinfo=UTC)
    whole = Episode(
        identity=f"i{seed}", arm="bare", task_id="7", sample=seed, split="val", treatment_id="bare",
        treatment_sha256="s", hint_ids=(), prompts_sha256="p", shop={"catalogue": "c"}, attempt=1, status="scored",
        model=ModelIdentity(
            model="m", checkpoint="c", temperature=temperature, max_tokens=9, send_seed=True, simulated=True
        ),
        seeds=Seeds(rollout_seed=0, episode_seed=seed), ending="purchase", reward=1.0, reward_detail=DETAIL,
        purchase=None, steps=course, error=None, started_at=now, ended_at=now,
    )  # fmt: skip
    return whole.model_copy(update=change)


def test_identical_replicates_are_called_dependent() -> None:
    found = compare([episode(seed) for seed in range(3)])
    assert (found.pairs, found.identical, found.share) == (3, 3, 1.0)
    assert found.note.startswith("replicates are not independent: 3 of 3 pairs")
    assert "ignores seeds" in found.note and "temperature 0" not in found.note and ";" not in found.note


def test_at_temperature_0_the_sentence_says_so() -> None:
    found = compare([episode(seed, temperature=0.0) for seed in range(3)])
    assert "as is to be expected at temperature 0" in found.note and "ignores seeds" not in found.note


@pytest.mark.parametrize(
    "course",
    [
        (step("search[杯]"), COURSE[1]),
        (step("search[杯子]", tokens=10), COURSE[1]),
        (step("search[杯子]", tokens=None), COURSE[1]),
        (step(None, fault="empty_response"), COURSE[1]),
        COURSE[:1],
        (*COURSE, COURSE[1]),
    ],
)
def test_any_difference_makes_two_of_them(course: tuple[Step, ...]) -> None:
    found = compare([episode(1), episode(2, course)])
    assert (found.pairs, found.identical, found.note) == (1, 0, "")


@pytest.mark.parametrize(
    "change",
    [
        {"task_id": "8"},
        {"treatment_sha256": "t"},
        {"prompts_sha256": "q"},
        {"shop": {"catalogue": "d"}},
        {"model": episode(1).model.model_copy(update={"checkpoint": "c2"})},
        {"status": "error"},
        {"seeds": Seeds(rollout_seed=0, episode_seed=1)},
    ],
)
def test_only_what_differs_in_seeds_alone_is_a_pair(change: dict[str, Any]) -> None:
    assert compare([episode(1), episode(2, **change)]).pairs == 0


def test_few_pairs_and_common_coincidence_say_nothing() -> None:
    assert compare([]).share is None and compare([]).note == ""
    assert compare([episode(1), episode(2)]).note == "" and FEWEST == 3
    others = [episode(seed, (step(f"search[{seed}]"),), task_id="8") for seed in range(3)]
    half = compare([*(episode(seed) for seed in range(3)), *others])
    assert half.share == 0.5 and half.note == ""


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    folder = tmp_path_factory.mktemp("replicates")
    (folder / "draft.md").write_text(DRAFT, encoding="utf-8")
    names = {"n_products": 1700, "n_val": 8, "masked_samples": 2, "max_steps": 12, "draft": str(folder / "draft.md")}
    (folder / "run").mkdir()
    return protocol.set_up(Settings.of(names), folder / "run")


@pytest.mark.parametrize(("temperature", "words"), [(0.7, "ignores seeds"), (0.0, "expected at temperature 0")])
def test_a_gate_on_identical_replicates_says_so(bench: Bench, tmp_path: Path, temperature: float, words: str) -> None:
    model = scripted(buyer, temperature=temperature)
    at = replace(bench, folder=tmp_path, agent=replace(bench.agent, model=model))
    pairs = read_observations(protocol.gate_a(at), tmp_path / protocol.INTERVENTIONS)
    (note,) = [note for note in fit_gate(pairs, resamples=100).notes if "replicates" in note]
    assert words in note and pairs.simulated


def test_a_gate_on_replicates_that_vary_says_nothing(bench: Bench) -> None:
    pairs = read_observations(protocol.gate_a(bench), bench.folder / protocol.INTERVENTIONS)
    assert not any("replicates" in note for note in pairs.notes)
