"""A gate's ranking on tasks that it has not seen: declared, rolled out, proven, judged; nothing selected by it."""

import json
import shutil
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from matplotlib import pyplot as plt

from shopskill_lib import charts, contest, gates, lineup, looks, parameters, protocol, rank, ranking
from shopskill_lib.console import respond
from shopskill_lib.errors import DesignError, InputError, LookError, MissingError, ParameterError
from shopskill_lib.files import write_json
from shopskill_lib.lineup import Wish
from shopskill_lib.pools import Foreign, Pool
from shopskill_lib.ranking import Measured
from shopskill_lib.records import render_hints
from shopskill_lib.rolloutset import RolloutSet
from shopskill_lib.settings import Settings
from shopskill_lib.shops.generator import generate_catalogue
from shopskill_lib.simulated.competences import advice
from shopskill_lib.skills import Chunk

ROOT = Path(__file__).parents[1]
WISH = Wish(n_ranking=6, set_size=2, random_sets=3, fresh_masks=2, set_seed=5)

TEXTS = {
    "en": {
        "query": "Put every requirement into one query.",
        "first": "Open the first result and buy it without further ado.",
        "compare": "Note two or three candidates and compare them point by point.",
        "price": "After choosing the options, check the price of the selected variant against the limit.",
        "calm": "Stay calm.",
    },
    "zh": {
        "query": "把所有要求写进一次搜索。",
        "first": "打开第一个结果直接购买。",
        "compare": "记下两三个候选，逐条比较。",
        "price": "选好规格后，核对所选规格的价格是否在预算之内。",
        "calm": "保持冷静。",
    },
}


def pool(language: str) -> Pool:
    """Five chunks, one of them with a rewrite."""
    chunks = tuple(Chunk(chunk_id=name, title=name, text=text) for name, text in TEXTS[language].items())
    rewrite = Foreign(operation="REWRITE", candidate_id="query2", target_chunk_id="query", title="query",
                      content=TEXTS[language]["query"] * 2, reason=None, evidence_card_ids=())  # fmt: skip
    return Pool(title="T", kind="draft", chunks=chunks, candidates=(rewrite,))


def finished(folder: Path, language: str) -> Path:
    """A run folder with a frozen Gate A on 30 tasks."""
    run = folder / "run"
    run.mkdir(parents=True)
    write_json(folder / "pool.json", {"pool": pool(language).model_dump(mode="json")})
    names = {"language": language, "n_products": 1700, "n_val": 30, "n_test": 4, "max_steps": 12}
    bench = protocol.set_up(Settings.of({**names, "draft": str(folder / "pool.json")}), run)
    write_json(run / "params.json", bench.settings.model_dump(mode="json"))
    pairs = gates.read_observations(protocol.gate_a(bench), run / protocol.INTERVENTIONS)
    gate = gates.fit_gate(pairs, resamples=200)
    looks.freeze(run, run / protocol.GATE, gate.to_json(), gate.key())
    return run


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {language: finished(tmp_path_factory.mktemp(language), language) for language in TEXTS}


@pytest.fixture
def run(runs: dict[str, Path], tmp_path: Path) -> Path:
    """A copy of the English one."""
    shutil.copytree(runs["en"].parent, tmp_path / "copy", ignore=shutil.ignore_patterns("ranking"))
    place = tmp_path / "copy" / "run"
    change(place / "params.json", draft=str(tmp_path / "copy" / "pool.json"))
    return place


def change(path: Path, **names: object) -> None:
    document = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps(document | names), encoding="utf-8")


def without_coefficients(run: Path, value: float) -> None:
    """Give every factor of the frozen gate the same coefficient."""
    document = json.loads((run / protocol.GATE).read_text(encoding="utf-8"))
    factors = [{**factor, "coefficient": value} for factor in document["factors"]]
    change(run / protocol.GATE, factors=factors)


def test_a_ranking_is_declared_measured_proven_and_counted_and_selects_nothing(run: Path) -> None:
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file() and path.suffix != ".lock"}
    bench = lineup.open_run(run, WISH)
    measured = contest.measure(bench, WISH)
    assert {path: path.read_bytes() for path in before} == before, "gate, skill and episodes are as they were"

    plan = json.loads((run / "ranking" / "plan.json").read_text(encoding="utf-8"))
    gate = json.loads((run / protocol.GATE).read_text(encoding="utf-8"))
    ranked = sorted((f for f in gate["factors"] if f["rank"] is not None), key=lambda f: f["rank"])
    assert len(ranked) == 5 and plan["K"] == 2 and plan["slots"] == 5
    assert set(plan["sets"]["top"]["ids"]) == {factor["intervention_id"] for factor in ranked[:2]}
    assert set(plan["sets"]["bottom"]["ids"]) == {factor["intervention_id"] for factor in ranked[-2:]}
    assert plan["sets"]["top"]["predicted"] == pytest.approx(sum(factor["coefficient"] for factor in ranked[:2]))
    assert plan["simulated"] is True
    used = set(pd.read_csv(run / "masks.csv", dtype={"task_id": str})["task_id"])
    assert len(plan["tasks"]) == 6 and not used & set(plan["tasks"])
    catalogue = generate_catalogue(0, "en", products=1700)
    assert {catalogue.tasks[task_id].split for task_id in plan["tasks"]} == {"val"}

    table = pd.read_csv(run / "ranking" / "episodes.csv", dtype={"task_id": str})
    alpha = {factor["intervention_id"]: factor["coefficient"] for factor in gate["factors"]}
    sums = [sum(alpha[name] for name in shown.split()) for shown in table["shown"][table["arm"] != "placebo"]]
    assert table["predicted"].dropna().to_numpy() == pytest.approx(sums)
    assert Counter(table["arm"]) == {"top": 6, "bottom": 6, "placebo": 6, "fresh": 12} | {
        f"random:{r}": 6 for r in range(3)
    }
    assert table["simulated"].all() and table["origin"].str.startswith("simulated ").all()
    shown = {json.loads(line)["task_id"]: json.loads(line)["hint_ids"] for line in lines(run, "top")}
    slots = [name.rstrip("2") for name in plan["sets"]["top"]["ids"]]
    assert all(hints == slots for hints in shown.values()) and len(shown) == 6

    calls = (run / "ranking" / "calls.jsonl").read_bytes()
    again = contest.measure(lineup.open_run(run, WISH), WISH)
    assert (run / "ranking" / "calls.jsonl").read_bytes() == calls, "nothing is bought twice"
    pd.testing.assert_frame_equal(again.rewards, measured.rewards)

    found = ranking.judge(measured, resamples=200)
    looks.freeze(run, run / looks.RANKING, found.to_json(), found.key())
    assert looks.taken(run, protocol.GATE) == 2
    record = json.loads((run / looks.RANKING).read_text(encoding="utf-8"))
    assert record["selected"] == [] and record["simulated"] is True and "(M23)" in record["verdict"]
    other = ranking.judge(replace(measured, rewards=measured.rewards + 0.1), resamples=200)
    with pytest.raises(LookError, match="another gate is frozen"):
        looks.freeze(run, run / looks.RANKING, other.to_json(), other.key())

    for wish, field in ((replace(WISH, set_size=3), "K, sets, fresh"), (replace(WISH, n_ranking=5), "fresh, tasks")):
        with pytest.raises(DesignError, match=f"another ranking is planned here: {field} differ"):
            lineup.declare(lineup.open_run(run, wish), wish)


def lines(run: Path, arm: str) -> list[str]:
    return (run / "ranking" / "episodes" / f"{arm}.jsonl").read_text(encoding="utf-8").splitlines()


def test_an_episode_that_was_shown_something_else_is_refused(run: Path) -> None:
    bench = lineup.open_run(run, WISH)
    contest.measure(bench, WISH)
    plan = lineup.planned(bench, lineup.declare(bench, WISH))
    sets = protocol.roll_out(bench, plan, contest.STAGE)
    protocol.prove(plan, sets)
    key, episode = next(iter(sets["top"].episodes.items()))
    steps = (episode.steps[0].model_copy(update={"hint_ids": ("calm",)}), *episode.steps[1:])
    digest = next(iter(sets["bare"].episodes.values())).steps[0].prompt_digest
    alike = (episode.steps[0].model_copy(update={"prompt_digest": digest}), *episode.steps[1:])
    for changed, message in (
        ({"treatment_sha256": "0" * 64}, "not the assigned one"),
        ({"steps": steps}, "showed other chunks"),
        ({"steps": alike}, "equal prompt"),
        ({"shop": {"elsewhere": 1}}, "shop differs"),
    ):
        wrong = {**sets["top"].episodes, key: episode.model_copy(update=changed)}
        with pytest.raises(DesignError, match=message):
            protocol.prove(plan, {**sets, "top": replace(sets["top"], episodes=wrong)})


def test_what_cannot_be_ranked_is_refused_before_anything_is_bought(run: Path) -> None:
    bench = lineup.open_run(run, WISH)
    for size in (5, 6):
        with pytest.raises(
            ParameterError, match=f"K is {size} of 5 ranked chunks: Top-K and Bottom-K would be the same"
        ):
            lineup.declare(bench, replace(WISH, set_size=size))
    with pytest.raises(
        ParameterError, match=r"n_ranking is 2000, and 470 validation tasks are left beyond the gate's 30"
    ):
        lineup.open_run(run, replace(WISH, n_ranking=2000))
    with pytest.raises(ParameterError, match="n_ranking is 1"):
        Wish.of({name: getattr(replace(WISH, n_ranking=1), name) for name in Wish.__slots__})
    change(run / "params.json", n_val=27)
    with pytest.raises(DesignError, match="3 of 6 tasks have been used by the gate: 28, 29, 30"):
        lineup.open_run(run, WISH)
    change(run / "params.json", n_val=30, policy_checkpoint="another")
    with pytest.raises(InputError, match="no episode of the gate has the model"):
        lineup.open_run(run, WISH)
    change(run / "params.json", policy_checkpoint="simulated-shopper-1")
    without_coefficients(run, 0.01)
    with pytest.raises(DesignError, match="all 5 ranked chunks have the same coefficient"):
        lineup.open_run(run, WISH)
    change(run / protocol.GATE, selected=[])
    (run / "masks.csv").unlink()
    with pytest.raises(InputError, match="made elsewhere"):
        lineup.open_run(run, WISH)
    (run / protocol.GATE).unlink()
    with pytest.raises(InputError, match="no finished gate"):
        lineup.open_run(run, WISH)
    assert not (run / "ranking" / "calls.jsonl").exists() and not (run / "ranking" / "plan.json").exists()


def test_another_draft_than_the_gates_is_refused(run: Path) -> None:
    pool_file = run.parent / "pool.json"
    pool_file.write_text(pool_file.read_text(encoding="utf-8").replace("Stay calm", "Stay quiet"), encoding="utf-8")
    with pytest.raises(DesignError, match="the texts of calm"):
        lineup.open_run(run, WISH)


def test_k_is_what_the_gate_selected_unless_given(run: Path) -> None:
    change(run / protocol.GATE, selected=["price", "compare", "calm"])
    assert lineup.declare(lineup.open_run(run, WISH), replace(WISH, set_size=0)).K == 3
    change(run / protocol.GATE, selected=[])
    with pytest.raises(ParameterError, match="K is 0 of 5 ranked chunks: the gate has selected nothing"):
        lineup.declare(lineup.open_run(run, WISH), replace(WISH, set_size=0))


def test_sets_are_legal_and_every_slot_and_version_is_equally_likely() -> None:
    drawn = [lineup.draw(0, f"t{number}", pool("en"), 2) for number in range(3000)]
    slots = {version: slot.slot_id for slot in pool("en").slots for version in slot.versions}
    assert all(len({slots[version] for version in chosen}) == 2 for chosen in drawn)
    order = list(pool("en").versions)
    assert all(list(chosen) == sorted(chosen, key=order.index) for chosen in drawn)
    counts = Counter(version for chosen in drawn for version in chosen)
    expected = {version: 1200 / (2 if slot == "query" else 1) for version, slot in slots.items()}
    assert counts == pytest.approx(expected, abs=4 * (1200 * 0.6) ** 0.5)
    pairs = Counter(chosen for chosen in drawn)
    assert pairs["query2", "calm"] / pairs["query", "calm"] == pytest.approx(1, abs=0.4)
    assert lineup.draw(1, "t0", pool("en"), 2) != drawn[0] or lineup.draw(1, "t1", pool("en"), 2) != drawn[1]


@pytest.mark.parametrize("language", ["en", "zh"])
def test_the_placebo_is_as_long_as_top_k_and_says_nothing(runs: dict[str, Path], language: str) -> None:
    bench = lineup.open_run(runs[language], WISH)
    plan = lineup.declare(bench, WISH)
    assert plan.sets["placebo"].characters == plan.sets["top"].characters
    neutral = lineup.placebo(bench, plan.sets["top"].ids)
    text = "\n".join(hint.text for hint in neutral.hints)
    assert not any(map(any, advice(text).values()))
    assert len(neutral.hints) == 2 and neutral.hints[0].text[:20] != neutral.hints[1].text[:20]
    shipped = protocol.read_draft(Settings.of({"language": language, "draft": "shipped"}), runs[language])
    long = lineup.placebo(replace(bench, pool=shipped), tuple(shipped.versions))
    whole = protocol.treatment("all", shipped.skill(shipped.versions))
    assert len(render_hints(long.hints)) == len(render_hints(whole.hints))
    assert not any(map(any, advice("\n".join(hint.text for hint in long.hints)).values()))


@pytest.mark.parametrize("language", ["en", "zh"])
def test_a_generated_catalogue_writes_more_val_tasks_and_leaves_all_others(language: str) -> None:
    plain, larger = (generate_catalogue(3, language, products=1700, more=more) for more in (0, 40))  # type: ignore[arg-type]
    assert plain.products == larger.products
    assert {name: larger.tasks[name] for name in plain.tasks} == plain.tasks
    new = [task for name, task in larger.tasks.items() if name not in plain.tasks]
    assert [task.task_id for task in new] == [str(number) for number in range(1601, 1641)]
    assert {task.split for task in new} == {"val"}
    assert not {task.gold_asin for task in new} & {task.gold_asin for task in plain.tasks.values()}


def test_tasks_beyond_the_catalogues_own_are_new_ones(run: Path) -> None:
    bench = protocol.set_up(Settings.of_run(run).model_copy(update={"n_val": 398}), run)
    assert [task.task_id for task in lineup._unused(bench, 5)] == ["399", "400", "1601", "1602", "1603"]
    served = replace(bench, settings=bench.settings.model_copy(update={"shop_url": "http://127.0.0.1:1"}))
    with pytest.raises(ParameterError, match="n_ranking is 5, and 2 validation tasks are left"):
        lineup._unused(served, 5)
    real = replace(bench, settings=bench.settings.model_copy(update={"catalogue": "items.json", "n_val": 300}))
    assert [task.task_id for task in lineup._unused(real, 2)] == ["301", "302"], "a part of val that n_val leaves out"
    full = replace(bench, settings=bench.settings.model_copy(update={"n_val": 400, "shop_url": "http://127.0.0.1:1"}))
    with pytest.raises(ParameterError, match="n_ranking is 5, and no validation tasks are left"):
        lineup._unused(full, 5)


def test_tasks_that_lack_an_episode_are_left_out_whole_or_the_ranking_is_refused(run: Path) -> None:
    bench = lineup.open_run(run, WISH)
    plan = lineup.declare(bench, WISH)
    done = RolloutSet("top", tuple((task, 0) for task in plan.tasks), {}, (), ())
    lost = replace(done, missing=((plan.tasks[0], 0),))
    with pytest.raises(MissingError, match=f"1 of 6 tasks lack an episode .{plan.tasks[0]}.; 0 are owed"):
        contest._complete(plan, {"top": lost}, WISH)
    kept, notes = contest._complete(plan, {"top": lost, "bare": done}, replace(WISH, max_missing=0.2))
    assert kept == list(plan.tasks[1:]) and plan.tasks[0] in notes[0]
    owed = replace(done, owed=((plan.tasks[0], 0),))
    with pytest.raises(MissingError, match="1 are owed"):
        contest._complete(plan, {"top": owed}, replace(WISH, max_missing=1.0))


def by_hand(random: int = 2) -> Measured:
    """Four tasks: Top-K helps by 0.5, Bottom-K harms by 0.25, the placebo does nothing."""
    bare = np.array([0.0, 0.5, 0.5, 0.25])
    arms = {"bare": bare, "top": bare + 0.5, "bottom": bare - 0.25}
    arms |= {f"random:{number}": bare + 0.125 * number for number in range(random)}
    arms |= {"placebo": bare}
    predicted = {"bare": 0.0, "top": 0.8, "bottom": -0.5, "placebo": None}
    rows = [{"arm": arm, "shown": "", "predicted": predicted.get(arm, 0.1 * number), "characters": 9, "tokens": 1.0}
            for number, arm in enumerate(arms)]  # fmt: skip
    fresh = pd.DataFrame(
        {"task": range(4), "predicted": [0.1, 0.2, 0.3, 0.4], "reward": bare + np.array([0.0, 0.1, 0.1, 0.3])}
    )
    totals = {"naive": 0.8, "shrunken": 0.6, "halves": None}
    return Measured(True, "c", "0", 2, 5, pd.DataFrame(rows), pd.DataFrame(arms), fresh, totals, ())


def test_the_judgement_by_hand() -> None:
    found = ranking.judge(by_hand(), resamples=200)
    exact = {"top - bottom": 0.75, "top - bare": 0.5, "top - placebo": 0.5, "top - random": 0.4375,
             "bottom - bare": -0.25, "placebo - bare": 0.0}  # fmt: skip
    assert {name: one.value for name, one in found.differences.items()} == pytest.approx(exact)
    sets_vary = found.differences["top - random"]
    assert (sets_vary.low, sets_vary.high) == pytest.approx((0.375, 0.5)), "all tasks are alike, the sets are not"
    assert found.differences["top - bottom"].low == found.differences["top - bottom"].high == pytest.approx(0.75)
    assert found.sets.spearman.value == pytest.approx(1.0) and found.sets.rows == 4
    totals = {row["total"]: row for row in found.to_json()["totals"]}
    assert totals["naive"]["measured_minus"] == pytest.approx(-0.3)
    assert totals["shrunken"]["minus_high"] == pytest.approx(-0.1)
    assert totals["halves"]["estimate"] is None and totals["halves"]["measured_minus"] is None
    assert found.verdict().startswith("simulated: 4 tasks that the gate has not seen, K = 2 of 5 ranked chunks")
    arms = {row["arm"]: row for row in found.to_json()["arms"]}
    assert [arms["bottom"][name] for name in ("gain", "ci_low", "ci_high")] == pytest.approx([-0.25] * 3)
    assert arms["bare"]["gain"] is None
    json.dumps(found.to_json(), allow_nan=False)


def test_one_random_set_or_none_and_no_fresh_masks() -> None:
    one = ranking.judge(by_hand(1), resamples=200)
    assert one.differences["top - random"].value == pytest.approx(0.5)
    none = ranking.judge(
        replace(by_hand(0), fresh=pd.DataFrame({"task": [], "predicted": [], "reward": []})), resamples=200
    )
    assert "top - random" not in none.differences and none.masks is None and none.quantiles.empty
    assert none.sets.spearman.reason == "fewer than three to compare"
    assert set(none.agreements()["over"]) == {"sets"}
    for found in (one, none):
        for figure in (charts.contrasts(found), charts.calibration(found)):
            figure.canvas.draw()
            assert figure.axes[0].get_title().startswith("simulated: ")
            plt.close(figure)


def test_the_command_runs_the_notebook_and_refuses_what_it_does_not_know(runs: dict[str, Path], tmp_path: Path) -> None:
    shutil.copytree(runs["zh"].parent, tmp_path / "zh", ignore=shutil.ignore_patterns("ranking"))
    run = tmp_path / "zh" / "run"
    change(run / "params.json", draft=str(tmp_path / "zh" / "pool.json"))
    params = tmp_path / "ranking.yaml"
    params.write_text("n_ranking: 6\nset_size: 2\nrandom_sets: 2\nfresh_masks: 1\nresamples: 200\n", encoding="utf-8")
    command = [sys.executable, "-m", "shopskill_lib", "rank", str(params), "--run", str(run)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("simulated: 6 tasks") and "looks at the validation tasks so far: 2" in done.stdout
    record = json.loads((run / "ranking" / "ranking.json").read_text(encoding="utf-8"))
    assert record["n_tasks"] == 6 and record["resamples"] == 200
    for name in ("06_ranking.ipynb", "report.html", "figures/contrasts.svg", "figures/calibration.svg"):
        assert (run / "ranking" / name).exists(), name


def test_the_command_refuses_what_it_does_not_know(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(ROOT)
    command = ["params/ranking.yaml", "--run", str(run), "-p"]
    assert respond(rank._parser(), [*command, "n_rank=3"]) == 2
    assert "there is no parameter 'n_rank'" in (told := capsys.readouterr().err) and told.count("\n") == 1
    assert respond(rank._parser(), [*command, "set_size=2.5"]) == 2
    assert "set_size is 2.5" in capsys.readouterr().err
    assert respond(rank._parser(), [*command, "set_size=2", "--budget-usd", "1"]) == 2
    assert "nothing is known of what policy cost" in capsys.readouterr().err
    assert respond(rank._parser(), [*command, "set_size=2", "--budget-tokens", "1"]) == 75
    assert not (run / "ranking" / "episodes").exists()


def test_the_parameters_file_holds_the_notebooks_defaults() -> None:
    declared = parameters.declared(ROOT / "notebooks" / "more" / "06_ranking.ipynb")
    given = parameters.read_parameters(ROOT / "params" / "ranking.yaml")
    assert given == {name: value for name, value in declared.items() if name in given}
    assert set(declared) - set(given) == {"run_dir", "new_look"}
    assert Wish.of(declared) == Wish()
