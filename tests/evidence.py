"""Paraphrased cards of eight known mechanisms in two languages, and a scripted author that compiles them."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

from scripted import Answer, Json, completion, scripted

from shopskill_lib.cards import Card, Channel, Facts, FailureLesson, SuccessLesson
from shopskill_lib.compiler import Draft, build
from shopskill_lib.firewall import Instance, Screen
from shopskill_lib.records import Language, fingerprint
from shopskill_lib.settings import Settings
from shopskill_lib.skills import Chunk, Skill

LESSONS: dict[str, dict[str, Json]] = json.loads(Path(__file__).with_name("lessons.json").read_text(encoding="utf-8"))
"""Language -> mechanism -> {stage, success: 3 x texts, failure: 2 x texts}."""

Change = Callable[[Json], Any]
"""Arguments of a good answer -> those that are sent; None sends them as they are."""

SUCCESS = ("mechanism", "applicable_when", "decisive_behavior", "generalizable_lesson")
FAILURE = ("failure_mechanism", "applicable_when", "observable_trigger", "corrective_procedure", "verification_step")


def card(language: Language, name: str, channel: Channel, number: int, *, proposed: bool = True, **facts: Any) -> Card:
    """One card of a mechanism; `number` is the paraphrase, those past the last repeat texts for another task."""
    known = LESSONS[language][name]
    texts = known[channel][number % len(known[channel])]
    success = channel == "success"
    lesson = dict(zip(SUCCESS if success else FAILURE, texts, strict=True)) | {"workflow_stage": known["stage"]}
    given: Json = {
        "status": None if success else "PROPOSE_ADD",
        "reason": None,
        "covered_by": None,
        "surface": None if success else "search_recall",
        "repair_verified": not success,
        "repair_actions": None if success else 3,
        "steps": (1, 2 + number),
        "reward": 1.0 if success else 0.25,
        "reward_lost": 0.0 if success else 0.75,
        "confidence": 0.8 if success else None,
        "task_group_key": f"{name}-{channel}-{number}",
        "category_key": f"category-{number}",
        "reasked": False,
        "simulated": True,
    }
    return Card(
        card_id=f"card-{fingerprint([language, name, channel, number])[:12]}",
        source_trajectory_id=f"t-{fingerprint([name, channel, number])[:16]}",
        channel=channel,
        facts=Facts(**given | facts),
        deployable=None if not proposed else SuccessLesson(**lesson) if success else FailureLesson(**lesson),
    )


def cards(language: Language) -> list[Card]:
    """All 40 cards of a language."""
    channels: tuple[Literal["success"], Literal["failure"]] = ("success", "failure")
    return [
        card(language, name, channel, number)
        for name, known in LESSONS[language].items()
        for channel in channels
        for number in range(len(known[channel]))
    ]


def no_proposal() -> Card:
    """A failure that proposes nothing."""
    return card("en", "query", "failure", 50, proposed=False, status="NO_PROPOSAL", reason="execution_slip")


def screen(found: list[Card], **facts: Any) -> Screen:
    """A firewall that knows the trajectories of these cards, all with the same facts."""
    return Screen({one.source_trajectory_id: Instance(**facts) for one in found})


def mechanism_of(text: str) -> str:
    """The known mechanism that a text is of."""
    for known in LESSONS.values():
        for name, lesson in known.items():
            if any(text in texts for channel in ("success", "failure") for texts in lesson[channel]):
                return name
    raise AssertionError(text)


def parts(language: str, name: str) -> Json:
    """A good lesson of a mechanism."""
    known = LESSONS[language][name]
    return {
        "workflow_stage": known["stage"],
        "applicable_when": known["success"][0][1],
        "procedure": [known["success"][0][3], known["failure"][0][3]],
        "verification": known["failure"][0][4],
        "common_failure": known["failure"][0][0],
    }


def sections(body: Json) -> Json:
    """The sections of the user message, parsed."""
    text = body["messages"][1]["content"]
    return {name: json.loads(content) for name, content in re.findall(r"<(\w+)>\n(.*?)\n</\1>", text, re.DOTALL)}


class Author:
    """A scripted author: groups by the known mechanism, one chunk a mechanism.

    Attributes:
        language: of its texts.
        bodies: what it was asked, in order.
        clusters, skill: change the arguments of an answer; a list is used up one answer at a time.
    """

    def __init__(
        self, language: str = "en", *, clusters: list[Change] | None = None, skill: list[Change] | None = None
    ):
        self.language = language
        self.bodies: list[Json] = []
        self.changes = {"submit_clusters": clusters or [], "submit_skill": skill or []}

    def __call__(self, body: Json) -> Answer:
        self.bodies.append(body)
        (tool,) = (tool["function"]["name"] for tool in body["tools"])
        arguments = self._clusters(sections(body)) if tool == "submit_clusters" else self._skill(sections(body))
        changes = self.changes[tool]
        if changes:
            change = changes.pop(0) if len(changes) > 1 else changes[0]
            arguments = change(arguments) or arguments
        return completion((tool, arguments), usage={"prompt_tokens": 10, "completion_tokens": 5})

    def asked(self, tool: str) -> list[Json]:
        return [body for body in self.bodies if body["tools"][0]["function"]["name"] == tool]

    def _clusters(self, given: Json) -> Json:
        together: dict[str, list[Json]] = {}
        for entry in given["cards"]:
            told = entry.get("mechanism") or entry["failure_mechanism"]
            together.setdefault(mechanism_of(told), []).append(entry)
        return {
            "clusters": [
                {
                    **parts(self.language, name),
                    "mechanism": found[0].get("mechanism") or found[0]["failure_mechanism"],
                    "target_chunk_id": None,
                    "card_ids": [entry["card_id"] for entry in found],
                }
                for name, found in together.items()
            ],
            "left_out": [],
        }

    def _skill(self, given: Json) -> Json:
        return {
            "title": "Shopping" if self.language == "en" else "购物",
            "chunks": [
                {
                    **parts(self.language, mechanism_of(found["clusters"][0]["mechanism"])),
                    "operation": "ADD",
                    "target_chunk_id": None,
                    "title": found["clusters"][0]["mechanism"],
                    "reason": "it recurs",
                    "mechanism_ids": [found["mechanism_id"]],
                }
                for found in given["mechanisms"]
            ],
            "left_out": [],
        }


EMPTY = Skill(title="", chunks=())

SEED = Skill(
    title="Seed",
    chunks=(
        Chunk(chunk_id="broad", title="Broad", text="Keep the search broad."),
        Chunk(chunk_id="calm", title="Calm", text="Work in order."),
    ),
)


def compiled(
    author: Author, folder: Path, found: list[Card], skill: Skill = EMPTY, language: Language = "en", **given: Any
) -> Draft:
    """The draft of a cold start under a cap of 16, unless something else is given."""
    told: Json = {"cap": 16, "stage": "cold_start", "screen": screen(found)} | given
    names = {name: told.pop(name) for name in list(told) if name in Settings.model_fields and name != "cap"}
    return build(
        scripted(author), found, skill, settings=Settings.of({"language": language, **names}), folder=folder, **told
    )


def apart(arguments: Json) -> None:
    """Every card a cluster of its own."""
    arguments["clusters"] = [
        {**cluster, "procedure": [f"Step {n} of {name}", "Then look"], "card_ids": [name]}
        for cluster in arguments["clusters"]
        for n, name in enumerate(cluster["card_ids"])
    ]


def distinct(arguments: Json) -> None:
    """Chunks that do not say the same: their texts spell their mechanisms' ids."""
    for chunk in arguments["chunks"]:
        (name,) = chunk["mechanism_ids"]
        word = spelt(name)
        chunk.update({"procedure": [word * 3], "applicable_when": word, "verification": word, "common_failure": word})


def spelt(name: str) -> str:
    """An id in letters, which no firewall takes for a number."""
    return name.removeprefix("mechanism-").translate(str.maketrans("0123456789", "qrstuvwxyz"))


def rewriting(target: str, **more: Any) -> Change:
    def change(arguments: Json) -> None:
        arguments["chunks"][0].update({"operation": "REWRITE", "target_chunk_id": target, **more})

    return change
