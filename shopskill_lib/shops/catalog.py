"""Catalogues: products and tasks in one language, and the reader of ShopSimulator files (reference 1.12)."""

import hashlib
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from shopskill_lib.errors import InputError
from shopskill_lib.files import parse_json, read_json, read_text
from shopskill_lib.records import Language, Product, RequiredOption, Task, canonical, fingerprint
from shopskill_lib.shops.budget import price_upper
from shopskill_lib.text import key, task_key, tidy

DEFAULT_PRICE = 100.0
"""Listing price of a real product whose ``pricing`` is empty, as in ShopSimulator."""

Json = dict[str, Any]


@dataclass(frozen=True)
class Catalogue:
    """What one shop sells and the tasks set in it."""

    language: Language
    products: Mapping[str, Product]
    """By id, in id order."""
    tasks: Mapping[str, Task]
    """By task id, in the order of the file."""

    @cached_property
    def products_fingerprint(self) -> str:
        """SHA-256 over the canonical lines of all products, in id order."""
        digest = hashlib.sha256()
        for product in self.products.values():
            digest.update(canonical(product.model_dump()) + b"\n")
        return digest.hexdigest()

    @cached_property
    def tasks_fingerprint(self) -> str:
        """SHA-256 of all tasks but for their split, which no page or reward depends on."""
        return fingerprint([task.model_dump(mode="json", exclude={"split"}) for task in self.tasks.values()])

    def product(self, asin: str) -> Product:
        """Return a product by its id.

        Raises:
            InputError: the catalogue has no such product.
        """
        if asin not in self.products:
            raise InputError(
                f"there is no product {asin}",
                where="catalogue",
                allowed="an id of the catalogue",
                todo="check the task or use the catalogue it was made for",
            )
        return self.products[asin]


def load_catalogue(path: Path, *, tasks: Path | None = None, language: Language = "zh") -> Catalogue:
    """Read a ShopSimulator product file, and its tasks.

    Args:
        path: JSON list of products.
        tasks: JSONL file of tasks (task_id, instruction, asin, attributes, options); without it the tasks are
            the products' own ``instructions`` that require an attribute, numbered where they have no id.
        language: language of the catalogue and of its budgets.

    Raises:
        InputError: the file cannot be read, is not such a list, or a product or task in it is malformed.
    """
    entries = read_json(path)
    if not isinstance(entries, list):
        raise InputError(
            f"the file holds a {type(entries).__name__}",
            where=str(path),
            allowed="a JSON list of products",
            todo="give ShopSimulator's product file",
        )
    products: dict[str, Product] = {}
    for number, entry in enumerate(entries, start=1):
        product = _product(entry, f"{path}, product {number}")
        if product.asin in products:
            raise InputError(
                f"the id {product.asin} occurs twice",
                where=f"{path}, product {number}",
                allowed="one product an id",
                todo="remove one of the two",
            )
        products[product.asin] = product
    if tasks is None:
        found = _embedded_tasks(entries, products, path, language)
    else:
        found = _task_lines(tasks, products, language)
    return Catalogue(language, dict(sorted(products.items())), _by_id(found, tasks or path))


def _product(entry: Any, where: str) -> Product:
    entry = _object(entry, where)
    asin = tidy(str(entry.get("asin") or ""))
    if not asin or asin == "nan":
        raise InputError("the product has no id", where=where, allowed="a non-empty asin", todo="give it one")
    where = f"{where} (asin {asin})"
    shop = _text(entry, "shop_name", where)
    return Product(
        asin=asin,
        title=_text(entry, "title", where),
        brand=shop,
        shop=shop,
        category=_text(entry, "category", where),
        attributes=_texts(entry, "attribute", where),
        options=_options(entry.get("customization_options"), where),
        pricing=_pricing(entry.get("pricing") or [DEFAULT_PRICE], f"{where}, pricing"),
        description=tidy(f"{_plain(entry.get('small_description'))} {_plain(entry.get('full_description'))}"),
    )


def _object(value: Any, where: str) -> Json:
    if not isinstance(value, dict):
        raise InputError(
            f"a {type(value).__name__} stands where an object belongs",
            where=where,
            allowed="an object",
            todo="repair the file",
        )
    return value


def _text(entry: Json, name: str, where: str) -> str:
    value = entry.get(name)
    if not isinstance(value, str):
        raise InputError(f"{name} is {value!r}", where=where, allowed="text", todo=f"give the {name} as text")
    return tidy(value)


def _texts(entry: Json, name: str, where: str) -> tuple[str, ...]:
    values = entry.get(name)
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        raise InputError(f"{name} is {values!r}", where=where, allowed="a list of texts", todo=f"repair the {name}")
    return tuple(dict.fromkeys(text for text in map(tidy, values) if text))


def _plain(value: Any) -> str:
    return tidy(" ".join(map(str, value)) if isinstance(value, list) else str(value or ""))


def _options(axes: Any, where: str) -> dict[str, dict[str, float | None]]:
    """Return axis -> value -> price; an axis that is null or has no value is no axis."""
    if not isinstance(axes or {}, dict):
        raise InputError(
            f"customization_options is a {type(axes).__name__}",
            where=where,
            allowed="an object or null",
            todo="give axis -> list of values",
        )
    options: dict[str, dict[str, float | None]] = {}
    for axis, entries in (axes or {}).items():
        place = f"{where}, option axis {axis!r}"
        if not isinstance(entries or [], list):
            raise InputError(
                f"the axis holds a {type(entries).__name__}",
                where=place,
                allowed="a list or null",
                todo="list the values",
            )
        values: dict[str, tuple[str, float | None]] = {}
        for entry in entries or []:
            value, price = _option(entry, place)
            values.setdefault(key(value), (value, price))
        if values:
            options[tidy(axis)] = dict(values.values())
    return options


def _option(entry: Any, where: str) -> tuple[str, float | None]:
    value = entry.get("value") if isinstance(entry, dict) else None
    if not isinstance(value, str) or not tidy(value):
        raise InputError(
            f"an option is {entry!r}", where=where, allowed="an object with a non-empty value", todo="repair the option"
        )
    price = entry.get("price")
    return tidy(value), None if price is None else _price(price, where)


def _pricing(prices: Any, where: str) -> tuple[float, ...]:
    return tuple(_price(price, where) for price in (prices if isinstance(prices, list) else [prices]))


def _price(price: Any, where: str) -> float:
    if isinstance(price, bool) or not isinstance(price, int | float) or not math.isfinite(price) or price < 0:
        raise InputError(
            f"a price is {price!r}",
            where=where,
            allowed="a finite number of at least 0",
            todo="write the price as a number without currency",
        )
    return float(price)


def _embedded_tasks(entries: list[Json], products: Mapping[str, Product], path: Path, language: Language) -> list[Task]:
    tasks: list[Task] = []
    for number, entry in enumerate(entries, start=1):
        for given in entry.get("instructions") or []:
            if not _object(given, f"{path}, product {number}, instructions").get("attributes"):
                continue
            fields = {"task_id": len(tasks), "persona": entry.get("user_persona"), **given, "asin": entry["asin"]}
            fields["options"] = given.get("instruction_options")
            tasks.append(_task(fields, products, language, f"{path}, product {number}"))
    return tasks


def _task_lines(path: Path, products: Mapping[str, Product], language: Language) -> list[Task]:
    tasks: list[Task] = []
    for number, line in enumerate(read_text(path).splitlines(), start=1):
        where = f"{path}, line {number}"
        if line.strip():
            tasks.append(_task(_object(parse_json(line, where), where), products, language, where))
    return tasks


def _task(fields: Json, products: Mapping[str, Product], language: Language, where: str) -> Task:
    asin = tidy(str(fields.get("asin") or ""))
    if asin not in products:
        raise InputError(
            f"task {fields.get('task_id')} asks for product {asin}, which is not in the catalogue",
            where=where,
            allowed="an asin of the catalogue",
            todo="remove the task or add the product",
        )
    instruction, attributes = _text(fields, "instruction", where), _texts(fields, "attributes", where)
    task_id = tidy(str(fields.get("task_id", "")))
    if not task_id or not instruction or not attributes:
        raise InputError(
            "the task has no id, no instruction or no required attribute",
            where=where,
            allowed="all three",
            todo="complete the task",
        )
    persona = fields.get("persona") or None
    simple = _text(fields, "instruction_simple", where) if persona else None
    limit = fields.get("price_upper")
    return Task(
        task_id=task_id,
        split=None,
        instruction=instruction,
        instruction_simple=simple,
        persona=persona and {name: value for name, value in persona.items() if name != "reason_key"},
        attributes=attributes,
        options=_required(fields.get("options")),
        price_upper=price_upper((simple or "", instruction), language) if limit is None else _price(limit, where),
        gold_asin=asin,
        category=products[asin].category,
    )


def _required(options: Any) -> tuple[RequiredOption, ...]:
    if isinstance(options, dict):
        return tuple(RequiredOption(tidy(axis), tidy(str(value))) for axis, value in options.items())
    values = options if isinstance(options, list) else [options]
    return tuple(RequiredOption(None, tidy(str(value))) for value in values if value)


def _by_id(tasks: Iterable[Task], path: Path) -> dict[str, Task]:
    found: dict[str, Task] = {}
    for task in tasks:
        if task_key(task.task_id) in found:
            raise InputError(
                f"the task id {task.task_id} occurs twice",
                where=str(path),
                allowed="ids that differ as numbers (0012 is 12)",
                todo="renumber one of the two",
            )
        found[task_key(task.task_id)] = task
    return {task.task_id: task for task in found.values()}
