"""Labels without a selection: looks after the declared stages of a gate, and a replication on new masks (M23).

A look tells early what is already told apart from 0; a replication asks the same question of a finished gate once more.
Neither selects, neither changes the skill, and each is counted among the looks at the validation tasks.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from shopskill_lib import gates, looks, protocol, sequential
from shopskill_lib.cycle import Rule
from shopskill_lib.errors import InputError, ParameterError
from shopskill_lib.files import read_json
from shopskill_lib.gates import Gate
from shopskill_lib.inference import LEVEL
from shopskill_lib.observations import plain_rows
from shopskill_lib.workbench import Bench

LABELLED = ("intervention_id", "coefficient", "std_error", "ci_low", "ci_high", "p_bh", "label")


@dataclass(frozen=True, slots=True)
class Labels:
    """What a look or a replication says.

    Attributes:
        head: what was looked at, in words.
        gate: the fit; its selection is not used.
        earlier: (K,) estimates of the finished gate and whether it selected each, by id; empty at a look.
    """

    head: str
    gate: Gate
    earlier: pd.DataFrame

    def to_frame(self) -> pd.DataFrame:
        """One row a shown factor, best first."""
        errors = self.gate.to_frame()[["intervention_id", "std_error", "ci_low", "ci_high"]]
        table = self.gate.together().merge(errors, on="intervention_id")[list(LABELLED)]
        table = table.join(self.earlier, on="intervention_id") if len(self.earlier) else table
        return table.sort_values("coefficient", ascending=False, ignore_index=True)

    def to_json(self) -> dict[str, Any]:
        """Return the record: labels only."""
        pairs = self.gate.observations
        return {
            "simulated": pairs.simulated,
            "source": {"name": pairs.name, "sha256": pairs.sha256},
            "n_pairs": len(pairs.task_ids),
            "n_tasks": int(pairs.tasks.max()) + 1,
            "level": self.gate.joint.level,
            "factors": plain_rows(self.to_frame()),
            "selected": [],
            "verdict": self.verdict(),
            "notes": list(self.gate.notes),
        }

    def verdict(self) -> str:
        """Say what is told apart from 0, and that nothing is selected."""
        labels = self.gate.joint.labels
        counts = ", ".join(f"{label} {labels.count(label)}" for label in ("keep", "drop", "undecided"))
        told = f"{'simulated: ' if self.gate.observations.simulated else ''}{self.head}, "
        told += f"{len(self.gate.observations.task_ids)} pairs: {counts} at {self.gate.joint.rate}."
        if len(self.earlier):
            chosen = self.to_frame().query("selected")
            told += f" The {len(chosen)} selected sum to {chosen['gate'].sum():+.3f} in the gate and to "
            told += f"{chosen['coefficient'].sum():+.3f} here."
        return f"{told} Labels only: nothing is selected by this (M23)."

    def __str__(self) -> str:
        table = self.to_frame().round(4).to_string(index=False)
        return "\n".join([table, self.verdict(), *(f"note: {note}" for note in self.gate.notes)])


def look(bench: Bench, stage: int, rule: Rule) -> Labels:
    """Roll out the stages up to this one, and label what they tell apart from 0.

    Args:
        bench: with the draft to measure; its settings declare the stages.
        stage: counted from 1; the last one is the gate itself.
        rule: resamples, their seed and the share of pairs that may be missing; its budget is not used.

    Raises:
        ParameterError: there is no such stage, a later one has been looked at, or the gate is there.
        DesignError: other stages were declared.
    """
    stages = protocol.stages(bench)
    stages.until(stage)
    later = [other for other in range(stage + 1, len(stages.parts)) if sequential.looked(other, bench.folder).exists()]
    record = sequential.looked(stage, bench.folder)
    if not record.exists() and (later or (bench.folder / protocol.GATE).exists()):
        raise ParameterError(
            f"stage {stage} comes too late: "
            + (f"stage {later[0]} has been looked at" if later else "the gate is there"),
            where=str(bench.folder),
            allowed="looks in the order of the stages, before the gate",
            todo="read what is there: its labels rest on more tasks",
        )
    level = sequential.level_after(stages, range(1, stage), bench.folder, stages.share(stage))
    found = Labels(
        f"stage {stage} of {len(stages.parts)}", _fit(protocol.gate_a(bench, stage), bench, rule, level), pd.DataFrame()
    )
    key = {**found.gate.key(), "stage": stage}
    looks.freeze(bench.folder, record, found.to_json(), key, f"stage {stage}, as declared")
    return found


def replicate(bench: Bench, mask_seed: int, rule: Rule) -> Labels:
    """Measure a finished gate's chunks on the same tasks under new masks; bare runs are those of the gate.

    Args:
        bench: of a run folder with a frozen Gate A.
        mask_seed: of the new masks.
        rule: as in `look`.

    Returns:
        Labels of the new pairs alone, beside the gate's estimates. Files lie in `replications/seed_<mask_seed>`.

    Raises:
        InputError: no gate is frozen here.
        ParameterError: the seed is the gate's own.
        DesignError: the draft is another one than the gate's.
    """
    path = bench.folder / protocol.GATE
    if not path.exists():
        raise InputError(
            "there is no finished gate here", where=str(path), allowed="a frozen Gate A", todo="run 03_gate_a first"
        )
    if mask_seed == bench.settings.mask_seed:
        raise ParameterError(
            f"the masks of seed {mask_seed} are the gate's own",
            where="--replicate",
            allowed="another seed",
            todo=f"give for example --replicate {mask_seed + 1000}",
        )
    protocol.freeze_texts(protocol.pool_of(bench), bench.folder / protocol.INTERVENTIONS)
    new = protocol.under_masks(bench, mask_seed)
    frozen = read_json(path)
    gate = _fit(protocol.gate_a(new), new, rule)
    rows = {
        factor["intervention_id"]: (factor["coefficient"], factor["status"] == "selected")
        for factor in frozen["factors"]
    }
    earlier = pd.DataFrame.from_dict(rows, orient="index", columns=["gate", "selected"])
    found = Labels(f"replication under masks of seed {mask_seed}", gate, earlier)
    record = new.folder / looks.REPLICATION
    looks.freeze(bench.folder, record, found.to_json(), gate.key(), f"replication, masks of seed {mask_seed}")
    return found


def _fit(file: Path, bench: Bench, rule: Rule, level: float = LEVEL) -> Gate:
    """Fit the pairs of a look; what the rule would select is not used."""
    pairs = gates.read_observations(file, bench.folder / protocol.INTERVENTIONS, rule.max_missing)
    return gates.fit_gate(pairs, None, resamples=rule.resamples, analysis_seed=rule.analysis_seed, level=level)
