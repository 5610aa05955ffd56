"""A seeded catalogue: twelve domains, near-identical products, personas, tasks and splits in either language.

Every draw is made on the structure that both languages share, so one seed gives the same products, prices and
tasks in both; only the words differ. Products of a sub-category come in families that share most of their
attributes and differ in one or two of them, in option values or in the price of a variant.
"""

import json
import math
import random
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import resources
from typing import Any, NamedTuple

from shopskill_lib.errors import ParameterError
from shopskill_lib.records import Language, Product, RequiredOption, Split, Task
from shopskill_lib.shops.budget import parse_budget
from shopskill_lib.shops.catalog import Catalogue
from shopskill_lib.shops.reward import resolve_price

FAMILY = 8
"""Products of one sub-category that share most attributes."""

_FIRST_ID = 100_000_000_000
_OVERSHOOT = 0.12
"""Share by which a price limit lies above gold's variant at most, before rounding up."""


class Axis(NamedTuple):
    """One option axis of the vocabulary."""

    name: str
    values: tuple[str, ...]
    moves_price: bool
    personal: str | None
    """Part of the persona that can tell the value: ``preferences``, ``sizes`` or None."""


class Facet(NamedTuple):
    """One kind of attribute of a domain; each product has one of its values."""

    name: str
    values: tuple[str, ...]


class Kind(NamedTuple):
    """One sub-category."""

    name: str
    category: str
    low: int
    high: int
    axes: tuple[Axis, ...]
    facets: tuple[Facet, ...]


class Listing(NamedTuple):
    """A product with what it was made from."""

    product: Product
    kind: Kind
    facets: dict[str, str]
    """Facet name -> value of this product."""


@dataclass(frozen=True)
class Vocabulary:
    """The words of one language over the structure that all languages share."""

    kinds: tuple[Kind, ...]
    brands: tuple[str, ...]
    shops: tuple[str, ...]
    texts: dict[str, Any]


def load_vocabulary(language: Language) -> Vocabulary:
    """Return the vocabulary of a language from the package's data file."""
    text = resources.files("shopskill_lib.shops").joinpath("vocabulary.json").read_text(encoding="utf-8")
    data = _in_language(json.loads(text), 0 if language == "en" else 1)
    axes = {
        name: Axis(axis["name"], tuple(axis["values"]), axis["moves_price"], axis["personal"])
        for name, axis in data["axes"].items()
    }
    kinds = tuple(
        Kind(
            name=kind["name"],
            category=f"{domain['name']}›{kind['name']}",
            low=kind["price"][0],
            high=kind["price"][1],
            axes=tuple(axes[name] for name in kind["axes"].split()),
            facets=tuple(Facet(facet["name"], tuple(facet["values"])) for facet in domain["facets"]),
        )
        for domain in data["domains"]
        for kind in domain["kinds"]
    )
    brands = tuple(first + second for second in data["brands"]["second"] for first in data["brands"]["first"])
    return Vocabulary(kinds, brands, tuple(data["shops"]), data["texts"])


def _in_language(node: Any, index: int) -> Any:
    """Replace every pair of texts by the text of one language."""
    if isinstance(node, dict):
        return {name: _in_language(child, index) for name, child in node.items()}
    if not isinstance(node, list):
        return node
    if len(node) == 2 and all(isinstance(child, str) for child in node):
        return node[index]
    return [_in_language(child, index) for child in node]


def generate_catalogue(
    seed: int,
    language: Language,
    *,
    products: int = 20_000,
    train: int = 800,
    val: int = 400,
    test: int = 400,
    more: int = 0,
) -> Catalogue:
    """Return a catalogue with its tasks; no two tasks share a product or a persona, so splits are disjoint.

    Args:
        seed: the same seed gives the same catalogue, to the byte.
        language: words and currency of all texts.
        products: number of products, at least that of tasks.
        train: tasks of each split; val and test do not depend on the number of train tasks.
        val: see train.
        test: see train.
        more: further val tasks, written after all others, so that those and the products stay what they are.

    Raises:
        ParameterError: a number below 0, or more tasks than products.
    """
    wanted: list[tuple[Split, int]] = [("val", val), ("test", test), ("train", train), ("val", more)]
    if min(train, val, test, more) < 0 or products < max(1, train + val + test + more):
        raise ParameterError(
            f"{products} products are asked for, with {train}, {val} and {test} tasks and {more} more",
            where="products, train, val, test, more",
            allowed="numbers of at least 0, and at least as many products as tasks",
            todo="ask for more products or fewer tasks",
        )
    vocabulary = load_vocabulary(language)
    rng = random.Random(f"catalogue:{seed}")
    listings = sorted(_listings(vocabulary, products, rng), key=lambda listing: listing.product.asin)
    rng = random.Random(f"tasks:{seed}")
    golds = iter(rng.sample(listings, len(listings)))
    writer = _TaskWriter(vocabulary, language, rng)
    tasks = [writer.task(split, next(golds)) for split, count in wanted for _ in range(count)]
    return Catalogue(
        language,
        {listing.product.asin: listing.product for listing in listings},
        {task.task_id: task for task in tasks},
    )


def _listings(vocabulary: Vocabulary, count: int, rng: random.Random) -> Iterator[Listing]:
    ids = iter(rng.sample(range(_FIRST_ID, 10 * _FIRST_ID), count))
    for number, kind in enumerate(vocabulary.kinds):
        share = count // len(vocabulary.kinds) + (number < count % len(vocabulary.kinds))
        family: list[str] = []
        base = 0.0
        for member in range(share):
            if member % FAMILY == 0:
                family = [rng.choice(facet.values) for facet in kind.facets]
                base = kind.low * (kind.high / kind.low) ** rng.random()
            values = _varied(family, kind, rng)
            price = max(1.0, base * rng.uniform(0.85, 1.2))
            facets = {facet.name: value for facet, value in zip(kind.facets, values, strict=True)}
            yield Listing(_product(str(next(ids)), kind, values, price, vocabulary, rng), kind, facets)


def _varied(family: list[str], kind: Kind, rng: random.Random) -> list[str]:
    """Return the family's attributes with none, one or two of them changed."""
    values = list(family)
    for place in rng.sample(range(len(values)), rng.choice((0, 1, 1, 2))):
        values[place] = rng.choice(kind.facets[place].values)
    return values


def _product(
    asin: str, kind: Kind, values: list[str], price: float, vocabulary: Vocabulary, rng: random.Random
) -> Product:
    brand, second = rng.choice(vocabulary.brands), rng.randrange(1, len(values))
    model = rng.choice("ABCDEFGHJKLMNPRSTVWX") + rng.choice("ABCDEFGHJKLMNPRSTVWX") + str(rng.randrange(100, 1000))
    title = vocabulary.texts["title"].format(
        brand=brand, first=values[0], kind=kind.name, model=model, second=values[second]
    )
    options = _options(kind, price, rng)
    prices = [price for axis in options.values() for price in axis.values() if price is not None]
    return Product(
        asin=asin,
        title=title,
        brand=brand,
        shop=brand + rng.choice(vocabulary.shops),
        category=kind.category,
        attributes=tuple(rng.sample(values, len(values))),
        options=options,
        pricing=(min(prices),) if min(prices) == max(prices) else (min(prices), max(prices)),
        description="",
    )


def _options(kind: Kind, price: float, rng: random.Random) -> dict[str, dict[str, float | None]]:
    """Return the axes of one product; the first that may move the price does, else the price is constant."""
    options: dict[str, dict[str, float | None]] = {}
    moving = next((axis for axis in kind.axes if axis.moves_price), None)
    for axis in kind.axes:
        if axis.personal == "preferences":
            values = rng.sample(axis.values, min(len(axis.values), rng.randint(3, 6)))
        else:
            length = rng.randint(2, min(5, len(axis.values)))
            start = rng.randrange(len(axis.values) - length + 1)
            values = list(axis.values[start : start + length])
        options[axis.name] = dict.fromkeys(values)
    if moving is None:
        options[kind.axes[0].name] = dict.fromkeys(options[kind.axes[0].name], float(round(price)))
    else:
        step = rng.uniform(0.15, 0.45)
        values = list(options[moving.name])
        options[moving.name] = {value: float(round(price * (1 + step * place))) for place, value in enumerate(values)}
    return options


@dataclass
class _TaskWriter:
    """Writes tasks one after the other from one stream of draws."""

    vocabulary: Vocabulary
    language: Language
    rng: random.Random
    written: int = 0

    def task(self, split: Split, gold: Listing) -> Task:
        """Return a task that the listing meets, with a persona who tells part of it."""
        self.written += 1
        product, rng = gold.product, self.rng
        facets = rng.sample(list(gold.facets), rng.choice((2, 3, 3)))
        chosen = {axis: rng.choice(list(values)) for axis, values in product.options.items()}
        required = {axis.name: chosen[axis.name] for axis in gold.kind.axes if rng.random() < 0.85}
        price = resolve_price(product, chosen).price
        assert price is not None, f"gold {product.asin} has no price"
        told_options = {axis.name for axis in gold.kind.axes if axis.personal and rng.random() < 0.8}
        told_facets = set(facets[:1] if rng.random() < 0.7 or not told_options & set(required) else [])
        words = self._words(gold, price)
        full = self._instruction(words, [gold.facets[name] for name in facets], required)
        simple = self._instruction(
            words,
            [gold.facets[name] for name in facets if name not in told_facets],
            {axis: value for axis, value in required.items() if axis not in told_options},
        )
        told = {axis: required[axis] for axis in told_options & set(required)}
        return Task(
            task_id=str(self.written),
            split=split,
            instruction=full,
            instruction_simple=simple,
            persona=self._persona(gold, told, {name: gold.facets[name] for name in told_facets}),
            attributes=tuple(gold.facets[name] for name in facets),
            options=tuple(RequiredOption(axis, value) for axis, value in required.items()),
            price_upper=parse_budget(simple, self.language),
            gold_asin=product.asin,
            category=product.category,
        )

    def _words(self, gold: Listing, price: float) -> dict[str, str]:
        """Return the sentences of a request that both of its forms share, and templates for the others."""
        texts, rng = self.vocabulary.texts, self.rng
        limit = math.ceil(price * (1 + rng.uniform(0, _OVERSHOOT)))
        about = rng.randrange(len(texts["price"]))
        amount = math.ceil(limit / 1.1) if about == len(texts["price"]) - 1 else limit  # the last one says "around"
        return {
            "opening": rng.choice(texts["opening"]).format(kind=gold.kind.name),
            "attributes": rng.choice(texts["attributes"]),
            "options": rng.choice(texts["options"]),
            "price": texts["price"][about].format(amount=amount),
        }

    def _instruction(self, words: dict[str, str], attributes: list[str], options: dict[str, str]) -> str:
        texts = self.vocabulary.texts
        parts = [words["opening"]]
        if attributes:
            parts.append(words["attributes"].format(items=texts["between"].join(attributes)))
        if options:
            items = [texts["option"].format(axis=axis, value=value) for axis, value in options.items()]
            parts.append(words["options"].format(items=texts["between"].join(items)))
        return (" " if self.language == "en" else "").join([*parts, words["price"]])

    def _persona(self, gold: Listing, told: dict[str, str], facets: dict[str, str]) -> dict[str, Any]:
        """Return a persona who prefers what was left out, with tastes in other domains beside it."""
        rng, names = self.rng, self.vocabulary.texts["persona"]
        others = rng.sample(self.vocabulary.kinds, 5)
        known: dict[str, dict[str, str]] = {"preferences": {}, "sizes": {}}
        for kind in others:
            if kind.facets is not gold.kind.facets:
                facet = rng.choice(kind.facets)
                known["preferences"].setdefault(facet.name, rng.choice(facet.values))
            for axis in kind.axes:
                if axis.personal:
                    known[axis.personal].setdefault(axis.name, rng.choice(axis.values))
        own = [facet.name for facet in gold.kind.facets]
        own += [axis.name for axis in gold.kind.axes if axis.personal is None]
        for name in own:
            known["preferences"].pop(name, None)
        for axis in gold.kind.axes:
            if axis.personal and axis.name in told:
                known[axis.personal][axis.name] = told[axis.name]
        known["preferences"].update(facets)
        searches = [f"{rng.choice(rng.choice(kind.facets).values)} {kind.name}" for kind in others[:3]]
        return {
            names["user"]: f"u{self.written:06d}",
            names["preferences"]: dict(sorted(known["preferences"].items())),
            names["sizes"]: dict(sorted(known["sizes"].items())),
            names["searches"]: searches,
        }
