"""One episode: treatment, prompt and tools -> reply -> action -> observation, until the shop says it is over.

Nothing here knows whether shop and model are real; nothing of the shop but its pages reaches the model.
"""

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shopskill_lib.errors import InfrastructureError, ParameterError, SetupError
from shopskill_lib.models import Model
from shopskill_lib.records import (
    Hint,
    Language,
    ObservationState,
    Step,
    Task,
    Treatment,
    canonical,
    fingerprint,
    render_hints,
)
from shopskill_lib.replies import Fault, Reply, Stop, ToolCall, clean
from shopskill_lib.shops.protocol import Session, Shop, StepResult

AGENT_VERSION = "shopskill-agent-v1"
"""Version of the tool protocol and of how messages are laid out."""
MAX_STEPS = 30

Hints = Callable[[Task, ObservationState], Sequence[Hint]]
"""What the prompt shows for a task on a page; constant for a skill."""

_PLACEHOLDERS = {"policy": set[str](), "persona": {"persona"}, "hints": {"hints"}, "task": {"instruction", "page"}}
_PLACEHOLDER = re.compile(r"\{([a-z_]+)\}")
_ARGUMENT = {"search": "query", "click": "value"}

_REPAIR: dict[Language, str] = {
    "en": "Nothing was done. Answer with exactly one call of an available tool, its argument filled in, and no text.",
    "zh": "没有执行任何操作。请只调用一个可用工具，填好参数，不要输出其他文字。",
}


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
            parts.append(fill(self.persona.strip(), {"persona": persona}))
        if hints:
            parts.append(fill(self.hints.strip(), {"hints": render_hints(hints)}))
        return "\n\n".join(parts)

    def first(self, task: Task, page: str) -> str:
        """Return the first user message: the request and the home page."""
        return fill(self.task.strip(), {"instruction": task.visible_instruction, "page": page.strip()})


def load_prompts(language: Language, prompts_dir: str = "") -> Prompts:
    """Read the prompt texts; a file of the same name in `prompts_dir` goes before the library's own.

    Raises:
        ParameterError: a text lacks a placeholder or has an unknown one, or the folder holds a text of unknown name.
    """
    shipped = Path(__file__).with_name("prompts")
    own = Path(prompts_dir) if prompts_dir else shipped
    known = {path.name for path in shipped.glob("*.md")}
    strange = sorted(path.name for path in own.glob("*.md") if path.name not in known)
    if strange or not own.is_dir():
        raise ParameterError(
            f"{strange[0]} is no prompt of this library" if strange else "there is no such folder",
            where=f"prompts_dir {own}",
            allowed=f"a folder with any of {', '.join(sorted(known))}",
            todo="correct the name",
        )
    names = {name: f"{name}_{language}.md" for name in _PLACEHOLDERS}
    texts = {
        name: _read_prompt(name, (own if (own / file).exists() else shipped) / file) for name, file in names.items()
    }
    return Prompts(language, **texts)


def _read_prompt(name: str, path: Path) -> str:
    """Read one text and check its placeholders."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ParameterError(
            f"the prompt cannot be read ({error})", where=str(path), allowed="text in UTF-8", todo="mend the file"
        ) from error
    found = sorted(_PLACEHOLDER.findall(text))
    if found != sorted(_PLACEHOLDERS[name]):
        raise ParameterError(
            f"the placeholders are {found}",
            where=str(path),
            allowed=f"exactly {sorted(_PLACEHOLDERS[name])}, each once",
            todo="correct the prompt",
        )
    return text


def fill(template: str, values: Mapping[str, str]) -> str:
    """Put the values into their placeholders in one pass: braces inside a value stay as they are."""
    return _PLACEHOLDER.sub(lambda match: values[match[1]], template)


@dataclass(frozen=True, slots=True)
class Agent:
    """A model in a shop: all that an episode needs besides its task, hints and seed."""

    model: Model
    shop: Shop
    prompts: Prompts
    max_steps: int = MAX_STEPS
    """Turns of the model after which the episode ends, faults included."""

    @property
    def identity(self) -> dict[str, Any]:
        """Everything about the agent that a result depends on, by name."""
        return {
            "agent": AGENT_VERSION,
            "max_steps": self.max_steps,
            "model": self.model.identity.model_dump(),
            "prompts": self.prompts.sha256,
            "shop": dict(self.shop.fingerprint),
        }


class _Conversation:
    """The messages of an episode as the bytes that are sent, with their running hash."""

    def __init__(self) -> None:
        self.messages: list[bytes] = []
        self._hash = hashlib.sha256(b"[")

    def add(self, **message: Any) -> None:
        """Append a message."""
        self._append(canonical(message))

    def show(self, system: str) -> None:
        """Make this the system message; the rest stays."""
        message = canonical({"role": "system", "content": system})
        if self.messages[:1] != [message]:
            rest, self.messages, self._hash = self.messages[1:], [], hashlib.sha256(b"[")
            for known in (message, *rest):
                self._append(known)

    @property
    def digest(self) -> str:
        """SHA-256 of the messages as one JSON list."""
        whole = self._hash.copy()
        whole.update(b"]")
        return whole.hexdigest()

    def _append(self, message: bytes) -> None:
        self._hash.update(b"," + message if self.messages else message)
        self.messages.append(message)


def episode_seed(rollout_seed: int, arm: str, task_id: str, sample: int) -> int:
    """Return the seed of an episode; arms and samples draw anew (I21)."""
    return int.from_bytes(hashlib.sha256(f"{rollout_seed}:{arm}:{task_id}:{sample}".encode()).digest()[:4], "big")


def constant(treatment: Treatment) -> Hints:
    """Return the hints of a treatment that is the same for every task and page."""
    return lambda task, page: treatment.hints  # noqa: ARG005 - the signature of hints


def tools_of(state: ObservationState) -> list[dict[str, Any]]:
    """Return the tools that a page offers: search with a search box, click with the page's actions."""
    parameters: dict[str, dict[str, Any]] = {}
    if state["search_available"]:
        parameters["search"] = {"type": "string", "minLength": 1}
    if state["actions"]:
        parameters["click"] = {"type": "string", "enum": list(state["actions"])}
    return [
        {
            "type": "function",
            "function": {
                "name": name,
                "parameters": {
                    "type": "object",
                    "properties": {_ARGUMENT[name]: schema},
                    "required": [_ARGUMENT[name]],
                    "additionalProperties": False,
                },
            },
        }
        for name, schema in parameters.items()
    ]


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
        talk = _Conversation()
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


def _turn(agent: Agent, session: Session, talk: _Conversation, number: int, shown: Iterable[Hint], seed: int) -> Step:
    """Ask the model once, carry out what it says, and add both to the conversation."""
    page = session.current.state
    tools = tools_of(page)
    if not tools:
        raise InfrastructureError(
            "the page offers nothing to do and the episode is not over",
            where=f"turn {number}, page {page['page_type']}",
            allowed="a page with a search box or actions",
            todo="look at the shop",
        )
    digest = talk.digest
    reply = agent.model.reply(talk.messages, tools, (seed + number - 1) % 2**31)
    action, code = _read(reply)
    if isinstance(reply.outcome, Stop):
        _stop(session, reply.outcome, number)
    elif action is None:
        _explain(talk, reply, str(code), tools, agent.prompts.language)
    else:
        talk.add(role="assistant", content="", tool_calls=[_as_sent(reply.calls[0])])
        text = session.step(action).observation_text
        talk.add(role="tool", tool_call_id=reply.calls[0].call_id, content=text)
    feedback = session.current.feedback if action is not None else None
    return Step(
        step=number,
        page_type=page["page_type"],
        hint_ids=tuple(hint.id for hint in shown),
        prompt_digest=digest,
        action=action,
        fault=code,
        feedback=None if feedback is None else feedback["reason"],
        usage=reply.usage,
        finish_reason=reply.finish_reason,
        tries=reply.tries,
        seconds=reply.seconds,
    )


def _read(reply: Reply) -> tuple[str | None, str | None]:
    """Return the action of a reply, or the code of its fault, or neither."""
    outcome = reply.outcome
    if isinstance(outcome, Stop):
        return None, None
    if isinstance(outcome, Fault):
        return None, outcome.code
    argument = outcome.arguments.get(_ARGUMENT[outcome.name])
    if len(outcome.arguments) != 1 or not isinstance(argument, str) or not argument.strip():
        return None, "invalid_tool_arguments"
    return f"{outcome.name}[{clean(argument).strip()}]", None


def _stop(session: Session, stop: Stop, number: int) -> None:
    """End the episode for a reason of the model; before the first action an overflow is a wrong set-up (M3)."""
    if stop.ending == "context_length" and number == 1:
        raise SetupError(
            "the first prompt does not fit into the model's context",
            where="policy prompt",
            allowed="a context that holds prompt, hints and the first page",
            todo="serve the model with a longer context, or show fewer hints",
        )
    session.end(stop.ending)


def _explain(
    talk: _Conversation, reply: Reply, code: str, tools: Sequence[Mapping[str, Any]], language: Language
) -> None:
    """Answer a protocol fault: to each call that could be read, else as a user message after any text."""
    feedback = json.dumps(
        {
            "type": "tool_protocol_error",
            "code": code,
            "message": _REPAIR[language],
            "available_tools": [tool["function"]["name"] for tool in tools],
        },
        ensure_ascii=False,
    )
    if reply.calls:
        talk.add(role="assistant", content=reply.text, tool_calls=[_as_sent(call) for call in reply.calls])
        for call in reply.calls:
            talk.add(role="tool", tool_call_id=call.call_id, content=feedback)
        return
    if reply.text.strip():
        talk.add(role="assistant", content=reply.text)
    talk.add(role="user", content=feedback)


def _as_sent(call: ToolCall) -> dict[str, Any]:
    """Return a call as the history carries it."""
    return {"id": call.call_id, "type": "function", "function": {"name": call.name, "arguments": call.raw}}
