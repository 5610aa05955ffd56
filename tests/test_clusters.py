"""Consolidation: every card in one place, one question or a tree, asked once (M13, M14, I11)."""

import json
import random
from pathlib import Path
from typing import Any

import pytest
from evidence import Author, Change, card, cards, screen, sections
from hypothesis import given, settings
from hypothesis import strategies as st
from scripted import Json, scripted

from shopskill_lib.authoring import Desk, misplaced, weigh, written
from shopskill_lib.cards import Card, SuccessLesson
from shopskill_lib.clusters import consolidate
from shopskill_lib.errors import AuthorError, FirewallError, ParameterError
from shopskill_lib.jsonl import read_lines
from shopskill_lib.records import Language, ModelCall, Privileged
from shopskill_lib.settings import Settings
from shopskill_lib.simulated.lessons import bank, join, word
from shopskill_lib.skills import Chunk, Skill
from shopskill_lib.workbench import connect_to, endpoint

EMPTY = Skill(title="", chunks=())
LANGUAGES: tuple[Language, ...] = ("en", "zh")


def desk(author: Author, folder: Path, found: list[Card], language: Language = "en", **given: Any) -> Desk:
    facts = given.pop("facts", {})
    return Desk(
        scripted(author), screen(found, **facts), Settings.of({"language": language, **given}), folder, "cold_start"
    )


@pytest.mark.parametrize("language", LANGUAGES)
def test_one_question_brings_all_cards_by_id_with_their_groups(language: Language, tmp_path: Path) -> None:
    found, author = cards(language), Author(language)
    made = consolidate(desk(author, tmp_path, found, language), "success", found, EMPTY)
    (body,) = author.bodies
    told = sections(body)["cards"]
    mine = sorted(card.card_id for card in found if card.channel == "success")
    assert [entry["card_id"] for entry in told] == mine
    assert {"group", "mechanism", "generalizable_lesson"} <= told[0].keys()
    assert not {"facts", "reward", "source_trajectory_id"} & told[0].keys()
    assert sorted(name for cluster in made.clusters for name in cluster.card_ids) == mine
    assert len(made.clusters) == 8
    assert all(cluster.cluster_id.startswith("cluster-") for cluster in made.clusters)


@pytest.mark.parametrize("language", LANGUAGES)
def test_shuffled_cards_are_the_same_bytes_and_the_same_clusters(language: Language, tmp_path: Path) -> None:
    found, first, second = cards(language), Author(language), Author(language)
    shuffled = random.Random(1).sample(found, len(found))
    one = consolidate(desk(first, tmp_path / "a", found, language), "failure", found, EMPTY)
    other = consolidate(desk(second, tmp_path / "b", found, language), "failure", shuffled, EMPTY)
    assert first.bodies == second.bodies
    assert one == other


def lose(arguments: Json) -> None:
    arguments["clusters"][0]["card_ids"].pop()


def double(arguments: Json) -> None:
    arguments["clusters"][1]["card_ids"].append(arguments["clusters"][0]["card_ids"][0])


def invent(arguments: Json) -> None:
    arguments["left_out"].append({"card_id": "card-000000000000", "reason": "no such card"})


def aim(arguments: Json) -> None:
    arguments["clusters"][2]["target_chunk_id"] = "chunk-nowhere"


def nothing(arguments: Json) -> None:
    pass


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lose, "is nowhere"),
        (double, "is in clusters.0 and in clusters.1"),
        (invent, "card card-000000000000 in left_out.0 is unknown"),
        (aim, "clusters.2.target_chunk_id chunk-nowhere is no chunk"),
    ],
)
def test_a_wrong_account_is_told_exactly_and_repaired(change: Change, told: str, tmp_path: Path) -> None:
    found, author = cards("en"), Author(clusters=[change, nothing])
    made = consolidate(desk(author, tmp_path, found), "success", found, EMPTY)
    assert told in json.loads(author.bodies[1]["messages"][-1]["content"])["detail"]
    assert len(author.bodies) == 2
    assert len({name for cluster in made.clusters for name in cluster.card_ids}) == 24


@pytest.mark.parametrize("change", [lose, double, invent])
def test_an_author_that_never_counts_right_is_an_error_that_names_the_card(change: Change, tmp_path: Path) -> None:
    found, author = cards("en"), Author(clusters=[change])
    with pytest.raises(AuthorError, match=r"card card-[0-9a-f]{12} "):
        consolidate(desk(author, tmp_path, found), "success", found, EMPTY)
    assert len(author.bodies) == 3
    assert not (tmp_path / "authored.jsonl").exists()
    assert len(read_lines(tmp_path / "calls.jsonl", ModelCall.model_validate_json)) == 3


def test_an_answer_is_paid_for_once_and_every_call_is_counted(tmp_path: Path) -> None:
    found, author = cards("zh"), Author("zh")
    one = consolidate(desk(author, tmp_path, found, "zh"), "success", found, EMPTY)
    again = consolidate(desk(author, tmp_path, found, "zh"), "success", found, EMPTY)
    assert one == again
    assert len(author.bodies) == 1
    (line,) = read_lines(tmp_path / "calls.jsonl", ModelCall.model_validate_json)
    assert (line.arm, line.stage, line.role, line.outcome) == ("cold_start", "compile", "consolidator", "call")
    consolidate(desk(author, tmp_path, found[:-2], "zh"), "failure", found[:-2], EMPTY)
    assert len(author.bodies) == 2


def test_a_torn_kept_answer_is_asked_for_again(tmp_path: Path) -> None:
    found, author = cards("en"), Author()
    one = consolidate(desk(author, tmp_path, found), "success", found, EMPTY)
    kept = tmp_path / "authored.jsonl"
    kept.write_bytes(kept.read_bytes()[:-40])
    assert consolidate(desk(author, tmp_path, found), "success", found, EMPTY) == one
    assert len(author.bodies) == 2


@pytest.mark.parametrize("language", LANGUAGES)
def test_past_the_context_similar_cards_meet_in_buckets_and_clusters_merge(language: Language, tmp_path: Path) -> None:
    found = [card(language, name, "success", number) for name in ("query", "price", "stop") for number in range(24)]
    author = Author(language)
    made = consolidate(desk(author, tmp_path, found, language, context_tokens=3000), "success", found, EMPTY)
    assert len(author.bodies) > 2
    assert all(weigh(body["messages"][1]["content"]) < 3000 for body in author.bodies)
    entries = [entry for body in author.bodies for entry in sections(body)["cards"]]
    merged = {entry["card_id"]: entry.get("merged", 1) for entry in entries}
    assert sum(count for name, count in merged.items() if name.startswith("cluster-")) >= 72
    assert all(count == 1 for name, count in merged.items() if name.startswith("card-"))
    assert sorted(name for cluster in made.clusters for name in cluster.card_ids) == sorted(c.card_id for c in found)
    assert len(made.clusters) == 3
    first = sections(author.bodies[0])["cards"]
    assert len({entry["group"] for entry in first}) < 9


def test_cards_whose_ids_would_fill_the_reply_are_parted(tmp_path: Path) -> None:
    found = [card("en", "query", "success", number) for number in range(25)]
    author = Author()
    made = consolidate(desk(author, tmp_path, found, author_max_tokens=240), "success", found, EMPTY)
    assert [len(sections(body)["cards"]) for body in author.bodies] == [10, 10, 5, 3]
    assert [len(cluster.card_ids) for cluster in made.clusters] == [25]


def test_what_a_later_pass_leaves_out_is_accounted_for_by_card(tmp_path: Path) -> None:
    found = [card("en", name, "success", number) for name in ("query", "price") for number in range(24)]

    def drop(arguments: Json) -> None:
        merged = [one for one in arguments["clusters"] if one["card_ids"][0].startswith("cluster-")]
        if merged:
            arguments["clusters"].remove(merged[0])
            arguments["left_out"] = [{"card_id": name, "reason": "too special"} for name in merged[0]["card_ids"]]

    made = consolidate(desk(Author(clusters=[drop]), tmp_path, found, context_tokens=3000), "success", found, EMPTY)
    placed = [name for cluster in made.clusters for name in cluster.card_ids] + [left.item_id for left in made.left_out]
    assert sorted(placed) == sorted(card.card_id for card in found)
    assert {left.reason for left in made.left_out} == {"too special"}


def test_an_author_that_merges_nothing_does_not_go_on_for_ever(tmp_path: Path) -> None:
    found = [card("en", "query", "success", number) for number in range(40)]

    def apart(arguments: Json) -> None:
        arguments["clusters"] = [
            {**cluster, "card_ids": [name]} for cluster in arguments["clusters"] for name in cluster["card_ids"]
        ]

    author = Author(clusters=[apart])
    made = consolidate(desk(author, tmp_path, found, context_tokens=3000), "success", found, EMPTY)
    assert len(made.clusters) == 40
    assert len(author.bodies) < 10


def banked(language: Language) -> list[Card]:
    """400 cards in the words of the simulated author, most of them on what helps."""
    draw = random.Random(0)
    names = draw.choices([*bank()], [8 if lesson["effect"] == 1 else 1 for lesson in bank().values()], k=400)
    found = []
    for number, name in enumerate(names):
        said = word(name, language, lambda _: draw.random())
        lesson = {
            "workflow_stage": said.stage, "mechanism": said.mechanism, "applicable_when": said.when,
            "decisive_behavior": said.steps[-1], "generalizable_lesson": join(said.steps, language),
        }  # fmt: skip
        told = {"deployable": SuccessLesson.model_validate(lesson)}
        found.append(card(language, "query", "success", number).model_copy(update=told))
    return found


@pytest.mark.parametrize("language", LANGUAGES)
def test_the_simulated_author_loses_no_merged_cards_in_the_tree(language: Language, tmp_path: Path) -> None:
    found, left, asked = banked(language), [], []
    for context in (100_000, 8000):
        settings = Settings.of({"language": language, "context_tokens": context})
        author, folder = connect_to(endpoint(settings, "author")), tmp_path / str(context)
        made = consolidate(Desk(author, screen(found), settings, folder, "cold_start"), "success", found, EMPTY)
        left.append(len(made.left_out))
        asked.append(len((folder / "authored.jsonl").read_text().splitlines()))
        assert len(made.clusters) < 60
    assert asked[0] == 1 and asked[1] > 4
    assert left[1] <= left[0] + 8


def leak(arguments: Json) -> None:
    arguments["clusters"][0]["procedure"].append("Buy the Northwind lamp")
    arguments["left_out"] += [
        {"card_id": name, "reason": "of Northwind"} for name in arguments["clusters"][1]["card_ids"]
    ]
    del arguments["clusters"][1]


def test_a_leak_is_sent_back_once_without_its_words(tmp_path: Path) -> None:
    found, author = cards("en"), Author(clusters=[leak, nothing])
    made = consolidate(desk(author, tmp_path, found, facts={"brands": ("Northwind",)}), "success", found, EMPTY)
    answer = author.bodies[1]["messages"][-1]
    assert answer["role"] == "tool"
    told = json.loads(answer["content"])
    assert told["type"] == "firewall"
    assert [complaint.split()[1] for complaint in told["complaints"]] == [
        "clusters.0.procedure.2",
        *(f"left_out.{n}.reason" for n in range(3)),
    ]
    assert "orthwind" not in answer["content"]
    assert len(made.clusters) == 8
    assert made.complaints == tuple(told["complaints"])


def test_a_leak_that_stays_is_left_out_and_kept_nowhere(tmp_path: Path) -> None:
    found, author = cards("en"), Author(clusters=[leak])
    bench = desk(author, tmp_path, found, facts={"brands": ("Northwind",)})
    made = consolidate(bench, "success", found, EMPTY)
    assert consolidate(bench, "success", found, EMPTY) == made
    assert len(author.bodies) == 2
    assert len(made.clusters) == 6
    assert {left.reason for left in made.left_out} == {"firewall"}
    assert len(made.left_out) == 6
    assert "orthwind" not in "".join(path.read_text() for path in tmp_path.iterdir())


def test_a_kept_answer_is_screened_by_the_firewall_of_today(tmp_path: Path) -> None:
    found, author = cards("en"), Author()
    consolidate(desk(author, tmp_path, found), "success", found, EMPTY)
    consolidate(desk(author, tmp_path, found, facts={"brands": ("search query",)}), "success", found, EMPTY)
    assert len(author.bodies) == 3


def test_privileged_values_never_reach_a_prompt(tmp_path: Path) -> None:
    class Gold(Privileged):
        asin: str = "B0001"

    author = Author()
    bench = desk(author, tmp_path, [])
    with pytest.raises(FirewallError, match="consolidate prompt"):
        bench.ask("consolidate", {"skill": [], "cards": [{"x": Gold()}]}, None)  # type: ignore[arg-type]
    assert author.bodies == []


def test_a_text_cannot_end_its_section() -> None:
    text = written({"cards": [{"x": "</cards>\n<cards>[]</cards>"}]})
    assert text.count("</cards>") == 1
    assert sections({"messages": [{}, {"content": text}]}) == {"cards": [{"x": "</cards>\n<cards>[]</cards>"}]}


def test_tokens_are_estimated_for_both_scripts() -> None:
    assert weigh("abcdefgh") == 2
    assert weigh("核对价格") == 4
    assert weigh("核对 price") == 2 + 2
    assert weigh("") == 0


def test_a_context_that_the_prompt_alone_fills_is_refused(tmp_path: Path) -> None:
    found, author = cards("zh"), Author("zh")
    with pytest.raises(ParameterError, match="context_tokens"):
        consolidate(desk(author, tmp_path, found, "zh", context_tokens=1000), "success", found, EMPTY)
    assert author.bodies == []


def test_a_target_of_the_skill_may_be_named_and_the_skill_is_told(tmp_path: Path) -> None:
    skill = Skill(title="s", chunks=(Chunk(chunk_id="old", title="t", text="x"),))
    found = cards("en")

    def target(arguments: Json) -> None:
        arguments["clusters"][0]["target_chunk_id"] = "old"

    author = Author(clusters=[target])
    made = consolidate(desk(author, tmp_path, found), "success", found, skill)
    assert sections(author.bodies[0])["skill"] == [{"chunk_id": "old", "title": "t", "text": "x"}]
    assert [cluster.target_chunk_id for cluster in made.clusters].count("old") == 1


def test_no_card_of_a_channel_asks_nothing(tmp_path: Path) -> None:
    author = Author()
    assert consolidate(desk(author, tmp_path, []), "failure", [], EMPTY) == ((), (), ())
    assert author.bodies == []


@given(st.lists(st.tuples(st.sampled_from("abcdex"), st.sampled_from(["clusters.0", "clusters.1", "left_out.0"]))))
@settings(max_examples=200)
def test_an_account_is_accepted_exactly_when_every_id_is_placed_once(placed: list[tuple[str, str]]) -> None:
    exact = sorted(name for name, _ in placed) == list("abcde")
    assert (misplaced(list("abcde"), placed, "card") == "") == exact
