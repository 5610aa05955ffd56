import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shopskill_lib.errors import FirewallError
from shopskill_lib.firewall import Finding, Instance, public
from shopskill_lib.records import Episode, Hint, Privileged, Product, Record, RequiredOption, RewardDetail, Task

MUG = Instance(identifiers=("1828", "760404877482"), titles=("G",), brands=("Ivomere",), numbers=(672.0,))


class Audit(Privileged):
    gold: str


class Holder(Record):
    body: Any


@dataclasses.dataclass
class Box:
    inside: object


WRAPPERS: list[Callable[[object], object]] = [
    lambda value: [value],
    lambda value: ("a", value),
    lambda value: {"a": value},
    lambda value: MappingProxyType({"a": value}),
    lambda value: Box(value),
    lambda value: Holder(body=value),
    lambda value: RequiredOption(value, "x"),  # type: ignore[arg-type]
]
HELD = [
    Audit(gold="G"),
    MUG,
    Finding(kind="brand", field="a", excerpt="G"),
    Task.model_construct(gold_asin="G"),
    Product.model_construct(title="G"),
    Episode.model_construct(task_id="G"),
    RewardDetail.model_construct(target_asin_match=True),
]


@pytest.mark.parametrize("held", HELD, ids=lambda held: type(held).__name__)
@given(st.lists(st.sampled_from(WRAPPERS), max_size=5))
def test_I5_privileged_values_stop_at_any_depth(held: object, wrappers: list[Callable[[object], object]]) -> None:
    value = held
    for wrap in wrappers:
        value = wrap(value)
    with pytest.raises(FirewallError, match=r"cards\.jsonl") as error:
        public(value, "cards.jsonl")
    assert "G" not in str(error.value).replace("Gold", "")


def test_I5_keys_and_sets_are_looked_into() -> None:
    for value in ({Audit(gold="G"): 1}, {Audit(gold="G")}, frozenset([Audit(gold="G")])):
        with pytest.raises(FirewallError, match="privileged"):
            public(value, "pool")


def test_I5_what_cannot_be_looked_into_is_refused() -> None:
    for value in ((item for item in [Audit(gold="G")]), object(), [lambda: MUG]):
        with pytest.raises(FirewallError, match="looked into"):
            public(value, "pool")


def test_public_values_pass() -> None:
    loop: list[object] = [1, 2.5, None, "a", b"b", Path("c")]
    loop.append(loop)
    hint: Mapping[str, object] = {"hint": Hint(id="a", text="b"), "box": Box({"x": (1, 2)}), "loop": loop}
    public(hint, "prompt")
