"""How the simulated shopper reads what it is sent: the request, the persona, the hints and the pages.

Nothing here knows a shop: a page is its text, in either language, and the words of the request are words.
"""

import json
import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, NamedTuple

from shopskill_lib.shops.budget import price_upper
from shopskill_lib.text import key, tokens

Words = frozenset[str]
"""Search tokens of a phrase or of a product."""

_SPLIT = re.compile(r"[,，、。;；:：!！?？\n]|\.(?!\d)")
_MONEY = re.compile(r"[$¥￥]|\d\s*(?:元|块)|价格|价位|预算|价钱|\b(?:budget|price|cost|dollars|bucks)\b", re.IGNORECASE)
_LEADING = re.compile(
    r"^(?:(?:i|am|looking|for|this|please|find|me|a|an|good|one|of|these|need|want|the|following|it|should|be|is"
    r"|what|matters|to|my|choose|variant|has|have|buy|would|like|that|with)\b[\s'’]*)+"
    r"|^(?:我?想买一?[款件个双]?|帮我找一?[款件个双]?|求?推荐一?[款件个双]?|我?需要满足|我?需要|要求|规格选"
    r"|有没有|请问|找找|想要|要)+",
    re.IGNORECASE,
)
_TRAILING = re.compile(r"的?那一款$|的$")
_HINT = re.compile(r"<hint\b[^>\n]*>")
_AMOUNT = re.compile(r"\d+(?:\.\d+)?")
_RESULT = re.compile(r"^\d+\. (.*)\n((?: {3}\S.*\n?)+)", re.MULTILINE)
_FIELD = re.compile(r"^\s*(?:- )?([^:：]{1,24})(?:: |：)(.*)$", re.MULTILINE)
_AXIS = re.compile(r"^- ([^\n]+?)(?:: |：)([^\n]*)\n  (?:values|可选值)(?:: |：)([^\n]*)", re.MULTILINE)
_UNSET = ("not chosen", "未选")
_PRODUCT_PAGE = re.compile(r"\A(?:Product page|商品详情)\n")
_RESULTS_PAGE = re.compile(r"\A(?:Search results|搜索结果)\n")

_NAMES = {
    "id": "id", "编号": "id", "price": "price", "价格": "price", "category": "category", "类目": "category",
    "attributes": "attributes", "属性": "attributes", "title": "title", "标题": "title",
    "price of the selection": "selected", "所选规格价格": "selected",
}  # fmt: skip


class Phrase(NamedTuple):
    """One thing that the request asks for, or that the persona tells."""

    text: str
    """As written; the name of the preference in a persona."""
    words: Words
    """Never empty."""


class Request(NamedTuple):
    """What the customer wrote."""

    phrases: tuple[Phrase, ...]
    """Things asked for, in order; the first names the kind of product."""
    limit: float | None
    """Highest price; None without one."""


class Item(NamedTuple):
    """A product as a page shows it."""

    asin: str
    words: Words
    """Words of title, category and attributes."""
    low: float | None
    """Lowest price shown; None where none is."""


class Axis(NamedTuple):
    """One option axis of a product page."""

    name: str
    values: tuple[str, ...]
    """In the page's order, but for a chosen one that is not the first: that comes last."""
    chosen: str | None


class Page(NamedTuple):
    """A page as far as its text tells."""

    items: tuple[Item, ...]
    """Products of a page of results; the one product of a product page; empty on any other page."""
    is_product: bool
    axes: tuple[Axis, ...] = ()
    price: float | None = None
    """Price of the selection; None while the page gives none."""


OTHER_PAGE = Page((), False)


@lru_cache(maxsize=1024)
def read_request(message: str) -> Request:
    """Return what the first user message asks for: the text between its request tags, else all of it."""
    start, end = message.find("<request>"), message.rfind("</request>")
    text = message[start + len("<request>") : end] if 0 <= start < end else message
    phrases: list[Phrase] = []
    for piece in _SPLIT.split(text):
        if _MONEY.search(piece):
            continue
        plain = _TRAILING.sub("", _LEADING.sub("", piece.strip())).strip()
        words = frozenset(tokens(plain))
        if words:
            phrases.append(Phrase(plain, words))
    language: Any = "zh" if re.search("[\u4e00-\u9fff]", text) else "en"
    return Request(tuple(phrases), price_upper((text,), language))


@lru_cache(maxsize=1024)
def read_system(message: str) -> tuple[str, tuple[Phrase, ...]]:
    """Return the hints of a system message without their tags, and what the persona tells, by name.

    The persona is the JSON object after the first ``<persona>`` that stands before the hints; a chunk may hold
    tags of any kind without ending the hints, which reach to the last closing tag.
    """
    opening = _HINT.search(message)
    start = opening.start() if opening else len(message)
    end = max(message.rfind("</hint>"), start)
    skill = _HINT.sub("\n", message[start:end]).replace("</hint>", "\n")
    told = _pairs(_json_after(message[:start], "<persona>"))
    return skill, tuple(Phrase(name, frozenset(tokens(value))) for name, value in told if tokens(value))


def _json_after(text: str, tag: str) -> Any:
    place = text.find("{", text.find(tag)) if tag in text else -1
    if place < 0:
        return None
    try:
        return json.JSONDecoder().raw_decode(text, place)[0]
    except ValueError:
        return None


def _pairs(value: Any) -> list[tuple[str, str]]:
    """Return the named texts of a nested object; lists (such as recent searches) are no evidence of a wish."""
    if not isinstance(value, Mapping):
        return []
    found = [(str(name), child) for name, child in value.items() if isinstance(child, str)]
    nested = [pair for child in value.values() for pair in _pairs(child)]
    return found + nested


@lru_cache(maxsize=1024)
def read_page(text: str) -> Page:
    """Return what a page shows; ``OTHER_PAGE`` for a text that shows no products."""
    if _PRODUCT_PAGE.match(text):
        head, _, options = text.partition("\n\n")
        fields = _fields(head)
        labels = [line[2:] for line in options.rpartition("\n\n")[2].splitlines() if line.startswith("- ")]
        axes = tuple(
            _axis(match[1], match[2], match[3], labels) for match in _AXIS.finditer(options.split("\n\n", 1)[0])
        )
        return Page((read_item(fields),), True, axes, amount(fields.get("selected", "")))
    if _RESULTS_PAGE.match(text):
        entries = ({"title": match[1], **_fields(match[2])} for match in _RESULT.finditer(text))
        return Page(tuple(read_item(fields) for fields in entries if "id" in fields), False)
    return OTHER_PAGE


def _axis(name: str, chosen: str, listed: str, labels: list[str]) -> Axis:
    """Return an axis; its values are what the labels offer, and the chosen one, which none does."""
    values = [label[len(name) + 1 :] for label in labels if label.startswith(f"{name}=")]
    if chosen in _UNSET:
        return Axis(name, tuple(values), None)
    first = listed == chosen or listed.startswith(f"{chosen} / ")
    return Axis(name, (chosen, *values) if first else (*values, chosen), chosen)


def _fields(block: str) -> dict[str, str]:
    pairs = ((match[1].strip(), match[2].strip()) for match in _FIELD.finditer(block))
    return {_NAMES[name]: value for name, value in pairs if name in _NAMES}


def read_item(fields: Mapping[str, str]) -> Item:
    """Return the product that named fields of a page tell: id, price, title, category and attributes."""
    shown = " ".join(fields.get(name, "") for name in ("title", "category", "attributes"))
    return Item(fields.get("id", ""), frozenset(tokens(shown)), amount(fields.get("price", "")))


def amount(text: str) -> float | None:
    """Return the first number of a text; None without one."""
    match = _AMOUNT.search(text)
    return float(match[0]) if match else None


def named_value(phrase: Phrase, axis: str, values: tuple[str, ...]) -> str | None:
    """Return the value that a phrase names on an axis: ``""`` when it names the axis but none of the values.

    None when it speaks of something else.
    """
    about = set(tokens(axis)) <= phrase.words and key(axis) in key(phrase.text)
    found = [value for value in values if set(tokens(value)) <= phrase.words]
    if found and (about or len(key(max(found, key=len))) > 1):
        return max(found, key=len)
    return "" if about else None
