import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from shopskill_lib import ledger
from shopskill_lib.errors import InputError, LookError, OutputError
from shopskill_lib.files import write_json
from shopskill_lib.looks import elsewhere, freeze, reasons, told

KEY: dict[str, Any] = {"sha256": "a", "budget": 10}
OTHER: dict[str, Any] = {"sha256": "b", "budget": 10}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "gate_a.json"


def test_the_first_look_is_frozen_and_counted(path: Path) -> None:
    record = freeze(path.parent, path, {"selected": ["核对"]}, KEY)
    assert json.loads(path.read_text(encoding="utf-8")) == record
    assert [look["reason"] for look in record["looks"]] == ["first look"]
    assert record["looks"][0]["key_sha256"] == hashlib.sha256(json.dumps(KEY, sort_keys=True).encode()).hexdigest()
    assert "核对" in path.read_text(encoding="utf-8")


def test_the_same_gate_again_is_the_same_look_and_the_same_bytes(path: Path) -> None:
    freeze(path.parent, path, {"selected": ["a"]}, KEY)
    before = path.read_bytes()
    again = freeze(path.parent, path, {"selected": ["a"]}, dict(reversed(KEY.items())))
    assert len(again["looks"]) == 1
    assert path.read_bytes() == before


def test_another_gate_is_refused_and_nothing_changes(path: Path) -> None:
    freeze(path.parent, path, {"selected": ["a"]}, KEY)
    before = path.read_bytes()
    with pytest.raises(LookError, match=r"another gate is frozen here, after 1 look\. .*give new_look a reason"):
        freeze(path.parent, path, {"selected": ["b"]}, OTHER)
    assert path.read_bytes() == before


def test_a_new_look_with_a_reason_is_counted_and_the_first_is_kept(path: Path) -> None:
    first = freeze(path.parent, path, {"selected": ["a"]}, KEY)
    second = freeze(path.parent, path, {"selected": ["b"]}, OTHER, new_look="a wrong price was mended")
    assert second["looks"][0] == first["looks"][0]
    assert [look["reason"] for look in second["looks"]] == ["first look", "a wrong price was mended"]
    assert json.loads(path.read_text())["selected"] == ["b"]
    with pytest.raises(LookError, match="after 2 looks"):
        freeze(path.parent, path, {"selected": ["c"]}, {"sha256": "c"})


@pytest.mark.parametrize("content", ["", "{", "[]", '{"looks": []}', '{"looks": [{"at": "now"}]}', "\udcff"])
def test_a_spoiled_frozen_file_is_refused_and_kept(path: Path, content: str) -> None:
    path.write_bytes(content.encode(errors="surrogateescape"))
    before = path.read_bytes()
    with pytest.raises(InputError, match=r"gate_a.json: the frozen gate cannot be read"):
        freeze(path.parent, path, {"selected": []}, KEY)
    assert path.read_bytes() == before


def test_a_place_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    (tmp_path / "folder").mkdir()
    with pytest.raises(OutputError, match="choose another place"):
        write_json(tmp_path / "file" / "out.json", {})
    with pytest.raises(OutputError, match="choose another place"):
        write_json(tmp_path / "folder", {})
    assert sorted(item.name for item in tmp_path.iterdir()) == ["file", "folder"]


def test_nan_is_never_on_disk(path: Path) -> None:
    path.write_text("before")
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_json(path, {"alpha": float("nan")})
    assert path.read_text() == "before"


def looked(folder: Path) -> list[tuple[str, str, str]]:
    """Looks in a folder's ledger: split, record, reason."""
    events = ledger.read(folder / ledger.FILE)
    payloads = [(event.payload, event.reason) for event in events if isinstance(event.payload, ledger.Look)]
    return [(payload.split, payload.record, reason) for payload, reason in payloads]


def test_the_gate_of_a_round_at_work_is_a_look_and_counts_once_when_it_is_done(tmp_path: Path) -> None:
    staging, done = tmp_path / "online/.round_000.staging", tmp_path / "online/round_000"
    freeze(tmp_path, tmp_path / "gate_a.json", {}, KEY)
    freeze(tmp_path, staging / "gate_a.json", {}, OTHER, "online round 0")
    told_first = looked(tmp_path)
    assert reasons(tmp_path, "gate_a.json") == ("first look", "online round 0")
    staging.rename(done)
    assert reasons(tmp_path, "gate_a.json") == ("first look", "online round 0")
    freeze(tmp_path, done / "gate_a.json", {}, OTHER, "online round 0")
    assert looked(tmp_path) == told_first
    assert told_first[1] == ("val", "online/round_000/gate_a.json", "online round 0")


def test_every_look_is_in_the_ledger_once_with_its_own_time(tmp_path: Path) -> None:
    path, again = tmp_path / "gate_a.json", "价格改正了"
    freeze(tmp_path, path, {}, KEY)
    freeze(tmp_path, path, {}, KEY)
    frozen = freeze(tmp_path, path, {}, OTHER, again)
    freeze(tmp_path, tmp_path / "gate_b.json", {}, KEY)
    freeze(tmp_path, tmp_path / "replications/seed_5/replication.json", {}, KEY, "replication, masks of seed 5")
    assert looked(tmp_path) == [
        ("val", "gate_a.json", "first look"),
        ("val", "gate_a.json", again),
        ("test", "gate_b.json", "first look"),
        ("val", "replications/seed_5/replication.json", "replication, masks of seed 5"),
    ]
    times = [event.at.isoformat() for event in ledger.read(tmp_path / ledger.FILE)]
    assert times[:2] == [look["at"] for look in frozen["looks"]]


def test_a_ledger_that_was_removed_is_told_the_looks_of_a_record_anew(tmp_path: Path) -> None:
    path = tmp_path / "gate_a.json"
    freeze(tmp_path, path, {}, KEY)
    freeze(tmp_path, path, {}, OTHER, "mended")
    before = (tmp_path / ledger.FILE).read_bytes()
    (tmp_path / ledger.FILE).unlink()
    freeze(tmp_path, path, {}, OTHER, "mended")
    assert (tmp_path / ledger.FILE).read_bytes() == before


def test_a_damaged_ledger_is_named_and_the_gate_is_kept(tmp_path: Path) -> None:
    (tmp_path / ledger.FILE).write_text("{}\n")
    with pytest.raises(InputError, match=r"ledger\.jsonl"):
        freeze(tmp_path, tmp_path / "gate_a.json", {"selected": ["a"]}, KEY)
    assert json.loads((tmp_path / "gate_a.json").read_text())["selected"] == ["a"]


def a_run(root: Path, name: str, ids: list[str], products: str = "p", *, frozen: str = "") -> Path:
    """A run folder with a frozen Gate B of these tasks; `frozen` in a round of it."""
    run = root / name
    place = run / frozen
    (place / "episodes").mkdir(parents=True)
    (place / "episodes" / "equipped.jsonl").write_text(json.dumps({"shop": {"catalogue": products}}) + "\n")
    (place / "test_observations.csv").write_text("task_id,split\n" + "".join(f"{task},test\n" for task in ids))
    freeze(run, place / "gate_b.json", {}, {"sha256": name})
    return run


def test_looks_at_the_same_test_tasks_are_counted_over_the_runs_beside_it(tmp_path: Path) -> None:
    a_run(tmp_path, "earlier", ["1", "2"])
    a_run(tmp_path, "在线", ["2"], frozen="online/round_000")
    a_run(tmp_path, "other tasks", ["8", "9"])
    a_run(tmp_path, "other products", ["1", "2"], "q")
    a_run(tmp_path, "seeds/seed_0", ["1"])
    run = a_run(tmp_path, "run", ["1", "2", "3"])
    found = elsewhere(run / "gate_b.json", run)
    assert dict(found.counts) == {"earlier": 1, "seeds/seed_0": 1, "在线": 1}
    assert (found.total, found.unread) == (3, ())
    assert told(run / "gate_b.json", run) == (
        "looks at the test tasks so far: 1, 3 over the runs beside it (earlier 1, seeds/seed_0 1, 在线 1); "
        "last reason: first look"
    )
    of_seed = elsewhere(tmp_path / "seeds/seed_0/gate_b.json", tmp_path / "seeds/seed_0")
    assert dict(of_seed.counts) == {"earlier": 1, "run": 1}


def test_a_copied_folder_brings_no_other_look(tmp_path: Path) -> None:
    run = a_run(tmp_path, "run", ["1"])
    shutil.copytree(run, tmp_path / "run copy")
    assert elsewhere(run / "gate_b.json", run).total == 0


def test_later_looks_elsewhere_are_for_later_sheets(tmp_path: Path) -> None:
    other, run = a_run(tmp_path, "other", ["1"]), a_run(tmp_path, "run", ["1"])
    late = {"looks": [{"key_sha256": "k", "at": "2999-01-01T00:00:00+00:00", "reason": "first look"}]}
    write_json(other / "gate_b.json", late)
    assert elsewhere(run / "gate_b.json", run).total == 0


def test_reused_episodes_name_their_products_in_the_other_run(tmp_path: Path) -> None:
    a_run(tmp_path, "first", ["1"])
    run = a_run(tmp_path, "second", ["1"])
    pointer = {"reused_from": "../first/episodes/equipped.jsonl", "identity": "x"}
    (run / "episodes" / "equipped.jsonl").write_text(json.dumps(pointer) + "\n")
    assert elsewhere(run / "gate_b.json", run).total == 1


@pytest.mark.parametrize("name", ["gate_b.json", "test_observations.csv", "episodes/equipped.jsonl"])
def test_a_run_that_cannot_be_read_is_named_and_never_counted_as_none(tmp_path: Path, name: str) -> None:
    other, run = a_run(tmp_path, "broken", ["1"]), a_run(tmp_path, "run", ["1"])
    (other / name).write_text("{")
    assert elsewhere(run / "gate_b.json", run).unread == ("broken",)
    assert "at least 0 over the runs beside it; not readable: broken" in told(run / "gate_b.json", run)
    (run / "test_observations.csv").unlink()
    with pytest.raises(InputError, match=r"run: which tasks were tested cannot be read.*restore the files"):
        elsewhere(run / "gate_b.json", run)


def test_pairs_made_elsewhere_share_no_tasks(tmp_path: Path) -> None:
    a_run(tmp_path, "other", ["1"])
    run = tmp_path / "run"
    freeze(run, run / "gate_b.json", {}, KEY)
    assert elsewhere(run / "gate_b.json", run).total == 0
