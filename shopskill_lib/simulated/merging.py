"""The simulated author as consolidator and compiler: cards into clusters, mechanisms into chunks.

What belongs together is told by what the texts teach, then by the program's similarity groups. It is imperfect on
purpose; every rate is a constant here.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel

from shopskill_lib.records import Language
from shopskill_lib.simulated.casefile import Chunk, MalformedError, Talk, json_section, models, read_skill
from shopskill_lib.simulated.lessons import Wording, bank, helps, language_of, opposite, split, topic, word

SPLIT = 0.2
"""Share of large themes that become two clusters."""

LARGE = 8
"""Cards from which on a theme is large."""

ONE_OFF = 0.7
"""Share of lessons of a single card that are left out, unless they help."""

LOST = 0.1
"""Share of consolidations that forget a card at first."""

DOUBLED = 0.07
"""Share of consolidations that put a card into two clusters at first."""

APART = 0.12
"""Share of mechanisms that get a chunk of their own although another says the same."""

SEEN_THROUGH = 0.4
"""Share of useless and harmful mechanisms that the compiler leaves out."""

WEAK = 0.5
"""Share of mechanisms of one task without a verified repair that are left out."""

TOO_MANY = 0.3
"""Share of compilations that first hand in one chunk more than allowed, where there are mechanisms for it."""

RESTATED = 0.3
"""Share of mechanisms the skill teaches already that become a rewrite."""

STEPS = 3
"""Steps of a chunk at most."""

_SAID = {
    "en": {
        "one": "one case only", "empty": "says nothing that could be done", "known": "the skill says it already",
        "weak": "one task only and no verified repair", "doubt": "nothing follows from it for a purchase",
        "full": "less support than what was taken", "rewrite": "the chunk leads to this failure",
        "add": "several tasks support it", "check": "Look once more before the order.", "title": "Shopping with care",
        "failure": "It is forgotten in haste.", "firewall": "it cannot be said without naming a product",
    },
    "zh": {
        "one": "只有一例", "empty": "没有说出可做的事", "known": "技能中已有", "weak": "只有一个任务，修复未经验证",
        "doubt": "对购买没有帮助", "full": "支持不及已采用的", "rewrite": "该段会导致这种失败",
        "add": "有若干任务支持", "check": "提交之前再看一遍。", "title": "细心购物", "failure": "匆忙之中忘了。",
        "firewall": "不点名商品就说不清",
    },
}  # fmt: skip


class Lesson(BaseModel):
    """A card, of either channel, as far as its text counts."""

    card_id: str
    group: int = 0
    merged: int = 1
    """Cards that it stands for."""
    workflow_stage: str
    mechanism: str = ""
    failure_mechanism: str = ""
    applicable_when: str = ""
    generalizable_lesson: str = ""
    corrective_procedure: str = ""
    verification_step: str = ""
    target_chunk_id: str | None = None

    @property
    def advice(self) -> str:
        """What it says to do."""
        return self.corrective_procedure or self.generalizable_lesson


class Cluster(BaseModel):
    """A cluster of one channel within a mechanism."""

    workflow_stage: str
    mechanism: str = ""
    applicable_when: str = ""
    procedure: list[str] = []
    verification: str = ""
    common_failure: str = ""
    target_chunk_id: str | None = None


class Mechanism(BaseModel):
    """What the compiler is given of a mechanism."""

    mechanism_id: str
    workflow_stage: str
    priority: int = 0
    support_tasks: int = 0
    verified_repairs: int = 0
    clusters: list[Cluster] = []

    @property
    def advice(self) -> str:
        """What its clusters say to do."""
        return "\n".join(step for cluster in self.clusters for step in cluster.procedure)


def consolidate(talk: Talk) -> dict[str, Any]:
    """Return the clusters of the cards in a message.

    Raises:
        MalformedError: the message holds no cards.
    """
    cards: list[Lesson] = models(talk.opening, "cards", Lesson)
    language = language_of("".join(card.advice for card in cards[:3]) or talk.system)
    clusters, left_out = [], []
    for (name, stage, _), members in sorted(_themes(talk, cards).items()):
        why = _dismissal(talk, name, members)
        if why:
            left_out += [{"card_id": card.card_id, "reason": _SAID[language][why]} for card in members]
        else:
            clusters.append(_cluster(talk, language, name, stage, members))
    if not talk.submitted and clusters:
        _miscount(talk, clusters)
    return {"clusters": clusters, "left_out": left_out}


def _themes(talk: Talk, cards: Sequence[Lesson]) -> dict[tuple[str, str, int], list[Lesson]]:
    """Return the cards by topic, stage and part: some large topics come in two parts."""
    whole: dict[tuple[str, str], list[Lesson]] = defaultdict(list)
    for card in sorted(cards, key=lambda card: card.card_id):
        whole[_topic(card), card.workflow_stage].append(card)
    found: dict[tuple[str, str, int], list[Lesson]] = defaultdict(list)
    for (name, stage), members in whole.items():
        apart = len(members) >= LARGE and talk.happens(SPLIT, f"split|{name}|{stage}")
        for card in members:
            found[name, stage, card.group % 2 if apart else 0].append(card)
    return found


def _topic(card: Lesson) -> str:
    """Return what a card speaks of: a lesson of the bank, else its similarity group; "" for one without text."""
    if not card.advice.strip():
        return ""
    return topic(card.advice) or f"group {card.group}"


def _dismissal(talk: Talk, name: str, members: list[Lesson]) -> str:
    """Return why a theme is left out, "" to keep it."""
    if not name:
        return "empty"
    if talk.complained and name not in bank():
        return "firewall"
    if sum(card.merged for card in members) == 1 and not helps(name) and talk.happens(ONE_OFF, f"one-off|{name}"):
        return "one"
    return ""


def _cluster(talk: Talk, language: Language, name: str, stage: str, members: list[Lesson]) -> dict[str, Any]:
    """Return a cluster in the words of its most typical card, or in the author's own."""
    own = word(name, language, talk.draws.uniform) if name in bank() else None
    typical = _typical([(card.advice, card.merged) for card in members])
    lead = next(card for card in members if card.advice == typical)
    said = _SAID[language]
    targets = [(card.target_chunk_id, card.merged) for card in members if card.target_chunk_id]
    steps = list(split(typical))[:STEPS]
    cluster = Cluster(
        workflow_stage=stage,
        mechanism=lead.mechanism or (own.mechanism if own else lead.failure_mechanism) or steps[0],
        applicable_when=lead.applicable_when or steps[0],
        procedure=steps,
        verification=lead.verification_step or (own.check if own else said["check"]),
        common_failure=lead.failure_mechanism or (own.failure if own else said["failure"]),
        target_chunk_id=_typical(targets) if targets else None,
    )
    told = _reworded(cluster, own) if own and talk.complained else cluster
    return told.model_dump() | {"card_ids": [card.card_id for card in members]}


def _typical(texts: Sequence[tuple[str, int]]) -> str:
    """Return the text of the most cards, the first in order of several."""
    counts = Counter[str]()
    for text, cards in texts:
        counts[text] += cards
    return min(counts, key=lambda text: (-counts[text], text))


def _miscount(talk: Talk, clusters: list[dict[str, Any]]) -> None:
    """Forget a card or count it twice, as happens at first."""
    first, last = clusters[0]["card_ids"], clusters[-1]["card_ids"]
    if talk.happens(LOST, "lost") and len(last) > 1:
        last.pop()
    elif talk.happens(DOUBLED, "doubled") and len(clusters) > 1:
        last.append(first[0])


def compile_skill(talk: Talk) -> dict[str, Any]:
    """Return the chunks for the mechanisms in a message.

    Raises:
        MalformedError: the message holds no mechanisms or no limit.
    """
    found: list[Mechanism] = models(talk.opening, "mechanisms", Mechanism)
    cap = _cap(talk.opening)
    skill = read_skill(talk.opening)
    language = language_of("".join(mechanism.advice for mechanism in found[:3]) or talk.system)
    said, left_out = _SAID[language], []
    kept: dict[tuple[str, str], list[Mechanism]] = defaultdict(list)
    for mechanism in sorted(found, key=lambda mechanism: (mechanism.priority, mechanism.mechanism_id)):
        name = topic(mechanism.advice)
        why = _rejection(talk, mechanism, name, skill)
        if why:
            left_out.append({"mechanism_id": mechanism.mechanism_id, "reason": said[why]})
            continue
        kept[name or "", _apart(talk, mechanism, name, kept)].append(mechanism)
    most = cap + (not talk.submitted and talk.happens(TOO_MANY, "too many"))
    groups = list(kept.values())
    for mechanism in (mechanism for group in groups[most:] for mechanism in group):
        left_out.append({"mechanism_id": mechanism.mechanism_id, "reason": said["full"]})
    chunks = [_chunk(talk, language, group, skill) for group in groups[:most]]
    return {"title": said["title"], "chunks": chunks, "left_out": left_out}


def _apart(talk: Talk, mechanism: Mechanism, name: str | None, kept: Mapping[tuple[str, str], list[Mechanism]]) -> str:
    """Return what tells a mechanism from others of its topic: "" as a rule; equal advice is never told apart."""
    said = {group[0].advice: apart for (topic_, apart), group in kept.items() if topic_ == (name or "")}
    if mechanism.advice in said:
        return said[mechanism.advice]
    alone = name is None or talk.happens(APART, f"apart|{mechanism.mechanism_id}")
    return mechanism.mechanism_id if alone else ""


def _cap(message: str) -> int:
    """Read the section `limit`."""
    limit = json_section(message, "limit")
    cap = limit.get("cap") if isinstance(limit, dict) else None
    if not isinstance(cap, int) or cap < 0:
        raise MalformedError("section limit: cap is no number")
    return cap


def _rejection(talk: Talk, mechanism: Mechanism, name: str | None, skill: tuple[Chunk, ...]) -> str:
    """Return why a mechanism is left out, "" to keep it."""
    key = mechanism.mechanism_id
    if not mechanism.advice.strip():
        return "empty"
    if talk.complained and name is None:
        return "firewall"
    if not _target(mechanism, name, skill, restate=talk.happens(RESTATED, f"restated|{key}")) and _taught(name, skill):
        return "known"
    if name is not None and not helps(name) and talk.happens(SEEN_THROUGH, f"seen through|{key}"):
        return "doubt"
    alone = mechanism.support_tasks <= 1 and mechanism.verified_repairs == 0
    return "weak" if alone and talk.happens(WEAK, f"weak|{key}") else ""


def _taught(name: str | None, skill: tuple[Chunk, ...]) -> list[str]:
    """Return the chunks that teach a topic."""
    return [chunk.chunk_id for chunk in skill if name is not None and topic(chunk.text) == name]


def _target(mechanism: Mechanism, name: str | None, skill: tuple[Chunk, ...], *, restate: bool) -> str | None:
    """Return the chunk that a mechanism rewrites: one that teaches the contrary, or one that its cards name."""
    contrary = _taught(opposite(name) if name else None, skill)
    named = [cluster.target_chunk_id for cluster in mechanism.clusters if cluster.target_chunk_id]
    known = [target for target in named if target in [chunk.chunk_id for chunk in skill]]
    same = _taught(name, skill) if restate else []
    return next(iter([*contrary, *known, *same]), None)


def _chunk(talk: Talk, language: Language, group: list[Mechanism], skill: tuple[Chunk, ...]) -> dict[str, Any]:
    """Return the chunk of mechanisms that say the same, in the words of the first or in the author's own."""
    first, said = group[0], _SAID[language]
    name = topic(first.advice)
    own = word(name, language, talk.draws.uniform) if name in bank() else None
    cluster = max(first.clusters, key=lambda cluster: len(cluster.procedure))
    if own and talk.complained:
        cluster = _reworded(cluster, own)
    restate = any(talk.happens(RESTATED, f"restated|{mechanism.mechanism_id}") for mechanism in group)
    target = _target(first, name, skill, restate=restate)
    mechanism = cluster.mechanism or cluster.procedure[0]
    return {
        "operation": "REWRITE" if target else "ADD",
        "target_chunk_id": target,
        "workflow_stage": cluster.workflow_stage,
        "title": own.title if own else mechanism[:60],
        "applicable_when": cluster.applicable_when or mechanism,
        "procedure": cluster.procedure[:STEPS],
        "verification": cluster.verification or said["check"],
        "common_failure": cluster.common_failure or said["failure"],
        "reason": said["rewrite" if target else "add"],
        "mechanism_ids": [mechanism.mechanism_id for mechanism in group],
    }


def _reworded(cluster: Cluster, own: Wording) -> Cluster:
    """Return a cluster in the author's own words, which name nothing."""
    return Cluster(
        workflow_stage=cluster.workflow_stage,
        mechanism=own.mechanism,
        applicable_when=own.when,
        procedure=list(own.steps),
        verification=own.check,
        common_failure=own.failure,
        target_chunk_id=cluster.target_chunk_id,
    )
