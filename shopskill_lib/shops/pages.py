"""Pages: an observation state for each kind of page (reference 1.6) and the text a policy reads (1.7).

The text is a function of the state and the language alone.
"""

from collections.abc import Mapping

from shopskill_lib.records import Feedback, Language, ListedProduct, ObservationState, PriceResolution, Product
from shopskill_lib.text import normalise, tidy

OBSERVATION_VERSION = "shopskill-observation-v1"
PAGE_SIZE = 20
KEY_ATTRIBUTES = 10
VALUES_PER_AXIS = 100
SHOWN_QUERY = 200
"""Characters of a query that a page repeats at most."""

BUY, BACK, PREVIOUS, NEXT = "buy now", "back to search", "< prev", "next >"

_WORDS: dict[Language, dict[str, str]] = {
    "en": {
        "search_home": "Shop home", "search_results": "Search results", "product_detail": "Product page",
        "information_subpage": "Product information",
        "Description": "description", "Features": "features", "Reviews": "reviews", "Attributes": "attributes",
        "terminal": "The episode has ended", "closed": "Nothing more can be done here.",
        "query": "Searched for", "position": "Page {page} of {pages}, results {first}-{last} of {total}",
        "products": "Products", "empty": "No product matches.", "id": "id", "price": "price",
        "title": "title",
        "selected_price": "price of the selection", "brand": "brand", "category": "category",
        "attributes": "attributes", "options": "Options", "unset": "not chosen", "values": "values",
        "missing": "Still to choose", "complete": "All options are chosen.",
        "no_options": "No options to choose.", "last": "Last action", "valid": "done", "invalid": "not done",
        "search": "You can search here.", "clicks": "You can click", "none": "not given",
        ":": ": ", ";": "; ",
    },
    "zh": {
        "search_home": "商店首页", "search_results": "搜索结果", "product_detail": "商品详情",
        "information_subpage": "商品信息",
        "Description": "商品描述", "Features": "商品特点", "Reviews": "评价", "Attributes": "属性",
        "terminal": "本次购物已结束", "closed": "不能再进行任何操作。",
        "query": "搜索词", "position": "第{page}页，共{pages}页；第{first}-{last}件，共{total}件",
        "products": "商品列表", "empty": "没有找到商品。", "id": "编号", "price": "价格", "title": "标题",
        "selected_price": "所选规格价格", "brand": "品牌", "category": "类目",
        "attributes": "属性", "options": "规格", "unset": "未选", "values": "可选值",
        "missing": "还需选择", "complete": "规格已选全。", "no_options": "无需选择规格。",
        "last": "上一步", "valid": "成功", "invalid": "未执行",
        "search": "本页可以搜索。", "clicks": "可以点击", "none": "未提供", ":": "：", ";": "；",
    },
}  # fmt: skip

_MESSAGES: dict[Language, dict[str, str]] = {
    "en": {
        "executed": "The action was carried out.",
        "invalid_format": "Write one action on one line: search[query] or click[value].",
        "multiple_actions_not_allowed": "Only one action at a time.",
        "empty_argument": "The brackets are empty.",
        "search_unavailable": "There is no search box on this page; go back to search first.",
        "already_selected": "This option is already chosen.",
        "incomplete_options": "Choose every option before buying.",
        "unavailable_action": "There is nothing of that name to click on this page.",
    },
    "zh": {
        "executed": "操作已执行。",
        "invalid_format": "请在一行内写一个操作：search[关键词] 或 click[按钮]。",
        "multiple_actions_not_allowed": "一次只能执行一个操作。",
        "empty_argument": "括号内为空。",
        "search_unavailable": "本页没有搜索框，请先返回搜索页。",
        "already_selected": "该规格已经选中。",
        "incomplete_options": "购买前请选全所有规格。",
        "unavailable_action": "本页没有这个可点击的内容。",
    },
}


def feedback(action: str, reason: str, language: Language, missing: list[str] | None = None) -> Feedback:
    """Return what became of an action; ``executed`` is the only valid outcome."""
    found: Feedback = {
        "action": action,
        "valid": reason == "executed",
        "reason": reason,
        "message": _MESSAGES[language][reason],
    }
    if missing is not None:
        found["missing_option_axes"] = missing
    return found


def home_state() -> ObservationState:
    """Return the home page: search only."""
    return _state("search_home", [], search=True)


def terminal_state() -> ObservationState:
    """Return the page after a purchase."""
    return _state("terminal", [])


def results_state(query: str, ranking: list[Product], page: int) -> ObservationState:
    """Return one page, from 1, of the results of a query as typed: all products found, best first."""
    pages = max(1, -(-len(ranking) // PAGE_SIZE))
    start = (page - 1) * PAGE_SIZE
    shown = ranking[start : start + PAGE_SIZE]
    turns = [PREVIOUS] * (page > 1) + [NEXT] * (page < pages)
    state = _state("search_results", [BACK, *turns, *(product.asin for product in shown)])
    state["search_text"] = _shown(tidy(query))
    state["normalized_search_text"] = _shown(normalise(query))
    state["page"], state["total_pages"], state["total_results"] = page, pages, len(ranking)
    state["rank_start"], state["rank_end"] = (start + 1, start + len(shown)) if shown else (0, 0)
    state["products"] = [{**_listed(product), "rank": rank} for rank, product in enumerate(shown, start + 1)]
    return state


def product_state(product: Product, chosen: Mapping[str, str], price: PriceResolution) -> ObservationState:
    """Return a product's page with the options chosen so far; buying is offered once all are."""
    available = {axis: list(values)[:VALUES_PER_AXIS] for axis, values in product.options.items()}
    missing = [axis for axis in available if axis not in chosen]
    labels = [
        option_label(axis, value) for axis, values in available.items() for value in values if chosen.get(axis) != value
    ]
    state = _state("product_detail", [BACK, PREVIOUS, *([] if missing else [BUY]), *labels])
    state["product"] = _listed(product)
    state["selected_options"] = dict(chosen)
    state["available_options"] = available
    state["missing_option_axes"] = missing
    state["options_complete"] = not missing
    if price.price is not None:
        state["selected_price"] = price.price
    return state


def subpage_state(product: ListedProduct, subpage: str, content: str) -> ObservationState:
    """Return a page with more of a product, where a shop has such pages.

    Args:
        product: as its own page shows it.
        subpage: ``Description``, ``Features``, ``Reviews`` or ``Attributes``.
        content: what the page says; may be empty.
    """
    state = _state("information_subpage", [BACK, PREVIOUS])
    state["product"], state["subpage"], state["content"] = product, subpage, content
    return state


def option_label(axis: str, value: str) -> str:
    """Return what is clicked to choose an option value."""
    return f"{axis}={value}"


def _state(page_type: str, actions: list[str], *, search: bool = False) -> ObservationState:
    return {
        "observation_version": OBSERVATION_VERSION, "page_type": page_type, "search_available": search,
        "actions": actions,
    }  # fmt: skip


def _shown(query: str) -> str:
    return query if len(query) <= SHOWN_QUERY else query[:SHOWN_QUERY] + "…"


def _listed(product: Product) -> ListedProduct:
    return {
        "asin": product.asin,
        "title": product.title,
        "brand": product.brand,
        "category": product.category,
        "price": " to ".join(dict.fromkeys(map(str, product.pricing))),
        "key_attributes": list(product.attributes[:KEY_ATTRIBUTES]),
    }


def render(state: ObservationState, language: Language, body: str = "") -> str:
    """Return the text of a page in blocks: the page, the last action, what can be done.

    Args:
        state: the page.
        language: of the words around what the shop says.
        body: the page itself, where a shop tells it as text; "" for what the state holds.
    """
    words = _WORDS[language]
    blocks = [body] if body else _blocks(state, words)
    if "last_action" in state:
        last = state["last_action"]
        outcome = words["valid"] if last["valid"] else f"{words['invalid']} ({last['reason']})"
        blocks.append(f"{words['last']}{words[':']}{outcome}{words[';']}{last['message']}")
    if state["search_available"]:
        blocks.append(words["search"])
    if state["actions"]:
        lines = [f"- {label}" for label in state["actions"]]
        blocks.append("\n".join([words["clicks"] + words[":"].rstrip(), *lines]))
    elif not state["search_available"]:
        blocks.append(words["closed"])
    return "\n\n".join(blocks) + "\n"


def _blocks(state: ObservationState, words: dict[str, str]) -> list[str]:
    """Return what a page says, without what can be done there."""
    if state["page_type"] == "search_results":
        return _results_blocks(state, words)
    if state["page_type"] == "product_detail":
        return _product_blocks(state, words)
    if state["page_type"] == "information_subpage":
        return _subpage_blocks(state, words)
    return [words[state["page_type"]]]


def _results_blocks(state: ObservationState, words: dict[str, str]) -> list[str]:
    colon = words[":"]
    position = words["position"].format(
        page=state["page"], pages=state["total_pages"], first=state["rank_start"], last=state["rank_end"],
        total=state["total_results"],
    )  # fmt: skip
    lines = [words["products"] + colon.rstrip()]
    for product in state["products"]:
        lines.append(f"{product['rank']}. {product['title'] or words['none']}")
        lines.extend(f"   {words[name]}{colon}{value}" for name, value in _facts(product, words) if name != "title")
    if not state["products"]:
        lines.append(words["empty"])
    head = [words["search_results"], f"{words['query']}{colon}{state['search_text']}", position]
    return ["\n".join(head), "\n".join(lines)]


def _product_blocks(state: ObservationState, words: dict[str, str]) -> list[str]:
    colon = words[":"]
    facts = [f"- {words[name]}{colon}{value}" for name, value in _facts(state["product"], words)]
    if "selected_price" in state:
        facts.append(f"- {words['selected_price']}{colon}{state['selected_price']}")
    lines = [words["options"] + colon.rstrip()]
    for axis, values in state["available_options"].items():
        lines.append(f"- {axis}{colon}{state['selected_options'].get(axis, words['unset'])}")
        lines.append(f"  {words['values']}{colon}{' / '.join(values)}")
    missing = state["missing_option_axes"]
    if missing:
        lines.append(f"{words['missing']}{colon}{words[';'].join(missing)}")
    else:
        lines.append(words["complete"] if state["available_options"] else words["no_options"])
    return ["\n".join([words["product_detail"], *facts]), "\n".join(lines)]


def _subpage_blocks(state: ObservationState, words: dict[str, str]) -> list[str]:
    colon, product = words[":"], state["product"]
    facts = [f"- {words['title']}{colon}{product['title']}", f"- {words['id']}{colon}{product['asin']}"]
    name = words.get(state["subpage"], state["subpage"])
    return ["\n".join([words["information_subpage"], *facts]), f"{name}{colon}{state['content'] or words['none']}"]


def _facts(product: ListedProduct, words: dict[str, str]) -> list[tuple[str, str]]:
    none = words["none"]
    facts = [
        ("title", product["title"] or none),
        ("id", product["asin"]),
        ("price", product["price"]),
        ("brand", product["brand"] or none),
        ("category", product["category"] or none),
    ]
    if product["key_attributes"]:
        facts.append(("attributes", words[";"].join(product["key_attributes"])))
    return facts
