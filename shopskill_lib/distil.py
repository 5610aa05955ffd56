"""Trajectories -> cards in a folder: of this run's training episodes, or of recordings made elsewhere (M6-M10)."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal, get_args

from shopskill_lib import leaks, protocol, rollouts
from shopskill_lib.cards import Card
from shopskill_lib.desk import AUDIT, CARDS, PLAN, Analyses, Desk, Stage, read_analyses
from shopskill_lib.errors import InputError, ParameterError
from shopskill_lib.files import read_json
from shopskill_lib.firewall import Instance, Screen, instance_of
from shopskill_lib.records import Ending, Product, Task
from shopskill_lib.rollouts import Planned
from shopskill_lib.rolloutset import RolloutSet
from shopskill_lib.settings import Settings
from shopskill_lib.shops.embedded import parse_action
from shopskill_lib.skills import Skill, read_skill
from shopskill_lib.trajectories import LEAVE, Trajectory, instance_of_recording, of_episode
from shopskill_lib.workbench import Bench

UNRECORDED = "outcome not recorded; taken as successful demonstrations"

RECORDED = (
    *("language", "seed_skill", "max_cards", "context_tokens", "rollout_seed", "prompts_dir"),
    *(name for name in Settings.model_fields if name.startswith("author_")),
)
"""Settings that recordings are analysed by."""


def seed_skill(bench: Bench) -> Skill:
    """Return the skill that the cold start begins with; without chunks when none is given."""
    given = bench.settings.seed_skill
    return read_skill(Path(given)) if given else Skill(title="", chunks=())


def train_pairs(bench: Bench, skill: Skill) -> tuple[list[tuple[Trajectory, Task]], RolloutSet]:
    """Roll the training tasks out, bare or with the seed skill in the prompt; return what was scored, with its tasks.

    Raises:
        Interrupted, SetupError, OutputError: see `rollouts.run`.
    """
    plan = plan_train(bench, skill)
    leaks.refuse(bench, {chunk.chunk_id: chunk for chunk in skill.chunks}, "train")
    rolled = protocol.roll_out(bench, plan, "cards")["train"]
    return _paired(plan, rolled), rolled


def load_train_pairs(bench: Bench, skill: Skill) -> list[tuple[Trajectory, Task]]:
    """Return what `train_pairs` found when the folder's cards were made; nothing is run.

    Raises:
        InputError: training episodes are owed, or other trajectories were analysed than these.
    """
    plan = plan_train(bench, skill)
    rolled = rollouts.load(plan, bench.agent, bench.folder, rollout_seed=bench.settings.rollout_seed)["train"]
    pairs = _paired(plan, rolled)
    analysed = set(read_json(bench.folder / PLAN)["identities"])
    strange = analysed ^ {trajectory.trajectory_id for trajectory, _ in pairs}
    if rolled.owed or strange:
        raise InputError(
            f"the cards are not those of these {len(plan)} training tasks: {len(rolled.owed)} episodes are owed, "
            f"{len(strange)} trajectories are only here or only among the cards",
            where=str(bench.folder / CARDS),
            allowed="the parameters that 01_cards had (n_train, seed_skill, policy, shop)",
            todo="run 01_cards again with these parameters",
        )
    return pairs


def _paired(plan: Sequence[Planned], rolled: RolloutSet) -> list[tuple[Trajectory, Task]]:
    """Return the scored episodes as trajectories, each with its task; of unscored ones the purchases."""
    planned = {one.task.task_id: one for one in plan}
    ended = [episode for episode in rolled.finished if episode.status == "scored" or episode.ending == "purchase"]
    chosen = [(episode, planned[episode.task_id]) for episode in ended]
    return [(of_episode(episode, one.task, one.treatment.hints), one.task) for episode, one in chosen]


def plan_train(bench: Bench, skill: Skill) -> list[Planned]:
    """List the training episodes, whose pages are kept for the analysts."""
    shown = protocol.treatment("seed_skill", skill) if skill.chunks else protocol.BARE
    return [Planned("train", task, 0, shown, keep_pages=True) for task in bench.tasks("train")]


def collect(bench: Bench, skill: Skill) -> Analyses:
    """Roll the training tasks out and analyse every trajectory.

    Args:
        bench: the workbench.
        skill: the seed skill; without chunks for a cold start from nothing.

    Raises:
        Interrupted, SetupError, OutputError: see `rollouts.run` and `analyse`.
    """
    pairs, rolled = train_pairs(bench, skill)
    found = analyse(bench, pairs, skill, folder=bench.folder, stage="cold_start", arm="train")
    missing = [*found.missing, *(f"task {task_id} (no episode)" for task_id, _ in rolled.unscored)]
    return Analyses(found, missing, found.simulated)


def analyse(
    bench: Bench,
    pairs: Sequence[tuple[Trajectory, Task]],
    skill: Skill,
    *,
    folder: Path,
    stage: Literal["cold_start", "online"],
    arm: str,
) -> Analyses:
    """Analyse what the folder still owes of these trajectories, each by itself and in any order (M9).

    Args:
        bench: shop, catalogue and settings; the author model is connected here.
        pairs: trajectories with a reward, each with its task.
        skill: the current skill.
        folder: where cards, audits and calls are kept.
        stage: online knows failures only.
        arm: of the trajectories, for `calls.jsonl`.

    Raises:
        InputError: a trajectory without a reward, or with an ending that no shop of ours has.
        ParameterError: a trajectory occurs twice, or a success online.
        Interrupted: SIGTERM or Ctrl-C; the analyses in flight were finished and kept.
        SetupError: the author model does not work as it is set up; nothing more is run.
        OutputError: the folder is in use or the disk is full.
    """
    for trajectory, _ in pairs:
        _check(trajectory, stage, demonstrations=bool(bench.agent.shop.unscored))
    products = bench.catalogue.products
    cases = [(trajectory, task, _instance(trajectory, task, products)) for trajectory, task in pairs]
    return Desk(bench.settings, skill, folder, stage, arm, bench.agent.shop, bench.purse).analyse(cases)


def analyse_recordings(trajectories: Sequence[Trajectory], settings: Settings, skill: Skill, folder: Path) -> Analyses:
    """Return success cards of trajectories recorded elsewhere: no shop is asked, and gold is not known.

    Raises:
        Interrupted, SetupError, OutputError: see `analyse`.
    """
    cases = [(trajectory, None, instance_of_recording(trajectory)) for trajectory in trajectories]
    return Desk(settings, skill, folder, "recorded", "recorded", None, None).analyse(cases)


def report_recordings(trajectories: Sequence[Trajectory], settings: Settings, folder: Path) -> str:
    """Make success cards of recordings, and return them as a table that says what they rest on.

    Args:
        trajectories: all with a reward, or all without; failures and those without a purchase are left out.
        settings: those of `RECORDED` are read.
        folder: where cards, audits and calls are kept.

    Raises:
        InputError: there is no success among them.
    """
    chosen = [item for item in trajectories if item.success is not False and item.ending != LEAVE]
    if not chosen:
        raise InputError(
            f"none of {len(trajectories)} trajectories is a success",
            where="recordings",
            allowed="a reward of 1, or a purchase where no reward is recorded",
            todo="failures are analysed in a shop only: see 01_cards",
        )
    skill = read_skill(Path(settings.seed_skill)) if settings.seed_skill else Skill(title="", chunks=())
    found = analyse_recordings(chosen, settings, skill, folder)
    table = found.to_frame()[["trajectory", "card", "stage", "mechanism", "reason", "simulated"]]
    lines = [table.astype(object).fillna("-").to_string(index=False), found.summary()]
    if chosen[0].reward is None:
        lines.append(UNRECORDED)
    left_out = len(trajectories) - len(chosen)
    if left_out:
        lines.append(f"{left_out} trajectories left out: no success, and failures need a shop")
    return "\n".join([*lines, f"cards: {folder / CARDS}; audit (privileged): {folder / AUDIT}"])


def read_cards(folder: Path) -> list[Card]:
    """Return the cards of the folder's latest analyses, by id.

    Raises:
        InputError: a file is damaged.
    """
    wanted = None
    if (folder / PLAN).exists():
        wanted = set(read_json(folder / PLAN)["identities"].values())
    known = read_analyses(folder)
    cards = [card for name, analysis in known.items() if wanted is None or name in wanted for card in analysis.cards]
    return sorted(cards, key=lambda card: card.card_id)


def screen_of(pairs: Sequence[tuple[Trajectory, Task]], products: Mapping[str, Product]) -> Screen:
    """Return the firewall of what is made of these trajectories: the facts of each one's task by trajectory id."""
    return Screen({trajectory.trajectory_id: _instance(trajectory, task, products) for trajectory, task in pairs})


def _check(trajectory: Trajectory, stage: Stage, *, demonstrations: bool) -> None:
    """Refuse what cannot be analysed; `demonstrations` need no reward."""
    where = f"trajectory {trajectory.trajectory_id}"
    if (trajectory.success is None and not demonstrations) or trajectory.ending not in get_args(Ending):
        raise InputError(
            "it has no reward" if trajectory.success is None else f"its ending is {trajectory.ending!r}",
            where=where,
            allowed=f"a reward and one of the endings {', '.join(get_args(Ending))}",
            todo="roll the task out again, or use `shopskill cards` for recordings",
        )
    if stage == "online" and trajectory.success:
        raise ParameterError(
            "it succeeded",
            where=where,
            allowed="failures: there is no success analyst online (M27)",
            todo="hand over failed retries only",
        )


def _instance(trajectory: Trajectory, task: Task, products: Mapping[str, Product]) -> Instance:
    """Return the facts of a trajectory's task: gold, bought and opened products."""
    opened = [parse_action(turn.action)[1].strip() for turn in trajectory.turns if turn.action is not None]
    bought = [] if trajectory.purchase is None else [trajectory.purchase.asin]
    ids = dict.fromkeys([task.gold_asin, *bought, *opened])
    return instance_of(task, [products[name] for name in ids if name in products], [trajectory.trajectory_id])
