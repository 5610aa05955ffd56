"""`shopskill noise` on run folders: bought once, resumed, never an effect; what figures and claim sheets make of it."""

import json
import shutil
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from matplotlib import pyplot as plt
from scripted import buyer, is_question, serve
from stopping import Gate
from test_cli import ROOT, assert_refused, shopskill

from shopskill_lib import claim, cli, floors, pairing, pilots, plots, protocol, repeats
from shopskill_lib.errors import InputError, MissingError
from shopskill_lib.files import write_json
from shopskill_lib.floors import Floor
from shopskill_lib.gates import compare_paired, fit_gate, read_comparison, read_observations
from shopskill_lib.lab import truth
from shopskill_lib.store import read_calls
from shopskill_lib.workers import MAX_ATTEMPTS

DRAFT = """# 建议

## 搜索 {#query}

把每个要求都写进搜索词。

## 核对价格 {#price}

选好规格后，再核对价格。

## 安静 {#calm}

按顺序安静地做事。
"""
VAL, TEST = 24, 10
NAMES = {"n_products": 1700, "n_val": VAL, "n_test": TEST, "max_steps": 12, "draft": "../draft.md"}


def begin(place: Path, **names: Any) -> Path:
    """A run folder with nothing but its parameters."""
    (place / "run").mkdir(parents=True)
    (place / "draft.md").write_text(DRAFT, encoding="utf-8")
    (place / "run" / "params.json").write_text(json.dumps(NAMES | names), encoding="utf-8")
    return place / "run"


def with_gates(run: Path) -> Path:
    """Both gates run on the folder, as the notebooks leave them."""
    bench = truth.open_run(run)
    gate = fit_gate(read_observations(protocol.gate_a(bench), run / "interventions.json"), resamples=100)
    write_json(
        run / "gate_a.json", gate.to_json() | {"looks": [{"key_sha256": "x", "at": "1", "reason": "first look"}]}
    )
    protocol.write_selected(bench, ("query", "price"))
    protocol.gate_b(bench)
    return run


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished Chinese run, simulated."""
    return with_gates(begin(tmp_path_factory.mktemp("finished"), language="zh"))


@pytest.fixture(scope="module")
def measured(finished: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """Its copy with a noise floor of two repeats, measured by the command, and what that printed."""
    run = copied(finished, tmp_path_factory.mktemp("measured"))
    done = shopskill("noise", str(run), "--repeats", "2", "--resamples", "300")
    assert done.returncode == 0, done.stderr
    assert f"noise: {2 * (VAL + TEST)} episodes to run, {VAL + TEST} kept" in done.stderr
    return run, done.stdout


def copied(run: Path, place: Path) -> Path:
    shutil.copytree(run.parent, place, dirs_exist_ok=True)
    return place / run.name


def lines(run: Path, arm: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "episodes" / f"{arm}.jsonl").read_bytes().splitlines()]


def floor_of(run: Path, split: floors.Side) -> Floor:
    noise = floors.read(run)
    floor = None if noise is None else noise.of(split)
    assert floor is not None
    return floor


def test_the_record_holds_what_the_episodes_say(measured: tuple[Path, str]) -> None:
    run, _ = measured
    floor = floor_of(run, "val")
    assert (floor.simulated, floor.tasks, floor.repeats, floor.missing, floor.notes) == (True, VAL, 2, (), ())
    rewards: dict[str, list[float]] = {}
    for episode in [*lines(run, "bare"), *lines(run, "repeat")]:
        if episode["split"] == "val":
            rewards.setdefault(episode["task_id"], []).append(episode["reward"])
    assert Counter(map(len, rewards.values())) == {3: VAL} and floor.episodes == 3 * VAL
    assert floor.outcomes["reward"].mean == pytest.approx(np.mean(list(rewards.values())))
    assert floor.outcomes["reward"].within.value == pytest.approx(
        np.mean(np.var(list(rewards.values()), axis=1, ddof=1))
    )
    assert set(floor.outcomes) == set(pairing.SCORES)
    assert floor.coefficients is not None and floor.coefficients.rows == VAL
    assert set(floor.coefficients.half_widths) == {"query", "price", "calm"}
    assert 0 < floor.coefficients.single < floor.coefficients.largest
    assert floor_of(run, "test").coefficients is None


def test_repeats_are_shown_nothing_and_drawn_anew(measured: tuple[Path, str]) -> None:
    run, _ = measured
    again = lines(run, "repeat")
    assert {episode["treatment_sha256"] for episode in again} == {protocol.BARE.sha256}
    assert Counter((episode["split"], episode["sample"]) for episode in again) == {
        ("val", 1): VAL, ("val", 2): VAL, ("test", 1): TEST, ("test", 2): TEST,
    }  # fmt: skip
    seeds = [episode["seeds"]["episode_seed"] for episode in (*again, *lines(run, "bare"))]
    assert len(set(seeds)) == len(seeds)
    assert {call.stage for call in read_calls(run) if call.arm == "repeat"} == {"noise"}


def test_table_sentences_and_csv_say_simulated(measured: tuple[Path, str]) -> None:
    run, printed = measured
    assert printed.startswith("simulated noise floor\n")
    assert f"what two identical arms of {VAL} val tasks show (95 %, simulated, 2 repeats of the bare runs)" in printed
    assert "and the largest of 3 stays below" in printed and "shopskill plan --success" in printed
    table = pd.read_csv(run / "noise.csv")
    assert table["simulated"].all() and set(table["split"]) == {"val", "test"}
    (row,) = table[
        (table["outcome"] == "reward") & (table["figure"] == "half_width") & (table["split"] == "test")
    ].to_dict("records")
    seen = floor_of(run, "test").outcomes["reward"].half_width
    assert (row["value"], row["low"], row["high"]) == pytest.approx((seen.value, seen.low, seen.high))
    assert {"coefficient, any one", "coefficient query"} <= set(table["figure"])


def test_a_plan_takes_success_and_share_from_the_repeats(measured: tuple[Path, str], tmp_path: Path) -> None:
    """Those of the validation tasks, against the raw lines; without a masked rollout its cost is not known."""
    run, _ = measured
    found = pilots.read(run)
    rewards: dict[str, list[float]] = {}
    for episode in [*lines(run, "bare"), *lines(run, "repeat")]:
        if episode["split"] == "val":
            rewards.setdefault(episode["task_id"], []).append(episode["reward_detail"]["r_success"])
    runs = np.array(list(rewards.values()))
    within, between = runs.var(axis=1, ddof=1).mean(), runs.mean(axis=1).var(ddof=1)
    share = max(between - within / 3, 0) / (within + max(between - within / 3, 0))
    assert found.success == pytest.approx(runs.mean()) and found.between == pytest.approx(share)
    assert found.told.startswith(f"{VAL} simulated val tasks, 2 repeats; share ")
    assert found.cost.bare is not None and found.cost.masked is not None
    alone = tmp_path / "run"
    (alone / "episodes").mkdir(parents=True)
    shutil.copy(run / "noise.json", alone)
    shutil.copy(run / "episodes" / "bare.jsonl", alone / "episodes")
    bought = pilots.read(alone)
    assert (bought.success, bought.between, bought.told) == (found.success, found.between, found.told)
    assert bought.cost.bare == pytest.approx(found.cost.bare) and bought.cost.masked is None
    record = json.loads((alone / "noise.json").read_text(encoding="utf-8"))
    for floor in record["floors"]:
        floor["identical"] = "repeats are identical"
    (alone / "noise.json").write_text(json.dumps(record), encoding="utf-8")
    with pytest.raises(InputError, match="0 validation tasks with a bare and a masked episode, and no noise floor"):
        pilots.read(alone)


def test_nothing_is_bought_twice_and_more_repeats_buy_only_what_is_missing(finished: Path, tmp_path: Path) -> None:
    run = copied(finished, tmp_path)
    first = repeats.measure(repeats.open_run(run), ["val"], 1, resamples=100)
    calls, record = (run / "calls.jsonl").read_bytes(), (run / "noise.json").read_bytes()
    again = repeats.measure(repeats.open_run(run), ["val"], 1, resamples=100)
    assert ((run / "calls.jsonl").read_bytes(), (run / "noise.json").read_bytes()) == (calls, record)
    assert again == first and first.of("test") is None
    more = repeats.measure(repeats.open_run(run), ["val"], 2, resamples=100).of("val")
    assert more is not None and more.repeats == 2
    assert Counter(episode["sample"] for episode in lines(run, "repeat")) == {1: VAL, 2: VAL}
    both = repeats.measure(repeats.open_run(run), ["test"], 1, resamples=100)
    assert [floor.split for floor in both.floors] == ["val", "test"] and both.of("val") == more


def test_the_gate_stays_as_it_was(finished: Path, measured: tuple[Path, str]) -> None:
    run, _ = measured
    names = ("observations.csv", "test_observations.csv", "gate_a.json", "masks.csv", "skill.md")
    before = [(finished / name).read_bytes() for name in names]
    assert [(run / name).read_bytes() for name in names] == before
    protocol.gate_a(truth.open_run(run))
    protocol.gate_b(truth.open_run(run))
    assert [(run / name).read_bytes() for name in names] == before


def spoil(run: Path, keys: set[tuple[str, int]]) -> None:
    """Replace these repeats by attempts that all failed."""
    kept = []
    for line in lines(run, "repeat"):
        empty = {"status": "error", "ending": None, "reward": None, "reward_detail": None, "purchase": None}
        failed = line | empty | {"error": {"kind": "InfrastructureError", "message": "down"}}
        gone = (line["task_id"], line["sample"]) in keys
        kept += [failed | {"attempt": n} for n in range(1, MAX_ATTEMPTS + 1)] if gone else [line]
    (run / "episodes" / "repeat.jsonl").write_text("".join(json.dumps(line) + "\n" for line in kept), encoding="utf-8")


def test_missing_repeats_are_missing_and_counted_and_never_0(measured: tuple[Path, str], tmp_path: Path) -> None:
    run = copied(measured[0], tmp_path)
    ids = sorted({line["task_id"] for line in lines(run, "repeat") if line["split"] == "val"})
    spoil(run, {(ids[0], 1), (ids[0], 2), (ids[1], 2)})
    bought = [call for call in read_calls(run) if call.arm == "repeat"]
    floor = repeats.measure(repeats.open_run(run), ["val"], 2, resamples=100).of("val")
    assert floor is not None and [call for call in read_calls(run) if call.arm == "repeat"] == bought
    assert set(floor.missing) == {f"{ids[0]}/1", f"{ids[0]}/2", f"{ids[1]}/2"}
    assert floor.episodes == 3 * VAL - 3 and floor.outcomes["reward"].tasks == VAL - 1
    runs = [
        line
        for line in (*lines(run, "bare"), *lines(run, "repeat"))
        if line["split"] == "val" and line["reward"] is not None
    ]
    means = pd.DataFrame(runs).groupby("task_id")["reward"].agg(["mean", "size"])
    assert floor.outcomes["reward"].mean == pytest.approx(means[means["size"] > 1]["mean"].mean())
    assert floor.coefficients is not None and (floor.coefficients.tasks, floor.coefficients.rows) == (VAL - 1, VAL - 1)
    assert f"3 of {3 * VAL} episodes are missing and left out" in floor.notes
    assert f"1 of {VAL} rows are left out of the coefficients: their tasks lack runs" in floor.notes
    spoil(run, {(task, sample) for task in ids for sample in (1, 2)})
    with pytest.raises(MissingError, match=f"{2 * VAL} episodes of the val tasks are missing"):
        repeats.measure(repeats.open_run(run), ["val"], 2, resamples=100)


def test_coefficients_need_a_run_for_every_row_of_a_task(finished: Path, tmp_path: Path) -> None:
    run = copied(finished, tmp_path)
    pairs = pd.read_csv(run / "observations.csv", dtype=str)
    pd.concat([pairs, pairs.assign(sample="1")]).to_csv(run / "observations.csv", index=False)
    floor = repeats.measure(repeats.open_run(run), ["val"], 1, resamples=100).of("val")
    assert floor is not None and floor.coefficients is None
    assert floor.notes == ("a task has 2 masked rollouts: its coefficients need --repeats 2 at least",)
    floor = repeats.measure(repeats.open_run(run), ["val"], 2, resamples=100).of("val")
    assert floor is not None and floor.coefficients is not None and floor.coefficients.rows == 2 * VAL


def test_without_a_gate_arms_are_compared_and_coefficients_are_not(tmp_path: Path) -> None:
    run = begin(tmp_path, n_val=8)
    floor = repeats.measure(repeats.open_run(run), ["val"], 1, resamples=100).of("val")
    assert floor is not None and floor.coefficients is None
    assert floor.notes == ("Gate A has not been run here, so nothing is said of its coefficients",)
    assert len(lines(run, "bare")) == len(lines(run, "repeat")) == 8


def drawn(run: Path) -> dict[str, list[Any]]:
    """Bands of the two figures, by their label."""
    pairs = read_observations(run / "observations.csv", run / "interventions.json")
    comparison = compare_paired(*read_comparison(run / "test_observations.csv"), resamples=100)
    noise = floors.read(run)
    figures = {
        "gate": plots.coefficients(fit_gate(pairs, resamples=100), None, floors.of_gate(noise, pairs.sha256)),
        "test": plots.differences(comparison, floors.of_test(noise, comparison)),
    }
    bands = {name: list(figure.axes[0].containers) for name, figure in figures.items()}
    found = {
        name: [bar for group in groups if "noise floor" in str(group.get_label()) for bar in group]
        for name, groups in bands.items()
    }
    for figure in figures.values():
        figure.canvas.draw()
        plt.close(figure)
    return found


def test_figures_show_the_floor_as_a_band_and_nothing_without_one(finished: Path, measured: tuple[Path, str]) -> None:
    run, _ = measured
    assert drawn(finished) == {"gate": [], "test": []}
    bands, floor = drawn(run), floor_of(run, "val").coefficients
    assert floor is not None
    sizes = sorted(bar.get_width() / 2 for bar in bands["gate"])
    assert sizes == pytest.approx(sorted(floor.half_widths.values()))
    assert all(bar.get_x() == pytest.approx(-bar.get_width() / 2) for bar in bands["gate"])
    half = floor_of(run, "test").outcomes["reward"].half_width.value
    assert bands["test"][0].get_width() / 2 == pytest.approx(half) and len(bands["test"]) == len(pairing.SCORES)


def told(run: Path) -> tuple[str, str]:
    """The two claim sheets, as text."""
    gate = fit_gate(read_observations(run / "observations.csv", run / "interventions.json"), resamples=100)
    comparison = compare_paired(*read_comparison(run / "test_observations.csv"), resamples=100)
    about = claim.known(run / "gate_a.json")
    pages = claim.of_gate(gate, about), claim.of_comparison(comparison, about)
    one, other = ("\n".join(line for section in page.sections for line in section.lines) for page in pages)
    return one, other


def test_claim_sheets_quote_the_floor_or_the_command_that_measures_it(
    finished: Path, measured: tuple[Path, str]
) -> None:
    for page, split in zip(told(finished), ("val", "test"), strict=True):
        assert "No noise floor has been measured" in page and f"shopskill noise RUN --split {split}" in page
    run, _ = measured
    gate, test = told(run)
    assert "No noise floor" not in gate + test
    found = floor_of(run, "val").coefficients
    assert found is not None and f"a coefficient below {found.single:.3f} is what two identical arms show" in gate
    half = floor_of(run, "test").outcomes["reward"].half_width.value
    assert f"below {half:.3f} is what two identical arms of {TEST} test tasks show" in test


def test_a_floor_of_other_pairs_tasks_or_weights_is_not_shown(measured: tuple[Path, str], tmp_path: Path) -> None:
    run = copied(measured[0], tmp_path)
    pairs = pd.read_csv(run / "observations.csv", dtype=str)
    pairs[:-1].to_csv(run / "observations.csv", index=False)
    test = pd.read_csv(run / "test_observations.csv", dtype=str)
    for change in (test[:-1], test.assign(checkpoint="another")):
        change.to_csv(run / "test_observations.csv", index=False)
        assert drawn(run) == {"gate": [], "test": []}
        assert all("No noise floor has been measured" in page for page in told(run))


def test_a_floor_of_another_checkpoint_is_dropped_when_one_is_measured(
    measured: tuple[Path, str], tmp_path: Path
) -> None:
    run = copied(measured[0], tmp_path)
    other = floor_of(run, "val").model_copy(update={"checkpoint": "another"})
    assert floors.write(run, other).floors == (other,)


def command(monkeypatch: pytest.MonkeyPatch, run: Path, *options: str) -> int:
    """Run the command in this process and return its exit code."""
    monkeypatch.setattr(sys, "argv", ["shopskill", "noise", str(run), *options])
    return cli.main()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--repeats", "0"], "repeats is 0"),
        (["--split", "train"], "train"),
        (["--resamples", "5"], "resamples is 5"),
        (["--budget-tokens", "0"], "the budget is 0"),
        (["--budget-usd", "1"], "nothing is known of what policy cost"),
    ],
)
def test_options_out_of_range_are_refused(
    finished: Path, options: list[str], words: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command(monkeypatch, finished, *options) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1 and words in err and "What to do:" in err


def test_folders_that_are_no_run_and_damaged_records_are_refused(finished: Path, tmp_path: Path) -> None:
    assert_refused(shopskill("noise", str(tmp_path)), "params.json")
    run = copied(finished, tmp_path / "copy")
    (run / "noise.json").write_text('{"floors": [{}]}', encoding="utf-8")
    with pytest.raises(InputError, match="the noise floor cannot be used"):
        claim.known(run / "gate_a.json")
    pairs = pd.read_csv(run / "observations.csv", dtype=str)
    pairs.assign(task_id=[f"x{number}" for number in range(len(pairs))]).to_csv(run / "observations.csv", index=False)
    with pytest.raises(InputError, match=f"{VAL} tasks of these pairs are no val tasks of this run"):
        repeats.measure(repeats.open_run(run), ["val"], 1)
    (run / "params.json").write_text(json.dumps(NAMES | {"observations": "theirs.csv"}), encoding="utf-8")
    with pytest.raises(InputError, match="made elsewhere"):
        repeats.open_run(run)


def start(run: Path) -> "subprocess.Popen[bytes]":
    words = [sys.executable, "-m", "shopskill_lib", "noise", str(run), "--repeats", "2", "--split", "val"]
    return subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def served(url: str) -> dict[str, Any]:
    return {"policy_url": url, "policy_model": "m", "policy_checkpoint": "c", "policy_concurrency": 4}


@pytest.mark.parametrize(("number", "code"), [(signal.SIGKILL, -signal.SIGKILL), (signal.SIGTERM, 75)])
def test_a_killed_command_goes_on_and_identical_repeats_are_no_floor(
    tmp_path: Path, number: signal.Signals, code: int
) -> None:
    """The scripted shopper ignores seeds, so all its repeats are alike."""
    gate = Gate(60, buyer)
    with serve(gate) as server:
        run = begin(tmp_path, **served(server.url))
        with start(run) as process:
            assert gate.reached.wait(60)
            process.send_signal(number)
            if number == signal.SIGKILL:
                process.wait(60)
            gate.opened.set()
            _, err = process.communicate(timeout=60)
        assert process.returncode == code, err
        assert not (run / "noise.json").exists()
        before = lines(run, "bare") + (lines(run, "repeat") if (run / "episodes" / "repeat.jsonl").exists() else [])
        assert 0 < len(before) < 3 * VAL
        server.requests.clear()
        with start(run) as process:
            out, err = process.communicate(timeout=120)
        assert process.returncode == 0, err
        after = [*lines(run, "bare"), *lines(run, "repeat")]
        asked = sum(not is_question(request) for request in server.requests)
    known = {episode["identity"] for episode in before}
    assert [episode for episode in after if episode["identity"] in known] == before
    assert asked == sum(len(episode["steps"]) for episode in after if episode["identity"] not in known)
    assert Counter((episode["arm"], episode["sample"]) for episode in after) == {
        ("bare", 0): VAL, ("repeat", 1): VAL, ("repeat", 2): VAL,
    }  # fmt: skip
    floor = floor_of(run, "val")
    assert floor.outcomes["reward"].half_width.value == 0 and not floor.simulated
    assert b"note: val: replicates are not independent" in out and b"this floor is no floor" in out
    assert b"No noise floor of the val tasks is known" in out and b"is what two identical arms" not in out


def test_no_band_is_drawn_of_repeats_that_say_nothing_new(measured: tuple[Path, str], tmp_path: Path) -> None:
    run = copied(measured[0], tmp_path)
    for split in ("val", "test"):
        floors.write(run, floor_of(run, split).model_copy(update={"identical": "replicates are not independent"}))
    assert drawn(run) == {"gate": [], "test": []}
    assert all("replicates are not independent" in page for page in told(run))


def test_a_budget_stops_the_repeats_and_a_larger_one_goes_on(
    finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = copied(finished, tmp_path)
    options = ("--repeats", "1", "--split", "val", "--budget-tokens")
    assert command(monkeypatch, run, *options, "1000") == 75
    assert "the budget of 1,000 tokens is reached" in capsys.readouterr().err
    assert not (run / "noise.json").exists() and not (run / "episodes" / "repeat.jsonl").exists()
    assert command(monkeypatch, run, *options, "1000000000") == 0
    assert len(lines(run, "repeat")) == VAL
