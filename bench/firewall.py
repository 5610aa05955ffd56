"""What the firewall finds and what it takes: planted leaks, clean texts, time.

    python bench/firewall.py [--instances 300] [--plants 40] [--seed 0]

Recall: facts of generated train instances, each written in every form and put into a sentence of its language. False
findings: chunks of the shipped drafts against the facts of instances they do not rest on. All simulated; seeds fixed.
"""

import argparse
import base64
import codecs
import random
import statistics
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote

from shopskill_lib.firewall import Instance, Kind, Screen, instance_of
from shopskill_lib.records import Language
from shopskill_lib.shops.catalog import Catalogue
from shopskill_lib.shops.generator import generate_catalogue
from shopskill_lib.skills import read_skill

ROOT = Path(__file__).parents[1]
FRAMES: dict[Language, tuple[str, ...]] = {
    "en": ("Prefer {} when the list is long.", "Compare first; {}, then decide.", "{} is worth a look"),
    "zh": ("优先选择{}即可。", "先比较，再看{}，然后决定", "{}值得一看"),
}


def digits(zero: int) -> Callable[[str], str]:
    """Return the form in the decimal digits that begin at a code point."""
    return lambda text: "".join(chr(zero + int(letter)) if letter in "0123456789" else letter for letter in text)


FORMS: dict[str, Callable[[str], str]] = {
    "plain": str,
    "upper case": str.upper,
    "spaced": " ".join,
    "dashed": "-".join,
    "dotted": ".".join,
    "zero-width": "\u200b".join,
    "full-width": lambda text: "".join(chr(ord(c) + 0xFEE0) if "!" <= c <= "~" else c for c in text),
    "Arabic-Indic": digits(0x660),
    "Devanagari": digits(0x966),
    "Chinese digits": lambda text: "".join("〇一二三四五六七八九"[int(c)] if c in "0123456789" else c for c in text),
    "circled": lambda text: "".join("⓪①②③④⑤⑥⑦⑧⑨"[int(c)] if c in "0123456789" else c for c in text),
    "reversed": lambda text: text[::-1],
    "rot13": lambda text: codecs.encode(text, "rot13"),
    "base64": lambda text: base64.b64encode(text.encode()).decode(),
    "hex": lambda text: text.encode().hex(),
    "percent": lambda text: "".join(f"%{byte:02X}" for byte in text.encode()),
    "percent, letters kept": quote,
    "two lines": lambda text: f"{text[: len(text) // 2]}\n{text[len(text) // 2 :]}",
    "two fields": str,
}


def instances(catalogue: Catalogue, count: int, rng: random.Random) -> dict[str, Instance]:
    """Return the facts of train tasks, each with gold and two other products."""
    tasks = [task for task in catalogue.tasks.values() if task.split == "train"][:count]
    products = list(catalogue.products.values())
    return {
        task.task_id: instance_of(
            task, [catalogue.products[task.gold_asin], *rng.sample(products, 2)], [f"bare/{task.task_id}/0"]
        )
        for task in tasks
    }


def planted(instance: Instance, language: Language) -> dict[Kind, str]:
    """Return one fact of each kind."""
    facts: dict[Kind, str] = {
        "identifier": instance.identifiers[1],
        "title": instance.titles[0],
        "fragment": instance.titles[0].removeprefix(instance.brands[0]).strip(),
        "brand": instance.brands[0],
        "number": f"{instance.numbers[0]:g}",
    }
    if instance.options:
        axis, value = instance.options[0]
        facts["option"] = f"{axis} {value}" if language == "en" else f"{axis}{value}"
    return facts


def split(form: str, text: str, frame: str) -> dict[str, str]:
    """Put a leak into a sentence, or its halves at the seam of two."""
    if form == "two fields":
        return {"a": f"Look for {text[: len(text) // 2]}", "b": f"{text[len(text) // 2 :]} now"}
    return {"a": frame.format(FORMS[form](text))}


def recall(language: Language, known: dict[str, Instance], count: int) -> None:
    """Print the share of planted leaks that give a finding of their kind (an option or price: of any kind)."""
    screen, hits, tried = Screen(known), Counter[tuple[str, Kind]](), Counter[tuple[str, Kind]]()
    for task_id in list(known)[:count]:
        for kind, fact in planted(known[task_id], language).items():
            for form in FORMS:
                for frame in FRAMES[language]:
                    tried[form, kind] += 1
                    texts = split(form, fact, frame)
                    kinds = {found.kind for found in screen.scan(texts, [task_id])}
                    hits[form, kind] += kind in kinds or (kind == "fragment" and "title" in kinds)
    kinds_shown: tuple[Kind, ...] = ("identifier", "title", "fragment", "brand", "option", "number")
    print(f"\nfound, {language}, %   " + "".join(f"{kind:>12}" for kind in kinds_shown))
    for form in FORMS:
        cells = [hits[form, kind] / tried[form, kind] * 100 for kind in kinds_shown]
        print(f"{form:22}" + "".join(f"{cell:12.0f}" for cell in cells))


def clean(language: Language, known: dict[str, Instance]) -> None:
    """Print the share of (text, instance) pairs with a finding, and what was found."""
    draft = ROOT / "shopskill_lib" / "drafts" / f"skill_{language}.md"
    chunks = {chunk.chunk_id: {"title": chunk.title, "text": chunk.text} for chunk in read_skill(draft).chunks}
    lines = (ROOT / "tests" / "advice" / f"{language}.txt").read_text(encoding="utf-8").splitlines()
    advice = {line[:20]: {"text": line} for line in lines}
    screen = Screen(known)
    for name, texts in (("draft", chunks), ("advice", advice)):
        kinds, pairs = Counter[tuple[str, str]](), 0
        for label, fields in texts.items():
            for task_id in known:
                found = screen.scan(fields, [task_id])
                pairs += bool(found)
                kinds.update((label, finding.kind) for finding in found)
        share = pairs / (len(texts) * len(known)) * 100
        print(f"clean {name}, {language}: {share:.2f} % of {len(texts)} x {len(known)} pairs have a finding")
        print("  " + ", ".join(f"{label} [{kind}] {count}" for (label, kind), count in kinds.most_common(6)))


def timed(language: Language, known: dict[str, Instance]) -> None:
    """Print seconds to build a screen, to scan a skill against all and a card against one instance."""
    started = time.perf_counter()
    screen = Screen(known)
    built = time.perf_counter() - started
    text = (
        " ".join(chunk.text for chunk in read_skill(ROOT / "shopskill_lib" / "drafts" / f"skill_{language}.md").chunks)
        * 3
    )
    skill = {f"chunk {n}": text[n * 400 : n * 400 + 400] for n in range(16)}
    card = {
        name: text[n * 150 : n * 150 + 150] for n, name in enumerate(("mechanism", "when", "trigger", "do", "check"))
    }
    print(
        f"time, {language}: {len(known)} instances built in {built:.2f} s, "
        f"skill of 16 x 400 characters {once(lambda: screen.scan(skill, None)) * 1000:.1f} ms, "
        f"with the facts of all {once(lambda: screen.scan(skill, known)) * 1000:.1f} ms, "
        f"card of 5 x 150 {once(lambda: screen.scan(card, list(known)[:1])) * 1000:.2f} ms"
    )


def once(work: Callable[[], object]) -> float:
    times = []
    for _ in range(15):
        started = time.perf_counter()
        work()
        times.append(time.perf_counter() - started)
    return statistics.median(times)


def main() -> None:
    parser = argparse.ArgumentParser(description="what the firewall finds and takes")
    for name, default in (("instances", 300), ("plants", 40), ("seed", 0)):
        parser.add_argument(f"--{name}", type=int, default=default)
    options = parser.parse_args()
    languages: tuple[Language, ...] = ("en", "zh")
    for language in languages:
        catalogue = generate_catalogue(options.seed, language, products=2000)
        known = instances(catalogue, options.instances, random.Random(options.seed))
        recall(language, known, options.plants)
        clean(language, known)
        timed(language, known)


if __name__ == "__main__":
    main()
