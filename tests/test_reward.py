import pytest
from hypothesis import given
from hypothesis import strategies as st

from shopskill_lib.records import Product, Purchase, RequiredOption, RewardDetail, Task
from shopskill_lib.shops.reward import (
    REWARD_VERSION,
    has_attribute,
    has_option,
    resolve_price,
    same_value,
    score_nothing,
    score_purchase,
    score_type,
    title_score,
)

GOLD = Product(
    asin="100",
    title="主动降噪蓝牙耳机 头戴式",
    brand="声界",
    shop="声界旗舰店",
    category="数码›影音›蓝牙耳机",
    attributes=("主动降噪", "头戴式"),
    options={"颜色": {"黑色": 199.0, "白色": 239.0}, "线长": {"1.5m": None, "1.8m": None}},
    pricing=(199.0, 239.0),
    description="",
)
TASK = Task(
    task_id="1",
    split="test",
    instruction="",
    instruction_simple=None,
    persona=None,
    attributes=("主动降噪", "头戴式"),
    options=(RequiredOption("颜色", "黑色"),),
    price_upper=200.0,
    gold_asin="100",
    category=GOLD.category,
)


def buy(product: Product, options: dict[str, str], task: Task = TASK) -> RewardDetail:
    purchase = Purchase(
        asin=product.asin,
        title=product.title,
        category=product.category,
        options=options,
        price=resolve_price(product, options),
    )
    return score_purchase(task, GOLD, product, purchase)


def changed(**changes: object) -> Product:
    return GOLD.model_copy(update=changes)


def test_gold_in_the_right_variant_succeeds() -> None:
    detail = buy(GOLD, {"颜色": "黑色", "线长": "1.5m"})
    assert (detail.r_strict, detail.r_loose, detail.r_success) == (1, 1, 1)
    assert detail.target_asin_match and detail.price_verifiable and detail.category_match
    assert detail.reward_version == REWARD_VERSION


def test_the_worked_example_of_the_reference() -> None:
    task = TASK.model_copy(update={"price_upper": 300.0})
    detail = buy(GOLD, {"颜色": "白色", "线长": "1.5m"}, task)
    assert (detail.num_attr_matches, detail.num_option_matches, detail.r_price) == (2, 0, 1)
    assert (detail.r_loose, detail.r_strict, detail.r_success) == (0.75, 0, 0)


def test_another_product_that_meets_everything_succeeds() -> None:
    detail = buy(changed(asin="200"), {"颜色": "黑色", "线长": "1.8m"})
    assert detail.r_success == 1 and not detail.target_asin_match


def test_the_price_of_the_chosen_variant_counts() -> None:
    dear = changed(options={"颜色": {"黑色": 239.0, "白色": 199.0}})
    assert buy(dear, {"颜色": "黑色"}).r_price == 0
    assert buy(dear, {"颜色": "黑色"}, TASK.model_copy(update={"price_upper": None})).r_success == 1


def test_a_price_that_cannot_be_told_fails_a_budget() -> None:
    unknown = changed(options={"颜色": {"黑色": None}}, pricing=(10.0, 20.0))
    detail = buy(unknown, {"颜色": "黑色"})
    assert not detail.price_verifiable and detail.r_price == 0 and detail.r_strict == 0


def test_nothing_required_counts_as_met() -> None:
    free = TASK.model_copy(update={"options": (), "price_upper": None})
    assert buy(GOLD, {"颜色": "白色"}, free).r_option == 1


def test_no_purchase_earns_nothing() -> None:
    detail = score_nothing("action_limit")
    assert detail.r_strict == detail.r_loose == detail.r_success == 0
    assert detail.category_match is None and detail.termination_reason == "action_limit"


@given(st.integers(0, 4), st.integers(0, 4), st.integers(0, 4), st.integers(0, 4), st.booleans())
def test_the_formulas_of_m4(met_a: int, more_a: int, met_o: int, more_o: int, cheap: bool) -> None:
    have, lack = [f"has{i}" for i in range(met_a)], [f"lacks{i}" for i in range(more_a)]
    chosen = {f"axis{i}": "yes" for i in range(met_o + more_o)}
    needs = [RequiredOption(f"axis{i}", "yes" if i < met_o else "no") for i in range(met_o + more_o)]
    task = TASK.model_copy(
        update={"attributes": (*have, *lack), "options": tuple(needs), "price_upper": 10.0 if cheap else 1.0}
    )
    product = changed(attributes=tuple(have), options={}, pricing=(10.0,))
    detail = buy(product, chosen, task)
    n_a, n_o = met_a + more_a, met_o + more_o
    assert detail.r_att == (met_a / n_a if n_a else 1)
    assert detail.r_option == (met_o / n_o if n_o else 1)
    assert detail.r_loose == pytest.approx((met_a + met_o + cheap) / (n_a + n_o + 1), abs=1e-12)
    assert detail.r_strict == pytest.approx(detail.r_att * detail.r_option * detail.r_price, abs=1e-12)
    assert detail.r_success == (detail.r_strict == 1)


@pytest.mark.parametrize(
    ("wanted", "chosen", "same"),
    [
        ("加厚款1.8m", "加厚款1.5m", False),
        ("1.50m", "1.5 m", True),
        ("XXL", "XXXL", False),
        ("M", "m", True),
        ("黑色", "黑色【送收纳袋】", True),
        ("红色", "粉红色", False),
        ("gray", "dark gray", False),
        ("40", "40码", True),
        ("40", "40.5", False),
        ("白色 大号", "白色", False),
        ("12+256GB", "12+512gb", False),
        ("白色加厚大号", "白色加厚中号", False),
        ("标准白 | 浅松绿", "标准白/浅松绿", True),
        ("主动降噪蓝牙耳机", "主动降噪蓝牙耳机", True),
        ("", "黑色", False),
        ("★", "☆", False),
    ],
)
def test_option_values(wanted: str, chosen: str, same: bool) -> None:
    assert same_value(wanted, chosen) is same


@given(st.decimals(0, 999, places=1), st.decimals(0, 999, places=1))
def test_numbers_in_options_match_as_numbers(left: object, right: object) -> None:
    assert same_value(f"长款{left}m", f"长款 {right}0 M") is (left == right)


def test_an_axis_counts_when_the_task_names_it() -> None:
    assert has_option({"尺码": "40"}, RequiredOption("尺码", "40"))
    assert not has_option({"数量": "40"}, RequiredOption("尺码", "40"))
    assert has_option({"数量": "40"}, RequiredOption(None, "40"))


@pytest.mark.parametrize(
    ("wanted", "found"), [("主动降噪", True), ("主动 降噪", True), ("头戴", True), ("入耳式", False), ("降噪x", False)]
)
def test_attributes(wanted: str, found: bool) -> None:
    assert has_attribute(GOLD, wanted) is found


def test_attributes_with_other_numbers_are_others() -> None:
    bank = changed(attributes=("20000mAh",), title="充电宝")
    assert has_attribute(bank, "20000MAH") and not has_attribute(bank, "10000mAh")
    mouse = changed(attributes=("wireless", "energy class two", "rounded edge"), title="Mouse")
    assert not has_attribute(mouse, "wireless charging")
    assert not has_attribute(mouse, "energy class one")
    assert has_attribute(mouse, "rounded edges")


def test_kinds_of_product() -> None:
    assert score_type(GOLD, changed(title="别的", category="影音›蓝牙耳机"))[:2] == (1, True)
    assert score_type(GOLD, changed(title="对讲机", category="数码›影音›对讲机"))[:2] == (0, False)
    assert score_type(GOLD, changed(category="数码/影音/头戴耳机"))[0] == 1
    assert score_type(GOLD, changed(category="玩具›其他"))[0] == 0.5


def test_title_terms_need_no_optional_package() -> None:
    assert title_score("蓝牙耳机 X1", "蓝牙音箱 x1") == 0.5
    assert title_score("！！", "蓝牙") == 0.2


@pytest.mark.parametrize(
    ("options", "pricing", "chosen", "method", "price"),
    [
        ({"a": {"x": 1.0, "y": 2.0}, "b": {"z": None}}, (1.0, 2.0), {"a": "Y"}, "selected_price_axis", 2),
        ({"a": {"x": 1.0, "y": 2.0}}, (1.0, 2.0), {}, "price_axis_unselected", None),
        ({"a": {"x": 1.0, "y": 2.0, "z": None}}, (1.0,), {"a": "z"}, "selected_variant_price_missing", None),
        (
            {"a": {"x": 1.0, "y": 2.0}, "b": {"x": 1.0, "y": 2.0}},
            (1.0,),
            {"a": "x"},
            "multiple_price_affecting_axes",
            None,
        ),
        ({"a": {"x": 3.0, "y": 3.0}, "b": {"z": None}}, (9.0,), {}, "constant_option_price", 3),
        ({}, (7.0,), {}, "single_listing_price", 7),
        ({}, (7.0, 8.0), {}, "price_not_deterministic", None),
        ({"a": {"x": None}}, (7.0,), {"a": "x"}, "price_not_deterministic", None),
    ],
)
def test_variant_prices(
    options: object, pricing: tuple[float, ...], chosen: dict[str, str], method: str, price: float | None
) -> None:
    found = resolve_price(changed(options=options, pricing=pricing), chosen)
    assert (found.method, found.price) == (method, price)
    assert found.status == ("unverifiable" if price is None else "pass")
