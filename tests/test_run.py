"""`shopskill run`: checked parameters, the run folder, seeds, a pilot, the same notebooks by plain papermill."""

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import papermill
import pytest

from shopskill_lib import folders, parameters, store, workbench
from shopskill_lib.errors import InputError, OutputError, ParameterError
from shopskill_lib.settings import Settings

ROOT = Path(__file__).parents[1]
SMOKE = ROOT / "params" / "smoke.yaml"
SHIPPED = ("-p", "draft=shipped")


def shopskill(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "shopskill_lib", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def record(path: Path) -> dict[str, object]:
    found: dict[str, object] = json.loads(path.read_text(encoding="utf-8"))
    return found


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run folder of smoke size, filled by the command."""
    folder = tmp_path_factory.mktemp("runs") / "run"
    done = shopskill("run", "params/smoke.yaml", "--out", str(folder))
    assert done.returncode == 0, done.stderr
    assert "simulated" in done.stdout
    assert "looks at the validation tasks so far: 1" in done.stdout
    assert "episodes to run" in done.stderr
    assert "\nsimulated 03_gate_a: policy episodes: forecast 120, was 120 (+0 %); calls: forecast " in done.stderr
    assert "\nsimulated 02_compile: author: no forecast, was " in done.stderr
    return folder


def test_run_fills_its_folder(finished: Path) -> None:
    names = {path.name for path in finished.iterdir()}
    assert {f"{name}.ipynb" for name in parameters.notebooks()} <= names
    assert {"params.json", "provenance.json", "calls.jsonl", "episodes", "figures", "report.html"} <= names
    assert {"cards.jsonl", "audit.jsonl", "clusters.json", "draft.json", "draft.md", "ledger.jsonl"} <= names
    assert {"gate_a.json", "contributions.csv", "selection.csv", "skill.md", "masks.csv", "observations.csv"} <= names
    assert {"gate_b.json", "test_observations.csv"} <= names
    assert {path.stem for path in (finished / "episodes").iterdir()} == {"train", "bare", "masked", "equipped"}
    assert [path.name for path in (finished / "online").glob("[!.]*")] == ["round_000"]
    assert {"claim.md", "claim.html", "gate_a.json"} <= {
        path.name for path in (finished / "online/round_000").iterdir()
    }
    gate = json.loads((finished / "gate_a.json").read_text(encoding="utf-8"))
    assert gate["simulated"] is True
    assert gate["verdict"].startswith("simulated")
    draft = json.loads((finished / "draft.json").read_text(encoding="utf-8"))
    assert [factor["intervention_id"] for factor in gate["factors"]] == [one["version_id"] for one in draft["versions"]]
    assert len(gate["looks"]) == 1
    assert record(finished / "params.json")["n_train"] == 60


def test_report_is_self_contained_and_says_simulated(finished: Path) -> None:
    page = (finished / "report.html").read_text(encoding="utf-8")
    assert "simulated" in page
    assert page.count("data:image/png;base64,") == 9
    for outside in ("<script", 'src="http', 'href="http', "@import", "url("):
        assert outside not in page


def hashes(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.suffix in (".csv", ".json", ".jsonl", ".svg", ".md") and path.name != "provenance.json"
    }


def test_running_again_changes_no_data_file_and_asks_no_model(finished: Path) -> None:
    before = hashes(finished)
    again = shopskill("run", "params/smoke.yaml", "--out", str(finished))
    assert again.returncode == 0, again.stderr
    assert "0 episodes to run" in again.stderr
    assert hashes(finished) == before


def test_a_refused_second_look_changes_nothing_but_leaves_the_stopped_notebook(finished: Path) -> None:
    before = hashes(finished)
    again = ("run", "params/smoke.yaml", "--only", "03_gate_a", "--out", str(finished), "-p", "budget=3")
    refused = shopskill(*again)
    assert refused.returncode == 2
    assert refused.stderr.count("\n") == 2
    assert "new_look" in refused.stderr
    assert hashes(finished) == before
    assert (finished / "03_gate_a.stopped.ipynb").exists()
    granted = shopskill(*again, "-p", "new_look=a smaller budget was asked for")
    assert granted.returncode == 0, granted.stderr
    assert "looks at the validation tasks so far: 3; last reason: a smaller budget was asked for" in granted.stdout
    assert shopskill(*again[:-2]).returncode == 0


def test_plain_papermill_runs_a_notebook_on_a_file(finished: Path, tmp_path: Path) -> None:
    papermill.execute_notebook(
        str(ROOT / "notebooks" / "03_gate_a.ipynb"),
        str(tmp_path / "by_hand.ipynb"),
        parameters={"observations": str(finished / "observations.csv"), "run_dir": str(tmp_path)},
        progress_bar=False,
    )
    gate = record(tmp_path / "gate_a.json")
    assert gate["n_pairs"] == 60
    assert gate["selected"] == record(finished / "gate_a.json")["selected"]
    assert not (tmp_path / "episodes").exists()


def test_two_seeds_buy_cold_start_and_bare_runs_once(finished: Path, tmp_path: Path) -> None:
    shutil.copytree(finished, tmp_path / "seed_0", ignore=shutil.ignore_patterns("online"))
    without_rounds = [word for name in list(parameters.notebooks())[:-1] for word in ("--only", name)]
    done = shopskill("run", "params/smoke.yaml", "--out", str(tmp_path), "--seeds", "0", "1", *without_rounds)
    assert done.returncode == 0, done.stderr
    assert "chunk-" in done.stdout
    assert "seed_0" not in (tmp_path / "seeds.csv").read_text(encoding="utf-8")
    places = [tmp_path / f"seed_{seed}" for seed in (0, 1)]
    for arm, episodes in (("bare", 90), ("train", 60)):
        first, second = ((place / "episodes" / f"{arm}.jsonl").read_text(encoding="utf-8") for place in places)
        assert "reused_from" not in first
        assert all("reused_from" in line for line in second.splitlines())
        assert len(second.splitlines()) == episodes
    assert (places[0] / "draft.json").read_bytes() == (places[1] / "draft.json").read_bytes()
    assert {call.role for call in store.read_calls(places[1])} == {"policy"}
    assert [record(place / "params.json")["mask_seed"] for place in places] == [0, 1]
    assert (places[0] / "masks.csv").read_bytes() != (places[1] / "masks.csv").read_bytes()


def test_a_pilot_is_the_start_of_the_same_run(tmp_path: Path) -> None:
    pilot = shopskill("run", "params/smoke.yaml", "--out", str(tmp_path), "--limit", "5")
    assert pilot.returncode == 0, pilot.stderr
    assert pilot.stdout.count("5 scored of 5") == 2
    assert "training in full: 55 episodes to run, 5 kept" in pilot.stdout
    assert "Gate A, bare half (the masked half needs a draft) in full: 55 episodes to run, 5 kept" in pilot.stdout
    assert not (tmp_path / "cards.jsonl").exists()


def test_a_pilot_refuses_what_the_run_would_refuse(tmp_path: Path) -> None:
    seed = tmp_path / "seed.md"
    seed.write_text("## Price {#price}\n\nCheck the price.\n", encoding="utf-8")
    given = ("-p", f"seed_skill={seed}", "-p", "cap=1")
    pilot = shopskill("run", "params/smoke.yaml", "--out", str(tmp_path / "run"), "--limit", "5", *given)
    assert pilot.returncode == 2
    assert "a cap of 1 leaves no room beside 1 chunks" in pilot.stderr
    assert not (tmp_path / "run" / "episodes").exists()


def test_a_pilot_of_a_given_draft_takes_no_look(tmp_path: Path) -> None:
    pilot = shopskill("run", "params/smoke.yaml", "--out", str(tmp_path), "--limit", "5", *SHIPPED)
    assert pilot.returncode == 0, pilot.stderr
    assert "110 episodes to run, 10 kept" in pilot.stdout
    assert "training" not in pilot.stdout
    assert not (tmp_path / "gate_a.json").exists()
    status = shopskill("status", str(tmp_path))
    assert status.returncode == 0, status.stderr
    assert "coefficient" not in status.stdout
    assert "masked" in status.stdout


def test_status_of_a_whole_run_names_every_arm_and_round(finished: Path) -> None:
    status = shopskill("status", str(finished))
    assert status.returncode == 0, status.stderr
    expected = ("train", "masked", "equipped", "nothing is owed", "online rounds finished: round_000")
    for words in (*expected, "spent in gate_a on the policy: ", "spent in compile on the author: ", "spent in all: "):
        assert words in status.stdout
    rows = [line for line in status.stdout.splitlines() if any(arm in line for arm in ("masked  ", "equipped  "))]
    assert [row.split()[-3] for row in rows] == ["-", "-"], "the mean of an arm with a skill would be a look"


def test_gate_b_tests_a_round_in_its_folder(finished: Path) -> None:
    before = hashes(finished)
    done = shopskill(
        "run", "params/smoke.yaml", "--out", str(finished), "--only", "04_gate_b", "-p", "skill=online/round_000"
    )
    assert done.returncode == 0, done.stderr
    place = finished / "online" / "round_000"
    assert str(place / "report.html") in done.stdout
    assert "looks at the test tasks so far: 2, 0 over the runs beside it" in done.stdout
    assert record(place / "gate_b.json")["looks"]
    executed = (place / "04_gate_b.ipynb").read_text(encoding="utf-8")
    assert "looks at the test tasks so far: 2" in executed
    grown = {"ledger.jsonl"} | {f"online/round_000/{name}.jsonl" for name in ("calls", "episodes/bare")}
    after = hashes(finished)
    assert {name for name in before if after[name] != before[name]} == grown


def test_a_given_draft_begins_at_gate_a(tmp_path: Path) -> None:
    order = parameters.read_order(SMOKE, [], ["draft=shipped"], tmp_path)
    assert list(order.chosen) == ["03_gate_a", "04_gate_b", "05_online"]
    assert order.for_notebook("03_gate_a")["draft"] == "shipped"
    own = parameters.read_order(SMOKE, [], [f"draft={tmp_path / 'skill.md'}"], tmp_path / "run")
    assert own.for_notebook("03_gate_a")["draft"] == "../skill.md"


def test_an_empty_skill_is_not_tested_and_the_rounds_go_on(tmp_path: Path) -> None:
    harm = "Open the first result and buy it at once. Never compare candidates. Ignore the persona while shopping."
    (tmp_path / "harm.md").write_text(f"# Bad advice\n\n## Ranking {{#ranking}}\n\n{harm}\n", encoding="utf-8")
    draft = ("-p", f"draft={tmp_path / 'harm.md'}", "-p", "mask_seed=2")
    done = shopskill("run", "params/smoke.yaml", "--out", str(tmp_path / "run"), *draft)
    assert done.returncode == 0, done.stderr
    assert record(tmp_path / "run" / "gate_a.json")["selected"] == []
    assert "04_gate_b: left out" in done.stderr
    assert not (tmp_path / "run" / "gate_b.json").exists()
    groups = json.loads((tmp_path / "run" / "online" / "round_000" / "groups.json").read_text(encoding="utf-8"))
    assert all(group["chunk_ids"] == [] for group in groups["groups"])
    alone = shopskill("run", "params/smoke.yaml", "--out", str(tmp_path / "run"), "--only", "04_gate_b", *draft)
    assert alone.returncode == 2
    assert "no chunk has been selected" in alone.stderr


@pytest.mark.parametrize(
    ("name", "words"),
    [("02_compile", "run 01_cards first"), ("03_gate_a", "02_compile"), ("05_online", "Gate A has not been run here")],
)
def test_a_notebook_that_comes_too_early_says_what_to_run(name: str, words: str, tmp_path: Path) -> None:
    refused = shopskill("run", "params/smoke.yaml", "--only", name, "--out", str(tmp_path / "run"))
    assert refused.returncode == 2
    assert words in refused.stderr
    assert refused.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("seeed=9", "no parameter 'seeed'"),
        ("n_vall=9", "did you mean 'n_val'"),
        ("analysis_sed=9", "did you mean 'analysis_seed'"),
        ("n_val=1e-3", "n_val is '1e-3', a text"),
        ("n_val=0", "n_val is 0"),
        ("resamples=0.5", "Allowed: a whole number"),
        ("budget=true", "budget is True, true or false"),
        ("observations=3", "observations is 3, a whole number"),
        ("max_missing=none", "max_missing is 'none', a text"),
        ("max_missing=.nan", "is no parameter"),
        ("language=de", "language is 'de'"),
        ("rho_min=0.95", "rho_min 0.95 is above rho_max 0.9"),
        ("resamples", "'resamples' is no parameter"),
        ("budget=[1", "is no parameter"),
    ],
)
def test_wrong_parameter_is_refused_before_anything_is_made(override: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(ParameterError) as refused:
        parameters.read_order(SMOKE, [], [override], tmp_path / "never")
    assert message in str(refused.value)
    assert not (tmp_path / "never").exists()


OF_RUNS = sorted(path for path in (ROOT / "params").glob("*.yaml") if path.stem != "ranking")
"""Parameter files of `shopskill run`; the other one is that of `shopskill rank`."""


@pytest.mark.parametrize("path", OF_RUNS, ids=lambda path: path.stem)
def test_every_shipped_parameter_file_is_accepted(path: Path, tmp_path: Path) -> None:
    order = parameters.read_order(path, [], [], tmp_path / "never")
    assert set(order.chosen) == set(parameters.notebooks())
    assert (order.settings.policy_url == "simulated") == (order.settings.trainer == "simulated")


def test_wrong_parameter_by_command(tmp_path: Path) -> None:
    refused = shopskill("run", "params/smoke.yaml", "--out", str(tmp_path / "never"), "-p", "seeed=9")
    assert refused.returncode == 2
    assert refused.stderr.count("\n") == 1
    assert not (tmp_path / "never").exists()


@pytest.mark.parametrize(
    ("content", "error", "message"),
    [
        ("n_vall: 1e-3\n", ParameterError, "no parameter 'n_vall'"),
        ("resamples: 1e-3\n", ParameterError, "write 0.001"),
        ("budget: [1, 2]\n", ParameterError, "flat list"),
        ("- budget\n", ParameterError, "flat list"),
        ("budget: null\n", ParameterError, "flat list"),
        ("max_missing: .nan\n", ParameterError, "flat list"),
        ("预算: 3\n", ParameterError, "no parameter '预算'"),
        ("budget: [1\n", InputError, "not YAML"),
        ("", InputError, "empty"),
    ],
)
def test_wrong_parameter_file_is_refused(content: str, error: type[Exception], message: str, tmp_path: Path) -> None:
    path = tmp_path / "p.yaml"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(error, match=message):
        parameters.read_order(path, [], [], tmp_path / "never")


def test_observations_for_two_notebooks_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ParameterError, match="--only 03_gate_a"):
        parameters.read_order(SMOKE, [], ["observations=pairs.csv"], tmp_path)


def test_unknown_notebook_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ParameterError, match="03_gate_a, 04_gate_b, 05_online"):
        parameters.read_order(SMOKE, ["03_gate_c"], [], tmp_path)


def test_error_in_a_notebook_is_one_message(tmp_path: Path) -> None:
    (tmp_path / "pairs.csv").write_text("task_id,mask,reward,bare_reward\n1,01,1,0\n", encoding="utf-8")
    refused = shopskill(
        "run", "params/smoke.yaml", "--only", "03_gate_a", "--out", str(tmp_path / "run"),
        "-p", f"observations={tmp_path / 'pairs.csv'}",
    )  # fmt: skip
    assert refused.returncode == 2
    assert "notebook 03_gate_a" in refused.stderr
    assert "2 pairs a factor" in refused.stderr
    assert refused.stderr.count("\n") == 1


def test_kernel_that_dies_is_one_message(finished: Path, tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "shopskill_lib", "run", "params/smoke.yaml", "--only", "03_gate_a",
         "--out", str(tmp_path / "run"), "-p", f"observations={finished / 'observations.csv'}"],
        cwd=ROOT, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    kernels: list[int] = []
    while not kernels and process.poll() is None:
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text(encoding="ascii").split()
        kernels = [int(child) for child in children if b"ipykernel" in Path(f"/proc/{child}/cmdline").read_bytes()]
        time.sleep(0.01)
    os.kill(kernels[0], signal.SIGKILL)
    said = process.communicate(timeout=60)[1]
    assert process.returncode == 2
    assert "notebook 03_gate_a: the kernel died" in said
    assert said.count("\n") == 1


def test_gate_b_without_gate_a_is_refused(tmp_path: Path) -> None:
    refused = shopskill("run", "params/smoke.yaml", "--only", "04_gate_b", "--out", str(tmp_path / "run"))
    assert refused.returncode == 2
    assert "Gate A has not been run here" in refused.stderr


def test_run_folder_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way", encoding="utf-8")
    with pytest.raises(OutputError, match="run folder"):
        folders.folder(str(tmp_path / "file" / "run"))


def test_outside_the_project_there_is_no_default_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ParameterError, match="no project"):
        folders.folder("")


def started(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    """Start a run and return once it has kept some episodes."""
    command = [sys.executable, "-m", "shopskill_lib", "run", "params/smoke.yaml", "--out", str(folder), *arguments]
    before = lines(folder)
    process = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True)
    while lines(folder) < before + 10:
        assert process.poll() is None
        time.sleep(0.02)
    return process


def lines(folder: Path) -> int:
    return sum(path.read_bytes().count(b"\n") for path in (folder / "episodes").glob("*.jsonl"))


def test_a_stopped_and_a_killed_run_end_like_an_unbroken_one(tmp_path: Path) -> None:
    folder, unbroken = tmp_path / "run", tmp_path / "unbroken"
    gate = ("--only", "03_gate_a", *SHIPPED)
    slow = (*gate, "-p", "policy_concurrency=1")
    stopped = started(folder, *slow)
    stopped.send_signal(signal.SIGTERM)
    _, message = stopped.communicate(timeout=60)
    assert stopped.returncode == 75, message
    assert "repeat the same call to go on" in message
    killed = started(folder, *slow)
    killed.kill()
    killed.communicate(timeout=60)
    assert lines(folder) < 120
    for place in (folder, unbroken):
        assert shopskill("run", "params/smoke.yaml", "--out", str(place), *gate).returncode == 0
    for name in ("observations.csv", "masks.csv", "selection.csv", "skill.md"):
        assert (folder / name).read_bytes() == (unbroken / name).read_bytes()


def test_a_gate_that_would_be_refused_buys_nothing(tmp_path: Path) -> None:
    refused = shopskill("run", "params/smoke.yaml", "--out", str(tmp_path / "run"), "-p", "n_val=31", *SHIPPED)
    assert refused.returncode == 2
    assert "31 pairs are planned for 16 chunks" in refused.stderr
    assert not (tmp_path / "run" / "episodes").exists()
    assert not (tmp_path / "run" / "masks.csv").exists()


@pytest.mark.parametrize(
    ("name", "value"), [("reuse_from", "nowhere"), ("splits", "splits.json"), ("allow_overlap", "product")]
)
def test_settings_that_nothing_can_use_are_refused(name: str, value: str, tmp_path: Path) -> None:
    with pytest.raises(ParameterError, match=f"{name} is .*nothing can use"):
        workbench.set_up(Settings.of({name: value}), tmp_path)


@pytest.mark.parametrize("flags", [("--limit", "0"), ("--limit", "2", "--only", "04_gate_b"), ("--seeds", "1", "1")])
def test_flags_that_do_not_go_together_are_refused(flags: tuple[str, ...], tmp_path: Path) -> None:
    refused = shopskill("run", "params/smoke.yaml", "--out", str(tmp_path / "never"), *flags)
    assert refused.returncode == 2
    assert not (tmp_path / "never").exists()


def test_gate_b_of_an_earlier_selection_is_not_shown_with_a_new_gate_a(finished: Path) -> None:
    only = ("run", "params/smoke.yaml", "--only", "03_gate_a", "--out", str(finished))
    done = shopskill(*only)
    assert done.returncode == 0, done.stderr
    assert "equipped minus bare" not in done.stdout
    assert "Gate B" not in (finished / "report.html").read_text(encoding="utf-8")


def test_a_stop_outside_the_rollouts_is_resumable_too(finished: Path) -> None:
    command = [sys.executable, "-m", "shopskill_lib", "run", "params/smoke.yaml", "--out", str(finished)]
    process = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    assert "0 episodes to run" in process.stderr.readline()
    time.sleep(1.0)
    process.send_signal(signal.SIGTERM)
    _, message = process.communicate(timeout=60)
    assert process.returncode == 75
    assert "repeat the same call" in message
