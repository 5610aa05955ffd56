"""Import, export, cards and gates of artifacts made elsewhere: the commands as a user types them."""

import json
from pathlib import Path

import elsewhere
import pytest
from test_cli import assert_refused, shopskill

from shopskill_lib.adapters import formats
from shopskill_lib.errors import InputError, OutputError, ParameterError
from shopskill_lib.gates import fit_gate, read_observations

CHUNKS = {"chunk-规格": "### 规格\n\n逐项核对规格", "query": "### Query\n\none query, all requirements"}


def test_import_says_what_was_read_and_export_gives_it_back(tmp_path: Path) -> None:
    traces = [elsewhere.failed(1829), elsewhere.trace(1828), elsewhere.training(1829)]
    source = elsewhere.write_lines(tmp_path / "traces.jsonl", traces)
    done = shopskill("import", str(source), "--out", str(tmp_path / "in"))
    assert (done.returncode, done.stderr) == (0, "")
    assert "read as shopsimrl-traces\n3 episodes of 2 tasks, 2 with a reward, 1 failed\n" in done.stdout
    assert "note: usage: not told in 1 of 2 episodes; no costs" in done.stdout
    out = tmp_path / "out.jsonl"
    done = shopskill("export", str(tmp_path / "in"), "--format", "shopsimrl-traces", "--out", str(out))
    assert done.stdout == f"{out}: shopsimrl-traces, read back\n" and elsewhere.read_lines(out) == traces
    assert_refused(shopskill("import", str(source), "--out", str(tmp_path / "in")), "there is something already")


def test_an_export_replaces_nothing_and_writes_what_there_is(tmp_path: Path) -> None:
    found = formats.read(elsewhere.write_lines(tmp_path / "traces.jsonl", [elsewhere.trace(1)]))
    with pytest.raises(OutputError, match="there is something already"):
        formats.export(found, formats.named("shopsimrl-traces"), tmp_path / "traces.jsonl")
    for name in ("shopsimrl-pool", "shopsimrl-skillbank", "shopsimrl-gate", "skill"):
        with pytest.raises(InputError, match=r"there is no (pool|skill|gate)"):
            formats.export(found, formats.named(name), tmp_path / "new")


def test_cards_are_made_of_an_import(tmp_path: Path) -> None:
    bought = [elsewhere.trace(number, language="zh") for number in (1, 2)]
    traces = [elsewhere.failed(3), *bought, elsewhere.ended(4, "action_limit")]
    source = elsewhere.write_lines(tmp_path / "traces.jsonl", traces)
    formats.export(formats.read(source), formats.named("imported"), tmp_path / "in")
    done = shopskill("cards", str(tmp_path / "in"), "--out", str(tmp_path / "cards"))
    assert done.returncode == 0, done.stderr
    assert "simulated: 2 trajectories analysed" in done.stdout
    assert "1 trajectories left out: no success" in done.stdout
    assert done.stdout.endswith("1 failed attempts left out: an error is no result (I20)\n")


def test_03_opens_a_gate_folder(tmp_path: Path) -> None:
    source = elsewhere.draft_gate(tmp_path / "gate", CHUNKS, tasks=40)
    options = [
        "--only",
        "03_gate_a",
        "-p",
        f"observations={source}",
        "-p",
        "resamples=200",
        "--out",
        str(tmp_path / "run"),
    ]
    done = shopskill("run", "params/embedded.yaml", *options)
    assert done.returncode == 0, done.stderr
    gate = json.loads((tmp_path / "run" / "gate_a.json").read_text(encoding="utf-8"))
    alone = fit_gate(read_observations(source), resamples=200)
    assert gate["outcomes"] == alone.to_json()["outcomes"] and gate["n_pairs"] == 40
    assert [factor["intervention_id"] for factor in gate["factors"]] == list(CHUNKS)


@pytest.mark.parametrize(
    ("name", "content", "found"),
    [
        ("x.json", '{"a": 1, "价": 2}', "JSON with a, 价"),
        ("x.json", "[1]", "JSON that is a list"),
        ("x.csv", "task_id,reward\n", "no JSON: Expecting value in line 1"),
        ("x.jsonl", '\n{"a": 1,\n', "no JSON: Expecting property name enclosed in double quotes in line 3"),
        ("x.json", "null", "JSON that is null"),
        ("x.jsonl", '{"schema_version": "shopsimrl-run-manifest-v1"}\n', "JSON with schema_version"),
    ],
)
def test_a_source_of_no_known_format_is_refused_with_the_formats_there_are(
    tmp_path: Path, name: str, content: str, found: str
) -> None:
    (tmp_path / name).write_text(content, encoding="utf-8")
    with pytest.raises(InputError, match=rf"no format that is known \({found}\)") as error:
        formats.read(tmp_path / name)
    assert all(form.name in str(error.value) for form in formats.FORMATS)


def test_folders_and_absent_sources_are_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("x", encoding="utf-8")
    with pytest.raises(InputError, match=r"a folder of notes\.txt"):
        formats.read(tmp_path)
    with pytest.raises(InputError, match="there is no such file or folder"):
        formats.read(tmp_path / "absent")
    with pytest.raises(ParameterError, match="there is no format 'xml'"):
        formats.read(tmp_path, "xml")


def test_a_named_format_says_what_is_missing_for_it(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text('{"schema_version": "shopsimrl-skillbank-v2", "skills": []}', encoding="utf-8")
    with pytest.raises(InputError, match=r"x\.json: schema_version is 'shopsimrl-skillbank-v2'"):
        formats.read(tmp_path / "x.json", "shopsimrl-skillbank")


@pytest.mark.parametrize("file", ["trajectories.jsonl", "source.jsonl", "import.json"])
def test_a_damaged_import_is_refused(tmp_path: Path, file: str) -> None:
    source = elsewhere.write_lines(tmp_path / "t.jsonl", [elsewhere.trace(1), elsewhere.trace(2)])
    place = tmp_path / "in"
    formats.export(formats.read(source), formats.named("imported"), place)
    text = (place / file).read_text(encoding="utf-8")
    (place / file).write_text(text.partition("\n")[0] + "\n", encoding="utf-8")
    with pytest.raises(InputError, match=r"in/import\.json|do not hold the same trajectories"):
        formats.read(place)


def test_an_edited_trajectory_is_not_mixed_with_its_source(tmp_path: Path) -> None:
    source = elsewhere.write_lines(tmp_path / "t.jsonl", [elsewhere.trace(1)])
    place = tmp_path / "in"
    formats.export(formats.read(source), formats.named("imported"), place)
    text = (place / "trajectories.jsonl").read_text(encoding="utf-8")
    (place / "trajectories.jsonl").write_text(text.replace('"reward":1.0', '"reward":0.0'), encoding="utf-8")
    with pytest.raises(InputError, match=r"t\.jsonl, line 1.*the record was changed after it was read"):
        formats.export(formats.read(place), formats.named("shopsimrl-traces"), tmp_path / "out.jsonl")
