"""ShopSimRL traces and run directories: typed, written back equal, or refused by file, line and field."""

import copy
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import elsewhere
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shopskill_lib.adapters import folder, formats, shopsimrl
from shopskill_lib.adapters.recorded import Import, RecordedEpisode, Remainder, Source, as_trajectories, unreadable
from shopskill_lib.errors import FirewallError, InputError
from shopskill_lib.records import Failure, Hint, PriceResolution, Purchase
from shopskill_lib.trajectories import Turn

TRACES = [
    elsewhere.failed(1829),
    elsewhere.trace(1828),
    elsewhere.trace(1829, language="zh", skills=[("chunk-核价", "### 核价\n\n先看价格")], parts=(1, 0.5, 1, 1)),
    elsewhere.ended(1830, "generation_length"),
    elsewhere.training(1831),
]


@pytest.fixture
def traces(tmp_path: Path) -> Path:
    return elsewhere.write_lines(tmp_path / "traces.jsonl", TRACES)


def test_a_trace_is_read_with_its_types(traces: Path) -> None:
    found = formats.read(traces)
    assert found.format == "shopsimrl-traces"
    _, plain, hinted, cut, trained = found.episodes
    assert (plain.trajectory_id, plain.task_id, plain.sample, plain.split) == (
        "task-001828__sample-000",
        "1828",
        0,
        "val",
    )
    assert (plain.model, plain.checkpoint, plain.seed, plain.simulated) == ("qwen3.5-4b", "iter-80", 1827578437, False)
    assert plain.usage is not None and (plain.usage.prompt_tokens, plain.usage.completion_tokens) == (2700, 93)
    assert plain.turns is not None and [turn.fault for turn in plain.turns] == [None, "tool_call_count", None]
    assert [turn.feedback for turn in plain.turns] == ["executed", None, "executed"]
    assert plain.messages is not None and plain.messages[2]["tool_calls"][0]["id"] == "call-search"
    assert plain.purchase is not None and plain.purchase.options == {"尺码": "L"} and plain.purchase.price.price == 59
    assert plain.parts is not None and plain.parts["r_success"] == 1 and "target_asin_match" not in plain.parts
    assert plain.hints == () and plain.persona is None and plain.tools is None
    assert hinted.hints == (Hint(id="chunk-核价", text="### 核价\n\n先看价格"),)
    assert (hinted.reward, hinted.persona) == (0.5, {"喜好": "轻便", "尺码": "L"})
    assert (cut.reward, cut.ending, cut.purchase) == (0.0, "generation_length", None)
    assert (trained.model, trained.checkpoint, trained.usage, trained.split) == (None, None, None, "train")
    assert trained.source == Source(format="shopsimrl-traces", file="traces.jsonl", line=5)


def test_a_failed_trace_is_a_failure_and_never_a_reward(traces: Path) -> None:
    found = formats.read(traces)
    lost = found.episodes[0]
    assert (lost.status, lost.reward, lost.ending, lost.parts) == ("failed", None, None, None)
    assert lost.error == Failure(kind="ReadTimeout", message="timed out")
    assert "1 failed attempts are kept as failures, never as rewards (I20)" in found.lacks
    with_result = elsewhere.failed() | {"final": TRACES[1]["final"]}
    assert shopsimrl.read(elsewhere.write_lines(traces, [with_result])).episodes[0].reward is None


def test_what_is_not_told_is_said_with_what_it_switches_off(traces: Path) -> None:
    said = "\n".join(formats.read(traces).lacks)
    assert "checkpoint: not told in 1 of 4 episodes; nothing is claimed of any weights" in said
    assert "usage: not told in 1 of 4 episodes; no costs" in said
    assert "reward:" not in said and "hints:" not in said


def test_the_latest_completed_attempt_is_the_trajectory(traces: Path) -> None:
    episodes = shopsimrl.read(traces).episodes
    made = as_trajectories(episodes)
    assert [one.trajectory_id[5:11] for one in made] == ["001828", "001829", "001830", "001831"]
    assert [one.success for one in made] == [True, False, False, True]
    assert made[1].reward == 0.5 and made[1].hints[0].id == "chunk-核价"
    assert unreadable(episodes) == ("1 failed attempts left out: an error is no result (I20)",)
    with pytest.raises(InputError, match="there is no completed episode"):
        as_trajectories(episodes[:1])


def test_import_and_export_give_the_traces_back(traces: Path, tmp_path: Path) -> None:
    folder.save(formats.read(traces), tmp_path / "in")
    assert (
        formats.export(formats.read(tmp_path / "in"), formats.named("shopsimrl-traces"), tmp_path / "out.jsonl") == ()
    )
    assert elsewhere.read_lines(tmp_path / "out.jsonl") == TRACES


def test_a_run_directory_keeps_manifest_and_summary(tmp_path: Path) -> None:
    source = elsewhere.run_directory(tmp_path / "run", TRACES, jobs=7)
    found = formats.read(source)
    assert found.format == "shopsimrl-run" and "3 of 7 planned episodes have no completed trace" in found.lacks
    folder.save(found, tmp_path / "in")
    formats.export(formats.read(tmp_path / "in"), formats.named("shopsimrl-run"), tmp_path / "out")
    for name in ("manifest.json", "summary.json"):
        assert (tmp_path / "out" / name).read_bytes() == (source / name).read_bytes()
    assert elsewhere.read_lines(tmp_path / "out" / "traces.jsonl") == TRACES
    traces = shopsimrl.read(source / "traces.jsonl")
    with pytest.raises(InputError, match=r"there is no manifest\.json"):
        shopsimrl.write_run(traces, tmp_path / "other")


def test_gold_stands_in_no_public_file_of_an_import(traces: Path, tmp_path: Path) -> None:
    found = formats.read(traces)
    folder.save(found, tmp_path / "in")
    held = {path.name: path.read_text(encoding="utf-8") for path in (tmp_path / "in").iterdir() if path.is_file()}
    for word in (*elsewhere.GOLD, "target_asin_match", "price_upper"):
        assert word in held["source.jsonl"]
        assert [name for name, text in held.items() if word in text] == ["source.jsonl"]
    told = "".join(trajectory.model_dump_json() for trajectory in as_trajectories(found.episodes))
    assert elsewhere.REQUEST["zh"] in told and not any(word in told for word in elsewhere.GOLD)
    with pytest.raises(FirewallError, match="is privileged"):
        folder.save(Import("x", episodes=found.remainders, remainders=found.remainders), tmp_path / "b")  # type: ignore[arg-type]


def _without(name: str) -> Any:
    return {key: value for key, value in TRACES[1].items() if key != name}


def _changed(path: str, value: Any) -> Any:
    document = copy.deepcopy(TRACES[1])
    *parents, last = path.split(".")
    place: Any = document
    for part in parents:
        place = place[int(part)] if part.isdigit() else place[part]
    place[last] = value
    return document


REFUSED: list[tuple[Any, str]] = [
    (_changed("schema_version", "shopsimrl-episode-v3"), "schema_version is 'shopsimrl-episode-v3'"),
    (_without("job"), "job is not there"),
    (_changed("job.task_id", None), "job.task_id"),
    (_changed("job.sample_id", "0"), "job.sample_id is '0'"),
    (_changed("status", "done"), "status is 'done'"),
    (_changed("steps.1.observation", 7), "steps.1.observation is 7"),
    (_changed("selected_skills", [{"skill_id": "a"}]), "selected_skills.0.content is not there"),
    (_changed("conversation", ["你好"]), "conversation.0 is '你好'"),
    (_changed("reset.user_persona", "高个子"), "reset.user_persona is '高个子'"),
    (_changed("final.done", False), "final.done is not true in a completed episode"),
    (_changed("final", None), "final.done is not true in a completed episode"),
    (_changed("final.reward", 0.5), "final.reward is 0.5, r_strict 1.0"),
    (_changed("final.reward", True), "final.reward"),
    (_changed("final.reward_detail.r_att", "1"), "final.reward_detail.r_att is '1'"),
    (_changed("final.purchase.options", {"尺码": 44}), "final.purchase: options.尺码 is 44"),
    (_changed("final.reward_detail.price_resolution", {"status": "new"}), "price_resolution: status is 'new'"),
    (_changed("started_at", "2026-01-02T03:04:05"), "started_at is '2026-01-02T03:04:05'"),
    (_changed("ended_at", "昨天"), "ended_at is '昨天'"),
    ([1], r"the entry is \[1\]"),
]


@pytest.mark.parametrize(("document", "found"), REFUSED, ids=[found for _, found in REFUSED])
def test_a_field_of_another_kind_is_refused_by_line(tmp_path: Path, document: Any, found: str) -> None:
    path = elsewhere.write_lines(tmp_path / "t.jsonl", [TRACES[0], document])
    with pytest.raises(InputError, match=rf"t\.jsonl, line 2.*{found}"):
        shopsimrl.read(path)


def test_another_version_and_a_torn_line_are_refused_by_name(tmp_path: Path) -> None:
    old = elsewhere.write_lines(tmp_path / "t.jsonl", [_changed("schema_version", "shopsimrl-episode-v3")])
    with pytest.raises(InputError, match=r"t\.jsonl, line 1: schema_version .* Allowed: Input should be 'shopsimrl-ep"):
        formats.read(old)
    torn = tmp_path / "torn.jsonl"
    torn.write_text(json.dumps(TRACES[1]) + "\n" + json.dumps(TRACES[1])[:200], encoding="utf-8")
    with pytest.raises(InputError, match=r"torn\.jsonl, line 2.*cut off"):
        shopsimrl.read(torn)


TEXT = st.text("ab 外套0\n“”<>", max_size=8)
WORD = st.text("ab外0", min_size=1, max_size=5)
PART = st.sampled_from([0.0, 0.1, 1 / 3, 0.5, 1.0])
TIMES = st.datetimes(datetime(2020, 1, 1), datetime(2030, 1, 1), timezones=st.just(UTC))
TURNS = st.builds(
    Turn, step=st.integers(1, 40), page=TEXT, action=st.none() | TEXT, fault=st.none() | WORD, feedback=st.none() | WORD
)
PURCHASES = st.builds(
    Purchase,
    asin=WORD,
    title=TEXT,
    category=TEXT,
    options=st.dictionaries(WORD, TEXT, max_size=2),
    price=st.builds(
        PriceResolution,
        status=st.sampled_from(["pass", "unverifiable"]),
        method=WORD,
        price=st.none() | st.floats(0, 1e6),
    ),
)


@st.composite
def episodes(draw: st.DrawFn) -> RecordedEpisode:
    """Episodes as a trace can hold them: completed or failed, Chinese or English."""
    completed = draw(st.booleans())
    parts = {name: draw(PART) for name in ("r_type", "r_att")}
    strict = parts["r_type"] * parts["r_att"]
    told = completed and draw(st.booleans())
    instruction = draw(st.none() | TEXT)
    steps = draw(st.none() | st.lists(TURNS, max_size=3))
    return RecordedEpisode(
        trajectory_id=draw(WORD),
        task_id=draw(st.integers(0, 10**6).map(str) | st.sampled_from(["0012", "任务", "-3", "1.5"])),
        sample=draw(st.none() | st.integers(0, 9)),
        split=draw(st.none() | WORD),
        instruction=instruction,
        persona=None if instruction is None else draw(st.none() | st.dictionaries(WORD, TEXT, max_size=2)),
        messages=draw(
            st.none() | st.lists(st.fixed_dictionaries({"role": WORD, "content": TEXT}), max_size=2).map(tuple)
        ),
        tools=({"type": "function"},) if steps and draw(st.booleans()) else None,
        turns=None if steps is None else tuple(steps),
        hints=draw(st.none() | st.lists(st.builds(Hint, id=WORD, text=TEXT), max_size=2).map(tuple)),
        ending=draw(st.none() | WORD) if completed else None,
        reward=strict if told else None,
        parts=parts | {"r_strict": strict, "r_success": float(strict == 1)} if told else None,
        purchase=draw(st.none() | PURCHASES) if completed else None,
        model=draw(st.none() | WORD),
        checkpoint=draw(st.none() | WORD),
        seed=draw(st.none() | st.integers(0, 2**31)),
        usage=None,
        started_at=draw(st.none() | TIMES),
        ended_at=draw(st.none() | TIMES),
        status="completed" if completed else "failed",
        error=draw(st.none() | st.builds(Failure, kind=WORD, message=TEXT)),
        simulated=draw(st.booleans()),
        source=Source(format="x", file="x", line=1),
    )


@given(st.lists(episodes(), min_size=1, max_size=3))
@settings(deadline=None)
def test_export_and_import_give_the_episodes_back(tmp_path_factory: pytest.TempPathFactory, made: list[Any]) -> None:
    place = tmp_path_factory.mktemp("t") / "traces.jsonl"
    rests = tuple(Remainder(trajectory_id=one.trajectory_id, rest={}) for one in made)
    lost = formats.export(Import("elsewhere", tuple(made), rests), formats.named("shopsimrl-traces"), place)
    assert lost == ()
    again = shopsimrl.read(place)
    assert [one.model_copy(update={"source": made[0].source}) for one in again.episodes] == made
    shopsimrl.write(again, place.with_name("again.jsonl"))
    assert elsewhere.read_lines(place.with_name("again.jsonl")) == elsewhere.read_lines(place)


NOISE = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(WORD, inner, max_size=2),
    max_leaves=4,
)


@given(st.dictionaries(st.sampled_from(["goal", "more", "外"]), NOISE), NOISE, st.sampled_from([0, 0.0, 1, 1.0]))
@settings(deadline=None)
def test_import_and_export_give_any_trace_back(
    tmp_path_factory: pytest.TempPathFactory, more: dict[str, Any], noise: Any, reward: float
) -> None:
    document = copy.deepcopy(TRACES[2]) | more
    document["final"] |= more | {"reward": reward}
    document["final"]["reward_detail"] = {"r_strict": reward, "evidence": noise}
    document["steps"][0]["environment"]["observation_state"] = noise
    document["reset"]["reason"] = noise
    place = tmp_path_factory.mktemp("t")
    found = shopsimrl.read(elsewhere.write_lines(place / "t.jsonl", [document]))
    shopsimrl.write(found, place / "again.jsonl")
    (again,) = elsewhere.read_lines(place / "again.jsonl")
    assert json.dumps(again, sort_keys=True) == json.dumps(document, sort_keys=True)


def test_an_export_says_what_the_format_does_not_hold(traces: Path, tmp_path: Path) -> None:
    found = shopsimrl.read(traces)
    elsewhere_format = Import("another", found.episodes, found.remainders)
    lost = formats.export(elsewhere_format, formats.named("shopsimrl-traces"), tmp_path / "out.jsonl")
    assert lost == ("usage is not held as it was in 3 episodes",)
    assert all("goal" not in document["final"] for document in elsewhere.read_lines(tmp_path / "out.jsonl")[1:])
