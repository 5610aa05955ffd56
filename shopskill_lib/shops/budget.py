"""The price limit that a request states, in Chinese and in English (reference 1.10).

Rules are tried in order and the first that fires decides, even when it decides that there is no limit. An
approximate amount is raised by 10 %. The limit is read from the words alone, never derived from a product.
"""

import re
from collections.abc import Callable

from shopskill_lib.records import Language
from shopskill_lib.text import normalise

BUDGET_VERSION = "shopskill-budget-v1"

APPROXIMATE = 1.1
"""Factor on amounts that the request calls approximate."""

_DIGITS = {digit: value for value, digit in enumerate("零一二三四五六七八九")} | {"〇": 0, "两": 2}
_UNITS = {"十": 10, "百": 100, "千": 1000}
_SCALES = {"万": 10_000, "千": 1000, "k": 1000, "w": 10_000, "": 1}
_MYRIADS = {"万": 10_000, "亿": 100_000_000}

Rule = tuple[re.Pattern[str], Callable[[re.Match[str]], float | None]]


def price_upper(instructions: tuple[str, ...], language: Language) -> float | None:
    """Return the first limit that one of the texts states, None when none does."""
    limits = (parse_budget(text, language) for text in instructions)
    return next((limit for limit in limits if limit is not None), None)


def parse_budget(text: str, language: Language) -> float | None:
    """Return the highest price that keeps the budget a text states, or None.

    Args:
        text: a request, as written.
        language: the rule set; ``en`` also knows the currency as ``$`` or dollars, ``zh`` as 元 or 块.
    """
    plain = re.sub(r"(?<=\d),(?=\d)", "", normalise(text))
    for pattern, limit in _RULES[language]:
        match = pattern.search(plain)
        if match:
            found = limit(match)
            return None if found is None else round(found, 2)
    return None


def parse_number(text: str) -> float:
    """Return the value of a decimal or Chinese number with an optional scale (``4k``, ``1.2万``, ``一千八``).

    Raises:
        ValueError: the text is not such a number.
    """
    match = re.fullmatch(r"(\d+)万(\d)千?", text)
    if match:  # 1万2 is 12,000
        return float(match[1]) * 10_000 + float(match[2]) * 1000
    match = re.fullmatch(r"(\d+(?:\.\d+)?)(万|千|k|w|)", text)
    if match:
        return float(match[1]) * _SCALES[match[2]]
    if not re.fullmatch("[零〇一二两三四五六七八九十百千万亿]+", text):
        raise ValueError(f"{text!r} is not a number")
    return float(_han_number(text))


def _han_number(text: str) -> int:
    if all(character in _DIGITS for character in text):
        return int("".join(str(_DIGITS[character]) for character in text))
    total = section = digit = 0
    unit = 1
    for character in text:
        if character in _DIGITS:
            digit = _DIGITS[character]
            unit = 1 if digit == 0 else unit
        elif character in _UNITS:
            unit = _UNITS[character]
            section, digit = section + (digit or 1) * unit, 0
        else:
            unit = _MYRIADS[character]
            total, section, digit = (total + section + digit) * unit, 0, 0
    return total + section + digit * max(1, unit // 10)  # 一千八 is 1800, 一千零八 is 1008


def _plain(match: re.Match[str]) -> float:
    return parse_number(match["n"])


def _raised(match: re.Match[str]) -> float:
    return parse_number(match["n"]) * APPROXIMATE


def _maybe_raised(match: re.Match[str]) -> float:
    return _raised(match) if match["about"] else _plain(match)


def _upper_end(match: re.Match[str]) -> float | None:
    low, high = parse_number(match["low"]), parse_number(match["n"])
    return high if 0 < low <= high else None


def _none(_: re.Match[str]) -> None:
    return None


def _teens(match: re.Match[str]) -> float:
    return parse_number(match["n"] or "一") * 10 + 9


def _rule(pattern: str, limit: Callable[[re.Match[str]], float | None], parts: dict[str, str]) -> Rule:
    for name, part in parts.items():
        pattern = pattern.replace(f"<{name}>", part)
    return re.compile(pattern), limit


_NUM = r"(?:\d+万\d(?!\d)千?|\d+(?:\.\d+)?(?:万|千|k|w)?(?![\d.])|[零〇一二两三四五六七八九十百千万亿]+)"
_HAN_TENS = "(?=[零一二两三四五六七八九]*[十百千万])[零一二两三四五六七八九十百千万亿]+"
_ZH = {
    "N": rf"(?P<n>{_NUM})",
    "BARE": rf"(?P<n>{_NUM}(?=<CUR>)|\d+万\d(?!\d)千?|\d+(?:\.\d+)?[万千kw]?(?![\d.几])(?! ?[a-z%])"
    rf"|{_HAN_TENS}(?!几))",
    "LOW": rf"(?P<low>{_NUM})",
    "PRICE": "(?:价位|价格|价钱|售价|单价|定价|总价|成本|费用|花费|预算|(?<!性)价(?![比值廉美]))",
    "CUR": "(?:元|块钱|块|¥)",
    "TO": "(?:元|块钱|块)?(?:-|~|到|至|—)",
    "AROUND": "(?:左右|上下|上下浮动|大约|出头)",
    "WITHIN": "(?:以内|之内|以下|之下|内)",
    "ABOUT": "(?:大约|大概|约|差不多|接近)",
    "MAX": "(?<!费)(?:(?:不要|不能|不|别)(?:超过|超|高于|多于|大于)|(?<!不)(?:低于|少于|小于)"
    "|最多|至多|最高|上限|封顶)",
    "MIN": "(?:不低于|不少于|至少|最低|起码|(?<![不别能要])(?:超过|高于|大于)|(?<!不)要(?:超过|高于|大于))",
}
_CHINESE_RULES = [
    _rule(r"<PRICE>[^\d,，。;；]{0,12}?<LOW><TO><N>", _upper_end, _ZH),
    _rule(r"<LOW><TO><N><CUR>", _upper_end, _ZH),
    _rule(r"<MAX>(?:在|到|于|过)?<N><CUR>", _plain, _ZH),
    _rule(r"<PRICE>[^\d,，。;；]{0,6}?(?:<MIN><NUM>|<NUM>\+)", _none, {**_ZH, "NUM": _NUM}),
    _rule(r"<PRICE>[^\d,，。;；]{0,12}?<ABOUT><BARE>", _raised, _ZH),
    _rule(r"<PRICE>[^\d,，。;；]{0,12}?<BARE>(?P<about>(?:来|多)?<CUR>?<AROUND>|来|多)?", _maybe_raised, _ZH),
    _rule(r"<ABOUT>(?:在)?<N><CUR>", _raised, _ZH),
    _rule(r"<N><CUR><AROUND>", _raised, _ZH),
    _rule(r"<N>(?:来|多)<CUR>", _raised, _ZH),
    _rule(r"(?P<n>\d{3,}(?:\.\d+)?)<AROUND>的?<PRICE>", _raised, _ZH),
    _rule(r"(?P<n>[一二两三四五六七八九十百]*[千万][零一二三四五六七八九十百千]*)<AROUND>", _raised, _ZH),
    _rule(r"<N><WITHIN>(?:可以|能|就能|都能)?(?:拿下|买到|入手|搞定)", _plain, _ZH),
    _rule(r"<N><AROUND>(?:可以|能|就能|都能)?(?:拿下|买到|入手|搞定)", _raised, _ZH),
    _rule(r"(?:准备|打算|出|花|拿)(?:了|出)?<N><CUR>", _plain, _ZH),
    _rule(r"<N><CUR>(?:<WITHIN>|之间|可以|能|就行|就好|即可|最好|为宜|封顶|的|吧|都行|搞定|预算)", _plain, _ZH),
    _rule(r"(?P<n>[\d一二两三四五六七八九])?十几<CUR>", _teens, _ZH),
    _rule(r"(?:几<CUR>钱?|个位数)", lambda _: 9.0, _ZH),
]

_AMOUNT = r"(?:\d+(?:\.\d+)?k?(?![\d.]*\d)(?![a-z]))"
_EN = {
    "N": rf"(?:usd |us)?\$? ?(?P<n>{_AMOUNT})",
    "LOW": rf"(?:usd |us)?\$? ?(?P<low>{_AMOUNT})",
    "PAID": rf"(?:(?:usd |us)?\$ ?(?P<n>{_AMOUNT})|(?P<m>{_AMOUNT}) ?(?:dollars|bucks|usd))",
    "PRICE": r"\b(?:budget|price|priced|cost|costs|costing|spend|pay)\b",
    "TO": r" ?(?:dollars|bucks|usd)? ?(?:-|–|to|and) ?",
    "CUR": "(?:dollars|bucks|usd)",
    "ABOUT": r"(?:about|around|roughly|approximately|approx\.?|near|close to|some)",
    "MAX": r"(?:under|below|less than|no more than|not more than|at most|up to|within|maximum of|maximum|max|"
    r"not exceed|not exceeding|not (?:cost |go |be |pay )?(?:over|above|more than)|no higher than|"
    r"cheaper than|cap of|limit of|limit is)",
    "MIN": r"(?:at least|(?<!not )(?<!no )more than|(?<!not )over|(?<!not )above|no less than|not less than|"
    r"(?<!not )exceeding|starting at|minimum of|from)",
}


def _paid(match: re.Match[str]) -> float:
    return parse_number(match["n"] or match["m"])


def _paid_raised(match: re.Match[str]) -> float:
    return _paid(match) * APPROXIMATE


_ENGLISH_RULES = [
    _rule(r"<PRICE>[^\d.;]{0,20}?(?:between|from|of|is|range)?:? ?<LOW><TO><N>", _upper_end, _EN),
    _rule(
        r"\$ ?(?P<low>\d+(?:\.\d+)?k?)<TO><N>|(?P<low2>\d+(?:\.\d+)?)<TO>(?P<n2>\d+(?:\.\d+)?) ?<CUR>",
        lambda match: _upper_end(match) if match["n"] else float(match["n2"]),
        _EN,
    ),
    _rule(r"<MAX> <PAID>", _paid, _EN),
    _rule(r"<PRICE>[^\d.;]{0,20}?<MAX>:? ?<N>", _plain, _EN),
    _rule(
        r"<PRICE>[^\d.;]{0,20}?<MIN> <N>|<PRICE>[^\d.;]{0,20}?\$?<AMOUNT>\+|<MIN> <PAID2>",
        _none,
        {**_EN, "AMOUNT": _AMOUNT, "PAID2": rf"(?:\$ ?{_AMOUNT}|{_AMOUNT} ?(?:dollars|bucks|usd))"},
    ),
    _rule(r"<PRICE>[^\d.;]{0,20}?<ABOUT> <N>", _raised, _EN),
    _rule(r"<ABOUT> <PAID>", _paid_raised, _EN),
    _rule(r"<PRICE>[^\d.;]{0,20}?<N>(?P<about> ?<CUR>? (?:or so|give or take))?", _maybe_raised, _EN),
    _rule(r"<PAID> (?:or so|give or take)", _paid_raised, _EN),
    _rule(r"<PAID> (?:or less|or under|at most|max|maximum|tops|budget)", _paid, _EN),
]
_RULES: dict[Language, list[Rule]] = {"zh": _CHINESE_RULES, "en": _ENGLISH_RULES}
