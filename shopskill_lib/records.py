"""Frozen records: what a shop sells, what a task asks for, what a page shows, what an episode earned.

A record stores what happened; whatever follows from it is a property and never on disk. Missing is ``None``.
"""

import hashlib
import json
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple, NotRequired, TypedDict

from pydantic import BaseModel, ConfigDict

Language = Literal["en", "zh"]
Split = Literal["train", "val", "test"]
Ending = Literal["purchase", "action_limit", "generation_length", "context_length"]


def canonical(value: object) -> bytes:
    """Return the JSON bytes that are hashed: sorted keys, no spaces, non-ASCII kept, no NaN (ValueError)."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return text.encode()


def fingerprint(value: object) -> str:
    """Return the SHA-256 (64 hex digits) of a JSON value's canonical bytes."""
    return hashlib.sha256(canonical(value)).hexdigest()


class Record(BaseModel):
    """Base of the records on disk: frozen, unknown fields refused, no NaN or infinity."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class RequiredOption(NamedTuple):
    """One option value that a task requires."""

    axis: str | None
    """Axis the value must be chosen on; None where the task names the value only (real files)."""
    value: str
    """The value as the catalogue writes it."""


class Task(Record):
    """One shopping request."""

    task_id: str
    """Id as text; ``0012`` and ``12`` are the same task (M2)."""
    split: Split | None
    """Data role (M1); None until a split file has been applied."""
    instruction: str
    """The complete request; always the one that is scored."""
    instruction_simple: str | None
    """The request without what the persona tells; None where there is no persona."""
    persona: dict[str, Any] | None
    """What is known of the shopper (preferences, sizes, searches); a copy with None runs without it."""
    attributes: tuple[str, ...]
    """Required attributes, at least one."""
    options: tuple[RequiredOption, ...]
    """Required option values; may be empty."""
    price_upper: float | None
    """Highest price that keeps the budget, in the catalogue's currency; None without a budget."""
    gold_asin: str
    """A product that meets everything. Privileged (M11)."""
    category: str
    """Category path of the gold product. Privileged (M11)."""

    @property
    def visible_instruction(self) -> str:
        """The text the policy is given: the simplified one when a persona goes with it, else the full one."""
        if self.persona is None or self.instruction_simple is None:
            return self.instruction
        return self.instruction_simple


class Product(Record):
    """One listing of a catalogue."""

    asin: str
    """Stable id."""
    title: str
    brand: str
    """Brand shown on the pages; the shop's name where the catalogue has no brand."""
    shop: str
    """Name of the selling shop."""
    category: str
    """Path of nodes separated by ``›``, widest first."""
    attributes: tuple[str, ...]
    options: dict[str, dict[str, float | None]]
    """Axis -> value -> price of that value (None where it carries none), in the catalogue's order."""
    pricing: tuple[float, ...]
    """Listing price, or its lowest and highest; never empty."""
    description: str
    """Bullet points and description as one text; may be empty."""


class PriceResolution(Record):
    """What the selected variant costs (reference 1.11)."""

    status: Literal["pass", "unverifiable"]
    method: str
    """Rule that decided, or the reason why the price cannot be told."""
    price: float | None
    """Price of the selected variant; None when unverifiable."""


class Purchase(Record):
    """What an episode bought."""

    asin: str
    title: str
    category: str
    options: dict[str, str]
    """Axis -> chosen value."""
    price: PriceResolution


class RewardDetail(Record):
    """Reward and its parts (M4). Every part is 0 where nothing was bought."""

    reward_version: str
    termination_reason: Ending
    r_type: float
    r_att: float
    r_option: float
    r_price: float
    r_loose: float
    r_strict: float
    r_success: int
    target_asin_match: bool
    """Whether gold itself was bought: a diagnostic, derived from gold's identity (M5)."""
    price_verifiable: bool
    category_match: bool | None = None
    """None without a purchase, like all fields below."""
    title_score: float | None = None
    num_attr_matches: int | None = None
    num_option_matches: int | None = None
    price_upper: float | None = None


class Feedback(TypedDict):
    """What became of the last action (reference 1.8)."""

    action: str
    valid: bool
    reason: str
    message: str
    missing_option_axes: NotRequired[list[str]]


class ListedProduct(TypedDict):
    """A product as a page shows it."""

    asin: str
    title: str
    brand: str
    category: str
    price: str
    key_attributes: list[str]
    rank: NotRequired[int]


class ObservationState(TypedDict):
    """One page as data (reference 1.6); the page's text is a function of it and of the language."""

    observation_version: str
    page_type: str
    search_available: bool
    actions: list[str]
    last_action: NotRequired[Feedback]
    search_text: NotRequired[str]
    normalized_search_text: NotRequired[str]
    page: NotRequired[int]
    total_pages: NotRequired[int]
    total_results: NotRequired[int]
    rank_start: NotRequired[int]
    rank_end: NotRequired[int]
    products: NotRequired[list[ListedProduct]]
    product: NotRequired[ListedProduct]
    selected_options: NotRequired[dict[str, str]]
    available_options: NotRequired[Mapping[str, list[str]]]
    missing_option_axes: NotRequired[list[str]]
    options_complete: NotRequired[bool]
    selected_price: NotRequired[float]
