"""Cold start of a run folder: training trajectories -> cards -> a draft (METHOD M5-M16)."""

from shopskill_lib import compiler, distil, protocol, workbench
from shopskill_lib.cards import Card
from shopskill_lib.compiler import Draft
from shopskill_lib.distil import Analyses
from shopskill_lib.errors import InputError
from shopskill_lib.workbench import Bench


def foresee(bench: Bench) -> str:
    """Say what the training rollouts and their analyses will ask of both models."""
    skill = distil.seed_skill(bench)
    owed = protocol.foresee(bench, distil.plan_train(bench, skill))
    return f"training rollouts: {owed} Then up to {bench.settings.n_train} analyses by {bench.settings.author_model}."


def collect(bench: Bench) -> Analyses:
    """Roll out and analyse the training tasks (see `distil.collect`)."""
    return distil.collect(bench, distil.seed_skill(bench))


def foresee_draft(bench: Bench) -> str:
    """Say what the compiler will be asked."""
    eligible = sum(card.eligible for card in _cards(bench))
    return f"{eligible} cards to consolidate and compile by {bench.settings.author_model}"


def draft(bench: Bench) -> Draft:
    """Compile the run folder's cards into the draft that Gate A measures (see `compiler.build`).

    Raises:
        InputError: 01_cards has not been run here.
    """
    cards = _cards(bench)
    skill = distil.seed_skill(bench)
    pairs, _ = distil.train_pairs(bench, skill)
    author = workbench.connect_to(workbench.endpoint(bench.settings, "author"))
    try:
        return compiler.build(
            author,
            cards,
            skill,
            screen=distil.screen_of(pairs, bench.catalogue.products),
            settings=bench.settings,
            folder=bench.folder,
            cap=bench.settings.cap,
            stage="cold_start",
        )
    finally:
        author.close()


def _cards(bench: Bench) -> list[Card]:
    """Return the cards of the run folder."""
    if not (bench.folder / distil.CARDS).exists():
        raise InputError(
            "there are no cards here",
            where=str(bench.folder / distil.CARDS),
            allowed="a run folder in which 01_cards has run",
            todo="run 01_cards first",
        )
    return distil.read_cards(bench.folder)
