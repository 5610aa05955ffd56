"""How the simulated author reads trajectories recorded in another shop: its pages and its tools.

The forms are those of environment ``shopsimulator-environment-v2.1`` and of pages joined by ``[SEP]``, which do not
show what was chosen. What is read is the same as of our own pages; the shopper meets no such page.
"""

import re
from collections.abc import Sequence

from shopskill_lib.files import json_object
from shopskill_lib.shops.separated import SeparatedPage, read_separated
from shopskill_lib.simulated import reading
from shopskill_lib.simulated.decisions import BACK, BUY, NEXT, PREVIOUS
from shopskill_lib.simulated.reading import OTHER_PAGE, Axis, Page, Request, amount, read_item
from shopskill_lib.text import tokens

MARK = "[SHOPPING_OBSERVATION_V2]\n"
"""What a recorded page begins with."""

_FIELD = re.compile(r"^([a-z_]+): (.*)$", re.MULTILINE)
_ROW = re.compile(r"^\d+(?:\|[^|\n]*){5}\|.*$", re.MULTILINE)
_COLUMNS = ("rank", "id", "price", "brand", "category", "attributes", "title")
_TOOL = re.compile(r"([a-z_]+)(?:\[(.*)\])?", re.DOTALL)
_LABELS = {"back_to_search": BACK, "prev_page": PREVIOUS, "next_page": NEXT, "buy_now": BUY}
_SUBPAGE = "information_subpage"


def is_recorded(text: str) -> bool:
    """Tell whether a page has one of the forms of other shops."""
    return text.startswith(MARK) or read_separated(text) is not None


def read_page(text: str) -> Page:
    """Return what a page of any form shows; a subpage about a product shows the product where it names it."""
    if not text.startswith(MARK):
        separated = read_separated(text)
        return reading.read_page(text) if separated is None else _separated(separated)
    told = dict(_FIELD.findall(text))
    if told.get("page_type") == "search_results":
        rows = (dict(zip(_COLUMNS, row.split("|", 6), strict=True)) for row in _ROW.findall(text))
        return Page(tuple(read_item(row) for row in rows), False)
    if told.get("page_type") not in ("product_detail", _SUBPAGE) or "asin" not in told:
        return OTHER_PAGE
    shown = {**told, "id": told["asin"], "attributes": told.get("key_attributes", "")}
    price = told.get("price", "")
    return Page((read_item(shown),), True, _axes(told), None if " to " in price else amount(price))


def _separated(page: SeparatedPage) -> Page:
    """Return what a page of text nodes shows: results, or one product without its id."""
    if page.kind == "search_results":
        rows = ({"id": row.asin, "title": row.title, "price": row.price} for row in page.listed)
        return Page(tuple(map(read_item, rows)), False)
    if page.kind != "product_detail":
        return OTHER_PAGE
    axes = tuple(Axis(axis, values, None) for axis, values in page.options.items())
    item = read_item({"title": page.title, "price": page.price})
    return Page((item,), True, axes, None if " to " in page.price else amount(page.price))


def _axes(told: dict[str, str]) -> tuple[Axis, ...]:
    """Return the axes of a page; () where its JSON was cut off or is of another form."""
    offered, chosen = (json_object(told.get(f"{name}_options", "")) for name in ("available", "selected"))
    return tuple(
        Axis(axis, tuple(map(str, values)), str(chosen[axis]) if axis in chosen else None)
        for axis, values in offered.items()
        if isinstance(values, list)
    )


def read_action(action: str, text: str, page: Page) -> tuple[str, str] | None:
    """Return a call of a recorded tool, or an action on a page of text nodes, as verb and argument of our shop.

    None for any other text. The action is one as ``adapters.react.named_action`` writes it, `text` and `page` are what
    it was made on, as written and as read.
    """
    match = _TOOL.fullmatch(action) if action else None
    if match is None:
        return None
    tool, argument = match[1], match[2] or ""
    if tool in ("search_products", "search"):
        return "search", argument
    if tool == "click":
        listed = {item.asin.lower(): item.asin for item in page.items}
        argument = listed.get(argument.strip().lower(), argument.strip().lower())
    if tool in ("select_option", "click"):
        axis = next((axis for axis in page.axes if argument in axis.values), None)
        return "click", argument if axis is None else f"{axis.name}={argument}"
    within = tool == "prev_page" and f"\npage_type: {_SUBPAGE}\n" in text
    return "click", argument if tool == "open_product" else tool if within else _LABELS.get(tool, tool)


def spoken(request: Request, pages: Sequence[Page]) -> Request:
    """Return a request in everyday words as far as the pages have words for it: the rest is how people talk."""
    items = [item.words for page in pages for item in page.items]
    values = [tokens(value) for page in pages for axis in page.axes for value in axis.values]
    shown = frozenset().union(*items, *values)
    kept = (phrase._replace(words=phrase.words & shown) for phrase in request.phrases)
    return request._replace(phrases=tuple(phrase for phrase in kept if phrase.words))
