"""The commands as a user types them: real processes, real files, exit codes, one message."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def shopskill(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "shopskill_lib", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def assert_refused(finished: subprocess.CompletedProcess[str], *words: str) -> None:
    assert finished.returncode == 2
    assert finished.stdout == ""
    assert finished.stderr.count("\n") == 1
    assert "Traceback" not in finished.stderr
    for word in ("Allowed:", "What to do:", *words):
        assert word in finished.stderr


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Simulated observations of 60 tasks, written by the command."""
    place = tmp_path_factory.mktemp("simulated")
    finished = shopskill("simulate-observations", "--seed", "3", "--tasks", "60", "--out", str(place))
    assert finished.returncode == 0, finished.stderr
    assert "simulated" in finished.stdout
    return place


def test_simulation_is_labelled_and_repeats_to_the_byte(folder: Path, tmp_path: Path) -> None:
    assert shopskill("simulate-observations", "--seed", "3", "--tasks", "60", "--out", str(tmp_path)).returncode == 0
    for name in ("observations.csv", "test_observations.csv", "planted.csv"):
        assert (tmp_path / name).read_bytes() == (folder / name).read_bytes()
        assert b"simulated" in (tmp_path / name).read_bytes()


def test_gate_prints_a_table_and_writes_the_record(folder: Path, tmp_path: Path) -> None:
    finished = shopskill("gate", str(folder / "observations.csv"), "--json", str(tmp_path / "gate.json"))
    assert finished.returncode == 0, finished.stderr
    assert finished.stderr == ""
    assert "simulated-01" in finished.stdout
    record = json.loads((tmp_path / "gate.json").read_text(encoding="utf-8"))
    wanted = {"intervention_id", "slot", "coefficient", "std_error", "ci_low", "ci_high", "rank", "status"}
    assert {*wanted, "selection_frequency"} <= set(record["factors"][0])
    assert record["n_pairs"] == 60
    assert set(record["outcomes"]["reward"]) == {"coefficients", "masked_mean", "bare_mean", "delta_mean"}


def test_json_to_stdout_is_json_alone(folder: Path) -> None:
    gate = shopskill("gate", str(folder / "observations.csv"), "--json", "-", "--budget", "8")
    assert json.loads(gate.stdout)["budget"] == 8
    comparison = json.loads(shopskill("compare", str(folder / "test_observations.csv"), "--json", "-").stdout)
    assert set(comparison["metrics"]["reward"]) >= {"bare", "equipped", "delta", "ci_low", "ci_high"}
    assert set(comparison["success"]) == {"gained", "lost", "p_value"}
    assert comparison["n_pairs"] == 60


def test_published_gate_by_command(shared: Path) -> None:
    published = shared / "data" / "published_gates"
    finished = shopskill(
        "gate", str(published / "round_000.csv"), "--json", "-",
        "--interventions", str(published / "round_000_expected.json"),
    )  # fmt: skip
    record = json.loads(finished.stdout)
    expected = json.loads((published / "round_000_expected.json").read_text(encoding="utf-8"))
    assert record["selected"] == expected["selected_intervention_ids"]
    for row, want in zip(record["factors"], expected["interventions"], strict=True):
        assert row["intervention_id"] == want["intervention_id"]
        assert row["coefficient"] == pytest.approx(want["coefficient"], abs=1e-9)
        assert (row["rank"], row["status"]) == (want["rank"], want["status"])


@pytest.mark.parametrize("budget", ["0", "17", "-1"])
def test_budget_out_of_range(folder: Path, budget: str) -> None:
    assert_refused(shopskill("gate", str(folder / "observations.csv"), "--budget", budget), "budget", "1 to", "16")


def test_files_that_are_no_pairs(folder: Path, tmp_path: Path) -> None:
    assert_refused(shopskill("gate", str(tmp_path)), "directory")
    assert_refused(shopskill("gate", str(tmp_path / "absent.csv")), "no such file")
    assert_refused(shopskill("compare", str(folder / "observations.csv")), "equipped_reward")
    assert_refused(shopskill("gate", str(folder / "test_observations.csv")), "bare_reward")
    assert_refused(shopskill("gate", str(folder / "observations.csv"), "--max-missing", "2"), "max_missing")
    assert_refused(shopskill("gate", str(folder / "observations.csv"), "--resamples", "1"), "resamples")
    assert_refused(shopskill("simulate-observations", "--seed", "0", "--tasks", "5", "--out", str(tmp_path)), "tasks")


def test_output_that_cannot_be_written_leaves_nothing(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way", encoding="utf-8")
    observations = str(folder / "observations.csv")
    assert_refused(shopskill("gate", observations, "--json", str(tmp_path / "file" / "gate.json")), "gate.json")
    assert_refused(shopskill("gate", observations, "--json", str(tmp_path)), str(tmp_path))
    assert_refused(
        shopskill("simulate-observations", "--seed", "0", "--out", str(tmp_path / "file")), "observations.csv"
    )
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file"]


def test_a_record_never_replaces_what_it_is_made_from(folder: Path, tmp_path: Path) -> None:
    pairs, named = folder / "observations.csv", tmp_path / "named.json"
    named.write_text("[]", encoding="utf-8")
    before = pairs.read_bytes()
    beside = f"{folder}/../{folder.name}/observations.csv"
    assert_refused(shopskill("gate", str(pairs), "--json", beside), "--json", "reads")
    assert_refused(shopskill("gate", str(pairs), "--interventions", str(named), "--json", str(named)), "--json")
    assert_refused(shopskill("compare", str(pairs), "--json", str(pairs)), "--json")
    assert_refused(shopskill("gate", str(pairs), "--json", ""), "directory")
    assert (pairs.read_bytes(), named.read_text(encoding="utf-8")) == (before, "[]")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full on this system")
def test_full_disk_is_a_message(folder: Path) -> None:
    full = os.open("/dev/full", os.O_WRONLY)
    finished = subprocess.run(
        [sys.executable, "-m", "shopskill_lib", "gate", str(folder / "observations.csv"), "--json", "-"],
        cwd=ROOT, stdout=full, stderr=subprocess.PIPE, text=True, check=False,
    )  # fmt: skip
    os.close(full)
    assert finished.returncode == 2
    assert "Traceback" not in finished.stderr
    assert "cannot be written" in finished.stderr
