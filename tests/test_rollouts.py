import io
import json
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from scripted import Answer, FakeClock, Json, Script, buyer, failure, scripted, serve
from stopping import Child, Gate

from shopskill_lib import workers
from shopskill_lib.agent import Agent, load_prompts
from shopskill_lib.errors import InputError, Interrupted, OutputError, ParameterError, SetupError
from shopskill_lib.models import Endpoint, connect
from shopskill_lib.records import Hint, ModelCall, Treatment, make_treatment
from shopskill_lib.rollouts import Planned, forecast, identity, load, run
from shopskill_lib.rolloutset import RolloutSet
from shopskill_lib.shops.embedded import EmbeddedShop
from shopskill_lib.store import LOCK, Store, locked

BARE = make_treatment("bare", ())
SKILL = make_treatment("full", (Hint(id="check", text="核对规格 {page}"),))


class Bench:
    """A shop and a scripted model whose calls are counted, and plans over the shop's tasks."""

    def __init__(self, shop: EmbeddedShop, script: Script = buyer, **settings: Any) -> None:
        self.asked: list[str] = []
        self.shop = shop

        def listen(body: Json) -> Answer:
            self.asked.append(request_of(body))
            return script(body)

        self.agent = Agent(scripted(listen, **settings), shop, load_prompts(shop.catalogue.language))

    def plan(self, tasks: int, arm: str = "bare", treatment: Treatment = BARE, samples: int = 1) -> list[Planned]:
        chosen = list(self.shop.catalogue.tasks.values())[:tasks]
        return [Planned(arm, task, sample, treatment) for task in chosen for sample in range(samples)]

    def run(self, plan: Sequence[Planned], folder: Path, *, rollout_seed: int = 0, **more: Any) -> RolloutSet:
        (rollouts,) = run(plan, self.agent, folder, rollout_seed=rollout_seed, stage="gate_a", **more).values()
        return rollouts


def request_of(body: Json) -> str:
    """The request of the task that a body belongs to."""
    return str(body["messages"][1]["content"].split("<request>\n")[1].split("\n</request>")[0])


def failing(shop: EmbeddedShop, tasks: set[str], status: int = 503) -> Script:
    """The shopper, on a server that fails for these tasks."""
    requests = {shop.catalogue.tasks[task].visible_instruction for task in tasks}
    return lambda body: failure(status) if request_of(body) in requests else buyer(body)


TIMES = {"started_at", "ended_at", "seconds"}


def timeless(folder: Path) -> dict[str, list[str]]:
    """The lines of all data files of a run, without their times and sorted."""

    def strip(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: strip(inner) for key, inner in value.items() if key not in TIMES}
        return [strip(inner) for inner in value] if isinstance(value, list) else value

    return {
        path.name: sorted(json.dumps(strip(json.loads(line))) for line in path.read_text().splitlines())
        for path in sorted(folder.rglob("*.jsonl"))
    }


@pytest.fixture(params=["en", "zh"])
def both(shops: dict[str, EmbeddedShop], request: pytest.FixtureRequest) -> EmbeddedShop:
    return shops[request.param]


@pytest.fixture
def en(shops: dict[str, EmbeddedShop]) -> EmbeddedShop:
    return shops["en"]


def test_a_plan_of_two_arms(both: EmbeddedShop, tmp_path: Path) -> None:
    bench = Bench(both, price_in=1.0, price_out=2.0)
    plan = [*bench.plan(6, samples=2), *bench.plan(6, "equipped", SKILL)]
    found = run(plan, bench.agent, tmp_path, rollout_seed=0, stage="gate_b")
    assert list(found) == ["bare", "equipped"]
    bare, equipped = found.values()
    assert [len(bare.scored), len(equipped.scored)] == [12, 6] and bare.unscored == bare.owed == bare.missing == ()
    episode = equipped.episodes[("1", 0)]
    assert episode.hint_ids == ("check",) and episode.treatment_sha256 == SKILL.sha256 and episode.split == "val"
    assert episode.simulated and episode.model.checkpoint == "c1" and episode.ending == "purchase"
    assert episode.reward is not None and episode.reward_detail is not None and episode.purchase is not None
    assert bare.episodes[("1", 0)].seeds != bare.episodes[("1", 1)].seeds
    calls = [ModelCall.model_validate_json(line) for line in (tmp_path / "calls.jsonl").read_text().splitlines()]
    assert Counter(call.arm for call in calls) == {
        name: sum(len(episode.steps) for episode in rollouts.scored) for name, rollouts in found.items()
    }
    assert all(call.stage == "gate_b" and call.role == "policy" and call.tries == 1 for call in calls)
    assert all(
        call.usage and call.money == pytest.approx((call.usage.prompt_tokens + 2 * call.usage.completion_tokens) / 1e6)
        for call in calls
    )
    assert len(bench.asked) == len(calls)


def test_a_result_answers_the_three_questions(en: EmbeddedShop, tmp_path: Path) -> None:
    bench = Bench(en, failing(en, {"3"}))
    rollouts = bench.run(bench.plan(10), tmp_path)
    frame = rollouts.to_frame()
    assert list(frame["task_id"]) == [str(number) for number in range(1, 11)]
    assert [frame["state"][2], frame["error"][2]] == ["missing", "InfrastructureError"]
    assert frame["reward"].isna().sum() == 1 and set(frame["simulated"]) == {True}
    assert rollouts.mean_reward == pytest.approx(frame["reward"].mean())
    assert str(rollouts) == rollouts.summary()
    assert "bare (simulated): mean reward" in str(rollouts) and "over 9 scored of 10 episodes" in str(rollouts)
    assert "Missing: 3/0." in str(rollouts)
    assert "r_success" in frame and min(frame["prompt_tokens"].dropna()) > 0


def test_nothing_is_run_twice(en: EmbeddedShop, tmp_path: Path) -> None:
    bench = Bench(en)
    half = bench.run(bench.plan(4), tmp_path)
    asked = len(bench.asked)
    whole = bench.run(bench.plan(8), tmp_path)
    assert {key: whole.episodes[key] for key in half.episodes} == half.episodes
    assert len(bench.asked) - asked == sum(len(whole.episodes[key].steps) for key in whole.planned[4:])
    again = bench.run(bench.plan(8), tmp_path)
    assert again == whole == load(bench.plan(8), bench.agent, tmp_path, rollout_seed=0)["bare"]


def test_threads_change_nothing(both: EmbeddedShop, tmp_path: Path) -> None:
    bench = Bench(both)
    one = bench.run(bench.plan(12), tmp_path / "one", threads=1)
    many = bench.run(bench.plan(12)[::-1], tmp_path / "many", threads=8)
    assert timeless(tmp_path / "one") == timeless(tmp_path / "many")
    assert one.planned == many.planned and list(one.episodes) == list(many.episodes)


def test_identity_is_what_a_result_depends_on(en: EmbeddedShop, shops: dict[str, EmbeddedShop], tmp_path: Path) -> None:
    bench = Bench(en)
    (planned,) = bench.plan(1)

    def name(planned: Planned = planned, seed: int = 0, shop: EmbeddedShop = en, **settings: Any) -> str:
        return identity(planned, Bench(shop, **settings).agent.identity, seed)

    whole = planned.task
    others = {
        name(seed=1),
        name(Planned("masked", whole, 0, BARE)),
        name(Planned("bare", whole, 1, BARE)),
        name(Planned("bare", whole, 0, SKILL)),
        name(Planned("bare", whole.model_copy(update={"persona": None}), 0, BARE)),
        name(temperature=1.0),
        name(max_tokens=9),
        name(send_seed=False),
        name(shop=shops["zh"]),
        name(shop=EmbeddedShop(en.catalogue, tmp_path, action_limit=9)),
    }
    assert len(others) == 10 and name() not in others
    renamed = Planned("bare", whole.model_copy(update={"split": "test"}), 0, make_treatment("none", ()))
    assert name(timeout=1.0, price_in=5.0) == name() == name(renamed)


def test_one_of_ten_fails_and_nine_survive(en: EmbeddedShop, tmp_path: Path) -> None:
    bench = Bench(en, failing(en, {"4"}))
    rollouts = bench.run(bench.plan(10), tmp_path)
    assert len(rollouts.scored) == 9 and rollouts.missing == (("4", 0),) and rollouts.owed == ()
    failed = rollouts.episodes[("4", 0)]
    assert failed.attempt == 3 and failed.error is not None and "HTTP 503" in failed.error.message
    lines = (tmp_path / "episodes" / "bare.jsonl").read_text().splitlines()
    assert Counter(json.loads(line)["status"] for line in lines) == {"scored": 9, "error": 3}


def test_I20_errors_are_never_rewards(en: EmbeddedShop, tmp_path: Path) -> None:
    bench = Bench(en, failing(en, {"1", "2"}))
    rollouts = bench.run(bench.plan(3), tmp_path)
    failed = [rollouts.episodes[(task, 0)] for task in ("1", "2")]
    assert {(e.reward, e.reward_detail, e.ending, e.purchase) for e in failed} == {(None, None, None, None)}
    assert rollouts.mean_reward == rollouts.episodes[("3", 0)].reward
    nothing = bench.run(bench.plan(2), tmp_path)
    assert nothing.mean_reward is None and "no mean over 0 scored of 2" in str(nothing)


def test_I21_arms_draw_anew(en: EmbeddedShop, tmp_path: Path) -> None:
    bench = Bench(en)
    found = run([*bench.plan(3), *bench.plan(3, "masked")], bench.agent, tmp_path, rollout_seed=0, stage="gate_a")
    seeds = {episode.seeds.episode_seed for rollouts in found.values() for episode in rollouts.scored}
    assert len(seeds) == 6 and len(bench.asked) == sum(len(e.steps) for r in found.values() for e in r.scored)


def test_attempts_are_counted_over_restarts(en: EmbeddedShop, tmp_path: Path) -> None:
    broken = Bench(en, failing(en, {"1"}))
    assert broken.run(broken.plan(1), tmp_path, max_attempts=1).missing == (("1", 0),)
    assert load(broken.plan(1), broken.agent, tmp_path, rollout_seed=0)["bare"].owed == (("1", 0),)
    assert broken.run(broken.plan(1), tmp_path).episodes[("1", 0)].attempt == 3
    mended = Bench(en)
    assert mended.run(mended.plan(1), tmp_path).missing == (("1", 0),) and mended.asked == []
    rollouts = mended.run(mended.plan(1), tmp_path, max_attempts=4)
    assert rollouts.missing == () and rollouts.episodes[("1", 0)].attempt == 4


def test_a_fault_in_the_program_is_data_too(en: EmbeddedShop, tmp_path: Path) -> None:
    def script(body: Json) -> Answer:
        if len(body["messages"]) > 4:
            raise KeyError("price")
        return buyer(body)

    bench = Bench(en, script)
    failed = bench.run(bench.plan(1), tmp_path).episodes[("1", 0)]
    assert failed.error is not None and (failed.error.kind, failed.error.message) == ("KeyError", "'price'")
    assert len(failed.steps) == 2


def test_a_wrong_model_stops_before_anything_is_run(en: EmbeddedShop, tmp_path: Path) -> None:
    with serve([failure(404, "The model `m` does not exist")]) as server:
        model = connect(Endpoint(url=server.url, model="m", checkpoint="c"), clock=FakeClock().clock)
        agent = Agent(model, en, load_prompts("en"))
        with pytest.raises(SetupError, match="does not know the model"):
            run(Bench(en).plan(40), agent, tmp_path, rollout_seed=0, stage="gate_a", threads=4)
        model.close()
        assert 1 <= len(server.requests) <= 4
    assert not list(tmp_path.rglob("*.jsonl"))
    assert (tmp_path / LOCK).read_text() == ""


def test_a_set_up_error_keeps_what_was_finished(en: EmbeddedShop, tmp_path: Path) -> None:
    broken = Bench(en, failing(en, {"5"}, status=401))
    with pytest.raises(SetupError, match="refuses the key"):
        broken.run(broken.plan(10), tmp_path, threads=1)
    assert len((tmp_path / "episodes" / "bare.jsonl").read_text().splitlines()) == 4


@pytest.mark.parametrize("tail", ['{"identity": "ab', "{", '{"identity": "价'])
def test_a_torn_last_line_is_no_episode(en: EmbeddedShop, tmp_path: Path, tail: str) -> None:
    bench = Bench(en)
    whole = bench.run(bench.plan(3), tmp_path)
    before = timeless(tmp_path)
    path = tmp_path / "episodes" / "bare.jsonl"
    kept = path.read_bytes().splitlines(keepends=True)[:-1]
    path.write_bytes(b"".join(kept) + tail.encode()[:-1])
    (tmp_path / "calls.jsonl").unlink()
    assert len(load(bench.plan(3), bench.agent, tmp_path, rollout_seed=0)["bare"].owed) == 1
    again = bench.run(bench.plan(3), tmp_path)
    assert again.planned == whole.planned and not again.unscored
    assert timeless(tmp_path)["bare.jsonl"] == before["bare.jsonl"]


def test_a_last_line_that_lacks_its_end_only_is_kept(en: EmbeddedShop, tmp_path: Path) -> None:
    bench = Bench(en)
    bench.run(bench.plan(3), tmp_path)
    path = tmp_path / "episodes" / "bare.jsonl"
    whole = path.read_bytes()
    path.write_bytes(whole[:-1])
    asked = len(bench.asked)
    bench.run(bench.plan(3), tmp_path)
    assert len(bench.asked) == asked
    assert len(bench.run(bench.plan(4), tmp_path).scored) == 4 and path.read_bytes().startswith(whole)


@pytest.mark.parametrize("damage", [b'{"identity": "ab', b"\0\0\0", b'{"identity": 5}', b""])
def test_a_damaged_line_in_the_middle_is_refused_by_place(en: EmbeddedShop, tmp_path: Path, damage: bytes) -> None:
    bench = Bench(en)
    bench.run(bench.plan(3), tmp_path)
    path = tmp_path / "episodes" / "bare.jsonl"
    lines = path.read_bytes().split(b"\n")
    path.write_bytes(b"\n".join([lines[0], damage, *lines[2:]]))
    with pytest.raises(InputError, match=r"bare\.jsonl, line 2: the line is damaged"):
        bench.run(bench.plan(3), tmp_path)


def test_a_full_disk_is_one_message_and_keeps_finished_lines(
    en: EmbeddedShop, tmp_path: Path, file_size_limit: Callable[[int], None]
) -> None:
    bench = Bench(en)
    bench.run(bench.plan(2), tmp_path)
    path = tmp_path / "episodes" / "bare.jsonl"
    kept = path.read_bytes()
    file_size_limit(len(kept) + 2000)
    with pytest.raises(OutputError, match=r"bare\.jsonl: the line cannot be written .*finished lines are kept"):
        bench.run(bench.plan(9), tmp_path, threads=3)
    file_size_limit(-1)
    assert path.read_bytes() == kept
    assert len(bench.run(bench.plan(9), tmp_path).scored) == 9


@pytest.fixture
def file_size_limit() -> Any:
    """Set the largest file this process may write: what it meets is a failed write, as on a full disk."""
    resource = pytest.importorskip("resource")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)

    def _limit(size: int) -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (before[0] if size < 0 else size, before[1]))

    yield _limit
    _limit(-1)


def test_a_folder_in_use_is_refused_by_its_holder(en: EmbeddedShop, tmp_path: Path) -> None:
    bench = Bench(en)
    holder = (
        "import sys, pathlib; from shopskill_lib.store import locked\n"
        "with locked(pathlib.Path(sys.argv[1])): print('held', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", holder, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None and process.stdout.readline() == b"held\n"
        with pytest.raises(OutputError, match=f"in use by process {process.pid} on "):
            bench.run(bench.plan(1), tmp_path)
        process.kill()
    assert f'"pid": {process.pid}' in (tmp_path / LOCK).read_text()
    assert len(bench.run(bench.plan(1), tmp_path).scored) == 1


def test_a_folder_held_on_another_host_or_by_this_process_is_refused(tmp_path: Path) -> None:
    with locked(tmp_path), pytest.raises(OutputError, match="in use by process"), locked(tmp_path):
        raise AssertionError("held twice")
    (tmp_path / LOCK).write_text('{"pid": 7, "host": "elsewhere", "since": "2026-01-01"}')
    with pytest.raises(OutputError, match="process 7 on elsewhere since 2026-01-01"), locked(tmp_path):
        raise AssertionError("held on another host")
    (tmp_path / LOCK).write_text('{"pid": 7, "ho')
    with locked(tmp_path):
        pass
    (tmp_path / "file").touch()
    with pytest.raises(OutputError, match="cannot be written"), locked(tmp_path / "file" / "run"):
        raise AssertionError("not a folder")


def test_bare_runs_are_bought_once(en: EmbeddedShop, tmp_path: Path) -> None:
    bench = Bench(en)
    first = bench.run(bench.plan(4), tmp_path / "a")
    asked = len(bench.asked)
    second = bench.run(bench.plan(6), tmp_path / "b", reuse_from=tmp_path / "a")
    assert len(bench.asked) - asked == sum(len(second.episodes[(task, 0)].steps) for task in ("5", "6"))
    lines = [json.loads(line) for line in (tmp_path / "b" / "episodes" / "bare.jsonl").read_text().splitlines()]
    assert [line["reused_from"] for line in lines[:4]] == ["../a/episodes/bare.jsonl"] * 4
    assert {key: second.episodes[key] for key in first.episodes} == first.episodes
    asked = len(bench.asked)
    third = bench.run(bench.plan(6), tmp_path / "c", reuse_from=tmp_path / "b")
    assert third.episodes == second.episodes and len(bench.asked) == asked
    pointers = (tmp_path / "c" / "episodes" / "bare.jsonl").read_text()
    assert pointers.count("../a/") == 4 and pointers.count("../b/") == 2
    moved = tmp_path / "moved"
    moved.mkdir()
    for name in "abc":
        (tmp_path / name).rename(moved / name)
    assert bench.run(bench.plan(6), moved / "c").episodes == third.episodes
    (moved / "a" / "episodes" / "bare.jsonl").unlink()
    with pytest.raises(InputError, match=r"task 1 is no longer in \.\./a/"):
        bench.run(bench.plan(6), moved / "c")


def test_failed_and_other_episodes_are_not_reused(en: EmbeddedShop, tmp_path: Path) -> None:
    broken = Bench(en, failing(en, {"2"}))
    broken.run(broken.plan(3), tmp_path / "a")
    bench = Bench(en)
    rollouts = bench.run(bench.plan(3), tmp_path / "b", reuse_from=tmp_path / "a")
    assert not rollouts.unscored and set(bench.asked) == {en.catalogue.tasks["2"].visible_instruction}
    other = Bench(en)
    other.run(other.plan(3), tmp_path / "c", reuse_from=tmp_path / "a", rollout_seed=1)
    assert len(set(other.asked)) == 3


def test_the_forecast_rests_on_what_is_there(en: EmbeddedShop, tmp_path: Path) -> None:
    bench = Bench(en, price_in=1.0)
    unknown = forecast(bench.plan(10), bench.agent, tmp_path, rollout_seed=0)
    assert (unknown.episodes, unknown.kept, unknown.calls, unknown.usage, unknown.money) == (10, 0, None, None, None)
    assert "unknown number of calls" in str(unknown)
    rollouts = bench.run(bench.plan(5), tmp_path / "a")
    known = forecast(bench.plan(15), bench.agent, tmp_path, rollout_seed=0, reuse_from=tmp_path / "a")
    assert (known.episodes, known.kept, known.basis) == (10, 5, 5)
    assert known.calls == 2 * sum(len(episode.steps) for episode in rollouts.scored)
    assert known.usage is not None and known.money == pytest.approx(known.usage.prompt_tokens / 1e6)
    assert str(known) == known.summary() and known.to_frame()["calls"].item() == known.calls


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda plan: [*plan, plan[0]], "twice"),
        (lambda plan: [Planned("../x", plan[0].task, 0, BARE)], "an arm is called"),
    ],
)
def test_a_plan_that_cannot_be_kept_is_refused(
    en: EmbeddedShop, tmp_path: Path, change: Callable[[list[Planned]], list[Planned]], message: str
) -> None:
    bench = Bench(en)
    with pytest.raises(ParameterError, match=message):
        bench.run(change(bench.plan(2)), tmp_path)
    with pytest.raises(ParameterError, match="threads is 0"):
        bench.run(bench.plan(1), tmp_path, threads=0)


def test_group_arms_have_files(en: EmbeddedShop, tmp_path: Path) -> None:
    bench = Bench(en)
    bench.run(bench.plan(1, "group:0:1"), tmp_path)
    assert Store(tmp_path).arms == ["group-0-1"]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_the_bar_is_for_terminals(en: EmbeddedShop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(en)
    shown = {}
    for name, screen, ci in (("terminal", Terminal(), ""), ("ci", Terminal(), "true"), ("file", io.StringIO(), "")):
        monkeypatch.setattr(sys, "stderr", screen)
        monkeypatch.setenv("CI", ci)
        bench.run(bench.plan(3), tmp_path / name)
        shown[name] = screen.getvalue()
    assert "3/3" in shown["terminal"] and "tokens=" in shown["terminal"] and "errors=0" in shown["terminal"]
    assert shown["ci"] == shown["file"] == ""


def test_ctrl_c_finishes_what_is_in_flight(en: EmbeddedShop, tmp_path: Path) -> None:
    def script(body: Json) -> Answer:
        if len(bench.asked) == 20:
            signal.raise_signal(signal.SIGINT)
        return buyer(body)

    bench = Bench(en, script)
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(Interrupted, match=r"stopped on request with \d+ episodes still to run"):
        bench.run(bench.plan(40), tmp_path, threads=2)
    assert signal.getsignal(signal.SIGINT) is before
    done = load(bench.plan(40), bench.agent, tmp_path, rollout_seed=0)["bare"]
    assert len(bench.asked) == sum(len(episode.steps) for episode in done.scored)
    assert 2 <= len(done.scored) < 40 and f"{len(done.owed)} owed" in str(done)
    assert len(bench.run(bench.plan(40), tmp_path).scored) == 40


def test_a_stop_during_the_last_episode_stops_the_caller_too(en: EmbeddedShop, tmp_path: Path) -> None:
    """With nothing left to run here a caller may have more: the request to stop is never lost."""

    def script(body: Json) -> Answer:
        if len(bench.asked) == 1:
            signal.raise_signal(signal.SIGTERM)
        return buyer(body)

    bench = Bench(en, script)
    with pytest.raises(Interrupted, match="with 0 episodes still to run"):
        bench.run(bench.plan(1), tmp_path, threads=1)


def test_a_stop_while_the_server_is_down_can_be_resumed(
    en: EmbeddedShop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The episode in flight is the one that gives the server up, whenever the main thread hears of the request."""
    monkeypatch.setattr(workers, "SUSPECT", 1)

    def script(body: Json) -> Answer:
        if len(bench.asked) == 60:
            signal.raise_signal(signal.SIGTERM)
        return failure(503) if len(bench.asked) > 55 else buyer(body)

    bench = Bench(en, script, clock=FakeClock().clock)
    with pytest.raises(Interrupted, match=r"stopped on request with \d+ episodes still to run") as raised:
        bench.run(bench.plan(40), tmp_path, threads=1)
    assert isinstance(raised.value.__cause__, SetupError)
    kept = load(bench.plan(40), bench.agent, tmp_path, rollout_seed=0)["bare"]
    assert kept.scored and not kept.missing


def test_outside_the_main_thread_signals_are_left_alone(en: EmbeddedShop, tmp_path: Path) -> None:
    bench = Bench(en)
    thread = threading.Thread(target=bench.run, args=(bench.plan(2), tmp_path))
    thread.start()
    thread.join()
    assert len(load(bench.plan(2), bench.agent, tmp_path, rollout_seed=0)["bare"].scored) == 2


TASKS = 40


def finished(folder: Path) -> dict[str, int]:
    """Task -> turns of the episodes on disk."""
    *lines, _ = (folder / "run" / "episodes" / "bare.jsonl").read_bytes().split(b"\n")
    return {line["task_id"]: len(line["steps"]) for line in map(json.loads, lines)}


@pytest.mark.parametrize("kill_after", [50, 100])
def test_kill_9_loses_only_what_is_in_flight(tmp_path: Path, kill_after: int) -> None:
    gate = Gate(kill_after, buyer)
    with serve(gate) as server:
        child = Child("child.py", server, tmp_path, TASKS)
        code, _ = child.stop(signal.SIGKILL, gate)
        assert code == -signal.SIGKILL
        before = finished(tmp_path)
        lost = len(server.requests) - sum(before.values())
        assert 0 < len(before) < TASKS and 0 < lost <= 4 * 30
        server.requests.clear()
        assert f"over {TASKS} scored of {TASKS}" in child.finish()
        after = finished(tmp_path)
        assert {task: after[task] for task in before} == before
        owed = {task: turns for task, turns in after.items() if task not in before}
        assert len(server.requests) == sum(owed.values())
        assert Counter(Counter(map(request_of, server.requests)).values()) == Counter(owed.values())
        child.finish("unbroken")
    assert timeless(tmp_path / "run")["bare.jsonl"] == timeless(tmp_path / "unbroken")["bare.jsonl"]


def test_sigterm_finishes_what_is_in_flight_and_exits_75(tmp_path: Path) -> None:
    gate = Gate(60, buyer)
    with serve(gate) as server:
        child = Child("child.py", server, tmp_path, TASKS)
        code, message = child.stop(signal.SIGTERM, gate)
        assert code == 75 and "episodes still to run" in message and message.count("\n") == 1
        assert len(server.requests) == sum(finished(tmp_path).values()) and len(finished(tmp_path)) < TASKS
        child.finish()
        assert len(server.requests) == sum(finished(tmp_path).values())
        child.finish("unbroken")
    assert timeless(tmp_path / "run") == timeless(tmp_path / "unbroken")


def test_a_wrong_set_up_stops_the_run_and_costs_no_attempts(en: EmbeddedShop, tmp_path: Path) -> None:
    down = Bench(en, failing(en, {str(number) for number in range(1, 9)}))
    with pytest.raises(SetupError, match=r"the first 8 episodes have all failed, the last one so: .*out of order"):
        down.run(down.plan(8), tmp_path)
    assert not (tmp_path / "episodes" / "bare.jsonl").exists()
    up = Bench(en)
    assert len(up.run(up.plan(8), tmp_path).scored) == 8


def test_a_set_up_that_goes_wrong_stops_the_run_and_costs_no_attempts(en: EmbeddedShop, tmp_path: Path) -> None:
    names = list(en.catalogue.tasks)[:20]
    down = Bench(en, failing(en, set(names[3:])))
    with pytest.raises(SetupError, match=r"the last 10 episodes have all failed.*none of these attempts counts"):
        down.run(down.plan(20), tmp_path, threads=1)
    kept = (tmp_path / "episodes" / "bare.jsonl").read_text(encoding="utf-8").splitlines()
    assert [json.loads(line)["status"] for line in kept] == ["scored"] * 3
    up = Bench(en)
    assert len(up.run(up.plan(20), tmp_path).scored) == 20


def test_tasks_that_always_fail_are_missing_and_stop_nothing(en: EmbeddedShop, tmp_path: Path) -> None:
    """Twelve of forty, more than make a set-up suspicious; also when nothing else is left to run."""
    names = set(list(en.catalogue.tasks)[2:38:3])
    bench = Bench(en, failing(en, names))
    once = bench.run(bench.plan(40), tmp_path, threads=4, max_attempts=1)
    assert (len(once.scored), {task for task, _ in once.missing}) == (28, names)
    again = Bench(en, failing(en, names))
    rest = again.run(again.plan(40), tmp_path, threads=4)
    assert (len(rest.scored), {task for task, _ in rest.missing}) == (28, names)
    assert {rest.episodes[key].attempt for key in rest.missing} == {3}


def test_an_episode_that_takes_too_long_has_failed_and_is_owed(en: EmbeddedShop, tmp_path: Path) -> None:
    time = FakeClock()
    slow = en.catalogue.tasks["2"].visible_instruction

    def script(body: Json) -> Answer:
        if request_of(body) == slow:
            time.waits.append(50.0)
        return buyer(body)

    bench = Bench(en, script, clock=time.clock)
    bench.agent = replace(bench.agent, timeout=100.0)
    rollouts = bench.run(bench.plan(4), tmp_path, threads=1, max_attempts=1)
    failed = rollouts.episodes[("2", 0)]
    assert len(rollouts.scored) == 3 and failed.error is not None and len(failed.steps) == 2
    assert failed.error.kind == "InfrastructureError" and "the deadline has passed" in failed.error.message
    assert load(bench.plan(4), bench.agent, tmp_path, rollout_seed=0)["bare"].owed == (("2", 0),)
    bench.agent = replace(bench.agent, timeout=1000.0)
    assert len(bench.run(bench.plan(4), tmp_path).scored) == 4


def test_a_few_tasks_that_always_fail_are_data(en: EmbeddedShop, tmp_path: Path) -> None:
    names = list(en.catalogue.tasks)[:20]
    few = Bench(en, failing(en, set(names[3:12])))
    found = few.run(few.plan(20), tmp_path, threads=1)
    assert (len(found.scored), len(found.missing)) == (11, 9)
