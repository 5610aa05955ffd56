"""A streamed answer -> the body that the same answer has unstreamed, so that both are read alike."""

import json
from collections.abc import Iterable, Iterator
from typing import Any

from shopskill_lib.replies import ErrorReplyError, Json, NotAReplyError

DONE = "[DONE]"
"""Last event of a stream; without it the answer was cut off."""


def unstreamed(body: bytes) -> bytes:
    """Return a stream of server-sent events as one chat completion.

    Content, reasoning and the parts of calls are joined in order; the last finish reason and the last usage count. A
    body that is no stream, from a server that does not stream, is returned as it is.

    Args:
        body: all bytes that came: a letter may be split over pieces of them.

    Raises:
        NotAReplyError: the stream has no pieces, a damaged one, an error, or no end.
    """
    if body.lstrip()[:1] in (b"", b"{", b"[", b"<"):
        return body
    whole: Json = {}
    choice: Json = {"index": 0, "finish_reason": None}
    message = _Message()
    for piece in _pieces(_events(body)):
        whole |= {name: piece[name] for name in ("id", "model", "usage") if piece.get(name) is not None}
        for part in _first(piece):
            choice["finish_reason"] = part.get("finish_reason") or choice["finish_reason"]
            message.add(part.get("delta"))
    if not choice["finish_reason"]:
        raise NotAReplyError("the stream ended before the answer did")
    return json.dumps({**whole, "choices": [{**choice, "message": message.whole}]}).encode()


def _events(body: bytes) -> Iterator[str]:
    """Yield the data of each event; comments and other fields are left out."""
    data: list[str] = []
    text = body.decode("utf-8", "replace").replace("\r\n", "\n").replace("\r", "\n")
    for line in text.split("\n"):
        if line.startswith("data:"):
            data.append(line[5:].removeprefix(" "))
        elif not line and data:
            yield "\n".join(data)
            data = []
    if data:
        yield "\n".join(data)


def _pieces(events: Iterable[str]) -> Iterator[Json]:
    """Yield the pieces of an answer up to its end."""
    for event in events:
        if event.strip() == DONE:
            return
        try:
            piece = json.loads(event)
        except (ValueError, RecursionError) as error:
            raise NotAReplyError(f"a piece of the stream is no JSON: {event[:120]!r}") from error
        if not isinstance(piece, dict):
            raise NotAReplyError(f"a piece of the stream is no object: {event[:120]!r}")
        if piece.get("error"):
            raise ErrorReplyError.of(piece["error"])
        yield piece
    raise NotAReplyError("the stream was cut off")


def _first(piece: Json) -> Iterator[Json]:
    """Yield the part of a piece that belongs to the first choice."""
    choices = piece.get("choices")
    for choice in choices if isinstance(choices, list) else ():
        if isinstance(choice, dict) and choice.get("index", 0) == 0:
            yield choice


class _Message:
    """A message that grows by deltas."""

    def __init__(self) -> None:
        self._texts: dict[str, list[str]] = {}
        self._parts: list[Json] = []
        self._calls: list[Json] = []
        self._places: dict[object, int] = {}

    def add(self, delta: object) -> None:
        """Add one delta."""
        if not isinstance(delta, dict):
            return
        for name in ("content", "reasoning_content", "reasoning"):
            if isinstance(delta.get(name), str):
                self._texts.setdefault(name, []).append(delta[name])
        if isinstance(delta.get("content"), list):
            self._parts += delta["content"]
        calls = delta.get("tool_calls")
        for call in calls if isinstance(calls, list) else ():
            if isinstance(call, dict):
                self._call(call)

    def _call(self, piece: Json) -> None:
        """Add a piece of a call: to the one of its index, unless it brings another id."""
        index, name = piece.get("index", 0), piece.get("id")
        place = self._places.get(index)
        if place is None or (name and self._calls[place]["id"] not in (None, name)):
            place = self._places[index] = len(self._calls)
            self._calls.append({"id": None, "type": "function", "function": {}})
        call = self._calls[place]
        call["id"] = name or call["id"]
        function = piece.get("function")
        for field, value in function.items() if isinstance(function, dict) else ():
            before = call["function"].get(field)
            joined = isinstance(value, str) and isinstance(before, str)
            if value is not None:
                call["function"][field] = before + value if joined else value

    @property
    def whole(self) -> dict[str, Any]:
        """The message as an unstreamed answer has it."""
        texts: dict[str, Any] = {name: "".join(pieces) for name, pieces in self._texts.items()}
        if self._parts:
            texts["content"] = [*self._parts, {"type": "text", "text": texts.get("content", "")}]
        return {"role": "assistant", "content": None} | texts | ({"tool_calls": self._calls} if self._calls else {})
