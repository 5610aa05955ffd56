import json
import random
import re
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from casework import EMPTY, SKILL, Acting, Case, author, bench_of, diagnosis, lines, pairs_of
from scripted import Answer, Json, failure, serve
from stopping import Child, Gate

from shopskill_lib import distil, workbench
from shopskill_lib.desk import AUDIT, CARDS, ERRORS, PLAN, Analyses
from shopskill_lib.distil import analyse, read_cards
from shopskill_lib.errors import InputError, OutputError, ParameterError, SetupError
from shopskill_lib.records import ModelCall, Task
from shopskill_lib.settings import Settings
from shopskill_lib.shops.embedded import EmbeddedShop
from shopskill_lib.skills import Skill
from shopskill_lib.store import locked
from shopskill_lib.trajectories import Trajectory

TRAJECTORIES = 40


@pytest.fixture(params=["en", "zh"])
def shop(shops: dict[str, EmbeddedShop], request: pytest.FixtureRequest) -> EmbeddedShop:
    return shops[request.param]


@pytest.fixture
def en(shops: dict[str, EmbeddedShop]) -> EmbeddedShop:
    return shops["en"]


Pairs = list[tuple[Trajectory, Task]]


def distilled(
    shop: EmbeddedShop, pairs: Pairs, folder: Path, url: str, skill: Skill = EMPTY, **settings: Any
) -> Analyses:
    bench = bench_of(shop, folder, author_url=url, **settings)
    return analyse(bench, pairs, skill, folder=folder, stage="cold_start", arm="train")


def request_of(body: Json) -> str:
    return str(body["messages"][1]["content"].split("<request>\n")[1].split("\n</request>")[0])


def test_cards_audits_and_calls_are_kept(shop: EmbeddedShop, tmp_path: Path) -> None:
    pairs = pairs_of(shop, 12)
    with serve(author) as server:
        found = distilled(shop, pairs, tmp_path, server.url, author_price_in=1.0)
    channels = Counter(analysis.channel for analysis in found)
    assert channels["success"] >= 2 and channels["failure"] >= 2 and sum(channels.values()) == 12
    assert [analysis.trajectory_id for analysis in found] == sorted(trajectory.trajectory_id for trajectory, _ in pairs)
    assert len(lines(tmp_path / CARDS)) == len(lines(tmp_path / AUDIT)) == 12 and not found.missing
    calls = [ModelCall.model_validate_json(line) for line in lines(tmp_path / "calls.jsonl")]
    roles = Counter((call.role, call.arm, call.stage) for call in calls)
    assert roles[("success_analyst", "train", "cold_start")] == channels["success"]
    assert roles[("failure_analyst", "train", "cold_start")] == 2 * channels["failure"]
    assert len(server.requests) == len(calls) and all(call.money for call in calls)
    assert read_cards(tmp_path) == sorted((c for a in found for c in a.cards), key=lambda card: card.card_id)
    assert "simulated" in str(found) and str(found) == found.summary() and "execution_slip" in str(found)
    frame = found.to_frame()
    assert len(frame) == 12 and set(frame["simulated"]) == {True} and frame["stage"].dropna().eq("query").all()


def test_order_and_threads_change_nothing(shop: EmbeddedShop, tmp_path: Path) -> None:
    pairs = pairs_of(shop, 16)
    mixed = random.Random(1).sample(pairs, len(pairs))
    with serve(author) as server:
        one = distilled(shop, pairs, tmp_path / "one", server.url, author_concurrency=1)
        many = distilled(shop, mixed, tmp_path / "many", server.url, author_concurrency=8)
        alone = distilled(shop, pairs[3:4], tmp_path / "alone", server.url)
    assert one == many and alone[0] in one
    assert sorted(lines(tmp_path / "one" / CARDS)) == sorted(lines(tmp_path / "many" / CARDS))


def test_nothing_is_asked_twice_and_what_changed_is(en: EmbeddedShop, tmp_path: Path) -> None:
    pairs = pairs_of(en, 8)
    with serve(author) as server:
        half = distilled(en, pairs[:4], tmp_path, server.url)
        asked = len(server.requests)
        whole = distilled(en, pairs, tmp_path, server.url)
        assert {request_of(body) for body in server.requests[asked:]} == {t.instruction for t, _ in pairs[4:]}
        assert set(half) < set(whole)
        asked = len(server.work)
        assert distilled(en, pairs, tmp_path, server.url, author_timeout=9.0, author_concurrency=1) == whole
        assert len(server.work) == asked
        other = distilled(en, pairs, tmp_path, server.url, skill=SKILL)
        assert {a.identity for a in other}.isdisjoint(a.identity for a in whole) and len(server.work) == 2 * asked


def test_cards_of_another_skill_or_of_trajectories_that_are_gone_are_not_read(en: EmbeddedShop, tmp_path: Path) -> None:
    pairs = pairs_of(en, 6)
    with serve(author) as server:
        distilled(en, pairs, tmp_path, server.url)
        second = distilled(en, pairs[:3], tmp_path, server.url, skill=SKILL)
    assert len(lines(tmp_path / CARDS)) == 9
    assert {card.card_id for card in read_cards(tmp_path)} == {card.card_id for a in second for card in a.cards}
    (tmp_path / PLAN).unlink()
    assert len(read_cards(tmp_path)) >= 3


def test_I5_canaries_in_gold_are_in_the_audit_only(shop: EmbeddedShop, tmp_path: Path) -> None:
    """Every other file of the folder is searched for what the analyst learnt of gold."""
    case = Case.of(shop)
    acting = Acting([("inspect_gold", {}), *case.acts(("submit_diagnosis", diagnosis(case.language)))])
    with serve(acting) as server:
        found = distilled(shop, [(case.failed, case.task)], tmp_path, server.url)
    assert found[0].cards[0].facts.status == "PROPOSE_ADD"
    canaries = (
        "CANARY-COMPARISON",
        "CANARY-EVIDENCE",
        "CANARY-REPAIR",
        case.gold.asin,
        case.gold.title,
        case.gold.brand,
    )
    files = {path.name: path.read_text(encoding="utf-8") for path in tmp_path.iterdir() if path.is_file()}
    assert {name for name, text in files.items() if any(canary in text for canary in canaries)} == {AUDIT}
    assert all(canary in files[AUDIT] for canary in canaries)
    assert not any(canary in str(found) + found.to_frame().to_string() for canary in canaries)


def down_for(pairs: Pairs, names: set[str]) -> Any:
    requests = {trajectory.instruction for trajectory, _ in pairs if trajectory.trajectory_id in names}
    return lambda body: failure(400, "bad luck") if request_of(body) in requests else author(body)


def test_a_server_that_fails_leaves_analyses_owed_and_says_so(shop: EmbeddedShop, tmp_path: Path) -> None:
    pairs = pairs_of(shop, 10)
    with serve(down_for(pairs, {"t-7", "t-9"})) as server:
        found = distilled(shop, pairs, tmp_path, server.url, author_concurrency=1)
    assert found.missing == ("t-7", "t-9") and len(found) == 8 and "Analyses missing: t-7, t-9" in str(found)
    assert len(lines(tmp_path / CARDS)) == 8 and len(lines(tmp_path / ERRORS)) == 6
    assert {json.loads(line)["error"]["kind"] for line in lines(tmp_path / ERRORS)} == {"InfrastructureError"}
    assert not {card.source_trajectory_id for card in read_cards(tmp_path)} & {"t-7", "t-9"}
    with serve(author) as server:
        assert distilled(shop, pairs, tmp_path, server.url).missing == ("t-7", "t-9") and not server.requests
        (tmp_path / ERRORS).unlink()
        assert len(distilled(shop, pairs, tmp_path, server.url)) == 10


def test_a_wrong_set_up_stops_and_costs_no_attempts(en: EmbeddedShop, tmp_path: Path) -> None:
    pairs = pairs_of(en, 8)
    with (
        serve([failure(400, "out of order")]) as server,
        pytest.raises(SetupError, match=r"the first 8 analyses have all failed, the last one so: .*out of order"),
    ):
        distilled(en, pairs, tmp_path, server.url)
    assert not lines(tmp_path / CARDS) and not lines(tmp_path / ERRORS)
    with serve([failure(401)]) as server, pytest.raises(SetupError, match="refuses the key"):
        distilled(en, pairs, tmp_path, server.url)


def test_an_author_who_never_answers_validly_is_missing(en: EmbeddedShop, tmp_path: Path) -> None:
    pairs = [pair for pair in pairs_of(en, 12) if pair[0].success]
    mute = pairs[-1][0]

    def script(body: Json) -> Answer:
        if request_of(body) == mute.instruction:
            return Answer(b'{"choices":[{"message":{"content":"no"}}]}')
        return author(body)

    with serve(script) as server:
        found = distilled(en, pairs, tmp_path, server.url, author_concurrency=1)
    assert found.missing == (mute.trajectory_id,)
    assert {json.loads(line)["error"]["kind"] for line in lines(tmp_path / ERRORS)} == {"AuthorError"}


def test_trajectories_that_cannot_be_analysed_are_refused(en: EmbeddedShop, tmp_path: Path) -> None:
    pairs = pairs_of(en, 3)
    trajectory, task = next(pair for pair in pairs if pair[0].success)
    bare = trajectory.model_copy(update={"reward": None, "parts": None})
    odd = trajectory.model_copy(update={"ending": "lost connection"})
    with serve(author) as server:
        with pytest.raises(InputError, match=f"trajectory {trajectory.trajectory_id}: it has no reward"):
            distilled(en, [(bare, task)], tmp_path, server.url)
        with pytest.raises(InputError, match="its ending is 'lost connection'"):
            distilled(en, [(odd, task)], tmp_path, server.url)
        with pytest.raises(ParameterError, match="occurs twice"):
            distilled(en, [pairs[0], pairs[0]], tmp_path, server.url)
        bench = bench_of(en, tmp_path, author_url=server.url)
        with pytest.raises(ParameterError, match="it succeeded"):
            analyse(bench, [(trajectory, task)], EMPTY, folder=tmp_path, stage="online", arm="retry:0:0")
        assert not server.requests
    with locked(tmp_path), serve(author) as server, pytest.raises(OutputError, match="in use by process"):
        distilled(en, pairs, tmp_path, server.url)


def test_a_torn_line_is_analysed_again(en: EmbeddedShop, tmp_path: Path) -> None:
    pairs = pairs_of(en, 5)
    with serve(author) as server:
        whole = distilled(en, pairs, tmp_path, server.url)
        path = tmp_path / CARDS
        before = sorted(lines(path))
        path.write_bytes(path.read_bytes()[:-20])
        assert distilled(en, pairs, tmp_path, server.url) == whole
    assert sorted(lines(path)) == before


def kept(folder: Path) -> dict[str, str]:
    """Trajectory -> whole line."""
    whole = (folder / CARDS).read_bytes().split(b"\n")[:-1]
    return {json.loads(line)["trajectory_id"]: line.decode() for line in whole}


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM], ids=["kill", "term"])
def test_a_run_that_is_stopped_ends_like_an_unbroken_one(tmp_path: Path, number: signal.Signals) -> None:
    gate = Gate(25, author)
    with serve(gate) as server:
        child = Child("child_distil.py", server, tmp_path, TRAJECTORIES)
        code, message = child.stop(number, gate)
        before, asked, in_flight = kept(tmp_path / "run"), len(server.requests), len(server.work)
        assert 0 < len(before) < TRAJECTORIES
        if number == signal.SIGTERM:
            assert code == 75 and "analyses still to run" in message and message.count("\n") == 1
            assert asked == len(lines(tmp_path / "run" / "calls.jsonl"))
        else:
            assert code == -signal.SIGKILL
        server.requests.clear()
        child.finish()
        again = Counter(map(request_of, server.work))
        after = kept(tmp_path / "run")
        assert {name: after[name] for name in before} == before and len(after) == TRAJECTORIES
        server.requests.clear()
        child.finish("unbroken")
        every = Counter(map(request_of, server.work))
    assert after == kept(tmp_path / "unbroken") and len(lines(tmp_path / "run" / CARDS)) == TRAJECTORIES
    assert all(again[request] == every[request] for request in again)
    assert in_flight + again.total() - every.total() <= (4 * 2 if number == signal.SIGKILL else 0)


def test_a_run_folder_is_collected_with_the_simulated_models(shop: EmbeddedShop, tmp_path: Path) -> None:
    """Rollouts bare or with the seed skill, then both analysts; what the second run finds is what the first made."""
    language = shop.catalogue.language
    settings = Settings.of({"language": language, "n_products": 2000, "n_train": 16, "catalogue_seed": 1})
    bench = workbench.set_up(settings, tmp_path / "run")
    found = distil.collect(bench, EMPTY)
    assert len(found) == 16 - len(found.missing) and {a.channel for a in found} == {"success", "failure"}
    made = sorted(lines(tmp_path / "run" / CARDS))
    assert distil.collect(bench, EMPTY) == found and sorted(lines(tmp_path / "run" / CARDS)) == made
    assert all(card.facts.simulated for card in read_cards(tmp_path / "run"))
    equipped = distil.collect(workbench.set_up(settings, tmp_path / "equipped"), SKILL)
    assert {a.trajectory_id for a in equipped}.isdisjoint(a.trajectory_id for a in found)


def test_a_real_catalogue_gives_cards_of_its_train_split(real_files: Path, tmp_path: Path) -> None:
    splits = {"train": [*range(12)], "val": [12], "test": [13]}
    path = tmp_path / "splits.json"
    path.write_text(json.dumps({"splits": {name: {"task_ids": ids} for name, ids in splits.items()}}))
    given = {"language": "zh", "catalogue": str(real_files / "items_eval_train.json"), "splits": str(path)}
    bench = workbench.set_up(Settings.of({**given, "n_train": 12, "n_val": 1, "n_test": 1}), tmp_path / "run")
    found = distil.collect(bench, EMPTY)
    analysed = {json.loads(line)["task_id"] for line in lines(tmp_path / "run" / AUDIT)}
    assert analysed == set(map(str, splits["train"])) and len(found) == 12 and found.missing == ()
    assert {analysis.channel for analysis in found} == {"success", "failure"}
    cards = [card for analysis in found for card in analysis.cards]
    texts = [card.deployable.applicable_when for card in cards if card.deployable is not None]
    assert texts and all(re.search("[\u4e00-\u9fff]", text) for text in texts)
    assert found.summary().startswith(f"simulated: 12 trajectories analysed, {len(texts)} cards")
