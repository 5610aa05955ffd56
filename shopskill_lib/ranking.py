"""Does the ranking of a gate mean anything on tasks it has not seen? Tables and verdict of what was measured there.

Shown beside the rule: nothing is selected by it (M23, METHOD section 13).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from shopskill_lib import agreement, resampling
from shopskill_lib.agreement import Agreement, Estimate
from shopskill_lib.observations import plain_rows

BARE, TOP, BOTTOM, PLACEBO, FRESH = "bare", "top", "bottom", "placebo", "fresh"
"""Arms: no skill; the K chunks ranked first and last; neutral text as long as Top-K; a mask of K chunks a task."""

RANDOM = "random:"
"""Beginning of the arms of Random-K sets, numbered from 0."""

FEW_TASKS, FEW_SETS = 20, 5
"""Below them intervals over tasks, and over random sets, are coarse."""

TOTALS = ("naive", "shrunken", "halves")
"""What the gate said of its Top-K's total: sum of the coefficients, of the shrunken ones, over halves of its tasks."""


@dataclass(frozen=True, slots=True)
class Measured:
    """What the arms of a ranking earned, on tasks of which every episode is scored.

    Attributes:
        simulated: whether any of it rests on a simulated model.
        checkpoint: weights that were measured.
        plan_sha256: hash of the frozen plan.
        K: chunks a set.
        slots: slots that the gate ranks.
        sets: one row an arm of `rewards`: `arm`, `shown` (ids), `predicted` (None for the placebo), `characters` of the
            prompt's part, `tokens` beyond bare in the first prompt (None where the server counts none).
        rewards: one row a task, one column an arm, bare included.
        fresh: one row an episode of a fresh mask: `task` (row of `rewards`), `predicted`, `reward`.
        totals: what the gate said of its Top-K's total, by the names of `TOTALS`; None where it said nothing.
        notes: what must be printed beside the tables.
    """

    simulated: bool
    checkpoint: str
    plan_sha256: str
    K: int
    slots: int
    sets: pd.DataFrame
    rewards: pd.DataFrame
    fresh: pd.DataFrame
    totals: Mapping[str, float | None]
    notes: tuple[str, ...]

    @property
    def ranked(self) -> list[str]:
        """Arms whose gain the gate predicts."""
        return [str(arm) for arm in self.rewards.columns if arm not in (BARE, PLACEBO)]

    @property
    def predicted(self) -> np.ndarray[Any, np.dtype[np.float64]]:
        """(S,) predicted gains of the ranked arms."""
        return self.sets.set_index("arm").loc[self.ranked, "predicted"].to_numpy(dtype=np.float64)


@dataclass(frozen=True, slots=True)
class Ranking:
    """A ranking, judged.

    Attributes:
        measured: what was judged.
        gains: arm -> its reward beyond bare, bare itself aside.
        differences: name -> task-paired difference of reward.
        sets: agreement over Top-K, Bottom-K and the random sets.
        masks: agreement over fresh masks of exactly K chunks; None where none were rolled out.
        quantiles: measured gain by quantile of the predicted one; empty without fresh masks.
        resamples: of tasks; `analysis_seed` their seed.
    """

    measured: Measured
    gains: Mapping[str, Estimate]
    differences: Mapping[str, Estimate]
    sets: Agreement
    masks: Agreement | None
    quantiles: pd.DataFrame
    resamples: int
    analysis_seed: int

    def arms(self) -> pd.DataFrame:
        """One row an arm: what it shows, how long that is, what was predicted and what it earned beyond bare."""
        rewards = self.measured.rewards
        rows = self.measured.sets.copy()
        rows["reward"] = [float(rewards[arm].mean()) for arm in rows["arm"]]
        found = [self.gains.get(arm, Estimate(None)) for arm in rows["arm"]]
        rows["gain"], rows["ci_low"], rows["ci_high"] = zip(
            *((one.value, one.low, one.high) for one in found), strict=True
        )
        return rows

    def to_frame(self) -> pd.DataFrame:
        """One row a task-paired difference of reward, with its 95 % interval."""
        return pd.DataFrame([{"difference": name, **found.row} for name, found in self.differences.items()])

    def agreements(self) -> pd.DataFrame:
        """One row a figure that compares measured with predicted gains, over sets and over fresh masks."""
        named = {"sets": self.sets} | ({"fresh masks": self.masks} if self.masks is not None else {})
        rows = [
            {"over": over, "rows": found.rows, "figure": figure, **getattr(found, name).row}
            for over, found in named.items()
            for figure, name in (
                ("Spearman", "spearman"),
                ("Kendall tau-b", "kendall"),
                ("calibration slope", "slope"),
                ("measured minus predicted", "excess"),
            )
        ]
        return pd.DataFrame(rows)

    def totals(self) -> pd.DataFrame:
        """One row a total that the gate gave its Top-K, with the measured total minus it."""
        measured = self.differences["top - bare"]
        rows = [{"total": "measured here", **measured.row}]
        for name in TOTALS:
            said = self.measured.totals[name]
            rows.append({"total": name, "estimate": said} | ({} if said is None else _less(measured, said)))
        return pd.DataFrame(rows)

    def verdict(self) -> str:
        """Say in a few sentences what the ranking was worth here."""
        found, totals = self.differences, self.measured.totals
        first = "; ".join(f"{name} {one}" for name, one in found.items() if name.startswith(TOP))
        told = [
            f"{self._label()}{len(self.measured.rewards)} tasks that the gate has not seen, K = {self.measured.K} of "
            f"{self.measured.slots} ranked chunks: {first}.",
            f"Over sets: Spearman {self.sets.spearman}, calibration slope {self.sets.slope}.",
        ]
        if self.masks is not None:
            told.append(
                f"Over {self.masks.rows} fresh masks: Spearman {self.masks.spearman}, Kendall {self.masks.kendall}, "
                f"calibration slope {self.masks.slope}."
            )
        said = ", ".join(f"{name} {value:+.3f}" for name, value in totals.items() if value is not None)
        told.append(f"The gate gave its Top-K a total of {said}; measured {found['top - bare']}.")
        return " ".join([*told, "Nothing is selected by this (M23)."])

    def summary(self) -> str:
        """All tables, the verdict and the notes."""
        tables = (self.arms().drop(columns="shown"), self.to_frame(), self.agreements(), self.totals())
        texts = [
            table.round(4).dropna(axis="columns", how="all").to_string(index=False, na_rep="-") for table in tables
        ]
        return "\n".join([*texts, self.verdict(), *(f"note: {note}" for note in self.measured.notes)])

    def __str__(self) -> str:
        return self.summary()

    def _label(self) -> str:
        return "simulated: " if self.measured.simulated else ""

    def key(self) -> dict[str, Any]:
        """What makes this look and no other: the frozen plan and the rewards."""
        rewards = [plain_rows(table) for table in (self.measured.rewards, self.measured.fresh)]
        return {"plan_sha256": self.measured.plan_sha256, "rewards": rewards}

    def to_json(self) -> dict[str, Any]:
        """Return the record; missing is None."""
        return {
            "simulated": self.measured.simulated,
            "checkpoint": self.measured.checkpoint,
            "plan_sha256": self.measured.plan_sha256,
            "n_tasks": len(self.measured.rewards),
            "K": self.measured.K,
            "resamples": self.resamples,
            "analysis_seed": self.analysis_seed,
            "arms": plain_rows(self.arms()),
            "differences": plain_rows(self.to_frame()),
            "agreement": plain_rows(self.agreements()),
            "quantiles": plain_rows(self.quantiles),
            "totals": plain_rows(self.totals()),
            "selected": [],
            "verdict": self.verdict(),
            "notes": list(self.measured.notes),
        }


def _less(measured: Estimate, said: float) -> dict[str, float | None]:
    """Return measured minus said with its interval; what the gate said counts as a fixed number."""
    ends = [None if value is None else value - said for value in (measured.value, measured.low, measured.high)]
    return dict(zip(("measured_minus", "minus_low", "minus_high"), ends, strict=True))


def judge(measured: Measured, *, resamples: int = 10_000, analysis_seed: int = 0) -> Ranking:
    """Judge what was measured.

    Args:
        measured: of `contest.measure`.
        resamples: bootstrap resamples of whole tasks.
        analysis_seed: of the bootstrap.

    Raises:
        ParameterError: resamples or seed are out of range.
    """
    resampling.refuse_draws(resamples, analysis_seed)
    draws = (resamples, analysis_seed)
    rewards, fresh = measured.rewards, measured.fresh
    gains = rewards[measured.ranked].sub(rewards[BARE], axis="index").to_numpy(dtype=np.float64)
    masks, parts = None, pd.DataFrame()
    if len(fresh):
        tasks = fresh["task"].to_numpy(dtype=np.int64)
        columns = (
            fresh["predicted"].to_numpy(dtype=np.float64),
            fresh["reward"].to_numpy(dtype=np.float64) - rewards[BARE].to_numpy(dtype=np.float64)[tasks],
            tasks,
        )
        masks, parts = agreement.of_masks(*columns, *draws), agreement.quantiles(*columns, *draws)
    return Ranking(
        measured=measured,
        gains={
            str(arm): agreement.difference((rewards[[arm]].to_numpy() - rewards[[BARE]].to_numpy()), *draws)
            for arm in rewards.columns
            if arm != BARE
        },
        differences=_differences(rewards, *draws),
        sets=agreement.of_sets(measured.predicted, gains, *draws),
        masks=masks,
        quantiles=parts,
        resamples=resamples,
        analysis_seed=analysis_seed,
    )


def _differences(rewards: pd.DataFrame, resamples: int, seed: int) -> dict[str, Estimate]:
    """Return the task-paired differences of reward, by name."""
    random = [arm for arm in rewards.columns if str(arm).startswith(RANDOM)]
    couples = {f"{one} - {other}": (one, [other]) for one, other in ((TOP, BOTTOM), (TOP, BARE), (TOP, PLACEBO))}
    couples |= {"top - random": (TOP, random)} if random else {}
    couples |= {f"{one} - bare": (one, [BARE]) for one in (BOTTOM, PLACEBO)}
    return {
        name: agreement.difference(
            rewards[[one]].to_numpy(dtype=np.float64) - rewards[others].to_numpy(dtype=np.float64), resamples, seed
        )
        for name, (one, others) in couples.items()
    }
