"""What a skill text does to the simulated shopper: cues in either language raise or lower its competences.

A cue is a set of ideas that one sentence expresses, in whatever words and order; an idea is a list of content
words of both languages. A negated cue counts the other way round ("do not buy the first result" is advice to
compare). Text without cues changes nothing but its length, which costs a little attention.
"""

import re
from functools import lru_cache
from typing import NamedTuple


class Competences(NamedTuple):
    """Probability from 0 to 1 with which the shopper does each thing well."""

    query: float
    """Searches with all constraints, not just the kind of product."""
    persona: float
    """Uses what is known of the customer for what the request leaves open."""
    compare: float
    """Reads the whole page of results and opens several candidates before settling."""
    exact: float
    """Chooses exactly the option value that is wanted."""
    price: float
    """Looks at the price of the chosen variant before buying."""
    backtrack: float
    """Leaves a product or a query that has turned out wrong."""
    stop: float
    """Buys in time instead of looking on."""


class Cue(NamedTuple):
    """One piece of advice that a sentence may hold."""

    competence: str
    sign: int
    """1 where it helps, -1 where it harms."""
    ideas: tuple[str, ...]
    """Names of ideas that the sentence must all express; the first is the one that a negation turns round."""


UNTAUGHT = Competences(query=0.75, persona=0.8, compare=0.65, exact=0.945, price=0.2, backtrack=0.45, stop=0.98)
"""Without a skill."""

RAISED = Competences(query=0.97, persona=0.93, compare=0.93, exact=0.985, price=0.97, backtrack=0.92, stop=0.99)
"""With clear advice for it."""

_LOWERED = Competences(query=0.6, persona=0.64, compare=0.4, exact=0.89, price=0.1, backtrack=0.25, stop=0.93)
"""With clear advice against it."""

_ONE_SENTENCE = 0.85
"""Part of the way that one cue moves a competence; any further one of its sign goes the rest."""

ATTENTION = 1.5e-5
"""Share of every competence that a token of skill text costs."""

_IDEAS: dict[str, str] = {
    "search": r"\b(?:search|quer(?:y|ies)|keywords?)|搜索|检索|查询|关键词|搜索词",
    "every": r"\b(?:all|every(?:thing)?|each|complete(?:ly)?|full(?:y)?|entire|whole|in full)\b"
    r"|所有|全部|每一?[个项条]|完整|齐全|都写|都放|一并|逐[一项条]",
    "constraints": r"\b(?:requirements?|constraints?|conditions?|attributes?|criteri\w+|demands?|needs|features?)\b"
    r"|要求|条件|属性|需求|限制|特征|特点",
    "narrow": r"\b(?:short(?:er|est)?|brief|single[- ]word|one[- ]word|one (?:plain )?word|a single (?:plain )?word"
    r"|broad(?:er|est)?|generic|nothing but the (?:kind|product))\b|一个词|单个词|简短|越短越|宽泛|笼统|只[写搜]品类",
    "persona": r"\b(?:persona|profile|preferences?|(?:customer|shopper|buyer|user)['’]?s? (?:data|history|habits|record"
    r"|information|tastes?|sizes?|usual)|known of the (?:customer|shopper|buyer))\b"
    r"|画像|偏好|顾客(?:的)?(?:资料|信息|记录|习惯|尺[寸码])|用户(?:的)?(?:资料|信息|记录|习惯|尺[寸码])|已知的顾客|喜好",
    "use": r"\b(?:us(?:e|es|ing)|consult\w*|appl(?:y|ies|ying)|rely|look up|look it up|respect\w*|honou?r\w*|fill\w*"
    r"|take (?:it|them|the)|follow\w*|infer\w*|draw on|turn to|decides?|settles?)\b"
    r"|参考|使用|利用|运用|采用|结合|遵循|依据|根据|按照|查看|查阅|补全|补上|推断|为准",
    "ignore": r"\b(?:ignor\w+|disregard\w*|set aside|leave aside|leave (?:it|them|the persona) out|overlook\w*"
    r"|distract\w*|pay no attention)\b|忽略|忽视|不看|不理|不管|不参考|不必参考|抛开|撇开|干扰",
    "compare": r"\b(?:compar\w+|weigh\w*|contrast\w*|side by side|against each other)\b|比较|对比|比对|货比|权衡",
    "several": r"\b(?:several|two or three|three or|at least (?:two|three)|a few|multiple|more than one|alternatives?"
    r"|candidates?|others?|whole page|rivals?)\b|几[个件款]|多[个件款]|两三|三件|候选|其他商品|整页|别的商品",
    "first": r"\b(?:first|top)(?:[- ]ranked)? (?:result|hit|product|item|one|listing|match)\b|\bfirst in the list\b"
    r"|(?:第一|首)[个件条款]|排在?(?:最前|第一)|首位",
    "take": r"\b(?:buy\w*|purchas\w+|tak(?:e|ing)|choos\w+|pick\w*|settle\w*|grab\w*|select\w*|order)\b"
    r"|买|下单|选|拿下|购入",
    "option": r"\b(?:options?|variants?|colou?rs?|sizes?|versions?)\b|规格|选项|颜色|尺码|款式|型号",
    "exact": r"\b(?:exact(?:ly)?|precise(?:ly)?|literal(?:ly)?|verbatim|identical|to the letter|word for word"
    r"|character by character)\b|完全一致|一字不差|逐字|精确|准确|完全相同|一模一样|严格一致|分毫不差",
    "cheapest": r"\b(?:cheapest|lowest[- ]priced|least expensive|lowest price|default|pre-?selected|closest)\b"
    r"|最便宜|最低价|价格最低|默认|最接近|差不多",
    "price": r"\b(?:prices?|costs?|amount)\b|价格|价钱|售价|金额",
    "variant": r"\b(?:variants?|selection|selected|chosen|combination|after (?:choosing|selecting|picking))\b"
    r"|规格|所选|选定|选好|选完|选中|组合",
    "verify": r"\b(?:check\w*|verif\w+|confirm\w*|re-?read\w*|look at|compare|note|recheck\w*|make sure|read)\b"
    r"|核对|检查|确认|核实|查看|复核|再看|看一[眼遍]|验证",
    "trust": r"\b(?:trust\w*|enough|suffic\w+|good enough|rely|reliable|waste\w*)\b|相信|足够|就够|信任|不必再|浪费",
    "listed": r"\b(?:list(?:ed|ing)?|results? page|search results?|lower end|range)\b|列表|结果页|标价|区间|下限",
    "leave": r"\b(?:go(?:ing)? back|return\w*|leave|leaving|abandon\w*|backtrack\w*|step back|start over|give up on"
    r"|drop (?:it|the product)|move on|turn back|retreat)\b"
    r"|返回|退回|回到|回退|放弃这|离开|换一[个件款]|另换|重新搜索|掉头",
    "wrong": r"\b(?:wrong|miss(?:es|ing)|lacks?|lacking|fail(?:s|ed)?|mismatch\w*|exceed\w*|unmet|does not (?:meet|fit"
    r"|match|offer)|too (?:dear|expensive)|over (?:the )?budget|not offered|unavailable|violat\w+|dead end)\b"
    r"|不符|缺少|没有|不满足|不合|超出|超过|超支|不对|错了|不匹配|无法满足|买不起",
    "stay": r"\b(?:stay\w*|stick\w*|commit\w*|persist\w*|settle\w*|remain\w*|keep to)\b|坚持|留在|守住|将就|认定",
    "opened": r"\b(?:product|item|page|one|candidate|query|search)\b|商品|这[件个款]|页面|搜索",
    "stop": r"\b(?:stop\w*|finish\w*|buy|purchase|conclude\w*|wrap up|end the)\b|停[止下]|收手|结束|下单|购买|买下",
    "met": r"\b(?:as soon as|once (?:every|all|a product|nothing)|when (?:every|all)|limited (?:number|steps|turns)"
    r"|(?:step|action|turn)s? (?:limit|budget|are limited)|few steps|run(?:ning)? out of)\b"
    r"|一旦|(?:全部|都)满足(?:后|就|时|便)|步数|步骤有限|次数有限|操作上限|用尽|耗尽",
    "keep_on": r"\b(?:keep|go on|continue|carry on)\b (?:on )?(?:\w+ )?(?:browsing|searching|looking|exploring|hunting)"
    r"|\b(?:keep|continue) to (?:browse|search|look|explore)|(?:继续|不断)(?:浏览|搜索|寻找|找|看|逛)|多逛",
}

CUES = (
    Cue("query", 1, ("search", "every", "constraints")),
    Cue("query", -1, ("narrow", "search")),
    Cue("persona", 1, ("use", "persona")),
    Cue("persona", -1, ("ignore", "persona")),
    Cue("compare", 1, ("compare", "several")),
    Cue("compare", -1, ("first", "take")),
    Cue("exact", 1, ("exact", "option")),
    Cue("exact", -1, ("cheapest", "option", "take")),
    Cue("price", 1, ("verify", "price", "variant")),
    Cue("price", -1, ("trust", "price", "listed")),
    Cue("backtrack", 1, ("leave", "wrong")),
    Cue("backtrack", -1, ("stay", "opened")),
    Cue("stop", 1, ("stop", "met")),
    Cue("stop", -1, ("keep_on",)),
)

_NEGATION = (
    r"(?:\b(?:do not|don['’]t|never|avoid|no need to|need not|needn['’]t|rather than|instead of|must not|should not"
    r"|shouldn['’]t|without)\s+(?:[\w'’-]+\s+){0,3}?"
    r"|(?:不要|不应|不可|不必|不用|无需|无须|别|避免|切勿|切忌|而不是|而非)[^，。；、,]{0,6}?)"
)
_PATTERNS = {name: re.compile(pattern) for name, pattern in _IDEAS.items()}
_NEGATED = {name: re.compile(f"{_NEGATION}(?:{pattern})") for name, pattern in _IDEAS.items()}
_SENTENCE = re.compile(r"[.!?](?=\s|$)|[。！？；;\n]+")


@lru_cache(maxsize=1024)
def learn(skill: str, base: Competences = UNTAUGHT) -> Competences:
    """Return the competences of a shopper who has read a skill text.

    Args:
        skill: the hints without their tags, in either language; ``""`` without a skill.
        base: its competences without a skill, those of its simulated checkpoint.
    """
    found = _sentences(skill)
    attention = 1 - ATTENTION * len(skill.encode("utf-8", "replace")) / 4
    return Competences(*(_level(name, base, *found[name]) * attention for name in Competences._fields))


def helped(skill: str) -> frozenset[str]:
    """Return the competences that at least one sentence of a text gives advice for."""
    return frozenset(name for name, (helping, _) in _sentences(skill).items() if helping)


def _sentences(skill: str) -> dict[str, list[int]]:
    """Count the sentences of a text that help each competence, and those that harm it."""
    found = {name: [0, 0] for name in Competences._fields}
    for sentence in _SENTENCE.split(skill.lower()):
        for competence, sign in _advice(sentence):
            found[competence][sign < 0] += 1
    return found


@lru_cache(maxsize=8192)
def _advice(sentence: str) -> frozenset[tuple[str, int]]:
    """Return the competences that a sentence speaks of, with 1 for and -1 against."""
    ideas = {name for name, pattern in _PATTERNS.items() if pattern.search(sentence)}
    return frozenset(
        (cue.competence, -cue.sign if _NEGATED[cue.ideas[0]].search(sentence) else cue.sign)
        for cue in CUES
        if ideas.issuperset(cue.ideas)
    )


def _level(name: str, base: Competences, helping: int, harming: int) -> float:
    """Return a competence after so many helping and harming sentences, before the cost of attention.

    Advice that the base is beyond already changes nothing.
    """
    start: float = getattr(base, name)
    raised: float = max(start, getattr(RAISED, name))
    lowered: float = min(start, getattr(_LOWERED, name))
    return start + _share(helping) * (raised - start) + _share(harming) * (lowered - start)


def _share(sentences: int) -> float:
    return (0.0, _ONE_SENTENCE)[sentences] if sentences < 2 else 1.0
