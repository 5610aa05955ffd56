"""Serve the embedded shop on loopback behind ShopSimulator v8's contract.

``python -m shopskill_lib.shops.serve --port 5700 --slots 64``; what it answers is in docs/shop.md, "Over HTTP".
"""

import argparse
import json
import select
import signal
import socket
import sys
import tempfile
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from shopskill_lib.clock import SYSTEM_CLOCK
from shopskill_lib.console import Parser, respond
from shopskill_lib.errors import SetupError
from shopskill_lib.shops.catalog import Catalogue, load_catalogue
from shopskill_lib.shops.contract import API, ENVIRONMENT_VERSION, Permissions, Refusal, Reply, Service
from shopskill_lib.shops.embedded import EmbeddedShop
from shopskill_lib.shops.generator import generate_catalogue
from shopskill_lib.shops.slots import Slots

HOST = "127.0.0.1"
MAX_BODY = 2**20
"""Bytes of a request body at most."""


class Server(ThreadingHTTPServer):
    """A service on a port of 127.0.0.1, one thread a connection."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, service: Service, port: int = 0) -> None:
        """Bind the port.

        Args:
            service: what is served.
            port: 0 takes a free one.

        Raises:
            SetupError: the port cannot be had.
        """
        self.service = service
        try:
            super().__init__((HOST, port), _Handler)
        except (OSError, OverflowError) as error:
            raise SetupError(
                f"port {port} cannot be had ({error})",
                where="--port",
                allowed="a port from 0 to 65535 that nobody listens on",
                todo="choose another one, or 0 for any",
            ) from error
        self.url = f"http://{HOST}:{self.server_port}{API}"


class _Handler(BaseHTTPRequestHandler):
    """One connection: requests are answered in order for as long as the client keeps it open."""

    protocol_version = "HTTP/1.1"
    server_version = ENVIRONMENT_VERSION
    disable_nagle_algorithm = True
    wbufsize = -1  # headers and body leave together
    timeout = 3600  # seconds of silence after which a connection is closed
    server: Server

    def do_GET(self) -> None:
        self._send(self.server.service.answer("GET", self.path, b"", self._gone))

    def do_POST(self) -> None:
        length = self.headers.get("Content-Length", "")
        if not (length.isascii() and length.isdecimal()) or int(length) > MAX_BODY:
            self.close_connection = True
            text = f"Content-Length is {length!r}; give a number of at most {MAX_BODY}"
            self._send(Refusal(400, "invalid_length", text).reply)
            return
        body = self.rfile.read(int(length))
        if len(body) < int(length):
            self.close_connection = True
        else:
            self._send(self.server.service.answer("POST", self.path, body, self._gone))

    def _gone(self) -> bool:
        """Tell whether the client has closed its end; whoever does so waits for nothing more."""
        poll = select.poll()
        poll.register(self.connection, select.POLLIN)
        try:
            return bool(poll.poll(0)) and not self.connection.recv(1, socket.MSG_PEEK)
        except OSError:
            return True

    def _send(self, reply: Reply) -> None:
        """Send an answer; a slot that nobody is there to take is freed again."""
        if reply.lease is not None and self._gone():
            self._drop(reply)
            return
        content = json.dumps(reply.body, ensure_ascii=False).encode("utf-8", "replace")
        try:
            self.send_response(reply.status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            if reply.retry_after is not None:
                self.send_header("Retry-After", str(reply.retry_after))
            self.end_headers()
            self.wfile.write(content)
            self.wfile.flush()
        except OSError:
            self._drop(reply)

    def _drop(self, reply: Reply) -> None:
        """Give up a connection whose client is gone."""
        self.close_connection = True
        if reply.lease is not None:
            self.server.service.slots.release(reply.lease)

    def log_message(self, format: str, *args: Any) -> None:
        """Write nothing: a line a request would drown what matters."""


def main() -> int:
    """Serve until SIGINT or SIGTERM; the first line on standard output names the URL."""
    return respond(_parser())


def _parser() -> Parser:
    parser = Parser(prog="python -m shopskill_lib.shops.serve", description="The embedded shop over HTTP, on loopback.")
    parser.add_argument("--port", type=int, default=5700, help="port on 127.0.0.1; 0 takes a free one")
    parser.add_argument("--slots", type=int, default=64, help="episodes at once")
    parser.add_argument(
        "--catalogue",
        "--catalog",
        default="",
        metavar="FILE",
        help="ShopSimulator product file; default: a generated one",
    )
    parser.add_argument("--language", choices=("en", "zh"), default="en", help="of the catalogue and its pages")
    parser.add_argument("--catalogue-seed", type=int, default=0, help="seed of the generated catalogue")
    parser.add_argument(
        "--n-products", "--products", type=int, default=20_000, help="products of the generated catalogue"
    )
    parser.add_argument("--action-limit", type=int, default=30, help="actions of an episode (a run's max_steps)")
    parser.add_argument("--lease-seconds", type=float, default=1800.0, help="an unused slot is freed after so long")
    parser.add_argument("--wait-seconds", type=float, default=20.0, help="a reset waits for a slot for so long")
    parser.add_argument("--index", metavar="DIR", help="folder that keeps search indexes; default: a temporary one")
    parser.add_argument("--private", action="store_true", help="give goals to whoever asks for them")
    parser.add_argument("--release-all", action="store_true", help="let anybody free all slots")
    parser.set_defaults(command=_serve)
    return parser


def _serve(options: argparse.Namespace) -> str:
    """Open the shop, say where it is, and serve it until told to stop."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with suppress(KeyboardInterrupt), tempfile.TemporaryDirectory(prefix="shopskill-") as temporary:
        cache = Path(options.index or temporary)
        shop = EmbeddedShop(_catalogue(options), cache, action_limit=options.action_limit)
        slots = Slots(options.slots, options.lease_seconds, SYSTEM_CLOCK)
        allowed = Permissions(private=options.private, release_all=options.release_all)
        with Server(Service(shop, slots, options.wait_seconds, allowed), options.port) as server:
            count = len(server.service.tasks)
            sys.stdout.write(f"{ENVIRONMENT_VERSION} at {server.url}, {slots.count} slots, {count} tasks\n")
            sys.stdout.flush()
            server.serve_forever(poll_interval=0.1)
    return "stopped"


def _catalogue(options: argparse.Namespace) -> Catalogue:
    """Read the catalogue that the options name, or generate it."""
    if options.catalogue:
        return load_catalogue(Path(options.catalogue), language=options.language)
    return generate_catalogue(options.catalogue_seed, options.language, products=options.n_products)


if __name__ == "__main__":
    sys.exit(main())
