"""What a single answer of a v8 server must look like: fields and types, pages as data and as text, endings.

Written from the reference text (shopsimrl.md 1.1, 1.3.3-1.3.5, 1.6-1.9) alone. Nothing here asks a server.
"""

import json
import re
from collections.abc import Callable, Mapping
from math import ceil, isclose
from typing import Any

Json = dict[str, Any]

OBSERVATION = "shopping-observation-v7"
PAGE_SIZE, MOST_RESULTS, MOST_ATTRIBUTES, MOST_VALUES = 20, 150, 10, 100
REASONS = {
    "executed",
    "invalid_format",
    "multiple_actions_not_allowed",
    "empty_argument",
    "search_unavailable",
    "already_selected",
    "incomplete_options",
    "unavailable_action",
}
METHODS = {
    "invalid_selected_options",
    "multiple_price_affecting_axes",
    "price_axis_unselected",
    "selected_variant_price_missing",
    "selected_price_axis",
    "constant_option_price",
    "single_listing_price",
    "price_not_deterministic",
}
FORBIDDEN = {"goal", "reward", "reward_detail", "target_asin", "answer"}
PRIVATE = {"private_task_instruction", "goal_options", "reason_key"}


def is_number(value: Any) -> bool:
    return type(value) in (int, float)


def are_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


KINDS: dict[str, Callable[[Any], bool]] = {
    "a text": lambda value: isinstance(value, str),
    "a whole number": lambda value: type(value) is int,
    "a number": is_number,
    "a number or null": lambda value: value is None or is_number(value),
    "0 or 1": lambda value: type(value) is int and value in (0, 1),
    "true or false": lambda value: isinstance(value, bool),
    "an object": lambda value: isinstance(value, dict),
    "an object of texts": lambda value: isinstance(value, dict) and are_texts(list(value.values())),
    "an object of lists of texts": lambda value: isinstance(value, dict) and all(map(are_texts, value.values())),
    "a list": lambda value: isinstance(value, list),
    "a list of texts": are_texts,
    "a list or an object": lambda value: isinstance(value, (list, dict)),
    "anything": lambda _: True,
}

RESET = {
    "task_instruction": "a text",
    "observation": "a text",
    "message": "a text",
    "env_idx": "a whole number",
    "idx": "a whole number",
    "task_mode": "a text",
    "interaction_mode": "a text",
    "environment_version": "a text",
    "observation_state": "an object",
    "lease_id": "a text",
}
STEP = {
    "done": "true or false",
    "over": "true or false",
    "reward": "a number",
    "observation": "a text",
    "message": "a text",
    "env_idx": "a whole number",
    "idx": "a text",
    "reward_detail": "an object",
    "purchase": "an object",
    "goal": "an object",
    "observation_state": "an object",
    "lease_id": "a text",
}
FEEDBACK = {"action": "a text", "valid": "true or false", "reason": "a text", "message": "a text"}
STATE = {
    "observation_version": "a text",
    "page_type": "a text",
    "search_available": "true or false",
    "actions": "a list of texts",
}
LISTED = {
    "asin": "a text",
    "title": "a text",
    "brand": "a text",
    "category": "a text",
    "price": "anything",
    "key_attributes": "a list of texts",
}
RESULTS = {
    "search_text": "a text",
    "normalized_search_text": "a text",
    **dict.fromkeys(("page", "total_pages", "total_results", "rank_start", "rank_end"), "a whole number"),
    "products": "a list",
}
PRODUCT = {
    "product": "an object",
    "selected_options": "an object of texts",
    "available_options": "an object of lists of texts",
    "missing_option_axes": "a list of texts",
    "options_complete": "true or false",
}
NO_PURCHASE = {
    "reward_version": "a text",
    "termination_reason": "a text",
    **dict.fromkeys(("r_type", "r_att", "r_option", "r_price", "r_loose", "r_strict"), "a number"),
    "r_success": "0 or 1",
    "target_asin_match": "true or false",
    "price_verifiable": "true or false",
}
ONLY_PURCHASE = {
    "category_match": "true or false",
    "title_score": "a number",
    "num_attr_matches": "a whole number",
    "num_option_matches": "a whole number",
    "price_upper": "a number or null",
    "price_resolution": "an object",
}
RESOLUTION = {
    "status": "a text",
    "price": "a number or null",
    "version": "a text",
    "method": "a text",
    "evidence": "an object",
}
PURCHASE = {
    **dict.fromkeys(("asin", "category", "name", "product_category", "instruction_text"), "a text"),
    "attributes": "a list of texts",
    "price": "a number or null",
    "options": "an object of texts",
}
GOAL = {
    "task_id": "a whole number",
    **dict.fromkeys(("task_uid", "asin", "category", "name", "instruction_text"), "a text"),
    "source_product_index": "a whole number",
    "instruction_simple": "anything",
    "attributes": "a list of texts",
    "price_upper": "a number or null",
    "price_constraint": "anything",
    "goal_options": "anything",
    "user_persona": "anything",
    "reason_key": "anything",
    "weight": "a number",
}


class Notes:
    """The deviations found so far, each a sentence that begins with its topic."""

    def __init__(self) -> None:
        self.topic = ""
        self.deviations: list[str] = []
        self.texts: dict[str, str] = {}
        """State as JSON -> the text it was rendered to."""

    def expect(self, holds: object, sentence: str) -> None:
        """Note the sentence unless it was noted before or what it denies holds."""
        line = f"{self.topic}: {sentence}"
        if not holds and line not in self.deviations:
            self.deviations.append(line)

    def fields(self, where: str, found: Any, wanted: Mapping[str, str]) -> bool:
        """Whether these fields are all there and of their kinds."""
        if not isinstance(found, dict):
            self.expect(False, f"{where} is not an object")
            return False
        for name, kind in wanted.items():
            self.expect(name in found, f"{where} lacks {name}")
            self.expect(name not in found or KINDS[kind](found[name]), f"{name} of {where} is not {kind}")
        return all(name in found and KINDS[kind](found[name]) for name, kind in wanted.items())


def started(notes: Notes, result: Json) -> None:
    """The result of a reset (1.3.3)."""
    if notes.fields("the answer to reset", result, RESET):
        state = result["observation_state"]
        page(notes, state, result["observation"])
        notes.expect(state.get("page_type") == "search_home", "a fresh episode is not on the home page")
        notes.expect("last_action" not in state, "a fresh episode has a last_action")
        notes.expect(result["task_instruction"].strip(), "task_instruction is empty")
        notes.expect(result["task_mode"] in ("persona", "standard"), "task_mode is neither persona nor standard")
        persona = result.get("user_persona") or {}
        notes.expect(isinstance(persona, dict), "user_persona is not an object")
        notes.expect("reason_key" not in persona, "user_persona holds the private reason_key")


def stepped(notes: Notes, what: str, result: Json) -> bool:
    """The result of an interact or terminate (1.3.4, 1.3.5); whether it can be looked at further."""
    where = f"the answer to {what}"
    if not notes.fields(where, result, STEP):
        return False
    page(notes, result["observation_state"], result["observation"])
    notes.expect(result["done"] == result["over"], f"done and over differ in {where}")
    for name in sorted(PRIVATE & set(result)):
        notes.expect(False, f"{where} tells {name}")
    if result["done"]:
        ending(notes, where, result)
        return True
    for name, empty in {"reward": 0, "reward_detail": {}, "purchase": {}, "goal": {}}.items():
        notes.expect(result[name] == empty, f"{name} is not {empty} in {where} before the episode is done")
    notes.expect("termination_reason" not in result, f"{where} names a termination_reason before the episode is done")
    return True


def feedback(notes: Notes, result: Json) -> bool:
    """The `action_feedback` of an interact (1.8)."""
    found = result.get("action_feedback")
    if not notes.fields("action_feedback", found, FEEDBACK) or not isinstance(found, dict):
        return False
    reason = found["reason"]
    notes.expect(reason in REASONS, f"action_feedback has the unknown reason {reason}")
    notes.expect(found["valid"] == (reason == "executed"), f"valid is {found['valid']} with the reason {reason}")
    if reason == "incomplete_options":
        notes.fields("action_feedback of incomplete options", found, {"missing_option_axes": "a list of texts"})
    else:
        notes.expect("missing_option_axes" not in found, f"missing_option_axes comes with the reason {reason}")
    state = result["observation_state"]
    notes.expect(state.get("last_action") == found, "last_action of the page is not the action_feedback")
    return True


def page(notes: Notes, state: Json, text: str) -> None:
    """An `observation_state` (1.6) and the text drawn from it (1.7)."""
    if not notes.fields("observation_state", state, STATE):
        return
    kind, actions = state["page_type"], state["actions"]
    notes.expect(state["observation_version"] == OBSERVATION, f"observation_version is not {OBSERVATION}")
    notes.expect(kind in PAGES, f"page_type {kind} is unknown")
    notes.expect(state["search_available"] == (kind == "search_home"), f"search_available is wrong on {kind}")
    notes.expect(len(set(actions)) == len(actions), f"an action is listed twice on {kind}")
    for name in sorted(FORBIDDEN & set(state)):
        notes.expect(False, f"observation_state holds {name}")
    for name in sorted({*RESULTS, *PRODUCT} - set(PAGES.get(kind, (None, {}))[1])):
        notes.expect(name not in state, f"{name} stands on {kind}")
    check, wanted = PAGES.get(kind, (None, {}))
    if check and notes.fields(f"the page {kind}", state, wanted):
        expected = check(notes, state)
        notes.expect(set(actions) == expected, f"the actions on {kind} are not the ones its content calls for")
        drawn(notes, state, text)


def empty_page(notes: Notes, state: Json) -> set[str]:  # noqa: ARG001
    return set()


def results_page(notes: Notes, state: Json) -> set[str]:
    """Look at a results page; the actions it must offer."""
    shown, number, total = state["products"], state["page"], state["total_results"]
    first = (number - 1) * PAGE_SIZE + 1 if shown else 0
    last = first + len(shown) - 1 if shown else 0
    ranked = LISTED | {"rank": "a whole number"}
    sound = [item for item in shown if notes.fields("a listed product", item, ranked)]
    notes.expect(len(shown) <= PAGE_SIZE, f"a results page lists more than {PAGE_SIZE} products")
    notes.expect(total <= MOST_RESULTS, f"total_results is above {MOST_RESULTS}")
    notes.expect(not total or state["total_pages"] == ceil(total / PAGE_SIZE), "total_pages does not fit total_results")
    notes.expect(len(shown) == min(PAGE_SIZE, max(0, total - first + 1)) or not shown, "a results page is not full")
    notes.expect(bool(shown) == bool(total), "total_results and the products listed contradict each other")
    notes.expect(
        (state["rank_start"], state["rank_end"]) == (first, last), "rank_start and rank_end do not fit the page"
    )
    counted = [item["rank"] for item in sound] == list(range(first, last + 1))
    notes.expect(counted or not shown, "the ranks listed do not run from rank_start to rank_end")
    for item in sound:
        card(notes, item)
    turns = {"next >"} if number < state["total_pages"] else set()
    turns |= {"< prev"} if number > 1 else set()
    return turns | {"back to search"} | {item["asin"] for item in sound}


def card(notes: Notes, item: Json) -> None:
    notes.expect(re.fullmatch(r"\d{8,12}", item["asin"]), "a product id is not 8 to 12 digits")
    notes.expect(len(item["key_attributes"]) <= MOST_ATTRIBUTES, f"more than {MOST_ATTRIBUTES} key_attributes")


def product_page(notes: Notes, state: Json) -> set[str]:
    """Look at a product page; the actions it must offer."""
    chosen, axes = state["selected_options"], state["available_options"]
    if notes.fields("product", state["product"], LISTED):
        card(notes, state["product"])
    notes.expect("rank" not in state["product"], "the product of a product page has a rank")
    notes.expect(all(len(v) <= MOST_VALUES for v in axes.values()), f"an axis lists more than {MOST_VALUES} values")
    valid = all(value in axes.get(axis, ()) for axis, value in chosen.items())
    notes.expect(valid, "selected_options holds a value that is not available")
    missing = set(axes) - set(chosen)
    notes.expect(set(state["missing_option_axes"]) == missing, "missing_option_axes is not the axes without a choice")
    complete = not missing and not state.get("invalid_selected_options")
    notes.expect(state["options_complete"] == complete, "options_complete contradicts the choices")
    if "selected_price" in state:
        notes.fields("product_detail", state, {"selected_price": "a number"})
    for item in state.get("invalid_selected_options", []):
        notes.fields("an invalid selection", item, dict.fromkeys(("axis", "value", "reason"), "a text"))
        notes.expect(
            item.get("reason") in ("unknown_axis", "unknown_value"), "an invalid selection has no known reason"
        )
    free = {f"{axis}={value}" for axis, values in axes.items() for value in values if chosen.get(axis) != value}
    return free | {"back to search", "< prev"} | ({"buy now"} if complete else set())


PAGES: dict[str, tuple[Callable[[Notes, Json], set[str]], Mapping[str, str]]] = {
    "search_home": (empty_page, {}),
    "search_results": (results_page, RESULTS),
    "product_detail": (product_page, PRODUCT),
    "terminal": (empty_page, {}),
}


def drawn(notes: Notes, state: Json, text: str) -> None:
    """The text of a page (1.7): made from the state alone, complete, without action syntax."""
    kind = state["page_type"]
    known = notes.texts.setdefault(json.dumps(state, sort_keys=True), text)
    notes.expect(text == known, f"equal states of {kind} are drawn as different texts")
    notes.expect(text.endswith("\n") and not text.endswith("\n\n"), f"the text of {kind} does not end with one newline")
    notes.expect(OBSERVATION not in text, f"the text of {kind} shows the version")
    notes.expect(not re.search(r"(search|click)\[", text), f"the text of {kind} shows action syntax")
    lines = {line.strip() for line in text.splitlines()}
    flat = " ".join(text.split())
    items = state.get("products", []) + ([state["product"]] if "product" in state else [])
    wanted = [str(item.get(name, "")) for item in items for name in ("title", "asin", "brand", "category")]
    wanted += [item["price"] for item in state.get("products", []) if isinstance(item.get("price"), str)]
    wanted += [str(state[name]).removesuffix(".0") for name in ("search_text", "selected_price") if name in state]
    last = state.get("last_action", {})
    wanted += [last.get("message", ""), "" if last.get("valid", True) else last.get("reason", "")]
    lost = [part for part in wanted if " ".join(part.split()) not in flat]
    notes.expect(not lost, f"the text of {kind} does not show {lost[:1]} of the state")
    undrawn = [a for a in state["actions"] if not any(line[:1] in "-–—•" and line[1:].strip() == a for line in lines)]
    notes.expect(not undrawn, f"the text of {kind} has no dashed line for {undrawn[:1]}")


def ending(notes: Notes, where: str, result: Json) -> None:
    """The last answer of an episode: goal, reward_detail (1.9) and purchase."""
    reason, detail = result.get("termination_reason"), result["reward_detail"]
    notes.fields("goal", result["goal"], GOAL)
    uid = str(result["goal"].get("task_uid"))
    notes.expect(result["goal"].get("weight") == 1, "the weight of goal is not 1")
    notes.expect(re.fullmatch("shopsim-[0-9a-f]{24}", uid), "task_uid is not shopsim- and 24 hex digits")
    notes.expect(reason in ("purchase", "action_limit", "generation_length"), f"{where} names no known end: {reason}")
    bought = reason == "purchase"
    wanted = NO_PURCHASE | (ONLY_PURCHASE if bought else {})
    if not notes.fields(f"reward_detail after {reason}", detail, wanted):
        return
    notes.expect(detail["termination_reason"] == reason, f"reward_detail gives another end than {reason}")
    notes.expect(result["reward"] == detail["r_strict"], f"reward is not r_strict after {reason}")
    if bought:
        notes.expect(result["observation_state"].get("page_type") == "terminal", "a purchase is not shown as terminal")
        notes.fields("purchase", result["purchase"], PURCHASE)
        formulas(notes, detail, result["goal"])
        return
    notes.expect(result["purchase"] == {}, f"purchase is not empty after {reason}")
    notes.expect(not set(ONLY_PURCHASE) & set(detail), f"reward_detail after {reason} has fields of a purchase")
    zeros = [detail[name] == 0 for name in NO_PURCHASE if name not in ("reward_version", "termination_reason")]
    notes.expect(all(zeros), f"reward_detail after {reason} is not all zero")


def formulas(notes: Notes, detail: Json, goal: Json) -> None:
    """The reward of a purchase follows from its parts (1.9)."""
    parts = [detail[name] for name in ("r_type", "r_att", "r_option", "r_price")]
    options = goal.get("goal_options") or []
    counts = [len(goal.get("attributes", [])), len(options) if isinstance(options, (list, dict)) else 1]
    matched = [detail["num_attr_matches"], detail["num_option_matches"]]
    shares = [hit / n if n else 1.0 for hit, n in zip(matched, counts, strict=True)]
    loose = parts[0] * (sum(matched) + parts[3]) / (sum(counts) + 1)
    strict = parts[0] * parts[1] * parts[2] * parts[3]
    same(notes, {"r_att": shares[0], "r_option": shares[1], "r_loose": loose, "r_strict": strict}, detail)
    notes.expect(
        detail["r_success"] == all(part == 1 for part in parts), "r_success is not 1 exactly when all parts are 1"
    )
    score = detail["title_score"]
    r_type = 1 if detail["category_match"] or score > 0.2 else 0 if score == 0 else 0.1 if score < 0.1 else 0.5
    same(notes, {"r_type": r_type}, detail)
    resolution, upper = detail["price_resolution"], detail["price_upper"]
    notes.expect(upper == goal.get("price_upper"), "price_upper differs between reward_detail and goal")
    if notes.fields("price_resolution", resolution, RESOLUTION):
        price, passed = resolution["price"], resolution["status"] == "pass"
        notes.expect(passed or resolution["status"] == "unverifiable", "price_resolution has an unknown status")
        notes.expect(resolution["method"] in METHODS, "price_resolution has an unknown method")
        notes.expect(passed == (price is not None), "status and price of price_resolution contradict each other")
        notes.expect(detail["price_verifiable"] == passed, "price_verifiable contradicts price_resolution")
        same(notes, {"r_price": upper is None or (price is not None and price <= upper)}, detail)


def same(notes: Notes, expected: Mapping[str, float], detail: Json) -> None:
    for name, value in expected.items():
        fits = isclose(detail[name], value, abs_tol=1e-6)
        notes.expect(fits, f"{name} of reward_detail is not what its formula gives")
