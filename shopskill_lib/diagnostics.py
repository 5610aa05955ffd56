"""Is the model of a gate right? Checks beside the fit of M19, each with a sentence on its meaning (METHOD section 13).

Arrays only. No check changes an estimate or a decision.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shopskill_lib import ols
from shopskill_lib.checks import holm
from shopskill_lib.errors import DesignError

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

LEVEL = 0.05
SHOWN = 10
"""Interactions that a record keeps, the strongest first."""


@dataclass(frozen=True, slots=True)
class Intercept:
    """A shift between the arms that no factor made: the fit of M19 with a constant (never the fit that decides, I16).

    Attributes:
        estimate: the constant, in units of the outcome; `error` and `p_value` its own.
        shifts: (K,) coefficients of M19 minus those beside the constant: what the shift puts into each.
    """

    estimate: float
    error: float
    p_value: float
    shifts: FloatArray

    def sentence(self) -> str:
        """What it means."""
        size = f"it moves the coefficients by {self.shifts.min():+.3f} to {self.shifts.max():+.3f}"
        if self.p_value > LEVEL:
            return f"not told apart from 0; taken at its estimate, {size}"
        return (
            f"the arms differ by more than the factors explain; {size}: read the coefficients with that much less trust"
        )


@dataclass(frozen=True, slots=True)
class Covariate:
    """The masked outcome regressed on a constant, the bare outcome and the factors.

    Attributes:
        slope: coefficient of the bare outcome, 1 where the paired difference is the best use of it; `error` its own.
        errors_paired: mean standard error of the factors in M19; `errors_constant` beside a constant;
            `errors_adjusted` beside a constant and the bare outcome.
        correlation: of both arms' outcomes over the pairs: the share of variance that lies between tasks.
    """

    slope: float
    error: float
    errors_paired: float
    errors_constant: float
    errors_adjusted: float
    correlation: float

    def sentence(self) -> str:
        """What it means."""
        if self.errors_adjusted < 0.95 * self.errors_paired:
            return (
                f"one bare run says less of its task than the difference assumes; a fit that weighs it has errors "
                f"{1 - self.errors_adjusted / self.errors_paired:.0%} smaller"
            )
        return "weighing the bare run would gain hardly anything"


@dataclass(frozen=True, slots=True)
class Interaction:
    """Two factors of different slots shown together: the product's coefficient beside all main effects.

    Attributes:
        p_holm: adjusted for the number of pairs that were tried.
    """

    factors: tuple[str, str]
    estimate: float
    error: float
    p_holm: float


@dataclass(frozen=True, slots=True)
class Diagnostics:
    """The checks of one outcome; None where one cannot be made under these masks.

    Attributes:
        interactions: every pair that could be fitted, the strongest first.
    """

    intercept: Intercept | None
    covariate: Covariate | None
    interactions: tuple[Interaction, ...]

    def rows(self) -> list[tuple[str, str, str]]:
        """Return (check, what was found, what it means), one a check."""
        return [
            ("shift between the arms", *self._shift()),
            ("bare run as covariate", *self._weight()),
            ("interactions of two factors", *self._interplay()),
        ]

    def __str__(self) -> str:
        return "\n".join(f"{check}: {found}; {meaning}." for check, found, meaning in self.rows())

    def to_json(self) -> dict[str, Any]:
        """Return plain values; a check that cannot be made is None."""
        shift = None if self.intercept is None else {**asdict(self.intercept), "shifts": self.intercept.shifts.tolist()}
        return {
            "intercept": shift,
            "covariate": None if self.covariate is None else asdict(self.covariate),
            "interactions": [asdict(item) | {"factors": list(item.factors)} for item in self.interactions[:SHOWN]],
            "pairs_tried": len(self.interactions),
        }

    def _shift(self) -> tuple[str, str]:
        if self.intercept is None:
            return "cannot be told apart from the factors", "nothing is known of a shift between the arms"
        found = self.intercept
        return f"{found.estimate:+.3f} (error {found.error:.3f}, p = {found.p_value:.2g})", found.sentence()

    def _weight(self) -> tuple[str, str]:
        if self.covariate is None:
            return "cannot be told apart from the factors", "nothing is known of the bare run's weight"
        found = self.covariate
        errors = f"{found.errors_paired:.3f}, {found.errors_constant:.3f}, {found.errors_adjusted:.3f}"
        return (
            f"weight {found.slope:.2f} (error {found.error:.2f}), correlation of the arms {found.correlation:.2f}, "
            f"mean errors paired, with a constant, with both {errors}",
            found.sentence(),
        )

    def _interplay(self) -> tuple[str, str]:
        if not self.interactions:
            return "no pair can be fitted", "nothing is known of interactions"
        first = self.interactions[0]
        found = (
            f"largest: {' and '.join(first.factors)} {first.estimate:+.3f} (error {first.error:.3f}, "
            f"Holm p = {first.p_holm:.2g})"
        )
        apart, tried = sum(item.p_holm <= LEVEL for item in self.interactions), len(self.interactions)
        if not apart:
            return found, f"none of {tried} pairs is told apart from 0 (median error {self._median_error():.3f})"
        return found, f"{apart} of {tried} pairs do not add up: each coefficient is a mean over what else was shown"

    def _median_error(self) -> float:
        return float(np.median([item.error for item in self.interactions]))


def diagnose(
    masked: FloatArray, bare: FloatArray, masks: IntArray, tasks: IntArray, names: Sequence[str], slots: Sequence[str]
) -> Diagnostics:
    """Check the model of one gate.

    Args:
        masked: (n,) outcomes of the masked runs.
        bare: (n,) outcomes of the bare runs of the same tasks.
        masks: (n, K) 0/1, full rank.
        tasks: (n,) task number of every row.
        names: K factor ids.
        slots: K slot ids: versions of one slot never meet, so they have no interaction.
    """
    paired = ols.fit(masked - bare, masks, names, tasks)
    with_constant = np.column_stack([masks.astype(np.float64), np.ones(len(masks))])
    constant = _fit(masked - bare, with_constant, [*names, "constant"], tasks)
    adjusted = _fit(masked, np.column_stack([with_constant, bare]), [*names, "constant", "bare"], tasks)
    return Diagnostics(
        intercept=None if constant is None else _intercept(paired, constant),
        covariate=None
        if constant is None or adjusted is None
        else _covariate(paired, constant, adjusted, masked, bare),
        interactions=_interactions(masked - bare, masks, tasks, names, slots),
    )


def _fit(outcome: FloatArray, columns: FloatArray, names: Sequence[str], tasks: IntArray) -> ols.OLSFit | None:
    """Fit M19 with further columns; None where they cannot be told apart."""
    try:
        return ols.fit(outcome, columns, names, tasks)
    except DesignError:
        return None


def _intercept(paired: ols.OLSFit, constant: ols.OLSFit) -> Intercept:
    return Intercept(
        estimate=float(constant.params[-1]),
        error=float(constant.bse[-1]),
        p_value=float(constant.pvalues[-1]),
        shifts=paired.params - constant.params[:-1],
    )


def _covariate(
    paired: ols.OLSFit, constant: ols.OLSFit, adjusted: ols.OLSFit, masked: FloatArray, bare: FloatArray
) -> Covariate:
    K = len(paired.params)
    return Covariate(
        slope=float(adjusted.params[-1]),
        error=float(adjusted.bse[-1]),
        errors_paired=float(paired.bse.mean()),
        errors_constant=float(constant.bse[:K].mean()),
        errors_adjusted=float(adjusted.bse[:K].mean()),
        correlation=float(np.corrcoef(masked, bare)[0, 1]),
    )


def _interactions(
    delta: FloatArray, masks: IntArray, tasks: IntArray, names: Sequence[str], slots: Sequence[str]
) -> tuple[Interaction, ...]:
    """Fit every product of two factors of different slots beside the main effects, one at a time."""
    found = []
    for i, j in combinations(range(len(names)), 2):
        if slots[i] == slots[j]:
            continue
        columns = np.column_stack([masks, masks[:, i] * masks[:, j]]).astype(np.float64)
        fit = _fit(delta, columns, [*names, "product"], tasks)
        if fit is not None:
            found.append(((names[i], names[j]), float(fit.params[-1]), float(fit.bse[-1]), float(fit.pvalues[-1])))
    adjusted = holm(np.array([p for *_, p in found])) if found else ()
    items = [
        Interaction(pair, estimate, error, float(p))
        for (pair, estimate, error, _), p in zip(found, adjusted, strict=True)
    ]
    order = sorted(range(len(items)), key=lambda k: (items[k].p_holm, found[k][3]))
    return tuple(items[k] for k in order)
