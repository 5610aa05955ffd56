"""METHOD section 12: each invariant as a test that was seen to fail when its rule was broken."""

import csv
import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
from casework import SKILL, Acting, Case, bench_of
from conftest import GateWriter, Writer, to_csv, write_interventions
from evidence import LESSONS, SEED, Author, apart, card, cards, compiled, distinct, rewriting, screen
from evidence import sections as sections_of
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from rounds_child import add, rewrite
from scripted import FakeClock, Json, buyer, failure, scripted, tools
from test_analysts import REFUSED, fail
from whole_run import (
    RULE,
    Trainer,
    WholeRun,
    analysed,
    disguises,
    document,
    episodes,
    gate_a,
    lines,
    name_of,
    public_once_shown,
    role_of,
    sections,
    spoil_test,
    told_of,
    unseen,
    whole_run,
    without_pages,
)

from shopskill_lib import cold_start, distil, gates, looks, masks, online, protocol, rollouts
from shopskill_lib.agent import Agent
from shopskill_lib.cards import Card, Reason
from shopskill_lib.clusters import LeftOut
from shopskill_lib.compiler import Draft
from shopskill_lib.errors import AuthorError, DesignError, InputError, LookError, MissingError, ParameterError
from shopskill_lib.gates import Gate
from shopskill_lib.pools import Pool
from shopskill_lib.records import Episode, Language, Split
from shopskill_lib.settings import Settings
from shopskill_lib.shops.catalog import Catalogue
from shopskill_lib.shops.embedded import EmbeddedShop
from shopskill_lib.trajectories import of_episode

LANGUAGES: tuple[Language, ...] = ("en", "zh")

SEEDS = {"en": 9, "zh": 14}
"""Rollouts in which the whole skill solves a failed group, a chunk is retired, a candidate fails in the gate, and every
disguise of gold is tried."""


@pytest.fixture(scope="module", params=LANGUAGES)
def done(
    request: pytest.FixtureRequest, catalogues: dict[str, Catalogue], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[WholeRun]:
    folder = tmp_path_factory.mktemp(f"whole_{request.param}") / "run"
    yield from whole_run(catalogues[request.param], folder, rollout_seed=SEEDS[request.param])


@pytest.fixture(params=LANGUAGES)
def shop(request: pytest.FixtureRequest, shops: dict[str, EmbeddedShop]) -> EmbeddedShop:
    return shops[request.param]


def test_i01_masked_all_wrong_groups_never_reach_the_analyst(done: WholeRun) -> None:
    """I1: a group that failed throughout is no evidence, whatever it was shown."""
    wrong = {found.group.arm for found in done.round.groups if found.classification == "all_wrong"}
    rollouts_of = {name_of(one) for one in episodes(done.round.folder, "group") if one.arm in wrong}
    assert len(rollouts_of) == 2 * len(wrong) > 0
    assert not rollouts_of & analysed(done.round.folder)


def test_i02_the_analyst_sees_only_failed_full_skill_retries(done: WholeRun) -> None:
    """I2: not the retries that the whole skill solved, none under a part of it, and nothing beside them."""
    whole = protocol.treatment("full_skill", done.skill).sha256
    retries = episodes(done.round.folder, "retry")
    failed = {name_of(one): one for one in retries if one.reward_detail and one.reward_detail.r_success == 0}
    assert 0 < len(failed) < len(retries)
    assert analysed(done.round.folder) == failed.keys()
    assert {one.treatment_sha256 for one in retries} == {whole}
    asked = {body["messages"][1]["content"] for body in done.asked("failure_analyst")}
    cold = [line for line in lines(done.folder / "audit.jsonl") if line["channel"] == "failure"]
    assert len(asked) == len(cold) + len(failed)
    won = next(one for one in retries if name_of(one) not in failed)
    task = done.bench.catalogue.tasks[won.task_id]
    pair = (of_episode(won, task, ()), task)
    with pytest.raises(ParameterError, match="no success analyst online"):
        distil.analyse(done.bench, [pair], done.skill, folder=done.folder.parent, stage="online", arm="retry")


def test_i03_retries_stay_out_of_advantages(done: WholeRun) -> None:
    """I3: what is trained on are the groups' own rewards, one a rollout."""
    assert any(found.retry for found in done.round.groups)
    assert [lesson.rewards for lesson in done.lessons] == [found.rewards for found in done.round.groups]
    assert {len(lesson.rewards) for lesson in done.lessons} == {done.bench.settings.group_size}


@pytest.mark.parametrize("reason", get_args(Reason))
def test_i04_no_proposal_is_reached_for_each_reason(reason: Reason, shop: EmbeddedShop, tmp_path: Path) -> None:
    """I4: the program itself finds every reason of M7, and such a card is never compiled."""
    case = Case.of(shop)
    rows = [row for row in REFUSED if row[1] == reason]
    _, _, acts, change = next((row for row in rows if "declared" not in row[0]), rows[0])
    turns = tuple(turn.model_copy(update={"page": turn.page + "sale"}) for turn in case.failed.turns)
    moved = {"turns": turns} if "pages" in change else {}
    bounds = {name: value for name, value in change.items() if name != "pages"}
    found, _ = fail(case, Acting(acts(case) if callable(acts) else acts), SKILL, moved, **bounds)
    assert (found.facts.status, found.facts.reason, found.deployable) == ("NO_PROPOSAL", reason, None)
    others = cards(case.language)
    draft = compiled(Author(case.language), tmp_path, [*others, found], language=case.language, screen=screen(others))
    assert draft.account()[found.card_id] == LeftOut(item_id=found.card_id, step="analysis", reason=reason)


def test_i05_gold_is_only_in_the_audit(done: WholeRun) -> None:
    """I5, M11: canaries in whatever only gold tells stay out of every other byte of the run.

    A page may show gold like any product, so its id and title may stand where pages are kept: in the pages, actions and
    purchases of episodes. Nothing shows a shop's name, a description or the category that a task carries.
    """
    secret = [needle for task, gold in done.golds for needle in unseen(task, gold)]
    shown = [needle for _, gold in done.golds for needle in public_once_shown(gold)]
    audits = list(done.folder.rglob("audit.jsonl"))
    kept = "".join(path.read_text(encoding="utf-8") for path in audits)
    assert len(audits) == 2
    for path in done.folder.rglob("*"):
        if path.is_file() and path not in audits:
            text = path.read_bytes().decode("utf-8")
            assert not [needle for needle in secret if needle in text], path
            public = without_pages(text) if path.parent.name == "episodes" else text
            assert not [needle for needle in shown if needle in public], path
    assert sum(gold.shop in kept for _, gold in done.golds) > 5
    found = "".join(line for line in kept.splitlines() if json.loads(line)["findings"])
    tried = zip(*(disguises(gold.shop) for _, gold in done.golds), strict=True)
    assert all(any(form in found for form in forms) for forms in tried)


def test_i05_gold_is_told_to_the_failure_analyst_alone(done: WholeRun) -> None:
    """I5, M11: no policy, success analyst, consolidator or compiler was ever sent what only gold tells."""
    secret = [needle for task, gold in done.golds for needle in unseen(task, gold)]
    shown = [needle for _, gold in done.golds for needle in public_once_shown(gold)]
    assert sum(gold.shop in "".join(done.told("failure_analyst")) for _, gold in done.golds) > 5
    for role in ("policy", "success_analyst", "consolidator", "compiler"):
        messages = done.told(role)
        assert messages
        assert not [needle for needle in secret for text in messages if needle in text], role
    for role in ("consolidator", "compiler"):
        assert not [needle for needle in shown for text in done.told(role) if needle in text], role
    for opening in {json.dumps(body["messages"][:2], ensure_ascii=False) for body in done.asked("policy")}:
        assert not [needle for needle in shown if needle in opening]
    for text in {body["messages"][1]["content"] for body in done.asked("success_analyst")}:
        given = sections(text)
        outcome, seen = json.loads(given.pop("outcome")), given.pop("trajectory")
        assert outcome.pop("purchase")["asin"] in seen
        assert "asin_match" not in text
        assert not [needle for needle in shown if needle in json.dumps([given, outcome], ensure_ascii=False)]


@pytest.mark.parametrize("operation", ["DELETE", "MERGE", "SPLIT"])
def test_i06_operations_are_add_or_rewrite(operation: str, tmp_path: Path) -> None:
    """I6: an author that hands in anything else is told so, and nothing is made of it."""

    def other(arguments: Json) -> None:
        arguments["chunks"][0].update({"operation": operation, "target_chunk_id": "broad"})

    with pytest.raises(AuthorError, match="operation: Input should be 'ADD' or 'REWRITE'"):
        compiled(Author(skill=[other]), tmp_path, cards("en"), SEED)
    assert not (tmp_path / "draft.json").exists()


def test_i07_candidates_never_touch_the_active_skill(done: WholeRun) -> None:
    """I7: groups, retries and gate go by the skill in force; a candidate is in the next one only when selected."""
    proposal = Draft.model_validate_json((done.round.folder / "draft.json").read_bytes())
    assert proposal.pool is not None
    assert proposal.pool.candidates
    assert proposal.pool.chunks == done.skill.chunks
    assert protocol.read_selected(done.folder) == done.skill
    for one in episodes(done.round.folder, "group", "retry"):
        shown = done.skill.subset(one.hint_ids)
        assert one.treatment_sha256 == protocol.treatment("x", shown).sha256
    selected = document(done.round.folder / "gate_a.json")["selected"]
    assert {one.candidate_id for one in proposal.pool.candidates} - set(selected)
    assert protocol.read_selected(done.round.folder) == proposal.pool.skill(selected)


def test_i08_only_the_gate_removes_chunks(done: WholeRun) -> None:
    """I8: every chunk in force is a column of the next gate, and is gone only where that gate says so."""
    factors = document(done.round.folder / "gate_a.json")["factors"]
    assert {row["intervention_id"] for row in factors if row["kind"] == "current"} == set(done.skill.ids)
    kept = {row["slot"] for row in factors if row["status"] == "selected"}
    gone = set(done.skill.ids) - set(protocol.read_selected(done.round.folder).ids)
    assert gone == set(done.skill.ids) - kept
    assert gone
    assert {row["status"] for row in factors if row["slot"] in gone} <= {"retired", "rewrite_loser", "non_positive"}


@pytest.mark.parametrize("stage", ["cold_start", "online"])
@pytest.mark.parametrize("language", LANGUAGES)
def test_i07_i08_a_compiler_keeps_every_chunk_in_force(language: Language, stage: str, tmp_path: Path) -> None:
    """I7, I8: an author may rewrite one chunk and pass over another in silence; both stay what they are."""
    author = Author(language, skill=[rewriting("broad")])
    draft = compiled(author, tmp_path, cards(language), SEED, language, stage=stage)
    assert draft.pool is not None
    assert draft.pool.chunks == SEED.chunks
    assert [one.target_chunk_id for one in draft.pool.candidates].count("broad") == 1


@given(rewrites=st.lists(st.sampled_from(["sizes", "核价"]), min_size=1, max_size=5), seed=st.integers(0, 99))
@settings(max_examples=20, deadline=None)
def test_i09_versions_of_a_slot_never_share_a_prompt(
    shops: dict[str, EmbeddedShop], rewrites: list[str], seed: int
) -> None:
    """I9: of an old text and its rewrites every prompt of a gate shows one at most."""
    new = [rewrite(target, f"另一种说法 {number}", f"candidate-{number}") for number, target in enumerate(rewrites)]
    pool = Pool(title="s", kind="current", chunks=SKILL.chunks, candidates=(*new, add("more", "candidate-a")))
    bench = replace(bench_of(shops["en"], Path("nowhere"), n_val=40, mask_seed=seed), pool=pool)
    slot_of = {chunk.text: slot for version, chunk in pool.versions.items() for slot in [chunk.chunk_id]}
    for planned in protocol.plan_gate_a(bench):
        shown = [slot for text, slot in slot_of.items() for hint in planned.treatment.hints if text in hint.text]
        assert len(set(shown)) == len(shown) == len(planned.treatment.hints)


def test_i09_pairs_that_show_two_versions_are_refused(write: Writer) -> None:
    """I9: neither a skill nor a file of pairs may hold two texts of one slot."""
    pool = Pool(title="s", kind="current", chunks=SKILL.chunks, candidates=(rewrite("核价", "新的说法"),))
    with pytest.raises(ValueError, match="two versions of one slot"):
        pool.skill(["核价", "candidate-r"])
    with pytest.raises(DesignError, match="shows several versions of slot"):
        fitted(write, pool, {}, change=lambda masks: masks.__setitem__((0, slice(None)), 1))


def fitted(write: Writer, pool: Pool, effects: dict[str, float], budget: int | None = None, change: Any = None) -> Gate:
    """The gate of 120 pairs whose rewards are 0.5 and these effects, without noise."""
    drawn = masks.assign(0, "val", [f"{number:03d}" for number in range(120)], pool.slots)
    shown = drawn.masks.copy()
    if change is not None:
        change(shown)
    beta = np.array([effects.get(factor, 0.0) for factor in drawn.factors])
    rows = [
        {"task_id": task_id, **dict(zip(drawn.factors, map(str, mask), strict=True))}
        | {"reward": str(0.5 + mask @ beta), "bare_reward": "0.5"}
        for task_id, mask in zip(drawn.task_ids, shown, strict=True)
    ]
    described = [
        {"intervention_id": item.intervention_id, "logical_chunk_id": item.slot}
        | {name: getattr(item, name) for name in ("kind", "operation", "order")}
        for item in pool.interventions
    ]
    pairs = gates.read_observations(write(to_csv(rows)), write_interventions(write, *described))
    return gates.fit_gate(pairs, budget, resamples=100)


@pytest.mark.parametrize("language", LANGUAGES)
def test_i10_channels_merge_only_after_the_firewall(language: Language, tmp_path: Path) -> None:
    """I10: a card that leaks is asked about by nobody, a cluster that leaks never meets the other channel."""
    secret = {"en": "Northwind", "zh": "北风岭"}[language]

    def leak(arguments: Json) -> None:
        arguments["clusters"][0]["verification"] += f" {secret}"

    whole = cards(language)
    spoilt = [one.model_copy(update={"deployable": leaking_lesson(one, secret)}) for one in (whole[0], whole[-1])]
    author = Author(language, clusters=[leak])
    found = [*spoilt, *whole[1:-1]]
    draft = compiled(author, tmp_path, found, language=language, screen=screen(found, brands=(secret,)))
    asked = author.asked("submit_clusters")
    channels = [{"failure_mechanism" in entry for entry in sections_of(body)["cards"]} for body in asked]
    assert [len(channel) for channel in channels] == [1] * len(asked)
    assert {frozenset(channel) for channel in channels} == {frozenset({True}), frozenset({False})}
    assert not any(one.card_id in body["messages"][1]["content"] for one in spoilt for body in asked)
    opened = [body["messages"][1]["content"] for body in author.bodies]
    assert not any(secret in text for text in opened)
    assert [draft.account()[one.card_id] for one in spoilt] == [
        LeftOut(item_id=one.card_id, step="analysis", reason="firewall") for one in spoilt
    ]
    assert {left.step for left in draft.left_out if left.reason == "firewall"} == {"analysis", "consolidation"}


def leaking_lesson(one: Card, secret: str) -> Any:
    """A card's texts with a secret in one of them."""
    assert one.deployable is not None
    return one.deployable.model_copy(update={"applicable_when": f"{one.deployable.applicable_when} {secret}"})


def test_i11_a_card_is_never_a_factor(done: WholeRun) -> None:
    """I11: what a gate measures are compiled versions, each of a mechanism; cards and clusters stay behind them."""
    for folder in (done.folder, done.round.folder):
        draft = Draft.model_validate_json((folder / "draft.json").read_bytes())
        columns = [row["intervention_id"] for row in document(folder / "interventions.json")]
        in_force = () if folder == done.folder else done.skill.ids
        assert sorted(columns) == sorted([*in_force, *(version.version_id for version in draft.versions)])
        evidence = {card.card_id for card in distil.read_cards(folder)} | {one.cluster_id for one in draft.clusters}
        assert not evidence & set(columns)
        assert all(version.mechanism_ids and version.cluster_ids for version in draft.versions)


def test_i11_a_card_is_no_mechanism(tmp_path: Path) -> None:
    """I11: a chunk that rests on a card's id in place of a mechanism's is sent back."""

    def bypass(arguments: Json) -> None:
        arguments["chunks"][0]["mechanism_ids"] = [cards("en")[0].card_id]

    with pytest.raises(AuthorError, match=f"mechanism {cards('en')[0].card_id} in chunks.0 is unknown"):
        compiled(Author(skill=[bypass]), tmp_path, cards("en"))


def test_i12_consolidation_precedes_validation(done: WholeRun, tmp_path: Path) -> None:
    """I12: cards alone are nothing to gate, and no text was shown before it was consolidated and compiled."""
    for name in ("cards.jsonl", "analyses.json"):
        shutil.copy(done.folder / name, tmp_path / name)
    with pytest.raises(InputError, match="no draft has been compiled here"):
        protocol.read_draft(done.bench.settings, tmp_path)
    roles = [role_of(body) for body in done.requests]
    prompts = [(n, body["messages"][0]["content"]) for n, body in enumerate(done.requests) if roles[n] == "policy"]
    for folder, since in ((done.folder, 0), (done.round.folder, roles.index("compiler"))):
        draft = Draft.model_validate_json((folder / "draft.json").read_bytes())
        consolidated = roles.index("consolidator", since)
        asked = roles.index("compiler", consolidated)
        for version in draft.versions:
            assert min(n for n, text in prompts if version.content in text) > asked > consolidated


def test_i13_the_initial_compiler_gives_at_most_16(tmp_path: Path) -> None:
    """I13: an author's 17th and 18th chunk are left out by priority; a file of 17 or a cap of 17 is refused."""
    many = [card("zh", name, "success", number) for name in LESSONS["zh"] for number in range(3)][:18]
    draft = compiled(Author("zh", clusters=[apart], skill=[distinct]), tmp_path, many, language="zh")
    assert len(draft.mechanisms) == 18
    assert draft.pool is not None
    assert len(draft.pool.versions) == len(draft.versions) == 16
    assert [left.reason for left in draft.left_out] == ["over_cap"] * 2
    text = "# s\n" + "".join(f"\n## t {number} {{#c{number}}}\n\n文字 {number}\n" for number in range(17))
    (tmp_path / "draft.md").write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match="the draft has 17 factors"):
        protocol.read_draft(Settings.of({"draft": str(tmp_path / "draft.md")}), tmp_path)
    with pytest.raises(ParameterError, match="cap is 17"):
        Settings.of({"cap": 17})


def test_i14_bare_runs_are_of_the_gates_checkpoint_and_reused_there_only(done: WholeRun, tmp_path: Path) -> None:
    """I14: nobody trained, so the round points to Gate A's bare runs; at other weights they are run anew."""
    bought = {one.identity for one in episodes(done.folder, "bare") if one.split == "val"}
    pointers = lines(done.round.folder / "episodes" / "bare.jsonl")
    assert {line["identity"] for line in pointers if "reused_from" in line} == bought
    assert len(pointers) == len(bought) == done.bench.settings.n_val
    bench = replace(done.bench, pool=protocol.read_draft(done.bench.settings, done.folder))
    other = protocol.moved(bench, tmp_path, "simulated-shopper", "another")
    plan = protocol.plan_bare(other, "val")[:3]
    bare = protocol.roll_out(other, plan, "gate_a")["bare"]
    assert {one.model.checkpoint for one in bare.scored} == {"another"}
    assert not {one.identity for one in bare.scored} & bought
    seed = bench.settings.rollout_seed
    gate = protocol.plan_gate_a(bench)
    masked = rollouts.load(gate, bench.agent, bench.folder, rollout_seed=seed)["masked"]
    with pytest.raises(DesignError, match="model differs"):
        protocol.prove(gate, {"masked": masked, "bare": bare})


DECIDED = (
    "clusters.json", "draft.json", "draft.md", "masks.csv", "interventions.json", "observations.csv", "skill.md",
    "gate_a.json", "groups.json", "triage.json", "curriculum.json", "lineage.json", "round.json",
)  # fmt: skip
"""What is built, selected and ranked, in a run folder and in a round."""


@pytest.mark.parametrize("change", ["turned round", "gone"])
def test_i15_test_never_feeds_selection(done: WholeRun, tmp_path: Path, change: str) -> None:
    """I15: whatever became of the test episodes, draft, gate and online round come out the same to the byte."""
    folder, staging = tmp_path / "run", tmp_path / "run" / "online" / ".round_000.staging"
    shutil.copytree(done.folder, folder)
    (folder / "online" / "round_000").rename(staging)
    for name in ("ledger.jsonl", *DECIDED):
        (folder / name).unlink(missing_ok=True)
        (staging / name).unlink(missing_ok=True)
    spoil_test(folder, gone=change == "gone")
    again = replace(done.bench, folder=folder)
    cold_start.draft(again)
    gate_a(again)
    assert_same(folder, done.folder)
    online.rounds(again, RULE, Trainer())
    assert_same(folder / "online" / "round_000", done.round.folder)


def assert_same(mine: Path, other: Path) -> None:
    """Hold two folders to the same decisions."""
    assert {name for name in DECIDED if (other / name).exists()} >= {"draft.json", "skill.md", "gate_a.json"}
    for name in DECIDED:
        assert told_of(mine / name) == told_of(other / name), name


def test_i15_each_split_has_its_one_role(done: WholeRun, tmp_path: Path) -> None:
    """I15, M1, M23: test tasks are run for Gate B alone, its pairs are no gate's, and Gate A looks at val once."""
    wanted: dict[str, set[Split | None]] = {"train": {"train"}, "masked": {"val"}, "equipped": {"test"}}
    for arm, splits in (wanted | {"bare": {"val", "test"}}).items():
        assert {one.split for one in episodes(done.folder, arm)} == splits
    assert {one.split for one in episodes(done.round.folder, "group", "retry")} == {"train"}
    assert {one.split for one in episodes(done.round.folder, "masked", "bare", "full")} == {"val"}
    pairs = (done.folder / "observations.csv").read_text(encoding="utf-8")
    (tmp_path / "pairs.csv").write_text(pairs.replace(",val,", ",test,"), encoding="utf-8")
    with pytest.raises(InputError, match="split is 'test'"):
        gates.read_observations(tmp_path / "pairs.csv", done.folder / "interventions.json")
    observed = gates.read_observations(done.folder / "observations.csv", done.folder / "interventions.json")
    another = gates.fit_gate(observed, 1, resamples=100)
    shutil.copy(done.folder / "gate_a.json", tmp_path)
    with pytest.raises(LookError, match="another gate is frozen here"):
        looks.freeze(tmp_path, tmp_path / "gate_a.json", another.to_json(), another.key())
    assert (
        len(looks.freeze(tmp_path, tmp_path / "gate_a.json", another.to_json(), another.key(), "K = 1")["looks"]) == 2
    )


@pytest.mark.parametrize("shift", [0.25, -0.5])
def test_i16_no_intercept_and_no_centering(gate_csv: GateWriter, shift: float) -> None:
    """I16: a constant added to every masked reward goes into the coefficients, as algebra without a constant says."""

    def add_to(rows: list[dict[str, str]]) -> None:
        for row in rows:
            row["reward"] = str(float(row["reward"]) + shift)

    plain, moved = (
        gates.fit_gate(gates.read_observations(gate_csv(change=change)), resamples=100) for change in (None, add_to)
    )
    C = plain.observations.masks.astype(float)
    delta = plain.observations.masked["reward"] - plain.observations.bare["reward"]
    old, new = plain.outcomes["reward"].fit, moved.outcomes["reward"].fit
    assert new.names == plain.observations.factors
    np.testing.assert_allclose(new.params, np.linalg.solve(C.T @ C, C.T @ (delta + shift)), atol=1e-12)
    assert np.sign(new.params - old.params).tolist() == [np.sign(shift)] * C.shape[1]


POOL = Pool(
    title="s",
    kind="current",
    chunks=SKILL.chunks,
    candidates=(rewrite("核价", "另一种说法"), add("more", "candidate-a"), add("再多些", "candidate-b")),
)
"""Slots sizes, 核价 (with the rewrite candidate-r), candidate-a and candidate-b."""


def decided(gate: Gate) -> dict[str, tuple[int | None, str]]:
    return {one.intervention_id: (one.rank, one.status) for one in gate.decisions}


def test_i17_the_positive_top_k_is_never_filled_up(write: Writer) -> None:
    """I17: one positive estimate and room for four give one chunk; three and room for two give the best two."""
    gate = fitted(write, POOL, {"candidate-b": 0.2, "核价": -0.1, "candidate-a": -0.2}, 4)
    assert (gate.budget, gate.selected) == (4, ("candidate-b",))
    assert fitted(write, POOL, dict.fromkeys(POOL.versions, -0.1), 4).selected == ()
    gate = fitted(write, POOL, {"candidate-b": 0.2, "sizes": 0.1, "candidate-a": 0.3}, 2)
    assert gate.selected == ("candidate-a", "candidate-b")


def test_i18_the_winner_of_a_pair_is_found_before_ranking(write: Writer) -> None:
    """I18: the text that loses to its own rewrite takes no rank, however high its estimate."""
    gate = fitted(write, POOL, {"核价": 0.4, "candidate-r": 0.5, "candidate-a": 0.3, "sizes": 0.2}, 2)
    found = decided(gate)
    assert found["核价"] == (None, "rewrite_loser")
    assert (found["candidate-r"], found["candidate-a"]) == ((1, "selected"), (2, "selected"))
    assert found["sizes"] == (3, "retired")


def test_i19_a_winner_still_needs_a_positive_estimate_and_a_rank(write: Writer) -> None:
    """I19: beating the old text is not enough."""
    gate = fitted(write, POOL, {"核价": -0.4, "candidate-r": -0.1, "candidate-a": 0.3}, 4)
    assert decided(gate)["candidate-r"] == (4, "non_positive")
    assert gate.selected == ("candidate-a",)
    gate = fitted(write, POOL, {"核价": 0.1, "candidate-r": 0.2, "candidate-a": 0.3}, 1)
    assert decided(gate)["candidate-r"] == (2, "budget_excluded")
    assert gate.selected == ("candidate-a",)


def test_i20_errors_are_never_rewards(shop: EmbeddedShop, tmp_path: Path) -> None:
    """I20: a task whose server always fails at the second turn has empty cells, and the gate waits for it."""
    bench = bench_of(shop, tmp_path, n_val=8)
    lost = bench.tasks("val")[3]

    def flaky(body: Json) -> Any:
        down = lost.visible_instruction in body["messages"][1]["content"] and "search" not in tools(body)
        return failure(503) if down else buyer(body)

    agent = Agent(scripted(flaky, FakeClock().clock), shop, bench.agent.prompts)
    bench = replace(bench, agent=agent, pool=Pool.of_skill(SKILL))
    pairs = protocol.gate_a(bench)
    failed = [one for one in episodes(bench.folder, "bare", "masked") if one.task_id == lost.task_id]
    assert [(one.arm, one.attempt) for one in failed] == [(arm, n) for arm in ("bare", "masked") for n in (1, 2, 3)]
    assert {(one.status, one.reward, one.reward_detail, one.ending) for one in failed} == {("error", None, None, None)}
    assert all(one.error and len(one.steps) == 1 for one in failed)
    rows = csv.DictReader(pairs.read_text(encoding="utf-8").splitlines())
    row = next(row for row in rows if row["task_id"] == lost.task_id)
    assert {row[name] for name in ("reward", "bare_reward", "r_success", "bare_r_success", "bare_steps")} == {""}
    with pytest.raises(MissingError, match=f"tasks {lost.task_id}"):
        gates.read_observations(pairs, bench.folder / "interventions.json")
    with pytest.raises(ValidationError, match="either a reward and an ending, or an error"):
        Episode.model_validate(failed[0].model_dump() | {"reward": 0.0})


def test_i21_all_zero_and_all_one_treatments_are_drawn_anew_in_each_arm(shop: EmbeddedShop, tmp_path: Path) -> None:
    """I21: bare and an all-zero mask, the whole skill and an all-one mask are equal prompts and other draws."""
    asked: list[int] = []

    def seeded(body: Json) -> Any:
        asked.append(body["seed"])
        return buyer(body)

    bench = bench_of(shop, tmp_path, n_val=20)
    bench = replace(bench, agent=replace(bench.agent, model=scripted(seeded)), pool=Pool.of_skill(SKILL))
    plan = protocol.plan_gate_a(bench)
    whole = protocol.treatment("equipped", SKILL)
    none, every = (
        next(one for one in plan if one.arm == "masked" and one.treatment.sha256 == same.sha256)
        for same in (protocol.BARE, whole)
    )
    bare = next(one for one in plan if one.arm == "bare" and one.key == none.key)
    equipped = rollouts.Planned("equipped", every.task, every.sample, whole)
    sets = protocol.roll_out(bench, [none, every, bare, equipped], "x")
    for planned, arm in ((none, "bare"), (every, "equipped")):
        one, other = sets["masked"].episodes[planned.key], sets[arm].episodes[planned.key]
        assert one.treatment_sha256 == other.treatment_sha256
        assert one.steps[0].prompt_digest == other.steps[0].prompt_digest
        assert one.identity != other.identity
        assert one.seeds.episode_seed != other.seeds.episode_seed
    assert len(asked) == len(set(asked)) == sum(len(one.steps) for arm in sets.values() for one in arm.scored)
