import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from shopskill_lib import resampling
from shopskill_lib.comparison import Comparison, compare_paired
from shopskill_lib.errors import InputError, MissingError, ParameterError
from shopskill_lib.observations import read_comparison


@pytest.fixture(scope="module")
def published(shared: Path) -> Comparison:
    return compare_paired(*read_comparison(shared / "data" / "published_test" / "base.csv"))


def test_published_differences_and_intervals(shared: Path, published: Comparison) -> None:
    metrics = json.loads((shared / "data" / "published_test" / "base_expected.json").read_text())["metrics"]
    found = published.to_json()["metrics"]
    assert set(found) == {"reward", "success"}
    for name, theirs in (("reward", metrics["reward"]), ("success", metrics["r_success"])):
        for key in ("bare", "equipped", "delta"):
            assert found[name][key] == pytest.approx(theirs[key], abs=1e-12)
        for key in ("ci_low", "ci_high"):
            assert found[name][key] == pytest.approx(theirs[key], abs=0.003)


def test_published_flips(published: Comparison) -> None:
    assert (published.gained, published.lost, published.n_pairs, published.n_tasks) == (46, 35, 400, 400)
    exact = 2 * sum(math.comb(81, k) for k in range(46, 82)) / 2**81
    assert published.success_p_value == pytest.approx(exact, abs=1e-12)
    assert "not told apart from 0; 46 successes gained, 35 lost" in published.verdict()
    assert published.wins + published.ties + published.losses == 400


def arms(**more: Any) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Four tasks: two better, one equal, one worse."""
    bare = pd.DataFrame({"task_id": ["1", "2", "3", "4"], "reward": [0.0, 0.0, 1.0, 1.0], "success": [0, 0, 1, 1]})
    equipped = bare.assign(reward=[1.0, 0.5, 1.0, 0.25], success=[1, 0, 1, 0])
    return bare.assign(**{name: pair[0] for name, pair in more.items()}), equipped.assign(
        **{name: pair[1] for name, pair in more.items()}
    )


def test_wins_ties_losses_and_flips_by_hand() -> None:
    found = compare_paired(*arms(), resamples=500)
    assert (found.wins, found.ties, found.losses) == (2, 1, 1)
    assert (found.gained, found.lost, found.success_p_value) == (1, 1, 1)
    assert found.flips["task_id"].tolist() == ["1", "2", "3", "4"]
    assert found.flips["delta"].tolist() == [1, 0.5, 0, -0.75]
    row = found.to_frame().set_index("metric").loc["reward"]
    assert (row["bare"], row["equipped"], row["delta"]) == (0.5, 0.6875, 0.1875)


def test_rows_are_aligned_by_id_not_by_place() -> None:
    bare, equipped = arms()
    shuffled = equipped.iloc[::-1].assign(task_id=["04", "3 ", "２", "1"])
    assert compare_paired(bare, shuffled, resamples=100).flips.equals(compare_paired(bare, equipped).flips)


def test_success_as_true_and_false_is_success() -> None:
    plain = compare_paired(*arms(), resamples=100)
    boolean = compare_paired(*(arm.astype({"success": bool}) for arm in arms()), resamples=100)
    assert boolean.to_json() == plain.to_json()


def several_rows() -> tuple[pd.DataFrame, pd.DataFrame]:
    """Task 1 has four rows and task 2 to 6 one each."""
    keys = {"task_id": ["1"] * 4 + list("23456"), "sample": [0, 1, 2, 3, 0, 0, 0, 0, 0]}
    bare = pd.DataFrame(keys | {"reward": [0.0] * 9, "r_success": [0] * 9})
    gain = [1, 1, 1, 0, 0, 0, 1, 0, 0]
    return bare, bare.assign(reward=np.array(gain, dtype=float), r_success=gain)


def test_several_rows_of_a_task_count_once() -> None:
    """Task means 3/4, 0, 0, 1, 0, 0: their mean, their bootstrap, and a test over tasks."""
    found = compare_paired(*several_rows(), resamples=1000, analysis_seed=4)
    values = np.array([0.75, 0, 0, 1, 0, 0])
    row = found.to_frame().set_index("metric").loc["reward"]
    assert row["delta"] == pytest.approx(values.mean())
    means = resampling.bootstrap_means(values[:, None], 1000, seed=4)[:, 0]
    assert (row["ci_low"], row["ci_high"]) == resampling.percentile_interval(means)
    assert (row["bca_low"], row["bca_high"]) == resampling.bca_interval(values, means)
    assert (found.n_pairs, found.n_tasks, row["n_tasks"]) == (9, 6, 6)
    assert (found.gained, found.lost) == (4, 0)
    assert found.success_p_value == pytest.approx(2 / 4)  # two tasks changed, not four rows
    assert found.notes == (
        "6 tasks: below 20 the intervals are coarse and mostly too narrow",
        "9 rows of 6 tasks: every task counts once, its rows are averaged",
        "gained and lost count rows; their p-value is a sign test over the tasks' net changes",
    )


def test_costs_that_some_rows_lack_are_compared_where_known_and_noted() -> None:
    found = compare_paired(*arms(tokens=([10, np.nan, 30, 40], [15, 25, 35, np.nan])), resamples=200)
    row = found.to_frame().set_index("metric").loc["tokens"]
    assert (row["bare"], row["equipped"], row["delta"], row["n_tasks"]) == (20, 25, 5, 2)
    assert found.notes[0] == "tokens is known in both arms for 2 of 4 tasks"


def test_a_cost_known_nowhere_is_null_on_disk() -> None:
    found = compare_paired(*arms(tokens=([np.nan] * 4, [1.0] * 4)), resamples=200)
    record = json.loads(json.dumps(found.to_json(), allow_nan=False))
    assert record["metrics"]["tokens"]["delta"] is None
    assert record["metrics"]["tokens"]["n_tasks"] == 0


@pytest.mark.parametrize("name", ["reward", "success", "r_att"])
def test_a_missing_score_is_refused_never_zero(name: str) -> None:
    bare, equipped = arms(r_att=([1.0] * 4, [1.0] * 4))
    equipped[name] = equipped[name].astype(float)
    equipped.loc[2, name] = np.nan
    with pytest.raises(MissingError, match=rf"equipped_{name} is missing in 1 of 4 rows \(tasks 3\)"):
        compare_paired(bare, equipped)


def test_unaligned_arms_are_refused_with_the_tasks() -> None:
    bare, equipped = arms()
    with pytest.raises(InputError, match=r"2 rows stand in one arm only: 2 \(sample 0\), 4 \(sample 0\)"):
        compare_paired(bare.drop(index=1), equipped.drop(index=3))
    with pytest.raises(InputError, match="there are no rows"):
        compare_paired(bare.iloc[:0], equipped.iloc[:0])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"task_id": ["1", "01", "3", "4"]}, "equipped arm, task 1, sample 0: the row appears twice"),
        ({"reward": [0.0, np.inf, 0.0, 0.0]}, "equipped arm, task 2, column reward: reward is 'inf'"),
        ({"steps": [0.0, 1e101, 0.0, 0.0]}, r"task 2, column steps: steps is '1e\+101'.*at most 1e\+100"),
        ({"steps": [0, 10**400, 0, 0]}, "task 2, column steps: steps is '1000"),
        ({"success": ["1", "yes", "0", "0"]}, "equipped arm, task 2, column success: success is 'yes'"),
        ({"steps": ["3", "", "0", "0"]}, "task 2, column steps: steps is ''"),
        ({"sample": [0, 0.5, 0, 0]}, "task 2, column sample: sample is '0.5'.*whole numbers from 0"),
        ({"sample": [0, 1e99, 0, 0]}, r"task 2, column sample: sample is '1e\+99'"),
        ({"sample": [0, None, 0, 0]}, "task 2, column sample: sample is 'nan'"),
        ({"task_id": ["1", None, "3", "4"]}, "equipped arm: row 2 has no task_id"),
        ({"success": [0, 0, 0, 0.5]}, "column success: success holds values other than 0 and 1"),
    ],
)
def test_bad_rows_are_refused_by_arm_and_task(change: dict[str, Any], message: str) -> None:
    bare, equipped = arms()
    with pytest.raises(InputError, match=message):
        compare_paired(bare, equipped.assign(**change))


def test_numbers_as_text_are_numbers_and_descriptions_are_left_out() -> None:
    plain = compare_paired(*arms(), resamples=100)
    as_text = [arm.assign(sample="0").astype({"reward": str, "success": object}) for arm in arms()]
    as_text[1]["sample"], as_text[1]["category"] = 0, "shoes"
    assert compare_paired(*as_text, resamples=100).to_json() == plain.to_json()
    nullable = [arm.convert_dtypes() for arm in arms(steps=([1, None, 3, 4], [1, 2, None, 4]))]
    assert compare_paired(*nullable, resamples=100).to_frame().set_index("metric").loc["steps", "n_tasks"] == 2


def test_arms_of_another_kind_are_refused(tmp_path: Path) -> None:
    bare, equipped = arms()
    path: Any = tmp_path
    with pytest.raises(ParameterError, match=r"the equipped arm is a .*Path"):
        compare_paired(bare, path)
    with pytest.raises(InputError, match="bare arm: column 'reward' appears twice"):
        compare_paired(pd.concat([bare, bare["reward"]], axis=1), equipped)
    for name, value in (("resamples", 99), ("analysis_seed", -1)):
        with pytest.raises(ParameterError, match=f"{name} is {value}"):
            compare_paired(bare, equipped, **{name: value})


def test_one_task_is_refused_and_few_are_noted() -> None:
    bare, equipped = several_rows()
    with pytest.raises(InputError, match="all rows belong to task 1"):
        compare_paired(bare.head(4), equipped.head(4))
    many = pd.DataFrame({"task_id": range(20), "reward": 0.5})
    assert compare_paired(many, many, resamples=100).notes == ()
    assert compare_paired(many.head(19), many.head(19), resamples=100).notes[0].startswith("19 tasks: below 20")


def test_numbers_of_any_admitted_size_give_intervals() -> None:
    large = compare_paired(*arms(steps=([1e100, -1e100, 0, 1], [-1e100, 1e100, 1e-120, 0])), resamples=100)
    assert np.isfinite(large.to_frame().drop(columns="metric").to_numpy(float)).all()


def test_an_arm_without_reward_is_refused() -> None:
    bare, equipped = arms()
    with pytest.raises(InputError, match="equipped arm: columns are task_id, success"):
        compare_paired(bare, equipped.drop(columns="reward"))


def test_without_success_there_are_no_flips() -> None:
    found = compare_paired(*(arm.drop(columns="success") for arm in arms()), resamples=100)
    assert (found.gained, found.lost, found.success_p_value) == (None, None, None)
    assert found.to_json()["success"] is None
    assert "gained" not in found.verdict()


def test_the_verdict_takes_the_side_of_the_interval() -> None:
    bare = pd.DataFrame({"task_id": range(40), "reward": np.tile([0.0, 0.5], 20)})
    better = bare.assign(reward=bare["reward"] + np.tile([0.5, 0.25], 20))
    assert "above 0" in compare_paired(bare, better, resamples=200).verdict()
    assert "below 0" in compare_paired(better, bare, resamples=200).verdict()


def test_the_same_analysis_seed_gives_the_same_bytes() -> None:
    one, same, other = (
        json.dumps(compare_paired(*arms(), resamples=101, analysis_seed=seed).to_json()) for seed in (1, 1, 2)
    )
    assert one == same != other


def test_metrics_with_chinese_names_and_simulated_origin(write: Callable[..., Path]) -> None:
    head = "task_id,origin,bare_reward,equipped_reward,bare_步数,equipped_步数"
    path = write(f"{head}\n任务1,simulated,0,1,4,6\n任务2,simulated,0,1,4,8\n")
    found = compare_paired(*read_comparison(path), resamples=100)
    assert found.to_frame().set_index("metric").loc["步数", "delta"] == 3
    assert found.simulated
    assert found.verdict().startswith("simulated: ")


def test_a_comparison_is_of_one_checkpoint_and_of_any_split(write: Callable[..., Path]) -> None:
    head = "task_id,split,checkpoint,bare_reward,equipped_reward\n"
    assert len(read_comparison(write(f"{head}1,test,a,0,1\n2,val,a,0,1\n"))[0]) == 2
    with pytest.raises(InputError, match="checkpoint is 'a' in some rows and 'b' in others"):
        read_comparison(write(f"{head}1,test,a,0,1\n2,test,b,0,1\n"))
