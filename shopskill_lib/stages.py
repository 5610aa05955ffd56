"""The stages of a run, one a notebook: what each will ask of the models, and the work that it rests on."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shopskill_lib import cold_start, distil, online, protocol, workbench
from shopskill_lib.rolloutset import Forecast
from shopskill_lib.settings import Settings
from shopskill_lib.workbench import Bench, Who

TURN_BYTES, PAGE_BYTES, ANALYSIS_BYTES, REST_BYTES = 1_000, 4_000, 20_000, 20_000_000
"""On disk: a turn with its line in calls.jsonl, a kept page, an analysis, notebooks and figures with everything else.

Generous: the default run has about 800, 1,600 and 8,000 bytes, and 12 MB of the rest.
"""


@dataclass(frozen=True, slots=True)
class Stage:
    """What happens before a notebook is executed, in the process of `shopskill run`.

    Attributes:
        set_up: settings and run folder -> workbench.
        foresee: what is still owed, in words.
        forecast: what that asks of the measured model, in numbers; None where it is asked nothing.
        work: buys it; takes the notebook's parameters as well, and returns a sentence where there is one to say. The
            notebook makes the same call and finds nothing owed.
        asks: the models that it asks.
    """

    set_up: Callable[[Settings, Path], Bench]
    foresee: Callable[[Bench], object]
    forecast: Callable[[Bench], Forecast | None]
    work: Callable[[Bench, Mapping[str, Any]], object]
    asks: tuple[Who, ...] = ("policy",)


def most_episodes(settings: Settings) -> dict[str, int]:
    """Return the episodes that each notebook rests on at most, those already there included."""
    return {
        "01_cards": settings.n_train,
        "02_compile": 0,
        "03_gate_a": settings.n_val * (1 + settings.masked_samples),
        "04_gate_b": 2 * settings.n_test,
        "05_online": settings.rounds * online.most_episodes(settings),
    }


def most_bytes(settings: Settings, chosen: Collection[str]) -> tuple[int, str]:
    """Return what some notebooks and their work write to the run folder at most, and what that rests on."""
    read = settings.n_train * ("01_cards" in chosen) + settings.rounds * settings.n_groups * ("05_online" in chosen)
    episodes = sum(count for name, count in most_episodes(settings).items() if name in chosen)
    turns = settings.max_steps * (episodes * TURN_BYTES + read * PAGE_BYTES)
    basis = (
        f"{episodes:,} episodes of {settings.max_steps} turns, {TURN_BYTES:,} bytes each, a kept page {PAGE_BYTES:,}"
    )
    return turns + read * ANALYSIS_BYTES + REST_BYTES, basis


def owed_episodes(bench: Bench, chosen: Collection[str]) -> dict[str, int]:
    """Return the episodes that some notebooks still ask for at most; only 01 and 03 know what is there."""
    most = {name: count for name, count in most_episodes(bench.settings).items() if name in chosen and count}
    plans = {}
    if "01_cards" in chosen:
        plans["01_cards"] = distil.plan_train(bench, distil.seed_skill(bench))
    if "03_gate_a" in chosen:
        plans["03_gate_a"] = protocol.plan_bare(bench, "val") if bench.pool is None else protocol.plan_gate_a(bench)
    return most | {name: most[name] - protocol.foresee(bench, plan).kept for name, plan in plans.items()}


def rule_of(names: Mapping[str, Any]) -> online.Rule:
    """Take the rule of the online gates among a notebook's names (`rule_of(globals())`)."""
    return online.Rule(names["budget"] or None, names["resamples"], names["analysis_seed"], names["max_missing"])


def _set_up_test(settings: Settings, folder: Path) -> Bench:
    """Set up Gate B: at the run folder's checkpoint, or at that of an online round."""
    return protocol.at_round(workbench.set_up(settings, folder), settings.skill)


def _foresee_gate_a(bench: Bench) -> Forecast:
    return protocol.foresee(bench, protocol.plan_gate_a(bench))


def _foresee_gate_b(bench: Bench) -> Forecast:
    return protocol.foresee(bench, protocol.plan_gate_b(bench))


STAGES = {
    "01_cards": Stage(
        workbench.set_up,
        cold_start.foresee,
        cold_start.forecast,
        lambda bench, _: cold_start.collect(bench).verdict(),
        ("policy", "author"),
    ),
    "02_compile": Stage(
        workbench.set_up,
        cold_start.foresee_draft,
        lambda _: None,
        lambda bench, _: cold_start.draft(bench).verdict(),
        ("author",),
    ),
    "03_gate_a": Stage(protocol.set_up, _foresee_gate_a, _foresee_gate_a, lambda bench, _: protocol.gate_a(bench)),
    "04_gate_b": Stage(_set_up_test, _foresee_gate_b, _foresee_gate_b, lambda bench, _: protocol.gate_b(bench)),
    "05_online": Stage(
        workbench.set_up,
        online.foresee,
        online.forecast,
        lambda bench, names: online.rounds(bench, rule_of(names)),
        ("policy", "author"),
    ),
}
"""Notebook -> its stage, in the order they run."""
