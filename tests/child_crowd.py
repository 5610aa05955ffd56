"""A command that runs many bare episodes at once under a small limit of open files: a process of its own.

python child_crowd.py URL RUN_DIR CACHE EPISODES
"""

import resource
import sys
from pathlib import Path

from shopskill_lib.agent import Agent, load_prompts
from shopskill_lib.models import Endpoint, connect
from shopskill_lib.records import make_treatment
from shopskill_lib.rollouts import Planned, run
from shopskill_lib.shops.embedded import EmbeddedShop
from shopskill_lib.shops.generator import generate_catalogue

FILES = 256

if __name__ == "__main__":
    url, run_dir, cache, episodes = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]), int(sys.argv[4])
    resource.setrlimit(resource.RLIMIT_NOFILE, (FILES, FILES))
    shop = EmbeddedShop(generate_catalogue(1, "en", products=300, train=1, val=1, test=1), cache)
    model = connect(Endpoint(url=url, model="m", checkpoint="c"), connections=episodes)
    plan = [
        Planned("bare", shop.catalogue.tasks["1"], sample, make_treatment("bare", ())) for sample in range(episodes)
    ]
    agent = Agent(model, shop, load_prompts("en"))
    found = run(plan, agent, run_dir, rollout_seed=0, stage="test", threads=episodes)["bare"]
    sys.stdout.write(found.summary())
