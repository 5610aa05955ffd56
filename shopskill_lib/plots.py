"""Results -> matplotlib figures, readable in grey: status by marker shape, intervals always drawn.

Text in figures is ASCII: an id in another script is labelled by its mask column, which the tables list as `#`.
"""

import io
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from shopskill_lib import power
from shopskill_lib.comparison import Comparison
from shopskill_lib.files import write_bytes
from shopskill_lib.floors import Floor
from shopskill_lib.gates import PRIMARY, Gate
from shopskill_lib.pooling import Pool

BLUE, GREY, BAND = "#0b4f8a", "#b8b8b8", "#e9dcc0"
"""What a figure is about, what stands beside it, and the noise floor behind both."""

SUCCESS: dict[str, Any] = {"color": BLUE, "edgecolor": "black", "label": "success cards"}
FAILURE: dict[str, Any] = {"color": "#dddddd", "edgecolor": "black", "hatch": "//", "label": "failure cards"}
"""Bars of the two channels."""

STATUS_MARKS = {
    "selected": ("o", BLUE),
    "budget_excluded": ("D", "#4f7cac"),
    "retired": ("s", "#8a8a8a"),
    "non_positive": ("v", "#8a8a8a"),
    "rewrite_loser": ("X", GREY),
}
"""Marker and colour of a status; the greys differ in lightness too."""

FOREST_MARKS = ("o", "s", "^", "v", "P", "X")
"""Markers of the gates in a forest plot, in turn."""

LABEL_LENGTH = 34


def label(intervention_id: str, column: int) -> str:
    """Return an id as a figure can print it: ASCII, at most 34 characters, dollars not taken for formulas."""
    if not intervention_id.isascii():
        return f"factor #{column}"
    short = len(intervention_id) <= LABEL_LENGTH
    return _plain(intervention_id if short else f"{intervention_id[: LABEL_LENGTH - 3]}...")


def _plain(text: str) -> str:
    """Return a text that matplotlib prints as it is."""
    return text.replace("$", r"\$")


def coefficients(gate: Gate, truth: pd.DataFrame | None = None, floor: Floor | None = None) -> Figure:
    """Draw every factor's effect on the reward, sorted, with its 95 % interval, status and a zero line.

    Args:
        gate: the fitted gate.
        truth: `intervention_id` and `true_coefficient`, known for simulated data only; drawn as a second marker.
        floor: the noise floor of these pairs; drawn as a band, where its repeats are independent.
    """
    frame = _sorted(gate)
    with style():
        figure, axes = plt.subplots(figsize=(8.0, 1.9 + 0.3 * len(frame)), layout="constrained")
        if floor is not None and floor.coefficients is not None:
            band(axes, floor, [floor.coefficients.half_widths.get(name) for name in frame["intervention_id"]])
        together = gate.together().set_index("intervention_id").reindex(frame["intervention_id"])
        low, high = together["simultaneous_low"], together["simultaneous_high"]
        axes.hlines(range(len(frame)), low, high, color="0.75", lw=4, label="all at once, 95 %")
        intervals(axes, frame["coefficient"], frame["ci_low"], frame["ci_high"])
        axes.plot(together["shrunken"], range(len(frame)), "x", color="black", ms=5, label="shrunken estimate")
        for status, (marker, colour) in STATUS_MARKS.items():
            rows = np.flatnonzero(frame["status"] == status)
            if rows.size:
                points = frame["coefficient"].iloc[rows]
                axes.plot(points, rows, marker, color=colour, mec="black", ms=7, label=f"{status} ({rows.size})")
        if truth is not None:
            known = frame["intervention_id"].map(truth.set_index("intervention_id")["true_coefficient"])
            axes.plot(known, range(len(frame)), "|", color="black", ms=13, mew=2, label="true value (simulated)")
        axes.set_yticks(range(len(frame)), frame["label"])
        axes.set_xlabel(
            f"effect on reward, masked minus bare; bars: 95 % {gate.outcomes[PRIMARY].fit.cov_type} intervals"
        )
        axes.set_title(_title(gate, "Effect of each factor"))
        figure.legend(loc="outside lower center", ncols=3)
    return figure


def components(gate: Gate) -> Figure:
    """Draw the same factors on every other outcome as small panels with one common scale."""
    order = _sorted(gate)
    names = [name for name in gate.outcomes if name != PRIMARY and _is_score(name)]
    with style():
        figure, panels = plt.subplots(
            1,
            max(len(names), 1),
            figsize=(2.2 + 1.9 * max(len(names), 1), 1.5 + 0.26 * len(order)),
            sharex=True,
            sharey=True,
            squeeze=False,
            layout="constrained",
        )
        for axes, name in zip(panels[0], names, strict=False):
            fitted = gate.outcomes[name].fit.to_frame().set_index("intervention_id")
            rows = fitted.reindex(order["intervention_id"])
            intervals(axes, rows["coefficient"], rows["ci_low"], rows["ci_high"])
            axes.plot(rows["coefficient"], range(len(order)), "o", color="black", ms=4)
            axes.set_title(_plain(name))
        panels[0, 0].set_yticks(range(len(order)), order["label"])
        figure.supxlabel("effect on the outcome, masked minus bare; bars: 95 % intervals", fontsize="medium")
        figure.suptitle(_title(gate, "Other outcomes, factors in the order of their effect on reward"))
    return figure


def differences(comparison: Comparison, floor: Floor | None = None) -> Figure:
    """Draw equipped minus bare: scores on their own scale, costs as a share of the bare mean.

    Args:
        comparison: the two arms.
        floor: the noise floor of these tasks; drawn as a band behind the scores, where its repeats are independent.
    """
    frame = comparison.metrics.dropna(subset=["delta"])
    is_score = frame["metric"].map(_is_score)
    costs = frame[~is_score & (frame["bare"] > 0)]
    score = frame[is_score]
    parts = [(score, np.ones(len(score)), "equipped minus bare, score")]
    if len(costs):
        parts.append((costs, costs["bare"].to_numpy() / 100, "equipped minus bare, % of bare"))
    with style():
        figure, panels = plt.subplots(
            1,
            len(parts),
            figsize=(5.6 + 4.4 * (len(parts) - 1), 1.5 + 0.36 * max(len(part) for part, _, _ in parts)),
            squeeze=False,
            layout="constrained",
        )
        for axes, (part, unit, words) in zip(panels[0], parts, strict=True):
            low, middle, high = (part[name] / unit for name in ("ci_low", "delta", "ci_high"))
            intervals(axes, middle, low, high)
            axes.plot(middle, range(len(part)), "o", color="black", ms=6)
            axes.set_yticks(range(len(part)), [_plain(name) for name in part["metric"]])
            axes.invert_yaxis()
            axes.set_xlabel(f"{words}; 95 % bootstrap", fontsize="medium")
        if floor is not None:
            known = [floor.outcomes.get(name) for name in score["metric"]]
            if band(panels[0, 0], floor, [None if seen is None else seen.half_width.value for seen in known]):
                figure.legend(loc="outside lower center")
        figure.suptitle(f"{_mark(comparison.simulated)}Equipped against bare, {comparison.n_tasks} tasks")
    return figure


def changes(comparison: Comparison) -> Figure:
    """Draw each task's reward difference, sorted: how many tasks gain, stay and lose, and by how much."""
    with style():
        figure, axes = plt.subplots(figsize=(7.0, 2.6), layout="constrained")
        values = comparison.flips["delta"].to_numpy()
        axes.fill_between(np.arange(len(values)), values, step="mid", color=BLUE, alpha=0.8, lw=0)
        axes.axhline(0.0, color="black", lw=0.8)
        axes.set_xlabel(f"task, sorted: {comparison.wins} better, {comparison.ties} equal, {comparison.losses} worse")
        axes.set_ylabel("reward difference")
        axes.set_ylim(-1.05, 1.05) if np.abs(values).max() <= 1 else None
        axes.set_title(f"{_mark(comparison.simulated)}Difference of every task")
    return figure


def funnel(table: pd.DataFrame) -> Figure:
    """Draw the steps from rollouts to eligible cards (`tables.funnel`), counts written beside the bars."""
    counts = table["count"]
    kinds = {BLUE: ~counts.index.str.startswith("no proposal"), GREY: counts.index.str.startswith("no prop")}
    with style():
        figure, axes = plt.subplots(figsize=(7.5, 0.8 + 0.28 * len(counts)), layout="constrained")
        rows = np.arange(len(counts))
        for colour, chosen in kinds.items():
            axes.barh(rows[chosen], counts[chosen], color=colour, edgecolor="black", lw=0.6)
        for row, count in enumerate(counts):
            axes.text(count, row, f" {count}", va="center", fontsize="small")
        axes.set_yticks(rows, counts.index)
        axes.invert_yaxis()
        axes.set_xlim(0, max(counts.max(), 1) * 1.1)
        axes.set_xlabel("trajectories, below them cards")
        axes.set_title(f"{_simulated(table)}From training rollouts to eligible cards")
    return figure


def stages(table: pd.DataFrame) -> Figure:
    """Draw eligible cards by workflow stage and channel (`tables.stages`)."""
    with style():
        figure, axes = plt.subplots(figsize=(7.0, 2.9), layout="constrained")
        rows = np.arange(len(table))
        axes.barh(rows - 0.2, table["success cards"], 0.38, **SUCCESS)
        axes.barh(rows + 0.2, table["failure cards"], 0.38, **FAILURE)
        axes.set_yticks(rows, table.index)
        axes.invert_yaxis()
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.set_xlabel("eligible cards")
        axes.set_title(f"{_simulated(table)}Cards by stage of the shopping workflow")
        axes.legend(loc="best")
    return figure


def support(table: pd.DataFrame) -> Figure:
    """Draw what every version of a draft rests on (`tables.provenance`), cards by channel."""
    with style():
        figure, axes = plt.subplots(figsize=(7.5, 1.2 + 0.28 * len(table)), layout="constrained")
        rows = np.arange(len(table))
        axes.barh(rows, table["success cards"], lw=0.6, **SUCCESS)
        axes.barh(rows, table["failure cards"], left=table["success cards"], lw=0.6, **FAILURE)
        axes.set_yticks(rows, [label(title, column) for title, column in zip(table["title"], table.index, strict=True)])
        axes.invert_yaxis()
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.set_xlabel("cards behind the text")
        axes.set_title(f"{_simulated(table)}Support of every chunk of the draft")
        axes.legend(loc="lower right")
    return figure


def effects(table: pd.DataFrame, noise: pd.DataFrame) -> Figure:
    """Draw effects over gates (`tables.effects`): one row a text, one column a gate, the interval in each cell.

    Where the noise floor of a gate is known (`tables.noise`), it stands below its name.
    """
    cells = table.reset_index()
    cells["gate"] = ["Gate A" if number == "-" else f"round {number}" for number in cells["round"]]
    cells["text"] = list(zip(cells["#"], cells["title"], strict=True))
    texts, gates = list(dict.fromkeys(cells["text"])), list(dict.fromkeys(sorted(cells["gate"])))
    known = noise["coefficient"].dropna().items()
    below = {f"round {number}".replace("round -", "Gate A"): f"\nnoise floor ±{size:.3f}" for number, size in known}
    values = np.full((len(texts), len(gates)), np.nan)
    places = [(texts.index(text), gates.index(gate)) for text, gate in zip(cells["text"], cells["gate"], strict=True)]
    values[tuple(np.transpose(places))] = cells["alpha"].astype(float)
    reach = float(np.nanmax(np.abs(values), initial=0.01))
    with style():
        figure, axes = plt.subplots(figsize=(3.6 + 1.7 * len(gates), 1.4 + 0.36 * len(texts)), layout="constrained")
        image = axes.imshow(values, cmap="RdBu", vmin=-reach, vmax=reach, aspect="auto")
        for (row, column), words in zip(places, _effect_words(cells), strict=True):
            dark = abs(values[row, column]) > 0.6 * reach
            axes.text(column, row, words, ha="center", va="center", fontsize=7, color="white" if dark else "black")
        axes.set_xticks(range(len(gates)), [gate + below.get(gate, "") for gate in gates])
        axes.set_yticks(range(len(texts)), [label(f"#{number} {title}", number) for number, title in texts])
        axes.grid(visible=False)
        figure.colorbar(image, label="effect on reward", shrink=0.8)
        axes.set_title(f"{_simulated(table)}Effect by gate, 95 % interval; * in the skill after it")
    return figure


def _effect_words(cells: pd.DataFrame) -> list[str]:
    """Write each effect with its interval; nothing where a text was never shown."""
    stars = np.where(cells["status"] == "selected", "*", "")
    numbers = zip(cells["alpha"], cells["ci_low"], cells["ci_high"], stars, strict=True)
    return [
        "" if pd.isna(alpha) else f"{alpha:+.3f}{star}\n[{low:+.2f}, {high:+.2f}]" for alpha, low, high, star in numbers
    ]


def forest(pool: Pool) -> Figure:
    """Draw each chunk's effect in every gate and pooled over them, best pooled effect on top, with 95 % intervals."""
    pooled = pool.to_frame().iloc[::-1].reset_index(drop=True)
    own, names = pool.by_gate(), [member.name for member in pool.members]
    rows = {chunk: row for row, chunk in enumerate(pooled["chunk"])}
    step = 0.7 / (len(names) + 1)
    with style():
        height = 1.6 + len(rows) * (0.22 + 0.13 * (len(names) + 1))
        figure, axes = plt.subplots(figsize=(8.0, height), layout="constrained")
        for number, name in enumerate(names):
            gate = own[own["gate"] == name]
            places = gate["chunk"].map(rows) + 0.35 - step * number
            shade = str(0.2 + 0.4 * number / max(len(names) - 1, 1))
            axes.hlines(places, gate["ci_low"], gate["ci_high"], color=shade, lw=1.0)
            marker = FOREST_MARKS[number % len(FOREST_MARKS)]
            axes.plot(gate["coefficient"], places, marker, color=shade, ms=4.5, label=_plain(_ascii(name, number)))
        last = np.arange(len(rows)) + 0.35 - step * len(names)
        axes.hlines(last, pooled["ci_low"], pooled["ci_high"], color="black", lw=2.4)
        axes.plot(pooled["coefficient"], last, "D", color=BLUE, mec="black", ms=6.5, label="pooled")
        axes.axvline(0.0, color="black", lw=0.9)
        axes.set_yticks(range(len(rows)), [label(title, len(rows) - row) for row, title in enumerate(pooled["title"])])
        axes.set_ylim(-0.6, len(rows) - 0.4)
        axes.set_xlabel("effect on reward, masked minus bare; bars: 95 % intervals, pooled ones clustered by task")
        figure.suptitle(f"{_mark(pool.simulated)}Effects over {len(names)} gates")
        figure.legend(loc="outside lower center", ncols=min(len(names) + 1, 4))
    return figure


def _ascii(name: str, number: int) -> str:
    """Return a gate's name as a figure can print it."""
    return name if name.isascii() else f"gate {number + 1}"


def gaps(table: pd.DataFrame, noise: pd.DataFrame) -> Figure:
    """Draw reward without and with the whole skill by round, their gap with its interval, and the skill's size.

    The noise floor of a gap (`tables.noise`) is a band, where it is known.
    """
    with style():
        figure, (rewards, gap, size) = plt.subplots(1, 3, figsize=(9.0, 2.8), layout="constrained")
        rounds = table.index.to_numpy()
        rewards.plot(rounds, table["R_free"], "o--", color="#555555", label="R_free, no skill")
        rewards.plot(rounds, table["R_pair"], "s-", color=BLUE, label="R_pair, whole skill")
        rewards.set_ylabel("mean reward")
        rewards.legend(fontsize="x-small")
        reach = [table["G"] - table["G low"], table["G high"] - table["G"]]
        gap.errorbar(rounds, table["G"], yerr=reach, fmt="o", color="black", capsize=3)
        sizes = noise["gap"].dropna()
        gap.use_sticky_edges = False
        gap.bar(sizes.index.astype(int), 2 * sizes, 0.8, -sizes, color=BAND, lw=0, zorder=0)
        gap.axhline(0.0, color="black", lw=0.9)
        gap.set_xlim(rounds[0] - 0.5, rounds[-1] + 0.5)
        gap.set_ylabel("gap G, 95 % bootstrap")
        size.bar(rounds, table["chunks after"], color="#9db8d2", edgecolor="black")
        size.yaxis.set_major_locator(MaxNLocator(integer=True))
        size.set_ylabel("chunks after the gate")
        for axes in (rewards, gap, size):
            axes.set_xticks(rounds)
            axes.set_xlabel("round; shaded: noise floor" if axes is gap and len(sizes) else "round")
        figure.suptitle(f"{_simulated(table)}What the skill still adds, and its size")
    return figure


def plan_errors(table: pd.DataFrame, told: str) -> Figure:
    """Draw the standard error, and with it the detectable effect, by masked rollouts and design (`planning.compare`).

    Args:
        table: the comparison.
        told: where its assumptions come from.
    """
    factor = power.detectable(1.0)
    with style():
        figure, axes = plt.subplots(figsize=(7.5, 3.8), layout="constrained")
        _by_design(axes, table, "std error", "largest standard error of a coefficient")
        right = axes.secondary_yaxis(
            "right", functions=(partial(np.multiply, factor), partial(np.multiply, 1 / factor))
        )
        right.set_ylabel("effect detectable, 80 % power at 5 %")
        axes.set_ylim(bottom=0.0)
        axes.legend(title="masks")
        axes.set_title(f"Planned errors of a gate ({told})")
    return figure


def plan_rule(table: pd.DataFrame, told: str) -> Figure:
    """Draw what the rule of M21-M22 is expected to do, by masked rollouts and design (`planning.compare`).

    Gains are those of the reference and of the design with the smallest errors.
    """
    names = table.index.unique("design")
    best = table["std error"].groupby("design").mean().idxmin()
    with style():
        figure, (found, useless, gain) = plt.subplots(1, 3, figsize=(10.5, 4.0), layout="constrained")
        _by_design(found, table, "P(helping selected)", "P(a helping chunk is selected)")
        _by_design(useless, table, "useless selected", "useless chunks selected, mean")
        useless.set_ylim(0.0, 1.2 * max(float(table["useless selected"].max()), 0.1))
        for name, (marker, shade) in zip((names[0], best), (("o", "black"), ("P", "0.55")), strict=True):
            rows = table.xs(name, level="design")
            gain.plot(rows.index, rows["claimed gain"], f"{marker}--", color=shade, ms=3.5, label=f"claimed, {name}")
            gain.plot(rows.index, rows["true gain"], f"{marker}-", color=shade, ms=3.5, label=f"true, {name}")
        gain.set_ylabel("gain of the selected, reward")
        gain.set_xlabel("masked rollouts")
        gain.set_ylim(0.0, 1.3 * float(table["claimed gain"].max()))
        gain.legend(fontsize="x-small")
        figure.legend(*found.get_legend_handles_labels(), loc="outside lower center", ncols=3, title="masks")
        figure.suptitle(f"simulated: what the selection rule is expected to do ({told})")
    return figure


def plan_splits(table: pd.DataFrame, told: str) -> Figure:
    """Draw the standard error by rollouts a task, one panel a number of bare ones (`planning.allocate`)."""
    counts = sorted(table["bare a task"].unique())
    with style():
        figure, panels = plt.subplots(
            1, len(counts), figsize=(3.2 * len(counts), 3.2), sharey=True, squeeze=False, layout="constrained"
        )
        for axes, count in zip(panels[0], counts, strict=True):
            own = table[table["bare a task"] == count]
            for marker, (name, rows) in zip(
                FOREST_MARKS, own.sort_values("masked a task").groupby("design"), strict=False
            ):
                axes.plot(rows["masked a task"], rows["std error"], f"{marker}-", color="0.25", mfc="white", label=name)
            axes.set_xscale("log", base=2)
            axes.set_xticks(ticks := sorted(table["masked a task"].unique()), ticks)
            axes.set_xlabel("masked rollouts a task")
            axes.set_title(f"{count} bare a task" + ("" if count == 1 else " (theory)"))
        panels[0, 0].set_ylabel("largest standard error")
        panels[0, 0].set_ylim(bottom=0.0)
        figure.legend(*panels[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=3, title="masks")
        figure.suptitle(f"One budget of {table['all rollouts'].max()} rollouts, split ({told})")
    return figure


def _by_design(axes: Axes, table: pd.DataFrame, column: str, words: str) -> None:
    """Draw a column of a comparison of designs against masked rollouts, a line a design."""
    for number, name in enumerate(table.index.unique("design")):
        rows, shade = table.xs(name, level="design")[column], str(0.12 * number)
        axes.plot(rows.index, rows, f"{FOREST_MARKS[number]}-", color=shade, mfc="white", ms=4.5, lw=1.0, label=name)
    axes.set_xlabel("masked rollouts")
    axes.set_ylabel(words)


def _mark(simulated: bool) -> str:
    """Return the title's first word where a figure rests on simulated models."""
    return "simulated: " if simulated else ""


def _simulated(table: pd.DataFrame) -> str:
    return _mark(table.columns.name == "simulated")


def save(figure: Figure, path: Path) -> Figure:
    """Write a figure as SVG, the same bytes for the same figure, and return it for display.

    Raises:
        OutputError: the place cannot be written.
    """
    drawing = io.BytesIO()
    with mpl.rc_context({"svg.hashsalt": "shopskill"}):
        figure.savefig(drawing, format="svg", metadata={"Date": None})
    plt.close(figure)
    write_bytes(path, drawing.getvalue())
    return figure


def shown(figure: Figure) -> Figure:
    """Return a figure for display once, without a file."""
    plt.close(figure)
    return figure


@contextmanager
def style() -> Iterator[None]:
    """Set the look of all figures."""
    with sns.axes_style("whitegrid"), sns.plotting_context("paper"):
        yield


def _title(gate: Gate, words: str) -> str:
    """Title with the word simulated where it applies."""
    return f"{_mark(gate.observations.simulated)}{words} ({len(gate.observations.task_ids)} pairs)"


def _sorted(gate: Gate) -> pd.DataFrame:
    """Estimated factors, smallest effect first (drawn from the bottom up), with their printable labels."""
    frame = gate.to_frame()
    titles = [item.title or item.intervention_id for item in gate.observations.interventions]
    frame["label"] = [label(title, column) for column, title in enumerate(titles, 1)]
    return frame.dropna(subset=["coefficient"]).sort_values("coefficient", kind="stable")


def _is_score(name: str) -> bool:
    """Tell whether an outcome is a score in [0, 1] rather than a cost."""
    return name in (PRIMARY, "success") or name.startswith("r_")


def band(axes: Axes, floor: Floor, half_widths: Sequence[float | None]) -> bool:
    """Shade the rows as far as two identical arms go and tell whether any is; none is where repeats say nothing new."""
    known = [(row, size) for row, size in enumerate(half_widths) if size is not None]
    if floor.identical or not known:
        return False
    rows, sizes = np.transpose(known)
    told = f"noise floor{' (simulated)' if floor.simulated else ''}: 95 % of identical arms"
    axes.barh(rows, 2 * sizes, 1.0, -sizes, color=BAND, lw=0, zorder=0, label=told)
    return True


def intervals(axes: Axes, middle: "pd.Series[float]", low: "pd.Series[float]", high: "pd.Series[float]") -> None:
    """Draw a zero line and one horizontal interval a row."""
    axes.axvline(0.0, color="black", lw=0.9)
    axes.errorbar(
        middle,
        range(len(middle)),
        xerr=[middle - low, high - middle],
        fmt="none",
        ecolor="#555555",
        elinewidth=1.4,
        capsize=2.5,
    )
