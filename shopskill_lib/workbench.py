"""The workbench of a run: its shop, its tasks, the measured model and the author model, as the settings name them."""

import math
from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from shopskill_lib.agent import Agent, load_prompts
from shopskill_lib.errors import InputError, ParameterError
from shopskill_lib.files import parse_json
from shopskill_lib.models import SIMULATED, ChatModel, Endpoint, connect
from shopskill_lib.pools import Pool
from shopskill_lib.records import Split, Task
from shopskill_lib.settings import Settings
from shopskill_lib.shops import shopsimulator
from shopskill_lib.shops.catalog import Catalogue, load_catalogue
from shopskill_lib.shops.embedded import EmbeddedShop
from shopskill_lib.shops.generator import generate_catalogue
from shopskill_lib.shops.shopsimulator import ShopSimulator
from shopskill_lib.shops.splits import load_splits, with_splits
from shopskill_lib.simulated import wire
from shopskill_lib.spending import Purse

Who = Literal["policy", "author"]
"""The measured model, or the one that analyses and compiles."""


@dataclass(frozen=True, slots=True)
class Bench:
    """Everything set up for a run: who shops where, on which tasks, and what is measured.

    Attributes:
        settings: the run's parameters.
        folder: the run folder.
        agent: model, shop and prompts.
        catalogue: products and tasks.
        pool: what a gate measures; None where nothing is.
        purse: what all models are paid from; None for one without bottom.
    """

    settings: Settings
    folder: Path
    agent: Agent
    catalogue: Catalogue
    pool: Pool | None = None
    purse: Purse | None = None

    def tasks(self, split: Split) -> list[Task]:
        """Return the tasks of a split that the run uses (see `tasks_of`)."""
        return tasks_of(self.settings, self.catalogue, split)


def paid_from(bench: Bench, purse: Purse) -> Bench:
    """Return the bench with its model, and every model connected from it, paid from a purse."""
    bench.agent.model.close()
    agent = replace(bench.agent, model=model_of(bench.settings, "policy", purse))
    return replace(bench, agent=agent, purse=purse)


def purse(settings: Settings, run_dir: Path, asked: Collection[Who], tokens: int | None, money: float | None) -> Purse:
    """Return what a run may spend, all its processes and models together (`--budget-tokens`, `--budget-usd`).

    Args:
        settings: of the run.
        run_dir: the run folder; what was spent there before counts.
        asked: the models that are asked now.
        tokens: most tokens; None for any number.
        money: most money; None for any sum.

    Raises:
        ParameterError: a budget that is none, or of money for models without prices.
        SetupError: what was spent before is not known.
    """
    for name, budget in (("--budget-tokens", tokens), ("--budget-usd", money)):
        if budget is not None and not 0 < budget < math.inf:
            raise ParameterError(
                f"the budget is {budget}", where=name, allowed="a number above 0", todo="correct it or leave it out"
            )
    priceless = [who for who in sorted(asked) if not endpoint(settings, who).priced]
    if money is not None and priceless:
        raise ParameterError(
            f"nothing is known of what {' and '.join(priceless)} cost",
            where="--budget-usd",
            allowed="prices of a million tokens above 0 for every model that is asked",
            todo="set " + ", ".join(f"{who}_price_in and {who}_price_out" for who in priceless),
        )
    return Purse(run_dir, tokens, money)


def set_up(settings: Settings, folder: Path) -> Bench:
    """Open the shop and connect the measured model; nothing is asked of it yet.

    Raises:
        InputError: catalogue or splits cannot be used; splits overlap (M2).
        ParameterError: a parameter that fits nothing.
    """
    refuse_unused(settings)
    return bench_in(open_shop(settings, open_catalogue(settings), folder), settings, folder)


def bench_in(shop: EmbeddedShop | ShopSimulator, settings: Settings, folder: Path) -> Bench:
    """Return the workbench in an open shop, the measured model connected; nothing is asked of it yet.

    Raises:
        ParameterError: a prompt or an endpoint that cannot be used.
        SetupError: the key of the model is not set.
    """
    prompts = load_prompts(settings.language, settings.prompts_dir)
    agent = Agent(model_of(settings, "policy"), shop, prompts, settings.max_steps, settings.episode_timeout)
    return Bench(settings, folder, agent, shop.catalogue)


def endpoint(settings: Settings, who: Who) -> Endpoint:
    """Return the measured model or the author model as the settings name it."""
    given = settings.model_dump()
    unnamed = Settings.model_fields[f"{who}_checkpoint"].default
    if given[f"{who}_checkpoint"] == unnamed and not given[f"{who}_model"].startswith(SIMULATED):
        raise ParameterError(
            f"{who}_checkpoint is {unnamed!r}, which no model but the simulated one is",
            where=f"parameter {who}_checkpoint",
            allowed="an identifier of the weights behind the endpoint; whatever is measured or reused goes by it",
            todo=f"name the weights, as {given[f'{who}_model']}@2026-11-30",
        )
    return Endpoint(
        url=given[f"{who}_url"],
        model=given[f"{who}_model"],
        checkpoint=given[f"{who}_checkpoint"],
        key_variable=given[f"{who}_key_env"],
        temperature=given[f"{who}_temperature"],
        max_tokens=given[f"{who}_max_tokens"],
        send_seed=given[f"{who}_send_seed"],
        tool_choice=given[f"{who}_tool_choice"],
        protocol=given[f"{who}_protocol"],
        extra_body=_fields(given[f"{who}_extra_body"], f"{who}_extra_body"),
        stream=given[f"{who}_stream"],
        timeout=given[f"{who}_timeout"],
        price_in=given[f"{who}_price_in"],
        price_out=given[f"{who}_price_out"],
    )


def _fields(text: str, name: str) -> dict[str, Any]:
    """Read the JSON object of a parameter; {} for "".

    Raises:
        ParameterError: it is none.
    """
    try:
        fields = parse_json(text or "{}", f"parameter {name}")
    except InputError as error:
        raise _no_object(name, error.found) from error
    if not isinstance(fields, dict):
        raise _no_object(name, f"{name} is {text!r}")
    return fields


def _no_object(name: str, found: str) -> ParameterError:
    return ParameterError(
        found,
        where=f"parameter {name}",
        allowed='a JSON object as text, as \'{"top_k": 20}\', or ""',
        todo="correct the value",
    )


def model_of(settings: Settings, who: Who, purse: Purse | None = None) -> ChatModel:
    """Connect the measured model or the author model, for as many requests at once as the settings want."""
    at_once: int = getattr(settings, f"{who}_concurrency")
    return replace(connect_to(endpoint(settings, who), at_once), purse=purse)


def connect_to(named: Endpoint, connections: int = 64) -> ChatModel:
    """Return the model behind an endpoint, the simulated ones on their transport.

    Raises:
        ParameterError: a simulated model is to stream, or to call by text.
    """
    if named.url == SIMULATED and (named.stream or named.protocol != "tools"):
        raise ParameterError(
            f"the simulated {named.model} has stream {named.stream}, protocol {named.protocol!r}",
            where=f"model {named.model}",
            allowed="stream False and protocol 'tools' for models that ship",
            todo="leave both at their defaults, or name a server",
        )
    transport = wire.transport() if named.url == SIMULATED else None
    return connect(named, transport=transport, connections=connections)


def refuse_unused(settings: Settings) -> None:
    """Refuse settings that would be passed over in silence.

    Raises:
        ParameterError: names the parameter.
    """
    problems = (
        (bool(settings.splits) and not settings.catalogue, "splits", "splits with the catalogue they belong to"),
        (bool(settings.allow_overlap) and not settings.splits, "allow_overlap", "allow_overlap with splits"),
        (
            bool(settings.reuse_from) and not (Path(settings.reuse_from) / "episodes").is_dir(),
            "reuse_from",
            "a run folder with episodes",
        ),
    )
    for wrong, name, allowed in problems:
        if wrong:
            raise ParameterError(
                f"{name} is {getattr(settings, name)!r}, which nothing can use here",
                where=f"parameter {name}",
                allowed=allowed,
                todo="correct it or leave it out",
            )


def open_shop(settings: Settings, catalogue: Catalogue, folder: Path) -> EmbeddedShop | ShopSimulator:
    """Open the embedded shop, or the server that the settings name with this local copy of what it sells.

    Raises:
        SetupError: nothing answers that is a ShopSimulator, or it sells something else (see `shopsimulator.connect`).
        ParameterError: a server that sells a catalogue of its own, and no copy of it.
    """
    if not settings.shop_url:
        return EmbeddedShop(catalogue, folder.resolve().parent / ".search-index", action_limit=settings.max_steps)
    threads = max(settings.policy_concurrency, settings.author_concurrency)
    shop = shopsimulator.connect(settings.shop_url, catalogue, folder, timeout=settings.shop_timeout, threads=threads)
    if not settings.catalogue and shop.server.announced is None:
        raise ParameterError(
            f"the server at {settings.shop_url} sells a catalogue of its own",
            where="parameter catalogue",
            allowed="the product file that the server was started with, and its splits",
            todo="give catalogue and splits; a generated catalogue is sold by `shopskill_lib.shops.serve` alone",
        )
    return shop


def open_catalogue(settings: Settings) -> Catalogue:
    """Return the generated catalogue, or a real one with its split file.

    Raises:
        InputError: catalogue or splits cannot be used; splits overlap (M2).
        ParameterError: a catalogue without splits.
    """
    if not settings.catalogue:
        return generate_catalogue(settings.catalogue_seed, settings.language, products=settings.n_products)
    if not settings.splits:
        raise ParameterError(
            "a catalogue is given without splits",
            where="splits",
            allowed="a JSON file {splits: {val: {task_ids: [...]}, test: {task_ids: [...]}}}",
            todo="write one: which tasks validate and which test is yours to say (M2)",
        )
    read = load_catalogue(Path(settings.catalogue), language=settings.language)
    return with_splits(read, load_splits(Path(settings.splits), read), allow_overlap=settings.allow_overlap)


def tasks_of(settings: Settings, catalogue: Catalogue, split: Split) -> list[Task]:
    """Return the first n_<split> tasks of a split: a smaller run is the start of a larger one.

    Raises:
        ParameterError: the catalogue has fewer.
    """
    count: int = getattr(settings, f"n_{split}")
    found = [task for task in catalogue.tasks.values() if task.split == split]
    if len(found) < count:
        raise ParameterError(
            f"{count} {split} tasks are asked for, the catalogue has {len(found)}",
            where=f"n_{split}",
            allowed=f"1 to {len(found)}",
            todo="ask for fewer, or use a larger catalogue",
        )
    chosen = found[:count]
    return chosen if settings.persona else [task.model_copy(update={"persona": None}) for task in chosen]
