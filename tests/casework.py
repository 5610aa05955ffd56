"""Trajectories made in a real shop, authors that act by a list, and diagnoses to hand in."""

import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scripted import Answer, Json, completion, scripted

from shopskill_lib.agent import Agent, load_prompts
from shopskill_lib.analysts import Analyst, load_texts
from shopskill_lib.firewall import instance_of
from shopskill_lib.records import Language, Product, Task
from shopskill_lib.settings import Settings
from shopskill_lib.shops.embedded import EmbeddedShop
from shopskill_lib.shops.pages import BACK, BUY
from shopskill_lib.shops.protocol import StepResult
from shopskill_lib.skills import Chunk, Skill
from shopskill_lib.trajectories import PARTS, Trajectory, Turn
from shopskill_lib.workbench import Bench

EMPTY = Skill(title="", chunks=())
SKILL = Skill(
    title="advice",
    chunks=(
        Chunk(chunk_id="sizes", title="Sizes", text="Choose the size that the request names before buying."),
        Chunk(chunk_id="核价", title="价格", text="选好规格以后，再核对一次所选规格的价格是否在预算之内。"),
    ),
)


def won(shop: EmbeddedShop, task: Task) -> list[str]:
    """Actions that buy gold as asked for, found by the words of the request; empty where that does not do."""
    gold, session = shop.inspect(task.gold_asin), shop.reset(task)
    wanted = {option.axis: option.value for option in task.options}
    actions = [f"search[{task.visible_instruction}]", f"click[{gold.asin}]"]
    for axis, values in gold.options.items():
        cheapest = min(values, key=lambda value: values[value] or 0.0)
        actions.append(f"click[{axis}={wanted.get(axis, cheapest)}]")
    actions.append(f"click[{BUY}]")
    for action in actions:
        session.step(action)
    detail = session.current.reward_detail
    return actions if detail is not None and detail.r_success == 1 else []


def trajectory_of(shop: EmbeddedShop, task: Task, actions: Sequence[str], name: str = "t-1") -> Trajectory:
    """The trajectory of these actions; without a purchase it ends because tokens ran out."""
    session, turns = shop.reset(task), list[Turn]()
    for step, action in enumerate(actions, 1):
        page = session.current.observation_text
        feedback = session.step(action).feedback
        turns.append(Turn(step=step, page=page, action=action, feedback=feedback and feedback["reason"]))
    if not session.current.done:
        turns.append(Turn(step=len(turns) + 1, page=session.current.observation_text, action=None))
        session.end("generation_length")
    return _told(session.current, task, turns, name)


def _told(end: StepResult, task: Task, turns: list[Turn], name: str) -> Trajectory:
    assert end.reward_detail is not None
    return Trajectory(
        trajectory_id=name,
        task_id=task.task_id,
        instruction=task.visible_instruction,
        persona=task.persona,
        hints=(),
        turns=tuple(turns),
        ending=end.reward_detail.termination_reason,
        reward=end.reward,
        parts={part: float(getattr(end.reward_detail, part)) for part in PARTS},
        purchase=end.purchase,
        checkpoint="c1",
        simulated=True,
    )


@dataclass
class Case:
    """A task with a failed trajectory (searched well, opened the wrong product, gave up) and its repair."""

    shop: EmbeddedShop
    task: Task
    gold: Product
    repair: list[str]
    """From the home page; its first action is the trajectory's too."""
    failed: Trajectory
    success: Trajectory

    @classmethod
    def of(cls, shop: EmbeddedShop, skip: int = 0) -> "Case":
        cases = (cls._made(shop, task) for task in shop.catalogue.tasks.values())
        return next(itertools.islice((case for case in cases if case is not None), skip, None))

    @classmethod
    def _made(cls, shop: EmbeddedShop, task: Task) -> "Case | None":
        repair = won(shop, task)
        if not repair:
            return None
        found = shop.search(task.visible_instruction)[:20]
        other = next(product.asin for product in found if product.asin != task.gold_asin)
        failed = trajectory_of(shop, task, [repair[0], f"click[{other}]", f"click[{BACK}]"])
        return cls(shop, task, shop.inspect(task.gold_asin), repair, failed, trajectory_of(shop, task, repair))

    @property
    def language(self) -> Language:
        return self.shop.catalogue.language

    @property
    def instance(self) -> Any:
        return instance_of(self.task, [self.gold], [self.failed.trajectory_id])

    def acts(self, *more: tuple[str, Any], after: int = 1) -> list[tuple[str, Any]]:
        """Calls that replay and carry the repair out, then these."""
        return [("replay_prefix", {"steps": after}), *map(call_of, self.repair[after:]), *more]


def call_of(action: str) -> tuple[str, Json]:
    verb, _, argument = action.removesuffix("]").partition("[")
    return verb, {"query" if verb == "search" else "value": argument}


LESSONS = {
    "en": {
        "workflow_stage": "comparison",
        "failure_mechanism": "the first result was opened without reading what the others offer",
        "applicable_when": "several results look alike",
        "observable_trigger": "the list shows more than one candidate of the wanted kind",
        "corrective_procedure": "compare the attributes of all candidates with the request before opening one",
        "verification_step": "every stated attribute is on the opened page",
    },
    "zh": {
        "workflow_stage": "comparison",
        "failure_mechanism": "没有看其他候选就打开了第一条结果",
        "applicable_when": "列表里有好几件相似的候选",
        "observable_trigger": "列表中同类候选不止一件",
        "corrective_procedure": "打开之前先把每件候选的属性与需求逐项比较",
        "verification_step": "打开的页面上写着每一项要求的属性",
    },
}


def diagnosis(language: str = "en", **change: Any) -> Json:
    """A complete diagnosis; `lesson` changes its deployable part, `audit` the privileged one."""
    lesson = LESSONS[language] | change.pop("lesson", {})
    audit = {
        "failure_surface": "product_detail",
        "earliest_divergence": {"step": 2, "why": "the wrong product was opened"},
        "oracle_comparison": "CANARY-COMPARISON",
        "replay_evidence": "CANARY-EVIDENCE",
        "minimal_repair": "CANARY-REPAIR",
        "suspected_harm": None,
    } | change.pop("audit", {})
    whole: Json = {"status": "PROPOSE_ADD", "audit": audit, "repair_trial": 1, "deployable": lesson}
    return whole | change


def nothing(reason: str, **change: Any) -> Json:
    """A diagnosis that proposes nothing."""
    fields: Json = {"status": "NO_PROPOSAL", "no_proposal_reason": reason, "repair_trial": None, "deployable": None}
    return diagnosis(**fields, **change)


def success_card(trajectory: Trajectory | None, language: str = "en", **change: Any) -> Json:
    """A valid success card, which quotes the first action."""
    texts = {"en": ("a query of all requirements", "Put every stated requirement into the first query."),
             "zh": ("搜索词写全了要求", "第一次搜索就把写明的要求都放进去。")}[language]  # fmt: skip
    card: Json = {
        "workflow_stage": "query",
        "mechanism": texts[0],
        "applicable_when": texts[0],
        "evidence": [{"step": 1, "quote": "search[" if trajectory is None else str(trajectory.turns[0].action)[:12]}],
        "decisive_behavior": texts[0],
        "generalizable_lesson": texts[1],
        "related_chunk_ids": [],
        "confidence": 0.8,
    }
    return card | change


class Acting:
    """An author that makes these calls one after the other; a text is prose, an Answer is sent as it is."""

    def __init__(self, acts: Iterable[Any]) -> None:
        self._acts = iter(acts)
        self.bodies: list[Json] = []

    def __call__(self, body: Json) -> Answer:
        self.bodies.append(body)
        act = next(self._acts)
        if isinstance(act, Answer):
            return act
        usage = {"prompt_tokens": 100, "completion_tokens": 10}
        return completion(text=act, usage=usage) if isinstance(act, str) else completion(act, usage=usage)

    @property
    def offered(self) -> list[list[str]]:
        """Names of the tools on offer, by request."""
        return [[tool["function"]["name"] for tool in body["tools"]] for body in self.bodies]


def analyst(
    script: Callable[[Json], Answer], language: Language = "en", skill: Skill = EMPTY, **bounds: int
) -> Analyst:
    """An analyst on a scripted author."""
    limits = {"max_cards": 2, "rounds": 20, "tokens": 400_000, "context_tokens": 100_000, "seed": 0} | bounds
    texts = load_texts(language, limits["max_cards"])
    return Analyst(scripted(script), language, texts, skill, **limits)


def lines(path: Path) -> list[str]:
    """Lines of a file; none without the file."""
    return path.read_text(encoding="utf-8").splitlines() if path.exists() else []


def pairs_of(shop: EmbeddedShop, count: int) -> list[tuple[Trajectory, Task]]:
    """Failures that gave up after a search, and a success wherever the task's own words win, one a task."""
    pairs = []
    for task in itertools.islice(shop.catalogue.tasks.values(), count):
        actions = won(shop, task) if int(task.task_id) % 2 else []
        made = trajectory_of(shop, task, actions or [f"search[{task.visible_instruction}]"], f"t-{task.task_id}")
        pairs.append((made, task))
    return pairs


def bench_of(shop: EmbeddedShop, folder: Path, **settings: Any) -> Bench:
    """A bench whose policy nobody asks."""
    given = Settings.of(
        {"language": shop.catalogue.language, "author_model": "m", "author_checkpoint": "c", **settings}
    )
    return Bench(given, folder, Agent(scripted(), shop, load_prompts(shop.catalogue.language)), shop.catalogue)


def author(body: Json) -> Answer:
    """A stateless author: one success card; of a failure the home page replayed, then a slip."""
    offered = [tool["function"]["name"] for tool in body["tools"]]
    usage = {"prompt_tokens": sum(len(message["content"]) for message in body["messages"]) // 4, "completion_tokens": 9}
    if offered == ["submit_success_cards"]:
        return completion(("submit_success_cards", {"cards": [success_card(None)]}), usage=usage)
    if any(message["role"] == "tool" for message in body["messages"]):
        return completion(("submit_diagnosis", nothing("execution_slip")), usage=usage)
    return completion(("replay_prefix", {"steps": 0}), usage=usage)
