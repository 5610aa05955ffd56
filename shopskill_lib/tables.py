"""Results -> rounded frames for notebooks: what a reader sees, and nothing that is not in the result."""

from collections import Counter
from collections.abc import Callable, Sequence

import pandas as pd

from shopskill_lib.cards import STAGES, Analysis, Card, FailureLesson, SuccessLesson
from shopskill_lib.comparison import Comparison
from shopskill_lib.compiler import Draft
from shopskill_lib.desk import Analyses
from shopskill_lib.gates import DECISION_COLUMNS, PRIMARY, Gate
from shopskill_lib.pools import CAP
from shopskill_lib.records import ModelCall, total_usage
from shopskill_lib.rounds import Round, noise_floors

DIGITS = 4

_COSTS = ("calls", "faults", "errors", "prompt tokens", "completion tokens", "money")

STABILITY = ("selection_frequency", "sign_probability", "rank_95", "rank_mean", "top_k", "exposure")
BOUNDS = ("worst_low", "worst_high", "masked_complete", "bare_complete")
BOOTSTRAPPED = ("percentile_low", "percentile_high", "bca_low", "bca_high", "bca_missing")


def asked(gate: Gate) -> pd.DataFrame:
    """What was asked, and at what cost: one row a fact, costs as means an episode where the file has them."""
    seen = gate.observations
    facts: dict[str, str] = {
        "data": f"{seen.name} ({'simulated' if seen.simulated else 'not simulated, as far as the file says'})",
        "SHA-256 of the file": seen.sha256[:16],
        "tasks, pairs": f"{int(seen.tasks.max()) + 1}, {len(seen.task_ids)}",
        "factors, slots": f"{len(seen.interventions)}, {len(seen.slots)}",
        "budget K": str(gate.budget),
    }
    for name in (PRIMARY, "steps", "prompt_tokens", "completion_tokens"):
        if name in gate.outcomes:
            outcome, digits = gate.outcomes[name], DIGITS if name == PRIMARY else 1
            facts[f"{name}, bare and masked"] = f"{outcome.bare_mean:,.{digits}f} and {outcome.masked_mean:,.{digits}f}"
    return pd.DataFrame(facts.items(), columns=["fact", "value"]).set_index("fact")


def design(gate: Gate) -> pd.DataFrame:
    """Health of the masks: one row a check, with what a sound design shows."""
    health = gate.design
    n = health.nobs
    spread = max((abs(got - want) for got, want in zip(health.exposure, health.nominal, strict=True)), default=0.0)
    correlation = health.largest_correlation
    rows = [
        ("rank of the masks", str(health.rank), f"{len(health.factors) - len(health.never_shown)} (all shown factors)"),
        ("condition number", f"{health.condition:.1f}", "small; infinite when factors are aliased"),
        ("never shown", ", ".join(health.never_shown) or "none", "none"),
        ("pairs a factor", f"{n / len(health.factors):.1f}", "20 or more; below 2 refused"),
        ("rows showing a factor", f"{health.exposure.min()} to {health.exposure.max()}", _nominal(gate)),
        ("largest gap to nominal", f"{spread:.0f} rows", f"about {2 * (n / 4) ** 0.5:.0f} by chance"),
        ("factors shown a row", f"{health.mean_shown:.2f}", f"{health.nominal.sum() / n:.2f}"),
        (
            "largest correlation",
            "-" if correlation is None else f"{correlation:.3f}",
            f"about {3 / n**0.5:.2f} by chance",
        ),
    ]
    table = pd.DataFrame(rows, columns=["check", "found", "expected"]).set_index("check")
    return _labelled(table, gate.observations.simulated)


def _nominal(gate: Gate) -> str:
    """Exposures expected under M17, by number of versions."""
    return " or ".join(f"{value:.0f}" for value in sorted(set(gate.design.nominal), reverse=True))


def selection(gate: Gate) -> pd.DataFrame:
    """The selection table: one row a factor, best estimate first, uncertainty beside the decision.

    The index `#` is the column of the mask; figures label factors whose ids they cannot print by it.
    """
    frame = gate.to_frame()
    interval = zip(frame["rank_low"], frame["rank_high"], strict=True)
    frame["rank_95"] = ["-" if pd.isna(low) else f"{low} to {high}" for low, high in interval]
    frame.index = pd.RangeIndex(1, len(frame) + 1, name="#")
    frame["rank"] = frame["rank"].astype(object).fillna("")  # empty in print and on disk
    titles = [item.title for item in gate.observations.interventions]
    if any(titles):
        frame.insert(0, "title", titles)
    columns = [name for name in ("title", *DECISION_COLUMNS, *STABILITY, *BOUNDS) if name in frame]
    table = frame.sort_values("coefficient", ascending=False, na_position="last")[columns].round(DIGITS)
    return _labelled(table, gate.observations.simulated)


def together(gate: Gate) -> pd.DataFrame:
    """All coefficients judged together: one row a factor, best first; numbered like the selection table."""
    frame = gate.together()
    columns = {factor: number for number, factor in enumerate(gate.observations.factors, 1)}
    frame.index = pd.Index([columns[name] for name in frame["intervention_id"]], name="#")
    if not any(gate.bootstrap.reasons):
        frame = frame.drop(columns="bca_missing")
    return _labelled(frame.sort_values("coefficient", ascending=False).round(DIGITS), gate.observations.simulated)


def checks(gate: Gate) -> pd.DataFrame:
    """Is the model right? One row a check: what was found, what it means; effects by group of tasks among them."""
    table = pd.DataFrame([*gate.model.rows(), *gate.groups.rows()], columns=["check", "found", "meaning"]).set_index(
        "check"
    )
    return _labelled(table, gate.observations.simulated)


def contributions(gate: Gate) -> pd.DataFrame:
    """One row an outcome and factor: coefficient, errors, p-value, interval; of the reward, bootstrap intervals too."""
    fits = {name: outcome.fit.to_frame() for name, outcome in gate.outcomes.items()}
    table = pd.concat(fits, names=["outcome"]).reset_index("outcome").reset_index(drop=True)
    drawn = gate.together()[["intervention_id", *BOOTSTRAPPED]].assign(outcome=PRIMARY)
    table = table.merge(drawn, on=["outcome", "intervention_id"], how="left")
    return table.assign(simulated=gate.observations.simulated)


def groups(gate: Gate) -> pd.DataFrame:
    """One row a grouping, group and factor: the effect there, its interval, shrunken; Holm's p of no difference."""
    return gate.groups.to_frame().round(DIGITS).assign(simulated=gate.observations.simulated)


def rewrites(gate: Gate) -> pd.DataFrame:
    """One row a rewrite: its gain over the text in force (M21)."""
    return _labelled(gate.rewrites().set_index("slot").round(DIGITS), gate.observations.simulated)


def outcomes(gate: Gate) -> pd.DataFrame:
    """One row an outcome: means of both arms and the paired difference."""
    rows = [(name, fit.masked_mean, fit.bare_mean, fit.delta_mean) for name, fit in gate.outcomes.items()]
    table = pd.DataFrame(rows, columns=["outcome", "masked", "bare", "difference"]).set_index("outcome")
    return _labelled(table.round(DIGITS), gate.observations.simulated)


def metrics(comparison: Comparison) -> pd.DataFrame:
    """One row a metric: both arms, difference, percentile and BCa intervals, tasks used."""
    return _labelled(comparison.to_frame().set_index("metric").round(DIGITS), comparison.simulated)


def flips(comparison: Comparison, most: int = 5) -> pd.DataFrame:
    """Return the tasks that changed most, best and worst."""
    changed = comparison.flips[comparison.flips["delta"] != 0]
    ends = pd.concat([changed.head(most), changed.tail(most)]).drop_duplicates()
    return _labelled(ends.set_index("task_id").round(DIGITS), comparison.simulated)


def success(comparison: Comparison) -> pd.DataFrame:
    """Success in both arms, a two-by-two count of tasks; empty when success was not recorded for single rows."""
    bare, equipped = (
        next((name for name in map(str, comparison.flips) if name.startswith(arm) and name.endswith("success")), None)
        for arm in ("bare_", "equipped_")
    )
    if bare is None or equipped is None:
        return pd.DataFrame()
    words = {0.0: "fails", 1.0: "succeeds"}
    kept = comparison.flips[comparison.flips[[bare, equipped]].isin([0, 1]).all(axis=1)]
    table = pd.crosstab(kept[bare].map(words), kept[equipped].map(words))
    return table.reindex(index=list(words.values()), columns=list(words.values()), fill_value=0).rename_axis(
        index="bare", columns="equipped, simulated" if comparison.simulated else "equipped"
    )


def funnel(analyses: Analyses, planned: int) -> pd.DataFrame:
    """From training rollouts to eligible cards: one row a step or a reason, in the order of the workflow."""
    successes = [analysis for analysis in analyses if analysis.channel == "success"]
    failures = [card.facts for card in _cards(analyses) if card.channel == "failure"]
    reasons = Counter(card.facts.reason for card in _cards(analyses) if card.facts.reason is not None)
    eligible = Counter(card.channel for card in _cards(analyses) if card.eligible)
    rows = [
        ("training rollouts", planned, "asked for"),
        ("analysed", len(analyses), "scored, and an analyst has answered"),
        ("successes", len(successes), "read by the success analyst"),
        ("successes with a card", sum(bool(analysis.cards) for analysis in successes), "the others taught nothing new"),
        ("failures", len(failures), "audited in the shop by the failure analyst"),
        (
            "failures with a verified repair",
            sum(facts.repair_verified for facts in failures),
            "some propose nothing all the same",
        ),
        *((f"no proposal: {reason}", count, "stays in the audit") for reason, count in reasons.most_common()),
        ("eligible success cards", eligible["success"], "go on to the compiler"),
        ("eligible failure cards", eligible["failure"], "go on to the compiler"),
    ]
    table = pd.DataFrame(rows, columns=["step", "count", "remark"]).set_index("step")
    return _labelled(table, analyses.simulated)


def stages(analyses: Analyses) -> pd.DataFrame:
    """Eligible cards by workflow stage: how many, of how many tasks, how many repairs verified, how sure."""
    cards = [card for card in _cards(analyses) if card.eligible]
    rows = []
    for stage in STAGES:
        own = [card for card in cards if _lesson(card).workflow_stage == stage]
        sure = [card.facts.confidence for card in own if card.facts.confidence is not None]
        rows.append(
            {
                "stage": stage,
                "success cards": sum(card.channel == "success" for card in own),
                "failure cards": sum(card.channel == "failure" for card in own),
                "tasks": len({card.facts.task_group_key for card in own}),
                "verified repairs": sum(card.facts.repair_verified for card in own),
                "mean confidence": round(sum(sure) / len(sure), 2) if sure else None,
            }
        )
    return _labelled(pd.DataFrame(rows).set_index("stage"), analyses.simulated)


def mechanisms(analyses: Analyses, most: int = 12) -> pd.DataFrame:
    """Return the mechanisms that most cards name, as the analysts wrote them; similar ones are not merged yet."""
    cards = [card for card in _cards(analyses) if card.eligible]
    rows = [
        {
            "mechanism": lesson.mechanism if isinstance(lesson, SuccessLesson) else lesson.failure_mechanism,
            "channel": card.channel,
            "stage": lesson.workflow_stage,
            "task": card.facts.task_group_key,
        }
        for card in cards
        for lesson in [_lesson(card)]
    ]
    table = pd.DataFrame(rows, columns=["mechanism", "channel", "stage", "task"])
    counted = table.groupby(["mechanism", "channel", "stage"])["task"].agg(cards="size", tasks="nunique").reset_index()
    top = counted.sort_values(["cards", "mechanism"], ascending=[False, True]).head(most).set_index("mechanism")
    return _labelled(top, analyses.simulated)


def costs(calls: Sequence[ModelCall], stages: Sequence[str], simulated: bool) -> pd.DataFrame:
    """What the calls of each role cost in these stages; a sum that would hide an unknown part is left empty."""
    rows = []
    for stage, role in sorted({(call.stage, call.role) for call in calls if call.stage in stages}):
        own = [call for call in calls if (call.stage, call.role) == (stage, role)]
        usage = total_usage(call.usage for call in own)
        money = [call.money for call in own if call.money is not None]
        rows.append(
            {
                "stage": stage,
                "role": role,
                "calls": len(own),
                "faults": sum(call.outcome == "fault" for call in own),
                "errors": sum(call.outcome == "error" for call in own),
                "prompt tokens": None if usage is None else usage.prompt_tokens,
                "completion tokens": None if usage is None else usage.completion_tokens,
                "money": round(sum(money), 4) if len(money) == len(own) else None,
            }
        )
    table = pd.DataFrame(rows, columns=["stage", "role", *_COSTS]).set_index(["stage", "role"])
    return _labelled(table, simulated)


def draft_steps(draft: Draft) -> pd.DataFrame:
    """From cards to versions: one row a step of the compiler."""
    eligible = {name for cluster in draft.clusters for name in cluster.card_ids}
    early = [left for left in draft.left_out if left.step != "compilation"]
    both = sum(len(one.channels) == 2 for one in draft.mechanisms)
    rows = [
        ("cards", len(draft.account()), "of all analyses, with those that propose nothing"),
        ("cards in clusters", len(eligible), f"{len(early)} others left out, with reasons"),
        ("clusters", len(draft.clusters), "one mechanism of one channel each"),
        ("mechanisms", len(draft.mechanisms), f"{both} of them known from both channels"),
        ("versions", len(draft.versions), f"factors of the gate, {CAP} at most"),
    ]
    return _labelled(pd.DataFrame(rows, columns=["step", "count", "remark"]).set_index("step"), draft.simulated)


def draft_mechanisms(draft: Draft) -> pd.DataFrame:
    """The mechanisms by priority: what supports each, and where it went."""
    clusters = {cluster.cluster_id: cluster for cluster in draft.clusters}
    went = {name: version.title for version in draft.versions for name in version.mechanism_ids}
    went |= {left.item_id: f"left out: {left.reason}" for left in draft.left_out if left.step == "compilation"}
    rows = [
        {
            "priority": one.priority,
            "mechanism": clusters[one.cluster_ids[0]].mechanism,
            "stage": one.workflow_stage,
            "channels": " + ".join(one.channels),
            "tasks": one.support_tasks,
            "categories": one.categories,
            "verified repairs": one.verified_repairs,
            "reward lost": None if one.reward_lost is None else round(one.reward_lost, 2),
            "went to": went[one.mechanism_id],
        }
        for one in draft.mechanisms
    ]
    return _labelled(pd.DataFrame(rows).set_index("priority"), draft.simulated)


def provenance(draft: Draft) -> pd.DataFrame:
    """The versions in the order of the prompt, and how much each rests on; `#` is the column of the mask."""
    rows = [
        {
            "version": version.version_id,
            "title": version.title,
            "stage": version.workflow_stage,
            "operation": version.operation,
            "mechanisms": len(version.mechanism_ids),
            "clusters": len(version.cluster_ids),
            "success cards": sum(source.channel == "success" for source in version.sources),
            "failure cards": sum(source.channel == "failure" for source in version.sources),
            "steps cited": sum(len(source.steps) for source in version.sources),
        }
        for version in draft.versions
    ]
    table = pd.DataFrame(rows)
    table.index = pd.RangeIndex(1, len(table) + 1, name="#")
    return _labelled(table, draft.simulated)


def sources(draft: Draft, most: int = 2) -> pd.DataFrame:
    """The first sources of every version: the card, its trajectory, the steps it cites."""
    rows = [
        {
            "title": version.title,
            "card": source.card_id,
            "channel": source.channel,
            "trajectory": source.trajectory_id,
            "steps": ", ".join(map(str, source.steps)),
        }
        for version in draft.versions
        for source in version.sources[:most]
    ]
    return _labelled(pd.DataFrame(rows).set_index(["title", "card"]), draft.simulated)


def left_out(draft: Draft) -> pd.DataFrame:
    """The cards that support no version, by the step at which they were left out and the reason."""
    lost = [place for place in draft.account().values() if not isinstance(place, str)]
    counts = Counter((left.step, left.reason) for left in lost)
    rows = [(step, reason, count) for (step, reason), count in counts.most_common()]
    return _labelled(pd.DataFrame(rows, columns=["step", "reason", "cards"]).set_index("step"), draft.simulated)


def triage(rounds: Sequence[Round]) -> pd.DataFrame:
    """What became of the groups, and of what they proposed: one column a round."""
    table = pd.DataFrame({f"round {done.number}": done.report.funnel for done in rounds}).rename_axis("step")
    return _labelled(table, _any_simulated(rounds))


def candidates(rounds: Sequence[Round]) -> pd.DataFrame:
    """Every candidate with what its gate said."""
    table = _over(rounds, Round.candidates).set_index(["round", "candidate_id"])
    return _labelled(table, _any_simulated(rounds))


def effects(rounds: Sequence[Round]) -> pd.DataFrame:
    """Every text that a gate measured, Gate A included (round -): effect, interval, decision.

    `#` numbers the texts in the order of their chunks; figures label texts by it that they cannot print.
    """
    rows = [found.model_dump(exclude={"text", "text_sha256", "reason", "checkpoint"}) for found in rounds[-1].lineage]
    table = pd.DataFrame(rows).astype({"rank": "Int64", "round": "Int64"})
    numbers = {version: number for number, version in enumerate(dict.fromkeys(table["version_id"]), 1)}
    table.insert(0, "#", table["version_id"].map(numbers))
    table["rank"], table["round"] = (table[name].astype(object).fillna("-") for name in ("rank", "round"))
    return _labelled(table.set_index(["#", "title"]).round(DIGITS), _any_simulated(rounds))


def rho(rounds: Sequence[Round]) -> pd.DataFrame:
    """Probability with which the groups of each round were shown a chunk; empty where it was not in the skill."""
    titles = {found.chunk_id: found.title for found in rounds[-1].lineage}
    table = _over(rounds, Round.rho).assign(title=lambda rows: rows["chunk_id"].map(titles))
    wide = table.pivot(index=["title", "chunk_id"], columns="round", values="rho").add_prefix("round ")
    return _labelled(wide, _any_simulated(rounds))


def gaps(rounds: Sequence[Round]) -> pd.DataFrame:
    """One row a round: size of the skill, reward without (R_free) and with it (R_pair), and their difference G."""
    names = {"bare": "R_free", "full": "R_pair", "gap": "G", "ci_low": "G low", "ci_high": "G high"}
    columns = ["checkpoint", "chunks before", "chunks after", "retired", "looks", *names.values()]
    table = _over(rounds, Round.to_frame).set_index("round").rename(columns=names)
    measured = dict.fromkeys(names.values(), float)  # also where no round has a gap
    return _labelled(table[columns].astype(measured), _any_simulated(rounds))


def noise(rounds: Sequence[Round]) -> pd.DataFrame:
    """One row a gate, Gate A (round -) included, whose noise floor is known (`rounds.noise_floors`)."""
    return _labelled(noise_floors(rounds).round(DIGITS), _any_simulated(rounds))


def _over(rounds: Sequence[Round], frame: Callable[[Round], pd.DataFrame]) -> pd.DataFrame:
    """Put the frames of one or more rounds under each other."""
    frames = [frame(done) for done in rounds]
    return pd.concat([one for one in frames if len(one)] or frames[:1], ignore_index=True).round(DIGITS)


def _any_simulated(rounds: Sequence[Round]) -> bool:
    return any(done.report.simulated for done in rounds)


def _cards(analyses: Sequence[Analysis]) -> list[Card]:
    return [card for analysis in analyses for card in analysis.cards]


def _lesson(card: Card) -> SuccessLesson | FailureLesson:
    """Return the texts of an eligible card."""
    if card.deployable is None:
        raise ValueError(f"card {card.card_id} proposes nothing")
    return card.deployable


def _labelled(table: pd.DataFrame, simulated: bool) -> pd.DataFrame:
    """Write `simulated` over a table that rests on a simulated model."""
    return table.rename_axis(columns="simulated") if simulated else table
