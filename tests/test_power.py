"""Planning against simulation: predicted errors, power and the rule's habits are those of simulated gates."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from shopskill_lib import masks, planning, power, selection
from shopskill_lib.errors import DesignError, ParameterError
from shopskill_lib.masks import Design, Slot
from shopskill_lib.power import Setting
from shopskill_lib.sources import Intervention

FloatArray = NDArray[np.float64]


def slots_of(versions: tuple[int, ...]) -> list[Slot]:
    return [Slot(f"s{i}", tuple(f"s{i}v{k}" for k in range(count))) for i, count in enumerate(versions)]


@cache
def shown(versions: tuple[int, ...], tasks: int, samples: int, design: Design, seed: int) -> FloatArray:
    """(tasks * samples, K) masks."""
    ids = [str(task) for task in range(tasks)]
    return masks.assign(seed, "val", ids, slots_of(versions), samples, design).masks.astype(float)


def simulated_estimates(setting: Setting, effects: FloatArray, gates: int, seed: int = 0) -> FloatArray:
    """(gates, K) coefficients of gates with 0/1 rewards over tasks of their own difficulty."""
    rng = np.random.default_rng(seed)
    samples = setting.masked_samples
    spread = (1 - setting.between) / setting.between
    found = []
    for gate in range(gates):
        X = shown(setting.versions, setting.tasks, samples, setting.design, gate % 40)
        base = rng.beta(setting.success * spread, (1 - setting.success) * spread, setting.tasks)
        masked = rng.random(len(X)) < np.repeat(base, samples) + X @ effects
        bare = np.repeat(rng.binomial(setting.bare_samples, base) / setting.bare_samples, samples)
        found.append(np.linalg.lstsq(X, masked.astype(float) - bare)[0])
    return np.array(found)


@pytest.mark.parametrize(
    ("versions", "tasks", "samples", "design"),
    [
        ((1,) * 12, 300, 1, "independent"),
        ((1,) * 12, 150, 2, "independent"),
        ((1,) * 12, 150, 2, "complementary"),
        ((1, 1, 1, 2, 2, 3), 150, 2, "complementary"),
        ((1, 1, 1, 2, 2, 3), 100, 4, "complementary"),
        ((1,) * 12, 150, 2, "balanced"),
        ((1,) * 12, 40, 2, "balanced"),
        ((1, 1, 1, 2, 2, 3), 150, 2, "balanced"),
        ((1, 1, 1, 2, 2, 3), 100, 4, "balanced"),
        ((1,) * 4 + (2,) * 4, 60, 6, "balanced"),
        ((1,) * 8, 80, 1, "d_optimal"),
    ],
)
def test_predicted_errors_are_those_of_simulated_gates(
    versions: tuple[int, ...], tasks: int, samples: int, design: Design
) -> None:
    setting = Setting(versions, tasks, 0.5, 0.4, samples, design)
    found = simulated_estimates(setting, np.zeros(sum(versions)), 400).std(axis=0)
    assert found / power.standard_errors(setting) == pytest.approx(np.ones(sum(versions)), abs=0.12)
    assert np.mean(found / power.standard_errors(setting)) == pytest.approx(1.0, abs=0.03)


@pytest.mark.parametrize(
    ("tasks", "samples", "design"),
    [
        (240, 1, "independent"),
        (120, 2, "complementary"),
        (120, 2, "balanced"),
        (60, 4, "balanced"),
        (120, 1, "d_optimal"),
    ],
)
def test_effects_that_differ_between_tasks_enlarge_errors_as_predicted(
    tasks: int, samples: int, design: Design
) -> None:
    setting = Setting((1, 1, 1, 1, 1, 2), tasks, 0.5, 0.4, samples, design, 0.2)
    rng, noise = np.random.default_rng(0), (0.25 * 0.6) ** 0.5
    found = []
    for gate in range(800):
        X = shown(setting.versions, tasks, samples, design, gate % 40)
        effects = rng.normal(0, 0.2, (tasks, 7)).repeat(samples, axis=0)
        bare = rng.normal(0, noise, tasks).repeat(samples)
        found.append(np.linalg.lstsq(X, (X * effects).sum(axis=1) + rng.normal(0, noise, len(X)) - bare)[0])
    ratio = np.std(found, axis=0) / power.standard_errors(setting)
    assert ratio == pytest.approx(np.ones(7), abs=0.1)
    assert ratio.mean() == pytest.approx(1.0, abs=0.03)
    assert power.standard_errors(setting).min() > 1.15 * power.standard_errors(replace(setting, spread=0.0)).min()


@pytest.mark.parametrize("choice", [("independent", 1, 2), ("independent", 4, 3), ("complementary", 4, 2)])
def test_averaged_bare_runs_have_the_predicted_errors(choice: tuple[Design, int, int]) -> None:
    design, samples, bare = choice
    setting = Setting((1, 1, 1, 2, 2, 3), 240 // samples, 0.5, 0.2, samples, design, bare_samples=bare)
    found = simulated_estimates(setting, np.zeros(10), 800).std(axis=0)
    assert np.mean(found / power.standard_errors(setting)) == pytest.approx(1.0, abs=0.03)
    assert setting.rollouts == setting.tasks * (samples + bare)
    with pytest.raises(ParameterError, match="bare_samples"):
        replace(setting, bare_samples=0)


def test_the_best_split_of_a_budget_has_one_bare_run_a_task() -> None:
    """More would pay under independent masks alone, which pairs beat anyway."""
    question = planning.Question(0.45, 0.2, 10, 2, spread=0.0)
    table = planning.allocate(question, 1600, (1, 2, 3, 4))
    assert table["bare a task"][0] == 1
    assert table.loc[table["design"] == "independent", "bare a task"].iloc[0] > 1


def test_complementary_masks_have_the_marginals_of_independent_ones_and_differ_within_every_pair() -> None:
    slots = slots_of((1, 2, 3))
    ids = [str(task) for task in range(3000)]
    drawn = masks.assign(5, "val", ids, slots, 2, "complementary")
    first, second = drawn.states[0::2], drawn.states[1::2]
    assert (first != second).all()
    assert np.array_equal(first, masks.assign(5, "val", ids, slots, 1).states)
    for j, states in enumerate((2, 3, 4)):
        for half in (first[:, j], second[:, j]):
            assert stats.chisquare(np.bincount(half, minlength=states)).pvalue > 1e-4
    pairs = np.bincount(4 * first[:, 2] + second[:, 2], minlength=16).reshape(4, 4)
    assert stats.chisquare(pairs[~np.eye(4, dtype=bool)]).pvalue > 1e-4


def test_masks_of_a_design_depend_on_seed_task_sample_and_slot_alone() -> None:
    slots = slots_of((1, 2))
    whole = masks.assign(1, "val", ["7", "8", "9"], slots, 4, "complementary")
    one = masks.assign(1, "val", ["8"], slots[1:], 4, "complementary")
    assert np.array_equal(whole.states[4:8, 1:], one.states)


@pytest.mark.parametrize("design", ["complementary", "balanced"])
def test_odd_samples_have_no_pairs(design: Design) -> None:
    with pytest.raises(DesignError, match="need pairs"):
        masks.assign(0, "val", ["1"], slots_of((1,)), 3, design)
    with pytest.raises(ParameterError, match="masked_samples"):
        Setting((1,), 10, 0.5, 0.5, 3, design)


def test_an_effect_of_the_detectable_size_is_found_as_often_as_promised() -> None:
    setting = Setting((1,) * 8, 400, 0.5, 0.4)
    error = float(power.standard_errors(setting).max())
    effects = np.array([power.detectable(error), *[0.0] * 7])
    base = simulated_estimates(setting, effects * 0.5, 300)[:, 0]  # half of it stays inside [0, 1] for every task
    found = np.mean(np.abs(base) > stats.norm.ppf(0.975) * error)
    expected = stats.norm.cdf(0.5 * (stats.norm.ppf(0.975) + stats.norm.ppf(0.8)) - stats.norm.ppf(0.975))
    assert found == pytest.approx(expected, abs=3 * np.sqrt(0.25 / 300))
    z = (stats.norm.ppf(0.975) + stats.norm.ppf(0.8)) * error
    assert power.detectable(error) == pytest.approx(z)


def test_the_tasks_needed_are_the_first_that_suffice() -> None:
    for design, samples in planning.DESIGNS:
        setting = Setting((1,) * 10 + (2,), 100, 0.4, 0.3, samples, design)
        tasks = power.tasks_needed(setting, 0.04)
        errors = [
            power.standard_errors(Setting(setting.versions, count, 0.4, 0.3, samples, design)).max()
            for count in (tasks, tasks - 1)
        ]
        assert errors[0] <= 0.04 < errors[1]


def test_what_the_rule_will_do_is_what_it_does_to_simulated_gates() -> None:
    setting = Setting((1,) * 8, 400, 0.5, 0.4, 2, "complementary")
    effects = np.array([0.05, 0.04, 0.03, *[0.0] * 5])
    rule = selection.Rule([Intervention(f"f{k}", f"f{k}", order=k) for k in range(8)], 4)
    expected = power.expect(setting, effects, rule)
    drawn = simulated_estimates(setting, effects, 500)
    chosen = rule(drawn)[1]
    assert expected.selected == pytest.approx(chosen.sum(axis=1).mean(), abs=0.15)
    assert expected.false == pytest.approx(chosen[:, 3:].sum(axis=1).mean(), abs=0.15)
    assert expected.found == pytest.approx(chosen[:, :3].mean(), abs=0.03)
    assert expected.gain == pytest.approx((chosen @ effects).mean(), abs=0.004)
    assert expected.claimed == pytest.approx((chosen * drawn).sum(axis=1).mean(), abs=0.01)
    assert expected.possible == pytest.approx(0.12)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"success": 0.0}, "success"),
        ({"between": 1.0}, "between"),
        ({"chunks": 17}, "chunks"),
        ({"helping": 9}, "helping"),
        ({"effect": 0.0}, "effect"),
        ({"error": 0.0}, "error"),
        ({"spread": -0.1}, "spread"),
        ({"budget": 99}, "budget"),
    ],
)
def test_what_cannot_be_planned_is_refused_by_name(change: dict[str, float], named: str) -> None:
    known = {"success": 0.5, "between": 0.5, "chunks": 8, "helping": 2} | change
    with pytest.raises(ParameterError, match=named):
        planning.compare(planning.Question(**known), (400,))  # type: ignore[arg-type]


def test_fewer_draws_than_factors_are_no_gate() -> None:
    for setting in (
        Setting((1,) * 16, 17, 0.5, 0.5),
        Setting((1,) * 16, 17, 0.5, 0.5, 2, "complementary"),
        Setting((1,) * 15 + (2,), 31, 0.5, 0.5, 2, "balanced"),
    ):
        with pytest.raises(ParameterError, match=f"{setting.tasks} tasks for .* factors under {setting.design}"):
            power.covariance(setting)
        assert power.standard_errors(replace(setting, tasks=setting.tasks + 1)).max() > 0


def test_the_recommended_design_needs_the_fewest_rollouts() -> None:
    told = planning.recommend(planning.Question(0.45, 0.5, 14, 1))
    assert told.startswith("For a standard error of 0.03: balanced masks, 4 a task")
    numbers = [int(part.split(" rollouts")[0].split()[-1]) for part in told.split(", ") if " rollouts" in part]
    assert numbers == sorted(numbers)
    assert len(numbers) == len(planning.DESIGNS)


def test_a_budget_is_split_best_first_and_never_exceeded() -> None:
    question = planning.Question(0.45, 0.5, 14, 1)
    table = planning.allocate(question, 800)
    assert (table["all rollouts"] <= 800).all()
    assert (table["all rollouts"] > 800 - table["masked a task"] - 1).all()
    assert table["std error"].is_monotonic_increasing
    assert table["tasks"].min() >= planning.FEW_TASKS
    for row in table.to_dict("records"):
        setting = Setting((1,) * 14 + (2,), row["tasks"], 0.45, 0.5, row["masked a task"], row["design"], 0.05)
        assert row["std error"] == pytest.approx(power.standard_errors(setting).max(), abs=5e-5)
    reference = table[(table["design"] == "independent") & (table["masked a task"] == 1)]
    assert reference["tasks"].tolist() == [400]
    assert table["design"][0] == "balanced"


def test_the_more_effects_differ_between_tasks_the_more_tasks_the_best_split_has() -> None:
    best = [
        planning.allocate(planning.Question(0.5, 0.9, 4, spread=spread), 1200)["tasks"][0] for spread in (0.0, 0.1, 0.5)
    ]
    assert best == sorted(best)
    assert best[0] < best[-1]


def test_a_budget_too_small_for_any_gate_is_refused() -> None:
    question = planning.Question(0.45, 0.5, 15, effect=0.05)
    assert planning.allocate(question, 100)["design"].tolist() == ["d_optimal", "independent"]
    with pytest.raises(ParameterError, match="rollouts is 99"):
        planning.allocate(question, 99)
