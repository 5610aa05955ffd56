"""The shopper behind the openai client: in the process, and over HTTP on loopback."""

import http.client
import json
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from typing import Any

import httpx2
import openai
import pytest
from openai.types.chat import ChatCompletion

from shopskill_lib.errors import SetupError
from shopskill_lib.lab.direct import DirectModel
from shopskill_lib.models import Endpoint as ModelEndpoint
from shopskill_lib.models import Model, connect
from shopskill_lib.records import canonical
from shopskill_lib.simulated import author
from shopskill_lib.simulated.competences import UNTAUGHT
from shopskill_lib.simulated.shopper import MODEL, model_name, respond
from shopskill_lib.simulated.wire import BASE_URL, Endpoint, Server, transport


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as running:
        yield running


def client_of(server: Server) -> openai.OpenAI:
    return openai.OpenAI(base_url=server.base_url, api_key="-", max_retries=0, timeout=10)


def client_inside(endpoint: Endpoint | None = None) -> openai.OpenAI:
    inside = httpx2.Client(transport=transport(endpoint))
    return openai.OpenAI(base_url=BASE_URL, api_key="-", max_retries=0, http_client=inside)


def body(kind: str = "tent", **changes: Any) -> dict[str, Any]:
    text = f"<request>\nI need the following: {kind}. My budget is $90.\n</request>\n\nShop home\n"
    properties = {"query": {"type": "string", "minLength": 1}}
    search = {"name": "search", "parameters": {"type": "object", "properties": properties, "required": ["query"]}}
    return {
        "model": MODEL,
        "messages": [{"role": "system", "content": "You shop."}, {"role": "user", "content": text}],
        "tools": [{"type": "function", "function": search}],
        "temperature": 0,
    } | changes


def ask(client: openai.OpenAI, kind: str = "tent", **changes: Any) -> ChatCompletion:
    answer: ChatCompletion = client.chat.completions.create(**body(kind, **changes))
    return answer


def query_of(answer: ChatCompletion) -> str:
    (call,) = answer.model_dump()["choices"][0]["message"]["tool_calls"]
    return str(json.loads(call["function"]["arguments"])["query"])


def test_both_wires_answer_as_the_function_does(server: Server) -> None:
    expected = respond(body("帐篷")).body
    with client_of(server) as over_http, client_inside() as inside:
        for client in (over_http, inside):
            answer = ask(client, "帐篷")
            assert answer.model_dump(exclude_unset=True) == expected
            assert "simulated" in answer.model and "simulated" in (answer.system_fingerprint or "")
            assert query_of(answer) == "帐篷"


def test_models_are_listed(server: Server) -> None:
    with client_of(server) as over_http, client_inside() as inside:
        listed = [[model.id for model in client.models.list()] for client in (over_http, inside)]
        assert listed == [[MODEL, author.MODEL]] * 2


def test_another_model_and_bad_requests_are_refused(server: Server) -> None:
    with client_of(server) as over_http, client_inside() as inside:
        for client in (over_http, inside):
            with pytest.raises(openai.NotFoundError, match="simulated-shopper"):
                ask(client, model="gpt-x")
            with pytest.raises(openai.BadRequestError, match="messages"):
                ask(client, messages=[])
            with pytest.raises(openai.BadRequestError, match="stream"):
                ask(client, stream=True)


def test_requests_are_counted() -> None:
    endpoint = Endpoint()
    with client_inside(endpoint) as client:
        ask(client)
        ask(client)
        client.models.list()
        with pytest.raises(openai.NotFoundError):
            ask(client, model="other")
    assert endpoint.stats == {"requests": 3, "completions": 2, "refused": 1}


def test_the_server_counts_and_tells(server: Server) -> None:
    with client_of(server) as client:
        ask(client)
    answer = httpx2.get(f"http://127.0.0.1:{server.port}/stats")
    assert answer.json() == {"requests": 1, "completions": 1, "refused": 0, "simulated": True}


def test_concurrent_requests_get_their_own_answers(server: Server) -> None:
    kinds = [f"tent {number}" for number in range(200)]
    with client_of(server) as client, ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(lambda kind: ask(client, kind).model_dump(exclude_unset=True), kinds))
    assert answers == [respond(body(kind)).body for kind in kinds]
    assert server.endpoint.stats["completions"] == 200


def raw(server: Server, method: str, path: str, content: bytes, headers: dict[str, str]) -> tuple[int, Any]:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=5)
    try:
        connection.request(method, path, content, headers)
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())
    finally:
        connection.close()


@pytest.mark.parametrize(
    ("method", "path", "content", "headers", "status"),
    [
        ("POST", "/v1/chat/completions", b"{", {}, 400),
        ("POST", "/v1/chat/completions", b"\xff\xfe", {}, 400),
        ("POST", "/v1/chat/completions", b"[" * 100_000, {}, 400),
        ("POST", "/v1/chat/completions", b"[]", {}, 400),
        ("POST", "/v1/chat/completions", b"", {"Content-Length": "none"}, 400),
        ("POST", "/v1/chat/completions", b"", {"Content-Length": "99999999999"}, 400),
        ("GET", "/v1/chat/completions", b"", {}, 404),
        ("POST", "/v1/embeddings", b"{}", {}, 404),
        ("GET", "/", b"", {}, 404),
    ],
)
def test_what_is_no_request_is_refused(
    server: Server, method: str, path: str, content: bytes, headers: dict[str, str], status: int
) -> None:
    found, answer = raw(server, method, path, content, headers)
    assert found == status and answer["error"]["message"].startswith("simulated: ")
    assert raw(server, "GET", "/stats", b"", {})[0] == 200  # still there


def test_a_connection_is_kept_open(server: Server) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=5)
    try:
        sockets = []
        for _ in range(3):
            connection.request("POST", "/v1/chat/completions", json.dumps(body()))
            assert connection.getresponse().read()
            sockets.append(connection.sock)
        assert sockets[0] is not None and sockets[0] is sockets[1] is sockets[2]
    finally:
        connection.close()


def test_it_listens_on_loopback_only(server: Server) -> None:
    assert server.base_url == f"http://127.0.0.1:{server.port}/v1"
    with pytest.raises(OSError, match="in use"):
        Server(server.port)


def test_the_command_serves_until_it_is_stopped() -> None:
    command = [sys.executable, "-m", "shopskill_lib.simulated", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        watch = threading.Timer(20, process.kill)
        watch.start()
        try:
            assert process.stdout is not None and process.stderr is not None
            pattern = r"simulated-shopper and simulated-author at (http://127\.0\.0\.1:\d+/v1)\n"
            found = re.fullmatch(pattern, process.stdout.readline())
            assert found
            with openai.OpenAI(base_url=found[1], api_key="-", max_retries=0) as client:
                assert query_of(ask(client)) == "tent"
            process.send_signal(2)
            assert process.wait(10) == 0
            assert process.stderr.read() == ""
        finally:
            watch.cancel()
            process.kill()


def test_a_checkpoint_is_told_by_its_name_on_every_road(server: Server) -> None:
    """Over HTTP, inside the process and without a wire: one answer, and another for another checkpoint."""
    messages = [canonical(message) for message in body("帐篷，要求防水、可折叠")["messages"]]
    tools, answers = body()["tools"], set()
    for model in (model_name(UNTAUGHT._replace(query=level)) for level in (0.0, 1.0)):
        endpoint = ModelEndpoint(url=server.base_url, model=model, checkpoint="c")
        inside = replace(endpoint, url="simulated")
        roads: list[Model] = [connect(endpoint), connect(inside, transport=transport()), DirectModel(inside)]
        outcomes = [road.reply(messages, tools, 5).outcome for road in roads]
        assert outcomes[0] == outcomes[1] == outcomes[2]
        assert all(road.identity.simulated and road.identity.model == model for road in roads)
        answers.add(str(outcomes[0]))
        for road in roads:
            road.close()
    assert len(answers) == 2


def test_the_author_answers_alike_on_every_road(server: Server) -> None:
    card = {"card_id": "card-1", "workflow_stage": "query", "generalizable_lesson": "先列出全部要求，都写进搜索词。"}
    told = f"<skill>\n[]\n</skill>\n<cards>\n{json.dumps([card], ensure_ascii=False)}\n</cards>"
    messages = [canonical({"role": "system", "content": "s"}), canonical({"role": "user", "content": told})]
    tools = [{"type": "function", "function": {"name": "submit_clusters", "parameters": {"properties": {}}}}]
    endpoint = ModelEndpoint(url=server.base_url, model="simulated-author", checkpoint="c")
    for seed in range(3):
        with closing(connect(endpoint)) as over_http:
            answer = over_http.reply(messages, tools, seed).outcome
        assert answer == DirectModel(replace(endpoint, url="simulated")).reply(messages, tools, seed).outcome
        assert "submit_clusters" in str(answer) and "card-1" in str(answer)


def test_a_checkpoint_that_cannot_be_is_a_bad_set_up(server: Server) -> None:
    messages = [canonical(message) for message in body()["messages"]]
    endpoint = ModelEndpoint(url=server.base_url, model=f"{MODEL}+patience0.500", checkpoint="c")
    with closing(connect(endpoint)) as over_http, pytest.raises(SetupError, match="does not know the model"):
        over_http.reply(messages, body()["tools"], 5)
    with pytest.raises(SetupError, match=r"any of query, persona, .* each once and from 0 to 1"):
        DirectModel(replace(endpoint, url="simulated")).reply(messages, body()["tools"], 5)
