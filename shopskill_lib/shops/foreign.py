"""What foreign ShopSimulator servers understand and show, in the terms of our own shop.

A dialect turns our actions into theirs, without the doors that their parsers leave open, and their pages into ours:
v8 speaks as we do, fork v2.1 sends states of another kind, the original sends text alone.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any, Literal, NamedTuple, Protocol

from shopskill_lib.records import Feedback, Language, ListedProduct, ObservationState, Task
from shopskill_lib.shops import outcomes, pages
from shopskill_lib.shops.embedded import parse_action
from shopskill_lib.shops.outcomes import NoAnswerError, Outcome
from shopskill_lib.shops.separated import read_separated, split_footer
from shopskill_lib.text import key, tidy

Json = dict[str, Any]
Generation = Literal["v8", "fork", "original"]

_STATE = frozenset(ObservationState.__annotations__)
_MARKS = str.maketrans(dict.fromkeys("<>[]\\＜＞［］＼", " "))
_SEPARATOR = " [SEP] "
_INSTRUCTION = re.compile(r"\s*Instruction:\s*", re.IGNORECASE)


class Page(NamedTuple):
    """A page as an agent is shown it."""

    state: ObservationState
    text: str
    feedback: Feedback | None


class Dialect(Protocol):
    """How one generation is spoken to; without memory, so that all sessions share it."""

    def instruction(self, answer: Json, task: Task) -> tuple[str, str]:
        """Return the request as the server has it, and as the task has it."""
        ...

    def opened(self, answer: Json) -> Page:
        """Return the home page of a reset."""
        ...

    def said(self, action: str, state: ObservationState) -> str:
        """Return what is sent for an action on a page."""
        ...

    def page(self, answer: Json, action: str, before: ObservationState, task: Task) -> Page:
        """Return the page after an action."""
        ...

    def outcome(self, answer: Json, task: Task) -> Outcome:
        """Return how an episode ended (see `outcomes`)."""
        ...


def harmless(argument: str) -> str:
    """Return an argument as one line that opens nothing on any server.

    ``<r>``, ``<c>``, ``<a>`` and ``<q>`` are search operators left over from WebShop, a backslash before ``n`` is read
    as a new line and what follows it as another action, and the fork's pattern takes the last bracket for the first.
    Search drops all these marks anyway.
    """
    return tidy(argument.translate(_MARKS))


def label_of(argument: str, labels: Iterable[str]) -> str | None:
    """Return the label that a click means, whatever its letter case and spaces; None where there is none."""
    wanted = key(argument)
    return next((label for label in labels if key(label) == wanted), None)


def _said(action: str, state: ObservationState) -> str:
    """Return an action as every server takes it: labels as the page lists them, all else made harmless."""
    verb, argument = parse_action(action)
    if verb not in ("search", "click"):
        return harmless(action)
    label = label_of(argument, [*state["actions"], *_chosen(state)]) if verb == "click" else None
    return f"{verb}[{harmless(argument) if label is None else label}]"


def _chosen(state: ObservationState) -> list[str]:
    """Return the labels of the options that are chosen, which a page does not list."""
    return [pages.option_label(*option) for option in state.get("selected_options", {}).items()]


def _derived(action: str, before: ObservationState, *, changed: bool, language: Language) -> Feedback:
    """Return what became of an action on a server that does not say it."""
    verb, argument = parse_action(action)
    if verb not in ("search", "click"):
        reason = verb
    elif not harmless(argument):
        reason = "empty_argument"
    elif verb == "search" or changed or label_of(argument, before["actions"]) is not None:
        reason = "executed"
    elif label_of(argument, _chosen(before)) is not None:
        reason = "already_selected"
    else:
        reason = "unavailable_action"
    return pages.feedback(action, reason, language)


class V8:
    """ShopSimulator v8, and our own shop behind its contract: pages and feedback are taken as they are."""

    def __init__(self, *, ours: bool, scored: bool) -> None:
        """Speak v8.

        Args:
            ours: whether our own shop answers, which has no doors to close; actions go as they are.
            scored: whether its rewards are of a known kind.
        """
        self._ours, self._scored = ours, scored

    def instruction(self, answer: Json, task: Task) -> tuple[str, str]:
        """Compare what is shown: the simple request where a persona goes with it."""
        return _text(answer, "task_instruction"), task.visible_instruction

    def opened(self, answer: Json) -> Page:
        """Return the home page."""
        return self._page(answer, None)

    def said(self, action: str, state: ObservationState) -> str:
        """Return what is sent."""
        return action if self._ours else _said(action, state)

    def page(self, answer: Json, action: str, before: ObservationState, task: Task) -> Page:  # noqa: ARG002 - v8 tells all
        """Return the page as the server renders it, and its own feedback."""
        told = answer.get("action_feedback")
        if not isinstance(told, dict) or not isinstance(told.get("reason"), str):
            raise NoAnswerError(f"action_feedback is {told!r}")
        return self._page(answer, {name: told[name] for name in told if name in Feedback.__annotations__})

    def outcome(self, answer: Json, task: Task) -> Outcome:  # noqa: ARG002 - v8 tells all
        """Return the ending with the server's own reward."""
        return outcomes.of_v8(answer, scored=self._scored)

    def _page(self, answer: Json, feedback: Any) -> Page:
        state: Any = {name: value for name, value in _state(answer).items() if name in _STATE}
        return Page(state, _text(answer, "observation"), feedback)


class Fork:
    """Fork v2.1: its states become ours and are rendered by us; its option values become ``axis=value``."""

    def __init__(self, language: Language, *, scored: bool) -> None:
        """Speak to a fork whose endings are known, or not (`scored`)."""
        self._language, self._scored = language, scored

    def instruction(self, answer: Json, task: Task) -> tuple[str, str]:
        """Compare the full request: the fork never shows another."""
        return _INSTRUCTION.sub("", _text(answer, "instruction"), count=1), task.instruction

    def opened(self, answer: Json) -> Page:
        """Return the home page."""
        state = translate(_state(answer))
        return Page(state, pages.render(state, self._language), None)

    def said(self, action: str, state: ObservationState) -> str:
        """Return what is sent: of an option, the value alone."""
        verb, argument = parse_action(action)
        label = label_of(argument, state["actions"]) if verb == "click" else None
        values = {
            pages.option_label(axis, value): value
            for axis, values in state.get("available_options", {}).items()
            for value in values
        }
        return f"click[{values[label]}]" if label in values else _said(action, state)

    def page(self, answer: Json, action: str, before: ObservationState, task: Task) -> Page:  # noqa: ARG002 - shows no task
        """Return the page as we render it."""
        state = translate(_state(answer))
        feedback = _derived(action, before, changed=_changed(before, state), language=self._language)
        state["last_action"] = feedback
        return Page(state, pages.render(state, self._language), feedback)

    def outcome(self, answer: Json, task: Task) -> Outcome:
        """Return the ending with a reward of our own reckoning."""
        return outcomes.of_fork(answer, task, self._language, scored=self._scored)


class Original:
    """The original: pages are text, in which the request is repeated; the rest of the text is shown as it is."""

    def __init__(self, language: Language) -> None:
        self._language = language

    def instruction(self, answer: Json, task: Task) -> tuple[str, str]:
        """Compare the full request: the original never shows another."""
        told = split_footer(_text(answer, "instruction"))[0]
        return _INSTRUCTION.sub("", told, count=1), task.instruction

    def opened(self, answer: Json) -> Page:  # noqa: ARG002 - it says nothing but the request
        """Return the home page, which a reset does not send."""
        state = pages.home_state()
        return Page(state, pages.render(state, self._language), None)

    def said(self, action: str, state: ObservationState) -> str:
        """Return what is sent."""
        return _said(action, state)

    def page(self, answer: Json, action: str, before: ObservationState, task: Task) -> Page:
        """Return the page read from its text."""
        state, body = read_page(_text(answer, "instruction"), task)
        changed = before["actions"] != state["actions"] or before["page_type"] != state["page_type"]
        feedback = _derived(action, before, changed=changed, language=self._language)
        state["last_action"] = feedback
        return Page(state, pages.render(state, self._language, body), feedback)

    def outcome(self, answer: Json, task: Task) -> Outcome:  # noqa: ARG002 - it tells all
        """Return the ending with the product of the server's parts."""
        return outcomes.of_original(answer)


def _changed(before: ObservationState, after: ObservationState) -> bool:
    """Tell whether an action led to another page, whatever is said of it."""
    return {**before, "last_action": None} != {**after, "last_action": None}


def translate(state: Json) -> ObservationState:
    """Return a state of fork v2.1 (``shopping-observation-v2``) as one of ours (reference HTTP 5).

    Raises:
        NoAnswerError: it is none.
    """
    kind = state["page_type"]
    try:
        if kind == "search_home":
            return pages.home_state()
        if kind == "terminal":
            return pages.terminal_state()
        if kind == "search_results":
            return _results(state)
        if kind == "information_subpage":
            content = state.get("content") or ""
            told = "; ".join(map(str, content)) if isinstance(content, list) else str(content)
            return pages.subpage_state(_listed(state["product"]), str(state["subpage"]), tidy(told))
        if kind == "product_detail":
            return _product(state)
    except (KeyError, TypeError, AttributeError) as error:
        raise NoAnswerError(f"observation_state of a page {kind} lacks {error}") from error
    raise NoAnswerError(f"page_type is {kind!r}")


def _results(state: Json) -> ObservationState:
    return {
        **pages.terminal_state(),
        "page_type": "search_results",
        "actions": _buttons(state),
        "search_text": state["query"],
        "normalized_search_text": state["normalized_query"],
        "page": state["page"],
        "total_pages": state["total_pages"],
        "total_results": state["total_results"],
        "rank_start": state["rank_start"],
        "rank_end": state["rank_end"],
        "products": [{**_listed(product), "rank": product["rank"]} for product in state["products"]],
    }


def _product(state: Json) -> ObservationState:
    """Return a product's page; a value that stands on two axes is offered on the later one, where the fork sets it."""
    buttons = _buttons(state)
    options = _in_page_order(state["available_options"], buttons)
    chosen: dict[str, str] = {
        axis: state["selected_options"][axis] for axis in options if axis in state["selected_options"]
    }
    home = {value: axis for axis, values in options.items() for value in values}
    labels = [
        pages.option_label(axis, value)
        for axis, values in options.items()
        for value in values
        if value in buttons and home[value] == axis and chosen.get(axis) != value
    ]
    missing = [axis for axis in options if axis not in chosen]
    found: ObservationState = {
        **pages.terminal_state(),
        "page_type": "product_detail",
        "actions": [*(button for button in buttons if button not in home), *labels],
        "product": _listed(state["product"]),
        "selected_options": chosen,
        "available_options": options,
        "missing_option_axes": missing,
        "options_complete": not missing,
    }
    if state.get("selected_price") is not None:
        found["selected_price"] = float(state["selected_price"])
    return found


def _in_page_order(options: Mapping[str, list[str]], buttons: list[str]) -> dict[str, list[str]]:
    """Return the axes as the page has them: the fork sorts its fields, only the buttons keep the order.

    A value on two axes has two buttons, of which the later counts, so it never moves its first axis forward.
    """
    places = {button: place for place, button in enumerate(buttons)}
    last = len(buttons)
    order = sorted(options, key=lambda axis: min((places.get(value, last) for value in options[axis]), default=last))
    return {axis: list(options[axis]) for axis in order}


def _listed(product: Json) -> ListedProduct:
    return {
        "asin": product["asin"],
        "title": product["title"],
        "brand": product["brand"] or "",
        "category": product["category"] or "",
        "price": str(product["price"]),
        "key_attributes": list(product["key_attributes"] or ()),
    }


def _buttons(state: Json) -> list[str]:
    """Return what can be clicked: neither the search box nor the word that gives up."""
    return [button for button in state["actions"] if button not in ("search", "finish")]


def read_page(text: str, task: Task) -> tuple[ObservationState, str]:
    """Read a page of the original: its state as far as the text tells it, and the text without request and footer.

    Raises:
        NoAnswerError: there is no footer with the buttons.
    """
    body, buttons = split_footer(text)
    if buttons is None:
        raise NoAnswerError(f"the page names no buttons: {text[-80:]!r}")
    page = read_separated(text)
    kind = page.kind if page else "information_subpage"
    state: ObservationState = {
        **pages.terminal_state(),
        "page_type": kind,
        "search_available": kind == "search_home",
        "actions": list(buttons),
    }
    return state, _SEPARATOR.join(_without_request(body.split(_SEPARATOR), task))


def _without_request(nodes: list[str], task: Task) -> list[str]:
    """Leave out the request that stands on every page: a policy with a persona is shown another."""
    heads = {place for place, node in enumerate(nodes) if node.strip().casefold() == "instruction:"}
    said = {place + 1 for place in heads}
    whole = {key(task.instruction), key(f"Instruction: {task.instruction}")}
    return [node for place, node in enumerate(nodes) if place not in heads | said and key(node) not in whole]


def _state(answer: Json) -> Json:
    """Return the state of an answer, checked for what every page has."""
    state = answer.get("observation_state")
    if not isinstance(state, dict):
        raise NoAnswerError(f"observation_state is a {type(state).__name__}")
    kinds = {"page_type": str, "search_available": bool, "actions": list}
    wrong = [name for name, kind in kinds.items() if not isinstance(state.get(name), kind)]
    if wrong or not all(isinstance(label, str) for label in state["actions"]):
        name = wrong[0] if wrong else "actions"
        raise NoAnswerError(f"observation_state.{name} is {state.get(name)!r}")
    return state


def _text(answer: Json, name: str) -> str:
    value = answer.get(name)
    if not isinstance(value, str):
        raise NoAnswerError(f"{name} is a {type(value).__name__}")
    return value
