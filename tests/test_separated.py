"""Pages joined by [SEP]: every kind, both languages, real pages, and any text without an error."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from recordings import AXES, CUP, OTHER_CUP, REQUESTS, SHOPS, TITLES, footer, product_page, results_page, separated

from shopskill_lib.shops.separated import Listed, read_separated, request_of, split_footer

LANGUAGES = pytest.mark.parametrize("language", ["zh", "en"])


@LANGUAGES
def test_results_and_products_are_read(language: str) -> None:
    results, product = read_separated(results_page(language)), read_separated(product_page(language))
    assert results is not None and results.kind == "search_results" and results.request == REQUESTS[language]
    assert results.listed == (Listed(CUP, TITLES[language], "39.0 to 45.0"), Listed(OTHER_CUP, "Norda cup", "12.5"))
    assert product is not None and product.kind == "product_detail"
    assert (product.title, product.price, product.shop) == (TITLES[language], "39.0 to 45.0", SHOPS[language])
    assert product.options == {AXES[language][0]: AXES[language][1:]}
    assert product.buttons is not None and product.buttons[:3] == ("back to search", "< prev", "description")


@LANGUAGES
def test_other_pages_are_told_apart(language: str) -> None:
    home = f"WebShop [SEP] Instruction: [SEP] {REQUESTS[language]} [SEP] Search{footer(language, [], search=True)}"
    subpage = separated(language, ["< Prev", "soft and warm"], ["< prev"])
    ended = "Thank you for shopping with us! [SEP] Your code: [SEP] None"
    kinds = [page and page.kind for page in map(read_separated, (home, subpage, ended, "… [SEP] 价格: 42 [SEP] …"))]
    assert kinds == ["search_home", "information_subpage", "terminal", None]
    assert read_separated("no page at all") is None


def test_pages_of_webshop_have_no_footer_and_no_axes() -> None:
    listed = ["Page 1 (Total results: 50)", "Next >", "B09KP78G37", "Women loose dress", "$12.99"]
    results = read_separated(" [SEP] ".join(["Instruction:", "find me a dress", "Back to Search", *listed]))
    shown = ["< Prev", "size", "small", "x-large", "Women loose dress", "Price: $12.99", "Rating: N.A.", "Buy Now"]
    product = read_separated(" [SEP] ".join(["Instruction:", "find me a dress", "Back to Search", *shown]))
    assert results is not None and results.listed == (Listed("B09KP78G37", "Women loose dress", "$12.99"),)
    assert product is not None and (product.title, product.price) == ("Women loose dress", "$12.99")
    assert product.buttons is None and product.options == {} and product.shop == ""


@pytest.mark.parametrize(
    ("text", "request_"),
    [
        (results_page("zh"), REQUESTS["zh"]),
        (f"Env: {results_page('en')}\n轮次: 3\n请做出下一轮决策:", REQUESTS["en"]),
        (f"Instruction: a cup\nnot a mug{footer('en', [], search=True)}", "a cup\nnot a mug"),
        ("Instruction: 要一个杯子", "要一个杯子"),
        ("Shopper: 想买一个杯子。\n轮次: 1\n请做出下一轮决策:", "想买一个杯子。"),
        ("a cup, please", "a cup, please"),
    ],
)
def test_the_request_is_found(text: str, request_: str) -> None:
    assert request_of(text) == request_


def test_a_footer_that_cannot_be_read_has_no_buttons() -> None:
    body, buttons = split_footer("page\n\n搜索功能是否可用: False\n\n可点击的按钮: ['a', 'b']")
    assert (body.strip(), buttons) == ("page", None)
    cut = read_separated(product_page("zh").partition('"reviews"')[0])
    assert cut is not None and cut.options == {} and cut.title == TITLES["zh"]


NODE = st.text(st.characters(codec="utf-8", exclude_characters="[]\n"), min_size=1, max_size=12).map(str.strip)
VALUES = NODE.filter(lambda text: text != "" and text == text.lower() and "price" not in text and "价格" not in text)


@settings(deadline=None)
@given(values=st.lists(VALUES, min_size=1, max_size=5, unique=True), price=st.integers(1, 10_000), title=VALUES)
def test_a_page_tells_what_it_was_made_of(values: list[str], price: int, title: str) -> None:
    shown = ["< Prev", "Axis!", *values, f"{title}#", f"价格: {price}.0", "店铺: s", "Buy Now"]
    page = read_separated(separated("zh", shown, ["< prev", "buy now", *values]))
    assert page is not None and page.options == {"Axis!": tuple(values)}
    assert (page.title, page.price, page.shop) == (f"{title}#", f"{price}.0", "s")


@settings(deadline=None)
@given(
    st.lists(
        st.sampled_from(["Instruction:", " [SEP] ", "Back to Search", "< Prev", "价格: ", "可点击的按钮: [", "\n", "x"])
    )
)
def test_any_text_is_read_or_is_none(pieces: list[str]) -> None:
    text = "".join(pieces)
    assert read_separated(text) is None or "[SEP]" in text
    assert request_of(text) == request_of(text).strip()


def _pages(value: Any) -> Iterator[str]:
    """Texts of pages in a recorded exchange."""
    if isinstance(value, dict):
        yield from (
            text for name, child in value.items() for text in _pages(child if name != "instruction" else [child])
        )
    elif isinstance(value, list):
        yield from (text for child in value for text in _pages(child))
    elif isinstance(value, str) and value.startswith("{"):
        try:
            yield from _pages(json.loads(value))
        except ValueError:
            return
    elif isinstance(value, str) and "[SEP]" in value and "\n\n" in value:
        yield value


def test_pages_of_a_real_server_are_read(shared: Path) -> None:
    """Every recorded page is of a known kind, and what it lists can be clicked there."""
    kinds = dict[str, int]()
    for file in sorted((shared / "data" / "shopsim_exchanges").glob("[0-9L]*.json")):
        for text in _pages(json.loads(file.read_text(encoding="utf-8"))["response"]):
            page = read_separated(text)
            assert page is not None and page.buttons is not None, file.name
            kinds[page.kind] = kinds.get(page.kind, 0) + 1
            assert {row.asin for row in page.listed} <= set(page.buttons)
            assert all(value.lower() in page.buttons for values in page.options.values() for value in values)
            if page.kind == "product_detail":
                assert page.title and page.price and page.shop
                assert set(page.buttons) <= {
                    "back to search", "< prev", "description", "features", "reviews", "buy now",
                    *(value.lower() for values in page.options.values() for value in values),
                }  # fmt: skip
            if page.kind == "search_results":
                products = {button for button in page.buttons if button.isdecimal()}
                assert {row.asin for row in page.listed} == products
    assert kinds.keys() == {"search_home", "search_results", "product_detail", "information_subpage", "terminal"}
