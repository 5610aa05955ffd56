"""Effects by group and between tasks: statsmodels as reference, planted differences, coverage, what is left out."""

from pathlib import Path

import numpy as np
import pytest
import statsmodels.api as sm
from numpy.typing import NDArray
from statsmodels.stats.meta_analysis import combine_effects
from statsmodels.stats.oneway import anova_generic

from shopskill_lib import ols, resampling
from shopskill_lib.observations import read_observations
from shopskill_lib.subgroups import between_groups, between_tasks, study, welch

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

NAMES = ["f0", "f1", "f2"]
EFFECTS = np.array([0.06, *[0.0] * 15])


def pairs(sizes: dict[str, int], extra: float = 0.0) -> tuple[FloatArray, IntArray, list[str]]:
    """Return differences, masks and groups; the second factor gains `extra` in the first group."""
    rng = np.random.default_rng(7)
    groups = [group for group, size in sizes.items() for _ in range(size)]
    masks = rng.integers(0, 2, (len(groups), 3))
    first = np.array(groups) == next(iter(sizes))
    return masks @ [0.1, 0.0, -0.1] + extra * masks[:, 1] * first + 0.3 * rng.normal(size=len(groups)), masks, groups


def test_each_group_is_fitted_alone_and_the_test_is_welchs() -> None:
    delta, masks, groups = pairs({"甲": 90, "b": 60, "c": 40})
    found = study(delta, masks, np.arange(190), NAMES, {"category": groups}).groupings[0]
    assert (found.groups, found.pairs) == (("甲", "b", "c"), (90, 60, 40))
    for g, group in enumerate(found.groups):
        rows = np.array(groups) == group
        fit = sm.OLS(delta[rows], masks[rows].astype(float)).fit(cov_type="HC3", use_t=True)
        assert found.effects[g] == pytest.approx(fit.params, abs=1e-10)
        assert found.errors[g] == pytest.approx(fit.bse, abs=1e-10)
        assert found.half_widths[g] == pytest.approx(fit.conf_int()[:, 1] - fit.params, abs=1e-10)
    assert found.pvalues is not None
    nobs = np.array(found.pairs) - 3 + 1  # statsmodels takes one off again
    for k in range(3):
        expected = anova_generic(found.effects[:, k], found.errors[:, k] ** 2 * nobs, nobs, use_var="unequal")
        assert found.pvalues[k] == pytest.approx(expected.pvalue, rel=1e-9)


def test_the_spread_and_the_shrunken_effects_of_one_factor_are_paules_and_mandels() -> None:
    effects, errors = np.array([[0.3], [-0.1], [0.05], [0.4]]), np.array([[0.1], [0.08], [0.12], [0.2]])
    expected = combine_effects(effects[:, 0], errors[:, 0] ** 2, method_re="iterated", atol=1e-12)
    assert between_groups(effects, errors) == pytest.approx(expected.tau2**0.5, abs=1e-6)
    assert between_groups(effects, errors * 10) == 0.0


def test_a_planted_difference_is_found_under_its_name_and_shrinking_keeps_it() -> None:
    delta, masks, groups = pairs({"small": 150, "large": 250}, extra=0.5)
    found = study(delta, masks, np.arange(400), NAMES, {"persona": groups})
    assert found.verdict().startswith("Effects that differ between groups: f1 by persona (Holm p = ")
    item = found.groupings[0]
    assert item.tau > 0.1
    gap, shrunken = (values[0, 1] - values[1, 1] for values in (item.effects, item.shrunken))
    assert abs(gap) > abs(shrunken) > 0.7 * abs(gap)
    frame = found.to_frame()
    assert len(frame) == 6
    assert (frame["ci_low"] < frame["effect"]).all()


def test_without_a_difference_all_groups_get_the_common_effect() -> None:
    delta, masks, _ = pairs({"a": 400})
    twice = study(
        np.tile(delta, 2), np.tile(masks, (2, 1)), np.arange(800), NAMES, {"category": ["a"] * 400 + ["b"] * 400}
    )
    assert twice.verdict() == "No factor's effect is shown to differ between groups of tasks by category."
    assert twice.groupings[0].tau == 0
    assert twice.groupings[0].shrunken == pytest.approx(twice.groupings[0].effects, abs=1e-12)


def test_holm_counts_the_factors_of_all_groupings() -> None:
    delta, masks, groups = pairs({"a": 100, "b": 100}, extra=0.2)
    one = study(delta, masks, np.arange(200), NAMES, {"category": groups}).groupings[0]
    other = ["x", "y"] * 100
    both = study(delta, masks, np.arange(200), NAMES, {"category": groups, "difficulty": other}).groupings[0]
    assert one.pvalues is not None and one.p_holm is not None and both.p_holm is not None
    assert one.p_holm[1] == pytest.approx(3 * one.pvalues[1])
    assert both.p_holm[1] == pytest.approx(6 * one.pvalues[1])


def test_small_torn_and_empty_groups_are_named_and_left_out() -> None:
    delta, masks, groups = pairs({"a": 100, "tiny": 11, "": 20, "torn": 30})
    tasks = np.arange(161)
    tasks[131] = 0  # a task of "torn" that is in "a" too
    found = study(delta, masks, tasks, NAMES, {"category": groups})
    left = dict(found.groupings[0].left_out)
    assert left["tiny"] == "11 pairs, fewer than 4 a factor"
    assert left["(empty)"] == "20 pairs, not described"
    assert left["torn"] == left["a"].replace("100", "30") == "30 pairs, some of its tasks are in other groups too"
    assert found.to_frame().empty
    untold = "Whether an effect differs between groups of tasks could not be tested: "
    assert found.verdict() == f"{untold}fewer than two groups can be fitted."
    assert study(delta, masks, tasks, NAMES, {}).verdict() == f"{untold}the pairs name no groups."
    assert "tiny: 11 pairs" in found.rows()[0][1]


def test_estimates_without_error_agree_or_do_not() -> None:
    freedom = np.array([10.0, 10.0])
    assert welch(np.array([0.1, 0.1]), np.zeros(2), freedom) == 1.0
    assert welch(np.array([0.1, 0.2]), np.zeros(2), freedom) == 0.0
    assert welch(np.array([0.1, 0.9]), np.array([0.0, 0.01]), freedom) == 1.0, "one error is not known: no test"


def test_effects_between_tasks_need_several_independent_samples() -> None:
    delta, masks, _ = pairs({"a": 200})
    assert between_tasks(delta, masks, np.arange(200), NAMES) == (None, "every task has one masked sample")
    few = np.arange(200) // 2
    few[20:] = np.arange(100, 280)
    assert between_tasks(delta, masks, few, NAMES)[1].startswith("fewer than 4 tasks a factor")
    opposite = np.stack([masks[:100], 1 - masks[:100]], axis=1).reshape(200, 3)
    assert "depend on each other" in between_tasks(delta, opposite, np.arange(200) // 2, NAMES)[1]


def test_a_planted_spread_between_tasks_is_covered() -> None:
    """Two factors help the same tasks, so their effects are correlated; the third has one effect everywhere."""
    rng, squares, covered = np.random.default_rng(5), [], []
    for _ in range(60):
        masks, tasks = rng.integers(0, 2, (900, 3)), np.repeat(np.arange(300), 3)
        varying = np.repeat(0.3 * rng.normal(size=300), 3)
        shared = np.repeat(0.2 * rng.normal(size=300), 3)
        delta = masks @ [0.1, 0.0, -0.1] + varying * (masks[:, 0] + masks[:, 1]) + shared + 0.3 * rng.normal(size=900)
        found, reason = between_tasks(delta, masks, tasks, NAMES)
        assert found is not None, reason
        squares.append(found.tau[0] ** 2)
        covered.append(found.tau_low[0] <= 0.3 <= found.tau_high[0] and found.tau_low[2] == 0)
    assert np.mean(squares) == pytest.approx(0.09, abs=0.01)
    assert np.mean(covered) >= 0.85


def zero_or_one(rng: np.random.Generator) -> tuple[FloatArray, IntArray]:
    """Return differences of 0/1 rewards of 400 tasks and masks of 16 factors, the first of which helps."""
    masks = rng.integers(0, 2, (400, 16))
    base = 0.1 + 0.7 * rng.beta(0.8, 0.8, 400)
    return (rng.random(400) < base + EFFECTS[0] * masks[:, 0]).astype(float) - (rng.random(400) < base), masks


def test_intervals_within_groups_cover_and_no_difference_is_made_up() -> None:
    """The fast version of `bench/subgroups.py`: three groups of other sizes, no difference between them."""
    rng, covered, squares, wrong = np.random.default_rng(11), [], [], []
    names, groups = [f"f{k}" for k in range(16)], ["l"] * 160 + ["m"] * 140 + ["s"] * 100
    for _ in range(60):
        found = study(*zero_or_one(rng), np.arange(400), names, {"category": groups}).groupings[0]
        assert found.p_holm is not None
        covered.append(np.abs(found.effects - EFFECTS) <= found.half_widths)
        squares.append([np.sum((values - EFFECTS) ** 2) for values in (found.effects, found.shrunken)])
        wrong.append(found.p_holm.min() <= 0.05)
    assert 0.93 <= np.mean(covered) <= 0.97
    assert np.mean(squares, axis=0)[1] < 0.6 * np.mean(squares, axis=0)[0]
    assert np.mean(wrong) <= 0.12


def test_bootstrap_intervals_of_coefficients_cover() -> None:
    rng, percentile, corrected = np.random.default_rng(12), [], []
    for repetition in range(40):
        delta, masks = zero_or_one(rng)
        tasks = np.arange(400)
        params = ols.fit(delta, masks, [f"f{k}" for k in range(16)], tasks).params
        drawn = resampling.bootstrap_coefficients(delta, masks, tasks, 1000, repetition)
        found = resampling.coefficient_intervals(delta, masks, tasks, params, drawn)
        ends = np.array(found.bca, dtype=np.float64)
        percentile.append((found.percentile[:, 0] <= EFFECTS) & (found.percentile[:, 1] >= EFFECTS))
        corrected.append((ends[:, 0] <= EFFECTS) & (ends[:, 1] >= EFFECTS))
    assert 0.93 <= np.mean(percentile) <= 0.97
    assert 0.93 <= np.mean(corrected) <= 0.97


def test_groups_of_a_file_are_read_and_a_factor_of_such_a_name_is_none(tmp_path: Path) -> None:
    rows = [
        f"{k},{'衣 服' if k % 2 else 'b'},{'' if k == 3 else 'hard'},{k % 4 // 2},{k % 3 // 2},1,0" for k in range(40)
    ]
    path = tmp_path / "pairs.csv"
    path.write_text("task_id,category,difficulty,one,two,reward,bare_reward\n" + "\n".join(rows), encoding="utf-8")
    seen = read_observations(path)
    assert list(seen.groups) == ["category", "difficulty"]
    assert seen.groups["category"][:2] == ("b", "衣 服")
    assert seen.groups["difficulty"][3] == ""
