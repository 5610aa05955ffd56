"""Five online rounds at reduced size: a chunk that the policy learns, and a failure that training brings about.

    python bench/rounds.py                      300 val tasks, 40 groups of 4, seed 0, about two minutes
    python bench/rounds.py --seeds 0 1 2

Everything is simulated: shopper, author and trainer. The trainer of round 2 also forgets `exact`: the gate of round 2
and the groups of round 3 are the first to meet it, no chunk of the draft speaks of it, and the analyst can only learn
of it from failed retries.
"""

import argparse
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pandas as pd

from shopskill_lib import cycle, gates, looks, online, protocol, tables
from shopskill_lib.lab import learner
from shopskill_lib.lab.learner import Lesson
from shopskill_lib.models import Endpoint
from shopskill_lib.rounds import Round
from shopskill_lib.settings import Settings
from shopskill_lib.simulated import shopper
from shopskill_lib.simulated.competences import Competences, advice
from shopskill_lib.skills import Skill, read_skill
from shopskill_lib.workbench import Bench

CHUNKS = ("search-words", "unspoken-wishes", "several-candidates", "final-amount", "way-out", "seasons")
"""Of the shipped draft: five that help, one that does nothing; none on the exact option."""

ROUNDS = 5
FORGETTING, FORGOTTEN, LEVEL = 2, "exact", 0.6
"""Round whose training forgets, what, and the level it falls to."""

SETTINGS = {"n_products": 6000, "n_test": 1, "n_groups": 40, "n_gap": 100, "rounds": ROUNDS, "max_candidates": 4}


def train(policy: Endpoint, checkpoint: str, lessons: Sequence[Lesson]) -> Endpoint:
    """Train as simulated, and forget once."""
    taught = cycle.train_simulated(policy, checkpoint, lessons)
    if not checkpoint.endswith(f"+r{FORGETTING}"):
        return taught
    drifted = learner.forget(shopper.base_of(taught.model), FORGOTTEN, LEVEL)
    return replace(taught, model=shopper.model_name(drifted))


def gate_a(folder: Path, n_val: int, seed: int) -> Bench:
    """Run Gate A on the draft's chunks."""
    draft = read_skill(protocol.DRAFTS / "skill_en.md").subset(CHUNKS)
    folder.mkdir()
    (folder / "draft.md").write_text(draft.to_markdown(), encoding="utf-8")
    names = SETTINGS | {"draft": str(folder / "draft.md"), "n_val": n_val, "n_train": 40 * ROUNDS}
    names |= {"mask_seed": seed, "rollout_seed": seed}
    bench = protocol.set_up(Settings.of(names), folder)
    pairs = gates.read_observations(protocol.gate_a(bench), folder / "interventions.json")
    gate = gates.fit_gate(pairs, resamples=1000)
    looks.freeze(folder, folder / "gate_a.json", gate.to_json(), gate.key())
    protocol.write_selected(bench, gate.selected)
    print(gate.to_frame()[["intervention_id", "coefficient", "std_error", "status"]].round(3).to_string(index=False))
    return bench


def spoken(skill: Skill) -> str:
    """Say which competences a skill helps."""
    return ", ".join(name for name, (helping, _) in advice(skill.to_markdown()).items() if helping) or "nothing"


def competences(done: Sequence[Round]) -> pd.DataFrame:
    """Competences of every round's gate, without a skill: one column a round."""
    rows = {one.number: shopper.base_of(one.report.evaluation_model) for one in done}
    return pd.DataFrame(rows, index=list(Competences._fields))


def run(seed: int, n_val: int) -> None:
    """Run one loop, and print it by round."""
    folder = Path(tempfile.mkdtemp(prefix="shopskill-rounds-")) / "run"
    started = time.perf_counter()
    print(f"\nsimulated, seed {seed}: Gate A on {n_val} tasks")
    bench = gate_a(folder, n_val, seed)
    done = online.rounds(bench, online.Rule(resamples=1000), train)
    print(f"{tables.triage(done).to_string()}\n{tables.gaps(done).to_string()}")
    print("\ncompetences of each round's checkpoint:\n" + competences(done).to_string())
    print("\nwhat the skill after each round helps:")
    for one in done:
        skill, gone = protocol.read_selected(one.folder), ", ".join(one.report.retired) or "nothing"
        print(f"  {one.number}: {spoken(skill)}; retired {gone}")
    print("\nalpha by chunk, text and round:")
    table = pd.concat([one.alphas() for one in done])
    texts = table.pivot_table(index=["chunk_id", "version_id"], columns="round", values="alpha")
    print(texts.round(3).to_string(na_rep="-"))
    print("\ncandidates:\n" + tables.candidates(done).drop(columns=["ci_low", "ci_high"]).to_string())
    print(f"{time.perf_counter() - started:.0f} s")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--n-val", type=int, default=300)
    options = parser.parse_args()
    for number in options.seeds:
        run(number, options.n_val)
