"""The simulated shopper on the embedded shop: what it earns bare, with each chunk of the draft, and with all.

    python bench/shopper.py                     400 val tasks, 4 seeds, both languages, persona on
    python bench/shopper.py --tasks 1200 --seeds 8 --temperature 1

The effect of a chunk alone is the mean difference to bare with common random numbers: both rollouts of a pair
have the same seed. The spread of a pair is that of a gate: masks of M17, and a seed of its own for each arm.
"""

import argparse
import json
import re
import statistics
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shopskill_lib.masks import Slot, assign
from shopskill_lib.records import Language, Task
from shopskill_lib.shops.embedded import EmbeddedShop
from shopskill_lib.shops.generator import generate_catalogue
from shopskill_lib.simulated.shopper import respond

ROOT = Path(__file__).parents[1]
MAX_STEPS = 30


@dataclass(frozen=True)
class Outcome:
    """What one episode came to."""

    reward: float
    success: int
    steps: int
    seconds: float
    """Spent in the shopper."""


def read_draft(language: Language) -> dict[str, str]:
    """Return the chunks of the shipped draft: id -> text."""
    text = (ROOT / "drafts" / f"skill_{language}.md").read_text(encoding="utf-8")
    parts = re.split(r"^## .*\{#([\w-]+)\}\n", text, flags=re.MULTILINE)[1:]
    return {name: body.strip() for name, body in zip(parts[::2], parts[1::2], strict=True)}


def prompt(name: str, language: Language) -> str:
    return (ROOT / "shopskill_lib" / "prompts" / f"{name}_{language}.md").read_text(encoding="utf-8")


def opening(task: Task, language: Language, page: str, hints: dict[str, str]) -> list[dict[str, Any]]:
    """Return the messages before the first turn."""
    system = prompt("policy", language)
    if task.persona is not None:
        persona = json.dumps(task.persona, ensure_ascii=False, sort_keys=True)
        system += prompt("persona", language).replace("{persona}", persona)
    if hints:
        elements = "\n".join(f'<hint id="{name}">\n{text}\n</hint>' for name, text in hints.items())
        system += prompt("hints", language).replace("{hints}", elements)
    user = prompt("task", language).replace("{instruction}", task.visible_instruction).replace("{page}", page)
    return [{"role": "system", "content": system}, {"role": "user", "content": user}]


def tools(state: Any) -> list[dict[str, Any]]:
    found = []
    if state["search_available"]:
        found.append(("search", {"query": {"type": "string", "minLength": 1}}))
    if state["actions"]:
        found.append(("click", {"value": {"type": "string", "enum": state["actions"]}}))
    return [
        {"type": "function", "function": {"name": name, "parameters": {"type": "object", "properties": properties}}}
        for name, properties in found
    ]


def episode(shop: EmbeddedShop, task: Task, hints: dict[str, str], seed: int, temperature: float) -> Outcome:
    """Run one episode as the rollouts do, off the wire."""
    session = shop.reset(task)
    messages = opening(task, shop.catalogue.language, session.current.observation_text, hints)
    spent = 0.0
    for step in range(MAX_STEPS):
        request = {
            "model": "simulated-shopper", "messages": messages, "tools": tools(session.current.state),
            "temperature": temperature, "seed": (seed + step) % 2**31,
        }  # fmt: skip
        start = time.perf_counter()
        message = respond(request).body["choices"][0]["message"]
        spent += time.perf_counter() - start
        messages.append(message)
        if "tool_calls" not in message:
            messages.append({"role": "user", "content": '{"type": "tool_protocol_error"}'})
            continue
        call = message["tool_calls"][0]
        (argument,) = json.loads(call["function"]["arguments"]).values()
        result = session.step(f"{call['function']['name']}[{argument}]")
        messages.append({"role": "tool", "tool_call_id": call["id"], "content": result.observation_text})
        if result.reward_detail is not None:
            detail = result.reward_detail
            return Outcome(detail.r_strict, detail.r_success, step + 1, spent)
    return Outcome(0.0, 0, MAX_STEPS, spent)
