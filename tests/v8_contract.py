"""Whether a server keeps the ShopSimulator v8 contract, seen from outside: `check` drives it and names deviations.

Written from the reference text (shopsimrl.md 1.3-1.9) alone. What one answer must look like is in `v8_answers`, what
actions do in `v8_actions`. The server must serve nobody else meanwhile: slots are counted, all of them are taken at
once, and `release_all` is called.
"""

import http.client
import json
import re
import select
import uuid
from collections.abc import Sequence

import v8_actions
from v8_driver import IDLE, Case, Episode, Topic, content, read

ENVIRONMENT = "shopsimulator-paper-aligned-v8"
HEALTH = {
    "ready": "true or false",
    **dict.fromkeys(("environment_slots", "free_slots", "tasks"), "a whole number"),
    **dict.fromkeys(("environment_version", "primary_reward", "observation_version"), "a text"),
    **dict.fromkeys(("debug_ui", "replay_ui"), "a text"),
}
NO_TASK = 10**9
UUID4 = "[0-9a-f]{12}4[0-9a-f]{3}[89ab][0-9a-f]{15}"


def health(case: Case) -> None:
    """GET /healthz (1.3.1)."""
    found = case.health()
    if case.notes.fields("/healthz", found, HEALTH):
        case.expect(found["ready"], "/healthz does not say ready")
        case.expect(found["environment_version"] == ENVIRONMENT, f"environment_version is not {ENVIRONMENT}")
        case.expect(found["observation_version"] == "shopping-observation-v7", "observation_version is not v7")
        case.expect(found["primary_reward"] == "r_strict", "primary_reward is not r_strict")
        case.expect(found["environment_slots"] >= 1 and found["tasks"] >= 1, "/healthz counts no slots or no tasks")
        case.expect(found["free_slots"] == found["environment_slots"], "not all slots of the idle server are free")
        with case.episode():
            case.expect(case.free() == found["free_slots"] - 1, "a reset does not take one slot from free_slots")


def reset(case: Case) -> None:
    """The answer to reset and its defaults (1.3.2, 1.3.3)."""
    with case.episode(env_idx=None) as one:
        result = one.started
        case.expect(result["idx"] == case.task, "reset answers another idx than was asked for")
        case.expect(result["environment_version"] == ENVIRONMENT, f"environment_version is not {ENVIRONMENT}")
        case.expect(result["interaction_mode"] == "single_turn", "the interaction mode is not single_turn by default")
        case.expect(0 <= one.slot < case.health()["environment_slots"], "env_idx is not below environment_slots")
        case.expect(re.fullmatch(UUID4, one.lease), "lease_id is not the hex form of a uuid4")
        first = one.lease
    with case.episode(interaction_mode="multi_turn") as one:
        case.expect(one.lease != first, "two resets give the same lease")
        case.expect(one.started["interaction_mode"] == "multi_turn", "interaction_mode is not echoed")


def private_goal(case: Case) -> None:
    """`include_private_goal` (1.3.3)."""
    wanted = {"private_task_instruction": "a text", "goal_options": "a list", "reason_key": "anything"}
    with case.episode(include_private_goal=True) as one:
        if case.notes.fields("reset with include_private_goal", one.started, wanted):
            goal = one.terminate()["goal"]
            told = one.started["private_task_instruction"]
            case.expect(told == goal["instruction_text"], "private_task_instruction is not the goal's instruction_text")
            case.expect(one.started["goal_options"] == goal["goal_options"], "goal_options differ from the goal's")


def persona(case: Case) -> None:
    """Which instruction and persona are shown (1.3.2, 1.3.3, 7.1)."""
    with case.episode(if_persona=False) as plain:
        full = plain.terminate()["goal"]["instruction_text"]
        case.expect(plain.started["task_instruction"] == full, "if_persona false does not show the full instruction")
        alone = not plain.started.get("user_persona")
        case.expect(
            not alone or plain.started["task_mode"] == "standard", "task_mode is not standard without a persona"
        )
    if alone:
        with case.episode(if_persona=True) as one:
            same = one.started["task_instruction"] == full and not one.started.get("user_persona")
            case.expect(same, "if_persona changes a task that has no persona")
    if case.persona is None:
        return
    with case.episode(case.persona, if_persona=True) as on:
        goal, shown = on.terminate()["goal"], on.started
        case.expect(shown["task_mode"] == "persona", "task_mode is not persona with if_persona")
        case.expect(shown["task_instruction"] == goal["instruction_simple"], "if_persona does not show the simple text")
        case.expect(shown.get("user_persona"), "user_persona is missing with if_persona")
    with case.episode(case.persona, if_persona=False) as off:
        full = off.started["task_instruction"] == goal["instruction_text"]
        case.expect(full, "if_persona false does not show the full instruction")
        same = off.started.get("user_persona") == shown.get("user_persona")
        case.expect(same, "user_persona is not sent when if_persona is false")
    with case.episode(case.persona, if_persona=1) as truthy:
        same = truthy.started["task_instruction"] == shown["task_instruction"]
        case.expect(same, "if_persona is not taken by its truth value")


def purchase(case: Case) -> None:
    """A purchase with reward 1, and the episode after it (1.3.4, 1.4, 1.9)."""
    with case.episode() as one:
        one.play(case.gold[:-1])
        before, result = one.state, one.do(case.gold[-1])
        case.expect(
            result["done"] and result.get("termination_reason") == "purchase", "buying does not end the episode"
        )
        bought, detail, goal = result["purchase"], result["reward_detail"], result["goal"]
        case.expect(result["reward"] == 1 and detail["r_success"] == 1, "the gold purchase does not earn 1")
        case.expect(detail["target_asin_match"], "target_asin_match is false for the gold product")
        case.expect(bought["asin"] == goal["asin"], "the purchase is not the product that was open")
        case.expect(bought["options"] == before["selected_options"], "the purchase has other options than were chosen")
        priced = "selected_price" not in before or bought["price"] == before["selected_price"]
        case.expect(priced, "the purchase has another price than selected_price")
        case.refused("interact after the end", one.ask("interact", response=case.gold[0]), 500)
        case.refused("terminate after the end", one.ask("terminate"), 500)
        free = case.free()
        one.release()
        case.expect(case.free() == free + 1, "the end of an episode gives its slot back before release_one")


def other_purchase(case: Case) -> None:
    """A purchase of another product: the reward follows from its parts (1.9)."""
    with case.episode() as one:
        one.do(case.gold[0])
        others = [item["asin"] for item in one.state["products"] if f"click[{item['asin']}]" not in case.gold]
        if not others:
            return
        one.do(f"click[{others[-1]}]")
        for axis, values in one.state["available_options"].items():
            one.do(f"click[{axis}={values[0]}]")
        result = one.do("click[buy now]")
        case.expect(result["purchase"]["asin"] == others[-1], "the purchase is not the product that was open")
        case.expect(not result["reward_detail"]["target_asin_match"], "target_asin_match is true for another product")


def terminate(case: Case) -> None:
    """Ends by the runner (1.3.5)."""
    for fields, reason in (
        ({}, "action_limit"),
        ({"termination_reason": "action_limit"}, "action_limit"),
        ({"termination_reason": "generation_length"}, "generation_length"),
    ):
        with case.episode() as one:
            one.play(case.gold[:2])
            result = one.terminate(**fields)
            case.expect(result["done"] is True, "terminate does not end the episode")
            case.expect(result.get("termination_reason") == reason, f"terminate does not end with {reason} by {fields}")
            case.expect("action_feedback" not in result, "terminate answers with action_feedback")
            case.expect(content(result["observation_state"]) == content(one.state), "terminate changes the page")
            case.refused("interact after terminate", one.ask("interact", response=IDLE), 500)
            case.refused("terminate after terminate", one.ask("terminate"), 500)


def failed_requests(case: Case) -> None:
    """A request that fails inside an episode leaves it as it was (1.3.7)."""
    with case.episode() as one:
        one.play(case.gold[:2])
        for reason in ("tired", "purchase"):
            answer = one.ask("terminate", termination_reason=reason)
            case.refused(f"terminate with the reason {reason}", answer, 500)
        case.refused("interact without response", one.ask("interact"), 500)
        one.do(IDLE, "unavailable_action")
        one.play(case.gold[2:])


def leases(case: Case) -> None:
    """Who may act on a slot (1.3.7, 1.4)."""
    with case.episode() as one:
        for action in ("interact", "terminate", "release_one"):
            more = {"response": IDLE} if action == "interact" else {}
            stranger = one.ask(action, **more, lease_id=uuid.uuid4().hex)
            case.refused(f"{action} with a lease nobody holds", stranger, 409)
            bare = {"action": action, **more}
            case.refused(f"{action} without a lease", case.post(**bare, env_idx=one.slot), 400)
            case.refused(f"{action} without env_idx", case.post(**bare, lease_id=one.lease), 400)
            for slot in (True, str(one.slot), None):
                case.refused(f"{action} with env_idx {slot!r}", one.ask(action, **more, env_idx=slot), 400)
        one.do(case.gold[0])
        one.release()
        stale(case, one, "after release_one")


def stale(case: Case, episode: Episode, when: str) -> None:
    """Expect that nothing can be done with the lease any more."""
    episode.held = False
    case.refused(f"interact {when}", episode.ask("interact", response=IDLE), 409)
    case.refused(f"terminate {when}", episode.ask("terminate"), 409)
    case.refused(f"release_one {when}", episode.ask("release_one"), 409)


def take_all(case: Case) -> list[Episode]:
    """Lease every slot; empty where that cannot be done."""
    answers = [case.post(action="reset", idx=case.task) for _ in range(case.free())]
    return [Episode(case, case.task, answer.result) for answer in answers]


def waiting(case: Case) -> None:
    """A reset waits while no slot is free (1.4) and gets the next one under a new lease."""
    held = take_all(case)
    case.expect(len({one.slot for one in held}) == len(held), "one slot is leased twice at once")
    first, *others = held
    for other in others[:1]:
        taken = other.ask("interact", response=IDLE, env_idx=first.slot)
        case.refused("interact with the lease of another slot", taken, 409)
    connection = case.connect()
    try:
        body = json.dumps({"action": "reset", "idx": case.task}).encode()
        connection.request("POST", "/api/shop_agent", body, {"Content-Type": "application/json"})
        for _ in range(5):
            case.expect(case.free() == 0, "free_slots is not 0 while all slots are leased")
        early = bool(select.select([connection.sock], [], [], 0)[0])
        case.expect(not early, "a reset is answered while no slot is free")
        first.release()
        answer = read(connection)
    finally:
        connection.close()
    case.expect(answer.status == 200, f"a reset that had to wait is answered with {answer.status}, not 200")
    late = Episode(case, case.task, answer.result)
    case.expect(late.slot == first.slot, "a reset that waited gets a slot that is not the free one")
    stale(case, first, "with the lease of a slot's last holder")
    late.do(case.gold[0])
    for one in [late, *others]:
        one.release()


def release_all(case: Case) -> None:
    """Every slot is freed and every lease void (1.3.6)."""
    held = take_all(case)
    answer = case.post(action="release_all")
    case.expect(answer.status == 200 and "error" not in answer.result, "release_all is refused")
    case.expect(case.free() == len(held), "release_all does not free every slot")
    for one in held:
        stale(case, one, "after release_all")


def bad_requests(case: Case) -> None:
    """Requests that reach no episode (1.3.7)."""
    case.refused("a body that is not JSON", case.send(b"{not json"), 200)
    for raw in (b"[1, 2]", b'"reset"', b"7"):
        answer = case.send(raw)
        is_page = answer.status == 500 and answer.kind == "text/html"
        case.expect(is_page, "a JSON body that is not an object is not answered with 500 and HTML")
    case.refused("an unknown action", case.post(action="finish"), 400)
    case.refused("a request without action", case.post(idx=case.task), 400)


def bad_resets(case: Case) -> None:
    """Resets that fail give their slot back (1.3.7)."""
    free = case.free()
    for what, status, body in (
        ("reset with env_idx", 400, {"idx": case.task, "env_idx": 0}),
        ("reset of an unknown task", 500, {"idx": NO_TASK}),
        ("reset with a boolean idx", 500, {"idx": True}),
        ("reset with a text as idx", 500, {"idx": "first"}),
        ("reset without idx", 500, {}),
        ("reset in an unknown mode", 500, {"idx": case.task, "interaction_mode": "chat"}),
    ):
        case.refused(what, case.post(action="reset", **body), status)
        case.expect(case.free() == free, f"{what} keeps a slot")


TOPICS: Sequence[Topic] = (
    *(health, reset, private_goal, persona),
    *v8_actions.TOPICS,
    *(purchase, other_purchase, terminate, failed_requests),
    *(leases, waiting, release_all, bad_requests, bad_resets),
)


def check(
    base_url: str,
    *,
    task_idx: int,
    persona_idx: int | None,
    gold_actions: Sequence[str],
    topics: Sequence[Topic] = TOPICS,
    timeout: float = 30.0,
) -> list[str]:
    """Find how a server deviates from the contract.

    Args:
        base_url: Address without path.
        task_idx: A task whose `gold_actions` (a search, a product, its options, `click[buy now]`) earn reward 1.
        persona_idx: A task with a persona; None where the server has none.
        gold_actions: See `task_idx`.
        topics: What to look at.
        timeout: Seconds to wait for one answer.

    Returns:
        One sentence for each deviation, beginning with its topic; empty when the server conforms.
    """
    case = Case(base_url, task_idx, persona_idx, gold_actions, timeout)
    for topic in topics:
        case.notes.topic = topic.__name__
        try:
            case.post(action="release_all")
            topic(case)
            found = case.health()
            case.expect(found["free_slots"] == found["environment_slots"], "slots are not free again after release")
        except (LookupError, TypeError, ValueError, AttributeError, OSError, http.client.HTTPException) as error:
            case.expect(False, f"cannot be looked at further: {type(error).__name__} {error}")
    return case.notes.deviations
