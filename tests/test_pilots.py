"""What a pilot tells: against its raw lines, read once more by hand; what is not known is never 0."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import papermill
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shopskill_lib import parameters, pilots, planning
from shopskill_lib.errors import InputError
from shopskill_lib.pilots import Cost

ROOT = Path(__file__).parents[1]
NOTEBOOK = ROOT / "notebooks" / "more" / "00_plan.ipynb"
counts = st.integers(0, 10_000)
sizes = st.floats(0, 1e6)


def shopskill(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "shopskill_lib", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)


@pytest.fixture(scope="module")
def pilot(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The first 12 tasks of Gate A, with a price for prompt tokens alone."""
    place = tmp_path_factory.mktemp("pilot") / "run"
    given = ("draft=shipped", "policy_price_in=0.5")
    overrides = [word for setting in given for word in ("-p", setting)]
    finished = shopskill("run", "params/smoke.yaml", *overrides, "--limit", "12", "--out", str(place))
    assert finished.returncode == 0, finished.stderr
    return place


def lines(run_dir: Path, arm: str) -> dict[str, dict[str, Any]]:
    text = (run_dir / "episodes" / f"{arm}.jsonl").read_text(encoding="utf-8")
    return {episode["task_id"]: episode for episode in map(json.loads, text.splitlines())}


def test_a_pilot_is_what_its_lines_say(pilot: Path) -> None:
    bare, masked = lines(pilot, "bare"), lines(pilot, "masked")
    assert set(bare) == set(masked)
    assert len(bare) == 12
    success = [[arm[task]["reward_detail"]["r_success"] for task in bare] for arm in (bare, masked)]
    found = pilots.read(pilot)
    assert found.success == np.mean(success[0])
    assert found.between == pytest.approx(max(np.corrcoef(success[0], success[1])[0, 1], 0.0))
    assert found.told == "12 simulated tasks of a run"
    for arm, tokens in ((bare, found.cost.bare), (masked, found.cost.masked)):
        steps = [step["usage"] for episode in arm.values() for step in episode["steps"]]
        sums = [sum(usage[name] for usage in steps) for name in ("prompt_tokens", "completion_tokens")]
        assert tokens == pytest.approx(np.divide(sums, 12))
    assert found.cost.money(0, 12) == pytest.approx(0.5e-6 * 12 * found.cost.masked[0])  # type: ignore[index]


def test_failed_attempts_are_no_rewards_and_lonely_episodes_no_pairs(pilot: Path, tmp_path: Path) -> None:
    place = tmp_path / "run"
    shutil.copytree(pilot, place)
    path = place / "episodes" / "bare.jsonl"
    whole = path.read_text(encoding="utf-8").splitlines()
    failed = json.loads(whole[0]) | {"status": "error", "attempt": 2, "ending": None, "reward": None}
    failed |= {"reward_detail": None, "purchase": None, "error": {"kind": "server", "message": "502"}}
    other = json.loads(whole[0]) | {"identity": "another", "split": "test", "steps": []}
    other |= {"reward_detail": None, "reward": 0.123}
    path.write_text("\n".join([*whole, json.dumps(failed), json.dumps(other)]) + "\n", encoding="utf-8")
    assert pilots.read(place) == pilots.read(pilot)
    path.write_text("\n".join([*whole[1:-1], json.dumps(failed)]) + "\n", encoding="utf-8")
    assert pilots.read(place).told.startswith("10 ")
    path.write_text("\n".join(whole[3:]) + "\n", encoding="utf-8")
    with pytest.raises(InputError, match="9 validation tasks"):
        pilots.read(place)


def test_a_gate_without_tokens_has_no_cost(tmp_path: Path) -> None:
    assert shopskill("simulate-observations", "--seed", "3", "--tasks", "60", "--out", str(tmp_path)).returncode == 0
    found = pilots.read(tmp_path, prices=(1.0, 2.0))
    assert found.told == "60 simulated tasks of a run"
    assert found.cost == Cost(None, None, 1.0, 2.0)
    assert found.cost.tokens(1, 1) is None
    assert found.cost.money(1, 1) is None
    told = planning.recommend(planning.Question(found.success, found.between, 8), found.cost)
    assert "tokens unknown, money unknown" in told


def test_guesses_of_0_are_not_known() -> None:
    unknown = pilots.guess(0.4, 0.5, (0.0, 0.0), (0.0, 0.0), (0.0, 0.0))
    assert unknown.cost == Cost()
    assert "unknown tokens a bare rollout" in str(unknown)
    assert "(guessed)" in str(unknown)
    known = pilots.guess(0.4, 0.5, (100.0, 10.0), (200.0, 10.0), (2.0, 0.0))
    assert known.cost.tokens(3, 2) == 3 * 110 + 2 * 210
    assert known.cost.money(3, 2) == pytest.approx(2e-6 * (3 * 100 + 2 * 200))


@given(counts, counts, st.tuples(sizes, sizes), st.tuples(sizes, sizes))
def test_money_is_tokens_at_one_price(bare: int, masked: int, alone: pilots.Tokens, shown: pilots.Tokens) -> None:
    cost = Cost(alone, shown, 3.0, 3.0)
    money, tokens = cost.money(bare, masked), cost.tokens(bare, masked)
    assert money is not None
    assert tokens is not None
    assert money == pytest.approx(3e-6 * tokens, abs=1.6e-6)
    assert Cost(alone, None, 3.0, 3.0).tokens(bare, masked) is None
    assert Cost(alone, shown).money(bare, masked) is None


def test_tables_of_a_plan_carry_its_cost() -> None:
    question, cost = planning.Question(0.45, 0.5, 6), Cost((90.0, 10.0), (150.0, 50.0), 1.0, 10.0)
    row = planning.compare(question, (400,), cost).reset_index().set_index("design").loc["balanced, 4 a task"]
    assert row["tokens"] == f"{100 * 100 + 400 * 200:,}"
    assert row["money"] == f"{(100 * 90 + 400 * 150 + 10 * (100 * 10 + 400 * 50)) / 1e6:.2f}"
    split = planning.allocate(question, 800, (1, 2), cost)
    both = split[split["bare a task"] == 2].to_dict("records")[0]
    assert both["tokens"] == f"{both['tasks'] * (2 * 100 + both['masked a task'] * 200):,}"
    assert "tokens" not in planning.compare(question, (400,)).columns


def test_the_command_takes_a_pilot_and_refuses_a_folder_without_pairs(pilot: Path, tmp_path: Path) -> None:
    done = shopskill("plan", str(pilot), "--chunks", "6", "--between", "0.4", "--rollouts", "600")
    assert done.returncode == 0, done.stderr
    assert "(12 simulated tasks of a run, between guessed)" in done.stdout
    assert "money" in done.stdout
    assert "mask_design: balanced" in done.stdout
    refused = shopskill("plan", str(tmp_path))
    assert refused.returncode == 2
    assert "0 validation tasks with a bare and a masked episode" in refused.stderr
    assert str(tmp_path) in refused.stderr


def test_the_notebook_has_its_parameters_and_is_no_part_of_a_run() -> None:
    assert "00_plan" not in parameters.notebooks()
    asked = {"run_dir", "success", "between", "spread", "chunks", "rewrites", "effect", "helping", "budget", "error"}
    tokens = {f"{arm}_{kind}_tokens" for arm in ("bare", "masked") for kind in ("prompt", "completion")}
    assert set(parameters.declared(NOTEBOOK)) == asked | tokens | {"rollouts", "policy_price_in", "policy_price_out"}


@pytest.mark.parametrize("given", [{"run_dir": ""}, {"run_dir": "pilot"}])
def test_the_notebook_runs_with_guesses_and_with_a_pilot(given: dict[str, str], pilot: Path, tmp_path: Path) -> None:
    """From the folder that JupyterLab opens it in."""
    small = {"chunks": 4, "rewrites": 0, "helping": 1, "error": 0.06, "rollouts": 400}
    run_dir = str(pilot) if given["run_dir"] else ""
    out = tmp_path / "plan.ipynb"
    papermill.execute_notebook(
        str(NOTEBOOK), str(out), small | {"run_dir": run_dir}, progress_bar=False, cwd=NOTEBOOK.parent
    )
    cells = [cell for cell in json.loads(out.read_text(encoding="utf-8"))["cells"] if cell["cell_type"] == "code"]
    outputs = [output for cell in cells for output in cell["outputs"]]
    assert sum("image/png" in output.get("data", {}) for output in outputs) == 3
    verdict = "".join(outputs[-1]["text"])
    assert "For a standard error of 0.06" in verdict
    assert verdict.startswith("Planned, not measured (12 simulated" if run_dir else "Planned, not measured (guessed)")
    assert ("tokens unknown" in verdict) == (not run_dir)
    first = "".join(next(output["text"] for output in outputs if output["output_type"] == "stream"))
    assert ("12 simulated tasks" if run_dir else "guessed") in first
