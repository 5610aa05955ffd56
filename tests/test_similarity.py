"""Groups and alignment by character n-grams, against cards of known mechanisms in both languages."""

import itertools
import random
from collections.abc import Sequence
from typing import Literal

import pytest
from evidence import LESSONS, card

from shopskill_lib.clusters import passage_of
from shopskill_lib.records import Language
from shopskill_lib.similarity import Passage, align, distances, groups

LANGUAGES: tuple[Language, ...] = ("en", "zh")


def passages(language: Language, channel: Literal["success", "failure"]) -> tuple[list[Passage], list[str]]:
    """Texts of a channel and the mechanism of each."""
    found = [
        (passage_of(made.deployable), name)
        for name, known in LESSONS[language].items()
        for number in range(len(known[channel]))
        if (made := card(language, name, channel, number)).deployable is not None
    ]
    return [one for one, _ in found], [name for _, name in found]


def pairwise(labels: Sequence[int], truth: Sequence[str]) -> tuple[float, float]:
    """Precision and recall over pairs."""
    pairs = list(itertools.combinations(range(len(labels)), 2))
    together = {pair for pair in pairs if labels[pair[0]] == labels[pair[1]]}
    alike = {pair for pair in pairs if truth[pair[0]] == truth[pair[1]]}
    return len(together & alike) / len(together), len(together & alike) / len(alike)


@pytest.mark.parametrize(
    ("language", "channel", "precision", "recall"),
    [
        ("en", "success", 0.8, 0.45),
        ("en", "failure", 0.65, 0.95),
        ("zh", "success", 0.95, 0.6),
        ("zh", "failure", 0.95, 0.95),
    ],
)
def test_groups_follow_the_known_mechanisms(
    language: Language, channel: Literal["success", "failure"], precision: float, recall: float
) -> None:
    texts, truth = passages(language, channel)
    found = pairwise(groups(texts, language), truth)
    assert found[0] >= precision
    assert found[1] >= recall


@pytest.mark.parametrize("language", LANGUAGES)
def test_success_and_failure_texts_of_one_mechanism_are_aligned(language: Language) -> None:
    (success, names), (failure, others) = passages(language, "success"), passages(language, "failure")
    hits = wrong = owed = 0
    for one, other, gap in itertools.product(range(3), range(2), range(8)):
        left = [n for n in range(one, 24, 3) if n // 3 != gap]
        right = [n for n in range(other, 16, 2) if n // 2 != (gap + 3) % 8]
        pairs = align([success[n] for n in left], [failure[n] for n in right], language)
        right_ones = [names[left[a]] == others[right[b]] for a, b in pairs]
        hits, wrong, owed = hits + sum(right_ones), wrong + right_ones.count(False), owed + 6
    assert wrong == 0
    assert hits >= 0.9 * owed


@pytest.mark.parametrize("language", LANGUAGES)
def test_no_position_is_aligned_twice_and_strangers_are_not_aligned(language: Language) -> None:
    texts, _ = passages(language, "success")
    pairs = align([texts[0]] * 3, [texts[0]] * 2, language)
    assert len(pairs) == len({a for a, _ in pairs}) == len({b for _, b in pairs}) == 2
    assert align([texts[0]], [texts[-1]], language) == []
    assert align([], texts, language) == align(texts, [], language) == []


@pytest.mark.parametrize("language", LANGUAGES)
def test_groups_do_not_depend_on_the_order_of_the_texts(language: Language) -> None:
    texts, _ = passages(language, "success")
    numbers = groups(texts, language)
    order = random.Random(3).sample(range(len(texts)), len(texts))
    shuffled = groups([texts[n] for n in order], language)
    pairs = itertools.combinations(range(len(texts)), 2)
    assert all((shuffled[a] == shuffled[b]) == (numbers[order[a]] == numbers[order[b]]) for a, b in pairs)
    assert shuffled[0] == numbers[0] == 1


def test_another_module_sets_texts_apart_and_width_does_not() -> None:
    near, far = distances(
        [Passage("核对价格", "variant"), Passage("核对价格", "variant"), Passage("核对价格", "query")], "zh"
    )[0, 1:]
    assert near == pytest.approx(0)
    assert far == pytest.approx(0.2)
    assert distances([Passage("ＡＢＣ code", "query"), Passage("abc code", "query")], "en")[0, 1] == pytest.approx(0)


def test_one_text_or_none_is_grouped_without_a_model() -> None:
    assert groups([], "en") == []
    assert groups([Passage("a", "query")], "zh") == [1]
