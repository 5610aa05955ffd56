"""Declared stages and the level of each look, against published bounds and by simulation."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from shopskill_lib import sequential
from shopskill_lib.errors import DesignError, ParameterError
from shopskill_lib.inference import LEVEL


@pytest.mark.parametrize(
    ("shares", "bounds"),
    [
        ([1.0], [1.96]),
        ([0.5, 1.0], [2.9626, 1.9686]),
        ([0.25, 0.5, 0.75, 1.0], [4.3326, 2.9631, 2.3590, 2.0141]),
        ([0.2, 0.4, 0.6, 0.8, 1.0], [4.8769, 3.3569, 2.6803, 2.2898, 2.0310]),
    ],
)
def test_bounds_are_the_published_ones(shares: list[float], bounds: list[float]) -> None:
    """Two-sided Lan-DeMets bounds of the O'Brien-Fleming kind at 5 % (Reboussin, DeMets, Kim and Lan 2000)."""
    assert stats.norm.isf(np.array(sequential.levels(shares)) / 2) == pytest.approx(bounds, abs=2e-4)


@given(st.lists(st.floats(0.05, 0.95), max_size=4, unique_by=lambda share: round(share, 2)))
def test_levels_never_spend_more_than_there_is(cuts: list[float]) -> None:
    found = sequential.levels([*sorted(cuts), 1.0])
    assert all(0 < level <= LEVEL + 1e-9 for level in found)
    assert sum(found) >= LEVEL - 1e-9, "nor less than a single test has"


def test_error_of_all_looks_together_by_simulation() -> None:
    """Labels by Benjamini-Hochberg at each look's level: false ones, ever, among 16 effects of which 4 are there."""
    rng, shares = np.random.default_rng(0), np.array([0.25, 0.5, 0.75, 1.0])
    effects = np.where(np.arange(16) < 4, 3.0, 0.0)
    steps = rng.normal(size=(4000, 4, 16)) * np.sqrt(np.diff(shares, prepend=0))[:, None]
    scores = (np.cumsum(steps, axis=1) + effects * shares[:, None]) / np.sqrt(shares)[:, None]
    p = 2 * stats.norm.sf(np.abs(scores))
    levels = np.array(sequential.levels(shares.tolist()))
    ever = (stats.false_discovery_control(p, axis=2) <= levels[:, None]).any(axis=1)
    wrong, found = ever[:, 4:].sum(axis=1), np.maximum(ever.sum(axis=1), 1)
    assert (wrong / found).mean() <= LEVEL
    naive = (stats.false_discovery_control(p, axis=2) <= LEVEL).any(axis=1)
    assert (naive[:, 4:].sum(axis=1) / np.maximum(naive.sum(axis=1), 1)).mean() > LEVEL
    null = 2 * stats.norm.sf(np.abs(np.cumsum(steps, axis=1) / np.sqrt(shares)[:, None]))
    assert 0.03 < (stats.false_discovery_control(null, axis=2) <= levels[:, None]).any(axis=(1, 2)).mean() < 0.06


@given(st.integers(0, 9), st.integers(1, 6), st.integers(6, 40))
def test_stages_hold_every_task_once_whatever_the_order(seed: int, count: int, tasks: int) -> None:
    task_ids = [f"任务{number}" for number in range(tasks)]
    stages = sequential.deal(seed, "val", task_ids, count)
    assert sorted(task for part in stages.parts for task in part) == sorted(task_ids)
    assert max(map(len, stages.parts)) - min(map(len, stages.parts)) <= 1
    assert set(sequential.deal(seed, "val", task_ids[::-1], count).parts) == set(stages.parts)
    assert stages.share(count) == 1
    for stage in range(1, count):
        assert len(stages.until(stage)) == round(stages.share(stage) * tasks)
    with pytest.raises(ParameterError, match=f"stage {count} of {count}"):
        stages.until(count)


def test_more_stages_than_tasks_are_refused() -> None:
    with pytest.raises(ParameterError, match="3 stages of 2 tasks"):
        sequential.deal(0, "val", ["a", "b"], 3)


def test_stages_are_declared_before_anything_begins(tmp_path: Path) -> None:
    two, three = (sequential.deal(0, "val", list("abcdef"), count) for count in (2, 3))
    whole = sequential.deal(0, "val", list("abcdef"), 1)
    sequential.declare(whole, tmp_path, begun=False)
    assert not (tmp_path / sequential.FILE).exists() and sequential.level(tmp_path) == LEVEL
    with pytest.raises(DesignError, match="before the first rollout"):
        sequential.declare(two, tmp_path, begun=True)
    sequential.declare(two, tmp_path, begun=False)
    sequential.declare(two, tmp_path, begun=True)
    for other in (three, whole):
        with pytest.raises(DesignError, match="others were declared"):
            sequential.declare(other, tmp_path, begun=True)


def test_the_end_has_what_the_looks_that_were_taken_left(tmp_path: Path) -> None:
    sequential.declare(sequential.deal(0, "val", list("abcdefgh"), 4), tmp_path, begun=False)
    assert sequential.level(tmp_path) == pytest.approx(0.05)
    sequential.looked(2, tmp_path).write_text("{}", encoding="utf-8")
    assert sequential.level(tmp_path) == pytest.approx(sequential.levels([0.5, 1.0])[-1])
    sequential.looked(3, tmp_path).write_text("{}", encoding="utf-8")
    assert sequential.level(tmp_path) == pytest.approx(sequential.levels([0.5, 0.75, 1.0])[-1])
