"""The simulated shop behind `v8_fixture`: three products written by hand, more than a page of flasks, two tasks.

Written from the reference text (shopsimrl.md 1.1, 1.6, 1.8-1.12) alone.
"""

import json
import re
import unicodedata
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

Json = dict[str, Any]

OBSERVATION = "shopping-observation-v7"
LIMITS = {"single_turn": 30, "multi_turn": 40}
PAGE_SIZE = 20
REASON = "canary-reason-key"
"""Stands in the private reason key; a policy must never read it."""
PERSONA = {"用户id": "u-0007", "注册时间": "2023-05-01", "最近搜索": ["通勤 耳机"], "偏好": {"颜色": "黑色"}}
PERSONA_TASK, STANDARD_TASK = 1828, 1830
EARPHONES, FLASK, SPEAKER = "100000000011", "10000022", "100000000033"
GOLD = {
    PERSONA_TASK: (
        "search[降噪 耳机]",
        f"click[{EARPHONES}]",
        "click[颜色分类=黑色]",
        "click[套餐=标配 | 赠type-c线]",
        "click[buy now]",
    ),
    STANDARD_TASK: ("search[不锈钢 保温杯 500毫升]", f"click[{FLASK}]", "click[buy now]"),
}
"""Actions that buy the gold product with reward 1."""


def product(asin: str, title: str, prices: list[float], attributes: list[str], **more: Any) -> Json:
    """A product as the server's file has it (1.12); without more it carries no task, as its one instruction is void."""
    void = {"instruction": f"想要{title}", "instruction_options": [], "attributes": [], "task_id": int(asin) % 1000}
    plain: Json = {"asin": asin, "title": title, "shop_name": "云间小铺", "category": "家居›餐具›保温杯"}
    plain |= {"product_category": "", "pricing": prices, "attribute": attributes, "full_description": title}
    plain |= {"customization_options": {}, "images": ["none.png"], "instructions": [void], "user_persona": None}
    return plain | more


PRODUCTS = [
    product(
        EARPHONES,
        "云间 主动降噪 蓝牙耳机 通勤款",
        [59.0, 79.0],
        ["主动降噪", "蓝牙5.3", "长续航"],
        category="数码›音频›耳机",
        customization_options={
            "颜色分类": [{"value": "黑色", "price": 59.0}, {"value": "白色", "price": 79.0}],
            "套餐": [{"value": "标配/赠Type-C线", "price": None}, {"value": "豪华套装", "price": None}],
        },
        user_persona=PERSONA | {"reason_key": REASON},
        reason_key=REASON,
        instructions=[
            {
                "task_id": PERSONA_TASK,
                "instruction": "想买黑色的主动降噪蓝牙耳机，要长续航，标配送Type-C线，不超过60元。",
                "instruction_simple": "想买一副降噪耳机，不超过60元。",
                "attributes": ["主动降噪", "长续航"],
                "instruction_options": ["黑色", "标配/赠Type-C线"],
                "price_upper": 60.0,
            }
        ],
    ),
    product(
        FLASK,
        "山野 不锈钢 保温杯 500毫升",
        [45.0],
        ["316不锈钢", "500毫升"],
        instructions=[
            {
                "task_id": STANDARD_TASK,
                "instruction": "来个316不锈钢的保温杯，要能装500毫升。",
                "attributes": ["316不锈钢", "500毫升"],
                "instruction_options": [],
            }
        ],
    ),
    product(SPEAKER, "云间 蓝牙音箱 配耳机孔", [120.0, 160.0], ["蓝牙5.3"], category="数码›音频›音箱"),
    *(product(f"2000000000{n:02}", f"山野 保温杯 {n}号", [20.0 + n], ["塑料"]) for n in range(1, 22)),
]


def option(value: str) -> str:
    return value.strip().lower().replace("/", " | ")


def goal_of(item: Json, index: int) -> Json:
    """The goal of one instruction (1.12)."""
    task = item["instructions"][index]
    identity = json.dumps([item["asin"], index, task["instruction"]], ensure_ascii=False, separators=(",", ":"))
    persona = item["user_persona"]
    return {
        "task_id": task["task_id"],
        "task_uid": f"shopsim-{sha256(identity.encode()).hexdigest()[:24]}",
        "source_product_index": PRODUCTS.index(item),
        "asin": item["asin"],
        "category": item["category"],
        "name": item["title"],
        "instruction_text": task["instruction"],
        "instruction_simple": task.get("instruction_simple"),
        "attributes": task["attributes"],
        "price_upper": task.get("price_upper"),
        "price_constraint": None,
        "goal_options": [option(value) for value in task["instruction_options"]],
        "user_persona": persona and {name: value for name, value in persona.items() if name != "reason_key"},
        "reason_key": item.get("reason_key"),
        "weight": 1,
    }


BY_ASIN = {item["asin"]: item for item in PRODUCTS}
GOALS = {
    task["task_id"]: goal_of(item, index)
    for item in PRODUCTS
    for index, task in enumerate(item["instructions"])
    if task["attributes"]
}


def normal(text: str) -> str:
    return " ".join(re.sub(r"[\W_]", " ", unicodedata.normalize("NFKC", text).casefold()).split())


def tokens(text: str) -> set[str]:
    """Han bigrams, lone Han characters, Latin words and numbers."""
    runs = re.findall(r"[一-鿿]+|[^\W一-鿿]+", normal(text))
    pairs = {run[i : i + 2] for run in runs if run[0] >= "一" for i in range(len(run) - 1)}
    return pairs | {run for run in runs if run[0] < "一" or len(run) == 1}


def search(query: str) -> list[str]:
    """Ids of the products that share a token with the query, best first."""
    scores = {asin: len(tokens(query) & tokens(item["title"])) for asin, item in BY_ASIN.items()}
    return sorted((asin for asin in scores if scores[asin]), key=lambda asin: (-scores[asin], asin))


def values(asin: str) -> dict[str, dict[str, float | None]]:
    """Axis -> value as shown -> price."""
    axes = BY_ASIN[asin]["customization_options"]
    return {axis: {option(entry["value"]): entry["price"] for entry in entries} for axis, entries in axes.items()}


def resolve(asin: str, chosen: Mapping[str, str]) -> Json:
    """The price of the selected variant (1.11), as far as these products need the rules."""
    axes, listed = values(asin), set(BY_ASIN[asin]["pricing"])
    prices = {axis: {price for price in entries.values() if price is not None} for axis, entries in axes.items()}
    deciding = [axis for axis in axes if len(prices[axis]) > 1]
    price, method = None, "price_not_deterministic"
    if deciding and deciding[0] not in chosen:
        method = "price_axis_unselected"
    elif deciding:
        price, method = axes[deciding[0]][chosen[deciding[0]]], "selected_price_axis"
    elif not axes and len(listed) == 1:
        price, method = listed.pop(), "single_listing_price"
    status = "unverifiable" if price is None else "pass"
    return {"status": status, "price": price, "version": "variant-price-paper-v2", "method": method, "evidence": {}}


def judge(goal: Json, asin: str, chosen: Mapping[str, str]) -> Json:
    """The `reward_detail` of a purchase (1.9); exact comparison stands for the fuzzy ratio."""
    item, price = BY_ASIN[asin], resolve(asin, chosen)
    wanted = tokens(goal["name"])
    category = len(set(goal["category"].split("›")) & set(item["category"].split("›"))) >= 2
    title = len(wanted & tokens(item["title"])) / len(wanted)
    attributes = sum(a in item["attribute"] or a in item["title"] for a in goal["attributes"])
    options = sum(value in chosen.values() for value in goal["goal_options"])
    upper = goal["price_upper"]
    r_type = 1.0 if category or title > 0.2 else 0.0 if not title else 0.1 if title < 0.1 else 0.5
    r_att = attributes / len(goal["attributes"])
    r_option = options / len(goal["goal_options"]) if goal["goal_options"] else 1.0
    r_price = float(upper is None or (price["price"] is not None and price["price"] <= upper))
    parts = len(goal["attributes"]) + len(goal["goal_options"]) + 1
    return {
        **nothing("purchase"),
        "r_type": r_type,
        "r_att": r_att,
        "r_option": r_option,
        "r_price": r_price,
        "r_loose": r_type * (attributes + options + r_price) / parts,
        "r_strict": r_type * r_att * r_option * r_price,
        "r_success": int(r_type == r_att == r_option == r_price == 1),
        "target_asin_match": asin == goal["asin"],
        "price_verifiable": price["status"] == "pass",
        "category_match": category,
        "title_score": title,
        "num_attr_matches": attributes,
        "num_option_matches": options,
        "price_upper": upper,
        "price_resolution": price,
    }


def nothing(reason: str) -> Json:
    """The `reward_detail` of an episode without a purchase."""
    zeros = dict.fromkeys(("r_type", "r_att", "r_option", "r_price", "r_loose", "r_strict"), 0.0)
    ending = {"reward_version": "shopsimulator-paper-reward-v2", "termination_reason": reason}
    return {**ending, **zeros, "r_success": 0, "target_asin_match": False, "price_verifiable": False}


LABELLED = re.compile(r"^[ \t]*action[ \t]*:[ \t]*(.*?)[ \t]*$", re.IGNORECASE | re.MULTILINE)


def action_in(response: str) -> str:
    """The one labelled action of a response, else the whole response (1.3.4)."""
    text = response.replace("\\n", "\n")
    labelled = LABELLED.findall(text)
    return labelled[0] if len(labelled) == 1 else text


def parse(action: str) -> tuple[str, str]:
    """Verb and argument, or `""` and the reason why there are none (1.8)."""
    if len(LABELLED.findall(action)) > 1 or re.search(r"\]\s*(search|click)\s*\[", action, re.IGNORECASE):
        return "", "multiple_actions_not_allowed"
    found = re.fullmatch(r"(search|click)\[(.*)\]", action, re.IGNORECASE)
    if found and found[2].strip():
        return found[1].lower(), found[2]
    blank = found or action.strip().lower() in ("search", "click")
    return "", "empty_argument" if blank else "invalid_format"


@dataclass
class Episode:
    """One task being shopped for."""

    goal: Json
    limit: int
    page: str = "search_home"
    query: str = ""
    found: list[str] = field(default_factory=list)
    number: int = 1
    asin: str = ""
    chosen: dict[str, str] = field(default_factory=dict)
    actions_taken: int = 0
    feedback: Json = field(default_factory=dict)
    ended: str = ""
    """Termination reason once the episode is done."""
    detail: Json = field(default_factory=dict)
    bought: Json = field(default_factory=dict)

    def missing(self) -> list[str]:
        return [axis for axis in values(self.asin) if axis not in self.chosen]

    def last_page(self) -> int:
        return max(1, -(-len(self.found) // PAGE_SIZE))

    def shown(self) -> list[str]:
        return self.found[(self.number - 1) * PAGE_SIZE : self.number * PAGE_SIZE]

    def actions(self) -> list[str]:
        if self.page == "search_results":
            turns = ["next >"] * (self.number < self.last_page()) + ["< prev"] * (self.number > 1)
            return ["back to search", *turns, *self.shown()]
        if self.page == "product_detail":
            options = [f"{axis}={value}" for axis, entries in values(self.asin).items() for value in entries]
            taken = [f"{axis}={value}" for axis, value in self.chosen.items()]
            offered = [value for value in options if value not in taken]
            return ["back to search", "< prev", *offered, *["buy now"] * (not self.missing())]
        return []

    def state(self) -> Json:
        """The page as `observation_state` (1.6)."""
        state: Json = {"observation_version": OBSERVATION, "page_type": self.page, "actions": self.actions()}
        state["search_available"] = self.page == "search_home"
        if self.feedback:
            state["last_action"] = deepcopy(self.feedback)
        return state | {"search_results": self._results, "product_detail": self._product}.get(self.page, dict)()

    def _results(self) -> Json:
        shown, before = self.shown(), (self.number - 1) * PAGE_SIZE
        return {
            "search_text": " ".join(self.query.split()),
            "normalized_search_text": normal(self.query),
            "page": self.number,
            "total_pages": self.last_page(),
            "total_results": len(self.found),
            "rank_start": before + 1 if shown else 0,
            "rank_end": before + len(shown),
            "products": [self._card(asin) | {"rank": before + i} for i, asin in enumerate(shown, 1)],
        }

    def _product(self) -> Json:
        price = resolve(self.asin, self.chosen)["price"]
        return {
            "product": self._card(self.asin),
            "selected_options": dict(self.chosen),
            "available_options": {axis: list(entries) for axis, entries in values(self.asin).items()},
            "missing_option_axes": self.missing(),
            "options_complete": not self.missing(),
        } | ({} if price is None else {"selected_price": price})

    def _card(self, asin: str) -> Json:
        item = BY_ASIN[asin]
        price = " to ".join(str(price) for price in item["pricing"])
        card = {"asin": asin, "title": item["title"], "brand": item["shop_name"], "category": item["category"]}
        return card | {"price": price, "key_attributes": item["attribute"][:10]}

    def act(self, action: str) -> None:
        """Carry out one action, or say in `feedback` why not; the last one allowed ends the episode."""
        verb, argument = parse(action)
        reason = getattr(self, f"_{verb}")(argument) if verb else argument
        self.feedback = {"action": action, "valid": reason == "executed", "reason": reason}
        self.feedback["message"] = "操作已执行。" if reason == "executed" else "操作无效，页面未变。"
        if reason == "incomplete_options":
            self.feedback["missing_option_axes"] = self.missing()
        self.actions_taken += 1
        if self.actions_taken >= self.limit and not self.ended:
            self.end("action_limit")

    def end(self, reason: str) -> None:
        self.ended, self.detail = reason, nothing(reason)

    def _search(self, query: str) -> str:
        if self.page != "search_home":
            return "search_unavailable"
        self.query, self.found = query, search(query)
        return self._show(1)

    def _show(self, number: int) -> str:
        self.page, self.number, self.chosen = "search_results", number, {}
        return "executed"

    def _click(self, value: str) -> str:
        axis, _, choice = value.partition("=")
        on_product = self.page == "product_detail"
        if on_product and self.chosen.get(axis) == choice:
            return "already_selected"
        if on_product and value == "buy now":
            return self._buy()
        if value not in self.actions():
            return "unavailable_action"
        if value == "back to search":
            self.page = "search_home"
        elif value in ("next >", "< prev"):
            return self._show(self.number + (0 if on_product else 1 if value == "next >" else -1))
        elif on_product:
            self.chosen[axis] = choice
        else:
            self.page, self.asin = "product_detail", value
        return "executed"

    def _buy(self) -> str:
        if self.missing():
            return "incomplete_options"
        item = BY_ASIN[self.asin]
        self.page, self.ended = "terminal", "purchase"
        self.detail = judge(self.goal, self.asin, self.chosen)
        self.bought = {"asin": self.asin, "category": item["category"], "name": item["title"]}
        self.bought |= {"product_category": item["product_category"], "attributes": item["attribute"]}
        self.bought |= {"instruction_text": item["instructions"][0]["instruction"]}
        self.bought |= {"price": self.detail["price_resolution"]["price"], "options": dict(self.chosen)}
        return "executed"
