"""What an analyst is told of a trajectory: named sections of text, whole unless the model's context is too small."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from shopskill_lib.firewall import public
from shopskill_lib.records import Language
from shopskill_lib.skills import Skill
from shopskill_lib.text import estimated_tokens
from shopskill_lib.trajectories import Trajectory

HEAD_LINES = 8
"""Lines that stay of a page that is shortened."""

_RESULTS = re.compile(r"search_results|Search results|搜索结果")
"""Stands in the first lines of a page of results."""

_LEFT_OUT: dict[Language, str] = {
    "en": "[{lines} more lines of this page are left out here, because the prompt would be too long]",
    "zh": "[提示词过长，本页其余 {lines} 行在此省略]",
}


@dataclass(frozen=True, slots=True)
class Brief:
    """A user message.

    Attributes:
        text: its sections, one after the other.
        compacted: whether pages were shortened to make it fit (M5).
    """

    text: str
    compacted: bool


def brief(
    trajectory: Trajectory,
    skill: Skill,
    *,
    language: Language,
    room: int,
    more: Mapping[str, Any] | None = None,
) -> Brief:
    """Return what an analyst reads of a trajectory.

    Args:
        trajectory: the trajectory.
        skill: the current skill.
        language: of what is said about pages that are shortened.
        room: tokens that the message may have; beyond, pages lose their later lines, result pages and oldest first.
        more: further sections, JSON values.

    Raises:
        FirewallError: something privileged is among them (M11).
    """
    public([trajectory, skill, more], "the prompt of an analyst")
    sections = {
        "request": trajectory.instruction,
        **({} if trajectory.persona is None else {"persona": _json(trajectory.persona)}),
        "skill": _json([chunk.model_dump() for chunk in skill.chunks]),
        "outcome": _json(_outcome(trajectory)),
        **{name: _json(value) for name, value in (more or {}).items()},
    }
    head = "\n".join(section(name, text) for name, text in sections.items())
    whole = [turn.page.strip() for turn in trajectory.turns]
    used = estimated_tokens(head + _turns(trajectory, [""] * len(whole)))
    pages = _fit(whole, room - used, language)
    return Brief(f"{head}\n{section('trajectory', _turns(trajectory, pages))}", pages != whole)


def section(name: str, text: str) -> str:
    """Return a named section."""
    return f"<{name}>\n{text}\n</{name}>"


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, sort_keys=True, allow_nan=False)


def _outcome(trajectory: Trajectory) -> dict[str, Any]:
    """Return how the episode ended, without anything derived from gold."""
    bought = trajectory.purchase
    purchase = bought and {
        "asin": bought.asin,
        "title": bought.title,
        "options": bought.options,
        "price": bought.price.price,
    }
    return {
        "ending": trajectory.ending,
        "reward": trajectory.reward,
        "parts": trajectory.parts,
        "purchase": purchase,
    }


def _turns(trajectory: Trajectory, pages: Sequence[str]) -> str:
    """Return the turns, one block each."""
    blocks = []
    for turn, page in zip(trajectory.turns, pages, strict=True):
        done = f"<action>{turn.action}</action>" if turn.action is not None else f"<fault>{turn.fault}</fault>"
        if turn.action is None and turn.fault is None:
            done = ""
        missed = f"\n<feedback>{turn.feedback}</feedback>" if turn.feedback not in (None, "executed") else ""
        blocks.append(f'<turn n="{turn.step}">\n{section("page", page)}\n{done}{missed}\n</turn>')
    return "\n".join(blocks)


def _fit(whole: Sequence[str], room: int, language: Language) -> list[str]:
    """Shorten pages until all of them have at most this many tokens, or no page can be shortened further."""
    pages, sizes = list(whole), [estimated_tokens(page) for page in whole]
    results = [place for place, page in enumerate(whole) if _RESULTS.search(page[:200])]
    for place in [*results, *(place for place in range(len(whole)) if place not in results)]:
        if sum(sizes) <= room:
            break
        lines = whole[place].split("\n")
        left_out = _LEFT_OUT[language].format(lines=len(lines) - HEAD_LINES)
        short = "\n".join([*lines[:HEAD_LINES], left_out])
        if len(lines) > HEAD_LINES and estimated_tokens(short) < sizes[place]:
            pages[place], sizes[place] = short, estimated_tokens(short)
    return pages
