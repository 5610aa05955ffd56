"""Missing episodes: refused by default, admitted within `max_missing` when both arms miss alike (M20)."""

from collections.abc import Callable

import numpy as np
import pytest
from conftest import FACTORS, GateWriter, gate_rows

from shopskill_lib.errors import MissingError, ParameterError
from shopskill_lib.gates import fit_gate, read_observations

Rows = list[dict[str, str]]
Change = Callable[[Rows], object]


def lose(masked: list[int], bare: list[int]) -> Change:
    """Empty the rewards of these rows."""

    def change(rows: Rows) -> None:
        for number in masked:
            rows[number]["reward"] = ""
        for number in bare:
            rows[number]["bare_reward"] = ""

    return change


def test_I20_missing_episodes_stop_the_gate_with_both_arms_listed(gate_csv: GateWriter) -> None:
    with pytest.raises(
        MissingError,
        match=r"3 of 100 pairs are incomplete; missing episodes masked: 2 \(tasks 0002, 0005\); bare: 1 \(tasks 0008\)",
    ):
        read_observations(gate_csv(change=lose([1, 4], [7])))


def test_max_missing_admits_exhausted_pairs_with_worst_case_bounds(gate_csv: GateWriter) -> None:
    path = gate_csv(change=lose([1, 4], [7]))
    with pytest.raises(MissingError, match=r"3 of 100 pairs are incomplete.*max_missing = 0\.029"):
        read_observations(path, max_missing=0.029)
    found = read_observations(path, max_missing=0.03)
    assert len(found.task_ids) == len(found.masks) == 97
    assert not set(found.task_ids) & {"0002", "0005", "0008"}
    assert found.missing is not None
    assert (found.missing.masked, found.missing.bare) == (("0002", "0005"), ("0008",))
    for filled in ("0", "1"):

        def fill(rows: Rows, filled: str = filled) -> None:
            for number, column in ((1, "reward"), (4, "reward"), (7, "bare_reward")):
                rows[number][column] = filled

        complete = list(fit_gate(read_observations(gate_csv(change=fill)), resamples=100).coefficients().values())
        assert (found.missing.lowest <= np.array(complete, dtype=float) + 1e-12).all()
        assert (found.missing.highest >= np.array(complete, dtype=float) - 1e-12).all()


def test_the_bounds_of_a_never_shown_factor_are_unknown(gate_csv: GateWriter) -> None:
    def change(rows: Rows) -> None:
        for row in rows:
            row["variant"] = "0"
        lose([1], [7])(rows)

    missing = read_observations(gate_csv(change=change), max_missing=0.1).missing
    assert missing is not None
    assert np.isnan(missing.lowest).tolist() == np.isnan(missing.highest).tolist() == [False, True, False, False]


def test_one_arm_missing_more_is_refused_whatever_is_admitted(gate_csv: GateWriter) -> None:
    """Six of six missing in one arm: p = 2 / 64. Five of five: p = 2 / 32, admitted."""
    with pytest.raises(MissingError, match=r"one arm is missing more often \(exact p = 0.0312\)"):
        read_observations(gate_csv(change=lose([], [1, 2, 3, 4, 5, 6])), max_missing=0.5)
    assert read_observations(gate_csv(change=lose([], [1, 2, 3, 4, 5])), max_missing=0.5).missing is not None


def test_missingness_that_follows_a_mask_is_refused(gate_csv: GateWriter) -> None:
    shown = [number for number, row in enumerate(gate_rows(100, FACTORS)) if row["variant"] == "1"]
    hidden = [number for number in range(100) if number not in shown]
    with pytest.raises(MissingError, match=r"missing by whether variant is shown \(exact p = 0.0.*for 4 factors\)"):
        read_observations(gate_csv(change=lose(shown[:12], hidden[:12])), max_missing=0.5)


@pytest.mark.parametrize("share", [-0.1, 1.0, float("nan")])
def test_max_missing_is_a_share(gate_csv: GateWriter, share: float) -> None:
    with pytest.raises(ParameterError, match="max_missing is"):
        read_observations(gate_csv(), max_missing=share)


def test_missing_rewards_outside_0_to_1_cannot_be_bounded(gate_csv: GateWriter) -> None:
    def change(rows: Rows) -> None:
        lose([1], [7])(rows)
        rows[20]["reward"] = "1.5"

    with pytest.raises(MissingError, match=r"a reward lies outside \[0, 1\]"):
        read_observations(gate_csv(change=change), max_missing=0.1)
