"""A ranking -> its two figures, in the look of `plots`."""

import numpy as np
import pandas as pd
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from shopskill_lib.floors import Floor
from shopskill_lib.plots import BLUE, band, intervals, style
from shopskill_lib.ranking import BARE, PLACEBO, RANDOM, Ranking


def contrasts(ranking: Ranking, floor: Floor | None = None) -> Figure:
    """Draw the task-paired differences between the arms of a ranking, with their 95 % intervals.

    Args:
        ranking: judged.
        floor: of the gate's tasks at the same weights; a band behind the differences of two arms of one run a task.
    """
    frame = ranking.to_frame()
    with style():
        figure, axes = plt.subplots(figsize=(7.0, 1.4 + 0.36 * len(frame)), layout="constrained")
        if floor is not None:
            size = floor.reach(len(ranking.measured.rewards))
            if band(axes, floor, [None if "random" in name else size for name in frame["difference"]]):
                axes.legend(loc="best", fontsize="x-small")
        intervals(axes, frame["estimate"], frame["ci_low"], frame["ci_high"])
        axes.plot(frame["estimate"], range(len(frame)), "o", color="black", ms=6)
        axes.set_yticks(range(len(frame)), frame["difference"])
        axes.invert_yaxis()
        axes.set_xlabel("difference of reward; bars: 95 % bootstrap over tasks (random sets as well)")
        axes.set_title(_ranking_title(ranking, f"Arms of K = {ranking.measured.K} chunks"))
    return figure


def calibration(ranking: Ranking) -> Figure:
    """Draw measured against predicted gains: quantiles of the fresh masks with 95 % intervals, and every set's mean."""
    parts, arms = ranking.quantiles, ranking.arms().set_index("arm")
    with style():
        figure, axes = plt.subplots(figsize=(6.2, 5.0), layout="constrained")
        for marker, words, chosen in _ranked_arms(arms):
            _upright(axes, chosen.rename(columns={"gain": "measured"}), words, marker, "0.75")
        if len(parts):
            _upright(axes, parts, f"fresh masks ({parts['masks'].sum()}), by quantile", "o", BLUE)
        ends = np.array([arms["predicted"].min(), arms["predicted"].max()], dtype=np.float64)
        axes.plot(ends, ends, "--", color="black", lw=0.9, label="measured = predicted")
        axes.axhline(0.0, color="black", lw=0.6)
        axes.set_xlabel("predicted gain: sum of the gate's coefficients over what is shown")
        axes.set_ylabel("measured gain: reward beyond bare; bars: 95 % over tasks")
        axes.set_title(_ranking_title(ranking, "Predicted and measured gain"))
        axes.legend(loc="best")
    return figure


def _upright(axes: Axes, rows: pd.DataFrame, words: str, marker: str, colour: str) -> None:
    """Draw measured against predicted gains with their intervals."""
    reach = [rows["measured"] - rows["ci_low"], rows["ci_high"] - rows["measured"]]
    places = (rows["predicted"].astype(float), rows["measured"].astype(float))
    axes.errorbar(*places, yerr=reach, fmt="none", ecolor="0.4", elinewidth=1.0, capsize=3)
    axes.plot(*places, marker, color=colour, mec="black", ms=7, label=words)


def _ranked_arms(arms: pd.DataFrame) -> list[tuple[str, str, pd.DataFrame]]:
    """Return marker, words and rows of the arms that the gate predicts."""
    names = arms.index.to_series()
    random = names.str.startswith(RANDOM)
    ranked = ~random & ~names.isin([BARE, PLACEBO])
    found = [(mark, f"{name}-K", arms[names == name]) for mark, name in zip("^v", names[ranked], strict=True)]
    return [*found, ("D", f"random sets ({random.sum()})", arms[random])] if random.any() else found


def _ranking_title(ranking: Ranking, words: str) -> str:
    label_of = "simulated: " if ranking.measured.simulated else ""
    return f"{label_of}{words} ({len(ranking.measured.rewards)} tasks unseen by the gate)"
