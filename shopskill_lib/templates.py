"""Prompt texts: `prompts/<name>_<language>.md` with named placeholders, checked when they are read."""

import re
from collections.abc import Collection, Mapping
from pathlib import Path

from shopskill_lib.errors import ParameterError
from shopskill_lib.records import Language

SHIPPED = Path(__file__).with_name("prompts")

_PLACEHOLDER = re.compile(r"\{([a-z_]+)\}")


def load(names: Mapping[str, Collection[str]], language: Language, prompts_dir: str = "") -> dict[str, str]:
    """Read texts by name; a file of the same name in `prompts_dir` goes before the library's own.

    Args:
        names: name of a text -> its placeholders, each of which it must hold once.
        language: of the texts.
        prompts_dir: the user's own texts; "" for none.

    Raises:
        ParameterError: a text is blank, lacks a placeholder or has an unknown one, or the folder holds a text of
            unknown name.
    """
    own = Path(prompts_dir) if prompts_dir else SHIPPED
    known = {path.name for path in SHIPPED.glob("*.md")}
    strange = sorted(path.name for path in own.glob("*.md") if path.name not in known)
    if strange or not own.is_dir():
        raise ParameterError(
            f"{strange[0]} is no prompt of this library" if strange else "there is no such folder",
            where=f"prompts_dir {own}",
            allowed=f"a folder with any of {', '.join(sorted(known))}",
            todo="correct the name",
        )
    files = {name: f"{name}_{language}.md" for name in names}
    return {
        name: _read((own if (own / file).exists() else SHIPPED) / file, names[name]) for name, file in files.items()
    }


def _read(path: Path, placeholders: Collection[str]) -> str:
    """Read one text and check its placeholders."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ParameterError(
            f"the prompt cannot be read ({error})", where=str(path), allowed="text in UTF-8", todo="mend the file"
        ) from error
    if not text.strip():
        raise ParameterError(
            "the prompt is blank", where=str(path), allowed="a text", todo="write it, or remove the file"
        )
    found = sorted(_PLACEHOLDER.findall(text))
    if found != sorted(placeholders):
        raise ParameterError(
            f"the placeholders are {found}",
            where=str(path),
            allowed=f"exactly {sorted(placeholders)}, each once",
            todo="correct the prompt",
        )
    return text


def fill(template: str, values: Mapping[str, str]) -> str:
    """Put the values into their placeholders in one pass: braces inside a value stay as they are."""
    return _PLACEHOLDER.sub(lambda match: values[match[1]], template)
