"""ShopSimRL skill banks and candidate pools (reference 2.7, 3.12), and skill documents of our own."""

import re
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError

from shopskill_lib.adapters.lossless import Part, given_back, kept, read_strictly, refusal, typed
from shopskill_lib.adapters.recorded import Import
from shopskill_lib.files import write_bytes, write_json
from shopskill_lib.pools import Add, Candidate, Foreign, Pool
from shopskill_lib.records import fingerprint
from shopskill_lib.skills import Chunk, Skill, read_skill, refuse_unusable
from shopskill_lib.text import tidy

BANK, POOL, OURS = "shopsimrl-skillbank", "shopsimrl-pool", "skill"
BANK_SCHEMA, POOL_SCHEMA = "shopsimrl-skillbank-v1", "shopsimrl-skill-candidate-pool-v1"

_HEADED = re.compile(r"#{3,6}[ \t]+(?P<title>[^\n]*\S)[ \t]*\n+(?P<text>.*)", re.DOTALL)
"""A text that begins with a heading of its own."""


class _About(Part):
    title: str | None = None
    failure_mechanism: str | None = None
    evidence_card_ids: list[str] = Field(default_factory=list)


class _Skill(Part):
    skill_id: str
    content: str
    enabled: bool = True
    task_ids: list[Any] | None = None
    metadata: _About | None = None


class _Bank(Part):
    schema_version: Literal["shopsimrl-skillbank-v1"]
    bank_version: str
    skills: list[_Skill]


class _Candidate(Part):
    candidate_id: str
    operation: Literal["ADD", "REWRITE"]
    target_chunk_id: str | None = None
    content: str
    metadata: _About | None = None


class _Pool(Part):
    schema_version: Literal["shopsimrl-skill-candidate-pool-v1"]
    round_id: str | int | None = None
    current_skills: list[_Skill]
    candidates: list[_Candidate]
    pool_sha256: str | None = None


def recognises_bank(path: Path, first: Any) -> bool:
    """Tell whether a file holds a skill bank."""
    return path.is_file() and isinstance(first, dict) and first.get("schema_version") == BANK_SCHEMA


def recognises_pool(path: Path, first: Any) -> bool:
    """Tell whether a file holds a candidate pool."""
    return path.is_file() and isinstance(first, dict) and first.get("schema_version") == POOL_SCHEMA


def recognises_ours(path: Path, first: Any) -> bool:
    """Tell whether a file is a skill document: `skill.md`, or a JSON list of chunks."""
    chunks = isinstance(first, list) and bool(first) and isinstance(first[0], dict) and "chunk_id" in first[0]
    return path.is_file() and (path.suffix == ".md" or chunks)


def read_bank(path: Path) -> Import:
    """Read a skill bank as a skill: enabled texts in file order, their heading as the chunk's title.

    Raises:
        InputError: a field is of another kind, a skill is for some tasks only, or a text that no skill document holds.
    """
    document = read_strictly(path)
    bank = typed(_Bank, document, str(path))
    chunks = _chunks(bank.skills, "skills", path)
    skill = Skill(title=tidy(bank.bank_version), chunks=chunks)
    refuse_unusable(skill, path)
    return Import(BANK, skill=skill, rest=kept(document, _bank(skill)), lacks=_lacks(bank.skills))


def write_bank(imported: Import, path: Path) -> None:
    """Write a skill as a bank.

    Raises:
        InputError: there is no skill, or it was changed after it was read from a bank.
    """
    document = _bank(_skill_in(imported, path))
    write_json(path, document if imported.format != BANK else given_back(document, imported.rest or {}, str(path)))


def read_pool(path: Path) -> Import:
    """Read a candidate pool: chunks in force, additions and rewrites.

    Raises:
        InputError: a field is of another kind, the pool's hash is not that of its content, or a rewrite of nothing.
    """
    document = read_strictly(path)
    found = typed(_Pool, document, str(path))
    hashed = {name: value for name, value in document.items() if name not in ("created_at", "pool_sha256")}
    if found.pool_sha256 not in (None, fingerprint(hashed)):
        raise refusal("pool_sha256 is not the hash of this content", str(path), "a pool as its program wrote it")
    candidates = [_candidate(one, f"{path}, candidates.{k}") for k, one in enumerate(found.candidates)]
    title = "" if found.round_id is None else tidy(str(found.round_id))
    try:
        chunks = _chunks(found.current_skills, "current_skills", path)
        pool = Pool(title=title, kind="current", chunks=chunks, candidates=tuple(candidates))
    except ValidationError as error:
        raise refusal(error.errors()[0]["msg"], str(path), "additions without target, rewrites of a text") from error
    for version, chunk in pool.versions.items():
        refuse_unusable(Skill(title="", chunks=(chunk.model_copy(update={"chunk_id": version}),)), path)
    lacks = (
        ("stages and parts of the candidates: not told; their texts are measured as they are",) if candidates else ()
    )
    return Import(POOL, pool=pool, rest=kept(document, _pool(pool)), lacks=(*_lacks(found.current_skills), *lacks))


def write_pool(imported: Import, path: Path) -> None:
    """Write a pool.

    Raises:
        InputError: there is no pool, or it was changed after it was read from one.
    """
    if imported.pool is None:
        raise refusal("there is no pool", str(path), "an import of a candidate pool, or a run with a draft")
    document = _pool(imported.pool)
    write_json(path, document if imported.format != POOL else given_back(document, imported.rest or {}, str(path)))


def read_ours(path: Path) -> Import:
    """Read a skill document (see `skills.read_skill`)."""
    return Import(OURS, skill=read_skill(path))


def write_ours(imported: Import, path: Path) -> None:
    """Write a skill as `skill.md`, or as a JSON list of chunks where the place ends in `.json`.

    Raises:
        InputError: there is no skill.
    """
    skill = _skill_in(imported, path)
    if path.suffix == ".json":
        write_json(path, [chunk.model_dump(mode="json") for chunk in skill.chunks])
    else:
        write_bytes(path, skill.to_markdown().encode())


def _skill_in(imported: Import, path: Path) -> Skill:
    if imported.skill is None:
        raise refusal("there is no skill", str(path), "an import of a skill bank, a skill document or a run")
    return imported.skill


def _chunks(skills: list[_Skill], field: str, path: Path) -> tuple[Chunk, ...]:
    """Return the enabled skills as chunks."""
    for number, skill in enumerate(skills):
        if skill.task_ids is not None:
            raise refusal(
                f"{field}.{number}.task_ids names {len(skill.task_ids)} tasks",
                f"{path}, {skill.skill_id}",
                "skills for all tasks, task_ids null: a chunk is measured over all of them",
            )
    return tuple(_chunk(skill.skill_id, skill.content, skill.metadata) for skill in skills if skill.enabled)


def _chunk(name: str, content: str, about: _About | None) -> Chunk:
    """Part a text into title and body; without a heading its title is told beside it, or its id."""
    headed = _HEADED.fullmatch(content.strip("\n"))
    if headed:
        return Chunk(chunk_id=name, title=headed["title"], text=headed["text"])
    return Chunk(chunk_id=name, title=tidy((about and about.title) or name), text=content.strip())


def _candidate(one: _Candidate, where: str) -> Foreign:
    about = one.metadata or _About()
    chunk = _chunk(one.candidate_id, one.content, about)
    if not chunk.text.strip():
        raise refusal("content is empty", where, "a text")
    return Foreign(
        operation=one.operation,
        candidate_id=one.candidate_id,
        target_chunk_id=one.target_chunk_id,
        title=chunk.title,
        content=chunk.text,
        reason=about.failure_mechanism,
        evidence_card_ids=tuple(about.evidence_card_ids),
    )


def _lacks(skills: list[_Skill]) -> tuple[str, ...]:
    """Say which texts are not measured, and which are shown with a title that they had not."""
    off = [skill.skill_id for skill in skills if not skill.enabled]
    bare = [skill.skill_id for skill in skills if skill.enabled and not _HEADED.fullmatch(skill.content.strip("\n"))]
    said = [f"disabled there, so no chunk here: {', '.join(off)}"] if off else []
    said += [f"without a heading there; shown here under title or id: {', '.join(bare)}"] if bare else []
    return tuple(said)


def _bank(skill: Skill) -> dict[str, Any]:
    """Return what a skill alone makes of a bank."""
    return {"schema_version": BANK_SCHEMA, "bank_version": skill.title, "skills": [_skill(c) for c in skill.chunks]}


def _skill(chunk: Chunk) -> dict[str, Any]:
    return {"skill_id": chunk.chunk_id, "content": _content(chunk.title, chunk.text)}


def _content(title: str, text: str) -> str:
    return f"### {title}\n\n{text}"


def _pool(pool: Pool) -> dict[str, Any]:
    """Return what a pool alone makes of a candidate pool."""
    document = {
        "schema_version": POOL_SCHEMA,
        "round_id": pool.title,
        "current_skills": [_skill(chunk) for chunk in pool.chunks],
        "candidates": [_proposal(candidate) for candidate in pool.candidates],
    }
    return document | {"pool_sha256": fingerprint(document)}


def _proposal(candidate: Candidate) -> dict[str, Any]:
    return {
        "candidate_id": candidate.candidate_id,
        "operation": candidate.operation,
        "target_chunk_id": candidate.target_chunk_id,
        "content": _content(candidate.title, candidate.content),
        "metadata": {
            "title": candidate.title,
            "failure_mechanism": None if isinstance(candidate, Add) else candidate.reason,
            "evidence_card_ids": list(candidate.evidence_card_ids),
        },
    }
