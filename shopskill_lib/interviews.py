"""What `shopskill doctor` asks a model: a few real questions, judged for calls, counts, seeds and room in the context.

Every question is one that a run asks: the policy's first prompt, the compiler's task on a made-up mechanism.
"""

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from shopskill_lib import authoring, probes, protocol, workbench
from shopskill_lib.agent import Prompts, tools_of
from shopskill_lib.compilation import Compilation
from shopskill_lib.dialogue import Answer, Conversation, Tool, call, record_tool
from shopskill_lib.doctor import Finding
from shopskill_lib.endpoints import OTHER_NAME
from shopskill_lib.errors import InfrastructureError
from shopskill_lib.exchange import Exchange, Failed
from shopskill_lib.models import ChatModel
from shopskill_lib.pools import Pool
from shopskill_lib.records import (
    Hint,
    Language,
    ObservationState,
    Product,
    Task,
    Treatment,
    canonical,
    make_treatment,
    total_usage,
)
from shopskill_lib.replies import Reply, Stop
from shopskill_lib.settings import SHIPPED, Settings
from shopskill_lib.shops import pages
from shopskill_lib.shops.reward import resolve_price
from shopskill_lib.text import estimated_tokens

SEEDS = (1, 1, 2, 3)
"""Seeds of the questions: one twice, two others."""

CUT = 0.5
"""Share of the expected prompt tokens below which a server is suspected to cut prompts in silence."""

_NEEDS: dict[Language, str] = {
    "en": "I am looking for this: rain jacket. It should be: waterproof, hooded, light. The variant I want has color "
    "navy, size L. My budget is $120.",
    "zh": "我想买一件羽绒服，需要满足：防水，带帽子，轻便，规格选深绿色、L码，预算500元以内。",
}
"""A request with much to choose from for the words of a search, so that another seed shows."""

_MECHANISM: dict[Language, dict[str, Any]] = {
    "en": {
        "mechanism": "price of the chosen variant", "applicable_when": "the request names a budget",
        "procedure": ["Choose every option.", "Compare the price of the selection with the budget."],
        "verification": "the price of the selection is within the budget",
        "common_failure": "the variant turns out dearer than the budget",
    },
    "zh": {
        "mechanism": "所选规格的价格", "applicable_when": "需求里写了预算",
        "procedure": ["选好每一项规格。", "把所选规格的价格与预算比较。"],
        "verification": "所选规格的价格在预算之内", "common_failure": "所选规格比预算贵",
    },
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Question:
    """What a model is asked: system message, user message, tools."""

    system: str
    user: str
    tools: Sequence[Tool[Any]]
    language: Language

    @property
    def size(self) -> int:
        """Bytes of messages and tools."""
        return sum(map(len, self.talk.messages)) + len(canonical([tool.schema for tool in self.tools]))

    @property
    def talk(self) -> Conversation:
        """A new conversation that begins with it."""
        return Conversation.of(self.system, self.user)


def policy_question(prompts: Prompts) -> Question:
    """Return the first prompt of an episode on a made-up request."""
    home = pages.home_state()
    task = Task(
        task_id="doctor", split=None, instruction=_NEEDS[prompts.language], instruction_simple=None, persona=None,
        attributes=(), options=(), price_upper=None, gold_asin="", category="",
    )  # fmt: skip
    page = pages.render(home, prompts.language)
    return Question(prompts.system(task, ()), prompts.first(task, page), tools_of(home), prompts.language)


def author_question(settings: Settings) -> Question:
    """Return the compiler's question on one made-up mechanism."""
    facts: dict[str, Any] = {"workflow_stage": "variant", "channels": ["success"], "priority": 1}
    facts |= {"support_tasks": 3, "categories": 2, "verified_repairs": 0}
    cluster = {"cluster_id": "cluster-1", "channel": "success", "workflow_stage": "variant", "target_chunk_id": None}
    told = {"mechanism_id": "mechanism-1", **facts, "clusters": [cluster | _MECHANISM[settings.language]]}
    sections = {"skill": [], "limit": {"cap": 1}, "mechanisms": [told]}
    tool = record_tool("submit_skill", Compilation, "Submit the chunks: every mechanism in exactly one place.")
    system = authoring.load_texts(settings)["compile"]
    return Question(system, authoring.written(sections), [tool], settings.language)


@dataclass(frozen=True)
class Interview:
    """One model and what it answers to one question, asked once with each of `SEEDS`.

    Attributes:
        who: `policy` or `author`: the prefix of its parameters.
    """

    who: str
    model: ChatModel
    question: Question

    @cached_property
    def lists(self) -> list[list[dict[str, Any]] | None]:
        """What each of its servers lists of its models; None of one that offers no list.

        Raises:
            InfrastructureError: a server cannot be reached.
            SetupError: a server refuses the key.
        """
        return [self._list(server.exchange) for server in self.model.servers.all]

    def _list(self, exchange: Exchange) -> list[dict[str, Any]] | None:
        try:
            return exchange.entries()
        except Failed as failed:
            raise InfrastructureError(
                f"no server answers ({failed})",
                where=f"{self.who}_url {exchange.url}",
                allowed="a running server",
                todo=f"start it, or correct {self.who}_url",
            ) from failed

    @cached_property
    def answers(self) -> list[Answer[Any]]:
        """The answers, in the order of `SEEDS`."""
        question = self.question
        return [call(self.model, question.talk, question.tools, seed, question.language) for seed in SEEDS]

    @property
    def replies(self) -> list[Reply]:
        """The replies behind the answers."""
        return [answer.reply for answer in self.answers]

    @property
    def context(self) -> tuple[int, str] | None:
        """Tokens of the model's shortest context and the field that tells them; None where none does."""
        name = self.model.endpoint.model
        entries = [entry for entries in self.lists for entry in entries or () if entry.get("id") == name]
        return min(filter(None, map(_told, entries)), default=None)


def _told(entry: Mapping[str, Any]) -> tuple[int, str] | None:
    """Return the context that an entry of a server's list tells."""
    meta = entry.get("meta")
    told = {name: entry.get(name) for name in ("max_model_len", "context_length")}
    told["meta.n_ctx_train"] = meta.get("n_ctx_train") if isinstance(meta, dict) else None
    return next(((value, name) for name, value in told.items() if type(value) is int and value > 0), None)


def server(interview: Interview) -> Finding:
    """Tell whether every server answers and lists the model.

    Raises:
        InfrastructureError: one cannot be reached.
        SetupError: one refuses the key.
    """
    endpoint, lists = interview.model.endpoint, [entries for entries in interview.lists if entries is not None]
    found = f"{endpoint.model} at {endpoint.url}: {'every' if len(interview.lists) > 1 else 'the'} server answers"
    others = [[str(entry.get("id")) for entry in entries] for entries in lists]
    without = next((names for names in others if endpoint.model not in names), None)
    if without is not None:
        shown = ", ".join(without[:5]) + (f" and {len(without) - 5} more" if len(without) > 5 else "")
        return Finding(
            "warning",
            f"{found}, but lists {shown or 'no model'}",
            f"set {interview.who}_model to a listed name, unless the server takes this one unlisted",
        )
    return Finding(
        "ok", f"{found}; {'the model is listed' if lists else 'it lists no models, so the first call will tell'}"
    )


def tool_call(interview: Interview) -> Finding:
    """Tell whether the question is answered by one legal call.

    Raises:
        InfrastructureError: no reply.
        SetupError: the server does not know the model, or refuses the key.
    """
    answers = interview.answers
    legal = [answer for answer in answers if answer.made is not None]
    count = f"{len(legal)} of {len(answers)} answers are one legal call"
    if len(legal) == len(answers):
        return Finding("ok", f"{count} of {' or '.join(tool.name for tool in interview.question.tools)}")
    other = next(answer for answer in answers if answer.made is None)
    why = other.stop.ending if other.stop else other.fault
    words = ", words instead of a call" if other.reply.text.strip() and not other.reply.calls else ""
    found = f"{count}; the first other one is {why}{words}{f' ({other.detail})' if other.detail else ''}"
    if len(legal) >= len(answers) - 1:
        return Finding("ok", found)
    remedy = f"raise {interview.who}_max_tokens: the reply ran out of tokens" if why == "generation_length" else _PARSER
    return Finding("warning" if legal else "fails", found, remedy)


_PARSER = (
    "serve the model with its tool-call parser and chat template (vLLM: --enable-auto-tool-choice --tool-call-parser "
    "NAME; llama.cpp: --jinja), or have it call in text: policy_protocol, author_protocol"
)


def usage(interview: Interview) -> Finding:
    """Tell whether replies carry token counts and a finish_reason."""
    replies = interview.replies
    counted = total_usage(reply.usage for reply in replies)
    unfinished = sum(reply.finish_reason is None for reply in replies)
    if counted is None or unfinished:
        uncounted = sum(reply.usage is None for reply in replies)
        return Finding(
            "warning",
            f"usage is missing in {uncounted} of {len(replies)} replies, finish_reason in {unfinished}",
            "without usage no tokens, costs or budgets are known; without finish_reason a reply that ran out of tokens "
            "looks like a fault: have the server send both",
        )
    prompt, completion = counted.prompt_tokens / len(replies), counted.completion_tokens / len(replies)
    thought = sum(reply.reasoning is not None for reply in replies)
    thoughts = f"; {thought} replies with reasoning, which is kept and never sent back" if thought else "; no reasoning"
    found = f"usage and finish_reason in every reply, about {prompt:,.0f} prompt and {completion:,.0f} reply tokens"
    return Finding("ok", found + thoughts)


def seeds(interview: Interview) -> Finding:
    """Tell whether a seed repeats a reply and another seed changes it, as far as replies can tell."""
    endpoint = interview.model.endpoint
    if not endpoint.send_seed:
        return Finding("not checked", f"because {interview.who}_send_seed is false: the server draws as it likes")
    first, again, *others = map(probes.digest, interview.replies)
    if first != again:
        return Finding(
            "warning",
            "the same request with the same seed was answered in two ways: the seed is not honoured",
            "nothing is wrong with the results; but no episode can be repeated exactly",
        )
    if endpoint.temperature == 0:
        return Finding("ok", "the same request was answered alike twice; at temperature 0 a seed changes nothing")
    if set(others) == {first}:
        return Finding(
            "warning",
            f"{1 + len(others)} seeds gave one and the same reply at temperature {endpoint.temperature}: an ignored "
            "seed, a cache of replies, or a question that leaves no choice; which of them cannot be told from here",
            "switch off any cache of replies; if the seed is ignored, replicates are not independent",
        )
    return Finding("ok", "the same seed gave the same reply twice, another seed another one")


def weights(interview: Interview, folder: Path, reuse_from: Path | None) -> Finding:
    """Tell whether the fixed questions are answered as they were when a run folder was begun (see `probes.check`).

    Raises:
        SetupError: they are answered otherwise under the same name of the checkpoint.
    """
    probe = probes.check(interview.model, folder, reuse_from)
    if probe.repeatable is None:
        return Finding("not checked", "because the fixed questions were not answered")
    if not probe.repeatable:
        return Finding(
            "warning",
            "equal questions at temperature 0 are answered in different ways",
            "other weights under the name of this checkpoint would not be noticed: mind policy_checkpoint yourself",
        )
    told = (
        f"fixed questions at temperature 0 are answered alike each time; kept in {probes.FILE} for {probe.checkpoint}"
    )
    return Finding("ok", told)


@dataclass(frozen=True, slots=True)
class Longest:
    """The longest prompt that an episode may begin with, but for its skill.

    Attributes:
        prompts: the policy's texts.
        page: text and state of the longest page, in the place of the home page.
    """

    prompts: Prompts
    task: Task
    page: tuple[str, ObservationState]

    def under(self, treatment: Treatment) -> Question:
        """Return the prompt with a treatment in it."""
        text, state = self.page
        system, user = self.prompts.system(self.task, treatment.hints), self.prompts.first(self.task, text)
        return Question(system, user, tools_of(state), self.prompts.language)


def longest_page(products: Mapping[str, Product], language: Language) -> tuple[str, ObservationState]:
    """Return the longest page that a catalogue can show, about: a product's, or 20 results at once."""

    def listed(product: Product) -> int:
        return len(product.title) + sum(map(len, product.attributes[: pages.KEY_ATTRIBUTES])) + len(product.category)

    def whole(product: Product) -> int:
        return listed(product) + sum(len(axis) + len(v) for axis, values in product.options.items() for v in values)

    most = max(products.values(), key=whole)
    ranking = sorted(products.values(), key=listed, reverse=True)[: pages.PAGE_SIZE]
    states = [pages.product_state(most, {}, resolve_price(most, {})), pages.results_state("-", ranking, 1)]
    return max(((pages.render(state, language), state) for state in states), key=lambda page: len(page[0]))


def policy_room(interview: Interview, longest: Longest, settings: Settings, pool: Pool | None) -> Finding:
    """Tell whether the context holds the longest treatment of the draft, the longest page and a reply.

    Without a draft, one as long as a reply of the author is tried: no compiled draft can be longer. Where that alone
    does not fit, it is a warning.

    Raises:
        InfrastructureError: no reply.
    """
    if pool is not None:
        return _room(interview, longest, _whole(pool), f"the draft of {len(pool.slots)} chunks")
    bound = f"{settings.cap} chunks as long together as a reply of the author ({settings.author_max_tokens:,} tokens)"
    found = _room(interview, longest, _largest(settings), bound)
    if found.mark != "fails":
        return found
    usual = _room(interview, longest, _whole(_shipped(settings)), "a draft like the shipped one")
    return usual if usual.mark == "fails" else Finding("warning", f"{found.found}. But {usual.found}", found.remedy)


def _whole(pool: Pool) -> Treatment:
    """Return the longest treatment of a pool: of each slot its longest version."""
    chosen = [max(slot.versions, key=lambda version: len(pool.versions[version].shown)) for slot in pool.slots]
    return protocol.treatment("longest", pool.skill(chosen))


def _shipped(settings: Settings) -> Pool:
    """Return the draft that comes with the library."""
    return protocol.read_draft(settings.model_copy(update={"draft": SHIPPED}), Path())


def _largest(settings: Settings) -> Treatment:
    """Return as many chunks as a draft may have, of the shipped draft's words, together one reply of the author."""
    words = "\n".join(chunk.shown for chunk in _shipped(settings).versions.values())
    share = settings.author_max_tokens / settings.cap / estimated_tokens(words)
    text = (words * (int(share) + 1))[: int(share * len(words)) or 1]
    return make_treatment("largest", [Hint(id=f"chunk-{number}", text=text) for number in range(settings.cap)])


def _room(interview: Interview, longest: Longest, treatment: Treatment, basis: str) -> Finding:
    """Tell whether the context holds a treatment, the longest page and a reply, by the server's own count."""
    question, told, most = longest.under(treatment), interview.context, interview.model.endpoint.max_tokens
    reply = _first_token(interview, question)
    what = f"{basis} and a page of {len(longest.page[0]):,} characters"
    mend = "serve the model with a longer context, or show fewer or shorter chunks"
    if reply.outcome == Stop("context_length"):
        return Finding("fails", f"the context does not hold {what}", mend)
    if reply.usage is None:
        return Finding("ok", f"{what} were taken; the server counts no tokens, so what is left cannot be told")
    used = reply.usage.prompt_tokens
    expected = _expected(interview, question)
    if expected is not None and used < CUT * expected:
        return Finding(
            "fails",
            f"{what} count {used:,} prompt tokens where about {expected:,.0f} are expected: the server seems to cut "
            "long prompts in silence",
            f"{mend} (Ollama: num_ctx)",
        )
    needed = f"{what} count {used:,} prompt tokens; with {most:,} for the reply"
    if told is None:
        return Finding("ok", f"{needed} that is {used + most:,}. They were taken; how long the context is, is not told")
    if used + most > told[0]:
        return Finding("fails", f"{needed} that is more than the context of {told[0]:,} ({told[1]})", mend)
    return Finding("ok", f"{needed} that is {used + most:,} of {told[0]:,} ({told[1]})")


def _first_token(interview: Interview, question: Question) -> Reply:
    """Ask for one token of the answer, on a connection of its own."""
    endpoint = interview.model.endpoint
    renamed = {name: 1 for name in (OTHER_NAME,) if name in endpoint.extra_body}
    brief = replace(endpoint, max_tokens=1, extra_body={**endpoint.extra_body, **renamed})
    with closing(workbench.connect_to(brief)) as made:
        model = replace(made, meter=interview.model.meter, tries=interview.model.tries)
        return call(model, question.talk, question.tools, SEEDS[0], question.language).reply


def _expected(interview: Interview, question: Question) -> float | None:
    """Return the tokens of a prompt, by its length and the tokens of the short question."""
    short = interview.replies[0].usage
    return None if short is None else short.prompt_tokens * question.size / interview.question.size


def author_room(interview: Interview, settings: Settings) -> Finding:
    """Tell whether the author's context holds what `context_tokens` allows a prompt, and a reply."""
    told = interview.context
    asked = (
        f"prompts of up to {settings.context_tokens:,} tokens (context_tokens) and replies of up to "
        f"{settings.author_max_tokens:,} (author_max_tokens)"
    )
    if told is None:
        return Finding("not checked", f"because the server does not tell how long its context is; the run asks {asked}")
    if told[0] < settings.context_tokens + settings.author_max_tokens:
        return Finding(
            "fails",
            f"{asked} are more than the context of {told[0]:,} ({told[1]})",
            "lower context_tokens and author_max_tokens together, or serve the model with a longer context",
        )
    return Finding("ok", f"{asked} fit into the context of {told[0]:,} ({told[1]})")
