"""Failure audits a second with the simulated author.

    python bench/audits.py [--tasks 120] [--threads 8] [--products 20000] [--language en]

Trajectories are rolled out first; only the analyses are timed, author, trials, files and all.
"""

import argparse
import tempfile
import time
from pathlib import Path

from shopskill_lib import distil, protocol, workbench
from shopskill_lib.rollouts import Planned
from shopskill_lib.settings import Settings
from shopskill_lib.skills import Skill
from shopskill_lib.trajectories import of_episode


def main() -> None:
    parser = argparse.ArgumentParser(description="failure audits a second")
    for name, default in (("tasks", 120), ("threads", 8), ("products", 20_000)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--language", choices=("en", "zh"), default="en")
    options = parser.parse_args()
    settings = Settings.of(
        {
            "language": options.language,
            "n_products": options.products,
            "n_train": options.tasks,
            "author_concurrency": options.threads,
        }
    )
    with tempfile.TemporaryDirectory() as folder:
        bench = workbench.set_up(settings, Path(folder))
        tasks = {task.task_id: task for task in bench.tasks("train")}
        plan = [Planned("train", task, 0, protocol.BARE, keep_pages=True) for task in tasks.values()]
        scored = [
            (episode, tasks[episode.task_id]) for episode in protocol.roll_out(bench, plan, "cards")["train"].scored
        ]
        pairs = [(of_episode(episode, task, ()), task) for episode, task in scored]
        for success, what in ((False, "failure audits"), (True, "success analyses")):
            own = [pair for pair in pairs if pair[0].success is success]
            place = Path(folder) / what.replace(" ", "_")
            started, busy = time.perf_counter(), time.process_time()
            nothing = Skill(title="", chunks=())
            found = distil.analyse(bench, own, nothing, folder=place, stage="cold_start", arm="train")
            took, busy = time.perf_counter() - started, time.process_time() - busy
            print(
                f"simulated {what}: {len(found)} in {took:.1f} s, {len(found) / took:.1f} a second, {busy:.1f} s busy"
            )


if __name__ == "__main__":
    main()
