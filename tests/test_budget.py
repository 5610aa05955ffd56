import pytest
from hypothesis import given
from hypothesis import strategies as st

from shopskill_lib.records import Language
from shopskill_lib.shops.budget import parse_budget, parse_number, price_upper


@pytest.mark.parametrize(
    ("text", "limit"),
    [
        ("预算在1000元以下", 1000),
        ("价格在70元左右", 77),
        ("130-140元之间", 140),
        ("价格在10-20之间", 20),
        ("预算4k+", None),
        ("预算在1万元左右", 11000),
        ("预算1万2以内", 12000),
        ("预算不超过一千八", 1800),
        ("预算就二十来块钱", 22),
        ("五元以内", 5),
        ("价格要超过20元", None),
    ],
)
def test_the_vectors_of_the_reference(text: str, limit: float | None) -> None:
    assert parse_budget(text, "zh") == limit


@pytest.mark.parametrize(
    ("text", "limit"),
    [
        ("价格在一万一千元上下", 12100),
        ("预算840-850元能接受", 850),
        ("心里价格是不高于800元", 800),
        ("预算500-800", 800),
        ("价格在18000元左右，设计费不能超过600元", 19800),
        ("价格在45块钱最好", 45),
        ("预算不低于300元", None),
        ("三百元左右", 330),
        ("200多元", 220),
        ("1500左右的价格", 1650),
        ("三千左右", 3300),
        ("80以内能拿下", 80),
        ("90左右可以拿下", 99),
        ("准备花60元", 60),
        ("60元就行", 60),
        ("二十几块", 29),
        ("三十几块钱", 39),
        ("二十八元左右", 30.8),
        ("3十几块", 39),
        ("就十几块", 19),
        ("只要几块钱", 9),
        ("１０００元以内", 1000),
        ("价格便宜一点的鞋", None),
        ("性价比高的500ml杯子", None),
        ("想买一款运动鞋", None),
        ("价格1,200元以内", 1200),
    ],
)
def test_chinese_requests(text: str, limit: float | None) -> None:
    assert parse_budget(text, "zh") == limit


@pytest.mark.parametrize(
    ("text", "limit"),
    [
        ("under $50", 50),
        ("a budget of $50", 50),
        ("around $50", 55),
        ("between $20 and $30", 30),
        ("$20-$30", 30),
        ("priced between 20 and 30 dollars", 30),
        ("15 to 25 dollars", 25),
        ("at least $20", None),
        ("a budget over $100", None),
        ("my budget is about $1,200", 1320),
        ("up to 1.5k dollars", 1500),
        ("no more than $59.90, please", 59.9),
        ("it must not cost over $80", 80),
        ("spend $40 or so", 44),
        ("costs less than 30", 30),
        ("15 dollars or less", 15),
        ("a 5 foot cable of 20 watts", None),
        ("more than 20 dollars", None),
        ("$300+ budget", None),
        ("pay 2 visits", 2),
    ],
)
def test_english_requests(text: str, limit: float | None) -> None:
    assert parse_budget(text, "en") == limit


DIGITS = "零一二三四五六七八九"


def spell(number: int) -> str:
    """A number below 100,000,000 in full Chinese numerals."""
    if number >= 10_000:
        rest = number % 10_000
        low = "" if rest == 0 else ("零" if rest < 1000 else "") + spell(rest)
        return spell(number // 10_000) + "万" + low
    text = ""
    for unit, name in ((1000, "千"), (100, "百"), (10, "十"), (1, "")):
        digit = number // unit % 10
        if digit:
            text += DIGITS[digit] + name
        elif text and number % unit and not text.endswith("零"):
            text += "零"
    return text or "零"


@given(st.integers(0, 99_999_999))
def test_chinese_numerals_parse_back(number: int) -> None:
    assert parse_number(spell(number)) == number


@given(st.integers(10, 9_999_999))
def test_a_limit_reads_the_same_in_digits_and_numerals(number: int) -> None:
    for amount in (str(number), spell(number)):
        assert parse_budget(f"想买一双鞋，预算不超过{amount}元。", "zh") == number
        assert parse_budget(f"想买一双鞋，价格在{amount}元左右。", "zh") == round(number * 1.1, 2)


@given(st.decimals(1, 99_999, places=2))
def test_a_limit_in_dollars_parses_back(amount: object) -> None:
    assert parse_budget(f"Shoes for the winter, no more than ${amount}.", "en") == float(str(amount))


@given(st.text(max_size=200), st.sampled_from(["en", "zh"]))
def test_any_text_has_a_limit_or_none(text: str, language: Language) -> None:
    limit = parse_budget(text, language)
    assert limit is None or limit >= 0


def test_numbers_that_are_none_are_refused() -> None:
    with pytest.raises(ValueError, match="not a number"):
        parse_number("a few")


def test_the_simplified_text_is_asked_first() -> None:
    assert price_upper(("不超过20元", "不超过30元"), "zh") == 20
    assert price_upper(("想买鞋", "不超过30元"), "zh") == 30
    assert price_upper(("想买鞋",), "zh") is None
