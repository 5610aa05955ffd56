"""What rollout rows of trainers have in common: text instead of tokens, prompt and response as one conversation."""

from collections.abc import Sequence
from typing import Any

from shopskill_lib.adapters import chatml, rows
from shopskill_lib.adapters.lossless import refusal
from shopskill_lib.adapters.openai_messages import conversation
from shopskill_lib.adapters.recorded import RecordedEpisode
from shopskill_lib.adapters.rows import Document


def first_of(document: Document, names: Sequence[str]) -> tuple[str, Any]:
    """Return the first of these fields that is told, with its name; ("", None) where none is."""
    return next(((name, document[name]) for name in names if document.get(name) is not None), ("", None))


def spoken(prompt: tuple[str, Any], response: tuple[str, Any], where: str) -> dict[str, Any]:
    """Return what prompt and response tell, each a text or a list of messages, as fields of `RecordedEpisode`.

    Two texts are a conversation if they carry role marks (`chatml`); else messages, turns and ending are not told.

    Raises:
        InputError: token ids, another type, or messages that cannot be read.
    """
    asked, answered = _text_or_messages(*prompt, where), _text_or_messages(*response, where)
    if isinstance(asked, str) and isinstance(answered, str):
        messages = chatml.split(asked + answered)
    else:
        messages = [*_as_messages(asked, "user"), *_as_messages(answered, "assistant")]
    names = " and ".join(name for name, _ in (prompt, response) if name)
    return {} if messages is None else conversation(messages, f"{where}, {names}")


def refuse_tokens(document: Document, where: str) -> None:
    """Refuse a row whose text is there as token ids only."""
    tokens = [name for name, value in document.items() if _is_tokens(value)]
    if tokens:
        raise refusal(
            f"the row has token ids (field {tokens[0]}) and no text",
            where,
            "prompt and response as texts or chat messages; decode them with the tokenizer of the run",
        )


def halves(episode: RecordedEpisode) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return the messages before the first reply, and from it on."""
    messages = rows.messages_of(episode)
    replies = (place for place, message in enumerate(messages) if message["role"] == "assistant")
    start = next(replies, len(messages))
    return messages[:start], messages[start:]


def _text_or_messages(name: str, value: Any, where: str) -> str | list[Any]:
    if _is_tokens(value):
        refuse_tokens({name: value}, where)
    if value is None or isinstance(value, str | list):
        return value or ""
    raise refusal(f"{name} is a {type(value).__name__}", where, "a text, or a list of chat messages")


def _as_messages(part: str | list[Any], role: str) -> list[Any]:
    """Return a half as messages: a response may run on over several turns, any other text is one message."""
    if isinstance(part, list):
        return part
    turns = chatml.split(chatml.OPENING + part) if role == "assistant" and chatml.END in part else None
    return turns or ([{"role": role, "content": part}] if part else [])


def _is_tokens(value: Any) -> bool:
    """Tell a list of token ids, of one sample or of a batch of one."""
    inner = value[0] if isinstance(value, list) and len(value) == 1 and isinstance(value[0], list) else value
    return isinstance(inner, list) and bool(inner) and all(type(item) is int for item in inner)
