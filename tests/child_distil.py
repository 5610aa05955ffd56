"""A command that analyses the failures and successes of a small shop against an author's server, for tests to stop.

python child_distil.py URL RUN_DIR CACHE TRAJECTORIES
"""

import sys
from argparse import Namespace
from pathlib import Path

from casework import bench_of, pairs_of

from shopskill_lib import distil
from shopskill_lib.console import Parser, respond
from shopskill_lib.shops.embedded import EmbeddedShop
from shopskill_lib.shops.generator import generate_catalogue
from shopskill_lib.skills import Skill


def command(options: Namespace) -> str:
    shop = EmbeddedShop(generate_catalogue(1, "en", products=300, train=1, val=60, test=1), options.cache)
    bench = bench_of(shop, options.run_dir, author_url=options.url, author_concurrency=4)
    pairs = pairs_of(shop, options.count)
    skill = Skill(title="", chunks=())
    return str(distil.analyse(bench, pairs, skill, folder=options.run_dir, stage="cold_start", arm="train"))


if __name__ == "__main__":
    parser = Parser()
    parser.add_argument("url")
    parser.add_argument("run_dir", type=Path)
    parser.add_argument("cache", type=Path)
    parser.add_argument("count", type=int)
    parser.set_defaults(command=command)
    sys.exit(respond(parser))
