import json
import re
from pathlib import Path
from typing import Any

import pytest
from conftest import FACTORS, GateWriter, Writer, gate_rows, to_csv, write_interventions

from shopskill_lib.errors import InputError, MissingError
from shopskill_lib.observations import read_observations
from shopskill_lib.sources import INCLUDED, read_columns, read_interventions


@pytest.mark.parametrize(
    ("item", "message"),
    [
        ({"intervention_id": ""}, "intervention 1: intervention_id is ''"),
        ({"intervention_id": "a", "kind": "new"}, "kind is 'new'"),
        ({"intervention_id": "a", "operation": "DELETE"}, r"operation is 'DELETE'. Allowed: ADD, REWRITE or null"),
        ({"intervention_id": "a", "order": "1"}, "order is '1'"),
        ({"intervention_id": "a", "logical_chunk_id": 3}, "logical_chunk_id is 3"),
    ],
)
def test_a_bad_intervention_is_refused(write: Writer, item: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        read_interventions(write_interventions(write, item))


def test_interventions_that_contradict_each_other_are_refused(write: Writer) -> None:
    one, other = {"intervention_id": "a"}, {"intervention_id": "b", "logical_chunk_id": "a"}
    with pytest.raises(InputError, match="intervention_id 'a' appears twice"):
        read_interventions(write_interventions(write, one, one))
    with pytest.raises(InputError, match=r"slot 'a' has 2 texts in force \(a, b\)"):
        read_interventions(write_interventions(write, one, other))
    with pytest.raises(InputError, match="no list of interventions"):
        read_interventions(write("[]", "interventions.json"))


BAD_FILES: dict[str, tuple[str | bytes, str]] = {
    "empty": (b"", "the file is empty"),
    "blank": (b" \n\n", "the file is empty"),
    "byte order mark alone": (b"\xef\xbb\xbf", "the file is empty"),
    "commas alone": (",,,\n,,,\n", "the file is empty"),
    "binary": (b"\x89PNG\0\1\2", "the file is binary, not text"),
    "GBK": ("task_id,核对,reward,bare_reward\n1,1,1,0\n".encode("gbk"), r"byte 9 is not UTF-8.*save the file again as"),
    "header alone": ("task_id,a,reward,bare_reward\n", "there is a header and no row"),
    "ragged": ("task_id,a,reward,bare_reward\n1,1,1,0\n2,1,1\n", r"line 3: the row has 3 cells, the header 4"),
    "open quote": ('task_id,a,reward,bare_reward\n"1,1,1,0\n', "line 2: the line cannot be split into cells"),
    "column twice": ("task_id,a,a,reward,bare_reward\n1,1,1,1,0\n", "column 'a' appears twice"),
    "column without a name": ("task_id,,reward,bare_reward\n1,1,1,0\n", "a column has no name"),
    "torn JSON": ('{"contributions": [', "line 1: this is not JSON"),
    "number without end": ('{"a": ' + "1" * 5000 + "}", "this is not JSON"),
    "deep JSON": ("[" * 100_000, "this is not JSON"),
    "another JSON": ('{"a": 1}', "no `observations_table` with rows"),
}


@pytest.mark.parametrize("case", BAD_FILES)
def test_a_file_of_another_form_is_refused(write: Writer, case: str) -> None:
    content, message = BAD_FILES[case]
    with pytest.raises(InputError, match=message):
        read_observations(write(content))


def test_a_directory_a_missing_file_and_an_unreadable_one_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="this is a directory"):
        read_observations(tmp_path)
    with pytest.raises(InputError, match="there is no such file"):
        read_observations(tmp_path / "none.csv")
    with pytest.raises(InputError, match="the file cannot be read"):
        read_observations(tmp_path / "none.csv" / "\0")


def test_a_line_of_50_megabytes_is_refused_before_it_is_split(write: Writer) -> None:
    path = write("task_id,mask,reward,bare_reward\n1," + "1" * 50_000_000 + ",1,0\n")
    with pytest.raises(InputError, match="line 2: a line has 500000"):
        read_observations(path)


@pytest.mark.parametrize(
    ("content", "noted"),
    [
        (to_csv(gate_rows(100, FACTORS)).encode("utf-8-sig"), 0),
        (to_csv(gate_rows(100, FACTORS)).replace("\n", "\r\n").encode(), 0),
        (to_csv(gate_rows(100, FACTORS), ";").encode(), 1),
        (to_csv(gate_rows(100, FACTORS), "\t").encode(), 1),
        (re.sub("([,\n])", r" \1", to_csv(gate_rows(100, FACTORS))).encode(), 0),
    ],
    ids=["byte order mark", "carriage returns", "semicolons", "tabs", "blanks"],
)
def test_other_ways_to_write_the_same_table_are_fine(write: Writer, content: bytes, noted: int) -> None:
    plain = read_observations(write(to_csv(gate_rows(100, FACTORS)), "plain.csv"))
    other = read_observations(write(content, "other.csv"))
    assert other.to_frame().equals(plain.to_frame())
    assert other.factors == FACTORS
    assert sum("was read with" in note for note in other.notes) == noted


def contributions(rows: list[dict[str, Any]], **more: Any) -> str:
    named = [{"chunk_id": factor, "draft_order": order} for order, factor in enumerate(FACTORS, 1)]
    return json.dumps({"contributions": named, "observations_table": rows} | more, ensure_ascii=False)


def table_row(row: dict[str, str], mask: str, arms: str) -> dict[str, Any]:
    """One row of a contributions.json, with the mask and the arms in one of the accepted forms."""
    bits = [int(row[factor]) for factor in FACTORS]
    masked, bare = float(row["reward"]), float(row["bare_reward"])
    masks: dict[str, dict[str, Any]] = {
        "bits": {"mask": bits},
        "string": {"mask": "".join(map(str, bits))},
        "object": {"mask": {factor: bit for factor, bit in zip(FACTORS, bits, strict=True) if bit}},
        "included": {"included_chunk_ids": [factor for factor, bit in zip(FACTORS, bits, strict=True) if bit]},
    }
    masks |= {name: {name: masks["included"]["included_chunk_ids"]} for name in INCLUDED[1:]}
    rewards: dict[str, dict[str, Any]] = {
        "prefix": {"reward": masked, "bare_reward": bare, "delta_reward": masked - bare},
        "both prefixes": {"masked_reward": masked, "bare_reward": bare},
        "suffix": {"reward_masked": masked, "reward_bare": bare, "reward_delta": masked - bare},
        "nested": {"masked": {"reward": masked}, "bare": {"reward": bare}, "delta": {"reward": masked - bare}},
        "inside out": {"rewards": {"masked": masked, "bare": bare, "delta": masked - bare}},
        "baseline": {"reward": masked, "baseline_reward": bare, "differences": {"reward": masked - bare}},
        "diff": {"reward": masked, "bare_baseline": {"reward": bare}, "diff": {"reward": masked - bare}},
    }
    return {"task_id": row["task_id"], "sample_id": 0} | masks[mask] | rewards[arms]


@pytest.mark.parametrize("mask", ["bits", "string", "object", "included", *INCLUDED[1:]])
@pytest.mark.parametrize("arms", ["prefix", "both prefixes", "suffix", "nested", "inside out", "baseline", "diff"])
def test_contributions_json_is_the_same_gate_in_every_form(
    write: Writer, gate_csv: GateWriter, mask: str, arms: str
) -> None:
    table = [table_row(row, mask, arms) for row in gate_rows(100, FACTORS)]
    found = read_observations(write(contributions(table, active_skill_budget=3), "contributions.json"))
    assert found.to_frame().equals(read_observations(gate_csv()).to_frame())
    assert (found.factors, found.budget) == (FACTORS, 3)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"mask": {"other": 1}}, r"observations_table row 1: the mask is \"\{'other': 1\}\""),
        ({"mask": [0, 1, 2, 0]}, r"row 1: the mask is '\[0, 1, 2, 0\]'"),
        ({"bare": {"reward": 1.0}}, "row 1: bare_reward stands twice in the row"),
        ({"mask": []}, r"row 1: the mask is '\[\]'"),
        ({"task_id": ""}, "row 1 has no task_id"),
        ({"task_id": None}, "row 1: task_id is None"),
        ({"task_id": ["1"]}, r"row 1: task_id is \['1'\]"),
        ({"task_id": True}, "row 1: task_id is True"),
        ({"r_type": "1"}, "row 1: r_type is '1'"),
        ({"masked": {"r_type": [1]}}, r"row 1: masked.r_type is '\[1\]'"),
        ({"reward": 10**400}, "reward is '1000.* at task 0001"),
        ({"split": "test"}, "split is 'test' in some rows and '' in others"),
        ({"reward": float("nan")}, "reward is 'nan' at task 0001"),
    ],
)
def test_a_bad_contributions_row_is_refused(write: Writer, change: dict[str, Any], message: str) -> None:
    table = [table_row(row, "bits", "prefix") for row in gate_rows(100, FACTORS)]
    table[0] |= change
    with pytest.raises(InputError, match=message):
        read_observations(write(contributions(table), "contributions.json"))


def test_outcomes_stand_in_the_order_of_the_document_reward_first(write: Writer) -> None:
    rows = gate_rows(100, FACTORS)
    arms = [{arm: {"r_type": 1, "r_att": 0.5, "reward": 0.5, "r_price": 1} for arm in ("masked", "bare")}] * 100
    table = [{"task_id": row["task_id"], "mask": table_row(row, "bits", "prefix")["mask"]} | arms[0] for row in rows]
    found = read_observations(write(contributions(table), "contributions.json"))
    assert list(found.masked) == ["reward", "r_type", "r_att", "r_price"]


@pytest.mark.parametrize("mask", ["bits", "string"])
def test_masks_by_place_beside_contributions_sorted_by_rank_are_refused(write: Writer, mask: str) -> None:
    """The published order: each factor's rank tells where its row stands, its draft_order where its bit stands."""
    by_rank = [{"chunk_id": factor, "draft_order": order} for factor, order in zip(FACTORS, (2, 1, 3, 4), strict=True)]
    table = [table_row(row, mask, "prefix") for row in gate_rows(100, FACTORS)]
    with pytest.raises(InputError, match=r"masks are bits by place, but variant \(order 1\) stands after search"):
        read_observations(write(contributions(table, contributions=by_rank), "contributions.json"))
    for named in ("object", "included"):
        table = [table_row(row, named, "prefix") for row in gate_rows(100, FACTORS)]
        found = read_observations(write(contributions(table, contributions=by_rank), "contributions.json"))
        assert len(found.task_ids) == 100


def test_M20_pairs_that_a_document_left_out_are_missing(write: Writer) -> None:
    table = [table_row(row, "bits", "prefix") for row in gate_rows(100, FACTORS)]
    for more in ({"dropped_episode_ids": ["e-7", "e-9"]}, {"requested_observations": 102}):
        path = write(contributions(table, observations=100, **more), "contributions.json")
        for share in (0.0, 0.019):
            with pytest.raises(MissingError, match="2 pairs were left out of the file"):
                read_observations(path, max_missing=share)
        found = read_observations(path, max_missing=0.02)
        assert "they carry no mask, so whether they are missing at random could not be tested" in found.notes[0]
        assert ("e-7, e-9" in found.notes[0]) is ("dropped_episode_ids" in more)
    table[3]["reward"] = None
    path = write(contributions(table, dropped_episode_ids=["e-7"]), "contributions.json")
    with pytest.raises(MissingError, match=r"1 pairs were left out of the file \(e-7\) and 1 in it are incomplete"):
        read_observations(path, max_missing=0.015)
    assert read_observations(path, max_missing=0.02).missing is not None


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"observations": 99}, "observations is 99, and observations_table has 100 rows"),
        ({"observations": "100"}, "observations is '100'"),
        ({"dropped_episode_ids": "e-7"}, "dropped_episode_ids is 'e-7'"),
        ({"active_skill_budget": "3"}, "active_skill_budget is '3'"),
    ],
)
def test_counts_that_contradict_the_table_are_refused(write: Writer, more: dict[str, Any], message: str) -> None:
    table = [table_row(row, "bits", "prefix") for row in gate_rows(100, FACTORS)]
    with pytest.raises(InputError, match=message):
        read_observations(write(contributions(table, **more), "contributions.json"))


def test_columns_of_a_file_are_text(write: Writer) -> None:
    found = read_columns(write("task_id,mask,reward,bare_reward\n007,0010,1.50,0\n"))
    assert found.cells == {"task_id": ["007"], "mask": ["0010"], "reward": ["1.50"], "bare_reward": ["0"]}
