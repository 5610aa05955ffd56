import base64
import codecs
import dataclasses
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shopskill_lib.errors import InputError
from shopskill_lib.firewall import Finding, Instance, Kind, Screen, instance_of
from shopskill_lib.records import Language, RequiredOption
from shopskill_lib.shops.catalog import Catalogue

LANGUAGES: tuple[Language, ...] = ("en", "zh")

MUG = Instance(
    identifiers=("1828", "760404877482", "B0CX23V2ZK", "run/1828-0"),
    titles=("Ivomere double wall travel mug RD430, leakproof", "青居二级能效空气净化器 婴儿房 RD430"),
    brands=("Ivomere", "Ivomere Outlet", "青居", "李宁旗舰店"),
    options=(
        RequiredOption("size", "M"),
        RequiredOption("鞋码", "36"),
        RequiredOption("color", "navy blue"),
        RequiredOption("套餐", "加备件组"),
        RequiredOption(None, "珠母白 | 云锦橙"),
    ),
    numbers=(672.0, 1299.5, 100.0),
    texts=(
        "Please find a mug that keeps coffee hot for two long winter hikes",
        "想给奶奶挑一台晚上开着也听不见声音的净化器",
    ),
)
OTHER = Instance(
    identifiers=("t-77", "915000111222"), titles=("云途桑蚕丝连衣裙碎花 AB123",), brands=("云途",), numbers=(459,)
)
SCREEN = Screen({"1828": MUG, "t-77": OTHER})


def kinds(text: str, *task_ids: str) -> set[Kind]:
    return {finding.kind for finding in SCREEN.scan({"text": text}, task_ids or None)}


def substituted(alphabet: str) -> Callable[[str], str]:
    return lambda text: "".join(alphabet[int(letter)] if letter in "0123456789" else letter for letter in text)


FORMS: dict[str, Callable[[str], str]] = {
    "plain": str,
    "lower": str.lower,
    "spaced": " ".join,
    "dashed": "-".join,
    "dotted": ".".join,
    "zero-width": "\u200b".join,
    "full width": lambda text: "".join(chr(ord(letter) + 0xFEE0) for letter in text),
    "arabic": substituted("٠١٢٣٤٥٦٧٨٩"),
    "devanagari": substituted("०१२३४५६७८९"),
    "han": substituted("零一二三四五六七八九"),
    "han zero": substituted("〇一二三四五六七八九"),
    "circled": substituted("⓪①②③④⑤⑥⑦⑧⑨"),
    "dingbats": substituted("⓿❶❷❸❹❺❻❼❽❾"),
    "reversed": lambda text: text[::-1],
    "rot13": lambda text: codecs.encode(text, "rot13"),
    "base64": lambda text: base64.b64encode(text.encode()).decode(),
    "base64 unpadded": lambda text: base64.urlsafe_b64encode(text.encode()).decode().rstrip("="),
    "hex": lambda text: text.encode().hex(),
    "hex bytes": lambda text: text.encode().hex(" "),
    "escapes": lambda text: "".join(f"\\x{byte:02x}" for byte in text.encode()),
    "percent": lambda text: "".join(f"%{byte:02X}" for byte in text.encode()),
    "entities": lambda text: "".join(f"&#{ord(letter)};" for letter in text),
    "lines": lambda text: f"{text[:5]}\n{text[5:]}",
    "integer in hex": lambda text: f"{int(text):x}" if text.isdecimal() else text,
}
HAN = st.text("先比较再看页面的规格，然后决定。优选商品", max_size=12)
LATIN = st.text("look for the best, then decide ", max_size=20).map(lambda text: text + " ")


@given(
    st.sampled_from(sorted(FORMS)),
    st.sampled_from(["760404877482", "B0CX23V2ZK", "915000111222"]),
    HAN | LATIN,
    HAN | LATIN,
)
def test_identifiers_are_found_in_every_form_in_either_language(form: str, fact: str, before: str, after: str) -> None:
    assert "identifier" in kinds(before + FORMS[form](fact) + after[::-1])


@given(st.text("abcxyz", max_size=6), st.sampled_from(["base64", "base64 unpadded", "hex"]))
def test_codes_glued_to_a_word_are_found(word: str, form: str) -> None:
    assert "identifier" in kinds(word + FORMS[form]("B0CX23V2ZK"))


SCRIPTS = (
    "0123456789",
    "０１２３４５６７８９",
    "٠١٢٣٤٥٦٧٨٩",
    "〇一二三四五六七八九",
    "零壹贰叁肆伍陆柒捌玖",
    "⓪①②③④⑤⑥⑦⑧⑨",
)
SEPARATORS = ("", " ", "-", ".", "、", "\u200b", "\n", "\u3000", " | ", "/", "_", "\u2060")


@given(
    st.lists(st.tuples(st.sampled_from(SCRIPTS), st.sampled_from(SEPARATORS)), min_size=12, max_size=12),
    st.booleans(),
    HAN | LATIN,
)
def test_identifiers_are_found_in_mixed_scripts_and_separators(
    places: list[tuple[str, str]], backwards: bool, before: str
) -> None:
    written = [script[int(digit)] + mark for digit, (script, mark) in zip("760404877482", places, strict=True)]
    assert "identifier" in kinds(before + "".join(written[::-1] if backwards else written) + "即可")


@given(st.integers(1, 11), HAN | LATIN, HAN | LATIN)
def test_an_identifier_split_over_two_fields_is_found_at_the_seam(at: int, before: str, after: str) -> None:
    fact = "760404877482"
    texts = {"trigger": before + fact[:at], "procedure": fact[at:] + after[::-1]}
    assert Finding(kind="identifier", field="trigger + procedure", excerpt=f"{fact[:at]}\n{fact[at:]}") in SCREEN.scan(
        texts, None
    )


@pytest.mark.parametrize(
    "text",
    [
        *(
            "选择ASIN码",
            "asin为空",
            "任务task_1828中",
            "任务1828",
            "轨迹 17",
            "see task #12",
            "task_7",
            "in trajectory 345",
        ),
        *(
            "优先选择商品123456789012即可",
            "call 138001380",
            "１２３４５６７８９",
            "一二三四五六七八九",
            "1 2 3 4 5 6 7 8 9",
            "编号①②③④⑤⑥⑦⑧⑨",
        ),
    ],
)
def test_identifiers_of_no_known_task_are_found(text: str) -> None:
    assert kinds(text) == {"identifier"}


@pytest.mark.parametrize(
    "text",
    [
        "up to 100000000 or 1,000,000,000 yuan",
        "sizes 36 37 38 39 40 41, 1.5 m and 1.8 m",
        "在 2024-12-31 之前，限额1000000000元",
        "multitask 2 things; the tasks take 20 steps",
        "Stay calm in every task. 20 steps are enough.",
        "一步接着一步，先看一二件",
    ],
)
def test_quantities_and_ordinary_words_are_no_identifiers(text: str) -> None:
    assert kinds(text, "1828", "t-77") == set()


def test_a_short_identifier_counts_beside_its_name_only() -> None:
    assert kinds("take item 1828", "1828") == kinds("选商品1828即可", "1828") == {"identifier"}
    assert kinds("at least 1828 reviews", "1828") == set()


def test_short_numeric_identifiers_are_not_joined_from_quantities() -> None:
    screen = Screen({"a": Instance(identifiers=("100250", "bundle"))})
    for text in ("100, 250 and 500 ml", "sizes 100-250-500", "100 ml, 250 ml", "a bundled hat"):
        assert screen.scan({"a": text}, ["a"]) == (), text
    for text in ("100250", "1 0 0 2 5 0", "1-0-0-2-5-0", "选100250即可", "the bundle here"):
        assert screen.scan({"a": text}, ["a"]), text


TITLE_FORMS = (
    "plain",
    "lower",
    "spaced",
    "dashed",
    "zero-width",
    "reversed",
    "rot13",
    "base64",
    "hex",
    "percent",
    "lines",
)


@pytest.mark.parametrize("form", TITLE_FORMS)
@pytest.mark.parametrize("shop", ["雀声0098旗舰店", "361度运动官方店", "A21优选店"])
def test_names_of_han_and_digits_are_found_in_every_form(form: str, shop: str) -> None:
    found = Screen({"a": Instance(brands=(shop,))}).scan({"text": f"先看{FORMS[form](shop)}再比较"}, ["a"])
    assert "brand" in {finding.kind for finding in found}


@pytest.mark.parametrize("form", TITLE_FORMS)
@pytest.mark.parametrize("title", [*MUG.titles, *OTHER.titles])
@given(HAN | LATIN)
def test_titles_are_found_in_every_form_whatever_the_task(form: str, title: str, before: str) -> None:
    assert "title" in kinds(before + FORMS[form](title) + "即可")


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("pick the double wall travel mug on top", True),
        ("a travel mug is worth a look", False),
        ("例如二级能效空气净化器就不错", True),
        ("例如 二级 能效，空气净化器 就不错", True),
        ("空气净化器要看能效", False),
        ("搜桑蚕丝连衣裙即可", True),
    ],
)
def test_long_fragments_of_any_title_are_found(text: str, found: bool) -> None:
    assert kinds(text) == ({"fragment"} if found else set())


def test_common_words_of_a_title_are_no_fragment() -> None:
    screen = Screen({"a": Instance(titles=("What to do when you are with them", "家用多功能大容量加厚新款保温壶"))})
    for text in ("see what to do when you are lost", "选家用多功能大容量的即可"):
        assert screen.scan({"a": text}, ["a"]) == (), text
    assert screen.scan({"a": "大容量加厚新款保温"}, ["a"])


def test_passages_of_the_request_are_found_and_its_phrases_are_not() -> None:
    assert kinds("buy one that keeps coffee hot for two long winter hikes", "1828") == {"fragment"}
    assert kinds("选晚上开着也听不见声音的净化器", "1828") == {"fragment"}
    assert kinds("选晚上开着也听不见声音的净化器") == set()
    assert kinds("Please find a mug", "1828") == kinds("想给奶奶挑一台", "1828") == set()


@pytest.mark.parametrize(
    "text",
    [
        "Ivomere",
        "IVO-MERE",
        "I v o m e r e",
        "eremovi",
        "Vibzrer",
        "ivo\nmere",
        "ivomere's",
        "青居",
        "青 居",
        "居青",
        "李宁",
    ],
)
@given(HAN, HAN)
def test_brands_and_shops_are_found_beside_han_characters(text: str, before: str, after: str) -> None:
    assert "brand" in kinds(before + text + after, "1828")


def test_a_brand_inside_a_word_or_of_another_task_is_none() -> None:
    screen = Screen({"a": Instance(brands=("Elton", "M0bil", "Select Shop"))})
    assert screen.scan({"a": "a skeleton ring, selected with care for the autom0bile"}, ["a"]) == ()
    assert screen.scan({"a": "an m0-bil ring"}, ["a"])
    assert kinds("云途的衣服", "1828") == set()
    assert kinds("云途的衣服", "t-77") == {"brand"}


@pytest.mark.parametrize(
    ("text", "found"),
    [
        *[(text, True) for text in ("size M", "Size: M", "M size", "尺码选M", "M码")],
        *[
            (text, True)
            for text in (
                "鞋码36",
                "鞋码选36",
                "36码",
                "Navy-Blue is best",
                "选加备件组最好",
                "颜色选珠母白",
                "云锦橙好看",
            )
        ],
        *[
            (text, False)
            for text in (
                "M stands for many",
                "read 36 lines",
                "blue or navy",
                "color and size",
                "先选颜色、尺码、套餐和鞋码",
            )
        ],
    ],
)
def test_option_values_are_found_and_axis_names_are_not(text: str, found: bool) -> None:
    assert kinds(text, "1828") == ({"option"} if found else set())


@pytest.mark.parametrize(
    ("text", "found"),
    [
        *[(text, True) for text in ("up to $672.00", "预算672元", "６７２", "٦٧٢", "1,299.50", "6 7 2", "六七二元")],
        *[(text, False) for text in ("100 g", "1672", "67 or 2", "0.672 m", "12995")],
    ],
)
def test_prices_are_found_as_numbers_of_their_own(text: str, found: bool) -> None:
    assert kinds(text, "1828") == ({"number"} if found else set())


@pytest.mark.parametrize(
    "text",
    [
        *(
            "the ground truth",
            "it differs from gold in size",
            "matches the gold.",
            "gold's size",
            "gold’s size",
            "与gold一致",
            "选gold商品",
            "ground-truth",
            "the gold product",
            "golden answer",
            "match the target product",
            "correct answer",
        ),
        *("the correct item", "reference answer", "a higher reward", "r_att is low", "r_option", "the oracle says"),
        *(
            "与标准答案一致",
            "找到目标商品",
            "就是正确商品",
            "正确的商品",
            "正确答案是",
            "以获得奖励",
            "对照金标",
            "参考答案",
        ),
    ],
)
def test_what_no_policy_sees_is_found(text: str) -> None:
    assert kinds(text) == {"unobservable"}


@pytest.mark.parametrize(
    "text",
    [
        *(
            "the golden rule",
            "a gold ring",
            "other than gold rings",
            "a marigold's pot",
            "rose gold case",
            "a rewarding look",
            "reward points",
            "the correct option",
        ),
        *(
            "gold standard of craft",
            "your_attitude",
            "金色手机壳",
            "黄金法则",
            "奖励积分",
            "目标是省钱",
            "正确的规格",
            "the target size",
        ),
    ],
)
def test_ordinary_uses_of_such_words_are_none(text: str) -> None:
    assert kinds(text) == set()


def test_a_colour_named_gold_is_an_option_of_its_instance() -> None:
    screen = Screen({"a": Instance(options=(RequiredOption("color", "gold"), RequiredOption("颜色", "金色")))})
    for text in ("take the gold one", "选金色的"):
        assert {finding.kind for finding in screen.scan({"a": text}, ["a"])} == {"option"}
        assert screen.scan({"a": text}, None) == ()


@pytest.mark.parametrize("language", LANGUAGES)
def test_a_complaint_holds_nothing_of_what_was_found(language: Language) -> None:
    leak = (
        "Ivomere 青居 size M 672 B0CX23V2ZK the ground truth double wall travel mug 青居二级能效空气净化器婴儿房RD430"
    )
    findings = SCREEN.scan({"procedure": leak + " keeps coffee hot for two long winter hikes"}, ["1828"])
    assert {finding.kind for finding in findings} == set(Finding.model_fields["kind"].annotation.__args__)  # type: ignore[union-attr]
    for finding in findings:
        complaint = finding.complaint(language)
        assert "procedure" in complaint
        assert len(finding.excerpt) == 1 or finding.excerpt not in complaint
        assert finding.excerpt not in repr(finding)
        assert ("字段" in complaint) == (language == "zh")


def test_findings_keep_the_order_of_the_texts_and_name_their_field() -> None:
    texts = {"trigger": "看青居", "procedure": "choose size M", "check": "预算672元"}
    found = [(finding.field, finding.kind, finding.excerpt) for finding in SCREEN.scan(texts, ["1828"])]
    assert found == [("trigger", "brand", "青居"), ("procedure", "option", "m"), ("check", "number", "672")]


def test_a_task_without_facts_is_refused() -> None:
    with pytest.raises(InputError, match="'9'"):
        SCREEN.scan({"a": "anything"}, ["9"])


@given(st.text(max_size=200))
def test_any_text_can_be_scanned(text: str) -> None:
    SCREEN.scan({"a": text, "b": text[::-1]}, ["1828", "t-77"])


def test_instances_are_made_of_a_task_and_its_products(catalogues: dict[str, Catalogue]) -> None:
    for language, catalogue in catalogues.items():
        task = next(task for task in catalogue.tasks.values() if task.persona and task.options and task.price_upper)
        gold = catalogue.products[task.gold_asin]
        instance = instance_of(task, [gold], ["run/a/0"])
        assert set(instance.identifiers) >= {task.task_id, gold.asin, "run/a/0"}
        assert any(identifier.startswith("u000") for identifier in instance.identifiers)
        assert (instance.titles, instance.brands) == ((gold.title,), (gold.brand, gold.shop))
        assert set(instance.options) >= set(task.options)
        assert set(instance.numbers) >= {task.price_upper, *gold.pricing}
        leak = f"{gold.brand} {task.price_upper:g} {language}"
        assert {finding.kind for finding in Screen({"1": instance}).scan({"a": leak}, ["1"])} == {"brand", "number"}


def test_an_instance_never_shows_what_it_holds() -> None:
    for text in (repr(MUG), str(MUG), f"{MUG}", repr(SCREEN), repr({"a": MUG})):
        assert not any(fact in text for fact in ("1828", "Ivomere", "672"))
    with pytest.raises(dataclasses.FrozenInstanceError):
        MUG.titles = ()  # type: ignore[misc]
