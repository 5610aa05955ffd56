import itertools
import json
from collections.abc import Callable
from functools import partial
from typing import Any, get_args

import pytest
from casework import EMPTY, LESSONS, SKILL, Acting, Case, analyst, diagnosis, nothing, success_card
from scripted import Answer, completion, failure

from shopskill_lib import analysts
from shopskill_lib.briefs import brief
from shopskill_lib.cards import Analysis, Audit, Card, FailureLesson, Reason
from shopskill_lib.errors import AuthorError, FirewallError, InfrastructureError
from shopskill_lib.ledger import SYNONYM
from shopskill_lib.records import Language
from shopskill_lib.simulated.lessons import Wording, bank, join, render, word
from shopskill_lib.skills import Chunk, Skill
from shopskill_lib.text import estimated_tokens, ngram_similarity


@pytest.fixture(params=["en", "zh"])
def case(shops: dict[str, Any], request: pytest.FixtureRequest) -> Case:
    return Case.of(shops[request.param])


def succeed(case: Case, author: Callable[[Any], Answer], skill: Skill = EMPTY, **bounds: int) -> tuple[Analysis, Audit]:
    who = analyst(author, case.language, skill, **bounds)
    return analysts.success(who, case.success, case.instance, identity="i", category=case.task.category)


def fail(
    case: Case,
    author: Callable[[Any], Answer],
    skill: Skill = EMPTY,
    change: dict[str, Any] | None = None,
    **bounds: int,
) -> tuple[Card, Audit]:
    failed = case.failed.model_copy(update=change or {})
    who = analyst(author, case.language, skill, **bounds)
    analysis, audit = analysts.failure(who, failed, case.task, case.shop, case.instance, identity="i")
    (card,) = analysis.cards
    assert audit.card_ids == (card.card_id,) and (card.deployable is None) == (card.facts.status == "NO_PROPOSAL")
    return card, audit


def cards_of(*cards: Any) -> tuple[str, Any]:
    return "submit_success_cards", {"cards": list(cards)}


def submit(fields: Any) -> tuple[str, Any]:
    return "submit_diagnosis", fields


def last_told(author: Acting) -> str:
    """What the author was answered last."""
    return str(author.bodies[-1]["messages"][-1]["content"])


def test_success_cards_carry_steps_and_no_quotes(case: Case) -> None:
    author = Acting([cards_of(success_card(case.success, case.language))])
    analysis, audit = succeed(case, author)
    (card,) = analysis.cards
    assert card.facts.steps == (1,) and card.facts.status is None and card.facts.reward_lost == 0
    assert card.facts.simulated and not card.facts.reasked and card.facts.confidence == 0.8
    assert (
        audit.diagnosis["cards"][0]["evidence"][0]["step"] == 1
        and audit.diagnosis["cards"][0]["card_id"] == card.card_id
    )
    assert "evidence" not in analysis.model_dump_json() and case.task.category not in analysis.model_dump_json()
    assert author.offered == [["submit_success_cards"]]
    schema = author.bodies[0]["tools"][0]["function"]["parameters"]
    assert schema["properties"]["cards"]["maxItems"] == 2
    assert "exactly as they stand there" in json.dumps(schema)


def test_the_success_prompt_is_the_contract(case: Case) -> None:
    author = Acting([cards_of()])
    succeed(case, author, SKILL)
    system, user = (message["content"] for message in author.bodies[0]["messages"])
    assert "{" not in system and ("最多写 2 张" if case.language == "zh" else "at most 2 cards") in system
    order = [user.index(f"<{name}>\n") for name in ("request", "skill", "outcome", "trajectory")]
    assert order == sorted(order) and ("<persona>" in user) == (case.task.persona is not None)
    outcome = json.loads(user.split("<outcome>\n")[1].split("\n</outcome>")[0])
    assert set(outcome) == {"ending", "reward", "parts", "purchase"} and set(outcome["purchase"]) == {
        "asin", "title", "options", "price",
    }  # fmt: skip
    assert json.loads(user.split("<skill>\n")[1].split("\n</skill>")[0])[0]["chunk_id"] == "sizes"
    first = case.success.turns[0]
    assert f'<turn n="1">\n<page>\n{first.page.strip()}\n</page>\n<action>{first.action}</action>\n</turn>' in user
    assert "target_asin_match" not in user and "gold" not in user


def test_no_card_is_a_valid_answer(case: Case) -> None:
    analysis, audit = succeed(case, Acting([cards_of()]))
    assert analysis.cards == () and audit.card_ids == ()


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"evidence": [{"step": 99, "quote": "x"}]}, "there is no turn 99, the turns are 1 to "),
        (
            {"evidence": [{"step": 1, "quote": "nobody wrote this 没有人写过"}]},
            "neither in the page nor in the action of turn 1",
        ),
        ({"evidence": [{"step": 1, "quote": "\u200b"}]}, "neither in the page nor in the action"),
        ({"related_chunk_ids": ["nowhere"]}, "the skill has no chunk 'nowhere'"),
        ({"evidence": []}, "cards.0.evidence: "),
        ({"confidence": 2}, "cards.0.confidence: "),
        ({"mechanism": " "}, "cards.0.mechanism: "),
    ],
)
def test_a_card_at_fault_is_sent_back_with_the_fault(case: Case, change: dict[str, Any], told: str) -> None:
    good = success_card(case.success, case.language)
    author = Acting([cards_of(good | change), cards_of(good)])
    analysis, _ = succeed(case, author)
    assert len(analysis.cards) == 1 and told in json.loads(last_told(author))["detail"]


def test_too_many_or_repeated_cards_are_sent_back(case: Case) -> None:
    good = success_card(case.success, case.language)
    author = Acting([cards_of(good, good | {"confidence": 0.1}), cards_of(*[good] * 3), cards_of(good)])
    analysis, _ = succeed(case, author)
    assert len(analysis.cards) == 1 and "3 cards, at most 2" in last_told(author) and "repeats" in last_told(author)


def test_a_quote_is_read_as_it_is_seen(case: Case) -> None:
    page = next(turn.page for turn in case.success.turns if turn.step == 2)
    quote = "  ".join(page.split()[:6]).upper()
    evidence = [{"step": 2, "quote": quote}]
    analysis, _ = succeed(case, Acting([cards_of(success_card(case.success, case.language, evidence=evidence))]))
    assert analysis.cards[0].facts.steps == (2,)


def test_cards_that_stay_invalid_are_an_error_and_no_card(case: Case) -> None:
    bad = cards_of(success_card(case.success, evidence=[{"step": 99, "quote": "x"}]))
    with pytest.raises(AuthorError, match=r"no valid answer after 3 requests: .*there is no turn 99"):
        succeed(case, Acting([bad, "I would rather talk.", bad]))


def test_a_success_card_with_gold_is_sent_back_once_then_keeps_no_text(case: Case) -> None:
    good = success_card(case.success, case.language)
    bad = good | {"mechanism": f"buying {case.gold.title}"}
    author = Acting([cards_of(bad, good), cards_of(good)])
    analysis, audit = succeed(case, author)
    (card,) = analysis.cards
    assert card.facts.reasked and card.deployable is not None and audit.findings
    told = json.loads(last_told(author))
    assert (
        told["type"] == "firewall" and "cards.0.mechanism" in told["complaints"][0] and case.gold.title not in str(told)
    )
    analysis, audit = succeed(case, Acting([cards_of(bad, good), cards_of(bad, good)]))
    lost, kept = analysis.cards
    assert (lost.deployable, lost.facts.status, lost.facts.reason) == (None, "NO_PROPOSAL", "firewall")
    assert kept.deployable is not None and kept.facts.reason is None
    assert case.gold.title not in analysis.model_dump_json() and case.gold.title in audit.model_dump_json()
    analysis, _ = succeed(case, Acting([cards_of(bad), "no", "no", "no"]))
    assert analysis.cards[0].facts.reason == "firewall"


def test_I5_nothing_privileged_reaches_a_prompt(case: Case) -> None:
    with pytest.raises(FirewallError, match="the prompt of an analyst"):
        brief(case.success, EMPTY, language="en", room=10**6, more={"gold": case.instance})


def test_a_verified_repair_is_proposed(case: Case) -> None:
    author = Acting([("inspect_gold", {}), *case.acts(submit(diagnosis(case.language)))])
    card, audit = fail(case, author)
    assert (
        isinstance(card.deployable, FailureLesson) and card.facts.status == "PROPOSE_ADD" and card.facts.reason is None
    )
    assert card.facts.repair_verified and card.facts.repair_actions == len(case.repair) - 1
    assert card.facts.steps == (2,) and card.facts.surface == "product_detail" and card.facts.reward_lost == 1
    assert (
        audit.diagnosis["gold_asin"] == case.gold.asin
        and "met everything" in audit.diagnosis["repair_validation_result"]
    )
    assert audit.trials[0]["after_steps"] == 1 and audit.trials[0]["r_success"] == 1
    assert json.loads(author.bodies[1]["messages"][-1]["content"])["asin"] == case.gold.asin
    first, page = author.bodies[2]["messages"][-1]["content"].split("\n\n", 1)
    assert json.loads(first) == {"trial": 1, "after_steps": 1, "same_pages": True} and page == case.failed.turns[1].page
    step, _ = author.bodies[3]["messages"][-1]["content"].split("\n\n", 1)
    assert json.loads(step) == {"trial": 1, "feedback": "executed", "done": False}
    end = json.loads(last_told(author))
    assert end["done"] and end["reward"] == 1 and end["purchase"]["asin"] == case.gold.asin and "r_att" in end["parts"]


def test_tools_follow_the_open_trial(case: Case) -> None:
    author = Acting([*case.acts(("replay_prefix", {"steps": 0}), submit(nothing("execution_slip")))])
    fail(case, author)
    always = ["inspect_gold", "replay_prefix", "submit_diagnosis"]
    assert author.offered[0] == always
    assert author.offered[1] == [*always[:2], "click", always[2]]
    assert author.offered[-2] == always
    assert author.offered[-1] == [*always[:2], "search", always[2]]
    (k,) = author.bodies[0]["tools"][1]["function"]["parameters"]["properties"].values()
    assert (k["minimum"], k["maximum"]) == (0, len(case.failed.turns) - 1)


def test_a_rewrite_is_proposed(case: Case) -> None:
    lesson = {"target_chunk_id": "sizes", "proposed_content": LESSONS[case.language]["corrective_procedure"]}
    card, _ = fail(
        case, Acting(case.acts(submit(diagnosis(case.language, status="PROPOSE_REWRITE", lesson=lesson)))), SKILL
    )
    assert card.facts.status == "PROPOSE_REWRITE" and isinstance(card.deployable, FailureLesson)
    assert card.deployable.target_chunk_id == "sizes"


def _rewrite(target: str | None, text: str | None) -> Callable[[Case], list[Any]]:
    fields = {"status": "PROPOSE_REWRITE", "lesson": {"target_chunk_id": target, "proposed_content": text}}
    return lambda case: case.acts(submit(diagnosis(case.language, **fields)))


def _firewalled(case: Case) -> list[Any]:
    bad = submit(diagnosis(case.language, lesson={"corrective_procedure": f"search {case.gold.title}"}))
    return case.acts(bad, bad)


def _repeats_a_chunk(case: Case) -> list[Any]:
    text = SKILL.chunks[case.language == "zh"].text
    return case.acts(submit(diagnosis(case.language, lesson={"corrective_procedure": text})))


def _at_once(case: Case) -> list[Any]:
    actions = case.acts(after=0)
    actions[1] = ("search", {"query": f"{case.gold.title} {case.gold.brand}"})
    return [("inspect_gold", {}), *actions, submit(diagnosis(case.language))]


REFUSED: list[tuple[str, Reason, list[Any] | Callable[[Case], list[Any]], dict[str, Any]]] = [
    ("no trial claimed", "no_verified_repair", [submit(diagnosis(repair_trial=None))], {}),
    ("gold bought at once", "no_verified_repair", _at_once, {}),
    ("declared", "no_verified_repair", [submit(nothing("no_verified_repair"))], {}),
    ("a chunk declared", "covered_by_skill",
     [submit(nothing("covered_by_skill", covered_by="sizes"))], {}),
    ("a chunk repeated", "covered_by_skill", _repeats_a_chunk, {}),
    ("declared", "execution_slip", [submit(nothing("execution_slip"))], {}),
    ("another page", "environment_fault", lambda case: case.acts(submit(diagnosis(case.language))), {"pages": True}),
    ("declared", "environment_fault", [submit(nothing("environment_fault"))], {}),
    ("the surface", "environment_fault",
     lambda case: case.acts(submit(diagnosis(audit={"failure_surface": "environment"}))), {}),
    ("no target", "invalid_rewrite_target", _rewrite(None, "new"), {}),
    ("unknown target", "invalid_rewrite_target", _rewrite("nowhere", "new"), {}),
    ("no text", "invalid_rewrite_target", _rewrite("sizes", None), {}),
    ("the old text", "invalid_rewrite_target", _rewrite("sizes", f"  {SKILL.chunks[0].text.upper()}\n"), {}),
    ("a title twice", "firewall", _firewalled, {}),
    ("a title, then prose", "firewall", lambda case: [*_firewalled(case)[:-1], "no"], {}),
    ("prose", "budget_spent", ["Let me think."] * 4, {"rounds": 4}),
    ("two submissions at once", "budget_spent",
     [completion(*[submit(diagnosis())] * 2)] * 4, {"rounds": 4}),
    ("never submitted", "budget_spent", [("inspect_gold", {})] * 3 + ["no"], {"rounds": 4}),
    ("tokens", "budget_spent", [("inspect_gold", {})] * 2 + ["no"], {"tokens": 300}),
    ("context", "budget_spent", [("inspect_gold", {}), failure(400, "context_length_exceeded")], {}),
]  # fmt: skip


def _place(n: int, decision: str) -> float:  # noqa: ARG001 - the signature of draws
    return (n + 0.5) / 3


def _bank(language: Language) -> dict[str, list[Wording]]:
    """Every lesson of the author's bank in three wordings."""
    return {name: [word(name, language, partial(_place, n)) for n in range(3)] for name in bank()}


def _alike(lesson: Wording, chunk: Wording, language: Language) -> float:
    steps = join(lesson.steps, language)
    told = (steps, " ".join((lesson.when, steps, lesson.check)))
    return max(ngram_similarity(wording, render(chunk, language)) for wording in told)


@pytest.mark.parametrize("language", ["en", "zh"])
def test_the_threshold_parts_a_lesson_from_the_other_chunks(language: Language) -> None:
    """The same in a chunk's form on one side; on the other, other lessons and what characters cannot tell."""
    lessons = _bank(language)
    same = [_alike(one, one, language) for wordings in lessons.values() for one in wordings]
    steps = [
        _alike(one, other._replace(steps=one.steps), language)
        for wordings in lessons.values()
        for one, other in itertools.permutations(wordings, 2)
    ]
    reworded = [
        _alike(one, other, language)
        for wordings in lessons.values()
        for one, other in itertools.permutations(wordings, 2)
        if one.steps != other.steps
    ]
    others = [
        _alike(one, other, language)
        for left, right in itertools.permutations(lessons.values(), 2)
        for one, other in itertools.product(left, right)
    ]
    assert min(same) > SYNONYM + 0.1 and max(others) < SYNONYM - 0.1
    assert sum(value >= SYNONYM for value in steps) > 0.75 * len(steps)
    assert max(reworded) < SYNONYM


def test_a_lesson_that_a_chunk_says_in_its_own_form_is_covered(case: Case) -> None:
    for name, reason in (("compare", "covered_by_skill"), ("price", None)):
        lesson, chunk = (word(known, case.language, lambda _: 0.0) for known in ("compare", name))
        told = {
            "applicable_when": lesson.when,
            "corrective_procedure": join(lesson.steps, case.language),
            "verification_step": lesson.check,
        }
        skill = Skill(title="t", chunks=(Chunk(chunk_id="c", title="t", text=render(chunk, case.language)),))
        card, _ = fail(case, Acting(case.acts(submit(diagnosis(case.language, lesson=told)))), skill)
        assert (card.facts.reason, card.facts.covered_by) == (reason, "c" if reason else None)


@pytest.mark.parametrize(("what", "reason", "acts", "change"), REFUSED, ids=[f"{r}: {w}" for w, r, _, _ in REFUSED])
def test_I4_every_reason_is_reached(
    case: Case, what: str, reason: Reason, acts: list[Any] | Callable[[Case], list[Any]], change: dict[str, Any]
) -> None:
    bounds = {name: value for name, value in change.items() if name != "pages"}
    turns = tuple(turn.model_copy(update={"page": turn.page + "sale"}) for turn in case.failed.turns)
    author = Acting(acts(case) if callable(acts) else acts)
    card, audit = fail(case, author, SKILL, {"turns": turns} if "pages" in change else {}, **bounds)
    assert (card.facts.status, card.facts.reason, card.deployable) == ("NO_PROPOSAL", reason, None), what
    assert next(author._acts, None) is None, "not everything was asked for"
    covered = {"a chunk declared": "sizes", "a chunk repeated": SKILL.ids[case.language == "zh"]}
    assert card.facts.covered_by == covered.get(what)
    assert len(audit.transcript) >= 1


def test_I4_no_reason_is_forgotten() -> None:
    assert {reason for _, reason, _, _ in REFUSED} == set(get_args(Reason))


def test_a_declared_chunk_must_exist(case: Case) -> None:
    wrong = submit(nothing("covered_by_skill", covered_by="nowhere"))
    author = Acting([wrong, submit(nothing("execution_slip"))])
    card, _ = fail(case, author, SKILL)
    assert card.facts.reason == "execution_slip" and "the skill has no chunk 'nowhere'" in last_told(author)


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        (diagnosis(deployable=None), "PROPOSE_ADD needs deployable"),
        (diagnosis(lesson={"target_chunk_id": "sizes"}), "PROPOSE_REWRITE"),
        (diagnosis(lesson={"proposed_content": "a whole new text"}), "PROPOSE_REWRITE"),
        (nothing("execution_slip") | {"no_proposal_reason": None}, "NO_PROPOSAL needs no_proposal_reason"),
        (nothing("covered_by_skill"), "needs covered_by"),
        (diagnosis(audit={"earliest_divergence": {"step": 99, "why": "x"}}), "there is no turn 99"),
        (diagnosis(audit={"failure_surface": "weather"}), "audit.failure_surface"),
        (diagnosis() | {"extra": 1}, "extra: "),
    ],
)
def test_a_malformed_diagnosis_costs_a_round_and_is_told(case: Case, fields: Any, told: str) -> None:
    author = Acting([submit(fields), ("replay_prefix", {"steps": 99}), submit(nothing("execution_slip"))])
    card, audit = fail(case, author, SKILL, rounds=3)
    assert card.facts.reason == "execution_slip" and told in author.bodies[1]["messages"][-1]["content"]
    assert "99 is no number of turns from 0 to 3" in last_told(author)
    assert author.offered[-1] == ["submit_diagnosis"] and audit.diagnosis["tokens"] == 330


def test_a_finding_is_sent_back_once_and_may_be_mended(case: Case) -> None:
    bad = diagnosis(case.language, lesson={"corrective_procedure": f"search {case.gold.title}"})
    author = Acting(case.acts(submit(bad), submit(diagnosis(case.language))))
    card, audit = fail(case, author, rounds=len(case.acts()) + 1)
    assert card.facts.reasked and card.facts.status == "PROPOSE_ADD" and audit.findings
    assert author.offered[-1] == ["submit_diagnosis"] and json.loads(last_told(author))["type"] == "firewall"
    assert case.gold.title not in card.model_dump_json()


def test_a_reply_that_is_cut_off_costs_a_round(case: Case) -> None:
    cut = completion(text="Let me", finish="length", usage={"prompt_tokens": 5, "completion_tokens": 512})
    author = Acting([cut, submit(nothing("execution_slip"))])
    card, _ = fail(case, author)
    assert card.facts.reason == "execution_slip"


def test_unknown_usage_is_estimated_and_said(case: Case) -> None:
    author = Acting([completion(("inspect_gold", {})), submit(nothing("execution_slip"))])
    _, audit = fail(case, author)
    sent = sum(len(json.dumps(message, ensure_ascii=False).encode()) for message in author.bodies[0]["messages"])
    assert audit.diagnosis["tokens_estimated"] and audit.diagnosis["tokens"] == pytest.approx(sent // 4 + 110, rel=0.02)
    _, audit = fail(case, Acting([submit(nothing("execution_slip"))]))
    assert not audit.diagnosis["tokens_estimated"] and audit.diagnosis["tokens"] == 110


def test_I5_gold_is_in_the_audit_only(case: Case) -> None:
    """Canaries in every privileged field, and gold's own facts, stay out of whatever travels."""
    author = Acting([("inspect_gold", {}), *case.acts(submit(diagnosis(case.language)))])
    card, audit = fail(case, author)
    travels, kept = card.model_dump_json(), audit.model_dump_json()
    for secret in ("CANARY-COMPARISON", "CANARY-EVIDENCE", "CANARY-REPAIR", case.gold.asin, case.gold.title):
        assert secret in kept and secret not in travels
    assert case.task.category not in travels


def test_I5_every_field_of_a_diagnosis_that_travels_is_scanned(case: Case) -> None:
    for name in LESSONS["en"]:
        if name == "workflow_stage":
            continue
        bad = submit(diagnosis(case.language, lesson={name: f"{case.gold.title}"}))
        card, _ = fail(case, Acting(case.acts(bad, bad)))
        assert card.facts.reason == "firewall", name


def test_a_failing_server_is_an_error_and_no_card(case: Case) -> None:
    with pytest.raises(InfrastructureError):
        fail(case, Acting([("inspect_gold", {})] + [failure(503)] * 6))


def test_pages_are_shortened_oldest_results_first_and_said(case: Case) -> None:
    whole = brief(case.failed, EMPTY, language=case.language, room=10**6)
    assert not whole.compacted and all(turn.page.strip() in whole.text for turn in case.failed.turns)
    some = brief(case.failed, EMPTY, language=case.language, room=estimated_tokens(whole.text) - 50)
    assert some.compacted and estimated_tokens(some.text) <= estimated_tokens(whole.text) - 50
    shortened = [turn.step for turn in case.failed.turns if turn.page.strip() not in some.text]
    assert shortened == [2]
    mark = "在此省略" if case.language == "zh" else "are left out here"
    assert some.text.count(mark) == 1
    card, audit = fail(case, Acting([submit(nothing("execution_slip"))]), context_tokens=2500)
    assert audit.compacted and card.facts.reason == "execution_slip"


def test_identity_is_what_an_analysis_depends_on(case: Case) -> None:
    author = Acting([])

    def name(skill: Skill = EMPTY, language: Language = "en", **bounds: int) -> str:
        return analyst(author, language, skill, **bounds).identity(case.failed, "failure", {"task": "1"})

    others = {
        name(SKILL),
        name(language="zh"),
        analyst(author).identity(case.success, "failure", {"task": "1"}),
        name(rounds=3),
        name(tokens=3),
        name(context_tokens=3000),
        name(seed=1),
        analyst(author).identity(case.failed, "failure", {"task": "2"}),
        analyst(author).identity(case.failed, "success", {"task": "1"}),
    }
    assert len(others) == 9 and name() not in others and name(max_cards=3) == name()


def test_salted_keys_tell_equal_from_different_and_nothing_else() -> None:
    who, other = analyst(Acting([])), analyst(Acting([]), seed=1)
    assert who.key("task", "12") == who.key("task", "12") != who.key("task", "13")
    assert who.key("task", "12") != other.key("task", "12") and who.key("task", "12").startswith("task-")
