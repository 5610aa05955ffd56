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
    return as_trajectories(openai_messages.read(path).episodes)
