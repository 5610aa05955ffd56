"""The claim sheet: one page that says what a gate's numbers allow to say, and what they do not (METHOD section 13).

Every sentence follows from the gate, its pairs or the run folder; nothing is estimated or decided here.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pandas as pd

from shopskill_lib import floors, looks, pilots, power, sheets, store
from shopskill_lib.comparison import Comparison
from shopskill_lib.files import parse_json, read_text
from shopskill_lib.gates import PRIMARY, Gate
from shopskill_lib.inference import LEVEL
from shopskill_lib.observations import Observations
from shopskill_lib.records import ModelCall
from shopskill_lib.sheets import Section, Sheet
from shopskill_lib.text import task_key

GATE_A, GATE_B = "claim", "claim_b"
"""Names of the two pages in a run folder, without their endings."""

EFFECTS = (0.1, 0.05, 0.02)
"""Effects on the reward for which the tasks needed are told."""

TOKENS = ("prompt_tokens", "completion_tokens")

LISTED = 6
"""Names that a sentence lists at most."""


@dataclass(frozen=True, slots=True)
class Known:
    """What a run folder knows beyond a file of pairs.

    Attributes:
        val_looks: looks at the validation tasks up to the gate; None where nobody counts.
        test_looks: the same at the test tasks.
        reasons: why each further look was taken.
        elsewhere: looks at the same test tasks in the runs beside this one; None where nobody counts.
        promised: what Gate A says of the tested skill's gain; "" where no gate lies beside the test.
        calls: every model call of the folder; empty where none is recorded.
        noise: the noise floors beside the gate; None where none has been measured.
    """

    val_looks: int | None = None
    test_looks: int | None = None
    reasons: tuple[str, ...] = ()
    calls: tuple[ModelCall, ...] = ()
    noise: floors.Noise | None = None
    elsewhere: looks.Elsewhere | None = None
    promised: str = ""

    @property
    def tests(self) -> int:
        """Looks at the test tasks, over all runs."""
        return (self.test_looks or 0) + (self.elsewhere.total if self.elsewhere else 0)


def known(gate: Path, folder: Path | None = None) -> Known:
    """Return what a run folder knew when a gate was frozen; later looks are for later sheets.

    Args:
        gate: the frozen `gate_a.json` or `gate_b.json`, its episodes' calls beside it.
        folder: the run folder, where that is not the gate's own.

    Raises:
        InputError: a frozen gate, `calls.jsonl` or `noise.json` is damaged.
    """
    root, until = folder or gate.parent, looks.latest(gate)
    val, test = (looks.reasons(root, name, until) for name in ("gate_a.json", "gate_b.json"))
    found = Known(len(val), len(test), (*val, *test), tuple(store.read_calls(gate.parent)), floors.read(gate.parent))
    if gate.name != looks.TEST:
        return found
    return replace(found, elsewhere=looks.elsewhere(gate, root), promised=_promised(gate.with_name("gate_a.json")))


def _promised(path: Path) -> str:
    """Say what a frozen gate's coefficients add up to over the chunks it selected; "" where it has no such sums."""
    record = parse_json(read_text(path), str(path)) if path.exists() else {}
    if not record.get("selected"):
        return ""
    together, chosen = record["together"], record["selected"]
    sums = [
        sum(item[name] for item in factors if item["intervention_id"] in chosen)
        for factors, name in ((record["factors"], "coefficient"), (together["factors"], "shrunken"))
    ]
    halves = (
        "" if together["halves"] is None else f", selected on one half of its tasks {together['halves']['gain']:+.3f}"
    )
    return (
        f"The {len(chosen)} selected chunks' estimates sum to {sums[0]:+.3f} on the validation tasks that chose them "
        f"(shrunken {sums[1]:+.3f}{halves})"
    )


def of_gate(gate: Gate, about: Known, name: str = "Gate A") -> Sheet:
    """Return the claim sheet of a gate, under its name: Gate A or that of an online round."""
    pairs = gate.observations
    label = _label(pairs.simulated)
    question = (
        f"Which of {len(pairs.interventions)} chunks and versions in {len(pairs.slots)} slots change the reward of "
        f"{_weights(pairs.checkpoint)}, and by how much, each beside the others?"
    )
    rule = (
        "masked minus bare reward regressed on what was shown, no intercept (M19); one version a slot survives, and a "
        f"survivor is selected when its estimate is positive and among the K = {gate.budget} best (M21, M22). "
        f"Intervals are 95 % t intervals with {gate.outcomes[PRIMARY].fit.cov_type} errors, no part of the rule."
    )
    sections = (
        Section("Question, data, rule", (question, _data(pairs), f"Rule: {rule}")),
        Section("Effects on the reward", (), _effects(gate)),
        Section("What the intervals allow to say", (*_supported(gate), _floor_of_gate(gate, about))),
        Section("What this does not show", (*_unsupported(gate), *_limits(pairs.checkpoint, pairs.simulated))),
        Section("What would change it", _would_change(gate)),
        Section("Cost and looks", (*_cost(pairs, about), _looks(about))),
        *_remarks(gate.notes),
    )
    return Sheet(f"{label}Claim sheet of {name}: {pairs.name}", sections, _gate_quote(gate, name))


def of_comparison(found: Comparison, about: Known) -> Sheet:
    """Return the claim sheet of a paired comparison, Gate B's or of any two arms."""
    question = (
        f"Does the whole skill change the reward of {_weights(found.checkpoint)} on these tasks, and at what cost?"
    )
    data = (
        f"Data: {found.name}, SHA-256 {found.sha256[:16] or 'not known'}, {found.n_pairs} pairs of {found.n_tasks} "
        f"tasks, {_origin(found.simulated)}; checkpoint {found.checkpoint or 'not stated in the file'}."
    )
    rule = (
        "Rule: none. Equipped minus bare over tasks, 95 % percentile intervals of a bootstrap of whole tasks (M25); "
        "success by an exact test."
    )
    sections = (
        Section("Question, data, rule", (question, data, rule)),
        Section("Equipped against bare", (), _metrics(found)),
        Section("What the intervals allow to say", (*_told(found, about), _floor_of_test(found, about))),
        Section("What this does not show", (*_untold(found, about), *_limits(found.checkpoint, found.simulated))),
        Section("What would change it", _would_change_test(found)),
        Section("Cost and looks", (*_test_cost(found, about), _looks(about))),
        *_remarks(found.notes),
    )
    quote = f"{_label(found.simulated)}Gate B, {found.name}, {_weights(found.checkpoint)}{_which(about)}: "
    verdict = found.verdict().removeprefix("simulated: ")
    return Sheet(f"{_label(found.simulated)}Claim sheet of Gate B: {found.name}", sections, quote + verdict)


def write(sheet: Sheet, folder: Path, name: str = GATE_A) -> tuple[Path, Path]:
    """Write a claim sheet into a folder, as Markdown and as HTML.

    Raises:
        OutputError: the folder cannot be written.
    """
    return sheets.write(sheet, folder, name)


def _label(simulated: bool) -> str:
    return "simulated: " if simulated else ""


def _weights(checkpoint: str) -> str:
    return f"checkpoint {checkpoint}" if checkpoint else "the measured checkpoint (the file does not name it)"


def _origin(simulated: bool) -> str:
    return "simulated" if simulated else "not simulated, as far as the file says"


def _remarks(notes: Sequence[str]) -> tuple[Section, ...]:
    """Return what must be printed beside the table, allow_overlap among it."""
    return (Section("Notes", tuple(notes)),) if notes else ()


def _data(pairs: Observations) -> str:
    n_tasks = int(pairs.tasks.max()) + 1
    return (
        f"Data: {pairs.name}, SHA-256 {pairs.sha256[:16]}, {len(pairs.task_ids)} pairs of {n_tasks} tasks, "
        f"{_origin(pairs.simulated)}; checkpoint {pairs.checkpoint or 'not stated in the file'}."
    )


def _names(gate: Gate) -> dict[str, str]:
    """Return what a reader calls each factor: its title, with the id where titles repeat or are missing."""
    items = gate.observations.interventions
    titles = [item.title for item in items]
    return {
        item.intervention_id: item.title
        if item.title and titles.count(item.title) == 1
        else f"{item.title} {item.intervention_id}".strip()
        for item in items
    }


def _effects(gate: Gate) -> pd.DataFrame:
    """Return one row a factor, best estimate first: estimate, intervals, status, label."""
    frame = gate.to_frame().sort_values("coefficient", ascending=False, na_position="last")
    joint = gate.together().set_index("intervention_id").reindex(frame["intervention_id"])
    return pd.DataFrame(
        {
            "chunk": frame["intervention_id"].map(_names(gate)).to_numpy(),
            "estimate": [_signed(value) for value in frame["coefficient"]],
            "95 % interval": _spans(frame["ci_low"], frame["ci_high"]),
            "all at once, 95 %": _spans(joint["simultaneous_low"], joint["simultaneous_high"]),
            "status by the rule": frame["status"].to_numpy(),
            "label": joint["label"].fillna("-").to_numpy(),
        }
    )


def _spans(low: "pd.Series[float]", high: "pd.Series[float]") -> list[str]:
    return ["-" if pd.isna(a) else f"{a:+.3f} to {b:+.3f}" for a, b in zip(low, high, strict=True)]


def _signed(value: float) -> str:
    return "-" if pd.isna(value) else f"{value:+.3f}"


def _supported(gate: Gate) -> tuple[str, ...]:
    """Say what the intervals support: the chunks told apart from 0, how far the others may reach, the set's gain."""
    fit, names, intervals = gate.outcomes[PRIMARY].fit, _names(gate), gate.outcomes[PRIMARY].fit.conf_int()
    rows = list(zip(fit.names, fit.params, intervals, gate.joint.labels, strict=True))
    apart = [
        f"{names[name]} {value:+.3f} (95 % {low:+.3f} to {high:+.3f})"
        for name, value, (low, high), label in rows
        if label != "undecided"
    ]
    rate = f"at {gate.joint.rate}"
    lines = [f"Told apart from 0 {rate}: {'; '.join(apart)}." if apart else f"No effect is told apart from 0 {rate}."]
    reach = np.array([interval for *_, interval, label in rows if label == "undecided"])
    if len(reach):
        lines.append(
            f"The intervals of the {len(reach)} undecided reach from {reach.min():+.3f} to {reach.max():+.3f}: effects "
            "of that size, either way, agree with these pairs."
        )
    gains = [
        f"{names[new]} instead of {names[old]}: {gain:+.3f} (95 % {low:+.3f} to {high:+.3f})."
        for _, old, new, gain, _, low, high in gate.rewrites().itertuples(index=False, name=None)
    ]
    return (*lines, gate.verdict(), gate.trust(), gate.differences(), *gains)


def _floor_of_gate(gate: Gate, about: Known) -> str:
    """Say which coefficients two identical arms show, or that nobody knows."""
    floor = floors.of_gate(about.noise, gate.observations.sha256)
    return floor.about_coefficients() if floor is not None else _no_floor("pairs", "val")


def _floor_of_test(found: Comparison, about: Known) -> str:
    """Say which difference two identical arms show, or that nobody knows."""
    floor = floors.of_test(about.noise, found)
    return floor.about_differences() if floor is not None else _no_floor("tasks and this checkpoint", "test")


def _no_floor(what: str, split: str) -> str:
    return (
        f"No noise floor has been measured for these {what}: shopskill noise RUN --split {split} repeats the bare arm "
        "of a run folder, with --skill online/round_000 that of a round."
    )


def _unsupported(gate: Gate) -> tuple[str, ...]:
    """Say what the numbers leave open."""
    fit, names = gate.outcomes[PRIMARY].fit, _names(gate)
    labels = dict(zip(fit.names, gate.joint.labels, strict=True))
    open_ones = [name for name, label in labels.items() if label == "undecided"]
    taken = [name for name in gate.selected if labels[name] == "undecided"]
    lines = []
    if open_ones:
        lines.append(
            f"The sign of {len(open_ones)} of {len(labels)} effects; among them {len(taken)} of the "
            f"{len(gate.selected)} selected: {_listed([names[name] for name in taken])}."
        )
    if fit.f_pvalue > LEVEL:
        lines.append(f"That any chunk has an effect: F test of all coefficients being 0, p = {fit.f_pvalue:.2g}.")
    unseen = [names[item.intervention_id] for item in gate.decisions if item.status == "never_shown"]
    lines += [f"Anything about what was never shown: {_listed(unseen)}."] if unseen else []
    shift, _, interplay = gate.model.rows()
    lines += [f"{check[0].upper()}{check[1:]}: {found}; {meaning}." for check, found, meaning in (shift, interplay)]
    missing = gate.observations.missing
    if missing is not None:
        width = float(np.nanmax(missing.highest - missing.lowest))
        lines.append(
            f"What {len(missing.masked)} missing masked and {len(missing.bare)} missing bare episodes would have "
            f"earned: they could move a coefficient within a range of up to {width:.3f}."
        )
    lines.append(
        f"What the {len(gate.selected)} selected chunks gain together: no row was chosen to show exactly them, and "
        "their estimates were selected for being high. That is Gate B's question."
    )
    return tuple(lines)


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - LISTED} more" if len(names) > LISTED else ""
    return f"{', '.join(names[:LISTED])}{more}" if names else "none"


def _limits(checkpoint: str, simulated: bool) -> tuple[str, ...]:
    """Say what no gate of this design shows."""
    real = ("Anything about a real model: the rewards are simulated.",) if simulated else ()
    return (
        *real,
        f"Other weights, prompts, shops or tasks: all pairs are of one checkpoint ({checkpoint or 'not named'}) and "
        "one set of tasks.",
        "Other draws: the intervals are over tasks; no second seed of rollouts or masks is in them.",
        "What text of equal length would do: no arm shows a placebo.",
    )


def _would_change(gate: Gate) -> tuple[str, ...]:
    """Say how many tasks would be needed, by `power`."""
    pairs, fit = gate.observations, gate.outcomes[PRIMARY].fit
    error = float(fit.bse.max())
    seen = (
        f"The largest standard error is {error:.3f}: an effect of {power.detectable(error):.3f} is found with a "
        "probability of 80 % (one two-sided test at 5 %)."
    )
    success, between = pilots.of_pairs(pairs)
    if not 0 < success < 1 or not between < 1:
        return seen, "Tasks needed are not told: these pairs show no spread of success to plan with."
    n_tasks = int(pairs.tasks.max()) + 1
    samples = max(len(pairs.task_ids) // n_tasks, 1)
    setting = power.Setting(tuple(len(slot.versions) for slot in pairs.slots), n_tasks, success, between, samples)
    needed = [f"{effect:.3f}: {power.tasks_needed(setting, effect / power.detectable(1.0)):,}" for effect in EFFECTS]
    expected = float(power.standard_errors(setting).max())
    return (
        seen,
        f"Tasks needed for that probability, by effect: {'; '.join(needed)}; from bare success {success:.2f}, "
        f"correlation of the arms {between:.2f}, independent masks, {samples} masked a task (shopskill plan, which "
        f"expects an error of {expected:.3f} here).",
        "Gate B on test tasks for the set as a whole; shopskill pool for other seeds, rounds and checkpoints.",
    )


def _cost(pairs: Observations, about: Known) -> tuple[str, ...]:
    """Say what these pairs took: rollouts, tokens where the file has them, money where the folder has it."""
    first = np.unique(pairs.tasks, return_index=True)[1]
    tokens = "not in the file"
    if set(TOKENS) <= set(pairs.masked):
        sums = [pairs.masked[name].sum() + pairs.bare[name][first].sum() for name in TOKENS]
        tokens = f"{sums[0]:,.0f} prompt, {sums[1]:,.0f} completion"
    return (
        f"Rollouts: {len(pairs.task_ids)} masked, {len(first)} bare; tokens: {tokens}; "
        f"money: {_money(about, ('masked', 'bare'), len(pairs.task_ids) + len(first), pairs.task_ids)}.",
    )


def _test_cost(found: Comparison, about: Known) -> tuple[str, ...]:
    """Say what the test took."""
    tokens = [
        f"{name.partition('_')[0]} {bare:,.0f} bare, {equipped:,.0f} equipped"
        for name, bare, equipped in found.metrics[["metric", "bare", "equipped"]].dropna().itertuples(index=False)
        if name in TOKENS
    ]
    money = _money(about, ("equipped", "bare"), 2 * found.n_pairs, list(found.flips["task_id"]))
    return (
        f"Rollouts: {found.n_pairs} equipped and their bare ones; mean tokens a rollout: "
        f"{'; '.join(tokens) or 'not in the file'}; money: {money}.",
    )


def _money(about: Known, arms: Sequence[str], episodes: int, task_ids: Sequence[str]) -> str:
    """Add up the calls of these arms and tasks in the folder; a sum never hides an unknown part."""
    tasks = set(map(task_key, task_ids))
    calls = [call for call in about.calls if call.arm in arms and task_key(call.task_id) in tasks]
    paid = [call.money for call in calls if call.money is not None]
    if not calls or len(paid) < len(calls):
        return "not known"
    here = len({(call.arm, task_key(call.task_id), call.sample) for call in calls})
    return f"{sum(paid):.4f} in {len(calls)} calls of {here} of {episodes} episodes, repeated attempts included"


def _looks(about: Known) -> str:
    """Say how often these tasks have been looked at."""
    if about.val_looks is None:
        return "Looks: nobody counts looks at a file of pairs; a run folder does."
    further = [reason for reason in about.reasons if reason != "first look"]
    told = f"; further ones because: {'; '.join(further)}" if further else ""
    over = f"; at the same test tasks {about.elsewhere}" if about.elsewhere is not None else ""
    return (
        f"Looks up to this gate: {about.val_looks} at the validation tasks, {about.test_looks} at the test tasks{over}"
        f"{told}."
    )


def _gate_quote(gate: Gate, name: str) -> str:
    pairs = gate.observations
    apart = len(gate.joint.labels) - gate.joint.labels.count("undecided")
    halves = gate.halves
    gain = (
        "; halves of these tasks are too small to say what such a set gains"
        if halves is None
        else f"; a set selected on one half of the tasks gains {halves.gain:+.3f} (standard error "
        f"{halves.gain_error:.3f}) on the other"
    )
    return (
        f"{_label(pairs.simulated)}{name[0].upper()}{name[1:]}, {pairs.name}, {_weights(pairs.checkpoint)}, "
        f"{len(pairs.task_ids)} pairs of {int(pairs.tasks.max()) + 1} tasks: the rule selected {len(gate.selected)} of "
        f"{len(pairs.slots)} slots, where it would select about {gate.chance_selected:.1f} without any effect; {apart} "
        f"of {len(gate.joint.labels)} effects are told apart from 0 at {gate.joint.rate}{gain}."
    )


def _metrics(found: Comparison) -> pd.DataFrame:
    frame = found.to_frame().dropna(subset=["delta"])
    side = np.where(frame["ci_low"] > 0, "above 0", np.where(frame["ci_high"] < 0, "below 0", "not told apart"))
    return pd.DataFrame(
        {
            "metric": frame["metric"],
            "bare": [f"{value:,.3f}" for value in frame["bare"]],
            "equipped": [f"{value:,.3f}" for value in frame["equipped"]],
            "difference": [f"{value:+,.3f}" for value in frame["delta"]],
            "95 % interval": [
                f"{a:+,.3f} to {b:+,.3f}" for a, b in zip(frame["ci_low"], frame["ci_high"], strict=True)
            ],
            "side": side,
        }
    )


def _told(found: Comparison, about: Known) -> tuple[str, ...]:
    """Say what the intervals of a comparison support."""
    frame = found.to_frame().dropna(subset=["delta"])
    apart = frame[((frame["ci_low"] > 0) | (frame["ci_high"] < 0)) & (frame["metric"] != PRIMARY)]
    others = [
        f"{row.metric} {row.delta:+,.3f} (95 % {row.ci_low:+,.3f} to {row.ci_high:+,.3f})" for row in apart.itertuples()
    ]
    return (
        found.verdict(),
        f"By reward {found.wins} tasks are better, {found.ties} equal, {found.losses} worse.",
        *([f"{about.promised}; measured here {_reward(found)['delta']:+.3f}."] if about.promised else []),
        f"Other metrics whose interval excludes 0, each for itself: {'; '.join(others) or 'none'}.",
    )


def _reward(found: Comparison) -> dict[str, float]:
    """Return the figures of the reward."""
    rows = found.metrics[found.metrics["metric"] == PRIMARY]
    return {name: float(rows[name].iloc[0]) for name in ("delta", "ci_low", "ci_high")}


def _untold(found: Comparison, about: Known) -> tuple[str, ...]:
    """Say what a comparison leaves open."""
    reward = _reward(found)
    lines = []
    if reward["ci_low"] <= 0 <= reward["ci_high"]:
        lines.append(
            f"That the skill changes the reward: {reward['ci_low']:+.3f}, 0 and {reward['ci_high']:+.3f} all lie in "
            "the interval."
        )
    if about.tests > 1:
        lines.append(
            f"A fresh test: this is one of {about.tests} looks at these tasks, and no interval is widened for it."
        )
    if len(found.metrics) > 1:
        lines.append(f"Claims on {len(found.metrics)} metrics at once: each interval holds for its own metric alone.")
    return (*lines, "Which chunk does it: no chunk was shown without the others.")


def _would_change_test(found: Comparison) -> tuple[str, ...]:
    """Say how many tasks would be needed, by the interval's width."""
    reward = _reward(found)
    seen = power.detectable((reward["ci_high"] - reward["ci_low"]) / 3.92)
    if seen == 0:
        return ("No task changed its reward: the interval has no width to plan with.",)
    size = abs(reward["delta"])
    wanted = [*EFFECTS, *([size] if size >= min(EFFECTS) else [])]
    needed = [f"{effect:.3f}: {int(np.ceil(found.n_tasks * (seen / effect) ** 2)):,}" for effect in wanted]
    last = " (the last is the measured difference, if it were true)" if len(wanted) > len(EFFECTS) else ""
    return (
        f"A difference of {seen:.3f} is found with a probability of 80 % on this many tasks.",
        f"Tasks needed for that probability, by difference: {'; '.join(needed)}{last}; more test tasks, never the same "
        "ones again.",
    )


def _which(about: Known) -> str:
    if not about.test_looks:
        return ""
    over = f" in this run, {about.elsewhere.head}" if about.elsewhere is not None else ""
    return f", looks at test so far: {about.test_looks}{over}"
