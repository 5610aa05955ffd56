"""Files of the original ShopSimulator: one JSON object a task, `{single,multi}_eval/outputs/…/<model>/<task_id>.json`.

What was paid and what was allowed were drawn at random on each slot, and a slot could be leased twice: then goal and
reward belong to another task (shopsimulator_http.md, section 13). Such a file is a failed attempt here, and said.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from shopskill_lib.adapters import rows
from shopskill_lib.adapters.dialogues import opens
from shopskill_lib.adapters.lossless import Part, given_back, kept, read_strictly, refusal, typed
from shopskill_lib.adapters.openai_messages import conversation
from shopskill_lib.adapters.recorded import Import, RecordedEpisode, Remainder, Source, lacking, refuse_repeated
from shopskill_lib.errors import InputError
from shopskill_lib.files import write_bytes
from shopskill_lib.records import Failure, PriceResolution, Purchase
from shopskill_lib.text import key
from shopskill_lib.trajectories import Turn

NAME = "shopsimulator"

_SETTINGS = ("standard", "persona")
"""Folders above a model's."""


class _Detail(Part):
    r_type: float
    r_att: float
    r_option: float
    r_price: bool


class _Goal(Part):
    asin: str
    instruction_text: str
    instruction_simple: str | None = None
    user_persona: dict[str, Any] | None = None


class _Bought(Part):
    asin: str
    name: str
    category: str
    options: dict[str, str]
    price: float


class _Said(Part):
    role: str
    content: str


class _File(Part):
    task_id: int
    reward: float
    reward_detail: dict[str, Any]
    goal: dict[str, Any]
    purchase: dict[str, Any]
    conversation: list[dict[str, Any]]
    shopper_conversation: list[_Said] | None = None


def recognises(path: Path, first: Any) -> bool:
    """Tell whether this is such a file, or a folder with one of a task's number somewhere below."""
    if path.is_dir():
        file = next(_numbered(path), None)
        try:
            first = None if file is None else read_strictly(file)
        except InputError:
            return False
    return isinstance(first, dict) and first.keys() >= {"task_id", "reward_detail", "conversation"}


def read(path: Path) -> Import:
    """Read a file, or all files named by a task's number below a folder as one import.

    `reward` is the product of the four parts; the file's own, which adds instead, is `r_loose` (M4).

    Raises:
        InputError: a file of another form, named by another task than it tells, or with a reward and no purchase.
    """
    files = sorted(_numbered(path), key=lambda file: (file.parent, int(file.stem))) if path.is_dir() else [path]
    if not files:
        raise refusal("there is no file named by a task's number", str(path), "<task_id>.json, in any folder below")
    episodes, remainders, strange = [], [], []
    for file in files:
        document = read_strictly(file)
        name = file.relative_to(path).as_posix() if path.is_dir() else file.name
        episode = _episode(document, file, name)
        episodes.append(episode)
        remainders.append(Remainder(trajectory_id=episode.trajectory_id, rest=kept(document, _built(episode))))
        strange += [f"{name}: {episode.error.message}"] if episode.error else []
    refuse_repeated(episodes, str(path))
    notes = (*_NOTES, *_left_out(path, files), *strange)
    return Import(NAME, tuple(episodes), tuple(remainders), lacks=(*lacking(episodes), *notes))


_NOTES = (
    "price and budget were drawn at random for every slot: two runs of a task may have been scored by other ones",
    "a task that failed has left no file: it is missing, and no reward of 0",
)


def write(imported: Import, path: Path) -> None:
    """Give back what was read: one file as a file, several as a folder.

    Raises:
        InputError: the import is of another format, which knows no goal and no `reward_detail`.
    """
    if imported.format != NAME:
        raise InputError(
            f"an import of {imported.format} does not tell goal and reward_detail",
            where=str(path),
            allowed=f"an import of {NAME}",
            todo="export it in another format, for example as openai-messages",
        )
    for episode, remainder in zip(imported.episodes, imported.remainders, strict=True):
        document = given_back(_built(episode), remainder.rest, f"trajectory {episode.trajectory_id}")
        place = path if len(imported.episodes) == 1 and path.suffix == ".json" else path / episode.source.file
        write_bytes(place, json.dumps(document, ensure_ascii=False, indent=4, allow_nan=False).encode())


def _numbered(folder: Path) -> Iterator[Path]:
    return (file for file in folder.rglob("*.json") if file.stem.isdecimal() and file.is_file())


def _left_out(path: Path, files: Sequence[Path]) -> tuple[str, ...]:
    """Return a sentence on the other files of a folder."""
    others = {file for file in path.rglob("*") if file.is_file()} - set(files) if path.is_dir() else set()
    return (f"{len(others)} files that no task's number names were not read",) if others else ()


def _episode(document: Any, file: Path, name: str) -> RecordedEpisode:
    whole = typed(_File, document, str(file))
    if str(whole.task_id) != str(int(file.stem) if file.stem.isdecimal() else whole.task_id):
        raise refusal(f"task_id is {whole.task_id}", str(file), "the number that names the file")
    goal = typed(_Goal, whole.goal, f"{file}, goal") if whole.goal else None
    fields = conversation(whole.conversation, f"{file}, conversation")
    alien = _alien(whole, goal, fields)
    source = Source(format=NAME, file=name, line=1)
    common = {"trajectory_id": name.removesuffix(".json"), "task_id": str(whole.task_id), "model": _model(file)}
    outcome = {} if alien else _outcome(whole, str(file))
    if alien:
        outcome = {"status": "failed", "error": Failure(kind="OtherTask", message=alien), "ending": None}
    shown = {} if goal is None or alien else {"persona": _persona(goal, fields["instruction"])}
    return rows.recorded(source, {**fields, **common, "purchase": None, **outcome, **shown})


def _model(file: Path) -> str | None:
    """Return the folder's name where folders tell the model."""
    folder = file.resolve().parent
    return folder.name if folder.parent.name in _SETTINGS else None


def _outcome(whole: _File, where: str) -> dict[str, Any]:
    """Return ending, reward, parts and purchase."""
    if not whole.reward_detail:
        if whole.reward:
            raise refusal(f"reward is {whole.reward} and reward_detail is empty", where, "0 where nothing was bought")
        return {"status": "completed", "ending": "action_limit", "reward": 0.0}
    detail = typed(_Detail, whole.reward_detail, f"{where}, reward_detail")
    bought = typed(_Bought, whole.purchase, f"{where}, purchase")
    shares = (detail.r_type, detail.r_att, detail.r_option, float(detail.r_price))
    strict = shares[0] * shares[1] * shares[2] * shares[3]
    names = ("r_type", "r_att", "r_option", "r_price")
    loose = rows.reward(whole.reward, "reward", where)
    parts = {**dict(zip(names, shares, strict=True)), "r_loose": loose, "r_strict": strict}
    return {
        "status": "completed",
        "ending": "purchase",
        "reward": strict,
        "parts": {**parts, "r_success": float(all(share == 1 for share in shares))},
        "purchase": Purchase(
            asin=bought.asin,
            title=bought.name,
            category=bought.category,
            options=bought.options,
            price=PriceResolution.of("price charged by the original", bought.price),
        ),
    }


def _alien(whole: _File, goal: _Goal | None, fields: Mapping[str, Any]) -> str:
    """Return why goal or purchase are not of this conversation; "" where nothing speaks against them.

    In the setting of several turns the shopper alone knows the task.
    """
    if goal is not None:
        tasks = [key(text) for text in (goal.instruction_text, goal.instruction_simple) if text]
        told = key("\n".join(said.content for said in whole.shopper_conversation or ()))
        asked = key(fields["instruction"] or "")
        known = any(task in told for task in tasks) if told else asked in tasks
        if not known and (told or not _shopper(whole)):
            return "goal.asin and goal.instruction_text are of another task than the conversation"
    opened = _opened(fields["turns"] or ())
    if whole.purchase and opened and whole.purchase.get("asin") != opened:
        return "purchase.asin is not the product that the conversation opened last"
    return ""


def _shopper(whole: _File) -> bool:
    """Tell whether the request is told by a shopper, in words of its own."""
    first = next((str(said.get("content")) for said in whole.conversation if said.get("role") == "user"), "")
    return first.lstrip().startswith("Shopper:")


def _opened(turns: Sequence[Turn]) -> str:
    """Return the product that was opened last; "" where the pages do not tell."""
    return next(filter(None, map(opens, reversed(turns))), "")


def _persona(goal: _Goal, instruction: str | None) -> dict[str, Any] | None:
    """Return what is known of the shopper where the simple request was shown, which goes with it."""
    simple = key(goal.instruction_simple or "")
    shown = simple not in ("", key(goal.instruction_text)) and key(instruction or "") == simple
    return goal.user_persona or None if shown else None


def _built(episode: RecordedEpisode) -> dict[str, Any]:
    """Write what a record tells of its file."""
    document: dict[str, Any] = {"task_id": int(episode.task_id or 0), "conversation": list(episode.messages or ())}
    if episode.parts is not None:
        shares = {name: episode.parts[name] for name in ("r_type", "r_att", "r_option")}
        document["reward"] = episode.parts["r_loose"]
        document["reward_detail"] = {**shares, "r_price": episode.parts["r_price"] == 1}
    bought = episode.purchase
    if bought is not None:
        told = {"asin": bought.asin, "name": bought.title, "category": bought.category, "options": bought.options}
        document["purchase"] = {**told, "price": bought.price.price}
    return document
