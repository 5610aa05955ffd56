"""The simulated models on the wire: inside the process for the ``openai`` client, or over HTTP on loopback."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpx2

from shopskill_lib.simulated import author, shopper
from shopskill_lib.simulated.chat import Reply, refusal

HOST = "127.0.0.1"

BASE_URL = "http://simulated.invalid/v1"
"""Base URL to give a client that uses ``transport()``; its name resolves to nothing."""

MAX_BODY = 64 * 2**20
"""Bytes of a request body at most."""


class Endpoint:
    """What both wires offer: the answer to a request by method and path, and how many there were."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts = {"requests": 0, "completions": 0, "refused": 0}

    @property
    def stats(self) -> dict[str, int]:
        """Requests for completions so far, how many were completed and how many were refused."""
        with self._lock:
            return dict(self._counts)

    def answer(self, method: str, path: str, body: bytes) -> Reply:
        """Return the answer to ``POST /v1/chat/completions``, ``GET /v1/models`` or ``GET /stats``."""
        if (method, path) == ("POST", "/v1/chat/completions"):
            reply = _complete(body)
            with self._lock:
                self._counts["requests"] += 1
                self._counts["completions" if reply.status == 200 else "refused"] += 1
            return reply
        if (method, path) == ("GET", "/v1/models"):
            return Reply(200, {"object": "list", "data": [_listed(name, owner) for name, owner in _MODELS.items()]})
        if (method, path) == ("GET", "/stats"):
            return Reply(200, {**self.stats, "simulated": True})
        return refusal(404, "not_found", f"nothing is at {method} {path}")


def _complete(body: bytes) -> Reply:
    try:
        request = json.loads(body)
    except (ValueError, RecursionError):
        return refusal(400, "invalid_json", "the body is not JSON")
    return respond(request)


def respond(request: object) -> Reply:
    """Return the answer of the simulated model that a request names: the author for its name, else the shopper."""
    model = request.get("model") if isinstance(request, dict) else None
    return author.respond(request) if str(model).startswith(author.MODEL) else shopper.respond(request)


_MODELS = {shopper.MODEL: shopper.SHOPPER_VERSION, author.MODEL: author.AUTHOR_VERSION}


def _listed(name: str, owner: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": 0, "owned_by": owner}


def _encode(reply: Reply) -> bytes:
    return json.dumps(reply.body, ensure_ascii=False).encode("utf-8", "replace")


def transport(endpoint: Endpoint | None = None) -> httpx2.MockTransport:
    """Return a transport on which an ``openai`` client meets both without a network.

    ``openai.OpenAI(base_url=BASE_URL, api_key="-", http_client=httpx2.Client(transport=transport()))``

    Args:
        endpoint: counts the requests; a new one when None.
    """
    answering = endpoint or Endpoint()

    def handle(request: httpx2.Request) -> httpx2.Response:
        reply = answering.answer(request.method, request.url.path, request.content)
        return httpx2.Response(reply.status, content=_encode(reply), headers={"content-type": "application/json"})

    return httpx2.MockTransport(handle)


class Server:
    """Both over HTTP on loopback, on threads of its own; a context manager that stops it at the end."""

    def __init__(self, port: int = 0) -> None:
        """Bind the port.

        Args:
            port: 0 takes a free one.

        Raises:
            OSError: the port is taken.
        """
        self.endpoint = Endpoint()
        self._server = _HTTPServer((HOST, port), _Handler)
        self._server.endpoint = self.endpoint
        self.port: int = self._server.server_address[1]
        self.base_url = f"http://{HOST}:{self.port}/v1"

    def serve(self) -> None:
        """Answer requests until ``close`` is called from another thread or the process is interrupted."""
        self._server.serve_forever(poll_interval=0.1)

    def close(self) -> None:
        """Stop answering and free the port."""
        self._server.shutdown()
        self._server.server_close()

    def __enter__(self) -> "Server":
        threading.Thread(target=self.serve, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _HTTPServer(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128
    endpoint: Endpoint


class _Handler(BaseHTTPRequestHandler):
    """One connection: requests are answered in order for as long as the client keeps it open."""

    protocol_version = "HTTP/1.1"
    server_version = shopper.SHOPPER_VERSION
    disable_nagle_algorithm = True
    wbufsize = -1  # headers and body leave together
    server: _HTTPServer

    def do_GET(self) -> None:
        self._answer(b"")

    def do_POST(self) -> None:
        length = self.headers.get("Content-Length", "")
        if not length.isdecimal() or int(length) > MAX_BODY:
            self.close_connection = True
            self._send(refusal(400, "invalid_length", f"Content-Length is {length!r}, at most {MAX_BODY} is taken"))
        else:
            self._answer(self.rfile.read(int(length)))

    def _answer(self, body: bytes) -> None:
        self._send(self.server.endpoint.answer(self.command, self.path, body))

    def _send(self, reply: Reply) -> None:
        content = _encode(reply)
        self.send_response(reply.status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)
        self.wfile.flush()

    def log_message(self, format: str, *args: Any) -> None:
        """Write nothing: a line a request would drown what a run prints."""
