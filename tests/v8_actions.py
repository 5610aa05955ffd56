"""What actions do in a v8 shop, from page to page: topics of `v8_contract`.

Written from the reference text (shopsimrl.md 1.1, 1.3.4, 1.6, 1.8) alone.
"""

from collections.abc import Sequence

from v8_driver import IDLE, Case, Topic, content

LIMITS = {"single_turn": 30, "multi_turn": 40}


def action_limit(case: Case) -> None:
    """The episode ends with the last action allowed, unless that action buys (1.1, 1.8)."""
    for mode, limit in LIMITS.items():
        with case.episode(interaction_mode=mode) as one:
            for _ in range(limit - 1):
                done = one.do(IDLE, "unavailable_action")["done"]
                case.expect(not done, f"{mode} ends before action {limit}")
            result = one.do(IDLE, "unavailable_action")
            ended = result["done"] and result.get("termination_reason") == "action_limit"
            case.expect(ended, f"{mode} does not end with action_limit at action {limit}")
    with case.episode() as one:
        for _ in range(LIMITS["single_turn"] - len(case.gold)):
            one.do(IDLE, "unavailable_action")
        result = one.play(case.gold)
        case.expect(result.get("termination_reason") == "purchase", "a purchase by the last action allowed is not one")


def grammar(case: Case) -> None:
    """What is an action (1.8)."""
    with case.episode() as one:
        for text in ("buy", "buy now", "think[a]", "search[a] b", "searching[a]"):
            one.do(text, "invalid_format")
        for text in ("search", "click", "search[]", "click[]", "search[  ]"):
            one.do(text, "empty_argument")
        one.do("search[a] click[b]", "multiple_actions_not_allowed")
        one.do("Action: search[a]\nAction: search[b]", "multiple_actions_not_allowed")
        one.do("search[a\nb]", "invalid_format")
        result = one.do(f"SEARCH[{case.query}   [x] y]")
        words = result["observation_state"].get("search_text")
        expected = " ".join(f"{case.query} [x] y".split())
        case.expect(words == expected, "search_text is not the words between the outermost brackets")


def labelled(case: Case) -> None:
    """An action on a labelled line of a longer response (1.3.4)."""
    with case.episode() as one:
        for response in (
            f"我先搜索。\nAction: {case.gold[0]}",
            f"First a search.\naction: {case.gold[0]}\nThen I look.",
            f"想一想\\nACTION: {case.gold[0]}",
        ):
            one.do(response)
            one.do("click[back to search]")
        one.do(f"I think\n{case.gold[0]}", "invalid_format")


def told(case: Case) -> None:
    """`action_feedback.action` is the action as received (1.8)."""
    with case.episode() as one:
        for text in ("Buy", "click[没有的]", case.gold[0]):
            found = one.ask("interact", response=text).result["action_feedback"]["action"]
            case.expect(found == text, "action_feedback.action is not the action as received")


def away_from_home(case: Case) -> None:
    """Which actions a home and a results page refuse, and the way back (1.8)."""
    with case.episode() as one:
        for text in ("click[buy now]", "click[back to search]", case.gold[1]):
            one.do(text, "unavailable_action")
        one.do(case.gold[0])
        case.expect(one.state["page_type"] == "search_results", "a search does not lead to the results")
        case.expect(one.state.get("page") == 1, "a search does not lead to page 1")
        one.do(case.gold[0], "search_unavailable")
        one.do("search[]", "empty_argument")
        for text in ("click[buy now]", "click[Back to Search]", "click[0]"):
            one.do(text, "unavailable_action")
        one.do("CLICK" + case.gold[1].removeprefix("click"))
        case.expect(one.state["page_type"] == "product_detail", "a product id does not lead to the product")
        one.do(case.gold[0], "search_unavailable")
        one.do("click[back to search]")
        case.expect(one.state["page_type"] == "search_home", "back to search does not lead home from a product")


def no_results(case: Case) -> None:
    """A search that finds nothing (1.6)."""
    with case.episode() as one:
        one.do("search[zqxjvw]")
        case.expect(one.state.get("products") == [], "a search for a word nobody uses finds something")
        one.do("click[back to search]")
        case.expect(one.state["page_type"] == "search_home", "back to search does not lead home from results")


def options(case: Case) -> None:
    """Choosing options, and what is lost on the way back (1.8)."""
    with case.episode() as one:
        results = content(one.do(case.gold[0])["observation_state"])
        fresh = content(one.do(case.gold[1])["observation_state"])
        one.do("click[Buy Now]", "unavailable_action")
        for axis, values in fresh["available_options"].items():
            found = one.do("click[buy now]", "incomplete_options")["action_feedback"]
            same = set(found["missing_option_axes"]) == set(one.state["missing_option_axes"])
            case.expect(same, "missing_option_axes of the feedback are not the page's")
            for value in values[:2]:
                one.do(f"click[{axis}={value}]")
                case.expect(one.state["selected_options"].get(axis) == value, "a click on an option does not choose it")
                one.do(f"click[{axis}={value}]", "already_selected")
            one.do(f"click[{axis}=no such value]", "unavailable_action")
        one.do("click[< prev]")
        case.expect(content(one.state) == results, "< prev does not lead back to the same results")
        one.do(case.gold[1])
        case.expect(content(one.state) == fresh, "a product opened again keeps options")


def paging(case: Case) -> None:
    """`next >` and `< prev` (1.8), where the gold search has a second page."""
    with case.episode() as one:
        first = content(one.do(case.gold[0])["observation_state"])
        if first["total_pages"] < 2:
            return
        second = content(one.do("click[next >]")["observation_state"])
        case.expect(second["page"] == 2, "next > does not lead to page 2")
        one.do(f"click[{second['products'][0]['asin']}]")
        one.do("click[< prev]")
        case.expect(content(one.state) == second, "< prev on a product does not lead back to the same results page")
        one.do("click[< prev]")
        case.expect(content(one.state) == first, "< prev on page 2 does not lead back to page 1")


TOPICS: Sequence[Topic] = (*(grammar, labelled, told, action_limit), *(away_from_home, no_results, options, paging))
