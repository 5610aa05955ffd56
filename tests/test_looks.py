import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from shopskill_lib.errors import InputError, LookError, OutputError
from shopskill_lib.files import write_json
from shopskill_lib.looks import freeze, reasons

KEY: dict[str, Any] = {"sha256": "a", "budget": 10}
OTHER: dict[str, Any] = {"sha256": "b", "budget": 10}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "gate_a.json"


def test_the_first_look_is_frozen_and_counted(path: Path) -> None:
    record = freeze(path, {"selected": ["核对"]}, KEY)
    assert json.loads(path.read_text(encoding="utf-8")) == record
    assert [look["reason"] for look in record["looks"]] == ["first look"]
    assert record["looks"][0]["key_sha256"] == hashlib.sha256(json.dumps(KEY, sort_keys=True).encode()).hexdigest()
    assert "核对" in path.read_text(encoding="utf-8")


def test_the_same_gate_again_is_the_same_look_and_the_same_bytes(path: Path) -> None:
    freeze(path, {"selected": ["a"]}, KEY)
    before = path.read_bytes()
    again = freeze(path, {"selected": ["a"]}, dict(reversed(KEY.items())))
    assert len(again["looks"]) == 1
    assert path.read_bytes() == before


def test_another_gate_is_refused_and_nothing_changes(path: Path) -> None:
    freeze(path, {"selected": ["a"]}, KEY)
    before = path.read_bytes()
    with pytest.raises(LookError, match=r"another gate is frozen here, after 1 look\. .*give new_look a reason"):
        freeze(path, {"selected": ["b"]}, OTHER)
    assert path.read_bytes() == before


def test_a_new_look_with_a_reason_is_counted_and_the_first_is_kept(path: Path) -> None:
    first = freeze(path, {"selected": ["a"]}, KEY)
    second = freeze(path, {"selected": ["b"]}, OTHER, new_look="a wrong price was mended")
    assert second["looks"][0] == first["looks"][0]
    assert [look["reason"] for look in second["looks"]] == ["first look", "a wrong price was mended"]
    assert json.loads(path.read_text())["selected"] == ["b"]
    with pytest.raises(LookError, match="after 2 looks"):
        freeze(path, {"selected": ["c"]}, {"sha256": "c"})


@pytest.mark.parametrize("content", ["", "{", "[]", '{"looks": []}', '{"looks": [{"at": "now"}]}', "\udcff"])
def test_a_spoiled_frozen_file_is_refused_and_kept(path: Path, content: str) -> None:
    path.write_bytes(content.encode(errors="surrogateescape"))
    before = path.read_bytes()
    with pytest.raises(InputError, match=r"gate_a.json: the frozen gate cannot be read"):
        freeze(path, {"selected": []}, KEY)
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


def test_the_gate_of_a_round_at_work_is_a_look_and_counts_once_when_it_is_done(tmp_path: Path) -> None:
    staging, done = tmp_path / "online/.round_000.staging", tmp_path / "online/round_000"
    freeze(tmp_path / "gate_a.json", {}, KEY)
    freeze(staging / "gate_a.json", {}, OTHER, "online round 0")
    assert reasons(tmp_path, "gate_a.json") == ("first look", "online round 0")
    staging.rename(done)
    assert reasons(tmp_path, "gate_a.json") == ("first look", "online round 0")
