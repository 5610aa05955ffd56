from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import FACTORS, GateWriter, Writer, gate_rows, to_csv, with_mask_column, write_interventions
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shopskill_lib.errors import DesignError, InputError, ParameterError, ShopskillError
from shopskill_lib.gates import compare_paired, fit_gate, read_comparison, read_observations
from shopskill_lib.observations import Observations
from shopskill_lib.text import task_key

Rows = list[dict[str, str]]
Change = Callable[[Rows], object]


def put(row: int, column: str, cell: str) -> Change:
    """A change of one cell."""

    def change(rows: Rows) -> None:
        rows[row][column] = cell

    return change


def copy_column(source: str, target: str, flip: bool = False) -> Change:
    def change(rows: Rows) -> None:
        for row in rows:
            row[target] = str(1 - int(row[source])) if flip else row[source]

    return change


def set_column(column: str, cell: str) -> Change:
    def change(rows: Rows) -> None:
        for row in rows:
            row[column] = cell

    return change


def drop(column: str) -> Change:
    def change(rows: Rows) -> None:
        for row in rows:
            del row[column]

    return change


def component(row: int) -> Change:
    """Add r_strict columns equal to the reward, but for one row."""

    def change(rows: Rows) -> None:
        for number, cells in enumerate(rows):
            cells["r_strict"] = cells["reward"] if number != row else "0.5"
            cells["bare_r_strict"] = cells["bare_reward"]

    return change


BAD_CELLS: dict[str, tuple[Change, type[ShopskillError], str]] = {
    "nan": (put(2, "reward", "NaN"), InputError, r"reward is 'NaN' at task 0003"),
    "inf": (put(2, "bare_reward", "-inf"), InputError, r"bare_reward is '-inf' at task 0003"),
    "too large": (put(2, "reward", "1e101"), InputError, r"reward is '1e101' at task 0003.*at most 1e\+100"),
    "text": (put(2, "reward", "error"), InputError, r"column reward: reward is 'error' at task 0003"),
    "underscore": (put(2, "reward", "1_0"), InputError, r"reward is '1_0' at task 0003"),
    "decimal comma": (put(2, "reward", '"0,5"'), InputError, r"reward is '0,5' at task 0003"),
    "reward unlike r_strict": (component(4), InputError, r"reward is \d but r_strict is 0.5 at task 0005"),
    "r_strict missing": (
        lambda rows: (component(-1)(rows), put(3, "r_strict", "")(rows)),
        InputError,
        r"r_strict is empty while reward is there, at task 0004",
    ),
    "reward missing": (
        lambda rows: (component(-1)(rows), put(3, "reward", "")(rows)),
        InputError,
        r"reward is empty while r_strict is there, at task 0004",
    ),
    "invisible task": (put(2, "task_id", "\u200b"), InputError, r"column task_id: row 3 has no task_id"),
    "no task": (put(2, "task_id", ""), InputError, r"column task_id: row 3 has no task_id"),
    "same task": (put(2, "task_id", "0002"), InputError, r"line 4 and line 3, .*'0002' and task '0002' are the"),
    "same number": (put(2, "task_id", "2"), InputError, r"task '2' and task '0002' are the same task"),
    "same after trimming": (put(2, "task_id", '"2 "'), InputError, r"are the same task, sample 0"),
    "same in full width": (put(2, "task_id", "２"), InputError, r"are the same task, sample 0"),
    "no column task_id": (drop("task_id"), InputError, r"header: there is no column task_id; the columns are search"),
    "no bare reward": (drop("bare_reward"), InputError, r"column 'reward' has no partner 'bare_reward'"),
    "no masked reward": (drop("reward"), InputError, r"column 'bare_reward' has no partner 'reward'"),
    "no bare component": (set_column("r_type", "1"), InputError, r"column 'r_type' has no partner 'bare_r_type'"),
    "factor of 2": (put(2, "variant", "2"), InputError, r"column variant: variant is '2' at task 0003"),
    "factor empty": (put(2, "核对规格", ""), InputError, r"核对规格 is '' at task 0003"),
    "sample": (set_column("sample", "first"), InputError, r"column sample: sample is 'first' at task 0001"),
    "constant factor": (set_column("variant", "1"), DesignError, r"effects of variant cannot be told apart"),
    "copied factor": (copy_column("search", "核对规格"), DesignError, r"effects of search, 核对规格 cannot be told"),
    "complement": (copy_column("search", "budget", flip=True), DesignError, r"effects of search, budget cannot"),
    "nothing shown": (
        lambda rows: [set_column(factor, "0")(rows) for factor in FACTORS],
        DesignError,
        r"100 complete pairs for 0 factors that are shown",
    ),
}


@pytest.mark.parametrize("case", BAD_CELLS)
def test_a_bad_value_is_refused_by_task_and_column(gate_csv: GateWriter, case: str) -> None:
    change, error, message = BAD_CELLS[case]
    path = gate_csv(change=change)
    with pytest.raises(error, match=message) as refusal:
        read_observations(path)
    assert str(path) in str(refusal.value)
    assert "What to do: " in str(refusal.value)


def test_two_groups_of_aliased_factors_are_listed_apart(gate_csv: GateWriter) -> None:
    def change(rows: Rows) -> None:
        copy_column("search", "核对规格")(rows)
        copy_column("variant", "budget")(rows)

    with pytest.raises(DesignError, match="of search, 核对规格; apart from these, of variant, budget cannot be told"):
        read_observations(gate_csv(change=change))


def test_collinear_factors_are_all_named_and_no_other(gate_csv: GateWriter) -> None:
    def change(rows: Rows) -> None:
        for number, row in enumerate(rows):
            row["search"], row["variant"] = (("1", "0"), ("0", "1"), ("0", "0"))[number % 3]
            row["budget"] = str(int(row["search"]) + int(row["variant"]))

    with pytest.raises(DesignError, match="the effects of search, variant, budget cannot be told apart"):
        read_observations(gate_csv(change=change))


@pytest.mark.parametrize(
    ("mask", "message"),
    [
        ("110", r"mask '110' of task 0003 has 3 characters, not 4"),
        ("11001", r"mask '11001' of task 0003 has 5 characters, not 4"),
        ("1", r"mask '1' of task 0003 has 1 characters, not 4"),  # 0001 after a spreadsheet
        ("1x01", r"mask '1x01' of task 0003 holds other characters"),
        ("1.1E+03", r"mask '1.1E\+03' of task 0003 holds other characters"),
        ("", r"mask '' of task 0003 has 0 characters, not 4"),
    ],
)
def test_a_bad_mask_is_refused(write: Writer, mask: str, message: str) -> None:
    rows = with_mask_column(gate_rows(100, FACTORS), FACTORS)
    rows[2]["mask"] = mask
    with pytest.raises(InputError, match=message):
        read_observations(write(to_csv(rows)))


def test_a_bit_string_is_read_as_text_with_its_leading_zeros(write: Writer, gate_csv: GateWriter) -> None:
    rows = gate_rows(100, FACTORS)
    as_mask = read_observations(write(to_csv(with_mask_column(rows, FACTORS)), "mask.csv"))
    as_columns = read_observations(gate_csv())
    assert (as_mask.masks == as_columns.masks).all()
    assert as_columns.factors == FACTORS
    assert as_mask.factors == ("factor_01", "factor_02", "factor_03", "factor_04")
    assert any(row["mask"].startswith("00") for row in with_mask_column(rows, FACTORS))


OLD_AND_NEW = (
    {"intervention_id": "search", "logical_chunk_id": "search", "kind": "current"},
    {"intervention_id": "variant", "logical_chunk_id": "search", "kind": "candidate", "operation": "REWRITE"},
    {"intervention_id": "核对规格"},
    {"intervention_id": "budget"},
)


def test_I09_two_versions_of_a_slot_in_one_row_are_refused(gate_csv: GateWriter, write: Writer) -> None:
    def change(rows: Rows) -> None:
        copy_column("search", "variant", flip=True)(rows)
        rows[6]["search"] = rows[6]["variant"] = "1"

    path = gate_csv(change=change)
    with pytest.raises(DesignError, match="task 0007 shows several versions of slot 'search'"):
        read_observations(path, write_interventions(write, *OLD_AND_NEW))


def test_old_and_new_without_a_row_of_neither_are_named(gate_csv: GateWriter, write: Writer) -> None:
    path = gate_csv(change=copy_column("search", "variant", flip=True))
    with pytest.raises(DesignError, match=r"effects of search, variant cannot .*; no row leaves out search"):
        read_observations(path, write_interventions(write, *OLD_AND_NEW))


def test_a_column_that_the_interventions_do_not_name_is_refused(gate_csv: GateWriter, write: Writer) -> None:
    with pytest.raises(InputError, match="column 'budget' and the interventions do not match"):
        read_observations(gate_csv(), write_interventions(write, *OLD_AND_NEW[:3]))


def test_a_factor_with_the_name_of_a_descriptive_column_is_never_dropped_silently(
    write: Writer, gate_csv: GateWriter
) -> None:
    path = gate_csv(factors=("search", "persona"))
    with pytest.raises(InputError, match="column 'persona' describes a row by its name and holds only 0 and 1"):
        read_observations(path)
    named = write_interventions(write, {"intervention_id": "search"}, {"intervention_id": "persona"})
    assert read_observations(path, named).factors == ("search", "persona")
    described = read_observations(gate_csv(factors=("search", "variant"), change=set_column("persona", "picky")))
    assert described.factors == ("search", "variant")


def test_an_unknown_column_beside_a_mask_is_refused(write: Writer) -> None:
    rows = with_mask_column(gate_rows(100, FACTORS), FACTORS)
    set_column("seconds", "3")(rows)
    with pytest.raises(InputError, match=r"column 'seconds' is neither an outcome \(there is no bare_seconds\)"):
        read_observations(write(to_csv(rows)))


def test_chinese_task_ids_and_column_names_are_kept(gate_csv: GateWriter) -> None:
    def change(rows: Rows) -> None:
        for row in rows:
            row["task_id"] = f"任务{row['task_id']}"
            row["步数"], row["bare_步数"] = "3", "5"

    found = read_observations(gate_csv(change=change))
    assert found.task_ids[:2] == ("任务0001", "任务0002")
    assert "核对规格" in found.factors
    assert (found.delta("步数") == -2).all()


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("0012", "12", True),
        ("12", "12 ", True),
        ("１２", "12", True),
        ("12.0", "12", True),
        ("\u200b12\ufeff", "12", True),
        ("a\u200d1", "a1", True),
        ("A1", "a1", False),
        ("00", "0", True),
        ("+3", "3", True),
        ("-3", "3", False),
        ("012a", "12a", False),
        ("1.5", "1", False),
    ],
)
def test_ids_are_compared_as_text_and_as_numbers(one: str, other: str, same: bool) -> None:
    assert (task_key(one) == task_key(other)) is same


def test_several_samples_of_a_task_are_one_task(gate_csv: GateWriter) -> None:
    def change(rows: Rows) -> None:
        for number, row in enumerate(rows):
            row["task_id"] = ("007", "7")[number % 2] if number < 2 else str(100 + number // 2)
            row["sample"] = str(number % 2)

    found = read_observations(gate_csv(change=change))
    assert found.tasks.tolist() == np.repeat(np.arange(50), 2).tolist()
    assert found.samples[:4] == (0, 1, 0, 1)


def test_fewer_than_two_pairs_a_factor_are_refused(gate_csv: GateWriter) -> None:
    with pytest.raises(DesignError, match=r"7 complete pairs for 4 factors that are shown.*2 pairs a factor"):
        read_observations(gate_csv(7, seed=3))


@pytest.mark.parametrize(("pairs", "noted"), [(8, True), (79, True), (80, False)])
def test_fewer_than_twenty_pairs_a_factor_are_noted(gate_csv: GateWriter, pairs: int, noted: bool) -> None:
    notes = read_observations(gate_csv(pairs, seed=3)).notes[1:]
    assert [note.endswith("below 20 the estimates are coarse (M16)") for note in notes] == [True] * noted


def test_a_factor_never_shown_is_noted_and_not_fitted(gate_csv: GateWriter) -> None:
    found = read_observations(gate_csv(change=set_column("variant", "0")))
    assert found.notes[1:] == ("never shown, so no effect is estimated: variant",)
    assert found.factors == FACTORS


def test_partial_rewards_keep_their_value(gate_csv: GateWriter) -> None:
    def change(rows: Rows) -> None:
        for row in rows:
            row["r_success"], row["bare_r_success"] = row["reward"], row["bare_reward"]
        rows[0] |= {"reward": "0.9167", "r_success": "0"}

    found = read_observations(gate_csv(change=change))
    assert (found.masked["reward"][0], found.masked["r_success"][0]) == (0.9167, 0)


def test_the_product_of_the_components_is_compared_up_to_the_rounding_of_files(gate_csv: GateWriter) -> None:
    def change(rows: Rows) -> None:
        for row in rows:
            for part in ("r_type", "r_att", "r_option", "r_price"):
                row[part], row[f"bare_{part}"] = row["reward"], row["bare_reward"]
        rows[0] |= {"reward": "0.333", "r_type": "1", "r_att": "0.3333333", "r_option": "1", "r_price": "1"}

    assert read_observations(gate_csv(change=change)).masked["reward"][0] == 0.333

    def spoil(rows: Rows) -> None:
        change(rows)
        rows[1] |= {"reward": "0.5", "r_type": "1", "r_att": "0.52", "r_option": "1", "r_price": "1"}

    def spoil_by_size(rows: Rows) -> None:
        for row in rows:
            row |= dict.fromkeys(("r_type", "r_att", "r_option", "r_price"), "1e100")
            row |= dict.fromkeys(("bare_r_type", "bare_r_att", "bare_r_option", "bare_r_price"), "1")

    with pytest.raises(InputError, match=r"reward is \d but r_type\*r_att\*r_option\*r_price is 1e\+200 at task 0001"):
        read_observations(gate_csv(change=spoil_by_size))
    with pytest.raises(InputError, match=r"reward is 0.5 but r_type\*r_att\*r_option\*r_price is 0.52 at task 0002"):
        read_observations(gate_csv(change=spoil))


@pytest.mark.parametrize("name", ["success", "steps", "prompt_tokens", "duration_ms", "error_rate", "delta_reward"])
def test_an_outcome_without_its_bare_partner_is_never_a_factor(gate_csv: GateWriter, write: Writer, name: str) -> None:
    path = gate_csv(factors=("search", name))
    with pytest.raises(InputError, match=f"column '{name}' has no partner 'bare_{name}'"):
        read_observations(path)
    named = write_interventions(write, {"intervention_id": "search"}, {"intervention_id": name})
    assert read_observations(path, named).factors == ("search", name)


def test_costs_in_pairs_are_outcomes(gate_csv: GateWriter) -> None:
    costs = ("prompt_tokens", "error_rate")
    found = read_observations(
        gate_csv(change=lambda rows: [set_column(arm + name, "3")(rows) for name in costs for arm in ("", "bare_")])
    )
    assert (tuple(found.masked), found.factors) == (("reward", *costs), FACTORS)


def test_columns_taken_for_factors_are_noted(gate_csv: GateWriter, write: Writer) -> None:
    names = [f"f{k}" for k in range(12)]
    found = read_observations(gate_csv(factors=names))
    assert found.notes[0] == f"12 columns are read as factors: {', '.join(names[:10])}, ..."
    named = write_interventions(write, *({"intervention_id": factor} for factor in FACTORS))
    assert read_observations(gate_csv(), named).notes == ()


@pytest.mark.parametrize(
    ("column", "cells", "message"),
    [
        ("checkpoint", ("step-1", "step-2"), "checkpoint is 'step-1' in some rows and 'step-2' in others"),
        ("checkpoint", ("step-1", ""), "checkpoint is 'step-1' in some rows and '' in others"),
        ("split", ("val", "train"), "split is 'val' in some rows and 'train' in others"),
        ("split", ("Test", "test"), "split is 'Test'"),
    ],
)
def test_I15_rows_of_several_checkpoints_or_of_test_are_refused(
    gate_csv: GateWriter, column: str, cells: tuple[str, str], message: str
) -> None:
    def change(rows: Rows) -> None:
        for number, row in enumerate(rows):
            row[column] = cells[number % 2]

    with pytest.raises(InputError, match=message):
        read_observations(gate_csv(change=change))
    one_split = read_observations(
        gate_csv(change=lambda rows: (set_column("split", "val")(rows), put(0, "split", "VAL")(rows)))
    )
    assert len(one_split.task_ids) == 100


def test_words_and_decimals_for_0_and_1_are_read(gate_csv: GateWriter) -> None:
    def change(rows: Rows) -> None:
        for row in rows:
            row["sample"] = "0.0"
            row["search"] = {"0": "False", "1": "TRUE"}[row["search"]]
            row["bare_reward"] = {"0": "FALSE", "1": "True"}[row["bare_reward"]]

    assert read_observations(gate_csv(change=change)).to_frame().equals(read_observations(gate_csv()).to_frame())


def test_a_success_that_is_neither_0_nor_1_is_refused(gate_csv: GateWriter) -> None:
    for name in ("r_success", "success"):

        def change(rows: Rows, name: str = name) -> None:
            set_column(name, "1")(rows)
            set_column(f"bare_{name}", "0")(rows)
            rows[4][f"bare_{name}"] = "0.5"

        with pytest.raises(InputError, match=f"bare_{name} is 0.5 at task 0005"):
            read_observations(gate_csv(change=change))


def test_other_kinds_of_arguments_are_refused(gate_csv: GateWriter) -> None:
    path = gate_csv()
    wrong: Any = read_observations(path).to_frame()
    with pytest.raises(ParameterError, match="path is a DataFrame"):
        read_observations(wrong)
    with pytest.raises(ParameterError, match="path is a DataFrame"):
        read_comparison(wrong)
    with pytest.raises(ParameterError, match="interventions is a DataFrame"):
        read_observations(path, wrong)
    share: Any = "0.1"
    with pytest.raises(ParameterError, match=r"max_missing is '0\.1'"):
        read_observations(path, max_missing=share)


def test_an_empty_mask_column_with_missing_rewards_is_refused(write: Writer) -> None:
    rows = with_mask_column(gate_rows(100, FACTORS), FACTORS)
    set_column("mask", "")(rows)
    rows[0]["reward"] = ""
    with pytest.raises(InputError, match="mask column is empty"):
        read_observations(write(to_csv(rows)))


def test_an_outcome_that_some_pairs_lack_is_noted_and_not_fitted(gate_csv: GateWriter) -> None:
    def change(rows: Rows) -> None:
        set_column("steps", "3")(rows)
        set_column("bare_steps", "4")(rows)
        rows[3]["steps"] = ""

    found = read_observations(gate_csv(change=change))
    assert list(found.masked) == ["reward"]
    assert found.notes[1:] == ("steps is not fitted: some complete pairs lack it",)
    assert len(found.task_ids) == 100


def test_a_file_says_that_it_is_simulated(gate_csv: GateWriter) -> None:
    assert read_observations(gate_csv(change=set_column("origin", "simulated with seed 0"))).simulated
    assert not read_observations(gate_csv(change=set_column("origin", "rollouts"))).simulated
    assert read_observations(gate_csv(change=set_column("origin", "SIMULATED"))).simulated
    assert "100 simulated pairs" in str(read_observations(gate_csv(change=set_column("origin", "simulated"))))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("task_id,bare_reward\n1,0\n", "column 'bare_reward' has no partner 'equipped_reward'"),
        ("task_id,bare_reward,equipped_reward,equipped_steps\n1,0,1,3\n", "'equipped_steps' has no partner 'bare_"),
        ("task_id,reward\n1,0\n", "no outcome columns equipped_reward and bare_reward; the columns are task_id, rew"),
        ("task_id,bare_reward,equipped_reward\n1,0,x\n", "column equipped_reward: equipped_reward is 'x' at task 1"),
    ],
)
def test_a_bad_comparison_file_is_refused(write: Writer, text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        read_comparison(write(text))


def test_a_comparison_file_given_as_a_gate_says_so(shared: Path) -> None:
    with pytest.raises(InputError, match=r"column 'bare_reward' has no partner 'reward'.*use `shopskill compare`"):
        read_observations(shared / "data" / "published_test" / "base.csv")


def test_a_gate_file_given_as_a_comparison_says_so(gate_csv: GateWriter) -> None:
    with pytest.raises(InputError, match="use `shopskill gate`"):
        read_comparison(gate_csv())


@pytest.mark.parametrize("interventions", [True, False])
def test_masks_that_a_spreadsheet_read_as_numbers_have_the_length_they_lack(write: Writer, interventions: bool) -> None:
    rows = with_mask_column(gate_rows(100, FACTORS), FACTORS)
    set_column("mask", "1.1E+03")(rows)
    named = write_interventions(write, *({"intervention_id": name} for name in FACTORS)) if interventions else None
    with pytest.raises(InputError, match=f"Allowed: {4 if interventions else 7} characters"):
        read_observations(write(to_csv(rows)), named)


def gate_of(path: Path) -> dict[str, float | None]:
    return fit_gate(read_observations(path), resamples=100).coefficients()


def permuted(seed: int, rows: Rows) -> Rows:
    """The same rows in another order, with their columns in another order."""
    rng = np.random.default_rng(seed)
    names = [str(name) for name in rng.permutation(list(rows[0]))]
    return [{name: rows[number][name] for name in names} for number in rng.permutation(len(rows))]


REUSED_FOLDER = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@REUSED_FOLDER
@given(st.integers(0, 2**32))
def test_shuffling_rows_or_columns_changes_nothing_but_order(write: Writer, seed: int) -> None:
    rows = gate_rows(60, FACTORS)
    first, second = gate_of(write(to_csv(rows))), gate_of(write(to_csv(permuted(seed, rows))))
    assert set(first) == set(second)
    assert [second[factor] for factor in FACTORS] == pytest.approx([first[factor] for factor in FACTORS], abs=1e-12)


@REUSED_FOLDER
@given(st.floats(-2, 2))
def test_adding_a_constant_to_both_rewards_changes_nothing(write: Writer, constant: float) -> None:
    rows = gate_rows(60, FACTORS)
    moved = [row | {arm: repr(float(row[arm]) + constant) for arm in ("reward", "bare_reward")} for row in rows]
    first, second = gate_of(write(to_csv(rows))), gate_of(write(to_csv(moved)))
    assert list(second.values()) == pytest.approx(list(first.values()), abs=1e-9)


def test_I21_rows_with_an_all_zero_mask_count(write: Writer) -> None:
    """They do not move a coefficient, and they do inform the errors: the residual of such a row is its difference."""
    rows = gate_rows(200, FACTORS)
    bare = [row for row in rows if all(row[factor] == "0" for factor in FACTORS)]
    assert len(bare) > 5
    whole: Observations = read_observations(write(to_csv(rows), "all.csv"))
    fewer = read_observations(write(to_csv([row for row in rows if row not in bare]), "fewer.csv"))
    one, other = (fit_gate(found, resamples=100).outcomes["reward"].fit for found in (whole, fewer))
    assert len(whole.task_ids) == one.nobs == 200
    assert one.params == pytest.approx(other.params, abs=1e-12)
    assert one.df_inference - other.df_inference == len(bare)
    squares = [fit.bse_classical[0] ** 2 * fit.df_inference for fit in (one, other)]
    lost = sum((float(row["reward"]) - float(row["bare_reward"])) ** 2 for row in bare)
    X = whole.masks.astype(float)
    assert squares[0] - squares[1] == pytest.approx(np.linalg.inv(X.T @ X)[0, 0] * lost)
    assert lost > 0


def test_remarks_of_the_origin_go_with_every_claim(tmp_path: Path) -> None:
    origin = '"measured; splits may share product (allow_overlap, M2)"'
    path = tmp_path / "pairs.csv"
    rows = [f"{k},{k % 2},{k % 3 % 2},{k % 5 % 2},1,{origin}" for k in range(20)]
    path.write_text("\n".join(["task_id,a,b,reward,bare_reward,origin", *rows]) + "\n", encoding="utf-8")
    assert "splits may share product (allow_overlap, M2)" in read_observations(path).notes
    rows = [f"{k},{k % 2},1,{origin}" for k in range(20)]
    path.write_text("\n".join(["task_id,equipped_reward,bare_reward,origin", *rows]) + "\n", encoding="utf-8")
    assert "splits may share product (allow_overlap, M2)" in compare_paired(*read_comparison(path)).notes
