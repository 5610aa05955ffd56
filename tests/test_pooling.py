"""Several gates as one analysis: the statistics against statsmodels, labels from intervals, refusals that say why."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import statsmodels.api as sm
from conftest import FACTORS, gate_rows, to_csv
from statsmodels.stats.meta_analysis import combine_effects

from shopskill_lib import drift, looks, pool, pooling
from shopskill_lib.console import respond
from shopskill_lib.drift import drift_label
from shopskill_lib.errors import InputError
from shopskill_lib.gates import fit_gate, read_observations
from shopskill_lib.pooling import Member, read_member

Rows = list[dict[str, str]]


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., Path]:
    """Write a run folder with a frozen gate: pairs, columns, record."""

    def _run(
        name: str, seed: int, change: Callable[[Rows], object] | None = None, pairs: int = 200, **told: Any
    ) -> Path:
        folder = tmp_path / name
        folder.mkdir(parents=True)
        rows = gate_rows(pairs, FACTORS, seed)
        for row in rows:
            row["checkpoint"] = told.get("checkpoint", "step-0")
        if change:
            change(rows)
        (folder / "observations.csv").write_text(to_csv(rows), encoding="utf-8")
        texts = told.get("texts", {name: f"{name}-text" for name in FACTORS})
        items = [{"intervention_id": name, "title": name, "text_sha256": text} for name, text in texts.items()]
        (folder / "interventions.json").write_text(json.dumps(items), encoding="utf-8")
        gate = fit_gate(read_observations(folder / "observations.csv", folder / "interventions.json"), resamples=100)
        looks.freeze(folder, folder / "gate_a.json", gate.to_json(), gate.key())
        return folder

    return _run


def other_tasks(rows: Rows) -> None:
    for row in rows:
        row["task_id"] = "9" + row["task_id"]


def helps(rows: Rows) -> None:
    """`search` decides most rewards; nobody succeeds bare."""
    rng = np.random.default_rng(1)
    for row in rows:
        row["reward"], row["bare_reward"] = str(int(rng.random() < (0.9 if row["search"] == "1" else 0.1))), "0"


def nothing_helps(rows: Rows) -> None:
    rng = np.random.default_rng(2)
    for row in rows:
        row["reward"] = row["bare_reward"] = str(int(rng.random() < 0.5))
        row["reward"] = str(int(rng.random() < 0.5)) if rng.random() < 0.2 else row["bare_reward"]


def stacked(folders: list[Path]) -> pd.DataFrame:
    return pd.concat([pd.read_csv(folder / "observations.csv", dtype={"task_id": str}) for folder in folders])


def test_pooled_effects_are_statsmodels_with_errors_clustered_by_task(run: Callable[..., Path]) -> None:
    folders = [run("one", 1), run("two", 2), run("three", 3, pairs=150)]
    found = pooling.pool([read_member(folder) for folder in folders], resamples=200)
    rows = stacked(folders)
    model = sm.OLS(rows["reward"] - rows["bare_reward"], rows[list(FACTORS)].astype(float))
    want = model.fit(cov_type="cluster", cov_kwds={"groups": rows["task_id"].astype(int)}, use_t=True)
    assert found.pooled.params == pytest.approx(want.params.to_numpy(), abs=1e-10)
    assert found.pooled.bse == pytest.approx(want.bse.to_numpy(), abs=1e-10)
    assert found.pooled.df_inference == 199


def test_agreement_of_independent_gates_is_cochrans_q(run: Callable[..., Path]) -> None:
    """Gates of different tasks are independent: the test on the joint covariance is the textbook's."""
    folders = [run("one", 1), run("two", 2, other_tasks)]
    found = pooling.pool([read_member(folder) for folder in folders], resamples=200)
    fits = [
        fit_gate(read_observations(folder / "observations.csv"), resamples=100).outcomes["reward"].fit
        for folder in folders
    ]
    for k, (name, share) in enumerate(zip(FACTORS, found.heterogeneity["i_squared"], strict=True)):
        effects, variances = (np.array([values[k] for values in column]) for column in (
            [fit.params for fit in fits], [fit.bse**2 for fit in fits]))  # fmt: skip
        want = combine_effects(effects, variances)
        assert share == pytest.approx(max(0.0, want.i2), abs=1e-9), name
    assert found.p_agree is not None


def test_the_same_rewards_twice_are_no_further_evidence(run: Callable[..., Path]) -> None:
    def remark(rows: Rows) -> None:
        for row in rows:
            row["origin"] = "copied"

    one, again = run("one", 1), run("again", 1, remark)
    found = pooling.pool([read_member(one), read_member(again)], resamples=200)
    alone = fit_gate(read_observations(one / "observations.csv"), resamples=100).outcomes["reward"].fit
    assert found.pooled.params == pytest.approx(alone.params, abs=1e-12)
    assert found.pooled.bse == pytest.approx(alone.bse, rel=0.05)
    assert any("share tasks" in note for note in found.notes)


def test_internalized_is_said_only_where_the_interval_says_so(run: Callable[..., Path]) -> None:
    members = [read_member(run("early", 1, helps)), read_member(run("late", 2, nothing_helps, checkpoint="step-9"))]
    found = pooling.pool(members, resamples=200)
    labels = found.drift.set_index("chunk")["drift_label"].to_dict()
    assert labels.pop("search-text") == "internalized"
    assert set(labels.values()) == {"undecided"}
    assert "From checkpoint step-0 to step-9: undecided 3, internalized 1." in found.verdict()
    one_checkpoint = pooling.pool([members[0], read_member(run("same", 5))], resamples=200)
    assert one_checkpoint.drift.empty
    assert "From checkpoint" not in one_checkpoint.verdict()


def test_a_line_through_checkpoints_is_a_contrast_of_statsmodels() -> None:
    """Three checkpoints on the same tasks, the middle one nearer to the first; a chunk of two has no line."""
    rng = np.random.default_rng(3)
    tasks = np.tile(np.arange(150), 4)
    numbers = np.repeat([0, 1, 3, 3], 150)
    shown = rng.integers(0, 2, (600, 2))
    names = ["0 a", "1 a", "3 a", "0 b", "3 b"]
    masks = np.column_stack(
        [shown[:, 0] * (numbers == k) for k in (0, 1, 3)] + [shown[:, 1] * (numbers == k) for k in (0, 3)]
    )
    delta = masks @ [0.4, 0.3, 0.0, 0.1, 0.1] + 0.3 * rng.normal(size=600) + 0.3 * rng.normal(size=150)[tasks]
    table = drift.over(delta, masks, names, tasks, 4)
    fit = sm.OLS(delta, masks.astype(float)).fit(cov_type="cluster", cov_kwds={"groups": tasks}, use_t=True)
    position = np.array([0, 1 / 3, 1])
    slope = (position - position.mean()) / np.sum((position - position.mean()) ** 2)
    expected = fit.t_test(np.array([[*slope, 0, 0]]))
    line, none = table.to_dict("records")
    assert line["trend"] == pytest.approx(expected.effect[0], abs=1e-10)
    assert [line["trend_low"], line["trend_high"]] == pytest.approx(expected.conf_int(0.025)[0], abs=1e-10)
    assert line["trend_label"] == line["drift_label"] == "internalized"
    assert (none["chunk"], none["checkpoints"]) == ("b", 2)
    assert all(pd.isna(none[name]) for name in ("trend", "trend_low", "trend_high", "trend_label"))


def test_intervals_of_drift_and_trend_hold_all_chunks_at_once() -> None:
    first, last = np.array([0.3, 0.0, 0.1, 0.2]), np.array([0.0, 0.3, 0.1, 0.1])
    rng, tasks, held = np.random.default_rng(5), np.tile(np.arange(150), 4), np.zeros(2)
    names = [f"{number} {chunk}" for number in range(4) for chunk in range(4)]
    for _ in range(200):
        own, masks, deltas = rng.uniform(0.1, 0.3, 150), np.zeros((600, 16), dtype=np.int64), []
        for number in range(4):
            shown = rng.integers(0, 2, (150, 4))
            masks[150 * number : 150 * (number + 1), 4 * number : 4 * (number + 1)] = shown
            masked = rng.random(150) < own + shown @ (first + number / 3 * (last - first))
            deltas.append(masked.astype(float) - (rng.random(150) < own))
        found = drift.over(np.concatenate(deltas), masks, names, tasks, 4)
        for column, name in enumerate(("drift", "trend")):
            truth = (last - first)[found["chunk"].astype(int)]
            held[column] += ((found[f"{name}_low"] <= truth) & (found[f"{name}_high"] >= truth)).all()
    assert (held / 200 > 0.95 - 4 * (0.95 * 0.05 / 200) ** 0.5).all()
    assert (held / 200 < 0.995).all()


def test_a_trend_over_three_checkpoints_is_told(run: Callable[..., Path]) -> None:
    folders = [run("early", 1, helps), run("middle", 2, helps, checkpoint="step-5"),
               run("late", 3, nothing_helps, checkpoint="step-9")]  # fmt: skip
    found = pooling.pool([read_member(folder) for folder in folders], resamples=200)
    labels = found.drift.set_index("chunk")["trend_label"].to_dict()
    assert labels.pop("search-text") == "weaker"  # the line falls to above 0: the middle was as helpful as the first
    assert set(labels.values()) == {"undecided"}
    assert "Straight line through 3 checkpoints: undecided 3, weaker 1." in found.verdict()


@pytest.mark.parametrize(
    ("first_low", "low", "high", "last_low", "label"),
    [
        (0.01, -0.3, -0.1, -0.1, "internalized"),
        (0.01, -0.3, -0.1, 0.02, "weaker"),
        (-0.01, -0.3, -0.1, -0.1, "weaker"),
        (0.01, -0.3, 0.1, -0.1, "undecided"),
        (0.01, 0.1, 0.3, 0.2, "stronger"),
    ],
)
def test_drift_labels(first_low: float, low: float, high: float, last_low: float, label: str) -> None:
    assert drift_label(first_low, low, high, last_low) == label


def test_selected_chunks_regress_to_the_mean_in_the_other_gates(run: Callable[..., Path]) -> None:
    """Rewards are noise: what a gate selects sums to more there than anywhere else."""
    found = pooling.pool([read_member(run(f"seed{seed}", seed)) for seed in (1, 2, 3)], resamples=200)
    table = found.regression
    assert (table["sum_there"] > 0).all()
    assert (table["change"] < 0).all()
    own = found.by_gate()
    first = own[(own["gate"] == "seed1") & own["selected"]]
    elsewhere = own[(own["gate"] != "seed1") & own["chunk"].isin(first["chunk"])].groupby("chunk")["coefficient"].mean()
    assert table["change"].iloc[0] == pytest.approx(elsewhere.sum() - first["coefficient"].sum(), abs=1e-12)


def test_chunks_are_matched_by_their_texts(run: Callable[..., Path]) -> None:
    one = run("one", 1, texts=dict(zip(FACTORS, "abcd", strict=True)))
    two = run("two", 2, texts=dict(zip(FACTORS, "abcd", strict=True)))
    found = pooling.pool([read_member(one), read_member(two)], resamples=200)
    assert found.chunks == tuple("abcd")
    assert found.to_frame().set_index("chunk")["title"]["c"] == "核对规格"


def settings(folder: Path, **told: Any) -> None:
    (folder / "params.json").write_text(json.dumps(told), encoding="utf-8")


def test_gates_without_a_common_effect_are_refused_with_why(run: Callable[..., Path]) -> None:
    def simulated(rows: Rows) -> None:
        for row in rows:
            row["origin"] = "simulated"

    one, zh = run("one", 1), run("zh", 2)
    settings(one, language="en")
    settings(zh, language="zh")
    other = {name: "another" if name == "search" else f"{name}-text" for name in FACTORS}
    cases = [
        ([one], "1 gate is given"),
        ([one, one], "one and one hold the same pairs"),
        ([one, zh], "language differs: 'en' in one, 'zh' in zh"),
        ([one, run("text", 3, texts=other)], "search is another text in text"),
        ([one, run("simulated", 4, simulated)], "some gates are simulated"),
    ]
    for folders, words in cases:
        with pytest.raises(InputError, match=words):
            pooling.pool([read_member(folder) for folder in folders])


def test_a_frozen_gate_of_other_pairs_is_refused(run: Callable[..., Path]) -> None:
    one, two = run("one", 1), run("two", 2)
    (one / "observations.csv").write_bytes((two / "observations.csv").read_bytes())
    with pytest.raises(InputError, match="rests on other pairs"):
        read_member(one)


def test_rounds_are_members_and_looks_at_test_are_counted_once_a_run(run: Callable[..., Path]) -> None:
    first = run("first", 1)
    later = run("first/online/round_000", 2, checkpoint="step-1")
    looks.freeze(first, first / "gate_b.json", {}, {"sha256": "a"})
    looks.freeze(later, later / "gate_b.json", {}, {"sha256": "b"})
    members: list[Member] = [read_member(first), read_member(later)]
    assert [member.name for member in members] == ["first", "first round_000"]
    found = pooling.pool(members, resamples=200)
    assert found.test_looks == {"first": 2}
    assert "Looks at test tasks over these runs: 2 (first 2)." in found.verdict()


def test_the_command_writes_table_record_and_figure(
    run: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [str(run("种子", 1)), str(run("two", 2)), "--out", str(tmp_path / "out"), "--resamples", "200"]
    assert respond(pool._parser(), words) == 0
    assert "2 gates, 400 pairs of 200 tasks" in capsys.readouterr().out
    assert json.loads((tmp_path / "out" / "pool.json").read_text(encoding="utf-8"))["gates"][0]["name"] == "种子"
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"pool.json", "pool.csv", "drift.csv", "forest.svg"}
    assert respond(pool._parser(), words[:1]) == 2
    assert "1 gate is given" in capsys.readouterr().err
