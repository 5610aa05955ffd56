"""Recordings of other shops, made up: chat messages with tools, task files of the original, replies in text."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from scripted import Json

from shopskill_lib.adapters import openai_messages
from shopskill_lib.adapters.recorded import as_trajectories
from shopskill_lib.trajectories import Trajectory

Write = Callable[..., Path]

DETAIL = (
    "page_type: product_detail\nasin: 812345678901\ntitle: {title}\nbrand: {brand}\ncategory: a›b\nprice: {price}\n"
    'selected_options: {{"size": "L"}}'
)
HOME = "page_type: search_results\n1|812345678901|20.0"


def call(name: str, number: int, arguments: str) -> list[Json]:
    made = {"id": f"c{number}", "type": "function", "function": {"name": name, "arguments": arguments}}
    return [{"role": "assistant", "content": "Let me see.", "tool_calls": [made]}]


def recording(
    name: str = "r-1", *, price: str = "20.0", last: str = "buy_now", said: str = "购买已完成。", **more: Any
) -> Json:
    detail = DETAIL.format(title="Veltra trail running jacket women", brand="Veltra", price=price)
    steps = [
        ("search_products", '{"query": "jacket 外套"}', HOME),
        ("open_product", '{"asin": "812345678901"}', detail),
        ("select_option", '{"value": "L"}', detail),
        (last, "{}", said),
    ]
    messages: list[Json] = [{"role": "system", "content": "s"}, {"role": "user", "content": "Instruction: a jacket"}]
    for number, (tool, arguments, answer) in enumerate(steps):
        messages += [*call(tool, number, arguments), {"role": "tool", "tool_call_id": f"c{number}", "content": answer}]
    return {"trajectory_id": name, "task_id": 7, "messages": messages} | more


def json_lines(*items: Any) -> str:
    """Write JSON as it is, one item a line, half surrogate pairs as escapes."""
    lines = [json.dumps(item, ensure_ascii=False).encode(errors="backslashreplace").decode() for item in items]
    return "\n".join(lines) + "\n"


def read_messages(path: Path) -> tuple[Trajectory, ...]:
    """Read chat messages as analysts do."""
    return as_trajectories(openai_messages.FORMAT.read(path).episodes)


REQUESTS = {"zh": "想买一个白色防漏保温杯，50元以内。", "en": "I want a white thermos, leak-proof, below 50 dollars."}
FOOTERS = {"zh": ("搜索功能是否可用", "可点击的按钮"), "en": ("Search function available", "Clickable buttons")}
CUP, OTHER_CUP = "100000000002", "100000000001"
TITLES = {"zh": "示例大保温杯", "en": "Sample large thermos"}
AXES = {"zh": ("颜色分类", "白色", "黑色"), "en": ("Color", "white", "black")}
SHOPS = {"zh": "示例小店", "en": "Sample corner store"}


def footer(language: str, buttons: list[str], *, search: bool = False) -> str:
    names = FOOTERS[language]
    return f"\n\n{names[0]}: {search}\n\n{names[1]}: {json.dumps(buttons, ensure_ascii=False)}"


def separated(language: str, nodes: list[str], buttons: list[str]) -> str:
    """A page of text nodes, below the request and the way back."""
    head = ["Instruction:", REQUESTS[language], "Back to Search"]
    return " [SEP] ".join(head + nodes) + footer(language, ["back to search", *buttons])


def results_page(language: str) -> str:
    listed = [CUP, TITLES[language], "39.0 to 45.0", OTHER_CUP, "Norda cup", "12.5"]
    return separated(language, ["Page 1 (Total results: 2)", *listed], [CUP, OTHER_CUP])


def product_page(language: str, price: str = "39.0 to 45.0") -> str:
    axis, *values = AXES[language]
    told = [f"价格: {price}", f"店铺: {SHOPS[language]}", "Description", "Features", "Reviews", "Buy Now"]
    buttons = ["< prev", "description", "features", "reviews", "buy now", *values]
    return separated(language, ["< Prev", axis, *values, TITLES[language], *told], buttons)


def task_file(language: str = "zh", **changes: Any) -> Json:
    """A file of the original's single_eval, of a purchase that met everything."""
    first = f"Instruction: {REQUESTS[language]}{footer(language, [], search=True)}"
    pages = [first, results_page(language), product_page(language), product_page(language, "42")]
    actions = [f"search[{TITLES[language]}]", f"click[{CUP}]", f"click[{AXES[language][1]}]", "click[buy now]"]
    talk = [{"role": "system", "content": "Shop."}]
    for page, action in zip(pages, actions, strict=True):
        talk += [
            {"role": "user", "content": page},
            {"role": "assistant", "content": f"Thought: 好。\nAction: {action}"},
        ]
    bought = {"asin": CUP, "name": TITLES[language], "category": "家居›杯子", "options": {AXES[language][0]: "white"}}
    goal = {"asin": OTHER_CUP, "attributes": ["防漏"], "instruction_text": REQUESTS[language], "user_persona": {}}
    detail = {"r_type": 1.0, "r_att": 1.0, "r_option": 1.0, "r_price": True, "title_score": 0.5, "num_attr_matches": 1}
    return {
        "task_id": 7,
        "reward": 1.0,
        "reward_detail": detail,
        "goal": goal | {"goal_options": ["白色"], "price_upper": 60, "instruction_simple": "想买一个保温杯。"},
        "purchase": bought | {"price": 41.7, "query": "", "attributes": ["保温"], "instruction_text": "另一个。"},
        "conversation": talk,
    } | changes
