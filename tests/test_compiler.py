"""Cards -> draft: the account of every card, the firewall, one draft whatever the order, resumed when killed."""

import json
import os
import random
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from evidence import (
    EMPTY,
    LESSONS,
    SEED,
    Author,
    Change,
    card,
    cards,
    compiled,
    no_proposal,
    parts,
    rewriting,
    screen,
    spelt,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from scripted import Json

from shopskill_lib import protocol
from shopskill_lib.clusters import LeftOut
from shopskill_lib.compiler import Draft
from shopskill_lib.errors import InputError
from shopskill_lib.jsonl import read_lines
from shopskill_lib.pools import Parts, render
from shopskill_lib.records import Language, ModelCall
from shopskill_lib.settings import Settings
from shopskill_lib.simulated.competences import ATTENTION, UNTAUGHT, learn
from shopskill_lib.skills import Skill, read_skill

ROOT = Path(__file__).parents[1]
LANGUAGES: tuple[Language, ...] = ("en", "zh")


@pytest.mark.parametrize("language", LANGUAGES)
def test_a_draft_is_one_chunk_a_mechanism_and_reads_back_as_its_skill(language: Language, tmp_path: Path) -> None:
    author, found = Author(language), [*cards(language), no_proposal()]
    draft = compiled(author, tmp_path, found, language=language)
    assert [len(mechanism.channels) for mechanism in draft.mechanisms] == [2] * 8
    assert draft.pool is not None
    assert (draft.pool.kind, draft.pool.candidates, len(draft.pool.chunks)) == ("draft", (), 8)
    assert read_skill(tmp_path / "draft.md") == Skill(title=draft.pool.title, chunks=draft.pool.chunks)
    assert Draft.model_validate_json((tmp_path / "draft.json").read_bytes()) == draft
    assert protocol.read_draft(Settings.of({"language": language}), tmp_path) == draft.pool
    stages = [version.workflow_stage for version in draft.versions]
    assert stages == [
        "query",
        "constraints",
        "persona",
        "comparison",
        "variant",
        "variant",
        "termination",
        "termination",
    ]
    assert draft.simulated


@pytest.mark.parametrize("language", LANGUAGES)
def test_shuffled_cards_give_the_same_questions_and_the_same_draft(language: Language, tmp_path: Path) -> None:
    found, first, second = cards(language), Author(language), Author(language)
    one = compiled(first, tmp_path / "a", found, language=language)
    other = compiled(second, tmp_path / "b", random.Random(5).sample(found, len(found)), language=language)
    assert first.bodies == second.bodies
    assert one == other
    files = [(tmp_path / name / "draft.json").read_bytes() for name in "ab"]
    assert files[0] == files[1]


@pytest.mark.parametrize("name", [name for name in LESSONS["en"] if name != "detail"])
@pytest.mark.parametrize("language", LANGUAGES)
def test_a_rendered_lesson_raises_its_competence_and_lowers_none(language: Language, name: str) -> None:
    given = parts(language, name)
    del given["workflow_stage"]
    text = render(Parts(**given), language)
    attention = 1 - ATTENTION * len(text.encode()) / 4
    for competence, level in learn(text)._asdict().items():
        start = getattr(UNTAUGHT, competence)
        assert level / attention >= start - 1e-9
        assert (level / attention > start + 1e-9) == (competence == name)


def test_every_part_has_its_line_and_the_common_failure_is_last() -> None:
    made = Parts(applicable_when="a\nb", procedure=("c", " d "), verification="e", common_failure="## f")
    assert render(made, "en") == "When: a b\n1. c\n2. d\nCheck: e\nCommon failure: ## f"
    assert render(made, "zh") == "适用：a b\n1. c\n2. d\n检查：e\n常见失误：## f"


def test_priority_counts_tasks_then_channels_repairs_loss_and_categories(tmp_path: Path) -> None:
    """Each pair of mechanisms differs in one criterion and what comes after it."""
    found = [
        *(card("en", "stop", "failure", n, task_group_key=f"s{n}", reward_lost=0.1) for n in (0, 2, 4)),
        *(card("en", "detail", "success", n, task_group_key="d") for n in (0, 1)),
        card("en", "detail", "failure", 0, task_group_key="d2", repair_verified=False),
        *(card("en", "price", "failure", n, task_group_key=f"p{n}", repair_verified=n == 0) for n in (0, 2)),
        *(card("en", "query", "failure", n, task_group_key=f"q{n}", repair_verified=False) for n in (0, 2)),
        card("en", "compare", "failure", 0, reward_lost=0.9),
        card("en", "persona", "failure", 0, reward_lost=0.4),
        card("en", "exact", "failure", 0, reward_lost=None, reward=None),
    ]
    draft = compiled(Author(), tmp_path, found)
    by_id = {cluster.cluster_id: cluster.workflow_stage for cluster in draft.clusters}
    assert [by_id[one.cluster_ids[0]] for one in draft.mechanisms] == [
        *("termination", "constraints", "variant", "query", "comparison", "persona", "variant")
    ]
    assert [one.support_tasks for one in draft.mechanisms] == [3, 2, 2, 2, 1, 1, 1]
    assert draft.mechanisms[-1].reward_lost is None


def test_cards_of_one_task_are_one_support_and_identical_texts_of_two_are_two(tmp_path: Path) -> None:
    same = [card("en", "price", "failure", n, task_group_key="one") for n in (0, 1)]
    twins = [card("en", "query", "failure", n) for n in (0, 2, 4)]
    assert twins[0].deployable == twins[1].deployable
    draft = compiled(Author(), tmp_path, [*same, *twins])
    assert [one.support_tasks for one in draft.mechanisms] == [3, 1]


def test_nothing_to_compile_is_one_message(tmp_path: Path) -> None:
    author = Author()
    for found in ([], [no_proposal()]):
        with pytest.raises(InputError, match=r"nothing to compile"):
            compiled(author, tmp_path, found)
    assert author.bodies == []
    draft = compiled(author, tmp_path, [no_proposal()], SEED, stage="online")
    assert draft.pool is not None
    assert draft.pool.candidates == ()
    assert draft.account() == {
        no_proposal().card_id: LeftOut(item_id=no_proposal().card_id, step="analysis", reason="execution_slip")
    }
    assert compiled(author, tmp_path, [], EMPTY, stage="online").pool is None


def test_a_draft_of_nothing_is_refused_with_its_reasons_on_disk(tmp_path: Path) -> None:
    def none(arguments: Json) -> None:
        ids = [chunk["mechanism_ids"][0] for chunk in arguments["chunks"]]
        arguments.update({"chunks": [], "left_out": [{"mechanism_id": name, "reason": "weak"} for name in ids]})

    with pytest.raises(InputError, match=r"nothing is left to measure"):
        compiled(Author(skill=[none]), tmp_path, cards("en"))
    left = json.loads((tmp_path / "draft.json").read_text())["left_out"]
    assert [one["reason"] for one in left] == ["weak"] * 8


@pytest.mark.parametrize("language", LANGUAGES)
def test_a_leak_in_a_chunk_is_sent_back_once_then_left_out(language: Language, tmp_path: Path) -> None:
    brand = {"en": "Northwind", "zh": "北风堂"}[language]

    def leak(arguments: Json) -> None:
        arguments["title"] += f" {brand}"
        arguments["chunks"][0]["common_failure"] += f" {brand}"
        moved = arguments["chunks"].pop()
        arguments["left_out"].append({"mechanism_id": moved["mechanism_ids"][0], "reason": f"like {brand}"})

    found, author = cards(language), Author(language, skill=[leak])
    known = screen(found, brands=(brand,))
    draft = compiled(author, tmp_path, found, language=language, screen=known)
    _, second = author.asked("submit_skill")
    sent = json.loads(second["messages"][-1]["content"])
    assert sent["type"] == "firewall"
    assert len(sent["complaints"]) == 3
    assert draft.complaints == tuple(sent["complaints"])
    assert [left.reason for left in draft.left_out] == ["firewall", "firewall"]
    assert len(draft.versions) == 6
    assert brand not in "".join(path.read_text() for path in tmp_path.iterdir())
    assert set(draft.account()) == {one.card_id for one in found}


def test_I10_a_leak_in_a_cluster_never_meets_the_other_channel(tmp_path: Path) -> None:
    def leak(arguments: Json) -> None:
        if "left_out" in arguments and "observable" not in str(arguments):
            arguments["clusters"][0]["verification"] += " Northwind"

    found = cards("en")
    author = Author(clusters=[leak])
    draft = compiled(author, tmp_path, found, screen=screen(found, brands=("Northwind",)))
    (body,) = author.asked("submit_skill")
    assert "Northwind" not in body["messages"][1]["content"]
    assert len(draft.clusters) == 14
    assert {left.step for left in draft.left_out} == {"consolidation"}


def test_a_card_that_leaks_is_not_consolidated(tmp_path: Path) -> None:
    found = cards("en")
    known = screen(found, brands=("bullet points",))
    author = Author()
    draft = compiled(author, tmp_path, found, screen=known)
    lost = [left for left in draft.left_out if left.reason == "firewall"]
    assert [left.step for left in lost] == ["analysis"]
    assert not any("bullet points" in body["messages"][1]["content"] for body in author.bodies)


def test_a_trajectory_that_the_screen_does_not_know_is_refused(tmp_path: Path) -> None:
    author = Author()
    with pytest.raises(InputError, match=r"facts of task"):
        compiled(author, tmp_path, cards("en"), screen=screen(cards("en")[1:]))
    assert author.bodies == []


def test_provenance_leads_from_a_version_to_cited_steps(tmp_path: Path) -> None:
    found = cards("en")
    draft = compiled(Author(), tmp_path, found)
    by_id = {one.card_id: one for one in found}
    clusters = {one.cluster_id: one for one in draft.clusters}
    mechanisms = {one.mechanism_id: one for one in draft.mechanisms}
    for version in draft.versions:
        (mechanism,) = [mechanisms[name] for name in version.mechanism_ids]
        assert version.cluster_ids == mechanism.cluster_ids
        assert [s.card_id for s in version.sources] == sorted(
            c for n in version.cluster_ids for c in clusters[n].card_ids
        )
        for source in version.sources:
            assert source.trajectory_id == by_id[source.card_id].source_trajectory_id
            assert source.steps == by_id[source.card_id].facts.steps


def scattering(rng: random.Random) -> tuple[Change, Change]:
    """Valid answers at random: cards and mechanisms are spread over clusters, chunks and what is left out."""

    def spread(ids: list[str], most: int) -> list[list[str]]:
        places: list[list[str]] = [[] for _ in range(1 + rng.randrange(most))]
        for name in ids:
            rng.choice(places).append(name)
        return places

    def clusters(arguments: Json) -> Json:
        ids = [name for cluster in arguments["clusters"] for name in cluster["card_ids"]]
        left, *places = spread(ids, 8)
        made = [{**rng.choice(arguments["clusters"]), "card_ids": place} for place in places if place]
        return {"clusters": made, "left_out": [{"card_id": name, "reason": "so"} for name in left]}

    def skill(arguments: Json) -> Json:
        ids = [name for chunk in arguments["chunks"] for name in chunk["mechanism_ids"]]
        left, *places = spread(ids, 8)
        made = [
            {
                **arguments["chunks"][0],
                "procedure": [spelt(place[0]) * 3],
                "verification": spelt(place[0]) * 2,
                "mechanism_ids": place,
            }
            for place in places
            if place
        ]
        return {**arguments, "chunks": made, "left_out": [{"mechanism_id": name, "reason": "so"} for name in left]}

    return clusters, skill


@given(st.randoms(use_true_random=False), st.integers(1, 5), st.sampled_from([3000, 100_000]))
@settings(max_examples=60, deadline=None)
def test_every_card_is_in_exactly_one_place_whatever_the_author_answers(
    rng: random.Random, cap: int, context: int
) -> None:
    found = [*cards("zh"), no_proposal()]
    clusters, skill = scattering(rng)
    with tempfile.TemporaryDirectory() as folder:
        author = Author("zh", clusters=[clusters], skill=[skill])
        draft = compiled(author, Path(folder), found, SEED, "zh", cap=cap, stage="online", context_tokens=context)
    supported = [source.card_id for version in draft.versions for source in version.sources]
    cards_of = {cluster.cluster_id: cluster.card_ids for cluster in draft.clusters}
    behind = {one.mechanism_id: [c for name in one.cluster_ids for c in cards_of[name]] for one in draft.mechanisms}
    left = [name for one in draft.left_out for name in behind.get(one.item_id, [one.item_id])]
    assert sorted(supported + left) == sorted(one.card_id for one in found)
    account = draft.account()
    assert account.keys() == {one.card_id for one in found}
    assert {name for name, place in account.items() if isinstance(place, str)} == set(supported)
    assert all(place.reason for place in account.values() if isinstance(place, LeftOut))
    assert draft.pool is not None
    assert len(draft.pool.candidates) <= cap


KILLED = """
import os, signal, sys
from pathlib import Path
from evidence import Author, cards, compiled


class Killed(Author):
    def __call__(self, body):
        if body["tools"][0]["function"]["name"] == "submit_skill":
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__call__(body)

compiled(Killed(), Path(sys.argv[1]), cards("en"))
"""


def test_a_killed_compilation_goes_on_without_paying_again(tmp_path: Path) -> None:
    path = os.pathsep.join([str(ROOT), str(ROOT / "tests"), os.environ.get("PYTHONPATH", "")])
    dead = subprocess.run(
        [sys.executable, "-c", KILLED, str(tmp_path)], env=os.environ | {"PYTHONPATH": path}, check=False
    )
    assert dead.returncode == -signal.SIGKILL
    assert not (tmp_path / "draft.json").exists()
    author = Author()
    draft = compiled(author, tmp_path, cards("en"))
    assert [body["tools"][0]["function"]["name"] for body in author.bodies] == ["submit_skill"]
    assert len(read_lines(tmp_path / "calls.jsonl", ModelCall.model_validate_json)) == 3
    assert compiled(Author(), tmp_path / "whole", cards("en")) == draft


def test_commands_start_without_scikit_learn() -> None:
    code = "import sys, shopskill_lib.cli; sys.exit('sklearn' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0


def test_I7_the_skill_in_force_is_untouched(tmp_path: Path) -> None:
    before: Callable[[], str] = SEED.model_dump_json
    kept = before()
    compiled(Author(skill=[rewriting("broad")]), tmp_path, cards("en"), SEED)
    assert before() == kept
