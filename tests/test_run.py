"""`shopskill run`: checked parameters, the run folder, the same notebooks by plain papermill."""

import hashlib
import json
import subprocess
import sys
from pathlib import Path

import papermill
import pytest

from shopskill_lib import folders, run
from shopskill_lib.errors import InputError, OutputError, ParameterError
from shopskill_lib.lab import planted

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def simulated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run folder on 80 simulated tasks a split, filled by the command."""
    folder = tmp_path_factory.mktemp("run")
    planted.simulate(0, 80, folder)
    finished = shopskill("run", "params/smoke.yaml", "--out", str(folder))
    assert finished.returncode == 0, finished.stderr
    return folder


def shopskill(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "shopskill_lib.cli", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def test_run_fills_its_folder(simulated: Path) -> None:
    names = {path.name for path in simulated.iterdir()}
    assert {"03_gate_a.ipynb", "04_gate_b.ipynb", "gate_a.json", "gate_b.json", "report.html"} <= names
    assert {"params.json", "provenance.json", "contributions.csv", "selection.csv", "figures"} <= names
    gate = json.loads((simulated / "gate_a.json").read_text(encoding="utf-8"))
    assert gate["simulated"] is True
    assert gate["verdict"].startswith("simulated")
    assert len(gate["factors"]) == 16
    assert len(gate["looks"]) == 1
    assert json.loads((simulated / "params.json").read_text(encoding="utf-8"))["budget"] == 8


def test_report_is_self_contained_and_says_simulated(simulated: Path) -> None:
    page = (simulated / "report.html").read_text(encoding="utf-8")
    assert "simulated" in page
    assert page.count("data:image/png;base64,") == 4
    for outside in ("<script", 'src="http', 'href="http', "@import", "url("):
        assert outside not in page


def test_running_again_changes_no_data_file(simulated: Path) -> None:
    def hashes() -> dict[str, str]:
        return {
            str(path.relative_to(simulated)): hashlib.sha256(path.read_bytes()).hexdigest()
            for path in sorted(simulated.rglob("*"))
            if path.suffix in (".csv", ".json", ".svg") and path.name != "provenance.json"
        }

    before = hashes()
    finished = shopskill("run", "params/smoke.yaml", "--out", str(simulated))
    assert finished.returncode == 0, finished.stderr
    assert hashes() == before
    assert len(before) == 12


def test_another_budget_on_the_same_tasks_needs_a_reason(simulated: Path) -> None:
    again = ("run", "params/smoke.yaml", "--only", "03_gate_a", "--out", str(simulated), "-p", "budget=9")
    refused = shopskill(*again)
    assert refused.returncode == 2
    assert "new_look" in refused.stderr
    assert "M23" in refused.stderr
    granted = shopskill(*again, "-p", "new_look=a larger budget was asked for")
    assert granted.returncode == 0, granted.stderr
    looks = json.loads((simulated / "gate_a.json").read_text(encoding="utf-8"))["looks"]
    assert [look["reason"] for look in looks] == ["first look", "a larger budget was asked for"]
    assert shopskill("run", "params/smoke.yaml", "--out", str(simulated)).returncode == 0


def test_plain_papermill_runs_a_notebook_on_a_file(simulated: Path, tmp_path: Path) -> None:
    papermill.execute_notebook(
        str(ROOT / "notebooks" / "03_gate_a.ipynb"),
        str(tmp_path / "by_hand.ipynb"),
        parameters={"observations": str(simulated / "observations.csv"), "run_dir": str(tmp_path), "resamples": 200},
        progress_bar=False,
    )
    assert json.loads((tmp_path / "gate_a.json").read_text(encoding="utf-8"))["n_pairs"] == 80


def test_new_analysis_seed_changes_frequencies_but_no_decision(simulated: Path, tmp_path: Path) -> None:
    finished = shopskill(
        "run", "params/smoke.yaml", "--only", "03_gate_a", "--out", str(tmp_path),
        "-p", f"observations={simulated / 'observations.csv'}", "-p", "analysis_seed=7",
    )  # fmt: skip
    assert finished.returncode == 0, finished.stderr
    ours, theirs = (json.loads((place / "gate_a.json").read_text(encoding="utf-8")) for place in (tmp_path, simulated))
    assert ours["selected"] == theirs["selected"]
    assert [row["selection_frequency"] for row in ours["factors"]] != [
        row["selection_frequency"] for row in theirs["factors"]
    ]


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("seeed=9", "no parameter 'seeed'"),
        ("analysis_sed=9", "did you mean 'analysis_seed'"),
        ("resamples=1e-3", "resamples is '1e-3', a str"),
        ("resamples=0.5", "allowed: a int".replace("allowed", "Allowed")),
        ("budget=true", "budget is True, a bool"),
        ("observations=3", "observations is 3, a int"),
        ("max_missing=none", "max_missing is 'none', a str"),
        ("resamples", "'resamples' is no parameter"),
    ],
)
def test_wrong_parameter_is_refused_before_anything_runs(override: str, message: str, tmp_path: Path) -> None:
    finished = shopskill("run", "params/smoke.yaml", "--out", str(tmp_path / "never"), "-p", override)
    assert finished.returncode == 2
    assert message in finished.stderr
    assert "Traceback" not in finished.stderr
    assert not (tmp_path / "never").exists()


@pytest.mark.parametrize(
    ("content", "error", "message"),
    [
        ("n_val: 1e-3\n", ParameterError, "no parameter 'n_val'"),
        ("resamples: 1e-3\n", ParameterError, "write 0.001"),
        ("budget: [1, 2]\n", ParameterError, "flat list"),
        ("- budget\n", ParameterError, "flat list"),
        ("budget: null\n", ParameterError, "flat list"),
        ("预算: 3\n", ParameterError, "no parameter '预算'"),
        ("budget: [1\n", InputError, "not YAML"),
        ("", InputError, "empty"),
    ],
)
def test_wrong_parameter_file_is_refused(content: str, error: type[Exception], message: str, tmp_path: Path) -> None:
    parameters = tmp_path / "p.yaml"
    parameters.write_text(content, encoding="utf-8")
    with pytest.raises(error, match=message):
        run.execute(parameters, out=tmp_path / "never")
    assert not (tmp_path / "never").exists()


def test_observations_for_two_notebooks_are_refused(simulated: Path, tmp_path: Path) -> None:
    with pytest.raises(ParameterError, match="--only 03_gate_a"):
        run.execute(
            ROOT / "params" / "smoke.yaml",
            overrides=[f"observations={simulated / 'observations.csv'}"],
            out=tmp_path,
        )


def test_unknown_notebook_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ParameterError, match="03_gate_a, 04_gate_b"):
        run.execute(ROOT / "params" / "smoke.yaml", only=["03_gate_c"], out=tmp_path)


def test_error_in_a_notebook_is_one_message_and_keeps_what_is_finished(simulated: Path, tmp_path: Path) -> None:
    (tmp_path / "observations.csv").write_bytes((simulated / "observations.csv").read_bytes())
    finished = shopskill("run", "params/smoke.yaml", "--out", str(tmp_path))
    assert finished.returncode == 2
    assert "04_gate_b" in finished.stderr
    assert "no such file" in finished.stderr
    assert "Traceback" not in finished.stderr
    assert (tmp_path / "gate_a.json").exists()


def test_run_folder_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way", encoding="utf-8")
    with pytest.raises(OutputError, match="run folder"):
        folders.folder(str(tmp_path / "file" / "run"))


def test_outside_the_project_there_is_no_default_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ParameterError, match="no project"):
        folders.folder("")
