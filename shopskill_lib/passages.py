"""Passages that two texts share: runs of a fixed weight that hold more than common words."""

import re
from collections.abc import Iterator, Sequence
from functools import lru_cache

from shopskill_lib.disguises import plain
from shopskill_lib.text import Unit, is_han, units

TITLE_WEIGHT = 12
"""Shared run of a title that counts: 6 Han characters or 4 words (weights: `windows`)."""
LONG_WEIGHT = 24
"""Shared run of a request, description or persona that counts: 12 Han characters or 8 words."""
_COMMON = frozenset(
    re.findall(
        r"\w+",
        """
        a about after again all also an and any are as at be before best between but buy by can check choose
        color colour compare do each every for from get give go good has have help i if in into is it its like
        look looking make me more most my need new no not of off on one only open option options or other out
        over page price product products read request same search see set shop should size so than that the
        their them then there these they this those to too two up use used user variant want was what when where
        which while will with without word words you your
        """,
    )
)
_COMMON_HAN = re.compile(
    "想买一款|帮我找|求推荐|一款|一件|需要|要求|满足|价格|预算|不超过|最多|以内|左右|规格|颜色|尺码|商品|选择|购买|搜索|页面|"
    "顾客|需求|品类|材质|风格|功能|标题|品牌|型号|列表|结果|所选|可选|选项|核对|确认|对比|打开|返回|以及|或者|如果|没有|"
    "男士|女士|儿童|家用|新款|春季|夏季|秋季|冬季|春秋|正品|官方|高端|热卖|送礼|加厚|多功能|大容量|"
    "[的了和与或在是要不就都再时把被对从到也]"
)


def windows(found: Sequence[Unit], weight: int) -> Iterator[tuple[tuple[str, ...], int, int]]:
    """Yield (units, first, last) of the shortest run that begins at each unit and weighs enough.

    A Han character weighs 2, a word 3, a number or a single letter 1. Equal runs of two texts are equal windows.
    """
    texts = tuple(unit[0] for unit in found)
    weights = [_weight(text) for text in texts]
    total = last = 0
    for first in range(len(texts)):
        while total < weight and last < len(texts):
            total += weights[last]
            last += 1
        if total < weight:
            return
        yield texts[first:last], first, last
        total -= weights[first]


@lru_cache(maxsize=1 << 16)
def _weight(unit: str) -> int:
    if unit[0].isdecimal():
        return 1
    if len(unit) == 1:
        return 2 if is_han(unit) else 1
    return 3


def is_phrase(text: str) -> bool:
    """Tell whether a text is long enough to be told from common words."""
    return next(telling_windows(text, TITLE_WEIGHT), None) is not None


def telling_windows(text: str, weight: int) -> Iterator[tuple[str, ...]]:
    """Yield the windows of a text that hold more than common words.

    At a title's weight one Latin word or two Han characters must be uncommon, at twice the weight twice as many.
    """
    normal = plain(text)
    found = units(normal)
    dull = {place for match in _COMMON_HAN.finditer(normal) for place in range(match.start(), match.end())}
    telling = [_telling(unit, start, dull) for unit, start, _ in found]
    for window, first, last in windows(found, weight):
        if sum(telling[first:last]) >= weight / 6:
            yield window


def _telling(unit: str, start: int, dull: set[int]) -> int:
    if is_han(unit[0]):
        return int(start not in dull)
    return 0 if unit[0].isdecimal() or len(unit) == 1 or unit in _COMMON else 2
