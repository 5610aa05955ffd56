"""Does a chunk's effect differ between groups of tasks, or between tasks? Shown beside M19 (METHOD section 13).

Arrays only. Groups are known before any outcome. The bare run of a pair is never one: it is half of the difference, so
pairs grouped by it would differ by its luck alone.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import optimize, stats

from shopskill_lib import ols
from shopskill_lib.checks import holm
from shopskill_lib.errors import DesignError

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

LEVEL = 0.05

LEAST_PAIRS = 4
"""Pairs a factor below which a group is left out: its errors would be too coarse to be compared."""

COLUMNS = (
    "grouping", "group", "pairs", "intervention_id", "effect", "std_error", "ci_low", "ci_high", "shrunken", "p_holm",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Grouping:
    """The effects within the groups of one description of the tasks.

    Attributes:
        name: of the description, as `category`.
        groups: G groups that were fitted, by size; `pairs` their pairs.
        effects: (G, K) coefficients of M19 within each group; `errors` (G, K) theirs.
        half_widths: (G, K) of their 95 % t intervals.
        shrunken: (G, K) effects drawn towards each factor's common effect, by as much as their spread is noise.
        tau: standard deviation of an effect between groups, over all factors; 0 where the spread is no more than noise.
        pvalues: (K,) Welch's test that the groups have one effect; None where fewer than two groups were fitted.
        p_holm: the same adjusted for all factors of all groupings.
        left_out: (group, reason) of those that were not fitted.
    """

    name: str
    groups: tuple[str, ...]
    pairs: tuple[int, ...]
    effects: FloatArray
    errors: FloatArray
    half_widths: FloatArray
    shrunken: FloatArray
    tau: float
    pvalues: FloatArray | None
    p_holm: FloatArray | None
    left_out: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Spread:
    """How much effects differ between tasks, from several masked samples of each.

    Attributes:
        tau: (K,) standard deviation of each effect over tasks, 0 where its square is estimated below 0.
        tau_low: (K,) lower ends of 95 % intervals clustered by task; `tau_high` the upper ones.
        common: root of the mean square over the factors, `common_low` and `common_high` its interval.
    """

    tau: FloatArray
    tau_low: FloatArray
    tau_high: FloatArray
    common: float
    common_low: float
    common_high: float


@dataclass(frozen=True, slots=True)
class Subgroups:
    """Effects by group and between tasks.

    Attributes:
        names: K factor ids.
        groupings: one a description that the pairs carry.
        spread: between tasks; None where it cannot be estimated, `spread_missing` then says why.
    """

    names: tuple[str, ...]
    groupings: tuple[Grouping, ...]
    spread: Spread | None
    spread_missing: str

    def to_frame(self) -> pd.DataFrame:
        """One row a grouping, group and factor; groups left out have none."""
        rows = [
            (item.name, group, item.pairs[g], name, effect, item.errors[g, k], effect - half, effect + half,
             item.shrunken[g, k], None if item.p_holm is None else item.p_holm[k])
            for item in self.groupings
            for g, group in enumerate(item.groups)
            for k, (name, effect, half) in enumerate(
                zip(self.names, item.effects[g], item.half_widths[g], strict=True)
            )
        ]  # fmt: skip
        return pd.DataFrame(rows, columns=list(COLUMNS))

    def rows(self) -> list[tuple[str, str, str]]:
        """Return (check, what was found, what it means): one a grouping, then the spread between tasks."""
        found = [(f"effects by {item.name}", *self._told(item)) for item in self.groupings]
        if not found:
            found = [("effects by group", "the pairs name no groups of tasks", "nothing is known of groups")]
        return [*found, ("effects between tasks", *self._between())]

    def verdict(self) -> str:
        """Say in one sentence which effects differ between groups."""
        apart = [
            f"{name} by {item.name} (Holm p = {p:.2g})"
            for item in self.groupings
            if item.p_holm is not None
            for name, p in zip(self.names, item.p_holm, strict=True)
            if p <= LEVEL
        ]
        if apart:
            return f"Effects that differ between groups: {', '.join(apart)}."
        tested = [item.name for item in self.groupings if item.p_holm is not None]
        if not tested:
            why = "fewer than two groups can be fitted" if self.groupings else "the pairs name no groups"
            return f"Whether an effect differs between groups of tasks could not be tested: {why}."
        return f"No factor's effect is shown to differ between groups of tasks by {', '.join(tested)}."

    def to_json(self) -> dict[str, Any]:
        """Return plain values; what could not be estimated is None, with its reason."""
        return {
            "groupings": [
                {"name": item.name, "groups": dict(zip(item.groups, item.pairs, strict=True)), "tau": item.tau,
                 "p_holm": None if item.p_holm is None else dict(zip(self.names, item.p_holm.tolist(), strict=True)),
                 "left_out": [list(pair) for pair in item.left_out]}
                for item in self.groupings
            ],
            "between_tasks": None
            if self.spread is None
            else {"tau": self.spread.common, "low": self.spread.common_low, "high": self.spread.common_high},
            "between_tasks_missing": self.spread_missing or None,
            "verdict": self.verdict(),
        }  # fmt: skip

    def _told(self, item: Grouping) -> tuple[str, str]:
        """Say what one grouping shows."""
        fitted = ", ".join(f"{group} ({pairs})" for group, pairs in zip(item.groups, item.pairs, strict=True)) or "none"
        gone = "; ".join(f"{group}: {reason}" for group, reason in item.left_out)
        found = f"groups fitted, with their pairs: {fitted}" + (f"; left out: {gone}" if gone else "")
        if item.p_holm is None:
            return found, "fewer than two groups can be fitted: nothing is known of differences between them"
        apart = [name for name, p in zip(self.names, item.p_holm, strict=True) if p <= LEVEL]
        found += f"; spread between groups {item.tau:.3f}, smallest Holm p = {item.p_holm.min():.2g}"
        if apart:
            return found, f"{', '.join(apart)}: one number does not describe the effect in all groups"
        return found, "no factor's effect is shown to differ between these groups"

    def _between(self) -> tuple[str, str]:
        """Say how much effects differ between tasks."""
        if self.spread is None:
            return f"cannot be estimated: {self.spread_missing}", "an effect is a mean over tasks that may differ"
        told = self.spread
        found = (
            f"standard deviation {told.common:.3f} over all factors (95 % {told.common_low:.3f} to "
            f"{told.common_high:.3f})"
        )
        if told.common_low > 0:
            return found, "effects differ between tasks: a coefficient is a mean over them"
        return found, "no spread of effects between tasks is shown"


def study(
    delta: FloatArray,
    masks: IntArray,
    tasks: IntArray,
    names: Sequence[str],
    described: Mapping[str, Sequence[str]],
) -> Subgroups:
    """Estimate effects by group and between tasks.

    Args:
        delta: (n,) paired differences.
        masks: (n, K) 0/1.
        tasks: (n,) task number of every row.
        names: K factor ids.
        described: description -> n groups, "" where a row has none; known before any outcome.
    """
    found = [_grouping(name, delta, masks, tasks, names, np.array(cells)) for name, cells in described.items()]
    known = [item.pvalues for item in found if item.pvalues is not None]
    adjusted = iter(np.split(holm(np.concatenate(known)), len(known)) if known else [])
    groupings = [item if item.pvalues is None else replace(item, p_holm=next(adjusted)) for item in found]
    spread, missing = between_tasks(delta, masks, tasks, names)
    return Subgroups(tuple(names), tuple(groupings), spread, missing)


def _grouping(
    name: str, delta: FloatArray, masks: IntArray, tasks: IntArray, names: Sequence[str], cells: NDArray[np.str_]
) -> Grouping:
    """Fit M19 within every group of tasks that is large enough, the largest group first."""
    K = len(names)
    fits: dict[str, ols.OLSFit] = {}
    left_out: list[tuple[str, str]] = []
    groups, counts = np.unique(cells, return_counts=True)
    for g in np.argsort(-counts, kind="stable"):
        group, rows = str(groups[g]), cells == groups[g]
        fit = _fit_group(delta[rows], masks[rows], tasks[rows], names) if group else "not described"
        if np.isin(tasks[rows], tasks[~rows]).any():
            fit = "some of its tasks are in other groups too"
        if isinstance(fit, str):
            left_out.append((group or "(empty)", f"{counts[g]} pairs, {fit}"))
        else:
            fits[group] = fit
    effects, errors = (_stacked([getattr(fit, field) for fit in fits.values()], K) for field in ("params", "bse"))
    half_widths = _stacked([np.diff(fit.conf_int())[:, 0] / 2 for fit in fits.values()], K)
    several = len(fits) > 1
    tau = between_groups(effects, errors) if several else 0.0
    freedom = np.array([fit.df_inference for fit in fits.values()])
    return Grouping(
        name=name,
        groups=tuple(fits),
        pairs=tuple(fit.nobs for fit in fits.values()),
        effects=effects,
        errors=errors,
        half_widths=half_widths,
        shrunken=_shrunken(effects, errors, tau) if several else effects,
        tau=tau,
        pvalues=np.array([welch(*pair, freedom) for pair in zip(effects.T, errors.T, strict=True)])
        if several
        else None,
        p_holm=None,
        left_out=tuple(left_out),
    )


def _stacked(rows: Sequence[FloatArray], K: int) -> FloatArray:
    return np.array(rows, dtype=np.float64).reshape(len(rows), K)


def _fit_group(delta: FloatArray, masks: IntArray, tasks: IntArray, names: Sequence[str]) -> ols.OLSFit | str:
    """Fit one group, or say why it is not fitted."""
    if len(delta) < LEAST_PAIRS * len(names):
        return f"fewer than {LEAST_PAIRS} a factor"
    try:
        return ols.fit(delta, masks, names, tasks)
    except DesignError:
        return "its masks do not tell the factors apart"


def welch(effects: FloatArray, errors: FloatArray, freedom: FloatArray) -> float:
    """Return the p-value of Welch's test that G independent estimates have one expectation.

    Args:
        effects: (G,) estimates, G >= 2.
        errors: (G,) their standard errors; estimates without any error differ for certain or not at all, and where
            only some have none nothing is tested.
        freedom: (G,) degrees of freedom of the errors.
    """
    if not errors.any():
        return float(np.ptp(effects) == 0)
    if not errors.all():
        return 1.0
    G, weights = len(effects), errors**-2.0
    shares = weights / weights.sum()
    q = float(np.sum(weights * (effects - shares @ effects) ** 2)) / (G - 1)
    loss = float(np.sum((1 - shares) ** 2 / freedom)) / (G**2 - 1)
    return float(stats.f.sf(q / (1 + 2 * (G - 2) * loss), G - 1, 1 / (3 * loss)))


def between_groups(effects: FloatArray, errors: FloatArray) -> float:
    """Return the spread tau of effects between groups, one for all factors (Paule and Mandel 1982).

    Args:
        effects: (G, K) estimates.
        errors: (G, K) their standard errors.
    """
    varying = (errors > 0).all(axis=0)
    if not varying.any():
        return 0.0
    effects, errors = effects[:, varying], errors[:, varying]

    def excess(square: float) -> float:
        return _weighted_squares(effects, errors, square) - float(effects.shape[1] * (len(effects) - 1))

    if excess(0.0) <= 0:
        return 0.0
    highest = float(np.sum((effects - effects.mean(axis=0)) ** 2)) + 1e-12
    return math.sqrt(optimize.brentq(excess, 0.0, highest, xtol=1e-14))


def _weighted_squares(effects: FloatArray, errors: FloatArray, square: float) -> float:
    weights = 1 / (errors**2 + square)
    common = (weights * effects).sum(axis=0) / weights.sum(axis=0)
    return float(np.sum(weights * (effects - common) ** 2))


def _shrunken(effects: FloatArray, errors: FloatArray, tau: float) -> FloatArray:
    """Draw (G, K) effects towards their factor's common one: the posterior means under a normal spread tau."""
    variances = np.maximum(errors**2 + tau**2, np.finfo(np.float64).tiny)
    common = (effects / variances).sum(axis=0) / (1 / variances).sum(axis=0)
    return np.asarray(common + tau**2 / variances * (effects - common))


def between_tasks(
    delta: FloatArray, masks: IntArray, tasks: IntArray, names: Sequence[str]
) -> tuple[Spread | None, str]:
    """Estimate how much effects differ between tasks, or say why that cannot be done.

    Two samples of a task share its effects and its bare run but not their luck: the product of their residuals is
    regressed on a constant (what they share whatever is shown) and on the products of their centred masks, whose
    coefficients are the squares of tau. This holds for masks that are drawn independently for each sample.

    Args:
        delta: (n,) paired differences.
        masks: (n, K) 0/1.
        tasks: (n,) task number of every row.
        names: K factor ids.
    """
    if len(np.unique(tasks)) == len(tasks):
        return None, "every task has one masked sample"
    first, second = _within(tasks)
    if len(np.unique(tasks[first])) < LEAST_PAIRS * len(names):
        return None, f"fewer than {LEAST_PAIRS} tasks a factor have several masked samples"
    residuals = delta - masks @ np.linalg.lstsq(masks.astype(np.float64), delta)[0]
    centred = masks - masks.mean(axis=0)
    columns = np.column_stack([centred[first] * centred[second], np.ones(len(first))])
    try:
        fit = ols.fit(residuals[first] * residuals[second], columns, [*names, "shared"], tasks[first])
    except DesignError:
        return None, "the samples of a task have masks that depend on each other"
    K = len(names)
    low, high = fit.conf_int()[:K].T
    mean, error = float(fit.params[:K].mean()), float(np.sqrt(fit.cov_params[:K, :K].sum())) / K
    half = float(stats.t.ppf(1 - LEVEL / 2, fit.df_inference)) * error
    common = _root(np.array([mean, mean - half, mean + half])).tolist()
    return Spread(_root(fit.params[:K]), _root(low), _root(high), *common), ""


def _root(squares: FloatArray) -> FloatArray:
    return np.sqrt(np.clip(squares, 0.0, None))


def _within(tasks: IntArray) -> tuple[IntArray, IntArray]:
    """Return the rows of every two samples of one task."""
    order = np.argsort(tasks, kind="stable")
    parts = np.split(order, np.flatnonzero(np.diff(tasks[order])) + 1)
    pairs = np.array([pair for part in parts for pair in combinations(part, 2)], dtype=np.int64).reshape(-1, 2)
    return pairs[:, 0], pairs[:, 1]
