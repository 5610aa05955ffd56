"""The online loop: groups, triage, candidates, training, gate, next skill - one folder a round (METHOD M26-M30).

A round is built in `online/.round_000.staging` and renamed when it is complete: a killed process resumes there and buys
nothing twice, a finished round is never built again, and nothing but a gate's decision changes the skill (I7, I8).
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd

from shopskill_lib import chronicle, curriculum, gates, ledger, looks, protocol, rollouts, triage, workbench
from shopskill_lib.cards import Card
from shopskill_lib.curriculum import Curriculum, Shown
from shopskill_lib.errors import InputError, ParameterError
from shopskill_lib.files import parse_json, read_text, write_json
from shopskill_lib.gates import Gate
from shopskill_lib.models import SIMULATED, Endpoint
from shopskill_lib.pools import Pool
from shopskill_lib.protocol import ROUNDS
from shopskill_lib.rounds import (
    Gap,
    Groups,
    Measured,
    Proposed,
    Report,
    Round,
    in_force,
    measured,
    name,
    proposed,
    read_round,
    read_rounds,
    write_lineage,
)
from shopskill_lib.skills import Skill
from shopskill_lib.store import locked
from shopskill_lib.triage import Triage
from shopskill_lib.workbench import Bench

__all__ = ["Rule", "foresee", "read_rounds", "rounds"]

DECIDING = (
    "n_train", "n_val", "persona", "masked_samples", "mask_seed", "rollout_seed", "n_groups", "group_size", "rho_min",
    "rho_max", "max_candidates", "n_gap", "trainer", "audit_rounds", "audit_tokens", "context_tokens", "author_model",
    "author_checkpoint", "author_temperature", "author_max_tokens", "author_send_seed",
)  # fmt: skip
"""Settings that decide a round beside its agent, its skill and its rule. `q` is not among them: it is the user's
schedule and may change from round to round (M29)."""

@dataclass(frozen=True, slots=True)
class Rule:
    """How the gates of the rounds are fitted.

    Attributes:
        budget: K; None for min(10, slots), and never more than a round has slots.
        resamples: bootstrap resamples.
        analysis_seed: their seed.
        max_missing: share of pairs that may be missing (M20).
    """

    budget: int | None = None
    resamples: int = gates.RESAMPLES
    analysis_seed: int = 0
    max_missing: float = 0.0


@dataclass(frozen=True, slots=True)
class _Start:
    """What a round begins with.

    Attributes:
        skill: in force.
        lineage: every text gated so far; the latest gate's selected ones are the skill.
        policy: weights of the groups.
        looks: gates that used these validation tasks so far.
    """

    number: int
    skill: Skill
    lineage: tuple[Measured, ...]
    policy: Endpoint
    looks: int

    def curriculum(self, settings: Any) -> Curriculum:
        """Return the curriculum of the round's groups (M26, M29)."""
        rows = in_force(self.lineage)
        alphas = {row.chunk_id: row.alpha for row in rows if row.alpha is not None}
        rho = curriculum.rho(alphas, settings.rho_min, settings.rho_max)
        chunks = tuple(Shown(row.chunk_id, row.text_sha256, alphas[row.chunk_id], rho[row.chunk_id]) for row in rows)
        return Curriculum(self.number, self.policy.checkpoint, settings.rollout_seed, settings.q, chunks)
