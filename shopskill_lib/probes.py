"""What a model's server tells of itself, and how it answers a few fixed questions: recorded before anything is bought.

At temperature 0 equal weights answer alike, so the answers show other weights under the name of earlier ones (M18), as
far as a server repeats itself at all.
"""

import re
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from pydantic import TypeAdapter

from shopskill_lib.agent import tools_of
from shopskill_lib.dialogue import Conversation, call
from shopskill_lib.errors import InfrastructureError, SetupError
from shopskill_lib.files import read_record, write_json
from shopskill_lib.jsonl import append_lines
from shopskill_lib.models import CallCost, Model
from shopskill_lib.records import Language, ObservationState, Record, fingerprint
from shopskill_lib.replies import Reply, ToolCall
from shopskill_lib.spending import CALLS, PROBE

FILE = "probes.json"
"""Probes of a run folder: a list, one a model and checkpoint."""

SEEDS = (1, 2, 3, 4)
"""Seeds that are tried until a reply differs from the first one's."""

_CALL_AS_TEXT = re.compile(r'\{.*"(name|tool|function|arguments|query|value)"\s*:', re.DOTALL)


class Question(NamedTuple):
    """A fixed turn of a shopper."""

    language: Language
    system: str
    user: str
    state: ObservationState


QUESTIONS = (
    Question(
        "en",
        "You shop for a customer. Answer with exactly one tool call and no other text.",
        "<request>\nI am looking for this: a travel mug. What matters to me: ceramic, leak-proof lid, matte finish, "
        "about 400 ml, dishwasher safe, a handle. I can pay up to $28.\n</request>\n\n"
        "Shop home\n\nYou can search here.",
        {"observation_version": "probe", "page_type": "search_home", "search_available": True, "actions": []},
    ),
    Question(
        "zh",
        "你替顾客购物。请只回复一个工具调用，不要输出其他文字。",
        "<request>\n想买一只保温杯。需要满足：陶瓷内胆、磨砂、可机洗。预算最多80元。\n</request>\n\n搜索结果\n\n商品列表：\n"
        "- 编号：100000000001；标题：磨砂陶瓷内胆保温杯 400毫升；价格：86.0\n"
        "- 编号：100000000002；标题：陶瓷内胆保温杯 可机洗；价格：79.0\n"
        "- 编号：100000000003；标题：不锈钢保温杯 磨砂 可机洗；价格：45.0\n\n可以点击：\n- back to search",
        {
            "observation_version": "probe",
            "page_type": "search_results",
            "search_available": False,
            "actions": ["back to search", "100000000001", "100000000002", "100000000003"],
        },
    ),
)


class Probe(Record):
    """What one model answered; None is what could not be told."""

    model: str
    checkpoint: str
    listed: tuple[str, ...] | None
    """Names of the models that the server lists; None where it lists none."""
    replies: tuple[tuple[str, ...], ...]
    """Digests of the different replies at temperature 0, by question: each is asked twice; empty without an answer."""
    seed_matters: bool | None
    """Whether another seed gave another reply at the run's temperature; None at temperature 0 and without seeds."""
    usage: bool | None
    """Whether every reply came with its tokens."""
    finish_reason: bool | None
    """Whether every reply came with its reason to end."""
    tool_call: bool | None
    """Whether a call was made."""
    call_as_text: bool | None
    """Whether a reply without a call seems to hold one in its text: a chat template that drops the tools."""

    @property
    def repeatable(self) -> bool | None:
        """Whether equal requests gave equal replies at temperature 0; None where nothing was answered."""
        return all(len(digests) == 1 for digests in self.replies) if all(self.replies) else None


def take(model: Model) -> Probe:
    """Ask a model the fixed questions, in eight short calls at most; what a failing server was not asked stays open.

    Raises:
        SetupError: the model does not work as it is set up.
    """
    answers: list[list[Reply]] = [[] for _ in QUESTIONS]
    warm: list[Reply] = []
    with suppress(InfrastructureError):
        for question, replies in zip(QUESTIONS, answers, strict=True):
            for _ in range(2):
                replies.append(_ask(model.at(0.0), question, 0))
        if model.endpoint.send_seed and model.endpoint.temperature > 0:
            for seed in SEEDS:
                warm.append(_ask(model, QUESTIONS[0], seed))
                if digest(warm[-1]) != digest(warm[0]):
                    break
    every = [reply for replies in answers for reply in replies]
    return Probe(
        model=model.endpoint.model,
        checkpoint=model.endpoint.checkpoint,
        listed=model.listed(),
        replies=tuple(tuple(dict.fromkeys(map(digest, replies))) for replies in answers),
        seed_matters=_varied(warm),
        usage=all(reply.usage is not None for reply in every) if every else None,
        finish_reason=all(reply.finish_reason is not None for reply in every) if every else None,
        tool_call=any(isinstance(reply.outcome, ToolCall) for reply in every) if every else None,
        call_as_text=any(map(_calls_in_words, every)) if every else None,
    )


def differs(old: Probe, new: Probe) -> str:
    """Say how a model answers otherwise than before under the same name; "" where it does not, or nobody can tell."""
    if (old.model, old.checkpoint) != (new.model, new.checkpoint):
        return ""
    both = [(set(before), set(now)) for before, now in zip(old.replies, new.replies, strict=False) if before and now]
    changed = sum(len(before) == len(now) == 1 and before != now for before, now in both)
    if not changed:
        return ""
    return f"{new.model!r} answers {changed} of {len(both)} fixed questions otherwise than before at temperature 0"


def check(model: Model, folder: Path, reuse_from: Path | None = None) -> Probe:
    """Probe a model before anything is bought of it or reused, and record the probe in the run folder.

    Args:
        model: the model.
        folder: the run folder; a probe that it has of this model and checkpoint stays.
        reuse_from: the run folder whose episodes may be reused.

    Raises:
        SetupError: the model does not work as it is set up, or twice answered otherwise than when a folder was made.
        InputError: a probe cannot be read.
    """
    probe = _taken(model, folder, "policy")
    for place in (folder, *([reuse_from] if reuse_from else [])):
        old = _of(model, read(place))
        if old is not None and differs(old, probe):
            again = differs(old, _taken(model, folder, "policy"))
            if again:
                raise SetupError(
                    again,
                    where=str(place / FILE),
                    allowed="the weights that this checkpoint named there, for nothing of others may be reused (M18)",
                    todo="give other weights a checkpoint of their own and a new run folder; if these are the same "
                    "weights on another server, remove that file and repeat the call",
                )
    _keep(probe, folder)
    return probe


def record(model: Model, folder: Path) -> None:
    """Probe an author, of whose weights nothing depends, unless the run folder has a probe of it (see `take`)."""
    if _of(model, read(folder)) is None:
        _keep(_taken(model, folder, "author"), folder)


def _taken(model: Model, folder: Path, role: str) -> Probe:
    """Take a probe, and keep what its calls cost."""
    costs: list[CallCost] = []
    try:
        return take(model.metered(costs.append))
    finally:
        append_lines(folder / CALLS, [cost.line("probe", PROBE, role) for cost in costs])


def read(folder: Path) -> tuple[Probe, ...]:
    """Return the probes of a run folder; none where there is no file.

    Raises:
        InputError: the file is damaged.
    """
    path = folder / FILE
    if not path.exists():
        return ()
    return read_record(
        path,
        TypeAdapter(tuple[Probe, ...]),
        found="the probes cannot be read",
        allowed="the file that this program wrote",
        todo="remove it: the model is probed again",
    )


def _keep(probe: Probe, folder: Path) -> None:
    """Add a probe to a folder; one that is there stays, unless nothing was answered then."""
    known = read(folder)
    same = [old for old in known if (old.model, old.checkpoint) == (probe.model, probe.checkpoint)]
    if not same or same[0].repeatable is None:
        kept = [old for old in known if old not in same]
        write_json(folder / FILE, [one.model_dump(mode="json") for one in (*kept, probe)])


def _of(model: Model, probes: Sequence[Probe]) -> Probe | None:
    """Return the probe of this model and checkpoint."""
    wanted = (model.endpoint.model, model.endpoint.checkpoint)
    return next((probe for probe in probes if (probe.model, probe.checkpoint) == wanted), None)


def _ask(model: Model, question: Question, seed: int) -> Reply:
    talk = Conversation.of(question.system, question.user)
    return call(model, talk, tools_of(question.state), seed, question.language).reply


def digest(reply: Reply) -> str:
    """Return a hash of what a reply says; ids of calls are drawn anew each time."""
    made = reply.outcome
    said = [made.name, dict(made.arguments)] if isinstance(made, ToolCall) else repr(made)
    return fingerprint([said, reply.text, reply.reasoning])


def _varied(replies: Sequence[Reply]) -> bool | None:
    """Tell whether replies under different seeds differ; None where too few were given to deny it."""
    different = len(set(map(digest, replies))) > 1
    return different if different or len(replies) == len(SEEDS) else None


def _calls_in_words(reply: Reply) -> bool:
    """Tell whether a text without a call seems to hold one."""
    return not reply.calls and _CALL_AS_TEXT.search(reply.text) is not None
