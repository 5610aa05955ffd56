"""What the simulated author sees in a trajectory: competences that decided a success, and where a failure began.

It judges by the words of request, persona and pages; of gold it knows what it was shown on inspection.
"""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

from shopskill_lib.simulated.casefile import Case, Trial, Turn, pages
from shopskill_lib.simulated.competences import Competences
from shopskill_lib.simulated.decisions import BACK, PREVIOUS, Call, Draws, View, decide, flaws, is_over, wanted_value
from shopskill_lib.simulated.reading import Axis, Page, read_page
from shopskill_lib.text import tokens

EXPERT = Competences(*(1.0 for _ in Competences._fields))
"""Who repairs a failure does everything well that the words of the task allow."""

GLANCE = 3
"""Results among which a product is found without reading on."""

SPOKEN = 0.5
"""Share of the words of a clause in everyday words that a query has to hold to name it."""

IN_TIME = 12
"""Turns within which an order after a detour shows that somebody stops in time."""


class Evidence(NamedTuple):
    """A step that shows a competence."""

    step: int
    quote: str
    """Verbatim, of a page or an action."""


class Cause(NamedTuple):
    """Where a failure began."""

    lesson: str
    """Competence that was wanting."""
    surface: str
    step: int
    """Of the earliest divergence, from 1."""


@dataclass(frozen=True)
class Course:
    """A trajectory with what an expert makes of it."""

    case: Case
    draws: Draws

    @cached_property
    def expert(self) -> View:
        """An expert who has seen all pages of the trajectory."""
        return self.view(pages([turn.text for turn in self.case.turns]))

    def view(
        self, seen: tuple[Page, ...], actions: tuple[str, ...] = (), *, search: bool = False, done: int = 0
    ) -> View:
        """Return what an expert knows after these pages."""
        return View(
            request=self.case.request, persona=self.case.persona, skill=EXPERT, pages=seen, turns=done,
            searches=sum(not page.is_product for page in seen), actions=actions, may_search=search, draws=self.draws,
        )  # fmt: skip

    @cached_property
    def acts(self) -> tuple[Turn, ...]:
        """Turns in which something was done."""
        return tuple(turn for turn in self.case.turns if not turn.refused)

    @cached_property
    def openings(self) -> tuple[Turn, ...]:
        """Turns in which a product was opened from a list."""
        return tuple(turn for turn in self.acts if _opens(turn))

    @cached_property
    def searches(self) -> tuple[Turn, ...]:
        """Turns with a search."""
        return tuple(turn for turn in self.acts if turn.verb == "search")

    @property
    def first_query(self) -> str:
        """Words of the first search, "" without one."""
        return self.searches[0].argument if self.searches else ""

    @cached_property
    def last_product(self) -> Turn | None:
        """Last turn on a product's page."""
        return next((turn for turn in reversed(self.acts) if turn.page.is_product), None)

    def says_all(self, query: str) -> bool:
        """Tell whether a query holds nearly everything that the request names."""
        typed, phrases = set(tokens(query)), self.case.request.phrases
        share = SPOKEN if self.case.spoken else 1
        named = sum(len(phrase.words & typed) >= share * len(phrase.words) for phrase in phrases)
        return named >= max(2, len(phrases) - 1)

    def exercised(self) -> dict[str, Evidence]:
        """Return the competences that this trajectory shows at work, with one step each."""
        found = {
            "query": self._query(), "persona": self._persona(), "compare": self._compare(), "exact": self._exact(),
            "price": self._price(), "backtrack": self._backtrack(), "stop": self._stop(),
        }  # fmt: skip
        return {name: evidence for name, evidence in found.items() if evidence is not None}

    def _query(self) -> Evidence | None:
        turn = next((turn for turn in self.searches if self.says_all(turn.argument)), None)
        return None if turn is None else Evidence(turn.step, turn.action)

    def _persona(self) -> Evidence | None:
        """A choice or a query that the persona tells and the request does not."""
        asked = frozenset().union(*(phrase.words for phrase in self.case.request.phrases))
        for turn in self.acts:
            words = frozenset(tokens(turn.argument))
            wishes = [wish for wish in self.case.persona if wish.words <= words and not wish.words <= asked]
            if wishes and ("=" in turn.argument or turn.verb == "search"):
                return Evidence(turn.step, turn.action)
        return None

    def _compare(self) -> Evidence | None:
        """Several products opened, or one from far down the list."""
        if len({turn.argument for turn in self.openings}) > 1:
            return Evidence(self.openings[-1].step, self.openings[-1].action)
        deep = next((turn for turn in self.openings if _rank(turn.page, turn.argument) > GLANCE), None)
        return None if deep is None else Evidence(deep.step, deep.action)

    def _exact(self) -> Evidence | None:
        for turn in self.acts:
            axis, _, value = turn.argument.partition("=")
            found = next((known for known in turn.page.axes if known.name == axis), None)
            if not value or found is None or len(found.values) <= 2:
                continue
            if wanted_value(self.expert, turn.page, found) == value or self._nearest(found) == value:
                return Evidence(turn.step, turn.action)
        return None

    def _nearest(self, axis: Axis) -> str | None:
        """Return the value that was bought if, of all on its axis, it shares most words with a spoken request."""
        bought = self.last_product.page.axes if self.last_product is not None and self.case.spoken else ()
        chosen = next((known.chosen for known in bought if known.name == axis.name), None)
        asked = frozenset().union(*(phrase.words for phrase in self.case.request.phrases))
        shared = {value: len(asked & frozenset(tokens(value))) for value in axis.values}
        rest = max((count for value, count in shared.items() if value != chosen), default=0)
        return chosen if chosen is not None and shared.get(chosen, 0) > rest else None

    def _price(self) -> Evidence | None:
        """A variant that was found too dear and not bought."""
        over = next((turn for turn in self.acts if turn.page.is_product and is_over(self.expert, turn.page)), None)
        last = self.last_product
        if over is None or last is None or over is last:
            return None
        line = next((line for line in over.text.splitlines() if line.endswith(str(over.page.price))), over.action)
        return Evidence(over.step, line.strip())

    def _backtrack(self) -> Evidence | None:
        turn = next((turn for turn in self.acts if turn.page.is_product and turn.argument in (BACK, PREVIOUS)), None)
        return None if turn is None else Evidence(turn.step, turn.action)

    def _stop(self) -> Evidence | None:
        """An order soon after something had to be left."""
        last = self.case.turns[-1]
        return Evidence(last.step, last.action) if self._backtrack() and len(self.case.turns) <= IN_TIME else None

    def causes(self, gold: dict[str, Any]) -> list[Cause]:
        """Return what went wrong, earliest first; empty where nothing can be told.

        Args:
            gold: the wanted product as the inspection tool shows it.
        """
        outcome, last = self.case.outcome, self.last_product
        if outcome.purchase is None or last is None:
            found = [self._never_bought()]
        else:
            found = self._wrong_options(last)
            if outcome.lost("r_price"):
                found.append(Cause("price", "price_budget", last.step))
            if outcome.lost("r_type") or outcome.lost("r_att") or self._unoffered(last):
                found.append(self._wrong_product(last, gold))
        return sorted((self._where_an_expert_differs(cause) for cause in found), key=lambda cause: cause.step)

    def _where_an_expert_differs(self, cause: Cause) -> Cause:
        """Return the cause at the first turn, from its own on, at which an expert would do something else."""
        for turn in self.case.turns:
            if turn.step >= cause.step and (turn.refused or self._expert_at(turn) != turn.action):
                return cause._replace(step=turn.step)
        return cause

    def _expert_at(self, turn: Turn) -> str:
        """Return what an expert would do at a turn who has seen the pages up to it."""
        seen = pages([other.text for other in self.case.turns if other.step <= turn.step])
        labels = tuple(line[2:] for line in turn.text.splitlines() if line.startswith("- "))
        call = decide(self.view(seen, labels, search=turn.verb == "search", done=turn.step - 1))
        return f"{call.name}[{call.argument}]"

    def _never_bought(self) -> Cause:
        """Everything was tried but the order."""
        fitting = (turn for turn in self.acts if turn.page.is_product and not flaws(self.expert, turn.page))
        turn = next(fitting, self.case.turns[-1])
        return Cause("stop", "termination", turn.step)

    def _wrong_options(self, last: Turn) -> list[Cause]:
        """Values that were offered and wanted, and others chosen."""
        found = []
        for axis in last.page.axes:
            value = wanted_value(self.expert, last.page, axis)
            if not value or axis.chosen in (value, None):
                continue
            clicks = [turn.step for turn in self.acts if turn.argument == f"{axis.name}={axis.chosen}"]
            by_request = wanted_value(self.without_persona, last.page, axis) is not None
            surface = "variant_option" if by_request else "persona_preference"
            found.append(Cause("exact" if by_request else "persona", surface, clicks[-1] if clicks else last.step))
        return found

    @cached_property
    def without_persona(self) -> View:
        """The expert who knows only the request."""
        return Course(self.case._replace(persona=()), self.draws).expert

    def _unoffered(self, last: Turn) -> bool:
        """Tell whether the bought product does not offer a wanted value."""
        return any(wanted_value(self.expert, last.page, axis) == "" for axis in last.page.axes)

    def _wrong_product(self, last: Turn, gold: dict[str, Any]) -> Cause:
        """Why a product was bought that lacks something: the persona, the query, the list, or nobody went back."""
        has = frozenset(tokens(" ".join(map(str, [gold.get("title", ""), *as_list(gold.get("attributes"))]))))
        words = last.page.items[0].words
        listed = [turn for turn in self.acts if self.case.gold in [item.asin for item in turn.page.items]]
        opened = next((turn for turn in reversed(self.openings) if turn.argument == self.case.gold), None)
        chosen = next((turn for turn in reversed(self.openings) if turn.step < last.step), last)
        unmet = [phrase for phrase in self.case.request.phrases if phrase.words <= has and not phrase.words <= words]
        if not unmet and any(wish.words <= has and not wish.words <= words for wish in self.case.persona):
            return Cause("persona", "persona_preference", chosen.step)
        poor = next((turn for turn in self.searches if not self.says_all(turn.argument)), None)
        if poor is not None and not self._found_at_once(poor):
            return Cause("query", "search_recall", poor.step)
        if opened is not None:
            return Cause("compare", "product_detail", opened.step)
        if listed:
            return Cause("compare", "hard_constraint", listed[0].step)
        return Cause("backtrack", "termination", last.step)

    def _found_at_once(self, search: Turn) -> bool:
        """Tell whether the wanted product stood among the first results of a search."""
        page = next((turn.page for turn in self.case.turns if turn.step > search.step), None)
        return page is not None and self.case.gold in [item.asin for item in page.items[:GLANCE]]


def as_list(value: Any) -> list[Any]:
    """Return a list, empty for any other value."""
    return value if isinstance(value, list) else []


def _opens(turn: Turn) -> bool:
    return not turn.page.is_product and turn.argument in [item.asin for item in turn.page.items]


def _rank(page: Page, asin: str) -> int:
    return [item.asin for item in page.items].index(asin) + 1


def next_action(
    course: Course, trial: Trial, failed: tuple[Trial, ...], actions: tuple[str, ...], *, search: bool
) -> Call:
    """Return the next step of a repair, by observable words alone.

    Args:
        course: the failed trajectory.
        trial: the open trial.
        failed: trials that ended without success; what they bought is out of the question.
        actions: labels on offer.
        search: whether the page has a search box.
    """
    before = [turn.text for turn in course.case.turns[: trial.after_steps]]
    wrong = {other.bought for other in failed} - {""}
    known = [text for other in failed for text in other.texts if not read_page(text).is_product]
    seen = pages([*known, *before, *trial.texts])
    kept = tuple(
        page if page.is_product else page._replace(items=tuple(item for item in page.items if item.asin not in wrong))
        for page in seen
    )
    view = course.view(kept, actions, search=search, done=trial.after_steps + len(trial.actions))
    call = decide(view)
    slipped = not call.name or (call.name == "click" and call.argument not in actions)
    return decide(replace(view, turns=view.turns + 1)) if slipped else call
