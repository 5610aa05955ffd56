import json
import random
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shopskill_lib.errors import InputError, OutputError, ParameterError
from shopskill_lib.records import Product, Task
from shopskill_lib.shops import pages
from shopskill_lib.shops.catalog import Catalogue, load_catalogue
from shopskill_lib.shops.embedded import EmbeddedShop, parse_action
from shopskill_lib.shops.protocol import Session, Shop, StepResult
from shopskill_lib.shops.search import MAX_QUERY_TOKENS, open_index


@pytest.fixture
def shop(shops: dict[str, EmbeddedShop]) -> EmbeddedShop:
    return shops["en"]


@pytest.fixture
def task(shop: EmbeddedShop) -> Task:
    return shop.catalogue.tasks["1"]


def gold_page(session: Session, task: Task) -> StepResult:
    page = session.step(f"search[{task.category.split('›')[-1]} {' '.join(task.attributes)}]")
    while task.gold_asin not in page.state["actions"]:
        page = session.step("click[next >]")
    return session.step(f"click[{task.gold_asin}]")


def choose_all(session: Session, task: Task) -> StepResult:
    required = {need.axis: need.value for need in task.options}
    page = session.current
    for axis, values in page.state["available_options"].items():
        page = session.step(f"click[{axis}={required.get(axis, values[0])}]")
    return page


@pytest.mark.parametrize("language", ["en", "zh"])
def test_a_whole_purchase(shops: dict[str, EmbeddedShop], language: str) -> None:
    shop: Shop = shops[language]
    for task in list(shops[language].catalogue.tasks.values())[:20]:
        session = shop.reset(task)
        assert session.current.state["page_type"] == "search_home" and session.current.feedback is None
        page = gold_page(session, task)
        assert page.state["page_type"] == "product_detail" and not page.state["options_complete"]
        assert pages.BUY not in page.state["actions"]
        page = choose_all(session, task)
        assert page.state["options_complete"] and page.state["selected_price"] <= (task.price_upper or 0)
        assert page.reward is None and page.reward_detail is None and not page.done
        page = session.step("click[buy now]")
        assert page.done and page.reward == 1 and page.state["page_type"] == "terminal"
        assert page.reward_detail is not None and page.reward_detail.r_success == 1
        assert page.purchase is not None and page.purchase.asin == task.gold_asin
        assert page.state["actions"] == [] and not page.state["search_available"]
        session.close()
    shop.close()


def test_pages_turn_and_lead_back(shop: EmbeddedShop, task: Task) -> None:
    session = shop.reset(task)
    first = session.step("search[dress cotton linen]").state
    assert first["search_text"] == "dress cotton linen" and first["page"] == 1
    assert first["total_results"] == 150 and first["total_pages"] == 8 and len(first["products"]) == 20
    assert (first["rank_start"], first["rank_end"]) == (1, 20)
    assert first["actions"][:2] == ["back to search", "next >"]
    second = session.step("click[next >]").state
    assert second["actions"][:3] == ["back to search", "< prev", "next >"]
    assert second["products"][0].get("rank") == 21
    product = session.step(f"click[{second['actions'][5]}]").state
    axis, values = next(iter(product["available_options"].items()))
    session.step(f"click[{axis}={values[0]}]")
    back = session.step("click[< prev]").state
    assert {**back, "last_action": None} == {**second, "last_action": None}
    again = session.step(f"click[{second['actions'][5]}]").state
    assert again["selected_options"] == {}
    assert session.step("click[back to search]").state["page_type"] == "search_home"
    last = session.step("search[dress cotton linen]").state
    for _ in range(7):
        last = session.step("click[next >]").state
    assert last["rank_end"] == 150 and "next >" not in last["actions"]


def test_choosing_options(shop: EmbeddedShop) -> None:
    golds = [(task, shop.inspect(task.gold_asin)) for task in shop.catalogue.tasks.values()]
    task, product = next(pair for pair in golds if len(pair[1].options) == len(pair[1].pricing) == 2)
    session = shop.reset(task)
    assert "selected_price" not in gold_page(session, task).state
    axis = next(axis for axis, values in product.options.items() if None not in values.values())
    other = next(name for name in product.options if name != axis)
    for value, price in product.options[axis].items():
        page = session.step(f"click[{axis}={value}]")
        assert page.state["selected_options"] == {axis: value} and page.state["selected_price"] == price
        assert f"{axis}={value}" not in page.state["actions"] and page.state["missing_option_axes"] == [other]
    page = session.step(f"click[{axis.upper()} = {value}]")
    assert page.feedback is not None and page.feedback["reason"] == "already_selected"
    page = session.step("click[Buy Now]")
    assert page.feedback is not None and page.feedback["reason"] == "incomplete_options"
    assert page.feedback["missing_option_axes"] == [other] and not page.done


@pytest.mark.parametrize(
    ("action", "reason"),
    [
        ("look around", "invalid_format"),
        ("", "invalid_format"),
        ("buy[now]", "invalid_format"),
        ("search[a]\nclick[b]", "multiple_actions_not_allowed"),
        ("search[a] click[b]", "multiple_actions_not_allowed"),
        ("Action: search[a]\nAction: search[b]", "multiple_actions_not_allowed"),
        ("search[a\nb]", "invalid_format"),
        ("search[a] please", "invalid_format"),
        ("search", "empty_argument"),
        ("CLICK", "empty_argument"),
        ("search[]", "empty_argument"),
        ("search[ \t ]", "empty_argument"),
        ("search[\x00\x07]", "empty_argument"),
        ("click[nothing here]", "unavailable_action"),
        ("click[buy now]", "unavailable_action"),
        ("click[next >]", "unavailable_action"),
        ("click[back to search]", "unavailable_action"),
        ("click[😀]", "unavailable_action"),
        ("click[" + "x" * 10_000 + "]", "unavailable_action"),
    ],
)
def test_what_cannot_be_done_is_answered_with_a_reason(
    shop: EmbeddedShop, task: Task, action: str, reason: str
) -> None:
    session = shop.reset(task)
    before = session.current.state
    page = session.step(action)
    assert page.feedback is not None and (page.feedback["reason"], page.feedback["valid"]) == (reason, False)
    assert page.feedback["action"] == action and page.feedback["message"] in page.observation_text
    assert {**page.state, "last_action": None} == {**before, "last_action": None}
    assert not page.done and page.reward is None


def test_search_needs_the_home_page(shop: EmbeddedShop, task: Task) -> None:
    session = shop.reset(task)
    session.step("search[dress]")
    page = session.step("search[skirt]")
    assert page.feedback is not None and page.feedback["reason"] == "search_unavailable"
    assert page.state["search_text"] == "dress"


@pytest.mark.parametrize(
    "query",
    [
        "<r>",
        "<c> dress",
        "<a> cotton",
        'title:dress AND (cotton OR "linen") NOT silk',
        "dress~2 dr* ^3 [a TO z]",
        "+dress -cotton",
        "dress\x00\x1f\ud800cotton",
        "dress 😀",
        "../..; DROP TABLE",
        "search",
        "[dress]",
    ],
)
def test_queries_are_words_and_nothing_else(shop: EmbeddedShop, task: Task, query: str) -> None:
    one, two = shop.reset(task).step(f"search[{query}]"), shop.reset(task).step(f"Search[{query}]")
    assert one.feedback is not None and one.feedback["valid"]
    assert one.observation_text == two.observation_text
    one.observation_text.encode()
    json.dumps(one.state, ensure_ascii=False).encode()


def test_queries_without_words_find_nothing(shop: EmbeddedShop, task: Task) -> None:
    page = shop.reset(task).step("search[😀 !!! <>]")
    assert page.feedback is not None and page.feedback["valid"]
    assert page.state["total_results"] == 0 and page.state["rank_start"] == 0 and page.state["products"] == []
    assert page.state["actions"] == ["back to search"] and "No product matches." in page.observation_text


def test_a_very_long_query_is_cut_on_the_page_and_in_its_words(shop: EmbeddedShop, task: Task) -> None:
    tail = " ".join(f"word{place}" for place in range(2000))
    long = f"dress {tail}"
    assert len(long) > 10_000
    page = shop.reset(task).step(f"search[{long}]")
    assert len(page.state["search_text"]) == pages.SHOWN_QUERY + 1 and len(page.observation_text) < 12_000
    filler = " ".join(f"word{place}" for place in range(MAX_QUERY_TOKENS))
    assert shop.search(f"{filler} dress") == []


def test_letter_case_and_width_do_not_matter(shop: EmbeddedShop) -> None:
    one, two = shop.search("Cotton DRESS"), shop.search("ｃｏｔｔｏｎ dress")
    assert [product.asin for product in one] == [product.asin for product in two]


def test_the_action_limit_ends_with_nothing(shop: EmbeddedShop, tmp_path: Path, task: Task) -> None:
    limited = EmbeddedShop(shop.catalogue, tmp_path, action_limit=3)
    session = limited.reset(task)
    assert not session.step("nonsense").done and not session.step("search[dress]").done
    page = session.step("click[next >]")
    assert page.done and page.reward == 0 and page.purchase is None
    assert page.reward_detail is not None and page.reward_detail.termination_reason == "action_limit"
    assert limited.fingerprint["action_limit"] == 3


def test_a_purchase_with_the_last_action_counts(shop: EmbeddedShop, tmp_path: Path, task: Task) -> None:
    steps = len(shop.inspect(task.gold_asin).options) + 3
    session = EmbeddedShop(shop.catalogue, tmp_path, action_limit=steps).reset(task)
    gold_page(session, task)
    choose_all(session, task)
    assert session.step("click[buy now]").reward == 1


@pytest.mark.parametrize("reason", ["action_limit", "generation_length", "context_length"])
def test_an_episode_can_be_ended_once(shop: EmbeddedShop, task: Task, reason: str) -> None:
    session = shop.reset(task)
    session.step("search[dress]")
    page = session.end(reason)  # type: ignore[arg-type]
    assert page.done and page.reward == 0 and page.state["page_type"] == "search_results"
    assert page.reward_detail is not None and page.reward_detail.termination_reason == reason
    with pytest.raises(InputError, match="the episode has ended"):
        session.end("action_limit")
    with pytest.raises(InputError, match="the episode has ended"):
        session.step("search[a]")


@pytest.mark.parametrize("reason", ["purchase", "tired"])
def test_other_endings_are_refused(shop: EmbeddedShop, task: Task, reason: str) -> None:
    with pytest.raises(ParameterError, match="action_limit, generation_length, context_length"):
        shop.reset(task).end(reason)  # type: ignore[arg-type]


def test_set_ups_that_cannot_work_are_refused(shop: EmbeddedShop, task: Task, tmp_path: Path) -> None:
    with pytest.raises(ParameterError, match="action_limit is 0"):
        EmbeddedShop(shop.catalogue, tmp_path, action_limit=0)
    with pytest.raises(InputError, match="there is no product 5"):
        shop.inspect("5")
    with pytest.raises(InputError, match="there is no product 5"):
        shop.reset(task.model_copy(update={"gold_asin": "5"}))
    blocked = tmp_path / "file"
    blocked.write_text("")
    with pytest.raises(OutputError, match="cannot be written"):
        EmbeddedShop(shop.catalogue, blocked)


def test_no_page_tells_what_only_the_reward_knows(shop: EmbeddedShop, task: Task) -> None:
    session = shop.reset(task)
    gold_page(session, task)
    choose_all(session, task)
    page = session.step("click[buy now]")
    assert not {"goal", "reward", "reward_detail", "target_asin", "answer"} & set(page.state)
    assert "r_strict" not in page.observation_text and task.gold_asin not in page.observation_text


def walk(shop: EmbeddedShop, task: Task) -> bytes:
    """All pages of an episode that clicks about at random, as bytes."""
    rng, session, seen = random.Random(task.task_id), shop.reset(task), []
    while not session.current.done:
        page = session.current
        seen.append((page.observation_text, page.state, page.reward))
        if page.state["search_available"]:
            word = rng.choice(task.visible_instruction.split())
            session.step(f"search[{word} {rng.choice(task.attributes)}]")
        else:
            session.step(f"click[{rng.choice(page.state['actions'])}]")
    detail = session.current.reward_detail
    return json.dumps([seen, detail and detail.model_dump()], ensure_ascii=False).encode()


@pytest.mark.parametrize("language", ["en", "zh"])
def test_threads_in_any_order_give_the_same_bytes(shops: dict[str, EmbeddedShop], language: str) -> None:
    shop, tasks = shops[language], list(shops[language].catalogue.tasks.values())[:30]
    alone = {task.task_id: walk(shop, task) for task in tasks}
    with ThreadPoolExecutor(8) as threads:
        shuffled = random.Random(0).sample(tasks, len(tasks))
        walks = threads.map(lambda task: walk(shop, task), shuffled)
        together = {task.task_id: found for task, found in zip(shuffled, walks, strict=True)}
    assert together == alone


def test_equal_scores_rank_by_id(tmp_path: Path) -> None:
    def twin(asin: str) -> Product:
        return Product(
            asin=asin,
            title="same cup",
            brand="b",
            shop="b",
            category="c›cup",
            attributes=("a",),
            options={},
            pricing=(1.0,),
            description="",
        )

    ids = sorted(str(place) for place in range(1000, 1400))
    catalogue = Catalogue("en", {asin: twin(asin) for asin in ids}, {})
    assert [product.asin for product in EmbeddedShop(catalogue, tmp_path).search("cup")] == ids[:150]


def test_the_index_is_used_again_and_mended(shop: EmbeddedShop, tmp_path: Path) -> None:
    expected = shop.search("cotton dress")
    first = EmbeddedShop(shop.catalogue, tmp_path)
    [folder] = tmp_path.glob("search-*")
    stamp = folder.stat().st_mtime_ns
    assert first.search("cotton dress") == expected
    assert EmbeddedShop(shop.catalogue, tmp_path).search("cotton dress") == expected
    assert folder.stat().st_mtime_ns == stamp
    for damage in ("cut", "lost", "manifest", "stray"):
        file = next(folder.glob("*.idx"))
        if damage == "cut":
            file.write_bytes(file.read_bytes()[:100])
        elif damage == "lost":
            file.unlink()
        else:
            (folder / ("manifest.json" if damage == "manifest" else "stray")).write_text("{")
        assert EmbeddedShop(shop.catalogue, tmp_path).search("cotton dress") == expected
        assert [path.name for path in tmp_path.glob("search-*")] == [folder.name]


def test_processes_that_open_one_catalogue_at_once_build_one_index(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from shopskill_lib.shops.generator import generate_catalogue; "
        "from shopskill_lib.shops.embedded import EmbeddedShop; "
        "shop = EmbeddedShop(generate_catalogue(3, 'en', products=2000), Path(sys.argv[1])); "
        "print(len(shop.search('red jacket')))"
    )
    started = [
        subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        for _ in range(4)
    ]
    told = [process.communicate(timeout=120) for process in started]
    assert [process.returncode for process in started] == [0] * 4, told
    assert len({out for out, _ in told}) == 1
    assert len(list(tmp_path.glob("search-*"))) == 1


def test_catalogues_have_indexes_of_their_own(shops: dict[str, EmbeddedShop], tmp_path: Path) -> None:
    for language in ("en", "zh"):
        open_index(shops[language].catalogue, tmp_path)
    assert len(list(tmp_path.glob("search-*"))) == 2


def test_the_fingerprint_names_what_results_depend_on(shops: dict[str, EmbeddedShop]) -> None:
    english, chinese = shops["en"].fingerprint, shops["zh"].fingerprint
    assert {name for name in english if english[name] != chinese[name]} == {"catalogue", "tasks", "language"}
    assert english["reward.version"] == "shopskill-reward-v1" and english["search.top_k"] == 150


@settings(max_examples=300)
@given(st.text(max_size=60))
def test_any_line_is_an_action_or_has_a_reason(text: str) -> None:
    verb, argument = parse_action(text)
    assert (verb in ("search", "click")) == bool(argument)
    if "\n" not in text and text.strip(" \t[]") and "]" not in text:
        assert parse_action(f" Click [{text}] ")[0] in ("click", "empty_argument")


def test_an_argument_may_hold_brackets() -> None:
    assert parse_action("click[颜色=黑色[送袋]]") == ("click", "颜色=黑色[送袋]")


def test_the_real_tasks_can_be_solved(real_files: Path, tmp_path: Path) -> None:
    catalogue = load_catalogue(real_files / "items_eval_train.json", tasks=real_files / "tasks.jsonl")
    shop = EmbeddedShop(catalogue, tmp_path)
    for task in catalogue.tasks.values():
        session = shop.reset(task)
        page = session.step(f"search[{task.visible_instruction}]")
        while task.gold_asin not in page.state["actions"]:
            page = session.step("click[Next >]")
        session.step(f"click[{task.gold_asin}]")
        choose_all(session, task)
        assert session.step("click[Buy Now]").reward == 1, task


def test_a_click_of_a_page_that_has_changed_is_answered_and_changes_nothing(shops: dict[str, EmbeddedShop]) -> None:
    shop = shops["en"]
    task = shop.catalogue.tasks["1"]
    session = shop.reset(task)
    results = session.step(f"search[{task.instruction}]").state["actions"]
    first, second = [label for label in results if label.isdecimal()][:2]
    page = session.step(f"click[{first}]")
    late = session.step(f"click[{second}]")
    assert late.feedback is not None and late.feedback["reason"] == "unavailable_action"
    assert not late.done and late.state["product"] == page.state["product"]
