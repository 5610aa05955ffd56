"""Processor time of an agent's turn against the same request bodies replayed by a bare `openai` client.

    python bench/agent.py [--tasks 40] [--rounds 5] [--threads 1] [--products 20000]

A canned server in a process of its own answers both on loopback, so only the client's side is measured. Three
ways take turns within a run: the bare client; rollouts in a shop that replays recorded pages; rollouts in the
embedded shop. Rollouts include records and files. A turn is one model call.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import openai

from shopskill_lib.agent import Agent, load_prompts
from shopskill_lib.models import Endpoint, connect
from shopskill_lib.records import Ending, Hint, Product, Task, make_treatment
from shopskill_lib.rollouts import Planned, run
from shopskill_lib.shops.embedded import EmbeddedShop
from shopskill_lib.shops.generator import generate_catalogue
from shopskill_lib.shops.protocol import Session, Shop, StepResult

LOOKED_AT = 3
"""Products that the canned shopper opens before it buys."""
SKILL = make_treatment("ten", [Hint(id=f"c{n}", text="Compare the options with the request. " * 12) for n in range(10)])


def answer(body: dict[str, Any]) -> tuple[str, str]:
    """Search, open three products, choose the first value of every axis, buy."""
    offered = [tool["function"] for tool in body["tools"]]
    if offered[0]["name"] == "search":
        return "search", body["messages"][1]["content"].split("<request>")[1].split("</request>")[0].strip()
    values = offered[0]["parameters"]["properties"]["value"]["enum"]
    calls = [message["tool_calls"][0] for message in body["messages"] if "tool_calls" in message]
    clicked = [json.loads(call["function"]["arguments"]).get("value", "") for call in calls]
    opened = [value for value in clicked if value.isdecimal()]
    products = [value for value in values if value.isdecimal() and value not in opened]
    if products:
        return "click", products[0]
    if len(opened) < LOOKED_AT:
        return "click", "< prev"
    chosen = {value.split("=")[0] for value in clicked[clicked.index(opened[-1]) :] if "=" in value}
    options = [value for value in values if "=" in value and value.split("=")[0] not in chosen]
    return "click", (options or ["buy now"])[0]


class Handler(BaseHTTPRequestHandler):
    """The canned server: keeps the bodies of its first round, and hands them out."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    bodies: list[bytes] = []  # noqa: RUF012 - one server a process
    keep = True

    def do_POST(self) -> None:
        raw = self.rfile.read(int(self.headers["content-length"]))
        if Handler.keep:
            Handler.bodies.append(raw)
        name, argument = answer(json.loads(raw))
        arguments = json.dumps({"query" if name == "search" else "value": argument}, ensure_ascii=False)
        call = {"id": "call_1", "type": "function", "function": {"name": name, "arguments": arguments}}
        message = {"role": "assistant", "content": None, "tool_calls": [call]}
        self._send(
            {
                "id": "chatcmpl-1",
                "object": "chat.completion",
                "created": 1,
                "model": "canned",
                "choices": [{"index": 0, "message": message, "finish_reason": "tool_calls", "logprobs": None}],
                "usage": {"prompt_tokens": len(raw) // 4, "completion_tokens": 20, "total_tokens": len(raw) // 4 + 20},
            }
        )

    def do_GET(self) -> None:
        Handler.keep = False
        self._send([json.loads(body) for body in Handler.bodies])

    def log_message(self, *_: object) -> None:
        pass

    def _send(self, document: object) -> None:
        body = json.dumps(document, ensure_ascii=False).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


class ReplayedSession:
    """An episode whose pages are known."""

    def __init__(self, pages: list[StepResult]) -> None:
        self._pages, self._turn = pages, 0

    @property
    def current(self) -> StepResult:
        return self._pages[self._turn]

    def step(self, action: str) -> StepResult:  # noqa: ARG002
        self._turn += 1
        return self.current

    def end(self, reason: Ending) -> StepResult:
        raise AssertionError(f"a recorded episode ended with {reason}")

    def close(self) -> None: ...


class ReplayedShop:
    """A shop that costs nothing: it records another shop's pages, and shows them again."""

    unscored = note = ""

    def __init__(self, shop: EmbeddedShop) -> None:
        self._shop = shop
        self.pages: dict[str, list[StepResult]] = {}

    @property
    def fingerprint(self) -> Mapping[str, str | int]:
        return self._shop.fingerprint

    def record(self, task: Task, actions: list[str]) -> None:
        session = self._shop.reset(task)
        self.pages[task.task_id] = [session.current, *(session.step(action) for action in actions)]

    def reset(self, task: Task) -> Session:
        return ReplayedSession(self.pages[task.task_id])

    def inspect(self, asin: str) -> Product:
        return self._shop.inspect(asin)

    def close(self) -> None: ...


def rollouts(shop: Shop, url: str, tasks: list[Task], threads: int) -> dict[str, list[str]]:
    """Run an episode a task in a fresh folder; return the actions of each."""
    agent = Agent(connect(Endpoint(url=url, model="canned", checkpoint="c")), shop, load_prompts("en"))
    plan = [Planned("equipped", task, 0, SKILL) for task in tasks]
    with tempfile.TemporaryDirectory() as folder:
        done = run(plan, agent, Path(folder), rollout_seed=0, stage="bench", threads=threads)["equipped"]
    agent.model.close()
    return {episode.task_id: [str(step.action) for step in episode.steps] for episode in done.scored}


def replay(url: str, bodies: list[dict[str, Any]], threads: int) -> None:
    """Send the bodies by a bare client."""
    with openai.OpenAI(api_key="none", base_url=url, max_retries=0) as client, ThreadPoolExecutor(threads) as pool:
        list(pool.map(lambda body: client.chat.completions.create(**body).choices[0].message.tool_calls, bodies))


def processor_time(work: Callable[[], object]) -> float:
    started = time.process_time()
    work()
    return time.process_time() - started


def measure(url: str, options: argparse.Namespace, cache: Path) -> None:
    """Print milliseconds a turn and the ratios."""
    catalogue = generate_catalogue(0, "en", products=options.products)
    shop = EmbeddedShop(catalogue, cache)
    tasks = [task for task in catalogue.tasks.values() if task.split == "val"][: options.tasks]
    replayed = ReplayedShop(shop)
    for task_id, actions in rollouts(shop, url, tasks, 1).items():
        replayed.record(catalogue.tasks[task_id], actions)
    with urllib.request.urlopen(f"{url}/bodies") as response:
        bodies = json.load(response)
    ways: dict[str, Callable[[], object]] = {
        "bare client": lambda: replay(url, bodies, options.threads),
        "rollouts, pages replayed": lambda: rollouts(replayed, url, tasks, options.threads),
        "rollouts, embedded shop": lambda: rollouts(shop, url, tasks, options.threads),
    }
    times: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(options.rounds):
        for name, work in ways.items():
            times[name].append(processor_time(work) / len(bodies) * 1000)
    size = statistics.mean(len(json.dumps(body)) for body in bodies)
    print(f"{len(bodies)} turns in {len(tasks)} episodes, {size / 1000:.1f} kB a request, {options.threads} threads")
    bare = statistics.median(times["bare client"])
    for name, values in times.items():
        middle = statistics.median(values)
        print(f"{name:26} {middle:6.2f} ms a turn   ratio {middle / bare:.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description="processor time of a turn")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    for name, default in (("tasks", 40), ("rounds", 5), ("threads", 1), ("products", 20_000)):
        parser.add_argument(f"--{name}", type=int, default=default)
    options = parser.parse_args()
    if options.serve:
        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        print(server.server_address[1], flush=True)
        server.serve_forever()
    with (
        tempfile.TemporaryDirectory() as cache,
        subprocess.Popen([sys.executable, __file__, "--serve"], stdout=subprocess.PIPE, text=True) as server_process,
    ):
        assert server_process.stdout is not None
        try:
            measure(f"http://127.0.0.1:{int(server_process.stdout.readline())}/v1", options, Path(cache))
        finally:
            server_process.kill()


if __name__ == "__main__":
    main()
