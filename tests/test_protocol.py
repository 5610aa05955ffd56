"""The protocols on a run folder: treatment proven before any fit, arms alike, nothing bought in vain."""

from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
from scripted import Answer, FakeClock, failure, scripted

from shopskill_lib import leaks, pairing, protocol, workbench
from shopskill_lib.errors import DesignError, InputError, SetupError
from shopskill_lib.gates import read_observations
from shopskill_lib.pools import Pool, Rewrite
from shopskill_lib.records import Episode
from shopskill_lib.rolloutset import RolloutSet
from shopskill_lib.settings import Settings
from shopskill_lib.skills import Chunk, Skill
from shopskill_lib.workbench import Bench

DRAFT = """## Query {#query}

Put every requirement into one query. Braces {hints}, and ```search``` are only text.

## 核对价格 {#price}

选好规格后，核对所选规格的价格是否在预算之内。
"""


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    folder = tmp_path_factory.mktemp("protocol")
    (folder / "draft.md").write_text(DRAFT, encoding="utf-8")
    names = {"n_products": 1700, "n_val": 8, "n_test": 4, "max_steps": 12, "draft": str(folder / "draft.md")}
    (folder / "run").mkdir()
    return protocol.set_up(Settings.of(names), folder / "run")


@pytest.fixture(scope="module")
def sets(bench: Bench) -> dict[str, RolloutSet]:
    return protocol.roll_out(bench, protocol.plan_gate_a(bench), "gate_a")


def test_balanced_pairs_are_run_proven_and_paired_and_too_few_tasks_refused(bench: Bench, tmp_path: Path) -> None:
    names = {"masked_samples": 2, "mask_design": "balanced"}
    paired = replace(bench, settings=bench.settings.model_copy(update=names), folder=tmp_path)
    table = pd.read_csv(protocol.gate_a(paired), dtype={"task_id": str})
    shown = table[["query", "price"]].to_numpy()
    assert (shown[0::2] + shown[1::2] == 1).all()
    assert (table.loc[0::2, "bare_reward"].to_numpy() == table.loc[1::2, "bare_reward"].to_numpy()).all()
    signs = 2 * shown[0::2] - 1
    assert signs[:, 0] @ signs[:, 1] == 0
    single = replace(paired, settings=paired.settings.model_copy(update={"n_val": 1}))
    with pytest.raises(DesignError, match="1 tasks for balanced masks of 2 slots"):
        protocol.plan_gate_a(single)


def changed(arm: RolloutSet, **update: object) -> RolloutSet:
    """The arm with one field of its first episode that was shown something changed."""
    key, episode = next((key, found) for key, found in arm.episodes.items() if found.hint_ids or arm.arm == "bare")
    return replace(arm, episodes={**arm.episodes, key: episode.model_copy(update=update)})


def first(arm: RolloutSet) -> Episode:
    return next(iter(arm.episodes.values()))


def test_episodes_that_were_shown_their_masks_are_proven(bench: Bench, sets: dict[str, RolloutSet]) -> None:
    protocol.prove(protocol.plan_gate_a(bench), sets)


def test_another_treatment_is_found(bench: Bench, sets: dict[str, RolloutSet]) -> None:
    wrong = changed(sets["masked"], treatment_sha256=protocol.BARE.sha256)
    with pytest.raises(DesignError, match="the treatment is not the assigned one"):
        protocol.prove(protocol.plan_gate_a(bench), {**sets, "masked": wrong})


def test_a_step_that_showed_something_else_is_found(bench: Bench, sets: dict[str, RolloutSet]) -> None:
    steps = tuple(step.model_copy(update={"hint_ids": ("price", "query")}) for step in first(sets["bare"]).steps)
    with pytest.raises(DesignError, match="a step showed other chunks than assigned"):
        protocol.prove(protocol.plan_gate_a(bench), {**sets, "bare": changed(sets["bare"], steps=steps)})


def test_equal_prompts_never_carry_different_masks(bench: Bench, sets: dict[str, RolloutSet]) -> None:
    shown = next(episode for episode in sets["masked"].episodes.values() if episode.hint_ids)
    digest = shown.steps[0].prompt_digest
    bare = first(sets["bare"])
    steps = (bare.steps[0].model_copy(update={"prompt_digest": digest}), *bare.steps[1:])
    with pytest.raises(DesignError, match="an equal prompt carries another treatment"):
        protocol.prove(protocol.plan_gate_a(bench), {**sets, "bare": changed(sets["bare"], steps=steps)})


def test_a_differing_field_is_named(bench: Bench, sets: dict[str, RolloutSet]) -> None:
    other = first(sets["bare"]).model.model_copy(update={"checkpoint": "another"})
    with pytest.raises(DesignError, match="model differs"):
        protocol.prove(protocol.plan_gate_a(bench), {**sets, "bare": changed(sets["bare"], model=other)})


def test_gate_a_ends_in_pairs_and_gate_b_needs_a_selection(bench: Bench) -> None:
    with pytest.raises(InputError, match="Gate A has not been run here"):
        protocol.gate_b(bench)
    pairs = read_observations(protocol.gate_a(bench), bench.folder / "interventions.json")
    assert pairs.factors == ("query", "price")
    assert pairs.simulated
    assert len(pairs.task_ids) == 8
    tasks = {task.task_id: task for task in bench.tasks("val")}
    wanted = [tasks[task_id] for task_id in pairs.task_ids]
    assert pairs.groups["category"] == tuple(task.category.split("›")[0] for task in wanted)
    assert set(pairs.groups["persona"]) == {"shown"}
    assert pairs.groups["difficulty"] == tuple(pairing.difficulty(task) for task in wanted)
    protocol.write_selected(bench, ())
    with pytest.raises(InputError, match="no chunk has been selected"):
        protocol.gate_b(bench)
    selected = protocol.write_selected(bench, ("price",)).read_text(encoding="utf-8")
    assert "simulated" in selected
    assert "equipped_reward" in protocol.gate_b(bench).read_text(encoding="utf-8").splitlines()[0]
    path = bench.folder / "episodes" / "equipped.jsonl"
    kept = path.read_text(encoding="utf-8")
    path.write_text(kept.replace('"hint_ids":["price"],"obs', '"hint_ids":["query"],"obs', 1), encoding="utf-8")
    with pytest.raises(DesignError, match="a step showed other chunks than assigned"):
        protocol.gate_b(bench)
    path.write_text(kept, encoding="utf-8")


def test_a_difficulty_is_how_much_is_asked_for(bench: Bench) -> None:
    task = bench.tasks("val")[0]
    plain = task.model_copy(update={"attributes": ("a", "b", "c"), "options": (), "price_upper": None})
    assert pairing.difficulty(plain) == "up to 3 requirements"
    assert pairing.difficulty(plain.model_copy(update={"price_upper": 9.0})) == "4 or 5 requirements"
    two = plain.model_copy(update={"price_upper": 9.0, "attributes": ("a", "b", "c", "d", "e")})
    assert pairing.difficulty(two) == "6 or more requirements"


def test_a_row_says_whether_a_persona_is_shown(bench: Bench) -> None:
    task, at = bench.tasks("val")[0], pairing.DESCRIBED.index("persona")
    assert pairing.who(bench, task, 0, "val")[at] == "shown"
    assert pairing.who(bench, task.model_copy(update={"persona": None}), 0, "val")[at] == "none"


def test_a_rewrite_shares_its_slot_in_the_files_that_the_gate_reads(bench: Bench) -> None:
    """Versions of one slot are one family for the gate (I9, I18), not two chunks."""
    rewrite = Rewrite(
        candidate_id="candidate-1",
        workflow_stage="query",
        target_chunk_id="query",
        title="Query",
        reason="r",
        content="Put all requirements into the query.",
        evidence_card_ids=("card-1",),
    )
    pool = Pool(title="s", kind="current", chunks=protocol.pool_of(bench).chunks, candidates=(rewrite,))
    at = replace(bench, pool=pool, folder=bench.folder.parent / "rewrite")
    at.folder.mkdir()
    pairs = read_observations(protocol.gate_a(at), at.folder / "interventions.json")
    assert pairs.interventions == pool.interventions
    assert [slot.versions for slot in pairs.slots] == [("query", "candidate-1"), ("price",)]


@pytest.mark.parametrize("change", [{"text": "Search once."}, {"title": "查询"}])
def test_other_texts_under_the_same_ids_are_refused_before_anything_is_bought(
    bench: Bench, change: dict[str, str], tmp_path: Path
) -> None:
    at = replace(bench, folder=tmp_path, settings=bench.settings.model_copy(update={"n_val": 4}))
    protocol.gate_a(at)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    first, second = protocol.pool_of(bench).chunks
    pool = Pool(title="s", kind="draft", chunks=(first.model_copy(update=change), second))
    with pytest.raises(DesignError, match=r"texts of query are other ones.*new run folder"):
        protocol.gate_a(replace(at, pool=pool))
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
    protocol.gate_a(at)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_what_the_columns_show_is_on_disk_before_the_first_rollout(bench: Bench, tmp_path: Path) -> None:
    def down(_: dict[str, object]) -> Answer:
        assert (tmp_path / "interventions.json").exists()
        return failure(401)

    at = replace(bench, folder=tmp_path, agent=replace(bench.agent, model=scripted(down, FakeClock().clock)))
    with pytest.raises(SetupError):
        protocol.gate_a(at)
    assert (tmp_path / "interventions.json").exists()


@pytest.mark.parametrize("language", ["en", "zh"])
def test_chunks_that_know_their_tasks_are_refused_before_anything_is_bought(language: str, tmp_path: Path) -> None:
    bench = workbench.set_up(Settings.of({"language": language, "n_products": 1700, "n_val": 8}), tmp_path / "run")
    gold = bench.catalogue.products[bench.tasks("val")[3].gold_asin]
    words = {"en": ("Look for {} first.", "Compare prices."), "zh": ("先找{}再说。", "比较价格。")}[language]
    for leak, kind in ((gold.asin, "identifier"), (gold.title, "title")):
        chunks = (
            Chunk(chunk_id="fine", title="Fine", text=words[1]),
            Chunk(chunk_id="leaky", title="Leaky", text=words[0].format(leak)),
        )
        measured = replace(bench, pool=Pool.of_skill(Skill(title="s", chunks=chunks)))
        with pytest.raises(InputError, match="chunk leaky") as refused:
            protocol.gate_a(measured)
        assert kind in str(refused.value)
        assert leak not in str(refused.value)
    for name in (gold.asin, f"chunk-{gold.asin}"):
        named = Pool.of_skill(Skill(title="s", chunks=(Chunk(chunk_id=name, title="Fine", text=words[1]),)))
        with pytest.raises(InputError, match="identifier"):
            protocol.gate_a(replace(bench, pool=named))
    made = ("chunk-234660435d5d", "candidate-012345678901")
    hashed = {name: Chunk(chunk_id=name, title="Fine", text=words[1]) for name in made}
    assert leaks.find(bench, hashed, "val") == ()
    assert not (tmp_path / "run" / "episodes").exists()


@pytest.mark.parametrize(
    "name", ["online", "round_000", "online/round_007", "../other/online/round_000", "online/../skill"]
)
def test_a_skill_that_is_no_round_of_this_run_is_refused(name: str, bench: Bench, tmp_path: Path) -> None:
    other = tmp_path / "other" / "online" / "round_000"
    other.mkdir(parents=True)
    (other / "round.json").write_text("{}", encoding="utf-8")
    for skill in (name, str(other)):
        with pytest.raises(InputError, match="no finished round"):
            protocol.at_round(replace(bench, folder=tmp_path / "run"), skill)
