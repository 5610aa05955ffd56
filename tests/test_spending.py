"""Budgets over all models of a run: what was spent, when a run stops, what is refused because nobody counted it."""

import re
import signal
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from casework import author, bench_of, lines, pairs_of
from evidence import EMPTY, LESSONS, Author, card, screen
from scripted import Answer, Json, Script, buyer, scripted, serve
from test_rollouts import Bench, timeless

from shopskill_lib import compiler, desk, distil, protocol, run, workbench
from shopskill_lib.console import respond
from shopskill_lib.errors import Interrupted, SetupError
from shopskill_lib.models import ChatModel
from shopskill_lib.records import Usage
from shopskill_lib.rollouts import load
from shopskill_lib.rolloutset import Forecast
from shopskill_lib.settings import Settings
from shopskill_lib.shops.embedded import EmbeddedShop
from shopskill_lib.spending import Purse, Tally, by_model, spent, total
from shopskill_lib.store import read_calls

ROOT = Path(__file__).parents[1]


@pytest.fixture
def en(shops: dict[str, EmbeddedShop]) -> EmbeddedShop:
    return shops["en"]


def paying(bench: Bench, purse: Purse) -> Bench:
    """The bench, its model paid from a purse."""
    bench.agent = replace(bench.agent, model=replace(bench.agent.model, purse=purse))  # type: ignore[type-var]
    return bench


def without_usage(script: Script = buyer, *, beginning: int = 1) -> Script:
    """The same server, which from some reply on tells no token counts."""
    counts = iter(range(1, 10**6))

    def answer(body: Json) -> Answer:
        whole = script(body)
        silent = next(counts) >= beginning
        return whole._replace(body=re.sub(rb', "usage": \{[^}]*\}', b"", whole.body)) if silent else whole

    return answer


def test_what_is_not_known_is_no_sum() -> None:
    usage = Usage(prompt_tokens=90, completion_tokens=10)
    known = Tally.of_call("call", usage, 0.5) + Tally.of_call("fault", usage, 0.25) + Tally.of_call("error", None, None)
    assert (known.calls, known.tokens, known.money) == (3, 200, 0.75)
    assert str(known) == "3 calls, 200 tokens, cost 0.75"
    assert (known + Tally.of_call("call", None, None)).tokens is None
    assert (known + Tally.of_call("call", usage, None)).money is None
    assert known + Tally(calls=4, untold=1) - known == Tally(calls=4, untold=1)


@pytest.mark.parametrize("limit", ["tokens", "money"])
def test_a_budget_stops_cleanly_and_a_larger_one_goes_on(en: EmbeddedShop, tmp_path: Path, limit: str) -> None:
    prices: dict[str, Any] = {"price_in": 1e6, "price_out": 1e6}  # a token costs 1
    unbroken = Bench(en, **prices)
    whole = unbroken.run(unbroken.plan(30), tmp_path / "unbroken")
    used = total(spent(tmp_path / "unbroken").values())
    assert used.tokens is not None and used.money == used.tokens and used.episodes == 30
    most = used.tokens // 2
    bench = paying(Bench(en, **prices), Purse(tmp_path / "run", **{limit: most}))
    with pytest.raises(Interrupted, match=r"the budget of (cost )?[\d,.]+( tokens)? is reached: [\d,]+ calls, .* cost"):
        bench.run(bench.plan(30), tmp_path / "run", threads=4)
    after = total(spent(tmp_path / "run").values())
    largest = max(e.usage.prompt_tokens + e.usage.completion_tokens for e in whole.scored if e.usage)
    assert after.tokens is not None and most <= after.tokens <= most + 4 * largest
    done = load(bench.plan(30), bench.agent, tmp_path / "run", rollout_seed=0)["bare"]
    assert len(bench.asked) == sum(len(episode.steps) for episode in done.scored) == after.calls
    assert 0 < len(done.owed) < 30 and not done.missing
    again = paying(Bench(en, **prices), Purse(tmp_path / "run", **{limit: most}))
    with pytest.raises(Interrupted):
        again.run(again.plan(30), tmp_path / "run")
    assert again.asked == []
    larger = paying(Bench(en, **prices), Purse(tmp_path / "run", **{limit: 10 * most}))
    larger.run(larger.plan(30), tmp_path / "run")
    assert timeless(tmp_path / "run") == timeless(tmp_path / "unbroken")


def test_tokens_that_nobody_counted_are_not_nothing(en: EmbeddedShop, tmp_path: Path) -> None:
    bench = paying(Bench(en, without_usage(beginning=40)), Purse(tmp_path, tokens=10**9))
    with pytest.raises(SetupError, match=r"--budget-tokens: \d+ replies came without token counts"):
        bench.run(bench.plan(30), tmp_path, threads=2)
    kept = load(bench.plan(30), bench.agent, tmp_path, rollout_seed=0)["bare"]
    assert len(kept.owed) + len(kept.scored) == 30 and not kept.missing
    assert len(bench.asked) == len(read_calls(tmp_path)) == sum(len(episode.steps) for episode in kept.scored)
    with pytest.raises(SetupError, match="token counts"):
        Purse(tmp_path, tokens=10**9)
    free = paying(Bench(en, without_usage()), Purse(tmp_path))
    assert len(free.run(free.plan(30), tmp_path).scored) == 30


def test_money_without_a_price_is_not_nothing(en: EmbeddedShop, tmp_path: Path) -> None:
    bench = paying(Bench(en), Purse(tmp_path, money=5.0))
    with pytest.raises(SetupError, match=r"--budget-usd: .* replies came without a price"):
        bench.run(bench.plan(30), tmp_path)


def test_analyses_are_paid_from_the_purse(en: EmbeddedShop, tmp_path: Path) -> None:
    pairs = pairs_of(en, 12)
    with serve(author) as server:
        bench = bench_of(en, tmp_path, author_url=server.url, author_concurrency=2)

        def analyse(tokens: int) -> desk.Analyses:
            paid = replace(bench, purse=Purse(tmp_path, tokens=tokens))
            return distil.analyse(paid, pairs, EMPTY, folder=tmp_path, stage="cold_start", arm="train")

        with pytest.raises(Interrupted, match="the budget of 2,000 tokens is reached"):
            analyse(2000)
        assert len(server.requests) == len(read_calls(tmp_path)) and 0 < len(lines(tmp_path / desk.CARDS)) < 12
        assert len(analyse(10**9)) == 12
        assert len(server.requests) == len(read_calls(tmp_path))


def test_a_compilation_is_paid_from_the_purse_and_goes_on(tmp_path: Path) -> None:
    cards = [card("en", name, "success", number) for name in list(LESSONS["en"])[:4] for number in range(3)]
    asked = Author()

    def build(tokens: int) -> compiler.Draft:
        return compiler.build(
            replace(scripted(asked), purse=Purse(tmp_path, tokens=tokens)), cards, EMPTY, screen=screen(cards),
            settings=Settings.of({}), folder=tmp_path, cap=16, stage="cold_start",
        )  # fmt: skip

    with pytest.raises(Interrupted, match="1 calls, 15 tokens"):
        build(15)
    assert len(asked.bodies) == 1
    draft = build(10**9)
    assert len(draft.versions) == 4 and len(asked.bodies) == len(read_calls(tmp_path)) == 2


def test_gates_at_other_weights_are_paid_from_the_same_purse(en: EmbeddedShop, tmp_path: Path) -> None:
    purse = Purse(tmp_path)
    bench = workbench.paid_from(bench_of(en, tmp_path, policy_concurrency=3), purse)
    moved = protocol.moved(bench, tmp_path / "round", "m", "c+r1")
    for paid in (bench, moved):
        assert isinstance(paid.agent.model, ChatModel) and paid.agent.model.traffic.at_once == 3
        assert paid.agent.model.purse is paid.purse is purse


def test_calls_of_an_attempt_that_the_set_up_ended_are_counted(en: EmbeddedShop, tmp_path: Path) -> None:
    counts = iter(range(1, 100))
    bench = Bench(en, lambda body: Answer(b"pay", 402) if next(counts) == 12 else buyer(body))
    with pytest.raises(SetupError, match="asks for payment"):
        bench.run(bench.plan(10), tmp_path, threads=1)
    kept = load(bench.plan(10), bench.agent, tmp_path, rollout_seed=0)["bare"].scored
    assert sum(len(episode.steps) for episode in kept) < len(read_calls(tmp_path)) == 11


def test_a_forecast_beside_what_came() -> None:
    was = Tally(episodes=100, calls=540, prompt_tokens=9000, completion_tokens=100, priced=2.5)
    known = Forecast(100, 0, 20, 500, Usage(prompt_tokens=9900, completion_tokens=100), 2.0)
    assert known.against(was) == (
        "episodes: forecast 100, was 100 (+0 %); calls: forecast 500, was 540 (+8 %); "
        "tokens: forecast 10,000, was 9,100 (-9 %); cost: forecast 2.00, was 2.50 (+25 %)"
    )
    unknown = Forecast(100, 0, 0, None, None, None).against(replace(was, untold=1, unpriced=3))
    assert unknown == (
        "episodes: forecast 100, was 100 (+0 %); calls: no forecast, was 540; tokens: no forecast, was unknown; "
        "cost: no forecast, was unknown"
    )


Command = Callable[..., tuple[int, str]]


@pytest.fixture
def shopskill(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Iterator[Command]:
    """The command `shopskill run` of smoke size: arguments -> exit code and standard error."""
    monkeypatch.chdir(ROOT)
    before = signal.getsignal(signal.SIGTERM)

    def _shopskill(*arguments: str) -> tuple[int, str]:
        return respond(run._parser(), ["params/smoke.yaml", *arguments]), capsys.readouterr().err

    yield _shopskill
    signal.signal(signal.SIGTERM, before)


def test_a_run_stops_at_its_budget_with_75_and_says_what_is_owed(shopskill: Command, tmp_path: Path) -> None:
    settings = ("n_train=20", "policy_price_in=0.001", "author_price_in=1000.0")
    chosen = ["--out", str(tmp_path), "--only", "01_cards", "--only", "02_compile"]
    chosen += [part for setting in settings for part in ("-p", setting)]
    code, told = shopskill(*chosen, "--budget-tokens", "30000")
    assert code == 75, told
    assert re.search(
        r"the budget of 30,000 tokens is reached: \d+ calls, [\d,]+ tokens, cost 0\.00\. Owed in 01_cards: "
        r"training rollouts: \d+ episodes to run, \d+ kept: about \d+ calls, .*, then 02_compile\.",
        told,
    )
    assert by_model(tmp_path)["author"] == Tally()
    code, told = shopskill(*chosen, "--budget-usd", "20")
    assert code == 75, told
    assert "the budget of cost 20.00 is reached" in told and "0 episodes to run, 20 kept" in told
    author_cost = by_model(tmp_path)["author"].money
    assert author_cost is not None and author_cost > 19


@pytest.mark.parametrize(
    ("budget", "message"),
    [
        (("--budget-usd", "5"), "nothing is known of what author and policy cost"),
        (("--budget-usd", "nan"), "the budget is nan"),
        (("--budget-tokens", "0"), "the budget is 0"),
        (("--budget-tokens", "1e6"), "invalid int value"),
    ],
)
def test_a_budget_that_cannot_be_kept_is_refused_first(
    budget: tuple[str, str], message: str, shopskill: Command, tmp_path: Path
) -> None:
    code, told = shopskill("--out", str(tmp_path / "never"), *budget)
    assert code == 2 and message in told and told.count("\n") == 1
    assert not (tmp_path / "never").exists()


def test_only_the_models_that_are_asked_need_prices(shopskill: Command, tmp_path: Path) -> None:
    given = ("--only", "03_gate_a", "-p", "draft=shipped", "-p", "policy_price_out=1.0")
    code, told = shopskill("--out", str(tmp_path), *given, "--budget-usd", "0.000001")
    assert code == 75, told
