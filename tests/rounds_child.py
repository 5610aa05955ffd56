"""Small online rounds: a run folder with a gated skill, and a process of its own to stop and to kill.

python rounds_child.py RUN_DIR ROUNDS [--hold]
"""

import sys
import time
from argparse import Namespace
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from shopskill_lib import cycle, gates, looks, online, protocol, rounds
from shopskill_lib.cards import Card
from shopskill_lib.compiler import Draft, Source, Version
from shopskill_lib.console import Parser, respond
from shopskill_lib.models import Model
from shopskill_lib.pools import Add, Parts, Pool, Rewrite
from shopskill_lib.settings import Settings
from shopskill_lib.skills import Skill
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
    "n_train": 40,
    "n_val": 24,
    "n_test": 4,
    "max_steps": 12,
    "n_groups": 16,
    "group_size": 2,
    "n_gap": 10,
    "rounds": 2,
    "rollout_seed": 8,
}
RULE = online.Rule(resamples=200)


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


def proposing(*rounds: Sequence[Add | Rewrite]) -> Callable[..., Draft]:
    """A compiler that proposes these candidates round by round, whatever the cards say."""

    def build(author: Model, cards: Sequence[Card], skill: Skill, **rest: Any) -> Draft:  # noqa: ARG001
        number = int(rest["folder"].name.split("_")[1].split(".")[0])
        given = rounds[number] if number < len(rounds) else ()
        card_ids = (cards[0].card_id,)
        candidates = tuple(one.model_copy(update={"evidence_card_ids": card_ids}) for one in given)
        return Draft(
            origin="online",
            language="en",
            simulated=True,
            pool=Pool(title="s", kind="current", chunks=skill.chunks, candidates=candidates)
            if skill.chunks or candidates
            else None,
            versions=tuple(version(one, cards[0]) for one in candidates),
            clusters=(),
            mechanisms=(),
            left_out=(),
            complaints=(),
        )

    return build


def version(candidate: Add | Rewrite, card: Card) -> Version:
    parts = Parts(applicable_when="x", procedure=("y",), verification="z", common_failure="f")
    source = Source(
        card_id=card.card_id, trajectory_id=card.source_trajectory_id, channel=card.channel, steps=card.facts.steps
    )
    return Version(
        version_id=candidate.candidate_id,
        operation=candidate.operation,
        target_chunk_id=candidate.target_chunk_id,
        workflow_stage=candidate.workflow_stage,
        title=candidate.title,
        content=candidate.content,
        parts=parts,
        reason="seen",
        mechanism_ids=(),
        cluster_ids=(),
        sources=(source,),
    )


def gated(folder: Path, draft: str = DRAFT, **names: Any) -> Bench:
    """A run folder in which Gate A has been run."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "draft.md").write_text(draft, encoding="utf-8")
    settings = Settings.of(SETTINGS | {"draft": str(folder / "draft.md")} | names)
    bench = protocol.set_up(settings, folder)
    pairs = gates.read_observations(protocol.gate_a(bench), folder / "interventions.json")
    gate = gates.fit_gate(pairs, resamples=200)
    looks.freeze(folder, folder / "gate_a.json", gate.to_json(), gate.key())
    protocol.write_selected(bench, gate.selected)
    return bench


def hold(write: Callable[..., None]) -> Callable[..., None]:
    """Write, then wait to be killed: what follows is over in a few milliseconds."""

    def _write(*given: Any) -> None:
        write(*given)
        time.sleep(60)

    return _write


def command(options: Namespace) -> str:
    if options.hold:
        cycle.__dict__["write_lineage"] = hold(rounds.write_lineage)
    names = SETTINGS | {"draft": str(options.run_dir / "draft.md"), "rounds": options.rounds}
    return "\n".join(map(str, online.rounds(protocol.set_up(Settings.of(names), options.run_dir), RULE)))


if __name__ == "__main__":
    parser = Parser()
    parser.add_argument("run_dir", type=Path)
    parser.add_argument("rounds", type=int)
    parser.add_argument("--hold", action="store_true", help="wait once the lineage is written")
    parser.set_defaults(command=command)
    sys.exit(respond(parser))
