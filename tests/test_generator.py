import time
from collections import Counter
from itertools import combinations

import pytest

from shopskill_lib.errors import ParameterError
from shopskill_lib.records import Product, Purchase, Task, canonical
from shopskill_lib.shops.budget import parse_budget
from shopskill_lib.shops.catalog import Catalogue
from shopskill_lib.shops.embedded import EmbeddedShop
from shopskill_lib.shops.generator import generate_catalogue, load_vocabulary
from shopskill_lib.shops.reward import has_attribute, resolve_price, score_purchase
from shopskill_lib.shops.splits import check_disjoint
from shopskill_lib.text import contains, normalise


@pytest.fixture(params=["en", "zh"])
def catalogue(request: pytest.FixtureRequest, catalogues: dict[str, Catalogue]) -> Catalogue:
    return catalogues[request.param]


def moving_axes(product: Product) -> int:
    return sum(
        len({price for price in values.values() if price is not None}) > 1 for values in product.options.values()
    )


def test_the_default_size_within_seconds() -> None:
    start = time.perf_counter()
    catalogue = generate_catalogue(0, "en")
    assert time.perf_counter() - start < 10
    assert len(catalogue.products) == 20_000
    assert Counter(task.split for task in catalogue.tasks.values()) == {"train": 800, "val": 400, "test": 400}
    kinds = Counter(product.category for product in catalogue.products.values())
    assert len(kinds) == 169 and len({path.split("›")[0] for path in kinds}) == 12
    assert min(kinds.values()) >= 110 and max(kinds.values()) <= 120


def test_the_same_seed_gives_the_same_bytes_and_another_another() -> None:
    sizes = {"products": 400, "train": 5, "val": 5, "test": 5}
    one, two = (generate_catalogue(3, "zh", **sizes) for _ in range(2))
    assert one.products_fingerprint == two.products_fingerprint
    assert one.tasks_fingerprint == two.tasks_fingerprint
    assert generate_catalogue(4, "zh", **sizes).products_fingerprint != one.products_fingerprint


def test_more_train_tasks_leave_val_and_test_alone() -> None:
    few, many = (generate_catalogue(3, "en", products=400, train=n, val=5, test=5) for n in (5, 50))
    held_out = [task for task in few.tasks.values() if task.split != "train"]
    assert held_out == [task for task in many.tasks.values() if task.split != "train"]


def test_both_languages_have_one_structure(catalogues: dict[str, Catalogue]) -> None:
    english, chinese = catalogues["en"], catalogues["zh"]
    assert list(english.products) == list(chinese.products)
    for one, other in zip(english.products.values(), chinese.products.values(), strict=True):
        assert one.pricing == other.pricing
        assert [list(values.values()) for values in one.options.values()] == [
            list(values.values()) for values in other.options.values()
        ]
    for left, right in zip(english.tasks.values(), chinese.tasks.values(), strict=True):
        assert (left.task_id, left.split, left.gold_asin, left.price_upper) == (
            right.task_id,
            right.split,
            right.gold_asin,
            right.price_upper,
        )
        assert (len(left.attributes), len(left.options)) == (len(right.attributes), len(right.options))


def test_no_text_mixes_the_languages(catalogues: dict[str, Catalogue]) -> None:
    for task in catalogues["en"].tasks.values():
        assert task.instruction.isascii() and canonical(task.persona).isascii()
    assert all(product.title.isascii() for product in catalogues["en"].products.values())


def test_at_most_one_axis_moves_the_price(catalogue: Catalogue) -> None:
    moving = Counter(map(moving_axes, catalogue.products.values()))
    assert set(moving) == {0, 1}
    for product in catalogue.products.values():
        chosen = {axis: next(iter(values)) for axis, values in product.options.items()}
        assert resolve_price(product, chosen).price


def test_near_identical_products(catalogue: Catalogue) -> None:
    products = catalogue.products.values()
    twins = Counter((product.category, frozenset(product.attributes)) for product in products)
    assert max(twins.values()) >= 2


def test_every_task_is_met_by_its_gold(catalogue: Catalogue) -> None:
    for task in catalogue.tasks.values():
        gold = catalogue.products[task.gold_asin]
        options = {axis: next(iter(values)) for axis, values in gold.options.items()}
        options.update({need.axis: need.value for need in task.options if need.axis is not None})
        purchase = Purchase(
            asin=gold.asin,
            title=gold.title,
            category=gold.category,
            options=options,
            price=resolve_price(gold, options),
        )
        assert score_purchase(task, gold, gold, purchase).r_success == 1


def test_the_limit_stands_in_both_texts(catalogue: Catalogue) -> None:
    for task in catalogue.tasks.values():
        assert task.instruction_simple is not None and task.price_upper is not None
        assert parse_budget(task.instruction, catalogue.language) == task.price_upper
        assert parse_budget(task.instruction_simple, catalogue.language) == task.price_upper


def test_the_persona_tells_what_the_simplified_text_leaves_out(catalogue: Catalogue) -> None:
    for task in catalogue.tasks.values():
        assert task.persona is not None and task.instruction_simple is not None
        told = [value for part in task.persona.values() if isinstance(part, dict) for value in part.values()]
        needs = [*task.attributes, *(need.value for need in task.options)]
        assert all(need in task.instruction for need in needs)
        simple = normalise(task.instruction_simple)
        left_out = [need for need in needs if not contains(simple, normalise(need))]
        assert left_out and set(left_out) <= set(told)


def test_a_good_query_finds_gold(shops: dict[str, EmbeddedShop], catalogue: Catalogue) -> None:
    shop = shops[catalogue.language]
    for task in catalogue.tasks.values():
        query = f"{task.category.split('›')[-1]} {' '.join(task.attributes)}"
        assert task.gold_asin in {product.asin for product in shop.search(query)}


def test_splits_share_no_task_product_or_persona(catalogue: Catalogue) -> None:
    groups: dict[str, list[Task]] = {}
    for task in catalogue.tasks.values():
        groups.setdefault(str(task.split), []).append(task)
    check_disjoint({"train": groups["train"], "val": groups["val"], "test": groups["test"]})


@pytest.mark.parametrize("language", ["en", "zh"])
def test_no_word_of_a_kind_passes_for_another(language: str) -> None:
    vocabulary = load_vocabulary("en" if language == "en" else "zh")
    for kind in vocabulary.kinds:
        values = [value for facet in kind.facets for value in facet.values]
        assert len(set(values)) == len(values)
        for one, other in combinations(map(normalise, values), 2):
            assert not contains(one, other) and not contains(other, one), (one, other)
        assert not any(contains(normalise(kind.name), normalise(value)) for value in values), kind.name


def test_products_have_no_attribute_by_accident(catalogue: Catalogue) -> None:
    vocabulary = {kind.category: kind for kind in load_vocabulary(catalogue.language).kinds}
    for product in list(catalogue.products.values())[:300]:
        for facet in vocabulary[product.category].facets:
            assert sum(has_attribute(product, value) for value in facet.values) == 1


@pytest.mark.parametrize(
    "sizes",
    [
        {"products": 10, "train": 5, "val": 5, "test": 5},
        {"products": 10, "train": -1, "val": 0, "test": 0},
        {"products": 0, "train": 0, "val": 0, "test": 0},
    ],
)
def test_impossible_sizes_are_refused(sizes: dict[str, int]) -> None:
    with pytest.raises(ParameterError, match="at least as many products as tasks"):
        generate_catalogue(0, "en", **sizes)
