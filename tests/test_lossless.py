"""JSON without loss: what a document differs in from a built one gives it back, and what cannot be kept is refused."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shopskill_lib.adapters.lossless import difference, given_back, kept, parse_strictly, patched
from shopskill_lib.errors import InputError

ATOMS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text("a外0 ")
VALUES = st.recursive(
    ATOMS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("ab外", max_size=2), inner, max_size=3)
)


def exactly(value: Any) -> str:
    return json.dumps(value, sort_keys=True, ensure_ascii=False)


@given(VALUES, VALUES)
def test_a_difference_gives_the_document_back_to_the_type_of_every_number(whole: Any, built: Any) -> None:
    change = difference(whole, built)
    assert exactly(patched(built, change)) == exactly(whole)
    assert (change is None) == (exactly(whole) == exactly(built))
    through_file = json.loads(json.dumps(kept(whole, built)))
    assert exactly(given_back(built, through_file, "here")) == exactly(whole)


@given(st.dictionaries(st.text("ab", max_size=2), ATOMS, max_size=3), st.text("c", min_size=1), ATOMS)
def test_what_the_builder_knows_is_not_kept_twice(known: dict[str, Any], more: str, value: Any) -> None:
    assert difference(known | {more: value}, known) == {"fields": {more: {"is": value}}}


def test_a_record_that_was_changed_is_not_mixed_with_its_source() -> None:
    rest = kept({"reward": 1, "goal": "x"}, {"reward": 1.0})
    assert given_back({"reward": 1.0}, rest, "line 1") == {"reward": 1, "goal": "x"}
    with pytest.raises(InputError, match="line 1: the record was changed after it was read"):
        given_back({"reward": 0.5}, rest, "line 1")


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ('{"a": 1, "a": 2}', "the key 'a' stands twice in an object"),
        ('{"价": [{"x": 1, "x": 1}]}', "the key 'x' stands twice"),
        ('{"reward": NaN}', "NaN is no JSON number"),
        ("[-Infinity]", "-Infinity is no JSON number"),
        ("[1e999]", "the number 1e999 has no end"),
        ('{"页": ["ok", {"b": "\\ud800"}]}', "页.1.b holds half a surrogate pair"),
        ('{"\\udc00": 1}', "holds half a surrogate pair"),
        ('{"a": 1', "this is not JSON, or is cut off"),
        ("", "this is not JSON"),
        ("[" * 100_000, "this is not JSON"),
    ],
)
def test_what_reading_would_change_is_refused(text: str, found: str) -> None:
    with pytest.raises(InputError, match=f"^f.jsonl, line 7.*{found}"):
        parse_strictly(text, "f.jsonl, line 7")


@given(VALUES)
def test_all_other_json_is_read_as_it_is(value: Any) -> None:
    for ascii_only in (True, False):
        assert exactly(parse_strictly(json.dumps(value, ensure_ascii=ascii_only), "here")) == exactly(value)
