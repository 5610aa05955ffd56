"""Groups and their triage: one treatment a group, every class, errors that never trigger, retries apart."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shopskill_lib import protocol, triage, workbench
from shopskill_lib.curriculum import Curriculum, Shown
from shopskill_lib.errors import DesignError, ParameterError
from shopskill_lib.records import Episode, Failure, Task
from shopskill_lib.rolloutset import RolloutSet
from shopskill_lib.settings import Settings
from shopskill_lib.skills import Chunk, Skill
from shopskill_lib.workbench import Bench

SKILL = Skill(
    title="s",
    chunks=(
        Chunk(chunk_id="query", title="Query", text="Put all requirements into the search."),
        Chunk(chunk_id="price", title="核对价格", text="选好规格后，核对所选规格的价格。"),
    ),
)
EMPTY = Skill(title="s", chunks=())
SIZE = 2


def state(skill: Skill = SKILL, q: float = 0.2, rho: float = 0.5, number: int = 0) -> Curriculum:
    shown = tuple(Shown(chunk.chunk_id, chunk.text_sha256, 0.1, rho) for chunk in skill.chunks)
    return Curriculum(number, "c1", 0, q, shown)


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    names = {"n_products": 2000, "n_train": 12, "max_steps": 8}
    return workbench.set_up(Settings.of(names), tmp_path_factory.mktemp("triage") / "run")


@pytest.fixture(scope="module")
def group(bench: Bench) -> triage.Group:
    return triage.draw_groups(bench.tasks("train")[:1], SKILL, state(q=0, rho=1))[0]


@pytest.fixture(scope="module")
def arm(bench: Bench, group: triage.Group) -> RolloutSet:
    tasks = {task.task_id: task for task in bench.tasks("train")}
    return protocol.roll_out(bench, triage.plan_groups([group], tasks, SKILL, SIZE), "online")[group.arm]


@pytest.fixture(scope="module")
def retry(bench: Bench, group: triage.Group, arm: RolloutSet) -> RolloutSet:
    tasks = {task.task_id: task for task in bench.tasks("train")}
    failed = triage.classify(group, rewarded(arm, 0, 0), SIZE)
    return protocol.roll_out(bench, triage.plan_retries([failed], tasks, SKILL), "online")["retry:0:0"]


def scored(episode: Episode, success: int, reward: float | None = None) -> Episode:
    assert episode.reward_detail is not None
    detail = episode.reward_detail.model_copy(update={"r_success": success})
    return episode.model_copy(update={"reward": float(success) if reward is None else reward, "reward_detail": detail})


def rewarded(arm: RolloutSet, *successes: int) -> RolloutSet:
    """The arm with these successes."""
    pairs = zip(arm.episodes.items(), successes, strict=True)
    return replace(arm, episodes={key: scored(episode, success) for (key, episode), success in pairs})


def without(arm: RolloutSet, state_: str, **update: Any) -> RolloutSet:
    """The arm whose last episode failed for good (`missing`) or has attempts left (`owed`)."""
    *_, key = arm.planned
    failure = Failure(kind="InfrastructureError", message="down")
    error = {"status": "error", "reward": None, "reward_detail": None, "ending": None, "error": failure, **update}
    episodes = {**arm.episodes, key: arm.episodes[key].model_copy(update=error)}
    lists = {"owed": (), "missing": (), state_: (key,)}
    return replace(arm, episodes=episodes, owed=lists["owed"], missing=lists["missing"])


def test_a_success_needs_no_retry(group: triage.Group, arm: RolloutSet) -> None:
    found = triage.classify(group, rewarded(arm, 1, 0), SIZE)
    assert (found.classification, found.successes, found.rewards) == ("scored_success", 1, (1.0, 0.0))
    assert triage.plan_retries([found], {}, SKILL) == []
    assert triage.settle(found, None, SKILL) == found


def test_a_group_with_an_error_never_triggers(group: triage.Group, arm: RolloutSet) -> None:
    found = triage.classify(group, without(rewarded(arm, 0, 0), "missing"), SIZE)
    assert (found.classification, found.rewards) == ("technical_error", (0.0, None))
    assert triage.plan_retries([found], {}, SKILL) == []
    assert triage.settle(found, None, SKILL).verdict is None


def test_an_incomplete_group_never_triggers(group: triage.Group, arm: RolloutSet) -> None:
    owed = triage.classify(group, without(rewarded(arm, 0, 0), "owed"), SIZE)
    short = triage.classify(group, rewarded(arm, 0, 0), SIZE + 1)
    assert [found.classification for found in (owed, short)] == ["incomplete"] * 2
    assert triage.plan_retries([owed, short], {}, SKILL) == []


def test_a_group_with_two_treatments_is_refused(group: triage.Group, arm: RolloutSet) -> None:
    *_, key = arm.planned
    other = arm.episodes[key].model_copy(update={"treatment_sha256": protocol.BARE.sha256})
    with pytest.raises(DesignError, match="more than one treatment"):
        triage.classify(group, replace(arm, episodes={**arm.episodes, key: other}), SIZE)


def test_a_group_of_two_checkpoints_is_refused(group: triage.Group, arm: RolloutSet) -> None:
    *_, key = arm.planned
    model = arm.episodes[key].model.model_copy(update={"checkpoint": "another"})
    mixed = replace(arm, episodes={**arm.episodes, key: arm.episodes[key].model_copy(update={"model": model})})
    with pytest.raises(DesignError, match="more than one checkpoint"):
        triage.classify(group, mixed, SIZE)


def test_all_wrong_gets_one_retry_with_the_whole_skill(
    bench: Bench, group: triage.Group, arm: RolloutSet, retry: RolloutSet
) -> None:
    found = triage.classify(group, rewarded(arm, 0, 0), SIZE)
    assert found.classification == "all_wrong"
    (planned,) = triage.plan_retries([found], {task.task_id: task for task in bench.tasks("train")}, SKILL)
    assert (planned.arm, planned.sample, planned.keep_pages) == ("retry:0:0", 0, True)
    assert tuple(hint.id for hint in planned.treatment.hints) == SKILL.ids
    (episode,) = retry.scored
    assert episode.model == arm.scored[0].model
    assert all(step.observation for step in episode.steps)


@pytest.mark.parametrize(("success", "verdict"), [(1, "model_internalization_deficit"), (0, "pending_analysis")])
def test_the_retry_decides(group: triage.Group, arm: RolloutSet, retry: RolloutSet, success: int, verdict: str) -> None:
    failed = triage.classify(group, rewarded(arm, 0, 0), SIZE)
    settled = triage.settle(failed, rewarded(retry, success), SKILL)
    assert settled.verdict == verdict
    assert settled.retry is not None
    assert settled.retry.success == bool(success)
    assert settled.rewards == failed.rewards


def test_a_retry_that_is_missing_is_owed(group: triage.Group, arm: RolloutSet, retry: RolloutSet) -> None:
    failed = triage.classify(group, rewarded(arm, 0, 0), SIZE)
    for missing in (None, without(retry, "missing"), replace(retry, episodes={}, owed=retry.planned)):
        settled = triage.settle(failed, missing, SKILL)
        assert settled.verdict == "retry_owed"
        assert settled.retry is not None
        assert settled.retry.success is None


def test_a_retry_with_a_part_of_the_skill_is_refused(group: triage.Group, arm: RolloutSet, retry: RolloutSet) -> None:
    failed = triage.classify(group, rewarded(arm, 0, 0), SIZE)
    (key,) = retry.planned
    masked = retry.episodes[key].model_copy(update={"treatment_sha256": protocol.BARE.sha256})
    with pytest.raises(DesignError, match="the retry was shown"):
        triage.settle(failed, replace(retry, episodes={key: masked}), SKILL)


def test_an_empty_skill_is_retried_bare(bench: Bench, group: triage.Group, arm: RolloutSet) -> None:
    failed = triage.classify(group, rewarded(arm, 0, 0), SIZE)
    (planned,) = triage.plan_retries([failed], {task.task_id: task for task in bench.tasks("train")}, EMPTY)
    assert planned.treatment.sha256 == protocol.BARE.sha256
    (drawn,) = triage.draw_groups(bench.tasks("train")[:1], EMPTY, state(EMPTY, q=0))
    assert (drawn.mode, drawn.chunk_ids) == ("assisted_empty", ())


def test_low_frontiers_are_reported_and_change_nothing(group: triage.Group, arm: RolloutSet) -> None:
    low = triage.classify(group, rewarded(arm, 0, 0), SIZE)
    spread = {
        key: scored(episode, 0, reward) for (key, episode), reward in zip(arm.episodes.items(), (0, 0.5), strict=True)
    }
    wide = triage.classify(group, replace(arm, episodes=spread), SIZE)
    assert (low.low_frontier, wide.low_frontier) == (True, False)
    assert low.classification == wide.classification == "all_wrong"


def test_q_and_rho_are_honoured(bench: Bench) -> None:
    tasks = bench.tasks("train")
    bare = triage.draw_groups(tasks, SKILL, state(q=1))
    whole = triage.draw_groups(tasks, SKILL, state(q=0, rho=1))
    none = triage.draw_groups(tasks, SKILL, state(q=0, rho=0))
    assert {group.mode for group in bare} == {"skill_free"}
    assert {group.chunk_ids for group in whole} == {SKILL.ids}
    assert {(group.mode, group.treatment_sha256) for group in none} == {("assisted_empty", protocol.BARE.sha256)}


def test_a_curriculum_of_another_skill_is_refused(bench: Bench) -> None:
    other = SKILL.model_copy(update={"chunks": (SKILL.chunks[0].model_copy(update={"text": "new"}), SKILL.chunks[1])})
    with pytest.raises(DesignError, match="texts differ"):
        triage.draw_groups(bench.tasks("train"), other, state())


@given(order=st.permutations(range(12)), number=st.integers(0, 5), n_groups=st.integers(1, 12))
def test_tasks_do_not_depend_on_their_order(order: list[int], number: int, n_groups: int) -> None:
    tasks = [_task(place) for place in range(12)]
    shuffled = [tasks[place] for place in order]
    chosen = triage.choose_tasks(tasks, number, n_groups, 3)
    assert triage.choose_tasks(shuffled, number, n_groups, 3) == chosen
    assert len({task.task_id for task in chosen}) == n_groups


def test_rounds_take_other_tasks_while_there_are_enough() -> None:
    tasks = [_task(place) for place in range(12)]
    rounds = [{task.task_id for task in triage.choose_tasks(tasks, number, 5, 0)} for number in range(3)]
    assert not rounds[0] & rounds[1]
    assert rounds[2] >= {task.task_id for task in tasks} - rounds[0] - rounds[1]


def test_more_groups_than_tasks_are_refused() -> None:
    with pytest.raises(ParameterError, match="13 groups are asked for, there are 12"):
        triage.choose_tasks([_task(place) for place in range(12)], 0, 13, 0)


def _task(place: int) -> Task:
    return Task(
        task_id=str(place),
        split="train",
        instruction="x",
        instruction_simple=None,
        persona=None,
        attributes=("a",),
        options=(),
        price_upper=None,
        gold_asin="g",
        category="c",
    )
