import csv
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import stats

from shopskill_lib.errors import DesignError, OutputError
from shopskill_lib.masks import Assignments, Slot, assign, draw_state, freeze, report

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
