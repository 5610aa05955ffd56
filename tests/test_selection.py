import itertools
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shopskill_lib import ols
from shopskill_lib.errors import ParameterError
from shopskill_lib.selection import Rule, resolve_budget, select
from shopskill_lib.sources import Intervention

NAN = math.nan


def current(name: str, order: int) -> Intervention:
    return Intervention(name, name, "current", None, order)


def draft(name: str, order: int) -> Intervention:
    return Intervention(name, name, "draft", None, order)


def rewrite(name: str, slot: str, order: int) -> Intervention:
    return Intervention(name, slot, "candidate", "REWRITE", order)


def add(name: str, order: int) -> Intervention:
    return Intervention(name, name, "candidate", "ADD", order)


def decide(
    items: list[Intervention], alphas: list[float], budget: int
) -> tuple[dict[str, tuple[int | None, str]], tuple[str, ...]]:
    """Id -> (rank, status), and the selected ids."""
    decisions, selected = select(np.array(alphas), items, budget)
    return {decision.intervention_id: (decision.rank, decision.status) for decision in decisions}, selected


def slow_rule(
    items: list[Intervention], alphas: list[float], budget: int
) -> tuple[dict[str, tuple[int | None, str]], tuple[str, ...]]:
    """M21 and M22 in plain Python, one sentence of METHOD after the other."""
    alpha = {item.intervention_id: value for item, value in zip(items, alphas, strict=True)}
    shown = [item for item in items if not math.isnan(alpha[item.intervention_id])]
    found: dict[str, tuple[int | None, str]] = {
        item.intervention_id: (None, "never_shown") for item in items if item not in shown
    }
    place = {item.slot: item.order for item in items if item.kind != "candidate"}

    def canonical(item: Intervention) -> tuple[bool, int, str]:
        """A rewrite keeps its slot's place; ADDs go last; then id."""
        is_add = item.kind == "candidate" and item.operation == "ADD"
        return is_add, place.get(item.slot, item.order), item.intervention_id

    survivors = []
    for slot in {item.slot for item in shown}:
        versions = sorted((item for item in shown if item.slot == slot), key=canonical)
        best = max(alpha[version.intervention_id] for version in versions)
        tied = [version for version in versions if alpha[version.intervention_id] >= best - 1e-12]
        winner = next((version for version in tied if version.kind != "candidate"), tied[0])  # a tie keeps old
        survivors.append(winner)
        found |= {version.intervention_id: (None, "rewrite_loser") for version in versions if version is not winner}

    def value(item: Intervention) -> float:
        raw = alpha[item.intervention_id]
        return 0.0 if abs(raw) <= 1e-12 else raw

    falling = sorted(survivors, key=lambda item: -value(item))
    ranked: list[Intervention] = []
    group: list[Intervention] = []
    for number, item in enumerate(falling):  # neighbours up to rounding are one tie, in canonical order
        tie = number > 0 and value(falling[number - 1]) <= value(item) + 1e-12
        group = [*group, item] if tie else [item]
        ranked[number + 1 - len(group) :] = sorted(group, key=canonical)
    selected = []
    for rank, item in enumerate(ranked, 1):
        if value(item) > 0 and rank <= budget:
            status = "selected"
            selected.append(item)
        elif item.kind == "current":
            status = "retired"
        else:
            status = "budget_excluded" if value(item) > 0 else "non_positive"
        found[item.intervention_id] = (rank, status)
    return found, tuple(item.intervention_id for item in sorted(selected, key=canonical))


@st.composite
def gates(draw: st.DrawFn) -> tuple[list[Intervention], list[float], int]:
    """Slots with 0 to 3 rewrites, then ADDs, columns shuffled; coefficients that tie often."""
    items = []
    n_slots, n_adds = draw(st.integers(1, 4)), draw(st.integers(0, 3))
    for j in range(n_slots):
        order = draw(st.integers(1, 3))
        kind = draw(st.sampled_from([current, draft]))
        items.append(kind(f"slot{j}", order))
        items += [rewrite(f"new{k}-of-{j}", f"slot{j}", order) for k in range(draw(st.integers(0, 3)))]
    items += [add(f"add{j}", draw(st.integers(1, 3))) for j in range(n_adds)]
    level = st.sampled_from([-0.2, -0.1, 0.0, 0.1, 0.2, NAN])
    shift = st.sampled_from([0.0, 4e-13, -4e-13, 3e-12, -3e-12])
    alphas = [draw(level) + draw(shift) for _ in items]
    return draw(st.permutations(items)), alphas, draw(st.integers(1, n_slots + n_adds))


@given(gates())
def test_the_rule_equals_a_slow_reading_of_the_method(gate: tuple[list[Intervention], list[float], int]) -> None:
    assert decide(*gate) == slow_rule(*gate)


@given(gates(), st.integers(2, 5))
def test_every_resample_is_decided_alone(gate: tuple[list[Intervention], list[float], int], times: int) -> None:
    items, alphas, budget = gate
    rows = np.array([np.roll(alphas, k) for k in range(times)])
    ranks, chosen = Rule(items, budget)(rows)
    for row, rank, flags in zip(rows, ranks, chosen, strict=True):
        decisions, _ = decide(items, row.tolist(), budget)
        assert [decisions[item.intervention_id][0] or 0 for item in items] == rank.tolist()
        assert [decisions[item.intervention_id][1] == "selected" for item in items] == flags.tolist()


def test_statuses_by_hand() -> None:
    items = [
        current("a", 1),
        current("b", 2),
        rewrite("b2", "b", 2),
        current("c", 3),
        add("d", 4),
        add("e", 5),
        add("f", 6),
        current("g", 7),
    ]
    found, selected = decide(items, [0.3, 0.1, 0.2, -0.1, 0.15, -0.2, NAN, 0.05], budget=3)
    assert found == {
        "a": (1, "selected"),
        "b": (None, "rewrite_loser"),
        "b2": (2, "selected"),
        "d": (3, "selected"),
        "g": (4, "retired"),  # positive, but a current chunk over budget
        "c": (5, "retired"),  # a current chunk that is not positive
        "e": (6, "non_positive"),
        "f": (None, "never_shown"),
    }
    assert selected == ("a", "b2", "d")


def test_draft_and_add_over_budget_are_budget_excluded() -> None:
    found, _ = decide([draft("a", 1), draft("b", 2), add("c", 3)], [0.3, 0.2, 0.1], budget=1)
    assert found == {"a": (1, "selected"), "b": (2, "budget_excluded"), "c": (3, "budget_excluded")}


def test_I17_only_positive_chunks_within_k_and_never_filled_up() -> None:
    items = [draft(name, order) for order, name in enumerate("abcd", 1)]
    assert decide(items, [-0.1, 0.2, -0.3, 0.1], budget=4)[1] == ("b", "d")
    assert decide(items, [0.1, 0.4, 0.3, 0.2], budget=2)[1] == ("b", "c")
    assert decide(items, [-0.1, -0.2, 0.0, -0.4], budget=4)[1] == ()


@pytest.mark.parametrize("tiny", [0.0, 1e-12, -1e-12, 5e-13])
def test_I17_an_estimate_of_zero_up_to_rounding_is_not_positive(tiny: float) -> None:
    found, selected = decide([draft("a", 1), draft("b", 2)], [tiny, -0.5], budget=2)
    assert selected == ()
    assert found == {"a": (1, "non_positive"), "b": (2, "non_positive")}
    assert decide([draft("a", 1)], [1.1e-12], budget=1)[1] == ("a",)


def test_I18_losers_leave_before_the_ranking() -> None:
    """The losing rewrite has the second largest estimate of all, yet takes no rank and no place."""
    items = [current("a", 1), rewrite("a2", "a", 1), rewrite("a3", "a", 1), draft("b", 2)]
    found, selected = decide(items, [0.1, 0.4, 0.3, 0.2], budget=2)
    assert found["a"] == found["a3"] == (None, "rewrite_loser")
    assert (found["a2"], found["b"]) == ((1, "selected"), (2, "selected"))
    assert selected == ("a2", "b")


def test_I19_a_winner_still_needs_a_positive_estimate_and_a_rank_within_k() -> None:
    pair = [current("a", 1), rewrite("a2", "a", 1)]
    assert decide(pair, [-0.3, -0.1], budget=1) == ({"a": (None, "rewrite_loser"), "a2": (1, "non_positive")}, ())
    found, selected = decide([*pair, draft("b", 2)], [0.1, 0.2, 0.3], budget=1)
    assert found["a2"] == (2, "budget_excluded")
    assert selected == ("b",)


@pytest.mark.parametrize(("gain", "kept"), [(0.0, "old"), (9e-13, "old"), (-9e-13, "old"), (2e-12, "new")])
def test_a_tie_keeps_the_old_text(gain: float, kept: str) -> None:
    for items in ([current("old", 1), rewrite("new", "old", 1)], [rewrite("new", "old", 1), current("old", 1)]):
        alphas = [0.0 if item.intervention_id == "old" else gain for item in items]
        found, _ = decide(items, alphas, budget=1)
        assert found[kept][0] == 1
        assert [status for rank, status in found.values() if rank is None] == ["rewrite_loser"]


def test_the_first_of_equal_rewrites_wins() -> None:
    found, selected = decide(
        [current("old", 1), rewrite("new-a", "old", 1), rewrite("new-b", "old", 1)], [0.1, 0.2, 0.2], budget=1
    )
    assert selected == ("new-a",)
    assert found["new-b"] == (None, "rewrite_loser")


@pytest.mark.parametrize("rounding", [1e-15, -1e-15])
def test_estimates_equal_up_to_rounding_are_a_tie(rounding: float) -> None:
    rewrites = [current("old", 1), rewrite("new-a", "old", 1), rewrite("new-b", "old", 1)]
    assert decide(rewrites, [0.1, 0.2, 0.2 + rounding], budget=1)[1] == ("new-a",)
    assert decide([draft("a", 1), draft("b", 2)], [0.2, 0.2 + rounding], budget=1)[1] == ("a",)
    found, selected = decide([draft("a", 1), draft("b", 2)], [0.0, 1.1e-12], budget=1)
    assert (found["b"], selected) == ((1, "selected"), ("b",))


@given(st.integers(0, 2**32), st.sampled_from([0.1, 1 / 3, 0.7]))
def test_the_order_of_rows_never_changes_the_selected_set(seed: int, effect: float) -> None:
    """A full factorial with equal effects and no noise: all estimates are equal but for rounding."""
    rows = np.random.default_rng(seed).permutation(np.array(list(itertools.product([0, 1], repeat=4)) * 3))
    items = [draft(name, order) for order, name in enumerate("abcd", 1)]
    fit = ols.fit(effect * rows.sum(axis=1), rows, "abcd", np.arange(len(rows)))
    assert select(fit.params, items, 2)[1] == ("a", "b")


def test_a_never_shown_old_text_loses_to_nobody() -> None:
    found, selected = decide([current("old", 1), rewrite("new", "old", 1)], [NAN, 0.2], budget=1)
    assert found == {"old": (None, "never_shown"), "new": (1, "selected")}
    assert selected == ("new",)


def test_equal_estimates_rank_in_canonical_order_then_by_id() -> None:
    items = [add("a", 1), draft("z", 2), draft("y", 2), draft("x", 3)]
    found, _ = decide(items, [0.1, 0.1, 0.1, 0.1], budget=4)
    assert {name: rank for name, (rank, _) in found.items()} == {"y": 1, "z": 2, "x": 3, "a": 4}


def test_the_selection_stands_in_canonical_order_with_rewrites_in_place_and_adds_last() -> None:
    items = [add("add", 1), rewrite("b2", "b", 9), draft("c", 3), draft("a", 1), draft("b", 2)]
    _, selected = decide(items, [0.5, 0.4, 0.3, 0.2, 0.1], budget=4)
    assert selected == ("a", "b2", "c", "add")


def test_every_decision_says_why() -> None:
    items = [draft("a", 1), draft("b", 2), draft("c", 3), rewrite("c2", "c", 3), draft("d", 4)]
    decisions, _ = select(np.array([0.3, 0.2, 0.1, -0.1, NAN]), items, 1)
    reasons = [decision.reason for decision in decisions]
    assert reasons[0] == "positive estimate, rank 1 of at most 1"
    assert reasons[1] == "positive estimate, but rank 2 is over the budget of 1"
    assert reasons[3] == "another version of c is estimated higher"
    assert "no row shows it" in reasons[4]


def test_a_budget_of_numpy_is_a_number() -> None:
    nine: Any = np.int64(9)
    assert resolve_budget(nine, 12) == (9, ())


@pytest.mark.parametrize("budget", [0, -1, 13, True, 2.0, "3"])
def test_a_budget_out_of_range_is_refused(budget: int) -> None:
    with pytest.raises(ParameterError, match=r"budget K is .*from 1 to the number of slots, here 12"):
        resolve_budget(budget, 12)


@pytest.mark.parametrize(
    ("budget", "slots", "expected", "noted"),
    [
        (None, 15, 10, False),
        (None, 7, 7, True),
        (None, 10, 10, False),
        (7, 12, 7, True),
        (8, 12, 8, False),
        (12, 12, 12, False),
        (13, 16, 13, True),
    ],
)
def test_the_budget_and_its_note(budget: int | None, slots: int, expected: int, noted: bool) -> None:
    found, notes = resolve_budget(budget, slots)
    assert found == expected
    assert notes == ((f"K = {expected} lies outside the usual 8 to 12 (M22)",) if noted else ())
