"""The online loop: rounds of groups, triage, candidates, training, gate and next skill (METHOD M26-M30).

A round is built in `online/.round_000.staging` and renamed when it is complete: a killed process resumes there and buys
nothing twice, a finished round is never built again, and nothing but a gate's decision changes the skill (I7, I8).
"""

from dataclasses import replace

import pandas as pd

from shopskill_lib import chronicle, cycle, ledger, protocol, rollouts, workbench
from shopskill_lib.cycle import RULE, Rule, Start, Trainer
from shopskill_lib.errors import InputError, ParameterError
from shopskill_lib.files import read_json
from shopskill_lib.models import SIMULATED
from shopskill_lib.protocol import ROUNDS
from shopskill_lib.rolloutset import Forecast
from shopskill_lib.rounds import Round, measured, name, read_round, read_rounds
from shopskill_lib.settings import Settings
from shopskill_lib.store import locked
from shopskill_lib.workbench import Bench

__all__ = [
    "RULE", "Round", "Rule", "Trainer", "forecast", "foresee", "most_episodes", "read_rounds", "rounds", "trainer_of",
]  # fmt: skip


def rounds(bench: Bench, rule: Rule = RULE, trainer: Trainer | None = None) -> tuple[Round, ...]:
    """Run the rounds that are still owed, and return all `settings.rounds` of them.

    Args:
        bench: of a run folder in which Gate A has selected a skill.
        rule: how the gates are fitted.
        trainer: who trains between groups and gate; None for the one that the settings name.

    Raises:
        InputError: Gate A has not been run, or with another draft or checkpoint.
        SetupError: no reward of the shop can be used.
        ParameterError: settings that decide a finished or begun round have changed; a trainer of another model.
        OutputError: another process is at work on the rounds.
        Interrupted: stopped on request; the same call goes on.
    """
    protocol.refuse_unscored(bench)
    train = trainer or trainer_of(bench.settings)
    found: list[Round] = []
    with locked(bench.folder / ROUNDS):
        start = _begin(bench)
        while len(found) < bench.settings.rounds:
            final = bench.folder / ROUNDS / name(start.number)
            given = cycle.given_of(bench, start, rule)
            if final.exists():
                cycle.refuse_other(final / cycle.GIVEN, given, ignored=("q",))
            else:
                cycle.Builder(bench, start, rule, train).build(given).rename(final)
            ledger.append(bench.folder / ledger.FILE, ledger.read_part(final / cycle.EVENTS))
            found.append(read_round(final))
            start = _next(start, found[-1])
    return tuple(found)


def foresee(bench: Bench) -> str:
    """Say what the rounds that are still owed ask of the measured model at most.

    Raises:
        InputError: Gate A has not been run.
    """
    settings = bench.settings
    groups, val = _episodes(settings)
    return (
        f"{_owed(bench)} of {settings.rounds} rounds owed, each {groups} group rollouts, up to {settings.n_groups} "
        f"retries and {val} validation rollouts. At most {forecast(bench)}"
    )


def forecast(bench: Bench) -> Forecast:
    """Return what the rounds that are still owed ask of the measured model at most, at the mean of the run folder.

    Raises:
        InputError: Gate A has not been run.
    """
    protocol.read_selected(bench.folder)
    return rollouts.extrapolate(_owed(bench) * most_episodes(bench.settings), bench.agent, bench.folder)


def most_episodes(settings: Settings) -> int:
    """Return the episodes of one round at most."""
    return sum(_episodes(settings)) + settings.n_groups


def _owed(bench: Bench) -> int:
    """Return how many rounds are not finished."""
    return bench.settings.rounds - len(read_rounds(bench.folder)[: bench.settings.rounds])


def _episodes(settings: Settings) -> tuple[int, int]:
    """Return the group rollouts and the validation rollouts of a round."""
    val = settings.n_val * (settings.masked_samples + (settings.trainer == "simulated"))
    return settings.n_groups * settings.group_size, val + min(settings.n_gap, settings.n_val)


def trainer_of(settings: Settings) -> Trainer:
    """Return the trainer that the settings name.

    Raises:
        ParameterError: a simulated trainer of a model that is not the simulated shopper.
    """
    if settings.trainer == "simulated" and settings.policy_url != SIMULATED:
        raise ParameterError(
            f"trainer is 'simulated', the policy is {settings.policy_model!r} at {settings.policy_url}",
            where="parameter trainer",
            allowed="simulated for the simulated shopper only, else none",
            todo="set trainer to none: groups and gate are then of the same checkpoint",
        )
    return cycle.TRAINERS[settings.trainer]


def _begin(bench: Bench) -> Start:
    """Return what round 0 begins with: the skill of Gate A and its coefficients."""
    skill = protocol.read_selected(bench.folder)
    place = bench.folder / protocol.GATE
    gate = read_json(place)
    policy = workbench.endpoint(bench.settings, "policy")
    rows = measured(gate, protocol.read_draft(bench.settings, bench.folder), None, policy.checkpoint)
    measured_at = set(pd.read_csv(bench.folder / "observations.csv", dtype=str)["checkpoint"])
    texts = {row.chunk_id: row.text_sha256 for row in rows if row.selected}
    problems = (
        (
            texts != {chunk.chunk_id: chunk.text_sha256 for chunk in skill.chunks},
            "skill.md holds other chunks or texts than Gate A selected",
        ),
        (measured_at != {policy.checkpoint}, f"Gate A measured {sorted(measured_at)}, not {policy.checkpoint!r}"),
    )
    for wrong, found in problems:
        if wrong:
            raise InputError(
                found,
                where=str(bench.folder),
                allowed="the skill and the checkpoint of Gate A, as it left them",
                todo="run 03_gate_a again, or use a new run folder",
            )
    chronicle.record_cold_start(bench)
    return Start(0, skill, tuple(rows), policy, len(gate["looks"]))


def _next(start: Start, done: Round) -> Start:
    """Return what the round after a finished one begins with."""
    report = done.report
    policy = replace(start.policy, model=report.evaluation_model, checkpoint=report.evaluation_checkpoint)
    return Start(start.number + 1, protocol.read_selected(done.folder), done.lineage, policy, report.looks)
