"""What a ranking will show on tasks that the gate has not seen: sets, masks and placebo, declared and frozen.

Everything lies in `ranking/` of the run folder; the gate, its skill and its episodes stay as they are (M23).
"""

import csv
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from shopskill_lib import masks, protocol, workbench
from shopskill_lib.errors import DesignError, InputError, ParameterError
from shopskill_lib.files import read_json, read_record, read_text, write_json
from shopskill_lib.folders import folder as made
from shopskill_lib.looks import RANKING
from shopskill_lib.pools import Pool
from shopskill_lib.ranking import BARE, BOTTOM, FRESH, PLACEBO, RANDOM, TOP
from shopskill_lib.records import Hint, Record, Task, Treatment, make_treatment, render_hints
from shopskill_lib.rollouts import Planned
from shopskill_lib.settings import Settings
from shopskill_lib.shops.generator import generate_catalogue
from shopskill_lib.text import task_key
from shopskill_lib.workbench import Bench

PLAN = "plan.json"
"""In the folder of the ranking."""

MOST_SETS = 50


@dataclass(frozen=True, slots=True)
class Wish:
    """What a ranking is asked for.

    Attributes:
        n_ranking: tasks, the validation tasks that follow those of the gate.
        set_size: K; 0 for as many chunks as the gate selected.
        random_sets: Random-K sets.
        fresh_masks: masks of exactly K chunks a task.
        set_seed: of sets and masks.
        max_missing: share of the tasks that may be left out, because an episode of theirs is missing.
    """

    n_ranking: int = 200
    set_size: int = 0
    random_sets: int = 8
    fresh_masks: int = 2
    set_seed: int = 0
    max_missing: float = 0.0

    @classmethod
    def of(cls, names: Mapping[str, Any]) -> "Wish":
        """Take the wish among a notebook's names (`Wish.of(globals())`).

        Raises:
            ParameterError: a number is out of range.
        """
        wish = cls(**{name: names[name] for name in cls.__slots__})
        for name, least, most in (
            ("n_ranking", 2, None),
            ("set_size", 0, None),
            ("random_sets", 0, MOST_SETS),
            ("fresh_masks", 0, MOST_SETS),
            ("set_seed", 0, None),
            ("max_missing", 0, 1),
        ):
            value = getattr(wish, name)
            if value < least or (most is not None and value > most):
                raise ParameterError(
                    f"{name} is {value}",
                    where=f"parameter {name}",
                    allowed=f"{least} to {most}" if most is not None else f"a number from {least}",
                    todo="correct the value",
                )
        return wish


class Shown(Record):
    """What one arm shows on all tasks.

    Attributes:
        ids: versions, in canonical order; of the placebo the ids of its notes.
        predicted: sum of the gate's coefficients; None for the placebo.
        characters: of the hints as the prompt has them.
        sha256: hash of the same.
    """

    ids: tuple[str, ...]
    predicted: float | None
    characters: int
    sha256: str


class Plan(Record):
    """What is declared before the first rollout, and frozen: sets, K, seed, tasks, masks."""

    simulated: bool
    gate_sha256: str
    """Of the pairs that the frozen gate was fitted to."""
    K: int
    slots: int
    """That the gate ranks."""
    set_seed: int
    sets: dict[str, Shown]
    """Arm -> what it shows."""
    fresh: dict[str, tuple[tuple[str, ...], ...]]
    """Task -> versions of each of its masks."""
    tasks: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Frozen:
    """What a ranking needs of a frozen gate.

    Attributes:
        folder: of the gate.
        sha256: of its pairs.
        alpha: version -> coefficient; versions that were never shown are absent.
        shrunken: the same, shrunken.
        order: versions that won their slots, best first (M21, M22).
        selected: those in the skill.
        halves: total of a selected set over halves of the tasks; None where there was none.
    """

    folder: Path
    sha256: str
    alpha: dict[str, float]
    shrunken: dict[str, float]
    order: tuple[str, ...]
    selected: tuple[str, ...]
    halves: float | None

    def sum(self, versions: Iterable[str]) -> float:
        """Return the predicted gain of versions."""
        return float(sum(self.alpha[version] for version in versions))


def read_gate(folder: Path) -> Frozen:
    """Read the frozen Gate A of a run folder.

    Raises:
        InputError: there is none, or its pairs were made elsewhere.
        DesignError: all its coefficients are equal.
    """
    path = folder / protocol.GATE
    if not path.exists() or not (folder / "masks.csv").exists():
        raise InputError(
            "there is no finished gate here" if not path.exists() else "the pairs of this gate were made elsewhere",
            where=str(path),
            allowed="a run folder with a frozen Gate A that was rolled out in it",
            todo="run 03_gate_a there first",
        )
    record = read_json(path)
    factors, halves = record["factors"], record["together"]["halves"]
    ranked = sorted((item for item in factors if item["rank"] is not None), key=lambda item: int(item["rank"]))
    found = Frozen(
        folder=folder,
        sha256=record["source"]["sha256"],
        alpha={item["intervention_id"]: item["coefficient"] for item in factors if item["coefficient"] is not None},
        shrunken={item["intervention_id"]: item["shrunken"] for item in record["together"]["factors"]},
        order=tuple(item["intervention_id"] for item in ranked),
        selected=tuple(record["selected"]),
        halves=None if halves is None else halves["gain"],
    )
    values = [found.alpha[version] for version in found.order]
    if max(values) - min(values) <= 1e-12:
        raise DesignError(
            f"all {len(values)} ranked chunks have the same coefficient",
            where=str(path),
            allowed="a gate whose coefficients differ: without a ranking there is none to test",
            todo="nothing can be ranked here",
        )
    return found


def open_run(run: Path, wish: Wish) -> Bench:
    """Set up the bench of a ranking: model, shop and draft of the gate, on the validation tasks that follow its own.

    Raises:
        InputError: no gate is frozen here, or none of its episodes is what `params.json` asks for.
        DesignError: the draft is another one than the gate's, or a task has been used by it.
        ParameterError: too few tasks are left.
    """
    gate = read_gate(run)
    bench = protocol.set_up(Settings.of_run(run), run)
    protocol.freeze_texts(protocol.pool_of(bench), run / protocol.INTERVENTIONS)
    if protocol.foresee(bench, protocol.plan_gate_a(bench)).kept == 0:
        raise InputError(
            "no episode of the gate has the model, prompts, shop and tasks of params.json",
            where=str(run / "params.json"),
            allowed="the parameters that the gate was run with",
            todo="run 03_gate_a here again with them, then the ranking",
        )
    tasks = _unused(bench, wish.n_ranking)
    _refuse_overlap(tasks, run)
    names = {"n_val": len(tasks), "n_stages": 1, "reuse_from": str(run)}
    return replace(
        bench,
        settings=bench.settings.model_copy(update=names),
        folder=made(str(run / RANKING.parent)),
        catalogue=replace(bench.catalogue, tasks={task.task_id: task for task in tasks}),
        pool=_known(protocol.pool_of(bench), gate),
    )


def _known(pool: Pool, gate: Frozen) -> Pool:
    """Return the pool, unless a version has no coefficient: then nothing would predict its sets."""
    unknown = [version for version in pool.versions if version not in gate.alpha]
    if unknown:
        raise DesignError(
            f"the gate has no coefficient for {', '.join(unknown)}, which no mask showed",
            where=str(gate.folder / protocol.GATE),
            allowed="a gate that showed every version",
            todo="run a gate of more tasks first",
        )
    return pool


def _unused(bench: Bench, wanted: int) -> list[Task]:
    """Return the next validation tasks after the gate's; a generated catalogue of our own shop may write more."""
    given, catalogue = bench.settings, bench.catalogue
    written = sum(task.split == "val" for task in catalogue.tasks.values())
    if not given.catalogue and not given.shop_url:
        more = min(max(given.n_val + wanted - written, 0), given.n_products - len(catalogue.tasks))
        catalogue = generate_catalogue(given.catalogue_seed, given.language, products=given.n_products, more=more)
        written += more
    left = written - given.n_val
    if left < wanted:
        raise ParameterError(
            f"n_ranking is {wanted}, and {left if left > 0 else 'no'} validation tasks are left beyond the gate's "
            f"{given.n_val}",
            where="parameter n_ranking",
            allowed=f"2 to {left}" if left > 1 else "validation tasks that the gate has not used",
            todo="give a smaller n_ranking, or a run whose n_val leaves a part of the split to the ranking",
        )
    further = given.model_copy(update={"n_val": given.n_val + wanted})
    return workbench.tasks_of(further, catalogue, "val")[given.n_val :]


def _refuse_overlap(tasks: Sequence[Task], run: Path) -> None:
    """Refuse tasks that the gate was fitted on, as its frozen masks list them."""
    used = {task_key(row["task_id"]) for row in csv.DictReader(read_text(run / "masks.csv").splitlines())}
    shared = [task.task_id for task in tasks if task_key(task.task_id) in used]
    if shared:
        raise DesignError(
            f"{len(shared)} of {len(tasks)} tasks have been used by the gate: {', '.join(shared[:10])}",
            where=str(run / "masks.csv"),
            allowed="tasks that the gate was not fitted on",
            todo="restore n_val in params.json, which says where the gate's tasks end",
        )


def declare(bench: Bench, wish: Wish) -> Plan:
    """Draw the sets and freeze them with everything else that is planned, or check what was frozen before.

    Raises:
        ParameterError: K is out of range.
        DesignError: another plan is frozen here.
    """
    gate, pool = read_gate(bench.folder.parent), protocol.pool_of(bench)
    K = _resolve(wish.set_size, gate)
    seed, tasks = wish.set_seed, bench.tasks("val")
    sets = {TOP: gate.order[:K], BOTTOM: gate.order[-K:]}
    sets |= {f"{RANDOM}{number}": draw(seed, f"{RANDOM}{number}", pool, K) for number in range(wish.random_sets)}
    shown = {arm: _shown(_treatment(pool, arm, chosen), _canonical(pool, chosen), gate) for arm, chosen in sets.items()}
    neutral = placebo(bench, sets[TOP])
    plan = Plan(
        simulated=bench.agent.model.identity.simulated,
        gate_sha256=gate.sha256,
        K=K,
        slots=len(gate.order),
        set_seed=seed,
        sets={**shown, PLACEBO: _shown(neutral, [hint.id for hint in neutral.hints], None)},
        fresh={
            task.task_id: tuple(draw(seed, f"{task.task_id}:{sample}", pool, K) for sample in range(wish.fresh_masks))
            for task in tasks
        },
        tasks=tuple(task.task_id for task in tasks),
    )
    _freeze(plan, bench.folder / PLAN)
    return plan


def _resolve(set_size: int, gate: Frozen) -> int:
    """Return K.

    Raises:
        ParameterError: nothing or everything is selected, or K leaves no chunk out.
    """
    K, slots = set_size or len(gate.selected), len(gate.order)
    if not 0 < K < slots:
        told = "Top-K and Bottom-K would be the same set" if K else "the gate has selected nothing"
        raise ParameterError(
            f"K is {K} of {slots} ranked chunks: {told}",
            where="parameter set_size",
            allowed=f"1 to {slots - 1}, best at most {slots // 2}" if slots > 1 else "a gate that ranks several chunks",
            todo="give set_size a smaller number" if K else "give set_size a number",
        )
    return K


def draw(set_seed: int, name: str, pool: Pool, K: int) -> tuple[str, ...]:
    """Draw K slots and one version of each, all equally likely, by hash; versions in canonical order (M16, M17)."""
    slots = pool.slots
    chosen = masks.dealt(set_seed, f"ranking:{name}", [slot.slot_id for slot in slots])[:K]
    return tuple(
        slot.versions[masks.dealt(set_seed, f"ranking:{name}:version", slot.versions)[0]]
        for slot in (slots[place] for place in sorted(chosen))
    )


def placebo(bench: Bench, top: Sequence[str]) -> Treatment:
    """Return neutral text of exactly the length of Top-K's hints, note by note: no advice, in the run's language."""
    path = protocol.DRAFTS / f"placebo_{bench.settings.language}.md"
    sentences = read_text(path).split("\n")[:-1]
    between = "" if bench.settings.language == "zh" else " "
    notes = []
    for number, hint in enumerate(_treatment(protocol.pool_of(bench), TOP, top).hints):
        name, start = f"note-{number + 1}", 3 * number % len(sentences)
        passage = between.join([*sentences[start:], *sentences[:start], ""])
        length = max(len(hint.text) + len(hint.id) - len(name), 1)
        notes.append(Hint(id=name, text=(passage * (length // len(passage) + 1))[:length]))
    return make_treatment(PLACEBO, notes)


def _treatment(pool: Pool, name: str, versions: Iterable[str]) -> Treatment:
    return protocol.treatment(name, pool.skill(versions))


def _canonical(pool: Pool, versions: Iterable[str]) -> list[str]:
    return [version for version in pool.versions if version in {*versions}]


def _shown(treatment: Treatment, ids: Sequence[str], gate: Frozen | None) -> Shown:
    """Describe what an arm shows; the placebo's gain is predicted by nothing."""
    return Shown(
        ids=tuple(ids),
        predicted=None if gate is None else gate.sum(ids),
        characters=len(render_hints(treatment.hints)),
        sha256=treatment.sha256,
    )


def _freeze(plan: Plan, path: Path) -> None:
    """Write the plan before the first rollout, or check that it is what was frozen then."""
    given = plan.model_dump(mode="json")
    if not path.exists():
        write_json(path, given)
    frozen = read_json(path)
    if frozen != given:
        unlike = [name for name in given if not isinstance(frozen, dict) or frozen.get(name) != given[name]]
        raise DesignError(
            f"another ranking is planned here: {', '.join(unlike) or 'a further field'} differ",
            where=str(path),
            allowed="one plan for a run folder, frozen before its first rollout",
            todo="give the parameters, draft and gate of the frozen plan",
        )


def read_plan(run: Path) -> Plan | None:
    """Return the ranking that is declared in a run folder; None without one.

    Raises:
        InputError: its file is damaged.
    """
    path = run / RANKING.parent / PLAN
    if not path.exists():
        return None
    return read_record(
        path,
        TypeAdapter(Plan),
        found="the plan cannot be used",
        allowed="the plan.json that shopskill rank wrote",
        todo="restore it from a copy, or remove the folder to begin the ranking anew",
    )


def planned(bench: Bench, plan: Plan) -> list[Planned]:
    """List the episodes of a plan: every arm on every task, a fresh mask a task and sample."""
    pool, tasks = protocol.pool_of(bench), bench.tasks("val")
    arms = {BARE: protocol.BARE, PLACEBO: placebo(bench, plan.sets[TOP].ids)}
    arms |= {arm: _treatment(pool, arm, shown.ids) for arm, shown in plan.sets.items() if arm != PLACEBO}
    whole = [Planned(arm, task, 0, treatment) for arm, treatment in arms.items() for task in tasks]
    return whole + [
        Planned(FRESH, task, sample, _treatment(pool, f"{FRESH}:{task.task_id}:{sample}", versions))
        for task in tasks
        for sample, versions in enumerate(plan.fresh[task.task_id])
    ]
