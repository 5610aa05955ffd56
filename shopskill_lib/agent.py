"""One episode: treatment, prompt and tools -> reply -> action -> observation, until the shop says it is over.

Nothing here knows whether shop and model are real; nothing of the shop but its pages reaches the model.
"""

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from shopskill_lib import templates
from shopskill_lib.dialogue import ArgumentError, Conversation, Tool, call
from shopskill_lib.errors import InfrastructureError, SetupError
from shopskill_lib.models import Model
from shopskill_lib.records import (
    Hint,
    Language,
    ObservationState,
    Step,
    Task,
    Treatment,
    fingerprint,
    render_hints,
)
from shopskill_lib.replies import Reply, Stop, clean
from shopskill_lib.shops.protocol import Session, Shop, StepResult

AGENT_VERSION = "shopskill-agent-v1"
"""Version of the tool protocol and of how messages are laid out."""
MAX_STEPS = 30
TIMEOUT = 3600.0

Hints = Callable[[Task, ObservationState], Sequence[Hint]]
"""What the prompt shows for a task on a page; constant for a skill."""

_PLACEHOLDERS = {"policy": set[str](), "persona": {"persona"}, "hints": {"hints"}, "task": {"instruction", "page"}}
_ARGUMENT = {"search": "query", "click": "value"}


@dataclass(frozen=True, slots=True)
class Prompts:
    """The prompt texts of one language, with named placeholders."""

    language: Language
    policy: str
    persona: str
    hints: str
    task: str

    @property
    def sha256(self) -> str:
        """Hash of all texts."""
        return fingerprint([self.language, self.policy, self.persona, self.hints, self.task])

    def system(self, task: Task, hints: Sequence[Hint]) -> str:
        """Return the system message: the policy's text, what is known of the shopper, the hints."""
        parts = [self.policy.strip()]
        if task.persona is not None:
            persona = json.dumps(task.persona, sort_keys=True, ensure_ascii=False)
            parts.append(templates.fill(self.persona.strip(), {"persona": persona}))
        if hints:
            parts.append(templates.fill(self.hints.strip(), {"hints": render_hints(hints)}))
        return "\n\n".join(parts)

    def first(self, task: Task, page: str) -> str:
        """Return the first user message: the request and the home page."""
        return templates.fill(self.task.strip(), {"instruction": task.visible_instruction, "page": page.strip()})


def load_prompts(language: Language, prompts_dir: str = "") -> Prompts:
    """Read the policy's texts (see `templates.load` for what is refused)."""
    return Prompts(language, **templates.load(_PLACEHOLDERS, language, prompts_dir))


@dataclass(frozen=True, slots=True)
class Agent:
    """A model in a shop: all that an episode needs besides its task, hints and seed."""

    model: Model
    shop: Shop
    prompts: Prompts
    max_steps: int = MAX_STEPS
    """Turns of the model after which the episode ends, faults included."""
    timeout: float = TIMEOUT
    """Seconds after whose end an episode asks nothing more of the model; no part of the identity."""

    @property
    def identity(self) -> dict[str, Any]:
        """Everything about the agent that a result depends on, by name."""
        return {
            "agent": AGENT_VERSION,
            "max_steps": self.max_steps,
            "model": self.model.identity.decisive,
            "prompts": self.prompts.sha256,
            "shop": dict(self.shop.fingerprint),
        }


def episode_seed(rollout_seed: int, arm: str, task_id: str, sample: int) -> int:
    """Return the seed of an episode; arms and samples draw anew (I21)."""
    return int.from_bytes(hashlib.sha256(f"{rollout_seed}:{arm}:{task_id}:{sample}".encode()).digest()[:4], "big")


def constant(treatment: Treatment) -> Hints:
    """Return the hints of a treatment that is the same for every task and page."""
    return lambda task, page: treatment.hints  # noqa: ARG005 - the signature of hints


def tools_of(state: ObservationState) -> list[Tool[str]]:
    """Return the tools that a page offers: search with a search box, click with the page's actions.

    Their arguments become an action as the shop takes it.
    """
    offered: dict[str, dict[str, Any]] = {}
    if state["search_available"]:
        offered["search"] = {"type": "string", "minLength": 1}
    if state["actions"]:
        offered["click"] = {"type": "string", "enum": list(state["actions"])}
    return [
        Tool(name, _parameters(_ARGUMENT[name], schema), partial(_action, name)) for name, schema in offered.items()
    ]


def _parameters(argument: str, schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return the JSON schema of one argument."""
    return {
        "type": "object",
        "properties": {argument: schema},
        "required": [argument],
        "additionalProperties": False,
    }


def _action(name: str, arguments: Mapping[str, Any]) -> str:
    """Return the action that the arguments of a tool stand for."""
    argument = arguments.get(_ARGUMENT[name])
    if len(arguments) != 1 or not isinstance(argument, str) or not argument.strip():
        raise ArgumentError
    return f"{name}[{clean(argument).strip()}]"


def run_episode(agent: Agent, task: Task, hints: Hints, seed: int, on_step: Callable[[Step], None]) -> StepResult:
    """Run one episode to its end.

    Args:
        agent: model, shop and prompts.
        task: what is asked for.
        hints: what the prompt shows on a page.
        seed: seed of the episode (`episode_seed`); turn n is called with ``(seed + n - 1) mod 2**31``.
        on_step: told every turn when it is over, so that an attempt that fails keeps its turns.

    Returns:
        The shop's last answer, which has reward and ending.

    Raises:
        InfrastructureError: model or shop failed; there is no result.
        SetupError: the first prompt does not fit into the model's context.
    """
    session = agent.shop.reset(task)
    try:
        talk = Conversation()
        for number in range(1, agent.max_steps + 1):
            page = session.current
            shown = hints(task, page.state)
            talk.show(agent.prompts.system(task, shown))
            if number == 1:
                talk.add(role="user", content=agent.prompts.first(task, page.observation_text))
            on_step(_turn(agent, session, talk, number, shown, seed))
            if session.current.done:
                return session.current
        return session.end("action_limit")
    finally:
        session.close()


def _turn(agent: Agent, session: Session, talk: Conversation, number: int, shown: Iterable[Hint], seed: int) -> Step:
    """Ask the model once, carry out what it says, and add both to the conversation."""
    page = session.current
    tools = tools_of(page.state)
    if not tools:
        raise InfrastructureError(
            "the page offers nothing to do and the episode is not over",
            where=f"turn {number}, page {page.state['page_type']}",
            allowed="a page with a search box or actions",
            todo="look at the shop",
        )
    answer = call(agent.model, talk, tools, (seed + number - 1) % 2**31, agent.prompts.language)
    feedback = None
    if answer.stop is not None:
        _stop(session, answer.stop, answer.reply, number)
    elif answer.made is not None:
        after = session.step(str(answer.value))
        talk.answer(answer.made, after.observation_text)
        feedback = after.feedback
    reply = answer.reply
    return Step(
        step=number,
        page_type=page.state["page_type"],
        hint_ids=tuple(hint.id for hint in shown),
        prompt_digest=answer.digest,
        action=answer.value,
        fault=answer.fault,
        feedback=None if feedback is None else feedback["reason"],
        usage=reply.usage,
        finish_reason=reply.finish_reason,
        tries=reply.tries,
        seconds=reply.seconds,
        observation=page.observation_text,
        reasoning=reply.reasoning,
    )


def _stop(session: Session, stop: Stop, reply: Reply, number: int) -> None:
    """End the episode for a reason of the model; before the first action an overflow is a wrong set-up (M3)."""
    if stop.ending == "context_length" and number == 1:
        raise SetupError(
            f"the first prompt does not fit into the model's context beside its reply ({_told(reply)})",
            where="policy prompt",
            allowed="a context that holds prompt, hints, the first page and a reply",
            todo="serve the model with a longer context, lower policy_max_tokens (also to a cap that the server has on "
            "replies), or show fewer hints",
        )
    session.end(stop.ending)


def _told(reply: Reply) -> str:
    """Return what the server told of a reply that ended too early."""
    if reply.finish_reason is None and reply.usage is None:
        return "the server refused it"
    tokens = "tokens not told"
    if reply.usage is not None:
        tokens = f"{reply.usage.prompt_tokens} tokens of prompt, {reply.usage.completion_tokens} of reply"
    return f"{tokens}, finish_reason {reply.finish_reason!r}"
