"""The cold start of a small run folder in both languages, and what a reader is shown of it."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pytest
from matplotlib import pyplot as plt
from matplotlib.text import Text

from shopskill_lib import cold_start, distil, plots, protocol, store, tables, viewer, workbench
from shopskill_lib.compiler import Draft
from shopskill_lib.desk import Analyses
from shopskill_lib.errors import DesignError, InputError, ParameterError
from shopskill_lib.settings import Settings
from shopskill_lib.skills import Chunk, Skill, read_skill
from shopskill_lib.workbench import Bench


class Cold(NamedTuple):
    bench: Bench
    analyses: Analyses
    draft: Draft


def bench_in(folder: Path, language: str, **names: object) -> Bench:
    given = {"language": language, "n_products": 2000, "n_train": 50, "n_val": 40, "n_test": 10, **names}
    return workbench.set_up(Settings.of(given), folder)


@pytest.fixture(scope="module", params=["en", "zh"])
def cold(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Cold:
    bench = bench_in(tmp_path_factory.mktemp("cold") / "run", request.param)
    return Cold(bench, cold_start.collect(bench), cold_start.draft(bench))


def test_the_funnel_adds_up(cold: Cold) -> None:
    table = tables.funnel(cold.analyses, 50)
    counts = table["count"]
    assert counts["training rollouts"] == 50
    assert counts["successes"] + counts["failures"] == counts["analysed"] == len(cold.analyses)
    cards = [card for analysis in cold.analyses for card in analysis.cards]
    withheld = counts[counts.index.str.startswith("no proposal")].sum()
    assert counts["eligible success cards"] + counts["eligible failure cards"] + withheld == len(cards)
    stages = tables.stages(cold.analyses)
    assert stages["success cards"].sum() == counts["eligible success cards"]
    assert stages["failure cards"].sum() == stages["verified repairs"].sum() == counts["eligible failure cards"]
    assert table.columns.name == stages.columns.name == "simulated"


def test_every_card_is_accounted_for_in_the_tables(cold: Cold) -> None:
    cards = {card.card_id for card in distil.read_cards(cold.bench.folder)}
    assert set(cold.draft.account()) == cards
    steps, support = tables.draft_steps(cold.draft)["count"], tables.provenance(cold.draft)
    assert steps["cards"] == len(cards)
    assert steps["versions"] == len(support) <= 16
    supported = support["success cards"].sum() + support["failure cards"].sum()
    lost = {name for name, place in cold.draft.account().items() if not isinstance(place, str)}
    assert supported == len(cards) - len(lost)
    assert len(tables.draft_mechanisms(cold.draft)) == steps["mechanisms"]
    assert tables.left_out(cold.draft)["cards"].sum() == len(lost)
    assert set(tables.sources(cold.draft).index.get_level_values("title")) == set(support["title"])


def test_costs_of_a_stage_do_not_grow_with_later_ones(cold: Cold) -> None:
    calls = store.read_calls(cold.bench.folder)
    table = tables.costs(calls, ("compile",), simulated=True)
    assert {role for _, role in table.index} == {"consolidator", "compiler"}
    assert table["calls"].sum() == sum(call.stage == "compile" for call in calls)
    assert table["money"].isna().all()
    assert len(tables.costs([], ("compile",), simulated=False)) == 0


def test_figures_print_ascii_only(cold: Cold) -> None:
    drawn = [
        plots.funnel(tables.funnel(cold.analyses, 50)),
        plots.stages(tables.stages(cold.analyses)),
        plots.support(tables.provenance(cold.draft)),
    ]
    for figure in drawn:
        figure.canvas.draw()
        words = [text.get_text() for text in figure.findobj(Text) if isinstance(text, Text)]
        assert any(word.startswith("simulated: ") for word in words)
        assert all(word.replace("\N{MINUS SIGN}", "-").isascii() for word in words)
        plt.close(figure)


def test_a_card_is_shown_with_its_steps_and_escaped(cold: Cold) -> None:
    pairs, _ = distil.train_pairs(cold.bench, distil.seed_skill(cold.bench))
    trajectories = {trajectory.trajectory_id: trajectory for trajectory, _ in pairs}
    shown = cold.analyses.example()
    assert shown is not None
    assert shown.facts.repair_verified
    trajectory = trajectories[shown.source_trajectory_id]
    page = viewer.card(shown, trajectory.model_copy(update={"instruction": "<b>&"}))._repr_html_()
    assert "simulated failure card" in page
    assert "<b>&" not in page
    assert "&lt;b&gt;&amp;" in page
    for step in shown.facts.steps:
        assert f"Step {step}:" in page
    evil = Skill(title="<script>", chunks=(Chunk(chunk_id="a", title="<i>", text="</pre><script>"),))
    assert "<script>" not in viewer.skill(evil, simulated=False)._repr_html_()


def test_the_draft_on_disk_is_what_gate_a_measures(cold: Cold) -> None:
    pool = protocol.read_draft(cold.bench.settings, cold.bench.folder)
    assert pool.kind == "draft"
    assert tuple(pool.versions) == cold.draft.skill.ids
    assert read_skill(cold.bench.folder / "draft.md").chunks == cold.draft.skill.chunks
    assert cold.draft.verdict().startswith("simulated: ")
    assert cold.analyses.verdict().startswith("simulated: 50 trajectories gave")


def test_a_second_call_buys_nothing_and_changes_nothing(cold: Cold) -> None:
    before = {path: path.read_bytes() for path in cold.bench.folder.iterdir() if path.is_file()}
    assert cold_start.collect(cold.bench) == cold.analyses
    assert cold_start.draft(cold.bench) == cold.draft
    assert {path: path.read_bytes() for path in before} == before


def test_a_seed_skill_is_shown_in_training_and_may_be_rewritten(tmp_path: Path) -> None:
    seed = tmp_path / "seed.md"
    text = "Before buying, check the price of the chosen variant once."
    seed.write_text(f"# Seed\n\n## Price {{#price}}\n\n{text}\n\n## Calm {{#calm}}\n\nWork calmly.\n", encoding="utf-8")
    bench = bench_in(tmp_path / "run", "en", seed_skill=str(seed))
    cold_start.collect(bench)
    pairs, _ = distil.train_pairs(bench, distil.seed_skill(bench))
    assert {tuple(hint.id for hint in trajectory.hints) for trajectory, _ in pairs} == {("price", "calm")}
    draft = cold_start.draft(bench)
    assert draft.pool is not None
    assert (draft.pool.kind, draft.pool.chunks) == ("current", read_skill(seed).chunks)
    assert len(draft.pool.versions) == 2 + len(draft.versions) <= 16
    pool = protocol.read_draft(bench.settings, bench.folder)
    assert {item.kind for item in pool.interventions} == {"current", "candidate"}


def test_a_draft_of_seventeen_chunks_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "skill.md"
    path.write_text("\n".join(f"## T{n} {{#c{n}}}\n\nAdvice number {n}.\n" for n in range(17)), encoding="utf-8")
    with pytest.raises(InputError, match=r"17 factors.*at most 16"):
        protocol.read_draft(Settings.of({"draft": str(path)}), tmp_path)
    path.write_text(
        path.read_text(encoding="utf-8").replace("## T16 {#c16}\n\nAdvice number 16.", ""), encoding="utf-8"
    )
    assert len(protocol.read_draft(Settings.of({"draft": str(path)}), tmp_path).versions) == 16


@pytest.mark.parametrize("n_train", [20, 60])
def test_a_draft_of_other_training_tasks_than_the_cards_is_refused_and_buys_nothing(cold: Cold, n_train: int) -> None:
    before = contents(cold.bench.folder)
    settings = cold.bench.settings.model_copy(update={"n_train": n_train})
    with pytest.raises(InputError, match="run 01_cards again with these parameters"):
        cold_start.draft(replace(cold.bench, settings=settings))
    assert contents(cold.bench.folder) == before


def test_a_seed_skill_without_room_is_refused_before_anything_is_bought(tmp_path: Path) -> None:
    for chunks, cap, todo in ((4, 4, "or raise the cap to at most 16"), (16, 16, "chunks of the seed skill.")):
        seed = tmp_path / f"seed_{chunks}.md"
        text = "\n".join(f"## T{n} {{#c{n}}}\n\nAdvice number {n}.\n" for n in range(chunks))
        seed.write_text(text, encoding="utf-8")
        bench = bench_in(tmp_path / "run", "en", seed_skill=str(seed), cap=cap)
        for step in (cold_start.foresee, cold_start.collect):
            with pytest.raises(InputError, match=f"a cap of {cap} leaves no room beside {chunks} chunks") as refused:
                step(bench)
            assert str(refused.value).endswith(todo if todo.endswith(".") else f"{todo}.")
    assert not (tmp_path / "run" / "episodes").exists()


@pytest.mark.parametrize("language", ["en", "zh"])
@pytest.mark.parametrize("role", ["success", "failure", "consolidate", "compile"])
@pytest.mark.parametrize(("text", "found"), [(" \n", "blank"), ("{unknown}", "placeholders")])
def test_a_bad_prompt_of_the_author_is_refused_before_anything_is_bought(
    role: str, language: str, text: str, found: str, tmp_path: Path
) -> None:
    (tmp_path / "prompts").mkdir()
    (tmp_path / "prompts" / f"{role}_{language}.md").write_text(text, encoding="utf-8")
    bench = bench_in(tmp_path / "run", language, prompts_dir=str(tmp_path / "prompts"))
    for step in (cold_start.foresee, cold_start.collect):
        with pytest.raises(ParameterError, match=f"{role}_{language}.md.*{found}"):
            step(bench)
    assert not (tmp_path / "run" / "episodes").exists()


def test_a_frozen_gate_keeps_its_draft(cold: Cold, tmp_path: Path) -> None:
    folder = shutil.copytree(cold.bench.folder, tmp_path / "run")
    (folder / "gate_a.json").write_text("{}", encoding="utf-8")
    at = replace(cold.bench, folder=folder)
    kept = {name: (folder / name).read_bytes() for name in ("draft.json", "draft.md", "clusters.json")}
    assert cold_start.draft(at) == cold.draft
    fewer = replace(at, settings=at.settings.model_copy(update={"cap": 1}))
    with pytest.raises(DesignError, match=r"a gate is frozen on another draft here.*new run folder"):
        cold_start.draft(fewer)
    assert {name: (folder / name).read_bytes() for name in kept} == kept
    (folder / "gate_a.json").unlink()
    assert len(cold_start.draft(fewer).versions) == 1
    assert json.loads((folder / "draft.json").read_text(encoding="utf-8")) != json.loads(kept["draft.json"])


def contents(folder: Path) -> dict[Path, bytes]:
    """Every file below a folder."""
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
