"""ShopSimRL traces (`shopsimrl-episode-v4`) and run directories (reference 2.5, 2.6)."""

import json
import re
from collections.abc import Container, Iterable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from shopskill_lib.adapters.lossless import Part, given_back, kept, read_json_lines, read_strictly, refusal, typed
from shopskill_lib.adapters.recorded import Import, RecordedEpisode, Remainder, Source, lacking, latest
from shopskill_lib.files import write_bytes
from shopskill_lib.records import Failure, Hint, PriceResolution, Purchase, Usage, total_usage
from shopskill_lib.trajectories import Turn

SCHEMA, FAMILY = "shopsimrl-episode-v4", "shopsimrl-episode-"
NAME, RUN = "shopsimrl-traces", "shopsimrl-run"
TRACED = (NAME, RUN, "shopsimrl-gate")
"""Formats whose episodes are traces."""

TRACES, MANIFEST, SUMMARY = "traces.jsonl", "manifest.json", "summary.json"

OPERATIONAL = ("transport", "concurrency")
"""Parts of a trace's provenance that no result depends on (reference 3.9)."""


class _Job(Part):
    task_id: int | str
    sample_id: int | None = None
    seed: int | None = None
    split: str | None = None


class _Model(Part):
    model: str | None = None
    checkpoint_id: str | None = None
    simulated: bool = False


class _Provenance(Part):
    model: _Model | None = None


class _Reset(Part):
    task_instruction: str
    user_persona: dict[str, Any] | None = None


class _Skill(Part):
    skill_id: str
    content: str


class _Usage(Part):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None


class _Answer(Part):
    usage: _Usage | None = None


class _Feedback(Part):
    reason: str | None = None


class _Environment(Part):
    action_feedback: _Feedback | None = None


class _Fault(Part):
    code: str


class _Step(Part):
    step_index: int
    observation: str
    tools: list[dict[str, Any]] | None = None
    model: _Answer | None = None
    action: str | None = None
    environment: _Environment | None = None
    protocol_error: _Fault | str | None = None


class _Purchase(Part):
    asin: str
    name: str
    category: str = ""
    options: dict[str, str] = Field(default_factory=dict)
    price: float | int | None = None


class _Price(Part):
    status: Literal["pass", "unverifiable"]
    method: str
    price: float | int | None = None


class _Final(Part):
    done: bool = False
    reward: float | int | None = None
    reward_detail: dict[str, Any] = Field(default_factory=dict)
    purchase: dict[str, Any] = Field(default_factory=dict)
    termination_reason: str | None = None


class _Error(Part):
    type: str
    message: str


class _Trace(Part):
    schema_version: Literal["shopsimrl-episode-v4"]
    episode_id: str
    status: Literal["completed", "failed"]
    job: _Job
    provenance: _Provenance | None = None
    started_at: str | None = None
    ended_at: str | None = None
    reset: _Reset | None = None
    selected_skills: list[_Skill] | None = None
    conversation: list[dict[str, Any]] | None = None
    steps: list[_Step] | None = None
    final: _Final | None = None
    error: _Error | None = None


def recognises(path: Path, first: Any) -> bool:
    """Tell whether a file holds traces."""
    return path.is_file() and isinstance(first, dict) and str(first.get("schema_version")).startswith(FAMILY)


def recognises_run(path: Path, _first: Any) -> bool:
    """Tell whether a folder is a run directory."""
    return (path / TRACES).is_file() and (path / MANIFEST).is_file()


def read(path: Path) -> Import:
    """Read a file of traces, one JSON line an attempt; failed attempts stay failures.

    Raises:
        InputError: a line is no trace of this version, or a field is of another kind; both are named.
    """
    episodes, remainders = read_traces(path, NAME)
    return Import(NAME, episodes, remainders, lacks=lacking(episodes))


def read_run(path: Path) -> Import:
    """Read a run directory; manifest and summary are kept as they are (see `read`)."""
    episodes, remainders = read_traces(path / TRACES, RUN)
    files = {name: (path / name).read_bytes() for name in (MANIFEST, SUMMARY) if (path / name).exists()}
    return Import(RUN, episodes, remainders, files=files, lacks=(*lacking(episodes), *_unfinished(path, episodes)))


def write(imported: Import, path: Path) -> None:
    """Write traces, as their source had them where they came from ShopSimRL.

    Raises:
        InputError: an episode was changed after it was read, or has no task or no sample.
    """
    ours = imported.format in TRACED
    lines = [
        given_back(_built(episode), remainder.rest, _where(episode)) if ours else _built(episode)
        for episode, remainder in zip(imported.episodes, imported.remainders, strict=True)
    ]
    write_bytes(path, "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines).encode())


def write_run(imported: Import, path: Path) -> None:
    """Write a run directory that was imported.

    Raises:
        InputError: it was not imported from one: nobody but its own program can plan a run.
    """
    if MANIFEST not in imported.files:
        raise refusal("there is no manifest.json", str(path), f"an import of a run directory, or the format {NAME}")
    write(imported, path / TRACES)
    for name in (MANIFEST, SUMMARY):
        if name in imported.files:
            write_bytes(path / name, imported.files[name])


def read_traces(path: Path, name: str, file: str = "") -> tuple[tuple[RecordedEpisode, ...], tuple[Remainder, ...]]:
    """Read traces, for an import of this format, with what is not typed of them.

    In the import the file has its own name, or another (`file`).
    """
    episodes, remainders = list[RecordedEpisode](), list[Remainder]()
    for line, document in read_json_lines(path):
        where = f"{path}, line {line}"
        trace = typed(_Trace, document, where)
        source = Source(format=name, file=file or path.name, line=line)
        episodes.append(_episode(trace, source, f"{where}, {trace.episode_id}"))
        rest = kept(document, _built(episodes[-1]))
        remainders.append(Remainder(trajectory_id=trace.episode_id, rest=rest))
    return tuple(episodes), tuple(remainders)


def settings_of(episode: RecordedEpisode, remainder: Remainder) -> dict[str, Any]:
    """Return what a trace says of model, environment, prompt and runtime, without what no result depends on."""
    provenance = given_back(_built(episode), remainder.rest, _where(episode)).get("provenance") or {}
    told = {name: provenance.get(name) for name in ("model", "environment", "prompt", "runtime")}
    return {name: _without(part, OPERATIONAL) for name, part in told.items()}


def _without(part: Any, names: Container[str]) -> Any:
    return {key: value for key, value in part.items() if key not in names} if isinstance(part, dict) else part


def _episode(trace: _Trace, source: Source, where: str) -> RecordedEpisode:
    final = trace.final or _Final()
    completed = trace.status == "completed"
    if completed and not final.done:
        raise refusal("final.done is not true in a completed episode", where, "a final result, or status failed")
    model = (trace.provenance and trace.provenance.model) or _Model()
    steps = trace.steps
    return RecordedEpisode(
        trajectory_id=trace.episode_id,
        task_id=str(trace.job.task_id),
        sample=trace.job.sample_id,
        split=trace.job.split,
        instruction=None if trace.reset is None else trace.reset.task_instruction,
        persona=None if trace.reset is None else trace.reset.user_persona,
        messages=None if trace.conversation is None else tuple(trace.conversation),
        tools=_common_tools(steps or ()),
        turns=None if steps is None else tuple(map(_turn, steps)),
        hints=None
        if trace.selected_skills is None
        else tuple(Hint(id=skill.skill_id, text=skill.content) for skill in trace.selected_skills),
        ending=final.termination_reason if completed else None,
        reward=_reward(final, where) if completed else None,
        parts=_parts(final.reward_detail, where) if completed else None,
        purchase=_purchase(final, where) if completed and final.purchase else None,
        model=model.model,
        checkpoint=model.checkpoint_id,
        seed=trace.job.seed,
        usage=total_usage(map(_usage, steps or ())),
        started_at=_time(trace.started_at, "started_at", where),
        ended_at=_time(trace.ended_at, "ended_at", where),
        status=trace.status,
        error=None if trace.error is None else Failure(kind=trace.error.type, message=trace.error.message),
        simulated=model.simulated,
        source=source,
    )


def _turn(step: _Step) -> Turn:
    fault = step.protocol_error
    feedback = (step.environment and step.environment.action_feedback) or _Feedback()
    return Turn(
        step=step.step_index,
        page=step.observation,
        action=step.action,
        fault=fault.code if isinstance(fault, _Fault) else fault,
        feedback=feedback.reason,
    )


def _usage(step: _Step) -> Usage | None:
    """Return the tokens of a turn; None unless the server counted both kinds."""
    told = (step.model and step.model.usage) or _Usage()
    if told.prompt_tokens is None or told.completion_tokens is None:
        return None
    return Usage(prompt_tokens=told.prompt_tokens, completion_tokens=told.completion_tokens)


def _common_tools(steps: Iterable[_Step]) -> tuple[dict[str, Any], ...] | None:
    """Return the tools where every turn had the same; their choices usually follow the page."""
    offered = [step.tools for step in steps]
    first = offered[0] if offered else None
    return tuple(first) if first is not None and all(tools == first for tools in offered) else None


def _reward(final: _Final, where: str) -> float | None:
    """Return the reward, which is the strict one where the parts are told (M4)."""
    if final.reward is None:
        return None
    strict = final.reward_detail.get("r_strict", final.reward)
    if not 0 <= final.reward <= 1 or not isinstance(strict, int | float) or abs(final.reward - strict) > 1e-12:
        raise refusal(
            f"final.reward is {final.reward!r}, r_strict {strict!r}", where, "a number from 0 to 1, equal to r_strict"
        )
    return float(final.reward)


def _parts(detail: Mapping[str, Any], where: str) -> dict[str, float] | None:
    """Return the parts of the reward; what else its detail tells may rest on gold."""
    parts = {name: value for name, value in detail.items() if name.startswith("r_")}
    for name, value in parts.items():
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise refusal(f"final.reward_detail.{name} is {value!r}", where, "a number")
    return {name: float(value) for name, value in parts.items()} or None


def _purchase(final: _Final, where: str) -> Purchase:
    """Return what was bought."""
    told = typed(_Purchase, final.purchase, f"{where}, final.purchase")
    found = final.reward_detail.get("price_resolution")
    if found is None:
        status = "unverifiable" if told.price is None else "pass"
        found = {"status": status, "method": "price of the recorded purchase", "price": told.price}
    price = typed(_Price, found, f"{where}, final.reward_detail.price_resolution")
    return Purchase(
        asin=told.asin,
        title=told.name,
        category=told.category,
        options=told.options,
        price=PriceResolution(status=price.status, method=price.method, price=price.price),
    )


def _time(text: str | None, field: str, where: str) -> datetime | None:
    """Return a time with its zone."""
    if text is None:
        return None
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        found = None
    if found is None or found.tzinfo is None:
        raise refusal(f"{field} is {text[:40]!r}", where, "an ISO time with its zone")
    return found


def _built(episode: RecordedEpisode) -> dict[str, Any]:
    """Return what a record alone makes of a trace; fields that a trace has no place for are left out."""
    if episode.task_id is None:
        raise refusal("there is no task_id", _where(episode), "episodes that tell their task")
    number = re.fullmatch(r"0|[1-9]\d{0,17}", episode.task_id)
    model = {"model": episode.model, "checkpoint_id": episode.checkpoint, "simulated": episode.simulated or None}
    return {
        "schema_version": SCHEMA,
        "episode_id": episode.trajectory_id,
        "status": episode.status or "completed",
        "job": {
            "task_id": int(episode.task_id) if number else episode.task_id,
            "sample_id": episode.sample,
            "seed": episode.seed,
            "split": episode.split,
        },
        "provenance": {"model": {name: value for name, value in model.items() if value is not None}},
        "started_at": episode.started_at and episode.started_at.isoformat(),
        "ended_at": episode.ended_at and episode.ended_at.isoformat(),
        "reset": None
        if episode.instruction is None
        else {"task_instruction": episode.instruction, "user_persona": episode.persona},
        "selected_skills": None
        if episode.hints is None
        else [{"skill_id": hint.id, "content": hint.text} for hint in episode.hints],
        "conversation": None if episode.messages is None else list(episode.messages),
        "steps": None if episode.turns is None else [_step(turn, episode) for turn in episode.turns],
        "final": None if episode.status == "failed" else _final(episode),
        "error": episode.error and {"type": episode.error.kind, "message": episode.error.message},
    }


def _step(turn: Turn, episode: RecordedEpisode) -> dict[str, Any]:
    step: dict[str, Any] = {"step_index": turn.step, "observation": turn.page, "action": turn.action}
    if episode.tools is not None:
        step["tools"] = list(episode.tools)
    if turn.feedback is not None:
        step["environment"] = {"action_feedback": {"action": turn.action, "reason": turn.feedback}}
    if turn.fault is not None:
        step["protocol_error"] = {"code": turn.fault}
    return step


def _final(episode: RecordedEpisode) -> dict[str, Any]:
    detail: dict[str, Any] = {
        name: int(value) if name == "r_success" and value == int(value) else value
        for name, value in (episode.parts or {}).items()
    }
    bought, purchase = episode.purchase, dict[str, Any]()
    if bought is not None:
        detail["price_resolution"] = bought.price.model_dump(mode="json")
        purchase = {
            "asin": bought.asin,
            "name": bought.title,
            "category": bought.category,
            "options": bought.options,
            "price": bought.price.price,
        }
    return {
        "done": True,
        "reward": episode.reward,
        "reward_detail": detail,
        "purchase": purchase,
        "termination_reason": episode.ending,
    }


def _where(episode: RecordedEpisode) -> str:
    return f"{episode.source.place}, {episode.trajectory_id}"


def _unfinished(path: Path, episodes: Iterable[RecordedEpisode]) -> tuple[str, ...]:
    """Say how many planned episodes have no completed trace, where the manifest tells the plan."""
    manifest = read_strictly(path / MANIFEST)
    plan = manifest.get("plan") if isinstance(manifest, dict) else None
    jobs = plan.get("jobs") if isinstance(plan, dict) else None
    owed = len(jobs) - len(latest(episodes)) if isinstance(jobs, list) else 0
    return (f"{owed} of {len(jobs or ())} planned episodes have no completed trace",) if owed > 0 else ()
