"""What the coefficients of a gate allow to say together: simultaneous intervals, multiplicity, labels, shrinkage.

Arrays only. All of it stands beside the rule of M21-M22 and changes nothing in it (METHOD section 13).
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import optimize, stats

from shopskill_lib.checks import holm

FloatArray = NDArray[np.float64]

LEVEL = 0.05
"""False discovery rate of the labels where no look came before, and 1 - level of all intervals here."""


ROUNDING = 1e-12
"""Estimates closer to 0 than this are 0 but for rounding: masks that explain every difference leave no error either."""


@dataclass(frozen=True, slots=True)
class Shrinkage:
    """Empirical Bayes for effects that are draws of one normal distribution around 0 (Morris 1983).

    Attributes:
        params: (K,) posterior means; all 0 where the data show no spread of effects.
        tau: standard deviation of the true effects, by maximum likelihood, in units of the outcome.
        tau_low: lower end of its 95 % profile likelihood interval; `tau_high` the upper one.
    """

    params: FloatArray
    tau: float
    tau_low: float
    tau_high: float


@dataclass(frozen=True, slots=True)
class Inference:
    """All K coefficients of one fit judged together.

    Attributes:
        simultaneous: (K, 2) intervals that hold all K coefficients at once with 95 %: estimate +- critical * error.
        critical: 95 % quantile, over task-level resamples, of the largest |resampled - estimate| / error.
        holm: (K,) p-values adjusted for any false rejection (Holm 1979).
        bh: (K,) p-values adjusted for the share of false ones among the rejected (Benjamini and Hochberg 1995).
        level: false discovery rate of the labels.
        labels: (K,) `keep`, `drop` or `undecided`: the sign is told apart from 0 at that rate.
        shrinkage: estimates without the luck of being the largest.
    """

    simultaneous: FloatArray
    critical: float
    holm: FloatArray
    bh: FloatArray
    level: float
    labels: tuple[str, ...]
    shrinkage: Shrinkage

    @property
    def rate(self) -> str:
        """The error that the labels admit, in words."""
        return f"a false discovery rate of {100 * self.level:.2g} %"


def infer(
    params: FloatArray, covariance: FloatArray, pvalues: FloatArray, drawn: FloatArray, level: float = LEVEL
) -> Inference:
    """Judge (K,) coefficients together.

    Args:
        params: (K,) estimates.
        covariance: (K, K) their covariance.
        pvalues: (K,) two-sided p-values of single coefficients.
        drawn: (B, K) estimates of task-level resamples.
        level: false discovery rate of the labels; the intervals keep theirs.
    """
    errors = np.sqrt(np.diag(covariance))
    critical = max_t(drawn - params, errors)
    adjusted = np.asarray(stats.false_discovery_control(pvalues, method="bh"))
    return Inference(
        simultaneous=np.column_stack([params - critical * errors, params + critical * errors]),
        critical=critical,
        holm=holm(pvalues),
        bh=adjusted,
        level=level,
        labels=tuple(_label(*pair, level) for pair in zip(params, adjusted, strict=True)),
        shrinkage=shrink(params, covariance),
    )


def max_t(deviations: FloatArray, errors: FloatArray) -> float:
    """Return the 95 % quantile of max |deviation| / error over the factors, in (B, K) resampled deviations.

    Factors with an error of 0 do not vary and are left out.
    """
    varying = errors > 0
    if not varying.any():
        return 0.0
    return float(np.quantile(np.abs(deviations[:, varying] / errors[varying]).max(axis=1), 1 - LEVEL))


def _label(estimate: float, adjusted: float, level: float) -> str:
    if adjusted > level or abs(estimate) <= ROUNDING:
        return "undecided"
    return "keep" if estimate > 0 else "drop"


def shrink(params: FloatArray, covariance: FloatArray) -> Shrinkage:
    """Shrink (K,) estimates with a (K, K) covariance towards 0, by as much as their spread is noise."""
    values, vectors = np.linalg.eigh(covariance)
    noise, z = np.clip(values, 0.0, None), vectors.T @ params
    if not np.any(z):
        return Shrinkage(np.zeros_like(params), 0.0, 0.0, 0.0)
    noise = np.maximum(noise, 1e-12 * max(float(noise.max()), float(z @ z)))

    def deviance(tau: float) -> float:
        return float(np.sum(np.log(noise + tau**2) + z**2 / (noise + tau**2)))

    widest = 10 * float(np.sqrt(z @ z))
    grid = np.concatenate([[0.0], np.geomspace(1e-4 * widest, widest, 200)])
    heights = np.array([deviance(tau) for tau in grid])
    best = int(heights.argmin())
    tau = _lowest(deviance, grid, best)
    limit = deviance(tau) + float(stats.chi2.ppf(1 - LEVEL, 1))
    factor = tau**2 / (noise + tau**2)
    return Shrinkage(
        params=vectors @ (factor * z),
        tau=tau,
        tau_low=0.0 if heights[0] <= limit else _crossing(deviance, limit, 0.0, tau),
        tau_high=_crossing(deviance, limit, tau, widest),
    )


def _lowest(deviance: Callable[[float], float], grid: FloatArray, best: int) -> float:
    """Refine the lowest point of a grid between its neighbours; 0 stays 0."""
    if best == 0:
        return 0.0
    ends = float(grid[best - 1]), float(grid[min(best + 1, len(grid) - 1)])
    return float(optimize.minimize_scalar(deviance, bounds=ends, method="bounded", options={"xatol": 1e-9}).x)


def _crossing(deviance: Callable[[float], float], limit: float, low: float, high: float) -> float:
    """Return where the deviance crosses its limit between two values of tau, `high` where it does not."""
    if (deviance(low) - limit) * (deviance(high) - limit) > 0:
        return high
    return float(optimize.brentq(lambda tau: deviance(tau) - limit, low, high))
