"""Online rounds on a run folder: what triggers, what is trained on, gated and left behind, and stops in between."""

import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from matplotlib.patches import Rectangle
from rounds_child import DRAFT, PERSONA, RULE, SETTINGS, add, gated, proposing, rewrite, version
from scipy import stats

from shopskill_lib import (
    chronicle,
    compiler,
    curriculum,
    cycle,
    floors,
    ledger,
    online,
    plots,
    protocol,
    repeats,
    replicates,
    tables,
    workbench,
)
from shopskill_lib.cards import Card, Facts
from shopskill_lib.clusters import LeftOut
from shopskill_lib.compiler import Draft
from shopskill_lib.errors import InputError, OutputError, ParameterError
from shopskill_lib.lab.learner import Lesson
from shopskill_lib.models import Endpoint
from shopskill_lib.pools import Add, Pool, Rewrite
from shopskill_lib.rounds import Gap, Round, measured, read_round
from shopskill_lib.settings import Settings
from shopskill_lib.skills import Skill
from shopskill_lib.spending import Purse, spent, total
from shopskill_lib.store import Store, best
from shopskill_lib.workbench import Bench

CHILD = Path(__file__).with_name("rounds_child.py")


CARD = Card(
    card_id="card-1",
    source_trajectory_id="t-1",
    channel="failure",
    facts=Facts(
        status="NO_PROPOSAL",
        reason="execution_slip",
        covered_by=None,
        surface=None,
        repair_verified=False,
        repair_actions=None,
        steps=(1,),
        reward=0.0,
        reward_lost=1.0,
        confidence=None,
        task_group_key="k",
        category_key=None,
        reasked=False,
        simulated=True,
    ),
    deployable=None,
)

Finished = tuple[Bench, tuple[Round, ...]]


class Trainer:
    """A trainer that keeps what it was given."""

    def __init__(self) -> None:
        self.lessons: list[list[Lesson]] = []

    def __call__(self, policy: Endpoint, checkpoint: str, lessons: Sequence[Lesson]) -> Endpoint:
        self.lessons.append(list(lessons))
        return cycle.TRAINERS["simulated"](policy, checkpoint, lessons)


@pytest.fixture(scope="module")
def origin(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run folder in which Gate A has been run."""
    return gated(tmp_path_factory.mktemp("online") / "run").folder


@pytest.fixture
def bench(origin: Path, tmp_path: Path) -> Bench:
    return copy(origin, tmp_path / "run")


def copy(origin: Path, folder: Path, **names: Any) -> Bench:
    """A run folder like this one, with other settings."""
    subprocess.run(["cp", "-r", str(origin), str(folder)], check=True)
    settings = SETTINGS | {"draft": str(folder / "draft.md")} | names
    return protocol.set_up(Settings.of(settings), folder)


@pytest.fixture(scope="module")
def finished(origin: Path, tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """Two rounds, unbroken."""
    bench = copy(origin, tmp_path_factory.mktemp("finished") / "run")
    bench = workbench.paid_from(bench, Purse(bench.folder))
    return bench, online.rounds(bench, RULE)


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def document(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


STATE = (
    "groups.json", "triage.json", "masks.csv", "observations.csv", "interventions.json", "skill.md",
    "curriculum.json", "lineage.json", "round.json", "draft.json",
)  # fmt: skip


def state(folder: Path) -> dict[str, Any]:
    """Everything a run's rounds left, times aside."""
    found: dict[str, Any] = {}
    for place in sorted((folder / "online").iterdir()):
        if place.is_dir():
            found |= {
                f"{place.name}/{name}": (place / name).read_text(encoding="utf-8")
                for name in STATE
                if (place / name).exists()
            }
            gate = document(place / "gate_a.json")
            found[f"{place.name}/gate"] = {name: value for name, value in gate.items() if name != "looks"}
            for path in sorted((place / "episodes").glob("*.jsonl")):
                found[f"{place.name}/{path.stem}"] = sorted(line["identity"] for line in lines(path))
    found["ledger"] = [event.id for event in ledger.read(folder / ledger.FILE)]
    return found


def test_the_chain_holds_from_card_to_gate(finished: Finished) -> None:
    """What the simulated author proposed of failed retries is gated, and the ledger knows the cards behind it."""
    bench, (first, _) = finished
    known = {row.candidate_id: row for row in ledger.proposals(ledger.read(bench.folder / ledger.FILE))}
    assert first.report.candidates
    cards = {card["card_id"] for line in lines(first.folder / "cards.jsonl") for card in line["cards"]}
    for one in first.report.candidates:
        assert set(known[one.candidate_id].source_card_ids) <= cards
        assert known[one.candidate_id].failure_mechanism
        assert (known[one.candidate_id].stage, known[one.candidate_id].round) == ("online", 0)


def test_the_purse_has_paid_for_every_call_on_disk(finished: Finished) -> None:
    """Groups, retries, analyses, questions of the compiler, gates: nothing is asked of a model beside the purse."""
    bench, _ = finished
    groups = spent(bench.folder)
    assert {("online", "policy"), ("online", "author"), ("compile", "author")} <= groups.keys()
    assert bench.purse is not None
    assert bench.purse.spent == replace(total(groups.values()), episodes=0)


def test_rounds_leave_what_the_next_begins_with(finished: Finished) -> None:
    bench, rounds = finished
    first, second = rounds
    skill = protocol.read_selected(first.folder)
    assert second.report.chunks_before == len(skill.chunks) == first.report.chunks_after
    assert (first.report.proposal_checkpoint, first.report.evaluation_checkpoint) == (
        "simulated-shopper-1",
        "simulated-shopper-1+r0",
    )
    assert second.report.proposal_checkpoint == "simulated-shopper-1+r0"
    following = curriculum.load(first.folder / "curriculum.json")
    assert following == second.state
    alphas = {row.chunk_id: row.alpha or 0.0 for row in first.lineage if row.round == 0 and row.selected}
    assert {shown.chunk_id: shown.alpha for shown in second.state.chunks} == alphas
    assert {shown.chunk_id: shown.rho for shown in second.state.chunks} == curriculum.rho(alphas)
    assert online.read_rounds(bench.folder) == rounds


def test_round_0_begins_with_gate_a(finished: Finished) -> None:
    bench, (first, _) = finished
    gate = document(bench.folder / "gate_a.json")
    selected = {row["intervention_id"]: row["coefficient"] for row in gate["factors"] if row["status"] == "selected"}
    assert {shown.chunk_id: shown.alpha for shown in first.state.chunks} == selected


def test_only_failed_full_skill_retries_are_analysed(finished: Finished) -> None:
    """I1, I2: no rollout of a group, no retry that succeeded, and nothing else."""
    for done in finished[1]:
        pending = [found.retry for found in done.groups if found.verdict == "pending_analysis"]
        wanted = {f"t-{retry.identity[:16]}" for retry in pending if retry and retry.identity}
        assert {line["trajectory_id"] for line in lines(done.folder / "audit.jsonl")} == wanted
        assert {line["trajectory_id"] for line in lines(done.folder / "cards.jsonl")} == wanted
        whole = protocol.treatment("full_skill", before(done)).sha256
        assert {retry.treatment_sha256 for retry in pending if retry} <= {whole}
    assert any(found.verdict == "pending_analysis" for done in finished[1] for found in done.groups)
    assert any(found.verdict == "model_internalization_deficit" for done in finished[1] for found in done.groups)


def before(done: Round) -> Skill:
    """The skill that a round begins with."""
    folder = done.folder.parents[1] if done.number == 0 else done.folder.with_name(f"round_{done.number - 1:03d}")
    return protocol.read_selected(folder)


def test_retries_are_not_trained_on(bench: Bench) -> None:
    """I3: one lesson a group, with the rewards of its rollouts and the texts they saw."""
    trainer = Trainer()
    (first,) = online.rounds(with_(bench, rounds=1), RULE, trainer)
    (lessons,) = trainer.lessons
    assert any(found.retry for found in first.groups)
    assert [lesson.rewards for lesson in lessons] == [found.rewards for found in first.groups]
    bare = [lesson.texts for lesson, found in zip(lessons, first.groups, strict=True) if not found.group.chunk_ids]
    assert set(bare) <= {""}


def with_(bench: Bench, **names: Any) -> Bench:
    return replace(bench, settings=bench.settings.model_copy(update=names))


def test_rounds_say_whether_their_rollouts_are_independent(finished: Finished, tmp_path: Path) -> None:
    """G rollouts of a group are replicates: at temperature 0 all the same, at that of a run as a rule not."""
    bench, rounds = finished
    arms = Store(rounds[0].folder)
    groups = [name for name in arms.arms if name.startswith("group-0")]
    found = replicates.compare(
        best(attempts).episode for name in groups for attempts in arms.attempts(name.replace("-", ":")).values()
    )
    assert found.pairs == bench.settings.n_groups and found.share is not None and found.share < 0.9
    assert not any("replicates" in note for done in rounds for note in done.report.notes)
    cold = gated(tmp_path / "run", policy_temperature=0.0, n_groups=4, n_gap=0, rounds=1, max_candidates=0)
    (done,) = online.rounds(cold, RULE)
    assert done.report.notes[0].startswith("replicates are not independent: 4 of 4 pairs")
    assert "temperature 0" in str(done)


def test_tables_show_rounds_side_by_side(finished: Finished) -> None:
    _, done = finished
    assert list(tables.triage(done).loc["groups"]) == [16, 16]
    texts = tables.effects(done).reset_index()
    assert not texts.duplicated(["chunk_id", "version_id", "round"]).any()
    assert set(texts["status"]) >= {"selected"}
    assert tables.rho(done).shape[1] == 2
    assert set(tables.candidates(done).reset_index()["round"]) <= {0, 1}
    assert tables.gaps(done).index.tolist() == [0, 1]
    assert tables.gaps(done).columns.name == "simulated"


def test_a_finished_round_is_not_built_again(finished: Finished) -> None:
    bench, rounds = finished
    was = state(bench.folder)
    assert online.rounds(bench, RULE) == rounds
    assert state(bench.folder) == was


@pytest.mark.parametrize(
    ("change", "name"),
    [({"n_groups": 6}, "n_groups"), ({"rho_min": 0.1}, "rho_min"), ({"trainer": "none"}, "trainer")],
)
def test_other_settings_are_refused(finished: Finished, change: dict[str, Any], name: str) -> None:
    bench, _ = finished
    with pytest.raises(ParameterError, match=f"{name} was .*, is"):
        online.rounds(with_(bench, **change), RULE)


def test_another_rule_is_refused(finished: Finished) -> None:
    bench, _ = finished
    with pytest.raises(ParameterError, match="budget was None, is 2"):
        online.rounds(bench, replace(RULE, budget=2))


def test_q_is_a_schedule_and_rounds_may_be_added(finished: Finished, tmp_path: Path) -> None:
    bench, rounds = finished
    more = copy(bench.folder, tmp_path / "run", rounds=3, q=1.0)
    *before, third = online.rounds(more, RULE)
    assert [done.report for done in before] == [done.report for done in rounds]
    assert {found.group.mode for found in third.groups} == {"skill_free"}


def test_tasks_and_masks_differ_from_round_to_round(finished: Finished) -> None:
    bench, (first, second) = finished
    assert not {found.group.task_id for found in first.groups} & {found.group.task_id for found in second.groups}
    seeds = [
        (folder / "masks.csv").read_text(encoding="utf-8").splitlines()[1].split(",")[0]
        for folder in (bench.folder, first.folder, second.folder)
    ]
    assert seeds == ["0", "1", "2"]


def test_bare_runs_are_of_the_gates_checkpoint(finished: Finished, origin: Path, tmp_path: Path) -> None:
    """I14: rolled out anew after training; pointed to when nobody trained. Masked ones are always drawn anew."""
    _, (first, _) = finished
    trained = lines(first.folder / "episodes" / "bare.jsonl")
    assert {line["model"]["checkpoint"] for line in trained} == {"simulated-shopper-1+r0"}
    untrained = copy(origin, tmp_path / "run", trainer="none", rounds=1, max_candidates=0)
    (kept,) = online.rounds(untrained, RULE)
    assert kept.report.evaluation_checkpoint == "simulated-shopper-1"
    assert all("reused_from" in line for line in lines(kept.folder / "episodes" / "bare.jsonl"))
    assert not any("reused_from" in line for line in lines(kept.folder / "episodes" / "masked.jsonl"))
    assert "1 of them at this very checkpoint" in str(kept)


def test_a_simulated_trainer_trains_no_other_model(bench: Bench) -> None:
    with pytest.raises(ParameterError, match="trainer is 'simulated'"):
        online.rounds(with_(bench, policy_url="http://127.0.0.1:9/v1"), RULE)


def propose(monkeypatch: pytest.MonkeyPatch, *rounds: Sequence[Add | Rewrite]) -> None:
    """Let the compiler propose these candidates, round by round."""
    monkeypatch.setattr(compiler, "build", proposing(*rounds))


def test_candidates_change_nothing_before_the_gate(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """I7: the skill that the gate measures beside them is the one in force, and Gate A's file is not touched."""
    propose(monkeypatch, [add(PERSONA)])
    was = (bench.folder / "skill.md").read_bytes()
    (first,) = online.rounds(with_(bench, rounds=1), RULE)
    assert (bench.folder / "skill.md").read_bytes() == was
    gated_ids = {row.version_id for row in first.lineage if row.round == 0}
    assert gated_ids == {*protocol.read_selected(bench.folder).ids, "candidate-a"}
    admitted = {row.version_id for row in first.lineage if row.round == 0 and row.selected}
    assert set(protocol.read_selected(first.folder).ids) == admitted


def test_a_rejected_synonym_is_not_gated_again(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """A candidate that a gate has rejected comes back in hardly other words: dropped, and the ledger says so."""
    text = "Buy the first result in the list."
    ledger.append(bench.folder / ledger.FILE, rejected(text))
    propose(monkeypatch, [add(f"{text} !", "candidate-b"), add(PERSONA, "candidate-c")])
    (first,) = online.rounds(with_(bench, rounds=1), RULE)
    found = first.candidates().set_index("candidate_id")["status"]
    assert found["candidate-b"] == "rejected_synonym"
    assert found["candidate-c"] != "rejected_synonym"
    assert "candidate-b" not in (first.folder / "interventions.json").read_text(encoding="utf-8")
    events = ledger.read(bench.folder / ledger.FILE)
    reasons = [event.reason for event in events if isinstance(event, ledger.WasLeftOut)]
    assert reasons == ["candidate-b repeats candidate-a, rejected by a gate"]


def test_a_candidate_that_knows_a_validation_task_is_left_out(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    gold = bench.catalogue.products[bench.tasks("val")[0].gold_asin]
    propose(monkeypatch, [add(f"Look for {gold.title} first.", "candidate-b"), add(PERSONA, "candidate-c")])
    (first,) = online.rounds(with_(bench, rounds=1), RULE)
    found = first.candidates().set_index("candidate_id")["status"]
    assert found["candidate-b"] == "firewall"
    assert found["candidate-c"] != "firewall"
    assert first.report.funnel["firewall"] == 1
    for name in ("interventions.json", "masks.csv", "skill.md", "curriculum.json"):
        assert "candidate-b" not in (first.folder / name).read_text(encoding="utf-8")
    assert gold.title not in (first.folder / "skill.md").read_text(encoding="utf-8")


def test_rounds_without_a_gap_are_shown(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    propose(monkeypatch, [])
    done = online.rounds(with_(bench, rounds=1, n_gap=0), RULE)
    table = tables.gaps(done)
    assert table["G"].isna().all()
    assert tables.noise(done).empty
    plots.gaps(table, tables.noise(done)).canvas.draw()


def test_a_noise_floor_of_a_round_lies_beside_its_gate(finished: Finished, tmp_path: Path) -> None:
    """Weights of round 0 are repeated; the figures show its floor there, and claim nothing of other weights."""
    origin, _ = finished
    bench = copy(origin.folder, tmp_path / "run")
    rounds = online.rounds(bench, RULE)
    place, others = bench.folder / "online" / "round_000", bench.folder / "online" / "round_001"
    measured_by_gate = {path: path.read_bytes() for path in place.glob("*.*") if path.name != "calls.jsonl"}
    assert tables.noise(rounds).empty
    repeats.measure(protocol.at_round(bench, "online/round_000"), ["val"], 2, resamples=100)
    assert {path: path.read_bytes() for path in measured_by_gate} == measured_by_gate
    assert not (bench.folder / floors.FILE).exists() and not (others / floors.FILE).exists()
    noise = floors.read(place)
    assert noise is not None
    floor = noise.floors[0]
    report = rounds[0].report
    assert floor.checkpoint == report.evaluation_checkpoint == "simulated-shopper-1+r0"
    assert floor.coefficients is not None and report.gap is not None
    table = tables.noise(rounds)
    assert table.columns.name == "simulated" and list(table.index) == ["0"]
    within = floor.outcomes["reward"].within.value
    reach = stats.t.ppf(0.975, report.gap.tasks - 1) * (2 * within / report.gap.tasks) ** 0.5
    assert list(table.loc["0"]) == pytest.approx([floor.coefficients.single, reach], abs=1e-4)
    axes = plots.effects(tables.effects(rounds), table).axes[0]
    told = [tick.get_text() for tick in axes.get_xticklabels()]
    assert told == ["Gate A", f"round 0\nnoise floor ±{floor.coefficients.single:.3f}", "round 1"]
    gap = plots.gaps(tables.gaps(rounds), table).axes[1]
    (band,) = [bar.get_bbox() for bar in gap.patches if isinstance(bar, Rectangle)]
    assert (band.y0, band.y1) == pytest.approx((-reach, reach), abs=1e-3)


def test_without_training_the_floor_of_a_run_serves_its_rounds(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same weights: repeats beside Gate A tell of the gap as well, and nothing is bought for a round."""
    propose(monkeypatch, [])
    still = with_(bench, rounds=1, trainer="none")
    (done,) = online.rounds(still, RULE)
    repeats.measure(still, ["val"], 1, resamples=100)
    gap = Gap(tasks=10, bare=0.4, full=0.5, gap=0.1, ci_low=0.0, ci_high=0.2)
    for known, places in ((None, ["-"]), (gap, ["-", "0"])):
        table = tables.noise([replace(done, report=done.report.model_copy(update={"gap": known}))])
        assert list(table.index) == places
        assert table["gap"].isna().tolist() == [True, False][: len(places)]
        assert table["coefficient"].isna().tolist() == [False, True][: len(places)]


def rejected(text: str) -> list[ledger.Event]:
    """Events of an addition that a gate has rejected."""
    proposal = ledger.Proposal(
        candidate_id="candidate-a",
        operation="ADD",
        target_chunk_id=None,
        source_card_ids=("card-0",),
        failure_mechanism=None,
        proposal_checkpoint="c0",
        stage="cold_start",
        round=None,
        consolidation_cluster_id=None,
        replacement_family_id=None,
        content=text,
    )
    validation = ledger.Validation(
        candidate_id="candidate-a",
        chunk_id="candidate-a",
        round=None,
        evaluation_checkpoint="c0",
        estimated_effect=-0.1,
        contribution_rank=3,
        validation_result="non_positive",
    )
    now = datetime.now(UTC)
    return [
        ledger.Proposed.of(proposal, at=now, reason="seen"),
        ledger.Validated.of(validation, at=now, reason="no positive estimate"),
    ]


def test_ledger_tells_what_became_of_every_candidate(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    propose(monkeypatch, [add(PERSONA), rewrite(before_round_0(bench).ids[0], "Compare several candidates.")])
    first, second = online.rounds(bench, RULE)
    events = ledger.read(bench.folder / ledger.FILE)
    found = {row.candidate_id: row for row in ledger.proposals(events)}
    for one in first.report.candidates:
        validations = [event.payload for event in events if isinstance(event, ledger.Validated)]
        first_look = next(found for found in validations if found.candidate_id == one.candidate_id)
        assert (first_look.estimated_effect, first_look.validation_result) == (one.alpha, one.status)
        assert first_look.evaluation_checkpoint == "simulated-shopper-1+r0"
    assert {row.proposal_checkpoint for row in found.values()} == {"simulated-shopper-1"}
    later = {row.version_id for row in second.lineage if row.round == 1}
    assert {name for name, row in found.items() if row.evaluation_checkpoint == "simulated-shopper-1+r1"} == (
        later & found.keys()
    )


def before_round_0(bench: Bench) -> Skill:
    return protocol.read_selected(bench.folder)


def test_the_cold_start_is_in_the_ledger_once(bench: Bench) -> None:
    """Proposals of the compiled draft, then what Gate A found of each; a shipped draft was proposed by nobody."""
    chronicle.record_cold_start(bench)
    theirs = [event for event in ledger.read(bench.folder / ledger.FILE) if not isinstance(event, ledger.Looked)]
    assert {getattr(event.payload, "candidate_id", "") for event in theirs} == {None}
    (bench.folder / ledger.FILE).unlink()
    pool = protocol.read_draft(bench.settings, bench.folder)
    compiled = Draft(
        origin="cold_start",
        language="en",
        simulated=True,
        pool=pool,
        versions=tuple(version(add(chunk.text, chunk.chunk_id), CARD) for chunk in pool.chunks),
        clusters=(),
        mechanisms=(),
        left_out=(LeftOut(item_id="card-9", step="analysis", reason="firewall"),),
        complaints=(),
    )
    (bench.folder / "draft.json").write_text(compiled.model_dump_json(), encoding="utf-8")
    for _ in range(2):
        chronicle.record_cold_start(with_(bench, draft=""))
    events = ledger.read(bench.folder / ledger.FILE)
    found = {row.candidate_id: row for row in ledger.proposals(events)}
    gate = {row["intervention_id"]: row for row in document(bench.folder / "gate_a.json")["factors"]}
    assert {name: row.validation_result for name, row in found.items()} == {k: v["status"] for k, v in gate.items()}
    assert {(row.stage, row.round, row.proposal_checkpoint) for row in found.values()} == {
        ("cold_start", None, "simulated-shopper-1")
    }
    assert [event.reason for event in events if isinstance(event, ledger.WasLeftOut)] == ["analysis: firewall"]


def test_rounds_in_chinese(tmp_path: Path) -> None:
    bench = gated(tmp_path / "run", language="zh", rounds=1)
    (first,) = online.rounds(bench, RULE)
    assert first.report.funnel["analysed"] + first.report.funnel["deficits"] == first.report.funnel["all wrong"]
    candidates = document(first.folder / "draft.json")["pool"]["candidates"]
    assert candidates
    assert all("适用：" in one["content"] for one in candidates)


def test_evidence_that_may_not_be_proposed_stays_in_the_ledger(bench: Bench) -> None:
    (first,) = online.rounds(with_(bench, rounds=1, max_candidates=0), RULE)
    events = ledger.read(bench.folder / ledger.FILE)
    reasons = [event.reason for event in events if isinstance(event, ledger.WasLeftOut)]
    assert reasons == ["max_candidates is 0"] * first.report.funnel["proposals"]
    assert reasons


def test_an_empty_skill_runs_bare_and_only_grows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is selected, so the next round shows nothing; it has a gate only when there is a candidate."""
    harm = "# Shop\n\n## First {#first}\n\nBuy the first result in the list at once.\n"
    bench = gated(tmp_path / "run", harm, rounds=3, n_val=40, rollout_seed=0)
    assert protocol.read_selected(bench.folder).chunks == ()
    propose(monkeypatch, [], [add(PERSONA)])
    first, second, _ = online.rounds(bench, RULE)
    assert {found.group.treatment_sha256 for found in first.groups} == {protocol.BARE.sha256}
    assert {found.retry.treatment_sha256 for found in first.groups if found.retry} == {protocol.BARE.sha256}
    assert "no gate" in str(first)
    assert not (first.folder / "gate_a.json").exists()
    assert (first.report.chunks_after, first.report.gap) == (0, None)
    assert second.candidates()["operation"].tolist() == ["ADD"]
    with pytest.raises(InputError, match="no chunk has been selected"):
        protocol.gate_b(protocol.at_round(bench, "online/round_000"))


def test_gate_b_tests_a_round(finished: Finished, tmp_path: Path) -> None:
    bench = copy(finished[0].folder, tmp_path / "run")
    at = protocol.at_round(bench, "online/round_001")
    rows = protocol.gate_b(at).read_text(encoding="utf-8").splitlines()
    assert len(rows) == 1 + bench.settings.n_test
    assert all(",simulated-shopper-1+r1," in row for row in rows[1:])
    place = bench.folder / "online" / "round_001"
    assert (place / "test_observations.csv").exists()
    (whole,) = {tuple(line["hint_ids"]) for line in lines(place / "episodes" / "equipped.jsonl")}
    assert whole == protocol.read_selected(place).ids
    assert protocol.at_round(bench, "") is bench
    with pytest.raises(InputError, match="online/round_000, online/round_001"):
        protocol.at_round(bench, "online/round_007")


def test_a_winning_rewrite_keeps_the_id_and_lineage_shows_both_texts(bench: Bench) -> None:
    chunks = protocol.read_draft(bench.settings, bench.folder).chunks
    before = Pool(title="s", kind="draft", chunks=chunks)
    pool = Pool(title="s", kind="current", chunks=chunks, candidates=(rewrite("query", "Anew."),))
    old = measured(gate_of(before), before, None, "c0")
    rows = measured(gate_of(pool, candidate_r="selected", query="rewrite_loser"), pool, 0, "c1", old)
    skill = pool.skill([row.version_id for row in rows if row.selected])
    assert (skill.ids[0], skill.chunks[0].text) == ("query", "Anew.")
    won = Pool.of_skill(skill, "current")
    after = measured(gate_of(won), won, 1, "c2", rows)
    chain = [(row.round, row.version_id, row.text) for row in (*old, *rows, *after) if row.chunk_id == "query"]
    first = pool.versions["query"].text
    assert chain == [
        (None, "query", first),
        (0, "query", first),
        (0, "candidate-r", "Anew."),
        (1, "candidate-r", "Anew."),
    ]


def gate_of(pool: Pool, **status: str) -> dict[str, Any]:
    """A frozen gate of a pool, every version selected unless it is named."""
    named = {name.replace("_", "-"): value for name, value in status.items()}
    return {
        "factors": [
            {
                "intervention_id": version,
                "kind": "candidate" if version.startswith("candidate") else "current",
                "coefficient": 0.1,
                "ci_low": 0.0,
                "ci_high": 0.2,
                "rank": 1,
                "status": named.get(version, "selected"),
                "reason": "because",
            }
            for version in pool.versions
        ]
    }


def test_threads_change_nothing(finished: Finished, origin: Path, tmp_path: Path) -> None:
    bench, _ = finished
    other = copy(origin, tmp_path / "run", policy_concurrency=1, author_concurrency=1)
    online.rounds(other, RULE)
    assert state(other.folder) == state(bench.folder)


def start(folder: Path, rounds: int = 2, *flags: str) -> "subprocess.Popen[str]":
    command = [sys.executable, str(CHILD), str(folder), str(rounds), *flags]
    return subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def wait_for(path: Path, process: "subprocess.Popen[str]") -> None:
    while not path.exists():
        assert process.poll() is None, process.communicate()
        time.sleep(0.002)


def bought(folder: Path) -> set[str]:
    """Whole lines of everything that a model was paid for, times included: an episode bought again has others."""
    files = [*(folder / "episodes").glob("*.jsonl"), folder / "cards.jsonl", folder / "authored.jsonl"]
    texts = [path.read_text(encoding="utf-8") for path in files if path.exists()]
    return {line for text in texts for line in text.splitlines(keepends=True) if line.endswith("\n")}


STOPS = [
    ("given.json", signal.SIGKILL),
    ("episodes/group-0-0.jsonl", signal.SIGTERM),
    ("episodes/group-0-15.jsonl", signal.SIGKILL),
    ("cards.jsonl", signal.SIGKILL),
    ("draft.json", signal.SIGKILL),
    ("episodes/bare.jsonl", signal.SIGTERM),
    ("gate_a.json", signal.SIGKILL),
    ("lineage.json", signal.SIGKILL),
]


@pytest.mark.parametrize(("stage", "number"), STOPS)
def test_a_stopped_round_goes_on_as_if_unbroken(
    finished: Finished,
    origin: Path,
    tmp_path: Path,
    stage: str,
    number: signal.Signals,
) -> None:
    bench = copy(origin, tmp_path / "run", rounds=1)
    process = start(bench.folder, 1, *(["--hold"] if stage == "lineage.json" else []))
    wait_for(bench.folder / "online" / ".round_000.staging" / stage, process)
    process.send_signal(number)
    process.communicate()
    assert process.returncode == (75 if number == signal.SIGTERM else -signal.SIGKILL)
    paid = bought(bench.folder / "online" / ".round_000.staging")
    assert paid or stage == "given.json"
    online.rounds(bench, RULE)
    assert bought(bench.folder / "online" / "round_000") >= paid
    mine, unbroken = state(bench.folder), state(finished[0].folder)
    assert mine.pop("ledger") == unbroken["ledger"][: len(ledger.read(bench.folder / ledger.FILE))]
    assert mine == {name: value for name, value in unbroken.items() if name.startswith("round_000/")}


def test_two_processes_do_not_write_at_once(bench: Bench) -> None:
    process = start(bench.folder)
    wait_for(bench.folder / "online" / ".round_000.staging" / "given.json", process)
    with pytest.raises(OutputError, match=rf"^{re.escape(str(bench.folder / 'online'))}: .* in use by process"):
        online.rounds(bench, RULE)
    _, errors = process.communicate()
    assert process.returncode == 0, errors


def test_a_damaged_round_is_one_message(finished: Finished, tmp_path: Path) -> None:
    place = copy(finished[0].folder, tmp_path / "run").folder / "online" / "round_000"
    (place / "round.json").write_text("{}", encoding="utf-8")
    with pytest.raises(InputError, match=r"round\.json"):
        read_round(place)


def test_gate_a_of_another_draft_or_checkpoint_is_refused(bench: Bench) -> None:
    with pytest.raises(InputError, match="Gate A measured"):
        online.rounds(with_(bench, policy_checkpoint="another"), RULE)
    (bench.folder / "draft.md").write_text(DRAFT.replace("#price", "#other"), encoding="utf-8")
    with pytest.raises(InputError, match="the gate measured"):
        online.rounds(bench, RULE)


def test_an_edited_skill_is_refused(bench: Bench) -> None:
    path = bench.folder / "skill.md"
    path.write_text(path.read_text(encoding="utf-8") + "\nmore\n", encoding="utf-8")
    with pytest.raises(InputError, match="other chunks or texts"):
        online.rounds(bench, RULE)


def test_rounds_without_gate_a_are_refused(tmp_path: Path) -> None:
    (tmp_path / "draft.md").write_text(DRAFT, encoding="utf-8")
    bench = protocol.set_up(Settings.of(SETTINGS | {"draft": str(tmp_path / "draft.md")}), tmp_path / "run")
    with pytest.raises(InputError, match="Gate A has not been run here"):
        online.rounds(bench, RULE)


def test_forecast_counts_what_is_owed(finished: Finished, bench: Bench) -> None:
    assert online.foresee(finished[0]).startswith("0 of 2 rounds owed")
    assert "2 of 2 rounds owed, each 32 group rollouts, up to 16 retries and 58 validation" in online.foresee(bench)
