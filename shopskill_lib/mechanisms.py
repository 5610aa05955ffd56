"""Clusters of both channels -> mechanisms in order of priority (M13). Priority orders; it claims no effect."""

from collections.abc import Mapping, Sequence

from shopskill_lib.cards import Card, Channel, Stage
from shopskill_lib.clusters import Cluster
from shopskill_lib.records import Language, Record, fingerprint
from shopskill_lib.similarity import align

LARGE_LOSS = 0.5
"""Mean reward lost from which a failure's harm is large."""


class Mechanism(Record):
    """What one chunk may be made of: a cluster, or one of each channel."""

    mechanism_id: str
    """`mechanism-` and 12 hex digits of its clusters."""
    workflow_stage: Stage
    """Of the cluster with more tasks; of the success cluster when they are level."""
    channels: tuple[Channel, ...]
    cluster_ids: tuple[str, ...]
    """In the order of the channels."""
    priority: int
    """From 1, the first."""
    support_tasks: int
    """Independent tasks behind it: cards of one task are one support."""
    categories: int
    """Different categories behind it, as far as they are known."""
    verified_repairs: int
    """Cards whose counterfactual was executed and avoids the failure (M7)."""
    reward_lost: float | None
    """Mean over the cards that know it; never told to an author."""

    @property
    def protected(self) -> bool:
        """Whether the program drops it only after all others: known from failures alone, verified, of large harm."""
        alone = self.channels == ("failure",) and self.verified_repairs > 0
        return alone and self.reward_lost is not None and self.reward_lost >= LARGE_LOSS


def mechanisms_of(clusters: Sequence[Cluster], cards: Mapping[str, Card], language: Language) -> list[Mechanism]:
    """Return the mechanisms, first priority first.

    Order, each a tie-breaker of the one before: more independent tasks; both channels; more verified repairs; more
    reward lost on average, unknown last; more categories; id.

    Args:
        clusters: of both channels, clean by the firewall (I10).
        cards: card id -> card.
        language: of the texts.
    """
    ordered = sorted(clusters, key=lambda cluster: cluster.cluster_id)
    success = [cluster for cluster in ordered if cluster.channel == "success"]
    failure = [cluster for cluster in ordered if cluster.channel == "failure"]
    pairs = align([one.passage for one in success], [one.passage for one in failure], language)
    partner = {one: failure[other] for one, other in pairs}
    taken = {other for _, other in pairs}
    joined = [(one, partner[n]) if n in partner else (one,) for n, one in enumerate(success)]
    alone = [(one,) for n, one in enumerate(failure) if n not in taken]
    made = sorted((_mechanism(group, cards) for group in (*joined, *alone)), key=_order)
    return [one.model_copy(update={"priority": place}) for place, one in enumerate(made, 1)]


def _mechanism(clusters: Sequence[Cluster], cards: Mapping[str, Card]) -> Mechanism:
    """Count what stands behind clusters of one mechanism."""
    facts = [cards[name].facts for cluster in clusters for name in cluster.card_ids]
    losses = [fact.reward_lost for fact in facts if fact.reward_lost is not None]
    leading = max(clusters, key=lambda cluster: len({cards[name].facts.task_group_key for name in cluster.card_ids}))
    ids = tuple(cluster.cluster_id for cluster in clusters)
    return Mechanism(
        mechanism_id=f"mechanism-{fingerprint(sorted(ids))[:12]}",
        workflow_stage=leading.workflow_stage,
        channels=tuple(cluster.channel for cluster in clusters),
        cluster_ids=ids,
        priority=0,
        support_tasks=len({fact.task_group_key for fact in facts}),
        categories=len({fact.category_key for fact in facts} - {None}),
        verified_repairs=sum(fact.repair_verified for fact in facts),
        reward_lost=sum(losses) / len(losses) if losses else None,
    )


def _order(mechanism: Mechanism) -> tuple[int, int, int, bool, float, int, str]:
    """Return the documented order as a key."""
    lost = mechanism.reward_lost
    return (
        -mechanism.support_tasks,
        -len(mechanism.channels),
        -mechanism.verified_repairs,
        lost is None,
        -(lost or 0.0),
        -mechanism.categories,
        mechanism.mechanism_id,
    )
