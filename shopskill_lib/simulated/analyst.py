"""The simulated author as success analyst and failure analyst: what it hands in, and what it does in the shop before.

It is imperfect on purpose; every rate is a constant here.
"""

from typing import Any

from shopskill_lib.files import json_object
from shopskill_lib.records import Language
from shopskill_lib.simulated.casefile import Case, Exchange, Talk, Trial, trials
from shopskill_lib.simulated.decisions import BUY, Call
from shopskill_lib.simulated.diagnosis import Cause, Course, Evidence, as_list, next_action
from shopskill_lib.simulated.lessons import Wording, join, names, opposite, render, topic, word
from shopskill_lib.simulated.reading import read_page

MAX_CARDS = 3
"""Success cards at most where the tool sets no bound."""

MISSED = 0.35
"""Share of competences at work in a success that are overlooked."""

INCIDENTAL = 0.1
"""Share of success cards that rest on the first step whatever it was."""

GENERALISED = 0.1
"""Share of success cards whose lesson is said to apply always."""

USELESS = 0.08
"""Share of lessons, in either channel, that are true and of no use."""

HARMFUL = 0.06
"""Share of lessons, in either channel, that harm."""

REPEATED = 0.2
"""Share of success cards on what the skill says already that are written all the same."""

UNTRIED = 0.05
"""Share of failures that are handed in without a repair."""

GOLD_AT_ONCE = 0.05
"""Share of failures in which the wanted product is searched for by its title and bought."""

WRONG_MECHANISM = 0.08
"""Share of diagnoses that name another competence than the trajectory shows."""

CALLED_SLIP = 0.05
"""Share of failures that are put down to a slip of the hand."""

CLAIMED = 0.1
"""Share of failed repairs that are claimed to have worked."""

DISMISSED = 0.6
"""Share of failures over something that the skill teaches which are put down as covered."""

LEAKED = 0.06
"""Share of lessons that name a product of the trajectory."""

UNCLEANED = 0.2
"""Share of leaks that stay after the firewall's complaint."""

TRIALS = 2
"""Repairs tried at most."""

LONG = 9
"""Actions after which a repair that has not ended is given up for another, where one is left."""

_ALWAYS = {"en": "Always, whatever the request.", "zh": "任何需求都适用。"}
_EXAMPLE = {"en": " It worked with {}.", "zh": "例如{}就是这样。"}


def success(talk: Talk, case: Case) -> dict[str, Any]:
    """Return the cards of a successful trajectory; after the firewall's complaint the same ones in other words."""
    if talk.complained:
        kept = [_reworded(talk, case, card) for card in as_list(talk.handed_in.get("cards")) if isinstance(card, dict)]
        return {"cards": [card for card in kept if card is not None]}
    course = Course(case, talk.draws)
    found = course.exercised()
    order = sorted(found, key=lambda name: talk.draws.uniform(f"order|{name}"))
    cards = [_success_card(talk, course, name, found[name]) for name in order if _is_told(talk, case, name)]
    return {"cards": cards[: talk.most or MAX_CARDS]}


def _is_told(talk: Talk, case: Case, name: str) -> bool:
    """Tell whether a competence at work becomes a card: seen, and not what the skill says already."""
    known = bool(_teaching(case, name))
    return not talk.happens(MISSED, f"missed|{name}") and (not known or talk.happens(REPEATED, f"repeated|{name}"))


def _teaching(case: Case, name: str) -> list[str]:
    """Return the chunks of the skill that teach a lesson."""
    return [chunk.chunk_id for chunk in case.skill if topic(chunk.text) == name]


def _success_card(talk: Talk, course: Course, name: str, evidence: Evidence) -> dict[str, Any]:
    case, lesson = course.case, _spoilt(talk, name)
    text = word(lesson, case.language, talk.draws.uniform)
    if talk.happens(INCIDENTAL, f"incidental|{name}"):
        first = case.turns[0]
        evidence = Evidence(first.step, first.text.strip().partition("\n")[0] or first.action)
    card = _success_texts(text, case.language)
    if talk.happens(GENERALISED, f"generalised|{name}"):
        card["applicable_when"] = _ALWAYS[case.language]
    title = case.outcome.purchase.title if case.outcome.purchase else ""
    card["generalizable_lesson"] += _leak(talk, title, case.language, name)
    return card | {
        "evidence": [{"step": evidence.step, "quote": evidence.quote}],
        "related_chunk_ids": _teaching(case, lesson),
        "confidence": round(0.5 + 0.45 * talk.draws.uniform(f"confidence|{name}"), 2),
    }


def _spoilt(talk: Talk, name: str) -> str:
    """Return a lesson, or a useless or harmful one in its place."""
    if talk.happens(HARMFUL, f"harmful|{name}"):
        other = opposite(name) if talk.happens(0.5, f"contrary|{name}") else None
        return other or _any(talk, names(-1), name)
    return _any(talk, names(0), name) if talk.happens(USELESS, f"useless|{name}") else name


def _any(talk: Talk, choice: tuple[str, ...], decision: str) -> str:
    return choice[int(talk.draws.uniform(f"any|{decision}") * len(choice)) % len(choice)]


def _leak(talk: Talk, told: str, language: Language, decision: str) -> str:
    """Return a remark that names a product, "" in most lessons."""
    if not told or not talk.happens(LEAKED, f"leaked|{decision}"):
        return ""
    return _EXAMPLE[language].format(told)


def _reworded(talk: Talk, case: Case, lesson: dict[str, Any]) -> dict[str, Any] | None:
    """Return a lesson that the firewall sent back in words that name nothing; sometimes it stays as it was.

    None for a lesson that cannot be put otherwise.
    """
    advice = str(lesson.get("corrective_procedure") or lesson.get("generalizable_lesson") or "")
    if talk.happens(UNCLEANED, f"uncleaned|{advice}"):
        return lesson
    name = topic(advice)
    if name is None:
        return None
    text = word(name, case.language, talk.draws.uniform)
    if "corrective_procedure" in lesson:
        return lesson | _failure_texts(text, case.language, rewrite=bool(lesson.get("target_chunk_id")))
    return lesson | _success_texts(text, case.language)


def _success_texts(text: Wording, language: Language) -> dict[str, Any]:
    return {
        "workflow_stage": text.stage,
        "mechanism": text.mechanism,
        "applicable_when": text.when,
        "decisive_behavior": text.steps[-1],
        "generalizable_lesson": join(text.steps, language),
    }


def _failure_texts(text: Wording, language: Language, *, rewrite: bool) -> dict[str, Any]:
    return {
        "workflow_stage": text.stage,
        "failure_mechanism": text.failure,
        "applicable_when": text.when,
        "observable_trigger": text.trigger,
        "corrective_procedure": join(text.steps, language),
        "verification_step": text.check,
        "proposed_content": render(text, language) if rewrite else None,
    }


def failure(talk: Talk, case: Case, offered: dict[str, list[str]]) -> tuple[str, dict[str, Any]]:
    """Return the next call of a failure analyst; `offered` are the tools, with the labels that they take."""
    if talk.complained:
        return talk.tool, _diagnosis_again(talk, case)
    course, made = Course(case, talk.draws), trials(talk.calls)
    gold = _inspected(talk.calls)
    if gold is None and "inspect_gold" in offered and not talk.submitted:
        return "inspect_gold", {}
    goes_on = not talk.submitted and _may_go_on(talk, made, offered)
    if goes_on and made and made[-1].reward is None and (len(made[-1].actions) < LONG or len(made) >= TRIALS):
        call = _step(talk, course, made, offered, gold or {})
        return call.name, {"query" if call.name == "search" else "value": call.argument}
    causes = course.causes(gold or {})
    cause = causes[0] if causes else Cause("backtrack", "termination", case.turns[-1].step)
    if goes_on:
        return "replay_prefix", {"steps": _prefix(talk, course, cause, made)}
    return talk.tool, _diagnosis(talk, course, cause, made, gold or {})


def _prefix(talk: Talk, course: Course, cause: Cause, made: tuple[Trial, ...]) -> int:
    """Return how many turns to replay: up to the divergence; from the start where a second try has other words."""
    if _cheats(talk):
        return 0
    first = Trial(0, 0, True, (), (course.case.turns[0].text,), None, "")
    query = next_action(course, first, made, (), search=True).argument
    return 0 if made and query != course.first_query else max(0, cause.step - 1)


def _diagnosis_again(talk: Talk, case: Case) -> dict[str, Any]:
    """Return the diagnosis that the firewall sent back with its lesson in other words, or without it."""
    given, lesson = talk.handed_in, talk.handed_in.get("deployable")
    other = _reworded(talk, case, lesson) if isinstance(lesson, dict) else None
    if other is None:
        return given | {"status": "NO_PROPOSAL", "no_proposal_reason": "firewall", "deployable": None}
    return given | {"deployable": other}


def _inspected(calls: tuple[Exchange, ...]) -> dict[str, Any] | None:
    """Return the wanted product, {} where it could not be read; None before it was inspected."""
    results = [json_object(made.result) for made in calls if made.name == "inspect_gold"]
    known = [product for product in results if "title" in product]
    return known[0] if known else {} if len(results) > 3 else None


def _cheats(talk: Talk) -> bool:
    return talk.happens(GOLD_AT_ONCE, "gold at once")


def _may_go_on(talk: Talk, made: tuple[Trial, ...], offered: dict[str, list[str]]) -> bool:
    """Tell whether there is something more to try."""
    if "replay_prefix" not in offered or talk.happens(UNTRIED, "untried"):
        return False
    if not made:
        return True
    last = made[-1]
    if last.reward is None:
        return last.same_pages and ("search" in offered or "click" in offered)
    return last.reward < 1 and len(made) < TRIALS


def _step(
    talk: Talk, course: Course, made: tuple[Trial, ...], offered: dict[str, list[str]], gold: dict[str, Any]
) -> Call:
    """Return the next action of the open trial."""
    trial, labels = made[-1], tuple(offered.get("click", ()))
    call = next_action(course, trial, made[:-1], labels, search="search" in offered)
    if _cheats(talk) and call.name == "search":
        return Call("search", str(gold.get("title", "")) or call.argument)
    if _cheats(talk) and course.case.gold in labels and not read_page(trial.texts[-1]).is_product:
        return Call("click", course.case.gold)
    return call


def _diagnosis(
    talk: Talk, course: Course, cause: Cause, made: tuple[Trial, ...], gold: dict[str, Any]
) -> dict[str, Any]:
    """Return what is handed in after the trials."""
    case = course.case
    named = cause.lesson
    if talk.happens(WRONG_MECHANISM, "wrong mechanism"):
        others = tuple(name for name in names(1) if name != named)
        named = _any(talk, others, "mechanism")
    repaired = next((trial for trial in made if trial.reward == 1), None)
    if repaired is None and made and talk.happens(CLAIMED, "claimed"):
        repaired = made[-1]
    covered, harming = _teaching(case, named), _teaching(case, opposite(named) or "")
    reason = _reason(talk, course, made, repaired, covered)
    lesson = None
    if reason is None:
        text = word(_spoilt(talk, named), case.language, talk.draws.uniform)
        lesson = _failure_lesson(talk, case, text, _target(covered, harming), gold)
    status = "NO_PROPOSAL" if lesson is None else "PROPOSE_REWRITE" if lesson["target_chunk_id"] else "PROPOSE_ADD"
    more: dict[str, Any] = {"suspected_harm": next(iter(harming), None)}
    if reason == "environment_fault":
        more["failure_surface"] = "environment"
    return {
        "status": status,
        "no_proposal_reason": reason,
        "covered_by": covered[0] if reason == "covered_by_skill" else None,
        "audit": _audit(case, cause, named, made, repaired, gold) | more,
        "repair_trial": None if repaired is None else repaired.number,
        "deployable": lesson,
    }


def _reason(
    talk: Talk, course: Course, made: tuple[Trial, ...], repaired: Trial | None, covered: list[str]
) -> str | None:
    """Return why nothing is proposed, None for a proposal."""
    turns = course.case.turns
    if any(not trial.same_pages for trial in made):
        return "environment_fault"
    if sum(turn.refused for turn in turns) > len(turns) / 3 or course.case.outcome.ending.endswith("_length"):
        return "execution_slip"
    if repaired is None and not talk.happens(UNTRIED, "untried"):
        return "no_verified_repair"
    if covered and talk.happens(DISMISSED, "dismissed"):
        return "covered_by_skill"
    return "execution_slip" if talk.happens(CALLED_SLIP, "slip") else None


def _target(covered: list[str], harming: list[str]) -> str | None:
    """Return the chunk to rewrite: one that teaches the contrary, or one that says it and was of no avail."""
    return next(iter([*harming, *covered]), None)


def _failure_lesson(talk: Talk, case: Case, text: Wording, target: str | None, gold: dict[str, Any]) -> dict[str, Any]:
    fields = ("asin", "title", "brand")
    told = str(gold.get(fields[int(talk.draws.uniform("leaked field") * 3) % 3], ""))
    lesson = _failure_texts(text, case.language, rewrite=target is not None) | {"target_chunk_id": target}
    lesson["corrective_procedure"] += _leak(talk, told, case.language, "failure")
    return lesson


_WHY = {
    "en": {
        "why": "Turn {step} did {action}; from there on {lesson} was wanting.",
        "compared": "Wanted: {gold}. Chosen: {chosen}. Parts of the reward: {parts}.",
        "nothing": "nothing", "untried": "No repair was executed.",
        "tried": "Trial {number} after {k} steps: {actions}; reward {reward}.",
        "repair": "After {k} steps: {actions}.", "no_repair": "None was found.",
    },
    "zh": {
        "why": "第{step}步做了{action}，从这里起在{lesson}上出了问题。",
        "compared": "应买：{gold}。实际：{chosen}。奖励各项：{parts}。",
        "nothing": "没有买", "untried": "没有执行过修复。",
        "tried": "第{number}次尝试，从第{k}步之后：{actions}；奖励{reward}。",
        "repair": "第{k}步之后：{actions}。", "no_repair": "没有找到。",
    },
}  # fmt: skip


def _audit(
    case: Case, cause: Cause, named: str, made: tuple[Trial, ...], repaired: Trial | None, gold: dict[str, Any]
) -> dict[str, Any]:
    """Return the privileged part of a diagnosis."""
    texts, turn = _WHY[case.language], next(turn for turn in case.turns if turn.step == cause.step)
    chosen = case.outcome.purchase
    tried = [
        texts["tried"].format(number=trial.number, k=trial.after_steps, actions=_path(trial), reward=trial.reward)
        for trial in made
    ]
    return {
        "failure_surface": cause.surface,
        "earliest_divergence": {
            "step": cause.step,
            "why": texts["why"].format(step=cause.step, action=turn.action, lesson=named),
        },
        "oracle_comparison": texts["compared"].format(
            gold=gold.get("title", case.gold), chosen=chosen.title if chosen else texts["nothing"],
            parts=case.outcome.parts,
        ),
        "replay_evidence": join(tried, case.language) or texts["untried"],
        "minimal_repair": texts["repair"].format(k=repaired.after_steps, actions=_path(repaired))
        if repaired
        else texts["no_repair"],
    }  # fmt: skip


def _path(trial: Trial) -> str:
    return ", ".join(f"{verb}[{argument}]" for verb, argument in trial.actions) or BUY
