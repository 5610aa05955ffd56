"""Speed of the embedded shop: generation, index, and the time of a step, rendered.

    python bench/shop.py                      20,000 and 200,000 products, both languages
    python bench/shop.py --million            also one million products, with the peak of memory
    python bench/shop.py --products 20000     one size

A step is a search or a click with its page as text. Queries are the instructions of val tasks (the longest a
shopper would send) and category with attributes (what a good shopper sends).
"""

import argparse
import resource
import statistics
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from shopskill_lib.records import Language, Task
from shopskill_lib.shops.embedded import EmbeddedShop
from shopskill_lib.shops.generator import generate_catalogue

EPISODES = 200


Times = dict[str, list[tuple[float, float]]]
"""First letters of the action -> (wall, processor) seconds of each step."""


def episode(shop: EmbeddedShop, task: Task, query: str, times: Times) -> None:
    """Search, turn the page, open a product, choose its options, buy; note the seconds of every step."""
    session = shop.reset(task)

    def step(action: str) -> list[str]:
        wall, processor = time.perf_counter(), time.thread_time()
        page = session.step(action)
        times[action[:5]].append((time.perf_counter() - wall, time.thread_time() - processor))
        return page.state["actions"]

    step(f"search[{query}]")
    actions = step("click[next >]")
    step(f"click[{next(label for label in actions if label.isdecimal())}]")
    for axis, values in session.current.state["available_options"].items():
        step(f"click[{axis}={values[0]}]")
    step("click[buy now]")


def medians(steps: list[tuple[float, float]]) -> str:
    wall, processor = (1e3 * statistics.median(found) for found in zip(*steps, strict=True))
    return f"{wall:.3f} ms ({processor:.3f} of processor)"


def measure(shop: EmbeddedShop, tasks: list[Task], kind: str) -> str:
    times: Times = {"searc": [], "click": []}
    for task in tasks:
        good = f"{task.category.split('›')[-1]} {' '.join(task.attributes)}"
        episode(shop, task, task.instruction if kind == "instruction" else good, times)
    steps = [found for kinds in times.values() for found in kinds]
    parts = {"step": steps, "search": times["searc"], "click": times["click"]}
    return f"  {kind:12} median " + "; ".join(f"{name} {medians(found)}" for name, found in parts.items())


def threads(shop: EmbeddedShop, tasks: list[Task]) -> str:
    times: Times = {"searc": [], "click": []}
    start = time.perf_counter()
    with ThreadPoolExecutor(16) as pool:
        list(pool.map(lambda task: episode(shop, task, task.instruction, times), tasks))
    count = sum(map(len, times.values()))
    return f"  16 threads   {count / (time.perf_counter() - start):,.0f} steps a second"


def run(products: int, language: Language) -> None:
    with tempfile.TemporaryDirectory() as cache:
        start = time.perf_counter()
        catalogue = generate_catalogue(0, language, products=products)
        made = time.perf_counter()
        print(f"{products:,} products, {language}: generated in {made - start:.1f} s, ", end="", flush=True)
        assert catalogue.products_fingerprint
        hashed = time.perf_counter()
        EmbeddedShop(catalogue, Path(cache))
        built = time.perf_counter()
        shop = EmbeddedShop(catalogue, Path(cache))
        opened = time.perf_counter()
        size = sum(path.stat().st_size for path in Path(cache).rglob("*") if path.is_file())
        print(
            f"hashed {hashed - made:.1f} s, index built {built - hashed:.1f} s, opened again "
            f"{1e3 * (opened - built):.0f} ms, {size / 2**20:,.0f} MiB on disk"
        )
        tasks = [task for task in catalogue.tasks.values() if task.split == "val"][:EPISODES]
        for kind in ("instruction", "good query"):
            print(measure(shop, tasks, kind))
        print(threads(shop, tasks))
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
        print(f"  peak memory of the process so far {peak:.2f} GiB", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description="Speed of the embedded shop.")
    parser.add_argument("--products", type=int, nargs="+", default=[20_000, 200_000])
    parser.add_argument("--million", action="store_true")
    options = parser.parse_args()
    for products in options.products:
        for language in ("en", "zh"):
            run(products, language)
    if options.million:
        run(1_000_000, "zh")


if __name__ == "__main__":
    main()
