"""What the simulated author can say: lessons that help, do nothing or harm, in several wordings of both languages.

The bank's texts are advice in everyday words. What a text of anybody teaches is read by the shopper's own cues, and by
shared words where it holds none.
"""

import json
import re
from collections.abc import Callable
from functools import cache, lru_cache
from importlib import resources
from typing import Any, NamedTuple

from shopskill_lib.records import Language
from shopskill_lib.simulated.competences import advice
from shopskill_lib.text import tokens

SHARED = 0.5
"""Share of a cueless text's words that a lesson of the bank must have to be what the text speaks of."""

_SENTENCE = re.compile(r"(?<=[.!?])\s+(?=[A-Z])|(?<=[。！？])")
_HAN = re.compile("[\u4e00-\u9fff]")


class Wording(NamedTuple):
    """One way of putting a lesson."""

    name: str
    """Of the lesson in the bank."""
    stage: str
    """Module of the shopping workflow."""
    title: str
    mechanism: str
    """What makes the difference, as a noun phrase."""
    when: str
    trigger: str
    """Where it can be seen that it applies."""
    steps: tuple[str, ...]
    check: str
    failure: str
    """What happens without it."""


@cache
def bank() -> dict[str, Any]:
    """Return the lessons by name: those that raise a competence bear its name, those that lower it end in -harming."""
    text = resources.files("shopskill_lib.simulated").joinpath("lessons.json").read_text(encoding="utf-8")
    lessons: dict[str, Any] = json.loads(text)
    return lessons


@cache
def names(effect: int) -> tuple[str, ...]:
    """Return the lessons that help (1), do nothing (0) or harm (-1)."""
    return tuple(name for name, lesson in bank().items() if lesson["effect"] == effect)


def word(name: str, language: Language, uniform: Callable[[str], float]) -> Wording:
    """Return a lesson in one of its wordings; `uniform` makes a number in [0, 1) of the name of a decision."""
    lesson = bank()[name]

    def one(field: str) -> Any:
        texts = lesson[language][field]
        return texts[int(uniform(f"word|{name}|{field}") * len(texts)) % len(texts)]

    texts = {field: one(field) for field in ("title", "mechanism", "when", "trigger", "check", "failure")}
    return Wording(name=name, stage=lesson["stage"], steps=tuple(one("steps")), **texts)


def language_of(text: str) -> Language:
    """Return the language that a text is written in."""
    return "zh" if _HAN.search(text) else "en"


def join(sentences: tuple[str, ...] | list[str], language: Language) -> str:
    """Return sentences as one text."""
    return ("" if language == "zh" else " ").join(sentences)


def split(text: str) -> tuple[str, ...]:
    """Return the sentences of a text, in order."""
    return tuple(piece.strip() for piece in _SENTENCE.split(text.strip()) if piece.strip())


@lru_cache(maxsize=8192)
def topic(text: str) -> str | None:
    """Return the lesson of the bank that a text teaches; None when it speaks of nothing known."""
    spoken = {(name, place): count for name, counts in advice(text).items() for place, count in enumerate(counts)}
    name, harming = max(spoken, key=lambda cue: (spoken[cue], cue))
    if spoken[name, harming]:
        return f"{name}-harming" if harming else name
    told = set(tokens(text))
    shares = {name: len(told & _vocabulary(name)) / len(told) for name in names(0)} if told else {}
    best = max(shares, key=lambda name: (shares[name], name), default=None)
    return best if best is not None and shares[best] >= SHARED else None


@cache
def _vocabulary(name: str) -> frozenset[str]:
    """Return the words of a lesson in both languages."""
    lesson = bank()[name]
    return frozenset(tokens(json.dumps([lesson["en"], lesson["zh"]], ensure_ascii=False)))


def helps(name: str | None) -> bool:
    """Tell whether a topic is a lesson that helps."""
    return name in names(1)


def opposite(name: str) -> str | None:
    """Return the lesson that teaches the contrary; None without one."""
    other = name.removesuffix("-harming") if name.endswith("-harming") else f"{name}-harming"
    return other if other in bank() and other != name else None


def render(wording: Wording, language: Language) -> str:
    """Return a lesson as the text of a chunk."""
    heads = {"en": ("When: ", "Check: ", "Common failure: "), "zh": ("适用：", "检查：", "常见失误：")}[language]
    steps = [f"{number}. {step}" for number, step in enumerate(wording.steps, 1)]
    return "\n".join([heads[0] + wording.when, *steps, heads[1] + wording.check, heads[2] + wording.failure])
