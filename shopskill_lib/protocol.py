"""The protocols of Gate A and Gate B on a run folder: what is owed, run, proven and paired.

Each ends in a file of pairs, the same form that anybody's own pairs have, so that the gates read one form only.
"""

import re
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from pydantic import ValidationError

from shopskill_lib import leaks, masks, pairing, probes, replicates, rollouts, sequential, workbench
from shopskill_lib.errors import DesignError, InputError, ParameterError, SetupError
from shopskill_lib.files import read_json, read_text, write_bytes, write_json
from shopskill_lib.folders import folder as made
from shopskill_lib.pools import CAP, Pool
from shopskill_lib.records import Episode, Hint, Split, Step, Treatment, canonical, make_treatment
from shopskill_lib.rolloutset import Forecast, RolloutSet
from shopskill_lib.settings import SHIPPED, Settings
from shopskill_lib.skills import Skill, read_skill
from shopskill_lib.workbench import Bench

DRAFTS = Path(__file__).with_name("drafts")
"""The shipped drafts, one a language."""

BARE = make_treatment("bare", ())

DRAFT = "draft.json"
"""The compiled draft, in the run folder."""

GATE = "gate_a.json"
"""Frozen gate of a run folder or of a round: a round's files have the names they have in the run folder."""

INTERVENTIONS = "interventions.json"
"""The columns of a gate's masks and what each shows, beside its pairs."""

SELECTED = "skill.md"
"""The skill that Gate A selects, in the run folder."""

ROUNDS = "online"
"""Folder of the online rounds, in the run folder."""

REPLICATIONS = "replications"
"""Folder of the replications, in the run folder."""


def set_up(settings: Settings, folder: Path) -> Bench:
    """Set up the workbench with the draft to measure (see `workbench.set_up` and `read_draft`)."""
    return replace(workbench.set_up(settings, folder), pool=read_draft(settings, folder))


def read_draft(settings: Settings, folder: Path) -> Pool:
    """Return what Gate A measures: the draft compiled in the run folder, a skill's or pool's file, or the shipped one.

    Raises:
        InputError: there is no draft, it cannot be read, or it has more than 16 factors (M16).
    """
    if settings.draft:
        shipped = settings.draft == SHIPPED
        path = DRAFTS / f"skill_{settings.language}.md" if shipped else Path(settings.draft)
        pool = _given(path)
    else:
        path = folder / DRAFT
        if not path.exists():
            raise InputError(
                "no draft has been compiled here",
                where=str(path),
                allowed="a run folder in which 02_compile has run",
                todo=f"run 01_cards and 02_compile first, or give draft a path or {SHIPPED!r}",
            )
        pool = read_pool(path)
    if len(pool.versions) > CAP:
        raise InputError(
            f"the draft has {len(pool.versions)} factors",
            where=str(path),
            allowed=f"at most {CAP} chunks and versions before a cold-start gate (M16)",
            todo="merge chunks, or leave some out",
        )
    return pool


def _given(path: Path) -> Pool:
    """Read a draft that is given: a skill document, or a file with a pool."""
    holds_pool = path.suffix == ".json" and read_text(path).lstrip().startswith("{")
    return read_pool(path) if holds_pool else Pool.of_skill(read_skill(path))


def read_pool(path: Path) -> Pool:
    """Read the pool of a compiled draft, or of an import.

    Raises:
        InputError: the file holds none, or is damaged.
    """
    document = read_json(path)
    try:
        return Pool.model_validate_json(canonical(document["pool"]))
    except (ValidationError, KeyError, TypeError) as error:
        raise InputError(
            f"the draft cannot be used ({' '.join(str(error).split())})",
            where=str(path),
            allowed="the draft.json that 02_compile wrote, or the pool.json of `shopskill import`",
            todo="run 02_compile again, or import the file it was made from",
        ) from error


def pool_of(bench: Bench) -> Pool:
    """Return what the bench measures.

    Raises:
        ParameterError: nothing.
    """
    if bench.pool is None:
        raise ParameterError("there is nothing to measure", where="bench", allowed="a bench with a pool", todo="set it")
    return bench.pool


def gate_a(bench: Bench, stage: int = 0) -> Path:
    """Run what Gate A still owes and pair it (M17, M18, M20).

    Masks, stages and the texts of the columns are frozen before the first rollout; the proof that every masked episode
    was shown what its mask says runs before anything is paired.

    Args:
        bench: with a draft to measure.
        stage: take the tasks of the first declared stages only, up to this one; 0 for all.

    Returns:
        `observations.csv` of the run folder, of a stage `observations_stage_1.csv`, with `interventions.json` beside.

    Raises:
        SetupError: no reward of the shop can be used.
        ParameterError: there is no such stage.
        DesignError: other masks, stages or texts are frozen here, or an episode was shown something else.
    """
    refuse_unscored(bench)
    by_id = {task.task_id: task for task in bench.tasks("val")}
    chosen = stages(bench).until(stage) if stage else set(by_id)
    assignments = assign(bench)
    plan = [planned for planned in plan_gate_a(bench) if planned.task.task_id in chosen]
    _refuse_too_few(bench, sum(task_id in chosen for task_id in assignments.task_ids))
    leaks.refuse(bench, pool_of(bench).versions, "val")
    freeze_design(bench)
    freeze_texts(pool_of(bench), bench.folder / INTERVENTIONS)
    sets = roll_out(bench, plan, "gate_a")
    prove(plan, sets)
    note = replicates.compare([*sets["masked"].scored, *sets["bare"].scored]).note
    rows = [
        [
            *pairing.who(bench, by_id[task_id], sample, "val", note),
            *map(int, mask),
            *pairing.pair(sets, "masked", task_id, sample),
        ]
        for task_id, sample, mask in zip(assignments.task_ids, assignments.samples, assignments.masks, strict=True)
        if task_id in chosen
    ]
    name = f"observations_stage_{stage}.csv" if stage else "observations.csv"
    return pairing.write_pairs(bench.folder / name, assignments.factors, "", rows)


def gate_b(bench: Bench) -> Path:
    """Run the test tasks bare and with the whole selected skill, and pair them (M24).

    Returns:
        `test_observations.csv` of the run folder.

    Raises:
        InputError: no gate has selected a skill here, or an empty one.
    """
    refuse_unscored(bench)
    plan = plan_gate_b(bench)
    leaks.refuse(bench, {chunk.chunk_id: chunk for chunk in read_selected(bench.folder).chunks}, "test")
    sets = roll_out(bench, plan, "gate_b")
    prove(plan, sets)
    rows = [
        [*pairing.who(bench, task, 0, "test"), *pairing.pair(sets, "equipped", task.task_id, 0)]
        for task in bench.tasks("test")
    ]
    return pairing.write_pairs(bench.folder / "test_observations.csv", (), "equipped_", rows)


def write_selected(bench: Bench, selected: Sequence[str]) -> Path:
    """Write the selected chunks as `skill.md`, in canonical order: what Gate B tests and a policy loads."""
    return write_skill(bench, pool_of(bench).skill(selected))


def write_skill(bench: Bench, skill: Skill) -> Path:
    """Write a skill as the selected one of the bench's folder."""
    path = bench.folder / SELECTED
    head = f"---\norigin: {pairing.origin(bench)}\nselected_by: gate_a.json beside this file\n---\n"
    write_bytes(path, (head + skill.to_markdown()).encode())
    return path


def read_selected(folder: Path) -> Skill:
    """Return the skill that a gate selected in a run folder or in a round; it may be empty.

    Raises:
        InputError: no gate has been run there.
    """
    path = folder / SELECTED
    if not path.exists():
        raise InputError(
            "Gate A has not been run here", where=str(path), allowed="a selected skill", todo="run 03_gate_a first"
        )
    text = read_text(path)
    if "\n## " not in text:
        return Skill(title=text.rpartition("\n# ")[2].strip(), chunks=())
    return read_skill(path)


def at_round(bench: Bench, skill: str) -> Bench:
    """Return the bench in the folder and at the checkpoint of an online round, whose skill Gate B is to test (M24).

    Args:
        bench: of the run folder.
        skill: the round as `online/round_001`; "" for the skill that Gate A selected, the bench as it is.

    Raises:
        InputError: there is no such finished round.
    """
    if not skill:
        return bench
    place = bench.folder / skill
    if not re.fullmatch(rf"{ROUNDS}/round_\d{{3,}}", skill) or not (place / "round.json").exists():
        done = sorted(f"{ROUNDS}/{path.name}" for path in (bench.folder / ROUNDS).glob("round_*"))
        raise InputError(
            f"skill is {skill!r}, which is no finished round",
            where=str(bench.folder),
            allowed=", ".join(done) or '"" for the skill of Gate A: no round is finished here',
            todo="name a finished round, or run 05_online first",
        )
    report = read_json(place / "round.json")
    return moved(bench, place, report["evaluation_model"], report["evaluation_checkpoint"])


def under_masks(bench: Bench, mask_seed: int) -> Bench:
    """Return the bench of a replication under masks of this seed, in its folder below the gate's."""
    names = {"mask_seed": mask_seed, "n_stages": 1, "reuse_from": str(bench.folder)}
    place = made(str(bench.folder / REPLICATIONS / f"seed_{mask_seed}"))
    return replace(bench, settings=bench.settings.model_copy(update=names), folder=place)


def moved(bench: Bench, folder: Path, model: str, checkpoint: str) -> Bench:
    """Return the bench in another folder, its policy at other weights; bare runs are reused from the folder before."""
    names = {"policy_model": model, "policy_checkpoint": checkpoint, "reuse_from": str(bench.folder)}
    settings = bench.settings.model_copy(update=names)
    policy = workbench.model_of(settings, "policy", bench.purse)
    return replace(bench, settings=settings, folder=folder, agent=replace(bench.agent, model=policy))


def refuse_unscored(bench: Bench) -> None:
    """Refuse to measure anything in a shop whose rewards cannot be mapped to M4's.

    Raises:
        SetupError: with the reason.
    """
    why = bench.agent.shop.unscored
    if why:
        raise SetupError(
            f"no reward of this server can be used: {why}",
            where=f"shop_url {bench.settings.shop_url}",
            allowed="01_cards and 02_compile, which take its purchases as demonstrations",
            todo="measure in a shop whose rewards are known, as v8, fork v2.1, the original or the embedded shop",
        )


def _refuse_too_few(bench: Bench, pairs: int) -> None:
    """Refuse before anything is bought what the gate would refuse after it (M16)."""
    factors = len(pool_of(bench).versions)
    if pairs < 2 * factors:
        raise ParameterError(
            f"{pairs} pairs are planned for {factors} chunks and versions",
            where="n_val",
            allowed=f"at least 2 pairs a factor, here {2 * factors}; below {20 * factors} estimates are coarse",
            todo="take more validation tasks or masked_samples, or a draft of fewer chunks",
        )


def _interventions(pool: Pool) -> list[dict[str, object]]:
    """Describe the mask's columns, as `sources.read_interventions` reads them."""
    return [
        {**item.to_json(), "text_sha256": pool.versions[item.intervention_id].text_sha256}
        for item in pool.interventions
    ]


def freeze_texts(pool: Pool, path: Path) -> None:
    """Write what the masks' columns show before the first rollout, or check that it is what was written then."""
    columns = _interventions(pool)
    if not path.exists():
        write_json(path, columns)
    frozen = read_json(path)
    if frozen != columns:
        other = ", ".join(str(item["intervention_id"]) for item in columns if item not in frozen)
        raise DesignError(
            f"the texts of {other or 'the draft'} are other ones than this gate began with",
            where=str(path),
            allowed="one draft for a run folder, frozen before its first rollout (M17)",
            todo="use a new run folder, or the draft that the gate began with",
        )


def foresee(bench: Bench, plan: Sequence[rollouts.Planned]) -> Forecast:
    """Return what a plan will still ask of the model."""
    reuse_from = Path(bench.settings.reuse_from) if bench.settings.reuse_from else None
    seed = bench.settings.rollout_seed
    return rollouts.forecast(plan, bench.agent, bench.folder, rollout_seed=seed, reuse_from=reuse_from)


def assign(bench: Bench) -> masks.Assignments:
    """Draw the masks of the run (M17)."""
    task_ids = [task.task_id for task in bench.tasks("val")]
    given = bench.settings
    slots = pool_of(bench).slots
    return masks.assign(given.mask_seed, "val", task_ids, slots, given.masked_samples, given.mask_design)


def stages(bench: Bench) -> sequential.Stages:
    """Deal the validation tasks to the stages that the settings declare."""
    task_ids = [task.task_id for task in bench.tasks("val")]
    return sequential.deal(bench.settings.mask_seed, "val", task_ids, bench.settings.n_stages)


def freeze_design(bench: Bench) -> None:
    """Freeze stages and masks before the first rollout, or check them (M17; see `masks.freeze`)."""
    path = bench.folder / "masks.csv"
    sequential.declare(stages(bench), bench.folder, begun=path.exists())
    masks.freeze(assign(bench), path)


def plan_bare(bench: Bench, split: Split) -> list[rollouts.Planned]:
    """List the bare episodes of a split, one a task."""
    return [rollouts.Planned("bare", task, 0, BARE) for task in bench.tasks(split)]


def plan_gate_a(bench: Bench) -> list[rollouts.Planned]:
    """List Gate A's episodes: one bare a task, one masked a task and sample."""
    by_id = {task.task_id: task for task in bench.tasks("val")}
    drawn = assign(bench)
    masked = [
        rollouts.Planned("masked", by_id[task_id], sample, _masked(bench, mask.tolist()))
        for task_id, sample, mask in zip(drawn.task_ids, drawn.samples, drawn.masks, strict=True)
    ]
    return [*plan_bare(bench, "val"), *masked]


def plan_gate_b(bench: Bench) -> list[rollouts.Planned]:
    """List Gate B's episodes: one bare and one equipped a task (see `gate_b` for what it refuses)."""
    skill = read_selected(bench.folder)
    if not skill.chunks:
        raise InputError(
            "no chunk has been selected here",
            where=str(bench.folder / SELECTED),
            allowed="a selected skill of at least one chunk",
            todo="there is nothing to test",
        )
    whole = treatment("equipped", skill)
    return [*plan_bare(bench, "test"), *(rollouts.Planned("equipped", task, 0, whole) for task in bench.tasks("test"))]


def treatment(name: str, skill: Skill) -> Treatment:
    """Return the treatment that shows a skill's chunks, titles included, in canonical order."""
    return make_treatment(name, [Hint(id=chunk.chunk_id, text=chunk.shown) for chunk in skill.chunks])


def _masked(bench: Bench, mask: Sequence[int]) -> Treatment:
    """Return the treatment of one mask."""
    pool = pool_of(bench)
    shown = [version for version, bit in zip(pool.versions, mask, strict=True) if bit]
    return treatment("mask-" + "".join(map(str, mask)), pool.skill(shown))


def roll_out(bench: Bench, plan: Sequence[rollouts.Planned], stage: str) -> dict[str, RolloutSet]:
    """Run what a plan still owes in the run folder, and return its episodes by arm.

    Raises:
        SetupError: the model does not work as it is set up, or is another one than the folder's episodes are of (see
            `probes.check`).
    """
    settings = bench.settings
    reuse_from = Path(settings.reuse_from) if settings.reuse_from else None
    known = rollouts.load(plan, bench.agent, bench.folder, rollout_seed=settings.rollout_seed)
    if any(arm.unscored for arm in known.values()):
        probes.check(bench.agent.model, bench.folder, reuse_from)
    rolled = rollouts.run(
        plan,
        bench.agent,
        bench.folder,
        rollout_seed=settings.rollout_seed,
        stage=stage,
        threads=settings.policy_concurrency,
        reuse_from=reuse_from,
    )
    if any(arm.unscored for arm in known.values()):
        _warn_of_faults([step for arm in rolled.values() for episode in arm.scored for step in episode.steps])
    return rolled


def _warn_of_faults(steps: Sequence[Step]) -> None:
    """Say on standard error where most turns of the policy were no legal call: a parser that does not fit looks so."""
    faults = Counter(step.fault for step in steps if step.fault is not None)
    if 2 * faults.total() > len(steps):
        told = ", ".join(f"{code} {count}" for code, count in faults.most_common(3))
        sys.stderr.write(
            f"note: {faults.total()} of {len(steps)} turns of the policy were protocol faults ({told}): see what the "
            "server's tool parser does (shopskill doctor, docs/models.md) before more is bought\n"
        )


def prove(plan: Sequence[rollouts.Planned], sets: Mapping[str, RolloutSet]) -> None:
    """Prove from the episodes that every arm was shown as assigned and that nothing else differed (M20, M24).

    Args:
        plan: what was frozen before the first rollout.
        sets: arm -> its episodes.

    Raises:
        DesignError: an episode was shown something else, arms differ in a named field, or equal prompts carry
            different treatments.
    """
    wanted = {(item.arm, *item.key): item.treatment for item in plan}
    scored = [episode for arm in sets.values() for episode in arm.scored]
    prompts: dict[str, str] = {}
    for episode in scored:
        expected = wanted[episode.arm, *episode.key]
        shown = tuple(hint.id for hint in expected.hints)
        steps = {step.hint_ids for step in episode.steps}
        first = prompts.setdefault(episode.steps[0].prompt_digest, episode.treatment_sha256)
        problems = (
            (episode.treatment_sha256 != expected.sha256, "the treatment is not the assigned one"),
            (steps != {shown}, "a step showed other chunks than assigned"),
            (first != episode.treatment_sha256, "an equal prompt carries another treatment elsewhere"),
        )
        for wrong, found in problems:
            if wrong:
                raise DesignError(
                    found,
                    where=f"arm {episode.arm}, task {episode.task_id}, sample {episode.sample}",
                    allowed="prompts that show exactly what was frozen before the first rollout (M20)",
                    todo="look at the episode; do not fit or compare these arms",
                )
    _refuse_unlike_arms(scored)


def _refuse_unlike_arms(episodes: Sequence[Episode]) -> None:
    """Refuse episodes of different models, prompts or shops, naming the field (M20, M24)."""
    fields: dict[str, Callable[[Episode], object]] = {
        "model": lambda episode: episode.model.model_dump(),
        "prompts": lambda episode: episode.prompts_sha256,
        "shop": lambda episode: episode.shop,
        "rollout_seed": lambda episode: episode.seeds.rollout_seed,
    }
    for name, value in fields.items():
        unlike = [episode for episode in episodes if value(episode) != value(episodes[0])]
        if unlike:
            raise DesignError(
                f"{name} differs: {value(episodes[0])} in arm {episodes[0].arm}, {value(unlike[0])} in {unlike[0].arm}",
                where=f"task {unlike[0].task_id}",
                allowed="arms that differ in what the prompt shows and in nothing else",
                todo="run both arms again in one run folder",
            )
