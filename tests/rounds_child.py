"""Online rounds with a scripted analyst and compiler: shared by tests, and a process of its own to stop and to kill.

python rounds_child.py RUN_DIR ROUNDS
"""

import sys
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from shopskill_lib import gates, looks, online, protocol
from shopskill_lib.cards import Analysis, Card, Facts, FailureLesson
from shopskill_lib.console import Parser, respond
from shopskill_lib.cycle import Authors
from shopskill_lib.pools import Add, Candidate, Pool, Rewrite
from shopskill_lib.records import Task, fingerprint
from shopskill_lib.settings import Settings
from shopskill_lib.skills import Skill
from shopskill_lib.trajectories import Trajectory
from shopskill_lib.workbench import Bench

DRAFT = """# Shop

## Query {#query}

Put every requirement into one query when you search.

## Nothing {#nothing}

Keep a friendly tone.

## 核对价格 {#price}

选好规格后，核对所选规格的价格是否在预算之内。
"""
SETTINGS = {
    "n_products": 2000,
    "n_train": 24,
    "n_val": 24,
    "n_test": 4,
    "max_steps": 12,
    "n_groups": 8,
    "group_size": 2,
    "n_gap": 10,
    "rounds": 2,
}
RULE = online.Rule(resamples=200)


def card(trajectory: Trajectory) -> Card:
    """A card that asks for a new chunk."""
    lesson = FailureLesson(
        workflow_stage="persona",
        failure_mechanism="the persona is not read",
        applicable_when="the request leaves something open",
        observable_trigger="a persona is shown",
        corrective_procedure="use the persona for what the request leaves open",
        verification_step="look again",
    )
    facts = Facts(
        status="PROPOSE_ADD",
        reason=None,
        covered_by=None,
        surface="persona_preference",
        repair_verified=True,
        repair_actions=1,
        steps=(1,),
        reward=trajectory.reward,
        reward_lost=1.0,
        confidence=None,
        task_group_key="k",
        category_key=None,
        reasked=False,
        simulated=True,
    )
    return Card(
        card_id=f"card-{fingerprint(trajectory.trajectory_id)[:12]}",
        source_trajectory_id=trajectory.trajectory_id,
        channel="failure",
        facts=facts,
        deployable=lesson,
    )


class Scripted:
    """Authors that ask nobody: every failed retry is a card, every round proposes what it is told."""

    def __init__(self, *proposals: list[Candidate]) -> None:
        self.proposals = list(proposals)
        self.analysed: list[Trajectory] = []
        self.skills: list[Skill] = []

    @property
    def authors(self) -> Authors:
        return Authors(self.analyse, self.build)

    def analyse(
        self, bench: Bench, pairs: Sequence[tuple[Trajectory, Task]], skill: Skill, **rest: Any
    ) -> list[Analysis]:
        assert rest["stage"] == "online"
        self.analysed += [trajectory for trajectory, _ in pairs]
        return [
            Analysis(identity="i", trajectory_id=seen.trajectory_id, channel="failure", cards=(card(seen),))
            for seen, _ in pairs
        ]

    def build(self, bench: Bench, cards: Sequence[Card], skill: Skill) -> Any:
        self.skills.append(skill)
        number = int(bench.folder.name.split("_")[1].split(".")[0])
        wanted = self.proposals[number] if number < len(self.proposals) else []
        candidates = [one.model_copy(update={"evidence_card_ids": (cards[0].card_id,)}) for one in wanted]
        versions = skill.chunks or candidates
        pool = None
        if versions:
            pool = Pool(title=skill.title, kind="current", chunks=skill.chunks, candidates=tuple(candidates))
        cluster = SimpleNamespace(
            cluster_id="cluster-1", channel="failure", mechanism="persona", card_ids=[cards[0].card_id]
        )
        versions = [
            SimpleNamespace(
                version_id=one.candidate_id,
                operation=one.operation,
                target_chunk_id=one.target_chunk_id,
                sources=[cards[0]],
                cluster_ids=["cluster-1"],
                reason="seen",
            )
            for one in candidates
        ]
        return SimpleNamespace(
            pool=pool, origin="online", versions=versions, clusters=[cluster], mechanisms=[], left_out=[]
        )


def add(text: str, name: str = "candidate-a") -> Add:
    return Add(
        candidate_id=name,
        workflow_stage="persona",
        title="Persona",
        applicable_when="x",
        procedure=("y",),
        verification="z",
        common_failure="f",
        content=text,
        evidence_card_ids=("card-1",),
    )


def rewrite(target: str, text: str, name: str = "candidate-r") -> Rewrite:
    return Rewrite(
        candidate_id=name,
        workflow_stage="query",
        target_chunk_id=target,
        title="Query",
        reason="r",
        content=text,
        evidence_card_ids=("card-1",),
    )


PERSONA = "Use the persona for whatever the request leaves open."
PROPOSALS = ([add(PERSONA), rewrite("nothing", "Compare several candidates.")], [])


def gated(folder: Path, draft: str = DRAFT, **names: Any) -> Bench:
    """A run folder in which Gate A has been run."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "draft.md").write_text(draft, encoding="utf-8")
    settings = Settings.of(SETTINGS | {"draft": str(folder / "draft.md")} | names)
    bench = protocol.set_up(settings, folder)
    pairs = gates.read_observations(protocol.gate_a(bench), folder / "interventions.json")
    gate = gates.fit_gate(pairs, resamples=200)
    looks.freeze(folder / "gate_a.json", gate.to_json(), gate.key())
    protocol.write_selected(bench, gate.selected)
    return bench


def command(options: Namespace) -> str:
    bench = protocol.set_up(
        Settings.of(SETTINGS | {"draft": str(options.run_dir / "draft.md"), "rounds": options.rounds}), options.run_dir
    )
    return "\n".join(map(str, online.rounds(bench, Scripted(*PROPOSALS).authors, RULE)))


if __name__ == "__main__":
    parser = Parser()
    parser.add_argument("run_dir", type=Path)
    parser.add_argument("rounds", type=int)
    parser.set_defaults(command=command)
    sys.exit(respond(parser))
