"""A small whole run, cold start to online round, on a loopback wire that keeps every request.

Gold of every training task carries canaries where no page can show them, and the failure analyst gives gold away.
"""

import base64
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from scripted import Answer, Json, serve

from shopskill_lib import cold_start, gates, looks, online, protocol, workbench
from shopskill_lib.agent import Agent, load_prompts
from shopskill_lib.lab.learner import Lesson
from shopskill_lib.models import Endpoint
from shopskill_lib.records import Episode, Product, Task
from shopskill_lib.rounds import Round
from shopskill_lib.settings import Settings
from shopskill_lib.shops.catalog import Catalogue
from shopskill_lib.shops.embedded import EmbeddedShop
from shopskill_lib.simulated import wire
from shopskill_lib.skills import Skill
from shopskill_lib.workbench import Bench

SIZES = {"n_train": 36, "n_val": 36, "n_test": 4, "n_groups": 30, "group_size": 2, "n_gap": 0, "rounds": 1,
         "max_steps": 12, "rollout_seed": 8, "policy_concurrency": 4, "author_concurrency": 4}  # fmt: skip
RULE = online.Rule(resamples=200)

ROLES = {
    "submit_success_cards": "success_analyst",
    "submit_diagnosis": "failure_analyst",
    "submit_clusters": "consolidator",
    "submit_skill": "compiler",
}


def planted(catalogue: Catalogue) -> Catalogue:
    """The catalogue with a canary as shop and description of every training task's gold, and as the task's category."""
    products, tasks = dict(catalogue.products), dict(catalogue.tasks)
    for task in catalogue.tasks.values():
        if task.split == "train":
            number = f"{int(task.task_id):04d}"
            shop, text = {
                "en": (
                    f"Qorvex{number} Outlet",
                    f"The quillmarsh{number} tag hides behind a vermilion lantern on the pier",
                ),
                "zh": (f"雀声{number}旗舰店", f"密语{number}号藏在旧码头朱红灯笼背面的石缝里"),
            }[catalogue.language]
            gold = {"shop": shop, "description": text}
            products[task.gold_asin] = products[task.gold_asin].model_copy(update=gold)
            tasks[task.task_id] = task.model_copy(update={"category": f"canary›{shop}"})
    return replace(catalogue, products=products, tasks=tasks)


def unseen(task: Task, gold: Product) -> list[str]:
    """What only gold tells, in the forms in which the leaking analyst writes it."""
    return [gold.shop, gold.description, task.category, *disguises(gold.shop)]


def public_once_shown(gold: Product) -> list[str]:
    """What a page that shows gold tells as well."""
    return [gold.asin, gold.title]


def disguises(text: str) -> list[str]:
    """A text reversed, encoded, spaced, in full width, and with characters of no width inside."""
    wide = "".join(chr(ord(letter) + 0xFEE0) if "!" <= letter <= "~" else letter for letter in text)
    return [text[::-1], base64.b64encode(text.encode()).decode(), " ".join(text), wide, "\u200b".join(text)]


def leaking(body: Json) -> Answer:
    """The simulated models; a diagnosis copies all of gold or hides a fact of it, and one in two is mended later."""
    reply = wire.respond(body)
    document: Any = json.loads(json.dumps(reply.body))
    calls = document["choices"][0]["message"].get("tool_calls") or [] if reply.status == 200 else []
    for call in calls:
        arguments = json.loads(call["function"]["arguments"])
        told = _told(body)
        if call["function"]["name"] == "submit_diagnosis" and isinstance(arguments.get("deployable"), dict) and told:
            call["function"]["arguments"] = json.dumps(_leaked(arguments, told, body), ensure_ascii=False)
    return Answer(json.dumps(document).encode(), reply.status, {"Connection": "close"})


def _told(body: Json) -> str:
    """What `inspect_gold` answered; "" before it was asked."""
    answers = [message["content"] for message in body["messages"] if message["role"] == "tool"]
    return next((text for text in answers if '"asin"' in text and '"shop"' in text), "")


def _leaked(arguments: Json, told: str, body: Json) -> Json:
    """The diagnosis with gold in the texts that would travel."""
    gold = json.loads(told)
    number = int(gold["asin"][-6:])
    texts = [name for name, text in arguments["deployable"].items() if isinstance(text, str)]
    texts = [name for name in texts if name not in ("workflow_stage", "target_chunk_id")]
    if number % 4 > 1 and "firewall" in str(body["messages"][-1]["content"]):
        return arguments
    where = texts[number % len(texts)]
    added = dict.fromkeys(texts, told) if number % 4 == 1 else {where: disguises(gold["shop"])[number // 3 % 5]}
    lesson = {
        name: f"{text} {added.get(name, '')}" if name in texts else text
        for name, text in arguments["deployable"].items()
    }
    return arguments | {"deployable": lesson}


def sections(text: str) -> dict[str, str]:
    """The named sections of an analyst's message."""
    return dict(re.findall(r"^<(\w+)>\n(.*?)\n</\1>$", text, re.DOTALL | re.MULTILINE))


def role_of(body: Json) -> str:
    """Who is asked."""
    offered = [tool["function"]["name"] for tool in body["tools"]]
    return next((role for tool, role in ROLES.items() if tool in offered), "policy")


@dataclass
class Trainer:
    """Nobody trains; what would have been trained on is kept."""

    lessons: list[Lesson] = field(default_factory=list)

    def __call__(self, policy: Endpoint, checkpoint: str, lessons: Sequence[Lesson]) -> Endpoint:  # noqa: ARG002
        self.lessons.extend(lessons)
        return policy


@dataclass(frozen=True)
class WholeRun:
    """A finished run and everything that was asked on the way."""

    bench: Bench
    requests: list[Json]
    skill: Skill
    """That Gate A selected."""
    round: Round
    lessons: list[Lesson]

    @property
    def folder(self) -> Path:
        return self.bench.folder

    @property
    def golds(self) -> list[tuple[Task, Product]]:
        return [(task, self.bench.catalogue.products[task.gold_asin]) for task in self.bench.tasks("train")]

    def asked(self, role: str) -> list[Json]:
        return [body for body in self.requests if role_of(body) == role]

    def told(self, role: str) -> set[str]:
        """Every text that was sent to a role: messages, calls in them, tools on offer."""
        found = set[str]()
        for body in self.asked(role):
            found.update(message.get("content") or "" for message in body["messages"])
            found.update(json.dumps(part, ensure_ascii=False) for part in body["tools"])
            calls = (call for message in body["messages"] for call in message.get("tool_calls") or ())
            found.update(call["function"]["arguments"] for call in calls)
        return found


def bench_on(catalogue: Catalogue, folder: Path, url: str, **names: Any) -> Bench:
    """A bench whose two models are behind this URL."""
    settings = Settings.of(SIZES | {"language": catalogue.language, "policy_url": url, "author_url": url} | names)
    shop = EmbeddedShop(catalogue, folder.parent / "index", action_limit=settings.max_steps)
    model = workbench.connect_to(workbench.endpoint(settings, "policy"))
    agent = Agent(model, shop, load_prompts(catalogue.language), settings.max_steps)
    return Bench(settings, folder, agent, catalogue)


def gate_a(bench: Bench) -> Skill:
    """Gate A as its notebook runs it."""
    bench = replace(bench, pool=protocol.read_draft(bench.settings, bench.folder))
    pairs = gates.read_observations(protocol.gate_a(bench), bench.folder / "interventions.json")
    gate = gates.fit_gate(pairs, resamples=RULE.resamples)
    looks.freeze(bench.folder, bench.folder / "gate_a.json", gate.to_json(), gate.key())
    protocol.write_selected(bench, gate.selected)
    return protocol.read_selected(bench.folder)


def gate_b(bench: Bench) -> None:
    """Gate B as its notebook runs it."""
    comparison = gates.compare_paired(*gates.read_comparison(protocol.gate_b(bench)), resamples=RULE.resamples)
    looks.freeze(bench.folder, bench.folder / "gate_b.json", comparison.to_json(), comparison.key())


def whole_run(catalogue: Catalogue, folder: Path, **names: Any) -> Iterator[WholeRun]:
    """Run everything once, Gate B before the online round; the wire stays up for what a test asks further."""
    with serve(leaking) as server:
        bench, trainer = bench_on(planted(catalogue), folder, server.url, **names), Trainer()
        cold_start.collect(bench)
        cold_start.draft(bench)
        skill = gate_a(bench)
        gate_b(bench)
        (done,) = online.rounds(bench, RULE, trainer)
        yield WholeRun(bench, server.requests, skill, done, trainer.lessons)


def lines(path: Path) -> list[Json]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def document(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def episodes(folder: Path, *arms: str) -> list[Episode]:
    """Episodes of the arms whose names begin like this."""
    found = [path for path in sorted((folder / "episodes").iterdir()) if path.stem.startswith(arms)]
    return [Episode.model_validate(line) for path in found for line in lines(path) if "reused_from" not in line]


def name_of(episode: Episode) -> str:
    return f"t-{episode.identity[:16]}"


def analysed(folder: Path) -> set[str]:
    return {line["trajectory_id"] for line in lines(folder / "audit.jsonl")}


def without_pages(text: str) -> str:
    """Lines of episodes without what the policy saw, did and bought."""
    found = [json.loads(line) for line in text.splitlines()]
    for line in found:
        line.pop("purchase", None)
        line["steps"] = [step | {"observation": None, "action": None} for step in line.get("steps", ())]
    return json.dumps(found, ensure_ascii=False)


def spoil_test(folder: Path, *, gone: bool) -> None:
    """Take test episodes and Gate B out of a run folder, or turn their results round."""
    for path in (folder / "episodes" / "bare.jsonl", folder / "episodes" / "equipped.jsonl"):
        found = lines(path)
        assert any(line["split"] == "test" for line in found)
        kept = [_opposite(line) if line["split"] == "test" else line for line in found]
        kept = [line for line in kept if not gone or line["split"] != "test"]
        path.write_text("".join(json.dumps(line) + "\n" for line in kept), encoding="utf-8")
    for path in (folder / "gate_b.json", folder / "test_observations.csv"):
        path.write_text(re.sub(r"\b[01]\b", "7", path.read_text(encoding="utf-8")), encoding="utf-8")
        if gone:
            path.unlink()


def _opposite(line: Json) -> Json:
    """A scored episode with the opposite result."""
    detail = {name: 1 - line["reward_detail"][name] for name in ("r_strict", "r_success")}
    return line | {"reward": 1 - line["reward"], "reward_detail": line["reward_detail"] | detail}


def told_of(path: Path) -> bytes | None:
    """A file's bytes, less when a gate was looked at; None without the file."""
    return re.sub(rb'"at": ?"[^"]+"', b"", path.read_bytes()) if path.exists() else None
