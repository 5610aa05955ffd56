"""Fixed questions before anything is bought: recorded, compared, and no part of what is counted."""

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from scripted import Answer, FakeClock, Json, Script, buyer, completion, failure, is_probe, is_question, scripted, serve

from shopskill_lib import probes, protocol, workbench
from shopskill_lib.errors import InputError, SetupError
from shopskill_lib.lab.direct import DirectModel
from shopskill_lib.models import Endpoint, connect
from shopskill_lib.probes import SEEDS, Probe
from shopskill_lib.settings import Settings
from shopskill_lib.simulated import wire
from shopskill_lib.store import read_calls
from shopskill_lib.workbench import Bench

USAGE = {"prompt_tokens": 9, "completion_tokens": 3}


def named(word: str, counted: bool = True) -> Script:
    """A model whose answers carry a word of their own; otherwise the scripted buyer."""

    def script(body: Json) -> Answer:
        if not is_probe(body) and is_question(body):
            seed = "" if body["temperature"] == 0 else f" {body.get('seed')}"
            tool = body["tools"][0]["function"]["name"]
            key = "query" if tool == "search" else "value"
            return completion((tool, {key: word + seed}), usage=USAGE if counted else None)
        return buyer(body)

    return script


def taken(script: Script, **settings: Any) -> Probe:
    return probes.take(scripted(script, asked=True, **({"temperature": 0.7} | settings)))


def test_a_probe_tells_what_a_server_does() -> None:
    requests: list[Json] = []

    def script(body: Json) -> Answer:
        requests.append(body)
        return named("茶杯")(body)

    probe = taken(script)
    assert (probe.repeatable, probe.seed_matters, probe.usage, probe.finish_reason) == (True, True, True, True)
    assert (probe.tool_call, probe.call_as_text, probe.listed) == (True, False, None)
    assert [len(digests) for digests in probe.replies] == [1, 1]
    assert [request["temperature"] for request in requests] == [0, 0, 0, 0, 0.7, 0.7]
    offered = [request["tools"][0]["function"]["name"] for request in requests]
    assert offered == ["search", "search", "click", "click", "search", "search"]
    assert {"zh" if "顾客" in request["messages"][0]["content"] else "en" for request in requests} == {"en", "zh"}


def test_a_server_that_ignores_seeds_counts_nothing_and_has_no_tools() -> None:
    text = '```json\n{"name": "search", "arguments": {"query": "mug"}}\n```'
    probe = taken(lambda _: completion(text=text))
    assert (probe.seed_matters, probe.usage, probe.tool_call, probe.call_as_text) == (False, False, False, True)
    assert taken(lambda _: completion(text="What is {this}?", usage=USAGE)).call_as_text is False


def test_at_temperature_0_and_without_seeds_nothing_is_told_of_them() -> None:
    assert taken(named("a"), temperature=0.0).seed_matters is None
    assert taken(named("a"), send_seed=False).seed_matters is None


def test_a_model_that_does_not_repeat_itself_is_compared_with_nothing() -> None:
    words = iter("abcdefghijkl")
    restless = taken(lambda body: named(next(words))(body))
    assert restless.repeatable is False and [len(digests) for digests in restless.replies] == [2, 2]
    assert probes.differs(restless, taken(named("z"))) == "" == probes.differs(taken(named("z")), restless)


def test_other_weights_under_one_name_are_told() -> None:
    old, new = taken(named("a")), taken(named("b"))
    assert probes.differs(old, taken(named("a"))) == ""
    assert "2 of 2 fixed questions otherwise" in probes.differs(old, new)
    assert probes.differs(old, new.model_copy(update={"checkpoint": "c2"})) == ""
    assert probes.differs(old, new.model_copy(update={"replies": ((), ())})) == ""


def test_a_server_that_fails_leaves_it_open() -> None:
    probe = taken(lambda body: completion(text="pong") if is_probe(body) else failure(500))
    assert probe.replies == ((), ()) and probe.repeatable is probe.seed_matters is probe.usage is None
    assert probe.tool_call is probe.call_as_text is probe.finish_reason is None
    with pytest.raises(SetupError, match="refuses the key"):
        taken(lambda _: failure(401))


def test_the_simulated_models_answer_too() -> None:
    for model in ("simulated-shopper", "simulated-author"):
        endpoint = Endpoint(url="simulated", model=model, checkpoint="c", temperature=0.7)
        over_wire, direct = (
            probes.take(connect(endpoint, transport=wire.transport())),
            probes.take(DirectModel(endpoint)),
        )
        assert over_wire.listed == ("simulated-author", "simulated-shopper") and direct.listed is None
        assert over_wire.replies == direct.replies and over_wire.repeatable
        assert over_wire.tool_call is (model == "simulated-shopper")


def test_listed_models_over_http_are_those_in_the_process() -> None:
    with wire.Server() as server:
        endpoint = Endpoint(url=server.base_url, model="simulated-shopper", checkpoint="c", temperature=0.7)
        over_http = connect(endpoint)
        inside = connect(replace(endpoint, url="simulated"), transport=wire.transport())
        assert probes.take(over_http) == probes.take(inside)
        over_http.close()
        inside.close()


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    names = {"n_products": 1700, "n_val": 3, "max_steps": 12, "policy_concurrency": 1}
    return workbench.set_up(Settings.of(names), tmp_path_factory.mktemp("probes") / "run")


@pytest.fixture
def bench(opened: Bench, tmp_path: Path) -> Bench:
    return replace(opened, folder=tmp_path / "run")


def with_model(bench: Bench, script: Script, **change: Any) -> Bench:
    model = scripted(script, asked=True, temperature=0.7)
    return replace(bench, agent=replace(bench.agent, model=model), **change)


def roll_out(bench: Bench) -> int:
    """Run the bare validation episodes, and return how many are scored."""
    return len(protocol.roll_out(bench, protocol.plan_bare(bench, "val"), "test")["bare"].scored)


def test_a_probe_lies_in_the_run_folder_before_the_first_episode_and_is_paid_for(bench: Bench) -> None:
    asked: list[bool] = []

    def script(body: Json) -> Answer:
        asked.append(is_question(body))
        assert is_question(body) or (bench.folder / probes.FILE).exists()
        return named("a")(body)

    at = with_model(bench, script)
    assert roll_out(at) == 3
    stages = Counter(call.stage for call in read_calls(bench.folder))
    assert stages.pop("probe") == asked.count(True) and stages.total() == asked.count(False) > 0
    before, size = (bench.folder / probes.FILE).read_bytes(), len(asked)
    assert json.loads(before)[0]["model"] == "scripted"
    assert roll_out(at) == 3 and len(asked) == size, "nothing is owed, so nothing is asked"
    assert (bench.folder / probes.FILE).read_bytes() == before


def test_other_weights_under_the_same_name_are_not_reused(bench: Bench, tmp_path: Path) -> None:
    assert roll_out(with_model(bench, named("a"))) == 3
    settings = bench.settings.model_copy(update={"reuse_from": str(bench.folder)})
    other = with_model(bench, named("b"), folder=tmp_path / "other", settings=settings)
    with pytest.raises(SetupError, match=r"answers 2 of 2 fixed questions otherwise.*checkpoint of their own"):
        roll_out(other)
    assert not (other.folder / "episodes").exists() and not (other.folder / probes.FILE).exists()
    same = with_model(bench, named("a"), folder=tmp_path / "same", settings=settings)
    assert roll_out(same) == 3 and {call.stage for call in read_calls(same.folder)} == {"probe"}
    (bench.folder / probes.FILE).unlink()
    assert roll_out(other) == 3, "the user says that they are the same"


def test_weights_that_change_within_a_run_are_noticed(bench: Bench) -> None:
    first = bench.settings.model_copy(update={"n_val": 2})
    assert roll_out(with_model(bench, named("a"), settings=first)) == 2
    with pytest.raises(SetupError, match="fixed questions otherwise"):
        roll_out(with_model(bench, named("b")))
    assert roll_out(with_model(bench, named("a"))) == 3


def test_one_odd_answer_is_looked_at_twice(bench: Bench) -> None:
    first = bench.settings.model_copy(update={"n_val": 2})
    assert roll_out(with_model(bench, named("a"), settings=first)) == 2
    odd = iter("bbbb")
    hiccup = with_model(bench, lambda body: named(next(odd, "a") if is_question(body) else "a")(body))
    assert roll_out(hiccup) == 3


def test_the_first_answer_stays_and_other_models_are_added(bench: Bench) -> None:
    model = scripted(named("a"), asked=True, temperature=0.7)
    probes.check(model, bench.folder)
    probes.check(replace(model, endpoint=replace(model.endpoint, checkpoint="c2")), bench.folder)
    probes.record(scripted(named("b"), asked=True, temperature=0.7), bench.folder)
    assert [(one.model, one.checkpoint) for one in probes.read(bench.folder)] == [
        ("scripted", "c1"),
        ("scripted", "c2"),
    ]
    silent = taken(lambda body: completion(text="pong") if is_probe(body) else failure(500))
    (bench.folder / probes.FILE).write_text(json.dumps([silent.model_dump()]), encoding="utf-8")
    probes.check(model, bench.folder)
    assert probes.read(bench.folder)[0].repeatable


def test_damaged_probes_are_refused(bench: Bench) -> None:
    bench.folder.mkdir(exist_ok=True)
    (bench.folder / probes.FILE).write_text("[{]", encoding="utf-8")
    with pytest.raises(InputError, match="probes cannot be read"):
        probes.check(scripted(named("a")), bench.folder)


def test_a_dead_server_is_the_affair_of_the_run() -> None:
    time = FakeClock()
    model = connect(Endpoint(url="http://127.0.0.1:9/v1", model="m", checkpoint="c"), clock=time.clock)
    with pytest.raises(SetupError, match="has not answered"):
        probes.take(model)
    model.close()


def test_all_seeds_are_tried_before_they_are_said_to_be_ignored() -> None:
    with serve([completion(("search", {"query": "杯"}), usage=USAGE)], asked=True) as server:
        model = connect(Endpoint(url=server.url, model="m", checkpoint="c", temperature=0.7), clock=FakeClock().clock)
        assert probes.take(model).seed_matters is False
        model.close()
    assert [request["seed"] for request in server.requests] == [0] * 4 + list(SEEDS)
