"""Mask designs: which chunk version each task is shown (METHOD M17), frozen before the first rollout.

*Independent* masks are the reference. *Complementary* ones come in pairs: the second rollout of a task is shown what
the first was not, so that the task's difficulty and its bare run weigh less. *Balanced* ones are such pairs, dealt to
blocks of tasks so that slots are orthogonal to each other. *D-optimal* ones are what exchanges between tasks make of
balanced pairs, and of an odd sample beside them or alone. Marginal probabilities are the same in all.

Arrays and ids only. A *slot* is one logical chunk with its mutually exclusive versions; a *factor* is one
version, one column of the regression.
"""

import csv
import hashlib
import io
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import hadamard

from shopskill_lib import optimal
from shopskill_lib.errors import DesignError, OutputError

IntArray = NDArray[np.int64]
Design = Literal["independent", "complementary", "balanced", "d_optimal"]

IN_PAIRS: tuple[Design, ...] = ("complementary", "balanced")
"""Designs that need an even number of masked rollouts a task."""


@dataclass(frozen=True, slots=True)
class Slot:
    """One logical chunk: its id and the ids of its versions, the current text first."""

    slot_id: str
    versions: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Assignments:
    """What every masked rollout is shown.

    Attributes:
        task_ids: n task ids, one a row.
        samples: n sample numbers, counted from 0.
        slots: the slots in canonical order; their versions are the K columns.
        states: (n, number of slots) array; 0 = absent, k = version k.
    """

    mask_seed: int
    split: str
    task_ids: tuple[str, ...]
    samples: tuple[int, ...]
    slots: tuple[Slot, ...]
    states: IntArray

    @property
    def factors(self) -> tuple[str, ...]:
        """The K version ids, in column order."""
        return tuple(version for slot in self.slots for version in slot.versions)

    @property
    def masks(self) -> IntArray:
        """(n, K) array of 0/1: versions of one slot never meet (I9)."""
        columns = [
            self.states[:, j] == k for j, slot in enumerate(self.slots) for k in range(1, len(slot.versions) + 1)
        ]
        return np.stack(columns, axis=1).astype(np.int64)

    def to_csv(self) -> str:
        """Return the frozen form: seed, split, task, sample, and one 0/1 column a factor."""
        table = io.StringIO()
        writer = csv.writer(table, lineterminator="\n")
        writer.writerow(("mask_seed", "split", "task_id", "sample", *self.factors))
        for task_id, sample, row in zip(self.task_ids, self.samples, self.masks, strict=True):
            writer.writerow((self.mask_seed, self.split, task_id, sample, *row))
        return table.getvalue()


def _hash(*key: object) -> int:
    """Return the first 8 bytes, big-endian, of the SHA-256 of a key's parts, joined by colons."""
    return int.from_bytes(hashlib.sha256(":".join(map(str, key)).encode()).digest()[:8], "big")


def draw_state(mask_seed: int, split: str, task_id: str, sample: int, slot: Slot) -> int:
    """Draw the state of one slot for one masked rollout (M17).

    Returns:
        0 for absent or k for version k: SHA-256 of `mask_seed:split:task_id:sample:slot_id`, its first 8
        bytes big-endian, modulo (versions + 1).
    """
    return _hash(mask_seed, split, task_id, sample, slot.slot_id) % (len(slot.versions) + 1)


def draw_complement(mask_seed: int, split: str, task_id: str, sample: int, slot: Slot) -> int:
    """Draw the state of one slot for the second rollout of a pair, whose first is `sample` - 1.

    One version: absent where it was shown and shown where it was absent. With v versions: one of the v other states,
    by SHA-256 of `mask_seed:split:task_id:sample:slot_id:turn`; every state stays equally likely.
    """
    first = draw_state(mask_seed, split, task_id, sample - 1, slot)
    turn = 1 + _hash(mask_seed, split, task_id, sample, slot.slot_id, "turn") % len(slot.versions)
    return (first + turn) % (len(slot.versions) + 1)


def dealt(mask_seed: int, split: str, task_ids: Sequence[str]) -> list[int]:
    """Return the places of tasks in the order they are dealt to blocks: by SHA-256 of `mask_seed:split:task_id`."""
    return sorted(range(len(task_ids)), key=lambda row: _hash(mask_seed, split, task_ids[row]))


def draw_balanced(mask_seed: int, split: str, task_ids: Sequence[str], slots: Sequence[Slot], pairs: int) -> IntArray:
    """Draw pairs of masks for all tasks, a Hadamard matrix for each block of tasks.

    A block has as many tasks as the matrix has rows: the smallest power of 2 that gives every slot a column. Within a
    block a slot moves between two of its states, and the sign in a task's row says which of the two comes first; so
    any two slots are orthogonal. From block to block, and from pair to pair of a task, a slot with versions goes
    through all couples of its states. Blocks of tasks, columns and signs of slots are dealt by SHA-256 under
    `mask_seed`, every state is equally likely, and one task more or less may change the masks of all others.

    Returns:
        (tasks, 2 * pairs, slots) states.
    """
    matrix = hadamard(_block_size(len(slots)))
    order = dealt(mask_seed, split, task_ids)
    states = np.empty((len(task_ids), 2 * pairs, len(slots)), dtype=np.int64)
    for deal, (start, pair) in enumerate(itertools.product(range(0, len(order), len(matrix)), range(pairs))):
        block = order[start : start + len(matrix)]
        keys = [_hash(mask_seed, split, "block", deal, slot.slot_id) for slot in slots]
        columns = np.argsort(np.argsort(keys))
        signs = matrix[: len(block), columns] * np.array([1 - 2 * (key % 2) for key in keys])
        one, other = np.array([_couple(mask_seed, split, slot, deal) for slot in slots]).T
        states[block, 2 * pair] = np.where(signs > 0, one, other)
        states[block, 2 * pair + 1] = np.where(signs > 0, other, one)
    return states


def _block_size(slots: int) -> int:
    """Return the smallest power of 2 that is not below the number of slots."""
    return 1 << (slots - 1).bit_length()


def _couple(mask_seed: int, split: str, slot: Slot, deal: int) -> tuple[int, int]:
    """Return the two states of a slot in a block: the next couple of a round-robin tournament of its states.

    Every tournament gives the states their places anew, by hash.
    """
    count = len(slot.versions) + 1
    tournament, place = divmod(deal, math.comb(count, 2))
    order = _shuffled(count, mask_seed, split, "couple", tournament, slot.slot_id)
    one, other = round_robin(count)[place]
    return order[one], order[other]


def round_robin(count: int) -> list[tuple[int, int]]:
    """Return all couples out of `count` in the order in which a tournament plays them, by the circle method."""
    odd = count - 1 + count % 2
    played = []
    for turn in range(odd):
        played += [(turn, odd)] if count > odd else []
        played += [((turn + step) % odd, (turn - step) % odd) for step in range(1, odd // 2 + 1)]
    return played


def draw_optimal(mask_seed: int, split: str, task_ids: Sequence[str], slots: Sequence[Slot], samples: int) -> IntArray:
    """Draw D-optimal masks for all tasks (see `optimal`).

    The start are balanced pairs and, where `samples` is odd, a dealt sample, which shows every state of a slot to as
    many tasks as any other, but for one. At last the states of each slot change names by SHA-256 under `mask_seed`, so
    that all are equally likely for every task and sample, whatever the exchanges did. One task more or less may change
    the masks of all others.

    Returns:
        (tasks, samples, slots) states.
    """
    pairs, versions = samples // 2, [len(slot.versions) for slot in slots]
    parts = [draw_balanced(mask_seed, split, task_ids, slots, pairs)] if pairs else []
    if samples % 2:
        parts.append(np.stack([_dealt_states(mask_seed, split, task_ids, slot) for slot in slots], axis=1)[:, None])
    key = ":".join([str(mask_seed), split, "exchange", str(len(task_ids)), str(samples), *map(str, versions)])
    order = dealt(mask_seed, split, task_ids)
    states = np.empty((len(task_ids), samples, len(slots)), dtype=np.int64)
    states[order] = optimal.exchange(np.concatenate(parts, axis=1)[order], versions, key)
    for column, slot in enumerate(slots):
        names = _shuffled(len(slot.versions) + 1, mask_seed, split, "name", slot.slot_id)
        states[..., column] = np.array(names)[states[..., column]]
    return states


def _dealt_states(mask_seed: int, split: str, task_ids: Sequence[str], slot: Slot) -> IntArray:
    """Return a state for every task, all states as often as can be, by hash."""
    order = sorted(range(len(task_ids)), key=lambda row: _hash(mask_seed, split, "deal", slot.slot_id, task_ids[row]))
    states = np.empty(len(task_ids), dtype=np.int64)
    states[order] = np.arange(len(task_ids)) % (len(slot.versions) + 1)
    return states


def _shuffled(count: int, *key: object) -> list[int]:
    """Return the numbers below `count` in an order by hash."""
    return sorted(range(count), key=lambda number: _hash(*key, number))


def fewest_tasks(design: Design, versions: Sequence[int], masked_samples: int) -> int:
    """Return the tasks that a design needs.

    Blocks: so many that couples link all states of every slot. D-optimal masks: as many rows as there are factors,
    a shift between the arms and one to judge errors by, and the blocks of their pairs.
    """
    pairs = masked_samples // 2
    blocks = _block_size(len(versions)) * math.ceil(max(versions) / pairs) if pairs else 1
    if design == "d_optimal":
        return max(blocks, math.ceil((sum(versions) + 2) / masked_samples))
    return blocks if design == "balanced" else 1


def assign(
    mask_seed: int,
    split: str,
    task_ids: Sequence[str],
    slots: Sequence[Slot],
    masked_samples: int = 1,
    design: Design = "independent",
) -> Assignments:
    """Assign a mask to every task and sample; the order of `task_ids` changes nothing but the row order.

    Independent and complementary masks of a task depend on no other task; balanced and D-optimal ones do.

    Raises:
        DesignError: pairs of masks for an odd number of samples, or too few tasks for the design.
    """
    _refuse_unfit(len(task_ids), [len(slot.versions) for slot in slots], masked_samples, design)
    rows = [(task_id, sample) for task_id in task_ids for sample in range(masked_samples)]
    if design == "balanced":
        states = draw_balanced(mask_seed, split, task_ids, slots, masked_samples // 2)
    elif design == "d_optimal":
        states = draw_optimal(mask_seed, split, task_ids, slots, masked_samples)
    else:
        second = draw_complement if design == "complementary" else draw_state
        draws = (draw_state, second)
        states = np.array(
            [[draws[sample % 2](mask_seed, split, task_id, sample, slot) for slot in slots] for task_id, sample in rows]
        )
    return Assignments(
        mask_seed=mask_seed,
        split=split,
        task_ids=tuple(task_id for task_id, _ in rows),
        samples=tuple(sample for _, sample in rows),
        slots=tuple(slots),
        states=states.astype(np.int64).reshape(len(rows), len(slots)),
    )


def _refuse_unfit(tasks: int, versions: Sequence[int], masked_samples: int, design: Design) -> None:
    """Refuse pairs of masks for an odd number of samples, and what too few tasks cannot hold."""
    if design in IN_PAIRS and masked_samples % 2:
        raise DesignError(
            f"{design} masks need pairs, and masked_samples is {masked_samples}",
            where="masked_samples",
            allowed="an even number",
            todo="take masked_samples: 2 on half of the tasks, or mask_design: independent",
        )
    fewest = fewest_tasks(design, versions, masked_samples)
    if tasks < fewest:
        raise DesignError(
            f"{tasks} tasks for {design} masks of {len(versions)} slots, the largest of {max(versions)} versions",
            where="mask_design",
            allowed=f"at least {fewest} tasks here",
            todo="take more tasks, or mask_design: complementary",
        )


def freeze(assignments: Assignments, path: Path) -> str:
    """Write the assignments before the first rollout, or check that the frozen file still says the same.

    Returns:
        SHA-256 of the file.

    Raises:
        DesignError: the file is there and differs.
        OutputError: the file cannot be written.
    """
    content = assignments.to_csv().encode()
    try:
        if not path.exists():
            path.write_bytes(content)
        frozen = path.read_bytes()
    except OSError as error:
        raise OutputError(
            f"the frozen masks cannot be written ({error.strerror})",
            where=str(path),
            allowed="a file in a folder that you may write",
            todo="choose another run folder",
        ) from error
    if frozen != content:
        raise DesignError(
            "the frozen masks differ from the ones this seed, design, tasks, samples and slots give",
            where=str(path),
            allowed="one set of masks for a run folder, frozen before its first rollout (M17)",
            todo="use a new run folder, or the mask_seed, mask_design, masked_samples, tasks and draft of the frozen "
            "file",
        )
    return hashlib.sha256(content).hexdigest()


@dataclass(frozen=True, slots=True)
class DesignReport:
    """Health of a (n, K) mask design, for the reader of a gate.

    Attributes:
        exposure: (K,) rows in which each factor is shown.
        nominal: (K,) exposure expected under M17, n / (versions of its slot + 1).
        mean_shown: mean number of factors shown a row.
        rank: rank of the masks without the never-shown columns.
        condition: condition number of the same (infinite when aliased).
        largest_correlation: largest absolute correlation of two columns of different slots; None when there
            is no such pair with variance.
        never_shown: factors that no row shows.
        aliased: factors that cannot be told apart: from each other, or from a constant shift between the arms;
            one tuple a group, groups in column order.
        absent_missing: slots that no row leaves out, so that there is no "none" to compare with.
    """

    factors: tuple[str, ...]
    nobs: int
    exposure: IntArray
    nominal: NDArray[np.float64]
    mean_shown: float
    rank: int
    condition: float
    largest_correlation: float | None
    never_shown: tuple[str, ...]
    aliased: tuple[tuple[str, ...], ...]
    absent_missing: tuple[str, ...]


def _dependent(matrix: NDArray[np.float64]) -> list[list[int]]:
    """Return the columns that take part in a linear dependence between columns, one list a group that shares none.

    The projection on the null space is block-diagonal, a block a group.
    """
    values, vectors = np.linalg.eigh(matrix.T @ matrix)
    null = vectors[:, values <= values.max(initial=0.0) * 1e-10]
    linked = np.abs(null @ null.T) > 1e-6
    groups: list[list[int]] = []
    left = set(np.flatnonzero(linked.diagonal()).tolist())
    while left:
        group, reached = set[int](), {min(left)}
        while reached - group:
            group |= reached
            reached = set(np.flatnonzero(linked[sorted(group)].any(axis=0)).tolist())
        groups.append(sorted(group))
        left -= group
    return groups


def report(masks: IntArray, slots: Sequence[Slot]) -> DesignReport:
    """Report exposure, balance, rank and aliasing of (n, K) masks whose columns are the slots' versions."""
    X = masks.astype(np.float64)
    n = len(X)
    factors = np.array([version for slot in slots for version in slot.versions], dtype=object)
    slot_of = np.repeat(np.arange(len(slots)), [len(slot.versions) for slot in slots])
    exposure = masks.sum(axis=0)
    shown = exposure > 0
    ones = np.ones((n, 1))
    confounded = _dependent(np.hstack([X[:, shown], ones]))
    dependent = _dependent(X[:, shown])
    singular = np.sqrt(np.clip(np.linalg.eigvalsh(X[:, shown].T @ X[:, shown]), 0.0, None))
    present = [masks[:, slot_of == j].sum(axis=1) for j in range(len(slots))]
    return DesignReport(
        factors=tuple(factors),
        nobs=n,
        exposure=exposure,
        nominal=np.array([n / (len(slot.versions) + 1) for slot in slots for _ in slot.versions]),
        mean_shown=float(masks.sum(axis=1).mean()),
        rank=int(np.linalg.matrix_rank(X[:, shown])) if shown.any() else 0,
        condition=float(np.inf if dependent or not shown.any() else singular[-1] / singular[0]),
        largest_correlation=_largest_correlation(X, slot_of),
        never_shown=tuple(factors[~shown]),
        aliased=tuple(tuple(factors[shown][[k for k in group if k < shown.sum()]]) for group in confounded),
        absent_missing=tuple(slot.slot_id for j, slot in enumerate(slots) if present[j].min() > 0),
    )


def _largest_correlation(X: NDArray[np.float64], slot_of: IntArray) -> float | None:
    """Return the largest absolute correlation between columns of different slots."""
    varying = X.std(axis=0) > 0
    if varying.sum() < 2:
        return None
    correlation = np.atleast_2d(np.corrcoef(X[:, varying], rowvar=False))
    groups = slot_of[varying]
    between = groups[:, None] != groups[None, :]
    return float(np.abs(correlation[between]).max()) if between.any() else None
