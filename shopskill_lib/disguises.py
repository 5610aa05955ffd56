"""Forms in which a text hides another: other digits, separators, encodings, reading order, the seam of two fields.

Nothing here knows what is searched for; `firewall` does.
"""

import base64
import codecs
import html
import re
import unicodedata
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from urllib.parse import unquote

from shopskill_lib.text import Unit, is_han, normalise, units

_HAN_DIGITS = str.maketrans("〇零一二三四五六七八九壹贰叁肆伍陆柒捌玖", "00123456789123456789")
_BASE64 = re.compile(r"[A-Za-z0-9+/_-]{8,}")
_HEX = re.compile(r"(?:(?:0x|\\x|\\u00)?[0-9A-Fa-f]{2}[\s:,;-]?){5,}[0-9A-Fa-f]?")
_NO_HEX = re.compile(r"0x|\\x|\\u00|[\s:,;-]")
_READABLE = re.compile("[^\x00-\x1f\x7f-\x9f\ufffd]+")
_BYTES = 5
"""Fewest bytes that count as something readable."""


def plain(text: str) -> str:
    """Return the normal form with all decimal and circled digits as ASCII; Han numerals stay."""
    normal = normalise(text)
    if normal.isascii():
        return normal
    return "".join(
        str(unicodedata.digit(letter)) if letter.isdigit() and not letter.isascii() else letter for letter in normal
    )


def compact(text: str) -> str:
    """Return letters and digits only, Han numerals as digits: what is left when separators do not count."""
    return "".join(letter for letter in plain(text).translate(_HAN_DIGITS) if letter.isalnum())


def mirrored(form: str) -> tuple[str, ...]:
    """Return a form, the form reversed, and its rot13, each once."""
    return tuple(dict.fromkeys((form, form[::-1], codecs.encode(form, "rot13"))))


def decoded(text: str) -> Iterator[str]:
    """Yield what percent-encoding, HTML entities, base64 and hexadecimal bytes in a text stand for."""
    folded = unicodedata.normalize("NFKC", text)
    unquoted = html.unescape(unquote(folded))
    if unquoted != folded:
        yield unquoted
    for run in _BASE64.findall(folded):
        for piece in {run, *re.split("[/_-]", run)}:
            yield from (text for skip in range(4) for text in _readable(_unpacked(piece[skip:])))
    for match in _HEX.finditer(folded):
        digits = _NO_HEX.sub("", match[0])
        yield from (text for skip in (0, 1) for text in _readable(_bytes(digits[skip:])))


def _unpacked(piece: str) -> bytes:
    """Return the bytes of a piece of base64, without those of a quantum that is not whole."""
    whole = piece[: len(piece) - (len(piece) % 4 == 1)]
    return base64.urlsafe_b64decode(whole.translate(str.maketrans("+/", "-_")) + "=" * (-len(whole) % 4))


def _bytes(digits: str) -> bytes:
    return bytes.fromhex(digits[: len(digits) // 2 * 2])


def _readable(raw: bytes) -> list[str]:
    """Return the readable runs of the bytes; a word read as an encoding has none."""
    return [text for text in _READABLE.findall(raw.decode(errors="replace")) if len(text.encode()) >= _BYTES]


@dataclass(frozen=True, slots=True)
class View:
    """Neighbouring fields read as one text."""

    names: tuple[str, ...]
    starts: tuple[int, ...]
    """Where each field begins in `plain`."""
    plain: str
    """The fields in plain form, one a line."""
    digits: str
    """`plain` with Han numerals as digits; the same places."""
    compact: str
    """Letters and digits of `digits`."""
    places: tuple[int, ...]
    """Place in `plain` of every character of `compact`."""
    units: tuple[Unit, ...]

    def fields(self, start: int, end: int) -> str:
        """Return the name of the field that the span lies in, or the names of all that it touches."""
        first, last = bisect_right(self.starts, start) - 1, bisect_right(self.starts, end - 1) - 1
        return " + ".join(dict.fromkeys(self.names[first : last + 1]))

    def span(self, start: int, form: str) -> tuple[int, int] | None:
        """Return where in `plain` a compact form stands that begins at this place of `compact`; None if it does not."""
        if not self.compact.startswith(form, start):
            return None
        return self.places[start], self.places[start + len(form) - 1] + 1

    def stands_alone(self, start: int, end: int) -> bool:
        """Tell whether no Latin letter or digit continues the span on either side."""
        ends = (start and self.plain[start - 1 : start + 1], self.plain[end - 1 : end + 1])
        return not any(
            pair and len(pair) == 2 and all(letter.isalnum() and not is_han(letter) for letter in pair) for pair in ends
        )


def view(texts: Iterable[tuple[str, str]]) -> View:
    """Return the view of (name, text) pairs, in their order."""
    names, parts, starts, length = list[str](), list[str](), list[int](), 0
    for name, text in texts:
        names.append(name)
        parts.append(plain(text))
        starts.append(length)
        length += len(parts[-1]) + 1
    joined = "\n".join(parts)
    digits = joined.translate(_HAN_DIGITS)
    places = tuple(place for place, letter in enumerate(digits) if letter.isalnum())
    letters = "".join([digits[place] for place in places])
    return View(tuple(names), tuple(starts), joined, digits, letters, places, tuple(units(joined)))
