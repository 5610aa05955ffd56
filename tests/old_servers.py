"""Servers of the two generations before v8 on loopback: fork v2.1 and the original, over an embedded shop's goods.

Written from the reference text (shopsimulator_http.md 1-9, 13) and its recordings. Their weak points are kept: errors
inside HTTP 200, no lease asked for, no end enforced, answers that leak the goal.
"""

import json
import re
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from typing import Any, Literal

from v8_fixture import serving

from shopskill_lib.records import Product, Purchase, Task
from shopskill_lib.shops.embedded import EmbeddedShop
from shopskill_lib.shops.reward import resolve_price, score_purchase

Json = dict[str, Any]

LEAK = "canary"
"""Stands in every private field."""
FULL = "Unable to get available environment resource, please try again later"
PAGE_SIZE = 20
_BUTTONS = ("description", "features", "reviews", "buy now")


@dataclass
class Visit:
    """What a slot shows."""

    task: Task
    idx: int
    page: str = "search_home"
    query: str = ""
    number: int = 1
    product: Product | None = None
    chosen: dict[str, str] = field(default_factory=dict)
    steps: int = 0
    last: str = ""
    repeats: int = 0


@dataclass
class Sent:
    """What a `before` hook makes the server send in place of its answer."""

    body: bytes
    status: int = 200
    kind: str = "text/html"
    cut: int | None = None


class OldServer:
    """The server's side, and the record of what it was asked.

    Args:
        shop: what it sells.
        generation: which behaviour.
        slots: episodes at once.
        extra: put into every result (canaries).
        before: called with each body before it is carried out; may answer itself, or raise ConnectionError to hang up.
        limit: steps of an episode.
    """

    def __init__(
        self,
        shop: EmbeddedShop,
        generation: Literal["fork", "original"],
        *,
        slots: int = 2,
        extra: Json | None = None,
        before: Callable[[Json], Sent | None] | None = None,
        limit: int = 35,
    ) -> None:
        self.shop, self.fork, self.limit = shop, generation == "fork", limit
        self.tasks = {int(task_id): task for task_id, task in shop.catalogue.tasks.items()}
        self.tasks.setdefault(0, next(iter(self.tasks.values())))
        self.extra, self.before = extra or {}, before or (lambda _: None)
        self.url = ""
        self.bodies: list[Json] = []
        self.taken: set[int] = set()
        self.slots = slots
        self.visits: dict[int, Visit] = {}
        self.released: Counter[int] = Counter()
        self.lent: Counter[int] = Counter()
        self.lock = threading.Lock()

    @property
    def asked(self) -> Counter[str]:
        return Counter(str(body.get("action")) for body in self.bodies)

    def answer(self, body: Json) -> Json:
        with self.lock:
            self.bodies.append(body)
            action = body.get("action")
            if action == "reset":
                return self.reset(body)
            if action == "interact":
                return self.interact(body)
            if action == "release_one":
                slot = body["env_idx"]
                self.released[slot] += 1
                free = slot not in self.taken
                self.taken.discard(slot)
                return {"message": f"Environment {slot} {'is already free' if free else 'has been released'}"}
            return {"error": f"Unknown action type: {action}, supported actions: 'reset', 'interact'"}

    def reset(self, body: Json) -> Json:
        free = [slot for slot in range(self.slots) if slot not in self.taken]
        if not free:
            return {"error": FULL}
        slot, idx = free[0], body["idx"]
        self.taken.add(slot)
        if idx not in self.tasks:
            return {"error": "list index out of range"}
        self.lent[slot] += 1
        task = self.tasks[idx]
        self.visits[slot] = Visit(task, idx)
        answer: Json = {
            "env_idx": slot,
            "idx": idx,
            "instruction": f"Instruction: {task.instruction}",
            "instruction_simple": task.instruction_simple or "",
            "goal_options": [f"{LEAK} goal_options"],
            "message": f"Task {idx} started",
        }
        if task.persona is not None:
            answer |= {"user_persona": {"note": f"{LEAK} persona"}, "reason_key": f"{LEAK} reason_key"}
        if self.fork:
            answer |= {"environment_version": "shopsimulator-environment-v2.1", "observation_state": self.state(slot)}
        return self.extra | answer

    def interact(self, body: Json) -> Json:
        slot = body["env_idx"]
        visit = self.visits[slot]
        visit.steps += 1
        done, reason = self.act(visit, body["response"].replace("\\n", "\n"))
        over = done or visit.steps >= self.limit
        reward = self.reward(visit) if done else {}
        answer: Json = {
            "done": done,
            "over": over,
            "reward": reward.get("reward", 0.0),
            "instruction": self.text(slot, done),
            "message": "Continue interaction",
            "env_idx": slot,
            "idx": f"slot-{slot}-{visit.idx}" if self.fork else visit.idx,
            "reward_detail": reward.get("reward_detail", {}),
            "purchase": reward.get("purchase", {}),
            "goal": reward.get("goal", {}),
        }
        if self.fork:
            answer |= {"observation_state": self.state(slot, done), "progress": {"note": f"{LEAK} progress"}}
            if visit.repeats >= 2 and not done:
                answer |= {"done": True, "over": True, "reward": -0.65, "termination_reason": "repeat_loop"}
            elif over:
                answer |= {"done": True, "termination_reason": reason or "max_steps"}
                answer["reward"] = reward.get("reward", -0.5)
        elif over:
            self.taken.discard(slot)
        return self.extra | answer

    def act(self, visit: Visit, response: str) -> tuple[bool, str]:
        """Carry a response out as section 3 has it; tell whether something was bought, and the word for it."""
        if "\nAction: " in response:
            response = response.split("\nAction: ")[1]
        match = re.match(r"(.+)\[(.+)\]", response)
        name, argument = (match[1], match[2].lower()) if match else ("", "")
        visit.repeats = visit.repeats + 1 if visit.last == f"{name}[{argument}]" else 0
        visit.last = f"{name}[{argument}]"
        if name == "search":
            visit.page, visit.query, visit.number, visit.product, visit.chosen = "search_results", argument, 1, None, {}
            if argument.startswith(("<r>", "<c>", "<q>", "<a>")):
                visit.query = f"back door {argument}"
        elif name == "finish" and self.fork:
            return True, "early_abstain"
        elif name == "click" and argument in self.buttons(visit):
            return self.click(visit, argument), "gold_purchase"
        return False, ""

    def click(self, visit: Visit, button: str) -> bool:
        """Follow a button; tell whether it bought something."""
        if button == "back to search":
            visit.page, visit.product, visit.chosen = "search_home", None, {}
        elif button in ("next >", "< prev") and visit.page == "search_results":
            visit.number += 1 if button == "next >" else -1
        elif button == "< prev" and visit.page == "information_subpage":
            visit.page = "product_detail"
        elif button == "< prev":
            visit.page, visit.product, visit.chosen = "search_results", None, {}
        elif button in _BUTTONS[:3]:
            visit.page, visit.last = "information_subpage", button
        elif button == "buy now":
            return True
        elif visit.product is None:
            visit.page, visit.product = "product_detail", self.shop.catalogue.products[button]
        else:
            axis = next(axis for axis, values in reversed(self.options(visit).items()) if button in values)
            visit.chosen[axis] = button
        return False

    def found(self, visit: Visit) -> list[Product]:
        return self.shop.search(visit.query)

    def options(self, visit: Visit) -> dict[str, list[str]]:
        product = visit.product
        return (
            {} if product is None else {axis: [v.lower() for v in values] for axis, values in product.options.items()}
        )

    def buttons(self, visit: Visit) -> list[str]:
        if visit.page == "search_home":
            return []
        if visit.page == "search_results":
            shown, pages = self.shown(visit)
            turns = ["< prev"] * (visit.number > 1) + ["next >"] * (visit.number < pages)
            return ["back to search", *turns, *(product.asin for product in shown)]
        if visit.page == "information_subpage":
            return ["back to search", "< prev"]
        values = [value for values in self.options(visit).values() for value in values]
        return ["back to search", "< prev", *_BUTTONS, *values]

    def shown(self, visit: Visit) -> tuple[list[Product], int]:
        found = self.found(visit)
        start = (visit.number - 1) * PAGE_SIZE
        return found[start : start + PAGE_SIZE], max(1, -(-len(found) // PAGE_SIZE))

    def state(self, slot: int, done: bool = False) -> Json:
        """The fork's observation state (section 5)."""
        visit = self.visits[slot]
        home = visit.page == "search_home"
        state: Json = {
            "observation_version": "shopping-observation-v2",
            "page_type": "terminal" if done else visit.page,
            "search_available": home and not done,
            "actions": [] if done else ["search"] if home else self.buttons(visit),
        }
        if done or home:
            return state
        if visit.page == "search_results":
            shown, pages = self.shown(visit)
            start = (visit.number - 1) * PAGE_SIZE
            total = len(self.found(visit))
            state |= {"query": visit.query, "normalized_query": visit.query, "page": visit.number, "total_pages": pages}
            state |= {"total_results": total, "rank_start": start + bool(shown), "rank_end": start + len(shown)}
            return state | {"products": [{**listed(item), "rank": start + n} for n, item in enumerate(shown, 1)]}
        assert visit.product is not None
        price = resolve_price(visit.product, self.named(visit)).price
        state |= {"product": listed(visit.product), "selected_options": dict(visit.chosen)}
        state |= {"available_options": dict(sorted(self.options(visit).items()))}
        state |= {} if price is None else {"selected_price": price}
        if visit.page == "information_subpage":
            content = [visit.product.description] if visit.last == "features" else visit.product.description
            state |= {"subpage": visit.last.capitalize(), "content": [] if visit.last == "reviews" else content}
        return state

    def named(self, visit: Visit) -> dict[str, str]:
        """Chosen options as the catalogue writes them."""
        assert visit.product is not None
        options = visit.product.options
        return {
            axis: next(value for value in options[axis] if value.lower() == chosen)
            for axis, chosen in visit.chosen.items()
        }

    def text(self, slot: int, done: bool) -> str:
        """The page as text (section 4), with the original's shorter result head."""
        visit, nodes = self.visits[slot], list[str]()
        head = ["Instruction:", visit.task.instruction]
        if done:
            nodes = ["Thank you for shopping with us!", "Your code:", "None"]
        elif visit.page == "search_home":
            nodes = ["WebShop", *head, "Search"]
        elif visit.page == "search_results":
            shown, _ = self.shown(visit)
            lines = [part for item in shown for part in (item.asin, item.title, listed(item)["price"])]
            nodes = [*head, "Back to Search", f"Page {visit.number} (Total results: {len(self.found(visit))})", *lines]
        else:
            assert visit.product is not None
            nodes = [*head, "Back to Search", "< Prev"]
            if visit.page == "information_subpage":
                nodes.append(visit.product.description)
            else:
                nodes += [part for axis, values in self.options(visit).items() for part in (axis, *values)]
                nodes += [visit.product.title, f"价格: {listed(visit.product)['price']}", f"店铺: {visit.product.shop}"]
                nodes += ["Description", "Features", "Reviews", "Buy Now"]
        buttons = [] if done else self.buttons(visit)
        search = visit.page == "search_home" and not done
        footer = f"\n\n搜索功能是否可用: {search}\n\n可点击的按钮: {json.dumps(buttons, ensure_ascii=False)}"
        return " [SEP] ".join(nodes) + footer

    def reward(self, visit: Visit) -> Json:
        """What stands in the last answer: the fork's goal, purchase and own number, or the original's parts."""
        if visit.product is None:
            return {"reward": -0.35, "reward_detail": {"note": f"{LEAK} detail"}}
        task, bought = visit.task, visit.product
        gold = self.shop.catalogue.products[task.gold_asin]
        price = resolve_price(bought, self.named(visit))
        purchase = Purchase(
            asin=bought.asin, title=bought.title, category=bought.category, options=self.named(visit), price=price
        )
        detail = score_purchase(task, gold, bought, purchase)
        required = {str(n): {"source_axis": o.axis, "value": o.value} for n, o in enumerate(task.options) if o.axis}
        goal = {
            "asin": gold.asin,
            "name": gold.title,
            "category": gold.category,
            "attributes": list(task.attributes),
            "instruction_text": task.instruction,
            "goal_options": [option.value for option in task.options],
            "price_upper": task.price_upper,
            "user_persona": {"note": f"{LEAK} goal persona"},
        }
        item = {
            "asin": bought.asin,
            "name": bought.title,
            "category": bought.category,
            "attributes": list(bought.attributes),
            "options": self.named(visit),
            "price": price.price,
            "instruction_text": f"{LEAK} instruction of the purchase",
        }
        if self.fork:
            told = {"evidence": {"price_resolution": price.model_dump()}, "note": f"{LEAK} detail"}
            return {
                "reward": -0.85,
                "reward_detail": told,
                "purchase": item,
                "goal": {**goal, "required_options_by_key": required},
            }
        names = (
            "r_type",
            "r_att",
            "r_option",
            "title_score",
            "category_match",
            "num_attr_matches",
            "num_option_matches",
        )
        parts = {name: getattr(detail, name) for name in names} | {
            "r_price": bool(detail.r_price),
            "query_match": False,
        }
        return {"reward": detail.r_loose, "reward_detail": parts, "purchase": item, "goal": goal}


def listed(product: Product) -> Json:
    return {
        "asin": product.asin,
        "title": product.title,
        "brand": product.shop,
        "category": product.category,
        "price": " to ".join(dict.fromkeys(map(str, product.pricing))),
        "key_attributes": list(product.attributes[:10]),
    }


@contextmanager
def old_server(shop: EmbeddedShop, generation: Literal["fork", "original"], **options: Any) -> Iterator[OldServer]:
    """Serve an `OldServer` on loopback at its `url`."""
    old = OldServer(shop, generation, **options)

    class Handler(BaseHTTPRequestHandler):
        disable_nagle_algorithm = True

        def do_GET(self) -> None:
            self.reply(Sent(b"<h1>Not Found</h1>", 404))

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            try:
                sent = old.before(body)
            except ConnectionError:
                return
            told = sent or Sent(
                json.dumps({"result": old.answer(body)}, sort_keys=True).encode() + b"\n", 200, "application/json"
            )
            self.reply(told)

        def reply(self, sent: Sent) -> None:
            self.send_response(sent.status)
            self.send_header("Content-Type", sent.kind)
            self.send_header("Content-Length", str(len(sent.body)))
            self.send_header("Connection", "close")
            self.end_headers()
            self.wfile.write(sent.body[: sent.cut])

        def log_message(self, *_: object) -> None:
            pass

    with serving(Handler) as old.url:
        yield old
