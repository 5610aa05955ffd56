"""What a conversation in OpenAI's form tells of its episode: request, pages and actions, ending, purchase.

Actions are tool calls or, where no message makes any, lines of visible text (`react`). A conversation with neither is
kept, and tells no turns.
"""

import json
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from shopskill_lib.adapters.calls import Message, content, exchanges, has_calls
from shopskill_lib.adapters.react import action_in, labels
from shopskill_lib.records import PriceResolution, Purchase
from shopskill_lib.shops.embedded import parse_action
from shopskill_lib.shops.pages import BUY as BUY_LABEL
from shopskill_lib.shops.separated import SeparatedPage, read_separated, request_of, tells_request
from shopskill_lib.trajectories import DETAIL, LEAVE, Turn

BUY = "buy_now"
"""Tool that ends a recorded episode with an order."""

NO_ACTION = "no_action"
"""Fault of a reply in text that names no action."""

_COMPLETED = re.compile(
    r"购买已完成|购买成功|\bpurchase (?:is )?complete|page_type: terminal|Thank you for shopping", re.IGNORECASE
)
"""What a shop answers to a purchase that was made."""


class Told(NamedTuple):
    """What a conversation tells; None for what it does not."""

    instruction: str | None
    turns: tuple[Turn, ...] | None
    ending: str | None
    purchase: Purchase | None


def told(messages: Sequence[Message], where: str) -> Told:
    """Read a conversation whose messages have been checked (`calls.checked`).

    Raises:
        InputError: calls and answers that do not belong together.
    """
    instruction = _instruction(messages, where)
    if has_calls(messages):
        turns, last = _called(messages, where)
    else:
        turns, last = _written(messages, where)
    if not turns:
        return Told(instruction, None, None, None)
    ending = _ending(turns[-1], last)
    return Told(instruction, turns, ending, bought(turns) if ending == "purchase" else None)


def bought(turns: Sequence[Turn]) -> Purchase | None:
    """Return what was bought, read from the last product page; None where none says it."""
    for place in reversed(range(len(turns))):
        page = read_separated(turns[place].page)
        if page is not None and page.kind == "product_detail":
            return _bought_there(turns, place, page)
        if re.search("^asin: ", turns[place].page, re.MULTILINE):
            return _bought_of_lines(turns[place].page)
    return None


def _instruction(messages: Sequence[Message], where: str) -> str | None:
    """Return the request: what the first user message tells that shows one, else all of the first."""
    said = [content(message, where) for message in messages if message["role"] == "user"]
    first = next(filter(tells_request, said), said[0] if said else "")
    return request_of(first) or None


def _called(messages: Sequence[Message], where: str) -> tuple[tuple[Turn, ...], str | None]:
    """Return every call as a turn, the answer before it as its page; and what answers the last one."""
    made = exchanges(messages, where)
    pages = ["", *(call.answer or "" for call in made)]
    turns = tuple(
        Turn(step=step, page=page, action=call.action, fault=call.fault)
        for step, (call, page) in enumerate(zip(made, pages, strict=False), 1)
    )
    return turns, made[-1].answer


def _written(messages: Sequence[Message], where: str) -> tuple[tuple[Turn, ...], str | None]:
    """Return every reply as a turn, what stands before it as its page; and what follows the last one.

    Replies before the first page that shows a request are part of the prompt. Without any action there is no turn,
    nor where a reply names several: which of them was carried out is not told.
    """
    asked = (n for n, one in enumerate(messages) if one["role"] == "user" and tells_request(content(one, where)))
    start = next(asked, 0)
    turns: list[Turn] = []
    pages: list[str] = []
    for message in messages[start:]:
        text = content(message, where)
        if message["role"] != "assistant":
            pages += [text] if message["role"] in ("user", "tool") else []
            continue
        if labels(text) > 1:
            return (), None
        action, page = action_in(text), "\n".join(pages)
        turns.append(Turn(step=len(turns) + 1, page=page, action=action, fault=None if action else NO_ACTION))
        pages = []
    acted = any(turn.action is not None for turn in turns)
    return (tuple(turns) if acted else ()), ("\n".join(pages) or None)


def _ending(last: Turn, answer: str | None) -> str | None:
    """Return how an episode ended: an order counts if the shop confirms it, or if its page offers it and none follows.

    None for any other end.
    """
    action = (last.action or "").strip()
    if action.partition("[")[0] == LEAVE:
        return LEAVE
    if action != BUY and _clicked(last).casefold() != BUY_LABEL:
        return None
    confirmed = BUY_LABEL in last.page.casefold() if answer is None else _COMPLETED.search(answer)
    return "purchase" if confirmed else None


def _bought_of_lines(page: str) -> Purchase | None:
    """Read a product page of environment ``shopsimulator-environment-v2.1``."""
    shown = dict(DETAIL.findall(page))
    try:
        options = json.loads(shown.get("selected_options", "{}"))
    except (ValueError, RecursionError):
        return None
    if not {"asin", "title"} <= shown.keys() or not isinstance(options, dict):
        return None
    return _purchase(shown["asin"], shown["title"], options, shown.get("price", ""), shown.get("category", ""))


def _bought_there(turns: Sequence[Turn], place: int, page: SeparatedPage) -> Purchase | None:
    """Read the last page of ``[SEP]`` nodes with the clicks that led there: the product, then its options.

    None where the axis of a clicked value is not told.
    """
    opened, asin = next(((n, name) for n in reversed(range(place)) if (name := opens(turns[n]))), (0, ""))
    axes = {value.casefold(): axis for axis, values in page.options.items() for value in values}
    chosen: dict[str, str] = {}
    for turn in turns[opened + 1 : place + 1]:
        shown, click = read_separated(turn.page), _clicked(turn)
        if shown is None or shown.kind != "product_detail" or not click or click.casefold() in _BUTTONS:
            continue
        if click.casefold() not in axes:
            return None
        chosen[axes[click.casefold()]] = click
    return _purchase(asin, page.title, chosen, page.price.lstrip("$¥￥"), "") if asin and page.title else None


_BUTTONS = ("back to search", "< prev", "description", "features", "reviews", "attributes", BUY_LABEL)


def opens(turn: Turn) -> str:
    """Return the product that a turn opens from a page of ``[SEP]`` nodes; "" for any other turn."""
    page, click = read_separated(turn.page), _clicked(turn).casefold()
    listed = () if page is None else page.listed
    return next((row.asin for row in listed if row.asin.casefold() == click), "")


def _clicked(turn: Turn) -> str:
    """Return what a turn clicks; "" where it does something else."""
    verb, argument = parse_action(turn.action or "")
    return argument.strip() if verb == "click" else ""


def _purchase(asin: str, title: str, options: dict[str, Any], price: str, category: str) -> Purchase:
    """Return a purchase at the one price that its page shows; of a range it cannot be told."""
    amount = float(price) if re.fullmatch(r"\d+(\.\d+)?", price) else None
    return Purchase(
        asin=asin,
        title=title,
        category=category,
        options={str(axis): str(value) for axis, value in options.items()},
        price=PriceResolution.of("price of the last recorded product page", amount),
    )
