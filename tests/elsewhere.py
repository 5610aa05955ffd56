"""Artifacts as ShopSimRL writes them, built from the description of its formats: traces, banks, pools, gates."""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from shopskill_lib.records import fingerprint

Json = dict[str, Any]

GOLD = ("760404877482", "Golden quillmarsh kettle", "密语金壶")
"""What only the source file and the audit may hold."""

PARTS = ("r_type", "r_att", "r_option", "r_price")

PRODUCT = {"en": ("812345678901", "Veltra trail running jacket"), "zh": ("812345678902", "维特拉越野跑外套")}
REQUEST = {"en": "A running jacket in size L, at most 90", "zh": "想买一件L码的跑步外套，预算不超过90元"}
PERSONA = {"zh": {"喜好": "轻便", "尺码": "L"}, "en": None}
MODEL = {
    "provider": "openai_compatible",
    "checkpoint_id": "iter-80",
    "model": "qwen3.5-4b",
    "base_url": "http://127.0.0.1:8000/v1",
    "transport": {"timeout_seconds": 180.0, "max_retries": 5, "retry_backoff_seconds": 1.0},
    "sampling": {"temperature": 0.6, "max_tokens": 512, "top_p": None, "send_seed": False},
}


def trace(
    task_id: int = 1828,
    *,
    language: str = "en",
    sample: int = 0,
    skills: Sequence[tuple[str, str]] = (),
    parts: Sequence[float] = (1.0, 1.0, 1.0, 1.0),
    split: str = "val",
    usage: bool = True,
) -> Json:
    """A completed trace of three turns, one of them a protocol error."""
    asin, title = PRODUCT[language]
    reward = parts[0] * parts[1] * parts[2] * parts[3]
    pages = ["首页" if language == "zh" else "Home", f"1. {title}", f"{title}\nL", "end"]
    steps = [
        _step(1, pages[0], f"search[{REQUEST[language][:6]}]", usage),
        _fault(2, pages[1], usage),
        _step(3, pages[1], "click[buy now]", usage),
    ]
    goal = {"task_id": task_id, "asin": GOLD[0], "name": GOLD[1], "instruction_text": f"{GOLD[2]} {REQUEST[language]}"}
    return {
        "schema_version": "shopsimrl-episode-v4",
        "episode_id": f"task-{task_id:06d}__sample-{sample:03d}",
        "status": "completed",
        "job": {"task_id": task_id, "sample_id": sample, "seed": 1827578437, "split": split},
        "provenance": {
            "model": MODEL,
            "environment": {"adapter": "shopsimulator_http", "environment_version": "shopsimulator-paper-aligned-v8"},
            "prompt": {"prompt_version": "shopsim-shopping-agent-tools-v2"},
            "skills": {"provider": "none"},
            "runtime": {"max_steps": 30, "action_protocol": "openai-function-tools-repair-v3", "concurrency": 8},
        },
        "started_at": "2026-01-02T03:04:05.123456+00:00",
        "ended_at": "2026-01-02T03:04:25+00:00",
        "duration_ms": 19876.5,
        "reset": {
            "task_instruction": REQUEST[language],
            "observation": pages[0],
            "message": f"Task {task_id} started",
            "idx": task_id,
            "task_mode": "persona" if PERSONA[language] else "standard",
            "user_persona": PERSONA[language],
        },
        "selected_skills": [
            {"skill_id": name, "content": text, "version": "active-1", "metadata": {"draft_order": k}}
            for k, (name, text) in enumerate(skills, 1)
        ],
        "conversation": [
            {"role": "system", "content": "你是购物助手" if language == "zh" else "You shop."},
            {"role": "user", "content": f"{REQUEST[language]}\n\n{pages[0]}"},
            {"role": "assistant", "content": None, "tool_calls": [_call("search", {"query": "外套 jacket"})]},
            {"role": "tool", "tool_call_id": "call-search", "content": pages[1]},
        ],
        "steps": steps,
        "final": {
            "done": True,
            "over": True,
            "reward": reward,
            "observation": pages[3],
            "reward_detail": _detail(parts, reward),
            "purchase": {
                "asin": asin,
                "name": title,
                "category": "a›b›c",
                "product_category": "",
                "instruction_text": "another task's words",
                "attributes": ["light"],
                "price": 59.0,
                "options": {"尺码": "L"},
            },
            "goal": goal,
            "termination_reason": "purchase",
        },
        "error": None,
    }


def failed(task_id: int = 1829, stage: str = "model_step_1") -> Json:
    """A failed trace: the shop never answered."""
    whole = trace(task_id)
    error = {"stage": stage, "type": "ReadTimeout", "message": "timed out", "traceback": "..."}
    return whole | {"status": "failed", "reset": None, "steps": [], "conversation": [], "final": None, "error": error}


def ended(task_id: int, reason: str, language: str = "zh") -> Json:
    """A trace that ended without a purchase."""
    whole = trace(task_id, language=language)
    detail = _detail((0.0, 0.0, 0.0, 0.0), 0.0) | {"termination_reason": reason}
    del detail["price_resolution"]
    whole["final"] |= {"reward": 0, "reward_detail": detail, "purchase": {}, "termination_reason": reason}
    return whole


def training(task_id: int) -> Json:
    """A trace as training leaves it: no usage, no model identity, no duration."""
    whole = trace(task_id, language="zh", split="train", usage=False)
    whole["provenance"].pop("model")
    whole.pop("duration_ms")
    for step in whole["steps"]:
        step["model"]["raw_output"] = "<tool_call>…</tool_call>"
    return whole


def write_lines(path: Path, documents: Iterable[Json]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    text = "".join(json.dumps(document, ensure_ascii=False) + "\n" for document in documents)
    path.write_text(text, encoding="utf-8")
    return path


def write_json(path: Path, document: object) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document, ensure_ascii=False, indent=2), encoding="utf-8")
    return path


def read_lines(path: Path) -> list[Json]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def run_directory(path: Path, traces: Sequence[Json], jobs: int = 0) -> Path:
    """A run directory with these traces, planned for this many jobs."""
    write_lines(path / "traces.jsonl", traces)
    plan = {"pipeline_version": "shopsimrl-v0.4", "jobs": [one["job"] for one in traces][:1] * (jobs or len(traces))}
    manifest = {"schema_version": "shopsimrl-run-manifest-v1", "plan_fingerprint": fingerprint(plan), "plan": plan}
    write_json(path / "manifest.json", manifest)
    write_json(path / "summary.json", {"schema_version": "shopsimrl-eval-summary-v2", "counts": {"completed": 1}})
    return path


def skill(name: str, title: str, body: str, **more: Any) -> Json:
    content = f"### {title}\n\n{body}"
    return {"skill_id": name, "content": content, "version": "active-1", "enabled": True, "task_ids": None} | more


def bank(*skills: Json) -> Json:
    return {
        "schema_version": "shopsimrl-skillbank-v1",
        "bank_version": "cold-start-gate-a-selected-v1",
        "metadata": {"gate_status": {"gate_a": "passed", "gate_b": "not_run"}},
        "skills": list(skills),
    }


def pool(current: Sequence[Json], candidates: Sequence[Json], **more: Any) -> Json:
    """A candidate pool with its hash."""
    document = {
        "schema_version": "shopsimrl-skill-candidate-pool-v1",
        "round_id": "round-000",
        "proposal_checkpoint": "iter-20",
        "current_skillbank_sha256": "0" * 64,
        "current_skills": list(current),
        "candidates": list(candidates),
    } | more
    return document | {"created_at": "2026-01-02T03:04:05+00:00", "pool_sha256": fingerprint(document)}


def candidate(title: str, body: str, target: str | None = None, **more: Any) -> Json:
    """A candidate with the id that its text gives it (reference 3.12)."""
    content = f"### {title}\n\n{body}"
    operation = "ADD" if target is None else "REWRITE"
    named = {"operation": operation, "target_chunk_id": target, "content": content}
    about = {"title": title, "failure_mechanism": "规格未核对", "evidence_card_ids": ["failure-1"]}
    return {"candidate_id": f"online-{fingerprint(named)[:16]}", **named, "metadata": about} | more


def mask_bit(text: str) -> int:
    """Gate A's draw: shown when the top bit of the hash is 0 (reference 3.9)."""
    return int(hashlib.sha256(text.encode()).digest()[0] < 128)


def draft_gate(path: Path, chunks: Mapping[str, str], tasks: int, spoil: Mapping[int, Json] | None = None) -> Path:
    """A Gate A folder with assignments, masked traces and, in `bare`, the bare run."""
    rows, masked, bare = [], list[Json](), list[Json]()
    for task_id in range(1, tasks + 1):
        mask = [mask_bit(f"20260901:val:{task_id}:0:{name}") for name in chunks]
        shown = [name for name, bit in zip(chunks, mask, strict=True) if bit]
        job = {"task_id": task_id, "sample_id": 0, "seed": 1, "split": "val"}
        rows.append({"episode_id": f"task-{task_id:06d}__sample-000", **job, "mask": mask, "included_chunk_ids": shown})
        option = float(mask_bit(f"masked {task_id}"))
        masked.append(trace(task_id, skills=[(name, chunks[name]) for name in shown], parts=(1.0, 1.0, option, 1.0)))
        bare.append(trace(task_id, parts=(1.0, 0.5, float(mask_bit(f"bare {task_id}")), 1.0)))
    for task_id, document in (spoil or {}).items():
        masked[task_id - 1] = document
    assignment = {
        "schema_version": "shopsimrl-chunk-mask-assignments-v1",
        "mask_seed": 20260901,
        "mask_probability": 0.5,
        "chunk_ids": list(chunks),
        "assignments": rows,
    }
    write_json(path / "mask_assignments.json", assignment | {"assignment_sha256": fingerprint(assignment)})
    run_directory(path, masked)
    run_directory(path / "bare", bare)
    (path / "selected_skill.md").write_text("# 选中\n", encoding="utf-8")
    return path


def online_gate(path: Path, rows: Sequence[Mapping[str, str]], interventions: Sequence[Json]) -> Path:
    """An online gate's folder with these published pairs: assignments by slot, masked traces, the bare run."""
    ids = [item["intervention_id"] for item in interventions]
    slots: dict[str, list[str]] = {}
    for item in interventions:
        slots.setdefault(item["logical_chunk_id"], []).append(item["intervention_id"])
    assignments, masked, bare = list[Json](), list[Json](), list[Json]()
    for row in rows:
        task_id, shown = int(row["task_id"]), [name for name, bit in zip(ids, row["mask"], strict=True) if bit == "1"]
        mask = list(map(int, row["mask"]))
        job = {"task_id": task_id, "sample_id": 0, "seed": 1, "split": "val"}
        assignments.append({**job, "mask": mask, "included_chunk_ids": shown, "slot_states": {}})
        skills = [(name, f"### {name}\n\n正文 {name}") for name in shown]
        masked.append(trace(task_id, skills=skills, parts=[float(row[name]) for name in PARTS]))
        bare.append(trace(task_id, parts=[float(row[f"bare_{name}"]) for name in PARTS]))
    write_json(
        path / "mask_assignments.json",
        {
            "schema_version": "shopsimrl-online-skill-assignments-v1",
            "mask_seed": 20260901,
            "columns": ids,
            "slots": [{"slot_id": slot, "versions": versions} for slot, versions in slots.items()],
            "assignments": assignments,
        },
    )
    write_json(path / "online_gate_manifest.json", {"active_skill_budget": 10, "bare_run_dir": "../bare-val"})
    run_directory(path, masked)
    run_directory(path.parent / "bare-val", bare)
    return path


def _call(name: str, arguments: Json) -> Json:
    text = json.dumps(arguments, ensure_ascii=False)
    return {"id": f"call-{name}", "type": "function", "function": {"name": name, "arguments": text}}


def _model(usage: bool) -> Json:
    counted = {"prompt_tokens": 900, "completion_tokens": 31, "total_tokens": 931} if usage else None
    return {"content": None, "reasoning": "…", "tool_calls": [], "finish_reason": "tool_calls", "usage": counted}


def _step(number: int, page: str, action: str, usage: bool) -> Json:
    return {
        "step_index": number,
        "observation": page,
        "tools": [{"type": "function", "function": {"name": "click", "parameters": {"enum": [page]}}}],
        "model": _model(usage),
        "action": action,
        "environment": {
            "done": number == 3,
            "reward": 0,
            "action_feedback": {"action": action, "valid": True, "reason": "executed", "message": "ok"},
            "observation_state": {"page_type": "search_results"},
        },
    }


def _fault(number: int, page: str, usage: bool) -> Json:
    return {
        "step_index": number,
        "observation": page,
        "tools": [],
        "model": _model(usage),
        "action": None,
        "environment": None,
        "protocol_error": {"code": "tool_call_count", "message": "two calls"},
        "protocol_feedback": {"type": "tool_protocol_error"},
    }


def _detail(parts: Sequence[float], reward: float) -> Json:
    return {
        "reward_version": "shopsimulator-paper-reward-v2",
        "termination_reason": "purchase",
        **dict(zip(PARTS, parts, strict=True)),
        "r_loose": reward,
        "r_strict": reward,
        "r_success": int(reward == 1),
        "target_asin_match": True,
        "price_verifiable": True,
        "price_upper": 90.0,
        "price_resolution": {
            "status": "pass",
            "price": 59.0,
            "version": "variant-price-paper-v2",
            "method": "selected_price_axis",
            "evidence": {"axis": "尺码"},
        },
    }
