"""What a run so far tells of a gate to come: bare success, how tasks differ, what a rollout takes. Never an effect."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from shopskill_lib import floors
from shopskill_lib.errors import InputError
from shopskill_lib.files import read_json
from shopskill_lib.observations import Observations, read_again
from shopskill_lib.records import Episode, total_usage
from shopskill_lib.store import Store, best

FloatArray = NDArray[np.float64]
Tokens = tuple[float, float]
"""Mean prompt and completion tokens of a rollout."""

FEWEST = 10
"""Tasks below which bare success and the share between tasks are not taken from a pilot."""


@dataclass(frozen=True, slots=True)
class Cost:
    """What rollouts take; None where it is not known, never 0.

    Attributes:
        bare: tokens of a bare rollout, retries not counted; `masked` those of a masked one.
        price_in: money for a million prompt tokens; `price_out` for a million completion tokens.
    """

    bare: Tokens | None = None
    masked: Tokens | None = None
    price_in: float | None = None
    price_out: float | None = None

    def __str__(self) -> str:
        told = [
            f"{'unknown' if arm is None else f'{sum(arm):,.0f}'} tokens a {name} rollout"
            for name, arm in (("bare", self.bare), ("masked", self.masked))
        ]
        return ", ".join(
            [
                *told,
                "prices unknown" if self.price_in is None else f"prices {self.price_in:g} in, {self.price_out:g} out",
            ]
        )

    def tokens(self, bare: int, masked: int) -> int | None:
        """Return the tokens of so many rollouts, prompt and completion together."""
        both = self._both(bare, masked)
        return None if both is None else round(sum(both))

    def money(self, bare: int, masked: int) -> float | None:
        """Return the money of so many rollouts, in the currency of the prices."""
        both = self._both(bare, masked)
        if both is None or self.price_in is None or self.price_out is None:
            return None
        return (both[0] * self.price_in + both[1] * self.price_out) / 1e6

    def _both(self, bare: int, masked: int) -> Tokens | None:
        if self.bare is None or self.masked is None:
            return None
        return bare * self.bare[0] + masked * self.masked[0], bare * self.bare[1] + masked * self.masked[1]


@dataclass(frozen=True, slots=True)
class Pilot:
    """What is known before a gate.

    Attributes:
        success: mean bare success; `between` share of the reward's variance that lies between tasks.
        cost: what a rollout takes.
        told: where it comes from, `guessed` or so many tasks, `simulated` where they are.
    """

    success: float
    between: float
    cost: Cost
    told: str

    def __str__(self) -> str:
        return (
            f"bare success {self.success:.2f}, share of variance between tasks {self.between:.2f} ({self.told}); "
            f"{self.cost}"
        )


def guess(success: float, between: float, bare: Tokens, masked: Tokens, prices: Tokens) -> Pilot:
    """Return what is guessed; tokens and prices of 0 are not known."""
    return Pilot(success, between, Cost(_tokens(bare), _tokens(masked), *_prices(*prices)), "guessed")


def read(run_dir: Path, prices: Tokens = (0.0, 0.0)) -> Pilot:
    """Read what a run folder tells: its noise floor and its Gate A, or the validation episodes there without one.

    Success and share are those of the noise floor where there is one (`shopskill noise`): all repeats of a task tell
    more than one pair of it. Tokens are those of the gate's pairs, or of the episodes (a pilot).

    Args:
        run_dir: the run folder.
        prices: of a million prompt and completion tokens, where the run names none; 0 is not known.

    Raises:
        InputError, MissingError: there are too few pairs, or they or the noise floor cannot be used.
    """
    repeated = _repeated(run_dir)
    if (run_dir / "observations.csv").exists():
        pairs = read_again(run_dir)
        bare, masked = _columns(pairs.bare), _columns(pairs.masked)
        known = repeated or (*of_pairs(pairs), _basis(int(pairs.tasks.max()) + 1, pairs.simulated))
    else:
        alone, shown = _scored(run_dir)
        bare, masked = _usage(list(alone.values())), _usage(shown)
        known = repeated or _paired(alone, shown, run_dir)
    success, between, told = known
    return Pilot(success, between, Cost(bare, masked, *_run_prices(run_dir, prices)), told)


def _basis(tasks: int, simulated: bool) -> str:
    return f"{tasks} {'simulated ' if simulated else ''}tasks of a run"


def _repeated(run_dir: Path) -> tuple[float, float, str] | None:
    """Return success, share between tasks and their basis from repeats of the bare runs; None without any."""
    noise = floors.read(run_dir)
    floor = None if noise is None else noise.of("val") or noise.of("test")
    known = None if floor is None else floor.for_planning()
    if floor is None or known is None:
        return None
    success, share = known
    tasks = f"{floor.tasks} {'simulated ' if floor.simulated else ''}{floor.split} tasks"
    told = f"{tasks}, {floor.repeats} repeats; share {share.low:.2f} to {share.high:.2f}"
    return success, share.value, told


def of_pairs(pairs: Observations) -> tuple[float, float]:
    """Return bare success and the share of variance between tasks that a gate's pairs show.

    The share is the correlation of the bare and the masked reward over tasks, 0 where it is negative or an arm is
    constant.
    """
    return _spread(*(arm.get("r_success", arm["reward"]) for arm in (pairs.bare, pairs.masked)))


def _spread(bare: FloatArray, masked: FloatArray) -> tuple[float, float]:
    if np.ptp(bare) == 0 or np.ptp(masked) == 0:
        return float(bare.mean()), 0.0
    return float(bare.mean()), float(max(np.corrcoef(bare, masked)[0, 1], 0.0))


def _columns(arm: dict[str, FloatArray]) -> Tokens | None:
    """Return the mean tokens of an arm of a gate; None where its file has none."""
    names = ("prompt_tokens", "completion_tokens")
    if not set(names) <= set(arm):
        return None
    prompt, completion = (float(arm[name].mean()) for name in names)
    return prompt, completion


def _scored(run_dir: Path) -> tuple[dict[str, Episode], list[Episode]]:
    """Return the bare validation episodes that are scored so far, by task, and the masked ones of the same tasks."""
    store = Store(run_dir)
    bare, masked = ([best(tries).episode for tries in store.attempts(arm).values()] for arm in ("bare", "masked"))
    alone = {episode.task_id: episode for episode in bare if episode.split == "val" and episode.status == "scored"}
    return alone, [episode for episode in masked if episode.status == "scored" and episode.task_id in alone]


def _paired(alone: dict[str, Episode], shown: list[Episode], run_dir: Path) -> tuple[float, float, str]:
    """Return success, share between tasks and their basis from the pairs of a pilot."""
    tasks = len({episode.task_id for episode in shown})
    if tasks < FEWEST:
        raise InputError(
            f"{tasks} validation tasks with a bare and a masked episode, and no noise floor",
            where=str(run_dir),
            allowed=f"a run folder with a Gate A, at least {FEWEST} such tasks of a pilot, or repeats of the bare runs",
            todo="pilot Gate A once there is a draft (shopskill run YAML --limit 20), repeat the bare runs (shopskill "
            "noise RUN), or guess success and between",
        )
    pairs = [alone[episode.task_id] for episode in shown], shown
    return *_spread(*map(_successes, pairs)), _basis(tasks, shown[0].simulated)


def _usage(arm: list[Episode]) -> Tokens | None:
    """Return the mean tokens of some episodes; None where any is unknown."""
    usage = total_usage(episode.usage for episode in arm)
    return None if usage is None else (usage.prompt_tokens / len(arm), usage.completion_tokens / len(arm))


def _successes(arm: list[Episode]) -> FloatArray:
    """(n,) successes, or rewards where the shop tells no more."""
    told = [(episode.reward_detail, episode.reward) for episode in arm]
    return np.array([reward if detail is None else detail.r_success for detail, reward in told], dtype=np.float64)


def _run_prices(run_dir: Path, otherwise: Tokens) -> tuple[float | None, float | None]:
    """Return the prices that a run's parameters name, or others where it has none."""
    path = run_dir / "params.json"
    named = read_json(path) if path.exists() else {}
    price_in, price_out = _prices(named.get("policy_price_in", 0.0), named.get("policy_price_out", 0.0))
    return _prices(*otherwise) if price_in is None else (price_in, price_out)


def _prices(price_in: float, price_out: float) -> tuple[float | None, float | None]:
    """Return both prices, or None twice where none is named: a single 0 is free (`Endpoint.priced`)."""
    return (price_in, price_out) if price_in or price_out else (None, None)


def _tokens(mean: Tokens) -> Tokens | None:
    return mean if any(mean) else None
