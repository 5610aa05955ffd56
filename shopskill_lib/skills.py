"""Skill documents: `skill.md` or a JSON list of chunks -> chunks in canonical order, and back.

A chunk is the smallest unit of skill text that is shown or hidden as a whole. In `skill.md` every `##` heading
outside a code fence begins one: `## Title {#chunk-id}`; without an id the chunk is named by its content.
"""

import hashlib
import re
from pathlib import Path

from pydantic import ValidationError

from shopskill_lib.errors import InputError
from shopskill_lib.files import first_fault, parse_json, read_text
from shopskill_lib.records import Record, fingerprint
from shopskill_lib.text import key

_HEADING = re.compile(r"##\s+(?P<title>.*?)\s*(?:\{#(?P<id>[^\s\"<>{}]+)\})?\s*#*\s*")
_FENCE = re.compile(r"\s{0,3}(```+|~~~+)")
_FRONT_MATTER = re.compile(r"\A---\n.*?\n---\n", re.DOTALL)


class Chunk(Record):
    """One chunk of a skill."""

    chunk_id: str
    """Id, unique in the skill."""
    title: str
    """Heading; shown with the text."""
    text: str
    """The advice itself."""

    @property
    def shown(self) -> str:
        """What a prompt shows of it."""
        return f"{self.title}\n{self.text}"

    @property
    def text_sha256(self) -> str:
        """Hash of what a prompt shows of it: tells the texts apart that a chunk has had under one id."""
        return hashlib.sha256(self.shown.encode()).hexdigest()


class Skill(Record):
    """A skill: chunks in canonical order."""

    title: str
    chunks: tuple[Chunk, ...]

    @property
    def ids(self) -> tuple[str, ...]:
        """Chunk ids in canonical order."""
        return tuple(chunk.chunk_id for chunk in self.chunks)

    def subset(self, ids: tuple[str, ...]) -> "Skill":
        """Return the skill with these chunks only, in canonical order."""
        return Skill(title=self.title, chunks=tuple(chunk for chunk in self.chunks if chunk.chunk_id in ids))

    def to_markdown(self) -> str:
        """Return the `skill.md` that reads back as this skill."""
        parts = [f"## {chunk.title} {{#{chunk.chunk_id}}}\n\n{chunk.text}\n" for chunk in self.chunks]
        return "\n".join([f"# {self.title}\n", *parts])


def read_skill(path: Path) -> Skill:
    """Read a `skill.md`, or a JSON list of {chunk_id, title, text}.

    Raises:
        InputError: no chunk, an empty or repeated one, one that `skill.md` cannot hold, or text that stands in none.
    """
    text = read_text(path)
    skill = _from_json(text, path) if path.suffix == ".json" else _from_markdown(text, path)
    refuse_unusable(skill, path)
    return skill


def refuse_unusable(skill: Skill, path: Path) -> None:
    """Refuse a skill that cannot be measured chunk by chunk (see `read_skill`); the path is for the message."""
    refusal = {"where": str(path), "allowed": "one or more chunks, each with an id and a text of its own"}
    if not skill.chunks:
        raise InputError("there is no chunk", **refusal, todo="begin every chunk with a line `## Title {#chunk-id}`")
    seen: dict[str, str] = {}
    for chunk in skill.chunks:
        if not key(chunk.text):
            raise InputError(f"chunk {chunk.chunk_id} has no text", **refusal, todo="write it or remove the heading")
        for mark, what in ((chunk.chunk_id, "id"), (f"text {key(chunk.text)}", "text")):
            if mark in seen:
                raise InputError(
                    f"chunks {seen[mark]!r} and {chunk.title!r} have the same {what}", **refusal, todo="remove one"
                )
            seen[mark] = chunk.title
        _refuse_unfaithful(chunk, path)


def _refuse_unfaithful(chunk: Chunk, path: Path) -> None:
    """Refuse a chunk that the selected `skill.md` would not give back: another skill would be tested than selected."""
    try:
        again = _from_markdown(Skill(title="", chunks=(chunk,)).to_markdown(), path).chunks
    except InputError:
        again = ()
    if again != (chunk,):
        raise InputError(
            f"chunk {chunk.chunk_id!r} would not read back from a skill.md as it is",
            where=str(path),
            allowed="an id without spaces, a title of one line without spaces around it, "
            "a text without blank lines around it, with `##` lines in fences only and every fence closed",
            todo="correct the chunk, or make two of it",
        )


def _from_json(text: str, path: Path) -> Skill:
    """Read a list of chunks."""
    document = parse_json(text, str(path))
    try:
        return Skill.model_validate({"title": path.stem, "chunks": document})
    except ValidationError as error:
        raise InputError(
            first_fault(error),
            where=str(path),
            allowed="a list of {chunk_id, title, text}",
            todo="correct the entry",
        ) from error


def _from_markdown(text: str, path: Path) -> Skill:
    """Split a document at its `##` headings, code fences left whole."""
    title, chunks, fence = path.stem, list[tuple[str, str | None, list[str]]](), ""
    front = _FRONT_MATTER.match(text)
    body = text[front.end() :] if front else text
    for number, line in enumerate(body.splitlines(), 1 + text[: len(text) - len(body)].count("\n")):
        mark = _FENCE.match(line)
        if mark and (not fence or mark[1].startswith(fence)):
            fence = "" if fence else mark[1]
        heading = None if fence else _HEADING.fullmatch(line)
        if heading:
            chunks.append((heading["title"], heading["id"], []))
        elif chunks:
            chunks[-1][2].append(line)
        elif line.startswith("# "):
            title = line[2:].strip()
        elif line.strip():
            raise InputError(
                "there is text before the first chunk",
                where=f"{path}, line {number}",
                allowed="a `# title` line, then chunks that begin with `##`",
                todo="put the text under a heading of its own, so that it can be measured",
            )
    if fence:
        raise InputError(
            f"a code fence {fence} is never closed, so every later heading would be part of it",
            where=str(path),
            allowed="fences in pairs",
            todo="close the fence",
        )
    return Skill(title=title, chunks=tuple(_chunk(*parts) for parts in chunks))


def _chunk(title: str, chunk_id: str | None, lines: list[str]) -> Chunk:
    """Name a chunk by its id, or by its content."""
    text = "\n".join(lines).strip("\n")
    named = chunk_id or f"chunk-{fingerprint([title, text])[:12]}"
    return Chunk(chunk_id=named, title=title, text=text)
