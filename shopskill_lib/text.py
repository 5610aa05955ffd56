"""Text in two languages: normal form, comparison key, tokens, numbers, similarity."""

import itertools
import math
import re
import unicodedata
from collections import Counter

from rapidfuzz import fuzz

_INVISIBLE = re.compile("[\u00ad\u200b-\u200f\u202a-\u202e\u2060-\u2064\ufeff]")
_BLANK = re.compile(r"[\s\x00-\x1f\x7f-\x9f\ud800-\udfff]+")
_THOUSANDS = re.compile(r"(?<=\d),(?=\d{3}(?!\d))")
_HAN = "\u3007\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
_PIECE = re.compile(rf"[{_HAN}]+|\d+(?:\.\d+)?|[^\W\d_{_HAN}][^\W_{_HAN}]*")
_UNIT = re.compile(rf"[{_HAN}]|\d{{1,3}}(?:,\d{{3}})+(?!\d)(?:\.\d+)?|\d+(?:\.\d+)?|[^\W\d_{_HAN}][^\W_{_HAN}]*")
_NUMBER = re.compile(r"\d+(?:\.\d+)?")
_TASK_NUMBER = re.compile(r"([+-]?)0*([0-9]+)(?:\.0+)?")
_RUN = re.compile(rf"[{_HAN}]+|[^\W_{_HAN}]+")
_HAN_ONE = re.compile(f"[{_HAN}]")

Unit = tuple[str, int, int]
"""A Han character, Latin word or number, with start and end of its place."""


def tidy(text: str) -> str:
    """Return the text with white space, control characters and lone surrogates collapsed to single spaces."""
    return _BLANK.sub(" ", text).strip()


def normalise(text: str) -> str:
    """Return the tidy text in NFKC, case-folded, without invisible characters."""
    if text.isascii():
        return tidy(text).lower()
    folded = unicodedata.normalize("NFKC", _INVISIBLE.sub("", text)).casefold()
    return tidy(unicodedata.normalize("NFKC", folded))


def key(text: str) -> str:
    """Return the form in which labels are compared: normal, no white space, ``/`` as ``|``."""
    return normalise(text).replace(" ", "").replace("/", "|")


def task_key(task_id: str) -> str:
    """Return the form in which task ids are compared (M2): trimmed, full width folded, numbers by value.

    ``0012``, ``12``, ``12.0`` and ``１２`` are one task; invisible characters do not count.
    """
    plain = tidy(unicodedata.normalize("NFKC", _INVISIBLE.sub("", task_id)))
    number = _TASK_NUMBER.fullmatch(plain)
    return (number[1].replace("+", "") + number[2]) if number else plain


def words(text: str) -> list[str]:
    """Return the words of a text in order: runs of Han, Latin words, numbers without needless zeros.

    A number ends where letters begin, so ``1.50m`` gives ``1.5`` and ``m``; a code that begins with a letter
    (``aglv009``) stays whole.
    """
    pieces: list[str] = _PIECE.findall(_THOUSANDS.sub("", normalise(text)))
    return [_plain_number(piece) if piece[0].isdecimal() else piece for piece in pieces]


def tokens(text: str) -> list[str]:
    """Return the search tokens in order: Han bigrams (a lone character stays), other words whole."""
    found: list[str] = []
    for word in words(text):
        if is_han(word[0]) and len(word) > 1:
            found.extend(map("".join, itertools.pairwise(word)))
        else:
            found.append(word)
    return found


def units(normal: str) -> list[Unit]:
    """Return (unit, start, end) in order: Han characters one by one, Latin words, numbers in plain form.

    Args:
        normal: text in normal form, so that the places are places in it.
    """
    found = [(piece[0], piece.start(), piece.end()) for piece in _UNIT.finditer(normal)]
    return [
        (_plain_number(unit.replace(",", "")) if unit[0].isdecimal() else unit, start, end)
        for unit, start, end in found
    ]


def numbers(text: str) -> list[str]:
    """Return every number of a text, those inside codes too, in plain form and sorted as text."""
    return sorted(_plain_number(piece) for piece in _NUMBER.findall(_THOUSANDS.sub("", normalise(text))))


def contains(text: str, phrase: str) -> bool:
    """Tell whether the phrase stands in the text, both in normal form.

    An end that is a Latin letter or a digit must end a word there: ``250w`` is not in ``1250w``, ``5l`` not
    in ``1.5l``, ``coated`` not in ``uncoated``. Han needs no boundary.
    """
    if not phrase:
        return False
    start = r"(?<![^\W_" + _HAN + r"])(?<!\d\.)" if _is_latin(phrase[0]) else ""
    end = r"(?![^\W_" + _HAN + r"])(?!\.\d)" if _is_latin(phrase[-1]) else ""
    return phrase in text and re.search(start + re.escape(phrase) + end, text) is not None


def similarity(left: str, right: str) -> float:
    """Return 0 (nothing shared) to 100 (equal): edit similarity of the sorted words of both texts."""
    return fuzz.ratio(" ".join(sorted(words(left))), " ".join(sorted(words(right))))


def ngram_similarity(left: str, right: str) -> float:
    """Return 0 (nothing shared) to 1 (equal): the cosine of the character n-gram counts of both normal forms.

    Letters and digits alone count, across white space and punctuation: 2-grams within Han, 4-grams within all else,
    a shorter run as a whole. Two texts without a letter are alike only if both are without.
    """
    one, other = _ngrams(left), _ngrams(right)
    if one == other:
        return 1.0
    shared = sum(count * other[gram] for gram, count in one.items())
    norms = math.hypot(*one.values()) * math.hypot(*other.values())
    return min(shared / norms, 1.0) if norms else 0.0


def _ngrams(text: str) -> Counter[str]:
    """Count the n-grams of a text."""
    found: Counter[str] = Counter()
    for run in _RUN.findall("".join(filter(str.isalnum, normalise(text)))):
        size = min(len(run), 2 if is_han(run[0]) else 4)
        found.update(run[start : start + size] for start in range(len(run) - size + 1))
    return found


def is_han(character: str) -> bool:
    """Tell whether a single character is a Han character."""
    return _HAN_ONE.match(character) is not None


def _is_latin(character: str) -> bool:
    return character.isalnum() and not is_han(character)


def _plain(unit: str) -> str:
    return _plain_number(unit.replace(",", "")) if unit[0].isdecimal() else unit


def _plain_number(digits: str) -> str:
    whole, _, fraction = digits.partition(".")
    fraction = fraction.rstrip("0")
    whole = whole.lstrip("0") or "0"
    return f"{whole}.{fraction}" if fraction else whole
