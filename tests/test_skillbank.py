"""Skill banks and candidate pools of ShopSimRL: chunks and candidates that a gate can measure, and back."""

import json
from pathlib import Path
from typing import Any

import elsewhere
import pytest
from elsewhere import Json, candidate, skill
from hypothesis import given, settings
from hypothesis import strategies as st

from shopskill_lib import protocol
from shopskill_lib.adapters import folder, formats, skillbank
from shopskill_lib.adapters.recorded import Import
from shopskill_lib.errors import InputError, ShopskillError
from shopskill_lib.pools import Foreign, Pool
from shopskill_lib.settings import Settings
from shopskill_lib.skills import Chunk, Skill, read_skill

SIZE = skill(
    "chunk-27a7e5bb9344",
    "规格选项选择",
    "- **Applies when:** 有规格\n- **Procedure:**\n  1. 逐项核对",
    metadata={"draft_order": 1, "estimated_effect": 0.027},
)
PRICE = skill("check-price", "Check the price", "- **Verify:** it is within the budget")
BANK = elsewhere.bank(SIZE, PRICE)
ADD = candidate("多看几件", "- **Verify:** 至少看过三件")
REWRITE = candidate("规格选项选择", "- **Verify:** 全部选定", target="chunk-27a7e5bb9344")
POOL = elsewhere.pool([SIZE, PRICE], [ADD, REWRITE])


def carried(tmp_path: Path, document: Json, name: str) -> Any:
    """The document after import into a folder and export from there."""
    source = elsewhere.write_json(tmp_path / "source.json", document)
    found = formats.read(source)
    assert found.format == name
    folder.save(found, tmp_path / "in")
    assert formats.export(formats.read(tmp_path / "in"), formats.named(name), tmp_path / "out.json") == ()
    return json.loads((tmp_path / "out.json").read_text(encoding="utf-8"))


def test_a_bank_is_a_skill_and_goes_back_equal(tmp_path: Path) -> None:
    assert carried(tmp_path, BANK, "shopsimrl-skillbank") == BANK
    read = read_skill(tmp_path / "in" / "skill.md")
    assert read.title == "cold-start-gate-a-selected-v1" and read.ids == ("chunk-27a7e5bb9344", "check-price")
    assert read.chunks[0].title == "规格选项选择" and read.chunks[0].text.startswith("- **Applies when:** 有规格\n")
    drafted = protocol.read_draft(Settings.of({"draft": str(tmp_path / "in" / "skill.md")}), tmp_path)
    assert [slot.slot_id for slot in drafted.slots] == list(read.ids)


def test_disabled_texts_are_no_chunks_and_come_back(tmp_path: Path) -> None:
    document = elsewhere.bank(SIZE, PRICE | {"enabled": False})
    assert carried(tmp_path, document, "shopsimrl-skillbank") == document
    found = formats.read(tmp_path / "in")
    assert found.skill is not None and found.skill.ids == ("chunk-27a7e5bb9344",)
    assert found.lacks == ("disabled there, so no chunk here: check-price",)


def test_a_text_without_a_heading_is_shown_under_its_title_or_id_and_that_is_said(tmp_path: Path) -> None:
    plain = [SIZE | {"content": "  先看规格\n"}, PRICE | {"content": "Look twice.", "metadata": {"title": "Twice"}}]
    document = elsewhere.bank(
        *(one | {"metadata": one.get("metadata") and {"title": None}} if k == 0 else one for k, one in enumerate(plain))
    )
    assert carried(tmp_path, document, "shopsimrl-skillbank") == document
    found = formats.read(tmp_path / "in")
    assert found.skill is not None
    assert [chunk.shown for chunk in found.skill.chunks] == ["chunk-27a7e5bb9344\n先看规格", "Twice\nLook twice."]
    assert "without a heading there; shown here under title or id: chunk-27a7e5bb9344, check-price" in found.lacks


@pytest.mark.parametrize(
    ("document", "found"),
    [
        (elsewhere.bank(SIZE, PRICE | {"task_ids": [1, 2]}), r"check-price: skills.1.task_ids names 2 tasks"),
        (elsewhere.bank(SIZE, PRICE | {"content": 7}), "skills.1.content is 7"),
        (elsewhere.bank(SIZE, PRICE | {"enabled": "no"}), "skills.1.enabled is 'no'"),
        (elsewhere.bank(SIZE, SIZE | {"content": "### a\n\nb"}), "have the same id"),
        (elsewhere.bank(SIZE, PRICE | {"skill_id": "two words"}), "'two words' would not read back from a skill.md"),
        (elsewhere.bank(SIZE, PRICE | {"content": "### a\n\nb\n## c\nd"}), "'check-price' would not read back"),
        (elsewhere.bank(SIZE, PRICE | {"content": " "}), "chunk check-price has no text"),
        (elsewhere.bank(), "there is no chunk"),
    ],
)
def test_a_bank_that_no_gate_can_measure_is_refused(tmp_path: Path, document: Json, found: str) -> None:
    with pytest.raises(InputError, match=rf"bank\.json.*{found}"):
        formats.read(elsewhere.write_json(tmp_path / "bank.json", document))


def test_a_pool_is_what_a_gate_measures_and_goes_back_equal(tmp_path: Path) -> None:
    assert carried(tmp_path, POOL, "shopsimrl-pool") == POOL
    draft = protocol.read_draft(Settings.of({"draft": str(tmp_path / "in" / "pool.json")}), tmp_path)
    assert [slot.versions for slot in draft.slots] == [
        ("chunk-27a7e5bb9344", REWRITE["candidate_id"]), ("check-price",), (ADD["candidate_id"],),
    ]  # fmt: skip
    assert [item.kind for item in draft.interventions] == ["current", "candidate", "current", "candidate"]
    assert draft.versions[REWRITE["candidate_id"]].shown == "规格选项选择\n- **Verify:** 全部选定"
    rewrite = draft.candidates[1]
    assert (
        isinstance(rewrite, Foreign) and rewrite.reason == "规格未核对" and rewrite.evidence_card_ids == ("failure-1",)
    )
    assert "stages and parts of the candidates: not told" in formats.read(tmp_path / "in").lacks[0]


@pytest.mark.parametrize(
    ("document", "found"),
    [
        (POOL | {"proposal_checkpoint": "iter-40"}, "pool_sha256 is not the hash of this content"),
        (elsewhere.pool([SIZE], [ADD | {"target_chunk_id": "check-price"}]), "is an addition and names check-price"),
        (elsewhere.pool([PRICE], [REWRITE]), "rewrites chunk-27a7e5bb9344, which is not there"),
        (
            elsewhere.pool([SIZE], [candidate("a", SIZE["content"].partition("\n\n")[2], SIZE["skill_id"])]),
            "equal to the text",
        ),
        (elsewhere.pool([SIZE], [ADD, ADD]), "no id twice"),
        (elsewhere.pool([SIZE], [ADD | {"operation": "DROP"}]), "candidates.0.operation is 'DROP'"),
        (elsewhere.pool([SIZE], [ADD | {"content": " "}]), "candidates.0: content is empty"),
        (elsewhere.pool([SIZE], [ADD | {"content": "### a\n\n```\nopen"}]), "would not read back"),
        (elsewhere.pool([], []), "at least one version"),
    ],
)
def test_a_pool_that_contradicts_itself_is_refused(tmp_path: Path, document: Json, found: str) -> None:
    with pytest.raises(InputError, match=rf"pool\.json.*{found}"):
        formats.read(elsewhere.write_json(tmp_path / "pool.json", document))


TITLE = st.text("ab 规格#{}", min_size=1, max_size=6).map(str.strip).filter(bool)
BODY = st.text("ab 核\n-`#*", min_size=1, max_size=12)


@given(st.lists(st.tuples(TITLE, BODY), min_size=1, max_size=4))
@settings(deadline=None)
def test_our_skills_come_back_from_banks_and_pools_or_are_refused(
    tmp_path_factory: pytest.TempPathFactory, texts: list[tuple[str, str]]
) -> None:
    place = tmp_path_factory.mktemp("b")
    skill_ = Skill(
        title="标题", chunks=tuple(Chunk(chunk_id=f"c-{k}", title=a, text=b) for k, (a, b) in enumerate(texts))
    )
    (place / "skill.md").write_text(skill_.to_markdown(), encoding="utf-8")
    try:
        ours = formats.read(place / "skill.md")
    except ShopskillError:
        return
    try:
        lost = formats.export(ours, formats.named("shopsimrl-skillbank"), place / "bank.json")
    except InputError as error:
        assert "would not read back" in str(error)
        return
    assert lost == ()
    added = tuple(
        Foreign(
            operation="ADD",
            candidate_id=f"x-{c.chunk_id}",
            target_chunk_id=None,
            title=c.title,
            content=c.text,
            reason=None,
            evidence_card_ids=(),
        )
        for c in (ours.skill or skill_).chunks[1:]
    )
    pool = Pool(title="回合", kind="current", chunks=(ours.skill or skill_).chunks[:1], candidates=added)
    assert formats.export(Import("x", pool=pool), formats.named("shopsimrl-pool"), place / "pool.json") == ()


def test_our_skill_goes_to_a_bank_and_back_to_a_list_of_chunks(tmp_path: Path) -> None:
    shipped = formats.read(protocol.DRAFTS / "skill_zh.md")
    assert formats.export(shipped, formats.named("shopsimrl-skillbank"), tmp_path / "bank.json") == ()
    bank = formats.read(tmp_path / "bank.json")
    assert bank.skill == shipped.skill and bank.lacks == ()
    assert formats.export(bank, formats.named("skill"), tmp_path / "chunks.json") == (
        "the skill is not held as it was",
    )
    assert read_skill(tmp_path / "chunks.json").chunks == (shipped.skill and shipped.skill.chunks)
    for write in (skillbank.write_bank, skillbank.write_pool, skillbank.write_ours):
        with pytest.raises(InputError, match=r"there is no (skill|pool)"):
            write(Import("x"), tmp_path / "none.json")
