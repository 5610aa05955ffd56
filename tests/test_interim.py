"""Looks at declared stages and replications on a run folder: labels, never a selection, each look counted."""

import json
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from shopskill_lib import gates, interim, ledger, looks, protocol, sequential
from shopskill_lib.cycle import Rule
from shopskill_lib.errors import DesignError, InputError, ParameterError
from shopskill_lib.settings import Settings
from shopskill_lib.workbench import Bench

RULE = Rule(resamples=200)
DRAFT = """## Query {#query}

Put every requirement into one query.

## 核对价格 {#price}

选好规格后，核对所选规格的价格是否在预算之内。
"""


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    (tmp_path / "draft.md").write_text(DRAFT, encoding="utf-8")
    (tmp_path / "run").mkdir()
    names = {"n_products": 1700, "n_val": 24, "n_test": 4, "max_steps": 12, "n_stages": 3}
    return protocol.set_up(Settings.of({**names, "draft": str(tmp_path / "draft.md")}), tmp_path / "run")


def gated(bench: Bench) -> gates.Gate:
    """The gate at the end, as the notebook takes it."""
    pairs = gates.read_observations(protocol.gate_a(bench), bench.folder / protocol.INTERVENTIONS)
    gate = gates.fit_gate(pairs, resamples=200, level=sequential.level(bench.folder))
    looks.freeze(bench.folder, bench.folder / protocol.GATE, gate.to_json(), gate.key())
    return gate


def test_a_look_labels_its_stages_and_selects_nothing(bench: Bench) -> None:
    first = interim.look(bench, 1, RULE)
    table = pd.read_csv(bench.folder / "observations_stage_1.csv", dtype={"task_id": str})
    assert set(table["task_id"]) == protocol.stages(bench).until(1)
    assert first.gate.joint.level == pytest.approx(sequential.levels([1 / 3])[0])
    assert "stage 1 of 3, 8 pairs" in str(first) and str(first.verdict()).startswith("simulated: ")
    assert not (bench.folder / protocol.SELECTED).exists() and not (bench.folder / "observations.csv").exists()
    record = json.loads(sequential.looked(1, bench.folder).read_text(encoding="utf-8"))
    assert record["simulated"] is True and record["selected"] == [] and "stability" not in record
    assert interim.look(bench, 1, RULE).verdict() == first.verdict()
    assert looks.taken(bench.folder, "gate_a.json") == 1
    masked = (bench.folder / "episodes" / "masked.jsonl").read_text(encoding="utf-8").splitlines()
    assert len(masked) == 8, "nothing of the later stages is bought"


def test_the_gate_at_the_end_has_the_level_that_is_left_and_counts_the_looks(bench: Bench) -> None:
    interim.look(bench, 2, RULE)
    with pytest.raises(ParameterError, match="stage 1 comes too late: stage 2 has been looked at"):
        interim.look(bench, 1, RULE)
    untaken = replace(bench, settings=bench.settings.model_copy(update={"n_stages": 2}))
    with pytest.raises(DesignError, match="others were declared"):
        interim.look(untaken, 1, RULE)
    gate = gated(bench)
    assert gate.joint.level == pytest.approx(sequential.levels([2 / 3, 1.0])[-1])
    assert "rate of 4.6 %" in gate.trust() or "rate of 4.7 %" in gate.trust()
    assert len(gate.observations.task_ids) == 24
    assert looks.told(bench.folder / protocol.GATE, bench.folder).startswith("looks at the validation tasks so far: 2;")
    assert interim.look(bench, 2, RULE).gate.joint.level < gate.joint.level, "what was looked at can be read again"


def test_no_look_after_the_gate(bench: Bench) -> None:
    gated(bench)
    with pytest.raises(ParameterError, match="the gate is there"):
        interim.look(bench, 1, RULE)


def test_a_replication_has_new_masks_and_the_gates_bare_runs(bench: Bench) -> None:
    with pytest.raises(InputError, match="no finished gate"):
        interim.replicate(bench, 5, RULE)
    gate = gated(bench)
    told = (bench.folder / ledger.FILE).read_bytes()
    before = {path: path.read_bytes() for path in bench.folder.rglob("*") if path.is_file() and path.suffix != ".lock"}
    del before[bench.folder / ledger.FILE]
    with pytest.raises(ParameterError, match="the gate's own"):
        interim.replicate(bench, 0, RULE)
    found = interim.replicate(bench, 5, RULE)
    place = bench.folder / protocol.REPLICATIONS / "seed_5"
    old, new = (pd.read_csv(path / "observations.csv") for path in (bench.folder, place))
    assert (old["bare_reward"] == new["bare_reward"]).all()
    assert (old[["query", "price"]] != new[["query", "price"]]).any(axis=None)
    assert {path: path.read_bytes() for path in before} == before, "the gate and its skill are as they were"
    events = ledger.read(bench.folder / ledger.FILE)
    assert (bench.folder / ledger.FILE).read_bytes().startswith(told), "the ledger is told of one look more"
    assert events[-1].payload == ledger.Look(
        split="val",
        record="replications/seed_5/replication.json",
        key_sha256=json.loads((place / looks.REPLICATION).read_text())["looks"][0]["key_sha256"],
    )
    assert not (place / protocol.SELECTED).exists()
    table = found.to_frame().set_index("intervention_id")
    assert table["gate"].to_dict() == pytest.approx(gate.coefficients())
    assert set(table.index[table["selected"]]) == set(gate.selected)
    assert "nothing is selected by this" in str(found)
    assert looks.taken(bench.folder, "gate_a.json") == 2
    assert interim.replicate(bench, 5, RULE).verdict() == found.verdict()
    assert looks.taken(bench.folder, "gate_a.json") == 2


def test_a_replication_of_another_draft_is_refused(bench: Bench) -> None:
    gated(bench)
    draft = Path(bench.settings.draft)
    draft.write_text(DRAFT.replace("预算", "价格上限"), encoding="utf-8")
    other = protocol.set_up(bench.settings, bench.folder)
    with pytest.raises(DesignError, match="the texts of price"):
        interim.replicate(other, 5, RULE)
