"""The checks of `shopskill doctor`, in order: parameters, disk, splits, shop, both models, headroom, forecast.

A check that rests on a failed one is not made and says so; every other goes on. What the checks buy is the run's own
bare episodes, found again by the run, and a few model calls beside them.
"""

import argparse
import itertools
import shutil
import statistics
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Literal, NamedTuple

from scipy import stats

from shopskill_lib import analysts, authoring, distil, doctor, interviews, online, protocol, stages, workbench
from shopskill_lib.agent import Agent, Prompts, load_prompts
from shopskill_lib.console import respond, say
from shopskill_lib.doctor import Finding
from shopskill_lib.errors import (
    InfrastructureError,
    InputError,
    Interrupted,
    OutputError,
    ParameterError,
    ShopskillError,
)
from shopskill_lib.interviews import Interview, Longest, Question, author_question, longest_page, policy_question
from shopskill_lib.models import CallCost
from shopskill_lib.parameters import PATHS, Order, read_order
from shopskill_lib.pools import Pool
from shopskill_lib.records import Episode, Product, Split, Task, Usage, total_usage
from shopskill_lib.settings import SHIPPED, Settings
from shopskill_lib.shops import pages
from shopskill_lib.shops.catalog import Catalogue
from shopskill_lib.shops.embedded import EmbeddedShop
from shopskill_lib.shops.protocol import Session, StepResult
from shopskill_lib.shops.reward import same_value
from shopskill_lib.shops.splits import check_disjoint
from shopskill_lib.skills import read_skill
from shopskill_lib.text import key
from shopskill_lib.workbench import Bench

Who = Literal["policy", "author"]

TURN_BYTES, PAGE_BYTES, ANALYSIS_BYTES, REST_BYTES = 1_000, 4_000, 20_000, 20_000_000
"""On disk: a turn with its line in calls.jsonl, a kept page, an analysis, notebooks and figures with everything else.

Generous: the default run has about 800, 1,600 and 8,000 bytes, and 12 MB of the rest.
"""

LOW, HIGH = 0.15, 0.85
"""Bare success between which a skill has room to help and to harm."""

_READERS: dict[Split, tuple[str, ...]] = {
    "train": ("01_cards", "02_compile", "05_online"),
    "val": ("03_gate_a", "05_online"),
    "test": ("04_gate_b",),
}
"""Notebooks that need the tasks of a split."""

UNLIKE, RARE = 0.1, 0.01
"""Splits are unlike where shares differ by more than the first and an exact test gives less than the second."""


@dataclass
class Case:
    """A set-up under examination: what a check opens stays open for those after it.

    Attributes:
        options: the command's.
        costs: of the calls that checks made, those of the sample's episodes apart.
        opened: the models, closed at the end.
        sampled: the bare episodes of the sample, once they have been run.
    """

    options: argparse.Namespace
    costs: list[CallCost] = field(default_factory=list)
    opened: ExitStack = field(default_factory=ExitStack)
    sampled: tuple[Episode, ...] = ()

    @cached_property
    def order(self) -> Order:
        """What the run is asked for."""
        options = self.options
        return read_order(options.parameters, options.only, options.overrides, options.out)

    @cached_property
    def settings(self) -> Settings:
        """The parameters."""
        return self.order.settings

    @cached_property
    def prompts(self) -> Prompts:
        """The policy's texts."""
        return load_prompts(self.settings.language, self.settings.prompts_dir)

    @cached_property
    def catalogue(self) -> Catalogue:
        """Products and tasks, in their splits."""
        return workbench.open_catalogue(self.settings)

    @cached_property
    def shop(self) -> EmbeddedShop:
        """The shop, open."""
        return workbench.open_shop(self.settings, self.catalogue, self.order.run_dir)

    @cached_property
    def policy(self) -> Interview:
        """The measured model."""
        return self._interview("policy", policy_question(self.prompts))

    @cached_property
    def author(self) -> Interview:
        """The author model."""
        return self._interview("author", author_question(self.settings))

    @property
    def bench(self) -> Bench:
        """The workbench of the run."""
        agent = Agent(self.policy.model, self.shop, self.prompts, self.settings.max_steps)
        return Bench(self.settings, self.order.run_dir, agent, self.catalogue, self.pool)

    @cached_property
    def pool(self) -> Pool | None:
        """The draft, None where it is still to be compiled."""
        known = self.settings.draft or (self.order.run_dir / protocol.DRAFT).exists()
        return protocol.read_draft(self.settings, self.order.run_dir) if known else None

    @property
    def splits(self) -> dict[Split, list[Task]]:
        """The tasks that the run uses, by split."""
        used = [split for split, names in _READERS.items() if self.uses(*names)]
        return {split: workbench.tasks_of(self.settings, self.catalogue, split) for split in used}

    def uses(self, *names: str) -> bool:
        """Tell whether any of these notebooks is to run."""
        return any(name in self.order.chosen for name in names)

    def _interview(self, who: Who, question: Question) -> Interview:
        """Connect a model for its questions; whatever they cost is counted."""
        model = self.opened.enter_context(closing(workbench.connect_to(workbench.endpoint(self.settings, who))))
        return Interview(who, model.metered(self.costs.append), question)


def parameters(case: Case) -> Finding:
    """Tell whether every parameter can be used: names, types, files, prompts, skills."""
    order, settings = case.order, case.settings
    workbench.refuse_unused(settings)
    for name in PATHS:
        path = order.given.get(name, "")
        if path not in ("", SHIPPED) and not Path(str(path)).exists():
            raise InputError(
                f"{name} names {path}, which does not exist",
                where=f"parameter {name}",
                allowed="a file or folder, relative to where the command is typed",
                todo="correct the path",
            )
    told = [f"{len(order.given)} of {len(order.known)} parameters given, names and types as declared", "prompts load"]
    load_prompts(settings.language, settings.prompts_dir)
    analysts.load_texts(settings.language, settings.max_cards, settings.prompts_dir)
    authoring.load_texts(settings)
    workbench.endpoint(settings, "policy")
    workbench.endpoint(settings, "author")
    if case.uses("05_online"):
        online.trainer_of(settings)
    if settings.seed_skill:
        told.append(f"seed skill of {len(read_skill(Path(settings.seed_skill)).chunks)} chunks")
    if case.pool is not None:
        told.append(f"draft of {len(case.pool.versions)} factors")
    return Finding("ok", "; ".join(told))


def disk(case: Case) -> Finding:
    """Tell whether the run folder can be written and holds what the run is expected to write."""
    place = next(path for path in (case.order.run_dir, *case.order.run_dir.parents) if path.exists())
    try:
        with tempfile.TemporaryFile(dir=place) as file:
            file.write(b"doctor\n")
            file.flush()
        free = shutil.disk_usage(place).free
    except OSError as error:
        raise OutputError(
            f"the run folder {case.order.run_dir} cannot be written ({error.strerror})",
            where=str(place),
            allowed="a folder that you may write, on a disk with space",
            todo="choose another one with --out, or free some space",
        ) from error
    need = _bytes(case)
    found = (
        f"{_size(free)} free in {place}, writable; the run may write up to {_size(need)} ({case.settings.max_steps} "
        f"turns an episode, each {TURN_BYTES:,} bytes and a kept page {PAGE_BYTES:,})"
    )
    if free < 2 * need:
        return Finding("fails" if free < need else "warning", found, "free some space, or choose another disk by --out")
    return Finding("ok", found)


def _bytes(case: Case) -> int:
    """Return what the run folder may grow to; pages are kept where an analyst reads them."""
    settings, most = case.settings, {name: stages.most_episodes(case.settings)[name] for name in case.order.chosen}
    kept = (settings.n_train if case.uses("01_cards") else 0) + settings.rounds * settings.n_groups * case.uses(
        "05_online"
    )
    turns = settings.max_steps * (sum(most.values()) * TURN_BYTES + kept * PAGE_BYTES)
    return turns + kept * ANALYSIS_BYTES + REST_BYTES


def _size(count: float) -> str:
    """Return bytes in words."""
    return f"{count / 1e9:,.1f} GB" if count >= 1e9 else f"{count / 1e6:,.0f} MB"


def splits(case: Case) -> Finding:
    """Tell whether the splits are there, share nothing (M2) and are alike in what their tasks ask for."""
    found = case.splits
    allowed = {word.strip() for word in case.settings.allow_overlap.split(",")}
    check_disjoint(found, allowed)
    sizes = ", ".join(f"{split} {len(tasks):,}" for split, tasks in found.items())
    apart = " and ".join(word for word in ("task", "product", "persona") if word not in allowed)
    shares = {name: [sum(map(has, tasks)) for tasks in found.values()] for name, has in _ASKED.items()}
    counts = [len(tasks) for tasks in found.values()]
    told = "; ".join(f"{name} {_percents(having, counts)}" for name, having in shares.items())
    text = f"{sizes} tasks, no {apart} in two of them. Share of tasks with {told}"
    unlike = [name for name, having in shares.items() if _unlike(having, counts)]
    if unlike:
        return Finding(
            "warning",
            f"{text}: the splits differ in {', '.join(unlike)}",
            "draw the splits at random from one list of tasks: what helps in one split may not in another",
        )
    return Finding("ok", text)


_ASKED: dict[str, Callable[[Task], bool]] = {
    "options": lambda task: bool(task.options),
    "a price limit": lambda task: task.price_upper is not None,
    "a persona": lambda task: task.persona is not None,
}
"""What a task may have, by which splits are compared."""


def _percents(having: Sequence[int], counts: Sequence[int]) -> str:
    """Return shares as one text, in the order of the splits."""
    return "/".join(f"{100 * some / count:.0f}" for some, count in zip(having, counts, strict=True)) + " %"


def _unlike(having: Sequence[int], counts: Sequence[int]) -> bool:
    """Tell whether two shares are further apart than `UNLIKE`, and not by chance (Fisher's exact test)."""
    both = list(zip(having, counts, strict=True))
    return any(
        abs(a / n - b / m) > UNLIKE and stats.fisher_exact([[a, n - a], [b, m - b]]).pvalue < RARE
        for (a, n), (b, m) in itertools.combinations(both, 2)
    )


def shop(case: Case) -> Finding:
    """Tell what shop it is, and whether it has room for the policy's episodes."""
    opened = case.shop
    known = f"{len(case.catalogue.products):,} products, {len(case.catalogue.tasks):,} tasks"
    return Finding("ok", f"embedded, {known}, {opened.fingerprint['reward.version']}; any number of episodes at once")


def shop_episode(case: Case) -> Finding:
    """Tell whether an episode reaches a reward: a script that knows gold buys it. No model sees any of this."""
    task = next(iter(case.splits.values()))[0]
    gold = case.catalogue.products[task.gold_asin]
    with closing(case.shop.reset(task)) as session:
        end = _buy(session, task, gold)
    if end.reward is None or end.reward_detail is None:
        raise InfrastructureError(
            "the episode ended without a reward",
            where=f"scripted episode on task {task.task_id}",
            allowed="a shop that scores every ended episode",
            todo="look at the shop's log",
        )
    bought = "nothing" if end.purchase is None else "gold" if end.purchase.asin == gold.asin else "another product"
    found = f"a scripted episode on {task.split} task {task.task_id} bought {bought} and earned {end.reward:.2f}"
    if bought != "gold" or end.reward < 1:
        parts = ", ".join(f"{name} {getattr(end.reward_detail, name):g}" for name in _PARTS)
        return Finding(
            "warning",
            f"{found} ({parts})",
            "see whether products, tasks and reward belong together: no policy can do better than this script",
        )
    return Finding("ok", found)


_PARTS = ("r_type", "r_att", "r_option", "r_price")


def _buy(session: Session, task: Task, gold: Product) -> StepResult:
    """Search for gold, open it, choose what the task requires and else what is cheapest, and buy."""
    session.step(f"search[{gold.title}]")
    labels = [product["asin"] for product in session.current.state.get("products", [])]
    if not labels:
        return session.end("action_limit")
    session.step(f"click[{gold.asin if gold.asin in labels else labels[0]}]")
    while not session.current.done:
        state = session.current.state
        missing = state.get("missing_option_axes", [])
        wanted = (
            _choice(missing[0], state["available_options"][missing[0]], task, gold) if missing else {key(pages.BUY)}
        )
        label = next((label for label in state["actions"] if key(label) in wanted), None)
        if label is None:
            return session.end("action_limit")
        session.step(f"click[{label}]")
    return session.current


def _choice(axis: str, values: Sequence[str], task: Task, gold: Product) -> set[str]:
    """Return what may be clicked to choose a value of an axis: the required one, else the cheapest of gold."""
    required = [option.value for option in task.options if option.axis is None or key(option.axis) == key(axis)]
    prices = gold.options.get(axis, {})
    cheapest = sorted(values, key=lambda value: prices.get(value) or 0.0)
    value = next((value for value in values if any(same_value(one, value) for one in required)), cheapest[0])
    return {key(pages.option_label(axis, value)), key(value)}


def policy_context(case: Case) -> Finding:
    """Tell whether the policy's context holds the longest skill and the longest page."""
    tasks = [task for tasks in case.splits.values() for task in tasks]
    task = max(tasks, key=lambda task: len(task.visible_instruction) + len(str(task.persona or "")))
    page = longest_page(case.catalogue.products, case.settings.language)
    return interviews.policy_room(case.policy, Longest(case.prompts, task, page), case.settings, case.pool)


def headroom(case: Case) -> Finding:
    """Run the sample's bare episodes, which the run finds again, and tell whether there is room to help and to harm."""
    plan = protocol.plan_bare(case.bench, "val")[: case.options.sample]
    arm = protocol.roll_out(case.bench, plan, "doctor")["bare"]
    case.sampled = arm.scored
    if not arm.scored:
        errors = [episode.error.message for episode in arm.episodes.values() if episode.error]
        return Finding("fails", f"none of {len(plan)} bare episodes was scored: {errors[0]}", "mend that and repeat")
    won = sum(episode.reward_detail.r_success for episode in arm.scored if episode.reward_detail)
    count = len(arm.scored)
    low, high = stats.binomtest(won, count).proportion_ci(method="wilson")
    found = (
        f"{'simulated: ' * arm.simulated}{won} of {count} bare validation episodes succeed ({won / count:.0%}, 95 % "
        f"interval {low:.0%} to {high:.0%}), mean reward {arm.mean_reward:.2f}; {_endings(arm.scored)}"
    )
    if arm.unscored:
        return Finding(
            "warning", f"{found}; {len(arm.unscored)} could not be scored", "look at the errors in episodes/bare.jsonl"
        )
    if LOW <= won / count <= HIGH:
        return Finding("ok", found)
    what = "easier tasks, a stronger checkpoint or more max_steps" if won / count < LOW else "harder tasks"
    unsure = "" if high < LOW or low > HIGH else "; first a larger --sample: the interval reaches into the usual range"
    return Finding("warning", found, f"outside {LOW:.0%} to {HIGH:.0%} few pairs can differ: take {what}{unsure}")


def _endings(episodes: Sequence[Episode]) -> str:
    """Return how episodes ended, and their faults."""
    endings = Counter(str(episode.ending) for episode in episodes)
    faults = sum(episode.protocol_faults for episode in episodes)
    turns = sum(len(episode.steps) for episode in episodes)
    told = ", ".join(f"{count} by {name}" for name, count in sorted(endings.items()))
    return f"ended {told}; {faults} protocol faults in {turns} turns"


def forecast(case: Case) -> Finding:
    """Tell what the whole run will take, at the pace and the price of the sample's episodes."""
    episodes, at_once, owed = case.sampled, case.settings.policy_concurrency, _owed(case)
    total = sum(owed.values())
    seconds = statistics.mean((episode.ended_at - episode.started_at).total_seconds() for episode in episodes)
    rate = at_once * 3600 / max(seconds, 0.001)
    told = (
        f"{total:,} episodes at most ({', '.join(f'{name} {count:,}' for name, count in owed.items())}); "
        f"{seconds:.1f} s each, {rate:,.0f} an hour with {at_once} at once: {total / rate:,.1f} hours"
    )
    basis = f"from {len(episodes)} bare episodes; a skill makes prompts longer, the author's calls come on top"
    usage = total_usage(episode.usage for episode in episodes)
    if usage is None:
        return Finding("warning", f"{told}; tokens and cost unknown ({basis})", "have the server send usage")
    prompt, completion = (
        round(tokens * total / len(episodes)) for tokens in (usage.prompt_tokens, usage.completion_tokens)
    )
    price = case.policy.model.endpoint.price(Usage(prompt_tokens=prompt, completion_tokens=completion))
    cost = "cost unknown (no policy_price_in and policy_price_out)" if price is None else f"cost {price:,.2f}"
    return Finding("ok", f"{told}; {prompt:,} prompt and {completion:,} completion tokens, {cost} ({basis})")


def _owed(case: Case) -> dict[str, int]:
    """Return the episodes that each notebook still asks for at most; what is there already is known of 01 and 03."""
    bench, chosen = case.bench, case.order.chosen
    most = {name: count for name, count in stages.most_episodes(case.settings).items() if name in chosen and count}
    plans = {}
    if "01_cards" in chosen:
        plans["01_cards"] = distil.plan_train(bench, distil.seed_skill(bench))
    if "03_gate_a" in chosen:
        plans["03_gate_a"] = protocol.plan_bare(bench, "val") if bench.pool is None else protocol.plan_gate_a(bench)
    return most | {name: most[name] - protocol.foresee(bench, plan).kept for name, plan in plans.items()}


class Check(NamedTuple):
    """One line of the page.

    Attributes:
        name: of the line.
        needs: checks without which this one cannot be made.
        make: the check.
    """

    name: str
    needs: tuple[str, ...]
    make: Callable[[Case], Finding]


CHECKS = (
    Check("parameters", (), parameters),
    Check("disk", ("parameters",), disk),
    Check("splits", ("parameters",), splits),
    Check("shop", ("splits",), shop),
    Check("shop episode", ("shop",), shop_episode),
    Check("policy server", ("parameters",), lambda case: interviews.server(case.policy)),
    Check("policy tool call", ("policy server",), lambda case: interviews.tool_call(case.policy)),
    Check("policy counts", ("policy tool call",), lambda case: interviews.counts(case.policy)),
    Check("policy seed", ("policy tool call",), lambda case: interviews.seeds(case.policy)),
    Check("policy context", ("policy tool call", "splits"), policy_context),
    Check("author server", ("parameters",), lambda case: interviews.server(case.author)),
    Check("author tool call", ("author server",), lambda case: interviews.tool_call(case.author)),
    Check("author counts", ("author tool call",), lambda case: interviews.counts(case.author)),
    Check("author seed", ("author tool call",), lambda case: interviews.seeds(case.author)),
    Check("author context", ("author server",), lambda case: interviews.author_room(case.author, case.settings)),
    Check("headroom", ("disk", "shop episode", "policy tool call"), headroom),
    Check("forecast", ("headroom",), forecast),
)
"""In the order they are made."""


def examine(case: Case) -> Iterator[tuple[str, Finding]]:
    """Make every check, and yield its name and what it found."""
    marks: dict[str, doctor.Mark] = {}
    for check in CHECKS:
        found = _make(check, case, marks)
        marks[check.name] = found.mark
        yield check.name, found


def _make(check: Check, case: Case, marks: Mapping[str, doctor.Mark]) -> Finding:
    """Make one check, or say why it cannot be made."""
    unasked = _unasked(check.name, case) if marks.get("parameters", "fails") != "fails" else ""
    if unasked:
        return Finding("not checked", f"because {unasked}")
    blocked = next((need for need in check.needs if marks[need] in ("fails", "not checked")), None)
    if blocked is not None:
        return Finding("not checked", f"because {blocked} {'fails' if marks[blocked] == 'fails' else 'is not checked'}")
    try:
        return check.make(case)
    except Interrupted:
        raise
    except ShopskillError as error:
        return Finding("fails", f"{error.where}: {error.found}", f"{error.todo} (allowed: {error.allowed})")


def _unasked(name: str, case: Case) -> str:
    """Return why the run has no use for what is checked; "" when it has."""
    if case.order.given.get("observations") and name != "disk":
        return "the pairs are read from a file: neither shop nor models are asked"
    if name.startswith("author") and not case.uses("01_cards", "02_compile", "05_online"):
        return "no notebook of this run asks the author"
    if name == "headroom" and case.options.sample == 0:
        return "--sample is 0: no episode was run"
    if name == "headroom" and not case.uses(*_READERS["val"]):
        return "no notebook of this run shops on validation tasks"
    return ""


def run(options: argparse.Namespace) -> str:
    """Examine a set-up.

    Raises:
        SetupError: a check failed.
    """
    if options.sample < 0:
        raise ParameterError(
            f"--sample is {options.sample}", where="--sample", allowed="0 or more", todo="give a number of episodes"
        )
    case = Case(options)
    failed = []
    with case.opened:
        for name, found in examine(case):
            say(found.line(name))
            failed += [name] if found.mark == "fails" else []
    if failed:
        raise doctor.failure(options.parameters, failed)
    tokens = sum(cost.usage.prompt_tokens + cost.usage.completion_tokens for cost in case.costs if cost.usage)
    return f"no check failed; beside the sample's episodes they took {len(case.costs)} model calls, {tokens:,} tokens"


if __name__ == "__main__":
    made = doctor.parser()
    made.set_defaults(command=run)
    sys.exit(respond(made))
