"""The paired comparison of two arms over the same tasks (METHOD M25): Gate B, or any other two runs.

Tasks are the independent units: a task's rows are averaged before anything is resampled or tested.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from shopskill_lib import resampling
from shopskill_lib.cells import DESCRIPTIVE, LARGEST
from shopskill_lib.checks import exact_mcnemar
from shopskill_lib.errors import InputError, MissingError, ParameterError
from shopskill_lib.observations import plain_rows
from shopskill_lib.text import task_key

FloatArray = NDArray[np.float64]

PRIMARY = "reward"
FEW_TASKS = 20
LARGEST_SAMPLE = 2**53
SUCCESS = ("r_success", "success")
"""Names under which an arm may give task success."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """Gate B's figures, or of any two arms over the same tasks (M25).

    Attributes:
        checkpoint: weights that were measured, "" where the file does not say.
        metrics: one row a metric: bare, equipped, delta, percentile and BCa intervals, pairs used.
        flips: one row a task with its reward difference and success in both arms, largest difference first.
        wins, ties, losses: tasks by the sign of their reward difference.
        gained, lost: rows that succeed only equipped, only bare; `success_p_value` exact.
        n_pairs: aligned rows; `n_tasks` tasks.
        notes: what must be printed beside the table.
    """

    name: str
    sha256: str
    simulated: bool
    checkpoint: str
    metrics: pd.DataFrame
    flips: pd.DataFrame
    wins: int
    ties: int
    losses: int
    gained: int | None
    lost: int | None
    success_p_value: float | None
    n_pairs: int
    n_tasks: int
    notes: tuple[str, ...]

    def to_frame(self) -> pd.DataFrame:
        """One row a metric."""
        return self.metrics.copy()

    def verdict(self) -> str:
        """Say in one sentence what the comparison supports."""
        row = self.metrics.set_index("metric").loc[PRIMARY]
        side = "above 0" if row.ci_low > 0 else "below 0" if row.ci_high < 0 else "not told apart from 0"
        flips = (
            ""
            if self.gained is None
            else (f"; {self.gained} successes gained, {self.lost} lost (exact p = {self.success_p_value:.2g})")
        )
        return (
            f"{'simulated: ' if self.simulated else ''}equipped minus bare reward is {row.delta:+.4f}, 95 % "
            f"interval {row.ci_low:+.4f} to {row.ci_high:+.4f} over {self.n_tasks} tasks: {side}{flips}."
        )

    def summary(self) -> str:
        """The metric table, wins and losses, the claim and the notes."""
        notes = "".join(f"\nnote: {note}" for note in self.notes)
        return (
            f"{self.name}: {self.n_pairs} {'simulated ' if self.simulated else ''}pairs of {self.n_tasks} tasks; "
            f"by reward {self.wins} tasks better, {self.ties} equal, {self.losses} worse\n"
            f"{self.metrics.round(4).to_string(index=False)}\n{self.verdict()}{notes}"
        )

    def __str__(self) -> str:
        return self.summary()

    def key(self) -> dict[str, Any]:
        """What makes this comparison and no other: its data (M25)."""
        return {"sha256": self.sha256}

    def to_json(self) -> dict[str, Any]:
        """Return the record as plain values; missing is None."""
        return {
            "simulated": self.simulated,
            "source": {"name": self.name, "sha256": self.sha256},
            "n_pairs": self.n_pairs,
            "n_tasks": self.n_tasks,
            "metrics": {row.pop("metric"): row for row in plain_rows(self.metrics)},
            "success": None
            if self.gained is None
            else {"gained": self.gained, "lost": self.lost, "p_value": self.success_p_value},
            "tasks": {"better": self.wins, "equal": self.ties, "worse": self.losses},
            "verdict": self.verdict(),
            "notes": list(self.notes),
        }


def compare_paired(
    bare: pd.DataFrame, equipped: pd.DataFrame, *, resamples: int = 10_000, analysis_seed: int = 0
) -> Comparison:
    """Compare two arms task by task.

    Args:
        bare: one row an episode: `task_id`, optionally `sample`, `reward`, and other numeric metrics.
        equipped: the same for the other arm, over the same tasks and samples.
        resamples: task-level bootstrap resamples, shared by all metrics.
        analysis_seed: seed of the bootstrap.

    Raises:
        InputError: the arms hold different tasks or samples, a row twice, a value that is no number, no reward, or
            fewer than two tasks.
        MissingError: a reward, reward part or success is missing in one arm.
        ParameterError: an arm is no frame, or resamples or seed are out of range.
    """
    resampling.refuse_draws(resamples, analysis_seed)
    left, right = _keyed(bare, "bare"), _keyed(equipped, "equipped")
    _refuse_unaligned(left, right)
    metrics = [name for name in left.columns if name in right.columns]
    left, right = left[metrics], right.loc[left.index, metrics]
    success = next((name for name in SUCCESS if name in metrics), None)
    _refuse_missing_scores(left, right, success)
    rows = [_metric(name, left[name], right[name], resamples, analysis_seed) for name in metrics]
    flips = _flips(left, right, success)
    changes = np.sign(flips["delta"].to_numpy())
    gained, lost, p_value = _success_flips(left, right, success)
    n_tasks = len(flips)
    return Comparison(
        name=str(bare.attrs.get("name", "two arms")),
        sha256=str(bare.attrs.get("sha256", "")),
        simulated=bool(bare.attrs.get("simulated", False) or equipped.attrs.get("simulated", False)),
        checkpoint=str(bare.attrs.get("checkpoint", "")),
        metrics=pd.DataFrame(rows),
        flips=flips,
        wins=int((changes > 0).sum()),
        ties=int((changes == 0).sum()),
        losses=int((changes < 0).sum()),
        gained=gained,
        lost=lost,
        success_p_value=p_value,
        n_pairs=len(left),
        n_tasks=n_tasks,
        notes=(*bare.attrs.get("notes", ()), *_notes(rows, len(left), n_tasks, success)),
    )


def _keyed(frame: pd.DataFrame, arm: str) -> pd.DataFrame:
    """Index an arm's metrics, every column that does not describe a row, by comparable task id and sample."""
    _refuse_other_columns(frame, arm)
    tasks = [task_key(str(task_id)) for task_id in frame["task_id"]]
    metrics = {str(name): _numbers(frame[name], tasks, arm) for name in frame.columns if name not in DESCRIPTIVE}
    samples = np.zeros(len(frame))
    if "sample" in frame:
        samples = _numbers(frame["sample"], tasks, arm, whole=True)
    index = pd.MultiIndex.from_arrays([tasks, samples.astype(np.int64)], names=["task", "sample"])
    keyed = pd.DataFrame(metrics, index=index)
    repeated = keyed.index[keyed.index.duplicated()]
    if len(repeated):
        raise InputError(
            "the row appears twice",
            where=f"{arm} arm, task {repeated[0][0]}, sample {repeated[0][1]}",
            allowed="each task and sample once",
            todo="remove the row, or number the samples of a task in a column `sample`",
        )
    return keyed


def _refuse_other_columns(frame: object, arm: str) -> None:
    """Refuse an arm that is no frame, has no task ids or no reward, or a column twice."""
    if not isinstance(frame, pd.DataFrame):
        raise ParameterError(
            f"the {arm} arm is a {type(frame).__name__}",
            where=arm,
            allowed="a pandas DataFrame, one row an episode",
            todo="give compare_paired(*read_comparison(path)), or two frames",
        )
    twice = frame.columns[frame.columns.duplicated()]
    if len(twice) or "task_id" not in frame or PRIMARY not in frame:
        raise InputError(
            f"column {twice[0]!r} appears twice"
            if len(twice)
            else f"columns are {', '.join(map(str, frame.columns[:12]))}",
            where=f"{arm} arm",
            allowed="columns task_id and reward, each name once",
            todo="rename the columns",
        )
    if frame["task_id"].isna().any():
        raise InputError(
            f"row {int(frame['task_id'].isna().argmax()) + 1} has no task_id",
            where=f"{arm} arm",
            allowed="an id in every row",
            todo="fill it in",
        )


def _numbers(column: pd.Series, tasks: Sequence[str], arm: str, whole: bool = False) -> FloatArray:
    """Read a column as numbers, text that holds a number included; NaN is missing, whole numbers are never missing."""
    plain = column.astype(object)
    values = np.array([_number(cell) for cell in plain], dtype=np.float64)
    wrong = (np.isnan(values) & plain.notna().to_numpy()) | (np.abs(values) > LARGEST)
    if whole:
        wrong |= ~(np.floor(values) == values) | (values < 0) | (values > LARGEST_SAMPLE)
    if wrong.any():
        row = int(np.argmax(wrong))
        raise InputError(
            f"{column.name} is {str(plain.iloc[row])[:40]!r}",
            where=f"{arm} arm, task {tasks[row]}, column {column.name}",
            allowed="whole numbers from 0" if whole else f"numbers of at most {LARGEST:g} in size, NaN where missing",
            todo="correct the value, or leave the column out",
        )
    return values


def _number(cell: Any) -> float:
    """Return the number a cell holds, NaN if it holds none."""
    try:
        return float(cell)
    except OverflowError:
        return float("inf")
    except (TypeError, ValueError):
        return float("nan")


def _refuse_unaligned(left: pd.DataFrame, right: pd.DataFrame) -> None:
    """Refuse arms over different tasks or samples, or over a single task."""
    unlike = left.index.symmetric_difference(right.index)
    if len(unlike) or left.empty:
        listed = ", ".join(f"{task} (sample {sample})" for task, sample in unlike[:10])
        raise InputError(
            f"{len(unlike)} rows stand in one arm only: {listed}" if len(unlike) else "there are no rows",
            where="bare and equipped arm",
            allowed="the same tasks and samples in both arms",
            todo="run the episodes that are owed",
        )
    if left.index.get_level_values("task").nunique() < 2:
        raise InputError(
            f"all rows belong to task {left.index[0][0]}",
            where="bare and equipped arm",
            allowed="at least two tasks: an interval rests on what differs between tasks",
            todo="add tasks",
        )


def _refuse_missing_scores(left: pd.DataFrame, right: pd.DataFrame, success: str | None) -> None:
    """Refuse a missing score: it is never 0, and leaving it out would favour an arm."""
    for arm, frame in (("bare", left), ("equipped", right)):
        for name in frame:
            lost = frame.index[frame[name].isna()]
            if len(lost) and (name in (PRIMARY, success) or str(name).startswith("r_")):
                raise MissingError(
                    f"{arm}_{name} is missing in {len(lost)} of {len(frame)} rows (tasks "
                    f"{', '.join(task for task, _ in lost[:10])})",
                    where=f"{arm} arm",
                    allowed="a score in every row of both arms",
                    todo="run the owed episodes again",
                )
    if success and not (left[success].isin([0, 1]) & right[success].isin([0, 1])).all():
        raise InputError(
            f"{success} holds values other than 0 and 1",
            where=f"column {success}",
            allowed="0 or 1",
            todo="correct the column, or rename it if it is not task success",
        )


def _metric(name: str, bare: pd.Series, equipped: pd.Series, resamples: int, seed: int) -> dict[str, Any]:
    """Means, paired difference and intervals of one metric over the tasks that have it in both arms."""
    known = bare.notna() & equipped.notna()
    pairs = pd.DataFrame({"bare": bare, "equipped": equipped})[known].groupby(level="task").mean()
    row: dict[str, Any] = {"metric": name, "bare": None, "equipped": None, "delta": None, "ci_low": None}
    row |= {"ci_high": None, "bca_low": None, "bca_high": None, "n_tasks": len(pairs)}
    if pairs.empty:
        return row
    values = (pairs["equipped"] - pairs["bare"]).to_numpy()
    means = resampling.bootstrap_means(values[:, None], resamples, seed)[:, 0]
    row |= {"bare": pairs["bare"].mean(), "equipped": pairs["equipped"].mean(), "delta": values.mean()}
    row["ci_low"], row["ci_high"] = resampling.percentile_interval(means)
    row["bca_low"], row["bca_high"] = resampling.bca_interval(values, means)
    return row


def _flips(left: pd.DataFrame, right: pd.DataFrame, success: str | None) -> pd.DataFrame:
    """One row a task: reward in both arms, difference, success in both arms; largest difference first."""
    names = [PRIMARY, *([success] if success else [])]
    bare, equipped = (frame[names].groupby(level="task").mean() for frame in (left, right))
    flips = bare.add_prefix("bare_").join(equipped.add_prefix("equipped_"))
    flips["delta"] = equipped[PRIMARY] - bare[PRIMARY]
    return flips.sort_values(["delta"], ascending=False, kind="stable").reset_index(names="task_id")


def _success_flips(
    left: pd.DataFrame, right: pd.DataFrame, success: str | None
) -> tuple[int | None, int | None, float | None]:
    """Rows gained and lost, and the exact p-value: McNemar's test, over tasks by the sign of their net change."""
    if success is None:
        return None, None, None
    change = right[success] - left[success]
    net = change.groupby(level="task").sum()
    p_value = exact_mcnemar(int((net > 0).sum()), int((net < 0).sum()))
    return int((change > 0).sum()), int((change < 0).sum()), p_value


def _notes(rows: Sequence[dict[str, Any]], n_pairs: int, n_tasks: int, success: str | None) -> tuple[str, ...]:
    """What must be printed beside the table."""
    notes = [
        f"{row['metric']} is known in both arms for {row['n_tasks']} of {n_tasks} tasks"
        for row in rows
        if row["n_tasks"] < n_tasks
    ]
    if n_tasks < FEW_TASKS:
        notes.append(f"{n_tasks} tasks: below {FEW_TASKS} the intervals are coarse and mostly too narrow")
    if n_pairs > n_tasks:
        notes.append(f"{n_pairs} rows of {n_tasks} tasks: every task counts once, its rows are averaged")
        if success:
            notes.append("gained and lost count rows; their p-value is a sign test over the tasks' net changes")
    return tuple(notes)
