"""What the firewall finds and blames on whole catalogues: generated ones in both languages, and the small real one."""

import random
import time
from pathlib import Path

import pytest

import shopskill_lib
from shopskill_lib.firewall import Instance, Kind, Screen, instance_of
from shopskill_lib.records import Language, Product, Task
from shopskill_lib.shops.catalog import load_catalogue
from shopskill_lib.shops.generator import generate_catalogue
from shopskill_lib.skills import read_skill

DRAFTS = Path(shopskill_lib.__file__).parent / "drafts"
ADVICE = Path(__file__).parent / "advice"
LANGUAGES: tuple[Language, ...] = ("en", "zh")


def supporting(language: Language, count: int) -> dict[str, Instance]:
    """Facts of generated train tasks, each with gold and two other products."""
    catalogue, rng = generate_catalogue(0, language, products=2000), random.Random(0)
    products: list[Product] = list(catalogue.products.values())
    tasks: list[Task] = [task for task in catalogue.tasks.values() if task.split == "train"][:count]
    return {
        task.task_id: instance_of(task, [catalogue.products[task.gold_asin], *rng.sample(products, 2)])
        for task in tasks
    }


@pytest.fixture(scope="module")
def known() -> dict[Language, dict[str, Instance]]:
    return {language: supporting(language, 400) for language in LANGUAGES}


@pytest.mark.parametrize("language", LANGUAGES)
def test_at_most_one_pair_of_draft_chunk_and_instance_in_a_hundred_is_blamed(
    language: Language, known: dict[Language, dict[str, Instance]]
) -> None:
    screen, tasks = Screen(known[language]), list(known[language])[:300]
    chunks = read_skill(DRAFTS / f"skill_{language}.md").chunks
    blamed = sum(
        bool(screen.scan({"title": chunk.title, "text": chunk.text}, [task_id]))
        for chunk in chunks
        for task_id in tasks
    )
    assert blamed <= 0.01 * len(chunks) * len(tasks)


@pytest.mark.parametrize("language", LANGUAGES)
def test_at_most_one_pair_of_ordinary_advice_and_instance_in_two_hundred_is_blamed(
    language: Language, known: dict[Language, dict[str, Instance]]
) -> None:
    screen, tasks = Screen(known[language]), list(known[language])[:300]
    lines = (ADVICE / f"{language}.txt").read_text(encoding="utf-8").splitlines()
    assert len(lines) == 40
    assert [line for line in lines if screen.scan({"text": line}, None)] == []
    blamed = sum(bool(screen.scan({"text": line}, [task_id])) for line in lines for task_id in tasks)
    assert blamed <= 0.005 * len(lines) * len(tasks)


@pytest.mark.parametrize("language", LANGUAGES)
def test_every_fact_of_a_generated_instance_is_found(
    language: Language, known: dict[Language, dict[str, Instance]]
) -> None:
    screen = Screen(known[language])
    for task_id, instance in list(known[language].items())[:100]:
        planted: dict[Kind, list[str]] = {
            "identifier": [f"task {instance.identifiers[0]}", *instance.identifiers[1:]],
            "title": list(instance.titles),
            "brand": list(instance.brands),
            "option": [f"{axis} {value}" for axis, value in instance.options],
            "number": [f"{price:g}" for price in instance.numbers if len(f"{price:g}".strip("0")) >= 2],
        }
        for kind, facts in planted.items():
            for fact in facts:
                found = screen.scan({"text": f"优先看{fact}，then decide"}, [task_id])
                assert kind in {finding.kind for finding in found}, (kind, fact)


def test_a_scan_takes_milliseconds(known: dict[Language, dict[str, Instance]]) -> None:
    screen = Screen(known["zh"])
    text = " ".join(chunk.text for chunk in read_skill(DRAFTS / "skill_zh.md").chunks) * 5
    skill = {str(number): text[number * 400 : number * 400 + 400] for number in range(16)}
    started = time.process_time()
    screen.scan(skill, None)
    assert time.process_time() - started < 0.3


def test_half_of_every_real_title_is_found(real_files: Path) -> None:
    catalogue = load_catalogue(real_files / "items_eval_train.json", tasks=real_files / "tasks.jsonl")
    golds = [catalogue.products[task.gold_asin].title for task in catalogue.tasks.values()]
    screen = Screen({str(number): Instance(titles=(title,)) for number, title in enumerate(golds)})
    halves = [
        half for title in golds for half in (title[: len(title) // 2], title[len(title) // 2 :]) if len(half) >= 12
    ]
    missed = [half for half in halves if not screen.scan({"a": f"优先看{half}这类商品"}, None)]
    assert len(missed) <= 0.03 * len(halves), missed


def test_chinese_advice_shares_nothing_with_real_products(real_files: Path) -> None:
    catalogue = load_catalogue(real_files / "items_eval_train.json", tasks=real_files / "tasks.jsonl")
    own = {name: instance_of(task, [catalogue.products[task.gold_asin]]) for name, task in catalogue.tasks.items()}
    others = {f"p{item.asin}": Instance((item.asin,), (item.title,)) for item in catalogue.products.values()}
    screen = Screen({**own, **others})
    texts = (ADVICE / "zh.txt").read_text(encoding="utf-8").splitlines()
    texts += [chunk.text for chunk in read_skill(DRAFTS / "skill_zh.md").chunks]
    assert [text for text in texts if screen.scan({"text": text}, own)] == []
