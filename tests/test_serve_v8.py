"""Our shop server under the v8 contract's check: each deviation that the check names is meant, and has its reason."""

import pytest
from test_embedded import choose_all
from test_serve import serving
from v8_contract import check

from shopskill_lib.records import Task
from shopskill_lib.shops.contract import Permissions
from shopskill_lib.shops.embedded import EmbeddedShop

OWN_VERSIONS = "pages, actions and rewards are our own and say so"
HONEST_STATUS = "a mistake of the client is 400 and JSON, not 200, 500 or HTML (reference 7.1, 4)"
NOT_IN_CATALOGUE = "what our catalogues do not hold is left out of a goal"
PERSONA_OFF = "without if_persona nothing is told of the persona (7.1, 5)"
STRICT_FLAG = 'if_persona is true or false: a text such as "false" would count as true'
ANY_CASE = "clicks do not depend on letter case, so these lead on"
OWN_REWARD = "two shared category nodes do not make another kind of product the right one (7.1, 9)"
OWN_TEXT = "a page repeats the last action's message, which says how to write one after an invalid_format"

MEANT = {
    "environment_version is not shopsimulator-paper-aligned-v8": OWN_VERSIONS,
    "observation_version is not v7": OWN_VERSIONS,
    "observation_version is not shopping-observation-v7": OWN_VERSIONS,
    "the text of search_home shows action syntax": OWN_TEXT,
    "r_type of reward_detail is not what its formula gives": OWN_REWARD,
    "goal lacks task_uid": NOT_IN_CATALOGUE,
    "goal lacks source_product_index": NOT_IN_CATALOGUE,
    "goal lacks price_constraint": NOT_IN_CATALOGUE,
    "goal lacks reason_key": NOT_IN_CATALOGUE,
    "task_uid is not shopsim- and 24 hex digits": NOT_IN_CATALOGUE,
    "if_persona changes a task that has no persona": PERSONA_OFF,
    "user_persona is not sent when if_persona is false": PERSONA_OFF,
    "reset is answered with 400, not 200": STRICT_FLAG,
    "cannot be looked at further: KeyError 'env_idx'": STRICT_FLAG,
    "'click[Back to Search]' gives executed, not unavailable_action": ANY_CASE,
    "'CLICK[{gold}]' gives unavailable_action, not executed": ANY_CASE,
    "a product id does not lead to the product": ANY_CASE,
    "'{search}' gives executed, not search_unavailable": ANY_CASE,
    "'click[Buy Now]' gives incomplete_options, not unavailable_action": ANY_CASE,
    "interact after the end is answered with 400, not 500": HONEST_STATUS,
    "terminate after the end is answered with 400, not 500": HONEST_STATUS,
    "interact after terminate is answered with 400, not 500": HONEST_STATUS,
    "terminate after terminate is answered with 400, not 500": HONEST_STATUS,
    "terminate with the reason tired is answered with 400, not 500": HONEST_STATUS,
    "terminate with the reason purchase is answered with 400, not 500": HONEST_STATUS,
    "interact without response is answered with 400, not 500": HONEST_STATUS,
    "a body that is not JSON is answered with 400, not 200": HONEST_STATUS,
    "a JSON body that is not an object is not answered with 500 and HTML": HONEST_STATUS,
    "reset of an unknown task is answered with 400, not 500": HONEST_STATUS,
    "reset with a boolean idx is answered with 400, not 500": HONEST_STATUS,
    "reset with a text as idx is answered with 400, not 500": HONEST_STATUS,
    "reset without idx is answered with 400, not 500": HONEST_STATUS,
    "reset in an unknown mode is answered with 400, not 500": HONEST_STATUS,
}
"""Sentence of the check -> why it is so."""

FIELDS = ("task_instruction", "observation", "message", "env_idx", "idx", "task_mode", "interaction_mode",
          "environment_version", "observation_state", "lease_id")  # fmt: skip


def gold_actions(shop: EmbeddedShop, task: Task) -> list[str]:
    """The search, the product, its options and the purchase that earn 1."""
    session = shop.reset(task)
    search = f"search[{task.category.split('›')[-1]} {' '.join(task.attributes)}]"
    session.step(search)
    session.step(f"click[{task.gold_asin}]")
    chosen = choose_all(session, task).state["selected_options"]
    return [
        search,
        f"click[{task.gold_asin}]",
        *(f"click[{axis}={value}]" for axis, value in chosen.items()),
        "click[buy now]",
    ]


@pytest.mark.parametrize("slots", [1, 3])
@pytest.mark.parametrize("language", ["en", "zh"])
def test_every_deviation_from_v8_is_meant(shops: dict[str, EmbeddedShop], language: str, slots: int) -> None:
    shop = shops[language]
    task = shop.catalogue.tasks["1"]
    gold = gold_actions(shop, task)
    with serving(shop, slots, allowed=Permissions(private=True, release_all=True)) as client:
        base = client.url.removesuffix("/api/shop_agent")
        found = check(base, task_idx=1, persona_idx=2, gold_actions=gold)
    sentences = {line.split(": ", 1)[1] for line in found}
    meant = {sentence.format(gold=task.gold_asin, search=gold[0]) for sentence in MEANT}
    assert sentences == meant | {f"the answer to reset lacks {name}" for name in FIELDS}
