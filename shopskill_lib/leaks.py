"""What a skill holds of the very tasks it is to be shown on: found and refused before anything is bought (M12)."""

import re
from collections.abc import Collection, Mapping

from shopskill_lib.errors import InputError
from shopskill_lib.firewall import Finding, Screen, instance_of
from shopskill_lib.records import Split
from shopskill_lib.skills import Chunk
from shopskill_lib.workbench import Bench

_MADE_ID = re.compile(r"(?:chunk|candidate)-([0-9a-f]{12})")
"""Id that is a hash of a text, with digits that mean nothing."""


def find(bench: Bench, chunks: Mapping[str, Chunk], split: Split) -> tuple[Finding, ...]:
    """Return what chunks hold of the identifiers and titles of the tasks they are to be shown on (M12).

    Args:
        bench: whose tasks and catalogue.
        chunks: version id -> chunk; ids and titles go into the prompt as well.
        split: of the tasks.
    """
    products = bench.catalogue.products
    instances = {task.task_id: instance_of(task, [products[task.gold_asin]]) for task in bench.tasks(split)}
    texts = {version: f"{_given_id(chunk, products)}\n{chunk.shown}" for version, chunk in chunks.items()}
    return Screen(instances).scan(texts, None)


def _given_id(chunk: Chunk, products: Collection[str]) -> str:
    """Return an id that somebody gave; "" for a hash of the text, unless it is a product's id in disguise."""
    made = _MADE_ID.fullmatch(chunk.chunk_id)
    return "" if made and made[1] not in products else chunk.chunk_id


def refuse(bench: Bench, chunks: Mapping[str, Chunk], split: Split) -> None:
    """Refuse chunks that hold something of the tasks they are about to be shown on (see `find`).

    Raises:
        InputError: naming chunk and kind; the words themselves are gold and not repeated.
    """
    found = find(bench, chunks, split)
    if found:
        raise InputError(
            found[0].complaint("en").replace("field", "chunk", 1),
            where=f"skill to be shown on {split} tasks",
            allowed="chunks without identifiers and titles of these tasks (M12)",
            todo="write what to do on any task of that kind, or leave the chunk out; a compiled draft can be given "
            "edited: -p draft=<run>/draft.md in a new run folder",
        )
