"""The five notebooks with shop and models in processes of their own give the data files of a run in one process."""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx2
import pytest
from test_run import ROOT, shopskill
from test_serve import process

SIZES = {
    "n_products": 1600, "n_train": 24, "n_val": 36, "n_test": 12, "n_gap": 8, "n_groups": 4, "group_size": 2,
    "resamples": 100, "max_steps": 20, "trainer": "none",
}  # fmt: skip
"""Over params/smoke.yaml; the simulated trainer trains the model of the process alone."""

SHOP = ("--port", "0", "--slots", "6", "--n-products", str(SIZES["n_products"]), "--action-limit", "20")

OTHERWISE = {"params.json", "provenance.json", "shop.json", "probes.json", "report.html"}
"""What may differ: where the servers are, what they said of themselves, when and with what the run was made."""

TIMES = re.compile(rb'"(?:(?:started_|ended_)?at": ?"[^"]*"|seconds": ?[0-9.e-]+)')


def started(folder: Path, **names: str) -> subprocess.Popen[str]:
    """A run of the five notebooks, as a process."""
    given = [f"-p{name}={value}" for name, value in {**SIZES, **names}.items()]
    command = [sys.executable, "-m", "shopskill_lib", "run", "params/smoke.yaml", "--out", str(folder), *given]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@contextmanager
def simulated() -> Iterator[str]:
    """The simulated models as a process; their base URL."""
    command = [sys.executable, "-m", "shopskill_lib.simulated", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as running:
        try:
            assert running.stdout is not None
            yield running.stdout.readline().split(" at ")[1].strip()
        finally:
            running.terminate()


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The same run within one process and over two servers, which are gone again."""
    inside, outside = (tmp_path_factory.mktemp(name) / "run" for name in ("inside", "outside"))
    with simulated() as url, process(*SHOP) as (_, shop):
        servers = {"shop_url": shop.url, "policy_url": url, "author_url": url}
        runs = [started(inside), started(outside, **servers)]
        for run in runs:
            _, errors = run.communicate(timeout=300)
            assert run.returncode == 0, errors
        assert shop.health()["free_slots"] == 6
        answered = httpx2.get(url.removesuffix("/v1") + "/stats").json()["completions"]
    calls = [path.read_text(encoding="utf-8").count("\n") for path in outside.rglob("calls.jsonl")]
    assert answered >= sum(calls) > 0, "every call went to the server"
    return inside, outside


def data(folder: Path) -> dict[str, list[bytes]]:
    """Every data file by its lines without times; lines of work on threads in one order."""
    found = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file() and path.suffix != ".ipynb" and path.name not in OTHERWISE:
            lines = TIMES.sub(b"", path.read_bytes()).split(b"\n")
            found[str(path.relative_to(folder))] = sorted(lines) if path.suffix == ".jsonl" else lines
    return found


def test_data_files_are_the_same_over_two_servers(folders: tuple[Path, Path]) -> None:
    inside, outside = map(data, folders)
    assert set(inside) == set(outside)
    assert [name for name, lines in inside.items() if lines != outside[name]] == []
    wanted = {"cards.jsonl", "draft.json", "gate_a.json", "selection.csv", "gate_b.json", "ledger.jsonl"}
    assert wanted | {"episodes/masked.jsonl", "online/round_000/round.json", "figures/online_gap.svg"} <= set(inside)


def test_the_run_says_where_it_shopped_and_needs_no_server_afterwards(folders: tuple[Path, Path]) -> None:
    inside, outside = folders
    found = json.loads((outside / "shop.json").read_text(encoding="utf-8"))
    assert (found["generation"], found["slots"], found["announced"]["action_limit"]) == ("v8", 6, 20)
    assert not (inside / "shop.json").exists()
    status = shopskill("status", str(outside))
    assert status.returncode == 0, status.stderr
    assert "nothing is owed" in status.stdout
