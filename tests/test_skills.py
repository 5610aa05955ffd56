"""Skill documents: chunks in canonical order, round trips, refusals; both languages."""

import json
import re
import tempfile
from pathlib import Path

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from shopskill_lib.errors import InputError
from shopskill_lib.skills import Chunk, Skill, read_skill
from shopskill_lib.text import key

DOCUMENT = """---
name: shopping
---
# 购物技能

## Search with every requirement {#query-all}

Put every requirement in the query.

```
## not a heading {#inside}
{"name": "search", "arguments": {"query": "{persona}"}}
```

## 核对规格价格 {#price}

选好规格后，再核对价格是否在预算内。</hint>
"""


def written(folder: Path, text: str, name: str = "skill.md") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def test_chunks_are_read_in_order_with_fences_and_braces_whole(tmp_path: Path) -> None:
    skill = read_skill(written(tmp_path, DOCUMENT))
    assert skill.title == "购物技能"
    assert skill.ids == ("query-all", "price")
    assert skill.chunks[0].title == "Search with every requirement"
    assert "## not a heading {#inside}" in skill.chunks[0].text
    assert skill.chunks[1].text == "选好规格后，再核对价格是否在预算内。</hint>"


def test_a_skill_reads_back_as_it_was_written(tmp_path: Path) -> None:
    skill = read_skill(written(tmp_path, DOCUMENT))
    assert read_skill(written(tmp_path, skill.to_markdown(), "again.md")) == skill
    assert skill.subset(("price",)).ids == ("price",)


@given(st.lists(st.text("ab 价格{}`-\n", min_size=1), min_size=1, max_size=5, unique_by=key))
def test_any_chunk_text_survives_a_round_trip(texts: list[str]) -> None:
    kept = [text.strip("\n") for text in texts if key(text) and "```" not in text]
    chunks = tuple(Chunk(chunk_id=f"c{k}", title=f"标题 {k}", text=text) for k, text in enumerate(kept))
    assume(chunks)
    skill = Skill(title="t", chunks=chunks)
    with tempfile.TemporaryDirectory() as folder:
        assert read_skill(written(Path(folder), skill.to_markdown())) == skill


def test_a_chunk_without_an_id_is_named_by_its_content(tmp_path: Path) -> None:
    (one,) = read_skill(written(tmp_path, "## Title\n\nText.\n")).ids
    (same,) = read_skill(written(tmp_path, "\n## Title\nText.\n\n")).ids
    (other,) = read_skill(written(tmp_path, "## Title\n\nAnother text.\n")).ids
    assert one == same != other
    assert one.startswith("chunk-")


def test_a_json_list_is_read(tmp_path: Path) -> None:
    path = written(tmp_path, '[{"chunk_id": "a", "title": "A", "text": "Do it."}]', "draft.json")
    assert read_skill(path).ids == ("a",)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("# Only a title\n", "no chunk"),
        ("Advice without a heading.\n", "line 1: there is text before the first chunk"),
        ("## A {#a}\n\n## B {#b}\n\ntext\n", "chunk a has no text"),
        ("## A {#a}\n\nOne text.\n## B {#a}\n\nOther.\n", "same id"),
        ("## A {#a}\n\n先搜索，再比较。\n## B {#b}\n\n先搜索, 再比较。\n", "same text"),
        ("", "empty"),
        ("## A {#a}\n\n```\ntext\n\n## B {#b}\n\nmore\n", "never closed"),
    ],
)
def test_documents_that_cannot_be_measured_are_refused(text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=message):
        read_skill(written(tmp_path, text))


@pytest.mark.parametrize(
    "text", ["{}", '[{"chunk_id": "a"}]', '[{"chunk_id": 1, "title": "A", "text": "x"}]', "[", "[]"]
)
def test_json_of_another_form_is_refused(text: str, tmp_path: Path) -> None:
    with pytest.raises(InputError):
        read_skill(written(tmp_path, text, "draft.json"))


@pytest.mark.parametrize(
    "change",
    [
        {"text": "One.\n\n## Sub heading\n\nTwo."},
        {"text": "先搜索。\n## 小标题\n再比较。"},
        {"text": "One.\n```\nopen"},
        {"text": "\n\nOne."},
        {"text": "One.\n"},
        {"text": "One.\r\nTwo."},
        {"title": "A\nB"},
        {"title": " 价格 "},
        {"chunk_id": "price check"},
        {"chunk_id": ""},
    ],
)
def test_a_chunk_that_gate_b_would_read_otherwise_is_refused(change: dict[str, str], tmp_path: Path) -> None:
    chunk = {"chunk_id": "second", "title": "Price", "text": "Check the price."} | change
    chunks = [{"chunk_id": "a", "title": "A", "text": "```\n## inside\n```\n\nDo it."}, chunk]
    with pytest.raises(InputError, match=re.escape(f"chunk {chunk['chunk_id']!r} would not read back")):
        read_skill(written(tmp_path, json.dumps(chunks), "draft.json"))
