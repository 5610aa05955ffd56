"""Time and memory of the gate: `make bench`. Ratios compare with one plain statsmodels fit in the same run."""

import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import statsmodels.api as sm

from shopskill_lib import gates
from shopskill_lib.lab import planted

FOLDER = Path(tempfile.mkdtemp(prefix="shopskill-bench-"))


def median_seconds(call: Callable[[], object], repeats: int = 7) -> float:
    """Median wall time of a call after one warm-up."""
    call()
    seconds = []
    for _ in range(repeats):
        start = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - start)
    return float(np.median(seconds))


def describe(frame: pd.DataFrame, rng: np.random.Generator) -> pd.DataFrame:
    """Add two descriptions of the tasks, of two and three groups."""
    told = {"category": rng.choice(["a", "b"], len(frame)), "difficulty": rng.choice(["x", "y", "z"], len(frame))}
    return frame.assign(**told)


def large_file(path: Path, n: int) -> None:
    """Write n pairs with 16 factors and a reward."""
    rng = np.random.default_rng(0)
    frame = describe(pd.DataFrame({"task_id": np.arange(n)}), rng)
    frame["mask"] = ["".join(row) for row in rng.integers(2, size=(n, 16)).astype(str)]
    frame["reward"], frame["bare_reward"] = rng.integers(2, size=n), rng.integers(2, size=n)
    frame.to_csv(path, index=False)


def command_seconds(*arguments: str) -> tuple[float, float]:
    """Wall seconds of a command in its own process, and the largest memory of any so far in GiB."""
    start = time.perf_counter()
    subprocess.run([sys.executable, "-m", "shopskill_lib", *arguments], check=True, stdout=subprocess.DEVNULL)
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 2**20
    return time.perf_counter() - start, peak


def main() -> None:
    """Print one line a figure."""
    planted.simulate(0, 400, FOLDER)
    told = describe(pd.read_csv(FOLDER / "observations.csv", dtype=str), np.random.default_rng(0))
    told.to_csv(FOLDER / "observations.csv", index=False)
    pairs = gates.read_observations(FOLDER / "observations.csv")
    X, y = pairs.masks.astype(float), pairs.delta("reward")
    plain = median_seconds(lambda: sm.OLS(y, X).fit().get_robustcov_results("HC3"))
    whole = median_seconds(lambda: gates.fit_gate(pairs, resamples=10_000))
    print(f"one statsmodels fit with HC3, 400 x 16:             {plain * 1000:8.1f} ms")
    print(f"fit_gate, 6 outcomes, 10,000 resamples:             {whole:8.2f} s  ({whole / plain:.0f} x the plain fit)")
    for command, name in (("gate", "observations.csv"), ("compare", "test_observations.csv")):
        seconds, peak = command_seconds(command, str(FOLDER / name))
        print(f"shopskill {command + ',':9} 400 pairs, wall:                {seconds:8.2f} s  (peak {peak:.2f} GiB)")
    large_file(FOLDER / "large.csv", 100_000)
    seconds, peak = command_seconds("gate", str(FOLDER / "large.csv"), "--resamples", "1000")
    print(f"shopskill gate, 100,000 x 16, 1,000 resamples, wall: {seconds:7.2f} s  (peak {peak:.2f} GiB)")


if __name__ == "__main__":
    main()
