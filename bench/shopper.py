"""The simulated shopper on the embedded shop: what it earns bare, with each chunk of the draft, and with all.

    python bench/shopper.py                     400 val tasks, 4 seeds, both languages, persona on, temperature 0.7
    python bench/shopper.py --tasks 1200 --seeds 8
    python bench/shopper.py --arms --temperature 0

The effect of a chunk alone is the mean difference to bare with common random numbers: both rollouts of a pair
have the same seed. The effect in company is the mean difference that the chunk makes to a skill of half of the
others. The spread of a pair is that of a gate: masks of M17, and seeds that differ between the arms.
"""

import argparse
import hashlib
import json
import re
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from shopskill_lib.masks import Slot, assign
from shopskill_lib.records import Language, Task
from shopskill_lib.shops.embedded import EmbeddedShop
from shopskill_lib.shops.generator import generate_catalogue
from shopskill_lib.simulated.shopper import respond

HELPING = ("search-words", "unspoken-wishes", "several-candidates", "options", "final-amount", "way-out")
HARMING = ("broad-searches", "request-speaks", "ranking", "sensible-variants")
"""Chunks of the draft by what they are meant to do; the other six are meant to do nothing."""

INTERACTING = ("final-amount", "way-out")

ROOT = Path(__file__).parents[1]
MAX_STEPS = 30


@dataclass(frozen=True)
class Outcome:
    """What one episode came to."""

    reward: float
    success: int
    steps: int
    seconds: float
    """Processor time spent in the shopper."""


def read_draft(language: Language) -> dict[str, str]:
    """Return the chunks of the shipped draft: id -> text."""
    text = (ROOT / "shopskill_lib" / "drafts" / f"skill_{language}.md").read_text(encoding="utf-8")
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
        start = time.thread_time()
        message = respond(request).body["choices"][0]["message"]
        spent += time.thread_time() - start
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


Hints = dict[str, str]


def episode_seed(seed: int, arm: str, task_id: str) -> int:
    return int.from_bytes(hashlib.sha256(f"{seed}:{arm}:{task_id}:0".encode()).digest()[:4], "big")


@dataclass(frozen=True)
class Bench:
    """One language's shop, val tasks and seeds."""

    shop: EmbeddedShop
    tasks: Sequence[Task]
    seeds: range
    temperature: float

    def run(self, hints: Callable[[int, str], Hints], arm: str = "any") -> list[Outcome]:
        """Run every task at every seed; hints may differ by seed and task."""
        return [
            episode(self.shop, task, hints(seed, task.task_id), episode_seed(seed, arm, task.task_id), self.temperature)
            for seed in self.seeds
            for task in self.tasks
        ]


def rewards(outcomes: list[Outcome]) -> np.ndarray:
    return np.array([outcome.reward for outcome in outcomes])


def with_error(values: np.ndarray) -> str:
    return f"{values.mean():+.4f} ({values.std(ddof=1) / len(values) ** 0.5:.4f})"


def difference(after: list[Outcome], before: list[Outcome]) -> str:
    success = statistics.fmean(new.success - old.success for new, old in zip(after, before, strict=True))
    return f"{with_error(rewards(after) - rewards(before))}  success {success:+.4f}"


def report(name: str, outcomes: list[Outcome]) -> None:
    steps = [outcome.steps for outcome in outcomes]
    limited = statistics.fmean(count >= MAX_STEPS for count in steps)
    print(
        f"  {name:20} reward {statistics.fmean(outcome.reward for outcome in outcomes):.3f}"
        f"  success {statistics.fmean(outcome.success for outcome in outcomes):.3f}"
        f"  steps {statistics.fmean(steps):.2f}, at the limit {limited:.3f}"
        f"  processor {1e3 * sum(outcome.seconds for outcome in outcomes) / sum(steps):.2f} ms a call",
        flush=True,
    )


def arms(bench: Bench, draft: Hints, shown: dict[tuple[int, str], Hints], bare: list[Outcome]) -> None:
    """Print the level of every arm, the spread of a gate's pair and the interaction."""
    report("bare", bare)
    masked = bench.run(lambda seed, task_id: shown[seed, task_id], "masked")
    report("masked", masked)
    pairs = rewards(masked) - rewards(bench.run(lambda *_: {}, "bare"))
    print(f"  masked minus bare    {with_error(pairs)}, sd {pairs.std():.3f}, {(pairs == 0).mean():.2f} exactly 0")
    for name, part in (("all helping", HELPING), ("all harming", HARMING), ("whole draft", tuple(draft))):
        outcomes = bench.run(lambda *_, part=part: {chunk: draft[chunk] for chunk in part})
        report(name, outcomes)
        print(f"  {'':20} {difference(outcomes, bare)}")
    single = [rewards(bench.run(lambda *_, name=name: {name: draft[name]})) for name in INTERACTING]
    both = rewards(bench.run(lambda *_: {name: draft[name] for name in INTERACTING}))
    print(f"  interaction of {' and '.join(INTERACTING)} {with_error(both - sum(single) + rewards(bare))}")


def effects(bench: Bench, draft: Hints, shown: dict[tuple[int, str], Hints], bare: list[Outcome]) -> None:
    """Print what every chunk does alone, and in company of half of the others."""
    for name in draft:
        kind = "helps" if name in HELPING else "harms" if name in HARMING else "-"
        alone = difference(bench.run(lambda *_, name=name: {name: draft[name]}), bare)
        with_it = bench.run(lambda *key, name=name: {**shown[key], name: draft[name]})
        without = bench.run(lambda *key, name=name: {k: v for k, v in shown[key].items() if k != name})
        print(f"  {name:20} {kind:6} alone {alone}  in company {difference(with_it, without)}", flush=True)


def measure(bench: Bench, draft: Hints, arms_only: bool) -> None:
    task_ids = [task.task_id for task in bench.tasks]
    slots = [Slot(name, (name,)) for name in draft]
    shown = {
        (seed, task_id): {name: draft[name] for name, on in zip(draft, row, strict=True) if on}
        for seed in bench.seeds
        for task_id, row in zip(task_ids, assign(seed, "val", task_ids, slots).masks.tolist(), strict=True)
    }
    bare = bench.run(lambda *_: {})
    arms(bench, draft, shown, bare)
    if not arms_only:
        effects(bench, draft, shown, bare)


def main() -> None:
    parser = argparse.ArgumentParser(description="The simulated shopper on the embedded shop.")
    parser.add_argument("--tasks", type=int, default=400)
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--temperature", type=float, default=0.7)
    parser.add_argument("--arms", action="store_true", help="arms only, without the effect of every chunk")
    parser.add_argument("--languages", nargs="+", choices=("en", "zh"), default=("en", "zh"))
    options = parser.parse_args()
    for language in options.languages:
        catalogue = generate_catalogue(0, language, val=options.tasks)
        tasks = [task for task in catalogue.tasks.values() if task.split == "val"]
        with tempfile.TemporaryDirectory() as cache:
            shop = EmbeddedShop(catalogue, Path(cache))
            print(f"{language}, {len(tasks)} tasks, {options.seeds} seeds, temperature {options.temperature}")
            bench = Bench(shop, tasks, range(options.seeds), options.temperature)
            measure(bench, read_draft(language), options.arms)


if __name__ == "__main__":
    main()
