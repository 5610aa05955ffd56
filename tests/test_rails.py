"""A warning for a cost or a part of the score that a chunk spoils, and none for luck or for the better."""

from collections.abc import Callable

import numpy as np
import pytest
from conftest import GateWriter

from shopskill_lib import rails
from shopskill_lib.gates import fit_gate, read_observations

Rows = list[dict[str, str]]


def outcome(name: str, effect: float, factor: str = "核对规格") -> Callable[[Rows], None]:
    """Give the rows one more outcome, that this factor moves by so much and noise by 1."""

    def change(rows: Rows) -> None:
        rng = np.random.default_rng(4)
        for row in rows:
            row[name] = f"{10 + effect * int(row[factor]) + rng.normal():.6f}"
            row[f"bare_{name}"] = f"{10 + rng.normal():.6f}"

    return change


def notes(gate_csv: GateWriter, name: str, effect: float) -> list[str]:
    gate = fit_gate(read_observations(gate_csv(200, change=outcome(name, effect))), resamples=100)
    return [note for note in gate.notes if note.startswith("guard rail")]


def test_a_cost_that_rises_is_told_with_factor_and_interval(gate_csv: GateWriter) -> None:
    (note,) = notes(gate_csv, "steps", 3.0)
    assert note.startswith("guard rail steps is higher with 核对规格 +")
    assert "(95 % +" in note
    assert "search" not in note


@pytest.mark.parametrize(("name", "effect"), [("steps", -3.0), ("steps", 0.0), ("r_style", 3.0), ("click_rate", 3.0)])
def test_no_warning_for_the_better_for_luck_or_without_a_direction(
    gate_csv: GateWriter, name: str, effect: float
) -> None:
    assert notes(gate_csv, name, effect) == []


def test_a_score_that_falls_is_told(gate_csv: GateWriter) -> None:
    (note,) = notes(gate_csv, "r_style", -3.0)
    assert "r_style is lower with 核对规格 -" in note


def test_directions() -> None:
    names = ("r_success", "success", "prompt_tokens", "protocol_faults", "invalid_actions", "click_rate", "delta_x")
    assert [rails.worse(name) for name in names] == [-1, -1, 1, 1, 1, 0, 0]


def test_the_decision_stays_as_it_is(gate_csv: GateWriter) -> None:
    plain = fit_gate(read_observations(gate_csv(200)), resamples=100)
    warned = fit_gate(read_observations(gate_csv(200, change=outcome("steps", 3.0))), resamples=100)
    assert warned.decisions == plain.decisions
