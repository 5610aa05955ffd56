"""Read pairs, align them, refuse what does not hold (METHOD M2, M18, M20).

A gate file has one row a pair: `task_id`, optionally `sample`, the mask, and outcomes `x` beside `bare_x`. A
comparison file has `bare_x` beside `equipped_x`. An empty cell is a missing episode, never 0.
"""

import os
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from numbers import Real
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from shopskill_lib import cells, checks
from shopskill_lib.adapters import folder, gate_folder
from shopskill_lib.errors import DesignError, MissingError, ParameterError
from shopskill_lib.masks import DesignReport, Slot, report
from shopskill_lib.sources import Columns, Intervention, read_columns, read_interventions

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]

MISSING_P = 0.05
"""Level of M20's exact tests."""

ADMITTED = 0.5
"""Largest share of missing pairs where a gate is read again: the frozen gate has applied its own."""


@dataclass(frozen=True, slots=True)
class Missing:
    """Pairs left out of a gate under `max_missing` (M20).

    Attributes:
        masked: task ids whose masked episode is missing; `bare` likewise.
        lowest: (K,) lowest coefficients the missing rewards, all in [0, 1], could have given, NaN for a factor
            without an estimate; `highest` likewise.
        masked_complete: (K,) share of the rows that show each factor whose masked episode is there, NaN where no row
            does; `bare_complete` likewise.
    """

    masked: tuple[str, ...]
    bare: tuple[str, ...]
    lowest: FloatArray
    highest: FloatArray
    masked_complete: FloatArray
    bare_complete: FloatArray


@dataclass(frozen=True, slots=True)
class Observations:
    """The n pairs of a gate, complete and checked.

    Attributes:
        name: the file's name; `sha256` of its bytes.
        simulated: True when the file says that its rewards are simulated.
        checkpoint: weights that were measured, "" where the file does not say.
        task_ids: n ids as written; `tasks` the same as (n,) numbers 0 .. T-1; `samples` n numbers.
        interventions: the K factors; `slots` the logical chunks in canonical order of first appearance.
        masks: (n, K) 0/1.
        masked: outcome -> (n,) values of the masked runs; `bare` the same outcomes of the bare runs.
        budget: the file's own skill budget, if it has one.
        missing: what was left out, None when nothing was.
        groups: description of the tasks, as `category` -> n groups, "" where a row names none.
        notes: what a reader must know about how the file was read.
    """

    name: str
    sha256: str
    simulated: bool
    checkpoint: str
    task_ids: tuple[str, ...]
    samples: tuple[int, ...]
    tasks: IntArray
    interventions: tuple[Intervention, ...]
    masks: IntArray
    masked: dict[str, FloatArray]
    bare: dict[str, FloatArray]
    budget: int | None
    missing: Missing | None
    groups: dict[str, tuple[str, ...]]
    notes: tuple[str, ...]

    @property
    def factors(self) -> tuple[str, ...]:
        """The K intervention ids, in column order."""
        return tuple(item.intervention_id for item in self.interventions)

    @property
    def slots(self) -> tuple[Slot, ...]:
        """The slots, each with the versions that are columns here."""
        return _slots(self.interventions)

    def delta(self, outcome: str) -> FloatArray:
        """(n,) paired differences masked minus bare of one outcome."""
        return self.masked[outcome] - self.bare[outcome]

    def to_frame(self) -> pd.DataFrame:
        """One row a pair: task, sample, mask as text, outcomes of both arms."""
        frame = pd.DataFrame({"task_id": self.task_ids, "sample": self.samples})
        frame["mask"] = ["".join(map(str, row)) for row in self.masks]
        for outcome in self.masked:
            frame[outcome], frame[f"bare_{outcome}"] = self.masked[outcome], self.bare[outcome]
        return frame

    def summary(self) -> str:
        """One printed sentence."""
        label = "simulated " if self.simulated else ""
        return (
            f"{self.name}: {len(self.task_ids)} {label}pairs of {int(self.tasks.max()) + 1} tasks, "
            f"{len(self.interventions)} factors in {len(self.slots)} slots, outcomes {', '.join(self.masked)}"
        )

    def __str__(self) -> str:
        return self.summary()


def read_observations(
    path: str | Path, interventions: str | Path | None = None, max_missing: float = 0.0
) -> Observations:
    """Read the pairs of a gate and refuse what METHOD M20 does not allow.

    Args:
        path: CSV with a bit-string `mask` or one 0/1 column a factor, a ShopSimRL `contributions.json`, or a folder
            with a gate: of ShopSimRL, of `shopskill import`, or a run folder of ours.
        interventions: JSON that names the mask's columns, their slots and kinds.
        max_missing: largest share of pairs that may be missing after all retries, 0 <= share < 1.

    Raises:
        InputError: the file or a value cannot be used; task and column are named.
        DesignError: effects cannot be told apart, or too few pairs.
        MissingError: more is missing than admitted, or not at random.
    """
    _refuse_other_share(max_missing)
    path = _path(path, "path")
    columns = _columns(path)
    named = columns.interventions
    if not (interventions is None or (isinstance(interventions, str) and not interventions)):
        named = read_interventions(_path(interventions, "interventions"))
    task_ids, samples, tasks = cells.keys(columns, path)
    outcomes = _gate_outcomes(columns, named, path)
    factors, masks = cells.masks(columns, named, outcomes, task_ids, path)
    _refuse_versions_together(masks, factors, task_ids, path)
    masked, bare = (_arm(columns, prefix, outcomes, task_ids, path) for prefix in ("", "bare_"))
    gone = cells.missing_episodes(masked, task_ids, path), cells.missing_episodes(bare, task_ids, path, "bare_")
    keep = ~(gone[0] | gone[1])
    notes = [*_remarks(columns), *_reading_notes(columns, named, factors)]
    notes += _refuse_left_out(columns, int((~keep).sum()), max_missing, path)
    _refuse_missing(gone, masks, factors, task_ids, max_missing, path)
    notes += _refuse_design(masks[keep], factors, path)
    missing = None if keep.all() else _bounds(masked["reward"], bare["reward"], gone, masks, task_ids, path)
    torn = [name for name in outcomes if np.isnan((masked[name] - bare[name])[keep]).any()]
    notes += [f"{name} is not fitted: some complete pairs lack it" for name in torn]
    fitted = [name for name in outcomes if name not in torn]
    return Observations(
        name=columns.name,
        sha256=columns.sha256,
        simulated=_simulated(columns),
        checkpoint="" if "checkpoint" in {item.intervention_id for item in factors} else _checkpoint(columns),
        task_ids=_where(task_ids, keep),
        samples=tuple(np.array(samples)[keep].tolist()),
        tasks=np.unique(tasks[keep], return_inverse=True)[1].astype(np.int64),
        interventions=factors,
        masks=masks[keep],
        masked={name: masked[name][keep] for name in fitted},
        bare={name: bare[name][keep] for name in fitted},
        budget=columns.budget,
        missing=missing,
        groups=_groups(columns, {item.intervention_id for item in factors}, keep),
        notes=tuple(notes),
    )


def read_again(folder: Path) -> Observations:
    """Read the pairs of a folder whose gate has been fitted (see `read_observations`)."""
    named = folder / "interventions.json"
    return read_observations(folder / "observations.csv", named if named.exists() else None, ADMITTED)


def read_comparison(path: str | Path) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Read `bare_x` and `equipped_x` columns as two frames, bare and equipped, one row a task and sample.

    Returns:
        Two frames with `task_id`, `sample` and one column a metric; NaN marks a missing value. `attrs` of both
        hold `name`, `sha256`, `simulated`, `checkpoint` and `notes`.

    Raises:
        InputError: the file or a value cannot be used; task and column are named.
    """
    path = _path(path, "path")
    columns = read_columns(path)
    task_ids, samples, _ = cells.keys(columns, path)
    cells.refuse_mixed(columns, ("checkpoint",), path)
    metrics = cells.paired_names(columns, "equipped_", "bare_", path)
    frames = []
    for prefix in ("bare_", "equipped_"):
        arm = _arm(columns, prefix, metrics, task_ids, path)
        frame = pd.DataFrame({"task_id": task_ids, "sample": samples, **arm})
        frame.attrs = {"name": columns.name, "sha256": columns.sha256, "simulated": _simulated(columns)}
        frame.attrs |= {"checkpoint": _checkpoint(columns), "notes": _remarks(columns)}
        frames.append(frame)
    return frames[0], frames[1]


def plain_rows(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """Rows of a frame as plain objects, for JSON: NaN and NA become None."""
    rows = frame.astype(object).where(frame.notna(), None).to_dict("records")
    return [
        {str(key): value.item() if isinstance(value, np.generic) else value for key, value in row.items()}
        for row in rows
    ]


def _columns(path: Path) -> Columns:
    """Read a file of pairs, or the gate of a folder."""
    if not path.is_dir():
        return read_columns(path)
    if folder.recognises(path, None):
        return folder.read_gate(path)
    if (path / "observations.csv").exists():
        named = path / "interventions.json"
        return replace(
            read_columns(path / "observations.csv"), interventions=read_interventions(named) if named.exists() else ()
        )
    return gate_folder.columns(path)


def _arm(
    columns: Columns, prefix: str, outcomes: Sequence[str], task_ids: Sequence[str], path: Path
) -> dict[str, FloatArray]:
    arm = {name: cells.numbers(columns.cells[prefix + name], prefix + name, task_ids, path) for name in outcomes}
    cells.refuse_reward_unlike_strict(arm, prefix, task_ids, path)
    cells.refuse_other_success(arm, prefix, task_ids, path)
    return arm


def _simulated(columns: Columns) -> bool:
    """Tell whether the file says that its rewards are simulated."""
    return any("simulated" in cell.casefold() for cell in columns.cells.get("origin", ()))


def _checkpoint(columns: Columns) -> str:
    """Return the one checkpoint of a file, "" where it names none."""
    return next(iter(columns.cells.get("checkpoint", ())), "")


def _groups(columns: Columns, factors: Collection[str], keep: BoolArray) -> dict[str, tuple[str, ...]]:
    """Return the groups of the kept rows, by every description that the file has and that is no factor."""
    names = [name for name in cells.GROUPS if name not in factors and any(columns.cells.get(name, ()))]
    return {name: _where(columns.cells[name], keep) for name in names}


def _remarks(columns: Columns) -> tuple[str, ...]:
    """Return what stands after a semicolon in the origins of a file: what every claim on it must carry (M2)."""
    origins = dict.fromkeys(columns.cells.get("origin", ()))
    return tuple(dict.fromkeys(part.strip() for origin in origins for part in origin.split(";")[1:] if part.strip()))


def _path(value: object, name: str) -> Path:
    """Return a path; refuse what is none."""
    if isinstance(value, str | os.PathLike):
        return Path(value)
    raise ParameterError(
        f"{name} is a {type(value).__name__}",
        where=name,
        allowed="the path of a file, a text or a Path",
        todo="write the table to a file and give its path",
    )


def _refuse_other_share(max_missing: object) -> None:
    """Refuse what is no share of pairs."""
    if not isinstance(max_missing, Real) or not 0 <= float(max_missing) < 1:
        raise ParameterError(
            f"max_missing is {max_missing!r}",
            where="max_missing",
            allowed="a share of the pairs, 0 <= share < 1",
            todo="give for example 0.05",
        )


def _gate_outcomes(columns: Columns, named: Sequence[Intervention], path: Path) -> list[str]:
    """Return the outcomes of a gate's file, of one checkpoint and one split that is not test."""
    ids = {item.intervention_id for item in named}
    described = columns if not ids & {"checkpoint", "split"} else None
    if described:
        cells.refuse_mixed(described, ("checkpoint", "split"), path)
        cells.refuse_test_split(described, path)
    return cells.paired_names(columns, "", "bare_", path, ids)


def _where(ids: Sequence[str], flags: BoolArray) -> tuple[str, ...]:
    """Return the ids whose flag is set."""
    return tuple(item for item, flag in zip(ids, flags, strict=True) if flag)


def _slots(interventions: Sequence[Intervention]) -> tuple[Slot, ...]:
    """Group versions by slot, in the order of first appearance, the text in force first."""
    grouped: dict[str, list[Intervention]] = {}
    for item in interventions:
        grouped.setdefault(item.slot, []).append(item)
    return tuple(
        Slot(slot, tuple(item.intervention_id for item in sorted(items, key=lambda item: item.kind == "candidate")))
        for slot, items in grouped.items()
    )


def design_report(masks: IntArray, interventions: Sequence[Intervention]) -> DesignReport:
    """Report the health of (n, K) masks whose columns are these interventions."""
    slots, ids = _slots(interventions), [item.intervention_id for item in interventions]
    return report(masks[:, [ids.index(version) for slot in slots for version in slot.versions]], slots)


def _refuse_versions_together(
    masks: IntArray, factors: tuple[Intervention, ...], task_ids: Sequence[str], path: Path
) -> None:
    """Refuse a row that shows several versions of one slot (I9)."""
    slots = np.array([item.slot for item in factors], dtype=object)
    for slot in dict.fromkeys(slots):
        clash = np.flatnonzero(masks[:, slots == slot].sum(axis=1) > 1)
        if clash.size:
            raise DesignError(
                f"task {task_ids[clash[0]]} shows several versions of slot {slot!r}",
                where=str(path),
                allowed="at most one version of a slot in a row (I9)",
                todo="correct the mask or the interventions file",
            )


def _refuse_design(masks: IntArray, factors: tuple[Intervention, ...], path: Path) -> list[str]:
    """Refuse masks under which effects cannot be told apart; return notes on what is only weak (M20)."""
    pairs, fitted = len(masks), int((masks.sum(axis=0) > 0).sum())
    if pairs < 2 * max(fitted, 1) or not fitted:
        raise DesignError(
            f"{pairs} complete pairs for {fitted} factors that are shown",
            where=str(path),
            allowed="at least one factor shown, and 2 pairs a factor",
            todo="add tasks, or leave out factors",
        )
    health = design_report(masks, factors)
    if health.aliased:
        present = ", ".join(health.absent_missing)
        groups = "; apart from these, of ".join(", ".join(group) for group in health.aliased)
        raise DesignError(
            f"the effects of {groups} cannot be told apart from each other or from a constant "
            "shift between the arms" + (f"; no row leaves out {present}" if present else ""),
            where=str(path),
            allowed="masks of full column rank, each slot sometimes absent (M20)",
            todo="draw masks by M17, or leave out the factors named",
        )
    notes = [f"never shown, so no effect is estimated: {', '.join(health.never_shown)}"] if health.never_shown else []
    if pairs < 20 * fitted:
        notes.append(f"{pairs / fitted:.1f} pairs a factor: below 20 the estimates are coarse (M16)")
    return notes


def _refuse_missing(
    gone: tuple[BoolArray, BoolArray],
    masks: IntArray,
    factors: tuple[Intervention, ...],
    task_ids: Sequence[str],
    max_missing: float,
    path: Path,
) -> None:
    """Refuse missing episodes beyond max_missing, or unlike in the arms, or following a mask (M20)."""
    lost = gone[0] | gone[1]
    if not lost.any():
        return
    tests = checks.missingness(gone[0], gone[1], masks)
    worst = int(np.argmin(tests.mask_p_values))
    reasons = (
        (lost.mean() > max_missing, f"{int(lost.sum())} of {len(lost)} pairs are incomplete"),
        (tests.arms_p_value < MISSING_P, f"one arm is missing more often (exact p = {tests.arms_p_value:.4f})"),
        (
            tests.mask_p_values[worst] < MISSING_P,
            f"masked episodes are missing by whether {factors[worst].intervention_id} is shown (exact p = "
            f"{tests.mask_p_values[worst]:.4f}, adjusted for {len(factors)} factors)",
        ),
    )
    arms = (f"{arm}: {_listed(_where(task_ids, flags))}" for arm, flags in zip(("masked", "bare"), gone, strict=True))
    for refused, found in reasons:
        if refused:
            raise MissingError(
                f"{found}; missing episodes {'; '.join(arms)}",
                where=str(path),
                allowed=f"a share of at most max_missing = {max_missing:g}, alike in both arms and masks (M20)",
                todo="run the owed episodes again; raise max_missing only when their retries are exhausted",
            )


def _reading_notes(columns: Columns, named: Sequence[Intervention], factors: Sequence[Intervention]) -> tuple[str, ...]:
    """Say how the file was read: its delimiter, and which columns were taken for factors unasked."""
    if named or "mask" in columns.cells:
        return columns.notes
    ids = [item.intervention_id for item in factors]
    return (*columns.notes, f"{len(ids)} columns are read as factors: {_shortened(ids)}")


def _refuse_left_out(columns: Columns, incomplete: int, max_missing: float, path: Path) -> list[str]:
    """Refuse pairs that the file itself left out beyond max_missing; note what could not be tested (M20)."""
    if not columns.owed:
        return []
    found = f"{columns.owed} pairs were left out of the file" + (
        f" ({_shortened(columns.dropped)})" if columns.dropped else ""
    )
    if columns.owed + incomplete > max_missing * (columns.owed + columns.rows):
        raise MissingError(
            found + (f" and {incomplete} in it are incomplete" if incomplete else ""),
            where=str(path),
            allowed=f"a share of at most max_missing = {max_missing:g} (M20)",
            todo="run the owed episodes again; raise max_missing only when their retries are exhausted",
        )
    return [f"{found}: they carry no mask, so whether they are missing at random could not be tested (M20)"]


def _shortened(ids: Sequence[str]) -> str:
    """List at most ten ids."""
    return ", ".join([*ids[:10], *(["..."] if len(ids) > 10 else [])])


def _listed(ids: Sequence[str]) -> str:
    """Count ids and list at most ten of them."""
    more = f", and {len(ids) - 10} more" if len(ids) > 10 else ""
    return f"{len(ids)} (tasks {', '.join(ids[:10])}{more})" if ids else "none"


def _bounds(
    masked: FloatArray,
    bare: FloatArray,
    gone: tuple[BoolArray, BoolArray],
    masks: IntArray,
    task_ids: Sequence[str],
    path: Path,
) -> Missing:
    """Bound the coefficients over what the missing rewards could have been (M20)."""
    known = np.concatenate([masked, bare])
    if np.nanmin(known) < 0 or np.nanmax(known) > 1:
        raise MissingError(
            "a reward lies outside [0, 1], so missing rewards cannot be bounded",
            where=str(path),
            allowed="rewards in [0, 1] where pairs are missing",
            todo="complete the pairs",
        )
    lowest, highest = checks.worst_case_bounds(masked, bare, masks)
    unknown = ~masks[~(gone[0] | gone[1])].any(axis=0)
    lowest[unknown] = highest[unknown] = np.nan
    rows = masks.sum(axis=0)
    complete = [np.where(rows, (~lost @ masks) / np.maximum(rows, 1), np.nan) for lost in gone]
    return Missing(_where(task_ids, gone[0]), _where(task_ids, gone[1]), lowest, highest, *complete)
