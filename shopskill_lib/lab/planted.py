"""Simulated observations from planted effects: the input of notebooks 03 and 04 when nobody has data yet.

Every file says `simulated` in its `origin` column and in its factor names. A task has a success probability; a
chunk shifts it; an episode succeeds or fails in one reward part (METHOD M4). Nothing here is about a real model.
"""

from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from shopskill_lib.errors import ParameterError
from shopskill_lib.files import write_bytes
from shopskill_lib.gates import fit_gate, read_observations
from shopskill_lib.masks import Slot, assign

FloatArray = NDArray[np.float64]

SHIFTS = (0.09, 0.0, -0.04, 0.06, 0.0, 0.04, -0.08, 0.0, 0.07, 0.0, 0.05, -0.06, 0.0, 0.03, -0.03, 0.0)
"""What each of the 16 simulated chunks adds to a task's success probability: 6 help, 6 do nothing, 4 harm."""

PARTIAL = {"r_att": (0.5, 2 / 3, 0.75), "r_option": (0.0, 0.5), "r_price": (0.0,), "r_type": (0.0, 0.1, 0.5)}
"""What the one failing part of a failed episode may be worth."""

TRUTH_MASKS = 200
"""Masks a task over which the true M19 coefficients are averaged."""


def simulate(seed: int, n_tasks: int, out: Path) -> None:
    """Write a simulated run folder: `observations.csv` (val), `test_observations.csv` and `planted.csv`.

    The test file's equipped arm shows the chunks that the gate selects on the val file, as Gate B would.

    Args:
        seed: of masks and rewards; the same seed gives the same bytes.
        n_tasks: tasks in each file, at least 2 a chunk.
        out: the folder.

    Raises:
        ParameterError: too few tasks, or a negative seed.
        OutputError: the folder cannot be written.
    """
    if seed < 0 or n_tasks < 2 * len(SHIFTS):
        raise ParameterError(
            f"seed is {seed} and tasks is {n_tasks}",
            where="simulate-observations",
            allowed=f"seed >= 0 and tasks >= {2 * len(SHIFTS)} (2 pairs a factor)",
            todo="give other values",
        )
    rng = np.random.default_rng(seed)
    shifts = np.array(SHIFTS)
    slots = [Slot(name, (name,)) for name in (f"simulated-{k:02d}" for k in range(1, len(SHIFTS) + 1))]
    ids = [f"val-{k:04d}" for k in range(1, n_tasks + 1)]
    masks = assign(seed, "val", ids, slots).masks
    base, test_base = rng.beta(0.5, 0.45, n_tasks), rng.beta(0.5, 0.45, n_tasks)
    origin = f"simulated, planted effects, seed {seed}"
    val = pd.DataFrame({"task_id": ids, "origin": origin})
    val[[slot.slot_id for slot in slots]] = masks
    val = val.join(_episodes(base + masks @ shifts, rng)).join(_episodes(base, rng).add_prefix("bare_"))
    _write(val, out / "observations.csv")
    truth = {"intervention_id": [slot.slot_id for slot in slots], "planted_shift": shifts}
    _write(pd.DataFrame(truth | {"true_coefficient": _truth(base, shifts, rng)}), out / "planted.csv")
    selected = fit_gate(read_observations(out / "observations.csv"), resamples=100).selected
    equipped = test_base + shifts[[slot.slot_id in selected for slot in slots]].sum()
    test = pd.DataFrame({"task_id": [f"test-{k:04d}" for k in range(1, n_tasks + 1)], "origin": origin})
    test = test.join(_episodes(equipped, rng).add_prefix("equipped_"))
    _write(test.join(_episodes(test_base, rng).add_prefix("bare_")), out / "test_observations.csv")


def _episodes(probability: FloatArray, rng: np.random.Generator) -> pd.DataFrame:
    """Draw one episode a task: reward, success and the four parts."""
    success = rng.random(len(probability)) < np.clip(probability, 0.0, 1.0)
    parts = {name: np.ones(len(probability)) for name in PARTIAL}
    failing = rng.choice(list(PARTIAL), len(probability))
    for name, values in PARTIAL.items():
        fails = ~success & (failing == name)
        parts[name][fails] = rng.choice(values, int(fails.sum()))
    reward = np.prod(list(parts.values()), axis=0)
    return pd.DataFrame({"reward": reward, "r_success": success.astype(np.int64), **parts})


def _truth(base: FloatArray, shifts: FloatArray, rng: np.random.Generator) -> FloatArray:
    """Return the (K,) population coefficients of M19 for these tasks: expected rewards over many fresh masks."""
    worth = float(np.mean([np.mean(values) for values in PARTIAL.values()]))
    C = rng.integers(2, size=(TRUTH_MASKS * len(base), len(shifts))).astype(np.float64)
    p = np.repeat(base, TRUTH_MASKS)
    delta = (np.clip(p + C @ shifts, 0.0, 1.0) - p) * (1 - worth)
    return np.asarray(np.linalg.solve(C.T @ C, C.T @ delta), dtype=np.float64)


def _write(frame: pd.DataFrame, path: Path) -> None:
    write_bytes(path, frame.to_csv(index=False, lineterminator="\n").encode())
