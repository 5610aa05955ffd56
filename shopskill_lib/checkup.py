"""The checks of `shopskill doctor`, in order: parameters, disk, splits, shop, both models, headroom, forecast.

A check that rests on a failed one is not made and says so; every other goes on. What the checks buy is the run's own
bare episodes, found again by the run, and a few model calls beside them.
"""

import argparse
import itertools
import statistics
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from scipy import stats

from shopskill_lib import analysts, authoring, doctor, interviews, online, protocol, rollouts, stages, workbench
from shopskill_lib.agent import Prompts, load_prompts
from shopskill_lib.cells import COMPONENTS
from shopskill_lib.console import respond, say
from shopskill_lib.doctor import Finding
from shopskill_lib.errors import InfrastructureError, InputError, Interrupted, ParameterError, ShopskillError
from shopskill_lib.interviews import Interview, Longest, Question, author_question, longest_page, policy_question
from shopskill_lib.models import CallCost
from shopskill_lib.parameters import PATHS, Order, read_order
from shopskill_lib.pools import Pool
from shopskill_lib.records import Episode, ObservationState, Product, Split, Task
from shopskill_lib.settings import SHIPPED, Settings
from shopskill_lib.shops import pages, shopsimulator
from shopskill_lib.shops.catalog import Catalogue
from shopskill_lib.shops.embedded import EmbeddedShop
from shopskill_lib.shops.protocol import Session, StepResult
from shopskill_lib.shops.reward import REWARD_VERSION, same_value
from shopskill_lib.shops.shopsimulator import ShopSimulator
from shopskill_lib.shops.splits import check_disjoint, shares
from shopskill_lib.skills import read_skill
from shopskill_lib.text import key
from shopskill_lib.workbench import Bench, Who

TRIES = 2
"""Requests for one answer: enough for a hiccup, too few to wait for a server that fails."""

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
        opened: shop and models, closed at the end.
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
    def shop(self) -> EmbeddedShop | ShopSimulator:
        """The shop, open."""
        opened = workbench.open_shop(self.settings, self.catalogue, self.order.run_dir)
        return self.opened.enter_context(closing(opened))

    @cached_property
    def policy(self) -> Interview:
        """The measured model."""
        return self._interview("policy", policy_question(self.prompts))

    @cached_property
    def author(self) -> Interview:
        """The author model."""
        return self._interview("author", author_question(self.settings))

    @cached_property
    def bench(self) -> Bench:
        """The workbench of the run, whose model is as patient as the run's."""
        made = workbench.bench_in(self.shop, self.settings, self.order.run_dir)
        self.opened.enter_context(closing(made.agent.model))
        return replace(made, pool=self.pool)

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

    @property
    def reuse_from(self) -> Path | None:
        """The run folder whose episodes are reused."""
        return Path(self.settings.reuse_from) if self.settings.reuse_from else None

    @property
    def at_once(self) -> int:
        """Episodes at once, as far as the shop has slots."""
        slots = self.shop.server.slots if isinstance(self.shop, ShopSimulator) else None
        return min(self.settings.policy_concurrency, slots or self.settings.policy_concurrency)

    def uses(self, *names: str) -> bool:
        """Tell whether any of these notebooks is to run."""
        return any(name in self.order.chosen for name in names)

    def _interview(self, who: Who, question: Question) -> Interview:
        """Connect a model for its questions; whatever they cost is counted."""
        model = self.opened.enter_context(closing(workbench.model_of(self.settings, who)))
        return Interview(who, replace(model, meter=self.costs.append, tries=TRIES), question)


def parameters(case: Case) -> Finding:
    """Tell whether every parameter can be used: names, types, files, prompts, skills."""
    order, settings = case.order, case.settings
    workbench.refuse_unused(settings)
    paths = {name: str(order.given.get(name, "")) for name in PATHS}
    gone = {name: path for name, path in paths.items() if path not in ("", SHIPPED) and not Path(path).exists()}
    if gone:
        raise InputError(
            "; ".join(f"{name} names {path}, which does not exist" for name, path in gone.items()),
            where=f"parameter {', '.join(gone)}",
            allowed="files and folders, relative to where the command is typed",
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
    """Tell whether the run folder can be written and has room for what the run may write at most.

    Raises:
        OutputError: nothing can be written there.
    """
    need, basis = stages.most_bytes(case.settings, case.order.chosen)
    return doctor.disk(case.order.run_dir, need, basis)


def splits(case: Case) -> Finding:
    """Tell whether the splits are there, share nothing (M2) and are alike in what their tasks ask for."""
    found = case.splits
    allowed = {word.strip() for word in case.settings.allow_overlap.split(",")}
    check_disjoint(found, allowed)
    sizes = ", ".join(f"{split} {len(tasks):,}" for split, tasks in found.items())
    apart = " or ".join(word for word in ("task", "product", "persona") if word not in allowed)
    disjoint = f", no {apart} in two of them" if len(found) > 1 else ""
    asked = shares(found)
    told = "; ".join(f"{name} {'/'.join(f'{share:.0%}' for share in having)}" for name, having in asked.items())
    text = f"{sizes} tasks{disjoint}; with {told}"
    counts = [len(tasks) for tasks in found.values()]
    unlike = [name for name, having in asked.items() if _unlike(having, counts)]
    if not unlike:
        return Finding("ok", text)
    return Finding(
        "warning",
        f"{text}: the splits differ in {', '.join(unlike)}",
        "draw the splits at random from one list of tasks: what helps in one split may not in another",
    )


def _unlike(having: Sequence[float], counts: Sequence[int]) -> bool:
    """Tell whether two shares are further apart than `UNLIKE`, and not by chance (Fisher's exact test)."""
    tables = [
        (share, [round(share * count), round((1 - share) * count)]) for share, count in zip(having, counts, strict=True)
    ]
    return any(
        abs(one - other) > UNLIKE and stats.fisher_exact([left, right]).pvalue < RARE
        for (one, left), (other, right) in itertools.combinations(tables, 2)
    )


def shop(case: Case) -> Finding:
    """Tell what shop it is, whether it answers, and whether it has slots for the run's episodes.

    Raises:
        SetupError: nothing answers that is a ShopSimulator.
    """
    settings = case.settings
    if not settings.shop_url:
        return Finding("ok", f"embedded, {REWARD_VERSION}; as many episodes at once as are asked for")
    server = shopsimulator.probe(settings.shop_url, timeout=settings.shop_timeout)
    wanted = max(settings.policy_concurrency, settings.author_concurrency)
    versions = ", ".join(server.versions.values()) or "which announces no version"
    slots = "slots are not told" if server.slots is None else f"{server.slots} slots, {server.free} free"
    found = f"ShopSimulator {server.generation}, {versions}; {slots}; reward: {server.source}"
    if server.unscored:
        mark: doctor.Mark = "fails" if case.uses("03_gate_a", "04_gate_b", "05_online") else "warning"
        return Finding(
            mark, f"{found}: {server.unscored}", "run 01_cards and 02_compile alone, or use a server that scores"
        )
    if server.note:
        return Finding("warning", f"{found}: {server.note}", "every result will say so")
    if server.free == 0:
        return Finding("warning", found, "no slot is free: wait for the server's other clients, or end them")
    if server.slots is not None and server.slots < wanted:
        return Finding("warning", f"{found}, {wanted} are wanted", "the run takes what there is; more slots are faster")
    return Finding("ok", found)


def shop_episode(case: Case) -> Finding:
    """Tell whether an episode reaches a reward: a script that knows gold buys it. No model sees any of this.

    Raises:
        InfrastructureError: the server failed, or gave no reward.
        SetupError: the server sells something else than the local copy says.
    """
    task = next(iter(case.splits.values()))[0]
    gold = case.catalogue.products[task.gold_asin]
    with closing(case.shop.reset(task)) as session:
        end = _buy(session, task, gold)
    where = f"a scripted episode on {task.split} task {task.task_id}"
    if end.reward is None or end.reward_detail is None:
        raise InfrastructureError(
            "the episode ended without a reward",
            where=where,
            allowed="a shop that scores every ended episode",
            todo=case.shop.unscored or "look at the shop's log",
        )
    bought = "nothing" if end.purchase is None else "gold" if end.purchase.asin == gold.asin else "another product"
    found = f"{where} bought {bought} and earned {end.reward:.2f}, ended by {end.reward_detail.termination_reason}"
    if bought == "gold" and end.reward == 1:
        return Finding("ok", found)
    parts = ", ".join(f"{name} {getattr(end.reward_detail, name):g}" for name in COMPONENTS)
    return Finding(
        "warning",
        f"{found} ({parts})",
        "see whether products, tasks and reward belong together, and whether max_steps leaves room for a purchase",
    )


def _buy(session: Session, task: Task, gold: Product) -> StepResult:
    """Search for gold, open it, choose what the task requires and else what is cheapest, and buy."""
    page = session.step(f"search[{gold.title}]")
    listed = [gold.asin, *(product["asin"] for product in page.state.get("products", []))]
    for labels in (listed, None, [pages.BUY]):
        for label in _choices(page.state, task, gold) if labels is None else _offered(page.state, labels)[:1]:
            page = session.step(f"click[{label}]")
            if page.done:
                return page
    return session.end("action_limit")


def _offered(state: ObservationState, labels: Sequence[str]) -> list[str]:
    """Return those of some labels that a page offers, as it writes them."""
    offered = {key(label): label for label in state["actions"]}
    return [offered[key(label)] for label in labels if key(label) in offered]


def _choices(state: ObservationState, task: Task, gold: Product) -> list[str]:
    """Return the labels of a value for every axis; where a page tells no axes, of the required values alone."""
    axes = state.get("available_options")
    if axes is None:
        return [label for label in state["actions"] if any(same_value(one.value, label) for one in task.options)]
    labels = []
    for axis, values in axes.items():
        required = [one.value for one in task.options if one.axis is None or key(one.axis) == key(axis)]
        price = gold.options.get(axis, {})
        cheapest = min(values, key=lambda value: price.get(value) or 0.0)
        value = next((value for value in values if any(same_value(one, value) for one in required)), cheapest)
        labels += _offered(state, [pages.option_label(axis, value), value])[:1]
    return labels


def policy_context(case: Case) -> Finding:
    """Tell whether the policy's context holds the longest skill and the longest page."""
    tasks = [task for tasks in case.splits.values() for task in tasks]
    task = max(tasks, key=lambda task: len(task.visible_instruction) + len(str(task.persona or "")))
    page = longest_page(case.catalogue.products, case.settings.language)
    return interviews.policy_room(case.policy, Longest(case.prompts, task, page), case.settings, case.pool)


def policy_weights(case: Case) -> Finding:
    """Tell whether the policy answers as it did when the run folder was begun, or that of `reuse_from`."""
    return interviews.weights(case.policy, case.order.run_dir, case.reuse_from)


def headroom(case: Case) -> Finding:
    """Run the sample's bare episodes, which the run finds again, and tell whether there is room to help and to harm."""
    settings, bench = case.settings, case.bench
    plan = protocol.plan_bare(bench, "val")[: case.options.sample]
    arm = rollouts.run(
        plan,
        bench.agent,
        bench.folder,
        rollout_seed=settings.rollout_seed,
        stage="doctor",
        threads=case.at_once,
        max_attempts=1,
        reuse_from=case.reuse_from,
    )["bare"]
    case.sampled = arm.scored
    if not arm.scored:
        errors = [episode.error.message for episode in arm.episodes.values() if episode.error]
        return Finding(
            "fails",
            f"none of {len(plan)} bare episodes was scored: {errors[0]}",
            "mend that; the run has attempts left at each",
        )
    won = sum(episode.reward_detail.r_success for episode in arm.scored if episode.reward_detail)
    count = len(arm.scored)
    low, high = stats.binomtest(won, count).proportion_ci(method="wilson")
    found = (
        f"{won} of {count} validation episodes succeed ({won / count:.0%}, 95 % interval {low:.0%} to {high:.0%}). "
        + " ".join(arm.summary().splitlines())
    )
    if arm.unscored:
        return Finding(
            "warning", found, "look at the errors in episodes/bare.jsonl: they were tried once, the run tries again"
        )
    if LOW <= won / count <= HIGH:
        return Finding("ok", found)
    what = "easier tasks, a stronger checkpoint or more max_steps" if won / count < LOW else "harder tasks"
    unsure = "" if high < LOW or low > HIGH else "; first a larger --sample: the interval reaches into the usual range"
    return Finding("warning", found, f"outside {LOW:.0%} to {HIGH:.0%} few pairs can differ: take {what}{unsure}")


def forecast(case: Case) -> Finding:
    """Tell what the whole run will take, at the pace and the price of the sample's episodes."""
    episodes, owed = case.sampled, stages.owed_episodes(case.bench, case.order.chosen)
    total, at_once = sum(owed.values()), case.at_once
    seconds = statistics.mean((episode.ended_at - episode.started_at).total_seconds() for episode in episodes)
    rate = at_once / max(seconds, 0.001)
    hours = timedelta(seconds=round(total / rate))
    told = (
        f"{total:,} episodes at most ({', '.join(f'{name} {count:,}' for name, count in owed.items())}); "
        f"{seconds:.1f} s each, {_about(3600 * rate)} an hour with {at_once} at once, {hours} in all"
    )
    basis = f"from {len(episodes)} bare episodes; a skill makes prompts longer, the author's calls come on top"
    whole = rollouts.extrapolate(total, case.bench.agent, case.bench.folder)
    if whole.usage is None:
        return Finding("warning", f"{told}; tokens and cost unknown ({basis})", "have the server send usage")
    cost = "unknown without policy_price_in and policy_price_out" if whole.money is None else f"{whole.money:,.2f}"
    tokens = f"{_about(whole.usage.prompt_tokens)} prompt and {_about(whole.usage.completion_tokens)} completion tokens"
    return Finding("ok", f"{told}; about {tokens}, cost {cost} ({basis})")


def _about(number: float) -> str:
    """Return a number to two digits."""
    return f"{float(f'{number:.2g}'):,.0f}"


class Check(NamedTuple):
    """One line of the page.

    Attributes:
        needs: checks without which this one cannot be made.
    """

    name: str
    needs: tuple[str, ...]
    make: Callable[[Case], Finding]


CHECKS = (
    Check("parameters", (), parameters),
    Check("disk", ("parameters",), disk),
    Check("splits", ("parameters",), splits),
    Check("shop", ("parameters",), shop),
    Check("shop episode", ("disk", "splits", "shop"), shop_episode),
    Check("policy server", ("parameters",), lambda case: interviews.server(case.policy)),
    Check("policy tool call", ("policy server",), lambda case: interviews.tool_call(case.policy)),
    Check("policy usage", ("policy tool call",), lambda case: interviews.usage(case.policy)),
    Check("policy seed", ("policy tool call",), lambda case: interviews.seeds(case.policy)),
    Check("policy weights", ("disk", "policy tool call"), policy_weights),
    Check("policy context", ("policy tool call", "splits"), policy_context),
    Check("author server", ("parameters",), lambda case: interviews.server(case.author)),
    Check("author tool call", ("author server",), lambda case: interviews.tool_call(case.author)),
    Check("author usage", ("author tool call",), lambda case: interviews.usage(case.author)),
    Check("author seed", ("author tool call",), lambda case: interviews.seeds(case.author)),
    Check("author context", ("author server",), lambda case: interviews.author_room(case.author, case.settings)),
    Check("headroom", ("shop episode", "policy weights"), headroom),
    Check("forecast", ("headroom",), forecast),
)
"""In the order they are made."""


def examine(case: Case) -> Iterator[tuple[str, Finding]]:
    """Make every check, and yield its name and what it found."""
    found: dict[str, Finding] = {}
    for check in CHECKS:
        found[check.name] = _make(check, case, found)
        yield check.name, found[check.name]


def _make(check: Check, case: Case, found: Mapping[str, Finding]) -> Finding:
    """Make one check, or say why it cannot be made."""
    known = "parameters" in found and found["parameters"].mark != "fails"
    unasked = _unasked(check.name, case) if known else ""
    if unasked:
        return Finding("not checked", f"because {unasked}")
    for need in check.needs:
        if found[need].mark == "fails":
            return Finding("not checked", f"because {need} failed")
        if found[need].mark == "not checked":
            return found[need]
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
    if name.startswith("author") and not any("author" in stages.STAGES[one].asks for one in case.order.chosen):
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
    return f"no check failed; {len(case.costs)} calls and {tokens:,} tokens beside those that calls.jsonl counts"


if __name__ == "__main__":
    made = doctor.parser()
    made.set_defaults(command=run)
    sys.exit(respond(made))
