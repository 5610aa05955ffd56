"""The loops that an author model meets, small: trajectories of the simulated shopper, messages, tools, answers."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

from shopskill_lib.agent import Agent, constant, load_prompts, run_episode, tools_of
from shopskill_lib.cards import FailureLesson, Reason, Stage, Status, SuccessLesson, Surface
from shopskill_lib.dialogue import Tool
from shopskill_lib.lab.direct import DirectModel
from shopskill_lib.models import Endpoint
from shopskill_lib.records import Hint, Record, Step, Task, make_treatment
from shopskill_lib.shops.embedded import EmbeddedShop
from shopskill_lib.shops.protocol import Session
from shopskill_lib.simulated.author import MODEL, respond
from shopskill_lib.skills import read_skill
from shopskill_lib.trajectories import PARTS, Trajectory, Turn

Json = dict[str, Any]


class Evidence(Record):
    step: int
    quote: str


class SuccessCard(SuccessLesson):
    evidence: tuple[Evidence, ...]
    confidence: float


class SuccessSubmission(Record):
    cards: tuple[SuccessCard, ...]


class Divergence(Record):
    step: int
    why: str


class Examination(Record):
    failure_surface: Surface
    earliest_divergence: Divergence
    oracle_comparison: str
    replay_evidence: str
    minimal_repair: str
    suspected_harm: str | None


class Diagnosis(Record):
    status: Status
    no_proposal_reason: Reason | None
    covered_by: str | None
    audit: Examination
    repair_trial: int | None
    deployable: FailureLesson | None


class Cluster(Record):
    workflow_stage: Stage
    mechanism: str
    applicable_when: str
    procedure: tuple[str, ...]
    verification: str
    common_failure: str
    target_chunk_id: str | None
    card_ids: tuple[str, ...]


class LeftCard(Record):
    card_id: str
    reason: str


class Clusters(Record):
    clusters: tuple[Cluster, ...]
    left_out: tuple[LeftCard, ...]


class Chunk(Record):
    operation: str
    target_chunk_id: str | None
    workflow_stage: Stage
    title: str
    applicable_when: str
    procedure: tuple[str, ...]
    verification: str
    common_failure: str
    reason: str
    mechanism_ids: tuple[str, ...]


class LeftMechanism(Record):
    mechanism_id: str
    reason: str


class Compiled(Record):
    title: str
    chunks: tuple[Chunk, ...]
    left_out: tuple[LeftMechanism, ...]


RECORDS: dict[str, type[Record]] = {
    "submit_success_cards": SuccessSubmission,
    "submit_diagnosis": Diagnosis,
    "submit_clusters": Clusters,
    "submit_skill": Compiled,
}

SYSTEM = {"en": "You study one trajectory. Write at most 2 cards.", "zh": "你要研究一条轨迹。最多写 2 张卡片。"}


def tool(name: str, parameters: Json | None = None) -> Json:
    schema = schema_of(name) if parameters is None else parameters
    return {"type": "function", "function": {"name": name, "parameters": schema}}


@cache
def schema_of(name: str) -> Json:
    return RECORDS[name].model_json_schema()


def sections(**parts: Any) -> str:
    texts = {name: part if isinstance(part, str) else dumps(part) for name, part in parts.items() if part is not None}
    return "\n".join(f"<{name}>\n{text}\n</{name}>" for name, text in texts.items())


def dumps(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, sort_keys=True)


def body(messages: Sequence[Json], tools: Sequence[Json], seed: int, temperature: float = 0.6) -> Json:
    return {"model": MODEL, "messages": messages, "tools": tools, "seed": seed, "temperature": temperature,
            "max_tokens": 16_384}  # fmt: skip


def call_of(reply: Any) -> tuple[str, Json] | None:
    """Name and arguments of the one call of an answer; None without exactly one."""
    calls = reply.body["choices"][0]["message"].get("tool_calls", [])
    if len(calls) != 1:
        return None
    return calls[0]["function"]["name"], json.loads(calls[0]["function"]["arguments"])


@lru_cache(maxsize=8)
def shopper(shop: EmbeddedShop) -> Agent:
    endpoint = Endpoint(url="simulated", model="simulated-shopper", checkpoint="c", temperature=0.7)
    return Agent(DirectModel(endpoint), shop, load_prompts(shop.catalogue.language))


def trajectory_of(shop: EmbeddedShop, task: Task, seed: int, chunks: Sequence[Json] = ()) -> Trajectory:
    steps: list[Step] = []
    hints = [Hint(id=chunk["chunk_id"], text=chunk["text"]) for chunk in chunks]
    end = run_episode(shopper(shop), task, constant(make_treatment("t", hints)), seed, steps.append)
    assert end.reward_detail is not None
    return Trajectory(
        trajectory_id=f"t-{task.task_id}-{seed}",
        task_id=task.task_id,
        instruction=task.visible_instruction,
        persona=task.persona,
        hints=tuple(hints),
        turns=tuple(
            Turn(step=s.step, page=s.observation or "", action=s.action, fault=s.fault, feedback=s.feedback)
            for s in steps
        ),
        ending=end.reward_detail.termination_reason,
        reward=end.reward,
        parts={name: float(getattr(end.reward_detail, name)) for name in PARTS},
        purchase=end.purchase,
        checkpoint="c",
        simulated=True,
    )


def opening(trajectory: Trajectory, skill: Sequence[Json] = (), **more: Any) -> str:
    bought = trajectory.purchase
    purchase = bought and {"asin": bought.asin, "title": bought.title, "options": bought.options,
                           "price": bought.price.price}  # fmt: skip
    outcome = {"ending": trajectory.ending, "reward": trajectory.reward, "parts": trajectory.parts,
               "purchase": purchase}  # fmt: skip
    return sections(request=trajectory.instruction, persona=trajectory.persona, skill=list(skill), outcome=outcome,
                    **more, trajectory="\n".join(map(block, trajectory.turns)))  # fmt: skip


def block(turn: Turn) -> str:
    done = f"<fault>{turn.fault}</fault>" if turn.action is None else f"<action>{turn.action}</action>"
    if turn.feedback not in (None, "executed"):
        done += f"\n<feedback>{turn.feedback}</feedback>"
    return f'<turn n="{turn.step}">\n<page>\n{turn.page.strip()}\n</page>\n{done}\n</turn>'


@dataclass
class Loop:
    """One conversation with the author, its faults answered as the program answers them."""

    messages: list[Json]
    seed: int
    temperature: float = 0.6
    faults: list[str] = field(default_factory=list)
    asked: int = 0

    def ask(self, tools: Sequence[Json]) -> tuple[str, Json] | None:
        reply = respond(body(self.messages, tools, self.seed + self.asked, self.temperature))
        self.asked += 1
        assert reply.status == 200, reply
        message = reply.body["choices"][0]["message"]
        self.messages.append(message)
        made = call_of(reply)
        name = [made[0]] if made else []
        if made is not None and name[0] in RECORDS:
            try:
                RECORDS[name[0]].model_validate_json(json.dumps(made[1]))
            except ValueError as error:
                self.fault("schema", str(error)[:200])
                return None
        if made is None:
            self.fault("calls" if message.get("tool_calls") else "prose", "one call")
        return made

    def fault(self, kind: str, detail: str) -> None:
        self.faults.append(kind)
        told = {"type": "tool_protocol_error", "code": kind, "detail": detail}
        calls = self.messages[-1].get("tool_calls") or []
        for made in calls:
            self.messages.append({"role": "tool", "tool_call_id": made["id"], "content": dumps(told)})
        if not calls:
            self.messages.append({"role": "user", "content": dumps(told)})

    def answer(self, content: str) -> None:
        made = self.messages[-1]["tool_calls"][0]
        self.messages.append({"role": "tool", "tool_call_id": made["id"], "content": content})

    def obtain(self, name: str, check: Callable[[Json], str] = lambda given: "") -> Json:  # noqa: ARG005
        for _ in range(4):
            made = self.ask([tool(name)])
            if made is None:
                continue
            wrong = check(made[1])
            if not wrong:
                return made[1]
            self.fault("check", wrong)
        raise AssertionError(self.faults)


def begin(text: str, language: str, seed: int, temperature: float = 0.6) -> Loop:
    return Loop([{"role": "system", "content": SYSTEM[language]}, {"role": "user", "content": text}], seed, temperature)


@dataclass
class Audited:
    """What a failure audit brought."""

    diagnosis: Json | None
    loop: Loop
    trials: list[Json]

    @property
    def repaired(self) -> bool:
        """Whether the claimed trial met everything."""
        number = self.diagnosis and self.diagnosis["repair_trial"]
        return any(trial["trial"] == number and trial["success"] for trial in self.trials)


def audit(
    shop: EmbeddedShop, task: Task, trajectory: Trajectory, seed: int, skill: Sequence[Json] = (), *, rounds: int = 20
) -> Audited:
    """Run a failure audit as the contract says."""
    text = opening(trajectory, skill, gold={"asin": task.gold_asin}, limits={"rounds": rounds, "tokens": 400_000})
    loop, trials, session = begin(text, shop.catalogue.language, seed), list[Json](), None
    for number in range(rounds):
        shown = tools_of(session.current.state) if session and not session.current.done else list[Tool[str]]()
        fixed = [tool("inspect_gold", {"type": "object", "properties": {}}), tool("replay_prefix", _STEPS)]
        last = number == rounds - 1
        made = loop.ask([*([] if last else [*fixed, *(one.schema for one in shown)]), tool("submit_diagnosis")])
        if made is None:
            continue
        name, arguments = made
        if name == "submit_diagnosis":
            return Audited(arguments, loop, trials)
        if name == "inspect_gold":
            loop.answer(dumps(shop.inspect(task.gold_asin).model_dump()))
        elif name == "replay_prefix":
            session = shop.reset(task)
            loop.answer(_replayed(session, trajectory, arguments["steps"], trials))
        else:
            assert session is not None
            (argument,) = arguments.values()
            loop.answer(_acted(session, f"{name}[{argument}]", trials))
    return Audited(None, loop, trials)


_STEPS = {"type": "object", "properties": {"steps": {"type": "integer"}}}


def _replayed(session: Session, trajectory: Trajectory, steps: int, trials: list[Json]) -> str:
    assert 0 <= steps < len(trajectory.turns)
    for turn in trajectory.turns[:steps]:
        if turn.action is not None:
            session.step(turn.action)
    trials.append({"trial": len(trials) + 1, "after_steps": steps, "success": False, "actions": []})
    told = {"trial": len(trials), "after_steps": steps, "same_pages": True}
    return f"{dumps(told)}\n\n{session.current.observation_text}"


def _acted(session: Session, action: str, trials: list[Json]) -> str:
    end = session.step(action)
    trials[-1]["actions"].append(action)
    told: Json = {"trial": len(trials), "feedback": "executed", "done": end.done}
    if not end.done or end.reward_detail is None:
        return f"{dumps(told)}\n\n{end.observation_text}"
    trials[-1]["success"] = end.reward_detail.r_success == 1
    bought = end.purchase.model_dump(mode="json") if end.purchase else None
    parts = {name: getattr(end.reward_detail, name) for name in PARTS}
    return dumps(told | {"reward": end.reward, "parts": parts, "purchase": bought})


def draft(language: str) -> list[Json]:
    """The shipped skill as chunks."""
    path = Path(__file__).parents[1] / "shopskill_lib" / "drafts" / f"skill_{language}.md"
    return [{"chunk_id": chunk.chunk_id, "title": chunk.title, "text": chunk.text} for chunk in read_skill(path).chunks]
