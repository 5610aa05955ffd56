"""Speed of the shop server: steps a second over HTTP, and the same episodes in the process.

    python bench/serve.py                     8 clients, 200 episodes, 20,000 products
    python bench/serve.py --clients 64

The server is a process of its own; every client keeps one connection. A step is a search or a click, answered
with its page as data and as text; resets and releases are made and not counted.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from shopskill_lib.records import Task
from shopskill_lib.shops.embedded import EmbeddedShop
from shopskill_lib.shops.generator import generate_catalogue

Json = dict[str, Any]
Step = Callable[[str], Json]


def shop_once(step: Step, task: Task) -> int:
    """Search, turn the page, open a product, choose its options, buy; return the number of steps."""
    step(f"search[{task.category.split('›')[-1]} {' '.join(task.attributes)}]")
    listed = next(label for label in step("click[next >]")["actions"] if label.isdecimal())
    axes = step(f"click[{listed}]")["available_options"]
    for axis, values in axes.items():
        step(f"click[{axis}={values[0]}]")
    step("click[buy now]")
    return 4 + len(axes)


def in_process(shop: EmbeddedShop, task: Task) -> int:
    session = shop.reset(task)
    return shop_once(lambda action: dict(session.step(action).state), task)


def over_http(url: str, tasks: list[Task]) -> int:
    """One client's episodes on one connection."""
    place = urlsplit(url)
    with closing(HTTPConnection(place.hostname or "", place.port)) as connection:

        def ask(**fields: Any) -> Json:
            connection.request("POST", place.path, json.dumps(fields))
            answer = connection.getresponse()
            result: Json = json.loads(answer.read())["result"]
            assert answer.status == 200, result
            return result

        def shop(task: Task) -> int:
            told = ask(action="reset", idx=int(task.task_id))
            lease = {"env_idx": told["env_idx"], "lease_id": told["lease_id"]}

            def step(action: str) -> Json:
                state: Json = ask(action="interact", response=action, **lease)["observation_state"]
                return state

            steps = shop_once(step, task)
            ask(action="release_one", **lease)
            return steps

        return sum(map(shop, tasks))


@contextmanager
def server(products: int, slots: int, index: str) -> Iterator[str]:
    """The command as a process of its own; its URL."""
    options = ["--port", "0", "--n-products", str(products), "--slots", str(slots), "--index", index]
    command = [sys.executable, "-m", "shopskill_lib.shops.serve", *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().split(" at ")[1].split(",")[0]
        finally:
            process.terminate()


def main() -> None:
    parser = argparse.ArgumentParser(description="Speed of the shop server.")
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--episodes", type=int, default=200)
    parser.add_argument("--products", type=int, default=20_000)
    options = parser.parse_args()
    catalogue = generate_catalogue(0, "en", products=options.products)
    tasks = list(catalogue.tasks.values())[: options.episodes]
    shares = [tasks[number :: options.clients] for number in range(options.clients)]
    with tempfile.TemporaryDirectory() as index, ThreadPoolExecutor(options.clients) as pool:
        shop = EmbeddedShop(catalogue, Path(index))
        start = time.perf_counter()
        steps = sum(pool.map(lambda share: sum(in_process(shop, task) for task in share), shares))
        inside = steps / (time.perf_counter() - start)
        with server(options.products, options.clients, index) as url:
            start = time.perf_counter()
            assert sum(pool.map(lambda share: over_http(url, share), shares)) == steps
            outside = steps / (time.perf_counter() - start)
    print(f"{steps} steps by {options.clients} clients: over HTTP {outside:,.0f} a second, ", end="")
    print(f"in the process {inside:,.0f} a second, ratio {inside / outside:.1f}")


if __name__ == "__main__":
    main()
