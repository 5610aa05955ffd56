"""The simulated author: what it may say, what it finds out, and that it sees only what it is sent."""

import itertools
import json
import re
from collections import Counter
from typing import Any, NamedTuple

import pytest
from author_loop import (
    Audited,
    Json,
    Loop,
    audit,
    begin,
    body,
    call_of,
    draft,
    dumps,
    opening,
    sections,
    tool,
    trajectory_of,
)
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shopskill_lib.cards import STAGES
from shopskill_lib.records import Task
from shopskill_lib.shops.embedded import EmbeddedShop
from shopskill_lib.simulated import analyst, author, merging, wire
from shopskill_lib.simulated.author import AUTHOR_VERSION, MODEL, respond
from shopskill_lib.simulated.chat import CONTEXT
from shopskill_lib.simulated.competences import UNTAUGHT, Competences, learn
from shopskill_lib.simulated.lessons import Wording, bank, join, names, render, topic, word
from shopskill_lib.text import tokens
from shopskill_lib.trajectories import Trajectory

LANGUAGES = ("en", "zh")


# What it may say


def moved(text: str) -> dict[str, int]:
    """Competences that a text moves noticeably -> direction."""
    after = learn(text)
    changes = {name: getattr(after, name) - getattr(UNTAUGHT, name) for name in Competences._fields}
    return {name: 1 if change > 0 else -1 for name, change in changes.items() if abs(change) > 0.005}


def wordings(name: str, language: Any) -> list[Wording]:
    """Wordings of a lesson: every text of every field stands in one of them, in many combinations."""
    found = []
    for shift, place in itertools.product(range(3), repeat=2):
        fields = iter(range(20))
        found.append(word(name, language, lambda _: ((place + shift * next(fields)) % 3) / 3 + 0.01))  # noqa: B023
    return found


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("name", bank())
def test_a_lesson_moves_its_own_competence_and_no_other(name: str, language: Any) -> None:
    effect = bank()[name]["effect"]
    expected = {name.removesuffix("-harming"): effect} if effect else {}
    seen: set[Any] = set()
    for text in wordings(name, language):
        seen |= {*text, *text.steps}
        assert moved(render(text, language)) == expected
        assert moved(join(text.steps, language)) == expected
        for part in (text.title, text.mechanism, text.when, text.trigger, text.check, text.failure, *text.steps):
            assert moved(part).items() <= expected.items(), part
        assert topic(render(text, language)) == topic(join(text.steps, language)) == name
    fields = bank()[name][language]
    assert all(item in seen for items in fields.values() for item in items if isinstance(item, str))
    assert all(len(set(map(str, items))) >= 3 for field, items in fields.items() if field != "trigger")


def test_the_bank_holds_both_languages_alike_and_nothing_of_any_instance() -> None:
    for name, lesson in bank().items():
        assert lesson["stage"] in STAGES
        for language in LANGUAGES:
            text = json.dumps(lesson[language], ensure_ascii=False)
            assert not re.search(r"\d", text), name
            assert bool(re.search("[\u4e00-\u9fff]", text)) == (language == "zh"), name
    assert set(names(1)) == set(Competences._fields)
    assert {name.removesuffix("-harming") for name in names(-1)} == set(Competences._fields)
    assert len(names(0)) >= 5


# What it finds out


class Study(NamedTuple):
    """Everything that the analysts hand in on the same trajectories."""

    shop: EmbeddedShop
    successes: list[tuple[Task, Trajectory, Json, Loop]]
    failures: list[tuple[Task, Trajectory, Audited]]


@pytest.fixture(scope="module")
def studies(shops: dict[str, EmbeddedShop]) -> dict[str, Study]:
    return {language: study(shops[language]) for language in LANGUAGES}


def study(shop: EmbeddedShop, skill: Any = ()) -> Study:
    successes, failures = [], []
    for number, task in enumerate(shop.catalogue.tasks.values()):
        trajectory = trajectory_of(shop, task, 1000 * number, skill)
        if trajectory.success:
            loop = begin(opening(trajectory, skill), shop.catalogue.language, number)
            successes.append((task, trajectory, loop.obtain("submit_success_cards"), loop))
        else:
            failures.append((task, trajectory, audit(shop, task, trajectory, number, skill)))
    return Study(shop, successes, failures)


@pytest.mark.parametrize("language", LANGUAGES)
def test_success_cards_cite_what_stands_there(studies: dict[str, Study], language: str) -> None:
    found = studies[language].successes
    counts = Counter(len(given["cards"]) for _, _, given, _ in found)
    assert set(counts) <= {0, 1, 2} and counts[0] < len(found) / 3
    told: Counter[str | None] = Counter()
    for _, trajectory, made, _ in found:
        for card in made["cards"]:
            told[topic(card["generalizable_lesson"])] += 1
            assert card["related_chunk_ids"] == []
            for evidence in card["evidence"]:
                turn = trajectory.turns[evidence["step"] - 1]
                assert evidence["quote"] in turn.page or evidence["quote"] == turn.action
    helping = sum(told[name] for name in names(1))
    assert sum(told.values()) * 0.7 < helping < sum(told.values())
    assert {"query", "persona", "exact", "compare"} <= set(told)


@pytest.mark.parametrize("language", LANGUAGES)
def test_most_failures_end_with_a_true_repair_made_of_words_that_a_shopper_sees(
    studies: dict[str, Study], language: str
) -> None:
    found = studies[language].failures
    proposals = [one for *_, one in found if one.diagnosis and one.diagnosis["status"] != "NO_PROPOSAL"]
    repaired = [one for one in proposals if one.repaired]
    assert len(repaired) > len(found) / 2
    topics = Counter(topic(one.diagnosis["deployable"]["corrective_procedure"]) for one in repaired if one.diagnosis)
    assert sum(topics[name] for name in names(1)) > 0.6 * len(repaired)
    assert len([name for name in names(1) if topics[name]]) >= 4
    honest = [(task, trajectory, one) for task, trajectory, one in found if not cheats(one)]
    assert 0.75 * len(found) < len(honest) < len(found)
    for task, trajectory, one in honest:
        pages = [turn.page for turn in trajectory.turns] + [m["content"] for m in one.loop.messages[6:] if m["content"]]
        seen = {token for text in (task.visible_instruction, dumps(task.persona), *pages) for token in tokens(text)}
        queries = [a for trial in one.trials for a in trial["actions"] if a.startswith("search[")]
        assert all(set(tokens(query[7:-1])) <= seen for query in queries)


def cheats(one: Audited) -> bool:
    """Whether a trial searched for the wanted product's title."""
    title = re.search(r'"title": "([^"]*)"', next((m["content"] for m in one.loop.messages if m["role"] == "tool"), ""))
    actions = [action for trial in one.trials for action in trial["actions"]]
    return bool(title) and any(title is not None and action == f"search[{title[1]}]" for action in actions)


@pytest.mark.parametrize("language", LANGUAGES)
def test_the_repair_begins_where_the_diagnosis_says_and_differs_there(studies: dict[str, Study], language: str) -> None:
    differing = []
    for _, trajectory, one in studies[language].failures:
        if one.diagnosis and one.repaired:
            trial = one.trials[one.diagnosis["repair_trial"] - 1]
            assert trial["after_steps"] < one.diagnosis["audit"]["earliest_divergence"]["step"]
            differing.append(trial["actions"][0] != trajectory.turns[trial["after_steps"]].action)
    assert sum(differing) > 0.9 * len(differing)


@pytest.mark.parametrize("language", LANGUAGES)
def test_with_a_skill_it_covers_rewrites_and_suspects(shops: dict[str, EmbeddedShop], language: str) -> None:
    skill = draft(language)
    ids = {chunk["chunk_id"]: topic(chunk["text"]) for chunk in skill}
    found = study(shops[language], skill)
    cards = [card for _, _, given, _ in found.successes for card in given["cards"]]
    assert sum(bool(card["related_chunk_ids"]) for card in cards) > 0
    assert len(cards) < len(found.successes)
    diagnoses = [one.diagnosis for *_, one in found.failures if one.diagnosis]
    reasons = Counter(one["no_proposal_reason"] for one in diagnoses)
    assert reasons["covered_by_skill"] and all(
        one["covered_by"] in ids for one in diagnoses if one["no_proposal_reason"] == "covered_by_skill"
    )
    rewrites = [one["deployable"] for one in diagnoses if one["status"] == "PROPOSE_REWRITE"]
    assert {ids[lesson["target_chunk_id"]] for lesson in rewrites} & set(names(-1))
    assert all(lesson["proposed_content"] for lesson in rewrites)
    assert {one["audit"]["suspected_harm"] for one in diagnoses} - {None} <= set(ids)


# What it does wrong


def test_every_imperfection_of_the_analysts_happens(studies: dict[str, Study], monkeypatch: pytest.MonkeyPatch) -> None:
    seen: Counter[str] = Counter()
    for language, (shop, successes, failures) in studies.items():
        for _, trajectory, made, loop in successes:
            seen.update(loop.faults)
            seen["nothing"] += not made["cards"]
            title = trajectory.purchase.title if trajectory.purchase else ""
            for card in made["cards"]:
                seen["leak"] += title in card["generalizable_lesson"]
                seen["always"] += card["applicable_when"] == analyst._ALWAYS[language]
                seen["incidental"] += card["evidence"][0]["quote"] in ("Shop home", "商店首页")
                name = topic(card["generalizable_lesson"])
                seen[f"effect {bank()[name]['effect'] if name else None}"] += 1
        for task, _, one in failures:
            seen.update(one.loop.faults)
            seen["gold at once"] += cheats(one)
            if one.diagnosis is None:
                continue
            seen["untried"] += not one.trials
            seen["claimed"] += one.diagnosis["repair_trial"] is not None and not one.repaired
            seen[str(one.diagnosis["no_proposal_reason"])] += 1
            lesson = one.diagnosis["deployable"]
            if lesson:
                gold = shop.inspect(task.gold_asin)
                told = (gold.asin, gold.title, gold.brand)
                seen["leak of gold"] += any(fact in lesson["corrective_procedure"] for fact in told)
    for name in (
        "prose", "calls", "schema", "leak", "always", "incidental", "effect 0", "effect -1", "gold at once", "untried",
        "no_verified_repair", "execution_slip", "leak of gold",
    ):  # fmt: skip
        assert seen[name], (name, seen)
    monkeypatch.setattr(analyst, "CLAIMED", 1.0)
    unrepaired = [(task, t) for task, t, one in studies["en"].failures if one.trials and not one.repaired][:5]
    again = [audit(studies["en"].shop, task, trajectory, 3) for task, trajectory in unrepaired]
    assert any(one.diagnosis and one.diagnosis["repair_trial"] and not one.repaired for one in again)


@pytest.mark.parametrize(("rate", "fault"), [("PROSE", "prose"), ("TWICE", "calls"), ("BROKEN", "schema")])
def test_what_was_told_of_a_fault_is_heeded(
    studies: dict[str, Study], rate: str, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for other in ("PROSE", "TWICE", "BROKEN"):
        monkeypatch.setattr(author, other, float(other == rate))
    loop = begin(opening(studies["en"].successes[0][1]), "en", 0)
    loop.obtain("submit_success_cards")
    assert loop.faults == [fault]


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("stays", [False, True])
def test_a_leak_is_mostly_gone_after_the_complaint(
    studies: dict[str, Study], language: str, stays: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(analyst, "LEAKED", 1.0)
    monkeypatch.setattr(analyst, "UNCLEANED", float(stays))
    shop, successes, failures = studies[language]
    complaint = dumps({"type": "firewall", "complaints": ["a text names a product"]})
    for _, trajectory, _, _ in successes[:10]:
        loop = begin(opening(trajectory), language, 5)
        if not loop.obtain("submit_success_cards")["cards"]:
            continue
        loop.answer(complaint)
        loop.seed += 100  # a re-ask may come with any seed
        cards = loop.obtain("submit_success_cards")["cards"]
        assert trajectory.purchase is not None
        assert cards and all((trajectory.purchase.title in dumps(card)) == stays for card in cards)
    again = []
    for task, trajectory, _ in failures[:15]:
        one = audit(shop, task, trajectory, 5)
        if one.diagnosis and one.diagnosis["deployable"]:
            one.loop.answer(complaint)
            made = one.loop.ask([tool("submit_diagnosis")])
            gold = shop.inspect(task.gold_asin)
            if made is not None:
                again.append(any(x in dumps(made[1]["deployable"]) for x in (gold.asin, gold.title, gold.brand)))
    assert again and set(again) == {stays}


def test_a_replay_with_other_pages_is_no_fault_of_the_policy(studies: dict[str, Study]) -> None:
    task, trajectory, _ = studies["en"].failures[0]
    text = opening(trajectory, gold={"asin": task.gold_asin}, limits={"rounds": 20, "tokens": 1000})
    offered = [tool("inspect_gold", {}), tool("replay_prefix", {}), tool("submit_diagnosis")]
    for seed in range(10):
        loop = begin(text, "en", seed)
        for _ in range(8):
            made = loop.ask(offered)
            if made and made[0] == "inspect_gold":
                loop.answer(dumps(studies["en"].shop.inspect(task.gold_asin).model_dump()))
            elif made and made[0] == "replay_prefix":
                loop.answer(dumps({"trial": 1, "after_steps": made[1]["steps"], "same_pages": False}) + "\n\nA page.")
            elif made and len(loop.messages) > 6:
                assert made[1]["no_proposal_reason"] == "environment_fault"
                assert made[1]["audit"]["failure_surface"] == "environment"
                return
    raise AssertionError("no diagnosis after a replay")


# Consolidator and compiler


def cards_of(found: Study) -> dict[str, list[Json]]:
    """Cards of both channels as the consolidator gets them."""
    success = [card for *_, given, _ in found.successes for card in given["cards"]]
    lessons = [one.diagnosis["deployable"] for *_, one in found.failures if one.diagnosis]
    listed = {"success": success, "failure": [lesson for lesson in lessons if lesson]}
    return {
        channel: [
            {"card_id": f"card-{channel}-{number:04d}", "group": number % 5, **card}
            for number, card in enumerate(cards)
        ]
        for channel, cards in listed.items()
    }


def consolidate(cards: list[Json], language: str, seed: int = 0, skill: Any = ()) -> tuple[Json, Loop]:
    loop = begin(sections(skill=list(skill), cards=cards), language, seed)
    ids = sorted(card["card_id"] for card in cards)

    def check(given: Json) -> str:
        found = [name for cluster in given["clusters"] for name in cluster["card_ids"]]
        found += [left["card_id"] for left in given["left_out"]]
        return "" if sorted(found) == ids else "a card is missing or stands twice"

    return loop.obtain("submit_clusters", check), loop


def mechanisms_of(clusters: list[Json]) -> list[Json]:
    return [
        {
            "mechanism_id": f"mechanism-{number:03d}", "channels": ["success"], "priority": number + 1,
            "workflow_stage": cluster["workflow_stage"], "support_tasks": len(cluster["card_ids"]), "categories": 3,
            "verified_repairs": 1, "clusters": [{"cluster_id": f"cluster-{number}", "channel": "success", **cluster}],
        }
        for number, cluster in enumerate(clusters)
    ]  # fmt: skip


def compile_all(mechanisms: list[Json], language: str, cap: int, seed: int = 0, skill: Any = ()) -> tuple[Json, Loop]:
    loop = begin(sections(skill=list(skill), limit={"cap": cap}, mechanisms=mechanisms), language, seed)
    made = loop.obtain("submit_skill", lambda given: "" if len(given["chunks"]) <= cap else "too many chunks")
    found = [name for chunk in made["chunks"] for name in chunk["mechanism_ids"]]
    found += [left["mechanism_id"] for left in made["left_out"]]
    assert sorted(found) == [mechanism["mechanism_id"] for mechanism in mechanisms]
    return made, loop


def chunk_text(chunk: Json, language: Any) -> str:
    """A chunk as a prompt shows it."""
    steps = tuple(chunk["procedure"])
    return render(
        Wording("", "", "", "", chunk["applicable_when"], "", steps, chunk["verification"], chunk["common_failure"]),
        language,
    )


@pytest.mark.parametrize("language", LANGUAGES)
def test_cards_become_a_skill_that_helps_does_nothing_and_harms(studies: dict[str, Study], language: str) -> None:
    clusters = []
    for cards in cards_of(studies[language]).values():
        made, _ = consolidate(cards, language)
        assert len(made["clusters"]) < len(cards) / 2
        assert all(cluster["common_failure"] and cluster["applicable_when"] for cluster in made["clusters"])
        clusters += made["clusters"]
    made, _ = compile_all(mechanisms_of(clusters), language, 16)
    assert 8 <= len(made["chunks"]) <= 16
    effects = Counter(tuple(sorted(moved(chunk_text(chunk, language)).values())) for chunk in made["chunks"])
    assert effects[(1,)] >= 5 and effects[()] + effects[(-1,)] >= 2
    assert set(effects) <= {(1,), (), (-1,)}
    assert len({tuple(chunk["procedure"]) for chunk in made["chunks"]}) == len(made["chunks"])


def test_consolidator_and_compiler_miscount_at_first_and_mend_it(studies: dict[str, Study]) -> None:
    cards, faults = cards_of(studies["en"])["success"], Counter[str]()
    for seed in range(60):
        made, loop = consolidate(cards[seed:], "en", seed)
        faults.update(loop.faults)
        _, loop = compile_all(mechanisms_of(made["clusters"]), "en", 6, seed)
        faults.update(f"compile {fault}" for fault in loop.faults)
    assert faults["check"] and faults["compile check"] and faults["schema"] + faults["compile schema"]
    assert faults["check"] < 25 and faults["compile check"] < 40


@pytest.mark.parametrize("language", LANGUAGES)
def test_a_chunk_that_teaches_the_contrary_is_rewritten_and_one_that_says_it_mostly_left(
    language: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def text(name: str) -> Wording:
        return word(name, language, lambda _: 0.0)

    skill = [
        {"chunk_id": name, "title": "x", "text": render(text(name), language)} for name in ("query-harming", "price")
    ]
    taught = {name: text(name) for name in ("query", "price", "exact")}
    clusters = [
        {"workflow_stage": one.stage, "mechanism": one.mechanism, "applicable_when": one.when,
         "procedure": list(one.steps), "verification": one.check, "common_failure": one.failure,
         "target_chunk_id": None, "card_ids": [name]}
        for name, one in taught.items()
    ]  # fmt: skip
    monkeypatch.setattr(merging, "RESTATED", 0.0)
    made, _ = compile_all(mechanisms_of(clusters), language, 6, skill=skill)
    operations = {topic(join(chunk["procedure"], language)): chunk for chunk in made["chunks"]}
    assert operations["query"]["operation"] == "REWRITE"
    assert operations["query"]["target_chunk_id"] == "query-harming"
    assert operations["exact"]["operation"] == "ADD" and operations["exact"]["target_chunk_id"] is None
    assert "price" not in operations and len(made["left_out"]) == 1


def test_equal_advice_never_becomes_two_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    told = word("price", "en", lambda _: 0.0)
    cluster = {"workflow_stage": "variant", "mechanism": "m", "applicable_when": "w", "procedure": list(told.steps),
               "verification": "v", "common_failure": "f", "target_chunk_id": None, "card_ids": ["c"]}  # fmt: skip
    monkeypatch.setattr(merging, "APART", 1.0)
    made, _ = compile_all(mechanisms_of([cluster, cluster]), "en", 6)
    assert [len(chunk["mechanism_ids"]) for chunk in made["chunks"]] == [2]
    other = cluster | {"procedure": list(word("price", "en", lambda _: 0.5).steps)}
    made, _ = compile_all(mechanisms_of([cluster, other]), "en", 6)
    assert [len(chunk["mechanism_ids"]) for chunk in made["chunks"]] == [1, 1]


def test_cards_of_other_authors_are_grouped_by_their_words_or_their_group() -> None:
    texts = ["Type each requirement into the search box.", "Sing a song.", "Hum a tune.", "", "   "]
    cards = [
        {"card_id": f"c{number}", "group": number // 3, "workflow_stage": "query", "mechanism": "m",
         "applicable_when": "w", "decisive_behavior": "b", "generalizable_lesson": text, "related_chunk_ids": []}
        for number, text in enumerate([*texts, "Put all constraints into your query.", "Sing a song."])
    ]  # fmt: skip
    made, _ = consolidate(cards, "en", 1)
    groups = {frozenset(cluster["card_ids"]) for cluster in made["clusters"]}
    assert frozenset({"c0", "c5"}) in groups and frozenset({"c1", "c2"}) in groups
    assert {"c3", "c4"} <= {left["card_id"] for left in made["left_out"]}


@pytest.mark.parametrize("language", LANGUAGES)
def test_what_the_firewall_sent_back_is_put_in_other_words_or_left_out(language: Any) -> None:
    told = word("price", language, lambda _: 0.0)
    advice = join(told.steps, language) + (" Junmere did it." if language == "en" else "木悦就是这样。")
    name = "Junmere" if language == "en" else "木悦"
    card = {"workflow_stage": "variant", "failure_mechanism": f"{name}.", "applicable_when": told.when,
            "observable_trigger": "t", "corrective_procedure": advice, "verification_step": f"{name}?"}  # fmt: skip
    cards = [{"card_id": "c1", "group": 0, **card}, {"card_id": "c2", "group": 1, **card}]
    cards.append({"card_id": "c3", "group": 2, **card, "corrective_procedure": f"{name} {name}."})
    made, loop = consolidate(cards, language)
    assert name in dumps(made)
    mechanisms = mechanisms_of(made["clusters"])
    loop.answer(dumps({"type": "firewall", "complaints": ["a text names a brand"]}))
    again = loop.obtain("submit_clusters")
    assert name not in dumps(again) and again["clusters"][0]["card_ids"] == ["c1", "c2"]
    assert [left["card_id"] for left in again["left_out"]] == ["c3"]
    made, loop = compile_all(mechanisms, language, 6)
    assert name in dumps(made)
    loop.answer(dumps({"type": "firewall", "complaints": ["a text names a brand"]}))
    again = loop.obtain("submit_skill")
    assert name not in dumps(again) and moved(chunk_text(again["chunks"][0], language)) == {"price": 1}


# The wire


def first_request(found: Study, place: int, **changes: Any) -> Json:
    _, trajectory, _, _ = found.successes[place]
    loop = begin(opening(trajectory), "en", 0)
    return body(loop.messages, [tool("submit_success_cards")], 9) | changes


def test_it_is_a_pure_function_whatever_was_asked_before(studies: dict[str, Study]) -> None:
    asked = [first_request(studies[language], place) for language in LANGUAGES for place in range(12)]
    shop, task = studies["zh"].shop, studies["zh"].failures[1][0]
    trajectory = studies["zh"].failures[1][1]
    one = audit(shop, task, trajectory, 1)
    for length in range(2, len(one.loop.messages), 2):
        tools = [tool("inspect_gold", {}), tool("replay_prefix", {}), tool("submit_diagnosis")]
        asked.append(body(one.loop.messages[:length], tools, length))
    forward = [respond(request) for request in asked]
    assert forward == [respond(request) for request in reversed(asked)][::-1]
    assert audit(shop, task, trajectory, 1).loop.messages == one.loop.messages


def test_seed_and_temperature_drive_it(studies: dict[str, Study]) -> None:
    def answers(**changes: Any) -> list[Any]:
        return [call_of(respond(first_request(studies["en"], place, **changes))) for place in range(15)]

    assert answers(seed=1) != answers(seed=2)
    assert answers(seed=1, temperature=0) == answers(seed=2, temperature=0)
    assert answers(seed=1, temperature=0) != answers(seed=1, temperature=1)


def test_everything_says_simulated_and_counts_tokens(studies: dict[str, Study]) -> None:
    request = first_request(studies["zh"], 0)
    answer = respond(request).body
    assert "simulated" in answer["model"] and answer["system_fingerprint"] == AUTHOR_VERSION
    assert "simulated" in AUTHOR_VERSION and "simulated" in answer["id"]
    size = sum(len(message["content"].encode()) for message in request["messages"])
    assert 0 <= answer["usage"]["prompt_tokens"] - size / 4 < 20
    cut = respond(request | {"max_tokens": 8}).body["choices"][0]
    assert cut["finish_reason"] == "length" and "tool_calls" not in cut["message"]
    long = respond(request | {"messages": [{"role": "user", "content": "x" * 4 * CONTEXT}]})
    assert long.status == 400 and long.body["error"]["code"] == "context_length_exceeded"
    assert "simulated" in long.body["error"]["message"]


def test_the_wire_answers_by_the_name_of_the_model(studies: dict[str, Study]) -> None:
    request = first_request(studies["en"], 0)
    assert wire.respond(request) == respond(request)
    assert wire.respond(request | {"model": f"{MODEL}-2"}).body["system_fingerprint"] == AUTHOR_VERSION
    other = wire.respond(request | {"model": "simulated-shopper"})
    assert other.body["system_fingerprint"] != AUTHOR_VERSION
    assert respond(request | {"model": "simulated-shopper"}).status == 404
    assert wire.respond([]).status == wire.respond({"model": MODEL}).status == 400


def test_without_a_tool_of_its_own_it_says_so() -> None:
    answer = respond(body([{"role": "user", "content": "Hello."}], [], 0)).body["choices"][0]
    assert answer["finish_reason"] == "stop" and answer["message"]["content"]


ROLES = ("submit_success_cards", "submit_diagnosis", "submit_clusters", "submit_skill")
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=6,
)
SECTION = st.sampled_from(
    ["request", "persona", "skill", "outcome", "trajectory", "gold", "limit", "limits", "cards", "mechanisms"]
)


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize(
    ("text", "named"),
    [("", ""), ("Hello.", ""), ("<trajectory>\n</trajectory>", ""), ("<cards>\n{}\n</cards>", "cards"),
     ("<skill>\n[]\n</skill>\n<limit>\n[\n</limit>\n<mechanisms>\n[]\n</mechanisms>", "limit")],
)  # fmt: skip
def test_a_message_without_its_sections_is_refused(role: str, text: str, named: str) -> None:
    answer = respond(body([{"role": "user", "content": text}], [tool(role)], 0))
    assert answer.status == 400 and "section" in answer.body["error"]["message"]
    assert not (named and {"cards": ROLES[2], "limit": ROLES[3]}[named] == role) or named in str(answer.body)


def test_a_trajectory_without_turns_is_refused(studies: dict[str, Study]) -> None:
    text = opening(studies["en"].successes[0][1])
    start = text.index("<trajectory>")
    messages = [{"role": "user", "content": f"{text[:start]}<trajectory>\nnothing\n</trajectory>"}]
    answer = respond(body(messages, [tool("submit_success_cards")], 0))
    assert answer.status == 400 and "no turn" in answer.body["error"]["message"]


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data(), role=st.sampled_from(ROLES))
def test_malformed_messages_never_raise(studies: dict[str, Study], data: st.DataObject, role: str) -> None:
    task, trajectory, one = studies["zh"].failures[0]
    gold: Any = {"asin": task.gold_asin}
    parts: dict[str, Any] = {
        "skill": [], "limit": {"cap": 3}, "cards": cards_of(studies["zh"])["failure"][:3], "mechanisms": []
    }  # fmt: skip
    parts |= data.draw(st.dictionaries(SECTION, ANYTHING, max_size=3))
    text = sections(**parts) + opening(trajectory, [], **({} if "gold" in parts else {"gold": gold}))
    cut = data.draw(st.integers(0, 400))
    messages = [{"role": "system", "content": "x"}, {"role": "user", "content": text[cut:]}]
    tail = data.draw(st.integers(0, len(one.loop.messages) - 2))
    for message in one.loop.messages[2 : 2 + tail]:
        changed = data.draw(st.booleans()) and message["role"] == "tool"
        content = data.draw(st.text(max_size=20) | ANYTHING.map(str)) if changed else message["content"]
        messages.append({**message, "content": content})
    offered = [tool(role), *([tool("replay_prefix", {}), tool("inspect_gold", {})] if data.draw(st.booleans()) else [])]
    answer = respond(body(messages, offered, data.draw(st.integers(-5, 5))))
    assert answer.status in (200, 400)
    assert "simulated" in json.dumps(answer.body)


@given(ANYTHING)
def test_anything_at_all_is_answered(request_: Any) -> None:
    assert respond(request_).status == 400


def test_rates_are_constants_between_0_and_1() -> None:
    rates = [
        getattr(module, name)
        for module in (author, analyst, merging)
        for name in vars(module)
        if name.isupper() and isinstance(getattr(module, name), float)
    ]
    assert len(rates) >= 20 and all(0 < rate < 1 for rate in rates)
