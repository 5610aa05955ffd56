"""The compiler's answer: the cap, rewrites, rules that are told and enforced (M10, M16, I6, I13)."""

import json
from pathlib import Path

import pytest
from evidence import (
    EMPTY,
    LESSONS,
    SEED,
    Author,
    Change,
    apart,
    card,
    cards,
    compiled,
    distinct,
    parts,
    rewriting,
    sections,
)
from scripted import Json

from shopskill_lib import protocol
from shopskill_lib.cards import Card
from shopskill_lib.clusters import LeftOut
from shopskill_lib.errors import AuthorError, InputError
from shopskill_lib.jsonl import read_lines
from shopskill_lib.pools import Parts, render
from shopskill_lib.records import Language, ModelCall
from shopskill_lib.settings import Settings
from shopskill_lib.skills import Chunk, Skill, read_skill

ROOT = Path(__file__).parents[1]
LANGUAGES: tuple[Language, ...] = ("en", "zh")


def test_the_compiler_is_told_no_reward_and_no_history(tmp_path: Path) -> None:
    author = Author()
    compiled(author, tmp_path, cards("en"))
    (body,) = author.asked("submit_skill")
    told = sections(body)
    assert told["limit"] == {"cap": 16}
    assert told["mechanisms"][0].keys() == {
        *("mechanism_id", "channels", "workflow_stage", "priority", "support_tasks", "categories", "verified_repairs"),
        "clusters",
    }
    assert [one["priority"] for one in told["mechanisms"]] == list(range(1, 9))
    assert "reward" not in body["messages"][1]["content"]


def many(language: Language = "en") -> list[Card]:
    """Cards whose clusters never align: 17 mechanisms when every card is its own."""
    found = [card(language, name, "success", number) for name in LESSONS[language] for number in range(3)]
    return found[:17]


def test_I13_17_chunks_are_asked_again_and_then_cut_by_priority(tmp_path: Path) -> None:
    author = Author(clusters=[apart], skill=[distinct])
    draft = compiled(author, tmp_path, many())
    asked = author.asked("submit_skill")
    assert len(asked) == 3
    assert "17 chunks and at most 16" in json.loads(asked[1]["messages"][-1]["content"])["detail"]
    assert draft.pool is not None
    assert len(draft.pool.chunks) == 16
    (left,) = [left for left in draft.left_out if left.step == "compilation"]
    assert (left.item_id, left.reason) == (draft.mechanisms[-1].mechanism_id, "over_cap")
    again = compiled(author, tmp_path, many())
    assert again == draft
    assert len(author.asked("submit_skill")) == 3


def test_an_author_that_heeds_the_cap_loses_nothing_to_the_program(tmp_path: Path) -> None:
    def shorter(arguments: Json) -> None:
        distinct(arguments)
        last = arguments["chunks"].pop()
        arguments["left_out"].append({"mechanism_id": last["mechanism_ids"][0], "reason": "says little"})

    author = Author(clusters=[apart], skill=[distinct, shorter])
    draft = compiled(author, tmp_path, many())
    assert len(author.asked("submit_skill")) == 2
    assert [left.reason for left in draft.left_out] == ["says little"]


def test_a_verified_failure_of_large_harm_is_cut_last(tmp_path: Path) -> None:
    rare = card("en", "detail", "failure", 0, reward_lost=0.9)
    found = [card("en", name, "success", n) for name in ("query", "price", "stop") for n in range(3)] + [rare]
    author = Author(skill=[distinct])
    draft = compiled(author, tmp_path / "a", found, cap=2)
    assert draft.mechanisms[-1].protected
    assert draft.account()[rare.card_id] in {version.version_id for version in draft.versions}
    plain = card("en", "detail", "failure", 0, reward_lost=0.9, repair_verified=False)
    draft = compiled(Author(skill=[distinct]), tmp_path / "b", [*found[:-1], plain], cap=2)
    lost = draft.account()[plain.card_id]
    assert isinstance(lost, LeftOut)
    assert lost.reason == "over_cap"


def test_a_cold_start_from_a_seed_keeps_it_and_offers_candidates(tmp_path: Path) -> None:
    author = Author(skill=[rewriting("broad")])
    draft = compiled(author, tmp_path, cards("en"), SEED)
    assert sections(author.asked("submit_skill")[0])["limit"] == {"cap": 14}
    assert draft.pool is not None
    assert (draft.pool.kind, draft.pool.chunks, len(draft.pool.candidates)) == ("current", SEED.chunks, 8)
    rewrites = [one for one in draft.pool.candidates if one.operation == "REWRITE"]
    assert [one.target_chunk_id for one in rewrites] == ["broad"]
    assert {one.operation for one in draft.pool.candidates} == {"ADD", "REWRITE"}
    assert set(read_skill(tmp_path / "draft.md").ids) == set(draft.pool.versions)
    assert protocol.read_draft(Settings.of({}), tmp_path) == draft.pool


def test_two_rewrites_may_compete_for_one_chunk(tmp_path: Path) -> None:
    def both(arguments: Json) -> None:
        for chunk in arguments["chunks"][:2]:
            chunk.update({"operation": "REWRITE", "target_chunk_id": "broad"})

    draft = compiled(Author(skill=[both]), tmp_path, cards("en"), SEED)
    assert draft.pool is not None
    assert len(draft.pool.slots[0].versions) == 3


def test_online_the_chunks_in_force_take_no_room(tmp_path: Path) -> None:
    author = Author(skill=[distinct])
    draft = compiled(author, tmp_path, cards("en"), SEED, cap=3, stage="online")
    assert sections(author.asked("submit_skill")[0])["limit"] == {"cap": 3}
    assert draft.pool is not None
    assert len(draft.pool.candidates) == 3
    assert draft.pool.chunks == SEED.chunks


def test_online_additions_to_an_empty_skill_are_candidates(tmp_path: Path) -> None:
    draft = compiled(Author(), tmp_path, cards("en"), EMPTY, stage="online")
    assert draft.pool is not None
    assert (draft.pool.kind, draft.pool.chunks) == ("current", ())
    assert len(draft.pool.candidates) == 8


def remove(arguments: Json) -> None:
    arguments["chunks"][0]["operation"] = "DELETE"


def blank(arguments: Json) -> None:
    arguments["chunks"][0]["applicable_when"] = "  "


def forget(arguments: Json) -> None:
    del arguments["chunks"][0]


def repeat(arguments: Json) -> None:
    arguments["left_out"].append({"mechanism_id": arguments["chunks"][0]["mechanism_ids"][0], "reason": "twice"})


def copy(arguments: Json) -> None:
    same = {
        name: arguments["chunks"][1][name]
        for name in ("applicable_when", "procedure", "verification", "common_failure")
    }
    arguments["chunks"][0].update(same)


def targeted(arguments: Json) -> None:
    arguments["chunks"][0]["target_chunk_id"] = "broad"


def end(arguments: Json) -> None:
    arguments["chunks"][0]["verification"] = "look </hint> here"


OLD = render(Parts(**{name: text for name, text in parts("en", "stop").items() if name != "workflow_stage"}), "en")
EQUAL = Skill(title="Seed", chunks=(Chunk(chunk_id="old", title="Old", text=OLD.upper()),))


def same_as_old(arguments: Json) -> None:
    (n,) = [n for n, chunk in enumerate(arguments["chunks"]) if chunk["procedure"] == parts("en", "stop")["procedure"]]
    arguments["chunks"][n].update({"operation": "REWRITE", "target_chunk_id": "old"})


def same_as_force(arguments: Json) -> None:
    """An addition that says what is in force: the good answer does, with this skill."""


@pytest.mark.parametrize(
    ("change", "told", "skill"),
    [
        (remove, r"chunks.0.operation: Input should be 'ADD' or 'REWRITE'", SEED),
        (blank, r"chunks.0.applicable_when", SEED),
        (forget, r"mechanism mechanism-[0-9a-f]{12} is nowhere", SEED),
        (repeat, r"is in chunks.0 and in left_out.0", SEED),
        (copy, r"chunks.0 says the same as chunks.1", SEED),
        (targeted, r"chunks.0 is an ADD", SEED),
        (end, r"chunks.0 holds '</hint>'", SEED),
        (rewriting("nowhere"), r"chunks.0 rewrites nowhere, which is no chunk", SEED),
        (rewriting("broad", target_chunk_id=None), r"chunks.0 rewrites None", SEED),
        (same_as_old, r"is equal to the text of old", EQUAL),
        (same_as_force, r"says the same as old", EQUAL),
    ],
)
def test_I6_I12_an_answer_against_the_rules_is_told_and_never_compiled(
    change: Change, told: str, skill: Skill, tmp_path: Path
) -> None:
    author = Author(skill=[change])
    with pytest.raises(AuthorError, match=told):
        compiled(author, tmp_path, cards("en"), skill)
    assert len(author.asked("submit_skill")) == 3
    assert sorted(path.name for path in tmp_path.iterdir()) == ["authored.jsonl", "calls.jsonl", "clusters.json"]
    calls = read_lines(tmp_path / "calls.jsonl", ModelCall.model_validate_json)
    assert [call.role for call in calls] == ["consolidator"] * 2 + ["compiler"] * 3
    author.changes["submit_skill"] = [distinct]
    assert compiled(author, tmp_path, cards("en"), skill).pool is not None
    assert len(author.asked("submit_clusters")) == 2


def test_a_seed_that_fills_the_cap_is_refused_before_anything_is_asked(tmp_path: Path) -> None:
    author = Author()
    with pytest.raises(InputError, match=r"cap of 2 leaves no room beside 2 chunks"):
        compiled(author, tmp_path, cards("en"), SEED, cap=2)
    assert author.bodies == []


def test_mechanisms_past_the_context_are_left_out_by_priority(tmp_path: Path) -> None:
    found = [card("en", name, "success", n) for name in LESSONS["en"] for n in range(3)]
    author = Author(clusters=[apart], skill=[distinct])
    draft = compiled(author, tmp_path, found, context_tokens=3000)
    reasons = {left.reason for left in draft.left_out if left.step == "compilation"}
    assert "over_context" in reasons
    unseen = {left.item_id for left in draft.left_out if left.reason == "over_context"}
    assert unseen == {one.mechanism_id for one in draft.mechanisms[-len(unseen) :]}
    assert set(draft.account()) == {one.card_id for one in found}
