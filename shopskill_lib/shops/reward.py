"""What a purchase earns: variant price (reference 1.11), attributes, options, type and the reward of M4.

The rules follow reference 1.9 without its faults: numbers and sizes in options are compared as such (1.5 m is
not 1.8 m, XXL not XXXL), an axis that the task names must carry the value, a product of another kind does not
pass for the right one on two shared upper category nodes, and title terms come from ``text.tokens`` alone.
"""

import re

from shopskill_lib.records import Ending, PriceResolution, Product, Purchase, RequiredOption, RewardDetail, Task
from shopskill_lib.text import contains, key, normalise, numbers, similarity, tokens, words

REWARD_VERSION = "shopskill-reward-v1"

ATTRIBUTE_SIMILARITY = 85
"""Attributes whose differing words are more alike than this (0-100) count as the same, numbers apart."""

TITLE_SHARE = 0.2
"""Share of gold's title terms above which titles are of one kind; the score where gold's has no terms."""


def resolve_price(product: Product, chosen: dict[str, str]) -> PriceResolution:
    """Return the price of the selected variant.

    Args:
        product: the listing.
        chosen: axis -> value; axes must match exactly, values after ``text.key``.
    """
    priced = {axis: set(values.values()) - {None} for axis, values in product.options.items()}
    moving = [axis for axis, prices in priced.items() if len(prices) > 1]
    if len(moving) > 1:
        return PriceResolution.of("multiple_price_affecting_axes", None)
    if moving:
        if moving[0] not in chosen:
            return PriceResolution.of("price_axis_unselected", None)
        prices = {key(value): price for value, price in product.options[moving[0]].items()}
        price = prices.get(key(chosen[moving[0]]))
        return PriceResolution.of("selected_variant_price_missing" if price is None else "selected_price_axis", price)
    constant = {price for prices in priced.values() for price in prices if price is not None}
    if len(constant) == 1:
        return PriceResolution.of("constant_option_price", constant.pop())
    if not product.options and len(set(product.pricing)) == 1:
        return PriceResolution.of("single_listing_price", product.pricing[0])
    return PriceResolution.of("price_not_deterministic", None)


def score_purchase(task: Task, gold: Product, bought: Product, purchase: Purchase) -> RewardDetail:
    """Return the reward of a purchase (M4). Gold serves its category and title; its id never decides."""
    type_score, same_kind, title = score_type(gold, bought)
    attributes = sum(has_attribute(bought, wanted) for wanted in task.attributes)
    options = sum(has_option(purchase.options, wanted) for wanted in task.options)
    price = purchase.price.price
    within = task.price_upper is None or (price is not None and price <= task.price_upper)
    r_att, r_option = _share(attributes, len(task.attributes)), _share(options, len(task.options))
    met, needed = attributes + options + float(within), len(task.attributes) + len(task.options) + 1
    return RewardDetail(
        reward_version=REWARD_VERSION,
        termination_reason="purchase",
        r_type=type_score,
        r_att=r_att,
        r_option=r_option,
        r_price=float(within),
        r_loose=type_score * met / needed,
        r_strict=type_score * r_att * r_option * within,
        r_success=int(type_score == r_att == r_option == within == 1),
        target_asin_match=bought.asin == gold.asin,
        price_verifiable=purchase.price.status == "pass",
        category_match=same_kind,
        title_score=title,
        num_attr_matches=attributes,
        num_option_matches=options,
        price_upper=task.price_upper,
    )


def score_nothing(reason: Ending) -> RewardDetail:
    """Return the reward of an episode that ended without a purchase: every part 0."""
    return RewardDetail(
        reward_version=REWARD_VERSION,
        termination_reason=reason,
        r_type=0,
        r_att=0,
        r_option=0,
        r_price=0,
        r_loose=0,
        r_strict=0,
        r_success=0,
        target_asin_match=False,
        price_verifiable=False,
    )


def _share(met: int, required: int) -> float:
    return met / required if required else 1.0


def score_type(gold: Product, bought: Product) -> tuple[float, bool, float]:
    """Return r_type, whether the categories are the same, and the title score.

    Categories are the same when their last nodes are, or when they share two nodes and the titles are of one
    kind. Without that, r_type is 0 for titles that share nothing, 0.1 for a score below 0.1, else 0.5.
    """
    title = title_score(gold.title, bought.title)
    left, right = _nodes(gold.category), _nodes(bought.category)
    same = bool(left and right) and left[-1] == right[-1]
    same = same or (len(set(left) & set(right)) >= 2 and title > TITLE_SHARE)
    if same:
        return 1.0, True, title
    return (0.0 if title == 0 else 0.1 if title < 0.1 else 0.5), False, title


def title_score(gold: str, bought: str) -> float:
    """Return the share of the gold title's terms that the bought title has."""
    wanted = set(tokens(gold))
    return len(wanted & set(tokens(bought))) / len(wanted) if wanted else TITLE_SHARE


def _nodes(path: str) -> list[str]:
    return [node for node in map(normalise, re.split(r"[›>/\\]", path)) if node]


def has_attribute(product: Product, wanted: str) -> bool:
    """Tell whether a product has a required attribute, in its words or nearly so."""
    phrase = normalise(wanted)
    texts = [normalise(text) for text in (product.title, product.description, *product.attributes)]
    if any(contains(text, phrase) for text in texts):
        return True
    return any(_nearly_same(wanted, attribute) for attribute in product.attributes)


def _nearly_same(wanted: str, attribute: str) -> bool:
    """Tell whether two attributes have the same numbers, and the same words but for their spelling."""
    left, right = set(words(wanted)), set(words(attribute))
    if numbers(wanted) != numbers(attribute):
        return False
    return similarity(" ".join(left - right), " ".join(right - left)) > ATTRIBUTE_SIMILARITY


def has_option(chosen: dict[str, str], wanted: RequiredOption) -> bool:
    """Tell whether the chosen options carry a required value, on its axis when the task names one."""
    if wanted.axis is None:
        return any(same_value(wanted.value, value) for value in chosen.values())
    on_axis = [value for axis, value in chosen.items() if key(axis) == key(wanted.axis)]
    return any(same_value(wanted.value, value) for value in on_axis)


def same_value(wanted: str, chosen: str) -> bool:
    """Tell whether a chosen option value is the required one.

    Every part of the required value (parts end at punctuation) must be a part of the chosen one: 黑色 is met
    by 黑色【送收纳袋】 and 40 by 40码, but 1.5m not by 1.8m, 红色 not by 粉红色,
    ``gray`` not by ``dark gray``.
    """
    if key(wanted) == key(chosen):
        return True
    parts = _parts(wanted)
    return bool(parts) and parts <= _parts(chosen)


def _parts(value: str) -> set[tuple[str, ...]]:
    pieces = re.split(r"[^\w\s.]+", normalise(value))
    return {_without_size_mark(words(piece)) for piece in pieces if words(piece)}


def _without_size_mark(part: list[str]) -> tuple[str, ...]:
    return tuple(part[:-1] if len(part) == 2 and part[0][0].isdecimal() and part[1] in _SIZE_MARKS else part)


_SIZE_MARKS = frozenset({"码", "号"})
