import dataclasses
import inspect
import io
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from conftest import FACTORS, GateWriter, gate_rows, to_csv

from shopskill_lib import claim, comparison, gates, observations, ols, tables
from shopskill_lib.errors import ParameterError
from shopskill_lib.gates import Gate, compare_paired, fit_gate, read_comparison, read_observations

PUBLISHED = "data/published_gates/round_000"


@pytest.fixture(scope="module")
def expected(shared: Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((shared / f"{PUBLISHED}_expected.json").read_text())
    return document


@pytest.fixture(scope="module")
def published(shared: Path) -> Gate:
    found = read_observations(shared / f"{PUBLISHED}.csv", shared / f"{PUBLISHED}_expected.json")
    return fit_gate(found, budget=10, resamples=1000)


def test_published_coefficients_and_means_of_every_outcome(published: Gate, expected: dict[str, Any]) -> None:
    estimates = expected["estimates"]
    assert set(published.outcomes) == set(estimates) - {"r_strict", "r_loose"}
    for name, outcome in published.outcomes.items():
        assert published.coefficients(name) == pytest.approx(estimates[name]["coefficients"], abs=1e-9)
        means = [outcome.masked_mean, outcome.bare_mean, outcome.delta_mean]
        assert means == pytest.approx([estimates[name][f"{part}_mean"] for part in ("masked", "bare", "delta")])


def test_published_ranks_statuses_winner_and_selection(published: Gate, expected: dict[str, Any]) -> None:
    frame = published.to_frame().set_index("intervention_id")
    assert len(frame) == 16
    for item in expected["interventions"]:
        row = frame.loc[item["intervention_id"]]
        assert row["status"] == item["status"]
        assert (None if pd.isna(row["rank"]) else row["rank"]) == item["rank"]
    assert list(published.selected) == expected["selected_intervention_ids"]
    winners = {row["slot"]: name for name, row in frame.iterrows() if row["status"] != "rewrite_loser"}
    assert winners == expected["replacement_winners"]
    gain = published.rewrites().iloc[0]
    assert gain["gain"] == pytest.approx(-0.011501579441953475 - 0.015260273770068864, abs=1e-9)
    assert gain["ci_low"] < gain["gain"] < 0 < gain["ci_high"]


def test_rows_of_the_published_file_in_another_order_give_the_same_gate(
    shared: Path, published: Gate, write: Callable[..., Path]
) -> None:
    head, *rows = (shared / f"{PUBLISHED}.csv").read_text().splitlines()
    path = write("\n".join([head, *reversed(rows)]) + "\n")
    other = fit_gate(read_observations(path, shared / f"{PUBLISHED}_expected.json"), budget=10, resamples=100)
    assert other.coefficients() == pytest.approx(published.coefficients(), abs=1e-12)
    assert other.decisions == published.decisions


def test_chance_selected_is_half_of_16_unrelated_slots(gate_csv: GateWriter) -> None:
    """Sixteen slots without any effect: about eight have a positive estimate, whatever the rewards."""
    gate = fit_gate(read_observations(gate_csv(400, [f"f{k}" for k in range(16)])), budget=16, resamples=100)
    assert gate.chance_selected == pytest.approx(8, abs=0.1)


def test_chance_selected_of_a_two_version_slot_is_more_than_half_of_it(published: Gate) -> None:
    """Fourteen slots give 1/2 each; of two versions the better one is positive in more than half of the draws."""
    assert 7.5 < published.chance_selected < 7.5 + 0.25


def test_the_budget_caps_chance_too(gate_csv: GateWriter) -> None:
    found = read_observations(gate_csv(400, [f"f{k}" for k in range(16)]))
    assert fit_gate(found, budget=1, resamples=100).chance_selected == pytest.approx(1, abs=0.01)


def test_the_same_analysis_seed_gives_the_same_bytes(gate_csv: GateWriter) -> None:
    found = read_observations(gate_csv())
    one, same, other = (
        json.dumps(fit_gate(found, resamples=200, analysis_seed=seed).to_json(), allow_nan=False) for seed in (1, 1, 2)
    )
    assert one == same != other
    assert json.loads(one)["factors"][0]["coefficient"] == json.loads(other)["factors"][0]["coefficient"]


def test_a_never_shown_factor_end_to_end(gate_csv: GateWriter) -> None:
    def change(rows: list[dict[str, str]]) -> None:
        for row in rows:
            row["variant"] = "0"

    gate = fit_gate(read_observations(gate_csv(change=change)), resamples=200)
    row = next(factor for factor in gate.to_json()["factors"] if factor["intervention_id"] == "variant")
    assert row["status"] == "never_shown"
    absent = (
        "coefficient",
        "std_error",
        "ci_low",
        "ci_high",
        "p_value",
        "rank",
        "rank_low",
        "rank_high",
        "rank_mean",
        "top_k",
    )
    assert [row[name] for name in absent] == [None] * len(absent)
    assert (row["exposure"], row["selection_frequency"], row["sign_probability"]) == (0, None, None)
    assert gate.coefficients()["variant"] is None
    assert gate.outcomes["reward"].fit.names == tuple(name for name in FACTORS if name != "variant")
    assert any("never shown" in note for note in gate.notes)
    assert "never_shown" in str(gate)
    assert "NA" not in str(gate)
    assert tables.selection(gate)["rank"].tolist() == [*range(1, len(FACTORS)), ""]
    empty_on_disk = pd.read_csv(io.StringIO(tables.selection(gate).to_csv()), dtype={"rank": "Int64"})
    assert empty_on_disk["rank"].isna().sum() == 1


def test_several_rows_a_task_are_clustered_and_resampled_together(gate_csv: GateWriter) -> None:
    """Every pair written twice as two samples: the same coefficients and the same resamples as once."""

    def twice(rows: list[dict[str, str]]) -> None:
        rows[:] = [row | {"sample": sample} for row in rows for sample in ("0", "1")]

    once = fit_gate(read_observations(gate_csv()), resamples=200)
    both = fit_gate(read_observations(gate_csv(change=twice)), resamples=200)
    assert (both.to_json()["n_pairs"], both.to_json()["n_tasks"]) == (200, 100)
    assert both.outcomes["reward"].fit.cov_type == "cluster"
    assert both.coefficients() == pytest.approx(once.coefficients(), abs=1e-12)
    assert both.stability.selection_frequency.tolist() == once.stability.selection_frequency.tolist()
    assert both.outcomes["reward"].fit.bse == pytest.approx(once.outcomes["reward"].fit.bse, rel=0.1)


FAMILY = [
    {"intervention_id": "old", "kind": "current"},
    {"intervention_id": "new-1", "logical_chunk_id": "old", "kind": "candidate", "operation": "REWRITE"},
    {"intervention_id": "new-2", "logical_chunk_id": "old", "kind": "candidate", "operation": "REWRITE"},
]


def family_gate(write: Callable[..., Path], shown: Sequence[str]) -> Gate:
    """One slot with an old text and two rewrites; only the versions named are ever drawn."""
    states, rng = ["", *shown], np.random.default_rng(5)
    rows = [
        {"task_id": str(number)}
        | {item["intervention_id"]: str(int(item["intervention_id"] == state)) for item in FAMILY}
        | {"reward": str(int(rng.random() < (0.2 if state in ("", "old") else 0.9))), "bare_reward": "0"}
        for number, state in enumerate(rng.choice(states, 120))
    ]
    named = write(json.dumps(FAMILY), "family.json")
    return fit_gate(read_observations(write(to_csv(rows)), named), resamples=200)


def test_I18_a_family_of_several_rewrites_has_one_winner_and_a_gain_for_each(write: Callable[..., Path]) -> None:
    gate = family_gate(write, ["old", "new-1", "new-2"])
    old, *new = gate.outcomes["reward"].fit.params
    assert gate.rewrites()["new"].tolist() == ["new-1", "new-2"]
    assert gate.rewrites()["gain"].tolist() == pytest.approx([alpha - old for alpha in new])
    statuses = [decision.status for decision in gate.decisions]
    assert sorted(statuses) == ["rewrite_loser", "rewrite_loser", "selected"]
    assert gate.decisions[0].status == "rewrite_loser"
    assert gate.stability.selection_frequency.sum() == pytest.approx(1)


def test_a_rewrite_of_a_never_shown_text_has_no_gain(write: Callable[..., Path]) -> None:
    gate = family_gate(write, ["new-1", "new-2"])
    assert gate.rewrites().empty
    assert gate.decisions[0].status == "never_shown"
    assert "no gain can be told for new-2: old, the text in force, was never shown" in gate.notes


def test_the_selection_frequency_is_that_of_the_refitted_rule(gate_csv: GateWriter) -> None:
    """By other means: a regression on each resample's repeated rows, then `selection.select`."""
    found = read_observations(gate_csv(60))
    gate = fit_gate(found, budget=2, resamples=100, analysis_seed=3)
    rng = np.random.default_rng(3)
    counts = dict.fromkeys(FACTORS, 0)
    for rows in rng.integers(60, size=(100, 60)):
        alphas = np.linalg.lstsq(found.masks[rows].astype(float), found.delta("reward")[rows])[0]
        for factor in sorted(FACTORS, key=lambda name: -alphas[FACTORS.index(name)])[:2]:
            counts[factor] += int(alphas[FACTORS.index(factor)] > 0)
    assert gate.stability.selection_frequency.tolist() == [counts[factor] / 100 for factor in FACTORS]


def test_resamples_of_lower_rank_are_counted_and_noted(gate_csv: GateWriter) -> None:
    def change(rows: list[dict[str, str]]) -> None:
        for number, row in enumerate(rows):
            row["variant"] = str(int(number in (5, 6)))

    gate = fit_gate(read_observations(gate_csv(seed=1, change=change)), resamples=400)
    assert gate.resamples_lost == pytest.approx(400 * np.exp(-2), rel=0.5)  # two tasks both left out of a resample
    assert f"{gate.resamples_lost} of 400 resamples had masks of lower rank and are left out" in gate.notes
    assert gate.stability.resamples == 400 - gate.resamples_lost


def test_missing_pairs_are_printed_with_both_arms_and_bounds(gate_csv: GateWriter) -> None:
    rows: list[dict[str, str]] = []

    def change(made: list[dict[str, str]]) -> None:
        made[1]["reward"] = made[7]["bare_reward"] = ""
        rows.extend(made)

    gate = fit_gate(read_observations(gate_csv(change=change), max_missing=0.05), resamples=100)
    assert "masked 0002; bare 0008" in str(gate)
    record = gate.to_json()
    assert record["missing"] == {"masked": ["0002"], "bare": ["0008"]}
    assert record["n_pairs"] == 98
    for row in record["factors"]:
        shown = gate.observations.masks[:, gate.observations.factors.index(row["intervention_id"])]
        lost = [int(rows[k][row["intervention_id"]]) for k in (1, 7)]
        whole = shown.sum() + sum(lost)
        assert row["masked_complete"] == pytest.approx(1 - lost[0] / whole)
        assert row["bare_complete"] == pytest.approx(1 - lost[1] / whole)
        assert row["worst_low"] < row["worst_high"]
    assert {"worst_low", "worst_high", "masked_complete", "bare_complete"} <= set(tables.selection(gate))


def test_groups_and_bootstrap_intervals_stand_in_the_tables_and_the_claim(gate_csv: GateWriter) -> None:
    """A described simulated gate: a factor that helps one category only is told wherever the gate is read."""

    def change(rows: list[dict[str, str]]) -> None:
        for number, row in enumerate(rows):
            row |= {"origin": "simulated shopper", "category": "甲" if number % 2 else "b", "bare_reward": "0"}
            row["reward"] = "1" if number % 20 == 0 else row["search"] if number % 2 else "0"

    gate = fit_gate(read_observations(gate_csv(pairs=200, change=change)), resamples=200)
    table = tables.groups(gate)
    assert set(zip(table["group"], table["pairs"], strict=True)) == {("甲", 100), ("b", 100)}
    assert table["simulated"].all()
    told = gate.differences()
    assert told.startswith("simulated: Effects that differ between groups: search by category (Holm p = ")
    (section,) = (part for part in claim.of_gate(gate, claim.Known()).sections if told in part.lines)
    assert section.heading == "What the intervals allow to say"
    assert {"effects by category", "effects between tasks"} <= set(tables.checks(gate).index)
    drawn = tables.contributions(gate).query("outcome == 'reward'").set_index("intervention_id")
    order = list(gate.outcomes["reward"].fit.names)
    assert (drawn.loc[order, ["percentile_low", "percentile_high"]].to_numpy() == gate.bootstrap.percentile).all()
    assert list(zip(drawn.loc[order, "bca_low"], drawn.loc[order, "bca_high"], strict=True)) == list(gate.bootstrap.bca)


def test_a_perfect_fit_is_on_disk_without_infinity(write: Callable[..., Path]) -> None:
    rows = [row | {"reward": row["search"], "bare_reward": "0"} for row in gate_rows(100, FACTORS)]
    gate = fit_gate(read_observations(write(to_csv(rows))), resamples=100)
    record = json.loads(json.dumps(gate.to_json(), allow_nan=False))
    assert record["joint_test"]["f_value"] is None
    assert record["joint_test"]["p_value"] == 0
    assert gate.coefficients() == pytest.approx({"search": 1, "variant": 0, "核对规格": 0, "budget": 0}, abs=1e-12)
    assert gate.selected == ("search",)


def test_rewards_that_never_differ_select_nothing(write: Callable[..., Path]) -> None:
    rows = [row | {"reward": "1", "bare_reward": "1"} for row in gate_rows(100, FACTORS)]
    gate = fit_gate(read_observations(write(to_csv(rows))), resamples=100)
    assert gate.selected == ()
    assert gate.chance_selected == 0
    assert {decision.status for decision in gate.decisions} == {"non_positive"}
    json.dumps(gate.to_json(), allow_nan=False)


@pytest.mark.parametrize("resamples", [0, 99])
def test_too_few_resamples_are_refused(gate_csv: GateWriter, resamples: int) -> None:
    with pytest.raises(ParameterError, match=f"resamples is {resamples}. Allowed: at least 100"):
        fit_gate(read_observations(gate_csv()), resamples=resamples)


@pytest.mark.parametrize("budget", [0, 5])
def test_a_budget_out_of_range_is_refused(gate_csv: GateWriter, budget: int) -> None:
    with pytest.raises(ParameterError, match=f"budget K is {budget}. Allowed: .* here 4"):
        fit_gate(read_observations(gate_csv()), budget=budget)


def test_the_budget_is_the_users_then_the_files_then_the_default(gate_csv: GateWriter) -> None:
    found = read_observations(gate_csv())
    assert fit_gate(found, resamples=100).budget == 4
    of_file = dataclasses.replace(found, budget=3)
    assert fit_gate(of_file, resamples=100).budget == 3
    assert fit_gate(of_file, budget=2, resamples=100).budget == 2


def test_a_budget_of_the_file_above_its_slots_is_cut_to_them_and_noted(gate_csv: GateWriter) -> None:
    gate = fit_gate(dataclasses.replace(read_observations(gate_csv()), budget=10), resamples=100)
    assert gate.budget == 4
    assert "K = 4: the file's budget is 10, more than its 4 slots" in gate.notes


def test_what_is_no_observations_or_no_number_is_refused(gate_csv: GateWriter) -> None:
    path = gate_csv()
    wrong: Any = path
    with pytest.raises(ParameterError, match=r"observations is a .*Path.*read_observations"):
        fit_gate(wrong)
    with pytest.raises(ParameterError, match="analysis_seed is -1"):
        fit_gate(read_observations(path), analysis_seed=-1)
    whole: Any = np.int64(100)
    assert fit_gate(read_observations(path), whole // 25, resamples=whole).budget == 4


@pytest.mark.parametrize(("tasks", "noted"), [(19, True), (20, False)])
def test_errors_clustered_by_few_tasks_are_noted(gate_csv: GateWriter, tasks: int, noted: bool) -> None:
    def change(rows: list[dict[str, str]]) -> None:
        for number, row in enumerate(rows):
            row["task_id"], row["sample"] = str(number % tasks), str(number // tasks)

    gate = fit_gate(read_observations(gate_csv(change=change)), resamples=100)
    assert any(f"clustered by {tasks} tasks" in note for note in gate.notes) is noted


def results(path: Path, table: Path) -> dict[str, Any]:
    """One of each result class, by name."""
    found = read_observations(path)
    gate = fit_gate(found, resamples=200)
    compared = compare_paired(*read_comparison(table), resamples=200)
    return {"Observations": found, "OLSFit": gate.outcomes["reward"].fit, "Gate": gate, "Comparison": compared}


COLUMNS = {
    "Observations": ["task_id", "sample", "mask", "reward", "bare_reward"],
    "OLSFit": ["intervention_id", "coefficient", "std_error", "std_error_classical", "p_value", "ci_low", "ci_high"],
    "Gate": [
        "intervention_id",
        "slot",
        "kind",
        "coefficient",
        "std_error",
        "std_error_classical",
        "p_value",
        "ci_low",
        "ci_high",
        "rank",
        "status",
        "reason",
        "selection_frequency",
        "sign_probability",
        "rank_low",
        "rank_high",
        "rank_mean",
        "top_k",
        "exposure",
    ],
    "Comparison": ["metric", "bare", "equipped", "delta", "ci_low", "ci_high", "bca_low", "bca_high", "n_tasks"],
}
"""The fixed columns of every result class; a class with `to_frame` that is not here fails the test below."""


def test_every_result_class_is_under_the_contract() -> None:
    found = {
        name
        for module in (comparison, gates, observations, ols)
        for name, kind in inspect.getmembers(module, dataclasses.is_dataclass)
        if {"to_frame", "summary"} & set(dir(kind))
    }
    assert found == set(COLUMNS)


@pytest.mark.parametrize("name", COLUMNS)
def test_every_result_answers_the_same_questions(gate_csv: GateWriter, write: Callable[..., Path], name: str) -> None:
    table = write("task_id,bare_reward,equipped_reward\n" + "".join(f"{k},{k % 2},1\n" for k in range(9)), "table.csv")
    result = results(gate_csv(), table)[name]
    frame = result.to_frame()
    assert list(frame.columns) == COLUMNS[name]
    assert str(result) == result.summary() != ""
    frame[frame.columns[0]] = "changed"  # a reader's frame is the reader's own
    assert "changed" not in result.to_frame().iloc[:, 0].astype(str).tolist()
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(result, dataclasses.fields(result)[0].name, None)
    if hasattr(result, "to_json"):
        text = json.dumps(result.to_json(), allow_nan=False)
        assert json.loads(text) == result.to_json()
        assert result.to_json()["verdict"] == result.verdict()
        assert result.verdict() in result.summary()


def test_the_json_has_what_the_command_promises(published: Gate) -> None:
    record = published.to_json()
    promised = {"intervention_id", "slot", "coefficient", "std_error", "ci_low", "ci_high", "rank", "status"}
    assert promised | {"selection_frequency"} <= set(record["factors"][0])
    assert set(record["outcomes"]["reward"]) == {"coefficients", "masked_mean", "bare_mean", "delta_mean"}
    assert record["n_pairs"] == record["n_tasks"] == 400
    assert len(record["selected"]) == 7
    assert [row["rank"] for row in record["factors"]].count(None) == 1
