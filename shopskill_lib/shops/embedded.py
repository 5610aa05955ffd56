"""The embedded shop: pages, actions and endings of reference 1.6-1.8 over a catalogue in memory.

One shop serves any number of sessions on any number of threads: it never changes after it is opened, and a
session is used by one thread at a time. There are no hidden queries, and clicks do not depend on letter case.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import get_args

from shopskill_lib.errors import ParameterError
from shopskill_lib.records import Ending, Feedback, Product, Purchase, RewardDetail, Task
from shopskill_lib.shops import pages
from shopskill_lib.shops.budget import BUDGET_VERSION
from shopskill_lib.shops.catalog import Catalogue
from shopskill_lib.shops.protocol import StepResult, refuse_ended
from shopskill_lib.shops.reward import REWARD_VERSION, resolve_price, score_nothing, score_purchase
from shopskill_lib.shops.search import SEARCH_VERSION, TOP_K, open_index
from shopskill_lib.text import key, tidy

_SEVERAL = re.compile(r"\]\s*(?:action\s*:\s*)?(?:search|click)\s*\[", re.IGNORECASE)
_ACTION = re.compile(r"(search|click)\s*\[(.*)\]", re.IGNORECASE)


class EmbeddedShop:
    """A shop over a catalogue in memory."""

    unscored = note = ""
    """Its rewards are M4's, and nothing about them varies."""

    def __init__(self, catalogue: Catalogue, cache: Path, *, action_limit: int = 30) -> None:
        """Open the shop.

        Args:
            catalogue: products and tasks.
            cache: folder for search indexes; one of the same content is used again.
            action_limit: actions of an episode, valid or not, after which it ends.
        """
        if action_limit < 1:
            raise ParameterError(
                f"action_limit is {action_limit}",
                where="action_limit",
                allowed="at least 1",
                todo="choose a positive limit (reference: 30)",
            )
        self.catalogue = catalogue
        self.action_limit = action_limit
        self._index = open_index(catalogue, cache)

    @property
    def fingerprint(self) -> Mapping[str, str | int]:
        """Everything about the shop that a result depends on, by name."""
        return {
            "catalogue": self.catalogue.products_fingerprint,
            "tasks": self.catalogue.tasks_fingerprint,
            "language": self.catalogue.language,
            "reward.version": REWARD_VERSION,
            "budget.version": BUDGET_VERSION,
            "search.version": SEARCH_VERSION,
            "observation.version": pages.OBSERVATION_VERSION,
            "search.top_k": TOP_K,
            "search.page_size": pages.PAGE_SIZE,
            "action_limit": self.action_limit,
        }

    def reset(self, task: Task) -> "EmbeddedSession":
        """Start an episode on its home page.

        Raises:
            InputError: the task's gold product is not in this catalogue.
        """
        self.inspect(task.gold_asin)
        return EmbeddedSession(self, task)

    def search(self, query: str) -> list[Product]:
        """Return the products that a query finds, best first, at most 150."""
        return [self.catalogue.products[asin] for asin in self._index.search(query)]

    def inspect(self, asin: str) -> Product:
        """Return a product by its id. Privileged: never offered to a policy (M11).

        Raises:
            InputError: the catalogue has no such product.
        """
        return self.catalogue.product(asin)

    def close(self) -> None:
        """Release nothing: the shop holds memory only."""


class EmbeddedSession:
    """One episode in an embedded shop."""

    def __init__(self, shop: EmbeddedShop, task: Task) -> None:
        self._shop, self._task, self._language = shop, task, shop.catalogue.language
        self._actions = 0
        self._query = ""
        self._ranking: list[Product] = []
        self._page = 1
        self._chosen: dict[str, str] = {}
        self._purchase: Purchase | None = None
        self._state = pages.home_state()
        self.current: StepResult = self._answer(None)

    def step(self, action: str) -> StepResult:
        """Carry out ``search[query]`` or ``click[value]``; what cannot be done is answered and counts.

        Raises:
            InputError: the episode has ended.
        """
        refuse_ended(self, self._task)
        self._actions += 1
        feedback = self._act(action.encode("utf-8", "replace").decode())
        self._state = {**self._state, "last_action": feedback}
        if self._purchase is not None:
            gold, bought = self._shop.inspect(self._task.gold_asin), self._shop.inspect(self._purchase.asin)
            self.current = self._answer(feedback, score_purchase(self._task, gold, bought, self._purchase))
        elif self._actions >= self._shop.action_limit:
            self.current = self._answer(feedback, score_nothing("action_limit"))
        else:
            self.current = self._answer(feedback)
        return self.current

    def end(self, reason: Ending) -> StepResult:
        """End the episode without a purchase, with reward 0 (M3); the page stays as it is.

        Raises:
            InputError: the episode has ended.
            ParameterError: the reason is none of M3's.
        """
        refuse_ended(self, self._task)
        if reason == "purchase" or reason not in get_args(Ending):
            raise ParameterError(
                f"the ending is {reason!r}",
                where="reason",
                allowed=", ".join(get_args(Ending)[1:]),
                todo="name one of them",
            )
        self.current = self._answer(None, score_nothing(reason))
        return self.current

    def close(self) -> None:
        """Leave nothing behind: a session holds memory only."""

    def _act(self, action: str) -> Feedback:
        """Carry the action out, turn to the page it leads to, and return what became of it."""
        verb, argument = parse_action(action)
        missing = None
        if verb == "search":
            reason = self._search(argument)
        elif verb == "click":
            reason = self._click(key(argument))
        else:
            reason = verb
        if reason == "incomplete_options":
            missing = self._state["missing_option_axes"]
        return pages.feedback(action, reason, self._language, missing)

    def _search(self, query: str) -> str:
        if not self._state["search_available"]:
            return "search_unavailable"
        self._query, self._ranking = query, self._shop.search(query)
        self._show_results(1)
        return "executed"

    def _click(self, wanted: str) -> str:
        """Follow a click on what has this comparison key; return the reason."""
        on_product = self._state["page_type"] == "product_detail"
        if on_product and wanted == key(pages.BUY) and self._state["missing_option_axes"]:
            return "incomplete_options"
        if on_product and wanted in {key(pages.option_label(*option)) for option in self._chosen.items()}:
            return "already_selected"
        label = next((label for label in self._state["actions"] if key(label) == wanted), None)
        if label is None:
            return "unavailable_action"
        self._follow(label, on_product)
        return "executed"

    def _follow(self, label: str, on_product: bool) -> None:
        """Turn to the page behind one of the current page's labels."""
        if label == pages.BACK:
            self._state = pages.home_state()
        elif label == pages.BUY:
            self._buy(self._shop.inspect(self._state["product"]["asin"]))
        elif label == pages.PREVIOUS:
            self._show_results(self._page if on_product else self._page - 1)
        elif label == pages.NEXT:
            self._show_results(self._page + 1)
        elif on_product:
            axis, value = next(
                (axis, value)
                for axis, values in self._state["available_options"].items()
                for value in values
                if pages.option_label(axis, value) == label
            )
            self._chosen[axis] = value
            self._show_product(self._state["product"]["asin"])
        else:
            self._show_product(label)

    def _show_results(self, page: int) -> None:
        self._page, self._chosen = page, {}
        self._state = pages.results_state(self._query, self._ranking, page)

    def _show_product(self, asin: str) -> None:
        product = self._shop.inspect(asin)
        self._state = pages.product_state(product, self._chosen, resolve_price(product, self._chosen))

    def _buy(self, product: Product) -> None:
        self._state = pages.terminal_state()
        self._purchase = Purchase(
            asin=product.asin,
            title=product.title,
            category=product.category,
            options=dict(self._chosen),
            price=resolve_price(product, self._chosen),
        )

    def _answer(self, feedback: Feedback | None, detail: RewardDetail | None = None) -> StepResult:
        return StepResult(
            observation_text=pages.render(self._state, self._language),
            state=self._state,
            feedback=feedback,
            done=detail is not None,
            reward=None if detail is None else detail.r_strict,
            reward_detail=detail,
            purchase=self._purchase,
            ending=None if detail is None else detail.termination_reason,
        )


def parse_action(action: str) -> tuple[str, str]:
    """Return the verb in lower case and its argument, or the reason why there is none and ``""`` (1.8).

    The argument reaches from the first bracket to the last one of a single line.
    """
    text = action.strip()
    if _SEVERAL.search(text):
        return "multiple_actions_not_allowed", ""
    if text.casefold() in ("search", "click"):
        return "empty_argument", ""
    match = _ACTION.fullmatch(text)
    if match is None:
        return "invalid_format", ""
    return (match[1].casefold(), match[2]) if tidy(match[2]) else ("empty_argument", "")
