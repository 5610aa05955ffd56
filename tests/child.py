"""A command that runs bare episodes against a server: a process of its own for tests to stop and to kill.

python child.py URL RUN_DIR CACHE TASKS
"""

import sys
from argparse import Namespace
from pathlib import Path

from shopskill_lib.agent import Agent, load_prompts
from shopskill_lib.console import Parser, respond
from shopskill_lib.models import Endpoint, connect
from shopskill_lib.records import make_treatment
from shopskill_lib.rollouts import Planned, run
from shopskill_lib.shops.embedded import EmbeddedShop
from shopskill_lib.shops.generator import generate_catalogue


def command(options: Namespace) -> str:
    shop = EmbeddedShop(generate_catalogue(1, "en", products=300, train=1, val=60, test=1), options.cache)
    agent = Agent(connect(Endpoint(url=options.url, model="m", checkpoint="c")), shop, load_prompts("en"))
    bare = make_treatment("bare", ())
    plan = [Planned("bare", shop.catalogue.tasks[str(number)], 0, bare) for number in range(1, options.tasks + 1)]
    rollouts = run(plan, agent, options.run_dir, rollout_seed=0, stage="test", threads=4)
    agent.model.close()
    return str(rollouts["bare"])


if __name__ == "__main__":
    parser = Parser()
    parser.add_argument("url")
    parser.add_argument("run_dir", type=Path)
    parser.add_argument("cache", type=Path)
    parser.add_argument("tasks", type=int)
    parser.set_defaults(command=command)
    sys.exit(respond(parser))
