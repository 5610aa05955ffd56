import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shopskill_lib.text import (
    contains,
    key,
    ngram_similarity,
    normalise,
    numbers,
    similarity,
    tidy,
    tokens,
    units,
    words,
)


def test_normal_form_folds_width_case_and_white_space() -> None:
    assert normalise("  ＡＢＣ\t１２\n\u200b降噪\x07耳机 ") == "abc 12 降噪 耳机"
    assert normalise("Straße") == normalise("STRASSE")
    assert normalise("a\ud800b") == "a b"


def test_tidy_keeps_case_and_width() -> None:
    assert tidy(" Ａb \x00 c\n") == "Ａb c"


@given(st.text(max_size=60))
def test_the_normal_form_is_stable_and_can_be_written(text: str) -> None:
    once = normalise(text)
    assert normalise(once) == once
    once.encode()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("降噪耳机", ["降噪", "噪耳", "耳机"]),
        ("红 Cotton T-shirt", ["红", "cotton", "t", "shirt"]),
        ("AGLV009-7 1.50m 500ML", ["aglv009", "7", "1.5", "m", "500", "ml"]),
        ("1,200元", ["1200", "元"]),
        ("title:shoes AND (red) <r> 😀", ["title", "shoes", "and", "red", "r"]),
        ("😀", []),
    ],
)
def test_tokens(text: str, expected: list[str]) -> None:
    assert tokens(text) == expected


@given(st.text(max_size=80))
def test_tokens_hold_letters_and_digits_only(text: str) -> None:
    assert all(token.replace(".", "").isalnum() for token in tokens(text) if token.isascii())
    assert not any(character.isspace() for token in tokens(text) for character in token)


@given(st.decimals(0, 9999, places=2))
def test_a_number_is_one_whatever_its_form(value: object) -> None:
    assert numbers(f"{value}m") == numbers(f"0{value}0 m") == words(f"{value}m")[:1]


def test_numbers_tell_sizes_apart() -> None:
    assert numbers("加厚款1.8m") != numbers("加厚款1.5m")
    assert numbers("1,000ml") == numbers("１０００ml") == ["1000"]


@pytest.mark.parametrize(
    ("text", "phrase", "found"),
    [
        ("speaker 250w", "250w", True),
        ("speaker 1250w", "250w", False),
        ("bottle 1.5l", "5l", False),
        ("uncoated pan", "coated", False),
        ("coated pan", "coated", True),
        ("2025夏新款", "2025夏", True),
        ("李宁aglv009鞋", "aglv009", True),
        ("any", "", False),
    ],
)
def test_a_phrase_stands_on_its_own(text: str, phrase: str, found: bool) -> None:
    assert contains(text, phrase) is found


def test_similarity_follows_the_vectors_of_the_reference() -> None:
    assert similarity("纯棉", "纯棉") == 100
    assert round(similarity("主动降噪蓝牙耳机", "主动降噪蓝牙耳麦")) == 88
    assert similarity("deep blue", "blue deep") == 100
    assert similarity("深海blue色", "天空blue款") < 85


def test_a_part_is_not_the_whole() -> None:
    assert similarity("白色 大号", "白色") < 85


def test_key_ignores_what_labels_differ_in() -> None:
    assert key("颜色分类 = 白色/蓝色") == key("颜色分类=白色 | 蓝色")
    assert key("Color=Navy Blue") == key("ｃｏｌｏｒ=navy blue")


@given(st.text(max_size=40), st.text(max_size=40))
def test_ngram_similarity_is_a_similarity(left: str, right: str) -> None:
    assert 0 <= ngram_similarity(left, right) <= 1
    assert ngram_similarity(left, right) == ngram_similarity(right, left)
    assert ngram_similarity(left, left) == 1


@pytest.mark.parametrize(
    ("left", "right", "expected"),
    [
        ("核对价格", "核对尺码", 1 / 3),
        ("核对价格", "价格核对", 2 / 3),
        ("abcde", "abcdf", 1 / 2),
        ("check price", "checkprice", 1.0),
        ("选 XL 码。", "选xl码", 1.0),
        ("Ｃｈｅｃｋ the\tprice!", "check — the price", 1.0),
        ("abc", "abd", 0.0),
        ("...", "！", 1.0),
        ("...", "价格", 0.0),
        ("价格", "price", 0.0),
    ],
)
def test_ngram_similarity_counts_pairs_of_han_and_fours_of_the_rest(left: str, right: str, expected: float) -> None:
    assert ngram_similarity(left, right) == pytest.approx(expected)


@given(st.text(max_size=80))
def test_units_stand_where_they_say(text: str) -> None:
    normal = normalise(text)
    places = [(start, end) for _, start, end in units(normal)]
    assert all(start < end for start, end in places)
    assert all(end <= start for (_, end), (start, _) in itertools.pairwise(places))
    letters = {place for start, end in places for place in range(start, end)}
    assert all(place in letters for place, letter in enumerate(normal) if letter.isalpha())


def test_units_are_han_characters_words_and_numbers() -> None:
    assert [unit for unit, _, _ in units("青居rd430 1,299.50元 64gb")] == [
        "青",
        "居",
        "rd430",
        "1299.5",
        "元",
        "64",
        "gb",
    ]
    assert units("选 01.50m")[1:] == [("1.5", 2, 7), ("m", 7, 8)]
