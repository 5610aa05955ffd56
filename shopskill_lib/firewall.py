"""The gold firewall: what the audit knows of a task never reaches a text that travels (M11, M12, I5).

`public` stops privileged values at every writer; `Screen` finds the facts of instances in texts. A text is never
edited here and a finding never dropped: what becomes of a finding is the caller's decision (M7).
"""

import dataclasses
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from datetime import date
from enum import Enum
from pathlib import PurePath
from typing import Any, Literal, NamedTuple

from pydantic import BaseModel, Field

from shopskill_lib.disguises import View, compact, decoded, mirrored, plain, view
from shopskill_lib.errors import FirewallError, InputError
from shopskill_lib.passages import LONG_WEIGHT, TITLE_WEIGHT, is_phrase, telling_windows, windows
from shopskill_lib.records import Episode, Language, Privileged, Product, RequiredOption, RewardDetail, Task
from shopskill_lib.text import units

Kind = Literal["identifier", "title", "fragment", "brand", "option", "number", "unobservable"]

ANCHOR = 6
"""Fewest characters of an identifier that is found without a word like ``task`` beside it."""

_HOLDERS = (Task, Product, Episode, RewardDetail)
"""Records that name gold among other things: what is written of them is taken out by name, never handed on whole."""

_REFUSAL = {
    "allowed": "records, mappings and sequences that hold nothing derived from gold (M11)",
    "todo": "hand over only the facts and deployable parts",
}

LONG_NUMBER = 9
"""Digits that no plain quantity has."""

_ATOMS = (str, bytes, int, float, complex, PurePath, date, Enum, type(None))

_SHORT_ID_NAMES = (
    *("task", "id", "asin", "item", "product", "trajectory", "no"),
    *("任务", "编号", "商品", "轨迹", "号"),
)
_AXES = ("size", "color", "colour", "尺码", "码", "号", "颜色", "规格")

_IDENTIFIERS = re.compile(
    r"(?<![a-z])asins?(?![a-z])"
    r"|(?:(?<![a-z])(?:task|trajectory)|任务|轨迹)(?:[\s_#:-]|id|no\.|编号|第)*(?<=[_#])\d+"
    r"|(?:(?<![a-z])(?:task|trajectory)|任务|轨迹)(?:[\s_#:-]|id|no\.|编号|第)*\d{2,}"
    r"|(?<!\d)(?:\d{9,}|\d(?:[\W_]{1,3}\d){8,})(?!\d)"
)
"""Read in digits: the word ASIN, task numbers, nine digits in a row, joined or one by one."""
_ROUND = re.compile(r"\d{1,3}0{6,}")

_UNOBSERVABLE = re.compile(
    r"(?<![a-z])(?:ground[\s_-]*truth|oracle|answer[\s_-]keys?"
    r"|gold(?:en)?[\s_-]+(?:products?|items?|answers?|targets?|labels?|purchases?|trajector(?:y|ies)|truth)"
    r"|gold['’]s|(?:from|than|match(?:es|ed|ing)?|equals?)\s+(?:the\s+)?gold(?=\s*(?:[.,;:!?)]|in\b|on\b|$))"
    r"|target(?:ed)?[\s_-]+(?:products?|items?)"
    r"|(?:correct|reference|expected|standard)[\s_-]+answers?"
    r"|correct[\s_-]+(?:products?|items?)"
    r"|rewards?(?![\s_-]*(?:points?|cards?|program|coupons?|credits?))"
    r"|r_(?:att|type|option|price|loose|strict|success)\w*)(?![a-z])"
    r"|(?:与|和|跟|同)\s*gold(?![a-z])|(?<![a-z])gold\s*(?:商品|产品|答案)"
    r"|金标|标准答案|正确答案|参考答案|目标商品|目标产品|正确商品|正确的商品|黄金(?:商品|答案|标准)|真值|奖励(?!积分|券|金)"
)
"""What no policy can see. ``gold`` alone is a colour and counts only where something is compared with it;
``golden rule`` is an idiom, reward points are a shop's offer."""

_AMOUNT = re.compile(r"[$¥€£]\s*(\d[\d,]*(?:\.\d+)?)|(\d[\d,]*(?:\.\d+)?)\s*(?:元|块|人民币|dollars?|yuan|usd|rmb)")
_VALUE_PARTS = re.compile(r"[|/,，、;；()（）\[\]【】+]")
_DIGIT_BEFORE, _DIGIT_AFTER = re.compile(r"\d[.,]$"), re.compile(r"[.,]\d")
_SHOP = re.compile(
    r"(?:官方)?(?:旗舰|专营|专卖|官方|折扣|优选|集合|直营|授权|自营)?店铺?$"
    r"|\s+(?:official|flagship|outlet|select)?\s*(?:store|shop|outlet|select)$"
)
_LONG_CODE = re.compile(r"[a-z_-]*\d{5,}")

_COMPLAINTS: dict[Kind, tuple[str, str]] = {
    "identifier": (
        "field {field} holds an identifier of a task or product; describe what to look at, not which one it was",
        "字段 {field} 含有任务或商品的编号；请描述该看什么，不要指明是哪一个",
    ),
    "title": (
        "field {field} repeats the title of a product; describe the behaviour, not the product",
        "字段 {field} 重复了某个商品的标题；请描述做法，不要描述商品",
    ),
    "fragment": (
        "field {field} copies a passage from a task or product; say it in general words",
        "字段 {field} 照抄了任务或商品中的一段话；请用一般性的说法",
    ),
    "brand": (
        "field {field} names a brand or shop of this instance; describe the behaviour, not the product",
        "字段 {field} 提到了本例的品牌或店铺；请描述做法，不要描述商品",
    ),
    "option": (
        "field {field} names an option value of this instance; name the kind of option, not the value",
        "字段 {field} 提到了本例的规格值；请只说规格的种类，不要说具体的值",
    ),
    "number": (
        "field {field} states a price or budget of this instance; say how to compare amounts, not which ones",
        "字段 {field} 写出了本例的价格或预算；请说明如何比较金额，不要写具体数目",
    ),
    "unobservable": (
        "field {field} speaks of something that no shopper can see; name only what request, persona or page show",
        "字段 {field} 提到了购物者看不到的东西；请只写需求、画像或页面上能看到的内容",
    ),
}


class Finding(Privileged):
    """One place of a text that may not travel."""

    kind: Kind
    field: str
    """Name of the text; ``a + b`` where the place runs over a seam."""
    excerpt: str = Field(repr=False)
    """The offending words, in plain form."""

    def complaint(self, language: Language) -> str:
        """Return what the author is told: no word of the excerpt, and what to write instead."""
        return _COMPLAINTS[self.kind][language == "zh"].format(field=self.field)


@dataclass(frozen=True, slots=True, repr=False)
class Instance:
    """The facts of one task that no deployable text may hold. Privileged (M11); never shown as text."""

    identifiers: tuple[str, ...] = ()
    """Ids of the task, its products and trajectories."""
    titles: tuple[str, ...] = ()
    brands: tuple[str, ...] = ()
    """Brands and shops."""
    options: tuple[RequiredOption, ...] = ()
    """Values that are told with their axis, or without (None)."""
    numbers: tuple[float, ...] = ()
    """Prices and the budget."""
    texts: tuple[str, ...] = ()
    """Requests, descriptions, persona values."""

    def __repr__(self) -> str:
        count = sum(len(getattr(self, field.name)) for field in dataclasses.fields(self))
        return f"Instance({count} privileged facts)"


def instance_of(task: Task, products: Iterable[Product], identifiers: Iterable[str] = ()) -> Instance:
    """Return the facts of a task and of the products that were opened, bought or gold.

    Every value that the task requires is a fact. Other values of the products are facts when they are phrases of
    their own (`TITLE_WEIGHT`): that a shop sells grey things or 500 ml is common knowledge.

    Args:
        task: the task.
        products: gold, bought and opened products.
        identifiers: further ids, such as those of trajectories.
    """
    products = tuple(products)
    told = tuple(_leaves(task.persona))
    codes = tuple(leaf for leaf in told if _LONG_CODE.fullmatch(plain(leaf)))
    texts = (task.instruction, task.instruction_simple or "", *told)
    values = [RequiredOption(axis, value) for item in products for axis in item.options for value in item.options[axis]]
    prices = [price for item in products for axis in item.options.values() for price in axis.values()]
    amounts = [float((one or two).replace(",", "")) for one, two in _AMOUNT.findall(plain("\n".join(texts[:2])))]
    return Instance(
        identifiers=_each((task.task_id, task.gold_asin, *(item.asin for item in products), *identifiers, *codes)),
        titles=_each(item.title for item in products),
        brands=_each(name for item in products for name in (item.brand, item.shop)),
        options=_each((*task.options, *(value for value in values if is_phrase(value.value)))),
        numbers=_each(
            price
            for price in (task.price_upper, *amounts, *prices, *(price for item in products for price in item.pricing))
            if price is not None
        ),
        texts=_each((*texts, *(item.description for item in products))),
    )


def public(value: object, where: str) -> None:
    """Let through what holds nothing privileged; called by whatever writes prompts, cards, chunks or pools (M11).

    Args:
        value: records, dataclasses, mappings, sequences and sets of plain values, to any depth.
        where: the writer, for the message.

    Raises:
        FirewallError: something privileged, a record that names gold, or something that cannot be looked
            into, is anywhere inside.
    """
    todo = [(value, "the value")]
    seen = dict[int, object]()
    while todo:
        item, path = todo.pop()
        if isinstance(item, (Privileged, Instance, *_HOLDERS)):
            raise FirewallError(f"{path} is privileged ({type(item).__name__})", where=where, **_REFUSAL)
        if isinstance(item, _ATOMS) or id(item) in seen:
            continue
        seen[id(item)] = item
        todo.extend(_children(item, path, where))


def _children(item: object, path: str, where: str) -> Iterator[tuple[object, str]]:
    """Yield what a container holds, each with its path."""
    if isinstance(item, BaseModel):
        yield from ((value, f"{path}.{name}") for name, value in item)
    elif dataclasses.is_dataclass(item) and not isinstance(item, type):
        yield from ((getattr(item, field.name), f"{path}.{field.name}") for field in dataclasses.fields(item))
    elif isinstance(item, Mapping):
        yield from ((name, f"a key of {path}") for name in item)
        yield from ((child, f"an entry of {path}") for child in item.values())
    elif isinstance(item, Sequence | Set):
        yield from ((child, f"an item of {path}") for child in item)
    else:
        found = f"{path} is a {type(item).__name__}, which cannot be looked into"
        raise FirewallError(found, where=where, **_REFUSAL)


class _Fact(NamedTuple):
    """One fact as a run of units."""

    kind: Kind
    run: tuple[str, ...]
    axes: tuple[tuple[str, ...], ...]
    """Names one of which must stand beside the run; empty where none need."""


class _Index(NamedTuple):
    """What is known of one instance."""

    facts: tuple[_Fact, ...]
    names: frozenset[tuple[str, Kind]]
    """Compact forms found with separators inside: brands and shops not of Han alone, also mirrored; amounts of three
    digits."""
    windows: frozenset[tuple[str, ...]]
    """Windows of its long texts."""


class _Hit(NamedTuple):
    """A span of a view."""

    kind: Kind
    start: int
    end: int


class Screen:
    """Finds the facts of instances in texts (M12).

    Args:
        instances: task id -> facts. Identifiers, whole titles and long title fragments of all of them are looked
            for in every text, all other facts only where the task supports the text.
    """

    def __init__(self, instances: Mapping[str, Instance]) -> None:
        self._index = {task_id: _index(instance) for task_id, instance in instances.items()}
        self._forms: dict[str, set[tuple[str, Kind]]] = {}
        self._windows: set[tuple[str, ...]] = set()
        for instance in instances.values():
            for form, kind in _forms(instance):
                self._forms.setdefault(form[:ANCHOR], set()).add((form, kind))
            for title in instance.titles:
                self._windows.update(telling_windows(title, TITLE_WEIGHT))

    def scan(self, texts: Mapping[str, str], task_ids: Iterable[str] | None) -> tuple[Finding, ...]:
        """Return everything found in the fields of a record, in reading order.

        Args:
            texts: name -> text, neighbours in order: what is split over two of them is found too.
            task_ids: the tasks that support the record, scanned for all their facts; None for none.

        Raises:
            InputError: a task whose facts are not known: its text cannot be said to be clean.
        """
        indices = [self._known(task_id) for task_id in task_ids or ()]
        hidden = [(name, piece) for name, text in texts.items() for piece in decoded(text)]
        found = dict[Finding, None]()
        for one in [view(texts.items()), *(view([pair]) for pair in hidden)]:
            hits = {*_patterns(one), *self._everywhere(one), *_of_instances(one, indices)}
            for hit in sorted(hits, key=lambda hit: (hit.start, hit.end, hit.kind)):
                excerpt = one.plain[hit.start : hit.end]
                found[Finding(kind=hit.kind, field=one.fields(hit.start, hit.end), excerpt=excerpt)] = None
        return tuple(found)

    def _known(self, task_id: str) -> _Index:
        if task_id not in self._index:
            raise InputError(
                f"the facts of task {task_id!r} are not known, so a text that rests on it cannot be checked",
                where="firewall",
                allowed="tasks that the screen was built with",
                todo="build the screen with the instances of all tasks whose trajectories are used",
            )
        return self._index[task_id]

    def _everywhere(self, one: View) -> Iterator[_Hit]:
        """Yield identifiers, titles and title fragments of any instance."""
        text = one.compact
        for start in range(len(text)):
            for form, kind in self._forms.get(text[start : start + ANCHOR], ()):
                span = one.span(start, form)
                if span and (kind == "title" or _is_meant(one, form, *span)):
                    yield _Hit(kind, *span)
        yield from _fragments(one, TITLE_WEIGHT, self._windows)


def _forms(instance: Instance) -> Iterator[tuple[str, Kind]]:
    """Yield the compact forms under which an instance is known everywhere."""
    for identifier in instance.identifiers:
        form = compact(identifier)
        if len(form) >= ANCHOR:
            yield from ((other, "identifier") for other in mirrored(form))
            if form.isdecimal() and len(form) >= LONG_NUMBER:
                yield f"{int(form):x}", "identifier"
    for title in instance.titles:
        if is_phrase(title):
            yield from ((other, "title") for other in mirrored(compact(title)))


def _index(instance: Instance) -> _Index:
    """Return the facts of an instance in the forms that a scan compares; a shop counts without "flagship store" too."""
    brands = {part for brand in map(plain, instance.brands) for part in (brand, _SHOP.sub("", brand))}
    facts = [
        *(_short_identifier(identifier) for identifier in instance.identifiers if len(compact(identifier)) < ANCHOR),
        *(_Fact("title", _run(title), ()) for title in instance.titles if not is_phrase(title)),
        *(fact for brand in brands for fact in _brand(brand)),
        *(fact for option in instance.options for fact in _option(option)),
        *(_Fact("number", _run(f"{number:f}"), ()) for number in instance.numbers if _significant(number) >= 2),
    ]
    mixed = [form for form in map(compact, brands) if any(map(str.isascii, form))]
    names = {form for name in mixed for form in mirrored(name)}
    amounts = {str(int(number)) for number in instance.numbers if number % 1 == 0 and _significant(number) >= 2}
    return _Index(
        tuple(dict.fromkeys(fact for fact in facts if fact.run)),
        frozenset(
            [(name, "brand") for name in names if len(name) >= 4]
            + [(form, "number") for form in amounts if len(form) >= 3]
        ),
        frozenset(window for text in instance.texts for window in telling_windows(text, LONG_WEIGHT)),
    )


def _short_identifier(identifier: str) -> _Fact:
    form = compact(identifier)
    telling = len(form) >= 4 and not form.isdecimal() and not form.isalpha()
    return _Fact("identifier", _run(identifier), () if telling else tuple(map(_run, _SHORT_ID_NAMES)))


def _brand(brand: str) -> Iterator[_Fact]:
    """Yield a name as it stands and reversed; one character names nothing."""
    run = _run(brand)
    if len(compact(brand)) >= 2:
        yield _Fact("brand", run, ())
        yield _Fact("brand", _run(brand[::-1]), ())


def _option(option: RequiredOption) -> Iterator[_Fact]:
    """Yield a value and the parts it is composed of; a letter or a number means something only beside its axis."""
    parts = [part for part in _VALUE_PARTS.split(option.value) if len(compact(part)) >= 2 and not _is_bare(part)]
    for value in (option.value, *parts):
        axes = (option.axis, *_AXES) if option.axis else _AXES
        yield _Fact("option", _run(value), tuple(map(_run, axes)) if _is_bare(value) else ())


def _is_bare(value: str) -> bool:
    form = compact(value)
    return len(form) == 1 or form.isdecimal()


def _significant(number: float) -> int:
    return len(f"{number:f}".replace(".", "").strip("0"))


def _run(text: str) -> tuple[str, ...]:
    return tuple(unit[0] for unit in units(plain(text)))


def _patterns(one: View) -> Iterator[_Hit]:
    """Yield what no text may hold, whatever the instance."""
    for match in _IDENTIFIERS.finditer(one.digits):
        if not _ROUND.fullmatch(match[0]):
            yield _Hit("identifier", *match.span())
    for match in _UNOBSERVABLE.finditer(one.plain):
        yield _Hit("unobservable", *match.span())


def _of_instances(one: View, indices: Sequence[_Index]) -> Iterator[_Hit]:
    """Yield the facts of the instances that support the text."""
    if not indices:
        return
    texts = tuple(unit[0] for unit in one.units)
    positions: dict[str, list[int]] = {}
    for position, text in enumerate(texts):
        positions.setdefault(text, []).append(position)
    for index in indices:
        for fact in index.facts:
            for first in positions.get(fact.run[0], ()):
                last = first + len(fact.run)
                if texts[first:last] == fact.run and _beside(texts, first, last, fact.axes):
                    yield _Hit(fact.kind, one.units[first][1], one.units[last - 1][2])
        for form, kind in index.names:
            yield from _spread(one, form, kind)
    yield from _fragments(one, LONG_WEIGHT, frozenset().union(*(index.windows for index in indices)))


def _beside(texts: tuple[str, ...], first: int, last: int, axes: tuple[tuple[str, ...], ...]) -> bool:
    """Tell whether a name stands right before or after a run, one word between them allowed."""
    for axis in axes:
        size = len(axis)
        places = (first - size, first - size - 1, last, last + 1)
        if any(place >= 0 and texts[place : place + size] == axis for place in places):
            return True
    return not axes


def _spread(one: View, form: str, kind: Kind) -> Iterator[_Hit]:
    """Yield a name or an amount that may be written with separators inside, where it is a word of its own."""
    start = one.compact.find(form)
    while start >= 0:
        span = one.span(start, form)
        if span and one.stands_alone(*span) and _is_meant(one, form, *span):
            yield _Hit(kind, *span)
        start = one.compact.find(form, start + 1)


def _is_meant(one: View, form: str, start: int, end: int) -> bool:
    """Tell an identifier from words or quantities that happen to join into it: ``100, 250`` is not ``100250``."""
    if form.isalpha():
        return one.stands_alone(start, end)
    if form.isdecimal() and len(form) < LONG_NUMBER:
        joined, apart = end - start == len(form), end - start >= 2 * len(form) - 1
        inside = _DIGIT_BEFORE.search(one.plain[max(0, start - 2) : start]) or _DIGIT_AFTER.match(one.plain, end)
        return (joined or apart) and not inside and one.stands_alone(start, end)
    return True


def _fragments(one: View, weight: int, known: Set[tuple[str, ...]]) -> Iterator[_Hit]:
    """Yield the longest spans that are made of known windows."""
    span: tuple[int, int] | None = None
    for window, first, last in windows(one.units, weight):
        if window in known:
            start, end = one.units[first][1], one.units[last - 1][2]
            if span is not None and start > span[1]:
                yield _Hit("fragment", *span)
                span = None
            span = (span[0] if span else start, end)
    if span is not None:
        yield _Hit("fragment", *span)


def _each(values: Iterable[Any]) -> tuple[Any, ...]:
    """Return the values that say something, each once."""
    return tuple(dict.fromkeys(value for value in values if value != ""))


def _leaves(value: Any) -> Iterator[str]:
    """Yield the texts and numbers of a JSON value as text."""
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, list):
        for child in value:
            yield from _leaves(child)
    elif value is not None:
        yield str(value)
