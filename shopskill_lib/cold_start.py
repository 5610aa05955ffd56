"""Cold start of a run folder: training trajectories -> cards -> a draft (METHOD M5-M16)."""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from shopskill_lib import analysts, authoring, compiler, distil, protocol, workbench
from shopskill_lib.cards import Card
from shopskill_lib.compiler import Draft
from shopskill_lib.distil import Analyses
from shopskill_lib.errors import DesignError, InputError
from shopskill_lib.files import read_bytes, write_bytes
from shopskill_lib.rolloutset import Forecast
from shopskill_lib.skills import Skill
from shopskill_lib.workbench import Bench


def foresee(bench: Bench) -> str:
    """Say what the training rollouts and their analyses will ask of both models."""
    settings = bench.settings
    return f"training rollouts: {forecast(bench)} Then up to {settings.n_train} analyses by {settings.author_model}."


def forecast(bench: Bench) -> Forecast:
    """Return what the training rollouts will ask of the measured model."""
    return protocol.foresee(bench, distil.plan_train(bench, starting_skill(bench)))


def collect(bench: Bench) -> Analyses:
    """Roll out and analyse the training tasks (see `distil.collect`); without rewards, say what stands in for them."""
    found, why = distil.collect(bench, starting_skill(bench)), bench.agent.shop.unscored
    if why:
        left_out = bench.settings.n_train - len(found) - len(found.missing)
        found.note = f"{distil.UNRECORDED} ({why}); {left_out} episodes without a purchase left out"
    return found


def starting_skill(bench: Bench) -> Skill:
    """Return the seed skill, once nothing is left that analysts or compiler would refuse after the rollouts.

    Raises:
        InputError: the seed skill cannot be read, or leaves no room for anything compiled (M16).
        ParameterError: a prompt of the author cannot be used.
    """
    settings, skill = bench.settings, distil.seed_skill(bench)
    compiler.refuse_full(skill, settings.cap)
    analysts.load_texts(settings.language, settings.max_cards, settings.prompts_dir)
    authoring.load_texts(settings)
    return skill


def foresee_draft(bench: Bench) -> str:
    """Say what the compiler will be asked."""
    eligible = sum(card.eligible for card in _cards(bench))
    return f"{eligible} cards to consolidate and compile by {bench.settings.author_model}"


def draft(bench: Bench) -> Draft:
    """Compile the run folder's cards into the draft that Gate A measures (see `compiler.build`).

    Raises:
        InputError: 01_cards has not been run here, or with other parameters.
        DesignError: a gate is frozen on another draft here, which stays.
    """
    cards = _cards(bench)
    skill = distil.seed_skill(bench)
    pairs = distil.load_train_pairs(bench, skill)
    author = workbench.model_of(bench.settings, "author", bench.purse)
    with closing(author), _gated_draft_kept(bench.folder):
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


@contextmanager
def _gated_draft_kept(folder: Path) -> Iterator[None]:
    """Put the draft's files back as they were where a gate is frozen on them, and refuse another draft."""
    gated = (folder / protocol.GATE).exists() and (folder / protocol.DRAFT).exists()
    paths = [folder / name for name in compiler.FILES if gated and (folder / name).exists()]
    kept = {path: read_bytes(path) for path in paths}
    try:
        yield
        other = [path for path in paths if read_bytes(path) != kept[path]]
    finally:
        for path, content in kept.items():
            write_bytes(path, content)
    if other:
        raise DesignError(
            "a gate is frozen on another draft here",
            where=str(other[0]),
            allowed="the draft that was gated, from the same cards and parameters",
            todo="compile in a new run folder",
        )


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
