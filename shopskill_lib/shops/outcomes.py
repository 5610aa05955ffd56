"""How an episode on a foreign server ended: its ending, its purchase, and its reward as M4 has it (reference 1.9).

Nothing is guessed: a part that an answer lacks makes it no answer at all.
"""

import math
from dataclasses import dataclass
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from shopskill_lib.errors import SetupError
from shopskill_lib.records import (
    Ending,
    Language,
    PriceResolution,
    Product,
    Purchase,
    RequiredOption,
    RewardDetail,
    Task,
)
from shopskill_lib.shops.budget import parse_budget
from shopskill_lib.shops.reward import score_nothing, score_purchase

Json = dict[str, Any]
T = TypeVar("T", bound=BaseModel)

TOLERANCE = 1e-9
"""Of a reward against the product of its parts, absolute and relative (M4)."""

_ENDINGS: dict[str, Ending] = {
    "action_limit": "action_limit",
    "max_steps": "action_limit",
    "generation_length": "generation_length",
}


class NoAnswerError(ValueError):
    """What came is no answer of a ShopSimulator."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The end of an episode; without a detail where its reward cannot be used."""

    ending: Ending
    purchase: Purchase | None
    detail: RewardDetail | None


class _Foreign(BaseModel):
    """Base of what servers send: what is not needed is passed over."""

    model_config = ConfigDict(frozen=True, extra="ignore", allow_inf_nan=False)


class _Resolution(_Foreign):
    status: str
    method: str
    price: float | None = None


class _Evidence(_Foreign):
    price_resolution: _Resolution | None = None


class _Bought(_Foreign):
    """The `purchase` of an answer."""

    asin: str
    name: str
    category: str
    attributes: tuple[str, ...] = ()
    options: dict[str, str] = {}
    price: float | None = None

    def purchase(self, price: PriceResolution) -> Purchase:
        return Purchase(
            asin=self.asin, title=self.name, category=self.category, options=dict(self.options), price=price
        )


class _Required(_Foreign):
    source_axis: str
    value: str


class _Goal(_Foreign):
    """The `goal` of an answer."""

    asin: str
    name: str
    category: str
    attributes: tuple[str, ...]
    instruction_text: str
    goal_options: tuple[str, ...] | dict[str, str] | str | None = None
    required_options_by_key: dict[str, _Required] = {}
    price_upper: float | None = None

    @property
    def options(self) -> tuple[RequiredOption, ...]:
        """Required values, on their axes where the server says them."""
        named = [RequiredOption(one.source_axis, one.value) for one in self.required_options_by_key.values()]
        given = self.goal_options.values() if isinstance(self.goal_options, dict) else self.goal_options or ()
        values = (given,) if isinstance(given, str) else tuple(given)
        known = {one.value for one in named}
        return (*named, *(RequiredOption(None, value) for value in values if value not in known))


class _Parts(_Foreign):
    """The `reward_detail` of the original."""

    r_type: float
    r_att: float
    r_option: float
    r_price: float
    category_match: bool | None = None
    title_score: float | None = None
    num_attr_matches: int | None = None
    num_option_matches: int | None = None


def of_v8(result: Json, *, scored: bool) -> Outcome:
    """Read the end of a v8 episode: its reward as it is, once it is the product of its parts (M4).

    Args:
        result: of the answer that is done.
        scored: whether the server's reward is of a kind that is known.

    Raises:
        NoAnswerError: a part is missing.
        SetupError: the reward is not what M4 says.
    """
    detail, bought = _object(result, "reward_detail"), _object(result, "purchase")
    ending = _ending(str(result.get("termination_reason")), bought)
    resolution = detail.get("price_resolution")
    purchase = None
    if bought:
        found = _Resolution.model_validate(resolution) if resolution else _Resolution(status="unverifiable", method="")
        purchase = _read(_Bought, bought, "purchase").purchase(_price(found))
    if not scored:
        return Outcome(ending, purchase, None)
    names = (name for name in RewardDetail.model_fields if name != "reported")
    given = {name: detail[name] for name in names if name in detail} | {"termination_reason": ending}
    read = _read(RewardDetail, given, "reward_detail")
    _check_product(read, result.get("reward"))
    return Outcome(ending, purchase, read)


def of_fork(result: Json, task: Task, language: Language, *, scored: bool) -> Outcome:
    """Recompute the reward of a fork's episode from the `goal` and `purchase` it returns.

    The fork's own number mixes weights of its own with penalties below 0; it is kept as `reported`.

    Args:
        result: of the answer that is done.
        task: whose episode it is.
        language: of the instruction, in which a budget may be stated.
        scored: whether its endings are known.

    Raises:
        NoAnswerError: goal or purchase cannot be read.
    """
    bought = _object(result, "purchase")
    ending = _ending(str(result.get("termination_reason")), bought)
    if not scored:
        return Outcome(ending, None, None)
    reported = _number(result, "reward")
    if not bought:
        return Outcome(ending, None, score_nothing(ending).model_copy(update={"reported": reported}))
    goal, item = _read(_Goal, _object(result, "goal"), "goal"), _read(_Bought, bought, "purchase")
    evidence = _read(_Evidence, _object(result, "reward_detail").get("evidence") or {}, "reward_detail.evidence")
    found = evidence.price_resolution or _Resolution(status="pass", method="price of the purchase", price=item.price)
    purchase = item.purchase(_price(found))
    limit = parse_budget(goal.instruction_text, language) if goal.price_upper is None else goal.price_upper
    wanted = task.model_copy(update={"attributes": goal.attributes, "options": goal.options, "price_upper": limit})
    gold = _product(goal.asin, goal.name, goal.category, goal.attributes)
    detail = score_purchase(wanted, gold, _product(item.asin, item.name, item.category, item.attributes), purchase)
    return Outcome(ending, purchase, detail.model_copy(update={"reported": reported}))


def of_original(result: Json) -> Outcome:
    """Read the end of an episode on the original: the product of its parts, its own number as r_loose.

    Raises:
        NoAnswerError: a part is missing.
    """
    bought, reported = _object(result, "purchase"), _number(result, "reward")
    if not bought:
        ending: Ending = "environment_done" if result.get("done") else "action_limit"
        return Outcome(ending, None, score_nothing(ending).model_copy(update={"reported": reported}))
    item, goal = _read(_Bought, bought, "purchase"), _object(result, "goal")
    parts = _read(_Parts, _object(result, "reward_detail"), "reward_detail")
    price = PriceResolution.of("drawn by the server", item.price)
    values = (parts.r_type, parts.r_att, parts.r_option, parts.r_price)
    detail = RewardDetail(
        reward_version="shopsimulator-original",
        termination_reason="purchase",
        **parts.model_dump(),
        r_loose=reported,
        r_strict=math.prod(values),
        r_success=int(all(value == 1 for value in values)),
        target_asin_match=item.asin == goal.get("asin"),
        price_verifiable=item.price is not None,
        price_upper=goal.get("price_upper"),
        reported=reported,
    )
    return Outcome("purchase", item.purchase(price), detail)


def _ending(reason: str, bought: Json) -> Ending:
    """Return the ending behind a server's word; what is none of M3's, and bought nothing, is the shop's own."""
    return "purchase" if bought else _ENDINGS.get(reason, "environment_done")


def _check_product(detail: RewardDetail, reward: Any) -> None:
    """Refuse a server whose reward is not the product of its parts: every episode there would be wrong."""
    parts = (detail.r_type, detail.r_att, detail.r_option, detail.r_price)
    values = {"reward": reward, "r_strict": detail.r_strict}
    wrong = [name for name, value in values.items() if not _close(value, math.prod(parts))]
    if detail.r_success != int(all(part == 1 for part in parts)):
        wrong.append("r_success")
    if wrong:
        raise SetupError(
            f"{wrong[0]} is {values.get(wrong[0], detail.r_success)!r}, its parts r_type, r_att, r_option, r_price are "
            f"{', '.join(map(str, parts))}",
            where=f"reward {detail.reward_version} of the shop's server",
            allowed="reward = r_strict = r_type · r_att · r_option · r_price, r_success where all are 1 (M4)",
            todo="use a server whose primary reward is r_strict",
        )


def _close(value: Any, other: float) -> bool:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return number and math.isclose(value, other, rel_tol=TOLERANCE, abs_tol=TOLERANCE)


def _price(found: _Resolution) -> PriceResolution:
    return PriceResolution.of(found.method, found.price if found.status == "pass" else None)


def _product(asin: str, title: str, category: str, attributes: tuple[str, ...]) -> Product:
    """Return a product as far as a server tells it at the end of an episode."""
    return Product(
        asin=asin,
        title=title,
        brand="",
        shop="",
        category=category,
        attributes=attributes,
        options={},
        pricing=(0.0,),
        description="",
    )


def _object(result: Json, name: str) -> Json:
    """Return an object of an answer; empty where there is none."""
    value = result.get(name) or {}
    if not isinstance(value, dict):
        raise NoAnswerError(f"{name} is a {type(value).__name__}")
    return value


def _number(result: Json, name: str) -> float:
    value = result.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise NoAnswerError(f"{name} is {value!r}")
    return float(value)


def _read(kind: type[T], value: Any, name: str) -> T:
    """Read a part of an answer."""
    try:
        return kind.model_validate(value)
    except ValidationError as error:
        problem = error.errors()[0]
        place = ".".join(map(str, (name, *problem["loc"])))
        raise NoAnswerError(f"{place}: {problem['msg']}") from error
