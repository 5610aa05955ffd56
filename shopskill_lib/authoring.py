"""Questions to the author of consolidation and compilation: screened, counted, and paid for once.

An answer is kept under a hash of everything it depends on, so that a killed compilation goes on where it was.
"""

import json
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, Literal, NamedTuple, TypeVar, get_args

from shopskill_lib import templates
from shopskill_lib.dialogue import REPAIRS, Conversation, Tool, obtain
from shopskill_lib.errors import AuthorError, ParameterError
from shopskill_lib.firewall import Screen, public
from shopskill_lib.jsonl import append_lines, read_lines
from shopskill_lib.models import CallCost, Model
from shopskill_lib.records import Record, fingerprint
from shopskill_lib.settings import Settings
from shopskill_lib.spending import CALLS
from shopskill_lib.text import is_han

R = TypeVar("R", bound=Record)

Role = Literal["consolidate", "compile"]

Origin = Literal["cold_start", "online"]
"""Where the cards come from."""

KEPT = "authored.jsonl"
"""Answers of the author, one line each, in the folder of the compilation."""

_CALLERS: dict[Role, str] = {"consolidate": "consolidator", "compile": "compiler"}


class Authored(Record):
    """One answer, as it was accepted."""

    identity: str
    """Hash of model, prompt, sections and tool."""
    role: Role
    answer: dict[str, Any]
    """Arguments of the call, less what the firewall withheld."""
    complaints: tuple[str, ...]
    """What the firewall sent back once; empty when nothing."""


class Piece(NamedTuple):
    """Texts of an answer that stand or fall together."""

    path: str
    """Where it stands in the answer: `clusters.3`."""
    texts: Mapping[str, str]
    """Name in the piece -> text, neighbours in order."""
    trajectories: tuple[str, ...]
    """Everything that supports it."""


@dataclass(frozen=True, slots=True)
class Form(Generic[R]):
    """What is asked for.

    Attributes:
        tool: the one tool on offer.
        check: what a schema cannot say; "" for a valid answer.
        pieces: the texts of a valid answer.
        withhold: a valid answer and paths of pieces -> the same answer with these left out, reason `firewall`.
        fallback: the answer to use when all repairs are spent; None for none.
    """

    tool: Tool[R]
    check: Callable[[R], str]
    pieces: Callable[[R], Sequence[Piece]]
    withhold: Callable[[R, Set[str]], R]
    fallback: Callable[[], R | None] = lambda: None


@dataclass(frozen=True, slots=True)
class Desk:
    """Where questions are asked from.

    Attributes:
        author: the model.
        screen: the firewall, by trajectory id.
        settings: language, prompts, context.
        folder: where answers are kept and calls are counted.
        origin: where the cards come from.
    """

    author: Model
    screen: Screen
    settings: Settings
    folder: Path
    origin: Origin

    def ask(self, role: Role, sections: Mapping[str, object], form: Form[R]) -> tuple[R, tuple[str, ...]]:
        """Return the answer that is kept, or ask for one; with it what the firewall sent back.

        Raises:
            AuthorError: none is valid after all repairs.
            FirewallError: something privileged is among the sections.
        """
        public(sections, f"the {role} prompt")
        talk = Conversation.of(self._prompt(role), written(sections))
        identity = fingerprint([self.author.identity.decisive, role, talk.digest, form.tool.schema])
        kept = self._kept(identity, form)
        if kept is not None:
            return form.tool.read(kept.answer), kept.complaints
        costs: list[CallCost] = []
        try:
            value, complaints = self._converse(self.author.metered(costs.append), talk, form, int(identity[:7], 16))
        finally:
            append_lines(self.folder / CALLS, [cost.line(self.origin, "compile", _CALLERS[role]) for cost in costs])
        answer = value.model_dump(mode="json")
        made = Authored(identity=identity, role=role, answer=answer, complaints=complaints)
        append_lines(self.folder / KEPT, [made])
        return value, complaints

    def room(self, role: Role, fixed: Mapping[str, object]) -> int:
        """Return the tokens that a prompt has left beside its fixed sections and the reply (a quarter at most).

        Raises:
            ParameterError: none.
        """
        whole = self.settings.context_tokens
        taken = weigh(self._prompt(role)) + weigh(written(fixed)) + min(self.settings.author_max_tokens, whole // 4)
        if taken >= whole:
            raise ParameterError(
                f"prompt, skill and reply take {taken} of {whole} tokens, so nothing can be asked",
                where="context_tokens",
                allowed="the tokens that the author's context has, several thousand at least",
                todo="raise context_tokens, or shorten the prompt or the skill",
            )
        return whole - taken

    def findings(self, pieces: Sequence[Piece]) -> dict[str, list[str]]:
        """Return path -> complaints of every piece that may not travel (M12)."""
        found: dict[str, list[str]] = {}
        for piece in pieces:
            named = {f"{piece.path}.{name}": text for name, text in piece.texts.items()}
            for finding in self.screen.scan(named, piece.trajectories):
                found.setdefault(piece.path, []).append(finding.complaint(self.settings.language))
        return found

    def _prompt(self, role: Role) -> str:
        return load_texts(self.settings)[role]

    def _kept(self, identity: str, form: Form[R]) -> Authored | None:
        """Return the kept answer, if it is one by the rules of today."""
        lines = read_lines(self.folder / KEPT, Authored.model_validate_json)
        kept = next((line for line in reversed(lines) if line.identity == identity), None)
        if kept is None or form.check(form.tool.read(kept.answer)):
            return None
        return None if self.findings(form.pieces(form.tool.read(kept.answer))) else kept

    def _converse(self, model: Model, talk: Conversation, form: Form[R], seed: int) -> tuple[R, tuple[str, ...]]:
        """Ask; send findings back once; leave out what still has some."""
        value = self._valid(model, talk, form, seed)
        complaints = tuple(text for texts in self.findings(form.pieces(value)).values() for text in texts)
        if complaints:
            talk.remark(json.dumps({"type": "firewall", "complaints": complaints}, ensure_ascii=False))
            value = self._valid(model, talk, form, seed + REPAIRS + 1)
        return form.withhold(value, self.findings(form.pieces(value)).keys()), complaints

    def _valid(self, model: Model, talk: Conversation, form: Form[R], seed: int) -> R:
        try:
            return obtain(model, talk, form.tool, seed, language=self.settings.language, check=form.check)
        except AuthorError:
            value = form.fallback()
            if value is None:
                raise
            return value


def load_texts(settings: Settings) -> dict[str, str]:
    """Read the author's system messages, by role (see `templates.load` for what is refused)."""
    return templates.load(dict.fromkeys(get_args(Role), ()), settings.language, settings.prompts_dir)


def written(sections: Mapping[str, object]) -> str:
    """Return sections as the user message carries them: JSON in which no text can end its section."""
    told = {name: json.dumps(content, ensure_ascii=False, sort_keys=True) for name, content in sections.items()}
    return "\n".join(f"<{name}>\n" + text.replace("</", r"<\/") + f"\n</{name}>" for name, text in told.items())


def weigh(text: str) -> int:
    """Estimate tokens: one a Han character, one in four bytes of the rest."""
    han = sum(map(is_han, text))
    return han + (len(text.encode()) - 3 * han + 3) // 4


def misplaced(wanted: Sequence[str], placed: Sequence[tuple[str, str]], kind: str) -> str:
    """Tell exactly which ids are unknown, lost, or in several places; "" when each is in one.

    Args:
        wanted: ids to be placed.
        placed: (id, path) of every mention.
        kind: what the ids name.
    """
    places: dict[str, list[str]] = {name: [] for name in wanted}
    unknown = [f"{kind} {name} in {path} is unknown" for name, path in placed if name not in places]
    for name, path in placed:
        if name in places:
            places[name].append(path)
    lost = [f"{kind} {name} is nowhere" for name, paths in places.items() if not paths]
    twice = [f"{kind} {name} is in {' and in '.join(paths)}" for name, paths in places.items() if len(paths) > 1]
    problems = unknown + lost + twice
    return "; ".join(problems) + f"; put every {kind} in exactly one place" if problems else ""
