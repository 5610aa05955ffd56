"""The agent loop of a failure audit: replay, search, click, inspect gold, hand in - within rounds and tokens (M6)."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from shopskill_lib.agent import tools_of
from shopskill_lib.audits import Trial, Trials
from shopskill_lib.dialogue import ArgumentError, Conversation, Tool, call, explain
from shopskill_lib.firewall import Finding
from shopskill_lib.models import Model
from shopskill_lib.records import Language, Product
from shopskill_lib.replies import Reply
from shopskill_lib.skills import Skill
from shopskill_lib.submissions import Diagnosis, failure_tool, faults_of_diagnosis, firewall_answer
from shopskill_lib.trajectories import PARTS, Trajectory

_CUT_OFF: dict[Language, str] = {
    "en": "Your reply was cut off before its end. Answer with one short tool call and no text.",
    "zh": "你的回复在结束前被截断。请只回复一个简短的工具调用，不要输出其他文字。",
}


@dataclass(slots=True)
class Spent:
    """Tokens of an audit.

    Attributes:
        tokens: so far, prompts and completions.
        latest: of the latest request.
        estimated: whether the server did not count all of them: a quarter of the bytes sent stands in.
    """

    tokens: int = 0
    latest: int = 0
    estimated: bool = False

    def add(self, reply: Reply, sent: int) -> None:
        """Count a request of this many bytes."""
        usage = reply.usage
        self.estimated = self.estimated or usage is None
        self.latest = sent // 4 if usage is None else usage.prompt_tokens + usage.completion_tokens
        self.tokens += self.latest


@dataclass(frozen=True, slots=True)
class Inquiry:
    """One failure audit in progress.

    Attributes:
        talk: the conversation, which is added to.
        gold: the product that `inspect_gold` shows.
        tokens: most tokens; the request that would pass them is the last.
        seed: of the first request; every further one counts one up.
    """

    model: Model
    language: Language
    talk: Conversation
    trials: Trials
    gold: Product
    trajectory: Trajectory
    skill: Skill
    rounds: int
    tokens: int
    seed: int
    spent: Spent

    def run(self) -> Diagnosis | None:
        """Let the analyst work until it hands in; None when a budget is spent or its context is full.

        What is no valid call costs a round. The last round offers the submission only.

        Raises:
            InfrastructureError, SetupError: model or shop could not be reached, or do not work as they are set up.
        """
        for number in range(self.rounds):
            last = number == self.rounds - 1 or self.spent.tokens + self.spent.latest > self.tokens
            diagnosis, full = self._ask([self._submission] if last else self._tools(), number)
            if diagnosis is not None or last or full:
                return diagnosis
        return None

    def again(self, findings: Sequence[Finding]) -> Diagnosis | None:
        """Return the diagnosis after the firewall's one re-ask; None when that brings nothing valid."""
        self.talk.remark(firewall_answer(findings, self.language))
        return self._ask([self._submission], self.rounds)[0]

    def _ask(self, tools: Sequence[Tool[Any]], number: int) -> tuple[Diagnosis | None, bool]:
        """Ask once and carry out a call of the shop; return a diagnosis, and whether the context is full."""
        sent = sum(map(len, self.talk.messages))
        answer = call(self.model, self.talk, tools, (self.seed + number) % 2**31, self.language)
        self.spent.add(answer.reply, sent)
        if answer.stop is not None and answer.stop.ending == "generation_length":
            explain(self.talk, answer.reply, _CUT_OFF[self.language])
        if answer.made is None:
            return None, answer.stop is not None and answer.stop.ending == "context_length"
        if answer.made.name == self._submission.name:
            return answer.value, False
        self.talk.answer(answer.made, self._carry_out(answer.made.name, answer.value))
        return None, False

    def _tools(self) -> list[Tool[Any]]:
        """Return what is on offer: the shop only while a trial is open."""
        visit = self.trials.open
        shop = [] if visit is None else tools_of(visit.current.state)
        last = len(self.trajectory.turns) - 1
        schema = {"type": "integer", "minimum": 0, "maximum": last}
        inspect = Tool("inspect_gold", _parameters({}), dict, "See the product that meets the request; audit only.")
        replay = Tool(
            "replay_prefix",
            _parameters({"steps": schema}),
            partial(_steps, last),
            "Enter the shop afresh, carry out the first recorded turns, and go on from there.",
        )
        return [inspect, replay, *shop, self._submission]

    @property
    def _submission(self) -> Tool[Diagnosis]:
        """The tool that ends the audit, with the checks that need trajectory and skill."""
        tool = failure_tool()

        def read(arguments: Mapping[str, Any]) -> Diagnosis:
            diagnosis = tool.read(arguments)
            faults = faults_of_diagnosis(diagnosis, self.trajectory, self.skill)
            if faults:
                raise ArgumentError(faults)
            return diagnosis

        return replace(tool, read=read)

    def _carry_out(self, name: str, value: Any) -> str:
        """Do what a call asks for, and return what it answers."""
        if name == "inspect_gold":
            return json.dumps(self.gold.model_dump(), ensure_ascii=False, sort_keys=True)
        if name == "replay_prefix":
            trial = self.trials.replay(value)
            told = {"trial": trial.number, "after_steps": trial.after_steps, "same_pages": trial.same_pages}
            return _page(trial, told)
        trial = self.trials.act(value)
        return _page(trial, {"trial": trial.number, "feedback": trial.feedback[-1]})


def _page(trial: Trial, told: dict[str, Any]) -> str:
    """Return one line of JSON and the page; of a trial that is over, its result in place of the page."""
    now = trial.current
    if not now.done:
        more = {} if "after_steps" in told else {"done": False}
        return f"{json.dumps(told | more, ensure_ascii=False)}\n\n{now.observation_text}"
    detail, bought = now.reward_detail, now.purchase
    result = {
        "done": True,
        "reward": now.reward,
        "parts": None if detail is None else {name: getattr(detail, name) for name in PARTS},
        "purchase": None if bought is None else bought.model_dump(mode="json"),
    }
    return json.dumps(told | result, ensure_ascii=False)


def _parameters(properties: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


def _steps(last: int, arguments: Mapping[str, Any]) -> int:
    """Read how many turns to replay."""
    steps = arguments.get("steps")
    if type(steps) is not int or not 0 <= steps <= last:
        raise ArgumentError(f"steps: {steps!r} is no number of turns from 0 to {last}")
    return steps
