"""The simulated trainer: what groups teach the simulated shopper, and that a taught chunk loses its effect."""

import random
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shopskill_lib.agent import Agent, constant, episode_seed, load_prompts, run_episode
from shopskill_lib.errors import ParameterError
from shopskill_lib.lab.direct import DirectModel
from shopskill_lib.lab.learner import RATE, UNAIDED, Lesson, forget, train
from shopskill_lib.models import Endpoint
from shopskill_lib.protocol import DRAFTS
from shopskill_lib.records import Hint, Language, Step, make_treatment
from shopskill_lib.shops.embedded import EmbeddedShop
from shopskill_lib.simulated.competences import RAISED, UNTAUGHT, Competences
from shopskill_lib.simulated.shopper import base_of, model_name
from shopskill_lib.skills import read_skill

CHUNKS = {
    chunk.chunk_id: chunk.text for name in ("en", "zh") for chunk in read_skill(DRAFTS / f"skill_{name}.md").chunks
}
PRICE = {"en": "Check the price of the selected variant.", "zh": "选好规格后核对所选规格的价格。"}
AGAINST = {"en": "Buy the first result.", "zh": "直接买第一个商品。"}

bases = st.builds(Competences, *(st.floats(0, 1) for _ in Competences._fields))
texts = st.one_of(st.just(""), st.lists(st.sampled_from(sorted(CHUNKS.values())), max_size=4).map("\n".join))
lessons = st.builds(Lesson, texts, st.lists(st.sampled_from([0.0, 0.5, 1.0]), max_size=4).map(tuple))


# What a round teaches


@pytest.mark.parametrize("language", ["en", "zh"])
def test_a_group_teaches_what_its_text_helps_with_when_rewards_differ(language: str) -> None:
    groups = [Lesson(PRICE[language], (0.0, 1.0)), Lesson(PRICE[language], (1.0, 1.0)), Lesson("...", (0.0, 1.0))]
    after = train(UNTAUGHT, groups, rate=0.3)
    assert after == pytest.approx(UNTAUGHT._replace(price=UNTAUGHT.price + 0.1 * (RAISED.price - UNTAUGHT.price)))


@pytest.mark.parametrize("language", ["en", "zh"])
def test_harming_advice_lowers_nothing(language: str) -> None:
    assert train(UNTAUGHT, [Lesson(AGAINST[language], (0.0, 1.0))]) == UNTAUGHT


def test_without_text_everything_moves_a_little() -> None:
    after = train(UNTAUGHT, [Lesson("", (0.0, 1.0)), Lesson("", (0.5, 0.5))], rate=0.4)
    ways = zip(UNTAUGHT, after, RAISED, strict=True)
    assert [(new - old) / (top - old) for old, new, top in ways] == pytest.approx([0.4 * UNAIDED / 2] * len(UNTAUGHT))


def test_nothing_shown_or_nothing_to_learn_from_changes_nothing() -> None:
    assert train(UNTAUGHT, []) == UNTAUGHT
    assert train(UNTAUGHT, [Lesson(PRICE["en"], (0.0, 0.0, 0.0)), Lesson("", ())]) == UNTAUGHT
    assert train(UNTAUGHT, [Lesson(PRICE["en"], (0.0, 1.0))], rate=0.0) == UNTAUGHT


@given(bases, st.lists(lessons, max_size=6), st.floats(0, 50))
def test_training_never_lowers_and_never_leaves_its_bounds(
    base: Competences, groups: Sequence[Lesson], rate: float
) -> None:
    after = train(base, groups, rate)
    assert all(old <= new <= max(old, top) for old, new, top in zip(base, after, RAISED, strict=True))


@given(bases, st.lists(lessons, max_size=6), st.randoms(use_true_random=False))
def test_order_does_not_count(base: Competences, groups: list[Lesson], rng: random.Random) -> None:
    assert train(base, rng.sample(groups, len(groups))) == train(base, groups)


@given(bases, st.lists(lessons, min_size=1, max_size=5), st.integers(0, 4), texts)
def test_more_to_learn_from_never_teaches_less(base: Competences, groups: list[Lesson], place: int, text: str) -> None:
    """A group that begins to teach raises everything or leaves it."""
    place %= len(groups)
    idle = [*groups[:place], Lesson(text, (1.0, 1.0)), *groups[place + 1 :]]
    active = [*groups[:place], Lesson(text, (0.0, 1.0)), *groups[place + 1 :]]
    assert all(less <= more for less, more in zip(train(base, idle), train(base, active), strict=True))


def test_drift_moves_one_competence() -> None:
    assert forget(RAISED, "compare", 0.3) == RAISED._replace(compare=0.3)
    with pytest.raises(ParameterError, match=r"one of query, persona, .*, from 0 to 1"):
        forget(UNTAUGHT, "patience", 0.3)
    with pytest.raises(ParameterError, match=r"'price' is to be at 1\.2"):
        forget(UNTAUGHT, "price", 1.2)
    with pytest.raises(ParameterError, match="finite rate of 0 or more"):
        train(UNTAUGHT, [], rate=-0.1)


# What training does to the effect of a chunk


def mean_reward(shop: EmbeddedShop, base: Competences, hint: str | None) -> float:
    """Over all tasks of the shop, two seeds each, the same ones whatever is shown."""
    endpoint = Endpoint(url="simulated", model=model_name(base), checkpoint="c", temperature=0.7)
    agent = Agent(DirectModel(endpoint), shop, load_prompts(shop.catalogue.language))
    hints = constant(make_treatment("t", [] if hint is None else [Hint(id="h", text=hint)]))
    rewards = [
        run_episode(agent, task, hints, episode_seed(0, "t", task.task_id, sample), forget_step).reward_detail
        for task in shop.catalogue.tasks.values()
        for sample in range(2)
    ]
    return sum(detail.r_strict for detail in rewards if detail is not None) / len(rewards)


def forget_step(step: Step) -> None:
    """Keep nothing of an episode but its end."""
    del step


@pytest.mark.parametrize("language", ["en", "zh"])
def test_a_chunk_that_training_taught_loses_its_effect(language: Language, shops: dict[str, EmbeddedShop]) -> None:
    """Four rounds with four groups of 24 that taught it: the simulated policy checks prices by itself."""
    (chunk,) = (c.text for c in read_skill(DRAFTS / f"skill_{language}.md").chunks if c.chunk_id == "final-amount")
    groups = [Lesson(chunk, (0.0, 1.0, 0.0, 1.0))] * 4 + [Lesson("", (1.0, 1.0, 1.0, 1.0))] * 20
    ways, base, shop = [], UNTAUGHT, shops[language]
    for _ in range(4):
        base = base_of(model_name(train(base, groups, RATE)))
        ways.append((base.price - UNTAUGHT.price) / (RAISED.price - UNTAUGHT.price))
    assert ways == pytest.approx([0.233, 0.467, 0.7, 0.933], abs=0.005)
    before, after = (mean_reward(shop, at, chunk) - mean_reward(shop, at, None) for at in (UNTAUGHT, base))
    assert before > 0.015
    assert abs(after) < before / 3
