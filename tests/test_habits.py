"""Whole episodes against the habits of real servers: the right kind of M3, nothing lost and nothing invented."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from scripted import Answer, FakeClock, Json, Script, Server, buyer, completion, failure, is_probe, serve, streamed

from shopskill_lib.agent import Agent, constant, load_prompts, run_episode
from shopskill_lib.errors import InfrastructureError, SetupError
from shopskill_lib.models import Endpoint, connect
from shopskill_lib.records import Hint, Step, make_treatment
from shopskill_lib.rollouts import Planned, run
from shopskill_lib.shops.embedded import EmbeddedShop
from shopskill_lib.shops.protocol import StepResult

BARE = make_treatment("bare", ())
SHOWN = make_treatment("mask-1", [Hint(id="核价", text="选好规格后核对价格。")])
OVERFLOW = failure(400, '{"error": {"code": 400, "type": "exceed_context_size_error", "message": "exceeds"}}')


class Scene:
    """An agent whose model is a script behind a loopback server, streaming or not."""

    def __init__(self, shop: EmbeddedShop, server: Server, stream: bool) -> None:
        self.server = server
        endpoint = Endpoint(url=server.url, model="m", checkpoint="c", stream=stream, timeout=5.0)
        self.model = connect(endpoint, clock=FakeClock().clock)
        self.agent = Agent(self.model, shop, load_prompts(shop.catalogue.language))
        self.steps: list[Step] = []

    def play(self) -> StepResult:
        """Play the first task."""
        task = self.agent.shop.catalogue.tasks["1"]  # type: ignore[attr-defined]
        return run_episode(self.agent, task, constant(BARE), 7, self.steps.append)

    @property
    def last(self) -> list[Json]:
        """Messages of the last request that was no probe."""
        return next(one["messages"] for one in reversed(self.server.requests) if not is_probe(one))


@contextmanager
def scene(shop: EmbeddedShop, script: Script, stream: bool) -> Iterator[Scene]:
    def answer(body: Json) -> Answer:
        given = script(body)
        return streamed(given) if body.get("stream") and given.status == 200 else given

    with serve(answer) as server:
        made = Scene(shop, server, stream)
        try:
            yield made
        finally:
            made.model.close()


def at_turn(number: int, answer: Answer, otherwise: Script = buyer) -> Script:
    """This answer at one turn, counted by what the model said so far; idle words at all turns before."""

    def script(body: Json) -> Answer:
        said = sum(message["role"] == "assistant" for message in body["messages"])
        if said + 1 < number:
            return completion(text="Hm. 嗯。", usage={"prompt_tokens": 9, "completion_tokens": 3})
        return answer if said + 1 == number else otherwise(body)

    return script


@pytest.fixture(params=["en", "zh"])
def shop(shops: dict[str, EmbeddedShop], request: pytest.FixtureRequest) -> EmbeddedShop:
    return shops[request.param]


@pytest.fixture(params=[False, True], ids=["whole", "streamed"])
def stream(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


FILLED = completion(
    ("search", '{"query": "红'), finish="length", usage={"prompt_tokens": 2000, "completion_tokens": 48}
)
"""A context that fills while the model writes a call."""


@pytest.mark.parametrize("answer", [OVERFLOW, FILLED], ids=["refused", "filled while writing"])
def test_a_context_that_is_full_at_the_first_turn_is_the_set_up(
    shop: EmbeddedShop, answer: Answer, stream: bool
) -> None:
    with scene(shop, at_turn(1, answer), stream) as there, pytest.raises(SetupError, match="first prompt does not fit"):
        there.play()


@pytest.mark.parametrize("answer", [OVERFLOW, FILLED], ids=["refused", "filled while writing"])
def test_a_context_that_is_full_at_the_ninth_turn_ends_the_episode(
    shop: EmbeddedShop, answer: Answer, stream: bool
) -> None:
    with scene(shop, at_turn(9, answer), stream) as there:
        end = there.play()
    assert end.reward_detail is not None and end.reward_detail.termination_reason == "context_length"
    assert end.reward == 0 and len(there.steps) == 9 and there.steps[-1].fault is None


@pytest.mark.parametrize(
    "answer",
    [
        completion(("search", '{"query": "红'), usage={"prompt_tokens": 9, "completion_tokens": 3}),
        completion(("search", '{"query": "a"}{"query": "b"}')),
        completion(("search", '{"query": NaN}')),
        completion(("search", '["红"]')),
        completion(("search", '{"query": "a"'), ("search", {"query": "b"}), text="So:"),
    ],
    ids=["cut off", "two objects", "NaN", "list", "one of two cut off"],
)
def test_a_call_that_cannot_be_read_is_never_sent_back(shop: EmbeddedShop, answer: Answer, stream: bool) -> None:
    """Some servers answer 500 to a history with such a call (server_habits)."""

    def strict(body: Json) -> Answer:
        for message in body["messages"]:
            if not isinstance(message["content"], str):
                return failure(500, "content: null")
            for call in message.get("tool_calls", ()):
                if not isinstance(json.loads(call["function"]["arguments"]), dict):
                    return failure(500, "Failed to parse arguments")
        faulty = not any(message["role"] == "assistant" for message in body["messages"]) and len(body["messages"]) == 2
        return answer if faulty else buyer(body)

    with scene(shop, strict, stream) as there:
        end = there.play()
    assert there.steps[0].fault is not None and there.steps[0].tries == 1
    assert end.reward_detail is not None and end.reward_detail.termination_reason == "purchase"
    assert all(step.tries == 1 for step in there.steps)


def test_no_content_is_ever_null(shop: EmbeddedShop, stream: bool) -> None:
    """Some servers refuse it in a message with calls."""
    with scene(shop, at_turn(3, completion(("click", {"value": "x"}), ("click", {"value": "y"}))), stream) as there:
        there.play()
    assert all(isinstance(message["content"], str) for message in there.last)


def test_thoughts_are_recorded_and_never_sent_back(shop: EmbeddedShop, stream: bool) -> None:
    def thinking(body: Json) -> Answer:
        document = json.loads(buyer(body).body)
        document["choices"][0]["message"]["reasoning_content"] = "SECRET 想一想"
        return Answer(json.dumps(document).encode())

    with scene(shop, thinking, stream) as there:
        end = there.play()
    assert end.done and {step.reasoning for step in there.steps} == {"SECRET 想一想"}
    assert "SECRET" not in json.dumps(there.last)


def test_thoughts_are_kept_where_pages_are(shop: EmbeddedShop, tmp_path: Path) -> None:
    def thinking(body: Json) -> Answer:
        document = json.loads(buyer(body).body)
        document["choices"][0]["message"]["reasoning"] = "想一想"
        return Answer(json.dumps(document).encode())

    task = shop.catalogue.tasks["1"]
    plan = [Planned("bare", task, 0, BARE), Planned("train", task, 0, BARE, keep_pages=True)]
    with scene(shop, thinking, stream=False) as there:
        sets = run(plan, there.agent, tmp_path, rollout_seed=0, stage="test", threads=1)
    kept = {name: {step.reasoning for step in arm.scored[0].steps} for name, arm in sets.items()}
    assert kept == {"bare": {None}, "train": {"想一想"}}


def test_a_failing_server_is_no_ending(shop: EmbeddedShop, stream: bool) -> None:
    def script(body: Json) -> Answer:
        return buyer(body) if is_probe(body) else at_turn(9, Answer(b""))(body)

    with scene(shop, script, stream) as there, pytest.raises(InfrastructureError, match="no reply after 6 requests"):
        there.play()
    assert len(there.steps) == 8


def test_payment_asked_in_one_arm_stops_the_run_and_costs_no_episode(shop: EmbeddedShop, tmp_path: Path) -> None:
    """402 for prompts of one arm alone: not a missing arm, but a run that stops and goes on when it is paid."""
    paid: list[bool] = []

    def script(body: Json) -> Answer:
        return buyer(body) if paid or "核价" not in json.dumps(body, ensure_ascii=False) else failure(402, "top up")

    tasks = [shop.catalogue.tasks[str(number)] for number in range(1, 5)]
    plan = [Planned(name, task, 0, shown) for name, shown in (("bare", BARE), ("masked", SHOWN)) for task in tasks]
    with scene(shop, script, stream=False) as there:
        with pytest.raises(SetupError, match="asks for payment"):
            run(plan, there.agent, tmp_path, rollout_seed=0, stage="test", threads=1)
        before = (tmp_path / "episodes" / "bare.jsonl").read_bytes()
        assert not (tmp_path / "episodes" / "masked.jsonl").exists()
        paid.append(True)
        sets = run(plan, there.agent, tmp_path, rollout_seed=0, stage="test", threads=2)
    assert (tmp_path / "episodes" / "bare.jsonl").read_bytes() == before
    assert [len(arm.scored) for arm in sets.values()] == [4, 4]
    assert all(episode.attempt == 1 for arm in sets.values() for episode in arm.scored)
