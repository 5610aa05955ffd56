"""Guard rails of a gate: outcomes beside the reward that a chunk must not spoil (METHOD section 13).

The estimator is M19 on every outcome; a warning changes no decision.
"""

from collections.abc import Mapping

import numpy as np
from scipy import stats

from shopskill_lib.ols import OLSFit

LEVEL = 0.05
"""False discovery rate over the factors of one outcome."""

PRIMARY = "reward"

COSTS = ("steps", "tokens", "protocol_faults", "invalid_actions", "duration_ms")
"""Outcomes that are worse when higher, besides all that end in `_tokens`."""

LISTED = 4


def worse(name: str) -> int:
    """Return the sign of a change for the worse: -1 for scores, +1 for costs, 0 where neither is known."""
    if name == "success" or name.startswith("r_"):
        return -1
    return 1 if name in COSTS or name.endswith("_tokens") else 0


def warnings(fits: Mapping[str, OLSFit]) -> tuple[str, ...]:
    """Return one line an outcome that some factor changes for the worse, told apart from 0 over its factors."""
    found = []
    for name, fit in fits.items():
        if name == PRIMARY or not worse(name):
            continue
        apart = np.asarray(stats.false_discovery_control(fit.pvalues, method="bh")) <= LEVEL
        bad = np.flatnonzero(apart & (np.sign(fit.params) == worse(name)))
        if bad.size:
            found.append(f"guard rail {name} is {'lower' if worse(name) < 0 else 'higher'} with {_listed(fit, bad)}")
    return tuple(found)


def _listed(fit: OLSFit, columns: np.ndarray[tuple[int], np.dtype[np.intp]]) -> str:
    """Name the factors, the largest change first, each with its 95 % interval."""
    order = columns[np.argsort(-np.abs(fit.params[columns]), kind="stable")]
    low, high = fit.conf_int().T
    told = [f"{fit.names[k]} {fit.params[k]:+,.3f} (95 % {low[k]:+,.3f} to {high[k]:+,.3f})" for k in order[:LISTED]]
    more = f" and {len(order) - LISTED} more (contributions.csv)" if len(order) > LISTED else ""
    return ", ".join(told) + more
