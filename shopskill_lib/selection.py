"""The selection rule of METHOD M21-M22 as pure functions, the same for one gate and for every resample."""

from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Integral

import numpy as np
from numpy.typing import NDArray

from shopskill_lib.errors import ParameterError
from shopskill_lib.sources import Intervention

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]

TOLERANCE = 1e-12
"""Coefficients closer than this are a tie (M21) or count as 0 (M22)."""

DEFAULT_BUDGET = 10
USUAL_BUDGETS = range(8, 13)


@dataclass(frozen=True, slots=True)
class Decision:
    """What the rule says of one factor.

    Attributes:
        rank: place among the survivors, None for a rewrite_loser or never_shown.
        status: selected, non_positive, budget_excluded, retired, rewrite_loser or never_shown.
        reason: the sentence that explains it.
    """

    intervention_id: str
    rank: int | None
    status: str
    reason: str


def resolve_budget(budget: int | None, n_slots: int) -> tuple[int, tuple[str, ...]]:
    """Return K and what must be printed about it (M22).

    Args:
        budget: an explicit K, or None for min(10, number of slots).
        n_slots: M, the number of slots, each of which gives at most one survivor.

    Raises:
        ParameterError: K is no whole number in 1 .. M.
    """
    if budget is None:
        K = min(DEFAULT_BUDGET, n_slots)
    elif isinstance(budget, bool) or not isinstance(budget, Integral) or not 1 <= budget <= n_slots:
        raise ParameterError(
            f"the budget K is {budget!r}",
            where="budget",
            allowed=f"a whole number from 1 to the number of slots, here {n_slots}",
            todo="give such a number, or leave it out for min(10, slots)",
        )
    else:
        K = int(budget)
    unusual = K not in USUAL_BUDGETS
    return K, ((f"K = {K} lies outside the usual 8 to 12 (M22)",) if unusual else ())


class Rule:
    """M21 and M22 for one list of interventions and one budget.

    Called with (B, K) coefficients it returns (B, K) ranks, 0 for "not ranked", and (B, K) selected flags. NaN
    marks a factor without an estimate (never shown): it is neither ranked nor selected.
    """

    def __init__(self, interventions: Sequence[Intervention], budget: int) -> None:
        self.budget = budget
        self.canonical = canonical_order(interventions)
        families: dict[str, list[int]] = {}
        for k in sorted(self.canonical, key=lambda k: interventions[k].kind == "candidate"):
            families.setdefault(interventions[k].slot, []).append(int(k))
        self.families = [family for family in families.values() if len(family) > 1]

    def __call__(self, coefficients: FloatArray) -> tuple[IntArray, BoolArray]:
        """Rank the survivors of every row and select the positive ones within the budget."""
        survivors = self._drop_losers(np.where(np.isnan(coefficients), -np.inf, coefficients))
        survivors[np.abs(survivors) <= TOLERANCE] = 0.0
        order = self.canonical[np.argsort(_tied(survivors[:, self.canonical]), axis=1, kind="stable")]
        ranks = np.empty(survivors.shape, dtype=np.int64)
        np.put_along_axis(ranks, order, np.arange(1, survivors.shape[1] + 1)[None, :], axis=1)
        ranks[np.isneginf(survivors)] = 0
        return ranks, (survivors > 0) & (ranks > 0) & (ranks <= self.budget)

    def _drop_losers(self, coefficients: FloatArray) -> FloatArray:
        """Set every version but its slot's winner to -inf; a tie keeps the old text, else the first (M21, I18)."""
        left = coefficients.copy()
        for family in self.families:
            values = coefficients[:, family]
            winner = np.argmax(values >= values.max(axis=1, keepdims=True) - TOLERANCE, axis=1)
            lost = np.arange(len(family))[None, :] != winner[:, None]
            left[:, family] = np.where(lost, -np.inf, values)
        return left


def _tied(values: FloatArray) -> IntArray:
    """Number (B, K) values from the largest down; neighbours closer than TOLERANCE share a number.

    Estimates that are equal but for rounding, which depends on the order of the rows, are so one tie (M22).
    """
    falling = np.argsort(-values, axis=1, kind="stable")
    ordered = np.take_along_axis(np.where(np.isneginf(values), np.finfo(np.float64).min, values), falling, axis=1)
    apart = ordered[:, :-1] > ordered[:, 1:] + TOLERANCE
    numbers = np.zeros(values.shape, dtype=np.int64)
    np.put_along_axis(numbers, falling[:, 1:], np.cumsum(apart, axis=1), axis=1)
    return numbers


def canonical_order(interventions: Sequence[Intervention]) -> IntArray:
    """(K,) columns in canonical order, then by id (M22): a rewrite keeps its slot's place, ADDs come last."""
    place: dict[str, int] = {}
    for item in sorted(interventions, key=lambda item: item.kind == "candidate"):
        place.setdefault(item.slot, item.order)
    added = [item.kind == "candidate" and item.operation == "ADD" for item in interventions]
    keys = [(last, place[item.slot], item.intervention_id) for last, item in zip(added, interventions, strict=True)]
    return np.array(sorted(range(len(keys)), key=keys.__getitem__), dtype=np.int64)


def select(
    coefficients: FloatArray, interventions: Sequence[Intervention], budget: int
) -> tuple[tuple[Decision, ...], tuple[str, ...]]:
    """Apply the rule to (K,) coefficients.

    Returns:
        One decision a factor, in column order, and the selected ids in canonical order.
    """
    ranks, chosen = Rule(interventions, budget)(coefficients[None, :])
    decisions = tuple(
        _decide(item, float(alpha), int(rank), bool(flag), budget)
        for item, alpha, rank, flag in zip(interventions, coefficients, ranks[0], chosen[0], strict=True)
    )
    selected = tuple(interventions[k].intervention_id for k in canonical_order(interventions) if chosen[0, k])
    return decisions, selected


def _decide(item: Intervention, alpha: float, rank: int, chosen: bool, budget: int) -> Decision:
    """Name the status of one factor and say why."""
    if np.isnan(alpha):
        return Decision(item.intervention_id, None, "never_shown", "no row shows it, so it has no estimate")
    if not rank:
        return Decision(
            item.intervention_id, None, "rewrite_loser", f"another version of {item.slot} is estimated higher"
        )
    if chosen:
        return Decision(item.intervention_id, rank, "selected", f"positive estimate, rank {rank} of at most {budget}")
    positive = alpha > TOLERANCE
    why = f"positive estimate, but rank {rank} is over the budget of {budget}" if positive else "no positive estimate"
    left = "budget_excluded" if positive else "non_positive"
    return Decision(item.intervention_id, rank, "retired" if item.kind == "current" else left, why)
