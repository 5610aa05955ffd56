"""Frozen records: what a shop sells, what a task asks for, what a page shows, what an episode earned.

A record stores what happened; whatever follows from it is a property and never on disk. Missing is ``None``.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, Literal, NamedTuple, NotRequired, Self, TypedDict

from pydantic import AwareDatetime, BaseModel, ConfigDict, model_validator

from shopskill_lib.errors import InputError

Language = Literal["en", "zh"]
Split = Literal["train", "val", "test"]
Ending = Literal["purchase", "action_limit", "generation_length", "context_length", "environment_done"]
"""How an episode ended; ``environment_done``: the shop ended it by a rule of its own, and nothing was bought."""
ToolChoice = Literal["auto", "required"]
CallProtocol = Literal["tools", "json_schema", "json"]
"""How a model calls: by function tools · by JSON that the server holds to a schema · by JSON in its text."""


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


class Privileged(Record):
    """Base of what only the audit may hold (M11): whatever rests on gold."""


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

    @classmethod
    def of(cls, method: str, price: float | None) -> Self:
        """Return a price, or with None why it cannot be told."""
        return cls(status="unverifiable" if price is None else "pass", method=method, price=price)


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
    reported: float | None = None
    """The server's own number where the reward is not what it reported; None where both are one."""


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
    subpage: NotRequired[str]
    content: NotRequired[str]


class Hint(Record):
    """One text that a treatment puts into the prompt."""

    id: str
    """Id as the prompt shows it; one word."""
    text: str


class Treatment(Record):
    """What was put into the prompt."""

    treatment_id: str
    hints: tuple[Hint, ...]
    """In canonical order; empty for bare."""
    sha256: str
    """Hash of the rendered hints: equal hashes are equal prompts."""


class Usage(Record):
    """Tokens of one or more model calls, as the server counts them."""

    prompt_tokens: int
    completion_tokens: int


class ModelIdentity(Record):
    """Everything about the model that an episode depends on."""

    model: str
    checkpoint: str
    """Identifier of the frozen weights, given by the user."""
    temperature: float
    max_tokens: int
    send_seed: bool
    simulated: bool
    """Whether a program stands in for the model; whatever rests on it says so."""
    tool_choice: ToolChoice = "auto"
    protocol: CallProtocol = "tools"
    extra_body: dict[str, Any] = {}
    """Further fields of every request."""

    @property
    def decisive(self) -> dict[str, Any]:
        """What is hashed and compared: fields at their defaults are left out, as if nobody had thought of them."""
        return self.model_dump(mode="json", exclude_defaults=True)


class Step(Record):
    """One turn of the model in an episode."""

    step: int
    """From 1; protocol faults count."""
    page_type: str
    """Kind of the page the model saw."""
    hint_ids: tuple[str, ...]
    """Hints in the prompt of this turn."""
    prompt_digest: str
    """SHA-256 of the messages sent, as canonical JSON."""
    action: str | None
    """What was sent to the shop; None after a fault or an ending."""
    fault: str | None
    """Code of the protocol fault (reference 2.3); None without one."""
    feedback: str | None
    """The shop's reason code for the action."""
    usage: Usage | None
    """None where the server does not tell."""
    finish_reason: str | None
    tries: int
    """Requests until the answer came; 1 without trouble."""
    seconds: float
    """Time of the model call, waiting included."""
    observation: str | None = None
    """Text of the page the model saw; None in arms that no analyst reads."""
    reasoning: str | None = None
    """What a thinking model told itself; None without any, and wherever the page is not kept."""


class Seeds(Record):
    """Where the randomness of an episode comes from."""

    rollout_seed: int
    episode_seed: int
    """Seed of its first call; every further call counts one up."""


class Failure(Record):
    """Why an attempt was not scored."""

    kind: str
    """Class of the error."""
    message: str


class Episode(Record):
    """One attempt at one episode, scored or failed."""

    identity: str
    """Hash of everything the result depends on; attempts at the same episode share it."""
    arm: str
    task_id: str
    sample: int
    split: Split | None
    treatment_id: str
    treatment_sha256: str
    hint_ids: tuple[str, ...]
    """Hints of the treatment, in canonical order."""
    model: ModelIdentity
    prompts_sha256: str
    """Hash of the prompt texts."""
    shop: dict[str, str | int]
    """The shop's fingerprint."""
    seeds: Seeds
    attempt: int
    """From 1."""
    status: Literal["scored", "unscored", "error"]
    """``unscored``: it ended in a shop whose rewards cannot be mapped to ours."""
    ending: Ending | None
    reward: float | None
    """None for an attempt that failed, errors are never rewards (I20), and for an unscored one."""
    reward_detail: RewardDetail | None
    purchase: Purchase | None
    steps: tuple[Step, ...]
    """For a failed attempt those before the failure."""
    error: Failure | None
    started_at: AwareDatetime
    ended_at: AwareDatetime

    @model_validator(mode="after")
    def _error_or_ending(self) -> Self:
        """Refuse an error with a reward or an ending, and a score without one."""
        found = (self.reward is not None, self.ending is not None, self.error is None)
        if found != (self.status == "scored", self.finished, self.finished):
            raise ValueError("an attempt has either a reward and an ending, or an error; unscored, an ending alone")
        return self

    @property
    def finished(self) -> bool:
        """Whether the episode came to its end, scored or not."""
        return self.status != "error"

    @property
    def key(self) -> tuple[str, int]:
        """Task and sample."""
        return self.task_id, self.sample

    @property
    def simulated(self) -> bool:
        """Whether a program stood in for the model."""
        return self.model.simulated

    @property
    def protocol_faults(self) -> int:
        """Turns without one legal call."""
        return sum(step.fault is not None for step in self.steps)

    @property
    def invalid_actions(self) -> int:
        """Actions that the shop could not carry out."""
        return sum(step.feedback not in (None, "executed") for step in self.steps)

    @property
    def usage(self) -> Usage | None:
        """Tokens of all turns; None when they are unknown for any."""
        return total_usage(step.usage for step in self.steps)


class Reused(Record):
    """A line that stands for an episode of another run."""

    identity: str
    arm: str
    task_id: str
    sample: int
    reused_from: str
    """Episode file of the other run, relative to the run folder."""


class ModelCall(Record):
    """One line of ``calls.jsonl``: what a call to a model cost."""

    arm: str
    stage: str
    """Step of the workbench the call belongs to."""
    role: str
    """Who was asked: ``policy``, later analysts and the compiler."""
    task_id: str
    sample: int
    attempt: int
    outcome: str
    """What came back: ``call``, ``fault``, ``ending`` or ``error``."""
    usage: Usage | None
    money: float | None
    """None without prices or without token counts."""
    tries: int
    seconds: float


def total_usage(usages: Iterable[Usage | None]) -> Usage | None:
    """Add up tokens; None when there is nothing to add or any is unknown: a sum never hides a gap."""
    known = list(usages)
    if not known or None in known:
        return None
    counts = [(usage.prompt_tokens, usage.completion_tokens) for usage in known if usage is not None]
    return Usage(prompt_tokens=sum(count[0] for count in counts), completion_tokens=sum(count[1] for count in counts))


def render_hints(hints: Iterable[Hint]) -> str:
    """Return the hints as the prompt shows them, one element each."""
    return "\n".join(f'<hint id="{hint.id}">\n{hint.text}\n</hint>' for hint in hints)


def make_treatment(treatment_id: str, hints: Iterable[Hint]) -> Treatment:
    """Return the treatment of these hints, in this order.

    Raises:
        InputError: a hint cannot be told apart in the prompt: its id is no single word or occurs twice, its text
            is blank or holds the mark that ends a hint.
    """
    hints = tuple(hints)
    repeated = [name for name, count in Counter(hint.id for hint in hints).items() if count > 1]
    problems = [f"the hint id {name!r} occurs twice" for name in repeated]
    problems += [f"the hint id {hint.id!r} is no single word" for hint in hints if not _is_word(hint.id)]
    problems += [f"hint {hint.id!r} has no text" for hint in hints if not hint.text.strip()]
    problems += [f"hint {hint.id!r} holds '</hint>'" for hint in hints if "</hint>" in hint.text]
    if problems:
        raise InputError(
            problems[0],
            where=f"treatment {treatment_id}",
            allowed="hints with an id of one word without quotes, each once, and a text without '</hint>'",
            todo="correct the skill",
        )
    digest = hashlib.sha256(render_hints(hints).encode()).hexdigest()
    return Treatment(treatment_id=treatment_id, hints=hints, sha256=digest)


def _is_word(text: str) -> bool:
    return bool(text) and not any(letter.isspace() or letter in "\"'<>" for letter in text)
