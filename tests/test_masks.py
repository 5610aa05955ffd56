import csv
import json
import os
import subprocess
import sys
from collections import Counter
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import stats

from shopskill_lib import optimal
from shopskill_lib.errors import DesignError, OutputError
from shopskill_lib.masks import Assignments, Design, Slot, assign, draw_state, fewest_tasks, freeze, report, round_robin

SEED = 20260901
ONE = Slot("a", ("a",))
TWO = Slot("b", ("old", "new"))
THREE = Slot("c", ("v1", "v2", "v3"))


def rows_of(drawn: Assignments) -> list[tuple[str, int, list[int]]]:
    return list(zip(drawn.task_ids, drawn.samples, drawn.masks.tolist(), strict=True))


def test_the_400_published_masks_come_out_exactly(shared: Path) -> None:
    folder = shared / "data" / "published_gates"
    rows = list(csv.DictReader((folder / "round_000.csv").read_text().splitlines()))
    versions: dict[str, list[str]] = {}
    for item in json.loads((folder / "round_000_expected.json").read_text())["interventions"]:
        versions.setdefault(item["logical_chunk_id"], []).append(item["intervention_id"])
    slots = [Slot(slot, tuple(ids)) for slot, ids in versions.items()]

    drawn = assign(SEED, "val", [row["task_id"] for row in rows], slots)

    assert len(rows) == 400
    assert ["".join(map(str, mask)) for mask in drawn.masks] == [row["mask"] for row in rows]


@pytest.mark.parametrize(
    ("slot_id", "one_version", "two_versions"), [("chunk-27a7e5bb9344", 1, 2), ("chunk-a9e98e128a35", 1, 0)]
)
def test_reference_vectors(slot_id: str, one_version: int, two_versions: int) -> None:
    assert draw_state(SEED, "val", "1828", 0, Slot(slot_id, ("x",))) == one_version
    assert draw_state(SEED, "val", "1828", 0, Slot(slot_id, ("x", "y"))) == two_versions


@pytest.mark.parametrize(
    "other",
    [(SEED + 1, "val", "1828", 0), (SEED, "test", "1828", 0), (SEED, "val", "1829", 0), (SEED, "val", "1828", 1)],
)
def test_every_part_of_the_key_matters(other: tuple[int, str, str, int]) -> None:
    slots = [Slot(f"slot-{number}", tuple("vw")) for number in range(40)]
    assert [draw_state(SEED, "val", "1828", 0, slot) for slot in slots] != [draw_state(*other, slot) for slot in slots]


@given(st.permutations([f"task {number}" for number in range(8)]), st.integers(1, 3))
def test_order_of_tasks_changes_only_the_order_of_rows(task_ids: list[str], samples: int) -> None:
    in_order = assign(1, "val", sorted(task_ids), [ONE, TWO], samples)
    shuffled = assign(1, "val", task_ids, [ONE, TWO], samples)
    assert shuffled.task_ids == tuple(task_id for task_id in task_ids for _ in range(samples))
    assert sorted(rows_of(shuffled)) == rows_of(in_order)


@given(st.integers(0, 2**32), st.lists(st.integers(1, 4), min_size=1, max_size=5))
def test_I09_versions_of_a_slot_never_meet(seed: int, sizes: list[int]) -> None:
    slots = [Slot(f"s{j}", tuple(f"s{j}v{k}" for k in range(size))) for j, size in enumerate(sizes)]
    drawn = assign(seed, "val", [str(number) for number in range(30)], slots)
    owner = np.repeat(np.arange(len(slots)), sizes)
    for j in range(len(slots)):
        assert drawn.masks[:, owner == j].sum(axis=1).max() <= 1
    assert len(drawn.factors) == drawn.masks.shape[1] == sum(sizes)


@pytest.mark.parametrize("slot", [ONE, TWO, THREE])
def test_states_of_a_slot_are_equally_likely(slot: Slot) -> None:
    states = assign(7, "val", [str(number) for number in range(6000)], [slot]).states[:, 0]
    share = 1 / (len(slot.versions) + 1)
    low, high = stats.binom.ppf([1e-4, 1 - 1e-4], 6000, share)
    counts = np.bincount(states)
    assert len(counts) == len(slot.versions) + 1
    assert ((counts >= low) & (counts <= high)).all()


def test_slots_are_drawn_alone() -> None:
    tasks = [str(number) for number in range(200)]
    together = assign(7, "val", tasks, [ONE, TWO, THREE])
    alone = assign(7, "val", tasks, [THREE])
    assert (together.states[:, 2] == alone.states[:, 0]).all()


def test_I21_all_zero_masks_are_kept() -> None:
    drawn = assign(7, "val", [str(number) for number in range(200)], [ONE, TWO])
    assert len(drawn.masks) == 200
    assert (drawn.masks.sum(axis=1) == 0).any()


def test_freeze_writes_once_and_accepts_the_same_again(tmp_path: Path) -> None:
    path = tmp_path / "masks.csv"
    drawn = assign(7, "val", ["1", "2"], [ONE, TWO])
    digest = freeze(drawn, path)
    written = path.read_text()
    assert written.splitlines()[0] == "mask_seed,split,task_id,sample,a,old,new"
    assert written.splitlines()[1].startswith("7,val,1,0,")
    assert freeze(drawn, path) == digest
    assert path.read_text() == written


def test_freeze_refuses_other_masks_and_keeps_the_file(tmp_path: Path) -> None:
    path = tmp_path / "masks.csv"
    freeze(assign(7, "val", ["1", "2"], [ONE, TWO]), path)
    written = path.read_bytes()
    with pytest.raises(DesignError, match="frozen masks differ"):
        freeze(assign(8, "val", ["1", "2"], [ONE, TWO]), path)
    assert path.read_bytes() == written


def test_freeze_says_where_it_cannot_write(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match=r"no_such_folder.*choose another run folder"):
        freeze(assign(7, "val", ["1"], [ONE]), tmp_path / "no_such_folder" / "masks.csv")


def slots_of(*versions: int) -> list[Slot]:
    return [Slot(f"s{j}", tuple(f"s{j}v{k}" for k in range(count))) for j, count in enumerate(versions)]


def numbered(count: int) -> list[str]:
    return [str(number) for number in range(count)]


def test_balanced_masks_of_whole_blocks_are_orthogonal_pairs_of_opposites() -> None:
    drawn = assign(3, "val", numbered(48), slots_of(*[1] * 13), 2, "balanced")
    first, second = drawn.masks[0::2], drawn.masks[1::2]
    assert (first + second == 1).all()
    signs = 2 * first - 1
    assert np.array_equal(signs.T @ signs, 48 * np.eye(13, dtype=np.int64))
    assert report(drawn.masks, drawn.slots).largest_correlation == 0.0


def test_balanced_masks_show_every_state_alike_and_each_couple_of_a_slot_s_states_to_a_block() -> None:
    slots = slots_of(1, 2, 3)  # blocks of 4 tasks; 3 and 6 couples
    drawn = assign(3, "val", numbered(24), slots, 2, "balanced")
    assert drawn.masks.sum(axis=0).tolist() == [24, 16, 16, 12, 12, 12]
    first, second = drawn.states[0::2], drawn.states[1::2]
    for j, couples in ((1, {(0, 1), (0, 2), (1, 2)}), (2, set(combinations(range(4), 2)))):
        shown = [tuple(sorted(pair)) for pair in zip(first[:, j].tolist(), second[:, j].tolist(), strict=True)]
        assert Counter(shown) == {couple: 24 // len(couples) for couple in couples}
    signs = 2 * first[:, 0] - 1
    for one, other in combinations(range(3), 2):  # the chunk goes with either state of a couple equally often
        turns = (first[:, 1] == one) & (second[:, 1] == other), (first[:, 1] == other) & (second[:, 1] == one)
        assert signs[turns[0]].sum() == signs[turns[1]].sum()


def test_four_states_come_up_in_four_samples_of_every_task() -> None:
    states = assign(3, "val", numbered(12), slots_of(3, 1), 4, "balanced").states[:, 0].reshape(12, 4)
    assert (np.sort(states, axis=1) == np.arange(4)).all()


def test_every_state_of_balanced_masks_is_equally_likely_for_every_task_and_sample() -> None:
    slots, tasks = slots_of(1, 2, 3), numbered(13)  # the last block is not whole
    drawn = np.array([assign(seed, "val", tasks, slots, 2, "balanced").states for seed in range(1500)])
    for j, states in enumerate((2, 3, 4)):
        for row in (0, 1, 14, 25):
            assert stats.chisquare(np.bincount(drawn[:, row, j], minlength=states)).pvalue > 1e-4


def test_a_task_s_balanced_mask_does_not_follow_from_its_neighbours() -> None:
    slots, tasks = slots_of(*[1] * 8), numbered(64)
    drawn = np.array([assign(seed, "val", tasks, slots, 2, "balanced").masks[0::2] for seed in range(400)])
    signs = (2 * drawn - 1).reshape(400, -1)
    task = np.repeat(np.arange(64), 8)
    own = signs[:, task == 30]
    correlation = own.T @ signs[:, np.isin(task, [29, 31])] / 400
    assert np.abs(correlation).max() < 4.5 / 400**0.5


def test_balanced_masks_depend_on_seed_split_tasks_and_slots_but_not_on_their_order() -> None:
    slots, tasks = slots_of(1, 1, 2), numbered(20)
    drawn = assign(1, "val", tasks, slots, 2, "balanced")
    turned = assign(1, "val", tasks[::-1], slots[::-1], 2, "balanced")
    assert np.array_equal(turned.states.reshape(20, 2, 3)[::-1, :, ::-1], drawn.states.reshape(20, 2, 3))
    for other in (
        assign(2, "val", tasks, slots, 2, "balanced"),
        assign(1, "test", tasks, slots, 2, "balanced"),
        assign(1, "val", [*tasks[1:], "new"], slots, 2, "balanced"),
        assign(1, "val", tasks, [*slots[:2], Slot("other", slots[2].versions)], 2, "balanced"),
    ):
        assert not np.array_equal(other.states, drawn.states)


def test_too_few_tasks_for_balanced_masks_are_refused_and_the_fewest_link_all_states() -> None:
    slots = slots_of(*[1] * 9, 4)
    fewest = fewest_tasks("balanced", [len(slot.versions) for slot in slots], 2)
    assert fewest == 64
    with pytest.raises(DesignError, match=r"63 tasks for balanced masks of 10 slots.*at least 64 tasks"):
        assign(0, "val", numbered(63), slots, 2, "balanced")
    for seed in range(20):
        health = report(assign(seed, "val", numbered(64), slots, 2, "balanced").masks, slots)
        assert health.never_shown == ()
        assert health.aliased == ()
        assert health.rank == 13


@given(st.integers(2, 9))
def test_a_round_robin_plays_every_couple_once_and_soon_links_all(count: int) -> None:
    played = round_robin(count)
    assert Counter(map(frozenset, played)) == Counter(map(frozenset, combinations(range(count), 2)))
    linked = {0}
    for _ in range(count):
        linked |= {state for couple in played[: count - 1] if linked & set(couple) for state in couple}
    assert linked == set(range(count))


def test_frozen_balanced_masks_are_refused_with_one_task_more(tmp_path: Path) -> None:
    path, slots = tmp_path / "masks.csv", slots_of(1, 1)
    freeze(assign(7, "val", numbered(20), slots, 2, "balanced"), path)
    with pytest.raises(DesignError, match="mask_design, masked_samples, tasks and draft"):
        freeze(assign(7, "val", numbered(21), slots, 2, "balanced"), path)


def log_determinant(drawn: Assignments, samples: int) -> float:
    """By hand: covariance of least squares with a constant, rows of a task sharing a bare run as noisy as they are."""
    X = np.column_stack([drawn.masks, np.ones(len(drawn.masks))])
    noise = np.eye(len(X)) + np.kron(np.eye(len(X) // samples), np.ones((samples, samples)))
    inverse = np.linalg.inv(X.T @ X)
    return float(np.linalg.slogdet(inverse @ X.T @ noise @ X @ inverse)[1])


@pytest.mark.parametrize(
    ("versions", "tasks", "samples", "other", "at_least"),
    [
        ((1,) * 12, 60, 1, "independent", 1.0),
        ((1,) * 6 + (2, 2), 50, 3, "independent", 3.0),
        ((1, 1, 2, 2), 40, 2, "balanced", 0.1),
        ((2,) * 6, 50, 2, "balanced", 0.1),
    ],
)
def test_d_optimal_masks_have_a_smaller_determinant(
    versions: tuple[int, ...], tasks: int, samples: int, other: Design, at_least: float
) -> None:
    slots = slots_of(*versions)
    for seed in range(3):
        drawn, usual = (assign(seed, "val", numbered(tasks), slots, samples, name) for name in ("d_optimal", other))
        assert log_determinant(drawn, samples) < log_determinant(usual, samples) - at_least
        health = report(drawn.masks, slots)
        assert (health.aliased, health.never_shown, health.absent_missing) == ((), (), ())


@given(
    st.integers(0, 2**31),
    st.lists(st.integers(1, 3), min_size=1, max_size=4),
    st.integers(10, 30),
    st.integers(1, 3),
)
@settings(max_examples=25, deadline=None)
def test_exchanges_keep_how_often_states_come_up_and_never_enlarge_the_determinant(
    seed: int, versions: list[int], tasks: int, samples: int
) -> None:
    rng = np.random.default_rng(seed)
    states = np.stack([rng.integers(0, count + 1, (tasks, samples)) for count in versions], axis=2)
    better = optimal.exchange(states, versions, str(seed))
    assert better.shape == states.shape
    for column, count in enumerate(versions):
        before, after = (np.bincount(found[..., column].ravel(), minlength=count + 1) for found in (states, better))
        assert before.tolist() == after.tolist()
    drawn, exchanged = (
        assign_as(found.reshape(tasks * samples, -1), slots_of(*versions)) for found in (states, better)
    )
    full = np.linalg.matrix_rank(np.column_stack([drawn.masks, np.ones(len(drawn.masks))])) == sum(versions) + 1
    assert not full or log_determinant(exchanged, samples) <= log_determinant(drawn, samples) + 1e-9


def assign_as(states: NDArray[np.int64], slots: list[Slot]) -> Assignments:
    rows = len(states)
    return Assignments(0, "val", tuple(numbered(rows)), (0,) * rows, tuple(slots), states)


def test_every_state_of_d_optimal_masks_is_equally_likely_for_every_task_and_sample() -> None:
    slots, tasks = slots_of(1, 2), numbered(7)
    drawn = np.array([assign(seed, "val", tasks, slots, 3, "d_optimal").states for seed in range(150)])
    for j, states in enumerate((2, 3)):
        for row in (0, 1, 2, 9, 20):
            assert stats.chisquare(np.bincount(drawn[:, row, j], minlength=states)).pvalue > 1e-4


def test_d_optimal_masks_show_every_state_alike() -> None:
    drawn = assign(3, "val", numbered(48), slots_of(1, 1, 2), 3, "d_optimal")
    counts = [np.bincount(drawn.states[:, j], minlength=count + 1).tolist() for j, count in enumerate((1, 1, 2))]
    assert counts == [[72, 72], [72, 72], [48, 48, 48]]


@given(st.permutations(numbered(14)))
@settings(max_examples=10, deadline=None)
def test_d_optimal_masks_depend_on_seed_split_tasks_and_slots_but_not_on_the_order_of_tasks(tasks: list[str]) -> None:
    slots = slots_of(1, 1, 2)
    drawn, turned = (assign(1, "val", names, slots, 3, "d_optimal") for names in (numbered(14), tasks))
    assert sorted(rows_of(drawn)) == sorted(rows_of(turned))
    for other in (
        assign(2, "val", numbered(14), slots, 3, "d_optimal"),
        assign(1, "test", numbered(14), slots, 3, "d_optimal"),
        assign(1, "val", [*numbered(13), "new"], slots, 3, "d_optimal"),
        assign(1, "val", numbered(14), [*slots[:2], Slot("other", slots[2].versions)], 3, "d_optimal"),
    ):
        assert not np.array_equal(other.states, drawn.states)


def test_d_optimal_masks_are_the_same_in_another_process_and_under_many_threads() -> None:
    code = (
        "from shopskill_lib.masks import Slot, assign;"
        "slots = [Slot(f's{j}', tuple(f's{j}v{k}' for k in range(1 + j % 2))) for j in range(10)];"
        "print(assign(5, 'val', [str(n) for n in range(60)], slots, 1, 'd_optimal').to_csv())"
    )
    found = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "OPENBLAS_NUM_THREADS": threads, "PYTHONHASHSEED": threads},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for threads in ("1", "4")
    }
    assert len(found) == 1
    assert found.pop().count("\n") == 62


def test_too_few_tasks_for_d_optimal_masks_are_refused() -> None:
    slots = slots_of(*[1] * 8)
    assert fewest_tasks("d_optimal", (1,) * 8, 1) == 10
    assert fewest_tasks("d_optimal", (1,) * 8, 2) == 8  # a whole block
    with pytest.raises(DesignError, match=r"9 tasks for d_optimal masks of 8 slots.*at least 10 tasks"):
        assign(0, "val", numbered(9), slots, 1, "d_optimal")
    for seed in range(20):
        assert report(assign(seed, "val", numbered(10), slots, 1, "d_optimal").masks, slots).rank == 8


def columns(*texts: str) -> NDArray[np.int64]:
    """Masks whose columns are these bit strings."""
    return np.array([[int(bit) for bit in text] for text in texts], dtype=np.int64).T


def test_report_of_a_sound_design() -> None:
    health = report(columns("110000", "001100", "101010"), [TWO, ONE])
    assert health.factors == ("old", "new", "a")
    assert health.exposure.tolist() == [2, 2, 3]
    assert health.nominal.tolist() == [2.0, 2.0, 3.0]
    assert health.mean_shown == 7 / 6
    assert health.rank == 3
    assert health.never_shown == health.absent_missing == ()
    assert health.aliased == ()
    singular = np.linalg.svd(columns("110000", "001100", "101010"), compute_uv=False)
    assert health.condition == pytest.approx(singular[0] / singular[-1], abs=1e-12)


def test_report_leaves_the_versions_of_one_slot_out_of_the_correlation() -> None:
    assert report(columns("110000", "001100"), [TWO]).largest_correlation is None
    masks = columns("110000", "001100", "000111")
    expected = max(abs(stats.pearsonr(masks[:, 2], masks[:, k]).statistic) for k in (0, 1))
    assert report(masks, [TWO, ONE]).largest_correlation == pytest.approx(expected)


@pytest.mark.parametrize(
    ("masks", "aliased"),
    [
        (columns("110010", "110010", "010101"), ("x", "y")),  # copied
        (columns("110010", "111111", "010101"), ("y",)),  # constant: a shift between the arms
        (columns("100100", "010010", "110110"), ("x", "y", "z")),  # the third is the sum
        (columns("110010", "001101", "010101"), ("x", "y")),  # complements: together constant
    ],
)
def test_report_names_the_aliased_factors_and_no_other(masks: NDArray[np.int64], aliased: tuple[str, ...]) -> None:
    slots = [Slot(name, (name,)) for name in "xyz"]
    assert report(masks, slots).aliased == (aliased,)


def test_groups_that_share_no_dependence_are_named_apart() -> None:
    masks = columns("11001010", "10100110", "11001010", "00010011", "10100110", "00011101")
    slots = [Slot(name, (name,)) for name in "uvwxyz"]
    assert report(masks, slots).aliased == (("u", "w"), ("v", "y"))


def test_report_names_a_slot_that_no_row_leaves_out() -> None:
    health = report(columns("110010", "001101", "010101"), [TWO, ONE])
    assert health.absent_missing == ("b",)
    assert health.aliased == (("old", "new"),)
    assert health.rank == 3


def test_report_keeps_never_shown_factors_apart() -> None:
    health = report(columns("110010", "000000"), [Slot("x", ("x",)), Slot("y", ("y",))])
    assert health.never_shown == ("y",)
    assert health.aliased == ()
    assert health.rank == 1
    nothing = report(columns("0000"), [ONE])
    assert nothing.rank == 0
    assert nothing.condition == np.inf
