"""A scripted shopper on the chat-completions wire, a loopback server, and a clock that never waits."""

import itertools
import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import MappingProxyType
from typing import Any, NamedTuple

import httpx2

from shopskill_lib.clock import Clock
from shopskill_lib.models import ChatModel, Endpoint, connect
from shopskill_lib.probes import QUESTIONS

Json = dict[str, Any]


class Answer(NamedTuple):
    """What a server sends."""

    body: bytes
    status: int = 200
    headers: Mapping[str, str] = MappingProxyType({})
    cut: int | None = None
    """Bytes of the body after which the connection is closed."""
    drip: float | None = None
    """Seconds between single bytes of the body; None sends it at once."""


HANG_UP = Answer(b"", status=0)
"""No answer at all: the connection is closed."""


Script = Callable[[Json], Answer]


def completion(
    *calls: tuple[str, Any], text: str | None = None, finish: str | None = None, usage: Json | None = None, **more: Any
) -> Answer:
    """An answer with these (tool, arguments) calls; arguments that are a text are sent as they are."""
    message: Json = {"role": "assistant", "content": text, **more}
    if calls:
        message["tool_calls"] = [
            {
                "id": f"call_{number}",
                "type": "function",
                "function": {"name": name, "arguments": raw if isinstance(raw, str) else json.dumps(raw)},
            }
            for number, (name, raw) in enumerate(calls)
        ]
    choice = {"index": 0, "message": message, "finish_reason": finish or ("tool_calls" if calls else "stop")}
    document: Json = {"id": "x", "object": "chat.completion", "model": "m", "choices": [choice]}
    return Answer(json.dumps(document | ({} if usage is None else {"usage": usage})).encode())


def failure(status: int, text: str = "out of order", **headers: str) -> Answer:
    return Answer(text.encode(), status, {name.replace("_", "-"): value for name, value in headers.items()})


def tools(body: Json) -> dict[str, list[str]]:
    """Name -> values on offer."""
    functions = [tool["function"] for tool in body["tools"]]
    return {
        function["name"]: next(iter(function["parameters"]["properties"].values())).get("enum", [])
        for function in functions
    }


PONG = completion(text="pong", finish="length")
"""What a server that is up answers to a probe."""


def is_probe(body: Json) -> bool:
    """Whether this is the one token that a server which is down is asked for."""
    return bool(body["messages"] == [{"role": "user", "content": "ping"}])


ASKED = {question.system for question in QUESTIONS}


def is_question(body: Json) -> bool:
    """Whether this is one of the fixed questions to a model before anything is bought of it."""
    return body["messages"][0]["content"] in ASKED


def _answered(body: Json) -> Answer:
    """What a model answers to a fixed question, whatever its script."""
    words = f"a fixed answer to {len(body['messages'][1]['content'])} letters"
    return completion(text=words, usage={"prompt_tokens": 90, "completion_tokens": 9})


def buyer(body: Json) -> Answer:
    """Search for the request, open the first product, choose the first value of every axis, buy."""
    if is_probe(body):
        return PONG
    offered = tools(body)
    usage = {"prompt_tokens": sum(len(m["content"]) for m in body["messages"]) // 4, "completion_tokens": 12}
    if "search" in offered:
        request = body["messages"][1]["content"].split("<request>")[1].split("</request>")[0]
        return completion(("search", {"query": request.strip()[:300]}), usage=usage)
    values = offered["click"]
    clicked = [json.loads(m["tool_calls"][0]["function"]["arguments"]) for m in body["messages"] if "tool_calls" in m]
    chosen = {value["value"].split("=")[0] for value in clicked if "=" in value.get("value", "")}
    if "buy now" in values:
        return completion(("click", {"value": "buy now"}), usage=usage)
    options = [value for value in values if "=" in value and value.split("=")[0] not in chosen]
    products = [value for value in values if value.isdecimal()]
    return completion(("click", {"value": (options or products or values)[0]}), usage=usage)


def streamed(answer: Answer, size: int = 3, end: str = "data: [DONE]\n\n") -> Answer:
    """The same answer as a stream: texts in pieces of `size` letters, ids in first pieces only, usage at the end."""
    document = json.loads(answer.body)
    (choice,) = document.pop("choices")
    message = choice["message"]
    deltas: list[Json] = [{"role": "assistant", "content": ""}]
    for name in ("reasoning_content", "reasoning", "content"):
        text = message.get(name) or ""
        deltas += [{name: text[at : at + size]} for at in range(0, len(text), size)]
    for index, call in enumerate(message.get("tool_calls") or []):
        function = call["function"]
        deltas.append({"tool_calls": [{"index": index, **call, "function": {"name": "", "arguments": ""}}]})
        for part in ("name", "arguments"):
            pieces = [function[part][at : at + size] for at in range(0, len(function[part]), size)]
            deltas += [{"tool_calls": [{"index": index, "function": {part: piece}}]} for piece in pieces]
    usage = document.pop("usage", None)
    events = [document | {"choices": [{"index": 0, "delta": delta, "finish_reason": None}]} for delta in deltas]
    events.append(document | {"choices": [{"index": 0, "delta": {}, "finish_reason": choice["finish_reason"]}]})
    events += [] if usage is None else [document | {"choices": [], "usage": usage}]
    lines = [f"data: {json.dumps(event, ensure_ascii=False)}\n\n" for event in events]
    return answer._replace(body="".join([*lines, end]).encode(), headers={"Content-Type": "text/event-stream"})


def in_text(script: Script = buyer) -> Script:
    """The same script for a model that reads its tools in the text and writes its calls there."""

    def answer(body: Json) -> Answer:
        if is_probe(body):
            return PONG
        messages = [_by_tools(message) for message in body["messages"]]
        told = [line for message in body["messages"] for line in message["content"].split("\n")]
        last = max(place for place, line in enumerate(told) if "JSON" in line and "arguments" in line)
        lines = itertools.takewhile(lambda line: line.startswith("{"), told[last + 1 :])
        offered = [{"type": "function", "function": json.loads(line)} for line in lines]
        given = script({**body, "messages": messages, "tools": offered})
        document = json.loads(given.body) if given.status == 200 else {}
        for choice in document.get("choices", ()):
            for call in choice["message"].pop("tool_calls", ()):
                made = {"name": call["function"]["name"], "arguments": json.loads(call["function"]["arguments"])}
                choice["message"]["content"] = json.dumps(made, ensure_ascii=False)
        return given._replace(body=json.dumps(document).encode()) if document else given

    return answer


def _by_tools(message: Json) -> Json:
    """A message with a call in its text as one with a call of a tool."""
    text = message["content"]
    call = json.loads(text) if message["role"] == "assistant" and text.startswith("{") else {}
    function = {"name": call.get("name"), "arguments": json.dumps(call.get("arguments"))}
    return {**message, "tool_calls": [{"function": function}]} if call else message


class FakeClock:
    """Time that passes only by waiting; the waits of several threads add up."""

    def __init__(self) -> None:
        self.waits: list[float] = []

    @property
    def clock(self) -> Clock:
        start = datetime(2026, 1, 1, tzinfo=UTC)
        return Clock(
            now=lambda: start + timedelta(seconds=sum(self.waits)),
            seconds=lambda: sum(self.waits),
            sleep=self.waits.append,
        )


class FastClock:
    """Real time, two hundred times as fast: waits on several threads overlap as they really would."""

    FACTOR = 200

    def __init__(self) -> None:
        self._start = time.monotonic()

    @property
    def clock(self) -> Clock:
        start = datetime(2026, 1, 1, tzinfo=UTC)
        return Clock(
            now=lambda: start + timedelta(seconds=self._seconds()),
            seconds=self._seconds,
            sleep=lambda seconds: time.sleep(seconds / self.FACTOR),
        )

    def _seconds(self) -> float:
        return (time.monotonic() - self._start) * self.FACTOR


def scripted(script: Script = buyer, clock: Clock | None = None, *, asked: bool = False, **settings: Any) -> ChatModel:
    """A simulated model in this process: it answers by the script, probes by itself, fixed questions so if `asked`."""

    def handle(request: httpx2.Request) -> httpx2.Response:
        body = json.loads(request.content)
        known = PONG if is_probe(body) else None if asked or not is_question(body) else _answered(body)
        answer = known or script(body)
        return httpx2.Response(answer.status, headers=answer.headers, content=answer.body)

    named = {"model": "scripted", "checkpoint": "c1"} | settings
    return connect(
        Endpoint(url="simulated", **named), transport=httpx2.MockTransport(handle), clock=clock or FakeClock().clock
    )


class Server(NamedTuple):
    """A running server and what it was asked."""

    url: str
    requests: list[Json]

    @property
    def work(self) -> list[Json]:
        """What it was asked, fixed questions about the model aside."""
        return [body for body in self.requests if not is_question(body)]


@contextmanager
def serve(script: Script | Sequence[Answer], *, asked: bool = False) -> Iterator[Server]:
    """Serve a script, or a list of answers of which the last repeats, on loopback.

    Fixed questions to the model are among its requests, and answered by the script only if `asked`.
    """
    requests: list[Json] = []
    lock = threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            with lock:
                requests.append({**body, "path": self.path, "authorization": self.headers["authorization"]})
                number = sum(asked or not is_question(request) for request in requests)
            if is_question(body) and not asked:
                self.reply(_answered(body))
            else:
                self.reply(script(body) if callable(script) else script[min(number, len(script)) - 1])

        def reply(self, answer: Answer) -> None:
            if answer is HANG_UP:
                self.close_connection = True
                return
            self.send_response(answer.status)
            for name, value in {"Content-Length": str(len(answer.body)), **answer.headers}.items():
                self.send_header(name, value)
            self.end_headers()
            self.close_connection = answer.cut is not None
            if answer.drip is None:
                self.wfile.write(answer.body[: answer.cut])
                return
            with suppress(OSError):  # the client has had enough
                for byte in answer.body[: answer.cut]:
                    self.wfile.write(bytes([byte]))
                    time.sleep(answer.drip)

        def log_message(self, *_: object) -> None:
            pass

    class Listener(ThreadingHTTPServer):
        daemon_threads = True
        request_queue_size = 256

    server = Listener(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield Server(f"http://127.0.0.1:{server.server_address[1]}/v1", requests)
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
