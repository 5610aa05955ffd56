"""Ground truth by brute force: shared seeds, errors, a cache that knows its content, the shipped tables."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_cli import assert_refused, shopskill

from shopskill_lib import protocol, workbench
from shopskill_lib.agent import episode_seed, run_episode
from shopskill_lib.errors import DesignError, InputError, ParameterError
from shopskill_lib.lab import truth
from shopskill_lib.lab.direct import DirectModel
from shopskill_lib.pools import Pool, Rewrite
from shopskill_lib.records import Hint, Step, make_treatment
from shopskill_lib.settings import Settings
from shopskill_lib.shops.embedded import EmbeddedShop
from shopskill_lib.shops.protocol import StepResult
from shopskill_lib.skills import Chunk, Skill
from shopskill_lib.workbench import Bench

DRAFT = Skill(
    title="Three chunks",
    chunks=(
        Chunk(chunk_id="search", title="Words", text="Put every requirement into the search query."),
        Chunk(chunk_id="nothing", title="Manner", text="Work quietly and in order."),
        Chunk(chunk_id="price", title="Amount", text="After choosing, check the price of the selected variant."),
    ),
)
SMALL = {"n_products": 2000, "n_val": 16, "n_test": 4, "catalogue_seed": 1}
DRAWS = 6


def limited(bench: Bench, tasks: int) -> Bench:
    """The bench with the first validation tasks only."""
    return replace(bench, settings=bench.settings.model_copy(update={"n_val": tasks}))


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="module")
def shop_bench(cache: Path) -> Bench:
    """A small bench; its folder is never written."""
    return replace(workbench.set_up(Settings.of(SMALL), cache / "shop"), pool=Pool.of_skill(DRAFT))


@pytest.fixture(scope="module")
def measured(shop_bench: Bench, cache: Path) -> tuple[Bench, truth.Truth]:
    """A bench with its truth in its folder."""
    bench = replace(shop_bench, folder=cache / "measured")
    return bench, truth.measure(bench, draws=DRAWS)


def test_the_table_says_what_it_is_and_how_sure(measured: tuple[Bench, truth.Truth]) -> None:
    bench, found = measured
    table, facts = found.to_frame(), found.facts
    assert list(table) == ["intervention_id", "true_coefficient", "true_error", "alone", "alone_error"]
    assert tuple(table["intervention_id"]) == DRAFT.ids
    assert facts["simulated"] is True
    assert (facts["n_tasks"], facts["seed"]) == (16, truth.SEED)
    limits = np.array(list(facts["gate_error"].values())) / truth.PRECISION
    assert (table["true_error"] <= limits).all()
    assert (table["alone_error"] <= limits).all()
    assert facts["largest_share"] <= 1 / truth.PRECISION
    assert str(found) == found.summary()
    assert "simulated" in str(found)
    assert {path.name for path in bench.folder.iterdir()} == {"truth.csv", "truth.json"}


def test_a_chunk_that_says_nothing_has_no_effect_alone(measured: tuple[Bench, truth.Truth]) -> None:
    """With seeds in common all but the cost of a longer prompt cancels."""
    (row,) = (row for row in measured[1].to_frame().to_dict("records") if row["intervention_id"] == "nothing")
    assert abs(row["alone"]) <= 0.01
    assert row["alone_error"] <= 0.01
    assert abs(row["true_coefficient"]) <= 4 * row["true_error"]


def test_episodes_of_a_draw_share_their_seed(shop_bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    seeds: dict[tuple[str, int], set[tuple[str, ...]]] = {}

    def spy(*arguments: Any) -> StepResult:
        agent, task, hints, seed, on_step = arguments
        shown = hints(task, {})
        seeds.setdefault((task.task_id, seed), set()).add(tuple(hint.id for hint in shown))
        return run_episode(agent, task, hints, seed, on_step)

    monkeypatch.setattr(truth, "run_episode", spy)
    bench = limited(shop_bench, 3)
    with truth.Player(bench, 1) as player:
        player.play(truth.company_masks(bench, range(2)), 0)
        player.play(truth.alone_masks(bench, range(2)), 0)
    wanted = {
        (task.task_id, episode_seed(truth.SEED, truth.ARM, task.task_id, draw))
        for task in bench.tasks("val")
        for draw in range(2)
    }
    assert set(seeds) == wanted
    for shown in seeds.values():
        assert {(), ("search",), ("nothing",), ("price",)} <= shown
        assert all(tuple(name for name in DRAFT.ids if name not in mask) in shown for mask in shown if len(mask) == 2)


def test_masks_have_the_marginals_of_M17(shop_bench: Bench) -> None:
    shown = truth.company_masks(shop_bench, range(20))
    assert shown.shape == (16, 20, 3, 3)
    assert not shown[:, :, 0].any()
    assert (shown[:, :, 1] + shown[:, :, 2] == 1).all()
    assert np.allclose(shown[:, :, 1].mean(axis=(0, 1)), 0.5, atol=0.08)
    assert (truth.company_masks(shop_bench, range(5, 20)) == shown[:, 5:]).all()


def test_known_effects_come_back_with_honest_errors() -> None:
    """Additive effects of 0/1 rewards: estimates scatter as their errors say."""
    rng = np.random.default_rng(0)
    effects, n, D = np.array([0.2, 0.0, -0.1]), 40, 8
    scores = []
    for _ in range(150):
        shown = rng.integers(2, size=(n, D, 1, 3))
        masks = np.concatenate([np.zeros_like(shown), shown, 1 - shown], axis=2)
        level = rng.uniform(0.2, 0.6, size=(n, 1, 1))
        reward = (rng.random((n, D, 3)) < level + masks @ effects).astype(float)
        estimate = truth.company(truth.Sample(masks, reward, reward))
        scores.append((estimate.value - effects) / estimate.error)
    assert np.abs(np.mean(scores, axis=0)).max() < 0.25
    assert np.abs(np.std(scores, axis=0) - 1).max() < 0.15


def test_kept_and_found_again_by_content(
    measured: tuple[Bench, truth.Truth], cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench, found = measured
    monkeypatch.setattr(truth, "_compute", lambda *_: pytest.fail("computed again"))
    assert truth.measure(bench, draws=DRAWS).facts["fingerprint"] == found.facts["fingerprint"]
    table = truth.read(bench.folder, bench)
    assert table is not None
    assert np.allclose(table["true_coefficient"], found.table["true_coefficient"], atol=1e-6)
    other_seeds = replace(bench, settings=Settings.of(SMALL | {"mask_seed": 5, "rollout_seed": 7}))
    assert truth.read(bench.folder, other_seeds) is not None
    assert truth.read(cache / "elsewhere", bench) is None
    assert truth.read(cache / "elsewhere") is None


def test_rewrites_have_no_truth_and_stop_nobody(measured: tuple[Bench, truth.Truth]) -> None:
    bench, _ = measured
    first = DRAFT.chunks[0]
    rewrite = Rewrite(
        candidate_id="candidate-1", workflow_stage="query", target_chunk_id=first.chunk_id, title="T", reason="r",
        content="Another text.", evidence_card_ids=("card-1",),
    )  # fmt: skip
    pool = Pool(title="s", kind="current", chunks=DRAFT.chunks, candidates=(rewrite,))
    assert truth.read(bench.folder, replace(bench, pool=pool)) is None
    with pytest.raises(DesignError, match="rewrites beside the texts"):
        truth.measure(replace(bench, pool=pool))


@pytest.mark.parametrize("what", ["draft", "tasks", "temperature", "prompts"])
def test_other_content_is_not_read(measured: tuple[Bench, truth.Truth], what: str) -> None:
    bench, _ = measured
    agent, endpoint = bench.agent, bench.agent.model.endpoint
    others = {
        "draft": replace(bench, pool=Pool.of_skill(DRAFT.subset(DRAFT.ids[:2]))),
        "tasks": limited(bench, 15),
        "temperature": replace(bench, agent=replace(agent, model=DirectModel(replace(endpoint, temperature=0.1)))),
        "prompts": replace(bench, agent=replace(agent, prompts=replace(agent.prompts, policy="Buy."))),
    }
    assert truth.read(bench.folder, others[what]) is None


def test_a_table_that_was_changed_is_not_read(measured: tuple[Bench, truth.Truth], tmp_path: Path) -> None:
    bench, _ = measured
    for name in ("truth.csv", "truth.json"):
        (tmp_path / name).write_bytes((bench.folder / name).read_bytes())
    assert truth.read(tmp_path, bench) is not None
    with (tmp_path / "truth.csv").open("a", encoding="utf-8") as file:
        file.write("more,0,0,0,0\n")
    assert truth.read(tmp_path, bench) is None
    (tmp_path / "truth.json").unlink()
    assert truth.read(tmp_path, bench) is None


def test_a_real_model_is_refused(shop_bench: Bench, tmp_path: Path) -> None:
    given = SMALL | {"policy_url": "http://127.0.0.1:1/v1", "policy_model": "m"}
    with pytest.raises(ParameterError, match="real model"):
        truth.measure(replace(shop_bench, settings=Settings.of(given), folder=tmp_path))
    (tmp_path / "params.json").write_text(json.dumps(given), encoding="utf-8")
    assert_refused(shopskill("truth", str(tmp_path)), "real model", "policy_url")


def test_numbers_out_of_range_and_a_folder_without_run(shop_bench: Bench, tmp_path: Path) -> None:
    with pytest.raises(ParameterError, match="draws is 1"):
        truth.measure(replace(shop_bench, folder=tmp_path), draws=1)
    with pytest.raises(ParameterError, match="precision is 0"):
        truth.measure(replace(shop_bench, folder=tmp_path), precision=0)
    with pytest.raises(InputError, match="no such file"):
        truth.open_run(tmp_path)


def test_draws_grow_until_the_errors_are_small(
    shop_bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = replace(shop_bench, folder=tmp_path)
    grown = truth.measure(bench, draws=DRAWS, precision=9)
    assert grown.facts["draws"] > DRAWS
    assert grown.facts["largest_share"] <= 1 / 9
    monkeypatch.setattr(truth, "MOST_DRAWS", DRAWS)
    with pytest.raises(DesignError, match=f"after {DRAWS} draws"):
        truth.measure(bench, draws=DRAWS, precision=1000)


def test_the_command_on_two_processes_equals_one(cache: Path) -> None:
    folder = cache / "command"
    folder.mkdir()
    (folder / "skill.md").write_text(DRAFT.to_markdown(), encoding="utf-8")
    given = SMALL | {"n_val": 12, "draft": "skill.md", "budget": 3}
    (folder / "params.json").write_text(json.dumps(given), encoding="utf-8")
    finished = shopskill("truth", str(folder), "--draws", "4")
    assert finished.returncode == 0, finished.stderr
    assert "simulated" in finished.stdout
    bench = replace(truth.open_run(folder), folder=cache / "alone")
    truth.measure(bench, draws=4)
    assert (bench.folder / "truth.csv").read_bytes() == (folder / "truth.csv").read_bytes()


def test_the_shopper_answers_alike_with_and_without_the_wire(shop_bench: Bench) -> None:
    hints = make_treatment("x", [Hint(id=chunk.chunk_id, text=chunk.text) for chunk in DRAFT.chunks]).hints
    steps: dict[str, list[Step]] = {"wire": [], "direct": []}
    for name, bench in (("wire", shop_bench), ("direct", truth.off_the_wire(shop_bench))):
        for task in bench.tasks("val")[:3]:
            run_episode(bench.agent, task, lambda *_: hints, 5, steps[name].append)
    unlike = {"seconds": 0.0}
    assert [step.model_copy(update=unlike) for step in steps["wire"]] == [
        step.model_copy(update=unlike) for step in steps["direct"]
    ]


@pytest.mark.parametrize("language", ["en", "zh"])
def test_the_stored_truth_is_of_the_shipped_draft_and_of_this_shopper(language: str, tmp_path: Path) -> None:
    """When this fails: `shopskill truth` on a run of the defaults, and copy its two files."""
    bench = protocol.set_up(Settings.of({"language": language, "draft": "shipped"}), tmp_path / "run")
    assert isinstance(bench.agent.shop, EmbeddedShop)
    table = truth.read(tmp_path / "run", bench)
    assert table is not None
    assert tuple(table["intervention_id"]) == tuple(protocol.pool_of(bench).versions)
    facts = json.loads((protocol.DRAFTS / f"truth_{language}.json").read_text(encoding="utf-8"))
    assert facts["simulated"] is True
    assert facts["largest_share"] <= 1 / truth.PRECISION
    probed = limited(bench, truth.PROBED)
    with truth.Player(probed, 1) as player:
        again = player.play(truth.company_masks(probed, range(1)), 0)
    assert again.reward[:, 0].tolist() == facts["probe"]
