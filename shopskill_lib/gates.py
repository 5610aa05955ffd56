"""Gate A and every online gate: effects, uncertainty and decisions in one frozen result.

The estimator and the rule are METHOD M19-M22 exactly; intervals and stability stand beside them.
"""

from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from shopskill_lib import diagnostics, inference, masks, ols, rails, resampling, selection, subgroups
from shopskill_lib.comparison import PRIMARY, Comparison, compare_paired
from shopskill_lib.errors import DesignError, ParameterError
from shopskill_lib.observations import Observations, design_report, plain_rows, read_comparison, read_observations

__all__ = [
    "PRIMARY",
    "Comparison",
    "Gate",
    "Outcome",
    "compare_paired",
    "fit_gate",
    "read_comparison",
    "read_observations",
]

FloatArray = NDArray[np.float64]

RESAMPLES = 10_000
LEAST_CLUSTERS = 20

DECISION_COLUMNS = ("intervention_id", "coefficient", "std_error", "ci_low", "ci_high", "rank", "status")
"""What stands beside every decision, wherever it is printed."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """One outcome of a gate: its M19 fit on the shown factors and the means of its pairs."""

    fit: ols.OLSFit
    masked_mean: float
    bare_mean: float

    @property
    def delta_mean(self) -> float:
        """Mean paired difference."""
        return self.masked_mean - self.bare_mean


@dataclass(frozen=True, slots=True)
class Gate:
    """A gate: every factor's effect, its uncertainty and the rule's decision.

    Attributes:
        observations: the pairs it rests on.
        budget: K, the most factors that may be selected.
        outcomes: outcome -> fit; `reward` decides, the others stand beside it.
        decisions: K decisions, in column order; `selected` the chosen ids in canonical order.
        stability: task-level bootstrap of the whole rule.
        chance_selected: mean number of factors the same rule selects when none has an effect, with the fitted
            covariance.
        joint: all coefficients of the shown factors judged together: intervals, labels, shrinkage.
        bootstrap: percentile and BCa intervals of the same, from the task-level resamples.
        model: checks of the model: shift between the arms, bare reward as covariate, interactions.
        groups: effects by group of tasks, and their spread between tasks.
        halves: the rule on random halves of the tasks; None where halves are too small to be fitted.
        design: health of the masks.
        resamples_lost: resamples left out because their masks had not full rank.
        notes: what must be printed beside the table.
    """

    observations: Observations
    budget: int
    outcomes: dict[str, Outcome]
    decisions: tuple[selection.Decision, ...]
    selected: tuple[str, ...]
    stability: resampling.Stability
    chance_selected: float
    joint: inference.Inference
    bootstrap: resampling.BootstrapIntervals
    model: diagnostics.Diagnostics
    groups: subgroups.Subgroups
    halves: resampling.SplitHalf | None
    design: masks.DesignReport
    resamples_lost: int
    notes: tuple[str, ...]

    def coefficients(self, outcome: str = PRIMARY) -> dict[str, float | None]:
        """Id -> coefficient of one outcome, None where the factor was never shown."""
        fit = self.outcomes[outcome].fit
        known = dict(zip(fit.names, fit.params.tolist(), strict=True))
        return {factor: known.get(factor) for factor in self.observations.factors}

    def to_frame(self) -> pd.DataFrame:
        """One row a factor, in column order; missing numbers are NaN in memory and null on disk."""
        fitted = self.outcomes[PRIMARY].fit.to_frame().set_index("intervention_id")
        items = self.observations.interventions
        frame = pd.DataFrame(
            {
                "intervention_id": [item.intervention_id for item in items],
                "slot": [item.slot for item in items],
                "kind": [item.kind for item in items],
            }
        ).join(fitted, on="intervention_id")
        frame["rank"] = pd.array([decision.rank for decision in self.decisions], dtype="Int64")
        frame["status"] = [decision.status for decision in self.decisions]
        frame["reason"] = [decision.reason for decision in self.decisions]
        frame["selection_frequency"] = self.stability.selection_frequency
        frame["sign_probability"] = self.stability.sign_probability
        frame["rank_low"] = pd.array(self.stability.rank_low, dtype="Int64")
        frame["rank_high"] = pd.array(self.stability.rank_high, dtype="Int64")
        frame["rank_mean"] = pd.array(self.stability.rank_mean, dtype="Float64")
        frame["top_k"] = self.stability.top
        frame["exposure"] = self.observations.masks.sum(axis=0)
        if self.observations.missing:
            gone = self.observations.missing
            frame["worst_low"], frame["worst_high"] = gone.lowest, gone.highest
            frame["masked_complete"], frame["bare_complete"] = gone.masked_complete, gone.bare_complete
        return frame

    def together(self) -> pd.DataFrame:
        """One row a shown factor: what its coefficient says when all are judged together (METHOD section 13)."""
        joint, fit, drawn = self.joint, self.outcomes[PRIMARY].fit, self.bootstrap
        bca = np.array([(np.nan, np.nan) if ends is None else ends for ends in drawn.bca])
        return pd.DataFrame(
            {
                "intervention_id": fit.names,
                "coefficient": fit.params,
                "simultaneous_low": joint.simultaneous[:, 0],
                "simultaneous_high": joint.simultaneous[:, 1],
                "percentile_low": drawn.percentile[:, 0],
                "percentile_high": drawn.percentile[:, 1],
                "bca_low": bca[:, 0],
                "bca_high": bca[:, 1],
                "bca_missing": [reason or None for reason in drawn.reasons],
                "p_value": fit.pvalues,
                "p_holm": joint.holm,
                "p_bh": joint.bh,
                "label": joint.labels,
                "shrunken": joint.shrinkage.params,
            }
        )

    @property
    def naive_gain(self) -> float:
        """Sum of the selected coefficients: too high, because they were selected for being high."""
        return float(sum(value for name, value in self.coefficients().items() if name in self.selected and value))

    def trust(self) -> str:
        """Say in a few sentences how far the selection can be trusted (METHOD section 13)."""
        labels, spread = self.joint.labels, self.joint.shrinkage
        counts = ", ".join(f"{label} {labels.count(label)}" for label in ("keep", "drop", "undecided"))
        told = (
            f"{self._label()}Labels at {self.joint.rate}: {counts}. True effects have a "
            f"standard deviation of {spread.tau:.3f} (95 % interval {spread.tau_low:.3f} to {spread.tau_high:.3f})."
        )
        if self.halves is None:
            return f"{told} Halves of these tasks are too small to be fitted."
        shrunken = sum(value for name, value in zip(self._shown(), spread.params, strict=True) if name in self.selected)
        return (
            f"{told} The selected coefficients sum to {self.naive_gain:+.3f}, shrunken to {shrunken:+.3f}; a set "
            f"selected on one half of the tasks sums to {self.halves.gain:+.3f} (error {self.halves.gain_error:.3f}) "
            f"on the other. The sets of two halves share {self.halves.jaccard:.0%} of their factors."
        )

    def differences(self) -> str:
        """Say which effects differ between groups of tasks."""
        return f"{self._label()}{self.groups.verdict()}"

    def _shown(self) -> tuple[str, ...]:
        return self.outcomes[PRIMARY].fit.names

    def rewrites(self) -> pd.DataFrame:
        """One row a rewrite: gain over the text in force with its interval (M21); empty when there are none."""
        fit, rows = self.outcomes[PRIMARY].fit, []
        for slot in self.observations.slots:
            old, *new = slot.versions
            shown = [version for version in new if old in fit.names and version in fit.names]
            rows += [(slot.slot_id, old, version, *fit.difference(version, old)) for version in shown]
        return pd.DataFrame(rows, columns=["slot", "old", "new", "gain", "std_error", "ci_low", "ci_high"])

    def verdict(self) -> str:
        """One sentence with its uncertainty."""
        fit, n_slots = self.outcomes[PRIMARY].fit, len(self.observations.slots)
        return (
            f"{self._label()}{len(self.selected)} of {n_slots} slots selected (K = {self.budget}); with no effect "
            f"anywhere the same rule would select about {self.chance_selected:.1f}. This exact set came back in "
            f"{self.stability.exact_set:.1%} of {self.stability.resamples} resamples; all coefficients 0: "
            f"F test p = {fit.f_pvalue:.2g}."
        )

    def _label(self) -> str:
        return "simulated: " if self.observations.simulated else ""

    def summary(self) -> str:
        """The verdict, the selection table and the notes."""
        table = self.to_frame().sort_values("coefficient", ascending=False, na_position="last")
        labels = dict(zip(self._shown(), self.joint.labels, strict=True))
        table["label"] = table["intervention_id"].map(labels)
        table = table[[*DECISION_COLUMNS, "label", "selection_frequency", "exposure"]].round(4)
        table["rank"] = table["rank"].astype(object).fillna("-")
        notes = "".join(f"\nnote: {note}" for note in self.notes)
        told = "\n".join([self.verdict(), self.trust(), str(self.model), self.differences()])
        return f"{self.observations}\n{table.to_string(index=False, na_rep='-')}\n{told}{notes}"

    def __str__(self) -> str:
        return self.summary()

    def key(self) -> dict[str, Any]:
        """What makes this gate and no other: its data and its rule (M23)."""
        factors = [asdict(replace(item, title="")) for item in self.observations.interventions]
        return {"sha256": self.observations.sha256, "budget": self.budget, "factors": factors}

    def to_json(self) -> dict[str, Any]:
        """Return the record: what was measured, decided and on what; plain values, missing is None."""
        fit = self.outcomes[PRIMARY].fit
        return {
            "simulated": self.observations.simulated,
            "source": {"name": self.observations.name, "sha256": self.observations.sha256},
            "n_pairs": len(self.observations.task_ids),
            "n_tasks": int(self.observations.tasks.max()) + 1,
            "estimator": f"paired-delta OLS, no intercept, main effects (M19); {fit.cov_type} errors, 95 % t intervals",
            "budget": self.budget,
            "factors": plain_rows(self.to_frame()),
            "selected": list(self.selected),
            "rewrites": plain_rows(self.rewrites()),
            "outcomes": {
                name: {
                    "coefficients": self.coefficients(name),
                    "masked_mean": outcome.masked_mean,
                    "bare_mean": outcome.bare_mean,
                    "delta_mean": outcome.delta_mean,
                }
                for name, outcome in self.outcomes.items()
            },
            "joint_test": {
                "f_value": fit.fvalue if np.isfinite(fit.fvalue) else None,
                "p_value": fit.f_pvalue,
                "robust_p_value": fit.wald_pvalue,
            },
            "stability": {
                "exact_set": self.stability.exact_set,
                "resamples": self.stability.resamples,
                "resamples_lost": self.resamples_lost,
                "chance_selected": self.chance_selected,
            },
            "together": {
                "factors": plain_rows(self.together()),
                "level": self.joint.level,
                "critical": self.joint.critical,
                "tau": self.joint.shrinkage.tau,
                "tau_low": self.joint.shrinkage.tau_low,
                "tau_high": self.joint.shrinkage.tau_high,
                "naive_gain": self.naive_gain,
                "halves": None if self.halves is None else asdict(self.halves),
                "trust": self.trust(),
            },
            "model": self.model.to_json(),
            "groups": self.groups.to_json(),
            "missing": None
            if self.observations.missing is None
            else {"masked": list(self.observations.missing.masked), "bare": list(self.observations.missing.bare)},
            "verdict": self.verdict(),
            "notes": list(self.notes),
        }


def fit_gate(
    observations: Observations,
    budget: int | None = None,
    *,
    resamples: int = RESAMPLES,
    analysis_seed: int = 0,
    level: float = inference.LEVEL,
) -> Gate:
    """Fit M19 for every outcome, apply M21-M22, and bootstrap the whole rule over tasks.

    Args:
        observations: checked pairs, of `read_observations`.
        budget: K; None for the file's own budget, else min(10, slots).
        resamples: task-level bootstrap resamples, at least 100.
        analysis_seed: seed of the bootstrap.
        level: false discovery rate of the labels (see `sequential.level`).

    Raises:
        ParameterError: the budget, the number of resamples or the seed is out of range, or no observations.
        DesignError: a row alone determines an effect, or most resamples cannot be fitted.
    """
    _refuse_other_than_observations(observations)
    resampling.refuse_draws(resamples, analysis_seed)
    items = observations.interventions
    K, notes = _budget(observations, budget)
    shown = observations.masks.sum(axis=0) > 0
    outcomes = {name: _fit_outcome(observations, name, shown) for name in observations.masked}
    fit = outcomes[PRIMARY].fit
    decisions, selected = selection.select(_spread(fit.params[None, :], shown)[0], items, K)
    rule = selection.Rule(items, K)
    rows = observations.delta(PRIMARY), observations.masks[:, shown], observations.tasks
    drawn = resampling.bootstrap_coefficients(*rows, resamples, analysis_seed)
    chosen = np.array([factor in selected for factor in observations.factors])
    return Gate(
        observations=observations,
        budget=K,
        outcomes=outcomes,
        decisions=decisions,
        selected=selected,
        stability=resampling.stability(_spread(drawn, shown), chosen, rule, K),
        chance_selected=_chance_selected(fit, shown, rule, analysis_seed),
        joint=inference.infer(fit.params, fit.cov_params, fit.pvalues, drawn, level),
        bootstrap=resampling.coefficient_intervals(*rows, fit.params, drawn),
        model=_check_model(observations, shown),
        groups=subgroups.study(*rows, fit.names, observations.groups),
        halves=_split(observations, shown, fit, rule, analysis_seed),
        design=design_report(observations.masks, items),
        resamples_lost=resamples - len(drawn),
        notes=(
            *observations.notes,
            *notes,
            *_weak_notes(observations, shown),
            *_lost_notes(resamples, len(drawn)),
            *_missing_notes(observations),
            *rails.warnings({name: outcome.fit for name, outcome in outcomes.items()}),
        ),
    )


def _refuse_other_than_observations(observations: object) -> None:
    """Refuse a path or a frame: pairs are checked where they are read."""
    if not isinstance(observations, Observations):
        raise ParameterError(
            f"observations is a {type(observations).__name__}",
            where="observations",
            allowed="what read_observations returns",
            todo="give fit_gate(read_observations(path))",
        )


def _budget(observations: Observations, budget: int | None) -> tuple[int, tuple[str, ...]]:
    """Return K and its notes: the one given, else min(the file's, slots), else the default (M22)."""
    n_slots, of_file = len(observations.slots), observations.budget
    if budget is not None or of_file is None or of_file <= n_slots:
        return selection.resolve_budget(of_file if budget is None else budget, n_slots)
    K, notes = selection.resolve_budget(n_slots, n_slots)
    return K, (f"K = {K}: the file's budget is {of_file}, more than its {n_slots} slots", *notes)


def _weak_notes(observations: Observations, shown: NDArray[np.bool_]) -> tuple[str, ...]:
    """Say where errors rest on few tasks, and which rewrites have no text in force to be compared with."""
    n_tasks = int(observations.tasks.max()) + 1
    clustered = n_tasks < len(observations.tasks)
    few = f"errors are clustered by {n_tasks} tasks: below 20 they are coarse and mostly too small"
    seen = {item.intervention_id: bool(flag) for item, flag in zip(observations.interventions, shown, strict=True)}
    held = [item.intervention_id for item in observations.interventions if item.kind != "candidate"]
    alone = [
        f"no gain can be told for {new}: {old}, the text in force, was never shown"
        for old, *rewrites in (slot.versions for slot in observations.slots)
        for new in rewrites
        if seen[new] and not seen[old] and old in held
    ]
    return ((few,) if clustered and n_tasks < LEAST_CLUSTERS else ()) + tuple(alone)


def _fit_outcome(observations: Observations, name: str, shown: NDArray[np.bool_]) -> Outcome:
    """Fit M19 to one outcome on the factors that are shown."""
    names = [factor for factor, flag in zip(observations.factors, shown, strict=True) if flag]
    fit = ols.fit(observations.delta(name), observations.masks[:, shown], names, observations.tasks)
    return Outcome(fit, float(observations.masked[name].mean()), float(observations.bare[name].mean()))


def _spread(coefficients: FloatArray, shown: NDArray[np.bool_]) -> FloatArray:
    """Place (B, shown) coefficients in (B, K) columns, NaN where a factor was never shown."""
    spread = np.full((len(coefficients), len(shown)), np.nan)
    spread[:, shown] = coefficients
    return spread


def _check_model(observations: Observations, shown: NDArray[np.bool_]) -> diagnostics.Diagnostics:
    """Check the model on the shown factors."""
    items = [item for item, flag in zip(observations.interventions, shown, strict=True) if flag]
    return diagnostics.diagnose(
        observations.masked[PRIMARY],
        observations.bare[PRIMARY],
        observations.masks[:, shown],
        observations.tasks,
        [item.intervention_id for item in items],
        [item.slot for item in items],
    )


def _split(
    observations: Observations, shown: NDArray[np.bool_], fit: ols.OLSFit, rule: selection.Rule, seed: int
) -> resampling.SplitHalf | None:
    """Apply the rule to random halves of the tasks."""
    masks_shown, delta = observations.masks[:, shown], observations.delta(PRIMARY)
    return resampling.split_half(delta, masks_shown, observations.tasks, fit.cov_params, _among(rule, shown), seed)


def _among(rule: selection.Rule, shown: NDArray[np.bool_]) -> resampling.Rule:
    """Return the rule on the columns of the shown factors only."""

    def apply(coefficients: FloatArray) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        ranks, chosen = rule(_spread(coefficients, shown))
        return ranks[:, shown], chosen[:, shown]

    return apply


def _chance_selected(fit: ols.OLSFit, shown: NDArray[np.bool_], rule: selection.Rule, seed: int) -> float:
    """Mean number selected by the rule when every effect is 0: normal draws with the fitted covariance."""
    rng = np.random.default_rng(seed)
    draws = rng.multivariate_normal(np.zeros(len(fit.params)), fit.cov_params, size=RESAMPLES, method="eigh")
    return float(rule(_spread(draws, shown))[1].sum(axis=1).mean())


def _lost_notes(asked: int, used: int) -> tuple[str, ...]:
    """Say how many resamples could not be fitted; refuse when hardly any could.

    Raises:
        DesignError: fewer than half of the resamples have masks of full rank.
    """
    if used < asked / 2:
        raise DesignError(
            f"only {used} of {asked} resamples of the tasks have masks of full rank",
            where="bootstrap of the selection",
            allowed="enough tasks that most resamples can be fitted",
            todo="add tasks, or leave out factors",
        )
    return (f"{asked - used} of {asked} resamples had masks of lower rank and are left out",) if used < asked else ()


def _missing_notes(observations: Observations) -> tuple[str, ...]:
    """Print what M20 admitted: both arms listed."""
    missing = observations.missing
    if missing is None:
        return ()
    arms = (f"{arm} {', '.join(ids) or 'none'}" for arm, ids in (("masked", missing.masked), ("bare", missing.bare)))
    return (
        f"missing episodes left out (M20): {'; '.join(arms)}; "
        "worst_low and worst_high bound what the fit on all pairs could have been",
    )
