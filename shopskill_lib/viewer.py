"""Records as escaped HTML for notebooks: what a person reads, with the steps it rests on."""

import html
from collections.abc import Iterable
from dataclasses import dataclass

from shopskill_lib.cards import Card
from shopskill_lib.skills import Skill
from shopskill_lib.trajectories import Trajectory, Turn

LINES = 14
"""Lines of a page that are shown."""

_STYLE = "border-left:3px solid #888;padding:.2rem .8rem;margin:.6rem 0;text-align:left;max-width:60rem"


@dataclass(frozen=True, slots=True)
class Html:
    """A piece of HTML that a notebook shows."""

    text: str

    def _repr_html_(self) -> str:
        return self.text


def card(shown: Card, trajectory: Trajectory) -> Html:
    """Show a card with the steps it cites; nothing of the audit is read."""
    told = {} if shown.deployable is None else shown.deployable.model_dump()
    cited = [turn for turn in trajectory.turns if turn.step in shown.facts.steps]
    label = "simulated " if shown.facts.simulated else ""
    return Html(
        f"<div style='{_STYLE}'><p><b>{label}{shown.channel} card {_text(shown.card_id)}</b>, from trajectory "
        f"{_text(shown.source_trajectory_id)} (reward {_text(trajectory.reward)}, ended by {_text(trajectory.ending)})"
        f"</p><p><i>Request:</i> {_text(trajectory.instruction)}</p>{_list(told.items())}"
        f"<p><i>Facts of the program:</i></p>{_list(shown.facts.model_dump().items())}"
        f"<p><i>Cited steps:</i></p>{''.join(map(_turn, cited))}</div>"
    )


def skill(shown: Skill, simulated: bool) -> Html:
    """Show a skill as a policy reads it, chunk by chunk."""
    label = "simulated " if simulated else ""
    chunks = (
        f"<p><b>{_text(chunk.title)}</b> <code>{_text(chunk.chunk_id)}</code></p>"
        f"<pre style='white-space:pre-wrap'>{_text(chunk.text)}</pre>"
        for chunk in shown.chunks
    )
    return Html(f"<div style='{_STYLE}'><p><b>{label}{_text(shown.title)}</b></p>{''.join(chunks)}</div>")


def _turn(turn: Turn) -> str:
    """Show one turn: the beginning of the page, then what was done."""
    lines = turn.page.strip().splitlines()
    more = f"\n[{len(lines) - LINES} more lines]" if len(lines) > LINES else ""
    done = turn.action or f"protocol fault {turn.fault}"
    return (
        f"<p>Step {turn.step}: <code>{_text(done)}</code> on</p>"
        f"<pre style='white-space:pre-wrap'>{_text(chr(10).join(lines[:LINES]) + more)}</pre>"
    )


def _list(items: Iterable[tuple[str, object]]) -> str:
    """Show named values; empty ones are left out."""
    rows = (
        f"<li><b>{_text(name)}</b>: {_text(', '.join(map(str, value)) if isinstance(value, tuple) else value)}</li>"
        for name, value in items
        if value not in (None, "", ())
    )
    return f"<ul>{''.join(rows)}</ul>"


def _text(value: object) -> str:
    return html.escape(str(value))
