"""Looks before the end of a gate: stages declared before the first rollout, and what level each look may use.

A look gives labels only; the rule of M21-M22 selects once, on all tasks (M23). The error of all looks together is
bounded by spending it: little early, most at the end (Lan and DeMets 1983, of the kind of O'Brien and Fleming).
"""

import math
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy import optimize, stats

from shopskill_lib import masks
from shopskill_lib.errors import DesignError, ParameterError
from shopskill_lib.files import read_json, write_json
from shopskill_lib.inference import LEVEL

FloatArray = NDArray[np.float64]

FILE = "stages.json"
"""Declared stages of a run folder."""

NODES = 201
"""Points of the Gauss-Legendre rule between the bounds of a look."""


@dataclass(frozen=True, slots=True)
class Stages:
    """Parts of the tasks, after each of which labels may be given.

    Attributes:
        parts: task ids of each stage, in the order they are rolled out.
    """

    parts: tuple[tuple[str, ...], ...]

    def until(self, stage: int) -> frozenset[str]:
        """Return the tasks of the first stages up to this one, counted from 1.

        Raises:
            ParameterError: it is no stage before the last.
        """
        if not 1 <= stage < len(self.parts):
            raise ParameterError(
                f"stage {stage} of {len(self.parts)}",
                where="--stage",
                allowed=f"1 to {len(self.parts) - 1}: the last stage is the gate itself"
                if len(self.parts) > 1
                else "a gate whose stages are declared before its first rollout",
                todo="run without --stage for the gate; declare parts with n_stages: 4 in a new run folder",
            )
        return frozenset(task_id for part in self.parts[:stage] for task_id in part)

    def share(self, stage: int) -> float:
        """Return the share of all tasks that the first stages have."""
        return sum(map(len, self.parts[:stage])) / sum(map(len, self.parts))


def deal(mask_seed: int, split: str, task_ids: Sequence[str], stages: int) -> Stages:
    """Deal tasks to stages of equal size, in the order in which masks are dealt to blocks.

    Raises:
        ParameterError: there are fewer tasks than stages.
    """
    if stages > len(task_ids):
        raise ParameterError(
            f"{stages} stages of {len(task_ids)} tasks",
            where="n_stages",
            allowed="at least a task a stage",
            todo="declare fewer",
        )
    order = masks.dealt(mask_seed, split, task_ids)
    return Stages(tuple(tuple(task_ids[row] for row in part) for part in np.array_split(order, stages)))


def declare(stages: Stages, folder: Path, *, begun: bool) -> None:
    """Freeze the stages of a run folder, or check that they are the ones that were declared there.

    Args:
        stages: one of a single part declares nothing.
        folder: run folder.
        begun: whether the folder's masks were frozen before.

    Raises:
        DesignError: other stages were declared, or none before the first rollout.
    """
    path = folder / FILE
    record = {"level": LEVEL, "spending": "Lan-DeMets, O'Brien-Fleming type", **asdict(stages)}
    plain = {**record, "parts": [list(part) for part in stages.parts]}
    if not path.exists() and len(stages.parts) == 1:
        return
    if not path.exists() and not begun:
        write_json(path, plain)
    if not path.exists() or read_json(path) != plain:
        raise DesignError(
            f"{len(stages.parts)} stages are asked for, and others were declared before the first rollout",
            where=str(path),
            allowed="stages that are declared before anything is rolled out (METHOD section 13)",
            todo="give n_stages its value of then, or use a new run folder",
        )


def looked(stage: int, folder: Path) -> Path:
    """Return the record of the look after a stage."""
    return folder / f"gate_a_stage_{stage}.json"


def level(folder: Path) -> float:
    """Return the level of the labels at the end of a run folder's gate: what the looks before have left of 5 %."""
    path = folder / FILE
    if not path.exists():
        return LEVEL
    parts = read_json(path)["parts"]
    stages = Stages(tuple(map(tuple, parts)))
    return level_after(stages, range(1, len(parts)), folder)


def level_after(stages: Stages, earlier: Collection[int], folder: Path, share: float = 1.0) -> float:
    """Return the level of a look at a share of the tasks, after those of the earlier stages that were taken."""
    taken = [stages.share(stage) for stage in earlier if looked(stage, folder).exists()]
    return levels([*taken, share])[-1]


def spent(share: float) -> float:
    """Return what may have been spent of `LEVEL`, both sides together, when a share of the data is there."""
    return float(4 * stats.norm.sf(stats.norm.isf(LEVEL / 4) / math.sqrt(share)))


def levels(shares: Sequence[float]) -> tuple[float, ...]:
    """Return the two-sided level of each look at growing shares of the data, all together at `LEVEL`.

    The density of the sums that have crossed no bound so far is carried from look to look (Armitage, McPherson and
    Rowe 1969).
    """
    nodes, weights = np.polynomial.legendre.leggauss(NODES)
    points, mass, found, before = np.zeros(1), np.ones(1), [], 0.0
    for share in shares:
        scale, owed = math.sqrt(share - before), spent(share) - (spent(before) if before else 0.0)
        bound = _bound(points / scale, mass, owed) * scale
        found.append(float(2 * stats.norm.sf(bound / math.sqrt(share))))
        reached = bound * nodes
        mass = bound * weights * (stats.norm.pdf((reached[:, None] - points) / scale) / scale @ mass)
        points, before = reached, share
    return tuple(found)


def _bound(points: FloatArray, mass: FloatArray, owed: float) -> float:
    """Return the bound that mass at these points leaves with probability `owed` in a standard normal step."""

    def left(bound: float) -> float:
        return float(mass @ (stats.norm.sf(bound - points) + stats.norm.cdf(-bound - points))) - owed

    return float(optimize.brentq(left, 0.0, 40.0 + float(np.abs(points).max())))
