"""The noise floor of a run folder: `noise.json`, what it says, and the gates that it belongs to.

A floor is of one split at one checkpoint: how far two bare arms differ by their seeds alone. Figures and claim sheets
of a gate show it where the gate is of the same pairs (Gate A), or of the same tasks and checkpoint (Gate B).
"""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Literal

import pandas as pd
from pydantic import TypeAdapter

from shopskill_lib.comparison import Comparison
from shopskill_lib.files import read_record, write_bytes, write_json
from shopskill_lib.gates import PRIMARY
from shopskill_lib.noise import Interval, Scatter, half_width
from shopskill_lib.records import Record, fingerprint
from shopskill_lib.text import task_key

FILE, TABLE = "noise.json", "noise.csv"
"""In the run folder."""

SUCCESS = "r_success"

Side = Literal["val", "test"]


class Coefficients(Record):
    """What a gate's coefficients on the reward show where text does nothing."""

    pairs_sha256: str
    """Of the pairs whose masks were used."""
    tasks: int
    rows: int
    """Of the gate; a task without enough runs for its rows is left out."""
    half_widths: dict[str, float]
    """Factor -> size below which 95 % of its coefficients lie."""
    single: float
    """The same over the coefficients of all factors."""
    largest: float
    """Size below which 95 % of the largest coefficients of a gate lie."""


class Floor(Record):
    """The noise floor of one split."""

    split: Side
    simulated: bool
    checkpoint: str
    tasks: int
    """Of the split."""
    tasks_sha256: str
    """Of their ids (`tasks_hash`)."""
    repeats: int
    """Bare runs a task beside the gate's own."""
    rollout_seed: int
    analysis_seed: int
    resamples: int
    """Of the bootstrap over tasks, and draws of the coefficients."""
    episodes: int
    """Scored ones."""
    missing: tuple[str, ...]
    """Task and sample of the others; sample 0 is the gate's own bare run."""
    identical: str
    """Why this floor is none: repeats that say nothing new (`replicates`); "" where they do."""
    outcomes: dict[str, Scatter]
    coefficients: Coefficients | None
    """None where no gate has been run, or the runs of a task are too few for its rows."""
    notes: tuple[str, ...]

    def to_frame(self) -> pd.DataFrame:
        """One row an outcome: mean, floor, flips, variances."""
        return pd.DataFrame(
            [
                {
                    "split": self.split,
                    "outcome": name,
                    "mean": f"{seen.mean:.3f}",
                    "two arms differ": _told(seen.difference, "+.3f"),
                    "their spread": _told(seen.spread, ".3f"),
                    "floor, 95 %": _told(seen.half_width, ".3f"),
                    "flips": "-" if seen.flips is None else _told(seen.flips, ".3f"),
                    "within": f"{seen.within.value:.4f}",
                    "between": f"{seen.between:.4f}",
                    "share between": "-" if seen.share is None else _told(seen.share, ".2f"),
                }
                for name, seen in self.outcomes.items()
            ]
        )

    def to_rows(self) -> pd.DataFrame:
        """One row a figure, for `noise.csv`: plain values with their intervals, empty where there is none."""
        rows = []
        for name, seen in self.outcomes.items():
            for figure, value in asdict(seen).items():
                ends = value if isinstance(value, dict) else {"value": value}
                rows.append({"outcome": name, "figure": figure, **ends})
        if self.coefficients is not None:
            found = self.coefficients
            named = {"coefficient, any one": found.single, "coefficient, largest": found.largest}
            named |= {f"coefficient {factor}": value for factor, value in found.half_widths.items()}
            rows += [{"outcome": PRIMARY, "figure": name, "value": value} for name, value in named.items()]
        table = pd.DataFrame(rows, columns=["outcome", "figure", "value", "low", "high"])
        table.insert(0, "split", self.split)
        return table.assign(simulated=self.simulated)

    def reach(self, tasks: int) -> float | None:
        """Return the floor of a difference in mean reward over so many such tasks; None where repeats say nothing."""
        return None if self.identical else half_width(self.outcomes[PRIMARY].within.value, tasks)

    def about_differences(self) -> str:
        """Say what a difference of two arms has to exceed."""
        if self.identical:
            return f"No noise floor of the {self.split} tasks is known: {self.identical}."
        seen, flips = self.outcomes[PRIMARY], self.outcomes[SUCCESS].flips if SUCCESS in self.outcomes else None
        turned = "" if flips is None else f"; success flips at {_percent(flips)} of the tasks"
        return (
            f"Noise floor: a difference in mean reward below {seen.half_width.value:.3f} is what two identical arms of "
            f"{self.tasks} {self.split} tasks show (95 %, {self._basis()}){turned}."
        )

    def about_coefficients(self) -> str:
        """Say what a coefficient has to exceed; "" where that is not known of any gate."""
        found = self.coefficients
        if found is None:
            return ""
        if self.identical:
            return f"No noise floor of these coefficients is known: {self.identical}."
        return (
            f"Noise floor: a coefficient below {found.single:.3f} is what two identical arms show (95 %, "
            f"{self._basis()}), and the largest of {len(found.half_widths)} stays below {found.largest:.3f}."
        )

    def _basis(self) -> str:
        return f"{'simulated, ' if self.simulated else ''}{self.repeats} repeats of the bare runs"

    def verdict(self) -> str:
        """Say in plain sentences what noise alone does on these tasks."""
        told = [self.about_differences(), *([] if self.identical else [self.about_coefficients(), self._plan()])]
        return " ".join(filter(None, told))

    def for_planning(self) -> tuple[float, Interval] | None:
        """Return mean success, or reward where the shop tells no more, and the share of its variance between tasks.

        None where the runs of a task tell nothing new, or all tasks are alike.
        """
        seen = self.outcomes.get(SUCCESS, self.outcomes[PRIMARY])
        if self.identical or seen.share is None or seen.share.value == 1:
            return None
        return seen.mean, seen.share

    def _plan(self) -> str:
        known = self.for_planning()
        if known is None:
            return ""
        success, share = known
        return f"To plan with such tasks: shopskill plan --success {success:.3f} --between {share.value:.3f}."


class Noise(Record):
    """The floors of a run folder, one a split."""

    floors: tuple[Floor, ...]

    def of(self, split: Side) -> Floor | None:
        """Return the floor of a split."""
        return next((floor for floor in self.floors if floor.split == split), None)

    def summary(self) -> str:
        """The table, a sentence a split, and the notes."""
        table = pd.concat([floor.to_frame() for floor in self.floors]).to_string(index=False)
        label = "simulated " if any(floor.simulated for floor in self.floors) else ""
        told = [floor.verdict() for floor in self.floors]
        notes = [f"note: {floor.split}: {note}" for floor in self.floors for note in floor.notes]
        return "\n".join([f"{label}noise floor", table, *self._factors(), *told, *notes])

    def _factors(self) -> list[str]:
        """Return a line with the floor of every factor of the gate, where there is one."""
        found = [floor.coefficients.half_widths for floor in self.floors if floor.coefficients]
        lines = [", ".join(f"{factor} {size:.3f}" for factor, size in sizes.items()) for sizes in found]
        return [f"coefficients that do nothing, 95 % below: {line}" for line in lines]

    def __str__(self) -> str:
        return self.summary()


def read(folder: Path) -> Noise | None:
    """Return the floors of a run folder; None where none has been measured.

    Raises:
        InputError: the file is damaged.
    """
    path = folder / FILE
    if not path.exists():
        return None
    return read_record(
        path,
        TypeAdapter(Noise),
        found="the noise floor cannot be used",
        allowed="the noise.json that shopskill noise wrote",
        todo="remove it and repeat shopskill noise: what was rolled out is kept",
    )


def write(folder: Path, floor: Floor) -> Noise:
    """Put a floor into a folder's record, in place of an earlier one of its split; others of its checkpoint stay.

    Raises:
        InputError: the record there is damaged.
        OutputError: the folder cannot be written.
    """
    before = read(folder)
    same = () if before is None else before.floors
    others = [other for other in same if other.split != floor.split and other.checkpoint == floor.checkpoint]
    noise = Noise(floors=tuple(sorted([*others, floor], key=lambda item: item.split, reverse=True)))
    write_json(folder / FILE, noise.model_dump(mode="json"))
    table = pd.concat([item.to_rows() for item in noise.floors])
    write_bytes(folder / TABLE, table.to_csv(index=False, lineterminator="\n").encode())
    return noise


def of_gate(noise: Noise | None, pairs_sha256: str) -> Floor | None:
    """Return the floor of a gate's own pairs; None where none has been measured."""
    floor = None if noise is None else noise.of("val")
    if floor is None or floor.coefficients is None or floor.coefficients.pairs_sha256 != pairs_sha256:
        return None
    return floor


def of_weights(checkpoint: str, folders: Sequence[Path]) -> Floor | None:
    """Return the first floor of validation tasks that these folders hold for a checkpoint; None without one."""
    found = [noise.of("val") for noise in map(read, folders) if noise is not None]
    return next((floor for floor in found if floor is not None and floor.checkpoint == checkpoint), None)


def of_test(noise: Noise | None, comparison: Comparison) -> Floor | None:
    """Return the floor of a comparison's test tasks at its checkpoint; None where none has been measured."""
    floor = None if noise is None else noise.of("test")
    tasks = tasks_hash(list(comparison.flips["task_id"]))
    same = floor is not None and (floor.checkpoint, floor.tasks_sha256) == (comparison.checkpoint, tasks)
    return floor if same else None


def tasks_hash(task_ids: Sequence[str]) -> str:
    """Return the hash of a set of tasks, whatever their order and leading zeros (M2)."""
    return fingerprint(sorted(map(task_key, task_ids)))


def _told(figure: Interval, form: str) -> str:
    return f"{figure.value:{form}} [{figure.low:{form}}, {figure.high:{form}}]"


def _percent(figure: Interval) -> str:
    return f"{figure.value:.1%} (95 % {figure.low:.1%} to {figure.high:.1%})"
