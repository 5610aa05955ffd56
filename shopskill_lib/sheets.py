"""A page of headed lines and tables, written as Markdown and as one printable HTML file."""

import html
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from shopskill_lib.files import write_bytes

STYLE = """
@page { size: A4; margin: 10mm 12mm; }
body { font: 13px/1.42 system-ui, "Noto Sans CJK SC", sans-serif; color: #111; max-width: 60rem; margin: 1.5em auto;
  padding: 0 1.2em; overflow-wrap: anywhere; }
h1 { font-size: 1.6em; margin: 0 0 .4em; }
h2 { font-size: 1.15em; margin: .8em 0 .2em; border-bottom: 1px solid #999; break-after: avoid; }
ul { margin: .2em 0; padding-left: 1.4em; }
table { border-collapse: collapse; font-size: .86em; width: 100%; }
th, td { border-bottom: 1px solid #ccc; padding: .1em .5em; text-align: right; white-space: nowrap; }
th:first-child, td:first-child { text-align: left; white-space: normal; }
tr { break-inside: avoid; }
blockquote { margin: .4em 0; padding: .4em 1em; border-left: 4px solid #111; break-inside: avoid; }
@media print { body { font-size: 9.2px; margin: 0; max-width: none; padding: 0; } }
"""

_MARKDOWN = re.compile(r"([\\`*_\[\]<>|#~$&])")


@dataclass(frozen=True, slots=True)
class Section:
    """A heading with lines and at most one table, whose first column holds names and the others short texts."""

    heading: str
    lines: tuple[str, ...] = ()
    table: pd.DataFrame | None = None


@dataclass(frozen=True, slots=True)
class Sheet:
    """A page: title, sections, and the sentence to quote at its end."""

    title: str
    sections: tuple[Section, ...]
    quote: str

    def to_markdown(self) -> str:
        """Return the page as Markdown; texts are escaped, so that a title stays what its author wrote."""
        parts = [f"# {_marked(self.title)}"]
        for section in self.sections:
            parts.append(f"## {section.heading}")
            if section.table is not None:
                parts.append(_markdown_table(section.table))
            if section.lines:
                parts.append("\n".join(f"- {_marked(line)}" for line in section.lines))
        return "\n\n".join([*parts, "## The sentence to quote", f"> {_marked(self.quote)}"]) + "\n"

    def to_html(self) -> str:
        """Return the page as one HTML file without script, font or image from elsewhere."""
        body = "".join(map(_html_section, self.sections))
        return (
            '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
            f"<title>{_escaped(self.title)}</title><style>{STYLE}</style></head>\n<body>"
            f"<h1>{_escaped(self.title)}</h1>\n{body}<h2>The sentence to quote</h2>\n"
            f"<blockquote>{_escaped(self.quote)}</blockquote></body></html>\n"
        )


def write(sheet: Sheet, folder: Path, name: str) -> tuple[Path, Path]:
    """Write a page as `<name>.md` and `<name>.html`.

    Raises:
        OutputError: the folder cannot be written.
    """
    places = folder / f"{name}.md", folder / f"{name}.html"
    for path, text in zip(places, (sheet.to_markdown(), sheet.to_html()), strict=True):
        write_bytes(path, text.encode())
    return places


def _html_section(section: Section) -> str:
    table = "" if section.table is None else _html_table(section.table)
    lines = "".join(f"<li>{_escaped(line)}</li>\n" for line in section.lines)
    return f"<h2>{_escaped(section.heading)}</h2>\n{table}" + (f"<ul>\n{lines}</ul>\n" if lines else "")


def _html_table(table: pd.DataFrame) -> str:
    rows = [_html_row(row, "td") for row in table.to_numpy().tolist()]
    return f"<table><thead>{_html_row(list(table), 'th')}</thead>\n<tbody>{''.join(rows)}</tbody></table>\n"


def _html_row(cells: Sequence[object], tag: str) -> str:
    return "<tr>" + "".join(f"<{tag}>{_escaped(cell)}</{tag}>" for cell in cells) + "</tr>\n"


def _markdown_table(table: pd.DataFrame) -> str:
    head, *rows = [list(map(_marked, row)) for row in (list(table), *table.to_numpy().tolist())]
    ruled = ["---", *["---:"] * (len(head) - 1)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (head, ruled, *rows))


def _marked(value: object) -> str:
    """Return a text on one line that Markdown prints as it is."""
    return _MARKDOWN.sub(r"\\\1", " ".join(str(value).split()))


def _escaped(value: object) -> str:
    return html.escape(" ".join(str(value).split()))
