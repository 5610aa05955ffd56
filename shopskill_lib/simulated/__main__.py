"""Serve the simulated shopper and author on loopback: ``python -m shopskill_lib.simulated --port 8123``."""

import argparse
import sys

from shopskill_lib.simulated import author, shopper
from shopskill_lib.simulated.wire import Server


def main() -> None:
    """Serve until interrupted; the first line on standard output names the base URL."""
    parser = argparse.ArgumentParser(
        prog="python -m shopskill_lib.simulated", description="Simulated shopper and author over HTTP."
    )
    parser.add_argument("--port", type=int, default=0, help="port on 127.0.0.1; 0 takes a free one (default)")
    server = Server(parser.parse_args().port)
    sys.stdout.write(f"{shopper.MODEL} and {author.MODEL} at {server.base_url}\n")
    sys.stdout.flush()
    try:
        server.serve()
    except KeyboardInterrupt:
        sys.exit(0)


if __name__ == "__main__":
    main()
