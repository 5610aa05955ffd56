"""What the simulated shopper does at a turn, drawn against its competences.

Each decision is drawn once an episode. A draw mixes what the request makes of it, the same in every rollout of
a task, with noise by the seed, in the share that the temperature gives: rollouts of one task differ less than
tasks do, and two treatments decide alike where the skill says nothing.

Price check and backtracking interact: a check that finds the variant too dear gains little unless the shopper
then leaves the product, and leaving gains less where no price is checked. The other competences act on stages
of their own: the query, the reading of results, the options, the end.
"""

import hashlib
import math
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import NamedTuple

from shopskill_lib.simulated.competences import Competences
from shopskill_lib.simulated.reading import Axis, Item, Page, Phrase, Request, named_value
from shopskill_lib.text import key, tokens

NOISE = 0.6
"""Weight of the seed's noise at temperature 1, beside 1 for the request."""

SLIPS = 0.003
"""Share of answers in words without a call, and again of clicks on something that the page does not offer."""

GLANCE = 3
"""Results that a shopper reads who does not read the whole page."""

LOOKS = 2
"""Products opened a query because the last one did not fit, at most; and three times that because of a price."""

LATE = 22
"""Turns after which a shopper who stops in time takes what there is."""

BUY, BACK, PREVIOUS, NEXT = "buy now", "back to search", "< prev", "next >"


class Call(NamedTuple):
    """What the shopper does."""

    name: str
    """``search``, ``click``, or ``""`` for an answer in words."""
    argument: str


@dataclass(frozen=True)
class Draws:
    """The decisions of one episode as uniform numbers."""

    task: str
    """What the request's part of a draw depends on."""
    call: str | None
    """What the noise depends on; None at temperature 0."""
    noise: float
    """Weight of the noise beside 1 for the request's part."""

    def uniform(self, decision: str) -> float:
        """Return the number in (0, 1) of a decision, the same whenever it is asked for."""
        value = _normal(f"{self.task}|{decision}")
        if self.call is not None:
            own = _normal(f"{self.call}|{self.task}|{decision}")
            value = (value + self.noise * own) / math.hypot(1, self.noise)
        return 0.5 * (1 + math.erf(value / math.sqrt(2)))


@lru_cache(maxsize=65_536)
def _normal(text: str) -> float:
    """Return a standard normal number that a text stands for (Box-Muller on its hash)."""
    digest = hashlib.blake2b(text.encode("utf-8", "replace"), digest_size=16).digest()
    first, second = (int.from_bytes(half, "big") / 2**64 for half in (digest[:8], digest[8:]))
    return math.sqrt(-2 * math.log(1 - first)) * math.cos(2 * math.pi * second)


@dataclass(frozen=True)
class View:
    """Everything that the shopper knows at one turn."""

    request: Request
    persona: tuple[Phrase, ...]
    """What is known of the customer: the name of a preference and the words of its value."""
    skill: Competences
    pages: tuple[Page, ...]
    """Pages with products in the history, oldest first."""
    turns: int
    """Own answers so far."""
    searches: int
    """Searches among them."""
    actions: tuple[str, ...]
    """Labels that can be clicked now."""
    may_search: bool
    draws: Draws

    def does(self, competence: str, occasion: str = "") -> bool:
        """Tell whether the shopper does a thing well on an occasion."""
        level: float = getattr(self.skill, competence)
        return self.draws.uniform(f"{competence}|{occasion}") < level

    @cached_property
    def opened(self) -> dict[str, int]:
        """Ids of the products looked at -> how often they were opened."""
        found: dict[str, int] = {}
        for before, page in zip((None, *self.pages), self.pages, strict=False):
            if page.is_product:
                asin = page.items[0].asin
                found[asin] = found.get(asin, 0) + (before is None or not before.is_product)
        return found

    @cached_property
    def hurried(self) -> bool:
        """Whether it is late and the shopper minds."""
        return self.turns >= LATE and not self.patience

    @cached_property
    def patience(self) -> int:
        """Products that the shopper opens although the last would do: 0 for one who stops in time."""
        excess = self.draws.uniform("stop") - self.skill.stop
        if excess < 0:
            return 0
        return 3 if excess < (1 - self.skill.stop) / 2 else 99

    @cached_property
    def too_dear(self) -> float:
        """Lowest listed price of a product whose wanted variant was found to be beyond the limit."""
        if not self.does("price"):
            return math.inf
        over = [page.items[0].low for page in self.pages if page.is_product and is_over(self, page)]
        return min((0.98 * low for low in over if low is not None), default=math.inf)

    @cached_property
    def wishes(self) -> tuple[Phrase, ...]:
        """What the persona wishes, if the shopper goes by it."""
        return self.persona if self.does("persona") else ()


def decide(view: View) -> Call:
    """Return what the shopper does at a turn; its rare slips included."""
    slip = view.draws.uniform(f"slip|{view.turns}")
    if slip < SLIPS:
        return Call("", "Let me look at this page once more before I go on.")
    if view.may_search:
        return Call("search", _query(view))
    if slip > 1 - SLIPS:
        return Call("click", "add to cart")
    page = view.pages[-1] if view.pages else Page((), False)
    label = _on_product(view, page) if page.is_product else _on_results(view, page)
    return Call("click", label if label in view.actions else view.actions[-1])


def _query(view: View) -> str:
    """Return the words to search for: all that is asked, or the kind of product and, later on, one thing more."""
    phrases = [phrase.text for phrase in view.request.phrases] or ["product"]
    if not view.does("query", str(view.searches)):
        return " ".join(phrases[: 1 + view.searches])
    return " ".join([*phrases, *_told(view)])


def _told(view: View) -> list[str]:
    """Return the persona's wishes that products seen so far can meet."""
    shown = [item.words for page in view.pages for item in page.items]
    return [" ".join(sorted(wish.words)) for wish in view.wishes if any(wish.words <= words for words in shown)]


def _fit(view: View, item: Item) -> float:
    """Return how much of what is wanted a product has, as far as its line among the results tells."""
    phrases = view.request.phrases
    met = sum(phrase.words <= item.words for phrase in phrases)
    partly = sum(len(phrase.words & item.words) / len(phrase.words) for phrase in phrases)
    wished = sum(wish.words <= item.words for wish in view.wishes)
    limit = view.request.limit
    dear = limit is not None and item.low is not None and item.low > min(limit, view.too_dear)
    return met + 0.5 * partly + wished - 1.5 * dear


def _on_results(view: View, page: Page) -> str:
    """Return the product to open next, or the way to others."""
    items = page.items if view.does("compare") else page.items[:GLANCE]
    fresh = [item for item in items if item.asin not in view.opened]
    known = [item for item in items if item.asin in view.opened]
    if known and not view.patience and (view.hurried or not _looks_left(view)):
        return max(known, key=lambda item: _known_fit(view, item)).asin
    if fresh:
        return max(fresh, key=lambda item: _fit(view, item)).asin
    if NEXT in view.actions and not view.hurried:
        return NEXT
    return known[0].asin if known else BACK


def _looks_left(view: View) -> bool:
    """Tell whether a further product may be opened: more of them when the last was left for its price."""
    last = next((page for page in reversed(view.pages) if page.is_product), None)
    too_dear = last is not None and is_over(view, last)
    return len(view.opened) < LOOKS * (3 if too_dear else view.searches)


def _known_fit(view: View, item: Item) -> float:
    """Return the fit of a product that was opened: what it turned out to lack counts as well."""
    seen = [page for page in view.pages if page.is_product and page.items[0].asin == item.asin]
    return _fit(view, item) - len(flaws(view, seen[-1])) - 2 * is_over(view, seen[-1])


def is_over(view: View, page: Page) -> bool:
    """Tell whether all options are chosen and the price of the selection is beyond the limit."""
    limit = view.request.limit
    done = all(axis.chosen is not None for axis in page.axes)
    return done and limit is not None and page.price is not None and page.price > limit


def wanted_value(view: View, page: Page, axis: Axis) -> str | None:
    """Return the value that is wanted on an axis; ``""`` if it is not offered, None if none is wanted.

    The request comes first; what it leaves open the persona may tell.
    """
    words = page.items[0].words
    for phrase in view.request.phrases:
        value = None if phrase.words <= words else named_value(phrase, axis.name, axis.values)
        if value is not None:
            return value
    for wish in view.wishes:
        if key(wish.text) == key(axis.name):
            return next((value for value in axis.values if frozenset(tokens(value)) == wish.words), "")
    return None


def flaws(view: View, page: Page) -> list[str]:
    """Return what a product lacks, as far as its page tells: option values and attributes."""
    lacking = [axis.name for axis in page.axes if wanted_value(view, page, axis) == ""]
    words = page.items[0].words
    unmet = [
        phrase.text
        for phrase in view.request.phrases
        if not phrase.words <= words and all(named_value(phrase, axis.name, axis.values) is None for axis in page.axes)
    ]
    return lacking + unmet


def _on_product(view: View, page: Page) -> str:
    """Return the next click on a product's page: away from it, an option, or to buy."""
    missing = [axis for axis in page.axes if axis.chosen is None]
    first_look = view.opened[page.items[0].asin] == 1 and len(missing) == len(page.axes)
    if first_look and not view.hurried and not view.patience:
        away = _away(view, page)
        if away:
            return away
    if missing:
        return f"{missing[0].name}={_choose(view, page, missing[0])}"
    return _after_choosing(view, page)


def _away(view: View, page: Page) -> str:
    """Return the way to another product when this one lacks something; ``""`` to make do with it."""
    if not flaws(view, page):
        return ""
    compares = view.does("compare")
    if compares and _looks_left(view):
        return PREVIOUS
    if view.searches < 2 and view.does("backtrack", "query"):
        return BACK
    own = _known_fit(view, page.items[0])
    others = [_known_fit(view, seen.items[0]) for seen in view.pages if seen.is_product]
    return PREVIOUS if compares and max(others) > own else ""


def _choose(view: View, page: Page, axis: Axis) -> str:
    """Return the value to choose: the wanted one unless the shopper is careless, any where none is wanted."""
    wanted = wanted_value(view, page, axis)
    if wanted and view.does("exact", axis.name):
        return wanted
    values = [value for value in axis.values if value != wanted] or list(axis.values)
    return values[int(view.draws.uniform(f"value|{axis.name}") * len(values))] if values else ""


def _after_choosing(view: View, page: Page) -> str:
    """Return a cheaper option, the way back, or to buy, once all options are chosen."""
    if is_over(view, page) and view.does("price"):
        for axis in page.axes:
            if axis.chosen != axis.values[0] and wanted_value(view, page, axis) is None:
                return f"{axis.name}={axis.values[0]}"
        if _looks_left(view) and not view.hurried and view.does("backtrack", "price"):
            return PREVIOUS
    return PREVIOUS if len(view.opened) <= view.patience else BUY
