"""Pages as text nodes joined by ``[SEP]``, as the original ShopSimulator, its fork and WebShop send them.

What such a text shows is read by its layout (shopsimulator_http.md, section 4); the footer stands in either language.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

Kind = Literal["search_home", "search_results", "product_detail", "information_subpage", "terminal"]

_FOOTER = re.compile(
    r"\n\s*(?:搜索功能是否可用|Search function available)\s*[:：]\s*(?:True|False)\b"
    r"\s*(?:可点击的按钮|Clickable buttons)\s*[:：]\s*"
)
_ROUND = re.compile(r"\n轮次[:：]\s*\d+\s*\n.*\Z", re.DOTALL)
"""What the client of the several-turn setting puts below every page."""

_REQUEST = re.compile(r"(?:Env:\s*)?Instruction:\s*(.*)", re.DOTALL)
_SHOPPER = re.compile(r"Shopper:\s*(.*)", re.DOTALL)
_POSITION = re.compile(r"Page \d+(?: of \d+)? \(Total results: \d+\)")
_PRICE = re.compile(r"(?:价格|Price)\s*[:：]\s*(.*)")
_SHOP = re.compile(r"店铺\s*[:：]\s*(.*)")
_AMOUNT = re.compile(r"[$¥￥]?\d")
_THANKS = "Thank you for shopping"


class Listed(NamedTuple):
    """A product on a page of results."""

    asin: str
    title: str
    price: str
    """As shown: one price or ``low to high``."""


@dataclass(frozen=True, slots=True)
class SeparatedPage:
    """What one page shows.

    Attributes:
        request: the task that heads every page; "" where none does.
        buttons: what can be clicked, as the footer lists it; None without a footer.
        listed: products of a page of results.
        title: of the product; "" on other pages, like `price` and `shop`.
        price: as shown.
        shop: name of the selling shop; "" where the page has none.
        options: axis -> values in the page's order; empty without a footer, which alone tells the two apart.
    """

    kind: Kind
    request: str
    buttons: tuple[str, ...] | None
    listed: tuple[Listed, ...] = ()
    title: str = ""
    price: str = ""
    shop: str = ""
    options: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


def read_separated(text: str) -> SeparatedPage | None:
    """Return what a page shows; None for a text of another form."""
    if "[SEP]" not in text:
        return None
    body, buttons = split_footer(text)
    nodes = [node.strip() for node in body.split("[SEP]")]
    if any(node.startswith(_THANKS) for node in nodes):
        return SeparatedPage("terminal", "", buttons)
    head = next((place for place, node in enumerate(nodes[:-1]) if node.endswith("Instruction:")), None)
    if head is None:
        return None
    request, rest = nodes[head + 1], nodes[head + 2 :]
    if rest[:1] == ["Search"]:
        return SeparatedPage("search_home", request, buttons)
    place = next((place for place, node in enumerate(rest) if _POSITION.fullmatch(node)), None)
    if place is not None:
        return SeparatedPage("search_results", request, buttons, listed=_listed(rest[place + 1 :]))
    place = next((place for place, node in enumerate(rest) if _PRICE.fullmatch(node)), None)
    if place:
        return _product(request, rest[:place], rest[place:], buttons)
    return SeparatedPage("information_subpage", request, buttons) if "< Prev" in rest else None


def split_footer(text: str) -> tuple[str, tuple[str, ...] | None]:
    """Return a page without its footer, and the buttons that it lists; None where it has none that can be read."""
    match = _FOOTER.search(text)
    if match is None:
        return _ROUND.sub("", text), None
    try:
        buttons = json.JSONDecoder().raw_decode(text, match.end())[0]
    except (ValueError, RecursionError):
        return text[: match.start()], None
    known = isinstance(buttons, list) and all(isinstance(button, str) for button in buttons)
    return text[: match.start()], tuple(buttons) if known else None


def tells_request(text: str) -> bool:
    """Tell whether a message heads a request as such: ``Instruction:``, or ``Shopper:`` at its start."""
    return "Instruction:" in text or text.lstrip().startswith("Shopper:")


def request_of(text: str) -> str:
    """Return the task that a first message tells: of its page, or below ``Instruction:`` or ``Shopper:``, else all."""
    page = read_separated(text)
    if page is not None and page.request:
        return page.request
    body = split_footer(text)[0].strip()
    match = _REQUEST.fullmatch(body) or _SHOPPER.fullmatch(body)
    return match[1].strip() if match else body


def _listed(nodes: Sequence[str]) -> tuple[Listed, ...]:
    """Return the products below the head of a page of results, up to the first that is not told in three nodes."""
    rows = [node for node in nodes if node not in ("Next >", "< Prev") and not node.startswith("Query: ")]
    found = []
    for start in range(0, len(rows) - 2, 3):
        row = Listed(*rows[start : start + 3])
        if not _AMOUNT.match(row.price) or not row.asin.isalnum():
            break
        found.append(row)
    return tuple(found)


def _product(
    request: str, above: Sequence[str], below: Sequence[str], buttons: tuple[str, ...] | None
) -> SeparatedPage:
    """Return a product's page: options and title stand above its price, the shop below."""
    nodes = [node for node in above if node not in ("Back to Search", "< Prev")]
    title = nodes[-1] if nodes else ""
    price, shop = _PRICE.fullmatch(below[0]), next(filter(None, map(_SHOP.fullmatch, below)), None)
    return SeparatedPage(
        "product_detail",
        request,
        buttons,
        title=title,
        price=price[1] if price else "",
        shop=shop[1] if shop else "",
        options=_options(nodes[:-1], buttons or ()),
    )


def _options(nodes: Sequence[str], buttons: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Return the axes with their values: a value is a button, an axis is none."""
    found: dict[str, tuple[str, ...]] = {}
    axis = None
    for node in nodes:
        if node.lower() in buttons:
            if axis is not None:
                found[axis] = (*found[axis], node)
        elif buttons:
            axis = node
            found[axis] = ()
    return {axis: values for axis, values in found.items() if values}
