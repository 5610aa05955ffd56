"""ShopSimRL gate folders: pairs from contributions or from assignments and traces, proven, and written back."""

import copy
import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import elsewhere
import pytest
from elsewhere import Json
from hypothesis import given, settings
from hypothesis import strategies as st

from shopskill_lib.adapters import folder, formats, gate_folder
from shopskill_lib.adapters.recorded import Import
from shopskill_lib.errors import DesignError, InputError, MissingError
from shopskill_lib.gates import Gate, fit_gate, read_observations
from shopskill_lib.sources import Columns, Intervention

CHUNKS = {
    "chunk-规格": "### 规格\n\n逐项核对规格",
    "check-price": "### Check the price\n\nwithin the budget",
    "query": "### Query\n\none query, all requirements",
}


@pytest.fixture
def draft(tmp_path: Path) -> Path:
    return elsewhere.draft_gate(tmp_path / "gate", CHUNKS, tasks=40)


@pytest.fixture(scope="module")
def published(shared: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict[str, str]], Json]:
    """The published round 000 as a folder of assignments and traces, its rows, and what was published of it."""
    place = shared / "data" / "published_gates"
    with (place / "round_000.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    expected = json.loads((place / "round_000_expected.json").read_text(encoding="utf-8"))
    source = tmp_path_factory.mktemp("published") / "gate"
    return elsewhere.online_gate(source, rows, expected["interventions"]), rows, expected


def assert_published(gate: Gate, expected: Json) -> None:
    for name in ("reward", "r_success", *elsewhere.PARTS):
        found = expected["estimates"][name]["coefficients"]
        assert gate.coefficients(name) == pytest.approx(found, abs=1e-9)
    assert list(gate.selected) == expected["selected_intervention_ids"]
    statuses = {item["intervention_id"]: item["status"] for item in expected["interventions"]}
    assert dict(zip(gate.observations.factors, [one.status for one in gate.decisions], strict=True)) == statuses


def test_the_published_gate_comes_out_of_its_assignments_and_traces(
    published: tuple[Path, list[dict[str, str]], Json], tmp_path: Path
) -> None:
    source, rows, expected = published
    observations = read_observations(source)
    assert observations.budget == 10 and len(observations.task_ids) == len(rows)
    assert "every mask is proven from the texts that were shown (M20)" in str(observations.notes)
    gate = fit_gate(observations, resamples=100)
    assert_published(gate, expected)
    assert {"steps", "prompt_tokens", "completion_tokens", "protocol_faults", "invalid_actions"} <= set(gate.outcomes)

    imported = formats.read(source)
    assert formats.export(imported, formats.named("imported"), tmp_path / "in") == ()
    again = read_observations(tmp_path / "in")
    assert again.sha256 == observations.sha256 and again.interventions == observations.interventions
    assert_published(fit_gate(again, resamples=100), expected)


def test_a_gate_becomes_a_contributions_file_and_comes_back(
    published: tuple[Path, list[dict[str, str]], Json], tmp_path: Path
) -> None:
    source, _, expected = published
    imported = formats.read(source)
    moved = Import("elsewhere", gate=imported.gate)
    lost = formats.export(moved, formats.named("shopsimrl-gate"), tmp_path / "gate")
    costs = "steps, prompt_tokens, completion_tokens, protocol_faults, invalid_actions"
    bare = ", ".join(f"bare_{name}" for name in costs.split(", "))
    assert lost == (f"of the gate, not held as they were: {costs}, {bare}",)
    document = json.loads((tmp_path / "gate" / "contributions.json").read_text(encoding="utf-8"))
    assert "estimates" not in document
    assert_published(fit_gate(read_observations(tmp_path / "gate"), resamples=100), expected)
    assert_published(fit_gate(read_observations(tmp_path / "gate" / "contributions.json"), resamples=100), expected)


def test_a_cold_start_gate_is_read_and_goes_back_file_by_file(draft: Path, tmp_path: Path) -> None:
    found = formats.read(draft)
    assert found.format == "shopsimrl-gate" and found.gate is not None
    assert [(item.slot, item.kind) for item in found.gate.interventions] == [(name, "draft") for name in CHUNKS]
    assert {episode.source.file for episode in found.episodes} == {"traces.jsonl", "bare/traces.jsonl"}
    folder.save(found, tmp_path / "in")
    assert formats.export(formats.read(tmp_path / "in"), formats.named("shopsimrl-gate"), tmp_path / "out") == ()
    for source in draft.rglob("*"):
        other = tmp_path / "out" / source.relative_to(draft)
        if source.name == "traces.jsonl":
            assert elsewhere.read_lines(other) == elsewhere.read_lines(source)
        elif source.is_file():
            assert other.read_bytes() == source.read_bytes()


REWARDS = st.sampled_from(["", "0", "1", "0.5", repr(1 / 3)])


@given(st.data(), st.lists(st.sampled_from(["chunk-1", "核价", "online-1"]), min_size=1, max_size=3, unique=True))
@settings(deadline=None, max_examples=50)
def test_pairs_come_back_from_a_contributions_file(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, ids: list[str]
) -> None:
    rows = data.draw(st.integers(1, 5))
    masks = st.text("01", min_size=len(ids), max_size=len(ids))
    column = {"mask": masks, "reward": REWARDS, "bare_reward": REWARDS, "r_att": REWARDS, "bare_r_att": REWARDS}
    cells = {name: data.draw(st.lists(values, min_size=rows, max_size=rows)) for name, values in column.items()}
    cells |= {"task_id": [f"任务{k}" for k in range(rows)], "sample": ["0"] * rows, "origin": ["simulated x"] * rows}
    factors = tuple(Intervention(name, name, order=k, title="标题") for k, name in enumerate(ids, 1))
    budget = data.draw(st.none() | st.integers(1, 9))
    gate = Columns(
        "g", "0" * 64, rows, cells, ("x",) * rows, factors, budget, ("task-9",), data.draw(st.integers(1, 3))
    )
    place = tmp_path_factory.mktemp("g") / "gate"
    assert formats.export(Import("x", gate=gate), formats.named("shopsimrl-gate"), place) == ()
    again = gate_folder.columns(place)
    assert (again.budget, again.dropped, again.owed) == (gate.budget, gate.dropped, gate.owed)


def rewrite(path: Path, change: Callable[[Any], object]) -> None:
    document = json.loads(path.read_text(encoding="utf-8"))
    change(document)
    elsewhere.write_json(path, document)


def relined(path: Path, change: Callable[[list[Json]], object]) -> None:
    lines = elsewhere.read_lines(path)
    change(lines)
    elsewhere.write_lines(path, lines)


def first_shown(lines: list[Json]) -> Json:
    return next(line for line in lines if line["selected_skills"])


def test_a_trace_that_shows_something_else_than_assigned_is_refused(draft: Path) -> None:
    relined(draft / "traces.jsonl", lambda lines: first_shown(lines)["selected_skills"].pop())
    with pytest.raises(DesignError, match=r"traces\.jsonl, line \d+, selected_skills: it shows .* was assigned"):
        read_observations(draft)


def test_a_bare_trace_that_shows_a_skill_is_refused(draft: Path) -> None:
    relined(draft / "bare" / "traces.jsonl", lambda lines: lines[3].update(elsewhere.trace(4, skills=[("query", "x")])))
    with pytest.raises(DesignError, match=r"bare/traces\.jsonl, line 4.*it shows query, and nothing was assigned"):
        read_observations(draft)


def test_one_id_with_two_texts_is_refused(draft: Path) -> None:
    relined(draft / "traces.jsonl", lambda lines: first_shown(lines)["selected_skills"][0].update(content="别的"))
    with pytest.raises(DesignError, match="has another text than elsewhere"):
        read_observations(draft)


def test_a_trace_that_does_not_tell_what_it_shows_is_refused(draft: Path) -> None:
    relined(draft / "traces.jsonl", lambda lines: lines[0].pop("selected_skills"))
    with pytest.raises(DesignError, match="it shows nothing that is told"):
        read_observations(draft)


@pytest.mark.parametrize(("part", "field"), [("model", "checkpoint_id"), ("runtime", "max_steps"), ("prompt", "x")])
def test_arms_that_differ_in_more_than_the_skill_are_refused(draft: Path, part: str, field: str) -> None:
    relined(draft / "bare" / "traces.jsonl", lambda lines: lines[5]["provenance"][part].update({field: "other"}))
    with pytest.raises(DesignError, match=rf"bare/traces\.jsonl, line 6: provenance\.{part} differs"):
        read_observations(draft)


def test_transport_and_concurrency_are_no_difference(draft: Path) -> None:
    relined(draft / "traces.jsonl", lambda lines: lines[0]["provenance"]["runtime"].update(concurrency=1))
    relined(draft / "traces.jsonl", lambda lines: lines[1]["provenance"]["model"].update(transport={}))
    assert len(read_observations(draft).task_ids) == 40


def test_a_task_completed_twice_is_refused_and_a_failure_before_is_not(draft: Path) -> None:
    relined(draft / "traces.jsonl", lambda lines: lines.insert(0, elsewhere.failed(1)))
    assert len(read_observations(draft).task_ids) == 40
    relined(draft / "traces.jsonl", lambda lines: lines.append(copy.deepcopy(lines[2])))
    with pytest.raises(InputError, match=r"line 42.*task 2, sample 0 was completed twice, first in line 3"):
        read_observations(draft)


def test_failed_and_absent_episodes_are_missing_and_never_zero(tmp_path: Path) -> None:
    place = elsewhere.draft_gate(tmp_path / "gate", CHUNKS, 60, spoil={5: elsewhere.failed(5)})
    relined(place / "bare" / "traces.jsonl", lambda lines: lines.pop(8))
    with pytest.raises(
        MissingError, match=r"2 of 60 pairs are incomplete; missing episodes masked: 1 .tasks 5.; bare: 1 .tasks 9."
    ):
        read_observations(place)
    admitted = read_observations(place, max_missing=0.05)
    assert len(admitted.task_ids) == 58 and admitted.missing is not None
    assert (admitted.missing.masked, admitted.missing.bare) == (("5",), ("9",))


def test_a_masked_trace_without_an_assignment_is_refused(draft: Path) -> None:
    relined(draft / "traces.jsonl", lambda lines: lines.append(elsewhere.trace(99)))
    with pytest.raises(InputError, match="task 99, sample 0 has no assignment"):
        read_observations(draft)


@pytest.mark.parametrize(
    ("change", "found"),
    [
        (lambda document: document["assignments"][0].update(mask=[1, 0]), r"assignments\.0: mask is \[1, 0\]"),
        (lambda document: document["assignments"][0].update(mask=[2, 0, 0]), r"assignments\.0: mask is \[2, 0, 0\]"),
        (lambda document: document["assignments"][1].update(included_chunk_ids=["x"]), "1: the mask shows"),
        (lambda document: document["assignments"][1].update(task_id=1), "1: task 1, sample 0 stands twice"),
        (lambda document: document["assignments"][1].pop("mask"), r"assignments\.1\.mask is not there"),
        (lambda document: document.update(chunk_ids=["a", "a", "b"]), "intervention_id 'a' appears twice"),
        (lambda document: document.update(chunk_ids=None, columns=["a"]), "columns names 'a', which stands in no slot"),
    ],
)  # fmt: skip
def test_assignments_that_contradict_themselves_are_refused(
    draft: Path, change: Callable[[Any], object], found: str
) -> None:
    rewrite(draft / "mask_assignments.json", change)
    with pytest.raises(InputError, match=rf"mask_assignments\.json.*{found}"):
        read_observations(draft)


@pytest.fixture
def stated(draft: Path, tmp_path: Path) -> Path:
    """The draft's gate with a contributions file beside assignments and traces."""
    gate_folder.write(Import("x", gate=formats.read(draft).gate), tmp_path / "only")
    (tmp_path / "only" / "contributions.json").rename(draft / "contributions.json")
    return draft


def test_what_a_contributions_file_states_is_compared_with_the_traces(stated: Path) -> None:
    rewrite(stated / "contributions.json", lambda told: told["contributions"].reverse())
    assert "steps" in read_observations(stated).masked
    rewrite(stated / "contributions.json", lambda told: told["observations_table"][6].update(bare_reward=0.125))
    with pytest.raises(DesignError, match=r"bare_reward is 0\.125, in the traces \S+, in task 7, sample 0"):
        read_observations(stated)


def test_without_the_bare_run_stated_pairs_are_taken_and_said_to_be_unproven(stated: Path) -> None:
    (stated / "bare" / "traces.jsonl").unlink()
    observations = read_observations(stated)
    assert len(observations.task_ids) == 40 and "steps" not in observations.masked
    assert "no proof that masks were shown (M20)" in str(observations.notes)
    everything = dict.fromkeys(CHUNKS, 1)
    rewrite(stated / "contributions.json", lambda told: told["observations_table"][7].update(mask=everything))
    with pytest.raises(
        DesignError, match=r"it shows check-price, chunk-规格, query, assigned is .*in task 8, sample 0"
    ):
        read_observations(stated)


def test_without_the_bare_run_the_gate_says_where_it_looked(draft: Path) -> None:
    (draft / "bare" / "traces.jsonl").unlink()
    rewrite(draft / "manifest.json", lambda document: document["plan"].update(gate={"bare_run_dir": "/runs/bare"}))
    with pytest.raises(InputError, match=r"the bare run is not here; the gate's files name /runs/bare.*copy or link"):
        read_observations(draft)


def test_a_folder_without_a_gate_is_refused_by_what_it_may_hold(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"this is a directory that holds no gate\. Allowed: contributions.json"):
        read_observations(tmp_path)
    for name in ("a.json", "b.json"):
        elsewhere.write_json(tmp_path / name, {"schema_version": "shopsimrl-chunk-mask-assignments-v1"})
    with pytest.raises(InputError, match=r"a\.json and b\.json are both assignments"):
        read_observations(tmp_path)


def test_a_pool_tells_an_addition_of_now_from_one_that_is_in_force(tmp_path: Path) -> None:
    old = elsewhere.skill("online-0123456789abcdef", "多看几件", "看过三件再定")
    new = elsewhere.candidate("核价", "先看预算")
    names = {"intervention_id": old["skill_id"]}, {"intervention_id": new["candidate_id"]}
    interventions = [one | {"logical_chunk_id": one["intervention_id"]} for one in names]
    scores = dict.fromkeys((*elsewhere.PARTS, *(f"bare_{name}" for name in elsewhere.PARTS)), "1")
    rows = [{"task_id": str(k), "mask": f"{k % 4:02b}", **scores} for k in range(1, 41)]
    rows[1:9:3] = [row | {"r_option": "0"} for row in rows[1:9:3]]
    place = elsewhere.online_gate(tmp_path / "gate", rows, interventions)
    kinds = [item.kind for item in read_observations(place).interventions]
    assert kinds == ["candidate", "candidate"]
    assert f"though they may be in force: {old['skill_id']}, {new['candidate_id']}" in str(
        read_observations(place).notes
    )
    elsewhere.write_json(place / "candidate_pool.json", elsewhere.pool([old], [new]))
    told = read_observations(place)
    assert [(item.kind, item.operation) for item in told.interventions] == [("current", None), ("candidate", "ADD")]
    assert "may be in force" not in str(told.notes)


def test_simulated_traces_are_labelled(tmp_path: Path) -> None:
    place = elsewhere.draft_gate(tmp_path / "gate", CHUNKS, tasks=40)
    for file in (place / "traces.jsonl", place / "bare" / "traces.jsonl"):
        relined(file, lambda lines: [line["provenance"]["model"].update(simulated=True) for line in lines])
    observations = read_observations(place)
    assert observations.simulated and "simulated: " in fit_gate(observations, resamples=100).verdict()
