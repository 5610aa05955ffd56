"""Brute-force ground truth: what the chunks of a draft do to the simulated shopper on a run's own val tasks.

The population value of M19 is the least-squares fit of the expected reward minus bare on masks of M17's marginals;
the effect of a chunk alone is the expected reward with nothing but that chunk, minus bare. Both are means over many
draws. A draw of a task is one seed, shared by every episode in it: bare, a mask, its complement (which has the same
marginals and cancels what the mask has not to do with), later on each chunk alone. Tasks are fixed: errors are those
of the drawing only.
"""

import io
import math
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from hashlib import sha256
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from shopskill_lib import masks, ols, protocol
from shopskill_lib.agent import constant, episode_seed, run_episode
from shopskill_lib.errors import DesignError, ParameterError
from shopskill_lib.files import read_bytes, read_json, write_bytes, write_json
from shopskill_lib.lab.direct import DirectModel
from shopskill_lib.models import SIMULATED
from shopskill_lib.records import Step, Task, fingerprint
from shopskill_lib.settings import Settings
from shopskill_lib.simulated.shopper import SHOPPER_VERSION
from shopskill_lib.skills import Skill
from shopskill_lib.workbench import Bench

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

TRUTH_VERSION = "shopskill-truth-v1"

SEED = 0
"""Of masks and episodes; with an arm of its own, so that no run draws the same."""
ARM = "truth"

PRECISION = 5
"""The gate's own standard error is at least this many times the error of a true value, unless less is asked for."""

DRAWS = 32
"""Draws a task at least, and `ALONE_DRAWS` for single chunks; more where the precision asks for it."""
ALONE_DRAWS = 4
MOST_DRAWS = 1024

PROBED = 10
"""Tasks whose first rewards are kept, to tell later whether the shopper still behaves the same."""

TABLE = "truth.csv"
"""In the run folder; its facts are beside it in `truth.json`."""


@dataclass(frozen=True, slots=True)
class Truth:
    """The truth of a draft.

    Attributes:
        table: one row a chunk: `intervention_id`, `true_coefficient`, `true_error`, `alone`, `alone_error`.
        facts: fingerprint and provenance, as on disk.
    """

    table: pd.DataFrame
    facts: dict[str, Any]

    def to_frame(self) -> pd.DataFrame:
        """One row a chunk, in canonical order."""
        return self.table.copy()

    def summary(self) -> str:
        """The table and what it rests on."""
        facts = self.facts
        return (
            f"{self.table.round(4).to_string(index=False)}\n"
            f"simulated: {facts['n_tasks']} tasks, {facts['draws']} draws ({facts['alone_draws']} of single chunks), "
            f"seed {facts['seed']}, {facts['seconds']} s; largest error {facts['largest_share']:.3f} of a gate's own; "
            f"bare success {facts['bare_success']:.3f}, sd of a pair's difference {facts['pair_sd']:.3f}"
        )

    def __str__(self) -> str:
        return self.summary()


def identity(bench: Bench) -> str:
    """Return the hash of everything that the truth depends on, and of nothing else."""
    return fingerprint(
        {
            "truth": TRUTH_VERSION,
            "shopper": SHOPPER_VERSION,
            "seed": SEED,
            "draft": [[chunk.chunk_id, chunk.title, chunk.text] for chunk in _skill(bench).chunks],
            "tasks": [[task.task_id, task.visible_instruction, task.persona] for task in bench.tasks("val")],
            **bench.agent.identity,
        }
    )


def _skill(bench: Bench) -> Skill:
    """Return the draft, every chunk a factor of its own.

    Raises:
        DesignError: a chunk has a rewrite.
    """
    pool = protocol.pool_of(bench)
    if _rewritten(bench):
        raise DesignError(
            "the draft holds rewrites beside the texts they replace",
            where="draft",
            allowed="chunks of one text each: the truth of versions that exclude each other is not measured",
            todo="measure the truth of the selected skill: -p draft=<run>/skill.md in a run folder of its own",
        )
    return pool.skill(pool.versions)


def _rewritten(bench: Bench) -> bool:
    """Tell whether a chunk of the draft has more than one text."""
    return any(len(slot.versions) > 1 for slot in protocol.pool_of(bench).slots)


def open_run(folder: Path) -> Bench:
    """Set up what a run folder's `params.json` says (see `Settings.of_run` for what is refused)."""
    settings = Settings.of_run(folder)
    _refuse_real(settings)
    return protocol.set_up(settings, folder)


def measure(bench: Bench, *, draws: int = DRAWS, precision: int = PRECISION, processes: int = 1) -> Truth:
    """Return the truth of a bench's draft, where it is known or by running the episodes, and keep it in its folder.

    Args:
        bench: shop, val tasks, draft and a simulated model.
        draws: draws a task at least, 2 or more.
        precision: the gate's own standard error is at least this many times the error of a true value.
        processes: at a time; several set the bench up anew from its settings, one uses it as it is.

    Raises:
        ParameterError: the model is real, or a number is out of range.
        DesignError: the precision is not reached with `MOST_DRAWS` draws.
    """
    _refuse_real(bench.settings)
    if draws < 2 or precision < 1 or processes < 1:
        raise ParameterError(
            f"draws is {draws}, precision is {precision} and processes is {processes}",
            where="truth",
            allowed="2 or more draws, 1 or more of the others",
            todo="correct the number",
        )
    truth, most = _find(bench.folder, bench), _share(bench, precision)
    if truth is None or truth.facts["draws"] < draws or truth.facts["largest_share"] > most:
        truth = _compute(bench, draws, most, processes)
    _keep(truth, bench.folder / TABLE)
    return truth


def read(folder: Path, bench: Bench | None = None) -> pd.DataFrame | None:
    """Return the truth that belongs to a run folder; nothing is run.

    Args:
        folder: the run folder; a shipped draft's stored truth is found as well.
        bench: the run as set up already; None sets it up from the folder's `params.json`.

    Returns:
        One row a chunk, or None where there is no truth of this draft, model, shop and these tasks: never of rewrites.
    """
    if bench is None and not (folder / "params.json").exists():
        return None
    ready = bench or protocol.set_up(Settings.of_run(folder), folder)
    found = None if _rewritten(ready) else _find(folder, ready)
    return None if found is None else found.table


def _find(folder: Path, bench: Bench) -> Truth | None:
    """Return the bench's truth from a run folder, or the stored one of a shipped draft."""
    wanted = identity(bench)
    stored = protocol.DRAFTS / f"truth_{bench.settings.language}.csv"
    return _load(folder / TABLE, wanted) or _load(stored, wanted)


def _refuse_real(settings: Settings) -> None:
    """Refuse a model that only its endpoint can speak for, and a shop that only its server can."""
    if settings.shop_url:
        raise ParameterError(
            "the truth takes hundreds of thousands of episodes, which no server should be asked for",
            where=f"shop_url {settings.shop_url}",
            allowed="the embedded shop",
            todo="compute it in a run folder without shop_url, on the same catalogue",
        )
    if settings.policy_url != SIMULATED:
        raise ParameterError(
            f"the truth of a real model cannot be computed ({settings.policy_model})",
            where=f"policy_url {settings.policy_url}",
            allowed=f"policy_url {SIMULATED!r}: the shopper that ships, called without a wire",
            todo="read the intervals of the gate instead; only a simulated policy has a known truth",
        )


def _share(bench: Bench, precision: int) -> float:
    """Return the largest share of the error of a gate with one masked rollout a task that a true value may have."""
    return 1 / (precision * math.sqrt(bench.settings.masked_samples))


def _keep(truth: Truth, path: Path) -> None:
    """Write the table, then the facts that vouch for it."""
    content = truth.table.to_csv(index=False, lineterminator="\n", float_format="%.6f").encode()
    write_bytes(path, content)
    write_json(path.with_suffix(".json"), {**truth.facts, "sha256": sha256(content).hexdigest()})


def _load(path: Path, wanted: str) -> Truth | None:
    """Return a kept truth; None where it is absent, of other content or not as it was written."""
    if not path.exists() or not path.with_suffix(".json").exists():
        return None
    content, facts = read_bytes(path), read_json(path.with_suffix(".json"))
    if facts.get("fingerprint") != wanted or facts.get("sha256") != sha256(content).hexdigest():
        return None
    return Truth(pd.read_csv(io.BytesIO(content), dtype={"intervention_id": str}), facts)


@dataclass(frozen=True, slots=True)
class Sample:
    """Episodes of n tasks, D draws and m rows a draw that share a seed; row 0 is bare.

    Attributes:
        masks: (n, D, m, K) chunks shown.
        reward: (n, D, m) rewards; `success` likewise 0 or 1.
    """

    masks: IntArray
    reward: FloatArray
    success: FloatArray

    @property
    def delta(self) -> FloatArray:
        """(n, D, m - 1) rewards minus the bare one of the same seed."""
        return self.reward[:, :, 1:] - self.reward[:, :, :1]


@dataclass(frozen=True, slots=True)
class Estimates:
    """(K,) values, their errors and the errors of a gate on the same tasks."""

    value: FloatArray
    error: FloatArray
    gate_error: FloatArray

    @property
    def share(self) -> float:
        """Largest error as a share of the gate's."""
        return float(np.max(self.error / np.maximum(self.gate_error, 1e-12), initial=0.0))


Design = Callable[[range], IntArray]
"""Draws -> (n, D, m, K) masks."""


def _compute(bench: Bench, draws: int, most: float, processes: int) -> Truth:
    """Run draws until the errors are small enough."""
    started = time.monotonic()
    with Player(bench, processes) as player:
        main = _draw(player, partial(company_masks, bench), draws, lambda sample: company(sample).share, most)
        together = company(main)
        gate_error = together.gate_error
        single = _draw(
            player,
            partial(alone_masks, bench),
            min(draws, ALONE_DRAWS),
            lambda sample: alone(sample, gate_error).share,
            most,
        )
    return _gather(bench, (main, single), (together, alone(single, gate_error)), time.monotonic() - started)


def _draw(player: "Player", design: Design, draws: int, share: Callable[[Sample], float], most: float) -> Sample:
    """Double the draws until the largest error is small enough.

    Raises:
        DesignError: `MOST_DRAWS` are not enough.
    """
    sample = player.play(design(range(draws)), 0)
    while (reached := share(sample)) > most:
        drawn = sample.reward.shape[1]
        if drawn >= MOST_DRAWS:
            raise DesignError(
                f"after {drawn} draws an error is {reached:.3f} of the gate's own",
                where="truth",
                allowed=f"at most {most:.3f} of it",
                todo="give more tasks",
            )
        more = player.play(design(range(drawn, 2 * drawn)), drawn)
        sample = Sample(
            np.concatenate([sample.masks, more.masks], axis=1),
            np.concatenate([sample.reward, more.reward], axis=1),
            np.concatenate([sample.success, more.success], axis=1),
        )
    return sample


def company_masks(bench: Bench, draws: range) -> IntArray:
    """Return bare, a mask of M17 and its complement for every task and draw."""
    slots = [masks.Slot(chunk_id, (chunk_id,)) for chunk_id in _skill(bench).ids]
    ids = [task.task_id for task in bench.tasks("val")]
    drawn = masks.assign(SEED, ARM, ids, slots, draws.stop).masks.reshape(len(ids), draws.stop, len(slots))
    shown = drawn[:, draws.start :]
    return np.stack([np.zeros_like(shown), shown, 1 - shown], axis=2)


def alone_masks(bench: Bench, draws: range) -> IntArray:
    """Return bare and each chunk alone for every task and draw."""
    K = len(_skill(bench).ids)
    rows = np.vstack([np.zeros((1, K), dtype=np.int64), np.eye(K, dtype=np.int64)])
    return np.broadcast_to(rows, (len(bench.tasks("val")), len(draws), K + 1, K))


def company(sample: Sample) -> Estimates:
    """Fit M19 to all rows; errors from the scatter of a task's draws around their mean, as tasks are fixed."""
    n, D, _, K = sample.masks.shape
    C = sample.masks[:, :, 1:].astype(np.float64)
    X = C.reshape(-1, K)
    inverse = np.linalg.inv(X.T @ X)
    beta = inverse @ (X.T @ sample.delta.ravel())
    scores = np.einsum("tdmk,tdm->tdk", C, sample.delta - C @ beta)
    scores -= scores.mean(axis=1, keepdims=True)
    meat = np.einsum("tdk,tdl->kl", scores, scores) * D / (D - 1)
    error = np.sqrt(np.diag(inverse @ meat @ inverse))
    gate = ols.fit(
        _gate_delta(sample).ravel(), sample.masks[:, :, 1].reshape(-1, K), [""] * K, np.arange(n * D, dtype=np.int64)
    )
    return Estimates(beta, error, gate.bse * D**0.5)


def _gate_delta(sample: Sample) -> FloatArray:
    """(n, D) differences as a gate has them: masked and bare of different seeds."""
    return sample.reward[:, :, 1] - np.roll(sample.reward[:, :, 0], 1, axis=1)


def alone(sample: Sample, gate_error: FloatArray) -> Estimates:
    """Average the differences to bare; errors as in `company`."""
    n, D, _ = sample.delta.shape
    variance = sample.delta.var(axis=1, ddof=1).sum(axis=0) / D
    return Estimates(sample.delta.mean(axis=(0, 1)), np.sqrt(variance) / n, gate_error)


def _gather(
    bench: Bench, samples: tuple[Sample, Sample], estimates: tuple[Estimates, Estimates], seconds: float
) -> Truth:
    (main, single), (together, apart) = samples, estimates
    table = pd.DataFrame(
        {
            "intervention_id": _skill(bench).ids,
            "true_coefficient": together.value,
            "true_error": together.error,
            "alone": apart.value,
            "alone_error": apart.error,
        }
    )
    facts = {
        "simulated": True,
        "fingerprint": identity(bench),
        "version": [TRUTH_VERSION, SHOPPER_VERSION],
        "n_tasks": len(main.reward),
        "draws": main.reward.shape[1],
        "alone_draws": single.reward.shape[1],
        "seed": SEED,
        "seconds": round(seconds),
        "gate_error": dict(zip(_skill(bench).ids, together.gate_error.round(6).tolist(), strict=True)),
        "largest_share": max(together.share, apart.share),
        "bare_reward": float(main.reward[:, :, 0].mean()),
        "bare_success": float(main.success[:, :, 0].mean()),
        "masked_reward": float(main.reward[:, :, 1:].mean()),
        "pair_sd": float(_gate_delta(main).std(ddof=1)),
        "probe": main.reward[:PROBED, 0].tolist(),
    }
    return Truth(table, facts)


class Player:
    """Runs episodes, on several processes or in this one."""

    def __init__(self, bench: Bench, processes: int) -> None:
        self._bench = bench
        self._pool = ProcessPoolExecutor(processes, get_context("spawn")) if processes > 1 else None

    def __enter__(self) -> "Player":
        return self

    def __exit__(self, *_: object) -> None:
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)

    def play(self, shown: IntArray, first: int) -> Sample:
        """Run (n, D, m, K) masks of the val tasks, the draws counted from `first`."""
        if self._pool is None:
            return Sample(shown, *_play(off_the_wire(self._bench), shown, slice(None), first))
        parts = [slice(start, start + 20) for start in range(0, len(shown), 20)]
        jobs = [
            self._pool.submit(_play_part, self._bench.settings, self._bench.folder, shown[part], part, first)
            for part in parts
        ]
        rewards, successes = zip(*(job.result() for job in jobs), strict=True)
        return Sample(shown, np.concatenate(rewards), np.concatenate(successes))


def off_the_wire(bench: Bench) -> Bench:
    """Return the bench with the simulated shopper called as a function."""
    return replace(bench, agent=replace(bench.agent, model=DirectModel(bench.agent.model.endpoint)))


@lru_cache(maxsize=1)
def _bench(settings: Settings, folder: Path) -> Bench:
    """Set up a worker's bench once."""
    return off_the_wire(protocol.set_up(settings, folder))


def _play_part(
    settings: Settings, folder: Path, shown: IntArray, part: slice, first: int
) -> tuple[FloatArray, FloatArray]:
    """Run a part of the tasks in a worker."""
    return _play(_bench(settings, folder), shown, part, first)


def _play(bench: Bench, shown: IntArray, part: slice, first: int) -> tuple[FloatArray, FloatArray]:
    """Return (n, D, m) rewards and successes of these masks of a part of the val tasks."""
    results = np.empty((*shown.shape[:3], 2))
    for place, task in enumerate(bench.tasks("val")[part]):
        for draw in range(shown.shape[1]):
            seed = episode_seed(SEED, ARM, task.task_id, first + draw)
            for row, mask in enumerate(shown[place, draw].tolist()):
                results[place, draw, row] = _episode(bench, task, mask, seed)
    return results[..., 0], results[..., 1]


def _episode(bench: Bench, task: Task, mask: Sequence[int], seed: int) -> tuple[float, int]:
    """Run one episode; return its reward and its success."""
    chosen = tuple(name for name, bit in zip(_skill(bench).ids, mask, strict=True) if bit)
    hints = constant(protocol.treatment(ARM, _skill(bench).subset(chosen)))
    detail = run_episode(bench.agent, task, hints, seed, _forget).reward_detail
    if detail is None:
        raise RuntimeError("an episode ended without a score")
    return detail.r_strict, detail.r_success


def _forget(step: Step) -> None:
    """Keep nothing of a step."""
